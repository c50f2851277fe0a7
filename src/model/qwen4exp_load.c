/* qwen4exp: hyper-parameters and tensors of GGUF files. Everything is checked here, so that the forward pass can rely
 * on it: ranges, shapes, types that fit their rows, ids inside the vocabulary, and that no tensor is left over. */
#include "model/qwen4exp.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "kernel/qsa_scratch.h"

#define PREFIX "qwen4exp."

enum { LAYERS_MAX = 1024, EXPERTS_MAX = 65536, USED_MAX = 256, STREAMS_MAX = 8, GDN_DIM_MAX = 512, TAPS_MAX = 64 };

static enum strata_result read_rope(const struct st_gguf *g, struct q4e_hparams *h, struct strata_error *err)
{
    uint32_t rot;
    double theta;
    int64_t *section;
    enum strata_result r = st_key_u32(g, PREFIX "rope.dimension_count", 2, ST_ROT_MAX, &rot, err);
    if (!r && (rot % 2 || rot > h->head_dim || rot > h->index_dim))
        r = st_fail(err, STRATA_E_MODEL, "%s: rope.dimension_count %u is odd or above a head's %u or the index's %u",
                    g->path, rot, h->head_dim, h->index_dim);
    if (!r)
        r = st_gguf_f64(g, PREFIX "rope.freq_base", &theta, err);
    if (!r && !(theta > 1 && theta < 1e12))
        r = st_fail(err, STRATA_E_MODEL, "%s: rope.freq_base %g is out of range", g->path, theta);
    if (!r)
        r = st_key_ints(g, PREFIX "rope.dimension_sections", 4, 0, rot, &section, err);
    if (r)
        return r;
    h->rope.rot = rot;
    h->rope_theta = theta;
    st_rope_set(&h->rope, theta, h->context, 0);
    for (uint32_t i = 0; i < rot / 2; i++) {
        /* Sections are interleaved: pairs 1, 4, 7, ... turn by height, 2, 5, 8, ... by width, as many as the sections
         * say. */
        h->rope.axis[i] = i % 3 == 1 && i < 3 * section[1] ? 1 : i % 3 == 2 && i < 3 * section[2] ? 2 : 0;
    }
    free(section);
    return STRATA_OK;
}

static enum strata_result read_ngram(const struct st_gguf *g, struct q4e_hparams *h, struct strata_error *err)
{
    h->ngram_layer = UINT32_MAX;
    if (!st_gguf_key(g, PREFIX "ple.layers"))
        return STRATA_OK;
    int64_t *layer;
    uint32_t order, reset;
    struct st_ngram_hash *hash = &h->hash;
    enum strata_result r = st_key_ints(g, PREFIX "ple.layers", 1, 0, (int64_t)h->layers - 1, &layer, err);
    if (r)
        return r;
    h->ngram_layer = (uint32_t)layer[0];
    free(layer);
    r = st_key_u32(g, PREFIX "ple.ngram_size", 2, ST_HISTORY + 1, &order, err);
    if (!r)
        r = st_key_u32(g, PREFIX "ple.heads_per_ngram", 1, ST_NGRAM_HEADS, &hash->heads_per_order, err);
    if (!r && (hash->heads = hash->heads_per_order * (order - 1)) > ST_NGRAM_HEADS)
        r = st_fail(err, STRATA_E_MODEL, "%s: %u n-gram heads, more than %u", g->path, hash->heads, ST_NGRAM_HEADS);
    if (!r)
        r = st_key_u32(g, PREFIX "ple.conv_kernel", 1, TAPS_MAX, &h->ngram_taps, err);
    if (!r)
        r = st_key_u32(g, PREFIX "ple.eos_token_id", 0, h->vocabulary - 1, &reset, err);
    if (!r)
        r = st_key_u32(g, PREFIX "embedding_length_per_layer_input", 1, 65536, &h->ngram_width, err);
    if (!r)
        r = st_key_u64s(g, PREFIX "ple.layer_multipliers", order, hash->multiplier, err);
    if (!r)
        r = st_key_u64s(g, PREFIX "ple.head_offsets", hash->heads, hash->offset, err);
    if (!r)
        r = st_key_u64s(g, PREFIX "ple.head_vocab_sizes", hash->heads, hash->size, err);
    for (uint32_t i = 0; i < hash->heads && !r; i++)
        if (hash->size[i] == 0)
            r = st_fail(err, STRATA_E_MODEL, "%s: ple.head_vocab_sizes: entry %u is 0", g->path, i);
    hash->order = order;
    hash->reset = (int32_t)reset;
    return r;
}

