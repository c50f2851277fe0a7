/* Objects, arrays, and values that are written in one way. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/schema_parts.h"

/* ---- values ---- */

char *st_schema_dump(const struct st_schema *s, const json_t *value)
{
    size_t flags = JSON_ENCODE_ANY | JSON_COMPACT | JSON_PRESERVE_ORDER | (s->tagged ? JSON_ESCAPE_SLASH : 0);
    for (int digits = 15;; digits++) { /* as few digits as give the number again */
        char *text = json_dumps(value, flags | JSON_REAL_PRECISION(digits));
        json_t *again = text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
        bool good = !text || digits == 17 || json_equal(again, (json_t *)value);
        json_decref(again);
        if (good)
            return text;
        free(text);
    }
}

uint32_t st_schema_literal(struct st_schema *s, const char *text, size_t size, uint32_t next)
{
    bool *outside = malloc(size + 1); /* a byte that is not in a string */
    bool in_string = false;
    if (!outside)
        return st_schema_bad(s, "schema", STRATA_E_MEMORY, "no memory for a schema");
    for (size_t i = 0; i < size; i++) {
        outside[i] = !in_string;
        if (in_string && text[i] == '\\')
            outside[++i] = false;
        else if (text[i] == '"')
            in_string = !in_string;
    }
    for (size_t i = size; i > 0 && st_schema_good(s); i--) {
        if (outside[i - 1] && (text[i - 1] == ',' || text[i - 1] == ':'))
            next = st_net_split(s->net, st_net_text(s->net, " ", 1, next), next);
        next = st_net_text(s->net, text + i - 1, 1, next);
    }
    free(outside);
    return next;
}

static uint32_t ws(struct st_schema *s, uint32_t next)
{
    return st_net_call(s->net, st_schema_builtin(s, "ws"), next);
}

/* A comma, what may stand behind it, and the next part. */
static uint32_t comma(struct st_schema *s, uint32_t next)
{
    return st_net_text(s->net, ",", 1, ws(s, next));
}

/* ---- names of other members ---- */

/* The declared names as a tree of characters. */
struct letter {
    uint32_t cp, child, sibling; /* 0: none */
    bool ends;
};

struct names {
    struct letter *list;
    size_t count, room;
};

static void add_name(struct st_schema *s, const char *where, struct names *n, const char *name)
{
    const unsigned char *text = (const unsigned char *)name;
    uint32_t at = 0;
    for (size_t i = 0, size = strlen(name); i < size && !s->failed;) {
        uint32_t cp = 0, c = n->list[at].child;
        i += (size_t)st_utf8_scan(text + i, size - i, &cp);
        while (c && n->list[c].cp != cp)
            c = n->list[c].sibling;
        if (!c && n->count == n->room) {
            struct letter *grown = realloc(n->list, 2 * n->room * sizeof *grown);
            if (!grown) {
                st_schema_bad(s, where, STRATA_E_MEMORY, "no memory for a schema");
                return;
            }
            n->list = grown;
            n->room *= 2;
        }
        if (!c) {
            c = (uint32_t)n->count++;
            n->list[c] = (struct letter){cp, 0, n->list[at].child, false};
            n->list[at].child = c;
        }
        at = c;
    }
    n->list[at].ends = true;
}

/* Characters of a name, written without escapes. */
static uint32_t name_character(struct st_schema *s, const struct st_range *except, size_t count, uint32_t next)
{
    struct st_range *all = malloc((count + 4) * sizeof *all), *rest = malloc((count + 5) * sizeof *rest);
    uint32_t node = ST_NET_RETURN;
    if (!all || !rest) {
        st_schema_bad(s, "schema", STRATA_E_MEMORY, "no memory for a schema");
    } else {
        size_t n = 0;
        all[n++] = (struct st_range){0, 0x1F};
        all[n++] = (struct st_range){'"', '"'};
        all[n++] = (struct st_range){'\\', '\\'};
        if (s->tagged)
            all[n++] = (struct st_range){'<', '<'};
        for (size_t i = 0; i < count; i++)
            all[n++] = except[i];
        n = st_ranges_sort(all, n);
        n = st_ranges_invert(all, n, rest);
        node = st_net_set(s->net, rest, n, next);
    }
    free(all);
    free(rest);
    return node;
}

