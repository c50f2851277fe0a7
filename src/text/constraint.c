/* See constraint.h. */
#include "text/constraint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "text/schema.h"

enum { NAME_MAX = 256, WHERE = 128 };

/* ---- thinking ---- */

static size_t size_without_blanks(const char *text)
{
    size_t size = strlen(text);
    while (size > 0 && (text[size - 1] == '\n' || text[size - 1] == ' '))
        size--;
    return size;
}

static bool ends_with(const char *text, const char *end)
{
    size_t size = size_without_blanks(text), n = strlen(end);
    return size >= n && memcmp(text + size - n, end, n) == 0;
}

/* The end of a prompt that is looked at. */
static char *copy_end(const char *prompt)
{
    enum { END = 16 };
    size_t size = size_without_blanks(prompt);
    return strndup(prompt + (size > END ? size - END : 0), size > END ? END : size);
}

/* What may come before next: a think block that is open, or one that the model opens. */
static uint32_t behind_thinking(struct st_net *net, const char *prompt, const char *template_text, uint32_t next)
{
    if (!prompt)
        return next;
    bool open = ends_with(prompt, "<think>");
    bool may = !open && template_text && strstr(template_text, "<think>") && !ends_with(prompt, "</think>");
    if (!open && !may)
        return next;
    uint32_t behind = next;
    for (int i = 0; i < 2; i++)
        behind = st_net_split(net, st_net_text(net, "\n", 1, behind), next);
    uint32_t inside = st_net_until(net, "</think>", "", behind);
    return open ? inside : st_net_split(net, st_net_text(net, "<think>", 7, inside), next);
}

/* ---- calls ---- */

struct calls {
    struct st_net *net;
    struct st_schema *schemas;
    bool tagged;
    struct strata_error *err;
};

static bool name_fits_tag(const char *name)
{
    size_t n = 0;
    for (; name[n]; n++)
        if (name[n] == '<' || name[n] == '>' || (unsigned char)name[n] <= ' ')
            return false;
    return n > 0 && n <= NAME_MAX;
}

static bool is_required(const json_t *parameters, const char *name)
{
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(parameters, "required"), i, item) if (json_is_string(item) &&
                                                                             strcmp(json_string_value(item), name) == 0) return true;
    return false;
}

/* <parameter=NAME> and its value, then what follows. */
static enum strata_result parameter(struct calls *c, const json_t *schema, const json_t *root, const char *where, const char *name,
                                    uint32_t *node)
{
    char place[2 * WHERE], shown[60], tag[NAME_MAX + 32];
    uint32_t rule;
    snprintf(place, sizeof place, "%s.properties.%s", where, st_printable(shown, sizeof shown, name, strlen(name)));
    if (!name_fits_tag(name))
        return st_fail(c->err, STRATA_E_UNSUPPORTED, "%s: the name cannot be written in a tag", place);
    enum strata_result r = st_schema_parameter(c->schemas, schema, root, place, &rule, c->err);
    if (r)
        return r;
    int n = snprintf(tag, sizeof tag, "<parameter=%s>\n", name);
    *node = st_net_call(c->net, rule, st_net_text(c->net, "\n", 1, *node));
    *node = st_net_text(c->net, tag, (size_t)n, *node);
    return STRATA_OK;
}

/* Keywords that say more about the arguments than tags can. */
static enum strata_result check_keywords(const struct calls *c, const json_t *parameters, const char *where)
{
    static const char *const known[] = {"type",    "properties", "required", "additionalProperties", "title",   "description",
                                        "$schema", "$id",        "$defs",    "definitions",          "$comment", "default"};
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)parameters, name, value)
    {
        size_t i = 0;
        while (i < sizeof known / sizeof *known && strcmp(name, known[i]) != 0)
            i++;
        char shown[60];
        if (i == sizeof known / sizeof *known)
            return st_fail(c->err, STRATA_E_UNSUPPORTED, "%s: keyword \"%s\" is not supported for the arguments as a whole", where,
                           st_printable(shown, sizeof shown, name, strlen(name)));
    }
    return STRATA_OK;
}

