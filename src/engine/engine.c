/* strata_engine: the model's programs placed in one arena, and the passes over them. */
#include "engine/pipeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "engine/expert_store.h"
#include "engine/park.h"
#include "engine/session_file.h"
#include "engine/speculate.h"

static const uint64_t DEFAULT_SESSION_DISK = 16ull << 30;

enum {
    DEFAULT_CONTEXT = 8192,
    CONTEXT_MAX = 1 << 22,
    SESSIONS_MAX = 256,
    ROPE_SCALE_MAX = 64,
    NGRAM_CACHE_ROWS = 1 << 16,
};

static uint32_t or_default(uint32_t value, uint32_t fallback)
{
    return value ? value : fallback;
}

static enum st_kv_type kv_type(enum strata_kv kv)
{
    switch (kv) {
    case STRATA_KV_F16: return ST_KV_F16;
    case STRATA_KV_F32: return ST_KV_F32;
    case STRATA_KV_INT8: return ST_KV_INT8;
    case STRATA_KV_Q4: return ST_KV_Q4;
    }
    return ST_KV_COUNT;
}

static enum strata_result check_rope(const struct strata_engine_options *o, struct strata_error *err)
{
    if (o->rope_scaling != STRATA_ROPE_NONE && o->rope_scaling != STRATA_ROPE_YARN)
        return st_fail(err, STRATA_E_ARGUMENT, "rope scaling %d is none of enum strata_rope_scaling", (int)o->rope_scaling);
    if (o->rope_scaling == STRATA_ROPE_NONE && o->rope_scale != 0)
        return st_fail(err, STRATA_E_ARGUMENT, "a rope scale of %g without rope scaling (yarn) has no effect", o->rope_scale);
    if (o->rope_scaling == STRATA_ROPE_YARN && !(o->rope_scale > 1 && o->rope_scale <= ROPE_SCALE_MAX))
        return st_fail(err, STRATA_E_ARGUMENT, "rope scaling needs a rope scale above 1 and up to %d, not %g", ROPE_SCALE_MAX,
                       o->rope_scale);
    return STRATA_OK;
}

static enum strata_result check_options(struct strata_engine *e, struct strata_error *err)
{
    struct strata_engine_options *o = &e->options;
    uint32_t trained = e->dims.context;
    o->devices = o->devices ? o->devices : "cpu";
    o->threads = o->threads ? o->threads : st_cpu_cores();
    o->context = or_default(o->context, trained < DEFAULT_CONTEXT ? trained : DEFAULT_CONTEXT);
    o->sessions = or_default(o->sessions, 1);
    o->session_disk = o->session_disk ? o->session_disk : DEFAULT_SESSION_DISK;
    if (kv_type(o->kv) == ST_KV_COUNT)
        return st_fail(err, STRATA_E_ARGUMENT, "KV type %d is none of enum strata_kv", (int)o->kv);
    if (o->context > CONTEXT_MAX)
        return st_fail(err, STRATA_E_ARGUMENT, "context %u is above %d tokens", o->context, CONTEXT_MAX);
    if (o->prefill > ST_PREFILL_MAX)
        return st_fail(err, STRATA_E_ARGUMENT, "prefill %u is above %d tokens", o->prefill, ST_PREFILL_MAX);
    if (o->sessions > SESSIONS_MAX)
        return st_fail(err, STRATA_E_ARGUMENT, "%u sessions are above %d", o->sessions, SESSIONS_MAX);
    if (o->prefill > o->context)
        o->prefill = o->context;
    if (o->drafts >= ST_HELD_ROWS)
        return st_fail(err, STRATA_E_ARGUMENT, "%u drafts are above %d", o->drafts, ST_HELD_ROWS - 1);
    if (!(o->draft_min_p >= 0 && o->draft_min_p <= 1))
        return st_fail(err, STRATA_E_ARGUMENT, "the least probability of a draft, %g, is not in 0..1", (double)o->draft_min_p);
    return STRATA_OK;
}

