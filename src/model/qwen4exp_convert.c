/* Conversion of qwen4_exp checkpoints: settings, tensor names and shapes of the trunk and of the draft layer. Sources: the
 * project's description of the architecture, sections 1 (settings), 2.4.2 (hash constants), 2.5 (order of value heads),
 * 4.1 (draft layer), 7.1 (names and shapes) and 7.5 (types of keys). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/quant.h"
#include "model/convert_job.h"
#include "model/families.h"

enum { MAX_LAYERS = 1024, MAX_HEADS = 256, MAX_NGRAM = 8, MAX_SHARDS = 65536, MAX_FULL_NAME = 256 };

/* Sizes by name, so that the tables below can speak of them. */
enum dim {
    NONE, /* the tensor has no such dimension */
    ONE,
    N,          /* hidden */
    WIDE,       /* streams x hidden */
    RANK,       /* of the gated residual */
    STREAMS,
    VOCAB,
    EXPERTS,
    EXPERT_FF,
    EXPERT_FF2, /* gate and up rows together */
    SHARED_FF,
    GDN_QKV,
    GDN_V,
    GDN_HEADS,
    GDN_HEAD_DIM,
    GDN_TAPS,
    ATTN_Q2, /* query and gate rows */
    ATTN_OUT,
    ATTN_KV,
    HEAD_DIM,
    INDEX_Q,
    INDEX_K,
    INDEX_QK,
    PLE_WIDTH,
    PLE_ROW,
    PLE_TAPS,
    DIMS
};

struct config {
    uint64_t dims[DIMS];
    uint64_t layers, context, heads, kv_heads, rope_dims, sections[3];
    double epsilon, rope_base;
    uint64_t gdn_key_heads, gdn_key_dim;
    uint64_t experts_used;
    uint64_t index_heads, index_budget, index_block;
    bool recurrent[MAX_LAYERS + 1];
    bool tied;
    bool has_ple;
    uint64_t ple_layer; /* zero-based */
    uint64_t ngram, heads_per_ngram, ple_heads, ple_eos, ngram_base, seed;
    uint64_t multipliers[MAX_NGRAM], head_sizes[MAX_HEADS], head_offsets[MAX_HEADS];
    bool has_image_token;
    uint64_t image_token;
    bool has_draft_rope;
    double draft_rope_base;
    const char *prefix; /* of the trunk's names: "model." or "model.language_model." */
};

/* ---- config.json ---- */

struct setting {
    const char *name;
    uint64_t *out;
    uint64_t low, high;
};

static enum strata_result read_settings(struct st_json text, const struct setting *s, size_t n, struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    for (size_t i = 0; i < n && !r; i++) {
        r = st_json_u64(text, s[i].name, s[i].out, err);
        if (!r && (*s[i].out < s[i].low || *s[i].out > s[i].high))
            r = st_fail(err, STRATA_E_FORMAT, "%s: %s is %llu, not %llu to %llu", text.where, s[i].name,
                        (unsigned long long)*s[i].out, (unsigned long long)s[i].low, (unsigned long long)s[i].high);
    }
    return r;
}

