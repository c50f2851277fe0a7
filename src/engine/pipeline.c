/* The order in which chunks go through stages.
 *
 * At step t stage i is given chunk t - i. A stage on a device is given a chunk while it still computes the one before,
 * so its queue does not run empty; a stage on the CPU computes a chunk when it is given, and comes last in a step. A
 * chunk is given to a stage when
 *  - the stage before has finished it: its residual lies in the buffer between the two;
 *  - the stage behind has finished the chunk ST_STAGE_PASSES before: the buffer that this one goes to is free;
 *  - the stage itself has finished the chunk ST_STAGE_PASSES before.
 * Every stage computes the chunks in order, so the result has the same bits as one chunk after the other. A single
 * chunk, which is what every window of an answer is, goes through the stages one by one. */
#include "engine/pipeline.h"
#include "engine/speculate.h"

#include <stdlib.h>
#include <string.h>

enum {
    PAGE = 4096,
    /* A prompt of c chunks takes the time of c + stages - 1 of them, so there should be several for each stage; but every chunk
     * reads the weights again, so it should not be small. */
    CHUNKS_PER_STAGE = 4,
    LEAST_ROWS = 512,
    ROWS_STEP = 64, /* of the tiles of prompt kernels */
};

/* ---- buffers between stages ---- */

/* to: NULL, or the stage behind. */
static enum strata_result open_buffer(struct st_hand_off *h, struct st_stage *from, struct st_stage *to, uint64_t bytes,
                                      struct strata_error *err)
{
    void *memory = aligned_alloc(PAGE, bytes);
    if (!memory)
        return st_fail(err, STRATA_E_MEMORY, "no memory for %llu bytes between %s and %s", (unsigned long long)bytes,
                       from->name, to ? to->name : "the draft layer");
    h->wide = memory;
    enum strata_result r = from->ops->lock_host(from, memory, bytes, err);
    h->locked_from = r == STRATA_OK;
    if (!r && to)
        r = to->ops->lock_host(to, memory, bytes, err);
    h->locked_to = h->locked_from && to && r == STRATA_OK;
    return r;
}

static void close_buffer(struct st_hand_off *h, struct st_stage *from, struct st_stage *to)
{
    bool ours = true;
    if (h->locked_to)
        ours = to->ops->unlock_host(to, h->wide);
    if (h->locked_from)
        ours = from->ops->unlock_host(from, h->wide) && ours;
    if (ours)
        free(h->wide);
    *h = (struct st_hand_off){0};
}

static uint64_t whole_pages(const struct st_model_dims *dims, uint64_t rows)
{
    /* Below 2^14 rows of less than 2^32 floats. */
    return (rows * dims->wide * sizeof(float) + PAGE - 1) / PAGE * PAGE;
}

uint64_t st_pipeline_buffer(const struct st_placement *placement, const struct st_model_dims *dims)
{
    return whole_pages(dims, placement->rows);
}

uint64_t st_pipeline_draft_buffer(const struct st_placement *placement, const struct st_model_dims *dims)
{
    return placement->hold && dims->draft ? whole_pages(dims, placement->rows + (uint64_t)ST_DRAFT_WAITING) : 0;
}

enum strata_result st_pipeline_open(struct strata_engine *e, struct strata_error *err)
{
    uint64_t bytes = st_pipeline_buffer(&e->placement, &e->dims), draft = st_pipeline_draft_buffer(&e->placement, &e->dims);
    enum strata_result r = STRATA_OK;
    for (int place = 0; place + 1 < e->n_stages && !r; place++)
        for (int k = 0; k < ST_STAGE_PASSES && !r; k++)
            r = open_buffer(&e->hand_off[place][k], e->stages[place], e->stages[place + 1], bytes, err);
    return r || !draft ? r : open_buffer(&e->draft, e->stages[e->n_stages - 1], NULL, draft, err);
}

void st_pipeline_close(struct strata_engine *e)
{
    for (int place = 0; place + 1 < e->n_stages; place++)
        for (int k = 0; k < ST_STAGE_PASSES; k++)
            close_buffer(&e->hand_off[place][k], e->stages[place], e->stages[place + 1]);
    if (e->n_stages)
        close_buffer(&e->draft, e->stages[e->n_stages - 1], NULL);
}

/* ---- one evaluation ---- */