/* The arrays of a pass of n rows; *numbers: of the n-gram rows, [n][heads]. */
static struct st_rows take_rows(const struct strata_engine *e, uint64_t n, struct st_bump *b, uint64_t **numbers)
{
    struct st_rows rows = {.slot = st_bump_take(b, n, sizeof(int32_t)),
                           .pos = st_bump_take(b, n, sizeof(int32_t)),
                           .token = st_bump_take(b, n, sizeof(int32_t)),
                           .axis = st_bump_take(b, n, 3 * sizeof(int32_t)),
                           .history = st_bump_take(b, n, ST_HISTORY * sizeof(int32_t)),
                           .out = st_bump_take(b, n, sizeof(int32_t)),
                           .span = st_bump_take(b, n + 1, sizeof(int32_t)),
                           .embd = st_bump_take(b, n, e->dims.hidden * sizeof(float)),
                           .embd_row = st_bump_take(b, n, 1)};
    *numbers = NULL;
    if (e->ngram.hash) {
        rows.ngram = e->ngram_io ? st_ngram_io_data(e->ngram_io) : NULL;
        rows.ngram_index = st_bump_take(b, n * e->ngram.hash->heads, sizeof(uint32_t));
        *numbers = st_bump_take(b, n * e->ngram.hash->heads, sizeof(uint64_t));
    }
    return rows;
}

static struct st_model_options bind_options(const struct strata_engine *e)
{
    enum strata_mtp_norm norm = e->options.mtp_norm;
    return (struct st_model_options){.fp32 = e->options.fp32,
                                     .yarn = e->options.rope_scaling == STRATA_ROPE_YARN ? e->options.rope_scale : 0,
                                     .ngram = e->ngram_gguf,
                                     .draft_norm_per_stream =
                                         norm == STRATA_MTP_NORM_FILE ? -1 : norm == STRATA_MTP_NORM_PER_STREAM};
}

static enum strata_result open_rows(struct strata_engine *e, struct strata_error *err)
{
    struct st_bump b = {0};
    take_rows(e, e->placement.rows, &b, &e->ngram_rows);
    if (b.overflow || !(e->row_memory = aligned_alloc(64, b.peak)))
        return st_fail(err, STRATA_E_MEMORY, "no memory for passes of %u rows", e->placement.rows);
    b = (struct st_bump){.base = e->row_memory};
    e->rows = take_rows(e, e->placement.rows, &b, &e->ngram_rows);
    return STRATA_OK;
}

uint64_t st_engine_pass_bytes(void *user, const struct st_placement *placement)
{
    const struct strata_engine *e = user;
    struct st_bump b = {0};
    uint64_t *numbers;
    take_rows(e, placement->rows, &b, &numbers);
    uint64_t ids = (uint64_t)placement->slots * placement->context * sizeof(int32_t) + placement->slots * st_spec_bytes(e);
    uint64_t ngram = e->ngram.hash ? st_ngram_io_bytes((uint32_t)e->ngram.table->row_bytes,
                                                       (size_t)placement->rows * e->ngram.hash->heads, NGRAM_CACHE_ROWS)
                                   : 0;
    return b.peak + ids + ngram;
}

/* The table of n-grams, if the model has one: rows are fetched by the pass. */
static enum strata_result open_ngram(struct strata_engine *e, struct strata_error *err)
{
    if (!e->ngram.hash)
        return STRATA_OK;
    const struct st_gguf_shard *shard = &e->ngram.gguf->shards[e->ngram.tensor->shard];
    struct st_ngram_source source = {.path = shard->path,
                                     .fd = shard->map.fd,
                                     .offset = e->ngram.tensor->offset,
                                     .map = e->ngram.tensor->data,
                                     .rows = e->ngram.tensor->ne[1],
                                     .row_bytes = (uint32_t)e->ngram.table->row_bytes};
    return st_ngram_io_create(&source, (size_t)e->placement.rows * e->ngram.hash->heads, NGRAM_CACHE_ROWS, true,
                              &e->ngram_io, err);
}

static struct st_stage_config stage_config(struct strata_engine *e)
{
    return (struct st_stage_config){.gguf = e->model->gguf,
                                    .draft_gguf = e->draft_gguf,
                                    .options = bind_options(e),
                                    .placement = e->placement,
                                    .ngram = &e->ngram};
}

