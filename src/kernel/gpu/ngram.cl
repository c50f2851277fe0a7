/* N-gram memory: decode of fetched table rows, gate, causal convolution into the residual.
 *
 * Limits: latency; the convolution moves three times the wide residual. */
#include "exchange.h"

#define GROUP 256

INLINE float ngram_half(global const uchar *at)
{
    return st_float_of_half((ushort)(at[0] | at[1] << 8));
}

/* Element i of an encoded row. Types as numbered in the file: F32 0, F16 1, Q4_0 2, Q5_1 7, Q8_0 8, IQ4_NL 20, BF16 30.
 */
INLINE float ngram_element(global const uchar *row, uint type, uint i)
{
    const uint block = i / 32, k = i % 32, low = k % 16;
    if (type == 0)
        return st_float_of((uint)row[4 * i] | (uint)row[4 * i + 1] << 8 | (uint)row[4 * i + 2] << 16 |
                           (uint)row[4 * i + 3] << 24);
    if (type == 1)
        return ngram_half(row + 2 * i);
    if (type == 30)
        return st_float_of((uint)row[2 * i] << 16 | (uint)row[2 * i + 1] << 24);
    if (type == 8) {
        global const uchar *b = row + block * 34;
        return ngram_half(b) * (float)(signed char)b[2 + k];
    }
    if (type == 7) {
        global const uchar *b = row + block * 24;
        const uint high = (uint)(b[4 + k / 8] >> (k % 8)) & 1u, nibble = (uint)(b[8 + low] >> (k / 16 * 4)) & 15u;
        return ngram_half(b) * (float)(nibble | high << 4) + ngram_half(b + 2);
    }
    global const uchar *b = row + block * 18;
    const uint nibble = (uint)(b[2 + low] >> (k / 16 * 4)) & 15u;
    if (type == 2)
        return ngram_half(b) * (float)((int)nibble - 8);
    uint value, other;
    st_lookup_nibbles(nibble, 0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u, &value, &other);
    return ngram_half(b) * (float)(signed char)value;
}

/* e[row][head] = fetched row index[row][head] of data, decoded. grid: (heads, rows). */
KERNEL(GROUP)
st_ngram_gather(global float *restrict e, global const uchar *restrict data, global const uint *restrict index,
                uint type, uint row_bytes, uint width, uint heads)
{
    const ulong place = (ulong)st_group_y() * heads + st_group();
    global const uchar *row = data + (ulong)index[place] * row_bytes;
    for (uint i = st_item(); i < width; i += GROUP)
        e[place * width + i] = ngram_element(row, type, i);
}

INLINE float ngram_inverse_rms(local uint *words, local float *partial, global const float *x, uint n, float eps)
{
    float sum = 0.0f;
    for (uint i = st_item(); i < n; i += GROUP)
        sum = st_fma(x[i], x[i], sum);
    return st_rsqrt(sum256(words, partial, sum) / (float)n + eps);
}

/* key becomes gv = sigmoid(compressed (norm(key) . norm(r))) * value, z its norm. grid: (streams, rows). */
KERNEL(GROUP)
st_ngram_gate(global float *restrict key, global float *restrict z, global const float *restrict value,
              global const float *restrict r, global const float *restrict norm_key,
              global const float *restrict norm_query, global const float *restrict norm_conv, uint hidden,
              uint streams, float eps)
{
    LOCAL_ARRAY(uint, words, GROUP);
    LOCAL_ARRAY(float, partial, 8);
    const uint c = st_group(), row = st_group_y(), gamma = c * hidden;
    const ulong at = ((ulong)row * streams + c) * hidden;
    const float ik = ngram_inverse_rms(words, partial, key + at, hidden, eps);
    st_barrier();
    const float iq = ngram_inverse_rms(words, partial, r + at, hidden, eps);
    st_barrier();
    float s = 0.0f;
    for (uint i = st_item(); i < hidden; i += GROUP)
        s = st_fma(key[at + i] * ik * norm_key[gamma + i], r[at + i] * iq * norm_query[gamma + i], s);
    s = sum256(words, partial, s) / st_sqrt((float)hidden);
    const float size = st_abs(s) > 1e-6f ? st_abs(s) : 1e-6f, root = st_sqrt(size);
    const float gate = st_sigmoidf(s > 0.0f ? root : s < 0.0f ? -root : 0.0f);
    st_barrier();
    float sum = 0.0f;
    for (uint i = st_item(); i < hidden; i += GROUP) {
        const float gv = gate * value[(ulong)row * hidden + i];
        key[at + i] = gv;
        sum = st_fma(gv, gv, sum);
    }
    const float iz = st_rsqrt(sum256(words, partial, sum) / (float)hidden + eps);
    for (uint i = st_item(); i < hidden; i += GROUP)
        z[at + i] = key[at + i] * iz * norm_conv[gamma + i];
}

