/* Block layouts, conversions, encoders and the reference dot products. */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <zstd.h>

#include "base/file.h"
#include "format/grids.h"
#include "format/quant.h"
#include "format/quant_block.h"
#include "kernel/dot.h"

enum { MAX_BLOCK_BYTES = 1024 };

/* ---- small helpers ---- */

static uint64_t rng_state = 0x9e3779b97f4a7c15u;

static uint32_t rng(void)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)(rng_state >> 32);
}

/* About normal: the sum of four uniform numbers. */
static float noise(void)
{
    float sum = 0.0f;
    for (int i = 0; i < 4; i++)
        sum += (float)(rng() >> 8) * 0x1p-24f - 0.5f;
    return sum * 1.7f;
}

static char *read_file(const char *name, size_t *size)
{
    char path[4096], *data;
    struct strata_error err = {0};
    snprintf(path, sizeof path, "%s/tests/unit/data/%s", getenv("STRATA_TEST_SOURCE"), name);
    assert_ok(st_read_file(path, 1 << 20, &data, size, &err), &err);
    return data;
}

static char *read_data(const char *name)
{
    size_t size;
    return read_file(name, &size);
}

static char *read_packed(const char *name)
{
    size_t packed;
    char *data = read_file(name, &packed);
    size_t size = (size_t)ZSTD_getFrameContentSize(data, packed);
    char *text = calloc(size + 1, 1);
    assert_non_null(text);
    assert_int_equal(ZSTD_decompress(text, size, data, packed), size);
    free(data);
    return text;
}

/* Cuts the next line off the text. */
static char *next_line(char **text)
{
    char *line = *text, *end = strchr(line, '\n');
    if (*line == 0)
        return NULL;
    if (end)
        *end = 0;
    *text = end ? end + 1 : line + strlen(line);
    return line;
}

static size_t from_hex(const char *hex, uint8_t *out, size_t limit)
{
    size_t n = strlen(hex) / 2;
    assert_true(n <= limit);
    for (size_t i = 0; i < n; i++) {
        unsigned v;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &v), 1);
        out[i] = (uint8_t)v;
    }
    return n;
}

static uint32_t crc32_of(const uint8_t *p, size_t n)
{
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
    }
    return ~crc;
}

static double squared_error(const float *a, const float *b, const float *w, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (w ? w[i] : 1.0) * ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    return sum;
}

/* ---- tables and conversions ---- */

static void grids_have_the_published_checksums(void **state)
{
    (void)state;
    assert_int_equal(crc32_of((const uint8_t *)st_grid_iq2xxs, sizeof st_grid_iq2xxs), 0x9924ff02);
    assert_int_equal(crc32_of((const uint8_t *)st_grid_iq2xs, sizeof st_grid_iq2xs), 0xfa1e1bfd);
    assert_int_equal(crc32_of((const uint8_t *)st_grid_iq2s, sizeof st_grid_iq2s), 0x25ae5bf1);
    assert_int_equal(crc32_of((const uint8_t *)st_grid_iq3xxs, sizeof st_grid_iq3xxs), 0x07ba9ed0);
    assert_int_equal(crc32_of((const uint8_t *)st_grid_iq3s, sizeof st_grid_iq3s), 0xf576e4f3);
    assert_int_equal(crc32_of((const uint8_t *)st_grid_iq1s, sizeof st_grid_iq1s), 0xb85e6ccf);
    assert_int_equal(crc32_of((const uint8_t *)st_values_iq4nl, 16), 0xbbe1a3fc);
    assert_int_equal(crc32_of((const uint8_t *)st_values_fp4, 16), 0x08e8de1e);
    uint8_t signs[128];
    for (uint32_t s = 0; s < 128; s++)
        signs[s] = (uint8_t)st_signs7(s);
    assert_int_equal(crc32_of(signs, 128), 0xffab7940);
}

