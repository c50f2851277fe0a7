/* The body of the prompt products: many activation rows times weight rows by the device's integer matrix units, with the
 * arithmetic of docs/numerics.md to the bit: exact integers for each block, one float accumulator for each output, blocks in
 * ascending order.
 *
 * A group of 256 work-items computes a tile of outputs: GEMM_OUT weight rows times GEMM_ROWS(mode) activation rows, going
 * through the columns in steps of GEMM_STEP:
 *  1. weights come to local memory as signed bytes with their scales, activation bytes by 16-byte copies;
 *  2. every wave multiplies its share of the tile, 16 x 16 outputs at a time (st_tile_product), and adds the exact sums with
 *     their scales: types of 32 and 64 elements to the float accumulators, types of 256 to integers that are added to the
 *     accumulators at the end of each block.
 * Where copies run ahead, local memory holds two steps. In GEMM_FEW and GEMM_PAIR every work-item opens one part (32 weights,
 * open.h) of one weight row, half of the waves the next step's before they multiply while the others do it afterwards, so that
 * memory, vector and matrix units work at the same time. GEMM_WIDE and GEMM_LARGE take weights that are open already (gemm_wide.h).
 * Limit: instructions of scaling (three for each output and 32 columns) and of opening.
 *
 * Modes: GEMM_WIDE 128 activation rows; GEMM_LARGE the same for types of 256, whose sums take two registers each, by a group of
 * 512 work-items; GEMM_FEW 64 and tiles of 16 of them skipped where there are fewer; GEMM_PAIR as FEW
 * with 64 rows of two matrices each, whose results are joined (silu(gate) * up). */
#ifndef ST_GEMM_H
#define ST_GEMM_H

#include "opened.h"

#define GEMM_GROUP 256
#define GEMM_LARGE_GROUP 512
#define GEMM_OUT ST_GEMM_OUT
#define GEMM_WIDE 0
#define GEMM_FEW 1
#define GEMM_PAIR 2
#define GEMM_LARGE 3
#define GEMM_IS_WIDE(mode) ((mode) == GEMM_WIDE || (mode) == GEMM_LARGE)
#define GEMM_ROWS(mode) (GEMM_IS_WIDE(mode) ? ST_GEMM_WIDE : ST_GEMM_FEW)
#define GEMM_STEP 64
/* Bytes from row to row in local memory; multiples of 16 with which eight neighbouring rows are in different banks. */
#define GEMM_STRIDE 80
#define GEMM_MIN_STRIDE 48

/* How the tile is shared: GEMM_PARTS waves side by side over the activation rows (tile number i of 16 rows belongs to wave
 * i % GEMM_PARTS), each with GEMM_A x GEMM_B tiles of 16 x 16; GEMM_PAIR: the tiles of a wave alternate between gate and up. */
#if ST_LANES == 32
#define GEMM_PARTS(mode) ((mode) == GEMM_FEW ? 1 : (mode) == GEMM_LARGE ? 4 : 2)
#define GEMM_A(mode) ((mode) == GEMM_PAIR || (mode) == GEMM_LARGE ? 2 : 4)
#define GEMM_B(mode) ((mode) == GEMM_FEW ? 1 : 2)
#elif ST_LANES == 64
#define GEMM_PARTS(mode) (GEMM_IS_WIDE(mode) ? 2 : 1)
#define GEMM_A(mode) 4
#define GEMM_B(mode) ((mode) == GEMM_WIDE ? 4 : 2)
#else /* a work-item is a wave; 16 or 32 of them multiply */
#define GEMM_PARTS(mode) 4
#define GEMM_A(mode) (GEMM_IS_WIDE(mode) ? 2 : 1)
#define GEMM_B(mode) ((mode) == GEMM_PAIR ? 2 : 1)
#endif
/* Tiles without activation rows are left out, except where all are there as a rule and a branch would keep the compiler from
 * mixing the work of neighbouring tiles. */
#define GEMM_SKIPS(mode) (!GEMM_IS_WIDE(mode) || !ST_COPIES_AHEAD)
#define GEMM_B_MOST (ST_LANES == 64 ? 4 : 2)
#define GEMM_WAVES(mode) (GEMM_OUT / 16 / GEMM_B(mode) * GEMM_PARTS(mode))
#define GEMM_TILES_MOST (ST_LANES == 64 ? 16 : ST_LANES == 32 ? 8 : 2)
#if defined(ST_TILE_NVIDIA) || defined(ST_TILE_WMMA) || ST_LANES == 64
#define GEMM_UNROLL_PARTS UNROLL
#else /* a part is long without matrix units */
#define GEMM_UNROLL_PARTS KEEP_LOOP
#endif
#if ST_LANES == 1
#define GEMM_UNROLL
#else
#define GEMM_UNROLL UNROLL
#endif

