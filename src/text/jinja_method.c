/* Template interpreter: methods of strings, lists and dictionaries, and how attributes and items are looked up. */
#define _GNU_SOURCE /* memmem */
#include "text/jinja_value.h"

#include <stdio.h>
#include <string.h>

#include <utf8proc.h>

#include "base/utf8.h"
#include "text/jinja_loop.h"

enum { MAX_PARAMETERS = 3 };

struct call {
    struct st_j *j;
    struct st_jvalue self;
    struct st_jvalue a[MAX_PARAMETERS];
    const struct st_jargs *args;
};

typedef struct st_jvalue method(struct call *c);

static struct st_jstring *self_text(struct call *c)
{
    return c->self.of.string;
}

static bool given(struct st_jvalue v)
{
    return v.kind != ST_J_ABSENT && v.kind != ST_J_NONE;
}

static int64_t integer(struct call *c, size_t i, int64_t usual)
{
    int64_t n = usual;
    if (given(c->a[i]) && !st_j_integer(&c->a[i], &n))
        st_j_fail(c->j, STRATA_E_ARGUMENT, "a %s was given where an integer belongs", st_j_type(&c->a[i]));
    return n;
}

/* A string argument; NULL if it is not given. */
static struct st_jstring *text(struct call *c, size_t i)
{
    if (!given(c->a[i]))
        return NULL;
    if (c->a[i].kind != ST_J_STRING)
        st_j_fail(c->j, STRATA_E_ARGUMENT, "a %s was given where a str belongs", st_j_type(&c->a[i]));
    return c->j->failed ? NULL : c->a[i].of.string;
}

/* ---- str ---- */

static struct st_jvalue m_upper(struct call *c)
{
    return st_j_case(c->j, self_text(c), 'u');
}

static struct st_jvalue m_lower(struct call *c)
{
    return st_j_case(c->j, self_text(c), 'l');
}

static struct st_jvalue m_title(struct call *c)
{
    return st_j_case(c->j, self_text(c), 't');
}

static struct st_jvalue m_capitalize(struct call *c)
{
    return st_j_case(c->j, self_text(c), 'c');
}

static struct st_jvalue m_strip(struct call *c)
{
    return st_j_strip(c->j, self_text(c), text(c, 0), 0);
}

static struct st_jvalue m_lstrip(struct call *c)
{
    return st_j_strip(c->j, self_text(c), text(c, 0), -1);
}

static struct st_jvalue m_rstrip(struct call *c)
{
    return st_j_strip(c->j, self_text(c), text(c, 0), 1);
}

static bool has_end(struct call *c, struct st_jvalue part, bool front)
{
    if (part.kind != ST_J_STRING) {
        st_j_fail(c->j, STRATA_E_ARGUMENT, "a %s cannot begin or end a str", st_j_type(&part));
        return false;
    }
    size_t n = part.of.string->size, size = self_text(c)->size;
    const char *data = st_j_data(c->j, self_text(c)), *other = st_j_data(c->j, part.of.string);
    return !c->j->failed && n <= size && memcmp(front ? data : data + size - n, other, n) == 0;
}

static struct st_jvalue either_end(struct call *c, bool front)
{
    if (c->a[0].kind != ST_J_LIST || !c->a[0].of.list->tuple)
        return st_j_bool(has_end(c, c->a[0], front));
    for (size_t i = 0; i < c->a[0].of.list->count && !c->j->failed; i++)
        if (has_end(c, c->a[0].of.list->items[i], front))
            return st_j_bool(true);
    return st_j_bool(false);
}

static struct st_jvalue m_startswith(struct call *c)
{
    return either_end(c, true);
}

static struct st_jvalue m_endswith(struct call *c)
{
    return either_end(c, false);
}

static struct st_jvalue m_removeprefix(struct call *c)
{
    return has_end(c, c->a[0], true) ? st_j_part(c->j, self_text(c), c->a[0].of.string->size, SIZE_MAX) : c->self;
}

static struct st_jvalue m_removesuffix(struct call *c)
{
    return has_end(c, c->a[0], false) ? st_j_part(c->j, self_text(c), 0, self_text(c)->size - c->a[0].of.string->size)
                                      : c->self;
}

static struct st_jvalue m_replace(struct call *c)
{
    struct st_jstring *from = text(c, 0), *to = text(c, 1);
    int64_t most = integer(c, 2, -1);
    return from && to ? st_j_replace(c->j, self_text(c), from, to, most) : c->self;
}

