/* Owns the launches of gpu/gemm.h, gpu/gemm_wide.h and gpu/opened.h. */
#include "kernel/gpu_gemm.h"

#include <stddef.h>

enum { ROWS_LIMIT = 65535, DEFAULT_UNITS = 64 };

/* What is opened of a type (gpu/layout.h): scales of parts of 32 or 16 columns, with minima or without, in blocks of 256 (K) or
 * for themselves. */
enum kind { KIND_32, KIND_16, KIND_32M, KIND_K32, KIND_K16, KIND_K32M, KIND_K16M };
static const struct kind_info {
    enum st_gpu_kernel kernel;
    bool large, halves, minima;
} kinds[] = {[KIND_32] = {ST_GPU_GEMM_32, false, false, false},  [KIND_16] = {ST_GPU_GEMM_16, false, true, false},
             [KIND_32M] = {ST_GPU_GEMM_32M, false, false, true}, [KIND_K32] = {ST_GPU_GEMM_K32, true, false, false},
             [KIND_K16] = {ST_GPU_GEMM_K16, true, true, false},  [KIND_K32M] = {ST_GPU_GEMM_K32M, true, false, true},
             [KIND_K16M] = {ST_GPU_GEMM_K16M, true, true, true}};

/* Kernels of a type. The empty kernel stands for none. */
#define QUANTISED(X)                                                                                                      \
    X(Q8_0, 32) X(Q2_0, 32) X(IQ4_NL, 32) X(Q4_0, 32) X(Q4_1, 32M) X(Q5_0, 32) X(Q5_1, 32M) X(MXFP4, 32) X(NVFP4, 16)     \
    X(Q2_K, K16M) X(Q3_K, K16) X(Q4_K, K32M) X(Q5_K, K32M) X(Q6_K, K16) X(IQ4_XS, K32) X(IQ1_S, K32) X(IQ1_M, K16)        \
    X(IQ2_XXS, K32) X(IQ2_XS, K16) X(IQ2_S, K16) X(IQ3_XXS, K32) X(IQ3_S, K32)
#define KERNELS(t, k) [ST_TYPE_##t] = {ST_GPU_GEMM_FEW_##t, ST_GPU_GEMM_PAIR_##t, ST_GPU_OPEN_##t, KIND_##k},
static const struct {
    enum st_gpu_kernel few, pair, open;
    enum kind kind;
} kernels[ST_TYPE_COUNT] = {QUANTISED(KERNELS)};

static bool served(int type)
{
    return type >= 0 && type < ST_TYPE_COUNT && kernels[type].few != ST_GPU_EMPTY;
}

int st_gpu_gemm_type(enum st_gpu_kernel kernel, bool *pair)
{
    for (int t = 0; t < ST_TYPE_COUNT && kernel != ST_GPU_EMPTY; t++)
        if (kernels[t].few == kernel || kernels[t].pair == kernel) {
            *pair = kernels[t].pair == kernel;
            return t;
        }
    return -1;
}

bool st_gpu_gemm_opens(enum st_gpu_kernel kernel)
{
    for (int t = 0; t < ST_TYPE_COUNT; t++)
        if (served(t) && kernels[t].open == kernel)
            return true;
    return kernel == ST_GPU_FOLD_ROWS || kernel == ST_GPU_STRIP_ROWS;
}

bool st_gpu_gemm_is_wide(enum st_gpu_kernel kernel)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].kernel == kernel)
            return true;
    return false;
}

