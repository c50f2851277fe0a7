/* Sizes come from the file: models of random sizes, layer patterns and tensor types against double precision, and the
 * same bits in windows and one token at a time with 8-bit activations. */
#include "test.h"

#include <math.h>

#include "exact.h"
#include "fixture.h"
#include "format/quant.h"
#include "fp64_model.h"
#include "make_model.h"

enum { TOKENS = 37, MODELS = 24 };

static uint32_t pick(uint64_t *seed, uint32_t n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33) % n;
}

#define PICK(seed, ...)                                                                                                \
    (((const uint32_t[]){__VA_ARGS__})[pick(seed, sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))])

static void random_sizes(struct make_model *m, uint64_t seed)
{
    uint64_t *s = &seed;
    *m = (struct make_model){.layers = 1 + pick(s, 4), .vocabulary = 30, .context = 512, .seed = seed};
    m->hidden = PICK(s, 32, 40, 64, 96, 256);
    m->streams = 2 + pick(s, 7);
    m->rank = PICK(s, 1, 4, 24, 64, 512, 4096); /* also longer than every other row */
    m->kv_heads = 1 + pick(s, 3);
    m->heads = m->kv_heads * PICK(s, 1, 2, 5);
    m->head_dim = PICK(s, 8, 16, 64, 72);
    m->index_dim = PICK(s, 8, 16, 24, 128);
    m->index_heads = 1 + pick(s, 4);
    m->rot = PICK(s, 2, 4, 6, 8);
    m->section[0] = m->section[1] = m->rot / 4;
    m->ratio = 1 + pick(s, 8);
    m->budget = m->ratio * (1 + pick(s, 4));
    m->key_heads = 1 + pick(s, 3);
    m->value_heads = m->key_heads * PICK(s, 1, 2, 3);
    m->key_dim = PICK(s, 8, 16, 32);
    m->value_dim = PICK(s, 8, 16, 24, 40);
    m->taps = 2 + pick(s, 4);
    m->experts = 1 + pick(s, 20);
    m->used = 1 + pick(s, m->experts);
    m->expert_width = PICK(s, 8, 32, 64, 256);
    m->shared_width = PICK(s, 8, 40, 96, 512);
    m->ngram_layer = pick(s, m->layers);
    m->ngram_width = PICK(s, 8, 32, 160);
    m->heads_per_ngram = 1 + pick(s, 8);
    m->ngram_taps = 1 + pick(s, 5);
    m->head_rows = 3 + pick(s, 40);
    m->reset = pick(s, m->vocabulary);
    for (uint32_t i = 0; i < m->layers; i++)
        m->recurrent[i] = pick(s, 2);
    make_plan(m);
    static const int types[] = {ST_TYPE_F32,     ST_TYPE_F16,   ST_TYPE_BF16,   ST_TYPE_Q4_0,    ST_TYPE_Q4_1,
                                ST_TYPE_Q5_0,    ST_TYPE_Q5_1,  ST_TYPE_Q8_0,   ST_TYPE_Q2_K,    ST_TYPE_Q3_K,
                                ST_TYPE_Q4_K,    ST_TYPE_Q5_K,  ST_TYPE_Q6_K,   ST_TYPE_IQ2_XXS, ST_TYPE_IQ2_XS,
                                ST_TYPE_IQ3_XXS, ST_TYPE_IQ1_S, ST_TYPE_IQ4_NL, ST_TYPE_IQ3_S,   ST_TYPE_IQ2_S,
                                ST_TYPE_IQ4_XS,  ST_TYPE_MXFP4, ST_TYPE_NVFP4,  ST_TYPE_Q2_0};
    for (size_t i = 0; i < m->tensors; i++) {
        struct make_tensor *t = &m->tensor[i];
        int type;
        do
            type = types[pick(s, sizeof types / sizeof *types)];
        while (t->ne[0] % st_type_info(type)->block_elems);
        if (t->n_dims > 1 && !strstr(t->name, "conv1d"))
            t->type = type;
    }
}

static void compare(uint64_t seed, const struct make_model *spec, const float *got, const double *want)
{
    size_t wide = (size_t)spec->streams * spec->hidden;
    for (size_t row = 0; row < spec->layers * (size_t)TOKENS; row++) {
        double rms = 0;
        for (size_t i = 0; i < wide; i++)
            rms += want[row * wide + i] * want[row * wide + i] / (double)wide;
        for (size_t i = 0; i < wide; i++)
            if (!(fabs((double)got[row * wide + i] - want[row * wide + i]) <= 1e-4 * sqrt(rms)))
                fail_msg("model %llu, layer %zu, token %zu, element %zu: %g instead of %g", (unsigned long long)seed,
                         row / TOKENS, row % TOKENS, i, (double)got[row * wide + i], want[row * wide + i]);
    }
}

static void check_model(uint64_t seed)
{
    struct strata_error err;
    struct make_model *spec = malloc(sizeof *spec);
    struct strata_model *m;
    random_sizes(spec, seed);
    const char *path = work_path("model.gguf");
    assert_ok(make_write(spec, path, &err), &err);
    assert_ok(strata_model_open(path, &m, &err), &err);
    int32_t ids[TOKENS];
    for (uint32_t i = 0; i < TOKENS; i++)
        ids[i] = (int32_t)(i * i * 7 % spec->vocabulary);
    size_t residuals = (size_t)spec->layers * TOKENS * spec->streams * spec->hidden,
           logits = TOKENS * (size_t)spec->vocabulary;
    double *want = malloc(residuals * sizeof *want);
    float *got = malloc(residuals * sizeof *got), *single = malloc(logits * sizeof *single),
          *window = malloc(logits * sizeof *window);
    fp64_evaluate(m->gguf, ids, TOKENS, want, NULL);
    read_tokens(m, true, TOKENS, 1 + (int)seed % 3, ids, TOKENS, got, single);
    compare(seed, spec, got, want);
    read_tokens(m, true, 5, 1, ids, TOKENS, got, single);
    compare(seed, spec, got, want);
    read_tokens(m, false, 1, 1, ids, TOKENS, got, single);
    read_tokens(m, false, 7, 2, ids, TOKENS, got, window);
    assert_memory_equal(single, window, logits * sizeof *single);
    for (size_t i = 0; i < logits; i++)
        assert_true(isfinite(single[i]));
    free(want);
    free(got);
    free(single);
    free(window);
    free(spec);
    strata_model_free(m);
    unlink(path);
}

static void models_of_any_sizes_equal_double_precision(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= MODELS; seed++)
        check_model(seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(models_of_any_sizes_equal_double_precision)};
    return cmocka_run_group_tests(tests, make_work, remove_work);
}
