/* Answers without and with drafts: see bench_drafts.h. */
#include "cli/bench_drafts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/speculate.h"

enum { WAYS = 3, SEED = 7 };
static const float temperature = 0.8f;

struct answers {
    const struct st_host *h;
    int32_t *prompt, *want, *got;
    size_t prompt_count, n, got_count;
};

static bool collect(void *user, const struct strata_event *e)
{
    struct answers *a = user;
    if (e->kind == STRATA_EVENT_TEXT && e->token >= 0)
        a->got[a->got_count++] = e->token;
    return true;
}

/* One answer, added to a line. */
static enum strata_result answer(struct answers *a, bool sampled, struct st_draft_result *line, double *seconds,
                                 struct strata_error *err)
{
    struct strata_request q = {.ids = a->prompt,
                               .count = a->prompt_count,
                               .max_tokens = a->n,
                               .ignore_eos = true,
                               .event = collect,
                               .user = a};
    struct strata_stats stats;
    strata_sampling_default(&q.sampling);
    q.sampling.temperature = sampled ? temperature : 0;
    q.sampling.seed = SEED;
    a->got_count = 0;
    strata_session_reset(a->h->session);
    enum strata_result r = strata_generate(a->h->session, &q, &stats, err);
    if (r)
        return r;
    line->generated += stats.generated_tokens;
    line->passes += stats.passes;
    line->drafted += stats.drafted_tokens;
    line->accepted += stats.accepted_tokens;
    *seconds += stats.generate_seconds;
    return STRATA_OK;
}

/* The three ways of one kind of text in turns, so that a machine that gets slower meanwhile slows all of them. */
static enum strata_result measure(struct answers *a, bool sampled, size_t repetitions, size_t ways,
                                  struct st_draft_result *out, struct strata_error *err)
{
    struct strata_session *s = a->h->session;
    struct st_spec *spec = s->spec;
    uint32_t most = a->h->engine->options.drafts;
    double seconds[WAYS] = {0};
    enum strata_result r = STRATA_OK;
    for (size_t i = 0; i <= repetitions && !r; i++)
        for (size_t way = 0; way < ways && !r; way++) {
            struct st_draft_result *line = &out[way];
            if (i == 1) { /* the first was to warm up */
                line->generated = line->passes = line->drafted = line->accepted = 0;
                seconds[way] = 0;
            }
            line->text = sampled ? "sampled" : "greedy";
            snprintf(line->drafts, sizeof line->drafts,
                     way == 0   ? "none"
                     : way == 1 ? "as many as pay"
                                : "always %u",
                     most);
            s->spec = way ? spec : NULL;
            st_spec_always(spec, ST_GUESS_LAYER, way == 2 ? most : 0);
            r = answer(a, sampled, line, &seconds[way], err);
            s->spec = spec;
            if (!r && i == 0 && way == 0)
                memcpy(a->want, a->got, a->n * sizeof *a->want);
            if (!r && (a->got_count != a->n || memcmp(a->want, a->got, a->n * sizeof *a->want) != 0))
                r = st_fail(err, STRATA_E_INTERNAL, "bench: drafts changed the %s text", line->text);
        }
    st_spec_always(spec, ST_GUESS_LAYER, 0);
    for (size_t way = 0; way < ways; way++) {
        out[way].rate = seconds[way] > 0 ? (double)out[way].generated / seconds[way] : 0;
        out[way].speed = out[0].rate > 0 ? out[way].rate / out[0].rate : 0;
    }
    return r;
}

static enum strata_result read_prompt(struct answers *a, const char *text, struct strata_error *err)
{
    const struct strata_model *m = a->h->model;
    if (!m->chat)
        return strata_tokenize(m, text, strlen(text), false, &a->prompt, &a->prompt_count, err);
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", text);
    char *json = messages ? json_dumps(messages, 0) : NULL;
    json_decref(messages);
    enum strata_result r = json ? strata_chat_prompt(m, json, NULL, &a->prompt, &a->prompt_count, NULL, err)
                                : st_fail(err, STRATA_E_MEMORY, "bench: no memory for the prompt");
    free(json);
    return r;
}

int st_bench_drafts(const struct st_host *h, const char *text, size_t n, size_t repetitions,
                    struct st_draft_result out[ST_DRAFT_RESULTS], size_t *count)
{
    struct strata_error err;
    struct answers a = {.h = h, .n = n};
    size_t ways = h->engine->dims.draft ? WAYS : WAYS - 1;
    memset(out, 0, ST_DRAFT_RESULTS * sizeof *out);
    enum strata_result r = read_prompt(&a, text, &err);
    if (!r && a.prompt_count + n > h->engine->options.context)
        r = st_fail(&err, STRATA_E_LIMIT, "bench: --draft-text and %zu tokens need a context of %zu tokens", n,
                    a.prompt_count + n);
    a.want = malloc(n * sizeof *a.want);
    a.got = malloc(n * sizeof *a.got);
    if (!r && (!a.want || !a.got))
        r = st_fail(&err, STRATA_E_MEMORY, "bench: no memory");
    for (int sampled = 0; sampled < 2 && !r; sampled++)
        r = measure(&a, sampled, repetitions, ways, out + (size_t)sampled * ways, &err);
    *count = 2 * ways;
    strata_free(a.prompt);
    free(a.want);
    free(a.got);
    return r ? st_report(&err) : ST_EXIT_OK;
}
