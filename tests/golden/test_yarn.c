/* The extended context of qwen4exp: frequencies of the released shape against the published formula of YaRN
 * (arXiv 2309.00071, in the form that the transformers library gives it: linear in the number of the pair), and whole
 * models with text and with three axes against double precision. */
#include "test.h"

#include <math.h>

#include "engine/engine.h"
#include "fixture.h"
#include "fp64_model.h"
#include "make_model.h"
#include "model/qwen4exp.h"

enum { TOKENS = 40, PAIRS = 32 };

/* 64 rotated elements, base 10^7, 262,144 tokens, factor 4: f = 10^(-7i / 32) of pair i turns 262144 f / 2 pi times. 32 turns
 * are those of pair 14.24 and 1 turn those of pair 21.12, so pairs up to 14 keep f, pairs from 22 have f / 4, and pair i
 * between has f (1 - r) + f r / 4 with r = (i - 14) / 8. Computed with 40 decimal digits. */
static const double released[PAIRS] = {
    1.000000000e+00, 6.042963902e-01, 3.651741273e-01, 2.206734069e-01, 1.333521432e-01, 8.058421878e-02, 4.869675252e-02,
    2.942727176e-02, 1.778279410e-02, 1.074607828e-02, 6.493816316e-03, 3.924189758e-03, 2.371373706e-03, 1.433012570e-03,
    8.659643234e-04, 4.742398227e-04, 2.569350599e-04, 1.373497451e-04, 7.217387404e-05, 3.707224982e-05, 1.844922203e-05,
    8.759770071e-06, 3.849816315e-06, 2.326430102e-06, 1.405853313e-06, 8.495520822e-07, 5.133812566e-07, 3.102344402e-07,
    1.874735523e-07, 1.132895909e-07, 6.846049086e-08, 4.137042750e-08};

/* A model of two attention layers whose index chooses early; rot rotated elements in sections of three axes. */
static void attention_model(struct make_model *m, uint32_t rot, uint32_t context)
{
    make_small(m);
    m->draft = false;
    m->recurrent[0] = false;
    m->ngram_layer = 0;
    m->head_dim = m->index_dim = rot + 8;
    m->rot = rot;
    m->section[0] = (rot / 2 + 2) / 3;
    m->section[1] = (rot / 2 + 1) / 3;
    m->section[2] = rot / 2 / 3;
    m->context = context;
    make_plan(m);
}

static void open_made(const struct make_model *spec, struct strata_model **out)
{
    struct strata_error err;
    const char *path = work_path("model.gguf");
    assert_ok(make_write(spec, path, &err), &err);
    assert_ok(strata_model_open(path, out, &err), &err);
    unlink(path);
}

static struct strata_engine *extended(const struct strata_model *m, double factor, uint32_t chunk)
{
    struct strata_error err;
    struct strata_engine *e;
    struct strata_engine_options o = {.threads = 1,
                                      .context = 4 * TOKENS,
                                      .prefill = chunk,
                                      .kv = STRATA_KV_F32,
                                      .fp32 = true,
                                      .rope_scaling = factor > 1 ? STRATA_ROPE_YARN : STRATA_ROPE_NONE,
                                      .rope_scale = factor};
    assert_ok(strata_engine_create(m, &o, &e, &err), &err);
    return e;
}

static void the_released_shape_turns_as_published(void **state)
{
    (void)state;
    struct make_model spec;
    struct strata_model *m;
    attention_model(&spec, 2 * PAIRS, 262144);
    assert_true(spec.section[0] == 11 && spec.section[1] == 11 && spec.section[2] == 10);
    open_made(&spec, &m);
    struct strata_engine *e = extended(m, 4, 16), *plain = extended(m, 0, 16);
    const struct st_rope *rope = &((const struct q4e_model *)e->bound.data)->h.rope,
                         *before = &((const struct q4e_model *)plain->bound.data)->h.rope;
    assert_int_equal(rope->rot, 2 * PAIRS);
    assert_true(fabs((double)rope->gain - 0.1386294361) < 1e-8);
    assert_true(before->gain == 0);
    for (int i = 0; i < PAIRS; i++) {
        /* FP32 powers are within a few units of the last place. */
        assert_true(fabs((double)rope->freq[i] / released[i] - 1) < 5e-7);
        assert_true(fabs((double)before->freq[i] / pow(10, -7.0 * i / 32) - 1) < 5e-7);
        assert_int_equal(rope->axis[i], i % 3); /* 0, 3 .. 30 time, 1, 4 .. 31 height, 2, 5 .. 29 width */
    }
    strata_engine_free(e);
    strata_engine_free(plain);
    strata_model_free(m);
}

