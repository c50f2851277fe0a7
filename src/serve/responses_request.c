/* Bodies of the OpenAI Responses API, turned into the same messages that the chat reader makes. Nothing is kept here between
 * requests: a member that refers to what a server keeps, or that asks for work it does not do, is refused by its name. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/buffer.h"
#include "serve/call.h"

/* ---- what is refused ---- */

static bool refuse_kept(const json_t *body, struct st_api_error *error)
{
    static const struct {
        const char *name, *why;
    } members[] = {
        {"previous_response_id", "responses are not kept by this server; send the whole conversation as input"},
        {"conversation", "conversations are not kept by this server; send the whole conversation as input"},
        {"prompt", "prompts are not kept by this server; send instructions and input"},
        {"context_management", "not supported"},
        {"moderation", "not supported"},
    };
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        const json_t *value = json_object_get(body, members[i].name);
        if (value && !json_is_null(value))
            return st_refuse(error, 400, "unsupported_parameter", members[i].name, "%s: %s", members[i].name, members[i].why);
    }
    return true;
}

static bool read_include(struct st_call *call, const json_t *body, struct st_api_error *error)
{
    json_t *include = NULL;
    if (!st_body_container(body, "", "include", JSON_ARRAY, &include, error))
        return false;
    for (size_t i = 0; i < json_array_size(include); i++) {
        const char *what = json_string_value(json_array_get(include, i));
        char at[32], shown[80];
        snprintf(at, sizeof at, "include[%zu]", i);
        if (!what)
            return st_refuse(error, 400, NULL, at, "%s: expected a string", at);
        if (strcmp(what, "reasoning.encrypted_content") != 0)
            return st_refuse(error, 400, "unsupported_value", at, "%s: \"%s\" is not available here", at,
                             st_printable(shown, sizeof shown, what, strlen(what)));
        call->carries_thoughts = true;
    }
    return true;
}

static bool refuse_rest(const json_t *body, struct st_api_error *error)
{
    bool background = false, store = false;
    int64_t logprobs = 0;
    const char *truncation = NULL;
    if (!refuse_kept(body, error) || !st_body_bool(body, "", "background", &background, error) ||
        !st_body_bool(body, "", "store", &store, error) ||
        !st_body_integer(body, "", "top_logprobs", 0, 20, &logprobs, error) ||
        !st_body_string(body, "", "truncation", &truncation, error))
        return false;
    if (background)
        return st_refuse(error, 400, "unsupported_parameter", "background", "background: not supported, ask for a stream");
    if (logprobs)
        return st_refuse(error, 400, "unsupported_parameter", "top_logprobs", "top_logprobs: not supported here");
    if (truncation && strcmp(truncation, "disabled") != 0)
        return st_refuse(error, 400, "unsupported_value", "truncation", "truncation: only \"disabled\" is supported");
    return true;
}

/* ---- input ---- */

/* A string member of an item that must be there; NULL with the error filled. */
static const char *required_string(const json_t *item, const char *at, const char *name, struct st_api_error *error)
{
    const char *value = NULL;
    char where[ST_PATH];
    if (!st_body_string(item, at, name, &value, error))
        return NULL;
    st_body_path(where, sizeof where, at, name);
    if (!value)
        st_refuse(error, 400, NULL, where, "%s: it is missing", where);
    return value;
}

/* The last message, if it is the assistant's and the next item may belong to it. */
static json_t *open_answer(const struct st_call *call)
{
    size_t count = json_array_size(call->messages);
    json_t *last = count ? json_array_get(call->messages, count - 1) : NULL;
    const char *role = json_string_value(json_object_get(last, "role"));
    return role && strcmp(role, "assistant") == 0 ? last : NULL;
}

static bool has_said(const json_t *message)
{
    return json_string_length(json_object_get(message, "content")) || json_object_get(message, "tool_calls");
}

/* The thoughts of one answer come as an item before its text and calls; templates want them in one message. */
static json_t *answer_to_add_to(struct st_call *call, bool new_one)
{
    json_t *open = open_answer(call);
    return open && !new_one ? open : st_call_add_message(call, "assistant", "");
}

