/* Self-test of the prompt products: every type, sizes that are no multiples of tiles, dense and over the experts of a
 * routing, and float weights, against the C reference to the bit (BF16 with numbers whose sums are exact). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/gpu_gemm.h"
#include "kernel/gpu_norm.h"
#include "runtime/selftest_run.h"

static const int types[] = {ST_TYPE_Q8_0,  ST_TYPE_Q2_0,    ST_TYPE_IQ4_NL, ST_TYPE_Q4_0,  ST_TYPE_Q4_1,    ST_TYPE_Q5_0,
                            ST_TYPE_Q5_1,  ST_TYPE_MXFP4,   ST_TYPE_NVFP4,  ST_TYPE_Q2_K,  ST_TYPE_Q3_K,    ST_TYPE_Q4_K,
                            ST_TYPE_Q5_K,  ST_TYPE_Q6_K,    ST_TYPE_IQ4_XS, ST_TYPE_IQ1_S, ST_TYPE_IQ1_M,   ST_TYPE_IQ2_XXS,
                            ST_TYPE_IQ2_XS, ST_TYPE_IQ2_S,  ST_TYPE_IQ3_XXS, ST_TYPE_IQ3_S};

/* Activation rows of random values in the type's form. */
static enum strata_result random_rows(struct st_test_run *run, int type, uint8_t *to, uint32_t rows, uint32_t n,
                                      struct strata_error *err)
{
    float *x = malloc((size_t)rows * n * 4);
    if (!x)
        return st_fail(err, STRATA_E_MEMORY, "self-test: no memory for %u activations", rows * n);
    st_test_floats(run, x, (size_t)rows * n);
    if (st_type_info(type)->act == ST_ACT_F32) {
        memcpy(to, x, (size_t)rows * n * 4);
        free(x);
        return STRATA_OK;
    }
    struct st_gpu_launch launch;
    enum strata_result r = st_gpu_quantize(st_type_info(type)->act, (st_addr)(uintptr_t)to, (st_addr)(uintptr_t)x, rows, n,
                                           &launch, err);
    if (r == STRATA_OK)
        st_gpu_reference(st_dot_table_c(), launch.kernel, launch.grid, launch.args);
    free(x);
    return r;
}

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

/* BF16 weights and FP32 activations whose sums are exact in any order, because devices add in orders of their own. sparse: one
 * power of two in each row of weights, so that an activation must come through with all of its bits; otherwise small whole
 * numbers. */
static void exact_floats(struct st_test_run *run, bool sparse, uint8_t *w, uint32_t rows, uint8_t *x, uint32_t inputs, uint32_t n)
{
    for (size_t i = 0; i < (size_t)rows * n; i++) {
        const float v = !sparse ? (float)st_test_below(run, 15) - 7.0f : i % n == i / n * 37 % n ? 0.5f : 0.0f;
        const uint16_t half = (uint16_t)(bits_of(v) >> 16);
        memcpy(w + 2 * i, &half, 2);
    }
    for (size_t i = 0; i < (size_t)inputs * n && !sparse; i++) {
        const float v = (float)st_test_below(run, 255) - 127.0f;
        memcpy(x + 4 * i, &v, 4);
    }
}

enum { Y, W, UP, X, FIRST, TILES, ENTRY, SCALES, UP_SCALES, OPENED, GEMM_BUFFERS };

struct gemm_case {
    struct st_gpu_gemm a;
    uint32_t experts, tokens;
    bool pair, scaled;
};

/* The case for addresses of the device or of the expected buffers. */
static struct st_gpu_gemm at_addresses(const struct gemm_case *c, const st_addr *at)
{
    struct st_gpu_gemm a = c->a;
    a.y = at[Y];
    a.w = at[W];
    a.up = c->pair ? at[UP] : 0;
    a.x = at[X];
    a.tiles = a.total ? 0 : at[TILES];
    a.entry = at[ENTRY];
    a.scales = c->scaled ? at[SCALES] : 0;
    a.up_scales = c->scaled ? at[UP_SCALES] : 0;
    return a;
}

