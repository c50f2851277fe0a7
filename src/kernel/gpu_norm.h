/* Norm family: RMS norms of groups of elements, and activations as Q8 or Q8K rows (layouts: kernel/gpu/layout.h). */
#ifndef ST_KERNEL_GPU_NORM_H
#define ST_KERNEL_GPU_NORM_H

#include "kernel/gpu/layout.h"
#include "kernel/gpu_launch.h"

struct st_gpu_norm {
    st_addr y;        /* [rows][n] f32 */
    st_addr q;        /* rows of act's layout; unused for ST_ACT_F32 */
    st_addr x;        /* [rows][n] f32 */
    st_addr gamma;    /* [gammas] f32 */
    uint32_t rows, n; /* rows up to 65535 */
    uint32_t group;   /* elements that share a root mean square; n is a multiple of it */
    uint32_t gammas;  /* group: the groups share gamma; n: each element has its own */
    float eps;
    enum st_act act; /* ST_ACT_F32: y only; ST_ACT_Q8: group is a multiple of 32; ST_ACT_Q8K: of 256 */
};

/* y = x / sqrt(mean of squares + eps) * gamma, and q. */
enum strata_result st_gpu_norm(const struct st_gpu_norm *a, struct st_gpu_launch *out, struct strata_error *err);

/* q = rows of x in act's layout (Q8: n a multiple of 32, Q8K: of 256). */
enum strata_result st_gpu_quantize(enum st_act act, st_addr q, st_addr x, uint32_t rows, uint32_t n,
                                   struct st_gpu_launch *out, struct strata_error *err);

/* Bytes from row to row of q; 0 for ST_ACT_F32. */
uint32_t st_gpu_act_stride(enum st_act act, uint32_t n);

#endif
