/* The server's own state, shared by its source files. Event thread unless a comment says otherwise. */
#ifndef ST_SERVE_SERVER_H
#define ST_SERVE_SERVER_H

#include <pthread.h>

#include "serve/job.h"
#include "serve/metrics.h"
#include "serve/serve.h"
#include "serve/tls.h"

/* A thread that works through a list of jobs in order of arrival: work does a job, or takes it up, and step then goes on with
 * those that are under way. */
struct st_lane {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct st_job *first, *last;
    bool stop, started;
    struct st_server *server;
    void (*begin)(struct st_server *server); /* once, in the thread, before the first job; may be NULL */
    void (*work)(struct st_server *server, struct st_job *job);
    void (*step)(struct st_server *server); /* while jobs are under way */
    /* The thread's own: jobs that were taken up and have not ended, and how many there may be. */
    size_t under_way, most;
};

/* Fields begin, work and step are set, the others zero. */
enum strata_result st_lane_start(struct st_lane *lane, struct st_server *server, struct strata_error *err);
void st_lane_add(struct st_lane *lane, struct st_job *job);
/* As the next one: before all that wait. */
void st_lane_add_first(struct st_lane *lane, struct st_job *job);
/* Takes a job back that has not been begun; false if it has. */
bool st_lane_remove(struct st_lane *lane, struct st_job *job);
/* Ends the thread after the jobs under way; the rest of the list stays where it is. */
void st_lane_stop(struct st_lane *lane);

enum st_state { ST_LOADING, ST_READY, ST_FAILED, ST_UNLOADING, ST_UNLOADED };
#define ST_CUT_MESSAGE "the model is being unloaded; ask again, and it is loaded"

/* One finished request, for the page's list. */
struct st_past {
    uint64_t number;
    const char *route;
    int status;
    const char *finish;
    size_t prompt, reused, generated;
    double arrived, wait, seconds, read_seconds, generate_seconds;
};

enum { ST_PAST = 32, ST_RATE_SECONDS = 64 };

struct st_server {
    struct st_serve_options options;
    struct st_backend *backend;
    struct event_base *base;
    struct st_tls *tls; /* NULL: plain HTTP */
    struct st_http *http;
    struct event *outbox_event, *tick_event, *int_event, *term_event;
    struct event *hup_event; /* NULL without TLS */
    int wake_fd; /* eventfd, written when the outbox is no longer empty */
    struct st_lane prepare, engine;
    struct st_job *running; /* engine thread: answers under way, in the order in which they began */
    struct st_metrics metrics;
    double begun; /* monotonic */
    time_t begun_wall;
    uint64_t numbers;

    /* under lock: from any thread */
    pthread_mutex_t lock;
    struct st_job *outbox_first, *outbox_last;
    enum st_state state;
    bool open;  /* calls are taken: the model was there once, or is loaded when it is needed */
    bool fatal; /* the first load failed: the server ends with load_error */
    double load_part;
    char load_what[96];
    struct strata_error load_error;
    uint64_t loads, unloads;
    uint64_t reserve; /* bytes of each device that /v1/vram asked to stay free, 0: as at the start */
    struct strata_sampling sampling; /* defaults of requests; set before open */

    struct st_job *jobs, **jobs_end; /* in order of arrival */
    size_t job_count, answers;       /* all; those that take the engine */
    uint64_t places;                 /* given to jobs in the engine thread's list */
    double busy;                     /* when there last was a job */
    bool stopping;
    double stop_at;
    struct st_past past[ST_PAST];
    size_t past_count;
    /* tokens in each second, indexed by second modulo size */
    struct {
        long second;
        uint32_t read, generated;
    } rate[ST_RATE_SECONDS];
};

/* Wakes the event thread, from any. */
void st_server_wake(struct st_server *s);
/* Takes a job back from the engine thread's list if it is still there, with the answers that wait for it; it ends soon. False: it is
 * under way, or waits for the first answer of its request. */
bool st_server_withdraw(struct st_server *s, struct st_job *job);

/* load.c. In the engine thread, first: opens the model and loads it, unless that waits for a request. */
void st_server_load_first(struct st_server *s);
/* A job that is about to be queued and waits for all answers before it: counts them. */
void st_job_waits(struct st_job *job);
/* Deadlines of unloading, and unloading after idle time. */
void st_server_tick_load(struct st_server *s, double now);
/* Whether calls are taken now; false with the reason. answer: one that needs the engine. */
bool st_server_open(struct st_server *s, bool answer, struct st_api_error *error);

/* How the server is, with what its backend says of itself: one that starts again is loading, one that failed too often is failed,
 * although the model was loaded once. From any thread. */
struct st_condition {
    enum st_state state;
    bool open;    /* calls are taken; where the model is not loaded they wait for that */
    bool refuses; /* but answers are refused: the engine has failed too often in a row */
    uint64_t loads, unloads, reserve;
    double part;
    char what[96];
    char why[900]; /* what is known of the last failure */
};
/* "loading", "ready", "failed", "unloading", "unloaded" */
extern const char *const st_state_names[];
void st_server_condition(struct st_server *s, struct st_condition *out);
/* A copy of the state of loading, from any thread. what may be NULL. */
enum st_state st_server_state(struct st_server *s, double *part, char what[96]);
void st_server_log(struct st_server *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Error in the shape of the API that the path belongs to. Ends the exchange. */
void st_reply_error(struct st_server *s, struct st_exchange *x, const char *route, const struct st_api_error *error);
/* The body of an error. A new reference. */
json_t *st_error_json(bool anthropic, const struct st_api_error *error);
/* Counts and sends; value is taken over. */
void st_reply_json(struct st_server *s, struct st_exchange *x, const char *route, json_t *value);
void st_server_add_rate(struct st_server *s, size_t read, size_t generated);

/* routes.c: finds the route, checks who asks, answers or starts a job. */
void st_route(struct st_server *s, struct st_exchange *x);
/* Starts a job for a call that was read; takes the call over. */
void st_server_start(struct st_server *s, struct st_exchange *x, const char *route, struct st_call *call);

/* status.c */
void st_answer_health(struct st_server *s, struct st_exchange *x);
void st_answer_models(struct st_server *s, struct st_exchange *x);
void st_answer_props(struct st_server *s, struct st_exchange *x);
void st_answer_slots(struct st_server *s, struct st_exchange *x);
void st_answer_status(struct st_server *s, struct st_exchange *x);
void st_answer_metrics(struct st_server *s, struct st_exchange *x);

/* page.c: true if path is one of the page's files and was answered. */
bool st_answer_page(struct st_server *s, struct st_exchange *x);

#endif
