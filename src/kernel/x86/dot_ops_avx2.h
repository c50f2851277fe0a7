/* The vector operations that dot_lanes.inc is written in, for AVX2: eight weight rows in the eight 32-bit lanes. */
#ifndef ST_KERNEL_X86_DOT_OPS_AVX2_H
#define ST_KERNEL_X86_DOT_OPS_AVX2_H

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "format/quant.h"

#define V_INLINE static inline __attribute__((always_inline))
#define V_NAME(name) st_x86_avx2_##name
#define V_LEVEL "avx2"

enum { LANES = 8, BATCH = 4 };
#define PREFETCH_HINT _MM_HINT_T0
typedef __m256i vi;
typedef __m256 vf;

/* Codes of full signed-byte range stay signed: the dot product moves the sign to the activation. */
enum { SIGNED_OFFSET_LOG2 = -1, SIGNED_MAX = 0 };

V_INLINE vi vi_set1(int v)
{
    return _mm256_set1_epi32(v);
}
V_INLINE vi vi_and(vi a, vi b)
{
    return _mm256_and_si256(a, b);
}
V_INLINE vi vi_or(vi a, vi b)
{
    return _mm256_or_si256(a, b);
}
V_INLINE vi vi_xor(vi a, vi b)
{
    return _mm256_xor_si256(a, b);
}
V_INLINE vi vi_srl(vi a, int n)
{
    return _mm256_srli_epi32(a, n);
}
V_INLINE vi vi_sll(vi a, int n)
{
    return _mm256_slli_epi32(a, n);
}
V_INLINE vi vi_add(vi a, vi b)
{
    return _mm256_add_epi32(a, b);
}
V_INLINE vi vi_sub(vi a, vi b)
{
    return _mm256_sub_epi32(a, b);
}
V_INLINE vi vi_add8(vi a, vi b)
{
    return _mm256_add_epi8(a, b);
}
V_INLINE vi vi_sub8(vi a, vi b)
{
    return _mm256_sub_epi8(a, b);
}
V_INLINE vi vi_table(const void *sixteen)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(sixteen));
}
V_INLINE vi vi_shuffle(vi table, vi index)
{
    return _mm256_shuffle_epi8(table, index);
}
/* Bytes of a that are equal to b become 255, the others 0. */
V_INLINE vi vi_equal8(vi a, vi b)
{
    return _mm256_cmpeq_epi8(a, b);
}
/* Lanes where a > b take yes, the others no. */
V_INLINE vi vi_select_gt(vi a, vi b, vi yes, vi no)
{
    return _mm256_blendv_epi8(no, yes, _mm256_cmpgt_epi32(a, b));
}

V_INLINE vf vf_zero(void)
{
    return _mm256_setzero_ps();
}
V_INLINE vf vf_set1(float v)
{
    return _mm256_set1_ps(v);
}
V_INLINE vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}
V_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}
V_INLINE vf vf_fnma(vf a, vf b, vf c)
{
    return _mm256_fnmadd_ps(a, b, c);
}
V_INLINE vf vf_from_int(vi a)
{
    return _mm256_cvtepi32_ps(a);
}
V_INLINE vf vf_from_bits(vi a)
{
    return _mm256_castsi256_ps(a);
}
V_INLINE vf vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
V_INLINE void vf_store(float *p, vf a)
{
    _mm256_storeu_ps(p, a);
}

/* The binary16 in the low half of each lane. */
V_INLINE vf vf_from_half(vi a)
{
    vi low = _mm256_and_si256(a, _mm256_set1_epi32(0xffff)), packed = _mm256_packus_epi32(low, low);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
}

V_INLINE int load_int(const void *p)
{
    int v;
    memcpy(&v, p, 4);
    return v;
}

V_INLINE int load_short(const void *p)
{
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}

/* Four bytes of each row. */
V_INLINE vi load_rows1(const uint8_t *p, size_t stride)
{
    const uint8_t *q = p + 4 * stride;
    return _mm256_set_epi32(load_int(q + 3 * stride), load_int(q + 2 * stride), load_int(q + stride), load_int(q),
                            load_int(p + 3 * stride), load_int(p + 2 * stride), load_int(p + stride), load_int(p));
}

/* Group i of four activations, for every row. */
V_INLINE vi four_of(const int8_t *q, int i)
{
    return vi_set1(load_int(q + 4 * i));
}

