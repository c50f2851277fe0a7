/* strata synth: a model with random weights. */
#include <stdio.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/options.h"
#include "format/quant.h"
#include "model/synth.h"

static void show_progress(void *user, const char *tensor, size_t done, size_t total)
{
    if (*(const bool *)user)
        fprintf(stderr, "\r%zu/%zu %-60.60s", done + 1, total, tensor);
}

int st_cmd_synth(int argc, char **argv)
{
    const char *type = "Q2_0", *out = NULL;
    int64_t layers = 0, experts = 0, vocabulary = 0, rows = 0, seed = 0, threads = 0;
    bool header_only = false, mixed = false, terminal = isatty(STDERR_FILENO);
    int status;
    const struct st_opt options[] = {
        ST_TEXT("out", 'o', &out, "FILE", "GGUF file to write"),
        ST_TEXT("type", 0, &type, "TYPE",
                "type of the experts (default Q2_0); the other tensors get what released files of that size have"),
        ST_FLAG("mixed", 0, &mixed, "types go round over the matrices instead"),
        ST_INT("layers", 0, &layers, 1, 1024, "N", "layers (default 48)"),
        ST_INT("experts", 0, &experts, 1, 65536, "N", "experts per layer (default 512)"),
        ST_INT("vocabulary", 0, &vocabulary, 512, 1 << 24, "N", "rows of embedding and head (default 248320)"),
        ST_INT("ple-rows", 0, &rows, 32, 4e9, "N", "rows of the n-gram table (default 320001536), a hole in the file"),
        ST_FLAG("header-only", 0, &header_only, "all weights are zero and a hole in the file"),
        ST_INT("seed", 's', &seed, 0, 9e15, "N", "seed of the weights (default 0)"),
        ST_INT("threads", 't', &threads, 1, 1024, "N", "threads (default: one per physical core)"),
    };
    const struct st_usage usage = {
        "synth", "-o FILE [options]",
        "Writes a model of the real shape with random weights, for measurements where the real one is not at hand.", options,
        ST_COUNT(options), NULL, 0, 0, NULL};
    if (!st_options_parse(&usage, argc, argv, &status))
        return status;
    if (!out)
        return st_user_error("synth: -o FILE is missing");
    const struct st_type_info *info = st_type_by_name(type);
    if (!info)
        return st_user_error("type \"%s\" is unknown", type);
    const struct st_synth_options o = {.out = out, .type = info->id, .layers = (uint64_t)layers,
                                       .experts = (uint64_t)experts, .vocabulary = (uint64_t)vocabulary,
                                       .ngram_rows = (uint64_t)rows, .mixed = mixed, .header_only = header_only,
                                       .seed = (uint64_t)seed, .threads = (int)threads, .progress = show_progress, .user = &terminal};
    struct st_synth_report report;
    struct strata_error err;
    enum strata_result r = st_synth(&o, &report, &err);
    if (terminal)
        fprintf(stderr, "\r%80s\r", "");
    if (r)
        return st_report(&err);
    printf("%s: %s, %zu tensors, %llu bytes\n", out, report.family, report.tensors, (unsigned long long)report.bytes);
    return ST_EXIT_OK;
}
