/* Answers in the form of the OpenAI API: chat completions and completions, streamed and whole. */
#include <stdlib.h>
#include <string.h>

#include "serve/server.h"

static const char *finish_reason(const struct st_job *job)
{
    if (job->called_tool && job->end != STRATA_END_LENGTH && job->end != STRATA_END_CONTEXT && !job->timed_out)
        return "tool_calls";
    switch (job->end) {
    case STRATA_END_STOP_TOKEN:
    case STRATA_END_STOP_TEXT: return "stop";
    case STRATA_END_LENGTH:
    case STRATA_END_CONTEXT:
    case STRATA_END_CANCELLED: break; /* cancelled: only by the time limit, other reasons are errors */
    }
    return "length";
}

/* One of the answers to a request. */
static struct st_job *choice_of(struct st_job *head, int index)
{
    return index ? head->others[index - 1] : head;
}

/* Of a request whose answers have all ended. The prompt counts once. */
static json_t *usage(struct st_job *head)
{
    size_t generated = 0, reasoning = 0;
    for (int i = 0; i < head->call.choices; i++) {
        generated += choice_of(head, i)->generated;
        reasoning += choice_of(head, i)->reasoning_tokens;
    }
    return json_pack("{s:I, s:I, s:I, s:{s:I}, s:{s:I}}", "prompt_tokens", (json_int_t)head->count, "completion_tokens",
                     (json_int_t)generated, "total_tokens", (json_int_t)(head->count + generated),
                     "prompt_tokens_details", "cached_tokens", (json_int_t)head->run.stats.reused_tokens,
                     "completion_tokens_details", "reasoning_tokens", (json_int_t)reasoning);
}

/* Whether all other answers to the request have ended. */
static bool is_last(const struct st_job *job)
{
    return job->head->left == 1;
}

static bool is_chat(const struct st_job *job)
{
    return job->call.kind == ST_CALL_CHAT;
}

/* Log-probabilities in the older form of completions: parallel arrays. */
static json_t *completion_logprobs(const json_t *entries)
{
    json_t *tokens = json_array(), *values = json_array(), *tops = json_array(), *offsets = json_array();
    size_t i, k, offset = 0;
    json_t *entry, *t;
    json_array_foreach(entries, i, entry)
    {
        json_array_append(tokens, json_object_get(entry, "token"));
        json_array_append(values, json_object_get(entry, "logprob"));
        json_t *top = json_object();
        json_array_foreach(json_object_get(entry, "top_logprobs"), k, t)
            json_object_set(top, json_string_value(json_object_get(t, "token")), json_object_get(t, "logprob"));
        json_array_append_new(tops, top);
        json_array_append_new(offsets, json_integer((json_int_t)offset));
        offset += json_array_size(json_object_get(entry, "bytes"));
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", values, "top_logprobs", tops,
                     "text_offset", offsets);
}

/* The log-probabilities that are waiting, taken from the job; JSON null if there are none. */
static json_t *take_logprobs(struct st_job *job)
{
    json_t *list = job->logprobs;
    job->logprobs = NULL;
    if (!list)
        return json_null();
    if (is_chat(job))
        return json_pack("{s:o, s:n}", "content", list, "refusal");
    json_t *old = completion_logprobs(list);
    json_decref(list);
    return old;
}

/* One event of a stream. choice is taken over, NULL: no choices. */
static void chunk(struct st_job *job, json_t *choice, const char *extra_name, json_t *extra)
{
    json_t *choices = json_array();
    if (choice)
        json_array_append_new(choices, choice);
    json_t *event =
        json_pack("{s:s, s:s, s:I, s:s, s:s, s:o}", "id", job->id, "object",
                  is_chat(job) ? "chat.completion.chunk" : "text_completion", "created", (json_int_t)job->created,
                  "model", st_job_model(job), "system_fingerprint", strata_version(), "choices", choices);
    if (extra_name)
        json_object_set_new(event, extra_name, extra);
    else if (job->call.include_usage)
        json_object_set_new(event, "usage", json_null());
    st_job_event(job->head, NULL, event);
}

static json_t *delta_choice(struct st_job *job, json_t *delta, const char *finish)
{
    return json_pack("{s:i, s:o, s:o, s:s?}", "index", (int)job->index, "delta", delta, "logprobs", take_logprobs(job),
                     "finish_reason", finish);
}

static void chat_begin(struct st_job *job)
{
    chunk(job, delta_choice(job, json_pack("{s:s, s:s}", "role", "assistant", "content", ""), NULL), NULL, NULL);
}

/* How far the prompt is read, by the first answer to it. */
static void progress(struct st_job *job, const struct st_delta *d)
{
    if (!job->call.progress || job->head != job)
        return;
    chunk(job, NULL, "prompt_progress",
          json_pack("{s:I, s:I, s:I, s:I}", "total", (json_int_t)job->count, "cache", (json_int_t)job->reused, "processed",
                    (json_int_t)d->a, "time_ms", (json_int_t)(1e3 * (st_now() - job->started))));
}

