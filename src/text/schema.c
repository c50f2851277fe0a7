/* Schemas to rules: which kind of schema it is, and whether every keyword was taken. Every schema has a rule and a place in a list;
 * parts of a schema are appended to the list, so nothing calls itself. Objects and arrays are in schema_object.c, merging and
 * comparing in schema_merge.c, strings and numbers in files of their own. */
#include "text/schema.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/schema_parts.h"
#include "text/toolcall.h"

enum { SCHEMAS_MAX = 8192 };

bool st_schema_good(const struct st_schema *s)
{
    return !s->failed && st_net_good(s->net);
}

uint32_t st_schema_bad(struct st_schema *s, const char *where, enum strata_result code, const char *fmt, ...)
{
    char text[400];
    if (s->failed)
        return ST_NET_RETURN;
    va_list list;
    va_start(list, fmt);
    vsnprintf(text, sizeof text, fmt, list);
    va_end(list);
    s->failed = st_fail(s->err, code, "%s: %s", where, text);
    return ST_NET_RETURN;
}

enum strata_result st_schema_create(struct st_net *net, bool tagged, struct st_schema **out, struct strata_error *err)
{
    struct st_schema *s = *out = calloc(1, sizeof *s);
    if (!s || !(s->owned = json_array())) {
        free(s);
        *out = NULL;
        return st_fail(err, STRATA_E_MEMORY, "no memory for a schema");
    }
    s->net = net;
    s->tagged = tagged;
    s->set = tagged ? st_json_set_tagged : st_json_set;
    enum strata_result r = st_schema_builtins(s, err);
    if (r) {
        st_schema_free(s);
        *out = NULL;
    }
    return r;
}

void st_schema_free(struct st_schema *s)
{
    if (!s)
        return;
    st_gbnf_free(s->names);
    free(s->entries);
    json_decref(s->owned);
    free(s);
}

/* ---- the list ---- */

static uint32_t entry_rule(struct st_schema *s, const json_t *schema, const json_t *root, const char *where)
{
    for (size_t i = 0; i < s->count; i++)
        if (s->entries[i].schema == schema && s->entries[i].root == root && !json_is_boolean(schema))
            return s->entries[i].rule;
    if (s->count == SCHEMAS_MAX)
        return st_schema_bad(s, where, STRATA_E_LIMIT, "the schema has more than %d parts", SCHEMAS_MAX);
    if (s->count == s->room) {
        size_t more = 2 * s->room + 16;
        struct st_schema_entry *grown = realloc(s->entries, more * sizeof *grown);
        if (!grown)
            return st_schema_bad(s, where, STRATA_E_MEMORY, "no memory for a schema");
        s->entries = grown;
        s->room = more;
    }
    struct st_schema_entry *e = &s->entries[s->count++];
    *e = (struct st_schema_entry){.schema = schema, .root = root, .rule = st_net_rule(s->net, where, strlen(where))};
    snprintf(e->where, sizeof e->where, "%s", where);
    return e->rule;
}

uint32_t st_schema_part(struct st_schema *s, const json_t *schema, const json_t *root, const char *where, const char *step)
{
    char place[ST_SCHEMA_WHERE + 80], shown[64];
    snprintf(place, sizeof place, "%s.%s", where, st_printable(shown, sizeof shown, step, strlen(step)));
    place[ST_SCHEMA_WHERE - 1] = 0;
    return entry_rule(s, schema, root, place);
}

/* ---- keywords ---- */

bool st_schema_annotation(const char *keyword)
{
    static const char *const known[] = {"title",   "description", "default", "examples",   "deprecated", "readOnly",    "writeOnly",
                                        "$schema", "$id",         "$anchor", "$comment",   "$defs",      "definitions", "$vocabulary"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(keyword, known[i]) == 0)
            return true;
    return false;
}