/* Which layers are recurrent: a list, or every layer but each interval-th. *out is freed by the caller. */
static enum strata_result read_pattern(const struct st_gguf *g, uint32_t blocks, bool **out, struct strata_error *err)
{
    const char *key = PREFIX "attention.recurrent_layers";
    if (st_gguf_key(g, key)) {
        size_t n;
        enum strata_result r = st_gguf_bools(g, key, out, &n, err);
        if (!r && n != blocks) {
            free(*out);
            r = st_fail(err, STRATA_E_MODEL, "%s: %s has %zu entries, not %u", g->path, key, n, blocks);
        }
        return r;
    }
    uint32_t interval;
    enum strata_result r = st_gguf_u32_or(g, PREFIX "full_attention_interval", 4, &interval, err);
    if (r)
        return r;
    if (interval == 0)
        return st_fail(err, STRATA_E_MODEL, "%s: full_attention_interval is 0", g->path);
    if (!(*out = malloc(blocks * sizeof **out)))
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for the layer pattern", g->path);
    for (uint32_t i = 0; i < blocks; i++)
        (*out)[i] = (i + 1) % interval != 0;
    return STRATA_OK;
}

static enum strata_result read_gdn(const struct st_gguf *g, struct q4e_hparams *h, struct strata_error *err)
{
    uint32_t inner;
    enum strata_result r = st_key_u32(g, PREFIX "ssm.conv_kernel", 2, TAPS_MAX, &h->taps, err);
    if (!r)
        r = st_key_u32(g, PREFIX "ssm.state_size", 1, GDN_DIM_MAX, &h->key_dim, err);
    if (!r)
        r = st_key_u32(g, PREFIX "ssm.group_count", 1, 4096, &h->key_heads, err);
    if (!r)
        r = st_key_u32(g, PREFIX "ssm.time_step_rank", 1, 4096, &h->value_heads, err);
    if (!r)
        r = st_key_u32(g, PREFIX "ssm.inner_size", 1, 1u << 24, &inner, err);
    if (!r && (inner % h->value_heads || inner / h->value_heads > GDN_DIM_MAX || h->value_heads % h->key_heads))
        r = st_fail(err, STRATA_E_MODEL,
                    "%s: ssm: %u value heads do not divide inner size %u, or %u key heads do not divide them", g->path,
                    h->value_heads, inner, h->key_heads);
    if (!r)
        h->value_dim = inner / h->value_heads;
    return r;
}

static enum strata_result read_attention(const struct st_gguf *g, struct q4e_hparams *h, struct strata_error *err)
{
    uint32_t value_length;
    enum strata_result r = st_key_per_layer(g, PREFIX "attention.head_count", 65536, &h->heads, err);
    if (!r)
        r = st_key_per_layer(g, PREFIX "attention.head_count_kv", 65536, &h->kv_heads, err);
    if (!r)
        r = st_key_u32(g, PREFIX "attention.key_length", 1, ST_QSA_DIM_MAX, &h->head_dim, err);
    if (!r)
        r = st_key_u32(g, PREFIX "attention.value_length", 1, ST_QSA_DIM_MAX, &value_length, err);
    if (!r && value_length != h->head_dim)
        r = st_fail(err, STRATA_E_MODEL, "%s: attention.value_length %u differs from key_length %u", g->path,
                    value_length, h->head_dim);
    if (!r && (h->heads % h->kv_heads || h->heads / h->kv_heads > ST_QSA_GROUP_MAX))
        r = st_fail(err, STRATA_E_MODEL, "%s: %u query heads do not share %u key heads evenly, %d each at most",
                    g->path, h->heads, h->kv_heads, ST_QSA_GROUP_MAX);
    if (!r)
        r = st_key_u32(g, PREFIX "attention.indexer.head_count", 1, 1024, &h->index_heads, err);
    if (!r)
        r = st_key_u32(g, PREFIX "attention.indexer.key_length", 1, ST_QSA_DIM_MAX, &h->index_dim, err);
    if (!r)
        r = st_key_u32(g, PREFIX "attention.indexer.top_k", 1, 1u << 24, &h->index_budget, err);
    return r;
}

