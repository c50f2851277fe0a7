/* The sampler of sampler.h: options, tokens seen and log-probabilities; how a row is sampled is in kernel/sample.h. */
#include "engine/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "text/constraint.h"

struct st_sampler {
    struct strata_sampling o;
    struct strata_logit_bias *bias; /* ascending by token, those of one token in the caller's order */
    size_t vocabulary;

    /* Tokens seen: all of them in order, and how often each is within the window. */
    int32_t *seen;
    size_t seen_count, seen_room;
    struct st_sample_seen *times; /* [vocabulary], the first times_count are used */
    size_t times_count;
    uint32_t *place; /* [vocabulary]: index in times + 1, or 0 */

    struct st_sample_work work;
    struct st_matcher *matcher; /* of the constraint, or NULL */

    /* Rows of a window, their lists and their masks one after the other. */
    struct st_sample *rows;
    struct st_sample_seen *lists;
    uint32_t *masks;
    size_t rows_room, lists_room;
};

void strata_sampling_default(struct strata_sampling *out)
{
    *out = (struct strata_sampling){.top_p = 1.0f, .repetition_penalty = 1.0f};
}

static enum strata_result check(const struct strata_sampling *o, size_t vocabulary, struct strata_error *err)
{
    enum strata_result bad = STRATA_E_ARGUMENT;
    if (vocabulary == 0 || vocabulary > ST_SAMPLE_VOCABULARY)
        return st_fail(err, bad, "sampling: a vocabulary of %zu tokens is not between 1 and %d", vocabulary, ST_SAMPLE_VOCABULARY);
    if (!(o->temperature >= 0.0f) || isinf(o->temperature))
        return st_fail(err, bad, "sampling: temperature %g is not a finite number from 0 on", (double)o->temperature);
    if (o->top_k < 0)
        return st_fail(err, bad, "sampling: top_k %d is negative", o->top_k);
    if (!(o->top_p > 0.0f && o->top_p <= 1.0f))
        return st_fail(err, bad, "sampling: top_p %g is not above 0 and at most 1", (double)o->top_p);
    if (!(o->min_p >= 0.0f && o->min_p <= 1.0f))
        return st_fail(err, bad, "sampling: min_p %g is not between 0 and 1", (double)o->min_p);
    if (!(o->repetition_penalty > 0.0f) || isinf(o->repetition_penalty))
        return st_fail(err, bad, "sampling: repetition_penalty %g is not a finite number above 0",
                       (double)o->repetition_penalty);
    if (!isfinite(o->frequency_penalty))
        return st_fail(err, bad, "sampling: frequency_penalty is not finite");
    if (!isfinite(o->presence_penalty))
        return st_fail(err, bad, "sampling: presence_penalty is not finite");
    if (o->penalty_window < -1)
        return st_fail(err, bad, "sampling: penalty_window %d is below -1", o->penalty_window);
    if (o->logprobs < 0 || o->logprobs > ST_LOGPROBS_MAX)
        return st_fail(err, bad, "sampling: logprobs %d is not between 0 and %d", o->logprobs, ST_LOGPROBS_MAX);
    for (size_t i = 0; i < o->bias_count; i++) {
        const struct strata_logit_bias *b = &o->bias[i];
        if (b->token < 0 || (size_t)b->token >= vocabulary)
            return st_fail(err, bad, "sampling: logit bias for token %d, but the vocabulary has %zu", b->token, vocabulary);
        if (isnan(b->bias) || b->bias == INFINITY)
            return st_fail(err, bad, "sampling: logit bias of token %d is not finite and not -infinity", b->token);
    }
    return STRATA_OK;
}

struct ordered_bias {
    struct strata_logit_bias bias;
    size_t index;
};

