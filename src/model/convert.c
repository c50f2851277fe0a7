/* Conversion of Hugging Face folders: finds the family, checks that no source tensor is lost, and streams planned
 * tensors into GGUF files. What a family's names and settings mean is in <family>_convert.c. */
#include "model/convert.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/quant.h"
#include "model/convert_job.h"
#include "model/families.h"

static size_t source_index(const struct st_convert_job *job, const struct st_safetensor *t)
{
    return (size_t)(t - st_safetensors_at(job->hf->tensors, 0));
}

const struct st_safetensor *st_convert_find(const struct st_convert_job *job, const char *name)
{
    return st_safetensors_find(job->hf->tensors, name);
}

/* "[600, 128]" */
static char *shape_text(char *dst, size_t size, uint32_t n_dims, const uint64_t *shape)
{
    size_t at = (size_t)snprintf(dst, size, "[");
    for (uint32_t i = 0; i < n_dims && at < size; i++)
        at += (size_t)snprintf(dst + at, size - at, "%s%llu", i ? ", " : "", (unsigned long long)shape[i]);
    if (at < size)
        snprintf(dst + at, size - at, "]");
    return dst;
}

enum strata_result st_convert_source(struct st_convert_job *job, const char *name, uint32_t n_dims,
                                     const uint64_t *shape, const struct st_safetensor **out, struct strata_error *err)
{
    const struct st_safetensor *t = st_convert_find(job, name);
    if (!t)
        return st_fail(err, STRATA_E_MODEL, "%s: tensor %s is missing", job->hf->dir, name);
    bool same = t->n_dims == n_dims && t->elements > 0;
    for (uint32_t i = 0; same && i < n_dims; i++)
        same = !shape[i] || shape[i] == t->shape[i];
    if (!same) {
        char is[120], want[120];
        return st_fail(err, STRATA_E_MODEL, "%s: tensor %s has shape %s where %s is expected", t->path, name,
                       shape_text(is, sizeof is, t->n_dims, t->shape), shape_text(want, sizeof want, n_dims, shape));
    }
    job->used[source_index(job, t)] = true;
    *out = t;
    return STRATA_OK;
}

enum strata_result st_convert_add(struct st_convert_job *job, const char *name, uint32_t n_dims, const uint64_t *ne,
                                  size_t n_parts, bool fixed, struct st_convert_tensor **out, struct strata_error *err)
{
    if (job->n_tensors == job->capacity) {
        size_t n = job->capacity ? job->capacity * 2 : 256;
        struct st_convert_tensor **all = realloc(job->tensors, n * sizeof *all);
        if (!all)
            return st_fail(err, STRATA_E_MEMORY, "tensor %s: no memory", name);
        job->tensors = all;
        job->capacity = n;
    }
    struct st_convert_tensor *t = calloc(1, sizeof *t);
    struct st_convert_part *parts = calloc(n_parts, sizeof *parts);
    size_t size = strlen(name);
    if (!t || !parts || size > ST_GGUF_NAME_MAX) {
        free(t);
        free(parts);
        return st_fail(err, STRATA_E_MEMORY, "tensor %s: no memory, or a name that is too long", name);
    }
    memcpy(t->name, name, size + 1);
    t->type = fixed ? ST_TYPE_F32 : ST_TYPE_COUNT;
    t->n_dims = n_dims;
    for (uint32_t i = 0; i < ST_GGUF_DIMS; i++)
        t->ne[i] = i < n_dims ? ne[i] : 1;
    t->parts = parts;
    t->n_parts = n_parts;
    t->job = job;
    job->tensors[job->n_tensors++] = t;
    *out = t;
    return STRATA_OK;
}

enum strata_result st_convert_add_made(struct st_convert_job *job, const char *name, const float *values, size_t count,
                                       struct strata_error *err)
{
    struct st_convert_tensor *t;
    const uint64_t ne = count;
    enum strata_result r = st_convert_add(job, name, 1, &ne, 1, true, &t, err);
    if (r)
        return r;
    if (count == 0 || count > ST_CONVERT_MADE_MAX || !(t->made = malloc(count * sizeof *t->made)))
        return st_fail(err, STRATA_E_MEMORY, "tensor %s: no memory for %zu values", name, count);
    memcpy(t->made, values, count * sizeof *t->made);
    return STRATA_OK;
}

