/* Answers: see answer.h.
 *
 * Bits of a prompt do not depend on the pieces in which it is read, as long as every piece takes the same kernels as the pass that
 * would read it alone: pieces are cut on the blocks of the recurrence (ST_GDN_CHUNK rows, counted from where such a pass begins), and
 * none is as small as a window unless the pass is. */
#include "engine/answer.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/park.h"
#include "engine/pipeline.h"
#include "kernel/gdn.h"

double st_answer_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void st_answer_end(struct st_answer *a, enum strata_end end)
{
    a->ended = true;
    a->end = end;
}

/* Hands an event to the caller; false from it, or a cancel from outside, ends the answer. */
static void emit(struct st_answer *a, const struct strata_event *event)
{
    const struct strata_request *q = a->request;
    bool go = !q->event || q->event(q->user, event);
    if (!a->ended && (!go || atomic_load(&a->session->cancelled)))
        st_answer_end(a, STRATA_END_CANCELLED);
}

/* ---- tokens ---- */

/* Shows a token and its text, as far as no stop text can begin in it. */
static enum strata_result show(struct st_answer *a, const struct st_pick *pick, const char *text, size_t size,
                               struct strata_error *err)
{
    struct st_bytes free_text;
    int found = -1;
    enum strata_result r = st_stop_push(a->stop, text, size, &free_text, &found, err);
    if (r)
        return r;
    if (found >= 0) {
        a->stop_index = found;
        st_answer_end(a, STRATA_END_STOP_TEXT);
    }
    emit(a, &(struct strata_event){.kind = STRATA_EVENT_TEXT,
                                   .token = pick->token,
                                   .text = free_text.data,
                                   .size = free_text.size,
                                   .logprob = {pick->token, pick->logprob},
                                   .top = pick->top,
                                   .top_count = pick->top_count});
    return STRATA_OK;
}

/* Text that was held back: an unfinished character, and what might have become a stop text. */
static enum strata_result flush(struct st_answer *a, struct strata_error *err)
{
    struct st_bytes rest = {0}, free_text = {0};
    int found = -1;
    if (a->end == STRATA_END_STOP_TEXT)
        return STRATA_OK;
    enum strata_result r = a->session->engine->model->tokenizer ? st_decoder_finish(&a->decoder, &rest, err) : STRATA_OK;
    if (!r)
        r = st_stop_push(a->stop, rest.data, rest.size, &free_text, &found, err);
    struct strata_event event = {.kind = STRATA_EVENT_TEXT, .token = -1};
    if (!r && free_text.size) {
        event.text = free_text.data;
        event.size = free_text.size;
        emit(a, &event);
    }
    if (!r && found < 0) {
        free_text = st_stop_finish(a->stop);
        event.text = free_text.data;
        event.size = free_text.size;
        if (event.size)
            emit(a, &event);
    }
    return r;
}

/* The pick of a row of the last pass: a device's, or from the logits. */
static enum strata_result pick_row(struct st_answer *a, size_t row, uint64_t position, struct st_pick *pick, struct strata_error *err)
{
    const struct strata_engine *e = a->session->engine;
    if (!e->picks)
        return st_sampler_pick(a->sampler, e->logits + row * e->dims.vocabulary, position, pick, err);
    *pick = (struct st_pick){.token = e->picks[row].token};
    return st_sampler_check(&e->picks[row], err);
}

/* Picks the token of a position from the logits of the one before, row row of the last pass, and shows it. */
static enum strata_result pick_token(struct st_answer *a, size_t row, uint64_t position, struct strata_error *err)
{
    const struct strata_model *m = a->session->engine->model;
    struct st_pick pick;
    struct st_bytes text = {.data = "", .size = 0};
    enum strata_result r = pick_row(a, row, position, &pick, err);
    if (!r)
        r = st_sampler_accept(a->sampler, &pick.token, 1, err);
    if (r)
        return r;
    a->token = pick.token;
    bool stop = strata_is_stop_token(m, pick.token);
    if (stop && !a->request->ignore_eos) {
        st_answer_end(a, STRATA_END_STOP_TOKEN);
        return STRATA_OK;
    }
    a->stats->generated_tokens++;
    if (m->tokenizer)
        r = st_decoder_push(&a->decoder, pick.token, &text, err);
    if (!r)
        r = show(a, &pick, text.data, text.size, err);
    if (!r && !a->ended && a->request->max_tokens && a->stats->generated_tokens >= a->request->max_tokens)
        st_answer_end(a, STRATA_END_LENGTH);
    return r;
}

/* ---- reading ---- */

/* The session takes what it can have of the prompt's beginning. */
static enum strata_result begin(struct st_answer *a, struct strata_error *err)
{
    struct strata_session *s = a->session;
    struct st_reading *in = &a->reading;
    a->start = st_answer_now();
    enum strata_result r = st_park_choose(s, in->ids, in->count, err);
    if (r)
        return r;
    a->begun = true;
    a->stats->reused_tokens = in->from = s->count;
    in->n_cuts = st_checkpoint_cuts(s->engine, in->ids, s->count, in->count, in->cuts);
    emit(a, &(struct strata_event){.kind = STRATA_EVENT_PROMPT, .prompt_done = s->count, .prompt_total = in->count});
    return STRATA_OK;
}

