/* Router and experts against a plain evaluation of one row and one expert at a time, bit for bit: the choice, its
 * order, the groups, and the order of the sums. */
#include "test.h"

#include <math.h>
#include <unistd.h>

#include "kernel/exact_math.h"
#include "kernel_fixture.h"

enum { HIDDEN = 256, WIDTH = 64, SHARED = 96, EXPERTS = 11, USED = 4, ROWS = 70 };

struct weights {
    struct st_weight router, shared_router, gate, up, down, shared_gate, shared_up, shared_down;
    void *memory[8];
    float scale[3][EXPERTS]; /* of gate, up and down, where there are factors */
};

static void weights_new(struct weights *w, bool fp32)
{
    uint64_t seed = 5;
    w->router = random_weight(&seed, ST_TYPE_F32, HIDDEN, EXPERTS, 1, 0.3f, true, &w->memory[0]);
    w->shared_router = random_weight(&seed, ST_TYPE_BF16, HIDDEN, 1, 1, 0.3f, fp32, &w->memory[1]);
    w->gate = random_weight(&seed, ST_TYPE_Q4_K, HIDDEN, WIDTH, EXPERTS, 0.3f, fp32, &w->memory[2]);
    w->up = random_weight(&seed, ST_TYPE_Q8_0, HIDDEN, WIDTH, EXPERTS, 0.3f, fp32, &w->memory[3]);
    w->down = random_weight(&seed, ST_TYPE_Q2_0, WIDTH, HIDDEN, EXPERTS, 0.3f, fp32, &w->memory[4]);
    w->shared_gate = random_weight(&seed, ST_TYPE_IQ3_XXS, HIDDEN, SHARED, 1, 0.3f, fp32, &w->memory[5]);
    w->shared_up = random_weight(&seed, ST_TYPE_MXFP4, HIDDEN, SHARED, 1, 0.3f, fp32, &w->memory[6]);
    w->shared_down = random_weight(&seed, ST_TYPE_Q5_1, SHARED, HIDDEN, 1, 0.3f, fp32, &w->memory[7]);
    for (int i = 0; i < 3; i++)
        for (int e = 0; e < EXPERTS; e++)
            w->scale[i][e] = 1.0f + random_float(&seed, 0.5f);
}

static void weights_free(struct weights *w)
{
    for (int i = 0; i < 8; i++)
        free(w->memory[i]);
}

struct result {
    int32_t expert[ROWS][USED], first[EXPERTS + 1], entry[ROWS * USED], where[ROWS * USED];
    float weight[ROWS][USED], shared[ROWS], y[ROWS][HIDDEN];
};

static void run(const struct weights *w, const float *m, int32_t n, int threads, struct result *out)
{
    struct st_act_buffer acts, hacts;
    void *a = aligned_alloc(64, st_act_buffer_bytes(ROWS, HIDDEN, st_act_bytes)),
         *h = aligned_alloc(64, st_act_buffer_bytes(ROWS * (USED + 1), SHARED, st_act_bytes));
    float *logits = malloc(ROWS * EXPERTS * sizeof *logits), *hv = malloc(ROWS * (USED + 1) * SHARED * sizeof *hv),
          *o = malloc(ROWS * (USED + 1) * HIDDEN * sizeof *o);
    st_act_buffer_place(&acts, a, ROWS, HIDDEN, st_act_bytes);
    st_act_buffer_place(&hacts, h, ROWS * (USED + 1), SHARED, st_act_bytes);
    struct st_routing t = {out->expert[0], out->weight[0], out->shared, out->first, out->entry, out->where};
    struct st_command route = {.op = ST_OP_route,
                               .u.route = {.n = &n,
                                           .m = m,
                                           .router = &w->router,
                                           .shared_gate = &w->shared_router,
                                           .logits = logits,
                                           .to = &t,
                                           .experts = EXPERTS,
                                           .used = USED,
                                           .hidden = HIDDEN,
                                           .acts = &acts}};
    struct st_command experts = {.op = ST_OP_experts,
                                 .u.experts = {.n = &n,
                                               .m = m,
                                               .routing = &t,
                                               .gate = &w->gate,
                                               .up = &w->up,
                                               .down = &w->down,
                                               .shared_gate = &w->shared_gate,
                                               .shared_up = &w->shared_up,
                                               .shared_down = &w->shared_down,
                                               .h = hv,
                                               .o = o,
                                               .y = out->y[0],
                                               .experts = EXPERTS,
                                               .used = USED,
                                               .hidden = HIDDEN,
                                               .width = WIDTH,
                                               .shared_width = SHARED,
                                               .acts = &acts,
                                               .hacts = &hacts}};
    run_command(&route, threads, 0);
    run_command(&experts, threads, 0);
    free(a);
    free(h);
    free(logits);
    free(hv);
    free(o);
}

