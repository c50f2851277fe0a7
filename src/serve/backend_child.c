/* The backend in another process: see backend_child.h. Two threads: the keeper starts the process, listens to it and ends it; the
 * engine thread of the server asks for answers and hands on what has come. Only the engine thread sends. */
#include "serve/backend_child.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "serve/job.h"
#include "serve/process.h"

enum {
    MOST_FAILURES = 5, /* in a row, before requests are refused; it is still tried again then */
    LONGEST_PAUSE = 30,
    EXIT_SECONDS = 20, /* between the last message and the end of a process that was asked to end */
    CRASH_SECONDS = 2, /* likewise of one that closed its socket unasked */
};

enum state { DOWN, STARTING, UP };

/* An answer that is asked for. */
struct entry {
    struct entry *next;
    struct st_backend_run *run;
    uint64_t number, generation; /* of the process that has it, 0: none yet */
    bool cancelled;
};

struct front {
    struct st_backend base;
    struct st_backend *local;
    struct st_backend_child_options options;
    pthread_t keeper;
    bool keeping; /* the keeper runs */
    int wake_fd;  /* an eventfd that makes it look around */
    struct st_process process; /* the keeper's */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* whatever is below; for all that wait */
    enum state state;
    bool wanted, stopping;
    bool one_try;                   /* load waits: a process that fails is not started again */
    uint64_t generation, dead;      /* processes that were started, and the last one that has ended */
    int fd;                         /* of the one that is there, -1: none, or it is being ended */
    bool sending;                   /* the engine thread uses fd */
    bool closing;                   /* it was asked to end */
    size_t owed;                    /* answers and replies that are expected from it */
    double sign;                    /* when it last showed one of life, or something was asked of it */
    bool news;                      /* for the engine thread: there is something in the inbox, or the state has changed */
    struct st_wire_message *first, **end, *reply; /* the inbox, in order of arrival; a reply waits apart */
    char what[96];                  /* while loading */
    double part;
    uint32_t context, parallel; /* 0: not known yet */
    json_t *status;
    pid_t pid;
    uint64_t restarts;
    unsigned failures;       /* in a row, without an answer that succeeded */
    double retry;            /* not before */
    enum strata_result code; /* of the last failure, with: */
    char why[900];           /* what is known of it, "" if there was none */
    double failed_at;

    uint64_t reserve; /* of the next process, 0: as argv says */

    /* of the engine thread */
    struct entry *entries, **entries_end;
    uint64_t numbers;
};

static void look_around(struct front *f)
{
    uint64_t one = 1;
    ssize_t n = write(f->wake_fd, &one, sizeof one);
    (void)n; /* it only fails when the counter is full, and then the keeper is awake */
}

static void note(struct front *f)
{
    f->news = true;
    pthread_cond_broadcast(&f->changed);
}

static void wait_changed(struct front *f, double seconds)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    double until = (double)t.tv_nsec * 1e-9 + seconds;
    t.tv_sec += (time_t)until;
    t.tv_nsec = (long)((until - (double)(time_t)until) * 1e9);
    pthread_cond_timedwait(&f->changed, &f->lock, &t);
}

/* ---- the keeper ---- */

static void free_messages(struct st_wire_message *m)
{
    for (struct st_wire_message *next; m; m = next) {
        next = m->next;
        st_wire_drop(m);
    }
}

static void take_status(struct front *f, const char *text)
{
    json_t *value = json_loads(text, 0, NULL);
    if (!json_is_object(value)) {
        json_decref(value);
        return;
    }
    json_decref(f->status);
    f->status = value;
}

