/* Answers in the form of the Anthropic API: a message of blocks, streamed and whole. */
#include <stdlib.h>
#include <string.h>

#include "serve/server.h"

static json_t *usage(const struct st_job *job, size_t reused)
{
    return json_pack("{s:I, s:I, s:I, s:I}", "input_tokens", (json_int_t)(job->count - reused), "output_tokens",
                     (json_int_t)job->generated, "cache_read_input_tokens", (json_int_t)reused,
                     "cache_creation_input_tokens", (json_int_t)0);
}

static const char *stop_reason(const struct st_job *job)
{
    if (job->called_tool && job->end != STRATA_END_LENGTH && job->end != STRATA_END_CONTEXT && !job->timed_out)
        return "tool_use";
    switch (job->end) {
    case STRATA_END_STOP_TOKEN: return "end_turn";
    case STRATA_END_STOP_TEXT: return "stop_sequence";
    case STRATA_END_CONTEXT: return "model_context_window_exceeded";
    case STRATA_END_LENGTH:
    case STRATA_END_CANCELLED: break;
    }
    return "max_tokens";
}

/* The text that ended the answer, or NULL. */
static const char *stop_text(const struct st_job *job)
{
    bool known = job->end == STRATA_END_STOP_TEXT && !job->called_tool && job->stop_index >= 0 &&
                 (size_t)job->stop_index < job->call.stop_count;
    return known ? job->call.stop[job->stop_index] : NULL;
}

static void begin(struct st_job *job)
{
    json_t *message =
        json_pack("{s:s, s:s, s:s, s:s, s:[], s:n, s:n, s:o}", "id", job->id, "type", "message", "role", "assistant",
                  "model", st_job_model(job), "content", "stop_reason", "stop_sequence", "usage", usage(job, 0));
    st_job_event(job, "message_start", json_pack("{s:s, s:o}", "type", "message_start", "message", message));
    st_job_event(job, "ping", json_pack("{s:s}", "type", "ping"));
}

static void block_delta(struct st_job *job, json_t *delta)
{
    st_job_event(job, "content_block_delta",
                 json_pack("{s:s, s:I, s:o}", "type", "content_block_delta", "index", (json_int_t)job->blocks - 1,
                           "delta", delta));
}

static void close_block(struct st_job *job)
{
    if (job->open == ST_BLOCK_NONE)
        return;
    /* A client keeps thinking only with a signature; nothing has to be proven to this server later. */
    if (job->open == ST_BLOCK_REASONING)
        block_delta(job, json_pack("{s:s, s:s}", "type", "signature_delta", "signature", "local"));
    job->open = ST_BLOCK_NONE;
    st_job_event(job, "content_block_stop",
                 json_pack("{s:s, s:I}", "type", "content_block_stop", "index", (json_int_t)job->blocks - 1));
}

/* block is taken over. */
static void open_block(struct st_job *job, enum st_block kind, json_t *block)
{
    close_block(job);
    job->open = kind;
    job->blocks++;
    st_job_event(job, "content_block_start",
                 json_pack("{s:s, s:I, s:o}", "type", "content_block_start", "index", (json_int_t)job->blocks - 1,
                           "content_block", block));
}

static void delta(struct st_job *job, const struct st_delta *d)
{
    const struct st_tool_call *tool = job->tool_count ? &job->tools[job->tool_count - 1] : NULL;
    switch (d->kind) {
    case ST_DELTA_REASONING:
        if (job->open != ST_BLOCK_REASONING)
            open_block(job, ST_BLOCK_REASONING,
                       json_pack("{s:s, s:s, s:s}", "type", "thinking", "thinking", "", "signature", ""));
        block_delta(job, json_pack("{s:s, s:s#}", "type", "thinking_delta", "thinking", d->text, (int)d->size));
        break;
    case ST_DELTA_CONTENT:
        if (job->open != ST_BLOCK_CONTENT)
            open_block(job, ST_BLOCK_CONTENT, json_pack("{s:s, s:s}", "type", "text", "text", ""));
        block_delta(job, json_pack("{s:s, s:s#}", "type", "text_delta", "text", d->text, (int)d->size));
        break;
    case ST_DELTA_TOOL_BEGIN:
        open_block(job, ST_BLOCK_TOOL,
                   json_pack("{s:s, s:s, s:s, s:{}}", "type", "tool_use", "id", tool->id, "name",
                             st_buffer_string(&tool->name), "input"));
        break;
    case ST_DELTA_TOOL_ARGUMENTS:
        block_delta(job, json_pack("{s:s, s:s#}", "type", "input_json_delta", "partial_json", d->text, (int)d->size));
        break;
    case ST_DELTA_TOOL_END: close_block(job); break;
    default: break;
    }
}

/* Arguments as an object; what a model wrote may be no object at all. */
static json_t *tool_input(const struct st_tool_call *tool)
{
    struct st_api_error unused;
    json_t *input = st_body_parse(st_buffer_string(&tool->arguments), tool->arguments.size, &unused);
    return input ? input : json_object();
}

static json_t *content(const struct st_job *job)
{
    json_t *list = json_array();
    if (job->reasoning.size)
        json_array_append_new(list, json_pack("{s:s, s:s#, s:s}", "type", "thinking", "thinking", job->reasoning.data,
                                              (int)job->reasoning.size, "signature", "local"));
    if (job->content.size || (!job->tool_count && !job->reasoning.size))
        json_array_append_new(list, json_pack("{s:s, s:s#}", "type", "text", "text", st_buffer_string(&job->content),
                                              (int)job->content.size));
    for (size_t i = 0; i < job->tool_count; i++)
        json_array_append_new(list,
                              json_pack("{s:s, s:s, s:s, s:o}", "type", "tool_use", "id", job->tools[i].id, "name",
                                        st_buffer_string(&job->tools[i].name), "input", tool_input(&job->tools[i])));
    return list;
}

static void end(struct st_job *job)
{
    size_t reused = job->run.stats.reused_tokens <= job->count ? job->run.stats.reused_tokens : job->count;
    if (!job->streaming) {
        st_job_reply_json(job, json_pack("{s:s, s:s, s:s, s:s, s:o, s:s, s:s?, s:o}", "id", job->id, "type", "message",
                                         "role", "assistant", "model", st_job_model(job), "content", content(job),
                                         "stop_reason", stop_reason(job), "stop_sequence", stop_text(job), "usage",
                                         usage(job, reused)));
        return;
    }
    close_block(job);
    st_job_event(job, "message_delta",
                 json_pack("{s:s, s:{s:s, s:s?}, s:o}", "type", "message_delta", "delta", "stop_reason",
                           stop_reason(job), "stop_sequence", stop_text(job), "usage", usage(job, reused)));
    st_job_event(job, "message_stop", json_pack("{s:s}", "type", "message_stop"));
    st_job_end_stream(job);
}

static void alive(struct st_job *job)
{
    st_job_event(job, "ping", json_pack("{s:s}", "type", "ping"));
}

static void fail(struct st_job *job, const struct st_api_error *error)
{
    st_job_event(job, "error", st_error_json(true, error));
}

const struct st_format st_format_messages = {begin, delta, alive, end, fail};
