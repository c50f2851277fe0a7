/* Large prompt products, opened weights of types of 32 and 64 elements (one scale for 32 columns, for 16, and with minima), Q8
 * activations; body and limits in gemm_wide.h. */
#include "gemm_wide.h"

GEMM_WIDE_KERNEL(st_gemm_32, T_Q8_0)
GEMM_WIDE_KERNEL(st_gemm_16, T_NVFP4)
GEMM_WIDE_KERNEL(st_gemm_32m, T_Q4_1)
