/* Reader of GBNF (sketch.h has the notation). */
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/utf8.h"
#include "text/sketch.h"

enum { NAME_MAX = 128, TEXT_MAX = 1 << 20 };

struct name {
    const char *text; /* in the reader's text */
    size_t size;
    uint32_t rule;
};

struct st_gbnf_names {
    struct name *slots; /* open addressing; text NULL: empty */
    size_t mask, count;
};

struct reader {
    struct st_net *net;
    struct st_sketch *sketch;
    const char *text;
    size_t size, at;
    struct st_gbnf_names *names;
    struct strata_error *err;
};

static size_t line_of(const struct reader *r)
{
    size_t line = 1;
    for (size_t i = 0; i < r->at && i < r->size; i++)
        line += r->text[i] == '\n';
    return line;
}

static enum strata_result bad(const struct reader *r, const char *what)
{
    char near[40];
    size_t left = r->at < r->size ? r->size - r->at : 0;
    st_printable(near, sizeof near, left ? r->text + r->at : "", left < 20 ? left : 20);
    return st_fail(r->err, STRATA_E_FORMAT, "grammar, line %zu: %s%s%s%s", line_of(r), what, left ? " at \"" : " at the end",
                   left ? near : "", left ? "\"" : "");
}

/* ---- names ---- */

static bool same(const struct name *n, const char *text, size_t size)
{
    return n->size == size && memcmp(n->text, text, size) == 0;
}

static struct name *slot_of(const struct st_gbnf_names *names, const char *text, size_t size)
{
    size_t i = (size_t)XXH3_64bits(text, size) & names->mask;
    while (names->slots[i].text && !same(&names->slots[i], text, size))
        i = (i + 1) & names->mask;
    return &names->slots[i];
}

static bool grow(struct st_gbnf_names *names)
{
    struct st_gbnf_names more = {.mask = names->slots ? 2 * names->mask + 1 : 63, .count = names->count};
    more.slots = calloc(more.mask + 1, sizeof *more.slots);
    if (!more.slots)
        return false;
    for (size_t i = 0; names->slots && i <= names->mask; i++)
        if (names->slots[i].text)
            *slot_of(&more, names->slots[i].text, names->slots[i].size) = names->slots[i];
    free(names->slots);
    *names = more;
    return true;
}

static uint32_t rule_named(struct reader *r, const char *text, size_t size)
{
    struct st_gbnf_names *names = r->names;
    if (2 * names->count >= names->mask && !grow(names)) {
        st_net_refuse(r->net, STRATA_E_MEMORY, "no memory for a grammar");
        return 0;
    }
    struct name *slot = slot_of(names, text, size);
    if (!slot->text) {
        *slot = (struct name){text, size, st_net_rule(r->net, text, size)};
        names->count++;
    }
    return slot->rule;
}

uint32_t st_gbnf_find(const struct st_gbnf_names *names, const char *name)
{
    const struct name *slot = slot_of(names, name, strlen(name));
    return slot->text ? slot->rule : ST_NET_NOWHERE;
}

void st_gbnf_free(struct st_gbnf_names *names)
{
    if (names)
        free(names->slots);
    free(names);
}

/* ---- words ---- */

static bool word_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/* Blanks and comments, with lines: over line breaks too. */
static void skip(struct reader *r, bool lines)
{
    while (r->at < r->size) {
        char c = r->text[r->at];
        if (c == '#') {
            while (r->at < r->size && r->text[r->at] != '\n')
                r->at++;
        } else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'))) {
            r->at++;
        } else {
            break;
        }
    }
}

static bool next_is(const struct reader *r, char c)
{
    return r->at < r->size && r->text[r->at] == c;
}

static size_t word_size(const struct reader *r)
{
    size_t n = 0;
    while (r->at + n < r->size && word_byte(r->text[r->at + n]))
        n++;
    return n;
}

