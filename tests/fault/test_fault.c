/* What goes wrong on devices while a model runs: the request ends with a message that names the device, nothing hangs
 * or leaks, and the engine answers the next request. Devices are simulated, with faults on request. */
#include "machine.h"

#include <unistd.h>

#include "makers.h"
#include "runtime/sim.h"

static struct strata_model *model;

enum { PROMPT = SMALL ? 13 : 29, ANSWER = 3 };

static int32_t prompt[PROMPT];
static const char *expert_cache; /* of engines that are opened */

static struct strata_engine_options options_for(const char *devices, const char *split)
{
    return (struct strata_engine_options){.devices = devices,
                                          .layer_split = split,
                                          .expert_cache = expert_cache,
                                          .threads = 1,
                                          .context = 128,
                                          .prefill = SMALL ? 5 : 12,
                                          .sessions = 2,
                                          .kv = STRATA_KV_F32,
                                          .fp32 = true};
}

/* Tokens of an answer, and how the request ended. */
struct reply {
    enum strata_result result;
    struct strata_error err;
    int32_t token[ANSWER];
    size_t tokens;
    size_t read; /* prompt tokens computed */
};

static bool take_event(void *user, const struct strata_event *event)
{
    struct reply *reply = user;
    if (event->kind == STRATA_EVENT_TEXT && event->token >= 0 && reply->tokens < ANSWER)
        reply->token[reply->tokens++] = event->token;
    return true;
}

static struct reply ask(struct strata_session *s)
{
    struct reply reply = {.err = {0}};
    struct strata_stats stats;
    struct strata_request q = {
        .ids = prompt, .count = PROMPT, .max_tokens = ANSWER, .ignore_eos = true, .event = take_event, .user = &reply};
    strata_sampling_default(&q.sampling);
    reply.result = strata_generate(s, &q, &stats, &reply.err);
    reply.read = stats.read_tokens;
    return reply;
}

static struct reply healthy; /* of the CPU; every machine gives it, or nothing here could be compared */

/* The whole answer, with the whole prompt read. */
static void assert_answers(struct strata_session *s)
{
    struct reply reply = ask(s);
    assert_ok(reply.result, &reply.err);
    assert_int_equal(reply.read, PROMPT);
    assert_int_equal(reply.tokens, ANSWER);
    assert_memory_equal(reply.token, healthy.token, sizeof healthy.token);
}

static void open_on(const char *devices, const char *split, const char *first, const char *then,
                    struct strata_engine **e, struct strata_session **s)
{
    struct strata_error err;
    struct strata_engine_options o = options_for(devices, split);
    assert_ok(st_engine_create(model, &o, changing_sim(first, then), NULL, e, &err), &err);
    assert_ok(strata_session_create(*e, s, &err), &err);
}

static void close_on(struct strata_engine *e, struct strata_session *s)
{
    strata_session_free(s);
    strata_engine_free(e);
}

static void works_alone(const char *device)
{
    struct strata_engine *e;
    struct strata_session *s;
    open_on(device, NULL, "", "", &e, &s);
    assert_answers(s);
    close_on(e, s);
}

/* ---- start ---- */

/* Counts the allocations of a start by letting each fail. */
static int walk_allocations(const char *pattern, const char *name)
{
    for (int n = 1;; n++) {
        struct strata_error err = {0};
        struct strata_engine *e;
        char devices[128];
        snprintf(devices, sizeof devices, pattern, n);
        struct strata_engine_options o = options_for(devices, "3,2");
        enum strata_result r = strata_engine_create(model, &o, &e, &err);
        if (!r) {
            strata_engine_free(e);
            return n - 1;
        }
        assert_true(r == STRATA_E_DEVICE || r == STRATA_E_LIMIT);
        assert_says(err.text, name);
        assert_says(err.text, "asked for");
    }
}

static void every_allocation_of_start_fails_once_and_the_message_names_the_device(void **state)
{
    (void)state;
    assert_true(walk_allocations("sim:gfx1100:8G:oom=%d,sim:gfx1201:8G", "sim:0") >= 1);
    assert_true(walk_allocations("sim:gfx1100:8G,sim:gfx1201:8G:oom=%d", "sim:1") >= 1);
    /* packed rows, the two buffers that weights go through, the two between the stages */
    assert_true(walk_allocations("sim:gfx1100:8G:hostoom=%d,sim:gfx1201:8G", "sim:0") >= 5);
    assert_true(walk_allocations("sim:gfx1100:8G,sim:gfx1201:8G:hostoom=%d", "sim:1") >= 5);
    works_alone("sim:gfx1100:8G");
    works_alone("sim:gfx1201:8G");
}

