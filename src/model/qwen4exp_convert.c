/* Conversion of qwen4_exp checkpoints: settings, tensor names and shapes of the trunk and of the draft layer. Sources:
 * the project's description of the architecture, sections 1 (settings), 2.4.2 (hash constants), 2.5 (order of value
 * heads), 4.1 (draft layer), 7.1 (names and shapes) and 7.5 (types of keys). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/quant.h"
#include "model/convert_job.h"
#include "model/families.h"
#include "model/qwen4exp_file.h"

enum { MAX_SHARDS = 65536, MAX_FULL_NAME = 256 };

/* A checkpoint: what the file will hold, and where its tensors are. */
struct config {
    struct q4e_file f;
    const char *prefix; /* of the trunk's names: "model." or "model.language_model." */
};

/* ---- config.json ---- */

static enum strata_result read_sizes(struct st_json text, struct config *c, struct strata_error *err)
{
    uint64_t *d = c->f.dims, value_heads = 0, value_dim = 0;
    enum { BIG = 1 << 24 };
    const struct st_convert_setting settings[] = {
        {"num_hidden_layers", &c->f.layers, 1, Q4E_MAX_LAYERS},
        {"hidden_size", &d[D_N], 1, BIG},
        {"vocab_size", &d[D_VOCAB], 1, BIG},
        {"max_position_embeddings", &c->f.context, 1, UINT32_MAX},
        {"num_attention_heads", &c->f.heads, 1, 4096},
        {"num_key_value_heads", &c->f.kv_heads, 1, 4096},
        {"head_dim", &d[D_HEAD_DIM], 1, 1024},
        {"linear_num_key_heads", &c->f.gdn_key_heads, 1, 4096},
        {"linear_num_value_heads", &value_heads, 1, 4096},
        {"linear_key_head_dim", &c->f.gdn_key_dim, 1, 1024},
        {"linear_value_head_dim", &value_dim, 1, 1024},
        {"linear_conv_kernel_dim", &d[D_GDN_TAPS], 1, 64},
        {"num_experts", &d[D_EXPERTS], 1, 65536},
        {"num_experts_per_tok", &c->f.experts_used, 1, 65536},
        {"moe_intermediate_size", &d[D_EXPERT_FF], 1, BIG},
        {"shared_expert_intermediate_size", &d[D_SHARED_FF], 1, BIG},
        {"hc_count", &d[D_STREAMS], 1, 64},
        {"hc_lowrank", &d[D_RANK], 1, BIG},
        {"indexer_n_heads", &c->f.index_heads, 1, 4096},
        {"indexer_head_dim", &d[D_INDEX_K], 1, 1024},
        {"indexer_budget", &c->f.index_budget, 1, UINT32_MAX},
        {"indexer_compress_ratio", &c->f.index_block, 1, 65536},
    };
    enum strata_result r = st_convert_settings(text, settings, sizeof settings / sizeof settings[0], err);
    if (r)
        return r;
    if (c->f.experts_used > d[D_EXPERTS])
        return st_fail(err, STRATA_E_FORMAT, "%s: num_experts_per_tok exceeds num_experts", text.where);
    if (c->f.heads % c->f.kv_heads || value_heads % c->f.gdn_key_heads)
        return st_fail(err, STRATA_E_FORMAT, "%s: query heads are no multiple of key heads", text.where);
    d[D_GDN_HEADS] = value_heads;
    d[D_GDN_HEAD_DIM] = value_dim;
    q4e_derive_sizes(&c->f);
    return STRATA_OK;
}

/* Settings with one value that the model's GGUF form implies; anything else cannot be expressed in it. */
static enum strata_result check_fixed(struct st_json text, struct strata_error *err)
{
    const char *act = "silu", *gate = NULL;
    bool bias = false, renormalise = true;
    uint64_t index_kv = 1;
    enum strata_result r = st_json_text_or(text, "hidden_act", "silu", &act, err);
    if (!r)
        r = st_json_text_or(text, "output_gate_type", act, &gate, err);
    if (!r)
        r = st_json_bool_or(text, "attention_bias", false, &bias, err);
    if (!r)
        r = st_json_bool_or(text, "norm_topk_prob", true, &renormalise, err);
    if (!r)
        r = st_json_u64_or(text, "indexer_kv_heads", 1, &index_kv, err);
    if (r)
        return r;
    const char *wrong = strcmp(act, "silu")       ? "hidden_act is not silu"
                        : strcmp(gate, "sigmoid") ? "output_gate_type is not sigmoid"
                        : bias                    ? "attention_bias is on"
                        : !renormalise            ? "norm_topk_prob is off"
                        : index_kv != 1           ? "indexer_kv_heads is not 1"
                                                  : NULL;
    return wrong ? st_fail(err, STRATA_E_UNSUPPORTED, "%s: %s, which a GGUF file cannot express", text.where, wrong)
                 : STRATA_OK;
}

