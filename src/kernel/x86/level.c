/* Owns the question which levels this processor and its operating system support. Compiled for the plain architecture.
 */
#include "kernel/dot.h"

#if defined(__x86_64__)
#include <cpuid.h>

#include "kernel/x86/dot_x86.h"

/* Register state that the operating system saves: bits of XCR0. */
static unsigned saved_state(void)
{
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static bool has_avx2(void)
{
    unsigned a, b, c, d, features = bit_FMA | bit_OSXSAVE | bit_AVX | bit_F16C;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & features) != features || (saved_state() & 6) != 6)
        return false;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_AVX2);
}

static bool has_avx512(void)
{
    unsigned a, b, c, d, first = bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL;
    unsigned second = bit_AVX512VBMI | bit_AVX512VNNI;
    if (!has_avx2() || (saved_state() & 0xe6) != 0xe6 || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return false;
    return (b & first) == first && (c & second) == second;
}

const struct st_dot_table *st_dot_table_avx2(void)
{
    return has_avx2() ? &st_x86_avx2_dot_table : NULL;
}

const struct st_dot_table *st_dot_table_avx512(void)
{
    return has_avx512() ? &st_x86_avx512_dot_table : NULL;
}

#else

const struct st_dot_table *st_dot_table_avx2(void)
{
    return NULL;
}

const struct st_dot_table *st_dot_table_avx512(void)
{
    return NULL;
}

#endif
