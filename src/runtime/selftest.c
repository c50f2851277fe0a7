/* The parity harness: random inputs, guard bands around every buffer, expected contents from the C reference on host
 * copies of the same buffers. */
#include "runtime/selftest.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/exact_math.h"
#include "kernel/gpu_copy.h"
#include "kernel/gpu_norm.h"
#include "kernel/gpu_products.h"
#include "runtime/selftest_run.h"

enum { GAMMA_SETS = 2 };

/* ---- random inputs ---- */

uint64_t st_test_random(struct st_test_run *run)
{
    uint64_t z = run->random += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

uint32_t st_test_below(struct st_test_run *run, uint32_t n)
{
    return (uint32_t)(st_test_random(run) >> 32) % n;
}

/* About normal, with a few large values and runs of zeros. */
void st_test_floats(struct st_test_run *run, float *x, size_t n)
{
    float scale = 1.0f;
    for (size_t i = 0; i < n; i++) {
        if (i % 32 == 0) {
            uint32_t kind = st_test_below(run, 40);
            scale = kind == 0 ? 0.0f : kind == 1 ? 1e-9f : ldexpf(1.0f, (int)st_test_below(run, 9) - 4);
        }
        uint64_t r = st_test_random(run);
        int32_t sum = (int32_t)(r & 0xffff) + (int32_t)(r >> 16 & 0xffff) + (int32_t)(r >> 32 & 0xffff) - 98304;
        x[i] = (float)sum * 0x1p-15f * scale;
        if (st_test_below(run, 97) == 0)
            x[i] *= 20.0f;
    }
}

/* A binary16 scale: mostly ordinary, some zero, some subnormal, both signs. */
static uint16_t random_scale(struct st_test_run *run)
{
    uint32_t kind = st_test_below(run, 30);
    uint16_t sign = (uint16_t)(st_test_below(run, 2) << 15), mantissa = (uint16_t)st_test_below(run, 1024);
    if (kind == 0)
        return sign;
    if (kind == 1)
        return (uint16_t)(sign | mantissa);
    return (uint16_t)(sign | (4 + st_test_below(run, 8)) << 10 | mantissa);
}

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

/* Where the binary16 scales of a type's blocks are, -1 for none. */
static void scale_places(int type, int place[2])
{
    place[0] = 0;
    place[1] = -1;
    switch (type) {
    case ST_TYPE_Q4_1:
    case ST_TYPE_Q5_1:
    case ST_TYPE_Q4_K:
    case ST_TYPE_Q5_K: place[1] = 2; break;
    case ST_TYPE_Q2_K:
        place[0] = 80;
        place[1] = 82;
        break;
    case ST_TYPE_Q3_K: place[0] = 108; break;
    case ST_TYPE_Q6_K: place[0] = 208; break;
    case ST_TYPE_NVFP4:
    case ST_TYPE_MXFP4:
    case ST_TYPE_IQ1_M: place[0] = -1; break;
    default: break;
    }
}

static void float_weights(struct st_test_run *run, int type, uint8_t *w, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float v;
        st_test_floats(run, &v, 1);
        uint32_t bits = bits_of(v);
        uint16_t upper = (uint16_t)(bits >> 16), half = random_scale(run);
        if (type == ST_TYPE_F32)
            memcpy(w + 4 * i, &v, 4);
        else
            memcpy(w + 2 * i, type == ST_TYPE_BF16 ? &upper : &half, 2);
    }
}

void st_test_weights(struct st_test_run *run, int type, uint8_t *w, size_t bytes)
{
    const struct st_type_info *info = st_type_info(type);
    int place[2];
    if (info->block_elems == 1) {
        float_weights(run, type, w, bytes / info->block_bytes);
        return;
    }
    for (size_t i = 0; i < bytes; i++)
        w[i] = (uint8_t)(st_test_random(run) >> 40);
    scale_places(type, place);
    for (size_t i = 0; i < bytes; i += info->block_bytes) {
        for (int k = 0; k < 2; k++) {
            uint16_t d = random_scale(run);
            if (place[k] >= 0)
                memcpy(w + i + place[k], &d, 2);
        }
        if (type == ST_TYPE_IQ1_M) /* the scale's upper four bits: no infinity */
            w[i + 55] &= 0xbf;
        if (type == ST_TYPE_MXFP4) /* no overflow in a sum */
            w[i] = (uint8_t)(w[i] % 16 == 0 ? w[i] / 128 : 96 + w[i] % 48);
    }
}

