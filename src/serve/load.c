/* Whether the model is there: loaded at the start or when a request needs it, unloaded when somebody asks or nobody does, and what
 * the server says of that. Loading and unloading are jobs in the engine thread's list: what came before is computed first. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/server.h"

/* ---- in the engine thread ---- */

static void on_load(void *user, const char *what, double part)
{
    struct st_server *s = user;
    pthread_mutex_lock(&s->lock);
    s->load_part = part;
    snprintf(s->load_what, sizeof s->load_what, "%s", what);
    pthread_mutex_unlock(&s->lock);
}

static void set_state(struct st_server *s, enum st_state state)
{
    pthread_mutex_lock(&s->lock);
    s->state = state;
    pthread_mutex_unlock(&s->lock);
}

/* What a request gets where it says nothing: the model's recommendation, changed by the options. */
static struct strata_sampling merge_sampling(const struct st_server *s)
{
    struct st_backend_info info;
    const struct strata_sampling *o = &s->options.sampling;
    s->backend->ops->info(s->backend, &info);
    struct strata_sampling out = info.sampling;
    out.temperature = o->temperature >= 0 ? o->temperature : out.temperature;
    out.top_k = o->top_k >= 0 ? o->top_k : out.top_k;
    out.top_p = o->top_p >= 0 ? o->top_p : out.top_p;
    out.min_p = o->min_p >= 0 ? o->min_p : out.min_p;
    out.repetition_penalty = o->repetition_penalty >= 0 ? o->repetition_penalty : out.repetition_penalty;
    return out;
}

static enum strata_result load(struct st_server *s, struct strata_error *err)
{
    set_state(s, ST_LOADING);
    on_load(s, "loading", 0);
    enum strata_result r = s->backend->ops->load(s->backend, on_load, s, err);
    struct st_backend_info info;
    s->backend->ops->info(s->backend, &info);
    s->engine.most = info.parallel;
    pthread_mutex_lock(&s->lock);
    s->state = r ? ST_FAILED : ST_READY;
    s->loads += !r;
    if (r)
        s->load_error = *err;
    pthread_mutex_unlock(&s->lock);
    on_load(s, r ? "failed" : "ready", r ? 0 : 1);
    return r;
}

void st_server_load_first(struct st_server *s)
{
    struct strata_error err = {0};
    on_load(s, "opening the model", 0);
    enum strata_result r = s->backend->ops->open(s->backend, &err);
    if (!r)
        s->sampling = merge_sampling(s);
    if (!r && s->options.load_on_demand)
        set_state(s, ST_UNLOADED);
    else if (!r)
        r = load(s, &err);
    pthread_mutex_lock(&s->lock);
    s->open = !r;
    s->fatal = r;
    s->load_error = err;
    pthread_mutex_unlock(&s->lock);
    st_server_wake(s);
}

bool st_job_needs_model(struct st_job *job)
{
    struct st_server *s = job->server;
    struct strata_error err = {0};
    if (st_server_state(s, NULL, NULL) == ST_READY || atomic_load(&job->cancelled))
        return true;
    if (load(s, &err) == STRATA_OK)
        return true;
    job->failed = true;
    st_refuse(&job->error, 503, "load_failed", NULL, "the model could not be loaded: %s", err.text);
    st_job_release(job);
    st_job_post(job, ST_DELTA_END, NULL, 0, 0, 0, 0, NULL);
    return false;
}

void st_job_load(struct st_job *job)
{
    double start = st_now();
    if (st_job_needs_model(job)) {
        job->slot_seconds = st_now() - start;
        st_job_post(job, ST_DELTA_END, NULL, 0, 0, 0, 0, NULL);
    }
}

/* True if there was something to unload. */
static bool unload(struct st_server *s, struct st_job *job)
{
    struct strata_error err = {0};
    bool loaded = st_server_state(s, NULL, NULL) == ST_READY;
    if (loaded) {
        set_state(s, ST_UNLOADING);
        if (s->backend->ops->unload(s->backend, &job->report, &err))
            snprintf(job->problem, sizeof job->problem, "%s", err.text);
    }
    set_state(s, ST_UNLOADED);
    pthread_mutex_lock(&s->lock);
    s->unloads += loaded;
    pthread_mutex_unlock(&s->lock);
    return loaded;
}

void st_job_unload(struct st_job *job)
{
    double start = st_now();
    unload(job->server, job);
    job->slot_seconds = st_now() - start;
    st_job_post(job, ST_DELTA_END, NULL, 0, 0, 0, 0, NULL);
}

static void set_reserve(struct st_server *s, uint64_t bytes)
{
    s->backend->ops->reserve(s->backend, bytes);
    pthread_mutex_lock(&s->lock);
    s->reserve = bytes;
    pthread_mutex_unlock(&s->lock);
}

/* The model is loaded anew with another plan: with less memory fewer experts lie on devices, the coldest go first. Where it does not
 * fit, it is loaded as it was. */
void st_job_vram(struct st_job *job)
{
    struct st_server *s = job->server;
    struct strata_error err = {0}, again = {0};
    double start = st_now();
    uint64_t before = s->reserve;
    bool loaded = unload(s, job);
    set_reserve(s, job->call.reserve);
    enum strata_result r = loaded ? load(s, &err) : STRATA_OK;
    if (r) {
        set_reserve(s, before);
        job->failed = true;
        st_refuse(&job->error, 409, "does_not_fit", "reserve_mib", "with %llu MiB of each device free the model cannot be loaded: %s",
                  (unsigned long long)(job->call.reserve >> 20), err.text);
        if (load(s, &again))
            st_refuse(&job->error, 503, "load_failed", NULL, "the model could not be loaded again: %s", again.text);
    }
    job->loaded = loaded && !r;
    json_t *status = job->loaded ? s->backend->ops->status(s->backend) : NULL;
    job->stages = json_incref(json_object_get(status, "stages"));
    json_decref(status);
    job->slot_seconds = st_now() - start;
    st_job_post(job, ST_DELTA_END, NULL, 0, 0, 0, 0, NULL);
}

