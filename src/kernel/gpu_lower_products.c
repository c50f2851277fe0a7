/* Lowering of products: activations are brought into the forms that the weights take, then every weight is multiplied, by the
 * tiles of gpu/product.h for the types that have them, otherwise by gpu/rows.h. */
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

/* Launches that fill the integer forms in mask (OR of 1 << form). */
static enum strata_result prepare(const struct input *in, unsigned mask, struct st_gpu_list *list, struct strata_error *err)
{
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

/* The parts of a product that dense ones and experts' share. */
static struct st_gpu_rows rows_of(const struct input *in, const struct st_weight *w, st_addr y, uint32_t ldy,
                                  const struct st_gpu_target *t)
{
    return (struct st_gpu_rows){.type = w->type,
                                .act = w->act,
                                .y = y,
                                .w = st_gpu_at(w->data),
                                .x = address_of(in, w->act, 0),
                                .n = in->n,
                                .rows = w->rows,
                                .stride = stride_of(in, w->act),
                                .ldy = ldy,
                                .scales = w->scale ? st_gpu_at(w->scale) : 0,
                                .scale_each = w->scale_count > 1,
                                .units = t->units};
}

/* y [rows][ldy] = w times the input's rows. */
static enum strata_result multiply(const struct input *in, const struct st_weight *w, const float *y, uint32_t ldy,
                                   const struct st_gpu_target *t, struct st_gpu_list *list, struct strata_error *err)
{
    struct st_gpu_launch *l = st_gpu_push(list);
    bool aligned = st_gpu_at(w->data) % 16 == 0;
    if (in->rows <= MANY && w->act != ST_ACT_F32 && !w->scale && aligned) {
        struct st_gpu_matvec fast = {.type = w->type,
                                     .y = st_gpu_at(y),
                                     .w = st_gpu_at(w->data),
                                     .x = address_of(in, w->act, 0),
                                     .n = in->n,
                                     .rows = w->rows,
                                     .count = in->rows,
                                     .ldy = ldy,
                                     .units = t->units};
        if (st_gpu_matvec(&fast, l, NULL) == STRATA_OK)
            return STRATA_OK;
    }
    struct st_gpu_rows rows = rows_of(in, w, st_gpu_at(y), ldy, t);
    rows.mode = ST_ROWS_DENSE;
    rows.total = rows.most = in->rows;
    rows.scale_each = false;
    return st_gpu_rows(&rows, l, err);
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
    for (int i = 0; i < a->count && !r; i++)
        r = multiply(&in, a->product[i].w, a->product[i].y, (uint32_t)a->product[i].ldy, t, list, err);
    return r;
}

/* ---- gated read ---- */

static void gate(const float *v, uint32_t count, uint32_t streams, uint32_t kind, struct st_gpu_list *list)
{
    struct st_gpu_launch *l = st_gpu_push(list);
    *l = (struct st_gpu_launch){.kernel = ST_GPU_ANY_GATE, .grid = {groups(count), 1, 1}};
    l->args[0].p = st_gpu_at(v);
    l->args[1].i = count;
    l->args[2].i = streams;
    l->args[3].i = kind;
}

/* The gate of all streams before its sigmoid, one row after the other. */
uint64_t st_gpu_scratch_gated_read(const struct st_gated_read *a, uint32_t rows, uint32_t units)
{
    (void)units;
    return (uint64_t)rows * a->streams * a->hidden * 4;
}

enum strata_result st_gpu_lower_gated_read(const struct st_gated_read *a, const struct st_gpu_target *t,
                                           struct st_gpu_list *list, struct strata_error *err)
{
    uint32_t n = (uint32_t)*a->n, wide = a->streams * a->hidden;
    if (n == 0)
        return STRATA_OK;
    struct st_gpu_norm norm = {.y = st_gpu_at(a->x),
                               .x = st_gpu_at(a->r),
                               .gamma = st_gpu_at(a->gamma),
                               .rows = n,
                               .n = wide,
                               .group = a->hidden,
                               .gammas = wide,
                               .eps = a->eps,
                               .act = ST_ACT_F32};
    struct input x = {.x = a->x, .acts = a->acts, .n = wide, .rows = n};
    struct input lo = {.x = a->lo, .acts = a->acts, .n = a->rank, .rows = n};
    enum strata_result r = st_gpu_norm(&norm, st_gpu_push(list), err);
    if (!r)
        r = prepare(&x, st_act_mask(a->down) | st_act_mask(a->inject), list, err);
    if (!r)
        r = multiply(&x, a->down, a->lo, a->rank, t, list, err);
    if (!r && a->inject)
        r = multiply(&x, a->inject, a->inj, a->streams, t, list, err);
    if (r)
        return r;
    gate(a->lo, n * a->rank, a->streams, 0, list);
    if (a->inject)
        gate(a->inj, n * a->streams, a->streams, 1, list);
    const float *gates = (const float *)(uintptr_t)t->scratch;
    r = prepare(&lo, st_act_mask(a->up), list, err);
    if (!r)
        r = multiply(&lo, a->up, gates, wide, t, list, err);
    if (r)
        return r;
    struct st_gpu_launch *l = st_gpu_push(list);
    *l = (struct st_gpu_launch){.kernel = ST_GPU_ANY_MEAN, .grid = {groups(a->hidden), n, 1}};
    l->args[0].p = st_gpu_at(a->m);
    l->args[1].p = t->scratch;
    l->args[2].p = st_gpu_at(a->x);
    l->args[3].i = a->hidden;
    l->args[4].i = a->streams;
    return STRATA_OK;
}

/* ---- experts ---- */

enum strata_result st_gpu_lower_route(const struct st_route *a, const struct st_gpu_target *t, struct st_gpu_list *list,
                                      struct strata_error *err)
{
    struct input m = {.x = a->m, .acts = a->acts, .n = a->hidden, .rows = (uint32_t)*a->n};
    enum strata_result r = prepare(&m, st_act_mask(a->router) | st_act_mask(a->shared_gate), list, err);
    if (!r)
        r = multiply(&m, a->router, a->logits, a->experts, t, list, err);
    if (!r)
        r = multiply(&m, a->shared_gate, a->to->shared, 1, t, list, err);
    if (!r)
        st_gpu_lower_choice(a, list);
    return r;
}

/* Products of each expert's entries; by_entry: the input has a row for each entry instead of one for each token. */
static enum strata_result expert_products(const struct st_experts *a, const struct input *in, const struct st_weight *w,
                                          st_addr y, uint32_t ldy, bool by_entry, const struct st_gpu_target *t,
                                          struct st_gpu_list *list, struct strata_error *err)
{
    uint32_t n = (uint32_t)*a->n;
    struct st_gpu_rows rows = rows_of(in, w, y, ldy, t);
    rows.mode = n <= ST_GPU_WINDOW ? ST_ROWS_ENTRY : ST_ROWS_EXPERT;
    rows.total = n * a->used;
    rows.most = n;
    rows.experts = a->experts;
    rows.used = by_entry ? 0 : a->used;
    rows.first = st_gpu_at(a->routing->first);
    rows.entry = st_gpu_at(a->routing->entry);
    rows.expert = st_gpu_at(a->routing->expert);
    return st_gpu_rows(&rows, st_gpu_push(list), err);
}

/* h[row] = silu(h[row]) * up[row] for rows of width floats. */
static void silu_mul(st_addr h, st_addr up, uint32_t rows, uint32_t width, struct st_gpu_list *list)
{
    for (uint32_t row = 0; row < rows; row += GRID_ROWS) {
        uint32_t count = rows - row < GRID_ROWS ? rows - row : GRID_ROWS;
        struct st_gpu_launch *l = st_gpu_push(list);
        *l = (struct st_gpu_launch){.kernel = ST_GPU_ANY_SILU_MUL, .grid = {groups(width), count, 1}};
        l->args[0].p = l->args[1].p = h + (uint64_t)row * width * 4;
        l->args[2].p = up + (uint64_t)row * width * 4;
        l->args[3].i = l->args[4].i = l->args[5].i = width;
    }
}

/* The up products of all entries, beside the gate's in h. */
uint64_t st_gpu_scratch_experts(const struct st_experts *a, uint32_t rows, uint32_t units)
{
    (void)units;
    return (uint64_t)rows * (a->used + 1) * a->width * 4;
}

static void combine(const struct st_experts *a, uint32_t n, struct st_gpu_list *list)
{
    struct st_gpu_launch *l = st_gpu_push(list);
    *l = (struct st_gpu_launch){.kernel = ST_GPU_ANY_COMBINE, .grid = {groups(a->hidden), n, 1}};
    l->args[0].p = st_gpu_at(a->y);
    l->args[1].p = st_gpu_at(a->o);
    l->args[2].p = st_gpu_at(a->routing->weight);
    l->args[3].p = st_gpu_at(a->routing->where);
    l->args[4].p = st_gpu_at(a->routing->shared);
    l->args[5].i = a->hidden;
    l->args[6].i = a->used;
    l->args[7].i = n * a->used;
}

enum strata_result st_gpu_lower_experts(const struct st_experts *a, const struct st_gpu_target *t, struct st_gpu_list *list,
                                        struct strata_error *err)
{
    uint32_t n = (uint32_t)*a->n, routed = n * a->used, all = routed + n;
    if (a->width != a->shared_width)
        return st_fail(err, STRATA_E_UNSUPPORTED, "experts: no kernel for a shared expert of width %u beside %u",
                       a->shared_width, a->width);
    struct input m = {.x = a->m, .acts = a->acts, .n = a->hidden, .rows = n};
    struct input h = {.x = a->h, .acts = a->hacts, .n = a->width, .rows = all};
    /* The shared expert's rows follow those of the entries. */
    struct st_act_buffer tail_acts = *a->hacts;
    for (enum st_act act = ST_ACT_Q8; act < ST_ACT_COUNT; act++)
        tail_acts.memory[act] = (uint8_t *)(uintptr_t)address_of(&h, act, routed);
    const float *h_tail = a->h + (uint64_t)routed * a->width, *o_tail = a->o + (uint64_t)routed * a->hidden;
    struct input tail = {.x = h_tail, .acts = &tail_acts, .n = a->width, .rows = n};
    st_addr up = t->scratch;
    const float *up_tail = (const float *)(uintptr_t)(up + (uint64_t)routed * a->width * 4);
    unsigned mask = st_act_mask(a->gate) | st_act_mask(a->up) | st_act_mask(a->shared_gate) | st_act_mask(a->shared_up);
    enum strata_result r = prepare(&m, mask, list, err);
    if (!r)
        r = expert_products(a, &m, a->gate, st_gpu_at(a->h), a->width, false, t, list, err);
    if (!r)
        r = expert_products(a, &m, a->up, up, a->width, false, t, list, err);
    if (!r)
        r = multiply(&m, a->shared_gate, h_tail, a->width, t, list, err);
    if (!r)
        r = multiply(&m, a->shared_up, up_tail, a->width, t, list, err);
    if (r)
        return r;
    silu_mul(st_gpu_at(a->h), up, all, a->width, list);
    r = prepare(&h, st_act_mask(a->down) | st_act_mask(a->shared_down), list, err);
    if (!r)
        r = expert_products(a, &h, a->down, st_gpu_at(a->o), a->hidden, true, t, list, err);
    if (!r)
        r = multiply(&tail, a->shared_down, o_tail, a->hidden, t, list, err);
    if (!r)
        combine(a, n, list);
    return r;
}
