/* Opens the weights of a matrix once for all activation rows of a prompt: signed bytes and scales in the order in which
 * gemm_wide.h copies them (layout.h, "opened weights"), or as digits of the scaled weights for gemm_fold.h ("folded weights").
 *
 * A group of 256 work-items opens 256 columns of a tile of weight rows, 32 rows at a time; eight neighbouring work-items have the
 * eight parts of a row. Limit: bytes written (one for a weight and its share of scales). */
#ifndef ST_OPENED_H
#define ST_OPENED_H

#ifndef ST_HOST
#define PART_SPACE global
#endif
#include "layout.h"
#include "open.h"

#define OPENED_GROUP 256
#define OPENED_AT(type, step) \
    ST_OPENED_AT(step, PART_HALVES(type), PART_OFFSET(type), PART_LARGE(type), PART_MIN(type))
#define OPENED_STEP(type) ST_OPENED_STEP(PART_HALVES(type), PART_OFFSET(type))

/* Sixteen weights times their scale: high digits, low digits. */
INLINE void opened_digits(global uchar *high, global uchar *low, const uint *w, int scale)
{
    uint h[4], l[4];
    UNROLL
    for (uint i = 0; i < 4; i++) {
        h[i] = l[i] = 0;
        UNROLL
        for (uint j = 0; j < 4; j++) {
            const int v = (int)(signed char)(w[i] >> 8 * j) * scale, digit = (v + 64) >> 7;
            h[i] |= ((uint)digit & 255) << 8 * j;
            l[i] |= ((uint)v & 127) << 8 * j;
        }
        l[i] |= (l[i] & 0x40404040u) << 1; /* the sign of seven bits */
    }
    const uint4 upper = {h[0], h[1], h[2], h[3]}, lower = {l[0], l[1], l[2], l[3]};
    *(global uint4 *)high = upper;
    *(global uint4 *)low = lower;
}

/* Part `number` of row `row` of a tile of folded weights. */
INLINE void opened_fold(int type, global uchar *tile, const struct part *a, uint row, uint number)
{
    const uint digits = ST_GEMM_OUT * 256, k = number % 8;
    global uchar *block = tile + (ulong)(number / 8) * ST_FOLD_BLOCK(PART_MIN(type)), *side = block + 2 * digits;
    UNROLL
    for (uint h = 0; h < 2; h++) {
        global uchar *to = block + (2 * k + h) * ST_GEMM_OUT * 16 + row * 16;
        opened_digits(to, to + digits, a->w + 4 * h, a->scale[h]);
    }
    if (k == 0) {
        global float *d = (global float *)side + (PART_MIN(type) ? row / 2 * 4 + row % 2 : row);
        d[0] = a->d[0];
        if (PART_MIN(type))
            d[2] = a->m;
    }
    if (PART_MIN(type)) {
        global uchar *min = side + ST_GEMM_OUT * 8 + row * 16 + k * 2;
        min[0] = (uchar)a->min[0];
        min[1] = (uchar)a->min[1];
    }
}

/* Part `number` of row `row` of a tile in strips. */
INLINE void opened_strip(int type, global uchar *tile, const struct part *a, uint row, uint number)
{
    const uint k = number % 4;
    global uchar *chunk = tile + (ulong)(number / 4) * ST_STRIPS_W(PART_OFFSET(type)), *to = chunk + 2 * k * ST_GEMM_OUT * 16 + row * 16;
    global float *scales = (global float *)(chunk + ST_GEMM_OUT * 128) + k * ST_GEMM_OUT + row;
    const uint4 first = {a->w[0], a->w[1], a->w[2], a->w[3]}, second = {a->w[4], a->w[5], a->w[6], a->w[7]};
    *(global uint4 *)to = first;
    *(global uint4 *)(to + ST_GEMM_OUT * 16) = second;
    scales[0] = a->d[0];
    if (PART_OFFSET(type))
        scales[4 * ST_GEMM_OUT] = a->m;
}

