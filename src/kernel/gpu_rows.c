/* Owns the launches of gpu/rows.h: the kernel of a type, and tiles and chunks that fit its local memory. */
#include "kernel/gpu_rows.h"

#include <stddef.h>

enum { ROWS_LIMIT = 65535, DEFAULT_UNITS = 64, WAVES = 6, FLOAT_WAVES = 3, FLOAT_TEAM = 16 };

#define QUANTISED(X)                                                                                                      \
    X(Q8_0) X(Q2_0) X(IQ4_NL) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(MXFP4) X(NVFP4) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K)  \
    X(IQ4_XS) X(IQ1_S) X(IQ1_M) X(IQ2_XXS) X(IQ2_XS) X(IQ2_S) X(IQ3_XXS) X(IQ3_S)

/* The empty kernel stands for none. */
#define INTEGER_KERNEL(t) [ST_TYPE_##t] = ST_GPU_ROWS_##t,
#define FLOAT_KERNEL(t) [ST_TYPE_##t] = ST_GPU_FLOATS_##t,
static const enum st_gpu_kernel integer_kernels[ST_TYPE_COUNT] = {QUANTISED(INTEGER_KERNEL)};
static const enum st_gpu_kernel float_kernels[ST_TYPE_COUNT] = {
    QUANTISED(FLOAT_KERNEL) FLOAT_KERNEL(F32) FLOAT_KERNEL(F16) FLOAT_KERNEL(BF16)};

int st_gpu_rows_type(enum st_gpu_kernel kernel, enum st_act *act)
{
    for (int t = 0; t < ST_TYPE_COUNT && kernel != ST_GPU_EMPTY; t++) {
        if (float_kernels[t] == kernel) {
            *act = ST_ACT_F32;
            return t;
        }
        if (integer_kernels[t] == kernel) {
            *act = st_type_info(t)->act;
            return t;
        }
    }
    return -1;
}

