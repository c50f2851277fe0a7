/* How fast a device's decode products are: every weight byte comes from device memory, many launches stand in one replayed
 * graph, as in a decode window. */
#ifndef ST_RUNTIME_BENCH_H
#define ST_RUNTIME_BENCH_H

#include "runtime/device.h"

struct st_bench_line {
    char name[96];       /* "1 row times Q8_0 [16384 x 2560]" */
    uint64_t bytes;      /* of one launch (st_gpu_bytes) */
    double microseconds; /* of one launch, the best of several replays */
    double rate;         /* bytes per second */
};

struct st_bench_options {
    uint64_t arena;  /* bytes of weights to rotate through; less is used on a small device */
    uint32_t tile;   /* weight rows per group, 0 for the default */
    void (*report)(void *arg, const struct st_bench_line *line);
    void *arg;
};

/* The device has all kernels resolved. */
enum strata_result st_bench_products(struct st_device *dev, const struct st_bench_options *options, struct strata_error *err);

#endif
