/* Part of the dialect: matrix fragments of binary16 numbers, in groups like those of dialect.h. D (16 x 16 f32) += A (16 x 16) *
 * B (16 x 16); A and B are loaded by st_tile_load_a and st_tile_load_b, a row of A and a column of B are 16 numbers in local
 * memory. B may also stand there row by row (st_tile_load_rows, st_tile_multiply_rows): rows of 16 numbers, stride bytes apart.
 * Products are exact; sums are rounded or cut to f32, in an order that is the unit's own.
 *
 * ST_TILE_HALVES: 1 where there is such a unit. Units that take subnormal numbers for 0 are left out. */
#ifndef ST_HALVES_H
#define ST_HALVES_H

#include "dialect.h"

#if defined(ST_TILE_NVIDIA) || defined(ST_TILE_WMMA) || (defined(ST_TILE_MFMA) && defined(__gfx942__)) || \
    (defined(ST_HOST) && ST_LANES == 32)
#define ST_TILE_HALVES 1

struct st_tile_sums {
    float v[ST_TILE_VALUES];
};

#ifndef ST_HOST
#define st_tile_rows st_tile_b
#define st_tile_multiply_rows st_tile_multiply_f16
#endif

#if defined(ST_TILE_NVIDIA)

INLINE struct st_tile_rows st_tile_load_rows(local const char *base, uint stride, uint at)
{
    const uint lane = st_lane();
    local const char *row = base + lane % 16 * stride + lane / 16 * 16;
    struct st_tile_rows b;
    __asm__ volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4 + %5];"
                     : "=r"(b.r[0]), "=r"(b.r[1]), "=r"(b.r[2]), "=r"(b.r[3])
                     : "l"(row), "i"(at)
                     : "memory");
    return b;
}
INLINE void st_tile_multiply_f16(struct st_tile_sums *d, const struct st_tile_a *a, const struct st_tile_b *b)
{
    UNROLL
    for (int h = 0; h < 2; h++) {
        float *v = d->v + 4 * h;
#if __CUDA_ARCH__ >= 800
        __asm__("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                "{%0, %1, %2, %3};"
                : "+f"(v[0]), "+f"(v[1]), "+f"(v[2]), "+f"(v[3])
                : "r"(a->r[0]), "r"(a->r[1]), "r"(a->r[2]), "r"(a->r[3]), "r"(b->r[2 * h]), "r"(b->r[2 * h + 1]));
#else
        for (int k = 0; k < 2; k++)
            __asm__("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                    : "+f"(v[0]), "+f"(v[1]), "+f"(v[2]), "+f"(v[3])
                    : "r"(a->r[2 * k]), "r"(a->r[2 * k + 1]), "r"(b->r[2 * h + k]));
#endif
    }
}

#elif defined(ST_TILE_WMMA)

typedef half st_half __attribute__((ext_vector_type(2 * ST_TILE_WORDS)));
INLINE struct st_tile_rows st_tile_load_rows(local const char *base, uint stride, uint at)
{
    local const ushort *column = (local const ushort *)(base + at) + st_lane() % 16;
    struct st_tile_rows b;
    UNROLL
    for (uint i = 0; i < ST_TILE_WORDS; i++) {
#ifdef __GFX12__
        const uint word = i / 2 * 4 + st_lane() / 16 * 2 + i % 2;
#else
        const uint word = i;
#endif
        b.w[i] = column[word * stride] | (uint)column[word * stride + stride / 2] << 16;
    }
    return b;
}
INLINE void st_tile_multiply_f16(struct st_tile_sums *d, const struct st_tile_a *a, const struct st_tile_b *b)
{
    st_float8 c;
    st_half x, y;
    UNROLL
    for (int i = 0; i < 8; i++)
        c[i] = d->v[i];
    UNROLL
    for (int i = 0; i < 2 * ST_TILE_WORDS; i++) {
        x[i] = as_half((ushort)(a->w[i / 2] >> i % 2 * 16));
        y[i] = as_half((ushort)(b->w[i / 2] >> i % 2 * 16));
    }
#ifdef __GFX12__
    c = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(x, y, c);
#else
    c = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(x, y, c);
#endif
    UNROLL
    for (int i = 0; i < 8; i++)
        d->v[i] = c[i];
}

#elif defined(ST_TILE_MFMA)

typedef half st_half4 __attribute__((ext_vector_type(4)));
INLINE struct st_tile_rows st_tile_load_rows(local const char *base, uint stride, uint at)
{
    local const ushort *from = (local const ushort *)(base + at) + st_lane() % 16 + st_lane() / 16 * 2 * stride;
    struct st_tile_rows b;
    UNROLL
    for (uint i = 0; i < 2; i++)
        b.w[i] = from[i * stride] | (uint)from[i * stride + stride / 2] << 16;
    return b;
}
INLINE void st_tile_multiply_f16(struct st_tile_sums *d, const struct st_tile_a *a, const struct st_tile_b *b)
{
    st_float4 c = {d->v[0], d->v[1], d->v[2], d->v[3]};
    st_half4 x, y;
    UNROLL
    for (int i = 0; i < 4; i++) {
        x[i] = as_half((ushort)(a->w[i / 2] >> i % 2 * 16));
        y[i] = as_half((ushort)(b->w[i / 2] >> i % 2 * 16));
    }
    c = __builtin_amdgcn_mfma_f32_16x16x16f16(x, y, c, 0, 0, 0);
    UNROLL
    for (int i = 0; i < 4; i++)
        d->v[i] = c[i];
}

#else

struct st_tile_rows {
    local const char *base;
    uint stride;
};
INLINE struct st_tile_rows st_tile_load_rows(local const char *base, uint stride, uint at)
{
    struct st_tile_rows b = {base + at, stride};
    return b;
}
INLINE void st_tile_multiply_f16(struct st_tile_sums *d, const struct st_tile_a *a, const struct st_tile_b *b)
{
    for (uint i = 0; i < ST_TILE_VALUES; i++) {
        local const ushort *x = (local const ushort *)(a->base + st_tile_row(i) * a->stride);
        local const ushort *y = (local const ushort *)(b->base + st_tile_column(i) * b->stride);
        for (uint k = 0; k < 16; k++)
            d->v[i] = st_fma(st_float_of_half(x[k]), st_float_of_half(y[k]), d->v[i]);
    }
}
INLINE void st_tile_multiply_rows(struct st_tile_sums *d, const struct st_tile_a *a, const struct st_tile_rows *b)
{
    for (uint i = 0; i < ST_TILE_VALUES; i++) {
        local const ushort *x = (local const ushort *)(a->base + st_tile_row(i) * a->stride);
        for (uint k = 0; k < 16; k++) {
            local const ushort *y = (local const ushort *)(b->base + k * b->stride);
            d->v[i] = st_fma(st_float_of_half(x[k]), st_float_of_half(y[st_tile_column(i)]), d->v[i]);
        }
    }
}

#endif

#else
#define ST_TILE_HALVES 0
#endif

#endif
