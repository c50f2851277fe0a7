/* Activations to Q8 and Q8K rows, by the work-items that have the elements (layouts in layout.h, rounding as
 * st_act_quantize of src/format/quant.h, to the bit). Groups of any size for Q8, of 256 for Q8K. */
#ifndef ST_QUANTIZE_H
#define ST_QUANTIZE_H

#include "exchange.h"
#include "layout.h"

/* Nearest even whole number within -127 .. 127; -127 for NaN. */
INLINE int round_q(float v)
{
    v = v > -127.0f ? v : -127.0f;
    v = v < 127.0f ? v : 127.0f;
    return st_round_even(v);
}

/* Element e of row `to` has value v; the work-item's 31 neighbours have the rest of the block. Called by all
 * work-items; those with inside == false only take part in exchanges. */
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
        to[ST_Q8_PLAIN(n) + e] = (uchar)q;
        if (e % 32 == 0) {
            *(global float *)(to + ST_Q8_SCALES(n) + e / 8) = stored;
            *(global int *)(to + ST_Q8_SUMS(n) + e / 8) = sum;
            *(global float *)(to + ST_Q8_S(n) + e / 8) =
                stored == 0.0f ? 0.0f : st_float_of_half(st_half_of_float((float)sum * d));
        }
    }
}

/* The same for Q8K: all work-items of the group have the block. best: 8 words for the largest magnitudes, 8 for their
 * place, reused after a barrier. */
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
    to[ST_Q8K_PLAIN(n) + e] = (uchar)q;
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

#endif
