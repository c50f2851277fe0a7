/* Large prompt products of types of 256 elements where four waves multiply strips (warpgroups.h), with the arithmetic of
 * docs/numerics.md to the bit.
 *
 * Within a block of 256 a weight times its scale is an integer below 2^13: two signed digits, 128 high + low (layout.h, "folded
 * weights"). So a block's exact sum is that of two plain products over 256 columns, and nothing is scaled but once for a block:
 * twice the work for the matrix units, an eighth of the instructions.
 *
 * A group has tiles of FOLD_ROWS activation rows times 128 weight rows, one after the other. Three times 128 work-items
 * have a strip of 64 activation rows each; the last 128 only ask for copies. High digits of a block come first: the sums are
 * multiplied by 128 and the low digits' products are added to them, so an output takes two registers. The strips take turns at the
 * matrix units: while one multiplies, another adds its block to the float accumulators.
 * Limit: matrix units (4 operations for each weight and row, at twice the rate of st_tile_multiply). */
#ifndef ST_GEMM_FOLD_H
#define ST_GEMM_FOLD_H

#include "opened.h"
#include "warpgroups.h"

#if ST_FOLDED

#define FOLD_STRIPS (ST_FOLD_ROWS / 64)
#define FOLD_GROUP ((FOLD_STRIPS + 1) * 128)
#define FOLD_PART(type) ST_FOLD_PART(PART_MIN(type))
#define FOLD_BLOCK(type) ST_FOLD_BLOCK(PART_MIN(type))
#define FOLD_DIGITS (ST_GEMM_OUT * 256)                      /* bytes of one digit of a block */
#define FOLD_SIDE(type) (FOLD_BLOCK(type) - 2 * FOLD_DIGITS) /* d, dmin, minima */
/* Local memory: two blocks of activations for each strip, the high and the low digits of a block, what stands behind them of two
 * blocks, barriers. */
#define FOLD_AT_DIGITS(type) (FOLD_STRIPS * 2 * FOLD_PART(type))
#define FOLD_AT_SIDE(type) (FOLD_AT_DIGITS(type) + 2 * FOLD_DIGITS)
#define FOLD_AT_PHASES(type) (FOLD_AT_SIDE(type) + 2 * FOLD_SIDE(type))
#define FOLD_BYTES(type) (FOLD_AT_PHASES(type) + (6 + 4 * FOLD_STRIPS) * 8)

struct fold_phases { /* full: copies are there; empty: everybody has read them */
    local ulong *full, *empty, *side_empty; /* of the digits, [2]; what is behind them comes with the low digits */
    local ulong *rows_full, *rows_empty;    /* of each strip, [2] */
};

struct fold {
    global const uchar *rows, *weights; /* folded */
    uint blocks, row_tiles, tiles;
};

INLINE struct fold_phases fold_phases(int type, local uchar *memory)
{
    struct fold_phases p;
    p.full = (local ulong *)(memory + FOLD_AT_PHASES(type));
    p.empty = p.full + 2;
    p.side_empty = p.full + 4;
    p.rows_full = p.full + 6;
    p.rows_empty = p.rows_full + 2 * FOLD_STRIPS;
    return p;
}

/* The work-item that asks for copies, in the order in which they are used. */
INLINE void fold_bring(int type, local uchar *memory, const struct fold *a)
{
    const struct fold_phases p = fold_phases(type, memory);
    uint number = 0; /* of the block, counted through all tiles */
    for (uint tile = st_group(); tile < a->tiles; tile += st_groups()) {
        global const uchar *w = a->weights + (ulong)(tile / a->row_tiles) * a->blocks * FOLD_BLOCK(type);
        for (uint block = 0; block < a->blocks; block++, number++, w += FOLD_BLOCK(type)) {
            const uint two = number % 2, parity = number / 2 % 2 ^ 1;
            for (uint s = 0; s < FOLD_STRIPS; s++) {
                st_phase_wait(p.rows_empty + 2 * s + two, parity);
                st_phase_expect(p.rows_full + 2 * s + two, FOLD_PART(type));
                st_bulk_copy(memory + (2 * s + two) * FOLD_PART(type),
                             a->rows + ((ulong)(tile % a->row_tiles * FOLD_STRIPS + s) * a->blocks + block) * FOLD_PART(type),
                             FOLD_PART(type), p.rows_full + 2 * s + two);
            }
            for (uint digit = 0; digit < 2; digit++) {
                st_phase_wait(p.empty + digit, number % 2 ^ 1);
                st_phase_expect(p.full + digit, FOLD_DIGITS + (digit ? FOLD_SIDE(type) : 0));
                st_bulk_copy(memory + FOLD_AT_DIGITS(type) + digit * FOLD_DIGITS, w + digit * FOLD_DIGITS, FOLD_DIGITS,
                             p.full + digit);
            }
            st_phase_wait(p.side_empty + two, parity);
            st_bulk_copy(memory + FOLD_AT_SIDE(type) + two * FOLD_SIDE(type), w + 2 * FOLD_DIGITS, FOLD_SIDE(type), p.full + 1);
        }
    }
}

