/* Parity of whole commands: what a command's launches leave in device memory against the C table on host copies of the same
 * buffers. Here are the families that are not products: residual and small steps, n-gram memory, gated delta network, attention,
 * choice of experts. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/exact_math.h"
#include "kernel/gpu_norm.h"
#include "kernel/gpu_ops.h"
#include "kernel/kv.h"
#include "kernel/qsa_scratch.h"
#include "runtime/selftest_run.h"

/* The bounds of the families whose sums have another order on a GPU than in C. An element x of a buffer may be off by
 * bound * (|x| + root mean square of the buffer). Everything else is compared bit by bit. */
#define BOUND_NORM 2e-6f    /* norms and rotations */
#define BOUND_STEPS 2e-5f   /* recurrence over a window */
#define BOUND_CHUNKS 2e-3f  /* recurrence over up to 200 rows, where C takes chunks */
#define BOUND_SOFTMAX 1e-4f /* attention on the stored keys and values; more where the rounding of keys may differ: */
static const float bound_attention[ST_KV_COUNT] = {BOUND_SOFTMAX, 3e-3f, 2e-2f, 1e-1f};
#define BOUND_FLOAT 1e-4f   /* gated reads on float weights */
#define BOUND_INTEGER 1e-2f /* gated reads on integer activations: a code may be rounded the other way */

enum kind { EXACT, CLOSE, FREE };

/* A case: buffers, and how they are compared. r is the first error; after it nothing more is allocated. */
struct job {
    struct st_test_run *run;
    struct strata_error *err;
    enum strata_result r;
    enum kind kind[ST_TEST_BUFFERS];
    float bound[ST_TEST_BUFFERS];
    bool on_device; /* which addresses at() gives */
    struct st_rows rows;
    int slot, pos, axis, span, out, embd, embd_row; /* buffers of the row arrays */
    uint32_t slots, context;
    int commands; /* of the case, in a row; the device may do small steps of neighbours in one launch */
};

enum { COMMANDS = 2 };

static void *at(const struct job *j, int buffer)
{
    const struct st_test_buffer *b = &j->run->buffer[buffer];
    return j->on_device ? (void *)(uintptr_t)b->device : b->want;
}

static void *input(const struct job *j, int buffer)
{
    return j->run->buffer[buffer].input;
}

static int take(struct job *j, size_t bytes, enum kind kind, float bound)
{
    uint8_t *memory;
    int i = j->run->buffers;
    if (j->r == STRATA_OK)
        j->r = st_test_add(j->run, bytes ? bytes : 16, &memory, j->err);
    j->kind[i] = kind;
    j->bound[i] = bound;
    return i;
}

static int take_floats(struct job *j, size_t n, enum kind kind, float bound)
{
    int i = take(j, n * sizeof(float), kind, bound);
    if (j->r == STRATA_OK)
        st_test_floats(j->run, input(j, i), n);
    return i;
}

/* An input that nothing may change. */
static int floats(struct job *j, size_t n)
{
    return take_floats(j, n, EXACT, 0);
}

static void start(struct job *j, struct st_test_run *run, struct strata_error *err)
{
    *j = (struct job){.run = run, .err = err, .commands = 1};
}

/* n rows of `spans` sequences that are in slots of their own; every second one begins at a position up to `late`. */
static void make_rows(struct job *j, uint32_t n, uint32_t spans, uint32_t late)
{
    struct st_test_run *run = j->run;
    j->slots = spans + 1;
    j->context = late + n;
    j->slot = take(j, n * 4, EXACT, 0);
    j->pos = take(j, n * 4, EXACT, 0);
    j->axis = take(j, n * 12, EXACT, 0);
    j->span = take(j, (n + 1) * 4, EXACT, 0);
    j->out = take(j, n * 4, EXACT, 0);
    j->rows.n = (int32_t)n;
    j->rows.n_spans = (int32_t)spans;
    if (j->r != STRATA_OK)
        return;
    int32_t *slot = input(j, j->slot), *pos = input(j, j->pos), *axis = input(j, j->axis), *span = input(j, j->span);
    uint32_t shift = st_test_below(run, j->slots), row = 0;
    for (uint32_t s = 0; s < spans; s++) {
        uint32_t left = n - row - (spans - 1 - s), count = s == spans - 1 ? left : 1 + st_test_below(run, left);
        uint32_t from = late && st_test_below(run, 4) ? st_test_below(run, late) : 0;
        span[s] = (int32_t)row;
        for (uint32_t i = 0; i < count; i++, row++) {
            slot[row] = (int32_t)((s + shift) % j->slots);
            pos[row] = (int32_t)(from + i);
            for (int k = 0; k < 3; k++)
                axis[3 * row + (uint32_t)k] = pos[row] + k;
        }
    }
    for (uint32_t s = spans; s <= n; s++)
        span[s] = (int32_t)n;
    int32_t *out = input(j, j->out);
    for (uint32_t i = 0; i < n; i++)
        if (st_test_below(run, 3) || i == n - 1)
            out[j->rows.n_out++] = (int32_t)i;
}

/* The rows as the side that runs sees them. */
static const struct st_rows *rows_at(struct job *j)
{
    j->rows.slot = at(j, j->slot);
    j->rows.pos = at(j, j->pos);
    j->rows.axis = at(j, j->axis);
    j->rows.span = at(j, j->span);
    j->rows.out = at(j, j->out);
    return &j->rows;
}

static void take_embeddings(struct job *j, uint32_t hidden)
{
    j->embd = floats(j, (size_t)j->rows.n * hidden);
    j->embd_row = take(j, (size_t)j->rows.n, EXACT, 0);
    if (j->r == STRATA_OK)
        memset(input(j, j->embd_row), 1, (size_t)j->rows.n);
}

