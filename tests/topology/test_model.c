/* A whole model over several devices: the miniature golden model on simulated cards, against the reference's logits, with FP32
 * activations and cache. The two field reports are tests by name. */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine.h"
#include "format/safetensors.h"

static const float tolerance = 2e-4f;

static struct {
    struct st_safetensors *golden;
    struct strata_model *model;
} f;

struct machine {
    const char *devices, *split, *executor;
    uint32_t prefill;
};

static enum strata_result open_engine(const struct machine *m, struct strata_engine **out, struct strata_error *err)
{
    struct strata_engine_options o = {.devices = m->devices,
                                      .layer_split = m->split,
                                      .simulate = m->executor,
                                      .threads = 1,
                                      .context = 256,
                                      .prefill = m->prefill,
                                      .sessions = 2,
                                      .kv = STRATA_KV_F32,
                                      .fp32 = true};
    return strata_engine_create(f.model, &o, out, err);
}

static const struct st_safetensor *golden(const char *what, int n)
{
    char name[32];
    snprintf(name, sizeof name, "p%d.%s", n, what);
    const struct st_safetensor *t = st_safetensors_find(f.golden, name);
    assert_non_null(t);
    return t;
}

/* The first n tokens of the longest prompt, against its logits. */
static void check_prompt(struct strata_engine *e, size_t n)
{
    struct strata_error err;
    struct strata_session *s;
    size_t vocabulary = e->dims.vocabulary;
    const struct st_safetensor *logits = golden("logits", 200);
    float *got = malloc(n * vocabulary * sizeof *got), *want = malloc(n * vocabulary * sizeof *want), most = 0;
    int32_t ids[200];
    memcpy(ids, golden("ids", 200)->data, sizeof ids);
    assert_ok(strata_session_create(e, &s, &err), &err);
    assert_ok(strata_session_eval(s, ids, n, true, got, &err), &err);
    assert_true(st_safetensor_floats(logits, 0, n * vocabulary, want));
    for (size_t i = 0; i < n * vocabulary; i++) {
        float d = fabsf(got[i] - want[i]);
        most = d <= most ? most : d == d ? d : INFINITY;
    }
    if (!(most <= tolerance))
        fail_msg("%s: %zu tokens differ by %g", strata_engine_placement(e), n, (double)most);
    strata_session_free(s);
    free(got);
    free(want);
}

static void check_machine(const struct machine *m, const size_t *lengths, size_t count)
{
    struct strata_error err;
    struct strata_engine *e;
    assert_ok(open_engine(m, &e, &err), &err);
    for (size_t i = 0; i < count; i++)
        check_prompt(e, lengths[i]);
    strata_engine_free(e);
}

/* Around the chunk length, and long enough for many chunks. */
static const size_t lengths[] = {1, 63, 64, 65, 200};

static void nvidia_and_amd_in_one_process(void **state)
{
    (void)state;
    check_machine(&(struct machine){"sim:sm_89:8G,sim:gfx1150:8G", "3,2", "cpu", 64}, lengths, 5);
}

static void gfx1100_and_gfx1201_multi_chunk_prompt_both_orders(void **state)
{
    (void)state;
    check_machine(&(struct machine){"sim:gfx1100:24G,sim:gfx1201:16G", "3,2", "cpu", 64}, lengths, 5);
    check_machine(&(struct machine){"sim:gfx1201:16G,sim:gfx1100:24G", "2,3", "cpu", 64}, lengths, 5);
}

static void one_stage_lacks_a_kernel_image(void **state)
{
    (void)state;
    struct strata_error err;
    struct strata_engine *e;
    struct machine both = {"sim:gfx1100:24G,sim:gfx1201:16G:lacks=st_gdn_step_4", "3,2", "cpu", 64};
    assert_int_equal(open_engine(&both, &e, &err), STRATA_E_DEVICE);
    assert_int_equal(err.code, STRATA_E_DEVICE);
    assert_non_null(strstr(err.text, "sim:1"));
    assert_non_null(strstr(err.text, "gfx1201"));
    assert_non_null(strstr(err.text, "st_gdn_step_4"));
    struct machine alone = {"sim:gfx1100:24G", NULL, "cpu", 64};
    check_machine(&alone, lengths + 3, 1);
}

static void single_devices_of_every_kind(void **state)
{
    (void)state;
    static const char *const cards[] = {"sim:sm_75:8G", "sim:sm_90:8G", "sim:gfx1030:8G", "sim:gfx90a:8G"};
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++)
        check_machine(&(struct machine){cards[i], NULL, "cpu", 48}, lengths + 3, 1);
}

static void four_devices_with_the_cpu_in_the_middle(void **state)
{
    (void)state;
    check_machine(&(struct machine){"sim:sm_89:8G,cpu,sim:gfx90a:8G,sim:gfx1201:8G", "1,2,1,1", "cpu", 64}, lengths + 2, 3);
}

static void the_kernels_own_source_on_fibers_with_32_and_64_lanes(void **state)
{
    (void)state;
    static const size_t few[] = {1, 40};
    check_machine(&(struct machine){"sim:gfx1100:4G", NULL, "fibers", 32}, few, 2);
    check_machine(&(struct machine){"sim:gfx90a:4G", NULL, "fibers", 32}, few, 2);
}