/* ---- buffers ---- */

void st_test_drop(struct st_test_run *run)
{
    for (int i = 0; i < run->buffers; i++) {
        struct st_test_buffer *b = &run->buffer[i];
        if (b->device)
            run->dev->table->release(run->dev->rt, b->device - ST_TEST_GUARD);
        free(b->input);
        free(b->want);
        free(b->got);
    }
    run->buffers = 0;
}

/* The next buffer of the case: input zeroed, for the caller to fill. */
enum strata_result st_test_add(struct st_test_run *run, size_t size, uint8_t **input, struct strata_error *err)
{
    struct st_test_buffer *b = &run->buffer[run->buffers++];
    *b = (struct st_test_buffer){.size = size};
    b->input = aligned_alloc(64, (size + 127) / 64 * 64);
    b->want = aligned_alloc(64, (size + 127) / 64 * 64);
    b->got = malloc(size + 2 * ST_TEST_GUARD);
    if (!b->input || !b->want || !b->got)
        return st_fail(err, STRATA_E_MEMORY, "self-test: no memory for %zu bytes", size);
    memset(b->input, 0, (size + 127) / 64 * 64);
    *input = b->input;
    enum strata_result r = run->dev->table->allocate(run->dev->rt, size + 2 * ST_TEST_GUARD, &b->device, err);
    if (r == STRATA_OK)
        b->device += ST_TEST_GUARD;
    return r;
}

enum strata_result st_test_put(struct st_test_run *run, struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    for (int i = 0; i < run->buffers && r == STRATA_OK; i++) {
        struct st_test_buffer *b = &run->buffer[i];
        memset(b->got, ST_TEST_GUARD_BYTE, b->size + 2 * ST_TEST_GUARD);
        memcpy(b->got + ST_TEST_GUARD, b->input, b->size);
        r = run->dev->table->copy_in(run->dev->compute, b->device - ST_TEST_GUARD, b->got, b->size + 2 * ST_TEST_GUARD, err);
    }
    return r;
}

enum strata_result st_test_get(struct st_test_run *run, struct strata_error *err)
{
    /* the copies in still read got, so nothing may be copied out before they are done */
    enum strata_result r = st_wait(run->dev, run->dev->compute, err);
    for (int i = 0; i < run->buffers && r == STRATA_OK; i++) {
        struct st_test_buffer *b = &run->buffer[i];
        r = run->dev->table->copy_out(run->dev->compute, b->got, b->device - ST_TEST_GUARD, b->size + 2 * ST_TEST_GUARD, err);
    }
    return r == STRATA_OK ? st_wait(run->dev, run->dev->compute, err) : r;
}

static enum strata_result run_on_device(struct st_test_run *run, st_test_make_fn make, const void *params, struct strata_error *err)
{
    struct st_gpu_launch launch;
    st_addr at[ST_TEST_BUFFERS] = {0};
    for (int i = 0; i < run->buffers; i++)
        at[i] = run->buffer[i].device;
    enum strata_result r = st_test_put(run, err);
    if (r == STRATA_OK)
        r = make(params, at, &launch, err);
    if (r == STRATA_OK)
        r = st_launch(run->dev, run->dev->compute, launch.kernel, launch.grid[0], launch.grid[1], launch.grid[2], launch.args,
                      run->shape, err);
    return r == STRATA_OK ? st_test_get(run, err) : r;
}

static enum strata_result run_on_host(struct st_test_run *run, st_test_make_fn make, const void *params, struct strata_error *err)
{
    struct st_gpu_launch launch;
    st_addr at[ST_TEST_BUFFERS] = {0};
    for (int i = 0; i < run->buffers; i++) {
        memcpy(run->buffer[i].want, run->buffer[i].input, run->buffer[i].size);
        at[i] = (st_addr)(uintptr_t)run->buffer[i].want;
    }
    enum strata_result r = make(params, at, &launch, err);
    if (r == STRATA_OK && !st_gpu_reference(st_dot_table_c(), launch.kernel, launch.grid, launch.args))
        r = st_fail(err, STRATA_E_INTERNAL, "self-test: kernel %s has no reference",
                    st_gpu_kernels[launch.kernel].name);
    return r;
}

