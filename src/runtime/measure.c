/* What a device does in practice: rates of its memory and of its link, cost of a launch, and which way of making a
 * queue wait for the host is quicker. The CPU: rate of its memory, cost of a barrier. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/team.h"
#include "runtime/device.h"

enum {
    COPY_BYTES = 128 << 20,
    LINK_BYTES = 32 << 20,
    ROUNDS = 5,
    LAUNCHES = 200,
    PAGE = 4096,
    STEP_BYTES = 64 << 10,
    READ_BYTES = 128 << 20,
    BARRIERS = 64
};

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

struct timing {
    struct st_device *dev;
    struct st_event *from, *to;
};

static enum strata_result timing_begin(struct timing *t, struct strata_error *err)
{
    return t->dev->table->event_record(t->dev->compute, t->from, err);
}

static enum strata_result timing_end(struct timing *t, double *microseconds, struct strata_error *err)
{
    enum strata_result r = t->dev->table->event_record(t->dev->compute, t->to, err);
    if (r == STRATA_OK)
        r = st_wait(t->dev, t->dev->compute, err);
    return r == STRATA_OK ? t->dev->table->event_elapsed(t->from, t->to, microseconds, err) : r;
}

/* The best of a few rounds of the copy kernel; the first one is for warming up. */
static enum strata_result measure_copy(struct timing *t, st_addr a, st_addr b, uint64_t bytes, struct strata_error *err)
{
    double best = 0;
    const union st_arg args[] = {{.p = b}, {.p = a}, {.l = bytes / 16}};
    for (int i = 0; i <= ROUNDS; i++) {
        double us = 0;
        enum strata_result r = timing_begin(t, err);
        if (r == STRATA_OK)
            r = st_launch(t->dev, t->dev->compute, ST_GPU_COPY, (uint32_t)(bytes / 16 / 1024), 1, 1, args, "bandwidth",
                          err);
        if (r == STRATA_OK)
            r = timing_end(t, &us, err);
        if (r != STRATA_OK)
            return r;
        if (i > 0 && us > 0 && (best == 0 || us < best))
            best = us;
    }
    t->dev->measured.copy_rate = best > 0 ? 2.0 * (double)bytes / best * 1e6 : 0;
    return STRATA_OK;
}

static enum strata_result measure_link(struct st_device *dev, st_addr a, uint64_t bytes, struct strata_error *err)
{
    void *host = NULL;
    enum strata_result r = dev->table->host_allocate(dev->rt, bytes, &host, err);
    if (r != STRATA_OK)
        return r;
    memset(host, 1, bytes);
    double best_in = 0, best_out = 0;
    for (int i = 0; i <= ROUNDS && r == STRATA_OK; i++) {
        double start = now_us();
        r = dev->table->copy_in(dev->compute, a, host, bytes, err);
        if (r == STRATA_OK)
            r = st_wait(dev, dev->compute, err);
        double middle = now_us();
        if (r == STRATA_OK)
            r = dev->table->copy_out(dev->compute, host, a, bytes, err);
        if (r == STRATA_OK)
            r = st_wait(dev, dev->compute, err);
        double end = now_us();
        if (i > 0 && (best_in == 0 || middle - start < best_in))
            best_in = middle - start;
        if (i > 0 && (best_out == 0 || end - middle < best_out))
            best_out = end - middle;
    }
    dev->table->host_free(dev->rt, host);
    if (r != STRATA_OK)
        return r;
    dev->measured.in_rate = (double)bytes / best_in * 1e6;
    dev->measured.out_rate = (double)bytes / best_out * 1e6;
    return STRATA_OK;
}

/* What a stretch of launches is made of. */
struct stretch {
    enum st_gpu_kernel kernel;
    union st_arg args[2][3]; /* of the launches with an even and an odd number */
    uint32_t groups;
};