/* Its launches. Returns how many, 0 with an error. */
static int make(const struct gemm_case *c, const st_addr *at, struct st_gpu_launch out[ST_GPU_OPENED_LAUNCHES],
                struct strata_error *err)
{
    const struct st_gpu_gemm a = at_addresses(c, at);
    uint32_t row = 0;
    int count;
    if (st_gpu_gemm_wide(&a))
        return st_gpu_gemm_opened(&a, at[OPENED], &row, out, &count, err) == STRATA_OK && row == a.rows ? count : 0;
    const bool floats = st_type_info(a.type)->block_elems == 1;
    return (floats ? st_gpu_gemm_floats(&a, out, err) : st_gpu_gemm(&a, out, err)) == STRATA_OK ? 1 : 0;
}

static enum strata_result launch(struct st_test_run *run, const struct st_gpu_launch *l, struct strata_error *err)
{
    return st_launch(run->dev, run->dev->compute, l->kernel, l->grid[0], l->grid[1], l->grid[2], l->args, run->shape, err);
}

/* A random routing: every token chooses some experts; entries grouped by expert, tokens ascending. Returns the entries. */
static uint32_t random_routing(struct st_test_run *run, const struct gemm_case *c, int32_t *first, int32_t *entry)
{
    uint32_t entries = 0, used = 2;
    for (uint32_t e = 0; e < c->experts; e++) {
        first[e] = (int32_t)entries;
        for (uint32_t t = 0; t < c->tokens && e != 1; t++) /* expert 0 has all tokens, 1 none */
            if ((e == 0 || st_test_below(run, 2 + e) == 0) && entries < 2 * c->tokens)
                entry[entries++] = (int32_t)(t * used + st_test_below(run, used));
    }
    first[c->experts] = (int32_t)entries;
    return entries;
}

/* The tile list as numbers (gpu/layout.h). */
static void list_tiles(const struct gemm_case *c, const int32_t *first, int32_t *tile)
{
    uint32_t t = 0;
    for (uint32_t e = 0; e < c->experts; e++)
        for (int32_t i = first[e]; i < first[e + 1]; i += ST_GEMM_FEW, t++) {
            int32_t *to = tile + 4 * (size_t)t;
            to[0] = (int32_t)e;
            to[1] = i;
            to[2] = first[e + 1] - i < ST_GEMM_FEW ? first[e + 1] - i : ST_GEMM_FEW;
            to[3] = 0;
        }
    for (; t < c->a.n_tiles; t++)
        tile[4 * (size_t)t] = -1;
}

static enum strata_result run_case(struct st_test_run *run, const struct gemm_case *c, struct strata_error *err)
{
    struct st_gpu_launch l[ST_GPU_OPENED_LAUNCHES];
    st_addr at[GEMM_BUFFERS], host[GEMM_BUFFERS];
    for (int i = 0; i < GEMM_BUFFERS; i++) {
        struct st_test_buffer *b = &run->buffer[i];
        memcpy(b->want, b->input, b->size);
        at[i] = b->device;
        host[i] = (st_addr)(uintptr_t)b->want;
    }
    const int count = make(c, host, l, err);
    if (count == 0)
        return err->code;
    if (!c->a.total)
        list_tiles(c, (const int32_t *)(const void *)run->buffer[FIRST].want, (int32_t *)(void *)run->buffer[TILES].want);
    for (int i = 0; i < count; i++)
        st_gpu_reference(st_dot_table_c(), l[i].kernel, l[i].grid, l[i].args);
    enum strata_result r = st_test_put(run, err);
    if (r == STRATA_OK && !c->a.total) {
        st_gpu_gemm_tiles(at[TILES], at[FIRST], c->experts, c->a.n_tiles, l);
        r = launch(run, l, err);
    }
    make(c, at, l, err);
    for (int i = 0; i < count && r == STRATA_OK; i++)
        r = launch(run, &l[i], err);
    if (r == STRATA_OK)
        r = st_test_get(run, err);
    if (r != STRATA_OK)
        return r;
    for (int i = 0; i < GEMM_BUFFERS; i++)
        if (!st_test_guards(run, i) && i != OPENED)
            st_test_exact(run, i);
    st_test_report(run);
    return STRATA_OK;
}

