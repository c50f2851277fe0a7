/* The llama family: dense decoders with one residual stream (Llama 2 and 3, SmolLM2 and others that are written under
 * this architecture name).
 *
 *     x = embedding
 *     per layer: x += attention(norm(x)); x += down(silu(gate norm(x)) * (up norm(x)))
 *     logits = output . norm(x)
 *
 * Rotation of neighbouring pairs (the files hold query and key rows in the order for it), optional frequency factors
 * (rope_freqs.weight). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/multiply.h"
#include "kernel/qsa_scratch.h"
#include "model/load.h"
#include "model/model.h"

#define PREFIX "llama."

struct llama_layer {
    float *attn_norm, *ffn_norm;
    struct st_weight q, k, v, out, gate, up, down;
};

struct llama_model {
    uint32_t first, end; /* layers that are bound here */
    uint32_t layers, hidden, context, vocabulary, heads, kv_heads, head_dim, ffn;
    float eps;
    struct st_rope rope;
    double theta;
    struct st_weight embed, output;
    float *output_norm;
    struct llama_layer *layer;
    struct st_owned owned;
};

static enum strata_result read_rope(const struct st_gguf *g, struct llama_model *m, struct strata_error *err)
{
    double theta;
    uint32_t rot;
    enum strata_result r = st_gguf_f64_or(g, PREFIX "rope.freq_base", 10000, &theta, err);
    if (!r)
        r = st_gguf_u32_or(g, PREFIX "rope.dimension_count", m->head_dim, &rot, err);
    if (r)
        return r;
    if (!(theta > 1 && theta < 1e12) || rot == 0 || rot % 2 || rot > m->head_dim || rot > ST_ROT_MAX)
        return st_fail(err, STRATA_E_MODEL, "%s: rope.freq_base %g or rope.dimension_count %u is out of range", g->path,
                       theta, rot);
    if (st_gguf_key(g, PREFIX "rope.scaling.type")) {
        const char *type;
        size_t size;
        r = st_gguf_string(g, PREFIX "rope.scaling.type", &type, &size, err);
        if (r)
            return r;
        if (!(size == 4 && !memcmp(type, "none", 4)))
            return st_fail(err, STRATA_E_UNSUPPORTED,
                           "%s: rope.scaling.type is set; only files without scaling are supported", g->path);
    }
    m->theta = theta;
    m->rope = (struct st_rope){.rot = rot, .neighbours = true};
    st_rope_set(&m->rope, theta, m->context, 0);
    return STRATA_OK;
}

static enum strata_result read_sizes(const struct st_gguf *g, struct llama_model *m, struct strata_error *err)
{
    double eps;
    enum strata_result r = st_key_u32(g, PREFIX "block_count", 1, 1024, &m->layers, err);
    if (!r)
        r = st_key_u32(g, PREFIX "embedding_length", 1, 1u << 20, &m->hidden, err);
    if (!r)
        r = st_key_u32(g, PREFIX "context_length", 1, 1u << 30, &m->context, err);
    if (!r)
        r = st_key_per_layer(g, PREFIX "attention.head_count", 65536, &m->heads, err);
    m->kv_heads = m->heads;
    if (!r && st_gguf_key(g, PREFIX "attention.head_count_kv"))
        r = st_key_per_layer(g, PREFIX "attention.head_count_kv", 65536, &m->kv_heads, err);
    if (!r)
        r = st_gguf_u32_or(g, PREFIX "attention.key_length", m->hidden / m->heads, &m->head_dim, err);
    if (!r)
        r = st_key_per_layer(g, PREFIX "feed_forward_length", 1u << 20, &m->ffn, err);
    if (!r)
        r = st_gguf_f64(g, PREFIX "attention.layer_norm_rms_epsilon", &eps, err);
    if (r)
        return r;
    uint32_t experts;
    r = st_gguf_u32_or(g, PREFIX "expert_count", 0, &experts, err);
    if (!r && experts)
        r = st_fail(err, STRATA_E_UNSUPPORTED, "%s: llama with %u experts is not supported", g->path, experts);
    if (!r && (m->head_dim == 0 || m->head_dim > ST_QSA_DIM_MAX || m->heads % m->kv_heads ||
               m->heads / m->kv_heads > ST_QSA_GROUP_MAX || !(eps >= 0 && eps < 1)))
        r = st_fail(err, STRATA_E_MODEL, "%s: %u heads of %u over %u key heads, or epsilon %g, are out of range",
                    g->path, m->heads, m->head_dim, m->kv_heads, eps);
    m->eps = (float)eps;
    return r ? r : read_rope(g, m, err);
}

