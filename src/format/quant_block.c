/* Owns the layouts of the quantised types: how each block becomes the open form of quant_block.h. Byte offsets are
 * given where a block is read; every multi-byte field is little-endian. */
#include "format/quant_block.h"

#include "format/grids.h"

static float half_at(const uint8_t *p)
{
    return st_f16_to_f32(st_load16(p));
}

/* ---- small types: 32 or 64 elements ---- */

static void nibbles(const uint8_t *qs, int8_t *q, int offset)
{
    for (int j = 0; j < 16; j++) {
        q[j] = (int8_t)((qs[j] & 15) - offset);
        q[j + 16] = (int8_t)((qs[j] >> 4) - offset);
    }
}

static void five_bits(const uint8_t *qs, uint32_t high, int8_t *q, int offset)
{
    for (int j = 0; j < 16; j++) {
        q[j] = (int8_t)(((qs[j] & 15) | (high >> j & 1) << 4) - (uint32_t)offset);
        q[j + 16] = (int8_t)((qs[j] >> 4 | (high >> (j + 16) & 1) << 4) - (uint32_t)offset);
    }
}

/* f16 d; qs[16] */
static void unpack_q4_0(const uint8_t *p, struct st_block *b)
{
    b->d[0] = half_at(p);
    nibbles(p + 2, b->q, 8);
}

/* f16 d; f16 m; qs[16] */
static void unpack_q4_1(const uint8_t *p, struct st_block *b)
{
    b->d[0] = half_at(p);
    b->m[0] = half_at(p + 2);
    nibbles(p + 4, b->q, 0);
}

/* f16 d; u32 fifth bits; qs[16] */
static void unpack_q5_0(const uint8_t *p, struct st_block *b)
{
    b->d[0] = half_at(p);
    five_bits(p + 6, st_load32(p + 2), b->q, 16);
}

/* f16 d; f16 m; u32 fifth bits; qs[16] */
static void unpack_q5_1(const uint8_t *p, struct st_block *b)
{
    b->d[0] = half_at(p);
    b->m[0] = half_at(p + 2);
    five_bits(p + 8, st_load32(p + 4), b->q, 0);
}

/* f16 d; i8 qs[32] */
static void unpack_q8_0(const uint8_t *p, struct st_block *b)
{
    b->d[0] = half_at(p);
    memcpy(b->q, p + 2, 32);
}

/* f16 d; qs[16] */
static void unpack_iq4_nl(const uint8_t *p, struct st_block *b)
{
    b->d[0] = half_at(p);
    for (int j = 0; j < 16; j++) {
        b->q[j] = st_values_iq4nl[p[2 + j] & 15];
        b->q[j + 16] = st_values_iq4nl[p[2 + j] >> 4];
    }
}

/* 2^(e - 128), half of the E8M0 value: the codes are doubled. */
static float e8m0_half(uint8_t e)
{
    return st_bits_f32(e < 2 ? 0x200000u << e : (uint32_t)(e - 1) << 23);
}

/* u8 e; qs[16] */
static void unpack_mxfp4(const uint8_t *p, struct st_block *b)
{
    b->d[0] = e8m0_half(p[0]);
    for (int j = 0; j < 16; j++) {
        b->q[j] = st_values_fp4[p[1 + j] & 15];
        b->q[j + 16] = st_values_fp4[p[1 + j] >> 4];
    }
}

/* Half of an unsigned E4M3 value; bit 7 is not used, 0x7f (NaN elsewhere) stands for 0. */
static float ue4m3_half(uint8_t v)
{
    v &= 0x7f;
    if (v == 0x7f)
        return 0.0f;
    if (v < 8)
        return (float)v * 0x1p-10f;
    return st_bits_f32(((uint32_t)(v >> 3) + 119) << 23 | (uint32_t)(v & 7) << 20);
}

/* u8 sc[4]; qs[32]: 16 elements for each scale, in 8 bytes */
static void unpack_nvfp4(const uint8_t *p, struct st_block *b)
{
    for (int t = 0; t < 4; t++) {
        b->d[t] = ue4m3_half(p[t]);
        for (int j = 0; j < 8; j++) {
            b->q[16 * t + j] = st_values_fp4[p[4 + 8 * t + j] & 15];
            b->q[16 * t + 8 + j] = st_values_fp4[p[4 + 8 * t + j] >> 4];
        }
    }
}