enum strata_result st_convert_settings(struct st_json config, const struct st_convert_setting *s, size_t n,
                                       struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    for (size_t i = 0; i < n && !r; i++) {
        r = st_json_u64(config, s[i].name, s[i].out, err);
        if (!r && (*s[i].out < s[i].low || *s[i].out > s[i].high))
            r = st_fail(err, STRATA_E_FORMAT, "%s: %s is %llu, not %llu to %llu", config.where, s[i].name,
                        (unsigned long long)*s[i].out, (unsigned long long)s[i].low, (unsigned long long)s[i].high);
    }
    return r;
}

/* Number of general.file_type. */
static uint32_t file_type(const struct st_convert_job *job, const char *embedding)
{
    const struct st_safetensor *t = st_convert_find(job, embedding);
    enum st_convert_type type = job->options->type;
    if (type == ST_CONVERT_BF16 || (type == ST_CONVERT_SOURCE && t && t->dtype == ST_DTYPE_BF16))
        return 32;
    return type == ST_CONVERT_F16 || (type == ST_CONVERT_SOURCE && t && t->dtype == ST_DTYPE_F16) ? 1 : 0;
}

void st_convert_general(const struct st_convert_job *job, const char *architecture, const char *suffix,
                        const char *embedding, struct st_gguf_writer *w)
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
        snprintf(text, sizeof text, "%s%s", name, suffix);
    else
        snprintf(text, sizeof text, "%.*s%s", (int)(dir + size - from), from, suffix);
    st_gguf_set_string(w, "general.architecture", architecture, strlen(architecture));
    st_gguf_set_string(w, "general.name", text, strlen(text));
    st_gguf_set_u32(w, "general.quantization_version", 2);
    st_gguf_set_u32(w, "general.file_type", file_type(job, embedding));
}

static void clear_plan(struct st_convert_job *job)
{
    for (size_t i = 0; i < job->n_tensors; i++) {
        free(job->tensors[i]->made);
        free(job->tensors[i]->parts);
        free(job->tensors[i]);
    }
    job->n_tensors = 0;
    job->done = 0;
}

static uint32_t type_of_source(enum st_dtype dtype)
{
    return dtype == ST_DTYPE_BF16 ? ST_TYPE_BF16 : dtype == ST_DTYPE_F16 ? ST_TYPE_F16 : ST_TYPE_F32;
}

/* The output type, and that every source can be read as floats. */
static enum strata_result decide_type(struct st_convert_tensor *t, struct strata_error *err)
{
    static const uint32_t chosen[] = {
        [ST_CONVERT_F32] = ST_TYPE_F32, [ST_CONVERT_F16] = ST_TYPE_F16, [ST_CONVERT_BF16] = ST_TYPE_BF16};
    enum st_convert_type wanted = t->job->options->type;
    if (t->made)
        return STRATA_OK;
    uint32_t common = type_of_source(t->parts[0].tensor->dtype);
    for (size_t i = 0; i < t->n_parts; i++) {
        const struct st_safetensor *s = t->parts[i].tensor;
        if (s->dtype != ST_DTYPE_F32 && s->dtype != ST_DTYPE_BF16 && s->dtype != ST_DTYPE_F16 &&
            s->dtype != ST_DTYPE_F64)
            return st_fail(err, STRATA_E_UNSUPPORTED, "%s: tensor %s: dtype %s cannot be converted", s->path, s->name,
                           st_dtype_name(s->dtype));
        if (type_of_source(s->dtype) != common)
            common = ST_TYPE_F32;
    }
    if (t->type == ST_TYPE_COUNT)
        t->type = wanted == ST_CONVERT_SOURCE ? common : chosen[wanted];
    return STRATA_OK;
}

static uint64_t reorder(const struct st_convert_order *o, uint64_t i)
{
    if (!o->groups || i < o->from)
        return i;
    uint64_t at = o->span ? (i - o->from) % o->span : i - o->from, j = at / o->block;
    return i - at + (o->per * (j % o->groups) + j / o->groups) * o->block + at % o->block;
}

