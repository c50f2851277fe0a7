/* Prompt products with BF16 weights and FP32 activations by matrix units (docs/numerics.md, section 3): y[m][o] = scale *
 * (w[o] . x[m]). An activation is cut into three BF16 numbers, which together are it to the last bit, so that every product is
 * exact; only sums are rounded.
 *
 * A group of 256 work-items computes 128 weight rows times 64 activation rows in steps of 32 columns. The next step's values
 * are loaded to registers while this one's are multiplied from local memory: weights row by row, then the three parts of the
 * activations, each row by row. Waves lie two side by side over the activation rows. Limit: the matrix units, three products for
 * each. */
#ifndef ST_GEMM_BF16_H
#define ST_GEMM_BF16_H

#include "dialect.h"

#if ST_TILE_FLOATS

#define BF16_GROUP 256
#define BF16_OUT 128
#define BF16_ROWS 64
#define BF16_STEP 32
/* Bytes from row to row; eight neighbouring rows are in different banks. */
#define BF16_STRIDE 80
#define BF16_AT_X (BF16_OUT * BF16_STRIDE)
#define BF16_PART (BF16_ROWS * BF16_STRIDE)
#define BF16_BYTES (BF16_AT_X + 3 * BF16_PART)
/* Tiles of 16 x 16 outputs of a wave: over activation rows, and over weight rows. */
#define BF16_A 2
#define BF16_B (BF16_OUT / 16 / (BF16_GROUP / ST_LANES / 2))

/* What a work-item brings in a step: sixteen weights of row item / 2, eight activations of row item / 4. */
struct bf16_values {
    uint w[8];
    float x[8];
};