/* Position of the last (or first) occurrence in [from, to), SIZE_MAX if there is none. */
static size_t locate(struct st_j *j, struct st_jstring *s, struct st_jstring *part, size_t from, size_t to, bool last)
{
    const char *data = st_j_data(j, s), *wanted = st_j_data(j, part);
    if (from > to || part->size > to - from || j->failed)
        return SIZE_MAX;
    if (!last) {
        const char *hit = memmem(data + from, to - from, wanted, part->size);
        size_t seen = hit ? (size_t)(hit - data) - from : to - from;
        return st_j_work(j, seen / 16 + 1) && hit ? (size_t)(hit - data) : SIZE_MAX;
    }
    for (size_t at = to - part->size;; at--) {
        if (!st_j_work(j, part->size / 16 + 1))
            return SIZE_MAX;
        if (memcmp(data + at, wanted, part->size) == 0)
            return at;
        if (at == from)
            return SIZE_MAX;
    }
}

static size_t characters(struct st_j *j, struct st_jstring *s, size_t bytes)
{
    struct st_jvalue before = st_j_part(j, s, 0, bytes);
    return j->failed ? 0 : st_j_length(j, before.of.string);
}

static struct st_jvalue find(struct call *c, bool last, bool must)
{
    struct st_jstring *part = text(c, 0);
    if (!part)
        return st_j_int(-1);
    size_t from = 0, to = self_text(c)->size;
    if (given(c->a[1]) || given(c->a[2])) {
        int64_t n = (int64_t)st_j_length(c->j, self_text(c)), a = integer(c, 1, 0), b = integer(c, 2, n);
        a = a < 0 ? (a < -n ? 0 : a + n) : a;
        b = b < 0 ? (b < -n ? 0 : b + n) : b;
        from = a > n ? to + 1 : st_j_offset(c->j, self_text(c), (size_t)a);
        to = b >= n ? to : st_j_offset(c->j, self_text(c), (size_t)b);
    }
    size_t at = locate(c->j, self_text(c), part, from, to, last);
    if (at == SIZE_MAX && must)
        st_j_fail(c->j, STRATA_E_ARGUMENT, "the str that is looked for is not there");
    return st_j_int(at == SIZE_MAX ? -1 : (int64_t)characters(c->j, self_text(c), at));
}

static struct st_jvalue m_find(struct call *c)
{
    return find(c, false, false);
}

static struct st_jvalue m_rfind(struct call *c)
{
    return find(c, true, false);
}

static struct st_jvalue m_index(struct call *c)
{
    return find(c, false, true);
}

static struct st_jvalue m_rindex(struct call *c)
{
    return find(c, true, true);
}

static struct st_jvalue m_count(struct call *c)
{
    struct st_jstring *part = text(c, 0), *s = self_text(c);
    if (!part)
        return st_j_int(0);
    if (part->size == 0)
        return st_j_int((int64_t)st_j_length(c->j, s) + 1);
    int64_t n = 0;
    for (size_t at = 0; (at = locate(c->j, s, part, at, s->size, false)) != SIZE_MAX; at += part->size)
        n++;
    return st_j_int(n);
}

/* Splits at white space, at most most times (-1: always); from the right if last. */
static void split_blanks(struct call *c, struct st_jvalue out, int64_t most, bool last)
{
    struct st_j *j = c->j;
    struct st_jvalue rest = st_j_strip(j, self_text(c), NULL, last ? 1 : -1);
    while (!j->failed && rest.of.string->size) {
        struct st_jstring *s = rest.of.string;
        const char *data = st_j_data(j, s);
        size_t cut = last ? s->size : 0, next = 0;
        bool hit = false;
        while (!hit && (last ? cut > 0 : cut < s->size)) {
            size_t at = cut;
            uint32_t cp = 0;
            if (last)
                do
                    at--;
                while (at > 0 && ((unsigned char)data[at] & 0xC0) == 0x80);
            int n = st_utf8_scan((const unsigned char *)data + at, s->size - at, &cp);
            next = at + (n > 0 ? (size_t)n : 1);
            hit = st_j_space(cp);
            if (!hit || last)
                cut = last ? at : next;
        }
        if (!hit || most == 0) {
            st_j_append(j, out, rest);
            return;
        }
        most -= most > 0;
        if (last) {
            st_j_append(j, out, st_j_part(j, s, next, s->size));
            rest = st_j_part(j, s, 0, cut);
            rest = j->failed ? rest : st_j_strip(j, rest.of.string, NULL, 1);
        } else {
            st_j_append(j, out, st_j_part(j, s, 0, cut));
            rest = st_j_part(j, s, cut, s->size);
            rest = j->failed ? rest : st_j_strip(j, rest.of.string, NULL, -1);
        }
    }
}

