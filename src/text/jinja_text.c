/* Template interpreter: longer operations on strings: case, lines, replacing, formatting. */
#define _GNU_SOURCE /* memmem */
#include "text/jinja_value.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "base/utf8.h"

static bool is_cased(uint32_t cp)
{
    utf8proc_category_t c = utf8proc_category((int32_t)cp);
    return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT;
}

static void put_mapped(struct st_j *j, struct st_jbuffer *b, uint32_t cp, char how, bool user)
{
    if (cp == 0xDF && how != 'l') { /* sharp s has no capital of one letter */
        st_j_put(j, b, how == 'u' ? "SS" : "Ss", 2, user);
        return;
    }
    int32_t to = how == 'u'   ? utf8proc_toupper((int32_t)cp)
                 : how == 't' ? utf8proc_totitle((int32_t)cp)
                              : utf8proc_tolower((int32_t)cp);
    st_j_put_cp(j, b, (uint32_t)to, user);
}

struct st_jvalue st_j_case(struct st_j *j, struct st_jstring *s, char how)
{
    const char *data = st_j_data(j, s);
    struct st_jbuffer b = {0};
    bool begin = true; /* of a word, or of the text for 'c' */
    for (size_t i = 0; i < s->size && !j->failed;) {
        uint32_t cp = 0xFFFD;
        int n = st_utf8_scan((const unsigned char *)data + i, s->size - i, &cp);
        bool user = s->marks ? s->marks[i] : s->user;
        if (how == 'u' || how == 'l') {
            put_mapped(j, &b, cp, how, user);
        } else if (how == 'T') {
            bool between = st_j_space(cp) || (cp < 0x80 && cp && strchr("-({[<", (int)cp));
            put_mapped(j, &b, cp, begin ? 'u' : 'l', user);
            begin = between;
        } else {
            put_mapped(j, &b, cp, begin ? 't' : 'l', user);
            begin = how == 't' && !is_cased(cp);
        }
        i += n > 0 ? (size_t)n : 1;
    }
    return st_j_built(j, &b);
}

/* Length of the line end at data, 0 if there is none there. */
static size_t line_end(const char *data, size_t left)
{
    unsigned char c = (unsigned char)data[0];
    if (c == '\r')
        return left > 1 && data[1] == '\n' ? 2 : 1;
    if ((c >= 0x0A && c <= 0x0C) || (c >= 0x1C && c <= 0x1E))
        return 1;
    if (left > 1 && memcmp(data, "\xC2\x85", 2) == 0)
        return 2;
    return left > 2 && (memcmp(data, "\xE2\x80\xA8", 3) == 0 || memcmp(data, "\xE2\x80\xA9", 3) == 0) ? 3 : 0;
}

struct st_jvalue st_j_split_lines(struct st_j *j, struct st_jstring *s, bool keep_ends)
{
    const char *data = st_j_data(j, s);
    struct st_jvalue out = st_j_list(j, 8, false);
    size_t from = 0;
    for (size_t i = 0; i < s->size && !j->failed;) {
        size_t n = line_end(data + i, s->size - i);
        if (n) {
            st_j_append(j, out, st_j_part(j, s, from, keep_ends ? i + n : i));
            from = i + n;
        }
        i += n ? n : 1;
    }
    if (from < s->size && !j->failed)
        st_j_append(j, out, st_j_part(j, s, from, s->size));
    return out;
}

struct st_jvalue st_j_replace(struct st_j *j, struct st_jstring *s, struct st_jstring *from, struct st_jstring *to,
                              int64_t most)
{
    const char *data = st_j_data(j, s), *pattern = st_j_data(j, from);
    struct st_jbuffer b = {0};
    size_t at = 0;
    if (!st_j_work(j, s->size / 16))
        return st_j_undefined(NULL);
    while (most != 0 && !j->failed) {
        size_t hit = at;
        if (from->size) {
            const char *found = memmem(data + at, s->size - at, pattern, from->size);
            if (!found)
                break;
            hit = (size_t)(found - data);
        }
        st_j_put_part(j, &b, s, at, hit);
        st_j_put_string(j, &b, to);
        at = hit + from->size;
        if (from->size == 0) { /* nothing is found before every character and at the end */
            if (at >= s->size)
                break;
            int n = st_utf8_scan((const unsigned char *)data + at, s->size - at, NULL);
            st_j_put_part(j, &b, s, at, at + (n > 0 ? (size_t)n : 1));
            at += n > 0 ? (size_t)n : 1;
        }
        most -= most > 0;
    }
    st_j_put_part(j, &b, s, at, s->size);
    return st_j_built(j, &b);
}