/* Columns k .. of the rows at w and x, 0 from n on. whole: rows start at multiples of 16 bytes. */
INLINE void bf16_load(struct bf16_values *v, global const ushort *w, global const float *x, uint k, uint n, bool whole)
{
    const uint wk = k + st_item() % 2 * 16, xk = k + st_item() % 4 * 8;
    if (whole && k + BF16_STEP <= n) {
        global const uint4 *from = (global const uint4 *)(w + wk);
        const uint4 low = from[0], high = from[1];
        const uint words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        global const float4 *input = (global const float4 *)(x + xk);
        const float4 first = input[0], second = input[1];
        const float values[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
        UNROLL
        for (uint i = 0; i < 8; i++) {
            v->w[i] = words[i];
            v->x[i] = values[i];
        }
        return;
    }
    UNROLL
    for (uint i = 0; i < 8; i++) {
        const uint at = wk + 2 * i;
        v->w[i] = (at < n ? w[at] : 0u) | (at + 1 < n ? (uint)w[at + 1] << 16 : 0u);
        v->x[i] = xk + i < n ? x[xk + i] : 0.0f;
    }
}

/* Step to local memory, activations in three parts: upper bits, the next and the rest. */
INLINE void bf16_store(local uchar *memory, const struct bf16_values *v)
{
    const uint item = st_item();
    local uint4 *w = (local uint4 *)(memory + item / 2 * BF16_STRIDE + item % 2 * 32);
    const uint4 low = {v->w[0], v->w[1], v->w[2], v->w[3]}, high = {v->w[4], v->w[5], v->w[6], v->w[7]};
    w[0] = low;
    w[1] = high;
    float rest[8];
    UNROLL
    for (uint i = 0; i < 8; i++)
        rest[i] = v->x[i];
    UNROLL
    for (uint part = 0; part < 3; part++) {
        uint words[4];
        UNROLL
        for (uint i = 0; i < 8; i++) {
            const uint upper = st_bits_of(rest[i]) & 0xffff0000u;
            rest[i] = rest[i] - st_float_of(upper);
            words[i / 2] = i % 2 ? words[i / 2] | upper : upper >> 16;
        }
        const uint4 four = {words[0], words[1], words[2], words[3]};
        *(local uint4 *)(memory + BF16_AT_X + part * BF16_PART + item / 4 * BF16_STRIDE + item % 4 * 16) = four;
    }
}

/* acc += the step's sums. */
INLINE void bf16_multiply(local const uchar *memory, float *acc)
{
    const uint wave = st_item() / ST_LANES;
    local const char *w = (local const char *)memory + wave / 2 * BF16_B * 16 * BF16_STRIDE;
    local const char *x = (local const char *)memory + BF16_AT_X + wave % 2 * BF16_A * 16 * BF16_STRIDE;
    struct st_tile_floats sum[BF16_A * BF16_B];
    UNROLL
    for (uint i = 0; i < BF16_A * BF16_B; i++)
        UNROLL
        for (uint v = 0; v < ST_TILE_VALUES; v++)
            sum[i].v[v] = 0.0f;
    UNROLL
    for (uint k = 0; k < BF16_STEP / 16; k++) {
        struct st_tile_b b[BF16_B];
        UNROLL
        for (uint j = 0; j < BF16_B; j++)
            b[j] = st_tile_load_b(w, BF16_STRIDE, j * 16 * BF16_STRIDE + k * 32);
        UNROLL
        for (uint p = 0; p < 3; p++) /* small parts first */
            UNROLL
            for (uint i = 0; i < BF16_A; i++) {
                const struct st_tile_a a =
                    st_tile_load_a(x, BF16_STRIDE, (2 - p) * BF16_PART + i * 16 * BF16_STRIDE + k * 32);
                UNROLL
                for (uint j = 0; j < BF16_B; j++)
                    st_tile_multiply_bf16(&sum[i * BF16_B + j], &a, &b[j]);
            }
    }
    UNROLL
    for (uint i = 0; i < BF16_A * BF16_B; i++)
        UNROLL
        for (uint v = 0; v < ST_TILE_VALUES; v++)
            acc[i * ST_TILE_VALUES + v] = acc[i * ST_TILE_VALUES + v] + sum[i].v[v];
}

/* The tile of the group. grid: (ceil(rows / 128), ceil(total / 64)). */
INLINE void bf16_tile(local uchar *memory, global float *y, global const uchar *w, global const uchar *x, float scale, uint n,
                      uint rows, uint row_bytes, uint total, uint stride, uint ldy)
{
    const uint item = st_item(), o0 = st_group() * BF16_OUT, m0 = st_group_y() * BF16_ROWS, wave = item / ST_LANES;
    /* rows past the end stand for the last one */
    const uint wr = o0 + item / 2 < rows ? o0 + item / 2 : rows - 1, xr = m0 + item / 4 < total ? m0 + item / 4 : total - 1;
    global const ushort *weights = (global const ushort *)(w + (ulong)wr * row_bytes);
    global const float *inputs = (global const float *)(x + (ulong)xr * stride);
    const bool whole = row_bytes % 16 == 0 && stride % 16 == 0;
    float acc[BF16_A * BF16_B * ST_TILE_VALUES];
    UNROLL
    for (uint i = 0; i < BF16_A * BF16_B * ST_TILE_VALUES; i++)
        acc[i] = 0.0f;
    struct bf16_values v;
    bf16_load(&v, weights, inputs, 0, n, whole);
    for (uint k = 0; k < n; k += BF16_STEP) {
        st_barrier();
        bf16_store(memory, &v);
        st_barrier();
        if (k + BF16_STEP < n)
            bf16_load(&v, weights, inputs, k + BF16_STEP, n, whole);
        bf16_multiply(memory, acc);
    }
    UNROLL
    for (uint i = 0; i < BF16_A; i++)
        UNROLL
        for (uint j = 0; j < BF16_B; j++)
            UNROLL
            for (uint t = 0; t < ST_TILE_VALUES; t++) {
                const uint row = m0 + (wave % 2 * BF16_A + i) * 16 + st_tile_row(t);
                const uint out = o0 + (wave / 2 * BF16_B + j) * 16 + st_tile_column(t);
                if (row < total && out < rows)
                    y[(ulong)row * ldy + out] = acc[(i * BF16_B + j) * ST_TILE_VALUES + t] * scale;
            }
}

#endif
#endif
