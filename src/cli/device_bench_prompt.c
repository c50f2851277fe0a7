/* strata-device --bench: prompt products in operations per second beside what the matrix units do when nothing else is asked
 * of them. */
#include <stdio.h>
#include <stdlib.h>

#include "cli/device_bench.h"
#include "format/quant.h"
#include "kernel/gpu_gemm.h"
#include "kernel/gpu_norm.h"

enum { RUNS = 5, IN_RUN = 3, EXPERTS = 512, USED = 10, WIDTH = 640, HIDDEN = 2560 };

struct prompts {
    struct st_device *dev;
    struct st_event *from, *to;
    st_addr w, x, y, opened, routing; /* routing: tiles, first, entry */
    uint64_t w_bytes, x_bytes, y_bytes, opened_bytes;
    uint32_t rows; /* of the prompt */
    double peak;   /* operations per microsecond */
};

/* Microseconds of some launches one after the other, the best of several runs. */
static enum strata_result time_launches(const struct prompts *p, const struct st_gpu_launch *l, int count, double *best,
                                        struct strata_error *err)
{
    const struct st_runtime *table = p->dev->table;
    enum strata_result r = STRATA_OK;
    *best = 0;
    for (int i = 0; i < RUNS && r == STRATA_OK; i++) {
        double us = 0;
        r = table->event_record(p->dev->compute, p->from, err);
        for (int k = 0; k < IN_RUN * count && r == STRATA_OK; k++) {
            const struct st_gpu_launch *one = &l[k % count];
            r = st_launch(p->dev, p->dev->compute, one->kernel, one->grid[0], one->grid[1], one->grid[2], one->args,
                          "prompt products", err);
        }
        if (r == STRATA_OK)
            r = table->event_record(p->dev->compute, p->to, err);
        if (r == STRATA_OK)
            r = st_wait(p->dev, p->dev->compute, err);
        if (r == STRATA_OK)
            r = table->event_elapsed(p->from, p->to, &us, err);
        us /= IN_RUN;
        if (i > 0 && (*best == 0 || us < *best))
            *best = us;
    }
    return r;
}

static enum strata_result time_peak(struct prompts *p, struct strata_error *err)
{
    struct st_gpu_launch l;
    bool slow = p->dev->info.features & (ST_FEATURE_CPU | ST_FEATURE_SIMULATED);
    uint32_t groups = slow ? 1 : (p->dev->info.units ? p->dev->info.units : 64) * 4, rounds = slow ? 16 : 4096;
    double us = 0;
    uint64_t each = st_gpu_tile_peak(p->y, groups, rounds, p->dev->info.lanes, &l);
    enum strata_result r = time_launches(p, &l, 1, &us, err);
    if (r == STRATA_OK) {
        p->peak = us > 0 ? (double)each * groups / us : 0;
        printf("  matrix units alone, 8-bit integers     %8.1f TOPS\n", p->peak * 1e-6);
    }
    return r;
}

static void print_line(const struct prompts *p, const char *what, int type, const char *shape, double us, double operations,
                       bool integers)
{
    char share[32] = "";
    if (integers && p->peak > 0)
        snprintf(share, sizeof share, "%5.1f %% of peak", 100.0 * operations / us / p->peak);
    printf("  %-8s %-8s %-24s rows %4u %10.1f us %8.1f T%s %s\n", what, st_type_info(type)->name, shape, p->rows, us,
           operations / us * 1e-6, integers ? "OPS" : "FLOPS", share);
}