static void reverse(struct st_jlist *l)
{
    for (size_t i = 0; i < l->count / 2; i++) {
        struct st_jvalue v = l->items[i];
        l->items[i] = l->items[l->count - 1 - i];
        l->items[l->count - 1 - i] = v;
    }
}

static struct st_jvalue split(struct call *c, bool last)
{
    struct st_j *j = c->j;
    struct st_jstring *at = text(c, 0), *s = self_text(c);
    int64_t most = integer(c, 1, -1);
    struct st_jvalue out = st_j_list(j, 4, false);
    if (j->failed)
        return out;
    if (!at) {
        split_blanks(c, out, most, last);
    } else if (at->size == 0) {
        st_j_fail(j, STRATA_E_ARGUMENT, "split: the separator is empty");
    } else {
        size_t from = 0, to = s->size, hit;
        while (most != 0 && (hit = locate(j, s, at, from, to, last)) != SIZE_MAX) {
            st_j_append(j, out, last ? st_j_part(j, s, hit + at->size, to) : st_j_part(j, s, from, hit));
            if (last)
                to = hit;
            else
                from = hit + at->size;
            most -= most > 0;
        }
        st_j_append(j, out, st_j_part(j, s, from, to));
    }
    if (last && !j->failed)
        reverse(out.of.list);
    return out;
}

static struct st_jvalue m_split(struct call *c)
{
    return split(c, false);
}

static struct st_jvalue m_rsplit(struct call *c)
{
    return split(c, true);
}

static struct st_jvalue partition(struct call *c, bool last)
{
    struct st_j *j = c->j;
    struct st_jstring *at = text(c, 0), *s = self_text(c);
    struct st_jvalue out = st_j_list(j, 3, true);
    if (!at || at->size == 0) {
        st_j_fail(j, STRATA_E_ARGUMENT, "partition: the separator is empty");
        return out;
    }
    size_t hit = locate(j, s, at, 0, s->size, last);
    struct st_jvalue empty = st_j_literal(j, "");
    bool none = hit == SIZE_MAX;
    struct st_jvalue parts[3] = {none ? (last ? empty : c->self) : st_j_part(j, s, 0, hit), none ? empty : c->a[0],
                                 none ? (last ? c->self : empty) : st_j_part(j, s, hit + at->size, s->size)};
    for (int i = 0; i < 3 && !j->failed; i++)
        st_j_append(j, out, parts[i]);
    return out;
}

static struct st_jvalue m_partition(struct call *c)
{
    return partition(c, false);
}

static struct st_jvalue m_rpartition(struct call *c)
{
    return partition(c, true);
}

static struct st_jvalue m_splitlines(struct call *c)
{
    return st_j_split_lines(c->j, self_text(c), c->a[0].kind != ST_J_ABSENT && st_j_true(c->j, c->a[0]));
}

static struct st_jvalue m_join(struct call *c)
{
    struct st_jvalue all = st_j_iterate(c->j, c->a[0]);
    struct st_jbuffer b = {0};
    for (size_t i = 0; !c->j->failed && i < all.of.list->count; i++) {
        struct st_jvalue item = all.of.list->items[i];
        if (i)
            st_j_put_string(c->j, &b, self_text(c));
        if (item.kind == ST_J_STRING)
            st_j_put_string(c->j, &b, item.of.string);
        else
            st_j_fail(c->j, STRATA_E_ARGUMENT, "join: item %zu is a %s, not a str", i, st_j_type(&item));
    }
    return st_j_built(c->j, &b);
}

static struct st_jvalue m_format(struct call *c)
{
    return st_j_format(c->j, self_text(c), c->args);
}

