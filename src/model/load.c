/* Reading keys and tensors into a model family's structures, with the checks that every family needs. */
#include "model/load.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum strata_result st_key_u32(const struct st_gguf *g, const char *key, uint32_t lo, uint32_t hi, uint32_t *out,
                              struct strata_error *err)
{
    enum strata_result r = st_gguf_u32(g, key, out, err);
    if (!r && (*out < lo || *out > hi))
        r = st_fail(err, STRATA_E_MODEL, "%s: %s is %u, not in %u..%u", g->path, key, *out, lo, hi);
    return r;
}

/* A key that may be one number or one per layer; all non-zero entries must agree. */
enum strata_result st_key_per_layer(const struct st_gguf *g, const char *key, uint32_t hi, uint32_t *out,
                                    struct strata_error *err)
{
    int64_t *v;
    size_t n;
    enum strata_result r = st_gguf_ints(g, key, &v, &n, err);
    if (r)
        return r;
    int64_t value = 0;
    for (size_t i = 0; i < n && !r; i++) {
        if (v[i] < 0 || v[i] > hi || (value && v[i] && v[i] != value))
            r = st_fail(err, STRATA_E_MODEL, "%s: %s has entries that differ or are not in 0..%u", g->path, key, hi);
        value = v[i] ? v[i] : value;
    }
    if (!r && value == 0)
        r = st_fail(err, STRATA_E_MODEL, "%s: %s has no entry above 0", g->path, key);
    free(v);
    *out = (uint32_t)value;
    return r;
}

enum strata_result st_key_ints(const struct st_gguf *g, const char *key, size_t want, int64_t lo, int64_t hi,
                               int64_t **out, struct strata_error *err)
{
    size_t n;
    enum strata_result r = st_gguf_ints(g, key, out, &n, err);
    if (r)
        return r;
    if (n != want)
        r = st_fail(err, STRATA_E_MODEL, "%s: %s has %zu entries, not %zu", g->path, key, n, want);
    for (size_t i = 0; i < n && !r; i++)
        if ((*out)[i] < lo || (*out)[i] > hi)
            r = st_fail(err, STRATA_E_MODEL, "%s: %s: entry %zu is %lld, not in %lld..%lld", g->path, key, i,
                        (long long)(*out)[i], (long long)lo, (long long)hi);
    if (r)
        free(*out);
    return r;
}

enum strata_result st_key_u64s(const struct st_gguf *g, const char *key, size_t n, uint64_t *out,
                               struct strata_error *err)
{
    int64_t *v;
    enum strata_result r = st_key_ints(g, key, n, 0, INT64_MAX, &v, err);
    if (r)
        return r;
    for (size_t i = 0; i < n; i++)
        out[i] = (uint64_t)v[i];
    free(v);
    return STRATA_OK;
}

/* Finds a tensor and marks it used; NULL when there is none. */
static const struct st_gguf_tensor *take(struct st_loader *l, const char *name)
{
    const struct st_gguf_tensor *t = st_gguf_tensor(l->g, name);
    if (t)
        l->used[t - l->g->tensors] = true;
    return t;
}

enum strata_result st_missing_tensor(struct st_loader *l, const char *name)
{
    return st_fail(l->err, STRATA_E_MODEL, "%s: tensor %s is missing", l->g->path, name);
}

static enum strata_result wrong_shape(struct st_loader *l, const struct st_gguf_tensor *t, uint64_t a, uint64_t b,
                                      uint64_t c)
{
    return st_fail(l->err, STRATA_E_MODEL, "%s: tensor %s has shape {%llu, %llu, %llu, %llu}, not {%llu, %llu, %llu}",
                   l->g->path, t->name, (unsigned long long)t->ne[0], (unsigned long long)t->ne[1],
                   (unsigned long long)t->ne[2], (unsigned long long)t->ne[3], (unsigned long long)a,
                   (unsigned long long)b, (unsigned long long)c);
}

enum strata_result st_loader_put(struct st_loader *l, const char *name, const void *data, uint64_t bytes,
                                 const void **out)
{
    if (l->options->put)
        return l->options->put(l->options->put_user, name, data, bytes, out, l->err);
    *out = data;
    return STRATA_OK;
}