enum strata_result q4e_read_hparams(const struct st_gguf *g, struct q4e_hparams *h, bool **recurrent,
                                    struct strata_error *err)
{
    uint32_t blocks;
    double eps;
    enum strata_result r = st_key_u32(g, PREFIX "block_count", 1, LAYERS_MAX, &blocks, err);
    if (!r)
        r = st_gguf_u32_or(g, PREFIX "nextn_predict_layers", 0, &h->draft_layers, err);
    if (!r && (h->draft_layers > 1 || h->draft_layers > blocks))
        r = st_fail(err, STRATA_E_UNSUPPORTED, "%s: nextn_predict_layers is %u; one draft layer at most", g->path,
                    h->draft_layers);
    if (r)
        return r;
    h->layers = blocks - h->draft_layers;
    r = st_key_u32(g, PREFIX "embedding_length", 1, 1u << 20, &h->hidden, err);
    if (!r)
        r = st_key_u32(g, PREFIX "context_length", 1, 1u << 30, &h->context, err);
    if (!r)
        r = st_key_u32(g, PREFIX "hyper_connection.count", 2, STREAMS_MAX, &h->streams, err);
    if (!r)
        r = st_key_u32(g, PREFIX "hyper_connection.low_rank", 1, 65536, &h->rank, err);
    if (!r)
        r = st_gguf_f64(g, PREFIX "attention.layer_norm_rms_epsilon", &eps, err);
    if (!r && !(eps >= 0 && eps < 1))
        r = st_fail(err, STRATA_E_MODEL, "%s: attention.layer_norm_rms_epsilon %g is not in 0..1", g->path, eps);
    if (!r)
        r = read_attention(g, h, err);
    if (!r)
        r = read_rope(g, h, err);
    if (!r)
        r = read_gdn(g, h, err);
    if (!r)
        r = st_key_u32(g, PREFIX "expert_count", 1, EXPERTS_MAX, &h->experts, err);
    if (!r)
        r = st_key_u32(g, PREFIX "expert_used_count", 1, h->experts < USED_MAX ? h->experts : USED_MAX, &h->used, err);
    if (!r)
        r = st_key_u32(g, PREFIX "expert_feed_forward_length", 1, 1u << 20, &h->expert_width, err);
    if (!r)
        r = st_key_u32(g, PREFIX "expert_shared_feed_forward_length", 1, 1u << 20, &h->shared_width, err);
    if (!r)
        r = st_gguf_bool_or(g, PREFIX "nextn_hnorm_per_stream", false, &h->draft_norm_per_stream, err);
    if (r)
        return r;
    h->eps = (float)eps;
    return read_pattern(g, blocks, recurrent, err);
}

static struct q4e_model *q4e(struct st_loader *l)
{
    return l->model;
}