/* Opens devices and plans. most: largest chunk of an automatic choice. */
static enum strata_result make_plan(struct strata_engine *e, uint32_t most, bool predict, struct strata_error *err)
{
    struct st_stage_config config = stage_config(e);
    enum strata_result r = st_engine_make_plan(e, &config, most, predict, err);
    if (r)
        return r;
    e->placement = e->plan.placement;
    e->options.prefill = e->plan.prefill;
    return STRATA_OK;
}

static enum strata_result open_stages(struct strata_engine *e, struct strata_error *err)
{
    struct st_stage_config config = stage_config(e);
    enum strata_result r = st_engine_open_stages(e, &config, err);
    return r ? r : st_pipeline_open(e, err);
}

/* A text of the options that is read again when devices are lost. */
static enum strata_result keep_text(const char **text, char **own, struct strata_error *err)
{
    if (*text && !(*text = *own = strdup(*text)))
        return st_fail(err, STRATA_E_MEMORY, "no memory for an engine");
    return STRATA_OK;
}

/* The profile of the options, if it is one of this model. */
static enum strata_result read_profile(struct strata_engine *e, struct strata_error *err)
{
    const char *path = e->options.expert_profile;
    if (!path)
        return STRATA_OK;
    if (!(e->profile = calloc(1, sizeof *e->profile)))
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for a profile", path);
    enum strata_result r = st_expert_profile_read(path, e->profile, err);
    if (!r && (e->profile->experts != e->dims.experts || e->profile->rows != e->dims.layers + 1))
        return st_fail(err, STRATA_E_ARGUMENT, "%s: a profile of %u layers with %u experts; the model has %u with %u", path,
                       e->profile->rows - 1, e->profile->experts, e->dims.layers, e->dims.experts);
    if (!r && e->profile->fingerprint && e->profile->fingerprint != st_model_fingerprint(e->model->gguf))
        return st_fail(err, STRATA_E_ARGUMENT, "%s: the profile was made with another model", path);
    return r;
}

/* Model, options, devices and plan: everything that is known before memory is taken. The caller frees *out after a failure too. */
static enum strata_result prepare(const struct strata_model *model, const struct strata_engine_options *options,
                                  const struct st_runtime *const *runtimes, const struct st_image_set *images, bool predict,
                                  struct strata_engine **out, struct strata_error *err)
{
    static const struct strata_engine_options defaults;
    struct strata_engine *e = *out = calloc(1, sizeof *e);
    if (!e)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for an engine", model->gguf->path);
    e->model = model;
    e->runtimes = runtimes;
    e->images = images;
    e->options = options ? *options : defaults;
    enum strata_result r = STRATA_OK;
    if (e->options.mtp_path && strcmp(e->options.mtp_path, "auto") == 0)
        r = st_find_draft_file(model, &e->mtp_path, err);
    else if (e->options.mtp_path && !(e->mtp_path = strdup(e->options.mtp_path)))
        r = st_fail(err, STRATA_E_MEMORY, "no memory for an engine");
    e->options.mtp_path = e->mtp_path;
    if (!r && e->mtp_path)
        r = st_gguf_open(e->mtp_path, &e->draft_gguf, err);
    if (!r && e->options.session_dir && !(e->options.session_dir = e->session_dir = strdup(e->options.session_dir)))
        r = st_fail(err, STRATA_E_MEMORY, "no memory for an engine");
    if (!r && e->options.ple_path)
        r = st_gguf_open(e->options.ple_path, &e->ngram_gguf, err);
    if (!r)
        r = keep_text(&e->options.ple_path, &e->ple_path, err);
    if (!r)
        r = keep_text(&e->options.expert_cache, &e->expert_cache, err);
    if (!r)
        r = keep_text(&e->options.program_cache, &e->program_cache, err);
    if (!r)
        r = keep_text(&e->options.expert_profile, &e->profile_path, err);
    struct st_model_options bind = bind_options(e);
    if (!r)
        r = check_rope(&e->options, err);
    if (!r)
        r = st_model_open(model->gguf, e->draft_gguf, &bind, &e->bound, err);
    if (!r) {
        e->bound.family->dims(&e->bound, &e->dims);
        r = check_options(e, err);
    }
    if (!r)
        r = read_profile(e, err);
    if (!r && model->tokenizer && st_tokenizer_count(model->tokenizer) > e->dims.embeddings)
        r = st_fail(err, STRATA_E_MODEL, "%s: %zu tokens but only %u rows of token_embd.weight", model->gguf->path,
                    st_tokenizer_count(model->tokenizer), e->dims.embeddings);
    if (!r && e->bound.family->ngram)
        e->bound.family->ngram(&e->bound, &e->ngram);
    if (!r)
        r = st_kernels_choose(e->options.cpu, &e->kernels, err);
    if (r)
        return r;
    e->options.cpu = e->kernels.name;
    e->asked_prefill = e->options.prefill;
    e->placement = (struct st_placement){
        .slots = e->options.sessions, .context = e->options.context, .kv = kv_type(e->options.kv), .hold = e->options.drafts > 0};
    r = make_plan(e, ST_PREFILL_MAX, predict || e->options.predict, err);
    if (!r && e->options.context_shift && st_plan_recurrent(&e->plan))
        r = st_fail(err, STRATA_E_UNSUPPORTED,
                    "%s: no context shift for this model: it keeps recurrent state (%.1f MiB for each conversation) in which all tokens "
                    "are mixed, so the oldest cannot be taken out; give a larger context instead, beyond the trained one with "
                    "--rope-scaling",
                    model->gguf->path, (double)st_plan_recurrent(&e->plan) / e->options.sessions / (1 << 20));
    return r;
}

