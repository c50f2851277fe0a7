/* See make_model.h. Values depend on the seed, the tensor's name and the place alone. */
#include "make_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/quant.h"

enum { POOL_BLOCKS = 256, BUFFER = 1 << 18 };

static uint64_t bits(uint64_t *seed)
{
    uint64_t v = *seed += 0x9E3779B97F4A7C15u;
    v = (v ^ v >> 30) * 0xBF58476D1CE4E5B9u;
    v = (v ^ v >> 27) * 0x94D049BB133111EBu;
    return v ^ v >> 31;
}

/* Mean 0, variance 1, nearly normal: the sum of four uniform numbers. */
static float noise(uint64_t *seed)
{
    uint64_t b = bits(seed);
    float sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (float)(b >> 16 * i & 0xffff) * 0x1p-16f - 0.5f;
    return sum * 1.7320508f;
}

/* ---- lists ---- */

struct make_tensor *make_add(struct make_model *m, const char *name, uint64_t ne0, uint64_t ne1, uint64_t ne2,
                             float mean, float spread)
{
    struct make_tensor *t = &m->tensor[m->tensors++];
    *t = (struct make_tensor){.type = ST_TYPE_F32,
                              .n_dims = ne2   ? 3
                                        : ne1 ? 2
                                              : 1,
                              .ne = {ne0, ne1, ne2},
                              .mean = mean,
                              .spread = spread};
    snprintf(t->name, sizeof t->name, "%s", name);
    return t;
}

static struct make_tensor *layer_tensor(struct make_model *m, uint32_t layer, const char *tail, uint64_t ne0,
                                        uint64_t ne1, uint64_t ne2, float mean, float spread)
{
    char name[ST_GGUF_NAME_MAX + 1];
    snprintf(name, sizeof name, "blk.%u.%s", layer, tail);
    return make_add(m, name, ne0, ne1, ne2, mean, spread);
}

/* A matrix whose products keep the size of their inputs, times gain. */
static void matrix(struct make_model *m, uint32_t layer, const char *tail, uint64_t in, uint64_t out, uint64_t experts,
                   float gain)
{
    layer_tensor(m, layer, tail, in, out, experts, 0, gain / sqrtf((float)in));
}

static void norm(struct make_model *m, uint32_t layer, const char *tail, uint64_t n)
{
    layer_tensor(m, layer, tail, n, 0, 0, 1, 0.1f);
}

static void gated(struct make_model *m, uint32_t layer, const char *stem, bool inject)
{
    uint64_t wide = (uint64_t)m->streams * m->hidden;
    char tail[40];
    snprintf(tail, sizeof tail, "%s_norm.weight", stem);
    norm(m, layer, tail, wide);
    snprintf(tail, sizeof tail, "%s_down.weight", stem);
    matrix(m, layer, tail, wide, m->rank, 0, 4);
    snprintf(tail, sizeof tail, "%s_up.weight", stem);
    matrix(m, layer, tail, m->rank, wide, 0, 2);
    snprintf(tail, sizeof tail, "%s_inject.weight", stem);
    if (inject)
        matrix(m, layer, tail, wide, m->streams, 0, 2);
}

static void recurrent_layer(struct make_model *m, uint32_t i)
{
    uint64_t inner = (uint64_t)m->value_heads * m->value_dim, channels = 2ull * m->key_heads * m->key_dim + inner;
    matrix(m, i, "attn_qkv.weight", m->hidden, channels, 0, 1.5f);
    matrix(m, i, "attn_gate.weight", m->hidden, inner, 0, 1.5f);
    matrix(m, i, "ssm_beta.weight", m->hidden, m->value_heads, 0, 1);
    matrix(m, i, "ssm_alpha.weight", m->hidden, m->value_heads, 0, 1);
    layer_tensor(m, i, "ssm_a", m->value_heads, 0, 0, 0.3f, 0.3f)->negative = true;
    layer_tensor(m, i, "ssm_dt.bias", m->value_heads, 0, 0, 0, 1);
    layer_tensor(m, i, "ssm_conv1d.weight", m->taps, channels, 0, 0, 0.6f);
    norm(m, i, "ssm_norm.weight", m->value_dim);
    matrix(m, i, "ssm_out.weight", inner, m->hidden, 0, 2);
}

