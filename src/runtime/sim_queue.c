/* Queues of simulated devices: a thread each, commands in order, events between them, recorded graphs. Commands touch
 * the caller's memory when they run, not when they are given, so that a missing wait shows.
 *
 * Time: a device with a bandwidth or a link speed has a modelled clock per queue, advanced by each command's bytes and
 * carried by events; other devices have the real clock. */
#include "runtime/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum command_kind { COPY, FILL, LAUNCH, RECORD, WAIT, GRAPH, WAIT_VALUE, WRITE_VALUE };

struct command {
    struct command *next;
    enum command_kind kind;
    uint64_t to, from, size; /* addresses; size in bytes */
    bool crosses_link;       /* a copy from or to host memory, or to another device */
    uint32_t value;
    struct st_event *event;
    uint64_t number; /* of the event's record; LATEST in graphs */
    struct st_graph *graph;
    const struct st_function *function;
    uint32_t grid[3], launch; /* launch: its number on the device */
    union st_arg args[ST_MAX_ARGS];
};

#define LATEST UINT64_MAX

struct list {
    struct command *first, **end;
};

struct st_graph {
    struct st_rt_device *dev;
    struct list commands;
};

struct st_event {
    struct st_rt_device *dev;
    uint64_t wanted, done; /* numbers of the latest record given and passed */
    double time;           /* microseconds, of the record that was passed last */
};

struct st_queue {
    struct st_rt_device *dev;
    struct st_queue *next; /* of the device */
    pthread_t thread;
    struct list commands;
    uint64_t given, ended;
    bool stop, busy; /* busy: a command is being run */
    struct st_graph *capture;
    struct st_fibers *fibers;
    double time; /* modelled clock, microseconds */
};

static const double COPY_MICROSECONDS = 5.0;

/* ---- running commands ---- */

static void list_clear(struct list *list)
{
    while (list->first) {
        struct command *c = list->first;
        list->first = c->next;
        free(c);
    }
    list->end = &list->first;
}

static double real_microseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static bool modelled(const struct st_sim_spec *spec)
{
    return spec->bandwidth > 0 || spec->link > 0;
}

/* Modelled duration of a command, in microseconds. */
static double duration(const struct st_sim_spec *spec, const struct command *c)
{
    const double memory = spec->bandwidth > 0 ? spec->bandwidth : ST_SIM_BANDWIDTH;
    const double link = spec->link > 0 ? spec->link : ST_SIM_LINK;
    switch (c->kind) {
    case COPY:
        return c->crosses_link ? COPY_MICROSECONDS + (double)c->size / link * 1e6 : (double)c->size * 2 / memory * 1e6;
    case FILL: return (double)c->size / memory * 1e6;
    case LAUNCH:
        return (spec->launch > 0 ? spec->launch : ST_SIM_LAUNCH) + (double)st_gpu_bytes(c->function->kernel, c->grid, c->args) / memory * 1e6;
    default: return 0;
    }
}

static void run_launch(struct st_queue *q, const struct command *c)
{
    struct st_rt_device *dev = q->dev;
    struct strata_error err;
    enum strata_result r = STRATA_OK;
    if (c->launch == dev->spec->late)
        r = st_fail(&err, STRATA_E_DEVICE, "a fault was asked for");
    else if (!dev->rt->cpu || !st_gpu_reference(st_dot_table_avx2() ? st_dot_table_avx2() : st_dot_table_c(),
                                                c->function->kernel, c->grid, c->args)) {
        if (!q->fibers)
            r = st_fibers_create(dev->spec->lanes, &q->fibers, &err);
        if (r == STRATA_OK)
            r = st_fibers_run(q->fibers, c->function->host, c->function->desc->group[0], c->grid, c->args, &err);
    }
    if (r != STRATA_OK) {
        pthread_mutex_lock(&dev->rt->lock);
        st_sim_lose(dev, "kernel %s, grid %u x %u, failed on the device: %s", c->function->desc->name, c->grid[0],
                    c->grid[1], err.text);
        pthread_mutex_unlock(&dev->rt->lock);
    }
}