/* Local memory, in bytes from its start. Scales of a step: part by part (of 16 or 32 columns), a row of GEMM_OUT numbers
 * each, floats or the integers of the types of 256; then the floats that are added (PART_OFFSET). */
/* Steps in local memory, and steps between two barriers: of large products two where a unit has room for it. */
#if defined(__NVPTX__) && __CUDA_ARCH__ == 900
#define GEMM_SLOTS(mode) (GEMM_IS_WIDE(mode) ? 4 : 2)
#define GEMM_BATCH(mode) (GEMM_IS_WIDE(mode) ? 2 : 1)
#else
#define GEMM_SLOTS(mode) (ST_COPIES_AHEAD ? 2 : 1)
#define GEMM_BATCH(mode) 1
#endif
#define GEMM_XS_SLOTS(mode) (GEMM_SLOTS(mode) > 2 ? 2 : GEMM_SLOTS(mode))
#define GEMM_SCALES(type) (PART_HALVES(type) ? 4 : 2)
#define GEMM_W_BYTES (GEMM_OUT * GEMM_STRIDE)
#define GEMM_X_BYTES(mode) (GEMM_ROWS(mode) * GEMM_STRIDE)
#define GEMM_WS_BYTES(type) ((GEMM_SCALES(type) + (PART_OFFSET(type) ? 2 : 0)) * GEMM_OUT * 4)
/* Of activations, floats: the scales of the step's parts, then the sums, part by part; GEMM_WIDE: those of 256 columns, eight to
 * an activation row. */
#define GEMM_XS_ROW 32
#define GEMM_XS_BYTES(type, mode) \
    (PART_LARGE(type) ? 0 : (PART_OFFSET(type) ? 2 : 1) * GEMM_ROWS(mode) * (GEMM_IS_WIDE(mode) ? GEMM_XS_ROW : 8))
#define GEMM_AT_X(type, mode) (GEMM_SLOTS(mode) * GEMM_W_BYTES)
#define GEMM_AT_WS(type, mode) (GEMM_AT_X(type, mode) + GEMM_SLOTS(mode) * GEMM_X_BYTES(mode))
#define GEMM_AT_XS(type, mode) (GEMM_AT_WS(type, mode) + GEMM_SLOTS(mode) * GEMM_WS_BYTES(type))
/* Of blocks of 256, once: d and dmin of the weights, d of the activations, minima (bytes, each sixteen twice) and the sums of
 * 16 activations (sixteen upper, sixteen lower bytes). */
#define GEMM_AT_WD(type, mode) (GEMM_AT_XS(type, mode) + GEMM_XS_SLOTS(mode) * GEMM_XS_BYTES(type, mode))
#define GEMM_AT_WM(type, mode) (GEMM_AT_WD(type, mode) + (PART_LARGE(type) ? GEMM_OUT * 4 : 0))
#define GEMM_AT_XD(type, mode) (GEMM_AT_WM(type, mode) + (PART_MIN(type) ? GEMM_OUT * 4 : 0))
#define GEMM_AT_MINS(type, mode) (GEMM_AT_XD(type, mode) + (PART_LARGE(type) ? GEMM_ROWS(mode) * 4 : 0))
#define GEMM_AT_SUMS(type, mode) (GEMM_AT_MINS(type, mode) + (PART_MIN(type) ? GEMM_OUT * GEMM_MIN_STRIDE : 0))
#define GEMM_AT_GRID(type, mode) (GEMM_AT_SUMS(type, mode) + (PART_MIN(type) ? GEMM_ROWS(mode) * GEMM_MIN_STRIDE : 0))
#define GEMM_BYTES(type, mode) (GEMM_AT_GRID(type, mode) + (PART_GRID(type) ? GRID_WORDS(type) * 4 : 0))
#define GEMM_FLOATS(at) ((local float *)(memory + (at)))
#define GEMM_INTS(at) ((local int *)(memory + (at)))