/* Replaces a vector of ours by its address on the device. */
static enum strata_result put_floats(struct st_loader *l, const char *name, uint64_t count, float **v)
{
    const void *at;
    enum strata_result r = st_loader_put(l, name, *v, count * sizeof **v, &at);
    if (!r)
        *v = (float *)(uintptr_t)at;
    return r;
}

/* A vector of count floats in memory of ours, whatever type the file has. */
enum strata_result st_load_host_floats(struct st_loader *l, const char *name, uint64_t count, float **out)
{
    const struct st_gguf_tensor *t = take(l, name);
    if (!t)
        return st_missing_tensor(l, name);
    if (st_gguf_elements(t) != count)
        return wrong_shape(l, t, count, 1, 1);
    struct st_owned *m = l->owned;
    if (m->n == m->capacity) {
        size_t more = m->capacity ? m->capacity * 2 : 256;
        float **p = realloc(m->v, more * sizeof *p);
        if (!p)
            return st_fail(l->err, STRATA_E_MEMORY, "%s: no memory for tensor %s", l->g->path, name);
        m->v = p;
        m->capacity = more;
    }
    float *v = aligned_alloc(64, (count * sizeof *v + 63) & ~(uint64_t)63);
    if (!v)
        return st_fail(l->err, STRATA_E_MEMORY, "%s: no memory for tensor %s", l->g->path, name);
    m->v[m->n++] = *out = v;
    st_type_info((int)t->type)->decode(t->data, v, count);
    for (uint64_t i = 0; i < count; i++)
        if (!isfinite(v[i]))
            return st_fail(l->err, STRATA_E_MODEL, "%s: tensor %s: element %llu is not a finite number", l->g->path,
                           name, (unsigned long long)i);
    return STRATA_OK;
}

enum strata_result st_load_floats(struct st_loader *l, const char *name, uint64_t count, float **out)
{
    enum strata_result r = st_load_host_floats(l, name, count, out);
    return r ? r : put_floats(l, name, count, out);
}

/* A convolution kernel {taps, channels}, turned into [taps][channels]. */
enum strata_result st_load_conv(struct st_loader *l, const char *name, uint32_t taps, uint64_t channels, float **out)
{
    const struct st_gguf_tensor *file = st_gguf_tensor(l->g, name);
    if (file && (file->ne[0] != taps || file->ne[1] != channels))
        return wrong_shape(l, file, taps, channels, 1);
    enum strata_result r = st_load_host_floats(l, name, taps * channels, out);
    float *turned = r ? NULL : malloc(taps * channels * sizeof *turned);
    if (r)
        return r;
    if (!turned)
        return st_fail(l->err, STRATA_E_MEMORY, "%s: no memory for tensor %s", l->g->path, name);
    for (uint64_t c = 0; c < channels; c++)
        for (uint32_t t = 0; t < taps; t++)
            turned[t * channels + c] = (*out)[c * taps + t];
    memcpy(*out, turned, taps * channels * sizeof *turned);
    free(turned);
    return put_floats(l, name, taps * channels, out);
}

/* Number of the pair, not rounded, that turns so many times in the context. */
static double pair_of_turns(double turns, double theta, uint32_t rot, uint32_t context)
{
    return rot * log(context / (turns * 2 * M_PI)) / (2 * log(theta));
}

void st_rope_set(struct st_rope *rope, double theta, uint32_t context, double factor)
{
    double fast = fmax(floor(pair_of_turns(32, theta, rope->rot, context)), 0);
    double slow = fmin(ceil(pair_of_turns(1, theta, rope->rot, context)), rope->rot - 1.0);
    slow = slow > fast ? slow : fast + 0.001; /* no range between the two: a step */
    for (uint32_t i = 0; i < rope->rot / 2; i++) {
        rope->freq[i] = 1.0f / powf((float)theta, (float)(2 * i) / (float)rope->rot);
        if (factor > 1) {
            double share = fmin(fmax((i - fast) / (slow - fast), 0), 1);
            rope->freq[i] = (float)((double)rope->freq[i] * (1 - share + share / factor));
        }
    }
    rope->gain = factor > 1 ? (float)(0.1 * log(factor)) : 0;
}

