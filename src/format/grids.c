/* Owns the expanded constant tables: each packed entry of grids.inc becomes one byte per coordinate. */
#include "format/grids.h"

#define PICK2(v, j, a, b, c)                                                                                           \
    ((uint64_t)(((v) >> 2 * (j)&3) == 0 ? (a) : ((v) >> 2 * (j)&3) == 1 ? (b) : (c)) << 8 * (j))
#define PICK8(v, a, b, c)                                                                                              \
    (PICK2(v, 0, a, b, c) | PICK2(v, 1, a, b, c) | PICK2(v, 2, a, b, c) | PICK2(v, 3, a, b, c) |                       \
     PICK2(v, 4, a, b, c) | PICK2(v, 5, a, b, c) | PICK2(v, 6, a, b, c) | PICK2(v, 7, a, b, c))

#define ST_G(v) PICK8(v, 0xff, 0, 1),
const uint64_t st_grid_iq1s[2048] = {
#define ST_GRID_IQ1S
#include "format/grids.inc"
#undef ST_GRID_IQ1S
};
#undef ST_G

#define ST_G(v) PICK8(v, 8, 25, 43),
const uint64_t st_grid_iq2xxs[256] = {
#define ST_GRID_IQ2XXS
#include "format/grids.inc"
#undef ST_GRID_IQ2XXS
};
const uint64_t st_grid_iq2xs[512] = {
#define ST_GRID_IQ2XS
#include "format/grids.inc"
#undef ST_GRID_IQ2XS
};
const uint64_t st_grid_iq2s[1024] = {
#define ST_GRID_IQ2S
#include "format/grids.inc"
#undef ST_GRID_IQ2S
};
#undef ST_G

/* 4 + 8 k, except that the last value is 62. */
#define BYTE3(v, j, first, step, last)                                                                                 \
    ((((v) >> 3 * (j)&7) == 7 ? (last) : (first) + (step) * ((v) >> 3 * (j)&7)) << 8 * (j))
#define PICK4(v, first, step, last)                                                                                    \
    ((uint32_t)BYTE3(v, 0, first, step, last) | (uint32_t)BYTE3(v, 1, first, step, last) |                             \
     (uint32_t)BYTE3(v, 2, first, step, last) | (uint32_t)BYTE3(v, 3, first, step, last))

#define ST_G(v) PICK4(v, 4u, 8u, 62u),
const uint32_t st_grid_iq3xxs[256] = {
#define ST_GRID_IQ3XXS
#include "format/grids.inc"
#undef ST_GRID_IQ3XXS
};
#undef ST_G
#define ST_G(v) PICK4(v, 1u, 2u, 15u),
const uint32_t st_grid_iq3s[512] = {
#define ST_GRID_IQ3S
#include "format/grids.inc"
#undef ST_GRID_IQ3S
};

const int8_t st_values_iq4nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
const int8_t st_values_fp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
