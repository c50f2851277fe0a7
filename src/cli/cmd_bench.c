/* strata bench: tokens per second for reading prompts and for generating, with llama-bench's test names and columns.
 *
 * ppN reads N tokens in one go, tgN computes N tokens one after the other, "@ dN" says that N tokens were there before.
 * Tokens are drawn from a counter-based generator, so every run reads the same ones. Each test runs once to warm up and
 * then --repetitions times; mean and standard deviation are over those. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/result.h"
#include "cli/bench_clients.h"
#include "cli/bench_drafts.h"
#include "cli/bench_session.h"
#include "cli/bench_trace.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "engine/engine.h"
#include "engine/profile.h"
#include "engine/sampler.h"

enum { TRACED_WINDOWS = 3, LIST_MAX = 16, REPETITIONS_MAX = 1000 };

enum format { FORMAT_MARKDOWN, FORMAT_CSV, FORMAT_JSON };
static const char *const format_names[] = {"md", "csv", "json", NULL};

struct bench_args {
    struct st_engine_args engine;
    const char *prompts, *generations, *depths, *draft_text, *session, *clients, *trace;
    int64_t repetitions;
    int format;
    bool profile;
};

struct result {
    size_t prompt, generate, depth;
    char name[64], time[32];
    double mean_ns, deviation_ns, mean_rate, deviation_rate;
    double samples_ns[REPETITIONS_MAX];
    size_t count;
};

struct bench {
    const struct bench_args *a;
    struct st_host h;
    struct strata_model_info info;
    struct strata_engine_options options;
    int32_t *ids;
    float *logits;
    json_t *results; /* of FORMAT_JSON */
};

/* "512,1024" */
static int parse_list(const char *option, const char *text, size_t *out, size_t *count)
{
    *count = 0;
    for (const char *p = text;;) {
        char *end;
        unsigned long long v = strtoull(p, &end, 10);
        if (end == p || *p == '-' || v > 1 << 24 || (*end && *end != ','))
            return st_user_error("bench: %s: \"%s\" is not a list of whole numbers such as 512,1024", option, text);
        if (*count == LIST_MAX)
            return st_user_error("bench: %s: more than %d numbers", option, LIST_MAX);
        out[(*count)++] = (size_t)v;
        if (!*end)
            return ST_EXIT_OK;
        p = end + 1;
    }
}

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* Runs a test once; *ns is the time of the measured part. */
static enum strata_result run_once(struct bench *b, const struct result *t, double *ns, struct strata_error *err)
{
    struct strata_session *s = b->h.session;
    strata_session_reset(s);
    enum strata_result r = t->depth ? strata_session_eval(s, b->ids, t->depth, false, NULL, err) : STRATA_OK;
    const int32_t *ids = b->ids + t->depth;
    double start = now_ns();
    if (!r && t->prompt)
        r = strata_session_eval(s, ids, t->prompt, false, b->logits, err);
    for (size_t i = 0; !r && i < t->generate; i++)
        r = strata_session_eval(s, ids + i, 1, false, b->logits, err);
    *ns = now_ns() - start;
    return r;
}

static void mean_and_deviation(const double *x, size_t n, double *mean, double *deviation)
{
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i];
    *mean = sum / (double)n;
    for (size_t i = 0; i < n; i++)
        squares += (x[i] - *mean) * (x[i] - *mean);
    *deviation = n > 1 ? sqrt(squares / (double)(n - 1)) : 0;
}

