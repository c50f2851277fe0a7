/* Parity of the families that are not products: residual and small steps, n-gram memory, attention, choice of experts. The gated
 * delta network has selftest_gdn.c. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/exact_math.h"
#include "kernel/gpu_norm.h"
#include "kernel/kv.h"
#include "kernel/qsa_scratch.h"
#include "runtime/selftest_job.h"

/* The bounds of the families whose sums have another order on a GPU than in C. An element x of a buffer may be off by
 * bound * (|x| + root mean square of the buffer). Everything else is compared bit by bit. */
#define BOUND_NORM 2e-6f    /* norms and rotations */
#define BOUND_SOFTMAX 1e-4f /* attention on the stored keys and values; more where the rounding of keys may differ: */
static const float bound_attention[ST_KV_COUNT] = {BOUND_SOFTMAX, 3e-3f, 2e-2f, 1e-1f};
#define BOUND_FLOAT 1e-4f   /* gated reads on float weights */

/* ---- residual and small steps ---- */

static void take_embeddings(struct st_job *j, uint32_t hidden)
{
    j->embd = st_job_floats(j, (size_t)j->rows.n * hidden);
    j->embd_row = st_job_take(j, (size_t)j->rows.n, ST_JOB_EXACT, 0);
    if (j->r == STRATA_OK)
        memset(st_job_input(j, j->embd_row), 1, (size_t)j->rows.n);
}

struct steps {
    enum st_op op;
    uint32_t hidden, streams;
    bool per_stream;
    int a, b, c, d; /* buffers, in the order of build_steps */
    struct st_weight table;
};

static void build_steps(struct st_job *j, const void *family, struct st_command *c)
{
    const struct steps *s = family;
    const struct st_rows *rows = st_job_rows(j);
    *c = (struct st_command){.op = s->op};
    if (s->op == ST_OP_embed || s->op == ST_OP_draft_input) {
        j->rows.embd = st_job_at(j, j->embd);
        j->rows.embd_row = st_job_at(j, j->embd_row);
    }
    switch (s->op) {
    case ST_OP_embed:
        c->u.embed = (struct st_embed){.rows = rows, .table = &s->table, .r = st_job_at(j, s->a), .streams = s->streams};
        break;
    case ST_OP_draft_input:
        c->u.draft_input = (struct st_draft_input){.rows = rows,
                                                   .table = &s->table,
                                                   .hidden_in = st_job_at(j, s->b),
                                                   .enorm = st_job_at(j, s->c),
                                                   .hnorm = st_job_at(j, s->d),
                                                   .x = st_job_at(j, s->a),
                                                   .streams = s->streams,
                                                   .hidden = s->hidden,
                                                   .per_stream = s->per_stream,
                                                   .eps = 1e-6f};
        break;
    case ST_OP_gated_write:
        c->u.gated_write = (struct st_gated_write){.n = &rows->n,
                                                   .r = st_job_at(j, s->a),
                                                   .inj = st_job_at(j, s->b),
                                                   .o = st_job_at(j, s->c),
                                                   .streams = s->streams,
                                                   .hidden = s->hidden};
        break;
    case ST_OP_select:
        c->u.select = (struct st_select){.rows = rows, .to = st_job_at(j, s->a), .from = st_job_at(j, s->b), .width = s->hidden};
        break;
    case ST_OP_add:
        c->u.add = (struct st_add){.n = &rows->n, .r = st_job_at(j, s->a), .o = st_job_at(j, s->b), .width = s->hidden};
        break;
    case ST_OP_swiglu:
        c->u.swiglu = (struct st_swiglu){.n = &rows->n, .gate = st_job_at(j, s->a), .up = st_job_at(j, s->b), .width = s->hidden};
        break;
    default:
        c->u.norm = (struct st_norm){
            .n = &rows->n,
            .x = st_job_at(j, s->b),
            .gamma = st_job_at(j, s->c),
            .y = st_job_at(j, s->a),
            .width = s->hidden,
            .eps = 1e-6f};
        break;
    }
}

static enum strata_result test_step(struct st_test_run *run, enum st_op op, uint32_t rows, uint32_t hidden, uint32_t streams,
                                    bool per_stream, struct strata_error *err)
{
    struct st_job j;
    struct steps s = {.op = op, .hidden = hidden, .streams = streams, .per_stream = per_stream, .table = {.cols = hidden}};
    size_t narrow = (size_t)rows * hidden, wide = narrow * streams;
    snprintf(run->shape, sizeof run->shape, "%s: %u rows of %u x %u", st_op_name(op), rows, streams, hidden);
    st_job_start(&j, run, err);
    st_job_make_rows(&j, rows, 1 + st_test_below(run, rows), 0);
    switch (op) {
    case ST_OP_embed:
        take_embeddings(&j, hidden);
        s.a = st_job_take(&j, wide * 4, ST_JOB_EXACT, 0);
        break;
    case ST_OP_draft_input:
        take_embeddings(&j, hidden);
        s.a = st_job_take(&j, wide * 8, ST_JOB_CLOSE, BOUND_NORM);
        s.b = st_job_floats(&j, wide);
        s.c = st_job_floats(&j, hidden);
        s.d = st_job_floats(&j, (size_t)hidden * streams);
        break;
    case ST_OP_gated_write:
        s.a = st_job_take_floats(&j, wide, ST_JOB_EXACT, 0);
        s.b = st_job_floats(&j, (size_t)rows * streams);
        s.c = st_job_floats(&j, narrow);
        break;
    case ST_OP_norm:
        s.a = st_job_take(&j, narrow * 4, ST_JOB_CLOSE, BOUND_NORM);
        s.b = st_job_floats(&j, narrow);
        s.c = st_job_floats(&j, hidden);
        break;
    default:
        s.a = st_job_take_floats(&j, narrow, ST_JOB_EXACT, 0);
        s.b = st_job_floats(&j, narrow);
        break;
    }
    return st_job_finish(&j, build_steps, &s, NULL, 0);
}

/* ---- gated read ---- */