/* Waits under the lock until the queue must stop or the device is lost. */
static void hang(struct st_queue *q)
{
    while (!q->stop && !q->dev->is_lost)
        pthread_cond_wait(&q->dev->rt->moved, &q->dev->rt->lock);
}

static bool reached(st_addr address, uint32_t value)
{
    return (int32_t)(__atomic_load_n((const uint32_t *)(uintptr_t)address, __ATOMIC_ACQUIRE) - value) >= 0;
}

static bool lost(struct st_rt_device *dev)
{
    pthread_mutex_lock(&dev->rt->lock);
    bool is_lost = dev->is_lost;
    pthread_mutex_unlock(&dev->rt->lock);
    return is_lost;
}

static void run(struct st_queue *q, const struct command *c)
{
    struct st_rt_device *dev = q->dev;
    pthread_mutex_t *lock = &dev->rt->lock;
    if (dev->spec->slow && c->kind != GRAPH)
        usleep(dev->spec->slow);
    q->time += modelled(dev->spec) ? duration(dev->spec, c) : 0;
    switch (c->kind) {
    case COPY: memmove((void *)(uintptr_t)c->to, (const void *)(uintptr_t)c->from, c->size); break;
    case FILL: memset((void *)(uintptr_t)c->to, (int)c->value, c->size); break;
    case LAUNCH:
        if (c->launch && c->launch == dev->spec->stuck) {
            pthread_mutex_lock(lock);
            hang(q);
            pthread_mutex_unlock(lock);
        } else {
            run_launch(q, c);
        }
        break;
    case RECORD:
        pthread_mutex_lock(lock);
        if (c->number == LATEST)
            c->event->wanted++;
        c->event->done = c->number == LATEST ? c->event->wanted : c->number;
        c->event->time = modelled(dev->spec) ? q->time : real_microseconds();
        pthread_mutex_unlock(lock);
        break;
    case WAIT:
        pthread_mutex_lock(lock);
        while (!q->stop && !dev->is_lost && !c->event->dev->is_lost &&
               c->event->done < (c->number == LATEST ? c->event->wanted : c->number))
            pthread_cond_wait(&dev->rt->moved, lock);
        if (modelled(dev->spec) && c->event->time > q->time)
            q->time = c->event->time;
        pthread_mutex_unlock(lock);
        break;
    case GRAPH:
        for (const struct command *g = c->graph->commands.first; g && !lost(dev); g = g->next)
            run(q, g);
        break;
    case WAIT_VALUE:
        pthread_mutex_lock(lock);
        while (!q->stop && !dev->is_lost && !reached(c->to, c->value)) {
            pthread_mutex_unlock(lock);
            usleep(20);
            pthread_mutex_lock(lock);
        }
        pthread_mutex_unlock(lock);
        break;
    case WRITE_VALUE: __atomic_store_n((uint32_t *)(uintptr_t)c->to, c->value, __ATOMIC_RELEASE); break;
    }
}

static void *queue_main(void *arg)
{
    struct st_queue *q = arg;
    struct st_rt_device *dev = q->dev;
    pthread_mutex_lock(&dev->rt->lock);
    while (!q->stop) {
        struct command *c = q->commands.first;
        if (!c) {
            pthread_cond_wait(&dev->rt->moved, &dev->rt->lock);
            continue;
        }
        q->commands.first = c->next;
        if (!c->next)
            q->commands.end = &q->commands.first;
        bool dead = dev->is_lost; /* a lost device runs nothing, but what was given counts as ended */
        q->busy = !dead;
        pthread_mutex_unlock(&dev->rt->lock);
        if (!dead)
            run(q, c);
        free(c);
        pthread_mutex_lock(&dev->rt->lock);
        q->busy = false;
        q->ended++;
        dev->progress++;
        pthread_cond_broadcast(&dev->rt->moved);
    }
    pthread_mutex_unlock(&dev->rt->lock);
    return NULL;
}

/* ---- giving commands ---- */

