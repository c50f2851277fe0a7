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

/* The largest of the values of the group's 256 work-items. best: 8 words, which may be used again after the next barrier. */
INLINE uint max256(local uint *words, local uint *best, uint v)
{
    v = max32(words, v);
    st_barrier();
    if (st_item() % 32 == 0)
        best[st_item() / 32] = v;
    st_barrier();
    for (uint i = 0; i < 256 / 32; i++)
        v = best[i] > v ? best[i] : v;
    return v;
}

/* Words of local memory that before256 needs. */
#define BEFORE_WORDS (ST_LANES >= 32 ? 8 : 512)

/* The sum of the values of the group's work-items before this one; *total of all 256. room may be used again after the next
 * barrier. */
INLINE uint before256(local uint *room, uint value, uint *total)
{
    const uint item = st_item();
    uint sum = value; /* with this work-item's */
#if ST_LANES >= 32
    for (uint step = 1; step < 32; step *= 2) {
        const uint other = st_shuffle(sum, item % 32 >= step ? st_lane() - step : st_lane());
        sum += item % 32 >= step ? other : 0;
    }
    st_barrier();
    if (item % 32 == 31)
        room[item / 32] = sum;
    st_barrier();
    uint all = 0;
    for (uint i = 0; i < 8; i++) {
        sum += i < item / 32 ? room[i] : 0;
        all += room[i];
    }
    *total = all;
#else
    st_barrier();
    room[item] = sum;
    for (uint step = 1, from = 0; step < 256; step *= 2, from = 256 - from) {
        st_barrier();
        sum += item >= step ? room[from + item - step] : 0;
        room[256 - from + item] = sum;
    }
    st_barrier();
    *total = room[255]; /* eight steps end in the first half */
#endif
    return sum - value;
}

#endif
