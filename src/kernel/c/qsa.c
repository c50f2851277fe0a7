/* Attention with a block index. Limits: bytes of keys and values of the allowed positions; for long contexts the pooled
 * index keys, one per block of ratio tokens. */
#include "kernel/c/level.h"
#include "kernel/exact_math.h"
#include "kernel/kv.h"
#include "kernel/qsa_scratch.h"
#include "kernel/table.h"
#include "kernel/vec.h"

/* cos and sin of a row's pairs: cs[2 * i], cs[2 * i + 1]. The angle is one FP32 product, as in the reference model. */
static void rotation(const struct st_rope *rope, const int32_t axis[3], float *cs)
{
    for (uint32_t i = 0; i < rope->rot / 2; i++) {
        float angle = (float)axis[rope->axis[i]] * rope->freq[i];
        cs[2 * i] = cosf(angle) * (1.0f + rope->gain);
        cs[2 * i + 1] = sinf(angle) * (1.0f + rope->gain);
    }
}

static void rotate(const struct st_rope *rope, const float *cs, float *x)
{
    uint32_t half = rope->rot / 2, step = rope->neighbours ? 2 : 1, apart = rope->neighbours ? 1 : half;
    for (uint32_t i = 0; i < half; i++) {
        float *p = x + step * i, a = p[0], b = p[apart], c = cs[2 * i], s = cs[2 * i + 1];
        p[0] = a * c - b * s;
        p[apart] = b * c + a * s;
    }
}

/* One head's query, followed by its gate if there is one. */
static float *query(const struct st_qsa *a, size_t r, size_t h)
{
    return a->q + (r * a->heads + h) * (a->gated ? 2 : 1) * a->head_dim;
}

/* Where the stored rows of (slot, key head) begin, in rows. */
static size_t cache_row(const struct st_qsa *a, size_t r, size_t g)
{
    return ((size_t)a->rows->slot[r] * a->kv_heads + g) * a->context;
}

static void store_key_value(const struct st_qsa *a, size_t r, size_t g, const float *cs)
{
    size_t dim = a->head_dim, in = (r * a->kv_heads + g) * dim;
    size_t at = (cache_row(a, r, g) + (size_t)a->rows->pos[r]) * a->kv_bytes;
    float key[ST_QSA_DIM_MAX];
    if (a->k_norm)
        st_vec_rms_norm(key, a->k + in, a->k_norm, dim, a->eps);
    else
        memcpy(key, a->k + in, dim * sizeof *key);
    rotate(a->rope, cs, key);
    st_kv_store(a->kv, a->k_cache + at, key, dim);
    st_kv_store(a->kv, a->v_cache + at, a->v + in, dim);
}

/* Key of the block that row r completes: mean of its raw keys, norm, rotation at the position of its first token. Earlier
 * tokens of the block are rows of this pass or lie in the ring. */
static void pool_block(const struct st_qsa *a, size_t span_first, size_t r)
{
    size_t dim = a->index_dim, slot = (size_t)a->rows->slot[r], pos = (size_t)a->rows->pos[r];
    float *out = a->pooled + (slot * (a->context / a->ratio) + pos / a->ratio) * dim, cs[ST_ROT_MAX];
    memset(out, 0, dim * sizeof *out);
    for (size_t back = a->ratio; back-- > 0;) {
        const float *raw = back <= r - span_first
                               ? a->ik + (r - back) * dim
                               : a->raw_ring + (slot * ST_QSA_RING + (pos - back) % ST_QSA_RING) * dim;
        for (size_t i = 0; i < dim; i++)
            out[i] += raw[i];
    }
    for (size_t i = 0; i < dim; i++)
        out[i] /= (float)a->ratio;
    size_t back = a->ratio - 1;
    rotation(a->rope,
             back <= r - span_first ? a->rows->axis + 3 * (r - back)
                                    : a->axis_ring + (slot * ST_QSA_RING + (pos - back) % ST_QSA_RING) * 3,
             cs);
    st_vec_rms_norm(out, out, a->ik_norm, dim, a->eps);
    rotate(a->rope, cs, out);
}

