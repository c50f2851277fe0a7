/* Owns the encoders of the float types and of the quantised types with 32 or 64 elements in a block. */
#include "format/quant_encode.h"

#include "format/quant_fit.h"

void st_encode_f32(const float *src, void *dst, size_t n, const float *importance)
{
    (void)importance;
    memcpy(dst, src, 4 * n);
}

void st_encode_f16(const float *src, void *dst, size_t n, const float *importance)
{
    (void)importance;
    for (size_t i = 0; i < n; i++)
        st_store_half((uint8_t *)dst + 2 * i, src[i]);
}

void st_encode_bf16(const float *src, void *dst, size_t n, const float *importance)
{
    (void)importance;
    for (size_t i = 0; i < n; i++) {
        uint16_t h = st_f32_to_bf16(src[i]);
        memcpy((uint8_t *)dst + 2 * i, &h, 2);
    }
}

void st_encode_q8_0(const float *src, void *dst, size_t n, const float *importance)
{
    static const struct st_levels levels = {.lo = -127, .hi = 127};
    static const float targets[] = {127, 126.5f, 127.5f, 126, 128};
    float ones[32];
    uint8_t *p = dst;
    for (size_t i = 0; i < n; i += 32, p += 34) {
        const float *x = src + i, *w = st_weights(importance, i, ones, 32);
        float scale = fabsf(st_fit_scale(&levels, x, w, 32, 1, targets, 5).scale), inverse = st_inverse(scale);
        st_store_half(p, scale);
        for (int j = 0; j < 32; j++)
            p[2 + j] = (uint8_t)(int8_t)st_level(&levels, x[j] * inverse);
    }
}

/* Two codes of four bits in a byte: elements j and j + 16. */
static void store_nibbles(uint8_t *p, const int *code)
{
    for (int j = 0; j < 16; j++)
        p[j] = (uint8_t)((code[j] & 15) | (code[j + 16] & 15) << 4);
}

static void store_fifth_bits(uint8_t *p, const int *code)
{
    uint32_t high = 0;
    for (int j = 0; j < 32; j++)
        high |= (uint32_t)(code[j] >> 4 & 1) << j;
    memcpy(p, &high, 4);
}

ST_INLINE void codes32(const struct st_levels *levels, const float *x, float scale, float offset, int code[32])
{
    float inverse = st_inverse(scale);
    for (int j = 0; j < 32; j++)
        code[j] = st_level_code(levels, (x[j] - offset) * inverse);
}

void st_encode_q4_0(const float *src, void *dst, size_t n, const float *importance)
{
    static const struct st_levels levels = {.lo = -8, .hi = 7};
    static const float targets[] = {-8,    -8.9f, -8.6f, -8.3f, -7.8f, -7.6f, -7.4f, -7.2f, -7,  -6.6f,
                                    -6.2f, 6.2f,  6.6f,  6.8f,  7,     7.2f,  7.4f,  7.6f,  7.8f};
    float ones[32];
    int code[32];
    uint8_t *p = dst;
    for (size_t i = 0; i < n; i += 32, p += 18) {
        const float *w = st_weights(importance, i, ones, 32);
        float scale = st_fit_scale(&levels, src + i, w, 32, 1, targets, 19).scale;
        codes32(&levels, src + i, scale, 0.0f, code);
        st_store_half(p, scale);
        store_nibbles(p + 2, code);
    }
}

void st_encode_q4_1(const float *src, void *dst, size_t n, const float *importance)
{
    static const struct st_levels levels = {.lo = 0, .hi = 15};
    float ones[32];
    int code[32];
    uint8_t *p = dst;
    for (size_t i = 0; i < n; i += 32, p += 20) {
        struct st_affine a = st_fit_affine(src + i, st_weights(importance, i, ones, 32), 32, 15, 1, 0);
        codes32(&levels, src + i, a.scale, a.offset, code);
        st_store_half(p, a.scale);
        st_store_half(p + 2, a.offset);
        store_nibbles(p + 4, code);
    }
}

void st_encode_q5_0(const float *src, void *dst, size_t n, const float *importance)
{
    static const struct st_levels levels = {.lo = -16, .hi = 15};
    static const float targets[] = {-16,    -17.2f, -16.8f, -16.4f, -15.8f, -15.5f, -15.2f, -14.8f,
                                    -14.2f, 14.2f,  14.6f,  15,     15.3f,  15.6f,  16};
    float ones[32];
    int code[32];
    uint8_t *p = dst;
    for (size_t i = 0; i < n; i += 32, p += 22) {
        const float *w = st_weights(importance, i, ones, 32);
        float scale = st_fit_scale(&levels, src + i, w, 32, 1, targets, 15).scale;
        codes32(&levels, src + i, scale, 0.0f, code);
        st_store_half(p, scale);
        store_fifth_bits(p + 2, code);
        store_nibbles(p + 6, code);
    }
}

