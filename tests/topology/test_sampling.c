/* Sampling on devices: what a device picks is what the host picks from the same logits, for every setting, with and without
 * guesses; it is the CPU's answer, and ends with the CPU's message where nothing can be picked. */
#include "machine.h"

#include <math.h>

#include "engine/sampler.h"
#include "engine/speculate.h"

enum { PROMPT = 9, ANSWER = 9, SETTINGS = 7 };

static struct strata_model *model;

static struct strata_engine *open_engine(const char *devices, const char *split, const char *executor, uint32_t drafts)
{
    struct strata_error err;
    struct strata_engine *e;
    struct strata_engine_options o = {.devices = devices,
                                      .layer_split = split,
                                      .simulate = executor,
                                      .threads = 1,
                                      .context = 64,
                                      .prefill = 16,
                                      .sessions = 2,
                                      .drafts = drafts};
    assert_ok(strata_engine_create(model, &o, &e, &err), &err);
    return e;
}

static struct strata_session *open_session(struct strata_engine *e)
{
    struct strata_error err;
    struct strata_session *s;
    assert_ok(strata_session_create(e, &s, &err), &err);
    return s;
}

struct answer {
    int32_t token[ANSWER];
    size_t count;
    struct strata_stats stats;
};

static bool take(void *user, const struct strata_event *event)
{
    struct answer *a = user;
    if (event->kind == STRATA_EVENT_TEXT && event->token >= 0 && a->count < ANSWER)
        a->token[a->count++] = event->token;
    return true;
}

static struct strata_sampling setting(int i)
{
    static const struct strata_logit_bias bias[] = {{3, -INFINITY}, {17, 2.5f}, {3, 9.0f}, {400, 1.0f}, {17, -0.5f}};
    struct strata_sampling o;
    strata_sampling_default(&o);
    o.seed = 40 + (uint64_t)i;
    o.temperature = i < 2 ? 0.0f : 1.1f;
    if (i % 2) {
        o.repetition_penalty = 1.3f;
        o.frequency_penalty = 0.4f;
        o.presence_penalty = -0.2f;
        o.penalty_window = i == 1 ? 0 : i == 3 ? 3 : -1;
        o.bias = bias;
        o.bias_count = 5;
    }
    o.top_k = i == 4 || i == 5 ? 40 : 0;
    o.top_p = i >= 5 ? 0.8f : 1.0f;
    o.min_p = i == 6 ? 0.02f : 0.0f;
    return o;
}

static enum strata_result ask(struct strata_session *s, const struct strata_sampling *o, struct answer *a, struct strata_error *err)
{
    int32_t ids[PROMPT];
    make_ids(ids, PROMPT);
    ids[PROMPT - 1] = ids[3];
    *a = (struct answer){.count = 0};
    struct strata_request q = {
        .ids = ids, .count = PROMPT, .max_tokens = ANSWER, .ignore_eos = true, .sampling = *o, .event = take, .user = a};
    strata_session_reset(s);
    return strata_generate(s, &q, &a->stats, err);
}

/* Guesses what an answer says, and every third time something else; nothing for an empty one. */
static size_t draft(void *user, const struct strata_session *s, int32_t next, size_t most, int32_t *out)
{
    const struct answer *know = user;
    size_t at = s->count + 1 - PROMPT, n = 0;
    (void)next;
    for (; n < most && at + n < know->count; n++)
        out[n] = (at + n) % 3 ? know->token[at + n] : (know->token[at + n] + 1) % TINY_VOCABULARY;
    return n;
}

/* Settings of which (OR of 1 << setting): picks of the device against those from its logits, which log-probabilities make the host
 * look at. */
static void check_picks(const char *devices, const char *split, const char *executor, bool on_device, unsigned which,
                        struct answer all[SETTINGS])
{
    struct strata_error err;
    struct strata_engine *e = open_engine(devices, split, executor, 7);
    struct strata_session *s = open_session(e);
    for (int i = 0; i < SETTINGS; i++) {
        if (!(which >> i & 1))
            continue;
        struct answer none = {.count = 0}, host, guessed;
        struct strata_sampling o = setting(i);
        o.logprobs = 1;
        st_spec_use(s->spec, draft, &none);
        assert_ok(ask(s, &o, &host, &err), &err);
        assert_null(e->picks);
        o.logprobs = 0;
        assert_ok(ask(s, &o, &all[i], &err), &err);
        assert_true(!e->picks == !on_device);
        assert_int_equal(all[i].count, ANSWER);
        assert_memory_equal(all[i].token, host.token, sizeof host.token);
        st_spec_use(s->spec, draft, &host);
        assert_ok(ask(s, &o, &guessed, &err), &err);
        assert_memory_equal(guessed.token, host.token, sizeof host.token);
        assert_true(guessed.stats.accepted_tokens >= ANSWER / 3 && guessed.stats.passes < all[i].stats.passes);
    }
    strata_session_free(s);
    strata_engine_free(e);
}