/* ---- requests ---- */

#define PAIR "sim:gfx1100:8G,sim:gfx1201:8G"

/* Number of the first launch on the second device that belongs to the answer, for devices without graphs. */
static int launches_until_answer;

/* Finds it: what the prompt needs, and one more. */
static void count_launches(void)
{
    struct strata_engine *e;
    struct strata_session *s;
    struct strata_error err;
    open_on(PAIR, "3,2", "sim:gfx1100:8G:nograph,sim:gfx1201:8G:nograph", "", &e, &s);
    assert_ok(strata_session_eval(s, prompt, PROMPT, false, NULL, &err), &err);
    launches_until_answer = (int)e->opened[1]->rt->launches + 1;
    close_on(e, s);
}

static void faulty_pair(char text[160], const char *kind, int launch)
{
    snprintf(text, 160, "sim:gfx1100:8G:nograph,sim:gfx1201:8G:nograph:patience=3000:%s=%d", kind, launch);
}

/* A fault of the second device ends the request as said; the next one is answered, by the same engine. */
static void check_fault(const char *kind, int launch, bool in_answer, const char *says)
{
    struct strata_engine *e;
    struct strata_session *s;
    char faulty[160];
    faulty_pair(faulty, kind, launch);
    open_on(PAIR, "3,2", faulty, "", &e, &s);
    struct reply reply = ask(s);
    assert_int_equal(reply.result, STRATA_E_DEVICE);
    assert_int_equal(reply.err.code, STRATA_E_DEVICE);
    assert_says(reply.err.text, "sim:1");
    assert_says(reply.err.text, "layers 3..4");
    assert_says(reply.err.text, says);
    assert_true(in_answer ? reply.tokens > 0 : reply.tokens == 0);
    assert_memory_equal(reply.token, healthy.token, reply.tokens * sizeof *reply.token);
    assert_int_equal(strata_session_tokens(s, NULL), 0);
    assert_answers(s);
    assert_answers(s);
    close_on(e, s);
}

static void a_launch_that_is_refused_costs_the_session_what_it_held_and_nothing_else(void **state)
{
    (void)state;
    struct strata_engine *e;
    struct strata_session *s, *other;
    struct strata_error err;
    for (int in_answer = 0; in_answer < 2; in_answer++) {
        char faulty[160];
        faulty_pair(faulty, "refuse", launches_until_answer + (in_answer ? 2 : -5));
        open_on(PAIR, "3,2", faulty, "", &e, &s);
        assert_ok(strata_session_create(e, &other, &err), &err);
        struct reply reply = ask(s);
        assert_int_equal(reply.result, STRATA_E_DEVICE);
        assert_says(reply.err.text, "a refusal was asked for");
        assert_says(reply.err.text, "kernel st_");
        assert_says(reply.err.text, "sim:1");
        assert_int_equal(reply.tokens > 0, in_answer);
        assert_answers(s);
        assert_int_equal(sim_opened, 1);
        assert_answers(other);
        strata_session_free(other);
        close_on(e, s);
    }
}

static void a_window_whose_capture_was_refused_is_captured_anew(void **state)
{
    (void)state;
    struct strata_engine *e;
    struct strata_session *s;
    char faulty[160];
    snprintf(faulty, sizeof faulty, "sim:gfx1100:8G,sim:gfx1201:8G:refuse=%d", launches_until_answer + 7);
    open_on(PAIR, "3,2", faulty, "", &e, &s);
    struct reply reply = ask(s);
    assert_int_equal(reply.result, STRATA_E_DEVICE);
    assert_true(reply.tokens > 0);
    assert_answers(s);
    assert_int_equal(sim_opened, 1);
    close_on(e, s);
}

static void a_launch_that_fails_late_in_the_prompt(void **state)
{
    (void)state;
    check_fault("late", launches_until_answer / 2, false, "failed on the device: a fault was asked for");
    check_fault("late", launches_until_answer - 1, false, "failed on the device: a fault was asked for");
}