static void attention_layer(struct make_model *m, uint32_t i)
{
    uint64_t q = (uint64_t)m->heads * m->head_dim, kv = (uint64_t)m->kv_heads * m->head_dim;
    matrix(m, i, "attn_q.weight", m->hidden, 2 * q, 0, 1);
    matrix(m, i, "attn_k.weight", m->hidden, kv, 0, 1);
    matrix(m, i, "attn_v.weight", m->hidden, kv, 0, 1);
    matrix(m, i, "attn_output.weight", q, m->hidden, 0, 3);
    norm(m, i, "attn_q_norm.weight", m->head_dim);
    norm(m, i, "attn_k_norm.weight", m->head_dim);
    matrix(m, i, "indexer.q_proj.weight", m->hidden, (uint64_t)m->index_heads * m->index_dim, 0, 1);
    matrix(m, i, "indexer.k_proj.weight", m->hidden, m->index_dim, 0, 1);
    norm(m, i, "indexer.q_norm.weight", m->index_dim);
    norm(m, i, "indexer.k_norm.weight", m->index_dim);
}

static void layer(struct make_model *m, uint32_t i, bool recurrent)
{
    gated(m, i, "hc_attn", true);
    gated(m, i, "hc_ffn", true);
    if (recurrent)
        recurrent_layer(m, i);
    else
        attention_layer(m, i);
    matrix(m, i, "ffn_gate_inp.weight", m->hidden, m->experts, 0, 2);
    matrix(m, i, "ffn_gate_exps.weight", m->hidden, m->expert_width, m->experts, 1);
    matrix(m, i, "ffn_up_exps.weight", m->hidden, m->expert_width, m->experts, 1);
    matrix(m, i, "ffn_down_exps.weight", m->expert_width, m->hidden, m->experts, 3);
    layer_tensor(m, i, "ffn_gate_inp_shexp.weight", m->hidden, 0, 0, 0, 1 / sqrtf((float)m->hidden));
    matrix(m, i, "ffn_gate_shexp.weight", m->hidden, m->shared_width, 0, 1);
    matrix(m, i, "ffn_up_shexp.weight", m->hidden, m->shared_width, 0, 1);
    matrix(m, i, "ffn_down_shexp.weight", m->shared_width, m->hidden, 0, 3);
}

static struct make_key *key(struct make_model *m, const char *name, enum st_gguf_type type, double value)
{
    struct make_key *k = &m->key[m->keys++];
    *k = (struct make_key){.type = type, .count = 1, .value = {value}};
    snprintf(k->name, sizeof k->name, "%s%s", strchr(name, '!') ? "" : "qwen4exp.", name + (*name == '!'));
    return k;
}

static void number(struct make_model *m, const char *name, double value)
{
    key(m, name, ST_GGUF_U32, value);
}

static struct make_key *array(struct make_model *m, const char *name, enum st_gguf_type type, size_t count)
{
    struct make_key *k = key(m, name, type, 0);
    k->array = true;
    k->count = count;
    return k;
}