/* Keeps the last raw keys of a span for blocks that later passes complete. */
static void store_raw(const struct st_qsa *a, size_t first, size_t end)
{
    for (size_t r = end - first > ST_QSA_RING ? end - ST_QSA_RING : first; r < end; r++) {
        size_t at = (size_t)a->rows->slot[r] * ST_QSA_RING + (size_t)a->rows->pos[r] % ST_QSA_RING;
        memcpy(a->raw_ring + at * a->index_dim, a->ik + r * a->index_dim, a->index_dim * sizeof(float));
        memcpy(a->axis_ring + at * 3, a->rows->axis + r * 3, 3 * sizeof(int32_t));
    }
}

/* Norms, rotations and cache writes of all rows; units are (row, head) with the heads of all kinds in a line. */
static void prepare(const struct st_qsa *a, const struct st_worker *w)
{
    size_t heads = a->heads, index = a->ratio ? a->index_heads : 0, per_row = heads + a->kv_heads + index, from, to;
    float cs[ST_ROT_MAX];
    size_t cs_row = SIZE_MAX;
    st_share(w, (size_t)a->rows->n * per_row, 1, &from, &to);
    for (size_t u = from; u < to; u++) {
        size_t r = u / per_row, h = u % per_row;
        if (r != cs_row)
            rotation(a->rope, a->rows->axis + 3 * r, cs);
        cs_row = r;
        if (h < heads) {
            float *q = query(a, r, h);
            if (a->q_norm)
                st_vec_rms_norm(q, q, a->q_norm, a->head_dim, a->eps);
            rotate(a->rope, cs, q);
        } else if (h < heads + a->kv_heads) {
            store_key_value(a, r, h - heads, cs);
        } else {
            float *iq = a->iq + (r * index + h - heads - a->kv_heads) * a->index_dim;
            st_vec_rms_norm(iq, iq, a->iq_norm, a->index_dim, a->eps);
            rotate(a->rope, cs, iq);
        }
    }
    if (!a->ratio)
        return;
    for (int s = 0; s < a->rows->n_spans; s++) {
        size_t first = (size_t)a->rows->span[s], end = (size_t)a->rows->span[s + 1];
        st_share(w, end - first, 1, &from, &to);
        for (size_t r = first + from; r < first + to; r++)
            if (((size_t)a->rows->pos[r] + 1) % a->ratio == 0)
                pool_block(a, first, r);
    }
}

/* A block's place in the order: higher score first, then lower index. Scores are >= 0, so their bits order like numbers. */
static uint64_t rank_key(float score, uint32_t block)
{
    return (uint64_t)st_f32_bits(score) << 32 | (UINT32_MAX - block);
}

/* Moves the keep largest keys to the front (quick select, middle pivot of three). */
static void select_largest(uint64_t *key, size_t n, size_t keep)
{
    size_t lo = 0, hi = n;
    while (hi - lo > 1) {
        uint64_t a = key[lo], b = key[lo + (hi - lo) / 2], c = key[hi - 1];
        uint64_t pivot = a < b ? (b < c ? b : a < c ? c : a) : (a < c ? a : b < c ? c : b);
        size_t i = lo, j = hi - 1;
        for (;;) {
            while (key[i] > pivot)
                i++;
            while (key[j] < pivot)
                j--;
            if (i >= j)
                break;
            uint64_t t = key[i];
            key[i++] = key[j];
            key[j--] = t;
        }
        size_t cut = key[i] > pivot ? i + 1 : i; /* keys before cut are >= pivot */
        cut = cut == lo ? lo + 1 : cut;
        if (keep < cut)
            hi = cut;
        else if (keep > cut)
            lo = cut;
        else
            return;
    }
}