/* total 0: over experts. */
static enum strata_result test_case(struct st_test_run *run, int type, uint32_t rows, uint32_t n, uint32_t total, bool pair,
                                    struct strata_error *err)
{
    const struct st_type_info *info = st_type_info(type);
    if (n % info->block_elems)
        return STRATA_OK;
    struct gemm_case c = {.a = {.type = type,
                                .n = n,
                                .rows = rows,
                                .stride = info->act == ST_ACT_F32 ? n * 4 : st_gpu_act_stride(info->act, n),
                                .ldy = rows + st_test_below(run, 5),
                                .total = total,
                                .units = 1 + st_test_below(run, 2) * 8,
                                .folded = (run->dev->info.features & ST_FEATURE_FOLDED) != 0},
                          .experts = 5,
                          .tokens = total ? total : 70,
                          .pair = pair,
                          .scaled = st_test_below(run, 3) == 0};
    c.a.up = pair ? 16 : 0; /* any address: that there is one counts for the bytes of opened weights */
    uint32_t entries = total ? total : 2 * c.tokens, inputs = c.tokens;
    const size_t matrix = (size_t)rows * (n / info->block_elems) * info->block_bytes;
    const size_t matrices = total ? matrix : matrix * c.experts;
    if (!total) {
        c.a.used = st_test_below(run, 2) ? 2 : 0;
        c.a.scale_each = st_test_below(run, 2);
        c.a.n_tiles = st_gpu_gemm_tile_bound(entries, c.experts);
        inputs = c.a.used ? c.tokens : entries;
    }
    snprintf(run->shape, sizeof run->shape, "%u %s times %s%s [%u x %u], %u units", total ? total : c.tokens,
             total ? "rows" : "rows over experts", pair ? "gate and up " : "", info->name, rows, n, c.a.units);
    const size_t sizes[GEMM_BUFFERS] = {(size_t)entries * c.a.ldy * 4,
                                        matrices,
                                        pair ? matrices : 16,
                                        (size_t)inputs * c.a.stride,
                                        (c.experts + 1) * 4,
                                        total ? 16 : (size_t)c.a.n_tiles * 16,
                                        (size_t)entries * 4,
                                        c.experts * 4,
                                        c.experts * 4,
                                        16 + st_gpu_gemm_opened_bytes(&c.a)};
    uint8_t *b[GEMM_BUFFERS];
    enum strata_result r = STRATA_OK;
    for (int i = 0; i < GEMM_BUFFERS && r == STRATA_OK; i++)
        r = st_test_add(run, sizes[i], &b[i], err);
    if (r == STRATA_OK) {
        st_test_weights(run, type, b[W], matrices);
        if (pair)
            st_test_weights(run, type, b[UP], matrices);
        for (uint32_t e = 0; e < c.experts; e++) {
            ((float *)(void *)b[SCALES])[e] = 0.5f + 0.3f * (float)e;
            ((float *)(void *)b[UP_SCALES])[e] = 1.5f - 0.2f * (float)e;
        }
        if (!total)
            random_routing(run, &c, (int32_t *)(void *)b[FIRST], (int32_t *)(void *)b[ENTRY]);
        r = random_rows(run, type, b[X], inputs, n, err);
        if (type == ST_TYPE_BF16)
            exact_floats(run, n < 1000, b[W], rows, b[X], inputs, n);
    }
    if (r == STRATA_OK)
        r = run_case(run, &c, err);
    st_test_drop(run);
    return r;
}

