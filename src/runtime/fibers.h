/* Runs GPU kernels that are compiled for the host: the work-items of a group are fibers of the calling thread, which
 * switch at barriers and wherever lanes exchange values. One group runs at a time; groups run in order. */
#ifndef ST_RUNTIME_FIBERS_H
#define ST_RUNTIME_FIBERS_H

#include "runtime/runtime.h"

enum { ST_FIBERS_MAX = 512, ST_FIBERS_LANES = 64 };

enum st_item_state {
    ST_ITEM_RUNS,
    ST_ITEM_AT_BARRIER,
    ST_ITEM_AT_EXCHANGE,
    ST_ITEM_DONE,
};

/* The values that lanes of a wave show each other; two sets, so that one switch separates writing from reading. */
struct st_wave {
    uint32_t value[2][ST_FIBERS_LANES];
};

/* A work-item as kernels see it. */
struct st_item {
    uint32_t index, group, group_y, lane;
    uint32_t parity;     /* which set of the wave is written next */
    uint32_t local_used; /* bytes of local memory that this work-item's declarations have passed */
    struct st_wave *wave;
    uint8_t *local;
    struct st_fibers *fibers;
    enum st_item_state state;
};

/* The work-item that runs on this thread. */
extern _Thread_local struct st_item *st_item_now;

/* A kernel compiled for the host: unpacks its arguments and calls it. */
struct st_host_kernel {
    const char *name;
    void (*call)(const union st_arg *args);
};

/* Called by kernels: give the thread to the other work-items until all of the group (barrier) or of the wave (exchange)
 * have come here. */
void st_fiber_wait(struct st_item *item, enum st_item_state state);
/* Called by kernels: the next array of local memory, the same for all work-items of the group. */
void *st_fiber_local(struct st_item *item, uint32_t size);

/* lanes: width of a wave, 32 or 64. */
enum strata_result st_fibers_create(uint32_t lanes, struct st_fibers **out, struct strata_error *err);
void st_fibers_free(struct st_fibers *f);
/* Runs grid groups of `items` work-items. Lanes or work-items that do not meet where they must, and too much local
 * memory, are STRATA_E_DEVICE. Any thread may call, one at a time for one f. */
enum strata_result st_fibers_run(struct st_fibers *f, const struct st_host_kernel *kernel, uint32_t items,
                                 const uint32_t grid[3], const union st_arg *args, struct strata_error *err);

#endif
