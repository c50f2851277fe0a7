/* Kernel families: a row has the same bits whatever window it is computed in, wherever it stands in it, whoever its
 * neighbours are, on any number of workers and with every instruction set of the processor. Speculation, batching and
 * the replay of stored inputs rely on it. */
#include "test.h"

#include <math.h>
#include <stdio.h>

#include "kernel_fixture.h"

enum { SLOTS = 3, TOKENS = 29, LANES = 16, WEIGHTS = 16, WINDOW = 8, MAX_THREADS = 3, NGRAM_HEADS = 4 };

/* Values that belong to rows: what a kernel reads (in), writes (out) or both. row is its memory for one pass. */
struct lane {
    size_t width;
    bool in, out;
    float *row;         /* [FIXTURE_ROWS][width] */
    float *given, *got; /* [SLOTS][TOKENS][width] */
};

/* A family under test: commands, their lanes and the state that sequences keep. */
struct bench {
    const char *name;
    struct fixture_rows f;
    struct lane lane[LANES];
    struct st_command command[4];
    int lanes, commands, memories;
    uint64_t seed;
    int32_t token[SLOTS][TOKENS];
    uint8_t *state;
    size_t state_bytes, state_used, scratch;
    struct st_team *team[MAX_THREADS + 1]; /* by number of workers, made when first needed */
    struct st_act_buffer acts, hacts;
    const struct st_ngram_hash *hash; /* NULL: no n-gram rows */
    const struct st_weight *table;    /* where they lie */
    uint32_t ngram_index[FIXTURE_ROWS * NGRAM_HEADS];
    struct st_weight weight[WEIGHTS];
    int weights;
    void *memory[64]; /* everything to free */
};

static void *keep(struct bench *b, void *p)
{
    assert_non_null(p);
    assert_true(b->memories < 64);
    return b->memory[b->memories++] = p;
}

static struct bench *bench_new(const char *name)
{
    struct bench *b = calloc(1, sizeof *b);
    b->name = name;
    b->seed = 7;
    for (int s = 0; s < SLOTS; s++)
        for (int t = 0; t < TOKENS; t++)
            b->token[s][t] = (int32_t)(random_bits(&b->seed) % 40);
    b->state_bytes = 1 << 20;
    b->state = keep(b, calloc(1, b->state_bytes));
    size_t room = st_act_buffer_bytes(FIXTURE_ROWS, 1024, st_act_bytes);
    st_act_buffer_place(&b->acts, keep(b, aligned_alloc(64, room)), FIXTURE_ROWS, 1024, st_act_bytes);
    st_act_buffer_place(&b->hacts, keep(b, aligned_alloc(64, room)), FIXTURE_ROWS, 1024, st_act_bytes);
    return b;
}

static void bench_free(struct bench *b)
{
    for (int i = 0; i < b->memories; i++)
        free(b->memory[i]);
    for (int i = 0; i <= MAX_THREADS; i++)
        st_team_free(b->team[i]);
    free(b);
}

static float *lane(struct bench *b, size_t width, bool in, bool out)
{
    assert_true(b->lanes < LANES);
    struct lane *l = &b->lane[b->lanes++];
    *l = (struct lane){.width = width, .in = in, .out = out};
    l->row = keep(b, calloc(FIXTURE_ROWS * width, sizeof *l->row));
    l->given = keep(b, random_floats(&b->seed, SLOTS * TOKENS * width, 2));
    l->got = keep(b, calloc(SLOTS * TOKENS * width, sizeof *l->got));
    return l->row;
}

static float *input(struct bench *b, size_t width)
{
    return lane(b, width, true, false);
}

static float *output(struct bench *b, size_t width)
{
    return lane(b, width, false, true);
}

static float *constants(struct bench *b, size_t n, float scale)
{
    return keep(b, random_floats(&b->seed, n, scale));
}

static void *state(struct bench *b, size_t bytes)
{
    void *p = b->state + b->state_used;
    b->state_used += (bytes + 63) / 64 * 64;
    assert_true(b->state_used <= b->state_bytes);
    return p;
}