static enum strata_result launch_stretch(struct st_device *dev, const struct stretch *s, int count,
                                         struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    for (int i = 0; i < count && r == STRATA_OK; i++)
        r = st_launch(dev, dev->compute, s->kernel, s->groups, 1, 1, s->args[i % 2], "measurement", err);
    return r;
}

static const struct stretch empty = {.kernel = ST_GPU_EMPTY, .groups = 1};

/* Microseconds per launch of a stretch that is launched one by one. */
static enum strata_result time_launches(struct timing *t, const struct stretch *s, double *each,
                                        struct strata_error *err)
{
    double us = 0;
    enum strata_result r = launch_stretch(t->dev, s, 10, err);
    if (r == STRATA_OK)
        r = timing_begin(t, err);
    if (r == STRATA_OK)
        r = launch_stretch(t->dev, s, LAUNCHES, err);
    if (r == STRATA_OK)
        r = timing_end(t, &us, err);
    *each = us / LAUNCHES;
    return r;
}

/* The same inside a graph; the best of a few replays. */
static enum strata_result time_replay(struct timing *t, const struct stretch *s, double *each, struct strata_error *err)
{
    struct st_device *dev = t->dev;
    struct st_graph *graph = NULL;
    double us = 0, best = 0;
    enum strata_result r = st_capture_begin(dev, dev->compute, err);
    if (r != STRATA_OK)
        return r;
    enum strata_result inside = launch_stretch(dev, s, LAUNCHES, err);
    r = st_capture_end(dev, dev->compute, &graph, inside == STRATA_OK ? err : NULL);
    if (inside != STRATA_OK)
        r = inside;
    for (int i = 0; i < 3 && r == STRATA_OK; i++) {
        r = timing_begin(t, err);
        if (r == STRATA_OK)
            r = dev->table->graph_launch(dev->compute, graph, err);
        if (r == STRATA_OK)
            r = timing_end(t, &us, err);
        best = best == 0 || us < best ? us : best;
    }
    *each = best / LAUNCHES;
    dev->table->graph_free(graph);
    return r;
}

static enum strata_result measure_launch(struct timing *t, struct strata_error *err)
{
    enum strata_result r = time_launches(t, &empty, &t->dev->measured.launch_us, err);
    if (r == STRATA_OK && (t->dev->info.features & ST_FEATURE_GRAPHS))
        r = time_replay(t, &empty, &t->dev->measured.replay_us, err);
    return r;
}

/* Copies between two small places, there and back, each waiting for the one before. */
static enum strata_result measure_step(struct timing *t, st_addr a, st_addr b, struct strata_error *err)
{
    struct stretch s = {.kernel = ST_GPU_COPY, .groups = STEP_BYTES / 16 / 1024};
    const union st_arg there[3] = {{.p = b}, {.p = a}, {.l = STEP_BYTES / 16}},
                       back[3] = {{.p = a}, {.p = b}, {.l = STEP_BYTES / 16}};
    memcpy(s.args[0], there, sizeof there);
    memcpy(s.args[1], back, sizeof back);
    return t->dev->info.features & ST_FEATURE_GRAPHS ? time_replay(t, &s, &t->dev->measured.step_us, err)
                                                     : time_launches(t, &s, &t->dev->measured.step_us, err);
}

/* How long after the end of one launch the host can have the next one finished: what a stretch that needs the host
 * costs. */
static enum strata_result measure_notice(struct st_device *dev, struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    double best = 0;
    for (int i = 0; i < 20 && r == STRATA_OK; i++) {
        double start = now_us();
        r = launch_stretch(dev, &empty, 1, err);
        if (r == STRATA_OK)
            r = st_wait(dev, dev->compute, err);
        double us = now_us() - start;
        if (best == 0 || us < best)
            best = us;
    }
    dev->measured.notice_us = best;
    return r;
}

/* The time from storing a number in host memory to the end of a queue's wait for it. A driver that takes the wait and
 * never notices the number is told so by the caller: the device then counts as having none. */