/* ---- in the event thread ---- */

static bool is_answer(const struct st_job *job)
{
    return job->format != &st_format_small;
}

void st_job_waits(struct st_job *job)
{
    for (const struct st_job *j = job->server->jobs; j; j = j->next)
        job->waits += is_answer(j) && j->place && j->stage != ST_STAGE_ENDED;
    job->deadline = st_now() + (double)job->call.deadline;
}

/* Answers that came to the engine thread's list before: those that run are cancelled, those that wait get the error. */
static void cut_answers(struct st_server *s, struct st_job *unload)
{
    unload->cutting = true;
    for (struct st_job *job = s->jobs; job; job = job->next) {
        if (!is_answer(job) || !job->place || job->place > unload->place || job->cut || job->stage == ST_STAGE_ENDED)
            continue;
        job->cut = true;
        unload->cuts++;
        if (!st_server_withdraw(s, job))
            st_job_cancel(job);
    }
}

void st_server_tick_load(struct st_server *s, double now)
{
    for (struct st_job *job = s->jobs; job; job = job->next)
        if ((job->call.kind == ST_CALL_UNLOAD || job->call.kind == ST_CALL_VRAM) && !job->cutting && now >= job->deadline) {
            cut_answers(s, job);
        }
    if (s->jobs || s->stopping || st_server_state(s, NULL, NULL) != ST_READY)
        s->busy = now;
    if (!s->options.idle_seconds || now - s->busy < s->options.idle_seconds)
        return;
    struct st_call call;
    st_call_init(&call, ST_CALL_UNLOAD, &s->sampling);
    st_server_log(s, "unloading the model: nobody has asked for %d seconds", s->options.idle_seconds);
    st_server_start(s, NULL, "/unload", &call);
}

json_t *st_load_json(const struct st_job *job)
{
    if (job->call.kind == ST_CALL_LOAD)
        return json_pack("{s:s, s:f}", "state", "ready", "seconds", job->slot_seconds);
    bool vram = job->call.kind == ST_CALL_VRAM;
    size_t cuts = job->cuts < job->waits ? job->cuts : job->waits;
    json_t *value = json_pack("{s:s, s:f, s:{s:I, s:I}, s:s?}", "state", job->loaded ? "ready" : "unloaded", "seconds", job->slot_seconds, "answers",
                              "waited_for", (json_int_t)(job->waits - cuts), "cut", (json_int_t)cuts, "problem",
                              *job->problem ? job->problem : NULL);
    const char *const members[] = {"conversations", "freed"};
    for (size_t i = 0; i < 2; i++) {
        json_t *member = json_object_get(job->report, members[i]);
        json_object_set(value, members[i], member ? member : json_null());
    }
    if (vram) {
        json_object_set_new(value, "reserve_mib", json_integer((json_int_t)(job->call.reserve >> 20)));
        json_object_set(value, "stages", job->stages ? job->stages : json_null());
    }
    return value;
}

/* ---- what is said of it, from any thread ---- */

const char *const st_state_names[] = {[ST_LOADING] = "loading", [ST_READY] = "ready", [ST_FAILED] = "failed",
                                      [ST_UNLOADING] = "unloading", [ST_UNLOADED] = "unloaded"};

enum st_state st_server_state(struct st_server *s, double *part, char what[96])
{
    pthread_mutex_lock(&s->lock);
    enum st_state state = s->state;
    if (part)
        *part = s->load_part;
    if (what)
        memcpy(what, s->load_what, sizeof s->load_what);
    pthread_mutex_unlock(&s->lock);
    return state;
}

void st_server_condition(struct st_server *s, struct st_condition *out)
{
    struct st_backend_health health = {.starting = false};
    *out = (struct st_condition){.state = ST_LOADING};
    out->state = st_server_state(s, &out->part, out->what);
    pthread_mutex_lock(&s->lock);
    out->open = s->open;
    out->loads = s->loads;
    out->unloads = s->unloads;
    out->reserve = s->reserve;
    if (s->state == ST_FAILED)
        snprintf(out->why, sizeof out->why, "%s", s->load_error.text);
    pthread_mutex_unlock(&s->lock);
    if (out->state != ST_READY || !s->backend->ops->health)
        return;
    s->backend->ops->health(s->backend, &health);
    memcpy(out->why, health.why, sizeof out->why);
    if (!health.starting)
        return;
    out->state = health.failed ? ST_FAILED : ST_LOADING;
    out->refuses = health.failed;
    out->part = health.part;
    memcpy(out->what, health.what, sizeof out->what);
}

bool st_server_open(struct st_server *s, bool answer, struct st_api_error *error)
{
    struct st_condition c;
    st_server_condition(s, &c);
    if (s->stopping)
        return st_refuse(error, 503, NULL, NULL, "the server is stopping");
    if (!c.open)
        return st_refuse(error, 503, "loading", NULL, "the model is being loaded (%.0f %%)", 100 * c.part);
    if (answer && c.refuses)
        return st_refuse(error, 503, "engine_failed", NULL, "the engine has failed too often; it is tried again later: %s", c.why);
    return true;
}
