/* Sampling family: what the device is told, and the order of launches. */
#include "kernel/gpu_sample.h"

#include <string.h>

/* ---- blocks ---- */

static uint64_t mask_words(uint32_t vocabulary)
{
    return (vocabulary + 31ull) / 32;
}

uint64_t st_gpu_sample_block(uint32_t rows, uint32_t vocabulary)
{
    return rows * (sizeof(struct st_sample_row) + 4 * (2ull * ST_GPU_SAMPLE_PAIRS + mask_words(vocabulary)));
}

/* Appends words at *at; false when they do not fit. */
static bool append(uint32_t *words, uint64_t room, uint64_t *at, const void *from, uint64_t count)
{
    if (count > room - *at)
        return false;
    if (count)
        memcpy(words + *at, from, count * 4);
    *at += count;
    return true;
}

static bool pack_row(const struct st_sample *a, uint32_t vocabulary, struct st_sample_row *row, uint32_t *words, uint64_t room,
                     uint64_t *at)
{
    _Static_assert(sizeof *a->bias == 8 && sizeof *a->seen == 8, "pairs of words");
    _Static_assert(sizeof(struct st_sample_pick) == sizeof(struct st_sample_result), "one layout");
    *row = (struct st_sample_row){.random = a->random,
                                  .least = a->least,
                                  .temperature = a->temperature,
                                  .repetition = a->repetition,
                                  .frequency = a->frequency,
                                  .presence = a->presence,
                                  .top_k = a->top_k < vocabulary ? a->top_k : 0,
                                  .share = a->share,
                                  .biases = a->biases,
                                  .seen_count = a->seen_count,
                                  .mask = ST_SAMPLE_NO_MASK,
                                  .measure = a->measure};
    row->bias = (uint32_t)*at;
    if (!append(words, room, at, a->bias, 2ull * a->biases))
        return false;
    row->seen = (uint32_t)*at;
    if (!append(words, room, at, a->seen, 2ull * a->seen_count))
        return false;
    if (a->mask)
        row->mask = (uint32_t)*at;
    return !a->mask || append(words, room, at, a->mask, mask_words(vocabulary));
}

bool st_gpu_sample_pack(const struct st_sample *rows, uint32_t n, uint32_t vocabulary, uint8_t *block, uint64_t bytes,
                        uint64_t *used, struct st_gpu_sample_steps *steps)
{
    struct st_sample_row *row = (struct st_sample_row *)(void *)block;
    uint32_t *words = (uint32_t *)(void *)(row + n);
    uint64_t room = (bytes - n * sizeof *row) / 4, at = 0;
    *steps = (struct st_gpu_sample_steps){0};
    for (uint32_t i = 0; i < n; i++) {
        if (!pack_row(&rows[i], vocabulary, &row[i], words, room, &at))
            return false;
        bool draws = row[i].temperature > 0.0f;
        steps->draw = steps->draw || draws;
        steps->top_k = steps->top_k || (draws && row[i].top_k);
        steps->top_p = steps->top_p || (draws && row[i].share < ST_SAMPLE_SHARE);
    }
    *used = n * sizeof *row + 4 * at;
    return true;
}

/* ---- launches ---- */

/* Where things lie in the scratch. */
struct places {
    st_addr adjusted, best, state, sums, work, end;
};

static uint32_t chunks_of(uint32_t vocabulary)
{
    return (vocabulary + ST_SAMPLE_CHUNK - 1) / ST_SAMPLE_CHUNK;
}

static st_addr after(st_addr at, uint64_t bytes)
{
    return at + (bytes + 15) / 16 * 16;
}

static struct places places(st_addr scratch, uint32_t n, uint32_t vocabulary)
{
    const uint64_t chunks = (uint64_t)n * chunks_of(vocabulary);
    struct places p = {.adjusted = scratch};
    p.best = after(p.adjusted, (uint64_t)n * vocabulary * 4);
    p.state = after(p.best, chunks * 16);
    p.sums = after(p.state, n * sizeof(struct st_sample_state));
    p.work = after(p.sums, chunks * ST_SAMPLE_BINS * 8);
    p.end = after(p.work, vocabulary * 12ull); /* struct st_sample_work of one row */
    return p;
}

uint64_t st_gpu_sample_scratch(uint32_t n, uint32_t vocabulary)
{
    return places(0, n, vocabulary).end;
}

static union st_arg *start(struct st_gpu_list *list, enum st_gpu_kernel kernel, uint32_t x, uint32_t rows, int addresses,
                           const st_addr *at)
{
    struct st_gpu_launch *l = st_gpu_push(list);
    *l = (struct st_gpu_launch){.kernel = kernel, .grid = {x, rows, 1}};
    for (int i = 0; i < addresses; i++)
        l->args[i].p = at[i];
    return l->args + addresses;
}

/* Top-k (which 0) or top-p (1). */
static void choose(const struct st_gpu_sample *a, const struct places *p, st_addr rows, uint32_t which, struct st_gpu_list *list)
{
    const uint32_t chunks = chunks_of(a->vocabulary);
    for (uint32_t pass = 4 * which; pass < 4 * which + 4; pass++) {
        union st_arg *arg = start(list, ST_GPU_SAMPLE_DIGIT, chunks, a->n, 4, (st_addr[]){p->sums, p->state, p->adjusted, rows});
        arg[0].i = a->vocabulary;
        arg[1].i = chunks;
        arg[2].i = pass;
        arg = start(list, ST_GPU_SAMPLE_CHOOSE, 1, a->n, 4, (st_addr[]){p->state, p->sums, p->adjusted, rows});
        arg[0].i = a->vocabulary;
        arg[1].i = chunks;
        arg[2].i = pass;
    }
}