/* f16 d; qs[16]: 64 elements, levels -1 0 1 2 */
static void unpack_q2_0(const uint8_t *p, struct st_block *b)
{
    b->d[0] = b->d[1] = half_at(p);
    for (int j = 0; j < 64; j++)
        b->q[j] = (int8_t)((p[2 + j / 4] >> 2 * (j % 4) & 3) - 1);
}

/* ---- K types: 256 elements ---- */

/* scales[16]: scale in the low, minimum in the high nibble; qs[64]; f16 d; f16 dmin */
static void unpack_q2_k(const uint8_t *p, struct st_block *b)
{
    b->d[0] = half_at(p + 80);
    b->dmin = half_at(p + 82);
    for (int t = 0; t < 16; t++) {
        b->scale[t] = p[t] & 15;
        b->min[t] = p[t] >> 4;
    }
    for (int i = 0; i < 256; i++)
        b->q[i] = p[16 + 32 * (i / 128) + i % 32] >> 2 * (i % 128 / 32) & 3;
}

/* hmask[32]; qs[64]; sc[12]; f16 d */
static void unpack_q3_k(const uint8_t *p, struct st_block *b)
{
    const uint8_t *sc = p + 96;
    b->d[0] = half_at(p + 108);
    for (int t = 0; t < 16; t++) {
        int low = t < 8 ? sc[t] & 15 : sc[t - 8] >> 4;
        b->scale[t] = (int16_t)((low | (sc[8 + t % 4] >> 2 * (t / 4) & 3) << 4) - 32);
    }
    for (int i = 0; i < 256; i++) {
        int low = p[32 + 32 * (i / 128) + i % 32] >> 2 * (i % 128 / 32) & 3;
        b->q[i] = (int8_t)(low - (p[i % 32] >> i / 32 & 1 ? 0 : 4));
    }
}

void st_scales_k4(const uint8_t *sc, uint8_t *scale, uint8_t *min)
{
    for (int j = 0; j < 4; j++) {
        scale[j] = sc[j] & 63;
        min[j] = sc[j + 4] & 63;
        scale[j + 4] = (uint8_t)((sc[j + 8] & 15) | sc[j] >> 6 << 4);
        min[j + 4] = (uint8_t)(sc[j + 8] >> 4 | sc[j + 4] >> 6 << 4);
    }
}

/* The head that Q4_K and Q5_K share: f16 d; f16 dmin; sc[12] */
static void head_k4(const uint8_t *p, struct st_block *b)
{
    uint8_t scale[8], min[8];
    st_scales_k4(p + 4, scale, min);
    b->d[0] = half_at(p);
    b->dmin = half_at(p + 2);
    for (int t = 0; t < 16; t++) {
        b->scale[t] = scale[t / 2];
        b->min[t] = min[t / 2];
    }
}

/* head; qs[128] */
static void unpack_q4_k(const uint8_t *p, struct st_block *b)
{
    head_k4(p, b);
    for (int i = 0; i < 256; i++)
        b->q[i] = p[16 + 32 * (i / 64) + i % 32] >> 4 * (i / 32 % 2) & 15;
}

/* head; qh[32]; qs[128] */
static void unpack_q5_k(const uint8_t *p, struct st_block *b)
{
    head_k4(p, b);
    for (int i = 0; i < 256; i++)
        b->q[i] =
            (int8_t)((p[48 + 32 * (i / 64) + i % 32] >> 4 * (i / 32 % 2) & 15) | (p[16 + i % 32] >> i / 32 & 1) << 4);
}

/* ql[128]; qh[64]; i8 scales[16]; f16 d */
static void unpack_q6_k(const uint8_t *p, struct st_block *b)
{
    b->d[0] = half_at(p + 208);
    for (int t = 0; t < 16; t++)
        b->scale[t] = (int8_t)p[192 + t];
    for (int i = 0; i < 256; i++) {
        int n = i / 128, g = i % 128 / 32, l = i % 32;
        int low = p[64 * n + 32 * (g % 2) + l] >> 4 * (g / 2) & 15, high = p[128 + 32 * n + l] >> 2 * g & 3;
        b->q[i] = (int8_t)((low | high << 4) - 32);
    }
}

