/* Template interpreter: memory, failure, strings, text under construction, lists, dictionaries, values from JSON. */
#include "text/jinja_value.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/checked.h"
#include "base/utf8.h"

enum { FLAT = 512, SMALL_DICT = 8 };

/* ---- memory and failure ---- */

struct st_arena_chunk {
    struct st_arena_chunk *next;
    max_align_t data[];
};

void *st_arena_alloc(struct st_arena *a, size_t size)
{
    uint64_t need;
    if (!st_align_u64(size, sizeof(max_align_t), &need) || need > a->limit - a->total)
        return NULL;
    if (need > a->room - a->used) {
        size_t room = a->total < 4096 ? 4096 : a->total < (1u << 20) ? a->total : 1u << 20;
        if (room < need)
            room = (size_t)need;
        if (room > a->limit - a->total)
            room = (size_t)need;
        struct st_arena_chunk *c = calloc(1, sizeof *c + room);
        if (!c)
            return NULL;
        c->next = a->chunks;
        a->chunks = c;
        a->room = room;
        a->used = 0;
        a->total += room;
    }
    void *p = (char *)a->chunks->data + a->used;
    a->used += (size_t)need;
    return p;
}

void st_arena_free(struct st_arena *a)
{
    while (a->chunks) {
        struct st_arena_chunk *next = a->chunks->next;
        free(a->chunks);
        a->chunks = next;
    }
    *a = (struct st_arena){0};
}