static void plan_keys(struct make_model *m)
{
    uint32_t blocks = m->layers + m->draft;
    key(m, "!general.architecture", ST_GGUF_STRING, 0);
    number(m, "block_count", blocks);
    number(m, "context_length", m->context);
    number(m, "embedding_length", m->hidden);
    number(m, "attention.head_count", m->heads);
    number(m, "attention.head_count_kv", m->kv_heads);
    number(m, "attention.key_length", m->head_dim);
    number(m, "attention.value_length", m->head_dim);
    key(m, "attention.layer_norm_rms_epsilon", ST_GGUF_F32, 1e-6);
    number(m, "rope.dimension_count", m->rot);
    key(m, "rope.freq_base", ST_GGUF_F32, 1e7);
    struct make_key *k = array(m, "rope.dimension_sections", ST_GGUF_I32, 4);
    for (int i = 0; i < 3; i++)
        k->value[i] = m->section[i];
    number(m, "ssm.conv_kernel", m->taps);
    number(m, "ssm.state_size", m->key_dim);
    number(m, "ssm.group_count", m->key_heads);
    number(m, "ssm.time_step_rank", m->value_heads);
    number(m, "ssm.inner_size", (double)m->value_heads * m->value_dim);
    k = array(m, "attention.recurrent_layers", ST_GGUF_BOOL, blocks);
    for (uint32_t i = 0; i < m->layers; i++)
        k->value[i] = m->recurrent[i];
    k = array(m, "attention.compress_ratios", ST_GGUF_I32, blocks);
    for (uint32_t i = 0; i < blocks; i++)
        k->value[i] = i < m->layers && m->recurrent[i] ? 0 : m->ratio;
    number(m, "expert_count", m->experts);
    number(m, "expert_used_count", m->used);
    number(m, "expert_feed_forward_length", m->expert_width);
    number(m, "expert_shared_feed_forward_length", m->shared_width);
    number(m, "hyper_connection.count", m->streams);
    number(m, "hyper_connection.low_rank", m->rank);
    number(m, "attention.indexer.head_count", m->index_heads);
    number(m, "attention.indexer.key_length", m->index_dim);
    number(m, "attention.indexer.top_k", m->budget);
    array(m, "ple.layers", ST_GGUF_I32, 1)->value[0] = m->ngram_layer;
    number(m, "ple.ngram_size", 3);
    number(m, "ple.heads_per_ngram", m->heads_per_ngram);
    number(m, "ple.conv_kernel", m->ngram_taps);
    number(m, "ple.eos_token_id", m->reset);
    number(m, "embedding_length_per_layer_input", m->ngram_width);
    k = array(m, "ple.layer_multipliers", ST_GGUF_U64, 3);
    k->value[0] = 23703573157769;
    k->value[1] = 20109073645365;
    k->value[2] = 8052911324071;
    k = array(m, "ple.head_vocab_sizes", ST_GGUF_U64, 2ull * m->heads_per_ngram);
    for (uint32_t i = 0; i < k->count; i++)
        k->value[i] = m->head_rows + 2 * i;
    k = array(m, "ple.head_offsets", ST_GGUF_U64, 2ull * m->heads_per_ngram);
    for (uint32_t i = 1; i < k->count; i++)
        k->value[i] = k->value[i - 1] + m->head_rows + 2 * (i - 1);
    if (m->draft)
        number(m, "nextn_predict_layers", 1);
}

void make_plan(struct make_model *m)
{
    uint64_t wide = (uint64_t)m->streams * m->hidden, heads = 2ull * m->heads_per_ngram, in = heads * m->ngram_width;
    m->tensors = m->keys = 0;
    plan_keys(m);
    make_add(m, "token_embd.weight", m->hidden, m->vocabulary, 0, 0, 1);
    make_add(m, "output.weight", m->hidden, m->vocabulary, 0, 0, 1 / sqrtf((float)m->hidden));
    make_add(m, "output_hc_norm.weight", wide, 0, 0, 1, 0.1f);
    make_add(m, "output_hc_down.weight", wide, m->rank, 0, 0, 4 / sqrtf((float)wide));
    make_add(m, "output_hc_up.weight", m->rank, wide, 0, 0, 2 / sqrtf((float)m->rank));
    make_add(m, "per_layer_token_embd.weight", m->ngram_width, heads * (m->head_rows + heads - 1), 0, 0, 1);
    for (uint32_t i = 0; i < m->layers; i++)
        layer(m, i, m->recurrent[i]);
    uint32_t at = m->ngram_layer;
    matrix(m, at, "ple_key.weight", in, wide, 0, 1);
    matrix(m, at, "ple_value.weight", in, m->hidden, 0, 1);
    norm(m, at, "ple_norm_key.weight", wide);
    norm(m, at, "ple_norm_query.weight", wide);
    norm(m, at, "ple_norm_conv.weight", wide);
    layer_tensor(m, at, "ple_conv1d.weight", m->ngram_taps, wide, 0, 0, 0.5f);
    if (!m->draft)
        return;
    matrix(m, m->layers, "nextn.eh_proj.weight", 2 * m->hidden, m->hidden, 0, 1);
    norm(m, m->layers, "nextn.enorm.weight", m->hidden);
    norm(m, m->layers, "nextn.hnorm.weight", wide);
    gated(m, m->layers, "nextn.hc_head", false);
    layer(m, m->layers, false);
}

struct make_tensor *make_find(struct make_model *m, const char *name)
{
    for (size_t i = 0; i < m->tensors; i++)
        if (!strcmp(m->tensor[i].name, name))
            return &m->tensor[i];
    return NULL;
}

struct make_key *make_find_key(struct make_model *m, const char *name)
{
    for (size_t i = 0; i < m->keys; i++)
        if (!strcmp(m->key[i].name, name))
            return &m->key[i];
    return NULL;
}

