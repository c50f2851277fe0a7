/* Owns the encoders of the K types and of IQ4_XS: 256 elements whose sub-blocks have whole scales under one or two
 * float scales. Each sub-block's own best scale is found first; then the common scale, the whole scales and the codes
 * are improved in turn, every step measured by the true squared error of what will be stored. */
#include "format/quant_encode.h"

#include "format/quant_fit.h"

enum { BLOCK = 256 };

/* Symmetric types: y = (d * scale[t]) * level. */
struct symmetric {
    struct st_levels levels;
    int sub;       /* elements of a sub-block */
    int low, high; /* range of the whole scales */
    const float *targets;
    int target_count;
};

static inline float half_of(float f)
{
    return st_round_scale(f, 1);
}

static inline int clamp_int(float v, int low, int high)
{
    v = v > (float)low ? v : (float)low;
    v = v < (float)high ? v : (float)high;
    return (int)((v + 0x1.8p23f) - 0x1.8p23f);
}

/* For a given d: each sub-block's whole scale among three neighbours of its ideal one. Returns the block's error; *xq
 * and *qq are the sums that the best d for these scales and codes follows from. */
ST_INLINE float choose_scales(const struct symmetric *s, const float *x, const float *w, float d, const float *ideal,
                              int *scale, float *xq, float *qq)
{
    float error = 0.0f, inverse = st_inverse(d);
    *xq = *qq = 0.0f;
    for (int t = 0; t < BLOCK / s->sub; t++) {
        int centre = clamp_int(ideal[t] * inverse, s->low, s->high);
        struct st_fit best = {.error = INFINITY};
        scale[t] = centre;
        for (int c = centre - 1; c <= centre + 1; c++) {
            if (c < s->low || c > s->high)
                continue;
            struct st_fit f = st_fit_try(&s->levels, x + t * s->sub, w + t * s->sub, s->sub, d * (float)c);
            if (f.error < best.error) {
                best = f;
                scale[t] = c;
            }
        }
        error += best.error;
        *xq += (float)scale[t] * best.xq;
        *qq += (float)scale[t] * (float)scale[t] * best.qq;
    }
    return error;
}

/* Fills scale[] and code[] (counted from the lowest level), returns d (a binary16 value). */
ST_INLINE float fit_symmetric(const struct symmetric *s, const float *x, const float *w, int *scale, int *code)
{
    float ideal[16], extreme, d, error, xq, qq;
    int count = BLOCK / s->sub, trial[16];
    for (int t = 0; t < count; t++)
        ideal[t] =
            st_fit_scale(&s->levels, x + t * s->sub, w + t * s->sub, s->sub, 0, s->targets, s->target_count).scale;
    extreme = st_extreme(ideal, count);
    d = half_of(extreme / (float)s->low);
    error = choose_scales(s, x, w, d, ideal, scale, &xq, &qq);
    for (int step = 0; step < 3 && qq > 0.0f; step++) {
        float next = half_of(xq / qq), next_xq, next_qq;
        float next_error = choose_scales(s, x, w, next, ideal, trial, &next_xq, &next_qq);
        if (!(next_error < error))
            break;
        d = next;
        error = next_error;
        xq = next_xq;
        qq = next_qq;
        memcpy(scale, trial, sizeof(int) * (size_t)count);
    }
    for (int i = 0; i < BLOCK; i++)
        code[i] = st_level_code(&s->levels, x[i] * st_inverse(d * (float)scale[i / s->sub]));
    return d;
}

void st_encode_q6_k(const float *src, void *dst, size_t n, const float *importance)
{
    static const float targets[] = {-32, -33, -32.5f, -31.5f, -31, -30.5f, 30.5f, 31, 31.5f};
    static const struct symmetric form = {{.lo = -32, .hi = 31}, 16, -128, 127, targets, 9};
    float ones[BLOCK];
    int scale[16], code[BLOCK];
    uint8_t *p = dst;
    for (size_t i = 0; i < n; i += BLOCK, p += 210) {
        float d = fit_symmetric(&form, src + i, st_weights(importance, i, ones, BLOCK), scale, code);
        memset(p, 0, 192);
        for (int j = 0; j < BLOCK; j++) {
            int half = j / 128, g = j % 128 / 32, l = j % 32;
            p[64 * half + 32 * (g % 2) + l] |= (uint8_t)((code[j] & 15) << 4 * (g / 2));
            p[128 + 32 * half + l] |= (uint8_t)(code[j] >> 4 << 2 * g);
        }
        for (int t = 0; t < 16; t++)
            p[192 + t] = (uint8_t)(int8_t)scale[t];
        st_store_half(p + 208, d);
    }
}

