/* Owns the launches of gpu/gemm.h. */
#include "kernel/gpu_gemm.h"

#include <stddef.h>

enum { ROWS_LIMIT = 65535, DEFAULT_UNITS = 64 };

/* Kernels of a type: wide, few, pair, one after the other in the enum. The empty kernel stands for none. */
#define QUANTISED(X)                                                                                                      \
    X(Q8_0) X(Q2_0) X(IQ4_NL) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(MXFP4) X(NVFP4) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K)  \
    X(IQ4_XS) X(IQ1_S) X(IQ1_M) X(IQ2_XXS) X(IQ2_XS) X(IQ2_S) X(IQ3_XXS) X(IQ3_S)
#define KERNELS(t) [ST_TYPE_##t] = {ST_GPU_GEMM_##t, ST_GPU_GEMM_FEW_##t, ST_GPU_GEMM_PAIR_##t},
enum { WIDE, FEW, PAIR, MODES };
static const enum st_gpu_kernel kernels[ST_TYPE_COUNT][MODES] = {QUANTISED(KERNELS)};

int st_gpu_gemm_type(enum st_gpu_kernel kernel, bool *pair)
{
    for (int t = 0; t < ST_TYPE_COUNT && kernel != ST_GPU_EMPTY; t++)
        for (int mode = 0; mode < MODES; mode++)
            if (kernels[t][mode] == kernel) {
                *pair = mode == PAIR;
                return t;
            }
    return -1;
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

enum strata_result st_gpu_gemm(const struct st_gpu_gemm *a, struct st_gpu_launch *out, struct strata_error *err)
{
    const struct st_type_info *info = st_type_info(a->type);
    if (!info || kernels[a->type][WIDE] == ST_GPU_EMPTY)
        return st_fail(err, STRATA_E_UNSUPPORTED, "prompt products: no kernel for %s weights", info ? info->name : "unknown");
    /* Wide tiles where there are enough of them for every unit; results do not depend on it. */
    uint32_t wide = divide_up(a->rows, ST_GEMM_OUT) * divide_up(a->total, ST_GEMM_WIDE);
    int mode = a->up ? PAIR : a->total > ST_GEMM_FEW && wide >= (a->units ? a->units : DEFAULT_UNITS) ? WIDE : FEW;
    uint32_t y = a->total == 0 ? a->n_tiles : divide_up(a->total, mode == WIDE ? ST_GEMM_WIDE : ST_GEMM_FEW);
    if (a->n == 0 || a->n % info->block_elems || a->n > ST_GPU_COLUMNS || a->rows == 0 || a->ldy < a->rows || y == 0 ||
        y > ROWS_LIMIT)
        return st_fail(err, STRATA_E_UNSUPPORTED, "prompt products: no kernel for %u rows times %s [%u x %u]", a->total,
                       info->name, a->rows, a->n);
    *out = (struct st_gpu_launch){.kernel = kernels[a->type][mode],
                                  .grid = {divide_up(a->rows, mode == PAIR ? ST_GEMM_OUT / 2 : ST_GEMM_OUT), y, 1}};
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
    const uint32_t row_bytes = (uint32_t)(a->n / info->block_elems * info->block_bytes);
    const uint32_t scaled = (!a->scales ? 0 : a->scale_each ? 2 : 1) | (a->places ? ST_GEMM_PLACED : 0);
    const uint32_t numbers[] = {a->n,   a->rows, row_bytes, a->total, a->stride, a->ldy, a->used, scaled,
                                a->expert_bytes ? a->expert_bytes : row_bytes * a->rows};
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