void st_j_fail(struct st_j *j, enum strata_result code, const char *fmt, ...)
{
    if (j->failed)
        return;
    j->failed = true;
    char text[400], shown[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    j->code = st_fail(j->err, code, "chat template, line %d: %s", j->line,
                      st_printable(shown, sizeof shown, text, strlen(text)));
}

void *st_j_alloc(struct st_j *j, size_t count, size_t size)
{
    uint64_t bytes;
    if (j->failed)
        return NULL;
    void *p =
        st_mul_u64(count, size, &bytes) && bytes <= j->arena.limit ? st_arena_alloc(&j->arena, (size_t)bytes) : NULL;
    if (!p)
        st_j_fail(j, STRATA_E_LIMIT, "needs more than the %zu bytes of memory it may use", j->arena.limit);
    return p;
}

bool st_j_work(struct st_j *j, uint64_t steps)
{
    if (j->failed)
        return false;
    if (steps > j->steps) {
        st_j_fail(j, STRATA_E_LIMIT, "takes more steps than it may");
        return false;
    }
    j->steps -= steps;
    return true;
}

bool st_j_enter(struct st_j *j)
{
    if (!st_j_work(j, 1))
        return false;
    if (j->depth >= ST_J_DEPTH) {
        st_j_fail(j, STRATA_E_LIMIT, "nested more than %d deep", ST_J_DEPTH);
        return false;
    }
    j->depth++;
    return true;
}

void st_j_leave(struct st_j *j)
{
    j->depth--;
}

/* ---- strings ---- */

static struct st_jvalue string_value(struct st_j *j, struct st_jstring s)
{
    struct st_jstring *p = st_j_alloc(j, 1, sizeof *p);
    if (!p)
        return st_j_undefined(NULL);
    *p = s;
    return (struct st_jvalue){.kind = ST_J_STRING, .of.string = p};
}

struct st_jvalue st_j_text(struct st_j *j, const char *text, size_t size, bool user)
{
    char *copy = st_j_alloc(j, size + 1, 1);
    if (!copy)
        return st_j_undefined(NULL);
    if (size)
        memcpy(copy, text, size);
    return string_value(j, (struct st_jstring){.size = size, .data = copy, .user = user});
}

struct st_jvalue st_j_literal(struct st_j *j, const char *text)
{
    return string_value(j, (struct st_jstring){.size = strlen(text), .data = text});
}

const char *st_j_data(struct st_j *j, struct st_jstring *s)
{
    if (s->data)
        return s->data;
    char *data = st_j_alloc(j, s->size + 1, 1);
    uint8_t *marks = st_j_alloc(j, s->size + 1, 1);
    size_t room = 64, count = 1, end = s->size;
    struct st_jstring **stack = st_j_alloc(j, room, sizeof(struct st_jstring *));
    if (!data || !marks || !stack || !st_j_work(j, s->size / 16))
        return "";
    stack[0] = s;
    while (count) {
        /* From the end to the beginning: strings usually grow at their end, so this needs little of the stack. */
        struct st_jstring *part = stack[--count];
        if (part->data) {
            end -= part->size;
            memcpy(data + end, part->data, part->size);
            if (part->marks)
                memcpy(marks + end, part->marks, part->size);
            else
                memset(marks + end, part->user, part->size);
            continue;
        }
        if (count + 2 > room) {
            struct st_jstring **more = st_j_alloc(j, 2 * room, sizeof(struct st_jstring *));
            if (!more)
                return "";
            memcpy(more, stack, count * sizeof(struct st_jstring *));
            stack = more;
            room *= 2;
        }
        stack[count++] = part->left;
        stack[count++] = part->right;
    }
    s->data = data;
    s->user = s->size && marks[0];
    s->marks = s->size && memchr(marks, marks[0] ^ 1, s->size) ? marks : NULL;
    s->left = s->right = NULL;
    return data;
}

struct st_jvalue st_j_concat(struct st_j *j, struct st_jvalue a, struct st_jvalue b)
{
    if (j->failed)
        return st_j_undefined(NULL);
    struct st_jstring *x = a.of.string, *y = b.of.string;
    if (x->size == 0)
        return b;
    if (y->size == 0)
        return a;
    size_t total = x->size + y->size;
    if (total > ST_J_TEXT) {
        st_j_fail(j, STRATA_E_LIMIT, "a string grows beyond %d bytes", ST_J_TEXT);
        return st_j_undefined(NULL);
    }
    struct st_jvalue both = string_value(j, (struct st_jstring){.size = total, .left = x, .right = y});
    if (total <= FLAT && !j->failed)
        st_j_data(j, both.of.string);
    return both;
}

struct st_jvalue st_j_part(struct st_j *j, struct st_jstring *s, size_t from, size_t to)
{
    const char *data = st_j_data(j, s);
    if (to > s->size)
        to = s->size;
    if (j->failed || from >= to)
        return st_j_literal(j, "");
    if (from == 0 && to == s->size)
        return (struct st_jvalue){.kind = ST_J_STRING, .of.string = s};
    return string_value(
        j, (struct st_jstring){
               .size = to - from, .data = data + from, .user = s->user, .marks = s->marks ? s->marks + from : NULL});
}

size_t st_j_length(struct st_j *j, struct st_jstring *s)
{
    const char *data = st_j_data(j, s);
    size_t n = 0;
    if (st_j_work(j, s->size / 16))
        for (size_t i = 0; i < s->size; i++)
            n += ((unsigned char)data[i] & 0xC0) != 0x80;
    return n;
}

size_t st_j_offset(struct st_j *j, struct st_jstring *s, size_t character)
{
    const char *data = st_j_data(j, s);
    size_t i = 0;
    if (!st_j_work(j, s->size / 16))
        return 0;
    for (; i < s->size; i++)
        if (((unsigned char)data[i] & 0xC0) != 0x80 && character-- == 0)
            break;
    return i;
}

bool st_j_is(const struct st_jvalue *v, const char *text)
{
    return v->kind == ST_J_STRING && v->of.string->data && v->of.string->size == strlen(text) &&
           memcmp(v->of.string->data, text, v->of.string->size) == 0;
}

bool st_j_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || (cp >= 0x1C && cp <= 0x20) || cp == 0x85 || cp == 0xA0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F ||
           cp == 0x3000;
}

/* One character; a byte that is no UTF-8 counts as U+FFFD. */
static size_t next_cp(const char *s, size_t left, uint32_t *cp)
{
    int n = st_utf8_scan((const unsigned char *)s, left, cp);
    if (n > 0)
        return (size_t)n;
    *cp = 0xFFFD;
    return 1;
}