void make_small(struct make_model *m)
{
    *m = (struct make_model){.layers = 2,
                             .hidden = 32,
                             .streams = 2,
                             .rank = 4,
                             .vocabulary = 20,
                             .context = 64,
                             .heads = 2,
                             .kv_heads = 1,
                             .head_dim = 8,
                             .rot = 4,
                             .section = {1, 1},
                             .index_heads = 2,
                             .index_dim = 8,
                             .budget = 8,
                             .ratio = 4,
                             .key_heads = 1,
                             .value_heads = 2,
                             .key_dim = 8,
                             .value_dim = 8,
                             .taps = 3,
                             .experts = 4,
                             .used = 2,
                             .expert_width = 8,
                             .shared_width = 8,
                             .ngram_layer = 1,
                             .ngram_width = 8,
                             .heads_per_ngram = 2,
                             .ngram_taps = 2,
                             .head_rows = 11,
                             .reset = 5,
                             .draft = true,
                             .recurrent = {true},
                             .seed = 1};
    make_plan(m);
}

void make_wide(struct make_model *m)
{
    static const struct {
        const char *name;
        int type;
    } types[] = {{"token_embd.weight", ST_TYPE_Q4_K},
                 {"output.weight", ST_TYPE_Q6_K},
                 {"output_hc_down.weight", ST_TYPE_Q8_0},
                 {"output_hc_up.weight", ST_TYPE_Q5_1},
                 {"per_layer_token_embd.weight", ST_TYPE_IQ4_NL},
                 {"blk.0.hc_attn_down.weight", ST_TYPE_BF16},
                 {"blk.0.hc_attn_up.weight", ST_TYPE_IQ4_NL},
                 {"blk.0.hc_ffn_down.weight", ST_TYPE_Q5_K},
                 {"blk.0.hc_ffn_up.weight", ST_TYPE_Q5_1},
                 {"blk.0.hc_ffn_inject.weight", ST_TYPE_BF16},
                 {"blk.0.attn_qkv.weight", ST_TYPE_IQ3_XXS},
                 {"blk.0.attn_gate.weight", ST_TYPE_Q3_K},
                 {"blk.0.ssm_beta.weight", ST_TYPE_F16},
                 {"blk.0.ssm_alpha.weight", ST_TYPE_BF16},
                 {"blk.0.ssm_conv1d.weight", ST_TYPE_F16},
                 {"blk.0.ssm_out.weight", ST_TYPE_IQ4_XS},
                 {"blk.0.ffn_gate_exps.weight", ST_TYPE_IQ3_XXS},
                 {"blk.0.ffn_up_exps.weight", ST_TYPE_Q2_K},
                 {"blk.0.ffn_down_exps.weight", ST_TYPE_Q2_0},
                 {"blk.0.ffn_gate_shexp.weight", ST_TYPE_MXFP4},
                 {"blk.0.ffn_up_shexp.weight", ST_TYPE_NVFP4},
                 {"blk.0.ffn_down_shexp.weight", ST_TYPE_Q5_0},
                 {"blk.1.hc_attn_down.weight", ST_TYPE_IQ2_XXS},
                 {"blk.1.hc_attn_up.weight", ST_TYPE_Q4_0},
                 {"blk.1.hc_attn_inject.weight", ST_TYPE_Q8_0},
                 {"blk.1.hc_ffn_down.weight", ST_TYPE_F16},
                 {"blk.1.hc_ffn_up.weight", ST_TYPE_MXFP4},
                 {"blk.1.attn_q.weight", ST_TYPE_Q4_K},
                 {"blk.1.attn_k.weight", ST_TYPE_IQ2_S},
                 {"blk.1.attn_v.weight", ST_TYPE_Q4_1},
                 {"blk.1.attn_output.weight", ST_TYPE_IQ3_S},
                 {"blk.1.indexer.q_proj.weight", ST_TYPE_BF16},
                 {"blk.1.indexer.k_proj.weight", ST_TYPE_Q8_0},
                 {"blk.1.ffn_gate_inp.weight", ST_TYPE_BF16},
                 {"blk.1.ffn_gate_exps.weight", ST_TYPE_IQ2_XS},
                 {"blk.1.ffn_up_exps.weight", ST_TYPE_IQ1_S},
                 {"blk.1.ffn_down_exps.weight", ST_TYPE_NVFP4},
                 {"blk.1.ffn_gate_shexp.weight", ST_TYPE_Q6_K},
                 {"blk.1.ffn_up_shexp.weight", ST_TYPE_Q8_0},
                 {"blk.1.ffn_down_shexp.weight", ST_TYPE_IQ4_NL},
                 {"blk.1.ple_key.weight", ST_TYPE_Q2_0},
                 {"blk.1.ple_value.weight", ST_TYPE_IQ4_XS},
                 {"blk.1.ple_conv1d.weight", ST_TYPE_BF16}};
    *m = (struct make_model){.layers = 2,
                             .hidden = 2560,
                             .streams = 4,
                             .rank = 320,
                             .vocabulary = 512,
                             .context = 256,
                             .heads = 24,
                             .kv_heads = 2,
                             .head_dim = 256,
                             .rot = 64,
                             .section = {11, 11, 10},
                             .index_heads = 4,
                             .index_dim = 128,
                             .budget = 16,
                             .ratio = 4,
                             .key_heads = 16,
                             .value_heads = 48,
                             .key_dim = 128,
                             .value_dim = 128,
                             .taps = 4,
                             .experts = 16,
                             .used = 10,
                             .expert_width = 640,
                             .shared_width = 640,
                             .ngram_layer = 1,
                             .ngram_width = 160,
                             .heads_per_ngram = 8,
                             .ngram_taps = 4,
                             .head_rows = 211,
                             .reset = 500,
                             .recurrent = {true},
                             .seed = 20};
    make_plan(m);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        make_find(m, types[i].name)->type = types[i].type;
    /* Factors of the products, as files of this type have them. */
    make_add(m, "blk.0.ffn_up_shexp.scale", 1, 0, 0, 1.5f, 0.1f);
    make_add(m, "blk.1.ffn_down_exps.scale", m->experts, 0, 0, 1.5f, 0.3f);
}