static const struct st_weight *weight(struct bench *b, int type, uint32_t cols, uint32_t rows, uint32_t experts,
                                      bool fp32)
{
    assert_true(b->weights < WEIGHTS);
    void *memory;
    struct st_weight *w = &b->weight[b->weights++];
    *w = random_weight(&b->seed, type, cols, rows, experts, 0.2f, fp32, &memory);
    keep(b, memory);
    return w;
}

static struct st_command *command(struct bench *b, enum st_op op)
{
    struct st_command *c = &b->command[b->commands++];
    c->op = op;
    return c;
}

/* Rows of one pass from where each slot stands; adds windows in the order of slots given. */
static void begin_pass(struct bench *b)
{
    rows_clear(&b->f);
}

static void add_window(struct bench *b, int slot, int pos, int n)
{
    int32_t first = b->f.rows.n;
    rows_span(&b->f, slot, pos, n);
    for (int i = 0; i < n; i++) {
        int32_t r = first + i;
        b->f.token[r] = b->token[slot][pos + i];
        for (int h = 0; h < ST_HISTORY; h++)
            b->f.history[r][h] = h < pos + i ? b->token[slot][pos + i - 1 - h] : -1;
        uint64_t row[NGRAM_HEADS];
        if (b->hash)
            st_ngram_rows(b->hash, b->f.token[r], b->f.history[r], row);
        for (int h = 0; b->hash && h < NGRAM_HEADS; h++)
            b->ngram_index[r * NGRAM_HEADS + h] = (uint32_t)row[h];
    }
    if (b->hash) {
        b->f.rows.ngram = b->table->data;
        b->f.rows.ngram_index = b->ngram_index;
    }
}

static void run_pass(struct bench *b, const char *level, int threads)
{
    struct st_rows *rows = &b->f.rows;
    for (int32_t r = 0; r < rows->n; r++)
        for (int i = 0; i < b->lanes; i++) {
            struct lane *l = &b->lane[i];
            size_t at = ((size_t)rows->slot[r] * TOKENS + (size_t)rows->pos[r]) * l->width;
            if (l->in)
                memcpy(l->row + (size_t)r * l->width, l->given + at, l->width * sizeof(float));
        }
    if (!b->team[threads])
        b->team[threads] = fixture_team(threads, b->scratch);
    for (int i = 0; i < b->commands; i++)
        run_on_team(level, &b->command[i], b->team[threads]);
    for (int32_t r = 0; r < rows->n; r++)
        for (int i = 0; i < b->lanes; i++) {
            struct lane *l = &b->lane[i];
            size_t at = ((size_t)rows->slot[r] * TOKENS + (size_t)rows->pos[r]) * l->width;
            if (l->out)
                memcpy(l->got + at, l->row + (size_t)r * l->width, l->width * sizeof(float));
        }
}

static void start(struct bench *b)
{
    memset(b->state, 0, b->state_bytes);
    for (int i = 0; i < b->lanes; i++)
        memset(b->lane[i].got, 0x5a, SLOTS * TOKENS * b->lane[i].width * sizeof(float));
}

/* Everything that a schedule left behind. */
static uint8_t *snapshot(const struct bench *b, size_t *size)
{
    *size = b->state_used;
    for (int i = 0; i < b->lanes; i++)
        *size += b->lane[i].out ? SLOTS * TOKENS * b->lane[i].width * sizeof(float) : 0;
    uint8_t *p = malloc(*size), *at = p;
    memcpy(at, b->state, b->state_used);
    at += b->state_used;
    for (int i = 0; i < b->lanes; i++)
        if (b->lane[i].out) {
            memcpy(at, b->lane[i].got, SLOTS * TOKENS * b->lane[i].width * sizeof(float));
            at += SLOTS * TOKENS * b->lane[i].width * sizeof(float);
        }
    return p;
}

