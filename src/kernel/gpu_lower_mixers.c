/* Lowering of everything that is not a product of matrices: residual, n-gram memory, gated delta network, attention,
 * choice of experts. Arguments stand in the order of the kernels in kernel/gpu/{residual,ngram,gdn,qsa,route}.cl. */
#include "kernel/gpu_lower.h"
#include "kernel/gpu_norm.h"

enum {
    ITEMS = 256,
    DIM_MAX = 256,    /* of attention heads and of the recurrence's keys */
    ATTEND_TILE = 64, /* positions that an attention group takes at a time */
    SPLITS_MAX = 64,
    SCORE_TILE_ROWS = 16, /* rows and blocks of a tile of scores */
    SCORE_TILE_BLOCKS = 64,
    SCORE_BYTES = 64 << 20, /* of a prompt's block scores that are kept at once */
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
    const struct st_gated_read *read =
        list->next && list->next->op == ST_OP_gated_read ? &list->next->u.gated_read : NULL;
    if (read && read->r == a->r && read->n == a->n && read->hidden == a->hidden && read->streams == a->streams) {
        list->held = a;
        return STRATA_OK;
    }
    struct call c = call(list, ST_GPU_GATED_WRITE, groups(a->hidden), (uint32_t)*a->n);
    put(&c, a->r);
    put(&c, a->inj);
    put(&c, a->o);
    put_int(&c, a->hidden);
    put_int(&c, a->streams);
    return STRATA_OK;
}

enum strata_result st_gpu_lower_wide_norm(const struct st_gated_read *a, unsigned *forms, struct st_gpu_list *list,
                                          struct strata_error *err)
{
    uint32_t n = (uint32_t)*a->n, wide = a->streams * a->hidden;
    enum st_act act = *forms & 1u << ST_ACT_Q8 && a->hidden % 32 == 0     ? ST_ACT_Q8
                      : *forms & 1u << ST_ACT_Q8K && a->hidden % 256 == 0 ? ST_ACT_Q8K
                                                                          : ST_ACT_F32;
    const void *codes = act == ST_ACT_F32 ? a->x : (const void *)a->acts->memory[act];
    const struct st_gated_write *write = list->held;
    list->held = NULL;
    *forms &= ~(1u << act);
    if (!write) {
        struct st_gpu_norm norm = {.y = st_gpu_at(a->x),
                                   .q = st_gpu_at(codes),
                                   .x = st_gpu_at(a->r),
                                   .gamma = st_gpu_at(a->gamma),
                                   .rows = n,
                                   .n = wide,
                                   .group = a->hidden,
                                   .gammas = wide,
                                   .eps = a->eps,
                                   .act = act};
        return st_gpu_norm(&norm, st_gpu_push(list), err);
    }
    struct call c = call(list, ST_GPU_WRITE_NORM, a->streams, n);
    put(&c, a->x);
    put(&c, codes);
    put(&c, a->r);
    put(&c, write->inj);
    put(&c, write->o);
    put(&c, a->gamma);
    put_int(&c, wide);
    put_int(&c, a->hidden);
    put_int(&c, act == ST_ACT_Q8 ? 1 : act == ST_ACT_Q8K ? 2 : 0);
    put_float(&c, a->eps);
    return STRATA_OK;
}

/* Where the Q8 form of x goes when the next command's products want it, each head of dim elements written by itself;
 * otherwise NULL. */
static uint8_t *codes_for_next(const float *x, uint32_t dim, struct st_gpu_list *list)
{
    const struct st_products *p = list->next && list->next->op == ST_OP_products ? &list->next->u.products : NULL;
    bool wanted = false;
    for (int i = 0; p && p->x == x && i < p->count; i++)
        wanted = wanted || p->product[i].w->act == ST_ACT_Q8;
    if (!wanted || dim % 32)
        return NULL;
    list->ready.x = x;
    list->ready.memory = p->acts->memory[ST_ACT_Q8];
    list->ready.forms = 1u << ST_ACT_Q8;
    return p->acts->memory[ST_ACT_Q8];
}

