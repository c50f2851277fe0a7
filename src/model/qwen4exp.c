/* qwen4exp: the forward pass, written once as a list of commands, and the memory it needs.
 *
 *     R = 4 copies of the embedding
 *     per layer: [n-gram memory]  m, inj = read(R); R += inj * mixer(m)   (recurrent or attention)
 *                                 m, inj = read(R); R += inj * experts(m)
 *     logits = output . read(R) for the rows that want them
 *
 * A draft layer is the same with another beginning: R = eh . [norm(embedding) ; norm(hidden)] per stream. */
#include "model/qwen4exp.h"

#include <stdlib.h>

#include "kernel/multiply.h"
#include "kernel/qsa_scratch.h"

/* Scratch shared by all layers. Mixers and experts use the same memory in turn. */
struct buffers {
    float *r, *x, *lo, *m, *inj, *o;
    struct st_act_buffer *acts, *hacts;
    struct {
        float *u, *z, *b, *a, *c, *o;
    } gdn;
    struct {
        float *q, *k, *v, *iq, *ik, *out;
        uint32_t *chosen;
        int32_t *chosen_count;
    } qsa;
    struct {
        struct st_routing *routing;
        float *logits, *h, *o;
    } moe;
    struct {
        float *e, *key, *value, *z;
    } ngram;
    struct {
        float *x;
        struct st_act_buffer *acts;
    } draft;
    float *r_out, *m_out;
};

/* What one emission carries around. */
struct emitter {
    const struct q4e_model *m;
    const struct q4e_hparams *h;
    const struct st_placement *at;
    const struct st_rows *rows;
    struct st_bump *state, *scratch;
    struct buffers b;
    struct st_program *p;
};

/* Memory of an activation buffer. */
static void take_acts(struct emitter *e, struct st_act_buffer *b, uint64_t rows, uint64_t cols)
{
    size_t (*row_bytes)(enum st_act, size_t) = e->at->act_bytes ? e->at->act_bytes : st_act_bytes;
    void *memory = st_bump_take(e->scratch, 1, st_act_buffer_bytes(rows, cols, row_bytes));
    st_act_buffer_place(b, memory, rows, cols, row_bytes);
}