/* ---- values ---- */

/* Blocks of a type without encoder: random codes, and the scale that gives the decoded values their spread. */
static bool random_block(int type, uint64_t *seed, float spread, uint8_t *p)
{
    static const struct {
        int type, at, at2; /* where binary16 scales lie; at2 < 0: one only */
    } scales[] = {{ST_TYPE_IQ2_XXS, 0, -1}, {ST_TYPE_IQ2_XS, 0, -1}, {ST_TYPE_IQ2_S, 0, -1},
                  {ST_TYPE_IQ3_S, 0, -1},   {ST_TYPE_IQ1_S, 0, -1},  {ST_TYPE_Q2_K, 80, 82}};
    const struct st_type_info *info = st_type_info(type);
    float v[256];
    for (uint32_t i = 0; i < info->block_bytes; i++)
        p[i] = (uint8_t)(bits(seed) >> 24);
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        if (scales[i].type != type)
            continue;
        float d = 1;
        for (int round = 0; round < 2; round++) { /* with scale 1 first, then with the one that fits */
            uint16_t half = st_f32_to_f16(d), half2 = st_f32_to_f16(d * 0.5f);
            memcpy(p + scales[i].at, &half, 2);
            if (scales[i].at2 >= 0)
                memcpy(p + scales[i].at2, &half2, 2);
            info->decode(p, v, info->block_elems);
            double square = 0;
            for (uint32_t k = 0; k < info->block_elems; k++)
                square += (double)v[k] * (double)v[k] / info->block_elems;
            d = spread / (float)sqrt(square);
        }
        return true;
    }
    if (type != ST_TYPE_NVFP4)
        return false;
    for (int i = 0; i < 4; i++) { /* E4M3 without sign: value 2^(e - 7) (1 + m / 8); codes have a spread of about 3.5 */
        int e = (int)floorf(log2f(spread / 3.5f)) + 8;
        p[i] = (uint8_t)((e < 1 ? 1 : e > 14 ? 14 : e) << 3 | (bits(seed) >> 30 & 7));
    }
    return true;
}

struct filling {
    const struct make_model *m;
    const struct make_tensor *t;
};

static uint64_t elements(const struct make_tensor *t)
{
    uint64_t n = t->ne[0];
    for (uint32_t d = 1; d < t->n_dims; d++)
        n *= t->ne[d];
    return n;
}

/* Float types: a value for each element. */
static enum strata_result fill_floats(const struct make_tensor *t, uint64_t *seed, struct st_out *out,
                                      struct strata_error *err)
{
    static float v[BUFFER / 8];
    static uint8_t encoded[BUFFER];
    const struct st_type_info *info = st_type_info(t->type);
    enum strata_result r = STRATA_OK;
    for (uint64_t n = elements(t), at = 0; at < n && !r; at += BUFFER / 8) {
        size_t count = n - at < BUFFER / 8 ? (size_t)(n - at) : BUFFER / 8;
        for (size_t i = 0; i < count; i++) {
            v[i] = t->mean + t->spread * noise(seed);
            v[i] = t->negative ? -fabsf(v[i]) - 1e-3f : v[i];
        }
        if (t->nan && at == 0)
            v[count / 2] = NAN;
        info->encode(v, encoded, count, NULL);
        r = st_out_write(out, encoded, count * info->block_bytes, err);
    }
    return r;
}

