/* See fp64_model.h. One layer at a time over all tokens, so that each weight row is decoded once; within a layer tokens
 * come one after the other, as when decoding. */
#include "test.h"

#include "fp64_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/quant.h"

enum { LONGEST_ROW = 1 << 16 };

struct run {
    const struct st_gguf *g;
    const struct fp64_positions *positions;
    const int32_t *ids;
    size_t n;
    int layer;
    size_t hidden, streams, wide, rank;
    double eps;
    double *R;     /* [n][wide] */
    double *x, *m; /* [n][wide] normalised streams, [n][hidden] a block's input */
    double *inj;   /* [n][streams] */
    double *o;     /* [n][hidden] a block's output */
};

static double sigma(double x)
{
    return 1 / (1 + exp(-x));
}

static double silu(double x)
{
    return x * sigma(x);
}

static double *zeros(size_t n)
{
    double *p = calloc(n + 1, sizeof *p);
    assert_non_null(p);
    return p;
}

/* ---- the file ---- */

static size_t size_key(const struct st_gguf *g, const char *name)
{
    char key[96];
    uint64_t v;
    struct strata_error err;
    snprintf(key, sizeof key, "qwen4exp.%s", name);
    assert_ok(st_gguf_u64(g, key, &v, &err), &err);
    return (size_t)v;
}

/* Entry i of an array key. */
static int64_t array_key(const struct st_gguf *g, const char *name, size_t i)
{
    char key[96];
    int64_t *v, value;
    size_t n;
    struct strata_error err;
    snprintf(key, sizeof key, "qwen4exp.%s", name);
    assert_ok(st_gguf_ints(g, key, &v, &n, &err), &err);
    assert_true(i < n);
    value = v[i];
    free(v);
    return value;
}

static const struct st_gguf_tensor *tensor(const struct run *r, const char *tail)
{
    char name[128];
    const struct st_gguf_tensor *t = NULL;
    if (r->layer >= 0) {
        snprintf(name, sizeof name, "blk.%d.%s", r->layer, tail);
        t = st_gguf_tensor(r->g, name);
    }
    if (!t)
        t = st_gguf_tensor(r->g, tail);
    if (!t)
        fail_msg("no tensor %s in layer %d", tail, r->layer);
    return t;
}

static bool has_tensor(const struct run *r, const char *tail)
{
    char name[128];
    snprintf(name, sizeof name, "blk.%d.%s", r->layer, tail);
    return st_gguf_tensor(r->g, name) || st_gguf_tensor(r->g, tail);
}

static void decode_row(const struct st_gguf_tensor *t, uint64_t row, double *out)
{
    static float v[LONGEST_ROW];
    assert_true(t->ne[0] <= LONGEST_ROW);
    st_type_info((int)t->type)->decode(t->data + row * st_gguf_row_bytes(t), v, t->ne[0]);
    for (size_t i = 0; i < t->ne[0]; i++)
        out[i] = (double)v[i];
}

/* A small tensor as a whole, freed by the caller. */
static double *vector(const struct run *r, const char *tail)
{
    const struct st_gguf_tensor *t = tensor(r, tail);
    double *v = zeros((size_t)st_gguf_elements(t));
    for (uint64_t row = 0; row < st_gguf_elements(t) / t->ne[0]; row++)
        decode_row(t, row, v + row * t->ne[0]);
    return v;
}

static double dot(const double *a, const double *b, size_t n)
{
    double s[8] = {0}, sum = 0;
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (size_t k = 0; k < 8; k++)
            s[k] += a[i + k] * b[i + k];
    for (; i < n; i++)
        sum += a[i] * b[i];
    for (size_t k = 0; k < 8; k++)
        sum += s[k];
    return sum;
}

