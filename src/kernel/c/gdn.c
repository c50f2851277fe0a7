/* Gated delta network. Limits: the matrix state (key_dim * value_dim floats per value head) is read and written once per
 * step; the chunked form does the same once per ST_GDN_CHUNK rows and pays with products of key_dim by rows. */
#include "kernel/c/level.h"
#include "kernel/exact_math.h"
#include "kernel/gdn.h"
#include "kernel/table.h"
#include "kernel/vec.h"

enum { CHANNELS_AT_ONCE = 256, DIM_MAX = 512 };

/* Short causal convolution and silu of channels [from, to) of one span; then the ring takes the last rows, or the held rows are
 * kept. */
static void convolve(const struct st_gdn *a, size_t first, size_t end, size_t from, size_t to)
{
    size_t channels = a->channels, length = a->taps - 1, count = to - from;
    float *ring = a->conv_state + (size_t)a->rows->slot[first] * length * channels;
    for (size_t r = first; r < end; r++) {
        float sum[CHANNELS_AT_ONCE] = {0};
        size_t pos = (size_t)a->rows->pos[r];
        for (uint32_t t = 0; t < a->taps; t++) {
            size_t back = a->taps - 1 - t;
            if (back > pos)
                continue;
            const float *u = back <= r - first ? a->u + (r - back) * channels : ring + (pos - back) % length * channels;
            const float *tap = a->conv + t * channels;
            for (size_t i = 0; i < count; i++)
                sum[i] = fmaf(tap[from + i], u[from + i], sum[i]);
        }
        for (size_t i = 0; i < count; i++)
            a->c[r * channels + from + i] = st_siluf(sum[i]);
    }
    if (a->rows->mode == ST_ROWS_HOLD) {
        for (size_t r = first; r < end; r++)
            memcpy(st_gdn_kept_u(a) + r * channels + from, a->u + r * channels + from, count * sizeof *ring);
        return;
    }
    for (size_t r = end - first > length ? end - length : first; r < end; r++)
        /* NOLINTNEXTLINE(clang-analyzer-core.DivideZero): with one tap, without a ring, r starts at end */
        memcpy(ring + (size_t)a->rows->pos[r] % length * channels + from, a->u + r * channels + from,
               count * sizeof *ring);
}

/* What the recurrence of one head takes from one row. */
struct head_row {
    const float *v;
    float beta, g;
};

static struct head_row head_row(const struct st_gdn *a, size_t r, size_t j, float *q, float *k)
{
    size_t dk = a->key_dim, kh = j % a->key_heads;
    const float *c = a->c + r * a->channels, *cq = c + kh * dk, *ck = c + (a->key_heads + kh) * dk;
    float iq = 1.0f / sqrtf(st_vec_dot(cq, cq, dk) + a->eps) / sqrtf((float)dk);
    float ik = 1.0f / sqrtf(st_vec_dot(ck, ck, dk) + a->eps);
    for (size_t d = 0; d < dk; d++) {
        q[d] = cq[d] * iq;
        k[d] = ck[d] * ik;
    }
    size_t at = r * a->value_heads + j;
    return (struct head_row){.v = c + 2 * a->key_heads * dk + j * a->value_dim,
                             .beta = st_sigmoidf(a->b[at]),
                             .g = a->ssm_a[j] * st_softplusf(a->a[at] + a->dt_bias[j])};
}

/* Norm and output gate of one head's row, in place in a->o. */
static void finish_row(const struct st_gdn *a, size_t r, size_t j)
{
    size_t dv = a->value_dim, at = (r * a->value_heads + j) * dv;
    float *o = a->o + at;
    const float *z = a->z + at;
    st_vec_rms_norm(o, o, a->gamma, dv, a->eps);
    for (size_t e = 0; e < dv; e++)
        o[e] *= st_sigmoidf(z[e]);
}

static void step(const struct st_gdn *a, float *state, size_t r, size_t j)
{
    float q[DIM_MAX], key[DIM_MAX], delta[DIM_MAX] = {0};
    size_t dk = a->key_dim, dv = a->value_dim;
    struct head_row row = head_row(a, r, j, q, key);
    float decay = st_expf(row.g), *o = a->o + (r * a->value_heads + j) * dv;
    for (size_t d = 0; d < dk; d++)
        for (size_t e = 0; e < dv; e++) {
            float s = state[d * dv + e] * decay;
            state[d * dv + e] = s;
            delta[e] = fmaf(s, key[d], delta[e]);
        }
    for (size_t e = 0; e < dv; e++) {
        delta[e] = row.beta * (row.v[e] - delta[e]);
        o[e] = 0;
    }
    for (size_t d = 0; d < dk; d++)
        for (size_t e = 0; e < dv; e++) {
            float s = fmaf(key[d], delta[e], state[d * dv + e]);
            state[d * dv + e] = s;
            o[e] = fmaf(s, q[d], o[e]);
        }
    if (a->rows->mode != ST_ROWS_COMMIT)
        finish_row(a, r, j);
}

