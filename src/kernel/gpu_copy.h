/* Copy family: measuring bandwidth and the cost of a launch. Addresses are multiples of 16. */
#ifndef ST_KERNEL_GPU_COPY_H
#define ST_KERNEL_GPU_COPY_H

#include "kernel/gpu_launch.h"

void st_gpu_empty(struct st_gpu_launch *out);
/* bytes: a multiple of 16, below 2^46. */
void st_gpu_copy(st_addr to, st_addr from, uint64_t bytes, struct st_gpu_launch *out);
/* Reads bytes and writes one word per 64 of them (rounded up to 1024 bytes of words per 16 KiB) to words. */
void st_gpu_read(st_addr words, st_addr from, uint64_t bytes, struct st_gpu_launch *out);

#endif