static enum strata_result read_sizes(struct st_json text, struct config *c, struct strata_error *err)
{
    uint64_t *d = c->dims, value_heads = 0, value_dim = 0;
    enum { BIG = 1 << 24 };
    const struct setting settings[] = {
        {"num_hidden_layers", &c->layers, 1, MAX_LAYERS},
        {"hidden_size", &d[N], 1, BIG},
        {"vocab_size", &d[VOCAB], 1, BIG},
        {"max_position_embeddings", &c->context, 1, UINT32_MAX},
        {"num_attention_heads", &c->heads, 1, 4096},
        {"num_key_value_heads", &c->kv_heads, 1, 4096},
        {"head_dim", &d[HEAD_DIM], 1, 1024},
        {"linear_num_key_heads", &c->gdn_key_heads, 1, 4096},
        {"linear_num_value_heads", &value_heads, 1, 4096},
        {"linear_key_head_dim", &c->gdn_key_dim, 1, 1024},
        {"linear_value_head_dim", &value_dim, 1, 1024},
        {"linear_conv_kernel_dim", &d[GDN_TAPS], 1, 64},
        {"num_experts", &d[EXPERTS], 1, 65536},
        {"num_experts_per_tok", &c->experts_used, 1, 65536},
        {"moe_intermediate_size", &d[EXPERT_FF], 1, BIG},
        {"shared_expert_intermediate_size", &d[SHARED_FF], 1, BIG},
        {"hc_count", &d[STREAMS], 1, 64},
        {"hc_lowrank", &d[RANK], 1, BIG},
        {"indexer_n_heads", &c->index_heads, 1, 4096},
        {"indexer_head_dim", &d[INDEX_K], 1, 1024},
        {"indexer_budget", &c->index_budget, 1, UINT32_MAX},
        {"indexer_compress_ratio", &c->index_block, 1, 65536},
    };
    enum strata_result r = read_settings(text, settings, sizeof settings / sizeof settings[0], err);
    if (r)
        return r;
    if (c->experts_used > d[EXPERTS])
        return st_fail(err, STRATA_E_FORMAT, "%s: num_experts_per_tok exceeds num_experts", text.where);
    if (c->heads % c->kv_heads || value_heads % c->gdn_key_heads)
        return st_fail(err, STRATA_E_FORMAT, "%s: query heads are no multiple of key heads", text.where);
    d[ONE] = 1;
    d[WIDE] = d[STREAMS] * d[N];
    d[EXPERT_FF2] = 2 * d[EXPERT_FF];
    d[GDN_HEADS] = value_heads;
    d[GDN_HEAD_DIM] = value_dim;
    d[GDN_V] = value_heads * value_dim;
    d[GDN_QKV] = 2 * c->gdn_key_heads * c->gdn_key_dim + d[GDN_V];
    d[ATTN_Q2] = 2 * c->heads * d[HEAD_DIM];
    d[ATTN_OUT] = c->heads * d[HEAD_DIM];
    d[ATTN_KV] = c->kv_heads * d[HEAD_DIM];
    d[INDEX_Q] = c->index_heads * d[INDEX_K];
    d[INDEX_QK] = d[INDEX_Q] + d[INDEX_K];
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
        r = st_json_f64(rope, "rope_theta", &c->rope_base, err);
    if (!r)
        r = st_json_f64(st_json_get(rope, "partial_rotary_factor") ? rope : text, "partial_rotary_factor", &fraction, err);
    if (!r)
        r = st_json_bool_or(rope, "mrope_interleaved", true, &interleaved, err);
    if (!r)
        r = st_json_array(rope, "mrope_section", &sections, err);
    if (r)
        return r;
    if (strcmp(type, "default") || !interleaved)
        return st_fail(err, STRATA_E_UNSUPPORTED, "%s: rotary embedding with scaling or sections side by side", text.where);
    c->rope_dims = (uint64_t)(fraction * (double)c->dims[HEAD_DIM] + 0.5);
    uint64_t pairs = 0;
    for (size_t i = 0; i < 3; i++) {
        if (!st_json_as_u64(json_array_get(sections, i), &c->sections[i]) || c->sections[i] > 1024)
            return st_fail(err, STRATA_E_FORMAT, "%s: mrope_section is no list of three sizes", text.where);
        pairs += c->sections[i];
    }
    if (!(c->rope_base > 0) || c->rope_dims < 2 || c->rope_dims % 2 || c->rope_dims > c->dims[HEAD_DIM] ||
        c->rope_dims > c->dims[INDEX_K] || pairs != c->rope_dims / 2)
        return st_fail(err, STRATA_E_FORMAT,
                       "%s: %llu rotary dimensions do not fit the heads, or mrope_section does not add up to half of them",
                       text.where, (unsigned long long)c->rope_dims);
    return STRATA_OK;
}

static enum strata_result read_layer_types(struct st_json text, struct config *c, struct strata_error *err)
{
    const json_t *types = st_json_get(text, "layer_types");
    uint64_t interval;
    enum strata_result r = st_json_u64_or(text, "full_attention_interval", 4, &interval, err);
    if (r)
        return r;
    if (types && json_array_size(types) != c->layers)
        return st_fail(err, STRATA_E_FORMAT, "%s: layer_types has %zu entries for %llu layers", text.where,
                       json_array_size(types), (unsigned long long)c->layers);
    if (!types && (interval < 1 || interval > MAX_LAYERS))
        return st_fail(err, STRATA_E_FORMAT, "%s: full_attention_interval is out of range", text.where);
    for (size_t i = 0; i < c->layers; i++) {
        const char *name = types ? json_string_value(json_array_get(types, i)) : "";
        if (!name)
            return st_fail(err, STRATA_E_FORMAT, "%s: layer_types[%zu] is no string", text.where, i);
        c->recurrent[i] = types ? !strcmp(name, "linear_attention") : (i + 1) % interval != 0;
    }
    return STRATA_OK;
}

