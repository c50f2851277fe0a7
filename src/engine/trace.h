/* What ran when: spans of launches, copies, and work of the host, from all devices of an engine on one clock, as a file that
 * trace viewers read (Chrome's trace event format, https://ui.perfetto.dev opens it). Whoever has a trace adds to it; the
 * engine itself has none unless it is given one. */
#ifndef ST_ENGINE_TRACE_H
#define ST_ENGINE_TRACE_H

#include "base/result.h"

struct st_trace;

/* One thing that ran in a lane, the place of which is a device. Texts live until the trace is closed. */
struct st_trace_span {
    const char *place, *lane, *name;
    int number; /* of the lane, of several with the same name, from 0 on; -1: there is one */
    int layer;  /* -1: of none */
    double from, to; /* seconds as st_trace_now has them */
};

enum strata_result st_trace_open(struct st_trace **out, struct strata_error *err);
void st_trace_close(struct st_trace *t);
/* CLOCK_MONOTONIC in seconds. */
double st_trace_now(void);
/* From any thread; t may be NULL. A span for which there is no memory is left out, which st_trace_write reports. */
void st_trace_add(struct st_trace *t, const struct st_trace_span *span);
size_t st_trace_count(const struct st_trace *t);
/* Replaces the file; STRATA_E_IO names it. Times begin with the first span. Nobody adds meanwhile. */
enum strata_result st_trace_write(const struct st_trace *t, const char *path, struct strata_error *err);

#endif
