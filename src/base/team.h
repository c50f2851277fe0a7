/* A team of threads that run one function together, each taking its share of the work (single program, many workers).
 *
 * A kernel receives its worker, computes the slice of rows or columns that st_share gives it and calls st_barrier
 * between phases. Which worker computes an element never changes the element, so results do not depend on the number of
 * workers. */
#ifndef ST_BASE_TEAM_H
#define ST_BASE_TEAM_H

#include <stdint.h>

#include "base/result.h"

struct st_team;

struct st_worker {
    int index;            /* 0 .. count-1; 0 is the caller's thread */
    int count;            /* of the run: not always the whole team */
    struct st_team *team; /* NULL for a worker that is alone */
    void *scratch;        /* this worker's own memory, 64-byte aligned */
    size_t scratch_size;
};

/* threads >= 1, scratch: bytes for each worker. The team owns its threads; st_team_free joins them. */
enum strata_result st_team_create(int threads, size_t scratch, struct st_team **out, struct strata_error *err);
void st_team_free(struct st_team *team);
int st_team_size(const struct st_team *team);

/* Runs fn(arg, worker) on every worker and returns when all are done. One run at a time; not from inside a run. */
void st_team_run(struct st_team *team, void (*fn)(void *arg, struct st_worker *w), void *arg);

/* The same on the first `workers` (1 .. size) workers only; the others sleep on. */
void st_team_run_on(struct st_team *team, int workers, void (*fn)(void *arg, struct st_worker *w), void *arg);
/* The same in two steps: the other workers start, and the caller, who is worker 0, comes later; end is its part, and
 * returns when all are done. Between the two fn must not need worker 0: no barrier, work that is taken and not shared
 * out. */
void st_team_begin(struct st_team *team, int workers, void (*fn)(void *arg, struct st_worker *w), void *arg);
void st_team_end(struct st_team *team);

/* Workers without work stay awake for so many yields of their core, a fraction of a microsecond each, instead of sleeping soon: for teams
 * whose next work comes within a fraction of a millisecond, where waking up takes longer than the work. 0 at first. */
void st_team_linger(struct st_team *team, int yields);
/* How many waits at barriers have outlasted the spin so far, over all workers: with a core for every worker there are
 * next to none, and many where workers wait for one that has lost its core. */
uint64_t st_team_sleeps(const struct st_team *team);

/* Waits until every worker of the run has come here; memory written before is visible after. */
void st_barrier(struct st_worker *w);

/* Waits until another worker has made the word other than 0, which it does soon. */
void st_await(const _Atomic uint32_t *word);

/* The worker's slice [*from, *to) of n items, cut at multiples of grain (>= 1) so that neighbours do not share a cache
 * line or a block. */
void st_share(const struct st_worker *w, size_t n, size_t grain, size_t *from, size_t *to);

/* Physical cores that this process may use (affinity and SMT siblings counted once); at least 1. */
int st_cpu_cores(void);

#endif