enum strata_result st_load_rope(struct st_loader *l, struct st_rope *rope)
{
    if (!l->options->put)
        return STRATA_OK;
    const void *freq, *axis = NULL;
    enum strata_result r = st_loader_put(l, "rotation frequencies", rope->freq, sizeof rope->freq, &freq);
    if (!r)
        r = st_loader_put(l, "rotation axes", rope->axis, sizeof rope->axis, &axis);
    if (!r) {
        rope->freq_at = freq;
        rope->axis_at = axis;
    }
    return r;
}

/* An optional tensor "<name without .weight>.scale" multiplies the product: one value, or one per expert. */
static enum strata_result scale_of(struct st_loader *l, const char *name, uint64_t experts, struct st_weight *w)
{
    char scale[96];
    size_t n = strlen(name);
    if (n < 7 || n >= sizeof scale || strcmp(name + n - 7, ".weight"))
        return STRATA_OK;
    snprintf(scale, sizeof scale, "%.*s.scale", (int)(n - 7), name);
    const struct st_gguf_tensor *t = st_gguf_tensor(l->g, scale);
    if (!t)
        return STRATA_OK;
    uint64_t count = st_gguf_elements(t);
    if (count != 1 && count != experts)
        return st_fail(l->err, STRATA_E_MODEL, "%s: tensor %s has %llu values, not 1 or %llu", l->g->path, scale,
                       (unsigned long long)count, (unsigned long long)experts);
    float *v = NULL;
    enum strata_result r = st_load_floats(l, scale, count, &v);
    w->scale = v;
    w->scale_count = (uint32_t)count;
    return r;
}

/* rows rows of a tensor whose data lies at base; skip_rows before them in each of its experts of expert_rows rows. */
static void fill(const struct st_loader *l, struct st_weight *w, const struct st_gguf_tensor *t, const uint8_t *base,
                 uint64_t rows, uint64_t skip_rows, uint64_t expert_rows)
{
    uint64_t row = st_gguf_row_bytes(t);
    *w = (struct st_weight){.data = base + skip_rows * row,
                            .type = (int)t->type,
                            .act = l->options->fp32 ? ST_ACT_F32 : st_type_info((int)t->type)->act,
                            .cols = (uint32_t)t->ne[0],
                            .rows = (uint32_t)rows,
                            .row_bytes = row,
                            .expert_bytes = expert_rows * row};
}

/* The bytes of a tensor where they are wanted; *places as in struct st_weight. experts 0: it has none. */
static enum strata_result put_tensor(struct st_loader *l, const struct st_gguf_tensor *t, uint64_t experts, const uint8_t **base,
                                     const void **places)
{
    const void *at;
    const struct st_model_options *o = l->options;
    enum strata_result r =
        experts && o->put_experts
            ? o->put_experts(o->put_user, l->g, t, (uint32_t)experts, &at, places, l->err)
            : st_loader_put(l, t->name, t->data, t->bytes, &at);
    *base = r ? NULL : at;
    return r;
}

/* Finds a matrix of the given shape. */
static enum strata_result find_matrix(struct st_loader *l, const char *name, uint64_t cols, uint64_t rows,
                                      uint64_t depth, const struct st_gguf_tensor **out)
{
    const struct st_gguf_tensor *t = take(l, name);
    if (!t)
        return st_missing_tensor(l, name);
    bool vector = rows == 1 && depth == 1 && st_gguf_elements(t) == cols && t->ne[0] == cols;
    if (!vector && (t->ne[0] != cols || t->ne[1] != rows || t->ne[2] != depth || t->ne[3] != 1))
        return wrong_shape(l, t, cols, rows, depth);
    if (rows > UINT32_MAX || cols > UINT32_MAX)
        return st_fail(l->err, STRATA_E_UNSUPPORTED, "%s: tensor %s has more than 2^32-1 rows", l->g->path, name);
    *out = t;
    return STRATA_OK;
}

