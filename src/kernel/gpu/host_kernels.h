/* Every GPU kernel compiled for the host, for waves of ST_LANES lanes, and a table of them. Included by one file for
 * each width. A kernel's first word in the list is its arguments as in gpu_kernels.h. */
#include "kernel/gpu_kernels.h"

#include "kernel/gpu/host_dialect.h"

#include "copy.cl"
#undef GROUP
#include "dialect.cl"
#undef GROUP
#include "norm.cl"
#undef GROUP
#undef DIM_MAX
#include "residual.cl"
#undef GROUP
#undef DIM_MAX
#include "ngram.cl"
#undef GROUP
#undef DIM_MAX
#include "gdn.cl"
#undef GROUP
#undef DIM_MAX
#include "gdn_blocks.cl"
#include "qsa.cl"
#undef GROUP
#undef DIM_MAX
#include "route.cl"
#undef GROUP
#undef DIM_MAX
#include "sample.cl"
#undef GROUP
#include "elements.cl"
#undef GROUP
#include "rows.cl"

#include "rows_k.cl"

#include "rows_iq.cl"

#include "floats.cl"

#include "floats_q.cl"
#undef GROUP
#include "open.cl"

#include "open_k.cl"

#include "open_iq.cl"

#include "gemm.cl"

#include "gemm_experts.cl"

#include "gemm_k.cl"

#include "gemm_k_experts.cl"

#include "gemm_iq_experts.cl"
#undef GROUP
#include "gemm_tiles.cl"
#undef GROUP
#include "gemm_floats.cl"
#undef GROUP
#undef OUT
#undef ROWS
#undef STEP
#undef F32
#undef F16
#undef BF16
#include "peak.cl"
#undef GROUP
#include "matvec.cl"

#define P(i) ((void *)(uintptr_t)args[i].p)
#define UNPACK_(name) (void)args, name()
#define UNPACK_pcl(name) name(P(0), P(1), args[2].l)
#define UNPACK_pci(name) name(P(0), P(1), args[2].i)
#define UNPACK_pppcc(name) name(P(0), P(1), P(2), P(3), P(4))
#define UNPACK_pcciiif(name) name(P(0), P(1), P(2), args[3].i, args[4].i, args[5].i, args[6].f)
#define UNPACK_ppcciiif(name) name(P(0), P(1), P(2), P(3), args[4].i, args[5].i, args[6].i, args[7].f)
#define UNPACK_pcciiiiii(name) name(P(0), P(1), P(2), args[3].i, args[4].i, args[5].i, args[6].i, args[7].i, args[8].i)
#define UNPACK_pccciiiii(name) name(P(0), P(1), P(2), P(3), args[4].i, args[5].i, args[6].i, args[7].i, args[8].i)

#define UNPACK_pcccciiif(name) name(P(0), P(1), P(2), P(3), P(4), args[5].i, args[6].i, args[7].i, args[8].f)
#define UNPACK_pcccciiiiii(name) \
    name(P(0), P(1), P(2), P(3), P(4), args[5].i, args[6].i, args[7].i, args[8].i, args[9].i, args[10].i)
#define UNPACK_pcci(name) name(P(0), P(1), P(2), args[3].i)
#define UNPACK_pccii(name) name(P(0), P(1), P(2), args[3].i, args[4].i)
#define UNPACK_pcciiii(name) name(P(0), P(1), P(2), args[3].i, args[4].i, args[5].i, args[6].i)
#define UNPACK_pciii(name) name(P(0), P(1), args[2].i, args[3].i, args[4].i)
#define UNPACK_pciiii(name) name(P(0), P(1), args[2].i, args[3].i, args[4].i, args[5].i)
#define UNPACK_pcccccccciiiiiiiii(name) \
    name(P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), args[9].i, args[10].i, args[11].i, args[12].i, args[13].i, \
         args[14].i, args[15].i, args[16].i, args[17].i)
#define UNPACK_pccciiiiiii(name) \
    name(P(0), P(1), P(2), P(3), args[4].i, args[5].i, args[6].i, args[7].i, args[8].i, args[9].i, args[10].i)
#define UNPACK_pcii(name) name(P(0), P(1), args[2].i, args[3].i)
#define UNPACK_pi(name) name(P(0), args[1].i)
#define UNPACK_ppccccciif(name) name(P(0), P(1), P(2), P(3), P(4), P(5), P(6), args[7].i, args[8].i, args[9].f)
#define UNPACK_ppcci(name) name(P(0), P(1), P(2), P(3), args[4].i)
#define UNPACK_pppcii(name) name(P(0), P(1), P(2), P(3), args[4].i, args[5].i)
#define UNPACK_rows(name) \
    name(P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), P(9), P(10), P(11), P(12), args[13].i, args[14].i, \
         args[15].i, args[16].i, args[17].i, args[18].i, args[19].i, args[20].i, args[21].i, args[22].i, args[23].i, \
         args[24].i, args[25].i, args[26].i, args[27].i, args[28].i, args[29].i, args[30].i, args[31].i)