/* Bytes of a tile. */
INLINE ulong opened_bytes(int type, uint n)
{
    if (ST_FOLDED && PART_LARGE(type))
        return (ulong)(n / 256) * ST_FOLD_BLOCK(PART_MIN(type));
    if (ST_FOLDED && !PART_HALVES(type))
        return (ulong)((n + 127) / 128) * ST_STRIPS_W(PART_OFFSET(type));
    return OPENED_AT(type, (n + 63) / 64);
}

/* Part `number` of row `row` of a tile. */
INLINE void opened_put(int type, global uchar *tile, const struct part *a, uint row, uint number)
{
    if (ST_FOLDED && PART_LARGE(type)) {
        opened_fold(type, tile, a, row, number);
        return;
    }
    if (ST_FOLDED && !PART_HALVES(type)) {
        opened_strip(type, tile, a, row, number);
        return;
    }
    const uint step = number / 2, side = number % 2, halves = PART_HALVES(type) ? 2 : 1;
    global uchar *to = tile + OPENED_AT(type, step);
    global uint4 *bytes = (global uint4 *)(to + row * 64 + side * 32);
    const uint4 low = {a->w[0], a->w[1], a->w[2], a->w[3]}, high = {a->w[4], a->w[5], a->w[6], a->w[7]};
    bytes[0] = low;
    bytes[1] = high;
    global uint *scales = (global uint *)(to + ST_GEMM_OUT * 64) + row;
    UNROLL
    for (uint h = 0; h < halves; h++)
        scales[(side * halves + h) * ST_GEMM_OUT] = PART_LARGE(type) ? (uint)a->scale[h] : st_bits_of(a->d[h]);
    if (PART_OFFSET(type))
        scales[(2 + side) * ST_GEMM_OUT] = st_bits_of(a->m);
    if (!PART_LARGE(type))
        return;
    global uchar *block = tile + OPENED_AT(type, step / 4 * 4 + 3) + OPENED_STEP(type);
    if (number % 8 == 0) {
        ((global float *)block)[row] = a->d[0];
        if (PART_MIN(type))
            ((global float *)block)[ST_GEMM_OUT + row] = a->m;
    }
    if (PART_MIN(type)) {
        global uchar *min = block + ST_GEMM_OUT * 8 + row * 16 + number % 8 * 2;
        min[0] = (uchar)a->min[0];
        min[1] = (uchar)a->min[1];
    }
}

/* opened: the tiles of the rows x n matrix at w. grid: (ceil(n / 256), tiles). Rows past the end are those of the last one. */
INLINE void opened_tile(int type, local uint *grid, global uchar *opened, global const uchar *w, uint n, uint rows, uint row_bytes)
{
    const uint item = st_item(), number = st_group() * 8 + item % 8;
    global uchar *tile = opened + st_group_y() * opened_bytes(type, n);
    if (PART_GRID(type)) {
        part_load_grid(type, grid, OPENED_GROUP);
        st_barrier();
    }
    if (number >= n / 32)
        return;
    for (uint row = item / 8; row < ST_GEMM_OUT; row += OPENED_GROUP / 8) {
        const uint from = st_group_y() * ST_GEMM_OUT + row;
        struct part a;
        part_open(type, &a, w + (ulong)(from < rows ? from : rows - 1) * row_bytes, grid, number);
        opened_put(type, tile, &a, row, number);
    }
}

#define OPENED(name, type)                                                                                                \
    KERNEL(OPENED_GROUP)                                                                                                  \
    name(global uchar *restrict opened, global const uchar *restrict w, uint n, uint rows, uint row_bytes)                \
    {                                                                                                                     \
        LOCAL_ARRAY(uint, grid, GRID_WORDS(type));                                                                        \
        opened_tile(type, grid, opened, w, n, rows, row_bytes);                                                           \
    }

#endif