struct gated {
    uint32_t hidden, streams, rank;
    int r, gamma, down, up, inject, m, inj, x, lo, o, q8, q8k;
    struct st_weight w[3];
    struct st_act_buffer acts;
};

static void build_gated(struct st_job *j, const void *family, struct st_command *c)
{
    struct gated *g = (struct gated *)(uintptr_t)family;
    const int weights[3] = {g->down, g->up, g->inject};
    for (int i = 0; i < 3; i++)
        g->w[i].data = st_job_at(j, weights[i]);
    g->acts.memory[ST_ACT_Q8] = st_job_at(j, g->q8);
    g->acts.memory[ST_ACT_Q8K] = st_job_at(j, g->q8k);
    if (j->commands == 2)
        *c++ = (struct st_command){.op = ST_OP_gated_write,
                                   .u.gated_write = {.n = &j->rows.n,
                                                     .r = st_job_at(j, g->r),
                                                     .inj = st_job_at(j, g->inj),
                                                     .o = st_job_at(j, g->o),
                                                     .streams = g->streams,
                                                     .hidden = g->hidden}};
    *c = (struct st_command){.op = ST_OP_gated_read,
                             .u.gated_read = {.n = &j->rows.n,
                                              .r = st_job_at(j, g->r),
                                              .gamma = st_job_at(j, g->gamma),
                                              .down = &g->w[0],
                                              .up = &g->w[1],
                                              .inject = &g->w[2],
                                              .m = st_job_at(j, g->m),
                                              .inj = st_job_at(j, g->inj),
                                              .streams = g->streams,
                                              .hidden = g->hidden,
                                              .rank = g->rank,
                                              .eps = 1e-6f,
                                              .x = st_job_at(j, g->x),
                                              .lo = st_job_at(j, g->lo),
                                              .acts = &g->acts}};
}

static enum strata_result test_gated(struct st_test_run *run, int type, bool write, uint32_t rows, uint32_t hidden, uint32_t rank,
                                     struct strata_error *err)
{
    struct st_job j;
    struct gated g = {.hidden = hidden, .streams = 4, .rank = rank};
    uint32_t wide = g.streams * hidden;
    float bound = type == ST_TYPE_F32 ? BOUND_FLOAT : ST_JOB_BOUND_INTEGER;
    snprintf(run->shape, sizeof run->shape, "%sgated_read: %u rows of 4 x %u, rank %u, %s weights", write ? "gated_write, " : "",
             rows, hidden, rank, st_type_info(type)->name);
    st_job_start(&j, run, err);
    j.rows.n = (int32_t)rows;
    j.commands = write ? 2 : 1;
    g.r = st_job_floats(&j, (size_t)rows * wide);
    g.o = st_job_floats(&j, (size_t)rows * hidden);
    g.gamma = st_job_floats(&j, wide);
    g.down = st_job_take_weights(&j, &g.w[0], type, rank, wide);
    g.up = st_job_take_weights(&j, &g.w[1], type, wide, rank);
    g.inject = st_job_take_weights(&j, &g.w[2], ST_TYPE_F32, g.streams, wide);
    g.m = st_job_take(&j, (size_t)rows * hidden * 4, ST_JOB_CLOSE, bound);
    g.inj = st_job_take_floats(&j, (size_t)rows * g.streams, ST_JOB_CLOSE, BOUND_FLOAT);
    g.x = st_job_take(&j, (size_t)rows * wide * 4, ST_JOB_FREE, 0);
    g.lo = st_job_take(&j, (size_t)rows * rank * 4, ST_JOB_FREE, 0);
    uint32_t padded = (wide + 255) / 256 * 256;
    g.acts = (struct st_act_buffer){.cols = wide};
    g.acts.stride[ST_ACT_Q8] = st_job_act_bytes(ST_ACT_Q8, padded);
    g.acts.stride[ST_ACT_Q8K] = st_job_act_bytes(ST_ACT_Q8K, padded);
    g.q8 = st_job_take(&j, rows * g.acts.stride[ST_ACT_Q8], ST_JOB_FREE, 0);
    g.q8k = st_job_take(&j, rows * g.acts.stride[ST_ACT_Q8K], ST_JOB_FREE, 0);
    return st_job_finish(&j, build_gated, &g, NULL, 0);
}

/* ---- small kernels of the products ---- */

/* Runs one launch; want holds what must come out. */
static enum strata_result finish_launch(struct st_job *j, struct st_gpu_launch *l)
{
    struct st_test_run *run = j->run;
    if (j->r == STRATA_OK)
        j->r = st_test_put(run, j->err);
    if (j->r == STRATA_OK)
        j->r = st_launch(run->dev, run->dev->compute, l->kernel, l->grid[0], l->grid[1], l->grid[2], l->args, run->shape, j->err);
    if (j->r == STRATA_OK)
        j->r = st_test_get(run, j->err);
    if (j->r == STRATA_OK) {
        for (int i = 0; i < run->buffers; i++)
            if (!st_test_guards(run, i))
                st_test_exact(run, i);
        st_test_report(run);
    }
    st_test_drop(run);
    return j->r;
}

/* The expected contents of all buffers, before those of outputs are filled in. */
static void copy_inputs(struct st_job *j)
{
    for (int i = 0; i < j->run->buffers && j->r == STRATA_OK; i++)
        memcpy(j->run->buffer[i].want, j->run->buffer[i].input, j->run->buffer[i].size);
}

static st_addr device_at(const struct st_job *j, int buffer)
{
    return j->run->buffer[buffer].device;
}

static float *want(const struct st_job *j, int buffer)
{
    return (float *)(void *)j->run->buffer[buffer].want;
}

static uint32_t groups64(uint32_t n)
{
    return (n + 63) / 64;
}

