/* Lowering of everything that is not a product of matrices: residual, n-gram memory, gated delta network, attention, choice of
 * experts. Arguments stand in the order of the kernels in kernel/gpu/{residual,ngram,gdn,qsa,route}.cl. */
#include "kernel/gpu_lower.h"
#include "kernel/gpu_norm.h"

enum {
    ITEMS = 256,
    DIM_MAX = 256,  /* of attention heads and of the recurrence's keys */
    SPLITS_MAX = 16,
    SPLIT_POSITIONS = 128, /* fewest positions that are worth a group of their own */
    SCORE_ROWS = 256,      /* rows of a prompt whose block scores are kept at once */
};

static uint32_t groups(uint64_t n)
{
    return (uint32_t)((n + ITEMS - 1) / ITEMS);
}

/* A launch whose arguments are appended by the put functions. */
struct call {
    struct st_gpu_launch *launch;
    int n;
};

static struct call call(struct st_gpu_list *list, enum st_gpu_kernel kernel, uint32_t x, uint32_t y)
{
    struct st_gpu_launch *l = st_gpu_push(list);
    *l = (struct st_gpu_launch){.kernel = kernel, .grid = {x, y, 1}};
    return (struct call){.launch = l};
}

static void put(struct call *c, const void *p)
{
    c->launch->args[c->n++].p = st_gpu_at(p);
}

/* A pointer that the kernel does not use when there is none: some memory of the device stands for it. */
static void put_or(struct call *c, const void *p, const void *instead)
{
    put(c, p ? p : instead);
}

static void put_address(struct call *c, st_addr p)
{
    c->launch->args[c->n++].p = p;
}

static void put_int(struct call *c, uint32_t v)
{
    c->launch->args[c->n++].i = v;
}

static void put_float(struct call *c, float v)
{
    c->launch->args[c->n++].f = v;
}

/* ---- residual and small steps ---- */

enum strata_result st_gpu_lower_embed(const struct st_embed *a, const struct st_gpu_target *t, struct st_gpu_list *list,
                                      struct strata_error *err)
{
    (void)t;
    (void)err;
    uint32_t hidden = a->table->cols;
    struct call c = call(list, ST_GPU_EMBED, groups(hidden), (uint32_t)a->rows->n);
    put(&c, a->r);
    put(&c, a->rows->embd);
    put_int(&c, hidden);
    put_int(&c, a->streams);
    return STRATA_OK;
}

enum strata_result st_gpu_lower_gated_write(const struct st_gated_write *a, const struct st_gpu_target *t,
                                            struct st_gpu_list *list, struct strata_error *err)
{
    (void)t;
    (void)err;
    struct call c = call(list, ST_GPU_GATED_WRITE, groups(a->hidden), (uint32_t)*a->n);
    put(&c, a->r);
    put(&c, a->inj);
    put(&c, a->o);
    put_int(&c, a->hidden);
    put_int(&c, a->streams);
    return STRATA_OK;
}

enum strata_result st_gpu_lower_select(const struct st_select *a, const struct st_gpu_target *t, struct st_gpu_list *list,
                                       struct strata_error *err)
{
    (void)t;
    (void)err;
    if (a->rows->n_out == 0)
        return STRATA_OK;
    struct call c = call(list, ST_GPU_SELECT, groups(a->width), (uint32_t)a->rows->n_out);
    put(&c, a->to);
    put(&c, a->from);
    put(&c, a->rows->out);
    put_int(&c, a->width);
    return STRATA_OK;
}

enum strata_result st_gpu_lower_add(const struct st_add *a, const struct st_gpu_target *t, struct st_gpu_list *list,
                                    struct strata_error *err)
{
    (void)t;
    (void)err;
    struct call c = call(list, ST_GPU_ADD, groups(a->width), (uint32_t)*a->n);
    put(&c, a->r);
    put(&c, a->o);
    put_int(&c, a->width);
    return STRATA_OK;
}