static void compare(const struct bench *b, const uint8_t *want, size_t size, const char *schedule, int window,
                    const char *level, int threads)
{
    size_t own;
    uint8_t *got = snapshot(b, &own);
    assert_int_equal(own, size);
    if (memcmp(got, want, size))
        fail_msg("%s: %s, window %d, %s, %d workers: other bits than row by row", b->name, schedule, window, level,
                 threads);
    free(got);
}

static void one_row_at_a_time(struct bench *b, const char *level, int threads)
{
    start(b);
    for (int s = 0; s < SLOTS; s++)
        for (int t = 0; t < TOKENS; t++) {
            begin_pass(b);
            add_window(b, s, t, 1);
            run_pass(b, level, threads);
        }
}

/* All sequences side by side, window rows of each in every pass, the slots in turned order. */
static void side_by_side(struct bench *b, int window, const char *level, int threads)
{
    start(b);
    for (int t = 0, turn = 0; t < TOKENS; t += window, turn++) {
        begin_pass(b);
        for (int s = 0; s < SLOTS; s++)
            add_window(b, (s + turn) % SLOTS, t, TOKENS - t < window ? TOKENS - t : window);
        run_pass(b, level, threads);
    }
}

/* Windows of changing sizes, some sequences left out of some passes. */
static void mixed(struct bench *b, const char *level, int threads)
{
    int at[SLOTS] = {0};
    uint64_t seed = 11;
    start(b);
    for (bool more = true; more;) {
        begin_pass(b);
        for (int s = SLOTS - 1; s >= 0; s--) {
            int n = (int)(random_bits(&seed) % (WINDOW + 1));
            n = n > TOKENS - at[s] ? TOKENS - at[s] : n;
            if (n)
                add_window(b, s, at[s], n);
            at[s] += n;
        }
        if (b->f.rows.n)
            run_pass(b, level, threads);
        more = at[0] < TOKENS || at[1] < TOKENS || at[2] < TOKENS;
    }
}

/* The property for every schedule; frees the bench. */
static void assert_rows_independent(struct bench *b)
{
    static const char *const levels[] = {"c", "avx2", "avx512"};
    size_t size;
    one_row_at_a_time(b, "c", 1);
    uint8_t *want = snapshot(b, &size);
    for (int window = 2; window <= WINDOW; window++) {
        side_by_side(b, window, "c", 1 + window % MAX_THREADS);
        compare(b, want, size, "side by side", window, "c", 1 + window % MAX_THREADS);
    }
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        struct st_kernels k;
        if (st_kernels_choose(levels[i], &k, NULL) == STRATA_E_DEVICE)
            continue;
        for (int threads = i ? 2 : 1; threads <= (i ? 2 : MAX_THREADS); threads++) {
            mixed(b, levels[i], threads);
            compare(b, want, size, "mixed", 0, levels[i], threads);
        }
        one_row_at_a_time(b, levels[i], 1);
        compare(b, want, size, "row by row", 1, levels[i], 1);
    }
    free(want);
    bench_free(b);
}

/* ---- families ---- */

static void products_of(bool fp32, const int *types, size_t count)
{
    struct bench *b = bench_new(fp32 ? "products with FP32 activations" : "products");
    struct st_products *p = &command(b, ST_OP_products)->u.products;
    *p = (struct st_products){.n = &b->f.rows.n, .x = input(b, 512), .ldx = 512, .acts = &b->acts};
    for (size_t i = 0; i < count; i++) {
        const struct st_weight *w = weight(b, types[i], 512, (uint32_t)(19 + 5 * i), 1, fp32);
        p->product[p->count++] = (struct st_product){.w = w, .y = output(b, w->rows), .ldy = w->rows};
    }
    assert_rows_independent(b);
}

