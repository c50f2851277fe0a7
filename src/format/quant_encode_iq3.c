/* Owns the encoder of IQ3_XXS: 256 elements, eight sub-blocks of 32 with an odd scale 1 .. 31, four elements for each
 * point of a grid of 256, and signs of which every eighth follows from the other seven.
 *
 * The nearest of 256 points is found through a table: the four magnitudes, each rounded to one of eight values, lead to
 * a short list of points that lie near that corner; only those are measured. */
#include <pthread.h>

#include "format/grids.h"
#include "format/quant_encode.h"
#include "format/quant_fit.h"

enum { NEAR = 12, CORNERS = 4096, SUB = 32, BLOCK = 256 };

static uint8_t near_points[CORNERS][NEAR];
static float points[256][4];
static pthread_once_t near_once = PTHREAD_ONCE_INIT;

static float corner_value(int index)
{
    return index == 7 ? 62.0f : 4.0f + 8.0f * (float)index;
}

static void build_near(void)
{
    for (int g = 0; g < 256; g++)
        for (int j = 0; j < 4; j++)
            points[g][j] = (float)(st_grid_iq3xxs[g] >> 8 * j & 255);
    for (int c = 0; c < CORNERS; c++) {
        float distance[NEAR];
        int count = 0;
        for (int g = 0; g < 256; g++) {
            float d = 0.0f;
            for (int j = 0; j < 4; j++) {
                float r = points[g][j] - corner_value(c >> 3 * j & 7);
                d += r * r;
            }
            if (count == NEAR && d >= distance[NEAR - 1])
                continue;
            int at = count < NEAR ? count++ : NEAR - 1; /* insertion keeps the list ascending */
            for (; at > 0 && distance[at - 1] > d; at--) {
                distance[at] = distance[at - 1];
                near_points[c][at] = near_points[c][at - 1];
            }
            distance[at] = d;
            near_points[c][at] = (uint8_t)g;
        }
    }
}

/* Index of the corner nearest to a magnitude in grid units; 0 for negative values (an element with the wrong sign) and
 * NaN. */
static inline int corner_index(float v)
{
    float t = v * 0.125f - 0.5f;
    t = t > 0.0f ? t : 0.0f;
    t = t < 7.0f ? t : 7.0f;
    return (int)(t + 0.5f);
}

/* The best points for a sub-block's magnitudes under a scale. */
static struct st_fit match(const float *x, const float *w, float scale, uint8_t *grid)
{
    struct st_fit f = {.scale = scale};
    float inverse = st_inverse(scale);
    for (int i = 0; i < SUB; i += 4) {
        float v[4];
        int corner = 0;
        for (int j = 0; j < 4; j++) {
            v[j] = x[i + j] * inverse;
            corner |= corner_index(v[j]) << 3 * j;
        }
        const uint8_t *list = near_points[corner];
        float best = INFINITY;
        grid[i / 4] = list[0];
        for (int c = 0; c < NEAR; c++) {
            const float *point = points[list[c]];
            float d = 0.0f;
            for (int j = 0; j < 4; j++)
                d += w[i + j] * (v[j] - point[j]) * (v[j] - point[j]);
            if (d < best) {
                best = d;
                grid[i / 4] = list[c];
            }
        }
        const float *point = points[grid[i / 4]];
        for (int j = 0; j < 4; j++) {
            float r = x[i + j] - scale * point[j];
            f.error += w[i + j] * r * r;
            f.xq += w[i + j] * x[i + j] * point[j];
            f.qq += w[i + j] * point[j] * point[j];
        }
    }
    return f;
}

/* Turns eight elements into magnitudes and seven sign bits. With an odd number of negative elements the one that costs
 * least is given the other sign and becomes a negative magnitude. */
