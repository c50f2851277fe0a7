/* A Hugging Face folder of a llama model with random weights, made here, is converted, opened and run; its logits are
 * compared with a plain double-precision evaluation of the folder's own tensors: halves of a head turned together, as
 * the checkpoints are defined, not neighbours as in the file. */
#include "test.h"

#include <jansson.h>
#include <math.h>

#include "base/json.h"
#include "fixture.h"
#include "format/gguf.h"
#include "format/quant.h"
#include "format/safetensors.h"
#include "model/convert.h"

enum {
    HIDDEN = 96,
    LAYERS = 3,
    HEADS = 6,
    KV_HEADS = 2,
    FFN = 160,
    VOCABULARY = 300,
    TOKENS = 40,
    TENSORS = 9 * LAYERS + 3
};

struct checkpoint {
    bool tied, bf16;
    int head_dim;                              /* also where it is not HIDDEN / HEADS */
    double theta, factor, low, high, original; /* factor 0: the rotation is not scaled */
    double yarn;                               /* 0, or what the engine extends the context by */
    struct st_safetensor_out out[TENSORS];
    double *values[TENSORS]; /* as stored */
    size_t count;
    uint64_t random;
};

static double draw(struct checkpoint *c)
{
    c->random = c->random * 6364136223846793005u + 1442695040888963407u;
    return (double)(c->random >> 11) / 0x1p53 * 2 - 1;
}

static void add(struct checkpoint *c, const char *name, uint64_t rows, uint64_t columns, double mean, double spread)
{
    size_t n = (size_t)(rows * columns), at = c->count++;
    struct st_safetensor_out *t = &c->out[at];
    assert_true(c->count <= TENSORS);
    float *f = malloc(n * sizeof *f);
    uint16_t *h = malloc(n * sizeof *h);
    double *v = c->values[at] = malloc(n * sizeof *v);
    assert_true(f && h && v);
    for (size_t i = 0; i < n; i++) {
        f[i] = (float)(mean + spread * draw(c));
        if (c->bf16) {
            uint32_t bits;
            memcpy(&bits, &f[i], 4);
            h[i] = (uint16_t)(bits >> 16);
            bits &= 0xFFFF0000u;
            memcpy(&f[i], &bits, 4);
        }
        v[i] = (double)f[i];
    }
    *t = (struct st_safetensor_out){.name = strdup(name), .dtype = c->bf16 ? ST_DTYPE_BF16 : ST_DTYPE_F32};
    t->data = c->bf16 ? (void *)h : (void *)f;
    free(c->bf16 ? (void *)f : (void *)h);
    t->n_dims = rows > 1 ? 2 : 1;
    t->shape[0] = rows > 1 ? rows : columns;
    t->shape[1] = columns;
}

