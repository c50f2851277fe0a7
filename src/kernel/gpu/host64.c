/* The GPU kernels for the host, waves of 64 lanes. */
#define ST_LANES 64
#define ST_HOST_FIND st_host_kernel_64
#include "kernel/gpu/host.h"

#include "kernel/gpu/host_kernels.h"