/* Takes the lock and checks that the device lives; without STRATA_OK the lock is not held. */
static enum strata_result enter(struct st_rt_device *dev, struct strata_error *err)
{
    pthread_mutex_lock(&dev->rt->lock);
    enum strata_result r = st_sim_alive(dev, err);
    if (r != STRATA_OK)
        pthread_mutex_unlock(&dev->rt->lock);
    return r;
}

/* Appends a copy of *c to the queue or to the graph that it records, and gives the lock back. */
static enum strata_result give(struct st_queue *q, const struct command *c, struct strata_error *err)
{
    struct command *copy = malloc(sizeof *copy);
    enum strata_result r = STRATA_OK;
    if (copy) {
        *copy = *c;
        copy->next = NULL;
        struct list *list = q->capture ? &q->capture->commands : &q->commands;
        *list->end = copy;
        list->end = &copy->next;
        if (!q->capture)
            q->given++;
        pthread_cond_broadcast(&q->dev->rt->moved);
    } else {
        r = st_fail(err, STRATA_E_MEMORY, "%s: no memory for a command", q->dev->name);
    }
    pthread_mutex_unlock(&q->dev->rt->lock);
    return r;
}

static enum strata_result refuse(struct st_rt_device *dev, struct strata_error *err, const char *what)
{
    pthread_mutex_unlock(&dev->rt->lock);
    return st_fail(err, STRATA_E_DEVICE, "%s: %s", dev->name, what);
}

static enum strata_result copy_checked(struct st_queue *q, uint64_t to, uint64_t from, uint64_t size, bool to_host,
                                       bool from_host, struct strata_error *err)
{
    struct st_rt_device *dev = q->dev;
    enum strata_result r = enter(dev, err);
    if (r != STRATA_OK)
        return r;
    if (q->capture && (to_host || from_host))
        return refuse(dev, err, "a copy from or to host memory cannot be recorded");
    if ((!to_host && !st_sim_inside(dev, to, size)) || (!from_host && !st_sim_inside(dev, from, size)))
        return refuse(dev, err, "a copy outside the device's memory");
    return give(
        q, &(struct command){.kind = COPY, .to = to, .from = from, .size = size, .crosses_link = to_host || from_host},
        err);
}

enum strata_result st_sim_copy_in(struct st_queue *q, st_addr dst, const void *src, uint64_t size,
                                  struct strata_error *err)
{
    return copy_checked(q, dst, (uint64_t)(uintptr_t)src, size, false, true, err);
}

enum strata_result st_sim_copy_out(struct st_queue *q, void *dst, st_addr src, uint64_t size, struct strata_error *err)
{
    return copy_checked(q, (uint64_t)(uintptr_t)dst, src, size, true, false, err);
}

enum strata_result st_sim_copy(struct st_queue *q, st_addr dst, st_addr src, uint64_t size, struct strata_error *err)
{
    return copy_checked(q, dst, src, size, false, false, err);
}

enum strata_result st_sim_fill(struct st_queue *q, st_addr dst, uint8_t value, uint64_t size, struct strata_error *err)
{
    enum strata_result r = enter(q->dev, err);
    if (r != STRATA_OK)
        return r;
    if (!st_sim_inside(q->dev, dst, size))
        return refuse(q->dev, err, "a fill outside the device's memory");
    return give(q, &(struct command){.kind = FILL, .to = dst, .value = value, .size = size}, err);
}

enum strata_result st_sim_peer_copy(struct st_queue *q, struct st_rt_device *dst_dev, st_addr dst,
                                    struct st_rt_device *src_dev, st_addr src, uint64_t size, struct strata_error *err)
{
    enum strata_result r = enter(src_dev, err);
    if (r != STRATA_OK)
        return r;
    bool enabled = false;
    for (int i = 0; i < src_dev->n_peers; i++)
        enabled = enabled || src_dev->peers[i] == dst_dev;
    if (!enabled || q->dev != src_dev)
        return refuse(src_dev, err, "a copy to a device that is no peer");
    if (!st_sim_inside(src_dev, src, size) || !st_sim_inside(dst_dev, dst, size))
        return refuse(src_dev, err, "a copy outside the devices' memory");
    return give(q, &(struct command){.kind = COPY, .to = dst, .from = src, .size = size, .crosses_link = true}, err);
}

