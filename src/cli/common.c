/* What commands share: see common.h. */
#define _GNU_SOURCE
#include "cli/common.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/file.h"
#include "base/result.h"
#include "base/utf8.h"
#include "engine/engine.h"

enum { DRAFTS_WITH_LAYER = 3 };

const char *const st_kv_names[] = {
    [STRATA_KV_F16] = "f16", [STRATA_KV_F32] = "f32", [STRATA_KV_INT8] = "int8", [STRATA_KV_Q4] = "q4", NULL};

const char *const st_rope_names[] = {[STRATA_ROPE_NONE] = "none", [STRATA_ROPE_YARN] = "yarn", NULL};

int st_need_model(const char *command, const char *model)
{
    return model ? ST_EXIT_OK : st_user_error("%s: which model? give -m FILE or STRATA_MODEL", command);
}

int st_host_open_model(const char *command, const char *path, struct st_host *out)
{
    struct strata_error err;
    *out = (struct st_host){0};
    int status = st_need_model(command, path);
    if (!status && strata_model_open(path, &out->model, &err))
        status = st_report(&err);
    return status;
}

enum strata_result st_engine_options(const struct st_engine_args *a, char cache[ST_CACHE_PATH], struct strata_engine_options *out,
                                     struct strata_error *err)
{
    uint32_t prefill = 0;
    if (a->prefill && strcmp(a->prefill, "auto") != 0) {
        char *end;
        errno = 0;
        long v = strtol(a->prefill, &end, 10);
        if (end == a->prefill || *end || errno || v < 1 || v > ST_PREFILL_MAX)
            return st_fail(err, STRATA_E_ARGUMENT, "--prefill: \"%s\" is neither auto nor a number between 1 and %d", a->prefill,
                           ST_PREFILL_MAX);
        prefill = (uint32_t)v;
    }
    *out = (struct strata_engine_options){
        .devices = a->device ? a->device : "auto",
        .layer_split = a->layer_split,
        .vram_limit = a->vram_limit,
        .vram_reserve = a->vram_reserve,
        .ple_path = a->ple,
        .expert_cache = a->expert_cache,
        .expert_profile = a->expert_profile,
        .ram_limit = a->ram_limit,
        .session_ram = a->session_ram,
        .session_dir = a->session_dir,
        .session_disk = a->session_disk,
        .check = st_check_names[a->check],
        .simulate = st_executor_names[a->simulate],
        .program_cache = st_cache_directory(a->cache, cache),
        .threads = (int)a->threads,
        .predict = a->predict,
        .context = (uint32_t)a->context,
        .sessions = (uint32_t)a->sessions,
        .prefill = prefill,
        .kv = (enum strata_kv)a->kv,
        .rope_scaling = (enum strata_rope_scaling)a->rope_scaling,
        .rope_scale = a->rope_scale,
        .cpu = a->cpu,
        .fp32 = a->fp32,
        .context_shift = a->context_shift,
        .mtp_path = a->mtp,
        .drafts = (uint32_t)(a->spec >= 0 ? a->spec : a->mtp ? DRAFTS_WITH_LAYER : 0),
        .draft_min_p = a->spec_min_p > 0 ? (float)a->spec_min_p : FLT_MIN, /* 0 is the engine's default */
    };
    return STRATA_OK;
}

void st_say_placement(const struct strata_engine *engine)
{
    bool more = engine->plan.notes[0] != 0;
    for (int k = 0; k < engine->plan.n_stages; k++)
        more = more || engine->plan.stage[k].found >= 0;
    if (more)
        fputs(strata_engine_placement(engine), stderr);
}

