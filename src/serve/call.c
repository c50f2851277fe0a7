/* Calls: what the API families share, and the small calls (/tokenize, /detokenize, /apply-template). */
#include "serve/call.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "serve/buffer.h"
#include "text/toolcall.h"

enum { STOP_LIMIT = 16, STOP_BYTES = 1024, BIAS_LIMIT = 4096, UNLOAD_SECONDS = 30 };

bool st_call_out_of_memory(struct st_api_error *error)
{
    return st_refuse(error, 503, NULL, NULL, "the server is out of memory");
}

void st_call_init(struct st_call *call, enum st_call_kind kind, const struct strata_sampling *defaults)
{
    memset(call, 0, sizeof *call);
    call->kind = kind;
    call->sampling = *defaults;
    call->sampling.bias = NULL;
    call->sampling.bias_count = 0;
    call->sampling.logprobs = 0;
    call->parallel_tools = true;
    call->choices = 1;
}

void st_call_free(struct st_call *call)
{
    json_decref(call->messages);
    json_decref(call->options);
    json_decref(call->schema);
    json_decref(call->echo);
    free(call->grammar);
    free(call->demanded_tool);
    free(call->prefix);
    free(call->prompt);
    free(call->ids);
    free(call->bias);
    for (size_t i = 0; i < call->stop_count; i++)
        free(call->stop[i]);
    free(call->stop);
    memset(call, 0, sizeof *call);
}

static bool read_bias(struct st_call *call, const json_t *body, struct st_api_error *error)
{
    json_t *bias = NULL;
    if (!st_body_container(body, "", "logit_bias", JSON_OBJECT, &bias, error))
        return false;
    size_t count = json_object_size(bias);
    if (count == 0)
        return true;
    if (count > BIAS_LIMIT)
        return st_refuse(error, 400, NULL, "logit_bias", "logit_bias: %zu entries, at most %d are taken", count,
                         BIAS_LIMIT);
    call->bias = calloc(count, sizeof *call->bias);
    if (!call->bias)
        return st_call_out_of_memory(error);
    const char *key;
    json_t *value;
    size_t n = 0;
    json_object_foreach(bias, key, value)
    {
        char *end;
        long id = strtol(key, &end, 10);
        if (end == key || *end || id < 0 || id > INT32_MAX)
            return st_refuse(error, 400, NULL, "logit_bias", "logit_bias: a member's name is not a token id");
        double number;
        if (!st_body_number(bias, "logit_bias", key, -100, 100, &number, error))
            return false;
        if (!json_is_number(value))
            continue;
        call->bias[n].token = (int32_t)id;
        call->bias[n++].bias = (float)number;
    }
    call->sampling.bias = call->bias;
    call->sampling.bias_count = n;
    return true;
}

bool st_call_read_sampling(struct st_call *call, const json_t *body, struct st_api_error *error)
{
    struct strata_sampling *s = &call->sampling;
    double temperature = s->temperature, top_p = s->top_p, min_p = s->min_p, repeat = s->repetition_penalty;
    double frequency = s->frequency_penalty, presence = s->presence_penalty;
    int64_t top_k = s->top_k, window = s->penalty_window, seed = -1;
    if (!st_body_number(body, "", "temperature", 0, 100, &temperature, error) ||
        !st_body_number(body, "", "top_p", 0, 1, &top_p, error) ||
        !st_body_number(body, "", "min_p", 0, 1, &min_p, error) ||
        !st_body_integer(body, "", "top_k", -1, INT_MAX, &top_k, error) ||
        !st_body_number(body, "", "repetition_penalty", 0.01, 100, &repeat, error) ||
        !st_body_number(body, "", "repeat_penalty", 0.01, 100, &repeat, error) ||
        !st_body_integer(body, "", "repeat_last_n", -1, INT_MAX, &window, error) ||
        !st_body_number(body, "", "frequency_penalty", -2, 2, &frequency, error) ||
        !st_body_number(body, "", "presence_penalty", -2, 2, &presence, error) ||
        !st_body_integer(body, "", "seed", INT64_MIN, INT64_MAX, &seed, error) ||
        !st_body_bool(body, "", "ignore_eos", &call->ignore_eos, error) ||
        !st_body_bool(body, "", "return_progress", &call->progress, error) || !read_bias(call, body, error))
        return false;
    s->temperature = (float)temperature;
    s->top_p = top_p < 1e-6 ? 1e-6f : (float)top_p; /* 0 is taken as "only the best" */
    s->min_p = (float)min_p;
    s->top_k = top_k < 0 ? 0 : (int)top_k;
    s->repetition_penalty = (float)repeat;
    s->frequency_penalty = (float)frequency;
    s->presence_penalty = (float)presence;
    s->penalty_window = (int)window;
    if (seed >= 0)
        s->seed = (uint64_t)seed;
    else if (getrandom(&s->seed, sizeof s->seed, 0) != sizeof s->seed)
        return st_refuse(error, 503, NULL, "seed", "the system gave no random seed");
    return true;
}