/* A span of at most ST_GDN_STEP rows; scratch: a head's state. */
static void steps(const struct st_gdn *a, float *state, size_t r, size_t end, size_t j, float *scratch)
{
    bool hold = a->rows->mode == ST_ROWS_HOLD;
    if (hold)
        memcpy(scratch, state, (size_t)a->key_dim * a->value_dim * sizeof *scratch);
    for (; r < end; r++) {
        size_t at = r * a->value_heads + j;
        if (hold) {
            st_gdn_kept_b(a)[at] = a->b[at];
            st_gdn_kept_a(a)[at] = a->a[at];
        }
        step(a, hold ? scratch : state, r, j);
    }
}

/* out = x' S, S [dk][dv] */
static void row_times_state(float *out, const float *x, const float *state, size_t dk, size_t dv)
{
    memset(out, 0, dv * sizeof *out);
    for (size_t d = 0; d < dk; d++)
        st_vec_axpy(out, x[d], state + d * dv, dv);
}

/* n rows at once. With G the running sum of g and D_ij = exp(G_i - G_j) for i >= j:
 * (I + A) N = beta (V - exp(G) K S), A_ij = beta_i (k_i . k_j) D_ij below the diagonal;
 * O = exp(G) Q S + ((Q K') .* D) N;  S' = exp(G_last) S + (exp(G_last - G) K)' N. */
static void chunk(const struct st_gdn *a, float *state, size_t r0, size_t n, size_t j, float *scratch)
{
    size_t dk = a->key_dim, dv = a->value_dim;
    float *q = scratch, *key = q + ST_GDN_CHUNK * dk, *fresh = key + ST_GDN_CHUNK * dk;
    float gsum[ST_GDN_CHUNK], beta[ST_GDN_CHUNK], total = 0;
    for (size_t i = 0; i < n; i++) {
        struct head_row row = head_row(a, r0 + i, j, q + i * dk, key + i * dk);
        total += row.g;
        gsum[i] = total;
        beta[i] = row.beta;
        float *f = fresh + i * dv, carry = st_expf(total);
        row_times_state(f, key + i * dk, state, dk, dv);
        for (size_t e = 0; e < dv; e++)
            f[e] = beta[i] * (row.v[e] - carry * f[e]);
        for (size_t m = 0; m < i; m++) {
            float kk = st_vec_dot(key + i * dk, key + m * dk, dk);
            st_vec_axpy(f, -(beta[i] * kk * st_expf(total - gsum[m])), fresh + m * dv, dv);
        }
    }
    for (size_t i = 0; i < n; i++) {
        float *o = a->o + ((r0 + i) * a->value_heads + j) * dv, carry = st_expf(gsum[i]);
        row_times_state(o, q + i * dk, state, dk, dv);
        for (size_t e = 0; e < dv; e++)
            o[e] *= carry;
        for (size_t m = 0; m <= i; m++) {
            float qk = st_vec_dot(q + i * dk, key + m * dk, dk);
            st_vec_axpy(o, qk * st_expf(gsum[i] - gsum[m]), fresh + m * dv, dv);
        }
        finish_row(a, r0 + i, j);
    }
    float decay = st_expf(total), left[ST_GDN_CHUNK];
    for (size_t i = 0; i < n; i++)
        left[i] = st_expf(total - gsum[i]);
    for (size_t d = 0; d < dk; d++) {
        float *s = state + d * dv;
        for (size_t e = 0; e < dv; e++)
            s[e] *= decay;
        for (size_t i = 0; i < n; i++)
            st_vec_axpy(s, key[i * dk + d] * left[i], fresh + i * dv, dv);
    }
}

void ST_K(st_gdn)(const struct st_kernels *k, const struct st_gdn *given, struct st_worker *w)
{
    (void)k;
    struct st_gdn taken = *given;
    const struct st_gdn *a = &taken;
    const struct st_rows *rows = a->rows;
    if (rows->mode == ST_ROWS_COMMIT) {
        size_t held = (size_t)rows->held;
        taken.u = st_gdn_kept_u(a) + held * a->channels;
        taken.b = st_gdn_kept_b(a) + held * a->value_heads;
        taken.a = st_gdn_kept_a(a) + held * a->value_heads;
    }
    size_t from, to;
    st_share(w, a->channels, 16, &from, &to);
    for (int s = 0; s < rows->n_spans; s++)
        for (size_t i = from; i < to; i += CHANNELS_AT_ONCE)
            convolve(a, (size_t)rows->span[s], (size_t)rows->span[s + 1], i,
                     to - i < CHANNELS_AT_ONCE ? to : i + CHANNELS_AT_ONCE);
    st_barrier(w);
    size_t heads = a->value_heads, size = (size_t)a->key_dim * a->value_dim;
    st_share(w, (size_t)rows->n_spans * heads, 1, &from, &to);
    for (size_t u = from; u < to; u++) {
        size_t s = u / heads, j = u % heads, r = (size_t)rows->span[s], end = (size_t)rows->span[s + 1];
        float *state = a->state + ((size_t)rows->slot[r] * heads + j) * size;
        if (end - r <= ST_GDN_STEP)
            steps(a, state, r, end, j, w->scratch);
        else
            for (; r < end; r += ST_GDN_CHUNK)
                chunk(a, state, r, end - r < ST_GDN_CHUNK ? end - r : ST_GDN_CHUNK, j, w->scratch);
    }
}
