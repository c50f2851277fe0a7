/* The dialect of the host: C as if it were OpenCL C, work-items as fibers (runtime/fibers.h). ST_LANES is defined by
 * the file that includes the kernels. Included before dialect.h, after every header that is plain C. */
#ifndef ST_HOST_DIALECT_H
#define ST_HOST_DIALECT_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "runtime/fibers.h"

#define ST_HOST

typedef uint8_t uchar;
typedef uint16_t ushort;
typedef uint32_t uint;
typedef uint64_t ulong;
typedef struct {
    uint x, y;
} uint2;
typedef struct {
    uint x, y, z, w;
} uint4;
typedef struct {
    int x, y, z, w;
} int4;
typedef struct {
    float x, y, z, w;
} float4;

#define global
#define local
#define KERNEL(group) static void
#define GROUPS_OF_A_UNIT(group, groups)
#define LOCAL_ARRAY(type, name, count) type *const name = st_fiber_local(st_item_now, (count) * sizeof(type))
/* Not forced, so that the kernels of all types share their bodies. */
#define INLINE static inline __attribute__((unused))
#define UNROLL
#define UNROLL_TERMS
#define KEEP_LOOP
#define ST_TABLE static const
#define ST_TABLE_AT const

INLINE uint st_item(void)
{
    return st_item_now->index;
}
INLINE uint st_group(void)
{
    return st_item_now->group;
}
INLINE uint st_group_y(void)
{
    return st_item_now->group_y;
}
INLINE void st_barrier(void)
{
    st_fiber_wait(st_item_now, ST_ITEM_AT_BARRIER);
}

INLINE float st_float_of(uint u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
INLINE uint st_bits_of(float f)
{
    uint u;
    memcpy(&u, &f, 4);
    return u;
}

/* Shows value to the wave and returns what all lanes show. */
INLINE const uint *st_exchange(uint value)
{
    struct st_item *item = st_item_now;
    uint *shown = item->wave->value[item->parity];
    item->parity ^= 1;
    shown[item->lane] = value;
    st_fiber_wait(item, ST_ITEM_AT_EXCHANGE);
    return shown;
}
INLINE uint st_shuffle(uint value, uint lane)
{
    return st_exchange(value)[lane % ST_LANES];
}
INLINE uint st_shuffle_xor(uint value, uint mask)
{
    const uint lane = st_item_now->lane;
    return st_exchange(value)[(lane ^ mask) % ST_LANES];
}
INLINE ulong st_ballot(bool predicate)
{
    const uint *shown = st_exchange(predicate);
    ulong votes = 0;
    for (uint i = 0; i < ST_LANES; i++)
        votes |= (ulong)shown[i] << i;
    return votes;
}
INLINE bool st_any(bool predicate)
{
    return st_ballot(predicate) != 0;
}

#endif
