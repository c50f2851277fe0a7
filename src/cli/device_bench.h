/* Measurements of devices on the terminal. */
#ifndef ST_CLI_DEVICE_BENCH_H
#define ST_CLI_DEVICE_BENCH_H

#include "runtime/device.h"

/* Measures every chosen device and prints the results; returns an exit code. tiles: the products with every tile size
 * that their kernels can have, instead of the default. */
int st_device_bench(struct st_devices *devices, bool tiles);

#endif
