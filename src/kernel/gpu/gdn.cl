/* Gated delta network in three launches: convolution with norms and gates, recurrence over the matrix state, output
 * norm and gate. A row has the same bits in a window of any size. In prompts gdn_blocks.cl has the recurrence.
 *
 * Recurrence: column e of a head's state belongs to GDN_LANES neighbouring work-items, each with part of its rows in
 * registers while the group goes through the rows of a span, so that the state is read and written once per pass.
 * Tokens come through local memory in batches, the next one under way while one is worked on. Limit: bytes of the
 * state, two times key_dim * value_dim * 4 per head. */
#include "gdn.h"
#include "quantize.h"

#define GROUP 256
#define DIM_MAX 256
#define GDN_PIECES (DIM_MAX / 32)
#define GDN_AHEAD 4 /* taps whose inputs are read at once */
#define GDN_HELD 8 /* rows that kept has room for: ST_HELD_ROWS */

/* c = silu(causal convolution of u); queries and keys are divided by their lengths, queries also by sqrt(dk). gates
 * [value_heads] [rows]. 32 neighbours have one head of one row; a group has one head of eight rows, which read each other's
 * inputs. grid: (query heads, key heads, value heads; ceil(rows / 8)). ring: [slots][taps - 1][channels], position p at p modulo (taps - 1); st_gdn_finish brings it up to
 * date. hold: u, b and a go to kept (kernel/gdn.h) as well. */
KERNEL(GROUP)
st_gdn_prepare(global float *restrict c, global float *restrict gates, global float *restrict kept,
               global const float *restrict ring_all,
               global const float *restrict u, global const float *restrict conv, global const float *restrict b,
               global const float *restrict a, global const float *restrict ssm_a, global const float *restrict dt_bias,
               global const int *restrict slot, global const int *restrict pos, uint rows, uint key_heads,
               uint value_heads, uint dk, uint dv, uint taps, uint hold, float eps)
{
    LOCAL_ARRAY(uint, words, GROUP);
    const uint row = st_group_y() * (GROUP / 32) + st_item() / 32, head = st_group(), lane = st_item() % 32;
    const uint channels = 2 * key_heads * dk + value_heads * dv;
    const bool inside = row < rows, is_value = head >= 2 * key_heads;
    const uint dim = inside ? (is_value ? dv : dk) : 0, length = taps - 1, p = inside ? (uint)pos[row] : 0;
    const uint first = is_value ? 2 * key_heads * dk + (head - 2 * key_heads) * dv : head * dk;
    uint in_pass = 0; /* how many rows before this one are of the same sequence, up to the taps */
    while (inside && in_pass < length && in_pass < row && slot[row - in_pass - 1] == slot[row])
        in_pass++;
    global const float *ring = ring_all + (inside ? (ulong)(uint)slot[row] * length * channels : 0);
    const bool gives_gate = inside && is_value && lane == 0;
    const uint j = gives_gate ? head - 2 * key_heads : 0;
    const ulong at = (ulong)(gives_gate ? row : 0) * value_heads + j;
    const float gate_a = a[at], gate_b = b[at], gate_scale = ssm_a[j], gate_bias = dt_bias[j];
    float v[GDN_PIECES], square = 0.0f;
    UNROLL
    for (uint i = 0; i < GDN_PIECES; i++)
        v[i] = 0.0f;
    /* Inputs and weights of several taps are asked for before the first sum waits for one. */
    for (uint t0 = 0; t0 < taps; t0 += GDN_AHEAD) {
        float x[GDN_AHEAD][GDN_PIECES], w[GDN_AHEAD][GDN_PIECES];
        UNROLL
        for (uint k = 0; k < GDN_AHEAD; k++) {
            const uint t = t0 + k < taps ? t0 + k : t0, back = length - t;
            const bool there = t0 + k < taps && back <= p;
            global const float *from = back <= in_pass ? u + (ulong)(row - back) * channels
                                                       : ring + (ulong)((there ? p - back : 0) % length) * channels;
            UNROLL
            for (uint i = 0; i < GDN_PIECES; i++) {
                const uint e = i * 32 + lane;
                x[k][i] = there && e < dim ? from[first + e] : 0.0f;
                w[k][i] = there && e < dim ? conv[(ulong)t * channels + first + e] : 0.0f;
            }
        }
        UNROLL
        for (uint k = 0; k < GDN_AHEAD; k++)
            if (t0 + k < taps && length - t0 - k <= p) {
                UNROLL
                for (uint i = 0; i < GDN_PIECES; i++)
                    v[i] = st_fma(w[k][i], x[k][i], v[i]);
            }
    }
    UNROLL
    for (uint i = 0; i < GDN_PIECES; i++) {
        v[i] = i * 32 + lane < dim ? st_siluf(v[i]) : 0.0f;
        square = st_fma(v[i], v[i], square);
    }
    const float inverse = st_rsqrt(sum32(words, square) + eps),
                scale = head < key_heads ? 1.0f / st_sqrt((float)dk) : 1.0f;
    UNROLL
    for (uint i = 0; i < GDN_PIECES; i++) {
        const uint e = i * 32 + lane;
        if (e < dim)
            c[(ulong)row * channels + first + e] = is_value ? v[i] : v[i] * (inverse * scale);
        if (hold && e < dim)
            kept[(ulong)row * channels + first + e] = u[(ulong)row * channels + first + e];
    }
    if (gives_gate) {
        global float *to = gates + ((ulong)j * rows + row) * GDN_GATES;
        if (hold) {
            global float *gate = kept + (ulong)GDN_HELD * channels;
            gate[at] = gate_b;
            gate[(ulong)GDN_HELD * value_heads + at] = gate_a;
        }
        to[0] = st_sigmoidf(gate_b);
        to[1] = st_expf(gate_scale * st_softplusf(gate_a + gate_bias));
    }
}

