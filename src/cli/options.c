/* The option parser, help texts, suggestions, and the mapping from results to exit codes. */
#include "cli/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/result.h"

enum { NAME_LIMIT = 64, OPTION_LIMIT = 128, HELP_COLUMN = 34, HELP_WIDTH = 100 };

int st_exit_code(enum strata_result r)
{
    switch (r) {
    case STRATA_OK: return ST_EXIT_OK;
    case STRATA_E_FORMAT:
    case STRATA_E_UNSUPPORTED:
    case STRATA_E_MODEL: return ST_EXIT_MODEL;
    case STRATA_E_DEVICE:
    case STRATA_E_MEMORY:
    case STRATA_E_INTERNAL: return ST_EXIT_DEVICE;
    case STRATA_E_ARGUMENT:
    case STRATA_E_IO:
    case STRATA_E_CANCELLED:
    case STRATA_E_LIMIT: return ST_EXIT_USER;
    }
    return ST_EXIT_DEVICE;
}

static void print_message(const char *text)
{
    char line[2048];
    fprintf(stderr, "strata: %s\n", st_printable(line, sizeof line, text, strlen(text)));
}

int st_report(const struct strata_error *err)
{
    print_message(err->text);
    return st_exit_code(err->code);
}

int st_user_error(const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    print_message(text);
    return ST_EXIT_USER;
}

void st_list_free(struct st_list *list)
{
    free(list->items);
    *list = (struct st_list){0};
}

/* Edits (insert, delete, replace, swap of neighbours) that turn a into b; both shorter than NAME_LIMIT. */
static size_t edits(const char *a, const char *b)
{
    size_t rows[3][NAME_LIMIT + 1];
    size_t n = strlen(a), m = strlen(b);
    for (size_t j = 0; j <= m; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t *now = rows[i % 3], *last = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < best)
                best = last[j] + 1;
            if (now[j - 1] + 1 < best)
                best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            now[j] = best;
        }
    }
    return rows[n % 3][m];
}

const char *st_nearest(const char *text, const void *candidates, size_t count, size_t stride)
{
    const char *best = NULL;
    size_t length = strlen(text), least = 3; /* three edits are another word */
    if (length == 0 || length >= NAME_LIMIT)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        const char *name;
        memcpy(&name, (const char *)candidates + i * stride, sizeof name);
        if (!name || strlen(name) >= NAME_LIMIT)
            continue;
        size_t d = edits(text, name);
        if (strlen(name) >= 4 && length >= 3 && strncmp(text, name, length) == 0)
            d = 1; /* a beginning of the name */
        if (d < least && d < length) {
            least = d;
            best = name;
        }
    }
    return best;
}

bool st_size_parse(const char *text, uint64_t *out)
{
    if (!isdigit((unsigned char)*text))
        return false;
    char *end;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    if (errno)
        return false;
    static const char units[] = "KMGT";
    unsigned shift = 0;
    if (*end) {
        const char *unit = strchr(units, toupper((unsigned char)*end));
        if (!unit || !*unit)
            return false;
        shift = 10 * (unsigned)(unit - units + 1);
        end++;
        if (*end == 'i')
            end++;
        if (*end == 'B')
            end++;
    }
    return *end == 0 && st_mul_u64(n, (uint64_t)1 << shift, out);
}

/* The environment name of an option. */
static void env_name(char *dst, const char *name)
{
    size_t n = (size_t)snprintf(dst, NAME_LIMIT, "STRATA_%s", name);
    for (size_t i = 0; i < n && i < NAME_LIMIT; i++)
        dst[i] = dst[i] == '-' ? '_' : (char)toupper((unsigned char)dst[i]);
}

static bool bad_value(const char *where, const char *value, const char *wanted)
{
    st_user_error("%s: \"%s\" is not %s", where, value, wanted);
    return false;
}

static bool out_of_bounds(const char *where, const char *value, const struct st_opt *o)
{
    st_user_error("%s: %s is not between %.10g and %.10g", where, value, o->low, o->high);
    return false;
}

