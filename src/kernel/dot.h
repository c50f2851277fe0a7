/* Products of weight rows with activation rows: one table per processor level, all levels with the same bits for every
 * type (the arithmetic: docs/numerics.md). The C table is complete and plain; the others are compared with it. */
#ifndef ST_KERNEL_DOT_H
#define ST_KERNEL_DOT_H

#include "format/quant.h"

/* y[j * ldy + r] = dot(weight row r, activation row j) for r < n_rows, j < n_x.
 * w: n_rows rows of n elements, row_bytes bytes apart. x: n_x >= 1 activation rows of the kind that the entry takes.
 * Any n_rows and n_x; an output depends on its own two rows only, never on the numbers of rows or on neighbours. */
typedef void (*st_dot_rows_fn)(float *y, const void *w, size_t row_bytes, int n_rows, const struct st_act_row *x,
                               int n_x, size_t ldy, size_t n);

struct st_dot_table {
    const char *name;                       /* "c", "avx2", "avx512" */
    st_dot_rows_fn rows[ST_TYPE_COUNT];     /* activations of the type's kind (st_type_info.act); NULL: no such type */
    st_dot_rows_fn rows_f32[ST_TYPE_COUNT]; /* FP32 activations: the decoded row times x in the order of st_dot_f32 */
    void (*quantize)(enum st_act kind, const float *x, size_t n, struct st_act_row *row); /* as st_act_quantize */
};

const struct st_dot_table *st_dot_table_c(void);
/* NULL when the processor (or its operating system) lacks the level. */
const struct st_dot_table *st_dot_table_avx2(void);
const struct st_dot_table *st_dot_table_avx512(void);

#endif
