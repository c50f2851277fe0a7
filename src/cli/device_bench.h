/* Measurements of devices on the terminal. */
#ifndef ST_CLI_DEVICE_BENCH_H
#define ST_CLI_DEVICE_BENCH_H

#include "runtime/device.h"

/* Measures every chosen device and prints the results; returns an exit code. tiles: the products with every tile size
 * that their kernels can have, instead of the default. */
int st_device_bench(struct st_devices *devices, bool tiles);

/* The same for the CPU. */
int st_device_bench_cpu(void);

/* The prompt products of a device, on `bytes` random bytes at weights. */
enum strata_result st_device_bench_prompts(struct st_device *dev, st_addr weights, uint64_t bytes, struct strata_error *err);
/* Bytes that mean nothing, but are no zeros; written at the address. */
enum strata_result st_device_fill_random(struct st_device *dev, st_addr at, uint64_t bytes, struct strata_error *err);

#endif