/* Keywords, and the types that they speak of; ST_TYPE_ALL: of any. */
static const struct keyword {
    const char *name;
    int types;
} keywords[] = {
    {"type", ST_TYPE_ALL},
    {"enum", ST_TYPE_ALL},
    {"const", ST_TYPE_ALL},
    {"$ref", ST_TYPE_ALL},
    {"anyOf", ST_TYPE_ALL},
    {"oneOf", ST_TYPE_ALL},
    {"allOf", ST_TYPE_ALL},
    {"properties", ST_TYPE_OBJECT},
    {"required", ST_TYPE_OBJECT},
    {"additionalProperties", ST_TYPE_OBJECT},
    {"items", ST_TYPE_ARRAY},
    {"prefixItems", ST_TYPE_ARRAY},
    {"minItems", ST_TYPE_ARRAY},
    {"maxItems", ST_TYPE_ARRAY},
    {"minLength", ST_TYPE_STRING},
    {"maxLength", ST_TYPE_STRING},
    {"pattern", ST_TYPE_STRING},
    {"format", ST_TYPE_STRING},
    {"minimum", ST_TYPE_NUMBER | ST_TYPE_INTEGER},
    {"maximum", ST_TYPE_NUMBER | ST_TYPE_INTEGER},
    {"exclusiveMinimum", ST_TYPE_NUMBER | ST_TYPE_INTEGER},
    {"exclusiveMaximum", ST_TYPE_NUMBER | ST_TYPE_INTEGER},
};

static const struct keyword *find_keyword(const char *name)
{
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
        if (strcmp(name, keywords[i].name) == 0)
            return &keywords[i];
    return NULL;
}

/* The types that keywords speak of, 0 if none does. Refuses those that nobody knows. */
static int keyword_types(struct st_schema *s, const struct st_schema_entry *e, int given)
{
    const char *name;
    json_t *value;
    int types = 0;
    json_object_foreach((json_t *)e->schema, name, value)
    {
        const struct keyword *k = find_keyword(name);
        char shown[60];
        if (st_schema_annotation(name))
            continue;
        st_printable(shown, sizeof shown, name, strlen(name));
        if (!k)
            st_schema_bad(s, e->where, STRATA_E_UNSUPPORTED, "keyword \"%s\" is not supported", shown);
        else if (k->types != ST_TYPE_ALL && given && !(given & k->types))
            st_schema_bad(s, e->where, STRATA_E_UNSUPPORTED, "keyword \"%s\" says nothing about the type", shown);
        else if (k->types != ST_TYPE_ALL)
            types |= k->types;
    }
    return types;
}

/* Refuses members beside the one that decides, annotations aside. */
static void alone(struct st_schema *s, const struct st_schema_entry *e, const char *const *allowed, size_t count)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)e->schema, name, value)
    {
        size_t i = 0;
        while (i < count && strcmp(name, allowed[i]) != 0)
            i++;
        char shown[60];
        if (i == count && !st_schema_annotation(name))
            st_schema_bad(s, e->where, STRATA_E_UNSUPPORTED, "keyword \"%s\" beside \"%s\" is not supported",
                          st_printable(shown, sizeof shown, name, strlen(name)), allowed[0]);
    }
}

static bool has_others(const json_t *schema, const char *but)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)schema, name, value) if (strcmp(name, but) != 0 && !st_schema_annotation(name)) return true;
    return false;
}

/* ---- kinds of schemas ---- */

/* Is a value one of enum's, if there is one, and const's, and of the types? */
static bool is_choice(const json_t *schema, const json_t *value, int types)
{
    const json_t *constant = json_object_get(schema, "const");
    return (st_type_of(value) & types) && (!constant || json_equal((json_t *)constant, (json_t *)value));
}

struct choices {
    char **texts;
    size_t *sizes;
    size_t count;
};

/* Texts of strings and numbers go into one tree; those of objects and arrays have blanks between their parts. */
static uint32_t choose(struct st_schema *s, const struct choices *c)
{
    uint32_t node = ST_NET_NOWHERE;
    size_t plain = 0;
    for (size_t i = 0; i < c->count; i++) {
        char *text = c->texts[i];
        size_t size = c->sizes[i];
        if (*text == '{' || *text == '[') {
            node = st_net_split(s->net, st_schema_literal(s, text, size, ST_NET_RETURN), node);
            continue;
        }
        c->texts[i] = c->texts[plain];
        c->sizes[i] = c->sizes[plain];
        c->texts[plain] = text;
        c->sizes[plain++] = size;
    }
    if (plain)
        node = st_net_split(s->net, st_net_choice(s->net, (const char *const *)c->texts, c->sizes, plain, ST_NET_RETURN), node);
    return node;
}

