/* A whole model over several devices: the miniature golden model on simulated cards, against the reference's logits, with FP32
 * activations and cache. The field reports are tests by name. "long" as an argument: the prompt of 4,000 tokens alone. */
#include "machine.h"

#include <math.h>
#include <unistd.h>

#include "format/safetensors.h"
#include "makers.h"

enum { CHUNK = SMALL ? 9 : 64, LONG = SMALL ? 60 : 1000 };

static const float tolerance = 2e-4f;

static struct {
    struct st_safetensors *golden;
    struct strata_model *model;
} f;

struct machine {
    const char *devices, *split, *executor;
    uint32_t prefill, context; /* context 0: 256 */
    const struct st_runtime *const *runtimes;
    const struct st_image_set *images;
};

static enum strata_result open_engine(const struct machine *m, struct strata_engine **out, struct strata_error *err)
{
    struct strata_engine_options o = {.devices = m->devices,
                                      .layer_split = m->split,
                                      .simulate = m->executor,
                                      .threads = 1,
                                      .context = m->context ? m->context : 256,
                                      .prefill = m->prefill,
                                      .sessions = 2,
                                      .kv = STRATA_KV_F32,
                                      .fp32 = true};
    return st_engine_create(f.model, &o, m->runtimes, m->images, out, err);
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
static const size_t lengths[] = {1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 8};

/* A prompt that is longer than the reference's, against the CPU: logits of the last token. */
static void check_long_prompt(const char *devices, const char *split, size_t n)
{
    struct strata_error err;
    int32_t *ids = malloc(n * sizeof *ids);
    float logits[2][TINY_VOCABULARY], most = 0;
    make_ids(ids, n);
    for (int i = 0; i < 2; i++) {
        struct machine m = {i ? devices : "cpu", i ? split : NULL, "cpu", CHUNK, (uint32_t)n + 8, NULL, NULL};
        struct strata_engine *e;
        struct strata_session *s;
        assert_ok(open_engine(&m, &e, &err), &err);
        assert_ok(strata_session_create(e, &s, &err), &err);
        assert_ok(strata_session_eval(s, ids, n, false, logits[i], &err), &err);
        strata_session_free(s);
        strata_engine_free(e);
    }
    for (int i = 0; i < TINY_VOCABULARY; i++) {
        float d = fabsf(logits[1][i] - logits[0][i]);
        most = d > most ? d : most;
        if (!(d <= tolerance))
            fail_msg("%s, %zu tokens: logit %d is %g, on the CPU %g", devices, n, i, (double)logits[1][i], (double)logits[0][i]);
    }
    print_message("# %s, %zu tokens: at most %.2g beside the CPU\n", devices, n, (double)most);
    free(ids);
}

static void nvidia_and_amd_in_one_process(void **state)
{
    (void)state;
    make_runtimes();
    cuda_cards = "sm_89:8G:pci=01.00.0:as=cuda";
    hip_cards = "gfx1150:8G:pci=65.00.0:as=hip:integrated";
    opencl_cards = NULL;
    struct st_image_set images = images_for("sm_80,gfx1150");
    check_machine(&(struct machine){"cuda:0,hip:0", "3,2", "cpu", CHUNK, 0, runtimes, &images}, lengths, 5);
    struct machine other = {"hip:0,cuda:0", "2,3", "cpu", CHUNK, 0, runtimes, &images};
    check_machine(&other, lengths + 3, 1);
    other.devices = "auto";
    other.split = NULL;
    check_machine(&other, lengths + 3, 1);
}

static void gfx1100_and_gfx1201_multi_chunk_prompt_both_orders(void **state)
{
    (void)state;
    check_machine(&(struct machine){"sim:gfx1100:24G,sim:gfx1201:16G", "3,2", "cpu", CHUNK}, lengths, 5);
    check_machine(&(struct machine){"sim:gfx1201:16G,sim:gfx1100:24G", "2,3", "cpu", CHUNK}, lengths, 5);
    check_long_prompt("sim:gfx1100:24G,sim:gfx1201:16G", "3,2", LONG);
}

/* Refused before anything is loaded, with the device's name, its architecture and the kernel. */
static void check_refusal(const struct machine *m, const char *name, const char *arch, const char *says)
{
    struct strata_error err;
    struct strata_engine *e;
    assert_int_equal(open_engine(m, &e, &err), STRATA_E_DEVICE);
    assert_int_equal(err.code, STRATA_E_DEVICE);
    assert_says(err.text, name);
    assert_says(err.text, arch);
    assert_says(err.text, says);
}

static void one_stage_lacks_a_kernel_image(void **state)
{
    (void)state;
    check_refusal(&(struct machine){"sim:gfx1100:24G,sim:gfx1201:16G:lacks=st_gdn_step_4", "3,2", "cpu", CHUNK}, "sim:1", "gfx1201",
                  "st_gdn_step_4");
    check_refusal(&(struct machine){"sim:gfx1100:24G,sim:gfx1201:16G:images=gfx1100", "3,2", "cpu", CHUNK}, "sim:1", "gfx1201",
                  "there are images for gfx1100");
    make_runtimes();
    cuda_cards = opencl_cards = NULL;
    hip_cards = "gfx1100:24G:as=hip,gfx1201:16G:as=hip";
    struct st_image_set images = images_for("gfx1100");
    struct machine both = {"hip:0,hip:1", "3,2", "cpu", CHUNK, 0, runtimes, &images};
    check_refusal(&both, "hip:1", "gfx1201", "no image of kernel st_");
    both.devices = "hip:0";
    both.split = NULL;
    check_machine(&both, lengths + 3, 1);
    check_machine(&(struct machine){"sim:gfx1100:24G", NULL, "cpu", CHUNK}, lengths + 3, 1);
}

static void single_devices_of_every_kind(void **state)
{
    (void)state;
    static const char *const cards[] = {"sim:sm_75:8G",        "sim:sm_90:80G",         "sim:gfx906:16G:nograph",
                                        "sim:gfx90a:8G:nomap", "sim:gfx942:64G",        "sim:gfx1010:8G",
                                        "sim:gfx1030:8G",      "sim:gfx1100:24G:units=2", "sim:gfx1151:8G:integrated:display",
                                        "sim:gfx1201:16G",     "sim:opencl:8G:nograph:nopeer"};
    static const size_t few[] = {CHUNK + 1};
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++)
        check_machine(&(struct machine){cards[i], NULL, "cpu", CHUNK / 4}, few, 1);
}