/* Positions of text, of a picture of 4 x 5 patches, and of text behind it. */
static void picture(int32_t axis[TOKENS][3])
{
    for (int t = 0; t < TOKENS; t++) {
        int32_t patch = t - 7, text = t < 7 ? t : 7 + 5 + t - 27;
        bool inside = patch >= 0 && patch < 20;
        axis[t][0] = inside ? 7 : text;
        axis[t][1] = inside ? 7 + patch / 5 : text;
        axis[t][2] = inside ? 7 + patch % 5 : text;
    }
}

/* Returns the largest difference of a residual, relative to the layer's root mean square of the token. */
static double difference(const struct strata_model *m, double factor, uint32_t chunk, const int32_t axis[TOKENS][3],
                         const double *want)
{
    struct strata_error err;
    struct strata_session *s;
    struct strata_engine *e = extended(m, factor, chunk);
    size_t wide = e->dims.wide, rows = (size_t)e->dims.layers * TOKENS;
    float *got = malloc(rows * wide * sizeof *got);
    int32_t ids[TOKENS];
    double worst = 0;
    for (int t = 0; t < TOKENS; t++)
        ids[t] = t * t * 7 % 20;
    assert_non_null(got);
    assert_ok(strata_session_create(e, &s, &err), &err);
    struct st_input in = {.ids = ids, .count = TOKENS, .axis = axis ? &axis[0][0] : NULL};
    assert_ok(st_session_eval(s, &in, &(struct st_output){.residuals = got}, &err), &err);
    for (size_t row = 0; row < rows; row++) {
        double square = 0, most = 0;
        for (size_t i = 0; i < wide; i++) {
            double far = fabs((double)got[row * wide + i] - want[row * wide + i]);
            square += want[row * wide + i] * want[row * wide + i] / (double)wide;
            most = far > most || far != far ? far : most;
        }
        worst = most / sqrt(square) > worst || most != most ? most / sqrt(square) : worst;
    }
    free(got);
    strata_session_free(s);
    strata_engine_free(e);
    return worst;
}

/* Contexts for which pairs stay, change in part and change wholly. */
static void extended_models_equal_double_precision_on_text_and_with_three_axes(void **state)
{
    (void)state;
    static const struct {
        uint32_t rot, context;
        double factor;
    } cases[] = {{64, 262144, 4}, {64, 64, 4}, {8, 4096, 8}, {16, 512, 1.5}, {2, 8, 64}};
    int32_t axis[TOKENS][3], ids[TOKENS];
    picture(axis);
    for (int t = 0; t < TOKENS; t++)
        ids[t] = t * t * 7 % 20;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct make_model spec;
        struct strata_model *m;
        attention_model(&spec, cases[i].rot, cases[i].context);
        open_made(&spec, &m);
        double *want = malloc((size_t)spec.layers * TOKENS * spec.streams * spec.hidden * sizeof *want);
        assert_non_null(want);
        for (int pictured = 0; pictured < 2; pictured++) {
            const int32_t(*at)[3] = pictured ? (const int32_t(*)[3])axis : NULL;
            struct fp64_positions positions = {.axis = at, .yarn = cases[i].factor};
            fp64_evaluate_at(m->gguf, &positions, ids, TOKENS, want, NULL);
            assert_true(difference(m, cases[i].factor, TOKENS, at, want) <= 1e-4);
            assert_true(difference(m, cases[i].factor, 7, at, want) <= 1e-4);
            /* The comparison sees whether the context is extended, and the axes. */
            assert_true(difference(m, 0, TOKENS, at, want) > 1e-3);
            if (cases[i].rot > 2)
                assert_true(difference(m, cases[i].factor, TOKENS, pictured ? NULL : (const int32_t(*)[3])axis, want) > 1e-3);
        }
        free(want);
        strata_model_free(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_released_shape_turns_as_published),
        cmocka_unit_test(extended_models_equal_double_precision_on_text_and_with_three_axes),
    };
    return cmocka_run_group_tests(tests, make_work, remove_work);
}
