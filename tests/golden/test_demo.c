/* Greedy answers of the demo model against those that llama.cpp and an independent program gave for its BF16 weights
 * (tests/golden/data/demo_greedy.json).
 *
 * test_demo: models/demo.gguf, the two prompts that the model knows by heart, every token, with 8-bit activations and
 * as many threads as there are cores, and the right package named for two more. test_demo large: the BF16 weights,
 * converted here from $STRATA_FIXTURES/models/demo, with FP32 activations: every token of all prompts. */
#include "test.h"

#include <jansson.h>

#include "base/file.h"
#include "fixture.h"
#include "model/convert.h"

static struct {
    json_t *prompts;
    struct strata_model *model;
    bool exact;
} f;

struct collected {
    int32_t ids[256];
    size_t count;
    char text[4096];
    size_t size;
};

static bool collect(void *user, const struct strata_event *e)
{
    struct collected *c = user;
    if (e->kind == STRATA_EVENT_TEXT && e->token >= 0 && c->count < 256)
        c->ids[c->count++] = e->token;
    if (e->kind == STRATA_EVENT_TEXT && e->size < sizeof c->text - c->size) {
        memcpy(c->text + c->size, e->text, e->size);
        c->size += e->size;
    }
    return true;
}

static void answer(const int32_t *ids, size_t count, size_t max, bool ignore_eos, int threads, struct collected *c)
{
    struct strata_error err;
    struct strata_engine *e;
    struct strata_session *s;
    struct strata_engine_options o = {
        .threads = threads, .context = 256, .fp32 = f.exact, .kv = f.exact ? STRATA_KV_F32 : STRATA_KV_F16};
    assert_ok(strata_engine_create(f.model, &o, &e, &err), &err);
    assert_ok(strata_session_create(e, &s, &err), &err);
    struct strata_request q = {
        .ids = ids, .count = count, .max_tokens = max, .ignore_eos = ignore_eos, .event = collect, .user = c};
    strata_sampling_default(&q.sampling);
    assert_ok(strata_generate(s, &q, NULL, &err), &err);
    strata_session_free(s);
    strata_engine_free(e);
}

static void check_prompt(const json_t *p)
{
    int32_t ids[64];
    const json_t *prompt = json_object_get(p, "prompt_ids"), *want = json_object_get(p, "greedy_ids");
    size_t n = json_array_size(prompt);
    assert_in_range(n, 1, 64);
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(prompt, i));
    struct collected c = {0};
    answer(ids, n, json_array_size(want), true, 0, &c);
    assert_int_equal(c.count, json_array_size(want));
    for (size_t i = 0; i < c.count; i++)
        if (c.ids[i] != json_integer_value(json_array_get(want, i)))
            fail_msg("%s: token %zu is %d, not %d", json_string_value(json_object_get(p, "prompt")), i, c.ids[i],
                     (int)json_integer_value(json_array_get(want, i)));
}

static void greedy_tokens_equal_the_reference(void **state)
{
    (void)state;
    size_t checked = 0;
    for (size_t i = 0; i < json_array_size(f.prompts); i++) {
        const json_t *p = json_array_get(f.prompts, i);
        const char *text = json_string_value(json_object_get(p, "prompt"));
        if (f.exact || strstr(text, "vlc") || strstr(text, "gambas3-gb-term")) {
            check_prompt(p);
            checked++;
        }
    }
    assert_int_equal(checked, f.exact ? 5 : 2);
}

static void prompts_tokenize_to_the_reference_ids(void **state)
{
    (void)state;
    struct strata_error err;
    for (size_t i = 0; i < json_array_size(f.prompts); i++) {
        const json_t *p = json_array_get(f.prompts, i), *want = json_object_get(p, "prompt_ids");
        const char *text = json_string_value(json_object_get(p, "prompt"));
        int32_t *ids;
        size_t n;
        assert_ok(strata_tokenize(f.model, text, strlen(text), true, &ids, &n, &err), &err);
        assert_int_equal(n, json_array_size(want));
        for (size_t k = 0; k < n; k++)
            assert_int_equal(ids[k], json_integer_value(json_array_get(want, k)));
        strata_free(ids);
    }
}

