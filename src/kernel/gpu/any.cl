/* Products for every type and number of rows, plain: a work-item has one weight row and goes through its blocks in ascending
 * order with one accumulator per activation row, so the arithmetic of docs/numerics.md is followed to the letter. The fast
 * kernels (matvec.cl, experts.cl) take over where they exist.
 *
 * A weight row is read by one work-item from start to end; neighbours have neighbouring rows. Limit: latency of the reads, far
 * below the bandwidth of the memory.
 *
 * w: [rows] rows of row_bytes bytes. x: activation rows: f32 [.][n] (form 0), Q8 (1) or Q8K (2) rows of layout.h. */
#include "dialect.h"
#include "grids.h"
#include "layout.h"

#define GROUP 64
#define MANY 8 /* activation rows at once */

/* Types as numbered in files. */
#define T_F32 0
#define T_F16 1
#define T_Q4_0 2
#define T_Q4_1 3
#define T_Q5_0 6
#define T_Q5_1 7
#define T_Q8_0 8
#define T_Q2_K 10
#define T_Q3_K 11
#define T_Q4_K 12
#define T_Q5_K 13
#define T_Q6_K 14
#define T_IQ3_XXS 18
#define T_IQ4_NL 20
#define T_IQ4_XS 23
#define T_BF16 30
#define T_MXFP4 39
#define T_NVFP4 40
#define T_Q2_0 42

#define FORM_F32 0
#define FORM_Q8 1

INLINE uint any_16(global const uchar *p)
{
    return (uint)p[0] | (uint)p[1] << 8;
}

INLINE uint any_32(global const uchar *p)
{
    return any_16(p) | any_16(p + 2) << 16;
}

INLINE float any_half(global const uchar *p)
{
    return st_float_of_half((ushort)any_16(p));
}

/* 32 elements of a row: codes as signed bytes, four to a word; scales of each half; what is subtracted. */
struct any_part {
    uint w[8];
    float d, d1; /* d1: of the second half, for types with a float scale for each 16 */
    float dmin; /* of the types of 32 elements: what is added */
    int scale[2], min[2];
};

/* Sixteen nibbles: element j in the low half of byte j, element 16 + j in the high one; each goes through the table. */
INLINE void any_nibbles(struct any_part *a, global const uchar *q, uint t0, uint t1, uint t2, uint t3)
{
    UNROLL
    for (uint i = 0; i < 4; i++) {
        st_lookup_nibbles(any_32(q + 4 * i), t0, t1, t2, t3, &a->w[i], &a->w[4 + i]);
        st_sort_nibbles(&a->w[i], &a->w[4 + i]);
    }
}

INLINE void any_byte(struct any_part *a, uint i, int code)
{
    const uint shift = i % 4 * 8;
    a->w[i / 4] = (a->w[i / 4] & ~(0xffu << shift)) | ((uint)code & 0xffu) << shift;
}

INLINE float any_e8m0(uint e)
{
    return st_float_of(e < 2 ? 0x200000u << e : (e - 1) << 23);
}

INLINE float any_ue4m3(uint v)
{
    v &= 0x7f;
    if (v == 0x7f)
        return 0.0f;
    return v < 8 ? (float)v * 0.0009765625f : st_float_of(((v >> 3) + 119) << 23 | (v & 7) << 20);
}

/* Scale and minimum of sub-block k of Q4_K and Q5_K. */
INLINE void any_k4(struct any_part *a, global const uchar *p, uint k)
{
    global const uchar *sc = p + 4;
    const uint j = k % 4;
    const int s = k < 4 ? sc[j] & 63 : (sc[j + 8] & 15) | (sc[j] >> 6) << 4;
    const int m = k < 4 ? sc[j + 4] & 63 : sc[j + 8] >> 4 | (sc[j + 4] >> 6) << 4;
    a->d = any_half(p);
    a->dmin = any_half(p + 2);
    a->scale[0] = a->scale[1] = s;
    a->min[0] = a->min[1] = m;
}

#define FP4_TABLE 0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu
#define IQ4_TABLE 0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u

