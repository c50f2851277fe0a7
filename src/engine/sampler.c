/* The sampler of sampler.h. Work arrays hold the candidates in ascending id; every step narrows them in place. */
#include "engine/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "kernel/exact_math.h"

#define ONE ((uint64_t)1 << 40) /* weight of the best token; fewer than 2^24 tokens of it fit 64 bits */

enum { VOCABULARY_MAX = (1 << 24) - 1 };

/* Fills weights[i] for logits relative to best. */
typedef void weigh_fn(const float *logits, size_t count, float best, float temperature, uint64_t *weights);

struct st_sampler {
    struct strata_sampling o;
    struct strata_logit_bias *bias;
    size_t vocabulary;
    weigh_fn *weigh;

    /* Tokens seen: all of them in order, and how often each is within the window. */
    int32_t *seen;
    size_t seen_count, seen_room;
    uint32_t *times; /* [vocabulary] */

    /* Candidates, count of them, in ascending id. */
    float *logit;
    uint64_t *weight;
    int32_t *id;
    size_t count;
};

void strata_sampling_default(struct strata_sampling *out)
{
    *out = (struct strata_sampling){.top_p = 1.0f, .repetition_penalty = 1.0f};
}

__attribute__((always_inline)) static inline void weigh_body(const float *logits, size_t count, float best,
                                                             float temperature, uint64_t *weights)
{
    for (size_t i = 0; i < count; i++)
        weights[i] = (uint64_t)(st_expf((logits[i] - best) / temperature) * (float)ONE);
}

static void weigh_plain(const float *logits, size_t count, float best, float temperature, uint64_t *weights)
{
    weigh_body(logits, count, best, temperature, weights);
}

#ifdef __x86_64__
/* The same steps with the processor's fma instead of a call for each; fma is exact by definition, so are the results. */
__attribute__((target("fma,avx2"))) static void weigh_fma(const float *logits, size_t count, float best,
                                                          float temperature, uint64_t *weights)
{
    weigh_body(logits, count, best, temperature, weights);
}
#endif

static weigh_fn *choose_weigh(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2"))
        return weigh_fma;
#endif
    return weigh_plain;
}

static enum strata_result check(const struct strata_sampling *o, size_t vocabulary, struct strata_error *err)
{
    enum strata_result bad = STRATA_E_ARGUMENT;
    if (vocabulary == 0 || vocabulary > VOCABULARY_MAX)
        return st_fail(err, bad, "sampling: a vocabulary of %zu tokens is not between 1 and %d", vocabulary, VOCABULARY_MAX);
    if (!(o->temperature >= 0.0f) || isinf(o->temperature))
        return st_fail(err, bad, "sampling: temperature %g is not a finite number from 0 on", (double)o->temperature);
    if (o->top_k < 0)
        return st_fail(err, bad, "sampling: top_k %d is negative", o->top_k);
    if (!(o->top_p > 0.0f && o->top_p <= 1.0f))
        return st_fail(err, bad, "sampling: top_p %g is not above 0 and at most 1", (double)o->top_p);
    if (!(o->min_p >= 0.0f && o->min_p <= 1.0f))
        return st_fail(err, bad, "sampling: min_p %g is not between 0 and 1", (double)o->min_p);
    if (!(o->repetition_penalty > 0.0f) || isinf(o->repetition_penalty))
        return st_fail(err, bad, "sampling: repetition_penalty %g is not a finite number above 0",
                       (double)o->repetition_penalty);
    if (!isfinite(o->frequency_penalty))
        return st_fail(err, bad, "sampling: frequency_penalty is not finite");
    if (!isfinite(o->presence_penalty))
        return st_fail(err, bad, "sampling: presence_penalty is not finite");
    if (o->penalty_window < -1)
        return st_fail(err, bad, "sampling: penalty_window %d is below -1", o->penalty_window);
    if (o->logprobs < 0 || o->logprobs > ST_LOGPROBS_MAX)
        return st_fail(err, bad, "sampling: logprobs %d is not between 0 and %d", o->logprobs, ST_LOGPROBS_MAX);
    for (size_t i = 0; i < o->bias_count; i++) {
        const struct strata_logit_bias *b = &o->bias[i];
        if (b->token < 0 || (size_t)b->token >= vocabulary)
            return st_fail(err, bad, "sampling: logit bias for token %d, but the vocabulary has %zu", b->token, vocabulary);
        if (isnan(b->bias) || b->bias == INFINITY)
            return st_fail(err, bad, "sampling: logit bias of token %d is not finite and not -infinity", b->token);
    }
    return STRATA_OK;
}

