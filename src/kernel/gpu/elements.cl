/* What a prompt does with every element of a product's output: the experts' activation, their weighted sum, the gates and the
 * mean of streams. Each work-item has one element (windows do these steps inside their products, rows.h). Limit: the launch. */
#include "dialect.h"

#define GROUP 64
#define COMBINE_AHEAD 12 /* experts' outputs that are read at once */

/* h = silu(g) * u, [rows][width] in ld floats each; h may be g. grid: (ceil(width / 64), rows). */
KERNEL(GROUP) st_silu_mul(global float *h, global const float *g, global const float *u, uint width, uint ldh, uint ld)
{
    const uint i = st_group() * GROUP + st_item(), row = st_group_y();
    if (i < width)
        h[(ulong)row * ldh + i] = st_siluf(g[(ulong)row * ld + i]) * u[(ulong)row * ld + i];
}

/* y = sum over a row's choice, best first, of weight * o[where], then + shared * o[routed + row]. grid: (ceil(hidden / 64), rows). */
KERNEL(GROUP) st_combine_experts(global float *restrict y, global const float *restrict o, global const float *restrict weight,
                             global const int *restrict where, global const float *restrict shared, uint hidden, uint used,
                             uint routed)
{
    const uint i = st_group() * GROUP + st_item(), row = st_group_y();
    if (i >= hidden)
        return;
    const float last = o[(ulong)(routed + row) * hidden + i], factor = shared[row];
    float sum = 0.0f;
    for (uint first = 0; first < used; first += COMBINE_AHEAD) { /* all reads before the sum that waits for them */
        float v[COMBINE_AHEAD], w[COMBINE_AHEAD];
        UNROLL
        for (uint k = 0; k < COMBINE_AHEAD; k++) {
            const uint p = row * used + (first + k < used ? first + k : first);
            w[k] = weight[p];
            v[k] = o[(ulong)(uint)where[p] * hidden + i];
        }
        UNROLL
        for (uint k = 0; k < COMBINE_AHEAD; k++)
            if (first + k < used)
                sum = st_fma(w[k], v[k], sum);
    }
    y[(ulong)row * hidden + i] = st_fma(factor, last, sum);
}

/* lo = silu(lo / streams) (kind 0) or inj = 2 sigmoid(inj / streams) (kind 1), in place. grid: (ceil(count / 64), 1). */
KERNEL(GROUP) st_stream_gate(global float *restrict v, uint count, uint streams, uint kind)
{
    const uint i = st_group() * GROUP + st_item();
    if (i < count) {
        const float x = v[i] * (1.0f / (float)streams);
        v[i] = kind ? 2.0f * st_sigmoidf(x) : st_siluf(x);
    }
}

/* m = mean over streams of sigmoid(gate) * x. grid: (ceil(hidden / 64), rows). */
KERNEL(GROUP) st_stream_mean(global float *restrict m, global const float *restrict gate, global const float *restrict x, uint hidden,
                          uint streams)
{
    const uint i = st_group() * GROUP + st_item(), row = st_group_y();
    if (i >= hidden)
        return;
    float sum = 0.0f;
    for (uint c = 0; c < streams; c++) {
        const ulong at = ((ulong)row * streams + c) * hidden + i;
        sum = st_fma(st_sigmoidf(gate[at]), x[at], sum);
    }
    m[(ulong)row * hidden + i] = sum / (float)streams;
}
