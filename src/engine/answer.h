/* One answer: its prompt is read piece by piece, then tokens are picked, shown and computed until something ends it. Who calls
 * decides when: batch.c, which has several at once. */
#ifndef ST_ENGINE_ANSWER_H
#define ST_ENGINE_ANSWER_H

#include "engine/checkpoint.h"
#include "engine/sampler.h"
#include "engine/speculate.h"
#include "text/stop.h"

/* Tokens that are read: the prompt, or what stays in the context when it is full. */
struct st_reading {
    const int32_t *ids; /* from the session's first token on */
    size_t count;
    int32_t *own; /* ids, if they are no longer the request's */
    uint32_t cuts[ST_CHECKPOINTS]; /* lengths at which a checkpoint is taken, ascending */
    size_t n_cuts, cut;            /* the next one */
    size_t from, chunk; /* where the stretch to the next cut began, and rows of a pass when nobody else waits */
};

struct st_answer {
    struct strata_session *session;
    const struct strata_request *request;
    struct strata_stats *stats;
    struct st_sampler *sampler;
    struct st_decoder decoder;
    struct st_stop *stop;
    struct st_reading reading;
    bool begun; /* the session holds what can be had of the prompt's beginning */
    bool reads; /* there is something to read before the next token */
    bool picked; /* the first token; from here on token is the one to compute next */
    int32_t token;
    uint64_t shifted; /* tokens that were forgotten to make room */
    double start;     /* of reading, then of generating */
    bool ended;
    enum strata_end end;
    int stop_index;
};

/* Checks the request. What it points to stays valid until st_answer_release, which may follow a failure too. */
enum strata_result st_answer_open(struct st_answer *a, struct strata_session *s, const struct strata_request *q,
                                  struct strata_stats *stats, struct strata_error *err);
void st_answer_release(struct st_answer *a);

/* One piece of reading, and behind the last one the first token. most: rows of the piece; 0: all up to the next checkpoint, in
 * passes of the engine's choice, unless *interrupt becomes true. Pieces of any size give the same bits (answer.c). *rows: tokens
 * that were read. */
enum strata_result st_answer_read(struct st_answer *a, size_t most, const _Atomic bool *interrupt, size_t *rows,
                                  struct strata_error *err);

/* Before a window: room in the context for one more token. The answer may then have ended, or read again. */
enum strata_result st_answer_room(struct st_answer *a, struct strata_error *err);
/* Rows for the next window, at least one and up to most: see st_spec_guess. */
enum strata_result st_answer_guess(struct st_answer *a, size_t most, size_t others, struct st_window *w,
                                   struct strata_error *err);
/* How its rows are sampled, for struct st_window_part (or NULL): valid until the answer takes what they say. */
const struct st_sample *st_answer_sample(struct st_answer *a, const struct st_window *w);
/* Behind the window: picks and shows what its rows, whose first one is row first of the window, say. *kept: how many rows are to be
 * committed, after a failure too: what was shown is what the session then holds. */
enum strata_result st_answer_take(struct st_answer *a, const struct st_window *w, size_t first, size_t *kept,
                                  struct strata_error *err);
/* Behind their commit. */
enum strata_result st_answer_committed(struct st_answer *a, const struct st_window *w, size_t kept, double seconds,
                                       struct strata_error *err);

/* The last events of an answer that has ended. */
enum strata_result st_answer_close(struct st_answer *a, struct strata_error *err);
/* Ends it where it stands. */
void st_answer_end(struct st_answer *a, enum strata_end end);

double st_answer_now(void); /* seconds */

#endif