/* Fills the row's list of allowed positions, ascending by block. */
static void choose(const struct st_qsa *a, size_t r, struct st_qsa_scratch *scratch)
{
    size_t visible = (size_t)a->rows->pos[r] + 1, keep = a->ratio ? a->budget / a->ratio : 0;
    size_t blocks = a->ratio ? visible / a->ratio : 0;
    if (blocks <= keep) {
        a->chosen_count[r] = -1;
        return;
    }
    const float *pooled = a->pooled + (size_t)a->rows->slot[r] * (a->context / a->ratio) * a->index_dim;
    const float *iq = a->iq + r * a->index_heads * a->index_dim;
    for (size_t b = 0; b < blocks; b++) {
        float score = 0;
        for (uint32_t h = 0; h < a->index_heads; h++)
            score += fmaxf(0.0f, st_vec_dot(iq + h * a->index_dim, pooled + b * a->index_dim, a->index_dim));
        scratch->key[b] = rank_key(score, (uint32_t)b);
    }
    select_largest(scratch->key, blocks, keep);
    memset(scratch->taken, 0, (blocks + 7) / 8);
    for (size_t i = 0; i < keep; i++) {
        uint32_t block = UINT32_MAX - (uint32_t)scratch->key[i];
        scratch->taken[block / 8] |= (uint8_t)(1u << block % 8);
    }
    uint32_t *out = a->chosen + r * (a->budget + a->ratio);
    int32_t count = 0;
    for (size_t b = 0; b < blocks; b++)
        if (scratch->taken[b / 8] >> b % 8 & 1)
            for (uint32_t i = 0; i < a->ratio; i++)
                out[count++] = (uint32_t)b * a->ratio + i;
    for (size_t p = blocks * a->ratio; p < visible; p++)
        out[count++] = (uint32_t)p;
    a->chosen_count[r] = count;
}

/* Rows that walk over the cache together: several neighbours of one span that see everything before them, or one row
 * with a list. */
struct company {
    size_t first, count;  /* rows */
    size_t g, h0, heads;  /* key head; query heads h0 .. h0 + heads - 1 of its group */
};

static size_t positions(const struct st_qsa *a, size_t r)
{
    return a->chosen_count[r] < 0 ? (size_t)a->rows->pos[r] + 1 : (size_t)a->chosen_count[r];
}

/* One tile of n positions into the running softmax of one (row, head): the largest score so far scales what was summed. */
static void take_tile(const float *q, const struct st_qsa_scratch *s, size_t state, size_t n, size_t dim, float scale)
{
    float score[ST_QSA_TILE], top = s->top[state], sum = 0, *acc = s->acc + state * dim;
    for (size_t t = 0; t < n; t++) {
        score[t] = st_vec_dot(q, s->k + t * dim, dim) * scale;
        top = fmaxf(top, score[t]);
    }
    float keep = st_expf(s->top[state] - top);
    for (size_t t = 0; t < n; t++)
        score[t] = st_expf(score[t] - top);
    for (size_t t = 0; t < n; t++)
        sum += score[t];
    for (size_t i = 0; i < dim; i++)
        acc[i] *= keep;
    for (size_t t = 0; t < n; t++)
        st_vec_axpy(acc, score[t], s->v + t * dim, dim);
    s->top[state] = top;
    s->sum[state] = fmaf(s->sum[state], keep, sum);
}