#define UNPACK_ppcccciiiii(name) \
    name(P(0), P(1), P(2), P(3), P(4), P(5), args[6].i, args[7].i, args[8].i, args[9].i, args[10].i)
#define UNPACK_pccccccciiiii(name) \
    name(P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), args[8].i, args[9].i, args[10].i, args[11].i, args[12].i)
#define UNPACK_ppcccciiii(name) \
    name(P(0), P(1), P(2), P(3), P(4), P(5), args[6].i, args[7].i, args[8].i, args[9].i)
#define UNPACK_pccciiiiii(name) \
    name(P(0), P(1), P(2), P(3), args[4].i, args[5].i, args[6].i, args[7].i, args[8].i, args[9].i)
#define UNPACK_pppccccccccciiiiiiif(name) \
    name(P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), P(9), P(10), P(11), args[12].i, args[13].i, \
         args[14].i, args[15].i, args[16].i, args[17].i, args[18].i, args[19].f)
#define UNPACK_pcccciii(name) name(P(0), P(1), P(2), P(3), P(4), args[5].i, args[6].i, args[7].i)
#define UNPACK_pcciii(name) name(P(0), P(1), P(2), args[3].i, args[4].i, args[5].i)
#define UNPACK_piii(name) name(P(0), args[1].i, args[2].i, args[3].i)
#define UNPACK_pcccciiiiiii(name) \
    name(P(0), P(1), P(2), P(3), P(4), args[5].i, args[6].i, args[7].i, args[8].i, args[9].i, args[10].i, \
         args[11].i)
#define UNPACK_pcccciiiiiiii(name) \
    name(P(0), P(1), P(2), P(3), P(4), args[5].i, args[6].i, args[7].i, args[8].i, args[9].i, args[10].i, \
         args[11].i, args[12].i)
#define UNPACK_pppccccccciiiiiiii(name) \
    name(P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), P(9), args[10].i, args[11].i, args[12].i, \
         args[13].i, args[14].i, args[15].i, args[16].i, args[17].i)
#define UNPACK_ppppccccciiiiiii(name) \
    name(P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), args[9].i, args[10].i, args[11].i, args[12].i, \
         args[13].i, args[14].i, args[15].i)
#define UNPACK_pppppcccccccccccccciiiiiiiiiiff(name) \
    name(P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), P(9), P(10), P(11), P(12), P(13), P(14), P(15), \
         P(16), P(17), P(18), args[19].i, args[20].i, args[21].i, args[22].i, args[23].i, args[24].i, args[25].i, \
         args[26].i, args[27].i, args[28].i, args[29].f, args[30].f)
#define UNPACK_ppppppciii(name) name(P(0), P(1), P(2), P(3), P(4), P(5), P(6), args[7].i, args[8].i, args[9].i)
#define UNPACK_pccciii(name) name(P(0), P(1), P(2), P(3), args[4].i, args[5].i, args[6].i)
#define UNPACK_pppccccciiiii(name) \
    name(P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), args[8].i, args[9].i, args[10].i, args[11].i, \
         args[12].i)
#define UNPACK_ppccciiiii(name) \
    name(P(0), P(1), P(2), P(3), P(4), args[5].i, args[6].i, args[7].i, args[8].i, args[9].i)
#define UNPACK_pppccccciiiiiiiif(name) \
    name(P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), args[8].i, args[9].i, args[10].i, args[11].i, \
         args[12].i, args[13].i, args[14].i, args[15].i, args[16].f)
#define UNPACK_pppccciiif(name) name(P(0), P(1), P(2), P(3), P(4), P(5), args[6].i, args[7].i, args[8].i, args[9].f)

#define UNPACK_ppcccii(name) name(P(0), P(1), P(2), P(3), P(4), args[5].i, args[6].i)
#define UNPACK_pppcccii(name) name(P(0), P(1), P(2), P(3), P(4), P(5), args[6].i, args[7].i)
#define UNPACK_pcccii(name) name(P(0), P(1), P(2), P(3), args[4].i, args[5].i)
#define UNPACK_pccccii(name) name(P(0), P(1), P(2), P(3), P(4), args[5].i, args[6].i)