static const double *values(const struct checkpoint *c, const char *name)
{
    for (size_t i = 0; i < c->count; i++)
        if (!strcmp(c->out[i].name, name))
            return c->values[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

static const double *layer_values(const struct checkpoint *c, int layer, const char *tail)
{
    char name[100];
    snprintf(name, sizeof name, "model.layers.%d.%s.weight", layer, tail);
    return values(c, name);
}

static void make_tensors(struct checkpoint *c)
{
    const uint64_t q = HEADS * (uint64_t)c->head_dim, kv = KV_HEADS * (uint64_t)c->head_dim;
    const struct {
        const char *tail;
        uint64_t rows, columns;
    } matrices[] = {{"self_attn.q_proj", q, HIDDEN}, {"self_attn.k_proj", kv, HIDDEN}, {"self_attn.v_proj", kv, HIDDEN},
                    {"self_attn.o_proj", HIDDEN, q}, {"mlp.gate_proj", FFN, HIDDEN},   {"mlp.up_proj", FFN, HIDDEN},
                    {"mlp.down_proj", HIDDEN, FFN}};
    char name[100];
    add(c, "model.embed_tokens.weight", VOCABULARY, HIDDEN, 0, 1);
    add(c, "model.norm.weight", 1, HIDDEN, 1, 0.5);
    if (!c->tied)
        add(c, "lm_head.weight", VOCABULARY, HIDDEN, 0, 0.5);
    for (int i = 0; i < LAYERS; i++) {
        snprintf(name, sizeof name, "model.layers.%d.input_layernorm.weight", i);
        add(c, name, 1, HIDDEN, 1, 0.5);
        snprintf(name, sizeof name, "model.layers.%d.post_attention_layernorm.weight", i);
        add(c, name, 1, HIDDEN, 1, 0.5);
        for (size_t k = 0; k < sizeof matrices / sizeof matrices[0]; k++) {
            snprintf(name, sizeof name, "model.layers.%d.%s.weight", i, matrices[k].tail);
            add(c, name, matrices[k].rows, matrices[k].columns, 0, 3 / sqrt((double)matrices[k].columns));
        }
    }
}

static void release(struct checkpoint *c)
{
    for (size_t i = 0; i < c->count; i++) {
        free((char *)c->out[i].name);
        free((void *)c->out[i].data);
        free(c->values[i]);
    }
}

/* ---- the model as the checkpoints define it, in double precision ---- */

static void product(const double *w, const double *x, double *y, int rows, int columns)
{
    for (int r = 0; r < rows; r++) {
        y[r] = 0;
        for (int i = 0; i < columns; i++)
            y[r] += w[r * columns + i] * x[i];
    }
}

static void norm(const double *x, const double *gamma, double *y)
{
    double sum = 0;
    for (int i = 0; i < HIDDEN; i++)
        sum += x[i] * x[i];
    for (int i = 0; i < HIDDEN; i++)
        y[i] = x[i] / sqrt(sum / HIDDEN + 1e-5) * gamma[i];
}

/* Frequency of pair i; scaled: the three ranges of wave lengths as the rotation "llama3" was published. */
static double frequency(const struct checkpoint *c, int i)
{
    double f = 1 / pow(c->theta, 2.0 * i / c->head_dim), wave = 2 * acos(-1.0) / f;
    if (c->yarn > 0) {
        /* Numbers of the pairs whose waves fit 32 times and once into the 4,096 trained positions. */
        double pairs = c->head_dim / 2.0 / log(c->theta), fast = floor(pairs * log(4096 / (32 * 2 * acos(-1.0))));
        double slow = ceil(pairs * log(4096 / (2 * acos(-1.0))));
        double slowed = i <= fast ? 0 : i >= slow ? 1 : (i - fast) / (slow - fast);
        return slowed * f / c->yarn + (1 - slowed) * f;
    }
    if (c->factor == 0 || wave < c->original / c->high)
        return f;
    if (wave > c->original / c->low)
        return f / c->factor;
    double smooth = (c->original / wave - c->low) / (c->high - c->low);
    return (1 - smooth) * f / c->factor + smooth * f;
}

static void turn(const struct checkpoint *c, double *head, int position)
{
    int half = c->head_dim / 2;
    double grown = c->yarn > 0 ? 1 + 0.1 * log(c->yarn) : 1;
    for (int i = 0; i < half; i++) {
        double angle = position * frequency(c, i), a = grown * head[i], b = grown * head[i + half];
        head[i] = a * cos(angle) - b * sin(angle);
        head[i + half] = b * cos(angle) + a * sin(angle);
    }
}

static void attend(const struct checkpoint *c, const double *q, const double *k, const double *v, int position,
                   double *out)
{
    int d = c->head_dim, kv_width = KV_HEADS * d;
    double weight[TOKENS];
    for (int h = 0; h < HEADS; h++) {
        int from = h / (HEADS / KV_HEADS) * d;
        double most = -INFINITY, sum = 0;
        for (int t = 0; t <= position; t++) {
            weight[t] = 0;
            for (int i = 0; i < d; i++)
                weight[t] += q[h * d + i] * k[t * kv_width + from + i];
            weight[t] /= sqrt(d);
            most = fmax(most, weight[t]);
        }
        for (int t = 0; t <= position; t++)
            sum += weight[t] = exp(weight[t] - most);
        for (int i = 0; i < d; i++) {
            out[h * d + i] = 0;
            for (int t = 0; t <= position; t++)
                out[h * d + i] += weight[t] / sum * v[t * kv_width + from + i];
        }
    }
}

/* One layer over all tokens: x is [TOKENS][HIDDEN]. */
static void run_layer(const struct checkpoint *c, int layer, double *x)
{
    enum { WIDE = HEADS * 64 };
    static double keys[TOKENS * WIDE], vals[TOKENS * WIDE];
    int d = c->head_dim, kv = KV_HEADS * d;
    for (int t = 0; t < TOKENS; t++) {
        double y[HIDDEN], o[HIDDEN], q[WIDE], att[WIDE], gate[FFN], up[FFN], *r = x + t * HIDDEN;
        norm(r, layer_values(c, layer, "input_layernorm"), y);
        product(layer_values(c, layer, "self_attn.q_proj"), y, q, HEADS * d, HIDDEN);
        product(layer_values(c, layer, "self_attn.k_proj"), y, keys + t * kv, kv, HIDDEN);
        product(layer_values(c, layer, "self_attn.v_proj"), y, vals + t * kv, kv, HIDDEN);
        for (int h = 0; h < HEADS; h++)
            turn(c, q + h * d, t);
        for (int h = 0; h < KV_HEADS; h++)
            turn(c, keys + t * kv + h * d, t);
        attend(c, q, keys, vals, t, att);
        product(layer_values(c, layer, "self_attn.o_proj"), att, o, HIDDEN, HEADS * d);
        for (int i = 0; i < HIDDEN; i++)
            r[i] += o[i];
        norm(r, layer_values(c, layer, "post_attention_layernorm"), y);
        product(layer_values(c, layer, "mlp.gate_proj"), y, gate, FFN, HIDDEN);
        product(layer_values(c, layer, "mlp.up_proj"), y, up, FFN, HIDDEN);
        for (int i = 0; i < FFN; i++)
            gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
        product(layer_values(c, layer, "mlp.down_proj"), gate, o, HIDDEN, FFN);
        for (int i = 0; i < HIDDEN; i++)
            r[i] += o[i];
    }
}

/* Logits [TOKENS][VOCABULARY], freed by the caller. */
static double *evaluate(const struct checkpoint *c, const int32_t *ids)
{
    const double *embedding = values(c, "model.embed_tokens.weight");
    double *x = malloc(TOKENS * HIDDEN * sizeof *x), *logits = malloc(TOKENS * VOCABULARY * sizeof *logits), y[HIDDEN];
    assert_true(x && logits);
    for (int t = 0; t < TOKENS; t++)
        memcpy(x + t * HIDDEN, embedding + ids[t] * HIDDEN, HIDDEN * sizeof *x);
    for (int i = 0; i < LAYERS; i++)
        run_layer(c, i, x);
    for (int t = 0; t < TOKENS; t++) {
        norm(x + t * HIDDEN, values(c, "model.norm.weight"), y);
        product(c->tied ? embedding : values(c, "lm_head.weight"), y, logits + t * VOCABULARY, VOCABULARY, HIDDEN);
    }
    free(x);
    return logits;
}

/* ---- the folder ---- */

static void write_json(const char *name, json_t *root)
{
    assert_non_null(root);
    assert_int_equal(json_dump_file(root, work_path(name), 0), 0);
    json_decref(root);
}

static json_t *configuration(const struct checkpoint *c)
{
    json_t *j =
        json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:b, s:s}", "model_type", "llama", "hidden_size",
                  HIDDEN, "num_hidden_layers", LAYERS, "num_attention_heads", HEADS, "num_key_value_heads", KV_HEADS,
                  "intermediate_size", FFN, "vocab_size", VOCABULARY, "max_position_embeddings", 4096, "rms_norm_eps",
                  1e-5, "tie_word_embeddings", c->tied, "hidden_act", "silu");
    json_object_set_new(j, "rope_theta", json_real(c->theta));
    if (c->head_dim != HIDDEN / HEADS)
        json_object_set_new(j, "head_dim", json_integer(c->head_dim));
    if (c->factor > 0)
        json_object_set_new(j, "rope_scaling",
                            json_pack("{s:s, s:f, s:f, s:f, s:f}", "rope_type", "llama3", "factor", c->factor,
                                      "low_freq_factor", c->low, "high_freq_factor", c->high,
                                      "original_max_position_embeddings", c->original));
    return j;
}

