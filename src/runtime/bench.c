/* Owns the measurement of decode products: an arena of random blocks, launches that walk through it, graphs, times. */
#include "runtime/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/gpu_experts.h"
#include "kernel/gpu_norm.h"
#include "kernel/gpu_products.h"

enum { SEED_BYTES = 16 << 20, MAX_LAUNCHES = 256, REPLAYS = 5, EXPERTS_USED = 10, ROOM = 4 << 20 };

struct bench {
    struct st_device *dev;
    const struct st_bench_options *options;
    st_addr weights, x, y, jobs;
    uint64_t arena;
    struct st_event *from, *to;
};

/* One kind of launch; make is called with the place of its weights in the arena. */
struct job {
    char name[96];
    uint64_t weights; /* bytes of one launch, a multiple of 16 */
    int type;
    uint32_t rows, n, count;
    bool experts, down;
};

static enum strata_result make_launch(struct bench *b, const struct job *job, uint64_t at, uint32_t number,
                                      struct st_gpu_launch *out, struct strata_error *err)
{
    if (!job->experts) {
        struct st_gpu_matvec a = {.type = job->type, .y = b->y, .w = b->weights + at, .x = b->x, .n = job->n, .rows = job->rows,
                                  .count = job->count, .ldy = job->rows, .tile = b->options->tile};
        return st_gpu_matvec(&a, out, err);
    }
    struct st_gpu_experts a = {.type = job->type, .y = b->y, .base = b->weights,
                               .jobs = b->jobs + (uint64_t)number * EXPERTS_USED * sizeof(struct st_expert_job), .x = b->x,
                               .n = job->n, .rows = job->rows, .ldy = job->rows, .n_jobs = EXPERTS_USED, .most = 1,
                               .tile = b->options->tile};
    return (job->down ? st_gpu_down : st_gpu_gate_up)(&a, out, err);
}

/* The experts of every launch: matrices that follow each other in the arena. */
static enum strata_result put_jobs(struct bench *b, const struct job *job, uint32_t launches, struct strata_error *err)
{
    const size_t size = (size_t)launches * EXPERTS_USED * sizeof(struct st_expert_job);
    struct st_expert_job *list = calloc((size_t)launches * EXPERTS_USED, sizeof *list);
    if (!list)
        return st_fail(err, STRATA_E_MEMORY, "measurement: no memory");
    const uint64_t one = job->weights / EXPERTS_USED;
    for (uint32_t i = 0; i < launches * EXPERTS_USED; i++) {
        list[i].gate = list[i].down = i * one;
        list[i].up = i * one + one / 2;
        list[i].count = 1;
        list[i].row[0] = 0;
        list[i].place[0] = i % EXPERTS_USED;
    }
    enum strata_result r = b->dev->table->copy_in(b->dev->compute, b->jobs, list, size, err);
    if (r == STRATA_OK)
        r = st_wait(b->dev, b->dev->compute, err);
    free(list);
    return r;
}

static enum strata_result give_launches(struct bench *b, const struct job *job, uint32_t launches, uint64_t *bytes,
                                        struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    for (uint32_t i = 0; i < launches && r == STRATA_OK; i++) {
        struct st_gpu_launch l;
        r = make_launch(b, job, i * job->weights, i, &l, err);
        if (r == STRATA_OK)
            r = st_launch(b->dev, b->dev->compute, l.kernel, l.grid[0], l.grid[1], l.grid[2], l.args, job->name, err);
        if (r == STRATA_OK)
            *bytes = st_gpu_bytes(l.kernel, l.grid, l.args);
    }
    return r;
}

static enum strata_result measure(struct bench *b, const struct job *job, struct strata_error *err)
{
    struct st_device *dev = b->dev;
    struct st_bench_line line = {.microseconds = 0};
    struct st_graph *graph = NULL;
    uint32_t launches = (uint32_t)(b->arena / job->weights);
    if (launches == 0)
        return STRATA_OK; /* the device is too small for this one */
    launches = launches > MAX_LAUNCHES ? MAX_LAUNCHES : launches;
    snprintf(line.name, sizeof line.name, "%s", job->name);
    enum strata_result r = job->experts ? put_jobs(b, job, launches, err) : STRATA_OK;
    bool graphs = dev->info.features & ST_FEATURE_GRAPHS && dev->check == ST_CHECK_NONE;
    if (r == STRATA_OK && graphs) {
        r = st_capture_begin(dev, dev->compute, err);
        if (r == STRATA_OK) {
            enum strata_result given = give_launches(b, job, launches, &line.bytes, err);
            r = st_capture_end(dev, dev->compute, &graph, given == STRATA_OK ? err : NULL);
            r = given == STRATA_OK ? r : given;
        }
    }
    for (int i = 0; i <= REPLAYS && r == STRATA_OK; i++) {
        double us = 0;
        r = dev->table->event_record(dev->compute, b->from, err);
        if (r == STRATA_OK)
            r = graphs ? dev->table->graph_launch(dev->compute, graph, err) : give_launches(b, job, launches, &line.bytes, err);
        if (r == STRATA_OK)
            r = dev->table->event_record(dev->compute, b->to, err);
        if (r == STRATA_OK)
            r = st_wait(dev, dev->compute, err);
        if (r == STRATA_OK)
            r = dev->table->event_elapsed(b->from, b->to, &us, err);
        us /= launches;
        if (i > 0 && us > 0 && (line.microseconds == 0 || us < line.microseconds))
            line.microseconds = us;
    }
    if (graph)
        dev->table->graph_free(graph);
    if (r == STRATA_OK && line.microseconds > 0) {
        line.rate = (double)line.bytes / line.microseconds * 1e6;
        b->options->report(b->options->arg, &line);
    }
    return r;
}

