/* The model's reference vectors (tests/unit/data/reference_vectors.txt): n-gram rows, rotation, the delta recurrence in
 * both forms, the gated residual, the n-gram gate and the counts of the block index. */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "base/file.h"
#include "format/gguf_write.h"
#include "kernel_fixture.h"
#include "model/qwen4exp.h"

static char *vectors;

/* The text after the line that begins with a title. */
static const char *part(const char *title)
{
    const char *p = strstr(vectors, title), *end = p ? strchr(p, '\n') : NULL;
    if (!end)
        fail_msg("no part '%s'", title);
    return end + 1;
}

/* Next number, over any separators that are no part of one. */
static double number(const char **p)
{
    *p += strcspn(*p, "-0123456789");
    char *end;
    double v = strtod(*p, &end);
    assert_true(end != *p);
    *p = end;
    return v;
}

static uint64_t whole(const char **p)
{
    *p += strcspn(*p, "0123456789");
    char *end;
    uint64_t v = strtoull(*p, &end, 10);
    assert_true(end != *p);
    *p = end;
    return v;
}

static void near(double got, double want, double bound, const char *what)
{
    if (!(fabs(got - want) <= bound))
        fail_msg("%s: %.9g instead of %.9g", what, got, want);
}

/* The released model's constants. */
static struct st_ngram_hash released_hash(void)
{
    struct st_ngram_hash h = {.order = 3,
                              .heads_per_order = 8,
                              .heads = 16,
                              .reset = 248044,
                              .multiplier = {23703573157769u, 20109073645365u, 8052911324071u},
                              .size = {20000003, 20000023, 20000033, 20000047, 20000059, 20000063, 20000069, 20000077,
                                       20000081, 20000093, 20000107, 20000147, 20000153, 20000159, 20000161, 20000171}};
    for (int i = 1; i < 16; i++)
        h.offset[i] = h.offset[i - 1] + h.size[i - 1];
    return h;
}

static void ngram_rows_of_the_released_constants(void **state)
{
    (void)state;
    struct st_ngram_hash h = released_hash();
    const char *p = part("# PLE rows"), *end = strstr(p, "\n#");
    int32_t tokens[8];
    int sequences = 0, rows = 0, length = 0;
    for (const char *next; p < end; p = next) {
        next = strchr(p, '\n') + 1;
        if (!strncmp(p, "sequence", 8)) {
            sequences++;
            for (length = 0, p += 8; *p != '\n'; length++, p += strspn(p, "]"))
                tokens[length] = (int32_t)whole(&p);
            continue;
        }
        int32_t at = (int32_t)whole(&p), history[ST_HISTORY];
        assert_in_range(at, 0, length - 1);
        for (int i = 0; i < ST_HISTORY; i++)
            history[i] = i < at ? tokens[at - 1 - i] : -1;
        assert_int_equal(whole(&p), tokens[at]);
        for (int i = 0; i < 3; i++)
            whole(&p); /* the context after the reset rule, which the rows contain */
        uint64_t out[16];
        st_ngram_rows(&h, tokens[at], history, out);
        for (int i = 0; i < 16; i++)
            assert_int_equal(out[i], whole(&p));
        rows++;
    }
    assert_int_equal(sequences, 4);
    assert_int_equal(rows, 14);
}

/* The hyper-parameters of the released model, as its GGUF files give them, without tensors. */
static void read_released(struct q4e_hparams *h)
{
    static const struct {
        const char *name;
        uint32_t value;
    } keys[] = {{"block_count", 48},
                {"context_length", 262144},
                {"embedding_length", 2560},
                {"attention.head_count", 24},
                {"attention.head_count_kv", 2},
                {"attention.key_length", 256},
                {"attention.value_length", 256},
                {"rope.dimension_count", 64},
                {"ssm.conv_kernel", 4},
                {"ssm.state_size", 128},
                {"ssm.group_count", 16},
                {"ssm.time_step_rank", 48},
                {"ssm.inner_size", 6144},
                {"expert_count", 512},
                {"expert_used_count", 10},
                {"expert_feed_forward_length", 640},
                {"expert_shared_feed_forward_length", 640},
                {"hyper_connection.count", 4},
                {"hyper_connection.low_rank", 320},
                {"attention.indexer.head_count", 4},
                {"attention.indexer.key_length", 128},
                {"attention.indexer.top_k", 2048}};
    struct strata_error err;
    struct st_gguf_writer *w;
    struct st_gguf *g;
    bool *recurrent;
    char path[] = "/tmp/strata-keys-XXXXXX", name[96];
    close(mkstemp(path));
    assert_ok(st_gguf_writer_create(&w, &err), &err);
    st_gguf_set_string(w, "general.architecture", "qwen4exp", 8);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        snprintf(name, sizeof name, "qwen4exp.%s", keys[i].name);
        st_gguf_set_u32(w, name, keys[i].value);
    }
    st_gguf_set_f32(w, "qwen4exp.attention.layer_norm_rms_epsilon", 1e-6f);
    st_gguf_set_f32(w, "qwen4exp.rope.freq_base", 1e7f);
    st_gguf_set_array(w, "qwen4exp.rope.dimension_sections", ST_GGUF_I32, (const int32_t[]){11, 11, 10, 0}, 4);
    assert_ok(st_gguf_writer_save(w, path, &err), &err);
    st_gguf_writer_free(w);
    assert_ok(st_gguf_open(path, &g, &err), &err);
    assert_ok(q4e_read_hparams(g, h, &recurrent, &err), &err);
    for (int i = 0; i < 48; i++)
        assert_int_equal(recurrent[i], i % 4 != 3);
    free(recurrent);
    st_gguf_close(g);
    unlink(path);
}