#define GDN_GROUP 128
#define GDN_LANES (GDN_GROUP / GDN_COLUMNS) /* work-items that share a column */
#define GDN_BATCH 8 /* tokens that lie in local memory at once, times two */

/* Starts the copies of up to GDN_BATCH rows from row on: for each its key, query, values of the group's columns, gates.
 */
INLINE void gdn_fetch(local uint4 *to, global const float *c, global const float *gates, uint row, uint end,
                      uint channels, uint query_at, uint key_at, uint value_at, uint dk)
{
    const uint each = dk / 2 + GDN_COLUMNS / 4 + 1, count = end - row < GDN_BATCH ? end - row : GDN_BATCH;
    for (uint i = st_item(); i < count * each; i += GDN_GROUP) {
        const uint t = i / each, w = i % each;
        global const float *from = c + (ulong)(row + t) * channels;
        from = w < dk / 4                     ? from + key_at + 4 * w
               : w < dk / 2                   ? from + query_at + 4 * (w - dk / 4)
               : w < dk / 2 + GDN_COLUMNS / 4 ? from + value_at + 4 * (w - dk / 2)
                                              : gates + (ulong)(row + t) * GDN_GATES;
        st_copy_issue(to + i, (global const uint4 *)from);
    }
    st_copies_commit();
}

#define GDN_OWN_MAX 16

/* The recurrence of GDN_COLUMNS columns of one head over the rows of a span; o [rows][value_heads * dv] before norm and
 * gate. A work-item has four rows of its column's state, and four more 32 rows on, and so on, `own` in all: a constant
 * of the kernel, so that they stay in registers. */