/* Row r of the output, before its columns are put in order. */
static void read_row(const struct st_convert_tensor *t, uint64_t r, float *out)
{
    uint64_t at = reorder(&t->rows, r);
    if (t->made) {
        memcpy(out, t->made, (size_t)t->ne[0] * sizeof *out);
        return;
    }
    if (t->side_by_side) {
        size_t width = t->ne[0] / t->n_parts;
        for (size_t i = 0; i < t->n_parts; i++)
            st_safetensor_floats(t->parts[i].tensor, (t->parts[i].first + at) * width, width, out + i * width);
        return;
    }
    const struct st_convert_part *p = &t->parts[at / t->parts[0].rows];
    st_safetensor_floats(p->tensor, (p->first + at % p->rows) * t->ne[0], (size_t)t->ne[0], out);
}

static float map_value(enum st_convert_map map, float v)
{
    switch (map) {
    case ST_MAP_PLUS_ONE: return 1.0f + v;
    case ST_MAP_MINUS_EXP: return (float)-exp((double)v);
    case ST_MAP_PLAIN: break;
    }
    return v;
}

static enum strata_result write_tensor(void *user, struct st_out *out, struct strata_error *err)
{
    struct st_convert_tensor *t = user;
    struct st_convert_job *job = t->job;
    const struct st_type_info *info = st_type_info((int)t->type);
    const float limit = t->type == ST_TYPE_F16 ? 65504.0f : FLT_MAX;
    size_t n = (size_t)t->ne[0], bytes = n / info->block_elems * info->block_bytes;
    if (job->options->progress)
        job->options->progress(job->options->user, t->name, job->done, job->n_tensors);
    enum strata_result r = STRATA_OK;
    for (uint64_t row = 0; row < t->ne[1] * t->ne[2] && !r; row++) {
        read_row(t, row, job->row);
        for (size_t i = 0; i < n; i++) {
            float v = map_value(t->map, job->row[reorder(&t->columns, i)]);
            if (!(fabsf(v) <= limit))
                return st_fail(err, STRATA_E_FORMAT, "row %llu, column %zu: %g is not finite or does not fit %s",
                               (unsigned long long)row, i, (double)v, info->name);
            job->mapped[i] = v;
        }
        info->encode(job->mapped, job->encoded, n, NULL);
        r = st_out_write(out, job->encoded, bytes, err);
    }
    job->done++;
    return r;
}

static enum strata_result write_file(struct st_convert_job *job, struct st_gguf_writer *w, const char *path,
                                     struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    uint64_t widest = 1;
    for (size_t i = 0; i < job->n_tensors && !r; i++) {
        struct st_convert_tensor *t = job->tensors[i];
        r = decide_type(t, err);
        st_gguf_add_tensor(w, t->name, t->type, t->n_dims, t->ne, write_tensor, t);
        if (t->ne[0] > widest)
            widest = t->ne[0];
    }
    job->row = malloc(widest * sizeof *job->row);
    job->mapped = malloc(widest * sizeof *job->mapped);
    job->encoded = malloc(widest * sizeof *job->mapped);
    if (!r && (!job->row || !job->mapped || !job->encoded))
        r = st_fail(err, STRATA_E_MEMORY, "%s: no memory for a row of %llu", path, (unsigned long long)widest);
    if (!r)
        r = st_gguf_writer_save(w, path, err);
    free(job->row);
    free(job->mapped);
    free(job->encoded);
    return r;
}

enum strata_result st_convert_tokenizer(const struct st_convert_job *job, uint64_t count, struct st_gguf_writer *w,
                                        struct strata_error *err)
{
    const struct st_hf *hf = job->hf;
    if (!hf->tokenizer && job->options->no_tokenizer)
        return STRATA_OK;
    if (!hf->tokenizer)
        return st_fail(err, STRATA_E_MODEL, "%s is missing (--no-tokenizer makes a file that takes token ids only)",
                       hf->tokenizer_path);
    struct st_hf_tokenizer t;
    const char *chat = NULL;
    enum strata_result r = st_hf_read_tokenizer(hf, count, &t, err);
    if (!r)
        r = st_hf_chat_template(hf, &chat, err);
    if (r)
        return r;
    st_gguf_set_string(w, "tokenizer.ggml.model", "gpt2", 4);
    st_gguf_set_string(w, "tokenizer.ggml.pre", t.pre, strlen(t.pre));
    st_gguf_set_strings(w, "tokenizer.ggml.tokens", t.tokens, t.count);
    st_gguf_set_array(w, "tokenizer.ggml.token_type", ST_GGUF_I32, t.types, t.count);
    st_gguf_set_strings(w, "tokenizer.ggml.merges", t.merges, t.merge_count);
    int64_t bos = t.bos >= 0 ? t.bos : t.pad;
    if (t.eos >= 0)
        st_gguf_set_u32(w, "tokenizer.ggml.eos_token_id", (uint32_t)t.eos);
    if (t.pad >= 0)
        st_gguf_set_u32(w, "tokenizer.ggml.padding_token_id", (uint32_t)t.pad);
    if (bos >= 0)
        st_gguf_set_u32(w, "tokenizer.ggml.bos_token_id", (uint32_t)bos);
    st_gguf_set_bool(w, "tokenizer.ggml.add_bos_token", t.add_bos);
    if (chat)
        st_gguf_set_string(w, "tokenizer.chat_template", chat, strlen(chat));
    st_hf_tokenizer_free(&t);
    return STRATA_OK;
}