static enum strata_result gated(struct st_loader *l, uint32_t block, const char *side, struct q4e_gated *out)
{
    const struct q4e_hparams *h = &q4e(l)->h;
    uint64_t wide = (uint64_t)h->streams * h->hidden;
    char tail[64], fused[96], down[96], inject[96], up[96];
    snprintf(tail, sizeof tail, "hc_%s_norm.weight", side);
    enum strata_result r = st_load_block_floats(l, block, tail, wide, &out->gamma);
    snprintf(fused, sizeof fused, "blk.%u.hc_%s_down_inject.weight", block, side);
    snprintf(down, sizeof down, "blk.%u.hc_%s_down.weight", block, side);
    snprintf(inject, sizeof inject, "blk.%u.hc_%s_inject.weight", block, side);
    snprintf(up, sizeof up, "blk.%u.hc_%s_up.weight", block, side);
    if (!r)
        r = st_load_pair(l, fused, down, inject, wide, h->rank, h->streams, 0, &out->down, &out->inject);
    return r ? r : st_load_matrix(l, up, h->rank, wide, 0, &out->up);
}

/* The contraction at the end: names "<stem>norm.weight" and so on. */
static enum strata_result contraction(struct st_loader *l, const char *stem, struct q4e_gated *out)
{
    const struct q4e_hparams *h = &q4e(l)->h;
    uint64_t wide = (uint64_t)h->streams * h->hidden;
    char name[96];
    snprintf(name, sizeof name, "%snorm.weight", stem);
    enum strata_result r = st_load_floats(l, name, wide, &out->gamma);
    snprintf(name, sizeof name, "%sdown.weight", stem);
    if (!r)
        r = st_load_matrix(l, name, wide, h->rank, 0, &out->down);
    snprintf(name, sizeof name, "%sup.weight", stem);
    return r ? r : st_load_matrix(l, name, h->rank, wide, 0, &out->up);
}

static enum strata_result recurrent_tensors(struct st_loader *l, uint32_t b, struct q4e_layer *y)
{
    const struct q4e_hparams *h = &q4e(l)->h;
    uint64_t inner = (uint64_t)h->value_heads * h->value_dim;
    uint64_t channels = 2ull * h->key_heads * h->key_dim + inner;
    char name[96];
    enum strata_result r = st_load_block_matrix(l, b, "attn_qkv.weight", h->hidden, channels, 0, &y->qkv);
    if (!r)
        r = st_load_block_matrix(l, b, "attn_gate.weight", h->hidden, inner, 0, &y->gate);
    if (!r)
        r = st_load_block_matrix(l, b, "ssm_beta.weight", h->hidden, h->value_heads, 0, &y->beta);
    if (!r)
        r = st_load_block_matrix(l, b, "ssm_alpha.weight", h->hidden, h->value_heads, 0, &y->alpha);
    if (!r)
        r = st_load_block_floats(l, b, "ssm_a", h->value_heads, &y->ssm_a);
    if (!r)
        r = st_load_block_floats(l, b, "ssm_dt.bias", h->value_heads, &y->dt_bias);
    if (!r)
        r = st_load_conv(l, st_block_name(name, b, "ssm_conv1d.weight"), h->taps, channels, &y->conv);
    if (!r)
        r = st_load_block_floats(l, b, "ssm_norm.weight", h->value_dim, &y->ssm_norm);
    return r ? r : st_load_block_matrix(l, b, "ssm_out.weight", inner, h->hidden, 0, &y->out);
}

