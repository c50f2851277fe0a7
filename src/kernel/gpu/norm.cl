/* RMS norm over groups of elements, and quantisation of activations (Q8, Q8K; layouts in layout.h, rounding as
 * st_act_quantize of src/format/quant.h, to the bit).
 *
 * x, y: [rows][n] f32. A group of 256 work-items handles one group of elements of one row; work-item i has elements
 * i, i + 256, ... so that loads are coalesced and 32 neighbours share a Q8 block, all 256 a Q8K block.
 * Sum of squares: work-item i adds its elements in ascending order with fma, then 32 neighbours add in a butterfly of
 * distances 16 8 4 2 1, then the eight sums are added in ascending order. The same order on every device.
 * Limit: latency (a row is 10 to 40 KB). */
#include "exchange.h"
#include "layout.h"

#define GROUP 256

#define LOCAL_WORDS GROUP

/* Nearest even whole number within -127 .. 127; -127 for NaN. */
INLINE int round_q(float v)
{
    v = v > -127.0f ? v : -127.0f;
    v = v < 127.0f ? v : 127.0f;
    return st_round_even(v);
}

/* Element e of row `to` has value v; the work-item's 31 neighbours have the rest of the block. Called by all work-items;
 * those with inside == false only take part in exchanges. */
INLINE void put_q8(local uint *words, global uchar *to, uint n, uint e, float v, bool inside)
{
    const uint magnitude = inside ? st_bits_of(v) & 0x7fffffffu : 0;
    const float d = st_float_of(max32(words, magnitude)) / 127.0f;
    const float stored = st_float_of_half(st_half_of_float(d));
    const int q = stored == 0.0f || !inside ? 0 : round_q(v * (1.0f / d));
    const int sum = add32(words, q);
    if (inside) {
        to[ST_PLACE(n, e)] = (uchar)q;
        to[ST_Q8_TRANSPOSED(n) + ST_T_PLACE(n, e)] = (uchar)q;
        if (e % 32 == 0) {
            *(global float *)(to + ST_Q8_SCALES(n) + e / 8) = stored;
            *(global int *)(to + ST_Q8_SUMS(n) + e / 8) = sum;
            *(global float *)(to + ST_Q8_S(n) + e / 8) =
                stored == 0.0f ? 0.0f : st_float_of_half(st_half_of_float((float)sum * d));
        }
    }
}

/* The same for Q8K: all work-items of the group have the block. best: 8 words for the largest magnitudes, 8 for their place,
 * reused after a barrier. */
INLINE void put_q8k(local uint *words, local uint *best, global uchar *to, uint n, uint e, float v)
{
    const uint item = st_item();
    const uint magnitude = st_bits_of(v) & 0x7fffffffu;
    const uint most = max32(words, magnitude);
    /* the first work-item with the largest magnitude gives the sign */
    const uint first = max32(words, magnitude == most ? 255 - item : 0);
    st_barrier();
    if (item % 32 == 0)
        best[item / 32] = most;
    if (item == 255 - first)
        best[8 + item / 32] = st_bits_of(v);
    st_barrier();
    uint max = 0, value = 0;
    for (uint i = 0; i < 8; i++)
        if (best[i] > max) {
            max = best[i];
            value = best[8 + i];
        }
    const bool zero = max < 0x0d800000u;
    const float factor = -127.0f / st_float_of(zero ? 0x3f800000u : value);
    const int q = zero ? 0 : round_q(v * factor);
    int sum = q;
    for (uint mask = 8; mask > 0; mask /= 2)
        sum += (int)exchange(words, (uint)sum, mask);
    to[ST_PLACE(n, e)] = (uchar)q;
    if (item % 16 == 0) {
        const int upper = (sum + ST_PAIR / 2) >> 6;
        global uchar *pair = to + ST_Q8K_PAIRS(n) + e / 256 * 32 + e % 256 / 16;
        pair[0] = (uchar)upper;
        pair[16] = (uchar)(sum - ST_PAIR * upper);
    }
    sum += (int)exchange(words, (uint)sum, 16);
    if (item % 32 == 0)
        *(global int *)(to + ST_Q8K_SUMS(n) + e / 8) = sum;
    if (item == 0)
        *(global float *)(to + ST_Q8K_SCALES(n) + e / 64) = zero ? 0.0f : 1.0f / factor;
}

