/* Sampler: from the logits of one position to one token, the same on every device.
 *
 * Order (strata.h, struct strata_sampling): logit bias, penalties, temperature, top-k, top-p, min-p, draw. From the
 * temperature on everything is exact integer arithmetic over weights that one defined exp makes:
 *
 *     weight(i) = floor(2^40 * st_expf((l(i) - l(best)) / temperature))          st_expf: kernel/exact_math.h
 *
 * so sums do not depend on the order of additions, and any device that follows these rules picks the same token.
 * "Best first" means descending logit, then ascending id.
 *   top-k   keeps the k best.
 *   top-p   keeps the shortest run of the best whose weights reach max(1, floor(total * floor(top_p * 2^24) / 2^24)), total
 *           over what top-k kept.
 *   min-p   keeps weights of at least floor(min_p * 2^40); the best weighs 2^40.
 *   draw    r is 64 random bits; the token is the first in ascending id whose running sum of weights exceeds
 *           floor(r * total / 2^64), total over what is left.
 * r is words 0 (high) and 1 of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) with
 * key {seed low, seed high} and counter {position low, position high, 0, 0}: a draw depends on nothing that came before. */
#ifndef ST_ENGINE_SAMPLER_H
#define ST_ENGINE_SAMPLER_H

#include "base/result.h"

struct st_sampler;

enum { ST_LOGPROBS_MAX = 20 };

struct st_pick {
    int32_t token;
    float logprob; /* with logprobs > 0: of token, as struct strata_token_logprob says */
    size_t top_count;
    struct strata_token_logprob top[ST_LOGPROBS_MAX]; /* descending, lowest id first on ties; banned tokens are left out */
};

/* options (with its bias list) is copied. STRATA_E_ARGUMENT names a field that is out of range: temperature finite and >= 0,
 * top_k >= 0, top_p in (0, 1], min_p in [0, 1], repetition_penalty > 0 and finite, the other penalties finite,
 * penalty_window >= -1, logprobs in [0, 20], bias tokens below vocabulary and biases finite or -infinity (a ban). */
enum strata_result st_sampler_create(const struct strata_sampling *options, size_t vocabulary, struct st_sampler **out,
                                     struct strata_error *err);
void st_sampler_free(struct st_sampler *s);

/* Forgets the tokens seen. */
void st_sampler_reset(struct st_sampler *s);

/* Adds tokens, prompt or picked, to those seen (penalties). Ids outside the vocabulary are STRATA_E_ARGUMENT and then none
 * of the call's tokens is added. */
enum strata_result st_sampler_accept(struct st_sampler *s, const int32_t *ids, size_t count, struct strata_error *err);

/* Picks for a position (index in the sequence of the token that is picked). logits: [vocabulary], not modified. A NaN or
 * +infinity is STRATA_E_MODEL and names the token; so is a distribution in which every token is banned. The token is not
 * accepted. */
enum strata_result st_sampler_pick(struct st_sampler *s, const float *logits, uint64_t position, struct st_pick *out,
                                   struct strata_error *err);

/* The 64 random bits of a position. */
uint64_t st_sampler_random(uint64_t seed, uint64_t position);

#endif