static enum strata_result time_wait(struct st_device *dev, void *page, st_addr address, struct st_event *done,
                                    double *us, struct strata_error *err)
{
    enum { TIMEOUT_US = 2000000 };
    _Atomic uint32_t *number = page;
    double best = 0;
    for (uint32_t i = 1; i <= 10; i++) {
        enum strata_result r = dev->table->wait_value(dev->compute, address, i, err);
        if (r == STRATA_OK)
            r = dev->table->event_record(dev->compute, done, err);
        if (r == STRATA_OK)
            r = dev->table->queue_flush(dev->compute, err);
        double start = now_us();
        atomic_store(number, i);
        bool over = false;
        while (r == STRATA_OK && !over && now_us() - start < TIMEOUT_US)
            r = dev->table->event_query(done, &over, err);
        double took = now_us() - start;
        if (r == STRATA_OK && !over)
            return st_fail(err, STRATA_E_DEVICE, "%s: a wait for a number in host memory does not end", dev->name);
        if (r != STRATA_OK)
            return r;
        if (best == 0 || took < best)
            best = took;
    }
    *us = best;
    return STRATA_OK;
}

static enum strata_result measure_wait(struct st_device *dev, struct strata_error *err)
{
    uint32_t both = ST_FEATURE_WAIT_VALUE | ST_FEATURE_HOST_MAPPED;
    if ((dev->info.features & both) != both)
        return STRATA_OK;
    void *page = NULL;
    struct st_event *done = NULL;
    st_addr address = 0;
    enum strata_result r = dev->table->host_allocate(dev->rt, PAGE, &page, err);
    if (r != STRATA_OK)
        return r;
    memset(page, 0, PAGE);
    r = dev->table->host_address(dev->rt, page, &address, err);
    if (r == STRATA_OK)
        r = dev->table->event_create(dev->rt, false, &done, err);
    double us = 0;
    /* A driver that offers the function and refuses it has no such wait; that is an answer and not a failure. */
    if (r == STRATA_OK && time_wait(dev, page, address, done, &us, NULL) == STRATA_OK) {
        dev->measured.wait_us = us;
        dev->measured.wait_value = us < dev->measured.notice_us;
    }
    dev->table->event_free(done);
    if (st_wait(dev, dev->compute, NULL) == STRATA_OK)
        dev->table->host_free(dev->rt, page);
    return r;
}

static enum strata_result measure_all(struct timing *t, st_addr a, st_addr b, uint64_t bytes, struct strata_error *err)
{
    struct st_device *dev = t->dev;
    uint64_t link = bytes < LINK_BYTES ? bytes : LINK_BYTES;
    enum strata_result r = STRATA_OK;
    if (dev->info.memory_rate)
        dev->measured.copy_rate = (double)dev->info.memory_rate;
    else
        r = measure_copy(t, a, b, bytes, err);
    if (r == STRATA_OK && dev->info.link_rate)
        dev->measured.in_rate = dev->measured.out_rate = (double)dev->info.link_rate;
    else if (r == STRATA_OK)
        r = measure_link(dev, a, link, err);
    if (r == STRATA_OK)
        r = measure_launch(t, err);
    if (r == STRATA_OK)
        r = measure_step(t, a, b, err);
    if (r == STRATA_OK)
        r = measure_notice(dev, err);
    if (r == STRATA_OK)
        r = measure_wait(dev, err);
    return r;
}

