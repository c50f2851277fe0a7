/* Prompt products with float weights: y[m][o] = scale * (w[o] . x[m]), FP32, sums of 16 columns by fma, which are added in
 * ascending order (docs/numerics.md, section 3).
 *
 * A group of 256 work-items computes 128 weight rows times 64 activation rows, each work-item 8 x 4 outputs, in steps of 16
 * columns. The next step's values are loaded to registers while this one's are multiplied from local memory, where they lie
 * column by column as floats; two steps alternate. Limit: fused multiply-adds. BF16 weights go to the matrix units where
 * those take them (gemm_bf16.h). */
#include "gemm_bf16.h"

#define GROUP 256
#define OUT 128
#define ROWS 64
#define STEP 16
#define W_STRIDE (OUT + 4)
#define X_STRIDE (ROWS + 4)

#define F32 0
#define F16 1
#define BF16 2

INLINE float floats_value(int type, global const uchar *row, uint i)
{
    return type == F32    ? ((global const float *)row)[i]
           : type == BF16 ? st_float_of((uint)((global const ushort *)row)[i] << 16)
                          : st_float_of_half(((global const ushort *)row)[i]);
}

INLINE float floats_16(int type, uint bits)
{
    return type == BF16 ? st_float_of(bits << 16) : st_float_of_half((ushort)bits);
}

INLINE void floats_four(float *v, float4 q)
{
    v[0] = q.x;
    v[1] = q.y;
    v[2] = q.z;
    v[3] = q.w;
}

/* Columns k .. k + 7 of a weight row, 0 past its end. whole: rows start at multiples of 16 bytes. */
INLINE void floats_weights(int type, float *v, global const uchar *row, uint k, uint n, bool whole)
{
    if (!whole || k + 8 > n) {
        UNROLL
        for (uint i = 0; i < 8; i++)
            v[i] = k + i < n ? floats_value(type, row, k + i) : 0.0f;
    } else if (type == F32) {
        global const float4 *from = (global const float4 *)(row + (ulong)k * 4);
        floats_four(v, from[0]);
        floats_four(v + 4, from[1]);
    } else {
        const uint4 q = *(global const uint4 *)(row + (ulong)k * 2);
        const uint pair[4] = {q.x, q.y, q.z, q.w};
        UNROLL
        for (uint i = 0; i < 4; i++) {
            v[2 * i] = floats_16(type, pair[i] & 0xffff);
            v[2 * i + 1] = floats_16(type, pair[i] >> 16);
        }
    }
}

INLINE void floats_inputs(float *v, global const float *row, uint k, uint n, bool whole)
{
    if (whole && k + 4 <= n) {
        floats_four(v, *(global const float4 *)(row + k));
        return;
    }
    UNROLL
    for (uint i = 0; i < 4; i++)
        v[i] = k + i < n ? row[k + i] : 0.0f;
}

