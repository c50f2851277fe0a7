/* src/engine/sampler.c: every rule of sampler.h by itself, all of them together against a plain sorted evaluation, and the
 * distribution of draws. */
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/sampler.h"
#include "text/constraint.h"
#include "kernel/exact_math.h"

static struct st_sampler *make(const struct strata_sampling *o, size_t vocabulary)
{
    struct strata_error err;
    struct st_sampler *s;
    assert_ok(st_sampler_create(o, vocabulary, &s, &err), &err);
    return s;
}

static struct st_pick pick(struct st_sampler *s, const float *logits, uint64_t position)
{
    struct strata_error err;
    struct st_pick p;
    assert_ok(st_sampler_pick(s, logits, position, &p, &err), &err);
    return p;
}

/* One pick of a fresh sampler. */
static int32_t once(const struct strata_sampling *o, const float *logits, size_t vocabulary, uint64_t position)
{
    struct st_sampler *s = make(o, vocabulary);
    int32_t token = pick(s, logits, position).token;
    st_sampler_free(s);
    return token;
}

/* A small generator of test data, unrelated to the sampler's. */
static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 32);
}

static void generator_gives_the_published_words(void **state)
{
    (void)state;
    /* Known answers of Philox4x32-10 for a counter whose upper half is zero, from the paper's test program. */
    assert_true(st_sampler_random(0, 0) == 0x6627e8d5e169c58d);
    assert_true(st_sampler_random(0, 1) != st_sampler_random(1, 0));
    assert_true(st_sampler_random(0, (uint64_t)1 << 32) != st_sampler_random(0, 0));
}

static void greedy_takes_the_largest_and_the_lowest_id_on_ties(void **state)
{
    (void)state;
    struct strata_sampling o;
    strata_sampling_default(&o);
    float logits[] = {-1.0f, 3.0f, 2.0f, 3.0f, -0.0f};
    assert_int_equal(once(&o, logits, 5, 0), 1);
    float zeros[] = {-0.0f, 0.0f};
    assert_int_equal(once(&o, zeros, 2, 0), 0);
    float banned[] = {-INFINITY, -INFINITY, -5.0f};
    assert_int_equal(once(&o, banned, 3, 0), 2);
}

static void logits_of_the_caller_stay_untouched(void **state)
{
    (void)state;
    struct strata_logit_bias bias = {1, -3.0f};
    struct strata_sampling o = {.temperature = 0.7f, .top_k = 3, .top_p = 0.9f, .min_p = 0.1f, .repetition_penalty = 2.0f,
                                .bias = &bias, .bias_count = 1, .logprobs = 2};
    float logits[] = {1.0f, 2.0f, -0.0f, 4.0f}, copy[4];
    memcpy(copy, logits, sizeof copy);
    struct st_sampler *s = make(&o, 4);
    struct strata_error err;
    assert_ok(st_sampler_accept(s, (int32_t[]){3, 2}, 2, &err), &err);
    pick(s, logits, 0);
    assert_memory_equal(logits, copy, sizeof copy);
    st_sampler_free(s);
}

static void bias_is_added_and_minus_infinity_bans(void **state)
{
    (void)state;
    float logits[] = {1.0f, 2.0f, 3.0f};
    struct strata_logit_bias bias[] = {{2, -INFINITY}, {0, 1.5f}};
    struct strata_sampling o;
    strata_sampling_default(&o);
    o.bias = bias;
    o.bias_count = 2;
    assert_int_equal(once(&o, logits, 3, 0), 0);
    o.temperature = 5.0f;
    struct st_sampler *s = make(&o, 3);
    for (uint64_t i = 0; i < 2000; i++)
        assert_int_not_equal(pick(s, logits, i).token, 2);
    st_sampler_free(s);
}

