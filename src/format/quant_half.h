/* Owns the conversions between FP32 and the two 16-bit float formats of model files, as bit operations: exact one way,
 * round to nearest even the other way, with the results of x86's F16C instructions for every input (NaN included). */
#ifndef ST_FORMAT_QUANT_HALF_H
#define ST_FORMAT_QUANT_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t st_f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static inline float st_bits_f32(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* Unaligned little-endian loads (every supported host is little-endian). */
static inline uint16_t st_load16(const void *p)
{
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}

static inline uint32_t st_load32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static inline float st_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    if (exponent == 0) /* zero or subnormal: mantissa * 2^-24, exact in FP32 */
        return st_bits_f32(sign | st_f32_bits((float)mantissa * 0x1p-24f));
    if (exponent == 31) /* infinity, or a NaN made quiet */
        return st_bits_f32(sign | 0x7f800000 | mantissa << 13 | (mantissa ? 0x400000 : 0));
    return st_bits_f32(sign | (exponent + 112) << 23 | mantissa << 13);
}

static inline uint16_t st_f32_to_f16(float f)
{
    uint32_t u = st_f32_bits(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff));
    if (a >= 0x477ff000) /* 65520 and more round to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000) { /* below 2^-14: adding 0.5 leaves the rounded multiple of 2^-24 in the low mantissa bits */
        return (uint16_t)(sign | (st_f32_bits(st_bits_f32(a) + 0.5f) - 0x3f000000));
    }
    return (uint16_t)(sign | (a - 0x38000000 + 0xfff + (a >> 13 & 1)) >> 13);
}

static inline float st_bf16_to_f32(uint16_t h)
{
    return st_bits_f32((uint32_t)h << 16);
}

static inline uint16_t st_f32_to_bf16(float f)
{
    uint32_t u = st_f32_bits(f);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 64);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

#endif