static void three_devices_of_mixed_lanes(void **state)
{
    (void)state;
    check_machine(&(struct machine){"sim:gfx90a:8G,sim:sm_80:8G,sim:gfx906:8G", "1,2,2", "cpu", CHUNK}, lengths + 3, 2);
}

static void four_devices_with_the_cpu_in_the_middle(void **state)
{
    (void)state;
    check_machine(&(struct machine){"sim:sm_89:8G,cpu,sim:gfx90a:8G,sim:gfx1201:8G", "1,2,1,1", "cpu", CHUNK}, lengths, 5);
}

static void the_kernels_own_source_on_fibers_with_32_and_64_lanes(void **state)
{
    (void)state;
    static const size_t few[] = {1, SMALL ? 10 : 40};
    check_machine(&(struct machine){"sim:gfx1100:4G", NULL, "fibers", 32}, few, 2);
    check_machine(&(struct machine){"sim:gfx90a:4G,sim:sm_89:4G", "2,3", "fibers", SMALL ? 8 : 32}, few, 2);
}

static void a_prompt_of_four_thousand_tokens(void **state)
{
    (void)state;
    check_long_prompt("sim:gfx1100:24G,sim:gfx1201:16G", "3,2", SMALL ? 100 : 4000);
    check_long_prompt("sim:sm_89:8G,cpu,sim:gfx90a:8G", "2,1,2", SMALL ? 100 : 4000);
}

static void decoding_in_windows_equals_reading_at_once(void **state)
{
    (void)state;
    struct strata_error err;
    struct strata_engine *e;
    struct strata_session *s;
    struct machine m = {"sim:gfx1100:8G,sim:sm_80:8G", "2,3", "cpu", CHUNK};
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

static int setup(void **state)
{
    (void)state;
    struct strata_error err = {0};
    const char *build = getenv("STRATA_TEST_BUILD");
    char path[1024];
    snprintf(path, sizeof path, "%s/tests/golden/tiny-model/golden.safetensors", build ? build : ".");
    if (!st_safetensors_create(&f.golden, &err) && !st_safetensors_add(f.golden, path, &err))
        return open_tiny(&f.model);
    fprintf(stderr, "%s\n", err.text);
    return -1;
}

static int teardown(void **state)
{
    (void)state;
    strata_model_free(f.model);
    st_safetensors_free(f.golden);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest long_tests[] = {cmocka_unit_test(a_prompt_of_four_thousand_tokens)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nvidia_and_amd_in_one_process),
        cmocka_unit_test(gfx1100_and_gfx1201_multi_chunk_prompt_both_orders),
        cmocka_unit_test(one_stage_lacks_a_kernel_image),
        cmocka_unit_test(single_devices_of_every_kind),
        cmocka_unit_test(three_devices_of_mixed_lanes),
        cmocka_unit_test(four_devices_with_the_cpu_in_the_middle),
        cmocka_unit_test(the_kernels_own_source_on_fibers_with_32_and_64_lanes),
        cmocka_unit_test(decoding_in_windows_equals_reading_at_once),
        cmocka_unit_test(a_state_saved_on_one_machine_goes_on_on_another),
        cmocka_unit_test(one_byte_less_than_planned_is_a_refusal_with_the_numbers),
    };
    return argc > 1 && !strcmp(argv[1], "long") ? cmocka_run_group_tests(long_tests, setup, teardown)
                                                : cmocka_run_group_tests(tests, setup, teardown);
}