static void f16_round_trips_and_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = st_f16_to_f32((uint16_t)h);
        uint32_t exponent = h >> 10 & 31, mantissa = h & 1023;
        if (exponent == 31 && mantissa) {
            assert_true(isnan(f));
            assert_int_equal(st_f32_to_f16(f), h | 0x200);
            continue;
        }
        float expected = exponent == 31 ? INFINITY
                                        : ldexpf((float)(exponent ? mantissa + 1024 : mantissa),
                                                 (int)(exponent ? exponent : 1) - 25);
        assert_true(f == (h & 0x8000 ? -expected : expected) && !signbit(f) == !(h & 0x8000));
        assert_int_equal(st_f32_to_f16(f), h);
        if (exponent == 31 || (h & 0x8000))
            continue;
        /* Between neighbours: the middle goes to the even one, just beside it to the nearer one. The largest value's
         * upper neighbour counts as 65536. */
        float up = h == 0x7bff ? 65536.0f : st_f16_to_f32((uint16_t)(h + 1)), middle = f + (up - f) * 0.5f;
        assert_int_equal(st_f32_to_f16(middle), h + (h & 1));
        assert_int_equal(st_f32_to_f16(nextafterf(middle, 0.0f)), h);
        assert_int_equal(st_f32_to_f16(nextafterf(middle, INFINITY)), h + 1);
        assert_int_equal(st_f32_to_f16(-nextafterf(middle, INFINITY)), (h + 1) | 0x8000);
    }
}

static void bf16_round_trips_and_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = st_bf16_to_f32((uint16_t)h);
        if (isnan(f)) {
            assert_int_equal(st_f32_to_bf16(f), h | 64);
            continue;
        }
        assert_int_equal(st_f32_to_bf16(f), h);
        if ((h & 0x7fff) == 0x7f80)
            continue;
        assert_int_equal(st_f32_to_bf16(st_bits_f32(h << 16 | 0x8000)), h + (h & 1));
        assert_int_equal(st_f32_to_bf16(st_bits_f32(h << 16 | 0x7fff)), h);
        assert_int_equal(st_f32_to_bf16(st_bits_f32(h << 16 | 0x8001)), h + 1);
    }
}

static void unknown_and_removed_types_have_no_description(void **state)
{
    (void)state;
    static const int bad[] = {-1, 4, 5, 9, 15, 31, 32, 33, 34, 36, 37, 38, 43, 99, 1 << 30};
    uint64_t bytes = 7;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_null(st_type_info(bad[i]));
        assert_false(st_row_bytes(bad[i], 256, &bytes));
    }
    assert_int_equal(st_type_by_name("q4_k")->id, ST_TYPE_Q4_K);
    assert_null(st_type_by_name("Q4"));
    assert_false(st_row_bytes(ST_TYPE_Q2_0, 2560 + 32, &bytes));
    assert_false(st_row_bytes(ST_TYPE_F32, UINT64_MAX / 2, &bytes));
    assert_int_equal(bytes, 7);
    assert_true(st_row_bytes(ST_TYPE_Q2_0, 2560, &bytes));
    assert_int_equal(bytes, 720);
}

/* ---- vectors ---- */

static void every_type_decodes_to_the_published_vectors(void **state)
{
    (void)state;
    char *data = read_packed("quant_test_vectors.txt.zst"), *text = data, *line;
    int seen = 0;
    while ((line = next_line(&text)) != NULL) {
        char name[32];
        unsigned elems, bytes;
        uint8_t block[MAX_BLOCK_BYTES];
        float values[256];
        assert_int_equal(sscanf(line, "%31s block_elems=%u block_bytes=%u", name, &elems, &bytes), 3);
        size_t n = from_hex(next_line(&text), block, sizeof block);
        char *floats = next_line(&text);
        const struct st_type_info *info = st_type_by_name(name);
        if (!info)
            continue;
        seen++;
        assert_int_equal(info->block_elems, elems);
        assert_int_equal(info->block_bytes, bytes);
        assert_int_equal(n, bytes);
        info->decode(block, values, elems);
        for (unsigned i = 0; i < elems; i++) {
            float expected = strtof(floats, &floats);
            if (st_f32_bits(values[i]) != st_f32_bits(expected))
                fail_msg("%s element %u: %.9g instead of %.9g", name, i, (double)values[i], (double)expected);
        }
    }
    assert_int_equal(seen, 22); /* all but F32, F16 and BF16 */
    free(data);
}