static enum strata_result read_rope(struct st_json text, struct config *c, struct strata_error *err)
{
    struct st_json rope = {st_json_get(text, "rope_parameters"), text.where};
    const char *type = "default";
    double fraction = 0;
    bool interleaved = true;
    const json_t *sections = NULL;
    if (!json_is_object(rope.value))
        return st_fail(err, STRATA_E_FORMAT, "%s: rope_parameters are missing", text.where);
    enum strata_result r = st_json_text_or(rope, "rope_type", "default", &type, err);
    if (!r)
        r = st_json_f64(rope, "rope_theta", &c->f.rope_base, err);
    if (!r)
        r = st_json_f64(st_json_get(rope, "partial_rotary_factor") ? rope : text, "partial_rotary_factor", &fraction,
                        err);
    if (!r)
        r = st_json_bool_or(rope, "mrope_interleaved", true, &interleaved, err);
    if (!r)
        r = st_json_array(rope, "mrope_section", &sections, err);
    if (r)
        return r;
    if (strcmp(type, "default") || !interleaved)
        return st_fail(err, STRATA_E_UNSUPPORTED, "%s: rotary embedding with scaling or sections side by side",
                       text.where);
    c->f.rope_dims = (uint64_t)(fraction * (double)c->f.dims[D_HEAD_DIM] + 0.5);
    uint64_t pairs = 0;
    for (size_t i = 0; i < 3; i++) {
        if (!st_json_as_u64(json_array_get(sections, i), &c->f.sections[i]) || c->f.sections[i] > 1024)
            return st_fail(err, STRATA_E_FORMAT, "%s: mrope_section is no list of three sizes", text.where);
        pairs += c->f.sections[i];
    }
    if (!(c->f.rope_base > 0) || c->f.rope_dims < 2 || c->f.rope_dims % 2 || c->f.rope_dims > c->f.dims[D_HEAD_DIM] ||
        c->f.rope_dims > c->f.dims[D_INDEX_K] || pairs != c->f.rope_dims / 2)
        return st_fail(
            err, STRATA_E_FORMAT,
            "%s: %llu rotary dimensions do not fit the heads, or mrope_section does not add up to half of them",
            text.where, (unsigned long long)c->f.rope_dims);
    return STRATA_OK;
}

static enum strata_result read_layer_types(struct st_json text, struct config *c, struct strata_error *err)
{
    const json_t *types = st_json_get(text, "layer_types");
    uint64_t interval;
    enum strata_result r = st_json_u64_or(text, "full_attention_interval", 4, &interval, err);
    if (r)
        return r;
    if (types && json_array_size(types) != c->f.layers)
        return st_fail(err, STRATA_E_FORMAT, "%s: layer_types has %zu entries for %llu layers", text.where,
                       json_array_size(types), (unsigned long long)c->f.layers);
    if (!types && (interval < 1 || interval > Q4E_MAX_LAYERS))
        return st_fail(err, STRATA_E_FORMAT, "%s: full_attention_interval is out of range", text.where);
    for (size_t i = 0; i < c->f.layers; i++) {
        const char *name = types ? json_string_value(json_array_get(types, i)) : "";
        if (!name)
            return st_fail(err, STRATA_E_FORMAT, "%s: layer_types[%zu] is no string", text.where, i);
        c->f.recurrent[i] = types ? !strcmp(name, "linear_attention") : (i + 1) % interval != 0;
    }
    return STRATA_OK;
}