static bool in_set(uint32_t cp, const char *set, size_t size)
{
    for (size_t i = 0; i < size;) {
        uint32_t other;
        i += next_cp(set + i, size - i, &other);
        if (other == cp)
            return true;
    }
    return false;
}

struct st_jvalue st_j_strip(struct st_j *j, struct st_jstring *s, struct st_jstring *set, int side)
{
    const char *data = st_j_data(j, s), *chars = set ? st_j_data(j, set) : NULL;
    size_t from = 0, to = s->size, cost = set ? set->size / 4 + 1 : 1;
    while (side <= 0 && from < to) {
        uint32_t cp;
        size_t n = next_cp(data + from, to - from, &cp);
        if (!(set ? in_set(cp, chars, set->size) : st_j_space(cp)) || !st_j_work(j, cost))
            break;
        from += n;
    }
    while (side >= 0 && to > from) {
        size_t at = to - 1;
        while (at > from && to - at < 4 && ((unsigned char)data[at] & 0xC0) == 0x80)
            at--;
        uint32_t cp;
        if (at + next_cp(data + at, to - at, &cp) != to)
            break;
        if (!(set ? in_set(cp, chars, set->size) : st_j_space(cp)) || !st_j_work(j, cost))
            break;
        to = at;
    }
    return st_j_part(j, s, from, to);
}

/* ---- text under construction ---- */

static bool reserve(struct st_j *j, struct st_jbuffer *b, size_t more)
{
    if (j->failed)
        return false;
    if (more > ST_J_TEXT || b->size + more > ST_J_TEXT) {
        st_j_fail(j, STRATA_E_LIMIT, "a string grows beyond %d bytes", ST_J_TEXT);
        return false;
    }
    if (b->size + more <= b->room && b->data)
        return st_j_work(j, more / 16 + 1);
    size_t room = b->room ? 2 * b->room : 128;
    if (room < b->size + more)
        room = b->size + more;
    char *data = st_j_alloc(j, room + 1, 1);
    uint8_t *marks = st_j_alloc(j, room + 1, 1);
    if (!data || !marks)
        return false;
    if (b->data) {
        memcpy(data, b->data, b->size);
        memcpy(marks, b->marks, b->size);
    }
    b->data = data;
    b->marks = marks;
    b->room = room;
    return st_j_work(j, more / 16 + 1);
}

void st_j_put(struct st_j *j, struct st_jbuffer *b, const char *text, size_t size, bool user)
{
    if (size == 0 || !reserve(j, b, size))
        return;
    memcpy(b->data + b->size, text, size);
    memset(b->marks + b->size, user, size);
    b->size += size;
}

void st_j_puts(struct st_j *j, struct st_jbuffer *b, const char *text)
{
    st_j_put(j, b, text, strlen(text), false);
}

void st_j_put_part(struct st_j *j, struct st_jbuffer *b, struct st_jstring *s, size_t from, size_t to)
{
    const char *data = st_j_data(j, s);
    if (from >= to || !reserve(j, b, to - from))
        return;
    memcpy(b->data + b->size, data + from, to - from);
    if (s->marks)
        memcpy(b->marks + b->size, s->marks + from, to - from);
    else
        memset(b->marks + b->size, s->user, to - from);
    b->size += to - from;
}

void st_j_put_string(struct st_j *j, struct st_jbuffer *b, struct st_jstring *s)
{
    st_j_put_part(j, b, s, 0, s->size);
}

void st_j_put_cp(struct st_j *j, struct st_jbuffer *b, uint32_t cp, bool user)
{
    char utf8[4] = {0};
    size_t n = st_utf8_put(cp, utf8);
    st_j_put(j, b, utf8, n, user);
}

struct st_jvalue st_j_built(struct st_j *j, const struct st_jbuffer *b)
{
    if (b->size == 0)
        return st_j_literal(j, "");
    bool mixed = memchr(b->marks, b->marks[0] ^ 1, b->size) != NULL;
    return string_value(
        j, (struct st_jstring){
               .size = b->size, .data = b->data, .user = b->marks[0] != 0, .marks = mixed ? b->marks : NULL});
}

