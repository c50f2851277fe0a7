/* The self-test on the terminal. */
#ifndef ST_CLI_DEVICE_SELFTEST_H
#define ST_CLI_DEVICE_SELFTEST_H

#include "runtime/device.h"

/* Opens every chosen device at the same time, runs all kernels on each (one thread per device) against the C reference,
 * then copies between every two of them; prints what was done and returns an exit code. */
int st_device_selftest(struct st_devices *devices, uint64_t seed);

#endif
