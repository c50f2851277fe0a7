/* Owns the list of tensor types, activation rows and the reference dot products. */
#include "format/quant.h"

#include <strings.h>

#include "base/checked.h"
#include "format/quant_block.h"
#include "format/quant_encode.h"

static void decode_blocks(int type, const void *src, float *dst, size_t n)
{
    const struct st_block_form *form = st_block_form(type);
    const uint8_t *p = src;
    struct st_block b;
    for (size_t i = 0; i < n; i += form->elems, p += form->bytes) {
        form->unpack(p, &b);
        st_block_values(form, &b, dst + i);
    }
}

static float dot_blocks(int type, const void *w, const struct st_act_row *x, size_t n)
{
    const struct st_block_form *form = st_block_form(type);
    const uint8_t *p = w;
    struct st_block b;
    float acc = 0.0f;
    for (size_t i = 0; i < n; i += form->elems, p += form->bytes) {
        form->unpack(p, &b);
        acc = st_block_dot(form, &b, x, i, acc);
    }
    return acc;
}

#define BLOCK_TYPE(TYPE, lower)                                                                                        \
    static void decode_##lower(const void *src, float *dst, size_t n)                                                  \
    {                                                                                                                  \
        decode_blocks(ST_TYPE_##TYPE, src, dst, n);                                                                    \
    }                                                                                                                  \
    static float dot_##lower(const void *w, const struct st_act_row *x, size_t n)                                      \
    {                                                                                                                  \
        return dot_blocks(ST_TYPE_##TYPE, w, x, n);                                                                    \
    }
BLOCK_TYPE(Q4_0, q4_0)
BLOCK_TYPE(Q4_1, q4_1)
BLOCK_TYPE(Q5_0, q5_0)
BLOCK_TYPE(Q5_1, q5_1)
BLOCK_TYPE(Q8_0, q8_0)
BLOCK_TYPE(Q2_K, q2_k)
BLOCK_TYPE(Q3_K, q3_k)
BLOCK_TYPE(Q4_K, q4_k)
BLOCK_TYPE(Q5_K, q5_k)
BLOCK_TYPE(Q6_K, q6_k)
BLOCK_TYPE(IQ2_XXS, iq2_xxs)
BLOCK_TYPE(IQ2_XS, iq2_xs)
BLOCK_TYPE(IQ3_XXS, iq3_xxs)
BLOCK_TYPE(IQ1_S, iq1_s)
BLOCK_TYPE(IQ4_NL, iq4_nl)
BLOCK_TYPE(IQ3_S, iq3_s)
BLOCK_TYPE(IQ2_S, iq2_s)
BLOCK_TYPE(IQ4_XS, iq4_xs)
BLOCK_TYPE(IQ1_M, iq1_m)
BLOCK_TYPE(MXFP4, mxfp4)
BLOCK_TYPE(NVFP4, nvfp4)
BLOCK_TYPE(Q2_0, q2_0)

static void decode_f32(const void *src, float *dst, size_t n)
{
    memcpy(dst, src, 4 * n);
}

static void decode_f16(const void *src, float *dst, size_t n)
{
    const uint8_t *p = src;
    for (size_t i = 0; i < n; i++)
        dst[i] = st_f16_to_f32(st_load16(p + 2 * i));
}

static void decode_bf16(const void *src, float *dst, size_t n)
{
    const uint8_t *p = src;
    for (size_t i = 0; i < n; i++)
        dst[i] = st_bf16_to_f32(st_load16(p + 2 * i));
}

/* The canonical order, one step of 16 elements; count < 16 stands for zeros behind a row's end. */
static void step_f32(float acc[16], const float *w, const float *x, size_t count)
{
    for (size_t j = 0; j < count; j++)
        acc[j] = __builtin_fmaf(x[j], w[j], acc[j]);
    for (size_t j = count; j < 16; j++)
        acc[j] = __builtin_fmaf(0.0f, 0.0f, acc[j]);
}

static float tree_f32(float acc[16])
{
    for (int half = 8; half; half /= 2)
        for (int j = 0; j < half; j++)
            acc[j] += acc[j + half];
    return acc[0];
}

float st_dot_f32(const float *w, const float *x, size_t n)
{
    float acc[16] = {0};
    for (size_t i = 0; i < n; i += 16)
        step_f32(acc, w + i, x + i, n - i < 16 ? n - i : 16);
    return tree_f32(acc);
}

static float dot_decoded(void (*decode)(const void *, float *, size_t), size_t size, const void *w, const float *x,
                         size_t n)
{
    const uint8_t *p = w;
    float acc[16] = {0}, values[16];
    for (size_t i = 0; i < n; i += 16) {
        size_t count = n - i < 16 ? n - i : 16;
        decode(p + size * i, values, count);
        step_f32(acc, values, x + i, count);
    }
    return tree_f32(acc);
}

static float dot_f32(const void *w, const struct st_act_row *x, size_t n)
{
    return dot_decoded(decode_f32, 4, w, x->f, n);
}

static float dot_f16(const void *w, const struct st_act_row *x, size_t n)
{
    return dot_decoded(decode_f16, 2, w, x->f, n);
}

static float dot_bf16(const void *w, const struct st_act_row *x, size_t n)
{
    return dot_decoded(decode_bf16, 2, w, x->f, n);
}

#define TYPE(T, elems, bytes, act, lower, encoder)                                                                     \
    [ST_TYPE_##T] = {#T, ST_TYPE_##T, elems, bytes, act, decode_##lower, encoder, dot_##lower}
static const struct st_type_info types[ST_TYPE_COUNT] = {
    TYPE(F32, 1, 4, ST_ACT_F32, f32, st_encode_f32),
    TYPE(F16, 1, 2, ST_ACT_F32, f16, st_encode_f16),
    TYPE(BF16, 1, 2, ST_ACT_F32, bf16, st_encode_bf16),
    TYPE(Q4_0, 32, 18, ST_ACT_Q8, q4_0, st_encode_q4_0),
    TYPE(Q4_1, 32, 20, ST_ACT_Q8, q4_1, st_encode_q4_1),
    TYPE(Q5_0, 32, 22, ST_ACT_Q8, q5_0, st_encode_q5_0),
    TYPE(Q5_1, 32, 24, ST_ACT_Q8, q5_1, st_encode_q5_1),
    TYPE(Q8_0, 32, 34, ST_ACT_Q8, q8_0, st_encode_q8_0),
    TYPE(IQ4_NL, 32, 18, ST_ACT_Q8, iq4_nl, st_encode_iq4_nl),
    TYPE(MXFP4, 32, 17, ST_ACT_Q8, mxfp4, st_encode_mxfp4),
    TYPE(NVFP4, 64, 36, ST_ACT_Q8, nvfp4, NULL),
    TYPE(Q2_0, 64, 18, ST_ACT_Q8, q2_0, st_encode_q2_0),
    TYPE(Q2_K, 256, 84, ST_ACT_Q8K, q2_k, NULL),
    TYPE(Q3_K, 256, 110, ST_ACT_Q8K, q3_k, st_encode_q3_k),
    TYPE(Q4_K, 256, 144, ST_ACT_Q8K, q4_k, st_encode_q4_k),
    TYPE(Q5_K, 256, 176, ST_ACT_Q8K, q5_k, st_encode_q5_k),
    TYPE(Q6_K, 256, 210, ST_ACT_Q8K, q6_k, st_encode_q6_k),
    TYPE(IQ2_XXS, 256, 66, ST_ACT_Q8K, iq2_xxs, NULL),
    TYPE(IQ2_XS, 256, 74, ST_ACT_Q8K, iq2_xs, NULL),
    TYPE(IQ2_S, 256, 82, ST_ACT_Q8K, iq2_s, NULL),
    TYPE(IQ3_XXS, 256, 98, ST_ACT_Q8K, iq3_xxs, st_encode_iq3_xxs),
    TYPE(IQ3_S, 256, 110, ST_ACT_Q8K, iq3_s, NULL),
    TYPE(IQ1_S, 256, 50, ST_ACT_Q8K, iq1_s, NULL),
    TYPE(IQ1_M, 256, 56, ST_ACT_Q8K, iq1_m, NULL),
    TYPE(IQ4_XS, 256, 136, ST_ACT_Q8K, iq4_xs, st_encode_iq4_xs),
};

const struct st_type_info *st_type_info(int id)
{
    return id >= 0 && id < ST_TYPE_COUNT && types[id].name ? &types[id] : NULL;
}

const struct st_type_info *st_type_by_name(const char *name)
{
    for (int id = 0; id < ST_TYPE_COUNT; id++)
        if (types[id].name && strcasecmp(types[id].name, name) == 0)
            return &types[id];
    return NULL;
}

bool st_row_bytes(int type, uint64_t n, uint64_t *bytes)
{
    const struct st_type_info *info = st_type_info(type);
    return info && n % info->block_elems == 0 && st_mul_u64(n / info->block_elems, info->block_bytes, bytes);
}

static size_t up64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

/* Bytes of q, d, s and sums, in the order in which they lie in memory. */
static void act_sizes(enum st_act kind, size_t n, size_t sizes[4])
{
    sizes[0] = up64(n);
    sizes[1] = up64(4 * (kind == ST_ACT_Q8 ? n / 32 : n / 256));
    sizes[2] = kind == ST_ACT_Q8 ? up64(4 * (n / 32)) : 0;
    sizes[3] = up64(2 * (n / 16));
}

size_t st_act_bytes(enum st_act kind, size_t n)
{
    size_t sizes[4];
    if (kind == ST_ACT_F32)
        return 0;
    act_sizes(kind, n, sizes);
    return sizes[0] + sizes[1] + sizes[2] + sizes[3];
}

void st_act_bind(enum st_act kind, size_t n, void *memory, struct st_act_row *row)
{
    size_t sizes[4];
    char *p = memory;
    *row = (struct st_act_row){0};
    if (kind == ST_ACT_F32)
        return;
    act_sizes(kind, n, sizes);
    row->q = (int8_t *)p;
    row->d = (float *)(p + sizes[0]);
    if (kind == ST_ACT_Q8)
        row->s = (float *)(p + sizes[0] + sizes[1]);
    row->sums = (int16_t *)(p + sizes[0] + sizes[1] + sizes[2]);
}

/* Nearest even whole number within -127 .. 127; -127 for NaN. */
static int8_t round_q(float v)
{
    v = v > -127.0f ? v : -127.0f;
    v = v < 127.0f ? v : 127.0f;
    return (int8_t)((v + 0x1.8p23f) - 0x1.8p23f);
}

/* The largest magnitude as bits: above infinity when there is a NaN. */
static uint32_t max_magnitude(const float *x, size_t n)
{
    uint32_t max = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t a = st_f32_bits(x[i]) & 0x7fffffff;
        max = a > max ? a : max;
    }
    return max;
}

static void fill_q(const float *x, float factor, int8_t *q, int16_t *sums, size_t n)
{
    for (size_t i = 0; i < n; i++)
        q[i] = round_q(x[i] * factor);
    for (size_t t = 0; t < n / 16; t++) {
        sums[t] = 0;
        for (int j = 0; j < 16; j++)
            sums[t] = (int16_t)(sums[t] + q[16 * t + (size_t)j]);
    }
}

static void quantize_q8(const float *x, size_t block, struct st_act_row *row)
{
    int8_t *q = row->q + 32 * block;
    int16_t *sums = row->sums + 2 * block;
    float d = st_bits_f32(max_magnitude(x, 32)) / 127.0f;
    row->d[block] = st_f16_to_f32(st_f32_to_f16(d));
    if (row->d[block] == 0.0f) { /* too small for the stored scale */
        row->s[block] = 0.0f;
        memset(q, 0, 32);
        memset(sums, 0, 4);
        return;
    }
    fill_q(x, 1.0f / d, q, sums, 32);
    row->s[block] = st_f16_to_f32(st_f32_to_f16((float)(sums[0] + sums[1]) * d));
}

static void quantize_q8k(const float *x, size_t block, struct st_act_row *row)
{
    int8_t *q = row->q + 256 * block;
    int16_t *sums = row->sums + 16 * block;
    uint32_t max = max_magnitude(x, 256);
    if (max < 0x0d800000) { /* below 2^-100: the inverse scale could overflow */
        row->d[block] = 0.0f;
        memset(q, 0, 256);
        memset(sums, 0, 32);
        return;
    }
    size_t i = 0;
    while ((st_f32_bits(x[i]) & 0x7fffffff) != max)
        i++;
    float factor = -127.0f / x[i];
    row->d[block] = 1.0f / factor;
    fill_q(x, factor, q, sums, 256);
}

void st_act_quantize(enum st_act kind, const float *x, size_t n, struct st_act_row *row)
{
    row->f = x;
    if (kind == ST_ACT_Q8)
        for (size_t b = 0; b < n / 32; b++)
            quantize_q8(x + 32 * b, b, row);
    if (kind == ST_ACT_Q8K)
        for (size_t b = 0; b < n / 256; b++)
            quantize_q8k(x + 256 * b, b, row);
}