static void rotary_frequencies_and_axes(void **state)
{
    (void)state;
    struct q4e_hparams h = {0};
    read_released(&h);
    assert_int_equal(h.rope.rot, 64);
    const char *f = part("# RoPE inverse frequencies"), *axis = part("# mrope axis");
    for (int i = 0; i < 32; i++) {
        double want = number(&f);
        near((double)h.rope.freq[i] / want, 1, 1e-6, "frequency over the listed one");
        assert_int_equal(h.rope.axis[i], whole(&axis));
    }
}

/* ---- delta recurrence ---- */

enum { DIM = 4, TOKENS = 3, INERT = 9, CHANNELS = 3 * DIM };

/* What silu turns into y (y >= -0.27). */
static float unsilu(double y)
{
    double x = y < 0 ? y : y + 0.3;
    for (int i = 0; i < 60; i++) {
        double s = 1 / (1 + exp(-x));
        x -= (x * s - y) / (s + x * s * (1 - s));
    }
    return (float)x;
}

struct recurrence {
    float u[TOKENS + INERT][CHANNELS], z[TOKENS + INERT][DIM], b[TOKENS + INERT], a[TOKENS + INERT];
    float c[TOKENS + INERT][CHANNELS], o[TOKENS + INERT][DIM], conv_state[CHANNELS], state[DIM][DIM];
    double scale; /* of v, and so of outputs and state */
};

/* The listed inputs are those after convolution and silu, which cannot be below -0.28: q and k are given at an eighth,
 * with an eps that makes up for it, and v small enough that the norm of the output (which has the same eps) can be
 * undone. */
static void fill_recurrence(struct recurrence *x)
{
    *x = (struct recurrence){.scale = 1.0 / 512};
    const char *p = part("# GDN recurrence");
    for (int t = 0; t < TOKENS; t++, p = strchr(p, '\n') + 1) {
        for (int j = 0; j < DIM; j++) {
            x->u[t][j] = unsilu(sin(1 + 4 * t + j) / 8);
            x->u[t][DIM + j] = unsilu(cos(0.5 + 4 * t + j) / 8);
            x->u[t][2 * DIM + j] = unsilu(sin(0.3 * (4 * t + j)) * x->scale);
        }
        const char *v = strstr(p, " a=");
        x->a[t] = (float)number(&v);
        x->b[t] = (float)number(&v);
    }
    for (int t = 0; t < TOKENS + INERT; t++)
        for (int j = 0; j < DIM; j++)
            x->z[t][j] = 100; /* an open gate */
    for (int t = TOKENS; t < TOKENS + INERT; t++)
        x->a[t] = x->b[t] = -200; /* no decay and no write: the state stays */
}

static void run_recurrence(struct recurrence *x, int from, int to)
{
    static const float conv[2][CHANNELS] = {{0}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}}, one[DIM] = {1, 1, 1, 1};
    static const float ssm_a = -0.5f, dt_bias = 0.25f;
    struct fixture_rows *f = malloc(sizeof *f);
    rows_clear(f);
    rows_span(f, 0, from, to - from);
    struct st_command c = {.op = ST_OP_gdn,
                           .u.gdn = {.rows = &f->rows,
                                     .u = x->u[from],
                                     .z = x->z[from],
                                     .b = x->b + from,
                                     .a = x->a + from,
                                     .conv = conv[0],
                                     .ssm_a = &ssm_a,
                                     .dt_bias = &dt_bias,
                                     .gamma = one,
                                     .conv_state = x->conv_state,
                                     .state = x->state[0],
                                     .c = x->c[from],
                                     .o = x->o[from],
                                     .key_heads = 1,
                                     .value_heads = 1,
                                     .key_dim = DIM,
                                     .value_dim = DIM,
                                     .taps = 2,
                                     .channels = CHANNELS,
                                     .eps = 1e-6f / 64}};
    run_command(&c, 1, ST_GDN_CHUNK * CHANNELS * sizeof(float));
    free(f);
}

