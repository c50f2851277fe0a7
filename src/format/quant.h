/* The tensor types of model files: block layouts, exact decoding, encoders, activation quantisation and the reference
 * dot product of every type. Layouts: the GGUF format; the project's arithmetic: docs/numerics.md.
 *
 * A row of n elements is n / block_elems blocks of block_bytes bytes, without padding. Blocks may start at any address.
 */
#ifndef ST_FORMAT_QUANT_H
#define ST_FORMAT_QUANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/quant_half.h"

/* The ids that files use. Ids that are missing here are removed, of other projects, or not supported. */
enum st_type {
    ST_TYPE_F32 = 0,
    ST_TYPE_F16 = 1,
    ST_TYPE_Q4_0 = 2,
    ST_TYPE_Q4_1 = 3,
    ST_TYPE_Q5_0 = 6,
    ST_TYPE_Q5_1 = 7,
    ST_TYPE_Q8_0 = 8,
    ST_TYPE_Q2_K = 10,
    ST_TYPE_Q3_K = 11,
    ST_TYPE_Q4_K = 12,
    ST_TYPE_Q5_K = 13,
    ST_TYPE_Q6_K = 14,
    ST_TYPE_IQ2_XXS = 16,
    ST_TYPE_IQ2_XS = 17,
    ST_TYPE_IQ3_XXS = 18,
    ST_TYPE_IQ1_S = 19,
    ST_TYPE_IQ4_NL = 20,
    ST_TYPE_IQ3_S = 21,
    ST_TYPE_IQ2_S = 22,
    ST_TYPE_IQ4_XS = 23,
    ST_TYPE_IQ1_M = 29,
    ST_TYPE_BF16 = 30,
    ST_TYPE_MXFP4 = 39,
    ST_TYPE_NVFP4 = 40,
    ST_TYPE_Q2_0 = 42,
    ST_TYPE_COUNT = 43
};

/* What a type's dot product takes as its other operand. */
enum st_act {
    ST_ACT_F32, /* the floats themselves */
    ST_ACT_Q8,  /* signed bytes, one scale for 32 elements */
    ST_ACT_Q8K, /* signed bytes, one scale for 256 elements */
    ST_ACT_COUNT
};

/* One row of n activations, structure of arrays. Which arrays are used: F32: f. Q8: q, d, s, sums. Q8K: q, d, sums. */
struct st_act_row {
    const float *f; /* [n] */
    int8_t *q;      /* [n], -127 .. 127 */
    float *d;       /* [n / 32] (Q8: a value that binary16 can hold) or [n / 256] (Q8K) */
    float
        *s; /* [n / 32] sum of the block's q times its unrounded scale, rounded to binary16: for types with a minimum */
    int16_t *sums; /* [n / 16] sum of each 16 q */
};

struct st_type_info {
    const char *name; /* as files and tools spell it: "Q4_K" */
    int id;
    uint32_t block_elems, block_bytes;
    enum st_act act; /* what dot takes */
    /* n elements, a multiple of block_elems. src at any alignment; exact. */
    void (*decode)(const void *src, float *dst, size_t n);
    /* Searches the block scales with the smallest squared error, weighted by importance[n] when that is not NULL
     * (weights
     * >= 0). NULL when the type has no encoder. The result depends on nothing but the arguments. */
    void (*encode)(const float *src, void *dst, size_t n, const float *importance);
    /* The reference dot product of n weights with one activation row, in the defined order (docs/numerics.md). */
    float (*dot)(const void *w, const struct st_act_row *x, size_t n);
};

/* NULL for an id that is unknown, removed or only for activations. */
const struct st_type_info *st_type_info(int id);
/* By name in any case; NULL when there is none. */
const struct st_type_info *st_type_by_name(const char *name);

/* Bytes of a row of n elements. False, with *bytes untouched, for an unknown type, when n is not a multiple of the
 * block, or when the product does not fit. */
bool st_row_bytes(int type, uint64_t n, uint64_t *bytes);

/* Memory for one activation row of n elements (0 for F32, which only points at the floats), a multiple of 64. n is a
 * multiple of 32 (Q8) or 256 (Q8K). */
size_t st_act_bytes(enum st_act kind, size_t n);
/* Lays a row out in st_act_bytes(kind, n) bytes of memory (64-byte aligned, owned by the caller). */
void st_act_bind(enum st_act kind, size_t n, void *memory, struct st_act_row *row);
/* Fills the bound row from x[n]; for F32 row->f becomes x itself. The rounding is defined to the bit in
 * docs/numerics.md: every device reproduces it. NaN or infinity in a block make that block's scale NaN or infinite. */
void st_act_quantize(enum st_act kind, const float *x, size_t n, struct st_act_row *row);

/* The canonical float dot product: 16 partial accumulators over i ascending by 16, then a fixed tree. Any n. */
float st_dot_f32(const float *w, const float *x, size_t n);

#endif
