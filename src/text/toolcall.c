/* Incremental reading of a model's output. The buffer holds what cannot be decided yet; each state takes what it can
 * from its beginning and says whether the next state should go on or more text is needed. */
#define _GNU_SOURCE /* memmem */
#include "text/toolcall.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/json_type.h"

enum { MAX_NAME = 256, MAX_HELD = 64 << 20, FIRST_ROOM = 256 };

enum state { REASONING, CONTENT, CALL_OPEN, IN_FUNCTION, VALUE, AFTER_FUNCTION };

struct st_output {
    struct st_output_options options;
    enum state state;
    char *store, *buffer; /* what is held begins at buffer, somewhere in store */
    size_t size, room;
    size_t scanned;  /* the state has looked at this much of the buffer already */
    bool begun;      /* the current stretch of reasoning or content is past the newlines that are dropped */
    bool opened;     /* the output is past the place where a think block may open */
    bool line_start; /* the byte before the buffer ended a line */
    bool outer;      /* inside <tool_call> */
    bool arguments;  /* the call has given an argument */
    int calls;
    char name[MAX_NAME + 1], parameter[MAX_NAME + 1];
    /* JSON form */
    int depth;
    bool in_string, escaped;
    struct strata_error *err;
    enum strata_result failed;
};

/* ---- tools ---- */

static const json_t *definition(const json_t *tools, const char *name, size_t size)
{
    size_t i;
    json_t *tool;
    json_array_foreach((json_t *)tools, i, tool)
    {
        const json_t *inner = json_object_get(tool, "function"), *of = json_is_object(inner) ? inner : tool;
        const json_t *known = json_object_get(of, "name");
        if (json_is_string(known) && json_string_length(known) == size &&
            memcmp(json_string_value(known), name, size) == 0)
            return of;
    }
    return NULL;
}

bool st_tool_known(const json_t *tools, const char *name, size_t size)
{
    return definition(tools, name, size) != NULL;
}

const json_t *st_tool_parameters(const json_t *tools, const char *name, size_t size)
{
    const json_t *of = definition(tools, name, size), *schema = json_object_get(of, "parameters");
    return json_is_object(schema) ? schema : json_object_get(of, "input_schema");
}

/* The kinds that a schema allows, 0 if it does not say. level bounds alternatives inside alternatives. */
static int allowed(const json_t *schema, int level)
{
    const json_t *type = json_object_get(schema, "type"), *choices = json_object_get(schema, "enum");
    const char *const either[] = {"anyOf", "oneOf"};
    int kinds = st_type_named(type);
    size_t i;
    json_t *item;
    json_array_foreach((json_t *)type, i, item) kinds |= st_type_named(item);
    if (!kinds)
        json_array_foreach((json_t *)choices, i, item) kinds |= st_type_of(item);
    for (int k = 0; !kinds && level < 4 && k < 2; k++)
        json_array_foreach(json_object_get(schema, either[k]), i, item) kinds |= allowed(item, level + 1);
    return kinds;
}

int st_argument_types(const json_t *schema)
{
    return allowed(schema, 0);
}

/* ---- events ---- */

static void emit(struct st_output *o, enum st_output_kind kind, const char *text, size_t size, bool complete)
{
    if ((kind == ST_OUTPUT_REASONING || kind == ST_OUTPUT_CONTENT) && size == 0)
        return;
    o->begun = true;
    struct st_output_event e = {kind, o->calls - 1, text, size, complete};
    o->options.event(o->options.user, &e);
}

static void fail_memory(struct st_output *o)
{
    if (!o->failed)
        o->failed = st_fail(o->err, STRATA_E_MEMORY, "no memory to read a model's output");
}

/* Takes bytes from the beginning of the buffer. */
static void take(struct st_output *o, size_t n)
{
    if (n == 0)
        return;
    o->line_start = o->buffer[n - 1] == '\n';
    o->buffer += n;
    o->size -= n;
    o->scanned = o->scanned > n ? o->scanned - n : 0;
}

static void enter(struct st_output *o, enum state s)
{
    o->state = s;
    o->scanned = 0;
    if (s == CONTENT || s == REASONING)
        o->begun = false;
}

/* ---- looking for tags ---- */

static bool blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static size_t skip_blanks(const struct st_output *o, size_t at)
{
    while (at < o->size && blank(o->buffer[at]))
        at++;
    return at;
}

enum match { NO, MAYBE, YES };

