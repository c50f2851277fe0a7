/* The C form of the GPU kernel families, on host memory: what the GPU kernels are compared with, and what simulated
 * devices run on the CPU. Products come from a dot table, so that the same code runs as reference and fast. */
#include "kernel/gpu_rows.h"

#include <math.h>
#include <string.h>

#include "kernel/exact_math.h"
#include "kernel/gpu/layout.h"
#include "kernel/gpu_gemm.h"
#include "kernel/gpu_sample.h"

static void *at(union st_arg a)
{
    return (void *)(uintptr_t)a.p;
}

/* ---- norm ---- */

enum { ITEMS = 256 };

/* The sum of squares in the order of norm.cl: 256 strided sums, butterflies of 32, eight sums ascending. */
static float sum_of_squares(const float *x, uint32_t n)
{
    float sum[ITEMS] = {0}, total = 0.0f;
    for (uint32_t i = 0; i < n; i++)
        sum[i % ITEMS] = fmaf(x[i], x[i], sum[i % ITEMS]);
    for (int part = 0; part < ITEMS; part += 32) {
        float *v = sum + part;
        for (int mask = 16; mask > 0; mask /= 2)
            for (int j = 0; j < mask; j++)
                v[j] = v[j] + v[j + mask];
        total = part == 0 ? v[0] : total + v[0];
    }
    return total;
}

static void norm_row(float *y, const float *x, const float *gamma, uint32_t n, uint32_t group, uint32_t gammas,
                     float eps)
{
    for (uint32_t start = 0; start < n; start += group) {
        const float inverse = 1.0f / sqrtf(sum_of_squares(x + start, group) / (float)group + eps);
        for (uint32_t i = start; i < start + group; i++)
            y[i] = x[i] * inverse * gamma[i % gammas];
    }
}

/* One row of x to one row of the GPU's layout, by way of the CPU's. */
static void quantize_row(enum st_act act, uint8_t *to, const float *x, uint32_t n)
{
    const uint32_t part = act == ST_ACT_Q8 ? 32 : 256;
    float d, s;
    int8_t q[256];
    int16_t sums[16];
    for (uint32_t i = 0; i < n; i += part) {
        struct st_act_row row = {.q = q, .d = &d, .s = &s, .sums = sums};
        st_act_quantize(act, x + i, part, &row);
        memcpy(to + (act == ST_ACT_Q8 ? ST_Q8_SCALES(n) + i / 8 : ST_Q8K_SCALES(n) + i / 64), &d, 4);
        if (act == ST_ACT_Q8)
            memcpy(to + ST_Q8_S(n) + i / 8, &s, 4);
        for (uint32_t b = 0; b < part / 32; b++) {
            int32_t sum = sums[2 * b] + sums[2 * b + 1];
            memcpy(to + (act == ST_ACT_Q8 ? ST_Q8_SUMS(n) : ST_Q8K_SUMS(n)) + (i / 32 + b) * 4, &sum, 4);
        }
        for (uint32_t t = 0; act == ST_ACT_Q8K && t < 16; t++) {
            int upper = (sums[t] + ST_PAIR / 2) >> 6;
            to[ST_Q8K_PAIRS(n) + i / 8 + t] = (uint8_t)upper;
            to[ST_Q8K_PAIRS(n) + i / 8 + 16 + t] = (uint8_t)(sums[t] - ST_PAIR * upper);
        }
        for (uint32_t e = i; e < i + part; e++) {
            to[ST_PLACE(n, e)] = (uint8_t)q[e - i];
            to[(act == ST_ACT_Q8 ? ST_Q8_PLAIN(n) : ST_Q8K_PLAIN(n)) + e] = (uint8_t)q[e - i];
            if (act == ST_ACT_Q8)
                to[ST_Q8_TRANSPOSED(n) + ST_T_PLACE(n, e)] = (uint8_t)q[e - i];
        }
    }
}

