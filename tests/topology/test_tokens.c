/* Tokens of the demo model and of a model with the released one's widths, on several devices and on the CPU. The order
 * of float sums in norms and attention is a device's own, so logits differ; where the best logit leads by more than
 * twice the stated bound, the token must be the same. */
#include "test.h"

#include <math.h>

#include "engine/engine.h"
#include "golden/fixture.h"
#include "golden/make_model.h"

static struct strata_engine *open_engine(const struct strata_model *model, const char *devices, const char *split,
                                         bool fp32)
{
    struct strata_error err;
    struct strata_engine *e;
    struct strata_engine_options o = {.devices = devices,
                                      .layer_split = split,
                                      .threads = 2,
                                      .context = 128,
                                      .prefill = 16,
                                      .fp32 = fp32,
                                      .kv = fp32 ? STRATA_KV_F32 : STRATA_KV_F16};
    assert_ok(strata_engine_create(model, &o, &e, &err), &err);
    return e;
}

/* Logits of count tokens. */
static float *read_tokens(const struct strata_model *model, const char *devices, const char *split, const int32_t *ids,
                          size_t count, size_t *vocabulary)
{
    struct strata_error err;
    struct strata_session *s;
    struct strata_engine *e = open_engine(model, devices, split, true);
    *vocabulary = e->dims.vocabulary;
    float *logits = malloc(count * *vocabulary * sizeof *logits);
    assert_ok(strata_session_create(e, &s, &err), &err);
    assert_ok(strata_session_eval(s, ids, count, true, logits, &err), &err);
    strata_session_free(s);
    strata_engine_free(e);
    return logits;
}

static size_t best_of(const float *logits, size_t n, float *lead)
{
    size_t best = 0, second = 1;
    for (size_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) {
            second = best;
            best = i;
        } else if (logits[i] > logits[second] || second == best) {
            second = i;
        }
    *lead = logits[best] - logits[second];
    return best;
}

/* FP32 activations: logits within the bound, and the same tokens where the lead is clear. least: tokens with a clear
 * lead. */
static void check_logits(const struct strata_model *model, const char *devices, const char *split, const int32_t *ids,
                         size_t count, float bound, size_t least)
{
    size_t vocabulary, clear = 0;
    float *want = read_tokens(model, "cpu", NULL, ids, count, &vocabulary);
    float *got = read_tokens(model, devices, split, ids, count, &vocabulary), most = 0;
    for (size_t i = 0; i < count * vocabulary; i++) {
        float d = fabsf(got[i] - want[i]);
        most = d > most ? d : most;
        if (!(d <= bound))
            fail_msg("%s: logit %zu is %g, on the CPU %g", devices, i, (double)got[i], (double)want[i]);
    }
    for (size_t t = 0; t < count; t++) {
        float lead, unused;
        size_t token = best_of(want + t * vocabulary, vocabulary, &lead);
        if (lead > 2 * bound) {
            assert_int_equal(best_of(got + t * vocabulary, vocabulary, &unused), token);
            clear++;
        }
    }
    print_message("# %s: logits differ by at most %.2g, %zu of %zu tokens have a clear lead\n", devices, (double)most,
                  clear, count);
    assert_true(clear >= least);
    free(want);
    free(got);
}

/* ---- the demo model ---- */

static struct strata_model *demo;

struct answer {
    int32_t token[32];
    size_t count;
};

static bool take(void *user, const struct strata_event *event)
{
    struct answer *a = user;
    if (event->kind == STRATA_EVENT_TEXT && event->token >= 0 && a->count < sizeof a->token / sizeof *a->token)
        a->token[a->count++] = event->token;
    return true;
}

static void prompt_ids(const char *question, int32_t **ids, size_t *count)
{
    struct strata_error err;
    char messages[128];
    snprintf(messages, sizeof messages, "[{\"role\": \"user\", \"content\": \"%s\"}]", question);
    assert_ok(strata_chat_prompt(demo, messages, NULL, ids, count, NULL, &err), &err);
}

static struct answer ask(const char *question, const char *devices, const char *split)
{
    struct strata_error err;
    struct strata_session *s;
    struct answer a = {.count = 0};
    int32_t *ids;
    size_t count;
    prompt_ids(question, &ids, &count);
    struct strata_engine *e = open_engine(demo, devices, split, false);
    assert_ok(strata_session_create(e, &s, &err), &err);
    struct strata_request q = {
        .ids = ids, .count = count, .max_tokens = 12, .ignore_eos = true, .event = take, .user = &a};
    strata_sampling_default(&q.sampling);
    assert_ok(strata_generate(s, &q, NULL, &err), &err);
    strata_session_free(s);
    strata_engine_free(e);
    strata_free(ids);
    return a;
}

static void the_demo_model_answers_on_two_devices_as_on_the_cpu(void **state)
{
    (void)state;
    static const char *const questions[] = {"What is gimp?", "What is vlc?"};
    for (int i = 0; i < 2; i++) {
        struct answer cpu = ask(questions[i], "cpu", NULL);
        struct answer devices = ask(questions[i], "sim:gfx1100:24G,sim:gfx1201:16G", "auto");
        assert_int_equal(cpu.count, 12);
        assert_int_equal(devices.count, cpu.count);
        assert_memory_equal(cpu.token, devices.token, sizeof cpu.token);
    }
}

static void the_demo_models_logits_are_the_cpus_within_a_bound(void **state)
{
    (void)state;
    int32_t *ids;
    size_t count;
    prompt_ids("What is the difference between gimp and vlc, and which of them is larger?", &ids, &count);
    assert_true(count > 20);
    check_logits(demo, "sim:sm_89:8G,cpu,sim:gfx90a:8G", "3,2,3", ids, count, 1e-3f, 10);
    strata_free(ids);
}

/* ---- real widths ---- */

static void the_released_models_widths_on_two_devices(void **state)
{
    (void)state;
    enum { TOKENS = 21 }; /* sparse attention from the 20th on */
    struct strata_error err;
    struct make_model *spec = malloc(sizeof *spec);
    struct strata_model *m;
    const char *path = work_path("wide.gguf");
    make_wide(spec);
    assert_ok(make_write(spec, path, &err), &err);
    assert_ok(strata_model_open(path, &m, &err), &err);
    int32_t ids[TOKENS];
    for (int i = 0; i < TOKENS; i++)
        ids[i] = (i * 37 + 5) % 251 * 2;
    check_logits(m, "sim:gfx1100:24G,sim:gfx1201:16G", "1,1", ids, TOKENS, 1e-4f, 10);
    strata_model_free(m);
    free(spec);
}

static int setup(void **state)
{
    struct strata_error err = {0};
    const char *source = getenv("STRATA_TEST_SOURCE");
    char path[PATH_SIZE];
    snprintf(path, sizeof path, "%s/models/demo.gguf", source ? source : ".");
    if (strata_model_open(path, &demo, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return -1;
    }
    return make_work(state);
}

static int teardown(void **state)
{
    strata_model_free(demo);
    return remove_work(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_demo_model_answers_on_two_devices_as_on_the_cpu),
        cmocka_unit_test(the_demo_models_logits_are_the_cpus_within_a_bound),
        cmocka_unit_test(the_released_models_widths_on_two_devices),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
