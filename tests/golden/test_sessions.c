/* Sessions that go back, are saved and come back: after any order of such steps a session gives the bits of one that read the
 * same tokens in the same chunks, and nearly those of one that read them in other chunks. */
#include "test.h"

#include <math.h>

#include "engine/checkpoint.h"
#include "engine/state.h"
#include "fixture.h"
#include "model/convert.h"

enum { CONTEXT = 256, VOCABULARY = 600, STEPS = 60 };

static const float tolerance = 2e-4f;
static struct strata_model *model;
static char *draft;

static struct strata_engine *engine(uint64_t session_ram, bool with_draft)
{
    struct strata_error err;
    struct strata_engine *e;
    struct strata_engine_options o = {.threads = 2,
                                      .context = CONTEXT,
                                      .prefill = 16,
                                      .sessions = 2,
                                      .session_ram = session_ram,
                                      .kv = STRATA_KV_F32,
                                      .fp32 = true,
                                      .mtp_path = with_draft ? draft : NULL};
    assert_ok(strata_engine_create(model, &o, &e, &err), &err);
    assert_int_equal(e->dims.vocabulary, VOCABULARY);
    return e;
}

static struct strata_session *session(struct strata_engine *e)
{
    struct strata_error err;
    struct strata_session *s;
    assert_ok(strata_session_create(e, &s, &err), &err);
    return s;
}

static uint32_t draw(uint64_t *seed, uint32_t n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33) % n;
}

/* What a session should hold, and in which chunks it was read. */
struct story {
    int32_t ids[CONTEXT];
    uint32_t count, chunk[CONTEXT], chunks;
};

static void story_back(struct story *t, uint32_t tokens)
{
    t->count = 0;
    uint32_t i = 0;
    while (i < t->chunks && t->count + t->chunk[i] <= tokens)
        t->count += t->chunk[i++];
    t->chunks = i;
    assert_int_equal(t->count, tokens); /* sessions go back to ends of chunks only */
}

static void append(struct strata_session *s, struct story *t, uint64_t *seed, uint32_t n)
{
    struct strata_error err;
    for (uint32_t i = 0; i < n; i++)
        t->ids[t->count + i] = (int32_t)draw(seed, VOCABULARY);
    assert_ok(strata_session_eval(s, t->ids + t->count, n, false, NULL, &err), &err);
    t->count += n;
    t->chunk[t->chunks++] = n;
}

/* The next token's logits of s are those of a session that reads the story now: in the same chunks bit for bit, in chunks of
 * 16 within the tolerance. s goes one token on. */
static void check(struct strata_session *s, struct strata_session *other, struct story *t, uint64_t *seed)
{
    static float got[VOCABULARY], same[VOCABULARY], cold[VOCABULARY];
    struct strata_error err;
    const int32_t *held;
    assert_int_equal(strata_session_tokens(s, &held), t->count);
    assert_memory_equal(held, t->ids, t->count * sizeof *held);
    strata_session_reset(other);
    for (uint32_t i = 0, at = 0; i < t->chunks; at += t->chunk[i++])
        assert_ok(strata_session_eval(other, t->ids + at, t->chunk[i], false, NULL, &err), &err);
    int32_t next = (int32_t)draw(seed, VOCABULARY);
    assert_ok(strata_session_eval(s, &next, 1, false, got, &err), &err);
    assert_ok(strata_session_eval(other, &next, 1, false, same, &err), &err);
    assert_memory_equal(got, same, sizeof got);
    t->ids[t->count++] = next;
    t->chunk[t->chunks++] = 1;
    strata_session_reset(other);
    assert_ok(strata_session_eval(other, t->ids, t->count, false, cold, &err), &err);
    for (int i = 0; i < VOCABULARY; i++)
        if (!(fabsf(got[i] - cold[i]) <= tolerance))
            fail_msg("logit %d differs by %g from a cold read", i, (double)fabsf(got[i] - cold[i]));
}