static enum strata_result attention_tensors(struct st_loader *l, uint32_t b, struct q4e_layer *y)
{
    const struct q4e_hparams *h = &q4e(l)->h;
    uint64_t q = (uint64_t)h->heads * h->head_dim, kv = (uint64_t)h->kv_heads * h->head_dim;
    enum strata_result r = st_load_block_matrix(l, b, "attn_q.weight", h->hidden, 2 * q, 0, &y->q);
    if (!r)
        r = st_load_block_matrix(l, b, "attn_k.weight", h->hidden, kv, 0, &y->k);
    if (!r)
        r = st_load_block_matrix(l, b, "attn_v.weight", h->hidden, kv, 0, &y->v);
    if (!r)
        r = st_load_block_matrix(l, b, "attn_output.weight", q, h->hidden, 0, &y->out);
    if (!r)
        r = st_load_block_floats(l, b, "attn_q_norm.weight", h->head_dim, &y->q_norm);
    if (!r)
        r = st_load_block_floats(l, b, "attn_k_norm.weight", h->head_dim, &y->k_norm);
    if (!r)
        r = st_load_block_matrix(l, b, "indexer.q_proj.weight", h->hidden, (uint64_t)h->index_heads * h->index_dim, 0,
                                 &y->index_q);
    if (!r)
        r = st_load_block_matrix(l, b, "indexer.k_proj.weight", h->hidden, h->index_dim, 0, &y->index_k);
    if (!r)
        r = st_load_block_floats(l, b, "indexer.q_norm.weight", h->index_dim, &y->index_q_norm);
    return r ? r : st_load_block_floats(l, b, "indexer.k_norm.weight", h->index_dim, &y->index_k_norm);
}

static enum strata_result expert_tensors(struct st_loader *l, uint32_t b, struct q4e_layer *y)
{
    const struct q4e_hparams *h = &q4e(l)->h;
    char fused[96], gate[96], up[96];
    st_block_name(fused, b, "ffn_gate_up_exps.weight");
    st_block_name(gate, b, "ffn_gate_exps.weight");
    st_block_name(up, b, "ffn_up_exps.weight");
    enum strata_result r = st_load_pair(l, fused, gate, up, h->hidden, h->expert_width, h->expert_width, h->experts,
                                        &y->experts_gate, &y->experts_up);
    if (!r)
        r = st_load_block_matrix(l, b, "ffn_down_exps.weight", h->expert_width, h->hidden, h->experts,
                                 &y->experts_down);
    if (!r)
        r = st_load_block_matrix(l, b, "ffn_gate_inp.weight", h->hidden, h->experts, 0, &y->router);
    if (!r)
        r = st_load_block_matrix(l, b, "ffn_gate_inp_shexp.weight", h->hidden, 1, 0, &y->shared_router);
    if (!r)
        r = st_load_block_matrix(l, b, "ffn_gate_shexp.weight", h->hidden, h->shared_width, 0, &y->shared_gate);
    if (!r)
        r = st_load_block_matrix(l, b, "ffn_up_shexp.weight", h->hidden, h->shared_width, 0, &y->shared_up);
    return r ? r : st_load_block_matrix(l, b, "ffn_down_shexp.weight", h->shared_width, h->hidden, 0, &y->shared_down);
}

static enum strata_result layer_tensors(struct st_loader *l, uint32_t b, struct q4e_layer *y)
{
    enum strata_result r = gated(l, b, "attn", &y->attn);
    if (!r)
        r = gated(l, b, "ffn", &y->ffn);
    if (!r)
        r = y->recurrent ? recurrent_tensors(l, b, y) : attention_tensors(l, b, y);
    return r ? r : expert_tensors(l, b, y);
}

/* Tokens per index block of each layer. Some converters write 0 for layers that have an index all the same (trunks
 * re-saved under another layer name, draft layers); the published block is 4 tokens, so 0 and a missing key mean that
 * here. */
static enum strata_result ratios(const struct st_gguf *g, struct q4e_model *m, uint32_t blocks, bool draft_only,
                                 struct strata_error *err)
{
    const char *key = PREFIX "attention.compress_ratios";
    int64_t *v = NULL;
    size_t n = 0;
    enum strata_result r = st_gguf_key(g, key) ? st_gguf_ints(g, key, &v, &n, err) : STRATA_OK;
    if (!r && n > 1 && n != blocks)
        r = st_fail(err, STRATA_E_MODEL, "%s: %s has %zu entries, not %u", g->path, key, n, blocks);
    for (size_t i = 0; i < n && !r; i++)
        if (v[i] < 0 || v[i] > ST_QSA_RING / 2)
            r = st_fail(err, STRATA_E_UNSUPPORTED, "%s: %s: entry %zu is %lld, not in 0..%d", g->path, key, i,
                        (long long)v[i], ST_QSA_RING / 2);
    for (uint32_t i = draft_only ? blocks - 1 : 0; i < blocks && !r; i++) {
        int64_t ratio = n == 0 ? 0 : v[n == 1 ? 0 : i];
        struct q4e_layer *y = i < m->h.layers ? &m->layer[i] : &m->draft.layer;
        y->ratio = ratio ? (uint32_t)ratio : 4;
        if (!y->recurrent && m->h.index_budget % y->ratio)
            r = st_fail(err, STRATA_E_MODEL, "%s: index budget %u is no multiple of the block of %u tokens", g->path,
                        m->h.index_budget, y->ratio);
    }
    free(v);
    return r;
}