enum strata_result st_sim_launch(struct st_queue *q, struct st_function *function, const uint32_t grid[3],
                                 const union st_arg *args, struct strata_error *err)
{
    struct st_rt_device *dev = q->dev;
    const struct st_sim_spec *spec = dev->spec;
    enum strata_result r = enter(dev, err);
    if (r != STRATA_OK)
        return r;
    struct command c = {.kind = LAUNCH, .function = function, .grid = {grid[0], grid[1], grid[2]}};
    const char *name = function->desc->name;
    char what[160];
    if (function->dev != dev) {
        snprintf(what, sizeof what, "kernel %s was loaded on %s", name, function->dev->name);
        return refuse(dev, err, what);
    }
    if (grid[0] == 0 || grid[1] == 0 || grid[1] > 65535 || grid[2] != 1) {
        snprintf(what, sizeof what, "kernel %s: a grid of %u x %u x %u", name, grid[0], grid[1], grid[2]);
        return refuse(dev, err, what);
    }
    for (int i = 0; function->desc->args[i]; i++) {
        c.args[i] = args[i];
        if ((function->desc->args[i] == 'p' || function->desc->args[i] == 'c') && !st_sim_inside(dev, args[i].p, 1)) {
            snprintf(what, sizeof what, "kernel %s: argument %d is no memory of this device", name, i);
            return refuse(dev, err, what);
        }
    }
    c.launch = ++dev->launches;
    if (spec->refuse && c.launch == spec->refuse) {
        snprintf(what, sizeof what, "kernel %s, grid %u x %u: a refusal was asked for", name, grid[0], grid[1]);
        return refuse(dev, err, what);
    }
    if (spec->lost && c.launch == spec->lost) {
        st_sim_lose(dev, "kernel %s, grid %u x %u: the device was lost, as was asked for", name, grid[0], grid[1]);
        r = st_sim_alive(dev, err);
        pthread_mutex_unlock(&dev->rt->lock);
        return r;
    }
    return give(q, &c, err);
}

enum strata_result st_sim_wait_value(struct st_queue *q, st_addr address, uint32_t value, struct strata_error *err)
{
    enum strata_result r = enter(q->dev, err);
    if (r != STRATA_OK)
        return r;
    if (q->capture || !st_sim_inside(q->dev, address, 4))
        return refuse(q->dev, err, "a wait for a value that cannot be recorded or is outside the device's memory");
    return give(q, &(struct command){.kind = WAIT_VALUE, .to = address, .value = value}, err);
}

enum strata_result st_sim_write_value(struct st_queue *q, st_addr address, uint32_t value, struct strata_error *err)
{
    enum strata_result r = enter(q->dev, err);
    if (r != STRATA_OK)
        return r;
    if (q->capture || !st_sim_inside(q->dev, address, 4))
        return refuse(q->dev, err, "a write of a value that cannot be recorded or is outside the device's memory");
    return give(q, &(struct command){.kind = WRITE_VALUE, .to = address, .value = value}, err);
}

/* ---- waiting ---- */

/* A lost device runs nothing new; under the lock, waits for what it was running, which may still touch memory of the caller's. */
static void settle(struct st_rt_device *dev)
{
    struct st_queue *q = dev->is_lost ? dev->queues : NULL;
    while (q) {
        if (q->busy)
            pthread_cond_wait(&dev->rt->moved, &dev->rt->lock);
        q = q->busy ? q : q->next;
    }
}

/* enter for calls that wait. */
static enum strata_result enter_to_wait(struct st_rt_device *dev, struct strata_error *err)
{
    pthread_mutex_lock(&dev->rt->lock);
    settle(dev);
    enum strata_result r = st_sim_alive(dev, err);
    if (r != STRATA_OK)
        pthread_mutex_unlock(&dev->rt->lock);
    return r;
}