static int hex_value(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static enum strata_result read_escape(struct reader *r, uint32_t *cp)
{
    static const char plain[] = "nrt\\\"[]-^", means[] = "\n\r\t\\\"[]-^";
    r->at++;
    char c = r->at < r->size ? r->text[r->at] : 0;
    const char *found = c ? strchr(plain, c) : NULL;
    int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (found) {
        *cp = (uint32_t)means[found - plain];
        r->at++;
        return STRATA_OK;
    }
    if (!digits)
        return bad(r, "an unknown escape");
    r->at++;
    uint64_t value = 0;
    for (int i = 0; i < digits; i++, r->at++) {
        int v = r->at < r->size ? hex_value(r->text[r->at]) : -1;
        if (v < 0)
            return bad(r, "an escape lacks hexadecimal digits");
        value = value << 4 | (uint64_t)v;
    }
    if (value > ST_CODE_POINT_MAX || (value >= 0xD800 && value <= 0xDFFF))
        return bad(r, "an escape is not a character");
    *cp = (uint32_t)value;
    return STRATA_OK;
}

/* One character of a literal or class. The text is valid UTF-8. */
static enum strata_result read_character(struct reader *r, uint32_t *cp)
{
    if (r->text[r->at] == '\\')
        return read_escape(r, cp);
    if (r->text[r->at] == '\n')
        return bad(r, "a literal or class is not closed");
    r->at += (size_t)st_utf8_scan((const unsigned char *)r->text + r->at, r->size - r->at, cp);
    return STRATA_OK;
}

static enum strata_result read_literal(struct reader *r)
{
    uint32_t *list = NULL;
    size_t count = 0, have = 0;
    enum strata_result result = STRATA_OK;
    r->at++;
    while (!result && !next_is(r, '"')) {
        if (r->at == r->size) {
            result = bad(r, "a literal is not closed");
        } else if (count == have) {
            uint32_t *grown = realloc(list, (have = 2 * have + 16) * sizeof *list);
            if (!grown)
                result = st_fail(r->err, STRATA_E_MEMORY, "no memory for a grammar");
            else
                list = grown;
        }
        if (!result)
            result = read_character(r, &list[count++]);
    }
    if (!result) {
        r->at++;
        st_sketch_text(r->sketch, list, count);
    }
    free(list);
    return result;
}

static enum strata_result read_ranges(struct reader *r, struct st_range *ranges, size_t *count)
{
    while (!next_is(r, ']')) {
        struct st_range range;
        if (r->at == r->size)
            return bad(r, "a class is not closed");
        if (*count == ST_NET_RANGES)
            return bad(r, "a class has too many parts");
        enum strata_result result = read_character(r, &range.lo);
        range.hi = range.lo;
        if (!result && next_is(r, '-') && r->at + 1 < r->size && r->text[r->at + 1] != ']') {
            r->at++;
            result = read_character(r, &range.hi);
        }
        if (!result && range.hi < range.lo)
            result = bad(r, "a range of a class ends before it begins");
        if (result)
            return result;
        ranges[(*count)++] = range;
    }
    r->at++;
    return STRATA_OK;
}

static enum strata_result read_class(struct reader *r)
{
    struct st_range *ranges = malloc((2 * (size_t)ST_NET_RANGES + 1) * sizeof *ranges), *other = NULL;
    size_t count = 0;
    if (!ranges)
        return st_fail(r->err, STRATA_E_MEMORY, "no memory for a grammar");
    other = ranges + ST_NET_RANGES;
    r->at++;
    bool inverted = next_is(r, '^');
    r->at += inverted;
    enum strata_result result = read_ranges(r, ranges, &count);
    if (!result && inverted) {
        count = st_ranges_invert(ranges, st_ranges_sort(ranges, count), other);
        st_sketch_set(r->sketch, other, count);
    } else if (!result) {
        st_sketch_set(r->sketch, ranges, count);
    }
    free(ranges);
    return result;
}

static enum strata_result read_number(struct reader *r, uint32_t *out)
{
    uint64_t value = 0;
    if (r->at == r->size || r->text[r->at] < '0' || r->text[r->at] > '9')
        return bad(r, "a number is missing");
    for (; r->at < r->size && r->text[r->at] >= '0' && r->text[r->at] <= '9'; r->at++)
        if ((value = 10 * value + (uint64_t)(r->text[r->at] - '0')) > ST_REPEAT_MAX)
            return bad(r, "a repetition is too large");
    *out = (uint32_t)value;
    return STRATA_OK;
}

/* {m} {m,} {,n} {m,n} */
static enum strata_result read_braces(struct reader *r, uint32_t *min, uint32_t *max)
{
    enum strata_result result = STRATA_OK;
    *min = 0;
    r->at++;
    skip(r, false);
    if (!next_is(r, ','))
        result = read_number(r, min);
    *max = *min;
    skip(r, false);
    if (!result && next_is(r, ',')) {
        r->at++;
        skip(r, false);
        *max = ST_REPEAT_FOREVER;
        if (!next_is(r, '}'))
            result = read_number(r, max);
        skip(r, false);
    }
    if (!result && !next_is(r, '}'))
        return bad(r, "a repetition is not closed");
    r->at++;
    return !result && *max < *min ? bad(r, "a repetition's most is below its least") : result;
}

static enum strata_result read_repetition(struct reader *r)
{
    uint32_t min, max;
    enum strata_result result = STRATA_OK;
    switch (r->text[r->at]) {
    case '*': min = 0, max = ST_REPEAT_FOREVER, r->at++; break;
    case '+': min = 1, max = ST_REPEAT_FOREVER, r->at++; break;
    case '?': min = 0, max = 1, r->at++; break;
    default: result = read_braces(r, &min, &max); break;
    }
    if (!result && !st_sketch_repeat(r->sketch, min, max) && st_net_good(r->net))
        return bad(r, "a repetition of nothing, or a second one,");
    return result;
}

/* ---- rules ---- */

/* Is the next word a rule's name with ::= behind it? */
static bool at_definition(struct reader *r)
{
    size_t before = r->at, n = word_size(r);
    r->at += n;
    skip(r, false);
    bool yes = n && r->size - r->at >= 3 && memcmp(r->text + r->at, "::=", 3) == 0;
    r->at = before;
    return yes;
}

static enum strata_result read_reference(struct reader *r)
{
    size_t n = word_size(r);
    if (n > NAME_MAX)
        return bad(r, "a rule's name is too long");
    st_sketch_call(r->sketch, rule_named(r, r->text + r->at, n));
    r->at += n;
    return STRATA_OK;
}

/* One item or sign of a rule. */
static enum strata_result read_item(struct reader *r)
{
    switch (r->text[r->at]) {
    case '"': return read_literal(r);
    case '[': return read_class(r);
    case '.': st_sketch_set(r->sketch, &(struct st_range){0, ST_CODE_POINT_MAX}, 1); break;
    case '(': st_sketch_open(r->sketch); break;
    case ')':
        if (!st_sketch_close(r->sketch))
            return bad(r, "a group is closed that was not opened");
        break;
    case '|': st_sketch_or(r->sketch); break;
    case '*':
    case '+':
    case '?':
    case '{': return read_repetition(r);
    case '<':
    case '!': return bad(r, "tokens by number or name are not supported");
    default: return word_byte(r->text[r->at]) ? read_reference(r) : bad(r, "an unexpected character");
    }
    r->at++;
    return STRATA_OK;
}

static enum strata_result read_rule(struct reader *r)
{
    if (!at_definition(r))
        return bad(r, "expected a rule, NAME ::= ...,");
    size_t n = word_size(r);
    if (n > NAME_MAX)
        return bad(r, "a rule's name is too long");
    uint32_t rule = rule_named(r, r->text + r->at, n);
    if (st_net_defined(r->net, rule))
        return bad(r, "a rule is defined twice");
    r->at += n;
    skip(r, false);
    r->at += 3;
    enum strata_result result = STRATA_OK;
    bool continues = true; /* the definition may go on in the next line */
    st_sketch_begin(r->sketch, rule);
    while (!result && st_net_good(r->net)) {
        bool group = st_sketch_depth(r->sketch) > 0;
        size_t before = r->at;
        skip(r, group || continues);
        if (r->at < r->size && (r->text[r->at] == '\n' || r->text[r->at] == '\r')) {
            before = r->at;
            skip(r, true);
            if (!next_is(r, '|')) {
                r->at = before;
                break;
            }
        }
        if (r->at == r->size)
            break;
        if (continues && !group && at_definition(r)) { /* an empty last alternative, and the next rule */
            r->at = before;
            break;
        }
        continues = r->text[r->at] == '|';
        result = read_item(r);
    }
    if (!result && st_net_good(r->net) && st_sketch_depth(r->sketch) > 0)
        return bad(r, "a group is not closed");
    if (!result)
        st_sketch_end(r->sketch);
    return result;
}

enum strata_result st_gbnf_read_names(struct st_net *net, const char *text, size_t size, struct st_gbnf_names **names,
                                      struct strata_error *err)
{
    struct reader r = {.net = net, .text = text, .size = size, .err = err};
    enum strata_result result = STRATA_OK;
    *names = NULL;
    if (size > TEXT_MAX)
        return st_fail(err, STRATA_E_LIMIT, "the grammar has %zu bytes, more than %d", size, TEXT_MAX);
    if (st_utf8_invalid(text, size) != size)
        return st_fail(err, STRATA_E_FORMAT, "the grammar is not valid UTF-8");
    r.names = calloc(1, sizeof *r.names);
    r.sketch = st_sketch_create(net, st_net_set);
    if (!r.names || !r.sketch || !grow(r.names))
        result = st_fail(err, STRATA_E_MEMORY, "no memory for a grammar");
    if (!result)
        skip(&r, true);
    while (!result && r.at < r.size && st_net_good(net)) {
        result = read_rule(&r);
        skip(&r, true);
    }
    st_sketch_free(r.sketch);
    if (result)
        st_gbnf_free(r.names);
    else
        *names = r.names;
    return result;
}

enum strata_result st_gbnf_read(struct st_net *net, const char *text, size_t size, uint32_t *root, struct strata_error *err)
{
    struct st_gbnf_names *names;
    enum strata_result r = st_gbnf_read_names(net, text, size, &names, err);
    if (r)
        return r;
    *root = st_gbnf_find(names, "root");
    st_gbnf_free(names);
    if (*root == ST_NET_NOWHERE && st_net_good(net))
        return st_fail(err, STRATA_E_FORMAT, "the grammar has no rule named root");
    return STRATA_OK;
}
