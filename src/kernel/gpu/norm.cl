/* RMS norm over groups of elements, and quantisation of activations (Q8, Q8K; layouts in layout.h, rounding as
 * st_act_quantize of src/format/quant.h, to the bit).
 *
 * x, y: [rows][n] f32. A group of 256 work-items handles one group of elements of one row; work-item i has elements
 * i, i + 256, ... so that loads are coalesced and 32 neighbours share a Q8 block, all 256 a Q8K block.
 * Sum of squares: work-item i adds its elements in ascending order with fma, then 32 neighbours add in a butterfly of
 * distances 16 8 4 2 1, then the eight sums are added in ascending order. The same order on every device.
 * Limit: latency (a row is 10 to 40 KB). */
#include "quantize.h"

#define GROUP 256

#define LOCAL_WORDS GROUP
/* Elements that a work-item asks for at once: one after the other, each would wait for the memory. */
#define NORM_AHEAD 16

/* Its elements from base on: values[k] is x[base + item + 256 k], 0 behind the end. */
INLINE void read_ahead(float *values, global const float *x, uint base, uint count)
{
    UNROLL
    for (uint k = 0; k < NORM_AHEAD; k++) {
        const uint i = base + st_item() + k * GROUP;
        values[k] = i < count ? x[i] : 0.0f;
    }
}

/* 1 / rms of count elements of the group from the work-items' sums of squares. */
INLINE float inverse_of_sums(local uint *words, local float *partial, float sum, uint count, float eps)
{
    sum = sum32(words, sum);
    if (st_item() % 32 == 0)
        partial[st_item() / 32] = sum;
    st_barrier();
    sum = partial[0];
    for (uint i = 1; i < GROUP / 32; i++)
        sum = sum + partial[i];
    return st_rsqrt(sum / (float)count + eps);
}

/* 1 / rms of the group's elements x[0 .. count). */
INLINE float inverse_rms(local uint *words, local float *partial, global const float *x, uint count, float eps)
{
    float sum = 0.0f, v[NORM_AHEAD];
    for (uint base = 0; base < count; base += NORM_AHEAD * GROUP) {
        read_ahead(v, x, base, count);
        UNROLL
        for (uint k = 0; k < NORM_AHEAD; k++)
            if (base + st_item() + k * GROUP < count)
                sum = st_fma(v[k], v[k], sum);
    }
    return inverse_of_sums(words, partial, sum, count, eps);
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
    for (uint base = 0; base < group; base += NORM_AHEAD * GROUP) {
        float v[NORM_AHEAD], g[NORM_AHEAD];
        read_ahead(v, from, base, group);
        read_ahead(g, scale, base, group);
        UNROLL
        for (uint k = 0; k < NORM_AHEAD; k++) {
            const uint i = base + st_item() + k * GROUP;
            if (i < group)
                to[i] = v[k] * inverse * g[k];
        }
    }
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

/* r[stream] += inj[stream] * o, and the norm of each stream as st_norm, st_norm_q8 (form 1) or st_norm_q8k (form 2) makes it.
 * n: elements of a row; group: of a stream. grid: (n / group, rows). */
KERNEL(GROUP) st_write_norm(global float *restrict y, global uchar *restrict q, global float *restrict r,
                            global const float *restrict inj, global const float *restrict o, global const float *restrict gamma,
                            uint n, uint group, uint form, float eps)
{
    LOCAL_ARRAY(uint, words, LOCAL_WORDS);
    LOCAL_ARRAY(uint, best, 16);
    LOCAL_ARRAY(float, partial, GROUP / 32);
    const uint start = st_group() * group, row = st_group_y();
    const float weight = inj[row * (n / group) + st_group()];
    global float *from = r + (ulong)row * n + start, *to = y + (ulong)row * n + start;
    global const float *add = o + (ulong)row * group;
    global uchar *codes = q + (ulong)row * (form == 1 ? ST_Q8_STRIDE(n) : ST_Q8K_STRIDE(n));
    float sum = 0.0f, v[NORM_AHEAD], g[NORM_AHEAD];
    for (uint base = 0; base < group; base += NORM_AHEAD * GROUP) {
        read_ahead(v, from, base, group);
        read_ahead(g, add, base, group);
        UNROLL
        for (uint k = 0; k < NORM_AHEAD; k++) {
            const uint i = base + st_item() + k * GROUP;
            v[k] = st_fma(weight, g[k], v[k]);
            if (i < group) {
                from[i] = v[k];
                sum = st_fma(v[k], v[k], sum);
            }
        }
    }
    const bool kept = group <= NORM_AHEAD * GROUP;
    read_ahead(g, gamma + start, 0, group);
    const float inverse = inverse_of_sums(words, partial, sum, group, eps);
    for (uint base = 0; base < group; base += NORM_AHEAD * GROUP) {
        if (!kept) {
            read_ahead(v, from, base, group);
            read_ahead(g, gamma + start, base, group);
        }
        UNROLL
        for (uint k = 0; k < NORM_AHEAD; k++) {
            const uint i = base + st_item() + k * GROUP;
            if (i < group)
                to[i] = v[k] * inverse * g[k];
        }
    }
    for (uint base = 0; base < group && form == 1; base += GROUP) {
        const uint i = base + st_item();
        put_q8(words, codes, n, start + i, i < group ? to[i] : 0.0f, i < group);
    }
    for (uint i = st_item(); i < group && form == 2; i += GROUP)
        put_q8k(words, best, codes, n, start + i, to[i]);
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