enum strata_result st_device_measure(struct st_device *dev, struct strata_error *err)
{
    struct timing t = {.dev = dev};
    st_addr a = 0, b = 0;
    /* A CPU behind a GPU runtime and a simulated device would spend seconds on what a card does in a millisecond. */
    uint64_t bytes = dev->info.features & (ST_FEATURE_CPU | ST_FEATURE_SIMULATED) ? COPY_BYTES / 8 : COPY_BYTES;
    enum strata_result r = dev->table->event_create(dev->rt, true, &t.from, err);
    if (r == STRATA_OK)
        r = dev->table->event_create(dev->rt, true, &t.to, err);
    if (r == STRATA_OK)
        r = dev->table->allocate(dev->rt, bytes, &a, err);
    if (r == STRATA_OK)
        r = dev->table->allocate(dev->rt, bytes, &b, err);
    if (r == STRATA_OK)
        r = dev->table->fill(dev->compute, a, 1, bytes, err);
    if (r == STRATA_OK)
        r = measure_all(&t, a, b, bytes, err);
    if (st_wait(dev, dev->compute, r == STRATA_OK ? err : NULL) != STRATA_OK && r == STRATA_OK)
        r = STRATA_E_DEVICE;
    dev->table->release(dev->rt, a);
    dev->table->release(dev->rt, b);
    dev->table->event_free(t.from);
    dev->table->event_free(t.to);
    return r == STRATA_OK ? r : st_fail_in(err, r, "measuring %s", dev->name);
}

enum strata_result st_device_rates(struct st_device *dev, struct strata_error *err)
{
    const struct st_device_info *info = &dev->info;
    if (!(info->features & ST_FEATURE_SIMULATED))
        return st_device_measure(dev, err);
    dev->measured = (struct st_measured){.copy_rate = (double)info->memory_rate,
                                         .in_rate = (double)info->link_rate,
                                         .out_rate = (double)info->link_rate,
                                         .launch_us = info->launch_us,
                                         .replay_us = info->features & ST_FEATURE_GRAPHS ? info->launch_us : 0,
                                         .step_us = info->launch_us,
                                         .notice_us = info->launch_us};
    return STRATA_OK;
}

/* ---- the CPU ---- */

struct reading {
    uint64_t *data;
    bool write;           /* the first round: pages get their place in memory, near the worker that reads them */
    _Atomic uint64_t sum; /* of all, so that nothing is left out */
};

static void read_share(void *arg, struct st_worker *w)
{
    struct reading *r = arg;
    size_t from, to;
    st_share(w, READ_BYTES / sizeof *r->data, PAGE, &from, &to);
    if (r->write)
        memset(r->data + from, 1, (to - from) * sizeof *r->data);
    uint64_t sum[8] = {0};
    for (size_t i = from; i + 8 <= to; i += 8)
        for (size_t k = 0; k < 8; k++)
            sum[k] += r->data[i + k];
    for (size_t k = 1; k < 8; k++)
        sum[0] += sum[k];
    atomic_fetch_add(&r->sum, sum[0]);
}

static void meet(void *arg, struct st_worker *w)
{
    (void)arg;
    for (int i = 0; i < BARRIERS; i++)
        st_barrier(w);
}

/* The shortest of a few rounds, in microseconds. */
static double best_run(struct st_team *team, void (*fn)(void *, struct st_worker *), void *arg)
{
    double best = 0;
    for (int i = 0; i < ROUNDS; i++) {
        double start = now_us();
        st_team_run(team, fn, arg);
        double us = now_us() - start;
        best = best == 0 || us < best ? us : best;
    }
    return best;
}

enum strata_result st_cpu_measure(int threads, struct st_cpu_rates *out, struct strata_error *err)
{
    struct reading r = {.data = aligned_alloc(PAGE, READ_BYTES), .write = true};
    struct st_team *team = NULL;
    enum strata_result result = r.data ? st_team_create(threads, 0, &team, err)
                                       : st_fail(err, STRATA_E_MEMORY, "cpu: no memory to measure its rate with");
    if (!result) {
        st_team_run(team, read_share, &r);
        r.write = false;
        double us = best_run(team, read_share, &r);
        *out = (struct st_cpu_rates){.read_rate = READ_BYTES / (us > 0 ? us : 1) * 1e6,
                                     .barrier_us = best_run(team, meet, NULL) / BARRIERS};
    }
    st_team_free(team);
    free(r.data);
    return result;
}