/* Waits under the lock until *value >= wanted, and gives a stuck device up when it makes no progress for its patience.
 * Gives the lock back. */
static enum strata_result wait_for(struct st_rt_device *dev, const uint64_t *value, uint64_t wanted,
                                   struct strata_error *err)
{
    uint64_t seen = dev->progress;
    double since = real_microseconds();
    while (*value < wanted && !dev->is_lost) {
        if (!dev->spec->stuck) {
            pthread_cond_wait(&dev->rt->moved, &dev->rt->lock);
            continue;
        }
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 5000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&dev->rt->moved, &dev->rt->lock, &until);
        if (dev->progress != seen) {
            seen = dev->progress;
            since = real_microseconds();
        } else if (*value < wanted && real_microseconds() - since > dev->spec->patience * 1e3) {
            st_sim_lose(dev, "no progress for %u ms", dev->spec->patience);
        }
    }
    settle(dev);
    enum strata_result r = st_sim_alive(dev, err);
    pthread_mutex_unlock(&dev->rt->lock);
    return r;
}

enum strata_result st_sim_queue_sync(struct st_queue *q, struct strata_error *err)
{
    enum strata_result r = enter_to_wait(q->dev, err);
    return r == STRATA_OK ? wait_for(q->dev, &q->ended, q->given, err) : r;
}

enum strata_result st_sim_queue_flush(struct st_queue *q, struct strata_error *err)
{
    enum strata_result r = enter(q->dev, err);
    if (r == STRATA_OK)
        pthread_mutex_unlock(&q->dev->rt->lock);
    return r;
}

void st_sim_give_up(struct st_rt_device *dev, const char *why)
{
    pthread_mutex_lock(&dev->rt->lock);
    st_sim_lose(dev, "%s", why);
    settle(dev);
    pthread_mutex_unlock(&dev->rt->lock);
}

enum strata_result st_sim_device_sync(struct st_rt_device *dev, struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    for (struct st_queue *q = dev->queues; q && r == STRATA_OK; q = q->next)
        r = st_sim_queue_sync(q, err);
    if (!dev->queues && (r = enter_to_wait(dev, err)) == STRATA_OK)
        pthread_mutex_unlock(&dev->rt->lock);
    return r;
}

/* ---- queues ---- */

enum strata_result st_sim_queue_create(struct st_rt_device *dev, enum st_queue_kind kind, struct st_queue **out,
                                       struct strata_error *err)
{
    (void)kind; /* every queue has its own thread */
    enum strata_result r = enter(dev, err);
    if (r != STRATA_OK)
        return r;
    struct st_queue *q = calloc(1, sizeof *q);
    if (q) {
        q->dev = dev;
        q->commands.end = &q->commands.first;
        if (pthread_create(&q->thread, NULL, queue_main, q) == 0) {
            q->next = dev->queues;
            dev->queues = q;
            *out = q;
            pthread_mutex_unlock(&dev->rt->lock);
            return STRATA_OK;
        }
        free(q);
    }
    pthread_mutex_unlock(&dev->rt->lock);
    return st_fail(err, STRATA_E_MEMORY, "%s: no memory or no thread for a queue", dev->name);
}

void st_sim_queue_free(struct st_queue *q)
{
    if (!q)
        return;
    struct st_rt_device *dev = q->dev;
    pthread_mutex_lock(&dev->rt->lock);
    q->stop = true;
    for (struct st_queue **link = &dev->queues; *link; link = &(*link)->next)
        if (*link == q) {
            *link = q->next;
            break;
        }
    pthread_cond_broadcast(&dev->rt->moved);
    pthread_mutex_unlock(&dev->rt->lock);
    pthread_join(q->thread, NULL);
    list_clear(&q->commands);
    st_sim_graph_free(q->capture);
    st_fibers_free(q->fibers);
    free(q);
}

/* ---- events ---- */

