/* The body of the products that read weights once: rows of a weight matrix, or of the chosen experts' matrices, times up to
 * eight activation rows at a time, with the arithmetic of docs/numerics.md to the bit.
 *
 * A group of 128 work-items goes through tiles of weight rows, one after the other (tile g, g + groups, ...), and through
 * the columns of a tile in chunks. While a chunk is computed, the bytes of the next one are on their way (where copies are plain
 * loads, a chunk is copied before it is computed):
 *  1. the chunk's bytes come to local memory by 16-byte copies, neighbours copying neighbours;
 *  2. integer activations: each work-item opens parts of 32 weights (open.h) and multiplies them with every activation row;
 *     what a part adds to an output, two words, goes to local memory (`terms`). FP32 activations: sixteen work-items have an
 *     output, each its partial sum;
 *  3. one work-item for each output adds its terms in ascending order.
 * Limit: device memory; for several activation rows the integer products.
 *
 * The launch: struct st_gpu_rows in kernel/gpu_rows.h. */
#ifndef ST_ROWS_H
#define ST_ROWS_H

#include "layout.h"
#include "open.h"

#define GROUP ST_ROWS_GROUP
#define ROWS_SLOTS (1 + ST_COPIES_AHEAD) /* chunks in local memory */

/* What a group is given; meanings in kernel/gpu_rows.h. */
struct rows {
    global float *y;
    global const uchar *w, *w1, *x;
    global const int *first, *entry, *expert;
    global const float *scales;
    uint n, rows, row_bytes, total, stride, ldy, used, mode, scaled, tile, chunk;
    uint begin, tiles, groups; /* of the matrix: the group's first tile, tiles, groups that share them */
    uint joint, join, finish;  /* matrices that make one output, how (ST_ROWS_JOIN_*), what follows (ST_ROWS_FINISH_*) */
    float share;               /* 1 / streams */
};

/* The activation rows that a group serves: the matrix, the first output row and how many there are. */
struct served {
    ulong matrix;  /* bytes from w */
    uint from, to; /* output rows */
    float scale;
};

INLINE struct served rows_served(const struct rows *a)
{
    struct served s;
    uint e = 0, y = st_group_y();
    if (a->mode == ST_ROWS_DENSE) {
        s.from = y * ST_MAX_ROWS;
        s.to = a->total - s.from < ST_MAX_ROWS ? a->total : s.from + ST_MAX_ROWS;
    } else {
        e = a->mode == ST_ROWS_ENTRY ? (uint)a->expert[a->entry[y]] : y;
        s.from = (uint)a->first[e];
        s.to = (uint)a->first[e + 1];
        if (a->mode == ST_ROWS_ENTRY && s.from != y) /* the group of the expert's first entry serves them all */
            s.to = s.from;
    }
    s.matrix = (ulong)e * a->rows * a->row_bytes;
    s.scale = a->scaled == 0 ? 1.0f : a->scales[a->scaled == 2 ? e : 0];
    return s;
}

/* The row of x for output row i. */
INLINE uint rows_input(const struct rows *a, uint i)
{
    return a->used ? (uint)a->entry[i] / a->used : i;
}

/* What a group computes between two barriers: a chunk of the columns of a tile. Columns count parts of 32, or single columns
 * with FP32 activations. */
struct step {
    uint tile, row0, here; /* here: weight rows of the tile */
    uint from, some;       /* columns */
    uint at, bytes;        /* of a row */
};

INLINE struct step rows_step(int type, const struct rows *a, uint tile, uint from, uint columns, uint unit)
{
    struct step s;
    s.tile = tile;
    s.row0 = tile * a->tile;
    s.here = a->rows - s.row0 < a->tile ? a->rows - s.row0 : a->tile;
    s.from = from;
    s.some = columns - from < a->chunk ? columns - from : a->chunk;
    const uint elems = PART_ELEMS(type);
    s.at = from * unit / elems * PART_BYTES(type);
    s.bytes = s.some * unit / elems * PART_BYTES(type);
    return s;
}

/* The next chunk of the tile, or the first of the group's next tile. */
INLINE struct step rows_next(int type, const struct rows *a, const struct step *s, uint columns, uint unit)
{
    const uint from = s->from + a->chunk;
    return from < columns ? rows_step(type, a, s->tile, from, columns, unit) : rows_step(type, a, s->tile + a->groups, 0, columns, unit);
}