enum strata_result st_gpu_lower_swiglu(const struct st_swiglu *a, const struct st_gpu_target *t, struct st_gpu_list *list,
                                       struct strata_error *err)
{
    (void)t;
    (void)err;
    struct call c = call(list, ST_GPU_SWIGLU, groups(a->width), (uint32_t)*a->n);
    put(&c, a->gate);
    put(&c, a->up);
    put_int(&c, a->width);
    return STRATA_OK;
}

enum strata_result st_gpu_lower_norm(const struct st_norm *a, const struct st_gpu_target *t, struct st_gpu_list *list,
                                     struct strata_error *err)
{
    (void)t;
    if (*a->n == 0)
        return STRATA_OK;
    struct st_gpu_norm norm = {.y = st_gpu_at(a->y),
                               .x = st_gpu_at(a->x),
                               .gamma = st_gpu_at(a->gamma),
                               .rows = (uint32_t)*a->n,
                               .n = a->width,
                               .group = a->width,
                               .gammas = a->width,
                               .eps = a->eps,
                               .act = ST_ACT_F32};
    return st_gpu_norm(&norm, st_gpu_push(list), err);
}

enum strata_result st_gpu_lower_draft_input(const struct st_draft_input *a, const struct st_gpu_target *t,
                                            struct st_gpu_list *list, struct strata_error *err)
{
    (void)t;
    (void)err;
    struct call c = call(list, ST_GPU_DRAFT_INPUT, a->streams, (uint32_t)a->rows->n);
    put(&c, a->x);
    put(&c, a->rows->embd);
    put(&c, a->hidden_in);
    put(&c, a->enorm);
    put(&c, a->hnorm);
    put_int(&c, a->hidden);
    put_int(&c, a->streams);
    put_int(&c, a->per_stream);
    put_float(&c, a->eps);
    return STRATA_OK;
}

/* ---- n-gram memory ---- */

enum strata_result st_gpu_lower_ngram_gather(const struct st_ngram_gather *a, const struct st_gpu_target *t,
                                             struct st_gpu_list *list, struct strata_error *err)
{
    (void)t;
    switch (a->type) {
    case ST_TYPE_F32:
    case ST_TYPE_F16:
    case ST_TYPE_BF16:
    case ST_TYPE_Q8_0:
    case ST_TYPE_Q4_0:
    case ST_TYPE_Q5_1:
    case ST_TYPE_IQ4_NL: break;
    default:
        return st_fail(err, STRATA_E_UNSUPPORTED, "n-gram table: no kernel for rows of type %s", st_type_info(a->type)->name);
    }
    struct call c = call(list, ST_GPU_NGRAM_GATHER, a->heads, (uint32_t)a->rows->n);
    put(&c, a->e);
    put(&c, a->rows->ngram);
    put(&c, a->rows->ngram_index);
    put_int(&c, (uint32_t)a->type);
    put_int(&c, (uint32_t)a->row_bytes);
    put_int(&c, a->width);
    put_int(&c, a->heads);
    return STRATA_OK;
}

enum strata_result st_gpu_lower_ngram_inject(const struct st_ngram_inject *a, const struct st_gpu_target *t,
                                             struct st_gpu_list *list, struct strata_error *err)
{
    (void)t;
    (void)err;
    uint32_t n = (uint32_t)a->rows->n, wide = a->streams * a->hidden;
    struct call c = call(list, ST_GPU_NGRAM_GATE, a->streams, n);
    put(&c, a->key);
    put(&c, a->z);
    put(&c, a->value);
    put(&c, a->r);
    put(&c, a->norm_key);
    put(&c, a->norm_query);
    put(&c, a->norm_conv);
    put_int(&c, a->hidden);
    put_int(&c, a->streams);
    put_float(&c, a->eps);
    c = call(list, ST_GPU_NGRAM_CONV, groups(wide), n);
    put(&c, a->r);
    put(&c, a->state);
    put(&c, a->key);
    put(&c, a->z);
    put(&c, a->conv);
    put(&c, a->rows->slot);
    put(&c, a->rows->pos);
    put(&c, a->rows->span);
    put_int(&c, wide);
    put_int(&c, a->taps);
    put_int(&c, a->dilation);
    return STRATA_OK;
}

