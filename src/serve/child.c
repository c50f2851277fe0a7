/* The engine's process: see child.h. One thread computes; another one reads what the server's process sends, so that a cancel
 * reaches a pass that is under way and the end of the other process is noticed whatever this one does. */
#include "serve/child.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "serve/job.h"
#include "serve/wire.h"

enum { STATUS_SECONDS = 1, ALIVE_SECONDS = 1 };

struct answer {
    struct answer *next;
    struct child *child;
    struct st_wire_message *start; /* its number and the request's memory */
    struct strata_request request;
    struct strata_constraint *constraint; /* or NULL */
    struct st_backend_run run;
    bool cancelled;
};

struct slot {
    bool changed; /* since it was saved */
    double saved; /* when */
};

struct child {
    struct st_backend *backend;
    struct st_child_options options;
    struct answer *answers; /* under way */
    struct slot *slots;     /* [parallel] */
    uint32_t parallel;
    double sent, told; /* when the last message and the last status went out */
    bool closing;

    pthread_mutex_t lock;
    pthread_cond_t wake;
    /* under lock */
    struct st_wire_message *first, **end; /* what was received */
    bool gone;                            /* the other end is */
};

static void send_message(struct child *c, const struct st_wire_message *m)
{
    struct strata_error err;
    c->sent = st_now();
    if (st_wire_send(ST_CHILD_FD, m, &err)) {
        pthread_mutex_lock(&c->lock);
        c->gone = true;
        pthread_mutex_unlock(&c->lock);
    }
}

static void send_kind(struct child *c, enum st_wire_kind kind)
{
    send_message(c, &(struct st_wire_message){.kind = kind});
}

static void send_status(struct child *c, enum st_wire_kind kind)
{
    struct st_backend_info info;
    json_t *value = c->backend->ops->status(c->backend);
    char *text = value ? json_dumps(value, JSON_COMPACT) : NULL;
    struct st_wire_message m = {.kind = kind};
    if (kind == ST_WIRE_READY) {
        c->backend->ops->info(c->backend, &info);
        m.ready.context = info.context;
        m.ready.parallel = info.parallel;
        m.ready.status = text ? text : "{}";
    } else {
        m.status = text ? text : "{}";
    }
    c->told = st_now();
    send_message(c, &m);
    free(text);
    json_decref(value);
}

/* ---- what comes from the other end ---- */

static void *read_main(void *arg)
{
    struct child *c = arg;
    struct st_wire_input in = {0};
    struct strata_error err;
    struct st_wire_message *m;
    enum strata_result r = STRATA_OK;
    while (!r && !(r = st_wire_receive(ST_CHILD_FD, &in, &err)))
        while (!(r = st_wire_next(&in, &m, &err)) && m) {
            pthread_mutex_lock(&c->lock);
            *c->end = m;
            c->end = &m->next;
            pthread_cond_signal(&c->wake);
            pthread_mutex_unlock(&c->lock);
            c->backend->ops->wake(c->backend);
        }
    st_wire_input_free(&in);
    pthread_mutex_lock(&c->lock);
    bool expected = c->gone;
    c->gone = true;
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->lock);
    if (!expected && c->options.orphaned)
        c->options.orphaned();
    c->backend->ops->wake(c->backend);
    return NULL;
}

/* ---- answers ---- */

static bool on_event(void *user, const struct strata_event *e)
{
    struct answer *a = user;
    send_message(a->child, &(struct st_wire_message){.kind = ST_WIRE_EVENT, .number = a->start->number,
                                                     .event = {.slot = a->run.slot, .event = *e}});
    return !a->cancelled;
}

static void send_done(struct child *c, uint64_t number, enum strata_result result, const struct strata_error *err,
                      const struct strata_stats *stats)
{
    send_message(c, &(struct st_wire_message){.kind = ST_WIRE_DONE, .number = number,
                                              .done = {.result = result, .text = result ? err->text : "", .stats = *stats}});
}

static void free_answer(struct answer *a)
{
    strata_constraint_free(a->constraint);
    st_wire_drop(a->start);
    free(a);
}