void st_encode_q3_k(const float *src, void *dst, size_t n, const float *importance)
{
    static const float targets[] = {-4,   -4.8f, -4.5f, -4.25f, -3.8f, -3.6f, -3.4f, -3.2f, -3,   -2.7f,
                                    2.4f, 2.7f,  2.85f, 3,      3.2f,  3.4f,  3.6f,  3.8f,  -2.4f};
    static const struct symmetric form = {{.lo = -4, .hi = 3}, 16, -32, 31, targets, 19};
    float ones[BLOCK];
    int scale[16], code[BLOCK];
    uint8_t *p = dst;
    for (size_t i = 0; i < n; i += BLOCK, p += 110) {
        float d = fit_symmetric(&form, src + i, st_weights(importance, i, ones, BLOCK), scale, code);
        memset(p, 0, 108);
        for (int j = 0; j < BLOCK; j++) {
            p[j % 32] |= (uint8_t)(code[j] >> 2 << j / 32);
            p[32 + 32 * (j / 128) + j % 32] |= (uint8_t)((code[j] & 3) << 2 * (j % 128 / 32));
        }
        for (int t = 0; t < 16; t++) {
            int v = scale[t] + 32;
            p[96 + t % 8] |= (uint8_t)((v & 15) << (t < 8 ? 0 : 4));
            p[104 + t % 4] |= (uint8_t)(v >> 4 << 2 * (t / 4));
        }
        st_store_half(p + 108, d);
    }
}

void st_encode_iq4_xs(const float *src, void *dst, size_t n, const float *importance)
{
    static const float targets[] = {-127, -140, -134, -130, -123, -119, -115, -110,
                                    -104, 97,   101,  105,  109,  113,  117,  121};
    static const struct symmetric form = {ST_LEVELS_IQ4, 32, -32, 31, targets, 16};
    float ones[BLOCK];
    int scale[16], code[BLOCK];
    uint8_t *p = dst;
    for (size_t i = 0; i < n; i += BLOCK, p += 136) {
        float d = fit_symmetric(&form, src + i, st_weights(importance, i, ones, BLOCK), scale, code);
        uint16_t high = 0;
        memset(p, 0, 8);
        for (int k = 0; k < 8; k++) {
            int v = scale[k] + 32;
            p[4 + k / 2] |= (uint8_t)((v & 15) << 4 * (k % 2));
            high |= (uint16_t)(v >> 4 << 2 * k);
            for (int j = 0; j < 16; j++)
                p[8 + 16 * k + j] = (uint8_t)(code[32 * k + j] | code[32 * k + 16 + j] << 4);
        }
        st_store_half(p, d);
        memcpy(p + 2, &high, 2);
    }
}

/* Types with a minimum: y = (d * scale[j]) * code - dmin * min[j], eight sub-blocks of 32, six-bit scales and minima.
 */
struct minimum {
    float d, dmin, error;
    int scale[8], min[8];
    float aa, bb, ab, xa, xb; /* sums for the best (d, dmin): a = scale * code, b = -min */
};

ST_INLINE struct minimum choose_pairs(const float *x, const float *w, float top, float d, float dmin,
                                      const float *scale, const float *min)
{
    struct minimum m = {.d = d, .dmin = dmin};
    float inv_d = st_inverse(d), inv_min = st_inverse(dmin);
    for (int j = 0; j < 8; j++) {
        const float *xs = x + 32 * j, *ws = w + 32 * j;
        int s0 = clamp_int(scale[j] * inv_d, 0, 63), m0 = clamp_int(min[j] * inv_min, 0, 63);
        float best = INFINITY;
        m.scale[j] = s0;
        m.min[j] = m0;
        for (int c = 0; c < 9; c++) { /* the nearest pair first, then its neighbours */
            static const int8_t near_s[9] = {0, 1, -1, 0, 0, 1, -1, 1, -1}, near_m[9] = {0, 0, 0, 1, -1, 1, -1, -1, 1};
            int s = s0 + near_s[c], q = m0 + near_m[c];
            if (s < 0 || s > 63 || q < 0 || q > 63)
                continue;
            struct st_affine a = st_affine_try(xs, ws, 32, top, d * (float)s, -(dmin * (float)q));
            if (a.error < best) {
                best = a.error;
                m.scale[j] = s;
                m.min[j] = q;
            }
        }
        struct st_affine a = st_affine_try(xs, ws, 32, top, d * (float)m.scale[j], -(dmin * (float)m.min[j]));
        float sw[8] = {0}, sx[8] = {0}, fs = (float)m.scale[j], fm = (float)m.min[j];
        for (int i = 0; i < 32; i += 8)
            for (int l = 0; l < 8; l++) {
                sw[l] += ws[i + l];
                sx[l] += ws[i + l] * xs[i + l];
            }
        m.error += a.error;
        m.aa += fs * fs * a.qq;
        m.bb += fm * fm * st_sum8(sw);
        m.ab -= fs * fm * a.q;
        m.xa += fs * a.xq;
        m.xb -= fm * st_sum8(sx);
    }
    return m;
}

