/* Large prompt products, opened weights of types of 256 elements (scales for 32 columns or for 16, without and with minima), Q8K
 * activations; body and limits in gemm_wide.h. */
#include "gemm_wide.h"

GEMM_WIDE_KERNEL(st_gemm_k32, T_IQ4_XS)
GEMM_WIDE_KERNEL(st_gemm_k16, T_Q6_K)
GEMM_WIDE_KERNEL(st_gemm_k32m, T_Q4_K)
GEMM_WIDE_KERNEL(st_gemm_k16m, T_Q2_K)