static int by_token(const void *a, const void *b)
{
    const struct ordered_bias *x = a, *y = b;
    if (x->bias.token != y->bias.token)
        return x->bias.token < y->bias.token ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

static enum strata_result take_bias(struct st_sampler *s, const struct strata_sampling *options, struct strata_error *err)
{
    size_t n = options->bias_count;
    struct ordered_bias *ordered = calloc(n + 1, sizeof *ordered);
    s->bias = calloc(n + 1, sizeof *s->bias);
    if (!ordered || !s->bias || n > UINT32_MAX) {
        free(ordered);
        return st_fail(err, STRATA_E_MEMORY, "sampling: no memory for a logit bias of %zu tokens", n);
    }
    for (size_t i = 0; i < n; i++)
        ordered[i] = (struct ordered_bias){options->bias[i], i};
    qsort(ordered, n, sizeof *ordered, by_token);
    for (size_t i = 0; i < n; i++)
        s->bias[i] = ordered[i].bias;
    s->o.bias = s->bias;
    free(ordered);
    return STRATA_OK;
}

enum strata_result st_sampler_create(const struct strata_sampling *options, size_t vocabulary, struct st_sampler **out,
                                     struct strata_error *err)
{
    enum strata_result r = check(options, vocabulary, err);
    if (r)
        return r;
    struct st_sampler *s = calloc(1, sizeof *s);
    if (!s)
        return st_fail(err, STRATA_E_MEMORY, "sampling: no memory");
    s->o = *options;
    if (s->o.penalty_window == 0)
        s->o.penalty_window = 64;
    s->vocabulary = vocabulary;
    s->times = calloc(vocabulary, sizeof *s->times);
    s->place = calloc(vocabulary, sizeof *s->place);
    s->work.logit = calloc(vocabulary, sizeof *s->work.logit);
    s->work.weight = calloc(vocabulary, sizeof *s->work.weight);
    s->work.id = calloc(vocabulary, sizeof *s->work.id);
    if (!s->times || !s->place || !s->work.logit || !s->work.weight || !s->work.id)
        r = st_fail(err, STRATA_E_MEMORY, "sampling: no memory for a vocabulary of %zu tokens", vocabulary);
    if (!r)
        r = take_bias(s, options, err);
    if (r)
        st_sampler_free(s);
    else
        *out = s;
    return r;
}

void st_sampler_free(struct st_sampler *s)
{
    if (!s)
        return;
    st_matcher_free(s->matcher);
    free(s->bias);
    free(s->seen);
    free(s->times);
    free(s->place);
    free(s->work.logit);
    free(s->work.weight);
    free(s->work.id);
    free(s->rows);
    free(s->lists);
    free(s->masks);
    free(s);
}

enum strata_result st_sampler_constrain(struct st_sampler *s, const struct strata_constraint *c, struct strata_error *err)
{
    st_matcher_free(s->matcher);
    return st_constraint_begin(c, s->vocabulary, &s->matcher, err);
}

void st_sampler_reset(struct st_sampler *s)
{
    s->seen_count = s->times_count = 0;
    memset(s->place, 0, s->vocabulary * sizeof *s->place);
}

/* ---- tokens seen ---- */

static void count_in(struct st_sampler *s, int32_t token)
{
    if (!s->place[token]) {
        s->times[s->times_count++] = (struct st_sample_seen){token, 0};
        s->place[token] = (uint32_t)s->times_count;
    }
    s->times[s->place[token] - 1].times++;
}

static void count_out(struct st_sampler *s, int32_t token)
{
    struct st_sample_seen *at = &s->times[s->place[token] - 1];
    if (--at->times)
        return;
    *at = s->times[--s->times_count]; /* the last one takes its place */
    s->place[at->token] = s->place[token];
    s->place[token] = 0;
}

/* The token that is just outside of the window, or NULL. */
static const int32_t *left_behind(const struct st_sampler *s)
{
    size_t window = s->o.penalty_window < 0 ? SIZE_MAX : (size_t)s->o.penalty_window;
    return s->seen_count > window ? &s->seen[s->seen_count - 1 - window] : NULL;
}

enum strata_result st_sampler_accept(struct st_sampler *s, const int32_t *ids, size_t count, struct strata_error *err)
{
    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || (size_t)ids[i] >= s->vocabulary)
            return st_fail(err, STRATA_E_ARGUMENT, "token %d is outside the vocabulary of %zu", ids[i], s->vocabulary);
    uint64_t need, bytes;
    if (!st_add_u64(s->seen_count, count, &need) || !st_mul_u64(need, 2 * sizeof *s->seen, &bytes))
        return st_fail(err, STRATA_E_MEMORY, "sampling: no memory for the tokens seen");
    if (need > s->seen_room) {
        int32_t *p = realloc(s->seen, (size_t)bytes);
        if (!p)
            return st_fail(err, STRATA_E_MEMORY, "sampling: no memory for %llu tokens", (unsigned long long)need);
        s->seen = p;
        s->seen_room = 2 * (size_t)need;
    }
    for (size_t i = 0; i < count; i++) {
        enum strata_result r = s->matcher ? st_matcher_accept(s->matcher, ids[i], err) : STRATA_OK;
        if (r)
            return r;
        s->seen[s->seen_count++] = ids[i];
        count_in(s, ids[i]);
        if (left_behind(s))
            count_out(s, *left_behind(s));
    }
    return STRATA_OK;
}