/* ---- gated delta network ---- */

enum strata_result st_gpu_lower_gdn(const struct st_gdn *a, const struct st_gpu_target *t, struct st_gpu_list *list,
                                    struct strata_error *err)
{
    (void)t;
    uint32_t n = (uint32_t)a->rows->n, parts = a->value_dim && ITEMS % a->value_dim == 0 ? ITEMS / a->value_dim : 0;
    /* Rows of the state that a work-item holds: the kernels' names. */
    uint32_t part = parts && a->key_dim % parts == 0 && a->key_dim <= DIM_MAX ? a->key_dim / parts : 0;
    enum st_gpu_kernel step = part == 4 ? ST_GPU_GDN_STEP_4 : part == 16 ? ST_GPU_GDN_STEP_16 : ST_GPU_GDN_STEP_64;
    if (part != 4 && part != 16 && part != 64)
        return st_fail(err, STRATA_E_UNSUPPORTED, "gated delta network: no kernel for a state of %u x %u", a->key_dim,
                       a->value_dim);
    struct call c = call(list, ST_GPU_GDN_CONV, groups(a->channels), n);
    put(&c, a->c);
    put(&c, a->conv_state);
    put(&c, a->u);
    put(&c, a->conv);
    put(&c, a->rows->slot);
    put(&c, a->rows->pos);
    put(&c, a->rows->span);
    put_int(&c, a->channels);
    put_int(&c, a->taps);
    c = call(list, step, a->value_heads, n);
    put(&c, a->o);
    put(&c, a->state);
    put(&c, a->c);
    put(&c, a->z);
    put(&c, a->b);
    put(&c, a->a);
    put(&c, a->ssm_a);
    put(&c, a->dt_bias);
    put(&c, a->gamma);
    put(&c, a->rows->slot);
    put(&c, a->rows->span);
    put_int(&c, a->key_heads);
    put_int(&c, a->value_heads);
    put_int(&c, a->key_dim);
    put_int(&c, a->value_dim);
    put_float(&c, a->eps);
    return STRATA_OK;
}

/* ---- attention ---- */

static uint32_t positions_max(const struct st_qsa *a)
{
    return a->ratio && a->budget + a->ratio < a->context ? a->budget + a->ratio : a->context;
}

/* Groups that share the positions of one (row, head). It depends on the sizes of the model and of the context alone for windows,
 * so that a row has the same bits in any window; prompts have enough rows to fill a device. */
static uint32_t splits_of(const struct st_qsa *a, uint32_t rows)
{
    uint32_t splits = (positions_max(a) + SPLIT_POSITIONS - 1) / SPLIT_POSITIONS;
    return rows > ST_GPU_WINDOW || splits == 0 ? 1 : splits > SPLITS_MAX ? SPLITS_MAX : splits;
}

/* Scratch of attention: sums of values, then softmax states of the splits; before that the block scores in the same place. */
static uint64_t acc_bytes(const struct st_qsa *a, uint32_t rows)
{
    return (uint64_t)rows * a->heads * splits_of(a, rows) * a->head_dim * 4;
}

uint64_t st_gpu_scratch_qsa(const struct st_qsa *a, uint32_t rows, uint32_t units)
{
    (void)units;
    uint32_t window = rows < ST_GPU_WINDOW ? rows : ST_GPU_WINDOW, scored = rows < SCORE_ROWS ? rows : SCORE_ROWS;
    uint64_t most = 0;
    for (int i = 0; i < 2; i++) {
        uint32_t n = i ? rows : window;
        uint64_t bytes = acc_bytes(a, n) + (uint64_t)n * a->heads * splits_of(a, n) * 8;
        most = bytes > most ? bytes : most;
    }
    uint64_t scores = a->ratio ? (uint64_t)scored * (a->context / a->ratio) * 4 : 0;
    return scores > most ? scores : most;
}