/* Does the buffer have tag at this place? MAYBE: as far as it goes. */
static enum match tag_at(const struct st_output *o, size_t at, const char *tag)
{
    size_t n = strlen(tag), have = o->size - at;
    if (memcmp(o->buffer + at, tag, have < n ? have : n) != 0)
        return NO;
    return have < n ? MAYBE : YES;
}

/* Length of the longest end of the buffer that a tag may begin with. */
static size_t partial(const struct st_output *o, const char *tag)
{
    size_t n = strlen(tag) - 1;
    for (n = n < o->size ? n : o->size; n > 0; n--)
        if (memcmp(o->buffer + o->size - n, tag, n) == 0)
            break;
    return n;
}

/* Finds tag, remembering how far it has looked. SIZE_MAX: not there yet. */
static size_t find(struct st_output *o, const char *tag)
{
    size_t n = strlen(tag);
    const char *hit = o->size > o->scanned ? memmem(o->buffer + o->scanned, o->size - o->scanned, tag, n) : NULL;
    if (hit)
        return (size_t)(hit - o->buffer);
    o->scanned = o->size >= n ? o->size - n + 1 : 0;
    return SIZE_MAX;
}

/* ---- states: each returns true if another step may be possible ---- */

static const char think[] = "<think>", think_end[] = "</think>", call_tag[] = "<tool_call>",
                  call_end[] = "</tool_call>", function_tag[] = "<function=", function_end[] = "</function>",
                  parameter_tag[] = "<parameter=", parameter_end[] = "</parameter>";

static bool step_reasoning(struct st_output *o, bool final)
{
    if (!o->begun) {
        /* Some models open the block that the prompt has opened already. */
        enum match m = o->opened ? NO : tag_at(o, 0, think);
        if (m == MAYBE && !final)
            return false;
        if (m == YES)
            take(o, strlen(think));
        o->opened = true;
        if (o->size == 0)
            return false;
        if (o->buffer[0] == '\n')
            take(o, 1);
        o->begun = true;
    }
    size_t at = find(o, think_end);
    if (at != SIZE_MAX) {
        emit(o, ST_OUTPUT_REASONING, o->buffer, at - (at && o->buffer[at - 1] == '\n'), true);
        take(o, at + strlen(think_end));
        enter(o, CONTENT);
        return true;
    }
    size_t with_newline = partial(o, "\n</think>"), without = partial(o, think_end);
    size_t hold = final ? 0 : with_newline > without ? with_newline : without;
    emit(o, ST_OUTPUT_REASONING, o->buffer, o->size - hold, true);
    take(o, o->size - hold);
    return false;
}

/* The first place from which on the buffer is, or may become, a call; the buffer's size if there is none. */
static size_t find_call(const struct st_output *o, bool final, bool *sure)
{
    for (size_t at = o->scanned; at < o->size; at++) {
        const char *next = memchr(o->buffer + at, '<', o->size - at);
        if (!next)
            break;
        at = (size_t)(next - o->buffer);
        bool line_start = at ? o->buffer[at - 1] == '\n' : o->line_start;
        enum match outer = tag_at(o, at, call_tag), bare = line_start ? tag_at(o, at, function_tag) : NO;
        *sure = outer == YES || bare == YES;
        if (*sure || (!final && (outer == MAYBE || bare == MAYBE)))
            return at;
    }
    *sure = false;
    return o->size;
}

static bool step_content(struct st_output *o, bool final)
{
    if (!o->begun) {
        size_t at = 0;
        while (at < o->size && o->buffer[at] == '\n')
            at++;
        if (!o->opened) {
            size_t tag = skip_blanks(o, 0);
            enum match m = tag_at(o, tag, think);
            if (m == MAYBE && !final)
                return false;
            o->opened = true;
            if (m == YES) {
                take(o, tag + strlen(think));
                enter(o, REASONING);
                return true;
            }
        }
        take(o, at);
        if (at)
            o->line_start = true;
    }
    bool sure = false, calls = json_array_size(o->options.tools) > 0;
    size_t at = calls ? find_call(o, final, &sure) : o->size, end = at;
    /* Blanks before a call, and after one at the end, do not belong to the content. */
    while (calls && end > 0 && blank(o->buffer[end - 1]))
        end--;
    if (final && !sure && (o->begun || end > 0))
        end = at;
    emit(o, ST_OUTPUT_CONTENT, o->buffer, end, true);
    take(o, end);
    at -= end;
    o->scanned = at;
    if (!sure)
        return false;
    o->outer = tag_at(o, at, call_tag) == YES;
    o->state = CALL_OPEN; /* the buffer keeps its beginning: it may be no call after all */
    return true;
}

