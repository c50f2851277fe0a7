/* The processor levels of the dot products against the C reference, bit for bit. With --bench: bytes per second of
 * every type and level against the measured read bandwidth. */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/team.h"
#include "kernel/dot.h"

static uint64_t rng_state;

static uint32_t rng(void)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)(rng_state >> 32);
}

static float noise(void)
{
    float sum = 0.0f;
    for (int i = 0; i < 4; i++)
        sum += (float)(rng() >> 8) * 0x1p-24f - 0.5f;
    return sum * 1.7f;
}

/* Memory that ends right before a page that cannot be touched. */
struct guarded {
    char *map, *data;
    size_t size;
};

static struct guarded guarded_alloc(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page;
    struct guarded g = {.size = whole + page};
    g.map = mmap(NULL, g.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(g.map != MAP_FAILED);
    assert_int_equal(mprotect(g.map + whole, page, PROT_NONE), 0);
    g.data = g.map + whole - bytes;
    return g;
}

static void guarded_free(struct guarded *g)
{
    munmap(g->map, g->size);
}

/* Random blocks with finite scales: where a type keeps binary16 scales their top exponent bit is cleared. */
static void fill_blocks(int type, uint8_t *w, size_t bytes)
{
    static const struct {
        int type, first, second; /* byte that holds the exponent's top bits */
    } halves[] = {
        {ST_TYPE_Q4_0, 1, 1},    {ST_TYPE_Q4_1, 1, 3},     {ST_TYPE_Q5_0, 1, 1},     {ST_TYPE_Q5_1, 1, 3},
        {ST_TYPE_Q8_0, 1, 1},    {ST_TYPE_Q2_K, 81, 83},   {ST_TYPE_Q3_K, 109, 109}, {ST_TYPE_Q4_K, 1, 3},
        {ST_TYPE_Q5_K, 1, 3},    {ST_TYPE_Q6_K, 209, 209}, {ST_TYPE_IQ2_XXS, 1, 1},  {ST_TYPE_IQ2_XS, 1, 1},
        {ST_TYPE_IQ3_XXS, 1, 1}, {ST_TYPE_IQ1_S, 1, 1},    {ST_TYPE_IQ4_NL, 1, 1},   {ST_TYPE_IQ3_S, 1, 1},
        {ST_TYPE_IQ2_S, 1, 1},   {ST_TYPE_IQ4_XS, 1, 1},   {ST_TYPE_IQ1_M, 55, 55},  {ST_TYPE_Q2_0, 1, 1},
        {ST_TYPE_F16, 1, 1},     {ST_TYPE_BF16, 1, 1},     {ST_TYPE_F32, 3, 3},
    };
    const struct st_type_info *info = st_type_info(type);
    for (size_t i = 0; i < bytes; i++)
        w[i] = (uint8_t)rng();
    for (size_t b = 0; b + info->block_bytes <= bytes; b += info->block_bytes) {
        for (size_t i = 0; i < sizeof halves / sizeof halves[0]; i++)
            if (halves[i].type == type) {
                w[b + (size_t)halves[i].first] &= 0xbf;
                w[b + (size_t)halves[i].second] &= 0xbf;
            }
        if (type == ST_TYPE_MXFP4)
            w[b] = (uint8_t)(rng() % 4 ? 110 + rng() % 30 : rng() % 3);
    }
}

static void fill_activations(float *x, size_t n)
{
    float size = ldexpf(1.0f, (int)(rng() % 12) - 8);
    for (size_t i = 0; i < n; i++)
        x[i] = size * noise();
    if (n > 64 && rng() % 4 == 0)
        memset(x + 32, 0, 32 * sizeof *x);
}

static bool same(float a, float b)
{
    return st_f32_bits(a) == st_f32_bits(b) || (isnan(a) && isnan(b));
}

enum { MAX_X = 9 };

static void compare(const struct st_dot_table *table, int type, bool floats, bool raw, size_t n, int n_rows, int n_x)
{
    const struct st_type_info *info = st_type_info(type);
    const struct st_dot_table *c = st_dot_table_c();
    enum st_act kind = floats ? ST_ACT_F32 : info->act;
    uint64_t exact;
    assert_true(st_row_bytes(type, n, &exact));
    size_t row_bytes = exact + (n_rows % 2 ? 0 : 3), ldy = (size_t)n_rows + 3;
    struct guarded w = guarded_alloc(row_bytes * (size_t)(n_rows - 1) + exact), memory[MAX_X] = {0}, x[MAX_X];
    struct st_act_row rows[MAX_X];
    for (int r = 0; r < n_rows; r++)
        if (raw)
            for (size_t i = 0; i < exact; i++)
                w.data[row_bytes * (size_t)r + i] = (char)rng();
        else
            fill_blocks(type, (uint8_t *)w.data + row_bytes * (size_t)r, exact);
    for (int j = 0; j < n_x; j++) {
        x[j] = guarded_alloc(n * sizeof(float));
        fill_activations((float *)(void *)x[j].data, n);
        if (kind != ST_ACT_F32)
            memory[j] = guarded_alloc(st_act_bytes(kind, n));
        st_act_bind(kind, n, memory[j].data, &rows[j]);
        st_act_quantize(kind, (const float *)(void *)x[j].data, n, &rows[j]);
    }
    float *y = malloc(ldy * (size_t)n_x * sizeof *y), *expected = malloc(ldy * (size_t)n_x * sizeof *y);
    for (size_t i = 0; i < ldy * (size_t)n_x; i++)
        y[i] = expected[i] = 12345.0f; /* guard bands between the rows of outputs */
    (floats ? c->rows_f32 : c->rows)[type](expected, w.data, row_bytes, n_rows, rows, n_x, ldy, n);
    (floats ? table->rows_f32 : table->rows)[type](y, w.data, row_bytes, n_rows, rows, n_x, ldy, n);
    for (size_t i = 0; i < ldy * (size_t)n_x; i++)
        if (!same(y[i], expected[i]))
            fail_msg("%s %s%s: n %zu, rows %d, activation rows %d: output %zu of row %zu is %.9g instead of %.9g",
                     table->name, info->name, floats ? " with floats" : "", n, n_rows, n_x, i % ldy, i / ldy,
                     (double)y[i], (double)expected[i]);
    for (int j = 0; j < n_x; j++) {
        guarded_free(&x[j]);
        if (memory[j].map)
            guarded_free(&memory[j]);
    }
    guarded_free(&w);
    free(y);
    free(expected);
}

static void compare_level(const struct st_dot_table *table)
{
    static const int row_counts[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 40}, x_counts[] = {1, 2, 3, 4, 8, 9};
    static const size_t blocks[] = {1, 2, 3, 7, 10}, floats[] = {1, 15, 16, 17, 100, 640};
    for (int type = 0; type < ST_TYPE_COUNT; type++) {
        const struct st_type_info *info = st_type_info(type);
        if (!info)
            continue;
        for (size_t r = 0; r < sizeof row_counts / sizeof row_counts[0]; r++)
            for (size_t j = 0; j < sizeof x_counts / sizeof x_counts[0]; j++)
                for (int mode = 0; mode < 3; mode++) {
                    size_t n = info->block_elems > 1 ? info->block_elems * blocks[(r + j) % 5] : floats[(r + j) % 6];
                    compare(table, type, mode == 2, mode == 1, n, row_counts[r], x_counts[j]);
                }
        compare(table, type, false, false, 33 * 256, 5, 2); /* rows that some kernels take in several pieces */
        compare(table, type, false, false, 33 * 256, 35, 9);
    }
}

static void compare_rounding(const struct st_dot_table *table)
{
    enum { N = 512 };
    static float x[N];
    static const float special[] = {NAN,    INFINITY, -INFINITY, 0.0f,    -0.0f,  1e-45f,
                                    1e-30f, 1e-5f,    3e38f,     -127.0f, 127.0f, 65504.0f};
    for (int round = 0; round < 2000; round++) {
        for (int kind = ST_ACT_Q8; kind < ST_ACT_COUNT; kind++) {
            size_t bytes = st_act_bytes((enum st_act)kind, N);
            struct guarded memory[2] = {guarded_alloc(bytes), guarded_alloc(bytes)};
            struct st_act_row rows[2];
            fill_activations(x, N);
            for (int i = 0; i < round % 5; i++)
                x[rng() % N] = special[rng() % (round % 3 == 0 ? 12 : 9 - 6 * (round % 2))];
            if (round % 7 == 0) /* ties of the rounding and of the largest magnitude */
                for (int i = 0; i < N; i++)
                    x[i] = (float)((int)(rng() % 255) - 127) * 0.5f;
            for (int i = 0; i < 2; i++) {
                memset(memory[i].data, 0x55, bytes);
                st_act_bind((enum st_act)kind, N, memory[i].data, &rows[i]);
                (i ? table->quantize : st_act_quantize)((enum st_act)kind, x, N, &rows[i]);
            }
            for (int b = 0; b < (kind == ST_ACT_Q8 ? N / 32 : N / 256); b++) {
                assert_true(same(rows[0].d[b], rows[1].d[b]));
                assert_true(kind != ST_ACT_Q8 || same(rows[0].s[b], rows[1].s[b]));
            }
            assert_memory_equal(rows[0].q, rows[1].q, N);
            assert_memory_equal(rows[0].sums, rows[1].sums, N / 16 * sizeof(int16_t));
            guarded_free(&memory[0]);
            guarded_free(&memory[1]);
        }
    }
}

static void avx2_equals_c(void **state)
{
    (void)state;
    if (!st_dot_table_avx2()) { /* skip() of cmocka counts as a failure */
        print_message("# this processor has no AVX2\n");
        return;
    }
    compare_level(st_dot_table_avx2());
    compare_rounding(st_dot_table_avx2());
}

static void avx512_equals_c(void **state)
{
    (void)state;
    if (!st_dot_table_avx512()) { /* skip() of cmocka counts as a failure */
        print_message("# this processor has no AVX-512\n");
        return;
    }
    compare_level(st_dot_table_avx512());
    compare_rounding(st_dot_table_avx512());
}

/* The C table is the sum of single dots: rows and activation rows do not know of each other. */
static void c_rows_equal_single_dots(void **state)
{
    (void)state;
    enum { N = 512, ROWS = 3, X = 9 };
    static float x[X][N], y[X * ROWS];
    static uint8_t w[ROWS][4 * N];
    struct st_act_row rows[X];
    for (int type = 0; type < ST_TYPE_COUNT; type++) {
        const struct st_type_info *info = st_type_info(type);
        if (!info)
            continue;
        struct guarded memory = guarded_alloc(st_act_bytes(info->act, N) * X + 1);
        for (int r = 0; r < ROWS; r++)
            fill_blocks(type, w[r], N / info->block_elems * info->block_bytes);
        for (int j = 0; j < X; j++) {
            fill_activations(x[j], N);
            st_act_bind(info->act, N, memory.map + st_act_bytes(info->act, N) * (size_t)j, &rows[j]);
            st_act_quantize(info->act, x[j], N, &rows[j]);
        }
        st_dot_table_c()->rows[type](y, w, sizeof w[0], ROWS, rows, X, ROWS, N);
        for (int j = 0; j < X; j++)
            for (int r = 0; r < ROWS; r++)
                assert_true(same(y[j * ROWS + r], info->dot(w[r], &rows[j], N)));
        guarded_free(&memory);
    }
}

/* ---- measuring ---- */

static double seconds(clockid_t clock_id)
{
    struct timespec t;
    clock_gettime(clock_id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct bench {
    st_dot_rows_fn fn;
    const uint8_t *w;
    float *y;
    const struct st_act_row *x;
    size_t row_bytes, n;
    int n_rows, n_x;
    uint64_t sum[64];
    double busy[64]; /* processor time of each worker: other programs on the machine do not count */
};

static void bench_rows(void *arg, struct st_worker *worker)
{
    struct bench *b = arg;
    size_t from, to;
    double start = seconds(CLOCK_THREAD_CPUTIME_ID);
    st_share(worker, (size_t)b->n_rows, 16, &from, &to);
    if (from < to)
        b->fn(b->y + from, b->w + b->row_bytes * from, b->row_bytes, (int)(to - from), b->x, b->n_x, (size_t)b->n_rows,
              b->n);
    b->busy[worker->index] = seconds(CLOCK_THREAD_CPUTIME_ID) - start;
}

static void bench_read(void *arg, struct st_worker *worker)
{
    struct bench *b = arg;
    size_t from, to;
    uint64_t sum[8] = {0};
    double start = seconds(CLOCK_THREAD_CPUTIME_ID);
    st_share(worker, b->row_bytes * (size_t)b->n_rows, 64, &from, &to);
    for (size_t i = from; i + 64 <= to; i += 64)
        for (int j = 0; j < 8; j++) {
            uint64_t v;
            memcpy(&v, b->w + i + 8 * j, 8);
            sum[j] ^= v;
        }
    for (int j = 0; j < 8; j++)
        b->sum[worker->index] ^= sum[j];
    b->busy[worker->index] = seconds(CLOCK_THREAD_CPUTIME_ID) - start;
}

/* Best of several runs: the time of the slowest worker. */
static double bench_run(struct st_team *team, void (*fn)(void *, struct st_worker *), struct bench *b)
{
    double best = INFINITY, start = seconds(CLOCK_MONOTONIC);
    for (int i = 0; i < 4 || seconds(CLOCK_MONOTONIC) - start < 0.25; i++) {
        double slowest = 0;
        st_team_run(team, fn, b);
        for (int t = 0; t < st_team_size(team); t++)
            slowest = fmax(slowest, b->busy[t]);
        best = fmin(best, slowest);
    }
    return best;
}

/* Usage: kernel-dot --bench [threads [type [level]]] */
static int bench(int argc, char **argv)
{
    enum { N = 2560, X = 8, MEMORY = 192 << 20 };
    const struct st_dot_table *tables[] = {st_dot_table_c(), st_dot_table_avx2(), st_dot_table_avx512()};
    struct strata_error err = {0};
    struct st_team *team;
    int threads = argc > 2 ? atoi(argv[2]) : st_cpu_cores();
    if (threads < 1 || threads > 64 || st_team_create(threads, 64, &team, &err) != STRATA_OK)
        return 1;
    uint8_t *w = aligned_alloc(64, MEMORY);
    float *x = malloc(sizeof(float) * N * X), *y = malloc(sizeof(float) * X * (MEMORY / 500));
    char *memory = aligned_alloc(64, X * 4 * N);
    struct st_act_row rows[ST_ACT_COUNT][X];
    for (size_t i = 0; i < MEMORY; i++)
        w[i] = (uint8_t)(i * 2654435761u >> 13);
    struct bench b = {.w = w, .y = y, .row_bytes = MEMORY, .n_rows = 1};
    double read = MEMORY / bench_run(team, bench_read, &b) / 1e9;
    printf("%d threads, read bandwidth %.1f GB/s; rows of %d elements; GB/s and share with 1 activation row, G "
           "multiply-adds/s with 8\n",
           threads, read, N);
    for (int type = 0; type < ST_TYPE_COUNT; type++) {
        const struct st_type_info *info = st_type_info(type);
        uint64_t row_bytes;
        if (!info || !st_row_bytes(type, N, &row_bytes) || (argc > 3 && st_type_by_name(argv[3]) != info))
            continue;
        for (int j = 0; j < X; j++) {
            fill_activations(x + N * j, N);
            st_act_bind(info->act, N, memory + 4 * N * j, &rows[info->act][j]);
            st_act_quantize(info->act, x + N * j, N, &rows[info->act][j]);
        }
        printf("%-8s", info->name);
        for (int t = 0; t < 3; t++) {
            if (!tables[t] || (argc > 4 && strcmp(argv[4], tables[t]->name) != 0))
                continue;
            size_t limit = t == 0 ? MEMORY / 16 : MEMORY;
            b = (struct bench){
                tables[t]->rows[type], w, y, rows[info->act], row_bytes, N, (int)(limit / row_bytes), 1, {0}, {0}};
            double one = bench_run(team, bench_rows, &b);
            b.n_x = X;
            b.n_rows = b.n_rows / 4;
            double eight = bench_run(team, bench_rows, &b);
            double rate = (double)row_bytes * (int)(limit / row_bytes) / one / 1e9;
            printf("  %s %6.2f (%3.0f %%) %6.1f", tables[t]->name, rate, 100 * rate / read,
                   (double)b.n_rows * N * X / eight / 1e9);
        }
        printf("\n");
        fflush(stdout);
    }
    st_team_free(team);
    free(w);
    free(x);
    free(y);
    free(memory);
    return 0;
}

int main(int argc, char **argv)
{
    const char *seed = getenv("STRATA_TEST_SEED");
    rng_state = seed ? strtoull(seed, NULL, 0) : 0x5eed5eed5eedu;
    if (argc > 1 && strcmp(argv[1], "--bench") == 0)
        return bench(argc, argv);
    print_message("# seed 0x%llx (STRATA_TEST_SEED)\n", (unsigned long long)rng_state);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(c_rows_equal_single_dots),
        cmocka_unit_test(avx2_equals_c),
        cmocka_unit_test(avx512_equals_c),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
