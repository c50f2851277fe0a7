/* Lowering of products: activations are brought into the forms that the weights take, then every weight is multiplied, by the
 * tiles of gpu/product.h for the types that have them, otherwise by gpu/rows.h; prompts by gpu/gemm.h. */
#include "kernel/gpu_gemm.h"
#include "kernel/gpu_lower.h"
#include "kernel/gpu_norm.h"
#include "kernel/gpu_products.h"
#include "kernel/gpu_rows.h"
#include "kernel/multiply.h"

enum { ITEMS = 64, MANY = 8, GRID_ROWS = 65535 };

static uint32_t groups(uint64_t n)
{
    return (uint32_t)((n + ITEMS - 1) / ITEMS);
}

/* Activation rows of n floats each in the forms that weights take. */
struct input {
    const float *x;
    const struct st_act_buffer *acts;
    uint32_t n, rows;
};

static uint32_t stride_of(const struct input *in, enum st_act act)
{
    return act == ST_ACT_F32 ? in->n * 4 : st_gpu_act_stride(act, in->n);
}

static st_addr address_of(const struct input *in, enum st_act act, uint32_t row)
{
    st_addr base = act == ST_ACT_F32 ? st_gpu_at(in->x) : st_gpu_at(in->acts->memory[act]);
    return base + (uint64_t)row * stride_of(in, act);
}

/* Launches that fill the integer forms in mask (OR of 1 << form), without those that are ready. */
static enum strata_result prepare(const struct input *in, unsigned mask, struct st_gpu_list *list, struct strata_error *err)
{
    bool same = list->ready.forms && list->ready.x == in->x && list->ready.memory == in->acts->memory[ST_ACT_Q8];
    unsigned ready = same ? list->ready.forms : 0;
    mask &= ~ready & ~(1u << ST_ACT_F32);
    if (mask) {
        list->ready.x = in->x;
        list->ready.memory = in->acts->memory[ST_ACT_Q8];
        list->ready.forms = ready | mask;
    }
    for (enum st_act act = ST_ACT_Q8; act < ST_ACT_COUNT; act++)
        for (uint32_t row = 0; row < in->rows && (mask & 1u << act); row += GRID_ROWS) {
            uint32_t rows = in->rows - row < GRID_ROWS ? in->rows - row : GRID_ROWS;
            enum strata_result r = st_gpu_quantize(act, address_of(in, act, row), st_gpu_at(in->x + (uint64_t)row * in->n), rows,
                                                   in->n, st_gpu_push(list), err);
            if (r)
                return r;
        }
    return STRATA_OK;
}

/* The parts of a launch that dense products and experts' share; the weight is its first matrix. */
static struct st_gpu_rows rows_of(const struct input *in, const struct st_weight *w, st_addr y, uint32_t ldy,
                                  const struct st_gpu_target *t)
{
    return (struct st_gpu_rows){.type = w->type,
                                .act = w->act,
                                .matrix = {{.w = st_gpu_at(w->data), .y = y, .rows = w->rows, .ldy = ldy}},
                                .matrices = 1,
                                .x = address_of(in, w->act, 0),
                                .n = in->n,
                                .stride = stride_of(in, w->act),
                                .mode = ST_ROWS_DENSE,
                                .total = in->rows,
                                .most = in->rows,
                                .scales = w->scale ? st_gpu_at(w->scale) : 0,
                                .units = t->units};
}

/* One product of a list that shares an input. */
struct job {
    const struct st_weight *w;
    const float *y;
    uint32_t ldy, finish, streams; /* ST_ROWS_FINISH_* */
};

enum {
    JOBS = 8,
    FLOAT_ROWS = 32, /* a prompt's product with fewer rows of float weights is left to gpu/rows.h */
    LARGE = 8 << 20 /* bytes of a matrix from which its launch is worth a kernel of its own */ };

/* A prompt's product; up: NULL or a second matrix of the same shape, the result is then silu(w . x) * (up . x). */
static struct st_gpu_gemm gemm_of(const struct input *in, const struct st_weight *w, const struct st_weight *up, st_addr y,
                                  uint32_t ldy, const struct st_gpu_target *t)
{
    return (struct st_gpu_gemm){.type = w->type,
                                .y = y,
                                .w = st_gpu_at(w->data),
                                .up = up ? st_gpu_at(up->data) : 0,
                                .x = address_of(in, w->act, 0),
                                .n = in->n,
                                .rows = w->rows,
                                .stride = stride_of(in, w->act),
                                .ldy = ldy,
                                .total = in->rows,
                                .scales = w->scale ? st_gpu_at(w->scale) : 0,
                                .units = t->units,
                                .folded = t->folded};
}

