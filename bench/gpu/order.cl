/* The same decode product with the float terms added in two orders, for measuring what the defined order costs.
 *
 * st_ordered_*: as shipped (product.h). st_free_*: a work-item adds the terms of its unit of columns at once, and the partial
 * sums of a row are added by several work-items in a tree, whatever order that gives. Everything else is equal.
 * One activation row, rows of one chunk, tiles of 4 (Q8_0) or 16 (Q2_0) rows of 2560 columns. */
#include "../../src/kernel/gpu/product.h"

#define ROW_STEP 41 /* floats from row to row of the partial sums */

INLINE void run_free(int type, local uint4 *tiles, local float *partial, const struct product *p, uint group,
                     global const uchar *w, global const uchar *x, global float *y)
{
    const uint item = st_item(), end = (p->rows + p->tile - 1) / p->tile, lanes = ITEMS / p->units;
    const uint number = item % p->units, row = item / p->units, each = 128 / p->tile, out_row = item / each, part = item % each;
    uint slot = 0;
    struct activations a;
    struct part at, next;
    at.tile = group;
    at.matrix = at.from = 0;
    next = at;
    for (uint i = 0; i + 1 < TILES; i++) {
        if (next.tile < end) {
            stage(type, true, 1, tiles + i * TILE_VECTORS(type, 1), p, &next, w);
            advance(&next, p, 1);
        }
        st_copies_commit();
    }
    if (row < lanes)
        read_activations(type, x, p->n, number, &a);
    while (at.tile < end) {
        st_copies_wait(0);
        st_barrier();
        if (next.tile < end) {
            const uint free_slot = slot == 0 ? TILES - 1 : slot - 1;
            stage(type, true, 1, tiles + free_slot * TILE_VECTORS(type, 1), p, &next, w);
            advance(&next, p, 1);
        }
        st_copies_commit();
        const uint rows = tile_rows(p, &at);
        if (row < lanes)
            for (uint r = row; r < rows; r += lanes) {
                struct unit u;
                float sum = 0.0f;
                read_unit(type, true, tiles + slot * TILE_VECTORS(type, 1), p, &at, r, number, &u);
                UNROLL
                for (uint i = 0; i < UNIT_BLOCKS(type); i++)
                    sum = st_fma(u.d[i * 2 / UNIT_BLOCKS(type)] * a.d[i],
                                 (float)dot8(u.w + 8 * i, a.q + 8 * i, type == Q2_0 ? -a.sums[i] : 0), sum);
                partial[r * ROW_STEP + number] = sum;
            }
        st_barrier();
        float sum = 0.0f;
        if (item < 128 && out_row < rows)
            for (uint i = part; i < p->units; i += each)
                sum += partial[out_row * ROW_STEP + i];
        for (uint mask = each / 2; mask > 0; mask /= 2)
            sum += st_float_of(st_shuffle_xor(st_bits_of(sum), mask));
        if (item < 128 && part == 0 && out_row < rows)
            y[at.tile * p->tile + out_row] = sum;
        advance(&at, p, 1);
        slot = slot + 1 == TILES ? 0 : slot + 1;
    }
}

#define FREE(name, type)                                                                                                  \
    KERNEL(GROUP) name(global float *restrict y, global const uchar *restrict w, global const uchar *restrict x, uint n,      \
                       uint rows, uint tile, uint groups)                                                                     \
    {                                                                                                                         \
        LOCAL_ARRAY(uint4, tiles, TILES * TILE_VECTORS(type, 1));                                                                 \
        LOCAL_ARRAY(float, partial, 16 * ROW_STEP);                                                                           \
        const struct product p = describe(type, n, rows, tile, groups);                                                       \
        run_free(type, tiles, partial, &p, st_group(), w, x, y);                                                              \
    }

#define ORDERED(name, type)                                                                                               \
    KERNEL(GROUP) name(global float *restrict y, global const uchar *restrict w, global const uchar *restrict x, uint n,      \
                       uint rows, uint tile, uint groups)                                                                     \
    {                                                                                                                         \
        PRODUCT_MEMORY(type, 1);                                                                                              \
        const struct product p = describe(type, n, rows, tile, groups);                                                       \
        run_product(type, 1, tiles, terms, kept, &p, st_group(), w, x, ST_Q8_STRIDE(n), 1, y, rows);                         \
    }

FREE(st_free_q8_0, Q8_0)
FREE(st_free_q2_0, Q2_0)
ORDERED(st_ordered_q8_0, Q8_0)
ORDERED(st_ordered_q2_0, Q2_0)