/* Part number `part` of a row of a 32- or 64-element type. */
INLINE void any_open_small(struct any_part *a, global const uchar *row, uint type, uint part)
{
    if (type == T_Q8_0) {
        global const uchar *p = row + part * 34;
        a->d = any_half(p);
        UNROLL
        for (uint i = 0; i < 8; i++)
            a->w[i] = any_32(p + 2 + 4 * i);
    } else if (type == T_Q2_0) {
        global const uchar *p = row + part / 2 * 18;
        a->d = any_half(p);
        for (uint i = 0; i < 32; i++)
            any_byte(a, i, (int)(p[2 + part % 2 * 8 + i / 4] >> (i % 4 * 2) & 3) - 1);
    } else if (type == T_IQ4_NL) {
        global const uchar *p = row + part * 18;
        a->d = any_half(p);
        any_nibbles(a, p + 2, IQ4_TABLE);
    } else if (type == T_Q4_0) {
        global const uchar *p = row + part * 18;
        a->d = any_half(p);
        any_nibbles(a, p + 2, 0xfbfaf9f8u, 0xfffefdfcu, 0x03020100u, 0x07060504u);
    } else if (type == T_MXFP4) {
        global const uchar *p = row + part * 17;
        a->d = any_e8m0(p[0]);
        any_nibbles(a, p + 1, FP4_TABLE);
    } else if (type == T_Q4_1) {
        global const uchar *p = row + part * 20;
        a->d = any_half(p);
        a->dmin = any_half(p + 2);
        any_nibbles(a, p + 4, 0x03020100u, 0x07060504u, 0x0b0a0908u, 0x0f0e0d0cu);
    } else if (type == T_Q5_0 || type == T_Q5_1) {
        const bool least = type == T_Q5_1;
        global const uchar *p = row + part * (least ? 24 : 22);
        const uint high = any_32(p + (least ? 4 : 2));
        a->d = any_half(p);
        a->dmin = any_half(p + 2);
        for (uint i = 0; i < 32; i++)
            any_byte(a, i, (int)((uint)(p[(least ? 8 : 6) + i % 16] >> (i / 16 * 4) & 15) | (high >> i & 1) << 4) - (least ? 0 : 16));
    } else { /* NVFP4: 16 elements in 8 bytes, low nibbles first */
        global const uchar *p = row + part / 2 * 36;
        const uint half_block = part % 2;
        a->d = any_ue4m3(p[2 * half_block]);
        a->d1 = any_ue4m3(p[2 * half_block + 1]);
        UNROLL
        for (uint t = 0; t < 2; t++) {
            global const uchar *q = p + 4 + 16 * half_block + 8 * t;
            uint low0, high0, low1, high1;
            st_lookup_nibbles(any_32(q), FP4_TABLE, &low0, &high0);
            st_lookup_nibbles(any_32(q + 4), FP4_TABLE, &low1, &high1);
            st_sort_nibbles(&low0, &high0);
            st_sort_nibbles(&low1, &high1);
            a->w[4 * t] = low0;
            a->w[4 * t + 1] = low1;
            a->w[4 * t + 2] = high0;
            a->w[4 * t + 3] = high1;
        }
    }
}

/* Sub-block k of a 256-element block at p. */
INLINE void any_open_large(struct any_part *a, global const uchar *p, uint type, uint k)
{
    a->min[0] = a->min[1] = 0;
    a->dmin = 0.0f;
    if (type == T_Q4_K || type == T_Q5_K) {
        any_k4(a, p, k);
        global const uchar *q = p + (type == T_Q4_K ? 16 : 48) + 32 * (k / 2);
        const uint shift = k % 2 * 4;
        UNROLL
        for (uint i = 0; i < 8; i++)
            a->w[i] = any_32(q + 4 * i) >> shift & 0x0f0f0f0fu;
        if (type == T_Q5_K)
            UNROLL
            for (uint i = 0; i < 8; i++)
                a->w[i] |= (any_32(p + 16 + 4 * i) >> k & 0x01010101u) << 4;
    } else if (type == T_Q6_K) {
        const uint n = k / 4, g = k % 4;
        a->d = any_half(p + 208);
        for (uint t = 0; t < 2; t++)
            a->scale[t] = (int)(signed char)p[192 + 2 * k + t];
        for (uint i = 0; i < 32; i++) {
            const uint low = (uint)p[64 * n + 32 * (g % 2) + i] >> (g / 2 * 4) & 15, high = (uint)p[128 + 32 * n + i] >> 2 * g & 3;
            any_byte(a, i, (int)(low | high << 4) - 32);
        }
    } else if (type == T_Q2_K || type == T_Q3_K) {
        const bool two = type == T_Q2_K;
        global const uchar *q = p + (two ? 16 : 32) + 32 * (k / 4);
        a->d = any_half(p + (two ? 80 : 108));
        if (two)
            a->dmin = any_half(p + 82);
        for (uint t = 0; t < 2; t++) {
            const uint j = 2 * k + t;
            if (two) {
                a->scale[t] = p[j] & 15;
                a->min[t] = p[j] >> 4;
            } else {
                global const uchar *sc = p + 96;
                const uint low = j < 8 ? sc[j] & 15u : (uint)sc[j - 8] >> 4;
                a->scale[t] = (int)(low | ((uint)sc[8 + j % 4] >> (2 * (j / 4)) & 3) << 4) - 32;
            }
        }
        for (uint i = 0; i < 32; i++) {
            const int code = q[i] >> (k % 4 * 2) & 3;
            any_byte(a, i, two || (p[i] >> k & 1) ? code : code - 4);
        }
    } else if (type == T_IQ4_XS) {
        a->d = any_half(p);
        const uint low = (uint)p[4 + k / 2] >> (k % 2 * 4) & 15;
        a->scale[0] = a->scale[1] = (int)(low | (any_16(p + 2) >> 2 * k & 3) << 4) - 32;
        any_nibbles(a, p + 8 + 16 * k, IQ4_TABLE);
    } else { /* IQ3_XXS */
        const uint s = any_32(p + 66 + 4 * k);
        a->d = 0.25f * any_half(p);
        a->scale[0] = a->scale[1] = (int)(2 * (s >> 28) + 1);
        for (uint l = 0; l < 4; l++) {
            uint signs = s >> 7 * l & 127, parity = signs ^ signs >> 4;
            parity ^= parity >> 2;
            parity ^= parity >> 1;
            signs |= (parity & 1) << 7;
            for (uint j = 0; j < 8; j++) {
                const int v = (int)(grid_iq3xxs[p[2 + 8 * k + 2 * l + j / 4]] >> (j % 4 * 8) & 0xff);
                any_byte(a, 8 * l + j, signs >> j & 1 ? -v : v);
            }
        }
    }
}

