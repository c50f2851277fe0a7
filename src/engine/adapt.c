/* The choice of guesses: see adapt.h. */
#include "engine/adapt.h"

enum {
    FIRST_WAIT = 16, /* passes without guesses before the first try */
    LONGEST_WAIT = 256,
    TRY_PASSES = 4,
    TRY_GUESSES = 2,
};

/* Weight of a new measurement. Times that fall are believed sooner, because what disturbs a measurement makes it
 * longer. */
static const double slower = 1.0 / 8, faster = 1.0 / 3, share = 1.0 / 16;
/* What a row more costs before it was measured, as a share of the pass of one row. Low, so that it is measured. */
static const double row_cost = 0.08;

void st_adapt_init(struct st_adapt *a)
{
    static const double start[ST_GUESS_SOURCES] = {0.65, 0.4, 0.6, 0.8};
    *a = (struct st_adapt){.wait = FIRST_WAIT};
    for (int s = 0; s < ST_GUESS_SOURCES; s++)
        for (int k = 0; k < ST_GUESSES_MAX; k++)
            a->right[s][k] = start[s];
}

/* Of guesses beside others + 1 rows, a pass of which was measured. */
static double pass_seconds(const struct st_adapt *a, size_t others, size_t guesses)
{
    size_t least = others + 1, rows = least + guesses, known = rows;
    while (known > least && a->pass[known] <= 0)
        known--;
    return a->pass[known] + (double)(rows - known) * row_cost * a->pass[least];
}

/* Tokens for a second. */
static double rate(const struct st_adapt *a, size_t others, struct st_guess g)
{
    double tokens = 1 + (double)others, all = 1;
    for (size_t k = 0; k < g.asked; k++) {
        all *= a->right[g.source][k];
        tokens += all;
    }
    double seconds = pass_seconds(a, others, g.asked) + (g.source == ST_GUESS_LAYER ? (double)g.asked * a->chain : 0);
    return seconds > 0 ? tokens / seconds : tokens;
}

/* The best choice of at least least guesses. */
static struct st_guess best(const struct st_adapt *a, size_t others, const size_t most[ST_GUESS_SOURCES], size_t least)
{
    struct st_guess choice = {.source = ST_GUESS_LAYER};
    double promise = least ? 0 : rate(a, others, choice);
    for (int s = 0; s < ST_GUESS_SOURCES; s++)
        for (size_t n = least ? least : 1; n <= most[s] && n + others <= ST_GUESSES_MAX; n++) {
            struct st_guess g = {(enum st_guess_source)s, n, n};
            double r = rate(a, others, g);
            if (r > promise) {
                promise = r;
                choice = g;
            }
        }
    return choice;
}

struct st_guess st_adapt_choose(struct st_adapt *a, const size_t most[ST_GUESS_SOURCES], size_t others)
{
    size_t few[ST_GUESS_SOURCES];
    bool any = false;
    for (int s = 0; s < ST_GUESS_SOURCES; s++) {
        few[s] = most[s] < TRY_GUESSES ? most[s] : TRY_GUESSES;
        any = any || few[s];
    }
    /* A pass without guesses is what everything is compared with. */
    if (!any || a->pass[others + 1] <= 0)
        return (struct st_guess){.source = ST_GUESS_LAYER};
    struct st_guess g = best(a, others, most, 0);
    if (g.asked) {
        a->idle = a->tries = 0;
        a->wait = FIRST_WAIT;
        return g;
    }
    if (!a->tries && ++a->idle < a->wait)
        return g;
    if (!a->tries) {
        a->tries = TRY_PASSES;
        a->idle = 0;
        a->wait = 2 * a->wait < LONGEST_WAIT ? 2 * a->wait : LONGEST_WAIT;
    }
    a->tries--;
    return best(a, others, few, 1);
}

static void measure(double *value, bool *seen, double now)
{
    if (!*seen)
        *seen = true;
    else if (*value <= 0)
        *value = now;
    else
        *value += (now - *value) * (now < *value ? faster : slower);
}

void st_adapt_learn(struct st_adapt *a, struct st_guess guess, size_t others, size_t checked, size_t right, double guessing,
                    double pass)
{
    measure(&a->pass[others + guess.count + 1], &a->seen[others + guess.count + 1], pass);
    if (guess.asked && guess.source == ST_GUESS_LAYER)
        measure(&a->chain, &a->chain_seen, guessing / (double)(guess.count ? guess.count : 1));
    /* A guess that the layer was not sure enough to make counts as a wrong one: it brings no token. */
    if (right == guess.count && guess.count < guess.asked)
        checked = guess.count + 1;
    for (size_t k = 0; k < checked; k++) {
        double *p = &a->right[guess.source][k];
        *p += ((k < right ? 1.0 : 0.0) - *p) * share;
    }
}
