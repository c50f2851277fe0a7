/* strata_model: an opened file with its tokenizer and chat form. */
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

enum { TEMPLATE_MAX = 1 << 20 };

void strata_free(void *memory)
{
    free(memory);
}

static char *copy_text(const char *text, size_t size)
{
    char *p = malloc(size + 1);
    if (p) {
        memcpy(p, text, size);
        p[size] = 0;
    }
    return p;
}

/* A string of the metadata as memory of ours; NULL when the key is missing. */
static enum strata_result string_key(const struct st_gguf *g, const char *key, size_t limit, char **out,
                                     struct strata_error *err)
{
    const char *text;
    size_t size;
    *out = NULL;
    if (!st_gguf_key(g, key))
        return STRATA_OK;
    enum strata_result r = st_gguf_string(g, key, &text, &size, err);
    if (r)
        return r;
    if (size > limit)
        return st_fail(err, STRATA_E_LIMIT, "%s: %s has %zu bytes, more than %zu", g->path, key, size, limit);
    if (memchr(text, 0, size))
        return st_fail(err, STRATA_E_FORMAT, "%s: %s contains a NUL byte", g->path, key);
    *out = copy_text(text, size);
    return *out ? STRATA_OK : st_fail(err, STRATA_E_MEMORY, "%s: no memory for %s", g->path, key);
}

static enum strata_result optional_id(const struct st_gguf *g, const char *key, int32_t *out, struct strata_error *err)
{
    uint32_t id;
    *out = -1;
    if (!st_gguf_key(g, key))
        return STRATA_OK;
    enum strata_result r = st_gguf_u32(g, key, &id, err);
    if (r)
        return r;
    if (id > INT32_MAX)
        return st_fail(err, STRATA_E_FORMAT, "%s: %s is %u, more than an id can be", g->path, key, id);
    *out = (int32_t)id;
    return STRATA_OK;
}

struct vocabulary {
    struct st_bytes *tokens, *merges;
    int64_t *types;
    int32_t *types32;
    char *pre;
};

static enum strata_result read_vocabulary(const struct st_gguf *g, struct vocabulary *v, struct st_vocab *out,
                                          struct strata_error *err)
{
    enum strata_result r = st_gguf_strings(g, "tokenizer.ggml.tokens", &v->tokens, &out->count, err);
    size_t type_count = 0;
    if (!r && st_gguf_key(g, "tokenizer.ggml.merges"))
        r = st_gguf_strings(g, "tokenizer.ggml.merges", &v->merges, &out->merge_count, err);
    if (!r && st_gguf_key(g, "tokenizer.ggml.token_type"))
        r = st_gguf_ints(g, "tokenizer.ggml.token_type", &v->types, &type_count, err);
    if (!r && v->types && type_count != out->count)
        r = st_fail(err, STRATA_E_FORMAT, "%s: tokenizer.ggml.token_type has %zu entries for %zu tokens", g->path,
                    type_count, out->count);
    if (!r && v->types && !(v->types32 = malloc(type_count * sizeof *v->types32 + 1)))
        r = st_fail(err, STRATA_E_MEMORY, "%s: no memory for the vocabulary", g->path);
    for (size_t i = 0; i < type_count && !r; i++)
        v->types32[i] = v->types[i] >= 0 && v->types[i] <= 6 ? (int32_t)v->types[i] : ST_TOKEN_UNUSED;
    if (!r)
        r = string_key(g, "tokenizer.ggml.pre", 64, &v->pre, err);
    if (!r)
        r = optional_id(g, "tokenizer.ggml.bos_token_id", &out->bos, err);
    if (!r)
        r = optional_id(g, "tokenizer.ggml.eos_token_id", &out->eos, err);
    if (!r)
        r = optional_id(g, "tokenizer.ggml.eot_token_id", &out->eot, err);
    if (!r)
        r = optional_id(g, "tokenizer.ggml.padding_token_id", &out->pad, err);
    /* Files with this pre-tokenizer were made before the key existed; its texts begin with bos. */
    bool bos_unless_said = v->pre && !strcmp(v->pre, "llama-bpe") && out->bos >= 0;
    if (!r)
        r = st_gguf_bool_or(g, "tokenizer.ggml.add_bos_token", bos_unless_said, &out->add_bos, err);
    out->tokens = v->tokens;
    out->merges = v->merges;
    out->types = v->types32;
    out->pre = v->pre ? v->pre : "default";
    return r;
}

