/* strata_generate: read what is new of the prompt, then pick, show and compute tokens until something ends the answer. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/park.h"
#include "engine/sampler.h"
#include "engine/speculate.h"
#include "text/stop.h"

struct answer {
    struct strata_session *session;
    const struct strata_request *request;
    struct strata_stats *stats;
    struct st_sampler *sampler;
    struct st_decoder decoder;
    struct st_stop *stop;
    struct strata_error *err;
    enum strata_end end;
    int stop_index;
    bool ended;
    uint64_t shifted; /* tokens that were forgotten to make room */
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void finish(struct answer *a, enum strata_end end)
{
    a->ended = true;
    a->end = end;
}

/* Hands an event to the caller; false from it, or a cancel from outside, ends the answer. */
static void emit(struct answer *a, const struct strata_event *event)
{
    const struct strata_request *q = a->request;
    bool go = !q->event || q->event(q->user, event);
    if (!a->ended && (!go || atomic_load(&a->session->cancelled)))
        finish(a, STRATA_END_CANCELLED);
}

struct reading {
    struct answer *answer;
    size_t reused, before; /* tokens held before anything was read, and before this part of the prompt */
    double start;
};

static bool show_reading(void *user, size_t done)
{
    struct reading *reading = user;
    struct answer *a = reading->answer;
    done += reading->before;
    a->stats->read_tokens = done - reading->reused;
    a->stats->read_seconds = now() - reading->start;
    emit(a, &(struct strata_event){.kind = STRATA_EVENT_PROMPT, .prompt_done = done, .prompt_total = a->request->count});
    return !a->ended;
}

/* Reads on to a length of the prompt. */
static enum strata_result read_to(struct answer *a, struct reading *reading, size_t to)
{
    struct strata_session *s = a->session;
    struct st_input in = {.ids = a->request->ids + s->count, .count = to - s->count};
    struct st_output out = {.chunk_done = show_reading, .user = reading};
    reading->before = s->count;
    return in.count ? st_session_eval(s, &in, &out, a->err) : STRATA_OK;
}

static enum strata_result read_prompt(struct answer *a)
{
    struct strata_session *s = a->session;
    const struct strata_request *q = a->request;
    struct reading reading = {.answer = a, .start = now()};
    enum strata_result r = st_park_choose(s, q->ids, q->count, a->err);
    reading.reused = a->stats->reused_tokens = s->count;
    if (!r)
        emit(a, &(struct strata_event){
                    .kind = STRATA_EVENT_PROMPT, .prompt_done = s->count, .prompt_total = a->request->count});
    uint32_t cuts[ST_CHECKPOINTS];
    size_t n = r ? 0 : st_checkpoint_cuts(s->engine, q->ids, s->count, q->count, cuts);
    for (size_t i = 0; i < n && !r && !a->ended; i++) {
        r = read_to(a, &reading, cuts[i]);
        if (!r && !a->ended)
            r = st_checkpoint_take(s, a->err);
    }
    return r || a->ended ? r : read_to(a, &reading, q->count);
}

