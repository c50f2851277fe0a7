/* What the CPU does in decoding: time of a product against its bytes, as a line through two sizes, for dense weights
 * and for the experts of a layer. The kernels are those that the model runs, with as many threads; weights come from
 * a buffer of four times the last cache, in address order, so that what was read last time has left it.
 *
 * The middle one of several times counts, the better of two such: on a machine that others use too the best time is what
 * decoding does not reach, and the mean follows the longest interruption. */
#define _GNU_SOURCE /* madvise */
#include "runtime/measure_cpu.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/team.h"
#include "kernel/multiply.h"

enum {
    LEAST_BYTES = 64 << 20,
    CACHES = 4,
    ALIGN = 64,
    CHAIN = 8, /* commands of one run */
    SAMPLES = 15,
    WARMING = 2, /* runs before: the team wakes up */
    SMALL_ROWS = 64, /* of a dense product; the large one has */
    LARGE_BYTES = 8 << 20
};

static const size_t MOST_BYTES = (size_t)2 << 30;
static const double MOST_SECONDS = 0.015; /* for one number */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct measurement {
    const struct st_kernels *kernels;
    struct st_team *team;
    uint8_t *weights;
    size_t bytes, at; /* of weights; where the next product's begin */
    uint8_t *memory;  /* of all that follows */
    float *x, *h, *y; /* input, between, output */
    struct st_act_buffer acts, hacts;
};

/* ---- memory ---- */

/* Every worker writes its part, so that pages lie near those that read them, as an arena's do. The bytes make scales
 * that are ordinary numbers in every type. */
static void fill_share(void *arg, struct st_worker *w)
{
    const struct measurement *m = arg;
    size_t from, to;
    st_share(w, m->bytes, 1 << 21, &from, &to);
    memset(m->weights + from, 0x22, to - from);
}

static size_t buffer_bytes(void)
{
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    size_t bytes = cache > 0 ? CACHES * (size_t)cache : LEAST_BYTES;
    return bytes < LEAST_BYTES ? LEAST_BYTES : bytes < MOST_BYTES ? bytes : MOST_BYTES;
}

static enum strata_result open_memory(struct measurement *m, const struct st_decode_shape *s, size_t rows,
                                      struct strata_error *err)
{
    size_t used = s->used, hidden = s->dense.cols > s->gate.cols ? s->dense.cols : s->gate.cols, width = s->down.cols;
    size_t outputs = used * s->down.rows, h = used * width, y = rows > outputs ? rows : outputs;
    size_t floats = (hidden + h + y + 3 * 16) * sizeof(float), acts = st_act_buffer_bytes(1, hidden, st_act_bytes),
           hacts = st_act_buffer_bytes(used, width, st_act_bytes);
    m->bytes = buffer_bytes();
    void *p = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    m->weights = p == MAP_FAILED ? NULL : p;
    size_t all = (floats + acts + hacts + 3 * ALIGN) / ALIGN * ALIGN;
    m->memory = m->weights ? aligned_alloc(ALIGN, all) : NULL;
    if (!m->memory)
        return st_fail(err, STRATA_E_MEMORY, "cpu: no memory to measure its rate with");
    madvise(m->weights, m->bytes, MADV_HUGEPAGE);
    memset(m->memory, 0, all);
    uint8_t *at = m->memory;
    st_act_buffer_place(&m->acts, at, 1, hidden, st_act_bytes);
    at += (acts + ALIGN - 1) / ALIGN * ALIGN;
    st_act_buffer_place(&m->hacts, at, used, width, st_act_bytes);
    at += (hacts + ALIGN - 1) / ALIGN * ALIGN;
    m->x = (float *)(void *)at;
    m->h = m->x + (hidden + 15) / 16 * 16;
    m->y = m->h + (h + 15) / 16 * 16;
    for (size_t i = 0; i < hidden; i++)
        m->x[i] = (float)(i % 17) - 8;
    st_team_run(m->team, fill_share, m);
    return STRATA_OK;
}