static uint32_t enumeration(struct st_schema *s, const struct st_schema_entry *e)
{
    static const char *const allowed[] = {"enum", "const", "type"};
    const json_t *list = json_object_get(e->schema, "enum"), *constant = json_object_get(e->schema, "const");
    int types = st_schema_types(e->schema);
    alone(s, e, allowed, 3);
    if (list && !json_is_array(list))
        return st_schema_bad(s, e->where, STRATA_E_FORMAT, "enum is not an array");
    size_t n = list ? json_array_size(list) : 1;
    struct choices c = {.texts = calloc(n + 1, sizeof *c.texts), .sizes = calloc(n + 1, sizeof *c.sizes)};
    bool good = c.texts && c.sizes;
    for (size_t i = 0; good && i < n; i++) {
        const json_t *value = list ? json_array_get(list, i) : constant;
        if (!is_choice(e->schema, value, types))
            continue;
        good = (c.texts[c.count] = st_schema_dump(s, value)) != NULL;
        if (good) {
            c.sizes[c.count] = strlen(c.texts[c.count]);
            c.count++;
        }
    }
    uint32_t node = ST_NET_RETURN;
    if (!good)
        st_schema_bad(s, e->where, STRATA_E_MEMORY, "no memory for a schema");
    else if (c.count == 0)
        st_schema_bad(s, e->where, STRATA_E_UNSUPPORTED, "enum, const and type leave no value");
    else
        node = choose(s, &c);
    for (size_t i = 0; c.texts && i < n; i++)
        free(c.texts[i]);
    free(c.texts);
    free(c.sizes);
    return node;
}

static uint32_t reference(struct st_schema *s, const struct st_schema_entry *e)
{
    static const char *const allowed[] = {"$ref"};
    const json_t *name = json_object_get(e->schema, "$ref");
    const json_t *target = json_is_string(name) ? st_schema_resolve(e->schema, e->root) : NULL;
    char shown[80];
    if (has_others(e->schema, "$ref"))
        alone(s, e, allowed, 1);
    if (!target) {
        const char *text = json_is_string(name) ? json_string_value(name) : "";
        return st_schema_bad(s, e->where, STRATA_E_UNSUPPORTED, "$ref \"%s\" leads to nothing inside the schema",
                             st_printable(shown, sizeof shown, text, strlen(text)));
    }
    return st_net_call(s->net, entry_rule(s, target, e->root, e->where), ST_NET_RETURN);
}

/* The schema without one keyword, to be merged with what that keyword holds. */
static const json_t *rest_of(struct st_schema *s, const struct st_schema_entry *e, const char *keyword)
{
    json_t *rest = json_copy((json_t *)e->schema);
    if (!rest || json_object_del(rest, keyword) != 0 || json_array_append_new(s->owned, rest) != 0) {
        st_schema_bad(s, e->where, STRATA_E_MEMORY, "no memory for a schema");
        return NULL;
    }
    return rest;
}

static uint32_t all_of(struct st_schema *s, const struct st_schema_entry *e)
{
    const json_t *list = json_object_get(e->schema, "allOf");
    size_t n = json_array_size(list);
    if (n == 0 || n > 64)
        return st_schema_bad(s, e->where, STRATA_E_UNSUPPORTED, "allOf is not an array of 1 to 64 schemas");
    if (n == 1 && !has_others(e->schema, "allOf"))
        return st_net_call(s->net, st_schema_part(s, json_array_get(list, 0), e->root, e->where, "allOf[0]"), ST_NET_RETURN);
    const json_t *parts[65];
    for (size_t i = 0; i < n; i++)
        parts[i] = json_array_get(list, i);
    parts[n] = rest_of(s, e, "allOf");
    const json_t *merged = parts[n] ? st_schema_merge(s, e, parts, n + 1) : NULL;
    return merged ? st_net_call(s->net, entry_rule(s, merged, e->root, e->where), ST_NET_RETURN) : ST_NET_RETURN;
}

