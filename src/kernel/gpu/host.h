/* Finding kernels that are compiled for the host by the name of the GPU kernel; NULL when there is none. */
#ifndef ST_KERNEL_GPU_HOST_H
#define ST_KERNEL_GPU_HOST_H

struct st_host_kernel;
const struct st_host_kernel *st_host_kernel_32(const char *name);
const struct st_host_kernel *st_host_kernel_64(const char *name);

#endif