/* y = w x for one row of values, by the type's own reference dot product. */
static void plain_product(const struct st_weight *w, uint32_t expert, const float *x, float *y)
{
    float decoded[HIDDEN];
    struct st_act_row row;
    void *memory = w->act == ST_ACT_F32 ? NULL : aligned_alloc(64, st_act_bytes(w->act, w->cols));
    st_act_bind(w->act, w->cols, memory, &row);
    st_act_quantize(w->act, x, w->cols, &row);
    for (uint32_t o = 0; o < w->rows; o++) {
        const uint8_t *p = (const uint8_t *)w->data + expert * w->expert_bytes + o * w->row_bytes;
        st_type_info(w->type)->decode(p, decoded, w->cols);
        y[o] = w->act == ST_ACT_F32 ? st_dot_f32(decoded, x, w->cols) : st_type_info(w->type)->dot(p, &row, w->cols);
        if (w->scale)
            y[o] *= w->scale[w->scale_count > 1 ? expert : 0];
    }
    free(memory);
}

static void plain_expert(const struct st_weight *gate, const struct st_weight *up, const struct st_weight *down,
                         uint32_t expert, const float *m, float *y)
{
    float g[SHARED], u[SHARED];
    plain_product(gate, expert, m, g);
    plain_product(up, expert, m, u);
    for (uint32_t i = 0; i < gate->rows; i++)
        g[i] = st_siluf(g[i]) * u[i];
    plain_product(down, expert, g, y);
}

/* One row: logits, the best first with lower index first on ties, softmax over them, then expert after expert. */
static void plain_row(const struct weights *w, const float *m, int32_t *expert, float *weight, float *shared, float *y)
{
    float logit[EXPERTS] = {0}, o[HIDDEN], sum = 0;
    bool taken[EXPERTS] = {false};
    plain_product(&w->router, 0, m, logit);
    for (int i = 0; i < USED; i++) {
        int best = -1;
        for (int e = 0; e < EXPERTS; e++)
            if (!taken[e] && (best < 0 || logit[e] > logit[best]))
                best = e;
        taken[best] = true;
        expert[i] = best;
        weight[i] = st_expf(logit[best] - logit[expert[0]]);
        sum += weight[i];
    }
    for (int i = 0; i < USED; i++)
        weight[i] /= sum;
    plain_product(&w->shared_router, 0, m, shared);
    *shared = st_sigmoidf(*shared);
    memset(y, 0, HIDDEN * sizeof *y);
    for (int i = 0; i < USED; i++) {
        plain_expert(&w->gate, &w->up, &w->down, (uint32_t)expert[i], m, o);
        for (int k = 0; k < HIDDEN; k++)
            y[k] = fmaf(weight[i], o[k], y[k]);
    }
    plain_expert(&w->shared_gate, &w->shared_up, &w->shared_down, 0, m, o);
    for (int k = 0; k < HIDDEN; k++)
        y[k] = fmaf(*shared, o[k], y[k]);
}

static void check_groups(const struct result *r, int32_t n)
{
    assert_int_equal(r->first[0], 0);
    assert_int_equal(r->first[EXPERTS], n * USED);
    for (int e = 0; e < EXPERTS; e++)
        for (int32_t i = r->first[e]; i < r->first[e + 1]; i++) {
            int32_t entry = r->entry[i];
            assert_int_equal(r->expert[entry / USED][entry % USED], e);
            assert_int_equal(r->where[entry], i);
            if (i > r->first[e])
                assert_true(entry / USED > r->entry[i - 1] / USED); /* a row chooses an expert once; rows ascend */
        }
}