static enum strata_result ngram_tensors(struct st_loader *l)
{
    struct q4e_model *m = q4e(l);
    const struct q4e_hparams *h = &m->h;
    if (h->ngram_layer == UINT32_MAX)
        return STRATA_OK;
    const char *name = Q4E_NGRAM_TABLE;
    /* The table may have a file of its own, whatever else the model's file holds. */
    struct st_loader from = *l;
    m->ngram.file = l->options->ngram ? l->options->ngram : l->g;
    const struct st_gguf_tensor *t = st_gguf_tensor(m->ngram.file, name), *unused = st_gguf_tensor(l->g, name);
    enum strata_result r = m->ngram.file == l->g ? STRATA_OK : st_loader_begin(&from, m->ngram.file);
    if (!r && !t)
        r = st_missing_tensor(&from, name);
    if (!r)
        r = st_load_host_matrix(&from, name, h->ngram_width, t->ne[1], &m->ngram.table);
    if (m->ngram.file != l->g)
        free(from.used);
    if (unused)
        l->used[unused - l->g->tensors] = true;
    for (uint32_t i = 0; i < h->hash.heads && !r; i++)
        if (h->hash.offset[i] > t->ne[1] || h->hash.size[i] > t->ne[1] - h->hash.offset[i])
            r = st_fail(l->err, STRATA_E_MODEL, "%s: n-gram head %u reaches past the %llu rows of tensor %s",
                        from.g->path, i, (unsigned long long)t->ne[1], name);
    uint64_t in = (uint64_t)h->hash.heads * h->ngram_width, wide = (uint64_t)h->streams * h->hidden;
    uint32_t b = h->ngram_layer;
    char conv_name[96];
    if (!r)
        r = st_load_block_matrix(l, b, "ple_key.weight", in, wide, 0, &m->ngram.key);
    if (!r)
        r = st_load_block_matrix(l, b, "ple_value.weight", in, h->hidden, 0, &m->ngram.value);
    if (!r)
        r = st_load_block_floats(l, b, "ple_norm_key.weight", wide, &m->ngram.norm_key);
    if (!r)
        r = st_load_block_floats(l, b, "ple_norm_query.weight", wide, &m->ngram.norm_query);
    if (!r)
        r = st_load_block_floats(l, b, "ple_norm_conv.weight", wide, &m->ngram.norm_conv);
    return r ? r
             : st_load_conv(l, st_block_name(conv_name, b, "ple_conv1d.weight"), h->ngram_taps, wide, &m->ngram.conv);
}

/* Embedding or head: as many rows as the tokenizer has tokens, or as the tensor says in files without a tokenizer. */
static enum strata_result vocabulary_matrix(struct st_loader *l, const char *name, uint64_t rows, struct st_weight *w)
{
    return st_load_matrix(l, name, q4e(l)->h.hidden, rows, 0, w);
}

