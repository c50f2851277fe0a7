/* Inside the engine: what its files share, and the internal entries for exact work (residuals after each layer, inputs that
 * are embeddings, draft rows). The public contract is strata.h. */
#ifndef ST_ENGINE_ENGINE_H
#define ST_ENGINE_ENGINE_H

#include <stdatomic.h>

#include "engine/plan.h"
#include "engine/stage.h"
#include "text/chat.h"
#include "text/tokenizer.h"

enum {
    ST_STAGES_MAX = ST_PLAN_STAGES,
    ST_SESSION_POINTS = 32,
    ST_DRAFT_WAITING = 32, /* residuals of an answer that wait for the draft layer */
};

struct st_checkpoint;
struct st_park;

/* What must be the same for a saved state to be of use. */
struct st_session_print {
    uint64_t model, draft; /* fingerprints of the files; draft 0: none */
    uint32_t kv, fp32, mtp_norm, rope_scaling;
    double rope_scale;
};

/* A page-locked buffer between two stages: [rows][wide]. */
struct st_hand_off {
    float *wide;
    bool locked_from, locked_to; /* by the stage before and the one behind */
};

/* A device that was lost while the model ran on it. */
struct st_lost_device {
    char name[16], why[300];
    bool given_up; /* and its driver would wait for ever if it were opened again */
};

struct strata_model {
    struct st_gguf *gguf;
    struct st_tokenizer *tokenizer; /* NULL: the file has no usable vocabulary; ids only */
    struct strata_error no_text;    /* why not, given to whoever asks for text; code 0: there is no vocabulary at all */
    struct st_chat *chat;           /* NULL without a tokenizer or with a template that cannot be served: */
    struct strata_error no_chat;    /* why not */
    char *name, *template_text;
    char *architecture;
    struct st_model_trie *trie; /* of the vocabulary, for constraints; made when one is asked for */
};

/* The vocabulary as a tree; see constraint.c. */
struct st_model_trie *st_model_trie_create(void);
void st_model_trie_free(struct st_model_trie *trie);

struct strata_engine {
    const struct strata_model *model;
    struct st_gguf *draft_gguf; /* NULL: none, or inside the model's file */
    struct st_gguf *ngram_gguf; /* NULL: the n-gram table is in the model's file */
    struct st_expert_profile *profile; /* or NULL */
    char *mtp_path, *profile_path, *ple_path, *expert_cache, *program_cache, *session_dir; /* the engine's copies */
    struct st_model bound; /* the whole model, weights in the file: shapes, types, host-side tables */
    struct st_model_dims dims;
    struct strata_engine_options options;
    struct st_placement placement;
    uint32_t asked_prefill; /* 0: automatic; options then holds what was chosen */
    struct st_kernels kernels; /* of CPU stages */
    struct st_rows rows;       /* of the current pass, host memory in row_memory */
    uint8_t *row_memory;
    struct st_devices *devices;              /* NULL: the CPU alone */
    struct st_device *opened[ST_STAGES_MAX]; /* by stage; NULL for the CPU */
    struct st_device *helpers[ST_STAGES_MAX]; /* by stage, or NULL: computes experts for it */
    struct st_plan plan;
    char placement_text[6144];
    struct st_stage *stages[ST_STAGES_MAX]; /* in the order of layers */
    int n_stages;
    struct st_hand_off hand_off[ST_STAGES_MAX][ST_STAGE_PASSES]; /* behind each stage but the last */
    const float *logits;                                        /* of the last pass */
    const struct st_sample_pick *picks; /* NULL, or what a device picked from them, which then stay there */
    struct st_ngram_table ngram;
    struct st_ngram_io *ngram_io; /* NULL: the model has no n-gram table */
    uint64_t *ngram_rows;         /* [rows][heads] row numbers of a pass */
    /* Between the last stage and the draft layer, which it has: [rows][wide] that leave it, then [ST_DRAFT_WAITING][wide] that
     * have waited and go in. wide NULL unless it drafts. */
    struct st_hand_off draft;
    struct strata_session **slot; /* [sessions]: who has it, or NULL */
    bool broken;                  /* a device was lost: the stages are opened again before the next pass */
    struct st_lost_device lost[ST_STAGES_MAX]; /* since the engine was created; an automatic choice leaves them out */
    int n_lost;
    const struct st_runtime *const *runtimes; /* NULL: this build's */
    const struct st_image_set *images;        /* likewise */
    const struct strata_session *logits_of; /* whose last logits lie in row 0 of logits, or NULL */
    struct st_session_print print; /* model 0: not computed yet (session_file.h) */
    struct {
        uint64_t limit, used; /* bytes of host memory for states that are kept (checkpoint.h) */
    } keep;
    struct st_park *park; /* conversations that no session holds */
};