static enum strata_result read_ple(struct st_json text, struct config *c, struct strata_error *err)
{
    const json_t *layers = st_json_get(text, "ple_layer_ids");
    uint64_t id = 0;
    c->has_ple = json_array_size(layers) > 0;
    if (!c->has_ple)
        return STRATA_OK;
    if (json_array_size(layers) > 1)
        return st_fail(err, STRATA_E_UNSUPPORTED, "%s: ple_layer_ids: a GGUF file holds one n-gram table, not %zu", text.where,
                       json_array_size(layers));
    if (!st_json_as_u64(json_array_get(layers, 0), &id) || id < 1 || id > c->layers)
        return st_fail(err, STRATA_E_FORMAT, "%s: ple_layer_ids are no layers (counted from 1)", text.where);
    c->ple_layer = id - 1;
    const struct setting settings[] = {
        {"ngram_size", &c->ngram, 2, MAX_NGRAM},
        {"heads_per_ngram", &c->heads_per_ngram, 1, MAX_HEADS},
        {"ple_conv_kernel_size", &c->dims[PLE_TAPS], 1, 64},
        {"ngram_vocab_size_base", &c->ngram_base, 1, UINT32_MAX},
    };
    enum strata_result r = read_settings(text, settings, sizeof settings / sizeof settings[0], err);
    if (!r)
        r = st_json_u64_or(text, "ple_embed_dim", c->dims[N], &c->dims[PLE_WIDTH], err);
    if (!r)
        r = st_json_u64_or(text, "seed", 1234, &c->seed, err);
    const json_t *eos = st_json_get(text, "eos_token_id");
    if (!r && !st_json_as_u64(json_is_array(eos) ? json_array_get(eos, 0) : eos, &c->ple_eos))
        r = st_fail(err, STRATA_E_FORMAT, "%s: eos_token_id, where n-grams begin anew, is missing", text.where);
    if (r)
        return r;
    c->ple_heads = (c->ngram - 1) * c->heads_per_ngram;
    if (c->ple_eos >= c->dims[VOCAB] || c->ple_heads > MAX_HEADS || !c->dims[PLE_WIDTH] ||
        c->dims[PLE_WIDTH] > 1 << 24 || c->dims[PLE_WIDTH] % c->ple_heads)
        return st_fail(err, STRATA_E_FORMAT, "%s: %llu n-gram heads do not fit ple_embed_dim, or eos_token_id the vocabulary",
                       text.where, (unsigned long long)c->ple_heads);
    c->dims[PLE_ROW] = c->dims[PLE_WIDTH] / c->ple_heads;
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
        r = st_json_f64(text, "rms_norm_eps", &c->epsilon, err);
    if (!r)
        r = read_rope(text, c, err);
    if (!r)
        r = read_layer_types(text, c, err);
    if (!r)
        r = read_ple(text, c, err);
    if (!r)
        r = st_json_bool_or(text, "tie_word_embeddings", false, &c->tied, err);
    c->has_image_token = st_json_get(top, "image_token_id") != NULL;
    if (!r && c->has_image_token)
        r = st_json_u64(top, "image_token_id", &c->image_token, err);
    if (!r && c->has_image_token && c->image_token >= c->dims[VOCAB])
        r = st_fail(err, STRATA_E_FORMAT, "%s: image_token_id is outside the vocabulary", hf->config_path);
    draft.value = st_json_get(text, "mtp");
    c->has_draft_rope = draft.value && st_json_get(draft, "rope_theta");
    if (!r && c->has_draft_rope)
        r = st_json_f64(draft, "rope_theta", &c->draft_rope_base, err);
    c->prefix = st_convert_find(job, "model.embed_tokens.weight") ? "model." : "model.language_model.";
    return r;
}

/* ---- hash constants of the n-gram table ---- */

static uint64_t splitmix64(uint64_t v)
{
    v += 0x9E3779B97F4A7C15u;
    v = (v ^ v >> 30) * 0xBF58476D1CE4E5B9u;
    v = (v ^ v >> 27) * 0x94D049BB133111EBu;
    return v ^ v >> 31;
}

static bool is_prime(uint64_t n)
{
    if (n < 4)
        return n > 1;
    for (uint64_t i = 2; i * i <= n; i++)
        if (n % i == 0)
            return false;
    return true;
}