bool st_call_read_stop(struct st_call *call, const json_t *body, const char *name, struct st_api_error *error)
{
    const json_t *stop = json_object_get(body, name);
    if (!stop || json_is_null(stop))
        return true;
    if (!json_is_string(stop) && !json_is_array(stop))
        return st_refuse(error, 400, NULL, name, "%s: expected a string or an array of strings, got %s", name,
                         st_body_type_name(stop));
    size_t count = json_is_string(stop) ? 1 : json_array_size(stop);
    if (count > STOP_LIMIT)
        return st_refuse(error, 400, NULL, name, "%s: %zu texts, at most %d are taken", name, count, STOP_LIMIT);
    call->stop = calloc(count ? count : 1, sizeof *call->stop);
    if (!call->stop)
        return st_call_out_of_memory(error);
    for (size_t i = 0; i < count; i++) {
        const json_t *text = json_is_string(stop) ? stop : json_array_get(stop, i);
        if (!json_is_string(text))
            return st_refuse(error, 400, NULL, name, "%s[%zu]: expected a string, got %s", name, i,
                             st_body_type_name(text));
        size_t size = json_string_length(text);
        if (size == 0)
            continue; /* some clients send "" for none */
        if (size > STOP_BYTES)
            return st_refuse(error, 400, NULL, name, "%s[%zu]: longer than %d bytes", name, i, STOP_BYTES);
        call->stop[call->stop_count] = strdup(json_string_value(text));
        if (!call->stop[call->stop_count])
            return st_call_out_of_memory(error);
        call->stop_count++;
    }
    return true;
}

bool st_call_add_tool(struct st_call *call, const char *name, const char *description, json_t *schema)
{
    json_t *list = json_object_get(call->options, "tools");
    if (!list) {
        list = json_array();
        if (json_object_set_new(call->options, "tools", list) != 0)
            return false;
    }
    json_t *function = json_pack("{s:s, s:s?, s:O?}", "name", name, "description", description, "parameters", schema);
    if (!function)
        return false;
    /* Absent members stay absent: templates print what is there. */
    if (!description)
        json_object_del(function, "description");
    if (!schema)
        json_object_del(function, "parameters");
    return json_array_append_new(list, json_pack("{s:s, s:o}", "type", "function", "function", function)) == 0;
}

bool st_call_demand_tools(struct st_call *call, const char *name, const char *param, struct st_api_error *error)
{
    const json_t *tools = json_object_get(call->options, "tools");
    if (json_array_size(tools) == 0)
        return st_refuse(error, 400, NULL, param, "%s: a call is demanded, but there are no tools", param);
    char shown[80];
    if (name && !st_tool_known(tools, name, strlen(name)))
        return st_refuse(error, 400, NULL, param, "%s: there is no tool named \"%s\"", param,
                         st_printable(shown, sizeof shown, name, strlen(name)));
    call->demands_tools = true;
    call->demanded_tool = name ? strdup(name) : NULL;
    return !name || call->demanded_tool || st_call_out_of_memory(error);
}

json_t *st_call_arguments(const json_t *value)
{
    if (json_is_object(value))
        return json_incref((json_t *)value);
    if (json_is_string(value)) {
        struct st_api_error unused;
        json_t *parsed = st_body_parse(json_string_value(value), json_string_length(value), &unused);
        return parsed ? parsed : json_incref((json_t *)value);
    }
    return json_object();
}

json_t *st_call_add_message(struct st_call *call, const char *role, const char *content)
{
    json_t *message = json_pack("{s:s, s:s}", "role", role, "content", content);
    if (json_array_append_new(call->messages, message) != 0)
        return NULL;
    return message;
}

