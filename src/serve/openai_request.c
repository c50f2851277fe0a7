/* Bodies of the OpenAI API: chat completions, and what completions and responses share with them. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/buffer.h"
#include "serve/call.h"

/* The text of one part of a content. Borrowed; NULL with the error filled. */
static const json_t *part_text(const json_t *part, const char *at, struct st_api_error *error)
{
    if (json_is_string(part))
        return part;
    const char *type = json_string_value(json_object_get(part, "type"));
    char where[ST_PATH];
    if (!type) {
        st_body_path(where, sizeof where, at, "type");
        st_refuse(error, 400, NULL, where, "%s: expected the type of a part", where);
        return NULL;
    }
    static const struct {
        const char *type, *member;
    } texts[] = {{"text", "text"}, {"input_text", "text"}, {"output_text", "text"}, {"refusal", "refusal"}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (strcmp(type, texts[i].type) != 0)
            continue;
        const json_t *piece = json_object_get(part, texts[i].member);
        st_body_path(where, sizeof where, at, texts[i].member);
        if (!json_is_string(piece)) {
            st_refuse(error, 400, NULL, where, "%s: expected a string, got %s", where, st_body_type_name(piece));
            return NULL;
        }
        return piece;
    }
    if (strstr(type, "image"))
        st_refuse(error, 400, "unsupported_content", at, "%s: images are not supported by this server", at);
    else
        st_refuse(error, 400, "unsupported_content", at, "%s: parts of this type are not supported", at);
    return NULL;
}

json_t *st_openai_text(const json_t *content, const char *where, struct st_api_error *error)
{
    if (json_is_string(content))
        return json_incref((json_t *)content);
    if (!json_is_array(content)) {
        st_refuse(error, 400, NULL, where, "%s: expected a string or an array of parts, got %s", where,
                  st_body_type_name(content));
        return NULL;
    }
    struct st_buffer text = {0};
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *part = json_array_get(content, i);
        char at[ST_PATH];
        snprintf(at, sizeof at, "%.*s[%zu]", ST_PATH - 24, where, i);
        const json_t *piece = part_text(part, at, error);
        if (!piece) {
            st_buffer_free(&text);
            return NULL;
        }
        st_buffer_add(&text, "\n", i ? 1 : 0);
        st_buffer_add(&text, json_string_value(piece), json_string_length(piece));
    }
    json_t *joined = text.failed ? NULL : json_stringn(st_buffer_string(&text), text.size);
    st_buffer_free(&text);
    if (!joined)
        st_call_out_of_memory(error);
    return joined;
}

static bool read_tool_calls(json_t *message, const json_t *calls, const char *path, struct st_api_error *error)
{
    json_t *list = json_array();
    if (!list || json_object_set_new(message, "tool_calls", list) != 0)
        return st_call_out_of_memory(error);
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i), *function = json_object_get(call, "function");
        char at[ST_PATH];
        snprintf(at, sizeof at, "%s.tool_calls[%zu]", path, i);
        const char *name = NULL, *id = NULL;
        if (!json_is_object(call) || !json_is_object(function))
            return st_refuse(error, 400, NULL, at, "%s: expected an object with a function", at);
        if (!st_body_string(call, at, "id", &id, error) || !st_body_string(function, at, "name", &name, error))
            return false;
        if (!name)
            return st_refuse(error, 400, NULL, at, "%s.function.name: it is missing", at);
        json_t *arguments = st_call_arguments(json_object_get(function, "arguments"));
        json_t *entry =
            json_pack("{s:s, s:{s:s, s:o}}", "type", "function", "function", "name", name, "arguments", arguments);
        if (!entry || (id && json_object_set_new(entry, "id", json_string(id)) != 0) ||
            json_array_append_new(list, entry) != 0)
            return st_call_out_of_memory(error);
    }
    return true;
}

/* Members of a message that are passed on when they are strings. */
static bool copy_string(json_t *to, const char *to_name, const json_t *from, const char *name, const char *path,
                        struct st_api_error *error)
{
    const char *text = NULL;
    if (!st_body_string(from, path, name, &text, error))
        return false;
    if (text && json_object_set_new(to, to_name, json_string(text)) != 0)
        return st_call_out_of_memory(error);
    return true;
}

