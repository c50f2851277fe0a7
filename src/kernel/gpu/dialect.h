/* The dialect of the GPU kernels: the only file that knows a compiler's intrinsics.
 *
 * A kernel is OpenCL C and uses what is defined here instead of the language's built-in functions, because those do not
 * link everywhere. Four dialects: NVPTX (sm_75 and newer), AMDGCN (gfx9 to gfx12), OpenCL C built by a driver (no
 * sub-groups, no half arithmetic, no integer dot assumed), and the host (C with work-items as fibers, ST_HOST).
 *
 * Work-items of a group form waves of ST_LANES lanes that can exchange values; ST_LANES is 1 in OpenCL C, and a kernel
 * then goes through local memory. Groups have one dimension. Barriers, shuffles, votes and matrix fragments stand in
 * uniform control flow only.
 *
 * Numbers: nothing here contracts or reassociates. a / b and st_sqrt are correctly rounded (build flags), st_fma is one
 * rounding, st_exp is the same sequence of operations everywhere (docs/numerics.md). */
#ifndef ST_DIALECT_H
#define ST_DIALECT_H

#ifndef ST_HOST /* the host has its own forms in host_dialect.h, included before this file */

/* KERNEL(work-items in a group) name(arguments) */
#define KERNEL(group) kernel __attribute__((reqd_work_group_size(group, 1, 1))) void
/* Before KERNEL: a unit must be able to hold so many groups of `group` at once, which limits their registers. NVIDIA's text
 * has a line for it, which scripts/gpu_image.py writes where it finds this hint. */
#ifdef __NVPTX__
#define GROUPS_OF_A_UNIT(group, groups) __attribute__((work_group_size_hint(group, 1, groups)))
#else
#define GROUPS_OF_A_UNIT(group, groups)
#endif
/* Local memory of a kernel, at its outermost scope; it may be read as vectors of 16 bytes. */
#define LOCAL_ARRAY(type, name, count) local type name[count] __attribute__((aligned(16)))
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("unroll")
#define UNROLL_TERMS _Pragma("unroll 8")
#define KEEP_LOOP _Pragma("unroll 1")
/* A table of the program that lanes read at different places, and a pointer into one. NVIDIA's constant memory serves one
 * address at a time, so it is global memory there. */
#ifdef __NVPTX__
#define ST_TABLE static global const
#define ST_TABLE_AT global const
#else
#define ST_TABLE static constant const
#define ST_TABLE_AT constant const
#endif

#endif

/* 1: large prompt products of types of 256 elements multiply folded weights (gemm_fold.h). */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define ST_FOLDED 1
#else
#define ST_FOLDED 0
#endif

/* ---- where am I ---- */

#if defined(__NVPTX__)

#define ST_LANES 32
INLINE uint st_item(void)
{
    return __nvvm_read_ptx_sreg_tid_x();
}
INLINE uint st_group(void)
{
    return __nvvm_read_ptx_sreg_ctaid_x();
}
INLINE uint st_group_y(void)
{
    return __nvvm_read_ptx_sreg_ctaid_y();
}
INLINE void st_barrier(void)
{
    __nvvm_bar_sync(0);
}

#elif defined(__AMDGCN__)

