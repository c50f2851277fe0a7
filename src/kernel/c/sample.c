/* Sampling on the CPU: the rules of sample.h. Work arrays hold the candidates in ascending id; every step narrows them in
 * place. */
#include "kernel/sample.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernel/exact_math.h"

/* count of them, in ascending id. */
struct candidates {
    float *logit;
    uint64_t *weight;
    int32_t *id;
    size_t count;
};

__attribute__((always_inline)) static inline void weigh_body(const float *logits, size_t count, float best,
                                                             float temperature, uint64_t *weights)
{
    for (size_t i = 0; i < count; i++)
        weights[i] = (uint64_t)(st_expf((logits[i] - best) / temperature) * (float)ST_SAMPLE_ONE);
}

#ifdef __x86_64__
/* The same steps with the processor's fma instead of a call for each; fma is exact by definition, so are the results. */
__attribute__((target("fma,avx2"))) static void weigh_fma(const float *logits, size_t count, float best,
                                                          float temperature, uint64_t *weights)
{
    weigh_body(logits, count, best, temperature, weights);
}
#endif

void st_sample_weigh(const float *logits, size_t count, float best, float temperature, uint64_t *weights)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2")) {
        weigh_fma(logits, count, best, temperature, weights);
        return;
    }
#endif
    weigh_body(logits, count, best, temperature, weights);
}

/* ---- adjusted logits ---- */

static float penalized(const struct st_sample *a, float l, uint32_t times)
{
    l = l > 0.0f ? l / a->repetition : l * a->repetition;
    l -= (float)times * a->frequency;
    return l - a->presence + 0.0f;
}

void st_sample_adjust(const struct st_sample *a, const float *logits, size_t vocabulary, const struct st_sample_work *work,
                      struct st_sample_pick *out)
{
    float *logit = work->logit;
    for (size_t i = 0; i < vocabulary; i++)
        logit[i] = logits[i] + 0.0f;
    for (size_t i = 0; i < vocabulary && a->mask; i++)
        if (!(a->mask[i / 32] >> i % 32 & 1))
            logit[i] = -INFINITY;
    for (uint32_t i = 0; i < a->biases; i++)
        logit[a->bias[i].token] += a->bias[i].bias;
    for (uint32_t i = 0; i < a->seen_count; i++)
        logit[a->seen[i].token] = penalized(a, logit[a->seen[i].token], a->seen[i].times);
    size_t at = 0;
    *out = (struct st_sample_pick){0};
    for (size_t i = 0; i < vocabulary; i++) {
        float l = logit[i];
        if (isnan(l) || l == INFINITY) {
            *out = (struct st_sample_pick){(int32_t)i, isnan(l) ? ST_SAMPLE_NAN : ST_SAMPLE_INFINITE, 0};
            return;
        }
        if (l > logit[at])
            at = i;
    }
    if (logit[at] == -INFINITY)
        out->status = ST_SAMPLE_NONE;
    else
        out->token = (int32_t)at;
}

/* ---- candidates ---- */

/* Bits of a logit such that unsigned order is order by logit. */
static uint32_t order_key(float l)
{
    uint32_t u = st_exact_bits(l);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Keeps the shortest run of the best candidates whose mass reaches target (1 <= target <= total mass). mass: the weight,
 * or 1 each. Three passes over the candidates, 11 + 11 + 10 bits of the key each; no sort. */
static void keep_best(struct candidates *s, uint64_t target, bool by_weight)
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

static uint64_t total_weight(const struct candidates *s)
{
    uint64_t total = 0;
    for (size_t i = 0; i < s->count; i++)
        total += s->weight[i];
    return total;
}

float st_sample_draw(const struct st_sample *a, size_t vocabulary, const struct st_sample_work *work, struct st_sample_pick *out)
{
    struct candidates s = {work->logit, work->weight, work->id, vocabulary};
    float best = s.logit[out->token];
    if (a->temperature == 0.0f)
        return best;
    for (size_t i = 0; i < s.count; i++)
        s.id[i] = (int32_t)i;
    if (a->top_k && a->top_k < s.count)
        keep_best(&s, a->top_k, false);
    st_sample_weigh(s.logit, s.count, best, a->temperature, s.weight);
    if (a->share < ST_SAMPLE_SHARE) {
        uint64_t total = total_weight(&s);
        uint64_t target = (total >> 24) * a->share + ((total & 0xffffff) * a->share >> 24);
        keep_best(&s, target ? target : 1, true);
    }
    for (size_t i = 0; i < s.count; i++)
        if (s.weight[i] < a->least)
            s.weight[i] = 0; /* width zero in the draw */
    out->total = total_weight(&s);
    if (a->measure)
        return best;
    uint64_t left = (uint64_t)((unsigned __int128)a->random * out->total >> 64);
    size_t i = 0;
    while (left >= s.weight[i])
        left -= s.weight[i++];
    out->token = s.id[i];
    return s.logit[i];
}