/* Under lock. True: the message is kept. */
static bool take_message(struct front *f, struct st_wire_message *m)
{
    f->sign = st_now();
    switch (m->kind) {
    case ST_WIRE_LOADING:
        f->part = m->loading.part >= 0 && m->loading.part <= 1 ? m->loading.part : 0;
        snprintf(f->what, sizeof f->what, "%s", m->loading.what);
        break;
    case ST_WIRE_READY:
        f->context = m->ready.context;
        f->parallel = m->ready.parallel;
        take_status(f, m->ready.status);
        f->state = UP;
        f->process.last_line[0] = 0; /* what it says while it loads explains no later end */
        break;
    case ST_WIRE_FAILED:
        f->code = m->done.result ? m->done.result : STRATA_E_DEVICE;
        snprintf(f->why, sizeof f->why, "%s", m->done.text);
        break;
    case ST_WIRE_STATUS: take_status(f, m->status); break;
    case ST_WIRE_EVENT:
    case ST_WIRE_DONE:
        f->owed -= m->kind == ST_WIRE_DONE && f->owed;
        if (m->kind == ST_WIRE_DONE && m->done.result == STRATA_OK)
            f->failures = 0;
        *f->end = m;
        f->end = &m->next;
        f->news = true;
        return true;
    case ST_WIRE_SLOT_DONE:
    case ST_WIRE_CLOSED:
        f->owed -= f->owed > 0;
        st_wire_drop(f->reply);
        f->reply = m;
        pthread_cond_broadcast(&f->changed);
        return true;
    default: return false;
    }
    note(f);
    return false;
}

/* Everything that has come; false with a reason when it is not what such a process sends. */
static bool take_messages(struct front *f, struct strata_error *err)
{
    struct st_wire_message *m;
    enum strata_result r;
    pthread_mutex_lock(&f->lock);
    while (!(r = st_wire_next(&f->process.in, &m, err)) && m)
        if (!take_message(f, m))
            st_wire_drop(m);
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    return r == STRATA_OK;
}

/* Milliseconds until the process has been silent for too long, 0: it has; -1: nothing is expected of it. */
static int silence_left(struct front *f)
{
    pthread_mutex_lock(&f->lock);
    bool loading = f->state == STARTING, expected = loading || f->owed;
    double left = f->sign + f->options.silent_seconds - st_now();
    /* Loading and writing conversations take as long as disks need. */
    if (expected && (loading || f->closing) && left <= 0 && st_process_works(&f->process)) {
        f->sign = st_now();
        left = f->options.silent_seconds;
    }
    pthread_mutex_unlock(&f->lock);
    return !expected ? -1 : left <= 0 ? 0 : left > 1000 ? 1000 : 1 + (int)(1000 * left);
}

/* Listens until the process ends or has to be ended: then reason says why, or is empty. */
static void attend(struct front *f, char *reason, size_t size)
{
    struct st_process *p = &f->process;
    struct strata_error err;
    *reason = 0;
    for (;;) {
        int left = silence_left(f);
        if (!left) {
            snprintf(reason, size, "the engine showed no sign of life for %g seconds", f->options.silent_seconds);
            return;
        }
        struct pollfd on[3] = {{p->fd, POLLIN, 0}, {f->wake_fd, POLLIN, 0}, {p->err_fd, POLLIN, 0}};
        if (poll(on, 3, left) < 0 && errno != EINTR)
            continue;
        if (on[1].revents) {
            uint64_t count;
            ssize_t n = read(f->wake_fd, &count, sizeof count);
            (void)n;
            pthread_mutex_lock(&f->lock);
            bool stopping = f->stopping;
            pthread_mutex_unlock(&f->lock);
            if (stopping)
                return;
        }
        if (on[2].revents)
            st_process_read_lines(p, f->options.log, f->options.log_user);
        if (on[0].revents) {
            if (st_wire_receive(p->fd, &p->in, &err))
                return;
            st_process_read_lines(p, f->options.log, f->options.log_user); /* what it wrote before it sent that */
            if (!take_messages(f, &err)) {
                snprintf(reason, size, "the engine's process sent %.200s", err.text);
                return;
            }
        }
    }
}

/* The process is no longer used: nobody sends any more, and what it owes will not come. */
static bool disconnect(struct front *f)
{
    pthread_mutex_lock(&f->lock);
    shutdown(f->fd, SHUT_RDWR); /* ends a send that waits */
    while (f->sending)
        pthread_cond_wait(&f->changed, &f->lock);
    f->fd = -1;
    bool closed = f->closing && f->reply && f->reply->kind == ST_WIRE_CLOSED;
    pthread_mutex_unlock(&f->lock);
    return closed;
}

