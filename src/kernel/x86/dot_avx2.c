/* Owns the AVX2 level of the dot products (with FMA and F16C). */
#include "kernel/x86/dot_ops_avx2.h"

#include "format/grids.h"
#include "kernel/x86/dot_x86.h"

#include "kernel/x86/dot_lanes.inc"

#include "kernel/x86/dot_grids.inc"

struct w16 {
    __m256 low, high;
};

/* Rows and activation rows of a tile: for many activation rows, and for one. */
enum { WIDE_ROWS = 2, WIDE_COUNT = 2, TALL_ROWS = 4 };

V_INLINE struct w16 w16_zero(void)
{
    return (struct w16){_mm256_setzero_ps(), _mm256_setzero_ps()};
}

V_INLINE struct w16 w16_fma(struct w16 a, struct w16 b, struct w16 c)
{
    return (struct w16){_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}

V_INLINE struct w16 w16_load_f32(const uint8_t *p, size_t i)
{
    return (struct w16){_mm256_loadu_ps((const float *)(p + 4 * i)), _mm256_loadu_ps((const float *)(p + 4 * i + 32))};
}

V_INLINE struct w16 w16_load_f16(const uint8_t *p, size_t i)
{
    return (struct w16){_mm256_cvtph_ps(_mm_loadu_si128((const void *)(p + 2 * i))),
                        _mm256_cvtph_ps(_mm_loadu_si128((const void *)(p + 2 * i + 16)))};
}

V_INLINE __m256 widen_bf16(const uint8_t *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)), 16));
}

V_INLINE struct w16 w16_load_bf16(const uint8_t *p, size_t i)
{
    return (struct w16){widen_bf16(p + 2 * i), widen_bf16(p + 2 * i + 16)};
}

V_INLINE float w16_sum(struct w16 a)
{
    __m256 eight = _mm256_add_ps(a.low, a.high);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

#include "kernel/x86/dot_floats.inc"

/* ---- activation rounding ---- */

V_INLINE __m256i magnitude(const float *x)
{
    return _mm256_and_si256(_mm256_loadu_si256((const void *)x), _mm256_set1_epi32(0x7fffffff));
}

V_INLINE uint32_t largest(__m256i v)
{
    __m128i a = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0x4e));
    a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(a);
}

V_INLINE __m256i round_eight(const float *x, __m256 factor)
{
    __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x), factor);
    v = _mm256_min_ps(_mm256_max_ps(v, _mm256_set1_ps(-127.0f)), _mm256_set1_ps(127.0f));
    return _mm256_cvtps_epi32(v);
}

/* 32 elements; returns the sums of the first and second 16 in the first two 32-bit lanes. */
V_INLINE void round_block(const float *x, __m256 factor, int8_t *q, int16_t *sums)
{
    __m256i low = _mm256_packs_epi32(round_eight(x, factor), round_eight(x + 8, factor));
    __m256i high = _mm256_packs_epi32(round_eight(x + 16, factor), round_eight(x + 24, factor));
    __m256i bytes =
        _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((void *)q, bytes);
    __m256i four = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes), _mm256_set1_epi16(1));
    __m256i two = _mm256_add_epi32(four, _mm256_shuffle_epi32(four, 0x4e)),
            one = _mm256_add_epi32(two, _mm256_shuffle_epi32(two, 0xb1));
    sums[0] = (int16_t)_mm256_cvtsi256_si32(one);
    sums[1] = (int16_t)_mm_cvtsi128_si32(_mm256_extracti128_si256(one, 1));
}

static void act_q8(const float *x, size_t block, struct st_act_row *row)
{
    int8_t *q = row->q + 32 * block;
    int16_t *sums = row->sums + 2 * block;
    __m256i max = _mm256_max_epi32(_mm256_max_epi32(magnitude(x), magnitude(x + 8)),
                                   _mm256_max_epi32(magnitude(x + 16), magnitude(x + 24)));
    float d = st_bits_f32(largest(max)) / 127.0f, stored = _cvtsh_ss(_cvtss_sh(d, _MM_FROUND_TO_NEAREST_INT));
    row->d[block] = stored;
    if (stored == 0.0f) {
        row->s[block] = 0.0f;
        memset(q, 0, 32);
        memset(sums, 0, 4);
        return;
    }
    round_block(x, _mm256_set1_ps(1.0f / d), q, sums);
    row->s[block] = _cvtsh_ss(_cvtss_sh((float)(sums[0] + sums[1]) * d, _MM_FROUND_TO_NEAREST_INT));
}

static void act_q8k(const float *x, size_t block, struct st_act_row *row)
{
    int8_t *q = row->q + 256 * block;
    int16_t *sums = row->sums + 16 * block;
    __m256i all = _mm256_setzero_si256();
    for (int i = 0; i < 256; i += 8)
        all = _mm256_max_epi32(all, magnitude(x + i));
    uint32_t max = largest(all);
    if (max < 0x0d800000) { /* below 2^-100 */
        row->d[block] = 0.0f;
        memset(q, 0, 256);
        memset(sums, 0, 32);
        return;
    }
    int i = 0, found;
    while ((found = _mm256_movemask_ps(
                _mm256_castsi256_ps(_mm256_cmpeq_epi32(magnitude(x + i), _mm256_set1_epi32((int)max))))) == 0)
        i += 8;
    float factor = -127.0f / x[i + __builtin_ctz((unsigned)found)];
    row->d[block] = 1.0f / factor;
    for (int j = 0; j < 256; j += 32)
        round_block(x + j, _mm256_set1_ps(factor), q + j, sums + j / 16);
}

void st_x86_act_quantize(enum st_act kind, const float *x, size_t n, struct st_act_row *row)
{
    row->f = x;
    if (kind == ST_ACT_Q8)
        for (size_t b = 0; b < n / 32; b++)
            act_q8(x + 32 * b, b, row);
    if (kind == ST_ACT_Q8K)
        for (size_t b = 0; b < n / 256; b++)
            act_q8k(x + 256 * b, b, row);
}