/* The place of the next n bytes. */
static const uint8_t *next(struct measurement *m, size_t n)
{
    n = (n + ALIGN - 1) / ALIGN * ALIGN;
    m->at = m->at + n <= m->bytes ? m->at : 0;
    m->at += n;
    return m->weights + m->at - n;
}

/* ---- times ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The middle time of runs; prepare gives each of them its weights. */
static double middle(struct measurement *m, void (*run)(void *, struct st_worker *),
                     void (*prepare)(struct measurement *, void *), void *what)
{
    double taken[SAMPLES], begin = now();
    int n = 0;
    for (int i = -WARMING; i < SAMPLES && (n < 3 || now() - begin < MOST_SECONDS); i++) {
        prepare(m, what);
        double start = now();
        st_team_run(m->team, run, what);
        if (i >= 0)
            taken[n++] = now() - start;
    }
    qsort(taken, (size_t)n, sizeof *taken, by_value);
    return taken[n / 2];
}

/* ---- dense ---- */

struct dense {
    const struct st_kernels *kernels;
    int32_t n;
    struct st_weight w[CHAIN];
    struct st_products products[CHAIN];
};

static void run_dense(void *arg, struct st_worker *w)
{
    const struct dense *d = arg;
    for (int i = 0; i < CHAIN; i++) {
        d->kernels->products(d->kernels, &d->products[i], w);
        if (i + 1 < CHAIN)
            st_barrier(w);
    }
}

static void prepare_dense(struct measurement *m, void *arg)
{
    struct dense *d = arg;
    for (int i = 0; i < CHAIN; i++)
        d->w[i].data = next(m, d->w[i].row_bytes * d->w[i].rows);
}

static double dense_seconds(struct measurement *m, const struct st_decode_shape *s, uint32_t rows, double *bytes)
{
    struct dense d = {.kernels = m->kernels, .n = 1};
    for (int i = 0; i < CHAIN; i++) {
        d.w[i] = s->dense;
        d.w[i].rows = rows;
        d.products[i] = (struct st_products){.n = &d.n,
                                             .x = m->x,
                                             .ldx = s->dense.cols,
                                             .count = 1,
                                             .product = {{.w = &d.w[i], .y = m->y, .ldy = rows}},
                                             .acts = &m->acts};
    }
    *bytes = st_weight_bytes(&d.w[0]);
    return middle(m, run_dense, prepare_dense, &d) / CHAIN;
}

/* ---- experts ---- */

/* A layer's: each run begins and ends with the team, as in windows. */
struct layer {
    const struct st_kernels *kernels;
    int32_t n;
    struct st_weight gate, up, down;
    const uint8_t **places; /* [3][used] */
    int32_t *first, *entry; /* [used + 1], [used] */
    struct st_routing routing;
    struct st_experts_work work;
    struct st_experts a;
};

static void run_layer(void *arg, struct st_worker *w)
{
    const struct layer *l = arg;
    l->kernels->experts(l->kernels, &l->a, w);
}

static void prepare_layer(struct measurement *m, void *arg)
{
    struct layer *l = arg;
    struct st_weight *w[3] = {&l->gate, &l->up, &l->down};
    l->work.count = (uint32_t)l->first[l->a.used];
    l->work.next = 0;
    for (uint32_t e = 0; e < l->work.count; e++) {
        l->work.taken[e] = (struct st_experts_taken){.expert = e};
        for (int k = 0; k < 3; k++)
            l->places[(size_t)k * l->a.used + e] = next(m, w[k]->row_bytes * w[k]->rows);
    }
    const struct st_worker alone = {.count = 1};
    st_act_prepare(l->kernels, &m->acts, st_act_mask(&l->gate) | st_act_mask(&l->up), m->x, l->a.hidden, 1,
                   l->a.hidden, &alone);
}

static double layer_seconds(struct measurement *m, struct layer *l, uint32_t count, double *bytes)
{
    for (uint32_t e = 0; e <= l->a.used; e++)
        l->first[e] = (int32_t)(e < count ? e : count);
    *bytes = count * (st_weight_bytes(&l->gate) + st_weight_bytes(&l->up) + st_weight_bytes(&l->down));
    return middle(m, run_layer, prepare_layer, l);
}

