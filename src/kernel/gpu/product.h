/* The body of every decode product: up to 8 activation rows times weight rows, with exact integer sums per 32-element block
 * and one float accumulator per output in ascending block order (docs/numerics.md), so that every device and the C reference
 * give the same bits.
 *
 * A group of 160 work-items works on tiles of rows, one after the other (tile number g, g + groups, ...):
 *  1. the next tile's bytes are on their way to local memory, by 16-byte copies, neighbours copying neighbours, while this
 *     tile is computed (where copies are plain loads, a tile is copied before it is computed);
 *  2. a work-item has one unit of columns of one row of the tile. It keeps the unit's activations in registers from tile to
 *     tile. A unit is a pair of blocks, an odd number of 32-bit words, so that neighbours read different banks; Q4_K: a
 *     quarter of a block, read as 16-byte vectors. Integer sums and block scales go to local memory;
 *  3. one work-item per output adds the terms in order, four blocks per read.
 * Limit: device memory for few activation rows, local memory traffic and instructions from about 4 rows on.
 *
 * Weight rows are the blocks of the file. A matrix starts at a multiple of 16 bytes and can be read up to the next one after
 * its end. */
#ifndef ST_PRODUCT_H
#define ST_PRODUCT_H

#include "dialect.h"
#include "layout.h"

#define GROUP 160

#define Q8_0 0
#define Q2_0 1
#define IQ4_NL 2
#define Q4_K 3

/* Bytes of a unit, its words of four weights, and its 32-element blocks. */
#define UNIT_BYTES(type) ((type) == Q8_0 ? 68 : 36)
#define UNIT_WORDS(type) ((type) == Q2_0 ? 32 : 16)
#define UNIT_BLOCKS(type) (UNIT_WORDS(type) / 8)
#define BLOCKS_BYTES(type, blocks) ((blocks) * ((type) == Q8_0 ? 34 : (type) == Q2_0 ? 9 : 18))

/* Local memory: tiles on their way and in work, in vectors of 16 bytes each. */
#define TILES(type) (ST_COPIES_AHEAD ? (type) == Q8_0 ? 2 : 3 : 1)
#define TILE_VECTORS(type) (GROUP * UNIT_BYTES(type) / 16 + 2 * ST_LOOSE_ROWS + 1)

/* Activation rows that a work-item keeps in registers. */
#define BATCH(type, many) ((many) == 1 ? 1 : (type) == Q2_0 ? 2 : 4)

struct product {
    uint n, row_bytes;
    uint rows;   /* of a matrix */
    uint tile;   /* rows of a tile */
    uint groups; /* that share the tiles */
    uint total, chunk; /* 32-element blocks of a row and of a chunk of it */
    uint units;  /* of a chunk */
    uint step;   /* bytes from row to row in local memory */
    uint vectors; /* 16-byte vectors from row to row of sums and of scales: an odd number, so that rows differ in banks */
    bool whole;  /* a tile is one stretch of memory */
};

/* Which part of the work: tile, matrix (gate and up alternate), first block of the chunk. */
struct part {
    uint tile, matrix, from;
};

INLINE struct product describe(int type, uint n, uint rows, uint tile, uint groups)
{
    struct product p;
    p.n = n;
    p.row_bytes = BLOCKS_BYTES(type, n / 32);
    p.rows = rows;
    p.tile = tile;
    p.groups = groups;
    p.total = n / 32;
    const uint chunks = (p.total + ST_CHUNK - 1) / ST_CHUNK;
    p.chunk = chunks == 1 ? p.total : ((p.total + chunks - 1) / chunks + 7) / 8 * 8;
    p.units = (p.chunk + UNIT_BLOCKS(type) - 1) / UNIT_BLOCKS(type);
    p.whole = chunks == 1 && tile * p.row_bytes % 16 == 0;
    p.step = p.whole ? p.row_bytes : (BLOCKS_BYTES(type, p.chunk) + 15) / 16 * 16 + 16;
    p.vectors = ((p.chunk + 3) / 4) | 1;
    return p;
}

