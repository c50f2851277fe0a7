/* src/base: results, printable names, teams, checked arithmetic, outputs. */
#include "test.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/file.h"
#include "base/team.h"

static void printable_text_shows_control_bytes(void **state)
{
    (void)state;
    char out[64];
    assert_string_equal(st_printable(out, sizeof out, "a\x1b[31m\xc3\xa9\xff\xc2\x9b", 11), "a\\x1b[31m\xc3\xa9\\xff\\xc2\\x9b");
    assert_string_equal(st_printable(out, 4, "abcdef", 6), "abc");
    assert_string_equal(st_printable(out, 4, "ab\xc3\xa9", 4), "ab");
}

static void nested_messages_keep_code_and_both_texts(void **state)
{
    (void)state;
    struct strata_error err;
    assert_int_equal(st_fail(&err, STRATA_E_IO, "inner %d", 1), STRATA_E_IO);
    assert_int_equal(st_fail_in(&err, STRATA_E_IO, "outer"), STRATA_E_IO);
    assert_string_equal(err.text, "outer: inner 1");
    assert_int_equal(st_fail(NULL, STRATA_E_IO, "x"), STRATA_E_IO);
}

static void checked_arithmetic_refuses_overflow(void **state)
{
    (void)state;
    uint64_t v = 7;
    assert_false(st_add_u64(UINT64_MAX, 1, &v));
    assert_false(st_mul_u64(UINT64_MAX / 2, 3, &v));
    assert_false(st_align_u64(UINT64_MAX - 3, 32, &v));
    assert_int_equal(v, 7);
    assert_true(st_align_u64(33, 32, &v));
    assert_int_equal(v, 64);
}

struct ring {
    _Atomic int sum[64];
    int count;
    _Atomic int wrong;
};

static void add_and_check(void *arg, struct st_worker *w)
{
    struct ring *r = arg;
    for (int i = 0; i < 64; i++) {
        atomic_fetch_add(&r->sum[i], 1);
        st_barrier(w);
        if (atomic_load(&r->sum[i]) != r->count)
            atomic_store(&r->wrong, 1);
    }
}

static void team_barriers_separate_phases(void **state)
{
    (void)state;
    struct strata_error err;
    for (int n = 1; n <= 4; n++) {
        struct st_team *t;
        assert_ok(st_team_create(n, 100, &t, &err), &err);
        for (int run = 0; run < 50; run++) {
            struct ring r = {.count = n};
            st_team_run(t, add_and_check, &r);
            assert_int_equal(r.wrong, 0);
        }
        st_team_free(t);
    }
    struct st_team *none;
    assert_int_equal(st_team_create(0, 0, &none, &err), STRATA_E_ARGUMENT);
}

static void a_run_on_some_workers_leaves_the_others_out(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_team *t;
    assert_ok(st_team_create(4, 0, &t, &err), &err);
    for (int run = 0; run < 400; run++) {
        struct ring r = {.count = 1 + run % 4};
        st_team_run_on(t, r.count, add_and_check, &r);
        assert_int_equal(r.wrong, 0);
        assert_int_equal(r.sum[0], r.count);
    }
    st_team_free(t);
}

static void team_survives_long_pauses_between_runs(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_team *t;
    assert_ok(st_team_create(3, 0, &t, &err), &err);
    for (int run = 0; run < 5; run++) {
        usleep(20000);
        struct ring r = {.count = 3};
        st_team_run(t, add_and_check, &r);
        assert_int_equal(r.wrong, 0);
    }
    st_team_free(t);
}

struct pile {
    _Atomic int left, taken[4];
    _Atomic uint32_t first_is_done;
};

/* Whoever takes the first piece lets the others wait for it. */
static void take_pieces(void *arg, struct st_worker *w)
{
    struct pile *p = arg;
    for (int i; (i = atomic_fetch_sub(&p->left, 1)) > 0;) {
        atomic_fetch_add(&p->taken[w->index], 1);
        if (i == 100)
            atomic_store(&p->first_is_done, 1);
        st_await(&p->first_is_done);
    }
}

static void others_work_before_the_caller_comes_to_its_part(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_team *t;
    assert_ok(st_team_create(4, 0, &t, &err), &err);
    for (int run = 0; run < 100; run++) {
        st_team_linger(t, run % 2 ? 1000 : 0);
        struct pile p = {.left = 100};
        st_team_begin(t, 2 + run % 3, take_pieces, &p);
        while (atomic_load(&p.left) > 0) /* nobody but the others does it */
            usleep(10);
        assert_int_equal(p.taken[0], 0);
        st_team_end(t);
        assert_int_equal(p.taken[0] + p.taken[1] + p.taken[2] + p.taken[3], 100);
    }
    struct pile p = {.left = 100};
    st_team_begin(t, 1, take_pieces, &p); /* alone there is no other */
    assert_int_equal(p.left, 100);
    st_team_end(t);
    assert_int_equal(p.taken[0], 100);
    st_team_free(t);
}

static void shares_cover_everything_once(void **state)
{
    (void)state;
    for (size_t n = 0; n < 70; n++)
        for (int count = 1; count < 6; count++) {
            size_t next = 0;
            for (int i = 0; i < count; i++) {
                struct st_worker w = {.index = i, .count = count};
                size_t a, b;
                st_share(&w, n, 8, &a, &b);
                assert_int_equal(a, next);
                assert_true(b >= a && (b == n || b % 8 == 0));
                next = b;
            }
            assert_int_equal(next, n);
        }
}

static void output_appears_only_on_commit(void **state)
{
    (void)state;
    struct strata_error err;
    char path[] = "/tmp/strata-test-XXXXXX";
    int fd = mkstemp(path);
    close(fd);
    unlink(path);
    struct st_out out;
    assert_ok(st_out_open(path, &out, &err), &err);
    assert_ok(st_out_write(&out, "abc", 3, &err), &err);
    assert_ok(st_out_skip(&out, 5, &err), &err);
    assert_ok(st_out_write(&out, "z", 1, &err), &err);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_ok(st_out_commit(&out, &err), &err);
    st_out_abort(&out);
    struct st_map map;
    assert_ok(st_map_open(path, &map, &err), &err);
    assert_int_equal(map.size, 9);
    assert_memory_equal(map.data, "abc\0\0\0\0\0z", 9);
    st_map_close(&map);
    assert_ok(st_out_open(path, &out, &err), &err);
    assert_ok(st_out_write(&out, "other", 5, &err), &err);
    st_out_abort(&out);
    char *text;
    size_t size;
    assert_ok(st_read_file(path, 100, &text, &size, &err), &err);
    assert_int_equal(size, 9);
    free(text);
    assert_int_equal(st_read_file(path, 8, &text, &size, &err), STRATA_E_LIMIT);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(printable_text_shows_control_bytes),
        cmocka_unit_test(nested_messages_keep_code_and_both_texts),
        cmocka_unit_test(checked_arithmetic_refuses_overflow),
        cmocka_unit_test(team_barriers_separate_phases),
        cmocka_unit_test(a_run_on_some_workers_leaves_the_others_out),
        cmocka_unit_test(team_survives_long_pauses_between_runs),
        cmocka_unit_test(others_work_before_the_caller_comes_to_its_part),
        cmocka_unit_test(shares_cover_everything_once),
        cmocka_unit_test(output_appears_only_on_commit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