/* A quoted name that is none of those in the tree. */
static uint32_t other_name(struct st_schema *s, const struct names *n, uint32_t next)
{
    uint32_t close = st_net_text(s->net, "\"", 1, next), *made = malloc(n->count * sizeof *made);
    uint32_t rest = st_net_loop(s->net, close);
    st_net_loop_body(s->net, rest, name_character(s, NULL, 0, rest));
    struct st_range *here = malloc((n->count + 1) * sizeof *here);
    for (size_t i = n->count; made && here && i > 0 && st_schema_good(s); i--) {
        const struct letter *l = &n->list[i - 1];
        size_t count = 0;
        uint32_t node = l->ends ? ST_NET_NOWHERE : close;
        for (uint32_t c = l->child; c; c = n->list[c].sibling) {
            here[count++] = (struct st_range){n->list[c].cp, n->list[c].cp};
            node = st_net_split(s->net, st_net_set(s->net, &here[count - 1], 1, made[c]), node);
        }
        made[i - 1] = st_net_split(s->net, name_character(s, here, count, rest), node);
    }
    uint32_t start = made && here && st_schema_good(s) ? made[0] : ST_NET_RETURN;
    if (!made || !here)
        st_schema_bad(s, "schema", STRATA_E_MEMORY, "no memory for a schema");
    free(made);
    free(here);
    return st_net_text(s->net, "\"", 1, start);
}

/* ---- objects ---- */

struct member {
    const char *name;
    const json_t *schema; /* NULL: any value */
    bool required;
};

struct object {
    struct st_schema *s;
    const struct st_schema_entry *e;
    struct member *members;
    size_t count;
    bool more;            /* other members are possible */
    const json_t *others; /* their schema, NULL: any value */
};

static uint32_t value_rule(struct object *o, const json_t *schema, const char *step)
{
    if (!schema || json_is_true(schema))
        return st_schema_builtin(o->s, "value");
    return st_schema_part(o->s, schema, o->e->root, o->e->where, step);
}

/* The name, as JSON writes it, up to the value. */
static uint32_t named_value(struct object *o, const struct member *m, uint32_t next)
{
    struct st_schema *s = o->s;
    char step[80];
    snprintf(step, sizeof step, "properties.%.60s", m->name);
    json_t *name = json_string(m->name);
    char *text = name ? st_schema_dump(s, name) : NULL;
    uint32_t node = st_net_call(s->net, value_rule(o, m->schema, step), next);
    node = st_net_split(s->net, st_net_text(s->net, " ", 1, node), node);
    node = st_net_text(s->net, ":", 1, node);
    if (text)
        node = st_net_text(s->net, text, strlen(text), node);
    else
        st_schema_bad(s, o->e->where, STRATA_E_MEMORY, "no memory for a schema");
    free(text);
    json_decref(name);
    return node;
}

/* A rule for one of the other members. */
static uint32_t other_member(struct object *o)
{
    struct st_schema *s = o->s;
    uint32_t rule = st_net_rule(s->net, o->e->where, strlen(o->e->where));
    struct names names = {.list = calloc(64, sizeof *names.list), .count = 1, .room = 64};
    if (!names.list) {
        st_schema_bad(s, o->e->where, STRATA_E_MEMORY, "no memory for a schema");
        return rule;
    }
    for (size_t i = 0; i < o->count; i++)
        add_name(s, o->e->where, &names, o->members[i].name);
    uint32_t node = st_net_call(s->net, value_rule(o, o->others, "additionalProperties"), ST_NET_RETURN);
    node = st_net_split(s->net, st_net_text(s->net, " ", 1, node), node);
    node = st_net_text(s->net, ":", 1, node);
    st_net_define(s->net, rule, other_name(s, &names, node));
    free(names.list);
    return rule;
}

static uint32_t object_nodes(struct object *o, uint32_t next)
{
    struct st_schema *s = o->s;
    /* rest: behind some member; first: nothing was written yet */
    uint32_t close = st_net_text(s->net, "}", 1, next), rest = ws(s, close), first = close;
    if (o->more) {
        uint32_t rule = other_member(o), loop = st_net_loop(s->net, rest);
        st_net_loop_body(s->net, loop, comma(s, st_net_call(s->net, rule, loop)));
        first = st_net_split(s->net, st_net_call(s->net, rule, loop), close);
        rest = loop;
    }
    for (size_t i = o->count; i > 0 && st_schema_good(s); i--) {
        const struct member *m = &o->members[i - 1];
        uint32_t rule = st_net_rule(s->net, o->e->where, strlen(o->e->where));
        st_net_define(s->net, rule, named_value(o, m, ST_NET_RETURN));
        uint32_t with = st_net_call(s->net, rule, rest), behind = comma(s, with);
        first = m->required ? with : st_net_split(s->net, with, first);
        rest = m->required ? behind : st_net_split(s->net, behind, rest);
    }
    return st_net_text(s->net, "{", 1, ws(s, first));
}

static bool listed(const json_t *list, const char *name)
{
    size_t i;
    json_t *item;
    json_array_foreach((json_t *)list, i, item) if (json_is_string(item) && strcmp(json_string_value(item), name) == 0) return true;
    return false;
}