/* The binary16 at p of each row. */
V_INLINE vf load_halves(const uint8_t *p, size_t stride)
{
    const uint8_t *q = p + 4 * stride;
    __m128i low = _mm_cvtsi32_si128(load_short(p)), high = _mm_cvtsi32_si128(load_short(q));
    low = _mm_insert_epi16(low, load_short(p + stride), 1);
    high = _mm_insert_epi16(high, load_short(q + stride), 1);
    low = _mm_insert_epi16(low, load_short(p + 2 * stride), 2);
    high = _mm_insert_epi16(high, load_short(q + 2 * stride), 2);
    low = _mm_insert_epi16(low, load_short(p + 3 * stride), 3);
    high = _mm_insert_epi16(high, load_short(q + 3 * stride), 3);
    return _mm256_cvtph_ps(_mm_unpacklo_epi64(low, high));
}

V_INLINE vi load_two(const uint8_t *low, const uint8_t *high)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const void *)low)),
                                   _mm_loadu_si128((const void *)high), 1);
}

/* Sixteen bytes of each row: out[i] holds bytes 4 i .. 4 i + 3 of every row. */
V_INLINE void load_rows4(const uint8_t *p, size_t stride, vi out[4])
{
    const uint8_t *q = p + 4 * stride;
    vi a = load_two(p, q), b = load_two(p + stride, q + stride);
    vi c = load_two(p + 2 * stride, q + 2 * stride), d = load_two(p + 3 * stride, q + 3 * stride);
    vi ab_low = _mm256_unpacklo_epi32(a, b), ab_high = _mm256_unpackhi_epi32(a, b);
    vi cd_low = _mm256_unpacklo_epi32(c, d), cd_high = _mm256_unpackhi_epi32(c, d);
    out[0] = _mm256_unpacklo_epi64(ab_low, cd_low);
    out[1] = _mm256_unpackhi_epi64(ab_low, cd_low);
    out[2] = _mm256_unpacklo_epi64(ab_high, cd_high);
    out[3] = _mm256_unpackhi_epi64(ab_high, cd_high);
}

/* Where a row's i-th grid index of a chunk is found. */
typedef uint32_t (*index_fn)(const uint8_t *block, int chunk, int i);

/* Entries of four elements, one for each row. */
V_INLINE vi lookup4(const uint32_t *grid, index_fn index, const uint8_t *p, size_t stride, int chunk, int i)
{
    const uint8_t *q = p + 4 * stride;
    return _mm256_set_epi32((int)grid[index(q + 3 * stride, chunk, i)], (int)grid[index(q + 2 * stride, chunk, i)],
                            (int)grid[index(q + stride, chunk, i)], (int)grid[index(q, chunk, i)],
                            (int)grid[index(p + 3 * stride, chunk, i)], (int)grid[index(p + 2 * stride, chunk, i)],
                            (int)grid[index(p + stride, chunk, i)], (int)grid[index(p, chunk, i)]);
}

/* Entries of eight elements: out[0] their first halves, out[1] their second. */
V_INLINE void lookup8(const uint64_t *grid, index_fn index, const uint8_t *p, size_t stride, int chunk, int i,
                      vi out[2])
{
    const uint8_t *q = p + 4 * stride;
    __m256i a = _mm256_set_epi64x((long long)grid[index(q + stride, chunk, i)], (long long)grid[index(q, chunk, i)],
                                  (long long)grid[index(p + stride, chunk, i)], (long long)grid[index(p, chunk, i)]);
    __m256i b = _mm256_set_epi64x(
        (long long)grid[index(q + 3 * stride, chunk, i)], (long long)grid[index(q + 2 * stride, chunk, i)],
        (long long)grid[index(p + 3 * stride, chunk, i)], (long long)grid[index(p + 2 * stride, chunk, i)]);
    out[0] = _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0x88));
    out[1] = _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0xdd));
}

/* A whole scale in the form that dot_part takes: here twice in a lane, as 16-bit numbers. */
V_INLINE vi scale_from_lane(vi s)
{
    return vi_or(vi_and(s, vi_set1(0xffff)), vi_sll(s, 16));
}

/* Unsigned or signed byte k of each lane as a scale. */
V_INLINE vi scale_u8(vi packed, int k)
{
    return vi_shuffle(packed, _mm256_add_epi32(_mm256_setr_epi32(0, 0x00040004, 0x00080008, 0x000c000c, 0, 0x00040004,
                                                                 0x00080008, 0x000c000c),
                                               vi_set1((int)0x80008000 + k * 0x00010001)));
}

