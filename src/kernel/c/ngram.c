/* N-gram memory: gather of table rows, and injection into the wide residual. Limits: random reads of the table; the
 * convolution and norms move a few times the wide residual. */
#include "kernel/c/level.h"
#include "kernel/exact_math.h"
#include "kernel/ngram.h"
#include "kernel/table.h"
#include "kernel/vec.h"

enum { CHANNELS_AT_ONCE = 256 };

void ST_K(st_ngram_gather)(const struct st_kernels *k, const struct st_ngram_gather *a, struct st_worker *w)
{
    (void)k;
    const struct st_type_info *type = st_type_info(a->type);
    size_t from, to;
    st_share(w, (size_t)a->rows->n * a->heads, 1, &from, &to);
    for (size_t u = from; u < to; u++)
        type->decode(a->rows->ngram + a->rows->ngram_index[u] * a->row_bytes, a->e + u * a->width, a->width);
}

/* Gate, value and norm of one (row, stream): leaves gv in key and its norm in z. */
static void inject_stream(const struct st_ngram_inject *a, size_t row, size_t c)
{
    size_t hidden = a->hidden, at = (row * a->streams + c) * hidden, gamma = c * hidden;
    float *key = a->key + at, *z = a->z + at;
    st_vec_rms_norm(key, key, a->norm_key + gamma, hidden, a->eps);
    st_vec_rms_norm(z, a->r + at, a->norm_query + gamma, hidden, a->eps);
    float s = st_vec_dot(key, z, hidden) / sqrtf((float)hidden);
    float strength = sqrtf(fmaxf(fabsf(s), 1e-6f));
    float gate = st_sigmoidf(s > 0 ? strength : s < 0 ? -strength : 0.0f);
    const float *value = a->value + row * hidden;
    for (size_t i = 0; i < hidden; i++)
        key[i] = gate * value[i];
    st_vec_rms_norm(z, key, a->norm_conv + gamma, hidden, a->eps);
}

/* Channels [from, to), at most CHANNELS_AT_ONCE, of one span: r += gv + silu(conv(z)). */
static void convolve(const struct st_ngram_inject *a, size_t first, size_t end, size_t from, size_t to)
{
    size_t wide = (size_t)a->streams * a->hidden, length = (size_t)(a->taps - 1) * a->dilation, count = to - from;
    const float *ring = a->state + (size_t)a->rows->slot[first] * length * wide;
    for (size_t r = first; r < end; r++) {
        float sum[CHANNELS_AT_ONCE] = {0};
        size_t pos = (size_t)a->rows->pos[r];
        for (uint32_t t = 0; t < a->taps; t++) {
            size_t back = (size_t)(a->taps - 1 - t) * a->dilation;
            if (back > pos)
                continue;
            /* NOLINTNEXTLINE(clang-analyzer-core.DivideZero): with one tap, without a ring, back is 0 */
            const float *z = back <= r - first ? a->z + (r - back) * wide : ring + (pos - back) % length * wide;
            const float *tap = a->conv + t * wide;
            for (size_t i = 0; i < count; i++)
                sum[i] = fmaf(tap[from + i], z[from + i], sum[i]);
        }
        float *out = a->r + r * wide + from;
        const float *gv = a->key + r * wide + from;
        for (size_t i = 0; i < count; i++)
            out[i] += gv[i] + st_siluf(sum[i]);
    }
}

/* Channels [from, to) of z, of rows [first, end) of one span, where they belong: in the ring the last rows, as kept all of them. */
static void store(const struct st_ngram_inject *a, size_t first, size_t end, size_t from, size_t to)
{
    size_t wide = (size_t)a->streams * a->hidden, length = (size_t)(a->taps - 1) * a->dilation;
    float *ring = a->state + (size_t)a->rows->slot[first] * length * wide;
    bool hold = a->rows->mode == ST_ROWS_HOLD;
    const float *z = a->rows->mode == ST_ROWS_COMMIT ? a->kept + (size_t)a->rows->held * wide : a->z;
    for (size_t r = !hold && end - first > length ? end - length : first; r < end; r++)
        memcpy((hold ? a->kept + r * wide : ring + (size_t)a->rows->pos[r] % length * wide) + from, z + r * wide + from,
               (to - from) * sizeof *ring);
}

void ST_K(st_ngram_inject)(const struct st_kernels *k, const struct st_ngram_inject *a, struct st_worker *w)
{
    (void)k;
    size_t from, to;
    bool commit = a->rows->mode == ST_ROWS_COMMIT;
    if (!commit) {
        st_share(w, (size_t)a->rows->n * a->streams, 1, &from, &to);
        for (size_t u = from; u < to; u++)
            inject_stream(a, u / a->streams, u % a->streams);
        st_barrier(w);
    }
    st_share(w, (size_t)a->streams * a->hidden, 16, &from, &to);
    for (int s = 0; s < a->rows->n_spans; s++) {
        size_t first = (size_t)a->rows->span[s], end = (size_t)a->rows->span[s + 1];
        for (size_t i = from; i < to && !commit; i += CHANNELS_AT_ONCE)
            convolve(a, first, end, i, to - i < CHANNELS_AT_ONCE ? to : i + CHANNELS_AT_ONCE);
        store(a, first, end, from, to);
    }
}