/* Where a work-item takes its share of a step from. */
struct gemm_source {
    global const uchar *weights; /* the row that it opens a part of, if it does */
    global const uchar *x[2];    /* the rows of which it copies a vector */
    global const uchar *scales;  /* the row whose scales and sums it brings */
};

/* What a lane keeps: its values of the wave's tiles. */
struct gemm_sums {
    float acc[GEMM_TILES_MOST * ST_TILE_VALUES];
    int block[GEMM_TILES_MOST * ST_TILE_VALUES]; /* of blocks of 256 */
};

/* Step 1, activation bytes of a step, and at the end of a block with minima the sums of its activations. */
INLINE void gemm_copy(int type, int mode, local uchar *memory, const struct gemm_source *from, uint n, uint step, uint slot)
{
    const uint item = st_item(), row = item / 4, quarter = item % 4;
    local uchar *to = memory + GEMM_AT_X(type, mode) + slot * GEMM_X_BYTES(mode) + row * GEMM_STRIDE + quarter * 16;
    const uint at = (PART_LARGE(type) ? ST_Q8K_PLAIN(n) : ST_Q8_PLAIN(n)) + step * GEMM_STEP + quarter * 16;
    UNROLL
    for (uint i = 0; i < GEMM_ROWS(mode) / 64; i++)
        st_copy_issue_near((local uint4 *)(to + i * 64 * GEMM_STRIDE), (global const uint4 *)(from->x[i] + at));
    if (PART_MIN(type) && step % 4 == 3 && item < GEMM_ROWS(mode) * 2)
        st_copy_issue_near((local uint4 *)(memory + GEMM_AT_SUMS(type, mode) + item / 2 * GEMM_MIN_STRIDE + item % 2 * 16),
                           (global const uint4 *)(from->scales + ST_Q8K_PAIRS(n) + step / 4 * 32 + item % 2 * 16));
}

/* The eight minima of half h of the block that part `number` belongs to, as bytes. */
INLINE uint2 gemm_minima(int type, global const uchar *row, local const uint *grid, uint number, uint h)
{
    uint2 v;
    UNROLL
    for (uint k = 0; k < 4; k++) {
        struct part b;
        part_open(type, &b, row, grid, number / 8 * 8 + 4 * h + k);
        const uint two = (uint)b.min[0] | (uint)b.min[1] << 8;
        if (k == 0)
            v.x = two;
        else if (k == 1)
            v.x |= two << 16;
        else if (k == 2)
            v.y = two;
        else
            v.y |= two << 16;
    }
    return v;
}

/* Step 1, weights and all scales. */
INLINE void gemm_open(int type, int mode, local uchar *memory, const struct gemm_source *from, uint n, uint step, uint slot)
{
    const uint item = st_item(), row = item / 2, side = item % 2, number = 2 * step + side;
    local const uint *grid = (local const uint *)(memory + GEMM_AT_GRID(type, mode));
    if (number >= n / 32)
        return;
    struct part a;
    part_open(type, &a, from->weights, grid, number);
    local uint4 *to = (local uint4 *)(memory + slot * GEMM_W_BYTES + row * GEMM_STRIDE + side * 32);
    const uint4 low = {a.w[0], a.w[1], a.w[2], a.w[3]}, high = {a.w[4], a.w[5], a.w[6], a.w[7]};
    to[0] = low;
    to[1] = high;
    const uint scales = GEMM_AT_WS(type, mode) + slot * GEMM_WS_BYTES(type);
    UNROLL
    for (uint h = 0; h < (PART_HALVES(type) ? 2u : 1u); h++) {
        const uint at = (side * (PART_HALVES(type) ? 2u : 1u) + h) * GEMM_OUT + row;
        if (PART_LARGE(type))
            GEMM_INTS(scales)[at] = a.scale[h];
        else
            GEMM_FLOATS(scales)[at] = a.d[h];
    }
    if (PART_OFFSET(type))
        GEMM_FLOATS(scales)[(2 + side) * GEMM_OUT + row] = a.m;
    if (!PART_LARGE(type)) {
        if (row < GEMM_ROWS(mode)) {
            local float *xs = GEMM_FLOATS(GEMM_AT_XS(type, mode) + slot * GEMM_XS_BYTES(type, mode)) + row;
            xs[side * GEMM_ROWS(mode)] = *(global const float *)(from->scales + ST_Q8_SCALES(n) + number * 4);
            if (PART_OFFSET(type))
                xs[(2 + side) * GEMM_ROWS(mode)] = *(global const float *)(from->scales + ST_Q8_S(n) + number * 4);
        }
        return;
    }
    if (step % 4 != 3)
        return;
    if (side == 0) {
        GEMM_FLOATS(GEMM_AT_WD(type, mode))[row] = a.d[0];
        if (PART_MIN(type))
            GEMM_FLOATS(GEMM_AT_WM(type, mode))[row] = a.m;
        if (row < GEMM_ROWS(mode))
            GEMM_FLOATS(GEMM_AT_XD(type, mode))[row] =
                *(global const float *)(from->scales + ST_Q8K_SCALES(n) + step / 4 * 4);
    }
    if (PART_MIN(type)) {
        local uint2 *mins = (local uint2 *)(memory + GEMM_AT_MINS(type, mode) + row * GEMM_MIN_STRIDE) + side;
        mins[0] = mins[2] = gemm_minima(type, from->weights, grid, number, side);
    }
}

