/* Families that keep state: the chunked delta network against its steps, and the choice of index blocks against a full
 * sort. */
#include "test.h"

#include <math.h>

#include "kernel_fixture.h"

/* ---- delta network ---- */

enum { KEYS = 2, VALUES = 4, DK = 32, DV = 32, TAPS = 4, CHANNELS = 2 * KEYS * DK + VALUES * DV, LONGEST = 200 };

struct delta {
    float *u, *z, *b, *a;
    float conv[TAPS * CHANNELS], ssm_a[VALUES], dt_bias[VALUES], gamma[DV];
};

struct delta_out {
    float conv_state[(TAPS - 1) * CHANNELS], state[VALUES * DK * DV], o[LONGEST][VALUES * DV], c[LONGEST][CHANNELS];
};

static void delta_new(struct delta *d, float decay)
{
    uint64_t seed = 21;
    d->u = random_floats(&seed, LONGEST * CHANNELS, 2);
    d->z = random_floats(&seed, LONGEST * VALUES * DV, 2);
    d->b = random_floats(&seed, LONGEST * VALUES, 2);
    d->a = random_floats(&seed, LONGEST * VALUES, 2);
    for (int i = 0; i < TAPS * CHANNELS; i++)
        d->conv[i] = random_float(&seed, 0.7f);
    for (int j = 0; j < VALUES; j++) {
        d->ssm_a[j] = -decay * (float)(j + 1);
        d->dt_bias[j] = random_float(&seed, 1);
    }
    for (int i = 0; i < DV; i++)
        d->gamma[i] = 1 + random_float(&seed, 0.3f);
}

static void delta_free(struct delta *d)
{
    free(d->u);
    free(d->z);
    free(d->b);
    free(d->a);
}

/* Tokens [0, n) in passes of step rows. */
static void delta_run(const struct delta *d, int n, int step, int threads, struct delta_out *out)
{
    struct fixture_rows *f = malloc(sizeof *f);
    memset(out, 0, sizeof *out);
    for (int at = 0; at < n; at += step) {
        rows_clear(f);
        rows_span(f, 0, at, n - at < step ? n - at : step);
        struct st_command c = {.op = ST_OP_gdn,
                               .u.gdn = {.rows = &f->rows,
                                         .u = d->u + at * CHANNELS,
                                         .z = d->z + at * VALUES * DV,
                                         .b = d->b + at * VALUES,
                                         .a = d->a + at * VALUES,
                                         .conv = d->conv,
                                         .ssm_a = d->ssm_a,
                                         .dt_bias = d->dt_bias,
                                         .gamma = d->gamma,
                                         .conv_state = out->conv_state,
                                         .state = out->state,
                                         .c = out->c[at],
                                         .o = out->o[at],
                                         .key_heads = KEYS,
                                         .value_heads = VALUES,
                                         .key_dim = DK,
                                         .value_dim = DV,
                                         .taps = TAPS,
                                         .channels = CHANNELS,
                                         .eps = 1e-6f}};
        run_command(&c, threads, (2 * DK + DV) * ST_GDN_CHUNK * sizeof(float));
    }
    free(f);
}

static float farthest(const float *a, const float *b, size_t n)
{
    float most = 0;
    for (size_t i = 0; i < n; i++)
        most = fabsf(a[i] - b[i]) <= most ? most : fabsf(a[i] - b[i]); /* keeps a NaN */
    return most;
}

static void chunks_of_the_delta_network_equal_its_steps(void **state)
{
    (void)state;
    static const int lengths[] = {9, 63, 64, 65, 130, LONGEST}, steps[] = {9, 16, 37, 64, 65, LONGEST};
    static const float decays[] = {1e-4f, 0.1f, 30};
    struct delta_out *slow = malloc(sizeof *slow), *fast = malloc(sizeof *fast);
    for (size_t k = 0; k < sizeof decays / sizeof *decays; k++) {
        struct delta d;
        delta_new(&d, decays[k]);
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
            int n = lengths[l];
            delta_run(&d, n, 1, 1, slow);
            for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
                delta_run(&d, n, steps[s], 1 + (int)s % 3, fast);
                float outputs = farthest(fast->o[0], slow->o[0], (size_t)n * VALUES * DV),
                      states = farthest(fast->state, slow->state, VALUES * DK * DV);
                if (!(outputs <= 1e-5f && states <= 1e-5f))
                    fail_msg("%d tokens by %d, decay %g: outputs differ by %g, state by %g", n, steps[s],
                             (double)decays[k], (double)outputs, (double)states);
                /* The convolution is the same in both forms. */
                assert_memory_equal(fast->c, slow->c, (size_t)n * sizeof slow->c[0]);
                assert_memory_equal(fast->conv_state, slow->conv_state, sizeof slow->conv_state);
            }
        }
        delta_free(&d);
    }
    free(slow);
    free(fast);
}

