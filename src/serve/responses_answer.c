/* Answers in the form of the OpenAI Responses API: a response of output items, streamed with named events and whole. An item is a
 * stretch of the answer: thoughts, text, or a call of a function. */
#include <stdlib.h>
#include <string.h>

#include "serve/server.h"

/* Sends an event of a stream with what value has. value is taken over. */
static void emit(struct st_job *job, const char *name, json_t *value)
{
    json_t *event = json_pack("{s:s, s:I}", "type", name, "sequence_number", (json_int_t)job->sequence++);
    json_object_update(event, value);
    json_decref(value);
    st_job_event(job, name, event);
}

static json_t *usage(const struct st_job *job)
{
    return json_pack("{s:I, s:{s:I, s:i}, s:I, s:{s:I}, s:I}", "input_tokens", (json_int_t)job->count, "input_tokens_details",
                     "cached_tokens", (json_int_t)job->run.stats.reused_tokens, "cache_write_tokens", 0, "output_tokens",
                     (json_int_t)job->generated, "output_tokens_details", "reasoning_tokens", (json_int_t)job->reasoning_tokens,
                     "total_tokens", (json_int_t)(job->count + job->generated));
}

/* The response as it is now, without the item that is under way; the caller adds what its status brings along. */
static json_t *response(const struct st_job *job, const char *status)
{
    json_t *value = json_pack("{s:s, s:s, s:I, s:s, s:n, s:n, s:s, s:o, s:n}", "id", job->id, "object", "response", "created_at",
                              (json_int_t)job->created, "status", status, "error", "incomplete_details", "model", st_job_model(job),
                              "output", job->items ? json_copy(job->items) : json_array(), "usage");
    json_object_update_missing(value, job->call.echo);
    return value;
}

static void begin(struct st_job *job)
{
    emit(job, "response.created", json_pack("{s:o}", "response", response(job, "in_progress")));
    emit(job, "response.in_progress", json_pack("{s:o}", "response", response(job, "in_progress")));
}

/* ---- items ---- */

static const char *item_id(const struct st_job *job, char *out, size_t size)
{
    static const char *const prefixes[] = {[ST_BLOCK_REASONING] = "rs", [ST_BLOCK_CONTENT] = "msg", [ST_BLOCK_TOOL] = "fc"};
    snprintf(out, size, "%s_%s_%zu", prefixes[job->open], job->id + strlen("resp_"), job->blocks - 1);
    return out;
}

/* Text of the open item so far. */
static const char *item_text(const struct st_job *job, size_t *size)
{
    const struct st_buffer *b = job->open == ST_BLOCK_REASONING ? &job->reasoning
                                : job->open == ST_BLOCK_CONTENT ? &job->content
                                                                : &job->tools[job->tool_count - 1].arguments;
    *size = b->size - job->item_start;
    return st_buffer_string(b) + job->item_start;
}

/* The one part of the open item, thoughts or text. */
static json_t *part(const struct st_job *job, const char *text, size_t size)
{
    if (job->open == ST_BLOCK_REASONING)
        return json_pack("{s:s, s:s#}", "type", "reasoning_text", "text", text, (int)size);
    return json_pack("{s:s, s:s#, s:[], s:[]}", "type", "output_text", "text", text, (int)size, "annotations", "logprobs");
}

static json_t *thoughts_to_carry(const struct st_job *job, const char *text, size_t size)
{
    if (!job->call.carries_thoughts)
        return json_null();
    return json_sprintf("%s%.*s", ST_THOUGHTS_MARK, (int)size, text);
}

/* The open item; begun: it is new and has no content yet. */
static json_t *item(const struct st_job *job, const char *status, bool begun)
{
    char id[80];
    size_t size;
    const char *text = item_text(job, &size);
    size = begun ? 0 : size;
    json_t *value = json_pack("{s:s, s:s}", "id", item_id(job, id, sizeof id), "status", status);
    json_t *content = begun ? json_array() : json_pack("[o]", job->open == ST_BLOCK_TOOL ? json_null() : part(job, text, size));
    const struct st_tool_call *tool = job->tool_count ? &job->tools[job->tool_count - 1] : NULL;
    switch (job->open) {
    case ST_BLOCK_REASONING:
        json_object_update_new(value, json_pack("{s:s, s:[], s:O, s:o}", "type", "reasoning", "summary", "content", content,
                                                "encrypted_content", thoughts_to_carry(job, text, size)));
        break;
    case ST_BLOCK_CONTENT:
        json_object_update_new(value, json_pack("{s:s, s:s, s:O}", "type", "message", "role", "assistant", "content", content));
        break;
    case ST_BLOCK_TOOL:
        json_object_update_new(value, json_pack("{s:s, s:s, s:s, s:s#}", "type", "function_call", "call_id", tool->id, "name",
                                                st_buffer_string(&tool->name), "arguments", text, (int)size));
        break;
    case ST_BLOCK_NONE: break;
    }
    json_decref(content);
    return value;
}

/* An event about the open item. value is taken over; in_part: it is about the item's part. */
static void item_event(struct st_job *job, const char *name, bool in_part, json_t *value)
{
    char id[80];
    json_object_set_new(value, "output_index", json_integer((json_int_t)job->blocks - 1));
    json_object_set_new(value, "item_id", json_string(item_id(job, id, sizeof id)));
    if (in_part)
        json_object_set_new(value, "content_index", json_integer(0));
    emit(job, name, value);
}