enum strata_result st_gpu_sample(const struct st_gpu_sample *a, struct st_gpu_list *list, struct strata_error *err)
{
    if (a->vocabulary == 0 || a->vocabulary > ST_GPU_SAMPLE_VOCABULARY)
        return st_fail(err, STRATA_E_UNSUPPORTED, "sampling: no kernel for a vocabulary of %u tokens", a->vocabulary);
    const struct places p = places(a->scratch, a->n, a->vocabulary);
    const uint32_t chunks = chunks_of(a->vocabulary);
    const st_addr rows = a->block, words = a->block + a->n * sizeof(struct st_sample_row);
    union st_arg *arg =
        start(list, ST_GPU_SAMPLE_ADJUST, chunks, a->n, 5, (st_addr[]){p.adjusted, p.best, a->logits, rows, words});
    arg[0].i = a->vocabulary;
    arg[1].i = chunks;
    arg = start(list, ST_GPU_SAMPLE_BEST, 1, a->n, 6, (st_addr[]){a->picks, p.state, p.work, p.best, p.adjusted, rows});
    arg[0].i = a->vocabulary;
    arg[1].i = chunks;
    if (a->steps.top_k)
        choose(a, &p, rows, 0, list);
    if (a->steps.top_p)
        choose(a, &p, rows, 1, list);
    if (!a->steps.draw)
        return STRATA_OK;
    arg = start(list, ST_GPU_SAMPLE_SUM, chunks, a->n, 4, (st_addr[]){p.sums, p.state, p.adjusted, rows});
    arg[0].i = a->vocabulary;
    arg[1].i = chunks;
    arg = start(list, ST_GPU_SAMPLE_DRAW, 1, a->n, 5, (st_addr[]){a->picks, p.state, p.sums, p.adjusted, rows});
    arg[0].i = a->vocabulary;
    arg[1].i = chunks;
    return STRATA_OK;
}

/* ---- C form: the first launch adjusts a row, the second one draws, and the others have nothing left to do ---- */

static void *memory(union st_arg a)
{
    return (void *)(uintptr_t)a.p;
}

static struct st_sample unpack(const struct st_sample_row *r, const uint32_t *words)
{
    return (struct st_sample){.random = r->random,
                              .least = r->least,
                              .temperature = r->temperature,
                              .repetition = r->repetition,
                              .frequency = r->frequency,
                              .presence = r->presence,
                              .top_k = r->top_k,
                              .share = r->share,
                              .mask = r->mask == ST_SAMPLE_NO_MASK ? NULL : words + r->mask,
                              .bias = (const void *)(words + r->bias),
                              .seen = (const void *)(words + r->seen),
                              .biases = r->biases,
                              .seen_count = r->seen_count,
                              .measure = r->measure};
}

/* The pick of a row goes through the first chunk's place in best. */
static void adjust(const uint32_t grid[3], const union st_arg *args)
{
    const uint32_t vocabulary = args[5].i, chunks = args[6].i;
    for (uint32_t i = 0; i < grid[1]; i++) {
        const struct st_sample row = unpack((const struct st_sample_row *)memory(args[3]) + i, memory(args[4]));
        const struct st_sample_work work = {.logit = (float *)memory(args[0]) + (size_t)i * vocabulary};
        st_sample_adjust(&row, (const float *)memory(args[2]) + (size_t)i * vocabulary, vocabulary, &work,
                         (struct st_sample_pick *)memory(args[1]) + (size_t)i * chunks);
    }
}

static void draw(const uint32_t grid[3], const union st_arg *args)
{
    const uint32_t vocabulary = args[6].i, chunks = args[7].i;
    uint64_t *weights = memory(args[2]);
    for (uint32_t i = 0; i < grid[1]; i++) {
        const struct st_sample row = unpack((const struct st_sample_row *)memory(args[5]) + i,
                                           (const uint32_t *)(const void *)((const struct st_sample_row *)memory(args[5]) + grid[1]));
        const struct st_sample_work work = {.logit = (float *)memory(args[4]) + (size_t)i * vocabulary,
                                            .weight = weights,
                                            .id = (int32_t *)(void *)(weights + vocabulary)};
        struct st_sample_pick *pick = (struct st_sample_pick *)memory(args[0]) + i;
        *pick = ((const struct st_sample_pick *)memory(args[3]))[(size_t)i * chunks];
        if (pick->status == ST_SAMPLE_OK)
            st_sample_draw(&row, vocabulary, &work, pick);
    }
}

bool st_gpu_sample_reference(enum st_gpu_kernel kernel, const uint32_t grid[3], const union st_arg *args)
{
    switch (kernel) {
    case ST_GPU_SAMPLE_ADJUST: adjust(grid, args); return true;
    case ST_GPU_SAMPLE_BEST: draw(grid, args); return true;
    case ST_GPU_SAMPLE_DIGIT:
    case ST_GPU_SAMPLE_CHOOSE:
    case ST_GPU_SAMPLE_SUM:
    case ST_GPU_SAMPLE_DRAW: return true;
    default: return false;
    }
}
