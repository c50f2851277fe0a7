/* The body of the products that read weights once: rows of a weight matrix, or of the chosen experts' matrices, times up to
 * eight activation rows at a time, with the arithmetic of docs/numerics.md to the bit.
 *
 * A group of 128 work-items has `tile` weight rows, whose columns it goes through in chunks:
 *  1. the chunk's bytes of the rows come to local memory by 16-byte copies, neighbours copying neighbours;
 *  2. integer activations: each work-item opens parts of 32 weights (open.h) and multiplies them with every activation row;
 *     what a part adds to an output, two words, goes to local memory (`terms`). FP32 activations: sixteen work-items have an
 *     output, each its partial sum;
 *  3. one work-item for each output adds its terms in ascending order.
 * Other groups on the same unit hide the barriers between the steps. With FP32 activations two chunks share the local memory, one
 * on its way while the other is multiplied. Whole-number divisions cost a hundred cycles before the first byte is asked for, so
 * there are none where a loop of few turns or a comparison does. Limit: device memory; of small matrices the way from the launch to
 * the first bytes; for several activation rows the integer products.
 *
 * The launch: struct st_gpu_rows in kernel/gpu_rows.h. */
#ifndef ST_ROWS_H
#define ST_ROWS_H

#include "layout.h"
#include "open.h"

#define GROUP ST_ROWS_GROUP
#define ROWS_JOINT 8 /* matrices that make one output, at most */

/* What a group is given; meanings in kernel/gpu_rows.h. */
struct rows {
    global float *y;
    global const uchar *w, *w1, *x;
    global const int *first, *entry, *expert;
    global const float *scales;
    global const ulong *places; /* with ST_ROWS_PLACED: of each expert */
    uint expert_bytes;
    uint n, rows, row_bytes, total, stride, ldy, used, mode, scaled, tile, chunk;
    uint row0, here;           /* first weight row of the group, and how many */
    uint joint, join, finish;  /* matrices that make one output, how (ST_ROWS_JOIN_*), what follows (ST_ROWS_FINISH_*) */
    uint streams;
};

/* a / b for a small result: its turns are counted. */
INLINE uint rows_quotient(uint a, uint b, uint *rest)
{
    uint q = 0;
    KEEP_LOOP
    for (; a >= b; q++)
        a -= b;
    *rest = a;
    return q;
}

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
    s.matrix = a->places ? a->places[e] : (ulong)e * a->expert_bytes;
    if (s.matrix == ST_NO_PLACE)
        s.to = s.from;
    s.scale = a->scaled == 0 ? 1.0f : a->scales[a->scaled == 2 ? e : 0];
    return s;
}

/* The row of x for output row i. */
INLINE uint rows_input(const struct rows *a, uint i)
{
    return a->used ? (uint)a->entry[i] / a->used : i;
}

/* Row r of the group's matrices, one after the other: rows of w, then those of the matrix joined to it. */
INLINE global const uchar *rows_row(const struct rows *a, const struct served *s, uint r)
{
    uint own = r;
    const uint matrix = a->joint == 1 ? 0 : rows_quotient(r, a->here, &own);
    const ulong row = a->row0 + own;
    if (a->join == ST_ROWS_JOIN_SWIGLU)
        return (matrix ? a->w1 : a->w) + s->matrix + row * a->row_bytes;
    return a->w + s->matrix + ((ulong)matrix * a->rows + row) * a->row_bytes;
}

/* Vectors of 16 bytes that `bytes` bytes at any address can touch. */
INLINE uint rows_vectors(uint bytes)
{
    return (bytes + 15 + 15) / 16;
}

/* Step 1: `bytes` bytes of each row from offset `at` on, a row by 32 neighbours or, of few rows, by the whole group. The copies may
 * be under way. */
INLINE void rows_stage(const struct rows *a, const struct served *s, local uint4 *tile, uint at, uint bytes)
{
    const uint vectors = rows_vectors(bytes), rows = a->here * a->joint, team = rows < GROUP / 32 ? GROUP : 32;
    for (uint r = st_item() / team; r < rows; r += GROUP / team) {
        const ulong from = (ulong)(rows_row(a, s, r) + at), first = from & ~15ul;
        local uint4 *to = tile + r * vectors;
        UNROLL_COPIES
        for (uint v = st_item() % team; v < vectors; v += team)
            if (first + 16 * v < from + bytes)
                st_copy_issue(to + v, (global const uint4 *)(first + 16 * v));
    }
}

