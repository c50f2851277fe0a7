/* Conversion of LlamaForCausalLM checkpoints (Llama 3, SmolLM2). Names and shapes are those of the checkpoints as
 * published; the output's names, the order of query and key rows and rope_freqs.weight are those of GGUF files of the
 * "llama" architecture.
 *
 * Rotation: the checkpoints turn element i of a head together with element i + half, GGUF files of this architecture
 * turn neighbours, so row 2i of a head is the source's row i and row 2i + 1 the source's row half + i. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/qsa.h"
#include "model/convert_job.h"
#include "model/families.h"

#define PREFIX "llama."

enum { MAX_LAYERS = 1024, BIG = 1 << 20, MAX_NAME = 128 };

static const char embedding[] = "model.embed_tokens.weight", head[] = "lm_head.weight";

struct config {
    uint64_t layers, hidden, vocabulary, context, heads, kv_heads, head_dim, ffn;
    double epsilon, rope_base;
    bool tied, scaled;
    float factor[ST_ROT_MAX / 2]; /* of the rotation's frequencies, when scaled */
};

/* ---- config.json ---- */

static enum strata_result check_fixed(struct st_json top, struct strata_error *err)
{
    const char *act;
    bool attention_bias, mlp_bias;
    double rotary;
    enum strata_result r = st_json_text_or(top, "hidden_act", "silu", &act, err);
    if (!r)
        r = st_json_bool_or(top, "attention_bias", false, &attention_bias, err);
    if (!r)
        r = st_json_bool_or(top, "mlp_bias", false, &mlp_bias, err);
    if (!r)
        r = st_json_f64_or(top, "partial_rotary_factor", 1, &rotary, err);
    if (r)
        return r;
    const char *wrong = strcmp(act, "silu") ? "hidden_act is not silu"
                        : attention_bias    ? "attention_bias is on"
                        : mlp_bias          ? "mlp_bias is on"
                        : rotary != 1       ? "partial_rotary_factor is not 1"
                                            : NULL;
    return wrong
               ? st_fail(err, STRATA_E_UNSUPPORTED, "%s: %s, which this conversion does not express", top.where, wrong)
               : STRATA_OK;
}

/* Frequency factors of rope type "llama3" (as published with Llama 3.1): waves longer than context / low are slowed by
 * factor, those shorter than context / high stay, between them the two are blended by the number of turns. */
static enum strata_result read_llama3(struct st_json rope, struct config *c, struct strata_error *err)
{
    double factor, low, high, context;
    enum strata_result r = st_json_f64(rope, "factor", &factor, err);
    if (!r)
        r = st_json_f64(rope, "low_freq_factor", &low, err);
    if (!r)
        r = st_json_f64(rope, "high_freq_factor", &high, err);
    if (!r)
        r = st_json_f64(rope, "original_max_position_embeddings", &context, err);
    if (r)
        return r;
    if (!(factor >= 1 && factor < 1e6 && low > 0 && high > low && high < 1e6 && context >= 1 && context < 1e12))
        return st_fail(err, STRATA_E_FORMAT, "%s: factors of the rotation (%g, %g to %g, %g tokens) are out of range",
                       rope.where, factor, low, high, context);
    for (uint64_t i = 0; i < c->head_dim / 2; i++) {
        double turns = context * pow(c->rope_base, -2.0 * (double)i / (double)c->head_dim) / (2 * acos(-1.0));
        double blend = (turns - low) / (high - low);
        blend = blend < 0 ? 0 : blend > 1 ? 1 : blend;
        c->factor[i] = (float)(1 / ((1 - blend) / factor + blend));
    }
    c->scaled = true;
    return STRATA_OK;
}

