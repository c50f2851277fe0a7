/* What commands share: the options of model, engine and sampling, opening them, and reading what a user hands in. Functions
 * that return int return an exit code, ST_EXIT_OK for success, and have printed a message otherwise. */
#ifndef ST_CLI_COMMON_H
#define ST_CLI_COMMON_H

#include <jansson.h>

#include "cli/device_list.h"
#include "cli/options.h"
#include "engine/adapt.h"

/* ---- model and engine ---- */

struct st_engine_args {
    const char *model, *device, *cache, *cpu, *layer_split, *vram_limit;
    const char *prefill; /* "auto" (NULL) or a number */
    const char *expert_cache, *expert_profile, *ple;
    int check, simulate; /* indices into st_check_names and st_executor_names */
    int64_t context, threads, sessions;
    const char *session_dir; /* serve */
    uint64_t ram_limit, vram_reserve, session_ram, session_disk;
    int kv; /* enum strata_kv, index into st_kv_names */
    int rope_scaling; /* enum strata_rope_scaling, index into st_rope_names */
    double rope_scale;
    bool fp32, context_shift;
    bool predict; /* no option of the command line */
    const char *mtp; /* NULL, "auto" or a file */
    int64_t spec;    /* -1: not given */
    double spec_min_p;
};
/* What nothing given means. */
#define ST_ENGINE_ARGS {.spec = -1, .spec_min_p = 0.5}
extern const char *const st_kv_names[], *const st_rope_names[];

#define ST_MODEL_OPTION(a) ST_TEXT("model", 'm', &(a).model, "FILE", "the model: any shard of a GGUF file")
#define ST_ENGINE_OPTIONS(a) \
    ST_MODEL_OPTION(a), \
    ST_INT("context", 'c', &(a).context, 0, 1 << 30, "N", \
           "tokens that prompt and answer may have together (default: the smaller of what the model knows and 8192)"), \
    ST_TEXT("ple-gguf", 0, &(a).ple, "FILE", "the n-gram table in a file of its own (default: in the model's)"), \
    ST_INT("max-context", 0, &(a).context, 0, 1 << 30, "N", "the same"), \
    ST_INT("threads", 't', &(a).threads, 0, 4096, "N", "CPU threads (default: one per physical core)"), \
    ST_TEXT("device", 0, &(a).device, "LIST", \
            "where to compute, in the order of layers: auto (default), cpu, or names as in cuda:0,cpu"), \
    ST_TEXT("layer-split", 0, &(a).layer_split, "N,N", \
            "layers of each device (default: auto, by predicted time)"), \
    ST_TEXT("vram-limit", 0, &(a).vram_limit, "[D=]SIZE", "device memory that may be used, for all devices or by name"), \
    ST_SIZE("vram-reserve", 0, &(a).vram_reserve, 1, 1e18, "SIZE", \
            "memory of each device that stays free (default: 512M, 1G with a display)"), \
    ST_SIZE("ram-limit", 0, &(a).ram_limit, 1, 1e18, "SIZE", "host memory that may be used beside the mapped file"), \
    ST_SIZE("session-ram", 0, &(a).session_ram, 1, 1e18, "SIZE", \
            "host memory for states to go back to and parked conversations (default: 8 such states)"), \
    ST_TEXT("expert-cache", 0, &(a).expert_cache, "SIZE", \
            "experts kept in device memory: auto (default: what fits), a size for each device, or a share as in 30%"), \
    ST_TEXT("expert-profile", 0, &(a).expert_profile, "FILE", "which experts those are at first (see strata profile)"), \
    ST_CHOICE("check", 0, &(a).check, st_check_names, "HOW", "find faults of devices where they are born: none, sync, runtime"), \
    ST_CHOICE("sim", 0, &(a).simulate, st_executor_names, "KIND", "what runs simulated devices: cpu or fibers"), \
    ST_TEXT("cache", 0, &(a).cache, "DIR", \
            "where programs that drivers compiled are kept (default: strata in the user's cache directory)"), \
    ST_TEXT("prefill", 0, &(a).prefill, "N", \
            "most prompt tokens read in one pass (default: auto, up to 8192 as memory allows, 256 with layers on the CPU)"), \
    ST_CHOICE("kv", 0, &(a).kv, st_kv_names, "TYPE", "keys and values kept as f16, f32, int8 or q4 (default: f16)"), \
    ST_CHOICE("rope-scaling", 0, &(a).rope_scaling, st_rope_names, "HOW", \
              "none, or yarn: a context beyond the trained one (give -c too)"), \
    ST_NUMBER("rope-scale", 0, &(a).rope_scale, 1, 64, "F", "with --rope-scaling: F trained contexts become one"), \
    ST_TEXT("cpu", 0, &(a).cpu, "SET", "instructions: c, avx2, avx512 or auto (default: auto, the best there is)"), \
    ST_FLAG("context-shift", 0, &(a).context_shift, \
            "a full context forgets its older half and goes on (not with recurrent models)"), \
    ST_FLAG("fp32", 0, &(a).fp32, "FP32 activations also for quantised weights: exact, slower")