/* The end of the stretch that is read: the next cut, or the end of the text. */
static size_t stretch_end(const struct st_reading *in)
{
    return in->cut < in->n_cuts ? in->cuts[in->cut] : in->count;
}

/* Rows of the next piece: see the top of this file. */
static size_t piece(const struct st_answer *a, size_t most)
{
    const struct st_reading *in = &a->reading;
    size_t left = stretch_end(in) - a->session->count, at = (a->session->count - in->from) % in->chunk;
    if (!most && !at)
        return left;
    left = left < in->chunk - at ? left : in->chunk - at; /* of the pass that would read it alone */
    size_t rows = most / ST_GDN_CHUNK * ST_GDN_CHUNK;
    rows = rows ? rows : ST_GDN_CHUNK;
    return !most || left <= rows + ST_HELD_ROWS ? left : rows;
}

struct watch {
    struct st_answer *answer;
    const _Atomic bool *interrupt;
    size_t before; /* tokens held before the piece */
    bool shown;    /* events say how far it is */
};

static bool chunk_done(void *user, size_t done)
{
    struct watch *w = user;
    struct st_answer *a = w->answer;
    if (w->shown) {
        a->stats->read_tokens = w->before + done - a->stats->reused_tokens;
        a->stats->read_seconds = st_answer_now() - a->start;
        emit(a, &(struct strata_event){
                    .kind = STRATA_EVENT_PROMPT, .prompt_done = w->before + done, .prompt_total = a->reading.count});
    } else if (atomic_load(&a->session->cancelled)) {
        st_answer_end(a, STRATA_END_CANCELLED);
    }
    return !a->ended && !(w->interrupt && atomic_load(w->interrupt));
}

static enum strata_result read_piece(struct st_answer *a, size_t most, const _Atomic bool *interrupt, struct strata_error *err)
{
    struct strata_session *s = a->session;
    struct st_reading *in = &a->reading;
    if (s->count == in->from)
        in->chunk = st_pipeline_chunk(s->engine, stretch_end(in) - in->from);
    struct watch w = {a, interrupt, s->count, !a->picked};
    struct st_input input = {.ids = in->ids + s->count, .count = piece(a, most), .chunk = in->chunk};
    struct st_output output = {.chunk_done = chunk_done, .user = &w};
    return st_session_eval(s, &input, &output, err);
}

static enum strata_result reach_cut(struct st_answer *a, struct strata_error *err)
{
    struct st_reading *in = &a->reading;
    in->cut++;
    in->from = a->session->count;
    return st_checkpoint_take(a->session, err);
}

enum strata_result st_answer_read(struct st_answer *a, size_t most, const _Atomic bool *interrupt, size_t *rows,
                                  struct strata_error *err)
{
    struct strata_session *s = a->session;
    struct st_reading *in = &a->reading;
    enum strata_result r = a->begun ? STRATA_OK : begin(a, err);
    size_t before = s->count;
    if (!r && !a->ended && s->count < in->count)
        r = read_piece(a, most, interrupt, err);
    *rows = r ? 0 : s->count - before;
    if (!r && !a->ended && in->cut < in->n_cuts && s->count == stretch_end(in))
        r = reach_cut(a, err);
    if (r || a->ended || s->count < in->count)
        return r;
    a->reads = false;
    if (a->picked)
        return r;
    if (a->request->no_answer) {
        st_answer_end(a, STRATA_END_LENGTH);
        return r;
    }
    a->picked = true;
    a->start = st_answer_now();
    return pick_token(a, 0, s->count, err);
}

/* ---- windows ---- */

/* The context is full: forgets the older half of what follows the first turn, and reads the rest again where it then stands. */
static enum strata_result shift_context(struct st_answer *a, struct strata_error *err)
{
    struct strata_session *s = a->session;
    uint32_t count = s->count, keep = 0;
    for (uint32_t i = 0; i < count / 2 && !keep; i++)
        keep = strata_is_stop_token(s->engine->model, s->ids[i]) ? i + 1 : 0;
    uint32_t drop = (count - keep + 1) / 2;
    int32_t *rest = malloc((count - drop + 1) * sizeof *rest);
    if (!rest)
        return st_fail(err, STRATA_E_MEMORY, "no memory for the tokens that stay in the context");
    memcpy(rest, s->ids, keep * sizeof *rest);
    memcpy(rest + keep, s->ids + keep + drop, (count - keep - drop) * sizeof *rest);
    free(a->reading.own);
    a->reading = (struct st_reading){.ids = rest, .own = rest, .count = count - drop};
    a->shifted += drop;
    a->reads = true;
    enum strata_result r = st_session_rewind(s, keep, err);
    a->reading.from = s->count;
    return r;
}

