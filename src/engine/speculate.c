/* Guesses and their windows: see speculate.h. */
#include "engine/speculate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernel/exact_math.h"

enum {
    WAITING_MAX = ST_DRAFT_WAITING, /* residuals that wait for the token after them */
    MATCH_LEAST = 3,  /* tokens that must be the same before guesses are taken from the text */
    MATCH_MOST = 24,
    MATCH_MIDDLE = 6,
    MATCH_LONG = 12,
    LOOK_BACK = 1 << 16, /* tokens of the text that are looked through */
};

struct st_spec {
    struct st_adapt adapt;
    st_drafter_fn drafter;
    void *user;
    struct st_guess always;
    bool layer; /* the engine has a draft layer */
    uint32_t from,
        waiting;   /* rows of the draft layer below from are there; residuals from .. from + waiting - 1 wait */
    float *wide;   /* [WAITING_MAX][wide] */
    float *window; /* [ST_HELD_ROWS][wide] of the window that was computed last */
    float *chain;  /* [wide] the draft layer's own residual */
    float *logits; /* [vocabulary] of the draft layer, unless its device made pick of them */
    struct st_sample_pick pick;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint64_t floats(const struct strata_engine *e)
{
    return (WAITING_MAX + ST_HELD_ROWS + 1ull) * e->dims.wide + e->dims.vocabulary;
}

uint64_t st_spec_bytes(const struct strata_engine *e)
{
    return e->options.drafts && e->dims.draft ? floats(e) * sizeof(float) : 0;
}

enum strata_result st_spec_create(struct strata_engine *e, struct st_spec **out, struct strata_error *err)
{
    *out = NULL;
    if (!e->options.drafts)
        return STRATA_OK;
    struct st_spec *spec = calloc(1, sizeof *spec);
    bool layer = e->dims.draft;
    if (!spec || (layer && !(spec->wide = calloc(floats(e), sizeof *spec->wide)))) {
        free(spec);
        return st_fail(err, STRATA_E_MEMORY, "no memory for the drafts of a session");
    }
    spec->layer = layer;
    st_adapt_init(&spec->adapt);
    if (layer) {
        spec->window = spec->wide + (size_t)WAITING_MAX * e->dims.wide;
        spec->chain = spec->window + (size_t)ST_HELD_ROWS * e->dims.wide;
        spec->logits = spec->chain + e->dims.wide;
    }
    *out = spec;
    return STRATA_OK;
}

void st_spec_free(struct st_spec *spec)
{
    if (spec)
        free(spec->wide);
    free(spec);
}

void st_spec_use(struct st_spec *spec, st_drafter_fn drafter, void *user)
{
    spec->drafter = drafter;
    spec->user = user;
}

void st_spec_always(struct st_spec *spec, enum st_guess_source source, size_t count)
{
    spec->always = (struct st_guess){source, count, count};
}

/* ---- rows of the draft layer ---- */

/* Computes the rows that wait and whose next token is in ids; the last of them gives logits and residual if they are
 * wanted. */
static enum strata_result catch_up(struct strata_session *s, const int32_t *ids, size_t n, bool chain,
                                   struct strata_error *err)
{
    struct st_spec *spec = s->spec;
    size_t wide = s->engine->dims.wide;
    struct st_draft_rows d = {.first = spec->from,
                              .count = n,
                              .ids = ids,
                              .wide = spec->wide,
                              .last_only = true,
                              .logits = chain ? spec->logits : NULL,
                              .pick = chain ? &spec->pick : NULL,
                              .wide_out = chain ? spec->chain : NULL};
    enum strata_result r = n ? st_session_draft_rows(s, &d, err) : STRATA_OK;
    if (r)
        return r;
    spec->from += (uint32_t)n;
    spec->waiting -= (uint32_t)n;
    memmove(spec->wide, spec->wide + n * wide, spec->waiting * wide * sizeof *spec->wide);
    return STRATA_OK;
}

/* Rows from .. to - 1 whose residuals nobody kept, as after a session was restored: zeros instead, which the draft
 * layer's norm leaves at zero. Only the quality of guesses depends on them. */
static enum strata_result fill_gap(struct strata_session *s, uint32_t to, struct strata_error *err)
{
    struct st_spec *spec = s->spec;
    size_t wide = s->engine->dims.wide;
    enum strata_result r = STRATA_OK;
    memset(spec->wide, 0, (size_t)WAITING_MAX * wide * sizeof *spec->wide);
    while (spec->from < to && !r) {
        spec->waiting = to - spec->from < WAITING_MAX ? to - spec->from : WAITING_MAX;
        r = catch_up(s, s->ids + spec->from + 1, spec->waiting, false, err);
    }
    return r;
}

/* Brings what is there and what waits to exactly first positions, whose ids and the next one are known. */
static enum strata_result stand_at(struct strata_session *s, uint32_t first, struct strata_error *err)
{
    struct st_spec *spec = s->spec;
    if (first < spec->from) /* the session went back */
        spec->from = first;
    if (first < spec->from + spec->waiting)
        spec->waiting = first - spec->from;
    if (first == spec->from + spec->waiting)
        return STRATA_OK;
    enum strata_result r = catch_up(s, s->ids + spec->from + 1, spec->waiting, false, err);
    return r ? r : fill_gap(s, first, err);
}

void st_spec_restored(struct strata_session *s)
{
    if (!s->spec)
        return;
    s->spec->from = s->count ? s->count - 1 : 0; /* the last row waits for its token, and its residual is lost */
    s->spec->waiting = 0;
}

enum strata_result st_spec_settle(struct strata_session *s, struct strata_error *err)
{
    struct st_spec *spec = s->spec;
    if (!spec || !spec->layer || !s->count)
        return STRATA_OK;
    enum strata_result r = stand_at(s, s->count, err);
    return r || spec->waiting < 2 ? r : catch_up(s, s->ids + spec->from + 1, spec->waiting - 1, false, err);
}

enum strata_result st_spec_follow(struct strata_session *s, uint32_t first, size_t n, const float *wide, uint32_t known,
                                  struct strata_error *err)
{
    struct st_spec *spec = s->spec;
    size_t width = s->engine->dims.wide;
    if (!spec->layer)
        return STRATA_OK;
    enum strata_result r = stand_at(s, first, err);
    if (!r && spec->waiting + n > WAITING_MAX)
        r = catch_up(s, s->ids + spec->from + 1, spec->waiting, false, err);
    /* Rows whose next token is known go straight from where they lie. */
    size_t ready = first + n < known ? n : known - first - 1;
    if (!r && n > WAITING_MAX) {
        struct st_draft_rows d = {.first = first, .count = ready, .ids = s->ids + first + 1, .wide = wide};
        r = st_session_draft_rows(s, &d, err);
        spec->from += (uint32_t)ready;
        wide += ready * width;
        n -= ready;
    }
    if (r)
        return r;
    memcpy(spec->wide + spec->waiting * width, wide, n * width * sizeof *wide);
    spec->waiting += (uint32_t)n;
    return STRATA_OK;
}

/* ---- guesses of the draft layer ---- */

/* The most probable token (the first of several) and its probability; -1 where no logit is a number. */
static int32_t most_probable(const float *logits, size_t n, double *probability)
{
    size_t best = n;
    float sum = 0;
    for (size_t i = 0; i < n; i++)
        if (logits[i] == logits[i] && (best == n || logits[i] > logits[best]))
            best = i;
    if (best == n)
        return -1;
    for (size_t i = 0; i < n; i++) {
        float x = logits[i] - logits[best];
        sum +=
            x > -20.0f ? st_expf(x) : 0; /* what is less takes no part in a sum of up to 2^18 terms that matters here */
    }
    *probability = sum > 0 ? 1.0 / (double)sum : 0;
    return (int32_t)best;
}

/* The draft layer's guess and its probability; -1: none. */
static int32_t layer_guess(const struct st_spec *spec, size_t choices, double *probability)
{
    if (spec->pick.status != ST_SAMPLE_OK)
        return -1;
    if (!spec->pick.total)
        return most_probable(spec->logits, choices, probability);
    *probability = (double)ST_SAMPLE_ONE / (double)spec->pick.total;
    return spec->pick.token;
}

/* Up to most drafts after next; fewer when the layer is not sure enough. */
static enum strata_result draft_chain(struct strata_session *s, int32_t next, size_t most, int32_t *out, size_t *count,
                                      struct strata_error *err)
{
    struct st_spec *spec = s->spec;
    struct strata_engine *e = s->engine;
    int32_t ids[WAITING_MAX];
    size_t choices = e->dims.vocabulary < e->dims.embeddings ? e->dims.vocabulary : e->dims.embeddings;
    float least = e->options.draft_min_p > 0 ? e->options.draft_min_p : 0.5f;
    *count = 0;
    enum strata_result r = stand_at(s, s->count, err);
    if (r || !spec->waiting) /* without the last token's residual a chain has no beginning */
        return r;
    for (uint32_t i = 0; i < spec->waiting; i++)
        ids[i] = i + 1 < spec->waiting ? s->ids[spec->from + i + 1] : next;
    r = catch_up(s, ids, spec->waiting, true, err);
    while (!r) {
        double probability = 0;
        int32_t token = layer_guess(spec, choices, &probability);
        if (token < 0 || probability < (double)least)
            break;
        out[(*count)++] = token;
        if (*count == most)
            break;
        struct st_draft_rows d = {.first = s->count + (uint32_t)*count - 1,
                                  .count = 1,
                                  .ids = &token,
                                  .wide = spec->chain,
                                  .last_only = true,
                                  .logits = spec->logits,
                                  .pick = &spec->pick,
                                  .wide_out = spec->chain};
        r = st_session_draft_rows(s, &d, err);
    }
    return r;
}

/* ---- guesses from the text ---- */

struct match {
    size_t length; /* tokens that are the same; 0: none */
    size_t after;  /* index of the token that followed */
};

static int32_t id_at(const struct strata_session *s, int32_t next, size_t i)
{
    return i < s->count ? s->ids[i] : next;
}

/* The longest stretch of the text that is the same as its end (the tokens held, then next); the last one of several. */
static struct match find_match(const struct strata_session *s, int32_t next)
{
    struct match best = {0};
    size_t end = (size_t)s->count + 1, low = end > LOOK_BACK ? end - LOOK_BACK : 0;
    if (end < MATCH_LEAST + 1)
        return best;
    int32_t before = id_at(s, next, end - 2);
    for (size_t at = end - 1; at-- > low + MATCH_LEAST - 1;) {
        if (s->ids[at] != next || s->ids[at - 1] != before)
            continue;
        size_t length = 2;
        while (length < MATCH_MOST && length <= at && s->ids[at - length] == id_at(s, next, end - 1 - length))
            length++;
        if (length >= MATCH_LEAST && length > best.length)
            best = (struct match){length, at + 1};
        if (length == MATCH_MOST)
            break;
    }
    return best;
}

static enum st_guess_source source_of(const struct match *m)
{
    return m->length >= MATCH_LONG     ? ST_GUESS_TEXT_LONG
           : m->length >= MATCH_MIDDLE ? ST_GUESS_TEXT_MIDDLE
                                       : ST_GUESS_TEXT_SHORT;
}

/* ---- windows ---- */

static enum strata_result guess(struct strata_session *s, int32_t next, size_t most, struct st_window *w,
                                struct strata_error *err)
{
    struct st_spec *spec = s->spec;
    size_t can[ST_GUESS_SOURCES] = {0}, count = 0;
    if (spec->drafter) {
        count = spec->drafter(spec->user, s, next, most, w->ids + 1);
        w->guess.asked = w->guess.count = count;
        w->n += count;
        return STRATA_OK;
    }
    struct match m = find_match(s, next);
    if (m.length) {
        size_t left = (size_t)s->count + 1 - m.after;
        can[source_of(&m)] = left < most ? left : most;
    }
    if (spec->layer)
        can[ST_GUESS_LAYER] = most;
    w->guess = spec->always.asked ? spec->always : st_adapt_choose(&spec->adapt, can, w->others);
    if (w->guess.asked > can[w->guess.source])
        w->guess.asked = can[w->guess.source];
    enum strata_result r = STRATA_OK;
    if (w->guess.asked && w->guess.source == ST_GUESS_LAYER)
        r = draft_chain(s, next, w->guess.asked, w->ids + 1, &count, err);
    else
        for (; count < w->guess.asked; count++)
            w->ids[1 + count] = id_at(s, next, m.after + count);
    w->guess.count = count;
    w->n += count;
    return r;
}

enum strata_result st_spec_guess(struct strata_session *s, int32_t next, size_t most, size_t others, struct st_window *w,
                                 struct strata_error *err)
{
    size_t drafts = s->spec ? s->engine->options.drafts : 0;
    double begun = now();
    *w = (struct st_window){.ids = {next}, .n = 1, .others = others};
    drafts = drafts < most - 1 ? drafts : most - 1;
    enum strata_result r = drafts ? guess(s, next, drafts, w, err) : STRATA_OK;
    w->guessing = now() - begun;
    return r;
}

float *st_spec_wide(const struct strata_session *s)
{
    return s->spec ? s->spec->window : NULL;
}

enum strata_result st_spec_learn(struct strata_session *s, const struct st_window *w, size_t keep, bool ended,
                                 double seconds, struct strata_error *err)
{
    struct st_spec *spec = s->spec;
    if (!spec)
        return STRATA_OK;
    /* Picking and showing is not part of it: it takes as long for each token, whatever the windows. */
    st_adapt_learn(&spec->adapt, w->guess, w->others, keep < w->n && !ended ? keep : keep - 1, keep - 1, w->guessing, seconds);
    return st_spec_follow(s, s->count - (uint32_t)keep, keep, spec->window, s->count, err);
}