/* A vocabulary of bytes as this kind of tokenizer spells the printable ones, "ab", and two special tokens. */
static json_t *tokenizer(const char *steps, const char *post)
{
    json_t *vocab = json_object(), *pre = json_loads(steps, 0, NULL), *after = json_loads(post, JSON_DECODE_ANY, NULL);
    for (int i = 0; i < 94; i++)
        json_object_set_new(vocab, (const char[]){(char)('!' + i), 0}, json_integer(i));
    json_object_set_new(vocab, "ab", json_integer(94));
    return json_pack("{s:{s:s, s:o, s:[[s, s]]}, s:o, s:o, s:[{s:i, s:s, s:b}, {s:i, s:s, s:b}]}", "model", "type",
                     "BPE", "vocab", vocab, "merges", "a", "b", "pre_tokenizer", pre, "post_processor", after,
                     "added_tokens", "id", 95, "content", "<|begin_of_text|>", "special", 1, "id", 96, "content",
                     "<|eot_id|>", "special", 1);
}

static const char llama3_steps[] = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{"
                                   "\"Regex\":\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
                                   "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| "
                                   "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|"
                                   "\\\\s+\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\","
                                   "\"add_prefix_space\":false,\"use_regex\":false}]}";
static const char llama3_post[] =
    "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},{\"type\":\"TemplateProcessing\",\"single\":[{"
    "\"SpecialToken\":"
    "{\"id\":\"<|begin_of_text|>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}]}]}";
static const char smollm_steps[] =
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":true},"
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}]}";
static const char chat[] = "{% for m in messages %}<|begin_of_text|>{{ m.content }}<|eot_id|>{% endfor %}";