enum strata_result st_answer_room(struct st_answer *a, struct strata_error *err)
{
    const struct strata_engine_options *o = &a->session->engine->options;
    if (a->session->count < o->context)
        return STRATA_OK;
    if (o->context_shift)
        return shift_context(a, err);
    st_answer_end(a, STRATA_END_CONTEXT);
    return STRATA_OK;
}

enum strata_result st_answer_guess(struct st_answer *a, size_t most, size_t others, struct st_window *w,
                                   struct strata_error *err)
{
    struct strata_session *s = a->session;
    size_t room = s->engine->options.context - s->count, left = st_checkpoint_left(s), limit = a->request->max_tokens;
    most = room < most ? room : most;
    if (left && left < most) /* checkpoints are where they would be without guesses */
        most = left;
    if (limit && limit - a->stats->generated_tokens < most)
        most = limit - a->stats->generated_tokens;
    return st_spec_guess(s, a->token, most, others, w, err);
}

static uint64_t first_position(const struct st_answer *a)
{
    return a->shifted + a->session->count + 1;
}

const struct st_sample *st_answer_sample(struct st_answer *a, const struct st_window *w)
{
    return st_sampler_window(a->sampler, first_position(a), w->ids, w->n);
}

/* Rows are kept as long as each one picks what the next one holds, so the sampler sees the tokens that it would see without
 * guesses. */
enum strata_result st_answer_take(struct st_answer *a, const struct st_window *w, size_t first, size_t *kept,
                                  struct strata_error *err)
{
    enum strata_result r;
    *kept = 0;
    do {
        r = pick_token(a, first + *kept, first_position(a) + *kept, err);
        (*kept)++;
    } while (!r && !a->ended && *kept < w->n && a->token == w->ids[*kept]);
    a->stats->passes++;
    a->stats->drafted_tokens += w->n - 1;
    a->stats->accepted_tokens += *kept - 1;
    return r;
}

enum strata_result st_answer_committed(struct st_answer *a, const struct st_window *w, size_t kept, double seconds,
                                       struct strata_error *err)
{
    enum strata_result r = st_spec_learn(a->session, w, kept, a->ended, seconds, err);
    if (!r && st_checkpoint_due(a->session))
        r = st_checkpoint_take(a->session, err);
    a->stats->generate_seconds = st_answer_now() - a->start;
    return r;
}

/* ---- begin and end ---- */

static enum strata_result check_request(const struct strata_session *s, const struct strata_request *q,
                                        struct strata_error *err)
{
    uint32_t context = s->engine->options.context;
    if (q->count == 0)
        return st_fail(err, STRATA_E_ARGUMENT, "the prompt is empty");
    if (q->count > context)
        return st_fail(err, STRATA_E_LIMIT, "the prompt has %zu tokens, the context holds %u", q->count, context);
    if (q->constraint && q->ignore_eos)
        return st_fail(err, STRATA_E_ARGUMENT, "ignore_eos cannot go with a constraint, which says where the answer ends");
    for (size_t i = 0; i < q->count; i++)
        if (q->ids[i] < 0 || (uint32_t)q->ids[i] >= s->engine->dims.embeddings)
            return st_fail(err, STRATA_E_ARGUMENT, "prompt token %zu: id %d is not in 0..%u", i, q->ids[i],
                           s->engine->dims.embeddings - 1);
    return STRATA_OK;
}

enum strata_result st_answer_open(struct st_answer *a, struct strata_session *s, const struct strata_request *q,
                                  struct strata_stats *stats, struct strata_error *err)
{
    const struct st_tokenizer *t = s->engine->model->tokenizer;
    *a = (struct st_answer){
        .session = s, .request = q, .stats = stats, .reading = {.ids = q->ids, .count = q->count}, .reads = true};
    *stats = (struct strata_stats){.prompt_tokens = q->count};
    atomic_store(&s->cancelled, false);
    if (t)
        st_decoder_init(&a->decoder, t, q->show_special);
    enum strata_result r = check_request(s, q, err);
    if (!r)
        r = st_sampler_create(&q->sampling, s->engine->dims.vocabulary, &a->sampler, err);
    if (!r)
        r = st_sampler_accept(a->sampler, q->ids, q->count, err);
    if (!r && q->constraint)
        r = st_sampler_constrain(a->sampler, q->constraint, err);
    if (!r)
        r = st_stop_create(q->stop, q->stop_count, &a->stop, err);
    return r;
}

enum strata_result st_answer_close(struct st_answer *a, struct strata_error *err)
{
    enum strata_result r = flush(a, err);
    if (!r)
        emit(a, &(struct strata_event){
                    .kind = STRATA_EVENT_END, .token = -1, .end = a->end, .stop_index = a->stop_index});
    return r;
}

void st_answer_release(struct st_answer *a)
{
    st_sampler_free(a->sampler);
    st_stop_free(a->stop);
    free(a->reading.own);
    if (a->session->engine->model->tokenizer)
        st_decoder_free(&a->decoder);
}