/* ---- IQ types: 256 elements, k = 8 sub-blocks of 32, l = 4 groups of 8 in each ---- */

/* Eight elements of a grid entry with their signs; bit j of signs negates element j. */
static void grid8(int8_t *q, uint64_t entry, uint32_t signs)
{
    for (int j = 0; j < 8; j++) {
        int v = (int8_t)(entry >> 8 * j);
        q[j] = (int8_t)(signs >> j & 1 ? -v : v);
    }
}

static void set_scale(struct st_block *b, int k, int first, int second)
{
    b->scale[2 * k] = (int16_t)first;
    b->scale[2 * k + 1] = (int16_t)second;
}

/* f16 d; for each k: four grid bytes, u32 a (7 sign bits for each l, scale on top) */
static void unpack_iq2_xxs(const uint8_t *p, struct st_block *b)
{
    b->d[0] = 0.125f * half_at(p);
    for (int k = 0; k < 8; k++) {
        const uint8_t *g = p + 2 + 8 * k;
        uint32_t a = st_load32(g + 4);
        int s = (int)(2 * (a >> 28) + 1);
        set_scale(b, k, s, s);
        for (int l = 0; l < 4; l++)
            grid8(b->q + 32 * k + 8 * l, st_grid_iq2xxs[g[l]], st_signs7(a >> 7 * l & 127));
    }
}

/* f16 d; u16 q[32] (9 bits grid, 7 bits signs); scales[8] */
static void unpack_iq2_xs(const uint8_t *p, struct st_block *b)
{
    b->d[0] = 0.125f * half_at(p);
    for (int k = 0; k < 8; k++) {
        set_scale(b, k, 2 * (p[66 + k] & 15) + 1, 2 * (p[66 + k] >> 4) + 1);
        for (int l = 0; l < 4; l++) {
            uint32_t v = st_load16(p + 2 + 2 * (4 * k + l));
            grid8(b->q + 32 * k + 8 * l, st_grid_iq2xs[v & 511], st_signs7(v >> 9));
        }
    }
}

/* f16 d; qs[32]; signs[32]; qh[8]; scales[8] */
static void unpack_iq2_s(const uint8_t *p, struct st_block *b)
{
    b->d[0] = 0.125f * half_at(p);
    for (int k = 0; k < 8; k++) {
        set_scale(b, k, 2 * (p[74 + k] & 15) + 1, 2 * (p[74 + k] >> 4) + 1);
        for (int l = 0; l < 4; l++) {
            uint32_t index = p[2 + 4 * k + l] | (uint32_t)(p[66 + k] >> 2 * l & 3) << 8;
            grid8(b->q + 32 * k + 8 * l, st_grid_iq2s[index], p[34 + 4 * k + l]);
        }
    }
}

/* f16 d; qs[64]; for each k: u32 a (as IQ2_XXS) */
static void unpack_iq3_xxs(const uint8_t *p, struct st_block *b)
{
    b->d[0] = 0.25f * half_at(p);
    for (int k = 0; k < 8; k++) {
        uint32_t a = st_load32(p + 66 + 4 * k);
        int s = (int)(2 * (a >> 28) + 1);
        set_scale(b, k, s, s);
        for (int l = 0; l < 4; l++) {
            const uint8_t *g = p + 2 + 8 * k + 2 * l;
            uint64_t entry = st_grid_iq3xxs[g[0]] | (uint64_t)st_grid_iq3xxs[g[1]] << 32;
            grid8(b->q + 32 * k + 8 * l, entry, st_signs7(a >> 7 * l & 127));
        }
    }
}

/* f16 d; qs[64]; qh[8]; signs[32]; scales[4] */
static void unpack_iq3_s(const uint8_t *p, struct st_block *b)
{
    b->d[0] = half_at(p);
    for (int k = 0; k < 8; k++) {
        int s = 2 * (p[106 + k / 2] >> 4 * (k % 2) & 15) + 1;
        set_scale(b, k, s, s);
        for (int l = 0; l < 4; l++) {
            const uint8_t *g = p + 2 + 8 * k + 2 * l;
            uint32_t high = p[66 + k];
            uint64_t first = st_grid_iq3s[g[0] | (high >> 2 * l & 1) << 8];
            uint64_t second = st_grid_iq3s[g[1] | (high >> (2 * l + 1) & 1) << 8];
            grid8(b->q + 32 * k + 8 * l, first | second << 32, p[74 + 4 * k + l]);
        }
    }
}