/* What a checkpoint without the buffers implies; a file has one n-gram module, so its ordinal is 0. */
static void derive_hash(struct config *c)
{
    uint64_t largest = INT64_MAX / c->dims[VOCAB], half = largest / 2 > 1 ? largest / 2 : 1;
    for (uint64_t i = 0; i < c->ngram; i++)
        c->multipliers[i] = 2 * (splitmix64(c->seed + 0x9E3779B97F4A7C15u * (i + 1)) % half) + 1;
    uint64_t p = c->ngram_base, at = 0;
    for (uint64_t k = 0; k < c->ple_heads; k++, p++) {
        while (!is_prime(p))
            p++;
        c->head_sizes[k] = p;
        c->head_offsets[k] = at;
        at += p;
    }
}

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
            r = st_fail(err, STRATA_E_MODEL, "%s: tensor %s: entry %llu is negative", t->path, name, (unsigned long long)i);
    }
    return r;
}

static enum strata_result read_hash(struct st_convert_job *job, struct config *c, struct strata_error *err)
{
    static const char *const names[] = {"layer_multipliers", "ngram_heads_offsets", "ngram_heads_vocab_sizes"};
    uint64_t *const out[] = {c->multipliers, c->head_offsets, c->head_sizes};
    const uint64_t count[] = {c->ngram, c->ple_heads, c->ple_heads};
    derive_hash(c);
    enum strata_result r = STRATA_OK;
    for (int i = 0; i < 3 && !r; i++) {
        char name[MAX_FULL_NAME];
        snprintf(name, sizeof name, "%slayers.%llu.ple.ple_embedding.%s", c->prefix, (unsigned long long)c->ple_layer,
                 names[i]);
        if (st_convert_find(job, name))
            r = read_i64(job, name, count[i], out[i], err);
    }
    for (uint64_t i = 0; i < c->ple_heads && !r; i++)
        if (!c->head_sizes[i] || c->head_sizes[i] > UINT32_MAX || c->head_offsets[i] > (uint64_t)1 << 40)
            r = st_fail(err, STRATA_E_MODEL, "%s: n-gram head %llu has %llu rows from %llu on", job->hf->dir,
                        (unsigned long long)i, (unsigned long long)c->head_sizes[i],
                        (unsigned long long)c->head_offsets[i]);
    return r;
}

/* ---- tensors ---- */

enum order {
    KEEP,
    V_ROWS,       /* value heads in the rows, after q and k */
    HEAD_ROWS,    /* value heads in the rows, all of them */
    HEAD_ENTRIES, /* one entry per value head */
    HEAD_COLUMNS, /* value heads in the columns */
};

/* One tensor that is copied from one source: its dimensions in GGUF's order (ne0, ne1), how the source stores it, and which
 * rows of a larger source it takes. */
struct entry {
    const char *to, *from;
    enum dim ne0, ne1;
    enum st_convert_map map;
    enum order order;
    bool fixed;     /* F32 always */
    enum dim middle; /* ONE: the source is [ne1, 1, ne0]; N.B. [1, ne0] for a vector */
    enum dim first, rows; /* the source has `rows` rows, of which ne1 from `first` on are taken */
};

static const struct entry globals[] = {
    {"token_embd.weight", "embed_tokens.weight", N, VOCAB},
    {"output_hc_norm.weight", "hyper_connection_mixer.hc_norm.weight", WIDE, NONE, ST_MAP_PLUS_ONE},
    {"output_hc_down.weight", "hyper_connection_mixer.input_mix_weight_down.weight", WIDE, RANK},
    {"output_hc_up.weight", "hyper_connection_mixer.input_mix_weight_up.weight", RANK, WIDE},
};

static const struct entry head = {"output.weight", "lm_head.weight", N, VOCAB};

static const struct entry every_layer[] = {
    {"hc_attn_norm.weight", "attn_hyper_connection.hc_norm.weight", WIDE, NONE, ST_MAP_PLUS_ONE},
    {"hc_attn_down.weight", "attn_hyper_connection.input_mix_weight_down.weight", WIDE, RANK},
    {"hc_attn_up.weight", "attn_hyper_connection.input_mix_weight_up.weight", RANK, WIDE},
    {"hc_attn_inject.weight", "attn_hyper_connection.block_inject_weight.weight", WIDE, STREAMS},
    {"hc_ffn_norm.weight", "mlp_hyper_connection.hc_norm.weight", WIDE, NONE, ST_MAP_PLUS_ONE},
    {"hc_ffn_down.weight", "mlp_hyper_connection.input_mix_weight_down.weight", WIDE, RANK},
    {"hc_ffn_up.weight", "mlp_hyper_connection.input_mix_weight_up.weight", RANK, WIDE},
    {"hc_ffn_inject.weight", "mlp_hyper_connection.block_inject_weight.weight", WIDE, STREAMS},
    {"ffn_gate_inp.weight", "mlp.gate.weight", N, EXPERTS, .fixed = true},
    {"ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight", N, NONE, .fixed = true, .middle = ONE},
    {"ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight", N, SHARED_FF},
    {"ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight", N, SHARED_FF},
    {"ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight", SHARED_FF, N},
};