void st_sampler_take_back(struct st_sampler *s, size_t count)
{
    if (s->matcher)
        st_matcher_take_back(s->matcher, count);
    for (size_t i = 0; i < count; i++) {
        if (left_behind(s))
            count_in(s, *left_behind(s));
        count_out(s, s->seen[--s->seen_count]);
    }
}

/* Fills out->top and returns what to subtract from a logit to get its log-probability. */
static double log_probabilities(struct st_sampler *s, size_t best, struct st_pick *out)
{
    size_t wanted = (size_t)s->o.logprobs, have = 0;
    uint64_t total = 0;
    const float *logit = s->work.logit;
    st_sample_weigh(logit, s->vocabulary, logit[best], 1.0f, s->work.weight);
    for (size_t i = 0; i < s->vocabulary; i++) {
        total += s->work.weight[i];
        float l = logit[i];
        if (l == -INFINITY || (have == wanted && !(l > logit[out->top[have - 1].token])))
            continue;
        size_t at = have < wanted ? have++ : have - 1;
        for (; at > 0 && l > logit[out->top[at - 1].token]; at--)
            out->top[at] = out->top[at - 1];
        out->top[at].token = (int32_t)i;
    }
    /* total is at least the weight of the best. */
    // cppcheck-suppress invalidFunctionArg
    double shift = (double)logit[best] + log((double)total / (double)ST_SAMPLE_ONE);
    for (size_t i = 0; i < have; i++)
        out->top[i].logprob = (float)((double)logit[out->top[i].token] - shift);
    out->top_count = have;
    return shift;
}

uint64_t st_sampler_random(uint64_t seed, uint64_t position)
{
    uint32_t c[4] = {(uint32_t)position, (uint32_t)(position >> 32), 0, 0};
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k1, (uint32_t)a};
        memcpy(c, next, sizeof c);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (uint64_t)c[0] << 32 | c[1];
}

static bool has_penalties(const struct strata_sampling *o)
{
    return o->repetition_penalty != 1.0f || o->frequency_penalty != 0.0f || o->presence_penalty != 0.0f;
}

/* The row from which the token at a position is picked, after the tokens seen so far. Lists and the mask are valid until tokens are
 * added or taken back. Fails where the constraint allows no token or is too ambiguous. */
static enum strata_result describe(const struct st_sampler *s, uint64_t position, struct st_sample *out, struct strata_error *err)
{
    const struct strata_sampling *o = &s->o;
    *out = (struct st_sample){.random = st_sampler_random(o->seed, position),
                              .least = (uint64_t)(o->min_p * (float)ST_SAMPLE_ONE),
                              .temperature = o->temperature,
                              .repetition = o->repetition_penalty,
                              .frequency = o->frequency_penalty,
                              .presence = o->presence_penalty,
                              .top_k = (uint32_t)o->top_k,
                              .share = (uint32_t)(o->top_p * (float)ST_SAMPLE_SHARE),
                              .bias = o->bias,
                              .biases = (uint32_t)o->bias_count};
    if (has_penalties(o)) {
        out->seen = s->times;
        out->seen_count = (uint32_t)s->times_count;
    }
    return s->matcher ? st_matcher_mask(s->matcher, &out->mask, err) : STRATA_OK;
}

