/* strata tokenize: text to token ids, and back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/result.h"
#include "cli/commands.h"
#include "cli/common.h"

struct tokenize_args {
    const char *model, *prompt, *file, *ids;
    bool chat, special, json;
};

static int encode(const struct tokenize_args *a, const struct st_host *h, int32_t **ids, size_t *count)
{
    char *text = NULL;
    size_t size = 0;
    int status = ST_EXIT_OK;
    if (!a->prompt)
        status = st_read_input(a->file ? a->file : "-", &text, &size);
    if (status)
        return status;
    const char *p = a->prompt ? a->prompt : text;
    if (a->prompt)
        size = strlen(p);
    status = st_check_utf8("text", p, size);
    struct strata_error err;
    if (!status && a->chat) {
        json_t *messages = json_pack("[{s:s, s:s%}]", "role", "user", "content", p, size);
        status = st_chat_ids(h, messages, 0, ids, count, NULL);
        json_decref(messages);
    } else if (!status && strata_tokenize(h->model, p, size, a->special, ids, count, &err)) {
        status = st_report(&err);
    }
    free(text);
    return status;
}

/* "id <tab> text" for each token, control bytes and parts of characters made visible. */
static int print_tokens(const struct st_host *h, const int32_t *ids, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char *piece;
        size_t size;
        struct strata_error err;
        if (strata_detokenize(h->model, &ids[i], 1, true, &piece, &size, &err))
            return st_report(&err);
        char *shown = malloc(4 * size + 1);
        if (shown)
            printf("%d\t%s\n", ids[i], st_printable(shown, 4 * size + 1, piece, size));
        free(shown);
        strata_free(piece);
        if (!shown)
            return st_user_error("tokenize: no memory");
    }
    return st_print("", 0) ? ST_EXIT_OK : st_user_error("standard output: write error");
}

static int print_ids(const int32_t *ids, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, json_integer(ids[i]));
    return st_print_json(list);
}

static int decode(const struct tokenize_args *a, const struct st_host *h)
{
    int32_t *ids = NULL;
    size_t count = 0, size = 0;
    int status = st_read_ids(a->ids, &ids, &count);
    struct strata_error err;
    char *text = NULL;
    if (!status && strata_detokenize(h->model, ids, count, a->special, &text, &size, &err))
        status = st_report(&err);
    if (!status && a->json)
        status = st_print_json(json_stringn(text, size));
    else if (!status && !st_print(text, size))
        status = st_user_error("standard output: write error");
    strata_free(text);
    free(ids);
    return status;
}

static int tokenize(const struct tokenize_args *a)
{
    int sources = !!a->prompt + !!a->file + !!a->ids;
    if (sources > 1)
        return st_user_error("tokenize: give one of -p, -f and --ids, not several");
    if (!sources && isatty(STDIN_FILENO))
        return st_user_error("tokenize: which text? give -p TEXT, -f FILE or --ids FILE");
    if (a->ids && a->chat)
        return st_user_error("tokenize: --chat is for text, not for --ids");
    struct st_host h;
    int status = st_host_open_model("tokenize", a->model, &h);
    if (status)
        return status;
    int32_t *ids = NULL;
    size_t count = 0;
    if (a->ids) {
        status = decode(a, &h);
    } else {
        status = encode(a, &h, &ids, &count);
        if (!status)
            status = a->json ? print_ids(ids, count) : print_tokens(&h, ids, count);
    }
    strata_free(ids);
    st_host_close(&h);
    return status;
}

int st_cmd_tokenize(int argc, char **argv)
{
    struct tokenize_args a = {0};
    struct st_opt options[] = {
        ST_MODEL_OPTION(a),
        ST_TEXT("prompt", 'p', &a.prompt, "TEXT", "the text"),
        ST_TEXT("file", 'f', &a.file, "FILE", "the text is this file, - for standard input"),
        ST_TEXT("ids", 0, &a.ids, "FILE", "the other way: these token ids become text"),
        ST_FLAG("chat", 0, &a.chat, "the text as one message in the model's chat form"),
        ST_FLAG("special", 0, &a.special, "texts of special tokens become those tokens; with --ids they are shown"),
        ST_FLAG("json", 0, &a.json, "a JSON array of ids (what --ids takes), or a JSON string"),
    };
    struct st_usage usage = {.command = "tokenize",
                             .form = "-m FILE (-p TEXT | -f FILE | --ids FILE) [options]",
                             .summary = "Shows the tokens of a text, one on a line: id, tab, text.",
                             .options = options,
                             .count = ST_COUNT(options)};
    int status;
    return st_options_parse(&usage, argc, argv, &status) ? tokenize(&a) : status;
}
