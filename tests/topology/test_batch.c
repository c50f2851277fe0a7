/* Several conversations at once: each answer is the one that its conversation gives alone, whoever else is read and answered
 * beside it, on every kind of machine, with guesses and with experts outside of the device; and what goes wrong with one is
 * nothing to the others. The miniature model. */
#include "machine.h"

#include <math.h>

#include "engine/answer.h"
#include "runtime/sim.h"

enum { CONTEXT = 192, PREFILL = 80, TALKS = 10, GUESSES = 5 };

static struct strata_model *model;
static size_t answer_tokens; /* of every answer; 0: of each another number */

/* A conversation: what is asked, and what comes back. */
struct talk {
    struct strata_session *session;
    struct strata_request request;
    int32_t ids[CONTEXT];
    int32_t answer[CONTEXT], held[CONTEXT];
    size_t count, n_held;
    enum strata_end end;
    struct strata_stats stats;
    const struct talk *know; /* whose answer its drafter knows */
    size_t cancel_after;     /* tokens; 0: never */
    float *poison;           /* logits of a window: those of its second row become no numbers at the next token */
    int ended;               /* times */
    enum strata_result result;
    struct strata_error err;
};

static bool collect(void *user, const struct strata_event *e)
{
    struct talk *t = user;
    if (e->kind == STRATA_EVENT_TEXT && e->token >= 0)
        t->answer[t->count++] = e->token;
    if (e->kind == STRATA_EVENT_END)
        t->end = e->end;
    if (t->poison)
        t->poison[TINY_VOCABULARY] = NAN;
    t->poison = NULL;
    return !t->cancel_after || t->count < t->cancel_after;
}

static void done(void *user, enum strata_result result, const struct strata_error *err)
{
    struct talk *t = user;
    const int32_t *held;
    t->ended++;
    t->result = result;
    t->err = *err;
    t->n_held = strata_session_tokens(t->session, &held);
    memcpy(t->held, held, t->n_held * sizeof *held);
}

/* Prompts from a few tokens to several passes, greedy and sampled, of different lengths; one is cancelled, one fills the context. */
static void ask(struct talk *t, int i)
{
    static const size_t prompts[TALKS] = {3, 20, 30, 1, 100, 70, 8, 175, 20, 64};
    *t = (struct talk){.cancel_after = i == 4 ? 6 : 0};
    for (size_t k = 0; k < prompts[i]; k++)
        t->ids[k] = (int32_t)((k * 37 + (size_t)i * 101 + 11) % TINY_VOCABULARY);
    t->request = (struct strata_request){.ids = t->ids,
                                         .count = prompts[i],
                                         .max_tokens = answer_tokens ? answer_tokens : i == 7 ? 0 : 6 + (size_t)i,
                                         .ignore_eos = true,
                                         .event = collect,
                                         .user = t};
    strata_sampling_default(&t->request.sampling);
    if (i % 3) {
        t->request.sampling.temperature = 0.9f;
        t->request.sampling.seed = (uint64_t)i;
        t->request.sampling.top_k = i % 3 == 1 ? 0 : 50;
    }
    if (i % 2)
        t->request.sampling.repetition_penalty = 1.3f;
}

static struct strata_engine *open_engine(const char *devices, const char *cache, uint32_t sessions, uint32_t drafts)
{
    struct strata_error err;
    struct strata_engine *e;
    struct strata_engine_options o = {.devices = devices,
                                      .threads = 2,
                                      .context = CONTEXT,
                                      .prefill = PREFILL,
                                      .sessions = sessions,
                                      .expert_cache = cache,
                                      .drafts = drafts};
    assert_ok(st_engine_create(model, &o, NULL, NULL, &e, &err), &err);
    return e;
}

static struct strata_session *open_session(struct strata_engine *e)
{
    struct strata_error err;
    struct strata_session *s;
    assert_ok(strata_session_create(e, &s, &err), &err);
    return s;
}

static void alone(const char *devices, const char *cache, int talks, struct talk want[TALKS])
{
    struct strata_engine *e = open_engine(devices, cache, 1, 0);
    for (int i = 0; i < talks; i++) {
        struct talk *t = &want[i];
        ask(t, i);
        t->session = open_session(e);
        struct strata_error err = {0};
        enum strata_result r = strata_generate(t->session, &t->request, &t->stats, &err);
        done(t, r, &err);
        assert_ok(r, &err);
        strata_session_free(t->session);
    }
    strata_engine_free(e);
}