int st_host_open(const char *command, const struct st_engine_args *a, bool quiet, struct st_host *out)
{
    struct strata_engine_options o;
    char cache[ST_CACHE_PATH];
    struct strata_error err;
    int status = st_host_open_model(command, a->model, out);
    if (!status && st_engine_options(a, cache, &o, &err))
        status = st_report(&err);
    if (!status && strata_engine_create(out->model, &o, &out->engine, &err))
        status = st_report(&err);
    if (!status && !quiet)
        st_say_placement(out->engine);
    if (!status && strata_session_create(out->engine, &out->session, &err))
        status = st_report(&err);
    if (status)
        st_host_close(out);
    return status;
}

void st_host_close(struct st_host *h)
{
    strata_session_free(h->session);
    strata_engine_free(h->engine);
    strata_model_free(h->model);
    *h = (struct st_host){0};
}

/* ---- sampling ---- */

void st_sampling_args_init(struct st_sampling_args *a)
{
    *a = (struct st_sampling_args){.temperature = -1, .top_p = -1, .min_p = -1, .repeat_penalty = -1, .top_k = -1,
                                   .window = 64, .seed = -1};
}

void st_sampling_args_free(struct st_sampling_args *a)
{
    st_list_free(&a->bias);
}

/* "ID=X" */
static bool parse_bias(const char *text, struct strata_logit_bias *out)
{
    char *end;
    errno = 0;
    long long id = strtoll(text, &end, 10);
    if (end == text || *end != '=' || errno || id < 0 || id > INT32_MAX)
        return false;
    const char *value = end + 1;
    double bias = strtod(value, &end);
    *out = (struct strata_logit_bias){(int32_t)id, (float)bias};
    return end != value && *end == 0 && !isnan(bias) && bias != INFINITY;
}

int st_sampling_resolve(const struct st_sampling_args *a, const struct st_host *h, struct strata_sampling *out)
{
    struct strata_error err;
    if (st_model_sampling(h->model, out, &err))
        return st_report(&err);
    out->temperature = a->temperature >= 0 ? (float)a->temperature : out->temperature;
    out->top_k = a->top_k >= 0 ? (int)a->top_k : out->top_k;
    out->top_p = a->top_p >= 0 ? (float)a->top_p : out->top_p;
    out->min_p = a->min_p >= 0 ? (float)a->min_p : out->min_p;
    out->repetition_penalty = a->repeat_penalty >= 0 ? (float)a->repeat_penalty : out->repetition_penalty;
    out->frequency_penalty = (float)a->frequency_penalty;
    out->presence_penalty = (float)a->presence_penalty;
    out->penalty_window = (int)a->window;
    out->logprobs = (int)a->logprobs;
    out->seed = (uint64_t)a->seed;
    if (a->seed < 0) {
        if (getrandom(&out->seed, sizeof out->seed, 0) != (ssize_t)sizeof out->seed)
            return st_user_error("no random seed from the system: %s", strerror(errno));
        out->seed &= ((uint64_t)1 << 53) - 1; /* what --seed and JSON can hold */
    }
    if (!a->bias.count)
        return ST_EXIT_OK;
    struct strata_logit_bias *bias = calloc(a->bias.count, sizeof *bias);
    if (!bias)
        return st_user_error("--logit-bias: no memory");
    for (size_t i = 0; i < a->bias.count; i++)
        if (!parse_bias(a->bias.items[i], &bias[i])) {
            free(bias);
            return st_user_error("--logit-bias: \"%s\" is not ID=NUMBER or ID=-inf", a->bias.items[i]);
        }
    out->bias = bias;
    out->bias_count = a->bias.count;
    return ST_EXIT_OK;
}

/* ---- chat form ---- */

const char *const st_thinking_names[] = {"default", "on", "off", NULL};

int st_chat_ids(const struct st_host *h, const json_t *messages, int thinking, int32_t **ids, size_t *count, char **rendered)
{
    static const char *const options[] = {NULL, "{\"enable_thinking\": true}", "{\"enable_thinking\": false}"};
    char *text = messages ? json_dumps(messages, 0) : NULL;
    if (!text)
        return st_user_error("no memory for the prompt");
    struct strata_error err;
    enum strata_result r = strata_chat_prompt(h->model, text, options[thinking], ids, count, rendered, &err);
    free(text);
    return r ? st_report(&err) : ST_EXIT_OK;
}