static uint32_t split_signs(const float *x, const float *w, float *magnitude)
{
    uint32_t signs = 0;
    int cheapest = 0;
    float cost = INFINITY;
    for (int j = 0; j < 8; j++) {
        magnitude[j] = fabsf(x[j]);
        signs |= (uint32_t)(x[j] < 0.0f) << j;
        if (w[j] * x[j] * x[j] < cost) {
            cost = w[j] * x[j] * x[j];
            cheapest = j;
        }
    }
    if (__builtin_parity(signs)) {
        signs ^= 1u << cheapest;
        magnitude[cheapest] = -magnitude[cheapest];
    }
    return signs & 127;
}

static float fit_sub(const float *x, const float *w)
{
    uint8_t grid[8];
    float max = fabsf(st_extreme(x, SUB));
    struct st_fit best = {.error = INFINITY};
    for (int c = 0; c < 11; c++) {
        struct st_fit f = match(x, w, max / (44.0f + 3.0f * (float)c), grid);
        if (f.error < best.error)
            best = f;
    }
    if (best.qq > 0.0f) {
        struct st_fit f = match(x, w, best.xq / best.qq, grid);
        if (f.error < best.error)
            best = f;
    }
    return best.scale;
}

struct choice {
    float d, error, xq, qq;
    uint8_t scale[8], grid[64];
};

/* All sub-blocks under a common d: y = (0.25 d) * (2 scale + 1) * point. */
static void choose(const float *x, const float *w, float d, const float *ideal, struct choice *out)
{
    float unit = 0.25f * d, inverse = st_inverse(unit);
    *out = (struct choice){.d = d};
    for (int k = 0; k < 8; k++) {
        float t = 0.5f * (ideal[k] * inverse - 1.0f);
        t = t > 0.0f ? t : 0.0f;
        t = t < 15.0f ? t : 15.0f;
        int low = (int)t; /* the ideal scale lies between low and low + 1 */
        struct st_fit best = {.error = INFINITY};
        for (int s = low; s <= low + 1 && s < 16; s++) {
            uint8_t grid[8];
            struct st_fit f = match(x + SUB * k, w + SUB * k, unit * (float)(2 * s + 1), grid);
            if (f.error < best.error || s == low) {
                best = f;
                out->scale[k] = (uint8_t)s;
                memcpy(out->grid + 8 * k, grid, 8);
            }
        }
        float odd = (float)(2 * out->scale[k] + 1);
        out->error += best.error;
        out->xq += odd * best.xq;
        out->qq += odd * odd * best.qq;
    }
}

void st_encode_iq3_xxs(const float *src, void *dst, size_t n, const float *importance)
{
    float ones[BLOCK];
    uint8_t *p = dst;
    pthread_once(&near_once, build_near);
    for (size_t i = 0; i < n; i += BLOCK, p += 98) {
        const float *w = st_weights(importance, i, ones, BLOCK);
        float magnitude[BLOCK], ideal[8], max = 0.0f;
        uint32_t signs[32];
        struct choice best, next;
        for (int g = 0; g < 32; g++)
            signs[g] = split_signs(src + i + 8 * g, w + 8 * g, magnitude + 8 * g);
        for (int k = 0; k < 8; k++) {
            ideal[k] = fit_sub(magnitude + SUB * k, w + SUB * k);
            max = ideal[k] > max ? ideal[k] : max;
        }
        choose(magnitude, w, st_round_scale(max * 4.0f / 31.0f, 1), ideal, &best);
        for (int step = 0; step < 2 && best.qq > 0.0f; step++) {
            choose(magnitude, w, st_round_scale(4.0f * best.xq / best.qq, 1), ideal, &next);
            if (!(next.error < best.error))
                break;
            best = next;
        }
        st_store_half(p, best.d);
        memcpy(p + 2, best.grid, 64);
        for (int k = 0; k < 8; k++) {
            uint32_t a = (uint32_t)best.scale[k] << 28;
            for (int l = 0; l < 4; l++)
                a |= signs[4 * k + l] << 7 * l;
            memcpy(p + 66 + 4 * k, &a, 4);
        }
    }
}
