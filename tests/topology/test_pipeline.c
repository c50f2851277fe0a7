/* Prompts in chunks through several stages: the bits of one chunk after the other, whatever the devices and the chunk;
 * an end in the middle; faults in every stage; and nothing for the validation layer to report. */
#include "machine.h"

#include "engine/pipeline.h"

#include "runtime/sim.h"

static struct strata_model *model;

enum { PROMPT = SMALL ? 25 : 61 };

static int32_t prompt[PROMPT];

static struct strata_engine *open_engine(const char *devices, const char *split, uint32_t prefill, const char *check)
{
    struct strata_error err;
    struct strata_engine *e;
    struct strata_engine_options o = {.devices = devices,
                                      .layer_split = split,
                                      .check = check,
                                      .threads = 2,
                                      .context = 128,
                                      .prefill = prefill,
                                      .sessions = 3,
                                      .kv = STRATA_KV_F32,
                                      .fp32 = true};
    assert_ok(st_engine_create(model, &o, changing_sim("", ""), NULL, &e, &err), &err);
    return e;
}

/* Logits of the prompt's tokens, read in one go or chunk by chunk. */
static void read_prompt(struct strata_engine *e, bool by_chunk, float *logits)
{
    struct strata_error err;
    struct strata_session *s;
    size_t chunk = by_chunk ? e->options.prefill : PROMPT;
    assert_ok(strata_session_create(e, &s, &err), &err);
    for (size_t at = 0; at < PROMPT; at += chunk) {
        size_t n = PROMPT - at < chunk ? PROMPT - at : chunk;
        assert_ok(strata_session_eval(s, prompt + at, n, true, logits + at * TINY_VOCABULARY, &err), &err);
    }
    strata_session_free(s);
}

/* Logits of the last token alone, as a request reads its prompt: the head then has one row, and other kernels than for many. */
static void read_last(struct strata_engine *e, bool by_chunk, float *logits)
{
    struct strata_error err;
    struct strata_session *s;
    size_t chunk = by_chunk ? e->options.prefill : PROMPT;
    assert_ok(strata_session_create(e, &s, &err), &err);
    for (size_t at = 0; at < PROMPT; at += chunk) {
        size_t n = PROMPT - at < chunk ? PROMPT - at : chunk;
        assert_ok(strata_session_eval(s, prompt + at, n, false, logits, &err), &err);
    }
    strata_session_free(s);
}

static const struct {
    const char *devices, *split;
} machines[] = {
    {"sim:gfx1100:8G", NULL},
    {"cpu", NULL},
    {"sim:gfx1100:8G,sim:gfx1201:8G", "3,2"},
    {"sim:sm_89:8G,cpu", "2,3"},
    {"cpu,sim:gfx90a:8G", "2,3"},
    {"sim:sm_89:8G,cpu,sim:gfx90a:8G", "2,2,1"},
    {"sim:gfx1100:8G:nograph,sim:gfx1201:8G,cpu,sim:sm_80:8G:nomap", "1,1,2,1"},
};

enum { MACHINES = sizeof machines / sizeof *machines };

static void chunks_in_the_pipeline_give_the_bits_of_one_after_the_other(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {9, 16, 33};
    static float piped[PROMPT * TINY_VOCABULARY], single[PROMPT * TINY_VOCABULARY], last[TINY_VOCABULARY];
    for (int m = 0; m < MACHINES; m++)
        for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
            if (i != (size_t)m % 3 && m != 2 && m != 5) /* every chunk on two machines, one on the others */
                continue;
            struct strata_engine *e = open_engine(machines[m].devices, machines[m].split, chunks[i], NULL);
            read_prompt(e, false, piped);
            read_prompt(e, true, single);
            assert_memory_equal(piped, single, sizeof piped);
            read_last(e, false, last);
            read_last(e, true, single);
            assert_memory_equal(last, single, sizeof last);
            strata_engine_free(e);
        }
}

static void the_validation_layer_has_nothing_to_report(void **state)
{
    (void)state;
    static float got[TINY_VOCABULARY], want[TINY_VOCABULARY];
    for (int m = 2; m < MACHINES; m++) {
        struct strata_engine *plain = open_engine(machines[m].devices, machines[m].split, 16, NULL);
        struct strata_engine *e = open_engine(machines[m].devices, machines[m].split, 16, "runtime");
        read_last(e, false, got);
        read_last(plain, false, want);
        assert_memory_equal(got, want, sizeof got);
        strata_engine_free(e);
        strata_engine_free(plain);
    }
}

static bool stop_after(void *user, size_t done)
{
    return done < *(const size_t *)user;
}