/* ---- formatting ---- */

struct spec {
    char fill[5]; /* one character */
    char align;   /* < > ^ =, 0: as usual for the type */
    bool plus, space, zero, alternate, comma;
    int64_t width, precision; /* -1: none */
    char type;                /* 0: as str does */
};

static void put_padding(struct st_j *j, struct st_jbuffer *b, const struct spec *f, int64_t n)
{
    for (int64_t i = 0; i < n && !j->failed; i++)
        st_j_puts(j, b, f->fill[0] ? f->fill : " ");
}

/* Sign, digits and padding of a number. */
static void put_number(struct st_j *j, struct st_jbuffer *b, const struct spec *f, bool negative, const char *prefix,
                       const char *digits)
{
    const char *sign = negative ? "-" : f->plus ? "+" : f->space ? " " : "";
    int64_t used = (int64_t)(strlen(sign) + strlen(prefix) + strlen(digits)),
            room = f->width > used ? f->width - used : 0;
    char align = f->align ? f->align : f->zero ? '=' : '>';
    struct spec padding = *f;
    if (f->zero && !f->align)
        strcpy(padding.fill, "0");
    put_padding(j, b, &padding, align == '>' ? room : align == '^' ? room / 2 : 0);
    st_j_puts(j, b, sign);
    st_j_puts(j, b, prefix);
    put_padding(j, b, &padding, align == '=' ? room : 0);
    st_j_puts(j, b, digits);
    put_padding(j, b, &padding, align == '<' ? room : align == '^' ? room - room / 2 : 0);
}

