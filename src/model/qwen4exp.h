/* The qwen4exp family (Qwen3.8-Flash-Next): hyper-parameters and bound tensors. Names as in the GGUF files; symbols and
 * formulas as in the specification of the model. */
#ifndef ST_MODEL_QWEN4EXP_H
#define ST_MODEL_QWEN4EXP_H

#include "model/load.h"
#include "model/model.h"

#define Q4E_NGRAM_TABLE "per_layer_token_embd.weight"

struct q4e_hparams {
    uint32_t layers, hidden, vocabulary, context;
    uint32_t streams, rank;
    uint32_t heads, kv_heads, head_dim;
    uint32_t index_heads, index_dim, index_budget;
    uint32_t key_heads, value_heads, key_dim, value_dim, taps; /* GDN */
    uint32_t experts, used, expert_width, shared_width;
    uint32_t ngram_layer, ngram_width, ngram_taps; /* ngram_layer UINT32_MAX: none */
    uint32_t draft_layers;                         /* nextn_predict_layers in the file that has the draft block */
    float eps;
    bool draft_norm_per_stream;
    struct st_ngram_hash hash;
    struct st_rope rope;
    double rope_theta;
};

struct q4e_gated {
    float *gamma;
    struct st_weight down, up, inject;
};

struct q4e_layer {
    bool recurrent;
    struct q4e_gated attn, ffn;
    /* recurrent */
    struct st_weight qkv, gate, beta, alpha, out;
    float *conv, *ssm_a, *dt_bias, *ssm_norm;
    /* attention; out is shared */
    struct st_weight q, k, v, index_q, index_k;
    float *q_norm, *k_norm, *index_q_norm, *index_k_norm;
    uint32_t ratio; /* tokens per index block */
    /* experts */
    struct st_weight router, shared_router, experts_gate, experts_up, experts_down;
    struct st_weight shared_gate, shared_up, shared_down;
};

struct q4e_model {
    struct q4e_hparams h;
    uint32_t first, end; /* layers that are bound here; the head and the draft layer belong to the last one */
    struct st_weight embed, output;
    struct q4e_gated final; /* no inject */
    struct q4e_layer *layer; /* [layers]; tensors of first .. end - 1 */
    struct {
        const struct st_gguf *file; /* that has the table */
        struct st_weight table, key, value;
        float *norm_key, *norm_query, *norm_conv, *conv;
    } ngram;
    struct {
        struct st_weight embed, output, eh;
        float *enorm, *hnorm;
        struct q4e_gated final;
        struct q4e_layer layer;
    } draft;
    struct st_owned owned; /* converted vectors */
};

/* Reads and checks every hyper-parameter (qwen4exp_load.c). */
enum strata_result q4e_read_hparams(const struct st_gguf *g, struct q4e_hparams *h, bool **recurrent,
                                    struct strata_error *err);
enum strata_result q4e_open(struct st_model *m, const struct st_model_options *o, struct strata_error *err);
void q4e_close(struct st_model *m);

/* qwen4exp.c */
enum strata_result q4e_place(const struct st_model *m, enum st_part part, const struct st_placement *placement,
                             const struct st_rows *rows, struct st_bump *state, struct st_bump *scratch,
                             struct st_program *p, struct strata_error *err);

#endif
