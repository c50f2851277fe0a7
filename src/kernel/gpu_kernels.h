/* Every GPU kernel that exists: one line per kernel, from which come the enum, the table of descriptions, the check
 * that an image is complete, and the kernel table of a device.
 *
 * X(ID, symbol, module, args, group x, y, z, hot): module is the file src/kernel/gpu/<module>.cl, one image per module
 * and architecture; args as in struct st_kernel_desc; hot kernels must not spill. Geometry and meaning of the arguments
 * stand at the kernel in its .cl file. */
#ifndef ST_KERNEL_GPU_KERNELS_H
#define ST_KERNEL_GPU_KERNELS_H

#include "runtime/runtime.h"

#define ST_GPU_KERNELS(X) X(COPY, "st_copy", "copy", "pcl", 256, 1, 1, true)

#define ST_GPU_KERNEL_ID(id, symbol, module, args, x, y, z, hot) ST_GPU_##id,
enum st_gpu_kernel { ST_GPU_KERNELS(ST_GPU_KERNEL_ID) ST_GPU_KERNEL_COUNT };
#undef ST_GPU_KERNEL_ID

extern const struct st_kernel_desc st_gpu_kernels[ST_GPU_KERNEL_COUNT];

#endif