/* Of commands that generate text. */
#define ST_SPEC_OPTIONS(a) \
    ST_TEXT("mtp", 0, &(a).mtp, "FILE", "draft layer of the model, auto: the file beside the model that has it"), \
    ST_INT("spec", 0, &(a).spec, 0, ST_GUESSES_MAX, "N", \
           "most drafts that a pass checks, from the draft layer and from the text; fewer where fewer pay (default: 3 with " \
           "--mtp, else 0)"), \
    ST_NUMBER("spec-min-p", 0, &(a).spec_min_p, 0, 1, "P", \
              "the draft layer stops at a token less probable than P (default: 0.5)")

/* The options for the engine; cache must live until there is one. */
enum strata_result st_engine_options(const struct st_engine_args *a, char cache[ST_CACHE_PATH], struct strata_engine_options *out,
                                     struct strata_error *err);
/* Where the model lies, to standard error, when more than the CPU computes. */
void st_say_placement(const struct strata_engine *engine);

struct st_host {
    struct strata_model *model;
    struct strata_engine *engine;
    struct strata_session *session;
};

/* "run: which model? ..." unless one was named. */
int st_need_model(const char *command, const char *model);
/* Opens the model, an engine and one session; all or nothing. quiet: without saying where the model lies. */
int st_host_open(const char *command, const struct st_engine_args *args, bool quiet, struct st_host *out);
/* The model alone, for commands that do not compute. */
int st_host_open_model(const char *command, const char *path, struct st_host *out);
void st_host_close(struct st_host *h);

/* ---- sampling ---- */

/* Values below their bounds mean: not given. Then the model file's recommendation holds (general.sampling.*), then ours. */
struct st_sampling_args {
    double temperature, top_p, min_p, repeat_penalty;
    double frequency_penalty, presence_penalty;
    int64_t top_k, window, seed, logprobs;
    struct st_list bias;
};
void st_sampling_args_init(struct st_sampling_args *a);
void st_sampling_args_free(struct st_sampling_args *a);

#define ST_SAMPLING_OPTIONS(a) \
    ST_NUMBER("temp", 0, &(a).temperature, 0, 100, "T", \
              "temperature; 0 takes the most probable token (default: the model's, or 0.7)"), \
    ST_INT("top-k", 0, &(a).top_k, 0, 1 << 24, "K", "only the K most probable tokens, 0: all (default: the model's, or 40)"), \
    ST_NUMBER("top-p", 0, &(a).top_p, 1e-9, 1, "P", \
              "only the most probable tokens that reach P together (default: the model's, or 0.95)"), \
    ST_NUMBER("min-p", 0, &(a).min_p, 0, 1, "P", \
              "only tokens at least P times as probable as the best (default: the model's, or 0)"), \
    ST_NUMBER("repeat-penalty", 0, &(a).repeat_penalty, 1e-3, 1e3, "X", \
              "divides the logits of tokens seen, 1: off (default: 1)"), \
    ST_NUMBER("frequency-penalty", 0, &(a).frequency_penalty, -100, 100, "X", \
              "subtracted for each time a token was seen (default: 0)"), \
    ST_NUMBER("presence-penalty", 0, &(a).presence_penalty, -100, 100, "X", \
              "subtracted once for a token that was seen (default: 0)"), \
    ST_INT("repeat-last-n", 0, &(a).window, -1, 1 << 30, "N", \
           "how many last tokens the penalties look at, -1: all (default: 64)"), \
    ST_INT("seed", 's', &(a).seed, 0, 9007199254740992.0, "N", "seed of the draws (default: a new one each time)"), \
    ST_LIST("logit-bias", 0, &(a).bias, "ID=X", "adds X to the logit of token ID, -inf bans it; may be repeated"), \
    ST_INT("logprobs", 0, &(a).logprobs, 0, 20, "N", "with --json: log-probabilities of each token and the N best")

/* Fills out; out->bias is memory that the caller frees. */
int st_sampling_resolve(const struct st_sampling_args *a, const struct st_host *h, struct strata_sampling *out);

/* ---- chat form ---- */

/* Index into st_thinking_names: as the template has it, on, off. */
extern const char *const st_thinking_names[];
#define ST_THINKING_OPTION(target) \
    ST_CHOICE("thinking", 0, target, st_thinking_names, "HOW", "default, on or off: what the chat form asks of models that think")

/* The messages (a JSON array, not released) in the model's chat form. *ids is freed with strata_free. */
int st_chat_ids(const struct st_host *h, const json_t *messages, int thinking, int32_t **ids, size_t *count, char **text);

/* ---- input ---- */

enum { ST_INPUT_LIMIT = 256 << 20 };

/* Reads a file, or standard input for "-"; one NUL follows. *text is freed by the caller. */
int st_read_input(const char *path, char **text, size_t *size);
/* Whole numbers separated by white space, commas or brackets (so a JSON array too). *ids is freed by the caller. */
int st_read_ids(const char *path, int32_t **ids, size_t *count);
/* what: how a message calls the text. */
int st_check_utf8(const char *what, const char *text, size_t size);

/* Writes to standard output at once. False when nobody reads it any more. */
bool st_print(const char *text, size_t size);
/* Writes a JSON value and a newline; releases it. NULL (no memory) is an error. */
int st_print_json(json_t *value);

#endif