static void check_close(struct job *j, int buffer)
{
    const struct st_test_buffer *b = &j->run->buffer[buffer];
    const float *got = (const float *)(const void *)(b->got + ST_TEST_GUARD), *want = (const float *)(const void *)b->want;
    size_t n = b->size / 4;
    double square = 0;
    for (size_t i = 0; i < n; i++)
        square += (double)want[i] * (double)want[i];
    double rms = sqrt(square / (double)n);
    for (size_t i = 0; i < n && !j->run->fault[0]; i++)
        if (!(fabs((double)got[i] - (double)want[i]) <= (double)j->bound[buffer] * (fabs((double)want[i]) + rms)))
            snprintf(j->run->fault, sizeof j->run->fault, "buffer %d: element %zu of %zu is %g, expected %g (root mean square %g)",
                     buffer, i, n, (double)got[i], (double)want[i], rms);
}

/* Fills the commands with the addresses that at() gives. */
typedef void (*build_fn)(struct job *j, const void *family, struct st_command *c);
/* Compares what needs more than the kinds of the buffers. */
typedef void (*check_fn)(struct job *j, const void *family);

static enum strata_result run_in_c(struct job *j, build_fn build, const void *family, size_t scratch)
{
    struct st_kernels table;
    struct st_command command[COMMANDS];
    for (int i = 0; i < j->run->buffers; i++)
        memcpy(j->run->buffer[i].want, j->run->buffer[i].input, j->run->buffer[i].size);
    struct st_worker alone = {.count = 1, .scratch_size = scratch};
    enum strata_result r = st_kernels_choose("c", &table, j->err);
    if (r == STRATA_OK && scratch) {
        alone.scratch = aligned_alloc(64, (scratch + 63) / 64 * 64);
        if (!alone.scratch)
            r = st_fail(j->err, STRATA_E_MEMORY, "self-test: no memory for %zu bytes", scratch);
    }
    if (r == STRATA_OK) {
        j->on_device = false;
        build(j, family, command);
        for (int i = 0; i < j->commands; i++)
            st_command_run(&table, &command[i], &alone);
    }
    free(alone.scratch);
    return r;
}

static enum strata_result run_launches(struct job *j, build_fn build, const void *family, int scratch)
{
    struct st_test_run *run = j->run;
    struct st_command command[COMMANDS];
    struct st_gpu_list list = {.end = command + j->commands};
    j->on_device = true;
    build(j, family, command);
    struct st_gpu_target target = st_gpu_target_of(&run->dev->info);
    target.scratch = run->buffer[scratch].device;
    target.scratch_bytes = run->buffer[scratch].size;
    enum strata_result r = st_test_put(run, j->err);
    for (int i = 0; i < j->commands && r == STRATA_OK; i++)
        r = st_gpu_lower(&command[i], &target, &list, j->err);
    if (r == STRATA_OK && list.failed)
        r = st_fail(j->err, STRATA_E_MEMORY, "self-test: no memory for launches");
    for (size_t i = 0; i < list.count && r == STRATA_OK; i++) {
        const struct st_gpu_launch *l = &list.launch[i];
        r = st_launch(run->dev, run->dev->compute, l->kernel, l->grid[0], l->grid[1], l->grid[2], l->args, run->shape, j->err);
    }
    st_gpu_list_free(&list);
    return r == STRATA_OK ? st_test_get(run, j->err) : r;
}

/* Runs the case whose buffers are there on both sides, compares and reports; frees the buffers. */
static enum strata_result finish(struct job *j, build_fn build, const void *family, check_fn check, size_t c_scratch)
{
    struct st_test_run *run = j->run;
    if (j->r == STRATA_OK) {
        struct st_command command[COMMANDS];
        uint64_t bytes = 0;
        j->on_device = true;
        build(j, family, command);
        const struct st_gpu_target target = st_gpu_target_of(&run->dev->info);
        for (int i = 0; i < j->commands; i++) {
            uint64_t own = st_gpu_scratch(&command[i], (uint32_t)j->rows.n, &target);
            bytes = own > bytes ? own : bytes;
        }
        int scratch = take(j, bytes, FREE, 0);
        if (j->r == STRATA_OK)
            j->r = run_in_c(j, build, family, c_scratch);
        if (j->r == STRATA_OK)
            j->r = run_launches(j, build, family, scratch);
    }
    if (j->r == STRATA_OK) {
        for (int i = 0; i < run->buffers; i++)
            if (!st_test_guards(run, i)) {
                if (j->kind[i] == EXACT)
                    st_test_exact(run, i);
                else if (j->kind[i] == CLOSE)
                    check_close(j, i);
            }
        if (check && !run->fault[0])
            check(j, family);
        st_test_report(run);
    }
    st_test_drop(run);
    return j->r;
}

/* ---- residual and small steps ---- */

struct steps {
    enum st_op op;
    uint32_t hidden, streams;
    bool per_stream;
    int a, b, c, d; /* buffers, in the order of build_steps */
    struct st_weight table;
};

