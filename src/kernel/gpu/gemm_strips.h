/* Large prompt products of types of 32 and 64 elements with a scale for each 32, where four waves multiply strips (warpgroups.h),
 * with the arithmetic of docs/numerics.md to the bit.
 *
 * A group of 256 work-items has tiles of 128 activation rows times 128 weight rows, one after the other; each half of it has a strip
 * of 64 activation rows. Columns come in chunks of 128, both sides ready to be multiplied (layout.h, "strips"), by the copy unit.
 * While the matrix units multiply 32 columns, the exact sums of the 32 before get their scales.
 * Limit: instructions of scaling, three for each output and 32 columns. */
#ifndef ST_GEMM_STRIPS_H
#define ST_GEMM_STRIPS_H

#include "opened.h"
#include "warpgroups.h"

#if ST_FOLDED

#define STRIPS_GROUP 256
#define STRIPS_SLOTS 4 /* chunks in local memory */
#define STRIPS_W(type) ST_STRIPS_W(PART_OFFSET(type))
#define STRIPS_X(type) ST_STRIPS_X(PART_OFFSET(type))
#define STRIPS_AT_PHASES(type) (STRIPS_SLOTS * (STRIPS_W(type) + STRIPS_X(type)))
#define STRIPS_BYTES(type) (STRIPS_AT_PHASES(type) + 2 * STRIPS_SLOTS * 8)

struct strips {
    global const uchar *rows, *weights;
    uint n, chunks, row_tiles, tiles;
};

/* One work-item asks for chunk `number` of the group's tiles. */
INLINE void strips_bring(int type, local uchar *memory, const struct strips *a, uint number)
{
    local ulong *full = (local ulong *)(memory + STRIPS_AT_PHASES(type)), *empty = full + STRIPS_SLOTS;
    const uint tile = st_group() + number / a->chunks * st_groups(), chunk = number % a->chunks, slot = number % STRIPS_SLOTS;
    local uchar *to = memory + slot * (STRIPS_W(type) + STRIPS_X(type));
    if (tile >= a->tiles)
        return;
    st_phase_wait(empty + slot, number / STRIPS_SLOTS % 2 ^ 1);
    st_phase_expect(full + slot, STRIPS_W(type) + STRIPS_X(type));
    st_bulk_copy(to, a->weights + ((ulong)(tile / a->row_tiles) * a->chunks + chunk) * STRIPS_W(type), STRIPS_W(type), full + slot);
    st_bulk_copy(to + STRIPS_W(type), a->rows + ((ulong)(tile % a->row_tiles) * a->chunks + chunk) * STRIPS_X(type),
                 STRIPS_X(type), full + slot);
}

/* Adds part `part` of a chunk to the accumulators. w, x: the chunk. */
INLINE void strips_add(int type, float *acc, const int *sums, local const uchar *w, local const uchar *x, uint part)
{
    const uint lane = st_item() % 32, row = part * 128 + st_item() / 32 * 16 + lane / 4;
    local const float *scale = (local const float *)(w + ST_GEMM_OUT * 128) + part * ST_GEMM_OUT;
    local const float *d = (local const float *)(x + 128 * 128);
    const float d0 = d[row], d1 = d[row + 8];
    UNROLL
    for (uint i = 0; i < STRIP_SUMS; i += 4) {
        const uint column = i * 2 + lane % 4 * 2;
        const uint2 two = *(local const uint2 *)(scale + column);
        const float w0 = st_float_of(two.x), w1 = st_float_of(two.y);
        acc[i] = st_fma(w0 * d0, (float)sums[i], acc[i]);
        acc[i + 1] = st_fma(w1 * d0, (float)sums[i + 1], acc[i + 1]);
        acc[i + 2] = st_fma(w0 * d1, (float)sums[i + 2], acc[i + 2]);
        acc[i + 3] = st_fma(w1 * d1, (float)sums[i + 3], acc[i + 3]);
        if (!PART_OFFSET(type))
            continue;
        const uint2 m = *(local const uint2 *)(scale + 4 * ST_GEMM_OUT + column);
        const float s0 = d[4 * 128 + row], s1 = d[4 * 128 + row + 8];
        acc[i] = st_fma(st_float_of(m.x), s0, acc[i]);
        acc[i + 1] = st_fma(st_float_of(m.y), s0, acc[i + 1]);
        acc[i + 2] = st_fma(st_float_of(m.x), s1, acc[i + 2]);
        acc[i + 3] = st_fma(st_float_of(m.y), s1, acc[i + 3]);
    }
}

/* A whole chunk: a part is begun before the one before it is added, so that both units have work. x, w: where the chunk's vectors
 * begin, for st_strip_step. */
#define STRIPS_X_STEP (64 * 32 / 16)
#define STRIPS_W_STEP (ST_GEMM_OUT * 32 / 16)
INLINE void strips_chunk(int type, float *acc, local const uchar *at, ulong x, ulong w)
{
    local const uchar *rows = at + STRIPS_W(type);
    int even[STRIP_SUMS], odd[STRIP_SUMS];
    st_strip_step(even, x, w);
    st_strip_step(odd, x + STRIPS_X_STEP, w + STRIPS_W_STEP);
    st_strip_wait_older(even);
    strips_add(type, acc, even, at, rows, 0);
    st_strip_step(even, x + 2 * STRIPS_X_STEP, w + 2 * STRIPS_W_STEP);
    st_strip_wait_older(odd);
    strips_add(type, acc, odd, at, rows, 1);
    st_strip_step(odd, x + 3 * STRIPS_X_STEP, w + 3 * STRIPS_W_STEP);
    st_strip_wait_older(even);
    strips_add(type, acc, even, at, rows, 2);
    st_strip_wait(odd);
    strips_add(type, acc, odd, at, rows, 3);
}