/* What looked like a call is content: its first n bytes. */
static bool no_call(struct st_output *o, size_t n)
{
    emit(o, ST_OUTPUT_CONTENT, o->buffer, n, true);
    take(o, n);
    o->state = CONTENT;
    o->scanned = 0;
    return true;
}

static void begin_call(struct st_output *o, const char *name, size_t size)
{
    memcpy(o->name, name, size);
    o->name[size] = 0;
    o->calls++;
    o->arguments = false;
    emit(o, ST_OUTPUT_CALL, o->name, size, true);
}

static void end_call(struct st_output *o)
{
    emit(o, ST_OUTPUT_ARGUMENTS, o->arguments ? "}" : "{}", o->arguments ? 1 : 2, true);
    emit(o, ST_OUTPUT_CALL_END, "", 0, true);
}

/* A name up to ">" that begins at from: its end, SIZE_MAX if there is none, 0 if more is needed. */
static size_t name_end(const struct st_output *o, size_t from)
{
    for (size_t at = from; at < o->size; at++) {
        char c = o->buffer[at];
        if (c == '>')
            return at > from ? at : SIZE_MAX;
        if (c == '<' || (unsigned char)c <= ' ' || at - from >= MAX_NAME)
            return SIZE_MAX;
    }
    return 0;
}

static bool json_call(struct st_output *o, size_t from, size_t to)
{
    json_t *call = json_loadb(o->buffer + from, to - from, JSON_REJECT_DUPLICATES, NULL);
    const json_t *name = json_object_get(call, "name"), *arguments = json_object_get(call, "arguments");
    if (!arguments)
        arguments = json_object_get(call, "parameters");
    bool good = json_is_string(name) && json_string_length(name) > 0 && json_string_length(name) <= MAX_NAME;
    if (good && json_is_string(arguments)) { /* an object written as text */
        json_t *inner = json_loads(json_string_value(arguments), 0, NULL);
        good = json_is_object(inner);
        json_decref(inner);
    } else if (arguments) {
        good = good && json_is_object(arguments);
    }
    if (good) {
        bool text = json_is_string(arguments);
        char *dump = text || !arguments ? NULL : json_dumps(arguments, JSON_PRESERVE_ORDER);
        if (!text && arguments && !dump)
            fail_memory(o);
        const char *shown = text ? json_string_value(arguments) : dump ? dump : "{}";
        begin_call(o, json_string_value(name), json_string_length(name));
        emit(o, ST_OUTPUT_ARGUMENTS, shown, strlen(shown), true);
        emit(o, ST_OUTPUT_CALL_END, "", 0, true);
        free(dump);
    }
    json_decref(call);
    return good;
}

/* At the "{" of the JSON form: finds its end, counting brackets outside strings. */
static bool step_json(struct st_output *o, size_t from, bool final)
{
    if (o->scanned < from) {
        o->scanned = from;
        o->depth = 0;
        o->in_string = o->escaped = false;
    }
    bool closed = false;
    while (o->scanned < o->size && !closed) {
        char c = o->buffer[o->scanned++];
        if (o->in_string) {
            o->in_string = o->escaped || c != '"';
            o->escaped = !o->escaped && c == '\\';
        } else if (c == '"') {
            o->in_string = true;
        } else if (c == '{' || c == '[') {
            o->depth++;
        } else if (c == '}' || c == ']') {
            closed = --o->depth <= 0;
        }
    }
    if (!closed)
        return final ? no_call(o, o->size) : false;
    size_t to = o->scanned, rest = skip_blanks(o, to);
    enum match m = rest < o->size ? tag_at(o, rest, call_end) : MAYBE;
    if (m == MAYBE && !final) {
        /* Look at the closing bracket again when there is more. */
        o->scanned = to - 1;
        o->depth = 1;
        return false;
    }
    if (!json_call(o, from, to))
        return no_call(o, to);
    take(o, m == YES ? rest + strlen(call_end) : to);
    enter(o, CONTENT);
    return true;
}

