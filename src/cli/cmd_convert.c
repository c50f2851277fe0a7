/* strata convert: a Hugging Face model folder to GGUF files. */
#include <stdio.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/options.h"
#include "model/convert.h"

static void show_progress(void *user, const char *tensor, size_t done, size_t total)
{
    if (*(const bool *)user)
        fprintf(stderr, "\r%zu/%zu %-60.60s", done + 1, total, tensor);
}

int st_cmd_convert(int argc, char **argv)
{
    static const char *const types[] = {"source", "f32", "f16", "bf16", NULL}; /* order of enum st_convert_type */
    struct st_convert_options o = {.progress = show_progress};
    const char *words[1];
    int type = ST_CONVERT_SOURCE, status;
    bool terminal = isatty(STDERR_FILENO);
    const struct st_opt options[] = {
        ST_TEXT("out", 'o', &o.out, "FILE", "GGUF file to write"),
        ST_TEXT("mtp-out", 0, &o.mtp_out, "FILE", "GGUF file for the draft layer; without it that layer is left out"),
        ST_CHOICE("type", 0, &type, types, "TYPE",
                  "type of matrices: source (default), f32, f16 or bf16; vectors, routers and convolutions are f32"),
        ST_TEXT("name", 0, &o.name, "TEXT", "name of the model in the file (default: the folder's name)"),
        ST_FLAG("no-tokenizer", 0, &o.no_tokenizer, "accept a folder without tokenizer.json: the file takes token ids only"),
    };
    const struct st_usage usage = {"convert", "DIR -o FILE [options]",
                                   "Converts a Hugging Face model folder (config.json, safetensors, tokenizer) to GGUF.",
                                   options, ST_COUNT(options), words, 1, 1, NULL};
    if (!st_options_parse(&usage, argc, argv, &status))
        return status;
    if (!o.out)
        return st_user_error("convert: -o FILE is missing");
    o.dir = words[0];
    o.type = (enum st_convert_type)type;
    o.user = &terminal;
    struct st_convert_report report;
    struct strata_error err;
    enum strata_result r = st_convert(&o, &report, &err);
    if (terminal)
        fprintf(stderr, "\r%80s\r", "");
    if (r)
        return st_report(&err);
    printf("%s: %s, %zu tensors\n", o.out, report.family, report.tensors);
    if (o.mtp_out)
        printf("%s: draft layer, %zu tensors\n", o.mtp_out, report.mtp_tensors);
    if (report.left_out_mtp)
        printf("left out: %zu tensors of the draft layer (--mtp-out writes them)\n", report.left_out_mtp);
    if (report.left_out_vision)
        printf("left out: %zu tensors of the vision tower\n", report.left_out_vision);
    return ST_EXIT_OK;
}
