/* The stated bounds of the small forms of keys and values (docs/numerics.md, section 6): Kullback-Leibler divergence
 * and agreement of the best token between the demo model with keys and values in F32 and in each other form, on a text
 * that does not change. Activations stay in FP32, so that the form of keys and values is the only difference. */
#include "test.h"

#include <math.h>

#include "base/file.h"
#include "fixture.h"

enum { CHUNK = 192, CHUNKS = 2, FIRST = CHUNK / 2, SCORED = CHUNK - FIRST };

static struct {
    struct strata_model *model;
    int32_t *ids;
    uint32_t vocabulary;
} f;

/* Logits of the second half of each chunk, [CHUNKS * SCORED][vocabulary]; freed by the caller. */
static float *logits_with(enum strata_kv kv)
{
    struct strata_error err;
    struct strata_engine *e;
    struct strata_session *s;
    struct strata_engine_options o = {.context = CHUNK, .kv = kv, .fp32 = true};
    float *all = malloc((size_t)CHUNKS * SCORED * f.vocabulary * sizeof *all);
    assert_non_null(all);
    assert_ok(strata_engine_create(f.model, &o, &e, &err), &err);
    assert_ok(strata_session_create(e, &s, &err), &err);
    for (size_t i = 0; i < CHUNKS; i++) {
        const int32_t *ids = f.ids + i * CHUNK;
        strata_session_reset(s);
        assert_ok(strata_session_eval(s, ids, FIRST, false, NULL, &err), &err);
        assert_ok(strata_session_eval(s, ids + FIRST, SCORED, true, all + i * SCORED * f.vocabulary, &err), &err);
    }
    strata_session_free(s);
    strata_engine_free(e);
    return all;
}

static size_t best(const float *x)
{
    size_t at = 0;
    for (size_t i = 1; i < f.vocabulary; i++)
        if (x[i] > x[at])
            at = i;
    return at;
}

static double log_sum(const float *x)
{
    double most = (double)x[best(x)], sum = 0;
    for (size_t i = 0; i < f.vocabulary; i++)
        sum += exp((double)x[i] - most);
    return most + log(sum);
}

static void every_form_of_keys_and_values_stays_within_its_stated_bounds(void **state)
{
    (void)state;
    static const struct {
        enum strata_kv kv;
        const char *name;
        double divergence, same;
    } forms[] = {
        {STRATA_KV_F16, "f16", 0.0005, 0.99}, {STRATA_KV_INT8, "int8", 0.015, 0.97}, {STRATA_KV_Q4, "q4", 0.08, 0.87}};
    const size_t rows = CHUNKS * SCORED;
    float *base = logits_with(STRATA_KV_F32);
    double last = 0;
    for (size_t k = 0; k < sizeof forms / sizeof forms[0]; k++) {
        float *own = logits_with(forms[k].kv);
        double divergence = 0, same = 0;
        for (size_t r = 0; r < rows; r++) {
            const float *a = base + r * f.vocabulary, *b = own + r * f.vocabulary;
            double za = log_sum(a), zb = log_sum(b);
            for (size_t i = 0; i < f.vocabulary; i++)
                divergence += exp((double)a[i] - za) * (((double)a[i] - za) - ((double)b[i] - zb));
            same += best(a) == best(b);
        }
        divergence /= (double)rows;
        same /= (double)rows;
        print_message("# %s: KL %.6f, same best %.4f\n", forms[k].name, divergence, same);
        if (!(divergence <= forms[k].divergence && same >= forms[k].same))
            fail_msg("%s: divergence %g (bound %g), same best token %g (bound %g)", forms[k].name, divergence,
                     forms[k].divergence, same, forms[k].same);
        assert_true(divergence > last); /* fewer bits are seen in the result */
        last = divergence;
        free(own);
    }
    free(base);
}

static int setup(void **state)
{
    (void)state;
    struct strata_error err;
    struct strata_model_info info;
    char path[PATH_SIZE], *text = NULL;
    size_t size, count = 0;
    const char *source = getenv("STRATA_TEST_SOURCE");
    snprintf(path, sizeof path, "%s/models/demo.gguf", source ? source : ".");
    if (strata_model_open(path, &f.model, &err))
        goto failed;
    strata_model_info(f.model, &info);
    f.vocabulary = info.vocabulary;
    snprintf(path, sizeof path, "%s/LICENSE", source ? source : ".");
    if (st_read_file(path, 1 << 20, &text, &size, &err) ||
        strata_tokenize(f.model, text, size, false, &f.ids, &count, &err))
        goto failed;
    free(text);
    return count >= CHUNKS * CHUNK ? 0 : -1;
failed:
    fprintf(stderr, "%s\n", err.text);
    free(text);
    return -1;
}

static int teardown(void **state)
{
    (void)state;
    strata_free(f.ids);
    strata_model_free(f.model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_form_of_keys_and_values_stays_within_its_stated_bounds)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