enum strata_result st_engine_plan_only(const struct strata_model *model, const struct strata_engine_options *options,
                                       struct strata_engine **out, struct strata_error *err)
{
    struct strata_engine *e;
    enum strata_result r = prepare(model, options, NULL, NULL, true, &e, err);
    if (r)
        strata_engine_free(e);
    else
        *out = e;
    return r;
}

enum strata_result strata_engine_create(const struct strata_model *model, const struct strata_engine_options *options,
                                        struct strata_engine **out, struct strata_error *err)
{
    return st_engine_create(model, options, NULL, NULL, out, err);
}

enum strata_result st_engine_create(const struct strata_model *model, const struct strata_engine_options *options,
                                    const struct st_runtime *const *runtimes, const struct st_image_set *images,
                                    struct strata_engine **out, struct strata_error *err)
{
    struct strata_engine *e;
    enum strata_result r = prepare(model, options, runtimes, images, false, &e, err);
    if (!r && !(e->slot = calloc(e->options.sessions, sizeof *e->slot)))
        r = st_fail(err, STRATA_E_MEMORY, "no memory for %u sessions", e->options.sessions);
    if (!r)
        r = open_ngram(e, err);
    if (!r)
        r = open_rows(e, err);
    if (!r)
        r = open_stages(e, err);
    if (!r)
        r = st_park_open(e, e->options.session_dir, e->options.session_disk, err);
    if (r) {
        strata_engine_free(e);
        return r;
    }
    *out = e;
    return STRATA_OK;
}

static void close_stages(struct strata_engine *e)
{
    st_pipeline_close(e);
    st_engine_close_stages(e);
}

void strata_engine_free(struct strata_engine *e)
{
    if (!e)
        return;
    st_park_close(e);
    close_stages(e);
    st_ngram_io_free(e->ngram_io);
    st_model_close(&e->bound);
    st_gguf_close(e->draft_gguf);
    st_gguf_close(e->ngram_gguf);
    if (e->profile)
        st_expert_profile_free(e->profile);
    free(e->profile);
    free(e->mtp_path);
    free(e->session_dir);
    free(e->profile_path);
    free(e->ple_path);
    free(e->expert_cache);
    free(e->program_cache);
    free(e->slot);
    free(e->row_memory);
    free(e);
}

void strata_engine_options(const struct strata_engine *e, struct strata_engine_options *out)
{
    *out = e->options;
}