/* The parameters of a tool in tags; *node comes behind them and becomes where they begin. */
static enum strata_result tagged_arguments(struct calls *c, const json_t *parameters, const char *where, uint32_t *node)
{
    const json_t *properties = json_object_get(parameters, "properties");
    size_t count = json_object_size(properties), n = 0, i;
    const char **names = calloc(count + 1, sizeof *names), *name;
    json_t *value;
    enum strata_result r = names ? check_keywords(c, parameters, where) : st_fail(c->err, STRATA_E_MEMORY, "no memory for a constraint");
    json_array_foreach(json_object_get(parameters, "required"), i, value)
    {
        if (!r && (!json_is_string(value) || !json_object_get(properties, json_string_value(value))))
            r = st_fail(c->err, STRATA_E_UNSUPPORTED, "%s: required names what properties do not declare", where);
    }
    json_object_foreach((json_t *)properties, name, value) if (names) names[n++] = name;
    for (; !r && n > 0; n--) {
        uint32_t without = *node;
        r = parameter(c, json_object_get(properties, names[n - 1]), parameters, where, names[n - 1], node);
        if (!r && !is_required(parameters, names[n - 1]))
            *node = st_net_split(c->net, *node, without);
    }
    free(names);
    return r;
}

static enum strata_result tagged_call(struct calls *c, const char *name, const json_t *parameters, const char *where, uint32_t *node)
{
    static const char end[] = "</function>\n</tool_call>";
    char begin[NAME_MAX + 64];
    if (!name_fits_tag(name))
        return st_fail(c->err, STRATA_E_UNSUPPORTED, "%s: the name cannot be written in a tag", where);
    *node = st_net_text(c->net, end, strlen(end), ST_NET_RETURN);
    enum strata_result r = tagged_arguments(c, parameters, where, node);
    int n = snprintf(begin, sizeof begin, "<tool_call>\n<function=%s>\n", name);
    *node = st_net_text(c->net, begin, (size_t)n, *node);
    return r;
}

static enum strata_result json_call(struct calls *c, const char *name, const json_t *parameters, const char *where, uint32_t *node)
{
    static const char end[] = "}\n</tool_call>", middle[] = ", \"arguments\": ", begin[] = "<tool_call>\n{\"name\": ";
    uint32_t rule = st_schema_builtin(c->schemas, "object");
    enum strata_result r = STRATA_OK;
    if (json_object_size(parameters))
        r = st_schema_rule(c->schemas, parameters, parameters, where, &rule, c->err);
    json_t *value = json_string(name);
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    if (!text)
        r = st_fail(c->err, STRATA_E_MEMORY, "no memory for a constraint");
    if (!r) {
        *node = st_net_call(c->net, rule, st_net_text(c->net, end, strlen(end), ST_NET_RETURN));
        *node = st_net_text(c->net, middle, strlen(middle), *node);
        *node = st_net_text(c->net, text, strlen(text), *node);
        *node = st_net_text(c->net, begin, strlen(begin), *node);
    }
    free(text);
    json_decref(value);
    return r;
}

/* A rule for a call of one tool. */
static enum strata_result call_rule(struct calls *c, const json_t *tool, uint32_t *rule)
{
    const json_t *inner = json_object_get(tool, "function"), *of = json_is_object(inner) ? inner : tool;
    const char *name = json_string_value(json_object_get(of, "name"));
    const json_t *parameters = json_object_get(of, "parameters"), *type = json_object_get(parameters, "type");
    char where[WHERE], shown[60];
    if (!name)
        return st_fail(c->err, STRATA_E_ARGUMENT, "a tool has no name");
    snprintf(where, sizeof where, "tool %s", st_printable(shown, sizeof shown, name, strlen(name)));
    if (parameters && !json_is_object(parameters) && !json_is_null(parameters))
        return st_fail(c->err, STRATA_E_ARGUMENT, "%s: parameters is not an object", where);
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "object") != 0))
        return st_fail(c->err, STRATA_E_UNSUPPORTED, "%s: the type of the arguments as a whole is not \"object\"", where);
    uint32_t node = ST_NET_RETURN;
    enum strata_result r = c->tagged ? tagged_call(c, name, parameters, where, &node) : json_call(c, name, parameters, where, &node);
    *rule = st_net_rule(c->net, where, strlen(where));
    st_net_define(c->net, *rule, node);
    return r;
}