static void write_folder(struct checkpoint *c, bool llama3)
{
    struct strata_error err;
    assert_ok(st_safetensors_save(work_path("model.safetensors"), c->out, c->count, &err), &err);
    write_json("config.json", configuration(c));
    write_json("tokenizer.json", llama3 ? tokenizer(llama3_steps, llama3_post) : tokenizer(smollm_steps, "null"));
    write_json("tokenizer_config.json", json_pack("{s:s, s:s, s:s}", "bos_token", "<|begin_of_text|>", "eos_token",
                                                  "<|eot_id|>", "chat_template", chat));
}

static enum strata_result convert(const char *out, struct st_convert_report *report, struct strata_error *err)
{
    struct st_convert_options o = {.dir = work, .out = out};
    return st_convert(&o, report, err);
}

static void assert_logits(const struct checkpoint *c, const struct strata_model *m)
{
    struct strata_error err;
    struct strata_engine *e;
    struct strata_session *s;
    struct strata_engine_options o = {.threads = 2, .context = 64, .kv = STRATA_KV_F32, .rope_scale = c->yarn};
    o.rope_scaling = c->yarn > 0 ? STRATA_ROPE_YARN : STRATA_ROPE_NONE;
    int32_t ids[TOKENS];
    float *own = malloc(TOKENS * VOCABULARY * sizeof *own);
    double most = 0, error = 0;
    for (int t = 0; t < TOKENS; t++)
        ids[t] = (t * 37 + 11) % VOCABULARY;
    assert_ok(strata_engine_create(m, &o, &e, &err), &err);
    assert_ok(strata_session_create(e, &s, &err), &err);
    assert_ok(strata_session_eval(s, ids, TOKENS, true, own, &err), &err);
    double *want = evaluate(c, ids);
    for (int i = 0; i < TOKENS * VOCABULARY; i++) {
        most = fmax(most, fabs(want[i]));
        error = fmax(error, fabs((double)own[i] - want[i]));
    }
    free(want);
    free(own);
    strata_session_free(s);
    strata_engine_free(e);
    assert_true(most > 1);
    if (!(error <= 2e-5 * most))
        fail_msg("logits differ by %g of at most %g", error, most);
}