struct strata_session {
    struct strata_engine *engine;
    uint32_t slot;
    int32_t *ids; /* [context] */
    uint32_t count;
    bool unclear;      /* the recurrent state could not be cleared: that must come before the next pass */
    uint32_t held;     /* rows of a window that were computed and wait for st_engine_commit */
    struct st_spec *spec; /* NULL: no drafts */
    int32_t next_axis; /* rotary position of the next text token: count plus what images have taken off */
    struct st_checkpoint *point[ST_SESSION_POINTS]; /* ascending */
    int points;
    _Atomic bool cancelled;
};

/* Input of an exact evaluation. embd and axis may be NULL: tokens at text positions. */
struct st_input {
    const int32_t *ids; /* [count]; placeholders where embd is used */
    size_t count;
    size_t chunk;            /* rows of a pass; 0: the engine's choice */
    const float *embd;       /* [count][hidden], rows with embd_row set are used */
    const uint8_t *embd_row; /* [count] */
    const int32_t *axis;     /* [count][3] */
};

/* Where an evaluation leaves what is asked for; NULL for what is not. */
struct st_output {
    float *logits; /* [vocabulary] of the last token, or [count][vocabulary] with all_logits */
    bool all_logits;
    const struct st_sample *sample; /* how the rows that give logits are sampled, where a device can (then logits is NULL) */
    float *residuals; /* [layers][count][wide]: after each layer */
    float *wide;      /* [count][wide]: after the last layer */
    /* After each chunk of at most the engine's prefill, in order: done tokens are computed. False ends the evaluation after the
     * chunks that were begun; the session then holds fewer tokens than were given. */
    bool (*chunk_done)(void *user, size_t done);
    void *user;
};

/* strata_engine_create over the given runtimes and images instead of this build's (see struct st_device_options). */
enum strata_result st_engine_create(const struct strata_model *model, const struct strata_engine_options *options,
                                    const struct st_runtime *const *runtimes, const struct st_image_set *images,
                                    struct strata_engine **out, struct strata_error *err);

enum strata_result st_session_eval(struct strata_session *s, const struct st_input *in, const struct st_output *out,
                                   struct strata_error *err);

/* What a window has of one session. */
struct st_window_part {
    struct strata_session *session;
    const int32_t *ids; /* [n] */
    size_t n;
    float *wide; /* NULL, or [n][wide]: gets what the last layer left of each row */
    const struct st_sample *sample; /* [n]: how the rows are sampled; NULL: their logits are wanted */
    size_t keep; /* rows that st_engine_commit keeps, 1 to n */
};

/* Computes a window: n tokens of each part's session behind those that it holds, without holding them; every session once, at most
 * ST_HELD_ROWS rows together. e->logits then has the logits of all rows, [rows][vocabulary], in their order; or, where all parts say
 * how they are sampled and the last stage's device can do it, e->picks has what was picked of each. Nothing but
 * st_engine_commit of the same parts may follow: each session then holds the first keep of its rows, with the bits that it would
 * have if they had come one by one and alone. A failure of either makes these sessions forget what they hold. */
enum strata_result st_engine_window(struct strata_engine *e, const struct st_window_part *parts, size_t count,
                                    struct strata_error *err);
enum strata_result st_engine_commit(struct strata_engine *e, const struct st_window_part *parts, size_t count,
                                    struct strata_error *err);

/* Draft rows first .. first + count - 1 of the session's draft state: row i pairs the trunk's residual at position i (wide)
 * with ids[i], the token after it. logits [count][vocabulary] and wide_out [count][wide] may be NULL. */