/* Fills an activation row from the encodings of the file: blocks of (f16 d, q), (f16 d, f16 s, q), (f32 d, q, sums). */
static void dots_match_the_published_vectors(void **state)
{
    (void)state;
    char *data = read_data("dot_test_vectors.txt"), *text = data, *line;
    static float x[256], decoded[256];
    static uint8_t q8[512], q81[512], q8k[512], w[MAX_BLOCK_BYTES];
    static _Alignas(64) char memory_q8[2048], memory_q8k[2048];
    struct st_act_row rows[ST_ACT_COUNT];
    line = next_line(&text);
    line = next_line(&text);
    for (int i = 0; i < 256; i++)
        x[i] = strtof(line, &line);
    next_line(&text);
    from_hex(next_line(&text), q8, sizeof q8);
    next_line(&text);
    from_hex(next_line(&text), q81, sizeof q81);
    next_line(&text);
    from_hex(next_line(&text), q8k, sizeof q8k);

    assert_true(st_act_bytes(ST_ACT_Q8, 256) <= sizeof memory_q8 && st_act_bytes(ST_ACT_Q8K, 256) <= sizeof memory_q8k);
    st_act_bind(ST_ACT_Q8, 256, memory_q8, &rows[ST_ACT_Q8]);
    st_act_bind(ST_ACT_Q8K, 256, memory_q8k, &rows[ST_ACT_Q8K]);
    st_act_bind(ST_ACT_F32, 256, NULL, &rows[ST_ACT_F32]);
    for (int kind = 0; kind < ST_ACT_COUNT; kind++)
        st_act_quantize((enum st_act)kind, x, 256, &rows[kind]);

    /* Our own rounding of the same row gives the same encodings. */
    for (int b = 0; b < 8; b++) {
        assert_true(rows[ST_ACT_Q8].d[b] == st_f16_to_f32(st_load16(q8 + 34 * b)));
        assert_true(rows[ST_ACT_Q8].s[b] == st_f16_to_f32(st_load16(q81 + 36 * b + 2)));
        assert_memory_equal(rows[ST_ACT_Q8].q + 32 * b, q8 + 34 * b + 2, 32);
    }
    assert_int_equal(st_f32_bits(rows[ST_ACT_Q8K].d[0]), st_load32(q8k));
    assert_memory_equal(rows[ST_ACT_Q8K].q, q8k + 4, 256);
    assert_memory_equal(rows[ST_ACT_Q8K].sums, q8k + 260, 32);

    int seen = 0;
    while ((line = next_line(&text)) != NULL) {
        char name[32], pair[8];
        unsigned bytes;
        double expected, expected_float, absolute = 0;
        assert_int_equal(sscanf(line, "%31s pair=%7s row_bytes=%u", name, pair, &bytes), 3);
        assert_int_equal(from_hex(next_line(&text), w, sizeof w), bytes);
        assert_int_equal(sscanf(next_line(&text), "dot_quantised_activation=%lf dot_float_activation=%lf", &expected,
                                &expected_float),
                         2);
        const struct st_type_info *info = st_type_by_name(name);
        if (!info)
            continue;
        seen++;
        assert_int_equal(info->act, strcmp(pair, "Q8_K") ? ST_ACT_Q8 : ST_ACT_Q8K);
        info->decode(w, decoded, 256);
        for (int i = 0; i < 256; i++)
            absolute += fabs((double)decoded[i] * x[i]);
        float y = info->dot(w, &rows[info->act], 256), z = st_dot_f32(decoded, x, 256);
        if (!(fabs(y - expected) <= 2e-7 * absolute))
            fail_msg("%s: %.9g instead of %.9g", name, (double)y, expected);
        if (!(fabs(z - expected_float) <= 2e-7 * absolute))
            fail_msg("%s with floats: %.9g instead of %.9g", name, (double)z, expected_float);
    }
    assert_int_equal(seen, 22);
    free(data);
}

