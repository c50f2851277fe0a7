/* Template interpreter: filters and tests (Jinja 3.1's built-in ones; tojson as transformers defines it). */
#include "text/jinja_value.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "base/utf8.h"

enum { MAX_PARAMETERS = 5 };

bool st_j_bind(struct st_j *j, const char *what, const struct st_jargs *args, const char *const *names, size_t n,
               struct st_jvalue *out)
{
    size_t positional = args->count - args->named;
    for (size_t i = 0; i < n; i++)
        out[i] = i < positional ? args->values[i] : (struct st_jvalue){.kind = ST_J_ABSENT};
    if (positional > n)
        st_j_fail(j, STRATA_E_ARGUMENT, "%s takes at most %zu arguments, not %zu", what, n, positional);
    for (size_t k = 0; k < args->named && !j->failed; k++) {
        size_t i = 0;
        while (i < n && strcmp(names[i] + (names[i][0] == '!'), args->names[k]) != 0)
            i++;
        if (i == n)
            st_j_fail(j, STRATA_E_ARGUMENT, "%s has no argument '%s'", what, args->names[k]);
        else if (out[i].kind != ST_J_ABSENT)
            st_j_fail(j, STRATA_E_ARGUMENT, "%s gets its argument '%s' twice", what, args->names[k]);
        else
            out[i] = args->values[positional + k];
    }
    for (size_t i = 0; i < n && !j->failed; i++)
        if (names[i][0] == '!' && out[i].kind == ST_J_ABSENT)
            st_j_fail(j, STRATA_E_ARGUMENT, "%s needs its argument '%s'", what, names[i] + 1);
    return !j->failed;
}

/* ---- arguments ---- */

static bool given(struct st_jvalue v)
{
    return v.kind != ST_J_ABSENT && v.kind != ST_J_NONE;
}

static struct st_jstring *text_of(struct st_j *j, struct st_jvalue v)
{
    static struct st_jstring empty = {.data = ""};
    struct st_jvalue s = st_j_str(j, v);
    return s.kind == ST_J_STRING && !j->failed ? s.of.string : &empty;
}

static int64_t integer(struct st_j *j, struct st_jvalue v, int64_t usual, const char *what)
{
    int64_t n = usual;
    if (given(v) && !st_j_integer(&v, &n))
        st_j_fail(j, STRATA_E_ARGUMENT, "%s is an integer, not a %s", what, st_j_type(&v));
    return n;
}

static struct st_jvalue lowered(struct st_j *j, struct st_jvalue v, bool keep_case)
{
    return v.kind == ST_J_STRING && !keep_case ? st_j_case(j, v.of.string, 'l') : v;
}

/* An attribute path like "function.name" or 0. */
static struct st_jvalue by_path(struct st_j *j, struct st_jvalue v, struct st_jvalue path)
{
    int64_t number;
    if (st_j_integer(&path, &number))
        return st_j_subscript(j, v, path);
    if (path.kind != ST_J_STRING) {
        st_j_fail(j, STRATA_E_ARGUMENT, "an attribute is named by a str, not a %s", st_j_type(&path));
        return v;
    }
    struct st_jstring *s = path.of.string;
    const char *data = st_j_data(j, s);
    for (size_t from = 0; from <= s->size && !j->failed;) {
        const char *dot = memchr(data + from, '.', s->size - from);
        size_t to = dot ? (size_t)(dot - data) : s->size;
        bool digits = to > from && to - from < 10;
        for (size_t i = from; i < to; i++)
            digits = digits && data[i] >= '0' && data[i] <= '9';
        v = st_j_subscript(j, v, digits ? st_j_int(atoll(data + from)) : st_j_part(j, s, from, to));
        from = to + 1;
    }
    return v;
}

/* ---- filters of one value ---- */

#define FILTER(name)                                                                                                   \
    static struct st_jvalue name(struct st_j *j, struct st_jvalue v, const struct st_jvalue *a,                        \
                                 const struct st_jargs *args)
#define UNUSED_ARGUMENTS (void)a, (void)args

FILTER(filter_abs)
{
    UNUSED_ARGUMENTS;
    int64_t n;
    if (v.kind == ST_J_FLOAT)
        return st_j_real(fabs(v.of.real));
    if (st_j_integer(&v, &n) && n != INT64_MIN)
        return st_j_int(n < 0 ? -n : n);
    st_j_fail(j, STRATA_E_ARGUMENT, "abs needs a number, not a %s", st_j_type(&v));
    return v;
}

FILTER(filter_attr)
{
    (void)args;
    struct st_jstring *name = text_of(j, a[0]);
    const char *data = st_j_data(j, name);
    if (v.kind == ST_J_NAMESPACE || v.kind == ST_J_LOOP)
        return st_j_attribute(j, v, data, name->size);
    return st_j_method(j, v, data, name->size);
}

FILTER(filter_upper)
{
    UNUSED_ARGUMENTS;
    return st_j_case(j, text_of(j, v), 'u');
}

FILTER(filter_lower)
{
    UNUSED_ARGUMENTS;
    return st_j_case(j, text_of(j, v), 'l');
}

FILTER(filter_capitalize)
{
    UNUSED_ARGUMENTS;
    return st_j_case(j, text_of(j, v), 'c');
}