static void known_packages_are_named_with_any_number_of_threads(void **state)
{
    (void)state;
    static const struct {
        const char *messages, *start;
    } cases[] = {{"[{\"role\":\"user\",\"content\":\"What is gimp?\"}]", "gimp is a package"},
                 {"[{\"role\":\"user\",\"content\":\"Describe the package nginx.\"}]", "nginx is a package"}};
    struct strata_error err;
    for (size_t i = 0; i < 2; i++) {
        int32_t *ids;
        size_t n;
        struct collected one = {0}, two = {0};
        assert_ok(strata_chat_prompt(f.model, cases[i].messages, NULL, &ids, &n, NULL, &err), &err);
        answer(ids, n, 100, false, 1, &one);
        answer(ids, n, 100, false, 2, &two);
        assert_memory_equal(one.text, cases[i].start, strlen(cases[i].start));
        assert_string_equal(one.text, two.text);
        strata_free(ids);
    }
}

/* What "make demo" prints. */
static void the_answer_about_gimp_is_the_recorded_one(void **state)
{
    (void)state;
    struct strata_error err;
    struct collected c = {0};
    int32_t *ids;
    size_t n, size;
    char path[PATH_SIZE], *text;
    const char *source = getenv("STRATA_TEST_SOURCE");
    if (f.exact)
        return;
    snprintf(path, sizeof path, "%s/tests/golden/demo.txt", source ? source : ".");
    assert_ok(st_read_file(path, sizeof c.text, &text, &size, &err), &err);
    assert_ok(strata_chat_prompt(f.model, "[{\"role\":\"user\",\"content\":\"What is gimp?\"}]", NULL, &ids, &n, NULL, &err),
              &err);
    answer(ids, n, 0, false, 0, &c);
    assert_int_equal(c.size + 1, size); /* the file ends with the command line's new line */
    assert_memory_equal(c.text, text, c.size);
    strata_free(ids);
    free(text);
}

/* Opens the model of the mode: the committed file, or the fixture after conversion. */
static int setup(void **state)
{
    struct strata_error err;
    struct st_convert_report report;
    char path[PATH_SIZE], folder[PATH_SIZE];
    const char *source = getenv("STRATA_TEST_SOURCE"), *fixtures = getenv("STRATA_FIXTURES");
    snprintf(path, sizeof path, "%s/models/demo.gguf", source ? source : ".");
    if (f.exact) {
        snprintf(folder, sizeof folder, "%s/models/demo", fixtures ? fixtures : ".");
        if (make_work(state))
            return -1;
        snprintf(path, sizeof path, "%s", work_path("demo.gguf"));
        struct st_convert_options c = {.dir = folder, .out = path, .type = ST_CONVERT_SOURCE};
        if (st_convert(&c, &report, &err)) {
            fprintf(stderr, "%s\n", err.text);
            return -1;
        }
    }
    if (!strata_model_open(path, &f.model, &err))
        return 0;
    fprintf(stderr, "%s\n", err.text);
    return -1;
}

static int teardown(void **state)
{
    strata_model_free(f.model);
    return f.exact ? remove_work(state) : 0;
}

int main(int argc, char **argv)
{
    json_error_t e;
    char path[PATH_SIZE];
    const char *source = getenv("STRATA_TEST_SOURCE");
    snprintf(path, sizeof path, "%s/tests/golden/data/demo_greedy.json", source ? source : ".");
    json_t *all = json_load_file(path, 0, &e);
    f.exact = argc > 1 && !strcmp(argv[1], "large");
    if (!all || (argc > 1 && !f.exact)) {
        fprintf(stderr, "test_demo: %s\n", all ? "usage: test_demo [large]" : e.text);
        return 2;
    }
    f.prompts = json_object_get(all, "prompts");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_tokenize_to_the_reference_ids),
        cmocka_unit_test(greedy_tokens_equal_the_reference),
        cmocka_unit_test(known_packages_are_named_with_any_number_of_threads),
        cmocka_unit_test(the_answer_about_gimp_is_the_recorded_one),
    };
    int failed = cmocka_run_group_tests(tests, setup, teardown);
    json_decref(all);
    return failed;
}