static void a_device_picks_what_the_host_picks_from_its_logits(void **state)
{
    (void)state;
    const unsigned every = (1u << SETTINGS) - 1, one = 1u << 5;
    struct answer cpu[SETTINGS], other[SETTINGS];
    check_picks("cpu", NULL, NULL, false, every, cpu);
    check_picks("cpu,sim:sm_89:8G", "4,1", NULL, true, every, other);
    for (int i = 0; i < SETTINGS; i++)
        assert_memory_equal(cpu[i].token, other[i].token, sizeof cpu[i].token);
    check_picks("cpu,sim:gfx1100:8G:nograph", "4,1", NULL, true, one, other);
    check_picks("sim:sm_89:8G,cpu", "1,4", NULL, false, one, other);
}

static void the_kernels_own_source_picks_the_same(void **state)
{
    (void)state;
    const unsigned which = 1u << 5;
    struct answer cpu[SETTINGS], other[SETTINGS];
    check_picks("cpu", NULL, NULL, false, which, cpu);
    for (int wide = 0; wide < 2; wide++) {
        check_picks(wide ? "cpu,sim:gfx90a:8G" : "cpu,sim:gfx1100:8G", "4,1", "fibers", true, which, other);
        for (int i = 0; i < SETTINGS; i++)
            if (which >> i & 1)
                assert_memory_equal(cpu[i].token, other[i].token, sizeof cpu[i].token);
    }
}

static void a_request_whose_logits_become_infinite_ends_with_the_cpus_message(void **state)
{
    (void)state;
    static const char *const devices[] = {"cpu", "cpu,sim:sm_89:8G"}, *const splits[] = {NULL, "4,1"};
    char text[2][sizeof((struct strata_error *)0)->text];
    for (int d = 0; d < 2; d++) {
        struct strata_error err;
        struct answer a;
        struct strata_engine *e = open_engine(devices[d], splits[d], NULL, 0);
        struct strata_session *s = open_session(e);
        /* The last prompt token gets the largest logit; picked again it is there twice, which is too much. */
        struct strata_sampling o;
        strata_sampling_default(&o);
        o.frequency_penalty = -3e38f;
        o.penalty_window = 2;
        assert_int_equal(ask(s, &o, &a, &err), STRATA_E_MODEL);
        assert_true(a.count >= 1);
        assert_true(!e->picks == (d == 0));
        assert_says(err.text, "is infinite");
        snprintf(text[d], sizeof text[d], "%s", err.text);
        /* The engine answers the next one. */
        o = setting(5);
        assert_ok(ask(s, &o, &a, &err), &err);
        strata_session_free(s);
        strata_engine_free(e);
    }
    assert_string_equal(text[0], text[1]);
}

static void rows_of_a_window_are_sampled_each_by_its_own_rules(void **state)
{
    (void)state;
    enum { ROWS = 5 };
    static uint32_t nothing[(TINY_VOCABULARY + 31) / 32], seven[(TINY_VOCABULARY + 31) / 32] = {1u << 7};
    const struct strata_logit_bias up = {5, 50.0f};
    const struct st_sample_seen twice = {5, 2};
    struct st_sample rows[ROWS];
    struct strata_error err;
    int32_t ids[PROMPT];
    make_ids(ids, PROMPT);
    for (int i = 0; i < ROWS; i++)
        rows[i] = (struct st_sample){.repetition = 1.0f, .share = ST_SAMPLE_SHARE, .bias = &up, .seen = &twice};
    rows[0].biases = rows[0].seen_count = 1; /* infinite, less infinite */
    rows[0].repetition = 1e-40f;
    rows[0].frequency = 3e38f;
    rows[1].biases = 1;
    rows[2].mask = nothing;
    rows[3].mask = seven;
    rows[3].temperature = 1.0f;
    rows[4].biases = rows[4].seen_count = 1; /* infinite */
    rows[4].frequency = -3e38f;
    struct strata_engine *e = open_engine("cpu,sim:gfx90a:8G", "4,1", NULL, ROWS - 1);
    struct strata_session *s = open_session(e);
    assert_ok(strata_session_eval(s, ids, PROMPT, false, NULL, &err), &err);
    struct st_window_part part = {.session = s, .ids = ids, .n = ROWS, .sample = rows, .keep = 1};
    assert_ok(st_engine_window(e, &part, 1, &err), &err);
    static const struct st_sample_pick want[ROWS] = {
        {5, ST_SAMPLE_NAN, 0}, {5, ST_SAMPLE_OK, 0}, {0, ST_SAMPLE_NONE, 0}, {7, ST_SAMPLE_OK, ST_SAMPLE_ONE}, {5, ST_SAMPLE_INFINITE, 0}};
    assert_non_null(e->picks);
    assert_memory_equal(e->picks, want, sizeof want);
    assert_int_equal(st_sampler_check(&e->picks[0], &err), STRATA_E_MODEL);
    assert_says(err.text, "the logit of token 5 is not a number");
    assert_ok(st_engine_commit(e, &part, 1, &err), &err);
    strata_session_free(s);
    strata_engine_free(e);
}

