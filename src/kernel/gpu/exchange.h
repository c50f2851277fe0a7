/* Sums, maxima and exchanges among 32 neighbouring work-items and over a group of 256, in one order on every device. words:
 * 256 words of local memory, used only where lanes cannot exchange values; partial: 8 floats of local memory. */
#ifndef ST_EXCHANGE_H
#define ST_EXCHANGE_H

#include "dialect.h"

/* The value of work-item (item ^ mask), mask below 32. */
INLINE uint exchange(local uint *words, uint value, uint mask)
{
#if ST_LANES >= 32
    (void)words;
    return st_shuffle_xor(value, mask);
#else
    const uint item = st_item();
    st_barrier();
    words[item] = value;
    st_barrier();
    return words[item ^ mask];
#endif
}

INLINE float sum32(local uint *words, float v)
{
    for (uint mask = 16; mask > 0; mask /= 2)
        v = v + st_float_of(exchange(words, st_bits_of(v), mask));
    return v;
}

INLINE uint max32(local uint *words, uint v)
{
    for (uint mask = 16; mask > 0; mask /= 2) {
        const uint other = exchange(words, v, mask);
        v = other > v ? other : v;
    }
    return v;
}

INLINE int add32(local uint *words, int v)
{
    for (uint mask = 16; mask > 0; mask /= 2)
        v += (int)exchange(words, (uint)v, mask);
    return v;
}

/* Sum over the group's 256 work-items: 32 neighbours by exchange, then the eight sums in ascending order. partial may be used
 * again after the next barrier. */
INLINE float sum256(local uint *words, local float *partial, float v)
{
    const uint item = st_item();
    v = sum32(words, v);
    st_barrier();
    if (item % 32 == 0)
        partial[item / 32] = v;
    st_barrier();
    v = partial[0];
    for (uint i = 1; i < 8; i++)
        v = v + partial[i];
    return v;
}

#endif
