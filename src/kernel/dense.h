/* Steps of models with one residual stream. */
#ifndef ST_KERNEL_DENSE_H
#define ST_KERNEL_DENSE_H

#include "kernel/rows.h"

/* y = x / rms(x) * gamma */
struct st_norm {
    const int32_t *n;
    const float *x, *gamma; /* [*n][width], [width] */
    float *y;
    uint32_t width;
    float eps;
};

/* h = silu(gate) * up, in place of gate */
struct st_swiglu {
    const int32_t *n;
    float *gate; /* [*n][width] */
    const float *up;
    uint32_t width;
};

/* r += o */
struct st_add {
    const int32_t *n;
    float *r; /* [*n][width] */
    const float *o;
    uint32_t width;
};

#endif
