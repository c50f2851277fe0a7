/* What the server needs from whatever computes answers. The real one stands on the public API (backend_strata.c); the
 * tests have one that replays a script, so that the server can be tested without a model.
 *
 * "In the engine thread": by one thread, which works through the requests. It starts as many answers as info says may run at
 * once, and calls step as long as there is one. */
#ifndef ST_SERVE_BACKEND_H
#define ST_SERVE_BACKEND_H

#include <jansson.h>

#include "serve/call.h"

struct st_backend_info {
    const char *name; /* what /v1/models shows unless --alias says otherwise */
    const char *path; /* of the model file, "" if there is none */
    const char *architecture;
    const char *chat_template; /* NULL: plain ChatML */
    uint64_t parameters;
    uint64_t bytes;
    uint32_t context; /* tokens that prompt and answer may have together */
    uint32_t trained_context;
    uint32_t vocabulary;
    uint32_t parallel;               /* answers that may be under way at once, at least 1; slots have numbers 0 .. parallel - 1 */
    bool keeps_slots;                /* ops->slot works */
    struct strata_sampling sampling; /* where neither the request nor the server's options say otherwise */
};

struct st_slot_result {
    size_t tokens;  /* saved, restored or erased */
    uint64_t bytes; /* of the file */
    bool missing;   /* it failed because there is no such file */
    bool busy;      /* it failed because an answer is under way in the slot */
};

/* An answer under way. It, the request and what that points to stay valid until done was called. */
struct st_backend_run {
    const struct strata_request *request;
    struct strata_stats stats; /* as far as it has come; complete when done is called */
    int slot;                  /* where it is computed, before the first event; -1 until then */
    /* Once, from step: the answer has ended, with the request's STRATA_EVENT_END if it succeeded (a cancel is a success). */
    void (*done)(void *user, enum strata_result result, const struct strata_error *err);
    void *user;
};

struct st_backend_health {
    bool starting;  /* it is loaded again: answers wait for that */
    bool failed;    /* it has failed so often that answers are refused for now */
    double part;    /* of loading, 0 to 1 */
    char what[96];  /* is done now, while starting */
    char why[900];  /* what is known of the last failure, "" if there was none */
};

struct st_backend {
    const struct st_backend_ops *ops;
};

/* Called while loading: what is done now and the finished part, 0 to 1. */
typedef void st_backend_progress(void *user, const char *what, double part);

struct st_backend_ops {
    /* Once, in the engine thread, before anything else: what texts need. */
    enum strata_result (*open)(struct st_backend *b, struct strata_error *err);
    /* In the engine thread, after open or unload: what answers need. After a failure it may be called again. */
    enum strata_result (*load)(struct st_backend *b, st_backend_progress *progress, void *user,
                               struct strata_error *err);
    /* In the engine thread while no answer is under way: writes conversations that are to outlive the engine, as far as there is a
     * place for them, and gives the memory of all devices back, after a failure too. *report (NULL stays NULL where nothing was
     * loaded): {"conversations": {"files", "bytes"}, "freed": [{"name", "bytes", "driver_bytes"}]}, a new reference. */
    enum strata_result (*unload)(struct st_backend *b, json_t **report, struct strata_error *err);
    /* In the engine thread: the next load leaves so many bytes of each device free, 0: as at the start. May be NULL: that cannot be
     * chosen. */
    void (*reserve)(struct st_backend *b, uint64_t bytes);
    void (*free)(struct st_backend *b);

    /* From any thread after open. Results as in strata.h, freed with the C library's free. */
    void (*info)(const struct st_backend *b, struct st_backend_info *out);
    enum strata_result (*tokenize)(const struct st_backend *b, const char *text, size_t size, bool special,
                                   int32_t **ids, size_t *count, struct strata_error *err);
    enum strata_result (*detokenize)(const struct st_backend *b, const int32_t *ids, size_t count, bool special,
                                     char **text, size_t *size, struct strata_error *err);
    enum strata_result (*chat_prompt)(const struct st_backend *b, const char *messages, const char *options,
                                      int32_t **ids, size_t *count, char **text, struct strata_error *err);
    enum strata_result (*constrain)(const struct st_backend *b, const struct strata_constraint_options *options,
                                    struct strata_constraint **out, struct strata_error *err);
    /* From any thread after load. Devices and memory for /v1/status: {"devices": [{"name", "description", "memory": [{"kind", "bytes"}],
     * "total_bytes"}]}. A new reference. */
    json_t *(*status)(const struct st_backend *b);

    /* In the engine thread: takes a request up; fewer than info's parallel are under way. Slots keep their last conversations;
     * what the chosen one shares with the prompt is not read again; the first STRATA_EVENT_PROMPT comes before anything is read
     * and says how much that is. The request's event callback ends the answer by returning false. No callback is called from
     * here. After a failure nothing has begun and done is not called. */
    enum strata_result (*start)(struct st_backend *b, struct st_backend_run *run, struct strata_error *err);
    /* In the engine thread, while something is under way: does a piece of work for all answers (a token or a few of each, or a
     * part of a prompt), calls their event callbacks, and done of those that ended. It may sleep until there is something to
     * do or wake is called. A failure of everything reaches every answer through its done. */
    void (*step)(struct st_backend *b);
    /* In the engine thread: the answer is to end soon, as if its event callback had returned false. */
    void (*cancel)(struct st_backend *b, struct st_backend_run *run);
    /* From any thread, at any time: a step that sleeps returns soon. */
    void (*wake)(struct st_backend *b);

    /* In the engine thread, where info says keeps_slots: writes what a slot holds into a file of that name, makes it what the
     * file holds, or empties it. */
    enum strata_result (*slot)(struct st_backend *b, uint32_t slot, enum st_slot_action action, const char *file,
                               struct st_slot_result *out, struct strata_error *err);
    /* In the engine thread: writes what a slot holds, in which no answer is under way, to where the next engine finds it, as unload
     * does. May be NULL. */
    enum strata_result (*save)(struct st_backend *b, uint32_t slot, struct strata_error *err);
    /* From any thread: how a backend is that may fail and recover while it is loaded. May be NULL: it always is well. */
    void (*health)(const struct st_backend *b, struct st_backend_health *out);
};

#endif