static void build_steps(struct job *j, const void *family, struct st_command *c)
{
    const struct steps *s = family;
    const struct st_rows *rows = rows_at(j);
    *c = (struct st_command){.op = s->op};
    if (s->op == ST_OP_embed || s->op == ST_OP_draft_input) {
        j->rows.embd = at(j, j->embd);
        j->rows.embd_row = at(j, j->embd_row);
    }
    switch (s->op) {
    case ST_OP_embed:
        c->u.embed = (struct st_embed){.rows = rows, .table = &s->table, .r = at(j, s->a), .streams = s->streams};
        break;
    case ST_OP_draft_input:
        c->u.draft_input = (struct st_draft_input){.rows = rows,
                                                   .table = &s->table,
                                                   .hidden_in = at(j, s->b),
                                                   .enorm = at(j, s->c),
                                                   .hnorm = at(j, s->d),
                                                   .x = at(j, s->a),
                                                   .streams = s->streams,
                                                   .hidden = s->hidden,
                                                   .per_stream = s->per_stream,
                                                   .eps = 1e-6f};
        break;
    case ST_OP_gated_write:
        c->u.gated_write = (struct st_gated_write){.n = &rows->n,
                                                   .r = at(j, s->a),
                                                   .inj = at(j, s->b),
                                                   .o = at(j, s->c),
                                                   .streams = s->streams,
                                                   .hidden = s->hidden};
        break;
    case ST_OP_select:
        c->u.select = (struct st_select){.rows = rows, .to = at(j, s->a), .from = at(j, s->b), .width = s->hidden};
        break;
    case ST_OP_add:
        c->u.add = (struct st_add){.n = &rows->n, .r = at(j, s->a), .o = at(j, s->b), .width = s->hidden};
        break;
    case ST_OP_swiglu:
        c->u.swiglu = (struct st_swiglu){.n = &rows->n, .gate = at(j, s->a), .up = at(j, s->b), .width = s->hidden};
        break;
    default:
        c->u.norm = (struct st_norm){
            .n = &rows->n, .x = at(j, s->b), .gamma = at(j, s->c), .y = at(j, s->a), .width = s->hidden, .eps = 1e-6f};
        break;
    }
}

static enum strata_result test_step(struct st_test_run *run, enum st_op op, uint32_t rows, uint32_t hidden, uint32_t streams,
                                    bool per_stream, struct strata_error *err)
{
    struct job j;
    struct steps s = {.op = op, .hidden = hidden, .streams = streams, .per_stream = per_stream, .table = {.cols = hidden}};
    size_t narrow = (size_t)rows * hidden, wide = narrow * streams;
    snprintf(run->shape, sizeof run->shape, "%s: %u rows of %u x %u", st_op_name(op), rows, streams, hidden);
    start(&j, run, err);
    make_rows(&j, rows, 1 + st_test_below(run, rows), 0);
    switch (op) {
    case ST_OP_embed:
        take_embeddings(&j, hidden);
        s.a = take(&j, wide * 4, EXACT, 0);
        break;
    case ST_OP_draft_input:
        take_embeddings(&j, hidden);
        s.a = take(&j, wide * 8, CLOSE, BOUND_NORM);
        s.b = floats(&j, wide);
        s.c = floats(&j, hidden);
        s.d = floats(&j, (size_t)hidden * streams);
        break;
    case ST_OP_gated_write:
        s.a = take_floats(&j, wide, EXACT, 0);
        s.b = floats(&j, (size_t)rows * streams);
        s.c = floats(&j, narrow);
        break;
    case ST_OP_norm:
        s.a = take(&j, narrow * 4, CLOSE, BOUND_NORM);
        s.b = floats(&j, narrow);
        s.c = floats(&j, hidden);
        break;
    default:
        s.a = take_floats(&j, narrow, EXACT, 0);
        s.b = floats(&j, narrow);
        break;
    }
    return finish(&j, build_steps, &s, NULL, 0);
}

/* ---- gated read ---- */

struct gated {
    uint32_t hidden, streams, rank;
    int r, gamma, down, up, inject, m, inj, x, lo, o, q8, q8k;
    struct st_weight w[3];
    struct st_act_buffer acts;
};

static void build_gated(struct job *j, const void *family, struct st_command *c)
{
    struct gated *g = (struct gated *)(uintptr_t)family;
    const int weights[3] = {g->down, g->up, g->inject};
    for (int i = 0; i < 3; i++)
        g->w[i].data = at(j, weights[i]);
    g->acts.memory[ST_ACT_Q8] = at(j, g->q8);
    g->acts.memory[ST_ACT_Q8K] = at(j, g->q8k);
    if (j->commands == 2)
        *c++ = (struct st_command){.op = ST_OP_gated_write,
                                   .u.gated_write = {.n = &j->rows.n,
                                                     .r = at(j, g->r),
                                                     .inj = at(j, g->inj),
                                                     .o = at(j, g->o),
                                                     .streams = g->streams,
                                                     .hidden = g->hidden}};
    *c = (struct st_command){.op = ST_OP_gated_read,
                             .u.gated_read = {.n = &j->rows.n,
                                              .r = at(j, g->r),
                                              .gamma = at(j, g->gamma),
                                              .down = &g->w[0],
                                              .up = &g->w[1],
                                              .inject = &g->w[2],
                                              .m = at(j, g->m),
                                              .inj = at(j, g->inj),
                                              .streams = g->streams,
                                              .hidden = g->hidden,
                                              .rank = g->rank,
                                              .eps = 1e-6f,
                                              .x = at(j, g->x),
                                              .lo = at(j, g->lo),
                                              .acts = &g->acts}};
}