static bool is_system(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    return role && strcmp(role, "system") == 0;
}

/* Collects system messages (only those at the start, or all) into one at the front. *moved: whether one stood after
 * another role. */
static bool collect_system(struct st_call *call, bool all, bool *moved)
{
    json_t *rest = json_array();
    struct st_buffer text = {0};
    bool found = false, good = rest != NULL;
    *moved = false;
    for (size_t i = 0; good && i < json_array_size(call->messages); i++) {
        json_t *message = json_array_get(call->messages, i);
        bool leading = json_array_size(rest) == 0;
        if (is_system(message) && (all || leading)) {
            const json_t *content = json_object_get(message, "content");
            if (text.size && json_string_length(content))
                st_buffer_text(&text, "\n\n");
            st_buffer_add(&text, json_string_value(content), json_string_length(content));
            found = true;
            *moved |= !leading;
        } else {
            good = json_array_append(rest, message) == 0;
        }
    }
    if (good && found)
        good = !text.failed && json_array_insert_new(rest, 0,
                                                     json_pack("{s:s, s:s#}", "role", "system", "content",
                                                               st_buffer_string(&text), (int)text.size)) == 0;
    st_buffer_free(&text);
    if (!good) {
        json_decref(rest);
        return false;
    }
    json_decref(call->messages);
    call->messages = rest;
    return true;
}

bool st_call_join_system(struct st_call *call)
{
    bool moved;
    return collect_system(call, false, &moved);
}

bool st_call_move_system(struct st_call *call)
{
    bool moved;
    return collect_system(call, true, &moved) && moved;
}

static bool read_tokenize(struct st_call *call, const json_t *body, struct st_api_error *error)
{
    const json_t *content = json_object_get(body, "content");
    if (!json_is_string(content))
        return st_refuse(error, 400, NULL, "content", "content: expected a string, got %s", st_body_type_name(content));
    call->prompt = strdup(json_string_value(content));
    if (!call->prompt)
        return st_call_out_of_memory(error);
    call->prompt_size = json_string_length(content);
    return st_body_bool(body, "", "parse_special", &call->special, error) &&
           st_body_bool(body, "", "with_pieces", &call->pieces, error);
}