/* Pads to a width: side -1 fills on the left, 1 on the right, 0 both. */
static struct st_jvalue pad(struct call *c, int side, const char *usual)
{
    struct st_j *j = c->j;
    struct st_jstring *s = self_text(c), *fill = text(c, 1);
    int64_t width = integer(c, 0, 0), n = (int64_t)st_j_length(j, s), room = width > n ? width - n : 0;
    int64_t left = side < 0 ? room : side > 0 ? 0 : room / 2 + (room & width & 1);
    struct st_jbuffer b = {0};
    for (int64_t i = 0; i <= room && !j->failed; i++) {
        if (i == left)
            st_j_put_string(j, &b, s);
        if (i < room && fill)
            st_j_put_string(j, &b, fill);
        else if (i < room)
            st_j_puts(j, &b, usual);
    }
    return st_j_built(j, &b);
}

static struct st_jvalue m_center(struct call *c)
{
    return pad(c, 0, " ");
}

static struct st_jvalue m_ljust(struct call *c)
{
    return pad(c, 1, " ");
}

static struct st_jvalue m_rjust(struct call *c)
{
    return pad(c, -1, " ");
}

static struct st_jvalue m_zfill(struct call *c)
{
    struct st_jstring *s = self_text(c);
    const char *data = st_j_data(c->j, s);
    size_t sign = s->size && (data[0] == '-' || data[0] == '+');
    int64_t width = integer(c, 0, 0), n = (int64_t)st_j_length(c->j, s);
    struct st_jbuffer b = {0};
    st_j_put_part(c->j, &b, s, 0, sign);
    for (; n < width && !c->j->failed; n++)
        st_j_puts(c->j, &b, "0");
    st_j_put_part(c->j, &b, s, sign, s->size);
    return st_j_built(c->j, &b);
}

/* All characters belong to the classes of the method's name; an empty str has none. */
static struct st_jvalue all_characters(struct call *c, bool letters, bool digits, bool numbers, bool blanks)
{
    struct st_jstring *s = self_text(c);
    const char *data = st_j_data(c->j, s);
    if (!st_j_work(c->j, s->size / 4))
        return c->self;
    for (size_t i = 0; i < s->size;) {
        uint32_t cp = 0;
        int n = st_utf8_scan((const unsigned char *)data + i, s->size - i, &cp);
        utf8proc_category_t k = utf8proc_category((int32_t)cp);
        if (!((letters && k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) ||
              (digits && k == UTF8PROC_CATEGORY_ND) ||
              (numbers && k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO) || (blanks && st_j_space(cp))))
            return st_j_bool(false);
        i += n > 0 ? (size_t)n : 1;
    }
    return st_j_bool(s->size > 0);
}

static struct st_jvalue m_isalpha(struct call *c)
{
    return all_characters(c, true, false, false, false);
}

static struct st_jvalue m_isdigit(struct call *c)
{
    return all_characters(c, false, true, false, false);
}

static struct st_jvalue m_isnumeric(struct call *c)
{
    return all_characters(c, false, false, true, false);
}

static struct st_jvalue m_isalnum(struct call *c)
{
    return all_characters(c, true, true, true, false);
}

static struct st_jvalue m_isspace(struct call *c)
{
    return all_characters(c, false, false, false, true);
}

static struct st_jvalue by_test(struct call *c, const char *name)
{
    const struct st_jargs none = {0};
    return st_j_bool(st_j_test(c->j, st_j_find_test(name, strlen(name)), c->self, &none));
}

static struct st_jvalue m_islower(struct call *c)
{
    return by_test(c, "lower");
}

static struct st_jvalue m_isupper(struct call *c)
{
    return by_test(c, "upper");
}

/* ---- list ---- */

static bool changeable(struct call *c)
{
    if (c->self.of.list->tuple)
        st_j_fail(c->j, STRATA_E_ARGUMENT, "a tuple does not change");
    return !c->j->failed;
}

static struct st_jvalue m_append(struct call *c)
{
    if (changeable(c))
        st_j_append(c->j, c->self, c->a[0]);
    return st_j_none();
}

static struct st_jvalue m_extend(struct call *c)
{
    struct st_jvalue more = st_j_iterate(c->j, c->a[0]);
    size_t n = c->j->failed ? 0 : more.of.list->count; /* a list may be extended by itself */
    for (size_t i = 0; i < n && changeable(c); i++)
        st_j_append(c->j, c->self, more.of.list->items[i]);
    return st_j_none();
}