static enum strata_result layer_tensors(struct st_loader *l, struct llama_model *m, uint32_t b)
{
    struct llama_layer *y = &m->layer[b];
    uint64_t q = (uint64_t)m->heads * m->head_dim, kv = (uint64_t)m->kv_heads * m->head_dim;
    const struct {
        const char *tail;
        uint64_t cols, rows;
        struct st_weight *w;
    } matrices[] = {{"attn_q.weight", m->hidden, q, &y->q},           {"attn_k.weight", m->hidden, kv, &y->k},
                    {"attn_v.weight", m->hidden, kv, &y->v},          {"attn_output.weight", q, m->hidden, &y->out},
                    {"ffn_gate.weight", m->hidden, m->ffn, &y->gate}, {"ffn_up.weight", m->hidden, m->ffn, &y->up},
                    {"ffn_down.weight", m->ffn, m->hidden, &y->down}};
    enum strata_result r = st_load_block_floats(l, b, "attn_norm.weight", m->hidden, &y->attn_norm);
    if (!r)
        r = st_load_block_floats(l, b, "ffn_norm.weight", m->hidden, &y->ffn_norm);
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices && !r; i++)
        r = st_load_block_matrix(l, b, matrices[i].tail, matrices[i].cols, matrices[i].rows, 0, matrices[i].w);
    return r;
}

static enum strata_result tensors(struct st_loader *l, struct llama_model *m)
{
    const struct st_gguf *g = l->g;
    const struct st_gguf_tensor *embed = st_gguf_tensor(g, "token_embd.weight");
    if (!embed)
        return st_missing_tensor(l, "token_embd.weight");
    m->vocabulary = (uint32_t)embed->ne[1];
    m->first = l->options->first;
    m->end = l->options->end ? l->options->end : m->layers;
    if (m->first >= m->end || m->end > m->layers || embed->ne[1] > INT32_MAX)
        return st_fail(l->err, STRATA_E_ARGUMENT, "%s: layers %u..%u or the vocabulary are out of range", g->path,
                       m->first, m->end);
    enum strata_result r = st_load_host_matrix(l, "token_embd.weight", m->hidden, m->vocabulary, &m->embed);
    if (!r && m->end == m->layers)
        r = st_load_matrix(l, st_gguf_tensor(g, "output.weight") ? "output.weight" : "token_embd.weight", m->hidden,
                           m->vocabulary, 0, &m->output);
    if (!r && m->end == m->layers)
        r = st_load_floats(l, "output_norm.weight", m->hidden, &m->output_norm);
    if (!r && l->options->yarn > 1) {
        if (st_gguf_tensor(g, "rope_freqs.weight"))
            r = st_fail(l->err, STRATA_E_UNSUPPORTED,
                        "%s: the model scales its rotation already (rope_freqs.weight); --rope-scaling cannot go with that", g->path);
        st_rope_set(&m->rope, m->theta, m->context, l->options->yarn);
    }
    if (!r && st_gguf_tensor(g, "rope_freqs.weight")) {
        float *factor;
        r = st_load_host_floats(l, "rope_freqs.weight", m->rope.rot / 2, &factor);
        for (uint32_t i = 0; i < m->rope.rot / 2 && !r; i++)
            m->rope.freq[i] /= factor[i];
    }
    if (!r && !(m->layer = calloc(m->layers, sizeof *m->layer)))
        r = st_fail(l->err, STRATA_E_MEMORY, "%s: no memory for %u layers", g->path, m->layers);
    for (uint32_t i = m->first; i < m->end && !r; i++)
        r = layer_tensors(l, m, i);
    if (!r)
        r = st_load_rope(l, &m->rope);
    return r ? r : st_loader_end(l);
}

static void llama_close(struct st_model *model)
{
    struct llama_model *m = model->data;
    if (!m)
        return;
    st_owned_free(&m->owned);
    free(m->layer);
    free(m);
    model->data = NULL;
}