void st_engine_find_lost(struct strata_engine *e)
{
    for (int k = 0; k < e->n_stages && !e->broken; k++) {
        struct st_device *dev = e->opened[k];
        struct strata_error why;
        if (!dev || !dev->table->device_sync(dev->rt, &why))
            continue;
        e->broken = true;
        e->n_lost = e->n_lost < ST_STAGES_MAX ? e->n_lost + 1 : ST_STAGES_MAX;
        struct st_lost_device *lost = &e->lost[e->n_lost - 1];
        lost->given_up = dev->given_up && !(dev->info.features & ST_FEATURE_SIMULATED);
        snprintf(lost->name, sizeof lost->name, "%s", dev->name);
        snprintf(lost->why, sizeof lost->why, "%.*s", (int)sizeof lost->why - 1, why.text);
    }
    for (uint32_t i = 0; i < e->options.sessions && e->broken; i++)
        if (e->slot[i])
            st_session_forget(e->slot[i]);
}

enum strata_result st_engine_ready(struct strata_engine *e, struct strata_error *err)
{
    if (!e->broken)
        return STRATA_OK;
    close_stages(e);
    /* Rows have their memory already, so chunks do not grow. */
    enum strata_result r = make_plan(e, e->options.prefill, false, err);
    if (!r)
        r = open_stages(e, err);
    if (r) {
        close_stages(e);
        if (err)
            err->code = STRATA_E_DEVICE; /* whatever it was, the caller's request is not the reason */
        return st_fail_in(err, STRATA_E_DEVICE, "the model could not be loaded again after %s was lost",
                          e->lost[e->n_lost - 1].name);
    }
    e->broken = false;
    for (uint32_t i = 0; i < e->options.sessions; i++)
        if (e->slot[i])
            st_session_forget(e->slot[i]); /* clears its place in the new stages */
    return STRATA_OK;
}

static void text_axis(int32_t *axis, int32_t at)
{
    axis[0] = axis[1] = axis[2] = at;
}

/* Rows of one sequence, unless spans are added. */
static void set_rows(struct strata_engine *e, size_t n)
{
    struct st_rows *rows = &e->rows;
    rows->n = (int32_t)n;
    rows->n_stream = (int32_t)(n * (e->dims.wide / e->dims.hidden));
    rows->n_spans = 1;
    rows->n_out = 0;
    rows->mode = ST_ROWS_ADVANCE;
    rows->held = 0;
    rows->span[0] = 0;
    for (size_t i = 1; i <= n; i++)
        rows->span[i] = (int32_t)n; /* spans that do not exist are empty */
}

static enum strata_result check_ids(const struct strata_engine *e, const int32_t *ids, size_t count,
                                    struct strata_error *err)
{
    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= e->dims.embeddings)
            return st_fail(err, STRATA_E_ARGUMENT, "token %zu: id %d is not in 0..%u", i, ids[i], e->dims.embeddings - 1);
    return STRATA_OK;
}

/* Rows [at, at + n) of the pass are tokens [from, from + n) of an evaluation. */
static void fill(struct strata_session *s, const struct st_input *in, size_t from, size_t n, size_t at)
{
    struct strata_engine *e = s->engine;
    struct st_rows *rows = &e->rows;
    size_t hidden = e->dims.hidden;
    for (size_t i = from; i < from + n; i++, at++) {
        size_t pos = s->count + i;
        rows->slot[at] = (int32_t)s->slot;
        rows->pos[at] = (int32_t)pos;
        rows->token[at] = s->ids[pos];
        for (uint32_t h = 0; h < ST_HISTORY; h++)
            rows->history[at * ST_HISTORY + h] = h < pos ? s->ids[pos - 1 - h] : -1;
        if (in->axis)
            memcpy(rows->axis + 3 * at, in->axis + 3 * i, 3 * sizeof *rows->axis);
        else
            text_axis(rows->axis + 3 * at, s->next_axis + (int32_t)i);
        rows->embd_row[at] = in->embd && in->embd_row[i];
        if (rows->embd_row[at])
            memcpy(rows->embd + at * hidden, in->embd + i * hidden, hidden * sizeof(float));
    }
}

void st_engine_fill_rows(struct strata_session *s, const struct st_input *in, size_t from, size_t n)
{
    fill(s, in, from, n, 0);
    set_rows(s->engine, n);
}

