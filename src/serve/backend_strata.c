/* The backend that computes: see backend_strata.h. */
#include "serve/backend_strata.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine.h"

struct real {
    struct st_backend base;
    const char *path;
    struct strata_engine_options options;
    void (*placed)(const struct strata_engine *engine);
    struct strata_model *model;
    struct strata_engine *engine;
    struct strata_session *session;
    struct strata_sampling sampling;
    char processor[100];
};

/* The processor's name, or "" where the system does not tell. */
static void processor_name(char *out, size_t size)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");
    *out = 0;
    while (f && fgets(line, sizeof line, f)) {
        char *value = strncmp(line, "model name", 10) == 0 ? strchr(line, ':') : NULL;
        if (!value)
            continue;
        value += strspn(value, ": \t");
        st_printable(out, size, value, strcspn(value, "\n"));
        break;
    }
    if (f)
        fclose(f);
}

static enum strata_result real_load(struct st_backend *b, st_backend_progress *progress, void *user,
                                    struct strata_error *err)
{
    struct real *r = (struct real *)b;
    progress(user, "opening the model", 0);
    enum strata_result result = strata_model_open(r->path, &r->model, err);
    if (!result)
        result = st_model_sampling(r->model, &r->sampling, err);
    progress(user, "placing the model", 0.3);
    if (!result)
        result = strata_engine_create(r->model, &r->options, &r->engine, err);
    if (!result && r->placed)
        r->placed(r->engine);
    progress(user, "making the session", 0.9);
    if (!result)
        result = strata_session_create(r->engine, &r->session, err);
    processor_name(r->processor, sizeof r->processor);
    return result;
}

static void real_free(struct st_backend *b)
{
    struct real *r = (struct real *)b;
    strata_session_free(r->session);
    strata_engine_free(r->engine);
    strata_model_free(r->model);
    free(r);
}

static void real_info(const struct st_backend *b, struct st_backend_info *out)
{
    const struct real *r = (const struct real *)b;
    struct strata_model_info info;
    struct strata_engine_options options;
    strata_model_info(r->model, &info);
    strata_engine_options(r->engine, &options);
    *out = (struct st_backend_info){.name = info.name,
                                    .path = info.path,
                                    .architecture = info.architecture,
                                    .chat_template = info.chat_template,
                                    .parameters = info.parameters,
                                    .bytes = info.bytes,
                                    .context = options.context,
                                    .trained_context = info.context,
                                    .vocabulary = info.vocabulary,
                                    .sampling = r->sampling};
}

static enum strata_result real_tokenize(const struct st_backend *b, const char *text, size_t size, bool special,
                                        int32_t **ids, size_t *count, struct strata_error *err)
{
    return strata_tokenize(((const struct real *)b)->model, text, size, special, ids, count, err);
}

static enum strata_result real_detokenize(const struct st_backend *b, const int32_t *ids, size_t count, bool special,
                                          char **text, size_t *size, struct strata_error *err)
{
    return strata_detokenize(((const struct real *)b)->model, ids, count, special, text, size, err);
}

static enum strata_result real_prompt(const struct st_backend *b, const char *messages, const char *options,
                                      int32_t **ids, size_t *count, char **text, struct strata_error *err)
{
    return strata_chat_prompt(((const struct real *)b)->model, messages, options, ids, count, text, err);
}

static json_t *real_status(const struct st_backend *b)
{
    const struct real *r = (const struct real *)b;
    struct strata_model_info info;
    struct strata_engine_options options;
    strata_model_info(r->model, &info);
    strata_engine_options(r->engine, &options);
    char description[160];
    snprintf(description, sizeof description, "%s%s%d threads", r->processor, *r->processor ? ", " : "",
             options.threads);
    json_int_t total = (json_int_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    return json_pack("{s:[{s:s, s:s, s:I, s:[{s:s, s:I}, {s:s, s:I}]}]}", "devices", "name", options.devices,
                     "description", description, "total_bytes", total, "memory", "kind", "weights", "bytes",
                     (json_int_t)info.bytes, "kind", "state and buffers", "bytes",
                     (json_int_t)st_engine_bytes(r->engine));
}

static enum strata_result real_generate(struct st_backend *b, const struct strata_request *request,
                                        struct strata_stats *stats, struct strata_error *err)
{
    struct real *r = (struct real *)b;
    const int32_t *held;
    size_t count = strata_session_tokens(r->session, &held);
    bool kept = count < request->count && (count == 0 || memcmp(held, request->ids, count * sizeof *held) == 0);
    struct strata_event begin = {
        .kind = STRATA_EVENT_PROMPT, .prompt_done = kept ? count : 0, .prompt_total = request->count};
    if (!request->event(request->user, &begin)) {
        *stats = (struct strata_stats){0};
        return STRATA_E_CANCELLED;
    }
    return strata_generate(r->session, request, stats, err);
}

enum strata_result st_backend_strata(const char *path, const struct strata_engine_options *options,
                                     void (*placed)(const struct strata_engine *engine), struct st_backend **out,
                                     struct strata_error *err)
{
    static const struct st_backend_ops ops = {real_load,       real_free,   real_info,   real_tokenize,
                                              real_detokenize, real_prompt, real_status, real_generate};
    struct real *r = calloc(1, sizeof *r);
    if (!r)
        return st_fail(err, STRATA_E_MEMORY, "server: out of memory");
    r->base.ops = &ops;
    r->path = path;
    r->options = *options;
    r->placed = placed;
    *out = &r->base;
    return STRATA_OK;
}
