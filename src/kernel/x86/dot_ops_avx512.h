/* The vector operations that dot_lanes.inc is written in, for AVX-512 with VNNI and VBMI: sixteen weight rows in the
 * sixteen 32-bit lanes. */
#ifndef ST_KERNEL_X86_DOT_OPS_AVX512_H
#define ST_KERNEL_X86_DOT_OPS_AVX512_H

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "format/quant.h"

#define V_INLINE static inline __attribute__((always_inline))
#define V_NAME(name) st_x86_avx512_##name
#define V_LEVEL "avx512"

enum { LANES = 16, BATCH = 2 };
#define PREFETCH_HINT _MM_HINT_T0
typedef __m512i vi;
typedef __m512 vf;

/* Codes of full signed-byte range are moved up by 128, because VNNI multiplies unsigned by signed bytes. */
enum { SIGNED_OFFSET_LOG2 = 7, SIGNED_MAX = 255 };

V_INLINE vi vi_set1(int v)
{
    return _mm512_set1_epi32(v);
}
V_INLINE vi vi_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}
V_INLINE vi vi_or(vi a, vi b)
{
    return _mm512_or_si512(a, b);
}
V_INLINE vi vi_xor(vi a, vi b)
{
    return _mm512_xor_si512(a, b);
}
V_INLINE vi vi_srl(vi a, int n)
{
    return _mm512_srli_epi32(a, (unsigned)n);
}
V_INLINE vi vi_sll(vi a, int n)
{
    return _mm512_slli_epi32(a, (unsigned)n);
}
V_INLINE vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}
V_INLINE vi vi_sub(vi a, vi b)
{
    return _mm512_sub_epi32(a, b);
}
V_INLINE vi vi_add8(vi a, vi b)
{
    return _mm512_add_epi8(a, b);
}
V_INLINE vi vi_sub8(vi a, vi b)
{
    return _mm512_sub_epi8(a, b);
}
V_INLINE vi vi_table(const void *sixteen)
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128(sixteen));
}
V_INLINE vi vi_shuffle(vi table, vi index)
{
    return _mm512_shuffle_epi8(table, index);
}
V_INLINE vi vi_select_gt(vi a, vi b, vi yes, vi no)
{
    return _mm512_mask_blend_epi32(_mm512_cmpgt_epi32_mask(a, b), no, yes);
}

V_INLINE vf vf_zero(void)
{
    return _mm512_setzero_ps();
}
V_INLINE vf vf_set1(float v)
{
    return _mm512_set1_ps(v);
}
V_INLINE vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
V_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
V_INLINE vf vf_fnma(vf a, vf b, vf c)
{
    return _mm512_fnmadd_ps(a, b, c);
}
V_INLINE vf vf_from_int(vi a)
{
    return _mm512_cvtepi32_ps(a);
}
V_INLINE vf vf_from_bits(vi a)
{
    return _mm512_castsi512_ps(a);
}
V_INLINE vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
V_INLINE void vf_store(float *p, vf a)
{
    _mm512_storeu_ps(p, a);
}
V_INLINE vf vf_from_half(vi a)
{
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a));
}

V_INLINE int load_int(const void *p)
{
    int v;
    memcpy(&v, p, 4);
    return v;
}

/* Four bytes of each row. */
V_INLINE vi load_rows1(const uint8_t *p, size_t stride)
{
    __m128i part[4];
    for (int i = 0; i < 4; i++) {
        const uint8_t *q = p + 4 * (size_t)i * stride;
        part[i] = _mm_setr_epi32(load_int(q), load_int(q + stride), load_int(q + 2 * stride), load_int(q + 3 * stride));
    }
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_set_m128i(part[1], part[0])),
                              _mm256_set_m128i(part[3], part[2]), 1);
}

/* Group i of four activations, for every row. */
V_INLINE vi four_of(const int8_t *q, int i)
{
    return vi_set1(load_int(q + 4 * i));
}

/* The binary16 at p of each row. */
V_INLINE vf load_halves(const uint8_t *p, size_t stride)
{
    return vf_from_half(load_rows1(p, stride));
}

V_INLINE vi load_four(const uint8_t *p, size_t stride)
{
    vi v = _mm512_castsi128_si512(_mm_loadu_si128((const void *)p));
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(p + 4 * stride)), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(p + 8 * stride)), 2);
    return _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(p + 12 * stride)), 3);
}

