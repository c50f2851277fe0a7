/* Measures what weights that are repacked at load would bring on a CPU with AVX2: blocks of eight rows side by side, so
 * that a register of the products (docs/numerics.md; the same four bytes of eight rows) is one load, where the engine
 * reads the file's layout and turns it around with shuffles. One thread; the results must be equal to the bit.
 *
 *     repack-cpu
 *
 * Repacked layout of a block of eight rows: their eight scales (f16), then for each four bytes of codes those of row 0,
 * of row 1 and so on. It takes as many bytes as the file's. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "kernel/dot.h"
#include "kernel/x86/dot_ops_avx2.h"

enum { COLUMNS = 2560, ROUNDS = 15, MOST_ROWS = 8 };

static void repack(const struct st_type_info *info, const uint8_t *from, size_t row_bytes, size_t rows, uint8_t *to)
{
    size_t words = (info->block_bytes - 2) / 4;
    for (size_t group = 0; group < rows; group += LANES)
        for (size_t b = 0; b < row_bytes; b += info->block_bytes, to += LANES * info->block_bytes)
            for (size_t r = 0; r < LANES; r++) {
                const uint8_t *block = from + (group + r) * row_bytes + b;
                memcpy(to + 2 * r, block, 2);
                for (size_t i = 0; i < words; i++)
                    memcpy(to + 2 * LANES + 4 * (LANES * i + r), block + 2 + 4 * i, 4);
            }
}

V_INLINE void load_words(const uint8_t *p, vi *out, int count)
{
    for (int i = 0; i < count; i++)
        out[i] = _mm256_loadu_si256((const __m256i *)(p + 2 * LANES + 4 * LANES * i));
}

/* Adds one block of 32 (64: of Q2_0) elements for nx activation rows. */
V_INLINE void add_block(int type, const uint8_t *p, const struct st_act_row *x, int nx, size_t at, vf *acc)
{
    vi word[8], code[8], sum[BATCH];
    vf d = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
    load_words(p, word, type == ST_TYPE_Q8_0 ? 8 : 4);
    for (int t = 0; t < (type == ST_TYPE_Q2_0 ? 2 : 1); t++, at += 32) {
        for (int k = 0; k < nx; k++)
            sum[k] =
                type == ST_TYPE_Q4_0 ? dot_sums(vi_set1(0), vi_set1((int)0xfff8fff8), x[k].sums + at / 16) : vi_set1(0);
        for (int i = 0; type == ST_TYPE_Q4_0 && i < 4; i++) {
            code[i] = vi_and(word[i], _mm256_set1_epi8(15));
            code[i + 4] = vi_and(vi_srl(word[i], 4), _mm256_set1_epi8(15));
        }
        if (type == ST_TYPE_Q2_0)
            dot_two_bits(sum, word + 2 * t, x, nx, at);
        else
            dot_plain(sum, type == ST_TYPE_Q8_0 ? word : code, 8, x, nx, at, type == ST_TYPE_Q8_0 ? 0 : 15);
        for (int k = 0; k < nx; k++)
            acc[k] = vf_fma(vf_mul(d, vf_set1(x[k].d[at / 32])), vf_from_int(sum[k]), acc[k]);
    }
}

V_INLINE void add_rows(int type, float *y, const uint8_t *p, size_t rows, const struct st_act_row *x, int count)
{
    const struct st_type_info *info = st_type_info(type);
    for (size_t r = 0; r < rows; r += LANES) {
        vf acc[MOST_ROWS];
        for (int j = 0; j < count; j++)
            acc[j] = vf_zero();
        for (size_t i = 0; i < COLUMNS; i += info->block_elems, p += LANES * info->block_bytes)
            for (int j = 0; j < count; j += BATCH)
                add_block(type, p, x + j, count < BATCH ? count : BATCH, i, acc + j);
        for (int j = 0; j < count; j++)
            vf_store(y + (size_t)j * rows + r, acc[j]);
    }
}

