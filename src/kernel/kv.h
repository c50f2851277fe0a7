/* Storing and loading rows of keys and values (layouts: qsa.h). Largest error of a loaded element: INT8 half of the scale,
 * which is the block's largest magnitude / 127; Q4 half of the scale, which is the block's range / 15, plus the rounding of
 * scale and minimum to f16. */
#ifndef ST_KERNEL_KV_H
#define ST_KERNEL_KV_H

#include "kernel/qsa.h"
#include "kernel/vec.h"

static inline void st_kv_store_int8(uint8_t *to, const float *x, size_t dim)
{
    for (size_t b = 0; b < dim / 64; b++) {
        float most = 0;
        for (int i = 0; i < 64; i++)
            most = fmaxf(most, fabsf(x[b * 64 + (size_t)i]));
        float d = most / 127.0f, inverse = d > 0 ? 1.0f / d : 0.0f;
        for (int i = 0; i < 64; i++)
            ((int8_t *)to)[b * 64 + (size_t)i] = (int8_t)rintf(x[b * 64 + (size_t)i] * inverse);
        memcpy(to + dim + b * 4, &d, 4);
    }
}

static inline void st_kv_store_q4(uint8_t *to, const float *x, size_t dim)
{
    for (size_t b = 0; b < dim / 32; b++) {
        float low = x[b * 32], high = low;
        for (int i = 1; i < 32; i++) {
            low = fminf(low, x[b * 32 + (size_t)i]);
            high = fmaxf(high, x[b * 32 + (size_t)i]);
        }
        uint16_t half[2] = {st_f32_to_f16((high - low) / 15.0f + 0.0f), st_f32_to_f16(low + 0.0f)}; /* + 0: never -0 */
        float d = st_half_to_float(half[0]), minimum = st_half_to_float(half[1]), inverse = d > 0 ? 1.0f / d : 0.0f;
        for (int i = 0; i < 16; i++) {
            float a = rintf((x[b * 32 + (size_t)i] - minimum) * inverse);
            float c = rintf((x[b * 32 + 16 + (size_t)i] - minimum) * inverse);
            to[b * 16 + (size_t)i] = (uint8_t)((int)fminf(fmaxf(a, 0), 15) | (int)fminf(fmaxf(c, 0), 15) << 4);
        }
        memcpy(to + dim / 2 + b * 4, half, 4);
    }
}

static inline void st_kv_store(enum st_kv_type type, uint8_t *to, const float *x, size_t dim)
{
    if (type == ST_KV_F32) {
        memcpy(to, x, dim * 4);
    } else if (type == ST_KV_INT8) {
        st_kv_store_int8(to, x, dim);
    } else if (type == ST_KV_Q4) {
        st_kv_store_q4(to, x, dim);
    } else {
        for (size_t i = 0; i < dim; i++) {
            uint16_t half = st_f32_to_f16(x[i]);
            memcpy(to + 2 * i, &half, 2);
        }
    }
}

/* dim floats of a stored row. */
static inline void st_kv_load(enum st_kv_type type, const uint8_t *from, float *x, size_t dim)
{
    if (type == ST_KV_F32) {
        memcpy(x, from, dim * 4);
    } else if (type == ST_KV_INT8) {
        for (size_t b = 0; b < dim / 64; b++) {
            float d;
            memcpy(&d, from + dim + b * 4, 4);
            for (int i = 0; i < 64; i++)
                x[b * 64 + (size_t)i] = (float)((const int8_t *)from)[b * 64 + (size_t)i] * d;
        }
    } else if (type == ST_KV_Q4) {
        for (size_t b = 0; b < dim / 32; b++) {
            uint16_t half[2];
            memcpy(half, from + dim / 2 + b * 4, 4);
            float d = st_half_to_float(half[0]), low = st_half_to_float(half[1]);
            for (int i = 0; i < 16; i++) {
                x[b * 32 + (size_t)i] = fmaf((float)(from[b * 16 + (size_t)i] & 15), d, low);
                x[b * 32 + 16 + (size_t)i] = fmaf((float)(from[b * 16 + (size_t)i] >> 4), d, low);
            }
        }
    } else {
        const uint16_t *half = (const uint16_t *)(const void *)from;
        for (size_t i = 0; i < dim; i++)
            x[i] = st_half_to_float(half[i]);
    }
}

#endif