INLINE void advance(struct part *at, const struct product *p, uint matrices)
{
    at->from += p->chunk;
    if (at->from >= p->total) {
        at->from = 0;
        at->matrix++;
        if (at->matrix == matrices) {
            at->matrix = 0;
            at->tile += p->groups;
        }
    }
}

INLINE uint tile_rows(const struct product *p, const struct part *at)
{
    const uint left = p->rows - at->tile * p->tile;
    return left < p->tile ? left : p->tile;
}

INLINE uint chunk_blocks(const struct product *p, const struct part *at)
{
    const uint left = p->total - at->from;
    return left < p->chunk ? left : p->chunk;
}

/* Step 1. */
INLINE void stage(int type, local uint4 *tile, const struct product *p, const struct part *at, global const uchar *matrix)
{
    const uint item = st_item(), rows = tile_rows(p, at);
    global const uchar *start = matrix + (ulong)(at->tile * p->tile) * p->row_bytes;
    if (p->whole) {
        const uint vectors = (rows * p->row_bytes + 15) / 16;
        global const uint4 *from = (global const uint4 *)start;
        UNROLL_COPIES
        for (uint i = item; i < vectors; i += GROUP)
            st_copy_issue(tile + i, from + i);
        return;
    }
    /* 32 work-items per row, from the 16-byte boundary before it */
    const uint bytes = BLOCKS_BYTES(type, chunk_blocks(p, at));
    for (uint r = item / 32; r < rows; r += GROUP / 32) {
        global const uchar *row = start + (ulong)r * p->row_bytes + BLOCKS_BYTES(type, at->from);
        const uint slack = ((at->tile * p->tile + r) * p->row_bytes + BLOCKS_BYTES(type, at->from)) & 15;
        global const uint4 *from = (global const uint4 *)(row - slack);
        local uint4 *to = tile + r * (p->step / 16);
        const uint vectors = (slack + bytes + 15) / 16;
        UNROLL_COPIES
        for (uint i = item % 32; i < vectors; i += 32)
            st_copy_issue(to + i, from + i);
    }
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
        for (uint i = 0; i < 8; i++)
            st_lookup_nibbles(q[i], 0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u, &w[i / 4 * 8 + i % 4],
                              &w[i / 4 * 8 + 4 + i % 4]);
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

/* sum plus the products of eight words. */
INLINE int dot8(const uint *w, const uint *a, int sum)
{
    UNROLL
    for (uint i = 0; i < 8; i++)
        sum = st_dot4(w[i], a[i], sum);
    return sum;
}

/* The activations of one unit: UNIT_WORDS words, and the sums of its blocks' q where the type needs them. */
INLINE void read_activations(int type, global const uchar *x, uint n, uint unit, uint *a, int *sums)
{
    global const uint4 *q = (global const uint4 *)(x + (type == Q2_0 ? ST_Q8_TRANSPOSED(n) : 0));
    const uint units = type == Q2_0 ? ST_T_UNITS(n) : ST_UNITS(n);
    UNROLL
    for (uint k = 0; k < UNIT_WORDS(type) / 4; k++) {
        const uint4 v = q[k * units + unit];
        a[4 * k] = v.x;
        a[4 * k + 1] = v.y;
        a[4 * k + 2] = v.z;
        a[4 * k + 3] = v.w;
    }
    if (type == Q2_0) {
        const int4 s = ((global const int4 *)(x + ST_Q8_SUMS(n)))[unit];
        sums[0] = s.x;
        sums[1] = s.y;
        sums[2] = s.z;
        sums[3] = s.w;
    } else if (type == Q4_K) {
        global const int *s = (global const int *)(x + ST_Q8K_SUMS(n)) + 2 * unit;
        sums[0] = s[0];
        sums[1] = s[1];
    }
}

/* The sums of one unit of one row with one activation row: one per 32-element block (Q4_K: the weighted sum of the quarter,
 * then the sum of its minima). */
INLINE void unit_sums(int type, const uint *w, const int *scale, const int *min, const uint *a, const int *a_sums, int *out)
{
    if (type == Q4_K) {
        out[0] = scale[0] * dot8(w, a, 0) + scale[1] * dot8(w + 8, a + 8, 0);
        out[1] = min[0] * a_sums[0] + min[1] * a_sums[1];
        return;
    }
    UNROLL
    for (uint i = 0; i < UNIT_BLOCKS(type); i++)
        out[i] = dot8(w + 8 * i, a + 8 * i, type == Q2_0 ? -a_sums[i] : 0);
}

/* Reads one unit of tile row r. scales: of the pair; Q4_K: d and dmin of its block. */
INLINE void read_unit(int type, local const uint4 *tile, const struct product *p, const struct part *at, uint r, uint unit,
                      uint *w, int *scale, int *min, float *scales)
{
    const uint slack =
        p->whole ? 0 : ((at->tile * p->tile + r) * p->row_bytes + BLOCKS_BYTES(type, at->from)) & 15;
    local const uchar *row = (local const uchar *)tile + r * p->step + slack;
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
        UNROLL_TERMS
        for (uint b = 0; b < blocks / 8; b++) {
            const int4 u = sums[2 * b], v = sums[2 * b + 1];
            const float4 s = scales[b / 2];
            const float dw = b % 2 ? s.z : s.x, dmin = b % 2 ? s.w : s.y, dx = d[b];
            acc = st_fma(dw * dx, (float)(u.x + u.z + v.x + v.z), acc);
            acc = st_fma(-(dmin * dx), (float)(u.y + u.w + v.y + v.w), acc);
        }
        return acc;
    }
    const uint fours = blocks / 4 * 4;
    UNROLL_TERMS
    for (uint b = 0; b < fours; b += 4) {
        const int4 v = sums[b / 4];
        const float4 x = *(global const float4 *)(d + b), s = scales[type == Q2_0 ? b / 8 : b / 4];
        const float s0 = type == Q2_0 ? (b % 8 ? s.z : s.x) : s.x, s1 = type == Q2_0 ? s0 : s.y;
        const float s2 = type == Q2_0 ? (b % 8 ? s.w : s.y) : s.z, s3 = type == Q2_0 ? s2 : s.w;
        acc = st_fma(s0 * x.x, (float)v.x, acc);
        acc = st_fma(s1 * x.y, (float)v.y, acc);
        acc = st_fma(s2 * x.z, (float)v.z, acc);
        acc = st_fma(s3 * x.w, (float)v.w, acc);
    }
    for (uint b = fours; b < blocks; b++) {
        const float s = ((local const float *)scales)[type == Q2_0 ? b / 2 : b];
        acc = st_fma(s * d[b], (float)((local const int *)sums)[b], acc);
    }
    return acc;
}