static bool is_wanted(const json_t *tool, const char *name)
{
    const json_t *inner = json_object_get(tool, "function"), *of = json_is_object(inner) ? inner : tool;
    const char *own = json_string_value(json_object_get(of, "name"));
    return !name || (own && strcmp(own, name) == 0);
}

/* A rule for calls of the tools: one, or several in lines of their own. */
static enum strata_result calls_rule(struct calls *c, const json_t *tools, const struct strata_constraint_options *o, uint32_t *rule)
{
    uint32_t any = st_net_rule(c->net, "a call", 6), node = ST_NET_NOWHERE;
    size_t i;
    json_t *tool;
    json_array_foreach((json_t *)tools, i, tool)
    {
        uint32_t one = 0;
        if (!is_wanted(tool, o->tool))
            continue;
        enum strata_result r = call_rule(c, tool, &one);
        if (r)
            return r;
        node = st_net_split(c->net, st_net_call(c->net, one, ST_NET_RETURN), node);
    }
    if (node == ST_NET_NOWHERE)
        return st_fail(c->err, STRATA_E_ARGUMENT, "there is no tool%s%.100s to be called", o->tool ? " named " : "",
                       o->tool ? o->tool : "");
    st_net_define(c->net, any, node);
    uint32_t rest = st_net_loop(c->net, ST_NET_RETURN);
    if (!o->one_call)
        st_net_loop_body(c->net, rest, st_net_text(c->net, "\n", 1, st_net_call(c->net, any, rest)));
    *rule = st_net_rule(c->net, "calls", 5);
    st_net_define(c->net, *rule, st_net_call(c->net, any, o->one_call ? ST_NET_RETURN : rest));
    return STRATA_OK;
}

/* ---- all together ---- */

struct parts {
    struct st_net *net;
    struct st_schema *plain, *calls; /* JSON as it is, and as calls have it */
    json_t *schema, *tools;
};

static enum strata_result schema_rule(struct parts *p, const struct strata_constraint_options *o, uint32_t *rule,
                                      struct strata_error *err)
{
    json_error_t why;
    p->schema = json_loads(o->json_schema, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &why);
    if (!p->schema)
        return st_fail(err, STRATA_E_FORMAT, "the JSON schema is not JSON: line %d: %s", why.line, why.text);
    enum strata_result r = st_schema_create(p->net, false, &p->plain, err);
    return r ? r : st_schema_rule(p->plain, p->schema, p->schema, "schema", rule, err);
}

static enum strata_result tools_rule(struct parts *p, const struct strata_constraint_options *o, bool tagged, uint32_t *rule,
                                     struct strata_error *err)
{
    enum strata_result r = st_json_parse(o->tools, strlen(o->tools), "tools", &p->tools, err);
    if (!r && !json_is_array(p->tools))
        r = st_fail(err, STRATA_E_ARGUMENT, "tools is not an array");
    if (!r)
        r = st_schema_create(p->net, tagged, &p->calls, err);
    struct calls c = {p->net, p->calls, tagged, err};
    return r ? r : calls_rule(&c, p->tools, o, rule);
}