V_INLINE vi scale_s8(vi packed, int k)
{
    vi high = vi_shuffle(packed, _mm256_add_epi32(_mm256_setr_epi32(0, 0x04000400, 0x08000800, 0x0c000c00, 0,
                                                                    0x04000400, 0x08000800, 0x0c000c00),
                                                  vi_set1(0x00800080 + k * 0x01000100)));
    return _mm256_srai_epi16(high, 8);
}

/* Makes the compiler have this value in a register here. Left alone it computes all products first and adds them up
 * last, which takes more registers than there are. */
V_INLINE void keep(vi *v)
{
    __asm__("" : "+x"(*v));
}

/* Codes times activations, added in pairs to 16-bit numbers; max: the largest code, 0 for signed codes. */
V_INLINE vi dot_pairs(vi code, vi x, int max)
{
    return max ? _mm256_maddubs_epi16(code, x) : _mm256_maddubs_epi16(_mm256_abs_epi8(code), _mm256_sign_epi8(x, code));
}

/* How many results of dot_pairs can be added in 16 bits. */
V_INLINE int pairs_together(int count, int max)
{
    int fit = max == 0 ? 1 : 32767 / (2 * 127 * max);
    return fit >= count ? count : fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
}

/* For nx activation rows (up to BATCH): sum += scale * sum of codes times activations, over count groups of four
 * elements that share the scale. at: the first element in the activation rows. */
V_INLINE void dot_part(vi *sum, const vi *code, int count, const struct st_act_row *x, int nx, size_t at, vi scale,
                       int max)
{
    int together = pairs_together(count, max);
    for (int i = 0; i < count; i += together) {
        vi pairs[BATCH];
        for (int k = 0; k < nx; k++)
            pairs[k] = dot_pairs(code[i], four_of(x[k].q + at, i), max);
        for (int j = i + 1; j < i + together; j++)
            for (int k = 0; k < nx; k++) {
                pairs[k] = _mm256_add_epi16(pairs[k], dot_pairs(code[j], four_of(x[k].q + at, j), max));
                keep(&pairs[k]);
            }
        for (int k = 0; k < nx; k++) {
            sum[k] = vi_add(sum[k], _mm256_madd_epi16(pairs[k], scale));
            if (together > 1 || max == 0)
                keep(&sum[k]);
        }
    }
}

/* The same without a scale. */
V_INLINE void dot_plain(vi *sum, const vi *code, int count, const struct st_act_row *x, int nx, size_t at, int max)
{
    dot_part(sum, code, count, x, nx, at, _mm256_set1_epi16(1), max);
}

/* Two-bit codes, 16 in each lane of each packed register: sum = the sum of (code - 1) times activations. Codes 1 and 3
 * of each byte are taken where they are, four times too large, which saves their shifts. */
V_INLINE void dot_two_bits(vi *sum, const vi packed[2], const struct st_act_row *x, int nx, size_t at)
{
    vi low = _mm256_set1_epi8(3), next = _mm256_set1_epi8(12), once[BATCH], four[BATCH];
    for (int i = 0; i < 2; i++) {
        vi high = vi_srl(packed[i], 4), c0 = vi_and(packed[i], low), c1 = vi_and(packed[i], next),
           c2 = vi_and(high, low), c3 = vi_and(high, next);
        for (int k = 0; k < nx; k++) {
            const int8_t *q = x[k].q + at + 16 * i;
            vi one = _mm256_add_epi16(_mm256_maddubs_epi16(c0, four_of(q, 0)), _mm256_maddubs_epi16(c2, four_of(q, 2)));
            vi other =
                _mm256_add_epi16(_mm256_maddubs_epi16(c1, four_of(q, 1)), _mm256_maddubs_epi16(c3, four_of(q, 3)));
            once[k] = i ? _mm256_add_epi16(once[k], one) : one;
            four[k] = i ? _mm256_add_epi16(four[k], other) : other;
            keep(&once[k]);
            keep(&four[k]);
        }
    }
    for (int k = 0; k < nx; k++) {
        vi pairs = _mm256_add_epi16(_mm256_srai_epi16(four[k], 2), once[k]);
        pairs = _mm256_sub_epi16(pairs, vi_set1(load_int(x[k].sums + at / 16)));
        sum[k] = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    }
}

/* sum += low half of pair * sums[0] + high half * sums[1]. */
V_INLINE vi dot_sums(vi sum, vi pair, const int16_t *sums)
{
    return vi_add(sum, _mm256_madd_epi16(pair, vi_set1(load_int(sums))));
}

#endif