/* A row number of the list, or m itself without one. */
INLINE uint row_of(global const st_u32 *list, uint m)
{
    return list ? list[m] : m;
}

/* Step 2 for one part. a, a_sums: registers that hold the activations when kept is true. r, unit: the work-item's. */
INLINE void multiply(int type, uint batch, local const uint4 *tile, local int4 *sums, local float4 *scales,
                     const struct product *p, const struct part *at, global const uchar *x, uint stride,
                     global const st_u32 *row, uint count, bool kept, uint *a, int *a_sums, uint r, uint unit)
{
    if (r >= tile_rows(p, at) || unit * UNIT_BLOCKS(type) >= chunk_blocks(p, at))
        return;
    uint w[32];
    int scale[2], min[2], out[4];
    float d[2];
    read_unit(type, tile, p, at, r, unit, w, scale, min, d);
    local float *scale_at = (local float *)(scales + r * p->vectors);
    if (type != Q4_K || unit % 4 == 0) {
        const uint i = type == Q4_K ? unit / 2 : 2 * unit;
        scale_at[i] = d[0];
        scale_at[i + 1] = d[1];
    }
    for (uint m0 = 0; m0 < count; m0 += batch) {
        if (!kept) {
            UNROLL
            for (uint m = 0; m < batch; m++)
                if (m0 + m < count)
                    read_activations(type, x + (ulong)row_of(row, m0 + m) * stride, p->n, at->from / UNIT_BLOCKS(type) + unit,
                                     a + m * UNIT_WORDS(type), a_sums + m * 4);
        }
        UNROLL
        for (uint m = 0; m < batch; m++)
            if (m0 + m < count) {
                unit_sums(type, w, scale, min, a + m * UNIT_WORDS(type), a_sums + m * 4, out);
                local int *to = (local int *)(sums + ((m0 + m) * p->tile + r) * p->vectors) + unit * UNIT_BLOCKS(type);
                UNROLL
                for (uint i = 0; i < UNIT_BLOCKS(type); i++)
                    to[i] = out[i];
            }
    }
}

