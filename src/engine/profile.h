/* Where a stage's time goes: an event after every launch, times summed up by operation and kernel. A profiled stage runs
 * without graphs; an event costs about a microsecond on the device, so small kernels look that much larger. */
#ifndef ST_ENGINE_PROFILE_H
#define ST_ENGINE_PROFILE_H

#include "engine/trace.h"
#include "runtime/device.h"

struct st_profile_line {
    const char *op, *kernel; /* names that live as long as the program */
    uint64_t launches;
    double microseconds;
};

struct st_profile {
    struct st_profile_line *lines; /* owned; in the order of first use */
    size_t count, capacity;
    /* Events of the passes under way: one before the first launch of each, the others each after a launch. */
    struct st_event **events;
    size_t *line;
    int *layer; /* of a launch */
    size_t used, room;
    struct st_device *dev; /* that made the events */
    /* NULL, or where launches and copies are told one by one; then also the events before and after copies, and one whose
     * time is known. */
    struct st_trace *trace;
    struct st_profile_copy {
        struct st_event *from, *to;
        int layer;
    } * copy;
    size_t copies, copy_room;
    struct st_event *base;
    double base_seconds;
};

/* Marks the start of a pass on the device's compute queue. */
enum strata_result st_profile_start(struct st_profile *p, struct st_device *dev, struct strata_error *err);
/* Marks the end of a launch. */
enum strata_result st_profile_mark(struct st_profile *p, const char *op, const char *kernel, int layer,
                                   struct strata_error *err);
/* Before and behind copies on the device's copy queue; does nothing without a trace. After a start. */
enum strata_result st_profile_copy_begin(struct st_profile *p, int layer, struct strata_error *err);
enum strata_result st_profile_copy_end(struct st_profile *p, struct strata_error *err);
/* Adds the times of all passes marked since the last call; their work is done. */
enum strata_result st_profile_collect(struct st_profile *p, struct strata_error *err);
/* Sorts the lines, most time first. */
void st_profile_sort(struct st_profile *p);
void st_profile_free(struct st_profile *p);

#endif