static enum strata_result run_test(struct bench *b, struct result *t, struct strata_error *err)
{
    double unused, rates[REPETITIONS_MAX];
    char depth[32] = "";
    if (t->depth)
        snprintf(depth, sizeof depth, " @ d%zu", t->depth);
    snprintf(t->name, sizeof t->name, "%s%zu%s", t->prompt ? "pp" : "tg", t->prompt ? t->prompt : t->generate, depth);
    time_t now = time(NULL);
    struct tm utc;
    strftime(t->time, sizeof t->time, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    enum strata_result r = run_once(b, t, &unused, err);
    for (t->count = 0; !r && t->count < (size_t)b->a->repetitions; t->count++) {
        r = run_once(b, t, &t->samples_ns[t->count], err);
        rates[t->count] = (double)(t->prompt + t->generate) * 1e9 / t->samples_ns[t->count];
    }
    if (r)
        return r;
    mean_and_deviation(t->samples_ns, t->count, &t->mean_ns, &t->deviation_ns);
    mean_and_deviation(rates, t->count, &t->mean_rate, &t->deviation_rate);
    return STRATA_OK;
}

/* Runs the test once more with an event after each launch and prints where the time of the first stage went. */
static enum strata_result print_profile(struct bench *b, const struct result *t, struct strata_error *err)
{
    struct st_profile profile = {0};
    struct st_stage *stage = b->h.engine->stages[0];
    double total = 0;
    if (stage->host)
        return st_fail(err, STRATA_E_ARGUMENT, "bench: --profile: the first stage is on the CPU, which has no events");
    /* What was there before the test is not part of it. */
    struct strata_session *s = b->h.session;
    strata_session_reset(s);
    enum strata_result r = t->depth ? strata_session_eval(s, b->ids, t->depth, false, NULL, err) : STRATA_OK;
    stage->profile = &profile;
    if (!r)
        r = t->prompt ? strata_session_eval(s, b->ids + t->depth, t->prompt, false, b->logits, err) : STRATA_OK;
    for (size_t i = 0; !r && i < t->generate; i++)
        r = strata_session_eval(s, b->ids + t->depth + i, 1, false, b->logits, err);
    stage->profile = NULL;
    st_profile_sort(&profile);
    for (size_t i = 0; i < profile.count; i++)
        total += profile.lines[i].microseconds;
    double tokens = (double)(t->prompt + t->generate);
    fprintf(stderr, "\n%s on %s: %.1f us a token in launches\n\n| operation | kernel | launches | us a token | us a launch | share |\n"
                    "|---|---|---:|---:|---:|---:|\n", t->name, stage->name, total / tokens);
    for (size_t i = 0; i < profile.count; i++) {
        const struct st_profile_line *l = &profile.lines[i];
        fprintf(stderr, "| %s | %s | %llu | %.1f | %.1f | %.1f %% |\n", l->op, l->kernel, (unsigned long long)l->launches,
                l->microseconds / tokens, l->microseconds / (double)l->launches, 100 * l->microseconds / total);
    }
    st_profile_free(&profile);
    return r;
}

/* Beside the measurement what was predicted, for people (on stderr). */
static void print_prediction(const struct bench *b, const struct result *t)
{
    double seconds = b->h.engine->plan.seconds;
    if (t->generate && seconds > 0 && b->a->format == FORMAT_MARKDOWN)
        fprintf(stderr, "%s: %.2f tok/s measured, %.2f predicted: %+.0f %%\n", t->name, t->mean_rate, 1 / seconds,
                100 * (1 / seconds / t->mean_rate - 1));
}

static const char *kv_name(const struct bench *b)
{
    return st_kv_names[b->options.kv];
}

/* "cpu avx2": where, and with which instructions. */
static const char *backend(const struct bench *b, char *dst, size_t size)
{
    const char *cpu = b->options.cpu ? b->options.cpu : "";
    size_t used = strlen(st_engine_devices(b->h.engine, dst, size));
    snprintf(dst + used, size - used, "%s%s", *cpu ? " " : "", cpu);
    return dst;
}

static void print_head(const struct bench *b)
{
    if (b->a->format == FORMAT_MARKDOWN)
        printf("| model | size | params | backend | threads | test | t/s |\n"
               "| --- | ---: | ---: | --- | ---: | ---: | ---: |\n");
    else if (b->a->format == FORMAT_CSV)
        printf("build_commit,backends,model_filename,model_type,model_size,model_n_params,n_ubatch,n_threads,type_k,type_v,"
               "n_prompt,n_gen,n_depth,test_time,avg_ns,stddev_ns,avg_ts,stddev_ts\n");
}

static json_t *result_json(const struct bench *b, const struct result *t)
{
    char where[256];
    json_t *ns = json_array(), *rates = json_array();
    for (size_t i = 0; i < t->count; i++) {
        json_array_append_new(ns, json_integer((json_int_t)t->samples_ns[i]));
        json_array_append_new(rates, json_real((double)(t->prompt + t->generate) * 1e9 / t->samples_ns[i]));
    }
    return json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:i, s:i, s:s, s:s, s:I, s:I, s:I, s:s, s:s, s:I, s:I, s:f, s:f, s:o, s:o}",
                     "build_commit", strata_build(), "backends", backend(b, where, sizeof where), "model_filename", b->info.path,
                     "model_type", b->info.name, "model_size", (json_int_t)b->info.bytes, "model_n_params",
                     (json_int_t)b->info.parameters, "n_ubatch", (int)b->options.prefill, "n_threads", b->options.threads,
                     "type_k", kv_name(b), "type_v", kv_name(b), "n_prompt", (json_int_t)t->prompt, "n_gen",
                     (json_int_t)t->generate, "n_depth", (json_int_t)t->depth, "test", t->name, "test_time", t->time, "avg_ns",
                     (json_int_t)t->mean_ns, "stddev_ns", (json_int_t)t->deviation_ns, "avg_ts", t->mean_rate, "stddev_ts",
                     t->deviation_rate, "samples_ns", ns, "samples_ts", rates);
}

