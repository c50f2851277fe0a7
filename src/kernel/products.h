/* Matrix products: y[r][o] = sum_i w[o][i] * x[r][i] for up to ST_PRODUCTS weights that share one input.
 *
 * x: [*n][cols] f32 with ldx floats from row to row. y: [*n][rows] f32 with ldy floats from row to row. The input is
 * brought into the form that each weight's act asks for (docs/numerics.md); a row's result does not depend on the other
 * rows of the pass. */
#ifndef ST_KERNEL_PRODUCTS_H
#define ST_KERNEL_PRODUCTS_H

#include "kernel/rows.h"

enum { ST_PRODUCTS = 6 };

/* Shared memory for quantised activations of up to rows x cols values in both integer forms. Row r of a form is bound at
 * memory + r * stride (st_act_bind). */
struct st_act_buffer {
    uint8_t *memory[ST_ACT_COUNT]; /* of ST_ACT_F32: unused */
    size_t stride[ST_ACT_COUNT];
    size_t cols;
};

struct st_product {
    const struct st_weight *w;
    float *y;
    size_t ldy;
};

struct st_products {
    const int32_t *n;
    const float *x;
    size_t ldx;
    int count;
    struct st_product product[ST_PRODUCTS];
    struct st_act_buffer *acts;
};

#endif