static const struct entry gdn_layer[] = {
    {"attn_qkv.weight", "linear_attn.in_proj_qkv.weight", N, GDN_QKV, .order = V_ROWS},
    {"attn_gate.weight", "linear_attn.in_proj_z.weight", N, GDN_V, .order = HEAD_ROWS},
    {"ssm_conv1d.weight", "linear_attn.conv1d.weight", GDN_TAPS, GDN_QKV, .order = V_ROWS, .fixed = true, .middle = ONE},
    {"ssm_dt.bias", "linear_attn.dt_bias", GDN_HEADS, NONE, .order = HEAD_ENTRIES},
    {"ssm_a", "linear_attn.A_log", GDN_HEADS, NONE, ST_MAP_MINUS_EXP, HEAD_ENTRIES},
    {"ssm_beta.weight", "linear_attn.in_proj_b.weight", N, GDN_HEADS, .order = HEAD_ROWS},
    {"ssm_alpha.weight", "linear_attn.in_proj_a.weight", N, GDN_HEADS, .order = HEAD_ROWS},
    {"ssm_norm.weight", "linear_attn.norm.weight", GDN_HEAD_DIM, NONE},
    {"ssm_out.weight", "linear_attn.out_proj.weight", GDN_V, N, .order = HEAD_COLUMNS},
};

static const struct entry attention_layer[] = {
    {"attn_q.weight", "self_attn.q_proj.weight", N, ATTN_Q2},
    {"attn_k.weight", "self_attn.k_proj.weight", N, ATTN_KV},
    {"attn_v.weight", "self_attn.v_proj.weight", N, ATTN_KV},
    {"attn_output.weight", "self_attn.o_proj.weight", ATTN_OUT, N},
    {"attn_q_norm.weight", "self_attn.q_norm.weight", HEAD_DIM, NONE, ST_MAP_PLUS_ONE},
    {"attn_k_norm.weight", "self_attn.k_norm.weight", HEAD_DIM, NONE, ST_MAP_PLUS_ONE},
    {"indexer.q_proj.weight", "self_attn.indexer.index_qk_proj.weight", N, INDEX_Q, .rows = INDEX_QK},
    {"indexer.k_proj.weight", "self_attn.indexer.index_qk_proj.weight", N, INDEX_K, .first = INDEX_Q, .rows = INDEX_QK},
    {"indexer.q_norm.weight", "self_attn.indexer.q_layernorm.weight", INDEX_K, NONE, ST_MAP_PLUS_ONE},
    {"indexer.k_norm.weight", "self_attn.indexer.k_layernorm.weight", INDEX_K, NONE, ST_MAP_PLUS_ONE},
};

static const struct entry ple_layer[] = {
    {"ple_key.weight", "ple.key_proj.weight", PLE_WIDTH, WIDE},
    {"ple_value.weight", "ple.value_proj.weight", PLE_WIDTH, N},
    {"ple_norm_key.weight", "ple.norm_key.weight", WIDE, NONE, ST_MAP_PLUS_ONE},
    {"ple_norm_query.weight", "ple.norm_query.weight", WIDE, NONE, ST_MAP_PLUS_ONE},
    {"ple_norm_conv.weight", "ple.norm_conv.weight", WIDE, NONE, ST_MAP_PLUS_ONE},
    {"ple_conv1d.weight", "ple.conv1d.weight", PLE_TAPS, WIDE, .fixed = true, .middle = ONE},
};

static const struct entry draft_globals[] = {
    {"nextn.enorm.weight", "pre_fc_norm_embedding.weight", N, NONE, ST_MAP_PLUS_ONE},
    {"nextn.hnorm.weight", "pre_fc_norm_hidden.weight", WIDE, NONE, ST_MAP_PLUS_ONE},
    {"nextn.hc_head_norm.weight", "hyper_connection_mixer.hc_norm.weight", WIDE, NONE, ST_MAP_PLUS_ONE},
    {"nextn.hc_head_down.weight", "hyper_connection_mixer.input_mix_weight_down.weight", WIDE, RANK},
    {"nextn.hc_head_up.weight", "hyper_connection_mixer.input_mix_weight_up.weight", RANK, WIDE},
};