FILTER(filter_title)
{
    UNUSED_ARGUMENTS;
    return st_j_case(j, text_of(j, v), 'T');
}

FILTER(filter_trim)
{
    (void)args;
    return st_j_strip(j, text_of(j, v), given(a[0]) ? text_of(j, a[0]) : NULL, 0);
}

FILTER(filter_string)
{
    UNUSED_ARGUMENTS;
    return st_j_str(j, v);
}

FILTER(filter_safe)
{
    UNUSED_ARGUMENTS;
    return st_j_str(j, v);
}

FILTER(filter_escape)
{
    UNUSED_ARGUMENTS;
    static const char from[] = "&<>\"'", *const to[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    struct st_jstring *s = text_of(j, v);
    const char *data = st_j_data(j, s), *hit;
    struct st_jbuffer b = {0};
    size_t plain = 0;
    for (size_t i = 0; i < s->size && !j->failed; i++)
        if (data[i] && (hit = strchr(from, data[i]))) {
            st_j_put_part(j, &b, s, plain, i);
            st_j_puts(j, &b, to[hit - from]);
            plain = i + 1;
        }
    st_j_put_part(j, &b, s, plain, s->size);
    return st_j_built(j, &b);
}

FILTER(filter_urlencode)
{
    UNUSED_ARGUMENTS;
    struct st_jstring *s = text_of(j, v);
    const char *data = st_j_data(j, s);
    struct st_jbuffer b = {0};
    for (size_t i = 0; i < s->size && !j->failed; i++) {
        char c = data[i], code[4];
        bool plain = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || (c && strchr("_.-~/", c));
        snprintf(code, sizeof code, plain ? "%c" : "%%%02X", (unsigned)(unsigned char)c);
        st_j_put(j, &b, code, strlen(code), s->marks ? s->marks[i] : s->user);
    }
    return st_j_built(j, &b);
}

FILTER(filter_center)
{
    (void)args;
    struct st_jstring *s = text_of(j, v);
    int64_t width = integer(j, a[0], 80, "a width"), n = (int64_t)st_j_length(j, s), room = width > n ? width - n : 0;
    int64_t left = room / 2 + (room & width & 1);
    struct st_jbuffer b = {0};
    for (int64_t i = 0; i < left && !j->failed; i++)
        st_j_puts(j, &b, " ");
    st_j_put_string(j, &b, s);
    for (int64_t i = left; i < room && !j->failed; i++)
        st_j_puts(j, &b, " ");
    return st_j_built(j, &b);
}

FILTER(filter_default)
{
    (void)args;
    bool missing = v.kind == ST_J_UNDEFINED || (a[1].kind != ST_J_ABSENT && st_j_true(j, a[1]) && !st_j_true(j, v));
    return !missing ? v : a[0].kind == ST_J_ABSENT ? st_j_literal(j, "") : a[0];
}

FILTER(filter_length)
{
    UNUSED_ARGUMENTS;
    switch (v.kind) {
    case ST_J_STRING: return st_j_int((int64_t)st_j_length(j, v.of.string));
    case ST_J_LIST: return st_j_int((int64_t)v.of.list->count);
    case ST_J_DICT: return st_j_int((int64_t)v.of.dict->count);
    case ST_J_UNDEFINED: return st_j_int(0);
    default: st_j_fail(j, STRATA_E_ARGUMENT, "a %s has no length", st_j_type(&v)); return v;
    }
}

FILTER(filter_int)
{
    (void)args;
    int64_t n, base = integer(j, a[1], 10, "a base");
    struct st_jvalue usual = a[0].kind == ST_J_ABSENT ? st_j_int(0) : a[0];
    if (v.kind == ST_J_UNDEFINED) {
        st_j_fail(j, STRATA_E_ARGUMENT, "'%s' is undefined", v.of.hint ? v.of.hint : "value");
        return v;
    }
    if (st_j_integer(&v, &n))
        return st_j_int(n);
    double real = NAN;
    if (v.kind == ST_J_FLOAT) {
        real = v.of.real;
    } else if (v.kind == ST_J_STRING && base >= 2 && base <= 36) {
        char text[64], *end;
        struct st_jvalue bare = st_j_strip(j, v.of.string, NULL, 0);
        if (j->failed || bare.of.string->size == 0 || bare.of.string->size >= sizeof text)
            return usual;
        memcpy(text, bare.of.string->data, bare.of.string->size);
        text[bare.of.string->size] = 0;
        n = strtoll(text, &end, (int)base);
        if (*end == 0 && n != INT64_MAX && n != INT64_MIN)
            return st_j_int(n);
        real = strtod(text, &end);
        if (*end)
            real = NAN;
    }
    return isfinite(real) && fabs(real) < 9.2e18 ? st_j_int((int64_t)real) : usual;
}

FILTER(filter_float)
{
    (void)args;
    double real;
    if (v.kind == ST_J_UNDEFINED) {
        st_j_fail(j, STRATA_E_ARGUMENT, "'%s' is undefined", v.of.hint ? v.of.hint : "value");
        return v;
    }
    if (st_j_number(&v, &real))
        return st_j_real(real);
    if (v.kind == ST_J_STRING) {
        char text[400], *end;
        struct st_jvalue bare = st_j_strip(j, v.of.string, NULL, 0);
        if (!j->failed && bare.of.string->size && bare.of.string->size < sizeof text) {
            memcpy(text, bare.of.string->data, bare.of.string->size);
            text[bare.of.string->size] = 0;
            real = strtod(text, &end);
            if (*end == 0)
                return st_j_real(real);
        }
    }
    return a[0].kind == ST_J_ABSENT ? st_j_real(0) : a[0];
}

FILTER(filter_round)
{
    (void)args;
    int64_t precision = integer(j, a[0], 0, "a precision"), n;
    double real;
    bool ceiling = st_j_is(&a[1], "ceil"), bottom = st_j_is(&a[1], "floor");
    if (!st_j_number(&v, &real) || (given(a[1]) && !ceiling && !bottom && !st_j_is(&a[1], "common"))) {
        st_j_fail(j, STRATA_E_ARGUMENT, "round takes a number and the methods common, ceil and floor");
        return v;
    }
    if (precision < -300 || precision > 300 || !isfinite(real))
        return v;
    if (ceiling || bottom) {
        double scale = pow(10, (double)precision);
        return st_j_real((ceiling ? ceil(real * scale) : floor(real * scale)) / scale);
    }
    if (st_j_integer(&v, &n) && precision >= 0)
        return st_j_int(n);
    if (precision < 0) {
        double scale = pow(10, (double)-precision), rounded = nearbyint(real / scale) * scale;
        return v.kind == ST_J_FLOAT ? st_j_real(rounded) : st_j_int((int64_t)rounded);
    }
    char text[700]; /* decimal rounding of the exact binary value, halves to even */
    snprintf(text, sizeof text, "%.*f", (int)precision, real);
    return st_j_real(strtod(text, NULL));
}

FILTER(filter_indent)
{
    (void)args;
    struct st_jstring *s = text_of(j, v), *by;
    bool first = a[1].kind != ST_J_ABSENT && st_j_true(j, a[1]), blank = a[2].kind != ST_J_ABSENT && st_j_true(j, a[2]);
    struct st_jbuffer spaces = {0}, b = {0};
    if (a[0].kind == ST_J_STRING) {
        by = a[0].of.string;
    } else {
        int64_t width = integer(j, a[0], 4, "a width");
        for (int64_t i = 0; i < width && !j->failed; i++)
            st_j_puts(j, &spaces, " ");
        by = text_of(j, st_j_built(j, &spaces));
    }
    /* One more newline makes a text that ends with one keep it. */
    struct st_jvalue more =
        st_j_concat(j, (struct st_jvalue){.kind = ST_J_STRING, .of.string = s}, st_j_literal(j, "\n"));
    if (j->failed)
        return v;
    struct st_jvalue lines = st_j_split_lines(j, more.of.string, false);
    for (size_t i = 0; i < lines.of.list->count && !j->failed; i++) {
        struct st_jstring *line = lines.of.list->items[i].of.string;
        if (i)
            st_j_puts(j, &b, "\n");
        if (i == 0 ? first : blank || line->size)
            st_j_put_string(j, &b, by);
        st_j_put_string(j, &b, line);
    }
    return st_j_built(j, &b);
}

FILTER(filter_replace)
{
    (void)args;
    int64_t most = integer(j, a[2], -1, "a count");
    return st_j_replace(j, text_of(j, v), text_of(j, a[0]), text_of(j, a[1]), most);
}

FILTER(filter_truncate)
{
    (void)args;
    struct st_jstring *s = text_of(j, v), *end = text_of(j, a[2].kind == ST_J_ABSENT ? st_j_literal(j, "...") : a[2]);
    int64_t length = integer(j, a[0], 255, "a length"), leeway = integer(j, a[3], 5, "a leeway");
    int64_t kept = length - (int64_t)st_j_length(j, end);
    if (kept < 0 || leeway < 0) {
        st_j_fail(j, STRATA_E_ARGUMENT,
                  "truncate: the length is shorter than what it ends with, or the leeway negative");
        return v;
    }
    if ((int64_t)st_j_length(j, s) <= length + leeway)
        return st_j_str(j, v);
    size_t to = st_j_offset(j, s, (size_t)kept);
    if (!(a[1].kind != ST_J_ABSENT && st_j_true(j, a[1]))) {
        const char *data = st_j_data(j, s);
        size_t space = to;
        while (space > 0 && data[space - 1] != ' ')
            space--;
        if (space > 0)
            to = space - 1;
    }
    struct st_jbuffer b = {0};
    st_j_put_part(j, &b, s, 0, to);
    st_j_put_string(j, &b, end);
    return st_j_built(j, &b);
}

FILTER(filter_wordcount)
{
    UNUSED_ARGUMENTS;
    struct st_jstring *s = text_of(j, v);
    const char *data = st_j_data(j, s);
    int64_t words = 0;
    bool inside = false;
    if (!st_j_work(j, s->size / 4))
        return v;
    for (size_t i = 0; i < s->size;) {
        uint32_t cp = 0;
        int n = st_utf8_scan((const unsigned char *)data + i, s->size - i, &cp);
        utf8proc_category_t c = utf8proc_category((int32_t)cp);
        bool word = cp == '_' || (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO) ||
                    (c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO);
        words += word && !inside;
        inside = word;
        i += n > 0 ? (size_t)n : 1;
    }
    return st_j_int(words);
}

FILTER(filter_tojson)
{
    (void)args;
    struct st_jdump how = {.indent = given(a[1]) ? (int)integer(j, a[1], 0, "an indent") : -1,
                           .ascii = given(a[0]) && st_j_true(j, a[0]),
                           .sort = given(a[3]) && st_j_true(j, a[3])};
    if (how.indent > 1000) {
        st_j_fail(j, STRATA_E_LIMIT, "tojson indents by %d", how.indent);
        return v;
    }
    if (given(a[2])) {
        struct st_jvalue pair = st_j_iterate(j, a[2]);
        if (!j->failed && pair.of.list->count == 2) {
            how.item = text_of(j, pair.of.list->items[0]);
            how.key = text_of(j, pair.of.list->items[1]);
        } else {
            st_j_fail(j, STRATA_E_ARGUMENT, "tojson takes two separators");
        }
    }
    return st_j_to_json(j, v, &how);
}

FILTER(filter_format)
{
    (void)a;
    struct st_jvalue values;
    if (args->named && args->count > args->named) {
        st_j_fail(j, STRATA_E_ARGUMENT, "format takes positional or named arguments, not both");
        return v;
    }
    values = args->named ? st_j_dict(j) : st_j_list(j, args->count, true);
    for (size_t i = 0; i < args->count && !j->failed; i++) {
        if (args->named)
            st_j_dict_set(j, values.of.dict, st_j_literal(j, args->names[i]), args->values[i]);
        else
            st_j_append(j, values, args->values[i]);
    }
    return j->failed ? v : st_j_percent(j, text_of(j, v), values);
}

/* ---- filters of sequences ---- */

FILTER(filter_list)
{
    UNUSED_ARGUMENTS;
    struct st_jvalue from = st_j_iterate(j, v),
                     out = st_j_list(j, from.kind == ST_J_LIST ? from.of.list->count : 0, false);
    for (size_t i = 0; !j->failed && i < from.of.list->count; i++)
        st_j_append(j, out, from.of.list->items[i]);
    return out;
}

FILTER(filter_first)
{
    UNUSED_ARGUMENTS;
    if (v.kind == ST_J_STRING || v.kind == ST_J_LIST)
        return st_j_item(j, v, st_j_int(0));
    struct st_jvalue all = st_j_iterate(j, v);
    return !j->failed && all.of.list->count ? all.of.list->items[0] : st_j_undefined("first");
}

FILTER(filter_last)
{
    UNUSED_ARGUMENTS;
    if (v.kind == ST_J_STRING || v.kind == ST_J_LIST)
        return st_j_item(j, v, st_j_int(-1));
    struct st_jvalue all = st_j_iterate(j, v);
    return !j->failed && all.of.list->count ? all.of.list->items[all.of.list->count - 1] : st_j_undefined("last");
}

FILTER(filter_reverse)
{
    UNUSED_ARGUMENTS;
    const struct st_jvalue backwards[3] = {st_j_none(), st_j_none(), st_j_int(-1)};
    if (v.kind == ST_J_STRING)
        return st_j_slice(j, v, backwards);
    struct st_jvalue all = filter_list(j, v, a, args);
    return j->failed ? v : st_j_slice(j, all, backwards);
}

FILTER(filter_join)
{
    (void)args;
    struct st_jvalue all = st_j_iterate(j, v);
    struct st_jstring *between = a[0].kind == ST_J_ABSENT ? NULL : text_of(j, a[0]);
    struct st_jbuffer b = {0};
    for (size_t i = 0; !j->failed && i < all.of.list->count; i++) {
        if (i && between)
            st_j_put_string(j, &b, between);
        struct st_jvalue item = all.of.list->items[i];
        st_j_put_value(j, &b, given(a[1]) ? by_path(j, item, a[1]) : item, false);
    }
    return st_j_built(j, &b);
}

FILTER(filter_items)
{
    UNUSED_ARGUMENTS;
    if (v.kind == ST_J_UNDEFINED)
        return st_j_list(j, 0, false);
    if (v.kind != ST_J_DICT) {
        st_j_fail(j, STRATA_E_ARGUMENT, "items needs a dict, not a %s", st_j_type(&v));
        return v;
    }
    struct st_jvalue out = st_j_list(j, v.of.dict->count, false);
    for (size_t i = 0; i < v.of.dict->count && !j->failed; i++) {
        struct st_jvalue pair = st_j_list(j, 2, true);
        if (j->failed)
            break;
        st_j_append(j, pair, v.of.dict->keys[i]);
        st_j_append(j, pair, v.of.dict->values[i]);
        st_j_append(j, out, pair);
    }
    return out;
}

/* The items of a list in the order of their keys. */
static struct st_jvalue sorted(struct st_j *j, struct st_jvalue list, const struct st_jvalue *keys, bool reverse)
{
    size_t n = list.of.list->count, *order = st_j_alloc(j, n + 1, sizeof *order);
    struct st_jvalue out = st_j_list(j, n, false);
    if (!order || j->failed)
        return list;
    /* Equal items keep their order in both directions. */
    for (size_t i = 0; i < n; i++)
        order[i] = reverse ? n - 1 - i : i;
    st_j_sort(j, keys, order, n);
    for (size_t i = 0; i < n && !j->failed; i++)
        st_j_append(j, out, list.of.list->items[order[reverse ? n - 1 - i : i]]);
    return out;
}

/* Sort key of an item: itself or its attributes (separated by commas), strings in lower case. */
static struct st_jvalue sort_key(struct st_j *j, struct st_jvalue item, struct st_jvalue attribute, bool keep_case)
{
    if (!given(attribute))
        return lowered(j, item, keep_case);
    if (attribute.kind != ST_J_STRING || !memchr(st_j_data(j, attribute.of.string), ',', attribute.of.string->size))
        return lowered(j, by_path(j, item, attribute), keep_case);
    struct st_jvalue key = st_j_list(j, 2, false);
    struct st_jstring *s = attribute.of.string;
    for (size_t from = 0; from <= s->size && !j->failed;) {
        const char *comma = memchr(s->data + from, ',', s->size - from);
        size_t to = comma ? (size_t)(comma - s->data) : s->size;
        st_j_append(j, key, lowered(j, by_path(j, item, st_j_part(j, s, from, to)), keep_case));
        from = to + 1;
    }
    return key;
}

static struct st_jvalue *sort_keys(struct st_j *j, struct st_jvalue list, struct st_jvalue attribute, bool keep_case)
{
    struct st_jvalue *keys = j->failed ? NULL : st_j_alloc(j, list.of.list->count + 1, sizeof *keys);
    for (size_t i = 0; keys && i < list.of.list->count; i++)
        keys[i] = sort_key(j, list.of.list->items[i], attribute, keep_case);
    return j->failed ? NULL : keys;
}

static bool flag(struct st_j *j, struct st_jvalue v)
{
    return v.kind != ST_J_ABSENT && st_j_true(j, v);
}

FILTER(filter_sort)
{
    struct st_jvalue list = filter_list(j, v, a, args), *keys = sort_keys(j, list, a[2], flag(j, a[1]));
    return keys ? sorted(j, list, keys, flag(j, a[0])) : v;
}

FILTER(filter_dictsort)
{
    struct st_jvalue list = filter_items(j, v, a, args);
    bool by_value = st_j_is(&a[1], "value");
    if (given(a[1]) && !by_value && !st_j_is(&a[1], "key"))
        st_j_fail(j, STRATA_E_ARGUMENT, "dictsort sorts by key or value");
    struct st_jvalue *keys = sort_keys(j, list, st_j_int(by_value), flag(j, a[0]));
    return keys ? sorted(j, list, keys, flag(j, a[2])) : v;
}

FILTER(filter_unique)
{
    struct st_jvalue list = filter_list(j, v, a, args), *keys = sort_keys(j, list, a[1], flag(j, a[0]));
    struct st_jvalue seen = st_j_dict(j), out = st_j_list(j, 8, false);
    for (size_t i = 0; keys && !j->failed && i < list.of.list->count; i++)
        if (!st_j_dict_find(j, seen.of.dict, keys[i])) {
            st_j_dict_set(j, seen.of.dict, keys[i], st_j_none());
            st_j_append(j, out, list.of.list->items[i]);
        }
    return out;
}

static struct st_jvalue extreme(struct st_j *j, struct st_jvalue v, const struct st_jvalue *a,
                                const struct st_jargs *args, int sign)
{
    struct st_jvalue list = filter_list(j, v, a, args), *keys = sort_keys(j, list, a[1], flag(j, a[0]));
    if (!keys || list.of.list->count == 0)
        return st_j_undefined("item");
    size_t best = 0;
    for (size_t i = 1; i < list.of.list->count && !j->failed; i++)
        if (st_j_compare(j, keys[i], keys[best]) * sign > 0)
            best = i;
    return list.of.list->items[best];
}

FILTER(filter_max)
{
    return extreme(j, v, a, args, 1);
}

FILTER(filter_min)
{
    return extreme(j, v, a, args, -1);
}

FILTER(filter_sum)
{
    (void)args;
    struct st_jvalue all = st_j_iterate(j, v), total = a[1].kind == ST_J_ABSENT ? st_j_int(0) : a[1];
    for (size_t i = 0; !j->failed && i < all.of.list->count; i++) {
        struct st_jvalue item = all.of.list->items[i];
        total = st_j_binary(j, ST_J_ADD, total, given(a[0]) ? by_path(j, item, a[0]) : item);
    }
    return total;
}

FILTER(filter_groupby)
{
    struct st_jvalue list = filter_list(j, v, a, args), *keys = sort_keys(j, list, a[0], flag(j, a[2]));
    struct st_jvalue out = st_j_list(j, 8, false);
    if (!keys)
        return v;
    for (size_t i = 0; i < list.of.list->count; i++)
        if (keys[i].kind == ST_J_UNDEFINED && given(a[1]))
            keys[i] = lowered(j, a[1], flag(j, a[2]));
    struct st_jvalue indices = st_j_list(j, list.of.list->count, false);
    for (size_t i = 0; i < list.of.list->count && !j->failed; i++)
        st_j_append(j, indices, st_j_int((int64_t)i));
    indices = j->failed ? indices : sorted(j, indices, keys, false);
    struct st_jvalue group = st_j_none();
    for (size_t i = 0; !j->failed && i < list.of.list->count; i++) {
        size_t at = (size_t)indices.of.list->items[i].of.number;
        if (i == 0 || !st_j_equal(j, keys[at], keys[indices.of.list->items[i - 1].of.number])) {
            group = st_j_list(j, 2, true);
            if (j->failed)
                break;
            group.of.list->group = true;
            struct st_jvalue shown = by_path(j, list.of.list->items[at], a[0]);
            st_j_append(j, group, shown.kind == ST_J_UNDEFINED && given(a[1]) ? a[1] : shown);
            st_j_append(j, group, st_j_list(j, 4, false));
            st_j_append(j, out, group);
        }
        if (!j->failed)
            st_j_append(j, group.of.list->items[1], list.of.list->items[at]);
    }
    return out;
}

FILTER(filter_batch)
{
    (void)args;
    struct st_jvalue all = st_j_iterate(j, v), out = st_j_list(j, 8, false), row = st_j_none();
    int64_t size = integer(j, a[0], 1, "a batch's size");
    if (size < 1) {
        st_j_fail(j, STRATA_E_ARGUMENT, "a batch has at least one item");
        return v;
    }
    for (size_t i = 0; !j->failed && i < all.of.list->count; i++) {
        if (i % (uint64_t)size == 0) {
            row = st_j_list(j, 8, false);
            st_j_append(j, out, row);
        }
        if (!j->failed)
            st_j_append(j, row, all.of.list->items[i]);
    }
    while (!j->failed && given(a[1]) && row.kind == ST_J_LIST && row.of.list->count < (uint64_t)size)
        st_j_append(j, row, a[1]);
    return out;
}

FILTER(filter_slice)
{
    (void)args;
    struct st_jvalue all = st_j_iterate(j, v), out = st_j_list(j, 8, false);
    int64_t slices = integer(j, a[0], 1, "a number of slices");
    if (slices < 1 || j->failed) {
        st_j_fail(j, STRATA_E_ARGUMENT, "there is at least one slice");
        return v;
    }
    int64_t n = (int64_t)all.of.list->count, size = n / slices, longer = n % slices;
    for (int64_t k = 0, from = 0; k < slices && !j->failed; k++) {
        int64_t to = from + size + (k < longer);
        struct st_jvalue part = st_j_list(j, 8, false);
        for (int64_t i = from; i < to && !j->failed; i++)
            st_j_append(j, part, all.of.list->items[i]);
        if (given(a[1]) && k >= longer && longer > 0 && !j->failed)
            st_j_append(j, part, a[1]);
        if (!j->failed)
            st_j_append(j, out, part);
        from = to;
    }
    return out;
}

/* A filter or test named by a value. */
static int named(struct st_j *j, struct st_jvalue name, bool test)
{
    struct st_jstring *s = text_of(j, name);
    const char *data = st_j_data(j, s);
    int which = test ? st_j_find_test(data, s->size) : st_j_find_filter(data, s->size);
    if (which < 0)
        st_j_fail(j, STRATA_E_UNSUPPORTED, "there is no %s \"%.*s\"", test ? "test" : "filter",
                  s->size > 40 ? 40 : (int)s->size, data);
    return which;
}

static struct st_jargs without_first(const struct st_jargs *args, size_t n)
{
    return (struct st_jargs){args->values + n, args->count - n, args->names, args->named};
}

FILTER(filter_map)
{
    static const char *const names[] = {"attribute", "default"};
    (void)a;
    struct st_jvalue all = st_j_iterate(j, v), out = st_j_list(j, 8, false), how[2];
    bool attribute = args->count == args->named;
    int which = -1;
    struct st_jargs rest = {0};
    if (attribute) {
        if (!st_j_bind(j, "map", args, names, 2, how))
            return out;
    } else {
        which = named(j, args->values[0], false);
        rest = without_first(args, 1);
    }
    if (!st_j_enter(j))
        return out;
    for (size_t i = 0; !j->failed && i < all.of.list->count; i++) {
        struct st_jvalue item = all.of.list->items[i];
        item = attribute ? by_path(j, item, how[0]) : st_j_filter(j, which, item, &rest);
        st_j_append(j, out, attribute && item.kind == ST_J_UNDEFINED && given(how[1]) ? how[1] : item);
    }
    st_j_leave(j);
    return out;
}

static struct st_jvalue chosen(struct st_j *j, struct st_jvalue v, const struct st_jargs *args, bool attribute,
                               bool keep)
{
    struct st_jvalue all = st_j_iterate(j, v), out = st_j_list(j, 8, false);
    size_t positional = args->count - args->named, first = attribute;
    int which = -1;
    struct st_jargs rest = {0};
    if (positional < first)
        st_j_fail(j, STRATA_E_ARGUMENT, "%s needs the name of an attribute", keep ? "selectattr" : "rejectattr");
    if (!j->failed && positional > first) {
        which = named(j, args->values[first], true);
        rest = without_first(args, first + 1);
    }
    if (!st_j_enter(j))
        return out;
    for (size_t i = 0; !j->failed && i < all.of.list->count; i++) {
        struct st_jvalue item = all.of.list->items[i], looked = attribute ? by_path(j, item, args->values[0]) : item;
        if ((which < 0 ? st_j_true(j, looked) : st_j_test(j, which, looked, &rest)) == keep)
            st_j_append(j, out, item);
    }
    st_j_leave(j);
    return out;
}

FILTER(filter_select)
{
    (void)a;
    return chosen(j, v, args, false, true);
}

FILTER(filter_reject)
{
    (void)a;
    return chosen(j, v, args, false, false);
}

FILTER(filter_selectattr)
{
    (void)a;
    return chosen(j, v, args, true, true);
}

FILTER(filter_rejectattr)
{
    (void)a;
    return chosen(j, v, args, true, false);
}

static const struct {
    const char *name;
    struct st_jvalue (*run)(struct st_j *, struct st_jvalue, const struct st_jvalue *, const struct st_jargs *);
    const char *parameters[MAX_PARAMETERS]; /* "*": takes the arguments as they are */
} filters[] = {
    {"abs", filter_abs, {0}},
    {"attr", filter_attr, {"!name"}},
    {"batch", filter_batch, {"!linecount", "fill_with"}},
    {"capitalize", filter_capitalize, {0}},
    {"center", filter_center, {"width"}},
    {"count", filter_length, {0}},
    {"d", filter_default, {"default_value", "boolean"}},
    {"default", filter_default, {"default_value", "boolean"}},
    {"dictsort", filter_dictsort, {"case_sensitive", "by", "reverse"}},
    {"e", filter_escape, {0}},
    {"escape", filter_escape, {0}},
    {"first", filter_first, {0}},
    {"float", filter_float, {"default"}},
    {"format", filter_format, {"*"}},
    {"groupby", filter_groupby, {"!attribute", "default", "case_sensitive"}},
    {"indent", filter_indent, {"width", "first", "blank"}},
    {"int", filter_int, {"default", "base"}},
    {"items", filter_items, {0}},
    {"join", filter_join, {"d", "attribute"}},
    {"last", filter_last, {0}},
    {"length", filter_length, {0}},
    {"list", filter_list, {0}},
    {"lower", filter_lower, {0}},
    {"map", filter_map, {"*"}},
    {"max", filter_max, {"case_sensitive", "attribute"}},
    {"min", filter_min, {"case_sensitive", "attribute"}},
    {"reject", filter_reject, {"*"}},
    {"rejectattr", filter_rejectattr, {"*"}},
    {"replace", filter_replace, {"!old", "!new", "count"}},
    {"reverse", filter_reverse, {0}},
    {"round", filter_round, {"precision", "method"}},
    {"safe", filter_safe, {0}},
    {"select", filter_select, {"*"}},
    {"selectattr", filter_selectattr, {"*"}},
    {"slice", filter_slice, {"!slices", "fill_with"}},
    {"sort", filter_sort, {"reverse", "case_sensitive", "attribute"}},
    {"string", filter_string, {0}},
    {"sum", filter_sum, {"attribute", "start"}},
    {"title", filter_title, {0}},
    {"tojson", filter_tojson, {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {"trim", filter_trim, {"chars"}},
    {"truncate", filter_truncate, {"length", "killwords", "end", "leeway"}},
    {"unique", filter_unique, {"case_sensitive", "attribute"}},
    {"upper", filter_upper, {0}},
    {"urlencode", filter_urlencode, {0}},
    {"wordcount", filter_wordcount, {0}},
};

int st_j_find_filter(const char *name, size_t size)
{
    for (size_t i = 0; i < sizeof filters / sizeof filters[0]; i++)
        if (strlen(filters[i].name) == size && memcmp(filters[i].name, name, size) == 0)
            return (int)i;
    return -1;
}

struct st_jvalue st_j_filter(struct st_j *j, int which, struct st_jvalue v, const struct st_jargs *args)
{
    struct st_jvalue bound[MAX_PARAMETERS];
    const char *const *names = filters[which].parameters;
    size_t n = 0;
    while (n < MAX_PARAMETERS && names[n])
        n++;
    bool raw = n && strcmp(names[0], "*") == 0;
    if (!st_j_work(j, 1) || (!raw && !st_j_bind(j, filters[which].name, args, names, n, bound)))
        return st_j_undefined(NULL);
    return filters[which].run(j, v, bound, args);
}

/* ---- tests ---- */

enum test {
    T_BOOLEAN,
    T_CALLABLE,
    T_DEFINED,
    T_UNDEFINED,
    T_DIVISIBLEBY,
    T_EQ,
    T_NE,
    T_LT,
    T_LE,
    T_GT,
    T_GE,
    T_EVEN,
    T_ODD,
    T_TRUE,
    T_FALSE,
    T_FILTER,
    T_TEST,
    T_FLOAT,
    T_INTEGER,
    T_IN,
    T_ITERABLE,
    T_LOWER,
    T_UPPER,
    T_MAPPING,
    T_NONE,
    T_NUMBER,
    T_SAMEAS,
    T_SEQUENCE,
    T_STRING,
    T_ESCAPED,
};

static const struct {
    const char *name;
    enum test which;
    bool takes_other;
} tests[] = {
    {"boolean", T_BOOLEAN, false},
    {"callable", T_CALLABLE, false},
    {"defined", T_DEFINED, false},
    {"undefined", T_UNDEFINED, false},
    {"divisibleby", T_DIVISIBLEBY, true},
    {"eq", T_EQ, true},
    {"equalto", T_EQ, true},
    {"==", T_EQ, true},
    {"ne", T_NE, true},
    {"!=", T_NE, true},
    {"lt", T_LT, true},
    {"lessthan", T_LT, true},
    {"<", T_LT, true},
    {"le", T_LE, true},
    {"<=", T_LE, true},
    {"gt", T_GT, true},
    {"greaterthan", T_GT, true},
    {">", T_GT, true},
    {"ge", T_GE, true},
    {">=", T_GE, true},
    {"even", T_EVEN, false},
    {"odd", T_ODD, false},
    {"true", T_TRUE, false},
    {"false", T_FALSE, false},
    {"filter", T_FILTER, false},
    {"test", T_TEST, false},
    {"float", T_FLOAT, false},
    {"integer", T_INTEGER, false},
    {"in", T_IN, true},
    {"iterable", T_ITERABLE, false},
    {"lower", T_LOWER, false},
    {"upper", T_UPPER, false},
    {"mapping", T_MAPPING, false},
    {"none", T_NONE, false},
    {"number", T_NUMBER, false},
    {"sameas", T_SAMEAS, true},
    {"sequence", T_SEQUENCE, false},
    {"string", T_STRING, false},
    {"escaped", T_ESCAPED, false},
};

int st_j_find_test(const char *name, size_t size)
{
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++)
        if (strlen(tests[i].name) == size && memcmp(tests[i].name, name, size) == 0)
            return (int)i;
    return -1;
}

/* str.islower and str.isupper: some letter has case, and all that have it have this one. */
static bool has_case(struct st_j *j, struct st_jvalue v, bool upper)
{
    struct st_jstring *s = text_of(j, v);
    const char *data = st_j_data(j, s);
    bool some = false;
    for (size_t i = 0; i < s->size;) {
        uint32_t cp = 0;
        int n = st_utf8_scan((const unsigned char *)data + i, s->size - i, &cp);
        utf8proc_category_t c = utf8proc_category((int32_t)cp);
        if (c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT) {
            if (c != (upper ? UTF8PROC_CATEGORY_LU : UTF8PROC_CATEGORY_LL))
                return false;
            some = true;
        }
        i += n > 0 ? (size_t)n : 1;
    }
    return some;
}

static bool divisible(struct st_j *j, struct st_jvalue v, struct st_jvalue by)
{
    struct st_jvalue rest = st_j_binary(j, ST_J_MOD, v, by);
    return !j->failed && st_j_equal(j, rest, st_j_int(0));
}

static bool ordered(struct st_j *j, enum test which, struct st_jvalue a, struct st_jvalue b)
{
    int c = st_j_compare(j, a, b);
    if (c == 2)
        return false;
    return which == T_LT ? c < 0 : which == T_LE ? c <= 0 : which == T_GT ? c > 0 : c >= 0;
}

bool st_j_test(struct st_j *j, int which, struct st_jvalue v, const struct st_jargs *args)
{
    static const char *const names[] = {"!other"};
    struct st_jvalue other = st_j_none();
    if (!st_j_work(j, 1) || !st_j_bind(j, tests[which].name, args, names, tests[which].takes_other ? 1 : 0, &other))
        return false;
    enum st_jkind k = v.kind;
    switch (tests[which].which) {
    case T_BOOLEAN: return k == ST_J_BOOL;
    case T_CALLABLE: return k == ST_J_MACRO || k == ST_J_FUNCTION || k == ST_J_METHOD;
    case T_DEFINED: return k != ST_J_UNDEFINED;
    case T_UNDEFINED: return k == ST_J_UNDEFINED;
    case T_DIVISIBLEBY: return divisible(j, v, other);
    case T_EQ: return st_j_equal(j, v, other);
    case T_NE: return !st_j_equal(j, v, other);
    case T_LT:
    case T_LE:
    case T_GT:
    case T_GE: return ordered(j, tests[which].which, v, other);
    case T_EVEN: return divisible(j, v, st_j_int(2));
    case T_ODD: return !divisible(j, v, st_j_int(2));
    case T_TRUE: return k == ST_J_BOOL && v.of.flag;
    case T_FALSE: return k == ST_J_BOOL && !v.of.flag;
    case T_FILTER: return k == ST_J_STRING && st_j_find_filter(st_j_data(j, v.of.string), v.of.string->size) >= 0;
    case T_TEST: return k == ST_J_STRING && st_j_find_test(st_j_data(j, v.of.string), v.of.string->size) >= 0;
    case T_FLOAT: return k == ST_J_FLOAT;
    case T_INTEGER: return k == ST_J_INT;
    case T_IN: return st_j_in(j, v, other);
    case T_ITERABLE: return k == ST_J_STRING || k == ST_J_LIST || k == ST_J_DICT || k == ST_J_UNDEFINED;
    case T_LOWER: return has_case(j, v, false);
    case T_UPPER: return has_case(j, v, true);
    case T_MAPPING: return k == ST_J_DICT;
    case T_NONE: return k == ST_J_NONE;
    case T_NUMBER: return k == ST_J_INT || k == ST_J_FLOAT || k == ST_J_BOOL;
    case T_SAMEAS: return k == other.kind && (k <= ST_J_STRING ? st_j_equal(j, v, other) : v.of.dict == other.of.dict);
    case T_SEQUENCE: return k == ST_J_STRING || k == ST_J_LIST || k == ST_J_DICT || k == ST_J_UNDEFINED;
    case T_STRING: return k == ST_J_STRING;
    case T_ESCAPED: break;
    }
    return false;
}