static enum strata_result test_silu_mul(struct st_test_run *run, uint32_t rows, uint32_t width, struct strata_error *err)
{
    struct st_job j;
    uint32_t ld = width + st_test_below(run, 9), ldh = width + st_test_below(run, 9);
    snprintf(run->shape, sizeof run->shape, "st_silu_mul: %u rows of %u", rows, width);
    st_job_start(&j, run, err);
    int h = st_job_take(&j, (size_t)rows * ldh * 4, ST_JOB_EXACT, 0);
    int g = st_job_floats(&j, (size_t)rows * ld), u = st_job_floats(&j, (size_t)rows * ld);
    copy_inputs(&j);
    for (uint32_t i = 0; i < rows * width && j.r == STRATA_OK; i++) {
        uint32_t from = i / width * ld + i % width;
        want(&j, h)[i / width * ldh + i % width] = st_siluf(want(&j, g)[from]) * want(&j, u)[from];
    }
    struct st_gpu_launch l = {.kernel = ST_GPU_SILU_MUL, .grid = {groups64(width), rows, 1}};
    if (j.r == STRATA_OK) {
        l.args[0].p = device_at(&j, h);
        l.args[1].p = device_at(&j, g);
        l.args[2].p = device_at(&j, u);
        l.args[3].i = width;
        l.args[4].i = ldh;
        l.args[5].i = ld;
    }
    return finish_launch(&j, &l);
}

static enum strata_result test_combine(struct st_test_run *run, uint32_t rows, uint32_t hidden, uint32_t used,
                                       struct strata_error *err)
{
    struct st_job j;
    uint32_t routed = rows * used;
    snprintf(run->shape, sizeof run->shape, "st_combine_experts: %u rows of %u, %u experts each", rows, hidden, used);
    st_job_start(&j, run, err);
    int y = st_job_take(&j, (size_t)rows * hidden * 4, ST_JOB_EXACT, 0), o = st_job_floats(&j, (size_t)(routed + rows) * hidden);
    int weight = st_job_floats(&j, routed), where = st_job_take(&j, routed * 4, ST_JOB_EXACT, 0);
    int shared = st_job_floats(&j, rows);
    if (j.r == STRATA_OK) {
        int32_t *place = st_job_input(&j, where);
        for (uint32_t i = 0; i < routed; i++)
            place[i] = (int32_t)i;
        for (uint32_t i = routed; i > 1; i--) {
            uint32_t k = st_test_below(run, i);
            int32_t t = place[i - 1];
            place[i - 1] = place[k];
            place[k] = t;
        }
    }
    copy_inputs(&j);
    for (uint32_t i = 0; i < rows * hidden && j.r == STRATA_OK; i++) {
        uint32_t row = i / hidden, e = i % hidden;
        const int32_t *place = (const int32_t *)(const void *)want(&j, where);
        float sum = 0;
        for (uint32_t p = 0; p < used; p++)
            sum = fmaf(want(&j, weight)[row * used + p], want(&j, o)[(size_t)place[row * used + p] * hidden + e], sum);
        want(&j, y)[i] = fmaf(want(&j, shared)[row], want(&j, o)[(size_t)(routed + row) * hidden + e], sum);
    }
    struct st_gpu_launch l = {.kernel = ST_GPU_COMBINE_EXPERTS, .grid = {groups64(hidden), rows, 1}};
    if (j.r == STRATA_OK) {
        l.args[0].p = device_at(&j, y);
        l.args[1].p = device_at(&j, o);
        l.args[2].p = device_at(&j, weight);
        l.args[3].p = device_at(&j, where);
        l.args[4].p = device_at(&j, shared);
        l.args[5].i = hidden;
        l.args[6].i = used;
        l.args[7].i = routed;
    }
    return finish_launch(&j, &l);
}

static enum strata_result test_gate(struct st_test_run *run, uint32_t count, uint32_t streams, uint32_t kind,
                                    struct strata_error *err)
{
    struct st_job j;
    snprintf(run->shape, sizeof run->shape, "st_stream_gate: %u of %u streams, %s", count, streams, kind ? "sigmoid" : "silu");
    st_job_start(&j, run, err);
    int v = st_job_floats(&j, count);
    copy_inputs(&j);
    for (uint32_t i = 0; i < count && j.r == STRATA_OK; i++) {
        float x = want(&j, v)[i] * (1.0f / (float)streams);
        want(&j, v)[i] = kind ? 2.0f * st_sigmoidf(x) : st_siluf(x);
    }
    struct st_gpu_launch l = {.kernel = ST_GPU_STREAM_GATE, .grid = {groups64(count), 1, 1}};
    if (j.r == STRATA_OK)
        l.args[0].p = device_at(&j, v);
    l.args[1].i = count;
    l.args[2].i = streams;
    l.args[3].i = kind;
    return finish_launch(&j, &l);
}

static enum strata_result test_mean(struct st_test_run *run, uint32_t rows, uint32_t hidden, uint32_t streams,
                                    struct strata_error *err)
{
    struct st_job j;
    size_t wide = (size_t)rows * hidden * streams;
    snprintf(run->shape, sizeof run->shape, "st_stream_mean: %u rows of %u x %u", rows, streams, hidden);
    st_job_start(&j, run, err);
    int m = st_job_take(&j, (size_t)rows * hidden * 4, ST_JOB_EXACT, 0);
    int gate = st_job_floats(&j, wide), x = st_job_floats(&j, wide);
    copy_inputs(&j);
    for (uint32_t i = 0; i < rows * hidden && j.r == STRATA_OK; i++) {
        float sum = 0;
        for (uint32_t c = 0; c < streams; c++) {
            size_t from = ((size_t)(i / hidden) * streams + c) * hidden + i % hidden;
            sum = fmaf(st_sigmoidf(want(&j, gate)[from]), want(&j, x)[from], sum);
        }
        want(&j, m)[i] = sum / (float)streams;
    }
    struct st_gpu_launch l = {.kernel = ST_GPU_STREAM_MEAN, .grid = {groups64(hidden), rows, 1}};
    if (j.r == STRATA_OK) {
        l.args[0].p = device_at(&j, m);
        l.args[1].p = device_at(&j, gate);
        l.args[2].p = device_at(&j, x);
    }
    l.args[3].i = hidden;
    l.args[4].i = streams;
    return finish_launch(&j, &l);
}