static void assert_tokens(const struct strata_model *m, const char *text, const int32_t *want, size_t count)
{
    struct strata_error err;
    int32_t *ids;
    size_t n;
    assert_ok(strata_tokenize(m, text, strlen(text), false, &ids, &n, &err), &err);
    assert_int_equal(n, count);
    assert_memory_equal(ids, want, count * sizeof *ids);
    strata_free(ids);
}

/* Llama 3: own head, scaled rotation, heads wider than hidden / heads, BF16. */
static void a_llama_3_folder_gives_the_logits_of_its_tensors(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_convert_report report;
    struct strata_model *m;
    struct checkpoint c = {
        .bf16 = true, .head_dim = 32, .theta = 500, .factor = 8, .low = 1, .high = 4, .original = 64, .random = 3};
    make_tensors(&c);
    write_folder(&c, true);
    assert_ok(convert(work_path("llama3.gguf"), &report, &err), &err);
    assert_string_equal(report.family, "llama");
    assert_int_equal(report.tensors, TENSORS + 1);
    assert_ok(strata_model_open(work_path("llama3.gguf"), &m, &err), &err);
    assert_logits(&c, m);
    assert_tokens(m, "ab!", (const int32_t[]){95, 94, 0}, 3);
    strata_model_free(m);

    struct st_gguf *g;
    assert_ok(st_gguf_open(work_path("llama3.gguf"), &g, &err), &err);
    assert_int_equal(st_gguf_tensor(g, "blk.1.attn_q.weight")->type, ST_TYPE_BF16);
    const struct st_gguf_tensor *f = st_gguf_tensor(g, "rope_freqs.weight");
    assert_true(f && f->type == ST_TYPE_F32 && f->ne[0] == 16);
    assert_true(((const float *)f->data)[0] == 1 && ((const float *)f->data)[15] == 8);
    st_gguf_close(g);
    release(&c);
}

/* SmolLM2: tied embeddings, plain rotation, F32. */
static void a_smollm_folder_gives_the_logits_of_its_tensors(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_convert_report report;
    struct strata_model *m;
    struct strata_model_info info;
    struct checkpoint c = {.tied = true, .head_dim = HIDDEN / HEADS, .theta = 10000, .random = 8};
    int32_t *ids;
    size_t n;
    make_tensors(&c);
    write_folder(&c, false);
    assert_ok(convert(work_path("smol.gguf"), &report, &err), &err);
    assert_int_equal(report.tensors, TENSORS - 1);
    assert_ok(strata_model_open(work_path("smol.gguf"), &m, &err), &err);
    assert_logits(&c, m);
    c.yarn = 4;
    assert_logits(&c, m);
    assert_tokens(m, "ab12", (const int32_t[]){94, '1' - '!', '2' - '!'}, 3);
    strata_model_info(m, &info);
    assert_string_equal(info.chat_template, chat);
    assert_ok(strata_chat_prompt(m, "[{\"role\":\"user\",\"content\":\"ab\"}]", NULL, &ids, &n, NULL, &err), &err);
    assert_int_equal(n, 3);
    assert_memory_equal(ids, ((const int32_t[]){95, 94, 96}), 3 * sizeof *ids);
    strata_free(ids);
    strata_model_free(m);
    release(&c);
}