/* An answer of the model that called tools or only thought has no content. */
static bool says_otherwise(const json_t *message)
{
    return json_array_size(json_object_get(message, "tool_calls")) > 0 ||
           json_is_string(json_object_get(message, "reasoning_content")) || json_is_string(json_object_get(message, "reasoning"));
}

static bool read_message(struct st_call *call, const json_t *message, size_t index, struct st_api_error *error)
{
    char path[40];
    snprintf(path, sizeof path, "messages[%zu]", index);
    if (!json_is_object(message))
        return st_refuse(error, 400, NULL, path, "%s: expected an object, got %s", path, st_body_type_name(message));
    const char *role = NULL;
    if (!st_body_string(message, path, "role", &role, error))
        return false;
    static const struct {
        const char *name, *as;
    } roles[] = {{"system", "system"},       {"developer", "system"}, {"user", "user"},
                 {"assistant", "assistant"}, {"tool", "tool"},        {"function", "tool"}};
    const char *as = NULL;
    for (size_t i = 0; role && i < sizeof roles / sizeof *roles; i++)
        if (strcmp(role, roles[i].name) == 0)
            as = roles[i].as;
    if (!as) {
        char where[ST_PATH];
        st_body_path(where, sizeof where, path, "role");
        return st_refuse(error, 400, NULL, where, "%s: expected system, developer, user, assistant or tool", where);
    }
    const json_t *given = json_object_get(message, "content");
    bool none = (!given || json_is_null(given)) && strcmp(as, "assistant") == 0 && says_otherwise(message);
    char where[ST_PATH];
    st_body_path(where, sizeof where, path, "content");
    json_t *content = none ? json_string("") : st_openai_text(given, where, error);
    if (!content)
        return false;
    json_t *out = json_pack("{s:s, s:o}", "role", as, "content", content);
    if (json_array_append_new(call->messages, out) != 0)
        return st_call_out_of_memory(error);
    if (strcmp(as, "tool") == 0)
        return copy_string(out, "tool_call_id", message, "tool_call_id", path, error) &&
               copy_string(out, "name", message, "name", path, error);
    if (strcmp(as, "assistant") != 0)
        return true;
    json_t *calls = NULL;
    if (!copy_string(out, "reasoning_content", message, "reasoning", path, error) ||
        !copy_string(out, "reasoning_content", message, "reasoning_content", path, error) ||
        !st_body_container(message, path, "tool_calls", JSON_ARRAY, &calls, error))
        return false;
    return json_array_size(calls) == 0 || read_tool_calls(out, calls, path, error);
}

static bool read_messages(struct st_call *call, const json_t *body, struct st_api_error *error)
{
    const json_t *messages = json_object_get(body, "messages");
    if (!json_is_array(messages))
        return st_refuse(error, 400, NULL, "messages", "messages: expected an array, got %s",
                         st_body_type_name(messages));
    if (json_array_size(messages) == 0)
        return st_refuse(error, 400, NULL, "messages", "messages: it is empty");
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (!read_message(call, json_array_get(messages, i), i, error))
            return false;
    return st_call_join_system(call) || st_call_out_of_memory(error);
}

/* What tool_choice says: none, auto (the default), required, or a function. */
struct choice {
    bool wanted, demanded;
    const char *name; /* of the one that must be called, or NULL */
};

static bool read_choice(const json_t *body, struct choice *out, struct st_api_error *error)
{
    const json_t *choice = json_object_get(body, "tool_choice");
    const char *word = json_string_value(choice), *type = json_string_value(json_object_get(choice, "type")),
               *name = json_string_value(json_object_get(json_object_get(choice, "function"), "name"));
    *out = (struct choice){.wanted = !word || strcmp(word, "none") != 0};
    if (!choice || json_is_null(choice) || (word && (strcmp(word, "auto") == 0 || strcmp(word, "none") == 0)))
        return true;
    out->demanded = true;
    if (word && strcmp(word, "required") == 0)
        return true;
    out->name = name;
    if (type && strcmp(type, "function") == 0 && name)
        return true;
    return st_refuse(error, 400, "unsupported_value", "tool_choice",
                     "tool_choice: expected \"auto\", \"none\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": ...}}");
}