enum strata_result st_test_steps(struct st_test_run *run, struct strata_error *err)
{
    static const enum st_op ops[] = {ST_OP_embed, ST_OP_gated_write, ST_OP_select,      ST_OP_add,
                                     ST_OP_swiglu, ST_OP_norm,       ST_OP_draft_input, ST_OP_draft_input};
    static const uint32_t shapes[][3] = {{3, 300, 4}, {1, 2560, 4}, {8, 257, 2}, {5, 64, 1}, {70, 100, 4}, {9, 1, 3}};
    enum strata_result r = STRATA_OK;
    for (size_t s = 0; s < (run->options->quick ? 1 : sizeof shapes / sizeof *shapes); s++) {
        uint32_t rows = shapes[s][0], hidden = shapes[s][1], streams = shapes[s][2];
        for (size_t i = 0; i < sizeof ops / sizeof *ops && r == STRATA_OK; i++)
            r = test_step(run, ops[i], rows, hidden, streams, i == sizeof ops / sizeof *ops - 1, err);
        if (r == STRATA_OK)
            r = test_silu_mul(run, rows, hidden, err);
        if (r == STRATA_OK)
            r = test_combine(run, rows, hidden, 1 + st_test_below(run, 10), err);
        for (uint32_t kind = 0; kind < 2 && r == STRATA_OK; kind++)
            r = test_gate(run, rows * hidden, streams, kind, err);
        if (r == STRATA_OK)
            r = test_mean(run, rows, hidden, streams, err);
    }
    static const int types[] = {ST_TYPE_F32, ST_TYPE_Q8_0, ST_TYPE_Q6_K};
    static const uint32_t reads[][3] = {{3, 256, 256}, {1, 2560, 256}, {8, 256, 512}, {20, 256, 256}};
    for (size_t s = 0; s < (run->options->quick ? 1 : sizeof reads / sizeof *reads); s++)
        for (int i = 0; i < 6 && r == STRATA_OK; i++)
            r = test_gated(run, types[i / 2], i % 2, reads[s][0], reads[s][1], reads[s][2], err);
    return r;
}

/* ---- n-gram memory ---- */

struct ngram {
    int type;
    uint32_t heads, width, hidden, streams, taps, dilation;
    size_t row_bytes;
    int data, index, e;
    int key, value, norm[3], conv, z, state, kept, r;
};

static void build_gather(struct st_job *j, const void *family, struct st_command *c)
{
    const struct ngram *g = family;
    j->rows.ngram = st_job_at(j, g->data);
    j->rows.ngram_index = st_job_at(j, g->index);
    *c = (struct st_command){.op = ST_OP_ngram_gather,
                             .u.ngram_gather = {.rows = st_job_rows(j),
                                                .type = g->type,
                                                .row_bytes = g->row_bytes,
                                                .heads = g->heads,
                                                .width = g->width,
                                                .e = st_job_at(j, g->e)}};
}

static enum strata_result test_gather(struct st_test_run *run, int type, uint32_t rows, uint32_t heads, uint32_t width,
                                      struct strata_error *err)
{
    const struct st_type_info *info = st_type_info(type);
    struct st_job j;
    struct ngram g = {.type = type, .heads = heads, .width = width};
    uint32_t fetched = rows * heads / 2 + 1;
    g.row_bytes = (size_t)width / info->block_elems * info->block_bytes;
    snprintf(run->shape, sizeof run->shape, "ngram_gather: %u rows of %u x %u, %s", rows, heads, width, info->name);
    st_job_start(&j, run, err);
    st_job_make_rows(&j, rows, 1, 0);
    g.data = st_job_take(&j, fetched * g.row_bytes, ST_JOB_EXACT, 0);
    g.index = st_job_take(&j, (size_t)rows * heads * 4, ST_JOB_EXACT, 0);
    g.e = st_job_take(&j, (size_t)rows * heads * width * 4, ST_JOB_EXACT, 0);
    if (j.r == STRATA_OK) {
        uint8_t *data = st_job_input(&j, g.data);
        uint32_t *index = st_job_input(&j, g.index);
        for (size_t i = 0; i < fetched * g.row_bytes; i++)
            data[i] = (uint8_t)(st_test_random(run) >> 40);
        /* No NaN, whose bits are not defined, and finite scales: the top bit of the exponent is cleared. */
        size_t step = type == ST_TYPE_F32 ? 4 : type == ST_TYPE_Q5_1 || info->block_elems == 1 ? 2 : info->block_bytes;
        for (size_t i = step == 4 ? 3 : 1; i < fetched * g.row_bytes; i += step)
            data[i] &= 0xbf;
        for (uint32_t i = 0; i < rows * heads; i++)
            index[i] = st_test_below(run, fetched);
    }
    return st_job_finish(&j, build_gather, &g, NULL, 0);
}

static void build_inject(struct st_job *j, const void *family, struct st_command *c)
{
    const struct ngram *g = family;
    *c = (struct st_command){.op = ST_OP_ngram_inject,
                             .u.ngram_inject = {.rows = st_job_rows(j),
                                                .key = st_job_at(j, g->key),
                                                .value = st_job_at(j, g->value),
                                                .norm_key = st_job_at(j, g->norm[0]),
                                                .norm_query = st_job_at(j, g->norm[1]),
                                                .norm_conv = st_job_at(j, g->norm[2]),
                                                .conv = st_job_at(j, g->conv),
                                                .z = st_job_at(j, g->z),
                                                .state = st_job_at(j, g->state),
                                                .kept = j->rows.mode == ST_ROWS_ADVANCE ? NULL : st_job_at(j, g->kept),
                                                .r = st_job_at(j, g->r),
                                                .streams = g->streams,
                                                .hidden = g->hidden,
                                                .taps = g->taps,
                                                .dilation = g->dilation,
                                                .eps = 1e-6f}};
}