static enum strata_result bench_dense(const struct prompts *p, int type, uint32_t rows, uint32_t n, struct strata_error *err)
{
    const struct st_type_info *info = st_type_info(type);
    bool floats = info->block_elems == 1;
    struct st_gpu_gemm a = {.type = type,
                            .y = p->y,
                            .w = p->w,
                            .x = p->x,
                            .n = n,
                            .rows = rows,
                            .stride = floats ? n * 4 : st_gpu_act_stride(info->act, n),
                            .ldy = rows,
                            .total = p->rows,
                            .units = p->dev->info.units,
                            .folded = (p->dev->info.features & ST_FEATURE_FOLDED) != 0};
    struct st_gpu_launch l[ST_GPU_OPENED_LAUNCHES];
    uint32_t row = 0;
    int count = 1;
    double us = 0;
    char shape[40];
    snprintf(shape, sizeof shape, "[%u x %u]", rows, n);
    if ((uint64_t)rows * (n / info->block_elems) * info->block_bytes > p->w_bytes || (uint64_t)p->rows * a.stride > p->x_bytes ||
        (uint64_t)p->rows * rows * 4 > p->y_bytes)
        return STRATA_OK; /* a small device */
    /* Opening the weights is part of the time. */
    const bool wide = st_gpu_gemm_wide(&a) && st_gpu_gemm_opened_bytes(&a) <= p->opened_bytes;
    enum strata_result r = floats ? st_gpu_gemm_floats(&a, l, err)
                           : wide ? st_gpu_gemm_opened(&a, p->opened, &row, l, &count, err)
                                  : st_gpu_gemm(&a, l, err);
    if (r == STRATA_OK)
        r = time_launches(p, l, count, &us, err);
    if (r == STRATA_OK)
        print_line(p, "prompt", type, shape, us, 2.0 * rows * n * p->rows, !floats);
    return r;
}

/* Every row chooses USED of EXPERTS experts; pair: gate and up, else down. */
static enum strata_result bench_experts(const struct prompts *p, int type, bool pair, struct strata_error *err)
{
    const struct st_type_info *info = st_type_info(type);
    const uint32_t n = pair ? HIDDEN : WIDTH, rows = pair ? WIDTH : HIDDEN, entries = p->rows * USED;
    const uint64_t matrices = (uint64_t)EXPERTS * rows * (n / info->block_elems) * info->block_bytes;
    const uint32_t bound = st_gpu_gemm_tile_bound(entries, EXPERTS);
    const st_addr first = p->routing + (uint64_t)bound * 16, entry = first + 4096;
    struct st_gpu_gemm a = {.type = type,
                            .y = p->y,
                            .w = p->w,
                            .up = pair ? p->w + (matrices + 15) / 16 * 16 : 0,
                            .x = p->x,
                            .n = n,
                            .rows = rows,
                            .stride = st_gpu_act_stride(info->act, n),
                            .ldy = rows,
                            .tiles = p->routing,
                            .entry = entry,
                            .n_tiles = bound,
                            .used = pair ? USED : 0,
                            .units = p->dev->info.units};
    if (matrices * (pair ? 2 : 1) + 16 > p->w_bytes || (uint64_t)(pair ? p->rows : entries) * a.stride > p->x_bytes ||
        (uint64_t)entries * rows * 4 > p->y_bytes)
        return STRATA_OK;
    struct st_gpu_launch l;
    double us = 0;
    char shape[40];
    snprintf(shape, sizeof shape, "%u of %u x [%u x %u]", USED, EXPERTS, rows, n);
    enum strata_result r = st_gpu_gemm(&a, &l, err);
    if (r == STRATA_OK)
        r = time_launches(p, &l, 1, &us, err);
    if (r == STRATA_OK)
        print_line(p, pair ? "gate+up" : "down", type, shape, us, 2.0 * rows * n * entries * (pair ? 2 : 1), true);
    return r;
}

/* Random choices, grouped by expert; and their tiles. */
static enum strata_result write_routing(const struct prompts *p, struct strata_error *err)
{
    const uint32_t entries = p->rows * USED, bound = st_gpu_gemm_tile_bound(entries, EXPERTS);
    int32_t *v = calloc(1024 + (size_t)entries * 2, sizeof *v), *entry = v + 1024, *chosen = entry + entries, first[EXPERTS] = {0};
    if (!v)
        return st_fail(err, STRATA_E_MEMORY, "no memory for a routing");
    uint64_t state = 88172645463325252u;
    for (uint32_t i = 0; i < entries; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        chosen[i] = (int32_t)(state >> 33) % EXPERTS;
        v[chosen[i] + 1]++;
    }
    for (int e = 0; e < EXPERTS; e++) {
        first[e] = v[e];
        v[e + 1] += v[e];
    }
    for (uint32_t i = 0; i < entries; i++)
        entry[first[chosen[i]]++] = (int32_t)i;
    const st_addr at = p->routing + (uint64_t)bound * 16;
    enum strata_result r = p->dev->table->copy_in(p->dev->compute, at, v, (1024 + (uint64_t)entries) * 4, err);
    struct st_gpu_launch l;
    st_gpu_gemm_tiles(p->routing, at, EXPERTS, bound, &l);
    if (r == STRATA_OK)
        r = st_launch(p->dev, p->dev->compute, l.kernel, l.grid[0], l.grid[1], l.grid[2], l.args, "routing", err);
    if (r == STRATA_OK)
        r = st_wait(p->dev, p->dev->compute, err);
    free(v);
    return r;
}