static void grouped_experts_equal_one_row_and_expert_at_a_time(void **state)
{
    (void)state;
    uint64_t seed = 9;
    static const int32_t counts[] = {1, 2, 8, 31, 33, ROWS};
    struct result *got = calloc(1, sizeof *got), *want = calloc(1, sizeof *want);
    float *m = random_floats(&seed, ROWS * HIDDEN, 1.5f);
    for (int form = 0; form < 3; form++) {
        struct weights w = {0};
        weights_new(&w, form == 1);
        if (form == 2) { /* factors of the products: one per expert, one for all */
            w.gate.scale = w.scale[0];
            w.down.scale = w.scale[2];
            w.gate.scale_count = w.down.scale_count = EXPERTS;
            w.up.scale = w.scale[1];
            w.up.scale_count = 1;
        }
        for (int r = 0; r < ROWS; r++)
            plain_row(&w, m + r * HIDDEN, want->expert[r], want->weight[r], &want->shared[r], want->y[r]);
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
            for (int threads = 1; threads <= 3; threads++) {
                size_t n = (size_t)counts[c];
                run(&w, m, counts[c], threads, got);
                assert_memory_equal(got->expert, want->expert, n * sizeof got->expert[0]);
                assert_memory_equal(got->weight, want->weight, n * sizeof got->weight[0]);
                assert_memory_equal(got->shared, want->shared, n * sizeof got->shared[0]);
                assert_memory_equal(got->y, want->y, n * sizeof got->y[0]);
                check_groups(got, counts[c]);
            }
        weights_free(&w);
    }
    free(m);
    free(got);
    free(want);
}

struct some_run {
    struct st_kernels kernels;
    struct st_experts a;
    bool late;
};

static void some_share(void *arg, struct st_worker *w)
{
    const struct some_run *run = arg;
    if (run->late && w->index == w->count - 1)
        usleep(2000);
    run->kernels.experts(&run->kernels, &run->a, w);
}

/* Outputs of the experts whose bit is set, for all rows that chose them, into o in the order of entries. */
static int32_t run_some(const struct weights *w, const float *m, int32_t n, const struct result *all, unsigned which,
                        int threads, bool late, int32_t *entry, float *o)
{
    struct st_act_buffer acts, hacts;
    struct strata_error err;
    struct st_team *team;
    void *a = aligned_alloc(64, st_act_buffer_bytes(ROWS, HIDDEN, st_act_bytes)),
         *h = aligned_alloc(64, st_act_buffer_bytes(ROWS * USED, WIDTH, st_act_bytes));
    float *hv = malloc(ROWS * USED * WIDTH * sizeof *hv);
    int32_t first[EXPERTS + 1], count = 0;
    struct st_experts_taken taken[EXPERTS];
    struct st_experts_work work = {.taken = taken};
    for (uint32_t e = 0; e < EXPERTS; e++) {
        first[e] = count;
        for (int32_t i = all->first[e]; i < all->first[e + 1] && which >> e & 1; i++)
            entry[count++] = all->entry[i];
        if (count > first[e])
            taken[work.count++] = (struct st_experts_taken){.expert = e};
    }
    first[EXPERTS] = count;
    st_act_buffer_place(&acts, a, ROWS, HIDDEN, st_act_bytes);
    st_act_buffer_place(&hacts, h, ROWS * USED, WIDTH, st_act_bytes);
    const struct st_routing routing = {.first = first, .entry = entry};
    struct some_run run = {.late = late,
                           .a = {.n = &n,
                                 .m = m,
                                 .routing = &routing,
                                 .gate = &w->gate,
                                 .up = &w->up,
                                 .down = &w->down,
                                 .h = hv,
                                 .o = o,
                                 .experts = EXPERTS,
                                 .used = USED,
                                 .hidden = HIDDEN,
                                 .width = WIDTH,
                                 .shared_width = WIDTH,
                                 .acts = &acts,
                                 .hacts = &hacts,
                                 .work = &work}};
    const struct st_worker alone = {.count = 1};
    assert_ok(st_kernels_choose(NULL, &run.kernels, &err), &err);
    assert_ok(st_team_create(threads, 0, &team, &err), &err);
    st_act_prepare(&run.kernels, &acts, st_act_mask(&w->gate) | st_act_mask(&w->up), m, HIDDEN, (size_t)n, HIDDEN,
                   &alone);
    st_team_run(team, some_share, &run);
    st_team_free(team);
    free(a);
    free(h);
    free(hv);
    return count;
}