static size_t rows_of_parts(const struct st_window_part *parts, size_t count)
{
    size_t n = 0;
    for (size_t i = 0; i < count; i++)
        n += parts[i].n;
    return n;
}

void st_engine_fill_window(struct strata_engine *e, const struct st_window_part *parts, size_t count)
{
    static const struct st_input plain;
    size_t at = 0;
    set_rows(e, rows_of_parts(parts, count));
    e->rows.n_spans = (int32_t)count;
    for (size_t i = 0; i < count; i++) {
        e->rows.span[i] = (int32_t)at;
        fill(parts[i].session, &plain, 0, parts[i].n, at);
        at += parts[i].n;
    }
}

/* Counts done tokens of the input as held. */
static void hold(struct strata_session *s, const struct st_input *in, size_t done)
{
    s->count += (uint32_t)done;
    if (!in->axis)
        s->next_axis += (int32_t)done;
    for (size_t i = 0; i < 3 * done && in->axis; i++)
        s->next_axis = in->axis[i] >= s->next_axis ? in->axis[i] + 1 : s->next_axis;
}

enum strata_result st_session_eval(struct strata_session *s, const struct st_input *in, const struct st_output *out,
                                   struct strata_error *err)
{
    struct strata_engine *e = s->engine;
    enum strata_result r = check_ids(e, in->ids, in->count, err);
    if (!r)
        r = st_session_ready(s, err);
    if (r)
        return r;
    if (in->count > e->options.context - s->count)
        return st_fail(err, STRATA_E_LIMIT, "%u tokens held and %zu more do not fit in the context of %u", s->count,
                       in->count, e->options.context);
    memcpy(s->ids + s->count, in->ids, in->count * sizeof *s->ids);
    struct st_flow flow = {.session = s, .in = in, .out = out, .chunk = in->chunk ? in->chunk : st_pipeline_chunk(e, in->count)};
    if (out->all_logits && flow.chunk > e->placement.out_rows)
        flow.chunk = e->placement.out_rows;
    e->logits_of = NULL;
    size_t done = 0;
    r = st_pipeline_run(e, &flow, &done, err);
    if (r) {
        /* The session's state is between two tokens. */
        st_engine_find_lost(e);
        st_session_forget(s);
        return r;
    }
    hold(s, in, done);
    if (in->count && done == in->count && !out->all_logits)
        e->logits_of = s;
    return STRATA_OK;
}

/* After a failure: the state of the sessions of a window is between two tokens. */
static void forget_parts(struct strata_engine *e, const struct st_window_part *parts, size_t count)
{
    st_engine_find_lost(e);
    for (size_t i = 0; i < count; i++) {
        parts[i].session->held = 0;
        st_session_forget(parts[i].session);
    }
}

static enum strata_result check_window(struct strata_engine *e, const struct st_window_part *parts, size_t count,
                                       struct strata_error *err)
{
    size_t rows = rows_of_parts(parts, count);
    enum strata_result r = STRATA_OK;
    if (!rows || rows > ST_HELD_ROWS)
        return st_fail(err, STRATA_E_INTERNAL, "a window of %zu rows", rows);
    for (size_t i = 0; i < count && !r; i++) {
        struct strata_session *s = parts[i].session;
        size_t n = parts[i].n;
        r = check_ids(e, parts[i].ids, n, err);
        if (!r)
            r = st_session_ready(s, err);
        if (!r && (!n || (n > 1 && !e->placement.hold)))
            r = st_fail(err, STRATA_E_INTERNAL, "a window with %zu rows of one session", n);
        if (!r && n > e->options.context - s->count)
            r = st_fail(err, STRATA_E_LIMIT, "%u tokens held and %zu more do not fit in the context of %u", s->count, n,
                        e->options.context);
    }
    return r;
}

/* How the rows of all parts are sampled; NULL: one of them wants logits. */
static const struct st_sample *gather(const struct st_window_part *parts, size_t count, struct st_sample all[ST_HELD_ROWS])
{
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        if (!parts[i].sample)
            return NULL;
        memcpy(all + at, parts[i].sample, parts[i].n * sizeof *all);
        at += parts[i].n;
    }
    return all;
}