static void close_item(struct st_job *job, bool complete)
{
    if (job->open == ST_BLOCK_NONE)
        return;
    size_t size;
    const char *text = item_text(job, &size);
    json_t *done = item(job, complete ? "completed" : "incomplete", false);
    if (job->streaming) {
        bool tool = job->open == ST_BLOCK_TOOL, thoughts = job->open == ST_BLOCK_REASONING;
        if (tool)
            item_event(job, "response.function_call_arguments.done", false,
                       json_pack("{s:s#, s:O}", "arguments", text, (int)size, "name", json_object_get(done, "name")));
        else if (thoughts)
            item_event(job, "response.reasoning_text.done", true, json_pack("{s:s#}", "text", text, (int)size));
        else
            item_event(job, "response.output_text.done", true, json_pack("{s:s#, s:[]}", "text", text, (int)size, "logprobs"));
        if (!tool)
            item_event(job, "response.content_part.done", true, json_pack("{s:o}", "part", part(job, text, size)));
        emit(job, "response.output_item.done",
             json_pack("{s:I, s:O}", "output_index", (json_int_t)job->blocks - 1, "item", done));
    }
    if (!job->items)
        job->items = json_array();
    json_array_append_new(job->items, done);
    job->open = ST_BLOCK_NONE;
}

/* start: where its text begins. */
static void open_item(struct st_job *job, enum st_block kind, size_t start)
{
    close_item(job, true);
    job->open = kind;
    job->item_start = start;
    job->blocks++;
    if (!job->streaming)
        return;
    emit(job, "response.output_item.added",
         json_pack("{s:I, s:o}", "output_index", (json_int_t)job->blocks - 1, "item", item(job, "in_progress", true)));
    if (kind != ST_BLOCK_TOOL)
        item_event(job, "response.content_part.added", true, json_pack("{s:o}", "part", part(job, "", 0)));
}

static void delta(struct st_job *job, const struct st_delta *d)
{
    json_t *text = NULL;
    if (d->kind == ST_DELTA_REASONING && job->open != ST_BLOCK_REASONING)
        open_item(job, ST_BLOCK_REASONING, job->reasoning.size - d->size);
    else if (d->kind == ST_DELTA_CONTENT && job->open != ST_BLOCK_CONTENT)
        open_item(job, ST_BLOCK_CONTENT, job->content.size - d->size);
    else if (d->kind == ST_DELTA_TOOL_BEGIN)
        open_item(job, ST_BLOCK_TOOL, 0);
    else if (d->kind == ST_DELTA_TOOL_END)
        close_item(job, d->a != 0);
    bool piece = d->kind == ST_DELTA_REASONING || d->kind == ST_DELTA_CONTENT || d->kind == ST_DELTA_TOOL_ARGUMENTS;
    if (!piece || !job->streaming)
        return;
    text = json_pack("{s:s#}", "delta", d->text, (int)d->size);
    if (d->kind == ST_DELTA_TOOL_ARGUMENTS) {
        item_event(job, "response.function_call_arguments.delta", false, text);
    } else if (d->kind == ST_DELTA_REASONING) {
        item_event(job, "response.reasoning_text.delta", true, text);
    } else {
        json_object_set_new(text, "logprobs", json_array());
        item_event(job, "response.output_text.delta", true, text);
    }
}

/* ---- the end ---- */

/* Whether the model ended the answer, and no limit. */
static bool complete(const struct st_job *job)
{
    if (job->timed_out)
        return false;
    switch (job->end) {
    case STRATA_END_STOP_TOKEN:
    case STRATA_END_STOP_TEXT: return true;
    case STRATA_END_CANCELLED: return job->called_tool; /* behind the one call that was allowed */
    case STRATA_END_LENGTH:
    case STRATA_END_CONTEXT: break;
    }
    return false;
}

static void end(struct st_job *job)
{
    bool whole = complete(job);
    if (!job->blocks)
        open_item(job, ST_BLOCK_CONTENT, 0);
    close_item(job, whole);
    json_t *value = response(job, whole ? "completed" : "incomplete");
    json_object_set_new(value, "usage", usage(job));
    if (whole)
        json_object_set_new(value, "completed_at", json_integer((json_int_t)time(NULL)));
    else
        json_object_set_new(value, "incomplete_details", json_pack("{s:s}", "reason", "max_output_tokens"));
    if (!job->streaming) {
        st_job_reply_json(job, value);
        return;
    }
    emit(job, whole ? "response.completed" : "response.incomplete", json_pack("{s:o}", "response", value));
    st_job_end_stream(job);
}

static void alive(struct st_job *job)
{
    st_job_write(job, ": reading\n\n", 11);
}

static void fail(struct st_job *job, const struct st_api_error *error)
{
    json_t *value = response(job, "failed");
    json_object_set_new(value, "error",
                        json_pack("{s:s, s:s}", "code", error->status >= 500 ? "server_error" : "invalid_prompt", "message", error->message));
    emit(job, "response.failed", json_pack("{s:o}", "response", value));
}

const struct st_format st_format_responses = {begin, delta, alive, end, fail, true};