static void norm(enum st_act act, const uint32_t grid[3], const union st_arg *args)
{
    const union st_arg *a = args + (act == ST_ACT_F32 ? 0 : 1);
    const uint32_t n = a[3].i;
    for (uint32_t r = 0; r < grid[1]; r++) {
        float *y = (float *)at(args[0]) + (size_t)r * n;
        norm_row(y, (const float *)at(a[1]) + (size_t)r * n, at(a[2]), n, a[4].i, a[5].i, a[6].f);
        if (act != ST_ACT_F32)
            quantize_row(act,
                         (uint8_t *)at(args[1]) + (size_t)r * (act == ST_ACT_Q8 ? ST_Q8_STRIDE(n) : ST_Q8K_STRIDE(n)),
                         y, n);
    }
}

static void quantize(enum st_act act, const uint32_t grid[3], const union st_arg *args)
{
    const uint32_t n = args[2].i;
    for (uint32_t r = 0; r < grid[1]; r++)
        quantize_row(act, (uint8_t *)at(args[0]) + (size_t)r * (act == ST_ACT_Q8 ? ST_Q8_STRIDE(n) : ST_Q8K_STRIDE(n)),
                     (const float *)at(args[1]) + (size_t)r * n, n);
}

/* ---- products ---- */

static size_t row_bytes(int type, uint32_t n)
{
    const struct st_type_info *info = st_type_info(type);
    return (size_t)n / info->block_elems * info->block_bytes;
}

/* y[0 .. rows) = w . x for one activation row in the GPU's layout. */
static void product_row(const struct st_dot_table *dot, int type, float *y, const uint8_t *w, uint32_t rows,
                        const uint8_t *x, uint32_t n)
{
    int8_t q[ST_GPU_COLUMNS];
    int16_t sums[ST_GPU_COLUMNS / 16];
    struct st_act_row row = {.q = q, .sums = sums};
    row.d = (float *)(uintptr_t)(x + (st_type_info(type)->act == ST_ACT_Q8 ? ST_Q8_SCALES(n) : ST_Q8K_SCALES(n)));
    row.s = (float *)(uintptr_t)(x + ST_Q8_S(n));
    for (uint32_t t = 0; t < n / 16; t++) {
        sums[t] = 0;
        memcpy(q + 16 * t, x + ST_PLACE(n, 16 * t), 16);
        for (uint32_t j = 0; j < 16; j++)
            sums[t] = (int16_t)(sums[t] + q[16 * t + j]);
    }
    dot->rows[type](y, w, row_bytes(type, n), (int)rows, &row, 1, rows, n);
}

static void matvec(const struct st_dot_table *dot, int type, const union st_arg *args)
{
    const uint32_t n = args[3].i, rows = args[4].i, count = args[5].i, ldy = args[6].i;
    const size_t stride = st_type_info(type)->act == ST_ACT_Q8 ? ST_Q8_STRIDE(n) : ST_Q8K_STRIDE(n);
    for (uint32_t m = 0; m < count; m++)
        product_row(dot, type, (float *)at(args[0]) + (size_t)m * ldy, at(args[1]), rows,
                    (const uint8_t *)at(args[2]) + m * stride, n);
}

enum { STRIP = 64 }; /* rows of gate and up that are computed before they are joined */

/* ---- products of rows.h ---- */

/* y[0 .. rows) = w . x for one activation row. */
static void one_row(const struct st_dot_table *dot, int type, enum st_act act, float *y, const uint8_t *w, uint32_t rows,
                    const uint8_t *x, uint32_t n)
{
    struct st_act_row row = {.f = (const float *)(const void *)x};
    if (act == ST_ACT_F32)
        dot->rows_f32[type](y, w, row_bytes(type, n), (int)rows, &row, 1, rows, n);
    else
        product_row(dot, type, y, w, rows, x, n);
}

/* A launch's numbers; the order is that of st_gpu_rows. */
struct rows_args {
    const union st_arg *a;
    const int32_t *first, *entry, *expert;
    const float *scales;
    const uint64_t *places; /* NULL: one after the other */
    uint64_t expert_bytes;
    uint32_t n, row_bytes, total, stride, used, mode, scaled, joint, join, streams, finish;
};

