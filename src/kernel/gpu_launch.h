/* One launch of a GPU kernel, made by the functions of the family headers (gpu_copy.h, gpu_norm.h, gpu_products.h)
 * from typed arguments, so that nobody else knows the order of a kernel's arguments or its grid. */
#ifndef ST_KERNEL_GPU_LAUNCH_H
#define ST_KERNEL_GPU_LAUNCH_H

#include "kernel/dot.h"
#include "kernel/gpu_kernels.h"

/* Most columns of a product's matrix. */
enum { ST_GPU_COLUMNS = 1 << 17 };

struct st_gpu_launch {
    enum st_gpu_kernel kernel;
    uint32_t grid[3]; /* groups; the group's size is the kernel's */
    union st_arg args[ST_MAX_ARGS];
};

/* Bytes that the launch reads and writes in device memory when nothing is read twice: what its time is measured
 * against. */
uint64_t st_gpu_bytes(enum st_gpu_kernel kernel, const uint32_t grid[3], const union st_arg *args);

/* Runs the launch on the CPU, on addresses of host memory: the C reference of all families when dot is the C table, and
 * the same results from any other table. False for a kernel that has no host form (st_dialect). */
bool st_gpu_reference(const struct st_dot_table *dot, enum st_gpu_kernel kernel, const uint32_t grid[3],
                      const union st_arg *args);

#endif
