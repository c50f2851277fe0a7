/* Self-test of the gated delta network: windows, held and committed rows, and prompts, whose blocks are compared with the C form
 * token by token. */
#include <math.h>
#include <stdio.h>

#include "runtime/selftest_job.h"

/* docs/numerics.md, section 9. */
#define BOUND_WINDOW 2e-5f
#define BOUND_PROMPT 5e-5f

struct gdn {
    uint32_t keys, values, dk, dv, taps, channels;
    int u, z, b, a, conv, ssm_a, dt_bias, gamma, conv_state, state, kept, c, o;
    struct st_job_after after;
};

static void build_gdn(struct st_job *j, const void *family, struct st_command *c)
{
    struct gdn *g = (struct gdn *)(uintptr_t)family;
    st_job_build_after(j, &g->after, st_job_at(j, g->o), c + 1);
    *c = (struct st_command){.op = ST_OP_gdn,
                             .u.gdn = {.rows = st_job_rows(j),
                                       .u = st_job_at(j, g->u),
                                       .z = st_job_at(j, g->z),
                                       .b = st_job_at(j, g->b),
                                       .a = st_job_at(j, g->a),
                                       .conv = st_job_at(j, g->conv),
                                       .ssm_a = st_job_at(j, g->ssm_a),
                                       .dt_bias = st_job_at(j, g->dt_bias),
                                       .gamma = st_job_at(j, g->gamma),
                                       .conv_state = st_job_at(j, g->conv_state),
                                       .state = st_job_at(j, g->state),
                                       .kept = j->rows.mode == ST_ROWS_ADVANCE ? NULL : st_job_at(j, g->kept),
                                       .c = st_job_at(j, g->c),
                                       .o = st_job_at(j, g->o),
                                       .key_heads = g->keys,
                                       .value_heads = g->values,
                                       .key_dim = g->dk,
                                       .value_dim = g->dv,
                                       .taps = g->taps,
                                       .channels = g->channels,
                                       .eps = 1e-6f}};
}

/* The recurrence in C over pieces of up to ST_GDN_STEP rows, which it takes one by one. */
static void step_by_step(const struct st_kernels *table, const struct st_command *c, struct st_worker *alone)
{
    const struct st_gdn *all = &c->u.gdn;
    const struct st_rows *rows = all->rows;
    size_t inner = (size_t)all->value_heads * all->value_dim;
    for (int s = 0; s < rows->n_spans; s++)
        for (int32_t r = rows->span[s], count; r < rows->span[s + 1]; r += count) {
            count = rows->span[s + 1] - r < ST_GDN_STEP ? rows->span[s + 1] - r : ST_GDN_STEP;
            int32_t span[] = {0, count};
            struct st_rows piece = {
                .n = count, .n_spans = 1, .span = span, .slot = rows->slot + r, .pos = rows->pos + r, .mode = rows->mode};
            struct st_command command = *c;
            struct st_gdn *a = &command.u.gdn;
            a->rows = &piece;
            a->u += (size_t)r * a->channels;
            a->c += (size_t)r * a->channels;
            a->z += (size_t)r * inner;
            a->o += (size_t)r * inner;
            a->b += (size_t)r * a->value_heads;
            a->a += (size_t)r * a->value_heads;
            st_command_run(table, &command, alone);
        }
}

static enum strata_result test_delta(struct st_test_run *run, uint32_t rows, uint32_t spans, uint32_t keys, uint32_t values,
                                     uint32_t dim, enum st_rows_mode mode, struct strata_error *err)
{
    struct st_job j;
    struct gdn g = {.keys = keys, .values = values, .dk = dim, .dv = dim, .taps = 4};
    size_t inner = (size_t)values * dim;
    float bound = rows <= ST_GDN_STEP ? BOUND_WINDOW : BOUND_PROMPT;
    g.channels = 2 * keys * dim + values * dim;
    snprintf(run->shape, sizeof run->shape, "gdn: %u rows in %u sequences, %u heads of %u x %u, %u key heads%s", rows, spans,
             values, dim, dim, keys, st_job_mode_names[mode]);
    st_job_start(&j, run, err);
    j.reference = mode == ST_ROWS_ADVANCE ? step_by_step : NULL;
    st_job_make_rows(&j, rows, spans, 30);
    j.rows.mode = mode;
    if (mode != ST_ROWS_ADVANCE)
        g.kept = st_job_take_floats(&j, st_gdn_kept_floats(g.channels, values), ST_JOB_EXACT, 0);
    g.u = st_job_floats(&j, (size_t)rows * g.channels);
    g.z = st_job_floats(&j, rows * inner);
    g.b = st_job_floats(&j, (size_t)rows * values);
    g.a = st_job_floats(&j, (size_t)rows * values);
    g.conv = st_job_floats(&j, (size_t)g.taps * g.channels);
    g.ssm_a = st_job_floats(&j, values);
    g.dt_bias = st_job_floats(&j, values);
    g.gamma = st_job_floats(&j, dim);
    g.conv_state = st_job_take_floats(&j, (size_t)j.slots * (g.taps - 1) * g.channels, ST_JOB_EXACT, 0);
    g.state = st_job_take_floats(&j, j.slots * inner * dim, ST_JOB_CLOSE, bound);
    g.c = st_job_take(&j, (size_t)rows * g.channels * 4, ST_JOB_FREE, 0);
    /* nobody reads the outputs of a commit */
    g.o = st_job_take(&j, rows * inner * 4, mode == ST_ROWS_COMMIT ? ST_JOB_FREE : ST_JOB_CLOSE, bound);
    if (mode != ST_ROWS_COMMIT && st_test_below(run, 2))
        st_job_take_after(&j, &g.after, (uint32_t)inner);
    for (uint32_t i = 0; i < values && j.r == STRATA_OK; i++) /* -exp of something: not positive */
        ((float *)st_job_input(&j, g.ssm_a))[i] = -fabsf(((float *)st_job_input(&j, g.ssm_a))[i]);
    return st_job_finish(&j, build_gdn, &g, NULL, (size_t)(3 * dim) * ST_GDN_CHUNK * 4);
}

enum strata_result st_test_gdn(struct st_test_run *run, struct strata_error *err)
{
    /* rows, sequences, key heads, value heads, dimension */
    static const uint32_t shapes[][5] = {{5, 2, 2, 6, 32},    {65, 3, 1, 2, 32},   {9, 1, 1, 3, 128},  {1, 1, 2, 2, 128},
                                         {2, 2, 1, 1, 32},    {8, 1, 2, 4, 128},   {8, 8, 2, 4, 32},   {9, 1, 1, 3, 64},
                                         {63, 1, 1, 2, 128},  {64, 2, 2, 2, 64},   {65, 1, 2, 6, 32},  {130, 3, 2, 2, 64},
                                         {40, 5, 1, 2, 128},  {200, 1, 1, 1, 128}, {200, 17, 2, 4, 64}, {17, 17, 1, 2, 32}};
    enum strata_result r = STRATA_OK;
    for (size_t i = 0; i < (run->options->quick ? 3 : sizeof shapes / sizeof *shapes) && r == STRATA_OK; i++)
        r = test_delta(run, shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3], shapes[i][4], ST_ROWS_ADVANCE, err);
    for (uint32_t n = 1; n <= ST_HELD_ROWS && r == STRATA_OK; n += run->options->quick ? ST_HELD_ROWS : 3) {
        r = test_delta(run, n, 1, 2, 6, 32, ST_ROWS_HOLD, err);
        if (r == STRATA_OK)
            r = test_delta(run, n, 1, 2, 4, 128, ST_ROWS_COMMIT, err);
    }
    return r;
}