/* Bytes from the first matrix to that of expert e, ST_NO_PLACE when it is not there. */
static uint64_t place_of(const uint64_t *places, uint64_t expert_bytes, uint32_t e)
{
    return places ? places[e] : e * expert_bytes;
}

static struct rows_args rows_args(const union st_arg *a)
{
    const uint32_t mode = a[18].i & ~(uint32_t)ST_ROWS_PLACED;
    return (struct rows_args){.a = a,
                              .first = at(a[9]),
                              .entry = at(a[10]),
                              .expert = at(a[11]),
                              .scales = at(a[12]),
                              .places = a[18].i & ST_ROWS_PLACED ? at(a[6]) : NULL,
                              .expert_bytes = mode == ST_ROWS_DENSE ? 0 : a[29].i,
                              .n = a[13].i,
                              .row_bytes = a[14].i,
                              .total = a[15].i,
                              .stride = a[16].i,
                              .used = a[17].i,
                              .mode = mode,
                              .scaled = a[19].i,
                              .joint = a[20].i & 255,
                              .join = a[20].i >> 8 & 255,
                              .streams = a[20].i >> 16,
                              .finish = a[21].i};
}

/* What becomes of the products of one matrix in output row i. */
static void finish_rows(float *y, uint32_t rows, uint32_t finish, uint32_t streams)
{
    for (uint32_t o = 0; o < rows && finish != ST_ROWS_FINISH_NONE; o++) {
        float v = y[o] * (1.0f / (float)streams);
        y[o] = finish == ST_ROWS_FINISH_SILU ? st_siluf(v) : 2.0f * st_sigmoidf(v);
    }
}

/* sums += sigmoid(y) * values, elementwise. */
static void join_stream(float *sums, const float *y, const float *values, uint32_t rows)
{
    for (uint32_t o = 0; o < rows; o++)
        sums[o] = fmaf(st_sigmoidf(y[o]), values[o], sums[o]);
}

/* Rows [from, from + count) of a product that is computed in strips, for output row i of expert e. */
static void strip(const struct st_dot_table *dot, int type, enum st_act act, const struct rows_args *r, uint32_t matrix,
                  uint32_t e, uint32_t i, uint32_t from, uint32_t count)
{
    const union st_arg *a = r->a;
    const uint32_t rows = a[24 + matrix].i, ldy = a[28 + matrix].i, input = r->used ? (uint32_t)r->entry[i] / r->used : i;
    const uint8_t *x = (const uint8_t *)at(a[8]) + (size_t)input * r->stride;
    const size_t skip = place_of(r->places, r->expert_bytes, e) + (size_t)from * r->row_bytes;
    const uint8_t *w = (const uint8_t *)at(a[4 + matrix]) + skip;
    float *y = (float *)at(a[matrix]) + (size_t)i * ldy + from, other[STRIP], sums[STRIP] = {0};
    one_row(dot, type, act, y, w, count, x, r->n);
    for (uint32_t o = 0; r->scaled && o < count; o++)
        y[o] *= r->scales[r->scaled == 2 ? e : 0];
    if (r->join == ST_ROWS_JOIN_SWIGLU) {
        one_row(dot, type, act, other, (const uint8_t *)at(a[5]) + skip, count, x, r->n);
        for (uint32_t o = 0; o < count; o++)
            y[o] = st_siluf(y[o]) * other[o];
    } else if (r->join == ST_ROWS_JOIN_MEAN) {
        const float *values = (const float *)at(a[5]) + (size_t)i * r->joint * rows + from;
        join_stream(sums, y, values, count);
        for (uint32_t c = 1; c < r->joint; c++) {
            one_row(dot, type, act, other, w + (size_t)c * rows * r->row_bytes, count, x, r->n);
            join_stream(sums, other, values + (size_t)c * rows, count);
        }
        for (uint32_t o = 0; o < count; o++)
            y[o] = sums[o] / (float)r->joint;
    } else {
        finish_rows(y, count, r->finish >> 8 * matrix & 255, r->streams);
    }
}