enum strata_result st_sampler_create(const struct strata_sampling *options, size_t vocabulary, struct st_sampler **out,
                                     struct strata_error *err)
{
    enum strata_result r = check(options, vocabulary, err);
    if (r)
        return r;
    struct st_sampler *s = calloc(1, sizeof *s);
    if (!s)
        return st_fail(err, STRATA_E_MEMORY, "sampling: no memory");
    s->o = *options;
    if (s->o.penalty_window == 0)
        s->o.penalty_window = 64;
    s->vocabulary = vocabulary;
    s->weigh = choose_weigh();
    s->times = calloc(vocabulary, sizeof *s->times);
    s->logit = calloc(vocabulary, sizeof *s->logit);
    s->weight = calloc(vocabulary, sizeof *s->weight);
    s->id = calloc(vocabulary, sizeof *s->id);
    s->bias = calloc(options->bias_count + 1, sizeof *s->bias);
    if (!s->times || !s->logit || !s->weight || !s->id || !s->bias) {
        st_sampler_free(s);
        return st_fail(err, STRATA_E_MEMORY, "sampling: no memory for a vocabulary of %zu tokens", vocabulary);
    }
    if (options->bias_count)
        memcpy(s->bias, options->bias, options->bias_count * sizeof *s->bias);
    s->o.bias = s->bias;
    *out = s;
    return STRATA_OK;
}

void st_sampler_free(struct st_sampler *s)
{
    if (!s)
        return;
    free(s->bias);
    free(s->seen);
    free(s->times);
    free(s->logit);
    free(s->weight);
    free(s->id);
    free(s);
}

void st_sampler_reset(struct st_sampler *s)
{
    s->seen_count = 0;
    memset(s->times, 0, s->vocabulary * sizeof *s->times);
}

enum strata_result st_sampler_accept(struct st_sampler *s, const int32_t *ids, size_t count, struct strata_error *err)
{
    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || (size_t)ids[i] >= s->vocabulary)
            return st_fail(err, STRATA_E_ARGUMENT, "token %d is outside the vocabulary of %zu", ids[i], s->vocabulary);
    uint64_t need, bytes;
    if (!st_add_u64(s->seen_count, count, &need) || !st_mul_u64(need, 2 * sizeof *s->seen, &bytes))
        return st_fail(err, STRATA_E_MEMORY, "sampling: no memory for the tokens seen");
    if (need > s->seen_room) {
        int32_t *p = realloc(s->seen, (size_t)bytes);
        if (!p)
            return st_fail(err, STRATA_E_MEMORY, "sampling: no memory for %llu tokens", (unsigned long long)need);
        s->seen = p;
        s->seen_room = 2 * (size_t)need;
    }
    for (size_t i = 0; i < count; i++) {
        s->seen[s->seen_count++] = ids[i];
        s->times[ids[i]]++;
        if (s->o.penalty_window > 0 && s->seen_count > (size_t)s->o.penalty_window)
            s->times[s->seen[s->seen_count - 1 - (size_t)s->o.penalty_window]]--;
    }
    return STRATA_OK;
}

static bool has_penalties(const struct strata_sampling *o)
{
    return o->repetition_penalty != 1.0f || o->frequency_penalty != 0.0f || o->presence_penalty != 0.0f;
}

/* Copies the logits with bias and penalties, finds the best. -0 becomes 0, so that equal logits have equal bits. */
static enum strata_result adjust(struct st_sampler *s, const float *logits, size_t *best, struct strata_error *err)
{
    const struct strata_sampling *o = &s->o;
    for (size_t i = 0; i < s->vocabulary; i++)
        s->logit[i] = logits[i] + 0.0f;
    for (size_t i = 0; i < o->bias_count; i++)
        s->logit[o->bias[i].token] += o->bias[i].bias;
    if (has_penalties(o))
        for (size_t i = 0; i < s->vocabulary; i++) {
            if (!s->times[i])
                continue;
            float l = s->logit[i];
            l = l > 0.0f ? l / o->repetition_penalty : l * o->repetition_penalty;
            l -= (float)s->times[i] * o->frequency_penalty;
            s->logit[i] = l - o->presence_penalty + 0.0f;
        }
    size_t at = 0;
    for (size_t i = 0; i < s->vocabulary; i++) {
        float l = s->logit[i];
        if (isnan(l) || l == INFINITY)
            return st_fail(err, STRATA_E_MODEL, "the logit of token %zu is %s", i, isnan(l) ? "not a number" : "infinite");
        if (l > s->logit[at])
            at = i;
    }
    if (s->logit[at] == -INFINITY)
        return st_fail(err, STRATA_E_MODEL, "no token can be picked: every logit is -infinity");
    *best = at;
    return STRATA_OK;
}