static void a_prompt_that_is_ended_leaves_all_stages_at_the_same_token(void **state)
{
    (void)state;
    struct strata_error err;
    struct strata_session *s;
    static float got[TINY_VOCABULARY], want[TINY_VOCABULARY];
    struct strata_engine *e = open_engine(machines[5].devices, machines[5].split, 4, NULL);
    read_last(e, false, want);
    size_t limit = 8;
    assert_ok(strata_session_create(e, &s, &err), &err);
    struct st_input in = {.ids = prompt, .count = PROMPT};
    struct st_output out = {.chunk_done = stop_after, .user = &limit};
    assert_ok(st_session_eval(s, &in, &out, &err), &err);
    size_t held = strata_session_tokens(s, NULL);
    assert_true(held >= 8 && held < PROMPT && held % 4 == 0);
    assert_ok(strata_session_eval(s, prompt + held, PROMPT - held, false, got, &err), &err);
    assert_memory_equal(got, want, sizeof got);
    strata_session_free(s);
    strata_engine_free(e);
}

static void a_fault_in_any_stage_ends_the_prompt_and_the_next_one_has_the_right_bits(void **state)
{
    (void)state;
    static const char *const kinds[] = {"late", "refuse", "lost"};
    static float got[TINY_VOCABULARY], want[TINY_VOCABULARY];
    struct strata_engine *e = open_engine("sim:sm_89:8G,cpu,sim:gfx90a:8G", "2,1,2", 9, NULL);
    read_last(e, false, want);
    uint32_t launches[2] = {e->opened[0]->rt->launches, e->opened[2]->rt->launches}; /* of the whole prompt */
    strata_engine_free(e);
    for (uint32_t k = 0; k < 9; k++) {
        struct strata_error err;
        struct strata_session *s;
        char first[160];
        uint32_t launch = 1 + (launches[k % 2] - 1) * k / 8;
        snprintf(first, sizeof first, k % 2 ? "sim:sm_89:8G,sim:gfx90a:8G:%s=%u" : "sim:sm_89:8G:%s=%u,sim:gfx90a:8G",
                 kinds[k % 3], launch);
        struct strata_engine_options o = {.devices = "sim:sm_89:8G,cpu,sim:gfx90a:8G",
                                          .layer_split = "2,1,2",
                                          .threads = 2,
                                          .context = 128,
                                          .prefill = 9,
                                          .kv = STRATA_KV_F32,
                                          .fp32 = true};
        assert_ok(st_engine_create(model, &o, changing_sim(first, ""), NULL, &e, &err), &err);
        assert_ok(strata_session_create(e, &s, &err), &err);
        assert_int_equal(strata_session_eval(s, prompt, PROMPT, false, got, &err), STRATA_E_DEVICE);
        assert_says(err.text, k % 2 ? "layers 3..4 on sim:1" : "layers 0..1 on sim:0");
        assert_int_equal(strata_session_tokens(s, NULL), 0);
        assert_ok(strata_session_eval(s, prompt, PROMPT, false, got, &err), &err);
        assert_memory_equal(got, want, sizeof got);
        assert_int_equal(sim_opened, k % 3 == 1 ? 1 : 2);
        strata_session_free(s);
        strata_engine_free(e);
    }
}

static void chunks_are_as_large_as_asked_for_and_several_for_each_stage(void **state)
{
    (void)state;
    struct strata_engine *e = calloc(1, sizeof *e);
    e->options.prefill = 8192;
    e->n_stages = 1;
    assert_int_equal(st_pipeline_chunk(e, 100000), 8192);
    e->n_stages = 2;
    assert_int_equal(st_pipeline_chunk(e, 100), 512);
    assert_int_equal(st_pipeline_chunk(e, 8192), 1088);
    assert_int_equal(st_pipeline_chunk(e, 1000000), 8192);
    e->options.prefill = 64;
    assert_int_equal(st_pipeline_chunk(e, 8192), 64);
    free(e);
}

static int setup(void **state)
{
    (void)state;
    make_ids(prompt, PROMPT);
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
        cmocka_unit_test(chunks_in_the_pipeline_give_the_bits_of_one_after_the_other),
        cmocka_unit_test(the_validation_layer_has_nothing_to_report),
        cmocka_unit_test(a_prompt_that_is_ended_leaves_all_stages_at_the_same_token),
        cmocka_unit_test(chunks_are_as_large_as_asked_for_and_several_for_each_stage),
        cmocka_unit_test(a_fault_in_any_stage_ends_the_prompt_and_the_next_one_has_the_right_bits),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