static void experts_that_are_taken_piece_by_piece_have_the_same_bits(void **state)
{
    (void)state;
    uint64_t seed = 9;
    static const int32_t counts[] = {1, 8, ROWS};
    static const unsigned sets[] = {0, 1u << 3, 0x2a5, 0x7ff};
    struct result *all = calloc(1, sizeof *all);
    float *m = random_floats(&seed, ROWS * HIDDEN, 1.5f), *o = malloc(ROWS * USED * HIDDEN * sizeof *o), want[HIDDEN];
    int32_t entry[ROWS * USED];
    for (int fp32 = 0; fp32 < 2; fp32++) {
        struct weights w = {0};
        weights_new(&w, fp32);
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
            for (size_t k = 0; k < sizeof sets / sizeof *sets; k++)
                for (int threads = 1; threads <= 4; threads++) {
                    run(&w, m, counts[c], 1, all);
                    int32_t n = run_some(&w, m, counts[c], all, sets[k], threads, threads == 4, entry, o);
                    for (int32_t i = 0; i < n; i++) {
                        int32_t row = entry[i] / USED;
                        plain_expert(&w.gate, &w.up, &w.down, (uint32_t)all->expert[row][entry[i] % USED],
                                     m + row * HIDDEN, want);
                        assert_memory_equal(o + (size_t)i * HIDDEN, want, sizeof want);
                    }
                }
        weights_free(&w);
    }
    free(all);
    free(m);
    free(o);
}

/* Logits that the test sets: an input with a single 1 picks a column of the router. */
static void route_logits(const float logit[EXPERTS], struct result *out)
{
    struct weights w = {0};
    weights_new(&w, false);
    float m[HIDDEN] = {1}, *router = w.memory[0];
    for (int e = 0; e < EXPERTS; e++) {
        memset(router + e * HIDDEN, 0, HIDDEN * sizeof *router);
        router[e * HIDDEN] = logit[e];
    }
    run(&w, m, 1, 2, out);
    weights_free(&w);
}

static void ties_go_to_the_lower_expert(void **state)
{
    (void)state;
    struct result *r = calloc(1, sizeof *r);
    route_logits((const float[EXPERTS]){2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2}, r);
    for (int i = 0; i < USED; i++) {
        assert_int_equal(r->expert[0][i], i);
        assert_true(r->weight[0][i] == 0.25f);
    }
    route_logits((const float[EXPERTS]){-1, 3, 0, 3, -1, 0, 3, 5, 0, 0, -1}, r);
    const int32_t want[USED] = {7, 1, 3, 6};
    assert_memory_equal(r->expert[0], want, sizeof want);
    /* A tie across the last place; zeros of both signs are equal. */
    route_logits((const float[EXPERTS]){-2, -1, 0.0f, -0.0f, 0.0f, -0.0f, -3, 1, -4, -5, -6}, r);
    const int32_t zeros[USED] = {7, 2, 3, 4};
    assert_memory_equal(r->expert[0], zeros, sizeof zeros);
    free(r);
}

static void huge_and_broken_logits_choose_distinct_experts(void **state)
{
    (void)state;
    struct result *r = calloc(1, sizeof *r);
    static const float cases[][EXPERTS] = {
        {3e38f, -3e38f, 1, 2, 3, 0, 0, 0, 0, 0, 0},
        {NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN},
        {NAN, 1, NAN, 2, NAN, NAN, NAN, NAN, NAN, NAN, NAN},
        {INFINITY, INFINITY, -INFINITY, 0, 0, 0, 0, 0, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool taken[EXPERTS] = {false};
        route_logits(cases[i], r);
        for (int k = 0; k < USED; k++) {
            assert_in_range(r->expert[0][k], 0, EXPERTS - 1);
            assert_false(taken[r->expert[0][k]]);
            taken[r->expert[0][k]] = true;
        }
        check_groups(r, 1);
    }
    route_logits(cases[0], r);
    const int32_t want[USED] = {0, 4, 3, 2};
    assert_memory_equal(r->expert[0], want, sizeof want);
    assert_true(r->weight[0][0] == 1.0f && r->weight[0][1] == 0.0f);
    free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grouped_experts_equal_one_row_and_expert_at_a_time),
        cmocka_unit_test(experts_that_are_taken_piece_by_piece_have_the_same_bits),
        cmocka_unit_test(ties_go_to_the_lower_expert),
        cmocka_unit_test(huge_and_broken_logits_choose_distinct_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
