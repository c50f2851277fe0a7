/* Copies and reads for measuring bandwidth, and an empty kernel for measuring the cost of a launch.
 *
 * Work-item i of a group handles vectors of 16 bytes at group * 1024 + k * 256 + i, k = 0..3: neighbours read neighbours,
 * four loads are in flight per work-item. Expected limit: device memory. */
#include "dialect.h"

#define GROUP 256
#define PER_ITEM 4

/* grid: 1 or more groups. */
KERNEL(64) st_empty(void)
{
}

/* to[i] = from[i] for count vectors of 16 bytes. grid: ceil(count / 1024) groups. */
KERNEL(GROUP) st_copy(global uint4 *restrict to, global const uint4 *restrict from, ulong count)
{
    const ulong first = (ulong)st_group() * (GROUP * PER_ITEM) + st_item();
    uint4 v[PER_ITEM];
    UNROLL
    for (uint k = 0; k < PER_ITEM; k++)
        if (first + k * GROUP < count)
            v[k] = from[first + k * GROUP];
    UNROLL
    for (uint k = 0; k < PER_ITEM; k++)
        if (first + k * GROUP < count)
            to[first + k * GROUP] = v[k];
}

/* out[group * 256 + item] = exclusive or of the words that the work-item read. grid: ceil(count / 1024) groups. */
KERNEL(GROUP) st_read(global uint *restrict out, global const uint4 *restrict from, ulong count)
{
    const ulong first = (ulong)st_group() * (GROUP * PER_ITEM) + st_item();
    uint word = 0;
    UNROLL
    for (uint k = 0; k < PER_ITEM; k++)
        if (first + k * GROUP < count) {
            const uint4 v = from[first + k * GROUP];
            word ^= v.x ^ v.y ^ v.z ^ v.w;
        }
    out[st_group() * GROUP + st_item()] = word;
}