/* Weights with entries of about 1 / sqrt(cols), so that products are of the size of their input. */
static int take_weights(struct job *j, struct st_weight *w, int type, uint32_t rows, uint32_t cols)
{
    const struct st_type_info *info = st_type_info(type);
    size_t row_bytes = (size_t)cols / info->block_elems * info->block_bytes;
    *w = (struct st_weight){.type = type, .act = info->act, .cols = cols, .rows = rows, .row_bytes = row_bytes};
    int i = take(j, rows * row_bytes, EXACT, 0);
    if (j->r != STRATA_OK)
        return i;
    uint8_t *to = input(j, i);
    if (type == ST_TYPE_F32) {
        st_test_floats(j->run, (float *)(void *)to, (size_t)rows * cols);
        for (size_t k = 0; k < (size_t)rows * cols; k++)
            ((float *)(void *)to)[k] *= 1.0f / sqrtf((float)cols);
        return i;
    }
    /* Q8_0: the scale comes first; Q6_K: last, after scales up to 127 of codes up to 32 */
    const bool large = type == ST_TYPE_Q6_K;
    const uint16_t d = st_f32_to_f16(1.0f / ((large ? 1024.0f : 64.0f) * sqrtf((float)cols)));
    for (size_t k = 0; k < rows * row_bytes; k++)
        to[k] = (uint8_t)(st_test_random(j->run) >> 40);
    for (size_t k = 0; k < rows * row_bytes; k += info->block_bytes)
        memcpy(to + k + (large ? info->block_bytes - 2 : 0), &d, 2);
    return i;
}

static size_t act_bytes(enum st_act act, size_t n)
{
    size_t gpu = st_gpu_act_stride(act, (uint32_t)n), cpu = st_act_bytes(act, n);
    return gpu > cpu ? gpu : cpu;
}

static enum strata_result test_gated(struct st_test_run *run, int type, bool write, uint32_t rows, uint32_t hidden, uint32_t rank,
                                     struct strata_error *err)
{
    struct job j;
    struct gated g = {.hidden = hidden, .streams = 4, .rank = rank};
    uint32_t wide = g.streams * hidden;
    float bound = type == ST_TYPE_F32 ? BOUND_FLOAT : BOUND_INTEGER;
    snprintf(run->shape, sizeof run->shape, "%sgated_read: %u rows of 4 x %u, rank %u, %s weights", write ? "gated_write, " : "",
             rows, hidden, rank, st_type_info(type)->name);
    start(&j, run, err);
    j.rows.n = (int32_t)rows;
    j.commands = write ? 2 : 1;
    g.r = floats(&j, (size_t)rows * wide);
    g.o = floats(&j, (size_t)rows * hidden);
    g.gamma = floats(&j, wide);
    g.down = take_weights(&j, &g.w[0], type, rank, wide);
    g.up = take_weights(&j, &g.w[1], type, wide, rank);
    g.inject = take_weights(&j, &g.w[2], ST_TYPE_F32, g.streams, wide);
    g.m = take(&j, (size_t)rows * hidden * 4, CLOSE, bound);
    g.inj = take_floats(&j, (size_t)rows * g.streams, CLOSE, BOUND_FLOAT);
    g.x = take(&j, (size_t)rows * wide * 4, FREE, 0);
    g.lo = take(&j, (size_t)rows * rank * 4, FREE, 0);
    uint32_t padded = (wide + 255) / 256 * 256;
    g.acts = (struct st_act_buffer){.cols = wide};
    g.acts.stride[ST_ACT_Q8] = act_bytes(ST_ACT_Q8, padded);
    g.acts.stride[ST_ACT_Q8K] = act_bytes(ST_ACT_Q8K, padded);
    g.q8 = take(&j, rows * g.acts.stride[ST_ACT_Q8], FREE, 0);
    g.q8k = take(&j, rows * g.acts.stride[ST_ACT_Q8K], FREE, 0);
    return finish(&j, build_gated, &g, NULL, 0);
}

/* ---- small kernels of the products ---- */

/* Runs one launch; want holds what must come out. */
static enum strata_result finish_launch(struct job *j, struct st_gpu_launch *l)
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
static void copy_inputs(struct job *j)
{
    for (int i = 0; i < j->run->buffers && j->r == STRATA_OK; i++)
        memcpy(j->run->buffer[i].want, j->run->buffer[i].input, j->run->buffer[i].size);
}

static st_addr device_at(const struct job *j, int buffer)
{
    return j->run->buffer[buffer].device;
}

static float *want(const struct job *j, int buffer)
{
    return (float *)(void *)j->run->buffer[buffer].want;
}

static uint32_t groups64(uint32_t n)
{
    return (n + 63) / 64;
}