static uint32_t divide_up(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Vectors of local memory that the chunk's columns of one row take. */
static uint32_t vectors(const struct st_type_info *info, uint32_t columns)
{
    return (uint32_t)((uint64_t)divide_up(columns, (uint32_t)info->block_elems) * info->block_bytes + 30) / 16;
}

static uint32_t terms(const struct st_type_info *info, uint32_t columns)
{
    bool large = info->block_elems == 256, two = info->id == ST_TYPE_NVFP4 || info->id == ST_TYPE_Q4_1 || info->id == ST_TYPE_Q5_1;
    return ST_ROWS_TERMS(columns / 32, large, two);
}

/* Matrices that make one output. */
static uint32_t joint(const struct st_gpu_rows *a)
{
    return a->join == ST_ROWS_JOIN_SWIGLU ? 2 : a->join == ST_ROWS_JOIN_MEAN ? a->streams : 1;
}

/* The tile for chunks of so many columns and `count` outputs for each of its rows and matrices, 0 when they do not fit. Of FP32
 * activations two chunks share the local memory, where one is not all. */
static uint32_t tile_for(const struct st_gpu_rows *a, const struct st_type_info *info, uint32_t columns, uint32_t count)
{
    uint32_t each = joint(a), share = a->act == ST_ACT_F32 && columns < a->n ? 2 : 1;
    uint32_t tile = ST_ROWS_STAGE / share / (vectors(info, columns) * each);
    if (a->act == ST_ACT_F32)
        return columns * count > ST_ROWS_INPUTS / share ? 0 : smaller(tile, ST_ROWS_OUTPUTS / (count * each));
    return smaller(tile, smaller(ST_ROWS_ROOM / (terms(info, columns) * count * each), ST_ROWS_GROUP / (count * each)));
}

static bool shapes_served(const struct st_gpu_rows *a)
{
    bool plain = a->join == ST_ROWS_JOIN_NONE;
    if (a->matrices == 0 || a->matrices > ST_GPU_ROWS_MATRICES || (a->matrices > 1 && (!plain || a->mode != ST_ROWS_DENSE)) ||
        (!plain && a->scales) || joint(a) == 0 || joint(a) > 8)
        return false;
    for (uint32_t i = 0; i < a->matrices; i++)
        if (a->matrix[i].rows == 0 || a->matrix[i].rows > 1u << 30 || a->matrix[i].ldy < a->matrix[i].rows)
            return false;
    return true;
}

enum strata_result st_gpu_rows(const struct st_gpu_rows *a, struct st_gpu_launch *out, struct strata_error *err)
{
    const struct st_type_info *info = st_type_info(a->type);
    enum st_gpu_kernel kernel = info ? (a->act == ST_ACT_F32 ? float_kernels : integer_kernels)[a->type] : ST_GPU_EMPTY;
    if (kernel == ST_GPU_EMPTY)
        return st_fail(err, STRATA_E_UNSUPPORTED, "products: no kernel for %s weights", info ? info->name : "unknown");
    uint32_t count = smaller(a->most, ST_MAX_ROWS);
    uint32_t y = a->mode == ST_ROWS_DENSE ? divide_up(a->total, ST_MAX_ROWS) : a->mode == ST_ROWS_ENTRY ? a->total : a->experts;
    if (!shapes_served(a) || a->n == 0 || a->n % info->block_elems || a->n > ST_GPU_COLUMNS || count == 0 || y == 0 ||
        y > ROWS_LIMIT || (a->mode == ST_ROWS_ENTRY && a->most > ST_MAX_ROWS))
        return st_fail(err, STRATA_E_UNSUPPORTED, "products: no kernel for %u rows times %s [%u x %u]", a->total, info->name,
                       a->matrix[0].rows, a->n);
    /* All columns at once, or the longest chunk that fits: a multiple of the block and of what the kernels go by. */
    uint32_t columns = a->n, step = a->act == ST_ACT_F32 && info->block_elems < 256 ? 64 : 256;
    uint32_t tile = tile_for(a, info, columns, count);
    for (uint32_t parts = 2; tile == 0 && columns > step; parts++) {
        columns = divide_up(divide_up(a->n, parts), step) * step;
        tile = tile_for(a, info, columns, count);
    }
    if (tile == 0)
        return st_fail(err, STRATA_E_UNSUPPORTED, "products: %u rows times %s [%u x %u] do not fit", count, info->name,
                       a->matrix[0].rows, a->n);
    /* Smaller tiles where there would not be enough groups to keep every unit busy. */
    uint64_t enough = (uint64_t)(a->units ? a->units : DEFAULT_UNITS) * (a->act == ST_ACT_F32 ? FLOAT_WAVES : WAVES), rows = 0;
    for (uint32_t i = 0; i < a->matrices; i++)
        rows += a->matrix[i].rows;
    uint64_t wanted = rows * y / enough;
    tile = smaller(tile, wanted == 0 ? 1 : wanted > UINT32_MAX ? UINT32_MAX : (uint32_t)wanted);
    *out = (struct st_gpu_launch){.kernel = kernel, .grid = {0, y, 1}};
    const st_addr none = a->matrix[0].w; /* of arguments that the kernel does not read */
    union st_arg *arg = out->args;
    uint32_t finish = 0;
    for (uint32_t i = 0; i < ST_GPU_ROWS_MATRICES; i++) {
        const struct st_gpu_rows_matrix *m = i < a->matrices ? &a->matrix[i] : NULL;
        st_addr other = i == 1 && a->join == ST_ROWS_JOIN_SWIGLU ? a->second : i == 1 && a->join == ST_ROWS_JOIN_MEAN ? a->values : none;
        arg[i].p = m ? m->y : a->matrix[0].y;
        arg[4 + i].p = m ? m->w : other;
        arg[24 + i].i = m ? m->rows : 0;
        arg[28 + i].i = m ? m->ldy : 0;
        finish |= m ? m->finish << 8 * i : 0;
        out->grid[0] += m ? divide_up(m->rows, tile) : 0;
    }
    const st_addr pointers[] = {a->x, a->first ? a->first : none, a->entry ? a->entry : none, a->expert ? a->expert : none,
                                a->scales ? a->scales : none};
    const uint32_t row_bytes = (uint32_t)(a->n / info->block_elems * info->block_bytes);
    if (a->mode != ST_ROWS_DENSE) {
        arg[29].i = a->expert_bytes ? a->expert_bytes : row_bytes * a->matrix[0].rows;
        arg[6].p = a->places ? a->places : none;
    }
    const uint32_t numbers[] = {a->n, row_bytes, a->total, a->stride, a->used, a->mode | (a->places ? ST_ROWS_PLACED : 0),
                                !a->scales ? 0 : a->scale_each ? 2 : 1,
                                joint(a) | a->join << 8 | (a->streams ? a->streams : 1) << 16, finish, tile,
                                a->act == ST_ACT_F32 ? columns : columns / 32};
    for (size_t i = 0; i < sizeof pointers / sizeof *pointers; i++)
        arg[8 + i].p = pointers[i];
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        arg[13 + i].i = numbers[i];
    return STRATA_OK;
}

uint64_t st_gpu_rows_bytes(const union st_arg *args)
{
    uint64_t rows = (uint64_t)args[24].i + args[25].i + args[26].i + args[27].i;
    return rows * (args[20].i & 255) * args[14].i + args[15].i * (4 * rows + args[16].i);
}