static uint32_t alternatives(struct st_schema *s, const struct st_schema_entry *e, const char *keyword)
{
    const json_t *list = json_object_get(e->schema, keyword);
    size_t n = json_array_size(list);
    uint32_t node = ST_NET_NOWHERE;
    const json_t *rest = NULL;
    if (n == 0 || n > 256)
        return st_schema_bad(s, e->where, STRATA_E_UNSUPPORTED, "%s is not an array of 1 to 256 schemas", keyword);
    if (has_others(e->schema, keyword) && !(rest = rest_of(s, e, keyword)))
        return ST_NET_RETURN;
    for (size_t i = 0; strcmp(keyword, "oneOf") == 0 && i < n; i++)
        for (size_t k = 0; k < i; k++)
            if (!st_schema_disjoint(json_array_get(list, k), json_array_get(list, i), e->root))
                return st_schema_bad(s, e->where, STRATA_E_UNSUPPORTED,
                                     "keyword \"oneOf\" is supported only where its schemas exclude each other by type, constant or "
                                     "required members, and %zu and %zu may not: use anyOf",
                                     k, i);
    for (size_t i = n; i > 0 && st_schema_good(s); i--) {
        char step[32];
        const json_t *branch = json_array_get(list, i - 1);
        snprintf(step, sizeof step, "%s[%zu]", keyword, i - 1);
        if (rest)
            branch = st_schema_merge(s, e, (const json_t *const[]){rest, branch}, 2);
        if (branch)
            node = st_net_split(s->net, st_net_call(s->net, st_schema_part(s, branch, e->root, e->where, step), ST_NET_RETURN),
                                node);
    }
    return node;
}

/* Values of the types that are left, each by its keywords. */
static uint32_t typed(struct st_schema *s, const struct st_schema_entry *e)
{
    int given = json_object_get(e->schema, "type") ? st_schema_types(e->schema) : 0, types = given;
    if (!given && json_object_get(e->schema, "type"))
        return st_schema_bad(s, e->where, STRATA_E_FORMAT, "type is not one of JSON's seven, or a list of them");
    int spoken = keyword_types(s, e, given);
    if (!types)
        types = spoken ? spoken : ST_TYPE_ALL;
    if (types == ST_TYPE_ALL && !spoken)
        return st_net_call(s->net, st_schema_builtin(s, "value"), ST_NET_RETURN);
    uint32_t node = ST_NET_NOWHERE;
    if (types & ST_TYPE_NUMBER)
        node = st_net_split(s->net, st_schema_number(s, e->schema, e->where, ST_NET_RETURN), node);
    else if (types & ST_TYPE_INTEGER)
        node = st_net_split(s->net, st_schema_integer(s, e->schema, e->where, ST_NET_RETURN), node);
    if (types & ST_TYPE_STRING) {
        uint32_t close = st_net_text(s->net, "\"", 1, ST_NET_RETURN);
        uint32_t body = st_schema_string_body(s, e->schema, e->where, false, close);
        node = st_net_split(s->net, st_net_text(s->net, "\"", 1, body), node);
    }
    if (types & ST_TYPE_BOOLEAN)
        node = st_net_split(
            s->net, st_net_choice(s->net, (const char *const[]){"true", "false"}, (const size_t[]){4, 5}, 2, ST_NET_RETURN), node);
    if (types & ST_TYPE_NULL)
        node = st_net_split(s->net, st_net_text(s->net, "null", 4, ST_NET_RETURN), node);
    if (types & ST_TYPE_ARRAY)
        node = st_net_split(s->net, st_schema_array(s, e, ST_NET_RETURN), node);
    if (types & ST_TYPE_OBJECT)
        node = st_net_split(s->net, st_schema_object(s, e, ST_NET_RETURN), node);
    return node;
}