static void on_done(void *user, enum strata_result result, const struct strata_error *err)
{
    struct answer *a = user;
    struct child *c = a->child;
    struct answer **at = &c->answers;
    while (*at != a)
        at = &(*at)->next;
    *at = a->next;
    if (a->run.slot >= 0 && (uint32_t)a->run.slot < c->parallel)
        c->slots[a->run.slot].changed = true;
    send_status(c, ST_WIRE_STATUS); /* first, so that who has the answer finds it in what the status counts */
    send_done(c, a->start->number, result, err, &a->run.stats);
    free_answer(a);
}

static void start(struct child *c, struct st_wire_message *m)
{
    struct strata_error err = {0};
    struct answer *a = calloc(1, sizeof *a);
    if (!a) {
        st_fail(&err, STRATA_E_MEMORY, "no memory for an answer");
        send_done(c, m->number, err.code, &err, &(struct strata_stats){0});
        st_wire_drop(m);
        return;
    }
    a->child = c;
    a->start = m;
    a->request = m->request;
    a->request.event = on_event;
    a->request.user = a;
    a->run = (struct st_backend_run){.request = &a->request, .slot = -1, .done = on_done, .user = a};
    enum strata_result r = STRATA_OK;
    if (m->constrained)
        r = c->backend->ops->constrain(c->backend, &m->constraint, &a->constraint, &err);
    a->request.constraint = a->constraint;
    if (!r)
        r = c->backend->ops->start(c->backend, &a->run, &err);
    if (r) {
        send_done(c, m->number, r, &err, &a->run.stats);
        free_answer(a);
        return;
    }
    a->next = c->answers;
    c->answers = a;
}

static void cancel(struct child *c, uint64_t number)
{
    for (struct answer *a = c->answers; a; a = a->next)
        if (a->start->number == number) {
            a->cancelled = true;
            c->backend->ops->cancel(c->backend, &a->run);
            return;
        }
}

static void slot(struct child *c, const struct st_wire_message *m)
{
    struct strata_error err = {0};
    struct st_wire_message reply = {.kind = ST_WIRE_SLOT_DONE, .number = m->number};
    reply.slot_done.result = c->backend->ops->slot(c->backend, m->slot.number, m->slot.action, m->slot.file,
                                                   &reply.slot_done.slot, &err);
    reply.slot_done.text = err.text;
    send_message(c, &reply);
}

/* ---- the end, and what outlives it ---- */

static void close_engine(struct child *c)
{
    struct strata_error err = {0};
    json_t *report = NULL;
    enum strata_result r = c->backend->ops->unload(c->backend, &report, &err);
    char *text = report ? json_dumps(report, JSON_COMPACT) : NULL;
    pthread_mutex_lock(&c->lock);
    c->gone = true; /* nothing more is expected */
    pthread_mutex_unlock(&c->lock);
    send_message(c, &(struct st_wire_message){.kind = ST_WIRE_CLOSED,
                                              .closed = {.result = r, .text = err.text, .report = text ? text : "{}"}});
    free(text);
    json_decref(report);
}

static bool slot_busy(const struct child *c, uint32_t k)
{
    const struct answer *a = c->answers;
    while (a && a->run.slot != (int)k)
        a = a->next;
    return a != NULL;
}

/* Saves slots that changed and whose time has come. Returns the seconds until the next one, below 0: none. */
static double save_slots(struct child *c)
{
    double next = -1;
    for (uint32_t k = 0; k < c->parallel; k++) {
        struct slot *s = &c->slots[k];
        if (!c->backend->ops->save || !s->changed || slot_busy(c, k))
            continue;
        double left = s->saved + c->options.save_seconds - st_now();
        if (left > 0) {
            next = next < 0 || left < next ? left : next;
            continue;
        }
        struct strata_error err;
        c->backend->ops->save(c->backend, k, &err); /* a failure is in the backend's status */
        s->changed = false;
        s->saved = st_now();
        send_status(c, ST_WIRE_STATUS);
    }
    return next;
}

/* ---- the loop ---- */

