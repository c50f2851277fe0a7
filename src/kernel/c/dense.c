/* Norm, SwiGLU and residual sum. Limit: bytes of the activations. */
#include "kernel/c/level.h"
#include "kernel/exact_math.h"
#include "kernel/table.h"
#include "kernel/vec.h"

void ST_K(st_norm)(const struct st_kernels *k, const struct st_norm *a, struct st_worker *w)
{
    (void)k;
    size_t from, to;
    st_share(w, (size_t)*a->n, 1, &from, &to);
    for (size_t r = from; r < to; r++)
        st_vec_rms_norm(a->y + r * a->width, a->x + r * a->width, a->gamma, a->width, a->eps);
}

void ST_K(st_swiglu)(const struct st_kernels *k, const struct st_swiglu *a, struct st_worker *w)
{
    (void)k;
    size_t from, to;
    st_share(w, (size_t)*a->n * a->width, 16, &from, &to);
    for (size_t i = from; i < to; i++)
        a->gate[i] = st_siluf(a->gate[i]) * a->up[i];
}

void ST_K(st_add)(const struct st_kernels *k, const struct st_add *a, struct st_worker *w)
{
    (void)k;
    size_t from, to;
    st_share(w, (size_t)*a->n * a->width, 16, &from, &to);
    for (size_t i = from; i < to; i++)
        a->r[i] += a->o[i];
}