static enum strata_result read_ple(struct st_json text, struct config *c, struct strata_error *err)
{
    const json_t *layers = st_json_get(text, "ple_layer_ids");
    uint64_t id = 0;
    c->f.has_ple = json_array_size(layers) > 0;
    if (!c->f.has_ple)
        return STRATA_OK;
    if (json_array_size(layers) > 1)
        return st_fail(err, STRATA_E_UNSUPPORTED, "%s: ple_layer_ids: a GGUF file holds one n-gram table, not %zu",
                       text.where, json_array_size(layers));
    if (!st_json_as_u64(json_array_get(layers, 0), &id) || id < 1 || id > c->f.layers)
        return st_fail(err, STRATA_E_FORMAT, "%s: ple_layer_ids are no layers (counted from 1)", text.where);
    c->f.ple_layer = id - 1;
    const struct st_convert_setting settings[] = {
        {"ngram_size", &c->f.ngram, 2, Q4E_MAX_NGRAM},
        {"heads_per_ngram", &c->f.heads_per_ngram, 1, Q4E_MAX_NGRAM_HEADS},
        {"ple_conv_kernel_size", &c->f.dims[D_PLE_TAPS], 1, 64},
        {"ngram_vocab_size_base", &c->f.ngram_base, 1, UINT32_MAX},
    };
    enum strata_result r = st_convert_settings(text, settings, sizeof settings / sizeof settings[0], err);
    if (!r)
        r = st_json_u64_or(text, "ple_embed_dim", c->f.dims[D_N], &c->f.dims[D_PLE_WIDTH], err);
    if (!r)
        r = st_json_u64_or(text, "seed", 1234, &c->f.seed, err);
    const json_t *eos = st_json_get(text, "eos_token_id");
    if (!r && !st_json_as_u64(json_is_array(eos) ? json_array_get(eos, 0) : eos, &c->f.ple_eos))
        r = st_fail(err, STRATA_E_FORMAT, "%s: eos_token_id, where n-grams begin anew, is missing", text.where);
    if (r)
        return r;
    q4e_derive_sizes(&c->f);
    if (c->f.ple_eos >= c->f.dims[D_VOCAB] || c->f.ple_heads > Q4E_MAX_NGRAM_HEADS || !c->f.dims[D_PLE_WIDTH] ||
        c->f.dims[D_PLE_WIDTH] > 1 << 24 || c->f.dims[D_PLE_WIDTH] % c->f.ple_heads)
        return st_fail(err, STRATA_E_FORMAT,
                       "%s: %llu n-gram heads do not fit ple_embed_dim, or eos_token_id the vocabulary", text.where,
                       (unsigned long long)c->f.ple_heads);
    return STRATA_OK;
}

static enum strata_result read_config(const struct st_convert_job *job, struct config *c, struct strata_error *err)
{
    const struct st_hf *hf = job->hf;
    struct st_json top = {hf->config, hf->config_path}, text = top, draft = {NULL, hf->config_path};
    if (st_json_get(top, "text_config"))
        text.value = st_json_get(top, "text_config");
    enum strata_result r = read_sizes(text, c, err);
    if (!r)
        r = check_fixed(text, err);
    if (!r)
        r = st_json_f64(text, "rms_norm_eps", &c->f.epsilon, err);
    if (!r)
        r = read_rope(text, c, err);
    if (!r)
        r = read_layer_types(text, c, err);
    if (!r)
        r = read_ple(text, c, err);
    if (!r)
        r = st_json_bool_or(text, "tie_word_embeddings", false, &c->f.tied, err);
    c->f.has_image_token = st_json_get(top, "image_token_id") != NULL;
    if (!r && c->f.has_image_token)
        r = st_json_u64(top, "image_token_id", &c->f.image_token, err);
    if (!r && c->f.has_image_token && c->f.image_token >= c->f.dims[D_VOCAB])
        r = st_fail(err, STRATA_E_FORMAT, "%s: image_token_id is outside the vocabulary", hf->config_path);
    draft.value = st_json_get(text, "mtp");
    c->f.has_draft_rope = draft.value && st_json_get(draft, "rope_theta");
    if (!r && c->f.has_draft_rope)
        r = st_json_f64(draft, "rope_theta", &c->f.draft_rope_base, err);
    c->prefix = st_convert_find(job, "model.embed_tokens.weight") ? "model." : "model.language_model.";
    return r;
}

/* ---- hash constants of the n-gram table ---- */

