/* strata run: one prompt, one answer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/constrain.h"
#include "cli/talks.h"

struct run_args {
    struct st_engine_args engine;
    struct st_sampling_args sampling;
    struct st_constrain_args constrain;
    const char *prompt, *file, *ids, *system, *session;
    int64_t predict;
    int thinking;
    bool raw, json, ignore_eos, special;
    struct st_list stop;
};

/* The prompt's text: from -p, from -f, or from standard input when neither is given and it is not a terminal. */
static int prompt_text(const struct run_args *a, char **text, size_t *size)
{
    int status = ST_EXIT_OK;
    if (a->prompt) {
        *text = strdup(a->prompt);
        *size = strlen(a->prompt);
        if (!*text)
            status = st_user_error("run: no memory for the prompt");
    } else {
        status = st_read_input(a->file ? a->file : "-", text, size);
    }
    if (status)
        return status;
    /* A text file ends with a line break that nobody means as a part of the question. */
    if (!a->prompt && !a->raw && *size && (*text)[*size - 1] == '\n')
        --*size;
    status = st_check_utf8("prompt", *text, *size);
    if (status)
        free(*text);
    return status;
}

/* *rendered: the prompt in the chat form, NULL where it is not in it. */
static int prompt_ids(const struct run_args *a, const struct st_host *h, int32_t **ids, size_t *count, char **rendered)
{
    if (a->ids)
        return st_read_ids(a->ids, ids, count);
    char *text;
    size_t size;
    int status = prompt_text(a, &text, &size);
    if (status)
        return status;
    struct strata_error err;
    if (a->raw) {
        if (strata_tokenize(h->model, text, size, false, ids, count, &err))
            status = st_report(&err);
    } else {
        json_t *messages = a->system ? json_pack("[{s:s, s:s}, {s:s, s:s%}]", "role", "system", "content", a->system, "role",
                                                 "user", "content", text, size)
                                     : json_pack("[{s:s, s:s%}]", "role", "user", "content", text, size);
        status = st_chat_ids(h, messages, a->thinking, ids, count, rendered);
        json_decref(messages);
    }
    free(text);
    if (!status && *count == 0) {
        strata_free(*ids);
        *ids = NULL;
        status = st_user_error("run: the prompt is empty");
    }
    return status;
}

static json_t *ids_json(const int32_t *ids, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, json_integer(ids[i]));
    return list;
}

static int print_json(const struct strata_request *q, struct st_answer *a)
{
    json_t *stats = json_pack("{s:I, s:I, s:I, s:I, s:f, s:f, s:I, s:I, s:I}", "prompt_tokens", (json_int_t)a->stats.prompt_tokens,
                              "reused_tokens", (json_int_t)a->stats.reused_tokens, "read_tokens",
                              (json_int_t)a->stats.read_tokens, "generated_tokens", (json_int_t)a->stats.generated_tokens,
                              "read_seconds", a->stats.read_seconds, "generate_seconds", a->stats.generate_seconds, "passes",
                              (json_int_t)a->stats.passes, "drafted_tokens", (json_int_t)a->stats.drafted_tokens,
                              "accepted_tokens", (json_int_t)a->stats.accepted_tokens);
    json_t *out = json_pack("{s:s%, s:o, s:O, s:s, s:I, s:o}", "text", a->text ? a->text : "", a->size, "prompt_ids",
                            ids_json(q->ids, q->count), "ids", a->ids, "end", st_end_name(a->end), "seed",
                            (json_int_t)q->sampling.seed, "stats", stats);
    if (out && a->logprobs)
        json_object_set(out, "logprobs", a->logprobs);
    return st_print_json(out);
}

static int answer(const struct run_args *a, const struct st_host *h, struct strata_request *q)
{
    struct st_answer out = {.print = !a->json, .collect = a->json};
    int status = st_answer_generate(h, q, &out);
    if (!status && a->json)
        status = print_json(q, &out);
    else if (!status && (!out.size || out.text[out.size - 1] != '\n'))
        st_print("\n", 1);
    if (!status)
        st_answer_stats(&out);
    st_answer_free(&out);
    return status;
}