static enum strata_result read_tokenizer(struct strata_model *m, struct strata_error *err)
{
    const struct st_gguf *g = m->gguf;
    if (!st_gguf_key(g, "tokenizer.ggml.tokens"))
        return STRATA_OK;
    char *kind;
    enum strata_result r = string_key(g, "tokenizer.ggml.model", 64, &kind, err);
    if (r)
        return r;
    if (kind && strcmp(kind, "gpt2")) {
        char shown[64];
        r = st_fail(err, STRATA_E_UNSUPPORTED, "%s: tokenizer model '%s' is not supported", g->path,
                    st_printable(shown, sizeof shown, kind, strlen(kind)));
        free(kind);
        return r;
    }
    free(kind);
    struct vocabulary v = {0};
    struct st_vocab vocab = {0};
    r = read_vocabulary(g, &v, &vocab, err);
    if (!r)
        r = st_tokenizer_create(&vocab, &m->tokenizer, err);
    if (r)
        r = st_fail_in(err, r, "%s", g->path);
    free(v.tokens);
    free(v.merges);
    free(v.types);
    free(v.types32);
    free(v.pre);
    return r;
}

/* A vocabulary that makes no sense here does not keep a model from being used by ids: the reason is kept for texts. */
static enum strata_result open_tokenizer(struct strata_model *m, struct strata_error *err)
{
    enum strata_result r = read_tokenizer(m, &m->no_text);
    if (r != STRATA_E_MEMORY)
        return STRATA_OK;
    return st_fail(err, r, "%s", m->no_text.text);
}

/* Text of a special id for templates, NULL for none; freed by the caller. */
static char *token_text(const struct strata_model *m, int32_t id)
{
    if (id < 0)
        return NULL;
    struct st_bytes b = st_tokenizer_bytes(m->tokenizer, id, true);
    return copy_text(b.data, b.size);
}

/* A template that cannot be served does not keep a model from being used for plain text: the reason is kept for chats. */
static enum strata_result open_chat(struct strata_model *m, struct strata_error *err)
{
    char *bos = token_text(m, st_tokenizer_bos(m->tokenizer)), *eos = token_text(m, st_tokenizer_eos(m->tokenizer));
    enum strata_result r = st_chat_create(m->template_text, m->template_text ? strlen(m->template_text) : 0, bos, eos,
                                          &m->chat, &m->no_chat);
    free(bos);
    free(eos);
    if (r)
        st_fail_in(&m->no_chat, r, "%s: tokenizer.chat_template", m->gguf->path);
    return r == STRATA_E_MEMORY ? st_fail(err, r, "%s", m->no_chat.text) : STRATA_OK;
}

enum strata_result strata_model_open(const char *path, struct strata_model **out, struct strata_error *err)
{
    struct strata_model *m = calloc(1, sizeof *m);
    if (!m || !(m->trie = st_model_trie_create())) {
        free(m);
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory", path);
    }
    enum strata_result r = st_gguf_open(path, &m->gguf, err);
    if (!r)
        r = string_key(m->gguf, "general.architecture", 64, &m->architecture, err);
    if (!r && !m->architecture)
        r = st_fail(err, STRATA_E_MODEL, "%s: general.architecture is missing", path);
    if (!r)
        r = string_key(m->gguf, "general.name", 4096, &m->name, err);
    if (!r)
        r = string_key(m->gguf, "tokenizer.chat_template", TEMPLATE_MAX, &m->template_text, err);
    if (!r)
        r = open_tokenizer(m, err);
    if (!r && m->tokenizer)
        r = open_chat(m, err);
    if (r) {
        strata_model_free(m);
        return r;
    }
    *out = m;
    return STRATA_OK;
}

void strata_model_free(struct strata_model *m)
{
    if (!m)
        return;
    st_chat_free(m->chat);
    st_model_trie_free(m->trie);
    st_tokenizer_free(m->tokenizer);
    st_gguf_close(m->gguf);
    free(m->name);
    free(m->template_text);
    free(m->architecture);
    free(m);
}

void strata_model_info(const struct strata_model *m, struct strata_model_info *out)
{
    const struct st_gguf *g = m->gguf;
    const char *slash = strrchr(g->path, '/');
    *out = (struct strata_model_info){.architecture = m->architecture,
                                      .name = m->name ? m->name : slash ? slash + 1 : g->path,
                                      .path = g->path,
                                      .bytes = g->bytes,
                                      .vocabulary = m->tokenizer ? (uint32_t)st_tokenizer_count(m->tokenizer) : 0,
                                      .chat_template = m->template_text};
    for (size_t i = 0; i < g->n_tensors; i++)
        out->parameters += st_gguf_elements(&g->tensors[i]);
    char key[96];
    snprintf(key, sizeof key, "%s.block_count", m->architecture);
    st_gguf_u32_or(g, key, 0, &out->layers, NULL);
    snprintf(key, sizeof key, "%s.context_length", m->architecture);
    st_gguf_u32_or(g, key, 0, &out->context, NULL);
}

static enum strata_result no_tokenizer(const struct strata_model *m, struct strata_error *err)
{
    if (m->no_text.code)
        return st_fail(err, m->no_text.code, "%s", m->no_text.text);
    return st_fail(err, STRATA_E_MODEL, "%s: the file has no tokenizer", m->gguf->path);
}