/* Sixteen bytes of each row: out[i] holds bytes 4 i .. 4 i + 3 of every row. */
V_INLINE void load_rows4(const uint8_t *p, size_t stride, vi out[4])
{
    vi a = load_four(p, stride), b = load_four(p + stride, stride);
    vi c = load_four(p + 2 * stride, stride), d = load_four(p + 3 * stride, stride);
    vi ab_low = _mm512_unpacklo_epi32(a, b), ab_high = _mm512_unpackhi_epi32(a, b);
    vi cd_low = _mm512_unpacklo_epi32(c, d), cd_high = _mm512_unpackhi_epi32(c, d);
    out[0] = _mm512_unpacklo_epi64(ab_low, cd_low);
    out[1] = _mm512_unpackhi_epi64(ab_low, cd_low);
    out[2] = _mm512_unpacklo_epi64(ab_high, cd_high);
    out[3] = _mm512_unpackhi_epi64(ab_high, cd_high);
}

/* A whole scale in the form that dot_part takes: here a 32-bit number. */
V_INLINE vi scale_from_lane(vi s)
{
    return s;
}

/* Unsigned or signed byte k of each lane as a scale. */
V_INLINE vi scale_u8(vi packed, int k)
{
    return vi_and(vi_srl(packed, 8 * k), vi_set1(255));
}
V_INLINE vi scale_s8(vi packed, int k)
{
    return _mm512_srai_epi32(vi_sll(packed, 24 - 8 * k), 24);
}

/* For nx activation rows (up to BATCH): sum += sum of codes times activations, over count groups of four elements. at:
 * the first element in the activation rows. */
V_INLINE void dot_plain(vi *sum, const vi *code, int count, const struct st_act_row *x, int nx, size_t at, int max)
{
    (void)max;
    for (int i = 0; i < count; i++)
        for (int k = 0; k < nx; k++)
            sum[k] = _mm512_dpbusd_epi32(sum[k], code[i], four_of(x[k].q + at, i));
}

/* The same with a scale that all of them share. */
V_INLINE void dot_part(vi *sum, const vi *code, int count, const struct st_act_row *x, int nx, size_t at, vi scale,
                       int max)
{
    vi part[BATCH];
    for (int k = 0; k < nx; k++)
        part[k] = _mm512_setzero_si512();
    dot_plain(part, code, count, x, nx, at, max);
    for (int k = 0; k < nx; k++)
        sum[k] = vi_add(sum[k], _mm512_mullo_epi32(part[k], scale));
}

/* sum += low half of pair * sums[0] + high half * sums[1]. */
V_INLINE vi dot_sums(vi sum, vi pair, const int16_t *sums)
{
    return _mm512_dpwssd_epi32(sum, pair, vi_set1(load_int(sums)));
}

/* Two-bit codes, 16 in each lane of each packed register: sum = the sum of (code - 1) times activations. Codes 1 and 3
 * of each byte are taken where they are, four times too large, which saves their shifts. */
V_INLINE void dot_two_bits(vi *sum, const vi packed[2], const struct st_act_row *x, int nx, size_t at)
{
    vi low = _mm512_set1_epi8(3), next = _mm512_set1_epi8(12), four[BATCH];
    for (int k = 0; k < nx; k++) {
        sum[k] = dot_sums(_mm512_setzero_si512(), _mm512_set1_epi16(-1), x[k].sums + at / 16);
        four[k] = _mm512_setzero_si512();
    }
    for (int i = 0; i < 2; i++) {
        vi high = vi_srl(packed[i], 4), c0 = vi_and(packed[i], low), c1 = vi_and(packed[i], next),
           c2 = vi_and(high, low), c3 = vi_and(high, next);
        for (int k = 0; k < nx; k++) {
            const int8_t *q = x[k].q + at + 16 * i;
            sum[k] = _mm512_dpbusd_epi32(sum[k], c0, four_of(q, 0));
            four[k] = _mm512_dpbusd_epi32(four[k], c1, four_of(q, 1));
            sum[k] = _mm512_dpbusd_epi32(sum[k], c2, four_of(q, 2));
            four[k] = _mm512_dpbusd_epi32(four[k], c3, four_of(q, 3));
        }
    }
    for (int k = 0; k < nx; k++)
        sum[k] = vi_add(sum[k], _mm512_srai_epi32(four[k], 2));
}

#endif