#define ROWS(X, args, name) X(args, name##_1) X(args, name##_8)
#define HOST_KERNELS(X) \
    X(, st_empty) \
    X(pcl, st_copy) \
    X(pcl, st_read) \
    X(pppcc, st_dialect) \
    X(pcciiif, st_norm) \
    X(ppcciiif, st_norm_q8) \
    X(ppcciiif, st_norm_q8k) \
    X(pppccciiif, st_write_norm) \
    X(pci, st_quant_q8) \
    X(pci, st_quant_q8k) \
    X(pcii, st_embed) \
    X(pccii, st_gated_write) \
    X(pcci, st_select) \
    X(pci, st_add) \
    X(pci, st_swiglu) \
    X(pcccciiif, st_draft_input) \
    X(pcciiii, st_ngram_gather) \
    X(ppccccciif, st_ngram_gate) \
    X(pppccccciiiii, st_ngram_conv) \
    X(pccciii, st_ngram_ring) \
    X(pppccccccccciiiiiiif, st_gdn_prepare) \
    X(ppcccciiiii, st_gdn_step_4) \
    X(ppcccciiiii, st_gdn_step_8) \
    X(ppcccciiiii, st_gdn_step_16) \
    X(pppccccciiiiiiiif, st_gdn_finish) \
    X(pccciiiiii, st_gdn_pairs) \
    X(ppcccciiii, st_gdn_blocks_32) \
    X(ppcccciiii, st_gdn_blocks_64) \
    X(ppcccciiii, st_gdn_blocks_128) \
    X(pppppcccccccccccccciiiiiiiiiiff, st_qsa_heads) \
    X(pcccciiiiii, st_qsa_score) \
    X(pcccciiiiiii, st_qsa_score_tile) \
    X(ppppccccciiiiiii, st_qsa_choose) \
    X(pi, st_qsa_dense) \
    X(pppccccccciiiiiiii, st_qsa_attend_4) \
    X(pppccccccciiiiiiii, st_qsa_attend_12) \
    X(pccccccciiiii, st_qsa_halves_64) \
    X(pccccccciiiii, st_qsa_halves_128) \
    X(pccccccciiiii, st_qsa_halves_256) \
    X(ppccciiiii, st_qsa_join) \
    X(pppcii, st_route_choose) \
    X(ppppppciii, st_route_window) \
    X(pci, st_route_count) \
    X(pi, st_route_sum) \
    X(ppcci, st_route_place) \
    X(ppcccii, st_sample_adjust) \
    X(pppcccii, st_sample_best) \
    X(pccciii, st_sample_digit) \
    X(pccciii, st_sample_choose) \
    X(pcccii, st_sample_sum) \
    X(pccccii, st_sample_draw) \
    X(rows, st_rows_q8_0) \
    X(rows, st_rows_q2_0) \
    X(rows, st_rows_iq4_nl) \
    X(rows, st_rows_q4_0) \
    X(rows, st_rows_q4_1) \
    X(rows, st_rows_q5_0) \
    X(rows, st_rows_q5_1) \
    X(rows, st_rows_mxfp4) \
    X(rows, st_rows_nvfp4) \
    X(rows, st_rows_q2_k) \
    X(rows, st_rows_q3_k) \
    X(rows, st_rows_q4_k) \
    X(rows, st_rows_q5_k) \
    X(rows, st_rows_q6_k) \
    X(rows, st_rows_iq4_xs) \
    X(rows, st_rows_iq1_s) \
    X(rows, st_rows_iq1_m) \
    X(rows, st_rows_iq2_xxs) \
    X(rows, st_rows_iq2_xs) \
    X(rows, st_rows_iq2_s) \
    X(rows, st_rows_iq3_xxs) \
    X(rows, st_rows_iq3_s) \
    X(rows, st_floats_f32) \
    X(rows, st_floats_f16) \
    X(rows, st_floats_bf16) \
    X(rows, st_floats_q8_0) \
    X(rows, st_floats_q2_0) \
    X(rows, st_floats_iq4_nl) \
    X(rows, st_floats_q4_0) \
    X(rows, st_floats_q4_1) \
    X(rows, st_floats_q5_0) \
    X(rows, st_floats_q5_1) \
    X(rows, st_floats_mxfp4) \
    X(rows, st_floats_nvfp4) \
    X(rows, st_floats_q2_k) \
    X(rows, st_floats_q3_k) \
    X(rows, st_floats_q4_k) \
    X(rows, st_floats_q5_k) \
    X(rows, st_floats_q6_k) \
    X(rows, st_floats_iq4_xs) \
    X(rows, st_floats_iq1_s) \
    X(rows, st_floats_iq1_m) \
    X(rows, st_floats_iq2_xxs) \
    X(rows, st_floats_iq2_xs) \
    X(rows, st_floats_iq2_s) \
    X(rows, st_floats_iq3_xxs) \
    X(rows, st_floats_iq3_s) \
    X(pcciii, st_silu_mul) \
    X(pcccciii, st_combine_experts) \
    X(piii, st_stream_gate) \
    X(pccii, st_stream_mean) \
    ROWS(X, pcciiiiii, st_mv_q8_0) \
    ROWS(X, pcciiiiii, st_mv_q2_0) \
    ROWS(X, pcciiiiii, st_mv_iq4_nl) \
    ROWS(X, pcciiiiii, st_mv_q4_k) \
    ST_HOST_GEMM_KERNELS(X)

#define CALL(kind, name) \
    static void call_##name(const union st_arg *args) \
    { \
        UNPACK_##kind(name); \
    }
HOST_KERNELS(CALL)

#define ENTRY(kind, name) {#name, call_##name},
static const struct st_host_kernel host_kernels[] = {HOST_KERNELS(ENTRY)};

const struct st_host_kernel *ST_HOST_FIND(const char *name)
{
    for (size_t i = 0; i < sizeof host_kernels / sizeof *host_kernels; i++)
        if (strcmp(host_kernels[i].name, name) == 0)
            return &host_kernels[i];
    return NULL;
}
