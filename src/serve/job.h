/* A job is one request that cannot be answered at once: it is prepared (rendered, tokenized) in one thread, waits its
 * turn, is computed in the engine thread, and its pieces come back to the event thread, which owns it and writes them.
 *
 * Who may touch what: everything belongs to the event thread, except that the fields under "prepare" are the prepare
 * thread's until ST_DELTA_PREPARED, those under "engine" the engine thread's until ST_DELTA_END, and the list of deltas
 * is under the server's lock. */
#ifndef ST_SERVE_JOB_H
#define ST_SERVE_JOB_H

#include <stdatomic.h>
#include <time.h>

#include "serve/backend.h"
#include "serve/buffer.h"
#include "serve/call.h"
#include "serve/http.h"

struct st_server;
struct st_output;

enum st_delta_kind {
    ST_DELTA_PREPARED,       /* prompt ready, or job->failed */
    ST_DELTA_STARTED,        /* its computation begins */
    ST_DELTA_PROMPT,         /* a prompt tokens read, in slot b */
    ST_DELTA_TOKEN,          /* one more token; seconds since the one before; logprob if asked for */
    ST_DELTA_REASONING,      /* text */
    ST_DELTA_CONTENT,        /* text */
    ST_DELTA_TOOL_BEGIN,     /* text: the function's name */
    ST_DELTA_TOOL_ARGUMENTS, /* text: a piece of the JSON arguments */
    ST_DELTA_TOOL_END,       /* a: whether the call is complete */
    ST_DELTA_END, /* last one */
};

struct st_delta {
    struct st_delta *next;
    enum st_delta_kind kind;
    size_t a, b;
    double seconds;
    json_t *logprob; /* owned */
    size_t size;
    char text[]; /* NUL-terminated */
};

enum st_stage { ST_STAGE_PREPARING, ST_STAGE_QUEUED, ST_STAGE_READING, ST_STAGE_GENERATING, ST_STAGE_ENDED };

struct st_tool_call {
    char id[32];
    struct st_buffer name, arguments;
};

enum st_block { ST_BLOCK_NONE, ST_BLOCK_REASONING, ST_BLOCK_CONTENT, ST_BLOCK_TOOL };

struct st_job {
    struct st_job *next;      /* all jobs of the server, in order of arrival */
    struct st_job *lane_next; /* in a lane; then in the list of those under way */
    struct st_server *server;
    struct st_exchange *x; /* NULL once the client is gone */
    const struct st_format *format;
    const char *route;
    uint64_t number;
    char id[48];
    time_t created; /* wall clock */
    struct st_call call;

    /* Answers to one request (n above 1) are a job each. The first one has the exchange and all that the others borrow of it: call, ids, text
     * and constraint. They begin when it has read the prompt, so that they need not, and all go when the last has ended. */
    struct st_job *head;    /* the first one, or the only one: itself */
    struct st_job **others; /* of the first one: call.choices - 1 in order; NULL: none */
    size_t index;           /* its number, from 0 on */
    size_t left;            /* of the first one: answers that have not ended */

    /* prepare */
    int32_t *ids;
    size_t count;
    char *text; /* rendered conversation; the text of /detokenize */
    size_t text_size;
    json_t *pieces;
    struct strata_constraint *constraint; /* or NULL */
    struct st_api_error error;
    bool failed;

    /* engine */
    struct strata_request request; /* points into call and ids */
    struct st_backend_run run;
    bool told;                /* the backend knows that it is cancelled */
    bool released;            /* the others are in the engine thread's list */
    struct st_output *output; /* takes the text apart; NULL: it is all content */
    bool in_reasoning;        /* the last text belonged to it */
    double last_token;        /* when it came */
    enum strata_end end;
    int stop_index;
    size_t reasoning_tokens;
    bool called_tool; /* the last tool call is complete */
    bool enough;      /* it was the only one allowed, and the answer ended there */
    struct st_slot_result slot_result;
    json_t *report; /* of ST_CALL_UNLOAD and ST_CALL_VRAM; or NULL */
    json_t *stages; /* of ST_CALL_VRAM: as they are now; or NULL */
    bool loaded;    /* of ST_CALL_VRAM: the model is */
    char problem[500]; /* what went wrong although it was unloaded, "" if nothing */
    double slot_seconds;

    /* deltas on their way to the event thread */
    struct st_delta *first, *last;
    struct st_job *outbox_next;
    bool in_outbox;
    atomic_bool cancelled;