static void a_launch_that_fails_late_in_the_answer(void **state)
{
    (void)state;
    check_fault("late", launches_until_answer + 3, true, "failed on the device: a fault was asked for");
}

static void a_device_that_is_lost_in_the_prompt(void **state)
{
    (void)state;
    check_fault("lost", 1, false, "the device was lost");
    check_fault("lost", launches_until_answer - 1, false, "the device was lost");
}

static void a_device_that_is_lost_in_the_answer(void **state)
{
    (void)state;
    check_fault("lost", launches_until_answer + 20, true, "the device was lost");
}

static void a_queue_that_stands_still_is_given_up_and_its_layer_named(void **state)
{
    (void)state;
    check_fault("stuck", 5, false, "in layer 3");
    check_fault("stuck", launches_until_answer + 3, true, "no progress for 3000 ms");
}

/* Slots are lent in the prompt, empty behind it, and the host has a part in every layer. */
static void faults_with_experts_outside_of_the_device_end_as_the_others_do(void **state)
{
    int all = launches_until_answer;
    expert_cache = "40%";
    count_launches();
    a_launch_that_is_refused_costs_the_session_what_it_held_and_nothing_else(state);
    check_fault("late", launches_until_answer / 2, false, "failed on the device: a fault was asked for");
    a_device_that_is_lost_in_the_answer(state);
    expert_cache = NULL;
    launches_until_answer = all;
}

static void a_slow_queue_only_takes_longer(void **state)
{
    (void)state;
    struct strata_engine *e;
    struct strata_session *s;
    open_on(PAIR, "3,2", "sim:gfx1100:8G,sim:gfx1201:8G:slow=300", "", &e, &s);
    assert_answers(s);
    close_on(e, s);
}

static void every_session_is_cold_after_a_device_was_lost_and_a_cancel_stays(void **state)
{
    (void)state;
    struct strata_engine *e;
    struct strata_session *s, *other;
    struct strata_error err;
    char faulty[160];
    faulty_pair(faulty, "late", launches_until_answer + 3);
    open_on(PAIR, "3,2", faulty, "", &e, &s);
    assert_ok(strata_session_create(e, &other, &err), &err);
    assert_ok(strata_session_eval(other, prompt, 3, false, NULL, &err), &err);
    assert_int_equal(strata_session_tokens(other, NULL), 3);
    assert_int_equal(ask(s).result, STRATA_E_DEVICE);
    assert_int_equal(strata_session_tokens(s, NULL), 0);
    assert_int_equal(strata_session_tokens(other, NULL), 0);
    assert_answers(other);
    assert_answers(s);
    strata_session_free(other);
    close_on(e, s);
}

static void a_device_that_cannot_be_opened_again_is_an_error_of_each_request_until_it_can(void **state)
{
    (void)state;
    struct strata_engine *e;
    struct strata_session *s;
    char faulty[160];
    faulty_pair(faulty, "lost", launches_until_answer - 1);
    open_on(PAIR, "3,2", faulty, NULL, &e, &s);
    assert_int_equal(ask(s).result, STRATA_E_DEVICE);
    for (int i = 0; i < 2; i++) {
        struct reply reply = ask(s);
        assert_int_equal(reply.result, STRATA_E_DEVICE);
        assert_says(reply.err.text, "could not be loaded again after sim:1 was lost");
        assert_says(reply.err.text, "the driver does not answer");
    }
    sim_openings[1] = "";
    assert_answers(s);
    close_on(e, s);
}

