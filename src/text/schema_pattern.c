/* Regular expressions of the keyword "pattern" (schema_parts.h says which), and how characters are written. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/schema_parts.h"

enum { CLASS_MAX = 512 };

/* ---- characters ---- */

/* The part of sorted ranges that is not among the points (ascending). Returns how many there are; out has room for count + n. */
static size_t without(const struct st_range *ranges, size_t count, const uint32_t *points, size_t n, struct st_range *out)
{
    size_t made = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t from = ranges[i].lo;
        for (size_t k = 0; k < n && from <= ranges[i].hi; k++) {
            if (points[k] < from || points[k] > ranges[i].hi)
                continue;
            if (points[k] > from)
                out[made++] = (struct st_range){from, points[k] - 1};
            from = points[k] + 1;
        }
        if (from <= ranges[i].hi)
            out[made++] = (struct st_range){from, ranges[i].hi};
    }
    return made;
}

static bool contains(const struct st_range *ranges, size_t count, uint32_t cp)
{
    for (size_t i = 0; i < count; i++)
        if (ranges[i].lo <= cp && cp <= ranges[i].hi)
            return true;
    return false;
}

/* How JSON writes a character that cannot stand for itself. */
static void escape(uint32_t cp, char out[8])
{
    static const char plain[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
    static const char hex[] = "0123456789abcdef";
    const char *found = memchr(plain, (int)cp, sizeof plain - 1);
    memcpy(out, "\\u0000", 7);
    if (found) {
        out[1] = letter[found - plain];
        out[2] = 0;
    } else {
        out[4] = hex[cp >> 4 & 15];
        out[5] = hex[cp & 15];
    }
}

/* Characters but those that are written as escapes; with escapes, those too. NUL is never written. */
static uint32_t write_set(struct st_net *net, const struct st_range *ranges, size_t count, const uint32_t *special, size_t n,
                          bool escapes, uint32_t next)
{
    struct st_range *sorted = malloc((2 * count + n + 1) * sizeof *sorted), *rest = sorted + count;
    char texts[40][8];
    const char *list[40];
    size_t sizes[40], made = 0;
    if (!sorted || count > ST_NET_RANGES) {
        free(sorted);
        st_net_refuse(net, STRATA_E_LIMIT, "a character set has more than %d ranges", ST_NET_RANGES);
        return ST_NET_RETURN;
    }
    if (count)
        memcpy(sorted, ranges, count * sizeof *sorted);
    count = st_ranges_sort(sorted, count);
    for (size_t i = 0; i < n && escapes; i++)
        if (special[i] && contains(sorted, count, special[i])) {
            escape(special[i], texts[made]);
            list[made] = texts[made];
            sizes[made] = strlen(texts[made]);
            made++;
        }
    size_t left = without(sorted, count, special, n, rest);
    uint32_t node = left || !made ? st_net_set(net, rest, left, next) : ST_NET_NOWHERE;
    if (made)
        node = st_net_split(net, node, st_net_choice(net, list, sizes, made, next));
    free(sorted);
    return node;
}

static uint32_t quoted_set(struct st_net *net, const struct st_range *ranges, size_t count, bool tagged, uint32_t next)
{
    uint32_t special[36];
    size_t n = 0;
    for (uint32_t cp = 0; cp < 0x20; cp++)
        special[n++] = cp;
    special[n++] = '"';
    if (tagged)
        special[n++] = '<';
    special[n++] = '\\';
    return write_set(net, ranges, count, special, n, true, next);
}

uint32_t st_json_set(struct st_net *net, const struct st_range *ranges, size_t count, uint32_t next)
{
    return quoted_set(net, ranges, count, false, next);
}

uint32_t st_json_set_tagged(struct st_net *net, const struct st_range *ranges, size_t count, uint32_t next)
{
    return quoted_set(net, ranges, count, true, next);
}

uint32_t st_raw_set(struct st_net *net, const struct st_range *ranges, size_t count, uint32_t next)
{
    static const uint32_t special[] = {0, '<'};
    return write_set(net, ranges, count, special, 2, false, next);
}

/* ---- regular expressions ---- */

struct reader {
    struct st_net *net;
    struct st_sketch *sketch;
    const char *text;
    size_t size, at;
    const char *where;
};

static bool refuse(struct reader *r, const char *what)
{
    char shown[60];
    st_printable(shown, sizeof shown, r->text, r->size);
    st_net_refuse(r->net, STRATA_E_UNSUPPORTED, "%s: pattern \"%s\": %s (byte %zu)", r->where, shown, what, r->at);
    return false;
}

struct class {
    struct st_range ranges[CLASS_MAX];
    size_t count;
    bool ascii; /* it has \d, \w or \s: what is not in it is meant within ASCII, where all engines agree */
};

static bool add(struct reader *r, struct class *c, uint32_t lo, uint32_t hi)
{
    if (c->count == CLASS_MAX)
        return refuse(r, "a class has too many parts");
    c->ranges[c->count++] = (struct st_range){lo, hi};
    return true;
}

/* Adds \d, \w or \s; a capital letter means what else ASCII has. */
static bool add_shorthand(struct reader *r, struct class *c, char letter)
{
    static const struct st_range digits[] = {{'0', '9'}}, words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                                 spaces[] = {{'\t', '\r'}, {' ', ' '}};
    bool capital = letter < 'a';
    char small = capital ? (char)(letter + 'a' - 'A') : letter;
    const struct st_range *list = small == 'd' ? digits : small == 'w' ? words : spaces;
    size_t n = small == 'd' ? 1 : small == 'w' ? 4 : 2;
    struct st_range other[8];
    c->ascii = true;
    if (capital) {
        n = st_ranges_invert(list, n, other);
        list = other;
    }
    for (size_t i = 0; i < n; i++)
        if (list[i].lo < 0x80 && !add(r, c, list[i].lo, list[i].hi < 0x80 ? list[i].hi : 0x7F))
            return false;
    return true;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Behind a backslash: a character, or with *letter set a class of characters. */
static bool read_escape(struct reader *r, uint32_t *cp, char *letter)
{
    static const char plain[] = "nrtfv", means[] = "\n\r\t\f\v";
    *letter = 0;
    if (r->at == r->size)
        return refuse(r, "it ends in an escape");
    char c = r->text[r->at++];
    const char *found = strchr(plain, c);
    if (c && strchr("dDwWsS", c)) {
        *letter = c;
    } else if (c && found) {
        *cp = (uint32_t)means[found - plain];
    } else if (c == 'x' || c == 'u') {
        *cp = 0;
        for (int i = 0; i < (c == 'x' ? 2 : 4); i++, r->at++) {
            int v = r->at < r->size ? hex_digit(r->text[r->at]) : -1;
            if (v < 0)
                return refuse(r, "an escape lacks hexadecimal digits");
            *cp = *cp << 4 | (uint32_t)v;
        }
    } else if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
        return refuse(r, "this escape is not supported");
    } else {
        r->at--;
        r->at += (size_t)st_utf8_scan((const unsigned char *)r->text + r->at, r->size - r->at, cp);
    }
    return true;
}

/* One part of a class: a character, or \d and the like. */
static bool read_part(struct reader *r, uint32_t *cp, char *letter)
{
    *letter = 0;
    if (r->text[r->at] == '\\') {
        r->at++;
        return read_escape(r, cp, letter);
    }
    r->at += (size_t)st_utf8_scan((const unsigned char *)r->text + r->at, r->size - r->at, cp);
    return true;
}

static bool read_class_parts(struct reader *r, struct class *c)
{
    for (;;) {
        uint32_t lo = 0, hi;
        char letter, second;
        if (r->at == r->size)
            return refuse(r, "a class is not closed");
        if (r->text[r->at] == ']')
            break;
        if (!read_part(r, &lo, &letter))
            return false;
        if (letter) {
            if (!add_shorthand(r, c, letter))
                return false;
            continue;
        }
        hi = lo;
        if (r->size - r->at >= 2 && r->text[r->at] == '-' && r->text[r->at + 1] != ']') {
            r->at++;
            if (!read_part(r, &hi, &second))
                return false;
            if (second || hi < lo)
                return refuse(r, "a range of a class is not one");
        }
        if (!add(r, c, lo, hi))
            return false;
    }
    r->at++;
    return true;
}

static bool read_class(struct reader *r)
{
    struct class *c = calloc(1, sizeof *c);
    struct st_range other[CLASS_MAX + 1];
    bool inverted = r->at < r->size && r->text[r->at] == '^';
    r->at += inverted;
    bool good = c ? read_class_parts(r, c) : refuse(r, "no memory");
    if (good && inverted) {
        if (c->ascii)
            good = add(r, c, 0x80, ST_CODE_POINT_MAX);
        c->count = st_ranges_sort(c->ranges, c->count);
        c->count = st_ranges_invert(c->ranges, c->count, other);
        st_sketch_set(r->sketch, other, c->count);
    } else if (good) {
        st_sketch_set(r->sketch, c->ranges, c->count);
    }
    free(c);
    return good;
}

static bool read_number(struct reader *r, uint32_t *out)
{
    uint32_t value = 0;
    size_t from = r->at;
    for (; r->at < r->size && r->text[r->at] >= '0' && r->text[r->at] <= '9'; r->at++)
        if ((value = 10 * value + (uint32_t)(r->text[r->at] - '0')) > ST_REPEAT_MAX)
            return refuse(r, "a repetition is too large");
    *out = value;
    return r->at > from || refuse(r, "a repetition lacks its number");
}

static bool read_repetition(struct reader *r)
{
    uint32_t min = 0, max = ST_REPEAT_FOREVER;
    char c = r->text[r->at++];
    if (c == '+') {
        min = 1;
    } else if (c == '?') {
        max = 1;
    } else if (c == '{') {
        if (!read_number(r, &min))
            return false;
        max = min;
        if (r->at < r->size && r->text[r->at] == ',') {
            r->at++;
            max = ST_REPEAT_FOREVER;
            if (r->at < r->size && r->text[r->at] != '}' && !read_number(r, &max))
                return false;
        }
        if (r->at == r->size || r->text[r->at] != '}')
            return refuse(r, "a repetition is not closed");
        r->at++;
    }
    if (max < min)
        return refuse(r, "a repetition's most is below its least");
    if (r->at < r->size && r->text[r->at] == '?') /* how much is tried first does not matter here */
        r->at++;
    return st_sketch_repeat(r->sketch, min, max) || !st_net_good(r->net) || refuse(r, "a repetition of nothing");
}

static void any_text(struct reader *r)
{
    st_sketch_set(r->sketch, &(struct st_range){1, ST_CODE_POINT_MAX}, 1);
    st_sketch_repeat(r->sketch, 0, ST_REPEAT_FOREVER);
}

static bool read_group(struct reader *r)
{
    if (r->at < r->size && r->text[r->at] == '?') {
        if (r->size - r->at < 2 || r->text[r->at + 1] != ':')
            return refuse(r, "groups with a question mark are not supported, but (?: ) is");
        r->at += 2;
    }
    st_sketch_open(r->sketch);
    return true;
}

static bool read_atom(struct reader *r)
{
    /* . is any character but the ends of lines */
    static const struct st_range any[] = {{1, 9}, {11, 12}, {14, 0x2027}, {0x202A, ST_CODE_POINT_MAX}};
    uint32_t cp = 0;
    char letter, c = r->text[r->at];
    if (c == '*' || c == '+' || c == '?' || c == '{')
        return read_repetition(r);
    if (c == '^' || c == '$' || c == '}' || c == ']')
        return refuse(r, c == '^' || c == '$' ? "^ and $ are supported at the ends of the whole pattern only"
                                              : "a bracket is closed that was not opened");
    if (c == '\\') {
        struct class shorthand = {.count = 0};
        r->at++;
        if (!read_escape(r, &cp, &letter) || (letter && !add_shorthand(r, &shorthand, letter)))
            return false;
        if (letter)
            st_sketch_set(r->sketch, shorthand.ranges, shorthand.count);
        else
            st_sketch_set(r->sketch, &(struct st_range){cp, cp}, 1);
        return true;
    }
    if (c == '(' || c == '[' || c == ')' || c == '.' || c == '|')
        r->at++;
    switch (c) {
    case '(': return read_group(r);
    case '[': return read_class(r);
    case ')': return st_sketch_close(r->sketch) || refuse(r, "a group is closed that was not opened");
    case '.': st_sketch_set(r->sketch, any, 4); return true;
    case '|': st_sketch_or(r->sketch); return true;
    default: break;
    }
    r->at += (size_t)st_utf8_scan((const unsigned char *)r->text + r->at, r->size - r->at, &cp);
    st_sketch_set(r->sketch, &(struct st_range){cp, cp}, 1);
    return true;
}

/* $ ends the whole pattern or one of its outermost alternatives. */
static bool at_end_sign(const struct reader *r)
{
    return st_sketch_depth(r->sketch) == 0 && r->text[r->at] == '$' && (r->at + 1 == r->size || r->text[r->at + 1] == '|');
}

static void read_pattern(struct reader *r)
{
    bool first = true, ended = false;
    while (r->at < r->size && st_net_good(r->net)) {
        if (first && r->text[r->at] == '^')
            r->at++;
        else if (first)
            any_text(r);
        first = false;
        if (r->at == r->size)
            break;
        bool outer = st_sketch_depth(r->sketch) == 0;
        if (at_end_sign(r)) {
            r->at++;
            ended = true;
        } else if (outer && r->text[r->at] == '|') {
            if (!ended)
                any_text(r);
            first = true;
            ended = false;
            if (!read_atom(r))
                return;
        } else if (!read_atom(r)) {
            return;
        }
    }
    if (st_sketch_depth(r->sketch) > 0)
        refuse(r, "a group is not closed");
    if (first)
        any_text(r);
    if (!ended)
        any_text(r);
}

uint32_t st_pattern_rule(struct st_net *net, st_set_fn *set, const char *pattern, size_t size, const char *where)
{
    struct reader r = {.net = net, .sketch = st_sketch_create(net, set), .text = pattern, .size = size, .where = where};
    uint32_t rule = st_net_rule(net, where, strlen(where));
    if (r.sketch) {
        st_sketch_begin(r.sketch, rule);
        read_pattern(&r);
        if (st_net_good(net))
            st_sketch_end(r.sketch);
    }
    st_sketch_free(r.sketch);
    return rule;
}