static void attend(const struct st_qsa *a, const struct company *c, const struct st_qsa_scratch *s)
{
    size_t dim = a->head_dim, group = a->heads / a->kv_heads, last = c->first + c->count - 1, all = positions(a, last);
    const uint32_t *list = a->chosen_count[last] < 0 ? NULL : a->chosen + last * (a->budget + a->ratio);
    size_t base = cache_row(a, last, c->g);
    float scale = 1.0f / sqrtf((float)dim);
    for (size_t i = 0; i < c->count * c->heads; i++) {
        s->top[i] = -INFINITY;
        s->sum[i] = 0;
    }
    memset(s->acc, 0, c->count * c->heads * dim * sizeof *s->acc);
    for (size_t t0 = 0; t0 < all; t0 += ST_QSA_TILE) {
        size_t n = all - t0 < ST_QSA_TILE ? all - t0 : ST_QSA_TILE;
        for (size_t t = 0; t < n; t++) {
            size_t at = (base + (list ? list[t0 + t] : t0 + t)) * a->kv_bytes;
            st_kv_load(a->kv, a->k_cache + at, s->k + t * dim, dim);
            st_kv_load(a->kv, a->v_cache + at, s->v + t * dim, dim);
        }
        for (size_t i = 0; i < c->count; i++) {
            size_t own = positions(a, c->first + i), mine = own <= t0 ? 0 : own - t0 < n ? own - t0 : n;
            for (size_t h = 0; h < c->heads && mine; h++)
                take_tile(query(a, c->first + i, c->g * group + c->h0 + h), s, i * c->heads + h, mine, dim, scale);
        }
    }
    for (size_t i = 0; i < c->count; i++)
        for (size_t h = 0; h < c->heads; h++) {
            size_t r = c->first + i, head = c->g * group + c->h0 + h, state = i * c->heads + h;
            const float *gate = query(a, r, head) + dim, *acc = s->acc + state * dim;
            float *out = a->out + (r * a->heads + head) * dim, inverse = 1.0f / s->sum[state];
            for (size_t d = 0; d < dim; d++)
                out[d] = a->gated ? acc[d] * inverse * st_sigmoidf(gate[d]) : acc[d] * inverse;
        }
}

/* Rows from r on that form one company. */
static size_t company_rows(const struct st_qsa *a, size_t r)
{
    size_t n = 1;
    while (n < ST_QSA_ROWS && r + n < (size_t)a->rows->n && a->rows->slot[r + n] == a->rows->slot[r] &&
           a->chosen_count[r] < 0 && a->chosen_count[r + n] < 0)
        n++;
    return n;
}

/* Cuts (company, key head, part of its query heads) into equal numbers of units for the workers. */
static void attend_all(const struct st_qsa *a, const struct st_qsa_scratch *s, const struct st_worker *w)
{
    size_t group = a->heads / a->kv_heads, companies = 0, parts = 1, unit = 0, from, to;
    for (size_t r = 0; r < (size_t)a->rows->n; r += company_rows(a, r))
        companies++;
    while (parts < group && companies * a->kv_heads * parts < (size_t)w->count)
        parts++;
    st_share(w, companies * a->kv_heads * parts, 1, &from, &to);
    for (size_t r = 0; r < (size_t)a->rows->n; r += company_rows(a, r))
        for (size_t g = 0; g < a->kv_heads; g++)
            for (size_t p = 0; p < parts; p++, unit++) {
                struct company c = {.first = r, .count = company_rows(a, r), .g = g, .h0 = group * p / parts};
                c.heads = group * (p + 1) / parts - c.h0;
                if (unit >= from && unit < to)
                    attend(a, &c, s);
            }
}

void ST_K(st_qsa)(const struct st_kernels *k, const struct st_qsa *a, struct st_worker *w)
{
    (void)k;
    const struct st_rows *rows = a->rows;
    struct st_qsa_scratch scratch = st_qsa_scratch_at(a, w->scratch);
    size_t from, to;
    prepare(a, w);
    st_barrier(w);
    if (a->ratio) {
        st_share(w, (size_t)rows->n_spans, 1, &from, &to);
        for (size_t s = from; s < to; s++)
            store_raw(a, (size_t)rows->span[s], (size_t)rows->span[s + 1]);
    }
    st_share(w, (size_t)rows->n, 1, &from, &to);
    for (size_t r = from; r < to; r++)
        choose(a, r, &scratch);
    st_barrier(w);
    attend_all(a, &scratch, w);
}
