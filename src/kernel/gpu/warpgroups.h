/* What four waves do together on GPUs whose image folds weights (ST_FOLDED, dialect.h): products of strips of 64 rows from local
 * memory, copies by the copy unit, and barriers that count arrivals and bytes. Part of the dialect.
 *
 * Strips: 64 x 128 integers += A (64 x 256 signed bytes) * B (256 x 128). A and B lie in local memory as vectors of 16
 * columns, row after row; the vectors of the next 16 columns follow `next` bytes later. Work-item i of the 128 has the sums of
 * rows i / 32 * 16 + i % 32 / 4 and 8 more: sum 4 j + 2 r + c is row 8 r, column 8 j + i % 4 * 2 + c. */
#ifndef ST_WARPGROUPS_H
#define ST_WARPGROUPS_H

#include "dialect.h"

#if ST_FOLDED

#define STRIP_SUMS 64

INLINE uint st_groups(void)
{
    return __nvvm_read_ptx_sreg_nctaid_x();
}
INLINE void st_wave_barrier(void)
{
    __asm__ volatile("bar.warp.sync 0xffffffff;" ::: "memory");
}

/* A barrier in local memory, 8 bytes: a phase ends after `count` arrivals and the bytes that were announced. */
INLINE void st_phase_init(local ulong *b, uint count)
{
    __asm__ volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"l"(b), "r"(count) : "memory");
}
/* After all of them, before the group's barrier. */
INLINE void st_phases_made(void)
{
    __asm__ volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
INLINE void st_phase_arrive(local ulong *b)
{
    __asm__ volatile("{\n\t.reg .b64 t;\n\tmbarrier.arrive.shared::cta.b64 t, [%0];\n\t}" ::"l"(b) : "memory");
}
/* Arrives and announces bytes. */
INLINE void st_phase_expect(local ulong *b, uint bytes)
{
    __asm__ volatile("{\n\t.reg .b64 t;\n\tmbarrier.arrive.expect_tx.shared::cta.b64 t, [%0], %1;\n\t}" ::"l"(b), "r"(bytes)
                     : "memory");
}
/* Waits for the end of a phase with this parity: phases 0, 2, .. have 0. Parity 1 of a new barrier has ended. */
INLINE void st_phase_wait(local ulong *b, uint parity)
{
    uint done;
    do
        __asm__ volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
                         : "=r"(done)
                         : "l"(b), "r"(parity)
                         : "memory");
    while (!done);
}
/* A copy by the copy unit, asked for by one work-item; bytes and both addresses are multiples of 16. */
INLINE void st_bulk_copy(local uchar *to, global const uchar *from, uint bytes, local ulong *b)
{
    __asm__ volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"l"(to),
                     "l"(from), "r"(bytes), "l"(b)
                     : "memory");
}

/* Between two times 128 work-items: those that wait, and those that only say that they were there. number: 1 to 15. */
INLINE void st_turn_wait(uint number)
{
    __asm__ volatile("bar.sync %0, 256;" ::"r"(number) : "memory");
}
INLINE void st_turn_pass(uint number)
{
    __asm__ volatile("bar.arrive %0, 256;" ::"r"(number) : "memory");
}

/* Registers move from 128 work-items that need few of them to those that need many. Each is the first thing in its branch. */
#define st_registers_few() __asm__ volatile("setmaxnreg.dec.sync.aligned.u32 24;" ::: "memory")
#define st_registers_many() __asm__ volatile("setmaxnreg.inc.sync.aligned.u32 160;" ::: "memory")

#define STRIP_4(a, i) "+r"(a[i]), "+r"(a[i + 1]), "+r"(a[i + 2]), "+r"(a[i + 3])
#define STRIP_16(a, i) STRIP_4(a, i), STRIP_4(a, i + 4), STRIP_4(a, i + 8), STRIP_4(a, i + 12)
#define STRIP_64(a) STRIP_16(a, 0), STRIP_16(a, 16), STRIP_16(a, 32), STRIP_16(a, 48)
#define STRIP_STEP(more)                                                                                                  \
    "setp.ne.u32 p, " more ", 0;\n\t"                                                                                     \
    "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {"                                                                 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                              \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                                    \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                                    \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, a, b, p;\n\t"