/* ---- lists ---- */

struct st_jvalue st_j_list(struct st_j *j, size_t room, bool tuple)
{
    struct st_jlist *l = st_j_alloc(j, 1, sizeof *l);
    if (!l)
        return st_j_undefined(NULL);
    l->items = st_j_alloc(j, room + 1, sizeof *l->items);
    if (!l->items)
        return st_j_undefined(NULL);
    l->room = room + 1;
    l->tuple = tuple;
    return (struct st_jvalue){.kind = ST_J_LIST, .of.list = l};
}

void st_j_append(struct st_j *j, struct st_jvalue list, struct st_jvalue item)
{
    if (!st_j_work(j, 1))
        return;
    struct st_jlist *l = list.of.list;
    if (l->count == l->room) {
        struct st_jvalue *more = st_j_alloc(j, 2 * l->room, sizeof *more);
        if (!more)
            return;
        memcpy(more, l->items, l->count * sizeof *more);
        l->items = more;
        l->room *= 2;
    }
    l->items[l->count++] = item;
}

/* ---- dictionaries ---- */

struct st_jvalue st_j_dict(struct st_j *j)
{
    struct st_jdict *d = st_j_alloc(j, 1, sizeof *d);
    return d ? (struct st_jvalue){.kind = ST_J_DICT, .of.dict = d} : st_j_undefined(NULL);
}

static uint64_t hash(struct st_j *j, struct st_jvalue v)
{
    double real;
    uint64_t h = 0;
    switch (v.kind) {
    case ST_J_STRING: return XXH3_64bits(st_j_data(j, v.of.string), v.of.string->size);
    case ST_J_UNDEFINED:
    case ST_J_NONE: return 1;
    case ST_J_LIST:
        if (!v.of.list->tuple || !st_j_enter(j))
            break;
        for (size_t i = 0; i < v.of.list->count; i++)
            h = (h ^ hash(j, v.of.list->items[i])) * 0x9E3779B97F4A7C15u;
        st_j_leave(j);
        return h;
    default:
        if (!st_j_number(&v, &real))
            break;
        real += 0.0; /* -0 and 0 are one key */
        memcpy(&h, &real, sizeof h);
        return h * 0x9E3779B97F4A7C15u ^ h >> 29;
    }
    st_j_fail(j, STRATA_E_ARGUMENT, "a %s cannot be the key of a dictionary", st_j_type(&v));
    return 0;
}

/* Position of a key among the entries, count if it is not there. */
static size_t find_entry(struct st_j *j, const struct st_jdict *d, struct st_jvalue key)
{
    uint64_t h = hash(j, key);
    if (j->failed || !st_j_work(j, 1))
        return d->count;
    if (!d->index) {
        for (size_t i = 0; i < d->count; i++)
            if (st_j_equal(j, d->keys[i], key))
                return i;
        return d->count;
    }
    for (size_t slot = (size_t)h & d->index_mask;; slot = (slot + 1) & d->index_mask) {
        uint32_t at = d->index[slot];
        if (at == 0)
            return d->count;
        if (st_j_equal(j, d->keys[at - 1], key) || !st_j_work(j, 1))
            return at - 1;
    }
}

static void index_entry(struct st_j *j, struct st_jdict *d, size_t entry)
{
    size_t slot = (size_t)hash(j, d->keys[entry]) & d->index_mask;
    while (d->index[slot])
        slot = (slot + 1) & d->index_mask;
    d->index[slot] = (uint32_t)entry + 1;
}

/* Makes the index over all entries anew, for room entries. */
static void index_all(struct st_j *j, struct st_jdict *d)
{
    d->index = NULL;
    if (d->room <= SMALL_DICT)
        return;
    size_t slots = 4 * SMALL_DICT;
    while (slots < 2 * d->room)
        slots *= 2;
    uint32_t *index = st_j_alloc(j, slots, sizeof *index);
    if (!index)
        return;
    d->index = index;
    d->index_mask = slots - 1;
    for (size_t i = 0; i < d->count; i++)
        index_entry(j, d, i);
}

