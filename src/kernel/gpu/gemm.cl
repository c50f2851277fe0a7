/* Large prompt products, opened weights of types of 32 and 64 elements (one scale for 32 columns, for 16, and with minima), Q8
 * activations; bodies and limits in gemm_wide.h and, where four waves multiply strips, in gemm_strips.h. */
#include "gemm_strips.h"
#include "gemm_wide.h"

#if ST_FOLDED
#define GEMM_32_KERNEL GEMM_STRIPS_KERNEL
#else
#define GEMM_32_KERNEL GEMM_WIDE_KERNEL
#endif

GEMM_32_KERNEL(st_gemm_32, T_Q8_0)
GEMM_32_KERNEL(st_gemm_32m, T_Q4_1)
GEMM_WIDE_KERNEL(st_gemm_16, T_NVFP4)

/* Q8 activation rows in strips (layout.h) for the kernels above. A group of 256 work-items has a chunk of 128 columns of 128 rows;
 * 8 neighbours read one row. with_s: minima follow. grid: (ceil(n / 128), 128 rows each). Limit: bytes. */
KERNEL(256)
st_strip_rows(global uchar *restrict strips, global const uchar *restrict x, uint n, uint total, uint stride, uint with_s)
{
    const uint item = st_item(), chunk = st_group(), first = st_group_y() * 128;
    const uint chunks = (n + 127) / 128, parts = (n - chunk * 128) / 32 < 4 ? (n - chunk * 128) / 32 : 4;
    global uchar *to = strips + ((ulong)st_group_y() * chunks + chunk) * ST_STRIPS_X(with_s);
    UNROLL
    for (uint i = 0; i < 4; i++) {
        const uint r = item / 8 + 32 * i, row = first + r < total ? first + r : total - 1;
        if (item % 8 < 2 * parts)
            *(global uint4 *)(to + r / 64 * 8192 + item % 8 * 1024 + r % 64 * 16) =
                *(global const uint4 *)(x + (ulong)row * stride + ST_Q8_PLAIN(n) + chunk * 128 + item % 8 * 16);
    }
    for (uint i = item; i < parts * 128; i += 256) {
        const uint row = first + i % 128 < total ? first + i % 128 : total - 1;
        global const uchar *from = x + (ulong)row * stride + (chunk * 4 + i / 128) * 4;
        ((global float *)(to + 128 * 128))[i] = *(global const float *)(from + ST_Q8_SCALES(n));
        if (with_s)
            ((global float *)(to + 128 * 128))[512 + i] = *(global const float *)(from + ST_Q8_S(n));
    }
}
