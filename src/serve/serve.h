/* The server: HTTP APIs and the page over one backend. */
#ifndef ST_SERVE_SERVE_H
#define ST_SERVE_SERVE_H

#include "serve/backend.h"

struct st_serve_options {
    const char *host;        /* address to bind, "127.0.0.1" */
    int port;                /* 0: any free one */
    const char *tls_cert, *tls_key; /* files of a certificate and its key; NULL, both: plain HTTP */
    const char *const *keys; /* API keys; none: open, with Host and Origin checked */
    size_t key_count;
    const char *const *origins; /* web pages of other origins that may call, or "*" */
    size_t origin_count;
    const char *const *names; /* host names under which clients reach this server, besides addresses and localhost */
    size_t name_count;
    const char *alias; /* model name to show, NULL: the backend's */
    size_t queue;      /* answers that may wait while others are computed; one more gets a 429 */
    int max_connections;
    size_t max_body;                 /* bytes */
    size_t max_pending;              /* unread bytes of a streamed answer before its client is cut off */
    int request_seconds;             /* to deliver a request */
    int answer_seconds;              /* longest time to compute one answer, 0: any */
    int keepalive_ms;                /* between signs of life in a stream */
    int idle_seconds;                /* without a request after which the model is unloaded, 0: never */
    bool load_on_demand;             /* the model is loaded when the first request comes */
    bool vram_elastic;               /* POST /v1/vram is allowed */
    struct strata_sampling sampling; /* defaults; values below 0: the model's. Only temperature to repetition penalty */
    bool log_requests, log_prompts;
    void (*log)(void *user, const char *line); /* from the event thread; line has no line break */
    void *log_user;
};

/* Loopback, port 8080, no key, a queue of 32, and limits that suit one person's machine. */
void st_serve_default(struct st_serve_options *options);

/* Serves until SIGINT or SIGTERM; with TLS, SIGHUP reads certificate and key again. Takes over the backend, which is loaded by its engine thread while the port already
 * answers, and frees it. */
enum strata_result st_serve(struct st_backend *backend, const struct st_serve_options *options,
                            struct strata_error *err);

#endif
