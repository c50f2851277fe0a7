/* What a device does in practice: rates of its memory and of its link, cost of a launch, and which way of making a
 * queue wait for the host is quicker. The CPU: measure_cpu.c. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernel/gpu_norm.h"
#include "kernel/gpu_rows.h"
#include "runtime/device.h"

enum {
    COPY_BYTES = 128 << 20,
    LINK_BYTES = 32 << 20,
    ROUNDS = 5,
    LAUNCHES = 200,
    PAGE = 4096,
    STEP_BYTES = 64 << 10,
    ASK_BYTES = 16 << 10, /* a row of activations */
    ANSWER_BYTES = 64 << 10,
    ANSWERS = 16,
    CHAIN = 64, /* products */
    CHAIN_BYTES = COPY_BYTES,
    FEW_BYTES = 2 << 20,
    MANY_BYTES = 10 << 20,
    BRING_BYTES = 1 << 20, /* of an expert */
    BRING_MOST = 4
};

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
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

/* Gives `count` launches of what. */
typedef enum strata_result launch_fn(struct st_device *dev, const void *what, int count, struct strata_error *err);

/* One kernel, whose launches with an even and with an odd number have arguments of their own. */
struct stretch {
    enum st_gpu_kernel kernel;
    union st_arg args[2][3];
    uint32_t groups;
};

static enum strata_result launch_stretch(struct st_device *dev, const void *what, int count, struct strata_error *err)
{
    const struct stretch *s = what;
    enum strata_result r = STRATA_OK;
    for (int i = 0; i < count && r == STRATA_OK; i++)
        r = st_launch(dev, dev->compute, s->kernel, s->groups, 1, 1, s->args[i % 2], "measurement", err);
    return r;
}

static const struct stretch empty = {.kernel = ST_GPU_EMPTY, .groups = 1};

/* Microseconds of `count` launches that are given one by one. */
static enum strata_result time_launches(struct timing *t, launch_fn *launch, const void *what, int count, double *us,
                                        struct strata_error *err)
{
    enum strata_result r = launch(t->dev, what, count < 10 ? count : 10, err);
    if (r == STRATA_OK)
        r = timing_begin(t, err);
    if (r == STRATA_OK)
        r = launch(t->dev, what, count, err);
    return r == STRATA_OK ? timing_end(t, us, err) : r;
}

static enum strata_result capture(struct st_device *dev, launch_fn *launch, const void *what, int count,
                                  struct st_graph **out, struct strata_error *err)
{
    enum strata_result r = st_capture_begin(dev, dev->compute, err);
    if (r != STRATA_OK)
        return r;
    enum strata_result inside = launch(dev, what, count, err);
    r = st_capture_end(dev, dev->compute, out, inside == STRATA_OK ? err : NULL);
    return inside != STRATA_OK ? inside : r;
}

/* The same inside a graph; the best of a few replays. */
static enum strata_result time_replay(struct timing *t, launch_fn *launch, const void *what, int count, double *best,
                                      struct strata_error *err)
{
    struct st_device *dev = t->dev;
    struct st_graph *graph = NULL;
    *best = 0;
    enum strata_result r = capture(dev, launch, what, count, &graph, err);
    for (int i = 0; i < 3 && r == STRATA_OK; i++) {
        double us = 0;
        r = timing_begin(t, err);
        if (r == STRATA_OK)
            r = dev->table->graph_launch(dev->compute, graph, err);
        if (r == STRATA_OK)
            r = timing_end(t, &us, err);
        *best = *best == 0 || us < *best ? us : *best;
    }
    if (graph)
        dev->table->graph_free(graph);
    return r;
}

static bool has_graphs(const struct st_device *dev)
{
    return dev->info.features & ST_FEATURE_GRAPHS;
}

/* As a window has its launches. */
static enum strata_result time_window(struct timing *t, launch_fn *launch, const void *what, int count, double *us,
                                      struct strata_error *err)
{
    return has_graphs(t->dev) ? time_replay(t, launch, what, count, us, err)
                              : time_launches(t, launch, what, count, us, err);
}

static enum strata_result measure_launch(struct timing *t, struct strata_error *err)
{
    struct st_measured *m = &t->dev->measured;
    enum strata_result r = time_launches(t, launch_stretch, &empty, LAUNCHES, &m->launch_us, err);
    if (r == STRATA_OK && has_graphs(t->dev))
        r = time_replay(t, launch_stretch, &empty, LAUNCHES, &m->replay_us, err);
    m->launch_us /= LAUNCHES;
    m->replay_us /= LAUNCHES;
    return r;
}

