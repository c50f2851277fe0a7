/* Small loops over floats with a fixed order of sums: sixteen partial sums, then a tree. The inner loop has no dependence
 * between its sixteen lanes, so that compilers turn it into vector instructions of any width without changing a bit. */
#ifndef ST_KERNEL_VEC_H
#define ST_KERNEL_VEC_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { ST_LANES = 16 };

static inline float st_vec_tree(float acc[ST_LANES])
{
    for (int step = ST_LANES / 2; step > 0; step /= 2)
        for (int j = 0; j < step; j++)
            acc[j] += acc[j + step];
    return acc[0];
}

static inline float st_vec_dot(const float *a, const float *b, size_t n)
{
    float acc[ST_LANES] = {0};
    size_t i = 0;
    for (; i + ST_LANES <= n; i += ST_LANES)
        for (int j = 0; j < ST_LANES; j++)
            acc[j] = fmaf(a[i + (size_t)j], b[i + (size_t)j], acc[j]);
    for (int j = 0; i < n; i++, j++)
        acc[j] = fmaf(a[i], b[i], acc[j]);
    return st_vec_tree(acc);
}

/* y += a * x */
static inline void st_vec_axpy(float *restrict y, float a, const float *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = fmaf(a, x[i], y[i]);
}

/* 1 / sqrt(mean of squares + eps) */
static inline float st_vec_inverse_rms(const float *x, size_t n, float eps)
{
    return 1.0f / sqrtf(st_vec_dot(x, x, n) / (float)n + eps);
}

/* y = x / rms(x) * gamma; y may be x. */
static inline void st_vec_rms_norm(float *y, const float *x, const float *gamma, size_t n, float eps)
{
    float inv = st_vec_inverse_rms(x, n, eps);
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * inv * gamma[i];
}

/* IEEE binary16 to binary32, exact for every value, in a form that vectorises. */
static inline float st_half_to_float(uint16_t h)
{
    uint32_t magnitude = (uint32_t)(h & 0x7FFF) << 13, bits;
    float f;
    memcpy(&f, &magnitude, 4);
    f *= 0x1p112f;
    memcpy(&bits, &f, 4);
    bits = magnitude >= 0x0F800000u ? magnitude | 0x7F800000u : bits;
    bits |= (uint32_t)(h & 0x8000) << 16;
    memcpy(&f, &bits, 4);
    return f;
}

#endif