/* Members in the order of properties, then those that are required without being declared. */
static void collect(struct object *o, const json_t *properties, const json_t *required)
{
    const char *name;
    json_t *value;
    size_t i;
    json_object_foreach((json_t *)properties, name, value)
    {
        bool must = listed(required, name);
        if (json_is_false(value) && must)
            st_schema_bad(o->s, o->e->where, STRATA_E_UNSUPPORTED, "a required member has the schema false");
        if (!json_is_false(value))
            o->members[o->count++] = (struct member){name, value, must};
    }
    json_array_foreach((json_t *)required, i, value)
    {
        if (!json_is_string(value))
            st_schema_bad(o->s, o->e->where, STRATA_E_FORMAT, "required is not a list of names");
        else if (!json_object_get(properties, json_string_value(value)))
            o->members[o->count++] = (struct member){json_string_value(value), o->others, true};
    }
}

uint32_t st_schema_object(struct st_schema *s, const struct st_schema_entry *e, uint32_t next)
{
    const json_t *properties = json_object_get(e->schema, "properties"), *required = json_object_get(e->schema, "required"),
                 *more = json_object_get(e->schema, "additionalProperties");
    struct object o = {.s = s, .e = e, .others = json_is_object(more) ? more : NULL};
    if ((properties && !json_is_object(properties)) || (required && !json_is_array(required)) ||
        (more && !json_is_object(more) && !json_is_boolean(more)))
        return st_schema_bad(s, e->where, STRATA_E_FORMAT, "properties, required or additionalProperties has the wrong type");
    if (json_object_size(properties) + json_array_size(required) > ST_SCHEMA_MEMBERS)
        return st_schema_bad(s, e->where, STRATA_E_LIMIT, "an object has more than %d members", ST_SCHEMA_MEMBERS);
    size_t i, k;
    json_t *name, *before;
    json_array_foreach((json_t *)required, i, name)
    {
        if (json_is_false(more) && json_is_string(name) && !json_object_get(properties, json_string_value(name)))
            return st_schema_bad(s, e->where, STRATA_E_UNSUPPORTED, "a member is required that additionalProperties forbids");
        json_array_foreach((json_t *)required, k, before) if (k < i && json_equal(before, name)) return st_schema_bad(
            s, e->where, STRATA_E_FORMAT, "required names a member twice");
    }
    o.members = calloc(json_object_size(properties) + json_array_size(required) + 1, sizeof *o.members);
    if (!o.members)
        return st_schema_bad(s, e->where, STRATA_E_MEMORY, "no memory for a schema");
    o.more = more ? !json_is_false(more) : !properties;
    collect(&o, properties, required);
    uint32_t node = object_nodes(&o, next);
    free(o.members);
    return node;
}

/* ---- arrays ---- */

struct array {
    struct st_schema *s;
    const struct st_schema_entry *e;
    const json_t *first, *items; /* prefixItems; the others' schema, NULL: any */
};

static uint32_t element(struct array *a, size_t index, uint32_t next)
{
    const json_t *schema = index < json_array_size(a->first) ? json_array_get(a->first, index) : a->items;
    char step[40] = "items";
    if (index < json_array_size(a->first))
        snprintf(step, sizeof step, "prefixItems[%zu]", index);
    uint32_t rule = !schema || json_is_true(schema) ? st_schema_builtin(a->s, "value")
                                                    : st_schema_part(a->s, schema, a->e->root, a->e->where, step);
    return st_net_call(a->s->net, rule, next);
}

uint32_t st_schema_array(struct st_schema *s, const struct st_schema_entry *e, uint32_t next)
{
    struct array a = {s, e, json_object_get(e->schema, "prefixItems"), json_object_get(e->schema, "items")};
    uint32_t min, max;
    st_schema_counts(s, e->schema, "minItems", "maxItems", e->where, &min, &max);
    size_t listed_items = json_array_size(a.first);
    if ((a.first && !json_is_array(a.first)) || (a.items && !json_is_object(a.items) && !json_is_boolean(a.items)))
        return st_schema_bad(s, e->where, STRATA_E_UNSUPPORTED, "prefixItems is not an array of schemas, or items not one schema");
    if (json_is_false(a.items) && listed_items < max)
        max = (uint32_t)listed_items;
    if (max < min)
        return st_schema_bad(s, e->where, STRATA_E_UNSUPPORTED, "minItems is more than items and prefixItems allow");
    uint32_t close = st_net_text(s->net, "]", 1, next), end = ws(s, close), node = end;
    size_t last = max; /* behind so many elements, nothing or the loop comes */
    if (max == ST_REPEAT_FOREVER) {
        last = listed_items > min ? listed_items : min;
        last += last == 0;
        node = st_net_loop(s->net, end);
        st_net_loop_body(s->net, node, comma(s, element(&a, last, node)));
    }
    if (last == 0)
        return st_net_text(s->net, "[", 1, ws(s, close));
    for (size_t k = last - 1; k > 0 && st_schema_good(s); k--) {
        uint32_t more = comma(s, element(&a, k, node));
        node = k >= min ? st_net_split(s->net, more, end) : more;
    }
    uint32_t some = element(&a, 0, node);
    return st_net_text(s->net, "[", 1, ws(s, min == 0 ? st_net_split(s->net, some, close) : some));
}
