/* Numbers between bounds, digit by digit: see schema_parts.h. A number is compared from its first digit on; a node stands for
 * "so far equal to the lower bound", "to the upper one", "to both" or "inside, the rest is free". */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/schema_parts.h"

enum { DIGITS = 15, FRACTION = 9, FREE_FRACTION = 6 };

#define WHOLE_MAX UINT64_C(999999999999999)

/* A bound of magnitudes, 0 or more. */
struct bound {
    uint64_t whole;
    char fraction[FRACTION + 1];
    bool open; /* the bound itself is outside */
};

enum { FREE, LOW, HIGH, BOTH, STATES };

/* One digit in each state, given the digits of both bounds; then[]: where it leads in each state. */
static uint32_t digit(struct st_net *net, int state, char lo, char hi, const uint32_t *then)
{
    char from = state == LOW || state == BOTH ? lo : '0', to = state == HIGH || state == BOTH ? hi : '9';
    struct st_edge edges[10];
    size_t n = 0;
    for (char c = from; c <= to; c++) {
        bool low = c == from && (state == LOW || state == BOTH), high = c == to && (state == HIGH || state == BOTH);
        uint32_t next = then[low && high ? BOTH : low ? LOW : high ? HIGH : FREE];
        if (n && edges[n - 1].next == next)
            edges[n - 1].hi = (uint8_t)c;
        else
            edges[n++] = (struct st_edge){(uint8_t)c, (uint8_t)c, next};
    }
    return st_net_bytes(net, edges, n);
}

/* Whole numbers of as many digits as both bounds have. */
static uint32_t same_length(struct st_net *net, uint64_t lo, uint64_t hi, uint32_t next)
{
    char low[24], high[24];
    int n = snprintf(low, sizeof low, "%llu", (unsigned long long)lo);
    snprintf(high, sizeof high, "%llu", (unsigned long long)hi);
    uint32_t then[STATES] = {next, next, next, next};
    for (int i = n; i > 0; i--) {
        uint32_t now[STATES];
        for (int state = 0; state < STATES; state++)
            now[state] = digit(net, state, low[i - 1], high[i - 1], then);
        memcpy(then, now, sizeof then);
    }
    return then[BOTH];
}

static uint32_t whole_between(struct st_net *net, uint64_t lo, uint64_t hi, uint32_t next)
{
    uint32_t node = ST_NET_NOWHERE;
    uint64_t least = 0, most = 9;
    for (int n = 1; n <= DIGITS; n++, least = most + 1, most = 10 * most + 9)
        if (lo <= most && hi >= least)
            node = st_net_split(net, same_length(net, lo > least ? lo : least, hi < most ? hi : most, next), node);
    return node;
}

static bool zeros(const char *digits)
{
    return digits[strspn(digits, "0")] == 0;
}

/* Fractions (none counts as 0) between those of the bounds; either may be NULL. At most `most` digits. */
static uint32_t fraction_between(struct st_net *net, const struct bound *lo, const struct bound *hi, size_t most, uint32_t next)
{
    uint32_t then[STATES] = {0}, inside[STATES] = {0};
    bool ends[STATES] = {0};
    for (size_t i = most + 1; i > 0; i--) {
        size_t at = i - 1;
        bool low = !lo || (!lo->open && zeros(lo->fraction + at)), high = !hi || !hi->open || !zeros(hi->fraction + at);
        const bool may_end[STATES] = {[FREE] = true, [LOW] = low, [HIGH] = high, [BOTH] = low && high};
        for (int state = 0; state < STATES; state++) {
            inside[state] = at == most ? st_net_bytes(net, NULL, 0)
                                       : digit(net, state, lo ? lo->fraction[at] : '0', hi ? hi->fraction[at] : '9', then);
            ends[state] = may_end[state];
        }
        for (int state = 0; state < STATES; state++)
            then[state] = ends[state] ? st_net_split(net, inside[state], next) : inside[state];
    }
    int start = lo && hi ? BOTH : lo ? LOW : hi ? HIGH : FREE;
    uint32_t point = st_net_text(net, ".", 1, inside[start]);
    return ends[start] ? st_net_split(net, point, next) : point;
}

static size_t digits_left(uint64_t whole)
{
    size_t n = 1;
    for (; whole >= 10; whole /= 10)
        n++;
    return n + FRACTION <= DIGITS ? FRACTION : n < DIGITS ? DIGITS - n : 1;
}

/* Magnitudes between two bounds. */
static uint32_t magnitudes(struct st_net *net, const struct bound *lo, const struct bound *hi, uint32_t next)
{
    if (lo->whole > hi->whole)
        return ST_NET_NOWHERE;
    if (lo->whole == hi->whole)
        return whole_between(net, lo->whole, lo->whole, fraction_between(net, lo, hi, digits_left(lo->whole), next));
    uint32_t node = whole_between(net, lo->whole, lo->whole, fraction_between(net, lo, NULL, digits_left(lo->whole), next));
    node = st_net_split(
        net, whole_between(net, hi->whole, hi->whole, fraction_between(net, NULL, hi, digits_left(hi->whole), next)), node);
    if (hi->whole - lo->whole < 2)
        return node;
    uint32_t free_fraction = fraction_between(net, NULL, NULL, FREE_FRACTION, next);
    return st_net_split(net, whole_between(net, lo->whole + 1, hi->whole - 1, free_fraction), node);
}

