/* Stage on the CPU: weights in the mapped file, state and buffers in one arena, commands run by a team of threads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "engine/expert_store.h"
#include "engine/pace.h"
#include "engine/stage.h"
#include "engine/trace.h"

/* Passes of a few rows wait at a barrier after little work, those of many after much: each kind has its own pace. */
enum { FEW_ROWS = 8 };

struct cpu_stage {
    struct st_stage base;
    const struct st_kernels *kernels;
    struct st_team *team;
    struct st_pace few, many; /* seconds of a pass; seconds of a row */
    const struct st_rows *rows;
    uint8_t *arena;
};

/* Commands [from, to) of a program, run by the whole team with a barrier between them. */
struct stretch {
    const struct st_kernels *kernels;
    const struct st_command *commands;
    size_t from, to;
    struct st_expert_profile *choices; /* NULL, or counts */
    uint32_t draft_row;
    struct st_trace *trace; /* or NULL */
    const char *place;
};

static void run_stretch(void *arg, struct st_worker *w)
{
    const struct stretch *s = arg;
    for (size_t i = s->from; i < s->to; i++) {
        const struct st_command *c = &s->commands[i];
        if (s->choices && w->index == 0 && c->op == ST_OP_experts) /* the routing stays as it is meanwhile */
            st_expert_profile_add(s->choices, c->layer < 0 ? s->draft_row : (uint32_t)c->layer, c->u.experts.routing->first);
        double start = s->trace ? st_trace_now() : 0;
        st_command_run(s->kernels, &s->commands[i], w);
        if (s->trace)
            st_trace_add(s->trace, &(struct st_trace_span){.place = s->place, .lane = "worker", .number = (int)w->index,
                                                           .name = st_op_name(c->op), .layer = c->layer, .from = start,
                                                           .to = st_trace_now()});
        if (i + 1 < s->to)
            st_barrier(w);
    }
}

/* First command after from that must not run in one go with it: a wait for n-gram rows, or the next layer when
 * residuals are wanted. */
static size_t stretch_end(const struct st_program *p, size_t from, bool residuals)
{
    size_t to = from + 1;
    while (to < p->n_commands && p->commands[to].op != ST_OP_ngram_gather &&
           !(residuals && p->commands[to].layer != p->commands[from].layer))
        to++;
    return to;
}

/* Recurrent state moves on by the first rows of those that were held. */
static void commit(struct cpu_stage *c)
{
    const struct st_program *p = &c->base.trunk;
    for (size_t i = 0; i < p->n_commands; i++)
        if (st_op_recurs(p->commands[i].op))
            st_team_run_on(c->team, st_pace_workers(&c->few), run_stretch,
                           &(struct stretch){.kernels = c->kernels, .commands = p->commands, .from = i, .to = i + 1});
}

static enum strata_result cpu_begin(struct st_stage *stage, const struct st_pass *pass, struct strata_error *err)
{
    struct cpu_stage *c = (struct cpu_stage *)stage;
    const struct st_program *p = pass->part == ST_PART_TRUNK ? &stage->trunk : &stage->draft;
    size_t bytes = (size_t)pass->rows->n * stage->dims.wide * sizeof(float);
    if (pass->rows->mode == ST_ROWS_COMMIT) {
        commit(c);
        return STRATA_OK;
    }
    if (pass->wide_in)
        memcpy(pass->part == ST_PART_TRUNK ? p->wide : p->wide_in, pass->wide_in, bytes);
    struct stretch s = {
        .kernels = c->kernels, .commands = p->commands, .choices = stage->choices, .draft_row = stage->dims.layers,
        .trace = stage->trace, .place = stage->name};
    enum strata_result r = STRATA_OK;
    struct st_pace *pace = pass->rows->n <= FEW_ROWS ? &c->few : &c->many;
    int workers = st_pace_workers(pace);
    uint64_t sleeps = st_team_sleeps(c->team);
    double seconds = 0;
    while (s.from < p->n_commands && !r) {
        const struct st_command *first = &p->commands[s.from];
        if (first->op == ST_OP_ngram_gather)
            r = st_ngram_io_finish(pass->ngram, err);
        s.to = stretch_end(p, s.from, pass->residuals != NULL);
        double start = st_trace_now();
        if (!r)
            st_team_run_on(c->team, workers, run_stretch, &s);
        seconds += st_trace_now() - start;
        if (pass->residuals && first->layer >= 0)
            memcpy(pass->residuals + (size_t)first->layer * pass->residual_stride + pass->first_row * stage->dims.wide,
                   p->wide, bytes);
        s.from = s.to;
    }
    if (!r && pass->part == ST_PART_TRUNK)
        st_pace_report(pace, pace == &c->few ? seconds : seconds / pass->rows->n, st_team_sleeps(c->team) - sleeps);
    if (!r && pass->wide_out)
        memcpy(pass->wide_out, p->wide, bytes);
    stage->logits = p->logits;
    return r;
}