ST_INLINE struct minimum fit_minimum(const float *x, const float *w, float top, int *code)
{
    float scale[8], min[8], max_scale = 0.0f, max_min = 0.0f;
    for (int j = 0; j < 8; j++) {
        struct st_affine a = st_fit_affine(x + 32 * j, w + 32 * j, 32, top, 0, 1);
        scale[j] = a.scale;
        min[j] = -a.offset;
        max_scale = scale[j] > max_scale ? scale[j] : max_scale;
        max_min = min[j] > max_min ? min[j] : max_min;
    }
    struct minimum best = choose_pairs(x, w, top, half_of(max_scale / 63.0f), half_of(max_min / 63.0f), scale, min);
    for (int step = 0; step < 3; step++) {
        float det = best.aa * best.bb - best.ab * best.ab, d, dmin;
        if (det > 1e-6f * best.aa * best.bb) {
            d = (best.xa * best.bb - best.xb * best.ab) / det;
            dmin = (best.xb * best.aa - best.xa * best.ab) / det;
        } else if (best.aa > 0.0f) {
            d = (best.xa - best.dmin * best.ab) / best.aa;
            dmin = best.dmin;
        } else {
            break;
        }
        struct minimum next = choose_pairs(x, w, top, half_of(d), half_of(dmin), scale, min);
        if (!(next.error < best.error))
            break;
        best = next;
    }
    const struct st_levels levels = {.lo = 0, .hi = top};
    for (int i = 0; i < BLOCK; i++) {
        float s = best.d * (float)best.scale[i / 32], o = best.dmin * (float)best.min[i / 32];
        code[i] = st_level_code(&levels, (x[i] + o) * st_inverse(s));
    }
    return best;
}

static void store_head(uint8_t *p, const struct minimum *m)
{
    uint8_t *sc = p + 4;
    st_store_half(p, m->d);
    st_store_half(p + 2, m->dmin);
    for (int j = 0; j < 4; j++) {
        sc[j] = (uint8_t)(m->scale[j] | m->scale[j + 4] >> 4 << 6);
        sc[j + 4] = (uint8_t)(m->min[j] | m->min[j + 4] >> 4 << 6);
        sc[j + 8] = (uint8_t)((m->scale[j + 4] & 15) | (m->min[j + 4] & 15) << 4);
    }
}

void st_encode_q4_k(const float *src, void *dst, size_t n, const float *importance)
{
    float ones[BLOCK];
    int code[BLOCK];
    uint8_t *p = dst;
    for (size_t i = 0; i < n; i += BLOCK, p += 144) {
        struct minimum m = fit_minimum(src + i, st_weights(importance, i, ones, BLOCK), 15, code);
        store_head(p, &m);
        for (int j = 0; j < 128; j++)
            p[16 + j] = (uint8_t)(code[64 * (j / 32) + j % 32] | code[64 * (j / 32) + 32 + j % 32] << 4);
    }
}

void st_encode_q5_k(const float *src, void *dst, size_t n, const float *importance)
{
    float ones[BLOCK];
    int code[BLOCK];
    uint8_t *p = dst;
    for (size_t i = 0; i < n; i += BLOCK, p += 176) {
        struct minimum m = fit_minimum(src + i, st_weights(importance, i, ones, BLOCK), 31, code);
        store_head(p, &m);
        memset(p + 16, 0, 32);
        for (int j = 0; j < 128; j++) {
            int low = 64 * (j / 32) + j % 32, high = low + 32;
            p[48 + j] = (uint8_t)((code[low] & 15) | (code[high] & 15) << 4);
            p[16 + j % 32] |= (uint8_t)((code[low] >> 4) << low / 32 | (code[high] >> 4) << high / 32);
        }
    }
}