/* rope_theta on top with rope_scaling beside it, or both in rope_parameters. */
static enum strata_result read_rope(struct st_json top, struct config *c, struct strata_error *err)
{
    struct st_json rope = {st_json_get(top, "rope_parameters"), top.where};
    const char *type = "default";
    if (!rope.value)
        rope.value = st_json_get(top, "rope_scaling");
    bool inside = rope.value && st_json_get(rope, "rope_theta");
    enum strata_result r = st_json_f64_or(inside ? rope : top, "rope_theta", 10000, &c->rope_base, err);
    if (!r && rope.value)
        r = st_json_text_or(rope, st_json_get(rope, "rope_type") ? "rope_type" : "type", "default", &type, err);
    if (r)
        return r;
    if (!(c->rope_base > 1 && c->rope_base < 1e12))
        return st_fail(err, STRATA_E_FORMAT, "%s: rope_theta %g is out of range", top.where, c->rope_base);
    if (!strcmp(type, "default"))
        return STRATA_OK;
    if (!strcmp(type, "llama3"))
        return read_llama3(rope, c, err);
    char shown[60];
    return st_fail(err, STRATA_E_UNSUPPORTED, "%s: rotary embedding of type '%s' is not supported", top.where,
                   st_printable(shown, sizeof shown, type, strlen(type)));
}

static enum strata_result read_config(const struct st_convert_job *job, struct config *c, struct strata_error *err)
{
    struct st_json top = {job->hf->config, job->hf->config_path};
    const struct st_convert_setting settings[] = {
        {"num_hidden_layers", &c->layers, 1, MAX_LAYERS},
        {"hidden_size", &c->hidden, 1, BIG},
        {"intermediate_size", &c->ffn, 1, BIG},
        {"vocab_size", &c->vocabulary, 1, 1 << 24},
        {"max_position_embeddings", &c->context, 1, 1u << 30},
        {"num_attention_heads", &c->heads, 1, 65536},
    };
    enum strata_result r = st_convert_settings(top, settings, sizeof settings / sizeof settings[0], err);
    if (!r)
        r = st_json_u64_or(top, "num_key_value_heads", c->heads, &c->kv_heads, err);
    if (!r)
        r = st_json_u64_or(top, "head_dim", c->hidden / c->heads, &c->head_dim, err);
    if (!r)
        r = st_json_f64(top, "rms_norm_eps", &c->epsilon, err);
    if (!r)
        r = st_json_bool_or(top, "tie_word_embeddings", false, &c->tied, err);
    if (!r && (!c->kv_heads || c->kv_heads > c->heads || c->heads % c->kv_heads || c->head_dim < 2 || c->head_dim % 2 ||
               c->head_dim > ST_ROT_MAX || !(c->epsilon >= 0 && c->epsilon < 1)))
        r = st_fail(err, STRATA_E_FORMAT,
                    "%s: %llu heads of %llu over %llu key heads, or rms_norm_eps %g, are out of range", top.where,
                    (unsigned long long)c->heads, (unsigned long long)c->head_dim, (unsigned long long)c->kv_heads,
                    c->epsilon);
    if (!r)
        r = check_fixed(top, err);
    return r ? r : read_rope(top, c, err);
}

/* ---- tensors ---- */

/* A vector (rows 0) or matrix of one source tensor; turned: rows are heads whose halves are to become neighbours. */
static enum strata_result add(struct st_convert_job *job, const struct config *c, const char *to, const char *from,
                              uint64_t rows, uint64_t columns, bool turned, struct strata_error *err)
{
    const uint64_t shape[2] = {rows ? rows : columns, columns}, ne[2] = {columns, rows};
    const struct st_safetensor *source;
    struct st_convert_tensor *t;
    uint32_t n = rows ? 2 : 1;
    enum strata_result r = st_convert_source(job, from, n, shape, &source, err);
    if (!r)
        r = st_convert_add(job, to, n, ne, 1, n == 1, &t, err);
    if (r)
        return r;
    t->parts[0] = (struct st_convert_part){source, 0, rows ? rows : 1};
    if (turned)
        t->rows = (struct st_convert_order){.block = 1, .groups = 2, .per = c->head_dim / 2, .span = c->head_dim};
    return STRATA_OK;
}

