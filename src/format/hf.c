/* Hugging Face model folders. Layouts as written by transformers and tokenizers; all input is untrusted. */
#include "format/hf.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

enum {
    MAX_CONFIG = 16 << 20,
    MAX_TOKENIZER = 256 << 20,
    MAX_TEMPLATE = 16 << 20,
    MAX_TOKENS = 1 << 24,
    MAX_EXTRA_FILES = 64,
};

static char *join(const char *dir, const char *name)
{
    size_t a = strlen(dir), b = strlen(name);
    char *p = malloc(a + b + 2);
    if (!p)
        return NULL;
    memcpy(p, dir, a);
    p[a] = '/';
    memcpy(p + a + 1, name, b + 1);
    return p;
}

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

/* Reads a JSON file if it is there; its top must be an object. */
static enum strata_result read_optional(const char *path, uint64_t limit, json_t **out, struct strata_error *err)
{
    if (!exists(path))
        return STRATA_OK;
    enum strata_result r = st_json_read(path, limit, out, err);
    if (!r && !json_is_object(*out))
        r = st_fail(err, STRATA_E_FORMAT, "%s: its top is no JSON object", path);
    return r;
}

static int name_order(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Files of draft layers stand beside the model without being in its index. */
static enum strata_result add_draft_files(struct st_hf *hf, struct strata_error *err)
{
    DIR *d = opendir(hf->dir);
    if (!d)
        return st_fail(err, STRATA_E_IO, "%s: cannot list: %s", hf->dir, strerror(errno));
    char *names[MAX_EXTRA_FILES];
    size_t n = 0;
    enum strata_result r = STRATA_OK;
    for (struct dirent *e; !r && (e = readdir(d));) {
        size_t size = strlen(e->d_name);
        if (strncmp(e->d_name, "mtp", 3) || size < 12 || strcmp(e->d_name + size - 12, ".safetensors"))
            continue;
        if (st_safetensors_has_file(hf->tensors, e->d_name))
            continue;
        if (n == MAX_EXTRA_FILES)
            r = st_fail(err, STRATA_E_LIMIT, "%s: more than %d files named mtp*.safetensors", hf->dir, MAX_EXTRA_FILES);
        else if (!(names[n] = join(hf->dir, e->d_name)))
            r = st_fail(err, STRATA_E_MEMORY, "%s: no memory for a path", hf->dir);
        else
            n++;
    }
    closedir(d);
    if (n)
        qsort(names, n, sizeof *names, name_order);
    for (size_t i = 0; i < n; i++) {
        if (!r)
            r = st_safetensors_add(hf->tensors, names[i], err);
        free(names[i]);
    }
    return r;
}

static enum strata_result add_tensors(struct st_hf *hf, struct strata_error *err)
{
    enum strata_result r = st_safetensors_create(&hf->tensors, err);
    if (r)
        return r;
    char *index = join(hf->dir, "model.safetensors.index.json"), *single = join(hf->dir, "model.safetensors");
    if (!index || !single)
        r = st_fail(err, STRATA_E_MEMORY, "%s: no memory for a path", hf->dir);
    else if (exists(index))
        r = st_safetensors_add_index(hf->tensors, index, err);
    else if (exists(single))
        r = st_safetensors_add(hf->tensors, single, err);
    else
        r = st_fail(err, STRATA_E_IO, "%s: neither model.safetensors nor model.safetensors.index.json is there",
                    hf->dir);
    free(index);
    free(single);
    return r ? r : add_draft_files(hf, err);
}

static enum strata_result read_template_file(struct st_hf *hf, struct strata_error *err)
{
    char *path = join(hf->dir, "chat_template.jinja");
    if (!path)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for a path", hf->dir);
    size_t size = 0;
    enum strata_result r = exists(path) ? st_read_file(path, MAX_TEMPLATE, &hf->template_file, &size, err) : STRATA_OK;
    if (!r && hf->template_file && strlen(hf->template_file) != size)
        r = st_fail(err, STRATA_E_FORMAT, "%s: holds a zero byte", path);
    free(path);
    return r;
}

enum strata_result st_hf_open(const char *dir, struct st_hf **out, struct strata_error *err)
{
    struct st_hf *hf = calloc(1, sizeof *hf);
    if (!hf)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory", dir);
    enum strata_result r = STRATA_OK;
    hf->dir = strdup(dir);
    hf->config_path = join(dir, "config.json");
    hf->generation_config_path = join(dir, "generation_config.json");
    hf->tokenizer_path = join(dir, "tokenizer.json");
    hf->tokenizer_config_path = join(dir, "tokenizer_config.json");
    if (!hf->dir || !hf->config_path || !hf->generation_config_path || !hf->tokenizer_path ||
        !hf->tokenizer_config_path)
        r = st_fail(err, STRATA_E_MEMORY, "%s: no memory", dir);
    if (!r)
        r = read_optional(hf->config_path, MAX_CONFIG, &hf->config, err);
    if (!r && !hf->config)
        r = st_fail(err, STRATA_E_IO, "%s is missing", hf->config_path);
    if (!r)
        r = read_optional(hf->generation_config_path, MAX_CONFIG, &hf->generation_config, err);
    if (!r)
        r = read_optional(hf->tokenizer_path, MAX_TOKENIZER, &hf->tokenizer, err);
    if (!r)
        r = read_optional(hf->tokenizer_config_path, MAX_CONFIG, &hf->tokenizer_config, err);
    if (!r)
        r = read_template_file(hf, err);
    if (!r)
        r = add_tensors(hf, err);
    if (r) {
        st_hf_close(hf);
        return r;
    }
    *out = hf;
    return STRATA_OK;
}

void st_hf_close(struct st_hf *hf)
{
    if (!hf)
        return;
    json_decref(hf->config);
    json_decref(hf->generation_config);
    json_decref(hf->tokenizer);
    json_decref(hf->tokenizer_config);
    free(hf->config_path);
    free(hf->generation_config_path);
    free(hf->tokenizer_path);
    free(hf->tokenizer_config_path);
    free(hf->template_file);
    st_safetensors_free(hf->tensors);
    free(hf->dir);
    free(hf);
}

/* Pre-tokenizers by the expression that tokenizer.json spells out, as published with the models. */
static const struct {
    const char *regex, *name;
} pre_tokenizers[] = {
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|"
     "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     "qwen35"},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
     "\\s+(?!\\S)|\\s+",
     "qwen2"},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
     "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
     "\\s+(?!\\S)|\\s+",
     "llama-bpe"},
};