/* Shows a token and its text, as far as no stop text can begin in it. */
static enum strata_result show(struct answer *a, const struct st_pick *pick, const char *text, size_t size)
{
    struct st_bytes free_text;
    int found = -1;
    enum strata_result r = st_stop_push(a->stop, text, size, &free_text, &found, a->err);
    if (r)
        return r;
    if (found >= 0) {
        a->stop_index = found;
        finish(a, STRATA_END_STOP_TEXT);
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
static enum strata_result flush(struct answer *a)
{
    struct st_bytes rest = {0}, free_text = {0};
    int found = -1;
    if (a->end == STRATA_END_STOP_TEXT)
        return STRATA_OK;
    enum strata_result r = a->session->engine->model->tokenizer ? st_decoder_finish(&a->decoder, &rest, a->err) : STRATA_OK;
    if (!r)
        r = st_stop_push(a->stop, rest.data, rest.size, &free_text, &found, a->err);
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

/* Picks the token of a position from the logits of the one before, and shows it. */
static enum strata_result pick_token(struct answer *a, const float *logits, uint64_t position, int32_t *token)
{
    const struct strata_model *m = a->session->engine->model;
    struct st_pick pick;
    struct st_bytes text = {.data = "", .size = 0};
    enum strata_result r = st_sampler_pick(a->sampler, logits, position, &pick, a->err);
    if (!r)
        r = st_sampler_accept(a->sampler, &pick.token, 1, a->err);
    if (r)
        return r;
    *token = pick.token;
    bool stop = strata_is_stop_token(m, pick.token);
    if (stop && !a->request->ignore_eos) {
        finish(a, STRATA_END_STOP_TOKEN);
        return STRATA_OK;
    }
    a->stats->generated_tokens++;
    if (m->tokenizer)
        r = st_decoder_push(&a->decoder, pick.token, &text, a->err);
    if (!r)
        r = show(a, &pick, text.data, text.size);
    if (!r && !a->ended && a->request->max_tokens && a->stats->generated_tokens >= a->request->max_tokens)
        finish(a, STRATA_END_LENGTH);
    return r;
}

/* One pass: the token that was picked last and guesses of what follows. Rows are kept as long as each one picks what the next
 * one holds, so the sampler sees the tokens that it would see without guesses. */
static enum strata_result next_tokens(struct answer *a, int32_t *token)
{
    struct strata_session *s = a->session;
    const struct strata_request *q = a->request;
    uint32_t count = s->count;
    size_t most = s->engine->options.context - count, kept = 0, left = st_checkpoint_left(s);
    struct st_window w;
    if (left && left < most) /* checkpoints are where they would be without guesses */
        most = left;
    if (q->max_tokens && q->max_tokens - a->stats->generated_tokens < most)
        most = q->max_tokens - a->stats->generated_tokens;
    enum strata_result r = st_spec_window(s, *token, most, &w, a->err);
    if (r)
        return r;
    do {
        r = pick_token(a, s->engine->logits + kept * s->engine->dims.vocabulary, a->shifted + count + kept + 1, token);
        kept++;
    } while (!r && !a->ended && kept < w.n && *token == w.ids[kept]);
    a->stats->passes++;
    a->stats->drafted_tokens += w.n - 1;
    a->stats->accepted_tokens += kept - 1;
    /* After a failure too: what was shown is what the session holds. */
    struct strata_error later;
    enum strata_result end = st_spec_commit(s, &w, kept, a->ended, r ? &later : a->err);
    return r ? r : end;
}

/* The context is full: forgets the older half of what follows the first turn, and reads the rest again where it then stands. */
static enum strata_result shift_context(struct answer *a)
{
    struct strata_session *s = a->session;
    uint32_t count = s->count, keep = 0;
    for (uint32_t i = 0; i < count / 2 && !keep; i++)
        keep = strata_is_stop_token(s->engine->model, s->ids[i]) ? i + 1 : 0;
    uint32_t drop = (count - keep + 1) / 2, left = count - keep - drop;
    int32_t *rest = malloc((left + 1) * sizeof *rest);
    if (!rest)
        return st_fail(a->err, STRATA_E_MEMORY, "no memory for the tokens that stay in the context");
    memcpy(rest, s->ids + keep + drop, left * sizeof *rest);
    enum strata_result r = st_session_rewind(s, keep, a->err);
    if (!r && left)
        r = st_session_eval(s, &(struct st_input){.ids = rest, .count = left}, &(struct st_output){0}, a->err);
    a->shifted += drop;
    free(rest);
    return r;
}

static enum strata_result answer_tokens(struct answer *a)
{
    struct strata_session *s = a->session;
    double start = now();
    int32_t token;
    enum strata_result r = pick_token(a, s->engine->logits, s->count, &token);
    while (!r && !a->ended) {
        if (s->count == s->engine->options.context && !s->engine->options.context_shift)
            finish(a, STRATA_END_CONTEXT);
        if (!a->ended && s->count == s->engine->options.context)
            r = shift_context(a);
        if (!r && !a->ended)
            r = next_tokens(a, &token);
        if (!r && st_checkpoint_due(s))
            r = st_checkpoint_take(s, a->err);
        a->stats->generate_seconds = now() - start;
    }
    a->stats->generate_seconds = now() - start;
    return r;
}

static enum strata_result check_request(const struct strata_session *s, const struct strata_request *q,
                                        struct strata_error *err)
{
    uint32_t context = s->engine->options.context;
    if (q->count == 0)
        return st_fail(err, STRATA_E_ARGUMENT, "the prompt is empty");
    if (q->count > context)
        return st_fail(err, STRATA_E_LIMIT, "the prompt has %zu tokens, the context holds %u", q->count, context);
    for (size_t i = 0; i < q->count; i++)
        if (q->ids[i] < 0 || (uint32_t)q->ids[i] >= s->engine->dims.embeddings)
            return st_fail(err, STRATA_E_ARGUMENT, "prompt token %zu: id %d is not in 0..%u", i, q->ids[i],
                           s->engine->dims.embeddings - 1);
    return STRATA_OK;
}

enum strata_result strata_generate(struct strata_session *s, const struct strata_request *q, struct strata_stats *stats,
                                   struct strata_error *err)
{
    struct strata_stats unused;
    struct answer a = {.session = s, .request = q, .stats = stats ? stats : &unused, .err = err};
    *a.stats = (struct strata_stats){.prompt_tokens = q->count};
    atomic_store(&s->cancelled, false);
    const struct st_tokenizer *t = s->engine->model->tokenizer;
    if (t)
        st_decoder_init(&a.decoder, t, q->show_special);
    enum strata_result r = check_request(s, q, err);
    if (!r)
        r = st_sampler_create(&q->sampling, s->engine->dims.vocabulary, &a.sampler, err);
    if (!r)
        r = st_sampler_accept(a.sampler, q->ids, q->count, err);
    if (!r)
        r = st_stop_create(q->stop, q->stop_count, &a.stop, err);
    if (!r)
        r = read_prompt(&a);
    if (!r)
        r = answer_tokens(&a);
    if (!r)
        r = flush(&a);
    if (!r)
        emit(&a, &(struct strata_event){.kind = STRATA_EVENT_END, .token = -1, .end = a.end, .stop_index = a.stop_index});
    st_sampler_free(a.sampler);
    st_stop_free(a.stop);
    if (t)
        st_decoder_free(&a.decoder);
    return r;
}
