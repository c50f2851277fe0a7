/* Gated delta network: short convolution, and the recurrence over the matrix state.
 *
 * Recurrence: a group of 256 work-items has one value head of one span. Column e of the state belongs to 256 / value_dim
 * work-items, each with part of its rows in registers while the group goes through the span's rows, so that the state is read
 * and written once per pass. Neighbours have neighbouring columns: loads of the state are coalesced.
 * Limit: bytes of the state for windows (two times key_dim * value_dim * 4 per head), latency of a row for prompts. */
#include "exchange.h"

#define GROUP 256
#define DIM_MAX 256

/* c = silu(causal convolution of u); then the ring takes the last u of the span. grid: (ceil(channels / 256), spans at most).
 * ring: [slots][taps - 1][channels], position p at p modulo (taps - 1). */
KERNEL(GROUP) st_gdn_conv(global float *restrict c, global float *restrict ring_all, global const float *restrict u,
                          global const float *restrict conv, global const int *restrict slot, global const int *restrict pos,
                          global const int *restrict span, uint channels, uint taps)
{
    const uint ch = st_group() * GROUP + st_item(), length = taps - 1;
    const uint first = (uint)span[st_group_y()], end = (uint)span[st_group_y() + 1];
    if (ch >= channels || first >= end)
        return;
    global float *ring = ring_all + (ulong)(uint)slot[first] * length * channels + ch;
    for (uint row = first; row < end; row++) {
        const uint p = (uint)pos[row];
        float sum = 0.0f;
        for (uint t = 0; t < taps; t++) {
            const uint back = taps - 1 - t;
            if (back > p)
                continue;
            const float v =
                back <= row - first ? u[(ulong)(row - back) * channels + ch] : ring[(ulong)((p - back) % length) * channels];
            sum = st_fma(conv[(ulong)t * channels + ch], v, sum);
        }
        c[(ulong)row * channels + ch] = st_siluf(sum);
    }
    for (uint row = end - first > length ? end - length : first; row < end; row++)
        ring[(ulong)((uint)pos[row] % length) * channels] = u[(ulong)row * channels + ch];
}

/* Sum of values over the parts of a column: work-items e, e + dv, e + 2 dv, ... in ascending order. room: GROUP floats. */
INLINE float sum_parts(local float *room, float v, uint dv)
{
    const uint item = st_item(), e = item % dv;
    st_barrier();
    room[item] = v;
    st_barrier();
    float sum = room[e];
    for (uint i = e + dv; i < GROUP; i += dv)
        sum = sum + room[i];
    return sum;
}

/* The recurrence of one head over the rows of a span; a work-item holds PART rows of its column of the state. A macro, because the
 * rows must be a constant for the state to stay in registers. grid: (value_heads, spans at most); value_dim divides 256, key_dim
 * is PART * 256 / value_dim. */
#define GDN_STEP(name, PART)                                                                                              \
    KERNEL(GROUP) name(global float *restrict o, global float *restrict state_all, global const float *restrict c,            \
                       global const float *restrict z, global const float *restrict b, global const float *restrict a,        \
                       global const float *restrict ssm_a, global const float *restrict dt_bias,                              \
                       global const float *restrict gamma, global const int *restrict slot, global const int *restrict span,  \
                       uint key_heads, uint value_heads, uint dk, uint dv, float eps)                                         \
    {                                                                                                                         \
        LOCAL_ARRAY(uint, words, GROUP);                                                                                      \
        LOCAL_ARRAY(float, partial, 8);                                                                                       \
        LOCAL_ARRAY(float, room, GROUP);                                                                                      \
        LOCAL_ARRAY(float, q, DIM_MAX);                                                                                       \
        LOCAL_ARRAY(float, k, DIM_MAX);                                                                                       \
        const uint item = st_item(), j = st_group(), e = item % dv, part = item / dv, d0 = part * (PART);                     \
        const uint first = (uint)span[st_group_y()], end = (uint)span[st_group_y() + 1];                                      \
        if (first >= end)                                                                                                     \
            return;                                                                                                           \
        const uint kh = j % key_heads, channels = 2 * key_heads * dk + value_heads * dv;                                      \
        global float *state = state_all + ((ulong)(uint)slot[first] * value_heads + j) * dk * dv + (ulong)d0 * dv + e;        \
        float s[PART];                                                                                                        \
        UNROLL                                                                                                                \
        for (uint i = 0; i < (PART); i++)                                                                                     \
            s[i] = state[(ulong)i * dv];                                                                                      \
        const float own_a = ssm_a[j], own_bias = dt_bias[j], own_gamma = gamma[e], q_scale = 1.0f / st_sqrt((float)dk);       \
        for (uint row = first; row < end; row++) {                                                                            \
            global const float *cr = c + (ulong)row * channels;                                                               \
            float qv = 0.0f, kv = 0.0f;                                                                                       \
            if (item < dk) {                                                                                                  \
                qv = cr[kh * dk + item];                                                                                      \
                kv = cr[(key_heads + kh) * dk + item];                                                                        \
            }                                                                                                                 \
            const float iq = st_rsqrt(sum256(words, partial, qv * qv) + eps) * q_scale;                                       \
            st_barrier();                                                                                                     \
            const float ik = st_rsqrt(sum256(words, partial, kv * kv) + eps);                                                 \
            if (item < dk) {                                                                                                  \
                q[item] = qv * iq;                                                                                            \
                k[item] = kv * ik;                                                                                            \
            }                                                                                                                 \
            const ulong at = (ulong)row * value_heads + j;                                                                    \
            const float beta = st_sigmoidf(b[at]), decay = st_expf(own_a * st_softplusf(a[at] + own_bias));                   \
            st_barrier();                                                                                                     \
            float p = 0.0f;                                                                                                   \
            UNROLL                                                                                                            \
            for (uint i = 0; i < (PART); i++) {                                                                               \
                s[i] = s[i] * decay;                                                                                          \
                p = st_fma(s[i], k[d0 + i], p);                                                                               \
            }                                                                                                                 \
            const float delta = beta * (cr[2 * key_heads * dk + j * dv + e] - sum_parts(room, p, dv));                        \
            float out = 0.0f;                                                                                                 \
            UNROLL                                                                                                            \
            for (uint i = 0; i < (PART); i++) {                                                                               \
                s[i] = st_fma(k[d0 + i], delta, s[i]);                                                                        \
                out = st_fma(s[i], q[d0 + i], out);                                                                           \
            }                                                                                                                 \
            out = sum_parts(room, out, dv);                                                                                   \
            st_barrier();                                                                                                     \
            const float inverse = st_rsqrt(sum256(words, partial, part == 0 ? out * out : 0.0f) / (float)dv + eps);           \
            if (part == 0)                                                                                                    \
                o[at * dv + e] = out * inverse * own_gamma * st_sigmoidf(z[at * dv + e]);                                     \
        }                                                                                                                     \
        UNROLL                                                                                                                \
        for (uint i = 0; i < (PART); i++)                                                                                     \
            state[(ulong)i * dv] = s[i];                                                                                      \
    }

GDN_STEP(st_gdn_step_4, 4)
GDN_STEP(st_gdn_step_16, 16)
GDN_STEP(st_gdn_step_64, 64)
