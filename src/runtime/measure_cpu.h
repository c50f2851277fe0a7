/* The CPU as a device of predictions: what it does in decoding. */
#ifndef ST_RUNTIME_MEASURE_CPU_H
#define ST_RUNTIME_MEASURE_CPU_H

#include "kernel/table.h"
#include "runtime/line.h"
#include "runtime/shape.h"

struct st_cpu_rates {
    struct st_line dense;   /* a command of a list, by bytes of weights */
    struct st_line experts; /* a layer's experts for one token, by bytes of their weights; nothing without experts */
};

/* Measures products of one row with weights that no cache holds, with so many threads. Takes about a tenth of a second,
 * and four times the last cache of memory for its duration. */
enum strata_result st_cpu_measure(const struct st_kernels *kernels, int threads, const struct st_decode_shape *shape,
                                  struct st_cpu_rates *out, struct strata_error *err);

#endif