/* Adds a block to the accumulators. rows: its activations (layout.h), side: d, dmin and minima of the weight rows. */
INLINE void fold_add(int type, float *acc, const int *sums, local const uchar *rows, local const uchar *side)
{
    const uint item = st_item() % 128, lane = item % 32, row = item / 32 * 16 + lane / 4;
    local const float *d = (local const float *)(rows + 64 * 256);
    const float d0 = d[row], d1 = d[row + 8];
    uint4 pairs = {0, 0, 0, 0};
    if (PART_MIN(type))
        pairs = ((local const uint4 *)(rows + 64 * 260))[item];
    UNROLL
    for (uint i = 0; i < STRIP_SUMS; i += 4) {
        const uint column = i * 2 + lane % 4 * 2;
        uint4 w = {0, 0, 0, 0};
        if (PART_MIN(type)) {
            w = *(local const uint4 *)(side + column * 8);
        } else {
            const uint2 two = *(local const uint2 *)(side + column * 4);
            w.x = two.x;
            w.y = two.y;
        }
        const float w0 = st_float_of(w.x), w1 = st_float_of(w.y);
        acc[i] = st_fma(w0 * d0, (float)sums[i], acc[i]);
        acc[i + 1] = st_fma(w1 * d0, (float)sums[i + 1], acc[i + 1]);
        acc[i + 2] = st_fma(w0 * d1, (float)sums[i + 2], acc[i + 2]);
        acc[i + 3] = st_fma(w1 * d1, (float)sums[i + 3], acc[i + 3]);
        if (!PART_MIN(type))
            continue;
        const uint minima = *(local const uint *)(side + ST_GEMM_OUT * 8 + (i * 2 + lane / 4) * 16 + lane % 4 * 4);
        const float m0 = -st_float_of(w.z), m1 = -st_float_of(w.w);
        int upper[4], lower[4];
        st_strip_small(upper, pairs.x, pairs.y, minima, 0);
        st_strip_small(lower, pairs.z, pairs.w, minima, 0x4b400000); /* 1.5 * 2^23: the sum's float is exact behind it */
        const float x = 12582912.0f;
        acc[i] = st_fma(m0 * d0, st_float_of(upper[0] * ST_PAIR + lower[0]) - x, acc[i]);
        acc[i + 1] = st_fma(m1 * d0, st_float_of(upper[1] * ST_PAIR + lower[1]) - x, acc[i + 1]);
        acc[i + 2] = st_fma(m0 * d1, st_float_of(upper[2] * ST_PAIR + lower[2]) - x, acc[i + 2]);
        acc[i + 3] = st_fma(m1 * d1, st_float_of(upper[3] * ST_PAIR + lower[3]) - x, acc[i + 3]);
    }
}

struct fold_out {
    global float *y;
    uint rows, total, ldy;
    float scale;
};