enum strata_result st_load_matrix(struct st_loader *l, const char *name, uint64_t cols, uint64_t rows, uint64_t experts,
                                  struct st_weight *w)
{
    const struct st_gguf_tensor *t = NULL;
    const uint8_t *base = NULL;
    const void *places = NULL;
    uint64_t depth = experts ? experts : 1;
    enum strata_result r = find_matrix(l, name, cols, rows, depth, &t);
    if (!r)
        r = put_tensor(l, t, experts, &base, &places);
    if (r)
        return r;
    fill(l, w, t, base, rows, 0, rows);
    w->places = places;
    return scale_of(l, name, depth, w);
}

enum strata_result st_load_host_matrix(struct st_loader *l, const char *name, uint64_t cols, uint64_t rows,
                                       struct st_weight *w)
{
    const struct st_gguf_tensor *t = NULL;
    enum strata_result r = find_matrix(l, name, cols, rows, 1, &t);
    if (!r)
        fill(l, w, t, t->data, rows, 0, rows);
    return r;
}

/* Two matrices that a file may hold one above the other in a single tensor. */
enum strata_result st_load_pair(struct st_loader *l, const char *fused, const char *a_name, const char *b_name,
                                uint64_t cols, uint64_t a_rows, uint64_t b_rows, uint64_t experts, struct st_weight *a,
                                struct st_weight *b)
{
    const struct st_gguf_tensor *t = take(l, fused);
    if (!t) {
        enum strata_result r = st_load_matrix(l, a_name, cols, a_rows, experts, a);
        return r ? r : st_load_matrix(l, b_name, cols, b_rows, experts, b);
    }
    uint64_t depth = experts ? experts : 1;
    const uint8_t *base = NULL;
    if (t->ne[0] != cols || t->ne[1] != a_rows + b_rows || t->ne[2] != depth || t->ne[3] != 1)
        return wrong_shape(l, t, cols, a_rows + b_rows, depth);
    const void *places = NULL;
    enum strata_result r = put_tensor(l, t, experts, &base, &places);
    if (r)
        return r;
    fill(l, a, t, base, a_rows, 0, a_rows + b_rows);
    fill(l, b, t, base, b_rows, a_rows, a_rows + b_rows);
    a->places = b->places = places;
    r = scale_of(l, fused, depth, a);
    b->scale = a->scale;
    b->scale_count = a->scale_count;
    return r;
}

/* "blk.<block>.<tail>" */
const char *st_block_name(char buffer[96], uint32_t block, const char *tail)
{
    snprintf(buffer, 96, "blk.%u.%s", block, tail);
    return buffer;
}

enum strata_result st_load_block_floats(struct st_loader *l, uint32_t block, const char *tail, uint64_t count,
                                        float **out)
{
    char name[96];
    return st_load_floats(l, st_block_name(name, block, tail), count, out);
}

enum strata_result st_load_block_matrix(struct st_loader *l, uint32_t block, const char *tail, uint64_t cols,
                                        uint64_t rows, uint64_t experts, struct st_weight *w)
{
    char name[96];
    return st_load_matrix(l, st_block_name(name, block, tail), cols, rows, experts, w);
}

/* A tensor that nothing here computes with means a model that this program does not know. */
enum strata_result st_loader_end(struct st_loader *l)
{
    for (size_t i = 0; i < l->g->n_tensors && l->options->end == 0; i++) {
        const char *name = l->g->tensors[i].name;
        size_t n = strlen(name);
        if (!l->used[i] && !(n > 12 && !strcmp(name + n - 12, ".input_scale")))
            return st_fail(l->err, STRATA_E_UNSUPPORTED, "%s: tensor %s is not part of this architecture", l->g->path,
                           name);
    }
    return STRATA_OK;
}

enum strata_result st_loader_begin(struct st_loader *l, const struct st_gguf *g)
{
    l->g = g;
    l->used = calloc(g->n_tensors + 1, sizeof *l->used);
    return l->used ? STRATA_OK : st_fail(l->err, STRATA_E_MEMORY, "%s: no memory to load tensors", g->path);
}

void st_owned_free(struct st_owned *o)
{
    for (size_t i = 0; i < o->n; i++)
        free(o->v[i]);
    free(o->v);
    *o = (struct st_owned){0};
}
