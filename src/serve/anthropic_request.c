/* Bodies of the Anthropic API, turned into the same messages that the OpenAI reader makes. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/buffer.h"
#include "serve/call.h"

/* Adds one text block with a line break before it if there was one already. */
static void add_text(struct st_buffer *to, const json_t *text)
{
    st_buffer_add(to, "\n", to->size ? 1 : 0);
    st_buffer_add(to, json_string_value(text), json_string_length(text));
}

/* A string member of a block that must be there. Borrowed; NULL with the error filled. */
static const json_t *required_string(const json_t *block, const char *at, const char *name, struct st_api_error *error)
{
    const json_t *value = json_object_get(block, name);
    if (json_is_string(value))
        return value;
    char where[ST_PATH];
    st_body_path(where, sizeof where, at, name);
    st_refuse(error, 400, NULL, where, value ? "%s: expected a string, got %s" : "%s: Field required", where,
              st_body_type_name(value));
    return NULL;
}

static bool refuse_block(const char *at, const char *type, struct st_api_error *error)
{
    if (strcmp(type, "image") == 0)
        return st_refuse(error, 400, NULL, at, "%s: images are not supported by this server", at);
    char shown[48];
    st_printable(shown, sizeof shown, type, strlen(type));
    return st_refuse(error, 400, NULL, at, "%s: blocks of type '%s' are not supported", at, shown);
}

static const char *block_type(const json_t *block, const char *at, struct st_api_error *error)
{
    if (!json_is_object(block)) {
        st_refuse(error, 400, NULL, at, "%s: expected an object, got %s", at, st_body_type_name(block));
        return NULL;
    }
    return json_string_value(required_string(block, at, "type", error));
}

/* A string, or text blocks only (system, tool results). */
static bool read_texts(const json_t *content, const char *path, struct st_buffer *out, struct st_api_error *error)
{
    if (!content || json_is_null(content))
        return true;
    if (json_is_string(content)) {
        add_text(out, content);
        return true;
    }
    if (!json_is_array(content))
        return st_refuse(error, 400, NULL, path, "%s: expected a string or an array of blocks, got %s", path,
                         st_body_type_name(content));
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *block = json_array_get(content, i);
        char at[ST_PATH];
        snprintf(at, sizeof at, "%s.%zu", path, i);
        const char *type = block_type(block, at, error);
        if (!type)
            return false;
        if (strcmp(type, "text") != 0)
            return refuse_block(at, type, error);
        const json_t *text = required_string(block, at, "text", error);
        if (!text)
            return false;
        add_text(out, text);
    }
    return true;
}

/* Appends what has been collected as a message and clears it. */
static bool flush(struct st_call *call, const char *role, struct st_buffer *text, struct st_api_error *error)
{
    if (text->failed || !st_call_add_message(call, role, st_buffer_string(text)))
        return st_call_out_of_memory(error);
    st_buffer_clear(text);
    return true;
}

static bool read_tool_result(struct st_call *call, const json_t *block, const char *at, struct st_buffer *text,
                             struct st_api_error *error)
{
    char where[ST_PATH];
    st_body_path(where, sizeof where, at, "content");
    const json_t *id = required_string(block, at, "tool_use_id", error);
    /* Text that stood before the result is the user's and keeps its place. */
    if (!id || (text->size && !flush(call, "user", text, error)))
        return false;
    if (!read_texts(json_object_get(block, "content"), where, text, error))
        return false;
    json_t *message = text->failed ? NULL : st_call_add_message(call, "tool", st_buffer_string(text));
    st_buffer_clear(text);
    if (!message || json_object_set_new(message, "tool_call_id", json_string(json_string_value(id))) != 0)
        return st_call_out_of_memory(error);
    return true;
}

static bool read_user_blocks(struct st_call *call, const json_t *content, const char *path, struct st_buffer *text,
                             struct st_api_error *error)
{
    bool result = false;
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *block = json_array_get(content, i);
        char at[ST_PATH];
        snprintf(at, sizeof at, "%s.content.%zu", path, i);
        const char *type = block_type(block, at, error);
        if (!type)
            return false;
        if (strcmp(type, "tool_result") == 0) {
            if (!read_tool_result(call, block, at, text, error))
                return false;
            result = true;
        } else if (strcmp(type, "text") == 0) {
            const json_t *piece = required_string(block, at, "text", error);
            if (!piece)
                return false;
            add_text(text, piece);
        } else {
            return refuse_block(at, type, error);
        }
    }
    return (text->size == 0 && result) || flush(call, "user", text, error);
}