enum strata_result strata_tokenize(const struct strata_model *m, const char *text, size_t size, bool special,
                                   int32_t **ids, size_t *count, struct strata_error *err)
{
    if (!m->tokenizer)
        return no_tokenizer(m, err);
    struct st_ids list = {0};
    enum strata_result r = STRATA_OK;
    if (st_tokenizer_add_bos(m->tokenizer) && st_tokenizer_bos(m->tokenizer) >= 0)
        r = st_ids_push(&list, st_tokenizer_bos(m->tokenizer), err);
    if (!r)
        r = st_tokenizer_encode(m->tokenizer, text, size, special, &list, err);
    if (r) {
        st_ids_free(&list);
        return r;
    }
    *ids = list.data;
    *count = list.count;
    return STRATA_OK;
}

enum strata_result strata_detokenize(const struct strata_model *m, const int32_t *ids, size_t count, bool special,
                                     char **text, size_t *size, struct strata_error *err)
{
    if (!m->tokenizer)
        return no_tokenizer(m, err);
    size_t total = 0;
    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || (size_t)ids[i] >= st_tokenizer_count(m->tokenizer))
            return st_fail(err, STRATA_E_ARGUMENT, "token id %d: the vocabulary has %zu", ids[i], st_tokenizer_count(m->tokenizer));
    for (size_t i = 0; i < count; i++)
        total += st_tokenizer_bytes(m->tokenizer, ids[i], special).size;
    char *p = malloc(total + 1);
    if (!p)
        return st_fail(err, STRATA_E_MEMORY, "no memory for %zu bytes of text", total);
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        struct st_bytes b = st_tokenizer_bytes(m->tokenizer, ids[i], special);
        memcpy(p + at, b.data, b.size);
        at += b.size;
    }
    p[at] = 0;
    *text = p;
    *size = at;
    return STRATA_OK;
}

bool strata_is_stop_token(const struct strata_model *m, int32_t id)
{
    return m->tokenizer && st_tokenizer_is_stop(m->tokenizer, id);
}

static enum strata_result parse_json(const char *what, const char *text, json_t **out, struct strata_error *err)
{
    json_error_t e;
    *out = json_loads(text, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    return *out ? STRATA_OK : st_fail(err, STRATA_E_ARGUMENT, "%s: line %d: %s", what, e.line, e.text);
}

enum strata_result strata_chat_prompt(const struct strata_model *m, const char *messages, const char *options,
                                      int32_t **ids, size_t *count, char **text, struct strata_error *err)
{
    if (!m->tokenizer)
        return no_tokenizer(m, err);
    if (!m->chat)
        return st_fail(err, m->no_chat.code, "%s", m->no_chat.text);
    json_t *list = NULL, *extra = NULL;
    struct st_ids out = {0};
    struct st_rendered rendered = {0};
    enum strata_result r = parse_json("messages", messages, &list, err);
    if (!r && options)
        r = parse_json("options", options, &extra, err);
    if (!r)
        r = st_chat_encode(m->chat, m->tokenizer, list, extra, &out, &rendered, err);
    json_decref(list);
    json_decref(extra);
    if (r) {
        st_ids_free(&out);
        st_rendered_free(&rendered);
        return r;
    }
    *ids = out.data;
    *count = out.count;
    if (text) {
        *text = rendered.text;
        rendered.text = NULL;
    }
    st_rendered_free(&rendered);
    return STRATA_OK;
}

enum strata_result st_model_sampling(const struct strata_model *model, struct strata_sampling *out,
                                     struct strata_error *err)
{
    const struct st_gguf *g = model->gguf;
    double temperature = 0.7, top_p = 0.95, min_p = 0, repeat = 1, top_k = 40;
    enum strata_result r = st_gguf_f64_or(g, "general.sampling.temp", temperature, &temperature, err);
    if (!r)
        r = st_gguf_f64_or(g, "general.sampling.top_k", top_k, &top_k, err);
    if (!r)
        r = st_gguf_f64_or(g, "general.sampling.top_p", top_p, &top_p, err);
    if (!r)
        r = st_gguf_f64_or(g, "general.sampling.min_p", min_p, &min_p, err);
    if (!r)
        r = st_gguf_f64_or(g, "general.sampling.penalty_repeat", repeat, &repeat, err);
    if (!r && !(top_k >= 0 && top_k <= 1 << 24))
        r = st_fail(err, STRATA_E_FORMAT, "%s: general.sampling.top_k is %g", g->path, top_k);
    if (r)
        return r;
    strata_sampling_default(out);
    out->temperature = (float)temperature;
    out->top_k = (int)top_k;
    out->top_p = (float)top_p;
    out->min_p = (float)min_p;
    out->repetition_penalty = (float)repeat;
    return STRATA_OK;
}