static enum strata_result draft_tensors(struct st_loader *l, uint32_t b)
{
    struct q4e_model *m = q4e(l);
    const struct q4e_hparams *h = &m->h;
    char name[96];
    m->draft.embed = m->embed;
    m->draft.output = m->output;
    const char *embed[2] = {st_block_name(name, b, "nextn.embed_tokens.weight"), "token_embd.weight"};
    enum strata_result r = STRATA_OK;
    bool own_file = l->g->n_tensors && !st_gguf_tensor(l->g, "output_hc_norm.weight");
    for (int i = 0; i < (own_file ? 2 : 1) && !r; i++)
        if (st_gguf_tensor(l->g, embed[i])) {
            r = st_load_host_matrix(l, embed[i], h->hidden, h->vocabulary, &m->draft.embed);
            break;
        }
    char head_name[96];
    const char *head[2] = {st_block_name(head_name, b, "nextn.shared_head_head.weight"), "output.weight"};
    for (int i = 0; i < (own_file ? 2 : 1) && !r; i++)
        if (st_gguf_tensor(l->g, head[i])) {
            r = vocabulary_matrix(l, head[i], h->vocabulary, &m->draft.output);
            break;
        }
    if (!r)
        r = st_load_block_matrix(l, b, "nextn.eh_proj.weight", 2ull * h->hidden, h->hidden, 0, &m->draft.eh);
    if (!r)
        r = st_load_block_floats(l, b, "nextn.enorm.weight", h->hidden, &m->draft.enorm);
    if (!r)
        r = st_load_block_floats(l, b, "nextn.hnorm.weight", (uint64_t)h->streams * h->hidden, &m->draft.hnorm);
    char stem[64];
    snprintf(stem, sizeof stem, "blk.%u.nextn.hc_head_", b);
    if (!r)
        r = contraction(l, stem, &m->draft.final);
    return r ? r : layer_tensors(l, b, &m->draft.layer);
}

/* The contraction and the output; without a tensor of its own the output is the embedding. */
static enum strata_result head_tensors(struct st_loader *l)
{
    struct q4e_model *m = q4e(l);
    const char *name = st_gguf_tensor(l->g, "output.weight") ? "output.weight" : "token_embd.weight";
    enum strata_result r = vocabulary_matrix(l, name, m->h.vocabulary, &m->output);
    return r ? r : contraction(l, "output_hc_", &m->final);
}

static enum strata_result open_trunk(struct st_loader *l)
{
    struct q4e_model *m = q4e(l);
    struct q4e_hparams *h = &m->h;
    const struct st_gguf *g = l->g;
    bool *recurrent = NULL;
    enum strata_result r = q4e_read_hparams(g, h, &recurrent, l->err);
    if (r)
        return r;
    const struct st_gguf_tensor *embed = st_gguf_tensor(g, "token_embd.weight");
    if (!embed)
        r = st_missing_tensor(l, "token_embd.weight");
    else if (embed->ne[1] > INT32_MAX)
        r = st_fail(l->err, STRATA_E_UNSUPPORTED, "%s: token_embd.weight has more than 2^31-1 rows", g->path);
    else
        h->vocabulary = (uint32_t)embed->ne[1];
    if (!r)
        r = read_ngram(g, h, l->err);
    if (!r && !(m->layer = calloc(h->layers, sizeof *m->layer)))
        r = st_fail(l->err, STRATA_E_MEMORY, "%s: no memory for %u layers", g->path, h->layers);
    for (uint32_t i = 0; i < h->layers && !r; i++)
        m->layer[i].recurrent = recurrent[i];
    free(recurrent);
    if (!r)
        r = ratios(g, m, h->layers + h->draft_layers, false, l->err);
    m->first = l->options->first;
    m->end = l->options->end ? l->options->end : h->layers;
    if (!r && (m->first >= m->end || m->end > h->layers))
        r = st_fail(l->err, STRATA_E_ARGUMENT, "%s: layers %u..%u are not among the %u of the model", g->path, m->first,
                    m->end, h->layers);
    if (!r)
        r = st_load_host_matrix(l, "token_embd.weight", h->hidden, h->vocabulary, &m->embed);
    if (!r && m->end == h->layers)
        r = head_tensors(l);
    if (!r && h->ngram_layer >= m->first && h->ngram_layer < m->end)
        r = ngram_tensors(l);
    for (uint32_t i = m->first; i < m->end && !r; i++)
        r = layer_tensors(l, i, &m->layer[i]);
    if (!r && h->draft_layers && m->end == h->layers)
        r = draft_tensors(l, h->layers);
    if (l->options->yarn > 1)
        st_rope_set(&h->rope, h->rope_theta, h->context, l->options->yarn);
    if (!r)
        r = st_load_rope(l, &h->rope);
    return r ? r : st_loader_end(l);
}

