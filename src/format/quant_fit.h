/* Searching block scales: least squares over a set of levels, used by the encoders. Inline so that the loops are
 * compiled for each constant length and level set. All sums run over eight lanes in a fixed order, so results do not
 * vary. */
#ifndef ST_FORMAT_QUANT_FIT_H
#define ST_FORMAT_QUANT_FIT_H

#include <math.h>

#include "format/quant_half.h"

#define ST_INLINE static inline __attribute__((always_inline))

/* The values that a code can stand for: whole numbers lo .. hi, or (count > 0) a table, ascending. A table is kept as
 * its first value, the steps between neighbours and the middles between them, which needs no lookups in vector code. */
struct st_levels {
    float lo, hi;
    int count;
    float step[15], middle[15];
};

struct st_fit {
    float scale;
    float error;  /* sum of w * (x - scale * level)^2 */
    float xq, qq; /* sums of w * x * level and w * level^2 */
};

/* The level nearest to v; lo for NaN. */
ST_INLINE float st_level(const struct st_levels *l, float v)
{
    if (l->count) {
        float value = l->lo;
        for (int k = 0; k < l->count - 1; k++)
            value += v > l->middle[k] ? l->step[k] : 0.0f;
        return value;
    }
    v = v > l->lo ? v : l->lo;
    v = v < l->hi ? v : l->hi;
    return (v + 0x1.8p23f) - 0x1.8p23f;
}

/* Index of the level nearest to v: whole numbers count from lo. */
ST_INLINE int st_level_code(const struct st_levels *l, float v)
{
    if (!l->count)
        return (int)(st_level(l, v) - l->lo);
    int code = 0;
    for (int k = 0; k < l->count - 1; k++)
        code += v > l->middle[k];
    return code;
}

ST_INLINE float st_inverse(float scale)
{
    float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
    return inverse <= 0x1p126f && inverse >= -0x1p126f ? inverse : 0.0f;
}