/* ---- input ---- */

static int read_stdin(char **text, size_t *size)
{
    char *p = NULL;
    size_t used = 0, room = 0;
    for (;;) {
        if (used + 1 >= room) {
            room = room ? 2 * room : 1 << 16;
            char *bigger = room <= 2 * (size_t)ST_INPUT_LIMIT ? realloc(p, room) : NULL;
            if (!bigger) {
                free(p);
                return st_user_error("standard input: more than %d bytes, or no memory for them", ST_INPUT_LIMIT);
            }
            p = bigger;
        }
        ssize_t n = read(STDIN_FILENO, p + used, room - used - 1);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            free(p);
            return st_user_error("standard input: %s", strerror(errno));
        }
        if (n == 0)
            break;
        used += (size_t)n;
    }
    p[used] = 0;
    *text = p;
    *size = used;
    return ST_EXIT_OK;
}

int st_read_input(const char *path, char **text, size_t *size)
{
    if (strcmp(path, "-") == 0)
        return read_stdin(text, size);
    struct strata_error err;
    return st_read_file(path, ST_INPUT_LIMIT, text, size, &err) ? st_report(&err) : ST_EXIT_OK;
}

int st_read_ids(const char *path, int32_t **ids, size_t *count)
{
    char *text = NULL;
    size_t size = 0, n = 0;
    int status = st_read_input(path, &text, &size);
    if (status)
        return status;
    int32_t *list = malloc((size / 2 + 1) * sizeof *list); /* a number takes a digit and a separator */
    if (!list) {
        free(text);
        return st_user_error("%s: no memory for the token ids", path);
    }
    size_t from = strspn(text, " \t\r\n"), to = size;
    while (to > from && strchr(" \t\r\n", text[to - 1]))
        to--;
    if (to > from + 1 && text[from] == '[' && text[to - 1] == ']') { /* what is left may not have brackets */
        text[from] = ' ';
        text[to - 1] = ' ';
    }
    for (char *p = text;;) {
        p += strspn(p, " \t\r\n,");
        if (p >= text + size)
            break;
        char *end;
        errno = 0;
        long long id = strtoll(p, &end, 10);
        if (end == p || errno || id < 0 || id > INT32_MAX || (*end && !strchr(" \t\r\n,", *end)) ||
            (!*end && end != text + size)) {
            size_t length = strcspn(p, " \t\r\n,");
            status = st_user_error("%s: \"%.*s\" is not a token id", path, (int)(length < 40 ? length : 40), p);
            break;
        }
        list[n++] = (int32_t)id;
        p = end;
    }
    free(text);
    if (!status && n == 0)
        status = st_user_error("%s: no token ids", path);
    if (status) {
        free(list);
        return status;
    }
    *ids = list;
    *count = n;
    return ST_EXIT_OK;
}

int st_check_utf8(const char *what, const char *text, size_t size)
{
    for (size_t i = 0; i < size;) {
        int n = st_utf8_scan((const unsigned char *)text + i, size - i, NULL);
        if (n <= 0)
            return st_user_error("%s: byte %zu is not valid UTF-8", what, i);
        i += (size_t)n;
    }
    return ST_EXIT_OK;
}

bool st_print(const char *text, size_t size)
{
    return fwrite(text, 1, size, stdout) == size && fflush(stdout) == 0;
}

int st_print_json(json_t *value)
{
    char *text = value ? json_dumps(value, JSON_REAL_PRECISION(9)) : NULL;
    json_decref(value);
    if (!text)
        return st_user_error("no memory for the JSON output");
    bool written = st_print(text, strlen(text)) && st_print("\n", 1);
    free(text);
    return written ? ST_EXIT_OK : st_user_error("standard output: %s", strerror(errno));
}