/* Output rows [from, to) of expert e (0 for a dense product). */
static void some_rows(const struct st_dot_table *dot, int type, enum st_act act, const struct rows_args *r, uint32_t e,
                      uint32_t from, uint32_t to)
{
    for (uint32_t matrix = 0; matrix < 4; matrix++)
        for (uint32_t i = from; i < to; i++)
            for (uint32_t row = 0; row < r->a[24 + matrix].i; row += STRIP)
                strip(dot, type, act, r, matrix, e, i, row, r->a[24 + matrix].i - row < STRIP ? r->a[24 + matrix].i - row : STRIP);
}

static void rows_family(const struct st_dot_table *dot, int type, enum st_act act, const uint32_t grid[3],
                        const union st_arg *args)
{
    const struct rows_args r = rows_args(args);
    if (r.mode == ST_ROWS_DENSE) {
        some_rows(dot, type, act, &r, 0, 0, r.total);
        return;
    }
    for (uint32_t i = 0; i < grid[1]; i++) {
        const uint32_t e = r.mode == ST_ROWS_ENTRY ? (uint32_t)r.expert[r.entry[i]] : i;
        if ((r.mode == ST_ROWS_EXPERT || (uint32_t)r.first[e] == i) && place_of(r.places, 0, e) != ST_NO_PLACE)
            some_rows(dot, type, act, &r, e, (uint32_t)r.first[e], (uint32_t)r.first[e + 1]);
    }
}

/* ---- prompt products ---- */

/* One output row of the tile's kind. */
static void gemm_row(const struct st_dot_table *dot, int type, bool pair, const union st_arg *args, uint32_t e, uint32_t i)
{
    const uint32_t n = args[9].i, rows = args[10].i, stride = args[13].i, used = args[15].i;
    const uint32_t scaled = args[16].i & ~(uint32_t)ST_GEMM_PLACED;
    const uint64_t place = place_of(args[16].i & ST_GEMM_PLACED ? at(args[8]) : NULL, args[17].i, e);
    const uint32_t input = used ? (uint32_t)((const int32_t *)at(args[5]))[i] / used : i;
    const uint8_t *x = (const uint8_t *)at(args[3]) + (size_t)input * stride;
    float *y = (float *)at(args[0]) + (size_t)i * args[14].i;
    for (uint32_t r = 0; r < rows && place != ST_NO_PLACE; r += STRIP) {
        const uint32_t strip = rows - r < STRIP ? rows - r : STRIP;
        const size_t skip = place + (size_t)r * args[11].i;
        float up[STRIP];
        for (int which = 0; which < (pair ? 2 : 1); which++) {
            float *to = which ? up : y + r;
            one_row(dot, type, st_type_info(type)->act, to, (const uint8_t *)at(args[1 + which]) + skip, strip, x, n);
            const float *scales = at(args[6 + which]);
            for (uint32_t o = 0; scaled && o < strip; o++)
                to[o] *= scales[scaled == 2 ? e : 0];
        }
        for (uint32_t o = 0; pair && o < strip; o++)
            y[r + o] = st_siluf(y[r + o]) * up[o];
    }
}

static void gemm_family(const struct st_dot_table *dot, int type, bool pair, const uint32_t grid[3], const union st_arg *args)
{
    const int32_t *tile = at(args[4]);
    for (uint32_t i = 0; i < args[12].i; i++)
        gemm_row(dot, type, pair, args, 0, i);
    for (uint32_t t = 0; args[12].i == 0 && t < grid[1]; t++)
        for (int32_t i = 0; tile[4 * t] >= 0 && i < tile[4 * t + 2]; i++)
            gemm_row(dot, type, pair, args, (uint32_t)tile[4 * t], (uint32_t)(tile[4 * t + 1] + i));
}