static bool store_flag(const struct st_opt *o, const char *where, const char *value)
{
    static const char *const on[] = {"1", "true", "yes", "on"}, *const off[] = {"0", "false", "no", "off", ""};
    bool *target = o->target;
    if (!value) {
        *target = true;
        return true;
    }
    for (size_t i = 0; i < ST_COUNT(on); i++)
        if (strcmp(value, on[i]) == 0) {
            *target = true;
            return true;
        }
    for (size_t i = 0; i < ST_COUNT(off); i++)
        if (strcmp(value, off[i]) == 0) {
            *target = false;
            return true;
        }
    return bad_value(where, value, "1, 0, true, false, yes, no, on or off");
}

static bool store_choice(const struct st_opt *o, const char *where, const char *value)
{
    size_t n = 0;
    for (; o->choices[n]; n++)
        if (strcmp(o->choices[n], value) == 0) {
            *(int *)o->target = (int)n;
            return true;
        }
    char wanted[256] = "one of";
    for (size_t i = 0; i < n; i++) {
        size_t used = strlen(wanted);
        snprintf(wanted + used, sizeof wanted - used, "%s %s", i ? "," : "", o->choices[i]);
    }
    return bad_value(where, value, wanted);
}

/* where: "--temp" or "STRATA_TEMP", for messages. value: NULL only for a flag on the command line. */
static bool store(const struct st_opt *o, const char *where, const char *value)
{
    char *end;
    errno = 0;
    switch (o->kind) {
    case ST_OPT_FLAG: return store_flag(o, where, value);
    case ST_OPT_CHOICE: return store_choice(o, where, value);
    case ST_OPT_TEXT: *(const char **)o->target = value; return true;
    case ST_OPT_INT: {
        long long v = strtoll(value, &end, 10);
        if (end == value || *end || errno)
            return bad_value(where, value, "a whole number");
        if ((double)v < o->low || (double)v > o->high)
            return out_of_bounds(where, value, o);
        *(int64_t *)o->target = v;
        return true;
    }
    case ST_OPT_NUMBER: {
        double v = strtod(value, &end);
        if (end == value || *end || isnan(v))
            return bad_value(where, value, "a number");
        if (v < o->low || v > o->high)
            return out_of_bounds(where, value, o);
        *(double *)o->target = v;
        return true;
    }
    case ST_OPT_SIZE: {
        uint64_t v;
        if (!st_size_parse(value, &v))
            return bad_value(where, value, "a size such as 512M or 24G");
        if ((double)v < o->low || (double)v > o->high)
            return out_of_bounds(where, value, o);
        *(uint64_t *)o->target = v;
        return true;
    }
    case ST_OPT_LIST: {
        struct st_list *list = o->target;
        const char **items = realloc(list->items, (list->count + 1) * sizeof *items);
        if (!items) {
            st_user_error("%s: no memory", where);
            return false;
        }
        list->items = items;
        list->items[list->count++] = value;
        return true;
    }
    }
    return false;
}

static const struct st_opt *find_long(const struct st_usage *u, const char *name, size_t length)
{
    for (size_t i = 0; i < u->count; i++)
        if (strlen(u->options[i].name) == length && strncmp(u->options[i].name, name, length) == 0)
            return &u->options[i];
    return NULL;
}

static const struct st_opt *find_short(const struct st_usage *u, char c)
{
    for (size_t i = 0; i < u->count; i++)
        if (u->options[i].short_name == c)
            return &u->options[i];
    return NULL;
}

/* Prints words from column on, broken before HELP_WIDTH and where the text has a line break; further lines begin at
 * indent. */
static void print_wrapped(const char *text, int column, int indent)
{
    bool line_break = false;
    for (const char *p = text; *p;) {
        int length = (int)strcspn(p, " \n");
        if (line_break || (column > indent && column + 1 + length > HELP_WIDTH)) {
            printf("\n%*s", indent, "");
            column = indent;
        }
        column += printf("%s%.*s", column > 0 ? " " : "", length, p);
        p += length;
        line_break = *p == '\n';
        p += strspn(p, " \n");
    }
    printf("\n");
}

static const char *program(const struct st_usage *u)
{
    return u->alone ? "" : "strata ";
}