static void assert_refused(enum strata_result code, const char *names)
{
    struct strata_error err;
    struct st_convert_report report;
    enum strata_result r = convert(work_path("refused.gguf"), &report, &err);
    if (r != code || !strstr(err.text, names))
        fail_msg("%s, expected %s with '%s': %s", strata_result_name(r), strata_result_name(code), names, err.text);
    assert_int_not_equal(access(work_path("refused.gguf"), F_OK), 0);
}

static void settings_that_cannot_be_served_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *name, *value;
        enum strata_result code;
        const char *names;
    } cases[] = {
        {"hidden_act", "\"gelu\"", STRATA_E_UNSUPPORTED, "hidden_act"},
        {"attention_bias", "true", STRATA_E_UNSUPPORTED, "attention_bias"},
        {"mlp_bias", "true", STRATA_E_UNSUPPORTED, "mlp_bias"},
        {"partial_rotary_factor", "0.5", STRATA_E_UNSUPPORTED, "partial_rotary_factor"},
        {"num_key_value_heads", "4", STRATA_E_FORMAT, "6 heads"},
        {"head_dim", "15", STRATA_E_FORMAT, "heads of 15"},
        {"rope_theta", "0", STRATA_E_FORMAT, "rope_theta"},
        {"rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":4}", STRATA_E_UNSUPPORTED, "'yarn'"},
        {"rope_scaling", "{\"rope_type\":\"llama3\",\"factor\":8}", STRATA_E_FORMAT, "low_freq_factor"},
        {"intermediate_size", "161", STRATA_E_MODEL, "mlp.gate_proj.weight has shape [160, 96]"},
        {"num_hidden_layers", "4", STRATA_E_MODEL, "model.layers.3.input_layernorm.weight is missing"},
        {"num_hidden_layers", "2", STRATA_E_MODEL, "model.layers.2."},
        {"tie_word_embeddings", "false", STRATA_E_MODEL, "lm_head.weight is missing"},
    };
    struct checkpoint c = {.tied = true, .head_dim = HIDDEN / HEADS, .theta = 10000, .random = 8};
    make_tensors(&c);
    write_folder(&c, false);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *config = configuration(&c);
        json_object_set_new(config, cases[i].name, json_loads(cases[i].value, JSON_DECODE_ANY, NULL));
        write_json("config.json", config);
        assert_refused(cases[i].code, cases[i].names);
    }
    release(&c);
}

enum { SHORT = 24, PICKS = 60 };

struct picks {
    int32_t token[PICKS];
    size_t count;
    enum strata_end end;
};

static bool take_pick(void *user, const struct strata_event *e)
{
    struct picks *p = user;
    if (e->kind == STRATA_EVENT_TEXT && e->token >= 0 && p->count < PICKS)
        p->token[p->count++] = e->token;
    if (e->kind == STRATA_EVENT_END)
        p->end = e->end;
    return true;
}