static bool read_message(struct st_call *call, const json_t *item, const char *at, struct st_api_error *error)
{
    static const struct {
        const char *name, *as;
    } roles[] = {{"system", "system"}, {"developer", "system"}, {"user", "user"}, {"assistant", "assistant"}};
    const char *role = required_string(item, at, "role", error), *as = NULL;
    char where[ST_PATH];
    if (!role)
        return false;
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (strcmp(role, roles[i].name) == 0)
            as = roles[i].as;
    st_body_path(where, sizeof where, at, "role");
    if (!as)
        return st_refuse(error, 400, NULL, where, "%s: expected system, developer, user or assistant", where);
    st_body_path(where, sizeof where, at, "content");
    json_t *content = st_openai_text(json_object_get(item, "content"), where, error);
    if (!content)
        return false;
    json_t *message = strcmp(as, "assistant") != 0 ? st_call_add_message(call, as, "")
                                                   : answer_to_add_to(call, has_said(open_answer(call)));
    if (!message) {
        json_decref(content);
        return st_call_out_of_memory(error);
    }
    return json_object_set_new(message, "content", content) == 0 || st_call_out_of_memory(error);
}

static bool read_call(struct st_call *call, const json_t *item, const char *at, struct st_api_error *error)
{
    const char *id = required_string(item, at, "call_id", error), *name = id ? required_string(item, at, "name", error) : NULL;
    if (!name || !required_string(item, at, "arguments", error))
        return false;
    json_t *message = answer_to_add_to(call, false), *list = json_object_get(message, "tool_calls");
    if (message && !list) {
        list = json_array();
        if (json_object_set_new(message, "tool_calls", list) != 0)
            return st_call_out_of_memory(error);
    }
    json_t *entry = json_pack("{s:s, s:{s:s, s:o}, s:s}", "type", "function", "function", "name", name, "arguments",
                              st_call_arguments(json_object_get(item, "arguments")), "id", id);
    if (message && json_array_append_new(list, entry) == 0)
        return true;
    return st_call_out_of_memory(error);
}

static bool read_call_output(struct st_call *call, const json_t *item, const char *at, struct st_api_error *error)
{
    const char *id = required_string(item, at, "call_id", error);
    char where[ST_PATH];
    st_body_path(where, sizeof where, at, "output");
    json_t *text = id ? st_openai_text(json_object_get(item, "output"), where, error) : NULL;
    if (!text)
        return false;
    json_t *message = json_pack("{s:s, s:o, s:s}", "role", "tool", "content", text, "tool_call_id", id);
    return json_array_append_new(call->messages, message) == 0 || st_call_out_of_memory(error);
}

/* Texts of a list of parts, each on lines of its own. */
static bool add_texts(struct st_buffer *to, const json_t *item, const char *at, const char *name, struct st_api_error *error)
{
    json_t *list = NULL;
    if (!st_body_container(item, at, name, JSON_ARRAY, &list, error))
        return false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *text = json_object_get(json_array_get(list, i), "text");
        char where[ST_PATH];
        if (!json_is_string(text)) {
            snprintf(where, sizeof where, "%s.%s[%zu].text", at, name, i);
            return st_refuse(error, 400, NULL, where, "%s: expected a string, got %s", where, st_body_type_name(text));
        }
        st_buffer_add(to, "\n", to->size ? 1 : 0);
        st_buffer_add(to, json_string_value(text), json_string_length(text));
    }
    return true;
}

/* Thoughts as this server wrote them: in content, or in encrypted_content behind a mark. Those of other servers, of which only a summary
 * can be read, are that summary. */
static bool read_thoughts(struct st_call *call, const json_t *item, const char *at, struct st_api_error *error)
{
    struct st_buffer text = {0};
    const char *sealed = NULL;
    size_t mark = strlen(ST_THOUGHTS_MARK);
    bool good = add_texts(&text, item, at, "content", error) && st_body_string(item, at, "encrypted_content", &sealed, error);
    if (good && !text.size && sealed && strncmp(sealed, ST_THOUGHTS_MARK, mark) == 0)
        st_buffer_text(&text, sealed + mark);
    good = good && (text.size || add_texts(&text, item, at, "summary", error));
    if (good && text.size) {
        json_t *message = answer_to_add_to(call, has_said(open_answer(call)) || json_object_get(open_answer(call), "reasoning_content"));
        good = (message && !text.failed &&
                json_object_set_new(message, "reasoning_content", json_stringn(text.data, text.size)) == 0) ||
               st_call_out_of_memory(error);
    }
    st_buffer_free(&text);
    return good;
}