bool st_test_guards(struct st_test_run *run, int buffer)
{
    const struct st_test_buffer *b = &run->buffer[buffer];
    for (size_t k = 0; k < ST_TEST_GUARD && !run->fault[0]; k++)
        if (b->got[k] != ST_TEST_GUARD_BYTE || b->got[ST_TEST_GUARD + b->size + k] != ST_TEST_GUARD_BYTE)
            snprintf(run->fault, sizeof run->fault, "buffer %d: a byte outside of its %zu was written", buffer, b->size);
    return run->fault[0] != 0;
}

void st_test_exact(struct st_test_run *run, int buffer)
{
    const struct st_test_buffer *b = &run->buffer[buffer];
    if (run->fault[0] || memcmp(b->got + ST_TEST_GUARD, b->want, b->size) == 0)
        return;
    size_t at = 0, wrong = 0;
    for (size_t k = 0; k < b->size; k++)
        if (b->got[ST_TEST_GUARD + k] != b->want[k] && wrong++ == 0)
            at = k;
    uint32_t got = 0, want = 0;
    size_t word = at / 4 * 4, have = b->size - word < 4 ? b->size - word : 4;
    memcpy(&got, b->got + ST_TEST_GUARD + word, have);
    memcpy(&want, b->want + word, have);
    float got_f, want_f;
    memcpy(&got_f, &got, 4);
    memcpy(&want_f, &want, 4);
    snprintf(run->fault, sizeof run->fault,
             "buffer %d: %zu of %zu bytes differ, first at %zu: %08x (%g), expected %08x (%g)", buffer, wrong, b->size, at,
             got, (double)got_f, want, (double)want_f);
}

static void compare(struct st_test_run *run)
{
    for (int i = 0; i < run->buffers; i++)
        if (!st_test_guards(run, i))
            st_test_exact(run, i);
}

void st_test_report(struct st_test_run *run)
{
    run->result->cases++;
    run->result->failed += run->fault[0] != 0;
    struct st_selftest_case c = {run->family, run->shape, run->fault[0] ? run->fault : NULL};
    if (run->options->report)
        run->options->report(run->options->arg, &c);
    run->fault[0] = 0;
}

enum strata_result st_test_finish(struct st_test_run *run, enum strata_result r, st_test_make_fn make, const void *params,
                                  struct strata_error *err)
{
    if (r == STRATA_OK)
        r = run_on_host(run, make, params, err);
    if (r == STRATA_OK)
        r = run_on_device(run, make, params, err);
    if (r == STRATA_OK) {
        compare(run);
        st_test_report(run);
    }
    st_test_drop(run);
    return r;
}

/* ---- dialect ---- */

enum { DIALECT_ITEMS = 128, DIALECT_VALUES = 16 };

static int32_t dot4(uint32_t a, uint32_t b, int32_t c)
{
    for (int i = 0; i < 32; i += 8)
        c += (int8_t)(a >> i) * (int8_t)(b >> i);
    return c;
}