static enum strata_result read_i64(struct st_convert_job *job, const char *name, uint64_t n, uint64_t *out,
                                   struct strata_error *err)
{
    const struct st_safetensor *t;
    enum strata_result r = st_convert_source(job, name, 1, &n, &t, err);
    if (!r && t->dtype != ST_DTYPE_I64)
        r = st_fail(err, STRATA_E_MODEL, "%s: tensor %s is %s, not I64", t->path, name, st_dtype_name(t->dtype));
    for (uint64_t i = 0; i < n && !r; i++) {
        memcpy(&out[i], t->data + 8 * i, 8);
        if (out[i] > INT64_MAX)
            r = st_fail(err, STRATA_E_MODEL, "%s: tensor %s: entry %llu is negative", t->path, name,
                        (unsigned long long)i);
    }
    return r;
}

static enum strata_result read_hash(struct st_convert_job *job, struct config *c, struct strata_error *err)
{
    static const char *const names[] = {"layer_multipliers", "ngram_heads_offsets", "ngram_heads_vocab_sizes"};
    uint64_t *const out[] = {c->f.multipliers, c->f.head_offsets, c->f.head_sizes};
    const uint64_t count[] = {c->f.ngram, c->f.ple_heads, c->f.ple_heads};
    q4e_derive_hash(&c->f);
    enum strata_result r = STRATA_OK;
    for (int i = 0; i < 3 && !r; i++) {
        char name[MAX_FULL_NAME];
        snprintf(name, sizeof name, "%slayers.%llu.ple.ple_embedding.%s", c->prefix, (unsigned long long)c->f.ple_layer,
                 names[i]);
        if (st_convert_find(job, name))
            r = read_i64(job, name, count[i], out[i], err);
    }
    for (uint64_t i = 0; i < c->f.ple_heads && !r; i++)
        if (!c->f.head_sizes[i] || c->f.head_sizes[i] > UINT32_MAX || c->f.head_offsets[i] > (uint64_t)1 << 40)
            r = st_fail(err, STRATA_E_MODEL, "%s: n-gram head %llu has %llu rows from %llu on", job->hf->dir,
                        (unsigned long long)i, (unsigned long long)c->f.head_sizes[i],
                        (unsigned long long)c->f.head_offsets[i]);
    return r;
}

/* ---- tensors ---- */

/* Where a group of tensors goes and comes from. */
struct place {
    struct st_convert_job *job;
    const struct config *c;
    char to[32];    /* "blk.3." */
    char from[160]; /* "model.layers.3." */
};

static void set_order(const struct config *c, enum q4e_order order, struct st_convert_tensor *t)
{
    struct st_convert_order o = {.block = c->f.dims[D_GDN_HEAD_DIM],
                                 .groups = c->f.gdn_key_heads,
                                 .per = c->f.dims[D_GDN_HEADS] / c->f.gdn_key_heads};
    if (order == Q4E_KEEP)
        return;
    if (order == Q4E_V_ROWS)
        o.from = c->f.dims[D_GDN_QKV] - c->f.dims[D_GDN_V];
    if (order == Q4E_HEAD_ENTRIES || (order == Q4E_HEAD_ROWS && t->ne[1] == c->f.dims[D_GDN_HEADS]))
        o.block = 1;
    if (order == Q4E_HEAD_ENTRIES || order == Q4E_HEAD_COLUMNS)
        t->columns = o;
    else
        t->rows = o;
}

static enum strata_result add_entry(const struct place *p, const struct q4e_entry *e, struct strata_error *err)
{
    const uint64_t *d = p->c->f.dims;
    char to[64 + 32], from[MAX_FULL_NAME];
    snprintf(to, sizeof to, "%s%s", p->to, e->to);
    snprintf(from, sizeof from, "%s%s", p->from, e->from);
    uint64_t shape[3], ne[2] = {d[e->ne0], e->ne1 ? d[e->ne1] : 1};
    uint32_t n = 0;
    if (e->ne1)
        shape[n++] = e->rows ? d[e->rows] : ne[1];
    if (e->middle)
        shape[n++] = 1;
    shape[n++] = ne[0];
    const struct st_safetensor *source;
    struct st_convert_tensor *t;
    enum strata_result r = st_convert_source(p->job, from, n, shape, &source, err);
    if (!r)
        r = st_convert_add(p->job, to, e->ne1 ? 2 : 1, ne, 1, e->fixed || !e->ne1, &t, err);
    if (r)
        return r;
    t->map = e->map == Q4E_PLUS_ONE ? ST_MAP_PLUS_ONE : e->map == Q4E_MINUS_EXP ? ST_MAP_MINUS_EXP : ST_MAP_PLAIN;
    t->parts[0] = (struct st_convert_part){source, e->first ? d[e->first] : 0, ne[1]};
    set_order(p->c, e->order, t);
    return STRATA_OK;
}

