/* Large prompt products: opened weights (opened.h) times many activation rows; arithmetic and tiles in gemm.h. Where four waves multiply
 * strips, gemm_fold.h and gemm_strips.h take the place of most.
 *
 * A step of a tile of weights is one stretch of memory, an activation row's 64 bytes of a step are half a line of the cache, so
 * that everything comes to local memory by 16-byte copies that neighbours share. Scales of activations come for 256 columns at
 * once. Limit: instructions of scaling, three for each output and 32 columns, one in blocks of 256. */
#ifndef ST_GEMM_WIDE_H
#define ST_GEMM_WIDE_H

#include "gemm.h"

/* GEMM_LARGE for types of 256. */
#define WIDE_MODE(type) (PART_LARGE(type) ? GEMM_LARGE : GEMM_WIDE)
#define WIDE_GROUP(type) (PART_LARGE(type) ? GEMM_LARGE_GROUP : GEMM_GROUP)
/* Work-items that copy a vector of each of 128 rows' 64 bytes take turns so often. */
#define WIDE_TURNS(type) (ST_GEMM_WIDE * 4 / WIDE_GROUP(type))

/* Where a work-item takes its share of a step from. */
struct wide_source {
    global const uchar *tile; /* the group's opened weights */
    global const uchar *x[2]; /* the activation rows of which it copies a vector */
    global const uchar *row;  /* the one whose scales and sums it brings */
};

INLINE void wide_copy_vector(local uchar *memory, uint to, global const uchar *from)
{
    st_copy_issue_near((local uint4 *)(memory + to), (global const uint4 *)from);
}

/* Scales of the activations of block `block` of 256 columns, and of types with an offset their sums. */
INLINE void wide_copy_x_scales(int type, local uchar *memory, const struct wide_source *from, uint n, uint block)
{
    const uint row = st_item() / 2, side = st_item() % 2, at = (block * 2 + side) * 16;
    const uint to = GEMM_AT_XS(type, WIDE_MODE(type)) + block % GEMM_XS_SLOTS(WIDE_MODE(type)) * GEMM_XS_BYTES(type, WIDE_MODE(type)) + row * GEMM_XS_ROW +
                    (side ^ row / 4 % 2) * 16;
    if (at >= ST_ROUND16(n / 8))
        return;
    wide_copy_vector(memory, to, from->row + ST_Q8_SCALES(n) + at);
    if (PART_OFFSET(type))
        wide_copy_vector(memory, to + ST_GEMM_WIDE * GEMM_XS_ROW, from->row + ST_Q8_S(n) + at);
}

/* What stands behind the last step of a block of 256, and the activations' scales of that block. */
INLINE void wide_copy_block(int type, local uchar *memory, const struct wide_source *from, uint n, global const uchar *w,
                            uint block)
{
    const uint item = st_item();
    if (item < GEMM_OUT / 4)
        wide_copy_vector(memory, GEMM_AT_WD(type, WIDE_MODE(type)) + item * 16, w + item * 16);
    if (item >= ST_GEMM_WIDE * 2)
        return;
    if (item % 2 == 0)
        GEMM_FLOATS(GEMM_AT_XD(type, WIDE_MODE(type)))[item / 2] = ((global const float *)(from->row + ST_Q8K_SCALES(n)))[block];
    if (!PART_MIN(type))
        return;
    if (item < GEMM_OUT / 4)
        wide_copy_vector(memory, GEMM_AT_WM(type, WIDE_MODE(type)) + item * 16, w + GEMM_OUT * 4 + item * 16);
    /* once for the upper and once for the lower bytes of the activations' sums */
    wide_copy_vector(memory, GEMM_AT_MINS(type, WIDE_MODE(type)) + item / 2 * GEMM_MIN_STRIDE + item % 2 * 16,
                     w + GEMM_OUT * 8 + item / 2 * 16);
    wide_copy_vector(memory, GEMM_AT_SUMS(type, WIDE_MODE(type)) + item / 2 * GEMM_MIN_STRIDE + item % 2 * 16,
                     from->row + ST_Q8K_PAIRS(n) + block * 32 + item % 2 * 16);
}

/* All of a step. */
INLINE void wide_copy(int type, local uchar *memory, const struct wide_source *from, uint n, uint step, uint slot)
{
    const uint item = st_item(), mode = WIDE_MODE(type);
    global const uchar *w = from->tile + OPENED_AT(type, step);
    const uint x = (PART_LARGE(type) ? ST_Q8K_PLAIN(n) : ST_Q8_PLAIN(n)) + step * GEMM_STEP + item % 4 * 16;
    UNROLL
    for (uint i = 0; i < WIDE_TURNS(type); i++) {
        const uint to = (item / 4 + i * WIDE_GROUP(type) / 4) * GEMM_STRIDE + item % 4 * 16;
        wide_copy_vector(memory, slot * GEMM_W_BYTES + to, w + (item + WIDE_GROUP(type) * i) * 16);
        wide_copy_vector(memory, GEMM_AT_X(type, mode) + slot * GEMM_X_BYTES(mode) + to, from->x[i] + x);
    }
    if (item < (uint)(GEMM_WS_BYTES(type) / 16))
        wide_copy_vector(memory, GEMM_AT_WS(type, mode) + slot * GEMM_WS_BYTES(type) + item * 16, w + GEMM_OUT * 64 + item * 16);
    if (!PART_LARGE(type) && step % 4 == 0)
        wide_copy_x_scales(type, memory, from, n, step / 4);
    if (PART_LARGE(type) && step % 4 == 3)
        wide_copy_block(type, memory, from, n, w + OPENED_STEP(type), step / 4);
}