/* Row r of the tile's matrices, one after the other: rows of w, then those of the matrix joined to it. */
INLINE global const uchar *rows_row(const struct rows *a, const struct served *s, const struct step *t, uint r)
{
    const uint matrix = a->joint == 1 ? 0 : r / t->here;
    const ulong row = t->row0 + r - matrix * t->here;
    if (a->join == ST_ROWS_JOIN_SWIGLU)
        return (matrix ? a->w1 : a->w) + s->matrix + row * a->row_bytes;
    return a->w + s->matrix + ((ulong)matrix * a->rows + row) * a->row_bytes;
}

/* Vectors of 16 bytes that `bytes` bytes at any address can touch. */
INLINE uint rows_vectors(uint bytes)
{
    return (bytes + 15 + 15) / 16;
}

/* Step 1. The copies may be under way. */
INLINE void rows_stage(const struct rows *a, const struct served *s, const struct step *t, local uint4 *tile)
{
    const uint vectors = rows_vectors(t->bytes);
    uint r = 0, v = st_item();
    UNROLL_COPIES
    for (uint i = st_item(); i < t->here * a->joint * vectors; i += GROUP) {
        while (v >= vectors) {
            v -= vectors;
            r++;
        }
        const ulong from = (ulong)(rows_row(a, s, t, r) + t->at);
        const ulong place = (from & ~15ul) + 16 * v;
        if (place < from + t->bytes)
            st_copy_issue(tile + i, (global const uint4 *)place);
        v += GROUP;
    }
}

/* Where row r of the tile begins in local memory. */
INLINE local const uchar *rows_at(const struct rows *a, const struct served *s, const struct step *t, local const uint4 *tile,
                                  uint r)
{
    const uint slack = (uint)(ulong)(rows_row(a, s, t, r) + t->at) & 15;
    return (local const uchar *)(tile + r * rows_vectors(t->bytes)) + slack;
}

/* The end: sums [joint][here][count] become outputs. */
INLINE void rows_finish(const struct rows *a, const struct served *s, const struct step *t, local const float *sums, uint m0,
                        uint count)
{
    const uint outputs = t->here * count;
    for (uint i = st_item(); i < outputs; i += GROUP) {
        const uint r = t->row0 + i / count, m = m0 + i % count;
        float v = a->scaled ? sums[i] * s->scale : sums[i];
        if (a->join == ST_ROWS_JOIN_SWIGLU) {
            v = st_siluf(v) * sums[outputs + i];
        } else if (a->join == ST_ROWS_JOIN_MEAN) {
            global const float *x = (global const float *)a->w1 + (ulong)m * a->joint * a->rows + r;
            float sum = 0.0f;
            for (uint c = 0; c < a->joint; c++)
                sum = st_fma(st_sigmoidf(sums[c * outputs + i]), x[(ulong)c * a->rows], sum);
            v = sum / (float)a->joint;
        } else if (a->finish == ST_ROWS_FINISH_SILU) {
            v = st_siluf(v * a->share);
        } else if (a->finish == ST_ROWS_FINISH_GATE) {
            v = 2.0f * st_sigmoidf(v * a->share);
        }
        a->y[(ulong)m * a->ldy + r] = v;
    }
    st_barrier();
}

/* ---- integer activations ---- */

/* Terms of an output in a chunk of so many parts; odd, so that neighbouring outputs lie in different banks. */
#define ROWS_TERMS(type, parts) (ST_ROWS_TERMS(parts, PART_LARGE(type), PART_OFFSET(type) || (type) == T_NVFP4))

INLINE int rows_dot4(const uint *w, uint4 q)
{
    return st_dot4(w[3], q.w, st_dot4(w[2], q.z, st_dot4(w[1], q.y, st_dot4(w[0], q.x, 0))));
}

INLINE uint2 rows_pair(uint x, uint y)
{
    uint2 v;
    v.x = x;
    v.y = y;
    return v;
}

/* Q2_0: shifts give the codes of every fourth element, and the activations lie ready in that order (layout.h). The codes are
 * one too large: the activations' sum is taken away from the product. */
