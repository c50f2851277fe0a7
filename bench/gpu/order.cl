/* The same decode product with the float terms added in two orders, for measuring what the defined order costs.
 *
 * st_ordered_*: as shipped (product.h). st_free_*: a work-item adds the terms of its unit of columns at once, and the partial
 * sums of a row are added by several work-items in a tree, whatever order that gives. Everything else is equal.
 * One activation row, rows of one chunk, tiles of 4 (Q8_0) or 8 (Q2_0) rows of 2560 columns. */
#include "../../src/kernel/gpu/product.h"

#define ROW_STEP 41 /* floats from row to row of the partial sums */

INLINE void run_free(int type, local uint4 *tiles, local float *partial, const struct product *p, uint group,
                     global const uchar *w, global const uchar *x, global float *y)
{
    const uint item = st_item(), ahead = TILES(type) - 1, end = (p->rows + p->tile - 1) / p->tile;
    const uint unit = item % p->units, r = item / p->units, each = 128 / p->tile, out_row = item / each, part = item % each;
    uint a[32], slot = 0;
    int a_sums[4] = {0};
    float dx[4] = {0};
    struct part at, next;
    at.tile = group;
    at.matrix = at.from = 0;
    next = at;
    for (uint i = 0; i < ahead; i++) {
        if (next.tile < end) {
            stage(type, tiles + i * TILE_VECTORS(type), p, &next, w);
            advance(&next, p, 1);
        }
        st_copies_commit();
    }
    read_activations(type, x, p->n, unit, a, a_sums);
    UNROLL
    for (uint i = 0; i < UNIT_BLOCKS(type); i++)
        dx[i] = ((global const float *)(x + ST_Q8_SCALES(p->n)))[unit * UNIT_BLOCKS(type) + i];
    while (at.tile < end) {
        if (next.tile < end) {
            const uint free_slot = slot + ahead >= TILES(type) ? slot + ahead - TILES(type) : slot + ahead;
            stage(type, tiles + free_slot * TILE_VECTORS(type), p, &next, w);
            advance(&next, p, 1);
        }
        st_copies_commit();
        st_copies_wait(ahead);
        st_barrier();
        if (r < tile_rows(p, &at)) {
            uint words[32];
            int scale[2], min[2], out[4];
            float d[2], sum = 0.0f;
            read_unit(type, tiles + slot * TILE_VECTORS(type), p, &at, r, unit, words, scale, min, d);
            unit_sums(type, words, scale, min, a, a_sums, out);
            UNROLL
            for (uint i = 0; i < UNIT_BLOCKS(type); i++)
                sum = st_fma(d[i * 2 / UNIT_BLOCKS(type)] * dx[i], (float)out[i], sum);
            partial[r * ROW_STEP + unit] = sum;
        }
        st_barrier();
        float sum = 0.0f;
        if (out_row < tile_rows(p, &at))
            for (uint i = part; i < p->units; i += each)
                sum += partial[out_row * ROW_STEP + i];
        for (uint mask = each / 2; mask > 0; mask /= 2)
            sum += st_float_of(st_shuffle_xor(st_bits_of(sum), mask));
        if (part == 0 && out_row < tile_rows(p, &at))
            y[at.tile * p->tile + out_row] = sum;
        advance(&at, p, 1);
        slot = slot + 1 == TILES(type) ? 0 : slot + 1;
    }
}

#define FREE(name, type)                                                                                                  \
    KERNEL(GROUP) name(global float *restrict y, global const uchar *restrict w, global const uchar *restrict x, uint n,      \
                       uint rows, uint tile, uint groups)                                                                     \
    {                                                                                                                         \
        LOCAL_ARRAY(uint4, tiles, TILES(type) * TILE_VECTORS(type));                                                          \
        LOCAL_ARRAY(float, partial, 8 * ROW_STEP);                                                                            \
        const struct product p = describe(type, n, rows, tile, groups);                                                       \
        run_free(type, tiles, partial, &p, st_group(), w, x, y);                                                              \
    }

#define ORDERED(name, type)                                                                                               \
    KERNEL(GROUP) name(global float *restrict y, global const uchar *restrict w, global const uchar *restrict x, uint n,      \
                       uint rows, uint tile, uint groups)                                                                     \
    {                                                                                                                         \
        LOCAL_ARRAY(uint4, tiles, TILES(type) * TILE_VECTORS(type));                                                          \
        LOCAL_ARRAY(int4, sums, ST_SUM_VECTORS);                                                                              \
        LOCAL_ARRAY(float4, scales, ST_SUM_VECTORS);                                                                          \
        const struct product p = describe(type, n, rows, tile, groups);                                                       \
        run_product(type, 1, 1, tiles, sums, scales, &p, st_group(), w, w, x, ST_Q8_STRIDE(n), 0, 1, y, rows, 0);             \
    }

FREE(st_free_q8_0, Q8_0)
FREE(st_free_q2_0, Q2_0)
ORDERED(st_ordered_q8_0, Q8_0)
ORDERED(st_ordered_q2_0, Q2_0)