enum strata_result st_engine_window(struct strata_engine *e, const struct st_window_part *parts, size_t count,
                                    struct strata_error *err)
{
    enum strata_result r = check_window(e, parts, count, err);
    if (r)
        return r;
    size_t rows = rows_of_parts(parts, count), done = 0, at = 0, width = e->dims.wide;
    bool wide = false;
    for (size_t i = 0; i < count; i++) {
        memcpy(parts[i].session->ids + parts[i].session->count, parts[i].ids, parts[i].n * sizeof *parts[i].ids);
        wide = wide || parts[i].wide;
    }
    struct st_input in = {.count = rows};
    struct st_sample sample[ST_HELD_ROWS];
    struct st_output out = {.all_logits = true, .wide = wide ? e->draft.wide : NULL, .sample = gather(parts, count, sample)};
    /* A single row of a session is always kept, so its state moves on at once. */
    struct st_flow flow = {.in = &in, .out = &out, .chunk = rows, .hold = rows > count, .parts = parts, .n_parts = count};
    e->logits_of = NULL;
    r = st_pipeline_run(e, &flow, &done, err);
    if (r) {
        forget_parts(e, parts, count);
        return r;
    }
    for (size_t i = 0; i < count; i++) {
        if (parts[i].wide)
            memcpy(parts[i].wide, e->draft.wide + at * width, parts[i].n * width * sizeof(float));
        parts[i].session->held = (uint32_t)parts[i].n;
        at += parts[i].n;
    }
    return r;
}

/* Moves a session's recurrent state on by those of its rows that stay; the first one is row held of the window. */
static enum strata_result commit_rows(struct strata_engine *e, const struct st_window_part *part, size_t held,
                                      struct strata_error *err)
{
    struct st_input in = {.count = part->keep};
    struct st_pass pass = {.part = ST_PART_TRUNK, .rows = &e->rows};
    enum strata_result r = STRATA_OK;
    int begun = 0;
    st_engine_fill_rows(part->session, &in, 0, part->keep);
    e->rows.mode = ST_ROWS_COMMIT;
    e->rows.held = (int32_t)held;
    for (; begun < e->n_stages && !r; begun++)
        r = e->stages[begun]->ops->begin(e->stages[begun], &pass, err);
    for (int i = 0; i < e->n_stages && !r; i++)
        r = e->stages[i]->ops->finish(e->stages[i], err);
    for (int i = 0; i < begun && r; i++)
        e->stages[i]->ops->drop(e->stages[i]);
    return r;
}

enum strata_result st_engine_commit(struct strata_engine *e, const struct st_window_part *parts, size_t count,
                                    struct strata_error *err)
{
    static const struct st_input plain;
    enum strata_result r = STRATA_OK;
    for (size_t i = 0; i < count; i++)
        if (parts[i].keep < 1 || parts[i].keep > parts[i].session->held || parts[i].n != parts[i].session->held)
            return st_fail(err, STRATA_E_INTERNAL, "%zu of %u rows of a window to keep", parts[i].keep, parts[i].session->held);
    bool hold_rows = rows_of_parts(parts, count) > count;
    for (size_t i = 0, at = 0; i < count && hold_rows && !r; at += parts[i].n, i++)
        r = commit_rows(e, &parts[i], at, err);
    if (r) {
        forget_parts(e, parts, count);
        return r;
    }
    for (size_t i = 0; i < count; i++) {
        parts[i].session->held = 0;
        hold(parts[i].session, &plain, parts[i].keep);
    }
    if (count == 1 && !e->picks) {
        e->logits += (parts->keep - 1) * e->dims.vocabulary;
        e->logits_of = parts->session;
    }
    return r;
}

/* Where the stage takes n residuals from: a device takes what has waited from memory that it has page-locked. Those of a
 * prompt lie in such memory already. */
static const float *draft_input(const struct strata_engine *e, const float *wide, size_t n)
{
    size_t width = e->dims.wide;
    if (!e->draft.wide || n > ST_DRAFT_WAITING || e->stages[e->n_stages - 1]->host)
        return wide;
    return memcpy(e->draft.wide + e->placement.rows * width, wide, n * width * sizeof *wide);
}