INLINE void rows_open(int type, struct part *w, local const uchar *row, local const uint *grid, uint p)
{
    if (type != T_Q2_0) {
        part_open(type, w, row, grid, p);
        return;
    }
    local const uchar *block = row + p / 2 * PART_BYTES(T_Q2_0);
    w->d[0] = part_half(T_Q2_0, block);
    UNROLL
    for (uint t = 0; t < 2; t++) {
        const uint q = part_32(T_Q2_0, block + 8 * (p % 2) + 4 * t, 2);
        UNROLL
        for (uint i = 0; i < 4; i++)
            w->w[4 * t + i] = q >> 2 * i & 0x03030303u;
    }
}

/* Sixteen activation bytes, the half h of part `number`, in the order of rows_open. */
INLINE uint4 rows_half(int type, global const uchar *x, uint n, uint number, uint h)
{
    if (type == T_Q2_0)
        return *(global const uint4 *)(x + ST_Q8_TRANSPOSED(n) + ((number % 4 * 2 + h) * ST_T_UNITS(n) + number / 4) * 16);
    return *(global const uint4 *)(x + ((number % 2 * 2 + h) * ST_UNITS(n) + number / 2) * 16);
}

/* Step 2 for one part and one activation row. number: of the part in the row, p: in the chunk of `parts`. */
INLINE void rows_term(int type, const struct part *w, global const uchar *x, uint n, uint number, uint p, uint parts,
                      local uint2 *terms)
{
    const uint4 q0 = rows_half(type, x, n, number, 0), q1 = rows_half(type, x, n, number, 1);
    const int first = rows_dot4(w->w, q0), second = rows_dot4(w->w + 4, q1);
    if (PART_LARGE(type)) {
        int min = 0;
        if (type == T_Q2_K) {
            const uint ones[4] = {0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u};
            min = w->min[0] * rows_dot4(ones, q0) + w->min[1] * rows_dot4(ones, q1);
        } else if (PART_MIN(type)) {
            min = w->min[0] * ((global const int *)(x + ST_Q8K_SUMS(n)))[number];
        }
        const int sum = PART_HALVES(type) ? w->scale[0] * first + w->scale[1] * second : w->scale[0] * (first + second);
        terms[p] = rows_pair((uint)sum, (uint)min);
        if (p % 8 == 0) {
            const float d = ((global const float *)(x + ST_Q8K_SCALES(n)))[number / 8];
            terms[parts + p / 8] = rows_pair(st_bits_of(w->d[0] * d), st_bits_of(-(w->m * d)));
        }
        return;
    }
    const float d = ((global const float *)(x + ST_Q8_SCALES(n)))[number];
    if (type == T_NVFP4) {
        terms[2 * p] = rows_pair(st_bits_of(w->d[0] * d), st_bits_of((float)first));
        terms[2 * p + 1] = rows_pair(st_bits_of(w->d[1] * d), st_bits_of((float)second));
    } else {
        const uint per = PART_OFFSET(type) ? 2 : 1;
        const int less = type == T_Q2_0 ? ((global const int *)(x + ST_Q8_SUMS(n)))[number] : 0;
        terms[per * p] = rows_pair(st_bits_of(w->d[0] * d), st_bits_of((float)(first + second - less)));
        if (PART_OFFSET(type))
            terms[2 * p + 1] = rows_pair(st_bits_of(w->m), st_bits_of(((global const float *)(x + ST_Q8_S(n)))[number]));
    }
}

/* Step 3 for one output. */
INLINE float rows_add(int type, local const uint2 *terms, uint parts, float acc)
{
    if (PART_LARGE(type)) {
        for (uint b = 0; b < parts / 8; b++) {
            int sum = 0, min = 0;
            UNROLL
            for (uint k = 0; k < 8; k++) {
                const uint2 v = terms[8 * b + k];
                sum += (int)v.x;
                min += (int)v.y;
            }
            const uint2 d = terms[parts + b];
            acc = st_fma(st_float_of(d.x), (float)sum, acc);
            if (PART_MIN(type))
                acc = st_fma(st_float_of(d.y), (float)min, acc);
        }
        return acc;
    }
    const uint count = PART_OFFSET(type) || type == T_NVFP4 ? 2 * parts : parts;
    UNROLL_TERMS
    for (uint i = 0; i < count; i++)
        acc = st_fma(st_float_of(terms[i].x), st_float_of(terms[i].y), acc);
    return acc;
}