static void assert_same(const struct talk *got, const struct talk *want)
{
    assert_int_equal(got->ended, 1);
    assert_ok(got->result, &got->err);
    assert_int_equal(got->count, want->count);
    assert_memory_equal(got->answer, want->answer, want->count * sizeof *want->answer);
    assert_int_equal(got->end, want->end);
    assert_int_equal(got->n_held, want->n_held);
    assert_memory_equal(got->held, want->held, want->n_held * sizeof *want->held);
    assert_int_equal(got->stats.read_tokens, want->stats.read_tokens);
}

/* Two right guesses, then wrong ones. */
static size_t draft(void *user, const struct strata_session *s, int32_t next, size_t most, int32_t *out)
{
    const struct talk *t = user, *know = t->know;
    size_t behind = s->count + 1 - t->request.count, n = most < GUESSES ? most : GUESSES;
    assert_int_equal(next, know->answer[behind - 1]);
    for (size_t i = 0; i < n; i++) {
        int32_t id = behind + i < know->count ? know->answer[behind + i] : 0;
        out[i] = i < 2 ? id : (id + 1) % TINY_VOCABULARY;
    }
    return n;
}

static struct strata_batch *open_batch(struct strata_engine *e)
{
    struct strata_error err;
    struct strata_batch *b;
    assert_ok(strata_batch_create(e, &b, &err), &err);
    return b;
}

static void add(struct strata_batch *b, struct talk *t)
{
    struct strata_error err;
    assert_ok(strata_batch_add(b, t->session, &t->request, &t->stats, done, t, &err), &err);
}

/* All of them, begun a few steps apart. know: NULL, or answers that drafters know. */
static void side_by_side(const char *devices, const char *cache, uint32_t drafts, int talks, const struct talk *know,
                         struct talk got[TALKS])
{
    struct strata_engine *e = open_engine(devices, cache, (uint32_t)talks, drafts);
    struct strata_batch *b = open_batch(e);
    for (int i = 0; i < talks; i++) {
        ask(&got[i], i);
        got[i].session = open_session(e);
        got[i].know = &know[i];
        if (know)
            st_spec_use(got[i].session->spec, draft, &got[i]);
        add(b, &got[i]);
        for (int k = 0; k < i % 3 * 2; k++)
            strata_batch_step(b);
    }
    while (strata_batch_step(b))
        ;
    strata_batch_free(b);
    for (int i = 0; i < talks; i++)
        strata_session_free(got[i].session);
    strata_engine_free(e);
}

/* The first so many of them. */
static void assert_all_same(const char *devices, const char *cache, int talks)
{
    static struct talk want[TALKS], got[TALKS];
    size_t accepted = 0, drafted = 0;
    alone(devices, cache, talks, want);
    side_by_side(devices, cache, 0, talks, NULL, got);
    for (int i = 0; i < talks; i++)
        assert_same(&got[i], &want[i]);
    side_by_side(devices, cache, 7, talks, want, got);
    for (int i = 0; i < talks; i++) {
        assert_same(&got[i], &want[i]);
        accepted += got[i].stats.accepted_tokens;
        drafted += got[i].stats.drafted_tokens;
    }
    assert_true(accepted && accepted < drafted);
}

static void answers_side_by_side_are_those_of_conversations_alone(void **state)
{
    (void)state;
    assert_all_same("cpu", NULL, TALKS);
}

static void and_on_devices_in_stages_and_with_experts_outside(void **state)
{
    (void)state;
    assert_all_same("sim:gfx1100:8G", NULL, 3);
    assert_all_same("sim:sm_89:8G,cpu", NULL, 2);
    assert_all_same("sim:gfx1100:8G", "40%", 2);
}