#define GEMM_MAGIC 0x4b400000 /* bits of 1.5 * 2^23: with a sum below 2^22 added they are those of that number plus the sum */

/* The wave's number, or more than there are. */
INLINE uint gemm_wave(void)
{
    return ST_LANES == 1 ? st_item() : st_item() / ST_LANES;
}

/* Scale (which 0) or sum (1) of part k of a step's activations in row r. GEMM_WIDE: the two vectors of a row change places every
 * four rows, so that eight neighbouring rows are in different banks. */
INLINE float gemm_x_scale(int type, int mode, local const uchar *memory, uint step, uint slot, uint which, uint k, uint r)
{
    local const uchar *base = memory + GEMM_AT_XS(type, mode);
    if (GEMM_IS_WIDE(mode)) {
        const uint part = step % 4 * 2 + k;
        base += step / 4 % GEMM_XS_SLOTS(mode) * GEMM_XS_BYTES(type, mode) + which * GEMM_ROWS(mode) * GEMM_XS_ROW;
        return *(local const float *)(base + r * GEMM_XS_ROW + (part / 4 ^ r / 4 % 2) * 16 + part % 4 * 4);
    }
    return ((local const float *)(base + slot * GEMM_XS_BYTES(type, mode)))[(2 * which + k) * GEMM_ROWS(mode) + r];
}

/* What the products of a part are multiplied with, for the values that a lane has: bits of floats, or in blocks of 256 integers. */
struct gemm_w_scales {
    uint scale[2][GEMM_B_MOST][ST_TILE_VALUES], offset[GEMM_B_MOST][ST_TILE_VALUES];
};

INLINE void gemm_take_w(int type, int mode, struct gemm_w_scales *to, local const uint *scales, uint wb, uint k)
{
    const uint halves = PART_HALVES(type) ? 2 : 1;
    UNROLL
    for (uint j = 0; j < GEMM_B(mode); j++) {
        UNROLL
        for (uint h = 0; h < halves; h++)
            st_tile_by_column(to->scale[h][j], scales + (k * halves + h) * GEMM_OUT + wb + j * 16);
        if (PART_OFFSET(type))
            st_tile_by_column(to->offset[j], scales + (2 + k) * GEMM_OUT + wb + j * 16);
    }
}

