/* Checkpoints, parked conversations and session files where the state lies on devices: the same bits as a session that
 * read the same chunks there, and a file from one machine goes on on any other, its checkpoints too. */
#include "machine.h"

#include <math.h>
#include <unistd.h>

#include "engine/park.h"

static struct strata_model *model;

/* The first one has but some of the experts in its devices' memory. */
static const struct {
    const char *devices, *split, *cache;
} machines[] = {{"sim:gfx1100:8G,sim:gfx1201:8G", "3,2", "40%"},
                {"sim:sm_89:8G,cpu,sim:gfx90a:8G", "1,2,2", NULL},
                {"cpu", NULL, NULL}};

enum { MACHINES = sizeof machines / sizeof *machines };

static struct strata_engine *open_on(int machine)
{
    struct strata_error err;
    struct strata_engine *e;
    struct strata_engine_options o = {.devices = machines[machine].devices,
                                      .layer_split = machines[machine].split,
                                      .expert_cache = machines[machine].cache,
                                      .threads = 1,
                                      .context = 64,
                                      .prefill = 16,
                                      .sessions = 2,
                                      .session_ram = 64 << 20,
                                      .kv = STRATA_KV_F32,
                                      .fp32 = true};
    assert_ok(st_engine_create(model, &o, NULL, NULL, &e, &err), &err);
    return e;
}

static struct strata_session *session(struct strata_engine *e)
{
    struct strata_error err;
    struct strata_session *s;
    assert_ok(strata_session_create(e, &s, &err), &err);
    return s;
}

static void read_chunk(struct strata_session *s, const int32_t *ids, size_t count, float *logits)
{
    struct strata_error err;
    assert_ok(strata_session_eval(s, ids, count, false, logits, &err), &err);
}

static void a_session_on_devices_goes_back_and_comes_back_with_the_same_bits(void **state)
{
    (void)state;
    struct strata_error err;
    int32_t ids[64], edited[64];
    make_ids(ids, 64);
    memcpy(edited, ids, sizeof ids);
    edited[18] = 5;
    for (int m = 0; m < MACHINES; m++) {
        static float got[2][TINY_VOCABULARY], want[2][TINY_VOCABULARY];
        struct strata_engine *e = open_on(m);
        struct strata_session *s = session(e), *other = session(e);
        read_chunk(other, ids, 9, NULL);
        read_chunk(other, ids + 9, 7, NULL);
        read_chunk(other, ids + 16, 13, want[0]);
        read_chunk(other, ids + 29, 10, want[1]);
        strata_session_reset(other);

        /* Read, another conversation of which the beginning is the same, and back. */
        read_chunk(s, ids, 9, NULL);
        assert_ok(st_checkpoint_take(s, &err), &err);
        read_chunk(s, ids + 9, 7, NULL);
        assert_ok(st_checkpoint_take(s, &err), &err);
        read_chunk(s, ids + 16, 13, got[0]);
        assert_memory_equal(got[0], want[0], sizeof got[0]);
        assert_ok(st_park_choose(s, edited, 40, &err), &err);
        assert_int_equal(s->count, 16); /* little is lost: nothing is parked */
        read_chunk(s, edited + 16, 24, NULL);
        edited[0] = 6;
        assert_ok(st_park_choose(s, edited, 40, &err), &err);
        assert_int_equal(s->count, 0);
        read_chunk(s, edited, 11, NULL);
        edited[0] = ids[0];
        assert_ok(st_park_choose(s, edited, 41, &err), &err);
        assert_int_equal(s->count, 40);
        assert_ok(st_session_rewind(s, 39, &err), &err);
        assert_int_equal(s->count, 16);
        read_chunk(s, ids + 16, 13, got[0]);
        read_chunk(s, ids + 29, 10, got[1]);
        assert_memory_equal(got, want, sizeof got);
        strata_session_free(s);
        strata_session_free(other);
        strata_engine_free(e);
    }
}

static void a_session_takes_over_what_another_one_has_while_that_goes_on(void **state)
{
    (void)state;
    struct strata_error err;
    int32_t ids[64];
    make_ids(ids, 64);
    for (int m = 0; m < MACHINES; m++) {
        static float got[TINY_VOCABULARY], want[2][TINY_VOCABULARY], again[TINY_VOCABULARY];
        struct strata_engine *e = open_on(m);
        struct strata_session *s = session(e), *other = session(e);
        read_chunk(other, ids, 40, NULL);
        assert_ok(st_checkpoint_take(other, &err), &err);
        read_chunk(other, ids + 40, 9, want[0]);
        read_chunk(s, ids + 5, 11, NULL); /* what it holds goes */
        assert_int_equal(st_session_lends(other, 39), 0);
        assert_int_equal(st_session_lends(other, 48), 40);
        assert_ok(st_park_choose(s, ids, 49, &err), &err);
        assert_int_equal(s->count, 40);
        read_chunk(s, ids + 40, 9, got);
        assert_memory_equal(got, want[0], sizeof got);
        read_chunk(other, ids + 49, 8, want[1]);
        read_chunk(s, ids + 49, 8, again);
        assert_memory_equal(again, want[1], sizeof again);
        assert_ok(st_session_rewind(s, 48, &err), &err); /* it has the checkpoint, too */
        assert_int_equal(s->count, 40);
        strata_session_free(other);
        read_chunk(s, ids + 40, 9, got);
        assert_memory_equal(got, want[0], sizeof got);
        strata_session_free(s);
        strata_engine_free(e);
    }
}

static void a_file_goes_on_on_every_machine_from_its_end_and_from_its_checkpoints(void **state)
{
    (void)state;
    struct strata_error err;
    int32_t ids[64];
    char path[] = "/tmp/strata-sessions-XXXXXX";
    close(mkstemp(path));
    make_ids(ids, 64);
    for (int from = 0; from < MACHINES; from++) {
        struct strata_engine *e = open_on(from);
        struct strata_session *s = session(e);
        read_chunk(s, ids, 9, NULL);
        assert_ok(st_checkpoint_take(s, &err), &err);
        read_chunk(s, ids + 9, 16, NULL);
        assert_ok(strata_session_save(s, path, &err), &err);
        strata_session_free(s);
        strata_engine_free(e);
        for (int to = 0; to < MACHINES; to++) {
            float got[2][TINY_VOCABULARY], want[TINY_VOCABULARY];
            e = open_on(to);
            s = session(e);
            read_chunk(s, ids, 30, want);
            assert_ok(strata_session_restore(s, path, &err), &err);
            assert_int_equal(s->count, 25);
            read_chunk(s, ids + 25, 5, got[0]);
            assert_ok(st_session_rewind(s, 24, &err), &err);
            assert_int_equal(s->count, 9);
            read_chunk(s, ids + 9, 21, got[1]);
            for (int i = 0; i < TINY_VOCABULARY; i++)
                assert_true(fabsf(got[0][i] - want[i]) <= 2e-4f && fabsf(got[1][i] - want[i]) <= 2e-4f);
            strata_session_free(s);
            strata_engine_free(e);
        }
    }
    unlink(path);
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
        cmocka_unit_test(a_session_on_devices_goes_back_and_comes_back_with_the_same_bits),
        cmocka_unit_test(a_session_takes_over_what_another_one_has_while_that_goes_on),
        cmocka_unit_test(a_file_goes_on_on_every_machine_from_its_end_and_from_its_checkpoints),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