enum strata_result st_session_draft(struct strata_session *s, uint32_t first, const int32_t *ids, const float *wide,
                                    size_t count, float *logits, float *wide_out, struct strata_error *err);

/* The same for some rows of a session that is ready, ids checked: a pass of the draft layer. */
struct st_draft_rows {
    uint32_t first;
    size_t count;
    const int32_t *ids;
    const float *wide;
    bool last_only;          /* logits and wide_out of the last row alone */
    float *logits, *wide_out; /* may be NULL */
    /* NULL; or, with last_only, what a device found of the last row in place of logits: its most probable token, and the weight of all
     * (struct st_sample.measure). total 0 and status OK: none did, logits has them. */
    struct st_sample_pick *pick;
};
enum strata_result st_session_draft_rows(struct strata_session *s, const struct st_draft_rows *d, struct strata_error *err);

/* The file of the draft layer beside the model's, freed by the caller; NULL where the model's own file has the layer. None is
 * STRATA_E_IO. */
enum strata_result st_find_draft_file(const struct strata_model *m, char **out, struct strata_error *err);

/* What the model's file recommends for sampling (general.sampling.*), with temperature 0.7, top-k 40 and top-p 0.95 where it
 * says nothing. */
enum strata_result st_model_sampling(const struct strata_model *model, struct strata_sampling *out,
                                     struct strata_error *err);

/* Opens devices and plans; e->plan then has everything and nothing is loaded. most, predict: as in st_plan_request. Then
 * opens the stages of the plan (engine_devices.c). */
enum strata_result st_engine_make_plan(struct strata_engine *e, const struct st_stage_config *config, uint32_t most, bool predict,
                                       struct strata_error *err);
enum strata_result st_engine_open_stages(struct strata_engine *e, const struct st_stage_config *config,
                                         struct strata_error *err);
void st_engine_close_stages(struct strata_engine *e);
/* What stages have to say becomes part of the placement's text. */
void st_engine_take_notes(struct strata_engine *e);

/* Faults. After a pass or a copy of state that failed: a device that is lost breaks the engine, and no session holds anything any
 * more. Before the next one: a broken engine closes its stages and opens them again, with the same devices, or with what is left
 * of an automatic choice. When that fails the engine stays broken, and the next call tries again. */
void st_engine_find_lost(struct strata_engine *e);
enum strata_result st_engine_ready(struct strata_engine *e, struct strata_error *err);

/* Forgets what the session holds; a cancel that is under way stays. */
void st_session_forget(struct strata_session *s);
/* Before a pass or a copy of state: the engine is ready, and what the session forgot is cleared. */
enum strata_result st_session_ready(struct strata_session *s, struct strata_error *err);

/* Fills the engine's rows with tokens [from, from + n) of an evaluation that begins behind what the session holds, or with those
 * of a window's parts. No logits. */
void st_engine_fill_rows(struct strata_session *s, const struct st_input *in, size_t from, size_t n);
void st_engine_fill_window(struct strata_engine *e, const struct st_window_part *parts, size_t count);

/* An engine with a plan and nothing else, for showing it; freed with strata_engine_free. */
enum strata_result st_engine_plan_only(const struct strata_model *model, const struct strata_engine_options *options,
                                       struct strata_engine **out, struct strata_error *err);

/* Host memory that rows, fetched n-gram rows and sessions' tokens take with a placement; user:
 * the engine. */
uint64_t st_engine_pass_bytes(void *user, const struct st_placement *placement);

/* Closes all devices, before strata_engine_free. out has room for ST_FREED_MAX; returns how many there were beside the CPU: what
 * each gave back, what was still allocated when all was freed, which is a fault of ours, and what its driver took for itself. */
struct st_freed {
    char name[16];
    uint64_t bytes, left, driver_bytes;
};
enum { ST_FREED_MAX = 2 * ST_STAGES_MAX };
int st_engine_close(struct strata_engine *e, struct st_freed *out);

/* Bytes of state and buffers on all stages. */
uint64_t st_engine_bytes(const struct strata_engine *e);
/* Names of the devices that have layers, in their order: "sim:0,cpu", cut to size. Returns dst. */
char *st_engine_devices(const struct strata_engine *e, char *dst, size_t size);

#endif
