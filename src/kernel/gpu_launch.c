/* Owns the order of arguments and the grids of all GPU kernels: from typed arguments to launches. */
#include "kernel/gpu_launch.h"

#include "kernel/gpu_copy.h"
#include "kernel/gpu_norm.h"
#include "kernel/gpu_products.h"
#include "kernel/gpu_rows.h"

enum { COPY_GROUP = 256 * 4 * 16, ROWS_LIMIT = 65535, DEFAULT_UNITS = 64 };

static uint32_t divide_up(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

static void start(struct st_gpu_launch *out, enum st_gpu_kernel kernel, uint32_t x, uint32_t y)
{
    *out = (struct st_gpu_launch){.kernel = kernel, .grid = {x, y, 1}};
}

/* ---- copy ---- */

void st_gpu_empty(struct st_gpu_launch *out)
{
    start(out, ST_GPU_EMPTY, 1, 1);
}

static void copy_like(enum st_gpu_kernel kernel, st_addr to, st_addr from, uint64_t bytes, struct st_gpu_launch *out)
{
    start(out, kernel, (uint32_t)((bytes + COPY_GROUP - 1) / COPY_GROUP), 1);
    out->args[0].p = to;
    out->args[1].p = from;
    out->args[2].l = bytes / 16;
}

void st_gpu_copy(st_addr to, st_addr from, uint64_t bytes, struct st_gpu_launch *out)
{
    copy_like(ST_GPU_COPY, to, from, bytes, out);
}

void st_gpu_read(st_addr words, st_addr from, uint64_t bytes, struct st_gpu_launch *out)
{
    copy_like(ST_GPU_READ, words, from, bytes, out);
}

/* ---- norm ---- */

uint32_t st_gpu_act_stride(enum st_act act, uint32_t n)
{
    return act == ST_ACT_Q8 ? ST_Q8_STRIDE(n) : act == ST_ACT_Q8K ? ST_Q8K_STRIDE(n) : 0;
}

static uint32_t act_elems(enum st_act act)
{
    return act == ST_ACT_Q8 ? 32 : act == ST_ACT_Q8K ? 256 : 1;
}

enum strata_result st_gpu_norm(const struct st_gpu_norm *a, struct st_gpu_launch *out, struct strata_error *err)
{
    if (a->rows == 0 || a->rows > ROWS_LIMIT || a->group == 0 || a->n == 0 || a->n % a->group ||
        a->group % act_elems(a->act) || (a->gammas != a->group && a->gammas != a->n))
        return st_fail(err, STRATA_E_UNSUPPORTED, "norm: no kernel for %u rows of %u in groups of %u with %u factors",
                       a->rows, a->n, a->group, a->gammas);
    start(out,
          a->act == ST_ACT_Q8    ? ST_GPU_NORM_Q8
          : a->act == ST_ACT_Q8K ? ST_GPU_NORM_Q8K
                                 : ST_GPU_NORM,
          a->n / a->group, a->rows);
    union st_arg *arg = out->args;
    (arg++)->p = a->y;
    if (a->act != ST_ACT_F32)
        (arg++)->p = a->q;
    (arg++)->p = a->x;
    (arg++)->p = a->gamma;
    (arg++)->i = a->n;
    (arg++)->i = a->group;
    (arg++)->i = a->gammas;
    arg->f = a->eps;
    return STRATA_OK;
}

enum strata_result st_gpu_quantize(enum st_act act, st_addr q, st_addr x, uint32_t rows, uint32_t n,
                                   struct st_gpu_launch *out, struct strata_error *err)
{
    if (act == ST_ACT_F32 || rows == 0 || rows > ROWS_LIMIT || n == 0 || n % act_elems(act))
        return st_fail(err, STRATA_E_UNSUPPORTED, "activations: no kernel for %u rows of %u", rows, n);
    start(out, act == ST_ACT_Q8 ? ST_GPU_QUANT_Q8 : ST_GPU_QUANT_Q8K, divide_up(n, 256), rows);
    out->args[0].p = q;
    out->args[1].p = x;
    out->args[2].i = n;
    return STRATA_OK;
}

/* ---- products ---- */

/* What a product kernel needs to know of a type; the kernel for up to 8 rows stands behind that for one. */
static const struct product_type {
    int type;
    enum st_gpu_kernel matvec;
    uint32_t elems, bytes; /* of a block */
    uint32_t block_bytes;  /* for 32 elements */
    /* Groups taken to run at once on one unit, of products of one row and of several: seen on one card
     * (docs/benchmarks.md), assumed for all. A wrong number costs time, not results. */
    uint32_t groups, groups_many;
} product_types[] = {
    {ST_TYPE_Q8_0, ST_GPU_MV_Q8_0_1, 32, 34, 34, 5, 4},
    {ST_TYPE_Q2_0, ST_GPU_MV_Q2_0_1, 64, 18, 9, 3, 2},
    {ST_TYPE_IQ4_NL, ST_GPU_MV_IQ4_NL_1, 32, 18, 18, 4, 4},
    {ST_TYPE_Q4_K, ST_GPU_MV_Q4_K_1, 256, 144, 18, 5, 3},
};

static const struct product_type *product_type(int type)
{
    for (size_t i = 0; i < sizeof product_types / sizeof *product_types; i++)
        if (product_types[i].type == type)
            return &product_types[i];
    return NULL;
}

static const char *type_name(int type)
{
    const struct st_type_info *info = st_type_info(type);
    return info ? info->name : "of unknown type";
}

/* The kernel's place in its family, and its rows. */
static uint32_t many_index(uint32_t count)
{
    return count == 1 ? 0 : 1;
}

/* The rules of layout.h; n is a multiple of the block. */
uint32_t st_gpu_tile_limit(int type, uint32_t many, uint32_t n)
{
    const struct product_type *t = product_type(type);
    if (!t || n == 0 || n % t->elems || n > ST_GPU_COLUMNS)
        return 0;
    uint32_t total = n / 32, chunks = divide_up(total, ST_CHUNK), unit = type == ST_TYPE_Q2_0 ? 4 : 2;
    uint32_t blocks = chunks == 1 ? total : divide_up(divide_up(total, chunks), 8) * 8;
    uint32_t units = divide_up(blocks, unit), q2 = type == ST_TYPE_Q2_0;
    uint32_t passes = ST_PRODUCT_PASSES(type == ST_TYPE_Q8_0, q2, many);
    uint32_t limit = ST_PRODUCT_ITEMS / units * passes,
             by_terms = ST_TERM_VECTORS(q2) * passes / (units * unit / 2 | 1);
    uint32_t by_outputs = ST_PRODUCT_GROUP - ST_PRODUCT_ITEMS;
    limit = by_terms < limit ? by_terms : limit;
    limit = by_outputs < limit ? by_outputs : limit;
    /* tiles that begin at multiples of 16 bytes, where there are such */
    uint32_t bytes = total * t->block_bytes, step = 1;
    while (bytes * step % 16)
        step *= 2;
    if (chunks == 1 && bytes % 4 == 0 && step <= limit)
        return limit / step * step;
    return limit < ST_LOOSE_ROWS ? limit : ST_LOOSE_ROWS;
}

/* The tile of a launch: the largest, or the wanted one; 0 when that is not possible. */
static uint32_t choose_tile(int type, uint32_t count, uint32_t n, uint32_t wanted)
{
    uint32_t limit = st_gpu_tile_limit(type, count == 1 ? 1 : ST_MAX_ROWS, n);
    if (wanted > ST_LOOSE_ROWS && wanted != limit)
        return 0;
    return wanted == 0 ? limit : wanted <= limit ? wanted : 0;
}

/* How many groups share the tiles: as many as run at once on a device with so many units, and not more than there are
 * tiles. */
static uint32_t choose_groups(uint32_t per_unit, uint32_t units, uint32_t tiles)
{
    uint32_t groups = (units ? units : DEFAULT_UNITS) * per_unit; /* one more than fits would run alone in the end */
    return groups < tiles ? groups : tiles;
}

enum strata_result st_gpu_matvec(const struct st_gpu_matvec *a, struct st_gpu_launch *out, struct strata_error *err)
{
    const struct product_type *t = product_type(a->type);
    if (!t)
        return st_fail(err, STRATA_E_UNSUPPORTED, "matrix-vector product: no kernel for %s weights",
                       type_name(a->type));
    uint32_t tile = a->count ? choose_tile(a->type, a->count, a->n, a->tile) : 0;
    if (tile == 0 || a->count > ST_MAX_ROWS || a->rows == 0 || a->ldy < a->rows)
        return st_fail(err, STRATA_E_UNSUPPORTED,
                       "matrix-vector product: no kernel for %u rows times %s [%u x %u] in tiles of %u rows", a->count,
                       type_name(a->type), a->rows, a->n, a->tile);
    start(out, (enum st_gpu_kernel)(t->matvec + many_index(a->count)),
          choose_groups(a->count == 1 ? t->groups : t->groups_many, a->units, divide_up(a->rows, tile)), 1);
    out->args[0].p = a->y;
    out->args[1].p = a->w;
    out->args[2].p = a->x;
    out->args[3].i = a->n;
    out->args[4].i = a->rows;
    out->args[5].i = a->count;
    out->args[6].i = a->ldy;
    out->args[7].i = tile;
    out->args[8].i = out->grid[0];
    return STRATA_OK;
}

/* ---- traffic ---- */

/* Whether the kernel is one of the two that start at first. */
static bool of_family(enum st_gpu_kernel kernel, enum st_gpu_kernel first)
{
    return kernel >= first && kernel < first + 2;
}

uint64_t st_gpu_bytes(enum st_gpu_kernel kernel, const uint32_t grid[3], const union st_arg *args)
{
    uint64_t rows = grid[1];
    switch (kernel) {
    case ST_GPU_COPY: return args[2].l * 32;
    case ST_GPU_READ: return args[2].l * 16 + (uint64_t)grid[0] * 1024;
    case ST_GPU_NORM: return rows * args[3].i * 8 + args[5].i * 4;
    case ST_GPU_NORM_Q8: return rows * (args[4].i * 8ull + ST_Q8_STRIDE(args[4].i)) + args[6].i * 4ull;
    case ST_GPU_NORM_Q8K: return rows * (args[4].i * 8ull + ST_Q8K_STRIDE(args[4].i)) + args[6].i * 4ull;
    case ST_GPU_QUANT_Q8: return rows * (args[2].i * 4ull + ST_Q8_STRIDE(args[2].i));
    case ST_GPU_QUANT_Q8K: return rows * (args[2].i * 4ull + ST_Q8K_STRIDE(args[2].i));
    default: break;
    }
    for (size_t i = 0; i < sizeof product_types / sizeof *product_types; i++) {
        const struct product_type *t = &product_types[i];
        if (of_family(kernel, t->matvec))
            return (uint64_t)args[4].i * (args[3].i / 32) * t->block_bytes +
                   args[5].i * (4ull * args[4].i +
                                (t->type == ST_TYPE_Q4_K ? ST_Q8K_STRIDE(args[3].i) : ST_Q8_STRIDE(args[3].i)));
    }
    enum st_act act;
    if (st_gpu_rows_type(kernel, &act) >= 0)
        return st_gpu_rows_bytes(args);
    return 0;
}
