/* Schemas as wholes: what $ref means, several that must all hold as one, and whether two exclude each other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/schema_parts.h"

enum { CHAIN_MAX = 32, PARTS_MAX = 256, COMPARED_MAX = 4096, MERGED_MAX = 200000 };

int st_schema_types(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type");
    int types = st_type_named(type);
    size_t i;
    json_t *item;
    if (!type)
        return ST_TYPE_ALL;
    json_array_foreach((json_t *)type, i, item)
    {
        int one = st_type_named(item);
        if (!one)
            return 0;
        types |= one;
    }
    return types;
}

/* ---- references ---- */

/* One step of a pointer, ~1 and ~0 undone: appended to out up to '/' or the end. */
static const char *read_step(const char *at, char *out, size_t room)
{
    size_t n = 0;
    for (; *at && *at != '/' && n + 1 < room; at++) {
        bool escaped = at[0] == '~' && (at[1] == '0' || at[1] == '1');
        out[n++] = escaped ? (at[1] == '1' ? '/' : '~') : *at;
        at += escaped;
    }
    out[n] = 0;
    return at;
}

static const json_t *follow(const char *pointer, const json_t *root)
{
    const json_t *at = root;
    char step[256];
    if (*pointer++ != '#')
        return NULL;
    while (*pointer == '/' && at) {
        pointer = read_step(pointer + 1, step, sizeof step);
        if (json_is_array(at)) {
            char *end;
            unsigned long index = strtoul(step, &end, 10);
            at = *step && !*end ? json_array_get(at, index) : NULL;
        } else {
            at = json_object_get(at, step);
        }
    }
    return *pointer ? NULL : at;
}

const json_t *st_schema_resolve(const json_t *schema, const json_t *root)
{
    for (int i = 0; i < CHAIN_MAX && schema; i++) {
        const char *ref = json_string_value(json_object_get(schema, "$ref"));
        if (!ref)
            return schema;
        schema = follow(ref, root);
    }
    return NULL;
}

/* ---- merging ---- */

static bool set_new(json_t *object, const char *name, json_t *value)
{
    return json_object_set_new(object, name, value) == 0;
}

/* Members of both: a name of both has both schemas. */
static bool merge_properties(json_t *to, const json_t *from)
{
    const char *name;
    json_t *value;
    bool good = true;
    json_object_foreach((json_t *)from, name, value)
    {
        json_t *have = json_object_get(to, name);
        if (have && !json_equal(have, value))
            good &= set_new(to, name, json_pack("{s:[O,O]}", "allOf", have, value));
        else if (!have)
            good &= json_object_set(to, name, value) == 0;
    }
    return good;
}

static bool merge_required(json_t *to, const json_t *from)
{
    size_t i, k;
    json_t *name, *other;
    bool good = true;
    json_array_foreach((json_t *)from, i, name)
    {
        bool found = false;
        json_array_foreach(to, k, other) found |= json_equal(name, other);
        if (!found)
            good &= json_array_append(to, name) == 0;
    }
    return good;
}

/* The types that both lists name; false: none. */
static bool merge_types(json_t *into, const json_t *schema, bool *good)
{
    static const char *const names[] = {"string", "number", "integer", "boolean", "null", "object", "array"};
    int both = st_schema_types(into) & st_schema_types(schema);
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *name = json_string(names[i]);
        int type = st_type_named(name);
        bool whole = (both & type) == type && !(i == 2 && (both & ST_TYPE_NUMBER));
        if (whole)
            *good &= json_array_append(list, name) == 0;
        json_decref(name);
    }
    bool any = json_array_size(list) > 0;
    *good &= set_new(into, "type", list);
    return any;
}

/* One keyword of a schema into the merged one. False with s failed. */
static bool merge_keyword(struct st_schema *s, const struct st_schema_entry *e, json_t *into, const json_t *schema,
                          const char *name, json_t *value)
{
    json_t *have = json_object_get(into, name);
    bool good = true, same_kind = have && json_typeof(have) == json_typeof(value);
    char shown[60];
    s->merged += 1 + json_array_size(value) + json_object_size(value);
    if (s->merged > MERGED_MAX) {
        st_schema_bad(s, e->where, STRATA_E_LIMIT, "schemas that must all hold have more than %d parts together", MERGED_MAX);
        return false;
    }
    if (!have)
        good = set_new(into, name, json_copy(value)); /* what is inside is shared */
    else if (strcmp(name, "properties") == 0 && same_kind)
        good = merge_properties(have, value);
    else if (strcmp(name, "required") == 0 && same_kind && json_array_size(have) + json_array_size(value) <= ST_SCHEMA_MEMBERS)
        good = merge_required(have, value);
    else if (strcmp(name, "type") == 0) {
        if (!merge_types(into, schema, &good))
            st_schema_bad(s, e->where, STRATA_E_UNSUPPORTED, "keyword \"type\" excludes itself in schemas that must all hold");
    } else if (!json_equal(have, value))
        st_schema_bad(s, e->where, STRATA_E_UNSUPPORTED,
                      "keyword \"%s\" stands twice, with different values, in schemas that must all hold: not supported",
                      st_printable(shown, sizeof shown, name, strlen(name)));
    if (!good)
        st_schema_bad(s, e->where, STRATA_E_MEMORY, "no memory for a schema");
    return !s->failed;
}

/* additionalProperties speaks of the members that its own schema does not declare: where another part declares some, the merged
 * schema would say something else. */
