/* Writing answers: what the families share, errors, and the answers of the small calls. */
#include <stdlib.h>
#include <string.h>

#include "serve/server.h"

/* Text of a value, NULL without memory. Drops the reference. */
static char *dump(json_t *value)
{
    char *text = value ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(value);
    return text;
}

const char *st_job_model(const struct st_job *job)
{
    const struct st_server *s = job->server;
    if (s->options.alias)
        return s->options.alias;
    struct st_backend_info info;
    s->backend->ops->info(s->backend, &info);
    return info.name;
}

json_t *st_job_timings(const struct st_job *job)
{
    const struct strata_stats *s = &job->run.stats;
    json_t *timings = json_pack("{s:I, s:I, s:f, s:f, s:I, s:f, s:f}", "cache_n", (json_int_t)s->reused_tokens, "prompt_n",
                     (json_int_t)s->read_tokens, "prompt_ms", 1e3 * s->read_seconds, "prompt_per_second",
                     s->read_seconds > 0 ? (double)s->read_tokens / s->read_seconds : 0.0, "predicted_n",
                     (json_int_t)job->generated, "predicted_ms", 1e3 * s->generate_seconds, "predicted_per_second",
                     s->generate_seconds > 0 ? (double)job->generated / s->generate_seconds : 0.0);
    if (timings && s->drafted_tokens) {
        json_object_set_new(timings, "draft_n", json_integer((json_int_t)s->drafted_tokens));
        json_object_set_new(timings, "draft_n_accepted", json_integer((json_int_t)s->accepted_tokens));
    }
    return timings;
}

void st_job_write(struct st_job *job, const char *text, size_t size)
{
    if (!job->x)
        return;
    job->last_write = st_now();
    st_exchange_write(job->x, text, size);
}

void st_job_event(struct st_job *job, const char *event, json_t *value)
{
    char *text = dump(value);
    if (!job->x || !text) {
        free(text);
        return;
    }
    struct st_buffer out = {0};
    if (event)
        st_buffer_format(&out, "event: %s\n", event);
    st_buffer_text(&out, "data: ");
    st_buffer_text(&out, text);
    st_buffer_text(&out, "\n\n");
    if (!out.failed)
        st_job_write(job, out.data, out.size);
    st_buffer_free(&out);
    free(text);
}

void st_job_end_stream(struct st_job *job)
{
    struct st_exchange *x = job->x;
    job->x = NULL;
    if (x)
        st_exchange_end(x);
}

static void send_json(struct st_exchange *x, int status, json_t *value)
{
    char *text = dump(value);
    st_exchange_add_header(x, "Cache-Control", "no-store");
    st_exchange_add_header(x, "X-Content-Type-Options", "nosniff");
    if (text)
        st_exchange_send(x, status, "application/json; charset=utf-8", text, strlen(text));
    else
        st_exchange_send(x, 503, "application/json; charset=utf-8", "{}", 2);
    free(text);
}

void st_job_reply_json(struct st_job *job, json_t *value)
{
    struct st_exchange *x = job->x;
    job->x = NULL;
    send_json(x, 200, value);
}

void st_reply_json(struct st_server *s, struct st_exchange *x, const char *route, json_t *value)
{
    st_metrics_request(&s->metrics, route, 200);
    send_json(x, 200, value);
}

json_t *st_error_json(bool anthropic, const struct st_api_error *e)
{
    static const struct {
        int status;
        const char *openai, *anthropic;
    } types[] = {{400, "invalid_request_error", "invalid_request_error"},
                 {401, "authentication_error", "authentication_error"},
                 {403, "permission_error", "permission_error"},
                 {404, "not_found_error", "not_found_error"},
                 {405, "invalid_request_error", "invalid_request_error"},
                 {413, "request_too_large", "request_too_large"},
                 {415, "invalid_request_error", "invalid_request_error"},
                 {429, "rate_limit_error", "rate_limit_error"},
                 {503, "server_error", "overloaded_error"},
                 {500, "server_error", "api_error"}};
    size_t i = 0;
    while (i + 1 < sizeof types / sizeof *types && types[i].status != e->status)
        i++;
    if (anthropic)
        return json_pack("{s:s, s:{s:s, s:s}}", "type", "error", "error", "type", types[i].anthropic, "message",
                         e->message);
    return json_pack("{s:{s:s, s:s, s:s?, s:s?}}", "error", "message", e->message, "type", types[i].openai, "param",
                     *e->param ? e->param : NULL, "code", e->code);
}

void st_reply_error(struct st_server *s, struct st_exchange *x, const char *route, const struct st_api_error *error)
{
    st_metrics_request(&s->metrics, route, error->status);
    if (error->retry_after) {
        char seconds[16];
        snprintf(seconds, sizeof seconds, "%d", error->retry_after);
        st_exchange_add_header(x, "Retry-After", seconds);
    }
    if (error->status == 401)
        st_exchange_add_header(x, "WWW-Authenticate", "Bearer");
    send_json(x, error->status, st_error_json(strncmp(x->path, "/v1/messages", 12) == 0, error));
}

/* ---- small calls ---- */

static json_t *id_list(const struct st_job *job)
{
    json_t *list = json_array();
    for (size_t i = 0; i < job->count; i++) {
        json_t *id = json_integer(job->ids[i]);
        if (job->pieces)
            id = json_pack("{s:o, s:O}", "id", id, "piece", json_array_get(job->pieces, i));
        json_array_append_new(list, id);
    }
    return list;
}

static void small_end(struct st_job *job)
{
    json_t *value = NULL;
    switch (job->call.kind) {
    case ST_CALL_COUNT_TOKENS: value = json_pack("{s:I}", "input_tokens", (json_int_t)job->count); break;
    case ST_CALL_TEMPLATE:
        value = json_pack("{s:o}", "prompt", json_sprintf("%s%s", job->text, job->call.prefix ? job->call.prefix : ""));
        break;
    case ST_CALL_TOKENIZE: value = json_pack("{s:o}", "tokens", id_list(job)); break;
    case ST_CALL_DETOKENIZE: {
        /* Tokens may end in the middle of a character; what is no UTF-8 is shown as byte escapes. */
        json_t *content = json_stringn(job->text, job->text_size);
        if (!content) {
            size_t room = 4 * job->text_size + 1;
            char *shown = malloc(room);
            content = shown ? json_string(st_printable(shown, room, job->text, job->text_size)) : NULL;
            free(shown);
        }
        value = json_pack("{s:o}", "content", content);
        break;
    }
    case ST_CALL_SLOT: value = st_slot_json(job); break;
    case ST_CALL_LOAD:
    case ST_CALL_UNLOAD:
    case ST_CALL_VRAM: value = st_load_json(job); break;
    default: break;
    }
    job->status = 200;
    st_job_reply_json(job, value);
}

const struct st_format st_format_small = {.end = small_end};
