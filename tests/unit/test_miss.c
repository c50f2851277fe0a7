/* What is known of the time of missing experts, and how they are divided between the CPU and the link. */
#include "test.h"

#include <math.h>

#include "engine/miss.h"

static const double MB = 1e6, US = 1e-6;

static bool close_to(double a, double b)
{
    return fabs(a - b) <= 1e-6 * fabs(b) + 1e-15;
}

static void two_sizes_say_what_a_start_costs_and_how_fast_the_rest_is(void **state)
{
    (void)state;
    const struct st_line l = {7 * US, 80e9};
    struct st_line got = st_line_through(1 * MB, st_line_at(l, 1 * MB), 9 * MB, st_line_at(l, 9 * MB));
    assert_true(close_to(got.start, l.start) && close_to(got.rate, l.rate));
}

static void sizes_that_contradict_each_other_are_a_rate_alone(void **state)
{
    (void)state;
    /* The larger one took less time; and one whose line would begin before nothing. */
    static const double seconds[][2] = {{30e-6, 20e-6}, {20e-6, 20e-6}, {1e-6, 90e-6}};
    for (size_t i = 0; i < 3; i++) {
        struct st_line got = st_line_through(1 * MB, seconds[i][0], 9 * MB, seconds[i][1]);
        assert_true(got.start == 0 && close_to(got.rate, 9 * MB / seconds[i][1]));
    }
}

static void times_begin_with_the_line_of_the_plan(void **state)
{
    (void)state;
    const struct st_line l = {20 * US, 60e9};
    const struct st_miss_times t = st_miss_times(l);
    struct st_line got = st_miss_line(&t);
    assert_true(close_to(got.start, l.start) && close_to(got.rate, l.rate));
    const struct st_miss_times none = {0};
    assert_true(st_miss_line(&none).rate == 0);
}

static void times_follow_a_machine_that_becomes_slower(void **state)
{
    (void)state;
    const struct st_line before = {20 * US, 60e9}, after = {50 * US, 25e9};
    struct st_miss_times t = st_miss_times(before);
    for (int i = 0; i < 2000; i++) {
        double bytes = (1 + i % 4) * 1.4 * MB;
        st_miss_add(&t, bytes, st_line_at(after, bytes));
    }
    struct st_line got = st_miss_line(&t);
    assert_true(close_to(got.start, after.start) && close_to(got.rate, after.rate));
}

static void one_size_alone_is_predicted_too(void **state)
{
    (void)state;
    struct st_miss_times t = {0};
    for (int i = 0; i < 100; i++)
        st_miss_add(&t, 2 * MB, 40 * US);
    assert_true(close_to(st_line_at(st_miss_line(&t), 2 * MB), 40 * US));
}

static void one_interruption_changes_little(void **state)
{
    (void)state;
    const struct st_line l = {20 * US, 60e9};
    struct st_miss_times t = st_miss_times(l);
    for (int i = 0; i < 500; i++) {
        double bytes = (1 + i % 4) * 1.4 * MB;
        st_miss_add(&t, bytes, i % 250 == 100 ? 1 : st_line_at(l, bytes));
    }
    double seconds = st_line_at(st_miss_line(&t), 3 * MB);
    assert_true(seconds < 1.2 * st_line_at(l, 3 * MB));
}

static void both_are_done_as_early_as_possible(void **state)
{
    (void)state;
    static const struct st_line lines[] = {{0, 20e9}, {20 * US, 60e9}, {35 * US, 54e9}, {5 * US, 200e9}, {1e-3, 1e9}};
    for (size_t c = 0; c < 5; c++)
        for (size_t l = 0; l < 5; l++)
            for (uint32_t missing = 0; missing <= 12; missing++)
                for (uint32_t most = 0; most <= missing; most++) {
                    uint32_t share = st_miss_over_link(lines[c], lines[l], missing, most, 1.4 * MB);
                    double best = 1e9, got = 0;
                    for (uint32_t n = 0; n <= most; n++) {
                        double cpu = missing > n ? st_line_at(lines[c], (missing - n) * 1.4 * MB) : 0,
                               link = n ? st_line_at(lines[l], n * 1.4 * MB) : 0, t = cpu > link ? cpu : link;
                        best = t < best ? t : best;
                        got = n == share ? t : got;
                    }
                    assert_true(share <= most && close_to(got, best));
                    /* What can be divided anywhere takes no longer. */
                    if (most == missing)
                        assert_true(st_miss_seconds(lines[c], lines[l], missing * 1.4 * MB) <= best * (1 + 1e-9));
                }
}

static void without_a_link_the_cpu_computes_everything(void **state)
{
    (void)state;
    const struct st_line cpu = {20 * US, 60e9}, none = {0};
    assert_int_equal(st_miss_over_link(cpu, none, 10, 10, MB), 0);
    assert_true(close_to(st_miss_seconds(cpu, none, 10 * MB), st_line_at(cpu, 10 * MB)));
    assert_true(st_miss_seconds(cpu, none, 0) == 0);
    /* A link that begins later than the CPU is done is no use either. */
    const struct st_line slow = {1, 60e9};
    assert_true(close_to(st_miss_seconds(cpu, slow, MB), st_line_at(cpu, MB)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_sizes_say_what_a_start_costs_and_how_fast_the_rest_is),
        cmocka_unit_test(sizes_that_contradict_each_other_are_a_rate_alone),
        cmocka_unit_test(times_begin_with_the_line_of_the_plan),
        cmocka_unit_test(times_follow_a_machine_that_becomes_slower),
        cmocka_unit_test(one_size_alone_is_predicted_too),
        cmocka_unit_test(one_interruption_changes_little),
        cmocka_unit_test(both_are_done_as_early_as_possible),
        cmocka_unit_test(without_a_link_the_cpu_computes_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