static enum strata_result test_inject(struct st_test_run *run, uint32_t rows, uint32_t spans, uint32_t hidden,
                                      enum st_rows_mode mode, struct strata_error *err)
{
    struct st_job j;
    struct ngram g = {.hidden = hidden, .streams = 4, .taps = 4, .dilation = 3};
    size_t wide = (size_t)hidden * g.streams;
    snprintf(run->shape, sizeof run->shape, "ngram_inject: %u rows in %u sequences of 4 x %u%s", rows, spans, hidden,
             st_job_mode_names[mode]);
    st_job_start(&j, run, err);
    st_job_make_rows(&j, rows, spans, 40);
    j.rows.mode = mode;
    if (mode != ST_ROWS_ADVANCE)
        g.kept = st_job_take_floats(&j, ST_HELD_ROWS * wide, ST_JOB_CLOSE, BOUND_FLOAT);
    g.key = st_job_take_floats(&j, rows * wide, ST_JOB_FREE, 0);
    g.value = st_job_floats(&j, (size_t)rows * hidden);
    for (int i = 0; i < 3; i++)
        g.norm[i] = st_job_floats(&j, wide);
    g.conv = st_job_floats(&j, g.taps * wide);
    g.z = st_job_take(&j, rows * wide * 4, ST_JOB_FREE, 0);
    g.state = st_job_take_floats(&j, j.slots * (g.taps - 1) * g.dilation * wide, ST_JOB_CLOSE, BOUND_FLOAT);
    g.r = st_job_take_floats(&j, rows * wide, ST_JOB_CLOSE, BOUND_FLOAT);
    return st_job_finish(&j, build_inject, &g, NULL, 0);
}

enum strata_result st_test_ngram(struct st_test_run *run, struct strata_error *err)
{
    static const int types[] = {ST_TYPE_IQ4_NL, ST_TYPE_Q4_0, ST_TYPE_Q5_1, ST_TYPE_Q8_0, ST_TYPE_BF16, ST_TYPE_F16, ST_TYPE_F32};
    static const uint32_t shapes[][3] = {{5, 2, 72}, {1, 1, 2560}, {8, 3, 300}, {40, 4, 64}, {2, 2, 33}, {17, 17, 40}};
    enum strata_result r = STRATA_OK;
    for (size_t i = 0; i < (run->options->quick ? 1 : sizeof types / sizeof *types) && r == STRATA_OK; i++) {
        r = test_gather(run, types[i], 3, 16, 160, err);
        if (r == STRATA_OK && !run->options->quick)
            r = test_gather(run, types[i], 9, 6, 32, err);
    }
    for (size_t i = 0; i < (run->options->quick ? 1 : sizeof shapes / sizeof *shapes) && r == STRATA_OK; i++)
        r = test_inject(run, shapes[i][0], shapes[i][1], shapes[i][2], ST_ROWS_ADVANCE, err);
    for (uint32_t n = 1; n <= ST_HELD_ROWS && r == STRATA_OK; n += run->options->quick ? ST_HELD_ROWS : 3) {
        r = test_inject(run, n, 1, 80, ST_ROWS_HOLD, err);
        if (r == STRATA_OK)
            r = test_inject(run, n, 1, 80, ST_ROWS_COMMIT, err);
    }
    return r;
}

/* ---- attention ---- */

struct attention {
    uint32_t heads, kv_heads, dim, index_heads, index_dim, budget, ratio, rot;
    enum st_kv_type kv;
    bool gated, neighbours, normed;
    size_t kv_bytes;
    int q, k, v, iq, ik, norm[4], k_cache, v_cache, ring, axis_ring, pooled, chosen, count, out, freq, axis;
    struct st_rope rope;
    struct st_job_after after;
};

static void build_qsa(struct st_job *j, const void *family, struct st_command *c)
{
    struct attention *a = (struct attention *)(uintptr_t)family;
    st_job_build_after(j, &a->after, st_job_at(j, a->out), c + 1);
    a->rope.freq_at = st_job_at(j, a->freq);
    a->rope.axis_at = st_job_at(j, a->axis);
    *c = (struct st_command){.op = ST_OP_qsa,
                             .u.qsa = {.rows = st_job_rows(j),
                                       .rope = &a->rope,
                                       .q = st_job_at(j, a->q),
                                       .k = st_job_at(j, a->k),
                                       .v = st_job_at(j, a->v),
                                       .k_cache = st_job_at(j, a->k_cache),
                                       .v_cache = st_job_at(j, a->v_cache),
                                       .chosen_count = st_job_at(j, a->count),
                                       .out = st_job_at(j, a->out),
                                       .gated = a->gated,
                                       .kv = a->kv,
                                       .kv_bytes = a->kv_bytes,
                                       .heads = a->heads,
                                       .kv_heads = a->kv_heads,
                                       .head_dim = a->dim,
                                       .context = j->context,
                                       .budget = a->budget,
                                       .ratio = a->ratio,
                                       .eps = 1e-6f}};
    struct st_qsa *q = &c->u.qsa;
    if (a->normed) {
        q->q_norm = st_job_at(j, a->norm[0]);
        q->k_norm = st_job_at(j, a->norm[1]);
    }
    if (a->ratio) {
        q->iq = st_job_at(j, a->iq);
        q->ik = st_job_at(j, a->ik);
        q->iq_norm = st_job_at(j, a->norm[2]);
        q->ik_norm = st_job_at(j, a->norm[3]);
        q->raw_ring = st_job_at(j, a->ring);
        q->axis_ring = st_job_at(j, a->axis_ring);
        q->pooled = st_job_at(j, a->pooled);
        q->chosen = st_job_at(j, a->chosen);
        q->index_heads = a->index_heads;
        q->index_dim = a->index_dim;
    }
}

/* Stored rows of values for all positions of the caches. */
static void fill_cache(struct st_job *j, const struct attention *a, int buffer)
{
    float x[ST_QSA_DIM_MAX];
    uint8_t *to = st_job_input(j, buffer);
    for (size_t i = 0; i < (size_t)j->slots * a->kv_heads * j->context; i++) {
        st_test_floats(j->run, x, a->dim);
        st_kv_store(a->kv, to + i * a->kv_bytes, x, a->dim);
    }
}

