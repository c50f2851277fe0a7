/* Strata: the public C API.
 *
 * Conventions that hold for every function here:
 *  - results are enum strata_result, negative on failure; the message is in the strata_error that the caller passed
 *    (NULL is allowed) and names the object concerned and, where there is one, the device;
 *  - nothing exits, aborts or prints; strings are UTF-8; sizes are in bytes unless a name says otherwise;
 *  - objects are owned by whoever created them and are freed by the matching _free, which accepts NULL;
 *  - an object may be used from one thread at a time unless its comment says otherwise. */
#ifndef STRATA_H
#define STRATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum strata_result {
    STRATA_OK = 0,
    STRATA_E_ARGUMENT = -1,    /* the caller's value is out of range or contradicts another one */
    STRATA_E_MEMORY = -2,      /* host memory could not be had */
    STRATA_E_IO = -3,          /* the system refused a file operation */
    STRATA_E_FORMAT = -4,      /* a file or text breaks its format */
    STRATA_E_UNSUPPORTED = -5, /* well formed, but nothing here can serve it */
    STRATA_E_MODEL = -6,       /* tensors or hyper-parameters do not make a model */
    STRATA_E_DEVICE = -7,      /* a device or its driver failed or lacks something */
    STRATA_E_CANCELLED = -8,   /* the caller asked to stop */
    STRATA_E_LIMIT = -9,       /* a stated limit (context, memory, time) was reached */
    STRATA_E_INTERNAL = -10,   /* a broken invariant of ours: please report */
};

struct strata_error {
    enum strata_result code;
    char text[500];
};

/* Name of a result ("STRATA_E_IO"), never NULL. */
const char *strata_result_name(enum strata_result r);

/* "0.1.0", and the commit and compiler of this build. Static strings. */
const char *strata_version(void);
const char *strata_build(void);

/* Frees memory that a function here handed out (texts and id arrays). */
void strata_free(void *memory);

/* ---- model: an opened file (all its shards) with its tokenizer. Read-only after opening, usable from any thread. ---- */

struct strata_model;

/* path: any shard of a GGUF model. The file stays mapped until strata_model_free. */
enum strata_result strata_model_open(const char *path, struct strata_model **out, struct strata_error *err);
void strata_model_free(struct strata_model *model);

struct strata_model_info {
    const char *architecture; /* "qwen4exp" */
    const char *name;         /* general.name, or the file's name */
    const char *path;
    uint64_t parameters;      /* elements of all tensors */
    uint64_t bytes;           /* tensor data of all shards */
    uint32_t layers;
    uint32_t vocabulary;
    uint32_t context; /* trained context length in tokens */
    const char *chat_template; /* text of the file, or NULL */
};
/* The strings live as long as the model. */
void strata_model_info(const struct strata_model *model, struct strata_model_info *out);

/* Text to token ids. special: texts of special tokens are parsed as such (never for text that a user typed).
 * *ids is freed with strata_free. Invalid UTF-8 is STRATA_E_FORMAT. */
enum strata_result strata_tokenize(const struct strata_model *model, const char *text, size_t size, bool special,
                                   int32_t **ids, size_t *count, struct strata_error *err);

/* Token ids to bytes (one token alone may be part of a character). special: control tokens are written as their text,
 * otherwise they give nothing. *text is NUL-terminated, freed with strata_free. */
enum strata_result strata_detokenize(const struct strata_model *model, const int32_t *ids, size_t count, bool special,
                                     char **text, size_t *size, struct strata_error *err);

/* True for tokens that end an answer (end of turn, end of text). */
bool strata_is_stop_token(const struct strata_model *model, int32_t id);

/* Renders a conversation with the model's chat form and tokenizes it: text from messages never becomes a special token.
 * messages: JSON array as in the OpenAI API. options: JSON object or NULL: "tools", "add_generation_prompt" (default
 * true), "enable_thinking", "reasoning_effort" and whatever else the template takes. *text (may be NULL) gets the
 * rendered text. Both results are freed with strata_free. */
enum strata_result strata_chat_prompt(const struct strata_model *model, const char *messages, const char *options,
                                      int32_t **ids, size_t *count, char **text, struct strata_error *err);

/* ---- constraint: what an answer may be, as a grammar of its text. Read-only, usable from any thread. ---- */

struct strata_constraint;

