/* The body of every decode product: up to 8 activation rows times a tile of weight rows, with exact integer sums per
 * 32-element block and one float accumulator per output in ascending block order (docs/numerics.md), so that every device
 * and the C reference give the same bits.
 *
 * A group of 128 work-items works on a tile of rows in three steps per chunk of columns:
 *  1. the tile's bytes come to local memory by 16-byte copies, neighbours copying neighbours (a whole tile is one stretch of
 *     memory when the chunk is the whole row);
 *  2. a work-item owns one unit of columns: it keeps the unit's activations in registers and multiplies them with that unit
 *     of several rows. A unit is a pair of blocks, an odd number of 32-bit words, so that neighbours read different banks;
 *     Q4_K: a quarter of a block, read as 16-byte vectors. Integer sums and block scales go to local memory;
 *  3. one work-item per output adds the terms in order, four blocks per read.
 * Limit: device memory for one row, local memory traffic from about 4 rows on.
 *
 * Weight rows are the blocks of the file. A matrix starts at a multiple of 16 bytes and can be read up to the next one after
 * its end. */
#ifndef ST_PRODUCT_H
#define ST_PRODUCT_H

#include "dialect.h"
#include "layout.h"

#define GROUP 128

#define Q8_0 0
#define Q2_0 1
#define IQ4_NL 2
#define Q4_K 3

/* Bytes of a unit, its words of four weights, and its 32-element blocks. */
#define UNIT_BYTES(type) ((type) == Q8_0 ? 68 : 36)
#define UNIT_WORDS(type) ((type) == Q2_0 ? 32 : 16)
#define UNIT_BLOCKS(type) (UNIT_WORDS(type) / 8)
#define BLOCKS_BYTES(type, blocks) ((blocks) * ((type) == Q8_0 ? 34 : (type) == Q2_0 ? 9 : 18))


struct product {
    uint n, row_bytes;
    uint rows;  /* of the tile, both matrices together */
    uint split; /* rows below it are of the first matrix */
    global const uchar *first, *second; /* tile rows of the first and of the second matrix */
};

struct chunk {
    uint from, blocks; /* 32-element blocks */
    uint step;         /* bytes from row to row in local memory */
    uint second;       /* where the second matrix starts there */
    uint vectors;      /* 16-byte vectors from row to row of sums and of scales: an odd number, so that rows differ in banks */
};

/* A tile row's number inside its matrix. */
INLINE uint own_row(const struct product *p, uint r)
{
    return r < p->split ? r : r - p->split;
}

/* Bytes by which a row's chunk is behind the 16-byte boundary before it. */
INLINE uint row_slack(const struct product *p, const struct chunk *c, int type, uint r)
{
    if (c->blocks * 32 == p->n)
        return 0;
    return (own_row(p, r) * p->row_bytes + BLOCKS_BYTES(type, c->from)) & 15;
}

/* Step 1. */
INLINE void stage(local uint4 *tile, const struct product *p, const struct chunk *c, int type)
{
    const uint item = st_item();
    if (c->blocks * 32 == p->n) {
        const uint vectors = (p->split * p->row_bytes + 15) / 16;
        global const uint4 *from = (global const uint4 *)p->first;
        UNROLL_COPIES
        for (uint i = item; i < vectors; i += GROUP)
            st_copy_issue(tile + i, from + i);
        if (p->rows > p->split) {
            const uint more = ((p->rows - p->split) * p->row_bytes + 15) / 16;
            global const uint4 *other = (global const uint4 *)p->second;
            local uint4 *to = tile + c->second / 16;
            UNROLL_COPIES
            for (uint i = item; i < more; i += GROUP)
                st_copy_issue(to + i, other + i);
        }
    } else {
        /* 32 work-items per row */
        for (uint r = item / 32; r < p->rows; r += GROUP / 32) {
            const uint at = own_row(p, r) * p->row_bytes + BLOCKS_BYTES(type, c->from), slack = at & 15;
            global const uint4 *from = (global const uint4 *)((r < p->split ? p->first : p->second) + (at - slack));
            local uint4 *to = tile + ((r < p->split ? 0 : c->second) + own_row(p, r) * c->step) / 16;
            const uint vectors = (slack + BLOCKS_BYTES(type, c->blocks) + 15) / 16;
            UNROLL_COPIES
            for (uint i = item % 32; i < vectors; i += 32)
                st_copy_issue(to + i, from + i);
        }
    }
    st_copies_done();
}