/* All tiles of this group. matrices: 1, or 2 for y = silu(first . x) * (second . x). group: number of this group among
 * p->groups. row: activation rows, place: output rows of the count columns, or 0 for 0, 1, ... */
INLINE void run_product(int type, uint many, uint matrices, local uint4 *tiles, local int4 *sums, local float4 *scales,
                        const struct product *p, uint group, global const uchar *first, global const uchar *second,
                        global const uchar *x, uint stride, global const st_u32 *row, uint count, global float *y, uint ldy,
                        global const st_u32 *place)
{
    const uint item = st_item(), batch = BATCH(type, many), ahead = TILES(type) - 1, end = (p->rows + p->tile - 1) / p->tile;
    const uint unit = item % p->units, r = item / p->units;
    const bool kept = p->chunk == p->total && count <= batch;
    const uint m = item / p->tile, out_row = item - m * p->tile;
    const bool adds = m < count;
    global const float *d = (global const float *)(x + (ulong)row_of(row, adds ? m : 0) * stride +
                                                   (type == Q4_K ? ST_Q8K_SCALES(p->n) : ST_Q8_SCALES(p->n)));
    y += (ulong)row_of(place, adds ? m : 0) * ldy;
    uint a[4 * 16];
    int a_sums[4 * 4] = {0};
    struct part at, next;
    at.tile = group;
    at.matrix = at.from = 0;
    next = at;
    for (uint i = 0; i < ahead; i++) {
        if (next.tile < end) {
            stage(type, tiles + i * TILE_VECTORS(type), p, &next, next.matrix ? second : first);
            advance(&next, p, matrices);
        }
        st_copies_commit();
    }
    if (kept && r < p->tile) {
        UNROLL
        for (uint i = 0; i < batch; i++)
            if (i < count)
                read_activations(type, x + (ulong)row_of(row, i) * stride, p->n, unit, a + i * UNIT_WORDS(type), a_sums + i * 4);
    }
    float acc = 0.0f, gate = 0.0f;
    uint slot = 0;
    while (at.tile < end) {
        if (next.tile < end) {
            const uint free_slot = slot + ahead >= TILES(type) ? slot + ahead - TILES(type) : slot + ahead;
            stage(type, tiles + free_slot * TILE_VECTORS(type), p, &next, next.matrix ? second : first);
            advance(&next, p, matrices);
        }
        st_copies_commit();
        st_copies_wait(ahead);
        st_barrier();
        multiply(type, batch, tiles + slot * TILE_VECTORS(type), sums, scales, p, &at, x, stride, row, count, kept, a, a_sums, r,
                 unit);
        st_barrier();
        if (adds && out_row < tile_rows(p, &at)) {
            if (at.from == 0)
                acc = 0.0f;
            acc = add_terms(type, sums + item * p->vectors, scales + out_row * p->vectors, d + (type == Q4_K ? at.from / 8 : at.from),
                            chunk_blocks(p, &at), acc);
            if (at.from + p->chunk >= p->total) {
                if (matrices == 2 && at.matrix == 0)
                    gate = st_siluf(acc);
                else
                    y[at.tile * p->tile + out_row] = matrices == 2 ? gate * acc : acc;
            }
        }
        advance(&at, p, matrices);
        slot = slot + 1 == TILES(type) ? 0 : slot + 1;
    }
}

#endif