/* Step 2 for a chunk. x0: the first activation row. */
INLINE void rows_multiply(int type, const struct rows *a, const struct served *s, const struct step *t, uint m0, uint count,
                          global const uchar *x0, local const uint4 *tile, local uint2 *terms, local const uint *grid)
{
    const uint rows = t->here * a->joint, per = ROWS_TERMS(type, t->some);
    const uint next_r = GROUP / t->some, next_p = GROUP - next_r * t->some;
    uint r = st_item() / t->some, p = st_item() - r * t->some;
    while (r < rows) {
        struct part part;
        rows_open(type, &part, rows_at(a, s, t, tile, r), grid, p);
        rows_term(type, &part, x0, a->n, t->from + p, p, t->some, terms + r * count * per);
        for (uint m = 1; m < count; m++)
            rows_term(type, &part, a->x + (ulong)rows_input(a, m0 + m) * a->stride, a->n, t->from + p, p, t->some,
                      terms + (r * count + m) * per);
        r += next_r;
        p += next_p;
        if (p >= t->some) {
            p -= t->some;
            r++;
        }
    }
}

/* All tiles of the group for up to eight activation rows [m0, m0 + count). */
INLINE void rows_integer(int type, const struct rows *a, const struct served *s, uint m0, uint count, local uint4 *tiles,
                         local uint2 *terms, local const uint *grid)
{
    const uint item = st_item(), parts = a->n / 32;
    global const uchar *x0 = a->x + (ulong)rows_input(a, m0) * a->stride;
    local float *sums = (local float *)terms;
    struct step now = rows_step(type, a, a->begin, 0, parts, 32);
    uint slot = 0;
    float acc = 0.0f;
    if (ROWS_SLOTS > 1) {
        rows_stage(a, s, &now, tiles);
        st_copies_commit();
    }
    while (now.tile < a->tiles) {
        const struct step next = rows_next(type, a, &now, parts, 32);
        local uint4 *tile = tiles + slot * ST_ROWS_STAGE;
        slot = ROWS_SLOTS - 1 - slot;
        if (ROWS_SLOTS == 1)
            rows_stage(a, s, &now, tile);
        else if (next.tile < a->tiles)
            rows_stage(a, s, &next, tiles + slot * ST_ROWS_STAGE);
        st_copies_commit();
        st_copies_wait(ROWS_SLOTS - 1);
        st_barrier();
        rows_multiply(type, a, s, &now, m0, count, x0, tile, terms, grid);
        st_barrier();
        const uint outputs = now.here * a->joint * count;
        if (item < outputs)
            acc = rows_add(type, terms + item * ROWS_TERMS(type, now.some), now.some, now.from == 0 ? 0.0f : acc);
        if (next.tile != now.tile) {
            st_barrier();
            if (item < outputs)
                sums[item] = acc;
            st_barrier();
            rows_finish(a, s, &now, sums, m0, count);
        }
        now = next;
    }
}

#define ROWS_ARGUMENTS                                                                                                    \
    global float *restrict y0, global float *restrict y1, global float *restrict y2, global const uchar *restrict w0,     \
        global const uchar *restrict w1, global const uchar *restrict w2, global const uchar *restrict x,                 \
        global const int *restrict first, global const int *restrict entry, global const int *restrict expert,            \
        global const float *restrict scales, uint n, uint row_bytes, uint total, uint stride, uint used, uint mode,       \
        uint scaled, uint joined, uint finish, uint tile, uint chunk, uint rows0, uint rows1, uint rows2, uint ldy0,      \
        uint ldy1, uint ldy2, uint groups0, uint groups1, uint groups2

/* The group's matrix: each has so many groups, one after the other. */
#define ROWS_VALUES(a)                                                                                                    \
    struct rows a = {y0, w0, w1, x, first, entry, expert, scales, n, rows0, row_bytes, total, stride, ldy0, used, mode,   \
                     scaled, tile, chunk, st_group(), 0, groups0, joined & 255, joined >> 8 & 255, finish & 255,          \
                     1.0f / (float)(joined >> 16)};                                                                       \
    if (a.begin >= groups0) {                                                                                             \
        a.begin -= groups0;                                                                                               \
        a.y = y1;                                                                                                         \
        a.w = w1;                                                                                                         \
        a.rows = rows1;                                                                                                   \
        a.ldy = ldy1;                                                                                                     \
        a.groups = groups1;                                                                                               \
        a.finish = finish >> 8 & 255;                                                                                     \
        if (a.begin >= groups1) {                                                                                         \
            a.begin -= groups1;                                                                                           \
            a.y = y2;                                                                                                     \
            a.w = w2;                                                                                                     \
            a.rows = rows2;                                                                                               \
            a.ldy = ldy2;                                                                                                 \
            a.groups = groups2;                                                                                           \
            a.finish = finish >> 16 & 255;                                                                                \
        }                                                                                                                 \
    }                                                                                                                     \
    a.tiles = (a.rows + tile - 1) / tile