static uint32_t nodes_of(struct st_schema *s, const struct st_schema_entry *e)
{
    if (json_is_true(e->schema))
        return st_net_call(s->net, st_schema_builtin(s, "value"), ST_NET_RETURN);
    if (json_is_false(e->schema))
        return st_schema_bad(s, e->where, STRATA_E_UNSUPPORTED, "the schema false allows nothing");
    if (!json_is_object(e->schema))
        return st_schema_bad(s, e->where, STRATA_E_FORMAT, "it is neither an object nor a boolean");
    if (json_object_get(e->schema, "$ref"))
        return reference(s, e);
    if (json_object_get(e->schema, "allOf"))
        return all_of(s, e);
    if (json_object_get(e->schema, "anyOf"))
        return alternatives(s, e, "anyOf");
    if (json_object_get(e->schema, "oneOf"))
        return alternatives(s, e, "oneOf");
    if (json_object_get(e->schema, "enum") || json_object_get(e->schema, "const"))
        return enumeration(s, e);
    return typed(s, e);
}

/* Makes the rules that are still to be made. */
static enum strata_result finish(struct st_schema *s)
{
    for (; s->done < s->count && st_schema_good(s); s->done++) {
        struct st_schema_entry e = s->entries[s->done]; /* the list may move */
        st_net_define(s->net, e.rule, nodes_of(s, &e));
    }
    return s->failed;
}

enum strata_result st_schema_rule(struct st_schema *s, const json_t *schema, const json_t *root, const char *where,
                                  uint32_t *rule, struct strata_error *err)
{
    s->err = err;
    *rule = entry_rule(s, schema, root, where);
    return finish(s);
}

/* ---- arguments in tags ---- */

static const char end_tag[] = "</parameter>";

/* Strings that are written as they are, up to and including the end tag. Where other kinds are allowed too, a text that would be
 * read as one of those with more to fulfil than its type does not begin like one. */
static uint32_t raw_string(struct st_schema *s, const json_t *schema, const char *where, int others)
{
    bool said = json_object_get(schema, "pattern") || json_object_get(schema, "format") || json_object_get(schema, "minLength") ||
                json_object_get(schema, "maxLength");
    bool like_others = others & (ST_TYPE_NUMBER | ST_TYPE_INTEGER | ST_TYPE_OBJECT | ST_TYPE_ARRAY);
    if (!said)
        return st_net_until(s->net, end_tag, like_others ? "-0123456789{[ \t\r\n" : "", ST_NET_RETURN);
    if (others)
        return st_schema_bad(s, where, STRATA_E_UNSUPPORTED, "a string with conditions beside other types is not supported in tags");
    uint32_t close = st_net_text(s->net, "\n</parameter>", 13, ST_NET_RETURN);
    return st_schema_string_body(s, schema, where, true, close);
}

/* Values of enum: strings as they are, others as JSON. */
static uint32_t raw_choice(struct st_schema *s, const json_t *list, int types, const char *where)
{
    uint32_t close = st_net_text(s->net, "\n</parameter>", 13, ST_NET_RETURN), node = ST_NET_NOWHERE;
    size_t i;
    json_t *value;
    json_array_foreach((json_t *)list, i, value)
    {
        if (!(st_type_of(value) & types))
            continue;
        char *dump = json_is_string(value) ? NULL : st_schema_dump(s, value);
        const char *text = json_is_string(value) ? json_string_value(value) : dump;
        if (!text)
            return st_schema_bad(s, where, STRATA_E_MEMORY, "no memory for a schema");
        if (strstr(text, end_tag))
            st_schema_bad(s, where, STRATA_E_UNSUPPORTED, "a value that contains %s cannot be written in tags", end_tag);
        node = st_net_split(s->net, st_net_text(s->net, text, strlen(text), close), node);
        free(dump);
    }
    return node == ST_NET_NOWHERE ? st_schema_bad(s, where, STRATA_E_UNSUPPORTED, "enum and type leave no value") : node;
}

