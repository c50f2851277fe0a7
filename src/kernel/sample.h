/* Sampling: from the logits of one row to one token, the same on every device.
 *
 * Order: mask, logit bias, penalties, temperature, top-k, top-p, min-p, draw. From the temperature on everything is exact integer
 * arithmetic over weights that one defined exp makes:
 *
 *     weight(i) = floor(2^40 * st_expf((l(i) - l(best)) / temperature))          st_expf: kernel/exact_math.h
 *
 * so sums do not depend on the order of additions, and any device that follows these rules picks the same token. Fewer than
 * 2^24 weights of at most 2^40 add up to less than 2^64.
 * "Best first" means descending logit, then ascending id.
 *   mask    a token whose bit is not set has the logit -infinity.
 *   bias    is added, one after the other where a token has several.
 *   seen    a token's logit l becomes (l > 0 ? l / repetition : l * repetition) - times * frequency - presence, rounded after
 *           each step. -0 becomes 0, so that equal logits have equal bits.
 *   top-k   keeps the k best.
 *   top-p   keeps the shortest run of the best whose weights reach max(1, floor(total * share / 2^24)), total over what top-k
 *           kept.
 *   min-p   drops weights below least; the best weighs 2^40.
 *   draw    the token is the first in ascending id whose running sum of weights exceeds floor(random * total / 2^64), total
 *           over what is left.
 * Temperature 0 takes the best token; nothing from top-k on has an effect then. */
#ifndef ST_KERNEL_SAMPLE_H
#define ST_KERNEL_SAMPLE_H

#include <stddef.h>
#include <stdint.h>

#include "strata.h"

#define ST_SAMPLE_ONE ((uint64_t)1 << 40) /* weight of the best token */
#define ST_SAMPLE_SHARE (1u << 24)        /* all of the total */

enum { ST_SAMPLE_VOCABULARY = (1 << 24) - 1 };

/* A row that cannot be sampled: token then names the first that is not a number or infinite. */
enum st_sample_status { ST_SAMPLE_OK, ST_SAMPLE_NAN, ST_SAMPLE_INFINITE, ST_SAMPLE_NONE /* every token is banned */ };

struct st_sample_pick {
    int32_t token;
    uint32_t status;
    uint64_t total; /* of the draw; 0 without one */
};

struct st_sample_seen {
    int32_t token;
    uint32_t times; /* at least 1 */
};

/* How a row is sampled. */
struct st_sample {
    uint64_t random, least;
    float temperature, repetition, frequency, presence;
    uint32_t top_k; /* 0: all */
    uint32_t share; /* of top-p, up to ST_SAMPLE_SHARE: all */
    const uint32_t *mask; /* [(vocabulary + 31) / 32], bit i % 32 of word i / 32: token i may be picked; NULL: all may */
    const struct strata_logit_bias *bias; /* ascending by token, those of one token in their order */
    const struct st_sample_seen *seen;    /* every token once, in any order; NULL unless there are penalties */
    uint32_t biases, seen_count;
    uint32_t measure; /* with a temperature: not 0 takes the best token all the same. Its probability is 2^40 / total. */
};

/* Arrays of [vocabulary] that sampling works in. */
struct st_sample_work {
    float *logit;
    uint64_t *weight;
    int32_t *id;
};

/* work->logit: the logits after mask, bias and penalties; out: the best of them, or what is wrong. */
void st_sample_adjust(const struct st_sample *a, const float *logits, size_t vocabulary, const struct st_sample_work *work,
                      struct st_sample_pick *out);
/* out holds the best of work->logit, status OK, and becomes the pick; returns the pick's logit. Nothing in work keeps its
 * place. */
float st_sample_draw(const struct st_sample *a, size_t vocabulary, const struct st_sample_work *work, struct st_sample_pick *out);

/* Weights of logits relative to the logit best. */
void st_sample_weigh(const float *logits, size_t count, float best, float temperature, uint64_t *weights);

#endif
