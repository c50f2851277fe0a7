/* Options of a subcommand as a table: parsing, bounds, environment names, help text and suggestions come from it.
 *
 *     struct st_opt options[] = {
 *         ST_TEXT("model", 'm', &model, "FILE", "model to open (any shard of a GGUF)"),
 *         ST_INT("predict", 'n', &n, 0, 1 << 24, "N", "tokens to generate (default: until the answer ends)"),
 *         ST_FLAG("raw", 0, &raw, "the prompt is plain text"),
 *     };
 *     struct st_usage usage = {"run", "-m FILE -p TEXT [options]", "what it does", options, ST_COUNT(options)};
 *     if (!st_options_parse(&usage, argc, argv, &status))
 *         return status;
 *
 * Targets keep the value they had when an option is not given, so defaults are set before parsing (a value out of bounds
 * there means "not given"). A table has at most 128 options. Every option has one environment name, STRATA_ and the name
 * in capitals with '_' for '-'; the command line wins over it. */
#ifndef ST_CLI_OPTIONS_H
#define ST_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "strata.h"

enum st_opt_kind {
    ST_OPT_FLAG,   /* bool *, no value; in the environment 1/0, true/false, yes/no, on/off */
    ST_OPT_INT,    /* int64_t *, decimal, within [low, high] */
    ST_OPT_NUMBER, /* double *, within [low, high], never NaN */
    ST_OPT_SIZE,   /* uint64_t *, bytes: digits and K, M, G or T (powers of 1024), within [low, high] */
    ST_OPT_TEXT,   /* const char **, from argv or the environment, not copied */
    ST_OPT_CHOICE, /* int *, index into choices */
    ST_OPT_LIST,   /* struct st_list *, may be given many times */
};

/* Values of an option that may be repeated, in the order given. Zero it before parsing, st_list_free afterwards. */
struct st_list {
    const char **items;
    size_t count;
};
void st_list_free(struct st_list *list);

struct st_opt {
    const char *name;
    char short_name; /* 0: none */
    enum st_opt_kind kind;
    void *target;
    double low, high;
    const char *value;          /* how help calls the value */
    const char *const *choices; /* CHOICE: names, NULL at the end */
    const char *help;
};

#define ST_FLAG(name, short_name, target, help) \
    {name, short_name, ST_OPT_FLAG, (bool *){target}, 0, 0, NULL, NULL, help}
#define ST_INT(name, short_name, target, low, high, value, help) \
    {name, short_name, ST_OPT_INT, (int64_t *){target}, low, high, value, NULL, help}
#define ST_NUMBER(name, short_name, target, low, high, value, help) \
    {name, short_name, ST_OPT_NUMBER, (double *){target}, low, high, value, NULL, help}
#define ST_SIZE(name, short_name, target, low, high, value, help) \
    {name, short_name, ST_OPT_SIZE, (uint64_t *){target}, low, high, value, NULL, help}
#define ST_TEXT(name, short_name, target, value, help) \
    {name, short_name, ST_OPT_TEXT, (const char **){target}, 0, 0, value, NULL, help}
#define ST_CHOICE(name, short_name, target, names, value, help) \
    {name, short_name, ST_OPT_CHOICE, (int *){target}, 0, 0, value, names, help}
#define ST_LIST(name, short_name, target, value, help) \
    {name, short_name, ST_OPT_LIST, (struct st_list *){target}, 0, 0, value, NULL, help}

#define ST_COUNT(array) (sizeof(array) / sizeof *(array))

struct st_usage {
    const char *command; /* "run" */
    const char *form;    /* what follows "strata run": "-m FILE [options]" */
    const char *summary; /* sentences, wrapped by the writer */
    const struct st_opt *options;
    size_t count;
    /* Words that are no options: stored in the order given, at least least and at most most. */
    const char **words;
    size_t least, most;
    size_t *word_count;
    bool alone; /* the command is a program's name */
};

/* argv[0] is the command's name. True: go on. False: return *status (0 after --help, 1 after a message on stderr). */
bool st_options_parse(const struct st_usage *usage, int argc, char **argv, int *status);

/* Parses what ST_OPT_SIZE takes. */
bool st_size_parse(const char *text, uint64_t *out);

/* The name among count candidates (stride bytes apart, each beginning with a const char *) that text was probably meant
 * to be, or NULL. */
const char *st_nearest(const char *text, const void *candidates, size_t count, size_t stride);

/* ---- messages and exit codes ---- */

enum st_exit { ST_EXIT_OK = 0, ST_EXIT_USER = 1, ST_EXIT_MODEL = 2, ST_EXIT_DEVICE = 3 };

/* The one place where results become exit codes. */
int st_exit_code(enum strata_result r);

/* "strata: message" as one line on stderr; returns the exit code of err->code. */
int st_report(const struct strata_error *err);

/* The same for a mistake of the caller: formats, returns ST_EXIT_USER. */
int st_user_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
