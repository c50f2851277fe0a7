/* Owns the AVX-512 level of the dot products (F, BW, VL, DQ, VNNI, VBMI). */
#include "kernel/x86/dot_ops_avx512.h"

#include "format/grids.h"
#include "kernel/x86/dot_x86.h"

#include "kernel/x86/dot_lanes.inc"

#include "kernel/x86/dot_grids_vbmi.inc"

struct w16 {
    __m512 all;
};

/* Rows and activation rows of a tile: for many activation rows, and for one. */
enum { WIDE_ROWS = 4, WIDE_COUNT = 4, TALL_ROWS = 8 };

V_INLINE struct w16 w16_zero(void)
{
    return (struct w16){_mm512_setzero_ps()};
}

V_INLINE struct w16 w16_fma(struct w16 a, struct w16 b, struct w16 c)
{
    return (struct w16){_mm512_fmadd_ps(a.all, b.all, c.all)};
}

V_INLINE struct w16 w16_load_f32(const uint8_t *p, size_t i)
{
    return (struct w16){_mm512_loadu_ps(p + 4 * i)};
}

V_INLINE struct w16 w16_load_f16(const uint8_t *p, size_t i)
{
    return (struct w16){_mm512_cvtph_ps(_mm256_loadu_si256((const void *)(p + 2 * i)))};
}

V_INLINE struct w16 w16_load_bf16(const uint8_t *p, size_t i)
{
    return (struct w16){_mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)(p + 2 * i))), 16))};
}

V_INLINE float w16_sum(struct w16 a)
{
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.all), _mm512_extractf32x8_ps(a.all, 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

#include "kernel/x86/dot_floats.inc"