/* x: f32 rows, stride bytes apart. scaled: 0, or scales[0] is a factor. grid: (ceil(rows / 128), ceil(total / 64)). */
INLINE void floats_tile(int type, local float *memory, global float *y, global const uchar *w, global const uchar *x, float scale,
                        uint n, uint rows, uint row_bytes, uint total, uint stride, uint ldy)
{
    local float *ws = memory, *xs = memory + 2 * STEP * W_STRIDE;
    const uint item = st_item(), o0 = st_group() * OUT, m0 = st_group_y() * ROWS, to = item % 16 * 4, tm = item / 16 * 4;
    /* rows past the end stand for the last one */
    const uint wr = o0 + item / 2 < rows ? o0 + item / 2 : rows - 1, xr = m0 + item / 4 < total ? m0 + item / 4 : total - 1;
    global const uchar *from = w + (ulong)wr * row_bytes;
    global const float *input = (global const float *)(x + (ulong)xr * stride);
    const uint wk = item % 2 * 8, xk = item % 4 * 4;
    const bool whole_w = row_bytes % 16 == 0, whole_x = stride % 16 == 0;
    float acc[32], wv[8], xv[4];
    UNROLL
    for (uint i = 0; i < 32; i++)
        acc[i] = 0.0f;
    floats_weights(type, wv, from, wk, n, whole_w);
    floats_inputs(xv, input, xk, n, whole_x);
    uint slot = 0;
    for (uint k = 0; k < n; k += STEP) {
        local float *wto = ws + slot * STEP * W_STRIDE, *xto = xs + slot * STEP * X_STRIDE;
        UNROLL
        for (uint i = 0; i < 8; i++)
            wto[(wk + i) * W_STRIDE + item / 2] = wv[i];
        UNROLL
        for (uint i = 0; i < 4; i++)
            xto[(xk + i) * X_STRIDE + item / 4] = xv[i];
        st_barrier();
        if (k + STEP < n) {
            floats_weights(type, wv, from, k + STEP + wk, n, whole_w);
            floats_inputs(xv, input, k + STEP + xk, n, whole_x);
        }
        float part[32];
        UNROLL
        for (uint i = 0; i < 32; i++)
            part[i] = 0.0f;
        UNROLL
        for (uint i = 0; i < STEP; i++) {
            float a[8], b[4];
            floats_four(a, *(local const float4 *)(wto + i * W_STRIDE + to));
            floats_four(a + 4, *(local const float4 *)(wto + i * W_STRIDE + to + OUT / 2));
            floats_four(b, *(local const float4 *)(xto + i * X_STRIDE + tm));
            UNROLL
            for (uint m = 0; m < 4; m++)
                UNROLL
                for (uint o = 0; o < 8; o++)
                    part[8 * m + o] = st_fma(b[m], a[o], part[8 * m + o]);
        }
        UNROLL
        for (uint i = 0; i < 32; i++)
            acc[i] = acc[i] + part[i];
        slot ^= 1;
    }
    UNROLL
    for (uint m = 0; m < 4; m++)
        UNROLL
        for (uint o = 0; o < 8; o++) {
            const uint row = m0 + tm + m, out = o0 + to + o % 4 + o / 4 * (OUT / 2);
            if (row < total && out < rows)
                y[(ulong)row * ldy + out] = acc[8 * m + o] * scale;
        }
}

#define FLOATS(name, type)                                                                                                \
    KERNEL(GROUP)                                                                                                         \
    name(global float *restrict y, global const uchar *restrict w, global const uchar *restrict x,                        \
         global const float *restrict scales, uint n, uint rows, uint row_bytes, uint total, uint stride, uint ldy,       \
         uint scaled)                                                                                                     \
    {                                                                                                                     \
        LOCAL_ARRAY(float, memory, 2 * STEP * (W_STRIDE + X_STRIDE));                                                     \
        floats_tile(type, memory, y, w, x, scaled ? scales[0] : 1.0f, n, rows, row_bytes, total, stride, ldy);            \
    }

FLOATS(st_gemm_f32, F32)
FLOATS(st_gemm_f16, F16)
KERNEL(GROUP)
st_gemm_bf16(global float *restrict y, global const uchar *restrict w, global const uchar *restrict x,
             global const float *restrict scales, uint n, uint rows, uint row_bytes, uint total, uint stride, uint ldy, uint scaled)
{
#if ST_TILE_FLOATS
    LOCAL_ARRAY(uint4, memory, BF16_BYTES / 16);
    bf16_tile((local uchar *)memory, y, w, x, scaled ? scales[0] : 1.0f, n, rows, row_bytes, total, stride, ldy);
#else
    LOCAL_ARRAY(float, memory, 2 * STEP * (W_STRIDE + X_STRIDE));
    floats_tile(BF16, memory, y, w, x, scaled ? scales[0] : 1.0f, n, rows, row_bytes, total, stride, ldy);
#endif
}