/* Where row r of the tile begins in local memory: as far behind a multiple of 16 as in the matrix. Only the lowest bits of the
 * addresses are computed. */
INLINE local const uchar *rows_at(const struct rows *a, const struct served *s, local const uint4 *tile, uint r, uint at,
                                  uint bytes)
{
    uint own = r;
    const uint matrix = a->joint == 1 ? 0 : rows_quotient(r, a->here, &own);
    uint row = a->row0 + own;
    global const uchar *w = a->w;
    if (a->join == ST_ROWS_JOIN_SWIGLU)
        w = matrix ? a->w1 : w;
    else
        row += matrix * a->rows;
    const uint slack = ((uint)(ulong)w + (uint)s->matrix + row * a->row_bytes + at) & 15;
    return (local const uchar *)(tile + r * rows_vectors(bytes)) + slack;
}

/* The end: sums [joint][here][count] become outputs. */
INLINE void rows_finish(const struct rows *a, const struct served *s, local const float *sums, uint m0, uint count)
{
    const uint outputs = a->here * count;
    for (uint i = st_item(); i < outputs; i += GROUP) {
        const uint own = count == 1 ? i : i / count, r = a->row0 + own, m = m0 + i - own * count;
        float v = a->scaled ? sums[i] * s->scale : sums[i];
        if (a->join == ST_ROWS_JOIN_SWIGLU) {
            v = st_siluf(v) * sums[outputs + i];
        } else if (a->join == ST_ROWS_JOIN_MEAN) {
            global const float *x = (global const float *)a->w1 + (ulong)m * a->joint * a->rows + r;
            float value[ROWS_JOINT], sum = 0.0f;
            UNROLL
            for (uint c = 0; c < ROWS_JOINT; c++)
                value[c] = c < a->joint ? x[(ulong)c * a->rows] : 0.0f;
            UNROLL
            for (uint c = 0; c < ROWS_JOINT; c++)
                if (c < a->joint)
                    sum = st_fma(st_sigmoidf(sums[c * outputs + i]), value[c], sum);
            v = sum / (float)a->joint;
        } else if (a->finish == ST_ROWS_FINISH_SILU) {
            v = st_siluf(v * (1.0f / (float)a->streams));
        } else if (a->finish == ST_ROWS_FINISH_GATE) {
            v = 2.0f * st_sigmoidf(v * (1.0f / (float)a->streams));
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

/* What a work-item opens at once: parts that lie in the same bytes. */
#define UNIT_PARTS(type) ((uint)((type) == T_Q2_0 || (type) == T_Q6_K ? 2 : 1))
/* The part h of unit u. */
#define UNIT_PART(type, u, h) \
    ((type) == T_Q2_0 ? 2 * (u) + (h) : (type) == T_Q6_K ? (u) / 4 * 8 + (u) / 2 % 2 * 4 + (u) % 2 + 2 * (h) : (u))

/* Opens unit u of a row. Two types are left as they lie, and what the codes are too large by is taken away from the products
 * (rows_term): Q2_0, whose shifts give the codes of every fourth element, in which order the activations lie ready (layout.h), and
 * Q6_K, where a byte of low bits has elements of two parts, one of high bits of four. */
INLINE void rows_open(int type, struct part *w, local const uchar *row, local const uint *grid, uint u)
{
    if (type == T_Q2_0) {
        local const uchar *block = row + u * PART_BYTES(T_Q2_0);
        uint q[4];
        part_run(type, q, block + 2, 4);
        w[0].d[0] = w[1].d[0] = part_half(type, block);
        UNROLL
        for (uint t = 0; t < 4; t++)
            UNROLL
            for (uint i = 0; i < 4; i++)
                w[t / 2].w[t % 2 * 4 + i] = q[t] >> 2 * i & 0x03030303u;
    } else if (type == T_Q6_K) {
        local const uchar *block = row + u / 4 * PART_BYTES(T_Q6_K);
        const uint n = u / 2 % 2, g = u % 2;
        uint low[8], high[8];
        part_run(type, low, block + 64 * n + 32 * g, 8);
        part_run(type, high, block + 128 + 32 * n, 8);
        UNROLL
        for (uint h = 0; h < 2; h++) {
            UNROLL
            for (uint i = 0; i < 8; i++)
                w[h].w[i] = (low[i] >> 4 * h & 0x0f0f0f0fu) | (high[i] >> (2 * g + 4 * h) & 0x03030303u) << 4;
            UNROLL
            for (uint t = 0; t < 2; t++)
                w[h].scale[t] = (int)(signed char)block[192 + 2 * (4 * n + g + 2 * h) + t];
        }
        w[0].d[0] = part_half(type, block + 208);
        w[0].m = 0.0f;
    } else {
        part_open(type, w, row, grid, u);
    }
}

/* Sixteen activation bytes, the half h of part `number`, in the order of rows_open. */
INLINE uint4 rows_half(int type, global const uchar *x, uint n, uint number, uint h)
{
    if (type == T_Q2_0)
        return *(global const uint4 *)(x + ST_Q8_TRANSPOSED(n) + ((number % 4 * 2 + h) * ST_T_UNITS(n) + number / 4) * 16);
    return *(global const uint4 *)(x + ((number % 2 * 2 + h) * ST_UNITS(n) + number / 2) * 16);
}

/* What a part is multiplied with: 32 activations of one row. */
struct inputs {
    uint4 q[2];
    int sum[2]; /* of all, or of each 16 */
    float d, s; /* their scale (large types: of the block, for its first part alone), and what minima are multiplied with */
};

/* Activations `number` of row x. */
INLINE void rows_read(int type, struct inputs *in, global const uchar *x, uint n, uint number)
{
    UNROLL
    for (uint h = 0; h < 2; h++)
        in->q[h] = rows_half(type, x, n, number, h);
    in->sum[0] = in->sum[1] = 0;
    in->d = in->s = 0.0f;
    if (type == T_Q2_K || type == T_Q6_K) {
        const uint ones[4] = {0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u};
        UNROLL
        for (uint h = 0; h < 2; h++)
            in->sum[h] = rows_dot4(ones, in->q[h]);
    } else if (PART_MIN(type)) {
        in->sum[0] = ((global const int *)(x + ST_Q8K_SUMS(n)))[number];
    } else if (type == T_Q2_0) {
        in->sum[0] = ((global const int *)(x + ST_Q8_SUMS(n)))[number];
    }
    if (!PART_LARGE(type))
        in->d = ((global const float *)(x + ST_Q8_SCALES(n)))[number];
    else if (number % 8 == 0)
        in->d = ((global const float *)(x + ST_Q8K_SCALES(n)))[number / 8];
    if (PART_OFFSET(type))
        in->s = ((global const float *)(x + ST_Q8_S(n)))[number];
}

/* Step 2 for one part and one activation row. p: number of the part in the chunk of `parts`. */
INLINE void rows_term(int type, const struct part *w, const struct inputs *in, uint p, uint parts, local uint2 *terms)
{
    int first = rows_dot4(w->w, in->q[0]), second = rows_dot4(w->w + 4, in->q[1]);
    if (PART_LARGE(type)) {
        int min = 0;
        if (type == T_Q6_K) {
            first -= 32 * in->sum[0];
            second -= 32 * in->sum[1];
        } else if (type == T_Q2_K) {
            min = w->min[0] * in->sum[0] + w->min[1] * in->sum[1];
        } else if (PART_MIN(type)) {
            min = w->min[0] * in->sum[0];
        }
        const int sum = PART_HALVES(type) ? w->scale[0] * first + w->scale[1] * second : w->scale[0] * (first + second);
        terms[p] = rows_pair((uint)sum, (uint)min);
        if (p % 8 == 0)
            terms[parts + p / 8] = rows_pair(st_bits_of(w->d[0] * in->d), st_bits_of(-(w->m * in->d)));
        return;
    }
    if (type == T_NVFP4) {
        terms[2 * p] = rows_pair(st_bits_of(w->d[0] * in->d), st_bits_of((float)first));
        terms[2 * p + 1] = rows_pair(st_bits_of(w->d[1] * in->d), st_bits_of((float)second));
    } else {
        const uint per = PART_OFFSET(type) ? 2 : 1;
        const int less = type == T_Q2_0 ? in->sum[0] : 0;
        terms[per * p] = rows_pair(st_bits_of(w->d[0] * in->d), st_bits_of((float)(first + second - less)));
        if (PART_OFFSET(type))
            terms[2 * p + 1] = rows_pair(st_bits_of(w->m), st_bits_of(in->s));
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

/* The activations of unit u for row m of those from m0 on; number: of the chunk's first part in the row. */
INLINE void rows_read_unit(int type, struct inputs *in, const struct rows *a, uint m, uint number, uint u)
{
    global const uchar *x = a->x + (ulong)rows_input(a, m) * a->stride;
    UNROLL
    for (uint h = 0; h < UNIT_PARTS(type); h++)
        rows_read(type, &in[h], x, a->n, number + UNIT_PART(type, u, h));
}

/* All columns for up to eight activation rows [m0, m0 + count) of the group's tile. A work-item has one unit of columns of every
 * `lanes`-th row, so it reads one activation row's once. places: where rows begin in local memory. */
INLINE void rows_integer(int type, const struct rows *a, const struct served *s, uint m0, uint count, local uint4 *tile,
                         local uint2 *terms, local uint *places, local const uint *grid)
{
    const uint item = st_item(), parts = a->n / 32, rows = a->here * a->joint;
    float acc = 0.0f;
    for (uint from = 0; from < parts; from += a->chunk) {
        const uint some = parts - from < a->chunk ? parts - from : a->chunk, per = ROWS_TERMS(type, some);
        const uint at = from / (PART_ELEMS(type) / 32) * PART_BYTES(type);
        const uint bytes = (some + PART_ELEMS(type) / 32 - 1) / (PART_ELEMS(type) / 32) * PART_BYTES(type);
        rows_stage(a, s, tile, at, bytes);
        st_copies_commit();
        if (item < rows)
            places[item] = (uint)(rows_at(a, s, tile, item, at, bytes) - (local const uchar *)tile);
        const uint units = some / UNIT_PARTS(type);
        uint u, rest, lanes = rows_quotient(GROUP, units, &rest), have = 0;
        const uint r0 = rows_quotient(item, units, &u);
        struct inputs in[2];
        lanes = lanes ? lanes : 1;
        st_await_earlier();
        if (r0 < lanes && u < units)
            rows_read_unit(type, in, a, m0, from, u);
        st_copies_wait(0);
        st_barrier();
        for (; r0 < lanes && u < units; u += GROUP, have = count) {
            for (uint r = r0; r < rows; r += lanes) {
                struct part part[2];
                rows_open(type, part, (local const uchar *)tile + places[r], grid, u);
                for (uint m = 0; m < count; m++) {
                    if (m != have)
                        rows_read_unit(type, in, a, m0 + m, from, u);
                    have = m;
                    UNROLL
                    for (uint h = 0; h < UNIT_PARTS(type); h++)
                        rows_term(type, &part[h], &in[h], UNIT_PART(type, u, h), some, terms + (r * count + m) * per);
                }
            }
        }
        st_barrier();
        if (item < rows * count)
            acc = rows_add(type, terms + item * per, some, acc);
    }
    st_barrier();
    local float *sums = (local float *)terms;
    if (item < rows * count)
        sums[item] = acc;
    st_barrier();
    rows_finish(a, s, sums, m0, count);
}

#define ROWS_ARGUMENTS \
    global float *restrict y0, global float *restrict y1, global float *restrict y2, global float *restrict y3, \
        global const uchar *restrict w0, global const uchar *restrict w1, global const uchar *restrict w2, \
        global const uchar *restrict w3, global const uchar *restrict x, global const int *restrict first, \
        global const int *restrict entry, global const int *restrict expert, global const float *restrict scales, uint n, \
        uint row_bytes, uint total, uint stride, uint used, uint mode, uint scaled, uint joined, uint finish, uint tile, \
        uint chunk, uint rows0, uint rows1, uint rows2, uint rows3, uint ldy0, uint ldy1, uint ldy2, uint ldy3

/* Which matrix the group has, and which of its rows. */
#define ROWS_VALUES(a) \
    struct rows a = {y0, w0, w1, x, first, entry, expert, scales, mode & ST_ROWS_PLACED ? (global const ulong *)w2 : 0, \
                     ldy1, n, rows0, row_bytes, total, stride, ldy0, used, mode & ~ST_ROWS_PLACED, scaled, tile, \
                     chunk, 0, 0, joined & 255, joined >> 8 & 255, finish & 255, joined >> 16}; \
    uint group = st_group(); \
    if (group * tile >= rows0) { \
        group -= ROWS_TILES(rows0, tile); \
        a.y = y1; \
        a.w = w1; \
        a.rows = rows1; \
        a.ldy = ldy1; \
        a.finish = finish >> 8 & 255; \
        if (group * tile >= rows1) { \
            group -= ROWS_TILES(rows1, tile); \
            a.y = y2; \
            a.w = w2; \
            a.rows = rows2; \
            a.ldy = ldy2; \
            a.finish = finish >> 16 & 255; \
            if (group * tile >= rows2) { \
                group -= ROWS_TILES(rows2, tile); \
                a.y = y3; \
                a.w = w3; \
                a.rows = rows3; \
                a.ldy = ldy3; \
                a.finish = finish >> 24; \
            } \
        } \
    } \
    a.row0 = group * tile; \
    a.here = a.rows - a.row0 < tile ? a.rows - a.row0 : tile

/* The first weights may be asked for while earlier kernels still run: what and where they are does not depend on those. */
#define ROWS_EARLY(a) ((a).mode == ST_ROWS_DENSE && !(a).scaled)
#define ROWS_TILES(rows, tile) (((rows) + (tile)-1) / (tile))

#define ROWS_INTEGER(name, type) \
    KERNEL(GROUP) name(ROWS_ARGUMENTS) \
    { \
        LOCAL_ARRAY(uint4, weights, ST_ROWS_STAGE); \
        LOCAL_ARRAY(uint2, terms, ST_ROWS_ROOM); \
        LOCAL_ARRAY(uint, grid, GRID_WORDS(type)); \
        LOCAL_ARRAY(uint, places, GROUP); \
        ROWS_VALUES(a); \
        st_let_next_start(); \
        if (!ROWS_EARLY(a)) \
            st_await_earlier(); \
        const struct served s = rows_served(&a); \
        if (s.from >= s.to) \
            return; \
        part_load_grid(type, grid, GROUP); \
        for (uint m = s.from; m < s.to; m += ST_MAX_ROWS) \
            rows_integer(type, &a, &s, m, s.to - m < ST_MAX_ROWS ? s.to - m : ST_MAX_ROWS, weights, terms, places, \
                         grid); \
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

#define ROWS_RUN 8 /* elements that a work-item reads while it adds as many */

/* Elements i, i + 16, ... of a row and of the activations. */
INLINE void rows_run(int type, float *v, float *u, local const uchar *row, local const float *x, uint i)
{
    UNROLL
    for (uint k = 0; k < ROWS_RUN; k++) {
        v[k] = rows_float_at(type, row, i + 16 * k);
        u[k] = x[i + 16 * k];
    }
}

INLINE float rows_add_run(const float *v, const float *u, float sum)
{
    UNROLL
    for (uint k = 0; k < ROWS_RUN; k++)
        sum = st_fma(u[k], v[k], sum);
    return sum;
}

/* Columns [at, at + some) of one output: the partial sum of columns at + j, at + 16 + j, ... Of float weights the next run is
 * read while one is added: the additions wait for one another, the reads do not. */
INLINE float rows_sum(int type, local const uchar *row, local const float *x, local const uint *grid, uint some, uint j,
                      float sum)
{
    if (PART_FLOAT(type)) {
        const uint step = 16 * ROWS_RUN, whole = some / step;
        float v[ROWS_RUN], u[ROWS_RUN], next_v[ROWS_RUN], next_u[ROWS_RUN];
        if (whole)
            rows_run(type, v, u, row, x, j);
        uint run = 0;
        for (; run + 2 < whole; run += 2) {
            rows_run(type, next_v, next_u, row, x, (run + 1) * step + j);
            sum = rows_add_run(v, u, sum);
            rows_run(type, v, u, row, x, (run + 2) * step + j);
            sum = rows_add_run(next_v, next_u, sum);
        }
        if (run < whole)
            sum = rows_add_run(v, u, sum);
        if (run + 1 < whole) {
            rows_run(type, v, u, row, x, (run + 1) * step + j);
            sum = rows_add_run(v, u, sum);
        }
        for (uint i = whole * step + j; i < some; i += 16)
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
INLINE void rows_stage_inputs(const struct rows *a, local float *x, uint m0, uint count, uint from, uint some)
{
    if (a->n % 4 == 0) { /* rows start at multiples of 16 bytes */
        const uint vectors = some / 4;
        for (uint i = st_item(); i < count * vectors; i += GROUP) {
            const uint m = count == 1 ? 0 : i / vectors;
            global const uint4 *row = (global const uint4 *)(a->x + (ulong)rows_input(a, m0 + m) * a->stride + 4 * from);
            st_copy_issue((local uint4 *)x + i, row + (i - m * vectors));
        }
        return;
    }
    for (uint i = st_item(); i < count * some; i += GROUP)
        x[i] = ((global const float *)(a->x + (ulong)rows_input(a, m0 + i / some) * a->stride))[from + i % some];
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

/* The copies of the chunk from column `from` on: weights and activations. */
INLINE void rows_stage_floats(int type, const struct rows *a, const struct served *s, uint m0, uint count, local uint4 *tile,
                              local float *x, uint from)
{
    const uint some = a->n - from < a->chunk ? a->n - from : a->chunk;
    rows_stage(a, s, tile, from / PART_ELEMS(type) * PART_BYTES(type), some / PART_ELEMS(type) * PART_BYTES(type));
    st_await_earlier();
    rows_stage_inputs(a, x, m0, count, from, some);
    st_copies_commit();
}

/* As rows_integer; chunk counts columns, a multiple of the block and of 16. Where there are several chunks, one fits into half of
 * the local memory, and the next is on its way while it is multiplied. */
INLINE void rows_float(int type, const struct rows *a, const struct served *s, uint m0, uint count, local uint4 *tile,
                       local float *x, local float *sums, local const uint *grid)
{
    const uint item = st_item(), team = item / 16, j = item % 16, outputs = a->here * a->joint * count;
    uint turn = 0;
    rows_stage_floats(type, a, s, m0, count, tile, x, 0);
    for (uint from = 0; from < a->n; from += a->chunk, turn ^= 1) {
        const uint some = a->n - from < a->chunk ? a->n - from : a->chunk;
        const uint at = from / PART_ELEMS(type) * PART_BYTES(type), bytes = some / PART_ELEMS(type) * PART_BYTES(type);
        local const uint4 *weights = tile + turn * (ST_ROWS_STAGE / 2);
        local const float *inputs = x + turn * (ST_ROWS_INPUTS / 2);
        st_copies_wait(0);
        st_barrier();
        if (from + a->chunk < a->n)
            rows_stage_floats(type, a, s, m0, count, tile + (turn ^ 1) * (ST_ROWS_STAGE / 2), x + (turn ^ 1) * (ST_ROWS_INPUTS / 2),
                              from + a->chunk);
        for (uint o = team; o < outputs; o += GROUP / 16) {
            const uint r = count == 1 ? o : o / count;
            local float *sum = sums + o * ST_ROWS_TEAM + j;
            *sum = rows_sum(type, rows_at(a, s, weights, r, at, bytes), inputs + (o - r * count) * some, grid, some, j,
                            from == 0 ? 0.0f : *sum);
        }
    }
    st_barrier();
    float total = 0.0f;
    if (item < outputs)
        total = rows_tree(sums + item * ST_ROWS_TEAM);
    st_barrier();
    if (item < outputs)
        sums[item] = total;
    st_barrier();
    rows_finish(a, s, sums, m0, count);
}

#define ROWS_FLOAT(name, type) \
    KERNEL(GROUP) name(ROWS_ARGUMENTS) \
    { \
        LOCAL_ARRAY(uint4, weights, ST_ROWS_STAGE); \
        LOCAL_ARRAY(uint4, inputs, ST_ROWS_INPUTS / 4); \
        LOCAL_ARRAY(float, sums, ST_ROWS_OUTPUTS *ST_ROWS_TEAM); \
        LOCAL_ARRAY(uint, grid, GRID_WORDS(type)); \
        ROWS_VALUES(a); \
        st_let_next_start(); \
        if (!ROWS_EARLY(a)) \
            st_await_earlier(); \
        const struct served s = rows_served(&a); \
        if (s.from >= s.to) \
            return; \
        part_load_grid(type, grid, GROUP); \
        st_barrier(); \
        for (uint m = s.from; m < s.to; m += ST_MAX_ROWS) \
            rows_float(type, &a, &s, m, s.to - m < ST_MAX_ROWS ? s.to - m : ST_MAX_ROWS, weights, (local float *)inputs, \
                       sums, grid); \
    }

#endif