/* Copies between two small places, there and back, each waiting for the one before. */
static struct stretch small_steps(st_addr a, st_addr b)
{
    return (struct stretch){.kernel = ST_GPU_COPY,
                            .groups = STEP_BYTES / 16 / 1024,
                            .args = {{{.p = b}, {.p = a}, {.l = STEP_BYTES / 16}},
                                     {{.p = a}, {.p = b}, {.l = STEP_BYTES / 16}}}};
}

static enum strata_result measure_step(struct timing *t, st_addr a, st_addr b, struct strata_error *err)
{
    const struct stretch s = small_steps(a, b);
    enum strata_result r = time_window(t, launch_stretch, &s, LAUNCHES, &t->dev->measured.step_us, err);
    t->dev->measured.step_us /= LAUNCHES;
    return r;
}

/* ---- products ---- */

/* Products of one row. Each reads what the one before wrote, rounded as a model does between them, and other weights. */
struct chain {
    const struct st_weight *w;
    uint32_t rows;
    st_addr weights, x, y;
    uint64_t room; /* of weights */
};

static uint64_t chain_bytes(const struct chain *c)
{
    return ((uint64_t)c->w->row_bytes * c->rows + 255) / 256 * 256;
}

static enum strata_result chain_product(const struct chain *c, uint32_t units, int i, struct st_gpu_launch *out,
                                        struct strata_error *err)
{
    const struct st_weight *w = c->w;
    uint64_t bytes = chain_bytes(c), at = (uint64_t)i % (c->room / bytes) * bytes;
    const struct st_gpu_rows a = {.type = w->type,
                                  .act = w->act,
                                  .matrix = {{.w = c->weights + at, .y = c->y, .rows = c->rows, .ldy = c->rows}},
                                  .matrices = 1,
                                  .x = w->act == ST_ACT_F32 ? c->y : c->x,
                                  .n = w->cols,
                                  .stride = w->act == ST_ACT_F32 ? w->cols * 4 : st_gpu_act_stride(w->act, w->cols),
                                  .mode = ST_ROWS_DENSE,
                                  .total = 1,
                                  .most = 1,
                                  .units = units};
    return st_gpu_rows(&a, out, err);
}

static enum strata_result launch_one(struct st_device *dev, const struct st_gpu_launch *l, struct strata_error *err)
{
    return st_launch(dev, dev->compute, l->kernel, l->grid[0], l->grid[1], l->grid[2], l->args, "measurement", err);
}

static enum strata_result launch_chain(struct st_device *dev, const void *what, int count, struct strata_error *err)
{
    const struct chain *c = what;
    enum strata_result r = STRATA_OK;
    for (int i = 0; i < count && r == STRATA_OK; i++) {
        struct st_gpu_launch l;
        if (c->w->act != ST_ACT_F32) {
            r = st_gpu_quantize(c->w->act, c->x, c->y, 1, c->w->cols, &l, err);
            r = r == STRATA_OK ? launch_one(dev, &l, err) : r;
        }
        if (r == STRATA_OK)
            r = chain_product(c, dev->info.units, i, &l, err);
        if (r == STRATA_OK)
            r = launch_one(dev, &l, err);
    }
    return r;
}

enum strata_result st_device_measure_needs(const struct st_decode_shape *shape, bool *needed, struct strata_error *err)
{
    const struct st_weight *const weights[2] = {&shape->dense, &shape->gate};
    enum strata_result r = STRATA_OK;
    for (int i = 0; i < 2 && r == STRATA_OK && weights[i]->row_bytes; i++) {
        const struct chain c = {.w = weights[i], .rows = 1, .room = CHAIN_BYTES};
        struct st_gpu_launch l;
        if (c.w->act != ST_ACT_F32) {
            r = st_gpu_quantize(c.w->act, 0, 0, 1, c.w->cols, &l, err);
            needed[l.kernel] = true;
        }
        if (r == STRATA_OK)
            r = chain_product(&c, 0, 0, &l, err);
        needed[l.kernel] = true;
    }
    return r;
}