/* A channel of the row's z into the ring when the row is one of the last of its sequence in the pass. ring:
 * [slots][length][wide], position p at p modulo length. */
INLINE void ngram_keep(global float *ring, global const float *z, global const int *slot, global const int *pos,
                       uint rows, uint row, uint ch, uint wide, uint length)
{
    if (row + length >= rows || slot[row + length] != slot[row])
        ring[((ulong)(uint)slot[row] * length + (uint)pos[row] % length) * wide + ch] = z[(ulong)row * wide + ch];
}

#define NGRAM_ROWS 16 /* rows that a work-item goes through */

/* r += gv + silu(causal convolution of z with taps dilation apart). A work-item has one channel of NGRAM_ROWS rows;
 * where these are all rows, the ring takes the last z of each sequence, otherwise st_ngram_ring must follow; rows that are
 * held go to kept [rows][wide] instead. grid: (ceil(wide / 256), ceil(rows / 16)). */
KERNEL(GROUP)
st_ngram_conv(global float *restrict r, global float *restrict ring, global float *restrict kept,
              global const float *restrict gv,
              global const float *restrict z, global const float *restrict conv, global const int *restrict slot,
              global const int *restrict pos, uint rows, uint wide, uint taps, uint dilation, uint hold)
{
    const uint ch = st_group() * GROUP + st_item(), length = (taps - 1) * dilation, first = st_group_y() * NGRAM_ROWS;
    const uint end = first + NGRAM_ROWS < rows ? first + NGRAM_ROWS : rows;
    if (ch >= wide)
        return;
    for (uint row = first; row < end; row++) {
        const uint p = (uint)pos[row], s = (uint)slot[row];
        float sum = 0.0f;
        for (uint t = 0; t < taps; t++) {
            const uint back = (taps - 1 - t) * dilation;
            if (back > p)
                continue;
            const float v = back <= row && (uint)slot[row - back] == s
                                ? z[(ulong)(row - back) * wide + ch]
                                : ring[((ulong)s * length + (p - back) % length) * wide + ch];
            sum = st_fma(conv[(ulong)t * wide + ch], v, sum);
        }
        const ulong at = (ulong)row * wide + ch;
        r[at] = r[at] + (gv[at] + st_siluf(sum));
    }
    for (uint row = first; row < end && hold; row++)
        kept[(ulong)row * wide + ch] = z[(ulong)row * wide + ch];
    for (uint row = first; row < end && rows <= NGRAM_ROWS && !hold; row++)
        ngram_keep(ring, z, slot, pos, rows, row, ch, wide, length);
}

/* The last z of each sequence of a prompt. grid: (ceil(wide / 256), rows). */
KERNEL(GROUP)
st_ngram_ring(global float *restrict ring, global const float *restrict z, global const int *restrict slot,
              global const int *restrict pos, uint rows, uint wide, uint length)
{
    const uint ch = st_group() * GROUP + st_item();
    if (ch < wide)
        ngram_keep(ring, z, slot, pos, rows, st_group_y(), ch, wide, length);
}