static void any_order_of_steps_gives_the_bits_of_the_same_chunks(void **state)
{
    (void)state;
    struct strata_error err;
    const char *path = work_path("any.session");
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct strata_engine *e = engine(0, seed % 2);
        struct strata_session *s = session(e), *other = session(e);
        struct story t = {.count = 0}, saved = {.count = 0};
        uint64_t random = seed * 977;
        bool on_disk = false;
        for (int step = 0; step < STEPS; step++) {
            uint32_t n = 1 + draw(&random, 16), back = t.count ? draw(&random, t.count + 1) : 0;
            switch (draw(&random, 8)) {
            case 0: assert_ok(st_checkpoint_take(s, &err), &err); break;
            case 1:
                back = st_session_reach(s, back);
                assert_ok(st_session_rewind(s, back, &err), &err);
                story_back(&t, back);
                break;
            case 2:
                assert_ok(strata_session_save(s, path, &err), &err);
                saved = t;
                on_disk = true;
                break;
            case 3:
                if (on_disk) {
                    assert_ok(strata_session_restore(s, path, &err), &err);
                    t = saved;
                }
                break;
            case 4: check(s, other, &t, &random); break;
            default:
                if (t.count + n + STEPS < CONTEXT)
                    append(s, &t, &random, n);
            }
        }
        check(s, other, &t, &random);
        strata_session_free(s);
        strata_session_free(other);
        assert_int_equal(e->keep.used, 0);
        strata_engine_free(e);
    }
}

static void a_session_goes_back_to_the_nearest_checkpoint(void **state)
{
    (void)state;
    struct strata_error err;
    struct strata_engine *e = engine(0, false);
    struct strata_session *s = session(e), *other = session(e);
    struct story t = {.count = 0};
    uint64_t random = 5;
    for (int i = 0; i < 4; i++) {
        append(s, &t, &random, 10);
        assert_ok(st_checkpoint_take(s, &err), &err);
    }
    append(s, &t, &random, 7);
    assert_int_equal(st_session_reach(s, 47), 47);
    assert_int_equal(st_session_reach(s, 46), 40);
    assert_int_equal(st_session_reach(s, 39), 30);
    assert_int_equal(st_session_reach(s, 9), 0);
    assert_ok(st_session_rewind(s, 39, &err), &err);
    story_back(&t, 30);
    assert_int_equal(s->points, 3);
    check(s, other, &t, &random);
    assert_ok(st_session_rewind(s, 9, &err), &err);
    assert_int_equal(s->count, 0);
    assert_int_equal(s->points, 0);
    strata_session_free(s);
    strata_session_free(other);
    strata_engine_free(e);
}

static void checkpoints_stay_within_their_memory_and_spread(void **state)
{
    (void)state;
    struct strata_error err;
    struct strata_engine *probe = engine(0, false);
    uint64_t one = st_checkpoint_bytes(probe);
    assert_true(one > sizeof(struct st_checkpoint));
    assert_true(probe->plan.host.kept >= 2 * ST_CHECKPOINTS_KEPT * one); /* two sessions */
    strata_engine_free(probe);
    struct strata_engine *e = engine(8 * one + one / 2, false);
    struct strata_session *s = session(e);
    struct story t = {.count = 0};
    uint64_t random = 6;
    for (int i = 0; i < 20; i++) {
        append(s, &t, &random, 10);
        assert_ok(st_checkpoint_take(s, &err), &err);
        assert_true(e->keep.used <= e->keep.limit);
    }
    assert_int_equal(s->points, 8);
    assert_int_equal(s->point[0]->tokens, 10);
    assert_int_equal(s->point[6]->tokens, 190);
    assert_int_equal(s->point[7]->tokens, 200);
    for (int i = 1; i < 8; i++) /* closer towards the end */
        assert_true(s->point[i]->tokens - s->point[i - 1]->tokens <= 80);
    strata_session_free(s);
    strata_engine_free(e);
    e = engine(1, false); /* no room for any: nothing is kept, everything works */
    s = session(e);
    t.count = t.chunks = 0;
    append(s, &t, &random, 10);
    assert_ok(st_checkpoint_take(s, &err), &err);
    assert_int_equal(s->points, 0);
    assert_int_equal(st_session_reach(s, 9), 0);
    strata_session_free(s);
    strata_engine_free(e);
}

static int setup(void **state)
{
    struct strata_error err = {0};
    struct st_convert_report report;
    char source[PATH_SIZE];
    if (make_work(state))
        return -1;
    draft = strdup(work_path("tiny-mtp.gguf"));
    struct st_convert_options c = {.dir = unpacked(source, "tiny-model", ""),
                                   .out = work_path("tiny.gguf"),
                                   .mtp_out = draft,
                                   .type = ST_CONVERT_F32};
    enum strata_result r = st_convert(&c, &report, &err);
    if (!r)
        r = strata_model_open(c.out, &model, &err);
    if (r)
        fprintf(stderr, "%s\n", err.text);
    return r ? -1 : 0;
}

static int teardown(void **state)
{
    strata_model_free(model);
    free(draft);
    return remove_work(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_order_of_steps_gives_the_bits_of_the_same_chunks),
        cmocka_unit_test(a_session_goes_back_to_the_nearest_checkpoint),
        cmocka_unit_test(checkpoints_stay_within_their_memory_and_spread),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