static bool read_ids(struct st_call *call, const json_t *list, const char *name, struct st_api_error *error)
{
    size_t count = json_array_size(list);
    call->ids = calloc(count ? count : 1, sizeof *call->ids);
    if (!call->ids)
        return st_call_out_of_memory(error);
    for (size_t i = 0; i < count; i++) {
        const json_t *id = json_array_get(list, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
            return st_refuse(error, 400, NULL, name, "%s[%zu]: expected a token id", name, i);
        call->ids[i] = (int32_t)json_integer_value(id);
    }
    call->id_count = count;
    return true;
}

static bool read_detokenize(struct st_call *call, const json_t *body, struct st_api_error *error)
{
    const json_t *tokens = json_object_get(body, "tokens");
    if (!json_is_array(tokens))
        return st_refuse(error, 400, NULL, "tokens", "tokens: expected an array, got %s", st_body_type_name(tokens));
    call->special = true;
    return read_ids(call, tokens, "tokens", error) && st_body_bool(body, "", "special", &call->special, error);
}

bool st_openai_read_completion(struct st_call *call, const json_t *body, struct st_api_error *error)
{
    const json_t *prompt = json_object_get(body, "prompt");
    const json_t *only = json_is_array(prompt) && json_array_size(prompt) == 1 ? json_array_get(prompt, 0) : NULL;
    if (json_is_string(only) || json_is_array(only))
        prompt = only;
    if (json_is_string(prompt)) {
        call->prompt = strdup(json_string_value(prompt));
        if (!call->prompt)
            return st_call_out_of_memory(error);
        call->prompt_size = json_string_length(prompt);
    } else if (json_is_array(prompt)) {
        if (json_array_size(prompt) && !json_is_integer(json_array_get(prompt, 0)))
            return st_refuse(error, 400, NULL, "prompt", "prompt: several prompts in one request are not supported");
        if (!read_ids(call, prompt, "prompt", error))
            return false;
    } else {
        return st_refuse(error, 400, NULL, "prompt", "prompt: expected a string or an array of token ids, got %s",
                         st_body_type_name(prompt));
    }
    if (call->prompt ? call->prompt_size == 0 : call->id_count == 0)
        return st_refuse(error, 400, NULL, "prompt", "prompt: it is empty");
    /* The client wrote the whole input of the model here, special tokens included. */
    call->special = true;
    const char *suffix = NULL;
    bool echo = false;
    int64_t logprobs = -1, best_of = 1;
    if (!st_body_bool(body, "", "parse_special", &call->special, error) ||
        !st_body_string(body, "", "suffix", &suffix, error) || !st_body_bool(body, "", "echo", &echo, error) ||
        !st_body_integer(body, "", "logprobs", 0, 20, &logprobs, error) ||
        !st_body_integer(body, "", "best_of", 1, 128, &best_of, error))
        return false;
    if (suffix && *suffix)
        return st_refuse(error, 400, NULL, "suffix", "suffix: not supported");
    if (echo)
        return st_refuse(error, 400, NULL, "echo", "echo: not supported");
    if (best_of != 1 && best_of != call->choices)
        return st_refuse(error, 400, NULL, "best_of", "best_of: only as many as n are supported");
    call->logprobs = logprobs >= 0;
    call->top_logprobs = logprobs > 0 ? (int)logprobs : 0;
    return true;
}

static bool read_deadline(struct st_call *call, const json_t *body, struct st_api_error *error)
{
    return st_body_integer(body, "", "deadline_seconds", 0, 86400, &call->deadline, error);
}

static bool read_vram(struct st_call *call, const json_t *body, struct st_api_error *error)
{
    int64_t mib = -1;
    if (!st_body_integer(body, "", "reserve_mib", 0, 1 << 30, &mib, error) || !read_deadline(call, body, error))
        return false;
    if (mib < 0)
        return st_refuse(error, 400, NULL, "reserve_mib", "reserve_mib: missing; 0 is what the server was started with");
    call->reserve = (uint64_t)mib << 20;
    return true;
}

bool st_call_read(struct st_call *call, const char *body, size_t size, struct st_api_error *error)
{
    bool bodiless = call->kind == ST_CALL_LOAD || call->kind == ST_CALL_UNLOAD;
    call->deadline = UNLOAD_SECONDS;
    if ((call->kind == ST_CALL_SLOT && call->slot_action == ST_SLOT_ERASE) || (bodiless && !size))
        return true;
    json_t *object = st_body_parse(body, size, error);
    if (!object)
        return false;
    call->messages = json_array();
    call->options = json_object();
    const char *model = NULL;
    bool good = call->messages && call->options ? st_body_string(object, "", "model", &model, error)
                                                : st_call_out_of_memory(error);
    if (good && model)
        st_printable(call->model, sizeof call->model, model, strlen(model));
    if (good)
        switch (call->kind) {
        case ST_CALL_CHAT:
        case ST_CALL_COMPLETION:
        case ST_CALL_TEMPLATE: good = st_openai_read_chat(call, object, error); break;
        case ST_CALL_MESSAGES:
        case ST_CALL_COUNT_TOKENS: good = st_anthropic_read_messages(call, object, error); break;
        case ST_CALL_RESPONSES: good = st_responses_read(call, object, error); break;
        case ST_CALL_TOKENIZE: good = read_tokenize(call, object, error); break;
        case ST_CALL_DETOKENIZE: good = read_detokenize(call, object, error); break;
        case ST_CALL_SLOT: good = st_slot_read(call, object, error); break;
        case ST_CALL_LOAD: break;
        case ST_CALL_UNLOAD: good = read_deadline(call, object, error); break;
        case ST_CALL_VRAM: good = read_vram(call, object, error); break;
        }
    json_decref(object);
    if (good && call->ignore_eos && (call->grammar || call->schema || call->demands_tools))
        return st_refuse(error, 400, NULL, "ignore_eos", "ignore_eos: it cannot go with what the answer must be");
    if (good && call->grammar && call->demands_tools)
        return st_refuse(error, 400, NULL, "grammar", "grammar: it cannot go with calls that are demanded");
    if (good && call->logprobs)
        call->sampling.logprobs = call->top_logprobs ? call->top_logprobs : 1;
    return good;
}