/* What the steps of a pre-tokenizer have said so far. */
struct pre_steps {
    const char *name; /* NULL: nothing cuts the text yet */
    bool digits;      /* every digit is a piece of its own */
};

static enum strata_result read_byte_level(struct st_json step, struct pre_steps *pre, struct strata_error *err)
{
    bool own = true, space = false;
    enum strata_result r = st_json_bool_or(step, "use_regex", true, &own, err);
    if (!r)
        r = st_json_bool_or(step, "add_prefix_space", false, &space, err);
    if (!r && space)
        r = st_fail(err, STRATA_E_UNSUPPORTED, "%s: add_prefix_space is not supported", step.where);
    if (!r && own && !pre->name)
        pre->name = pre->digits ? "smollm" : "gpt2";
    return r;
}

static enum strata_result read_split(struct st_json step, struct pre_steps *pre, struct strata_error *err)
{
    const char *regex;
    const json_t *pattern;
    enum strata_result r = st_json_object(step, "pattern", &pattern, err);
    if (!r)
        r = st_json_text((struct st_json){pattern, step.where}, "Regex", &regex, err);
    if (r)
        return r;
    for (size_t i = 0; i < sizeof pre_tokenizers / sizeof pre_tokenizers[0]; i++)
        if (!strcmp(regex, pre_tokenizers[i].regex)) {
            pre->name = pre_tokenizers[i].name;
            return STRATA_OK;
        }
    return st_fail(err, STRATA_E_UNSUPPORTED, "%s: the expression that cuts text is not one of the known ones",
                   step.where);
}

