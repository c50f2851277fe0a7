/* Answers about the server itself: health, models, props, slots, status, metrics. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "serve/server.h"

static const char *shown_name(const struct st_server *s, const struct st_backend_info *info)
{
    return s->options.alias ? s->options.alias : info->name;
}

/* Refuses while there is no model; the answers below need one. */
static bool ready(struct st_server *s, struct st_exchange *x, const char *route)
{
    struct st_api_error error;
    struct st_condition c;
    st_server_condition(s, &c);
    if (c.open)
        return true;
    st_refuse(&error, 503, "loading", NULL, "the model is being loaded (%.0f %%)", 100 * c.part);
    st_reply_error(s, x, route, &error);
    return false;
}

void st_answer_health(struct st_server *s, struct st_exchange *x)
{
    struct st_condition c;
    st_server_condition(s, &c);
    bool unloaded = c.state == ST_UNLOADED; /* it answers, after a while */
    if ((c.state == ST_READY || unloaded) && !s->stopping) {
        st_reply_json(s, x, "/health", json_pack("{s:s}", "status", unloaded ? "unloaded" : "ok"));
        return;
    }
    const char *name = s->stopping ? "stopping" : st_state_names[c.state];
    const char *message = s->stopping               ? "the server is stopping"
                          : c.state == ST_FAILED    ? c.why
                          : c.state == ST_UNLOADING ? "the model is being unloaded"
                                                    : "the model is being loaded";
    json_t *value = json_pack("{s:s, s:f, s:s, s:{s:s, s:s, s:s, s:n}}", "status", name, "progress", c.part, "step", c.what,
                              "error", "message", message, "type", "server_error", "code", name, "param");
    char *text = value ? json_dumps(value, JSON_COMPACT) : NULL;
    json_decref(value);
    st_metrics_request(&s->metrics, "/health", 503);
    st_exchange_add_header(x, "Retry-After", "1");
    st_exchange_send(x, 503, "application/json; charset=utf-8", text ? text : "{}", text ? strlen(text) : 2);
    free(text);
}

/* One model in the form of both families. */
static json_t *model_json(const struct st_server *s, const struct st_backend_info *info)
{
    char created[32];
    struct tm utc;
    gmtime_r(&s->begun_wall, &utc);
    strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%SZ", &utc);
    const char *name = shown_name(s, info);
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:s, s:s, s:{s:s, s:I, s:I, s:I, s:I, s:I}}", "id", name, "object",
                     "model", "created", (json_int_t)s->begun_wall, "owned_by", "strata", "type", "model",
                     "display_name", name, "created_at", created, "meta", "architecture", info->architecture,
                     "n_params", (json_int_t)info->parameters, "size", (json_int_t)info->bytes, "n_ctx",
                     (json_int_t)info->context, "n_ctx_train", (json_int_t)info->trained_context, "n_vocab",
                     (json_int_t)info->vocabulary);
}

void st_answer_models(struct st_server *s, struct st_exchange *x)
{
    if (!ready(s, x, "/v1/models"))
        return;
    struct st_backend_info info;
    s->backend->ops->info(s->backend, &info);
    const char *name = shown_name(s, &info);
    if (strcmp(x->path, "/v1/models") == 0) {
        st_reply_json(s, x, "/v1/models",
                      json_pack("{s:s, s:[o], s:b, s:s, s:s}", "object", "list", "data", model_json(s, &info),
                                "has_more", 0, "first_id", name, "last_id", name));
        return;
    }
    if (strcmp(x->path + strlen("/v1/models/"), name) == 0) {
        st_reply_json(s, x, "/v1/models", model_json(s, &info));
        return;
    }
    struct st_api_error error;
    st_refuse(&error, 404, "model_not_found", "model", "this server has one model, \"%s\"", name);
    st_reply_error(s, x, "/v1/models", &error);
}

void st_answer_props(struct st_server *s, struct st_exchange *x)
{
    if (!ready(s, x, "/props"))
        return;
    struct st_backend_info info;
    s->backend->ops->info(s->backend, &info);
    const struct strata_sampling *p = &s->sampling;
    json_t *params =
        json_pack("{s:f, s:i, s:f, s:f, s:f, s:f, s:f, s:i}", "temperature", (double)p->temperature, "top_k", p->top_k,
                  "top_p", (double)p->top_p, "min_p", (double)p->min_p, "repeat_penalty", (double)p->repetition_penalty,
                  "frequency_penalty", (double)p->frequency_penalty, "presence_penalty", (double)p->presence_penalty,
                  "repeat_last_n", p->penalty_window);
    st_reply_json(s, x, "/props",
                  json_pack("{s:{s:I, s:o}, s:i, s:s, s:s, s:s, s:{s:b, s:b}, s:s}", "default_generation_settings",
                            "n_ctx", (json_int_t)info.context, "params", params, "total_slots", (int)info.parallel, "model_alias",
                            shown_name(s, &info), "model_path", info.path, "chat_template",
                            info.chat_template ? info.chat_template : "", "modalities", "vision", 0, "audio", 0,
                            "build_info", strata_build()));
}

