/* The backend that computes: see backend_strata.h. */
#include "serve/backend_strata.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/park.h"
#include "serve/slot_files.h"

struct real {
    struct st_backend base;
    const char *path;
    struct strata_engine_options options;
    void (*placed)(const struct strata_engine *engine);
    struct strata_model *model;
    struct strata_engine *engine;   /* NULL while none is loaded */
    struct strata_session *session;
    struct st_backend_run *run; /* the answer that is computed, or NULL */
    struct strata_sampling sampling;
    char processor[100];
    pthread_mutex_t lock;
    /* Under lock, but the engine thread alone changes them: */
    struct st_park_info parked;            /* as it was after the last request */
    struct strata_engine_options in_force; /* of the last engine */
    char devices[256];
    uint64_t engine_bytes;
    json_t *stages;
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

/* Which layers lie where, and what they take of the memory that they may. A new reference. */
static json_t *stages_json(const struct strata_engine *e)
{
    json_t *list = json_array();
    for (int k = 0; k < e->plan.n_stages; k++) {
        const struct st_plan_stage *s = &e->plan.stage[k];
        json_array_append_new(list, json_pack("{s:s, s:s, s:i, s:i, s:I, s:I, s:I, s:I, s:b}", "device", s->name, "arch", s->arch,
                                              "first_layer", (int)s->first, "layers", (int)(s->end - s->first), "bytes",
                                              (json_int_t)s->size.total, "limit_bytes", (json_int_t)s->limit, "reserve_bytes",
                                              (json_int_t)s->reserve, "expert_slots_bytes", (json_int_t)s->size.slots,
                                              "experts_outside", s->cached));
    }
    return list;
}

/* What info and status tell in other threads. */
static void note_engine(struct real *r)
{
    struct st_park_info parked;
    st_park_info(r->engine, &parked);
    json_t *stages = stages_json(r->engine);
    pthread_mutex_lock(&r->lock);
    json_decref(r->stages);
    r->stages = stages;
    r->parked = parked;
    strata_engine_options(r->engine, &r->in_force);
    st_engine_devices(r->engine, r->devices, sizeof r->devices);
    r->engine_bytes = st_engine_bytes(r->engine);
    pthread_mutex_unlock(&r->lock);
}

static enum strata_result real_open(struct st_backend *b, struct strata_error *err)
{
    struct real *r = (struct real *)b;
    enum strata_result result = strata_model_open(r->path, &r->model, err);
    return result ? result : st_model_sampling(r->model, &r->sampling, err);
}

static enum strata_result real_load(struct st_backend *b, st_backend_progress *progress, void *user,
                                    struct strata_error *err)
{
    struct real *r = (struct real *)b;
    progress(user, "placing the model", 0.3);
    enum strata_result result = strata_engine_create(r->model, &r->options, &r->engine, err);
    if (result)
        return result;
    st_slot_files_open(r->engine);
    if (r->placed)
        r->placed(r->engine);
    progress(user, "making the session", 0.9);
    result = strata_session_create(r->engine, &r->session, err);
    if (result) {
        strata_engine_free(r->engine);
        r->engine = NULL;
        return result;
    }
    note_engine(r);
    return STRATA_OK;
}

static enum strata_result real_unload(struct st_backend *b, json_t **report, struct strata_error *err)
{
    struct real *r = (struct real *)b;
    struct st_freed freed[ST_FREED_MAX];
    if (!r->engine)
        return STRATA_OK;
    enum strata_result result = strata_engine_keep(r->engine, err);
    note_engine(r);
    strata_session_free(r->session);
    r->session = NULL;
    int n = st_engine_close(r->engine, freed);
    strata_engine_free(r->engine);
    r->engine = NULL;
    json_t *list = json_array();
    for (int i = 0; i < n; i++) {
        json_array_append_new(list, json_pack("{s:s, s:I, s:I}", "name", freed[i].name, "bytes", (json_int_t)freed[i].bytes,
                                                "driver_bytes", (json_int_t)freed[i].driver_bytes));
        if (freed[i].left && !result)
            result = st_fail(err, STRATA_E_INTERNAL, "%s: %llu bytes are still allocated after everything was freed",
                             freed[i].name, (unsigned long long)freed[i].left);
    }
    *report = json_pack("{s:{s:I, s:I}, s:o}", "conversations", "files", (json_int_t)r->parked.in_files, "bytes",
                        (json_int_t)r->parked.file_bytes, "freed", list);
    return result;
}

static enum strata_result real_save(struct st_backend *b, uint32_t slot, struct strata_error *err)
{
    struct real *r = (struct real *)b;
    (void)slot;
    if (!r->options.session_dir || strata_session_tokens(r->session, NULL) < ST_PARK_LEAST)
        return STRATA_OK;
    enum strata_result result = st_park_put(r->session, err);
    note_engine(r);
    return result;
}

static void real_free(struct st_backend *b)
{
    struct real *r = (struct real *)b;
    strata_session_free(r->session);
    strata_engine_free(r->engine);
    strata_model_free(r->model);
    json_decref(r->stages);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

/* Of an engine that is not there yet. */
static uint32_t context_to_come(const struct real *r, uint32_t trained)
{
    enum { USUAL = 8192 };
    return r->options.context ? r->options.context : trained && trained < USUAL ? trained : USUAL;
}

static void real_info(const struct st_backend *b, struct st_backend_info *out)
{
    struct real *r = (struct real *)b;
    struct strata_model_info info;
    strata_model_info(r->model, &info);
    pthread_mutex_lock(&r->lock);
    uint32_t context = r->in_force.context ? r->in_force.context : context_to_come(r, info.context);
    pthread_mutex_unlock(&r->lock);
    *out = (struct st_backend_info){.name = info.name,
                                    .path = info.path,
                                    .architecture = info.architecture,
                                    .chat_template = info.chat_template,
                                    .parameters = info.parameters,
                                    .bytes = info.bytes,
                                    .context = context,
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
    struct real *r = (struct real *)b;
    struct strata_model_info info;
    char description[160], devices[sizeof r->devices];
    strata_model_info(r->model, &info);
    json_int_t total = (json_int_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    pthread_mutex_lock(&r->lock);
    struct st_park_info parked = r->parked;
    uint64_t bytes = r->engine_bytes;
    json_t *stages = r->stages ? json_deep_copy(r->stages) : json_array();
    snprintf(description, sizeof description, "%s%s%d threads", r->processor, *r->processor ? ", " : "",
             r->in_force.threads);
    memcpy(devices, r->devices, sizeof devices);
    pthread_mutex_unlock(&r->lock);
    json_t *kept = json_pack("{s:I, s:I, s:I, s:I, s:I, s:s}", "in_memory", (json_int_t)parked.in_memory, "in_files",
                             (json_int_t)parked.in_files, "memory_bytes", (json_int_t)parked.memory_bytes, "file_bytes",
                             (json_int_t)parked.file_bytes, "dropped", (json_int_t)parked.dropped, "last_failure",
                             parked.last_failure);
    return json_pack("{s:[{s:s, s:s, s:I, s:[{s:s, s:I}, {s:s, s:I}]}], s:o, s:o}", "devices", "name", devices, "description",
                     description, "total_bytes", total, "memory", "kind", "weights", "bytes", (json_int_t)info.bytes, "kind",
                     "state and buffers", "bytes", (json_int_t)bytes, "parked", kept, "stages", stages);
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
    note_engine(r);
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
    enum strata_result result = STRATA_OK;
    out->tokens = strata_session_tokens(r->session, NULL);
    switch (action) {
    case ST_SLOT_SAVE: return st_slot_file_save(r->session, file, &out->bytes, err);
    case ST_SLOT_RESTORE:
        result = st_slot_file_restore(r->session, file, &out->bytes, &out->missing, err);
        out->tokens = strata_session_tokens(r->session, NULL);
        return result;
    case ST_SLOT_ERASE: strata_session_reset(r->session); break;
    }
    return result;
}

enum strata_result st_backend_strata(const char *path, const struct strata_engine_options *options,
                                     void (*placed)(const struct strata_engine *engine), struct st_backend **out,
                                     struct strata_error *err)
{
    static const struct st_backend_ops ops = {
        .open = real_open,     .load = real_load,           .unload = real_unload,       .free = real_free,
        .info = real_info,     .tokenize = real_tokenize,   .detokenize = real_detokenize, .chat_prompt = real_prompt,
        .status = real_status, .start = real_start,         .step = real_step,           .cancel = real_cancel,
        .wake = real_wake,     .slot = real_slot,           .save = real_save};
    struct real *r = calloc(1, sizeof *r);
    if (!r)
        return st_fail(err, STRATA_E_MEMORY, "server: out of memory");
    r->base.ops = &ops;
    r->path = path;
    r->options = *options;
    r->placed = placed;
    processor_name(r->processor, sizeof r->processor);
    pthread_mutex_init(&r->lock, NULL);
    *out = &r->base;
    return STRATA_OK;
}