static uint32_t divide_up(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

uint32_t st_gpu_gemm_tile_bound(uint32_t entries, uint32_t experts)
{
    return divide_up(entries, ST_GEMM_FEW) + (entries < experts ? entries : experts);
}

void st_gpu_gemm_tiles(st_addr tiles, st_addr first, uint32_t experts, uint32_t bound, struct st_gpu_launch *out)
{
    *out = (struct st_gpu_launch){.kernel = ST_GPU_GEMM_TILES, .grid = {1, 1, 1}};
    out->args[0].p = tiles;
    out->args[1].p = first;
    out->args[2].i = experts;
    out->args[3].i = ST_GEMM_FEW;
    out->args[4].i = bound;
}

static enum strata_result check(const struct st_gpu_gemm *a, uint32_t tiles, struct strata_error *err)
{
    const struct st_type_info *info = st_type_info(a->type);
    if (!served(a->type))
        return st_fail(err, STRATA_E_UNSUPPORTED, "prompt products: no kernel for %s weights", info ? info->name : "unknown");
    if (a->n == 0 || a->n % info->block_elems || a->n > ST_GPU_COLUMNS || a->rows == 0 || a->ldy < a->rows || tiles == 0 ||
        tiles > ROWS_LIMIT)
        return st_fail(err, STRATA_E_UNSUPPORTED, "prompt products: no kernel for %u rows times %s [%u x %u]", a->total,
                       info->name, a->rows, a->n);
    return STRATA_OK;
}

static uint32_t row_bytes(const struct st_gpu_gemm *a)
{
    const struct st_type_info *info = st_type_info(a->type);
    return (uint32_t)(a->n / info->block_elems * info->block_bytes);
}

bool st_gpu_gemm_wide(const struct st_gpu_gemm *a)
{
    const uint32_t tiles = divide_up(a->rows, ST_GEMM_OUT) * divide_up(a->total, ST_GEMM_WIDE);
    return served(a->type) && !a->up && a->total > ST_GEMM_FEW && tiles >= (a->units ? a->units : DEFAULT_UNITS);
}

/* Whether four waves multiply strips: the layouts of gemm_fold.h and gemm_strips.h. */
static bool strips(const struct st_gpu_gemm *a)
{
    const struct kind_info *k = &kinds[kernels[a->type].kind];
    return a->folded && (k->large || !k->halves);
}

/* Bytes of ST_GEMM_OUT opened weight rows. */
static uint64_t opened_tile(const struct st_gpu_gemm *a)
{
    const struct kind_info *k = &kinds[kernels[a->type].kind];
    if (strips(a) && k->large)
        return (uint64_t)(a->n / 256) * ST_FOLD_BLOCK(k->minima);
    if (strips(a))
        return (uint64_t)divide_up(a->n, 128) * ST_STRIPS_W(k->minima);
    return ST_OPENED_AT((uint64_t)divide_up(a->n, 64), k->halves, !k->large && k->minima, k->large, k->minima);
}

/* Bytes of the activation rows in front of all of them. */
static uint64_t strip_rows(const struct st_gpu_gemm *a)
{
    const struct kind_info *k = &kinds[kernels[a->type].kind];
    if (!strips(a))
        return 0;
    return k->large ? ST_FOLD_X(a->n, a->total, k->minima) : ST_STRIPS_ROWS(a->n, a->total, k->minima);
}

/* Weight rows that are opened at once, in tiles. */
static uint32_t tiles_at_once(const struct st_gpu_gemm *a)
{
    enum { MOST = 32 << 20, MOST_STRIPS = 64 << 20 }; /* what a second-level cache may still hold when it is read again */
    const uint64_t tiles = divide_up(a->rows, ST_GEMM_OUT), most = (strips(a) ? MOST_STRIPS : MOST) / opened_tile(a);
    return (uint32_t)(tiles <= most ? tiles : most > 0 ? most : 1);
}

uint64_t st_gpu_gemm_opened_bytes(const struct st_gpu_gemm *a)
{
    return st_gpu_gemm_wide(a) ? strip_rows(a) + tiles_at_once(a) * opened_tile(a) : 0;
}

/* Brings the activation rows into their form in strips. */
static void launch_rows(const struct st_gpu_gemm *a, st_addr to, struct st_gpu_launch *out)
{
    const struct kind_info *k = &kinds[kernels[a->type].kind];
    *out = (struct st_gpu_launch){.kernel = k->large ? ST_GPU_FOLD_ROWS : ST_GPU_STRIP_ROWS, .grid = {0, 0, 1}};
    out->grid[0] = k->large ? a->n / 256 : divide_up(a->n, 128);
    out->grid[1] = k->large ? divide_up(a->total, ST_FOLD_ROWS) * (ST_FOLD_ROWS / 64) : divide_up(a->total, 128);
    out->args[0].p = to;
    out->args[1].p = a->x;
    out->args[2].i = a->n;
    out->args[3].i = a->total;
    out->args[4].i = a->stride;
    out->args[5].i = k->minima;
}

enum strata_result st_gpu_gemm_opened(const struct st_gpu_gemm *a, st_addr opened, uint32_t *row,
                                      struct st_gpu_launch out[ST_GPU_OPENED_LAUNCHES], int *count, struct strata_error *err)
{
    const uint32_t y = divide_up(a->total, ST_GEMM_WIDE);
    enum strata_result r = check(a, y, err);
    *count = 0;
    if (r || !st_gpu_gemm_wide(a))
        return r ? r : st_fail(err, STRATA_E_ARGUMENT, "prompt products: %u rows are too few to open weights for", a->total);
    const uint32_t most = tiles_at_once(a) * ST_GEMM_OUT, left = a->rows - *row;
    const uint32_t rows = left < most ? left : most, tiles = divide_up(rows, ST_GEMM_OUT);
    const st_addr w = a->w + (uint64_t)*row * row_bytes(a);
    if (strips(a) && *row == 0)
        launch_rows(a, opened, &out[(*count)++]);
    struct st_gpu_launch *open = &out[(*count)++], *multiply = &out[(*count)++];
    *open = (struct st_gpu_launch){.kernel = kernels[a->type].open, .grid = {divide_up(a->n, 256), tiles, 1}};
    *multiply = (struct st_gpu_launch){.kernel = kinds[kernels[a->type].kind].kernel, .grid = {tiles, y, 1}};
    if (strips(a)) { /* groups take tiles one after the other */
        const uint32_t at_once = kinds[kernels[a->type].kind].large ? ST_FOLD_ROWS : 128;
        const uint32_t all = tiles * divide_up(a->total, at_once), units = a->units ? a->units : DEFAULT_UNITS;
        multiply->grid[0] = all < units ? all : units;
        multiply->grid[1] = 1;
    }
    union st_arg *arg = open->args;
    arg[0].p = opened + strip_rows(a);
    arg[1].p = w;
    arg[2].i = a->n;
    arg[3].i = rows;
    arg[4].i = row_bytes(a);
    arg = multiply->args;
    arg[0].p = a->y + (uint64_t)*row * 4;
    arg[1].p = opened;
    arg[2].p = a->x;
    arg[3].p = a->scales ? a->scales : a->w;
    arg[4].p = w;
    const uint32_t numbers[] = {(uint32_t)a->type, a->n, rows, row_bytes(a), a->total, a->stride, a->ldy, a->scales != 0};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        arg[5 + i].i = numbers[i];
    *row += rows;
    return STRATA_OK;
}

enum strata_result st_gpu_gemm(const struct st_gpu_gemm *a, struct st_gpu_launch *out, struct strata_error *err)
{
    uint32_t y = a->total == 0 ? a->n_tiles : divide_up(a->total, ST_GEMM_FEW);
    enum strata_result r = check(a, y, err);
    if (r)
        return r;
    *out = (struct st_gpu_launch){.kernel = a->up ? kernels[a->type].pair : kernels[a->type].few,
                                  .grid = {divide_up(a->rows, a->up ? ST_GEMM_OUT / 2 : ST_GEMM_OUT), y, 1}};
    const st_addr none = a->w; /* of arguments that the kernel does not read */
    const st_addr pointers[] = {a->y,
                                a->w,
                                a->up ? a->up : none,
                                a->x,
                                a->tiles ? a->tiles : none,
                                a->entry ? a->entry : none,
                                a->scales ? a->scales : none,
                                a->up_scales ? a->up_scales : none,
                                a->places ? a->places : none};
    const uint32_t bytes = row_bytes(a);
    const uint32_t scaled = (!a->scales ? 0 : a->scale_each ? 2 : 1) | (a->places ? ST_GEMM_PLACED : 0);
    const uint32_t numbers[] = {a->n,   a->rows, bytes, a->total, a->stride, a->ldy, a->used, scaled,
                                a->expert_bytes ? a->expert_bytes : bytes * a->rows};
    union st_arg *arg = out->args;
    for (size_t i = 0; i < sizeof pointers / sizeof *pointers; i++)
        (arg++)->p = pointers[i];
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        (arg++)->i = numbers[i];
    return STRATA_OK;
}

enum strata_result st_gpu_gemm_floats(const struct st_gpu_gemm *a, struct st_gpu_launch *out, struct strata_error *err)
{
    enum { OUT = 128, ROWS = 64 };
    const enum st_gpu_kernel kernel = a->type == ST_TYPE_F32    ? ST_GPU_GEMM_F32
                                      : a->type == ST_TYPE_F16  ? ST_GPU_GEMM_F16
                                      : a->type == ST_TYPE_BF16 ? ST_GPU_GEMM_BF16
                                                                : ST_GPU_EMPTY;
    uint32_t y = divide_up(a->total, ROWS);
    if (kernel == ST_GPU_EMPTY || a->up || a->n == 0 || a->n > ST_GPU_COLUMNS || a->rows == 0 || a->ldy < a->rows || y == 0 ||
        y > ROWS_LIMIT)
        return st_fail(err, STRATA_E_UNSUPPORTED, "prompt products: no kernel for %u rows times weights of type %d [%u x %u]",
                       a->total, a->type, a->rows, a->n);
    *out = (struct st_gpu_launch){.kernel = kernel, .grid = {divide_up(a->rows, OUT), y, 1}};
    out->args[0].p = a->y;
    out->args[1].p = a->w;
    out->args[2].p = a->x;
    out->args[3].p = a->scales ? a->scales : a->w;
    out->args[4].i = a->n;
    out->args[5].i = a->rows;
    out->args[6].i = a->n * st_type_info(a->type)->block_bytes;
    out->args[7].i = a->total;
    out->args[8].i = a->stride;
    out->args[9].i = a->ldy;
    out->args[10].i = a->scales != 0;
    return STRATA_OK;
}

uint64_t st_gpu_tile_peak(st_addr to, uint32_t groups, uint32_t rounds, uint32_t lanes, struct st_gpu_launch *out)
{
    enum { GROUP = 256, TILES = 8, PRODUCT = 16 * 16 * 32 * 2 };
    *out = (struct st_gpu_launch){.kernel = ST_GPU_TILE_PEAK, .grid = {groups, 1, 1}};
    out->args[0].p = to;
    out->args[1].i = rounds;
    return (uint64_t)(GROUP / lanes) * TILES * PRODUCT * rounds;
}