static struct st_jvalue m_insert(struct call *c)
{
    struct st_jlist *l = c->self.of.list;
    int64_t n = (int64_t)l->count, at = integer(c, 0, 0);
    if (!changeable(c) || !st_j_work(c->j, l->count))
        return st_j_none();
    at = at < 0 ? (at < -n ? 0 : at + n) : at > n ? n : at;
    st_j_append(c->j, c->self, c->a[1]);
    if (!c->j->failed) {
        memmove(l->items + at + 1, l->items + at, (size_t)(n - at) * sizeof *l->items);
        l->items[at] = c->a[1];
    }
    return st_j_none();
}

static struct st_jvalue m_list_pop(struct call *c)
{
    struct st_jlist *l = c->self.of.list;
    int64_t n = (int64_t)l->count, at = integer(c, 0, -1);
    at += at < 0 ? n : 0;
    if (at < 0 || at >= n)
        st_j_fail(c->j, STRATA_E_ARGUMENT, "pop: the list has no item there");
    if (!changeable(c) || !st_j_work(c->j, l->count))
        return st_j_none();
    struct st_jvalue v = l->items[at];
    memmove(l->items + at, l->items + at + 1, (size_t)(n - at - 1) * sizeof *l->items);
    l->count--;
    return v;
}

static struct st_jvalue m_list_index(struct call *c)
{
    for (size_t i = 0; i < c->self.of.list->count && !c->j->failed; i++)
        if (st_j_equal(c->j, c->self.of.list->items[i], c->a[0]))
            return st_j_int((int64_t)i);
    st_j_fail(c->j, STRATA_E_ARGUMENT, "index: the item is not in the list");
    return st_j_none();
}

static struct st_jvalue m_list_count(struct call *c)
{
    int64_t n = 0;
    for (size_t i = 0; i < c->self.of.list->count && !c->j->failed; i++)
        n += st_j_equal(c->j, c->self.of.list->items[i], c->a[0]);
    return st_j_int(n);
}

static struct st_jvalue m_list_reverse(struct call *c)
{
    if (changeable(c) && st_j_work(c->j, c->self.of.list->count))
        reverse(c->self.of.list);
    return st_j_none();
}

static struct st_jvalue m_list_copy(struct call *c)
{
    const struct st_jargs none = {0};
    return st_j_filter(c->j, st_j_find_filter("list", 4), c->self, &none);
}

static struct st_jvalue m_list_clear(struct call *c)
{
    if (changeable(c))
        c->self.of.list->count = 0;
    return st_j_none();
}

/* ---- dict ---- */

static struct st_jvalue m_items(struct call *c)
{
    const struct st_jargs none = {0};
    return st_j_filter(c->j, st_j_find_filter("items", 5), c->self, &none);
}

static struct st_jvalue m_keys(struct call *c)
{
    return st_j_iterate(c->j, c->self);
}

static struct st_jvalue m_values(struct call *c)
{
    struct st_jvalue out = st_j_list(c->j, c->self.of.dict->count, false);
    for (size_t i = 0; i < c->self.of.dict->count && !c->j->failed; i++)
        st_j_append(c->j, out, c->self.of.dict->values[i]);
    return out;
}

static struct st_jvalue m_get(struct call *c)
{
    struct st_jvalue *v = st_j_dict_find(c->j, c->self.of.dict, c->a[0]);
    return v ? *v : c->a[1].kind == ST_J_ABSENT ? st_j_none() : c->a[1];
}

static struct st_jvalue m_dict_pop(struct call *c)
{
    struct st_jvalue v = c->a[1];
    if (!st_j_dict_remove(c->j, c->self.of.dict, c->a[0], &v) && v.kind == ST_J_ABSENT)
        st_j_fail(c->j, STRATA_E_ARGUMENT, "pop: the dict has no such key");
    return v;
}

static struct st_jvalue m_update(struct call *c)
{
    if (c->a[0].kind != ST_J_DICT) {
        st_j_fail(c->j, STRATA_E_ARGUMENT, "update needs a dict, not a %s", st_j_type(&c->a[0]));
        return st_j_none();
    }
    struct st_jdict *from = c->a[0].of.dict;
    for (size_t i = 0; i < from->count && !c->j->failed; i++)
        st_j_dict_set(c->j, c->self.of.dict, from->keys[i], from->values[i]);
    return st_j_none();
}

static struct st_jvalue m_setdefault(struct call *c)
{
    struct st_jvalue *v = st_j_dict_find(c->j, c->self.of.dict, c->a[0]);
    if (v || c->j->failed)
        return v ? *v : st_j_none();
    struct st_jvalue usual = c->a[1].kind == ST_J_ABSENT ? st_j_none() : c->a[1];
    st_j_dict_set(c->j, c->self.of.dict, c->a[0], usual);
    return usual;
}