static enum strata_result add_entries(const struct place *p, const struct q4e_entry *e, size_t n,
                                      struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    for (size_t i = 0; i < n && !r; i++)
        r = add_entry(p, &e[i], err);
    return r;
}

#define ADD(place, table) add_entries(place, table, sizeof(table) / sizeof(table)[0], err)

/* One of gate, up and down of all experts: from one tensor for all experts (fused, with gate and up rows together) or
 * from one per expert. */
static enum strata_result add_experts(const struct place *p, const char *to, const char *fused, const char *single,
                                      enum q4e_dim ne0, enum q4e_dim ne1, uint64_t first, uint64_t fused_rows,
                                      struct strata_error *err)
{
    const uint64_t *d = p->c->f.dims;
    const uint64_t ne[3] = {d[ne0], d[ne1], d[D_EXPERTS]};
    char name[MAX_FULL_NAME];
    struct st_convert_tensor *t;
    snprintf(name, sizeof name, "%s%s", p->to, to);
    enum strata_result r = st_convert_add(p->job, name, 3, ne, (size_t)ne[2], false, &t, err);
    if (r)
        return r;
    snprintf(name, sizeof name, "%smlp.experts.%s", p->from, fused);
    const struct st_safetensor *all = NULL;
    const uint64_t fused_shape[3] = {ne[2], fused_rows, ne[0]}, shape[2] = {ne[1], ne[0]};
    if (st_convert_find(p->job, name))
        r = st_convert_source(p->job, name, 3, fused_shape, &all, err);
    for (uint64_t e = 0; e < ne[2] && !r; e++) {
        t->parts[e] = (struct st_convert_part){all, e * fused_rows + first, ne[1]};
        if (all)
            continue;
        snprintf(name, sizeof name, "%smlp.experts.%llu.%s.weight", p->from, (unsigned long long)e, single);
        r = st_convert_source(p->job, name, 2, shape, &t->parts[e].tensor, err);
        t->parts[e].first = 0;
    }
    return r;
}

static enum strata_result add_layer(const struct place *p, bool recurrent, struct strata_error *err)
{
    const uint64_t *d = p->c->f.dims;
    enum strata_result r = ADD(p, q4e_every_layer);
    if (!r)
        r = add_experts(p, "ffn_gate_exps.weight", "gate_up_proj", "gate_proj", D_N, D_EXPERT_FF, 0, d[D_EXPERT_FF2],
                        err);
    if (!r)
        r = add_experts(p, "ffn_up_exps.weight", "gate_up_proj", "up_proj", D_N, D_EXPERT_FF, d[D_EXPERT_FF],
                        d[D_EXPERT_FF2], err);
    if (!r)
        r = add_experts(p, "ffn_down_exps.weight", "down_proj", "down_proj", D_EXPERT_FF, D_N, 0, d[D_N], err);
    if (!r)
        r = recurrent ? ADD(p, q4e_gdn_layer) : ADD(p, q4e_attention_layer);
    return r;
}

/* The n-gram table: shard_0, shard_1, ... one after the other, all with the same number of rows. */
static enum strata_result add_ngram_table(const struct place *p, struct strata_error *err)
{
    const struct config *c = p->c;
    char name[MAX_FULL_NAME];
    uint64_t shards = 0, shape[2] = {0, c->f.dims[D_PLE_ROW]}, need = q4e_ngram_rows(&c->f);
    for (; shards < MAX_SHARDS; shards++) {
        snprintf(name, sizeof name, "%sple.ple_embedding.ngram_embedding.shard_%llu.weight", p->from,
                 (unsigned long long)shards);
        const struct st_safetensor *t = st_convert_find(p->job, name);
        if (!t)
            break;
        if (!shards && t->n_dims == 2)
            shape[0] = t->shape[0];
    }
    uint64_t ne[2] = {c->f.dims[D_PLE_ROW], shape[0] * (shards ? shards : 1)};
    struct st_convert_tensor *out;
    enum strata_result r =
        st_convert_add(p->job, "per_layer_token_embd.weight", 2, ne, shards ? (size_t)shards : 1, false, &out, err);
    for (uint64_t i = 0; !r && i < out->n_parts; i++) {
        snprintf(name, sizeof name, "%sple.ple_embedding.ngram_embedding.shard_%llu.weight", p->from,
                 (unsigned long long)i);
        r = st_convert_source(p->job, name, 2, shape, &out->parts[i].tensor, err);
        out->parts[i].rows = shape[0];
    }
    if (!r && ne[1] < need)
        r = st_fail(err, STRATA_E_MODEL, "%s: the n-gram table has %llu rows, but its heads need %llu", p->job->hf->dir,
                    (unsigned long long)ne[1], (unsigned long long)need);
    return r;
}