static int check(const struct run_args *a)
{
    int sources = !!a->prompt + !!a->file + !!a->ids;
    if (sources > 1)
        return st_user_error("run: give one of -p, -f and --ids, not several");
    if (!sources && isatty(STDIN_FILENO))
        return st_user_error("run: which prompt? give -p TEXT, -f FILE or --ids FILE");
    if (a->sampling.logprobs && !a->json)
        return st_user_error("run: --logprobs needs --json");
    if (a->system && (a->raw || a->ids))
        return st_user_error("run: --system belongs to the chat form and cannot go with %s", a->raw ? "--raw" : "--ids");
    if (a->ignore_eos && (a->constrain.grammar || a->constrain.schema))
        return st_user_error("run: --ignore-eos cannot go with --grammar and --json-schema, which say where the answer ends");
    int status = st_constrain_check(&a->constrain);
    if (!status && a->prompt)
        status = st_check_utf8("prompt", a->prompt, strlen(a->prompt));
    if (!status && a->system)
        status = st_check_utf8("--system", a->system, strlen(a->system));
    return status;
}

static int run(const struct run_args *a)
{
    int status = check(a);
    if (status)
        return status;
    struct st_host h;
    status = st_host_open("run", &a->engine, a->json, &h);
    if (status)
        return status;
    int32_t *ids = NULL;
    char *rendered = NULL;
    struct strata_constraint *constraint = NULL;
    struct strata_request q = {.max_tokens = a->predict > 0 ? (size_t)a->predict : 0,
                               .no_answer = a->predict == 0,
                               .ignore_eos = a->ignore_eos,
                               .show_special = a->special,
                               .stop = a->stop.items,
                               .stop_count = a->stop.count};
    status = st_sampling_resolve(&a->sampling, &h, &q.sampling);
    if (!status)
        status = prompt_ids(a, &h, &ids, &q.count, &rendered);
    q.ids = ids;
    if (!status)
        status = st_constrain(&a->constrain, &h, rendered, &constraint);
    q.constraint = constraint;
    if (!status && a->session)
        status = st_state_load(&h, a->session, false);
    if (!status)
        status = answer(a, &h, &q);
    if (!status && a->session)
        status = st_state_save(&h, a->session);
    free((void *)q.sampling.bias);
    strata_constraint_free(constraint);
    strata_free(rendered);
    strata_free(ids);
    st_host_close(&h);
    return status;
}

int st_cmd_run(int argc, char **argv)
{
    struct run_args a = {.engine = ST_ENGINE_ARGS, .predict = -1};
    st_sampling_args_init(&a.sampling);
    struct st_opt options[] = {
        ST_ENGINE_OPTIONS(a.engine),
        ST_SPEC_OPTIONS(a.engine),
        ST_TEXT("prompt", 'p', &a.prompt, "TEXT", "the prompt"),
        ST_TEXT("file", 'f', &a.file, "FILE", "the prompt is this file, - for standard input"),
        ST_TEXT("ids", 0, &a.ids, "FILE", "the prompt is these token ids (numbers, or a JSON array)"),
        ST_FLAG("raw", 0, &a.raw, "the prompt is plain text to go on with, not a message in the model's chat form"),
        ST_TEXT("system", 0, &a.system, "TEXT", "system message before the prompt"),
        ST_SESSION_OPTION(&a.session),
        ST_THINKING_OPTION(&a.thinking),
        ST_INT("predict", 'n', &a.predict, -1, 1 << 30, "N", "most tokens to generate; 0: only read the prompt, -1 (default): until the answer ends"),
        ST_LIST("stop", 0, &a.stop, "TEXT", "the answer ends before this text; may be repeated"),
        ST_FLAG("ignore-eos", 0, &a.ignore_eos, "tokens that end an answer do not end it"),
        ST_FLAG("special", 0, &a.special, "control tokens are shown as text"),
        ST_FLAG("json", 0, &a.json, "one JSON object with text, ids and numbers instead of the text"),
        ST_CONSTRAIN_OPTIONS(a.constrain),
        ST_SAMPLING_OPTIONS(a.sampling),
    };
    struct st_usage usage = {.command = "run",
                             .form = "-m FILE (-p TEXT | -f FILE | --ids FILE) [options]",
                             .summary = "Answers one prompt. The text goes to standard output, one line with counts and speeds "
                                        "to standard error.\nCtrl-C ends the answer.",
                             .options = options,
                             .count = ST_COUNT(options)};
    int status;
    if (st_options_parse(&usage, argc, argv, &status))
        status = run(&a);
    st_sampling_args_free(&a.sampling);
    st_list_free(&a.stop);
    return status;
}