/* The demo model's answer under a constraint; guesses that it forbids are among those that are checked. */
static void ask_constrained(struct strata_session *s, const struct strata_constraint *c, int logprobs, struct answer *a)
{
    struct strata_error err;
    int32_t *ids;
    size_t count;
    const struct strata_model *m = s->engine->model;
    assert_ok(strata_chat_prompt(m, "[{\"role\": \"user\", \"content\": \"What is vlc?\"}]", NULL, &ids, &count, NULL, &err), &err);
    *a = (struct answer){.count = 0};
    struct strata_request q = {.ids = ids, .count = count, .max_tokens = ANSWER, .constraint = c, .event = take, .user = a};
    strata_sampling_default(&q.sampling);
    q.sampling.temperature = 1.5f;
    q.sampling.seed = 3;
    q.sampling.repetition_penalty = 1.1f;
    q.sampling.logprobs = logprobs;
    strata_session_reset(s);
    assert_ok(strata_generate(s, &q, &a->stats, &err), &err);
    strata_free(ids);
}

/* Always the same tokens, which digits are not among. */
static size_t draft_words(void *user, const struct strata_session *s, int32_t next, size_t most, int32_t *out)
{
    size_t n = most < 3 ? most : 3;
    (void)user;
    for (size_t i = 0; i < n; i++)
        out[i] = i < s->count ? s->ids[i] : next;
    return n;
}

static void a_device_picks_what_a_constraint_allows(void **state)
{
    (void)state;
    struct strata_error err;
    struct strata_model *demo, *tiny = model;
    struct strata_constraint *c;
    struct answer host, device;
    const char *source = getenv("STRATA_TEST_SOURCE");
    char path[1024];
    snprintf(path, sizeof path, "%s/models/demo.gguf", source ? source : ".");
    assert_ok(strata_model_open(path, &demo, &err), &err);
    const struct strata_constraint_options o = {.grammar = "root ::= ([0-9] [0-9] \",\"){30}"};
    assert_ok(strata_constraint_create(demo, &o, &c, &err), &err);
    model = demo;
    struct strata_engine *e = open_engine("cpu,sim:sm_89:8G", "7,1", NULL, 3);
    model = tiny;
    struct strata_session *s = open_session(e);
    st_spec_use(s->spec, draft_words, NULL);
    ask_constrained(s, c, 1, &host);
    assert_null(e->picks);
    ask_constrained(s, c, 0, &device);
    assert_non_null(e->picks);
    assert_true(device.count == ANSWER && device.stats.drafted_tokens > 0);
    assert_memory_equal(device.token, host.token, sizeof host.token);
    strata_session_free(s);
    strata_engine_free(e);
    strata_constraint_free(c);
    strata_model_free(demo);
}

static void lists_that_are_too_long_for_the_device_leave_the_logits_to_the_host(void **state)
{
    (void)state;
    enum { BIASES = 9 * 4096 * 4 };
    struct strata_error err;
    struct strata_logit_bias *bias = calloc(BIASES, sizeof *bias);
    struct strata_engine *e = open_engine("cpu,sim:sm_89:8G", "4,1", NULL, 0);
    struct strata_session *s = open_session(e);
    struct answer want, got;
    struct strata_sampling o = setting(5);
    o.bias = NULL;
    o.bias_count = 0;
    assert_ok(ask(s, &o, &want, &err), &err);
    assert_non_null(e->picks);
    for (int i = 0; i < BIASES; i++)
        bias[i].token = i % TINY_VOCABULARY;
    o.bias = bias;
    o.bias_count = BIASES;
    assert_ok(ask(s, &o, &got, &err), &err);
    assert_null(e->picks);
    assert_memory_equal(want.token, got.token, sizeof want.token);
    strata_session_free(s);
    strata_engine_free(e);
    free(bias);
}

static int setup(void **state)
{
    (void)state;
    return open_tiny(&model);
}

static int teardown(void **state)
{
    (void)state;
    strata_model_free(model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_picks_what_the_host_picks_from_its_logits),
        cmocka_unit_test(the_kernels_own_source_picks_the_same),
        cmocka_unit_test(a_request_whose_logits_become_infinite_ends_with_the_cpus_message),
        cmocka_unit_test(rows_of_a_window_are_sampled_each_by_its_own_rules),
        cmocka_unit_test(a_device_picks_what_a_constraint_allows),
        cmocka_unit_test(lists_that_are_too_long_for_the_device_leave_the_logits_to_the_host),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