static enum strata_result read_pre_step(struct st_json step, struct pre_steps *pre, struct strata_error *err)
{
    const char *type;
    enum strata_result r = st_json_text(step, "type", &type, err);
    if (r)
        return r;
    if (!strcmp(type, "ByteLevel"))
        return read_byte_level(step, pre, err);
    if (!strcmp(type, "Split"))
        return read_split(step, pre, err);
    if (!strcmp(type, "Digits"))
        return st_json_bool_or(step, "individual_digits", false, &pre->digits, err);
    return st_fail(err, STRATA_E_UNSUPPORTED, "%s: pre-tokenizer step of an unknown type", step.where);
}

static enum strata_result read_pre(const struct st_hf *hf, const char **out, struct strata_error *err)
{
    struct st_json top = {hf->tokenizer, hf->tokenizer_path};
    struct pre_steps pre = {0};
    const json_t *pt, *steps = NULL;
    enum strata_result r = st_json_object(top, "pre_tokenizer", &pt, err);
    if (r)
        return r;
    struct st_json one = {pt, hf->tokenizer_path};
    if (st_json_get(one, "pretokenizers")) {
        r = st_json_array(one, "pretokenizers", &steps, err);
        for (size_t i = 0; !r && i < json_array_size(steps); i++)
            r = read_pre_step((struct st_json){json_array_get(steps, i), hf->tokenizer_path}, &pre, err);
    } else {
        r = read_pre_step(one, &pre, err);
    }
    if (!r && !pre.name)
        r = st_fail(err, STRATA_E_UNSUPPORTED, "%s: no pre-tokenizer step cuts the text", hf->tokenizer_path);
    if (!r && pre.digits && strcmp(pre.name, "smollm"))
        r = st_fail(err, STRATA_E_UNSUPPORTED, "%s: single digits together with this way of cutting are not supported",
                    hf->tokenizer_path);
    *out = pre.name;
    return r;
}

static enum strata_result set_token(const struct st_hf *hf, struct st_hf_tokenizer *t, const json_t *text, uint64_t id,
                                    int32_t type, struct strata_error *err)
{
    char shown[60];
    const char *s = json_string_value(text);
    size_t n = json_string_length(text);
    st_printable(shown, sizeof shown, s, n);
    if (id >= t->count)
        return st_fail(err, STRATA_E_FORMAT, "%s: token '%s' has id %llu, but the model has %zu rows",
                       hf->tokenizer_path, shown, (unsigned long long)id, t->count);
    struct st_bytes *slot = &t->tokens[id];
    if (slot->data && (slot->size != n || memcmp(slot->data, s, n)))
        return st_fail(err, STRATA_E_FORMAT, "%s: two tokens have id %llu, one of them '%s'", hf->tokenizer_path,
                       (unsigned long long)id, shown);
    *slot = (struct st_bytes){s, n};
    t->types[id] = type;
    return STRATA_OK;
}

static enum strata_result read_tokens(const struct st_hf *hf, const json_t *vocab, struct st_hf_tokenizer *t,
                                      struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    const char *text;
    json_t *id;
    json_object_foreach((json_t *)vocab, text, id)
    {
        uint64_t v;
        /* A member's name is a C string: the library refuses names with zero bytes. */
        if (!st_json_as_u64(id, &v))
            return st_fail(err, STRATA_E_FORMAT, "%s: a token's id is no integer", hf->tokenizer_path);
        if (v >= t->count)
            return st_fail(err, STRATA_E_FORMAT, "%s: token id %llu, but the model has %zu rows", hf->tokenizer_path,
                           (unsigned long long)v, t->count);
        if (t->tokens[v].data)
            return st_fail(err, STRATA_E_FORMAT, "%s: two tokens have id %llu", hf->tokenizer_path,
                           (unsigned long long)v);
        t->tokens[v] = (struct st_bytes){text, strlen(text)};
        t->types[v] = 1;
    }
    const json_t *added = NULL;
    struct st_json top = {hf->tokenizer, hf->tokenizer_path};
    if (st_json_get(top, "added_tokens"))
        r = st_json_array(top, "added_tokens", &added, err);
    for (size_t i = 0; !r && i < json_array_size(added); i++) {
        struct st_json a = {json_array_get(added, i), hf->tokenizer_path};
        uint64_t v = 0;
        const char *content;
        bool special = false;
        r = st_json_u64(a, "id", &v, err);
        if (!r)
            r = st_json_text(a, "content", &content, err);
        if (!r)
            r = st_json_bool_or(a, "special", false, &special, err);
        if (!r)
            r = set_token(hf, t, st_json_get(a, "content"), v, special ? 3 : 4, err);
    }
    return r;
}

