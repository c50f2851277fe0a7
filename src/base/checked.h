/* Checked arithmetic for sizes and offsets that come from files or requests: each function returns false on overflow and
 * then leaves *out untouched. */
#ifndef ST_BASE_CHECKED_H
#define ST_BASE_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

static inline bool st_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

static inline bool st_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t r;
    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

/* Rounds up to a multiple of align, a power of two. */
static inline bool st_align_u64(uint64_t a, uint64_t align, uint64_t *out)
{
    uint64_t r;
    if (!st_add_u64(a, align - 1, &r))
        return false;
    *out = r & ~(align - 1);
    return true;
}

#endif
