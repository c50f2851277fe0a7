/* Sampler of a request: its options and the tokens that it has seen. kernel/sample.h says exactly how a row's logits become a
 * token, the same on every device; of the options of struct strata_sampling become
 *   share   floor(top_p * 2^24)
 *   least   floor(min_p * 2^40)
 *   random  words 0 (high) and 1 of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) with
 *           key {seed low, seed high} and counter {position low, position high, 0, 0}: a draw depends on nothing that came
 *           before. */
#ifndef ST_ENGINE_SAMPLER_H
#define ST_ENGINE_SAMPLER_H

#include <stdbool.h>

#include "base/result.h"
#include "kernel/sample.h"
#include "text/matcher.h"

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

/* From now on picks follow a constraint, which moves with the tokens that are accepted and taken back: to be called behind the
 * prompt. The constraint must outlive the sampler. */
enum strata_result st_sampler_constrain(struct st_sampler *s, const struct strata_constraint *c, struct strata_error *err);

/* Forgets the tokens seen. */
void st_sampler_reset(struct st_sampler *s);

/* Adds tokens, prompt or picked, to those seen (penalties). Ids outside the vocabulary are STRATA_E_ARGUMENT and then none
 * of the call's tokens is added. */
enum strata_result st_sampler_accept(struct st_sampler *s, const int32_t *ids, size_t count, struct strata_error *err);

/* Forgets the last count tokens that were added; with a constraint at most ST_MATCHER_BACK. */
void st_sampler_take_back(struct st_sampler *s, size_t count);

/* How the rows of a window are sampled: row i holds ids[i], of which the first one has been added, and gives the token at position
 * first + i. [n], valid until the next call. NULL where the host must pick from the logits: a pick says more than the token
 * (log-probabilities), there is no memory, or the constraint fails behind one of the ids, which is a fault only if that row counts. */
const struct st_sample *st_sampler_window(struct st_sampler *s, uint64_t first, const int32_t *ids, size_t n);
/* A row that could not be sampled is STRATA_E_MODEL, as of st_sampler_pick. */
enum strata_result st_sampler_check(const struct st_sample_pick *pick, struct strata_error *err);

/* Picks for a position (index in the sequence of the token that is picked). logits: [vocabulary], not modified. A NaN or
 * +infinity is STRATA_E_MODEL and names the token; so is a distribution in which every token is banned. The token is not
 * accepted. */
enum strata_result st_sampler_pick(struct st_sampler *s, const float *logits, uint64_t position, struct st_pick *out,
                                   struct strata_error *err);

/* The 64 random bits of a position. */
uint64_t st_sampler_random(uint64_t seed, uint64_t position);

#endif