static void a_full_context_goes_on_with_its_newer_half(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_convert_report report;
    struct strata_model *m;
    struct strata_engine *e;
    struct strata_session *s, *other;
    struct checkpoint c = {.tied = true, .head_dim = HIDDEN / HEADS, .theta = 10000, .random = 8};
    static float logits[VOCABULARY];
    int32_t held[SHORT], prompt[] = {5, 6, 96, 7, 8, 9, 10};
    make_tensors(&c);
    write_folder(&c, false);
    assert_ok(convert(work_path("shift.gguf"), &report, &err), &err);
    assert_ok(strata_model_open(work_path("shift.gguf"), &m, &err), &err);
    assert_true(strata_is_stop_token(m, 96));
    struct strata_engine_options o = {.threads = 1, .context = SHORT, .sessions = 2, .context_shift = true};
    assert_ok(strata_engine_create(m, &o, &e, &err), &err);
    assert_ok(strata_session_create(e, &s, &err), &err);
    assert_ok(strata_session_create(e, &other, &err), &err);
    struct picks p = {.count = 0};
    struct strata_request q = {
        .ids = prompt, .count = 7, .max_tokens = PICKS, .ignore_eos = true, .event = take_pick, .user = &p};
    strata_sampling_default(&q.sampling);
    assert_ok(strata_generate(s, &q, NULL, &err), &err);
    assert_int_equal(p.end, STRATA_END_LENGTH);
    assert_int_equal(p.count, PICKS);

    /* The same by hand: the first turn ends behind token 96. */
    size_t count = 7;
    memcpy(held, prompt, sizeof prompt);
    assert_ok(strata_session_eval(other, held, count, false, logits, &err), &err);
    for (size_t i = 0; i < PICKS; i++) {
        int32_t best = 0;
        for (int32_t k = 1; k < VOCABULARY; k++)
            best = logits[k] > logits[best] ? k : best;
        assert_int_equal(p.token[i], best);
        if (count == SHORT) {
            size_t drop = (SHORT - 3 + 1) / 2;
            memmove(held + 3, held + 3 + drop, (SHORT - 3 - drop) * sizeof *held);
            count -= drop;
            strata_session_reset(other);
            assert_ok(strata_session_eval(other, held, 3, false, NULL, &err), &err);
            assert_ok(strata_session_eval(other, held + 3, count - 3, false, NULL, &err), &err);
        }
        held[count++] = best;
        assert_ok(strata_session_eval(other, &best, 1, false, logits, &err), &err);
    }
    strata_session_free(s);
    strata_session_free(other);
    strata_engine_free(e);

    o.context_shift = false;
    assert_ok(strata_engine_create(m, &o, &e, &err), &err);
    assert_ok(strata_session_create(e, &s, &err), &err);
    assert_ok(strata_generate(s, &q, NULL, &err), &err);
    assert_int_equal(p.end, STRATA_END_CONTEXT);
    strata_session_free(s);
    strata_engine_free(e);
    strata_model_free(m);
    release(&c);
}

/* What other programs leave in a checkpoint: frequencies of the rotation, and a head beside tied embeddings. */
static void tensors_that_follow_from_others_are_left_out(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_convert_report report;
    struct checkpoint c = {.tied = true, .head_dim = HIDDEN / HEADS, .theta = 10000, .random = 8};
    struct st_safetensor_out all[TENSORS + 1];
    make_tensors(&c);
    write_folder(&c, false);
    memcpy(all, c.out, sizeof *all * c.count);
    all[c.count] = all[0]; /* the embedding */
    all[c.count].name = "lm_head.weight";
    all[c.count + 1] = all[1];
    all[c.count + 1].name = "model.layers.0.self_attn.rotary_emb.inv_freq";
    assert_ok(st_safetensors_save(work_path("model.safetensors"), all, c.count + 2, &err), &err);
    assert_ok(convert(work_path("both.gguf"), &report, &err), &err);
    assert_int_equal(report.tensors, TENSORS - 1);
    all[c.count + 1].name = "model.layers.0.self_attn.q_proj.bias";
    assert_ok(st_safetensors_save(work_path("model.safetensors"), all, c.count + 2, &err), &err);
    assert_refused(STRATA_E_MODEL, "q_proj.bias is not part of a llama model");
    release(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_llama_3_folder_gives_the_logits_of_its_tensors),
        cmocka_unit_test(a_smollm_folder_gives_the_logits_of_its_tensors),
        cmocka_unit_test(settings_that_cannot_be_served_are_named),
        cmocka_unit_test(a_full_context_goes_on_with_its_newer_half),
        cmocka_unit_test(tensors_that_follow_from_others_are_left_out),
    };
    return cmocka_run_group_tests(tests, make_work, remove_work);
}
