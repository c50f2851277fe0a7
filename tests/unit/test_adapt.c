/* The choice of guesses: more where they pay, none where they do not, and tries that become rare. */
#include "test.h"

#include "engine/adapt.h"

/* A machine: seconds of a pass of n rows, of a draft, and how many guesses of a pass are right. */
struct machine {
    double pass, row, draft;
    size_t right;
};

/* Takes passes and gives the tokens for each second of the last half. */
static double run(struct st_adapt *a, const struct machine *m, size_t passes, size_t text, size_t *guesses)
{
    double seconds = 0, tokens = 0;
    *guesses = 0;
    for (size_t i = 0; i < passes; i++) {
        size_t most[ST_GUESS_SOURCES] = {[ST_GUESS_LAYER] = text ? 0 : ST_GUESSES_MAX, [ST_GUESS_TEXT_LONG] = text};
        struct st_guess g = st_adapt_choose(a, most, 0);
        size_t right = g.count < m->right ? g.count : m->right;
        double guessing = g.source == ST_GUESS_LAYER ? (double)g.count * m->draft : 0;
        double pass = m->pass + m->row * (double)g.count;
        assert_true(g.count <= most[g.source]);
        st_adapt_learn(a, g, 0, right < g.count ? right + 1 : right, right, guessing, pass);
        if (i >= passes / 2) {
            seconds += guessing + pass;
            tokens += 1 + (double)right;
            *guesses += g.count;
        }
    }
    return tokens / seconds;
}

static void as_many_guesses_as_are_right_where_rows_cost_little(void **state)
{
    (void)state;
    for (size_t right = 1; right <= ST_GUESSES_MAX; right++) {
        struct st_adapt a;
        size_t guesses;
        st_adapt_init(&a);
        const struct machine m = {.pass = 10e-3, .row = 0.2e-3, .draft = 0.5e-3, .right = right};
        double got = run(&a, &m, 400, 0, &guesses), most = (1 + (double)right) / (10e-3 + (double)right * 0.7e-3);
        assert_true(got > 0.93 * most);
    }
}

static void no_guesses_where_rows_cost_as_much_as_passes(void **state)
{
    (void)state;
    struct st_adapt a;
    size_t guesses;
    st_adapt_init(&a);
    const struct machine m = {.pass = 10e-3, .row = 9e-3, .draft = 3e-3, .right = 1};
    double got = run(&a, &m, 4000, 0, &guesses);
    assert_true(got > 0.97 / 10e-3);
    assert_true(guesses > 0); /* but some tries */
}

static void wrong_guesses_stop_and_come_back_when_they_are_right(void **state)
{
    (void)state;
    struct st_adapt a;
    size_t guesses;
    st_adapt_init(&a);
    struct machine m = {.pass = 10e-3, .row = 1e-3, .draft = 1e-3, .right = 0};
    run(&a, &m, 2000, 0, &guesses);
    assert_true(guesses < 60);
    m.right = 3;
    double got = run(&a, &m, 6000, 0, &guesses);
    assert_true(got > 0.9 * 4 / (10e-3 + 3 * 2e-3));
}

static void text_is_guessed_without_a_draft_layer(void **state)
{
    (void)state;
    struct st_adapt a;
    size_t guesses;
    st_adapt_init(&a);
    const struct machine m = {.pass = 10e-3, .row = 0.5e-3, .right = 7};
    double got = run(&a, &m, 200, 5, &guesses);
    assert_true(got > 0.95 * 6 / 12.5e-3);
}

static void nothing_is_guessed_where_nobody_can(void **state)
{
    (void)state;
    struct st_adapt a;
    st_adapt_init(&a);
    for (int i = 0; i < 1000; i++) {
        const size_t most[ST_GUESS_SOURCES] = {0};
        struct st_guess g = st_adapt_choose(&a, most, 0);
        assert_int_equal(g.count, 0);
        st_adapt_learn(&a, g, 0, 0, 0, 0, 1e-3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_many_guesses_as_are_right_where_rows_cost_little),
        cmocka_unit_test(no_guesses_where_rows_cost_as_much_as_passes),
        cmocka_unit_test(wrong_guesses_stop_and_come_back_when_they_are_right),
        cmocka_unit_test(text_is_guessed_without_a_draft_layer),
        cmocka_unit_test(nothing_is_guessed_where_nobody_can),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