static bool read_item(struct st_call *call, const json_t *item, size_t index, struct st_api_error *error)
{
    static const struct {
        const char *type;
        bool (*read)(struct st_call *call, const json_t *item, const char *at, struct st_api_error *error);
    } readers[] = {{"message", read_message},
                   {"function_call", read_call},
                   {"function_call_output", read_call_output},
                   {"reasoning", read_thoughts}};
    const char *type = NULL;
    char at[40], where[ST_PATH], shown[80];
    snprintf(at, sizeof at, "input[%zu]", index);
    if (!json_is_object(item))
        return st_refuse(error, 400, NULL, at, "%s: expected an object, got %s", at, st_body_type_name(item));
    if (!st_body_string(item, at, "type", &type, error))
        return false;
    type = type ? type : "message";
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++)
        if (strcmp(type, readers[i].type) == 0)
            return readers[i].read(call, item, at, error);
    st_body_path(where, sizeof where, at, "type");
    if (strcmp(type, "item_reference") == 0)
        return st_refuse(error, 400, "unsupported_value", where, "%s: items are not kept by this server; send the item itself", where);
    return st_refuse(error, 400, "unsupported_value", where, "%s: items of type \"%s\" are not supported", where,
                     st_printable(shown, sizeof shown, type, strlen(type)));
}

static bool read_input(struct st_call *call, const json_t *body, struct st_api_error *error)
{
    const json_t *input = json_object_get(body, "input");
    const char *instructions = NULL;
    if (!st_body_string(body, "", "instructions", &instructions, error))
        return false;
    if (instructions && *instructions && !st_call_add_message(call, "system", instructions))
        return st_call_out_of_memory(error);
    if (json_is_string(input))
        return st_call_add_message(call, "user", json_string_value(input)) || st_call_out_of_memory(error);
    if (!json_is_array(input))
        return st_refuse(error, 400, NULL, "input", "input: expected a string or an array of items, got %s",
                         st_body_type_name(input));
    if (json_array_size(input) == 0)
        return st_refuse(error, 400, NULL, "input", "input: it is empty");
    for (size_t i = 0; i < json_array_size(input); i++)
        if (!read_item(call, json_array_get(input, i), i, error))
            return false;
    if (json_array_size(call->messages) == 0)
        return st_refuse(error, 400, NULL, "input", "input: there is no text in it");
    return st_call_join_system(call) || st_call_out_of_memory(error);
}

/* ---- tools and form ---- */

/* Whether tools may be called, whether one must be, and which. */
static bool read_choice(const json_t *body, bool *wanted, bool *demanded, const char **name, struct st_api_error *error)
{
    const json_t *choice = json_object_get(body, "tool_choice");
    const char *word = json_string_value(choice), *type = json_string_value(json_object_get(choice, "type"));
    *wanted = !word || strcmp(word, "none") != 0;
    *demanded = false;
    *name = NULL;
    if (!choice || json_is_null(choice) || (word && (strcmp(word, "auto") == 0 || strcmp(word, "none") == 0)))
        return true;
    *demanded = true;
    if (word && strcmp(word, "required") == 0)
        return true;
    *name = json_string_value(json_object_get(choice, "name"));
    if (type && strcmp(type, "function") == 0 && *name)
        return true;
    return st_refuse(error, 400, "unsupported_value", "tool_choice",
                     "tool_choice: expected \"auto\", \"none\", \"required\" or {\"type\": \"function\", \"name\": ...}");
}

static bool read_tools(struct st_call *call, const json_t *body, struct st_api_error *error)
{
    json_t *tools = NULL;
    const char *only;
    bool wanted, demanded;
    if (!st_body_container(body, "", "tools", JSON_ARRAY, &tools, error) ||
        !read_choice(body, &wanted, &demanded, &only, error) ||
        !st_body_bool(body, "", "parallel_tool_calls", &call->parallel_tools, error))
        return false;
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        char path[40], where[ST_PATH], shown[80];
        snprintf(path, sizeof path, "tools[%zu]", i);
        const char *description = NULL;
        json_t *schema = NULL;
        if (!json_is_object(tool))
            return st_refuse(error, 400, NULL, path, "%s: expected an object, got %s", path, st_body_type_name(tool));
        const char *type = required_string(tool, path, "type", error);
        if (!type)
            return false;
        st_body_path(where, sizeof where, path, "type");
        if (strcmp(type, "function") != 0)
            return st_refuse(error, 400, "unsupported_value", where, "%s: \"%s\" is not supported, only \"function\" is: nothing runs on this server",
                             where, st_printable(shown, sizeof shown, type, strlen(type)));
        const char *name = required_string(tool, path, "name", error);
        if (!name || !st_body_string(tool, path, "description", &description, error) ||
            !st_body_container(tool, path, "parameters", JSON_OBJECT, &schema, error))
            return false;
        st_body_path(where, sizeof where, path, "name");
        if (!*name)
            return st_refuse(error, 400, NULL, where, "%s: it is empty", where);
        if (wanted && !st_call_add_tool(call, name, description, schema))
            return st_call_out_of_memory(error);
        call->tools = wanted;
    }
    return !demanded || st_call_demand_tools(call, only, "tool_choice", error);
}