static enum strata_result same(struct st_loader *l, const char *what, uint32_t draft, uint32_t trunk)
{
    return draft == trunk ? STRATA_OK
                          : st_fail(l->err, STRATA_E_MODEL, "%s: the draft layer has %s %u, the model %u", l->g->path,
                                    what, draft, trunk);
}

/* A draft layer in a file of its own: its sizes must be the trunk's. */
static enum strata_result open_draft(struct st_loader *l)
{
    struct q4e_model *m = q4e(l);
    struct q4e_hparams d = {0};
    bool *recurrent = NULL;
    enum strata_result r = q4e_read_hparams(l->g, &d, &recurrent, l->err);
    if (r)
        return r;
    free(recurrent);
    if (d.draft_layers != 1)
        return st_fail(l->err, STRATA_E_MODEL, "%s: no draft layer (nextn_predict_layers) in this file", l->g->path);
    const struct q4e_hparams *h = &m->h;
    const struct {
        const char *name;
        uint32_t draft, trunk;
    } pairs[] = {{"layer number", d.layers, h->layers},
                 {"embedding length", d.hidden, h->hidden},
                 {"residual streams", d.streams, h->streams},
                 {"residual rank", d.rank, h->rank},
                 {"heads", d.heads, h->heads},
                 {"key heads", d.kv_heads, h->kv_heads},
                 {"head size", d.head_dim, h->head_dim},
                 {"index heads", d.index_heads, h->index_heads},
                 {"index size", d.index_dim, h->index_dim},
                 {"index budget", d.index_budget, h->index_budget},
                 {"experts", d.experts, h->experts},
                 {"experts used", d.used, h->used},
                 {"expert width", d.expert_width, h->expert_width},
                 {"shared expert width", d.shared_width, h->shared_width},
                 {"rotary size", d.rope.rot, h->rope.rot}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs && !r; i++)
        r = same(l, pairs[i].name, pairs[i].draft, pairs[i].trunk);
    if (r)
        return r;
    m->h.draft_norm_per_stream = d.draft_norm_per_stream;
    m->h.draft_layers = 1;
    r = ratios(l->g, m, d.layers + 1, true, l->err);
    if (!r)
        r = draft_tensors(l, d.layers);
    return r ? r : st_loader_end(l);
}

enum strata_result q4e_open(struct st_model *out, const struct st_model_options *o, struct strata_error *err)
{
    struct q4e_model *m = calloc(1, sizeof *m);
    if (!m)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for the model", out->gguf->path);
    out->data = m;
    struct st_loader l = {.owned = &m->owned, .model = m, .options = o, .err = err};
    enum strata_result r = st_loader_begin(&l, out->gguf);
    if (!r)
        r = open_trunk(&l);
    free(l.used);
    l.used = NULL;
    if (!r && out->draft_gguf && m->end == m->h.layers) {
        r = st_loader_begin(&l, out->draft_gguf);
        if (!r)
            r = open_draft(&l);
        free(l.used);
    }
    if (o->draft_norm_per_stream >= 0)
        m->h.draft_norm_per_stream = o->draft_norm_per_stream != 0;
    if (r)
        q4e_close(out);
    return r;
}

void q4e_close(struct st_model *model)
{
    struct q4e_model *m = model->data;
    if (!m)
        return;
    st_owned_free(&m->owned);
    free(m->layer);
    free(m);
    model->data = NULL;
}
