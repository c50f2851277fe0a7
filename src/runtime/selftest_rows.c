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
    /* y and weights hold the matrices one after the other */
    st_addr y = at[0], w = at[1];
    for (uint32_t i = 0; i < a.matrices; i++) {
        a.matrix[i].y = y;
        a.matrix[i].w = w;
        y += (uint64_t)a.total * a.matrix[i].ldy * 4;
        w += a.second; /* bytes of a matrix, or of all experts' */
    }
    a.second = a.join == ST_ROWS_JOIN_SWIGLU ? at[1] + a.second : 0;
    a.values = at[7];
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

struct shape {
    uint32_t mode, rows, n, tokens; /* rows: of the first matrix, the largest */
    uint32_t count, join;           /* count: matrices of the launch, streams of the mean */
};

/* One case; s says what. */
static enum strata_result test_case(struct st_test_run *run, int type, enum st_act act, const struct shape *s, bool by_entry,
                                    struct strata_error *err)
{
    static const char *const modes[] = {"dense", "window", "prompt"}, *const joins[] = {"", ", joined", ", mean of streams"};
    const struct st_type_info *info = st_type_info(type);
    const bool dense = s->mode == ST_ROWS_DENSE;
    const uint32_t outputs = dense ? s->tokens : s->tokens * USED, inputs = by_entry ? outputs : s->tokens;
    const uint32_t copies = s->join == ST_ROWS_JOIN_MEAN ? s->count : dense ? 1 : EXPERTS;
    const size_t exact = (size_t)copies * s->rows * (s->n / info->block_elems) * info->block_bytes;
    const size_t bytes = (exact + ALIGN - 1) / ALIGN * ALIGN;
    const uint32_t matrices = s->join == ST_ROWS_JOIN_NONE ? s->count : 1;
    const uint32_t places = s->join == ST_ROWS_JOIN_SWIGLU ? 2 : matrices;
    struct st_gpu_rows a = {.type = type,
                            .act = act,
                            .matrices = matrices,
                            .join = s->join,
                            .second = bytes,
                            .streams = s->join == ST_ROWS_JOIN_SWIGLU ? 1 : s->count,
                            .n = s->n,
                            .stride = act == ST_ACT_F32 ? s->n * 4 : st_gpu_act_stride(act, s->n),
                            .mode = s->mode,
                            .total = outputs,
                            .most = s->tokens,
                            .experts = EXPERTS,
                            .used = dense || by_entry ? 0 : USED,
                            .scales = s->join == ST_ROWS_JOIN_NONE && st_test_below(run, 2),
                            .scale_each = !dense && st_test_below(run, 2),
                            .units = 1 + st_test_below(run, 3)};
    size_t y_bytes = 0;
    for (uint32_t i = 0; i < matrices; i++) {
        a.matrix[i].rows = i == 0 ? s->rows : 1 + st_test_below(run, s->rows);
        a.matrix[i].ldy = a.matrix[i].rows + st_test_below(run, 5);
        a.matrix[i].finish = s->join == ST_ROWS_JOIN_NONE ? st_test_below(run, 3) : 0;
        y_bytes += (size_t)outputs * a.matrix[i].ldy * 4;
    }
    snprintf(run->shape, sizeof run->shape, "%s, %s of %s: %u rows times %u x [%u x %u], %u units%s%s", modes[s->mode],
             act == ST_ACT_F32 ? "FP32 activations" : "integer activations", info->name, outputs, s->count, s->rows, s->n,
             a.units, a.scales ? ", scaled" : "", joins[s->join]);
    uint8_t *y, *w, *x, *first, *entry, *expert, *scales, *values;
    enum strata_result r = st_test_add(run, y_bytes, &y, err);
    if (!r)
        r = st_test_add(run, bytes * places, &w, err);
    if (!r)
        r = st_test_add(run, (size_t)inputs * a.stride, &x, err);
    if (!r)
        r = st_test_add(run, (EXPERTS + 1) * 4, &first, err);
    if (!r)
        r = st_test_add(run, (size_t)USED * s->tokens * 4, &entry, err);
    if (!r)
        r = st_test_add(run, (size_t)USED * s->tokens * 4, &expert, err);
    if (!r)
        r = st_test_add(run, EXPERTS * 4, &scales, err);
    if (!r)
        r = st_test_add(run, s->join == ST_ROWS_JOIN_MEAN ? (size_t)outputs * s->count * s->rows * 4 : 4, &values, err);
    if (!r) {
        for (uint32_t i = 0; i < places; i++)
            st_test_weights(run, type, w + i * bytes, exact);
        random_routing(run, s->tokens, (int32_t *)(void *)first, (int32_t *)(void *)entry, (int32_t *)(void *)expert);
        st_test_floats(run, (float *)(void *)scales, EXPERTS);
        st_test_floats(run, (float *)(void *)values, run->buffer[7].size / 4);
        r = st_test_rows(run, act, x, inputs, s->n, err);
    }
    return st_test_finish(run, r, make_rows, &a, err);
}

static const struct shape shapes[] = {{ST_ROWS_DENSE, 13, 512, 3, 2, ST_ROWS_JOIN_NONE},
                                      {ST_ROWS_ENTRY, 5, 256, 8, 1, ST_ROWS_JOIN_SWIGLU},
                                      {ST_ROWS_DENSE, 6, 320, 2, 4, ST_ROWS_JOIN_MEAN},
                                      {ST_ROWS_DENSE, 37, 2560, 1, 1, ST_ROWS_JOIN_NONE},
                                      {ST_ROWS_EXPERT, 3, 768, 11, 1, ST_ROWS_JOIN_NONE},
                                      {ST_ROWS_DENSE, 2, 6144, 8, 1, ST_ROWS_JOIN_SWIGLU},
                                      {ST_ROWS_ENTRY, 20, 640, 1, 1, ST_ROWS_JOIN_NONE},
                                      {ST_ROWS_DENSE, 4, 20992, 2, 4, ST_ROWS_JOIN_NONE},
                                      {ST_ROWS_DENSE, 9, 320, 17, 3, ST_ROWS_JOIN_MEAN},
                                      {ST_ROWS_EXPERT, 6, 64, 40, 1, ST_ROWS_JOIN_SWIGLU},
                                      {ST_ROWS_DENSE, 300, 256, 1, 3, ST_ROWS_JOIN_NONE},
                                      {ST_ROWS_DENSE, 1, 96, 5, 1, ST_ROWS_JOIN_NONE},
                                      {ST_ROWS_DENSE, 5, 256, 8, 8, ST_ROWS_JOIN_MEAN},
                                      {ST_ROWS_DENSE, 3, 10240, 8, 1, ST_ROWS_JOIN_NONE}};

enum strata_result st_test_few_rows(struct st_test_run *run, struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    const size_t count = run->options->quick ? 3 : sizeof shapes / sizeof *shapes;
    for (int type = 0; type < ST_TYPE_COUNT && !r; type++) {
        const struct st_type_info *info = st_type_info(type);
        for (size_t i = 0; info && st_test_type(run, type) && i < 2 * count && !r; i++) {
            const struct shape *s = &shapes[i / 2];
            enum st_act act = i % 2 ? info->act : ST_ACT_F32;
            if (s->n % info->block_elems == 0 && (i % 2 == 0 || info->act != ST_ACT_F32))
                r = test_case(run, type, act, s, s->mode != ST_ROWS_DENSE && i % 4 < 2, err);
        }
    }
    return r;
}
