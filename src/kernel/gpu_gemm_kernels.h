/* The lines of the prompt products in the list of gpu_kernels.h, and the same for the host's table (gpu/host_kernels.h). */
#ifndef ST_KERNEL_GPU_GEMM_KERNELS_H
#define ST_KERNEL_GPU_GEMM_KERNELS_H

/* Y(X, type, suffix of the names, module of dense products; that of few rows and experts has _experts behind it) */
#define ST_GPU_GEMM_TYPES(Y, X)                                                                                           \
    Y(X, Q8_0, q8_0, "gemm") \
    Y(X, Q2_0, q2_0, "gemm") \
    Y(X, IQ4_NL, iq4_nl, "gemm") \
    Y(X, Q4_0, q4_0, "gemm") \
    Y(X, Q4_1, q4_1, "gemm") \
    Y(X, Q5_0, q5_0, "gemm") \
    Y(X, Q5_1, q5_1, "gemm") \
    Y(X, MXFP4, mxfp4, "gemm") \
    Y(X, NVFP4, nvfp4, "gemm") \
    Y(X, Q2_K, q2_k, "gemm_k") \
    Y(X, Q3_K, q3_k, "gemm_k") \
    Y(X, Q4_K, q4_k, "gemm_k") \
    Y(X, Q5_K, q5_k, "gemm_k") \
    Y(X, Q6_K, q6_k, "gemm_k") \
    Y(X, IQ4_XS, iq4_xs, "gemm_k") \
    Y(X, IQ1_S, iq1_s, "gemm_iq") \
    Y(X, IQ1_M, iq1_m, "gemm_iq") \
    Y(X, IQ2_XXS, iq2_xxs, "gemm_iq") \
    Y(X, IQ2_XS, iq2_xs, "gemm_iq") \
    Y(X, IQ2_S, iq2_s, "gemm_iq") \
    Y(X, IQ3_XXS, iq3_xxs, "gemm_iq") \
    Y(X, IQ3_S, iq3_s, "gemm_iq")

#define ST_GPU_GEMM_ARGS "pcccccccciiiiiiiii"
#define ST_GPU_GEMM_LINES(X, type, name, module)                                                                          \
    X(GEMM_##type, "st_gemm_" #name, module, ST_GPU_GEMM_ARGS, 256, 1, 1, true)                                           \
    X(GEMM_FEW_##type, "st_gemm_few_" #name, module "_experts", ST_GPU_GEMM_ARGS, 256, 1, 1, true)                        \
    X(GEMM_PAIR_##type, "st_gemm_pair_" #name, module "_experts", ST_GPU_GEMM_ARGS, 256, 1, 1, true)
#define ST_GPU_GEMM_KERNELS(X)                                                                                            \
    ST_GPU_GEMM_TYPES(ST_GPU_GEMM_LINES, X)                                                                               \
    X(GEMM_F32, "st_gemm_f32", "gemm_floats", "pccciiiiiii", 256, 1, 1, true)                                             \
    X(GEMM_F16, "st_gemm_f16", "gemm_floats", "pccciiiiiii", 256, 1, 1, true)                                             \
    X(GEMM_BF16, "st_gemm_bf16", "gemm_floats", "pccciiiiiii", 256, 1, 1, true)                                           \
    X(GEMM_TILES, "st_gemm_tiles", "gemm_tiles", "pciii", 256, 1, 1, true)                                                   \
    X(TILE_PEAK, "st_tile_peak", "peak", "pi", 256, 1, 1, true)

/* X(arguments, name) */
#define ST_HOST_GEMM_LINES(X, type, name, module)                                                                         \
    X(pcccccccciiiiiiiii, st_gemm_##name) X(pcccccccciiiiiiiii, st_gemm_few_##name) X(pcccccccciiiiiiiii, st_gemm_pair_##name)
#define ST_HOST_GEMM_KERNELS(X)                                                                                           \
    ST_GPU_GEMM_TYPES(ST_HOST_GEMM_LINES, X)                                                                              \
    X(pccciiiiiii, st_gemm_f32)                                                                                           \
    X(pccciiiiiii, st_gemm_f16)                                                                                           \
    X(pccciiiiiii, st_gemm_bf16)                                                                                          \
    X(pciii, st_gemm_tiles)                                                                                              \
    X(pi, st_tile_peak)

#endif