/* What st_dialect computes, for one work-item; in: all words, lanes: of a wave. */
static void dialect_values(const uint32_t *in, uint32_t item, uint32_t lanes, uint32_t *out)
{
    static const uint8_t table[16] = {0, 1, 2, 3, 0x84, 0x85, 0x86, 0x87, 8, 9, 10, 11, 0x8c, 0x8d, 0x8e, 0x8f};
    const uint32_t word = in[item], next = in[(item + 1) % DIALECT_ITEMS], wave = item / lanes * lanes,
                   lane = item % lanes;
    uint32_t all[64], other[64];
    uint64_t votes = 0;
    bool any = false;
    for (uint32_t i = 0; i < lanes; i++) {
        all[i] = in[wave + i];
        votes |= (uint64_t)(in[wave + i] & 1) << i;
        any = any || in[wave + i] % 64 == 5;
    }
    for (uint32_t mask = 1; mask < lanes; mask *= 2) {
        memcpy(other, all, sizeof other);
        for (uint32_t i = 0; i < lanes; i++)
            all[i] ^= other[i ^ mask] * 3;
    }
    float f;
    const uint32_t f_bits = (word & 0x807fffffu) | 0x3f000000u;
    memcpy(&f, &f_bits, 4);
    out[0] = next;
    out[1] = in[wave + (lane ^ (lanes - 1))];
    out[2] = all[lane];
    out[3] = (uint32_t)votes ^ (uint32_t)(votes >> 32);
    out[4] = any;
    out[5] = (uint32_t)dot4(word, next, (int32_t)item);
    out[6] = 0;
    for (int i = 0; i < 32; i += 8)
        out[6] += (uint32_t)((int8_t)table[word >> i & 15] * (int8_t)(next >> i) +
                             (int8_t)table[word >> i >> 4 & 15] * (int8_t)(word >> i));
    out[7] = bits_of(sqrtf(fabsf(f)));
    out[8] = bits_of(1.0f / f);
    out[9] = bits_of(1.0f / sqrtf(fabsf(f)));
    out[10] = bits_of(st_expf(f * 60.0f));
    out[11] = bits_of(st_siluf(f * 8.0f));
    out[12] = bits_of(st_f16_to_f32((uint16_t)word));
    out[13] = st_f32_to_f16(f * (float)(word & 0xff) * 0x1p-20f);
    out[14] = (uint32_t)(int32_t)rintf(f * 100.0f);
    out[15] = bits_of(fmaf(f, 1.0f / 3.0f, -f));
}

static enum strata_result make_dialect(const void *params, const st_addr *at, struct st_gpu_launch *out,
                                       struct strata_error *err)
{
    (void)params;
    (void)err;
    *out = (struct st_gpu_launch){.kernel = ST_GPU_DIALECT, .grid = {1, 1, 1}};
    for (int i = 0; i < 5; i++)
        out->args[i].p = at[i];
    return STRATA_OK;
}

static enum strata_result test_dialect(struct st_test_run *run, struct strata_error *err)
{
    uint8_t *b[5];
    const size_t sizes[5] = {DIALECT_ITEMS * DIALECT_VALUES * 4, 256 * 4, 4, DIALECT_ITEMS * 4, 1024};
    enum strata_result r = STRATA_OK;
    snprintf(run->shape, sizeof run->shape, "st_dialect: waves of %u lanes", run->dev->info.lanes);
    for (int i = 0; i < 5 && r == STRATA_OK; i++)
        r = st_test_add(run, sizes[i], &b[i], err);
    if (r != STRATA_OK) {
        st_test_drop(run);
        return r;
    }
    uint32_t *in = (uint32_t *)b[3];
    for (int i = 0; i < DIALECT_ITEMS; i++)
        in[i] = (uint32_t)(st_test_random(run) >> 32);
    /* halves: zero, subnormal, largest, infinity */
    static const uint16_t special[] = {0x0000, 0x8000, 0x0001, 0x83ff, 0x7bff, 0x7c00, 0xfc00, 0x0400};
    for (size_t i = 0; i < sizeof special / sizeof *special; i++)
        in[i] = (in[i] & 0xffff0000u) | special[i];
    for (int i = 8; i < DIALECT_ITEMS; i++)
        if ((in[i] & 0x7c00) == 0x7c00) /* no NaN: its bits are not defined */
            in[i] ^= 0x0400;
    for (int i = 0; i < 1024; i++)
        b[4][i] = (uint8_t)(st_test_random(run) >> 40);
    r = run_on_device(run, make_dialect, NULL, err);
    if (r == STRATA_OK) {
        for (int i = 0; i < 5; i++)
            memcpy(run->buffer[i].want, run->buffer[i].input, run->buffer[i].size);
        uint32_t *want = (uint32_t *)run->buffer[0].want, values[DIALECT_VALUES];
        for (uint32_t i = 0; i < DIALECT_ITEMS; i++) {
            dialect_values(in, i, run->dev->info.lanes, values);
            for (uint32_t v = 0; v < DIALECT_VALUES; v++)
                want[v * DIALECT_ITEMS + i] = values[v];
        }
        int32_t *sums = (int32_t *)run->buffer[1].want;
        for (int m = 0; m < 16; m++)
            for (int n = 0; n < 16; n++)
                for (int k = 0; k < 32; k++)
                    sums[16 * m + n] += 2 * (int8_t)b[4][32 * m + k] * (int8_t)b[4][512 + 32 * n + k];
        *(uint32_t *)run->buffer[2].want = 7 + in[0];
        compare(run);
        st_test_report(run);
    }
    st_test_drop(run);
    return r;
}

