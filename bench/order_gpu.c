/* Measures what the defined order of float sums costs on a GPU: bench/gpu/order.cl, both orders, weights that walk through
 * 2 GiB, launches in a replayed graph.
 *
 *     order-gpu DEVICE IMAGE.zst        order-gpu cuda:0 build/bench/order.sm_90a.zst */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "kernel/gpu/layout.h"
#include "kernel/gpu_launch.h"
#include "runtime/device.h"

enum { COLUMNS = 2560, REPLAYS = 7, MAX_LAUNCHES = 128, ROOM = 4 << 20 };
static const uint64_t ARENA = 2ull << 30;

static const struct variant {
    struct st_kernel_desc desc;
    int type;
    uint32_t rows, tile, row_bytes;
} variants[] = {
    {{"st_ordered_q8_0", "order", "pcciiii", {192, 1, 1}, true}, ST_TYPE_Q8_0, 16384, 4, 2720},
    {{"st_free_q8_0", "order", "pcciiii", {192, 1, 1}, true}, ST_TYPE_Q8_0, 16384, 4, 2720},
    {{"st_ordered_q2_0", "order", "pcciiii", {192, 1, 1}, true}, ST_TYPE_Q2_0, 32768, 16, 720},
    {{"st_free_q2_0", "order", "pcciiii", {192, 1, 1}, true}, ST_TYPE_Q2_0, 32768, 16, 720},
};

struct bench {
    struct st_device *dev;
    struct st_module *module;
    st_addr w, x, y;
    struct st_event *from, *to;
};

static enum strata_result fill(struct bench *b, struct strata_error *err)
{
    const struct st_runtime *t = b->dev->table;
    const size_t seed = 16 << 20;
    uint64_t *words = malloc(seed), random = 88172645463325252ull;
    if (!words)
        return st_fail(err, STRATA_E_MEMORY, "no memory");
    for (size_t i = 0; i < seed / 8; i++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        words[i] = random & 0x3bff3bff3bff3bffull; /* halves stay finite wherever a scale falls */
    }
    enum strata_result r = STRATA_OK;
    for (uint64_t at = 0; at < ARENA && r == STRATA_OK; at += seed)
        r = t->copy_in(b->dev->compute, b->w + at, words, seed, err);
    if (r == STRATA_OK)
        r = t->fill(b->dev->compute, b->x, 1, ROOM, err);
    if (r == STRATA_OK)
        r = t->queue_sync(b->dev->compute, err);
    free(words);
    return r;
}

static enum strata_result run(struct bench *b, const struct variant *v, struct strata_error *err)
{
    const struct st_runtime *t = b->dev->table;
    struct st_queue *queue = b->dev->compute;
    struct st_function *f;
    struct st_function_info info;
    struct st_graph *graph = NULL;
    const uint64_t matrix = (uint64_t)v->rows * v->row_bytes;
    const uint32_t groups = (v->type == ST_TYPE_Q8_0 ? 5 : 3) * b->dev->info.units;
    uint32_t launches = (uint32_t)(ARENA / matrix);
    launches = launches > MAX_LAUNCHES ? MAX_LAUNCHES : launches;
    double best = 0;
    enum strata_result r = t->function(b->module, &v->desc, &f, &info, err);
    if (r == STRATA_OK)
        r = t->graph_begin(queue, err);
    for (uint32_t i = 0; i < launches && r == STRATA_OK; i++) {
        const union st_arg args[] = {{.p = b->y}, {.p = b->w + i * matrix}, {.p = b->x}, {.i = COLUMNS}, {.i = v->rows}, {.i = v->tile},
                                     {.i = groups}};
        r = t->launch(queue, f, (const uint32_t[3]){groups, 1, 1}, args, err);
    }
    if (r == STRATA_OK)
        r = t->graph_end(queue, &graph, err);
    for (int i = 0; i <= REPLAYS && r == STRATA_OK; i++) {
        double us;
        r = t->event_record(queue, b->from, err);
        if (r == STRATA_OK)
            r = t->graph_launch(queue, graph, err);
        if (r == STRATA_OK)
            r = t->event_record(queue, b->to, err);
        if (r == STRATA_OK)
            r = t->queue_sync(queue, err);
        if (r == STRATA_OK)
            r = t->event_elapsed(b->from, b->to, &us, err);
        if (r == STRATA_OK && i > 0 && (best == 0 || us < best))
            best = us;
    }
    if (r == STRATA_OK)
        printf("%-18s [%u x %u]  %8.2f us  %8.1f GB/s  %d registers, %d bytes spilled, %d local\n", v->desc.name, v->rows,
               (unsigned)COLUMNS, best / launches, (double)matrix * launches / best * 1e-3, info.registers, info.spills, info.local);
    if (graph)
        t->graph_free(graph);
    return r;
}

static enum strata_result load(struct bench *b, const char *path, struct strata_error *err)
{
    char *data = NULL;
    size_t size = 0;
    void *image = NULL;
    uint64_t image_size = 0;
    enum strata_result r = st_read_file(path, 16 << 20, &data, &size, err);
    if (r == STRATA_OK) {
        struct st_image packed = {"?", "order", b->dev->table->image, (const uint8_t *)data, size};
        r = st_image_read(&packed, &image, &image_size, err);
    }
    if (r == STRATA_OK)
        r = b->dev->table->module_load(b->dev->rt, "order", image, image_size, &b->module, err);
    free(data);
    return r; /* the image stays: a driver may keep pointers into it */
}

int main(int argc, char **argv)
{
    struct strata_error err = {0};
    struct st_devices *set = NULL;
    struct bench b = {0};
    if (argc != 3) {
        fprintf(stderr, "order-gpu DEVICE IMAGE.zst\n");
        return 2;
    }
    const bool needed[ST_GPU_KERNEL_COUNT] = {[ST_GPU_COPY] = true, [ST_GPU_EMPTY] = true};
    enum strata_result r = st_devices_open(&(struct st_device_options){.devices = argv[1]}, &set, &err);
    if (r == STRATA_OK)
        r = st_device_open(set, set->chosen[0], needed, &b.dev, &err);
    if (r == STRATA_OK)
        r = load(&b, argv[2], &err);
    const uint64_t sizes[] = {ARENA, ROOM, ROOM};
    st_addr *const places[] = {&b.w, &b.x, &b.y};
    for (int i = 0; i < 3 && r == STRATA_OK; i++)
        r = b.dev->table->allocate(b.dev->rt, sizes[i], places[i], &err);
    if (r == STRATA_OK)
        r = b.dev->table->event_create(b.dev->rt, true, &b.from, &err);
    if (r == STRATA_OK)
        r = b.dev->table->event_create(b.dev->rt, true, &b.to, &err);
    if (r == STRATA_OK)
        r = fill(&b, &err);
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < sizeof variants / sizeof *variants && r == STRATA_OK; i++)
            r = run(&b, &variants[i], &err);
    if (r != STRATA_OK)
        fprintf(stderr, "order-gpu: %s\n", err.text);
    return r == STRATA_OK ? 0 : 1;
}