/* Where a group of tensors goes and comes from. */
struct place {
    struct st_convert_job *job;
    const struct config *c;
    char to[32];    /* "blk.3." */
    char from[160]; /* "model.layers.3." */
};

static void set_order(const struct config *c, enum order order, struct st_convert_tensor *t)
{
    struct st_convert_order o = {.block = c->dims[GDN_HEAD_DIM], .groups = c->gdn_key_heads,
                                 .per = c->dims[GDN_HEADS] / c->gdn_key_heads};
    if (order == KEEP)
        return;
    if (order == V_ROWS)
        o.from = c->dims[GDN_QKV] - c->dims[GDN_V];
    if (order == HEAD_ENTRIES || (order == HEAD_ROWS && t->ne[1] == c->dims[GDN_HEADS]))
        o.block = 1;
    if (order == HEAD_ENTRIES || order == HEAD_COLUMNS)
        t->columns = o;
    else
        t->rows = o;
}

static enum strata_result add_entry(const struct place *p, const struct entry *e, struct strata_error *err)
{
    const uint64_t *d = p->c->dims;
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
    t->map = e->map;
    t->parts[0] = (struct st_convert_part){source, e->first ? d[e->first] : 0, ne[1]};
    set_order(p->c, e->order, t);
    return STRATA_OK;
}

static enum strata_result add_entries(const struct place *p, const struct entry *e, size_t n, struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    for (size_t i = 0; i < n && !r; i++)
        r = add_entry(p, &e[i], err);
    return r;
}

#define ADD(place, table) add_entries(place, table, sizeof(table) / sizeof(table)[0], err)

/* One of gate, up and down of all experts: from one tensor for all experts (fused, with gate and up rows together) or from
 * one per expert. */
static enum strata_result add_experts(const struct place *p, const char *to, const char *fused, const char *single,
                                      enum dim ne0, enum dim ne1, uint64_t first, uint64_t fused_rows,
                                      struct strata_error *err)
{
    const uint64_t *d = p->c->dims;
    const uint64_t ne[3] = {d[ne0], d[ne1], d[EXPERTS]};
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
    const uint64_t *d = p->c->dims;
    enum strata_result r = ADD(p, every_layer);
    if (!r)
        r = add_experts(p, "ffn_gate_exps.weight", "gate_up_proj", "gate_proj", N, EXPERT_FF, 0, d[EXPERT_FF2], err);
    if (!r)
        r = add_experts(p, "ffn_up_exps.weight", "gate_up_proj", "up_proj", N, EXPERT_FF, d[EXPERT_FF], d[EXPERT_FF2], err);
    if (!r)
        r = add_experts(p, "ffn_down_exps.weight", "down_proj", "down_proj", EXPERT_FF, N, 0, d[N], err);
    if (!r)
        r = recurrent ? ADD(p, gdn_layer) : ADD(p, attention_layer);
    return r;
}