static struct st_jvalue m_dict_copy(struct call *c)
{
    struct st_jvalue out = st_j_dict(c->j);
    for (size_t i = 0; i < c->self.of.dict->count && !c->j->failed; i++)
        st_j_dict_set(c->j, out.of.dict, c->self.of.dict->keys[i], c->self.of.dict->values[i]);
    return out;
}

static struct st_jvalue m_dict_clear(struct call *c)
{
    *c->self.of.dict = (struct st_jdict){0};
    return st_j_none();
}

static const struct {
    enum st_jkind of;
    const char *name;
    method *run;
    const char *parameters[MAX_PARAMETERS]; /* "*": takes the arguments as they are */
} methods[] = {
    {ST_J_STRING, "capitalize", m_capitalize, {0}},
    {ST_J_STRING, "center", m_center, {"!width", "fillchar"}},
    {ST_J_STRING, "count", m_count, {"!sub"}},
    {ST_J_STRING, "endswith", m_endswith, {"!suffix"}},
    {ST_J_STRING, "find", m_find, {"!sub", "start", "end"}},
    {ST_J_STRING, "format", m_format, {"*"}},
    {ST_J_STRING, "index", m_index, {"!sub", "start", "end"}},
    {ST_J_STRING, "isalnum", m_isalnum, {0}},
    {ST_J_STRING, "isalpha", m_isalpha, {0}},
    {ST_J_STRING, "isdecimal", m_isdigit, {0}},
    {ST_J_STRING, "isdigit", m_isdigit, {0}},
    {ST_J_STRING, "islower", m_islower, {0}},
    {ST_J_STRING, "isnumeric", m_isnumeric, {0}},
    {ST_J_STRING, "isspace", m_isspace, {0}},
    {ST_J_STRING, "isupper", m_isupper, {0}},
    {ST_J_STRING, "join", m_join, {"!iterable"}},
    {ST_J_STRING, "ljust", m_ljust, {"!width", "fillchar"}},
    {ST_J_STRING, "lower", m_lower, {0}},
    {ST_J_STRING, "lstrip", m_lstrip, {"chars"}},
    {ST_J_STRING, "partition", m_partition, {"!sep"}},
    {ST_J_STRING, "removeprefix", m_removeprefix, {"!prefix"}},
    {ST_J_STRING, "removesuffix", m_removesuffix, {"!suffix"}},
    {ST_J_STRING, "replace", m_replace, {"!old", "!new", "count"}},
    {ST_J_STRING, "rfind", m_rfind, {"!sub", "start", "end"}},
    {ST_J_STRING, "rindex", m_rindex, {"!sub", "start", "end"}},
    {ST_J_STRING, "rjust", m_rjust, {"!width", "fillchar"}},
    {ST_J_STRING, "rpartition", m_rpartition, {"!sep"}},
    {ST_J_STRING, "rsplit", m_rsplit, {"sep", "maxsplit"}},
    {ST_J_STRING, "rstrip", m_rstrip, {"chars"}},
    {ST_J_STRING, "split", m_split, {"sep", "maxsplit"}},
    {ST_J_STRING, "splitlines", m_splitlines, {"keepends"}},
    {ST_J_STRING, "startswith", m_startswith, {"!prefix"}},
    {ST_J_STRING, "strip", m_strip, {"chars"}},
    {ST_J_STRING, "title", m_title, {0}},
    {ST_J_STRING, "upper", m_upper, {0}},
    {ST_J_STRING, "zfill", m_zfill, {"!width"}},
    {ST_J_LIST, "append", m_append, {"!object"}},
    {ST_J_LIST, "clear", m_list_clear, {0}},
    {ST_J_LIST, "copy", m_list_copy, {0}},
    {ST_J_LIST, "count", m_list_count, {"!value"}},
    {ST_J_LIST, "extend", m_extend, {"!iterable"}},
    {ST_J_LIST, "index", m_list_index, {"!value"}},
    {ST_J_LIST, "insert", m_insert, {"!index", "!object"}},
    {ST_J_LIST, "pop", m_list_pop, {"index"}},
    {ST_J_LIST, "reverse", m_list_reverse, {0}},
    {ST_J_DICT, "clear", m_dict_clear, {0}},
    {ST_J_DICT, "copy", m_dict_copy, {0}},
    {ST_J_DICT, "get", m_get, {"!key", "default"}},
    {ST_J_DICT, "items", m_items, {0}},
    {ST_J_DICT, "keys", m_keys, {0}},
    {ST_J_DICT, "pop", m_dict_pop, {"!key", "default"}},
    {ST_J_DICT, "setdefault", m_setdefault, {"!key", "default"}},
    {ST_J_DICT, "update", m_update, {"!other"}},
    {ST_J_DICT, "values", m_values, {0}},
};