/* ---- choice of blocks ---- */

enum { RATIO = ONE_QUERY_RATIO, BLOCKS = 700, CONTEXT = RATIO * BLOCKS };

static int by_rank(const void *a, const void *b)
{
    const float *x = a, *y = b; /* score, block */
    return x[0] > y[0] ? -1 : x[0] < y[0] ? 1 : x[1] < y[1] ? -1 : 1;
}

/* Chooses among the first blocks pooled keys (x, 0) and checks the list against a full sort. */
static void check_choice(const float *x, int blocks, int keep, int tail)
{
    struct one_query *q = malloc(sizeof *q);
    one_query_new(q, CONTEXT, (uint32_t)keep * RATIO);
    for (int b = 0; b < blocks; b++)
        q->pooled[b * ONE_QUERY_DIM] = x[b];
    one_query_run(q, blocks * RATIO + tail - 1);
    const uint32_t *chosen = q->chosen;
    float(*rank)[2] = malloc((size_t)blocks * sizeof *rank);
    for (int b = 0; b < blocks; b++) {
        rank[b][0] = fmaxf(0, q->iq[0] * x[b]);
        rank[b][1] = (float)b;
    }
    qsort(rank, (size_t)blocks, sizeof *rank, by_rank);
    bool *taken = calloc((size_t)blocks, sizeof *taken);
    for (int i = 0; i < keep; i++)
        taken[(int)rank[i][1]] = true;
    assert_int_equal(q->count, keep * RATIO + tail);
    int at = 0;
    for (int b = 0; b < blocks; b++)
        for (int i = 0; taken[b] && i < RATIO; i++)
            assert_int_equal(chosen[at++], b * RATIO + i);
    for (int i = 0; i < tail; i++)
        assert_int_equal(chosen[at++], blocks * RATIO + i);
    free(rank);
    free(taken);
    one_query_free(q);
    free(q);
}

static void chosen_blocks_equal_a_full_sort(void **state)
{
    (void)state;
    static const int sizes[][2] = {{2, 1},   {3, 1},   {3, 2},     {5, 4},           {17, 3},
                                   {64, 63}, {100, 1}, {513, 512}, {BLOCKS - 1, 512}};
    uint64_t seed = 31;
    float x[BLOCKS];
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int n = sizes[s][0], keep = sizes[s][1];
        for (int form = 0; form < 9; form++) {
            for (int b = 0; b < n; b++) {
                float r = random_float(&seed, 1);
                switch (form) {
                case 0: x[b] = r; break;                                /* about half of them negative: score 0 */
                case 1: x[b] = 1; break;                                /* all equal */
                case 2: x[b] = 0; break;                                /* zeros */
                case 3: x[b] = -1 - fabsf(r); break;                    /* all cut off to zero */
                case 4: x[b] = (float)b; break;                         /* ascending */
                case 5: x[b] = (float)(n - b); break;                   /* descending */
                case 6: x[b] = (float)(b < n / 2 ? b : n - b); break;   /* up and down, in pairs of ties */
                case 7: x[b] = (float)(b % 3); break;                   /* many ties of three values */
                default: x[b] = b == n / 2 ? 1e30f : r * 1e-30f; break; /* one far above tiny ones */
                }
            }
            check_choice(x, n, keep, 1 + form % 3);
        }
    }
    for (int i = 0; i < 300; i++) { /* random sizes, random ties */
        int n = 2 + (int)(random_bits(&seed) % 60), keep = 1 + (int)(random_bits(&seed) % (uint64_t)(n - 1));
        int values = 1 + (int)(random_bits(&seed) % 12);
        for (int b = 0; b < n; b++)
            x[b] = (float)(random_bits(&seed) % (uint64_t)values);
        check_choice(x, n, keep, 1 + i % 3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_of_the_delta_network_equal_its_steps),
        cmocka_unit_test(chosen_blocks_equal_a_full_sort),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
