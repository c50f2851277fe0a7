/* strata-device --bench: what a device does in practice, in numbers for people. */
#include "cli/device_bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/options.h"
#include "format/quant.h"
#include "kernel/gpu_copy.h"
#include "kernel/gpu_norm.h"
#include "kernel/gpu_products.h"
#include "kernel/gpu_rows.h"

static void print_measured(const struct st_device *dev)
{
    const struct st_measured *m = &dev->measured;
    printf("%s: %s, %s, %s, %s\n", dev->name, dev->info.model, dev->info.arch,
           dev->info.pci[0] ? dev->info.pci : "no address", dev->info.driver);
    printf("  copy in its memory (read and written)  %8.1f GB/s\n", m->copy_rate / 1e9);
    printf("  from page-locked host memory           %8.1f GB/s\n", m->in_rate / 1e9);
    printf("  to page-locked host memory             %8.1f GB/s\n", m->out_rate / 1e9);
    printf("  an empty kernel, launched              %8.2f us\n", m->launch_us);
    if (m->replay_us > 0)
        printf("  an empty kernel, in a replayed graph   %8.2f us\n", m->replay_us);
    printf("  a small kernel behind another one      %8.2f us\n", m->step_us);
    printf("  launch, run, seen by the host          %8.2f us\n", m->notice_us);
    printf("  the host's part between two launches   %8.2f us\n", m->answer_us);
    printf("  a product in a chain, Q6_K             %8.2f us + bytes at %.1f GB/s\n", m->dense.start * 1e6, m->dense.rate * 1e-9);
    printf("  a product in a chain, Q2_0             %8.2f us + bytes at %.1f GB/s\n", m->experts.start * 1e6, m->experts.rate * 1e-9);
    printf("  weights from the host for launches     %8.2f us + bytes at %.1f GB/s\n", m->bring.start * 1e6,
           m->bring.rate * 1e-9);
    if (m->wait_us > 0)
        printf("  host's number seen by a queue          %8.2f us (%s)\n", m->wait_us,
               m->wait_value ? "stretches wait for numbers" : "slower than the host");
    printf("  memory taken by driver and kernels     %8.1f MiB\n", (double)dev->driver_bytes / (1 << 20));
}

/* ---- kernels ---- */

enum {
    BIG_READ =
        16
        << 20, /* a launch that reads as much is measured against the memory, a smaller one against an empty launch */
    COLUMNS = 2560,
    MOST_LAUNCHES = 2048,
    REPLAYS = 5,
};

struct bench {
    struct st_device *dev;
    struct st_event *from, *to;
    st_addr weights, x, y;
    uint64_t weight_bytes; /* what launches rotate through */
    double copy_rate;      /* of a copy as large as half of the weights */
    bool tiles;            /* every tile size instead of the default */
};

/* One product as it is asked for; launch i of a stretch reads other weights than launch i - 1. */
struct product {
    enum { MATVEC, FEW } family; /* of gpu/product.h, of gpu/rows.h */
    int type;
    uint32_t n, rows, count; /* count: activation rows */
    uint32_t tile;
    uint64_t bytes; /* weights of one launch */
};

static const char *const family_names[] = {"product", "rows"};

static enum strata_result make_launch(const struct bench *b, const struct product *p, uint32_t i,
                                      struct st_gpu_launch *out, struct strata_error *err)
{
    uint64_t places = b->weight_bytes / p->bytes, at = i % places * p->bytes;
    if (p->family == MATVEC) {
        struct st_gpu_matvec a = {p->type, b->y,     b->weights + at, b->x,    p->n,
                                  p->rows, p->count, p->rows,         p->tile, b->dev->info.units};
        return st_gpu_matvec(&a, out, err);
    }
    enum st_act act = st_type_info(p->type)->act;
    struct st_gpu_rows a = {.type = p->type,
                            .act = act,
                            .matrix = {{.w = b->weights + at / 16 * 16, .y = b->y, .rows = p->rows, .ldy = p->rows}},
                            .matrices = 1,
                            .x = b->x,
                            .n = p->n,
                            .stride = act == ST_ACT_F32 ? p->n * 4 : st_gpu_act_stride(act, p->n),
                            .mode = ST_ROWS_DENSE,
                            .total = p->count,
                            .most = p->count,
                            .units = b->dev->info.units};
    return st_gpu_rows(&a, out, err);
}