static void activation_rounding_is_defined_at_its_edges(void **state)
{
    (void)state;
    static float x[256];
    static _Alignas(64) char memory[2048];
    struct st_act_row row;
    st_act_bind(ST_ACT_Q8, 256, memory, &row);
    memset(x, 0, sizeof x);
    for (int i = 0; i < 32; i++)
        x[i] = (float)i - 15.5f; /* halves go to the even neighbour once the scale is 1 */
    x[0] = 127.0f;
    x[40] = 1e-30f; /* a block whose scale does not fit binary16 is all zeros */
    x[64] = NAN;
    x[96] = INFINITY;
    x[128] = 0x1p-149f;
    st_act_quantize(ST_ACT_Q8, x, 256, &row);
    assert_true(row.d[0] == 1.0f);
    int sum = 0;
    for (int i = 0; i < 32; i++) {
        assert_int_equal(row.q[i], (int)nearbyintf(x[i]));
        sum += row.q[i];
    }
    assert_true(row.s[0] == st_f16_to_f32(st_f32_to_f16((float)sum)) && row.sums[0] + row.sums[1] == sum);
    assert_true(row.d[1] == 0.0f && row.q[40] == 0 && row.s[1] == 0.0f);
    assert_true(isnan(row.d[2]) && isinf(row.d[3]) && row.d[4] == 0.0f);

    st_act_bind(ST_ACT_Q8K, 256, memory, &row);
    memset(x, 0, sizeof x);
    x[3] = -2.0f;
    x[4] =
        2.0f; /* a tie: the first one counts, and it becomes -127 times a positive scale or 127 times a negative one */
    st_act_quantize(ST_ACT_Q8K, x, 256, &row);
    assert_int_equal(row.q[3], -127);
    assert_int_equal(row.q[4], 127);
    assert_true(row.d[0] == 1.0f / (-127.0f / -2.0f) && row.sums[0] == 0);
    memset(x, 0, sizeof x);
    st_act_quantize(ST_ACT_Q8K, x, 256, &row);
    assert_true(row.d[0] == 0.0f);
}

static void float_dot_pads_a_short_tail_with_zeros(void **state)
{
    (void)state;
    float w[64], x[64], acc[16];
    for (int i = 0; i < 64; i++) {
        w[i] = noise();
        x[i] = noise();
    }
    for (size_t n = 0; n <= 48; n++) {
        memset(acc, 0, sizeof acc);
        for (size_t i = 0; i < n; i++)
            acc[i % 16] = fmaf(x[i], w[i], acc[i % 16]);
        for (int half = 8; half; half /= 2)
            for (int j = 0; j < half; j++)
                acc[j] += acc[j + half];
        assert_true(st_dot_f32(w, x, n) == acc[0]);
    }
}

/* ---- hostile blocks ---- */

static void any_bytes_decode_and_multiply_without_a_crash(void **state)
{
    (void)state;
    static float x[256], y[256];
    static uint8_t w[256 * 4];
    static _Alignas(64) char memory[2][2048];
    struct st_act_row rows[ST_ACT_COUNT];
    for (int i = 0; i < 256; i++)
        x[i] = noise();
    for (int kind = 0; kind < ST_ACT_COUNT; kind++) {
        st_act_bind((enum st_act)kind, 256, memory[kind == ST_ACT_Q8], &rows[kind]);
        st_act_quantize((enum st_act)kind, x, 256, &rows[kind]);
    }
    for (int id = 0; id < ST_TYPE_COUNT; id++) {
        const struct st_type_info *info = st_type_info(id);
        for (int round = 0; info && round < 20; round++) {
            for (size_t i = 0; i < sizeof w; i++)
                w[i] = round == 0 ? 0xff : round == 1 ? 0x7c : round == 2 ? 0x80 : (uint8_t)rng();
            info->decode(w, y, 256);
            float a = info->dot(w, &rows[info->act], 256), b;
            st_dot_table_c()->rows[id](&b, w, 0, 1, &rows[info->act], 1, 1, 256);
            assert_true(st_f32_bits(a) == st_f32_bits(b) || (isnan(a) && isnan(b)));
        }
    }
}

static void encoders_survive_values_that_are_not_numbers(void **state)
{
    (void)state;
    static float x[256], y[256];
    static uint8_t w[256 * 4];
    static const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e-44f, 0.0f};
    for (int id = 0; id < ST_TYPE_COUNT; id++) {
        const struct st_type_info *info = st_type_info(id);
        if (!info || !info->encode)
            continue;
        for (size_t b = 0; b < sizeof bad / sizeof bad[0]; b++) {
            for (int i = 0; i < 256; i++)
                x[i] = i % 3 ? bad[b] : noise();
            info->encode(x, w, 256, NULL);
            info->decode(w, y, 256);
            for (int i = 0; i < 256; i++)
                x[i] = bad[b];
            info->encode(x, w, 256, x); /* and as importance */
            info->decode(w, y, 256);
            if (bad[b] == 0.0f)
                for (int i = 0; i < 256; i++)
                    assert_true(y[i] == 0.0f);
        }
    }
}

/* ---- encoders ---- */