/* Copies of a batch of steps that begins at `step`. */
INLINE void wide_copy_batch(int type, local uchar *memory, const struct wide_source *from, uint n, uint steps, uint step)
{
    KEEP_LOOP
    for (uint i = 0; i < GEMM_BATCH(WIDE_MODE(type)); i++)
        if (step + i < steps)
            wide_copy(type, memory, from, n, step + i, (step + i) % GEMM_SLOTS(WIDE_MODE(type)));
    st_copies_commit();
}

INLINE void wide_run(int type, local uchar *memory, struct gemm_sums *s, const struct wide_source *from, uint n, uint count)
{
    const int mode = WIDE_MODE(type);
    const uint full = n / GEMM_STEP, steps = (n + GEMM_STEP - 1) / GEMM_STEP;
    gemm_clear(mode, s);
    if (GEMM_SLOTS(mode) > 1)
        wide_copy_batch(type, memory, from, n, steps, 0);
    for (uint step = 0; step < steps; step += GEMM_BATCH(mode)) {
        if (GEMM_SLOTS(mode) > 1) {
            st_copies_wait(0);
            st_barrier();
            wide_copy_batch(type, memory, from, n, steps, step + GEMM_BATCH(mode));
        } else {
            st_barrier();
            wide_copy(type, memory, from, n, step, 0);
            st_barrier();
        }
        KEEP_LOOP
        for (uint i = 0; i < GEMM_BATCH(mode); i++)
            if (step + i < full)
                gemm_multiply(type, mode, memory, s, step + i, 2, (step + i) % GEMM_SLOTS(mode), count);
    }
    if (full < steps) /* half a step is left */
        gemm_multiply(type, mode, memory, s, full, 1, full % GEMM_SLOTS(mode), count);
}

INLINE void wide_tile(int type, local uchar *memory, global float *y, global const uchar *opened, global const uchar *x,
                      float scale, uint n, uint rows, uint total, uint stride, uint ldy)
{
    const uint item = st_item(), start = st_group_y() * ST_GEMM_WIDE, o0 = st_group() * GEMM_OUT;
    const uint count = total - start < ST_GEMM_WIDE ? total - start : ST_GEMM_WIDE;
    const uint left = rows - o0 < GEMM_OUT ? rows - o0 : GEMM_OUT, steps = (n + GEMM_STEP - 1) / GEMM_STEP;
    struct wide_source from;
    from.tile = opened + (ulong)st_group() * OPENED_AT(type, steps);
    /* rows past the end stand for the last one; their results are not stored */
    UNROLL
    for (uint i = 0; i < WIDE_TURNS(type); i++) {
        const uint row = item / 4 + i * WIDE_GROUP(type) / 4;
        from.x[i] = x + (ulong)(start + (row < count ? row : count - 1)) * stride;
    }
    from.row = x + (ulong)(start + (item / 2 < count ? item / 2 : count - 1)) * stride;
    struct gemm_sums sums;
    wide_run(type, memory, &sums, &from, n, count);
    gemm_store(WIDE_MODE(type), &sums, y, ldy, start, count, o0, left, scale, 1.0f);
}

/* opened: tiles of the rows x n matrix at w, which is read by the form in C only, as are number (of the type) and row_bytes.
 * y: f32, ldy floats from row to row. x: total activation rows, stride bytes apart. scaled: 0, or scales[0] is a factor.
 * grid: (tiles of weight rows, ceil(total / 128)). */
#define GEMM_WIDE_KERNEL(name, type)                                                                                      \
    GROUPS_OF_A_UNIT(WIDE_GROUP(type), PART_LARGE(type) ? 1 : 2)                                                          \
    KERNEL(WIDE_GROUP(type))                                                                                              \
    name(global float *restrict y, global const uchar *restrict opened, global const uchar *restrict x,                   \
         global const float *restrict scales, global const uchar *restrict w, uint number, uint n, uint rows,             \
         uint row_bytes, uint total, uint stride, uint ldy, uint scaled)                                                  \
    {                                                                                                                     \
        LOCAL_ARRAY(uint4, memory, GEMM_BYTES(type, WIDE_MODE(type)) / 16);                                                     \
        wide_tile(type, (local uchar *)memory, y, opened, x, scaled ? scales[0] : 1.0f, n, rows, total, stride, ldy);     \
        (void)w;                                                                                                          \
        (void)number;                                                                                                     \
        (void)row_bytes;                                                                                                  \
    }

#endif