static enum strata_result launch_all(const struct bench *b, const struct product *p, uint32_t count,
                                     struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    for (uint32_t i = 0; i < count && r == STRATA_OK; i++) {
        struct st_gpu_launch l;
        r = make_launch(b, p, i, &l, err);
        if (r == STRATA_OK)
            r = st_launch(b->dev, b->dev->compute, l.kernel, l.grid[0], l.grid[1], l.grid[2], l.args,
                          family_names[p->family], err);
    }
    return r;
}

/* Microseconds of one stretch of count launches, inside a replayed graph where there are graphs. */
static enum strata_result time_stretch(const struct bench *b, const struct product *p, uint32_t count, double *best,
                                       struct strata_error *err)
{
    struct st_device *dev = b->dev;
    struct st_graph *graph = NULL;
    enum strata_result r = launch_all(b, p, 1, err);
    if (r == STRATA_OK && (dev->info.features & ST_FEATURE_GRAPHS)) {
        r = st_capture_begin(dev, dev->compute, err);
        if (r != STRATA_OK)
            return r;
        enum strata_result inside = launch_all(b, p, count, err);
        r = st_capture_end(dev, dev->compute, &graph, inside == STRATA_OK ? err : NULL);
        r = inside != STRATA_OK ? inside : r;
    }
    *best = 0;
    for (int i = 0; i < REPLAYS && r == STRATA_OK; i++) {
        double us = 0;
        r = dev->table->event_record(dev->compute, b->from, err);
        if (r == STRATA_OK)
            r = graph ? dev->table->graph_launch(dev->compute, graph, err) : launch_all(b, p, count, err);
        if (r == STRATA_OK)
            r = dev->table->event_record(dev->compute, b->to, err);
        if (r == STRATA_OK)
            r = st_wait(dev, dev->compute, err);
        if (r == STRATA_OK)
            r = dev->table->event_elapsed(b->from, b->to, &us, err);
        if (i > 0 && (*best == 0 || us < *best))
            *best = us;
    }
    if (graph)
        dev->table->graph_free(graph);
    return r;
}

static enum strata_result bench_product(const struct bench *b, struct product p, struct strata_error *err)
{
    uint64_t count = (b->weight_bytes + p.bytes - 1) / p.bytes;
    count = count < 4 ? 4 : count > MOST_LAUNCHES ? MOST_LAUNCHES : count;
    double us = 0;
    enum strata_result r = time_stretch(b, &p, (uint32_t)count, &us, err);
    if (r != STRATA_OK)
        return r;
    us /= (double)count;
    struct st_gpu_launch l;
    r = make_launch(b, &p, 0, &l, err);
    if (r != STRATA_OK)
        return r;
    double rate = (double)st_gpu_bytes(l.kernel, l.grid, l.args) / us * 1e-3; /* GB/s */
    char verdict[48];
    if (p.bytes >= BIG_READ)
        snprintf(verdict, sizeof verdict, "%3.0f %% of copy", 100.0 * rate * 1e9 / b->copy_rate);
    else
        snprintf(verdict, sizeof verdict, "empty launch: %.2f us",
                 b->dev->measured.replay_us > 0 ? b->dev->measured.replay_us : b->dev->measured.launch_us);
    char shape[48];
    snprintf(shape, sizeof shape, "[%u x %u]", p.rows, p.n);
    printf("  %-8s %-6s %-20s rows %u  tile %3u %8.2f MB %9.2f us %8.1f GB/s  %s\n", family_names[p.family],
           st_type_info(p.type)->name, shape, p.count,
           p.family == FEW ? l.args[22].i : l.args[7].i, (double)p.bytes / 1e6, us, rate, verdict);
    return STRATA_OK;
}