static void decoding_in_windows_equals_reading_at_once(void **state)
{
    (void)state;
    struct strata_error err;
    struct strata_engine *e;
    struct strata_session *s;
    struct machine m = {"sim:gfx1100:8G,sim:sm_80:8G", "2,3", "cpu", 64};
    int32_t ids[37];
    float *got, want[600];
    memcpy(ids, golden("ids", 37)->data, sizeof ids);
    assert_ok(open_engine(&m, &e, &err), &err);
    assert_ok(strata_session_create(e, &s, &err), &err);
    got = malloc(8 * e->dims.vocabulary * sizeof *got);
    size_t window = 1;
    for (size_t at = 0; at < 37; at += window, window = window % 8 + 1) {
        window = window < 37 - at ? window : 37 - at;
        assert_ok(strata_session_eval(s, ids + at, window, true, got, &err), &err);
        for (size_t i = 0; i < window; i++) {
            assert_true(st_safetensor_floats(golden("logits", 37), (at + i) * 600, 600, want));
            for (size_t k = 0; k < 600; k++)
                assert_true(fabsf(got[i * 600 + k] - want[k]) <= tolerance);
        }
    }
    free(got);
    strata_session_free(s);
    strata_engine_free(e);
}

static void a_state_saved_on_one_machine_goes_on_on_another(void **state)
{
    (void)state;
    struct strata_error err;
    char path[] = "/tmp/strata-state-XXXXXX";
    close(mkstemp(path));
    static const struct machine machines[] = {{"sim:gfx1100:8G,sim:gfx1201:8G", "3,2", "cpu", 64}, {"cpu", NULL, NULL, 64}};
    for (int to = 0; to < 2; to++) {
        struct strata_engine *a, *b;
        struct strata_session *s, *t;
        int32_t ids[90];
        float got[600], want[600];
        memcpy(ids, golden("ids", 90)->data, sizeof ids);
        assert_ok(open_engine(&machines[1 - to], &a, &err), &err);
        assert_ok(open_engine(&machines[to], &b, &err), &err);
        assert_ok(strata_session_create(a, &s, &err), &err);
        assert_ok(strata_session_create(b, &t, &err), &err);
        assert_ok(strata_session_eval(s, ids, 53, false, NULL, &err), &err);
        assert_ok(strata_session_save(s, path, &err), &err);
        assert_ok(strata_session_restore(t, path, &err), &err);
        assert_ok(strata_session_eval(t, ids + 53, 37, false, got, &err), &err);
        assert_true(st_safetensor_floats(golden("logits", 90), 89 * 600, 600, want));
        for (size_t k = 0; k < 600; k++)
            assert_true(fabsf(got[k] - want[k]) <= tolerance);
        strata_session_free(s);
        strata_session_free(t);
        strata_engine_free(a);
        strata_engine_free(b);
    }
    unlink(path);
}

static void one_byte_less_than_planned_is_a_refusal_with_the_numbers(void **state)
{
    (void)state;
    struct strata_error err;
    struct strata_engine *e;
    struct machine m = {"sim:gfx1100:520M", NULL, "cpu", 64}; /* 512 MiB stay free */
    assert_int_equal(open_engine(&m, &e, &err), STRATA_E_DEVICE);
    assert_non_null(strstr(err.text, "bytes"));
}

static void a_launch_that_fails_late_ends_the_request_with_its_name(void **state)
{
    (void)state;
    struct strata_error err;
    struct strata_engine *e;
    struct strata_session *s;
    struct machine m = {"sim:gfx1100:8G:late=40", NULL, "cpu", 64};
    int32_t ids[64] = {0};
    assert_ok(open_engine(&m, &e, &err), &err);
    assert_ok(strata_session_create(e, &s, &err), &err);
    assert_int_equal(strata_session_eval(s, ids, 64, false, NULL, &err), STRATA_E_DEVICE);
    assert_non_null(strstr(err.text, "sim:0"));
    assert_int_equal(strata_session_tokens(s, NULL), 0);
    strata_session_free(s);
    strata_engine_free(e);
}

static int setup(void **state)
{
    (void)state;
    struct strata_error err = {0};
    const char *build = getenv("STRATA_TEST_BUILD");
    char path[1024];
    snprintf(path, sizeof path, "%s/tests/golden/tiny-model/golden.safetensors", build ? build : ".");
    enum strata_result r = st_safetensors_create(&f.golden, &err);
    if (!r)
        r = st_safetensors_add(f.golden, path, &err);
    snprintf(path, sizeof path, "%s/tests/topology/tiny.gguf", build ? build : ".");
    if (!r)
        r = strata_model_open(path, &f.model, &err);
    if (r)
        fprintf(stderr, "%s\n", err.text);
    return r ? -1 : 0;
}

static int teardown(void **state)
{
    (void)state;
    strata_model_free(f.model);
    st_safetensors_free(f.golden);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nvidia_and_amd_in_one_process),
        cmocka_unit_test(gfx1100_and_gfx1201_multi_chunk_prompt_both_orders),
        cmocka_unit_test(one_stage_lacks_a_kernel_image),
        cmocka_unit_test(single_devices_of_every_kind),
        cmocka_unit_test(four_devices_with_the_cpu_in_the_middle),
        cmocka_unit_test(the_kernels_own_source_on_fibers_with_32_and_64_lanes),
        cmocka_unit_test(decoding_in_windows_equals_reading_at_once),
        cmocka_unit_test(a_state_saved_on_one_machine_goes_on_on_another),
        cmocka_unit_test(one_byte_less_than_planned_is_a_refusal_with_the_numbers),
        cmocka_unit_test(a_launch_that_fails_late_ends_the_request_with_its_name),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