/* count words from a place that is a multiple of 4 bytes (aligned) or only of 2. */
INLINE void read_words(uint *w, local const uchar *at, uint count, bool aligned)
{
    if (aligned) {
        UNROLL
        for (uint i = 0; i < count; i++)
            w[i] = ((local const uint *)at)[i];
    } else {
        UNROLL
        for (uint i = 0; i < count; i++)
            w[i] = ((local const ushort *)at)[2 * i] | (uint)((local const ushort *)at)[2 * i + 1] << 16;
    }
}

/* A pair of blocks as words of four weights each, and their scales (two). Words: 17 (Q8_0) or 9. */
INLINE void open_pair(int type, const uint *raw, uint *w, float *scales)
{
    if (type == Q8_0) {
        scales[0] = st_float_of_half((ushort)raw[0]);
        scales[1] = st_float_of_half((ushort)(raw[8] >> 16));
        UNROLL
        for (uint i = 0; i < 8; i++) {
            w[i] = st_word16(raw[i], raw[i + 1]);
            w[8 + i] = raw[9 + i];
        }
        return;
    }
    uint q[8]; /* the 16 bytes of both blocks */
    scales[0] = st_float_of_half((ushort)raw[0]);
    scales[1] = st_float_of_half((ushort)(raw[4] >> 16));
    UNROLL
    for (uint i = 0; i < 4; i++) {
        q[i] = st_word16(raw[i], raw[i + 1]);
        q[4 + i] = raw[5 + i];
    }
    if (type == Q2_0) {
        UNROLL
        for (uint i = 0; i < 32; i++)
            w[i] = (q[i / 4] >> (i % 4 * 2)) & 0x03030303u;
    } else { /* IQ4_NL */
        UNROLL
        for (uint i = 0; i < 16; i++)
            w[i] = st_lookup16((q[i / 8 * 4 + i % 4] >> (i % 8 / 4 * 4)) & 0x0f0f0f0fu, 0xbfad9881u, 0xf6eaddcfu, 0x26190d01u,
                               0x71594535u);
    }
}

/* Q4_K: quarter j of the block whose 16-byte head and 32 bytes are given: w[0..7] are the weights of sub-block 2 j, w[8..15]
 * those of sub-block 2 j + 1; six-bit scales and minima of both. */
