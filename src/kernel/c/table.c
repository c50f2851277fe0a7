/* The kernel table of this level. */
#include "kernel/table.h"

#include "kernel/c/level.h"

#define ST_OP_DECLARE(name)                                                                                               \
    void ST_K(st_##name)(const struct st_kernels *k, const struct st_##name *a, struct st_worker *w);
ST_OPS(ST_OP_DECLARE)
#undef ST_OP_DECLARE

void ST_K(st_kernels_fill)(struct st_kernels *out)
{
#define ST_OP_FILL(name) out->name = ST_K(st_##name);
    ST_OPS(ST_OP_FILL)
#undef ST_OP_FILL
}
