/* Speculation: tokens that may come next are guessed, computed in one pass with the token before them, and kept as far
 * as they are what each row picks itself. Guesses change how many passes an answer takes, never its text.
 *
 * Guesses come from the model's draft layer (a chain: each draft is the most probable token after the one before) or
 * from the text that the session holds: what followed the last occurrence of the tokens at its end. st_adapt chooses
 * between them, and how many, by what passes cost and how many guesses were right.
 *
 * Row i of the draft layer pairs the trunk's residual at position i with the token at i + 1. Rows are computed when
 * that token is known: in prompts chunk by chunk, in answers just before the next chain. Until then the residuals wait
 * here. */
#ifndef ST_ENGINE_SPECULATE_H
#define ST_ENGINE_SPECULATE_H

#include "engine/adapt.h"
#include "engine/engine.h"

struct st_spec;

/* Takes the place of the engine's own guesses: writes up to most (at least 1) guesses of what follows the tokens that
 * the session holds and next, returns how many. */
typedef size_t (*st_drafter_fn)(void *user, const struct strata_session *s, int32_t next, size_t most, int32_t *out);

/* For a session of an engine with drafts; NULL without. */
enum strata_result st_spec_create(struct strata_engine *e, struct st_spec **out, struct strata_error *err);
void st_spec_free(struct st_spec *spec);
/* Host memory of one. */
uint64_t st_spec_bytes(const struct strata_engine *e);
/* drafter NULL: the engine's own guesses again. */
void st_spec_use(struct st_spec *spec, st_drafter_fn drafter, void *user);

/* Every pass checks that many guesses of that source, as far as there are any, whatever pays: for measurements. Count
 * 0: the choice is the engine's again. */
void st_spec_always(struct st_spec *spec, enum st_guess_source source, size_t count);

/* The session's state, rows of the draft layer included, came from somewhere else as a whole. */
void st_spec_restored(struct strata_session *s);

/* Before the state is copied away: rows of the draft layer are computed as far as their tokens are known. */
enum strata_result st_spec_settle(struct strata_session *s, struct strata_error *err);

/* The trunk's residuals [n][wide] of positions first .. first + n - 1 of the session, whose ids are known up to known.
 */
enum strata_result st_spec_follow(struct strata_session *s, uint32_t first, size_t n, const float *wide, uint32_t known,
                                  struct strata_error *err);

/* What a window has of an answer. */
struct st_window {
    int32_t ids[ST_HELD_ROWS]; /* the token that was picked last, then guesses */
    size_t n, others;          /* rows, and those of other sessions in the same pass */
    struct st_guess guess;
    double guessing; /* seconds */
};

/* Fills in what begins with next and has up to most rows (at least 1). others: rows of other sessions in the pass. */
enum strata_result st_spec_guess(struct strata_session *s, int32_t next, size_t most, size_t others, struct st_window *w,
                                 struct strata_error *err);
/* Where st_engine_window leaves the residuals of such rows (st_window_part.wide). */
float *st_spec_wide(const struct strata_session *s);
/* Behind st_engine_commit of the first keep rows: the guesses among them were right, the one after them was wrong or, with
 * ended, not looked at. seconds: of the window and its commit. */
enum strata_result st_spec_learn(struct strata_session *s, const struct st_window *w, size_t keep, bool ended,
                                 double seconds, struct strata_error *err);

#endif