static void rows_are_independent_in_products(void **unused)
{
    (void)unused;
    static const int types[] = {ST_TYPE_Q8_0, ST_TYPE_Q4_K, ST_TYPE_BF16, ST_TYPE_IQ4_NL, ST_TYPE_Q2_0, ST_TYPE_Q6_K},
                     others[] = {ST_TYPE_F32, ST_TYPE_F16, ST_TYPE_Q5_1, ST_TYPE_MXFP4, ST_TYPE_IQ3_XXS, ST_TYPE_Q4_0};
    for (int fp32 = 0; fp32 < 2; fp32++) {
        products_of(fp32, types, 6);
        products_of(fp32, others, 6);
    }
}

static void rows_are_independent_in_gated_residual(void **unused)
{
    (void)unused;
    enum { STREAMS = 4, HIDDEN = 128, RANK = 96, WIDE = STREAMS * HIDDEN };
    static const int types[][3] = {{ST_TYPE_Q4_K, ST_TYPE_Q8_0, ST_TYPE_BF16},
                                   {ST_TYPE_F32, ST_TYPE_IQ4_NL, ST_TYPE_Q8_0}};
    for (int fp32 = 0; fp32 < 2; fp32++) {
        struct bench *b = bench_new("gated residual");
        float *r = lane(b, WIDE, true, true), *m = output(b, HIDDEN), *inj = output(b, STREAMS);
        command(b, ST_OP_gated_read)->u.gated_read =
            (struct st_gated_read){.n = &b->f.rows.n,
                                   .r = r,
                                   .gamma = constants(b, WIDE, 1),
                                   .down = weight(b, types[fp32][0], WIDE, RANK, 1, fp32),
                                   .up = weight(b, types[fp32][1], RANK, WIDE, 1, fp32),
                                   .inject = weight(b, types[fp32][2], WIDE, STREAMS, 1, fp32),
                                   .m = m,
                                   .inj = inj,
                                   .streams = STREAMS,
                                   .hidden = HIDDEN,
                                   .rank = RANK,
                                   .eps = 1e-6f,
                                   .x = output(b, WIDE),
                                   .lo = output(b, RANK),
                                   .acts = &b->acts};
        command(b, ST_OP_gated_write)->u.gated_write = (struct st_gated_write){
            .n = &b->f.rows.n, .r = r, .inj = inj, .o = input(b, HIDDEN), .streams = STREAMS, .hidden = HIDDEN};
        assert_rows_independent(b);
    }
}

static void rows_are_independent_in_delta_network(void **unused)
{
    (void)unused;
    enum { KEYS = 2, VALUES = 6, DK = 32, DV = 16, TAPS = 4, CHANNELS = 2 * KEYS * DK + VALUES * DV };
    struct bench *b = bench_new("delta network");
    command(b, ST_OP_gdn)->u.gdn = (struct st_gdn){.rows = &b->f.rows,
                                                   .u = input(b, CHANNELS),
                                                   .z = input(b, VALUES * DV),
                                                   .b = input(b, VALUES),
                                                   .a = input(b, VALUES),
                                                   .conv = constants(b, TAPS * CHANNELS, 1),
                                                   .ssm_a = constants(b, VALUES, 1),
                                                   .dt_bias = constants(b, VALUES, 1),
                                                   .gamma = constants(b, DV, 1),
                                                   .conv_state = state(b, SLOTS * (TAPS - 1) * CHANNELS * 4),
                                                   .state = state(b, SLOTS * VALUES * DK * DV * 4),
                                                   .c = output(b, CHANNELS),
                                                   .o = output(b, VALUES * DV),
                                                   .key_heads = KEYS,
                                                   .value_heads = VALUES,
                                                   .key_dim = DK,
                                                   .value_dim = DV,
                                                   .taps = TAPS,
                                                   .channels = CHANNELS,
                                                   .eps = 1e-6f};
    /* Decay, not growth: -exp(A) is negative. */
    float *decay = (float *)b->command[0].u.gdn.ssm_a;
    for (int j = 0; j < VALUES; j++)
        decay[j] = -fabsf(decay[j]) - 0.01f;
    b->scratch = (2 * DK + DV) * ST_GDN_CHUNK * sizeof(float);
    assert_rows_independent(b);
}