static uint32_t flags_of(const struct st_qsa *a)
{
    return (uint32_t)a->gated | (uint32_t)a->rope->neighbours << 1 | (a->q_norm ? 4u : 0u) | (uint32_t)a->kv << 4;
}

static void lower_heads(const struct st_qsa *a, struct st_gpu_list *list)
{
    uint32_t index = a->ratio ? a->index_heads : 0;
    struct call c = call(list, ST_GPU_QSA_HEADS, a->heads + a->kv_heads + index, (uint32_t)a->rows->n);
    put(&c, a->q);
    put(&c, a->k_cache);
    put(&c, a->v_cache);
    put_or(&c, a->iq, a->q);
    put(&c, a->k);
    put(&c, a->v);
    put_or(&c, a->q_norm, a->k);
    put_or(&c, a->k_norm, a->k);
    put_or(&c, a->iq_norm, a->k);
    put(&c, a->rope->freq_at);
    put(&c, a->rope->axis_at);
    put(&c, a->rows->axis);
    put(&c, a->rows->slot);
    put(&c, a->rows->pos);
    put_int(&c, a->heads);
    put_int(&c, a->kv_heads);
    put_int(&c, index);
    put_int(&c, a->head_dim);
    put_int(&c, a->index_dim);
    put_int(&c, a->context);
    put_int(&c, a->rope->rot);
    put_int(&c, flags_of(a));
    put_int(&c, (uint32_t)a->kv_bytes);
    put_float(&c, a->eps);
}

static void lower_index(const struct st_qsa *a, const struct st_gpu_target *t, struct st_gpu_list *list)
{
    uint32_t n = (uint32_t)a->rows->n, blocks = a->context / a->ratio, keep = a->budget / a->ratio;
    struct call c = call(list, ST_GPU_QSA_POOL, 1, n);
    put(&c, a->pooled);
    put(&c, a->ik);
    put(&c, a->raw_ring);
    put(&c, a->axis_ring);
    put(&c, a->ik_norm);
    put(&c, a->rope->freq_at);
    put(&c, a->rope->axis_at);
    put(&c, a->rows->axis);
    put(&c, a->rows->slot);
    put(&c, a->rows->pos);
    put_int(&c, a->index_dim);
    put_int(&c, a->ratio);
    put_int(&c, ST_QSA_RING);
    put_int(&c, blocks);
    put_int(&c, a->rope->rot);
    put_int(&c, flags_of(a));
    put_float(&c, a->eps);
    c = call(list, ST_GPU_QSA_RING, 1, n);
    put(&c, a->raw_ring);
    put(&c, a->axis_ring);
    put(&c, a->ik);
    put(&c, a->rows->axis);
    put(&c, a->rows->slot);
    put(&c, a->rows->pos);
    put_int(&c, n);
    put_int(&c, a->index_dim);
    put_int(&c, ST_QSA_RING);
    for (uint32_t first = 0; first < n; first += SCORE_ROWS) {
        uint32_t rows = n - first < SCORE_ROWS ? n - first : SCORE_ROWS;
        c = call(list, ST_GPU_QSA_SCORE, groups(blocks), rows);
        put_address(&c, t->scratch);
        put(&c, a->iq);
        put(&c, a->pooled);
        put(&c, a->rows->slot);
        put(&c, a->rows->pos);
        put_int(&c, a->index_heads);
        put_int(&c, a->index_dim);
        put_int(&c, a->ratio);
        put_int(&c, keep);
        put_int(&c, blocks);
        put_int(&c, first);
        c = call(list, ST_GPU_QSA_CHOOSE, 1, rows);
        put(&c, a->chosen);
        put(&c, a->chosen_count);
        put_address(&c, t->scratch);
        put(&c, a->rows->pos);
        put_int(&c, a->ratio);
        put_int(&c, keep);
        put_int(&c, a->budget + a->ratio);
        put_int(&c, blocks);
        put_int(&c, first);
    }
}