#define STRIP_NEXT "add.s64 a, a, %66;\n\tadd.s64 b, b, %67;\n\t"
#define STRIP_MORE STRIP_NEXT STRIP_STEP("1")
#define STRIP_BEGIN(sums, first, a, b, next_a, next_b)                                                                    \
    __asm__ volatile("{\n\t.reg .b64 a, b;\n\t.reg .pred p;\n\t"                                                          \
                     "wgmma.fence.sync.aligned;\n\tmov.b64 a, %64;\n\tmov.b64 b, %65;\n\t" STRIP_STEP(first)              \
                     STRIP_MORE STRIP_MORE STRIP_MORE STRIP_MORE STRIP_MORE STRIP_MORE STRIP_MORE                         \
                     "wgmma.commit_group.sync.aligned;\n\t}"                                                              \
                     : STRIP_64(sums)                                                                                     \
                     : "l"(a), "l"(b), "n"((next_a) / 8), "n"((next_b) / 8)                                               \
                     : "memory")

/* Where 16 columns' vectors begin, and where those of the next 16 columns do. */
INLINE ulong st_strip_at(local const uchar *p, uint next)
{
    return (ulong)((uint)(ulong)p >> 4 & 0x3fff) | (ulong)(next >> 4) << 16 | (ulong)(128 >> 4) << 32;
}
/* Begins sums = A * B, or sums += A * B; next_a and next_b known when compiled. */
#define st_strip_first(sums, at_a, at_b, next_a, next_b) STRIP_BEGIN(sums, "0", at_a, at_b, next_a, next_b)
#define st_strip_more(sums, at_a, at_b, next_a, next_b) STRIP_BEGIN(sums, "1", at_a, at_b, next_a, next_b)
/* Begins sums = A * B of 32 columns only. */
#define st_strip_step(sums, at_a, at_b)                                                                                   \
    __asm__ volatile("{\n\t.reg .b64 a, b;\n\t.reg .pred p;\n\t"                                                          \
                     "wgmma.fence.sync.aligned;\n\tmov.b64 a, %64;\n\tmov.b64 b, %65;\n\t" STRIP_STEP("0")                \
                     "wgmma.commit_group.sync.aligned;\n\t}"                                                              \
                     : STRIP_64(sums)                                                                                     \
                     : "l"(at_a), "l"(at_b)                                                                               \
                     : "memory")
/* The same as st_strip_wait for sums that were begun before the newest. */
#define st_strip_wait_older(sums) __asm__ volatile("wgmma.wait_group.sync.aligned 1;" : STRIP_64(sums)::"memory")
/* Before sums are read or A and B overwritten. */
#define st_strip_wait(sums) __asm__ volatile("wgmma.wait_group.sync.aligned 0;" : STRIP_64(sums)::"memory")

/* 16 x 8 sums of 16 columns: start + A * B. a: words i % 4 of rows i / 4 and 8 more; b: word i % 4 of column i / 4. */
INLINE void st_strip_small(int *d, uint a0, uint a1, uint b, int start)
{
    __asm__("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
            : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
            : "r"(a0), "r"(a1), "r"(b), "r"(start));
}

/* Results of a strip, times a factor: to rows row0 to rows_end, columns column0 to columns_end of y, which has ldy floats from row to
 * row. */
INLINE void st_strip_store(global float *y, uint ldy, const float *sums, uint row0, uint rows_end, uint column0, uint columns_end,
                           float factor)
{
    const uint lane = st_item() % 32, first = row0 + st_item() % 128 / 32 * 16 + lane / 4;
    const bool pairs = column0 + 128 <= columns_end && ldy % 2 == 0 && ((ulong)y & 7) == 0;
    UNROLL
    for (uint i = 0; i < STRIP_SUMS; i += 2) {
        const uint row = first + i % 4 / 2 * 8, column = column0 + i / 4 * 8 + lane % 4 * 2;
        global float *to = y + (ulong)row * ldy + column;
        const uint2 two = {st_bits_of(sums[i] * factor), st_bits_of(sums[i + 1] * factor)};
        if (row >= rows_end)
            continue;
        if (pairs) {
            *(global uint2 *)to = two;
            continue;
        }
        if (column < columns_end)
            to[0] = st_float_of(two.x);
        if (column + 1 < columns_end)
            to[1] = st_float_of(two.y);
    }
}

#endif
#endif