static float *take_floats(struct st_bump *s, uint64_t rows, uint64_t count)
{
    return st_bump_take(s, rows, count * sizeof(float));
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint32_t channels(const struct q4e_hparams *h)
{
    return 2 * h->key_heads * h->key_dim + h->value_heads * h->value_dim;
}

static void take_routing(struct st_bump *s, struct st_routing *t, uint64_t n, uint32_t used, uint32_t experts)
{
    *t = (struct st_routing){.expert = st_bump_take(s, n * used, sizeof(int32_t)),
                             .weight = st_bump_take(s, n * used, sizeof(float)),
                             .shared = st_bump_take(s, n, sizeof(float)),
                             .first = st_bump_take(s, experts + 1ull, sizeof(int32_t)),
                             .entry = st_bump_take(s, n * used, sizeof(int32_t)),
                             .where = st_bump_take(s, n * used, sizeof(int32_t))};
}

/* Takes the scratch memory; the union of the parts that never live at the same time is laid one over the other. */
static void take_buffers(struct emitter *e, enum st_part part)
{
    const struct q4e_hparams *h = e->h;
    struct st_bump *s = e->scratch;
    struct buffers *b = &e->b;
    uint64_t n = e->at->rows, out = e->at->out_rows, wide = (uint64_t)h->streams * h->hidden;
    uint64_t inner = (uint64_t)h->value_heads * h->value_dim, q = (uint64_t)h->heads * h->head_dim;
    uint64_t ngram_in = (uint64_t)h->hash.heads * h->ngram_width;
    uint64_t expert_width = max_u64(h->expert_width, h->shared_width);
    b->r = e->p->wide = take_floats(s, n, wide);
    b->x = take_floats(s, n, wide);
    b->lo = take_floats(s, n, h->rank);
    b->m = take_floats(s, n, h->hidden);
    b->inj = take_floats(s, n, h->streams);
    b->o = take_floats(s, n, h->hidden);
    b->r_out = take_floats(s, out, wide);
    b->m_out = take_floats(s, out, h->hidden);
    e->p->logits = take_floats(s, out, h->vocabulary);
    b->acts = st_program_describe(e->p, sizeof *b->acts);
    b->hacts = st_program_describe(e->p, sizeof *b->hacts);
    b->draft.acts = st_program_describe(e->p, sizeof *b->draft.acts);
    b->moe.routing = st_program_describe(e->p, sizeof *b->moe.routing);
    take_acts(e, b->acts, n, max_u64(max_u64(max_u64(wide, inner), max_u64(q, ngram_in)), h->rank));
    uint64_t mark = s->used;
    if (part == ST_PART_DRAFT) {
        e->p->wide_in = take_floats(s, n, wide);
        mark = s->used;
        b->draft.x = take_floats(s, n * h->streams, 2ull * h->hidden);
        take_acts(e, b->draft.acts, n * h->streams, 2ull * h->hidden);
    }
    s->used = mark;
    b->gdn.u = take_floats(s, n, channels(h));
    b->gdn.c = take_floats(s, n, channels(h));
    b->gdn.z = take_floats(s, n, inner);
    b->gdn.o = take_floats(s, n, inner);
    b->gdn.b = take_floats(s, n, h->value_heads);
    b->gdn.a = take_floats(s, n, h->value_heads);
    s->used = mark;
    b->qsa.q = take_floats(s, n, 2 * q);
    b->qsa.k = take_floats(s, n, (uint64_t)h->kv_heads * h->head_dim);
    b->qsa.v = take_floats(s, n, (uint64_t)h->kv_heads * h->head_dim);
    b->qsa.iq = take_floats(s, n, (uint64_t)h->index_heads * h->index_dim);
    b->qsa.ik = take_floats(s, n, h->index_dim);
    b->qsa.out = take_floats(s, n, q);
    b->qsa.chosen = st_bump_take(s, n * (h->index_budget + (uint64_t)ST_QSA_RING), sizeof(uint32_t));
    b->qsa.chosen_count = st_bump_take(s, n, sizeof(int32_t));
    s->used = mark;
    take_routing(s, b->moe.routing, n, h->used, h->experts);
    b->moe.logits = take_floats(s, n, h->experts);
    b->moe.h = take_floats(s, n * (h->used + 1ull), expert_width);
    b->moe.o = take_floats(s, n * (h->used + 1ull), h->hidden);
    take_acts(e, b->hacts, n * (h->used + 1ull), expert_width);
    s->used = mark;
    b->ngram.e = take_floats(s, n, ngram_in);
    b->ngram.key = take_floats(s, n, wide);
    b->ngram.value = take_floats(s, n, h->hidden);
    b->ngram.z = take_floats(s, n, wide);
    s->used = s->peak;
}

/* Takes slots x bytes of state, one unit whatever the length of the sequence. */
static void *fixed_state(struct emitter *e, uint64_t bytes)
{
    void *base = st_bump_take(e->state, e->at->slots, bytes);
    st_program_add_piece(e->p,
                         (struct st_state_piece){.base = base, .slot_stride = bytes, .unit_bytes = bytes, .outer = 1});
    return base;
}

/* Takes state that grows by a unit every tokens tokens, outer arrays per slot. */
static void *growing_state(struct emitter *e, uint32_t outer, uint64_t units, uint64_t unit_bytes, uint32_t tokens)
{
    uint64_t stride = units * unit_bytes;
    void *base = st_bump_take(e->state, (uint64_t)e->at->slots * outer, stride);
    st_program_add_piece(e->p, (struct st_state_piece){.base = base,
                                                       .slot_stride = stride * outer,
                                                       .outer_stride = stride,
                                                       .unit_bytes = unit_bytes,
                                                       .outer = outer,
                                                       .tokens_per_unit = tokens});
    return base;
}

/* Memory for what held rows keep; NULL where no pass holds rows. It lies with the state, because every layer has its own, but is
 * no part of it. */
static float *kept(struct emitter *e, uint64_t floats)
{
    return e->at->hold ? take_floats(e->state, 1, floats) : NULL;
}

static void need_scratch(struct emitter *e, size_t bytes)
{
    e->p->worker_scratch = bytes > e->p->worker_scratch ? bytes : e->p->worker_scratch;
}

/* Products of up to ST_PRODUCTS weights with one input of the pass's rows. */
static struct st_products *products(struct emitter *e, int32_t layer, const float *x)
{
    struct st_products *p = &st_program_add(e->p, ST_OP_products, layer)->u.products;
    *p = (struct st_products){.n = &e->rows->n, .x = x, .acts = e->b.acts};
    return p;
}

static void product(struct st_products *p, const struct st_weight *w, float *y)
{
    p->ldx = w->cols;
    p->product[p->count++] = (struct st_product){.w = w, .y = y, .ldy = w->rows};
}

static void gated_read(struct emitter *e, int32_t layer, const struct q4e_gated *g, const float *r, float *m,
                       const int32_t *n)
{
    const struct q4e_hparams *h = e->h;
    st_program_add(e->p, ST_OP_gated_read, layer)->u.gated_read =
        (struct st_gated_read){.n = n,
                               .r = r,
                               .gamma = g->gamma,
                               .down = &g->down,
                               .up = &g->up,
                               .inject = g->inject.data ? &g->inject : NULL,
                               .m = m,
                               .inj = e->b.inj,
                               .streams = h->streams,
                               .hidden = h->hidden,
                               .rank = h->rank,
                               .eps = h->eps,
                               .x = e->b.x,
                               .lo = e->b.lo,
                               .acts = e->b.acts};
}

static void gated_write(struct emitter *e, int32_t layer)
{
    st_program_add(e->p, ST_OP_gated_write, layer)->u.gated_write = (struct st_gated_write){
        .n = &e->rows->n, .r = e->b.r, .inj = e->b.inj, .o = e->b.o, .streams = e->h->streams, .hidden = e->h->hidden};
}

static void ngram(struct emitter *e, int32_t layer)
{
    const struct q4e_hparams *h = e->h;
    const struct q4e_model *m = e->m;
    struct buffers *b = &e->b;
    uint64_t wide = (uint64_t)h->streams * h->hidden, ring = (uint64_t)(h->ngram_taps - 1) * h->hash.order;
    st_program_add(e->p, ST_OP_ngram_gather, layer)->u.ngram_gather =
        (struct st_ngram_gather){.rows = e->rows,
                                 .type = m->ngram.table.type,
                                 .row_bytes = m->ngram.table.row_bytes,
                                 .heads = h->hash.heads,
                                 .width = h->ngram_width,
                                 .e = b->ngram.e};
    struct st_products *p = products(e, layer, b->ngram.e);
    product(p, &m->ngram.key, b->ngram.key);
    product(p, &m->ngram.value, b->ngram.value);
    st_program_add(e->p, ST_OP_ngram_inject, layer)->u.ngram_inject =
        (struct st_ngram_inject){.rows = e->rows,
                                 .key = b->ngram.key,
                                 .value = b->ngram.value,
                                 .norm_key = m->ngram.norm_key,
                                 .norm_query = m->ngram.norm_query,
                                 .norm_conv = m->ngram.norm_conv,
                                 .conv = m->ngram.conv,
                                 .z = b->ngram.z,
                                 .state = fixed_state(e, max_u64(ring, 1) * wide * sizeof(float)),
                                 .kept = kept(e, ST_HELD_ROWS * wide),
                                 .r = b->r,
                                 .streams = h->streams,
                                 .hidden = h->hidden,
                                 .taps = h->ngram_taps,
                                 .dilation = h->hash.order,
                                 .eps = h->eps};
}

static void recurrent_mixer(struct emitter *e, int32_t layer, const struct q4e_layer *y)
{
    const struct q4e_hparams *h = e->h;
    struct buffers *b = &e->b;
    struct st_products *p = products(e, layer, b->m);
    product(p, &y->qkv, b->gdn.u);
    product(p, &y->gate, b->gdn.z);
    product(p, &y->beta, b->gdn.b);
    product(p, &y->alpha, b->gdn.a);
    st_program_add(e->p, ST_OP_gdn, layer)->u.gdn =
        (struct st_gdn){.rows = e->rows,
                        .u = b->gdn.u,
                        .z = b->gdn.z,
                        .b = b->gdn.b,
                        .a = b->gdn.a,
                        .conv = y->conv,
                        .ssm_a = y->ssm_a,
                        .dt_bias = y->dt_bias,
                        .gamma = y->ssm_norm,
                        .conv_state = fixed_state(e, (h->taps - 1ull) * channels(h) * sizeof(float)),
                        .state = fixed_state(e, (uint64_t)h->value_heads * h->key_dim * h->value_dim * sizeof(float)),
                        .kept = kept(e, st_gdn_kept_floats(channels(h), h->value_heads)),
                        .c = b->gdn.c,
                        .o = b->gdn.o,
                        .key_heads = h->key_heads,
                        .value_heads = h->value_heads,
                        .key_dim = h->key_dim,
                        .value_dim = h->value_dim,
                        .taps = h->taps,
                        .channels = channels(h),
                        .eps = h->eps};
    need_scratch(e, (2ull * h->key_dim + h->value_dim) * ST_GDN_CHUNK * sizeof(float));
    need_scratch(e, (size_t)h->key_dim * h->value_dim * sizeof(float));
    product(products(e, layer, b->gdn.o), &y->out, b->o);
}

static void attention_mixer(struct emitter *e, int32_t layer, const struct q4e_layer *y)
{
    const struct q4e_hparams *h = e->h;
    struct buffers *b = &e->b;
    uint64_t unit = st_kv_row_bytes(e->at->kv, h->head_dim);
    struct st_products *p = products(e, layer, b->m);
    product(p, &y->q, b->qsa.q);
    product(p, &y->k, b->qsa.k);
    product(p, &y->v, b->qsa.v);
    product(p, &y->index_q, b->qsa.iq);
    product(p, &y->index_k, b->qsa.ik);
    struct st_qsa *q = &st_program_add(e->p, ST_OP_qsa, layer)->u.qsa;
    *q = (struct st_qsa){.rows = e->rows,
                         .rope = &h->rope,
                         .q = b->qsa.q,
                         .k = b->qsa.k,
                         .v = b->qsa.v,
                         .iq = b->qsa.iq,
                         .ik = b->qsa.ik,
                         .q_norm = y->q_norm,
                         .k_norm = y->k_norm,
                         .iq_norm = y->index_q_norm,
                         .ik_norm = y->index_k_norm,
                         .k_cache = growing_state(e, h->kv_heads, e->at->context, unit, 1),
                         .v_cache = growing_state(e, h->kv_heads, e->at->context, unit, 1),
                         .raw_ring = fixed_state(e, (uint64_t)ST_QSA_RING * h->index_dim * sizeof(float)),
                         .axis_ring = fixed_state(e, ST_QSA_RING * 3 * sizeof(int32_t)),
                         .pooled =
                             growing_state(e, 1, e->at->context / y->ratio, h->index_dim * sizeof(float), y->ratio),
                         .chosen = b->qsa.chosen,
                         .chosen_count = b->qsa.chosen_count,
                         .out = b->qsa.out,
                         .gated = true,
                         .kv = e->at->kv,
                         .kv_bytes = unit,
                         .heads = h->heads,
                         .kv_heads = h->kv_heads,
                         .head_dim = h->head_dim,
                         .index_heads = h->index_heads,
                         .index_dim = h->index_dim,
                         .context = e->at->context,
                         .budget = h->index_budget,
                         .ratio = y->ratio,
                         .eps = h->eps};
    need_scratch(e, st_qsa_scratch_bytes(q));
    product(products(e, layer, b->qsa.out), &y->out, b->o);
}

static void experts(struct emitter *e, int32_t layer, const struct q4e_layer *y)
{
    const struct q4e_hparams *h = e->h;
    struct buffers *b = &e->b;
    st_program_add(e->p, ST_OP_route, layer)->u.route = (struct st_route){.n = &e->rows->n,
                                                                          .m = b->m,
                                                                          .router = &y->router,
                                                                          .shared_gate = &y->shared_router,
                                                                          .logits = b->moe.logits,
                                                                          .to = b->moe.routing,
                                                                          .experts = h->experts,
                                                                          .used = h->used,
                                                                          .hidden = h->hidden,
                                                                          .acts = b->acts};
    st_program_add(e->p, ST_OP_experts, layer)->u.experts = (struct st_experts){.n = &e->rows->n,
                                                                                .m = b->m,
                                                                                .routing = b->moe.routing,
                                                                                .gate = &y->experts_gate,
                                                                                .up = &y->experts_up,
                                                                                .down = &y->experts_down,
                                                                                .shared_gate = &y->shared_gate,
                                                                                .shared_up = &y->shared_up,
                                                                                .shared_down = &y->shared_down,
                                                                                .h = b->moe.h,
                                                                                .o = b->moe.o,
                                                                                .y = b->o,
                                                                                .experts = h->experts,
                                                                                .used = h->used,
                                                                                .hidden = h->hidden,
                                                                                .width = h->expert_width,
                                                                                .shared_width = h->shared_width,
                                                                                .acts = b->acts,
                                                                                .hacts = b->hacts};
}

static void layer_commands(struct emitter *e, int32_t layer, const struct q4e_layer *y)
{
    gated_read(e, layer, &y->attn, e->b.r, e->b.m, &e->rows->n);
    if (y->recurrent)
        recurrent_mixer(e, layer, y);
    else
        attention_mixer(e, layer, y);
    gated_write(e, layer);
    gated_read(e, layer, &y->ffn, e->b.r, e->b.m, &e->rows->n);
    experts(e, layer, y);
    gated_write(e, layer);
}

/* Logits of the rows that want them. */
static void head(struct emitter *e, const struct q4e_gated *final, const struct st_weight *output)
{
    st_program_add(e->p, ST_OP_select, -1)->u.select =
        (struct st_select){.rows = e->rows, .from = e->b.r, .to = e->b.r_out, .width = e->h->streams * e->h->hidden};
    gated_read(e, -1, final, e->b.r_out, e->b.m_out, &e->rows->n_out);
    struct st_products *p = products(e, -1, e->b.m_out);
    p->n = &e->rows->n_out;
    product(p, output, e->p->logits);
}

static void trunk(struct emitter *e)
{
    const struct q4e_model *m = e->m;
    if (m->first == 0)
        st_program_add(e->p, ST_OP_embed, -1)->u.embed =
            (struct st_embed){.rows = e->rows, .table = &m->embed, .r = e->b.r, .streams = e->h->streams};
    for (uint32_t i = m->first; i < m->end; i++) {
        if (i == e->h->ngram_layer)
            ngram(e, (int32_t)i);
        layer_commands(e, (int32_t)i, &m->layer[i]);
    }
    if (m->end == e->h->layers)
        head(e, &m->final, &m->output);
}

static void draft(struct emitter *e)
{
    const struct q4e_model *m = e->m;
    const struct q4e_hparams *h = e->h;
    st_program_add(e->p, ST_OP_draft_input, -1)->u.draft_input =
        (struct st_draft_input){.rows = e->rows,
                                .table = &m->draft.embed,
                                .hidden_in = e->p->wide_in,
                                .enorm = m->draft.enorm,
                                .hnorm = m->draft.hnorm,
                                .x = e->b.draft.x,
                                .streams = h->streams,
                                .hidden = h->hidden,
                                .per_stream = h->draft_norm_per_stream,
                                .eps = h->eps};
    struct st_products *p = products(e, -1, e->b.draft.x);
    p->n = &e->rows->n_stream;
    p->acts = e->b.draft.acts;
    product(p, &m->draft.eh, e->b.r);
    layer_commands(e, (int32_t)h->layers, &m->draft.layer);
    head(e, &m->draft.final, &m->draft.output);
}

enum strata_result q4e_place(const struct st_model *model, enum st_part part, const struct st_placement *placement,
                             const struct st_rows *rows, struct st_bump *state, struct st_bump *scratch,
                             struct st_program *p, struct strata_error *err)
{
    const struct q4e_model *m = model->data;
    if (part == ST_PART_DRAFT && (!m->h.draft_layers || m->end < m->h.layers))
        return st_fail(err, STRATA_E_MODEL, "%s: the model has no draft layer", model->gguf->path);
    if (!st_kv_row_bytes(placement->kv, m->h.head_dim))
        return st_fail(err, STRATA_E_UNSUPPORTED, "%s: heads of %u elements do not fit this type of KV cache",
                       model->gguf->path, m->h.head_dim);
    struct emitter e = {.m = m, .h = &m->h, .at = placement, .rows = rows, .state = state, .scratch = scratch, .p = p};
    take_buffers(&e, part);
    if (part == ST_PART_TRUNK)
        trunk(&e);
    else
        draft(&e);
    if (p->failed)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for the command list", model->gguf->path);
    if (state->overflow || scratch->overflow)
        return st_fail(err, STRATA_E_LIMIT, "%s: buffers for %u tokens of context do not fit in memory",
                       model->gguf->path, placement->context);
    return STRATA_OK;
}

static void dims(const struct st_model *model, struct st_model_dims *out)
{
    const struct q4e_model *m = model->data;
    *out = (struct st_model_dims){.layers = m->h.layers,
                                  .hidden = m->h.hidden,
                                  .wide = m->h.streams * m->h.hidden,
                                  .vocabulary = m->h.vocabulary,
                                  .embeddings = m->embed.rows,
                                  .context = m->h.context,
                                  .draft = m->h.draft_layers > 0 && m->end == m->h.layers,
                                  .experts = m->h.experts};
}

static void ngram_table(const struct st_model *model, struct st_ngram_table *out)
{
    const struct q4e_model *m = model->data;
    *out = (struct st_ngram_table){0};
    if (m->h.ngram_layer != UINT32_MAX)
        *out = (struct st_ngram_table){
            .hash = &m->h.hash, .table = &m->ngram.table, .gguf = m->ngram.file ? m->ngram.file : model->gguf,
            .tensor = st_gguf_tensor(m->ngram.file ? m->ngram.file : model->gguf, Q4E_NGRAM_TABLE), .layer = m->h.ngram_layer};
}

static const struct st_weight *embedding(const struct st_model *model, enum st_part part)
{
    const struct q4e_model *m = model->data;
    return part == ST_PART_DRAFT ? &m->draft.embed : &m->embed;
}

const struct st_family st_family_qwen4exp = {.architecture = "qwen4exp",
                                             .open = q4e_open,
                                             .close = q4e_close,
                                             .dims = dims,
                                             .ngram = ngram_table,
                                             .embedding = embedding,
                                             .place = q4e_place};
