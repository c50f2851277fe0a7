/* strata profile: counts which experts the tokens of a text choose in every layer. With the file that it writes,
 * --expert-profile puts those that are chosen most into the memory of devices that cannot hold all. */
#include <stdio.h>

#include "cli/commands.h"
#include "cli/common.h"
#include "engine/engine.h"
#include "engine/expert_store.h"
#include "engine/session_file.h"

struct profile_args {
    struct st_engine_args engine;
    const char *file, *out;
    bool json;
};

/* Reads the text in pieces of the context, each from an empty session. */
static enum strata_result count(const struct st_host *h, const int32_t *ids, size_t n, struct st_expert_profile *p,
                                struct strata_error *err)
{
    struct strata_engine *e = h->engine;
    size_t piece = e->options.context;
    enum strata_result r = STRATA_OK;
    for (int k = 0; k < e->n_stages; k++)
        e->stages[k]->choices = p;
    for (size_t at = 0; at < n && !r; at += piece) {
        strata_session_reset(h->session);
        r = strata_session_eval(h->session, ids + at, n - at < piece ? n - at : piece, false, NULL, err);
    }
    for (int k = 0; k < e->n_stages; k++)
        e->stages[k]->choices = NULL;
    p->tokens = n;
    return r;
}

static int report(const struct profile_args *a, const struct st_expert_profile *p)
{
    static const double parts[] = {0.1, 0.2, 0.3, 0.5};
    double share[4];
    for (int i = 0; i < 4; i++)
        share[i] = st_expert_profile_share(p, parts[i]);
    if (a->json)
        return st_print_json(json_pack("{s:I, s:i, s:i, s:f, s:f, s:f, s:f}", "tokens", (json_int_t)p->tokens, "layers",
                                       (int)p->rows - 1, "experts", (int)p->experts, "share_10", share[0], "share_20",
                                       share[1], "share_30", share[2], "share_50", share[3]));
    printf("%llu tokens, %u layers of %u experts\n", (unsigned long long)p->tokens, p->rows - 1, p->experts);
    for (int i = 0; i < 4; i++)
        printf("%3.0f %% of the experts serve %5.1f %% of the choices\n", 100 * parts[i], 100 * share[i]);
    return ST_EXIT_OK;
}

static int profile(const struct profile_args *a)
{
    struct st_host h;
    struct strata_error err;
    struct st_expert_profile p = {0};
    char *text;
    size_t size, n = 0;
    int32_t *ids = NULL;
    int status = st_host_open("profile", &a->engine, false, &h);
    if (status)
        return status;
    const struct st_model_dims *d = &h.engine->dims;
    if (!d->experts)
        status = st_user_error("profile: the model has no experts");
    else
        status = st_read_input(a->file, &text, &size);
    if (!status) {
        enum strata_result r = strata_tokenize(h.model, text, size, false, &ids, &n, &err);
        if (!r)
            r = st_expert_profile_create(d->layers + 1, d->experts, &p, &err);
        if (!r)
            r = count(&h, ids, n, &p, &err);
        p.fingerprint = st_model_fingerprint(h.engine->model->gguf);
        if (!r)
            r = st_expert_profile_write(&p, a->out, &err);
        status = r ? st_report(&err) : report(a, &p);
        strata_free(ids);
        free(text);
    }
    st_expert_profile_free(&p);
    st_host_close(&h);
    return status;
}

int st_cmd_profile(int argc, char **argv)
{
    struct profile_args a = {0};
    struct st_opt options[] = {
        ST_ENGINE_OPTIONS(a.engine),
        ST_TEXT("file", 'f', &a.file, "FILE", "the text, - for standard input"),
        ST_TEXT("output", 'o', &a.out, "FILE", "where the profile goes"),
        ST_FLAG("json", 0, &a.json, "one JSON object"),
    };
    struct st_usage usage = {.command = "profile",
                             .form = "-m FILE -f TEXT -o PROFILE [options]",
                             .summary = "Counts which experts the tokens of a text choose, for --expert-profile.",
                             .options = options,
                             .count = ST_COUNT(options)};
    int status;
    if (!st_options_parse(&usage, argc, argv, &status))
        return status;
    if (!a.file || !a.out)
        return st_user_error("profile: which text (-f), and where does the profile go (-o)?");
    return profile(&a);
}
