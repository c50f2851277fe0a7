/* Prompt products, few rows and experts, types of 256 elements with a grid, Q8K activations; body and limits in gemm.h. */
#include "gemm.h"

GEMM(st_gemm_few_iq1_s, T_IQ1_S, GEMM_FEW)
GEMM(st_gemm_pair_iq1_s, T_IQ1_S, GEMM_PAIR)
GEMM(st_gemm_few_iq1_m, T_IQ1_M, GEMM_FEW)
GEMM(st_gemm_pair_iq1_m, T_IQ1_M, GEMM_PAIR)
GEMM(st_gemm_few_iq2_xxs, T_IQ2_XXS, GEMM_FEW)
GEMM(st_gemm_pair_iq2_xxs, T_IQ2_XXS, GEMM_PAIR)
GEMM(st_gemm_few_iq2_xs, T_IQ2_XS, GEMM_FEW)
GEMM(st_gemm_pair_iq2_xs, T_IQ2_XS, GEMM_PAIR)
GEMM(st_gemm_few_iq2_s, T_IQ2_S, GEMM_FEW)
GEMM(st_gemm_pair_iq2_s, T_IQ2_S, GEMM_PAIR)
GEMM(st_gemm_few_iq3_xxs, T_IQ3_XXS, GEMM_FEW)
GEMM(st_gemm_pair_iq3_xxs, T_IQ3_XXS, GEMM_PAIR)
GEMM(st_gemm_few_iq3_s, T_IQ3_S, GEMM_FEW)
GEMM(st_gemm_pair_iq3_s, T_IQ3_S, GEMM_PAIR)