INLINE void gdn_step(uint own, local uint4 *stage, local uint *words, global float *restrict o,
                     global float *restrict state_all, global const float *restrict c,
                     global const float *restrict gates_all, global const int *restrict slot,
                     global const int *restrict span, uint rows, uint key_heads, uint value_heads, uint dv, uint hold)
{
    const uint dk = own * GDN_LANES, each = dk / 2 + GDN_COLUMNS / 4 + 1;
    const uint item = st_item(), part = item % GDN_LANES, column = item / GDN_LANES, blocks = dv / GDN_COLUMNS;
    const uint j = st_group() / blocks, e0 = st_group() % blocks * GDN_COLUMNS;
    const uint first = (uint)span[st_group_y()], end = (uint)span[st_group_y() + 1];
    if (first >= end)
        return;
    const uint query_at = j % key_heads * dk, key_at = key_heads * dk + query_at;
    const uint channels = 2 * key_heads * dk + value_heads * dv, value_at = 2 * key_heads * dk + j * dv + e0;
    global const float *gates = gates_all + (ulong)j * rows * GDN_GATES;
    global float *state = state_all + ((ulong)(uint)slot[first] * value_heads + j) * dk * dv + e0 + column;
    gdn_fetch(stage, c, gates, first, end, channels, query_at, key_at, value_at, dk);
    float s[GDN_OWN_MAX];
    UNROLL
    for (uint i = 0; i < own; i++)
        s[i] = state[(ulong)(i / 4 * 32 + part * 4 + i % 4) * dv];
    uint turn = 0;
    for (uint base = first; base < end; base += GDN_BATCH) {
        st_copies_wait(0);
        st_barrier();
        if (base + GDN_BATCH < end)
            gdn_fetch(stage + (1 - turn) * GDN_BATCH * each, c, gates, base + GDN_BATCH, end, channels, query_at,
                      key_at, value_at, dk);
        const uint count = end - base < GDN_BATCH ? end - base : GDN_BATCH;
        for (uint t = 0; t < count; t++) {
            local const float4 *token = (local const float4 *)(stage + (turn * GDN_BATCH + t) * each);
            local const float *after = (local const float *)(token + dk / 2);
            const float beta = after[GDN_COLUMNS], decay = after[GDN_COLUMNS + 1];
            float4 k[GDN_OWN_MAX / 4], sum = {0.0f, 0.0f, 0.0f, 0.0f};
            UNROLL
            for (uint i = 0; i < own / 4; i++) {
                k[i] = token[i * GDN_LANES + part];
                s[4 * i] = s[4 * i] * decay;
                s[4 * i + 1] = s[4 * i + 1] * decay;
                s[4 * i + 2] = s[4 * i + 2] * decay;
                s[4 * i + 3] = s[4 * i + 3] * decay;
                sum.x = st_fma(s[4 * i], k[i].x, sum.x);
                sum.y = st_fma(s[4 * i + 1], k[i].y, sum.y);
                sum.z = st_fma(s[4 * i + 2], k[i].z, sum.z);
                sum.w = st_fma(s[4 * i + 3], k[i].w, sum.w);
            }
            float p = (sum.x + sum.y) + (sum.z + sum.w);
            for (uint mask = GDN_LANES / 2; mask > 0; mask /= 2)
                p = p + st_float_of(exchange(words, st_bits_of(p), mask));
            const float delta = beta * (after[column] - p);
            sum.x = sum.y = sum.z = sum.w = 0.0f;
            UNROLL
            for (uint i = 0; i < own / 4; i++) {
                const float4 q = token[dk / 4 + i * GDN_LANES + part];
                s[4 * i] = st_fma(k[i].x, delta, s[4 * i]);
                s[4 * i + 1] = st_fma(k[i].y, delta, s[4 * i + 1]);
                s[4 * i + 2] = st_fma(k[i].z, delta, s[4 * i + 2]);
                s[4 * i + 3] = st_fma(k[i].w, delta, s[4 * i + 3]);
                sum.x = st_fma(s[4 * i], q.x, sum.x);
                sum.y = st_fma(s[4 * i + 1], q.y, sum.y);
                sum.z = st_fma(s[4 * i + 2], q.z, sum.z);
                sum.w = st_fma(s[4 * i + 3], q.w, sum.w);
            }
            float out = (sum.x + sum.y) + (sum.z + sum.w);
            for (uint mask = GDN_LANES / 2; mask > 0; mask /= 2)
                out = out + st_float_of(exchange(words, st_bits_of(out), mask));
            if (part == 0)
                o[((ulong)(base + t) * value_heads + j) * dv + e0 + column] = out;
        }
        turn = 1 - turn;
    }
    if (hold)
        return;
    UNROLL
    for (uint i = 0; i < own; i++)
        state[(ulong)(i / 4 * 32 + part * 4 + i % 4) * dv] = s[i];
}