static size_t mask_words(const struct st_sampler *s)
{
    return s->matcher ? (s->vocabulary + 31) / 32 : 0;
}

/* Room for the rows of a window, for their lists if there are penalties, and for their masks if there is a constraint. */
static bool make_room(struct st_sampler *s, size_t n)
{
    size_t pairs = has_penalties(&s->o) ? n * (s->times_count + n) : 0;
    if (n > s->rows_room) {
        free(s->rows);
        free(s->masks);
        s->rows = calloc(n, sizeof *s->rows);
        s->masks = calloc(n * mask_words(s) + 1, sizeof *s->masks);
        s->rows_room = s->rows && s->masks ? n : 0;
    }
    if (pairs > s->lists_room) {
        free(s->lists);
        s->lists = calloc(2 * pairs, sizeof *s->lists);
        s->lists_room = s->lists ? 2 * pairs : 0;
    }
    return n <= s->rows_room && pairs <= s->lists_room;
}

/* Row i of a window; its own copies of what changes with the tokens. *at: pairs of the lists that rows before it took. */
static enum strata_result window_row(struct st_sampler *s, uint64_t position, size_t i, size_t *at)
{
    struct st_sample *row = &s->rows[i];
    enum strata_result r = describe(s, position, row, NULL);
    if (r)
        return r;
    if (row->seen) {
        row->seen = memcpy(s->lists + *at, s->times, s->times_count * sizeof *s->times);
        *at += s->times_count;
    }
    if (row->mask)
        row->mask = memcpy(s->masks + i * mask_words(s), row->mask, mask_words(s) * sizeof *s->masks);
    return r;
}

const struct st_sample *st_sampler_window(struct st_sampler *s, uint64_t first, const int32_t *ids, size_t n)
{
    size_t at = 0, added = 0;
    bool good = !s->o.logprobs && make_room(s, n) && !window_row(s, first, 0, &at);
    for (size_t i = 1; i < n && good; i++) {
        good = !st_sampler_accept(s, ids + i, 1, NULL);
        added += good;
        good = good && !window_row(s, first + i, i, &at);
    }
    st_sampler_take_back(s, added);
    return good ? s->rows : NULL;
}

enum strata_result st_sampler_check(const struct st_sample_pick *pick, struct strata_error *err)
{
    switch ((enum st_sample_status)pick->status) {
    case ST_SAMPLE_OK: return STRATA_OK;
    case ST_SAMPLE_NONE:
        return st_fail(err, STRATA_E_MODEL, "no token can be picked: every logit is -infinity");
    case ST_SAMPLE_NAN:
    case ST_SAMPLE_INFINITE: break;
    }
    return st_fail(err, STRATA_E_MODEL, "the logit of token %d is %s", pick->token,
                   pick->status == ST_SAMPLE_NAN ? "not a number" : "infinite");
}

enum strata_result st_sampler_pick(struct st_sampler *s, const float *logits, uint64_t position, struct st_pick *out,
                                   struct strata_error *err)
{
    struct st_sample row;
    struct st_sample_pick pick;
    *out = (struct st_pick){0};
    enum strata_result r = describe(s, position, &row, err);
    if (r)
        return r;
    st_sample_adjust(&row, logits, s->vocabulary, &s->work, &pick);
    r = st_sampler_check(&pick, err);
    if (r)
        return r;
    double shift = s->o.logprobs ? log_probabilities(s, (size_t)pick.token, out) : 0.0;
    float logit = st_sample_draw(&row, s->vocabulary, &s->work, &pick);
    out->token = pick.token;
    if (s->o.logprobs)
        out->logprob = (float)((double)logit - shift);
    return STRATA_OK;
}