static enum strata_result plan_trunk_tensors(struct st_convert_job *job, const struct config *c,
                                             struct strata_error *err)
{
    struct place p = {.job = job, .c = c};
    enum strata_result r = STRATA_OK;
    if (!c->f.tied)
        r = add_entry(&p, &q4e_head, err);
    snprintf(p.from, sizeof p.from, "%s", c->prefix);
    if (!r)
        r = ADD(&p, q4e_globals);
    for (uint64_t i = 0; i < c->f.layers && !r; i++) {
        snprintf(p.to, sizeof p.to, "blk.%llu.", (unsigned long long)i);
        snprintf(p.from, sizeof p.from, "%slayers.%llu.", c->prefix, (unsigned long long)i);
        r = add_layer(&p, c->f.recurrent[i], err);
        if (!r && c->f.has_ple && c->f.ple_layer == i)
            r = ADD(&p, q4e_ple_layer);
        if (!r && c->f.has_ple && c->f.ple_layer == i)
            r = add_ngram_table(&p, err);
    }
    return r;
}

static enum strata_result plan_draft_tensors(struct st_convert_job *job, const struct config *c,
                                             struct strata_error *err)
{
    struct place p = {.job = job, .c = c, .from = "mtp."};
    const uint64_t n = c->f.dims[D_N], ne[2] = {2 * n, n}, shape[2] = {n, n};
    char name[ST_GGUF_NAME_MAX + 1];
    struct st_convert_tensor *t;
    snprintf(p.to, sizeof p.to, "blk.%llu.", (unsigned long long)c->f.layers);
    snprintf(name, sizeof name, "%snextn.eh_proj.weight", p.to);
    enum strata_result r = st_convert_add(job, name, 2, ne, 2, false, &t, err);
    if (!r)
        r = st_convert_source(job, "mtp.fc_embedding.weight", 2, shape, &t->parts[0].tensor, err);
    if (!r)
        r = st_convert_source(job, "mtp.fc_hidden.weight", 2, shape, &t->parts[1].tensor, err);
    if (r)
        return r;
    t->side_by_side = true;
    t->parts[0].rows = t->parts[1].rows = n;
    r = ADD(&p, q4e_draft_globals);
    snprintf(p.from, sizeof p.from, "mtp.layers.0.");
    return r ? r : add_layer(&p, false, err);
}

static enum strata_result plan(struct st_convert_job *job, bool draft, struct st_gguf_writer *w,
                               struct strata_error *err)
{
    struct config *c = calloc(1, sizeof *c);
    if (!c)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory", job->hf->dir);
    enum strata_result r = read_config(job, c, err);
    if (!r && c->f.has_ple && !draft)
        r = read_hash(job, c, err);
    if (!r)
        r = draft ? plan_draft_tensors(job, c, err) : plan_trunk_tensors(job, c, err);
    if (!r) {
        char embedding[MAX_FULL_NAME];
        snprintf(embedding, sizeof embedding, "%sembed_tokens.weight", c->prefix);
        st_convert_general(job, "qwen4exp", draft ? " draft layer" : "", embedding, w);
        q4e_set_keys(&c->f, draft, w);
        r = st_convert_tokenizer(job, c->f.dims[D_VOCAB], w, err);
    }
    free(c);
    return r;
}

static bool accepts(const char *model_type)
{
    return !strcmp(model_type, "qwen4_exp") || !strcmp(model_type, "qwen4_exp_text");
}

const struct st_convert_family st_qwen4exp_convert = {
    .name = "qwen4exp",
    .accepts = accepts,
    .plan = plan,
    .draft_prefix = "mtp.",
    .vision_prefix = "model.visual.",
};
