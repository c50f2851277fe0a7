/* strata_engine: the model's programs placed in one arena, and the passes over them. */
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

enum {
    DEFAULT_CONTEXT = 8192,
    DEFAULT_PREFILL = 256,
    CONTEXT_MAX = 1 << 22,
    PREFILL_MAX = 8192,
    SESSIONS_MAX = 256,
    LOGITS_BYTES = 64 << 20, /* rows of logits kept at once fit in this, but at least WINDOW_ROWS */
    WINDOW_ROWS = 8,
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

static enum strata_result check_options(struct strata_engine *e, struct strata_error *err)
{
    struct strata_engine_options *o = &e->options;
    uint32_t trained = e->dims.context;
    o->devices = o->devices ? o->devices : "cpu";
    o->threads = o->threads ? o->threads : st_cpu_cores();
    o->context = or_default(o->context, trained < DEFAULT_CONTEXT ? trained : DEFAULT_CONTEXT);
    o->sessions = or_default(o->sessions, 1);
    o->prefill = or_default(o->prefill, DEFAULT_PREFILL);
    if (kv_type(o->kv) == ST_KV_COUNT)
        return st_fail(err, STRATA_E_ARGUMENT, "KV type %d is none of enum strata_kv", (int)o->kv);
    if (o->context > CONTEXT_MAX)
        return st_fail(err, STRATA_E_ARGUMENT, "context %u is above %d tokens", o->context, CONTEXT_MAX);
    if (o->prefill > PREFILL_MAX)
        return st_fail(err, STRATA_E_ARGUMENT, "prefill %u is above %d tokens", o->prefill, PREFILL_MAX);
    if (o->sessions > SESSIONS_MAX)
        return st_fail(err, STRATA_E_ARGUMENT, "%u sessions are above %d", o->sessions, SESSIONS_MAX);
    if (o->prefill > o->context)
        o->prefill = o->context;
    return STRATA_OK;
}

static void take_rows(struct strata_engine *e, struct st_bump *b)
{
    uint64_t n = e->placement.rows;
    e->rows = (struct st_rows){.slot = st_bump_take(b, n, sizeof(int32_t)),
                               .pos = st_bump_take(b, n, sizeof(int32_t)),
                               .token = st_bump_take(b, n, sizeof(int32_t)),
                               .axis = st_bump_take(b, n, 3 * sizeof(int32_t)),
                               .history = st_bump_take(b, n, ST_HISTORY * sizeof(int32_t)),
                               .out = st_bump_take(b, n, sizeof(int32_t)),
                               .span = st_bump_take(b, n + 1, sizeof(int32_t)),
                               .embd = st_bump_take(b, n, e->dims.hidden * sizeof(float)),
                               .embd_row = st_bump_take(b, n, 1)};
    if (e->ngram.hash) {
        e->rows.ngram = st_ngram_io_data(e->ngram_io);
        e->rows.ngram_index = st_bump_take(b, n * e->ngram.hash->heads, sizeof(uint32_t));
        e->ngram_rows = st_bump_take(b, n * e->ngram.hash->heads, sizeof(uint64_t));
    }
    e->hand_off = st_bump_take(b, n, e->dims.wide * sizeof(float));
}

static struct st_model_options bind_options(const struct strata_engine *e)
{
    enum strata_mtp_norm norm = e->options.mtp_norm;
    return (struct st_model_options){.fp32 = e->options.fp32,
                                     .draft_norm_per_stream =
                                         norm == STRATA_MTP_NORM_FILE ? -1 : norm == STRATA_MTP_NORM_PER_STREAM};
}

/* Memory of the rows, and of the residual between stages. */
static enum strata_result open_rows(struct strata_engine *e, struct strata_error *err)
{
    struct st_bump b = {0};
    take_rows(e, &b);
    if (b.overflow || !(e->row_memory = aligned_alloc(64, b.peak)))
        return st_fail(err, STRATA_E_MEMORY, "no memory for passes of %u rows", e->placement.rows);
    b = (struct st_bump){.base = e->row_memory};
    take_rows(e, &b);
    return STRATA_OK;
}

/* The table of n-grams, if the model has one: rows are fetched by the pass. */
static enum strata_result open_ngram(struct strata_engine *e, struct strata_error *err)
{
    if (!e->bound.family->ngram)
        return STRATA_OK;
    e->bound.family->ngram(&e->bound, &e->ngram);
    if (!e->ngram.hash)
        return STRATA_OK;
    const struct st_gguf_shard *shard = &e->model->gguf->shards[e->ngram.tensor->shard];
    struct st_ngram_source source = {.path = shard->path,
                                     .fd = shard->map.fd,
                                     .offset = e->ngram.tensor->offset,
                                     .map = e->ngram.tensor->data,
                                     .rows = e->ngram.tensor->ne[1],
                                     .row_bytes = (uint32_t)e->ngram.table->row_bytes};
    return st_ngram_io_create(&source, (size_t)e->placement.rows * e->ngram.hash->heads, NGRAM_CACHE_ROWS, true,
                              &e->ngram_io, err);
}

static enum strata_result open_passes(struct strata_engine *e, struct strata_error *err)
{
    const struct strata_engine_options *o = &e->options;
    uint64_t row = (uint64_t)e->dims.vocabulary * sizeof(float), out = LOGITS_BYTES / row;
    uint32_t rows = o->prefill > WINDOW_ROWS ? o->prefill : WINDOW_ROWS;
    out = out < WINDOW_ROWS ? WINDOW_ROWS : out;
    e->placement = (struct st_placement){.slots = o->sessions,
                                         .context = o->context,
                                         .rows = rows,
                                         .out_rows = out < rows ? (uint32_t)out : rows,
                                         .kv = kv_type(o->kv)};
    enum strata_result r = open_ngram(e, err);
    return r ? r : open_rows(e, err);
}

static enum strata_result open_stages(struct strata_engine *e, struct strata_error *err)
{
    struct st_stage_config config = {.gguf = e->model->gguf,
                                     .draft_gguf = e->draft_gguf,
                                     .options = bind_options(e),
                                     .placement = e->placement,
                                     .ngram = &e->ngram};
    return st_engine_open_stages(e, &config, err);
}

enum strata_result strata_engine_create(const struct strata_model *model, const struct strata_engine_options *options,
                                        struct strata_engine **out, struct strata_error *err)
{
    static const struct strata_engine_options defaults;
    struct strata_engine *e = calloc(1, sizeof *e);
    if (!e)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for an engine", model->gguf->path);
    e->model = model;
    e->options = options ? *options : defaults;
    enum strata_result r = STRATA_OK;
    if (e->options.mtp_path) {
        r = st_gguf_open(e->options.mtp_path, &e->draft_gguf, err);
        if (!r && !(e->options.mtp_path = e->mtp_path = strdup(e->options.mtp_path)))
            r = st_fail(err, STRATA_E_MEMORY, "no memory for an engine");
    }
    struct st_model_options bind = bind_options(e);
    if (!r)
        r = st_model_open(model->gguf, e->draft_gguf, &bind, &e->bound, err);
    if (!r) {
        e->bound.family->dims(&e->bound, &e->dims);
        r = check_options(e, err);
    }
    if (!r && model->tokenizer && st_tokenizer_count(model->tokenizer) > e->dims.embeddings)
        r = st_fail(err, STRATA_E_MODEL, "%s: %zu tokens but only %u rows of token_embd.weight", model->gguf->path,
                    st_tokenizer_count(model->tokenizer), e->dims.embeddings);
    if (!r && !(e->slot_used = calloc(e->options.sessions, sizeof *e->slot_used)))
        r = st_fail(err, STRATA_E_MEMORY, "no memory for %u sessions", e->options.sessions);
    if (!r)
        r = st_kernels_choose(e->options.cpu, &e->kernels, err);
    if (!r)
        e->options.cpu = e->kernels.name;
    if (!r)
        r = open_passes(e, err);
    if (!r)
        r = open_stages(e, err);
    if (r) {
        strata_engine_free(e);
        return r;
    }
    *out = e;
    return STRATA_OK;
}

void strata_engine_free(struct strata_engine *e)
{
    if (!e)
        return;
    st_engine_close_stages(e);
    st_ngram_io_free(e->ngram_io);
    st_model_close(&e->bound);
    st_gguf_close(e->draft_gguf);
    free(e->mtp_path);
    free(e->slot_used);
    free(e->row_memory);
    free(e);
}

void strata_engine_options(const struct strata_engine *e, struct strata_engine_options *out)
{
    *out = e->options;
}

/* Asks for the n-gram rows of the pass. */
static enum strata_result begin_ngram(struct strata_engine *e, struct strata_error *err)
{
    const struct st_rows *rows = &e->rows;
    uint32_t heads = e->ngram.hash->heads;
    for (size_t i = 0; i < (size_t)rows->n; i++)
        st_ngram_rows(e->ngram.hash, rows->token[i], rows->history + i * ST_HISTORY, e->ngram_rows + i * heads);
    return st_ngram_io_begin(e->ngram_io, e->ngram_rows, (size_t)rows->n * heads, rows->ngram_index, err);
}

/* Runs the trunk through all stages; the residual after the last layer stays in hand_off if it is wanted. */
static enum strata_result run_trunk(struct strata_engine *e, float *residuals, size_t first_row, size_t all_rows, bool wide,
                                    struct strata_error *err)
{
    enum strata_result r = e->ngram_io ? begin_ngram(e, err) : STRATA_OK;
    for (int i = 0; i < e->n_stages && !r; i++) {
        struct st_pass pass = {.part = ST_PART_TRUNK,
                               .rows = &e->rows,
                               .wide_in = i > 0 ? e->hand_off : NULL,
                               .wide_out = wide || i + 1 < e->n_stages ? e->hand_off : NULL,
                               .ngram = e->ngram_io,
                               .residuals = residuals,
                               .residual_stride = all_rows * e->dims.wide,
                               .first_row = first_row};
        r = e->stages[i]->ops->run(e->stages[i], &pass, err);
    }
    e->logits = e->stages[e->n_stages - 1]->logits;
    return r;
}

static void text_axis(int32_t *axis, int32_t at)
{
    axis[0] = axis[1] = axis[2] = at;
}

/* Fills row i of the pass: the session's token number pos. */
static void fill_row(struct strata_session *s, size_t i, uint32_t pos)
{
    struct st_rows *rows = &s->engine->rows;
    rows->slot[i] = (int32_t)s->slot;
    rows->pos[i] = (int32_t)pos;
    rows->token[i] = s->ids[pos];
    rows->embd_row[i] = 0;
    for (uint32_t h = 0; h < ST_HISTORY; h++)
        rows->history[i * ST_HISTORY + h] = h < pos ? s->ids[pos - 1 - h] : -1;
}

static void set_rows(struct strata_engine *e, size_t n)
{
    struct st_rows *rows = &e->rows;
    rows->n = (int32_t)n;
    rows->n_stream = (int32_t)(n * (e->dims.wide / e->dims.hidden));
    rows->n_spans = 1;
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

/* One pass over in's rows [from, from + n). After a failure the session's state is between two tokens, so it is reset. */
static enum strata_result pass(struct strata_session *s, const struct st_input *in, const struct st_output *out, size_t from,
                               size_t n, bool want, struct strata_error *err)
{
    struct strata_engine *e = s->engine;
    struct st_rows *rows = &e->rows;
    size_t vocabulary = e->dims.vocabulary, hidden = e->dims.hidden, wide = e->dims.wide;
    for (size_t i = 0; i < n; i++) {
        fill_row(s, i, s->count + (uint32_t)i);
        if (in->axis) {
            memcpy(rows->axis + 3 * i, in->axis + 3 * (from + i), 3 * sizeof *rows->axis);
            for (int k = 0; k < 3; k++)
                s->next_axis = rows->axis[3 * i + (size_t)k] >= s->next_axis ? rows->axis[3 * i + (size_t)k] + 1
                                                                              : s->next_axis;
        } else {
            text_axis(rows->axis + 3 * i, s->next_axis++);
        }
        if (in->embd && in->embd_row[from + i]) {
            rows->embd_row[i] = 1;
            memcpy(rows->embd + i * hidden, in->embd + (from + i) * hidden, hidden * sizeof(float));
        }
    }
    set_rows(e, n);
    rows->n_out = 0;
    for (size_t i = out->all_logits ? 0 : n - 1; i < n && want; i++)
        rows->out[rows->n_out++] = (int32_t)i;
    e->logits_of = NULL;
    enum strata_result r = run_trunk(e, out->residuals, from, in->count, out->wide != NULL, err);
    if (r) {
        strata_session_reset(s);
        return r;
    }
    s->count += (uint32_t)n;
    if (want && out->logits)
        memcpy(out->logits + (out->all_logits ? from : 0) * vocabulary, e->logits,
               (size_t)rows->n_out * vocabulary * sizeof(float));
    if (want && !out->all_logits)
        e->logits_of = s;
    if (out->wide)
        memcpy(out->wide + from * wide, e->hand_off, n * wide * sizeof(float));
    return STRATA_OK;
}

enum strata_result st_session_eval(struct strata_session *s, const struct st_input *in, const struct st_output *out,
                                   struct strata_error *err)
{
    struct strata_engine *e = s->engine;
    enum strata_result r = check_ids(e, in->ids, in->count, err);
    if (r)
        return r;
    if (in->count > e->options.context - s->count)
        return st_fail(err, STRATA_E_LIMIT, "%u tokens held and %zu more do not fit in the context of %u", s->count,
                       in->count, e->options.context);
    memcpy(s->ids + s->count, in->ids, in->count * sizeof *s->ids);
    size_t chunk = e->options.prefill;
    if (out->all_logits && chunk > e->placement.out_rows)
        chunk = e->placement.out_rows;
    for (size_t from = 0; from < in->count && !r; from += chunk) {
        size_t n = in->count - from < chunk ? in->count - from : chunk;
        r = pass(s, in, out, from, n, out->all_logits || from + n == in->count, err);
    }
    return r;
}

enum strata_result st_session_draft(struct strata_session *s, uint32_t first, const int32_t *ids, const float *wide,
                                    size_t count, float *logits, float *wide_out, struct strata_error *err)
{
    struct strata_engine *e = s->engine;
    struct st_rows *rows = &e->rows;
    if (!e->dims.draft)
        return st_fail(err, STRATA_E_MODEL, "%s: the model has no draft layer", e->model->gguf->path);
    enum strata_result r = check_ids(e, ids, count, err);
    if (r)
        return r;
    if (first > e->options.context || count > e->options.context - first)
        return st_fail(err, STRATA_E_LIMIT, "draft rows %u.. do not fit in the context of %u", first, e->options.context);
    size_t chunk = e->placement.out_rows, vocabulary = e->dims.vocabulary, width = e->dims.wide;
    for (size_t from = 0; from < count; from += chunk) {
        size_t n = count - from < chunk ? count - from : chunk;
        for (size_t i = 0; i < n; i++) {
            rows->slot[i] = (int32_t)s->slot;
            rows->pos[i] = (int32_t)(first + from + i);
            rows->token[i] = ids[from + i];
            rows->embd_row[i] = 0;
            text_axis(rows->axis + 3 * i, rows->pos[i]);
            rows->out[i] = (int32_t)i;
        }
        set_rows(e, n);
        rows->n_out = logits ? (int32_t)n : 0;
        struct st_stage *last = e->stages[e->n_stages - 1];
        struct st_pass pass = {.part = ST_PART_DRAFT,
                               .rows = rows,
                               .wide_in = wide + from * width,
                               .wide_out = wide_out ? wide_out + from * width : NULL};
        r = last->ops->run(last, &pass, err);
        if (r)
            return r;
        if (logits)
            memcpy(logits + from * vocabulary, last->logits, n * vocabulary * sizeof(float));
    }
    return STRATA_OK;
}

uint64_t st_engine_bytes(const struct strata_engine *e)
{
    uint64_t total = 0;
    for (int i = 0; i < e->n_stages; i++)
        total += e->stages[i]->state_bytes + e->stages[i]->buffer_bytes;
    return total;
}