#define ROWS_INTEGER(name, type)                                                                                          \
    KERNEL(GROUP) name(ROWS_ARGUMENTS)                                                                                    \
    {                                                                                                                     \
        LOCAL_ARRAY(uint4, weights, ROWS_SLOTS *ST_ROWS_STAGE);                                                                       \
        LOCAL_ARRAY(uint2, terms, ST_ROWS_ROOM);                                                                          \
        LOCAL_ARRAY(uint, grid, GRID_WORDS(type));                                                                        \
        ROWS_VALUES(a);                                                                                                   \
        const struct served s = rows_served(&a);                                                                          \
        if (s.from >= s.to)                                                                                               \
            return;                                                                                                       \
        part_load_grid(type, grid, GROUP);                                                                                \
        for (uint m = s.from; m < s.to; m += ST_MAX_ROWS)                                                                 \
            rows_integer(type, &a, &s, m, s.to - m < ST_MAX_ROWS ? s.to - m : ST_MAX_ROWS, weights, terms, grid);        \
    }

/* ---- FP32 activations ---- */

/* Element 16 t + j of an opened part, decoded (docs/numerics.md, 4). */
INLINE float rows_value(int type, const struct part *a, uint t, uint j)
{
    const uint word = j / 4 == 0 ? a->w[4 * t] : j / 4 == 1 ? a->w[4 * t + 1] : j / 4 == 2 ? a->w[4 * t + 2] : a->w[4 * t + 3];
    const float code = (float)(signed char)(word >> (j % 4 * 8));
    if (PART_LARGE(type)) {
        const float v = a->d[0] * (float)a->scale[t] * code;
        return PART_MIN(type) ? v - a->m * (float)a->min[t] : v;
    }
    return PART_OFFSET(type) ? a->d[t] * code + a->m : a->d[t] * code;
}

INLINE float rows_float_at(int type, local const uchar *row, uint i)
{
    return type == T_F32    ? ((local const float *)row)[i]
           : type == T_BF16 ? st_float_of((uint)((local const ushort *)row)[i] << 16)
                            : st_float_of_half(((local const ushort *)row)[i]);
}

/* Columns [at, at + some) of one output: the partial sum of columns at + j, at + 16 + j, ... */
INLINE float rows_sum(int type, local const uchar *row, local const float *x, local const uint *grid, uint some, uint j,
                      float sum)
{
    if (PART_FLOAT(type)) {
        uint i = j;
        for (; i + 112 < some; i += 128) {
            float v[8];
            UNROLL
            for (uint k = 0; k < 8; k++)
                v[k] = rows_float_at(type, row, i + 16 * k);
            UNROLL
            for (uint k = 0; k < 8; k++)
                sum = st_fma(x[i + 16 * k], v[k], sum);
        }
        for (; i < some; i += 16)
            sum = st_fma(x[i], rows_float_at(type, row, i), sum);
        return sum;
    }
    for (uint p = 0; p < some / 32; p++) {
        struct part part;
        part_open(type, &part, row, grid, p);
        UNROLL
        for (uint t = 0; t < 2; t++)
            sum = st_fma(x[32 * p + 16 * t + j], rows_value(type, &part, t, j), sum);
    }
    return sum;
}