struct st_jvalue st_j_method(struct st_j *j, struct st_jvalue self, const char *name, size_t size)
{
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++)
        if (methods[i].of == self.kind && strlen(methods[i].name) == size && memcmp(methods[i].name, name, size) == 0) {
            struct st_jmethod *m = st_j_alloc(j, 1, sizeof *m);
            if (!m)
                break;
            *m = (struct st_jmethod){self, (int)i};
            return (struct st_jvalue){.kind = ST_J_METHOD, .of.method = m};
        }
    char *hint = st_j_alloc(j, size + 1, 1);
    if (hint)
        memcpy(hint, name, size);
    return st_j_undefined(hint);
}

struct st_jvalue st_j_call_method(struct st_j *j, const struct st_jmethod *m, const struct st_jargs *args)
{
    if (m->self.kind == ST_J_LOOP)
        return st_j_call_loop(j, m, args);
    struct call c = {.j = j, .self = m->self, .args = args};
    const char *const *names = methods[m->which].parameters;
    size_t n = 0;
    while (n < MAX_PARAMETERS && names[n])
        n++;
    bool raw = n && strcmp(names[0], "*") == 0;
    if (!st_j_work(j, 1) || (!raw && !st_j_bind(j, methods[m->which].name, args, names, n, c.a)))
        return st_j_undefined(NULL);
    /* cppcheck-suppress returnDanglingLifetime ; a value never points at its call */
    return methods[m->which].run(&c);
}

/* ---- looking things up ---- */

static void refuse_undefined(struct st_j *j, struct st_jvalue v)
{
    st_j_fail(j, STRATA_E_ARGUMENT, "'%s' is undefined", v.of.hint ? v.of.hint : "value");
}

struct st_jvalue st_j_attribute(struct st_j *j, struct st_jvalue v, const char *name, size_t size)
{
    struct st_jstring key = {.size = size, .data = name};
    struct st_jvalue wanted = {.kind = ST_J_STRING, .of.string = &key};
    if (v.kind == ST_J_UNDEFINED)
        refuse_undefined(j, v);
    if (j->failed)
        return st_j_undefined(NULL);
    if (v.kind == ST_J_LOOP)
        return st_j_loop_attribute(j, v, name, size);
    if (v.kind == ST_J_LIST && v.of.list->group && (st_j_is(&wanted, "grouper") || st_j_is(&wanted, "list")))
        return v.of.list->items[st_j_is(&wanted, "list")];
    if (v.kind == ST_J_DICT || v.kind == ST_J_NAMESPACE) {
        for (size_t i = 0; v.kind == ST_J_DICT && i < sizeof methods / sizeof methods[0]; i++)
            if (methods[i].of == ST_J_DICT && st_j_is(&wanted, methods[i].name))
                return st_j_method(j, v, name, size);
        struct st_jvalue *found = st_j_dict_find(j, v.of.dict, wanted);
        if (found)
            return *found;
    }
    return st_j_method(j, v, name, size);
}

struct st_jvalue st_j_subscript(struct st_j *j, struct st_jvalue v, struct st_jvalue key)
{
    if (v.kind == ST_J_UNDEFINED)
        refuse_undefined(j, v);
    if (j->failed)
        return st_j_undefined(NULL);
    bool named = key.kind == ST_J_STRING;
    if (named && (v.kind == ST_J_NAMESPACE || v.kind == ST_J_LOOP || v.kind == ST_J_LIST))
        return st_j_attribute(j, v, st_j_data(j, key.of.string), key.of.string->size);
    struct st_jvalue item = st_j_item(j, v, key);
    if (item.kind == ST_J_UNDEFINED && named && !j->failed &&
        !(v.kind == ST_J_DICT && st_j_dict_find(j, v.of.dict, key)))
        return st_j_method(j, v, st_j_data(j, key.of.string), key.of.string->size);
    return item;
}
