/* Kernel tables by level, and the interpreter of commands. */
#include "kernel/table.h"

void st_kernels_fill_c(struct st_kernels *out);

bool st_kernels_get(enum st_cpu_level level, struct st_kernels *out)
{
    switch (level) {
    case ST_CPU_C:
        *out = (struct st_kernels){.name = "c", .dot = st_dot_table_c()};
        st_kernels_fill_c(out);
        return true;
    }
    return false;
}

void st_command_run(const struct st_kernels *k, const struct st_command *c, struct st_worker *w)
{
    switch (c->op) {
#define ST_OP_RUN(name)                                                                                                   \
    case ST_OP_##name: k->name(k, &c->u.name, w); break;
        ST_OPS(ST_OP_RUN)
#undef ST_OP_RUN
    case ST_OP_COUNT: break;
    }
}

const char *st_op_name(enum st_op op)
{
    static const char *const names[] = {
#define ST_OP_NAME(name) #name,
        ST_OPS(ST_OP_NAME)
#undef ST_OP_NAME
    };
    return op < ST_OP_COUNT ? names[op] : "unknown";
}