static const struct st_job *job_in_slot(const struct st_server *s, int slot)
{
    for (const struct st_job *job = s->jobs; job; job = job->next)
        if (job->slot == slot && job->stage != ST_STAGE_ENDED)
            return job;
    return NULL;
}

static json_t *slot_json(const struct st_server *s, int number, json_int_t context)
{
    const struct st_job *job = job_in_slot(s, number);
    json_t *slot = json_pack("{s:i, s:I, s:b}", "id", number, "n_ctx", context, "is_processing", job != NULL);
    if (job) {
        json_object_set_new(slot, "id_task", json_integer((json_int_t)job->number));
        json_object_set_new(slot, "n_prompt_tokens", json_integer((json_int_t)job->count));
        json_object_set_new(slot, "n_prompt_tokens_processed", json_integer((json_int_t)job->prompt_done));
        json_object_set_new(slot, "next_token",
                            json_pack("[{s:I, s:b}]", "n_decoded", (json_int_t)job->generated, "has_next_token", 1));
        json_object_set_new(slot, "params",
                            json_pack("{s:f, s:i, s:f, s:I}", "temperature", (double)job->call.sampling.temperature,
                                      "top_k", job->call.sampling.top_k, "top_p", (double)job->call.sampling.top_p,
                                      "n_predict", (json_int_t)job->call.max_tokens));
    }
    return slot;
}

void st_answer_slots(struct st_server *s, struct st_exchange *x)
{
    if (!ready(s, x, "/slots"))
        return;
    struct st_backend_info info;
    s->backend->ops->info(s->backend, &info);
    json_t *slots = json_array();
    for (uint32_t i = 0; i < info.parallel; i++)
        json_array_append_new(slots, slot_json(s, (int)i, (json_int_t)info.context));
    st_reply_json(s, x, "/slots", slots);
}

/* Memory of this process in bytes, 0 if the system does not say. */
static uint64_t resident(void)
{
    unsigned long long pages = 0, total;
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f)
        return 0;
    if (fscanf(f, "%llu %llu", &total, &pages) != 2)
        pages = 0;
    fclose(f);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static size_t running(const struct st_server *s)
{
    size_t count = 0;
    for (const struct st_job *job = s->jobs; job; job = job->next)
        count += job->stage == ST_STAGE_READING || job->stage == ST_STAGE_GENERATING;
    return count;
}

static json_t *active_json(const struct st_job *job, double now)
{
    static const char *const stages[] = {"preparing", "waiting", "reading", "generating"};
    double since = job->first_token > 0 ? now - job->first_token : 0;
    size_t count = job->stage == ST_STAGE_PREPARING ? 0 : job->count; /* until then it is the other thread's */
    return json_pack("{s:I, s:s, s:s, s:i, s:b, s:f, s:I, s:I, s:I, s:I, s:I, s:f}", "id", (json_int_t)job->number, "route",
                     job->route, "stage", stages[job->stage], "slot", job->slot, "stream", job->streaming, "seconds", now - job->arrived,
                     "prompt_tokens", (json_int_t)count, "prompt_done", (json_int_t)job->prompt_done, "reused_tokens",
                     (json_int_t)job->reused, "generated_tokens", (json_int_t)job->generated, "max_tokens",
                     (json_int_t)job->call.max_tokens, "tokens_per_second",
                     since > 0 ? (double)(job->generated - 1) / since : 0.0);
}

static json_t *past_json(const struct st_past *p, double now)
{
    return json_pack("{s:I, s:s, s:i, s:s, s:f, s:f, s:f, s:I, s:I, s:I, s:f, s:f}", "id", (json_int_t)p->number,
                     "route", p->route, "status", p->status, "finish", p->finish, "age_seconds", now - p->arrived,
                     "wait_seconds", p->wait, "seconds", p->seconds, "prompt_tokens", (json_int_t)p->prompt,
                     "reused_tokens", (json_int_t)p->reused, "generated_tokens", (json_int_t)p->generated,
                     "read_seconds", p->read_seconds, "generate_seconds", p->generate_seconds);
}

