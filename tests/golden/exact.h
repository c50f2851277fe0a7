/* Reading tokens with everything that there is to compare. */
#ifndef ST_TESTS_GOLDEN_EXACT_H
#define ST_TESTS_GOLDEN_EXACT_H

#include "engine/engine.h"

/* Reads n tokens in chunks with an FP32 cache: residual [layers][n][wide] after each layer, logits [n][vocabulary]. */
static inline void read_tokens(const struct strata_model *m, bool fp32, uint32_t chunk, int threads, const int32_t *ids,
                               size_t n, float *residual, float *logits)
{
    struct strata_error err;
    struct strata_engine *e;
    struct strata_session *s;
    struct strata_engine_options o = {
        .threads = threads, .context = (uint32_t)n + 3, .prefill = chunk, .kv = STRATA_KV_F32, .fp32 = fp32};
    assert_ok(strata_engine_create(m, &o, &e, &err), &err);
    assert_ok(strata_session_create(e, &s, &err), &err);
    struct st_input in = {.ids = ids, .count = n};
    struct st_output out = {.residuals = residual, .logits = logits, .all_logits = true};
    assert_ok(st_session_eval(s, &in, &out, &err), &err);
    strata_session_free(s);
    strata_engine_free(e);
}

#endif
