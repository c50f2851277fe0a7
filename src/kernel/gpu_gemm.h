/* Prompt products on integer matrix units: many activation rows times weight rows, dense or of the experts of a routing, every
 * quantised type, to the bit as st_dot_table.rows. Kernels: gpu/gemm.h. */
#ifndef ST_KERNEL_GPU_GEMM_H
#define ST_KERNEL_GPU_GEMM_H

#include "kernel/gpu/layout.h"
#include "kernel/gpu_launch.h"

struct st_gpu_gemm {
    int type;
    st_addr y; /* f32, ldy floats from row to row */
    /* Matrices of rows x n as in the file, one after the other; the first starts at a multiple of 16. */
    st_addr w;
    st_addr up; /* 0, or matrices beside w: the output is silu(w . x) * (up . x) */
    st_addr x;  /* activation rows in the type's form, stride bytes apart */
    uint32_t n, rows, stride, ldy;
    /* Dense: output row i is activation row i times the one matrix, for i < total. Experts (total 0): the entries of the
     * tiles that st_gpu_gemm_tiles lists; activation row entry[i] / used for output row i, or row i with used 0. */
    uint32_t total;
    st_addr tiles, entry;
    uint32_t n_tiles, used;
    st_addr scales, up_scales; /* f32 factors of the results of w and of up, or 0: none of both */
    bool scale_each;           /* one for each expert instead of one */
    uint32_t expert_bytes;     /* as in struct st_gpu_rows */
    st_addr places;            /* likewise */
    uint32_t units;            /* of the device (struct st_device_info), 0 when they are not known */
    bool folded;               /* its kernels fold weights (ST_FEATURE_FOLDED): large products of types of 256 elements */
};

/* One launch, in which every group opens the weights that it needs. STRATA_E_UNSUPPORTED when the type or the shape has no kernel. */
enum strata_result st_gpu_gemm(const struct st_gpu_gemm *a, struct st_gpu_launch *out, struct strata_error *err);

/* Whether a dense product has enough tiles for every unit of the device, so that its weights are worth opening once for all rows.
 * Results do not depend on it. */
bool st_gpu_gemm_wide(const struct st_gpu_gemm *a);
/* Bytes of memory that such a product wants for opened weights, 0 when it is none; at most a fixed size, or what
 * ST_GEMM_OUT weight rows take. Folded: for the activation rows as well. */
uint64_t st_gpu_gemm_opened_bytes(const struct st_gpu_gemm *a);
/* The launches, *count of them, that compute the outputs of weight rows *row and following: opened (st_gpu_gemm_opened_bytes, a
 * multiple of 16) is filled, then read. *row is 0 at first and becomes the first row that is left, a->rows at the end. */
enum { ST_GPU_OPENED_LAUNCHES = 3 };
enum strata_result st_gpu_gemm_opened(const struct st_gpu_gemm *a, st_addr opened, uint32_t *row,
                                      struct st_gpu_launch out[ST_GPU_OPENED_LAUNCHES], int *count, struct strata_error *err);

/* How many tiles of 16 bytes so many entries of so many experts can make. */
uint32_t st_gpu_gemm_tile_bound(uint32_t entries, uint32_t experts);
/* Lists the tiles of a routing's entries; first as in kernel/moe.h. */
void st_gpu_gemm_tiles(st_addr tiles, st_addr first, uint32_t experts, uint32_t bound, struct st_gpu_launch *out);

/* The same for dense products with weights of type F32, F16 or BF16 and f32 activations, x and stride multiples of 16 or
 * slower; up is 0. The order of sums is that of prompts (docs/numerics.md, section 3). */
enum strata_result st_gpu_gemm_floats(const struct st_gpu_gemm *a, struct st_gpu_launch *out, struct strata_error *err);

/* Every work-item group's waves do `rounds` times 8 products of 16 x 16 x 32 elements; out: 1 KiB for each group. Returns
 * the multiplications and additions of one group of a device with waves of so many lanes. */
uint64_t st_gpu_tile_peak(st_addr to, uint32_t groups, uint32_t rounds, uint32_t lanes, struct st_gpu_launch *out);

/* The type that a kernel of st_gpu_gemm multiplies, -1 for a kernel of another family; *pair: with up. */
int st_gpu_gemm_type(enum st_gpu_kernel kernel, bool *pair);
/* Kernels of st_gpu_gemm_opened: those that only prepare, and the one that multiplies. */
bool st_gpu_gemm_opens(enum st_gpu_kernel kernel);
bool st_gpu_gemm_is_wide(enum st_gpu_kernel kernel);

#endif
