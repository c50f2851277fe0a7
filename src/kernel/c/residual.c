/* Wide residual: embedding, gated read and write, output rows, draft input. Limits: bytes of the two low-rank matrices. */
#include "kernel/c/level.h"
#include "kernel/exact_math.h"
#include "kernel/multiply.h"
#include "kernel/vec.h"

enum { ROWS_AT_ONCE = 8, COLUMNS_AT_ONCE = 64, STREAMS_MAX = 8 };

static void embedding_row(const struct st_weight *table, int32_t token, float *out)
{
    const uint8_t *row = (const uint8_t *)table->data + (size_t)token * table->row_bytes;
    st_type_info(table->type)->decode(row, out, table->cols);
}

void ST_K(st_embed)(const struct st_kernels *k, const struct st_embed *a, struct st_worker *w)
{
    (void)k;
    const struct st_rows *rows = a->rows;
    size_t hidden = a->table->cols, from, to;
    st_share(w, (size_t)rows->n, 1, &from, &to);
    for (size_t r = from; r < to; r++) {
        float *out = a->r + r * a->streams * hidden;
        if (rows->embd_row[r])
            memcpy(out, rows->embd + r * hidden, hidden * sizeof *out);
        else
            embedding_row(a->table, rows->token[r], out);
        for (uint32_t c = 1; c < a->streams; c++)
            memcpy(out + c * hidden, out, hidden * sizeof *out);
    }
}

void ST_K(st_draft_input)(const struct st_kernels *k, const struct st_draft_input *a, struct st_worker *w)
{
    (void)k;
    const struct st_rows *rows = a->rows;
    size_t hidden = a->hidden, wide = a->streams * hidden, from, to;
    st_share(w, (size_t)rows->n, 1, &from, &to);
    for (size_t r = from; r < to; r++) {
        const float *h = a->hidden_in + r * wide;
        float *x = a->x + r * a->streams * 2 * hidden;
        if (rows->embd_row[r])
            memcpy(x, rows->embd + r * hidden, hidden * sizeof *x);
        else
            embedding_row(a->table, rows->token[r], x);
        st_vec_rms_norm(x, x, a->enorm, hidden, a->eps);
        float whole = st_vec_inverse_rms(h, wide, a->eps);
        for (uint32_t c = 0; c < a->streams; c++) {
            float *to_stream = x + c * 2 * hidden;
            float inv = a->per_stream ? st_vec_inverse_rms(h + c * hidden, hidden, a->eps) : whole;
            if (c > 0)
                memcpy(to_stream, x, hidden * sizeof *x);
            for (size_t i = 0; i < hidden; i++)
                to_stream[hidden + i] = h[c * hidden + i] * inv * a->hnorm[c * hidden + i];
        }
    }
}

/* m = mean over streams of sigmoid(up lo) * x, for columns [from, to) of ROWS_AT_ONCE rows at most. */
static void gated_mean(const struct st_kernels *k, const struct st_gated_read *a, const struct st_act_row *lo, size_t row,
                       size_t n, size_t from, size_t to)
{
    float gate[ROWS_AT_ONCE * STREAMS_MAX * COLUMNS_AT_ONCE];
    size_t wide = (size_t)a->streams * a->hidden, count = to - from, ld = a->streams * count;
    for (uint32_t c = 0; c < a->streams; c++)
        st_multiply(k, a->up, 0, c * a->hidden + from, c * a->hidden + to, lo, n, gate + c * count, ld);
    for (size_t r = 0; r < n; r++) {
        float *restrict m = a->m + (row + r) * a->hidden + from;
        const float *x = a->x + (row + r) * wide + from, *g = gate + r * ld;
        memset(m, 0, count * sizeof *m);
        for (uint32_t c = 0; c < a->streams; c++) /* streams outside, so that columns are the lanes of registers */
            for (size_t i = 0; i < count; i++)
                m[i] = fmaf(st_sigmoidf(g[c * count + i]), x[c * a->hidden + i], m[i]);
        for (size_t i = 0; i < count; i++)
            m[i] /= (float)a->streams;
    }
}

void ST_K(st_gated_read)(const struct st_kernels *k, const struct st_gated_read *a, struct st_worker *w)
{
    size_t n = (size_t)*a->n, streams = a->streams, hidden = a->hidden, wide = streams * hidden, from, to;
    st_share(w, n * streams, 1, &from, &to);
    for (size_t u = from; u < to; u++)
        st_vec_rms_norm(a->x + u * hidden, a->r + u * hidden, a->gamma + u % streams * hidden, hidden, a->eps);
    st_barrier(w);
    st_act_prepare(k, a->acts, st_act_mask(a->down) | st_act_mask(a->inject), a->x, wide, n, wide, w);
    st_barrier(w);

    struct st_act_row rows[ROWS_AT_ONCE];
    float low = 1.0f / (float)streams;
    st_share(w, a->rank, 8, &from, &to);
    for (size_t r = 0; r < n; r += ROWS_AT_ONCE) {
        size_t count = n - r < ROWS_AT_ONCE ? n - r : ROWS_AT_ONCE;
        for (size_t j = 0; j < count; j++)
            rows[j] = st_act_row_of(a->acts, a->down, a->x, wide, r + j);
        st_multiply(k, a->down, 0, from, to, rows, count, a->lo + r * a->rank + from, a->rank);
        for (size_t j = 0; j < count; j++)
            for (size_t i = from; i < to; i++)
                a->lo[(r + j) * a->rank + i] = st_siluf(a->lo[(r + j) * a->rank + i] * low);
    }
    if (a->inject) {
        st_share(w, n, 1, &from, &to);
        for (size_t r = from; r < to; r++) {
            struct st_act_row row = st_act_row_of(a->acts, a->inject, a->x, wide, r);
            st_multiply(k, a->inject, 0, 0, streams, &row, 1, a->inj + r * streams, streams);
            for (size_t c = 0; c < streams; c++)
                a->inj[r * streams + c] = 2.0f * st_sigmoidf(a->inj[r * streams + c] * low);
        }
    }
    st_barrier(w);
    st_act_prepare(k, a->acts, st_act_mask(a->up), a->lo, a->rank, n, a->rank, w);
    st_barrier(w);

    st_share(w, hidden, 16, &from, &to);
    for (size_t r = 0; r < n; r += ROWS_AT_ONCE) {
        size_t count = n - r < ROWS_AT_ONCE ? n - r : ROWS_AT_ONCE;
        for (size_t j = 0; j < count; j++)
            rows[j] = st_act_row_of(a->acts, a->up, a->lo, a->rank, r + j);
        for (size_t i = from; i < to; i += COLUMNS_AT_ONCE)
            gated_mean(k, a, rows, r, count, i, to - i < COLUMNS_AT_ONCE ? to : i + COLUMNS_AT_ONCE);
    }
}

void ST_K(st_gated_write)(const struct st_kernels *k, const struct st_gated_write *a, struct st_worker *w)
{
    (void)k;
    size_t from, to;
    st_share(w, (size_t)*a->n * a->streams, 1, &from, &to);
    for (size_t u = from; u < to; u++)
        st_vec_axpy(a->r + u * a->hidden, a->inj[u], a->o + u / a->streams * a->hidden, a->hidden);
}

void ST_K(st_select)(const struct st_kernels *k, const struct st_select *a, struct st_worker *w)
{
    (void)k;
    size_t from, to;
    st_share(w, (size_t)a->rows->n_out, 1, &from, &to);
    for (size_t i = from; i < to; i++)
        memcpy(a->to + i * a->width, a->from + (size_t)a->rows->out[i] * a->width, a->width * sizeof(float));
}
