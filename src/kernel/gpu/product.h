/* The body of every decode product: up to 8 activation rows times weight rows, with exact integer sums per 32-element
 * block and one float accumulator per output in ascending block order (docs/numerics.md), so that every device and the
 * C reference give the same bits.
 *
 * A group of 192 work-items works on tiles of rows, one after the other (tile number g, g + groups, ...):
 *  1. the next tile's bytes are on their way to local memory, by 16-byte copies, neighbours copying neighbours, while
 * this tile is computed (where copies are plain loads, a tile is copied before it is computed);
 *  2. 160 work-items multiply: each has one unit of columns of one row of the tile, or of two rows. For one activation
 * row it keeps the unit's activations in registers from tile to tile. A unit is a pair of blocks, an odd number of
 * 32-bit words, so that neighbours read different banks; Q4_K: a quarter of a block, read as 16-byte vectors. It leaves
 * two floats per block in local memory: the product of the scales and the sum (Q4_K: integers per unit and two products
 * per block, because a block's sum is of four units);
 *  3. meanwhile 32 work-items, each for its outputs, add the terms of the tile before in order.
 * Several activation rows are handled two at a time (steps 2 and 3).
 * Limit: device memory for one activation row; instructions of the opening of weights for Q2_0 and IQ4_NL, and for
 * several activation rows.
 *
 * Weight rows are the blocks of the file. A matrix starts at a multiple of 16 bytes and can be read up to the next one
 * after its end. */
#ifndef ST_PRODUCT_H
#define ST_PRODUCT_H

#include "dialect.h"
#include "layout.h"

#define GROUP ST_PRODUCT_GROUP
#define ITEMS ST_PRODUCT_ITEMS

#define Q8_0 0
#define Q2_0 1
#define IQ4_NL 2
#define Q4_K 3

/* Bytes of a unit, its words of four weights, and its 32-element blocks. */
#define UNIT_BYTES(type) ((type) == Q8_0 ? 68 : 36)
#define UNIT_WORDS(type) ((type) == Q2_0 ? 32 : 16)
#define UNIT_BLOCKS(type) (UNIT_WORDS(type) / 8)
#define BLOCKS_BYTES(type, blocks) ((blocks) * ((type) == Q8_0 ? 34 : (type) == Q2_0 ? 9 : 18))

/* Rows of a tile that a work-item multiplies, one after the other. */
#define PASSES(type, many) ((uint)ST_PRODUCT_PASSES((type) == Q8_0, (type) == Q2_0, many))
/* Local memory: tiles on their way and in work, and terms of two steps, in vectors of 16 bytes; floats kept from step
 * to step. */
#define TILES ((uint)(ST_COPIES_AHEAD ? 2 : 1))
#define TILE_VECTORS(type, many) (ITEMS * PASSES(type, many) * UNIT_BYTES(type) / 16 + 2 * ST_LOOSE_ROWS + 1)
#define BATCH(many) ((many) == 1 ? 1 : 2)
#define TERM_VECTORS(type, many) (BATCH(many) * PASSES(type, many) * ST_TERM_VECTORS((type) == Q2_0))
#define KEPT_FLOATS(many) ((many) * (GROUP - ITEMS))

struct product {
    uint n, row_bytes;
    uint rows;         /* of the matrix */
    uint tile;         /* rows of a tile */
    uint groups;       /* that share the tiles */
    uint total, chunk; /* 32-element blocks of a row and of a chunk of it */
    uint units;        /* of a chunk */
    uint step;         /* bytes from row to row in local memory */
    uint vectors;      /* 16-byte vectors of terms from row to row: an odd number, so that rows differ in banks */
    bool whole;        /* a tile is one stretch of memory; rows are one chunk of whole words */
};

/* Which part of the work: tile, first block of the chunk. */
struct tile_part {
    uint tile, from;
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
    p.whole = chunks == 1 && tile * p.row_bytes % 16 == 0 && p.row_bytes % 4 == 0;
    p.step = p.whole ? p.row_bytes : (BLOCKS_BYTES(type, p.chunk) + 15) / 16 * 16 + 16;
    p.vectors = (p.units * (UNIT_BLOCKS(type) / 2)) | 1;
    return p;
}

INLINE void advance(struct tile_part *at, const struct product *p)
{
    at->from += p->chunk;
    if (at->from >= p->total) {
        at->from = 0;
        at->tile += p->groups;
    }
}

INLINE uint tile_rows(const struct product *p, const struct tile_part *at)
{
    const uint left = p->rows - at->tile * p->tile;
    return left < p->tile ? left : p->tile;
}

