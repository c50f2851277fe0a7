/* Real widths and mixed types against double precision: rows of committed models are one super-block long, those of the
 * real model up to forty. The evaluation is first held against the reference's own numbers. */
#include "test.h"

#include <math.h>

#include "exact.h"
#include "fixture.h"
#include "format/safetensors.h"
#include "fp64_model.h"
#include "make_model.h"
#include "model/convert.h"

enum {
    TOKENS = 32, /* sparse attention from the 20th on */
    CHUNK = 13,
    WINDOW = 8, /* goes through the delta network step by step */
};

static void the_double_precision_model_equals_the_reference(void **state)
{
    (void)state;
    enum { N = 90 };
    struct strata_error err;
    struct st_convert_report report;
    struct st_safetensors *golden;
    struct st_gguf *g;
    char source[PATH_SIZE], values[PATH_SIZE];
    const char *path = work_path("tiny.gguf");
    struct st_convert_options c = {.dir = unpacked(source, "tiny-model", ""), .out = path, .type = ST_CONVERT_F32};
    assert_ok(st_convert(&c, &report, &err), &err);
    assert_ok(st_gguf_open(path, &g, &err), &err);
    assert_ok(st_safetensors_create(&golden, &err), &err);
    assert_ok(st_safetensors_add(golden, unpacked(values, "tiny-model", "golden.safetensors"), &err), &err);
    const struct st_safetensor *ids = st_safetensors_find(golden, "p90.ids"),
                               *want = st_safetensors_find(golden, "p90.logits");
    assert_true(ids && want && ids->elements == N);
    double *logits = malloc(want->elements * sizeof *logits);
    float *listed = malloc(want->elements * sizeof *listed);
    assert_true(st_safetensor_floats(want, 0, want->elements, listed));
    fp64_evaluate(g, (const int32_t *)(const void *)ids->data, N, NULL, logits);
    for (size_t i = 0; i < want->elements; i++)
        if (!(fabs(logits[i] - (double)listed[i]) <= 1e-4))
            fail_msg("logit %zu is %g, not %g", i, logits[i], (double)listed[i]);
    free(logits);
    free(listed);
    st_safetensors_free(golden);
    st_gguf_close(g);
}

/* Largest error of a layer's residuals in units of each residual's RMS, and the root mean square of the errors. */
static void errors(const float *got, const double *want, size_t wide, double *largest, double *typical)
{
    double sum = 0;
    *largest = 0;
    for (size_t t = 0; t < TOKENS; t++) {
        double rms = 0;
        for (size_t i = 0; i < wide; i++)
            rms += want[t * wide + i] * want[t * wide + i];
        rms = sqrt(rms / (double)wide);
        for (size_t i = 0; i < wide; i++) {
            double e = fabs((double)got[t * wide + i] - want[t * wide + i]) / rms;
            *largest = e <= *largest ? *largest : e; /* keeps a NaN */
            sum += e * e;
        }
    }
    *typical = sqrt(sum / (double)(TOKENS * wide));
}

static void residuals_at_real_widths_equal_double_precision(void **state)
{
    (void)state;
    struct strata_error err;
    struct make_model *spec = malloc(sizeof *spec);
    struct strata_model *m;
    make_wide(spec);
    const char *path = work_path("wide.gguf");
    assert_ok(make_write(spec, path, &err), &err);
    assert_ok(strata_model_open(path, &m, &err), &err);
    int32_t ids[TOKENS];
    for (int i = 0; i < TOKENS; i++)
        ids[i] = i == 11 || i == 12 ? (int32_t)spec->reset : (i * 37 + 5) % 251 * 2;
    size_t wide = (size_t)spec->streams * spec->hidden, vocabulary = spec->vocabulary;
    double *want = malloc(spec->layers * TOKENS * wide * sizeof *want),
           *want_logits = malloc(TOKENS * vocabulary * sizeof *want);
    float *got = malloc(spec->layers * TOKENS * wide * sizeof *got),
          *logits = malloc(TOKENS * vocabulary * sizeof *logits);
    fp64_evaluate(m->gguf, ids, TOKENS, want, want_logits);
    for (int form = 0; form < 3; form++) {
        bool fp32 = form < 2;
        read_tokens(m, fp32, form == 1 ? WINDOW : CHUNK, 2, ids, TOKENS, got, logits);
        for (uint32_t layer = 0; layer < spec->layers; layer++) {
            double largest, typical;
            errors(got + layer * TOKENS * wide, want + layer * TOKENS * wide, wide, &largest, &typical);
            print_message("# layer %u, %s: largest error %.2g, typical %.2g of the residual's RMS\n", layer,
                          fp32 ? "FP32 activations" : "8-bit activations", largest, typical);
            if (!(fp32 ? largest <= 1e-4 : typical <= 5e-2))
                fail_msg("layer %u: largest error %g, typical %g of the residual's RMS", layer, largest, typical);
        }
        for (size_t i = 0; i < TOKENS * vocabulary && fp32; i++)
            assert_true(fabs((double)logits[i] - want_logits[i]) <= 1e-4);
    }
    free(want);
    free(want_logits);
    free(got);
    free(logits);
    free(spec);
    strata_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_double_precision_model_equals_the_reference),
        cmocka_unit_test(residuals_at_real_widths_equal_double_precision),
    };
    return cmocka_run_group_tests(tests, make_work, remove_work);
}
