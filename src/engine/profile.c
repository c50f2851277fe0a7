/* Events between launches, and the table of times that they give. */
#include "engine/profile.h"

#include <stdlib.h>
#include <string.h>

#include "base/result.h"

static const size_t START = SIZE_MAX; /* the line of an event that a pass begins with */

/* Room for one more event and line. */
static enum strata_result grow(struct st_profile *p, struct strata_error *err)
{
    if (p->used == p->room) {
        size_t room = p->room ? 2 * p->room : 1024;
        struct st_event **events = realloc(p->events, room * sizeof(struct st_event *));
        p->events = events ? events : p->events;
        size_t *line = events ? realloc(p->line, room * sizeof *line) : NULL;
        p->line = line ? line : p->line;
        int *layer = line ? realloc(p->layer, room * sizeof *layer) : NULL;
        p->layer = layer ? layer : p->layer;
        if (!layer)
            return st_fail(err, STRATA_E_MEMORY, "profile: no memory for %zu events", room);
        for (size_t i = p->room; i < room; i++)
            p->events[i] = NULL;
        p->room = room;
    }
    if (p->count == p->capacity) {
        size_t capacity = p->capacity ? 2 * p->capacity : 64;
        struct st_profile_line *lines = realloc(p->lines, capacity * sizeof *lines);
        if (!lines)
            return st_fail(err, STRATA_E_MEMORY, "profile: no memory for %zu lines", capacity);
        p->lines = lines;
        p->capacity = capacity;
    }
    return STRATA_OK;
}

static enum strata_result record(struct st_profile *p, size_t line, int layer, struct strata_error *err)
{
    const struct st_runtime *t = p->dev->table;
    enum strata_result r = grow(p, err);
    if (!r && !p->events[p->used])
        r = t->event_create(p->dev->rt, true, &p->events[p->used], err);
    if (!r)
        r = t->event_record(p->dev->compute, p->events[p->used], err);
    if (!r) {
        p->layer[p->used] = layer;
        p->line[p->used++] = line;
    }
    return r;
}

/* An event whose time on the host's clock is known: the device does nothing else, so it is when the host has waited for it,
 * give or take what noticing takes. */
static enum strata_result find_base(struct st_profile *p, struct strata_error *err)
{
    const struct st_runtime *t = p->dev->table;
    enum strata_result r = t->event_create(p->dev->rt, true, &p->base, err);
    if (!r)
        r = st_wait(p->dev, p->dev->compute, err);
    if (!r)
        r = t->event_record(p->dev->compute, p->base, err);
    if (!r)
        r = st_wait(p->dev, p->dev->compute, err);
    p->base_seconds = st_trace_now();
    return r;
}

enum strata_result st_profile_start(struct st_profile *p, struct st_device *dev, struct strata_error *err)
{
    if (p->dev && p->dev != dev)
        return st_fail(err, STRATA_E_ARGUMENT, "profile: %s was profiled before, now %s: one device only", p->dev->name, dev->name);
    p->dev = dev;
    enum strata_result r = p->trace && !p->base ? find_base(p, err) : STRATA_OK;
    return r ? r : record(p, START, -1, err);
}

enum strata_result st_profile_mark(struct st_profile *p, const char *op, const char *kernel, int layer,
                                   struct strata_error *err)
{
    enum strata_result r = grow(p, err);
    if (r)
        return r;
    size_t i = 0;
    while (i < p->count && (p->lines[i].op != op || p->lines[i].kernel != kernel))
        i++;
    if (i == p->count)
        p->lines[p->count++] = (struct st_profile_line){.op = op, .kernel = kernel};
    return record(p, i, layer, err);
}