static bool in_vocab(const json_t *vocab, const char *text, size_t size)
{
    return json_object_getn(vocab, text, size) != NULL;
}

/* Left and right of a merge, which is written as one text with a space between or as a pair. */
static bool merge_parts(const json_t *m, struct st_bytes *left, struct st_bytes *right)
{
    if (json_is_string(m)) {
        const char *s = json_string_value(m), *space = memchr(s, ' ', json_string_length(m));
        if (!space)
            return false;
        *left = (struct st_bytes){s, (size_t)(space - s)};
        *right = (struct st_bytes){space + 1, json_string_length(m) - left->size - 1};
    } else {
        const json_t *a = json_array_get(m, 0), *b = json_array_get(m, 1);
        if (json_array_size(m) != 2 || !json_is_string(a) || !json_is_string(b))
            return false;
        *left = (struct st_bytes){json_string_value(a), json_string_length(a)};
        *right = (struct st_bytes){json_string_value(b), json_string_length(b)};
    }
    return left->size && right->size && !memchr(left->data, ' ', left->size) && !memchr(right->data, ' ', right->size);
}

/* Texts that are made here: "[PADn]" for the ids without a token, and "left right" for merges. */
static enum strata_result make_texts(const struct st_hf *hf, const json_t *vocab, const json_t *merges,
                                     struct st_hf_tokenizer *t, struct strata_error *err)
{
    size_t need = 0;
    struct st_bytes a, b;
    for (size_t i = 0; i < t->count; i++)
        need += t->tokens[i].data ? 0 : 32;
    for (size_t i = 0; i < t->merge_count; i++) {
        const json_t *m = json_array_get(merges, i);
        if (!merge_parts(m, &a, &b) || !in_vocab(vocab, a.data, a.size) || !in_vocab(vocab, b.data, b.size))
            return st_fail(err, STRATA_E_FORMAT, "%s: merge %zu does not join two tokens", hf->tokenizer_path, i);
        need += a.size + b.size + 1;
    }
    char *p = t->memory = malloc(need + 1);
    if (!p)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for the tokenizer", hf->tokenizer_path);
    for (size_t i = 0; i < t->count; i++)
        if (!t->tokens[i].data) {
            t->tokens[i] = (struct st_bytes){p, (size_t)snprintf(p, 32, "[PAD%zu]", i)};
            t->types[i] = 5;
            p += t->tokens[i].size;
        }
    for (size_t i = 0; i < t->merge_count; i++) {
        merge_parts(json_array_get(merges, i), &a, &b);
        t->merges[i] = (struct st_bytes){p, a.size + b.size + 1};
        memcpy(p, a.data, a.size);
        p[a.size] = ' ';
        memcpy(p + a.size + 1, b.data, b.size);
        p += t->merges[i].size;
    }
    return STRATA_OK;
}

static int64_t find_token(const struct st_hf_tokenizer *t, const char *text)
{
    size_t n = strlen(text);
    for (size_t i = t->count; i-- > 0;) /* added tokens stand at the end */
        if (t->tokens[i].size == n && !memcmp(t->tokens[i].data, text, n))
            return (int64_t)i;
    return -1;
}

