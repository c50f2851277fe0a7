/* One block of any quantised type in a common open form: codes as signed bytes, integer scales, float scales. Decoding
 * and the reference dot products are written once over this form; the fast kernels are compared with them.
 *
 * Element i of the block has the value
 *   small types (activations Q8): d[i / part] * q[i] + m[i / part]       (m only when the form says so)
 *   wide types (activations Q8K): (d[0] * scale[i / 16]) * q[i] - dmin * min[i / 16]   (dmin only when the form says
 * so) */
#ifndef ST_FORMAT_QUANT_BLOCK_H
#define ST_FORMAT_QUANT_BLOCK_H

#include "format/quant.h"

enum { ST_BLOCK_MAX = 256 };

struct st_block {
    float d[4], m[4];
    float dmin;
    int16_t scale[16], min[16];
    int8_t q[ST_BLOCK_MAX];
};

struct st_block_form {
    int type;
    uint16_t elems, bytes;
    uint16_t part; /* elements that share one d: 32 or 16 (small types), 256 (wide types) */
    bool has_min;
    void (*unpack)(const uint8_t *src, struct st_block *b);
};

/* NULL for F32, F16, BF16 and unknown types. */
const struct st_block_form *st_block_form(int type);

/* Adds one block's terms to an accumulator: the defined arithmetic of the quantised dot products. first is the index of
 * the block's first element in the row. */
float st_block_dot(const struct st_block_form *form, const struct st_block *b, const struct st_act_row *x, size_t first,
                   float acc);

/* Writes the block's elems values. */
void st_block_values(const struct st_block_form *form, const struct st_block *b, float *dst);

/* The six-bit scales and minima of Q4_K and Q5_K: 12 bytes, 8 pairs. */
void st_scales_k4(const uint8_t *sc, uint8_t *scale, uint8_t *min);

#endif