/* ---- copy ---- */

struct copy_params {
    uint64_t bytes;
    bool read;
};

static enum strata_result make_copy(const void *params, const st_addr *at, struct st_gpu_launch *out,
                                    struct strata_error *err)
{
    const struct copy_params *p = params;
    (void)err;
    (p->read ? st_gpu_read : st_gpu_copy)(at[0], at[1], p->bytes, out);
    return STRATA_OK;
}

static enum strata_result test_copy(struct st_test_run *run, struct strata_error *err)
{
    static const uint64_t sizes[] = {16, 4080, 16384, 16400, 1000000};
    enum strata_result r = STRATA_OK;
    for (size_t i = 0; i < 2 * sizeof sizes / sizeof *sizes && r == STRATA_OK; i++) {
        struct copy_params p = {sizes[i / 2], i % 2};
        uint8_t *to, *from;
        snprintf(run->shape, sizeof run->shape, "%s: %llu bytes", p.read ? "st_read" : "st_copy",
                 (unsigned long long)p.bytes);
        r = st_test_add(run, p.read ? (p.bytes + 16383) / 16384 * 1024 : p.bytes, &to, err);
        if (r == STRATA_OK)
            r = st_test_add(run, p.bytes, &from, err);
        if (r == STRATA_OK)
            for (size_t k = 0; k < p.bytes; k++)
                from[k] = (uint8_t)(st_test_random(run) >> 40);
        r = st_test_finish(run, r, make_copy, &p, err);
    }
    return r;
}

/* ---- norm ---- */

struct norm_params {
    struct st_gpu_norm norm;
    bool quantize_only;
};

static enum strata_result make_norm(const void *params, const st_addr *at, struct st_gpu_launch *out,
                                    struct strata_error *err)
{
    const struct norm_params *p = params;
    struct st_gpu_norm a = p->norm;
    if (p->quantize_only)
        return st_gpu_quantize(a.act, at[1], at[2], a.rows, a.n, out, err);
    a.y = at[0];
    a.q = at[1];
    a.x = at[2];
    a.gamma = at[3];
    return st_gpu_norm(&a, out, err);
}

/* The norm in double precision, as a bound that knows nothing of the order of sums. */
static void check_norm(struct st_test_run *run, const struct st_gpu_norm *a)
{
    const float *x = (const float *)run->buffer[2].input, *gamma = (const float *)run->buffer[3].input;
    for (uint32_t start = 0; start < a->rows * a->n && !run->fault[0]; start += a->group) {
        double sum = 0;
        for (uint32_t i = start; i < start + a->group; i++)
            sum += (double)x[i] * x[i];
        for (uint32_t i = start; i < start + a->group && !run->fault[0]; i++) {
            float y;
            memcpy(&y, run->buffer[0].got + ST_TEST_GUARD + (size_t)i * 4, 4);
            double want = x[i] / sqrt(sum / a->group + (double)a->eps) * (double)gamma[i % a->n % a->gammas];
            if (!(fabs(y - want) <= 2e-6 * fabs(want) + 1e-30))
                snprintf(run->fault, sizeof run->fault, "element %u is %g, %g in double precision", i, (double)y, want);
        }
    }
}