/* A CSV field: quoted, quotes doubled. */
static void print_field(const char *text)
{
    putchar('"');
    for (; *text; text++) {
        if (*text == '"')
            putchar('"');
        putchar(*text);
    }
    printf("\",");
}

static int print_result(struct bench *b, const struct result *t)
{
    char name[128], where[256];
    backend(b, where, sizeof where);
    st_printable(name, sizeof name, b->info.name, strlen(b->info.name));
    switch ((enum format)b->a->format) {
    case FORMAT_MARKDOWN:
        printf("| %s | %.2f MiB | %.2f M | %s | %d | %s | %.2f ± %.2f |\n", name, (double)b->info.bytes / 0x1p20,
               (double)b->info.parameters / 1e6, where, b->options.threads, t->name, t->mean_rate, t->deviation_rate);
        break;
    case FORMAT_CSV:
        print_field(strata_build());
        print_field(where);
        print_field(b->info.path);
        print_field(name);
        printf("%llu,%llu,%u,%d,%s,%s,%zu,%zu,%zu,%s,%.0f,%.0f,%.6f,%.6f\n", (unsigned long long)b->info.bytes,
               (unsigned long long)b->info.parameters, b->options.prefill, b->options.threads, kv_name(b), kv_name(b), t->prompt,
               t->generate, t->depth, t->time, t->mean_ns, t->deviation_ns, t->mean_rate, t->deviation_rate);
        break;
    case FORMAT_JSON:
        if (json_array_append_new(b->results, result_json(b, t)))
            return st_user_error("bench: no memory for the results");
        return ST_EXIT_OK;
    }
    return fflush(stdout) == 0 ? ST_EXIT_OK : st_user_error("standard output: write error");
}

static int run_all(struct bench *b, const size_t *prompts, size_t n_prompts, const size_t *generations, size_t n_generations,
                   const size_t *depths, size_t n_depths)
{
    struct result *t = malloc(sizeof *t);
    int status = t ? ST_EXIT_OK : st_user_error("bench: no memory");
    print_head(b);
    for (size_t d = 0; !status && d < n_depths; d++)
        for (size_t i = 0; !status && i < n_prompts + n_generations; i++) {
            *t = (struct result){.depth = depths[d]};
            if (i < n_prompts)
                t->prompt = prompts[i];
            else
                t->generate = generations[i - n_prompts];
            if (!t->prompt && !t->generate)
                continue; /* -p 0 or -n 0 leaves the kind out */
            struct strata_error err;
            status = run_test(b, t, &err) ? st_report(&err) : print_result(b, t);
            if (!status)
                print_prediction(b, t);
            if (!status && b->a->profile)
                status = print_profile(b, t, &err) ? st_report(&err) : ST_EXIT_OK;
        }
    free(t);
    return status;
}

static double share(const struct st_draft_result *t)
{
    return t->drafted ? (double)t->accepted / (double)t->drafted : 0;
}

static double tokens_a_pass(const struct st_draft_result *t)
{
    return t->passes ? (double)(t->passes + t->accepted) / (double)t->passes : 0;
}

