/* Template interpreter: what Python does with values (truth, str, repr, comparison, arithmetic, items, slices), and
 * JSON. */
#define _GNU_SOURCE /* memmem */
#include "text/jinja_value.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "base/utf8.h"

const char *st_j_type(const struct st_jvalue *v)
{
    switch (v->kind) {
    case ST_J_UNDEFINED: return "undefined value";
    case ST_J_NONE: return "None";
    case ST_J_BOOL: return "bool";
    case ST_J_INT: return "int";
    case ST_J_FLOAT: return "float";
    case ST_J_STRING: return "str";
    case ST_J_LIST: return v->of.list->tuple ? "tuple" : "list";
    case ST_J_DICT: return "dict";
    case ST_J_NAMESPACE: return "namespace";
    case ST_J_MACRO: return "macro";
    case ST_J_FUNCTION:
    case ST_J_METHOD: return "function";
    case ST_J_LOOP: return "loop";
    case ST_J_ABSENT: break;
    }
    return "missing argument";
}

bool st_j_integer(const struct st_jvalue *v, int64_t *number)
{
    if (v->kind != ST_J_INT && v->kind != ST_J_BOOL)
        return false;
    *number = v->kind == ST_J_INT ? v->of.number : v->of.flag;
    return true;
}

bool st_j_number(const struct st_jvalue *v, double *real)
{
    int64_t i;
    if (v->kind == ST_J_FLOAT)
        *real = v->of.real;
    else if (st_j_integer(v, &i))
        *real = (double)i;
    else
        return false;
    return true;
}

bool st_j_true(struct st_j *j, struct st_jvalue v)
{
    (void)j;
    switch (v.kind) {
    case ST_J_UNDEFINED:
    case ST_J_ABSENT:
    case ST_J_NONE: return false;
    case ST_J_BOOL: return v.of.flag;
    case ST_J_INT: return v.of.number != 0;
    case ST_J_FLOAT: return v.of.real != 0;
    case ST_J_STRING: return v.of.string->size != 0;
    case ST_J_LIST: return v.of.list->count != 0;
    case ST_J_DICT: return v.of.dict->count != 0;
    default: return true;
    }
}

/* ---- str and repr ---- */