static enum strata_result bench_all(struct prompts *p, struct strata_error *err)
{
    static const int types[] = {ST_TYPE_Q8_0, ST_TYPE_Q2_0, ST_TYPE_IQ4_NL, ST_TYPE_Q4_K, ST_TYPE_Q6_K, ST_TYPE_IQ3_XXS};
    static const int expert_types[] = {ST_TYPE_Q2_0, ST_TYPE_IQ4_NL, ST_TYPE_Q8_0};
    const uint32_t wide = p->rows < 2048 ? 128 : 10240, n = p->rows < 2048 ? 256 : HIDDEN;
    enum strata_result r = time_peak(p, err);
    for (size_t t = 0; t < sizeof types / sizeof *types && r == STRATA_OK; t++)
        r = bench_dense(p, types[t], wide, n, err);
    if (r == STRATA_OK)
        r = bench_dense(p, ST_TYPE_BF16, wide, 320, err);
    if (r == STRATA_OK)
        r = bench_dense(p, ST_TYPE_BF16, 320, wide, err);
    if (r == STRATA_OK)
        r = write_routing(p, err);
    for (size_t t = 0; t < sizeof expert_types / sizeof *expert_types && r == STRATA_OK; t++) {
        r = bench_experts(p, expert_types[t], true, err);
        if (r == STRATA_OK)
            r = bench_experts(p, expert_types[t], false, err);
    }
    return r;
}

enum strata_result st_device_bench_prompts(struct st_device *dev, st_addr weights, uint64_t bytes, struct strata_error *err)
{
    struct prompts p = {.dev = dev, .w = weights, .w_bytes = bytes};
    bool slow = dev->info.features & (ST_FEATURE_CPU | ST_FEATURE_SIMULATED);
    uint64_t free_bytes = 0, total = 0;
    enum strata_result r = dev->table->memory(dev->rt, &free_bytes, &total, err);
    p.rows = slow ? 64 : 2048;
    p.x_bytes = slow ? 4 << 20 : 96 << 20;
    p.y_bytes = slow ? 4 << 20 : 256 << 20;
    p.opened_bytes = slow ? 1 << 20 : 96 << 20;
    if (r != STRATA_OK || free_bytes / 2 < p.x_bytes + p.y_bytes || dev->info.max_allocation < p.y_bytes)
        return r;
    if (r == STRATA_OK)
        r = dev->table->event_create(dev->rt, true, &p.from, err);
    if (r == STRATA_OK)
        r = dev->table->event_create(dev->rt, true, &p.to, err);
    if (r == STRATA_OK)
        r = dev->table->allocate(dev->rt, p.x_bytes, &p.x, err);
    if (r == STRATA_OK)
        r = dev->table->allocate(dev->rt, p.y_bytes, &p.y, err);
    if (r == STRATA_OK)
        r = dev->table->allocate(dev->rt, p.opened_bytes, &p.opened, err);
    if (r == STRATA_OK)
        r = dev->table->allocate(dev->rt, 1 << 20, &p.routing, err);
    if (r == STRATA_OK)
        r = st_device_fill_random(dev, p.x, p.x_bytes, err);
    if (r == STRATA_OK)
        r = bench_all(&p, err);
    dev->table->release(dev->rt, p.routing);
    dev->table->release(dev->rt, p.opened);
    dev->table->release(dev->rt, p.y);
    dev->table->release(dev->rt, p.x);
    dev->table->event_free(p.from);
    dev->table->event_free(p.to);
    return r;
}