static enum strata_result llama_open(struct st_model *out, const struct st_model_options *o, struct strata_error *err)
{
    if (out->draft_gguf)
        return st_fail(err, STRATA_E_UNSUPPORTED, "%s: this architecture has no draft layer", out->gguf->path);
    struct llama_model *m = calloc(1, sizeof *m);
    if (!m)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for the model", out->gguf->path);
    out->data = m;
    struct st_loader l = {.owned = &m->owned, .model = m, .options = o, .err = err};
    enum strata_result r = read_sizes(out->gguf, m, err);
    if (!r)
        r = st_loader_begin(&l, out->gguf);
    if (!r)
        r = tensors(&l, m);
    free(l.used);
    if (r)
        llama_close(out);
    return r;
}

static void llama_dims(const struct st_model *model, struct st_model_dims *out)
{
    const struct llama_model *m = model->data;
    *out = (struct st_model_dims){.layers = m->layers,
                                  .hidden = m->hidden,
                                  .wide = m->hidden,
                                  .vocabulary = m->vocabulary,
                                  .embeddings = m->embed.rows,
                                  .context = m->context};
}

/* ---- forward pass ---- */

struct emitter {
    const struct llama_model *m;
    const struct st_placement *at;
    const struct st_rows *rows;
    struct st_bump *state;
    struct st_program *p;
    float *x, *y, *q, *k, *v, *att, *o, *gate, *up, *x_out;
    int32_t *chosen_count;
    struct st_act_buffer *acts;
};

static void *take(struct st_bump *s, uint64_t rows, uint64_t count)
{
    return st_bump_take(s, rows, count * sizeof(float));
}

static void norm(struct emitter *e, int32_t layer, const float *x, const float *gamma, float *y, const int32_t *n)
{
    st_program_add(e->p, ST_OP_norm, layer)->u.norm =
        (struct st_norm){.n = n, .x = x, .gamma = gamma, .y = y, .width = e->m->hidden, .eps = e->m->eps};
}

static struct st_products *products(struct emitter *e, int32_t layer, const float *x)
{
    struct st_products *p = &st_program_add(e->p, ST_OP_products, layer)->u.products;
    *p = (struct st_products){.n = &e->rows->n, .x = x, .acts = e->acts};
    return p;
}

static void product(struct st_products *p, const struct st_weight *w, float *y)
{
    p->ldx = w->cols;
    p->product[p->count++] = (struct st_product){.w = w, .y = y, .ldy = w->rows};
}

static void add(struct emitter *e, int32_t layer)
{
    st_program_add(e->p, ST_OP_add, layer)->u.add =
        (struct st_add){.n = &e->rows->n, .r = e->x, .o = e->o, .width = e->m->hidden};
}

static uint8_t *cache(struct emitter *e, size_t unit)
{
    uint64_t stride = e->at->context * unit;
    uint32_t heads = e->m->kv_heads;
    uint8_t *base = st_bump_take(e->state, (uint64_t)e->at->slots * heads, stride);
    st_program_add_piece(e->p, (struct st_state_piece){.base = base,
                                                       .slot_stride = stride * heads,
                                                       .outer_stride = stride,
                                                       .unit_bytes = unit,
                                                       .outer = heads,
                                                       .tokens_per_unit = 1});
    return base;
}

static void attention(struct emitter *e, int32_t layer, const struct llama_layer *y)
{
    const struct llama_model *m = e->m;
    size_t unit = st_kv_row_bytes(e->at->kv, m->head_dim);
    struct st_products *p = products(e, layer, e->y);
    product(p, &y->q, e->q);
    product(p, &y->k, e->k);
    product(p, &y->v, e->v);
    struct st_qsa *q = &st_program_add(e->p, ST_OP_qsa, layer)->u.qsa;
    *q = (struct st_qsa){.rows = e->rows,
                         .rope = &m->rope,
                         .q = e->q,
                         .k = e->k,
                         .v = e->v,
                         .k_cache = cache(e, unit),
                         .v_cache = cache(e, unit),
                         .chosen_count = e->chosen_count,
                         .out = e->att,
                         .kv = e->at->kv,
                         .kv_bytes = unit,
                         .heads = m->heads,
                         .kv_heads = m->kv_heads,
                         .head_dim = m->head_dim,
                         .context = e->at->context,
                         .eps = m->eps};
    size_t scratch = st_qsa_scratch_bytes(q);
    e->p->worker_scratch = scratch > e->p->worker_scratch ? scratch : e->p->worker_scratch;
    product(products(e, layer, e->att), &y->out, e->o);
    add(e, layer);
}

