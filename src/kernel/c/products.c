/* Matrix products. Limit: bytes of the weights for few rows, operations of the dot product for many. */
#include "kernel/c/level.h"
#include "kernel/multiply.h"

/* Activation rows that one call takes: the buffer of row descriptors stays on the stack. */
enum { ROWS_AT_ONCE = 64, WEIGHT_GRAIN = 16 };

void ST_K(st_products)(const struct st_kernels *k, const struct st_products *a, struct st_worker *w)
{
    unsigned mask = 0;
    for (int i = 0; i < a->count; i++)
        mask |= st_act_mask(a->product[i].w);
    size_t n = (size_t)*a->n;
    st_act_prepare(k, a->acts, mask, a->x, a->ldx, n, a->product[0].w->cols, w);
    st_barrier(w);
    for (int i = 0; i < a->count; i++) {
        const struct st_product *p = &a->product[i];
        size_t from, to;
        st_share(w, p->w->rows, WEIGHT_GRAIN, &from, &to);
        struct st_act_row rows[ROWS_AT_ONCE];
        for (size_t r = 0; r < n; r += ROWS_AT_ONCE) {
            size_t count = n - r < ROWS_AT_ONCE ? n - r : ROWS_AT_ONCE;
            for (size_t j = 0; j < count; j++)
                rows[j] = st_act_row_of(a->acts, p->w, a->x, a->ldx, r + j);
            st_multiply(k, p->w, 0, from, to, rows, count, p->y + r * p->ldy + from, p->ldy);
        }
    }
}