static const struct st_convert_family *const families[] = {&st_qwen4exp_convert, &st_llama_convert};

static enum strata_result find_family(const struct st_hf *hf, const struct st_convert_family **out,
                                      struct strata_error *err)
{
    const char *type;
    char shown[60];
    enum strata_result r = st_json_text((struct st_json){hf->config, hf->config_path}, "model_type", &type, err);
    if (r)
        return r;
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (families[i]->accepts(type)) {
            *out = families[i];
            return STRATA_OK;
        }
    return st_fail(err, STRATA_E_UNSUPPORTED, "%s: model_type '%s' cannot be converted", hf->config_path,
                   st_printable(shown, sizeof shown, type, strlen(type)));
}

static bool begins(const char *name, const char *prefix)
{
    return prefix && !strncmp(name, prefix, strlen(prefix));
}

/* Nothing of the source may be lost without a word: what no plan uses is counted when it belongs to the vision tower or
 * to a draft layer that nobody asked for, and refused otherwise. */
static enum strata_result check_left_over(const struct st_convert_job *job, const struct st_convert_family *family,
                                          struct st_convert_report *report, struct strata_error *err)
{
    for (size_t i = 0; i < st_safetensors_count(job->hf->tensors); i++) {
        const struct st_safetensor *t = st_safetensors_at(job->hf->tensors, i);
        if (job->used[i])
            continue;
        if (begins(t->name, family->vision_prefix))
            report->left_out_vision++;
        else if (!job->options->mtp_out && begins(t->name, family->draft_prefix))
            report->left_out_mtp++;
        else
            return st_fail(err, STRATA_E_MODEL, "%s: tensor %s is not part of a %s model", t->path, t->name,
                           family->name);
    }
    return STRATA_OK;
}

enum strata_result st_convert(const struct st_convert_options *options, struct st_convert_report *report,
                              struct strata_error *err)
{
    struct st_hf *hf;
    const struct st_convert_family *family = NULL;
    struct st_gguf_writer *writers[2] = {NULL, NULL};
    const char *const paths[2] = {options->out, options->mtp_out};
    *report = (struct st_convert_report){0};
    enum strata_result r = st_hf_open(options->dir, &hf, err);
    if (r)
        return r;
    bool *used = calloc(st_safetensors_count(hf->tensors) + 1, sizeof *used);
    if (!used)
        r = st_fail(err, STRATA_E_MEMORY, "%s: no memory", options->dir);
    struct st_convert_job jobs[2];
    for (int i = 0; i < 2; i++)
        jobs[i] = (struct st_convert_job){.options = options, .hf = hf, .used = used};
    if (!r)
        r = find_family(hf, &family, err);
    for (int i = 0; i < 2 && !r; i++) {
        if (!paths[i])
            continue;
        r = st_gguf_writer_create(&writers[i], err);
        if (!r)
            r = family->plan(&jobs[i], i == 1, writers[i], err);
    }
    if (!r) {
        report->family = family->name;
        report->tensors = jobs[0].n_tensors;
        report->mtp_tensors = jobs[1].n_tensors;
        r = check_left_over(&jobs[0], family, report, err);
    }
    for (int i = 0; i < 2 && !r; i++)
        if (paths[i])
            r = write_file(&jobs[i], writers[i], paths[i], err);
    for (int i = 0; i < 2; i++) {
        st_gguf_writer_free(writers[i]);
        clear_plan(&jobs[i]);
        free(jobs[i].tensors);
    }
    free(used);
    st_hf_close(hf);
    return r;
}
