/* Prompt products, types of 256 elements without a grid, Q8K activations; body and limits in gemm.h. */
#include "gemm.h"

GEMM(st_gemm_q2_k, T_Q2_K, GEMM_WIDE)
GEMM(st_gemm_q3_k, T_Q3_K, GEMM_WIDE)
GEMM(st_gemm_q4_k, T_Q4_K, GEMM_WIDE)
GEMM(st_gemm_q5_k, T_Q5_K, GEMM_WIDE)
GEMM(st_gemm_q6_k, T_Q6_K, GEMM_WIDE)
GEMM(st_gemm_iq4_xs, T_IQ4_XS, GEMM_WIDE)