/* The n-gram table: shard_0, shard_1, ... one after the other, all with the same number of rows. */
static enum strata_result add_ngram_table(const struct place *p, struct strata_error *err)
{
    const struct config *c = p->c;
    char name[MAX_FULL_NAME];
    uint64_t shards = 0, shape[2] = {0, c->dims[PLE_ROW]}, need = 0;
    for (; shards < MAX_SHARDS; shards++) {
        snprintf(name, sizeof name, "%sple.ple_embedding.ngram_embedding.shard_%llu.weight", p->from,
                 (unsigned long long)shards);
        const struct st_safetensor *t = st_convert_find(p->job, name);
        if (!t)
            break;
        if (!shards && t->n_dims == 2)
            shape[0] = t->shape[0];
    }
    uint64_t ne[2] = {c->dims[PLE_ROW], shape[0] * (shards ? shards : 1)};
    for (uint64_t i = 0; i < c->ple_heads; i++)
        if (c->head_offsets[i] + c->head_sizes[i] > need)
            need = c->head_offsets[i] + c->head_sizes[i];
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

static enum strata_result plan_trunk_tensors(struct st_convert_job *job, const struct config *c, struct strata_error *err)
{
    struct place p = {.job = job, .c = c};
    enum strata_result r = STRATA_OK;
    if (!c->tied)
        r = add_entry(&p, &head, err);
    snprintf(p.from, sizeof p.from, "%s", c->prefix);
    if (!r)
        r = ADD(&p, globals);
    for (uint64_t i = 0; i < c->layers && !r; i++) {
        snprintf(p.to, sizeof p.to, "blk.%llu.", (unsigned long long)i);
        snprintf(p.from, sizeof p.from, "%slayers.%llu.", c->prefix, (unsigned long long)i);
        r = add_layer(&p, c->recurrent[i], err);
        if (!r && c->has_ple && c->ple_layer == i)
            r = ADD(&p, ple_layer);
        if (!r && c->has_ple && c->ple_layer == i)
            r = add_ngram_table(&p, err);
    }
    return r;
}

static enum strata_result plan_draft_tensors(struct st_convert_job *job, const struct config *c, struct strata_error *err)
{
    struct place p = {.job = job, .c = c, .from = "mtp."};
    const uint64_t n = c->dims[N], ne[2] = {2 * n, n}, shape[2] = {n, n};
    char name[ST_GGUF_NAME_MAX + 1];
    struct st_convert_tensor *t;
    snprintf(p.to, sizeof p.to, "blk.%llu.", (unsigned long long)c->layers);
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
    r = ADD(&p, draft_globals);
    snprintf(p.from, sizeof p.from, "mtp.layers.0.");
    return r ? r : add_layer(&p, false, err);
}

/* ---- keys ---- */

static void set_u32(struct st_gguf_writer *w, const char *name, uint64_t value)
{
    char key[96];
    snprintf(key, sizeof key, "qwen4exp.%s", name);
    st_gguf_set_u32(w, key, (uint32_t)value);
}

static void set_f32(struct st_gguf_writer *w, const char *name, double value)
{
    char key[96];
    snprintf(key, sizeof key, "qwen4exp.%s", name);
    st_gguf_set_f32(w, key, (float)value);
}

/* The interval that says the same as the list of layer types, or 0. */
static uint64_t attention_interval(const struct config *c)
{
    uint64_t first = 0;
    while (first < c->layers && c->recurrent[first])
        first++;
    for (uint64_t i = 0; i < c->layers; i++)
        if (c->recurrent[i] != ((i + 1) % (first + 1) != 0))
            return 0;
    return first + 1;
}

static void set_general(const struct st_convert_job *job, bool draft, struct st_gguf_writer *w)
{
    const char *dir = job->options->dir, *name = job->options->name;
    size_t size = strlen(dir);
    while (size > 1 && dir[size - 1] == '/')
        size--;
    const char *from = dir + size;
    while (from > dir && from[-1] != '/')
        from--;
    char text[300];
    if (name)
        snprintf(text, sizeof text, "%s%s", name, draft ? " draft layer" : "");
    else
        snprintf(text, sizeof text, "%.*s%s", (int)(dir + size - from), from, draft ? " draft layer" : "");
    st_gguf_set_string(w, "general.architecture", "qwen4exp", 8);
    st_gguf_set_string(w, "general.name", text, strlen(text));
    st_gguf_set_u32(w, "general.quantization_version", 2);
}

static void set_attention(const struct config *c, uint64_t layers, struct st_gguf_writer *w)
{
    int32_t ratios[MAX_LAYERS + 1], sections[4] = {(int32_t)c->sections[0], (int32_t)c->sections[1],
                                                  (int32_t)c->sections[2], 0};
    uint8_t recurrent[MAX_LAYERS + 1];
    for (uint64_t i = 0; i < layers; i++) {
        recurrent[i] = c->recurrent[i];
        ratios[i] = c->recurrent[i] ? 0 : (int32_t)c->index_block;
    }
    set_u32(w, "attention.head_count", c->heads);
    set_u32(w, "attention.head_count_kv", c->kv_heads);
    set_u32(w, "attention.key_length", c->dims[HEAD_DIM]);
    set_u32(w, "attention.value_length", c->dims[HEAD_DIM]);
    set_f32(w, "attention.layer_norm_rms_epsilon", c->epsilon);
    set_u32(w, "rope.dimension_count", c->rope_dims);
    st_gguf_set_array(w, "qwen4exp.rope.dimension_sections", ST_GGUF_I32, sections, 4);
    if (attention_interval(c))
        set_u32(w, "full_attention_interval", attention_interval(c));
    st_gguf_set_array(w, "qwen4exp.attention.recurrent_layers", ST_GGUF_BOOL, recurrent, layers);
    set_u32(w, "attention.indexer.head_count", c->index_heads);
    set_u32(w, "attention.indexer.key_length", c->dims[INDEX_K]);
    set_u32(w, "attention.indexer.top_k", c->index_budget);
    st_gguf_set_array(w, "qwen4exp.attention.compress_ratios", ST_GGUF_I32, ratios, layers);
}

static void set_ple(const struct config *c, struct st_gguf_writer *w)
{
    int32_t layer = (int32_t)c->ple_layer;
    st_gguf_set_array(w, "qwen4exp.ple.layers", ST_GGUF_I32, &layer, 1);
    set_u32(w, "ple.ngram_size", c->ngram);
    set_u32(w, "ple.heads_per_ngram", c->heads_per_ngram);
    set_u32(w, "ple.conv_kernel", c->dims[PLE_TAPS]);
    set_u32(w, "ple.eos_token_id", c->ple_eos);
    set_u32(w, "embedding_length_per_layer_input", c->dims[PLE_ROW]);
    st_gguf_set_array(w, "qwen4exp.ple.layer_multipliers", ST_GGUF_U64, c->multipliers, c->ngram);
    st_gguf_set_array(w, "qwen4exp.ple.head_offsets", ST_GGUF_U64, c->head_offsets, c->ple_heads);
    st_gguf_set_array(w, "qwen4exp.ple.head_vocab_sizes", ST_GGUF_U64, c->head_sizes, c->ple_heads);
    if (c->has_image_token)
        set_u32(w, "ple.image_token_id", c->image_token);
}

static void set_sizes(const struct config *c, uint64_t layers, double rope_base, struct st_gguf_writer *w)
{
    const uint64_t *d = c->dims;
    set_u32(w, "block_count", layers);
    set_u32(w, "context_length", c->context);
    set_u32(w, "embedding_length", d[N]);
    set_attention(c, layers, w);
    set_f32(w, "rope.freq_base", rope_base);
    set_u32(w, "ssm.conv_kernel", d[GDN_TAPS]);
    set_u32(w, "ssm.state_size", c->gdn_key_dim);
    set_u32(w, "ssm.group_count", c->gdn_key_heads);
    set_u32(w, "ssm.time_step_rank", d[GDN_HEADS]);
    set_u32(w, "ssm.inner_size", d[GDN_V]);
    set_u32(w, "expert_count", d[EXPERTS]);
    set_u32(w, "expert_used_count", c->experts_used);
    set_u32(w, "expert_feed_forward_length", d[EXPERT_FF]);
    set_u32(w, "expert_shared_feed_forward_length", d[SHARED_FF]);
    set_u32(w, "hyper_connection.count", d[STREAMS]);
    set_u32(w, "hyper_connection.low_rank", d[RANK]);
}

/* general.file_type is only a label: by the wish, or by the embedding's type. */
static uint32_t file_type(const struct st_convert_job *job, const struct config *c)
{
    char name[MAX_FULL_NAME];
    snprintf(name, sizeof name, "%sembed_tokens.weight", c->prefix);
    const struct st_safetensor *t = st_convert_find(job, name);
    enum st_convert_type type = job->options->type;
    if (type == ST_CONVERT_BF16 || (type == ST_CONVERT_SOURCE && t && t->dtype == ST_DTYPE_BF16))
        return 32;
    return type == ST_CONVERT_F16 || (type == ST_CONVERT_SOURCE && t && t->dtype == ST_DTYPE_F16) ? 1 : 0;
}

static enum strata_result plan(struct st_convert_job *job, bool draft, struct st_gguf_writer *w, struct strata_error *err)
{
    struct config *c = calloc(1, sizeof *c);
    if (!c)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory", job->hf->dir);
    enum strata_result r = read_config(job, c, err);
    if (!r && c->has_ple && !draft)
        r = read_hash(job, c, err);
    if (!r)
        r = draft ? plan_draft_tensors(job, c, err) : plan_trunk_tensors(job, c, err);
    if (!r) {
        set_general(job, draft, w);
        set_sizes(c, c->layers + draft, draft && c->has_draft_rope ? c->draft_rope_base : c->rope_base, w);
        if (draft)
            set_u32(w, "nextn_predict_layers", 1);
        else if (c->has_ple)
            set_ple(c, w);
        st_gguf_set_u32(w, "general.file_type", file_type(job, c));
        r = st_convert_tokenizer(job, c->dims[VOCAB], w, err);
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