/* Tokens in each of the last full seconds, oldest first. */
static json_t *rates_json(const struct st_server *s)
{
    enum { SHOWN = 60 };
    json_t *read = json_array(), *generated = json_array();
    long now = (long)st_now();
    for (long second = now - SHOWN; second < now; second++) {
        size_t i = (size_t)second % ST_RATE_SECONDS;
        bool there = second >= 0 && s->rate[i].second == second;
        json_array_append_new(read, json_integer(there ? s->rate[i].read : 0));
        json_array_append_new(generated, json_integer(there ? s->rate[i].generated : 0));
    }
    return json_pack("{s:o, s:o}", "read", read, "generated", generated);
}

void st_answer_status(struct st_server *s, struct st_exchange *x)
{
    double now = st_now();
    struct st_condition c;
    st_server_condition(s, &c);
    json_t *requests = json_array(), *past = json_array();
    for (const struct st_job *job = s->jobs; job; job = job->next)
        if (job->format != &st_format_small && job->stage != ST_STAGE_ENDED)
            json_array_append_new(requests, active_json(job, now));
    size_t kept = s->past_count < ST_PAST ? s->past_count : ST_PAST;
    for (size_t i = 0; i < kept; i++)
        json_array_append_new(past, past_json(&s->past[(s->past_count - 1 - i) % ST_PAST], now));
    json_t *value = json_pack("{s:s, s:s, s:f, s:s, s:f, s:I, s:I, s:I, s:o, s:o, s:o}", "version", strata_version(),
                              "state", s->stopping ? "stopping" : st_state_names[c.state], "progress", c.part, "step", c.what,
                              "uptime_seconds", now - s->begun, "connections", (json_int_t)st_http_connections(s->http),
                              "queue_limit", (json_int_t)s->options.queue, "resident_bytes", (json_int_t)resident(),
                              "requests", requests, "past", past, "rates", rates_json(s));
    json_object_set_new(value, "loading",
                        json_pack("{s:I, s:I, s:b, s:i, s:s}", "loads", (json_int_t)c.loads, "unloads", (json_int_t)c.unloads,
                                  "on_demand", s->options.load_on_demand, "idle_unload_seconds", s->options.idle_seconds,
                                  "last_failure", c.why));
    if (c.open) {
        struct st_backend_info info;
        s->backend->ops->info(s->backend, &info);
        json_object_set_new(value, "model", model_json(s, &info));
        json_object_set_new(value, "machine", s->backend->ops->status(s->backend));
        json_object_set_new(value, "vram",
                            json_pack("{s:b, s:I}", "elastic", s->options.vram_elastic, "reserve_mib", (json_int_t)(c.reserve >> 20)));
        json_object_set_new(value, "totals",
                            json_pack("{s:I, s:I, s:I, s:I}", "prompt_tokens", (json_int_t)s->metrics.prompt_tokens,
                                      "reused_tokens", (json_int_t)s->metrics.reused_tokens, "read_tokens",
                                      (json_int_t)s->metrics.read_tokens, "generated_tokens",
                                      (json_int_t)s->metrics.generated_tokens));
    }
    st_reply_json(s, x, "/v1/status", value);
}

void st_answer_metrics(struct st_server *s, struct st_exchange *x)
{
    struct st_buffer out = {0};
    struct st_http_counts counts = st_http_counts(s->http);
    struct st_condition c;
    st_server_condition(s, &c);
    st_metrics_write(&s->metrics, &out);
    st_metrics_value(&out, "queue_requests", "gauge", "Requests that wait or are computed.", (double)s->answers);
    st_metrics_value(&out, "running_requests", "gauge", "Requests that are computed.", (double)running(s));
    st_metrics_value(&out, "connections", "gauge", "Open connections.", (double)st_http_connections(s->http));
    st_metrics_value(&out, "connections_refused_total", "counter", "Connections over the limit.",
                     (double)counts.refused);
    st_metrics_value(&out, "slow_requests_total", "counter",
                     "Connections closed because a request took too long to arrive.", (double)counts.slow_requests);
    st_metrics_value(&out, "slow_readers_total", "counter", "Clients cut off because they did not read their answer.",
                     (double)counts.slow_readers);
    st_metrics_value(&out, "resident_bytes", "gauge", "Memory of the process.", (double)resident());
    st_metrics_value(&out, "uptime_seconds", "gauge", "Time since the start.", st_now() - s->begun);
    st_metrics_value(&out, "ready", "gauge", "1 when the model is loaded.", c.state == ST_READY);
    st_metrics_request(&s->metrics, "/metrics", 200);
    st_exchange_send(x, out.failed ? 503 : 200, "text/plain; version=0.0.4; charset=utf-8", st_buffer_string(&out),
                     out.size);
    st_buffer_free(&out);
}