/* Without an index every position is allowed: counts of -1, that is, all bits set. */
static void lower_dense(const struct st_qsa *a, struct st_gpu_list *list)
{
    struct call c = call(list, ST_GPU_QSA_DENSE, groups((uint64_t)a->rows->n), 1);
    put(&c, a->chosen_count);
    put_int(&c, (uint32_t)a->rows->n);
}

enum strata_result st_gpu_lower_qsa(const struct st_qsa *a, const struct st_gpu_target *t, struct st_gpu_list *list,
                                    struct strata_error *err)
{
    uint32_t n = (uint32_t)a->rows->n, splits = splits_of(a, n), index_rot = a->ratio ? a->index_dim : a->rope->rot;
    if (a->head_dim > DIM_MAX || a->index_dim > DIM_MAX || a->rope->rot / 2 > ITEMS || a->rope->rot > a->head_dim ||
        a->rope->rot > index_rot)
        return st_fail(err, STRATA_E_UNSUPPORTED, "attention: no kernel for heads of %u, index keys of %u, rotation of %u",
                       a->head_dim, a->index_dim, a->rope->rot);
    lower_heads(a, list);
    if (a->ratio)
        lower_index(a, t, list);
    else
        lower_dense(a, list);
    st_addr acc = t->scratch, state = t->scratch + acc_bytes(a, n);
    struct call c = call(list, ST_GPU_QSA_ATTEND, a->heads * splits, n);
    put_address(&c, acc);
    put_address(&c, state);
    put(&c, a->q);
    put(&c, a->k_cache);
    put(&c, a->v_cache);
    put_or(&c, a->chosen, a->chosen_count);
    put(&c, a->chosen_count);
    put(&c, a->rows->slot);
    put(&c, a->rows->pos);
    put_int(&c, a->heads);
    put_int(&c, a->kv_heads);
    put_int(&c, a->head_dim);
    put_int(&c, a->context);
    put_int(&c, a->budget + a->ratio);
    put_int(&c, flags_of(a));
    put_int(&c, (uint32_t)a->kv_bytes);
    put_int(&c, splits);
    c = call(list, ST_GPU_QSA_JOIN, a->heads, n);
    put(&c, a->out);
    put_address(&c, acc);
    put_address(&c, state);
    put(&c, a->q);
    put_int(&c, a->heads);
    put_int(&c, a->head_dim);
    put_int(&c, splits);
    put_int(&c, flags_of(a));
    return STRATA_OK;
}

/* ---- choice of experts ---- */

void st_gpu_lower_choice(const struct st_route *a, struct st_gpu_list *list)
{
    uint32_t n = (uint32_t)*a->n, entries = n * a->used;
    const struct st_routing *to = a->to;
    struct call c = call(list, ST_GPU_ROUTE_CHOOSE, 1, n);
    put(&c, to->expert);
    put(&c, to->weight);
    put(&c, to->shared);
    put(&c, a->logits);
    put_int(&c, a->experts);
    put_int(&c, a->used);
    c = call(list, ST_GPU_ROUTE_COUNT, a->experts, 1);
    put(&c, to->first);
    put(&c, to->expert);
    put_int(&c, entries);
    c = call(list, ST_GPU_ROUTE_SUM, 1, 1);
    put(&c, to->first);
    put_int(&c, a->experts);
    c = call(list, ST_GPU_ROUTE_PLACE, a->experts, 1);
    put(&c, to->entry);
    put(&c, to->where);
    put(&c, to->first);
    put(&c, to->expert);
    put_int(&c, entries);
}