static void feed_forward(struct emitter *e, int32_t layer, const struct llama_layer *y)
{
    struct st_products *p = products(e, layer, e->y);
    product(p, &y->gate, e->gate);
    product(p, &y->up, e->up);
    st_program_add(e->p, ST_OP_swiglu, layer)->u.swiglu =
        (struct st_swiglu){.n = &e->rows->n, .gate = e->gate, .up = e->up, .width = e->m->ffn};
    product(products(e, layer, e->gate), &y->down, e->o);
    add(e, layer);
}

static void take_buffers(struct emitter *e, struct st_bump *s)
{
    const struct llama_model *m = e->m;
    uint64_t n = e->at->rows, q = (uint64_t)m->heads * m->head_dim, kv = (uint64_t)m->kv_heads * m->head_dim;
    uint64_t widest = m->hidden > m->ffn ? m->hidden : m->ffn;
    widest = q > widest ? q : widest;
    e->x = e->p->wide = take(s, n, m->hidden);
    e->y = take(s, n, m->hidden);
    e->o = take(s, n, m->hidden);
    e->q = take(s, n, q);
    e->k = take(s, n, kv);
    e->v = take(s, n, kv);
    e->att = take(s, n, q);
    e->gate = take(s, n, m->ffn);
    e->up = take(s, n, m->ffn);
    e->x_out = take(s, e->at->out_rows, m->hidden);
    e->p->logits = take(s, e->at->out_rows, m->output.rows);
    e->chosen_count = st_bump_take(s, n, sizeof(int32_t));
    e->acts = st_program_describe(e->p, sizeof *e->acts);
    size_t (*row_bytes)(enum st_act, size_t) = e->at->act_bytes ? e->at->act_bytes : st_act_bytes;
    st_act_buffer_place(e->acts, st_bump_take(s, 1, st_act_buffer_bytes(n, widest, row_bytes)), n, widest, row_bytes);
}

/* Logits of the rows that want them. */
static void head(struct emitter *e)
{
    st_program_add(e->p, ST_OP_select, -1)->u.select =
        (struct st_select){.rows = e->rows, .from = e->x, .to = e->x_out, .width = e->m->hidden};
    norm(e, -1, e->x_out, e->m->output_norm, e->x_out, &e->rows->n_out);
    struct st_products *p = products(e, -1, e->x_out);
    p->n = &e->rows->n_out;
    product(p, &e->m->output, e->p->logits);
}

static enum strata_result llama_place(const struct st_model *model, enum st_part part,
                                      const struct st_placement *placement, const struct st_rows *rows,
                                      struct st_bump *state, struct st_bump *scratch, struct st_program *p,
                                      struct strata_error *err)
{
    const struct llama_model *m = model->data;
    if (part != ST_PART_TRUNK)
        return st_fail(err, STRATA_E_MODEL, "%s: the model has no draft layer", model->gguf->path);
    if (!st_kv_row_bytes(placement->kv, m->head_dim))
        return st_fail(err, STRATA_E_UNSUPPORTED, "%s: heads of %u elements do not fit this type of KV cache",
                       model->gguf->path, m->head_dim);
    struct emitter e = {.m = m, .at = placement, .rows = rows, .state = state, .p = p};
    take_buffers(&e, scratch);
    if (m->first == 0)
        st_program_add(p, ST_OP_embed, -1)->u.embed =
            (struct st_embed){.rows = rows, .table = &m->embed, .r = e.x, .streams = 1};
    for (uint32_t i = m->first; i < m->end; i++) {
        norm(&e, (int32_t)i, e.x, m->layer[i].attn_norm, e.y, &rows->n);
        attention(&e, (int32_t)i, &m->layer[i]);
        norm(&e, (int32_t)i, e.x, m->layer[i].ffn_norm, e.y, &rows->n);
        feed_forward(&e, (int32_t)i, &m->layer[i]);
    }
    if (m->end == m->layers)
        head(&e);
    if (p->failed)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for the command list", model->gguf->path);
    if (state->overflow || scratch->overflow)
        return st_fail(err, STRATA_E_LIMIT, "%s: buffers for %u tokens of context do not fit in memory",
                       model->gguf->path, placement->context);
    return STRATA_OK;
}

static const struct st_weight *embedding(const struct st_model *model, enum st_part part)
{
    (void)part;
    return &((const struct llama_model *)model->data)->embed;
}

const struct st_family st_family_llama = {
    .architecture = "llama", .open = llama_open, .close = llama_close, .dims = llama_dims, .embedding = embedding, .place = llama_place};
