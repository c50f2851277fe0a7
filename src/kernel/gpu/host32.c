/* The GPU kernels for the host, waves of 32 lanes. */
#define ST_LANES 32
#define ST_HOST_FIND st_host_kernel_32
#include "kernel/gpu/host.h"

#include "kernel/gpu/host_kernels.h"