static void close_layer(struct layer *l)
{
    free(l->places);
    free(l->first);
    free(l->work.taken);
}

static enum strata_result open_layer(struct measurement *m, const struct st_decode_shape *s, struct layer *l,
                                     struct strata_error *err)
{
    *l = (struct layer){.kernels = m->kernels,
                        .n = 1,
                        .gate = s->gate,
                        .up = s->up,
                        .down = s->down,
                        .places = calloc(3ull * s->used + 1, sizeof *l->places),
                        .first = calloc(2ull * s->used + 1, sizeof *l->first),
                        .work.taken = calloc(s->used + 1ull, sizeof *l->work.taken)};
    if (!l->places || !l->first || !l->work.taken)
        return st_fail(err, STRATA_E_MEMORY, "cpu: no memory to measure its rate with");
    l->entry = l->first + s->used + 1;
    for (uint32_t e = 0; e < s->used; e++)
        l->entry[e] = (int32_t)e;
    l->gate.places = l->places;
    l->up.places = l->places + s->used;
    l->down.places = l->places + 2 * (size_t)s->used;
    l->routing = (struct st_routing){.first = l->first, .entry = l->entry};
    l->a = (struct st_experts){.n = &l->n,
                               .m = m->x,
                               .routing = &l->routing,
                               .gate = &l->gate,
                               .up = &l->up,
                               .down = &l->down,
                               .h = m->h,
                               .o = m->y,
                               .experts = s->used,
                               .used = s->used,
                               .hidden = s->gate.cols,
                               .width = s->down.cols,
                               .shared_width = s->down.cols,
                               .acts = &m->acts,
                               .hacts = &m->hacts,
                               .work = &l->work};
    return STRATA_OK;
}

/* ---- all ---- */

/* Two sizes of dense products and two numbers of experts, each twice with the others between: what disturbs one of them
 * for some tens of milliseconds is not what decoding sees. */
static void measure(struct measurement *m, const struct st_decode_shape *s, struct layer *l, uint32_t rows,
                    struct st_cpu_rates *out)
{
    double bytes[4], seconds[4] = {0};
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < (s->used > 1 ? 4 : 2); i++) {
            double t = i < 2 ? dense_seconds(m, s, i ? rows : SMALL_ROWS, &bytes[i])
                             : layer_seconds(m, l, i > 2 ? s->used : 1, &bytes[i]);
            seconds[i] = round == 0 || t < seconds[i] ? t : seconds[i];
        }
    out->dense = st_line_through(bytes[0], seconds[0], bytes[1], seconds[1]);
    if (s->used > 1)
        out->experts = st_line_through(bytes[2], seconds[2], bytes[3], seconds[3]);
    else if (s->used)
        out->experts = out->dense;
}

enum strata_result st_cpu_measure(const struct st_kernels *kernels, int threads, const struct st_decode_shape *shape,
                                  struct st_cpu_rates *out, struct strata_error *err)
{
    struct measurement m = {.kernels = kernels};
    struct layer l = {0};
    *out = (struct st_cpu_rates){0};
    if (!shape->dense.row_bytes)
        return st_fail(err, STRATA_E_INTERNAL, "cpu: a model without products cannot be measured");
    uint32_t rows = LARGE_BYTES / (uint32_t)shape->dense.row_bytes;
    rows = rows > 2 * SMALL_ROWS ? rows : 2 * SMALL_ROWS;
    enum strata_result r = st_team_create(threads, 0, &m.team, err);
    if (!r)
        r = open_memory(&m, shape, rows, err);
    if (!r)
        r = open_layer(&m, shape, &l, err);
    if (!r)
        measure(&m, shape, &l, rows, out);
    close_layer(&l);
    st_team_free(m.team);
    free(m.memory);
    if (m.weights)
        munmap(m.weights, m.bytes);
    return r;
}