/* Plain encoders by the written rules: the search may not be worse. Values that the stored block would decode to. */
static void plain_values(int type, const float *x, float *y)
{
    float m = 0.0f, lo = x[0], hi = x[0];
    int n = type == ST_TYPE_Q2_0 ? 64 : 32;
    for (int i = 0; i < n; i++) {
        m = fabsf(x[i]) > fabsf(m) ? x[i] : m;
        lo = fminf(lo, x[i]);
        hi = fmaxf(hi, x[i]);
    }
#define HALF(v) st_f16_to_f32(st_f32_to_f16(v))
    for (int i = 0; i < n; i++) {
        float d, id;
        switch (type) {
        case ST_TYPE_Q8_0:
            d = fabsf(m) / 127.0f;
            y[i] = HALF(d) * roundf(x[i] * (1.0f / d));
            break;
        case ST_TYPE_Q4_0:
            d = m / -8.0f;
            y[i] = HALF(d) * (fminf(15.0f, truncf(x[i] * (1.0f / d) + 8.5f)) - 8.0f);
            break;
        case ST_TYPE_Q5_0:
            d = m / -16.0f;
            y[i] = HALF(d) * (fminf(31.0f, truncf(x[i] * (1.0f / d) + 16.5f)) - 16.0f);
            break;
        case ST_TYPE_Q4_1:
        case ST_TYPE_Q5_1:
            d = (hi - lo) / (type == ST_TYPE_Q4_1 ? 15.0f : 31.0f);
            id = 1.0f / d;
            y[i] = HALF(d) * fminf(type == ST_TYPE_Q4_1 ? 15.0f : 31.0f, truncf((x[i] - lo) * id + 0.5f)) + HALF(lo);
            break;
        case ST_TYPE_Q2_0:
            d = fabsf(m);
            y[i] = HALF(d) * (fmaxf(0.0f, fminf(3.0f, roundf(x[i] / d) + 1.0f)) - 1.0f);
            break;
        }
    }
#undef HALF
}

static void the_search_is_not_worse_than_the_plain_encoders(void **state)
{
    (void)state;
    static const int types[] = {ST_TYPE_Q8_0, ST_TYPE_Q4_0, ST_TYPE_Q4_1, ST_TYPE_Q5_0, ST_TYPE_Q5_1, ST_TYPE_Q2_0};
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        const struct st_type_info *info = st_type_info(types[t]);
        size_t n = info->block_elems;
        for (int round = 0; round < 500; round++) {
            float x[64], y[64], z[64];
            uint8_t w[64];
            float size = ldexpf(1.0f, (int)(rng() % 20) - 10), shift = round % 3 ? 0.0f : noise();
            for (size_t i = 0; i < n; i++)
                x[i] = size * (noise() + shift);
            info->encode(x, w, n, NULL);
            info->decode(w, y, n);
            plain_values(types[t], x, z);
            double searched = squared_error(x, y, NULL, n), plain = squared_error(x, z, NULL, n);
            if (!(searched <= plain * (1 + 1e-5) + 1e-12 * (double)size * size))
                fail_msg("%s round %d: %g, plain %g", info->name, round, searched, plain);
        }
    }
}

/* Error relative to the values' own size on normal noise; the bounds are a little above what the search reaches. */
static void encoders_stay_within_their_error_bounds(void **state)
{
    (void)state;
    static const struct {
        int type;
        double bound;
    } cases[] = {
        {ST_TYPE_F32, 0},        {ST_TYPE_F16, 3e-4},    {ST_TYPE_BF16, 2.4e-3}, {ST_TYPE_Q8_0, 0.0055},
        {ST_TYPE_Q6_K, 0.0175},  {ST_TYPE_Q5_K, 0.0345}, {ST_TYPE_Q5_1, 0.034},  {ST_TYPE_Q5_0, 0.0385},
        {ST_TYPE_Q4_K, 0.070},   {ST_TYPE_Q4_1, 0.070},  {ST_TYPE_Q4_0, 0.078},  {ST_TYPE_IQ4_NL, 0.0725},
        {ST_TYPE_IQ4_XS, 0.073}, {ST_TYPE_MXFP4, 0.11},  {ST_TYPE_Q3_K, 0.142},  {ST_TYPE_IQ3_XXS, 0.178},
        {ST_TYPE_Q2_0, 0.349},
    };
    enum { N = 256 * 32 };
    static float x[N], y[N];
    static uint8_t w[4 * N];
    for (int i = 0; i < N; i++)
        x[i] = 0.02f * noise();
    double power = squared_error(x, y, NULL, N);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        const struct st_type_info *info = st_type_info(cases[c].type);
        clock_t start = clock();
        info->encode(x, w, N, NULL);
        double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
        info->decode(w, y, N);
        double error = sqrt(squared_error(x, y, NULL, N) / power);
        print_message("# %-8s relative error %.5f, %.2f M weights/s\n", info->name, error, N / seconds / 1e6);
        if (!(error <= cases[c].bound))
            fail_msg("%s: relative error %g above %g", info->name, error, cases[c].bound);
    }
}