/* Random bytes in the whole arena: what the values are does not matter, that they differ does. */
static enum strata_result fill_arena(struct bench *b, struct strata_error *err)
{
    const struct st_runtime *table = b->dev->table;
    uint64_t have = b->arena < SEED_BYTES ? b->arena : SEED_BYTES, random = 1;
    uint64_t *words = malloc(SEED_BYTES);
    if (!words)
        return st_fail(err, STRATA_E_MEMORY, "measurement: no memory");
    for (size_t i = 0; i < SEED_BYTES / 8; i++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        words[i] = random;
    }
    enum strata_result r = table->copy_in(b->dev->compute, b->weights, words, have, err);
    while (r == STRATA_OK && have < b->arena) {
        uint64_t more = b->arena - have < have ? b->arena - have : have;
        r = table->copy(b->dev->compute, b->weights + have, b->weights, more, err);
        have += more;
    }
    if (r == STRATA_OK)
        r = table->fill(b->dev->compute, b->x, 1, ROOM, err);
    if (r == STRATA_OK)
        r = st_wait(b->dev, b->dev->compute, err);
    free(words);
    return r;
}

static enum strata_result measure_all(struct bench *b, struct strata_error *err)
{
    static const struct {
        int type;
        uint32_t rows;
    } types[] = {{ST_TYPE_Q8_0, 16384}, {ST_TYPE_Q2_0, 32768}, {ST_TYPE_IQ4_NL, 16384}, {ST_TYPE_Q4_K, 16384}};
    static const uint32_t counts[] = {1, 2, 4, 8};
    enum strata_result r = STRATA_OK;
    for (size_t i = 0; i < 16 && r == STRATA_OK; i++) {
        struct job job = {.type = types[i / 4].type, .rows = types[i / 4].rows, .n = 2560, .count = counts[i % 4]};
        const struct st_type_info *info = st_type_info(job.type);
        job.weights = (uint64_t)job.rows * (job.n / info->block_elems) * info->block_bytes;
        snprintf(job.name, sizeof job.name, "%u row%s times %s [%u x %u]", job.count, job.count == 1 ? "" : "s", info->name, job.rows,
                 job.n);
        r = measure(b, &job, err);
    }
    for (size_t i = 0; i < 4 && r == STRATA_OK; i++) {
        struct job job = {.type = types[i / 2].type, .experts = true, .down = i % 2};
        const struct st_type_info *info = st_type_info(job.type);
        job.rows = job.down ? 2560 : 640;
        job.n = job.down ? 640 : 2560;
        job.weights = EXPERTS_USED * (job.down ? 1ull : 2ull) * job.rows * (job.n / info->block_elems) * info->block_bytes;
        snprintf(job.name, sizeof job.name, "%s of %d experts %s [%u x %u]", job.down ? "down" : "gate and up", EXPERTS_USED,
                 info->name, job.rows, job.n);
        r = measure(b, &job, err);
    }
    return r;
}

enum strata_result st_bench_products(struct st_device *dev, const struct st_bench_options *options, struct strata_error *err)
{
    const struct st_runtime *table = dev->table;
    struct bench b = {.dev = dev, .options = options};
    uint64_t free_bytes = 0, total = 0;
    enum strata_result r = table->memory(dev->rt, &free_bytes, &total, err);
    b.arena = free_bytes / 2 < options->arena ? free_bytes / 2 : options->arena;
    b.arena = b.arena < dev->info.max_allocation ? b.arena : dev->info.max_allocation;
    b.arena = b.arena / 256 * 256;
    if (r == STRATA_OK)
        r = table->allocate(dev->rt, b.arena, &b.weights, err);
    if (r == STRATA_OK)
        r = table->allocate(dev->rt, ROOM, &b.x, err);
    if (r == STRATA_OK)
        r = table->allocate(dev->rt, ROOM, &b.y, err);
    if (r == STRATA_OK)
        r = table->allocate(dev->rt, MAX_LAUNCHES * EXPERTS_USED * sizeof(struct st_expert_job), &b.jobs, err);
    if (r == STRATA_OK)
        r = table->event_create(dev->rt, true, &b.from, err);
    if (r == STRATA_OK)
        r = table->event_create(dev->rt, true, &b.to, err);
    if (r == STRATA_OK)
        r = fill_arena(&b, err);
    if (r == STRATA_OK)
        r = measure_all(&b, err);
    table->event_free(b.to);
    table->event_free(b.from);
    const st_addr memory[] = {b.jobs, b.y, b.x, b.weights};
    for (int i = 0; i < 4; i++)
        if (memory[i])
            table->release(dev->rt, memory[i]);
    return r;
}