INLINE bool any_is_float(uint type)
{
    return type == T_F32 || type == T_F16 || type == T_BF16;
}

INLINE bool any_is_large(uint type)
{
    return (type >= T_Q2_K && type <= T_Q6_K) || type == T_IQ3_XXS || type == T_IQ4_XS;
}

INLINE uint any_block_bytes(uint type)
{
    return type == T_Q2_K ? 84 : type == T_Q3_K ? 110 : type == T_Q4_K ? 144 : type == T_Q5_K ? 176 : type == T_Q6_K ? 210
         : type == T_IQ3_XXS ? 98 : 136;
}

/* Sum of the products of sixteen codes (four words) with the activation bytes from element e on, a multiple of 16. */
INLINE int any_dot(const uint *w, global const uchar *x, uint n, uint e)
{
    global const uint *q = (global const uint *)(x + ST_PLACE(n, e));
    int sum = 0;
    UNROLL
    for (uint i = 0; i < 4; i++)
        sum = st_dot4(w[i], q[i], sum);
    return sum;
}

/* Sum of sixteen activation bytes. */
INLINE int any_sum(global const uchar *x, uint n, uint e)
{
    const uint ones[4] = {0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u};
    return any_dot(ones, x, n, e);
}

/* acc[m] of the row with integer activations; x[m] the activation rows. */
INLINE void any_integer(float *acc, global const uchar *row, uint type, global const uchar *const *x, uint n, uint count)
{
    struct any_part a;
    if (!any_is_large(type)) {
        for (uint part = 0; part < n / 32; part++) {
            any_open_small(&a, row, type, part);
            UNROLL
            for (uint m = 0; m < MANY; m++) {
                if (m >= count)
                    break;
                const int first = any_dot(a.w, x[m], n, part * 32), second = any_dot(a.w + 4, x[m], n, part * 32 + 16);
                const float dy = *(global const float *)(x[m] + ST_Q8_SCALES(n) + part * 4);
                if (type == T_NVFP4) {
                    acc[m] = st_fma(a.d * dy, (float)first, acc[m]);
                    acc[m] = st_fma(a.d1 * dy, (float)second, acc[m]);
                } else {
                    acc[m] = st_fma(a.d * dy, (float)(first + second), acc[m]);
                    if (type == T_Q4_1 || type == T_Q5_1)
                        acc[m] = st_fma(a.dmin, *(global const float *)(x[m] + ST_Q8_S(n) + part * 4), acc[m]);
                }
            }
        }
        return;
    }
    const uint bytes = any_block_bytes(type);
    for (uint block = 0; block < n / 256; block++) {
        int total[MANY] = {0, 0, 0, 0, 0, 0, 0, 0}, mins[MANY] = {0, 0, 0, 0, 0, 0, 0, 0};
        for (uint k = 0; k < 8; k++) {
            any_open_large(&a, row + block * bytes, type, k);
            UNROLL
            for (uint m = 0; m < MANY; m++) {
                if (m >= count)
                    break;
                const uint e = block * 256 + k * 32;
                total[m] += a.scale[0] * any_dot(a.w, x[m], n, e) + a.scale[1] * any_dot(a.w + 4, x[m], n, e + 16);
                if (type == T_Q2_K || type == T_Q4_K || type == T_Q5_K)
                    mins[m] += a.min[0] * any_sum(x[m], n, e) + a.min[1] * any_sum(x[m], n, e + 16);
            }
        }
        UNROLL
        for (uint m = 0; m < MANY; m++) {
            if (m >= count)
                break;
            const float dy = *(global const float *)(x[m] + ST_Q8K_SCALES(n) + block * 4);
            acc[m] = st_fma(a.d * dy, (float)total[m], acc[m]);
            if (type == T_Q2_K || type == T_Q4_K || type == T_Q5_K)
                acc[m] = st_fma(-(a.dmin * dy), (float)mins[m], acc[m]);
        }
    }
}