static void penalties_follow_their_formulas_within_the_window(void **state)
{
    (void)state;
    struct strata_error err;
    struct strata_sampling o;
    strata_sampling_default(&o);
    o.logprobs = 4;
    o.penalty_window = 3;
    /* Differences of log-probabilities are differences of the adjusted logits. */
    float logits[] = {2.0f, -2.0f, 1.0f, 0.0f};
    static const struct {
        float repetition, frequency, presence;
        float expected[4];
    } cases[] = {
        {2.0f, 0.0f, 0.0f, {1.0f, -4.0f, 1.0f, 0.0f}},
        {1.0f, 0.5f, 0.0f, {1.5f, -3.0f, 1.0f, 0.0f}},
        {1.0f, 0.0f, 0.25f, {1.75f, -2.25f, 1.0f, 0.0f}},
        {2.0f, 0.5f, 0.25f, {0.25f, -5.25f, 1.0f, 0.0f}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        o.repetition_penalty = cases[c].repetition;
        o.frequency_penalty = cases[c].frequency;
        o.presence_penalty = cases[c].presence;
        struct st_sampler *s = make(&o, 4);
        /* 2 and 2 have left the window of three, 1 counts twice. */
        assert_ok(st_sampler_accept(s, (int32_t[]){2, 2, 1}, 3, &err), &err);
        assert_ok(st_sampler_accept(s, (int32_t[]){0, 1}, 2, &err), &err);
        struct st_pick p = pick(s, logits, 0);
        float found[4], third = 0.0f;
        for (size_t i = 0; i < 4; i++)
            found[p.top[i].token] = p.top[i].logprob;
        third = found[3];
        for (size_t i = 0; i < 4; i++)
            assert_true(fabsf(found[i] - third - cases[c].expected[i]) < 1e-5f);
        st_sampler_reset(s);
        p = pick(s, logits, 0);
        assert_true(p.token == 0 && fabsf(p.top[0].logprob - p.top[3].logprob - 4.0f) < 1e-5f);
        st_sampler_free(s);
    }
    /* Without a limit everything counts. */
    o.penalty_window = -1;
    o.repetition_penalty = 4.0f;
    struct st_sampler *s = make(&o, 4);
    for (int i = 0; i < 1000; i++)
        assert_ok(st_sampler_accept(s, (int32_t[]){i ? 3 : 0}, 1, &err), &err);
    assert_int_equal(pick(s, logits, 0).token, 2);
    st_sampler_free(s);
}

static void tokens_that_are_taken_back_leave_no_trace(void **state)
{
    (void)state;
    enum { N = 7 };
    struct strata_error err;
    struct strata_sampling o;
    uint64_t random = 5;
    float logits[N];
    for (int i = 0; i < N; i++)
        logits[i] = (float)(i * 3 % N);
    strata_sampling_default(&o);
    o.repetition_penalty = 1.5f;
    o.frequency_penalty = 0.75f;
    o.logprobs = N;
    for (int window = -1; window < 9; window++) {
        o.penalty_window = window;
        struct st_sampler *s = make(&o, N), *plain = make(&o, N);
        for (int step = 0; step < 40; step++) {
            int32_t id = (int32_t)(next_random(&random) % N), more[5];
            size_t n = next_random(&random) % 6;
            for (size_t i = 0; i < n; i++)
                more[i] = (int32_t)(next_random(&random) % N);
            assert_ok(st_sampler_accept(s, &id, 1, &err), &err);
            assert_ok(st_sampler_accept(plain, &id, 1, &err), &err);
            assert_ok(st_sampler_accept(s, more, n, &err), &err);
            st_sampler_take_back(s, n);
            struct st_pick a = pick(s, logits, 0), b = pick(plain, logits, 0);
            assert_memory_equal(&a, &b, sizeof a);
        }
        st_sampler_free(s);
        st_sampler_free(plain);
    }
}

static void several_biases_of_a_token_are_added_in_their_order(void **state)
{
    (void)state;
    float logits[] = {1.0f, 0.0f, 0.5f};
    struct strata_logit_bias bias[] = {{2, 0x1p25f}, {0, 0x1p26f}, {2, -0x1p25f}, {0, -0x1p26f}, {2, 1.0f}};
    struct strata_sampling o;
    strata_sampling_default(&o);
    o.bias = bias;
    o.bias_count = 5;
    o.logprobs = 3;
    struct st_sampler *s = make(&o, 3);
    struct st_pick p = pick(s, logits, 0);
    /* 1 is lost in 2^26 and so is 0.5 in 2^25; the last one is added to what is left. */
    assert_true(p.token == 2 && fabsf(p.top[0].logprob - p.top[1].logprob - 1.0f) < 1e-5f);
    assert_true(p.top[1].token == 0 && p.top[2].token == 1 && p.top[1].logprob == p.top[2].logprob);
    st_sampler_free(s);
}

static void top_k_keeps_the_best_and_lower_ids_on_ties(void **state)
{
    (void)state;
    float logits[] = {1.0f, 2.0f, 1.0f, 2.0f, 1.0f, -3.0f};
    struct strata_sampling o = {.temperature = 100.0f, .top_k = 3, .top_p = 1.0f, .repetition_penalty = 1.0f};
    struct st_sampler *s = make(&o, 6);
    unsigned seen = 0;
    for (uint64_t i = 0; i < 500; i++)
        seen |= 1u << pick(s, logits, i).token;
    assert_int_equal(seen, 1 << 0 | 1 << 1 | 1 << 3);
    st_sampler_free(s);
    o.top_k = 1;
    for (uint64_t i = 0; i < 20; i++)
        assert_int_equal(once(&o, logits, 6, i), 1);
}

static void top_p_keeps_the_shortest_run_that_reaches_it(void **state)
{
    (void)state;
    /* Probabilities 1/2, 1/4, 1/8, 1/8. */
    float logits[] = {logf(2.0f), logf(8.0f), logf(4.0f), logf(2.0f)};
    static const struct {
        float top_p;
        unsigned kept;
    } cases[] = {{1e-9f, 2}, {0.49f, 2}, {0.51f, 6}, {0.74f, 6}, {0.76f, 7}, {0.9f, 15}, {1.0f, 15}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct strata_sampling o = {.temperature = 1.0f, .top_p = cases[c].top_p, .repetition_penalty = 1.0f};
        struct st_sampler *s = make(&o, 4);
        unsigned seen = 0;
        for (uint64_t i = 0; i < 500; i++)
            seen |= 1u << pick(s, logits, i).token;
        assert_int_equal(seen, cases[c].kept);
        st_sampler_free(s);
    }
}

static void min_p_drops_what_is_far_below_the_best(void **state)
{
    (void)state;
    float logits[] = {0.0f, logf(0.5f), logf(0.2f), logf(0.09f)};
    static const struct {
        float min_p;
        unsigned kept;
    } cases[] = {{0.0f, 15}, {0.1f, 7}, {0.3f, 3}, {1.0f, 1}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct strata_sampling o = {.temperature = 1.0f, .top_p = 1.0f, .min_p = cases[c].min_p, .repetition_penalty = 1.0f};
        struct st_sampler *s = make(&o, 4);
        unsigned seen = 0;
        for (uint64_t i = 0; i < 500; i++)
            seen |= 1u << pick(s, logits, i).token;
        assert_int_equal(seen, cases[c].kept);
        st_sampler_free(s);
    }
}

/* ---- everything together, evaluated plainly with a full sort ---- */

struct candidate {
    float logit;
    int32_t id;
    uint64_t weight;
};

static int best_first(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static int by_id(const void *a, const void *b)
{
    return ((const struct candidate *)a)->id < ((const struct candidate *)b)->id ? -1 : 1;
}

static int32_t plain_pick(const struct strata_sampling *o, const float *logits, size_t n, uint64_t position)
{
    struct candidate *c = calloc(n, sizeof *c);
    for (size_t i = 0; i < n; i++)
        c[i] = (struct candidate){logits[i], (int32_t)i, 0};
    qsort(c, n, sizeof *c, best_first);
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++)
        c[i].weight = (uint64_t)(st_expf((c[i].logit - c[0].logit) / o->temperature) * 0x1p40f);
    if (o->top_k && (size_t)o->top_k < n)
        n = (size_t)o->top_k;
    for (size_t i = 0; i < n; i++)
        total += c[i].weight;
    if (o->top_p < 1.0f) {
        unsigned __int128 target = (unsigned __int128)total * (uint64_t)(o->top_p * 0x1p24f) >> 24;
        uint64_t sum = 0;
        size_t kept = 0;
        while (kept < n && sum < (target ? target : 1))
            sum += c[kept++].weight;
        n = kept;
    }
    size_t kept = 0;
    total = 0;
    for (size_t i = 0; i < n; i++)
        if (c[i].weight >= (uint64_t)(o->min_p * 0x1p40f))
            c[kept++] = c[i];
    n = kept;
    qsort(c, n, sizeof *c, by_id);
    for (size_t i = 0; i < n; i++)
        total += c[i].weight;
    uint64_t at = (uint64_t)((unsigned __int128)st_sampler_random(o->seed, position) * total >> 64), sum = 0;
    int32_t token = -1;
    for (size_t i = 0; i < n && token < 0; i++) {
        sum += c[i].weight;
        if (sum > at)
            token = c[i].id;
    }
    free(c);
    return token;
}

static void all_steps_together_pick_what_a_full_sort_picks(void **state)
{
    (void)state;
    uint64_t random = 7;
    float logits[3000];
    for (int round = 0; round < 400; round++) {
        size_t n = 1 + next_random(&random) % 3000;
        bool coarse = round % 3 == 0; /* many ties */
        for (size_t i = 0; i < n; i++) {
            float x = (float)(next_random(&random) % 20000) / 1000.0f - 10.0f;
            logits[i] = coarse ? floorf(x / 4.0f) : x;
            if (next_random(&random) % 16 == 0)
                logits[i] = -INFINITY;
        }
        logits[next_random(&random) % n] = 3.0f;
        static const float temperatures[] = {0.01f, 0.7f, 1.0f, 3.0f}, top_ps[] = {1.0f, 0.95f, 0.5f, 0.01f},
                           min_ps[] = {0.0f, 0.05f, 0.5f, 0.9999999f};
        static const int top_ks[] = {0, 1, 40, 5000};
        struct strata_sampling o = {
            .temperature = temperatures[next_random(&random) % 4],
            .top_k = top_ks[next_random(&random) % 4],
            .top_p = top_ps[next_random(&random) % 4],
            .min_p = min_ps[next_random(&random) % 4],
            .repetition_penalty = 1.0f,
            .seed = next_random(&random),
        };
        struct st_sampler *s = make(&o, n);
        for (uint64_t position = 0; position < 4; position++)
            assert_int_equal(pick(s, logits, position).token, plain_pick(&o, logits, n, position));
        st_sampler_free(s);
    }
}

static void a_draw_depends_on_seed_and_position_only(void **state)
{
    (void)state;
    float logits[64];
    for (int i = 0; i < 64; i++)
        logits[i] = (float)(i % 7) / 3.0f;
    struct strata_sampling o = {.temperature = 1.0f, .top_p = 1.0f, .repetition_penalty = 1.0f, .seed = 99};
    struct st_sampler *a = make(&o, 64), *b = make(&o, 64);
    int32_t forward[50];
    int different = 0;
    for (uint64_t i = 0; i < 50; i++)
        forward[i] = pick(a, logits, i).token;
    for (uint64_t i = 50; i-- > 0;)
        assert_int_equal(pick(b, logits, i).token, forward[i]);
    o.seed = 100;
    struct st_sampler *c = make(&o, 64);
    for (uint64_t i = 0; i < 50; i++)
        different += pick(c, logits, i).token != forward[i];
    assert_true(different > 25);
    st_sampler_free(a);
    st_sampler_free(b);
    st_sampler_free(c);
}

static void draws_follow_the_distribution(void **state)
{
    (void)state;
    enum { N = 12, DRAWS = 60000 };
    float logits[N];
    double weight[N], total = 0;
    int found[N] = {0};
    struct strata_sampling o = {.temperature = 1.5f, .top_p = 1.0f, .repetition_penalty = 1.0f, .seed = 20261130};
    for (int i = 0; i < N; i++) {
        logits[i] = (float)((i * 5) % N) * 0.4f;
        total += weight[i] = exp((double)logits[i] / 1.5);
    }
    struct st_sampler *s = make(&o, N);
    for (uint64_t i = 0; i < DRAWS; i++)
        found[pick(s, logits, i).token]++;
    st_sampler_free(s);
    double chi = 0;
    for (int i = 0; i < N; i++) {
        double expected = DRAWS * weight[i] / total;
        chi += (found[i] - expected) * (found[i] - expected) / expected;
    }
    assert_true(chi < 40.0); /* 11 degrees of freedom: exceeded by a right sampler with probability 4e-5 */
}

static void log_probabilities_are_those_of_the_whole_softmax(void **state)
{
    (void)state;
    float logits[] = {0.5f, -1.0f, 2.0f, 2.0f, -INFINITY, 0.0f};
    struct strata_sampling o = {.temperature = 0.3f, .top_k = 2, .top_p = 1.0f, .repetition_penalty = 1.0f, .logprobs = 20,
                                .seed = 5};
    double total = 0;
    for (int i = 0; i < 6; i++)
        total += exp((double)logits[i]);
    struct st_sampler *s = make(&o, 6);
    for (uint64_t position = 0; position < 50; position++) {
        struct st_pick p = pick(s, logits, position);
        assert_true(fabs((double)p.logprob - ((double)logits[p.token] - log(total))) < 1e-6);
        assert_int_equal(p.top_count, 5);
        static const int32_t order[] = {2, 3, 0, 5, 1};
        for (int i = 0; i < 5; i++) {
            assert_int_equal(p.top[i].token, order[i]);
            assert_true(fabs((double)p.top[i].logprob - ((double)logits[order[i]] - log(total))) < 1e-6);
        }
    }
    st_sampler_free(s);
    o.logprobs = 2;
    o.temperature = 0.0f;
    s = make(&o, 6);
    struct st_pick p = pick(s, logits, 0);
    assert_true(p.top_count == 2 && p.top[0].token == 2 && p.top[1].token == 3 && p.token == 2);
    assert_true(p.logprob == p.top[0].logprob);
    st_sampler_free(s);
}

static void broken_logits_are_an_error_that_names_the_token(void **state)
{
    (void)state;
    struct strata_sampling o;
    strata_sampling_default(&o);
    struct strata_error err;
    struct st_pick p;
    struct st_sampler *s = make(&o, 3);
    float nan_logits[] = {0.0f, NAN, 1.0f}, inf_logits[] = {0.0f, 1.0f, INFINITY},
          none[] = {-INFINITY, -INFINITY, -INFINITY};
    assert_int_equal(st_sampler_pick(s, nan_logits, 0, &p, &err), STRATA_E_MODEL);
    assert_non_null(strstr(err.text, "token 1"));
    assert_int_equal(st_sampler_pick(s, inf_logits, 0, &p, &err), STRATA_E_MODEL);
    assert_non_null(strstr(err.text, "token 2"));
    assert_int_equal(st_sampler_pick(s, none, 0, &p, &err), STRATA_E_MODEL);
    st_sampler_free(s);
}

static void options_out_of_range_are_refused(void **state)
{
    (void)state;
    struct strata_sampling good, o;
    strata_sampling_default(&good);
    struct strata_error err;
    struct st_sampler *s = NULL;
#define REFUSED(field, value)                                                                                          \
    o = good;                                                                                                          \
    o.field = value;                                                                                                   \
    assert_int_equal(st_sampler_create(&o, 10, &s, &err), STRATA_E_ARGUMENT)
    REFUSED(temperature, -0.1f);
    REFUSED(temperature, NAN);
    REFUSED(temperature, INFINITY);
    REFUSED(top_k, -1);
    REFUSED(top_p, 0.0f);
    REFUSED(top_p, 1.1f);
    REFUSED(top_p, NAN);
    REFUSED(min_p, -0.1f);
    REFUSED(min_p, 1.1f);
    REFUSED(repetition_penalty, 0.0f);
    REFUSED(repetition_penalty, NAN);
    REFUSED(frequency_penalty, NAN);
    REFUSED(presence_penalty, INFINITY);
    REFUSED(penalty_window, -2);
    REFUSED(logprobs, 21);
    REFUSED(logprobs, -1);
    struct strata_logit_bias bias = {10, 1.0f};
    o = good;
    o.bias = &bias;
    o.bias_count = 1;
    assert_int_equal(st_sampler_create(&o, 10, &s, &err), STRATA_E_ARGUMENT);
    bias = (struct strata_logit_bias){3, NAN};
    assert_int_equal(st_sampler_create(&o, 10, &s, &err), STRATA_E_ARGUMENT);
    assert_int_equal(st_sampler_create(&good, 0, &s, &err), STRATA_E_ARGUMENT);
    s = make(&good, 10);
    assert_int_equal(st_sampler_accept(s, (int32_t[]){1, 10}, 2, &err), STRATA_E_ARGUMENT);
    assert_int_equal(st_sampler_accept(s, (int32_t[]){-1}, 1, &err), STRATA_E_ARGUMENT);
    st_sampler_free(s);
}

/* ---- constraints ---- */

static enum strata_result constraint(const char *grammar, const struct st_trie *trie, struct strata_constraint **out,
                                     struct strata_error *err)
{
    struct strata_constraint_options o = {.grammar = grammar};
    return st_constraint_create(&o, NULL, trie, out, err);
}

static void picks_follow_a_constraint_and_its_tokens_can_be_taken_back(void **state)
{
    (void)state;
    /* Four tokens: a, b, c, end. c is the best by far and never allowed. */
    const struct st_bytes tokens[] = {{"a", 1}, {"b", 1}, {"c", 1}, {"<end>", 5}};
    const int32_t types[] = {ST_TOKEN_NORMAL, ST_TOKEN_NORMAL, ST_TOKEN_NORMAL, ST_TOKEN_CONTROL};
    struct st_vocab vocab = {tokens, types, 4, NULL, 0, "gpt2", -1, 3, -1, -1, false};
    const float logits[6] = {1.0f, 2.0f, 9.0f, 3.0f, 9.0f, 9.0f}; /* the model has two ids more than the tokenizer */
    struct strata_error err;
    struct st_tokenizer *t;
    struct st_trie *trie;
    struct strata_constraint *c;
    assert_ok(st_tokenizer_create(&vocab, &t, &err), &err);
    assert_ok(st_trie_create(t, &trie, &err), &err);
    assert_ok(constraint("root ::= \"ab\" [ab]", trie, &c, &err), &err);
    for (int sampled = 0; sampled < 2; sampled++) {
        struct strata_sampling o;
        struct st_sampler *s;
        struct st_pick pick;
        const int32_t want[] = {0, 1, -1, 3};
        strata_sampling_default(&o);
        o.temperature = sampled ? 1.0f : 0.0f;
        o.logprobs = 3;
        assert_ok(st_sampler_create(&o, 6, &s, &err), &err);
        assert_ok(st_sampler_accept(s, (const int32_t[]){2, 2}, 2, &err), &err); /* a prompt */
        assert_ok(st_sampler_constrain(s, c, &err), &err);
        for (uint64_t i = 0; i < 4; i++) {
            assert_ok(st_sampler_pick(s, logits, i, &pick, &err), &err);
            assert_true(want[i] < 0 ? pick.token == 0 || pick.token == 1 : pick.token == want[i]);
            assert_int_equal(pick.top_count, want[i] < 0 ? 2 : 1); /* what is not allowed has no probability */
            /* A guess that is wrong changes nothing once it is taken back. */
            assert_ok(st_sampler_accept(s, (const int32_t[]){2, 0}, 2, &err), &err);
            st_sampler_take_back(s, 2);
            assert_ok(st_sampler_accept(s, &pick.token, 1, &err), &err);
        }
        st_sampler_free(s);
    }
    strata_constraint_free(c);
    st_trie_free(trie);
    st_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generator_gives_the_published_words),
        cmocka_unit_test(greedy_takes_the_largest_and_the_lowest_id_on_ties),
        cmocka_unit_test(logits_of_the_caller_stay_untouched),
        cmocka_unit_test(bias_is_added_and_minus_infinity_bans),
        cmocka_unit_test(penalties_follow_their_formulas_within_the_window),
        cmocka_unit_test(tokens_that_are_taken_back_leave_no_trace),
        cmocka_unit_test(several_biases_of_a_token_are_added_in_their_order),
        cmocka_unit_test(top_k_keeps_the_best_and_lower_ids_on_ties),
        cmocka_unit_test(top_p_keeps_the_shortest_run_that_reaches_it),
        cmocka_unit_test(min_p_drops_what_is_far_below_the_best),
        cmocka_unit_test(all_steps_together_pick_what_a_full_sort_picks),
        cmocka_unit_test(a_draw_depends_on_seed_and_position_only),
        cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(log_probabilities_are_those_of_the_whole_softmax),
        cmocka_unit_test(broken_logits_are_an_error_that_names_the_token),
        cmocka_unit_test(options_out_of_range_are_refused),
        cmocka_unit_test(picks_follow_a_constraint_and_its_tokens_can_be_taken_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
