/* Sizes, tensors and keys of qwen4exp files. */
#include "model/qwen4exp_file.h"

#include <stdio.h>

void q4e_derive_sizes(struct q4e_file *f)
{
    uint64_t *d = f->dims;
    d[D_ONE] = 1;
    d[D_WIDE] = d[D_STREAMS] * d[D_N];
    d[D_EXPERT_FF2] = 2 * d[D_EXPERT_FF];
    d[D_GDN_V] = d[D_GDN_HEADS] * d[D_GDN_HEAD_DIM];
    d[D_GDN_QKV] = 2 * f->gdn_key_heads * f->gdn_key_dim + d[D_GDN_V];
    d[D_ATTN_Q2] = 2 * f->heads * d[D_HEAD_DIM];
    d[D_ATTN_OUT] = f->heads * d[D_HEAD_DIM];
    d[D_ATTN_KV] = f->kv_heads * d[D_HEAD_DIM];
    d[D_INDEX_Q] = f->index_heads * d[D_INDEX_K];
    d[D_INDEX_QK] = d[D_INDEX_Q] + d[D_INDEX_K];
    if (f->has_ple) {
        f->ple_heads = (f->ngram - 1) * f->heads_per_ngram;
        d[D_PLE_ROW] = d[D_PLE_WIDTH] / f->ple_heads;
    }
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
void q4e_derive_hash(struct q4e_file *f)
{
    uint64_t largest = INT64_MAX / f->dims[D_VOCAB], half = largest / 2 > 1 ? largest / 2 : 1;
    for (uint64_t i = 0; i < f->ngram; i++)
        f->multipliers[i] = 2 * (splitmix64(f->seed + 0x9E3779B97F4A7C15u * (i + 1)) % half) + 1;
    uint64_t p = f->ngram_base, at = 0;
    for (uint64_t k = 0; k < f->ple_heads; k++, p++) {
        while (!is_prime(p))
            p++;
        f->head_sizes[k] = p;
        f->head_offsets[k] = at;
        at += p;
    }
}

uint64_t q4e_ngram_rows(const struct q4e_file *f)
{
    uint64_t rows = 0;
    for (uint64_t i = 0; i < f->ple_heads; i++)
        if (f->head_offsets[i] + f->head_sizes[i] > rows)
            rows = f->head_offsets[i] + f->head_sizes[i];
    return rows;
}

/* ---- tensors ---- */

const struct q4e_entry q4e_globals[Q4E_GLOBALS] = {
    {"token_embd.weight", "embed_tokens.weight", D_N, D_VOCAB},
    {"output_hc_norm.weight", "hyper_connection_mixer.hc_norm.weight", D_WIDE, D_NONE, Q4E_PLUS_ONE},
    {"output_hc_down.weight", "hyper_connection_mixer.input_mix_weight_down.weight", D_WIDE, D_RANK},
    {"output_hc_up.weight", "hyper_connection_mixer.input_mix_weight_up.weight", D_RANK, D_WIDE},
};

const struct q4e_entry q4e_head = {"output.weight", "lm_head.weight", D_N, D_VOCAB};

const struct q4e_entry q4e_every_layer[Q4E_EVERY_LAYER] = {
    {"hc_attn_norm.weight", "attn_hyper_connection.hc_norm.weight", D_WIDE, D_NONE, Q4E_PLUS_ONE},
    {"hc_attn_down.weight", "attn_hyper_connection.input_mix_weight_down.weight", D_WIDE, D_RANK},
    {"hc_attn_up.weight", "attn_hyper_connection.input_mix_weight_up.weight", D_RANK, D_WIDE},
    {"hc_attn_inject.weight", "attn_hyper_connection.block_inject_weight.weight", D_WIDE, D_STREAMS},
    {"hc_ffn_norm.weight", "mlp_hyper_connection.hc_norm.weight", D_WIDE, D_NONE, Q4E_PLUS_ONE},
    {"hc_ffn_down.weight", "mlp_hyper_connection.input_mix_weight_down.weight", D_WIDE, D_RANK},
    {"hc_ffn_up.weight", "mlp_hyper_connection.input_mix_weight_up.weight", D_RANK, D_WIDE},
    {"hc_ffn_inject.weight", "mlp_hyper_connection.block_inject_weight.weight", D_WIDE, D_STREAMS},
    {"ffn_gate_inp.weight", "mlp.gate.weight", D_N, D_EXPERTS, .fixed = true},
    {"ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight", D_N, D_NONE, .fixed = true, .middle = true},
    {"ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight", D_N, D_SHARED_FF},
    {"ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight", D_N, D_SHARED_FF},
    {"ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight", D_SHARED_FF, D_N},
};

const struct q4e_entry q4e_gdn_layer[Q4E_GDN_LAYER] = {
    {"attn_qkv.weight", "linear_attn.in_proj_qkv.weight", D_N, D_GDN_QKV, .order = Q4E_V_ROWS},
    {"attn_gate.weight", "linear_attn.in_proj_z.weight", D_N, D_GDN_V, .order = Q4E_HEAD_ROWS},
    {"ssm_conv1d.weight", "linear_attn.conv1d.weight", D_GDN_TAPS, D_GDN_QKV, .order = Q4E_V_ROWS, .fixed = true, .middle = true},
    {"ssm_dt.bias", "linear_attn.dt_bias", D_GDN_HEADS, D_NONE, .order = Q4E_HEAD_ENTRIES},
    {"ssm_a", "linear_attn.A_log", D_GDN_HEADS, D_NONE, Q4E_MINUS_EXP, Q4E_HEAD_ENTRIES},
    {"ssm_beta.weight", "linear_attn.in_proj_b.weight", D_N, D_GDN_HEADS, .order = Q4E_HEAD_ROWS},
    {"ssm_alpha.weight", "linear_attn.in_proj_a.weight", D_N, D_GDN_HEADS, .order = Q4E_HEAD_ROWS},
    {"ssm_norm.weight", "linear_attn.norm.weight", D_GDN_HEAD_DIM, D_NONE},
    {"ssm_out.weight", "linear_attn.out_proj.weight", D_GDN_V, D_N, .order = Q4E_HEAD_COLUMNS},
};

const struct q4e_entry q4e_attention_layer[Q4E_ATTENTION_LAYER] = {
    {"attn_q.weight", "self_attn.q_proj.weight", D_N, D_ATTN_Q2},
    {"attn_k.weight", "self_attn.k_proj.weight", D_N, D_ATTN_KV},
    {"attn_v.weight", "self_attn.v_proj.weight", D_N, D_ATTN_KV},
    {"attn_output.weight", "self_attn.o_proj.weight", D_ATTN_OUT, D_N},
    {"attn_q_norm.weight", "self_attn.q_norm.weight", D_HEAD_DIM, D_NONE, Q4E_PLUS_ONE},
    {"attn_k_norm.weight", "self_attn.k_norm.weight", D_HEAD_DIM, D_NONE, Q4E_PLUS_ONE},
    {"indexer.q_proj.weight", "self_attn.indexer.index_qk_proj.weight", D_N, D_INDEX_Q, .rows = D_INDEX_QK},
    {"indexer.k_proj.weight", "self_attn.indexer.index_qk_proj.weight", D_N, D_INDEX_K, .first = D_INDEX_Q, .rows = D_INDEX_QK},
    {"indexer.q_norm.weight", "self_attn.indexer.q_layernorm.weight", D_INDEX_K, D_NONE, Q4E_PLUS_ONE},
    {"indexer.k_norm.weight", "self_attn.indexer.k_layernorm.weight", D_INDEX_K, D_NONE, Q4E_PLUS_ONE},
};

const struct q4e_entry q4e_ple_layer[Q4E_PLE_LAYER] = {
    {"ple_key.weight", "ple.key_proj.weight", D_PLE_WIDTH, D_WIDE},
    {"ple_value.weight", "ple.value_proj.weight", D_PLE_WIDTH, D_N},
    {"ple_norm_key.weight", "ple.norm_key.weight", D_WIDE, D_NONE, Q4E_PLUS_ONE},
    {"ple_norm_query.weight", "ple.norm_query.weight", D_WIDE, D_NONE, Q4E_PLUS_ONE},
    {"ple_norm_conv.weight", "ple.norm_conv.weight", D_WIDE, D_NONE, Q4E_PLUS_ONE},
    {"ple_conv1d.weight", "ple.conv1d.weight", D_PLE_TAPS, D_WIDE, .fixed = true, .middle = true},
};

const struct q4e_entry q4e_draft_globals[Q4E_DRAFT_GLOBALS] = {
    {"nextn.enorm.weight", "pre_fc_norm_embedding.weight", D_N, D_NONE, Q4E_PLUS_ONE},
    {"nextn.hnorm.weight", "pre_fc_norm_hidden.weight", D_WIDE, D_NONE, Q4E_PLUS_ONE},
    {"nextn.hc_head_norm.weight", "hyper_connection_mixer.hc_norm.weight", D_WIDE, D_NONE, Q4E_PLUS_ONE},
    {"nextn.hc_head_down.weight", "hyper_connection_mixer.input_mix_weight_down.weight", D_WIDE, D_RANK},
    {"nextn.hc_head_up.weight", "hyper_connection_mixer.input_mix_weight_up.weight", D_RANK, D_WIDE},
};

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
static uint64_t attention_interval(const struct q4e_file *f)
{
    uint64_t first = 0;
    while (first < f->layers && f->recurrent[first])
        first++;
    for (uint64_t i = 0; i < f->layers; i++)
        if (f->recurrent[i] != ((i + 1) % (first + 1) != 0))
            return 0;
    return first + 1;
}

static void set_attention(const struct q4e_file *f, uint64_t layers, struct st_gguf_writer *w)
{
    int32_t ratios[Q4E_MAX_LAYERS + 1], sections[4] = {(int32_t)f->sections[0], (int32_t)f->sections[1],
                                                  (int32_t)f->sections[2], 0};
    uint8_t recurrent[Q4E_MAX_LAYERS + 1];
    for (uint64_t i = 0; i < layers; i++) {
        recurrent[i] = f->recurrent[i];
        ratios[i] = f->recurrent[i] ? 0 : (int32_t)f->index_block;
    }
    set_u32(w, "attention.head_count", f->heads);
    set_u32(w, "attention.head_count_kv", f->kv_heads);
    set_u32(w, "attention.key_length", f->dims[D_HEAD_DIM]);
    set_u32(w, "attention.value_length", f->dims[D_HEAD_DIM]);
    set_f32(w, "attention.layer_norm_rms_epsilon", f->epsilon);
    set_u32(w, "rope.dimension_count", f->rope_dims);
    st_gguf_set_array(w, "qwen4exp.rope.dimension_sections", ST_GGUF_I32, sections, 4);
    if (attention_interval(f))
        set_u32(w, "full_attention_interval", attention_interval(f));
    st_gguf_set_array(w, "qwen4exp.attention.recurrent_layers", ST_GGUF_BOOL, recurrent, layers);
    set_u32(w, "attention.indexer.head_count", f->index_heads);
    set_u32(w, "attention.indexer.key_length", f->dims[D_INDEX_K]);
    set_u32(w, "attention.indexer.top_k", f->index_budget);
    st_gguf_set_array(w, "qwen4exp.attention.compress_ratios", ST_GGUF_I32, ratios, layers);
}

static void set_ple(const struct q4e_file *f, struct st_gguf_writer *w)
{
    int32_t layer = (int32_t)f->ple_layer;
    st_gguf_set_array(w, "qwen4exp.ple.layers", ST_GGUF_I32, &layer, 1);
    set_u32(w, "ple.ngram_size", f->ngram);
    set_u32(w, "ple.heads_per_ngram", f->heads_per_ngram);
    set_u32(w, "ple.conv_kernel", f->dims[D_PLE_TAPS]);
    set_u32(w, "ple.eos_token_id", f->ple_eos);
    set_u32(w, "embedding_length_per_layer_input", f->dims[D_PLE_ROW]);
    st_gguf_set_array(w, "qwen4exp.ple.layer_multipliers", ST_GGUF_U64, f->multipliers, f->ngram);
    st_gguf_set_array(w, "qwen4exp.ple.head_offsets", ST_GGUF_U64, f->head_offsets, f->ple_heads);
    st_gguf_set_array(w, "qwen4exp.ple.head_vocab_sizes", ST_GGUF_U64, f->head_sizes, f->ple_heads);
    if (f->has_image_token)
        set_u32(w, "ple.image_token_id", f->image_token);
}

static void set_sizes(const struct q4e_file *f, uint64_t layers, double rope_base, struct st_gguf_writer *w)
{
    const uint64_t *d = f->dims;
    set_u32(w, "block_count", layers);
    set_u32(w, "context_length", f->context);
    set_u32(w, "embedding_length", d[D_N]);
    set_attention(f, layers, w);
    set_f32(w, "rope.freq_base", rope_base);
    set_u32(w, "ssm.conv_kernel", d[D_GDN_TAPS]);
    set_u32(w, "ssm.state_size", f->gdn_key_dim);
    set_u32(w, "ssm.group_count", f->gdn_key_heads);
    set_u32(w, "ssm.time_step_rank", d[D_GDN_HEADS]);
    set_u32(w, "ssm.inner_size", d[D_GDN_V]);
    set_u32(w, "expert_count", d[D_EXPERTS]);
    set_u32(w, "expert_used_count", f->experts_used);
    set_u32(w, "expert_feed_forward_length", d[D_EXPERT_FF]);
    set_u32(w, "expert_shared_feed_forward_length", d[D_SHARED_FF]);
    set_u32(w, "hyper_connection.count", d[D_STREAMS]);
    set_u32(w, "hyper_connection.low_rank", d[D_RANK]);
}

void q4e_set_keys(const struct q4e_file *f, bool draft, struct st_gguf_writer *w)
{
    set_sizes(f, f->layers + draft, draft && f->has_draft_rope ? f->draft_rope_base : f->rope_base, w);
    if (draft)
        set_u32(w, "nextn_predict_layers", 1);
    else if (f->has_ple)
        set_ple(f, w);
}