/* Time of a launch by the bytes of its weights: half of the launches of a chain are products. */
static enum strata_result measure_products(struct timing *t, const struct st_weight *w, struct chain c,
                                           struct st_line *out, struct strata_error *err)
{
    static const uint32_t sizes[2] = {FEW_BYTES, MANY_BYTES};
    double bytes[2], us[2];
    enum strata_result r = STRATA_OK;
    bool slow = t->dev->info.features & (ST_FEATURE_CPU | ST_FEATURE_SIMULATED);
    int count = slow ? CHAIN / 16 : CHAIN;
    c.w = w;
    for (int i = 0; i < 2 && r == STRATA_OK; i++) {
        c.rows = (slow ? sizes[i] / 16 : sizes[i]) / (uint32_t)w->row_bytes;
        c.rows = c.rows > 8 ? c.rows : 8;
        bytes[i] = (double)c.rows * (double)w->row_bytes;
        r = time_window(t, launch_chain, &c, count, &us[i], err);
        us[i] /= count;
    }
    if (r != STRATA_OK)
        return r;
    *out = st_line_through(bytes[0], us[0] * 1e-6, bytes[1], us[1] * 1e-6);
    out->start /= w->act == ST_ACT_F32 ? 1 : 2;
    return r;
}

/* ---- the host between launches ---- */

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

/* A graph, or the launches of a stretch. */
static enum strata_result play(struct st_device *dev, struct st_graph *graph, const struct stretch *s,
                               struct strata_error *err)
{
    return graph ? dev->table->graph_launch(dev->compute, graph, err) : launch_stretch(dev, s, 2, err);
}

/* A layer's launches, what the host needs of them, launches that it does not wait for, and its answer. */
static enum strata_result ask_and_answer(struct st_device *dev, struct st_graph *graph, const struct stretch *s,
                                         struct st_event *asked, uint8_t *host, struct strata_error *err)
{
    st_addr a = s->args[0][1].p;
    enum strata_result r = play(dev, graph, s, err);
    if (r == STRATA_OK)
        r = dev->table->copy_out(dev->compute, host, a, 64, err);
    if (r == STRATA_OK)
        r = dev->table->copy_out(dev->compute, host + 64, a + 64, ASK_BYTES, err);
    if (r == STRATA_OK)
        r = dev->table->event_record(dev->compute, asked, err);
    if (r == STRATA_OK)
        r = play(dev, graph, s, err);
    if (r == STRATA_OK)
        r = dev->table->queue_flush(dev->compute, err);
    if (r == STRATA_OK)
        r = st_wait_event(dev, asked, err);
    return r == STRATA_OK ? dev->table->copy_in(dev->compute, a, host, ANSWER_BYTES, err) : r;
}

/* Of several such layers one after the other, without the time of the launches; the middle one of some rounds. */
static enum strata_result measure_answer(struct timing *t, st_addr a, st_addr b, struct strata_error *err)
{
    struct st_device *dev = t->dev;
    const struct stretch s = small_steps(a, b);
    struct st_graph *graph = NULL;
    struct st_event *asked = NULL;
    void *host = NULL;
    double us[ROUNDS] = {0};
    enum strata_result r = dev->table->host_allocate(dev->rt, ANSWER_BYTES, &host, err);
    if (r == STRATA_OK)
        r = dev->table->event_create(dev->rt, false, &asked, err);
    if (r == STRATA_OK && has_graphs(dev))
        r = capture(dev, launch_stretch, &s, 2, &graph, err);
    if (r == STRATA_OK)
        memset(host, 0, ANSWER_BYTES);
    for (int i = -1; i < ROUNDS && r == STRATA_OK; i++) {
        double start = now_us();
        for (int k = 0; k < ANSWERS && r == STRATA_OK; k++)
            r = ask_and_answer(dev, graph, &s, asked, host, err);
        if (r == STRATA_OK)
            r = st_wait(dev, dev->compute, err);
        us[i < 0 ? 0 : i] = (now_us() - start) / ANSWERS - 4 * dev->measured.step_us;
    }
    qsort(us, ROUNDS, sizeof *us, by_value);
    dev->measured.answer_us = us[ROUNDS / 2] > 0 ? us[ROUNDS / 2] : 0;
    if (graph)
        dev->table->graph_free(graph);
    dev->table->event_free(asked);
    if (host && st_wait(dev, dev->compute, NULL) == STRATA_OK)
        dev->table->host_free(dev->rt, host);
    return r;
}

/* Weights go over the copy queue while the host gives the launches that wait for them. */
static enum strata_result bring(struct timing *t, const struct chain *c, uint8_t *host, struct st_event *there,
                                uint64_t bytes, double *us, struct strata_error *err)
{
    struct st_device *dev = t->dev;
    struct chain half = *c;
    half.rows = (uint32_t)(bytes / 2 / c->w->row_bytes);
    enum strata_result r = timing_begin(t, err);
    if (r == STRATA_OK)
        r = dev->table->queue_flush(dev->compute, err);
    if (r == STRATA_OK)
        r = dev->table->copy_in(dev->compute, c->x, host, PAGE, err);
    for (uint64_t at = 0; at < bytes && r == STRATA_OK; at += BRING_BYTES)
        r = dev->table->copy_in(dev->copy, c->weights + at, host + at, BRING_BYTES, err);
    if (r == STRATA_OK)
        r = dev->table->event_record(dev->copy, there, err);
    if (r == STRATA_OK)
        r = dev->table->queue_flush(dev->copy, err);
    if (r == STRATA_OK)
        r = dev->table->event_wait(dev->compute, there, err);
    if (r == STRATA_OK)
        r = launch_chain(dev, &half, 2, err);
    return r == STRATA_OK ? timing_end(t, us, err) : r;
}