static bool read_tools(struct st_call *call, const json_t *body, struct st_api_error *error)
{
    json_t *tools = NULL;
    struct choice choice;
    if (!st_body_container(body, "", "tools", JSON_ARRAY, &tools, error) || !read_choice(body, &choice, error) ||
        !st_body_bool(body, "", "parallel_tool_calls", &call->parallel_tools, error))
        return false;
    const json_t *old = json_object_get(body, "functions");
    if (json_array_size(old) > 0)
        return st_refuse(error, 400, NULL, "functions", "functions: not supported, send them as tools");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i), *function = json_object_get(tool, "function");
        char path[40];
        snprintf(path, sizeof path, "tools[%zu]", i);
        const char *type = NULL, *name = NULL, *description = NULL;
        json_t *schema = NULL;
        if (!json_is_object(tool))
            return st_refuse(error, 400, NULL, path, "%s: expected an object, got %s", path, st_body_type_name(tool));
        if (!st_body_string(tool, path, "type", &type, error))
            return false;
        if (!json_is_object(function) || (type && strcmp(type, "function") != 0))
            return st_refuse(error, 400, NULL, path, "%s: only tools of type \"function\" are supported", path);
        snprintf(path, sizeof path, "tools[%zu].function", i);
        if (!st_body_string(function, path, "name", &name, error) ||
            !st_body_string(function, path, "description", &description, error) ||
            !st_body_container(function, path, "parameters", JSON_OBJECT, &schema, error))
            return false;
        if (!name || !*name)
            return st_refuse(error, 400, NULL, path, "%s.name: it is missing", path);
        if (choice.wanted && !st_call_add_tool(call, name, description, schema))
            return st_call_out_of_memory(error);
        call->tools = choice.wanted;
    }
    return !choice.demanded || st_call_demand_tools(call, choice.name, "tool_choice", error);
}