static enum strata_result test_silu_mul(struct st_test_run *run, uint32_t rows, uint32_t width, struct strata_error *err)
{
    struct job j;
    uint32_t ld = width + st_test_below(run, 9), ldh = width + st_test_below(run, 9);
    snprintf(run->shape, sizeof run->shape, "st_silu_mul: %u rows of %u", rows, width);
    start(&j, run, err);
    int h = take(&j, (size_t)rows * ldh * 4, EXACT, 0), g = floats(&j, (size_t)rows * ld), u = floats(&j, (size_t)rows * ld);
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
    struct job j;
    uint32_t routed = rows * used;
    snprintf(run->shape, sizeof run->shape, "st_combine_experts: %u rows of %u, %u experts each", rows, hidden, used);
    start(&j, run, err);
    int y = take(&j, (size_t)rows * hidden * 4, EXACT, 0), o = floats(&j, (size_t)(routed + rows) * hidden);
    int weight = floats(&j, routed), where = take(&j, routed * 4, EXACT, 0), shared = floats(&j, rows);
    if (j.r == STRATA_OK) {
        int32_t *place = input(&j, where);
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
    struct job j;
    snprintf(run->shape, sizeof run->shape, "st_stream_gate: %u of %u streams, %s", count, streams, kind ? "sigmoid" : "silu");
    start(&j, run, err);
    int v = floats(&j, count);
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
    struct job j;
    size_t wide = (size_t)rows * hidden * streams;
    snprintf(run->shape, sizeof run->shape, "st_stream_mean: %u rows of %u x %u", rows, streams, hidden);
    start(&j, run, err);
    int m = take(&j, (size_t)rows * hidden * 4, EXACT, 0), gate = floats(&j, wide), x = floats(&j, wide);
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

/* ---- products after a mixer ---- */

/* y = w times the mixer's output, whose integer form the mixer's last launch may make. */
struct after {
    struct st_weight w;
    struct st_act_buffer acts;
    int weights, y, q8, q8k;
};

enum { AFTER_ROWS = 40 };

static void take_after(struct job *j, struct after *a, uint32_t cols)
{
    uint32_t padded = (cols + 255) / 256 * 256;
    size_t rows = (size_t)j->rows.n;
    j->commands = 2;
    a->weights = take_weights(j, &a->w, ST_TYPE_Q8_0, AFTER_ROWS, cols);
    a->y = take(j, rows * AFTER_ROWS * 4, CLOSE, BOUND_INTEGER);
    a->acts = (struct st_act_buffer){.cols = cols};
    a->acts.stride[ST_ACT_Q8] = act_bytes(ST_ACT_Q8, padded);
    a->acts.stride[ST_ACT_Q8K] = act_bytes(ST_ACT_Q8K, padded);
    a->q8 = take(j, rows * a->acts.stride[ST_ACT_Q8], FREE, 0);
    a->q8k = take(j, rows * a->acts.stride[ST_ACT_Q8K], FREE, 0);
}

static void build_after(struct job *j, struct after *a, const float *x, struct st_command *c)
{
    if (j->commands == 1)
        return;
    a->w.data = at(j, a->weights);
    a->acts.memory[ST_ACT_Q8] = at(j, a->q8);
    a->acts.memory[ST_ACT_Q8K] = at(j, a->q8k);
    *c = (struct st_command){.op = ST_OP_products,
                             .u.products = {.n = &j->rows.n,
                                            .x = x,
                                            .ldx = a->w.cols,
                                            .count = 1,
                                            .product = {{.w = &a->w, .y = at(j, a->y), .ldy = AFTER_ROWS}},
                                            .acts = &a->acts}};
}

/* ---- n-gram memory ---- */

struct ngram {
    int type;
    uint32_t heads, width, hidden, streams, taps, dilation;
    size_t row_bytes;
    int data, index, e;
    int key, value, norm[3], conv, z, state, kept, r;
};

static void build_gather(struct job *j, const void *family, struct st_command *c)
{
    const struct ngram *g = family;
    j->rows.ngram = at(j, g->data);
    j->rows.ngram_index = at(j, g->index);
    *c = (struct st_command){.op = ST_OP_ngram_gather,
                             .u.ngram_gather = {.rows = rows_at(j),
                                                .type = g->type,
                                                .row_bytes = g->row_bytes,
                                                .heads = g->heads,
                                                .width = g->width,
                                                .e = at(j, g->e)}};
}

static enum strata_result test_gather(struct st_test_run *run, int type, uint32_t rows, uint32_t heads, uint32_t width,
                                      struct strata_error *err)
{
    const struct st_type_info *info = st_type_info(type);
    struct job j;
    struct ngram g = {.type = type, .heads = heads, .width = width};
    uint32_t fetched = rows * heads / 2 + 1;
    g.row_bytes = (size_t)width / info->block_elems * info->block_bytes;
    snprintf(run->shape, sizeof run->shape, "ngram_gather: %u rows of %u x %u, %s", rows, heads, width, info->name);
    start(&j, run, err);
    make_rows(&j, rows, 1, 0);
    g.data = take(&j, fetched * g.row_bytes, EXACT, 0);
    g.index = take(&j, (size_t)rows * heads * 4, EXACT, 0);
    g.e = take(&j, (size_t)rows * heads * width * 4, EXACT, 0);
    if (j.r == STRATA_OK) {
        uint8_t *data = input(&j, g.data);
        uint32_t *index = input(&j, g.index);
        for (size_t i = 0; i < fetched * g.row_bytes; i++)
            data[i] = (uint8_t)(st_test_random(run) >> 40);
        /* No NaN, whose bits are not defined, and finite scales: the top bit of the exponent is cleared. */
        size_t step = type == ST_TYPE_F32 ? 4 : type == ST_TYPE_Q5_1 || info->block_elems == 1 ? 2 : info->block_bytes;
        for (size_t i = step == 4 ? 3 : 1; i < fetched * g.row_bytes; i += step)
            data[i] &= 0xbf;
        for (uint32_t i = 0; i < rows * heads; i++)
            index[i] = st_test_below(run, fetched);
    }
    return finish(&j, build_gather, &g, NULL, 0);
}

static void build_inject(struct job *j, const void *family, struct st_command *c)
{
    const struct ngram *g = family;
    *c = (struct st_command){.op = ST_OP_ngram_inject,
                             .u.ngram_inject = {.rows = rows_at(j),
                                                .key = at(j, g->key),
                                                .value = at(j, g->value),
                                                .norm_key = at(j, g->norm[0]),
                                                .norm_query = at(j, g->norm[1]),
                                                .norm_conv = at(j, g->norm[2]),
                                                .conv = at(j, g->conv),
                                                .z = at(j, g->z),
                                                .state = at(j, g->state),
                                                .kept = j->rows.mode == ST_ROWS_ADVANCE ? NULL : at(j, g->kept),
                                                .r = at(j, g->r),
                                                .streams = g->streams,
                                                .hidden = g->hidden,
                                                .taps = g->taps,
                                                .dilation = g->dilation,
                                                .eps = 1e-6f}};
}

static const char *const mode_names[] = {"", ", held", ", committed"}; /* of enum st_rows_mode */

static enum strata_result test_inject(struct st_test_run *run, uint32_t rows, uint32_t spans, uint32_t hidden,
                                      enum st_rows_mode mode, struct strata_error *err)
{
    struct job j;
    struct ngram g = {.hidden = hidden, .streams = 4, .taps = 4, .dilation = 3};
    size_t wide = (size_t)hidden * g.streams;
    snprintf(run->shape, sizeof run->shape, "ngram_inject: %u rows in %u sequences of 4 x %u%s", rows, spans, hidden,
             mode_names[mode]);
    start(&j, run, err);
    make_rows(&j, rows, spans, 40);
    j.rows.mode = mode;
    if (mode != ST_ROWS_ADVANCE)
        g.kept = take_floats(&j, ST_HELD_ROWS * wide, CLOSE, BOUND_FLOAT);
    g.key = take_floats(&j, rows * wide, FREE, 0);
    g.value = floats(&j, (size_t)rows * hidden);
    for (int i = 0; i < 3; i++)
        g.norm[i] = floats(&j, wide);
    g.conv = floats(&j, g.taps * wide);
    g.z = take(&j, rows * wide * 4, FREE, 0);
    g.state = take_floats(&j, j.slots * (g.taps - 1) * g.dilation * wide, CLOSE, BOUND_FLOAT);
    g.r = take_floats(&j, rows * wide, CLOSE, BOUND_FLOAT);
    return finish(&j, build_inject, &g, NULL, 0);
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

/* ---- gated delta network ---- */

struct gdn {
    uint32_t keys, values, dk, dv, taps, channels;
    int u, z, b, a, conv, ssm_a, dt_bias, gamma, conv_state, state, kept, c, o;
    struct after after;
};

static void build_gdn(struct job *j, const void *family, struct st_command *c)
{
    struct gdn *g = (struct gdn *)(uintptr_t)family;
    build_after(j, &g->after, at(j, g->o), c + 1);
    *c = (struct st_command){.op = ST_OP_gdn,
                             .u.gdn = {.rows = rows_at(j),
                                       .u = at(j, g->u),
                                       .z = at(j, g->z),
                                       .b = at(j, g->b),
                                       .a = at(j, g->a),
                                       .conv = at(j, g->conv),
                                       .ssm_a = at(j, g->ssm_a),
                                       .dt_bias = at(j, g->dt_bias),
                                       .gamma = at(j, g->gamma),
                                       .conv_state = at(j, g->conv_state),
                                       .state = at(j, g->state),
                                       .kept = j->rows.mode == ST_ROWS_ADVANCE ? NULL : at(j, g->kept),
                                       .c = at(j, g->c),
                                       .o = at(j, g->o),
                                       .key_heads = g->keys,
                                       .value_heads = g->values,
                                       .key_dim = g->dk,
                                       .value_dim = g->dv,
                                       .taps = g->taps,
                                       .channels = g->channels,
                                       .eps = 1e-6f}};
}

static enum strata_result test_delta(struct st_test_run *run, uint32_t rows, uint32_t spans, uint32_t keys, uint32_t values,
                                     uint32_t dim, enum st_rows_mode mode, struct strata_error *err)
{
    struct job j;
    struct gdn g = {.keys = keys, .values = values, .dk = dim, .dv = dim, .taps = 4};
    size_t inner = (size_t)values * dim;
    float bound = rows <= ST_GDN_STEP ? BOUND_STEPS : BOUND_CHUNKS;
    g.channels = 2 * keys * dim + values * dim;
    snprintf(run->shape, sizeof run->shape, "gdn: %u rows in %u sequences, %u heads of %u x %u, %u key heads%s", rows, spans, values,
             dim, dim, keys, mode_names[mode]);
    start(&j, run, err);
    make_rows(&j, rows, spans, 30);
    j.rows.mode = mode;
    if (mode != ST_ROWS_ADVANCE)
        g.kept = take_floats(&j, st_gdn_kept_floats(g.channels, values), EXACT, 0);
    g.u = floats(&j, (size_t)rows * g.channels);
    g.z = floats(&j, rows * inner);
    g.b = floats(&j, (size_t)rows * values);
    g.a = floats(&j, (size_t)rows * values);
    g.conv = floats(&j, (size_t)g.taps * g.channels);
    g.ssm_a = floats(&j, values);
    g.dt_bias = floats(&j, values);
    g.gamma = floats(&j, dim);
    g.conv_state = take_floats(&j, (size_t)j.slots * (g.taps - 1) * g.channels, EXACT, 0);
    g.state = take_floats(&j, j.slots * inner * dim, CLOSE, bound);
    g.c = take(&j, (size_t)rows * g.channels * 4, FREE, 0);
    g.o = take(&j, rows * inner * 4, mode == ST_ROWS_COMMIT ? FREE : CLOSE, bound); /* nobody reads that of a commit */
    if (mode != ST_ROWS_COMMIT && st_test_below(run, 2))
        take_after(&j, &g.after, (uint32_t)inner);
    for (uint32_t i = 0; i < values && j.r == STRATA_OK; i++) /* -exp of something: not positive */
        ((float *)input(&j, g.ssm_a))[i] = -fabsf(((float *)input(&j, g.ssm_a))[i]);
    return finish(&j, build_gdn, &g, NULL, (size_t)(3 * dim) * ST_GDN_CHUNK * 4);
}

enum strata_result st_test_gdn(struct st_test_run *run, struct strata_error *err)
{
    static const uint32_t shapes[][5] = {{5, 2, 2, 6, 32},   {1, 1, 2, 2, 128},  {9, 1, 1, 3, 64},  {2, 2, 1, 1, 32},
                                         {8, 1, 2, 4, 128},  {8, 8, 2, 4, 32},   {70, 1, 1, 2, 32}, {130, 3, 2, 2, 64},
                                         {40, 5, 1, 2, 128}, {200, 1, 1, 1, 128}};
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

/* ---- attention ---- */

struct attention {
    uint32_t heads, kv_heads, dim, index_heads, index_dim, budget, ratio, rot;
    enum st_kv_type kv;
    bool gated, neighbours, normed;
    size_t kv_bytes;
    int q, k, v, iq, ik, norm[4], k_cache, v_cache, ring, axis_ring, pooled, chosen, count, out, freq, axis;
    struct st_rope rope;
    struct after after;
};

static void build_qsa(struct job *j, const void *family, struct st_command *c)
{
    struct attention *a = (struct attention *)(uintptr_t)family;
    build_after(j, &a->after, at(j, a->out), c + 1);
    a->rope.freq_at = at(j, a->freq);
    a->rope.axis_at = at(j, a->axis);
    *c = (struct st_command){.op = ST_OP_qsa,
                             .u.qsa = {.rows = rows_at(j),
                                       .rope = &a->rope,
                                       .q = at(j, a->q),
                                       .k = at(j, a->k),
                                       .v = at(j, a->v),
                                       .k_cache = at(j, a->k_cache),
                                       .v_cache = at(j, a->v_cache),
                                       .chosen_count = at(j, a->count),
                                       .out = at(j, a->out),
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
        q->q_norm = at(j, a->norm[0]);
        q->k_norm = at(j, a->norm[1]);
    }
    if (a->ratio) {
        q->iq = at(j, a->iq);
        q->ik = at(j, a->ik);
        q->iq_norm = at(j, a->norm[2]);
        q->ik_norm = at(j, a->norm[3]);
        q->raw_ring = at(j, a->ring);
        q->axis_ring = at(j, a->axis_ring);
        q->pooled = at(j, a->pooled);
        q->chosen = at(j, a->chosen);
        q->index_heads = a->index_heads;
        q->index_dim = a->index_dim;
    }
}

/* Stored rows of values for all positions of the caches. */
static void fill_cache(struct job *j, const struct attention *a, int buffer)
{
    float x[ST_QSA_DIM_MAX];
    uint8_t *to = input(j, buffer);
    for (size_t i = 0; i < (size_t)j->slots * a->kv_heads * j->context; i++) {
        st_test_floats(j->run, x, a->dim);
        st_kv_store(a->kv, to + i * a->kv_bytes, x, a->dim);
    }
}

/* Keys were normed and turned before they were stored, so a code may have been rounded the other way: elements may be off by a
 * step of their block's scale. */
static void check_keys(struct job *j, const struct attention *a)
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
static bool check_choice(struct job *j, const struct attention *a, size_t row)
{
    struct st_test_run *run = j->run;
    const uint32_t *list = (const uint32_t *)(const void *)(run->buffer[a->chosen].got + ST_TEST_GUARD) + row * (a->budget + a->ratio);
    const uint32_t *reference = (const uint32_t *)(const void *)run->buffer[a->chosen].want + row * (a->budget + a->ratio);
    const int32_t count = ((const int32_t *)(const void *)run->buffer[a->count].want)[row];
    if (count < 0 || memcmp(list, reference, (size_t)count * 4) == 0)
        return true;
    size_t slot = (size_t)((int32_t *)input(j, j->slot))[row], visible = (size_t)((int32_t *)input(j, j->pos))[row] + 1;
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

static void check_qsa(struct job *j, const void *family)
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
                memcpy(y->want + row * AFTER_ROWS * 4, y->got + ST_TEST_GUARD + row * AFTER_ROWS * 4, AFTER_ROWS * 4);
        }
    if (!j->run->fault[0])
        check_close(j, a->out);
    if (!j->run->fault[0] && j->commands == 2)
        check_close(j, a->after.y);
}

static void fill_qsa(struct job *j, struct attention *a)
{
    if (j->r != STRATA_OK)
        return;
    fill_cache(j, a, a->k_cache);
    fill_cache(j, a, a->v_cache);
    uint8_t *axis = input(j, a->axis);
    float *freq = input(j, a->freq);
    for (uint32_t i = 0; i < a->rot / 2; i++) {
        a->rope.freq[i] = freq[i] = powf(1e4f, -2.0f * (float)i / (float)a->rot);
        a->rope.axis[i] = axis[i] = (uint8_t)(i % 3);
    }
    int32_t *ring = a->ratio ? input(j, a->axis_ring) : NULL;
    for (uint32_t i = 0; i < j->slots * ST_QSA_RING * 3 && ring; i++)
        ring[i] = (int32_t)st_test_below(j->run, 50);
}

static enum strata_result test_attention(struct st_test_run *run, struct attention a, uint32_t rows, uint32_t spans,
                                         uint32_t late, struct strata_error *err)
{
    static const char *const types[ST_KV_COUNT] = {"f32", "f16", "int8", "q4"};
    struct job j;
    a.rope = (struct st_rope){.rot = a.rot, .neighbours = a.neighbours, .gain = a.gated ? 0.125f : 0};
    a.kv_bytes = st_kv_row_bytes(a.kv, a.dim);
    snprintf(run->shape, sizeof run->shape, "qsa: %u rows in %u sequences up to %u, %u/%u heads of %u, %s, budget %u of blocks of %u%s",
             rows, spans, late + rows, a.heads, a.kv_heads, a.dim, types[a.kv], a.budget, a.ratio,
             a.gated ? ", gated" : "");
    start(&j, run, err);
    make_rows(&j, rows, spans, late);
    size_t cached = (size_t)j.slots * a.kv_heads * j.context * a.kv_bytes, blocks = a.ratio ? j.context / a.ratio : 0;
    a.q = take_floats(&j, (size_t)rows * a.heads * a.dim * (a.gated ? 2 : 1), CLOSE, BOUND_FLOAT);
    a.k = floats(&j, (size_t)rows * a.kv_heads * a.dim);
    a.v = floats(&j, (size_t)rows * a.kv_heads * a.dim);
    a.iq = take_floats(&j, (size_t)rows * a.index_heads * a.index_dim, CLOSE, BOUND_FLOAT);
    a.ik = floats(&j, (size_t)rows * a.index_dim);
    for (int i = 0; i < 4; i++)
        a.norm[i] = floats(&j, i < 2 ? a.dim : a.index_dim);
    a.k_cache = take(&j, cached, FREE, 0);
    a.v_cache = take(&j, cached, EXACT, 0);
    a.ring = take_floats(&j, (size_t)j.slots * ST_QSA_RING * a.index_dim, EXACT, 0);
    a.axis_ring = take(&j, (size_t)j.slots * ST_QSA_RING * 12, EXACT, 0);
    a.pooled = take_floats(&j, j.slots * blocks * a.index_dim, CLOSE, BOUND_FLOAT);
    a.chosen = take(&j, (size_t)rows * (a.budget + a.ratio) * 4, FREE, 0);
    a.count = take(&j, (size_t)rows * 4, EXACT, 0);
    a.out = take(&j, (size_t)rows * a.heads * a.dim * 4, FREE, bound_attention[a.kv]);
    if (a.heads * a.dim % 32 == 0 && a.kv == ST_KV_F32)
        take_after(&j, &a.after, a.heads * a.dim);
    j.kind[a.after.y] = j.commands == 2 ? FREE : j.kind[a.after.y]; /* compared after the choices were looked at */
    a.freq = floats(&j, a.rot / 2);
    a.axis = take(&j, a.rot / 2, EXACT, 0);
    fill_qsa(&j, &a);
    struct st_qsa shape = {.heads = a.heads, .kv_heads = a.kv_heads, .head_dim = a.dim, .context = j.context, .ratio = a.ratio};
    return finish(&j, build_qsa, &a, check_qsa, st_qsa_scratch_bytes(&shape));
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
    for (size_t i = 0; i < (run->options->quick ? 6 : sizeof cases / sizeof *cases) && r == STRATA_OK; i++)
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

static void build_route(struct job *j, const void *family, struct st_command *c)
{
    struct choice *a = (struct choice *)(uintptr_t)family;
    a->w[0].data = at(j, a->router);
    a->w[1].data = at(j, a->gate);
    a->routing = (struct st_routing){.expert = at(j, a->expert),
                                     .weight = at(j, a->weight),
                                     .shared = at(j, a->shared),
                                     .first = at(j, a->first),
                                     .entry = at(j, a->entry),
                                     .where = at(j, a->where)};
    *c = (struct st_command){.op = ST_OP_route,
                             .u.route = {.n = &j->rows.n,
                                         .m = at(j, a->m),
                                         .router = &a->w[0],
                                         .shared_gate = &a->w[1],
                                         .logits = at(j, a->logits),
                                         .to = &a->routing,
                                         .experts = a->experts,
                                         .used = a->used,
                                         .hidden = a->hidden,
                                         .acts = &a->acts}};
}

/* Small whole numbers over 8: logits are exact in any order of sums, and ties are many. */
static int take_eighths(struct job *j, size_t n, uint32_t range)
{
    int i = take(j, n * 4, EXACT, 0);
    for (size_t k = 0; k < n && j->r == STRATA_OK; k++)
        ((float *)input(j, i))[k] = ((float)st_test_below(j->run, 2 * range + 1) - (float)range) / 8.0f;
    return i;
}

static enum strata_result test_choice(struct st_test_run *run, uint32_t rows, uint32_t experts, uint32_t used,
                                      struct strata_error *err)
{
    struct job j;
    struct choice a = {.experts = experts, .used = used, .hidden = 48};
    snprintf(run->shape, sizeof run->shape, "route: %u rows, %u of %u experts", rows, used, experts);
    start(&j, run, err);
    j.rows.n = (int32_t)rows;
    a.m = take_eighths(&j, (size_t)rows * a.hidden, 3);
    a.router = take_eighths(&j, (size_t)experts * a.hidden, 5);
    a.gate = take_eighths(&j, a.hidden, 5);
    a.w[0] = (struct st_weight){.type = ST_TYPE_F32, .act = ST_ACT_F32, .cols = a.hidden, .rows = experts, .row_bytes = a.hidden * 4};
    a.w[1] = a.w[0];
    a.w[1].rows = 1;
    a.logits = take(&j, (size_t)rows * experts * 4, EXACT, 0);
    a.expert = take(&j, (size_t)rows * used * 4, EXACT, 0);
    a.weight = take(&j, (size_t)rows * used * 4, EXACT, 0);
    a.shared = take(&j, (size_t)rows * 4, EXACT, 0);
    a.first = take(&j, (experts + 1) * 4, EXACT, 0);
    a.entry = take(&j, (size_t)rows * used * 4, EXACT, 0);
    a.where = take(&j, (size_t)rows * used * 4, EXACT, 0);
    return finish(&j, build_route, &a, NULL, 0);
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