INLINE uint chunk_blocks(const struct product *p, const struct tile_part *at)
{
    const uint left = p->total - at->from;
    return left < p->chunk ? left : p->chunk;
}

/* Step 1. */
INLINE void stage(int type, bool whole, uint many, local uint4 *tile, const struct product *p, const struct tile_part *at,
                  global const uchar *matrix)
{
    const uint item = st_item(), rows = tile_rows(p, at);
    global const uchar *start = matrix + (ulong)(at->tile * p->tile) * p->row_bytes;
    if (whole) {
        const uint vectors = (rows * p->row_bytes + 15) / 16;
        global const uint4 *from = (global const uint4 *)start;
        UNROLL
        for (uint i = 0; i < (ITEMS * PASSES(type, many) * UNIT_BYTES(type) / 16 + GROUP - 1) / GROUP; i++)
            if (item + i * GROUP < vectors)
                st_copy_issue(tile + item + i * GROUP, from + item + i * GROUP);
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

/* Q4_K: quarter j of the block whose 16-byte head and 32 bytes are given: w[0..7] are the weights of sub-block 2 j,
 * w[8..15] those of sub-block 2 j + 1; six-bit scales and minima of both. */
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

/* What a work-item keeps of an activation row: the words of its unit, the scales of its blocks (Q4_K: of its block),
 * and the sums of its blocks' q where the type needs them. */
struct activations {
    uint q[32];
    float d[4];
    int sums[4];
};

INLINE void read_activations(int type, global const uchar *x, uint n, uint unit, struct activations *a)
{
    global const uint4 *q = (global const uint4 *)(x + (type == Q2_0 ? ST_Q8_TRANSPOSED(n) : 0));
    const uint units = type == Q2_0 ? ST_T_UNITS(n) : ST_UNITS(n);
    UNROLL
    for (uint k = 0; k < UNIT_WORDS(type) / 4; k++) {
        const uint4 v = q[k * units + unit];
        a->q[4 * k] = v.x;
        a->q[4 * k + 1] = v.y;
        a->q[4 * k + 2] = v.z;
        a->q[4 * k + 3] = v.w;
    }
    if (type == Q4_K) {
        global const int *s = (global const int *)(x + ST_Q8K_SUMS(n)) + 2 * unit;
        a->sums[0] = s[0];
        a->sums[1] = s[1];
        a->d[0] = ((global const float *)(x + ST_Q8K_SCALES(n)))[unit / 4];
    } else if (type == Q2_0) {
        const int4 s = ((global const int4 *)(x + ST_Q8_SUMS(n)))[unit];
        const float4 d = ((global const float4 *)(x + ST_Q8_SCALES(n)))[unit];
        a->sums[0] = s.x;
        a->sums[1] = s.y;
        a->sums[2] = s.z;
        a->sums[3] = s.w;
        a->d[0] = d.x;
        a->d[1] = d.y;
        a->d[2] = d.z;
        a->d[3] = d.w;
    } else {
        global const float *d = (global const float *)(x + ST_Q8_SCALES(n)) + 2 * unit;
        a->d[0] = d[0];
        a->d[1] = d[1];
    }
    if (type == IQ4_NL) {
        UNROLL
        for (uint i = 0; i < 8; i++)
            st_match_nibbles(&a->q[i / 4 * 8 + i % 4], &a->q[i / 4 * 8 + 4 + i % 4]);
    }
}

/* One unit of a weight row, opened. */
struct unit {
    uint w[32];
    int scale[2], min[2];
    float d[2]; /* of the pair; Q4_K: d and dmin of the block */
};

INLINE void read_unit(int type, bool whole, local const uint4 *tile, const struct product *p, const struct tile_part *at,
                      uint r, uint number, struct unit *u)
{
    const uint slack = whole ? 0 : ((at->tile * p->tile + r) * p->row_bytes + BLOCKS_BYTES(type, at->from)) & 15;
    local const uchar *row = (local const uchar *)tile + r * p->step + (p->whole ? 0 : slack);
    if (type == Q4_K) {
        local const uint4 *block = (local const uint4 *)(row + number / 4 * 144);
        const uint j = number % 4;
        const uint4 head = block[0], low = block[1 + 2 * j], high = block[2 + 2 * j];
        open_quarter(head, low, high, j, u->w, u->scale, u->min);
        u->d[0] = st_float_of_half((ushort)head.x);
        u->d[1] = st_float_of_half((ushort)(head.x >> 16));
    } else {
        uint raw[17];
        read_words(raw, row + number * UNIT_BYTES(type), UNIT_BYTES(type) / 4, whole || p->row_bytes % 4 == 0);
        open_pair(type, raw, u->w, u->d);
    }
}

/* The terms of one unit with one activation row, to the output's row of local memory. Q4_K: two integers per unit, then
 * two floats per block behind those of all units. */
INLINE void put_terms(int type, const struct unit *u, const struct activations *a, local uint4 *terms, uint number,
                      uint units)
{
    if (type == Q4_K) {
        local int *to = (local int *)terms + 2 * number;
        to[0] = u->scale[0] * dot8(u->w, a->q, 0) + u->scale[1] * dot8(u->w + 8, a->q + 8, 0);
        to[1] = u->min[0] * a->sums[0] + u->min[1] * a->sums[1];
        if (number % 4 == 0) {
            local float *factors = (local float *)terms + 2 * units + number / 2;
            factors[0] = u->d[0] * a->d[0];
            factors[1] = -(u->d[1] * a->d[0]);
        }
        return;
    }
    UNROLL
    for (uint i = 0; i < UNIT_BLOCKS(type); i += 2) {
        const uint second = type == Q2_0 ? i / 2 : 1; /* which of the two scales the odd block has */
        const int sum0 = dot8(u->w + 8 * i, a->q + 8 * i, type == Q2_0 ? -a->sums[i] : 0);
        const int sum1 = dot8(u->w + 8 * i + 8, a->q + 8 * i + 8, type == Q2_0 ? -a->sums[i + 1] : 0);
        uint4 v;
        v.x = st_bits_of(u->d[type == Q2_0 ? i / 2 : 0] * a->d[i]);
        v.y = st_bits_of((float)sum0);
        v.z = st_bits_of(u->d[second] * a->d[i + 1]);
        v.w = st_bits_of((float)sum1);
        terms[number * (UNIT_BLOCKS(type) / 2) + i / 2] = v;
    }
}

/* Adds one output's terms of a chunk in ascending order. */
INLINE float add_terms(int type, local const uint4 *terms, uint blocks, uint units, float acc)
{
    if (type == Q4_K) {
        local const float *factors = (local const float *)terms + 2 * units;
        UNROLL_TERMS
        for (uint b = 0; b < blocks / 8; b++) {
            const uint4 u = terms[2 * b], v = terms[2 * b + 1];
            acc = st_fma(factors[2 * b], (float)(int)(u.x + u.z + v.x + v.z), acc);
            acc = st_fma(factors[2 * b + 1], (float)(int)(u.y + u.w + v.y + v.w), acc);
        }
        return acc;
    }
    UNROLL_TERMS
    for (uint b = 0; b < blocks / 2; b++) {
        const uint4 v = terms[b];
        acc = st_fma(st_float_of(v.x), st_float_of(v.y), acc);
        acc = st_fma(st_float_of(v.z), st_float_of(v.w), acc);
    }
    if (blocks % 2) {
        const uint4 v = terms[blocks / 2];
        acc = st_fma(st_float_of(v.x), st_float_of(v.y), acc);
    }
    return acc;
}

/* What the group does between two barriers: activation rows m0 .. m0 + batch - 1 with a part of the weights. */
struct step {
    struct tile_part at;
    uint m0;
};

/* Step 2. a: the activations of the unit, which are there already for one row and whole tiles. */
INLINE void multiply(int type, bool whole, uint many, local const uint4 *tile, local uint4 *terms,
                     const struct product *p, const struct step *now, global const uchar *x, uint stride, uint count,
                     struct activations *a)
{
    const uint item = st_item(), lanes = ITEMS / p->units, number = item % p->units, rows = tile_rows(p, &now->at);
    uint r = item / p->units;
    if (r >= lanes || (!whole && number * UNIT_BLOCKS(type) >= chunk_blocks(p, &now->at)))
        return;
    for (uint pass = 0; pass < PASSES(type, many); pass++, r += lanes) {
        if (r >= rows)
            break;
        struct unit u;
        read_unit(type, whole, tile, p, &now->at, r, number, &u);
        for (uint i = 0; i < BATCH(many); i++)
            if (now->m0 + i < count) {
                if (many > 1 || !whole)
                    read_activations(type, x + (ulong)(now->m0 + i) * stride, p->n,
                                     now->at.from / UNIT_BLOCKS(type) + number, a);
                put_terms(type, &u, a, terms + (i * p->tile + r) * p->vectors, number, p->units);
            }
    }
}

/* Step 3. sums: one float per output and activation row, kept from chunk to chunk. */
INLINE void add(int type, bool whole, uint many, local const uint4 *terms, local float *sums, const struct product *p,
                const struct step *then, uint count, global float *y, uint ldy)
{
    const uint rows = tile_rows(p, &then->at), blocks = whole ? p->total : chunk_blocks(p, &then->at),
               r = st_item() - ITEMS;
    if (r >= rows)
        return;
    for (uint i = 0; i < BATCH(many); i++) {
        const uint m = then->m0 + i, output = m * (GROUP - ITEMS) + r;
        if (m >= count)
            break;
        const float sum = add_terms(type, terms + (i * p->tile + r) * p->vectors, blocks, p->units,
                                    whole || then->at.from == 0 ? 0.0f : sums[output]);
        if (!whole && then->at.from + p->chunk < p->total)
            sums[output] = sum;
        else
            y[(ulong)m * ldy + then->at.tile * p->tile + r] = sum;
    }
}

/* All tiles of this group: y[m] = w . x[m] for count activation rows. whole: p->whole, known when compiled. group: number
 * of this group among p->groups. */
INLINE void run_tiles(int type, bool whole, uint many, local uint4 *tiles, local uint4 *terms, local float *kept,
                      const struct product *p, uint group, global const uchar *w, global const uchar *x, uint stride,
                      uint count, global float *y, uint ldy)
{
    const bool multiplies = st_item() < ITEMS;
    const uint end = (p->rows + p->tile - 1) / p->tile;
    struct activations a;
    struct tile_part next;
    struct step now, then;
    next.tile = group;
    next.from = 0;
    now.at = next;
    now.m0 = 0;
    then = now;
    for (uint i = 0; i + 1 < TILES; i++) {
        if (next.tile < end) {
            stage(type, whole, many, tiles + i * TILE_VECTORS(type, many), p, &next, w);
            advance(&next, p);
        }
        st_copies_commit();
    }
    if (many == 1 && whole && multiplies && st_item() / p->units < ITEMS / p->units)
        read_activations(type, x, p->n, st_item() % p->units, &a);
    uint slot = 0, side = 0;
    bool pending = false;
    while (now.at.tile < end || pending) {
        const bool works = now.at.tile < end;
        if (TILES == 1) {
            st_barrier();
            if (works && now.m0 == 0)
                stage(type, whole, many, tiles, p, &now.at, w);
        }
        if (now.m0 == 0)
            st_copies_wait(0);
        st_barrier();
        if (TILES > 1 && works && now.m0 == 0) {
            if (next.tile < end) { /* into the place of the tile before this one */
                const uint free_slot = slot == 0 ? TILES - 1 : slot - 1;
                stage(type, whole, many, tiles + free_slot * TILE_VECTORS(type, many), p, &next, w);
                advance(&next, p);
            }
            st_copies_commit();
        }
        if (multiplies) {
            if (works)
                multiply(type, whole, many, tiles + slot * TILE_VECTORS(type, many),
                         terms + side * TERM_VECTORS(type, many), p, &now, x, stride, count, &a);
        } else if (pending) {
            add(type, whole, many, terms + (side ^ 1) * TERM_VECTORS(type, many), kept, p, &then, count, y, ldy);
        }
        then = now;
        pending = works;
        side ^= 1;
        now.m0 += BATCH(many);
        if (now.m0 >= count) {
            now.m0 = 0;
            advance(&now.at, p);
            slot = slot + 1 == TILES ? 0 : slot + 1;
        }
    }
}

/* Whole tiles and others are compiled apart: the former, which is what models have, then needs fewer registers. */
INLINE void run_product(int type, uint many, local uint4 *tiles, local uint4 *terms, local float *kept,
                        const struct product *p, uint group, global const uchar *w, global const uchar *x, uint stride,
                        uint count, global float *y, uint ldy)
{
    if (p->whole)
        run_tiles(type, true, many, tiles, terms, kept, p, group, w, x, stride, count, y, ldy);
    else
        run_tiles(type, false, many, tiles, terms, kept, p, group, w, x, stride, count, y, ldy);
}

/* A product kernel's local memory. */
#define PRODUCT_MEMORY(type, many)                                                                                     \
    LOCAL_ARRAY(uint4, tiles, TILES *TILE_VECTORS(type, many));                                                        \
    LOCAL_ARRAY(uint4, terms, 2 * TERM_VECTORS(type, many));                                                           \
    LOCAL_ARRAY(float, kept, KEPT_FLOATS(many))

#endif
