/* A random qwen4exp model: the released model's shape, and the types that released files give to its tensors. Source: the
 * project's description of the architecture, sections 1 (shape), 7.2 and 7.3 (types). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/quant.h"
#include "model/families.h"
#include "model/qwen4exp_file.h"
#include "model/synth_job.h"

enum { END_OF_TEXT = 248044, IMAGE = 248056, NGRAM_BASE = 20000000 };

static enum strata_result real_shape(const struct st_synth_options *o, struct q4e_file *f, struct strata_error *err)
{
    uint64_t layers = o->layers ? o->layers : 48, experts = o->experts ? o->experts : 512;
    uint64_t vocabulary = o->vocabulary ? o->vocabulary : 248320;
    if (layers > Q4E_MAX_LAYERS || vocabulary < 512 || vocabulary > 1 << 24 || experts > 65536)
        return st_fail(err, STRATA_E_ARGUMENT, "a model of %llu layers, %llu experts and %llu tokens cannot be made",
                       (unsigned long long)layers, (unsigned long long)experts, (unsigned long long)vocabulary);
    *f = (struct q4e_file){
        .dims = {[D_N] = 2560, [D_RANK] = 320, [D_STREAMS] = 4, [D_VOCAB] = vocabulary, [D_EXPERTS] = experts,
                 [D_EXPERT_FF] = 640, [D_SHARED_FF] = 640, [D_GDN_HEADS] = 48, [D_GDN_HEAD_DIM] = 128, [D_GDN_TAPS] = 4,
                 [D_HEAD_DIM] = 256, [D_INDEX_K] = 128, [D_PLE_WIDTH] = 2560, [D_PLE_TAPS] = 4},
        .layers = layers, .context = 262144, .heads = 24, .kv_heads = 2, .rope_dims = 64, .sections = {11, 11, 10},
        .epsilon = 1e-6, .rope_base = 1e7, .gdn_key_heads = 16, .gdn_key_dim = 128,
        .experts_used = experts < 10 ? experts : 10, .index_heads = 4, .index_budget = 2048, .index_block = 4,
        .has_ple = layers > 1, .ple_layer = 1, .ngram = 3, .heads_per_ngram = 8, .ngram_base = NGRAM_BASE, .seed = 1234,
        .has_image_token = vocabulary > IMAGE, .image_token = IMAGE};
    for (uint64_t i = 0; i < layers; i++)
        f->recurrent[i] = o->recurrent ? o->recurrent[i] : i % 4 != 3;
    f->ple_eos = vocabulary > END_OF_TEXT + 2 ? END_OF_TEXT : vocabulary - 3;
    if (o->ngram_rows)
        f->ngram_base = o->ngram_rows / 16 > 2 ? o->ngram_rows / 16 : 2;
    q4e_derive_sizes(f);
    q4e_derive_hash(f);
    return STRATA_OK;
}

/* Roles of matrices, as far as released files tell their types apart. */
enum role { EMBEDDING, HEAD, DENSE, SMALL, GATE_UP, DOWN, TABLE };

static bool fits(int type, uint64_t row)
{
    return row % st_type_info(type)->block_elems == 0;
}

static double bits(int type)
{
    return 8.0 * st_type_info(type)->block_bytes / st_type_info(type)->block_elems;
}

/* The released files: experts below 3.5 bits come with BF16 for what is small, Q6_K for dense matrices and Q2_0 or IQ4_NL
 * for `down`, whose rows hold no blocks of 256; larger ones with Q8_0 throughout and Q5_1 for `down`. */
static int preset_type(int experts, enum role role, uint64_t row)
{
    bool low = bits(experts) < 3.5, plain = st_type_info(experts)->block_elems == 1;
    int wanted = experts;
    switch (role) {
    case EMBEDDING:
        wanted = plain ? experts : low ? ST_TYPE_Q3_K : ST_TYPE_Q8_0;
        break;
    case HEAD:
        wanted = plain ? experts : low ? ST_TYPE_Q5_K : ST_TYPE_Q8_0;
        break;
    case DENSE:
        wanted = plain ? experts : low ? ST_TYPE_Q6_K : ST_TYPE_Q8_0;
        break;
    case SMALL:
        wanted = plain ? experts : low ? ST_TYPE_BF16 : ST_TYPE_Q8_0;
        break;
    case DOWN:
        if (!fits(experts, row))
            wanted = bits(experts) <= 2.6 ? ST_TYPE_Q2_0 : low ? ST_TYPE_IQ4_NL : ST_TYPE_Q5_1;
        break;
    case TABLE:
        wanted = plain ? experts : ST_TYPE_IQ4_NL;
        break;
    case GATE_UP:
        break;
    }
    return fits(wanted, row) ? wanted : fits(ST_TYPE_Q8_0, row) ? ST_TYPE_Q8_0 : ST_TYPE_BF16;
}

struct plan {
    struct st_synth_job *job;
    struct q4e_file *f;
    size_t turn; /* of the round of types, for mixed files */
};

static int next_type(struct plan *p, enum role role, uint64_t row)
{
    static const int round[] = {ST_TYPE_Q8_0, ST_TYPE_Q2_0,    ST_TYPE_Q6_K, ST_TYPE_IQ4_NL, ST_TYPE_Q4_K,  ST_TYPE_BF16,
                                ST_TYPE_Q5_1, ST_TYPE_IQ3_XXS, ST_TYPE_F16,  ST_TYPE_MXFP4,  ST_TYPE_NVFP4, ST_TYPE_Q4_0};
    if (!p->job->options->mixed)
        return preset_type(p->job->options->type, role, row);
    int type;
    do
        type = round[p->turn++ % (sizeof round / sizeof round[0])];
    while (!fits(type, row));
    return type;
}