/* The columns' activations of the chunk to local memory, [count][some] floats. The copies may be under way. */
INLINE void rows_stage_inputs(const struct rows *a, const struct step *t, local float *x, uint m0, uint count)
{
    if (a->n % 4 == 0) { /* rows start at multiples of 16 bytes */
        const uint vectors = t->some / 4;
        for (uint i = st_item(); i < count * vectors; i += GROUP) {
            const uint m = count == 1 ? 0 : i / vectors;
            global const uint4 *row = (global const uint4 *)(a->x + (ulong)rows_input(a, m0 + m) * a->stride + 4 * t->from);
            st_copy_issue((local uint4 *)x + i, row + (i - m * vectors));
        }
        return;
    }
    for (uint i = st_item(); i < count * t->some; i += GROUP)
        x[i] = ((global const float *)(a->x + (ulong)rows_input(a, m0 + i / t->some) * a->stride))[t->from + i % t->some];
}

/* The canonical tree over sixteen partial sums. */
INLINE float rows_tree(local const float *v)
{
    float sum[8];
    UNROLL
    for (uint j = 0; j < 8; j++)
        sum[j] = v[j] + v[j + 8];
    UNROLL
    for (uint j = 0; j < 4; j++)
        sum[j] = sum[j] + sum[j + 4];
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

/* As rows_integer; chunk counts columns, a multiple of the block and of 16. */
INLINE void rows_float(int type, const struct rows *a, const struct served *s, uint m0, uint count, local uint4 *tiles,
                       local float *inputs, local float *sums, local const uint *grid)
{
    const uint item = st_item(), team = item / 16, j = item % 16;
    struct step now = rows_step(type, a, a->begin, 0, a->n, 1);
    uint slot = 0;
    if (ROWS_SLOTS > 1) {
        rows_stage(a, s, &now, tiles);
        rows_stage_inputs(a, &now, inputs, m0, count);
        st_copies_commit();
    }
    while (now.tile < a->tiles) {
        const struct step next = rows_next(type, a, &now, a->n, 1);
        const uint outputs = now.here * a->joint * count, other = ROWS_SLOTS - 1 - slot;
        local uint4 *tile = tiles + slot * ST_ROWS_STAGE;
        local float *x = inputs + slot * ST_ROWS_INPUTS;
        if (ROWS_SLOTS == 1 || next.tile < a->tiles) {
            const struct step *wanted = ROWS_SLOTS == 1 ? &now : &next;
            rows_stage(a, s, wanted, tiles + other * ST_ROWS_STAGE);
            rows_stage_inputs(a, wanted, inputs + other * ST_ROWS_INPUTS, m0, count);
        }
        st_copies_commit();
        st_copies_wait(ROWS_SLOTS - 1);
        st_barrier();
        for (uint o = team; o < outputs; o += GROUP / 16) {
            local float *sum = sums + o * ST_ROWS_TEAM + j;
            *sum = rows_sum(type, rows_at(a, s, &now, tile, o / count), x + o % count * now.some, grid, now.some, j,
                            now.from == 0 ? 0.0f : *sum);
        }
        st_barrier();
        if (next.tile != now.tile) {
            float total = 0.0f;
            if (item < outputs)
                total = rows_tree(sums + item * ST_ROWS_TEAM);
            st_barrier();
            if (item < outputs)
                sums[item] = total;
            st_barrier();
            rows_finish(a, s, &now, sums, m0, count);
        }
        slot = other;
        now = next;
    }
}

#define ROWS_FLOAT(name, type)                                                                                            \
    KERNEL(GROUP) name(ROWS_ARGUMENTS)                                                                                    \
    {                                                                                                                     \
        LOCAL_ARRAY(uint4, weights, ROWS_SLOTS *ST_ROWS_STAGE);                                                                       \
        LOCAL_ARRAY(uint4, inputs, ROWS_SLOTS *ST_ROWS_INPUTS / 4);                                                                  \
        LOCAL_ARRAY(float, sums, ST_ROWS_OUTPUTS *ST_ROWS_TEAM);                                                          \
        LOCAL_ARRAY(uint, grid, GRID_WORDS(type));                                                                        \
        ROWS_VALUES(a);                                                                                                   \
        const struct served s = rows_served(&a);                                                                          \
        if (s.from >= s.to)                                                                                               \
            return;                                                                                                       \
        part_load_grid(type, grid, GROUP);                                                                                \
        st_barrier();                                                                                                     \
        for (uint m = s.from; m < s.to; m += ST_MAX_ROWS)                                                                 \
            rows_float(type, &a, &s, m, s.to - m < ST_MAX_ROWS ? s.to - m : ST_MAX_ROWS, weights, (local float *)inputs,  \
                       sums, grid);                                                                                       \
    }

#endif
