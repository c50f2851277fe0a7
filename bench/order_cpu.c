/* Measures what the defined order of float sums (docs/numerics.md) costs on a CPU with AVX2: the products that the
 * engine uses, one accumulator per output in ascending block order, beside forms that spread the sum over the lanes of
 * a register and add these up at the end. One thread; weights once from memory and once from the cache.
 *
 *     order-cpu */
#include <immintrin.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernel/dot.h"

enum { COLUMNS = 2560, ROUNDS = 25 };
#define AVX2 __attribute__((target("avx2,fma,f16c")))

AVX2 static float half(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}

AVX2 static float lanes(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

AVX2 static void free_q8_0(float *y, const uint8_t *w, size_t rows, const struct st_act_row *x)
{
    const __m256i ones = _mm256_set1_epi16(1);
    for (size_t r = 0; r < rows; r++) {
        __m256 acc[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
        for (size_t b = 0; b < COLUMNS / 32; b++, w += 34) {
            const __m256i a = _mm256_loadu_si256((const __m256i *)(w + 2));
            const __m256i q = _mm256_loadu_si256((const __m256i *)(x->q + 32 * b));
            const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(a), _mm256_sign_epi8(q, a));
            const __m256 sums = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, ones));
            acc[b % 2] = _mm256_fmadd_ps(_mm256_set1_ps(half(w) * x->d[b]), sums, acc[b % 2]);
        }
        y[r] = lanes(_mm256_add_ps(acc[0], acc[1]));
    }
}

/* What a two-bit product reads of a row of activations, per block of 64: the bytes of elements 4 b + k together for
 * each k; the sums of both halves where the sums of the products stand. */
struct two_bit_row {
    int8_t q[COLUMNS];
    int32_t sums[COLUMNS / 64][8];
};

AVX2 static void free_q2_0(float *y, const uint8_t *w, size_t rows, const struct st_act_row *x,
                           const struct two_bit_row *t)
{
    const __m256i ones = _mm256_set1_epi16(1), mask = _mm256_set1_epi8(3);
    for (size_t r = 0; r < rows; r++) {
        __m256 acc[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
        for (size_t b = 0; b < COLUMNS / 64; b++, w += 18) {
            const __m256i bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(w + 2)));
            const __m256i low = _mm256_and_si256(_mm256_srlv_epi64(bytes, _mm256_setr_epi64x(0, 0, 2, 2)), mask);
            const __m256i high = _mm256_and_si256(_mm256_srlv_epi64(bytes, _mm256_setr_epi64x(4, 4, 6, 6)), mask);
            const __m256i q0 = _mm256_loadu_si256((const __m256i *)(t->q + 64 * b));
            const __m256i q1 = _mm256_loadu_si256((const __m256i *)(t->q + 64 * b + 32));
            const __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(low, q0), _mm256_maddubs_epi16(high, q1));
            const __m256i all =
                _mm256_sub_epi32(_mm256_madd_epi16(pairs, ones), _mm256_loadu_si256((const __m256i *)t->sums[b]));
            const float d = half(w);
            const __m128 scale =
                _mm_setr_ps(d * x->d[2 * b], d * x->d[2 * b], d * x->d[2 * b + 1], d * x->d[2 * b + 1]);
            acc[b % 2] = _mm256_fmadd_ps(_mm256_set_m128(scale, scale), _mm256_cvtepi32_ps(all), acc[b % 2]);
        }
        y[r] = lanes(_mm256_add_ps(acc[0], acc[1]));
    }
}

static void arrange(const struct st_act_row *x, struct two_bit_row *t)
{
    memset(t, 0, sizeof *t);
    for (size_t i = 0; i < COLUMNS; i++) {
        t->q[i / 64 * 64 + i % 4 * 16 + i % 64 / 4] = x->q[i];
        t->sums[i / 64][i % 64 / 32 * 2] += x->q[i];
    }
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Both forms in turn, the best of many rounds of each; they must agree but for rounding. */
static int measure(int type, size_t rows, int repeat, const char *where)
{
    const struct st_type_info *info = st_type_info(type);
    const struct st_dot_table *table = st_dot_table_avx2();
    const size_t row_bytes = COLUMNS / info->block_elems * info->block_bytes;
    uint8_t *w = malloc(rows * row_bytes + 64);
    float *y = malloc(2 * rows * sizeof *y), *from = malloc(COLUMNS * sizeof *from);
    void *memory = aligned_alloc(64, st_act_bytes(ST_ACT_Q8, COLUMNS));
    struct two_bit_row *t = malloc(sizeof *t);
    if (!table || !w || !y || !from || !memory || !t) {
        fprintf(stderr, "order-cpu: no AVX2, or no memory\n");
        return 1;
    }
    uint64_t random = 88172645463325252u;
    for (size_t i = 0; i < rows * row_bytes; i++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        w[i] = (uint8_t)(i % info->block_bytes == 1 ? 0x20 | (random & 3) : random); /* halves of moderate size */
    }
    for (size_t i = 0; i < COLUMNS; i++)
        from[i] = sinf((float)i);
    struct st_act_row x;
    st_act_bind(ST_ACT_Q8, COLUMNS, memory, &x);
    st_act_quantize(ST_ACT_Q8, from, COLUMNS, &x);
    arrange(&x, t);
    double best[2] = {1e9, 1e9}, worst = 0;
    for (int round = 0; round < ROUNDS; round++)
        for (int form = 0; form < 2; form++) {
            const double start = seconds();
            for (int k = 0; k < repeat; k++) {
                if (form == 0)
                    table->rows[type](y, w, row_bytes, (int)rows, &x, 1, rows, COLUMNS);
                else if (type == ST_TYPE_Q8_0)
                    free_q8_0(y + rows, w, rows, &x);
                else
                    free_q2_0(y + rows, w, rows, &x, t);
            }
            const double took = (seconds() - start) / repeat;
            best[form] = took < best[form] ? took : best[form];
        }
    for (size_t r = 0; r < rows; r++)
        worst = fmax(worst, fabs((double)y[r] - (double)y[rows + r]) / (fabs((double)y[r]) + 1e-3));
    printf("%-5s %s  ordered %9.1f us %6.2f GB/s   free %9.1f us %6.2f GB/s   ordered takes %.2f of free   difference "
           "%.1e\n",
           info->name, where, best[0] * 1e6, (double)(rows * row_bytes) / best[0] * 1e-9, best[1] * 1e6,
           (double)(rows * row_bytes) / best[1] * 1e-9, best[0] / best[1], worst);
    free(w);
    free(y);
    free(from);
    free(memory);
    free(t);
    return worst > 1e-2;
}

int main(void)
{
    int bad = measure(ST_TYPE_Q8_0, 49152, 1, "memory");
    bad |= measure(ST_TYPE_Q2_0, 131072, 1, "memory");
    bad |= measure(ST_TYPE_Q8_0, 128, 200, "cache ");
    bad |= measure(ST_TYPE_Q2_0, 512, 100, "cache ");
    return bad;
}