/* Opened weights lie in the last part of the scratch, so that a command's own share, which begins at its start, need not know of
 * them. Bytes of w for so many rows, a multiple of 16. */
static uint64_t opened_bytes(const struct st_weight *w, uint32_t rows, const struct st_gpu_target *t)
{
    const struct st_gpu_gemm a = {.type = w->type, .n = w->cols, .rows = w->rows, .total = rows, .units = t->units, .folded = t->folded};
    return rows > ST_GPU_WINDOW && w->act != ST_ACT_F32 ? (st_gpu_gemm_opened_bytes(&a) + 15) / 16 * 16 : 0;
}

static uint64_t most_opened(const struct st_weight *const *w, int count, uint32_t rows, const struct st_gpu_target *t)
{
    uint64_t most = 0;
    for (int i = 0; i < count; i++) {
        const uint64_t bytes = w[i] ? opened_bytes(w[i], rows, t) : 0;
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Integer matrix units serve the product: more rows than a window, and integer activations. */
static bool by_matrix_units(const struct st_weight *w, uint32_t rows)
{
    return rows > ST_GPU_WINDOW && w->act != ST_ACT_F32 && st_gpu_at(w->data) % 16 == 0;
}

/* The launches of a prompt's large product, if it is one (*served); it is computed in stretches of opened weights. */
static enum strata_result by_opening(const struct input *in, const struct job *job, const struct st_gpu_target *t,
                                     struct st_gpu_list *list, bool *served, struct strata_error *err)
{
    struct st_gpu_gemm a = gemm_of(in, job->w, NULL, st_gpu_at(job->y), job->ldy, t);
    *served = by_matrix_units(job->w, in->rows) && !job->finish && st_gpu_gemm_wide(&a);
    enum strata_result r = STRATA_OK;
    for (uint32_t row = 0; *served && row < job->w->rows && !r;) {
        struct st_gpu_launch launch[ST_GPU_OPENED_LAUNCHES];
        int count = 0;
        r = st_gpu_gemm_opened(&a, t->scratch + t->scratch_bytes - opened_bytes(job->w, in->rows, t), &row, launch, &count, err);
        for (int i = 0; i < count && !r; i++)
            *st_gpu_push(list) = launch[i];
    }
    return r;
}

/* The launch of a product by tiles (gpu/product.h, of prompts gpu/gemm.h and gpu/gemm_floats.cl), where they serve it. */
static bool by_tiles(const struct input *in, const struct job *job, const struct st_gpu_target *t, struct st_gpu_launch *l)
{
    const struct st_weight *w = job->w;
    if (in->rows > ST_GPU_WINDOW && !job->finish) {
        struct st_gpu_gemm prompt = gemm_of(in, w, NULL, st_gpu_at(job->y), job->ldy, t);
        bool floats = st_type_info(w->type)->block_elems == 1 && w->rows >= FLOAT_ROWS && st_gpu_at(w->data) % 16 == 0;
        return (floats && st_gpu_gemm_floats(&prompt, l, NULL) == STRATA_OK) ||
               (by_matrix_units(w, in->rows) && st_gpu_gemm(&prompt, l, NULL) == STRATA_OK);
    }
    if (in->rows > MANY || w->act == ST_ACT_F32 || w->scale || job->finish || (uint64_t)w->rows * w->row_bytes < LARGE)
        return false;
    struct st_gpu_matvec fast = {.type = w->type,
                                 .y = st_gpu_at(job->y),
                                 .w = st_gpu_at(w->data),
                                 .x = address_of(in, w->act, 0),
                                 .n = in->n,
                                 .rows = w->rows,
                                 .count = in->rows,
                                 .ldy = job->ldy,
                                 .units = t->units};
    return st_gpu_matvec(&fast, l, NULL) == STRATA_OK;
}

/* Whether b can be a further matrix of a's launch. */
static bool together(const struct job *a, const struct job *b)
{
    return a->w->type == b->w->type && a->w->act == b->w->act && !a->w->scale && !b->w->scale;
}

/* All products of the list: those of one type in one launch. */
static enum strata_result multiply(const struct input *in, const struct job *jobs, int count, const struct st_gpu_target *t,
                                   struct st_gpu_list *list, struct strata_error *err)
{
    bool done[JOBS] = {false};
    enum strata_result r = STRATA_OK;
    for (int i = 0; i < count && !r; i++) {
        bool served = false;
        if (!done[i])
            r = by_opening(in, &jobs[i], t, list, &served, err);
        if (done[i] || served || r)
            continue;
        struct st_gpu_launch *l = st_gpu_push(list);
        if (by_tiles(in, &jobs[i], t, l))
            continue;
        struct st_gpu_rows rows = rows_of(in, jobs[i].w, st_gpu_at(jobs[i].y), jobs[i].ldy, t);
        rows.matrix[0].finish = jobs[i].finish;
        rows.streams = jobs[i].streams;
        for (int k = i + 1; k < count && rows.matrices < ST_GPU_ROWS_MATRICES; k++) {
            struct st_gpu_launch other;
            if (done[k] || !together(&jobs[i], &jobs[k]) || by_tiles(in, &jobs[k], t, &other))
                continue;
            rows.matrix[rows.matrices++] = (struct st_gpu_rows_matrix){.w = st_gpu_at(jobs[k].w->data),
                                                                       .y = st_gpu_at(jobs[k].y),
                                                                       .rows = jobs[k].w->rows,
                                                                       .ldy = jobs[k].ldy,
                                                                       .finish = jobs[k].finish};
            done[k] = true;
        }
        r = st_gpu_rows(&rows, l, err);
    }
    return r;
}

/* y [rows][ldy] = w times the input's rows. */
static enum strata_result multiply_one(const struct input *in, const struct st_weight *w, const float *y, uint32_t ldy,
                                       const struct st_gpu_target *t, struct st_gpu_list *list, struct strata_error *err)
{
    const struct job job = {.w = w, .y = y, .ldy = ldy, .streams = 1};
    return multiply(in, &job, 1, t, list, err);
}

enum strata_result st_gpu_lower_products(const struct st_products *a, const struct st_gpu_target *t, struct st_gpu_list *list,
                                         struct strata_error *err)
{
    struct input in = {.x = a->x, .acts = a->acts, .n = a->product[0].w->cols, .rows = (uint32_t)*a->n};
    unsigned mask = 0;
    if (in.rows == 0)
        return STRATA_OK;
    for (int i = 0; i < a->count; i++)
        mask |= st_act_mask(a->product[i].w);
    enum strata_result r = prepare(&in, mask, list, err);
    struct job jobs[ST_PRODUCTS];
    for (int i = 0; i < a->count; i++)
        jobs[i] = (struct job){.w = a->product[i].w, .y = a->product[i].y, .ldy = (uint32_t)a->product[i].ldy, .streams = 1};
    return r ? r : multiply(&in, jobs, a->count, t, list, err);
}

uint64_t st_gpu_scratch_products(const struct st_products *a, uint32_t rows, const struct st_gpu_target *t)
{
    uint64_t most = 0;
    for (int i = 0; i < a->count; i++) {
        const uint64_t bytes = opened_bytes(a->product[i].w, rows, t);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* ---- gated read ---- */

static void gate(const float *v, uint32_t count, uint32_t streams, uint32_t kind, struct st_gpu_list *list)
{
    struct st_gpu_launch *l = st_gpu_push(list);
    *l = (struct st_gpu_launch){.kernel = ST_GPU_STREAM_GATE, .grid = {groups(count), 1, 1}};
    l->args[0].p = st_gpu_at(v);
    l->args[1].i = count;
    l->args[2].i = streams;
    l->args[3].i = kind;
}

/* The gate of all streams before its sigmoid, one row after the other; then opened weights. */
uint64_t st_gpu_scratch_gated_read(const struct st_gated_read *a, uint32_t rows, const struct st_gpu_target *t)
{
    const struct st_weight *const weights[] = {a->down, a->inject, a->up};
    return rows <= ST_GPU_WINDOW ? 0
                                 : (uint64_t)rows * a->streams * a->hidden * 4 + most_opened(weights, 3, rows, t);
}

/* Window: the gates are finished where their products are, and the mean where the products of all streams are. */
static enum strata_result read_window(const struct st_gated_read *a, const struct input *x, const struct input *lo,
                                      const struct st_gpu_target *t, struct st_gpu_list *list, struct strata_error *err)
{
    const struct job jobs[2] = {{a->down, a->lo, a->rank, ST_ROWS_FINISH_SILU, a->streams},
                                {a->inject, a->inj, a->streams, ST_ROWS_FINISH_GATE, a->streams}};
    enum strata_result r = multiply(x, jobs, a->inject ? 2 : 1, t, list, err);
    if (!r)
        r = prepare(lo, st_act_mask(a->up), list, err);
    if (r)
        return r;
    struct st_gpu_rows up = rows_of(lo, a->up, st_gpu_at(a->m), a->hidden, t);
    up.matrix[0].rows = a->hidden;
    up.join = ST_ROWS_JOIN_MEAN;
    up.streams = a->streams;
    up.values = st_gpu_at(a->x);
    return st_gpu_rows(&up, st_gpu_push(list), err);
}

/* Prompt: each step for all rows. */
static enum strata_result read_prompt(const struct st_gated_read *a, const struct input *x, const struct input *lo,
                                      const struct st_gpu_target *t, struct st_gpu_list *list, struct strata_error *err)
{
    uint32_t n = x->rows;
    const struct job jobs[2] = {{.w = a->down, .y = a->lo, .ldy = a->rank, .streams = 1},
                                {.w = a->inject, .y = a->inj, .ldy = a->streams, .streams = 1}};
    enum strata_result r = multiply(x, jobs, a->inject ? 2 : 1, t, list, err);
    if (r)
        return r;
    gate(a->lo, n * a->rank, a->streams, 0, list);
    if (a->inject)
        gate(a->inj, n * a->streams, a->streams, 1, list);
    r = prepare(lo, st_act_mask(a->up), list, err);
    if (!r)
        r = multiply_one(lo, a->up, (const float *)(uintptr_t)t->scratch, a->streams * a->hidden, t, list, err);
    if (r)
        return r;
    struct st_gpu_launch *l = st_gpu_push(list);
    *l = (struct st_gpu_launch){.kernel = ST_GPU_STREAM_MEAN, .grid = {groups(a->hidden), n, 1}};
    l->args[0].p = st_gpu_at(a->m);
    l->args[1].p = t->scratch;
    l->args[2].p = st_gpu_at(a->x);
    l->args[3].i = a->hidden;
    l->args[4].i = a->streams;
    return STRATA_OK;
}

enum strata_result st_gpu_lower_gated_read(const struct st_gated_read *a, const struct st_gpu_target *t,
                                           struct st_gpu_list *list, struct strata_error *err)
{
    uint32_t n = (uint32_t)*a->n, wide = a->streams * a->hidden;
    if (n == 0)
        return STRATA_OK;
    unsigned forms = st_act_mask(a->down) | st_act_mask(a->inject);
    struct input x = {.x = a->x, .acts = a->acts, .n = wide, .rows = n};
    struct input lo = {.x = a->lo, .acts = a->acts, .n = a->rank, .rows = n};
    enum strata_result r = st_gpu_lower_wide_norm(a, &forms, list, err);
    if (!r)
        r = prepare(&x, forms, list, err);
    bool window = n <= ST_GPU_WINDOW && !a->down->scale && !a->up->scale && !(a->inject && a->inject->scale);
    return r ? r : (window ? read_window : read_prompt)(a, &x, &lo, t, list, err);
}

/* ---- experts ---- */

uint64_t st_gpu_scratch_route(const struct st_route *a, uint32_t rows, const struct st_gpu_target *t)
{
    const struct st_weight *const weights[] = {a->router, a->shared_gate};
    return most_opened(weights, 2, rows, t);
}

enum strata_result st_gpu_lower_route(const struct st_route *a, const struct st_gpu_target *t, struct st_gpu_list *list,
                                      struct strata_error *err)
{
    struct input m = {.x = a->m, .acts = a->acts, .n = a->hidden, .rows = (uint32_t)*a->n};
    enum strata_result r = prepare(&m, st_act_mask(a->router) | st_act_mask(a->shared_gate), list, err);
    const struct job jobs[2] = {{.w = a->router, .y = a->logits, .ldy = a->experts, .streams = 1},
                                {.w = a->shared_gate, .y = a->to->shared, .ldy = 1, .streams = 1}};
    if (!r)
        r = multiply(&m, jobs, 2, t, list, err);
    if (!r)
        st_gpu_lower_choice(a, list);
    return r;
}

/* Prompts: the list of tiles stands in the scratch behind the up products. */
static st_addr tiles_of(const struct st_experts *a, const struct st_gpu_target *t)
{
    return t->scratch + ((uint64_t)(uint32_t)*a->n * (a->used + 1) * a->width * 4 + 15) / 16 * 16;
}

/* The matrices of experts from on, as launches take them. */
struct expert_matrices {
    st_addr w, second, places, scales;
    uint32_t expert_bytes;
};

static struct expert_matrices matrices_of(const struct st_experts *a, const struct st_gpu_experts_part *part,
                                          const struct st_weight *w, const struct st_weight *second)
{
    uint64_t skip = w->places ? 0 : part->from * (uint64_t)w->expert_bytes;
    struct expert_matrices m = {.w = st_gpu_at(w->data) + skip, .expert_bytes = (uint32_t)w->expert_bytes};
    m.second = second ? st_gpu_at(second->data) + skip : 0;
    if (w->places)
        m.places = st_gpu_at(w->places) + (part->from + (part->brought ? a->experts : 0)) * sizeof(uint64_t);
    if (w->scale)
        m.scales = st_gpu_at(w->scale) + (w->scale_count > 1 ? part->from : 0) * sizeof(float);
    return m;
}

/* expert_products of a prompt. */
static enum strata_result prompt_products(const struct st_experts *a, const struct st_gpu_experts_part *part,
                                          const struct input *in, const struct st_weight *w, const struct st_weight *second,
                                          st_addr y, uint32_t ldy, const struct st_gpu_target *t, struct st_gpu_list *list,
                                          struct strata_error *err)
{
    struct st_gpu_gemm gemm = gemm_of(in, w, second, y, ldy, t);
    const struct expert_matrices m = matrices_of(a, part, w, second);
    gemm.w = m.w;
    gemm.up = m.second;
    gemm.scales = m.scales;
    gemm.expert_bytes = m.expert_bytes;
    gemm.places = m.places;
    gemm.total = 0;
    gemm.tiles = tiles_of(a, t);
    gemm.entry = st_gpu_at(a->routing->entry);
    gemm.n_tiles = st_gpu_gemm_tile_bound((uint32_t)*a->n * a->used, part->to - part->from);
    gemm.used = part->step == ST_EXPERTS_DOWN ? 0 : a->used;
    gemm.scale_each = w->scale_count > 1;
    return st_gpu_gemm(&gemm, st_gpu_push(list), err);
}

/* Products of the part's experts with their entries; the input of down has a row for each entry instead of one for each token.
 * second: NULL, or the up beside a gate, for silu(w x) * (second x). */
static enum strata_result expert_products(const struct st_experts *a, const struct st_gpu_experts_part *part,
                                          const struct input *in, const struct st_weight *w, const struct st_weight *second,
                                          st_addr y, uint32_t ldy, const struct st_gpu_target *t, struct st_gpu_list *list,
                                          struct strata_error *err)
{
    uint32_t n = (uint32_t)*a->n;
    if (by_matrix_units(w, n) && (!second || by_matrix_units(second, n)))
        return prompt_products(a, part, in, w, second, y, ldy, t, list, err);
    struct st_gpu_rows rows = rows_of(in, w, y, ldy, t);
    const struct expert_matrices m = matrices_of(a, part, w, second);
    rows.matrix[0].w = m.w;
    rows.second = m.second;
    rows.scales = m.scales;
    rows.expert_bytes = m.expert_bytes;
    rows.places = m.places;
    rows.mode = n <= ST_GPU_WINDOW ? ST_ROWS_ENTRY : ST_ROWS_EXPERT;
    rows.total = n * a->used;
    rows.most = n;
    rows.experts = part->to - part->from;
    rows.used = part->step == ST_EXPERTS_DOWN ? 0 : a->used;
    rows.first = st_gpu_at(a->routing->first + part->from);
    rows.entry = st_gpu_at(a->routing->entry);
    rows.expert = st_gpu_at(a->routing->expert);
    rows.scale_each = w->scale_count > 1;
    rows.join = second ? ST_ROWS_JOIN_SWIGLU : ST_ROWS_JOIN_NONE;
    return st_gpu_rows(&rows, st_gpu_push(list), err);
}

/* Whether gate and up can be one launch. */
static bool joined(const struct st_weight *gate, const struct st_weight *up)
{
    return gate->type == up->type && gate->act == up->act && gate->rows == up->rows && !gate->scale && !up->scale;
}

/* h[row] = silu(h[row]) * up[row] for rows of width floats. */
static void silu_mul(st_addr h, st_addr up, uint32_t rows, uint32_t width, struct st_gpu_list *list)
{
    for (uint32_t row = 0; row < rows; row += GRID_ROWS) {
        uint32_t count = rows - row < GRID_ROWS ? rows - row : GRID_ROWS;
        struct st_gpu_launch *l = st_gpu_push(list);
        *l = (struct st_gpu_launch){.kernel = ST_GPU_SILU_MUL, .grid = {groups(width), count, 1}};
        l->args[0].p = l->args[1].p = h + (uint64_t)row * width * 4;
        l->args[2].p = up + (uint64_t)row * width * 4;
        l->args[3].i = l->args[4].i = l->args[5].i = width;
    }
}

/* The up products, of all entries or of the shared expert, where they are not joined to the gate's; then a prompt's tiles; then
 * opened weights. */
uint64_t st_gpu_scratch_experts(const struct st_experts *a, uint32_t rows, const struct st_gpu_target *t)
{
    const struct st_weight *const weights[] = {a->shared_gate, a->shared_up, a->shared_down};
    return ((uint64_t)rows * (a->used + 1) * a->width * 4 + 15) / 16 * 16 +
           (uint64_t)st_gpu_gemm_tile_bound(rows * a->used, a->experts) * 16 + most_opened(weights, 3, rows, t);
}

static void combine(const struct st_experts *a, st_addr where, uint32_t n, struct st_gpu_list *list)
{
    struct st_gpu_launch *l = st_gpu_push(list);
    *l = (struct st_gpu_launch){.kernel = ST_GPU_COMBINE_EXPERTS, .grid = {groups(a->hidden), n, 1}};
    l->args[0].p = st_gpu_at(a->y);
    l->args[1].p = st_gpu_at(a->o);
    l->args[2].p = st_gpu_at(a->routing->weight);
    l->args[3].p = where;
    l->args[4].p = st_gpu_at(a->routing->shared);
    l->args[5].i = a->hidden;
    l->args[6].i = a->used;
    l->args[7].i = n * a->used;
}

/* h of the part's entries; where gate and up are no joint launch, the up products are left in the scratch. */
static enum strata_result routed_hidden(const struct st_experts *a, const struct st_gpu_experts_part *part, const struct input *m,
                                        const struct st_gpu_target *t, struct st_gpu_list *list, struct strata_error *err)
{
    st_addr h = st_gpu_at(a->h);
    if (joined(a->gate, a->up))
        return expert_products(a, part, m, a->gate, a->up, h, a->width, t, list, err);
    enum strata_result r = expert_products(a, part, m, a->gate, NULL, h, a->width, t, list, err);
    return r ? r : expert_products(a, part, m, a->up, NULL, t->scratch, a->width, t, list, err);
}

/* h of the shared expert, one row for each token. */
static enum strata_result shared_hidden(const struct st_experts *a, const struct input *m, const float *h,
                                        const struct st_gpu_target *t, struct st_gpu_list *list, struct strata_error *err)
{
    if (m->rows <= ST_GPU_WINDOW && joined(a->shared_gate, a->shared_up)) {
        struct st_gpu_rows rows = rows_of(m, a->shared_gate, st_gpu_at(h), a->width, t);
        rows.join = ST_ROWS_JOIN_SWIGLU;
        rows.second = st_gpu_at(a->shared_up->data);
        return st_gpu_rows(&rows, st_gpu_push(list), err);
    }
    if (joined(a->shared_gate, a->shared_up) && by_matrix_units(a->shared_gate, m->rows) &&
        by_matrix_units(a->shared_up, m->rows)) {
        struct st_gpu_gemm pair = gemm_of(m, a->shared_gate, a->shared_up, st_gpu_at(h), a->width, t);
        return st_gpu_gemm(&pair, st_gpu_push(list), err);
    }
    enum strata_result r = multiply_one(m, a->shared_gate, h, a->width, t, list, err);
    if (!r)
        r = multiply_one(m, a->shared_up, (const float *)(uintptr_t)t->scratch, a->width, t, list, err);
    if (!r)
        silu_mul(st_gpu_at(h), t->scratch, m->rows, a->width, list);
    return r;
}

/* The tiles of the part's experts, for prompts. */
static void list_tiles(const struct st_experts *a, const struct st_gpu_experts_part *part, const struct st_gpu_target *t,
                       struct st_gpu_list *list)
{
    uint32_t n = (uint32_t)*a->n, experts = part->to - part->from;
    if (n > ST_GPU_WINDOW)
        st_gpu_gemm_tiles(tiles_of(a, t), st_gpu_at(a->routing->first + part->from), experts,
                          st_gpu_gemm_tile_bound(n * a->used, experts), st_gpu_push(list));
}

/* All that the entries' down products and the shared expert's outputs need, and the latter. */
static enum strata_result middle(const struct st_experts *a, const struct input *m, const struct st_gpu_target *t,
                                 struct st_gpu_list *list, struct strata_error *err)
{
    uint32_t n = (uint32_t)*a->n, routed = n * a->used;
    struct input h = {.x = a->h, .acts = a->hacts, .n = a->width, .rows = routed + n};
    /* The shared expert's rows follow those of the entries. */
    struct st_act_buffer tail_acts = *a->hacts;
    for (enum st_act act = ST_ACT_Q8; act < ST_ACT_COUNT; act++)
        tail_acts.memory[act] = (uint8_t *)(uintptr_t)address_of(&h, act, routed);
    const float *h_tail = a->h + (uint64_t)routed * a->width, *o_tail = a->o + (uint64_t)routed * a->hidden;
    struct input tail = {.x = h_tail, .acts = &tail_acts, .n = a->width, .rows = n};
    if (!joined(a->gate, a->up))
        silu_mul(st_gpu_at(a->h), t->scratch, routed, a->width, list);
    enum strata_result r = shared_hidden(a, m, h_tail, t, list, err);
    if (!r)
        r = prepare(&h, st_act_mask(a->down) | st_act_mask(a->shared_down), list, err);
    return r ? r : multiply_one(&tail, a->shared_down, o_tail, a->hidden, t, list, err);
}

enum strata_result st_gpu_lower_experts_part(const struct st_experts *a, const struct st_gpu_experts_part *part,
                                             const struct st_gpu_target *t, struct st_gpu_list *list, struct strata_error *err)
{
    uint32_t n = (uint32_t)*a->n;
    bool whole = part->to - part->from == a->experts;
    if (a->width != a->shared_width)
        return st_fail(err, STRATA_E_UNSUPPORTED, "experts: no kernel for a shared expert of width %u beside %u",
                       a->shared_width, a->width);
    struct input m = {.x = a->m, .acts = a->acts, .n = a->hidden, .rows = n};
    struct input h = {.x = a->h, .acts = a->hacts, .n = a->width, .rows = n * (a->used + 1)};
    switch (part->step) {
    case ST_EXPERTS_BEGIN:
        return prepare(&m, st_act_mask(a->gate) | st_act_mask(a->up) | st_act_mask(a->shared_gate) | st_act_mask(a->shared_up),
                       list, err);
    case ST_EXPERTS_UP:
        list_tiles(a, part, t, list);
        return routed_hidden(a, part, &m, t, list, err);
    case ST_EXPERTS_MIDDLE: return middle(a, &m, t, list, err);
    case ST_EXPERTS_LATER:
        list->ready.forms = 0;
        if (!joined(a->gate, a->up)) /* rows whose outputs are there already do not matter any more */
            silu_mul(st_gpu_at(a->h), t->scratch, n * a->used, a->width, list);
        h.rows = n * a->used;
        return prepare(&h, st_act_mask(a->down), list, err);
    case ST_EXPERTS_DOWN:
        if (!whole) /* otherwise the tiles are those of the gates */
            list_tiles(a, part, t, list);
        return expert_products(a, part, &h, a->down, NULL, st_gpu_at(a->o), a->hidden, t, list, err);
    case ST_EXPERTS_END: break;
    }
    combine(a, part->where ? part->where : st_gpu_at(a->routing->where), n, list);
    return STRATA_OK;
}

enum strata_result st_gpu_lower_experts(const struct st_experts *a, const struct st_gpu_target *t, struct st_gpu_list *list,
                                        struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    for (int step = ST_EXPERTS_BEGIN; step <= ST_EXPERTS_END && !r; step++) {
        if (step == ST_EXPERTS_LATER)
            continue;
        struct st_gpu_experts_part part = {.step = (enum st_gpu_experts_step)step, .to = a->experts};
        r = st_gpu_lower_experts_part(a, &part, t, list, err);
    }
    return r;
}
