/* Constant tables of the quantised types. Byte j of a grid entry (little-endian) is coordinate j. */
#ifndef ST_FORMAT_GRIDS_H
#define ST_FORMAT_GRIDS_H

#include <stdint.h>

extern const uint64_t st_grid_iq1s[2048]; /* signed bytes -1 0 1 */
extern const uint64_t st_grid_iq2xxs[256], st_grid_iq2xs[512], st_grid_iq2s[1024];
extern const uint32_t st_grid_iq3xxs[256], st_grid_iq3s[512];
extern const int8_t st_values_iq4nl[16], st_values_fp4[16]; /* fp4: doubled E2M1 */

/* Seven stored sign bits and the eighth, which makes the number of negations even. */
static inline uint32_t st_signs7(uint32_t s)
{
    return s | (uint32_t)__builtin_parity(s) << 7;
}

#endif
