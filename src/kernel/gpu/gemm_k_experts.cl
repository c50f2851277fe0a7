/* Prompt products, few rows and experts, types of 256 elements without a grid, Q8K activations; body and limits in gemm.h. */
#include "gemm.h"

GEMM(st_gemm_few_q2_k, T_Q2_K, GEMM_FEW)
GEMM(st_gemm_pair_q2_k, T_Q2_K, GEMM_PAIR)
GEMM(st_gemm_few_q3_k, T_Q3_K, GEMM_FEW)
GEMM(st_gemm_pair_q3_k, T_Q3_K, GEMM_PAIR)
GEMM(st_gemm_few_q4_k, T_Q4_K, GEMM_FEW)
GEMM(st_gemm_pair_q4_k, T_Q4_K, GEMM_PAIR)
GEMM(st_gemm_few_q5_k, T_Q5_K, GEMM_FEW)
GEMM(st_gemm_pair_q5_k, T_Q5_K, GEMM_PAIR)
GEMM(st_gemm_few_q6_k, T_Q6_K, GEMM_FEW)
GEMM(st_gemm_pair_q6_k, T_Q6_K, GEMM_PAIR)
GEMM(st_gemm_few_iq4_xs, T_IQ4_XS, GEMM_FEW)
GEMM(st_gemm_pair_iq4_xs, T_IQ4_XS, GEMM_PAIR)