static void print_drafts(struct bench *b, size_t n, const struct st_draft_result *t, size_t count)
{
    if (b->a->format == FORMAT_MARKDOWN)
        printf("\n| text | drafts | test | t/s | speed | drafted | accepted | tokens a pass |\n"
               "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n");
    else if (b->a->format == FORMAT_CSV)
        printf("text,drafts,n_gen,ts,speed,drafted,accepted,tokens_a_pass\n");
    for (size_t i = 0; i < count; i++, t++)
        switch ((enum format)b->a->format) {
        case FORMAT_MARKDOWN:
            printf("| %s | %s | tg%zu | %.2f | %.2f | %zu | %zu (%.0f %%) | %.2f |\n", t->text, t->drafts, n, t->rate, t->speed,
                   t->drafted, t->accepted, 100 * share(t), tokens_a_pass(t));
            break;
        case FORMAT_CSV:
            printf("%s,%s,%zu,%.6f,%.6f,%zu,%zu,%.6f\n", t->text, t->drafts, n, t->rate, t->speed, t->drafted, t->accepted,
                   tokens_a_pass(t));
            break;
        case FORMAT_JSON:
            json_array_append_new(b->results,
                                  json_pack("{s:s, s:s, s:s, s:I, s:f, s:f, s:I, s:I, s:f}", "test", "drafts", "text", t->text,
                                            "drafts", t->drafts, "n_gen", (json_int_t)n, "avg_ts", t->rate, "speed", t->speed,
                                            "drafted", (json_int_t)t->drafted, "accepted", (json_int_t)t->accepted,
                                            "tokens_a_pass", tokens_a_pass(t)));
            break;
        }
}

/* The longest of the generations without and with drafts. */
static int run_drafts(struct bench *b, size_t n)
{
    struct st_draft_result results[ST_DRAFT_RESULTS];
    size_t count;
    if (!b->options.drafts || !n)
        return ST_EXIT_OK;
    int status = st_bench_drafts(&b->h, b->a->draft_text, n, (size_t)b->a->repetitions, results, &count);
    if (!status)
        print_drafts(b, n, results, count);
    return status || fflush(stdout) == 0 ? status : st_user_error("standard output: write error");
}

static size_t largest(const size_t *list, size_t n)
{
    size_t most = 0;
    for (size_t i = 0; i < n; i++)
        most = list[i] > most ? list[i] : most;
    return most;
}

static int parse_clients(const struct bench_args *a, size_t clients[LIST_MAX], size_t *count)
{
    int status = parse_list("--clients", a->clients, clients, count);
    for (size_t i = 0; i < *count && !status; i++)
        if (!clients[i] || clients[i] > ST_BENCH_CLIENTS_MAX)
            status = st_user_error("bench: --clients: %zu is not between 1 and %d", clients[i], ST_BENCH_CLIENTS_MAX);
    if (!status && a->format != FORMAT_MARKDOWN)
        status = st_user_error("bench: --clients goes with -o md");
    return status;
}

static int bench(struct bench_args *a)
{
    size_t prompts[LIST_MAX], generations[LIST_MAX], depths[LIST_MAX], n_prompts, n_generations, n_depths;
    int status = parse_list("-p", a->prompts, prompts, &n_prompts);
    if (!status)
        status = parse_list("-n", a->generations, generations, &n_generations);
    if (!status)
        status = parse_list("-d", a->depths, depths, &n_depths);
    if (status)
        return status;
    size_t clients[LIST_MAX], n_clients = 0;
    if (a->clients)
        status = parse_clients(a, clients, &n_clients);
    if (status)
        return status;
    a->engine.sessions = n_clients ? (int64_t)largest(clients, n_clients) : 1;
    size_t longest = largest(prompts, n_prompts), other = largest(generations, n_generations);
    size_t deepest = largest(depths, n_depths), tokens = deepest + (longest > other ? longest : other);
    if (a->session && (a->format != FORMAT_MARKDOWN || !(deepest || longest)))
        return st_user_error("bench: --session goes with -o md and with tokens to read, -d or -p");
    tokens += a->session && !other; /* one behind a checkpoint */
    if (a->trace && tokens < deepest + longest + TRACED_WINDOWS)
        tokens = deepest + longest + TRACED_WINDOWS;
    if (n_clients && !other)
        return st_user_error("bench: --clients needs tokens to generate, -n");
    if (n_clients) {
        size_t clients_need = ST_BENCH_CLIENT_MOST(other) + (deepest > ST_BENCH_CLIENT_PROMPT ? deepest : ST_BENCH_CLIENT_PROMPT);
        tokens = tokens > clients_need ? tokens : clients_need;
    }
    if (!a->engine.context && (a->engine.mtp || a->engine.spec > 0) && other && tokens < other + ST_DRAFT_PROMPT_MOST)
        a->engine.context = (int64_t)(other + ST_DRAFT_PROMPT_MOST);
    else if (!a->engine.context)
        a->engine.context = (int64_t)(tokens ? tokens : 1);
    if ((size_t)a->engine.context < tokens)
        return st_user_error("bench: the tests need a context of %zu tokens", tokens);
    struct bench b = {.a = a};
    a->engine.predict = other > 0;
    status = st_host_open("bench", &a->engine, a->format == FORMAT_JSON, &b.h);
    if (status)
        return status;
    strata_model_info(b.h.model, &b.info);
    strata_engine_options(b.h.engine, &b.options);
    b.ids = calloc(tokens + 1, sizeof *b.ids);
    b.logits = malloc(b.h.engine->dims.vocabulary * sizeof *b.logits);
    b.results = json_array();
    if (!b.ids || !b.logits || !b.results)
        status = st_user_error("bench: no memory");
    for (size_t i = 0; !status && i < tokens; i++)
        b.ids[i] = (int32_t)(st_sampler_random(0, i) % b.h.engine->dims.vocabulary);
    /* What is measured token by token takes no part in drafts. */
    struct st_spec *spec = b.h.session->spec;
    b.h.session->spec = NULL;
    if (!status)
        status = run_all(&b, prompts, n_prompts, generations, n_generations, depths, n_depths);
    b.h.session->spec = spec;
    if (!status)
        status = run_drafts(&b, other);
    if (!status && n_clients)
        status = st_bench_clients(&b.h, b.ids, deepest, other, clients, n_clients, (size_t)a->repetitions);
    if (!status && a->session)
        status = st_bench_session(&b.h, b.ids, deepest ? deepest : longest, a->session);
    if (!status && a->trace)
        status = st_bench_trace(&b.h, b.ids, deepest, longest, other < TRACED_WINDOWS ? other : TRACED_WINDOWS, b.logits, a->trace);
    for (int k = 0; !status && k < b.h.engine->n_stages; k++)
        if (b.h.engine->plan.stage[k].cached) {
            char line[400];
            st_device_experts_report(b.h.engine->stages[k], line, sizeof line);
            fprintf(stderr, "%s\n", line);
        }
    if (!status && a->format == FORMAT_JSON)
        status = st_print_json(json_incref(b.results));
    json_decref(b.results);
    free(b.ids);
    free(b.logits);
    st_host_close(&b.h);
    return status;
}

