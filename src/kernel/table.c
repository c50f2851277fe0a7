/* Kernel tables by level, and the interpreter of commands. */
#include "kernel/table.h"

#include <string.h>

struct level {
    const char *name;
    const struct st_dot_table *(*dot)(void); /* NULL when the processor lacks the level */
    void (*fill)(struct st_kernels *out);
};

void st_kernels_fill_c(struct st_kernels *out);
#ifdef __x86_64__
void st_kernels_fill_avx2(struct st_kernels *out);
void st_kernels_fill_avx512(struct st_kernels *out);
#endif

/* Best first. */
static const struct level levels[] = {
#ifdef __x86_64__
    {"avx512", st_dot_table_avx512, st_kernels_fill_avx512},
    {"avx2", st_dot_table_avx2, st_kernels_fill_avx2},
#endif
    {"c", st_dot_table_c, st_kernels_fill_c},
};

enum strata_result st_kernels_choose(const char *name, struct st_kernels *out, struct strata_error *err)
{
    bool automatic = !name || !strcmp(name, "auto"), known = automatic;
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        bool named = !automatic && !strcmp(name, levels[i].name);
        const struct st_dot_table *dot = automatic || named ? levels[i].dot() : NULL;
        known = known || named;
        if (dot) {
            *out = (struct st_kernels){.name = levels[i].name, .dot = dot};
            levels[i].fill(out);
            return STRATA_OK;
        }
    }
    return known ? st_fail(err, STRATA_E_DEVICE, "cpu: this processor lacks instruction set %s", name)
                 : st_fail(err, STRATA_E_ARGUMENT, "cpu: instruction set '%s' is none of auto, c, avx2, avx512", name);
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
