/* Several answers at once: whose turn it is, and what a step computes.
 *
 * A step is one pass: a window, which has a row of every answer that generates (and of guesses, while there is room), or a piece of
 * one prompt. While some read and others generate, both get the same time, and pieces are short, so that nobody waits long for the
 * next token. More answers than a window has rows take turns, and so do prompts. None of this changes a bit of any answer: rows of
 * a window do not depend on one another, and prompts not on their pieces (answer.c). */
#include <stdlib.h>
#include <string.h>

#include "engine/answer.h"

/* What a piece of a prompt should take while others generate. */
static const double PIECE_SECONDS = 0.15;

struct entry {
    struct entry *next;
    struct st_answer answer;
    struct strata_stats unused; /* for a caller who wants none */
    strata_batch_done *done;
    void *user;
};

struct strata_batch {
    struct strata_engine *engine;
    struct entry *first; /* whoever waits longest for a turn comes first */
    _Atomic bool interrupt;
    bool both;                  /* some read and others generate */
    double reading, generating; /* seconds, since then */
    double row;                 /* seconds that a token of a prompt takes; 0: not known */
};

/* ---- the list ---- */

static void detach(struct strata_batch *b, struct entry *entry)
{
    struct entry **at = &b->first;
    while (*at != entry)
        at = &(*at)->next;
    *at = entry->next;
}

static void append(struct strata_batch *b, struct entry *entry)
{
    struct entry **at = &b->first;
    while (*at)
        at = &(*at)->next;
    entry->next = NULL;
    *at = entry;
}

static void had_turn(struct strata_batch *b, struct entry *entry)
{
    detach(b, entry);
    append(b, entry);
}

/* The answer has ended, by itself or with a failure. */
static void finish(struct strata_batch *b, struct entry *entry, enum strata_result r, struct strata_error *err)
{
    if (!r)
        r = st_answer_close(&entry->answer, err);
    detach(b, entry);
    st_answer_release(&entry->answer);
    entry->done(entry->user, r, err);
    free(entry);
}

/* After a failure by which a device was lost no session holds anything any more. */
static void finish_lost(struct strata_batch *b, enum strata_result r, struct strata_error *err)
{
    for (struct entry *entry = b->first, *next; entry && b->engine->broken; entry = next) {
        next = entry->next;
        if (entry->answer.begun)
            finish(b, entry, r, err);
    }
}

/* What follows a piece of work for an answer. */
static void settle(struct strata_batch *b, struct entry *entry, enum strata_result r, struct strata_error *err)
{
    if (r || entry->answer.ended)
        finish(b, entry, r, err);
    if (r)
        finish_lost(b, r, err);
}

/* ---- prompts ---- */

static size_t piece_rows(const struct strata_batch *b, bool others_generate)
{
    if (!b->first->next)
        return 0;
    if (!others_generate)
        return SIZE_MAX;
    double rows = b->row > 0 ? PIECE_SECONDS / b->row : 1;
    return rows < 1 ? 1 : rows < ST_PREFILL_MAX ? (size_t)rows : ST_PREFILL_MAX;
}

static void read_piece(struct strata_batch *b, struct entry *entry, bool others_generate)
{
    struct strata_error err = {0};
    double start = st_answer_now();
    size_t rows = 0;
    had_turn(b, entry);
    enum strata_result r = st_answer_read(&entry->answer, piece_rows(b, others_generate), &b->interrupt, &rows, &err);
    double seconds = st_answer_now() - start;
    b->reading += seconds;
    if (rows)
        b->row = seconds / (double)rows;
    settle(b, entry, r, &err);
}

/* ---- windows ---- */

struct turn {
    struct entry *entry;
    struct st_window window;
    size_t first; /* row of the window */
    enum strata_result result;
    struct strata_error err;
};

static bool generates(const struct entry *entry)
{
    return !entry->answer.reads;
}

/* Those that take part in the next window. */
static size_t choose(struct strata_batch *b, struct turn turn[ST_HELD_ROWS])
{
    size_t n = 0;
    for (struct entry *entry = b->first, *next; entry && n < ST_HELD_ROWS; entry = next) {
        struct strata_error err = {0};
        next = entry->next;
        if (!generates(entry))
            continue;
        enum strata_result r = st_answer_room(&entry->answer, &err);
        if (!r && !entry->answer.ended && generates(entry))
            turn[n++] = (struct turn){.entry = entry};
        else
            settle(b, entry, r, &err);
        if (r)
            return 0; /* the list may have become a shorter one */
    }
    for (size_t i = 0; i < n; i++)
        had_turn(b, turn[i].entry);
    return n;
}

/* Rows of each: its token, and guesses as long as there is room. Returns how many turns are left: those without a failure. */
static size_t guess(struct strata_batch *b, struct turn turn[ST_HELD_ROWS], size_t n)
{
    size_t spare = ST_HELD_ROWS - n, rows = 0, left = 0;
    for (size_t i = 0; i < n; i++) {
        struct turn *t = &turn[left];
        size_t behind = n - i - 1;
        *t = turn[i];
        t->result = st_answer_guess(&t->entry->answer, 1 + spare / (behind + 1), rows + behind, &t->window, &t->err);
        if (t->result) {
            settle(b, t->entry, t->result, &t->err);
            if (b->engine->broken) /* that was the end of all */
                return 0;
            continue;
        }
        t->first = rows;
        rows += t->window.n;
        spare -= t->window.n - 1;
        left++;
    }
    return left;
}

