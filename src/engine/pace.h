/* How many workers a pass gets. With a core for each, all of them. Where other programs, or workers of our own beyond
 * the number of cores, take cores away, every barrier waits for the worker that lost its core, hundreds of times for a
 * token; one worker alone may then be thirty times as fast as two. What a pass computes does not depend on the number
 * of workers, so the number follows the measured times: a pass is tried with half or twice as many now and then, and
 * the faster wins.
 *
 * Nothing is tried with fewer workers while no barrier has outlasted its spin, so a quiet machine pays nothing. */
#ifndef ST_ENGINE_PACE_H
#define ST_ENGINE_PACE_H

#include <stdbool.h>
#include <stdint.h>

enum { ST_PACE_LEVELS = 11, ST_PACE_LAST = 8 };

struct st_pace {
    int workers[ST_PACE_LEVELS]; /* all, half, a quarter, ... 1 */
    int levels, at, trying;      /* trying: the level of the pass now running; at, unless something is tried */
    double last[ST_PACE_LAST];   /* times of the last passes at this level, in a ring */
    unsigned passes;             /* at this level; a try comes when the ring is full */
    double since, wait;          /* time spent since the last try, and how much has to be before the next */
    double patience;             /* that, in times of the last try */
    bool up;                     /* direction of the next try */
};

struct st_pace st_pace(int threads);
/* For the next pass. */
int st_pace_workers(struct st_pace *p);
/* What that pass took, and how many waits at barriers outlasted their spin meanwhile. */
void st_pace_report(struct st_pace *p, double cost, uint64_t sleeps);

#endif