/* A token named by text in tokenizer_config.json: a string, or an object with "content". */
static enum strata_result named_token(const struct st_hf *hf, const struct st_hf_tokenizer *t, const char *name,
                                      int64_t *id, struct strata_error *err)
{
    struct st_json top = {hf->tokenizer_config, hf->tokenizer_config_path};
    const json_t *v = st_json_get(top, name);
    if (json_is_object(v))
        v = json_object_get(v, "content");
    if (!v)
        return STRATA_OK;
    char shown[60];
    const char *text = json_string_value(v);
    *id = text ? find_token(t, text) : -1;
    if (*id < 0)
        return st_fail(err, STRATA_E_FORMAT, "%s: %s '%s' is no token", hf->tokenizer_config_path, name,
                       st_printable(shown, sizeof shown, text ? text : "", text ? strlen(text) : 0));
    return STRATA_OK;
}

/* A token given by id (the first one of a list) in a configuration, unless *id is set already. */
static enum strata_result numbered_token(struct st_json config, const char *name, size_t count, int64_t *id,
                                         struct strata_error *err)
{
    const json_t *v = config.value ? st_json_get(config, name) : NULL;
    if (json_is_array(v))
        v = json_array_get(v, 0);
    if (!v || *id >= 0)
        return STRATA_OK;
    uint64_t n;
    if (!st_json_as_u64(v, &n) || n >= count)
        return st_fail(err, STRATA_E_FORMAT, "%s: %s is no id below %zu", config.where, name, count);
    *id = (int64_t)n;
    return STRATA_OK;
}

/* Whether the tokenizer puts bos before a text. "single" of a TemplateProcessing lists what stands where; only bos in
 * front of the text can be told in a file. */
static enum strata_result read_template_step(struct st_json step, struct st_hf_tokenizer *t, struct strata_error *err)
{
    const char *type, *token;
    const json_t *single, *special;
    enum strata_result r = st_json_text(step, "type", &type, err);
    if (r || strcmp(type, "TemplateProcessing"))
        return r;
    r = st_json_array(step, "single", &single, err);
    for (size_t i = 0; !r && i < json_array_size(single); i++) {
        struct st_json part = {json_array_get(single, i), step.where};
        if (!st_json_get(part, "SpecialToken"))
            continue;
        r = st_json_object(part, "SpecialToken", &special, err);
        if (!r)
            r = st_json_text((struct st_json){special, step.where}, "id", &token, err);
        if (r)
            return r;
        int64_t id = find_token(t, token);
        if (i > 0 || id < 0 || (t->bos >= 0 && id != t->bos))
            return st_fail(err, STRATA_E_UNSUPPORTED,
                           "%s: post_processor adds a token that is not the first one of a text", step.where);
        t->bos = id;
        t->add_bos = true;
    }
    return r;
}

static enum strata_result read_add_bos(const struct st_hf *hf, struct st_hf_tokenizer *t, struct strata_error *err)
{
    struct st_json tc = {hf->tokenizer_config, hf->tokenizer_config_path}, top = {hf->tokenizer, hf->tokenizer_path};
    struct st_json post = {st_json_get(top, "post_processor"), hf->tokenizer_path};
    if (st_json_get(tc, "add_bos_token"))
        return st_json_bool(tc, "add_bos_token", &t->add_bos, err);
    if (!post.value)
        return STRATA_OK;
    if (!st_json_get(post, "processors"))
        return read_template_step(post, t, err);
    const json_t *steps;
    enum strata_result r = st_json_array(post, "processors", &steps, err);
    for (size_t i = 0; !r && i < json_array_size(steps); i++)
        r = read_template_step((struct st_json){json_array_get(steps, i), hf->tokenizer_path}, t, err);
    return r;
}

