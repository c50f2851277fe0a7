/* The same decode product with the float terms added in two orders, for measuring what the defined order costs.
 *
 * ordered: as shipped (product.h). free: a work-item adds the terms of its unit of columns at once, and the partial sums of a
 * row are added by several work-items in a tree, whatever order that gives. Everything else is equal. */
#include "../../src/kernel/gpu/product.h"

#define MAX_UNITS 40

INLINE void multiply_free(int type, local const uint4 *tile, local float *partial, const struct product *p, const struct chunk *c,
                          global const uchar *x)
{
    const uint blocks = UNIT_BLOCKS(type), units = c->blocks / blocks, lanes = GROUP / units;
    const uint unit = st_item() % units, lane = st_item() / units;
    if (lane >= lanes)
        return;
    uint a[32];
    int a_sums[4];
    float dx[4];
    read_activations(type, x, p->n, unit, blocks, a, a_sums);
    UNROLL
    for (uint i = 0; i < blocks; i++)
        dx[i] = ((global const float *)(x + ST_Q8_SCALES(p->n)))[unit * blocks + i];
    for (uint r = lane; r < p->rows; r += lanes) {
        uint w[32];
        int scale[2], min[2], out[4];
        float d[2], sum = 0.0f;
        read_unit(type, tile, p, c, r, unit, w, scale, min, d);
        unit_sums(type, w, scale, min, a, a_sums, out);
        UNROLL
        for (uint i = 0; i < blocks; i++)
            sum = st_fma(d[i * 2 / blocks] * dx[i], (float)out[i], sum);
        partial[r * (MAX_UNITS + 1) + unit] = sum;
    }
}

#define FREE(name, type)                                                                                                  \
    KERNEL(GROUP) name(global float *restrict y, global const uchar *restrict w, global const uchar *restrict x, uint n,      \
                       uint rows, uint tile)                                                                                  \
    {                                                                                                                         \
        LOCAL_ARRAY(uint4, bytes, ST_TILE_VECTORS((type) == Q8_0, (type) == Q2_0, 1));                                        \
        LOCAL_ARRAY(float, partial, ST_TILE_ROWS((type) == Q8_0, 1) * (MAX_UNITS + 1));                                       \
        const uint first = st_group() * tile, item = st_item();                                                               \
        struct product p;                                                                                                     \
        p.n = n;                                                                                                              \
        p.row_bytes = BLOCKS_BYTES(type, n / 32);                                                                             \
        p.rows = p.split = rows - first < tile ? rows - first : tile;                                                         \
        p.first = p.second = w + (ulong)first * p.row_bytes;                                                                  \
        struct chunk c;                                                                                                       \
        c.from = 0;                                                                                                           \
        c.blocks = n / 32;                                                                                                    \
        c.step = p.row_bytes;                                                                                                 \
        c.second = c.vectors = 0;                                                                                             \
        stage(bytes, &p, &c, type);                                                                                           \
        st_barrier();                                                                                                         \
        multiply_free(type, bytes, partial, &p, &c, x);                                                                       \
        st_barrier();                                                                                                         \
        const uint each = GROUP / tile, r = item / each, part = item % each;                                                  \
        float sum = 0.0f;                                                                                                     \
        if (r < p.rows)                                                                                                       \
            for (uint i = part; i < c.blocks / UNIT_BLOCKS(type); i += each)                                                  \
                sum += partial[r * (MAX_UNITS + 1) + i];                                                                      \
        for (uint mask = each / 2; mask > 0; mask /= 2)                                                                       \
            sum += st_float_of(st_shuffle_xor(st_bits_of(sum), mask));                                                        \
        if (part == 0 && r < p.rows)                                                                                          \
            y[first + r] = sum;                                                                                               \
    }

#define ORDERED(name, type)                                                                                               \
    KERNEL(GROUP) name(global float *restrict y, global const uchar *restrict w, global const uchar *restrict x, uint n,      \
                       uint rows, uint tile)                                                                                  \
    {                                                                                                                         \
        LOCAL_ARRAY(uint4, bytes, ST_TILE_VECTORS((type) == Q8_0, (type) == Q2_0, 1));                                        \
        LOCAL_ARRAY(int4, sums, ST_SUM_VECTORS((type) == Q8_0, 1));                                                           \
        LOCAL_ARRAY(float4, scales, ST_SCALE_VECTORS((type) == Q8_0, 1));                                                     \
        const uint first = st_group() * tile, item = st_item();                                                               \
        struct product p;                                                                                                     \
        p.n = n;                                                                                                              \
        p.row_bytes = BLOCKS_BYTES(type, n / 32);                                                                             \
        p.rows = p.split = rows - first < tile ? rows - first : tile;                                                         \
        p.first = p.second = w + (ulong)first * p.row_bytes;                                                                  \
        const float v = multiply_tile(type, 1, bytes, sums, scales, &p, x, ST_Q8_STRIDE(n), 0, 1);                            \
        if (item < p.rows)                                                                                                    \
            y[first + item] = v;                                                                                              \
    }

FREE(st_free_q8_0, Q8_0)
FREE(st_free_q2_0, Q2_0)
ORDERED(st_ordered_q8_0, Q8_0)
ORDERED(st_ordered_q2_0, Q2_0)
