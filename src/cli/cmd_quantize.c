/* strata quantize: a GGUF file with other tensor types. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/team.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "format/quant.h"
#include "model/quantize.h"

static void show_tensor(void *user, const char *tensor, int from, int to, double rmse, double rms)
{
    (void)user;
    if (from == to)
        printf("%-44s %s\n", tensor, st_type_info(to)->name);
    else
        printf("%-44s %s -> %s, RMSE %.3e (%.2f %% of RMS)\n", tensor, st_type_info(from)->name, st_type_info(to)->name,
               rmse, rms > 0 ? 100 * rmse / rms : 0);
}

/* A type that can be written, by name. */
static int parse_type(const char *name, int *type)
{
    const struct st_type_info *info = st_type_by_name(name);
    if (info && info->encode) {
        *type = info->id;
        return ST_EXIT_OK;
    }
    fprintf(stderr, "strata: type \"%s\" cannot be written; known are", name);
    for (int i = 0; i < ST_TYPE_COUNT; i++)
        if (st_type_info(i) && st_type_info(i)->encode)
            fprintf(stderr, " %s", st_type_info(i)->name);
    fprintf(stderr, "\n");
    return ST_EXIT_USER;
}

/* Cuts REGEX=TYPE at its last '='; the pattern is memory that the caller frees. */
static int parse_rule(const char *text, struct st_quantize_rule *rule)
{
    const char *equals = strrchr(text, '=');
    if (!equals || equals == text)
        return st_user_error("--tensor-type \"%s\" is not REGEX=TYPE", text);
    int status = parse_type(equals + 1, &rule->type);
    if (status)
        return status;
    rule->pattern = strndup(text, (size_t)(equals - text));
    return rule->pattern ? ST_EXIT_OK : st_user_error("no memory");
}

int st_cmd_quantize(int argc, char **argv)
{
    const char *words[3];
    struct st_list list = {0};
    int64_t threads = 0;
    int status;
    const struct st_opt options[] = {
        ST_LIST("tensor-type", 0, &list, "REGEX=TYPE",
                "type of the tensors whose name matches; the first that matches counts; may be given many times"),
        ST_INT("threads", 't', &threads, 1, 1024, "N", "threads (default: one per physical core)"),
    };
    const struct st_usage usage = {
        "quantize", "IN OUT TYPE [options]",
        "Writes a GGUF file with its matrices in another type. Vectors, routers and convolution kernels keep theirs. Rows "
        "that cannot hold the blocks of a type get the next larger one that fits.",
        options, ST_COUNT(options), words, 3, 3, NULL};
    if (!st_options_parse(&usage, argc, argv, &status))
        return status;
    struct st_quantize_options o = {
        .in = words[0], .out = words[1], .threads = threads ? (int)threads : st_cpu_cores(), .progress = show_tensor};
    struct st_quantize_rule *rules = calloc(list.count + 1, sizeof *rules);
    status = rules ? parse_type(words[2], &o.type) : st_user_error("no memory");
    for (size_t i = 0; !status && i < list.count; i++)
        status = parse_rule(list.items[i], &rules[i]);
    o.rules = rules;
    o.n_rules = list.count;
    struct strata_error err;
    if (!status && st_quantize(&o, &err))
        status = st_report(&err);
    for (size_t i = 0; rules && i < list.count; i++)
        free((char *)rules[i].pattern);
    free(rules);
    st_list_free(&list);
    return status;
}