static enum strata_result cpu_finish(struct st_stage *s, struct strata_error *err)
{
    (void)s;
    (void)err;
    return STRATA_OK;
}

static void cpu_drop(struct st_stage *s)
{
    (void)s;
}

static enum strata_result cpu_lock_host(struct st_stage *s, void *memory, uint64_t bytes, struct strata_error *err)
{
    (void)s;
    (void)memory;
    (void)bytes;
    (void)err;
    return STRATA_OK;
}

static bool cpu_unlock_host(struct st_stage *s, void *memory)
{
    (void)s;
    (void)memory;
    return true;
}

static enum strata_result cpu_read(struct st_stage *s, void *to, const uint8_t *at, uint64_t bytes,
                                   struct strata_error *err)
{
    (void)s;
    (void)err;
    memcpy(to, at, bytes);
    return STRATA_OK;
}

static enum strata_result cpu_write(struct st_stage *s, uint8_t *at, const void *from, uint64_t bytes,
                                    struct strata_error *err)
{
    (void)s;
    (void)err;
    memcpy(at, from, bytes);
    return STRATA_OK;
}

static enum strata_result cpu_clear(struct st_stage *s, uint8_t *at, uint64_t bytes, struct strata_error *err)
{
    (void)s;
    (void)err;
    memset(at, 0, bytes);
    return STRATA_OK;
}

static void cpu_close(struct st_stage *stage)
{
    struct cpu_stage *c = (struct cpu_stage *)stage;
    st_team_free(c->team);
    st_program_free(&stage->trunk);
    st_program_free(&stage->draft);
    st_model_close(&stage->bound);
    free(c->arena);
    free(c);
}

static const struct st_stage_ops cpu_ops = {.begin = cpu_begin,
                                            .finish = cpu_finish,
                                            .drop = cpu_drop,
                                            .lock_host = cpu_lock_host,
                                            .unlock_host = cpu_unlock_host,
                                            .read = cpu_read,
                                            .write = cpu_write,
                                            .clear = cpu_clear,
                                            .close = cpu_close};

/* Lays out the programs from base; NULL only counts. */
static enum strata_result lay_out(struct cpu_stage *c, uint8_t *base, struct strata_error *err)
{
    struct st_stage *s = &c->base;
    struct st_bump state = {.base = base}, scratch = {.base = base ? base + s->state_bytes : NULL};
    st_program_free(&s->trunk);
    st_program_free(&s->draft);
    enum strata_result r =
        s->bound.family->place(&s->bound, ST_PART_TRUNK, &s->placement, c->rows, &state, &scratch, &s->trunk, err);
    if (!r && s->dims.draft)
        r = s->bound.family->place(&s->bound, ST_PART_DRAFT, &s->placement, c->rows, &state, &scratch, &s->draft, err);
    s->state_bytes = state.peak;
    s->buffer_bytes = scratch.peak;
    return r;
}

static size_t worker_scratch(const struct st_stage *s)
{
    return s->trunk.worker_scratch > s->draft.worker_scratch ? s->trunk.worker_scratch : s->draft.worker_scratch;
}

/* st_put_fn: counts what lies in the file. */
static enum strata_result count_weight(void *user, const char *name, const void *data, uint64_t bytes, const void **out,
                                       struct strata_error *err)
{
    (void)name;
    (void)err;
    *(uint64_t *)user += bytes;
    *out = data;
    return STRATA_OK;
}