enum strata_result st_profile_copy_begin(struct st_profile *p, int layer, struct strata_error *err)
{
    if (!p || !p->trace)
        return STRATA_OK;
    if (p->copies == p->copy_room) {
        size_t room = p->copy_room ? 2 * p->copy_room : 256;
        struct st_profile_copy *copy = realloc(p->copy, room * sizeof *copy);
        if (!copy)
            return st_fail(err, STRATA_E_MEMORY, "profile: no memory for %zu copies", room);
        memset(copy + p->copy_room, 0, (room - p->copy_room) * sizeof *copy);
        p->copy = copy;
        p->copy_room = room;
    }
    struct st_profile_copy *c = &p->copy[p->copies];
    c->layer = layer;
    enum strata_result r = c->from ? STRATA_OK : p->dev->table->event_create(p->dev->rt, true, &c->from, err);
    if (!r && !c->to)
        r = p->dev->table->event_create(p->dev->rt, true, &c->to, err);
    return r ? r : p->dev->table->event_record(p->dev->copy, c->from, err);
}

enum strata_result st_profile_copy_end(struct st_profile *p, struct strata_error *err)
{
    if (!p || !p->trace)
        return STRATA_OK;
    enum strata_result r = p->dev->table->event_record(p->dev->copy, p->copy[p->copies].to, err);
    p->copies += !r;
    return r;
}

/* Tells the trace of the time between two events. */
static enum strata_result tell(struct st_profile *p, const char *lane, const char *name, int layer, struct st_event *from,
                               struct st_event *to, struct strata_error *err)
{
    double begin = 0, end = 0;
    enum strata_result r = p->dev->table->event_elapsed(p->base, from, &begin, err);
    if (!r)
        r = p->dev->table->event_elapsed(p->base, to, &end, err);
    if (!r)
        st_trace_add(p->trace, &(struct st_trace_span){.place = p->dev->name, .lane = lane, .number = -1, .name = name, .layer = layer,
                                                       .from = p->base_seconds + begin * 1e-6, .to = p->base_seconds + end * 1e-6});
    return r;
}

static enum strata_result collect_copies(struct st_profile *p, struct strata_error *err)
{
    enum strata_result r = p->copies ? st_wait(p->dev, p->dev->copy, err) : STRATA_OK;
    for (size_t i = 0; i < p->copies && !r; i++)
        r = tell(p, "copies", "experts", p->copy[i].layer, p->copy[i].from, p->copy[i].to, err);
    p->copies = 0;
    return r;
}

enum strata_result st_profile_collect(struct st_profile *p, struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    for (size_t i = 1; i < p->used && !r; i++) {
        double microseconds = 0;
        if (p->line[i] == START)
            continue;
        r = p->dev->table->event_elapsed(p->events[i - 1], p->events[i], &microseconds, err);
        p->lines[p->line[i]].microseconds += microseconds;
        p->lines[p->line[i]].launches++;
        if (!r && p->trace)
            r = tell(p, "launches", p->lines[p->line[i]].kernel, p->layer[i], p->events[i - 1], p->events[i], err);
    }
    p->used = 0;
    return r ? r : collect_copies(p, err);
}

static int more_time(const void *a, const void *b)
{
    double x = ((const struct st_profile_line *)a)->microseconds, y = ((const struct st_profile_line *)b)->microseconds;
    return x < y ? 1 : x > y ? -1 : 0;
}

void st_profile_sort(struct st_profile *p)
{
    if (p->count)
        qsort(p->lines, p->count, sizeof *p->lines, more_time);
}

void st_profile_free(struct st_profile *p)
{
    for (size_t i = 0; i < p->room; i++)
        if (p->events[i])
            p->dev->table->event_free(p->events[i]);
    for (size_t i = 0; i < p->copy_room; i++)
        for (int k = 0; k < 2; k++)
            if (k ? p->copy[i].to : p->copy[i].from)
                p->dev->table->event_free(k ? p->copy[i].to : p->copy[i].from);
    if (p->base)
        p->dev->table->event_free(p->base);
    free(p->copy);
    free(p->events);
    free(p->line);
    free(p->layer);
    free(p->lines);
    *p = (struct st_profile){0};
}