/* Sizes of pieces, and whether a piece is broken off. */
static void pieces_of_a_prompt_give_the_bits_of_the_whole(void **state)
{
    (void)state;
    static const size_t sizes[][4] = {{0, 0, 0, 0}, {1, 1, 1, 1}, {64, 0, 64, 0}, {0, 64, 0, 0}, {SIZE_MAX, SIZE_MAX, 64, SIZE_MAX}};
    static float want[TINY_VOCABULARY];
    struct strata_engine *e = open_engine("cpu", NULL, 1, 0);
    struct strata_session *s = open_session(e);
    for (size_t length = CONTEXT - 1; length > 60; length -= 13)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            struct strata_error err;
            struct talk t;
            struct st_answer a;
            _Atomic bool interrupt = i % 2;
            size_t read = 0;
            ask(&t, 7);
            t.request.count = length;
            for (size_t k = 0; k < length; k++)
                t.ids[k] = (int32_t)((k * 53 + length) % TINY_VOCABULARY);
            strata_session_reset(s);
            assert_ok(st_answer_open(&a, s, &t.request, &t.stats, &err), &err);
            for (int k = 0; a.reads; k++) {
                size_t rows;
                assert_ok(st_answer_read(&a, sizes[i][k % 4], &interrupt, &rows, &err), &err);
                read += rows;
            }
            assert_int_equal(read, length);
            if (i == 0)
                memcpy(want, e->logits, sizeof want);
            assert_memory_equal(e->logits, want, sizeof want);
            st_answer_release(&a);
        }
    strata_session_free(s);
    strata_engine_free(e);
}

/* A short answer that begins behind a long prompt ends before that is read, and the long one gets on too. */
static void a_long_prompt_does_not_hold_up_the_others(void **state)
{
    (void)state;
    struct strata_engine *e = open_engine("cpu", NULL, 3, 0);
    struct strata_batch *b = open_batch(e);
    static struct talk t[3];
    for (int i = 0; i < 3; i++) {
        ask(&t[i], i == 1 ? 4 : i);
        t[i].session = open_session(e);
    }
    t[0].request.max_tokens = 4;
    add(b, &t[0]);
    while (t[0].count < 2)
        assert_true(strata_batch_step(b));
    add(b, &t[1]); /* two passes of a prompt */
    assert_true(strata_batch_step(b));
    assert_int_equal(t[0].ended, 0);
    size_t read = t[1].session->count;
    assert_true(read > 0 && read < t[1].request.count);
    for (int i = 0; i < 4 && !t[0].ended; i++)
        assert_true(strata_batch_step(b));
    assert_int_equal(t[0].ended, 1);
    while (strata_batch_step(b))
        ;
    assert_int_equal(t[1].ended, 1);
    strata_batch_free(b);
    for (int i = 0; i < 3; i++)
        strata_session_free(t[i].session);
    strata_engine_free(e);
}

/* Three answers that all generate; the rows of a window are theirs in this order. */
static struct strata_batch *three(struct strata_engine *e, struct talk t[3])
{
    static const int which[] = {0, 1, 3};
    struct strata_batch *b = open_batch(e);
    for (int i = 0; i < 3; i++) {
        ask(&t[i], which[i]);
        t[i].session = open_session(e);
        add(b, &t[i]);
        assert_true(strata_batch_step(b)); /* reads, as soon as somebody waits for it */
        assert_int_equal(t[i].count, 1);
        assert_true(strata_batch_step(b)); /* nobody reads: a window of all */
        assert_int_equal(t[i].count, 2);
    }
    return b;
}

static void close_three(struct strata_engine *e, struct strata_batch *b, struct talk t[3])
{
    strata_batch_free(b);
    for (int i = 0; i < 3; i++)
        strata_session_free(t[i].session);
    strata_engine_free(e);
}

static void an_answer_with_bad_logits_or_a_cancel_ends_alone(void **state)
{
    (void)state;
    answer_tokens = 24;
    static struct talk want[TALKS], t[3];
    alone("cpu", NULL, 4, want);
    for (int cancel = 0; cancel < 2; cancel++) {
        struct strata_engine *e = open_engine("cpu", NULL, 3, 0);
        struct strata_batch *b = three(e, t);
        if (cancel)
            strata_session_cancel(t[1].session);
        else
            t[0].poison = (float *)(uintptr_t)e->logits; /* by then its own are read */
        while (strata_batch_step(b))
            ;
        assert_int_equal(t[1].ended, 1);
        if (cancel)
            assert_int_equal(t[1].end, STRATA_END_CANCELLED);
        else
            assert_int_equal(t[1].result, STRATA_E_MODEL);
        assert_memory_equal(t[1].answer, want[1].answer, t[1].count * sizeof *t[1].answer);
        assert_same(&t[0], &want[0]);
        assert_same(&t[2], &want[3]);
        close_three(e, b, t);
    }
}