/* Step 2. parts: of 32 columns in this step. count: activation rows. */
INLINE void gemm_multiply(int type, int mode, local uchar *memory, struct gemm_sums *s, uint step, uint parts, uint slot,
                          uint count)
{
    const uint wave = gemm_wave(), wa = wave % GEMM_PARTS(mode), wb = wave / GEMM_PARTS(mode) * GEMM_B(mode) * 16;
    if (ST_LANES == 1 && wave >= GEMM_WAVES(mode))
        return;
    local const char *w = (local const char *)memory + slot * GEMM_W_BYTES + wb * GEMM_STRIDE;
    local const char *x = (local const char *)memory + GEMM_AT_X(type, mode) + slot * GEMM_X_BYTES(mode) + wa * 16 * GEMM_STRIDE;
    const uint scales = GEMM_AT_WS(type, mode) + slot * GEMM_WS_BYTES(type);
    GEMM_UNROLL_PARTS
    for (uint k = 0; k < 2; k++) {
        if (k >= parts)
            continue;
        struct st_tile_b b[GEMM_B_MOST];
        struct gemm_w_scales ws;
        UNROLL
        for (uint j = 0; j < GEMM_B(mode); j++)
            b[j] = st_tile_load_b(w, GEMM_STRIDE, j * 16 * GEMM_STRIDE + k * 32);
        gemm_take_w(type, mode, &ws, (local const uint *)(memory + scales), wb, k);
        UNROLL
        for (uint i = 0; i < GEMM_A(mode); i++) {
            const uint row = (i * GEMM_PARTS(mode) + wa) * 16;
            if (GEMM_SKIPS(mode) && row >= count)
                continue;
            const struct st_tile_a a = st_tile_load_a(x, GEMM_STRIDE, i * GEMM_PARTS(mode) * 16 * GEMM_STRIDE + k * 32);
            float xd[ST_TILE_VALUES], xs[ST_TILE_VALUES];
            GEMM_UNROLL
            for (uint v = 0; !PART_LARGE(type) && v < ST_TILE_VALUES; v++) {
                xd[v] = gemm_x_scale(type, mode, memory, step, slot, 0, k, row + st_tile_row(v));
                if (PART_OFFSET(type))
                    xs[v] = gemm_x_scale(type, mode, memory, step, slot, 1, k, row + st_tile_row(v));
            }
            UNROLL
            for (uint j = 0; j < GEMM_B(mode); j++) {
                const uint first = (i * GEMM_B(mode) + j) * ST_TILE_VALUES;
                UNROLL
                for (uint h = 0; h < (PART_HALVES(type) ? 2u : 1u); h++) {
                    struct st_tile d;
                    st_tile_product(&d, &a, &b[j], PART_LARGE(type) ? 0 : GEMM_MAGIC, PART_HALVES(type) ? (int)h : 2);
                    GEMM_UNROLL
                    for (uint v = 0; v < ST_TILE_VALUES; v++) {
                        if (PART_LARGE(type)) {
                            s->block[first + v] += (int)ws.scale[h][j][v] * d.v[v];
                            continue;
                        }
                        s->acc[first + v] = st_fma(st_float_of(ws.scale[h][j][v]) * xd[v],
                                                   st_float_of((uint)d.v[v]) - 12582912.0f, s->acc[first + v]);
                        if (PART_OFFSET(type))
                            s->acc[first + v] = st_fma(st_float_of(ws.offset[j][v]), xs[v], s->acc[first + v]);
                    }
                }
            }
        }
    }
    if (!PART_LARGE(type) || step % 4 != 3)
        return;
    UNROLL
    for (uint i = 0; i < GEMM_A(mode); i++) {
        const uint row = (i * GEMM_PARTS(mode) + wa) * 16;
        if (GEMM_SKIPS(mode) && row >= count)
            continue;
        UNROLL
        for (uint j = 0; j < GEMM_B(mode); j++) {
            const uint first = (i * GEMM_B(mode) + j) * ST_TILE_VALUES;
            struct st_tile upper, lower;
            if (PART_MIN(type)) {
                const struct st_tile_a a = st_tile_load_a((local const char *)memory + wa * 16 * GEMM_MIN_STRIDE, GEMM_MIN_STRIDE,
                                                          GEMM_AT_SUMS(type, mode) + i * GEMM_PARTS(mode) * 16 * GEMM_MIN_STRIDE);
                const struct st_tile_b m = st_tile_load_b((local const char *)memory + wb * GEMM_MIN_STRIDE, GEMM_MIN_STRIDE,
                                                          GEMM_AT_MINS(type, mode) + j * 16 * GEMM_MIN_STRIDE);
                st_tile_product(&upper, &a, &m, 0, 0);
                st_tile_product(&lower, &a, &m, 0, 1);
            }
            GEMM_UNROLL
            for (uint v = 0; v < ST_TILE_VALUES; v++) {
                const uint r = row + st_tile_row(v), c = wb + j * 16 + st_tile_column(v);
                const float dy = GEMM_FLOATS(GEMM_AT_XD(type, mode))[r];
                float acc = st_fma(GEMM_FLOATS(GEMM_AT_WD(type, mode))[c] * dy, (float)s->block[first + v], s->acc[first + v]);
                if (PART_MIN(type))
                    acc = st_fma(-(GEMM_FLOATS(GEMM_AT_WM(type, mode))[c] * dy),
                                 (float)(upper.v[v] * ST_PAIR + lower.v[v]), acc);
                s->acc[first + v] = acc;
                s->block[first + v] = 0;
            }
        }
    }
}

