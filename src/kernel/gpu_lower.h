/* Which operations have GPU kernels, and the functions that lower them. Every list names what gpu_ops.c dispatches; an
 * operation that is not named is refused when a device is opened, before anything is loaded. */
#ifndef ST_KERNEL_GPU_LOWER_H
#define ST_KERNEL_GPU_LOWER_H

#include "kernel/gpu_ops.h"

/* X(operation): st_gpu_lower_<operation>. */
#define ST_GPU_LOWERED(X)                                                                                                 \
    X(embed)                                                                                                              \
    X(gated_write)                                                                                                        \
    X(select)                                                                                                             \
    X(add)                                                                                                                \
    X(swiglu)                                                                                                             \
    X(norm)                                                                                                               \
    X(draft_input)                                                                                                        \
    X(ngram_gather)                                                                                                       \
    X(ngram_inject)                                                                                                       \
    X(gdn)                                                                                                                \
    X(qsa)                                                                                                                \
    X(products)                                                                                                           \
    X(gated_read)                                                                                                         \
    X(route)                                                                                                              \
    X(experts)

/* X(operation): the ones that use scratch, st_gpu_scratch_<operation>. */
#define ST_GPU_WITH_SCRATCH(X) X(gdn) X(qsa) X(products) X(gated_read) X(route) X(experts)

#define ST_GPU_LOWER_DECLARE(name)                                                                                        \
    enum strata_result st_gpu_lower_##name(const struct st_##name *a, const struct st_gpu_target *t,                      \
                                           struct st_gpu_list *list, struct strata_error *err);
ST_GPU_LOWERED(ST_GPU_LOWER_DECLARE)
#undef ST_GPU_LOWER_DECLARE

#define ST_GPU_SCRATCH_DECLARE(name)                                                                                      \
    uint64_t st_gpu_scratch_##name(const struct st_##name *a, uint32_t rows, const struct st_gpu_target *t);
ST_GPU_WITH_SCRATCH(ST_GPU_SCRATCH_DECLARE)
#undef ST_GPU_SCRATCH_DECLARE

/* The part of route after its logits (to->shared holds the shared gate's logit): choice, then grouping by expert. */
void st_gpu_lower_choice(const struct st_route *a, struct st_gpu_list *list);

/* The first launch of a gated read: the norm of the wide residual to a->x, with the write that the list holds before it, and with
 * one of the integer forms in *forms (OR of 1 << form), which is taken out of *forms. */
enum strata_result st_gpu_lower_wide_norm(const struct st_gated_read *a, unsigned *forms, struct st_gpu_list *list,
                                          struct strata_error *err);

#endif