#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define ST_LANES __AMDGCN_WAVEFRONT_SIZE__
INLINE uint st_item(void)
{
    return __builtin_amdgcn_workitem_id_x();
}
INLINE uint st_group(void)
{
    return __builtin_amdgcn_workgroup_id_x();
}
INLINE uint st_group_y(void)
{
    return __builtin_amdgcn_workgroup_id_y();
}
INLINE void st_barrier(void)
{
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

#elif !defined(ST_HOST)

#define ST_LANES 1
INLINE uint st_item(void)
{
    return get_local_id(0);
}
INLINE uint st_group(void)
{
    return get_group_id(0);
}
INLINE uint st_group_y(void)
{
    return get_group_id(1);
}
INLINE void st_barrier(void)
{
    barrier(CLK_LOCAL_MEM_FENCE);
}

#endif

/* ---- kernels that start while the one before them runs (NVIDIA, sm_90 and newer). Behind st_await_earlier all kernels before this
 * one are complete, and what they wrote is there; ahead of it a kernel reads only what no kernel writes, and no group ends. Called
 * again it does nothing. A kernel that does not call it does so at its beginning (scripts/gpu_image.py). st_let_next_start: from now on
 * the next one may start, as soon as units have room for it. ---- */

#if defined(__NVPTX__) && __CUDA_ARCH__ >= 900
INLINE void st_await_earlier(void)
{
    __asm__ volatile("griddepcontrol.wait;" ::: "memory");
}
INLINE void st_let_next_start(void)
{
    __asm__ volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
#else
INLINE void st_await_earlier(void)
{
}
INLINE void st_let_next_start(void)
{
}
#endif

INLINE uint st_lane(void)
{
    return st_item() % ST_LANES;
}

/* ---- bits ---- */

#ifndef ST_HOST
#define st_float_of(u) as_float((uint)(u))
#define st_bits_of(f) as_uint((float)(f))
#endif

/* The upper 16 bits of low under the lower 16 bits of high: the word that starts two bytes into low. */
INLINE uint st_word16(uint low, uint high)
{
    return (low >> 16) | (high << 16);
}

/* The word that starts two bytes into low if `upper`, else low. */
INLINE uint st_word_from(uint low, uint high, bool upper)
{
#ifdef __NVPTX__
    return __nvvm_prmt(low, high, upper ? 0x5432u : 0x3210u);
#else
    return upper ? st_word16(low, high) : low;
#endif
}

/* ---- shuffle, vote: every lane of the wave takes part ---- */

#if defined(__NVPTX__)

INLINE uint st_shuffle(uint value, uint lane)
{
    return (uint)__nvvm_shfl_sync_idx_i32(0xffffffffu, (int)value, (int)lane, 31);
}
INLINE uint st_shuffle_xor(uint value, uint mask)
{
    return (uint)__nvvm_shfl_sync_bfly_i32(0xffffffffu, (int)value, (int)mask, 31);
}
INLINE bool st_any(bool predicate)
{
    return __nvvm_vote_any_sync(0xffffffffu, predicate);
}
INLINE ulong st_ballot(bool predicate)
{
    return (uint)__nvvm_vote_ballot_sync(0xffffffffu, predicate);
}

#elif defined(__AMDGCN__)

INLINE uint st_shuffle(uint value, uint lane)
{
    return (uint)__builtin_amdgcn_ds_bpermute((int)(lane * 4), (int)value);
}
INLINE uint st_shuffle_xor(uint value, uint mask)
{
    return (uint)__builtin_amdgcn_ds_bpermute((int)((st_lane() ^ mask) * 4), (int)value);
}
INLINE ulong st_ballot(bool predicate)
{
#if ST_LANES == 64
    return __builtin_amdgcn_ballot_w64(predicate);
#else
    return __builtin_amdgcn_ballot_w32(predicate);
#endif
}
INLINE bool st_any(bool predicate)
{
    return st_ballot(predicate) != 0;
}

#elif !defined(ST_HOST)

INLINE uint st_shuffle(uint value, uint lane)
{
    (void)lane;
    return value;
}
INLINE uint st_shuffle_xor(uint value, uint mask)
{
    (void)mask;
    return value;
}
INLINE ulong st_ballot(bool predicate)
{
    return predicate ? 1 : 0;
}
INLINE bool st_any(bool predicate)
{
    return predicate;
}

#endif

/* ---- integer dot: c + the sum of four signed byte products. The exact sum fits. ---- */

INLINE int st_dot4(uint a, uint b, int c)
{
#if defined(__NVPTX__)
    int d;
    __asm__("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
#elif defined(__AMDGCN__) && (defined(__GFX11__) || defined(__GFX12__))
    return __builtin_amdgcn_sudot4(true, (int)a, true, (int)b, c, false);
#elif defined(__AMDGCN__) &&                                                                                           \
    (defined(__gfx906__) || defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx940__) ||                       \
     defined(__gfx942__) || defined(__gfx1011__) || defined(__gfx1012__) || defined(__gfx1030__) ||                    \
     defined(__gfx1031__) || defined(__gfx1032__) || defined(__gfx1033__) || defined(__gfx1034__) ||                   \
     defined(__gfx1035__) || defined(__gfx1036__) || defined(__gfx10_3_generic__))
    return __builtin_amdgcn_sdot4((int)a, (int)b, c, false);
#else
    return c + (signed char)a * (signed char)b + (signed char)(a >> 8) * (signed char)(b >> 8) +
           (signed char)(a >> 16) * (signed char)(b >> 16) + (signed char)(a >> 24) * (signed char)(b >> 24);
#endif
}

/* ---- table of sixteen bytes {t0, t1, t2, t3}: the entries for the eight nibbles of q. lower and upper hold those of
 * the lower and of the upper nibbles of the four bytes, or, where that is quicker, the same eight in another order:
 * what they are multiplied with, four bytes for the lower and four for the upper nibbles, is brought into the same
 * order by st_match_nibbles. ---- */

INLINE void st_lookup_nibbles(uint q, uint t0, uint t1, uint t2, uint t3, uint *lower, uint *upper)
{
#if defined(__NVPTX__)
    /* prmt picks four bytes of eight by the nibbles of the selector's lower half: the first and second half of the
     * table are looked up with three bits of four nibbles, and a third prmt takes one of the two by the fourth bit */
    const uint three = q & 0x77777777u, fourth = 0x32103210u | ((q >> 1) & 0x44444444u);
    *lower = __nvvm_prmt(__nvvm_prmt(t0, t1, three), __nvvm_prmt(t2, t3, three), fourth);
    *upper = __nvvm_prmt(__nvvm_prmt(t0, t1, three >> 16), __nvvm_prmt(t2, t3, three >> 16), fourth >> 16);
#elif defined(__AMDGCN__)
    const uint l = q & 0x0f0f0f0fu, u = (q >> 4) & 0x0f0f0f0fu;
    const uint l_high = ((l >> 3) & 0x01010101u) * 0xffu, u_high = ((u >> 3) & 0x01010101u) * 0xffu;
    *lower = (__builtin_amdgcn_perm(t1, t0, l & 0x07070707u) & ~l_high) |
             (__builtin_amdgcn_perm(t3, t2, l & 0x07070707u) & l_high);
    *upper = (__builtin_amdgcn_perm(t1, t0, u & 0x07070707u) & ~u_high) |
             (__builtin_amdgcn_perm(t3, t2, u & 0x07070707u) & u_high);
#else
    *lower = *upper = 0;
    for (uint i = 0; i < 8; i++) {
        const uint k = (q >> (4 * i)) & 15;
        const uint word = k < 8 ? (k < 4 ? t0 : t1) : (k < 12 ? t2 : t3);
        const uint entry = ((word >> (k % 4 * 8)) & 0xff) << (i / 2 * 8);
        *(i % 2 ? upper : lower) |= entry;
    }
#endif
}

INLINE void st_match_nibbles(uint *lower, uint *upper)
{
#if defined(__NVPTX__)
    const uint l = *lower, u = *upper;
    *lower = __nvvm_prmt(l, u, 0x5140u);
    *upper = __nvvm_prmt(l, u, 0x7362u);
#else
    (void)lower;
    (void)upper;
#endif
}

/* The other way round: brings what st_lookup_nibbles gave into the order of the lower and of the upper nibbles. */
INLINE void st_sort_nibbles(uint *lower, uint *upper)
{
#if defined(__NVPTX__)
    const uint l = *lower, u = *upper;
    *lower = __nvvm_prmt(l, u, 0x6420u);
    *upper = __nvvm_prmt(l, u, 0x7531u);
#else
    (void)lower;
    (void)upper;
#endif
}

/* ---- float functions; e^x and what is made of it come from exact_math.h ---- */

INLINE float st_fma(float a, float b, float c)
{
#ifdef ST_HOST
    return fmaf(a, b, c);
#elif defined(__NVPTX__) || defined(__AMDGCN__)
    return __builtin_fmaf(a, b, c);
#else
    return fma(a, b, c);
#endif
}

/* Correctly rounded. */
INLINE float st_sqrt(float a)
{
#ifdef ST_HOST
    return sqrtf(a);
#elif defined(__NVPTX__)
    return __nvvm_sqrt_rn_f(a);
#elif defined(__AMDGCN__)
    return __builtin_sqrtf(a);
#else
    return sqrt(a);
#endif
}

/* Two roundings, the same on every device. */
INLINE float st_rsqrt(float a)
{
    return 1.0f / st_sqrt(a);
}

INLINE float st_abs(float a)
{
    return st_float_of(st_bits_of(a) & 0x7fffffffu);
}

/* Nearest integer, halves to even, for |a| < 2^22. */
INLINE int st_round_even(float a)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: the sum has units of one */
    return (int)(st_bits_of(a + magic) - st_bits_of(magic));
}

/* Exact. */
INLINE float st_float_of_half(ushort h)
{
#if defined(__NVPTX__)
    float f;
    __asm__("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
#elif defined(__AMDGCN__)
    return (float)as_half(h);
#else
    const uint sign = (uint)(h & 0x8000u) << 16, body = h & 0x7fffu;
    if (body >= 0x7c00u)
        return st_float_of(sign | 0x7f800000u | ((body & 0x3ffu) << 13) | (body > 0x7c00u ? 0x400000u : 0u));
    if (body >= 0x0400u)
        return st_float_of(sign | ((body << 13) + 0x38000000u));
    const float f = (float)body * 5.9604644775390625e-8f; /* 2^-24 */
    return st_float_of(sign | st_bits_of(f));
#endif
}

/* Nearest even, overflow to infinity. */
INLINE ushort st_half_of_float(float f)
{
#if defined(__NVPTX__)
    ushort h;
    __asm__("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
#elif defined(__AMDGCN__)
    return as_ushort((half)f);
#else
    const uint bits = st_bits_of(f), sign = (bits >> 16) & 0x8000u, body = bits & 0x7fffffffu;
    if (body > 0x7f800000u)
        return (ushort)(sign | 0x7e00u | ((body >> 13) & 0x3ffu));
    if (body >= 0x477ff000u)
        return (ushort)(sign | 0x7c00u);
    if (body >= 0x38800000u)
        return (ushort)(sign | ((body - 0x38000000u + 0xfffu + ((body >> 13) & 1u)) >> 13));
    /* below 2^-14: adding 0.5 puts units of 2^-24 at the bottom of the mantissa, rounded by the addition */
    return (ushort)(sign | (st_bits_of(st_float_of(body) + 0.5f) - 0x3f000000u));
#endif
}

#define ST_FMAF(a, b, c) st_fma(a, b, c)
#include "../exact_math.h"

/* ---- asynchronous copy of 16 bytes from global to local memory. Both addresses are multiples of 16. Copies are put
 * into batches by st_copies_commit; st_copies_wait(n) waits until at most the n newest batches are under way (n is 0 or
 * 1). Between issue and wait neither end is touched; a barrier makes the bytes visible to the other work-items.
 * ST_COPIES_AHEAD is 0 where copies are plain loads and stores; UNROLL_COPIES stands before a loop of issues, so that
 * four loads are in flight there. ---- */

#if defined(__NVPTX__) && __CUDA_ARCH__ >= 800
#define ST_COPIES_AHEAD 1
#define UNROLL_COPIES
INLINE void st_copy_issue(local uint4 *to, global const uint4 *from)
{
    __asm__ volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"l"(to), "l"(from) : "memory");
}
/* The same for bytes whose neighbours are copied soon: they stay in the first-level cache. */
INLINE void st_copy_issue_near(local uint4 *to, global const uint4 *from)
{
    __asm__ volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"l"(to), "l"(from) : "memory");
}
INLINE void st_copies_commit(void)
{
    __asm__ volatile("cp.async.commit_group;" ::: "memory");
}
INLINE void st_copies_wait(uint newest)
{
    if (newest == 0)
        __asm__ volatile("cp.async.wait_group 0;" ::: "memory");
    else
        __asm__ volatile("cp.async.wait_group 1;" ::: "memory");
}
#else
#ifdef ST_HOST
#define ST_COPIES_AHEAD (ST_LANES == 32) /* the host goes both ways */
#define UNROLL_COPIES
#else
#define ST_COPIES_AHEAD 0
#define UNROLL_COPIES _Pragma("unroll 4")
#endif
INLINE void st_copy_issue(local uint4 *to, global const uint4 *from)
{
    *to = *from;
}
INLINE void st_copy_issue_near(local uint4 *to, global const uint4 *from)
{
    *to = *from;
}
INLINE void st_copies_commit(void)
{
}
INLINE void st_copies_wait(uint newest)
{
    (void)newest;
}
#endif

/* ---- a store that the host and other devices see, with everything this work-item wrote before ---- */

INLINE void st_store_system(global uint *to, uint value)
{
#if defined(__NVPTX__)
    __asm__ volatile("membar.sys;\n\tst.volatile.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
#elif defined(__AMDGCN__)
    __scoped_atomic_store_n(to, value, __ATOMIC_RELEASE, __MEMORY_SCOPE_SYSTEM);
#elif defined(ST_HOST)
    __atomic_store_n(to, value, __ATOMIC_RELEASE);
#else
    mem_fence(CLK_GLOBAL_MEM_FENCE);
    *(volatile global uint *)to = value;
#endif
}

/* Adds to a word of local memory that other work-items add to as well. */
INLINE void st_add_local(local uint *to, uint value)
{
#if defined(__NVPTX__) || defined(__AMDGCN__)
    (void)__scoped_atomic_fetch_add(to, value, __ATOMIC_RELAXED, __MEMORY_SCOPE_WRKGRP);
#elif defined(ST_HOST)
    *to += value; /* work-items of a group take turns on one thread, and not here */
#else
    atomic_add((volatile local uint *)to, value);
#endif
}

/* ---- matrix fragments: D (16 x 16 int) += A (16 x 32 signed bytes, row by row) * B (32 x 16, column by column) ----
 *
 * One wave holds a tile; with ST_LANES == 1 sixteen-by-sixteen outputs belong to one work-item. A row of A and a column
 * of B are 32 consecutive bytes in local memory, stride bytes apart (base and stride multiples of 16), from base + at (at
 * known when compiled) on, and stay unchanged from load to multiply. Value i of the accumulator belongs to row st_tile_row(i) and column st_tile_column(i).
 *
 * st_tile_product: D = start + A * B, start the same number everywhere; which 0 or 1: only the first or the second 16
 * columns of A with those rows of B (known when compiled), 2: all. */

#if defined(__NVPTX__)
#define ST_TILE_VALUES 8
#define ST_TILE_NVIDIA
#elif defined(__AMDGCN__) && (defined(__GFX11__) || defined(__GFX12__)) && ST_LANES == 32
#define ST_TILE_VALUES 8
#define ST_TILE_WMMA
typedef int st_int2 __attribute__((ext_vector_type(2)));
typedef int st_int4 __attribute__((ext_vector_type(4)));
typedef int st_int8 __attribute__((ext_vector_type(8)));
#elif defined(__AMDGCN__) && (defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx942__)) && ST_LANES == 64
#define ST_TILE_VALUES 4
#define ST_TILE_MFMA
typedef int st_int4 __attribute__((ext_vector_type(4)));
typedef float st_float4 __attribute__((ext_vector_type(4)));
typedef short st_short2 __attribute__((ext_vector_type(2)));
typedef short st_short4 __attribute__((ext_vector_type(4)));
#else
#define ST_TILE_VALUES (256 / ST_LANES)
#endif

/* 1 where values 2 i and 2 i + 1 stand side by side in a row, the first in an even column. */
#ifdef ST_TILE_NVIDIA
#define ST_TILE_PAIRS 1
#else
#define ST_TILE_PAIRS 0
#endif

struct st_tile {
    int v[ST_TILE_VALUES];
};

/* Between parts of a calculation whose values do not fit into registers at once: instructions are not moved across it where a
 * compiler would begin loads too early. */
INLINE void st_keep_order(void)
{
#ifdef __AMDGCN__
    __builtin_amdgcn_sched_barrier(0);
#endif
}

/* The same of floats: D (16 x 16 f32) += A (16 x 16 BF16) * B (16 x 16), A and B loaded like those above, a row of A and a
 * column of B are 16 numbers. Products are exact; sums are rounded or cut to f32, in an order that is the unit's own.
 * ST_TILE_FLOATS: 1 where there is such a unit. */
#if (defined(ST_TILE_NVIDIA) && __CUDA_ARCH__ >= 800) || defined(ST_TILE_WMMA) || defined(ST_TILE_MFMA) || \
    (defined(ST_HOST) && ST_LANES == 32)
#define ST_TILE_FLOATS 1
struct st_tile_floats {
    float v[ST_TILE_VALUES];
};
#else
#define ST_TILE_FLOATS 0
#endif

#if defined(ST_TILE_NVIDIA)

/* Lane 4 g + t has words t and t + 4 of rows g and g + 8 (A) and of columns g and g + 8 (B). */
struct st_tile_a {
    uint r[4]; /* row g word t, row g + 8 word t, row g word t + 4, row g + 8 word t + 4 */
};
struct st_tile_b {
    uint r[4]; /* column g words t and t + 4, column g + 8 words t and t + 4 */
};
/* Four blocks of 8 rows x 16 bytes; each lane names a row of one. Volatile, because a barrier between stores and this load must
 * stay where it is. */
INLINE void st_tile_blocks(uint *r, local const char *row, uint at)
{
    __asm__ volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4 + %5];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "l"(row), "i"(at)
                     : "memory");
}
INLINE struct st_tile_a st_tile_load_a(local const char *base, uint stride, uint at)
{
    const uint lane = st_lane();
    struct st_tile_a a;
    st_tile_blocks(a.r, base + lane % 16 * stride + lane / 16 * 16, at);
    return a;
}
INLINE struct st_tile_b st_tile_load_b(local const char *base, uint stride, uint at)
{
    const uint lane = st_lane();
    struct st_tile_b b;
    st_tile_blocks(b.r, base + (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 16, at);
    return b;
}
INLINE void st_tile_multiply(struct st_tile *d, const struct st_tile_a *a, const struct st_tile_b *b)
{
    for (int h = 0; h < 2; h++) {
        int *v = d->v + 4 * h;
        const uint b0 = b->r[2 * h], b1 = b->r[2 * h + 1];
#if __CUDA_ARCH__ >= 800
        __asm__("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                "{%0, %1, %2, %3};"
                : "+r"(v[0]), "+r"(v[1]), "+r"(v[2]), "+r"(v[3])
                : "r"(a->r[0]), "r"(a->r[1]), "r"(a->r[2]), "r"(a->r[3]), "r"(b0), "r"(b1));
#else
        for (int k = 0; k < 2; k++)
            for (int m = 0; m < 2; m++)
                __asm__("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
                        : "+r"(v[2 * m]), "+r"(v[2 * m + 1])
                        : "r"(a->r[2 * k + m]), "r"(k ? b1 : b0));
#endif
    }
}
INLINE void st_tile_product(struct st_tile *d, const struct st_tile_a *a, const struct st_tile_b *b, int start, int which)
{
    for (int h = 0; h < 2; h++) {
        int *v = d->v + 4 * h;
#if __CUDA_ARCH__ >= 800
        if (which == 2)
            __asm__("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                    "{%10, %10, %10, %10};"
                    : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                    : "r"(a->r[0]), "r"(a->r[1]), "r"(a->r[2]), "r"(a->r[3]), "r"(b->r[2 * h]), "r"(b->r[2 * h + 1]),
                      "r"(start));
        else
            __asm__("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
                    "{%7, %7, %7, %7};"
                    : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                    : "r"(a->r[2 * (which & 1)]), "r"(a->r[2 * (which & 1) + 1]), "r"(b->r[2 * h + (which & 1)]), "r"(start));
#else
        for (int m = 0; m < 2; m++) {
            v[2 * m] = v[2 * m + 1] = start;
            for (int k = 0; k < 2; k++)
                if (which == 2 || which == k)
                    __asm__("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
                            : "+r"(v[2 * m]), "+r"(v[2 * m + 1])
                            : "r"(a->r[2 * k + m]), "r"(b->r[2 * h + k]));
        }
#endif
    }
}
#if ST_TILE_FLOATS
INLINE void st_tile_multiply_bf16(struct st_tile_floats *d, const struct st_tile_a *a, const struct st_tile_b *b)
{
    UNROLL
    for (int h = 0; h < 2; h++) {
        float *v = d->v + 4 * h;
        __asm__("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                "{%0, %1, %2, %3};"
                : "+f"(v[0]), "+f"(v[1]), "+f"(v[2]), "+f"(v[3])
                : "r"(a->r[0]), "r"(a->r[1]), "r"(a->r[2]), "r"(a->r[3]), "r"(b->r[2 * h]), "r"(b->r[2 * h + 1]));
    }
}
#endif
INLINE uint st_tile_row(uint i)
{
    return st_lane() / 4 + (i & 2) * 4;
}
INLINE uint st_tile_column(uint i)
{
    return (i & 4) * 2 + st_lane() % 4 * 2 + (i & 1);
}
/* v[i] = row[st_tile_column(i)]; row begins at a multiple of 8 bytes. */
INLINE void st_tile_by_column(uint *v, local const uint *row)
{
    UNROLL
    for (uint h = 0; h < 2; h++) {
        const uint2 two = *(local const uint2 *)(row + st_tile_column(4 * h));
        v[4 * h] = v[4 * h + 2] = two.x;
        v[4 * h + 1] = v[4 * h + 3] = two.y;
    }
}

#elif defined(ST_TILE_WMMA)

/* gfx11: lanes l and l + 16 both have all of row (column) l. gfx12: lane l has bytes 0-7 and lane l + 16 bytes 8-15 of
 * each step of 16. Accumulator: gfx11 lane half h, value i is row 2 i + h; gfx12 row 8 h + i; the column is the lane's.
 */
#ifdef __GFX12__
#define ST_TILE_WORDS 4
#else
#define ST_TILE_WORDS 8
#endif
typedef short st_short __attribute__((ext_vector_type(2 * ST_TILE_WORDS)));
typedef float st_float8 __attribute__((ext_vector_type(8)));
struct st_tile_a {
    uint w[ST_TILE_WORDS];
};
struct st_tile_b {
    uint w[ST_TILE_WORDS];
};
/* The lane's words of a row of A or a column of B. */
INLINE void st_tile_words(uint *w, local const char *base, uint stride)
{
    local const uint *row = (local const uint *)(base + st_lane() % 16 * stride);
#ifdef __GFX12__
    const uint upper = st_lane() / 16 * 2;
    UNROLL
    for (uint i = 0; i < 4; i++)
        w[i] = row[i / 2 * 4 + upper + i % 2];
#else
    UNROLL
    for (uint i = 0; i < 8; i++)
        w[i] = row[i];
#endif
}
INLINE struct st_tile_a st_tile_load_a(local const char *base, uint stride, uint at)
{
    struct st_tile_a a;
    st_tile_words(a.w, base + at, stride);
    return a;
}
INLINE struct st_tile_b st_tile_load_b(local const char *base, uint stride, uint at)
{
    struct st_tile_b b;
    st_tile_words(b.w, base + at, stride);
    return b;
}
INLINE st_int8 st_tile_step(st_int8 c, const struct st_tile_a *a, const struct st_tile_b *b, int k)
{
#ifdef __GFX12__
    __builtin_amdgcn_sched_barrier(0); /* loads that begin too early take more registers than there are */
    const st_int2 x = {(int)a->w[2 * k], (int)a->w[2 * k + 1]};
    const st_int2 y = {(int)b->w[2 * k], (int)b->w[2 * k + 1]};
    return __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(true, x, true, y, c, false);
#else
    const st_int4 x = {(int)a->w[4 * k], (int)a->w[4 * k + 1], (int)a->w[4 * k + 2], (int)a->w[4 * k + 3]};
    const st_int4 y = {(int)b->w[4 * k], (int)b->w[4 * k + 1], (int)b->w[4 * k + 2], (int)b->w[4 * k + 3]};
    return __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(true, x, true, y, c, false);
#endif
}
INLINE void st_tile_multiply(struct st_tile *d, const struct st_tile_a *a, const struct st_tile_b *b)
{
    st_int8 c;
    UNROLL
    for (int i = 0; i < 8; i++)
        c[i] = d->v[i];
    UNROLL
    for (int k = 0; k < 2; k++)
        c = st_tile_step(c, a, b, k);
    UNROLL
    for (int i = 0; i < 8; i++)
        d->v[i] = c[i];
}
INLINE void st_tile_product(struct st_tile *d, const struct st_tile_a *a, const struct st_tile_b *b, int start, int which)
{
    st_int8 c = {start, start, start, start, start, start, start, start};
    UNROLL
    for (int k = 0; k < 2; k++)
        if (which == 2 || which == k)
            c = st_tile_step(c, a, b, k);
    UNROLL
    for (int i = 0; i < 8; i++)
        d->v[i] = c[i];
}
/* Which columns a lane has does not matter to a sum, as long as A and B agree. */
INLINE void st_tile_multiply_bf16(struct st_tile_floats *d, const struct st_tile_a *a, const struct st_tile_b *b)
{
    st_float8 c;
    st_short x, y;
    UNROLL
    for (int i = 0; i < 8; i++)
        c[i] = d->v[i];
    UNROLL
    for (int i = 0; i < 2 * ST_TILE_WORDS; i++) {
        x[i] = (short)(a->w[i / 2] >> i % 2 * 16);
        y[i] = (short)(b->w[i / 2] >> i % 2 * 16);
    }
#ifdef __GFX12__
    c = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(x, y, c);
#else
    c = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(x, y, c);
#endif
    UNROLL
    for (int i = 0; i < 8; i++)
        d->v[i] = c[i];
}
INLINE uint st_tile_row(uint i)
{
#ifdef __GFX12__
    return st_lane() / 16 * 8 + i;
#else
    return 2 * i + st_lane() / 16;
#endif
}
INLINE uint st_tile_column(uint i)
{
    (void)i;
    return st_lane() % 16;
}

#elif defined(ST_TILE_MFMA)

/* gfx942 (k = 32): lane l has bytes 8 (l / 16) .. + 7 of row (column) l % 16. gfx908 and gfx90a (k = 16, twice): bytes
 * 4 (l / 16) .. + 3 of each half. Accumulator: value i of lane l is row 4 (l / 16) + i, column l % 16. */
struct st_tile_a {
    uint w[2];
};
struct st_tile_b {
    uint w[2];
};
INLINE void st_tile_words(uint *w, local const char *base, uint stride)
{
    local const uint *row = (local const uint *)(base + st_lane() % 16 * stride);
    const uint part = st_lane() / 16;
#ifdef __gfx942__
    w[0] = row[2 * part];
    w[1] = row[2 * part + 1];
#else
    w[0] = row[part];
    w[1] = row[part + 4];
#endif
}
INLINE struct st_tile_a st_tile_load_a(local const char *base, uint stride, uint at)
{
    struct st_tile_a a;
    st_tile_words(a.w, base + at, stride);
    return a;
}
INLINE struct st_tile_b st_tile_load_b(local const char *base, uint stride, uint at)
{
    struct st_tile_b b;
    st_tile_words(b.w, base + at, stride);
    return b;
}
INLINE void st_tile_multiply(struct st_tile *d, const struct st_tile_a *a, const struct st_tile_b *b)
{
    st_int4 c = {d->v[0], d->v[1], d->v[2], d->v[3]};
#ifdef __gfx942__
    c = __builtin_amdgcn_mfma_i32_16x16x32_i8((long)(a->w[0] | (ulong)a->w[1] << 32),
                                              (long)(b->w[0] | (ulong)b->w[1] << 32), c, 0, 0, 0);
#else
    c = __builtin_amdgcn_mfma_i32_16x16x16i8((int)a->w[0], (int)b->w[0], c, 0, 0, 0);
    c = __builtin_amdgcn_mfma_i32_16x16x16i8((int)a->w[1], (int)b->w[1], c, 0, 0, 0);
#endif
    UNROLL
    for (int i = 0; i < 4; i++)
        d->v[i] = c[i];
}
INLINE void st_tile_product(struct st_tile *d, const struct st_tile_a *a, const struct st_tile_b *b, int start, int which)
{
    st_int4 c = {start, start, start, start};
#ifdef __gfx942__
    /* the second 16 columns are those of the upper 32 lanes */
    const ulong mine = which == 2 || (st_lane() >= 32) == (which == 1) ? ~(ulong)0 : 0;
    c = __builtin_amdgcn_mfma_i32_16x16x32_i8((long)((a->w[0] | (ulong)a->w[1] << 32) & mine),
                                              (long)(b->w[0] | (ulong)b->w[1] << 32), c, 0, 0, 0);
#else
    if (which != 1)
        c = __builtin_amdgcn_mfma_i32_16x16x16i8((int)a->w[0], (int)b->w[0], c, 0, 0, 0);
    if (which != 0)
        c = __builtin_amdgcn_mfma_i32_16x16x16i8((int)a->w[1], (int)b->w[1], c, 0, 0, 0);
#endif
    UNROLL
    for (int i = 0; i < 4; i++)
        d->v[i] = c[i];
}
/* Which columns a lane has does not matter to a sum, as long as A and B agree. */
INLINE void st_tile_multiply_bf16(struct st_tile_floats *d, const struct st_tile_a *a, const struct st_tile_b *b)
{
    st_float4 c = {d->v[0], d->v[1], d->v[2], d->v[3]};
#ifdef __gfx908__
    UNROLL
    for (int k = 0; k < 2; k++) {
        const st_short2 x = {(short)a->w[k], (short)(a->w[k] >> 16)}, y = {(short)b->w[k], (short)(b->w[k] >> 16)};
        c = __builtin_amdgcn_mfma_f32_16x16x8bf16(x, y, c, 0, 0, 0);
    }
#else
    const st_short4 x = {(short)a->w[0], (short)(a->w[0] >> 16), (short)a->w[1], (short)(a->w[1] >> 16)};
    const st_short4 y = {(short)b->w[0], (short)(b->w[0] >> 16), (short)b->w[1], (short)(b->w[1] >> 16)};
    c = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(x, y, c, 0, 0, 0);
#endif
    UNROLL
    for (int i = 0; i < 4; i++)
        d->v[i] = c[i];
}
INLINE uint st_tile_row(uint i)
{
    return st_lane() / 16 * 4 + i;
}
INLINE uint st_tile_column(uint i)
{
    (void)i;
    return st_lane() % 16;
}

#else

/* Value i of lane l is output l + i * ST_LANES, row by row; operands are read from local memory when they are used. */
struct st_tile_a {
    local const char *base;
    uint stride;
};
struct st_tile_b {
    local const char *base;
    uint stride;
};
INLINE struct st_tile_a st_tile_load_a(local const char *base, uint stride, uint at)
{
    struct st_tile_a a = {base + at, stride};
    return a;
}
INLINE struct st_tile_b st_tile_load_b(local const char *base, uint stride, uint at)
{
    struct st_tile_b b = {base + at, stride};
    return b;
}
INLINE uint st_tile_row(uint i)
{
    return (st_lane() + i * ST_LANES) / 16;
}
INLINE uint st_tile_column(uint i)
{
    return (st_lane() + i * ST_LANES) % 16;
}
INLINE int st_tile_value(uint i, const struct st_tile_a *a, const struct st_tile_b *b, int sum, uint from, uint to)
{
    local const uint *x = (local const uint *)(a->base + st_tile_row(i) * a->stride);
    local const uint *y = (local const uint *)(b->base + st_tile_column(i) * b->stride);
    for (uint k = from; k < to; k++)
        sum = st_dot4(x[k], y[k], sum);
    return sum;
}
#if ST_TILE_FLOATS
INLINE void st_tile_multiply_bf16(struct st_tile_floats *d, const struct st_tile_a *a, const struct st_tile_b *b)
{
    for (uint i = 0; i < ST_TILE_VALUES; i++) {
        local const ushort *x = (local const ushort *)(a->base + st_tile_row(i) * a->stride);
        local const ushort *y = (local const ushort *)(b->base + st_tile_column(i) * b->stride);
        for (uint k = 0; k < 16; k++)
            d->v[i] = st_fma(st_float_of((uint)x[k] << 16), st_float_of((uint)y[k] << 16), d->v[i]);
    }
}
#endif
INLINE void st_tile_multiply(struct st_tile *d, const struct st_tile_a *a, const struct st_tile_b *b)
{
    for (uint i = 0; i < ST_TILE_VALUES; i++)
        d->v[i] = st_tile_value(i, a, b, d->v[i], 0, 8);
}
INLINE void st_tile_product(struct st_tile *d, const struct st_tile_a *a, const struct st_tile_b *b, int start, int which)
{
    for (uint i = 0; i < ST_TILE_VALUES; i++) {
        st_keep_order();
        d->v[i] = st_tile_value(i, a, b, start, which == 1 ? 4 : 0, which == 0 ? 4 : 8);
    }
}

#endif

#ifndef ST_TILE_NVIDIA
INLINE void st_tile_by_column(uint *v, local const uint *row)
{
    UNROLL_TERMS
    for (uint i = 0; i < ST_TILE_VALUES; i++)
        v[i] = row[st_tile_column(i)];
}
#endif

#endif