static void print_help(const struct st_usage *u)
{
    printf("usage: %s%s %s\n\n", program(u), u->command, u->form);
    print_wrapped(u->summary, 0, 0);
    printf("\noptions:\n");
    for (size_t i = 0; i < u->count; i++) {
        const struct st_opt *o = &u->options[i];
        char head[128], env[NAME_LIMIT];
        char brief[8] = "    ";
        if (o->short_name)
            snprintf(brief, sizeof brief, "-%c, ", o->short_name);
        snprintf(head, sizeof head, "  %s--%s%s%s", brief, o->name, o->value ? " " : "", o->value ? o->value : "");
        env_name(env, o->name);
        printf("%-*s", HELP_COLUMN - 2, head);
        if (strlen(head) > HELP_COLUMN - 4)
            printf("\n%*s", HELP_COLUMN - 2, "");
        char text[512];
        snprintf(text, sizeof text, "%s [%s]", o->help, env);
        print_wrapped(text, HELP_COLUMN - 2, HELP_COLUMN - 2);
    }
    printf("  -h, --help                     this text\n\nA name in [brackets] is the environment variable with the same"
           " effect; the command line wins.\n");
}

static const struct st_opt *unknown_option(const struct st_usage *u, const char *name, size_t length)
{
    char text[NAME_LIMIT];
    snprintf(text, sizeof text, "%.*s", (int)(length < NAME_LIMIT ? length : NAME_LIMIT - 1), name);
    const char *near = st_nearest(text, u->options, u->count, sizeof *u->options);
    if (near)
        st_user_error("%s: unknown option --%s; did you mean --%s?", u->command, text, near);
    else
        st_user_error("%s: unknown option --%s; \"strata %s --help\" lists them", u->command, text, u->command);
    return NULL;
}

/* The option that argv[*i] names, with its value (NULL for a flag); *i moves past both. NULL after a message. */
static const struct st_opt *next_option(const struct st_usage *u, int argc, char **argv, int *i, char *where,
                                        const char **value)
{
    const char *arg = argv[*i];
    const struct st_opt *o;
    *value = NULL;
    if (arg[1] == '-') {
        size_t length = strcspn(arg + 2, "=");
        o = find_long(u, arg + 2, length);
        if (!o)
            return unknown_option(u, arg + 2, length);
        if (arg[2 + length])
            *value = arg + 3 + length;
        snprintf(where, NAME_LIMIT, "--%s", o->name);
    } else {
        o = find_short(u, arg[1]);
        snprintf(where, NAME_LIMIT, "-%c", arg[1]);
        if (!o) {
            st_user_error("%s: unknown option %s; \"strata %s --help\" lists them", u->command, where, u->command);
            return NULL;
        }
        if (arg[2])
            *value = arg + 2;
    }
    if (o->kind == ST_OPT_FLAG && *value) {
        st_user_error("%s: %s takes no value", u->command, where);
        return NULL;
    }
    if (o->kind != ST_OPT_FLAG && !*value) {
        if (*i + 1 >= argc) {
            st_user_error("%s: %s needs a value (%s)", u->command, where, o->value);
            return NULL;
        }
        *value = argv[++*i];
    }
    return o;
}

static bool store_environment(const struct st_usage *u, const bool *given)
{
    for (size_t i = 0; i < u->count; i++) {
        char env[NAME_LIMIT];
        env_name(env, u->options[i].name);
        const char *value = getenv(env);
        if (value && !given[i] && !store(&u->options[i], env, value))
            return false;
    }
    return true;
}

bool st_options_parse(const struct st_usage *u, int argc, char **argv, int *status)
{
    *status = ST_EXIT_USER;
    bool given[OPTION_LIMIT] = {false};
    bool only_words = false;
    size_t words = 0;
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        if (only_words || arg[0] != '-' || !arg[1]) {
            if (words >= u->most) {
                st_user_error("%s: \"%s\" is one word too many; usage: %s%s %s", u->command, arg, program(u), u->command, u->form);
                return false;
            }
            u->words[words++] = arg;
        } else if (strcmp(arg, "--") == 0) {
            only_words = true;
        } else if (strcmp(arg, "-h") == 0 || strcmp(arg, "--help") == 0) {
            print_help(u);
            *status = ST_EXIT_OK;
            return false;
        } else {
            char where[NAME_LIMIT];
            const char *value;
            const struct st_opt *o = next_option(u, argc, argv, &i, where, &value);
            if (!o || !store(o, where, value))
                return false;
            given[o - u->options] = true;
        }
    }
    if (!store_environment(u, given))
        return false;
    if (words < u->least) {
        st_user_error("%s: too few words; usage: %s%s %s", u->command, program(u), u->command, u->form);
        return false;
    }
    if (u->word_count)
        *u->word_count = words;
    return true;
}
