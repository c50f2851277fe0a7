/* The backend that computes: see backend_strata.h. */
#include "serve/backend_strata.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/park.h"

struct real {
    struct st_backend base;
    const char *path;
    struct strata_engine_options options;
    void (*placed)(const struct strata_engine *engine);
    struct strata_model *model;
    struct strata_engine *engine;
    struct strata_session *session;
    struct st_backend_run *run; /* the answer that is computed, or NULL */
    struct strata_sampling sampling;
    char processor[100];
    pthread_mutex_t lock;
    struct st_park_info parked; /* under lock: as it was after the last request */
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
    pthread_mutex_destroy(&r->lock);
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
                                    .parallel = 1,
                                    .keeps_slots = r->options.session_dir != NULL,
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
    char description[160], devices[256];
    snprintf(description, sizeof description, "%s%s%d threads", r->processor, *r->processor ? ", " : "",
             options.threads);
    json_int_t total = (json_int_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    pthread_mutex_lock((pthread_mutex_t *)&r->lock);
    struct st_park_info parked = r->parked;
    pthread_mutex_unlock((pthread_mutex_t *)&r->lock);
    json_t *kept = json_pack("{s:I, s:I, s:I, s:I, s:I, s:s}", "in_memory", (json_int_t)parked.in_memory, "in_files",
                             (json_int_t)parked.in_files, "memory_bytes", (json_int_t)parked.memory_bytes, "file_bytes",
                             (json_int_t)parked.file_bytes, "dropped", (json_int_t)parked.dropped, "last_failure",
                             parked.last_failure);
    return json_pack("{s:[{s:s, s:s, s:I, s:[{s:s, s:I}, {s:s, s:I}]}], s:o}", "devices", "name",
                     st_engine_devices(r->engine, devices, sizeof devices), "description", description, "total_bytes", total, "memory", "kind", "weights", "bytes",
                     (json_int_t)info.bytes, "kind", "state and buffers", "bytes",
                     (json_int_t)st_engine_bytes(r->engine), "parked", kept);
}

static void note_parked(struct real *r)
{
    struct st_park_info info;
    st_park_info(r->engine, &info);
    pthread_mutex_lock(&r->lock);
    r->parked = info;
    pthread_mutex_unlock(&r->lock);
}

static enum strata_result real_start(struct st_backend *b, struct st_backend_run *run, struct strata_error *err)
{
    (void)err;
    run->slot = 0;
    ((struct real *)b)->run = run;
    return STRATA_OK;
}

static void real_step(struct st_backend *b)
{
    struct real *r = (struct real *)b;
    struct st_backend_run *run = r->run;
    struct strata_error err = {0};
    enum strata_result result = strata_generate(r->session, run->request, &run->stats, &err);
    note_parked(r);
    r->run = NULL;
    run->done(run->user, result, &err);
}

/* The event callback says so too. */
static void real_cancel(struct st_backend *b, struct st_backend_run *run)
{
    (void)b;
    (void)run;
}

/* A step does not sleep. */
static void real_wake(struct st_backend *b)
{
    (void)b;
}

static enum strata_result real_slot(struct st_backend *b, uint32_t slot, enum st_slot_action action, const char *file,
                                    struct st_slot_result *out, struct strata_error *err)
{
    (void)slot;
    struct real *r = (struct real *)b;
    char path[PATH_MAX];
    struct stat st = {.st_size = 0};
    enum strata_result result = STRATA_OK;
    int n = snprintf(path, sizeof path, "%s/saved/%s", r->options.session_dir, file);
    if (n < 0 || (size_t)n >= sizeof path)
        return st_fail(err, STRATA_E_ARGUMENT, "%s: the path of a file in --session-dir is too long", file);
    out->tokens = strata_session_tokens(r->session, NULL);
    switch (action) {
    case ST_SLOT_SAVE:
        *strrchr(path, '/') = 0;
        if (mkdir(path, 0700) && errno != EEXIST)
            return st_fail(err, STRATA_E_IO, "%s: cannot make the folder: %s", path, strerror(errno));
        path[strlen(path)] = '/';
        result = strata_session_save(r->session, path, err);
        break;
    case ST_SLOT_RESTORE:
        out->missing = access(path, F_OK) != 0;
        result = strata_session_restore(r->session, path, err);
        out->tokens = strata_session_tokens(r->session, NULL);
        break;
    case ST_SLOT_ERASE: strata_session_reset(r->session); return STRATA_OK;
    }
    if (!result && !stat(path, &st))
        out->bytes = (uint64_t)st.st_size;
    return result;
}

static enum strata_result real_keep(struct st_backend *b, struct strata_error *err)
{
    return strata_engine_keep(((struct real *)b)->engine, err);
}

enum strata_result st_backend_strata(const char *path, const struct strata_engine_options *options,
                                     void (*placed)(const struct strata_engine *engine), struct st_backend **out,
                                     struct strata_error *err)
{
    static const struct st_backend_ops ops = {real_load,   real_free,  real_info, real_tokenize, real_detokenize,
                                              real_prompt, real_status, real_start, real_step,    real_cancel,
                                              real_wake,   real_slot,  real_keep};
    struct real *r = calloc(1, sizeof *r);
    if (!r)
        return st_fail(err, STRATA_E_MEMORY, "server: out of memory");
    r->base.ops = &ops;
    r->path = path;
    r->options = *options;
    r->placed = placed;
    pthread_mutex_init(&r->lock, NULL);
    *out = &r->base;
    return STRATA_OK;
}