/* grid: (value_heads * dv / GDN_COLUMNS, spans at most); the key dimension is own * GDN_LANES, dv a multiple of
 * GDN_COLUMNS. hold: the state stays as it is. */
#define GDN_STEP(name, own) \
    KERNEL(GDN_GROUP) \
    name(global float *restrict o, global float *restrict state, global const float *restrict c, \
         global const float *restrict gates, global const int *restrict slot, global const int *restrict span, \
         uint rows, uint key_heads, uint value_heads, uint dv, uint hold) \
    { \
        LOCAL_ARRAY(uint4, stage, 2 * GDN_BATCH * ((own)*GDN_LANES / 2 + GDN_COLUMNS / 4 + 1)); \
        LOCAL_ARRAY(uint, words, GDN_GROUP); \
        gdn_step(own, stage, words, o, state, c, gates, slot, span, rows, key_heads, value_heads, dv, hold); \
    }

GDN_STEP(st_gdn_step_4, 4)
GDN_STEP(st_gdn_step_8, 8)
GDN_STEP(st_gdn_step_16, 16)

/* o = norm(o) * gamma * sigmoid(z) for every head, also as Q8 rows where quantize is set (dv a multiple of 32); the
 * last u of each span go into the ring unless rows are held. 32 neighbours have one head of one row, value heads first. grid: (ceil(rows *
 * heads / 8), 1); heads: as in st_gdn_prepare. */
KERNEL(GROUP)
st_gdn_finish(global float *restrict o, global float *restrict ring, global uchar *restrict q,
              global const float *restrict z, global const float *restrict gamma, global const float *restrict u,
              global const int *restrict slot, global const int *restrict pos, uint rows, uint key_heads,
              uint value_heads, uint dk, uint dv, uint taps, uint quantize, uint hold, float eps)
{
    LOCAL_ARRAY(uint, words, GROUP);
    const uint heads = 2 * key_heads + value_heads, unit = st_group() * (GROUP / 32) + st_item() / 32,
               lane = st_item() % 32;
    const uint row = unit / heads, head = unit % heads, length = taps - 1;
    const uint channels = 2 * key_heads * dk + value_heads * dv;
    const bool inside = row < rows, is_value = inside && head < value_heads;
    const ulong at = ((ulong)row * value_heads + head) * dv;
    const uint place = inside ? (uint)slot[row] : 0, position = inside ? (uint)pos[row] : 0;
    float v[GDN_PIECES], by[GDN_PIECES], gate[GDN_PIECES], square = 0.0f;
    UNROLL
    for (uint i = 0; i < GDN_PIECES; i++) {
        const uint e = i * 32 + lane;
        v[i] = is_value && e < dv ? o[at + e] : 0.0f;
        by[i] = is_value && e < dv ? gamma[e] : 0.0f;
        gate[i] = is_value && e < dv ? z[at + e] : 0.0f;
    }
    UNROLL
    for (uint i = 0; i < GDN_PIECES; i++)
        square = st_fma(v[i], v[i], square);
    const float inverse = st_rsqrt(sum32(words, square) / (float)dv + eps);
    UNROLL
    for (uint i = 0; i < GDN_PIECES; i++) {
        const uint e = i * 32 + lane;
        if (is_value && e < dv)
            o[at + e] = v[i] * inverse * by[i] * st_sigmoidf(gate[i]);
    }
    /* a loop of its own: where lanes cannot exchange values, it has barriers, which compilers for CPUs want in few
     * places */
    for (uint e = lane; e < dv + lane && quantize; e += 32)
        put_q8(words, q + (ulong)row * ST_Q8_STRIDE(value_heads * dv), value_heads * dv, head * dv + e,
               is_value ? o[at + e] : 0.0f, is_value);
    if (!inside || hold || (row + length < rows && slot[row + length] == slot[row]))
        return;
    const uint count = channels / heads + 1, from = head * count,
               end = from + count < channels ? from + count : channels;
    global float *to = ring + ((ulong)place * length + position % length) * channels;
    for (uint i = from + lane; i < end; i += 32)
        to[i] = u[(ulong)row * channels + i];
}