size_t st_pipeline_chunk(const struct strata_engine *e, size_t count)
{
    size_t chunks = (size_t)e->n_stages * CHUNKS_PER_STAGE, rows = (count / chunks + ROWS_STEP) / ROWS_STEP * ROWS_STEP;
    rows = rows < LEAST_ROWS ? LEAST_ROWS : rows;
    return e->n_stages == 1 || rows > e->options.prefill ? e->options.prefill : rows;
}

struct run {
    struct strata_engine *e;
    const struct st_flow *flow;
    size_t chunks, done;         /* chunks to compute; tokens that left the last stage */
    size_t begun[ST_STAGES_MAX]; /* chunks, by stage */
    size_t finished[ST_STAGES_MAX];
    size_t asked; /* chunks whose n-gram rows were asked for */
};

static size_t rows_of(const struct run *p, size_t chunk)
{
    size_t left = p->flow->in->count - chunk * p->flow->chunk;
    return left < p->flow->chunk ? left : p->flow->chunk;
}

/* Whether logits of the chunk are wanted: of all its rows, or of its last one. */
static bool wants_logits(const struct run *p, size_t chunk)
{
    return p->flow->out->all_logits || (chunk + 1) * p->flow->chunk >= p->flow->in->count;
}

/* Whether the draft layer follows chunk by chunk. Of a window whoever asks for it keeps the residuals. */
static bool follows(const struct run *p)
{
    return !p->flow->parts && p->flow->session->spec;
}

static void fill_rows(const struct run *p, size_t chunk)
{
    if (p->flow->parts)
        st_engine_fill_window(p->e, p->flow->parts, p->flow->n_parts);
    else
        st_engine_fill_rows(p->flow->session, p->flow->in, chunk * p->flow->chunk, rows_of(p, chunk));
}

/* Where the last stage leaves the residual of a chunk that begins with token first of the evaluation; NULL: nowhere. */
static float *wide_of(const struct run *p, size_t first)
{
    const struct st_output *out = p->flow->out;
    return out->wide ? out->wide + first * p->e->dims.wide : follows(p) ? p->e->draft.wide : NULL;
}

/* A chunk has left the last stage. */
static enum strata_result leave(struct run *p, size_t chunk, struct strata_error *err)
{
    struct strata_engine *e = p->e;
    const struct st_output *out = p->flow->out;
    size_t n = rows_of(p, chunk), first = chunk * p->flow->chunk, vocabulary = e->dims.vocabulary;
    p->done = first + n;
    if (wants_logits(p, chunk)) {
        e->logits = e->stages[e->n_stages - 1]->logits;
        e->picks = e->stages[e->n_stages - 1]->picks;
        if (out->logits)
            memcpy(out->logits + (out->all_logits ? first : 0) * vocabulary, e->logits,
                   (out->all_logits ? n : 1) * vocabulary * sizeof(float));
    }
    struct strata_session *s = p->flow->session;
    enum strata_result r = STRATA_OK;
    if (follows(p))
        r = st_spec_follow(s, s->count + (uint32_t)first, n, wide_of(p, first), s->count + (uint32_t)p->flow->in->count, err);
    /* Chunks under way go through to the end, so that all stages agree on what they hold. */
    if (out->chunk_done && !out->chunk_done(out->user, p->done) && p->chunks > p->begun[0])
        p->chunks = p->begun[0];
    return r;
}

/* Waits until the stage has finished count chunks. */
static enum strata_result finish_to(struct run *p, int stage, size_t count, struct strata_error *err)
{
    struct st_stage *s = p->e->stages[stage];
    enum strata_result r = STRATA_OK;
    while (p->finished[stage] < count && !r) {
        r = s->ops->finish(s, err);
        if (!r && stage == p->e->n_stages - 1)
            r = leave(p, p->finished[stage], err);
        p->finished[stage]++;
    }
    return r;
}

/* Asks for the n-gram rows of a chunk, unless that was done. The host's rows are then the chunk's. */
static enum strata_result ask_ngram(struct run *p, size_t chunk, struct strata_error *err)
{
    struct strata_engine *e = p->e;
    if (!e->ngram_io || p->asked > chunk || chunk >= p->chunks)
        return STRATA_OK;
    p->asked = chunk + 1;
    fill_rows(p, chunk);
    const struct st_rows *rows = &e->rows;
    uint32_t heads = e->ngram.hash->heads;
    for (size_t i = 0; i < (size_t)rows->n; i++)
        st_ngram_rows(e->ngram.hash, rows->token[i], rows->history + i * ST_HISTORY, e->ngram_rows + i * heads);
    return st_ngram_io_begin(e->ngram_io, e->ngram_rows, (size_t)rows->n * heads, rows->ngram_index, err);
}