/* The schema's values that are no strings: type and branches without it. NULL: there are none, or with s failed. */
static const json_t *without_strings(struct st_schema *s, const json_t *schema, const char *where)
{
    json_t *left = json_deep_copy((json_t *)schema), *types = json_array(), *type = NULL;
    const char *const branches[] = {"anyOf", "oneOf"}, *const own[] = {"pattern", "format", "minLength", "maxLength"};
    size_t i;
    json_array_foreach(json_object_get(left, "type"), i, type) if (!json_is_string(type) ||
                                                                   strcmp(json_string_value(type), "string") != 0)
        json_array_append(types, type);
    for (i = 0; i < 4; i++)
        json_object_del(left, own[i]);
    if (json_array_size(types))
        json_object_set(left, "type", types);
    json_decref(types);
    for (int k = 0; k < 2; k++) {
        json_t *list = json_object_get(left, branches[k]);
        for (i = json_array_size(list); i > 0; i--) {
            int kinds = st_argument_types(json_array_get(list, i - 1));
            if (kinds == ST_TYPE_STRING)
                json_array_remove(list, i - 1);
            else if (kinds == 0 || (kinds & ST_TYPE_STRING))
                st_schema_bad(s, where, STRATA_E_UNSUPPORTED, "%s[%zu] has strings and others: not supported in tags", branches[k],
                              i - 1);
        }
    }
    if (!left || json_array_append_new(s->owned, left) != 0) {
        st_schema_bad(s, where, STRATA_E_MEMORY, "no memory for a schema");
        return NULL;
    }
    return left;
}

/* Of a schema with alternatives the one for strings, else the schema itself. */
static const json_t *string_branch(const json_t *schema)
{
    const char *const branches[] = {"anyOf", "oneOf"};
    size_t i;
    json_t *branch;
    for (int k = 0; k < 2; k++)
        json_array_foreach(json_object_get(schema, branches[k]), i, branch) if (st_argument_types(branch) == ST_TYPE_STRING)
            return branch;
    return schema;
}

static uint32_t parameter(struct st_schema *s, const json_t *schema, const json_t *root, const char *where)
{
    int kinds = schema ? st_argument_types(schema) : 0;
    const json_t *list = json_object_get(schema, "enum");
    bool mixed = (kinds & ST_TYPE_STRING) && kinds != ST_TYPE_STRING;
    if (list && (kinds & ST_TYPE_STRING))
        return raw_choice(s, list, st_schema_types(schema), where);
    if (kinds == ST_TYPE_STRING && !json_object_get(schema, "anyOf") && !json_object_get(schema, "oneOf")) {
        struct st_schema_entry e = {.schema = schema, .root = root};
        snprintf(e.where, sizeof e.where, "%s", where);
        keyword_types(s, &e, ST_TYPE_STRING);
        return raw_string(s, schema, where, 0);
    }
    uint32_t node = ST_NET_NOWHERE;
    if (kinds & ST_TYPE_STRING) {
        const json_t *branch = string_branch(schema);
        if (branch != schema && (has_others(branch, "type") || !mixed))
            return st_schema_bad(s, where, STRATA_E_UNSUPPORTED, "such alternatives for strings are not supported in tags");
        node = raw_string(s, branch, where, kinds & ~ST_TYPE_STRING);
        schema = without_strings(s, schema, where);
    }
    uint32_t rule = schema ? entry_rule(s, schema, root, where) : st_schema_builtin(s, "value");
    uint32_t close = st_net_text(s->net, "\n</parameter>", 13, ST_NET_RETURN);
    return st_net_split(s->net, st_net_call(s->net, rule, close), node);
}

enum strata_result st_schema_parameter(struct st_schema *s, const json_t *schema, const json_t *root, const char *where,
                                       uint32_t *rule, struct strata_error *err)
{
    s->err = err;
    *rule = st_net_rule(s->net, where, strlen(where));
    if (schema && !json_is_object(schema) && !json_is_true(schema))
        st_schema_bad(s, where, STRATA_E_UNSUPPORTED, "it is not a schema that allows something");
    if (!s->failed)
        st_net_define(s->net, *rule, parameter(s, json_is_object(schema) ? schema : NULL, root, where));
    return finish(s);
}