static void put_integer(struct st_j *j, struct st_jbuffer *b, const struct spec *f, int64_t n)
{
    char digits[90];
    size_t at = sizeof digits - 1;
    unsigned base = f->type == 'x' || f->type == 'X' ? 16 : f->type == 'o' ? 8 : f->type == 'b' ? 2 : 10;
    uint64_t rest = n < 0 ? 0 - (uint64_t)n : (uint64_t)n;
    digits[at] = 0;
    int count = 0;
    do {
        if (f->comma && count && count % 3 == 0)
            digits[--at] = ',';
        digits[--at] = (f->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[rest % base];
        rest /= base;
        count++;
    } while (rest);
    const char *prefix = !f->alternate ? ""
                         : base == 16  ? (f->type == 'X' ? "0X" : "0x")
                         : base == 8   ? "0o"
                         : base == 2   ? "0b"
                                       : "";
    put_number(j, b, f, n < 0, prefix, digits + at);
}

static void put_real(struct st_j *j, struct st_jbuffer *b, const struct spec *f, double v)
{
    char digits[500], form[16];
    if (f->precision > 100 || fabs(v) > 1e300) {
        st_j_fail(j, STRATA_E_LIMIT, "a number is formatted with too many digits");
        return;
    }
    char type = f->type == '%' || f->type == 0 ? 'f' : f->type;
    snprintf(form, sizeof form, "%%.*%c", type);
    snprintf(digits, sizeof digits - 1, form, f->precision < 0 ? 6 : (int)f->precision,
             fabs(f->type == '%' ? v * 100 : v));
    if (f->type == 0 && f->precision < 0)
        st_j_format_real(fabs(v), digits);
    if (f->type == '%')
        strcat(digits, "%");
    put_number(j, b, f, signbit(v) != 0, "", digits);
}

static void put_text(struct st_j *j, struct st_jbuffer *b, const struct spec *f, struct st_jvalue v, bool repr)
{
    struct st_jbuffer text = {0};
    st_j_put_value(j, &text, v, repr);
    struct st_jvalue s = st_j_built(j, &text);
    if (j->failed)
        return;
    int64_t n = (int64_t)st_j_length(j, s.of.string);
    if (f->precision >= 0 && n > f->precision) {
        s = st_j_part(j, s.of.string, 0, st_j_offset(j, s.of.string, (size_t)f->precision));
        n = f->precision;
    }
    int64_t room = f->width > n ? f->width - n : 0;
    put_padding(j, b, f, f->align == '>' ? room : f->align == '^' ? room / 2 : 0);
    if (!j->failed)
        st_j_put_string(j, b, s.of.string);
    put_padding(j, b, f, f->align == '>' ? 0 : f->align == '^' ? room - room / 2 : room);
}

/* Writes v as spec says. percent: by the rules of "%d" % v. */
static void put_formatted(struct st_j *j, struct st_jbuffer *b, const struct spec *f, struct st_jvalue v, bool percent)
{
    int64_t n;
    double real;
    bool whole = st_j_integer(&v, &n);
    switch (f->type) {
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
    case 'b':
        if (percent && v.kind == ST_J_FLOAT && fabs(v.of.real) < 9e18) {
            n = (int64_t)v.of.real;
            whole = true;
        }
        if (whole)
            put_integer(j, b, f, n);
        break;
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
    case '%':
        if (st_j_number(&v, &real)) {
            put_real(j, b, f, real);
            whole = true;
        }
        break;
    case 0:
        if (!percent && v.kind == ST_J_INT)
            put_integer(j, b, f, n);
        else if (!percent && v.kind == ST_J_FLOAT)
            put_real(j, b, f, v.of.real);
        else
            put_text(j, b, f, v, false);
        return;
    default: put_text(j, b, f, v, f->type == 'r'); return;
    }
    if (!whole)
        st_j_fail(j, STRATA_E_ARGUMENT, "the format %%%c needs a number, not a %s", f->type, st_j_type(&v));
}

static int64_t digits_at(const char *data, size_t size, size_t *at)
{
    int64_t n = -1;
    for (; *at < size && data[*at] >= '0' && data[*at] <= '9'; ++*at)
        n = (n < 0 ? 0 : n > 1000000 ? 1000000 : n) * 10 + (data[*at] - '0');
    return n;
}

struct st_jvalue st_j_percent(struct st_j *j, struct st_jstring *form, struct st_jvalue values)
{
    const char *data = st_j_data(j, form);
    struct st_jbuffer b = {0};
    size_t used = 0, at = 0, size = form->size;
    bool tuple = values.kind == ST_J_LIST && values.of.list->tuple;
    while (at < size && !j->failed) {
        const char *mark = memchr(data + at, '%', size - at);
        size_t to = mark ? (size_t)(mark - data) : size;
        st_j_put_part(j, &b, form, at, to);
        at = to + 1;
        if (to >= size)
            break;
        struct spec f = {.width = -1, .precision = -1, .align = '>'};
        struct st_jvalue v = {.kind = ST_J_ABSENT};
        if (at < size && data[at] == '(') {
            const char *close = memchr(data + at, ')', size - at);
            if (close && values.kind == ST_J_DICT)
                v = st_j_item(j, values, st_j_part(j, form, at + 1, (size_t)(close - data)));
            at = close ? (size_t)(close - data) + 1 : size;
        }
        for (; at < size && data[at] && strchr("-+ 0#", data[at]); at++) {
            f.plus |= data[at] == '+';
            f.space |= data[at] == ' ';
            f.zero |= data[at] == '0';
            f.alternate |= data[at] == '#';
            f.align = data[at] == '-' ? '<' : f.align;
        }
        f.width = digits_at(data, size, &at);
        if (at < size && data[at] == '.') {
            at++;
            f.precision = digits_at(data, size, &at);
            f.precision = f.precision < 0 ? 0 : f.precision;
        }
        f.type = at < size ? data[at] : 0;
        at++;
        if (f.type == '%') {
            st_j_puts(j, &b, "%");
            continue;
        }
        if (!f.type || !strchr("srdiuxXoeEfFgGc", f.type)) {
            st_j_fail(j, STRATA_E_ARGUMENT, "unknown format after %%");
            break;
        }
        if (v.kind == ST_J_ABSENT) {
            size_t have = tuple ? values.of.list->count : 1;
            if (used >= have) {
                st_j_fail(j, STRATA_E_ARGUMENT, "a format needs more than %zu values", have);
                break;
            }
            v = tuple ? values.of.list->items[used] : values;
            used++;
        }
        if (f.align == '>' && f.zero && f.type != 's' && f.type != 'r')
            f.align = 0;
        put_formatted(j, &b, &f, v, true);
    }
    if (tuple && used < values.of.list->count)
        st_j_fail(j, STRATA_E_ARGUMENT, "a format leaves %zu of its values over", values.of.list->count - used);
    return st_j_built(j, &b);
}

/* "[[fill]align][sign][#][0][width][,][.precision][type]" */
static bool parse_spec(const char *data, size_t size, struct spec *f)
{
    *f = (struct spec){.width = -1, .precision = -1};
    size_t at = 0;
    int n = size ? st_utf8_scan((const unsigned char *)data, size, NULL) : 0;
    if (n > 0 && (size_t)n < size && strchr("<>^=", data[n])) {
        memcpy(f->fill, data, (size_t)n);
        f->align = data[n];
        at = (size_t)n + 1;
    } else if (size && data[0] && strchr("<>^=", data[0])) {
        f->align = data[0];
        at = 1;
    }
    if (at < size && (data[at] == '+' || data[at] == '-' || data[at] == ' ')) {
        f->plus = data[at] == '+';
        f->space = data[at++] == ' ';
    }
    if (at < size && data[at] == '#') {
        f->alternate = true;
        at++;
    }
    if (at < size && data[at] == '0') {
        f->zero = true;
        at++;
    }
    f->width = digits_at(data, size, &at);
    if (at < size && data[at] == ',') {
        f->comma = true;
        at++;
    }
    if (at < size && data[at] == '.') {
        at++;
        f->precision = digits_at(data, size, &at);
        if (f->precision < 0)
            return false;
    }
    if (at < size && data[at] && strchr("sdxXobeEfFgG%", data[at]))
        f->type = data[at++];
    return at == size;
}

/* The argument that a replacement field names: a number, a name, or nothing (the next one); then .attribute and [item].
 */
static struct st_jvalue field_value(struct st_j *j, struct st_jstring *form, size_t from, size_t to,
                                    const struct st_jargs *args, size_t *automatic)
{
    const char *data = st_j_data(j, form);
    size_t end = from, positional = args->count - args->named;
    while (end < to && data[end] != '.' && data[end] != '[')
        end++;
    size_t at = from;
    int64_t index = end == from ? (int64_t)(*automatic)++ : digits_at(data, end, &at);
    struct st_jvalue v = {.kind = ST_J_ABSENT};
    if (end == from || at == end) {
        if (index >= 0 && (uint64_t)index < positional)
            v = args->values[index];
    } else {
        for (size_t i = 0; i < args->named; i++)
            if (strlen(args->names[i]) == end - from && memcmp(args->names[i], data + from, end - from) == 0)
                v = args->values[positional + i];
    }
    if (v.kind == ST_J_ABSENT)
        st_j_fail(j, STRATA_E_ARGUMENT, "format has no value for {%.*s}", (int)(end - from > 40 ? 40 : end - from),
                  data + from);
    while (end < to && !j->failed) {
        bool item = data[end] == '[';
        size_t begin = ++end;
        while (end < to && (item ? data[end] != ']' : data[end] != '.' && data[end] != '['))
            end++;
        size_t digit = begin;
        int64_t number = digits_at(data, end, &digit);
        if (item && digit == end && end > begin)
            v = st_j_item(j, v, st_j_int(number));
        else if (item)
            v = st_j_item(j, v, st_j_part(j, form, begin, end));
        else
            v = st_j_attribute(j, v, data + begin, end - begin);
        end += item && end < to;
    }
    return v;
}

struct st_jvalue st_j_format(struct st_j *j, struct st_jstring *form, const struct st_jargs *args)
{
    const char *data = st_j_data(j, form);
    struct st_jbuffer b = {0};
    size_t automatic = 0, plain = 0;
    for (size_t at = 0; at < form->size && !j->failed; at++) {
        char c = data[at];
        if (c != '{' && c != '}')
            continue;
        st_j_put_part(j, &b, form, plain, at);
        if (at + 1 < form->size && data[at + 1] == c) {
            st_j_put_part(j, &b, form, at, at + 1);
            plain = ++at + 1;
            continue;
        }
        const char *close = c == '{' ? memchr(data + at, '}', form->size - at) : NULL;
        if (!close) {
            st_j_fail(j, STRATA_E_ARGUMENT, "a single %c in a format", c);
            break;
        }
        size_t end = (size_t)(close - data), name_end = at + 1, spec_at;
        while (name_end < end && data[name_end] != ':' && data[name_end] != '!')
            name_end++;
        struct st_jvalue v = field_value(j, form, at + 1, name_end, args, &automatic);
        spec_at = name_end;
        bool repr = spec_at + 1 < end && data[spec_at] == '!' && data[spec_at + 1] == 'r';
        if (spec_at < end && data[spec_at] == '!') {
            spec_at += 2;
            if (!repr)
                v = j->failed ? v : st_j_str(j, v);
        }
        struct spec f;
        bool has_spec = spec_at < end && data[spec_at] == ':';
        if (!parse_spec(data + spec_at + has_spec, has_spec ? end - spec_at - 1 : 0, &f) ||
            (spec_at < end && !has_spec)) {
            st_j_fail(j, STRATA_E_ARGUMENT, "unknown format {%.*s}", (int)(end - at - 1 > 40 ? 40 : end - at - 1),
                      data + at + 1);
            break;
        }
        if (repr)
            put_text(j, &b, &f, v, true);
        else
            put_formatted(j, &b, &f, v, false);
        at = end;
        plain = end + 1;
    }
    if (plain < form->size)
        st_j_put_part(j, &b, form, plain, form->size);
    return st_j_built(j, &b);
}