/* Keys were normed and turned before they were stored, so a code may have been rounded the other way: elements may be off by a
 * step of their block's scale. */
static void check_keys(struct st_job *j, const struct attention *a)
{
    const struct st_test_buffer *b = &j->run->buffer[a->k_cache];
    float got[ST_QSA_DIM_MAX], expected[ST_QSA_DIM_MAX];
    for (size_t i = 0; i < b->size / a->kv_bytes && !j->run->fault[0]; i++) {
        st_kv_load(a->kv, b->got + ST_TEST_GUARD + i * a->kv_bytes, got, a->dim);
        st_kv_load(a->kv, b->want + i * a->kv_bytes, expected, a->dim);
        for (size_t from = 0; from < a->dim; from += 32) {
            float most = 0;
            for (size_t e = from; e < from + 32 && e < a->dim; e++)
                most = fmaxf(most, fabsf(expected[e]));
            if (a->kv == ST_KV_INT8) /* blocks of 64 */
                for (size_t e = from / 64 * 64; e < from / 64 * 64 + 64; e++)
                    most = fmaxf(most, fabsf(expected[e]));
            float step = a->kv == ST_KV_F32 ? 1e-5f : a->kv == ST_KV_F16 ? 1e-3f : a->kv == ST_KV_INT8 ? 1.01f / 127 : 2.05f / 15;
            for (size_t e = from; e < from + 32 && e < a->dim && !j->run->fault[0]; e++)
                if (!(fabsf(got[e] - expected[e]) <= step * most + 1e-6f))
                    snprintf(j->run->fault, sizeof j->run->fault, "key %zu, element %zu: %g, expected %g", i, e, (double)got[e],
                             (double)expected[e]);
        }
    }
}

/* A row's choice is right when every block in it scores at least as much as every block that is not, up to the rounding of
 * scores; the list ascends and ends with the incomplete block. Returns whether the list is that of C. */
static bool check_choice(struct st_job *j, const struct attention *a, size_t row)
{
    struct st_test_run *run = j->run;
    const uint32_t *list = (const uint32_t *)(const void *)(run->buffer[a->chosen].got + ST_TEST_GUARD) + row * (a->budget + a->ratio);
    const uint32_t *reference = (const uint32_t *)(const void *)run->buffer[a->chosen].want + row * (a->budget + a->ratio);
    const int32_t count = ((const int32_t *)(const void *)run->buffer[a->count].want)[row];
    if (count < 0 || memcmp(list, reference, (size_t)count * 4) == 0)
        return true;
    size_t slot = (size_t)((int32_t *)st_job_input(j, j->slot))[row];
    size_t visible = (size_t)((int32_t *)st_job_input(j, j->pos))[row] + 1;
    size_t blocks = visible / a->ratio, keep = a->budget / a->ratio, next = 0;
    const float *pooled = want(j, a->pooled) + slot * (j->context / a->ratio) * a->index_dim;
    const float *iq = want(j, a->iq) + row * a->index_heads * a->index_dim;
    double least = INFINITY, most = 0, size = 0;
    for (size_t b = 0; b < blocks && !run->fault[0]; b++) {
        double score = 0;
        for (size_t h = 0; h < a->index_heads; h++) {
            double dot = 0;
            for (size_t i = 0; i < a->index_dim; i++) {
                dot += (double)iq[h * a->index_dim + i] * (double)pooled[b * a->index_dim + i];
                size += fabs((double)iq[h * a->index_dim + i] * (double)pooled[b * a->index_dim + i]);
            }
            score += dot > 0 ? dot : 0;
        }
        bool taken = next < keep * a->ratio && list[next] == b * a->ratio;
        if (taken)
            for (size_t i = 0; i < a->ratio; i++, next++)
                if (list[next] != b * a->ratio + i)
                    snprintf(run->fault, sizeof run->fault, "row %zu: block %zu is not listed as a whole", row, b);
        if (taken && score < least)
            least = score;
        if (!taken && score > most)
            most = score;
    }
    for (size_t i = 0; i < visible % a->ratio; i++)
        if (list[keep * a->ratio + i] != blocks * a->ratio + i)
            next = 0;
    if (!run->fault[0] && (next != keep * a->ratio || most > least + 1e-5 * size / (double)blocks))
        snprintf(run->fault, sizeof run->fault, "row %zu: %zu positions listed of %zu; the least score taken is %g, the most left is %g",
                 row, next, keep * a->ratio, least, most);
    return false;
}

static void check_qsa(struct st_job *j, const void *family)
{
    const struct attention *a = family;
    check_keys(j, a);
    const struct st_test_buffer *b = &j->run->buffer[a->out];
    size_t width = (size_t)a->heads * a->dim;
    for (size_t row = 0; row < (size_t)j->rows.n && a->ratio && !j->run->fault[0]; row++)
        if (!check_choice(j, a, row)) { /* another choice of equal worth gives another result */
            const struct st_test_buffer *y = &j->run->buffer[a->after.y];
            memcpy(b->want + row * width * 4, b->got + ST_TEST_GUARD + row * width * 4, width * 4);
            if (j->commands == 2)
                memcpy(y->want + row * ST_JOB_AFTER_ROWS * 4, y->got + ST_TEST_GUARD + row * ST_JOB_AFTER_ROWS * 4,
                       ST_JOB_AFTER_ROWS * 4);
        }
    if (!j->run->fault[0])
        st_job_check_close(j, a->out);
    if (!j->run->fault[0] && j->commands == 2)
        st_job_check_close(j, a->after.y);
}