struct st_jvalue *st_j_dict_find(struct st_j *j, const struct st_jdict *d, struct st_jvalue key)
{
    size_t at = find_entry(j, d, key);
    return j->failed || at == d->count ? NULL : &d->values[at];
}

void st_j_dict_set(struct st_j *j, struct st_jdict *d, struct st_jvalue key, struct st_jvalue value)
{
    size_t at = find_entry(j, d, key);
    if (j->failed)
        return;
    if (at < d->count) {
        d->values[at] = value;
        return;
    }
    if (d->count == d->room) {
        size_t room = d->room ? 2 * d->room : SMALL_DICT;
        struct st_jvalue *keys = st_j_alloc(j, room, sizeof *keys), *values = st_j_alloc(j, room, sizeof *values);
        if (!keys || !values)
            return;
        if (d->count) {
            memcpy(keys, d->keys, d->count * sizeof *keys);
            memcpy(values, d->values, d->count * sizeof *values);
        }
        d->keys = keys;
        d->values = values;
        d->room = room;
        index_all(j, d);
        if (j->failed)
            return;
    }
    d->keys[d->count] = key;
    d->values[d->count] = value;
    d->count++;
    if (d->index)
        index_entry(j, d, d->count - 1);
}

bool st_j_dict_remove(struct st_j *j, struct st_jdict *d, struct st_jvalue key, struct st_jvalue *value)
{
    size_t at = find_entry(j, d, key);
    if (j->failed || at == d->count || !st_j_work(j, d->count))
        return false;
    *value = d->values[at];
    d->count--;
    memmove(d->keys + at, d->keys + at + 1, (d->count - at) * sizeof *d->keys);
    memmove(d->values + at, d->values + at + 1, (d->count - at) * sizeof *d->values);
    index_all(j, d);
    return !j->failed;
}

struct st_jvalue st_j_dict_get(struct st_j *j, const struct st_jdict *d, const char *key)
{
    struct st_jstring s = {.size = strlen(key), .data = key};
    struct st_jvalue *v = st_j_dict_find(j, d, (struct st_jvalue){.kind = ST_J_STRING, .of.string = &s});
    return v ? *v : st_j_undefined(key);
}

/* ---- JSON ---- */

static struct st_jvalue json_text(struct st_j *j, const char *text, size_t size)
{
    if (size > ST_J_TEXT) {
        st_j_fail(j, STRATA_E_LIMIT, "a string of the request has %zu bytes", size);
        return st_j_undefined(NULL);
    }
    return string_value(j, (struct st_jstring){.size = size, .data = text, .user = true});
}

struct st_jvalue st_j_from_json(struct st_j *j, const json_t *json)
{
    struct st_jvalue v = st_j_none();
    if (!st_j_enter(j))
        return v;
    switch (json_typeof(json)) {
    case JSON_TRUE: v = st_j_bool(true); break;
    case JSON_FALSE: v = st_j_bool(false); break;
    case JSON_INTEGER: v = st_j_int(json_integer_value(json)); break;
    case JSON_REAL: v = st_j_real(json_real_value(json)); break;
    case JSON_STRING: v = json_text(j, json_string_value(json), json_string_length(json)); break;
    case JSON_NULL: break;
    case JSON_ARRAY: {
        size_t i;
        json_t *item;
        v = st_j_list(j, json_array_size(json), false);
        json_array_foreach(json, i, item)
        {
            struct st_jvalue element = st_j_from_json(j, item);
            if (j->failed)
                break;
            st_j_append(j, v, element);
        }
        break;
    }
    case JSON_OBJECT: {
        const char *key;
        json_t *item;
        v = st_j_dict(j);
        json_object_foreach((json_t *)json, key, item)
        {
            struct st_jvalue name = json_text(j, key, strlen(key)), element = st_j_from_json(j, item);
            if (j->failed)
                break;
            st_j_dict_set(j, v.of.dict, name, element);
        }
        break;
    }
    }
    st_j_leave(j);
    return v;
}
