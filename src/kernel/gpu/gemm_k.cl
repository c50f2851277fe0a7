/* Large prompt products, opened weights of types of 256 elements (scales for 32 columns or for 16, without and with minima), Q8K
 * activations; bodies and limits in gemm_wide.h and, where weights are folded, in gemm_fold.h. */
#include "gemm_fold.h"
#include "gemm_wide.h"

#if ST_FOLDED
#define GEMM_256_KERNEL GEMM_FOLD_KERNEL
#else
#define GEMM_256_KERNEL GEMM_WIDE_KERNEL
#endif

GEMM_256_KERNEL(st_gemm_k32, T_IQ4_XS)
GEMM_256_KERNEL(st_gemm_k16, T_Q6_K)
GEMM_256_KERNEL(st_gemm_k32m, T_Q4_K)
GEMM_256_KERNEL(st_gemm_k16m, T_Q2_K)

/* Folds Q8K activation rows (layout.h) for the kernels above. A group of 256 work-items has a block of 256 columns of 64 rows; 16
 * neighbours read one row. with_sums: minima follow. grid: (n / 256, 64 rows each). Limit: bytes. */
KERNEL(256)
st_fold_rows(global uchar *restrict folded, global const uchar *restrict x, uint n, uint total, uint stride, uint with_sums)
{
    const uint item = st_item(), block = st_group(), first = st_group_y() * 64;
    global uchar *to = folded + ((ulong)st_group_y() * (n / 256) + block) * ST_FOLD_PART(with_sums);
    UNROLL
    for (uint i = 0; i < 4; i++) {
        const uint r = item / 16 + 16 * i, row = first + r < total ? first + r : total - 1;
        *(global uint4 *)(to + item % 16 * 1024 + r * 16) =
            *(global const uint4 *)(x + (ulong)row * stride + ST_Q8K_PLAIN(n) + block * 256 + item % 16 * 16);
    }
    if (item < 64) {
        const uint row = first + item < total ? first + item : total - 1;
        ((global float *)(to + 64 * 256))[item] = ((global const float *)(x + (ulong)row * stride + ST_Q8K_SCALES(n)))[block];
    }
    if (!with_sums)
        return;
    for (uint i = item; i < 512; i += 256) { /* word i % 4 of vector i / 4 */
        const uint vector = i / 4, r = vector / 32 * 16 + vector % 32 / 4 + i % 2 * 8;
        const uint row = first + r < total ? first + r : total - 1;
        ((global uint *)(to + 64 * 260))[i] = ((global const uint *)(x + (ulong)row * stride + ST_Q8K_PAIRS(n) + block * 32))[i % 4 / 2 * 4 + vector % 4];
    }
}
