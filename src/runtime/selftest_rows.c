/* Self-test of the products of few rows (gpu/rows.h): every type with its own and with FP32 activations, dense, of a window's
 * experts and of a prompt's. */
#include "runtime/selftest_run.h"

#include <stdio.h>
#include <string.h>

#include "kernel/gpu_norm.h"
#include "kernel/gpu_rows.h"

enum { EXPERTS = 4, USED = 2, ALIGN = 16 };

static enum strata_result make_rows(const void *params, const st_addr *at, struct st_gpu_launch *out,
                                    struct strata_error *err)
{
    struct st_gpu_rows a = *(const struct st_gpu_rows *)params;
    a.y = at[0];
    a.w = at[1];
    a.x = at[2];
    a.first = at[3];
    a.entry = at[4];
    a.expert = at[5];
    a.scales = a.scales ? at[6] : 0;
    return st_gpu_rows(&a, out, err);
}

/* A routing of `tokens` tokens, each with USED different ones of EXPERTS experts; at least one expert has nothing to do. */
static void random_routing(struct st_test_run *run, uint32_t tokens, int32_t *first, int32_t *entry, int32_t *expert)
{
    int32_t at = 0;
    for (uint32_t t = 0; t < tokens; t++) {
        expert[USED * t] = (int32_t)st_test_below(run, EXPERTS - 1);
        expert[USED * t + 1] = (expert[USED * t] + 1 + (int32_t)st_test_below(run, EXPERTS - 2)) % (EXPERTS - 1);
    }
    for (int32_t e = 0; e < EXPERTS; e++) {
        first[e] = at;
        for (int32_t i = 0; i < (int32_t)(USED * tokens); i++)
            if (expert[i] == e)
                entry[at++] = i;
    }
    first[EXPERTS] = at;
}

static enum strata_result test_case(struct st_test_run *run, int type, enum st_act act, uint32_t mode, uint32_t rows,
                                    uint32_t n, uint32_t tokens, bool by_entry, struct strata_error *err)
{
    static const char *const modes[] = {"dense", "window", "prompt"};
    const struct st_type_info *info = st_type_info(type);
    const uint32_t matrices = mode == ST_ROWS_DENSE ? 1 : EXPERTS, outputs = mode == ST_ROWS_DENSE ? tokens : tokens * USED;
    const uint32_t inputs = by_entry ? outputs : tokens;
    const size_t bytes = (size_t)matrices * rows * (n / info->block_elems) * info->block_bytes;
    struct st_gpu_rows a = {.type = type,
                            .act = act,
                            .n = n,
                            .rows = rows,
                            .stride = act == ST_ACT_F32 ? n * 4 : st_gpu_act_stride(act, n),
                            .ldy = rows + st_test_below(run, 5),
                            .mode = mode,
                            .total = outputs,
                            .most = tokens,
                            .experts = EXPERTS,
                            .used = mode == ST_ROWS_DENSE || by_entry ? 0 : USED,
                            .scales = st_test_below(run, 2),
                            .scale_each = mode != ST_ROWS_DENSE && st_test_below(run, 2),
                            .units = 1 + st_test_below(run, 3)};
    snprintf(run->shape, sizeof run->shape, "%s, %s of %s: %u rows times [%u x %u], %u units%s", modes[mode],
             act == ST_ACT_F32 ? "FP32 activations" : "integer activations", info->name, outputs, rows, n, a.units,
             a.scales ? ", scaled" : "");
    uint8_t *y, *w, *x, *first, *entry, *expert, *scales;
    enum strata_result r = st_test_add(run, (size_t)outputs * a.ldy * 4, &y, err);
    if (!r)
        r = st_test_add(run, (bytes + ALIGN - 1) / ALIGN * ALIGN, &w, err);
    if (!r)
        r = st_test_add(run, (size_t)inputs * a.stride, &x, err);
    if (!r)
        r = st_test_add(run, (EXPERTS + 1) * 4, &first, err);
    if (!r)
        r = st_test_add(run, (size_t)USED * tokens * 4, &entry, err);
    if (!r)
        r = st_test_add(run, (size_t)USED * tokens * 4, &expert, err);
    if (!r)
        r = st_test_add(run, EXPERTS * 4, &scales, err);
    if (!r) {
        st_test_weights(run, type, w, bytes);
        random_routing(run, tokens, (int32_t *)(void *)first, (int32_t *)(void *)entry, (int32_t *)(void *)expert);
        st_test_floats(run, (float *)(void *)scales, EXPERTS);
        r = st_test_rows(run, act, x, inputs, n, err);
    }
    return st_test_finish(run, r, make_rows, &a, err);
}

static const struct shape {
    uint32_t mode, rows, n, tokens;
} shapes[] = {{ST_ROWS_DENSE, 13, 512, 3},   {ST_ROWS_ENTRY, 5, 256, 8},   {ST_ROWS_DENSE, 37, 2560, 1},
              {ST_ROWS_EXPERT, 3, 768, 11},  {ST_ROWS_DENSE, 2, 6144, 8},  {ST_ROWS_ENTRY, 20, 640, 1},
              {ST_ROWS_DENSE, 4, 20992, 2},  {ST_ROWS_DENSE, 9, 320, 17},  {ST_ROWS_EXPERT, 6, 64, 40},
              {ST_ROWS_DENSE, 300, 256, 1},  {ST_ROWS_DENSE, 1, 96, 5},    {ST_ROWS_DENSE, 3, 10240, 8}};

enum strata_result st_test_few_rows(struct st_test_run *run, struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    const size_t count = run->options->quick ? 2 : sizeof shapes / sizeof *shapes;
    for (int type = 0; type < ST_TYPE_COUNT && !r; type++) {
        const struct st_type_info *info = st_type_info(type);
        for (size_t i = 0; info && i < 2 * count && !r; i++) {
            const struct shape *s = &shapes[i / 2];
            enum st_act act = i % 2 ? info->act : ST_ACT_F32;
            if (s->n % info->block_elems == 0 && (i % 2 == 0 || info->act != ST_ACT_F32))
                r = test_case(run, type, act, s->mode, s->rows, s->n, s->tokens, s->mode != ST_ROWS_DENSE && i % 4 < 2, err);
        }
    }
    return r;
}