static void fill_qsa(struct st_job *j, struct attention *a)
{
    if (j->r != STRATA_OK)
        return;
    fill_cache(j, a, a->k_cache);
    fill_cache(j, a, a->v_cache);
    uint8_t *axis = st_job_input(j, a->axis);
    float *freq = st_job_input(j, a->freq);
    for (uint32_t i = 0; i < a->rot / 2; i++) {
        a->rope.freq[i] = freq[i] = powf(1e4f, -2.0f * (float)i / (float)a->rot);
        a->rope.axis[i] = axis[i] = (uint8_t)(i % 3);
    }
    int32_t *ring = a->ratio ? st_job_input(j, a->axis_ring) : NULL;
    for (uint32_t i = 0; i < j->slots * ST_QSA_RING * 3 && ring; i++)
        ring[i] = (int32_t)st_test_below(j->run, 50);
}

static enum strata_result test_attention(struct st_test_run *run, struct attention a, uint32_t rows, uint32_t spans,
                                         uint32_t late, struct strata_error *err)
{
    static const char *const types[ST_KV_COUNT] = {"f32", "f16", "int8", "q4"};
    struct st_job j;
    a.rope = (struct st_rope){.rot = a.rot, .neighbours = a.neighbours, .gain = a.gated ? 0.125f : 0};
    a.kv_bytes = st_kv_row_bytes(a.kv, a.dim);
    snprintf(run->shape, sizeof run->shape, "qsa: %u rows in %u sequences up to %u, %u/%u heads of %u, %s, budget %u of blocks of %u%s",
             rows, spans, late + rows, a.heads, a.kv_heads, a.dim, types[a.kv], a.budget, a.ratio,
             a.gated ? ", gated" : "");
    st_job_start(&j, run, err);
    st_job_make_rows(&j, rows, spans, late);
    size_t cached = (size_t)j.slots * a.kv_heads * j.context * a.kv_bytes, blocks = a.ratio ? j.context / a.ratio : 0;
    a.q = st_job_take_floats(&j, (size_t)rows * a.heads * a.dim * (a.gated ? 2 : 1), ST_JOB_CLOSE, BOUND_FLOAT);
    a.k = st_job_floats(&j, (size_t)rows * a.kv_heads * a.dim);
    a.v = st_job_floats(&j, (size_t)rows * a.kv_heads * a.dim);
    a.iq = st_job_take_floats(&j, (size_t)rows * a.index_heads * a.index_dim, ST_JOB_CLOSE, BOUND_FLOAT);
    a.ik = st_job_floats(&j, (size_t)rows * a.index_dim);
    for (int i = 0; i < 4; i++)
        a.norm[i] = st_job_floats(&j, i < 2 ? a.dim : a.index_dim);
    a.k_cache = st_job_take(&j, cached, ST_JOB_FREE, 0);
    a.v_cache = st_job_take(&j, cached, ST_JOB_EXACT, 0);
    a.ring = st_job_take_floats(&j, (size_t)j.slots * ST_QSA_RING * a.index_dim, ST_JOB_EXACT, 0);
    a.axis_ring = st_job_take(&j, (size_t)j.slots * ST_QSA_RING * 12, ST_JOB_EXACT, 0);
    a.pooled = st_job_take_floats(&j, j.slots * blocks * a.index_dim, ST_JOB_CLOSE, BOUND_FLOAT);
    a.chosen = st_job_take(&j, (size_t)rows * (a.budget + a.ratio) * 4, ST_JOB_FREE, 0);
    a.count = st_job_take(&j, (size_t)rows * 4, ST_JOB_EXACT, 0);
    a.out = st_job_take(&j, (size_t)rows * a.heads * a.dim * 4, ST_JOB_FREE, bound_attention[a.kv]);
    if (a.heads * a.dim % 32 == 0 && a.kv == ST_KV_F32)
        st_job_take_after(&j, &a.after, a.heads * a.dim);
    j.kind[a.after.y] = j.commands == 2 ? ST_JOB_FREE : j.kind[a.after.y]; /* compared after the choices were looked at */
    a.freq = st_job_floats(&j, a.rot / 2);
    a.axis = st_job_take(&j, a.rot / 2, ST_JOB_EXACT, 0);
    fill_qsa(&j, &a);
    struct st_qsa shape = {.heads = a.heads, .kv_heads = a.kv_heads, .head_dim = a.dim, .context = j.context, .ratio = a.ratio};
    return st_job_finish(&j, build_qsa, &a, check_qsa, st_qsa_scratch_bytes(&shape));
}

