/* Lowering of commands: the dispatch by operation, and lists of launches. */
#include "kernel/gpu_ops.h"

#include <stdlib.h>

#include "kernel/gpu_lower.h"

struct st_gpu_launch *st_gpu_push(struct st_gpu_list *list)
{
    if (list->count == list->capacity && !list->failed) {
        size_t more = list->capacity ? list->capacity * 2 : 64;
        struct st_gpu_launch *p = realloc(list->launch, more * sizeof *p);
        list->failed = !p;
        if (p) {
            list->launch = p;
            list->capacity = more;
        }
    }
    return list->failed ? &list->spare : &list->launch[list->count++];
}

void st_gpu_list_free(struct st_gpu_list *list)
{
    free(list->launch);
    *list = (struct st_gpu_list){0};
}

enum strata_result st_gpu_lower(const struct st_command *c, const struct st_gpu_target *t, struct st_gpu_list *list,
                                struct strata_error *err)
{
    list->next = list->end && c + 1 < list->end ? c + 1 : NULL;
    if (c->op != ST_OP_gated_read)
        list->held = NULL;
    if (c->op != ST_OP_products && c->op != ST_OP_route && c->op != ST_OP_experts)
        list->ready.forms = 0; /* the command may write what was an input */
    switch (c->op) {
#define ST_GPU_LOWER_CASE(name)                                                                                           \
    case ST_OP_##name: return st_gpu_lower_##name(&c->u.name, t, list, err);
        ST_GPU_LOWERED(ST_GPU_LOWER_CASE)
#undef ST_GPU_LOWER_CASE
    default: return st_fail(err, STRATA_E_UNSUPPORTED, "%s of layer %d has no kernel", st_op_name(c->op), c->layer);
    }
}

uint64_t st_gpu_scratch(const struct st_command *c, uint32_t rows, const struct st_gpu_target *t)
{
    switch (c->op) {
#define ST_GPU_SCRATCH_CASE(name)                                                                                         \
    case ST_OP_##name: return st_gpu_scratch_##name(&c->u.name, rows, t);
        ST_GPU_WITH_SCRATCH(ST_GPU_SCRATCH_CASE)
#undef ST_GPU_SCRATCH_CASE
    default: return 0;
    }
}
