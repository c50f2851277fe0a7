/* Prompt products, types of 256 elements with a grid, Q8K activations; body and limits in gemm.h. */
#include "gemm.h"

GEMM(st_gemm_iq1_s, T_IQ1_S, GEMM_WIDE)
GEMM(st_gemm_iq1_m, T_IQ1_M, GEMM_WIDE)
GEMM(st_gemm_iq2_xxs, T_IQ2_XXS, GEMM_WIDE)
GEMM(st_gemm_iq2_xs, T_IQ2_XS, GEMM_WIDE)
GEMM(st_gemm_iq2_s, T_IQ2_S, GEMM_WIDE)
GEMM(st_gemm_iq3_xxs, T_IQ3_XXS, GEMM_WIDE)
GEMM(st_gemm_iq3_s, T_IQ3_S, GEMM_WIDE)
