/* Self-test of sampling: picks of random rows, many of them unkind, against kernel/sample.h. */
#include "runtime/selftest_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/gpu_sample.h"

enum { ROWS = 8, BIASES = 24, SEEN = 90, KINDS = 9 };

/* What logits of a row are like. */
static const char *const kinds[KINDS] = {"of any value",   "with many ties",   "all the same", "subnormal", "half of them banned",
                                         "all of them banned", "with a NaN", "with infinities", "huge"};

/* One row and what it points to. */
struct row {
    struct st_sample a;
    struct strata_logit_bias bias[BIASES];
    struct st_sample_seen seen[SEEN];
    uint32_t *mask;
};

static float one_logit(struct st_test_run *run, uint32_t kind)
{
    float v = 0.0f;
    st_test_floats(run, &v, 1);
    switch (kind) {
    case 1: return (float)((int)st_test_below(run, 5) - 2) * (st_test_below(run, 2) ? 1.0f : -1.0f);
    case 2: return 2.5f;
    case 3: return ldexpf((float)((int)st_test_below(run, 9) - 4), -149);
    case 4: return st_test_below(run, 2) ? -INFINITY : v;
    case 5: return -INFINITY;
    case 8: return st_test_below(run, 2) ? 3e38f : -3e38f;
    default: return v;
    }
}

static void random_logits(struct st_test_run *run, uint32_t kind, float *logits, uint32_t vocabulary)
{
    for (uint32_t i = 0; i < vocabulary; i++)
        logits[i] = one_logit(run, kind);
    if (kind == 6 || kind == 7)
        logits[st_test_below(run, vocabulary)] = kind == 6 ? NAN : -INFINITY;
    if (kind == 7)
        for (int i = 0; i < 3; i++)
            logits[st_test_below(run, vocabulary)] = i < 2 ? INFINITY : NAN;
}

/* A token; often one of the first and last of a chunk. */
static int32_t random_token(struct st_test_run *run, uint32_t vocabulary)
{
    uint32_t at = st_test_below(run, vocabulary);
    uint32_t edge = at / ST_SAMPLE_CHUNK * ST_SAMPLE_CHUNK + (st_test_below(run, 2) ? ST_SAMPLE_CHUNK - 1 : 0);
    return (int32_t)(st_test_below(run, 4) == 0 && edge < vocabulary ? edge : at);
}

static int by_token(const void *a, const void *b)
{
    const struct strata_logit_bias *x = a, *y = b;
    return x->token == y->token ? x->bias < y->bias ? -1 : x->bias > y->bias : x->token < y->token ? -1 : 1;
}

static void random_lists(struct st_test_run *run, uint32_t kind, struct row *row, uint32_t vocabulary)
{
    struct st_sample *a = &row->a;
    a->bias = row->bias;
    a->biases = st_test_below(run, 3) ? 0 : st_test_below(run, BIASES + 1);
    for (uint32_t i = 0; i < a->biases; i++) {
        float v = one_logit(run, kind == 8 ? 8 : 0);
        int32_t token = i && st_test_below(run, 3) == 0 ? row->bias[i - 1].token : random_token(run, vocabulary);
        row->bias[i] = (struct strata_logit_bias){token, st_test_below(run, 8) ? v : -INFINITY};
    }
    qsort(row->bias, a->biases, sizeof *row->bias, by_token);
    a->seen = row->seen;
    uint32_t wanted = st_test_below(run, 2) ? 0 : st_test_below(run, SEEN + 1);
    for (uint32_t i = 0; i < wanted; i++) {
        int32_t token = random_token(run, vocabulary);
        bool new = true;
        for (uint32_t j = 0; j < a->seen_count; j++)
            new = new && row->seen[j].token != token;
        if (new)
            row->seen[a->seen_count++] = (struct st_sample_seen){token, 1 + st_test_below(run, 5)};
    }
    if (st_test_below(run, 3) == 0) {
        a->mask = row->mask;
        uint32_t density = 1 + st_test_below(run, 4);
        for (uint32_t i = 0; i < (vocabulary + 31) / 32; i++) {
            row->mask[i] = (uint32_t)(st_test_random(run) >> 32);
            for (uint32_t n = 1; n < density; n++)
                row->mask[i] &= (uint32_t)(st_test_random(run) >> 32);
        }
    }
}

static void random_row(struct st_test_run *run, uint32_t kind, struct row *row, uint32_t vocabulary)
{
    static const float temperatures[] = {0.0f, 0.8f, 1.0f, 0.01f, 5.0f, 1e-39f, 1e30f}, penalties[] = {1.0f, 1.1f, 0.5f, 3.0f};
    const uint32_t ks[] = {0, 1, 2, 40, vocabulary / 2, vocabulary - 1, vocabulary, vocabulary + 3};
    static const uint32_t shares[] = {ST_SAMPLE_SHARE, 1, ST_SAMPLE_SHARE / 2, 15938355, ST_SAMPLE_SHARE - 1, 0};
    static const uint64_t leasts[] = {0, 0, ST_SAMPLE_ONE / 20, ST_SAMPLE_ONE - 1, ST_SAMPLE_ONE}, ends[] = {0, UINT64_MAX};
    uint32_t *mask = row->mask;
    *row = (struct row){.mask = mask};
    row->a = (struct st_sample){.random = st_test_below(run, 6) ? st_test_random(run) : ends[st_test_below(run, 2)],
                                .least = leasts[st_test_below(run, 5)],
                                .temperature = temperatures[st_test_below(run, 7)],
                                .repetition = penalties[st_test_below(run, 4)],
                                .frequency = (float)st_test_below(run, 3) * 0.3f,
                                .presence = (float)st_test_below(run, 3) * -0.7f,
                                .top_k = ks[st_test_below(run, 8)],
                                .share = shares[st_test_below(run, 6)],
                                .measure = st_test_below(run, 5) == 0};
    random_lists(run, kind, row, vocabulary);
}