INLINE void gemm_clear(int mode, struct gemm_sums *s)
{
    GEMM_UNROLL
    for (uint i = 0; i < GEMM_A(mode) * GEMM_B(mode) * ST_TILE_VALUES; i++) {
        s->acc[i] = 0.0f;
        s->block[i] = 0;
    }
}

/* The whole product of a tile whose weights the group opens. */
INLINE void gemm_run(int type, int mode, local uchar *memory, struct gemm_sums *s, const struct gemm_source *from, uint n,
                     uint count)
{
    const uint steps = (n + GEMM_STEP - 1) / GEMM_STEP;
    gemm_clear(mode, s);
    if (PART_GRID(type)) {
        part_load_grid(type, (local uint *)(memory + GEMM_AT_GRID(type, mode)), GEMM_GROUP);
        st_barrier();
    }
    if (GEMM_SLOTS(mode) == 1) {
        for (uint step = 0; step < steps; step++) {
            const uint parts = n / 32 - 2 * step < 2 ? 1 : 2;
            st_barrier();
            gemm_copy(type, mode, memory, from, n, step, 0);
            gemm_open(type, mode, memory, from, n, step, 0);
            st_barrier();
            gemm_multiply(type, mode, memory, s, step, parts, 0, count);
        }
        return;
    }
    const uint late = gemm_wave() / 4 % 2; /* waves that share a scheduler take turns */
    gemm_copy(type, mode, memory, from, n, 0, 0);
    st_copies_commit();
    gemm_open(type, mode, memory, from, n, 0, 0);
    for (uint step = 0; step < steps; step++) {
        const uint parts = n / 32 - 2 * step < 2 ? 1 : 2, slot = step % 2;
        st_copies_wait(0);
        st_barrier();
        if (step + 1 < steps)
            gemm_copy(type, mode, memory, from, n, step + 1, 1 - slot);
        st_copies_commit();
        for (uint turn = 0; turn < 2; turn++)
            if (turn == late) {
                if (step + 1 < steps)
                    gemm_open(type, mode, memory, from, n, step + 1, 1 - slot);
            } else {
                gemm_multiply(type, mode, memory, s, step, parts, slot, count);
            }
    }
}

/* Results to y: outputs o0 .. o0 + left - 1 of rows row0 .. row0 + count - 1. */
INLINE void gemm_store(int mode, const struct gemm_sums *s, global float *y, uint ldy, uint row0, uint count, uint o0, uint left,
                       float scale, float scale_up)
{
    const uint wave = gemm_wave(), wa = wave % GEMM_PARTS(mode), wb = wave / GEMM_PARTS(mode) * GEMM_B(mode) * 16;
    if (ST_LANES == 1 && wave >= GEMM_WAVES(mode))
        return;
    const bool pairs = ST_TILE_PAIRS && mode != GEMM_PAIR && count == GEMM_ROWS(mode) && left == GEMM_OUT && ldy % 2 == 0 &&
                       ((ulong)y & 7) == 0;
    UNROLL
    for (uint i = 0; i < GEMM_A(mode); i++)
        UNROLL
        for (uint j = 0; pairs && j < GEMM_B(mode); j++) {
            const uint first = (i * GEMM_B(mode) + j) * ST_TILE_VALUES;
            UNROLL
            for (uint v = 0; v < ST_TILE_VALUES; v += 2) {
                const uint r = row0 + (i * GEMM_PARTS(mode) + wa) * 16 + st_tile_row(v), o = o0 + wb + j * 16 + st_tile_column(v);
                const uint2 two = {st_bits_of(s->acc[first + v] * scale), st_bits_of(s->acc[first + v + 1] * scale)};
                *(global uint2 *)(y + (ulong)r * ldy + o) = two;
            }
        }
    if (pairs)
        return;
    UNROLL
    for (uint i = 0; i < GEMM_A(mode); i++)
        UNROLL
        for (uint j = 0; j < GEMM_B(mode); j += mode == GEMM_PAIR ? 2 : 1) {
            const uint first = (i * GEMM_B(mode) + j) * ST_TILE_VALUES;
            GEMM_UNROLL
            for (uint v = 0; v < ST_TILE_VALUES; v++) {
                const uint r = (i * GEMM_PARTS(mode) + wa) * 16 + st_tile_row(v);
                const uint o = (wb + j * 16) / (mode == GEMM_PAIR ? 2 : 1) + st_tile_column(v);
                if (r >= count || o >= left)
                    continue;
                const float value = s->acc[first + v] * scale;
                y[(ulong)(row0 + r) * ldy + o0 + o] =
                    mode == GEMM_PAIR ? st_siluf(value) * (s->acc[first + ST_TILE_VALUES + v] * scale_up) : value;
            }
        }
}