enum strata_result st_test_qsa(struct st_test_run *run, struct strata_error *err)
{
    static const struct {
        struct attention a;
        uint32_t rows, spans, late;
    } cases[] = {
        {{.heads = 4, .kv_heads = 2, .dim = 64, .index_heads = 4, .index_dim = 32, .budget = 16, .ratio = 4, .rot = 16,
          .kv = ST_KV_F16, .gated = true, .normed = true}, 3, 2, 90},
        {{.heads = 24, .kv_heads = 2, .dim = 256, .index_heads = 4, .index_dim = 128, .budget = 64, .ratio = 4, .rot = 64,
          .kv = ST_KV_INT8, .gated = true, .normed = true}, 1, 1, 300},
        {{.heads = 6, .kv_heads = 2, .dim = 32, .index_heads = 4, .index_dim = 16, .budget = 16, .ratio = 4, .rot = 8,
          .kv = ST_KV_Q4, .gated = true, .normed = true}, 8, 3, 100},
        {{.heads = 12, .kv_heads = 1, .dim = 128, .index_heads = 2, .index_dim = 64, .budget = 32, .ratio = 4, .rot = 32,
          .kv = ST_KV_F32, .gated = true, .normed = true}, 11, 2, 120},
        {{.heads = 30, .kv_heads = 2, .dim = 64, .index_heads = 2, .index_dim = 32, .budget = 48, .ratio = 4, .rot = 16,
          .kv = ST_KV_F16, .gated = true, .normed = true}, 13, 3, 150},
        {{.heads = 24, .kv_heads = 2, .dim = 256, .index_heads = 4, .index_dim = 128, .budget = 64, .ratio = 4, .rot = 64,
          .kv = ST_KV_F16, .gated = true, .normed = true}, 9, 1, 300},
        {{.heads = 8, .kv_heads = 2, .dim = 128, .rot = 128, .kv = ST_KV_F16}, 40, 2, 100},
        {{.heads = 4, .kv_heads = 4, .dim = 64, .rot = 64, .kv = ST_KV_F16, .neighbours = true}, 8, 8, 40},
        {{.heads = 8, .kv_heads = 2, .dim = 128, .rot = 128, .kv = ST_KV_INT8, .normed = true}, 20, 3, 200},
        {{.heads = 24, .kv_heads = 2, .dim = 256, .index_heads = 4, .index_dim = 128, .budget = 64, .ratio = 4, .rot = 64,
          .kv = ST_KV_F16, .gated = true, .normed = true}, 70, 1, 300},
        {{.heads = 5, .kv_heads = 1, .dim = 96, .index_heads = 3, .index_dim = 40, .budget = 24, .ratio = 8, .rot = 24,
          .kv = ST_KV_Q4, .gated = true, .normed = true}, 5, 1, 700},
        {{.heads = 26, .kv_heads = 2, .dim = 32, .index_heads = 5, .index_dim = 32, .budget = 128, .ratio = 4, .rot = 32,
          .kv = ST_KV_F32, .normed = true}, 9, 2, 1200},
        {{.heads = 2, .kv_heads = 1, .dim = 64, .rot = 32, .kv = ST_KV_Q4, .gated = true, .normed = true}, 2, 1, 1500},
    };
    enum strata_result r = STRATA_OK;
    for (size_t i = 0; i < (run->options->quick ? 7 : sizeof cases / sizeof *cases) && r == STRATA_OK; i++)
        r = test_attention(run, cases[i].a, cases[i].rows, cases[i].spans, cases[i].late, err);
    return r;
}

/* ---- choice of experts ---- */

struct choice {
    uint32_t experts, used, hidden;
    int m, router, gate, logits, expert, weight, shared, first, entry, where;
    struct st_weight w[2];
    struct st_act_buffer acts;
    struct st_routing routing;
};

static void build_route(struct st_job *j, const void *family, struct st_command *c)
{
    struct choice *a = (struct choice *)(uintptr_t)family;
    a->w[0].data = st_job_at(j, a->router);
    a->w[1].data = st_job_at(j, a->gate);
    a->routing = (struct st_routing){.expert = st_job_at(j, a->expert),
                                     .weight = st_job_at(j, a->weight),
                                     .shared = st_job_at(j, a->shared),
                                     .first = st_job_at(j, a->first),
                                     .entry = st_job_at(j, a->entry),
                                     .where = st_job_at(j, a->where)};
    *c = (struct st_command){.op = ST_OP_route,
                             .u.route = {.n = &j->rows.n,
                                         .m = st_job_at(j, a->m),
                                         .router = &a->w[0],
                                         .shared_gate = &a->w[1],
                                         .logits = st_job_at(j, a->logits),
                                         .to = &a->routing,
                                         .experts = a->experts,
                                         .used = a->used,
                                         .hidden = a->hidden,
                                         .acts = &a->acts}};
}

/* Small whole numbers over 8: logits are exact in any order of sums, and ties are many. */
static int take_eighths(struct st_job *j, size_t n, uint32_t range)
{
    int i = st_job_take(j, n * 4, ST_JOB_EXACT, 0);
    for (size_t k = 0; k < n && j->r == STRATA_OK; k++)
        ((float *)st_job_input(j, i))[k] = ((float)st_test_below(j->run, 2 * range + 1) - (float)range) / 8.0f;
    return i;
}

static enum strata_result test_choice(struct st_test_run *run, uint32_t rows, uint32_t experts, uint32_t used,
                                      struct strata_error *err)
{
    struct st_job j;
    struct choice a = {.experts = experts, .used = used, .hidden = 48};
    snprintf(run->shape, sizeof run->shape, "route: %u rows, %u of %u experts", rows, used, experts);
    st_job_start(&j, run, err);
    j.rows.n = (int32_t)rows;
    a.m = take_eighths(&j, (size_t)rows * a.hidden, 3);
    a.router = take_eighths(&j, (size_t)experts * a.hidden, 5);
    a.gate = take_eighths(&j, a.hidden, 5);
    a.w[0] = (struct st_weight){.type = ST_TYPE_F32, .act = ST_ACT_F32, .cols = a.hidden, .rows = experts, .row_bytes = a.hidden * 4};
    a.w[1] = a.w[0];
    a.w[1].rows = 1;
    a.logits = st_job_take(&j, (size_t)rows * experts * 4, ST_JOB_EXACT, 0);
    a.expert = st_job_take(&j, (size_t)rows * used * 4, ST_JOB_EXACT, 0);
    a.weight = st_job_take(&j, (size_t)rows * used * 4, ST_JOB_EXACT, 0);
    a.shared = st_job_take(&j, (size_t)rows * 4, ST_JOB_EXACT, 0);
    a.first = st_job_take(&j, (experts + 1) * 4, ST_JOB_EXACT, 0);
    a.entry = st_job_take(&j, (size_t)rows * used * 4, ST_JOB_EXACT, 0);
    a.where = st_job_take(&j, (size_t)rows * used * 4, ST_JOB_EXACT, 0);
    return st_job_finish(&j, build_route, &a, NULL, 0);
}

enum strata_result st_test_route(struct st_test_run *run, struct strata_error *err)
{
    static const uint32_t shapes[][3] = {{3, 40, 4}, {9, 512, 10}, {8, 512, 10}, {1, 512, 10},
                                         {5, 7, 7},  {100, 60, 3}, {70, 300, 8}, {2, 700, 6},
                                         {8, 90, 32}};
    enum strata_result r = STRATA_OK;
    for (size_t i = 0; i < (run->options->quick ? 2 : sizeof shapes / sizeof *shapes) && r == STRATA_OK; i++)
        r = test_choice(run, shapes[i][0], shapes[i][1], shapes[i][2], err);
    return r;
}