static enum strata_result read_special_ids(const struct st_hf *hf, struct st_hf_tokenizer *t, struct strata_error *err)
{
    static const char *const texts[] = {"bos_token", "eos_token", "pad_token"};
    static const char *const ids[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
    int64_t *const slots[] = {&t->bos, &t->eos, &t->pad};
    enum strata_result r = STRATA_OK;
    struct st_json top = {hf->config, hf->config_path};
    struct st_json text = {st_json_get(top, "text_config"), hf->config_path};
    for (int i = 0; i < 3 && !r; i++) {
        *slots[i] = -1;
        r = named_token(hf, t, texts[i], slots[i], err);
        if (!r)
            r = numbered_token((struct st_json){hf->generation_config, hf->generation_config_path}, ids[i], t->count,
                               slots[i], err);
        if (!r)
            r = numbered_token(top, ids[i], t->count, slots[i], err);
        if (!r && json_is_object(text.value))
            r = numbered_token(text, ids[i], t->count, slots[i], err);
    }
    return r ? r : read_add_bos(hf, t, err);
}

enum strata_result st_hf_read_tokenizer(const struct st_hf *hf, uint64_t count, struct st_hf_tokenizer *out,
                                        struct strata_error *err)
{
    *out = (struct st_hf_tokenizer){0};
    if (!hf->tokenizer)
        return st_fail(err, STRATA_E_IO, "%s is missing", hf->tokenizer_path);
    if (count > MAX_TOKENS)
        return st_fail(err, STRATA_E_LIMIT, "%s: %llu rows, more than the %d allowed", hf->tokenizer_path,
                       (unsigned long long)count, MAX_TOKENS);
    struct st_json top = {hf->tokenizer, hf->tokenizer_path};
    const json_t *model, *vocab = NULL, *merges = NULL;
    const char *type;
    enum strata_result r = st_json_object(top, "model", &model, err);
    if (r)
        return r;
    struct st_json m = {model, hf->tokenizer_path};
    r = st_json_text_or(m, "type", "BPE", &type, err);
    if (!r && strcmp(type, "BPE"))
        r = st_fail(err, STRATA_E_UNSUPPORTED, "%s: the tokenizer is no BPE", hf->tokenizer_path);
    if (!r)
        r = st_json_object(m, "vocab", &vocab, err);
    if (!r)
        r = st_json_array(m, "merges", &merges, err);
    if (r)
        return r;
    struct st_hf_tokenizer t = {.count = (size_t)count, .merge_count = json_array_size(merges)};
    t.tokens = calloc(t.count + 1, sizeof *t.tokens);
    t.types = calloc(t.count + 1, sizeof *t.types);
    t.merges = calloc(t.merge_count + 1, sizeof *t.merges);
    if (!t.tokens || !t.types || !t.merges)
        r = st_fail(err, STRATA_E_MEMORY, "%s: no memory for the tokenizer", hf->tokenizer_path);
    if (!r)
        r = read_pre(hf, &t.pre, err);
    if (!r)
        r = read_tokens(hf, vocab, &t, err);
    if (!r)
        r = make_texts(hf, vocab, merges, &t, err);
    if (!r)
        r = read_special_ids(hf, &t, err);
    if (r) {
        st_hf_tokenizer_free(&t);
        return r;
    }
    *out = t;
    return STRATA_OK;
}

void st_hf_tokenizer_free(struct st_hf_tokenizer *t)
{
    free(t->tokens);
    free(t->types);
    free(t->merges);
    free(t->memory);
    *t = (struct st_hf_tokenizer){0};
}

enum strata_result st_hf_chat_template(const struct st_hf *hf, const char **out, struct strata_error *err)
{
    *out = hf->template_file;
    struct st_json top = {hf->tokenizer_config, hf->tokenizer_config_path};
    const json_t *v = st_json_get(top, "chat_template");
    if (*out || !v)
        return STRATA_OK;
    if (!json_is_array(v))
        return st_json_text(top, "chat_template", out, err);
    for (size_t i = 0; i < json_array_size(v); i++) {
        struct st_json entry = {json_array_get(v, i), hf->tokenizer_config_path};
        const char *name;
        enum strata_result r = st_json_text(entry, "name", &name, err);
        if (!r && !strcmp(name, "default"))
            return st_json_text(entry, "template", out, err);
        if (r)
            return r;
    }
    return STRATA_OK;
}