/* y[t] = W x[t] for count rows of one expert's matrix (expert 0 for others), times the factor of a ".scale" tensor. */
static void multiply(const struct run *r, const char *tail, size_t expert, const double *x, size_t count, double *y)
{
    static double w[LONGEST_ROW];
    const struct st_gguf_tensor *t = tensor(r, tail);
    size_t in = t->ne[0], rows = t->ne[1];
    double factor = 1;
    char scale[96];
    snprintf(scale, sizeof scale, "%.*s.scale", (int)(strlen(tail) - 7), tail);
    if (has_tensor(r, scale)) {
        double *v = vector(r, scale);
        factor = v[st_gguf_elements(tensor(r, scale)) > 1 ? expert : 0];
        free(v);
    }
    for (size_t o = 0; o < rows; o++) {
        decode_row(t, expert * rows + o, w);
        for (size_t i = 0; i < count; i++)
            y[i * rows + o] = factor * dot(w, x + i * in, in);
    }
}

/* ---- parts ---- */

static void rms_norm(double *y, const double *x, const double *gamma, size_t n, double eps)
{
    double inverse = 1 / sqrt(dot(x, x, n) / (double)n + eps);
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * inverse * gamma[i];
}

static const char *joined(char out[96], const char *stem, const char *tail)
{
    snprintf(out, 96, "%s_%s", stem, tail);
    return out;
}

/* m = mean of sigma(U silu(D x / C)) x over the streams; inj = 2 sigma(I x / C). */
static void gated_read(struct run *r, const char *stem, bool inject)
{
    char name[96];
    size_t n = r->n, C = r->streams, N = r->hidden;
    double *gamma = vector(r, joined(name, stem, "norm.weight")), *lo = zeros(n * r->rank), *gate = zeros(n * r->wide);
    for (size_t t = 0; t < n; t++)
        for (size_t c = 0; c < C; c++)
            rms_norm(r->x + (t * C + c) * N, r->R + (t * C + c) * N, gamma + c * N, N, r->eps);
    multiply(r, joined(name, stem, "down.weight"), 0, r->x, n, lo);
    for (size_t i = 0; i < n * r->rank; i++)
        lo[i] = silu(lo[i] / (double)C);
    multiply(r, joined(name, stem, "up.weight"), 0, lo, n, gate);
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < N; i++) {
            double sum = 0;
            for (size_t c = 0; c < C; c++)
                sum += sigma(gate[(t * C + c) * N + i]) * r->x[(t * C + c) * N + i];
            r->m[t * N + i] = sum / (double)C;
        }
    if (inject) {
        multiply(r, joined(name, stem, "inject.weight"), 0, r->x, n, r->inj);
        for (size_t i = 0; i < n * C; i++)
            r->inj[i] = 2 * sigma(r->inj[i] / (double)C);
    }
    free(gamma);
    free(lo);
    free(gate);
}

static void write_back(struct run *r)
{
    for (size_t t = 0; t < r->n; t++)
        for (size_t c = 0; c < r->streams; c++)
            for (size_t i = 0; i < r->hidden; i++)
                r->R[(t * r->streams + c) * r->hidden + i] += r->inj[t * r->streams + c] * r->o[t * r->hidden + i];
}

/* Causal depthwise convolution and silu: y[t][c] = silu(sum over taps of w[c][k] x[t - distance (taps - 1 - k)][c]). */
static void convolve(const struct run *r, const char *tail, size_t distance, const double *x, size_t channels,
                     double *y)
{
    size_t taps = tensor(r, tail)->ne[0];
    double *w = vector(r, tail);
    for (size_t t = 0; t < r->n; t++)
        for (size_t c = 0; c < channels; c++) {
            double sum = 0;
            for (size_t k = 0; k < taps; k++) {
                size_t back = distance * (taps - 1 - k);
                sum += back <= t ? w[c * taps + k] * x[(t - back) * channels + c] : 0;
            }
            y[t * channels + c] = silu(sum);
        }
    free(w);
}

/* ---- n-gram memory ---- */