static void check_recurrence(const struct recurrence *x)
{
    const char *p = part("# GDN recurrence");
    for (int t = 0; t < TOKENS; t++, p = strchr(p, '\n') + 1) {
        const char *v = strstr(p, " out ");
        double squares = 0;
        for (int j = 0; j < DIM; j++)
            squares += (double)x->o[t][j] * (double)x->o[t][j] / DIM;
        /* o / sqrt(mean + eps) has the mean square mean / (mean + eps). */
        double eps = 1e-6 / 64, mean = eps * squares / (1 - squares);
        for (int j = 0; j < DIM; j++)
            near((double)x->o[t][j] * sqrt(mean + eps) / x->scale, number(&v), 2e-6, "output");
    }
    p = strchr(p, ':');
    for (int d = 0; d < DIM; d++)
        for (int e = 0; e < DIM; e++)
            near((double)x->state[d][e] / x->scale, number(&p), 1e-6, "state");
}

static void delta_recurrence_step_by_step(void **state)
{
    (void)state;
    struct recurrence x;
    fill_recurrence(&x);
    run_recurrence(&x, 0, TOKENS);
    check_recurrence(&x);
    fill_recurrence(&x);
    for (int t = 0; t < TOKENS; t++)
        run_recurrence(&x, t, t + 1);
    check_recurrence(&x);
}

static void delta_recurrence_in_one_chunk(void **state)
{
    (void)state;
    struct recurrence x;
    fill_recurrence(&x);
    assert_true(TOKENS + INERT > ST_GDN_STEP);
    run_recurrence(&x, 0, TOKENS + INERT);
    check_recurrence(&x);
}

/* ---- gated residual ---- */

static void gated_residual_read_and_write(void **state)
{
    (void)state;
    enum { N = 3, HC = 4, RANK = 2, WIDE = N * HC };
    float r[WIDE], gamma[WIDE], down[RANK][WIDE], up[WIDE][RANK], inject[HC][WIDE];
    float m[N], inj[HC], x[WIDE], lo[RANK], o[N];
    for (int c = 0; c < HC; c++)
        for (int n = 0; n < N; n++)
            r[c * N + n] = (float)sin(c + 0.7 * n + 0.1);
    for (int i = 0; i < WIDE; i++) {
        gamma[i] = (float)(1 + 0.05 * (i % 5));
        for (int a = 0; a < RANK; a++) {
            down[a][i] = (float)(0.1 * cos(a + 0.3 * i));
            up[i][a] = (float)(0.2 * sin(0.4 * i - a));
        }
        for (int c = 0; c < HC; c++)
            inject[c][i] = (float)(0.05 * sin(c + i));
    }
    for (int n = 0; n < N; n++)
        o[n] = 0.3f * (float)(n + 1);
    const struct st_weight down_w = float_weight(down[0], WIDE, RANK), up_w = float_weight(up[0], RANK, WIDE),
                           inject_w = float_weight(inject[0], WIDE, HC);
    struct st_act_buffer acts;
    void *memory = aligned_alloc(64, st_act_buffer_bytes(1, WIDE, st_act_bytes));
    st_act_buffer_place(&acts, memory, 1, WIDE, st_act_bytes);
    const int32_t rows = 1;
    struct st_command read = {.op = ST_OP_gated_read,
                              .u.gated_read = {.n = &rows,
                                               .r = r,
                                               .gamma = gamma,
                                               .down = &down_w,
                                               .up = &up_w,
                                               .inject = &inject_w,
                                               .m = m,
                                               .inj = inj,
                                               .streams = HC,
                                               .hidden = N,
                                               .rank = RANK,
                                               .eps = 1e-6f,
                                               .x = x,
                                               .lo = lo,
                                               .acts = &acts}};
    struct st_command write = {.op = ST_OP_gated_write,
                               .u.gated_write = {.n = &rows, .r = r, .inj = inj, .o = o, .streams = HC, .hidden = N}};
    run_command(&read, 1, 0);
    run_command(&write, 1, 0);
    free(memory);
    const char *p = strstr(part("# Gated residual"), "mixed");
    for (int n = 0; n < N; n++)
        near((double)m[n], number(&p), 1e-6, "mixed");
    for (int c = 0; c < HC; c++)
        near((double)inj[c], number(&p), 1e-6, "inject");
    for (int i = 0; i < WIDE; i++)
        near((double)r[i], number(&p), 1e-6, "residual");
}