static enum strata_result add_layer(struct st_convert_job *job, const struct config *c, uint64_t layer,
                                    struct strata_error *err)
{
    uint64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    const struct {
        const char *to, *from;
        uint64_t rows, columns;
        bool turned;
    } tensors[] = {
        {"attn_norm", "input_layernorm", 0, c->hidden, false},
        {"attn_q", "self_attn.q_proj", q, c->hidden, true},
        {"attn_k", "self_attn.k_proj", kv, c->hidden, true},
        {"attn_v", "self_attn.v_proj", kv, c->hidden, false},
        {"attn_output", "self_attn.o_proj", c->hidden, q, false},
        {"ffn_norm", "post_attention_layernorm", 0, c->hidden, false},
        {"ffn_gate", "mlp.gate_proj", c->ffn, c->hidden, false},
        {"ffn_up", "mlp.up_proj", c->ffn, c->hidden, false},
        {"ffn_down", "mlp.down_proj", c->hidden, c->ffn, false},
    };
    enum strata_result r = STRATA_OK;
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0] && !r; i++) {
        char to[MAX_NAME], from[MAX_NAME];
        snprintf(to, sizeof to, "blk.%llu.%s.weight", (unsigned long long)layer, tensors[i].to);
        snprintf(from, sizeof from, "model.layers.%llu.%s.weight", (unsigned long long)layer, tensors[i].from);
        r = add(job, c, to, from, tensors[i].rows, tensors[i].columns, tensors[i].turned, err);
    }
    /* Old checkpoints hold the frequencies, which follow from the configuration. */
    char name[MAX_NAME];
    const struct st_safetensor *unused;
    const uint64_t any = 0;
    snprintf(name, sizeof name, "model.layers.%llu.self_attn.rotary_emb.inv_freq", (unsigned long long)layer);
    if (!r && st_convert_find(job, name))
        r = st_convert_source(job, name, 1, &any, &unused, err);
    return r;
}

static enum strata_result plan_tensors(struct st_convert_job *job, const struct config *c, struct strata_error *err)
{
    const uint64_t shape[2] = {c->vocabulary, c->hidden};
    const struct st_safetensor *unused;
    enum strata_result r = add(job, c, "token_embd.weight", embedding, c->vocabulary, c->hidden, false, err);
    if (!r)
        r = add(job, c, "output_norm.weight", "model.norm.weight", 0, c->hidden, false, err);
    if (!r && !c->tied)
        r = add(job, c, "output.weight", head, c->vocabulary, c->hidden, false, err);
    else if (!r && st_convert_find(job, head)) /* tied: a head that was saved all the same is the embedding's copy */
        r = st_convert_source(job, head, 2, shape, &unused, err);
    if (!r && c->scaled)
        r = st_convert_add_made(job, "rope_freqs.weight", c->factor, (size_t)c->head_dim / 2, err);
    for (uint64_t i = 0; i < c->layers && !r; i++)
        r = add_layer(job, c, i, err);
    return r;
}

static void set_keys(const struct config *c, struct st_gguf_writer *w)
{
    const struct {
        const char *name;
        uint64_t value;
    } sizes[] = {
        {PREFIX "block_count", c->layers},
        {PREFIX "context_length", c->context},
        {PREFIX "embedding_length", c->hidden},
        {PREFIX "feed_forward_length", c->ffn},
        {PREFIX "attention.head_count", c->heads},
        {PREFIX "attention.head_count_kv", c->kv_heads},
        {PREFIX "attention.key_length", c->head_dim},
        {PREFIX "attention.value_length", c->head_dim},
        {PREFIX "rope.dimension_count", c->head_dim},
        {PREFIX "vocab_size", c->vocabulary},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        st_gguf_set_u32(w, sizes[i].name, (uint32_t)sizes[i].value);
    st_gguf_set_f32(w, PREFIX "attention.layer_norm_rms_epsilon", (float)c->epsilon);
    st_gguf_set_f32(w, PREFIX "rope.freq_base", (float)c->rope_base);
}

static enum strata_result plan(struct st_convert_job *job, bool draft, struct st_gguf_writer *w,
                               struct strata_error *err)
{
    struct config c = {0};
    if (draft)
        return st_fail(err, STRATA_E_UNSUPPORTED, "%s: a llama model has no draft layer", job->hf->config_path);
    enum strata_result r = read_config(job, &c, err);
    if (!r)
        r = plan_tensors(job, &c, err);
    if (r)
        return r;
    st_convert_general(job, "llama", "", embedding, w);
    set_keys(&c, w);
    return st_convert_tokenizer(job, c.vocabulary, w, err);
}

static bool accepts(const char *model_type)
{
    return !strcmp(model_type, "llama");
}

const struct st_convert_family st_llama_convert = {.name = "llama", .accepts = accepts, .plan = plan};