/* The middle one of some rounds with one piece, and with several. */
static enum strata_result measure_bring(struct timing *t, const struct chain *c, struct strata_error *err)
{
    struct st_device *dev = t->dev;
    struct st_event *there = NULL;
    void *host = NULL;
    double middle[2] = {0};
    enum strata_result r = dev->table->host_allocate(dev->rt, BRING_MOST * BRING_BYTES, &host, err);
    if (r == STRATA_OK)
        r = dev->table->event_create(dev->rt, false, &there, err);
    if (r == STRATA_OK)
        memset(host, 0, BRING_MOST * BRING_BYTES);
    for (int k = 0; k < 2 && r == STRATA_OK; k++) {
        double us[ROUNDS] = {0};
        for (int i = -1; i < ROUNDS && r == STRATA_OK; i++)
            r = bring(t, c, host, there, (k ? BRING_MOST : 1) * BRING_BYTES, &us[i < 0 ? 0 : i], err);
        qsort(us, ROUNDS, sizeof *us, by_value);
        middle[k] = us[ROUNDS / 2] * 1e-6;
    }
    if (r == STRATA_OK)
        dev->measured.bring = st_line_through(BRING_BYTES, middle[0], BRING_MOST * (double)BRING_BYTES, middle[1]);
    if (st_wait(dev, dev->copy, NULL) == STRATA_OK && st_wait(dev, dev->compute, NULL) == STRATA_OK) {
        dev->table->event_free(there);
        dev->table->host_free(dev->rt, host);
    }
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

static enum strata_result measure_all(struct timing *t, st_addr a, st_addr b, uint64_t bytes,
                                      const struct st_decode_shape *shape, struct strata_error *err)
{
    struct chain c = {.weights = a, .room = bytes, .x = b, .y = b + bytes / 2};
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
    if (r == STRATA_OK)
        r = measure_answer(t, a, b, err);
    if (r == STRATA_OK && shape)
        r = measure_products(t, &shape->dense, c, &dev->measured.dense, err);
    if (r != STRATA_OK || !shape || !shape->used)
        return r;
    r = measure_products(t, &shape->gate, c, &dev->measured.experts, err);
    c.w = &shape->gate;
    return r == STRATA_OK ? measure_bring(t, &c, err) : r;
}

enum strata_result st_device_measure(struct st_device *dev, const struct st_decode_shape *shape, struct strata_error *err)
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
        r = dev->table->fill(dev->compute, b, 0, bytes, err);
    if (r == STRATA_OK)
        r = measure_all(&t, a, b, bytes, shape, err);
    if (st_wait(dev, dev->compute, r == STRATA_OK ? err : NULL) != STRATA_OK && r == STRATA_OK)
        r = STRATA_E_DEVICE;
    dev->table->release(dev->rt, a);
    dev->table->release(dev->rt, b);
    dev->table->event_free(t.from);
    dev->table->event_free(t.to);
    return r == STRATA_OK ? r : st_fail_in(err, r, "measuring %s", dev->name);
}

enum strata_result st_device_rates(struct st_device *dev, const struct st_decode_shape *shape, struct strata_error *err)
{
    const struct st_device_info *info = &dev->info;
    if (!(info->features & ST_FEATURE_SIMULATED))
        return st_device_measure(dev, shape, err);
    const struct st_line products = {.start = info->launch_us * 1e-6, .rate = (double)info->memory_rate};
    dev->measured = (struct st_measured){.copy_rate = (double)info->memory_rate,
                                         .in_rate = (double)info->link_rate,
                                         .out_rate = (double)info->link_rate,
                                         .launch_us = info->launch_us,
                                         .replay_us = has_graphs(dev) ? info->launch_us : 0,
                                         .step_us = info->launch_us,
                                         .notice_us = info->launch_us,
                                         .answer_us = info->launch_us,
                                         .dense = products,
                                         .experts = products,
                                         .bring = {8 * products.start, (double)info->link_rate}};
    return STRATA_OK;
}