/* ---- n-gram gate ---- */

static void ngram_gate_of_small_and_large_scores(void **state)
{
    (void)state;
    enum { CASES = 7 };
    float key[CASES], norm_key[CASES], z[CASES], ring[CASES], r[CASES];
    const float one[CASES] = {1, 1, 1, 1, 1, 1, 1}, none[CASES] = {0}, value = 1;
    const char *p = part("# PLE gate");
    double want[CASES];
    for (int i = 0; i < CASES; i++) {
        /* One element per stream: its norm is its sign, so the score is the product of the gammas. */
        norm_key[i] = (float)number(&p);
        want[i] = number(&p);
        key[i] = r[i] = 1;
    }
    struct fixture_rows *f = malloc(sizeof *f);
    rows_clear(f);
    rows_span(f, 0, 0, 1);
    struct st_command c = {.op = ST_OP_ngram_inject,
                           .u.ngram_inject = {.rows = &f->rows,
                                              .key = key,
                                              .value = &value,
                                              .norm_key = norm_key,
                                              .norm_query = one,
                                              .norm_conv = none,
                                              .conv = none,
                                              .z = z,
                                              .state = ring,
                                              .r = r,
                                              .streams = CASES,
                                              .hidden = 1,
                                              .taps = 1,
                                              .dilation = 3}};
    run_command(&c, 1, 0);
    free(f);
    for (int i = 0; i < CASES; i++) {
        near((double)key[i], want[i], 1e-7, "gate");
        near((double)r[i], 1 + want[i], 2e-7, "residual");
    }
}

/* ---- counts of the block index ---- */

static void attended_tokens_by_position(void **state)
{
    (void)state;
    enum { RATIO = ONE_QUERY_RATIO };
    struct one_query *x = malloc(sizeof *x);
    one_query_new(x, 262144, 2048);
    const uint32_t *chosen = x->chosen;
    int lines = 0, sparse = 0;
    for (const char *p = part("# QSA: position"); *p; p = strchr(p, '\n') + 1, lines++) {
        const char *s = p;
        int32_t pos = (int32_t)whole(&s);
        uint32_t visible = (uint32_t)whole(&s), blocks = (uint32_t)whole(&s), kept = (uint32_t)whole(&s),
                 tail = (uint32_t)whole(&s), total = (uint32_t)whole(&s);
        assert_int_equal(visible, pos + 1);
        assert_int_equal(blocks, visible / RATIO);
        one_query_run(x, pos);
        bool dense = !strncmp(s, " dense", 6);
        assert_int_equal(x->count < 0, dense);
        if (dense) {
            assert_int_equal(total, visible);
            continue;
        }
        sparse++;
        assert_int_equal(x->count, total);
        for (uint32_t i = 0; i < tail; i++)
            assert_int_equal(chosen[total - tail + i], visible - tail + i);
        assert_int_equal(kept * RATIO + tail, total);
        for (uint32_t i = 0; i < kept; i++)
            for (uint32_t j = 0; j < RATIO; j++)
                assert_int_equal(chosen[i * RATIO + j], chosen[i * RATIO] / RATIO * RATIO + j);
        assert_true(chosen[(kept - 1) * RATIO] / RATIO < blocks);
    }
    assert_int_equal(lines, 12);
    assert_int_equal(sparse, 4);
    one_query_free(x);
    free(x);
}

static int setup(void **state)
{
    (void)state;
    struct strata_error err;
    char path[4096];
    size_t size;
    const char *root = getenv("STRATA_TEST_SOURCE");
    snprintf(path, sizeof path, "%s/tests/unit/data/reference_vectors.txt", root ? root : ".");
    return st_read_file(path, 1 << 20, &vectors, &size, &err) ? -1 : 0;
}

static int teardown(void **state)
{
    (void)state;
    free(vectors);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ngram_rows_of_the_released_constants), cmocka_unit_test(rotary_frequencies_and_axes),
        cmocka_unit_test(delta_recurrence_step_by_step),        cmocka_unit_test(delta_recurrence_in_one_chunk),
        cmocka_unit_test(gated_residual_read_and_write),        cmocka_unit_test(ngram_gate_of_small_and_large_scores),
        cmocka_unit_test(attended_tokens_by_position),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
