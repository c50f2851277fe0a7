/* Sessions: slots, and the tokens that each holds. */
#include <stdlib.h>

#include "engine/checkpoint.h"
#include "engine/speculate.h"
#include "engine/state.h"

enum strata_result strata_session_create(struct strata_engine *e, struct strata_session **out, struct strata_error *err)
{
    uint32_t slot = 0;
    while (slot < e->options.sessions && e->slot[slot])
        slot++;
    if (slot == e->options.sessions)
        return st_fail(err, STRATA_E_LIMIT, "all %u sessions of the engine are in use", e->options.sessions);
    struct strata_session *s = calloc(1, sizeof *s);
    int32_t *ids = malloc(e->options.context * sizeof *ids);
    if (!s || !ids) {
        free(s);
        free(ids);
        return st_fail(err, STRATA_E_MEMORY, "no memory for a session of %u tokens", e->options.context);
    }
    enum strata_result r = st_spec_create(e, &s->spec, err);
    if (r) {
        free(s);
        free(ids);
        return r;
    }
    s->engine = e;
    s->slot = slot;
    s->ids = ids;
    e->slot[slot] = s;
    strata_session_reset(s);
    *out = s;
    return STRATA_OK;
}

void strata_session_free(struct strata_session *s)
{
    if (!s)
        return;
    if (s->engine->logits_of == s)
        s->engine->logits_of = NULL;
    s->engine->slot[s->slot] = NULL;
    st_checkpoints_drop(s, 0);
    st_spec_free(s->spec);
    free(s->ids);
    free(s);
}

size_t strata_session_tokens(const struct strata_session *s, const int32_t **ids)
{
    if (ids)
        *ids = s->ids;
    return s->count;
}

void st_session_forget(struct strata_session *s)
{
    s->unclear = st_state_clear(s, NULL) != STRATA_OK;
    s->count = 0;
    s->next_axis = 0;
    st_checkpoints_drop(s, 0);
    if (s->engine->logits_of == s)
        s->engine->logits_of = NULL;
}

enum strata_result st_session_ready(struct strata_session *s, struct strata_error *err)
{
    enum strata_result r = st_engine_ready(s->engine, err);
    if (!r && s->unclear)
        r = st_state_clear(s, err);
    if (r)
        return r;
    s->unclear = false;
    return STRATA_OK;
}

void strata_session_reset(struct strata_session *s)
{
    st_session_forget(s);
    atomic_store(&s->cancelled, false);
}

void strata_session_cancel(struct strata_session *s)
{
    atomic_store(&s->cancelled, true);
}

enum strata_result strata_session_eval(struct strata_session *s, const int32_t *ids, size_t count, bool all_logits,
                                       float *logits, struct strata_error *err)
{
    struct st_input in = {.ids = ids, .count = count};
    struct st_output out = {.logits = logits, .all_logits = all_logits};
    return st_session_eval(s, &in, &out, err);
}
