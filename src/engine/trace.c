/* Owns a trace: a list of spans under a lock, and its file. */
#include "engine/trace.h"

#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct st_trace {
    pthread_mutex_t lock;
    struct st_trace_span *span;
    size_t count, room, lost;
};

/* A process of the file is a place, a thread a lane. */
struct lane {
    const char *place, *name;
    int number, pid;
};

double st_trace_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum strata_result st_trace_open(struct st_trace **out, struct strata_error *err)
{
    struct st_trace *t = calloc(1, sizeof *t);
    if (!t)
        return st_fail(err, STRATA_E_MEMORY, "trace: no memory");
    pthread_mutex_init(&t->lock, NULL);
    *out = t;
    return STRATA_OK;
}

void st_trace_close(struct st_trace *t)
{
    if (!t)
        return;
    pthread_mutex_destroy(&t->lock);
    free(t->span);
    free(t);
}

void st_trace_add(struct st_trace *t, const struct st_trace_span *span)
{
    if (!t)
        return;
    pthread_mutex_lock(&t->lock);
    if (t->count == t->room) {
        size_t room = t->room ? 2 * t->room : 4096;
        struct st_trace_span *more = realloc(t->span, room * sizeof *more);
        t->span = more ? more : t->span;
        t->room = more ? room : t->room;
    }
    if (t->count < t->room)
        t->span[t->count++] = *span;
    else
        t->lost++;
    pthread_mutex_unlock(&t->lock);
}

size_t st_trace_count(const struct st_trace *t)
{
    return t->count;
}

/* ---- the file ---- */

enum { LANES = 1024 };

/* The index of the span's lane, which may be a new one; LANES: there are too many. */
static int lane_of(const struct st_trace_span *s, struct lane lanes[LANES], int *count)
{
    int pid = 0, most = 0;
    for (int i = 0; i < *count; i++) {
        bool here = !strcmp(lanes[i].place, s->place);
        if (here && lanes[i].number == s->number && !strcmp(lanes[i].name, s->lane))
            return i;
        pid = here ? lanes[i].pid : pid;
        most = lanes[i].pid > most ? lanes[i].pid : most;
    }
    if (*count == LANES)
        return LANES;
    lanes[*count] = (struct lane){.place = s->place, .name = s->lane, .number = s->number, .pid = pid ? pid : most + 1};
    return (*count)++;
}

/* Takes the event over. */
static bool write_event(FILE *f, json_t *event, bool first)
{
    bool good = event && (first || fputs(",\n", f) >= 0) && !json_dumpf(event, f, JSON_COMPACT | JSON_REAL_PRECISION(15));
    json_decref(event);
    return good;
}

static bool write_lane(FILE *f, const struct lane *l, int tid)
{
    char name[80];
    snprintf(name, sizeof name, "%s", l->name);
    if (l->number >= 0)
        snprintf(name, sizeof name, "%s %d", l->name, l->number);
    return write_event(f, json_pack("{s:s, s:s, s:i, s:{s:s}}", "ph", "M", "name", "process_name", "pid", l->pid, "args", "name", l->place), false) &&
           write_event(f, json_pack("{s:s, s:s, s:i, s:i, s:{s:s}}", "ph", "M", "name", "thread_name", "pid", l->pid, "tid", tid, "args", "name", name), false);
}

static bool write_span(FILE *f, const struct st_trace_span *s, const struct lane *l, int tid, double begin, bool first)
{
    json_t *event = json_pack("{s:s, s:s, s:i, s:i, s:f, s:f}", "ph", "X", "name", s->name, "pid", l->pid, "tid", tid, "ts",
                              (s->from - begin) * 1e6, "dur", (s->to - s->from) * 1e6);
    if (event && s->layer >= 0)
        json_object_set_new(event, "args", json_pack("{s:i}", "layer", s->layer));
    return write_event(f, event, first);
}

static bool write_all(const struct st_trace *t, FILE *f, struct lane lanes[LANES])
{
    int count = 0;
    double begin = t->count ? t->span[0].from : 0;
    bool good = fputs("{\"displayTimeUnit\": \"ns\", \"traceEvents\": [\n", f) >= 0;
    for (size_t i = 0; i < t->count; i++)
        begin = t->span[i].from < begin ? t->span[i].from : begin;
    for (size_t i = 0; i < t->count && good; i++) {
        int lane = lane_of(&t->span[i], lanes, &count);
        good = lane < LANES && write_span(f, &t->span[i], &lanes[lane], lane, begin, i == 0);
    }
    for (int i = 0; i < count && good; i++)
        good = write_lane(f, &lanes[i], i);
    return good && fputs("\n]}\n", f) >= 0;
}

enum strata_result st_trace_write(const struct st_trace *t, const char *path, struct strata_error *err)
{
    if (t->lost)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for %zu of %zu spans", path, t->lost, t->lost + t->count);
    struct lane *lanes = malloc(LANES * sizeof *lanes);
    FILE *f = lanes ? fopen(path, "w") : NULL;
    bool good = f && write_all(t, f, lanes);
    int why = errno;
    if (f && fclose(f) && good) {
        good = false;
        why = errno;
    }
    free(lanes);
    return good ? STRATA_OK : st_fail(err, STRATA_E_IO, "%s: the trace cannot be written: %s", path, strerror(why));
}
