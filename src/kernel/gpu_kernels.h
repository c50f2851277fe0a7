/* Every GPU kernel that exists: one line per kernel, from which come the enum, the table of descriptions, the check
 * that an image is complete, and the kernel table of a device.
 *
 * X(ID, symbol, module, args, group x, y, z, hot): module is the file src/kernel/gpu/<module>.cl, one image per module
 * and architecture; args as in struct st_kernel_desc; hot kernels must not spill. Geometry and meaning of the arguments
 * stand at the kernel in its .cl file. */
#ifndef ST_KERNEL_GPU_KERNELS_H
#define ST_KERNEL_GPU_KERNELS_H

#include "kernel/gpu_gemm_kernels.h"
#include "runtime/runtime.h"

/* Of every kernel with the body of gpu/rows.h. */
#define ST_ROWS_ARGS "ppppccccccccciiiiiiiiiiiiiiiiiii"

#define ST_GPU_KERNELS(X) \
    X(EMPTY, "st_empty", "copy", "", 64, 1, 1, true) \
    X(COPY, "st_copy", "copy", "pcl", 256, 1, 1, true) \
    X(READ, "st_read", "copy", "pcl", 256, 1, 1, true) \
    X(DIALECT, "st_dialect", "dialect", "pppcc", 128, 1, 1, false) \
    X(NORM, "st_norm", "norm", "pcciiif", 256, 1, 1, true) \
    X(NORM_Q8, "st_norm_q8", "norm", "ppcciiif", 256, 1, 1, true) \
    X(NORM_Q8K, "st_norm_q8k", "norm", "ppcciiif", 256, 1, 1, true) \
    X(WRITE_NORM, "st_write_norm", "norm", "pppccciiif", 256, 1, 1, true) \
    X(QUANT_Q8, "st_quant_q8", "norm", "pci", 256, 1, 1, true) \
    X(QUANT_Q8K, "st_quant_q8k", "norm", "pci", 256, 1, 1, true) \
    X(EMBED, "st_embed", "residual", "pcii", 256, 1, 1, true) \
    X(GATED_WRITE, "st_gated_write", "residual", "pccii", 256, 1, 1, true) \
    X(SELECT, "st_select", "residual", "pcci", 256, 1, 1, true) \
    X(ADD, "st_add", "residual", "pci", 256, 1, 1, true) \
    X(SWIGLU, "st_swiglu", "residual", "pci", 256, 1, 1, true) \
    X(DRAFT_INPUT, "st_draft_input", "residual", "pcccciiif", 256, 1, 1, true) \
    X(NGRAM_GATHER, "st_ngram_gather", "ngram", "pcciiii", 256, 1, 1, true) \
    X(NGRAM_GATE, "st_ngram_gate", "ngram", "ppccccciif", 256, 1, 1, true) \
    X(NGRAM_CONV, "st_ngram_conv", "ngram", "pppccccciiiii", 256, 1, 1, true) \
    X(NGRAM_RING, "st_ngram_ring", "ngram", "pccciii", 256, 1, 1, true) \
    X(GDN_PREPARE, "st_gdn_prepare", "gdn", "pppccccccccciiiiiiif", 256, 1, 1, true) \
    X(GDN_STEP_4, "st_gdn_step_4", "gdn", "ppcccciiiii", 128, 1, 1, true) \
    X(GDN_STEP_8, "st_gdn_step_8", "gdn", "ppcccciiiii", 128, 1, 1, true) \
    X(GDN_STEP_16, "st_gdn_step_16", "gdn", "ppcccciiiii", 128, 1, 1, true) \
    X(GDN_PAIRS, "st_gdn_pairs", "gdn_blocks", "pccciiiiii", 128, 1, 1, true) \
    X(GDN_BLOCKS_32, "st_gdn_blocks_32", "gdn_blocks", "ppcccciiii", 128, 1, 1, true) \
    X(GDN_BLOCKS_64, "st_gdn_blocks_64", "gdn_blocks", "ppcccciiii", 128, 1, 1, true) \
    X(GDN_BLOCKS_128, "st_gdn_blocks_128", "gdn_blocks", "ppcccciiii", 128, 1, 1, true) \
    X(GDN_FINISH, "st_gdn_finish", "gdn", "pppccccciiiiiiiif", 256, 1, 1, true) \
    X(QSA_HEADS, "st_qsa_heads", "qsa", "pppppcccccccccccccciiiiiiiiiiff", 256, 1, 1, true) \
    X(QSA_SCORE, "st_qsa_score", "qsa", "pcccciiiiii", 256, 1, 1, true) \
    X(QSA_SCORE_TILE, "st_qsa_score_tile", "qsa", "pcccciiiiiii", 256, 1, 1, true) \
    X(QSA_CHOOSE, "st_qsa_choose", "qsa", "ppppccccciiiiiii", 256, 1, 1, true) \
    X(QSA_DENSE, "st_qsa_dense", "qsa", "pi", 256, 1, 1, true) \
    X(QSA_ATTEND_4, "st_qsa_attend_4", "qsa", "pppccccccciiiiiiii", 128, 1, 1, true) \
    X(QSA_ATTEND_12, "st_qsa_attend_12", "qsa", "pppccccccciiiiiiii", 128, 1, 1, true) \
    X(QSA_HALVES_64, "st_qsa_halves_64", "qsa", "pccccccciiiii", 128, 1, 1, true) \
    X(QSA_HALVES_128, "st_qsa_halves_128", "qsa", "pccccccciiiii", 128, 1, 1, true) \
    X(QSA_HALVES_256, "st_qsa_halves_256", "qsa", "pccccccciiiii", 128, 1, 1, true) \
    X(QSA_JOIN, "st_qsa_join", "qsa", "ppccciiiii", 128, 1, 1, true) \
    X(ROUTE_CHOOSE, "st_route_choose", "route", "pppcii", 256, 1, 1, true) \
    X(ROUTE_WINDOW, "st_route_window", "route", "ppppppciii", 256, 1, 1, true) \
    X(ROUTE_COUNT, "st_route_count", "route", "pci", 256, 1, 1, true) \
    X(ROUTE_SUM, "st_route_sum", "route", "pi", 256, 1, 1, true) \
    X(ROUTE_PLACE, "st_route_place", "route", "ppcci", 256, 1, 1, true) \
    X(SAMPLE_ADJUST, "st_sample_adjust", "sample", "ppcccii", 256, 1, 1, true) \
    X(SAMPLE_BEST, "st_sample_best", "sample", "pppcccii", 256, 1, 1, true) \
    X(SAMPLE_DIGIT, "st_sample_digit", "sample", "pccciii", 256, 1, 1, true) \
    X(SAMPLE_CHOOSE, "st_sample_choose", "sample", "pccciii", 256, 1, 1, true) \
    X(SAMPLE_SUM, "st_sample_sum", "sample", "pcccii", 256, 1, 1, true) \
    X(SAMPLE_DRAW, "st_sample_draw", "sample", "pccccii", 256, 1, 1, true) \
    X(ROWS_Q8_0, "st_rows_q8_0", "rows", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(ROWS_Q2_0, "st_rows_q2_0", "rows", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(ROWS_IQ4_NL, "st_rows_iq4_nl", "rows", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(ROWS_Q4_0, "st_rows_q4_0", "rows", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(ROWS_Q4_1, "st_rows_q4_1", "rows", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(ROWS_Q5_0, "st_rows_q5_0", "rows", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(ROWS_Q5_1, "st_rows_q5_1", "rows", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(ROWS_MXFP4, "st_rows_mxfp4", "rows", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(ROWS_NVFP4, "st_rows_nvfp4", "rows", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(ROWS_Q2_K, "st_rows_q2_k", "rows_k", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(ROWS_Q3_K, "st_rows_q3_k", "rows_k", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(ROWS_Q4_K, "st_rows_q4_k", "rows_k", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(ROWS_Q5_K, "st_rows_q5_k", "rows_k", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(ROWS_Q6_K, "st_rows_q6_k", "rows_k", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(ROWS_IQ4_XS, "st_rows_iq4_xs", "rows_k", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(ROWS_IQ1_S, "st_rows_iq1_s", "rows_iq", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(ROWS_IQ1_M, "st_rows_iq1_m", "rows_iq", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(ROWS_IQ2_XXS, "st_rows_iq2_xxs", "rows_iq", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(ROWS_IQ2_XS, "st_rows_iq2_xs", "rows_iq", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(ROWS_IQ2_S, "st_rows_iq2_s", "rows_iq", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(ROWS_IQ3_XXS, "st_rows_iq3_xxs", "rows_iq", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(ROWS_IQ3_S, "st_rows_iq3_s", "rows_iq", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(FLOATS_F32, "st_floats_f32", "floats", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(FLOATS_F16, "st_floats_f16", "floats", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(FLOATS_BF16, "st_floats_bf16", "floats", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(FLOATS_Q8_0, "st_floats_q8_0", "floats_q", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(FLOATS_Q2_0, "st_floats_q2_0", "floats_q", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(FLOATS_IQ4_NL, "st_floats_iq4_nl", "floats_q", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(FLOATS_Q4_0, "st_floats_q4_0", "floats_q", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(FLOATS_Q4_1, "st_floats_q4_1", "floats_q", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(FLOATS_Q5_0, "st_floats_q5_0", "floats_q", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(FLOATS_Q5_1, "st_floats_q5_1", "floats_q", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(FLOATS_MXFP4, "st_floats_mxfp4", "floats_q", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(FLOATS_NVFP4, "st_floats_nvfp4", "floats_q", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(FLOATS_Q2_K, "st_floats_q2_k", "floats_q", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(FLOATS_Q3_K, "st_floats_q3_k", "floats_q", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(FLOATS_Q4_K, "st_floats_q4_k", "floats_q", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(FLOATS_Q5_K, "st_floats_q5_k", "floats_q", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(FLOATS_Q6_K, "st_floats_q6_k", "floats_q", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(FLOATS_IQ4_XS, "st_floats_iq4_xs", "floats_q", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(FLOATS_IQ1_S, "st_floats_iq1_s", "floats_q", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(FLOATS_IQ1_M, "st_floats_iq1_m", "floats_q", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(FLOATS_IQ2_XXS, "st_floats_iq2_xxs", "floats_q", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(FLOATS_IQ2_XS, "st_floats_iq2_xs", "floats_q", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(FLOATS_IQ2_S, "st_floats_iq2_s", "floats_q", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(FLOATS_IQ3_XXS, "st_floats_iq3_xxs", "floats_q", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(FLOATS_IQ3_S, "st_floats_iq3_s", "floats_q", ST_ROWS_ARGS, 128, 1, 1, true) \
    X(SILU_MUL, "st_silu_mul", "elements", "pcciii", 64, 1, 1, true) \
    X(COMBINE_EXPERTS, "st_combine_experts", "elements", "pcccciii", 64, 1, 1, true) \
    X(STREAM_GATE, "st_stream_gate", "elements", "piii", 64, 1, 1, true) \
    X(STREAM_MEAN, "st_stream_mean", "elements", "pccii", 64, 1, 1, true) \
    X(MV_Q8_0_1, "st_mv_q8_0_1", "matvec", "pcciiiiii", 192, 1, 1, true) \
    X(MV_Q8_0_8, "st_mv_q8_0_8", "matvec", "pcciiiiii", 192, 1, 1, true) \
    X(MV_Q2_0_1, "st_mv_q2_0_1", "matvec", "pcciiiiii", 192, 1, 1, true) \
    X(MV_Q2_0_8, "st_mv_q2_0_8", "matvec", "pcciiiiii", 192, 1, 1, true) \
    X(MV_IQ4_NL_1, "st_mv_iq4_nl_1", "matvec", "pcciiiiii", 192, 1, 1, true) \
    X(MV_IQ4_NL_8, "st_mv_iq4_nl_8", "matvec", "pcciiiiii", 192, 1, 1, true) \
    X(MV_Q4_K_1, "st_mv_q4_k_1", "matvec", "pcciiiiii", 192, 1, 1, true) \
    X(MV_Q4_K_8, "st_mv_q4_k_8", "matvec", "pcciiiiii", 192, 1, 1, true) \
    ST_GPU_GEMM_KERNELS(X)

#define ST_GPU_KERNEL_ID(id, symbol, module, args, x, y, z, hot) ST_GPU_##id,
enum st_gpu_kernel { ST_GPU_KERNELS(ST_GPU_KERNEL_ID) ST_GPU_KERNEL_COUNT };
#undef ST_GPU_KERNEL_ID

extern const struct st_kernel_desc st_gpu_kernels[ST_GPU_KERNEL_COUNT];

#endif