static enum strata_result add_matrix(struct plan *p, const char *name, uint32_t n_dims, const uint64_t *ne, enum role role,
                                     struct strata_error *err)
{
    float spread = role == EMBEDDING || role == TABLE ? 0.5f : 1 / sqrtf((float)ne[0]);
    enum st_synth_kind kind = role == TABLE && !p->job->options->mixed ? ST_SYNTH_HOLE : ST_SYNTH_MATRIX;
    return st_synth_add(p->job, name, (uint32_t)next_type(p, role, ne[0]), n_dims, ne, kind, spread, err);
}

static enum role role_of(const char *name)
{
    static const char *const small[] = {"hc_", "ssm_alpha", "ssm_beta", "indexer.", "ple_value"};
    if (!strcmp(name, "token_embd.weight"))
        return EMBEDDING;
    if (!strcmp(name, "output.weight"))
        return HEAD;
    for (size_t i = 0; i < sizeof small / sizeof small[0]; i++)
        if (strstr(name, small[i]))
            return SMALL;
    return DENSE;
}

static enum strata_result add_entry(struct plan *p, const char *prefix, const struct q4e_entry *e, struct strata_error *err)
{
    char name[ST_GGUF_NAME_MAX + 1];
    uint64_t ne[2] = {p->f->dims[e->ne0], e->ne1 ? p->f->dims[e->ne1] : 1};
    snprintf(name, sizeof name, "%s%s", prefix, e->to);
    if (!e->fixed && e->ne1)
        return add_matrix(p, name, 2, ne, role_of(e->to), err);
    enum st_synth_kind kind = e->fixed                        ? ST_SYNTH_MATRIX
                              : e->map == Q4E_MINUS_EXP       ? ST_SYNTH_DECAY
                              : !strcmp(e->to, "ssm_dt.bias") ? ST_SYNTH_BIAS
                                                              : ST_SYNTH_GAMMA;
    return st_synth_add(p->job, name, ST_TYPE_F32, e->ne1 ? 2 : 1, ne, kind, 1 / sqrtf((float)ne[0]), err);
}

static enum strata_result add_entries(struct plan *p, const char *prefix, const struct q4e_entry *e, size_t n,
                                      struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    for (size_t i = 0; i < n && !r; i++)
        r = add_entry(p, prefix, &e[i], err);
    return r;
}

static enum strata_result add_experts(struct plan *p, const char *prefix, const char *part, enum role role,
                                      enum q4e_dim ne0, enum q4e_dim ne1, struct strata_error *err)
{
    char name[ST_GGUF_NAME_MAX + 1];
    const uint64_t ne[3] = {p->f->dims[ne0], p->f->dims[ne1], p->f->dims[D_EXPERTS]};
    snprintf(name, sizeof name, "%sffn_%s_exps.weight", prefix, part);
    return add_matrix(p, name, 3, ne, role, err);
}

static enum strata_result add_layer(struct plan *p, uint64_t i, struct strata_error *err)
{
    const struct q4e_file *f = p->f;
    char prefix[32];
    snprintf(prefix, sizeof prefix, "blk.%llu.", (unsigned long long)i);
    enum strata_result r = add_entries(p, prefix, q4e_every_layer, Q4E_EVERY_LAYER, err);
    if (!r)
        r = add_experts(p, prefix, "gate", GATE_UP, D_N, D_EXPERT_FF, err);
    if (!r)
        r = add_experts(p, prefix, "up", GATE_UP, D_N, D_EXPERT_FF, err);
    if (!r)
        r = add_experts(p, prefix, "down", DOWN, D_EXPERT_FF, D_N, err);
    if (!r)
        r = f->recurrent[i] ? add_entries(p, prefix, q4e_gdn_layer, Q4E_GDN_LAYER, err)
                            : add_entries(p, prefix, q4e_attention_layer, Q4E_ATTENTION_LAYER, err);
    if (!r && f->has_ple && f->ple_layer == i)
        r = add_entries(p, prefix, q4e_ple_layer, Q4E_PLE_LAYER, err);
    return r;
}

static enum strata_result add_table(struct plan *p, struct strata_error *err)
{
    uint64_t rows = q4e_ngram_rows(p->f), ne[2] = {p->f->dims[D_PLE_ROW], (rows + 127) / 128 * 128};
    return p->f->has_ple ? add_matrix(p, "per_layer_token_embd.weight", 2, ne, TABLE, err) : STRATA_OK;
}

static enum strata_result plan_model(struct st_synth_job *job, struct strata_error *err)
{
    struct q4e_file *f = malloc(sizeof *f);
    struct plan p = {.job = job, .f = f};
    static const char name[] = "random weights";
    if (!f)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory", job->options->out);
    enum strata_result r = real_shape(job->options, f, err);
    if (!r) {
        st_gguf_set_string(job->writer, "general.architecture", "qwen4exp", 8);
        st_gguf_set_string(job->writer, "general.name", name, sizeof name - 1);
        st_gguf_set_u32(job->writer, "general.quantization_version", 2);
        q4e_set_keys(f, false, job->writer);
        r = st_synth_tokenizer(job->writer, f->dims[D_VOCAB], (uint32_t)f->ple_eos, err);
    }
    if (!r)
        r = add_entries(&p, "", q4e_globals, Q4E_GLOBALS, err);
    if (!r)
        r = add_entry(&p, "", &q4e_head, err);
    for (uint64_t i = 0; i < f->layers && !r; i++)
        r = add_layer(&p, i, err);
    if (!r)
        r = add_table(&p, err);
    free(f);
    return r;
}

const struct st_synth_family st_qwen4exp_synth = {.name = "qwen4exp", .plan = plan_model};