    /* progress and the answer so far */
    enum st_stage stage;
    int slot; /* -1: none yet */
    bool streaming, reading; /* reading: the first ST_DELTA_PROMPT was seen */
    double arrived, started, last_write, first_token;
    size_t prompt_done, reused, generated;
    struct st_buffer content, reasoning;
    struct st_tool_call *tools;
    size_t tool_count, tool_capacity;
    json_t *logprobs;   /* array; for a stream only those not yet written */
    enum st_block open; /* what the last text belonged to */
    size_t blocks;      /* content blocks or output items begun, for the Anthropic stream and responses */
    json_t *items;      /* of a response: those that are done; array or NULL */
    size_t item_start;  /* where the text of the open one begins in content or reasoning */
    uint64_t sequence;  /* of the next event of a response's stream */
    bool timed_out;     /* cancelled because it took too long */
    bool withdrawn;     /* taken out of the engine's lane before it began; to be freed */
    bool gone;          /* nobody waits for it: the client went away, or the request has failed with another of its answers */
    bool cut;           /* cancelled because the model is unloaded */

    /* of the engine thread's list */
    uint64_t place; /* grows with the order in which jobs came to it; 0: not yet */
    bool alone;     /* begins when nothing is under way: loading and unloading */
    /* of ST_CALL_UNLOAD and ST_CALL_VRAM: answers before it, those that were cut, and when they are (monotonic) */
    size_t waits, cuts;
    double deadline;
    bool cutting;

    bool counted;       /* the request's status is in the metrics already */
    int status;         /* of the request, 0: there was no answer */
};

/* How a family of answers is written. All in the event thread, with job->head->x not NULL. A write may find that the client
 * is cut off: that is NULL afterwards. alive and fail: of the first answer of a request. */
struct st_format {
    void (*begin)(struct st_job *job);                                  /* of a stream */
    void (*delta)(struct st_job *job, const struct st_delta *d);        /* of a stream, after it was added to the job */
    void (*alive)(struct st_job *job);                                  /* a sign of life in a stream */
    void (*end)(struct st_job *job);                                    /* of an answer; the last one of a request ends the
                                                                           stream, or gives all as a whole */
    void (*fail)(struct st_job *job, const struct st_api_error *error); /* in a stream */
    bool whole;                                                         /* delta is called where nothing is streamed, too */
};
extern const struct st_format st_format_chat, st_format_completion, st_format_messages, st_format_responses, st_format_small;

/* Takes a new reference or NULL; sends {"..."} and ends the exchange. */
void st_job_reply_json(struct st_job *job, json_t *value);
/* Writes "data: VALUE" (with an event line if event is not NULL) to the stream and drops the reference. */
void st_job_event(struct st_job *job, const char *event, json_t *value);
void st_job_write(struct st_job *job, const char *text, size_t size);
/* Ends a stream. */
void st_job_end_stream(struct st_job *job);
/* The model's name for answers. */
const char *st_job_model(const struct st_job *job);
/* Speeds and counts of the answer as llama.cpp's server reports them. A new reference. */
json_t *st_job_timings(const struct st_job *job);
/* What was done to the slot. A new reference. */
json_t *st_slot_json(const struct st_job *job);

/* What loading or unloading did. A new reference. */
json_t *st_load_json(const struct st_job *job);
/* The answer is to end soon. */
void st_job_cancel(struct st_job *job);

/* ---- in the other threads ---- */

void st_job_prepare(struct st_job *job, const struct st_backend *backend);
/* Takes an answer up: it is then one of the server's running jobs, or has ended. */
void st_job_begin(struct st_job *job);
/* The other answers to the request may begin, if that has not been said; before the end of this one is posted. */
void st_job_release(struct st_job *job);
void st_job_slot(struct st_job *job, struct st_backend *backend);
/* load.c: loads the model where it is not. False: that failed, and the job has ended. */
bool st_job_needs_model(struct st_job *job);
void st_job_load(struct st_job *job);
void st_job_unload(struct st_job *job);
void st_job_vram(struct st_job *job);
/* Hands one delta to the event thread; logprob is taken over. Without memory the job is cancelled and marked failed. */
void st_job_post(struct st_job *job, enum st_delta_kind kind, const char *text, size_t size, size_t a, size_t b,
                 double seconds, json_t *logprob);
double st_now(void); /* monotonic seconds */

#endif