/* Gives a chunk to a stage. Rows are the host's only while they are given, so they are filled again for every stage. */
static enum strata_result give(struct run *p, int stage, size_t chunk, struct strata_error *err)
{
    struct strata_engine *e = p->e;
    const struct st_output *out = p->flow->out;
    struct st_stage *s = e->stages[stage];
    size_t first = chunk * p->flow->chunk, n = rows_of(p, chunk), wide = e->dims.wide;
    bool last = stage == e->n_stages - 1, ngram = s->first <= e->ngram.layer && e->ngram.layer < s->end;
    enum strata_result r = ngram ? ask_ngram(p, chunk, err) : STRATA_OK;
    if (r)
        return r;
    fill_rows(p, chunk);
    struct st_rows *rows = &e->rows;
    rows->mode = p->flow->hold ? ST_ROWS_HOLD : ST_ROWS_ADVANCE;
    for (size_t i = out->all_logits ? 0 : n - 1; i < n && wants_logits(p, chunk); i++)
        rows->out[rows->n_out++] = (int32_t)i;
    struct st_pass pass = {.part = ST_PART_TRUNK,
                           .rows = rows,
                           .wide_in = stage ? e->hand_off[stage - 1][chunk % ST_STAGE_PASSES].wide : NULL,
                           .wide_out = last ? wide_of(p, first) : e->hand_off[stage][chunk % ST_STAGE_PASSES].wide,
                           .ngram = e->ngram_io,
                           .sample = last ? out->sample : NULL,
                           .residuals = out->residuals,
                           .residual_stride = p->flow->in->count * wide,
                           .first_row = first};
    r = s->ops->begin(s, &pass, err);
    if (r)
        return r;
    p->begun[stage]++;
    /* The next chunk's rows are read from the file while this one is computed. */
    return ngram ? ask_ngram(p, chunk + 1, err) : r;
}

/* Waits for what the chunk needs on the stage, and gives it. */
static enum strata_result advance(struct run *p, int stage, size_t chunk, struct strata_error *err)
{
    int stages = p->e->n_stages;
    /* Where the last stage leaves logits or residuals of every chunk, it has one chunk at a time. */
    bool alone = p->flow->out->all_logits || follows(p);
    size_t free_after = chunk < ST_STAGE_PASSES ? 0 : chunk + 1 - ST_STAGE_PASSES;
    enum strata_result r = stage > 0 ? finish_to(p, stage - 1, chunk + 1, err) : STRATA_OK;
    if (!r && stage + 1 < stages)
        r = finish_to(p, stage + 1, free_after, err);
    if (!r)
        r = finish_to(p, stage, stage == stages - 1 && alone ? chunk : free_after, err);
    return r || chunk >= p->chunks ? r : give(p, stage, chunk, err);
}

/* The stages of one kind at step t, the one nearest to the end first: what it frees is needed by the others. */
static enum strata_result step(struct run *p, size_t t, bool host, struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    for (int i = p->e->n_stages - 1; i >= 0 && !r; i--)
        if (p->e->stages[i]->host == host && t >= (size_t)i && t - (size_t)i < p->chunks)
            r = advance(p, i, t - (size_t)i, err);
    return r;
}

enum strata_result st_pipeline_run(struct strata_engine *e, const struct st_flow *flow, size_t *done,
                                   struct strata_error *err)
{
    struct run p = {.e = e, .flow = flow, .chunks = (flow->in->count + flow->chunk - 1) / flow->chunk};
    enum strata_result r = STRATA_OK;
    for (size_t t = 0; t + 1 < p.chunks + (size_t)e->n_stages && !r; t++) {
        r = step(&p, t, false, err);
        if (!r)
            r = step(&p, t, true, err);
    }
    for (int i = 0; i < e->n_stages && !r; i++)
        r = finish_to(&p, i, p.begun[i], err);
    for (int i = 0; i < e->n_stages && r; i++)
        e->stages[i]->ops->drop(e->stages[i]);
    if (e->ngram_io) /* after a failure, or a chunk that was not begun, rows may still be on their way */
        st_ngram_io_finish(e->ngram_io, NULL);
    st_engine_take_notes(e);
    *done = p.done;
    return r;
}

enum strata_result st_stage_run(struct st_stage *stage, const struct st_pass *pass, struct strata_error *err)
{
    enum strata_result r = stage->ops->begin(stage, pass, err);
    if (!r)
        r = stage->ops->finish(stage, err);
    if (r)
        stage->ops->drop(stage);
    return r;
}