static bool add_tool_use(json_t *calls, const json_t *block, const char *at, struct st_api_error *error)
{
    const json_t *id = required_string(block, at, "id", error);
    const json_t *name = id ? required_string(block, at, "name", error) : NULL;
    json_t *input = NULL;
    if (!name || !st_body_container(block, at, "input", JSON_OBJECT, &input, error))
        return false;
    json_t *arguments = st_call_arguments(input);
    json_t *call = json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", json_string_value(id), "type", "function", "function",
                             "name", json_string_value(name), "arguments", arguments);
    return json_array_append_new(calls, call) == 0 || st_call_out_of_memory(error);
}

static bool read_assistant_blocks(struct st_call *call, const json_t *content, const char *path, struct st_buffer *text,
                                  struct st_api_error *error)
{
    struct st_buffer thinking = {0};
    json_t *calls = json_array();
    bool good = calls || st_call_out_of_memory(error);
    for (size_t i = 0; good && i < json_array_size(content); i++) {
        const json_t *block = json_array_get(content, i), *piece;
        char at[ST_PATH];
        snprintf(at, sizeof at, "%s.content.%zu", path, i);
        const char *type = block_type(block, at, error);
        if (!type) {
            good = false;
        } else if (strcmp(type, "text") == 0) {
            piece = required_string(block, at, "text", error);
            good = piece != NULL;
            if (good)
                add_text(text, piece);
        } else if (strcmp(type, "thinking") == 0) {
            piece = required_string(block, at, "thinking", error);
            good = piece != NULL;
            if (good)
                add_text(&thinking, piece);
        } else if (strcmp(type, "redacted_thinking") == 0) {
            continue;
        } else if (strcmp(type, "tool_use") == 0) {
            good = add_tool_use(calls, block, at, error);
        } else {
            good = refuse_block(at, type, error);
        }
    }
    json_t *message = good && !text->failed ? st_call_add_message(call, "assistant", st_buffer_string(text)) : NULL;
    if (good && (!message || thinking.failed))
        good = st_call_out_of_memory(error);
    if (good && thinking.size)
        good = json_object_set_new(message, "reasoning_content", json_string(st_buffer_string(&thinking))) == 0 ||
               st_call_out_of_memory(error);
    if (good && json_array_size(calls))
        good = json_object_set(message, "tool_calls", calls) == 0 || st_call_out_of_memory(error);
    st_buffer_free(&thinking);
    json_decref(calls);
    return good;
}

static bool read_message(struct st_call *call, const json_t *message, size_t index, struct st_api_error *error)
{
    char path[40], where[ST_PATH];
    snprintf(path, sizeof path, "messages.%zu", index);
    if (!json_is_object(message))
        return st_refuse(error, 400, NULL, path, "%s: expected an object, got %s", path, st_body_type_name(message));
    const json_t *role = required_string(message, path, "role", error);
    if (!role)
        return false;
    const char *name = json_string_value(role);
    bool user = strcmp(name, "user") == 0, assistant = strcmp(name, "assistant") == 0,
         system = strcmp(name, "system") == 0;
    st_body_path(where, sizeof where, path, "role");
    if (!user && !assistant && !system)
        return st_refuse(error, 400, NULL, where, "%s: expected 'user' or 'assistant'", where);
    const json_t *content = json_object_get(message, "content");
    st_body_path(where, sizeof where, path, "content");
    struct st_buffer text = {0};
    bool good;
    if (!json_is_array(content) || system)
        good = read_texts(content, where, &text, error) && flush(call, name, &text, error);
    else if (user)
        good = read_user_blocks(call, content, path, &text, error);
    else
        good = read_assistant_blocks(call, content, path, &text, error);
    st_buffer_free(&text);
    return good;
}