/* Sixteen decoded weights from element `at` (a multiple of 16); past n they are 0. */
INLINE void any_decode16(float *v, global const uchar *row, uint type, uint at, uint n)
{
    if (any_is_float(type)) {
        UNROLL
        for (uint j = 0; j < 16; j++)
            v[j] = at + j >= n      ? 0.0f
                   : type == T_F32  ? ((global const float *)row)[at + j]
                   : type == T_BF16 ? st_float_of((uint)((global const ushort *)row)[at + j] << 16)
                                    : st_float_of_half(((global const ushort *)row)[at + j]);
        return;
    }
    struct any_part a;
    const bool large = any_is_large(type);
    if (large)
        any_open_large(&a, row + at / 256 * any_block_bytes(type), type, at % 256 / 32);
    else
        any_open_small(&a, row, type, at / 32);
    const uint t = at % 32 / 16;
    const float d = large ? a.d * (float)a.scale[t] : type == T_NVFP4 && t ? a.d1 : a.d;
    const float m = large ? a.dmin * (float)a.min[t] : 0.0f;
    UNROLL
    for (uint j = 0; j < 16; j++) {
        const uint i = 16 * t + j;
        const float code = (float)(signed char)(a.w[i / 4] >> (i % 4 * 8));
        v[j] = large ? d * code - m : type == T_Q4_1 || type == T_Q5_1 ? d * code + a.dmin : d * code;
    }
}