/* Opened weights have no form here: their product reads the matrix as it is in the file, which its arguments name as well. */
static void gemm_wide(const struct st_dot_table *dot, const union st_arg *args)
{
    const uint32_t rows = args[7].i, row_bytes = args[8].i;
    const int type = (int)args[5].i;
    const float scale = args[12].i ? *(const float *)at(args[3]) : 1.0f;
    for (uint32_t i = 0; i < args[9].i; i++)
        for (uint32_t r = 0; r < rows; r += STRIP) {
            const uint32_t strip = rows - r < STRIP ? rows - r : STRIP;
            float *y = (float *)at(args[0]) + (size_t)i * args[11].i + r;
            one_row(dot, type, st_type_info(type)->act, y, (const uint8_t *)at(args[4]) + (size_t)r * row_bytes, strip,
                    (const uint8_t *)at(args[2]) + (size_t)i * args[10].i, args[6].i);
            for (uint32_t o = 0; o < strip; o++)
                y[o] *= scale;
        }
}

/* Activation rows in the layouts of gpu/gemm_fold.h and gpu/gemm_strips.h (gpu/layout.h), element by element. */
static void fold_rows(const uint32_t grid[3], const union st_arg *args)
{
    const uint32_t n = args[2].i, total = args[3].i, sums = args[5].i;
    for (uint32_t group = 0; group < grid[1]; group++)
        for (uint32_t block = 0; block < n / 256; block++) {
            uint8_t *to = (uint8_t *)at(args[0]) + ((size_t)group * (n / 256) + block) * ST_FOLD_PART(sums);
            for (uint32_t r = 0; r < 64; r++) {
                const uint32_t row = group * 64 + r < total ? group * 64 + r : total - 1;
                const uint8_t *x = (const uint8_t *)at(args[1]) + (size_t)row * args[4].i;
                for (uint32_t i = 0; i < 256; i++)
                    to[i / 16 * 64 * 16 + r * 16 + i % 16] = x[ST_Q8K_PLAIN(n) + block * 256 + i];
                memcpy(to + 64 * 256 + r * 4, x + ST_Q8K_SCALES(n) + block * 4, 4);
                for (uint32_t i = 0; sums && i < 8; i++) /* words of 4 sums, the upper ones first */
                    memcpy(to + 64 * 260 + (32 * (r / 16) + 4 * (r % 8) + i % 4) * 16 + (2 * (i / 4) + r / 8 % 2) * 4,
                           x + ST_Q8K_PAIRS(n) + block * 32 + i * 4, 4);
            }
        }
}

static void strip_rows(const uint32_t grid[3], const union st_arg *args)
{
    const uint32_t n = args[2].i, total = args[3].i, with_s = args[5].i, chunks = (n + 127) / 128;
    for (uint32_t row = 0; row < grid[1] * 128; row++) {
        const uint8_t *x = (const uint8_t *)at(args[1]) + (size_t)(row < total ? row : total - 1) * args[4].i;
        for (uint32_t i = 0; i < n; i++) {
            uint8_t *to = (uint8_t *)at(args[0]) + ((size_t)(row / 128) * chunks + i / 128) * ST_STRIPS_X(with_s);
            uint8_t *scale = to + 128 * 128 + (i % 128 / 32 * 128 + row % 128) * 4;
            to[row % 128 / 64 * 8192 + i % 128 / 16 * 1024 + row % 64 * 16 + i % 16] = x[ST_Q8_PLAIN(n) + i];
            memcpy(scale, x + ST_Q8_SCALES(n) + i / 32 * 4, 4);
            if (with_s)
                memcpy(scale + 4 * 128 * 4, x + ST_Q8_S(n) + i / 32 * 4, 4);
        }
    }
}

/* Float weights: sums of 16 columns, added in ascending order. */
static void gemm_floats(int type, const union st_arg *args)
{
    enum { SIDE = 8, STEP = 16 }; /* activation rows side by side; columns of a sum */
    const uint32_t n = args[4].i, rows = args[5].i, total = args[7].i, stride = args[8].i, ldy = args[9].i;
    const float scale = args[10].i ? *(const float *)at(args[3]) : 1.0f;
    float w[ST_GPU_COLUMNS];
    for (uint32_t o = 0; o < rows; o++) {
        st_type_info(type)->decode((const uint8_t *)at(args[1]) + (size_t)o * args[6].i, w, n);
        for (uint32_t m = 0; m < total; m += SIDE) {
            float acc[SIDE] = {0};
            const float *x[SIDE];
            for (uint32_t j = 0; j < SIDE; j++)
                x[j] = (const float *)(const void *)((const uint8_t *)at(args[2]) +
                                                     (size_t)(m + j < total ? m + j : m) * stride);
            for (uint32_t k = 0; k < n; k += STEP) {
                float part[SIDE] = {0};
                for (uint32_t i = k; i < n && i < k + STEP; i++)
                    for (uint32_t j = 0; j < SIDE; j++)
                        part[j] = fmaf(x[j][i], w[i], part[j]);
                for (uint32_t j = 0; j < SIDE; j++)
                    acc[j] = acc[j] + part[j];
            }
            for (uint32_t j = 0; j < SIDE && m + j < total; j++)
                ((float *)at(args[0]))[(size_t)(m + j) * ldy + o] = acc[j] * scale;
        }
    }
}