static bool read_tools(struct st_call *call, const json_t *body, struct st_api_error *error)
{
    json_t *tools = NULL, *choice = NULL;
    const char *kind = NULL, *only = NULL;
    bool single = false;
    if (!st_body_container(body, "", "tools", JSON_ARRAY, &tools, error) ||
        !st_body_container(body, "", "tool_choice", JSON_OBJECT, &choice, error) ||
        (choice && (!st_body_string(choice, "tool_choice", "type", &kind, error) ||
                    !st_body_bool(choice, "tool_choice", "disable_parallel_tool_use", &single, error))))
        return false;
    bool none = kind && strcmp(kind, "none") == 0, one = kind && strcmp(kind, "tool") == 0;
    bool demanded = one || (kind && strcmp(kind, "any") == 0);
    if (kind && !none && !demanded && strcmp(kind, "auto") != 0)
        return st_refuse(error, 400, NULL, "tool_choice.type", "tool_choice.type: expected 'auto', 'any', 'tool' or 'none'");
    if (one && !(only = json_string_value(required_string(choice, "tool_choice", "name", error))))
        return false;
    call->parallel_tools = !single;
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        char path[40];
        snprintf(path, sizeof path, "tools.%zu", i);
        const char *type = NULL, *description = NULL;
        json_t *schema = NULL;
        if (!json_is_object(tool))
            return st_refuse(error, 400, NULL, path, "%s: expected an object, got %s", path, st_body_type_name(tool));
        if (!st_body_string(tool, path, "type", &type, error))
            return false;
        if (type && strcmp(type, "custom") != 0)
            return st_refuse(error, 400, NULL, path, "%s: tools that run on the server are not supported", path);
        const json_t *name = required_string(tool, path, "name", error);
        if (!name || !st_body_string(tool, path, "description", &description, error) ||
            !st_body_container(tool, path, "input_schema", JSON_OBJECT, &schema, error))
            return false;
        if (!none && !st_call_add_tool(call, json_string_value(name), description, schema))
            return st_call_out_of_memory(error);
        call->tools = !none;
    }
    return !demanded || st_call_demand_tools(call, only, "tool_choice", error);
}

static bool read_thinking(struct st_call *call, const json_t *body, struct st_api_error *error)
{
    json_t *thinking = NULL;
    if (!st_body_container(body, "", "thinking", JSON_OBJECT, &thinking, error))
        return false;
    bool enabled = false;
    if (thinking) {
        const json_t *type = required_string(thinking, "thinking", "type", error);
        int64_t budget;
        if (!type || !st_body_integer(thinking, "thinking", "budget_tokens", 1, INT_MAX, &budget, error))
            return false;
        enabled = strcmp(json_string_value(type), "enabled") == 0 || strcmp(json_string_value(type), "adaptive") == 0;
        if (!enabled && strcmp(json_string_value(type), "disabled") != 0)
            return st_refuse(error, 400, NULL, "thinking.type",
                             "thinking.type: expected 'enabled', 'adaptive' or 'disabled'");
    }
    return json_object_set_new(call->options, "enable_thinking", json_boolean(enabled)) == 0 ||
           st_call_out_of_memory(error);
}

/* In this API an answer that the client began is its last message. */
static bool take_prefix(struct st_call *call, struct st_api_error *error)
{
    size_t last = json_array_size(call->messages) - 1;
    const json_t *message = json_array_get(call->messages, last);
    const char *role = json_string_value(json_object_get(message, "role"));
    if (!role || strcmp(role, "assistant") != 0 || json_object_get(message, "tool_calls"))
        return true;
    call->prefix = strdup(json_string_value(json_object_get(message, "content")));
    if (!call->prefix || json_array_remove(call->messages, last) != 0 ||
        json_object_set_new(call->options, "enable_thinking", json_false()) != 0)
        return st_call_out_of_memory(error);
    return true;
}

bool st_anthropic_read_messages(struct st_call *call, const json_t *body, struct st_api_error *error)
{
    int64_t max_tokens = 0;
    struct st_buffer system = {0};
    if (!st_body_bool(body, "", "stream", &call->stream, error) ||
        !st_body_integer(body, "", "max_tokens", 1, INT_MAX, &max_tokens, error) ||
        !st_call_read_sampling(call, body, error) || !st_call_read_stop(call, body, "stop_sequences", error))
        return false;
    if (max_tokens == 0 && call->kind == ST_CALL_MESSAGES)
        return st_refuse(error, 400, NULL, "max_tokens", "max_tokens: Field required");
    call->max_tokens = max_tokens;
    bool good = read_texts(json_object_get(body, "system"), "system", &system, error) &&
                (system.size == 0 || flush(call, "system", &system, error));
    st_buffer_free(&system);
    if (!good)
        return false;
    const json_t *messages = json_object_get(body, "messages");
    if (!messages)
        return st_refuse(error, 400, NULL, "messages", "messages: Field required");
    if (!json_is_array(messages))
        return st_refuse(error, 400, NULL, "messages", "messages: expected an array, got %s",
                         st_body_type_name(messages));
    if (json_array_size(messages) == 0)
        return st_refuse(error, 400, NULL, "messages", "messages: at least one message is required");
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (!read_message(call, json_array_get(messages, i), i, error))
            return false;
    if (!st_call_join_system(call))
        return st_call_out_of_memory(error);
    return read_tools(call, body, error) && read_thinking(call, body, error) && take_prefix(call, error);
}
