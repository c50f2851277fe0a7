/* Owns bench --trace. Launches are told one by one by events between them, so a traced stage runs without graphs. */
#include "cli/bench_trace.h"

#include <stdio.h>

#include "engine/engine.h"
#include "engine/profile.h"

static enum strata_result evaluate(const struct st_host *h, const int32_t *ids, size_t prompt, size_t windows, float *logits,
                                   struct strata_error *err)
{
    enum strata_result r = prompt ? strata_session_eval(h->session, ids, prompt, false, logits, err) : STRATA_OK;
    for (size_t i = 0; i < windows && !r; i++)
        r = strata_session_eval(h->session, ids + prompt + i, 1, false, logits, err);
    return r;
}

int st_bench_trace(const struct st_host *h, const int32_t *ids, size_t depth, size_t prompt, size_t windows, float *logits,
                   const char *path)
{
    struct st_trace *trace = NULL;
    struct st_profile profile[ST_PLAN_STAGES] = {0};
    struct strata_error err;
    strata_session_reset(h->session);
    enum strata_result r = st_trace_open(&trace, &err);
    if (!r && depth)
        r = strata_session_eval(h->session, ids, depth, false, NULL, &err);
    for (int k = 0; k < h->engine->n_stages && !r; k++) {
        struct st_stage *stage = h->engine->stages[k];
        profile[k].trace = stage->trace = trace;
        stage->profile = stage->host ? NULL : &profile[k];
    }
    if (!r)
        r = evaluate(h, ids + depth, prompt, windows, logits, &err);
    for (int k = 0; k < h->engine->n_stages; k++) {
        h->engine->stages[k]->profile = NULL;
        h->engine->stages[k]->trace = NULL;
        st_profile_free(&profile[k]);
    }
    if (!r)
        r = st_trace_write(trace, path, &err);
    if (!r)
        fprintf(stderr, "%s: %zu spans of %zu prompt tokens and %zu windows\n", path, st_trace_count(trace), prompt, windows);
    st_trace_close(trace);
    return r ? st_report(&err) : ST_EXIT_OK;
}