static double pause_after(unsigned failures)
{
    double pause = 0.1;
    for (unsigned i = 1; i < failures && pause < LONGEST_PAUSE; i++)
        pause *= 2;
    return pause < LONGEST_PAUSE ? pause : LONGEST_PAUSE;
}

/* Under lock. */
static void note_failure(struct front *f, const char *why)
{
    f->failures++;
    f->failed_at = st_now();
    f->retry = f->failed_at + pause_after(f->failures);
    snprintf(f->why, sizeof f->why, "%s", why);
    if (f->one_try || f->closing)
        f->wanted = false;
}

static void end_process(struct front *f, const char *reason)
{
    char how[700], why[900];
    bool told = false;
    pthread_mutex_lock(&f->lock);
    bool stopping = f->stopping, loading = f->state == STARTING;
    told = loading && f->code; /* it said itself why it could not load */
    snprintf(why, sizeof why, "%s", f->why);
    pthread_mutex_unlock(&f->lock);
    bool closed = disconnect(f);
    double patience = *reason || stopping ? 0 : closed || told ? EXIT_SECONDS : CRASH_SECONDS;
    st_process_end(&f->process, patience, f->options.log, f->options.log_user, how, sizeof how);
    if (!told)
        snprintf(why, sizeof why, "%.240s: %.640s",
                 *reason  ? reason
                 : loading ? "the engine's process ended while the model was loaded"
                           : "the engine's process ended",
                 how);
    pthread_mutex_lock(&f->lock);
    f->state = DOWN;
    f->dead = f->generation;
    f->pid = 0;
    f->owed = 0;
    bool asked = closed || stopping || (f->closing && loading), reported = asked || f->one_try;
    if (asked) {
        f->wanted = false;
    } else {
        f->code = told ? f->code : STRATA_E_DEVICE;
        note_failure(f, why);
    }
    f->closing = false;
    note(f);
    pthread_mutex_unlock(&f->lock);
    if (!reported && f->options.log)
        f->options.log(f->options.log_user, why);
}

/* Starts a process with the arguments of the options and what was asked for since. */
static enum strata_result start_process(struct front *f, struct strata_error *err)
{
    char reserve[32];
    size_t n = 0;
    while (f->options.argv[n])
        n++;
    char **argv = calloc(n + 3, sizeof *argv);
    if (!argv)
        return st_fail(err, STRATA_E_MEMORY, "no memory for the arguments of the engine's process");
    memcpy(argv, f->options.argv, n * sizeof *argv);
    pthread_mutex_lock(&f->lock);
    snprintf(reserve, sizeof reserve, "%llu", (unsigned long long)f->reserve);
    if (f->reserve) {
        argv[n] = (char *)f->options.reserve;
        argv[n + 1] = reserve;
    }
    pthread_mutex_unlock(&f->lock);
    enum strata_result r = st_process_start(f->options.program, argv, &f->process, err);
    free(argv);
    return r;
}

static void run_process(struct front *f)
{
    struct strata_error err;
    char reason[240];
    enum strata_result r = start_process(f, &err);
    pthread_mutex_lock(&f->lock);
    f->generation++;
    f->code = r;
    if (r) {
        f->dead = f->generation;
        note_failure(f, err.text);
        note(f);
        pthread_mutex_unlock(&f->lock);
        return;
    }
    f->state = STARTING;
    f->restarts += f->generation > 1 && !f->one_try;
    f->pid = f->process.pid;
    f->fd = f->process.fd;
    f->sign = st_now();
    f->part = 0;
    snprintf(f->what, sizeof f->what, "starting the engine");
    note(f);
    pthread_mutex_unlock(&f->lock);
    attend(f, reason, sizeof reason);
    end_process(f, reason);
}