/* The IQ1 codes are entry + 1/8 or entry - 1/8; in eighths they are whole: 8 entry + 1 or 8 entry - 1. */
static void grid_eighths(int8_t *q, uint64_t entry, bool negative)
{
    for (int j = 0; j < 8; j++)
        q[j] = (int8_t)(8 * (int8_t)(entry >> 8 * j) + (negative ? -1 : 1));
}

/* f16 d; qs[32]; u16 qh[8] (3 grid bits for each l, 3 bits scale, sign of the shift) */
static void unpack_iq1_s(const uint8_t *p, struct st_block *b)
{
    b->d[0] = 0.125f * half_at(p);
    for (int k = 0; k < 8; k++) {
        uint32_t high = st_load16(p + 34 + 2 * k);
        int s = (int)(2 * (high >> 12 & 7) + 1);
        set_scale(b, k, s, s);
        for (int l = 0; l < 4; l++)
            grid_eighths(b->q + 32 * k + 8 * l, st_grid_iq1s[p[2 + 4 * k + l] | (high >> 3 * l & 7) << 8], high >> 15);
    }
}

/* qs[32]; qh[16] (a nibble for each l: 3 grid bits, sign of the shift); u16 sc[4] (3 bits for each half of k; d on top)
 */
static void unpack_iq1_m(const uint8_t *p, struct st_block *b)
{
    uint32_t d = 0;
    for (int i = 0; i < 4; i++)
        d |= (uint32_t)(st_load16(p + 48 + 2 * i) >> 12) << 4 * i;
    b->d[0] = 0.125f * st_f16_to_f32((uint16_t)d);
    for (int k = 0; k < 8; k++) {
        uint32_t s = st_load16(p + 48 + 2 * (k / 2)) >> 6 * (k % 2);
        set_scale(b, k, (int)(2 * (s & 7) + 1), (int)(2 * (s >> 3 & 7) + 1));
        for (int l = 0; l < 4; l++) {
            uint32_t nibble = p[32 + 2 * k + l / 2] >> 4 * (l % 2) & 15;
            grid_eighths(b->q + 32 * k + 8 * l, st_grid_iq1s[p[4 * k + l] | (nibble & 7) << 8], nibble >> 3);
        }
    }
}

/* f16 d; u16 scales_h; scales_l[4]; qs[128] */
static void unpack_iq4_xs(const uint8_t *p, struct st_block *b)
{
    uint32_t high = st_load16(p + 2);
    b->d[0] = half_at(p);
    for (int k = 0; k < 8; k++) {
        int s = (int)((p[4 + k / 2] >> 4 * (k % 2) & 15) | (high >> 2 * k & 3) << 4) - 32;
        set_scale(b, k, s, s);
        for (int j = 0; j < 16; j++) {
            b->q[32 * k + j] = st_values_iq4nl[p[8 + 16 * k + j] & 15];
            b->q[32 * k + 16 + j] = st_values_iq4nl[p[8 + 16 * k + j] >> 4];
        }
    }
}