/* The shortest decimal that reads back as f; exponent form outside 1e-4 .. 1e16. */
void st_j_format_real(double f, char out[40])
{
    if (!isfinite(f)) {
        snprintf(out, 40, "%s", isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    char digits[40];
    int precision = 0;
    do
        snprintf(digits, sizeof digits, "%.*e", precision, f);
    while (strtod(digits, NULL) != f && ++precision < 17);
    int exponent = atoi(strchr(digits, 'e') + 1);
    if (exponent < -4 || exponent >= 16) {
        snprintf(out, 40, "%.*e", precision, f);
        return;
    }
    snprintf(out, 40, "%.*f", exponent >= precision ? 1 : precision - exponent, f);
}

static bool printable(uint32_t cp)
{
    switch (utf8proc_category((int32_t)cp)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    case UTF8PROC_CATEGORY_ZS: return cp == ' ';
    default: return true;
    }
}

static void put_repr(struct st_j *j, struct st_jbuffer *b, struct st_jstring *s)
{
    const char *data = st_j_data(j, s);
    if (j->failed)
        return;
    bool single = memchr(data, '\'', s->size) != NULL, twice = memchr(data, '"', s->size) != NULL;
    const char *quote = single && !twice ? "\"" : "'";
    st_j_puts(j, b, quote);
    for (size_t i = 0; i < s->size && !j->failed;) {
        uint32_t cp = 0xFFFD;
        int n = st_utf8_scan((const unsigned char *)data + i, s->size - i, &cp);
        if (n <= 0)
            n = 1;
        char escape[12] = "";
        if (cp == '\\' || (cp == '\'' && *quote == '\''))
            snprintf(escape, sizeof escape, "\\%c", (char)cp);
        else if (cp == '\n' || cp == '\r' || cp == '\t')
            snprintf(escape, sizeof escape, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
        else if (!printable(cp))
            snprintf(escape, sizeof escape,
                     cp < 0x100     ? "\\x%02x"
                     : cp < 0x10000 ? "\\u%04x"
                                    : "\\U%08x",
                     (unsigned)cp);
        if (escape[0])
            st_j_put(j, b, escape, strlen(escape), s->marks ? s->marks[i] : s->user);
        else
            st_j_put_part(j, b, s, i, i + (size_t)n);
        i += (size_t)n;
    }
    st_j_puts(j, b, quote);
}

void st_j_put_value(struct st_j *j, struct st_jbuffer *b, struct st_jvalue v, bool repr)
{
    char text[64];
    if (!st_j_enter(j))
        return;
    switch (v.kind) {
    case ST_J_UNDEFINED: st_j_puts(j, b, repr ? "Undefined" : ""); break;
    case ST_J_ABSENT:
    case ST_J_NONE: st_j_puts(j, b, "None"); break;
    case ST_J_BOOL: st_j_puts(j, b, v.of.flag ? "True" : "False"); break;
    case ST_J_INT:
        snprintf(text, sizeof text, "%lld", (long long)v.of.number);
        st_j_puts(j, b, text);
        break;
    case ST_J_FLOAT:
        st_j_format_real(v.of.real, text);
        st_j_puts(j, b, text);
        break;
    case ST_J_STRING:
        if (repr)
            put_repr(j, b, v.of.string);
        else
            st_j_put_string(j, b, v.of.string);
        break;
    case ST_J_LIST: {
        const struct st_jlist *l = v.of.list;
        st_j_puts(j, b, l->tuple ? "(" : "[");
        for (size_t i = 0; i < l->count && !j->failed; i++) {
            if (i)
                st_j_puts(j, b, ", ");
            st_j_put_value(j, b, l->items[i], true);
        }
        st_j_puts(j, b, l->tuple ? (l->count == 1 ? ",)" : ")") : "]");
        break;
    }
    case ST_J_NAMESPACE:
    case ST_J_DICT: {
        const struct st_jdict *d = v.of.dict;
        st_j_puts(j, b, v.kind == ST_J_DICT ? "{" : "<Namespace {");
        for (size_t i = 0; i < d->count && !j->failed; i++) {
            if (i)
                st_j_puts(j, b, ", ");
            st_j_put_value(j, b, d->keys[i], true);
            st_j_puts(j, b, ": ");
            st_j_put_value(j, b, d->values[i], true);
        }
        st_j_puts(j, b, v.kind == ST_J_DICT ? "}" : "}>");
        break;
    }
    default:
        snprintf(text, sizeof text, "<%s>", st_j_type(&v));
        st_j_puts(j, b, text);
        break;
    }
    st_j_leave(j);
}

struct st_jvalue st_j_str(struct st_j *j, struct st_jvalue v)
{
    if (v.kind == ST_J_STRING)
        return v;
    struct st_jbuffer b = {0};
    st_j_put_value(j, &b, v, false);
    return st_j_built(j, &b);
}

/* ---- comparison ---- */

static bool same_text(struct st_j *j, struct st_jstring *a, struct st_jstring *b)
{
    if (a == b)
        return true;
    if (a->size != b->size || !st_j_work(j, a->size / 16))
        return false;
    return memcmp(st_j_data(j, a), st_j_data(j, b), a->size) == 0;
}

static bool equal_dicts(struct st_j *j, const struct st_jdict *a, const struct st_jdict *b)
{
    if (a->count != b->count)
        return false;
    for (size_t i = 0; i < a->count; i++) {
        struct st_jvalue *other = st_j_dict_find(j, b, a->keys[i]);
        if (!other || !st_j_equal(j, a->values[i], *other))
            return false;
    }
    return true;
}

bool st_j_equal(struct st_j *j, struct st_jvalue a, struct st_jvalue b)
{
    double x, y;
    if (a.kind == ST_J_INT && b.kind == ST_J_INT)
        return a.of.number == b.of.number;
    if (st_j_number(&a, &x) && st_j_number(&b, &y))
        return x == y;
    if (a.kind != b.kind || !st_j_enter(j))
        return false;
    bool same = false;
    switch (a.kind) {
    case ST_J_UNDEFINED:
    case ST_J_NONE: same = true; break;
    case ST_J_STRING: same = same_text(j, a.of.string, b.of.string); break;
    case ST_J_LIST:
        same = a.of.list->count == b.of.list->count && a.of.list->tuple == b.of.list->tuple;
        for (size_t i = 0; same && i < a.of.list->count && !j->failed; i++)
            same = st_j_equal(j, a.of.list->items[i], b.of.list->items[i]);
        break;
    case ST_J_DICT: same = equal_dicts(j, a.of.dict, b.of.dict); break;
    default: same = a.of.dict == b.of.dict; break;
    }
    st_j_leave(j);
    return same;
}

int st_j_compare(struct st_j *j, struct st_jvalue a, struct st_jvalue b)
{
    double x, y;
    if (a.kind == ST_J_INT && b.kind == ST_J_INT)
        return a.of.number < b.of.number ? -1 : a.of.number > b.of.number;
    if (st_j_number(&a, &x) && st_j_number(&b, &y))
        return isnan(x) || isnan(y) ? 2 : x < y ? -1 : x > y;
    if (a.kind == ST_J_STRING && b.kind == ST_J_STRING) {
        size_t m = a.of.string->size, n = b.of.string->size, least = m < n ? m : n;
        if (!st_j_work(j, least / 16))
            return 0;
        int c = memcmp(st_j_data(j, a.of.string), st_j_data(j, b.of.string), j->failed ? 0 : least);
        return c ? c : m < n ? -1 : m > n;
    }
    if (a.kind == ST_J_LIST && b.kind == ST_J_LIST && a.of.list->tuple == b.of.list->tuple) {
        size_t m = a.of.list->count, n = b.of.list->count;
        if (!st_j_enter(j))
            return 0;
        int c = m < n ? -1 : m > n;
        for (size_t i = 0; i < m && i < n && !j->failed; i++)
            if (!st_j_equal(j, a.of.list->items[i], b.of.list->items[i])) {
                c = st_j_compare(j, a.of.list->items[i], b.of.list->items[i]);
                break;
            }
        st_j_leave(j);
        return c;
    }
    st_j_fail(j, STRATA_E_ARGUMENT, "a %s and a %s have no order", st_j_type(&a), st_j_type(&b));
    return 0;
}

/* Merge sort, bottom up: stable, and its work is counted. */
void st_j_sort(struct st_j *j, const struct st_jvalue *keys, size_t *order, size_t n)
{
    size_t *from = order, *to = st_j_alloc(j, n + 1, sizeof *to), *spare = to;
    if (!to)
        return;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t low = 0; low < n; low += 2 * width) {
            size_t mid = low + width < n ? low + width : n, high = mid + width < n ? mid + width : n;
            for (size_t a = low, b = mid, k = low; k < high; k++) {
                if (!st_j_work(j, 1))
                    return;
                bool left = a < mid && (b >= high || st_j_compare(j, keys[from[b]], keys[from[a]]) >= 0);
                to[k] = from[left ? a++ : b++];
            }
        }
        size_t *other = from;
        from = to;
        to = other;
    }
    if (from == spare)
        memcpy(order, spare, n * sizeof *order);
}

bool st_j_in(struct st_j *j, struct st_jvalue item, struct st_jvalue container)
{
    switch (container.kind) {
    case ST_J_STRING:
        if (item.kind != ST_J_STRING) {
            st_j_fail(j, STRATA_E_ARGUMENT, "a %s is looked for in a str", st_j_type(&item));
            return false;
        }
        if (!st_j_work(j, container.of.string->size / 16))
            return false;
        return memmem(st_j_data(j, container.of.string), container.of.string->size, st_j_data(j, item.of.string),
                      item.of.string->size) != NULL;
    case ST_J_LIST:
        for (size_t i = 0; i < container.of.list->count && !j->failed; i++)
            if (st_j_equal(j, container.of.list->items[i], item))
                return true;
        return false;
    case ST_J_DICT: return st_j_dict_find(j, container.of.dict, item) != NULL;
    case ST_J_UNDEFINED: return false;
    default:
        st_j_fail(j, STRATA_E_ARGUMENT, "\"in\" needs something to look in, not a %s", st_j_type(&container));
        return false;
    }
}

struct st_jvalue st_j_iterate(struct st_j *j, struct st_jvalue v)
{
    switch (v.kind) {
    case ST_J_LIST: return v;
    case ST_J_UNDEFINED: return st_j_list(j, 0, false);
    case ST_J_DICT: {
        struct st_jvalue keys = st_j_list(j, v.of.dict->count, false);
        for (size_t i = 0; i < v.of.dict->count && !j->failed; i++)
            st_j_append(j, keys, v.of.dict->keys[i]);
        return keys;
    }
    case ST_J_STRING: {
        struct st_jstring *s = v.of.string;
        const char *data = st_j_data(j, s);
        struct st_jvalue chars = st_j_list(j, s->size < 64 ? s->size : 64, false);
        for (size_t i = 0; i < s->size && !j->failed;) {
            int n = st_utf8_scan((const unsigned char *)data + i, s->size - i, NULL);
            size_t step = n > 0 ? (size_t)n : 1;
            st_j_append(j, chars, st_j_part(j, s, i, i + step));
            i += step;
        }
        return chars;
    }
    default:
        st_j_fail(j, STRATA_E_ARGUMENT, "a %s has no elements to go through", st_j_type(&v));
        return st_j_list(j, 0, false);
    }
}

/* ---- items and slices ---- */

struct st_jvalue st_j_item(struct st_j *j, struct st_jvalue v, struct st_jvalue key)
{
    int64_t at;
    if (v.kind == ST_J_DICT) {
        struct st_jvalue *found = st_j_dict_find(j, v.of.dict, key);
        return found ? *found : st_j_undefined(key.kind == ST_J_STRING ? st_j_data(j, key.of.string) : "item");
    }
    if (!st_j_integer(&key, &at))
        return st_j_undefined("item");
    if (v.kind == ST_J_LIST) {
        int64_t n = (int64_t)v.of.list->count;
        if (at < 0)
            at += n;
        return at >= 0 && at < n ? v.of.list->items[at] : st_j_undefined("item");
    }
    if (v.kind == ST_J_STRING) {
        if (at < 0)
            at += (int64_t)st_j_length(j, v.of.string);
        if (at < 0)
            return st_j_undefined("item");
        size_t from = st_j_offset(j, v.of.string, (size_t)at);
        if (from >= v.of.string->size)
            return st_j_undefined("item");
        int n = st_utf8_scan((const unsigned char *)st_j_data(j, v.of.string) + from, v.of.string->size - from, NULL);
        return st_j_part(j, v.of.string, from, from + (n > 0 ? (size_t)n : 1));
    }
    return st_j_undefined("item");
}

/* Python's slice.indices: clips *start and *stop for a sequence of n. */
static bool slice_bounds(struct st_j *j, const struct st_jvalue part[3], int64_t n, int64_t *start, int64_t *stop,
                         int64_t *step)
{
    int64_t given[3];
    bool has[3];
    for (int i = 0; i < 3; i++) {
        has[i] = part[i].kind != ST_J_NONE && part[i].kind != ST_J_ABSENT;
        if (has[i] && !st_j_integer(&part[i], &given[i])) {
            st_j_fail(j, STRATA_E_ARGUMENT, "the bounds of a slice are integers, not a %s", st_j_type(&part[i]));
            return false;
        }
    }
    *step = has[2] ? given[2] : 1;
    if (*step == 0) {
        st_j_fail(j, STRATA_E_ARGUMENT, "the step of a slice is 0");
        return false;
    }
    int64_t least = *step < 0 ? -1 : 0, most = *step < 0 ? n - 1 : n;
    for (int i = 0; i < 2; i++) {
        int64_t v = has[i] ? given[i] : (i == 0) == (*step > 0) ? least : most;
        if (has[i] && v < 0)
            v = v < -n ? least : v + n;
        else if (v > most)
            v = most;
        *(i ? stop : start) = v;
    }
    return true;
}

struct st_jvalue st_j_slice(struct st_j *j, struct st_jvalue v, const struct st_jvalue part[3])
{
    int64_t start, stop, step;
    if (v.kind == ST_J_LIST) {
        struct st_jvalue out = st_j_list(j, 8, v.of.list->tuple);
        if (slice_bounds(j, part, (int64_t)v.of.list->count, &start, &stop, &step))
            for (int64_t i = start; (step > 0 ? i < stop : i > stop) && !j->failed; i += step) {
                st_j_append(j, out, v.of.list->items[i]);
                if (step > stop - i && step > 0)
                    break;
                if (step < stop - i && step < 0)
                    break;
            }
        return out;
    }
    if (v.kind != ST_J_STRING)
        return st_j_undefined("slice");
    struct st_jstring *s = v.of.string;
    if (!slice_bounds(j, part, (int64_t)st_j_length(j, s), &start, &stop, &step) ||
        (step > 0 ? start >= stop : start <= stop))
        return st_j_literal(j, "");
    if (step == 1)
        return st_j_part(j, s, st_j_offset(j, s, (size_t)start), st_j_offset(j, s, (size_t)stop));
    struct st_jvalue chars = st_j_iterate(j, v);
    struct st_jbuffer b = {0};
    for (int64_t i = start; (step > 0 ? i < stop : i > stop) && !j->failed; i += step) {
        st_j_put_string(j, &b, chars.of.list->items[i].of.string);
        if ((step > 0 && step > stop - i) || (step < 0 && step < stop - i))
            break;
    }
    return st_j_built(j, &b);
}

/* ---- arithmetic ---- */

static struct st_jvalue repeat(struct st_j *j, struct st_jvalue v, int64_t times)
{
    size_t size = v.kind == ST_J_STRING ? v.of.string->size : v.of.list->count;
    if (times > 0 && size > 0 && (uint64_t)times > ST_J_TEXT / size) {
        st_j_fail(j, STRATA_E_LIMIT, "a %s is repeated %lld times", st_j_type(&v), (long long)times);
        return st_j_undefined(NULL);
    }
    if (size == 0)
        times = 0;
    if (v.kind == ST_J_STRING) {
        struct st_jbuffer b = {0};
        for (int64_t i = 0; i < times && !j->failed; i++)
            st_j_put_string(j, &b, v.of.string);
        return st_j_built(j, &b);
    }
    struct st_jvalue out = st_j_list(j, 8, v.of.list->tuple);
    for (int64_t i = 0; i < times && !j->failed; i++)
        for (size_t k = 0; k < size && !j->failed; k++)
            st_j_append(j, out, v.of.list->items[k]);
    return out;
}

static struct st_jvalue power(struct st_j *j, int64_t base, int64_t exponent)
{
    int64_t result = 1;
    bool over = false;
    for (; exponent && !over; exponent >>= 1) {
        if (exponent & 1)
            over = __builtin_mul_overflow(result, base, &result);
        if (exponent > 1)
            over = over || __builtin_mul_overflow(base, base, &base);
    }
    if (over)
        st_j_fail(j, STRATA_E_LIMIT, "an integer grows beyond 64 bits");
    return st_j_int(result);
}

static struct st_jvalue integer_op(struct st_j *j, int op, int64_t x, int64_t y)
{
    int64_t z = 0;
    bool over = false;
    switch (op) {
    case ST_J_ADD: over = __builtin_add_overflow(x, y, &z); break;
    case ST_J_SUB: over = __builtin_sub_overflow(x, y, &z); break;
    case ST_J_MUL: over = __builtin_mul_overflow(x, y, &z); break;
    case ST_J_POW: return y < 0 ? st_j_real(pow((double)x, (double)y)) : power(j, x, y);
    case ST_J_DIV: return st_j_real((double)x / (double)y);
    default:
        over = x == INT64_MIN && y == -1;
        if (over)
            break;
        z = op == ST_J_MOD ? x % y : x / y;
        if (x % y && (x < 0) != (y < 0))
            z += op == ST_J_MOD ? y : -1;
        break;
    }
    if (over)
        st_j_fail(j, STRATA_E_LIMIT, "an integer grows beyond 64 bits");
    return st_j_int(z);
}

static double real_op(int op, double x, double y)
{
    switch (op) {
    case ST_J_ADD: return x + y;
    case ST_J_SUB: return x - y;
    case ST_J_MUL: return x * y;
    case ST_J_DIV: return x / y;
    case ST_J_POW: return pow(x, y);
    default: break;
    }
    double mod = fmod(x, y);
    if (mod == 0)
        mod = copysign(0, y);
    else if ((y < 0) != (mod < 0))
        mod += y;
    if (op == ST_J_MOD)
        return mod;
    double quotient = (x - mod) / y, whole = floor(quotient);
    if (quotient == 0)
        return copysign(0, x / y);
    return quotient - whole > 0.5 ? whole + 1 : whole;
}

struct st_jvalue st_j_binary(struct st_j *j, int op, struct st_jvalue a, struct st_jvalue b)
{
    static const char *const names[] = {"+", "-", "*", "/", "//", "%", "**", "~"};
    int64_t m, n;
    double x, y;
    if (j->failed)
        return st_j_undefined(NULL);
    if (op == ST_J_JOIN) {
        a = st_j_str(j, a);
        b = st_j_str(j, b);
        return j->failed ? a : st_j_concat(j, a, b);
    }
    if (st_j_number(&a, &x) && st_j_number(&b, &y)) {
        if (y == 0 && (op == ST_J_DIV || op == ST_J_FLOORDIV || op == ST_J_MOD)) {
            st_j_fail(j, STRATA_E_ARGUMENT, "division by zero");
            return a;
        }
        if (st_j_integer(&a, &m) && st_j_integer(&b, &n))
            return integer_op(j, op, m, n);
        return st_j_real(real_op(op, x, y));
    }
    if (op == ST_J_ADD && a.kind == ST_J_STRING && b.kind == ST_J_STRING)
        return st_j_concat(j, a, b);
    if (op == ST_J_ADD && a.kind == ST_J_LIST && b.kind == ST_J_LIST && a.of.list->tuple == b.of.list->tuple) {
        struct st_jvalue out = st_j_list(j, a.of.list->count + b.of.list->count, a.of.list->tuple);
        for (size_t i = 0; i < a.of.list->count && !j->failed; i++)
            st_j_append(j, out, a.of.list->items[i]);
        for (size_t i = 0; i < b.of.list->count && !j->failed; i++)
            st_j_append(j, out, b.of.list->items[i]);
        return out;
    }
    bool sequence = a.kind == ST_J_STRING || a.kind == ST_J_LIST;
    if (op == ST_J_MUL && sequence && st_j_integer(&b, &n))
        return repeat(j, a, n);
    if (op == ST_J_MUL && (b.kind == ST_J_STRING || b.kind == ST_J_LIST) && st_j_integer(&a, &n))
        return repeat(j, b, n);
    if (op == ST_J_MOD && a.kind == ST_J_STRING)
        return st_j_percent(j, a.of.string, b);
    if (a.kind == ST_J_UNDEFINED || b.kind == ST_J_UNDEFINED) {
        const char *hint = a.kind == ST_J_UNDEFINED ? a.of.hint : b.of.hint;
        st_j_fail(j, STRATA_E_ARGUMENT, "'%s' is undefined", hint ? hint : "value");
    } else {
        st_j_fail(j, STRATA_E_ARGUMENT, "%s does not work on a %s and a %s", names[op], st_j_type(&a), st_j_type(&b));
    }
    return st_j_undefined(NULL);
}

/* ---- tojson ---- */

static void dump_string(struct st_j *j, struct st_jbuffer *b, struct st_jstring *s, bool ascii)
{
    const char *data = st_j_data(j, s);
    size_t plain = 0, i = 0;
    st_j_puts(j, b, "\"");
    while (i < s->size && !j->failed) {
        unsigned char c = (unsigned char)data[i];
        if (c >= 0x20 && c != '"' && c != '\\' && (c < 0x7F || !ascii)) {
            i++;
            continue;
        }
        st_j_put_part(j, b, s, plain, i);
        char escape[16];
        uint32_t cp = 0xFFFD;
        int n = st_utf8_scan((const unsigned char *)data + i, s->size - i, &cp);
        if (n <= 0)
            n = 1;
        const char *names = "\"\"\\\\\nn\rr\tt\bb\ff", *name = NULL;
        for (size_t k = 0; k < 14 && !name; k += 2)
            if (cp == (unsigned char)names[k])
                name = names + k + 1;
        if (name)
            snprintf(escape, sizeof escape, "\\%c", *name);
        else if (cp >= 0x10000)
            snprintf(escape, sizeof escape, "\\u%04x\\u%04x", (unsigned)(0xD800 + ((cp - 0x10000) >> 10)),
                     (unsigned)(0xDC00 + (cp & 0x3FF)));
        else
            snprintf(escape, sizeof escape, "\\u%04x", (unsigned)cp);
        st_j_put(j, b, escape, strlen(escape), s->marks ? s->marks[i] : s->user);
        i += (size_t)n;
        plain = i;
    }
    st_j_put_part(j, b, s, plain, s->size);
    st_j_puts(j, b, "\"");
}

static void line_break(struct st_j *j, struct st_jbuffer *b, const struct st_jdump *how, int level)
{
    if (how->indent < 0)
        return;
    st_j_puts(j, b, "\n");
    static const char blanks[] = "                                ";
    for (int64_t left = (int64_t)level * how->indent; left > 0 && !j->failed; left -= (int64_t)sizeof blanks - 1)
        st_j_put(j, b, blanks, left < (int64_t)sizeof blanks - 1 ? (size_t)left : sizeof blanks - 1, false);
}

static void put_separator(struct st_j *j, struct st_jbuffer *b, struct st_jstring *given, const char *usual)
{
    if (given)
        st_j_put_string(j, b, given);
    else
        st_j_puts(j, b, usual);
}

static void dump(struct st_j *j, struct st_jbuffer *b, struct st_jvalue v, const struct st_jdump *how, int level);

static void dump_key(struct st_j *j, struct st_jbuffer *b, struct st_jvalue key, const struct st_jdump *how)
{
    if (key.kind == ST_J_STRING) {
        dump_string(j, b, key.of.string, how->ascii);
    } else if (key.kind == ST_J_LIST) {
        st_j_fail(j, STRATA_E_ARGUMENT, "tojson: a tuple cannot be a key");
    } else {
        st_j_puts(j, b, "\"");
        dump(j, b, key, how, 0);
        st_j_puts(j, b, "\"");
    }
}

static void dump_dict(struct st_j *j, struct st_jbuffer *b, const struct st_jdict *d, const struct st_jdump *how,
                      int level)
{
    size_t *order = st_j_alloc(j, d->count + 1, sizeof *order);
    if (!order)
        return;
    for (size_t i = 0; i < d->count; i++)
        order[i] = i;
    if (how->sort)
        st_j_sort(j, d->keys, order, d->count);
    st_j_puts(j, b, "{");
    for (size_t i = 0; i < d->count && !j->failed; i++) {
        if (i)
            put_separator(j, b, how->item, how->indent < 0 ? ", " : ",");
        line_break(j, b, how, level + 1);
        dump_key(j, b, d->keys[order[i]], how);
        put_separator(j, b, how->key, ": ");
        dump(j, b, d->values[order[i]], how, level + 1);
    }
    if (d->count)
        line_break(j, b, how, level);
    st_j_puts(j, b, "}");
}

static void dump(struct st_j *j, struct st_jbuffer *b, struct st_jvalue v, const struct st_jdump *how, int level)
{
    char text[40];
    if (!st_j_enter(j))
        return;
    switch (v.kind) {
    case ST_J_NONE: st_j_puts(j, b, "null"); break;
    case ST_J_BOOL: st_j_puts(j, b, v.of.flag ? "true" : "false"); break;
    case ST_J_INT: st_j_put_value(j, b, v, false); break;
    case ST_J_FLOAT:
        st_j_format_real(v.of.real, text);
        st_j_puts(j, b,
                  isfinite(v.of.real) ? text
                  : isnan(v.of.real)  ? "NaN"
                  : v.of.real > 0     ? "Infinity"
                                      : "-Infinity");
        break;
    case ST_J_STRING: dump_string(j, b, v.of.string, how->ascii); break;
    case ST_J_LIST:
        st_j_puts(j, b, "[");
        for (size_t i = 0; i < v.of.list->count && !j->failed; i++) {
            if (i)
                put_separator(j, b, how->item, how->indent < 0 ? ", " : ",");
            line_break(j, b, how, level + 1);
            dump(j, b, v.of.list->items[i], how, level + 1);
        }
        if (v.of.list->count)
            line_break(j, b, how, level);
        st_j_puts(j, b, "]");
        break;
    case ST_J_DICT: dump_dict(j, b, v.of.dict, how, level); break;
    default: st_j_fail(j, STRATA_E_ARGUMENT, "tojson: a %s cannot be written as JSON", st_j_type(&v)); break;
    }
    st_j_leave(j);
}

struct st_jvalue st_j_to_json(struct st_j *j, struct st_jvalue v, const struct st_jdump *how)
{
    struct st_jbuffer b = {0};
    dump(j, &b, v, how, 0);
    return st_j_built(j, &b);
}