static void *keep_main(void *arg)
{
    struct front *f = arg;
    pthread_mutex_lock(&f->lock);
    while (!f->stopping) {
        double left = f->retry - st_now();
        if (!f->wanted) {
            pthread_cond_wait(&f->changed, &f->lock);
        } else if (left > 0 && !f->one_try) {
            wait_changed(f, left);
        } else {
            pthread_mutex_unlock(&f->lock);
            run_process(f);
            pthread_mutex_lock(&f->lock);
        }
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

/* ---- sending, in the engine thread ---- */

/* Sends to the process that is up; owes: it then owes an answer or reply. *generation: which one it was, 0: none is up. A failure to
 * send is the end of that process, which the keeper sees too. */
static void send_to(struct front *f, const struct st_wire_message *m, bool owes, uint64_t *generation)
{
    pthread_mutex_lock(&f->lock);
    int fd = f->state == UP ? f->fd : -1;
    *generation = fd >= 0 ? f->generation : 0;
    if (fd < 0) {
        pthread_mutex_unlock(&f->lock);
        return;
    }
    f->sending = true;
    if (owes && !f->owed++)
        f->sign = st_now();
    pthread_mutex_unlock(&f->lock);
    struct strata_error err;
    enum strata_result r = st_wire_send(fd, m, &err);
    if (r == STRATA_E_MEMORY)
        shutdown(fd, SHUT_RDWR); /* nothing less would keep both ends of one mind */
    pthread_mutex_lock(&f->lock);
    f->sending = false;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    look_around(f);
}

/* ---- answers, in the engine thread ---- */

static enum strata_result front_start(struct st_backend *b, struct st_backend_run *run, struct strata_error *err)
{
    struct front *f = (struct front *)b;
    struct entry *e = calloc(1, sizeof *e);
    if (!e)
        return st_fail(err, STRATA_E_MEMORY, "no memory for an answer");
    e->run = run;
    e->number = ++f->numbers;
    *f->entries_end = e;
    f->entries_end = &e->next;
    return STRATA_OK;
}

static void end_entry(struct front *f, struct entry *e, enum strata_result result, const char *text)
{
    struct strata_error err = {.code = result};
    snprintf(err.text, sizeof err.text, "%.499s", text);
    struct entry **at = &f->entries;
    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    if (f->entries_end == &e->next)
        f->entries_end = at;
    struct st_backend_run *run = e->run;
    free(e);
    run->done(run->user, result, &err);
}

static void front_cancel(struct st_backend *b, struct st_backend_run *run)
{
    struct front *f = (struct front *)b;
    uint64_t generation;
    for (struct entry *e = f->entries; e; e = e->next)
        if (e->run == run && !e->cancelled) {
            e->cancelled = true;
            if (e->generation)
                send_to(f, &(struct st_wire_message){.kind = ST_WIRE_CANCEL, .number = e->number}, false, &generation);
        }
}

static struct entry *find(struct front *f, uint64_t number)
{
    struct entry *e = f->entries;
    while (e && e->number != number)
        e = e->next;
    return e;
}

/* The process that is up is no longer believed: the keeper sees its socket end. */
static void condemn(struct front *f)
{
    pthread_mutex_lock(&f->lock);
    if (f->fd >= 0)
        shutdown(f->fd, SHUT_RDWR);
    pthread_mutex_unlock(&f->lock);
}

/* Whether every token that an event names is one. */
static bool tokens_known(struct front *f, const struct strata_event *e)
{
    struct st_backend_info info;
    f->local->ops->info(f->local, &info);
    bool known = e->token < (int64_t)info.vocabulary && e->logprob.token >= 0 && (uint32_t)e->logprob.token < info.vocabulary;
    for (size_t i = 0; i < e->top_count; i++)
        known = known && e->top[i].token >= 0 && (uint32_t)e->top[i].token < info.vocabulary;
    return known;
}

static void take_event(struct front *f, struct entry *e, struct strata_event *event, int slot)
{
    e->run->slot = slot;
    if (!tokens_known(f, event)) {
        condemn(f);
        return;
    }
    if (e->cancelled && event->kind != STRATA_EVENT_END)
        return;
    if (e->cancelled)
        event->end = STRATA_END_CANCELLED;
    if (!e->run->request->event(e->run->request->user, event))
        front_cancel(&f->base, e->run);
}

static void take_inbox(struct front *f, struct st_wire_message *m)
{
    for (struct st_wire_message *next; m; m = next) {
        next = m->next;
        struct entry *e = find(f, m->number);
        if (e && m->kind == ST_WIRE_EVENT) {
            take_event(f, e, &m->event.event, m->event.slot);
        } else if (e) {
            e->run->stats = m->done.stats;
            end_entry(f, e, m->done.result, m->done.text);
        }
        st_wire_drop(m);
    }
}

/* An answer that no process has yet, and that nobody wants any more. */
static void end_unwanted(struct front *f, struct entry *e)
{
    struct strata_event end = {.kind = STRATA_EVENT_END, .token = -1, .text = "", .end = STRATA_END_CANCELLED, .stop_index = -1};
    e->run->request->event(e->run->request->user, &end);
    end_entry(f, e, STRATA_OK, "");
}

static void send_entries(struct front *f)
{
    for (struct entry *e = f->entries, *next; e; e = next) {
        next = e->next;
        if (!e->generation && e->cancelled)
            end_unwanted(f, e);
        else if (!e->generation)
            send_to(f, &(struct st_wire_message){.kind = ST_WIRE_START, .number = e->number, .request = *e->run->request}, true,
                    &e->generation);
    }
}

static void front_step(struct st_backend *b)
{
    struct front *f = (struct front *)b;
    char text[1000];
    send_entries(f);
    pthread_mutex_lock(&f->lock);
    while (!f->news)
        pthread_cond_wait(&f->changed, &f->lock);
    f->news = false;
    struct st_wire_message *inbox = f->first;
    f->first = NULL;
    f->end = &f->first;
    uint64_t dead = f->dead;
    bool hopeless = f->state == DOWN && (!f->wanted || f->failures >= MOST_FAILURES);
    snprintf(text, sizeof text, "%s", f->why);
    pthread_mutex_unlock(&f->lock);
    take_inbox(f, inbox);
    for (struct entry *e = f->entries, *next; e; e = next) {
        next = e->next;
        if (e->generation ? e->generation <= dead : hopeless)
            end_entry(f, e, STRATA_E_DEVICE, text);
    }
}

static void front_wake(struct st_backend *b)
{
    struct front *f = (struct front *)b;
    pthread_mutex_lock(&f->lock);
    note(f);
    pthread_mutex_unlock(&f->lock);
}

/* ---- replies, in the engine thread ---- */

/* Sends and waits for the reply, whose owner is the caller. NULL: there is no process, or it has ended. */
static struct st_wire_message *ask(struct front *f, const struct st_wire_message *m, struct strata_error *err)
{
    uint64_t generation;
    pthread_mutex_lock(&f->lock);
    while (f->wanted && f->state != UP && f->failures < MOST_FAILURES)
        pthread_cond_wait(&f->changed, &f->lock);
    st_wire_drop(f->reply);
    f->reply = NULL;
    f->closing = m->kind == ST_WIRE_CLOSE && f->state == UP && f->fd >= 0;
    pthread_mutex_unlock(&f->lock);
    send_to(f, m, true, &generation);
    pthread_mutex_lock(&f->lock);
    while (generation && !f->reply && f->dead < generation)
        pthread_cond_wait(&f->changed, &f->lock);
    while (f->closing) /* until its memory is back */
        pthread_cond_wait(&f->changed, &f->lock);
    struct st_wire_message *reply = f->reply;
    f->reply = NULL;
    if (!reply)
        st_fail(err, STRATA_E_DEVICE, "%.480s", *f->why ? f->why : "the engine is not loaded");
    pthread_mutex_unlock(&f->lock);
    return reply;
}

static enum strata_result front_slot(struct st_backend *b, uint32_t slot, enum st_slot_action action, const char *file,
                                     struct st_slot_result *out, struct strata_error *err)
{
    struct front *f = (struct front *)b;
    struct st_wire_message *reply = ask(
        f, &(struct st_wire_message){.kind = ST_WIRE_SLOT, .number = ++f->numbers, .slot = {slot, action, file}}, err);
    if (!reply || reply->kind != ST_WIRE_SLOT_DONE) {
        st_wire_drop(reply);
        return STRATA_E_DEVICE;
    }
    *out = reply->slot_done.slot;
    enum strata_result r = reply->slot_done.result;
    if (r)
        st_fail(err, r, "%s", reply->slot_done.text);
    st_wire_drop(reply);
    return r;
}

static enum strata_result front_unload(struct st_backend *b, json_t **report, struct strata_error *err)
{
    struct front *f = (struct front *)b;
    pthread_mutex_lock(&f->lock);
    bool up = f->state == UP;
    if (f->state == STARTING) { /* it has nothing yet that could be lost */
        f->closing = true;
        if (f->fd >= 0)
            shutdown(f->fd, SHUT_RDWR);
    }
    while (f->closing)
        pthread_cond_wait(&f->changed, &f->lock);
    f->wanted = f->wanted && up;
    json_decref(f->status); /* of devices that are given back */
    f->status = NULL;
    note(f);
    pthread_mutex_unlock(&f->lock);
    if (!up)
        return STRATA_OK;
    struct st_wire_message *reply = ask(f, &(struct st_wire_message){.kind = ST_WIRE_CLOSE, .number = ++f->numbers}, err);
    if (!reply || reply->kind != ST_WIRE_CLOSED) {
        st_wire_drop(reply);
        return STRATA_E_DEVICE;
    }
    enum strata_result r = reply->closed.result;
    if (r)
        st_fail(err, r, "%s", reply->closed.text);
    if (report)
        *report = json_loads(reply->closed.report, 0, NULL);
    st_wire_drop(reply);
    return r;
}

/* ---- loading ---- */

static enum strata_result front_open(struct st_backend *b, struct strata_error *err)
{
    struct front *f = (struct front *)b;
    return f->local->ops->open(f->local, err);
}

static enum strata_result front_load(struct st_backend *b, st_backend_progress *progress, void *user, struct strata_error *err)
{
    struct front *f = (struct front *)b;
    if (!f->keeping && pthread_create(&f->keeper, NULL, keep_main, f))
        return st_fail(err, STRATA_E_MEMORY, "no thread could be started");
    f->keeping = true;
    pthread_mutex_lock(&f->lock);
    uint64_t before = f->generation;
    f->wanted = true;
    f->one_try = f->state == DOWN;
    if (f->one_try)
        snprintf(f->what, sizeof f->what, "starting the engine");
    note(f);
    while (f->state != UP && (f->dead <= before || f->state != DOWN)) {
        char what[sizeof f->what];
        double part = f->part;
        snprintf(what, sizeof what, "%s", f->what);
        pthread_mutex_unlock(&f->lock);
        progress(user, what, part);
        pthread_mutex_lock(&f->lock);
        if (f->state != UP && (f->dead <= before || f->state != DOWN))
            wait_changed(f, 1);
    }
    f->one_try = false;
    enum strata_result r = f->state == UP ? STRATA_OK : st_fail(err, f->code, "%.490s", f->why);
    pthread_mutex_unlock(&f->lock);
    return r;
}

static void front_reserve(struct st_backend *b, uint64_t bytes)
{
    struct front *f = (struct front *)b;
    pthread_mutex_lock(&f->lock);
    f->reserve = bytes;
    pthread_mutex_unlock(&f->lock);
}

static void front_free(struct st_backend *b)
{
    struct front *f = (struct front *)b;
    pthread_mutex_lock(&f->lock);
    f->stopping = true;
    note(f);
    pthread_mutex_unlock(&f->lock);
    if (f->wake_fd >= 0)
        look_around(f);
    if (f->keeping)
        pthread_join(f->keeper, NULL);
    free_messages(f->first);
    st_wire_drop(f->reply);
    json_decref(f->status);
    if (f->wake_fd >= 0)
        close(f->wake_fd);
    f->local->ops->free(f->local);
    pthread_mutex_destroy(&f->lock);
    pthread_cond_destroy(&f->changed);
    free(f);
}

/* ---- what is known ---- */

static void front_info(const struct st_backend *b, struct st_backend_info *out)
{
    struct front *f = (struct front *)b;
    f->local->ops->info(f->local, out);
    pthread_mutex_lock(&f->lock);
    out->context = f->context ? f->context : out->context;
    out->parallel = f->parallel ? f->parallel : out->parallel;
    pthread_mutex_unlock(&f->lock);
}

static enum strata_result front_tokenize(const struct st_backend *b, const char *text, size_t size, bool special,
                                         int32_t **ids, size_t *count, struct strata_error *err)
{
    const struct st_backend *local = ((const struct front *)b)->local;
    return local->ops->tokenize(local, text, size, special, ids, count, err);
}

static enum strata_result front_detokenize(const struct st_backend *b, const int32_t *ids, size_t count, bool special,
                                           char **text, size_t *size, struct strata_error *err)
{
    const struct st_backend *local = ((const struct front *)b)->local;
    return local->ops->detokenize(local, ids, count, special, text, size, err);
}

static enum strata_result front_prompt(const struct st_backend *b, const char *messages, const char *options,
                                       int32_t **ids, size_t *count, char **text, struct strata_error *err)
{
    const struct st_backend *local = ((const struct front *)b)->local;
    return local->ops->chat_prompt(local, messages, options, ids, count, text, err);
}

static enum strata_result front_constrain(const struct st_backend *b, const struct strata_constraint_options *options,
                                          struct strata_constraint **out, struct strata_error *err)
{
    const struct st_backend *local = ((const struct front *)b)->local;
    return local->ops->constrain(local, options, out, err);
}

static json_t *front_status(const struct st_backend *b)
{
    struct front *f = (struct front *)b;
    pthread_mutex_lock(&f->lock);
    json_t *out = f->status ? json_deep_copy(f->status) : json_pack("{s:[]}", "devices");
    json_t *process = json_pack(
        "{s:i, s:s, s:f, s:f, s:I, s:i, s:I, s:s}", "pid", (int)f->pid, "state",
        f->state == UP ? "up" : f->state == STARTING ? "starting" : "none", "watchdog_seconds", f->options.silent_seconds,
        "silent_seconds", f->owed || f->state == STARTING ? st_now() - f->sign : 0.0, "restarts", (json_int_t)f->restarts,
        "failures_in_a_row", (int)f->failures, "resident_bytes", (json_int_t)(f->pid ? st_process_resident(f->pid) : 0),
        "last_failure", f->failed_at > 0 ? f->why : "");
    if (f->failed_at > 0)
        json_object_set_new(process, "last_failure_seconds_ago", json_real(st_now() - f->failed_at));
    pthread_mutex_unlock(&f->lock);
    json_object_set_new(out, "process", process);
    return out;
}

static void front_health(const struct st_backend *b, struct st_backend_health *out)
{
    struct front *f = (struct front *)b;
    pthread_mutex_lock(&f->lock);
    *out = (struct st_backend_health){.starting = f->wanted && f->state != UP, .part = f->part,
                                      .failed = f->wanted && f->state != UP && f->failures >= MOST_FAILURES};
    snprintf(out->what, sizeof out->what, "%s", f->what);
    snprintf(out->why, sizeof out->why, "%s", f->failed_at > 0 ? f->why : "");
    pthread_mutex_unlock(&f->lock);
}

enum strata_result st_backend_child(struct st_backend *local, const struct st_backend_child_options *options,
                                    struct st_backend **out, struct strata_error *err)
{
    static const struct st_backend_ops ops = {
        .open = front_open,     .load = front_load,     .unload = front_unload, .free = front_free,
        .info = front_info,     .tokenize = front_tokenize, .detokenize = front_detokenize, .chat_prompt = front_prompt,
        .constrain = front_constrain,
        .status = front_status, .health = front_health, .start = front_start, .step = front_step,
        .cancel = front_cancel, .wake = front_wake,     .slot = front_slot,   .reserve = front_reserve};
    pthread_condattr_t monotonic;
    struct front *f = calloc(1, sizeof *f);
    if (!f) {
        local->ops->free(local);
        return st_fail(err, STRATA_E_MEMORY, "server: out of memory");
    }
    f->base.ops = &ops;
    f->local = local;
    f->options = *options;
    f->fd = -1;
    f->end = &f->first;
    f->entries_end = &f->entries;
    pthread_mutex_init(&f->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&f->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    f->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (f->wake_fd < 0) {
        front_free(&f->base);
        return st_fail(err, STRATA_E_IO, "server: the system has no event queue for it");
    }
    *out = &f->base;
    return STRATA_OK;
}