/* Computes the window and takes what it says. *seconds: of the passes. */
static enum strata_result compute(struct strata_batch *b, struct turn turn[ST_HELD_ROWS], size_t n,
                                  size_t kept[ST_HELD_ROWS], double *seconds, struct strata_error *err)
{
    struct st_window_part part[ST_HELD_ROWS];
    for (size_t i = 0; i < n; i++) {
        struct strata_session *s = turn[i].entry->answer.session;
        part[i] = (struct st_window_part){.session = s,
                                          .ids = turn[i].window.ids,
                                          .n = turn[i].window.n,
                                          .wide = st_spec_wide(s),
                                          .sample = st_answer_sample(&turn[i].entry->answer, &turn[i].window)};
    }
    double start = st_answer_now();
    enum strata_result r = st_engine_window(b->engine, part, n, err);
    *seconds = st_answer_now() - start;
    if (r)
        return r;
    for (size_t i = 0; i < n; i++) {
        struct turn *t = &turn[i];
        t->result = st_answer_take(&t->entry->answer, &t->window, t->first, &kept[i], &t->err);
        part[i].keep = kept[i];
    }
    start = st_answer_now();
    r = st_engine_commit(b->engine, part, n, err);
    *seconds += st_answer_now() - start;
    return r;
}

static void generate(struct strata_batch *b)
{
    struct turn turn[ST_HELD_ROWS];
    size_t kept[ST_HELD_ROWS];
    struct strata_error err = {0};
    double start = st_answer_now(), seconds;
    size_t n = guess(b, turn, choose(b, turn));
    enum strata_result r = n ? compute(b, turn, n, kept, &seconds, &err) : STRATA_OK;
    bool window_failed = r != STRATA_OK;
    for (size_t i = 0; i < n; i++) {
        struct turn *t = &turn[i];
        if (!t->result && (window_failed || b->engine->broken)) { /* then its session holds nothing */
            t->result = r;
            t->err = err;
        }
        if (!t->result)
            t->result = st_answer_committed(&t->entry->answer, &t->window, kept[i], seconds, &t->err);
        if (t->result || t->entry->answer.ended)
            finish(b, t->entry, t->result, &t->err);
        if (t->result) {
            r = t->result;
            err = t->err;
        }
    }
    if (r)
        finish_lost(b, r, &err);
    b->generating += st_answer_now() - start;
}

/* ---- the interface ---- */

enum strata_result strata_batch_create(struct strata_engine *e, struct strata_batch **out, struct strata_error *err)
{
    struct strata_batch *b = calloc(1, sizeof *b);
    if (!b)
        return st_fail(err, STRATA_E_MEMORY, "no memory for a batch");
    b->engine = e;
    *out = b;
    return STRATA_OK;
}

static void clear(struct strata_batch *b)
{
    for (struct entry *entry; (entry = b->first);) {
        b->first = entry->next;
        st_answer_release(&entry->answer);
        free(entry);
    }
}

void strata_batch_free(struct strata_batch *b)
{
    if (b)
        clear(b);
    free(b);
}

enum strata_result strata_batch_add(struct strata_batch *b, struct strata_session *s, const struct strata_request *q,
                                    struct strata_stats *stats, strata_batch_done *done, void *user, struct strata_error *err)
{
    for (const struct entry *entry = b->first; entry; entry = entry->next)
        if (entry->answer.session == s)
            return st_fail(err, STRATA_E_ARGUMENT, "the session has an answer under way");
    if (s->engine != b->engine)
        return st_fail(err, STRATA_E_ARGUMENT, "the session belongs to another engine");
    struct entry *entry = calloc(1, sizeof *entry);
    if (!entry)
        return st_fail(err, STRATA_E_MEMORY, "no memory for an answer");
    entry->done = done;
    entry->user = user;
    enum strata_result r = st_answer_open(&entry->answer, s, q, stats ? stats : &entry->unused, err);
    if (r) {
        st_answer_release(&entry->answer);
        free(entry);
        return r;
    }
    append(b, entry);
    return STRATA_OK;
}

static void finish_cancelled(struct strata_batch *b)
{
    for (struct entry *entry = b->first, *next; entry; entry = next) {
        struct strata_error err = {0};
        next = entry->next;
        if (!atomic_load(&entry->answer.session->cancelled))
            continue;
        st_answer_end(&entry->answer, STRATA_END_CANCELLED);
        finish(b, entry, STRATA_OK, &err);
    }
}

bool strata_batch_step(struct strata_batch *b)
{
    struct entry *reader = NULL;
    bool others_generate = false;
    finish_cancelled(b);
    for (struct entry *entry = b->first; entry; entry = entry->next) {
        if (generates(entry))
            others_generate = true;
        else if (!reader)
            reader = entry;
    }
    if (!b->both)
        b->reading = b->generating = 0;
    b->both = reader && others_generate;
    if (reader && (!b->both || b->reading <= b->generating))
        read_piece(b, reader, others_generate);
    else if (b->first)
        generate(b);
    atomic_store(&b->interrupt, false);
    return b->first != NULL;
}

void strata_batch_interrupt(struct strata_batch *b)
{
    atomic_store(&b->interrupt, true);
}

/* ---- one answer ---- */

struct outcome {
    enum strata_result result;
    struct strata_error *err;
};

static void take_outcome(void *user, enum strata_result result, const struct strata_error *err)
{
    struct outcome *o = user;
    o->result = result;
    if (result && o->err)
        *o->err = *err;
}

enum strata_result strata_generate(struct strata_session *s, const struct strata_request *q, struct strata_stats *stats,
                                   struct strata_error *err)
{
    struct strata_batch b = {.engine = s->engine};
    struct outcome outcome = {STRATA_OK, err};
    enum strata_result r = strata_batch_add(&b, s, q, stats, take_outcome, &outcome, err);
    while (!r && strata_batch_step(&b))
        ;
    return r ? r : outcome.result;
}