/* Block types: blocks drawn from a pool, so that encoders search only a few. */
static enum strata_result fill_blocks(const struct make_tensor *t, uint64_t *seed, struct st_out *out,
                                      struct strata_error *err)
{
    static uint8_t pool[POOL_BLOCKS][512], buffer[BUFFER];
    const struct st_type_info *info = st_type_info(t->type);
    float v[256];
    for (int b = 0; b < POOL_BLOCKS; b++) {
        for (uint32_t i = 0; i < info->block_elems; i++)
            v[i] = t->mean + t->spread * noise(seed);
        if (info->encode)
            info->encode(v, pool[b], info->block_elems, NULL);
        else if (!random_block(t->type, seed, t->spread, pool[b]))
            return st_fail(err, STRATA_E_UNSUPPORTED, "%s: no random blocks of type %s", t->name, info->name);
    }
    enum strata_result r = STRATA_OK;
    size_t used = 0;
    for (uint64_t n = elements(t) / info->block_elems; n && !r; n--) {
        memcpy(buffer + used, pool[bits(seed) % POOL_BLOCKS], info->block_bytes);
        used += info->block_bytes;
        if (n == 1 || used + info->block_bytes > sizeof buffer) {
            r = st_out_write(out, buffer, used, err);
            used = 0;
        }
    }
    return r;
}

static enum strata_result fill(void *user, struct st_out *out, struct strata_error *err)
{
    const struct filling *f = user;
    uint64_t seed = f->m->seed;
    for (const char *p = f->t->name; *p; p++)
        seed = bits(&seed) ^ (uint64_t)(unsigned char)*p;
    return st_type_info(f->t->type)->block_elems == 1 ? fill_floats(f->t, &seed, out, err)
                                                      : fill_blocks(f->t, &seed, out, err);
}

static void write_key(const struct make_key *k, struct st_gguf_writer *w)
{
    uint32_t u32[MAKE_VALUES] = {0};
    int32_t i32[MAKE_VALUES] = {0};
    uint64_t u64[MAKE_VALUES] = {0};
    uint8_t flag[MAKE_VALUES] = {0};
    const void *values = k->type == ST_GGUF_U32   ? (const void *)u32
                         : k->type == ST_GGUF_I32 ? (const void *)i32
                         : k->type == ST_GGUF_U64 ? (const void *)u64
                                                  : (const void *)flag;
    for (size_t i = 0; i < k->count; i++) {
        double v = k->value[i];
        u32[i] = v >= 0 && v < 0x1p32 ? (uint32_t)v : 0;
        i32[i] = v >= -0x1p31 && v < 0x1p31 ? (int32_t)v : 0;
        u64[i] = v >= 0 && v < 0x1p64 ? (uint64_t)v : 0;
        flag[i] = k->value[i] != 0;
    }
    if (k->array)
        st_gguf_set_array(w, k->name, k->type, values, k->count);
    else if (k->type == ST_GGUF_STRING)
        st_gguf_set_string(w, k->name, "qwen4exp", 8);
    else if (k->type == ST_GGUF_F32)
        st_gguf_set_f32(w, k->name, (float)k->value[0]);
    else if (k->type == ST_GGUF_I32)
        st_gguf_set_i32(w, k->name, i32[0]);
    else
        st_gguf_set_u32(w, k->name, u32[0]);
}

enum strata_result make_write(const struct make_model *m, const char *path, struct strata_error *err)
{
    struct st_gguf_writer *w;
    struct filling fillings[MAKE_TENSORS];
    enum strata_result r = st_gguf_writer_create(&w, err);
    if (r)
        return r;
    for (size_t i = 0; i < m->keys; i++)
        write_key(&m->key[i], w);
    for (size_t i = 0; i < m->tensors; i++) {
        const struct make_tensor *t = &m->tensor[i];
        fillings[i] = (struct filling){m, t};
        st_gguf_add_tensor(w, t->name, (uint32_t)t->type, t->n_dims, t->ne, fill, &fillings[i]);
    }
    r = st_gguf_writer_save(w, path, err);
    st_gguf_writer_free(w);
    return r;
}