/* ---- bounds ---- */

struct limits {
    double min, max; /* not finite: none */
    bool min_open, max_open;
};

static bool read_bound(struct st_schema *s, const json_t *schema, const char *name, const char *where, double *out)
{
    const json_t *value = json_object_get(schema, name);
    *out = NAN;
    if (!value)
        return false;
    *out = json_number_value(value);
    if (!json_is_number(value) || !(fabs(*out) <= (double)WHOLE_MAX)) {
        st_schema_bad(s, where, STRATA_E_UNSUPPORTED, "%s is not a number of at most %d digits", name, DIGITS);
        return false;
    }
    return true;
}

/* False: there are none. */
static bool read_limits(struct st_schema *s, const json_t *schema, const char *where, struct limits *l)
{
    double open_min, open_max;
    bool any = read_bound(s, schema, "minimum", where, &l->min);
    any |= read_bound(s, schema, "maximum", where, &l->max);
    any |= read_bound(s, schema, "exclusiveMinimum", where, &open_min);
    any |= read_bound(s, schema, "exclusiveMaximum", where, &open_max);
    l->min_open = !isnan(open_min) && !(l->min > open_min);
    l->max_open = !isnan(open_max) && !(l->max < open_max);
    if (l->min_open)
        l->min = open_min;
    if (l->max_open)
        l->max = open_max;
    return any && st_schema_good(s);
}

uint32_t st_schema_integer(struct st_schema *s, const json_t *schema, const char *where, uint32_t next)
{
    struct limits l;
    if (!read_limits(s, schema, where, &l))
        return st_net_call(s->net, st_schema_builtin(s, "integer"), next);
    double lo = isnan(l.min) ? -(double)WHOLE_MAX : ceil(l.min), hi = isnan(l.max) ? (double)WHOLE_MAX : floor(l.max);
    lo += l.min_open && lo == l.min;
    hi -= l.max_open && hi == l.max;
    if (lo > hi)
        return st_schema_bad(s, where, STRATA_E_UNSUPPORTED, "no integer is between its minimum and maximum");
    uint32_t node = ST_NET_NOWHERE;
    if (hi >= 0)
        node = whole_between(s->net, lo > 0 ? (uint64_t)lo : 0, (uint64_t)hi, next);
    if (lo < 0) {
        uint32_t rest = whole_between(s->net, hi < 0 ? (uint64_t)-hi : 1, (uint64_t)-lo, next);
        node = st_net_split(s->net, st_net_text(s->net, "-", 1, rest), node);
    }
    return node;
}

/* A magnitude as digits; false if it has more than are compared. */
static bool to_digits(double value, bool open, struct bound *out)
{
    char text[64];
    snprintf(text, sizeof text, "%.*f", FRACTION, value);
    char *point = strchr(text, '.');
    if (!point || strlen(point + 1) != FRACTION || strtod(text, NULL) != value)
        return false;
    memcpy(out->fraction, point + 1, FRACTION + 1);
    *point = 0;
    out->whole = strtoull(text, NULL, 10);
    out->open = open;
    return zeros(out->fraction + digits_left(out->whole));
}

uint32_t st_schema_number(struct st_schema *s, const json_t *schema, const char *where, uint32_t next)
{
    struct limits l;
    struct bound lo, hi;
    const struct bound zero = {0, "000000000", false}, above_zero = {0, "000000000", true};
    if (!read_limits(s, schema, where, &l))
        return st_net_call(s->net, st_schema_builtin(s, "number"), next);
    if (l.min > l.max || (l.min == l.max && (l.min_open || l.max_open)))
        return st_schema_bad(s, where, STRATA_E_UNSUPPORTED, "no number is between its minimum and maximum");
    double min = isnan(l.min) ? -(double)WHOLE_MAX : l.min, max = isnan(l.max) ? (double)WHOLE_MAX : l.max;
    if (!to_digits(fabs(min), l.min_open, &lo) || !to_digits(fabs(max), l.max_open, &hi))
        return st_schema_bad(s, where, STRATA_E_UNSUPPORTED, "a bound has more than %d digits or %d behind the point", DIGITS,
                             FRACTION);
    uint32_t node = ST_NET_NOWHERE;
    if (max > 0 || (max == 0 && !l.max_open))
        node = magnitudes(s->net, min >= 0 ? &lo : &zero, &hi, next);
    if (min < 0) {
        uint32_t rest = magnitudes(s->net, max < 0 ? &hi : &above_zero, &lo, next);
        if (rest != ST_NET_NOWHERE)
            node = st_net_split(s->net, st_net_text(s->net, "-", 1, rest), node);
    }
    return node;
}