static void ngram_embedding(const struct run *r, double *E)
{
    const struct st_gguf *g = r->g;
    size_t order = size_key(g, "ple.ngram_size"), per = size_key(g, "ple.heads_per_ngram");
    int64_t reset = (int64_t)size_key(g, "ple.eos_token_id");
    const struct st_gguf_tensor *table = tensor(r, "per_layer_token_embd.weight");
    for (size_t t = 0; t < r->n; t++) {
        bool cut = false;
        uint64_t mix = (uint64_t)r->ids[t] * (uint64_t)array_key(g, "ple.layer_multipliers", 0);
        for (size_t s = 1; s < order; s++) {
            cut = cut || t < s || r->ids[t - s] == reset;
            mix ^= (uint64_t)(cut ? reset : r->ids[t - s]) * (uint64_t)array_key(g, "ple.layer_multipliers", s);
            for (size_t k = 0; k < per; k++) {
                size_t head = (s - 1) * per + k;
                uint64_t row = mix % (uint64_t)array_key(g, "ple.head_vocab_sizes", head) +
                               (uint64_t)array_key(g, "ple.head_offsets", head);
                decode_row(table, row, E + (t * per * (order - 1) + head) * table->ne[0]);
            }
        }
    }
}

static void ngram_memory(struct run *r)
{
    size_t n = r->n, N = r->hidden, C = r->streams, order = size_key(r->g, "ple.ngram_size");
    size_t in =
        size_key(r->g, "ple.heads_per_ngram") * (order - 1) * size_key(r->g, "embedding_length_per_layer_input");
    double *E = zeros(n * in), *key = zeros(n * r->wide), *value = zeros(n * N), *query = zeros(N),
           *gv = zeros(n * r->wide), *z = zeros(n * r->wide), *y = zeros(n * r->wide);
    double *norm_key = vector(r, "ple_norm_key.weight"), *norm_query = vector(r, "ple_norm_query.weight"),
           *norm_conv = vector(r, "ple_norm_conv.weight");
    ngram_embedding(r, E);
    multiply(r, "ple_key.weight", 0, E, n, key);
    multiply(r, "ple_value.weight", 0, E, n, value);
    for (size_t t = 0; t < n; t++)
        for (size_t c = 0; c < C; c++) {
            size_t at = (t * C + c) * N;
            rms_norm(key + at, key + at, norm_key + c * N, N, r->eps);
            rms_norm(query, r->R + at, norm_query + c * N, N, r->eps);
            double s = dot(key + at, query, N) / sqrt((double)N), strength = sqrt(fmax(fabs(s), 1e-6));
            double gate = sigma(s > 0 ? strength : s < 0 ? -strength : 0);
            for (size_t i = 0; i < N; i++)
                gv[at + i] = gate * value[t * N + i];
            rms_norm(z + at, gv + at, norm_conv + c * N, N, r->eps);
        }
    convolve(r, "ple_conv1d.weight", order, z, r->wide, y);
    for (size_t i = 0; i < n * r->wide; i++)
        r->R[i] += gv[i] + y[i];
    double *all[] = {E, key, value, query, gv, z, y, norm_key, norm_query, norm_conv};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* ---- recurrent layer ---- */

static void delta_head(const struct run *r, size_t j, const double *c, const double *a, const double *b, double *o)
{
    size_t Hk = size_key(r->g, "ssm.group_count"), Hv = size_key(r->g, "ssm.time_step_rank");
    size_t dk = size_key(r->g, "ssm.state_size"), dv = size_key(r->g, "ssm.inner_size") / Hv;
    size_t channels = 2 * Hk * dk + Hv * dv;
    double *A = vector(r, "ssm_a"), *bias = vector(r, "ssm_dt.bias"), *S = zeros(dk * dv), *q = zeros(dk),
           *k = zeros(dk), *d = zeros(dv);
    for (size_t t = 0; t < r->n; t++) {
        const double *cq = c + t * channels + j % Hk * dk, *ck = cq + Hk * dk;
        const double *v = c + t * channels + 2 * Hk * dk + j * dv;
        double iq = 1 / sqrt(dot(cq, cq, dk) + r->eps) / sqrt((double)dk), ik = 1 / sqrt(dot(ck, ck, dk) + r->eps);
        double x = a[t * Hv + j] + bias[j], beta = sigma(b[t * Hv + j]);
        double decay = exp(A[j] * (x > 30 ? x : log1p(exp(x))));
        for (size_t i = 0; i < dk; i++) {
            q[i] = cq[i] * iq;
            k[i] = ck[i] * ik;
        }
        memset(d, 0, dv * sizeof *d);
        for (size_t i = 0; i < dk; i++)
            for (size_t e = 0; e < dv; e++) {
                S[i * dv + e] *= decay;
                d[e] += S[i * dv + e] * k[i];
            }
        double *out = o + (t * Hv + j) * dv;
        for (size_t e = 0; e < dv; e++)
            d[e] = beta * (v[e] - d[e]);
        memset(out, 0, dv * sizeof *out);
        for (size_t i = 0; i < dk; i++)
            for (size_t e = 0; e < dv; e++) {
                S[i * dv + e] += k[i] * d[e];
                out[e] += S[i * dv + e] * q[i];
            }
    }
    double *all[] = {A, bias, S, q, k, d};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static void recurrent(struct run *r)
{
    size_t n = r->n, Hv = size_key(r->g, "ssm.time_step_rank"), inner = size_key(r->g, "ssm.inner_size"),
           dv = inner / Hv;
    size_t channels = tensor(r, "attn_qkv.weight")->ne[1];
    double *u = zeros(n * channels), *c = zeros(n * channels), *z = zeros(n * inner), *o = zeros(n * inner),
           *a = zeros(n * Hv), *b = zeros(n * Hv), *gamma = vector(r, "ssm_norm.weight");
    multiply(r, "attn_qkv.weight", 0, r->m, n, u);
    multiply(r, "attn_gate.weight", 0, r->m, n, z);
    multiply(r, "ssm_beta.weight", 0, r->m, n, b);
    multiply(r, "ssm_alpha.weight", 0, r->m, n, a);
    convolve(r, "ssm_conv1d.weight", 1, u, channels, c);
    for (size_t j = 0; j < Hv; j++)
        delta_head(r, j, c, a, b, o);
    for (size_t t = 0; t < n; t++)
        for (size_t j = 0; j < Hv; j++)
            rms_norm(o + (t * Hv + j) * dv, o + (t * Hv + j) * dv, gamma, dv, r->eps);
    for (size_t i = 0; i < n * inner; i++)
        o[i] *= sigma(z[i]);
    multiply(r, "ssm_out.weight", 0, o, n, r->o);
    double *all[] = {u, c, z, o, a, b, gamma};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* ---- attention layer ---- */

/* Number of the pair, not rounded, that turns so many times in the trained context. */
static double pair_with(double turns, double rot, double base, double context)
{
    return rot * log(context / (2 * acos(-1) * turns)) / (2 * log(base));
}

/* How far YaRN takes pair i towards positions divided by the factor: not below the pair with 32 turns, wholly from the one
 * with 1 turn, both rounded away from each other, and linearly between. */
static double interpolated(double i, double rot, double base, double context)
{
    double none = floor(pair_with(32, rot, base, context)), all = ceil(pair_with(1, rot, base, context));
    none = none < 0 ? 0 : none;
    all = all > rot - 1 ? rot - 1 : all;
    if (i <= none)
        return 0;
    return i >= all ? 1 : (i - none) / (all - none);
}

/* The axis that pair i turns by: time, height and width take turns, as long as the sections of the last two last. */
static size_t axis_of(const struct run *r, size_t i)
{
    size_t axis = i % 3;
    return axis && i / 3 < (size_t)array_key(r->g, "rope.dimension_sections", axis) ? axis : 0;
}

/* Turns pairs (i, i + rot / 2) by the token's position times base^(-2i / rot), which YaRN makes slower for some. */
static void rotate(const struct run *r, double *x, size_t token)
{
    size_t rot = size_key(r->g, "rope.dimension_count");
    const struct fp64_positions *at = r->positions;
    double base, context = (double)size_key(r->g, "context_length"), grown = at->yarn > 1 ? 1 + 0.1 * log(at->yarn) : 1;
    struct strata_error err;
    assert_ok(st_gguf_f64(r->g, "qwen4exp.rope.freq_base", &base, &err), &err);
    for (size_t i = 0; i < rot / 2; i++) {
        double position = at->axis ? at->axis[token][axis_of(r, i)] : (double)token;
        double angle = position * pow(base, -2.0 * (double)i / (double)rot);
        if (at->yarn > 1) {
            double share = interpolated((double)i, (double)rot, base, context);
            angle = share * angle / at->yarn + (1 - share) * angle;
        }
        double a = x[i], b = x[i + rot / 2];
        x[i] = grown * (a * cos(angle) - b * sin(angle));
        x[i + rot / 2] = grown * (b * cos(angle) + a * sin(angle));
    }
}

/* allowed[p] for the tokens that token t attends to: the best blocks by the index, and the open one. */
static void allow(const struct run *r, size_t t, const double *iq, const double *pooled, size_t ratio, bool *allowed)
{
    size_t heads = size_key(r->g, "attention.indexer.head_count"), dim = size_key(r->g, "attention.indexer.key_length");
    size_t keep = size_key(r->g, "attention.indexer.top_k") / ratio, blocks = (t + 1) / ratio;
    for (size_t p = 0; p <= t; p++)
        allowed[p] = blocks <= keep || p >= blocks * ratio;
    if (blocks <= keep)
        return;
    double *score = zeros(blocks);
    for (size_t b = 0; b < blocks; b++)
        for (size_t h = 0; h < heads; h++)
            score[b] += fmax(0, dot(iq + (t * heads + h) * dim, pooled + b * dim, dim));
    for (size_t b = 0; b < blocks; b++) {
        size_t better = 0;
        for (size_t other = 0; other < blocks; other++)
            better += score[other] > score[b] || (score[other] == score[b] && other < b);
        for (size_t i = 0; i < ratio && better < keep; i++)
            allowed[b * ratio + i] = true;
    }
    free(score);
}

static void attend(const struct run *r, size_t t, const double *q, const double *k, const double *v,
                   const bool *allowed, double *out)
{
    size_t heads = size_key(r->g, "attention.head_count"), kv = size_key(r->g, "attention.head_count_kv");
    size_t dim = size_key(r->g, "attention.key_length");
    double *score = zeros(t + 1);
    for (size_t h = 0; h < heads; h++) {
        size_t g = h / (heads / kv);
        const double *query = q + (t * heads + h) * 2 * dim, *gate = query + dim;
        double top = -INFINITY, sum = 0, *y = out + (t * heads + h) * dim;
        for (size_t p = 0; p <= t; p++) {
            score[p] = allowed[p] ? dot(query, k + (p * kv + g) * dim, dim) / sqrt((double)dim) : -INFINITY;
            top = fmax(top, score[p]);
        }
        for (size_t p = 0; p <= t; p++)
            sum += exp(score[p] - top);
        for (size_t p = 0; p <= t; p++)
            for (size_t i = 0; i < dim && allowed[p]; i++)
                y[i] += exp(score[p] - top) / sum * v[(p * kv + g) * dim + i];
        for (size_t i = 0; i < dim; i++)
            y[i] *= sigma(gate[i]);
    }
    free(score);
}

static void attention(struct run *r)
{
    size_t n = r->n, heads = size_key(r->g, "attention.head_count"), kv = size_key(r->g, "attention.head_count_kv");
    size_t dim = size_key(r->g, "attention.key_length"), index_heads = size_key(r->g, "attention.indexer.head_count");
    size_t index = size_key(r->g, "attention.indexer.key_length");
    size_t ratio = (size_t)array_key(r->g, "attention.compress_ratios", (size_t)r->layer), blocks = n / ratio;
    double *q = zeros(n * heads * 2 * dim), *k = zeros(n * kv * dim), *v = zeros(n * kv * dim),
           *iq = zeros(n * index_heads * index), *ik = zeros(n * index), *pooled = zeros(blocks * index),
           *out = zeros(n * heads * dim);
    double *q_norm = vector(r, "attn_q_norm.weight"), *k_norm = vector(r, "attn_k_norm.weight"),
           *iq_norm = vector(r, "indexer.q_norm.weight"), *ik_norm = vector(r, "indexer.k_norm.weight");
    bool *allowed = calloc(n, sizeof *allowed);
    multiply(r, "attn_q.weight", 0, r->m, n, q);
    multiply(r, "attn_k.weight", 0, r->m, n, k);
    multiply(r, "attn_v.weight", 0, r->m, n, v);
    multiply(r, "indexer.q_proj.weight", 0, r->m, n, iq);
    multiply(r, "indexer.k_proj.weight", 0, r->m, n, ik);
    for (size_t t = 0; t < n; t++) {
        for (size_t h = 0; h < heads; h++) {
            rms_norm(q + (t * heads + h) * 2 * dim, q + (t * heads + h) * 2 * dim, q_norm, dim, r->eps);
            rotate(r, q + (t * heads + h) * 2 * dim, t);
        }
        for (size_t h = 0; h < kv; h++) {
            rms_norm(k + (t * kv + h) * dim, k + (t * kv + h) * dim, k_norm, dim, r->eps);
            rotate(r, k + (t * kv + h) * dim, t);
        }
        for (size_t h = 0; h < index_heads; h++) {
            rms_norm(iq + (t * index_heads + h) * index, iq + (t * index_heads + h) * index, iq_norm, index, r->eps);
            rotate(r, iq + (t * index_heads + h) * index, t);
        }
    }
    for (size_t b = 0; b < blocks; b++) {
        for (size_t i = 0; i < index; i++)
            for (size_t p = 0; p < ratio; p++)
                pooled[b * index + i] += ik[(b * ratio + p) * index + i] / (double)ratio;
        rms_norm(pooled + b * index, pooled + b * index, ik_norm, index, r->eps);
        rotate(r, pooled + b * index, b * ratio);
    }
    for (size_t t = 0; t < n; t++) {
        allow(r, t, iq, pooled, ratio, allowed);
        attend(r, t, q, k, v, allowed, out);
    }
    multiply(r, "attn_output.weight", 0, out, n, r->o);
    double *all[] = {q, k, v, iq, ik, pooled, out, q_norm, k_norm, iq_norm, ik_norm};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    free(allowed);
}

/* ---- experts ---- */

/* y[i] += weight[i] * down(silu(gate x) * (up x)) for count rows of x. */
static void expert(const struct run *r, const char *gate, const char *up, const char *down, size_t e, const double *x,
                   size_t count, double *y)
{
    size_t width = tensor(r, gate)->ne[1];
    double *g = zeros(count * width), *u = zeros(count * width);
    multiply(r, gate, e, x, count, g);
    multiply(r, up, e, x, count, u);
    for (size_t i = 0; i < count * width; i++)
        g[i] = silu(g[i]) * u[i];
    multiply(r, down, e, g, count, y);
    free(g);
    free(u);
}

static void experts(struct run *r)
{
    size_t n = r->n, N = r->hidden, count = size_key(r->g, "expert_count"), used = size_key(r->g, "expert_used_count");
    double *logit = zeros(n * count), *weight = zeros(n * count), *shared = zeros(n), *x = zeros(n * N),
           *y = zeros(n * N), *w = vector(r, "ffn_gate_inp_shexp.weight");
    multiply(r, "ffn_gate_inp.weight", 0, r->m, n, logit);
    for (size_t t = 0; t < n; t++) {
        double top = -INFINITY, sum = 0, kept = 0;
        for (size_t e = 0; e < count; e++)
            top = fmax(top, logit[t * count + e]);
        for (size_t e = 0; e < count; e++)
            sum += exp(logit[t * count + e] - top);
        for (size_t e = 0; e < count; e++) {
            size_t better = 0;
            for (size_t other = 0; other < count; other++)
                better += logit[t * count + other] > logit[t * count + e] ||
                          (logit[t * count + other] == logit[t * count + e] && other < e);
            weight[t * count + e] = better < used ? exp(logit[t * count + e] - top) / sum : 0;
            kept += weight[t * count + e];
        }
        for (size_t e = 0; e < count; e++)
            weight[t * count + e] /= kept;
        shared[t] = sigma(dot(w, r->m + t * N, N));
    }
    memset(r->o, 0, n * N * sizeof *r->o);
    for (size_t e = 0; e < count; e++) {
        size_t rows = 0;
        for (size_t t = 0; t < n; t++)
            if (weight[t * count + e] > 0)
                memcpy(x + rows++ * N, r->m + t * N, N * sizeof *x);
        expert(r, "ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight", e, x, rows, y);
        rows = 0;
        for (size_t t = 0; t < n; t++) {
            if (weight[t * count + e] <= 0)
                continue;
            for (size_t i = 0; i < N; i++)
                r->o[t * N + i] += weight[t * count + e] * y[rows * N + i];
            rows++;
        }
    }
    expert(r, "ffn_gate_shexp.weight", "ffn_up_shexp.weight", "ffn_down_shexp.weight", 0, r->m, n, y);
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < N; i++)
            r->o[t * N + i] += shared[t] * y[t * N + i];
    double *all[] = {logit, weight, shared, x, y, w};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

void fp64_evaluate(const struct st_gguf *g, const int32_t *ids, size_t n, double *residual, double *logits)
{
    fp64_evaluate_at(g, &(struct fp64_positions){.axis = NULL}, ids, n, residual, logits);
}

void fp64_evaluate_at(const struct st_gguf *g, const struct fp64_positions *positions, const int32_t *ids, size_t n,
                      double *residual, double *logits)
{
    struct strata_error err;
    struct run r = {.g = g,
                    .positions = positions,
                    .ids = ids,
                    .n = n,
                    .layer = -1,
                    .hidden = size_key(g, "embedding_length"),
                    .streams = size_key(g, "hyper_connection.count"),
                    .rank = size_key(g, "hyper_connection.low_rank")};
    size_t layers = size_key(g, "block_count");
    r.wide = r.streams * r.hidden;
    assert_ok(st_gguf_f64(g, "qwen4exp.attention.layer_norm_rms_epsilon", &r.eps, &err), &err);
    r.R = zeros(n * r.wide);
    r.x = zeros(n * r.wide);
    r.m = zeros(n * r.hidden);
    r.inj = zeros(n * r.streams);
    r.o = zeros(n * r.hidden);
    for (size_t t = 0; t < n; t++)
        for (size_t c = 0; c < r.streams; c++)
            decode_row(tensor(&r, "token_embd.weight"), (uint64_t)ids[t], r.R + (t * r.streams + c) * r.hidden);
    for (size_t i = 0; i < layers; i++) {
        r.layer = (int)i;
        if ((size_t)array_key(g, "ple.layers", 0) == i)
            ngram_memory(&r);
        gated_read(&r, "hc_attn", true);
        if (has_tensor(&r, "attn_qkv.weight"))
            recurrent(&r);
        else
            attention(&r);
        write_back(&r);
        gated_read(&r, "hc_ffn", true);
        experts(&r);
        write_back(&r);
        if (residual)
            memcpy(residual + i * n * r.wide, r.R, n * r.wide * sizeof *r.R);
    }
    r.layer = -1;
    if (logits) {
        gated_read(&r, "output_hc", false);
        multiply(&r, "output.weight", 0, r.m, n, logits);
    }
    double *all[] = {r.R, r.x, r.m, r.inj, r.o};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}