enum strata_result st_sim_event_create(struct st_rt_device *dev, bool timed, struct st_event **out,
                                       struct strata_error *err)
{
    (void)timed; /* every event knows its time */
    struct st_event *e = calloc(1, sizeof *e);
    if (!e)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for an event", dev->name);
    e->dev = dev;
    *out = e;
    return STRATA_OK;
}

void st_sim_event_free(struct st_event *event)
{
    free(event);
}

enum strata_result st_sim_event_record(struct st_queue *q, struct st_event *event, struct strata_error *err)
{
    enum strata_result r = enter(q->dev, err);
    if (r != STRATA_OK)
        return r;
    return give(q, &(struct command){.kind = RECORD, .event = event, .number = q->capture ? LATEST : ++event->wanted},
                err);
}

enum strata_result st_sim_event_wait(struct st_queue *q, struct st_event *event, struct strata_error *err)
{
    enum strata_result r = enter(q->dev, err);
    if (r != STRATA_OK)
        return r;
    return give(q, &(struct command){.kind = WAIT, .event = event, .number = q->capture ? LATEST : event->wanted}, err);
}

enum strata_result st_sim_event_sync(struct st_event *event, struct strata_error *err)
{
    enum strata_result r = enter_to_wait(event->dev, err);
    return r == STRATA_OK ? wait_for(event->dev, &event->done, event->wanted, err) : r;
}

enum strata_result st_sim_event_query(struct st_event *event, bool *done, struct strata_error *err)
{
    enum strata_result r = enter_to_wait(event->dev, err); /* the answer may be what somebody waits for */
    if (r != STRATA_OK)
        return r;
    *done = event->done >= event->wanted;
    pthread_mutex_unlock(&event->dev->rt->lock);
    return STRATA_OK;
}

enum strata_result st_sim_event_elapsed(struct st_event *from, struct st_event *to, double *microseconds,
                                        struct strata_error *err)
{
    enum strata_result r = enter(from->dev, err);
    if (r != STRATA_OK)
        return r;
    if (from->done == 0 || to->done == 0 || from->done < from->wanted || to->done < to->wanted)
        return refuse(from->dev, err, "the time between events that have not passed");
    *microseconds = to->time - from->time;
    pthread_mutex_unlock(&from->dev->rt->lock);
    return STRATA_OK;
}

/* ---- graphs ---- */

enum strata_result st_sim_graph_begin(struct st_queue *q, struct strata_error *err)
{
    enum strata_result r = enter(q->dev, err);
    if (r != STRATA_OK)
        return r;
    if (q->capture)
        return refuse(q->dev, err, "a queue that records already");
    q->capture = calloc(1, sizeof *q->capture);
    if (!q->capture)
        return refuse(q->dev, err, "no memory for a graph");
    q->capture->dev = q->dev;
    q->capture->commands.end = &q->capture->commands.first;
    pthread_mutex_unlock(&q->dev->rt->lock);
    return STRATA_OK;
}

enum strata_result st_sim_graph_end(struct st_queue *q, struct st_graph **out, struct strata_error *err)
{
    pthread_mutex_lock(&q->dev->rt->lock);
    struct st_graph *graph = q->capture;
    q->capture = NULL;
    enum strata_result r = st_sim_alive(q->dev, err);
    pthread_mutex_unlock(&q->dev->rt->lock);
    if (r == STRATA_OK && !graph)
        r = st_fail(err, STRATA_E_DEVICE, "%s: a queue that does not record", q->dev->name);
    if (r == STRATA_OK)
        *out = graph;
    else
        st_sim_graph_free(graph);
    return r;
}

enum strata_result st_sim_graph_launch(struct st_queue *q, struct st_graph *graph, struct strata_error *err)
{
    enum strata_result r = enter(q->dev, err);
    if (r != STRATA_OK)
        return r;
    if (graph->dev != q->dev || q->capture)
        return refuse(q->dev, err, "a graph of another device, or inside a recording");
    return give(q, &(struct command){.kind = GRAPH, .graph = graph}, err);
}

void st_sim_graph_free(struct st_graph *graph)
{
    if (!graph)
        return;
    list_clear(&graph->commands);
    free(graph);
}