static enum strata_result test_norm(struct st_test_run *run, struct strata_error *err)
{
    static const struct {
        uint32_t rows, n, group, shared;
        enum st_act act;
    } shapes[] = {{1, 2560, 2560, 0, ST_ACT_Q8}, {3, 10240, 2560, 0, ST_ACT_Q8}, {2, 96, 96, 0, ST_ACT_Q8},
                  {5, 640, 128, 1, ST_ACT_Q8},   {1, 2560, 2560, 0, ST_ACT_Q8K}, {3, 1024, 256, 1, ST_ACT_Q8K},
                  {2, 1000, 200, 0, ST_ACT_F32}, {4, 7, 7, 0, ST_ACT_F32},       {1, 10240, 10240, 0, ST_ACT_F32},
                  {8, 4096, 4096, 0, ST_ACT_Q8K}};
    enum strata_result r = STRATA_OK;
    for (size_t i = 0; i < 2 * sizeof shapes / sizeof *shapes && r == STRATA_OK; i++) {
        struct norm_params p = {.norm = {.rows = shapes[i / 2].rows,
                                         .n = shapes[i / 2].n,
                                         .group = shapes[i / 2].group,
                                         .gammas = shapes[i / 2].shared ? shapes[i / 2].group : shapes[i / 2].n,
                                         .eps = 1e-6f,
                                         .act = shapes[i / 2].act},
                                .quantize_only = i % 2};
        const struct st_gpu_norm *a = &p.norm;
        if ((p.quantize_only && a->act == ST_ACT_F32) || (run->options->quick && i >= 10))
            continue;
        uint8_t *y, *q, *x, *gamma;
        uint32_t stride = st_gpu_act_stride(a->act, a->n);
        static const char *const names[ST_ACT_COUNT] = {"f32", "Q8", "Q8K"};
        snprintf(run->shape, sizeof run->shape, "%s to %s: %u rows of %u in groups of %u",
                 p.quantize_only ? "rounding" : "norm", names[a->act], a->rows, a->n, a->group);
        r = st_test_add(run, (size_t)a->rows * a->n * 4, &y, err);
        if (r == STRATA_OK)
            r = st_test_add(run, stride ? (size_t)a->rows * stride : 16, &q, err);
        if (r == STRATA_OK)
            r = st_test_add(run, (size_t)a->rows * a->n * 4, &x, err);
        if (r == STRATA_OK)
            r = st_test_add(run, (size_t)a->gammas * 4, &gamma, err);
        if (r == STRATA_OK) {
            st_test_floats(run, (float *)x, (size_t)a->rows * a->n);
            st_test_floats(run, (float *)gamma, a->gammas);
        }
        if (r == STRATA_OK)
            r = run_on_host(run, make_norm, &p, err);
        if (r == STRATA_OK)
            r = run_on_device(run, make_norm, &p, err);
        if (r == STRATA_OK) {
            compare(run);
            if (!p.quantize_only)
                check_norm(run, a);
            st_test_report(run);
        }
        st_test_drop(run);
    }
    return r;
}

/* ---- products ---- */

static const struct shape {
    uint32_t rows, n, count;
} product_shapes[] = {{33, 2560, 1}, {100, 640, 1}, {8, 256, 1},    {17, 2560, 3}, {5, 1280, 8},
                      {1, 512, 4},   {40, 640, 7},  {24, 10240, 1}, {9, 10240, 5}, {13, 2816, 2},
                      {64, 768, 6},  {70, 320, 1},  {19, 96, 1},    {26, 32, 8},   {21, 2592, 1},
                      {11, 5152, 4}, {7, 3136, 1},  {12, 64, 1},    {3, 20992, 1}, {5, 10304, 8}};

enum strata_result st_test_rows(struct st_test_run *run, enum st_act act, uint8_t *to, uint32_t rows, uint32_t n,
                                struct strata_error *err)
{
    if (act == ST_ACT_F32) {
        st_test_floats(run, (float *)(void *)to, (size_t)rows * n);
        return STRATA_OK;
    }
    float *x = malloc((size_t)rows * n * 4);
    if (!x)
        return st_fail(err, STRATA_E_MEMORY, "self-test: no memory for %u activations", rows * n);
    st_test_floats(run, x, (size_t)rows * n);
    struct st_gpu_launch launch;
    enum strata_result r = st_gpu_quantize(act, (st_addr)(uintptr_t)to, (st_addr)(uintptr_t)x, rows, n, &launch, err);
    if (r == STRATA_OK)
        st_gpu_reference(st_dot_table_c(), launch.kernel, launch.grid, launch.args);
    free(x);
    return r;
}