/* count: 1 or 8 activation rows. */
static void repacked(int type, float *y, const uint8_t *w, size_t rows, const struct st_act_row *x, int count)
{
    if (type == ST_TYPE_Q8_0 && count == 1)
        add_rows(ST_TYPE_Q8_0, y, w, rows, x, 1);
    else if (type == ST_TYPE_Q8_0)
        add_rows(ST_TYPE_Q8_0, y, w, rows, x, 8);
    else if (type == ST_TYPE_Q4_0 && count == 1)
        add_rows(ST_TYPE_Q4_0, y, w, rows, x, 1);
    else if (type == ST_TYPE_Q4_0)
        add_rows(ST_TYPE_Q4_0, y, w, rows, x, 8);
    else if (count == 1)
        add_rows(ST_TYPE_Q2_0, y, w, rows, x, 1);
    else
        add_rows(ST_TYPE_Q2_0, y, w, rows, x, 8);
}

/* Processor time of this thread, which other programs do not disturb much. */
static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The order in which Q2_0's codes come out of their bytes (dot_lanes.inc). */
static void every_fourth(const int8_t *q, int8_t *out)
{
    for (size_t i = 0; i < COLUMNS; i++)
        out[i / 16 * 16 + i % 4 * 4 + i % 16 / 4] = q[i];
}

static int measure(int type, size_t rows, int repeat, int count, const char *where)
{
    const struct st_type_info *info = st_type_info(type);
    const struct st_dot_table *table = st_dot_table_avx2();
    const size_t row_bytes = COLUMNS / info->block_elems * info->block_bytes, bytes = rows * row_bytes;
    static float from[COLUMNS];
    static int8_t ordered[MOST_ROWS][COLUMNS];
    struct st_act_row x[MOST_ROWS], turned[MOST_ROWS];
    uint8_t *w = malloc(bytes + 64), *packed = malloc(bytes);
    float *y = calloc(2 * rows * (size_t)count, sizeof *y);
    uint8_t *memory = aligned_alloc(64, MOST_ROWS * st_act_bytes(ST_ACT_Q8, COLUMNS));
    if (!table || !w || !packed || !y || !memory) {
        fprintf(stderr, "repack-cpu: no AVX2, or no memory\n");
        return 1;
    }
    uint64_t random = 88172645463325252u;
    for (size_t i = 0; i < bytes; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        w[i] = (uint8_t)(i % info->block_bytes == 1 ? 0x20 | (random >> 40 & 3) : random >> 40); /* moderate halves */
    }
    repack(info, w, row_bytes, rows, packed);
    for (int j = 0; j < count; j++) {
        for (size_t i = 0; i < COLUMNS; i++)
            from[i] = sinf((float)i + (float)j);
        st_act_bind(ST_ACT_Q8, COLUMNS, memory + (size_t)j * st_act_bytes(ST_ACT_Q8, COLUMNS), &x[j]);
        st_act_quantize(ST_ACT_Q8, from, COLUMNS, &x[j]);
        every_fourth(x[j].q, ordered[j]);
        turned[j] = x[j];
        turned[j].q = type == ST_TYPE_Q2_0 ? ordered[j] : x[j].q;
    }
    double best[2] = {1e9, 1e9};
    for (int round = 0; round < ROUNDS; round++)
        for (int form = 0; form < 2; form++) {
            const double start = seconds();
            for (int k = 0; k < repeat; k++) {
                if (form == 0)
                    table->rows[type](y, w, row_bytes, (int)rows, x, count, rows, COLUMNS);
                else
                    repacked(type, y + rows * (size_t)count, packed, rows, turned, count);
            }
            best[form] = fmin(best[form], (seconds() - start) / repeat);
        }
    bool same = !memcmp(y, y + rows * (size_t)count, rows * (size_t)count * sizeof *y);
    printf("| %s | %s | %d | %.2f | %.2f | %.2f |%s\n", info->name, where, count, (double)bytes / best[0] * 1e-9,
           (double)bytes / best[1] * 1e-9, best[0] / best[1], same ? "" : " results differ");
    free(w);
    free(packed);
    free(y);
    free(memory);
    return !same;
}

int main(void)
{
    static const struct {
        int type;
        size_t memory, cache;
    } cases[] = {{ST_TYPE_Q8_0, 73728, 128}, {ST_TYPE_Q4_0, 131072, 256}, {ST_TYPE_Q2_0, 262144, 512}};
    int bad = 0;
    printf("| type | weights | activation rows | file's layout GB/s | repacked GB/s | speed-up "
           "|\n|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < 3; i++)
        for (int count = 1; count <= 8; count += 7) {
            bad |= measure(cases[i].type, cases[i].memory, 1, count, "memory");
            bad |= measure(cases[i].type, cases[i].cache, 200, count, "cache");
        }
    return bad;
}
