/* How many guesses the next pass of an answer checks, and whose: the choice that promises most tokens for its time, by
 * what passes took so far and how often guesses were right. Passes without guesses are the best choice when guesses do
 * not pay; then a few are tried again from time to time, more and more seldom while they keep failing. */
#ifndef ST_ENGINE_ADAPT_H
#define ST_ENGINE_ADAPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ST_GUESSES_MAX = 7 };

/* Where guesses come from: the draft layer; the text, by the length of the match that suggests them. */
enum st_guess_source {
    ST_GUESS_LAYER,
    ST_GUESS_TEXT_SHORT,
    ST_GUESS_TEXT_MIDDLE,
    ST_GUESS_TEXT_LONG,
    ST_GUESS_SOURCES
};

struct st_guess {
    enum st_guess_source source;
    size_t asked; /* 0: none */
    size_t count; /* how many there are: the draft layer may be sure of fewer */
};

struct st_adapt {
    double pass[ST_GUESSES_MAX + 2]; /* seconds of a pass by its rows, those of other answers too; 0: not measured yet */
    bool seen[ST_GUESSES_MAX + 2];   /* the first pass of a size, which sets things up, does not count */
    double chain;                    /* seconds of one guess of the draft layer */
    bool chain_seen;
    double right[ST_GUESS_SOURCES]
                [ST_GUESSES_MAX]; /* share of right guesses by place, given that those before were right */
    unsigned idle, wait,
        tries; /* passes without guesses since the last; how many until the next try; passes left of a try */
};

void st_adapt_init(struct st_adapt *a);
/* most[source]: how many guesses the source could give, 0: none. others: rows of other answers in the pass, each of which brings
 * a token and waits for the guesses too; with the row of this answer and its guesses at most ST_GUESSES_MAX + 1. */
struct st_guess st_adapt_choose(struct st_adapt *a, const size_t most[ST_GUESS_SOURCES], size_t others);
/* A pass checked guess.count guesses beside others rows of other answers; checked of them were looked at (the answer may have ended
 * before the others), and the first right of those were right. pass: its seconds; guessing: the seconds that the guesses took. */
void st_adapt_learn(struct st_adapt *a, struct st_guess guess, size_t others, size_t checked, size_t right, double guessing,
                    double pass);

#endif