static void chat_delta(struct st_job *job, const struct st_delta *d)
{
    json_t *delta = NULL;
    int tool = (int)job->tool_count - 1;
    switch (d->kind) {
    case ST_DELTA_PROMPT:
        progress(job, d);
        return;
    case ST_DELTA_REASONING: delta = json_pack("{s:s#}", "reasoning_content", d->text, (int)d->size); break;
    case ST_DELTA_CONTENT: delta = json_pack("{s:s#}", "content", d->text, (int)d->size); break;
    case ST_DELTA_TOOL_BEGIN:
        delta = json_pack("{s:[{s:i, s:s, s:s, s:{s:s, s:s}}]}", "tool_calls", "index", tool, "id", job->tools[tool].id,
                          "type", "function", "function", "name", st_buffer_string(&job->tools[tool].name), "arguments",
                          "");
        break;
    case ST_DELTA_TOOL_ARGUMENTS:
        delta = json_pack("{s:[{s:i, s:{s:s#}}]}", "tool_calls", "index", tool, "function", "arguments", d->text,
                          (int)d->size);
        break;
    default: return;
    }
    chunk(job, delta_choice(job, delta, NULL), NULL, NULL);
}

static json_t *tool_calls(const struct st_job *job)
{
    json_t *list = json_array();
    for (size_t i = 0; i < job->tool_count; i++)
        json_array_append_new(list, json_pack("{s:s, s:s, s:{s:s, s:s}}", "id", job->tools[i].id, "type", "function",
                                              "function", "name", st_buffer_string(&job->tools[i].name), "arguments",
                                              st_buffer_string(&job->tools[i].arguments)));
    return list;
}

static json_t *message(const struct st_job *job)
{
    json_t *m = json_pack("{s:s, s:s#}", "role", "assistant", "content", st_buffer_string(&job->content),
                          (int)job->content.size);
    if (job->tool_count) {
        json_object_set_new(m, "tool_calls", tool_calls(job));
        if (!job->content.size)
            json_object_set_new(m, "content", json_null());
    }
    if (job->reasoning.size)
        json_object_set_new(m, "reasoning_content", json_stringn(job->reasoning.data, job->reasoning.size));
    return m;
}

/* Ends an answer of a stream with its last choice, which is taken over, and with the last answer the stream. */
static void end_stream(struct st_job *job, json_t *choice)
{
    struct st_job *head = job->head;
    chunk(job, choice, "timings", st_job_timings(job));
    if (!is_last(job))
        return;
    if (head->x && head->call.include_usage)
        chunk(head, NULL, "usage", usage(head));
    st_job_write(head, "data: [DONE]\n\n", 14);
    st_job_end_stream(head);
}

/* All answers to a request. choice makes one; times are those of the only answer, or of each. */
static void whole(struct st_job *head, json_t *(*choice)(struct st_job *job))
{
    bool one = head->call.choices == 1;
    json_t *choices = json_array();
    for (int i = 0; i < head->call.choices; i++) {
        json_t *value = choice(choice_of(head, i));
        if (!one)
            json_object_set_new(value, "timings", st_job_timings(choice_of(head, i)));
        json_array_append_new(choices, value);
    }
    json_t *value = json_pack("{s:s, s:s, s:I, s:s, s:s, s:o, s:o}", "id", head->id, "object",
                              is_chat(head) ? "chat.completion" : "text_completion", "created", (json_int_t)head->created,
                              "model", st_job_model(head), "system_fingerprint", strata_version(), "choices", choices, "usage",
                              usage(head));
    if (one)
        json_object_set_new(value, "timings", st_job_timings(head));
    st_job_reply_json(head, value);
}

static json_t *message_choice(struct st_job *job)
{
    return json_pack("{s:i, s:o, s:o, s:s}", "index", (int)job->index, "message", message(job), "logprobs", take_logprobs(job),
                     "finish_reason", finish_reason(job));
}

static void chat_end(struct st_job *job)
{
    if (job->streaming)
        end_stream(job, delta_choice(job, json_object(), finish_reason(job)));
    else if (is_last(job))
        whole(job->head, message_choice);
}

static void completion_begin(struct st_job *job)
{
    (void)job; /* the first event of this form is the first text */
}

static json_t *text_choice(struct st_job *job, const char *text, size_t size, const char *finish)
{
    return json_pack("{s:i, s:s#, s:o, s:s?}", "index", (int)job->index, "text", text, (int)size, "logprobs", take_logprobs(job),
                     "finish_reason", finish);
}

static void completion_delta(struct st_job *job, const struct st_delta *d)
{
    if (d->kind == ST_DELTA_CONTENT)
        chunk(job, text_choice(job, d->text, d->size, NULL), NULL, NULL);
    else if (d->kind == ST_DELTA_PROMPT)
        progress(job, d);
}

static json_t *whole_text_choice(struct st_job *job)
{
    return text_choice(job, st_buffer_string(&job->content), job->content.size, finish_reason(job));
}

static void completion_end(struct st_job *job)
{
    if (job->streaming)
        end_stream(job, text_choice(job, "", 0, finish_reason(job)));
    else if (is_last(job))
        whole(job->head, whole_text_choice);
}

static void alive(struct st_job *job)
{
    st_job_write(job, ": reading\n\n", 11);
}

static void fail(struct st_job *job, const struct st_api_error *error)
{
    st_job_event(job, NULL, st_error_json(false, error));
}

const struct st_format st_format_chat = {chat_begin, chat_delta, alive, chat_end, fail};
const struct st_format st_format_completion = {completion_begin, completion_delta, alive, completion_end, fail};
