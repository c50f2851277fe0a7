/* Weights times a few activation rows: the one place that knows how a weight's activation form is served. */
#ifndef ST_KERNEL_MULTIPLY_H
#define ST_KERNEL_MULTIPLY_H

#include "kernel/table.h"

/* Bytes of memory for a buffer of rows x cols activations in both integer forms. row_bytes: bytes of one row in a form
 * (st_act_bytes on the CPU). */
size_t st_act_buffer_bytes(size_t rows, size_t cols, size_t (*row_bytes)(enum st_act form, size_t n));
/* Lays a buffer out in memory of that size, 64-byte aligned. */
void st_act_buffer_place(struct st_act_buffer *b, void *memory, size_t rows, size_t cols,
                         size_t (*row_bytes)(enum st_act form, size_t n));

/* Forms to prepare for a weight: OR of 1 << enum st_act over the weights that share an input. */
static inline unsigned st_act_mask(const struct st_weight *w)
{
    return w && w->data ? 1u << w->act : 0;
}

/* Shares the work of bringing n rows of x (ldx floats apart, cols values) into the forms of mask. A barrier must follow
 * before the rows are used. */
void st_act_prepare(const struct st_kernels *k, const struct st_act_buffer *b, unsigned mask, const float *x, size_t ldx,
                    size_t n, size_t cols, const struct st_worker *w);

/* Row r of a prepared input of cols values in the form that w needs; x points at row 0, as given to st_act_prepare. */
struct st_act_row st_act_row_of(const struct st_act_buffer *b, const struct st_weight *w, const float *x, size_t ldx,
                                size_t r);

/* y[i * ldy + o - from] = (row o of the weight's expert) . x[i] for o in [from, to), i < n. */
void st_multiply(const struct st_kernels *k, const struct st_weight *w, uint32_t expert, size_t from, size_t to,
                 const struct st_act_row *x, size_t n, float *y, size_t ldy);

#endif
