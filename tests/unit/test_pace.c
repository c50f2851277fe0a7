/* The number of workers of a pass: all of them on a quiet machine, the fastest number on a busy one, and back. */
#include "test.h"

#include "engine/pace.h"

/* Runs passes whose cost depends on the number of workers; returns the time they took. */
static double run(struct st_pace *p, const double *cost_of, bool sleeps, int passes)
{
    double sum = 0;
    for (int i = 0; i < passes; i++) {
        double cost = cost_of[st_pace_workers(p)];
        st_pace_report(p, cost, sleeps);
        sum += cost;
    }
    return sum;
}

static const double quiet[] = {[1] = 8, [2] = 4.1, [4] = 2.2, [8] = 1.2},
                    busy[] = {[1] = 10, [2] = 200, [4] = 900, [8] = 2000};

static void on_a_quiet_machine_every_pass_has_all_workers(void **state)
{
    (void)state;
    struct st_pace p = st_pace(8);
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(st_pace_workers(&p), 8);
        st_pace_report(&p, quiet[8], 0);
    }
}

static void a_busy_machine_is_served_by_the_number_that_is_fastest(void **state)
{
    (void)state;
    struct st_pace p = st_pace(8);
    run(&p, busy, true, 40);
    double spent = run(&p, busy, true, 1000);
    assert_true(spent < 1000 * busy[1] * 1.2); /* tries with two workers included */
}

static void a_machine_that_becomes_quiet_gets_all_workers_again(void **state)
{
    (void)state;
    struct st_pace p = st_pace(8);
    run(&p, busy, true, 300);
    run(&p, quiet, false, 300);
    double spent = run(&p, quiet, false, 1000);
    assert_true(spent < 1000 * quiet[8] * 1.01);
}

/* A few sleeps on a machine that is fast with all workers, say from a pass of the draft layer between two. */
static void sleeps_alone_do_not_take_workers_away(void **state)
{
    (void)state;
    struct st_pace p = st_pace(8);
    double spent = run(&p, quiet, true, 1000);
    assert_true(spent < 1000 * quiet[8] * 1.15);
}

static void a_slow_first_pass_does_not_take_workers_away(void **state)
{
    (void)state;
    struct st_pace p = st_pace(8);
    st_pace_report(&p, 500 * quiet[8], 3);
    double spent = run(&p, quiet, true, 1000);
    assert_true(spent < 1000 * quiet[8] * 1.15);
}

static void a_slow_first_pass_does_not_put_tries_off(void **state)
{
    (void)state;
    struct st_pace p = st_pace(2);
    st_pace_report(&p, 1e6, 3);
    run(&p, busy, true, 20);
    assert_int_equal(st_pace_workers(&p), 1);
}

static void any_number_of_threads_is_halved_down_to_one(void **state)
{
    (void)state;
    struct st_pace one = st_pace(1), odd = st_pace(7), most = st_pace(1024);
    assert_int_equal(one.levels, 1);
    st_pace_report(&one, 1, 5);
    assert_int_equal(st_pace_workers(&one), 1);
    const int want[] = {7, 4, 2, 1};
    assert_int_equal(odd.levels, 4);
    assert_memory_equal(odd.workers, want, sizeof want);
    assert_int_equal(most.workers[most.levels - 1], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_a_quiet_machine_every_pass_has_all_workers),
        cmocka_unit_test(a_busy_machine_is_served_by_the_number_that_is_fastest),
        cmocka_unit_test(a_machine_that_becomes_quiet_gets_all_workers_again),
        cmocka_unit_test(sleeps_alone_do_not_take_workers_away),
        cmocka_unit_test(a_slow_first_pass_does_not_take_workers_away),
        cmocka_unit_test(a_slow_first_pass_does_not_put_tries_off),
        cmocka_unit_test(any_number_of_threads_is_halved_down_to_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