static void rows_are_independent_in_attention(void **unused)
{
    (void)unused;
    enum { HEADS = 6, KV = 2, DIM = 64, INDEX = 4, INDEX_DIM = 32, CONTEXT = 32, BUDGET = 8, RATIO = 4 };
    for (int kv = 0; kv < ST_KV_COUNT; kv++)
        for (int ratio = 0; ratio <= RATIO; ratio += RATIO) {
            struct bench *b = bench_new(ratio ? "attention with an index" : "dense attention");
            struct st_rope *rope = keep(b, calloc(1, sizeof *rope));
            rope->rot = 16;
            for (int i = 0; i < 8; i++)
                rope->freq[i] = 1.0f / (float)(1 + i * i);
            size_t row = st_kv_row_bytes((enum st_kv_type)kv, DIM);
            struct st_qsa *q = &command(b, ST_OP_qsa)->u.qsa;
            *q = (struct st_qsa){.rows = &b->f.rows,
                                 .rope = rope,
                                 .q = input(b, HEADS * 2 * DIM),
                                 .k = input(b, KV * DIM),
                                 .v = input(b, KV * DIM),
                                 .iq = input(b, INDEX * INDEX_DIM),
                                 .ik = input(b, INDEX_DIM),
                                 .q_norm = constants(b, DIM, 2),
                                 .k_norm = constants(b, DIM, 2),
                                 .iq_norm = constants(b, INDEX_DIM, 1),
                                 .ik_norm = constants(b, INDEX_DIM, 1),
                                 .k_cache = state(b, SLOTS * KV * CONTEXT * row),
                                 .v_cache = state(b, SLOTS * KV * CONTEXT * row),
                                 .raw_ring = state(b, SLOTS * ST_QSA_RING * INDEX_DIM * 4),
                                 .axis_ring = state(b, SLOTS * ST_QSA_RING * 3 * 4),
                                 .pooled = state(b, SLOTS * CONTEXT / RATIO * INDEX_DIM * 4),
                                 .kv_bytes = row,
                                 .chosen = keep(b, calloc(FIXTURE_ROWS * (BUDGET + RATIO), sizeof(uint32_t))),
                                 .chosen_count = keep(b, calloc(FIXTURE_ROWS, sizeof(int32_t))),
                                 .out = output(b, HEADS * DIM),
                                 .gated = true,
                                 .kv = (enum st_kv_type)kv,
                                 .heads = HEADS,
                                 .kv_heads = KV,
                                 .head_dim = DIM,
                                 .index_heads = INDEX,
                                 .index_dim = INDEX_DIM,
                                 .context = CONTEXT,
                                 .budget = BUDGET,
                                 .ratio = (uint32_t)ratio,
                                 .eps = 1e-6f};
            b->scratch = st_qsa_scratch_bytes(q);
            assert_rows_independent(b);
        }
}