/* The user named nothing: a card that is lost is left out from then on, and in the end the CPU remains. */
static void an_automatic_choice_goes_on_with_what_is_left(void **state)
{
    (void)state;
    struct strata_engine *e;
    struct strata_session *s;
    struct strata_error err;
    make_runtimes();
    struct st_image_set images = images_for("sm_80,gfx1100");
    cuda_cards = "sm_80:8G:as=cuda:nograph:late=40";
    hip_cards = "gfx1100:8G:as=hip:nograph";
    opencl_cards = NULL;
    struct strata_engine_options o = options_for("auto", "1,4");
    assert_ok(st_engine_create(model, &o, runtimes, &images, &e, &err), &err);
    assert_ok(strata_session_create(e, &s, &err), &err);
    assert_says(strata_engine_placement(e), "cuda:0");
    assert_says(strata_engine_placement(e), "hip:0");
    struct reply reply = ask(s);
    assert_int_equal(reply.result, STRATA_E_DEVICE);
    assert_says(reply.err.text, "cuda:0");
    assert_answers(s);
    assert_says(strata_engine_placement(e),
                "cuda:0 is left out: it was lost and is not used again: cuda:0: kernel st_");
    for (int i = 0; i < e->n_stages; i++)
        assert_string_not_equal(e->stages[i]->name, "cuda:0");
    assert_answers(s);
    close_on(e, s);

    /* The only card: the CPU remains. */
    hip_cards = NULL;
    o = options_for("auto", "5");
    assert_ok(st_engine_create(model, &o, runtimes, &images, &e, &err), &err);
    assert_ok(strata_session_create(e, &s, &err), &err);
    assert_string_equal(e->stages[0]->name, "cuda:0");
    assert_int_equal(ask(s).result, STRATA_E_DEVICE);
    assert_answers(s);
    assert_int_equal(e->n_stages, 1);
    assert_string_equal(e->stages[0]->name, "cpu");
    close_on(e, s);
}

static void a_session_file_goes_on_in_the_stages_that_were_opened_again(void **state)
{
    (void)state;
    struct strata_engine *e;
    struct strata_session *s;
    struct strata_error err;
    enum { HELD = SMALL ? 8 : 20, MORE = SMALL ? 5 : 9 };
    char faulty[160], path[] = "/tmp/strata-fault-XXXXXX";
    close(mkstemp(path));
    float before[TINY_VOCABULARY], after[TINY_VOCABULARY];
    faulty_pair(faulty, "late", launches_until_answer * 3 / 2);
    open_on(PAIR, "3,2", faulty, "", &e, &s);
    assert_ok(strata_session_eval(s, prompt, HELD, false, NULL, &err), &err);
    assert_ok(strata_session_save(s, path, &err), &err);
    assert_ok(strata_session_eval(s, prompt + HELD, MORE, false, before, &err), &err);
    strata_session_reset(s);
    assert_int_equal(ask(s).result, STRATA_E_DEVICE);
    assert_ok(strata_session_restore(s, path, &err), &err);
    assert_int_equal(strata_session_tokens(s, NULL), HELD);
    assert_ok(strata_session_eval(s, prompt + HELD, MORE, false, after, &err), &err);
    assert_memory_equal(before, after, sizeof before);
    unlink(path);
    close_on(e, s);
}

/* ---- setup ---- */

static int setup(void **state)
{
    (void)state;
    struct strata_engine *e;
    struct strata_session *s;
    make_ids(prompt, PROMPT);
    if (open_tiny(&model))
        return -1;
    open_on("cpu", NULL, "", "", &e, &s);
    healthy = ask(s);
    close_on(e, s);
    count_launches();
    return healthy.result || launches_until_answer < 20;
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
        cmocka_unit_test(every_allocation_of_start_fails_once_and_the_message_names_the_device),
        cmocka_unit_test(a_launch_that_is_refused_costs_the_session_what_it_held_and_nothing_else),
        cmocka_unit_test(a_window_whose_capture_was_refused_is_captured_anew),
        cmocka_unit_test(a_launch_that_fails_late_in_the_prompt),
        cmocka_unit_test(a_launch_that_fails_late_in_the_answer),
        cmocka_unit_test(a_device_that_is_lost_in_the_prompt),
        cmocka_unit_test(a_device_that_is_lost_in_the_answer),
        cmocka_unit_test(faults_with_experts_outside_of_the_device_end_as_the_others_do),
        cmocka_unit_test(a_queue_that_stands_still_is_given_up_and_its_layer_named),
        cmocka_unit_test(a_slow_queue_only_takes_longer),
        cmocka_unit_test(every_session_is_cold_after_a_device_was_lost_and_a_cancel_stays),
        cmocka_unit_test(a_device_that_cannot_be_opened_again_is_an_error_of_each_request_until_it_can),
        cmocka_unit_test(an_automatic_choice_goes_on_with_what_is_left),
        cmocka_unit_test(a_session_file_goes_on_in_the_stages_that_were_opened_again),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
