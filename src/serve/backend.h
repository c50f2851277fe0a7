/* What the server needs from whatever computes answers. The real one stands on the public API (backend_strata.c); the
 * tests have one that replays a script, so that the server can be tested without a model. */
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
    bool keeps_slots;                /* ops->slot works */
    struct strata_sampling sampling; /* where neither the request nor the server's options say otherwise */
};

struct st_slot_result {
    size_t tokens;  /* saved, restored or erased */
    uint64_t bytes; /* of the file */
};

struct st_backend {
    const struct st_backend_ops *ops;
};

/* Called while loading: what is done now and the finished part, 0 to 1. */
typedef void st_backend_progress(void *user, const char *what, double part);

struct st_backend_ops {
    /* Once, in the engine thread, before anything else. */
    enum strata_result (*load)(struct st_backend *b, st_backend_progress *progress, void *user,
                               struct strata_error *err);
    void (*free)(struct st_backend *b);

    /* From any thread after load. Results as in strata.h, freed with the C library's free. */
    void (*info)(const struct st_backend *b, struct st_backend_info *out);
    enum strata_result (*tokenize)(const struct st_backend *b, const char *text, size_t size, bool special,
                                   int32_t **ids, size_t *count, struct strata_error *err);
    enum strata_result (*detokenize)(const struct st_backend *b, const int32_t *ids, size_t count, bool special,
                                     char **text, size_t *size, struct strata_error *err);
    enum strata_result (*chat_prompt)(const struct st_backend *b, const char *messages, const char *options,
                                      int32_t **ids, size_t *count, char **text, struct strata_error *err);
    /* Devices and memory for /v1/status: {"devices": [{"name", "description", "memory": [{"kind", "bytes"}],
     * "total_bytes"}]}. A new reference. */
    json_t *(*status)(const struct st_backend *b);

    /* In the engine thread, one at a time. The session keeps the last conversation; what it shares with the prompt is
     * not read again; the first STRATA_EVENT_PROMPT comes before anything is read and says how much that is. The
     * request's event callback ends the answer by returning false. */
    enum strata_result (*generate)(struct st_backend *b, const struct strata_request *request,
                                   struct strata_stats *stats, struct strata_error *err);

    /* In the engine thread, where info says keeps_slots: writes the session into a file of that name, makes it what the file
     * holds, or empties it. *missing: there is no such file. */
    enum strata_result (*slot)(struct st_backend *b, enum st_slot_action action, const char *file,
                               struct st_slot_result *out, bool *missing, struct strata_error *err);
    /* After the last of these calls and before free, if load succeeded: writes what is to outlive the program. May be NULL. */
    enum strata_result (*keep)(struct st_backend *b, struct strata_error *err);
};

#endif