/* 1 / rms of the group's elements x[0 .. count). */
INLINE float inverse_rms(local uint *words, local float *partial, global const float *x, uint count, float eps)
{
    const uint item = st_item();
    float sum = 0.0f;
    for (uint i = item; i < count; i += GROUP)
        sum = st_fma(x[i], x[i], sum);
    sum = sum32(words, sum);
    if (item % 32 == 0)
        partial[item / 32] = sum;
    st_barrier();
    sum = partial[0];
    for (uint i = 1; i < GROUP / 32; i++)
        sum = sum + partial[i];
    return st_rsqrt(sum / (float)count + eps);
}

/* y = x / rms(group) * gamma[index % gammas]. n: elements of a row; group: elements that share a root mean square, n is a
 * multiple of it; gammas: group or n. grid: (n / group, rows). */
KERNEL(GROUP) st_norm(global float *restrict y, global const float *restrict x, global const float *restrict gamma, uint n,
                      uint group, uint gammas, float eps)
{
    LOCAL_ARRAY(uint, words, LOCAL_WORDS);
    LOCAL_ARRAY(float, partial, GROUP / 32);
    const uint start = st_group() * group;
    global const float *from = x + (ulong)st_group_y() * n + start;
    global float *to = y + (ulong)st_group_y() * n + start;
    global const float *scale = gamma + start % gammas;
    const float inverse = inverse_rms(words, partial, from, group, eps);
    for (uint i = st_item(); i < group; i += GROUP)
        to[i] = from[i] * inverse * scale[i];
}

/* As st_norm, and the same values as Q8 rows. group is a multiple of 32. */
KERNEL(GROUP) st_norm_q8(global float *restrict y, global uchar *restrict q, global const float *restrict x,
                         global const float *restrict gamma, uint n, uint group, uint gammas, float eps)
{
    LOCAL_ARRAY(uint, words, LOCAL_WORDS);
    LOCAL_ARRAY(float, partial, GROUP / 32);
    const uint start = st_group() * group;
    global const float *from = x + (ulong)st_group_y() * n + start;
    global float *to = y + (ulong)st_group_y() * n + start;
    global uchar *row = q + (ulong)st_group_y() * ST_Q8_STRIDE(n);
    global const float *scale = gamma + start % gammas;
    const float inverse = inverse_rms(words, partial, from, group, eps);
    for (uint base = 0; base < group; base += GROUP) {
        const uint i = base + st_item();
        float v = 0.0f;
        if (i < group) {
            v = from[i] * inverse * scale[i];
            to[i] = v;
        }
        put_q8(words, row, n, start + i, v, i < group);
    }
}

/* As st_norm, and the same values as Q8K rows. group is a multiple of 256. */
KERNEL(GROUP) st_norm_q8k(global float *restrict y, global uchar *restrict q, global const float *restrict x,
                          global const float *restrict gamma, uint n, uint group, uint gammas, float eps)
{
    LOCAL_ARRAY(uint, words, LOCAL_WORDS);
    LOCAL_ARRAY(uint, best, 16);
    LOCAL_ARRAY(float, partial, GROUP / 32);
    const uint start = st_group() * group;
    global const float *from = x + (ulong)st_group_y() * n + start;
    global float *to = y + (ulong)st_group_y() * n + start;
    global uchar *row = q + (ulong)st_group_y() * ST_Q8K_STRIDE(n);
    global const float *scale = gamma + start % gammas;
    const float inverse = inverse_rms(words, partial, from, group, eps);
    for (uint i = st_item(); i < group; i += GROUP) {
        const float v = from[i] * inverse * scale[i];
        to[i] = v;
        put_q8k(words, best, row, n, start + i, v);
    }
}

/* q = Q8 rows of x. grid: (ceil(n / 256), rows). */
KERNEL(GROUP) st_quant_q8(global uchar *restrict q, global const float *restrict x, uint n)
{
    LOCAL_ARRAY(uint, words, LOCAL_WORDS);
    const uint e = st_group() * GROUP + st_item();
    const float v = e < n ? x[(ulong)st_group_y() * n + e] : 0.0f;
    put_q8(words, q + (ulong)st_group_y() * ST_Q8_STRIDE(n), n, e, v, e < n);
}

/* q = Q8K rows of x. grid: (n / 256, rows). */
KERNEL(GROUP) st_quant_q8k(global uchar *restrict q, global const float *restrict x, uint n)
{
    LOCAL_ARRAY(uint, words, LOCAL_WORDS);
    LOCAL_ARRAY(uint, best, 16);
    const uint e = st_group() * GROUP + st_item();
    put_q8k(words, best, q + (ulong)st_group_y() * ST_Q8K_STRIDE(n), n, e, x[(ulong)st_group_y() * n + e]);
}