/* What the device must find. */
static enum strata_result expect(const struct row *row, uint32_t n, uint32_t vocabulary, const float *logits,
                                 struct st_sample_pick *picks, struct strata_error *err)
{
    uint64_t *memory = malloc(vocabulary * 16ull);
    if (!memory)
        return st_fail(err, STRATA_E_MEMORY, "self-test: no memory for %u tokens", vocabulary);
    struct st_sample_work work = {.weight = memory, .id = (int32_t *)(void *)(memory + vocabulary)};
    work.logit = (float *)(void *)(work.id + vocabulary);
    for (uint32_t i = 0; i < n; i++) {
        st_sample_adjust(&row[i].a, logits + (size_t)i * vocabulary, vocabulary, &work, &picks[i]);
        if (picks[i].status == ST_SAMPLE_OK)
            st_sample_draw(&row[i].a, vocabulary, &work, &picks[i]);
    }
    free(memory);
    return STRATA_OK;
}

static enum strata_result run_list(struct st_test_run *run, struct st_gpu_sample *a, struct strata_error *err)
{
    struct st_gpu_list list = {0};
    a->picks = run->buffer[0].device;
    a->logits = run->buffer[1].device;
    a->block = run->buffer[2].device;
    a->scratch = run->buffer[3].device;
    enum strata_result r = st_gpu_sample(a, &list, err);
    if (!r && list.failed)
        r = st_fail(err, STRATA_E_MEMORY, "self-test: no memory for a list of launches");
    if (!r)
        r = st_test_put(run, err);
    for (size_t i = 0; i < list.count && !r; i++) {
        const struct st_gpu_launch *l = &list.launch[i];
        r = st_launch(run->dev, run->dev->compute, l->kernel, l->grid[0], l->grid[1], l->grid[2], l->args, run->shape, err);
    }
    st_gpu_list_free(&list);
    return r ? r : st_test_get(run, err);
}

static enum strata_result fill(struct st_test_run *run, struct row *row, uint32_t kind, struct st_gpu_sample *a,
                               struct strata_error *err)
{
    uint8_t *picks, *logits, *block, *scratch;
    const uint64_t bytes = st_gpu_sample_block(a->n, a->vocabulary);
    uint64_t used;
    enum strata_result r = st_test_add(run, a->n * sizeof(struct st_sample_pick), &picks, err);
    if (!r)
        r = st_test_add(run, (size_t)a->n * a->vocabulary * 4, &logits, err);
    if (!r)
        r = st_test_add(run, bytes, &block, err);
    if (!r)
        r = st_test_add(run, st_gpu_sample_scratch(a->n, a->vocabulary), &scratch, err);
    if (r)
        return r;
    float *l = (float *)(void *)logits;
    struct st_sample rows[ROWS];
    for (uint32_t i = 0; i < a->n; i++) {
        /* a mixed window for the last kind and beyond */
        uint32_t k = kind < KINDS ? kind : st_test_below(run, KINDS);
        random_logits(run, k, l + (size_t)i * a->vocabulary, a->vocabulary);
        random_row(run, k, &row[i], a->vocabulary);
        rows[i] = row[i].a;
    }
    if (!st_gpu_sample_pack(rows, a->n, a->vocabulary, block, bytes, &used, &a->steps))
        return st_fail(err, STRATA_E_INTERNAL, "self-test: lists do not fit");
    memset(run->buffer[0].want, 0, run->buffer[0].size);
    memcpy(run->buffer[1].want, logits, run->buffer[1].size);
    memcpy(run->buffer[2].want, block, run->buffer[2].size);
    return expect(row, a->n, a->vocabulary, l, (struct st_sample_pick *)(void *)run->buffer[0].want, err);
}

static enum strata_result test_case(struct st_test_run *run, uint32_t n, uint32_t vocabulary, uint32_t kind, struct strata_error *err)
{
    struct st_gpu_sample a = {.n = n, .vocabulary = vocabulary};
    struct row *row = calloc(n, sizeof *row);
    const size_t words = (vocabulary + 31) / 32;
    uint32_t *masks = calloc(n * words, sizeof *masks);
    snprintf(run->shape, sizeof run->shape, "%u rows of %u logits %s", n, vocabulary, kind < KINDS ? kinds[kind] : "of all kinds");
    enum strata_result r = row && masks ? STRATA_OK : st_fail(err, STRATA_E_MEMORY, "self-test: no memory for %u rows", n);
    for (uint32_t i = 0; i < n && !r; i++)
        row[i].mask = masks + i * words;
    if (!r)
        r = fill(run, row, kind, &a, err);
    if (!r)
        r = run_list(run, &a, err);
    if (!r) {
        for (int i = 0; i < 4; i++)
            if (!st_test_guards(run, i) && i < 3)
                st_test_exact(run, i);
        st_test_report(run);
    }
    st_test_drop(run);
    free(row);
    free(masks);
    return r;
}

enum strata_result st_test_sample(struct st_test_run *run, struct strata_error *err)
{
    static const uint32_t sizes[] = {1, 33, 257, 2047, 2048, 2049, 6001, 20000};
    const uint32_t rounds = run->options->quick ? 1 : 8;
    enum strata_result r = STRATA_OK;
    for (uint32_t round = 0; round < rounds && !r; round++)
        for (uint32_t kind = 0; kind <= KINDS && !r; kind++)
            r = test_case(run, 1 + st_test_below(run, ROWS), sizes[st_test_below(run, round ? 8 : 7)], kind, err);
    if (!r)
        r = test_case(run, run->options->quick ? 1 : 3, 248320, KINDS, err);
    return r;
}