int st_cmd_bench(int argc, char **argv)
{
    struct bench_args a = {.engine = ST_ENGINE_ARGS, .prompts = "512", .generations = "128", .depths = "0", .repetitions = 5,
                           .draft_text = "What does a video player do? Name three of them."};
    struct st_opt options[] = {
        ST_ENGINE_OPTIONS(a.engine),
        ST_SPEC_OPTIONS(a.engine),
        ST_TEXT("n-prompt", 'p', &a.prompts, "N,...", "prompts of N tokens, 0: none (default: 512)"),
        ST_TEXT("n-gen", 'n', &a.generations, "N,...", "generations of N tokens, 0: none (default: 128)"),
        ST_TEXT("n-depth", 'd', &a.depths, "N,...", "tokens that are there before a test (default: 0)"),
        ST_INT("repetitions", 'r', &a.repetitions, 1, REPETITIONS_MAX, "N", "measured runs of each test (default: 5)"),
        ST_TEXT("draft-text", 0, &a.draft_text, "TEXT", "with drafts: the question that is answered without and with them"),
        ST_FLAG("profile", 0, &a.profile, "where the time of the first stage goes, by operation and kernel (on stderr)"),
        ST_TEXT("trace", 0, &a.trace, "FILE",
                "also what ran when, of the longest -p and of three tokens after it, for trace viewers (Chrome's format)"),
        ST_TEXT("session", 0, &a.session, "FILE",
                "also what it costs to keep a session of -d (or -p) tokens: checkpoint, memory, FILE"),
        ST_TEXT("clients", 0, &a.clients, "N,...", "also -n tokens for each of N conversations at once, behind -d tokens"),
        ST_CHOICE("output", 'o', &a.format, format_names, "FORMAT", "md, csv or json (default: md)"),
    };
    struct st_usage usage = {.command = "bench",
                             .form = "-m FILE [-p N,...] [-n N,...] [-d N,...] [options]",
                             .summary = "Measures tokens per second: ppN reads N tokens, tgN computes N tokens one after the "
                                        "other, \"@ dN\" with N tokens before. Mean and standard deviation over the repetitions. With --mtp or "
                                        "--spec also an answer without and with drafts, greedy and sampled.",
                             .options = options,
                             .count = ST_COUNT(options)};
    int status;
    return st_options_parse(&usage, argc, argv, &status) ? bench(&a) : status;
}
