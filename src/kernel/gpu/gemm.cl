/* Prompt products, types of 32 and 64 elements, Q8 activations; body and limits in gemm.h. */
#include "gemm.h"

GEMM(st_gemm_q8_0, T_Q8_0, GEMM_WIDE)
GEMM(st_gemm_q2_0, T_Q2_0, GEMM_WIDE)
GEMM(st_gemm_iq4_nl, T_IQ4_NL, GEMM_WIDE)
GEMM(st_gemm_q4_0, T_Q4_0, GEMM_WIDE)
GEMM(st_gemm_q4_1, T_Q4_1, GEMM_WIDE)
GEMM(st_gemm_q5_0, T_Q5_0, GEMM_WIDE)
GEMM(st_gemm_q5_1, T_Q5_1, GEMM_WIDE)
GEMM(st_gemm_mxfp4, T_MXFP4, GEMM_WIDE)
GEMM(st_gemm_nvfp4, T_NVFP4, GEMM_WIDE)