enum strata_result st_gpu_lower_select(const struct st_select *a, const struct st_gpu_target *t,
                                       struct st_gpu_list *list, struct strata_error *err)
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

enum strata_result st_gpu_lower_swiglu(const struct st_swiglu *a, const struct st_gpu_target *t,
                                       struct st_gpu_list *list, struct strata_error *err)
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
        return st_fail(err, STRATA_E_UNSUPPORTED, "n-gram table: no kernel for rows of type %s",
                       st_type_info(a->type)->name);
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

/* The last z of each sequence goes into the ring. */
static void put_ngram_ring(const struct st_ngram_inject *a, const float *z, struct st_gpu_list *list)
{
    uint32_t n = (uint32_t)a->rows->n, wide = a->streams * a->hidden;
    struct call c = call(list, ST_GPU_NGRAM_RING, groups(wide), n);
    put(&c, a->state);
    put(&c, z);
    put(&c, a->rows->slot);
    put(&c, a->rows->pos);
    put_int(&c, n);
    put_int(&c, wide);
    put_int(&c, (a->taps - 1) * a->dilation);
}

enum strata_result st_gpu_lower_ngram_inject(const struct st_ngram_inject *a, const struct st_gpu_target *t,
                                             struct st_gpu_list *list, struct strata_error *err)
{
    (void)t;
    (void)err;
    uint32_t n = (uint32_t)a->rows->n, wide = a->streams * a->hidden;
    struct call c;
    if (a->rows->mode == ST_ROWS_COMMIT) {
        put_ngram_ring(a, a->kept + (size_t)a->rows->held * wide, list);
        return STRATA_OK;
    }
    c = call(list, ST_GPU_NGRAM_GATE, a->streams, n);
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
    enum { ROWS_AT_ONCE = 16 }; /* of a group; it has all rows of a window, and then also keeps the ring */
    c = call(list, ST_GPU_NGRAM_CONV, groups(wide), (n + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE);
    put(&c, a->r);
    put(&c, a->state);
    put_or(&c, a->kept, a->z);
    put(&c, a->key);
    put(&c, a->z);
    put(&c, a->conv);
    put(&c, a->rows->slot);
    put(&c, a->rows->pos);
    put_int(&c, n);
    put_int(&c, wide);
    put_int(&c, a->taps);
    put_int(&c, a->dilation);
    put_int(&c, a->rows->mode == ST_ROWS_HOLD);
    if (n > ROWS_AT_ONCE)
        put_ngram_ring(a, a->z, list);
    return STRATA_OK;
}

/* ---- gated delta network ---- */

/* Runs of rows of one sequence, at most. A window's launches serve every window of its rows; prompts are lowered for
 * each pass. */
static uint32_t spans_of(const struct st_rows *rows)
{
    return (uint32_t)(rows->n <= ST_GPU_WINDOW ? rows->n : rows->n_spans);
}

/* Bytes of a row and value head: gates (kernel/gpu/gdn.h), and of prompts the pairs of blocks (kernel/gpu/gdn_blocks.cl). */
enum { GATES = 16, PAIRS = 80 };

uint64_t st_gpu_scratch_gdn(const struct st_gdn *a, uint32_t rows, const struct st_gpu_target *t)
{
    (void)t;
    return (uint64_t)rows * a->value_heads * (rows > ST_GPU_WINDOW ? GATES + PAIRS : GATES);
}

static void put_gdn_shape(struct call *c, const struct st_gdn *a)
{
    put_int(c, (uint32_t)a->rows->n);
    put_int(c, a->key_heads);
    put_int(c, a->value_heads);
    put_int(c, a->key_dim);
    put_int(c, a->value_dim);
    put_int(c, a->taps);
}

enum { GDN_COLUMNS = 16, GDN_BLOCK = 8 }; /* columns of a group; rows of a prompt that are taken at once */

/* The recurrence of a window. */
static void lower_gdn_steps(const struct st_gdn *a, st_addr gates, struct st_gpu_list *list)
{
    struct call c = call(list,
                         a->key_dim == 32   ? ST_GPU_GDN_STEP_4
                         : a->key_dim == 64 ? ST_GPU_GDN_STEP_8
                                            : ST_GPU_GDN_STEP_16,
                         a->value_heads * (a->value_dim / GDN_COLUMNS), spans_of(a->rows));
    put(&c, a->o);
    put(&c, a->state);
    put(&c, a->c);
    put_address(&c, gates);
    put(&c, a->rows->slot);
    put(&c, a->rows->span);
    put_int(&c, (uint32_t)a->rows->n);
    put_int(&c, a->key_heads);
    put_int(&c, a->value_heads);
    put_int(&c, a->value_dim);
    put_int(&c, a->rows->mode == ST_ROWS_HOLD);
}

/* The recurrence of a prompt; the pairs of its blocks lie behind the gates. */
static void lower_gdn_blocks(const struct st_gdn *a, st_addr gates, struct st_gpu_list *list)
{
    uint32_t n = (uint32_t)a->rows->n, spans = (uint32_t)a->rows->n_spans;
    st_addr pairs = gates + (uint64_t)n * a->value_heads * GATES;
    struct call c = call(list, ST_GPU_GDN_PAIRS, a->key_heads, n / GDN_BLOCK + spans);
    put_address(&c, pairs);
    put(&c, a->c);
    put_address(&c, gates);
    put(&c, a->rows->span);
    put_int(&c, n);
    put_int(&c, spans);
    put_int(&c, a->key_heads);
    put_int(&c, a->value_heads);
    put_int(&c, a->key_dim);
    put_int(&c, a->value_dim);
    c = call(list,
             a->key_dim == 32   ? ST_GPU_GDN_BLOCKS_32
             : a->key_dim == 64 ? ST_GPU_GDN_BLOCKS_64
                                : ST_GPU_GDN_BLOCKS_128,
             a->value_heads * (a->value_dim / GDN_COLUMNS), spans);
    put(&c, a->o);
    put(&c, a->state);
    put(&c, a->c);
    put_address(&c, pairs);
    put(&c, a->rows->slot);
    put(&c, a->rows->span);
    put_int(&c, n);
    put_int(&c, a->key_heads);
    put_int(&c, a->value_heads);
    put_int(&c, a->value_dim);
}

enum strata_result st_gpu_lower_gdn(const struct st_gdn *given, const struct st_gpu_target *t, struct st_gpu_list *list,
                                    struct strata_error *err)
{
    struct st_gdn taken = *given;
    const struct st_gdn *a = &taken;
    bool hold = a->rows->mode == ST_ROWS_HOLD;
    if (a->rows->mode == ST_ROWS_COMMIT) { /* the outputs are those of the window once more, and nobody reads them */
        size_t held = (size_t)a->rows->held;
        taken.u = st_gdn_kept_u(a) + held * a->channels;
        taken.b = st_gdn_kept_b(a) + held * a->value_heads;
        taken.a = st_gdn_kept_a(a) + held * a->value_heads;
    }
    enum { HEADS_AT_ONCE = ITEMS / 32 };
    uint32_t n = (uint32_t)a->rows->n, heads = 2 * a->key_heads + a->value_heads;
    uint32_t units = (uint32_t)(((uint64_t)n * heads + HEADS_AT_ONCE - 1) / HEADS_AT_ONCE);
    if ((a->key_dim != 32 && a->key_dim != 64 && a->key_dim != 128) || a->value_dim % GDN_COLUMNS || a->value_dim > DIM_MAX)
        return st_fail(err, STRATA_E_UNSUPPORTED, "gated delta network: no kernel for a state of %u x %u", a->key_dim,
                       a->value_dim);
    struct call c = call(list, ST_GPU_GDN_PREPARE, heads, (n + HEADS_AT_ONCE - 1) / HEADS_AT_ONCE);
    put(&c, a->c);
    put_address(&c, t->scratch);
    put_or(&c, hold ? a->kept : NULL, a->c);
    put(&c, a->conv_state);
    put(&c, a->u);
    put(&c, a->conv);
    put(&c, a->b);
    put(&c, a->a);
    put(&c, a->ssm_a);
    put(&c, a->dt_bias);
    put(&c, a->rows->slot);
    put(&c, a->rows->pos);
    put_gdn_shape(&c, a);
    put_int(&c, hold);
    put_float(&c, a->eps);
    if (n <= ST_GPU_WINDOW)
        lower_gdn_steps(a, t->scratch, list);
    else
        lower_gdn_blocks(a, t->scratch, list);
    uint8_t *codes = codes_for_next(a->o, a->value_dim, list);
    c = call(list, ST_GPU_GDN_FINISH, units, 1);
    put(&c, a->o);
    put(&c, a->conv_state);
    put_or(&c, codes, a->o);
    put(&c, a->z);
    put(&c, a->gamma);
    put(&c, a->u);
    put(&c, a->rows->slot);
    put(&c, a->rows->pos);
    put_gdn_shape(&c, a);
    put_int(&c, codes != NULL);
    put_int(&c, hold);
    put_float(&c, a->eps);
    return STRATA_OK;
}

/* ---- attention ---- */

static uint32_t positions_max(const struct st_qsa *a)
{
    return a->ratio && a->budget + a->ratio < a->context ? a->budget + a->ratio : a->context;
}

/* Groups that share the positions of one row and some of its heads. It depends on the sizes of the model and of the
 * context alone for windows, so that a row has the same bits in any window; prompts have enough rows to fill a device.
 */
static uint32_t splits_of(const struct st_qsa *a, uint32_t rows)
{
    uint32_t splits = (positions_max(a) + ATTEND_TILE - 1) / ATTEND_TILE;
    return rows > ST_GPU_WINDOW || splits == 0 ? 1 : splits > SPLITS_MAX ? SPLITS_MAX : splits;
}

/* Rows whose block scores are kept at once: all of a window. */
static uint32_t scored_rows(const struct st_qsa *a, uint32_t rows)
{
    uint64_t fit = SCORE_BYTES / (4ull * (a->context / a->ratio + 1)) / SCORE_TILE_ROWS * SCORE_TILE_ROWS;
    return rows <= SCORE_TILE_ROWS || fit < SCORE_TILE_ROWS ? (rows < SCORE_TILE_ROWS ? rows : SCORE_TILE_ROWS)
           : rows < fit                                     ? rows
                                                            : (uint32_t)fit;
}

static uint64_t acc_bytes(const struct st_qsa *a, uint32_t rows)
{
    return (uint64_t)rows * a->heads * splits_of(a, rows) * a->head_dim * 4;
}

/* Scratch of attention: block scores; after them, in the same place, a window's sums of values and softmax states of
 * its splits. */
uint64_t st_gpu_scratch_qsa(const struct st_qsa *a, uint32_t rows, const struct st_gpu_target *t)
{
    (void)t;
    uint32_t window = rows < ST_GPU_WINDOW ? rows : ST_GPU_WINDOW;
    uint64_t bytes = acc_bytes(a, window) + (uint64_t)window * a->heads * splits_of(a, window) * 8;
    uint64_t scores = a->ratio ? (uint64_t)scored_rows(a, rows) * (a->context / a->ratio) * 4 : 0;
    return scores > bytes ? scores : bytes;
}

static uint32_t flags_of(const struct st_qsa *a)
{
    return (uint32_t)a->gated | (uint32_t)a->rope->neighbours << 1 | (a->q_norm ? 4u : 0u) | (uint32_t)a->kv << 4;
}

static void lower_heads(const struct st_qsa *a, struct st_gpu_list *list)
{
    uint32_t index = a->ratio ? a->index_heads : 0;
    struct call c =
        call(list, ST_GPU_QSA_HEADS, a->heads + a->kv_heads + index + (a->ratio != 0), (uint32_t)a->rows->n);
    put(&c, a->q);
    put(&c, a->k_cache);
    put(&c, a->v_cache);
    put_or(&c, a->iq, a->q);
    put_or(&c, a->pooled, a->q);
    put(&c, a->k);
    put(&c, a->v);
    put_or(&c, a->ik, a->k);
    put_or(&c, a->raw_ring, a->k);
    put_or(&c, a->axis_ring, a->k);
    put_or(&c, a->q_norm, a->k);
    put_or(&c, a->k_norm, a->k);
    put_or(&c, a->iq_norm, a->k);
    put_or(&c, a->ik_norm, a->k);
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
    put_int(&c, a->ratio);
    put_int(&c, a->rope->rot);
    put_int(&c, flags_of(a));
    put_int(&c, (uint32_t)a->kv_bytes);
    put_float(&c, a->eps);
    put_float(&c, a->rope->gain);
}

/* Scores of the blocks, then the choice; the choice also stores raw keys, which the heads' launch still reads. */
static void lower_index(const struct st_qsa *a, const struct st_gpu_target *t, struct st_gpu_list *list)
{
    uint32_t n = (uint32_t)a->rows->n, blocks = a->context / a->ratio, keep = a->budget / a->ratio,
             step = scored_rows(a, n);
    bool window = n <= ST_GPU_WINDOW;
    for (uint32_t first = 0; first < n; first += step) {
        uint32_t rows = n - first < step ? n - first : step;
        struct call c = window ? call(list, ST_GPU_QSA_SCORE, (blocks + 31) / 32, rows)
                               : call(list, ST_GPU_QSA_SCORE_TILE, (blocks + SCORE_TILE_BLOCKS - 1) / SCORE_TILE_BLOCKS,
                                      (rows + SCORE_TILE_ROWS - 1) / SCORE_TILE_ROWS);
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
        if (!window)
            put_int(&c, rows);
        c = call(list, ST_GPU_QSA_CHOOSE, 1, rows);
        put(&c, a->chosen);
        put(&c, a->chosen_count);
        put(&c, a->raw_ring);
        put(&c, a->axis_ring);
        put_address(&c, t->scratch);
        put(&c, a->ik);
        put(&c, a->rows->axis);
        put(&c, a->rows->slot);
        put(&c, a->rows->pos);
        put_int(&c, a->ratio);
        put_int(&c, keep);
        put_int(&c, a->budget + a->ratio);
        put_int(&c, blocks);
        put_int(&c, first);
        put_int(&c, n);
        put_int(&c, a->index_dim);
    }
}

/* Without an index every position is allowed: counts of -1, that is, all bits set. */
static void lower_dense(const struct st_qsa *a, struct st_gpu_list *list)
{
    struct call c = call(list, ST_GPU_QSA_DENSE, groups((uint64_t)a->rows->n), 1);
    put(&c, a->chosen_count);
    put_int(&c, (uint32_t)a->rows->n);
}

/* Attention of a prompt on binary16 keys and values. */
static void lower_halves(const struct st_qsa *a, struct st_gpu_list *list)
{
    enum { HEADS_AT_ONCE = 12 };
    uint32_t each = a->heads / a->kv_heads;
    struct call c = call(list,
                         a->head_dim == 64    ? ST_GPU_QSA_HALVES_64
                         : a->head_dim == 128 ? ST_GPU_QSA_HALVES_128
                                              : ST_GPU_QSA_HALVES_256,
                         a->kv_heads * ((each + HEADS_AT_ONCE - 1) / HEADS_AT_ONCE), (uint32_t)a->rows->n);
    put(&c, a->out);
    put(&c, a->q);
    put(&c, a->k_cache);
    put(&c, a->v_cache);
    put_or(&c, a->chosen, a->chosen_count);
    put(&c, a->chosen_count);
    put(&c, a->rows->slot);
    put(&c, a->rows->pos);
    put_int(&c, a->heads);
    put_int(&c, a->kv_heads);
    put_int(&c, a->context);
    put_int(&c, a->budget + a->ratio);
    put_int(&c, flags_of(a));
}

enum strata_result st_gpu_lower_qsa(const struct st_qsa *a, const struct st_gpu_target *t, struct st_gpu_list *list,
                                    struct strata_error *err)
{
    uint32_t n = (uint32_t)a->rows->n, splits = splits_of(a, n), index_rot = a->ratio ? a->index_dim : a->rope->rot;
    if (a->head_dim > DIM_MAX || a->head_dim % 8 || a->index_dim > DIM_MAX || a->index_dim % 4 ||
        a->rope->rot / 2 > ITEMS || a->rope->rot > a->head_dim || a->rope->rot > index_rot)
        return st_fail(err, STRATA_E_UNSUPPORTED,
                       "attention: no kernel for heads of %u, index keys of %u, rotation of %u", a->head_dim,
                       a->index_dim, a->rope->rot);
    lower_heads(a, list);
    if (a->ratio)
        lower_index(a, t, list);
    else
        lower_dense(a, list);
    if (n > ST_GPU_WINDOW && a->kv == ST_KV_F16 && (a->head_dim == 64 || a->head_dim == 128 || a->head_dim == 256)) {
        lower_halves(a, list);
        return STRATA_OK;
    }
    /* A window has few rows: its groups have fewer heads, so that there are more of them. */
    uint32_t each = a->heads / a->kv_heads, at_once = n > ST_GPU_WINDOW && each > 4 ? 12 : 4;
    st_addr acc = t->scratch, state = splits > 1 ? acc + acc_bytes(a, n) : acc; /* a prompt needs neither */
    struct call c = call(list, at_once == 12 ? ST_GPU_QSA_ATTEND_12 : ST_GPU_QSA_ATTEND_4,
                         a->kv_heads * ((each + at_once - 1) / at_once) * splits, n);
    put(&c, a->out);
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
    if (splits == 1)
        return STRATA_OK;
    uint8_t *codes = codes_for_next(a->out, a->head_dim, list);
    c = call(list, ST_GPU_QSA_JOIN, a->heads, n);
    put(&c, a->out);
    put_or(&c, codes, a->out);
    put_address(&c, acc);
    put_address(&c, state);
    put(&c, a->q);
    put_int(&c, a->heads);
    put_int(&c, a->head_dim);
    put_int(&c, splits);
    put_int(&c, flags_of(a));
    put_int(&c, codes != NULL);
    return STRATA_OK;
}

/* ---- choice of experts ---- */

void st_gpu_lower_choice(const struct st_route *a, struct st_gpu_list *list)
{
    uint32_t n = (uint32_t)*a->n, entries = n * a->used;
    const struct st_routing *to = a->to;
    struct call c;
    if (n <= ITEMS / 32 && a->used <= 32 && a->experts <= 512) {
        c = call(list, ST_GPU_ROUTE_WINDOW, 1, 1);
        put(&c, to->expert);
        put(&c, to->weight);
        put(&c, to->shared);
        put(&c, to->first);
        put(&c, to->entry);
        put(&c, to->where);
        put(&c, a->logits);
        put_int(&c, n);
        put_int(&c, a->experts);
        put_int(&c, a->used);
        return;
    }
    c = call(list, ST_GPU_ROUTE_CHOOSE, 1, n);
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