/* A grammar alone, or a JSON schema, tools, or both of these (either is then allowed); docs/text.md says what is understood. */
struct strata_constraint_options {
    const char *grammar;     /* GBNF text; the rule root is the answer */
    const char *json_schema; /* JSON Schema text; the answer is a value that it accepts */
    const char *tools;       /* JSON array of tools as in the OpenAI API; the answer is calls of them, in the form of the chat form */
    const char *tool;        /* name of the only one that may be called, or NULL */
    bool one_call;           /* not several calls in a row */
    const char *prompt;      /* rendered prompt: if it ends inside a think block (or the model may open one), all this holds
                              * behind it. NULL: there is no thinking */
    const char *begun;       /* the beginning of the answer that the prompt ends with, or NULL */
};
/* STRATA_E_FORMAT: a text breaks its language; STRATA_E_UNSUPPORTED names the keyword and its place in the schema; STRATA_E_LIMIT: it
 * would take too much memory or time. The model must outlive the constraint. */
enum strata_result strata_constraint_create(const struct strata_model *model, const struct strata_constraint_options *options,
                                            struct strata_constraint **out, struct strata_error *err);
/* When no answer uses it any more. */
void strata_constraint_free(struct strata_constraint *constraint);

/* ---- engine: a model placed on devices, ready to compute ---- */

struct strata_engine;

/* Storage of keys and values: docs/numerics.md has the error bounds. */
enum strata_kv { STRATA_KV_F16, STRATA_KV_F32, STRATA_KV_INT8, STRATA_KV_Q4 };

/* How the context is extended beyond the trained one. YaRN: slow rotations turn slower by rope_scale. */
enum strata_rope_scaling { STRATA_ROPE_NONE, STRATA_ROPE_YARN };

/* How a draft layer normalises the residual that it takes from the model. The published form is the full vector; some files
 * were made for the other one. */
enum strata_mtp_norm { STRATA_MTP_NORM_FILE, STRATA_MTP_NORM_FULL, STRATA_MTP_NORM_PER_STREAM };

/* Zero in a field means its default. */
struct strata_engine_options {
    const char *devices;   /* "cpu" (default), "auto", or names in the order of layers: "cuda:0,cpu", "sim:gfx1100:24G,..." */
    const char *layer_split; /* "auto" (default: by predicted time), or layers of each device: "10,38"; with "48,0" the second one
                              * computes experts that the first one lacks */
    const char *vram_limit;  /* bytes that stages may take: "12G", or by device "cuda:0=12G,hip:0=8G" */
    uint64_t vram_reserve;   /* bytes of each device that stay free; default: 512 MiB, 1 GiB with a display */
    uint64_t ram_limit;      /* bytes of host memory beside the mapped file; 0: no limit */
    const char *expert_cache; /* experts in the memory of devices: "auto" (default: as many as fit), "6G" of each, or "30%" */
    const char *expert_profile; /* file that says which experts are chosen most (strata profile), or NULL */
    const char *check;       /* "sync" or "runtime": find faults of devices where they are born; slow */
    const char *simulate;    /* executor of simulated devices: "cpu" (default) or "fibers" */
    const char *program_cache; /* directory for what drivers compiled (OpenCL), so that it is there at the next start, or NULL */
    bool predict;          /* the plan says how fast it will be where the CPU computes alone, too: takes some tenths of a second */
    int threads;           /* CPU workers; default: one per physical core */
    uint32_t context;      /* tokens a session can hold; default: the smaller of the trained context and 8192 */
    uint32_t sessions;     /* sessions that may exist at once; default 1 */
    uint64_t session_ram;  /* bytes of host memory for states of conversations: checkpoints that an edited turn goes back to, and
                            * conversations that other ones took the place of; default: 8 checkpoints of each session */
    const char *session_dir; /* folder for conversations that have no room there, and strata_engine_keep; NULL: none */
    uint64_t session_disk;   /* bytes of all files in it that are this model's; default 16 GiB */
    uint32_t prefill;      /* largest number of prompt tokens read in one pass; default: what memory allows, up to 8192, 2048
                            * over several devices, 256 where the CPU computes layers */
    enum strata_kv kv;     /* storage of keys and values */
    enum strata_rope_scaling rope_scaling; /* default: none; the context is then as trained, whatever its length */
    double rope_scale;                     /* above 1, at most 64: trained contexts that the extended one has */
    bool context_shift;    /* when an answer fills the context, the older half of what follows the first turn is forgotten and the
                            * rest read again; for models without recurrent state */
    const char *cpu;       /* instruction set: "c", "avx2", "avx512"; default "auto", the best of this processor */
    bool fp32;             /* FP32 activations everywhere instead of 8-bit activations for quantised weights */
    const char *mtp_path;  /* draft layer in a file of its own; "auto": found beside the model, or in its own file; or NULL */
    uint32_t drafts;       /* most guesses of tokens to come that a pass checks, up to 7: from the draft layer if there is one, and
                            * from the text. Fewer where fewer pay. Default: none. No text depends on it */
    float draft_min_p;     /* the draft layer stops guessing below this probability; default 0.5 */
    const char *ple_path;  /* n-gram table in a file of its own (any shard), or NULL: in the model's */
    enum strata_mtp_norm mtp_norm; /* default: as the draft layer's file says, else the full vector */
};