INLINE void open_quarter(uint4 head, uint4 low, uint4 high, uint j, uint *w, int *scale, int *min)
{
    const uint q[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    UNROLL
    for (uint i = 0; i < 8; i++) {
        w[i] = q[i] & 0x0f0f0f0fu;
        w[8 + i] = (q[i] >> 4) & 0x0f0f0f0fu;
    }
    /* bytes sc[0..3], sc[4..7], sc[8..11] in head.y, .z, .w */
    const uint shift = j % 2 * 16;
    uint s, m;
    if (j < 2) {
        s = (head.y >> shift) & 0x3f3fu;
        m = (head.z >> shift) & 0x3f3fu;
    } else {
        s = ((head.w >> shift) & 0x0f0fu) | (((head.y >> shift) & 0xc0c0u) >> 2);
        m = (((head.w >> shift) >> 4) & 0x0f0fu) | (((head.z >> shift) & 0xc0c0u) >> 2);
    }
    scale[0] = (int)(s & 0xff);
    scale[1] = (int)(s >> 8);
    min[0] = (int)(m & 0xff);
    min[1] = (int)(m >> 8);
}

INLINE int dot8(const uint *w, const uint *a)
{
    int sum = 0;
    UNROLL
    for (uint i = 0; i < 8; i++)
        sum = st_dot4(w[i], a[i], sum);
    return sum;
}

/* The activations of one unit: UNIT_WORDS words, and the sums of its blocks' q where the type needs them. */
INLINE void read_activations(int type, global const uchar *x, uint n, uint unit, uint last, uint *a, int *sums)
{
    const uint first = unit * UNIT_WORDS(type) * 4;
    global const uint4 *q = (global const uint4 *)(x + (type == Q2_0 ? ST_Q8_TRANSPOSED(n) : 0) + first);
    UNROLL
    for (uint i = 0; i < UNIT_WORDS(type) / 4; i++) {
        if (i / 2 < last) {
            const uint4 v = q[i];
            a[4 * i] = v.x;
            a[4 * i + 1] = v.y;
            a[4 * i + 2] = v.z;
            a[4 * i + 3] = v.w;
        } else {
            a[4 * i] = a[4 * i + 1] = a[4 * i + 2] = a[4 * i + 3] = 0;
        }
    }
    if (type == Q2_0 || type == Q4_K) {
        global const int *s = (global const int *)(x + (type == Q2_0 ? ST_Q8_SUMS(n) : ST_Q8K_SUMS(n)) + first / 8);
        UNROLL
        for (uint i = 0; i < UNIT_BLOCKS(type); i++)
            sums[i] = i < last ? s[i] : 0;
    }
}

/* The sums of one unit of one row with one activation row: one per 32-element block (Q4_K: the weighted sum of the quarter,
 * then the sum of its minima). */
INLINE void unit_sums(int type, const uint *w, const int *scale, const int *min, const uint *a, const int *a_sums, int *out)
{
    if (type == Q4_K) {
        out[0] = scale[0] * dot8(w, a) + scale[1] * dot8(w + 8, a + 8);
        out[1] = min[0] * a_sums[0] + min[1] * a_sums[1];
        return;
    }
    UNROLL
    for (uint i = 0; i < UNIT_BLOCKS(type); i++)
        out[i] = dot8(w + 8 * i, a + 8 * i) - (type == Q2_0 ? a_sums[i] : 0);
}

/* Reads one unit of tile row r. scales: of the pair; Q4_K: d and dmin of its block. last: blocks of the unit inside the row. */
INLINE void read_unit(int type, local const uint4 *tile, const struct product *p, const struct chunk *c, uint r, uint unit,
                      uint *w, int *scale, int *min, float *scales)
{
    local const uchar *row = (local const uchar *)tile + (r < p->split ? 0 : c->second) + own_row(p, r) * c->step +
                             row_slack(p, c, type, r);
    if (type == Q4_K) {
        local const uint4 *block = (local const uint4 *)(row + unit / 4 * 144);
        const uint j = unit % 4;
        const uint4 head = block[0], low = block[1 + 2 * j], high = block[2 + 2 * j];
        open_quarter(head, low, high, j, w, scale, min);
        scales[0] = st_float_of_half((ushort)head.x);
        scales[1] = st_float_of_half((ushort)(head.x >> 16));
    } else {
        uint raw[17];
        read_words(raw, row + unit * UNIT_BYTES(type), UNIT_BYTES(type) / 4, p->row_bytes % 4 == 0);
        open_pair(type, raw, w, scales);
    }
}

/* Adds one output's terms of a chunk in ascending order. sums, scales: the output's rows of local memory; d: the activation
 * row's scales from the chunk's first block on. */
INLINE float add_terms(int type, local const int4 *sums, local const float4 *scales, global const float *d, uint blocks, float acc)
{
    if (type == Q4_K) {
        for (uint b = 0; b < blocks / 8; b++) {
            const int4 u = sums[2 * b], v = sums[2 * b + 1];
            const float4 s = scales[b / 2];
            const float dw = b % 2 ? s.z : s.x, dmin = b % 2 ? s.w : s.y, dx = d[b];
            acc = st_fma(dw * dx, (float)(u.x + u.z + v.x + v.z), acc);
            acc = st_fma(-(dmin * dx), (float)(u.y + u.w + v.y + v.w), acc);
        }
        return acc;
    }
    for (uint b = 0; b < blocks; b += 4) {
        const int4 v = sums[b / 4];
        float4 s = scales[type == Q2_0 ? b / 8 : b / 4];
        if (type == Q2_0) {
            s.x = b % 8 ? s.z : s.x;
            s.z = b % 8 ? s.w : s.y;
            s.y = s.x;
            s.w = s.z;
        }
        if (b + 4 <= blocks) {
            const float4 x = *(global const float4 *)(d + b);
            acc = st_fma(s.x * x.x, (float)v.x, acc);
            acc = st_fma(s.y * x.y, (float)v.y, acc);
            acc = st_fma(s.z * x.z, (float)v.z, acc);
            acc = st_fma(s.w * x.w, (float)v.w, acc);
        } else {
            acc = st_fma(s.x * d[b], (float)v.x, acc);
            if (b + 1 < blocks)
                acc = st_fma(s.y * d[b + 1], (float)v.y, acc);
            if (b + 2 < blocks)
                acc = st_fma(s.z * d[b + 2], (float)v.z, acc);
        }
    }
    return acc;
}

/* The activation row of column m of the outputs: from the list, or m itself without one. */
INLINE uint row_of(global const st_u32 *row, uint m)
{
    return row ? row[m] : m;
}

/* Step 2: sums and scales of a chunk. batch: activation rows that a work-item keeps in registers. */
INLINE void multiply(int type, uint batch, local const uint4 *tile, local int4 *sums, local float4 *scales,
                     const struct product *p, const struct chunk *c, global const uchar *x, uint stride, global const st_u32 *row,
                     uint count)
{
    const uint blocks = UNIT_BLOCKS(type), units = (c->blocks + blocks - 1) / blocks, lanes = GROUP / units;
    const uint unit = st_item() % units, lane = st_item() / units;
    if (lane >= lanes)
        return;
    const uint last = c->blocks - unit * blocks; /* blocks of this unit inside the row, when fewer than a unit has */
    for (uint m0 = 0; m0 < count; m0 += batch) {
        uint a[2 * 32];
        int a_sums[2 * 4];
        UNROLL
        for (uint m = 0; m < batch; m++)
            if (m0 + m < count)
                read_activations(type, x + (ulong)row_of(row, m0 + m) * stride, p->n, c->from / blocks + unit, last,
                                 a + m * UNIT_WORDS(type), a_sums + m * 4);
        for (uint r = lane; r < p->rows; r += lanes) {
            uint w[32];
            int scale[2], min[2], out[4];
            float d[2];
            read_unit(type, tile, p, c, r, unit, w, scale, min, d);
            if (m0 == 0) {
                local float *to = (local float *)(scales + r * c->vectors);
                if (type == Q4_K) {
                    if (unit % 4 == 0) {
                        to[unit / 2] = d[0];
                        to[unit / 2 + 1] = d[1];
                    }
                } else {
                    to[2 * unit] = d[0];
                    to[2 * unit + 1] = d[1];
                }
            }
            UNROLL
            for (uint m = 0; m < batch; m++)
                if (m0 + m < count) {
                    unit_sums(type, w, scale, min, a + m * UNIT_WORDS(type), a_sums + m * 4, out);
                    local int *to = (local int *)(sums + ((m0 + m) * p->rows + r) * c->vectors) + unit * blocks;
                    UNROLL
                    for (uint i = 0; i < blocks; i++)
                        to[i] = out[i];
                }
        }
    }
}

/* All of it. Returns the output of work-item `item`: activation row item / rows, tile row item % rows, for item < rows * count;
 * other work-items get 0. Called by all work-items; ends without a barrier. */
INLINE float multiply_tile(int type, uint batch, local uint4 *tile, local int4 *sums, local float4 *scales, const struct product *p,
                     global const uchar *x, uint stride, global const st_u32 *row, uint count)
{
    const uint item = st_item(), total = p->n / 32, chunks = (total + ST_CHUNK - 1) / ST_CHUNK;
    const uint size = chunks == 1 ? total : ((total + chunks - 1) / chunks + 7) / 8 * 8;
    const bool mine = item < p->rows * count;
    const uint m = mine ? item / p->rows : 0, r = mine ? item % p->rows : 0;
    global const float *d =
        (global const float *)(x + (ulong)row_of(row, m) * stride + (type == Q4_K ? ST_Q8K_SCALES(p->n) : ST_Q8_SCALES(p->n)));
    float acc = 0.0f;
    struct chunk c;
    for (c.from = 0; c.from < total; c.from += size) {
        c.blocks = total - c.from < size ? total - c.from : size;
        c.step = c.blocks == total ? p->row_bytes : (BLOCKS_BYTES(type, c.blocks) + 15) / 16 * 16 + 16;
        c.second = (p->split * c.step + 15) / 16 * 16;
        c.vectors = ((c.blocks + 3) / 4) | 1;
        stage(tile, p, &c, type);
        st_barrier();
        multiply(type, batch, tile, sums, scales, p, &c, x, stride, row, count);
        st_barrier();
        if (mine)
            acc = add_terms(type, sums + item * c.vectors, scales + r * c.vectors, d + (type == Q4_K ? c.from / 8 : c.from),
                            c.blocks, acc);
    }
    return acc;
}

#endif