INLINE void fold_strip(int type, local uchar *memory, const struct fold *a, const struct fold_out *to)
{
    const struct fold_phases p = fold_phases(type, memory);
    const uint strip = st_item() / 128, turn = 1 + strip, next = 1 + (strip + 1) % FOLD_STRIPS;
    const bool speaker = st_item() % 32 == 0;
    const ulong high = st_strip_at(memory + FOLD_AT_DIGITS(type), ST_GEMM_OUT * 16);
    int sums[STRIP_SUMS];
    float acc[STRIP_SUMS];
    uint number = 0;
    if (strip == FOLD_STRIPS - 1)
        st_turn_pass(next);
    for (uint tile = st_group(); tile < a->tiles; tile += st_groups()) {
        UNROLL
        for (uint i = 0; i < STRIP_SUMS; i++)
            acc[i] = 0.0f;
        KEEP_LOOP
        for (uint block = 0; block < a->blocks; block++, number++) {
            const uint two = number % 2, parity = number / 2 % 2;
            local const uchar *rows = memory + (2 * strip + two) * FOLD_PART(type);
            const ulong x = st_strip_at(rows, 64 * 16);
            st_phase_wait(p.rows_full + 2 * strip + two, parity);
            st_turn_wait(turn);
            st_phase_wait(p.full, number % 2);
            st_strip_first(sums, x, high, 64 * 16, ST_GEMM_OUT * 16);
            st_turn_pass(next);
            st_strip_wait(sums);
            if (speaker)
                st_phase_arrive(p.empty);
            UNROLL
            for (uint i = 0; i < STRIP_SUMS; i++)
                sums[i] = (int)((uint)sums[i] << 7);
            st_turn_wait(turn);
            st_phase_wait(p.full + 1, number % 2);
            st_strip_more(sums, x, high + FOLD_DIGITS / 16, 64 * 16, ST_GEMM_OUT * 16);
            st_turn_pass(next);
            st_strip_wait(sums);
            if (speaker)
                st_phase_arrive(p.empty + 1);
            fold_add(type, acc, sums, rows, memory + FOLD_AT_SIDE(type) + two * FOLD_SIDE(type));
            st_wave_barrier();
            if (speaker) {
                st_phase_arrive(p.rows_empty + 2 * strip + two);
                st_phase_arrive(p.side_empty + two);
            }
        }
        st_strip_store(to->y, to->ldy, acc, tile % a->row_tiles * ST_FOLD_ROWS + strip * 64, to->total,
                       tile / a->row_tiles * ST_GEMM_OUT, to->rows, to->scale);
    }
    if (strip == 0)
        st_turn_wait(turn);
}

INLINE void fold_run(int type, local uchar *memory, const struct fold *a, const struct fold_out *to)
{
    const struct fold_phases p = fold_phases(type, memory);
    if (st_item() == 0) {
        for (uint i = 0; i < 2; i++) {
            st_phase_init(p.full + i, 1);
            st_phase_init(p.empty + i, FOLD_STRIPS * 4);
            st_phase_init(p.side_empty + i, FOLD_STRIPS * 4);
        }
        for (uint i = 0; i < 2 * FOLD_STRIPS; i++) {
            st_phase_init(p.rows_full + i, 1);
            st_phase_init(p.rows_empty + i, 4);
        }
        st_phases_made();
    }
    st_barrier();
    if (st_item() / 128 == FOLD_STRIPS) {
        st_registers_few();
        if (st_item() % 128 == 0)
            fold_bring(type, memory, a);
    } else {
        st_registers_many();
        fold_strip(type, memory, a, to);
    }
}

/* As GEMM_WIDE_KERNEL, but opened holds folded activation rows, then folded weights, and a grid of any size shares the tiles. */
#define GEMM_FOLD_KERNEL(name, type)                                                                                      \
    GROUPS_OF_A_UNIT(FOLD_GROUP, 1)                                                                                       \
    KERNEL(FOLD_GROUP)                                                                                                    \
    name(global float *restrict y, global const uchar *restrict opened, global const uchar *restrict x,                   \
         global const float *restrict scales, global const uchar *restrict w, uint number, uint n, uint rows,             \
         uint row_bytes, uint total, uint stride, uint ldy, uint scaled)                                                  \
    {                                                                                                                     \
        LOCAL_ARRAY(uint4, memory, FOLD_BYTES(type) / 16);                                                                \
        const struct fold_out to = {y, rows, total, ldy, scaled ? scales[0] : 1.0f};                                      \
        struct fold a;                                                                                                    \
        a.rows = opened;                                                                                                  \
        a.weights = opened + ST_FOLD_X(n, total, PART_MIN(type));                                                         \
        a.blocks = n / 256;                                                                                               \
        a.row_tiles = (total + ST_FOLD_ROWS - 1) / ST_FOLD_ROWS;                                                          \
        a.tiles = (rows + ST_GEMM_OUT - 1) / ST_GEMM_OUT * a.row_tiles;                                                   \
        fold_run(type, (local uchar *)memory, &a, &to);                                                                   \
        (void)x;                                                                                                          \
        (void)w;                                                                                                          \
        (void)number;                                                                                                     \
        (void)row_bytes;                                                                                                  \
        (void)stride;                                                                                                     \
    }

#endif
#endif
