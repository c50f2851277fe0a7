/* The table of GPU kernels that gpu_kernels.h declares. */
#include "kernel/gpu_kernels.h"

#define ST_GPU_KERNEL_DESC(id, symbol, module, args, x, y, z, hot) {symbol, module, args, {x, y, z}, hot},
const struct st_kernel_desc st_gpu_kernels[ST_GPU_KERNEL_COUNT] = {ST_GPU_KERNELS(ST_GPU_KERNEL_DESC)};