ST_INLINE float st_sum8(const float v[8])
{
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

/* Nearest levels under a scale; n is a multiple of 8. */
ST_INLINE struct st_fit st_fit_try(const struct st_levels *l, const float *x, const float *w, int n, float scale)
{
    float inverse = st_inverse(scale), error[8] = {0}, xq[8] = {0}, qq[8] = {0};
    for (int i = 0; i < n; i += 8)
        for (int j = 0; j < 8; j++) {
            float q = st_level(l, x[i + j] * inverse), r = x[i + j] - scale * q, wq = w[i + j] * q;
            error[j] += w[i + j] * r * r;
            xq[j] += wq * x[i + j];
            qq[j] += wq * q;
        }
    return (struct st_fit){scale, st_sum8(error), st_sum8(xq), st_sum8(qq)};
}

ST_INLINE float st_round_scale(float scale, int half)
{
    return half ? st_f16_to_f32(st_f32_to_f16(scale)) : scale;
}

/* The value of largest magnitude with its sign, the first on ties. */
ST_INLINE float st_extreme(const float *x, int n)
{
    float m = 0.0f;
    for (int i = 0; i < n; i++)
        m = fabsf(x[i]) > fabsf(m) ? x[i] : m;
    return m;
}

/* Tries scales that put the value of largest magnitude on each of targets[count] (in level units; the first is the
 * plain encoder's), then follows least squares from the best. half: scales are rounded to binary16. */
ST_INLINE struct st_fit st_fit_scale(const struct st_levels *l, const float *x, const float *w, int n, int half,
                                     const float *targets, int count)
{
    float m = st_extreme(x, n);
    struct st_fit best = st_fit_try(l, x, w, n, st_round_scale(m / targets[0], half));
    for (int c = 1; c < count; c++) {
        struct st_fit f = st_fit_try(l, x, w, n, st_round_scale(m / targets[c], half));
        if (f.error < best.error)
            best = f;
    }
    for (int step = 0; step < 4 && best.qq > 0.0f; step++) {
        struct st_fit f = st_fit_try(l, x, w, n, st_round_scale(best.xq / best.qq, half));
        if (!(f.error < best.error))
            break;
        best = f;
    }
    return best;
}

/* Scale and offset for whole codes 0 .. top: x = scale * q + offset. */
struct st_affine {
    float scale, offset, error;
    float q, qq, xq; /* weighted sums of code, code^2, x * code */
};

ST_INLINE struct st_affine st_affine_try(const float *x, const float *w, int n, float top, float scale, float offset)
{
    float inverse = st_inverse(scale), error[8] = {0}, sq[8] = {0}, sqq[8] = {0}, sxq[8] = {0};
    const struct st_levels l = {.lo = 0.0f, .hi = top};
    for (int i = 0; i < n; i += 8)
        for (int j = 0; j < 8; j++) {
            float q = st_level(&l, (x[i + j] - offset) * inverse), r = x[i + j] - (scale * q + offset),
                  wq = w[i + j] * q;
            error[j] += w[i + j] * r * r;
            sq[j] += wq;
            sqq[j] += wq * q;
            sxq[j] += wq * x[i + j];
        }
    return (struct st_affine){scale, offset, st_sum8(error), st_sum8(sq), st_sum8(sqq), st_sum8(sxq)};
}

/* half: both are rounded to binary16. below: the offset may not be above zero. */
ST_INLINE struct st_affine st_fit_affine(const float *x, const float *w, int n, float top, int half, int below)
{
    float lo = x[0], hi = x[0], sw[8] = {0}, sx[8] = {0};
    for (int i = 0; i < n; i++) {
        lo = x[i] < lo ? x[i] : lo;
        hi = x[i] > hi ? x[i] : hi;
    }
    for (int i = 0; i < n; i += 8)
        for (int j = 0; j < 8; j++) {
            sw[j] += w[i + j];
            sx[j] += w[i + j] * x[i + j];
        }
    float weight = st_sum8(sw), sum = st_sum8(sx);
    if (below && lo > 0.0f)
        lo = 0.0f;
    if (below && hi < 0.0f)
        hi = 0.0f;
    struct st_affine best =
        st_affine_try(x, w, n, top, st_round_scale((hi - lo) / top, half), st_round_scale(lo, half));
    for (int c = 0; c < 12; c++) {
        struct st_affine a = best;
        if (c > 0) { /* a narrower or wider range around the same middle */
            float scale = (hi - lo) / (top + 0.2f * (float)(c - 3)), offset = 0.5f * (hi + lo) - 0.5f * top * scale;
            if (below && (offset > 0.0f || lo == 0.0f))
                offset = lo;
            a = st_affine_try(x, w, n, top, st_round_scale(scale, half), st_round_scale(offset, half));
        }
        for (int step = 0; step < 3; step++) {
            float det = weight * a.qq - a.q * a.q, scale, offset;
            if (a.error < best.error)
                best = a;
            if (!(a.qq > 0.0f) || !(det > 1e-6f * weight * a.qq))
                break;
            scale = (weight * a.xq - sum * a.q) / det;
            offset = (sum - scale * a.q) / weight;
            if (below && offset > 0.0f) {
                offset = 0.0f;
                scale = a.xq / a.qq;
            }
            a = st_affine_try(x, w, n, top, st_round_scale(scale, half), st_round_scale(offset, half));
        }
        if (a.error < best.error)
            best = a;
    }
    return best;
}

/* importance of n elements from i on, or ones. */
ST_INLINE const float *st_weights(const float *importance, size_t i, float *ones, int n)
{
    if (importance)
        return importance + i;
    for (int j = 0; j < n; j++)
        ones[j] = 1.0f;
    return ones;
}

ST_INLINE void st_store_half(uint8_t *p, float f)
{
    uint16_t h = st_f32_to_f16(f);
    memcpy(p, &h, 2);
}

/* The levels of IQ4_NL and IQ4_XS. */
#define ST_LEVELS_IQ4                                                                                                  \
    {                                                                                                                  \
        -127, 113, 16, {23, 21, 18, 16, 14, 13, 12, 11, 12, 12, 13, 15, 16, 20, 24},                                   \
        {                                                                                                              \
            -115.5f, -93.5f, -74, -57, -42, -28.5f, -16, -4.5f, 7, 19, 31.5f, 45.5f, 61, 79, 101                       \
        }                                                                                                              \
    }

#endif