/* The model must outlive the engine. */
enum strata_result strata_engine_create(const struct strata_model *model, const struct strata_engine_options *options,
                                        struct strata_engine **out, struct strata_error *err);
/* All sessions must have been freed. */
void strata_engine_free(struct strata_engine *engine);
/* Where the model lies: one line for each stage, one with chunk, host memory and predicted speed, one for each device that was
 * left out. Valid as long as the engine; after a device was lost the next
 * request may change it. */
const char *strata_engine_placement(const struct strata_engine *engine);
/* Before the end: writes the conversations of all sessions and the parked ones into session_dir, if there is one, so that the
 * next engine with the same model goes on with them. Those for which there is no room are left out. */
enum strata_result strata_engine_keep(struct strata_engine *engine, struct strata_error *err);
/* The options in force, defaults filled in. */
void strata_engine_options(const struct strata_engine *engine, struct strata_engine_options *out);

/* ---- session: one conversation, its tokens and state. One thread at a time for all sessions of an engine. ---- */

struct strata_session;

enum strata_result strata_session_create(struct strata_engine *engine, struct strata_session **out,
                                         struct strata_error *err);
void strata_session_free(struct strata_session *session);

/* Tokens whose state the session holds. *ids is owned by the session and valid until its next call. */
size_t strata_session_tokens(const struct strata_session *session, const int32_t **ids);
/* Forgets everything. */
void strata_session_reset(struct strata_session *session);
/* Writes and reads the whole state; a file is only accepted by an engine with the same model and settings that matter. */
enum strata_result strata_session_save(struct strata_session *session, const char *path, struct strata_error *err);
enum strata_result strata_session_restore(struct strata_session *session, const char *path, struct strata_error *err);

/* Appends count tokens and computes them. logits (may be NULL): the vocabulary's raw logits of the last token, or with
 * all_logits of every token, [count][vocabulary]. The context limit is checked before anything is computed. */
enum strata_result strata_session_eval(struct strata_session *session, const int32_t *ids, size_t count, bool all_logits,
                                       float *logits, struct strata_error *err);

/* ---- generate ---- */

struct strata_logit_bias {
    int32_t token;
    float bias; /* added to the raw logit */
};

/* The order is: constraint, logit bias, penalties, temperature, top-k, top-p, min-p, draw. */
struct strata_sampling {
    float temperature; /* 0: the largest logit, lowest id on ties; everything but bias and penalties is then without effect */
    int top_k;         /* 0: off */
    float top_p;       /* 1: off */
    float min_p;       /* 0: off */
    float repetition_penalty; /* 1: off; divides positive and multiplies negative logits of tokens seen */
    float frequency_penalty;  /* 0: off; subtracted once per occurrence */
    float presence_penalty;   /* 0: off; subtracted once for a token seen */
    int penalty_window;       /* last tokens (prompt included) that count as seen; 0: 64, -1: all */
    uint64_t seed;            /* the draw at a position depends on seed, position and probabilities only */
    const struct strata_logit_bias *bias;
    size_t bias_count;
    int logprobs; /* 0: none; n: log-probability of the token and of the n best, at most 20 */
};
/* Greedy, everything off. */
void strata_sampling_default(struct strata_sampling *out);

