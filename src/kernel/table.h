/* Commands and kernel tables. A model family writes its forward pass once as a list of commands; a device runs the list
 * through its table. Every entry of a table is filled: a level that has nothing better takes the C version. */
#ifndef ST_KERNEL_TABLE_H
#define ST_KERNEL_TABLE_H

#include "kernel/dense.h"
#include "kernel/dot.h"
#include "kernel/gdn.h"
#include "kernel/moe.h"
#include "kernel/ngram.h"
#include "kernel/products.h"
#include "kernel/qsa.h"
#include "kernel/residual.h"

/* X(name): argument struct st_<name>, table entry .<name>, command ST_OP_<name>. */
#define ST_OPS(X)                                                                                                         \
    X(embed)                                                                                                              \
    X(draft_input)                                                                                                        \
    X(ngram_gather)                                                                                                       \
    X(ngram_inject)                                                                                                       \
    X(gated_read)                                                                                                         \
    X(gated_write)                                                                                                        \
    X(products)                                                                                                           \
    X(gdn)                                                                                                                \
    X(qsa)                                                                                                                \
    X(route)                                                                                                              \
    X(experts)                                                                                                            \
    X(norm)                                                                                                               \
    X(swiglu)                                                                                                             \
    X(add)                                                                                                                \
    X(select)

#define ST_OP_ENUM(name) ST_OP_##name,
enum st_op { ST_OPS(ST_OP_ENUM) ST_OP_COUNT };
#undef ST_OP_ENUM

struct st_kernels {
    const char *name; /* "c", "avx2", "avx512" */
    const struct st_dot_table *dot;
#define ST_OP_ENTRY(name) void (*name)(const struct st_kernels *k, const struct st_##name *a, struct st_worker *w);
    ST_OPS(ST_OP_ENTRY)
#undef ST_OP_ENTRY
};

struct st_command {
    enum st_op op;
    int32_t layer; /* -1: before or after the layers */
    union {
#define ST_OP_MEMBER(name) struct st_##name name;
        ST_OPS(ST_OP_MEMBER)
#undef ST_OP_MEMBER
    } u;
};

/* Whether the operation has recurrent state: the commands of a pass that commits held rows. */
static inline bool st_op_recurs(enum st_op op)
{
    return op == ST_OP_gdn || op == ST_OP_ngram_inject;
}

/* Fills the table of an instruction set: "c", "avx2", "avx512"; NULL or "auto" is the best that this processor has.
 * STRATA_E_ARGUMENT for another name, STRATA_E_DEVICE for one that the processor or this build lacks. */
enum strata_result st_kernels_choose(const char *name, struct st_kernels *out, struct strata_error *err);

/* Runs one command on one worker of a team; every worker of the team calls it with the same command, and the caller puts
 * a barrier between commands. */
void st_command_run(const struct st_kernels *k, const struct st_command *c, struct st_worker *w);

/* "gated_read" and so on. */
const char *st_op_name(enum st_op op);

#endif