/* With one tile, or with every legal one. */
static enum strata_result bench_tiles(const struct bench *b, struct product p, struct strata_error *err)
{
    const struct st_type_info *type = st_type_info(p.type);
    p.bytes = (uint64_t)p.rows * (p.n / type->block_elems) * type->block_bytes;
    if (p.bytes > b->weight_bytes / 2)
        return STRATA_OK; /* a small device: there is nothing to rotate through */
    if (!b->tiles)
        return bench_product(b, p, err);
    for (p.tile = 1; p.tile <= 64; p.tile *= 2) {
        struct st_gpu_launch l;
        if (p.family == FEW || make_launch(b, &p, 0, &l, NULL) != STRATA_OK)
            continue; /* of FEW the launch chooses the tile */
        enum strata_result r = bench_product(b, p, err);
        if (r != STRATA_OK)
            return r;
    }
    return STRATA_OK;
}

static enum strata_result bench_all(const struct bench *b, struct strata_error *err)
{
    static const int types[] = {ST_TYPE_Q8_0, ST_TYPE_Q2_0, ST_TYPE_IQ4_NL, ST_TYPE_Q4_K};
    static const uint32_t rows[] = {640, 10240, 65536}, counts[] = {1, 4, 8};
    static const int few[] = {ST_TYPE_Q8_0, ST_TYPE_Q2_0, ST_TYPE_IQ4_NL, ST_TYPE_Q4_K, ST_TYPE_Q5_K, ST_TYPE_Q6_K,
                              ST_TYPE_IQ3_XXS, ST_TYPE_IQ2_XXS, ST_TYPE_IQ1_S, ST_TYPE_BF16};
    enum strata_result r = STRATA_OK;
    for (size_t t = 0; t < sizeof few / sizeof *few; t++)
        for (int i = 0; i < 3; i++)
            for (int k = 0; k < 3 && r == STRATA_OK; k++)
                r = bench_tiles(b, (struct product){FEW, few[t], COLUMNS, rows[i], counts[k], 0, 0}, err);
    if (r == STRATA_OK) /* the narrow side of a hyper-connection */
        r = bench_tiles(b, (struct product){FEW, ST_TYPE_BF16, 10240, 320, 1, 0, 0}, err);
    for (int t = 0; t < 4; t++)
        for (int i = 0; i < 3; i++)
            for (int k = 0; k < 3 && r == STRATA_OK; k++)
                r = bench_tiles(b, (struct product){MATVEC, types[t], COLUMNS, rows[i], counts[k], 0, 0}, err);
    return r;
}

enum strata_result st_device_fill_random(struct st_device *dev, st_addr at, uint64_t bytes, struct strata_error *err)
{
    enum { BLOCK = 8 << 20 };
    uint8_t *block = malloc(BLOCK);
    if (!block)
        return st_fail(err, STRATA_E_MEMORY, "no memory for random bytes");
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < BLOCK; i += 8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        memcpy(block + i, &state, 8);
    }
    enum strata_result r = STRATA_OK;
    for (uint64_t done = 0; done < bytes && r == STRATA_OK; done += BLOCK)
        r = dev->table->copy_in(dev->compute, at + done, block, bytes - done < BLOCK ? bytes - done : BLOCK, err);
    if (r == STRATA_OK)
        r = st_wait(dev, dev->compute, err);
    free(block);
    return r;
}

/* The copy that products are measured against: half of the weights to the other half. */
static enum strata_result time_copy(struct bench *b, struct strata_error *err)
{
    struct st_device *dev = b->dev;
    struct st_gpu_launch l;
    double best = 0;
    st_gpu_copy(b->weights + b->weight_bytes / 2, b->weights, b->weight_bytes / 2, &l);
    enum strata_result r = STRATA_OK;
    for (int i = 0; i < REPLAYS && r == STRATA_OK; i++) {
        double us = 0;
        r = dev->table->event_record(dev->compute, b->from, err);
        if (r == STRATA_OK)
            r = st_launch(dev, dev->compute, l.kernel, l.grid[0], l.grid[1], l.grid[2], l.args, "bandwidth", err);
        if (r == STRATA_OK)
            r = dev->table->event_record(dev->compute, b->to, err);
        if (r == STRATA_OK)
            r = st_wait(dev, dev->compute, err);
        if (r == STRATA_OK)
            r = dev->table->event_elapsed(b->from, b->to, &us, err);
        if (i > 0 && (best == 0 || us < best))
            best = us;
    }
    if (r == STRATA_OK)
        b->copy_rate = (double)b->weight_bytes / best * 1e6; /* half is read and half is written */
    return r;
}