void st_encode_q5_1(const float *src, void *dst, size_t n, const float *importance)
{
    static const struct st_levels levels = {.lo = 0, .hi = 31};
    float ones[32];
    int code[32];
    uint8_t *p = dst;
    for (size_t i = 0; i < n; i += 32, p += 24) {
        struct st_affine a = st_fit_affine(src + i, st_weights(importance, i, ones, 32), 32, 31, 1, 0);
        codes32(&levels, src + i, a.scale, a.offset, code);
        st_store_half(p, a.scale);
        st_store_half(p + 2, a.offset);
        store_fifth_bits(p + 4, code);
        store_nibbles(p + 8, code);
    }
}

void st_encode_iq4_nl(const float *src, void *dst, size_t n, const float *importance)
{
    static const struct st_levels levels = ST_LEVELS_IQ4;
    static const float targets[] = {-127, -140, -134, -130, -123, -119, -115, -110,
                                    -104, 97,   101,  105,  109,  113,  117,  121};
    float ones[32];
    int code[32];
    uint8_t *p = dst;
    for (size_t i = 0; i < n; i += 32, p += 18) {
        const float *w = st_weights(importance, i, ones, 32);
        float scale = st_fit_scale(&levels, src + i, w, 32, 1, targets, 16).scale;
        codes32(&levels, src + i, scale, 0.0f, code);
        st_store_half(p, scale);
        store_nibbles(p + 2, code);
    }
}

void st_encode_q2_0(const float *src, void *dst, size_t n, const float *importance)
{
    static const struct st_levels levels = {.lo = -1, .hi = 2};
    float ones[64], targets[48];
    uint8_t *p = dst;
    targets[0] = 1;                /* the plain encoder: the largest magnitude becomes 1 (or -1) */
    for (int c = 1; c < 48; c++) { /* both signs of the scale: magnitudes up to 4 levels, clamped to the outer ones */
        float t = 0.9f + 0.13f * (float)(c / 2);
        targets[c] = c % 2 ? t : -t;
    }
    for (size_t i = 0; i < n; i += 64, p += 18) {
        const float *x = src + i, *w = st_weights(importance, i, ones, 64);
        float scale = st_fit_scale(&levels, x, w, 64, 1, targets, 48).scale,
              plain = st_round_scale(fabsf(st_extreme(x, 64)), 1);
        struct st_fit best = st_fit_try(&levels, x, w, 64, scale), simple = st_fit_try(&levels, x, w, 64, plain);
        if (simple.error < best.error)
            scale = plain;
        float inverse = st_inverse(scale);
        st_store_half(p, scale);
        memset(p + 2, 0, 16);
        for (int j = 0; j < 64; j++)
            p[2 + j / 4] |= (uint8_t)(st_level_code(&levels, x[j] * inverse) << 2 * (j % 4));
    }
}

void st_encode_mxfp4(const float *src, void *dst, size_t n, const float *importance)
{
    static const struct st_levels levels = {
        -12,
        12,
        15,
        {4, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 4},
        {-10, -7, -5, -3.5f, -2.5f, -1.5f, -0.5f, 0.5f, 1.5f, 2.5f, 3.5f, 5, 7, 10}};
    static const uint8_t codes[15] = {15, 14, 13, 12, 11, 10, 9, 0, 1, 2, 3, 4, 5, 6, 7};
    float ones[32];
    int code[32];
    uint8_t *p = dst;
    for (size_t i = 0; i < n; i += 32, p += 17) {
        const float *x = src + i, *w = st_weights(importance, i, ones, 32);
        uint32_t exponent = st_f32_bits(st_extreme(x, 32)) >> 23 & 255;
        struct st_fit best = {.error = INFINITY};
        int best_e = 0;
        for (int e = (int)exponent - 3; e <= (int)exponent; e++) { /* scales 2^(e - 128): the top level is 12 of them */
            if (e < 2 || e > 254)
                continue;
            struct st_fit f = st_fit_try(&levels, x, w, 32, st_bits_f32((uint32_t)(e - 1) << 23));
            if (f.error < best.error) {
                best = f;
                best_e = e;
            }
        }
        codes32(&levels, x, best.scale, 0.0f, code);
        for (int j = 0; j < 32; j++)
            code[j] = codes[code[j]];
        p[0] = (uint8_t)best_e;
        store_nibbles(p + 1, code);
    }
}