static enum strata_result make_matvec(const void *params, const st_addr *at, struct st_gpu_launch *out,
                                      struct strata_error *err)
{
    struct st_gpu_matvec a = *(const struct st_gpu_matvec *)params;
    a.y = at[0];
    a.w = at[1];
    a.x = at[2];
    return st_gpu_matvec(&a, out, err);
}

static enum strata_result test_product(struct st_test_run *run, int type, const struct shape *s, struct strata_error *err)
{
    const struct st_type_info *info = st_type_info(type);
    struct st_gpu_matvec a = {.type = type,
                              .n = s->n,
                              .rows = s->rows,
                              .count = s->count,
                              .ldy = s->rows + st_test_below(run, 5),
                              .units = 1 + st_test_below(run, 3)};
    if (s->n % info->block_elems)
        return STRATA_OK;
    uint32_t limit = st_gpu_tile_limit(type, s->count == 1 ? 1 : ST_MAX_ROWS, s->n);
    if (st_test_below(run, 3) == 0) /* a tile that need not begin at a multiple of 16 bytes */
        a.tile = 1 + st_test_below(run, limit < ST_LOOSE_ROWS ? limit : ST_LOOSE_ROWS);
    uint8_t *y, *w, *x;
    snprintf(run->shape, sizeof run->shape, "%u rows times %s [%u x %u], tile %u, %u units", s->count, info->name,
             s->rows, s->n, a.tile, a.units);
    size_t bytes = (size_t)s->rows * (s->n / info->block_elems) * info->block_bytes;
    enum strata_result r = st_test_add(run, (size_t)s->count * a.ldy * 4, &y, err);
    if (r == STRATA_OK)
        r = st_test_add(run, bytes, &w, err);
    if (r == STRATA_OK)
        r = st_test_add(run, (size_t)s->count * st_gpu_act_stride(info->act, s->n), &x, err);
    if (r == STRATA_OK) {
        st_test_weights(run, type, w, bytes);
        r = st_test_rows(run, info->act, x, s->count, s->n, err);
    }
    return st_test_finish(run, r, make_matvec, &a, err);
}

static enum strata_result test_products(struct st_test_run *run, struct strata_error *err)
{
    static const int types[] = {ST_TYPE_Q8_0, ST_TYPE_Q2_0, ST_TYPE_IQ4_NL, ST_TYPE_Q4_K};
    enum strata_result r = STRATA_OK;
    for (size_t t = 0; t < 4; t++)
        for (size_t i = 0; i < sizeof product_shapes / sizeof *product_shapes && r == STRATA_OK; i++)
            if (st_test_type(run, types[t]) && (!run->options->quick || i < 6))
                r = test_product(run, types[t], &product_shapes[i], err);
    return r;
}

/* ---- all ---- */

enum strata_result st_selftest(struct st_device *dev, const struct st_selftest_options *options,
                               struct st_selftest_result *out, struct strata_error *err)
{
    static const struct {
        const char *name;
        enum strata_result (*run)(struct st_test_run *run, struct strata_error *err);
    } families[] = {{"dialect", test_dialect},
                    {"copy", test_copy},
                    {"norm", test_norm},
                    {"products", test_products},
                    {"steps", st_test_steps},
                    {"ngram", st_test_ngram},
                    {"gdn", st_test_gdn},
                    {"qsa", st_test_qsa},
                    {"route", st_test_route},
                    {"sample", st_test_sample},
                    {"rows", st_test_few_rows},
                    {"prompt products", st_test_gemm}};
    *out = (struct st_selftest_result){0};
    struct st_test_run *run = calloc(1, sizeof *run);
    if (!run)
        return st_fail(err, STRATA_E_MEMORY, "self-test: no memory");
    enum strata_result r = STRATA_OK;
    for (size_t i = 0; i < sizeof families / sizeof *families && r == STRATA_OK; i++) {
        if (options->family && strcmp(options->family, families[i].name) != 0)
            continue;
        *run = (struct st_test_run){
            .dev = dev, .options = options, .result = out, .random = options->seed + i, .family = families[i].name};
        r = families[i].run(run, err);
        if (r != STRATA_OK)
            st_fail_in(err, r, "self-test: %s: %s", families[i].name, run->shape);
    }
    free(run);
    return r;
}