static void importance_moves_the_error_to_unimportant_weights(void **state)
{
    (void)state;
    enum { N = 256 * 16 };
    static float x[N], y[N], z[N], importance[N];
    static uint8_t w[4 * N];
    for (int i = 0; i < N; i++) {
        x[i] = noise();
        importance[i] = i % 4 == 1 ? 20.0f : 0.1f;
    }
    for (int id = 0; id < ST_TYPE_COUNT; id++) {
        const struct st_type_info *info = st_type_info(id);
        if (!info || !info->encode || info->block_elems == 1 || id == ST_TYPE_Q8_0)
            continue;
        info->encode(x, w, N, NULL);
        info->decode(w, y, N);
        info->encode(x, w, N, importance);
        info->decode(w, z, N);
        double equal = squared_error(x, y, importance, N), weighted = squared_error(x, z, importance, N);
        if (!(weighted < equal))
            fail_msg("%s: weighted error %g with importance, %g without", info->name, weighted, equal);
    }
}

/* The exhaustive search over all 256 points is the best there is for given scales; the short lists come close to it. */
static void iq3_neighbours_come_close_to_the_full_search(void **state)
{
    (void)state;
    enum { N = 256 * 16 };
    static float x[N], y[N];
    static uint8_t w[98 * 16];
    double found = 0, best_possible = 0;
    for (int i = 0; i < N; i++)
        x[i] = noise();
    st_type_info(ST_TYPE_IQ3_XXS)->encode(x, w, N, NULL);
    st_type_info(ST_TYPE_IQ3_XXS)->decode(w, y, N);
    found = squared_error(x, y, NULL, N);
    for (int i = 0; i < N; i += 4) {
        const uint8_t *p = w + 98 * (i / 256);
        uint32_t a = st_load32(p + 66 + 4 * (i % 256 / 32)), signs = st_signs7(a >> 7 * (i % 32 / 8) & 127) >> i % 8;
        float scale = 0.25f * st_f16_to_f32(st_load16(p)) * (float)(2 * (a >> 28) + 1);
        double best = INFINITY;
        for (int g = 0; g < 256; g++) {
            double d = 0;
            for (int j = 0; j < 4; j++) {
                double v = (double)scale * (st_grid_iq3xxs[g] >> 8 * j & 255) * (signs >> j & 1 ? -1 : 1) - x[i + j];
                d += v * v;
            }
            best = d < best ? d : best;
        }
        best_possible += best;
    }
    assert_true(found >= best_possible * (1 - 1e-6));
    if (!(found <= 1.01 * best_possible))
        fail_msg("error %g, full search %g", found, best_possible);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grids_have_the_published_checksums),
        cmocka_unit_test(f16_round_trips_and_rounds_to_nearest_even),
        cmocka_unit_test(bf16_round_trips_and_rounds_to_nearest_even),
        cmocka_unit_test(unknown_and_removed_types_have_no_description),
        cmocka_unit_test(every_type_decodes_to_the_published_vectors),
        cmocka_unit_test(dots_match_the_published_vectors),
        cmocka_unit_test(activation_rounding_is_defined_at_its_edges),
        cmocka_unit_test(float_dot_pads_a_short_tail_with_zeros),
        cmocka_unit_test(any_bytes_decode_and_multiply_without_a_crash),
        cmocka_unit_test(encoders_survive_values_that_are_not_numbers),
        cmocka_unit_test(the_search_is_not_worse_than_the_plain_encoders),
        cmocka_unit_test(encoders_stay_within_their_error_bounds),
        cmocka_unit_test(importance_moves_the_error_to_unimportant_weights),
        cmocka_unit_test(iq3_neighbours_come_close_to_the_full_search),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