/* The canonical float product: sixteen partial sums, then a tree. */
INLINE float any_float(global const uchar *row, uint type, global const float *x, uint n)
{
    float sum[16], v[16];
    UNROLL
    for (uint j = 0; j < 16; j++)
        sum[j] = 0.0f;
    for (uint at = 0; at < n; at += 16) {
        any_decode16(v, row, type, at, n);
        UNROLL
        for (uint j = 0; j < 16; j++)
            sum[j] = st_fma(at + j < n ? x[at + j] : 0.0f, v[j], sum[j]);
    }
    UNROLL
    for (uint j = 0; j < 8; j++)
        sum[j] = sum[j] + sum[j + 8];
    UNROLL
    for (uint j = 0; j < 4; j++)
        sum[j] = sum[j] + sum[j + 4];
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

/* The row times up to MANY activation rows at x[m]. */
INLINE void any_row(float *acc, global const uchar *row, uint type, uint form, global const uchar *const *x, uint n, uint count)
{
    UNROLL
    for (uint m = 0; m < MANY; m++)
        acc[m] = 0.0f;
    if (form != FORM_F32) {
        any_integer(acc, row, type, x, n, count);
        return;
    }
    UNROLL
    for (uint m = 0; m < MANY; m++)
        if (m < count)
            acc[m] = any_float(row, type, (global const float *)x[m], n);
}

/* y[m][o] = scale * (w[o] . x[m]) for m below total; stride: bytes from row to row of x. scales: 0 or one factor. grid: (ceil(rows /
 * 64), ceil(total / 8)). */
KERNEL(GROUP) st_any_product(global float *restrict y, global const uchar *restrict w, global const uchar *restrict x,
                             global const float *restrict scales, uint type, uint form, uint n, uint rows, uint row_bytes,
                             uint total, uint stride, uint ldy, uint scaled)
{
    const uint o = st_group() * GROUP + st_item(), first = st_group_y() * MANY;
    const uint count = total - first < MANY ? total - first : MANY;
    if (o >= rows)
        return;
    global const uchar *at[MANY];
    float acc[MANY];
    UNROLL
    for (uint m = 0; m < MANY; m++)
        at[m] = x + (ulong)(first + (m < count ? m : 0)) * stride;
    any_row(acc, w + (ulong)o * row_bytes, type, form, at, n, count);
    const float factor = scaled ? scales[0] : 1.0f;
    UNROLL
    for (uint m = 0; m < MANY; m++)
        if (m < count)
            y[(ulong)(first + m) * ldy + o] = scaled ? acc[m] * factor : acc[m];
}

/* Products of the entries of each expert: entry i reads row entry[i] / used of x (by_entry 0) or row i (by_entry 1) and writes row i
 * of y. scales: scaled 0 none, 1 one factor, 2 one for each expert. grid: (ceil(rows / 64), experts). */
KERNEL(GROUP) st_any_expert(global float *restrict y, global const uchar *restrict w, global const uchar *restrict x,
                            global const int *restrict first, global const int *restrict entry,
                            global const float *restrict scales, uint type, uint form, uint n, uint rows, uint row_bytes,
                            uint stride, uint ldy, uint used, uint by_entry, uint scaled)
{
    const uint o = st_group() * GROUP + st_item(), e = st_group_y();
    const uint from = (uint)first[e], to = (uint)first[e + 1];
    if (o >= rows || from >= to)
        return;
    global const uchar *row = w + ((ulong)e * rows + o) * row_bytes;
    const float factor = scaled == 0 ? 1.0f : scales[scaled == 2 ? e : 0];
    for (uint base = from; base < to; base += MANY) {
        const uint count = to - base < MANY ? to - base : MANY;
        global const uchar *at[MANY];
        float acc[MANY];
        UNROLL
        for (uint m = 0; m < MANY; m++) {
            const uint i = base + (m < count ? m : 0);
            at[m] = x + (ulong)(by_entry ? i : (uint)entry[i] / used) * stride;
        }
        any_row(acc, row, type, form, at, n, count);
        UNROLL
        for (uint m = 0; m < MANY; m++)
            if (m < count)
                y[(ulong)(base + m) * ldy + o] = scaled ? acc[m] * factor : acc[m];
    }
}

/* h = silu(g) * u, [rows][width] in ld floats each; h may be g. grid: (ceil(width / 64), rows). */
KERNEL(GROUP) st_any_silu_mul(global float *h, global const float *g, global const float *u, uint width, uint ldh, uint ld)
{
    const uint i = st_group() * GROUP + st_item(), row = st_group_y();
    if (i < width)
        h[(ulong)row * ldh + i] = st_siluf(g[(ulong)row * ld + i]) * u[(ulong)row * ld + i];
}

/* y = sum over a row's choice, best first, of weight * o[where], then + shared * o[routed + row]. grid: (ceil(hidden / 64), rows). */
KERNEL(GROUP) st_any_combine(global float *restrict y, global const float *restrict o, global const float *restrict weight,
                             global const int *restrict where, global const float *restrict shared, uint hidden, uint used,
                             uint routed)
{
    const uint i = st_group() * GROUP + st_item(), row = st_group_y();
    if (i >= hidden)
        return;
    float sum = 0.0f;
    for (uint p = 0; p < used; p++)
        sum = st_fma(weight[row * used + p], o[(ulong)(uint)where[row * used + p] * hidden + i], sum);
    y[(ulong)row * hidden + i] = st_fma(shared[row], o[(ulong)(routed + row) * hidden + i], sum);
}

/* lo = silu(lo / streams) (kind 0) or inj = 2 sigmoid(inj / streams) (kind 1), in place. grid: (ceil(count / 64), 1). */
KERNEL(GROUP) st_any_gate(global float *restrict v, uint count, uint streams, uint kind)
{
    const uint i = st_group() * GROUP + st_item();
    if (i < count) {
        const float x = v[i] * (1.0f / (float)streams);
        v[i] = kind ? 2.0f * st_sigmoidf(x) : st_siluf(x);
    }
}

/* m = mean over streams of sigmoid(gate) * x. grid: (ceil(hidden / 64), rows). */
KERNEL(GROUP) st_any_mean(global float *restrict m, global const float *restrict gate, global const float *restrict x, uint hidden,
                          uint streams)
{
    const uint i = st_group() * GROUP + st_item(), row = st_group_y();
    if (i >= hidden)
        return;
    float sum = 0.0f;
    for (uint c = 0; c < streams; c++) {
        const ulong at = ((ulong)row * streams + c) * hidden + i;
        sum = st_fma(st_sigmoidf(gate[at]), x[at], sum);
    }
    m[(ulong)row * hidden + i] = sum / (float)streams;
}
