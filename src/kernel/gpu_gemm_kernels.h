/* The lines of the prompt products in the list of gpu_kernels.h, and the same for the host's table (gpu/host_kernels.h). */
#ifndef ST_KERNEL_GPU_GEMM_KERNELS_H
#define ST_KERNEL_GPU_GEMM_KERNELS_H

/* Y(X, type, suffix of the names, suffix of the modules: of few rows and experts, and of opening) */
#define ST_GPU_GEMM_TYPES(Y, X)                                                                                           \
    Y(X, Q8_0, q8_0, "") \
    Y(X, Q2_0, q2_0, "") \
    Y(X, IQ4_NL, iq4_nl, "") \
    Y(X, Q4_0, q4_0, "") \
    Y(X, Q4_1, q4_1, "") \
    Y(X, Q5_0, q5_0, "") \
    Y(X, Q5_1, q5_1, "") \
    Y(X, MXFP4, mxfp4, "") \
    Y(X, NVFP4, nvfp4, "") \
    Y(X, Q2_K, q2_k, "_k") \
    Y(X, Q3_K, q3_k, "_k") \
    Y(X, Q4_K, q4_k, "_k") \
    Y(X, Q5_K, q5_k, "_k") \
    Y(X, Q6_K, q6_k, "_k") \
    Y(X, IQ4_XS, iq4_xs, "_k") \
    Y(X, IQ1_S, iq1_s, "_iq") \
    Y(X, IQ1_M, iq1_m, "_iq") \
    Y(X, IQ2_XXS, iq2_xxs, "_iq") \
    Y(X, IQ2_XS, iq2_xs, "_iq") \
    Y(X, IQ2_S, iq2_s, "_iq") \
    Y(X, IQ3_XXS, iq3_xxs, "_iq") \
    Y(X, IQ3_S, iq3_s, "_iq")

/* Y(X, kind of opened weights, suffix of the name, module, work-items of a group); kinds in gpu_gemm.c */
#define ST_GPU_GEMM_KINDS(Y, X)                                                                                           \
    Y(X, 32, 32, "gemm", 256) Y(X, 16, 16, "gemm", 256) Y(X, 32M, 32m, "gemm", 256) Y(X, K32, k32, "gemm_k", 512)         \
    Y(X, K16, k16, "gemm_k", 512) Y(X, K32M, k32m, "gemm_k", 512) Y(X, K16M, k16m, "gemm_k", 512)

#define ST_GPU_GEMM_ARGS "pcccccccciiiiiiiii"
#define ST_GPU_GEMM_WIDE_ARGS "pcccciiiiiiii"
#define ST_GPU_GEMM_LINES(X, type, name, module)                                                                          \
    X(OPEN_##type, "st_open_" #name, "open" module, "pciii", 256, 1, 1, true)                                             \
    X(GEMM_FEW_##type, "st_gemm_few_" #name, "gemm" module "_experts", ST_GPU_GEMM_ARGS, 256, 1, 1, true)                 \
    X(GEMM_PAIR_##type, "st_gemm_pair_" #name, "gemm" module "_experts", ST_GPU_GEMM_ARGS, 256, 1, 1, true)
#define ST_GPU_GEMM_WIDE_LINE(X, kind, name, module, group)                                                               \
    X(GEMM_##kind, "st_gemm_" #name, module, ST_GPU_GEMM_WIDE_ARGS, group, 1, 1, true)
#define ST_GPU_GEMM_KERNELS(X)                                                                                            \
    ST_GPU_GEMM_TYPES(ST_GPU_GEMM_LINES, X)                                                                               \
    ST_GPU_GEMM_KINDS(ST_GPU_GEMM_WIDE_LINE, X)                                                                           \
    X(GEMM_F32, "st_gemm_f32", "gemm_floats", "pccciiiiiii", 256, 1, 1, true)                                             \
    X(GEMM_F16, "st_gemm_f16", "gemm_floats", "pccciiiiiii", 256, 1, 1, true)                                             \
    X(GEMM_BF16, "st_gemm_bf16", "gemm_floats", "pccciiiiiii", 256, 1, 1, true)                                           \
    X(STRIP_ROWS, "st_strip_rows", "gemm", "pciiii", 256, 1, 1, true)                                                      \
    X(FOLD_ROWS, "st_fold_rows", "gemm_k", "pciiii", 256, 1, 1, true)                                                      \
    X(GEMM_TILES, "st_gemm_tiles", "gemm_tiles", "pciii", 256, 1, 1, true)                                                   \
    X(TILE_PEAK, "st_tile_peak", "peak", "pi", 256, 1, 1, true)

/* X(arguments, name) */
#define ST_HOST_GEMM_LINES(X, type, name, module)                                                                         \
    X(pciii, st_open_##name) X(pcccccccciiiiiiiii, st_gemm_few_##name) X(pcccccccciiiiiiiii, st_gemm_pair_##name)
#define ST_HOST_GEMM_WIDE_LINE(X, kind, name, module, group) X(pcccciiiiiiii, st_gemm_##name)
#define ST_HOST_GEMM_KERNELS(X)                                                                                           \
    ST_GPU_GEMM_TYPES(ST_HOST_GEMM_LINES, X)                                                                              \
    ST_GPU_GEMM_KINDS(ST_HOST_GEMM_WIDE_LINE, X)                                                                          \
    X(pccciiiiiii, st_gemm_f32)                                                                                           \
    X(pccciiiiiii, st_gemm_f16)                                                                                           \
    X(pccciiiiiii, st_gemm_bf16)                                                                                          \
    X(pciiii, st_strip_rows)                                                                                              \
    X(pciiii, st_fold_rows)                                                                                               \
    X(pciii, st_gemm_tiles)                                                                                              \
    X(pi, st_tile_peak)

#endif