static bool step_open(struct st_output *o, bool final)
{
    size_t at = skip_blanks(o, 0), from = at;
    if (tag_at(o, at, call_tag) == YES) {
        from = skip_blanks(o, at + strlen(call_tag));
        if (from == o->size)
            return final ? no_call(o, o->size) : false;
        if (o->buffer[from] == '{')
            return step_json(o, from, final);
        enum match m = tag_at(o, from, function_tag);
        if (m == MAYBE && !final)
            return false;
        if (m != YES)
            return no_call(o, at + strlen(call_tag));
    }
    from += strlen(function_tag);
    size_t end = name_end(o, from);
    if (end == 0)
        return final ? no_call(o, o->size) : false;
    if (end == SIZE_MAX)
        return no_call(o, from);
    begin_call(o, o->buffer + from, end - from);
    take(o, end + 1);
    enter(o, IN_FUNCTION);
    return true;
}

/* The call ends without its tags: the model was cut off. */
static bool cut_off(struct st_output *o)
{
    emit(o, ST_OUTPUT_CALL_END, o->buffer, o->size, false);
    take(o, o->size);
    enter(o, CONTENT);
    return false;
}

static bool step_function(struct st_output *o, bool final)
{
    take(o, skip_blanks(o, 0));
    enum match parameter = tag_at(o, 0, parameter_tag), end = tag_at(o, 0, function_end),
               outer = tag_at(o, 0, call_end);
    if (parameter == YES) {
        size_t from = strlen(parameter_tag), to = name_end(o, from);
        if (to == 0)
            return final ? cut_off(o) : false;
        if (to != SIZE_MAX) {
            memcpy(o->parameter, o->buffer + from, to - from);
            o->parameter[to - from] = 0;
            take(o, to + 1);
            enter(o, VALUE);
            return true;
        }
    } else if (end == YES || outer == YES) {
        end_call(o);
        take(o, strlen(end == YES ? function_end : call_end));
        enter(o, end == YES ? AFTER_FUNCTION : CONTENT);
        return true;
    } else if (parameter == MAYBE || end == MAYBE || outer == MAYBE) {
        return final ? cut_off(o) : false;
    }
    const char *next = memchr(o->buffer + 1, '<', o->size - 1);
    take(o, next ? (size_t)(next - o->buffer) : o->size);
    return true;
}

/* A parameter's value as JSON, by the type its schema gives. */
static void emit_argument(struct st_output *o, const char *value, size_t size)
{
    if (st_utf8_invalid(value, size) != size ||
        st_utf8_invalid(o->parameter, strlen(o->parameter)) != strlen(o->parameter)) {
        o->failed = st_fail(o->err, STRATA_E_FORMAT, "an argument of the call of %s is not valid UTF-8", o->name);
        return;
    }
    const json_t *schema = st_tool_parameters(o->options.tools, o->name, strlen(o->name));
    int kinds = allowed(json_object_get(json_object_get(schema, "properties"), o->parameter), 0);
    size_t from = 0, to = size;
    while (from < to && blank(value[from]))
        from++;
    while (to > from && blank(value[to - 1]))
        to--;
    const char *shown = value + from;
    size_t shown_size = to - from;
    bool verbatim = kinds == ST_TYPE_STRING;
    if (!verbatim && (kinds & ST_TYPE_BOOLEAN) && shown_size == 4 && memcmp(shown, "True", 4) == 0) {
        shown = "true";
    } else if (!verbatim && (kinds & ST_TYPE_BOOLEAN) && shown_size == 5 && memcmp(shown, "False", 5) == 0) {
        shown = "false";
    } else if (!verbatim && (kinds & ST_TYPE_NULL) && shown_size == 4 && memcmp(shown, "None", 4) == 0) {
        shown = "null";
    } else if (!verbatim) {
        json_t *v = json_loadb(shown, shown_size, JSON_DECODE_ANY, NULL);
        /* Where a string is allowed too, only what fits another allowed kind is taken as JSON. */
        verbatim = !v || ((kinds & ST_TYPE_STRING) && !(st_type_of(v) & kinds & ~ST_TYPE_STRING));
        json_decref(v);
    }
    json_t *key = json_string(o->parameter), *text = verbatim ? json_stringn(value, size) : NULL;
    char *key_dump = key ? json_dumps(key, JSON_ENCODE_ANY) : NULL,
         *text_dump = text ? json_dumps(text, JSON_ENCODE_ANY) : NULL;
    if (!key_dump || (verbatim && !text_dump)) {
        fail_memory(o);
    } else {
        if (verbatim) {
            shown = text_dump;
            shown_size = strlen(text_dump);
        }
        size_t key_size = strlen(key_dump), total = 2 + key_size + 2 + shown_size;
        char *all = malloc(total);
        if (all) {
            memcpy(all, o->arguments ? ", " : "{", 2);
            size_t used = o->arguments ? 2 : 1;
            memcpy(all + used, key_dump, key_size);
            memcpy(all + used + key_size, ": ", 2);
            memcpy(all + used + key_size + 2, shown, shown_size);
            emit(o, ST_OUTPUT_ARGUMENTS, all, used + key_size + 2 + shown_size, true);
            o->arguments = true;
            free(all);
        } else {
            fail_memory(o);
        }
    }
    free(key_dump);
    free(text_dump);
    json_decref(key);
    json_decref(text);
}