/* Activation rows in the layouts of strips, on every device. What a layout leaves free stays as it was. */
static enum strata_result test_rows(struct st_test_run *run, bool large, uint32_t n, uint32_t total, bool minima,
                                    struct strata_error *err)
{
    const int type = large ? ST_TYPE_Q4_K : ST_TYPE_Q4_1;
    const uint32_t stride = st_gpu_act_stride(st_type_info(type)->act, n);
    const uint32_t tiles = (total + (large ? ST_FOLD_ROWS : 128) - 1) / (large ? ST_FOLD_ROWS : 128);
    struct st_gpu_launch l = {.kernel = large ? ST_GPU_FOLD_ROWS : ST_GPU_STRIP_ROWS,
                              .grid = {large ? n / 256 : (n + 127) / 128, large ? tiles * (ST_FOLD_ROWS / 64) : tiles, 1}};
    uint8_t *to, *x;
    snprintf(run->shape, sizeof run->shape, "%u rows of %u in strips%s", total, n, minima ? " with sums" : "");
    enum strata_result r = st_test_add(run, large ? ST_FOLD_X(n, total, minima) : ST_STRIPS_ROWS(n, total, minima), &to, err);
    if (r == STRATA_OK)
        r = st_test_add(run, (size_t)total * stride, &x, err);
    if (r == STRATA_OK)
        r = random_rows(run, type, x, total, n, err);
    for (int i = 0; i < 2 && r == STRATA_OK; i++)
        memcpy(run->buffer[i].want, run->buffer[i].input, run->buffer[i].size);
    if (r == STRATA_OK)
        r = st_test_put(run, err);
    const uint32_t numbers[] = {n, total, stride, minima};
    for (int i = 0; i < 4; i++)
        l.args[2 + i].i = numbers[i];
    if (r == STRATA_OK) {
        for (int i = 0; i < 2; i++)
            l.args[i].p = (st_addr)(uintptr_t)run->buffer[i].want;
        st_gpu_reference(st_dot_table_c(), l.kernel, l.grid, l.args);
        for (int i = 0; i < 2; i++)
            l.args[i].p = run->buffer[i].device;
        r = launch(run, &l, err);
    }
    if (r == STRATA_OK)
        r = st_test_get(run, err);
    if (r == STRATA_OK) {
        for (int i = 0; i < 2; i++)
            if (!st_test_guards(run, i))
                st_test_exact(run, i);
        st_test_report(run);
    }
    st_test_drop(run);
    return r;
}

/* A quick run: every type once, some more often. */
static bool wanted(const struct st_test_run *run, size_t type, size_t shape)
{
    return st_test_type(run, types[type]) && (!run->options->quick || (type % 4 == 0 ? shape < 6 : shape == type % 2));
}

enum strata_result st_test_gemm(struct st_test_run *run, struct strata_error *err)
{
    static const struct {
        uint32_t rows, n, total;
        bool pair;
    } shapes[] = {{130, 256, 65, false}, {70, 512, 0, true},   {40, 768, 9, false}, {33, 1024, 17, true}, {150, 256, 200, false},
                  {20, 512, 0, false},   {64, 96, 64, false},  {129, 32, 129, true}, {25, 160, 0, true},   {17, 2560, 140, false},
                  {1, 320, 10, false},   {300, 768, 450, false}};
    enum strata_result r = STRATA_OK;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes && r == STRATA_OK; i++)
            if (wanted(run, t, i))
                r = test_case(run, types[t], shapes[i].rows, shapes[i].n, shapes[i].total, shapes[i].pair, err);
    static const struct {
        int type;
        uint32_t rows, n, total;
    } floats[] = {{ST_TYPE_BF16, 130, 320, 70}, {ST_TYPE_F32, 40, 1000, 9}, {ST_TYPE_F16, 129, 67, 17}, {ST_TYPE_BF16, 33, 2560, 65}};
    for (size_t i = 0; i < sizeof floats / sizeof *floats && r == STRATA_OK; i++)
        if (st_test_type(run, floats[i].type))
            r = test_case(run, floats[i].type, floats[i].rows, floats[i].n, floats[i].total, false, err);
    for (int minima = 0; minima < 2 && r == STRATA_OK; minima++) {
        r = test_rows(run, true, 512, 200, minima, err);
        if (r == STRATA_OK)
            r = test_rows(run, false, 160, 130, minima, err);
    }
    return r;
}