static void take(struct child *c, struct st_wire_message *m)
{
    switch (m->kind) {
    case ST_WIRE_START: start(c, m); return; /* it keeps the message */
    case ST_WIRE_CANCEL: cancel(c, m->number); break;
    case ST_WIRE_SLOT: slot(c, m); break;
    case ST_WIRE_CLOSE: c->closing = true; break;
    default: break; /* not for this end */
    }
    st_wire_drop(m);
}

/* Sleeps until there is a message, at most so many seconds (below 0: any). */
static void wait_for_message(struct child *c, double seconds)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    double until = (double)t.tv_nsec * 1e-9 + seconds;
    t.tv_sec += (time_t)until;
    t.tv_nsec = (long)((until - (double)(time_t)until) * 1e9);
    pthread_mutex_lock(&c->lock);
    while (!c->first && !c->gone)
        if (seconds < 0)
            pthread_cond_wait(&c->wake, &c->lock);
        else if (pthread_cond_timedwait(&c->wake, &c->lock, &t) == ETIMEDOUT)
            break;
    pthread_mutex_unlock(&c->lock);
}

static void compute(struct child *c)
{
    for (;;) {
        double save = save_slots(c); /* before the next answer takes the place */
        pthread_mutex_lock(&c->lock);
        struct st_wire_message *m = c->first, *next;
        bool gone = c->gone;
        c->first = NULL;
        c->end = &c->first;
        pthread_mutex_unlock(&c->lock);
        for (; m; m = next) {
            next = m->next;
            take(c, m);
        }
        if (gone && !c->answers)
            return;
        for (struct answer *a = c->answers; gone && a; a = a->next)
            a->cancelled = true;
        if (c->answers) {
            c->backend->ops->step(c->backend);
            if (st_now() - c->told >= STATUS_SECONDS)
                send_status(c, ST_WIRE_STATUS);
            else if (st_now() - c->sent >= ALIVE_SECONDS)
                send_kind(c, ST_WIRE_ALIVE);
        } else if (c->closing) {
            close_engine(c);
            return;
        } else {
            wait_for_message(c, save);
        }
    }
}

static void on_progress(void *user, const char *what, double part)
{
    send_message(user, &(struct st_wire_message){.kind = ST_WIRE_LOADING, .loading = {.part = part, .what = what}});
}

static enum strata_result load(struct child *c, struct strata_error *err)
{
    struct st_backend_info info;
    enum strata_result r = c->backend->ops->open(c->backend, err);
    if (!r)
        r = c->backend->ops->load(c->backend, on_progress, c, err);
    if (r)
        return r;
    c->backend->ops->info(c->backend, &info);
    c->parallel = info.parallel;
    c->slots = calloc(info.parallel, sizeof *c->slots);
    return c->slots ? STRATA_OK : st_fail(err, STRATA_E_MEMORY, "no memory for %u slots", info.parallel);
}

enum strata_result st_child_run(struct st_backend *backend, const struct st_child_options *options, struct strata_error *err)
{
    struct child c = {.backend = backend, .options = *options};
    pthread_condattr_t monotonic;
    pthread_t reader;
    c.end = &c.first;
    pthread_mutex_init(&c.lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&c.wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    enum strata_result r = STRATA_OK;
    bool reading = pthread_create(&reader, NULL, read_main, &c) == 0;
    r = reading ? load(&c, err) : st_fail(err, STRATA_E_MEMORY, "no thread could be started");
    if (r) {
        send_message(&c, &(struct st_wire_message){.kind = ST_WIRE_FAILED, .done = {.result = r, .text = err->text}});
        r = STRATA_OK; /* it is the other end's to report */
    } else {
        send_status(&c, ST_WIRE_READY);
        compute(&c);
    }
    pthread_mutex_lock(&c.lock);
    c.gone = true;
    pthread_mutex_unlock(&c.lock);
    if (reading) {
        shutdown(ST_CHILD_FD, SHUT_RD);
        pthread_join(reader, NULL);
    }
    for (struct st_wire_message *m = c.first, *next; m; m = next) {
        next = m->next;
        st_wire_drop(m);
    }
    backend->ops->free(backend);
    free(c.slots);
    pthread_mutex_destroy(&c.lock);
    pthread_cond_destroy(&c.wake);
    return r;
}