static enum strata_result compile(struct parts *p, const struct strata_constraint_options *o, const char *template_text,
                                  struct st_grammar **out, struct strata_error *err)
{
    bool tagged = template_text && strstr(template_text, "<function=");
    uint32_t rule, node = ST_NET_NOWHERE;
    enum strata_result r = st_net_create(&p->net, err);
    if (!r && o->grammar && !(r = st_gbnf_read(p->net, o->grammar, strlen(o->grammar), &rule, err)))
        node = st_net_call(p->net, rule, ST_NET_RETURN);
    if (!r && o->json_schema && !(r = schema_rule(p, o, &rule, err)))
        node = st_net_call(p->net, rule, ST_NET_RETURN);
    if (!r && o->tools && !(r = tools_rule(p, o, tagged, &rule, err)))
        node = st_net_split(p->net, st_net_call(p->net, rule, ST_NET_RETURN), node);
    if (r)
        return r;
    uint32_t root = st_net_rule(p->net, "the answer", 10);
    st_net_define(p->net, root, behind_thinking(p->net, o->begun ? NULL : o->prompt, template_text, node));
    return st_net_finish(p->net, root, out, err);
}

static bool copy_text(const char *from, const char **to)
{
    *to = from ? strdup(from) : NULL;
    return !from || *to;
}

static bool copy_source(const struct strata_constraint_options *from, struct strata_constraint_options *to)
{
    to->one_call = from->one_call;
    to->prompt = from->prompt ? copy_end(from->prompt) : NULL;
    bool all = !from->prompt || to->prompt;
    /* Every member is set, so that all of them can be freed. */
    all &= copy_text(from->grammar, &to->grammar);
    all &= copy_text(from->json_schema, &to->json_schema);
    all &= copy_text(from->tools, &to->tools);
    all &= copy_text(from->tool, &to->tool);
    all &= copy_text(from->begun, &to->begun);
    return all;
}

enum strata_result st_constraint_create(const struct strata_constraint_options *options, const char *template_text,
                                        const struct st_trie *trie, struct strata_constraint **out, struct strata_error *err)
{
    struct parts p = {0};
    *out = NULL;
    if (!options->grammar && !options->json_schema && !options->tools)
        return st_fail(err, STRATA_E_ARGUMENT, "a constraint needs a grammar, a JSON schema or tools");
    if (options->grammar && (options->json_schema || options->tools))
        return st_fail(err, STRATA_E_ARGUMENT, "a grammar cannot go with a JSON schema or tools");
    struct strata_constraint *c = calloc(1, sizeof *c);
    if (!c || !copy_source(options, &c->source)) {
        strata_constraint_free(c);
        return st_fail(err, STRATA_E_MEMORY, "no memory for a constraint");
    }
    c->trie = trie;
    enum strata_result r = compile(&p, options, template_text, &c->grammar, err);
    st_schema_free(p.plain);
    st_schema_free(p.calls);
    st_net_free(p.net);
    json_decref(p.schema);
    json_decref(p.tools);
    struct st_matcher *m = NULL;
    if (!r && options->begun)
        r = st_constraint_begin(c, 0, &m, err);
    st_matcher_free(m);
    if (r)
        strata_constraint_free(c);
    else
        *out = c;
    return r;
}

void strata_constraint_free(struct strata_constraint *c)
{
    if (!c)
        return;
    st_grammar_free(c->grammar);
    free((char *)c->source.grammar);
    free((char *)c->source.json_schema);
    free((char *)c->source.tools);
    free((char *)c->source.tool);
    free((char *)c->source.prompt);
    free((char *)c->source.begun);
    free(c);
}

enum strata_result st_constraint_begin(const struct strata_constraint *c, size_t vocabulary, struct st_matcher **out,
                                       struct strata_error *err)
{
    enum strata_result r = st_matcher_create(c->grammar, c->trie, vocabulary, out, err);
    if (r || !c->source.begun)
        return r;
    r = st_matcher_text(*out, c->source.begun, strlen(c->source.begun), err);
    if (r) {
        st_matcher_free(*out);
        *out = NULL;
        return r == STRATA_E_ARGUMENT ? st_fail(err, r, "the beginning of the answer does not fit what it must be") : r;
    }
    return STRATA_OK;
}
