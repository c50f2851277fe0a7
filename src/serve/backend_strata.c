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

enum { PARALLEL_USUAL = 4, PARALLEL_MAX = 256 };

/* A slot: a session, and the answer that is under way in it. */
struct place {
    struct real *backend;
    struct strata_session *session;
    struct st_backend_run *run; /* NULL: free */
    uint64_t used;              /* grows with time */
};

struct real {
    struct st_backend base;
    const char *path;
    struct strata_engine_options options;
    void (*placed)(const struct strata_engine *engine);
    struct strata_model *model;
    struct strata_engine *engine;   /* NULL while none is loaded */
    struct place place[PARALLEL_MAX];
    uint32_t parallel; /* of the last engine, or what is asked for */
    uint64_t uses;
    struct strata_sampling sampling;
    char processor[100];
    pthread_mutex_t lock;
    /* Under lock, but the engine thread alone changes them: */
    struct strata_batch *batch;            /* NULL while no engine is loaded */
    struct st_park_info parked;            /* as it was after the last request */
    struct strata_engine_options in_force; /* of the last engine */
    char devices[256];
    uint64_t engine_bytes;
    json_t *stages;
    struct st_expert_counts experts[ST_STAGES_MAX]; /* of stages that have experts outside */
    struct strata_stats answers;                    /* sums over those of this engine that have ended: passes, guesses */
    struct strata_stats drafts;                     /* likewise, with those under way */
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

static void add_drafts(struct strata_stats *sum, const struct strata_stats *s)
{
    sum->passes += s->passes;
    sum->drafted_tokens += s->drafted_tokens;
    sum->accepted_tokens += s->accepted_tokens;
}

/* What changes with every pass. */
static void note_counts(struct real *r)
{
    const struct strata_engine *e = r->engine;
    struct strata_stats drafts = r->answers;
    for (uint32_t i = 0; i < r->parallel; i++)
        if (r->place[i].run)
            add_drafts(&drafts, &r->place[i].run->stats);
    pthread_mutex_lock(&r->lock);
    r->drafts = drafts;
    for (int k = 0; k < e->n_stages && !e->broken; k++)
        if (e->plan.stage[k].cached)
            st_device_experts_counts(e->stages[k], &r->experts[k]);
    pthread_mutex_unlock(&r->lock);
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
    note_counts(r);
}

static enum strata_result real_open(struct st_backend *b, struct strata_error *err)
{
    struct real *r = (struct real *)b;
    enum strata_result result = strata_model_open(r->path, &r->model, err);
    return result ? result : st_model_sampling(r->model, &r->sampling, err);
}

/* With as many sessions as asked for, or the usual number of them as far as there is memory. */
static enum strata_result create_engine(struct real *r, struct strata_error *err)
{
    struct strata_engine_options o = r->options;
    memset(r->experts, 0, sizeof r->experts);
    r->answers = r->drafts = (struct strata_stats){0};
    o.sessions = o.sessions ? o.sessions : PARALLEL_USUAL;
    enum strata_result result;
    while ((result = strata_engine_create(r->model, &o, &r->engine, err)) && !r->options.sessions && o.sessions > 1 &&
           (result == STRATA_E_MEMORY || result == STRATA_E_LIMIT))
        o.sessions /= 2;
    return result;
}

static enum strata_result create_places(struct real *r, struct strata_error *err)
{
    struct strata_engine_options o;
    struct strata_batch *batch = NULL;
    strata_engine_options(r->engine, &o);
    enum strata_result result = strata_batch_create(r->engine, &batch, err);
    for (uint32_t i = 0; i < o.sessions && !result; i++) {
        r->place[i] = (struct place){.backend = r};
        result = strata_session_create(r->engine, &r->place[i].session, err);
    }
    pthread_mutex_lock(&r->lock);
    r->batch = batch;
    r->parallel = o.sessions;
    pthread_mutex_unlock(&r->lock);
    return result;
}

static void free_places(struct real *r)
{
    pthread_mutex_lock(&r->lock);
    struct strata_batch *batch = r->batch;
    r->batch = NULL;
    pthread_mutex_unlock(&r->lock);
    strata_batch_free(batch);
    for (uint32_t i = 0; i < r->parallel; i++) {
        strata_session_free(r->place[i].session);
        r->place[i].session = NULL;
    }
}

static enum strata_result real_load(struct st_backend *b, st_backend_progress *progress, void *user,
                                    struct strata_error *err)
{
    struct real *r = (struct real *)b;
    progress(user, "placing the model", 0.3);
    enum strata_result result = create_engine(r, err);
    if (result)
        return result;
    st_slot_files_open(r->engine);
    if (r->placed)
        r->placed(r->engine);
    progress(user, "making the sessions", 0.9);
    result = create_places(r, err);
    if (result) {
        free_places(r);
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
    free_places(r);
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
    struct strata_session *session = r->place[slot].session;
    if (!r->options.session_dir || strata_session_tokens(session, NULL) < ST_PARK_LEAST)
        return STRATA_OK;
    enum strata_result result = st_park_put(session, err);
    note_engine(r);
    return result;
}

static void real_free(struct st_backend *b)
{
    struct real *r = (struct real *)b;
    free_places(r);
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
    uint32_t parallel = r->parallel;
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
                                    .parallel = parallel,
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

static enum strata_result real_constrain(const struct st_backend *b, const struct strata_constraint_options *options,
                                         struct strata_constraint **out, struct strata_error *err)
{
    return strata_constraint_create(((const struct real *)b)->model, options, out, err);
}

static json_t *experts_json(const struct st_expert_counts *n)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "chosen", (json_int_t)n->chosen, "in_slots", (json_int_t)n->in_slots, "by_helper",
                     (json_int_t)n->by_helper, "over_link", (json_int_t)n->over_link, "by_cpu", (json_int_t)n->by_cpu, "from_file",
                     (json_int_t)n->from_file);
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
    json_t *stages = r->stages ? json_deep_copy(r->stages) : json_array(), *stage;
    size_t k;
    json_array_foreach(stages, k, stage) if (json_is_true(json_object_get(stage, "experts_outside")))
        json_object_set_new(stage, "experts", experts_json(&r->experts[k]));
    json_t *drafts = json_pack("{s:I, s:I, s:I, s:I}", "most", (json_int_t)r->in_force.drafts, "passes", (json_int_t)r->drafts.passes,
                               "drafted_tokens", (json_int_t)r->drafts.drafted_tokens, "accepted_tokens",
                               (json_int_t)r->drafts.accepted_tokens);
    snprintf(description, sizeof description, "%s%s%d threads", r->processor, *r->processor ? ", " : "",
             r->in_force.threads);
    memcpy(devices, r->devices, sizeof devices);
    pthread_mutex_unlock(&r->lock);
    json_t *kept = json_pack("{s:I, s:I, s:I, s:I, s:I, s:s}", "in_memory", (json_int_t)parked.in_memory, "in_files",
                             (json_int_t)parked.in_files, "memory_bytes", (json_int_t)parked.memory_bytes, "file_bytes",
                             (json_int_t)parked.file_bytes, "dropped", (json_int_t)parked.dropped, "last_failure",
                             parked.last_failure);
    return json_pack("{s:[{s:s, s:s, s:I, s:[{s:s, s:I}, {s:s, s:I}]}], s:o, s:o, s:o}", "devices", "name", devices, "description",
                     description, "total_bytes", total, "memory", "kind", "weights", "bytes", (json_int_t)info.bytes, "kind",
                     "state and buffers", "bytes", (json_int_t)bytes, "parked", kept, "stages", stages, "drafts", drafts);
}

/* ---- answers ---- */

static void on_done(void *user, enum strata_result result, const struct strata_error *err)
{
    struct place *p = user;
    struct st_backend_run *run = p->run;
    p->run = NULL;
    add_drafts(&p->backend->answers, &run->stats);
    note_engine(p->backend);
    run->done(run->user, result, err);
}

/* A free place for a prompt; NULL: there is none. */
static struct place *choose(struct real *r, const struct strata_request *q)
{
    struct strata_session *sessions[PARALLEL_MAX];
    struct place *free_ones[PARALLEL_MAX];
    size_t n = 0;
    for (uint32_t i = 0; i < r->parallel; i++) {
        struct place *p = &r->place[i];
        if (p->run)
            continue;
        size_t at = n++;
        for (; at && free_ones[at - 1]->used > p->used; at--)
            free_ones[at] = free_ones[at - 1];
        free_ones[at] = p;
    }
    for (size_t i = 0; i < n; i++)
        sessions[i] = free_ones[i]->session;
    if (!n)
        return NULL;
    struct strata_session *s = st_park_pick(sessions, n, q->ids, q->count);
    struct place *p = r->place;
    while (p->session != s)
        p++;
    return p;
}

static enum strata_result real_start(struct st_backend *b, struct st_backend_run *run, struct strata_error *err)
{
    struct real *r = (struct real *)b;
    struct place *p = choose(r, run->request);
    if (!p)
        return st_fail(err, STRATA_E_LIMIT, "all %u slots are in use", r->parallel);
    enum strata_result result = strata_batch_add(r->batch, p->session, run->request, &run->stats, on_done, p, err);
    if (result)
        return result;
    p->run = run;
    p->used = ++r->uses;
    run->slot = (int)(p - r->place);
    return STRATA_OK;
}

static void real_step(struct st_backend *b)
{
    struct real *r = (struct real *)b;
    strata_batch_step(r->batch);
    note_counts(r);
}

static void real_cancel(struct st_backend *b, struct st_backend_run *run)
{
    strata_session_cancel(((struct real *)b)->place[run->slot].session);
}

static void real_wake(struct st_backend *b)
{
    struct real *r = (struct real *)b;
    pthread_mutex_lock(&r->lock);
    if (r->batch)
        strata_batch_interrupt(r->batch);
    pthread_mutex_unlock(&r->lock);
}

static enum strata_result real_slot(struct st_backend *b, uint32_t slot, enum st_slot_action action, const char *file,
                                    struct st_slot_result *out, struct strata_error *err)
{
    struct real *r = (struct real *)b;
    struct strata_session *session = r->place[slot].session;
    enum strata_result result = STRATA_OK;
    out->busy = r->place[slot].run != NULL;
    if (out->busy)
        return st_fail(err, STRATA_E_LIMIT, "an answer is under way in slot %u", slot);
    out->tokens = strata_session_tokens(session, NULL);
    switch (action) {
    case ST_SLOT_SAVE: return st_slot_file_save(session, file, &out->bytes, err);
    case ST_SLOT_RESTORE:
        result = st_slot_file_restore(session, file, &out->bytes, &out->missing, err);
        out->tokens = strata_session_tokens(session, NULL);
        return result;
    case ST_SLOT_ERASE: strata_session_reset(session); break;
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
        .wake = real_wake,     .slot = real_slot,           .save = real_save,           .constrain = real_constrain};
    struct real *r = calloc(1, sizeof *r);
    if (!r)
        return st_fail(err, STRATA_E_MEMORY, "server: out of memory");
    r->base.ops = &ops;
    r->path = path;
    r->options = *options;
    r->parallel = options->sessions ? options->sessions : PARALLEL_USUAL;
    r->placed = placed;
    processor_name(r->processor, sizeof r->processor);
    pthread_mutex_init(&r->lock, NULL);
    *out = &r->base;
    return STRATA_OK;
}