/* Fills out->top and returns what to subtract from a logit to get its log-probability. */
static double log_probabilities(struct st_sampler *s, size_t best, struct st_pick *out)
{
    size_t wanted = (size_t)s->o.logprobs, have = 0;
    uint64_t total = 0;
    s->weigh(s->logit, s->vocabulary, s->logit[best], 1.0f, s->weight);
    for (size_t i = 0; i < s->vocabulary; i++) {
        total += s->weight[i];
        float l = s->logit[i];
        if (l == -INFINITY || (have == wanted && !(l > s->logit[out->top[have - 1].token])))
            continue;
        size_t at = have < wanted ? have++ : have - 1;
        for (; at > 0 && l > s->logit[out->top[at - 1].token]; at--)
            out->top[at] = out->top[at - 1];
        out->top[at].token = (int32_t)i;
    }
    /* total is at least the weight of the best. */
    // cppcheck-suppress invalidFunctionArg
    double shift = (double)s->logit[best] + log((double)total / (double)ONE);
    for (size_t i = 0; i < have; i++)
        out->top[i].logprob = (float)((double)s->logit[out->top[i].token] - shift);
    out->top_count = have;
    return shift;
}

/* Bits of a logit such that unsigned order is order by logit. */
static uint32_t order_key(float l)
{
    uint32_t u = st_exact_bits(l);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Keeps the shortest run of the best candidates whose mass reaches target (1 <= target <= total mass). mass: the weight,
 * or 1 each. Three passes over the candidates, 11 + 11 + 10 bits of the key each; no sort. */
static void keep_best(struct st_sampler *s, uint64_t target, bool by_weight)
{
    static const int shifts[] = {21, 10, 0};
    uint64_t hist[2048];
    uint32_t prefix = 0, mask = 0;
    for (int pass = 0; pass < 3; pass++) {
        uint32_t bins = pass < 2 ? 2048 : 1024;
        memset(hist, 0, sizeof hist);
        for (size_t i = 0; i < s->count; i++) {
            uint32_t key = order_key(s->logit[i]);
            if ((key & mask) == prefix)
                hist[key >> shifts[pass] & (bins - 1)] += by_weight ? s->weight[i] : 1;
        }
        uint32_t bin = bins - 1;
        while (bin > 0 && hist[bin] < target)
            target -= hist[bin--];
        prefix |= bin << shifts[pass];
        mask |= (bins - 1) << shifts[pass];
    }
    /* prefix is now the key of the last one kept, target what candidates with exactly this key still have to give. */
    size_t kept = 0;
    for (size_t i = 0; i < s->count; i++) {
        uint32_t key = order_key(s->logit[i]);
        uint64_t mass = by_weight ? s->weight[i] : 1;
        if (key < prefix || (key == prefix && target == 0))
            continue;
        if (key == prefix)
            target -= mass < target ? mass : target;
        s->logit[kept] = s->logit[i];
        s->weight[kept] = s->weight[i];
        s->id[kept++] = s->id[i];
    }
    s->count = kept;
}

static uint64_t total_weight(const struct st_sampler *s)
{
    uint64_t total = 0;
    for (size_t i = 0; i < s->count; i++)
        total += s->weight[i];
    return total;
}

uint64_t st_sampler_random(uint64_t seed, uint64_t position)
{
    uint32_t c[4] = {(uint32_t)position, (uint32_t)(position >> 32), 0, 0};
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k1, (uint32_t)a};
        memcpy(c, next, sizeof c);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (uint64_t)c[0] << 32 | c[1];
}

/* Index of the drawn candidate. */
static size_t draw(const struct st_sampler *s, uint64_t position)
{
    uint64_t r = st_sampler_random(s->o.seed, position);
    uint64_t left = (uint64_t)((unsigned __int128)r * total_weight(s) >> 64);
    size_t i = 0;
    while (left >= s->weight[i])
        left -= s->weight[i++];
    return i;
}

enum strata_result st_sampler_pick(struct st_sampler *s, const float *logits, uint64_t position, struct st_pick *out,
                                   struct strata_error *err)
{
    const struct strata_sampling *o = &s->o;
    size_t best = 0;
    *out = (struct st_pick){0};
    enum strata_result r = adjust(s, logits, &best, err);
    if (r)
        return r;
    double shift = o->logprobs ? log_probabilities(s, best, out) : 0.0;
    float logit = s->logit[best];
    out->token = (int32_t)best;
    if (o->temperature > 0.0f) {
        s->count = s->vocabulary;
        for (size_t i = 0; i < s->count; i++)
            s->id[i] = (int32_t)i;
        if (o->top_k && (size_t)o->top_k < s->count)
            keep_best(s, (uint64_t)o->top_k, false);
        s->weigh(s->logit, s->count, logit, o->temperature, s->weight);
        if (o->top_p < 1.0f) {
            uint64_t total = total_weight(s), share = (uint64_t)(o->top_p * 0x1p24f);
            uint64_t target = (total >> 24) * share + ((total & 0xffffff) * share >> 24);
            keep_best(s, target ? target : 1, true);
        }
        uint64_t least = (uint64_t)(o->min_p * (float)ONE);
        for (size_t i = 0; i < s->count; i++)
            if (s->weight[i] < least)
                s->weight[i] = 0; /* width zero in the draw */
        size_t drawn = draw(s, position);
        out->token = s->id[drawn];
        logit = s->logit[drawn];
    }
    if (o->logprobs)
        out->logprob = (float)((double)logit - shift);
    return STRATA_OK;
}