static void a_request_that_is_refused_changes_nothing(void **state)
{
    (void)state;
    answer_tokens = 24;
    struct strata_error err;
    static struct talk t[3], wrong;
    struct strata_engine *e = open_engine("cpu", NULL, 4, 0), *other = open_engine("cpu", NULL, 1, 0);
    struct strata_batch *b = three(e, t);
    ask(&wrong, 0);
    assert_int_equal(strata_batch_add(b, t[0].session, &wrong.request, NULL, done, &wrong, &err), STRATA_E_ARGUMENT);
    wrong.session = open_session(other);
    assert_int_equal(strata_batch_add(b, wrong.session, &wrong.request, NULL, done, &wrong, &err), STRATA_E_ARGUMENT);
    strata_session_free(wrong.session);
    strata_engine_free(other);
    wrong.session = open_session(e);
    wrong.ids[1] = TINY_VOCABULARY;
    assert_int_equal(strata_batch_add(b, wrong.session, &wrong.request, NULL, done, &wrong, &err), STRATA_E_ARGUMENT);
    wrong.ids[1] = 1;
    wrong.request.count = CONTEXT + 1;
    assert_int_equal(strata_batch_add(b, wrong.session, &wrong.request, NULL, done, &wrong, &err), STRATA_E_LIMIT);
    while (strata_batch_step(b))
        ;
    assert_false(strata_batch_step(b));
    assert_int_equal(wrong.ended, 0);
    for (int i = 0; i < 3; i++)
        assert_ok(t[i].result, &t[i].err);
    strata_session_free(wrong.session);
    close_three(e, b, t);
}

static struct strata_engine *open_on_sim(const char *first)
{
    struct strata_error err;
    struct strata_engine *e;
    struct strata_engine_options o = {
        .devices = "sim:gfx1100:8G", .threads = 2, .context = CONTEXT, .prefill = PREFILL, .sessions = 3};
    assert_ok(st_engine_create(model, &o, changing_sim(first, ""), NULL, &e, &err), &err);
    return e;
}

static void a_lost_device_ends_all_answers_and_the_next_ones_are_whole(void **state)
{
    (void)state;
    answer_tokens = 24;
    static struct talk want[TALKS], t[3];
    alone("sim:gfx1100:8G", NULL, 4, want);
    struct strata_engine *e = open_on_sim("sim:gfx1100:8G:nograph");
    struct strata_batch *b = three(e, t);
    struct st_rt_device *dev = e->opened[0]->rt;
    pthread_mutex_lock(&dev->rt->lock);
    dev->rt->spec[0].lost = dev->launches + 3;
    pthread_mutex_unlock(&dev->rt->lock);
    while (strata_batch_step(b))
        ;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(t[i].ended, 1);
        assert_int_equal(t[i].result, STRATA_E_DEVICE);
        assert_says(t[i].err.text, "the device was lost");
        assert_int_equal(t[i].n_held, 0);
        strata_session_free(t[i].session);
    }
    strata_batch_free(b);
    b = three(e, t);
    while (strata_batch_step(b))
        ;
    assert_same(&t[0], &want[0]);
    assert_same(&t[1], &want[1]);
    assert_same(&t[2], &want[3]);
    close_three(e, b, t);
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
        cmocka_unit_test(pieces_of_a_prompt_give_the_bits_of_the_whole),
        cmocka_unit_test(answers_side_by_side_are_those_of_conversations_alone),
        cmocka_unit_test(and_on_devices_in_stages_and_with_experts_outside),
        cmocka_unit_test(a_long_prompt_does_not_hold_up_the_others),
        cmocka_unit_test(an_answer_with_bad_logits_or_a_cancel_ends_alone),
        cmocka_unit_test(a_request_that_is_refused_changes_nothing),
        cmocka_unit_test(a_lost_device_ends_all_answers_and_the_next_ones_are_whole),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