static void rows_are_independent_in_route_and_experts(void **unused)
{
    (void)unused;
    enum { HIDDEN = 256, WIDTH = 64, SHARED = 96, EXPERTS = 6, USED = 3 };
    static const int types[][3] = {{ST_TYPE_Q4_K, ST_TYPE_IQ3_XXS, ST_TYPE_Q2_0},
                                   {ST_TYPE_Q8_0, ST_TYPE_BF16, ST_TYPE_Q5_1}};
    for (int fp32 = 0; fp32 < 2; fp32++) {
        struct bench *b = bench_new("router and experts");
        float *m = input(b, HIDDEN);
        struct st_routing *t = keep(b, calloc(1, sizeof *t));
        *t = (struct st_routing){.expert = (int32_t *)output(b, USED),
                                 .weight = output(b, USED),
                                 .shared = output(b, 1),
                                 .first = keep(b, calloc(EXPERTS + 1, 4)),
                                 .entry = keep(b, calloc(FIXTURE_ROWS * USED, 4)),
                                 .where = keep(b, calloc(FIXTURE_ROWS * USED, 4))};
        command(b, ST_OP_route)->u.route = (struct st_route){.n = &b->f.rows.n,
                                                             .m = m,
                                                             .router = weight(b, ST_TYPE_F32, HIDDEN, EXPERTS, 1, true),
                                                             .shared_gate = weight(b, ST_TYPE_BF16, HIDDEN, 1, 1, fp32),
                                                             .logits = output(b, EXPERTS),
                                                             .to = t,
                                                             .experts = EXPERTS,
                                                             .used = USED,
                                                             .hidden = HIDDEN,
                                                             .acts = &b->acts};
        command(b, ST_OP_experts)->u.experts =
            (struct st_experts){.n = &b->f.rows.n,
                                .m = m,
                                .routing = t,
                                .gate = weight(b, types[fp32][0], HIDDEN, WIDTH, EXPERTS, fp32),
                                .up = weight(b, types[fp32][1], HIDDEN, WIDTH, EXPERTS, fp32),
                                .down = weight(b, types[fp32][2], WIDTH, HIDDEN, EXPERTS, fp32),
                                .shared_gate = weight(b, ST_TYPE_Q6_K, HIDDEN, SHARED, 1, fp32),
                                .shared_up = weight(b, ST_TYPE_Q8_0, HIDDEN, SHARED, 1, fp32),
                                .shared_down = weight(b, ST_TYPE_IQ4_NL, SHARED, HIDDEN, 1, fp32),
                                .h = keep(b, calloc(FIXTURE_ROWS * (USED + 1) * SHARED, 4)),
                                .o = keep(b, calloc(FIXTURE_ROWS * (USED + 1) * HIDDEN, 4)),
                                .y = output(b, HIDDEN),
                                .experts = EXPERTS,
                                .used = USED,
                                .hidden = HIDDEN,
                                .width = WIDTH,
                                .shared_width = SHARED,
                                .acts = &b->acts,
                                .hacts = &b->hacts};
        assert_rows_independent(b);
    }
}

static void rows_are_independent_in_ngram_memory(void **unused)
{
    (void)unused;
    enum {
        STREAMS = 4,
        HIDDEN = 64,
        WIDE = STREAMS * HIDDEN,
        HEADS = NGRAM_HEADS,
        WIDTH = 32,
        TAPS = 4,
        ORDER = 3,
        ROWS = 97
    };
    struct bench *b = bench_new("n-gram memory");
    struct st_ngram_hash *hash = keep(b, calloc(1, sizeof *hash));
    *hash = (struct st_ngram_hash){.order = ORDER,
                                   .heads_per_order = 2,
                                   .heads = HEADS,
                                   .reset = 3,
                                   .multiplier = {1000003, 777767777, 12345678911},
                                   .size = {23, 19, 29, 17},
                                   .offset = {0, 23, 42, 71}};
    float *e = output(b, HEADS * WIDTH), *key = output(b, WIDE), *value = output(b, HIDDEN);
    b->hash = hash;
    b->table = weight(b, ST_TYPE_IQ4_NL, WIDTH, ROWS, 1, false);
    command(b, ST_OP_ngram_gather)->u.ngram_gather = (struct st_ngram_gather){.rows = &b->f.rows,
                                                                              .type = b->table->type,
                                                                              .row_bytes = b->table->row_bytes,
                                                                              .heads = HEADS,
                                                                              .width = WIDTH,
                                                                              .e = e};
    struct st_products *p = &command(b, ST_OP_products)->u.products;
    *p = (struct st_products){.n = &b->f.rows.n, .x = e, .ldx = HEADS * WIDTH, .count = 2, .acts = &b->acts};
    p->product[0] = (struct st_product){weight(b, ST_TYPE_Q8_0, HEADS * WIDTH, WIDE, 1, false), key, WIDE};
    p->product[1] = (struct st_product){weight(b, ST_TYPE_BF16, HEADS * WIDTH, HIDDEN, 1, false), value, HIDDEN};
    command(b, ST_OP_ngram_inject)->u.ngram_inject =
        (struct st_ngram_inject){.rows = &b->f.rows,
                                 .key = key,
                                 .value = value,
                                 .norm_key = constants(b, WIDE, 1),
                                 .norm_query = constants(b, WIDE, 1),
                                 .norm_conv = constants(b, WIDE, 1),
                                 .conv = constants(b, TAPS * WIDE, 1),
                                 .z = output(b, WIDE),
                                 .state = state(b, SLOTS * (TAPS - 1) * ORDER * WIDE * 4),
                                 .r = lane(b, WIDE, true, true),
                                 .streams = STREAMS,
                                 .hidden = HIDDEN,
                                 .taps = TAPS,
                                 .dilation = ORDER,
                                 .eps = 1e-6f};
    assert_rows_independent(b);
}