/* Most probable token and its probability, of ids that the draft layer can go on from. */
static const struct st_sample *measure(const struct strata_engine *e)
{
    static const struct st_sample all = {.temperature = 1.0f, .repetition = 1.0f, .share = ST_SAMPLE_SHARE, .measure = 1};
    return e->dims.vocabulary <= e->dims.embeddings ? &all : NULL;
}

/* One pass of the draft layer over rows [from, from + n). */
static enum strata_result draft_pass(struct strata_session *s, const struct st_draft_rows *d, size_t from, size_t n,
                                     struct strata_error *err)
{
    struct strata_engine *e = s->engine;
    struct st_rows *rows = &e->rows;
    size_t vocabulary = e->dims.vocabulary, width = e->dims.wide;
    bool last = from + n == d->count, all = !d->last_only;
    for (size_t i = 0; i < n; i++) {
        rows->slot[i] = (int32_t)s->slot;
        rows->pos[i] = (int32_t)(d->first + from + i);
        rows->token[i] = d->ids[from + i];
        rows->embd_row[i] = 0;
        text_axis(rows->axis + 3 * i, rows->pos[i]);
    }
    set_rows(e, n);
    for (size_t i = all ? 0 : n - 1; i < n && d->logits && (all || last); i++)
        rows->out[rows->n_out++] = (int32_t)i;
    struct st_stage *stage = e->stages[e->n_stages - 1];
    struct st_pass pass = {.part = ST_PART_DRAFT,
                           .rows = rows,
                           .wide_in = draft_input(e, d->wide + from * width, n),
                           .sample = d->pick && rows->n_out ? measure(e) : NULL,
                           .wide_out = !d->wide_out ? NULL : all ? d->wide_out + from * width : last ? e->draft.wide : NULL};
    enum strata_result r = st_stage_run(stage, &pass, err);
    if (r)
        return r;
    if (d->pick && last)
        *d->pick = stage->picks ? *stage->picks : (struct st_sample_pick){0};
    if (d->logits && (all || last) && !(d->pick && stage->picks))
        memcpy(d->logits + (all ? from * vocabulary : 0), stage->logits, (size_t)rows->n_out * vocabulary * sizeof(float));
    if (d->wide_out && !all && last)
        memcpy(d->wide_out, e->draft.wide + (n - 1) * width, width * sizeof(float));
    return STRATA_OK;
}

enum strata_result st_session_draft_rows(struct strata_session *s, const struct st_draft_rows *d, struct strata_error *err)
{
    struct strata_engine *e = s->engine;
    size_t most = d->logits && !d->last_only ? e->placement.out_rows : e->placement.rows;
    enum strata_result r = STRATA_OK;
    if (d->logits)
        e->logits_of = NULL; /* a stage has one place for logits */
    for (size_t from = 0; from < d->count && !r; from += most)
        r = draft_pass(s, d, from, d->count - from < most ? d->count - from : most, err);
    if (r)
        st_engine_find_lost(e);
    return r;
}

enum strata_result st_session_draft(struct strata_session *s, uint32_t first, const int32_t *ids, const float *wide,
                                    size_t count, float *logits, float *wide_out, struct strata_error *err)
{
    struct strata_engine *e = s->engine;
    if (!e->dims.draft)
        return st_fail(err, STRATA_E_MODEL, "%s: the model has no draft layer", e->model->gguf->path);
    enum strata_result r = check_ids(e, ids, count, err);
    if (!r)
        r = st_session_ready(s, err);
    if (r)
        return r;
    if (first > e->options.context || count > e->options.context - first)
        return st_fail(err, STRATA_E_LIMIT, "draft rows %u.. do not fit in the context of %u", first, e->options.context);
    struct st_draft_rows d = {
        .first = first, .count = count, .ids = ids, .wide = wide, .logits = logits, .wide_out = wide_out};
    return st_session_draft_rows(s, &d, err);
}

uint64_t st_engine_bytes(const struct strata_engine *e)
{
    uint64_t total = 0;
    for (int i = 0; i < e->n_stages; i++)
        total += e->stages[i]->state_bytes + e->stages[i]->buffer_bytes;
    return total;
}