static bool step_value(struct st_output *o, bool final)
{
    size_t at = find(o, parameter_end), from = 0, to = at;
    if (at == SIZE_MAX)
        return final ? cut_off(o) : false;
    if (from < to && o->buffer[from] == '\n')
        from++;
    if (to > from && o->buffer[to - 1] == '\n')
        to--;
    emit_argument(o, o->buffer + from, to - from);
    take(o, at + strlen(parameter_end));
    enter(o, IN_FUNCTION);
    return true;
}

static bool step_after(struct st_output *o, bool final)
{
    size_t at = skip_blanks(o, 0);
    if (at == o->size && !final)
        return false;
    enum match end = at < o->size ? tag_at(o, at, call_end) : NO,
               more = at < o->size ? tag_at(o, at, function_tag) : NO;
    if (!final && (end == MAYBE || more == MAYBE))
        return false;
    if (end == YES)
        take(o, at + strlen(call_end));
    if (end != YES && more == YES && o->outer) {
        take(o, at);
        enter(o, CALL_OPEN);
        return true;
    }
    enter(o, CONTENT);
    return true;
}

static void run(struct st_output *o, bool final)
{
    bool more = o->size > 0 || final;
    while (more && !o->failed) {
        switch (o->state) {
        case REASONING: more = step_reasoning(o, final); break;
        case CONTENT: more = step_content(o, final); break;
        case CALL_OPEN: more = step_open(o, final); break;
        case IN_FUNCTION: more = step_function(o, final); break;
        case VALUE: more = step_value(o, final); break;
        case AFTER_FUNCTION: more = step_after(o, final); break;
        }
        more = more && (o->size > 0 || final);
    }
}

/* ---- the object ---- */

enum strata_result st_output_create(const struct st_output_options *options, struct st_output **out,
                                    struct strata_error *err)
{
    struct st_output *o = calloc(1, sizeof *o);
    char *store = malloc(FIRST_ROOM);
    *out = NULL;
    if (!o || !store) {
        free(o);
        free(store);
        return st_fail(err, STRATA_E_MEMORY, "no memory to read a model's output");
    }
    *out = o;
    o->store = o->buffer = store;
    o->room = FIRST_ROOM;
    o->options = *options;
    o->state = options->thinking ? REASONING : CONTENT;
    o->line_start = true;
    return STRATA_OK;
}

void st_output_free(struct st_output *o)
{
    if (!o)
        return;
    free(o->store);
    free(o);
}

int st_output_calls(const struct st_output *o)
{
    return o->calls;
}

enum strata_result st_output_push(struct st_output *o, const char *text, size_t size, struct strata_error *err)
{
    if (o->failed)
        return st_fail(err, o->failed, "a model's output could not be read to its end");
    if (size > MAX_HELD || o->size + size > MAX_HELD)
        return o->failed = st_fail(err, STRATA_E_LIMIT, "a tool call has more than %d bytes", MAX_HELD);
    if (o->size && o->buffer != o->store)
        memmove(o->store, o->buffer, o->size);
    if (o->size + size > o->room) {
        size_t room = 2 * (o->size + size) + 64;
        char *grown = realloc(o->store, room);
        if (!grown)
            return o->failed = st_fail(err, STRATA_E_MEMORY, "no memory to read a model's output");
        o->store = grown;
        o->room = room;
    }
    o->buffer = o->store;
    if (size)
        memcpy(o->buffer + o->size, text, size);
    o->size += size;
    o->err = err;
    run(o, false);
    o->err = NULL;
    return o->failed;
}

enum strata_result st_output_finish(struct st_output *o, struct strata_error *err)
{
    if (o->failed)
        return st_fail(err, o->failed, "a model's output could not be read to its end");
    o->err = err;
    run(o, true);
    o->err = NULL;
    return o->failed;
}