/* The first parts of a chunk that is not whole. */
INLINE void strips_rest(int type, float *acc, local const uchar *at, ulong x, ulong w, uint parts)
{
    KEEP_LOOP
    for (uint part = 0; part < parts; part++) {
        int sums[STRIP_SUMS];
        st_strip_step(sums, x + part * STRIPS_X_STEP, w + part * STRIPS_W_STEP);
        st_strip_wait(sums);
        strips_add(type, acc, sums, at, at + STRIPS_W(type), part);
    }
}

INLINE void strips_tiles(int type, local uchar *memory, const struct strips *a, global float *y, uint rows, uint total, uint ldy,
                         float scale)
{
    local ulong *full = (local ulong *)(memory + STRIPS_AT_PHASES(type)), *empty = full + STRIPS_SLOTS;
    const uint strip = st_item() / 128;
    const bool asks = st_item() == 128;
    const ulong w0 = st_strip_at(memory, ST_GEMM_OUT * 16), x0 = st_strip_at(memory + STRIPS_W(type) + strip * 64 * 128, 64 * 16);
    float acc[STRIP_SUMS];
    uint number = 0;
    for (uint i = 0; asks && i < STRIPS_SLOTS - 1; i++)
        strips_bring(type, memory, a, i);
    for (uint tile = st_group(); tile < a->tiles; tile += st_groups()) {
        UNROLL
        for (uint i = 0; i < STRIP_SUMS; i++)
            acc[i] = 0.0f;
        KEEP_LOOP
        for (uint chunk = 0; chunk < a->chunks; chunk++, number++) {
            const uint slot = number % STRIPS_SLOTS, left = a->n - chunk * 128;
            local const uchar *at = memory + slot * (STRIPS_W(type) + STRIPS_X(type));
            const ulong skip = (ulong)slot * (STRIPS_W(type) + STRIPS_X(type)) / 16;
            if (asks)
                strips_bring(type, memory, a, number + STRIPS_SLOTS - 1);
            st_phase_wait(full + slot, number / STRIPS_SLOTS % 2);
            if (left >= 128)
                strips_chunk(type, acc, at, x0 + skip, w0 + skip);
            else
                strips_rest(type, acc, at, x0 + skip, w0 + skip, left / 32);
            st_wave_barrier();
            if (st_item() % 32 == 0)
                st_phase_arrive(empty + slot);
        }
        st_strip_store(y, ldy, acc, tile % a->row_tiles * 128 + strip * 64, total, tile / a->row_tiles * ST_GEMM_OUT, rows, scale);
    }
}

INLINE void strips_run(int type, local uchar *memory, const struct strips *a, global float *y, uint rows, uint total, uint ldy,
                       float scale)
{
    local ulong *full = (local ulong *)(memory + STRIPS_AT_PHASES(type));
    if (st_item() == 0) {
        for (uint i = 0; i < STRIPS_SLOTS; i++) {
            st_phase_init(full + i, 1);
            st_phase_init(full + STRIPS_SLOTS + i, STRIPS_GROUP / 32);
        }
        st_phases_made();
    }
    st_barrier();
    strips_tiles(type, memory, a, y, rows, total, ldy, scale);
}

/* As GEMM_WIDE_KERNEL, but opened holds activation rows, then weights, both in strips, and a grid of any size shares the tiles. */
#define GEMM_STRIPS_KERNEL(name, type)                                                                                    \
    GROUPS_OF_A_UNIT(STRIPS_GROUP, 1)                                                                                     \
    KERNEL(STRIPS_GROUP)                                                                                                  \
    name(global float *restrict y, global const uchar *restrict opened, global const uchar *restrict x,                   \
         global const float *restrict scales, global const uchar *restrict w, uint number, uint n, uint rows,             \
         uint row_bytes, uint total, uint stride, uint ldy, uint scaled)                                                  \
    {                                                                                                                     \
        LOCAL_ARRAY(uint4, memory, STRIPS_BYTES(type) / 16);                                                              \
        struct strips a;                                                                                                  \
        a.rows = opened;                                                                                                  \
        a.weights = opened + ST_STRIPS_ROWS(n, total, PART_OFFSET(type));                                                 \
        a.n = n;                                                                                                          \
        a.chunks = (n + 127) / 128;                                                                                       \
        a.row_tiles = (total + 127) / 128;                                                                                \
        a.tiles = (rows + ST_GEMM_OUT - 1) / ST_GEMM_OUT * a.row_tiles;                                                   \
        strips_run(type, (local uchar *)memory, &a, y, rows, total, ldy, scaled ? scales[0] : 1.0f);                      \
        (void)x;                                                                                                          \
        (void)w;                                                                                                          \
        (void)number;                                                                                                     \
        (void)row_bytes;                                                                                                  \
        (void)stride;                                                                                                     \
    }

#endif
#endif