/* What all kernels are given; meanings in kernel/gpu_gemm.h. */
struct gemm {
    global float *y;
    global const uchar *w, *up, *x;
    global const int *tiles, *entry;
    global const float *scales, *up_scales;
    global const ulong *places; /* of each expert; read when scaled has ST_GEMM_PLACED */
    uint n, rows, row_bytes, total, stride, ldy, used, scaled, expert_bytes;
};

/* The row of x for output row i. */
INLINE global const uchar *gemm_input(const struct gemm *a, uint i)
{
    return a->x + (ulong)(a->used ? (uint)a->entry[i] / a->used : i) * a->stride;
}

INLINE void gemm_tile(int type, int mode, local uchar *memory, const struct gemm *a)
{
    const uint item = st_item(), outs = mode == GEMM_PAIR ? GEMM_OUT / 2 : GEMM_OUT;
    uint e = 0, start, count;
    if (a->total) {
        start = st_group_y() * GEMM_ROWS(mode);
        count = a->total - start < GEMM_ROWS(mode) ? a->total - start : GEMM_ROWS(mode);
    } else {
        global const int *tile = a->tiles + 4 * st_group_y();
        if (tile[0] < 0)
            return;
        e = (uint)tile[0];
        start = (uint)tile[1];
        count = (uint)tile[2];
    }
    const ulong matrix = a->scaled & ST_GEMM_PLACED ? a->places[e] : (ulong)e * a->expert_bytes;
    if (matrix == ST_NO_PLACE)
        return;
    const uint o0 = st_group() * outs, left = a->rows - o0 < outs ? a->rows - o0 : outs;
    /* rows past the end stand for the last one; their results are not stored */
    const uint r = item / 2, o = mode == GEMM_PAIR ? r / 32 * 16 + r % 16 : r;
    struct gemm_source from;
    from.weights = (mode == GEMM_PAIR && r / 16 % 2 ? a->up : a->w) +
                   matrix + (ulong)(o0 + (o < left ? o : left - 1)) * a->row_bytes;
    UNROLL
    for (uint i = 0; i < GEMM_ROWS(mode) / 64; i++)
        from.x[i] = gemm_input(a, start + (item / 4 + 64 * i < count ? item / 4 + 64 * i : count - 1));
    from.scales = gemm_input(a, start + (r < count ? r : count - 1));
    struct gemm_sums sums;
    gemm_run(type, mode, memory, &sums, &from, a->n, count);
    const uint scaled = a->scaled & ~ST_GEMM_PLACED, scale = scaled == 2 ? e : 0;
    gemm_store(mode, &sums, a->y, a->ldy, start, count, o0, left, scaled ? a->scales[scale] : 1.0f,
               scaled ? a->up_scales[scale] : 1.0f);
}

/* grid: (tiles of weight rows, tiles of activation rows or of experts). */
#define GEMM(name, type, mode)                                                                                            \
    KERNEL(GEMM_GROUP)                                                                                                    \
    name(global float *restrict y, global const uchar *restrict w, global const uchar *restrict up,                       \
         global const uchar *restrict x, global const int *restrict tiles, global const int *restrict entry,              \
         global const float *restrict scales, global const float *restrict up_scales,                                     \
         global const ulong *restrict places, uint n, uint rows, uint row_bytes, uint total, uint stride, uint ldy,       \
         uint used, uint scaled, uint expert_bytes)                                                                       \
    {                                                                                                                     \
        LOCAL_ARRAY(uint4, memory, GEMM_BYTES(type, mode) / 16);                                                          \
        const struct gemm a = {y, w, up, x, tiles, entry, scales, up_scales, places, n, rows, row_bytes, total, stride,  \
                               ldy, used, scaled, expert_bytes};                                                          \
        gemm_tile(type, mode, (local uchar *)memory, &a);                                                                 \
    }

#endif