static void check_others(struct st_schema *s, const struct st_schema_entry *e, const json_t *const *parts, size_t count)
{
    size_t speaking = 0, declaring = 0;
    for (size_t i = 0; i < count; i++) {
        const json_t *more = json_object_get(parts[i], "additionalProperties");
        speaking += more && !json_is_true(more);
        declaring += json_object_size(json_object_get(parts[i], "properties")) > 0 || json_object_get(parts[i], "required");
    }
    if (speaking && declaring > 1)
        st_schema_bad(s, e->where, STRATA_E_UNSUPPORTED,
                      "keyword \"additionalProperties\" in schemas that must all hold is not supported");
}

const json_t *st_schema_merge(struct st_schema *s, const struct st_schema_entry *e, const json_t *const *list, size_t count)
{
    const json_t *parts[PARTS_MAX], *todo[PARTS_MAX];
    size_t n = 0, left = 0, looked = 0;
    for (size_t i = count; i > 0; i--)
        todo[left++] = list[i - 1];
    while (left > 0) {
        const json_t *one = st_schema_resolve(todo[--left], e->root), *inner = json_object_get(one, "allOf");
        size_t more = json_array_size(inner);
        if (json_is_true(one))
            continue;
        if (!json_is_object(one) || n == PARTS_MAX || left + more > PARTS_MAX || ++looked > 4 * PARTS_MAX) {
            st_schema_bad(s, e->where, STRATA_E_UNSUPPORTED, "schemas that must all hold are not objects, or too many");
            return NULL;
        }
        if (json_object_get(todo[left], "$ref") && json_object_size(todo[left]) > 1) {
            const char *name;
            json_t *value;
            json_object_foreach((json_t *)todo[left], name, value) if (strcmp(name, "$ref") != 0 && !st_schema_annotation(name))
                st_schema_bad(s, e->where, STRATA_E_UNSUPPORTED, "keyword \"%.40s\" beside \"$ref\" is not supported", name);
        }
        parts[n++] = one;
        for (size_t i = more; i > 0; i--)
            todo[left++] = json_array_get(inner, i - 1);
    }
    check_others(s, e, parts, n);
    json_t *merged = json_object();
    if (!merged || json_array_append_new(s->owned, merged) != 0) {
        st_schema_bad(s, e->where, STRATA_E_MEMORY, "no memory for a schema");
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        const char *name;
        json_t *value;
        json_object_foreach((json_t *)parts[i], name, value)
        {
            if (strcmp(name, "allOf") != 0 && !st_schema_annotation(name) &&
                !merge_keyword(s, e, merged, parts[i], name, value))
                return NULL;
        }
    }
    return s->failed ? NULL : merged;
}

/* ---- exclusion ---- */

/* Values that a schema lists, as an array, or NULL. */
static json_t *constants(const json_t *schema)
{
    json_t *constant = json_object_get(schema, "const"), *list = json_object_get(schema, "enum");
    return constant ? json_pack("[O]", constant) : json_is_array(list) ? json_incref(list) : NULL;
}

static bool constants_differ(const json_t *a, const json_t *b)
{
    json_t *x = constants(a), *y = constants(b), *one, *other;
    bool differ = x && y && json_array_size(x) * json_array_size(y) <= COMPARED_MAX;
    size_t i, k;
    if (!differ) {
        json_decref(x);
        json_decref(y);
        return false;
    }
    json_array_foreach(x, i, one) json_array_foreach(y, k, other)
    {
        bool numbers = json_is_number(one) && json_is_number(other);
        differ &= numbers ? json_number_value(one) < json_number_value(other) || json_number_value(one) > json_number_value(other)
                          : !json_equal(one, other);
    }
    json_decref(x);
    json_decref(y);
    return differ;
}

static int types_of(const json_t *schema)
{
    json_t *list = constants(schema), *value;
    int types = list ? 0 : st_schema_types(schema);
    size_t i;
    json_array_foreach(list, i, value) types |= st_type_of(value);
    if (types & ST_TYPE_INTEGER) /* 1.0 is one too */
        types |= ST_TYPE_NUMBER;
    json_decref(list);
    return types;
}

/* a demands a member that b forbids, or that has other constants or types there. */
static bool members_exclude(const json_t *a, const json_t *b, const json_t *root)
{
    const json_t *of_a = json_object_get(a, "properties"), *of_b = json_object_get(b, "properties");
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(a, "required"), i, item)
    {
        const char *name = json_is_string(item) ? json_string_value(item) : "";
        const json_t *x = st_schema_resolve(json_object_get(of_a, name), root),
                     *y = st_schema_resolve(json_object_get(of_b, name), root);
        if (!y && json_is_false(json_object_get(b, "additionalProperties")) && !json_object_get(of_b, name))
            return true;
        if (x && y && (constants_differ(x, y) || !(types_of(x) & types_of(y))))
            return true;
    }
    return false;
}

bool st_schema_disjoint(const json_t *a, const json_t *b, const json_t *root)
{
    a = st_schema_resolve(a, root);
    b = st_schema_resolve(b, root);
    if (!json_is_object(a) || !json_is_object(b))
        return false;
    int x = types_of(a), y = types_of(b);
    if (constants_differ(a, b) || !(x & y))
        return true;
    return x == ST_TYPE_OBJECT && y == ST_TYPE_OBJECT && (members_exclude(a, b, root) || members_exclude(b, a, root));
}
