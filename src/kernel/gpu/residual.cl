/* Wide residual and small steps: embedding, gated write, choice of output rows, sums, SwiGLU, input of a draft layer.
 *
 * All arrays are f32, rows one after the other. Work-item i of a group of 256 has element i of a stretch of 256; loads are
 * coalesced. Limit: bytes of the activations, in practice the launch. */
#include "exchange.h"

#define GROUP 256

/* r[row][stream] = embd[row] for every stream. grid: (ceil(hidden / 256), rows). */
KERNEL(GROUP) st_embed(global float *restrict r, global const float *restrict embd, uint hidden, uint streams)
{
    const uint i = st_group() * GROUP + st_item(), row = st_group_y();
    if (i >= hidden)
        return;
    const float v = embd[(ulong)row * hidden + i];
    for (uint c = 0; c < streams; c++)
        r[((ulong)row * streams + c) * hidden + i] = v;
}

/* r[row][stream] += inj[row][stream] * o[row]. grid: (ceil(hidden / 256), rows). */
KERNEL(GROUP) st_gated_write(global float *restrict r, global const float *restrict inj, global const float *restrict o,
                             uint hidden, uint streams)
{
    const uint i = st_group() * GROUP + st_item(), row = st_group_y();
    if (i >= hidden)
        return;
    const float v = o[(ulong)row * hidden + i];
    for (uint c = 0; c < streams; c++) {
        global float *at = r + ((ulong)row * streams + c) * hidden + i;
        *at = st_fma(inj[row * streams + c], v, *at);
    }
}

/* to[i] = from[out[i]]. grid: (ceil(width / 256), chosen rows). */
KERNEL(GROUP) st_select(global float *restrict to, global const float *restrict from, global const int *restrict out, uint width)
{
    const uint i = st_group() * GROUP + st_item(), row = st_group_y();
    if (i < width)
        to[(ulong)row * width + i] = from[(ulong)out[row] * width + i];
}

/* r += o. grid: (ceil(count / 256), rows); count: elements of a row. */
KERNEL(GROUP) st_add(global float *restrict r, global const float *restrict o, uint count)
{
    const uint i = st_group() * GROUP + st_item();
    const ulong at = (ulong)st_group_y() * count + i;
    if (i < count)
        r[at] = r[at] + o[at];
}

/* gate = silu(gate) * up. grid as st_add. */
KERNEL(GROUP) st_swiglu(global float *restrict gate, global const float *restrict up, uint count)
{
    const uint i = st_group() * GROUP + st_item();
    const ulong at = (ulong)st_group_y() * count + i;
    if (i < count)
        gate[at] = st_siluf(gate[at]) * up[at];
}

/* 1 / rms of n elements, by the whole group. */
INLINE float draft_inverse_rms(local uint *words, local float *partial, global const float *x, uint n, float eps)
{
    float sum = 0.0f;
    for (uint i = st_item(); i < n; i += GROUP)
        sum = st_fma(x[i], x[i], sum);
    return st_rsqrt(sum256(words, partial, sum) / (float)n + eps);
}

/* x[row][stream] = [norm(embd[row]) ; norm(hidden_in[row])[stream]], 2 * hidden each. grid: (streams, rows). */
KERNEL(GROUP) st_draft_input(global float *restrict x, global const float *restrict embd, global const float *restrict hidden_in,
                             global const float *restrict enorm, global const float *restrict hnorm, uint hidden, uint streams,
                             uint per_stream, float eps)
{
    LOCAL_ARRAY(uint, words, GROUP);
    LOCAL_ARRAY(float, partial, 8);
    const uint c = st_group(), row = st_group_y();
    global const float *e = embd + (ulong)row * hidden;
    global const float *h = hidden_in + (ulong)row * streams * hidden, *mine = h + (ulong)c * hidden;
    global float *to = x + ((ulong)row * streams + c) * 2 * hidden;
    const float ie = draft_inverse_rms(words, partial, e, hidden, eps);
    st_barrier();
    const float ih = draft_inverse_rms(words, partial, per_stream ? mine : h, per_stream ? hidden : streams * hidden, eps);
    for (uint i = st_item(); i < hidden; i += GROUP) {
        to[i] = e[i] * ie * enorm[i];
        to[hidden + i] = mine[i] * ih * hnorm[(ulong)c * hidden + i];
    }
}