enum strata_result st_stage_cpu_size(const struct st_stage_config *config, int threads, struct st_stage_size *out,
                                     struct strata_error *err)
{
    struct st_rows rows = {0};
    struct cpu_stage c = {.rows = &rows};
    struct st_stage *s = &c.base;
    struct st_model_options o = config->options;
    *out = (struct st_stage_size){0};
    o.put = count_weight;
    o.put_user = &out->weights;
    s->placement = config->placement;
    enum strata_result r = st_model_open(config->gguf, config->draft_gguf, &o, &s->bound, err);
    if (!r) {
        s->bound.family->dims(&s->bound, &s->dims);
        r = lay_out(&c, NULL, err);
    }
    out->state = s->state_bytes;
    out->buffers = s->buffer_bytes;
    out->launches = s->trunk.n_commands;
    out->read = st_program_traffic(&s->trunk, ST_STAGE_DEPTH);
    out->expert_read = st_program_expert_traffic(&s->trunk, &out->steps);
    out->kv = st_program_kv_bytes(&s->trunk, s->placement.slots) + st_program_kv_bytes(&s->draft, s->placement.slots);
    if (!r &&
        (!st_mul_u64((uint64_t)threads, worker_scratch(s), &out->scratch) ||
         !st_add_u64(out->state, out->buffers, &out->total) || !st_add_u64(out->total, out->scratch, &out->total)))
        r = st_fail(err, STRATA_E_LIMIT, "cpu: layers %u..%u do not fit in any memory", o.first, o.end - 1);
    st_program_free(&s->trunk);
    st_program_free(&s->draft);
    st_model_close(&s->bound);
    return r;
}

enum strata_result st_stage_shape(const struct st_stage_config *config, struct st_decode_shape *out,
                                      struct strata_error *err)
{
    struct st_rows rows = {0};
    struct cpu_stage c = {.rows = &rows, .base.placement = config->placement};
    struct st_stage *s = &c.base;
    enum strata_result r = st_model_open(config->gguf, config->draft_gguf, &config->options, &s->bound, err);
    if (!r) {
        s->bound.family->dims(&s->bound, &s->dims);
        r = lay_out(&c, NULL, err);
    }
    if (!r)
        st_program_shape(&s->trunk, out);
    st_program_free(&s->trunk);
    st_program_free(&s->draft);
    st_model_close(&s->bound);
    return r;
}

static enum strata_result open_arena(struct cpu_stage *c, struct strata_error *err)
{
    struct st_stage *s = &c->base;
    enum strata_result r = lay_out(c, NULL, err);
    if (r)
        return r;
    uint64_t bytes = s->state_bytes + s->buffer_bytes;
    if (bytes < s->state_bytes || bytes > SIZE_MAX / 2 || !(c->arena = aligned_alloc(64, bytes)))
        return st_fail(err, STRATA_E_MEMORY,
                       "%s: no memory for %llu MiB of state and buffers (context %u, %u sessions)", s->bound.gguf->path,
                       (unsigned long long)(bytes >> 20), s->placement.context, s->placement.slots);
    return lay_out(c, c->arena, err);
}

enum strata_result st_stage_cpu_open(const struct st_stage_config *config, const struct st_rows *rows,
                                     const struct st_kernels *kernels, int threads, struct st_stage **out,
                                     struct strata_error *err)
{
    struct cpu_stage *c = calloc(1, sizeof *c);
    if (!c)
        return st_fail(err, STRATA_E_MEMORY, "cpu: no memory for a stage");
    struct st_stage *s = &c->base;
    s->ops = &cpu_ops;
    s->host = true;
    snprintf(s->name, sizeof s->name, "cpu");
    s->placement = config->placement;
    c->kernels = kernels;
    c->rows = rows;
    c->few = c->many = st_pace(threads);
    enum strata_result r = st_model_open(config->gguf, config->draft_gguf, &config->options, &s->bound, err);
    if (!r) {
        s->bound.family->dims(&s->bound, &s->dims);
        s->first = config->options.first;
        s->end = config->options.end ? config->options.end : s->dims.layers;
        r = open_arena(c, err);
    }
    if (!r)
        r = st_team_create(threads, worker_scratch(s), &c->team, err);
    if (r) {
        cpu_close(s);
        return r;
    }
    *out = s;
    return STRATA_OK;
}