static bool read_format(struct st_call *call, const json_t *body, struct st_api_error *error)
{
    json_t *text = NULL, *format = NULL, *schema = NULL;
    const char *type = NULL;
    if (!st_body_container(body, "", "text", JSON_OBJECT, &text, error) ||
        !st_body_container(text, "text", "format", JSON_OBJECT, &format, error) ||
        !st_body_string(format, "text.format", "type", &type, error))
        return false;
    if (!type || strcmp(type, "text") == 0)
        return true;
    if (strcmp(type, "json_object") == 0) {
        call->schema = json_pack("{s:s}", "type", "object");
        call->constraint_param = "text.format";
        return call->schema || st_call_out_of_memory(error);
    }
    if (strcmp(type, "json_schema") != 0)
        return st_refuse(error, 400, "unsupported_value", "text.format.type",
                         "text.format.type: expected \"text\", \"json_object\" or \"json_schema\"");
    if (!st_body_container(format, "text.format", "schema", JSON_OBJECT, &schema, error))
        return false;
    if (!schema)
        return st_refuse(error, 400, NULL, "text.format.schema", "text.format.schema: it is missing");
    call->schema = json_incref(schema);
    call->constraint_param = "text.format.schema";
    return true;
}

static bool read_reasoning(struct st_call *call, const json_t *body, struct st_api_error *error)
{
    json_t *reasoning = NULL;
    const char *effort = NULL;
    return st_body_container(body, "", "reasoning", JSON_OBJECT, &reasoning, error) &&
           st_body_string(reasoning, "reasoning", "effort", &effort, error) &&
           st_openai_read_effort(call, effort, "reasoning.effort", error) && st_openai_read_template(call, body, error);
}

/* ---- what the answer repeats ---- */

/* As the client wrote it: a float has six digits at most that mean something. */
static double shown(float value)
{
    return round(1e6 * (double)value) / 1e6;
}

/* Copies: the thread that writes the answer is not the one that reads tools and schema. */
static bool set_echo(struct st_call *call, const json_t *body, struct st_api_error *error)
{
    static const char *const members[] = {"instructions", "max_output_tokens", "metadata",        "reasoning", "safety_identifier",
                                          "text",         "tool_choice",       "prompt_cache_key", "tools",     "user"};
    json_t *echo = json_pack("{s:b, s:n, s:n, s:{}, s:b, s:n, s:{s:n, s:n}, s:b, s:f, s:{s:{s:s}}, s:s, s:[], s:i, s:f, s:s}", "background", 0,
                             "instructions", "max_output_tokens", "metadata", "parallel_tool_calls", call->parallel_tools,
                             "previous_response_id", "reasoning", "effort", "summary", "store", 0, "temperature",
                             shown(call->sampling.temperature), "text", "format", "type", "text", "tool_choice", "auto", "tools",
                             "top_logprobs", 0, "top_p", shown(call->sampling.top_p), "truncation", "disabled");
    call->echo = echo;
    bool good = echo != NULL;
    for (size_t i = 0; good && i < sizeof members / sizeof *members; i++) {
        json_t *value = json_object_get(body, members[i]);
        if (value && !json_is_null(value))
            good = json_object_set_new(echo, members[i], json_deep_copy(value)) == 0;
    }
    return good || st_call_out_of_memory(error);
}

bool st_responses_read(struct st_call *call, const json_t *body, struct st_api_error *error)
{
    int64_t max_tokens = 0;
    if (!refuse_rest(body, error) || !read_include(call, body, error) ||
        !st_body_bool(body, "", "stream", &call->stream, error) ||
        !st_body_integer(body, "", "max_output_tokens", 1, INT_MAX, &max_tokens, error) ||
        !st_call_read_sampling(call, body, error) || !read_format(call, body, error) || !read_input(call, body, error) ||
        !read_tools(call, body, error) || !read_reasoning(call, body, error))
        return false;
    call->max_tokens = max_tokens;
    return set_echo(call, body, error);
}
