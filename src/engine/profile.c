/* Events between launches, and the table of times that they give. */
#include "engine/profile.h"

#include <stdlib.h>

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
        if (!line)
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

static enum strata_result record(struct st_profile *p, size_t line, struct strata_error *err)
{
    const struct st_runtime *t = p->dev->table;
    enum strata_result r = grow(p, err);
    if (!r && !p->events[p->used])
        r = t->event_create(p->dev->rt, true, &p->events[p->used], err);
    if (!r)
        r = t->event_record(p->dev->compute, p->events[p->used], err);
    if (!r)
        p->line[p->used++] = line;
    return r;
}

enum strata_result st_profile_start(struct st_profile *p, struct st_device *dev, struct strata_error *err)
{
    if (p->dev && p->dev != dev)
        return st_fail(err, STRATA_E_ARGUMENT, "profile: %s was profiled before, now %s: one device only", p->dev->name, dev->name);
    p->dev = dev;
    return record(p, START, err);
}

enum strata_result st_profile_mark(struct st_profile *p, const char *op, const char *kernel, struct strata_error *err)
{
    enum strata_result r = grow(p, err);
    if (r)
        return r;
    size_t i = 0;
    while (i < p->count && (p->lines[i].op != op || p->lines[i].kernel != kernel))
        i++;
    if (i == p->count)
        p->lines[p->count++] = (struct st_profile_line){.op = op, .kernel = kernel};
    return record(p, i, err);
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
    }
    p->used = 0;
    return r;
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
    free(p->events);
    free(p->line);
    free(p->lines);
    *p = (struct st_profile){0};
}
