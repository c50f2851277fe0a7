/* Activation buffers, and weights times activation rows. */
#include "kernel/multiply.h"

/* Values that one unit of quantising work takes: one block of the longest form. */
enum { SPLIT = 256 };

static const enum st_act integer_forms[] = {ST_ACT_Q8, ST_ACT_Q8K};

/* Both forms are laid out for a row length rounded up to 256, which both block sizes divide. */
static size_t padded(size_t cols)
{
    return (cols + SPLIT - 1) / SPLIT * SPLIT;
}

size_t st_act_buffer_bytes(size_t rows, size_t cols, size_t (*row_bytes)(enum st_act form, size_t n))
{
    return rows * (row_bytes(ST_ACT_Q8, padded(cols)) + row_bytes(ST_ACT_Q8K, padded(cols)));
}

void st_act_buffer_place(struct st_act_buffer *b, void *memory, size_t rows, size_t cols,
                         size_t (*row_bytes)(enum st_act form, size_t n))
{
    *b = (struct st_act_buffer){.cols = cols};
    uint8_t *at = memory;
    for (int i = 0; i < 2; i++) {
        enum st_act form = integer_forms[i];
        b->memory[form] = at;
        b->stride[form] = row_bytes(form, padded(cols));
        at += memory ? rows * b->stride[form] : 0;
    }
}

void st_act_prepare(const struct st_kernels *k, const struct st_act_buffer *b, unsigned mask, const float *x, size_t ldx,
                    size_t n, size_t cols, const struct st_worker *w)
{
    size_t parts = (cols + SPLIT - 1) / SPLIT, from, to;
    st_share(w, n * parts, 1, &from, &to);
    for (int i = 0; i < 2; i++) {
        enum st_act form = integer_forms[i];
        if (!(mask & 1u << form))
            continue;
        for (size_t unit = from; unit < to; unit++) {
            size_t r = unit / parts, at = unit % parts * SPLIT, count = cols - at < SPLIT ? cols - at : SPLIT;
            struct st_act_row row, part;
            st_act_bind(form, padded(b->cols), b->memory[form] + r * b->stride[form], &row);
            part = (struct st_act_row){.q = row.q + at,
                                       .d = row.d + at / (form == ST_ACT_Q8 ? 32 : 256),
                                       .s = row.s ? row.s + at / 32 : NULL,
                                       .sums = row.sums + at / 16};
            k->dot->quantize(form, x + r * ldx + at, count, &part);
        }
    }
}

struct st_act_row st_act_row_of(const struct st_act_buffer *b, const struct st_weight *w, const float *x, size_t ldx,
                                size_t r)
{
    struct st_act_row row = {.f = x + r * ldx};
    if (w->act != ST_ACT_F32)
        st_act_bind(w->act, padded(b->cols), b->memory[w->act] + r * b->stride[w->act], &row);
    return row;
}

void st_multiply(const struct st_kernels *k, const struct st_weight *w, uint32_t expert, size_t from, size_t to,
                 const struct st_act_row *x, size_t n, float *y, size_t ldy)
{
    if (from >= to || n == 0)
        return;
    const uint8_t *const *places = w->places;
    const uint8_t *data = (places ? places[expert] : (const uint8_t *)w->data + expert * w->expert_bytes) + from * w->row_bytes;
    st_dot_rows_fn rows = w->act == ST_ACT_F32 ? k->dot->rows_f32[w->type] : k->dot->rows[w->type];
    rows(y, data, w->row_bytes, (int)(to - from), x, (int)n, ldy, w->cols);
    if (w->scale) {
        float scale = w->scale[w->scale_count > 1 ? expert : 0];
        for (size_t i = 0; i < n; i++)
            for (size_t o = 0; o < to - from; o++)
                y[i * ldy + o] *= scale;
    }
}