static void rows_are_independent_in_embedding_and_selection(void **unused)
{
    (void)unused;
    enum { STREAMS = 4, HIDDEN = 64, WIDE = STREAMS * HIDDEN };
    struct bench *b = bench_new("embedding and selection");
    float *r = output(b, WIDE);
    command(b, ST_OP_embed)->u.embed = (struct st_embed){
        .rows = &b->f.rows, .table = weight(b, ST_TYPE_Q8_0, HIDDEN, 40, 1, false), .r = r, .streams = STREAMS};
    command(b, ST_OP_select)->u.select =
        (struct st_select){.rows = &b->f.rows, .from = r, .to = output(b, WIDE), .width = WIDE};
    assert_rows_independent(b);
}

static void rows_are_independent_in_draft_input(void **unused)
{
    (void)unused;
    enum { STREAMS = 4, HIDDEN = 64, WIDE = STREAMS * HIDDEN };
    for (int per_stream = 0; per_stream < 2; per_stream++) {
        struct bench *b = bench_new("draft input");
        command(b, ST_OP_draft_input)->u.draft_input =
            (struct st_draft_input){.rows = &b->f.rows,
                                    .table = weight(b, ST_TYPE_Q8_0, HIDDEN, 40, 1, false),
                                    .hidden_in = input(b, WIDE),
                                    .enorm = constants(b, HIDDEN, 1),
                                    .hnorm = constants(b, WIDE, 1),
                                    .x = output(b, 2 * WIDE),
                                    .streams = STREAMS,
                                    .hidden = HIDDEN,
                                    .per_stream = per_stream,
                                    .eps = 1e-6f};
        assert_rows_independent(b);
    }
}

static void rows_are_independent_in_single_stream_steps(void **unused)
{
    (void)unused;
    enum { WIDTH = 200 };
    struct bench *b = bench_new("norm, swiglu and add");
    float *y = output(b, WIDTH), *gate = lane(b, WIDTH, true, true);
    command(b, ST_OP_norm)->u.norm = (struct st_norm){
        .n = &b->f.rows.n, .x = input(b, WIDTH), .gamma = constants(b, WIDTH, 1), .y = y, .width = WIDTH, .eps = 1e-6f};
    command(b, ST_OP_swiglu)->u.swiglu = (struct st_swiglu){.n = &b->f.rows.n, .gate = gate, .up = y, .width = WIDTH};
    command(b, ST_OP_add)->u.add =
        (struct st_add){.n = &b->f.rows.n, .r = lane(b, WIDTH, true, true), .o = gate, .width = WIDTH};
    assert_rows_independent(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_independent_in_products),
        cmocka_unit_test(rows_are_independent_in_gated_residual),
        cmocka_unit_test(rows_are_independent_in_delta_network),
        cmocka_unit_test(rows_are_independent_in_attention),
        cmocka_unit_test(rows_are_independent_in_route_and_experts),
        cmocka_unit_test(rows_are_independent_in_ngram_memory),
        cmocka_unit_test(rows_are_independent_in_embedding_and_selection),
        cmocka_unit_test(rows_are_independent_in_draft_input),
        cmocka_unit_test(rows_are_independent_in_single_stream_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