static const struct st_block_form forms[ST_TYPE_COUNT] = {
    [ST_TYPE_Q4_0] = {ST_TYPE_Q4_0, 32, 18, 32, false, unpack_q4_0},
    [ST_TYPE_Q4_1] = {ST_TYPE_Q4_1, 32, 20, 32, true, unpack_q4_1},
    [ST_TYPE_Q5_0] = {ST_TYPE_Q5_0, 32, 22, 32, false, unpack_q5_0},
    [ST_TYPE_Q5_1] = {ST_TYPE_Q5_1, 32, 24, 32, true, unpack_q5_1},
    [ST_TYPE_Q8_0] = {ST_TYPE_Q8_0, 32, 34, 32, false, unpack_q8_0},
    [ST_TYPE_Q2_K] = {ST_TYPE_Q2_K, 256, 84, 256, true, unpack_q2_k},
    [ST_TYPE_Q3_K] = {ST_TYPE_Q3_K, 256, 110, 256, false, unpack_q3_k},
    [ST_TYPE_Q4_K] = {ST_TYPE_Q4_K, 256, 144, 256, true, unpack_q4_k},
    [ST_TYPE_Q5_K] = {ST_TYPE_Q5_K, 256, 176, 256, true, unpack_q5_k},
    [ST_TYPE_Q6_K] = {ST_TYPE_Q6_K, 256, 210, 256, false, unpack_q6_k},
    [ST_TYPE_IQ2_XXS] = {ST_TYPE_IQ2_XXS, 256, 66, 256, false, unpack_iq2_xxs},
    [ST_TYPE_IQ2_XS] = {ST_TYPE_IQ2_XS, 256, 74, 256, false, unpack_iq2_xs},
    [ST_TYPE_IQ3_XXS] = {ST_TYPE_IQ3_XXS, 256, 98, 256, false, unpack_iq3_xxs},
    [ST_TYPE_IQ1_S] = {ST_TYPE_IQ1_S, 256, 50, 256, false, unpack_iq1_s},
    [ST_TYPE_IQ4_NL] = {ST_TYPE_IQ4_NL, 32, 18, 32, false, unpack_iq4_nl},
    [ST_TYPE_IQ3_S] = {ST_TYPE_IQ3_S, 256, 110, 256, false, unpack_iq3_s},
    [ST_TYPE_IQ2_S] = {ST_TYPE_IQ2_S, 256, 82, 256, false, unpack_iq2_s},
    [ST_TYPE_IQ4_XS] = {ST_TYPE_IQ4_XS, 256, 136, 256, false, unpack_iq4_xs},
    [ST_TYPE_IQ1_M] = {ST_TYPE_IQ1_M, 256, 56, 256, false, unpack_iq1_m},
    [ST_TYPE_MXFP4] = {ST_TYPE_MXFP4, 32, 17, 32, false, unpack_mxfp4},
    [ST_TYPE_NVFP4] = {ST_TYPE_NVFP4, 64, 36, 16, false, unpack_nvfp4},
    [ST_TYPE_Q2_0] = {ST_TYPE_Q2_0, 64, 18, 32, false, unpack_q2_0},
};

const struct st_block_form *st_block_form(int type)
{
    return type >= 0 && type < ST_TYPE_COUNT && forms[type].unpack ? &forms[type] : NULL;
}

void st_block_values(const struct st_block_form *form, const struct st_block *b, float *dst)
{
    if (form->part < 256) {
        for (int i = 0; i < form->elems; i++) {
            float y = b->d[i / form->part] * b->q[i];
            dst[i] = form->has_min ? y + b->m[i / form->part] : y;
        }
        return;
    }
    for (int i = 0; i < 256; i++) {
        float y = (b->d[0] * b->scale[i / 16]) * b->q[i];
        dst[i] = form->has_min ? y - b->dmin * b->min[i / 16] : y;
    }
}

static int32_t dot_bytes(const int8_t *a, const int8_t *b, int n)
{
    int32_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

float st_block_dot(const struct st_block_form *form, const struct st_block *b, const struct st_act_row *x, size_t first,
                   float acc)
{
    if (form->part < 256) {
        for (int i = 0; i < form->elems; i += form->part) {
            size_t xb = (first + (size_t)i) / 32;
            int32_t sum = dot_bytes(b->q + i, x->q + first + i, form->part);
            acc = __builtin_fmaf(b->d[i / form->part] * x->d[xb], (float)sum, acc);
            if (form->has_min)
                acc = __builtin_fmaf(b->m[i / form->part], x->s[xb], acc);
        }
        return acc;
    }
    int32_t sum = 0, min_sum = 0;
    for (int t = 0; t < 16; t++) {
        sum += b->scale[t] * dot_bytes(b->q + 16 * t, x->q + first + 16 * t, 16);
        if (form->has_min)
            min_sum += b->min[t] * x->sums[first / 16 + (size_t)t];
    }
    acc = __builtin_fmaf(b->d[0] * x->d[first / 256], (float)sum, acc);
    return form->has_min ? __builtin_fmaf(-(b->dmin * x->d[first / 256]), (float)min_sum, acc) : acc;
}