/* ---- all ---- */

static void read_words(const uint32_t grid[3], const union st_arg *args)
{
    uint32_t *out = at(args[0]);
    const uint32_t *from = at(args[1]);
    memset(out, 0, (size_t)grid[0] * ITEMS * 4);
    for (uint64_t i = 0; i < args[2].l; i++)
        for (int k = 0; k < 4; k++)
            out[i / (4 * ITEMS) * ITEMS + i % ITEMS] ^= from[4 * i + (uint64_t)k];
}

bool st_gpu_reference(const struct st_dot_table *dot, enum st_gpu_kernel kernel, const uint32_t grid[3],
                      const union st_arg *args)
{
    switch (kernel) {
    case ST_GPU_EMPTY: return true;
    case ST_GPU_COPY: memcpy(at(args[0]), at(args[1]), args[2].l * 16); return true;
    case ST_GPU_READ: read_words(grid, args); return true;
    case ST_GPU_NORM: norm(ST_ACT_F32, grid, args); return true;
    case ST_GPU_NORM_Q8: norm(ST_ACT_Q8, grid, args); return true;
    case ST_GPU_NORM_Q8K: norm(ST_ACT_Q8K, grid, args); return true;
    case ST_GPU_QUANT_Q8: quantize(ST_ACT_Q8, grid, args); return true;
    case ST_GPU_QUANT_Q8K: quantize(ST_ACT_Q8K, grid, args); return true;
    case ST_GPU_MV_Q8_0_1:
    case ST_GPU_MV_Q8_0_8: matvec(dot, ST_TYPE_Q8_0, args); return true;
    case ST_GPU_MV_Q2_0_1:
    case ST_GPU_MV_Q2_0_8: matvec(dot, ST_TYPE_Q2_0, args); return true;
    case ST_GPU_MV_IQ4_NL_1:
    case ST_GPU_MV_IQ4_NL_8: matvec(dot, ST_TYPE_IQ4_NL, args); return true;
    case ST_GPU_MV_Q4_K_1:
    case ST_GPU_MV_Q4_K_8: matvec(dot, ST_TYPE_Q4_K, args); return true;
    case ST_GPU_FOLD_ROWS: fold_rows(grid, args); return true;
    case ST_GPU_STRIP_ROWS: strip_rows(grid, args); return true;
    case ST_GPU_GEMM_F32: gemm_floats(ST_TYPE_F32, args); return true;
    case ST_GPU_GEMM_F16: gemm_floats(ST_TYPE_F16, args); return true;
    case ST_GPU_GEMM_BF16: gemm_floats(ST_TYPE_BF16, args); return true;
    default: break;
    }
    enum st_act act;
    const int type = st_gpu_rows_type(kernel, &act);
    if (type >= 0)
        rows_family(dot, type, act, grid, args);
    bool pair;
    const int gemm = st_gpu_gemm_type(kernel, &pair);
    if (gemm >= 0)
        gemm_family(dot, gemm, pair, grid, args);
    if (st_gpu_gemm_is_wide(kernel))
        gemm_wide(dot, args);
    if (st_gpu_sample_reference(kernel, grid, args))
        return true;
    return type >= 0 || gemm >= 0 || st_gpu_gemm_is_wide(kernel) || st_gpu_gemm_opens(kernel); /* others have no form here: simulated devices run the GPU's own source */
}
