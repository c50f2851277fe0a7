/* Grouped expert products of a decode window, one launch for all used experts of a layer (Q8_0, Q2_0), to the bit as
 * the products and st_siluf of the CPU. */
#ifndef ST_KERNEL_GPU_EXPERTS_H
#define ST_KERNEL_GPU_EXPERTS_H

#include "kernel/gpu/layout.h"
#include "kernel/gpu_launch.h"

struct st_gpu_experts {
    int type;  /* of the matrices */
    st_addr y; /* gate and up: h [places][rows] f32; down: the output [places][rows] f32; ldy floats from row to row */
    st_addr base; /* the address from which the jobs' offsets count */
    st_addr jobs; /* [n_jobs] struct st_expert_job in device memory */
    st_addr x;    /* Q8 rows of n columns: gate and up read row job.row[i], down reads row job.place[i] */
    uint32_t n, rows, ldy;
    uint32_t n_jobs, most; /* the largest count of a job, 1 to 8 */
    uint32_t tile; /* weight rows that a group works on at a time: up to ST_LOOSE_ROWS, the limit, or 0 for the limit */
    uint32_t units; /* of the device (struct st_device_info), 0 when they are not known */
};

/* h[place] = silu(gate . x[row]) * (up . x[row]) */
enum strata_result st_gpu_gate_up(const struct st_gpu_experts *a, struct st_gpu_launch *out, struct strata_error *err);
/* y[place] = down . x[place] */
enum strata_result st_gpu_down(const struct st_gpu_experts *a, struct st_gpu_launch *out, struct strata_error *err);

#endif