bool st_openai_read_effort(struct st_call *call, const char *effort, const char *param, struct st_api_error *error)
{
    static const char *const known[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    size_t i = 0;
    if (!effort)
        return true;
    while (i < sizeof known / sizeof *known && strcmp(effort, known[i]) != 0)
        i++;
    if (i == sizeof known / sizeof *known)
        return st_refuse(error, 400, NULL, param, "%s: expected none, minimal, low, medium, high, xhigh or max", param);
    int failed = i == 0 ? json_object_set_new(call->options, "enable_thinking", json_false())
                        : json_object_set_new(call->options, "reasoning_effort", json_string(effort));
    return !failed || st_call_out_of_memory(error);
}

bool st_openai_read_template(struct st_call *call, const json_t *body, struct st_api_error *error)
{
    json_t *extra = NULL;
    if (!st_body_container(body, "", "chat_template_kwargs", JSON_OBJECT, &extra, error))
        return false;
    const char *key;
    json_t *value;
    json_object_foreach(extra, key, value)
    {
        if (strcmp(key, "messages") == 0 || strcmp(key, "tools") == 0)
            return st_refuse(error, 400, NULL, "chat_template_kwargs",
                             "chat_template_kwargs: \"%s\" cannot be set here", key);
        if (json_object_set(call->options, key, value) != 0)
            return st_call_out_of_memory(error);
    }
    return true;
}

static bool read_thinking(struct st_call *call, const json_t *body, struct st_api_error *error)
{
    const char *effort = NULL;
    return st_body_string(body, "", "reasoning_effort", &effort, error) &&
           st_openai_read_effort(call, effort, "reasoning_effort", error) && st_openai_read_template(call, body, error);
}

/* The last message is the start of the answer. */
static bool take_prefix(struct st_call *call, struct st_api_error *error)
{
    size_t last = json_array_size(call->messages) - 1;
    const json_t *message = json_array_get(call->messages, last);
    const char *role = json_string_value(json_object_get(message, "role"));
    if (!role || strcmp(role, "assistant") != 0)
        return st_refuse(error, 400, NULL, "continue_final_message",
                         "continue_final_message: the last message is not from the assistant");
    call->prefix = strdup(json_string_value(json_object_get(message, "content")));
    if (!call->prefix || json_array_remove(call->messages, last) != 0)
        return st_call_out_of_memory(error);
    return true;
}

static bool take_schema(struct st_call *call, json_t *schema, const char *param)
{
    call->schema = json_incref(schema);
    call->constraint_param = param;
    return true;
}

/* response_format: text, any object, or what a schema accepts. */
static bool read_format(struct st_call *call, const json_t *body, struct st_api_error *error)
{
    json_t *format = NULL, *named = NULL;
    const char *type = NULL;
    if (!st_body_container(body, "", "response_format", JSON_OBJECT, &format, error) ||
        (format && !st_body_string(format, "response_format", "type", &type, error)))
        return false;
    if (!type || strcmp(type, "text") == 0)
        return true;
    if (strcmp(type, "json_object") == 0) {
        json_t *schema = json_object_get(format, "schema");
        if (json_is_object(schema))
            return take_schema(call, schema, "response_format.schema");
        call->schema = json_pack("{s:s}", "type", "object");
        call->constraint_param = "response_format";
        return call->schema || st_call_out_of_memory(error);
    }
    if (strcmp(type, "json_schema") != 0)
        return st_refuse(error, 400, "unsupported_value", "response_format.type",
                         "response_format.type: expected \"text\", \"json_object\" or \"json_schema\"");
    if (!st_body_container(format, "response_format", "json_schema", JSON_OBJECT, &named, error))
        return false;
    json_t *schema = json_object_get(named, "schema");
    if (!json_is_object(schema))
        return st_refuse(error, 400, NULL, "response_format.json_schema.schema",
                         "response_format.json_schema.schema: expected an object, got %s", st_body_type_name(schema));
    return take_schema(call, schema, "response_format.json_schema.schema");
}

/* The members grammar and json_schema, as llama.cpp's server has them. */
static bool read_constraint(struct st_call *call, const json_t *body, struct st_api_error *error)
{
    const char *grammar = NULL;
    json_t *schema = NULL;
    if (!read_format(call, body, error) || !st_body_string(body, "", "grammar", &grammar, error) ||
        !st_body_container(body, "", "json_schema", JSON_OBJECT, &schema, error))
        return false;
    bool given = grammar && *grammar; /* some clients send "" for none */
    if (given + !!schema + !!call->schema > 1)
        return st_refuse(error, 400, NULL, given ? "grammar" : "json_schema",
                         "response_format, json_schema and grammar: only one of them can be given");
    if (schema)
        take_schema(call, schema, "json_schema");
    if (given) {
        call->grammar = strdup(grammar);
        call->constraint_param = "grammar";
    }
    return !given || call->grammar || st_call_out_of_memory(error);
}

bool st_openai_read_chat(struct st_call *call, const json_t *body, struct st_api_error *error)
{
    int64_t n = 1, max_tokens = -1;
    json_t *stream_options = NULL;
    bool generation_prompt = true, continues = false;
    if (!st_body_bool(body, "", "stream", &call->stream, error) ||
        !st_body_container(body, "", "stream_options", JSON_OBJECT, &stream_options, error) ||
        (stream_options &&
         !st_body_bool(stream_options, "stream_options", "include_usage", &call->include_usage, error)) ||
        !st_body_integer(body, "", "n", 1, ST_CHOICES_MAX, &n, error) ||
        !st_body_integer(body, "", "max_tokens", -1, INT_MAX, &max_tokens, error) ||
        !st_body_integer(body, "", "max_completion_tokens", -1, INT_MAX, &max_tokens, error) ||
        !st_call_read_sampling(call, body, error) || !st_call_read_stop(call, body, "stop", error) ||
        !read_constraint(call, body, error))
        return false;
    call->choices = (int)n;
    if (max_tokens == 0)
        return st_refuse(error, 400, NULL, "max_tokens", "max_tokens: it must be at least 1");
    call->max_tokens = max_tokens < 0 ? 0 : max_tokens;
    if (call->kind == ST_CALL_COMPLETION)
        return st_openai_read_completion(call, body, error);
    int64_t top = 0;
    if (!st_body_bool(body, "", "logprobs", &call->logprobs, error) ||
        !st_body_integer(body, "", "top_logprobs", 0, 20, &top, error) || !read_messages(call, body, error) ||
        !read_tools(call, body, error) || !read_thinking(call, body, error) ||
        !st_body_bool(body, "", "add_generation_prompt", &generation_prompt, error) ||
        !st_body_bool(body, "", "continue_final_message", &continues, error))
        return false;
    if (top > 0 && !call->logprobs)
        return st_refuse(error, 400, NULL, "top_logprobs", "top_logprobs: needs \"logprobs\": true");
    call->top_logprobs = (int)top;
    if (!generation_prompt && json_object_set_new(call->options, "add_generation_prompt", json_false()) != 0)
        return st_call_out_of_memory(error);
    return !continues || take_prefix(call, error);
}