static enum strata_result bench_kernels(struct st_device *dev, bool tiles, struct strata_error *err)
{
    enum { X_BYTES = 4 << 20, Y_BYTES = 8 << 20, SMALL = 64 << 20 };
    struct bench b = {.dev = dev, .tiles = tiles, .weight_bytes = (uint64_t)5 << 28};
    uint64_t free_bytes = 0, total = 0;
    enum strata_result r = dev->table->memory(dev->rt, &free_bytes, &total, err);
    if (dev->info.features & (ST_FEATURE_CPU | ST_FEATURE_SIMULATED))
        b.weight_bytes = SMALL;
    while (b.weight_bytes > free_bytes / 2 || b.weight_bytes > dev->info.max_allocation)
        b.weight_bytes /= 2;
    if (r == STRATA_OK)
        r = dev->table->event_create(dev->rt, true, &b.from, err);
    if (r == STRATA_OK)
        r = dev->table->event_create(dev->rt, true, &b.to, err);
    if (r == STRATA_OK)
        r = dev->table->allocate(dev->rt, b.weight_bytes + 64, &b.weights, err);
    if (r == STRATA_OK)
        r = dev->table->allocate(dev->rt, X_BYTES, &b.x, err);
    if (r == STRATA_OK)
        r = dev->table->allocate(dev->rt, Y_BYTES, &b.y, err);
    if (r == STRATA_OK)
        r = st_device_fill_random(dev, b.weights, b.weight_bytes + 64, err);
    if (r == STRATA_OK)
        r = st_device_fill_random(dev, b.x, X_BYTES, err);
    if (r == STRATA_OK)
        r = time_copy(&b, err);
    if (r == STRATA_OK) {
        printf("  weights rotate through %llu MiB; a copy of half of that: %.1f GB/s%s\n",
               (unsigned long long)(b.weight_bytes >> 20), b.copy_rate / 1e9,
               dev->info.features & ST_FEATURE_GRAPHS ? "; times inside a replayed graph" : "");
        r = bench_all(&b, err);
    }
    if (r == STRATA_OK)
        r = st_device_bench_prompts(dev, b.weights, b.weight_bytes, err);
    dev->table->release(dev->rt, b.y);
    dev->table->release(dev->rt, b.x);
    dev->table->release(dev->rt, b.weights);
    dev->table->event_free(b.from);
    dev->table->event_free(b.to);
    return r;
}

static enum strata_result bench(struct st_devices *devices, int found, bool tiles, struct strata_error *err)
{
    struct st_device *dev = NULL;
    const struct st_decode_shape shape = {.dense = st_decode_weight(ST_TYPE_Q6_K, COLUMNS, COLUMNS),
                                          .gate = st_decode_weight(ST_TYPE_Q2_0, COLUMNS, COLUMNS),
                                          .used = 1};
    enum strata_result r = st_device_open(devices, found, NULL, &dev, err);
    if (r == STRATA_OK)
        r = st_device_measure(dev, &shape, err);
    if (r == STRATA_OK) {
        print_measured(dev);
        r = bench_kernels(dev, tiles, err);
    }
    st_device_close(dev);
    return r;
}

int st_device_bench(struct st_devices *devices, bool tiles)
{
    int status = devices->cpu ? st_device_bench_cpu() : ST_EXIT_OK;
    if (status)
        return status;
    if (devices->chosen_count == 0 && !devices->cpu)
        return st_user_error("strata-device: no device to measure; --list-devices says why");
    for (int i = 0; i < devices->chosen_count; i++) {
        struct strata_error err = {0};
        if (bench(devices, devices->chosen[i], tiles, &err) != STRATA_OK)
            return st_report(&err);
    }
    return ST_EXIT_OK;
}