struct strata_token_logprob {
    int32_t token;
    float logprob; /* natural logarithm, of softmax over the raw logits after bias and penalties */
};

enum strata_event_kind {
    STRATA_EVENT_PROMPT, /* prompt tokens read so far; the first one before anything is read: those that are reused */
    STRATA_EVENT_TEXT,   /* new text (complete characters only) and/or a token */
    STRATA_EVENT_END,    /* last event of every successful generate */
};

enum strata_end { STRATA_END_STOP_TOKEN, STRATA_END_STOP_TEXT, STRATA_END_LENGTH, STRATA_END_CONTEXT, STRATA_END_CANCELLED };

struct strata_event {
    enum strata_event_kind kind;
    size_t prompt_done, prompt_total; /* PROMPT */
    int32_t token;                    /* TEXT: the token just picked, -1 for text that was held back until now */
    const char *text;                 /* TEXT: size bytes, may be empty */
    size_t size;
    struct strata_token_logprob logprob;    /* TEXT with logprobs > 0 */
    const struct strata_token_logprob *top; /* the best, in descending order */
    size_t top_count;
    enum strata_end end; /* END */
    int stop_index;      /* END by STOP_TEXT: which stop text */
};

struct strata_request {
    const int32_t *ids; /* the whole prompt; what the session already holds of it is not read again */
    size_t count;
    size_t max_tokens; /* 0: until the context is full */
    struct strata_sampling sampling;
    const struct strata_constraint *constraint; /* tokens that it does not allow are never picked; NULL: none. It decides where the
                                                 * answer may end, so ignore_eos cannot go with it */
    const char *const *stop; /* texts that end the answer; they are not part of it */
    size_t stop_count;
    bool ignore_eos;   /* stop tokens do not end the answer */
    bool show_special; /* control tokens appear in the text */
    bool no_answer;    /* the prompt is read and nothing generated: STRATA_END_LENGTH */
    /* Called in the caller's thread; false ends the answer with STRATA_END_CANCELLED. May be NULL. */
    bool (*event)(void *user, const struct strata_event *event);
    void *user;
};

struct strata_stats {
    size_t prompt_tokens, reused_tokens, read_tokens, generated_tokens;
    double read_seconds, generate_seconds;
    size_t passes;                          /* that computed the answer's tokens behind the first one */
    size_t drafted_tokens, accepted_tokens; /* guesses that were checked, and those that were right */
};

/* Reads the prompt and generates. The session then holds prompt and answer. stats may be NULL; it is filled on failure too.
 * After a failure of a device the session holds nothing, after a loss of one no session of the engine does; the next call loads
 * the model again where that is needed: on the same devices, or on what is left of "auto". */
enum strata_result strata_generate(struct strata_session *session, const struct strata_request *request,
                                   struct strata_stats *stats, struct strata_error *err);

/* Makes a running answer of this session end soon with STRATA_END_CANCELLED. From any thread or signal handler. */
void strata_session_cancel(struct strata_session *session);

/* ---- several answers at once: of different sessions of one engine, each with the text that it has alone ---- */

struct strata_batch;

enum strata_result strata_batch_create(struct strata_engine *engine, struct strata_batch **out, struct strata_error *err);
/* Forgets answers under way; before their sessions are freed. */
void strata_batch_free(struct strata_batch *batch);
/* Called from strata_batch_step when an answer has ended, with what strata_generate would have returned; err: its message. */
typedef void strata_batch_done(void *user, enum strata_result result, const struct strata_error *err);
/* Adds an answer; a session has one at a time and is not used otherwise meanwhile. request and what it points to, and stats (may be
 * NULL), stay valid until done was called, which is not called when this fails. */
enum strata_result strata_batch_add(struct strata_batch *batch, struct strata_session *session,
                                    const struct strata_request *request, struct strata_stats *stats,
                                    strata_batch_done *done, void *user, struct strata_error *err);
/* One pass for those that were added: the next token of each (of up to eight, in turns), or a part of a prompt. A failure ends the
 * answers that it concerns. Events and done are called from here and call nothing of the batch. False: nothing is left. */
bool strata_batch_step(struct strata_batch *batch);
/* From any thread: a step that reads a long prompt returns after the pass under way, so that another answer can be added. */
void strata_batch_interrupt(struct strata_batch *batch);

#ifdef __cplusplus
}
#endif
#endif
