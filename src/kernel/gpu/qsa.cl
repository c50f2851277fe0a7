/* Attention with a block index (kernel/qsa.h): norms and rotation, stores into the caches, pooled index keys, choice of
 * blocks, attention in splits of the positions.
 *
 * Caches: [slots][kv_heads][context][kv_bytes], row formats as in kernel/qsa.h. flags: bit 0 outputs are gated (a
 * head's query is followed by its gate), bit 1 rotation of neighbours, bit 2 queries and keys are normed, bits 4.. type
 * of the cache (0 f32, 1 f16, 2 int8, 3 q4). Limits: latency for windows; for prompts the multiplications of attention,
 * 2 * heads * dim for each row and allowed position. */
#include "halves.h"
#include "quantize.h"

#define GROUP 256
#define DIM_MAX 256
#define QSA_RING 16 /* ST_QSA_RING of kernel/qsa.h */

#define QSA_GATED(flags) ((flags)&1u)
#define QSA_NEIGHBOURS(flags) (((flags) >> 1) & 1u)
#define QSA_NORMED(flags) (((flags) >> 2) & 1u)
#define QSA_KV(flags) ((flags) >> 4)

/* sin and cos of x >= 0 below 2^20: a multiple of pi / 2 is taken away in three steps that fma makes exact enough (pi /
 * 2 in parts of 24 bits), then polynomials on [-pi / 4, pi / 4]. Error about 2^-23. */
INLINE void qsa_sincos(float x, float *s, float *c)
{
    const float k = (float)st_round_even(x * 0.636619772367581343f);
    float r = st_fma(k, -1.57079637050628662109375f, x);
    r = st_fma(k, 4.37113900018624283e-8f, r);
    r = st_fma(k, 1.71512451810e-15f, r);
    const float z = r * r;
    float a = st_fma(z, 2.718311493989822e-6f, -1.98393348360966317e-4f);
    a = st_fma(a, z, 8.3333293858894632e-3f);
    a = st_fma(a, z, -1.66666666416265235e-1f);
    const float sine = st_fma(a * z, r, r);
    float b = st_fma(z, 2.43904487962774090e-5f, -1.38867637746099294e-3f);
    b = st_fma(b, z, 4.16666233237390631e-2f);
    b = st_fma(b, z, -4.99999997251031003e-1f);
    const float cosine = st_fma(b, z, 1.0f);
    const uint quarter = (uint)(int)k & 3u;
    const float u = quarter & 1u ? cosine : sine, v = quarter & 1u ? sine : cosine;
    *s = quarter & 2u ? -u : u;
    *c = quarter == 1u || quarter == 2u ? -v : v;
}

/* x: dim floats of local memory, read and written by the whole group between barriers. */
INLINE void qsa_norm(local uint *words, local float *partial, local float *x, global const float *gamma, uint dim,
                     float eps)
{
    float sum = 0.0f;
    for (uint i = st_item(); i < dim; i += GROUP)
        sum = st_fma(x[i], x[i], sum);
    const float inverse = st_rsqrt(sum256(words, partial, sum) / (float)dim + eps);
    for (uint i = st_item(); i < dim; i += GROUP)
        x[i] = x[i] * inverse * gamma[i];
    st_barrier();
}

INLINE void qsa_rotate(local float *x, global const float *freq, global const uchar *axis, global const int *at,
                       uint rot, uint neighbours, float gain)
{
    const uint i = st_item(), half_rot = rot / 2;
    if (i < half_rot) {
        float s, c;
        qsa_sincos((float)at[axis[i]] * freq[i], &s, &c);
        s = s * (1.0f + gain);
        c = c * (1.0f + gain);
        const uint a = neighbours ? 2 * i : i, b = neighbours ? 2 * i + 1 : i + half_rot;
        const float u = x[a], v = x[b];
        x[a] = u * c - v * s;
        x[b] = v * c + u * s;
    }
    st_barrier();
}

INLINE void qsa_put_half(global uchar *to, uint i, float v)
{
    ((global ushort *)to)[i] = st_half_of_float(v);
}

/* A block of int8: 64 elements by one work-item. */
INLINE void qsa_store_int8(global uchar *to, local const float *x, uint dim, uint block)
{
    float most = 0.0f;
    for (uint i = 0; i < 64; i++)
        most = st_abs(x[block * 64 + i]) > most ? st_abs(x[block * 64 + i]) : most;
    const float d = most / 127.0f, inverse = d > 0.0f ? 1.0f / d : 0.0f;
    for (uint i = 0; i < 64; i++)
        to[block * 64 + i] = (uchar)st_round_even(x[block * 64 + i] * inverse);
    *(global float *)(to + dim + block * 4) = d;
}

INLINE int qsa_nibble(float v)
{
    v = v > 0.0f ? v : 0.0f;
    return st_round_even(v < 15.0f ? v : 15.0f);
}

/* A block of q4: 32 elements by one work-item. */
INLINE void qsa_store_q4(global uchar *to, local const float *x, uint dim, uint block)
{
    float low = x[block * 32], high = low;
    for (uint i = 1; i < 32; i++) {
        const float v = x[block * 32 + i];
        low = v < low ? v : low;
        high = v > high ? v : high;
    }
    const ushort hd = st_half_of_float((high - low) / 15.0f + 0.0f),
                 hm = st_half_of_float(low + 0.0f); /* + 0: never -0 */
    const float d = st_float_of_half(hd), m = st_float_of_half(hm), inverse = d > 0.0f ? 1.0f / d : 0.0f;
    for (uint i = 0; i < 16; i++)
        to[block * 16 + i] = (uchar)(qsa_nibble((x[block * 32 + i] - m) * inverse) |
                                     qsa_nibble((x[block * 32 + 16 + i] - m) * inverse) << 4);
    *(global uint *)(to + dim / 2 + block * 4) = (uint)hd | (uint)hm << 16;
}

INLINE void qsa_store(global uchar *to, local const float *x, uint dim, uint type)
{
    const uint item = st_item();
    if (type == 2) {
        if (item < dim / 64)
            qsa_store_int8(to, x, dim, item);
    } else if (type == 3) {
        if (item < dim / 32)
            qsa_store_q4(to, x, dim, item);
    } else {
        for (uint i = item; i < dim; i += GROUP) {
            if (type == 0)
                ((global float *)to)[i] = x[i];
            else
                qsa_put_half(to, i, x[i]);
        }
    }
    st_barrier();
}

/* Key of the block that a row completes: mean of its raw keys (rows of this pass, or the ring), norm, rotation at the
 * position of its first token. x: room for a key. */
INLINE void qsa_pool(local uint *words, local float *partial, local float *x, global float *pooled,
                     global const float *ik, global const float *ring, global const int *axis_ring,
                     global const float *ik_norm, global const float *freq, global const uchar *axis,
                     global const int *row_axis, global const int *slot, uint row, uint p, uint dim, uint ratio,
                     uint blocks, uint rot, uint flags, float eps, float gain)
{
    const uint item = st_item(), s = (uint)slot[row];
    uint in_pass = 0; /* how many rows before this one are of the same sequence, up to the block's length */
    while (in_pass + 1 < ratio && in_pass < row && (uint)slot[row - in_pass - 1] == s)
        in_pass++;
    float sum = 0.0f;
    for (uint back = ratio; back-- > 0 && item < dim;) {
        const ulong place = back <= in_pass ? (ulong)(row - back) : (ulong)s * QSA_RING + (p - back) % QSA_RING;
        sum = sum + (back <= in_pass ? ik : ring)[place * dim + item];
    }
    if (item < dim)
        x[item] = sum / (float)ratio;
    st_barrier();
    qsa_norm(words, partial, x, ik_norm, dim, eps);
    const uint back = ratio - 1;
    qsa_rotate(x, freq, axis,
               back <= in_pass ? row_axis + 3 * (row - back) : axis_ring + 3 * (s * QSA_RING + (p - back) % QSA_RING),
               rot, QSA_NEIGHBOURS(flags), gain);
    if (item < dim)
        pooled[((ulong)s * blocks + p / ratio) * dim + item] = x[item];
}

/* Norm and rotation of queries and index queries in place; keys and values into the caches; pooled index keys (ratio
 * above 0). grid: (heads + kv_heads + index_heads + 1, rows), heads of all kinds in a line, then the block's key. */
KERNEL(GROUP)
st_qsa_heads(global float *restrict q, global uchar *restrict k_cache, global uchar *restrict v_cache,
             global float *restrict iq, global float *restrict pooled, global const float *restrict k,
             global const float *restrict v, global const float *restrict ik, global const float *restrict ring,
             global const int *restrict axis_ring, global const float *restrict q_norm,
             global const float *restrict k_norm, global const float *restrict iq_norm,
             global const float *restrict ik_norm, global const float *restrict freq, global const uchar *restrict axis,
             global const int *restrict row_axis, global const int *restrict slot, global const int *restrict pos,
             uint heads, uint kv_heads, uint index_heads, uint dim, uint index_dim, uint context, uint ratio, uint rot,
             uint flags, uint kv_bytes, float eps, float gain)
{
    LOCAL_ARRAY(uint, words, GROUP);
    LOCAL_ARRAY(float, partial, 8);
    LOCAL_ARRAY(float, x, DIM_MAX);
    const uint h = st_group(), row = st_group_y(), item = st_item(), p = (uint)pos[row];
    const bool is_query = h < heads, is_key = !is_query && h < heads + kv_heads;
    if (h == heads + kv_heads + index_heads) {
        if (ratio > 0 && (p + 1) % ratio == 0)
            qsa_pool(words, partial, x, pooled, ik, ring, axis_ring, ik_norm, freq, axis, row_axis, slot, row, p,
                     index_dim, ratio, context / ratio, rot, flags, eps, gain);
        return;
    }
    const uint n = is_query || is_key ? dim : index_dim, g = h - heads;
    global float *in_place = is_query ? q + ((ulong)row * heads + h) * (QSA_GATED(flags) ? 2 : 1) * dim
                                      : iq + ((ulong)row * index_heads + (h - heads - kv_heads)) * index_dim;
    global const float *from = is_key ? k + ((ulong)row * kv_heads + g) * dim : in_place;
    if (item < n)
        x[item] = from[item];
    st_barrier();
    if (QSA_NORMED(flags) || !(is_query || is_key))
        qsa_norm(words, partial, x, is_query ? q_norm : is_key ? k_norm : iq_norm, n, eps);
    qsa_rotate(x, freq, axis, row_axis + 3 * row, rot, QSA_NEIGHBOURS(flags), gain);
    if (!is_key) {
        if (item < n)
            in_place[item] = x[item];
        return;
    }
    const ulong at = (((ulong)(uint)slot[row] * kv_heads + g) * context + p) * kv_bytes;
    qsa_store(k_cache + at, x, dim, QSA_KV(flags));
    if (item < dim)
        x[item] = v[((ulong)row * kv_heads + g) * dim + item];
    st_barrier();
    qsa_store(v_cache + at, x, dim, QSA_KV(flags));
}

/* ---- choice of blocks ---- */

#define SCORE_EACH 4 /* blocks that 32 neighbours score one after the other */

/* scores[row - first][block] of the rows of a window that see more than keep blocks: the sum over the index heads of
 * the products that are above 0. 32 neighbours have a block and share its elements. grid: (ceil(blocks / 32), rows from
 * first on). */
KERNEL(GROUP)
st_qsa_score(global float *restrict scores, global const float *restrict iq, global const float *restrict pooled,
             global const int *restrict slot, global const int *restrict pos, uint index_heads, uint dim, uint ratio,
             uint keep, uint blocks, uint first)
{
    LOCAL_ARRAY(uint, words, GROUP);
    const uint row = first + st_group_y(), seen = ((uint)pos[row] + 1) / ratio, lane = st_item() % 32;
    const uint unit = st_group() * (GROUP / 32) + st_item() / 32;
    if (seen <= keep || st_group() * (GROUP / 32) * SCORE_EACH >= seen)
        return;
    global const float *query = iq + (ulong)row * index_heads * dim;
    for (uint i = 0; i < SCORE_EACH; i++) {
        const uint block = unit * SCORE_EACH + i, there = block < seen ? block : seen - 1;
        global const float *at = pooled + ((ulong)(uint)slot[row] * blocks + there) * dim;
        float key[DIM_MAX / 32], score = 0.0f;
        UNROLL
        for (uint d = 0; d < DIM_MAX / 32; d++)
            key[d] = 32 * d + lane < dim ? at[32 * d + lane] : 0.0f;
        for (uint h = 0; h < index_heads; h++) {
            float dot = 0.0f;
            UNROLL
            for (uint d = 0; d < DIM_MAX / 32; d++)
                dot = st_fma(32 * d + lane < dim ? query[h * dim + 32 * d + lane] : 0.0f, key[d], dot);
            dot = sum32(words, dot);
            score = score + (dot > 0.0f ? dot : 0.0f);
        }
        if (lane == 0 && block < seen)
            scores[(ulong)st_group_y() * blocks + block] = score;
    }
}

#define SCORE_ROWS 16   /* rows of a prompt that share the keys of a tile */
#define SCORE_BLOCKS 64 /* blocks of a tile */
#define SCORE_HEADS 4   /* index heads at a time */
#define SCORE_SLICE 32  /* elements of queries and keys in local memory at a time */
#define SCORE_LINE (SCORE_SLICE + 4)

/* Four elements from d on of line (0 there where inside is false). */
INLINE void qsa_stage(local float *to, global const float *from, bool inside)
{
    const float4 none = {0.0f, 0.0f, 0.0f, 0.0f};
    *(local float4 *)to = inside ? *(global const float4 *)from : none;
}

/* The same for prompts, as a product of matrices: a work-item has all heads of one row with four blocks. The rows of a
 * tile that belong to one sequence are worked on together. grid: (ceil(blocks / 64), ceil(rows / 16)); dim is a
 * multiple of 4. */
KERNEL(GROUP)
st_qsa_score_tile(global float *restrict scores, global const float *restrict iq, global const float *restrict pooled,
                  global const int *restrict slot, global const int *restrict pos, uint index_heads, uint dim,
                  uint ratio, uint keep, uint blocks, uint first, uint rows)
{
    LOCAL_ARRAY(float, queries, SCORE_ROWS *SCORE_HEADS *SCORE_LINE);
    LOCAL_ARRAY(float, keys, SCORE_BLOCKS *SCORE_LINE);
    const uint item = st_item(), mine = item / 16, quad = item % 16, b0 = st_group() * SCORE_BLOCKS;
    const uint row0 = st_group_y() * SCORE_ROWS, count = rows - row0 < SCORE_ROWS ? rows - row0 : SCORE_ROWS;
    for (uint from = 0, to; from < count; from = to) {
        const uint s = (uint)slot[first + row0 + from];
        for (to = from + 1; to < count && (uint)slot[first + row0 + to] == s; to++)
            ;
        const uint most = ((uint)pos[first + row0 + to - 1] + 1) / ratio; /* what the last row sees */
        if (most <= keep || b0 >= most)
            continue;
        global const float *key = pooled + (ulong)s * blocks * dim;
        float score[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        for (uint h0 = 0; h0 < index_heads; h0 += SCORE_HEADS) {
            float dot[SCORE_HEADS][4];
            UNROLL
            for (uint h = 0; h < SCORE_HEADS; h++)
                dot[h][0] = dot[h][1] = dot[h][2] = dot[h][3] = 0.0f;
            for (uint d0 = 0; d0 < dim; d0 += SCORE_SLICE) {
                st_barrier();
                for (uint i = item; i < SCORE_ROWS * SCORE_HEADS * (SCORE_SLICE / 4); i += GROUP) {
                    const uint line = i / (SCORE_SLICE / 4), d = d0 + i % (SCORE_SLICE / 4) * 4, r = line / SCORE_HEADS;
                    const uint h = h0 + line % SCORE_HEADS;
                    qsa_stage(queries + line * SCORE_LINE + d - d0,
                              iq + ((ulong)(first + row0 + r) * index_heads + h) * dim + d,
                              r >= from && r < to && h < index_heads && d < dim);
                }
                for (uint i = item; i < SCORE_BLOCKS * (SCORE_SLICE / 4); i += GROUP) {
                    const uint line = i / (SCORE_SLICE / 4), d = d0 + i % (SCORE_SLICE / 4) * 4;
                    qsa_stage(keys + line * SCORE_LINE + d - d0, key + (ulong)(b0 + line) * dim + d,
                              b0 + line < most && d < dim);
                }
                st_barrier();
                for (uint d = 0; d < SCORE_SLICE; d += 4) {
                    float4 x[SCORE_HEADS], y[4];
                    UNROLL
                    for (uint h = 0; h < SCORE_HEADS; h++)
                        x[h] = *(local const float4 *)(queries + (mine * SCORE_HEADS + h) * SCORE_LINE + d);
                    UNROLL
                    for (uint i = 0; i < 4; i++)
                        y[i] = *(local const float4 *)(keys + (quad + 16 * i) * SCORE_LINE + d);
                    UNROLL
                    for (uint h = 0; h < SCORE_HEADS; h++)
                        UNROLL
                    for (uint i = 0; i < 4; i++) {
                        dot[h][i] = st_fma(x[h].x, y[i].x, dot[h][i]);
                        dot[h][i] = st_fma(x[h].y, y[i].y, dot[h][i]);
                        dot[h][i] = st_fma(x[h].z, y[i].z, dot[h][i]);
                        dot[h][i] = st_fma(x[h].w, y[i].w, dot[h][i]);
                    }
                }
            }
            UNROLL
            for (uint i = 0; i < 4; i++)
                UNROLL
            for (uint h = 0; h < SCORE_HEADS; h++)
                score[i] = score[i] + (dot[h][i] > 0.0f ? dot[h][i] : 0.0f);
        }
        const bool own = mine >= from && mine < to;
        const uint seen = own ? ((uint)pos[first + row0 + mine] + 1) / ratio : 0;
        UNROLL
        for (uint i = 0; i < 4; i++)
            if (seen > keep && b0 + quad + 16 * i < seen)
                scores[(ulong)(row0 + mine) * blocks + b0 + quad + 16 * i] = score[i];
    }
}

/* Number of blocks below seen whose score's bits are at least bound (scores are >= 0, so bits order like numbers). */
INLINE uint qsa_count(local uint *words, local float *partial, global const float *scores, uint seen, uint bound)
{
    uint count = 0;
    for (uint b = st_item(); b < seen; b += GROUP)
        count += st_bits_of(scores[b]) >= bound;
    /* Counts below 2^24 are exact as floats. */
    const float sum = sum256(words, partial, (float)count);
    st_barrier();
    return (uint)sum;
}

/* The row's list of allowed positions: the keep best blocks (higher score first, then lower index) in ascending order,
 * then the tail; count -1 where all positions are allowed. The last raw index keys of each span go into the ring (after
 * st_qsa_heads, which reads it). grid: (1, rows from first on). chosen: [rows][limit]; rows: of the pass. */
KERNEL(GROUP)
st_qsa_choose(global uint *restrict chosen, global int *restrict count, global float *restrict ring,
              global int *restrict axis_ring, global const float *restrict scores_all, global const float *restrict ik,
              global const int *restrict row_axis, global const int *restrict slot, global const int *restrict pos,
              uint ratio, uint keep, uint limit, uint blocks, uint first, uint rows, uint dim)
{
    LOCAL_ARRAY(uint, words, GROUP);
    LOCAL_ARRAY(float, partial, 8);
    LOCAL_ARRAY(uint, room, BEFORE_WORDS);
    const uint row = first + st_group_y(), item = st_item(), visible = (uint)pos[row] + 1, seen = visible / ratio;
    if (row + QSA_RING >= rows || slot[row + QSA_RING] != slot[row]) {
        const ulong at = (ulong)(uint)slot[row] * QSA_RING + (visible - 1) % QSA_RING;
        for (uint i = item; i < dim; i += GROUP)
            ring[at * dim + i] = ik[(ulong)row * dim + i];
        if (item < 3)
            axis_ring[at * 3 + item] = row_axis[3 * row + item];
    }
    if (seen <= keep) {
        if (item == 0)
            count[row] = -1;
        return;
    }
    global const float *scores = scores_all + (ulong)st_group_y() * blocks;
    uint bound = 0; /* at least keep scores are not below it; in the end the largest such number, or exactly keep are
                       not below it */
    for (uint bit = 0x80000000u; bit > 0; bit /= 2) {
        const uint n = qsa_count(words, partial, scores, seen, bound | bit);
        if (n >= keep)
            bound |= bit;
        if (n == keep)
            break;
    }
    const uint above = bound == 0xffffffffu ? 0 : qsa_count(words, partial, scores, seen, bound + 1);
    /* A work-item has a stretch of neighbouring blocks. */
    const uint each = (seen + GROUP - 1) / GROUP, from = item * each < seen ? item * each : seen;
    const uint to = from + each < seen ? from + each : seen;
    uint equal = 0, greater = 0, total;
    for (uint b = from; b < to; b++) {
        equal += st_bits_of(scores[b]) == bound;
        greater += st_bits_of(scores[b]) > bound;
    }
    const uint equal_before = before256(room, equal, &total), left = keep - above;
    uint equal_left = equal_before < left ? left - equal_before : 0;
    uint place = before256(room, greater + (equal < equal_left ? equal : equal_left), &total);
    global uint *list = chosen + (ulong)row * limit;
    for (uint b = from; b < to; b++) {
        const uint bits = st_bits_of(scores[b]);
        if (bits < bound || (bits == bound && equal_left == 0))
            continue;
        equal_left -= bits == bound;
        for (uint i = 0; i < ratio; i++)
            list[place * ratio + i] = b * ratio + i;
        place++;
    }
    for (uint p = seen * ratio + item; p < visible; p += GROUP)
        list[keep * ratio + p - seen * ratio] = p;
    if (item == 0)
        count[row] = (int)(keep * ratio + visible - seen * ratio);
}

/* count = -1 for every row: all positions are allowed. grid: (ceil(rows / 256), 1). */
KERNEL(GROUP) st_qsa_dense(global int *restrict count, uint rows)
{
    const uint row = st_group() * GROUP + st_item();
    if (row < rows)
        count[row] = -1;
}

/* ---- attention ---- */

#define QSA_GROUP 128 /* work-items of a group */
#define QSA_TILE 64   /* positions of a step */

/* A few elements of a stored row as they are in memory. Fetching and decoding are apart, so that several loads are
 * under way before the first is waited for. */
struct qsa_raw {
    uint w[8];
};

/* Elements d .. d + 7; d is a multiple of 8. int8 and q4: two words of codes, then the block's scale (and minimum). */
INLINE struct qsa_raw qsa_fetch8(global const uchar *row, uint type, uint dim, uint d)
{
    struct qsa_raw r;
    if (type == 1) {
        const uint4 a = *(global const uint4 *)(row + 2 * d);
        r.w[0] = a.x;
        r.w[1] = a.y;
        r.w[2] = a.z;
        r.w[3] = a.w;
    } else if (type == 0) {
        const uint4 a = *(global const uint4 *)(row + 4 * d), b = *(global const uint4 *)(row + 4 * d + 16);
        r.w[0] = a.x;
        r.w[1] = a.y;
        r.w[2] = a.z;
        r.w[3] = a.w;
        r.w[4] = b.x;
        r.w[5] = b.y;
        r.w[6] = b.z;
        r.w[7] = b.w;
    } else {
        global const uint *q = (global const uint *)(row + (type == 2 ? d : d / 32 * 16 + d % 16));
        r.w[0] = q[0];
        r.w[1] = q[1];
        r.w[2] = *(global const uint *)(row + (type == 2 ? dim + d / 64 * 4 : dim / 2 + d / 32 * 4));
    }
    return r;
}

/* Four codes of a word. */
INLINE void qsa_open_codes(float *x, uint codes, uint type, uint d, uint scale)
{
    if (type == 2) {
        UNROLL
        for (uint i = 0; i < 4; i++)
            x[i] = (float)(signed char)(codes >> 8 * i) * st_float_of(scale);
    } else {
        const float step = st_float_of_half((ushort)scale), least = st_float_of_half((ushort)(scale >> 16));
        UNROLL
        for (uint i = 0; i < 4; i++)
            x[i] = st_fma((float)(codes >> (8 * i + d % 32 / 16 * 4) & 15u), step, least);
    }
}

INLINE void qsa_open8(float *x, const struct qsa_raw *r, uint type, uint d)
{
    if (type == 1) {
        UNROLL
        for (uint i = 0; i < 4; i++) {
            x[2 * i] = st_float_of_half((ushort)r->w[i]);
            x[2 * i + 1] = st_float_of_half((ushort)(r->w[i] >> 16));
        }
    } else if (type == 0) {
        UNROLL
        for (uint i = 0; i < 8; i++)
            x[i] = st_float_of(r->w[i]);
    } else {
        qsa_open_codes(x, r->w[0], type, d, r->w[2]);
        qsa_open_codes(x + 4, r->w[1], type, d, r->w[2]);
    }
}

/* The same for elements d .. d + 3, in four words; d is a multiple of 4. */
INLINE uint4 qsa_fetch4(global const uchar *row, uint type, uint dim, uint d)
{
    uint4 r = {0, 0, 0, 0};
    if (type == 1) {
        const ulong w = *(global const ulong *)(row + 2 * d);
        r.x = (uint)w;
        r.y = (uint)(w >> 32);
    } else if (type == 0) {
        r = *(global const uint4 *)(row + 4 * d);
    } else {
        r.x = *(global const uint *)(row + (type == 2 ? d : d / 32 * 16 + d % 16));
        r.y = *(global const uint *)(row + (type == 2 ? dim + d / 64 * 4 : dim / 2 + d / 32 * 4));
    }
    return r;
}

INLINE float4 qsa_open4(uint4 r, uint type, uint d)
{
    float x[4];
    if (type == 1) {
        x[0] = st_float_of_half((ushort)r.x);
        x[1] = st_float_of_half((ushort)(r.x >> 16));
        x[2] = st_float_of_half((ushort)r.y);
        x[3] = st_float_of_half((ushort)(r.y >> 16));
    } else if (type == 0) {
        x[0] = st_float_of(r.x);
        x[1] = st_float_of(r.y);
        x[2] = st_float_of(r.z);
        x[3] = st_float_of(r.w);
    } else {
        qsa_open_codes(x, r.x, type, d, r.y);
    }
    const float4 v = {x[0], x[1], x[2], x[3]};
    return v;
}

/* acc + w * v */
INLINE float4 qsa_add(float4 acc, float w, float4 v)
{
    acc.x = st_fma(w, v.x, acc.x);
    acc.y = st_fma(w, v.y, acc.y);
    acc.z = st_fma(w, v.z, acc.z);
    acc.w = st_fma(w, v.w, acc.w);
    return acc;
}

#define QSA_HEADS_MAX 12

/* One split of the allowed positions of a row for up to at_once query heads of one key head, with a running softmax.
 * splits 1: out [rows][heads][dim] is the result, gated. More: acc [rows][heads][splits][dim], and (largest score, sum)
 * in state [rows][heads] [splits][2], for st_qsa_join. at_once is a constant of the kernel, so that sums stay in
 * registers.
 *
 * Scores: four neighbours share two positions of the tile, each has every fourth run of eight elements, for all heads.
 * Values: a work-item has four elements of all heads, and a share of the positions. query: in the end the sums of
 * values. */
INLINE void qsa_attend(uint at_once, local float *query, local float *weight, local float *factor, local uint *place,
                       local uint *words, global float *restrict out, global float *restrict acc_all,
                       global float *restrict state, global const float *restrict q,
                       global const uchar *restrict k_cache, global const uchar *restrict v_cache,
                       global const uint *restrict chosen, global const int *restrict count,
                       global const int *restrict slot, global const int *restrict pos, uint heads, uint kv_heads,
                       uint dim, uint context, uint limit, uint flags, uint kv_bytes, uint splits)
{
    const uint item = st_item(), row = st_group_y(), type = QSA_KV(flags), each = heads / kv_heads;
    const uint parts = (each + at_once - 1) / at_once, split = st_group() % splits, part = st_group() / splits % parts;
    const uint g = st_group() / splits / parts, head = g * each + part * at_once;
    const uint own = each - part * at_once < at_once ? each - part * at_once : at_once;
    const int listed = count[row];
    const uint all = listed < 0 ? (uint)pos[row] + 1 : (uint)listed;
    /* whole tiles go to the splits, so that cuts lie at multiples of a tile */
    const uint tiles = (all + QSA_TILE - 1) / QSA_TILE, from = tiles * split / splits * QSA_TILE;
    const uint stop = tiles * (split + 1) / splits * QSA_TILE, to = stop < all ? stop : all;
    global const uint *list = chosen + (ulong)row * limit;
    const ulong base = ((ulong)(uint)slot[row] * kv_heads + g) * context;
    global const float *qr = q + ((ulong)row * heads + head) * (QSA_GATED(flags) ? 2 : 1) * dim;
    const float scale = st_rsqrt((float)dim);
    for (uint i = item; i < at_once * DIM_MAX; i += QSA_GROUP) {
        const uint h = i / DIM_MAX, d = i % DIM_MAX;
        query[i] = h < own && d < dim ? qr[(ulong)h * (QSA_GATED(flags) ? 2 : 1) * dim + d] * scale : 0.0f;
    }
    const uint quads = dim / 4, sharers = QSA_GROUP / quads, quad = item % quads, share = item / quads;
    const uint soft =
        item / 8 < at_once ? item / 8 : 0; /* the head whose softmax this work-item and its neighbours do */
    float top = -INFINITY, sum = 0.0f;
    float4 acc[QSA_HEADS_MAX];
    UNROLL
    for (uint h = 0; h < at_once; h++)
        acc[h].x = acc[h].y = acc[h].z = acc[h].w = 0.0f;
    for (uint t0 = from; t0 < to; t0 += QSA_TILE) {
        const uint n = to - t0 < QSA_TILE ? to - t0 : QSA_TILE;
        st_barrier();
        if (item < QSA_TILE) {
            const uint t = t0 + (item < n ? item : n - 1);
            place[item] = listed < 0 ? t : list[t];
        }
        st_barrier();
        const uint piece = item % 4, t = item / 32 * 16 + item % 32 / 4;
        global const uchar *first = k_cache + (base + place[t]) * kv_bytes;
        global const uchar *second = k_cache + (base + place[t + 8]) * kv_bytes;
        float dot[2][QSA_HEADS_MAX];
        UNROLL
        for (uint h = 0; h < at_once; h++)
            dot[0][h] = dot[1][h] = 0.0f;
        struct qsa_raw next0, next1;
        if (piece * 8 < dim) {
            next0 = qsa_fetch8(first, type, dim, piece * 8);
            next1 = qsa_fetch8(second, type, dim, piece * 8);
        }
        for (uint d = piece * 8; d < dim; d += 32) {
            float x[8], y[8];
            qsa_open8(x, &next0, type, d);
            qsa_open8(y, &next1, type, d);
            if (d + 32 < dim) {
                next0 = qsa_fetch8(first, type, dim, d + 32);
                next1 = qsa_fetch8(second, type, dim, d + 32);
            }
            UNROLL
            for (uint h = 0; h < at_once; h++) {
                UNROLL
                for (uint i = 0; i < 8; i += 4) {
                    const float4 v = *(local const float4 *)(query + h * DIM_MAX + d + i);
                    dot[0][h] = st_fma(v.x, x[i], dot[0][h]);
                    dot[1][h] = st_fma(v.x, y[i], dot[1][h]);
                    dot[0][h] = st_fma(v.y, x[i + 1], dot[0][h]);
                    dot[1][h] = st_fma(v.y, y[i + 1], dot[1][h]);
                    dot[0][h] = st_fma(v.z, x[i + 2], dot[0][h]);
                    dot[1][h] = st_fma(v.z, y[i + 2], dot[1][h]);
                    dot[0][h] = st_fma(v.w, x[i + 3], dot[0][h]);
                    dot[1][h] = st_fma(v.w, y[i + 3], dot[1][h]);
                }
            }
        }
        UNROLL
        for (uint h = 0; h < at_once; h++)
            UNROLL
        for (uint k = 0; k < 2; k++) {
            float v = dot[k][h];
            v = v + st_float_of(exchange(words, st_bits_of(v), 2));
            v = v + st_float_of(exchange(words, st_bits_of(v), 1));
            if (h % 4 == piece)
                weight[(t + 8 * k) * at_once + h] = t + 8 * k < n ? v : -INFINITY;
        }
        st_barrier();
        float score[QSA_TILE / 8], most = top, more = 0.0f;
        UNROLL
        for (uint i = 0; i < QSA_TILE / 8; i++) {
            score[i] = weight[(8 * i + item % 8) * at_once + soft];
            most = score[i] > most ? score[i] : most;
        }
        for (uint mask = 4; mask > 0; mask /= 2) {
            const float other = st_float_of(exchange(words, st_bits_of(most), mask));
            most = other > most ? other : most;
        }
        UNROLL
        for (uint i = 0; i < QSA_TILE / 8; i++) {
            score[i] = st_expf(score[i] - most);
            more = more + score[i];
        }
        for (uint mask = 4; mask > 0; mask /= 2)
            more = more + st_float_of(exchange(words, st_bits_of(more), mask));
        const float keep = st_expf(top - most);
        sum = st_fma(sum, keep, more);
        top = most;
        if (item / 8 < at_once) {
            UNROLL
            for (uint i = 0; i < QSA_TILE / 8; i++)
                weight[(8 * i + item % 8) * at_once + soft] = score[i];
            if (item % 8 == 0)
                factor[soft] = keep;
        }
        st_barrier();
        UNROLL
        for (uint h = 0; h < at_once; h++) {
            const float k = factor[h];
            acc[h].x = acc[h].x * k;
            acc[h].y = acc[h].y * k;
            acc[h].z = acc[h].z * k;
            acc[h].w = acc[h].w * k;
        }
        /* four positions at a time, so that their loads are under way together; the weight past the last is 0 */
        for (uint i = share; i < n && share < sharers; i += 4 * sharers) {
            uint4 value[4];
            UNROLL
            for (uint k = 0; k < 4; k++) {
                const uint at = i + k * sharers < QSA_TILE ? i + k * sharers : 0;
                value[k] = qsa_fetch4(v_cache + (base + place[at]) * kv_bytes, type, dim, quad * 4);
            }
            UNROLL
            for (uint k = 0; k < 4; k++) {
                if (i + k * sharers >= n)
                    break;
                const float4 v = qsa_open4(value[k], type, quad * 4);
                local const float4 *w = (local const float4 *)(weight + (i + k * sharers) * at_once);
                UNROLL
                for (uint h = 0; h < at_once; h += 4) {
                    acc[h] = qsa_add(acc[h], w[h / 4].x, v);
                    acc[h + 1] = qsa_add(acc[h + 1], w[h / 4].y, v);
                    acc[h + 2] = qsa_add(acc[h + 2], w[h / 4].z, v);
                    acc[h + 3] = qsa_add(acc[h + 3], w[h / 4].w, v);
                }
            }
        }
    }
    for (uint s = 0; s < sharers; s++) {
        st_barrier();
        if (share == s)
            UNROLL
        for (uint h = 0; h < at_once; h++) {
            local float4 *at = (local float4 *)(query + h * DIM_MAX + quad * 4);
            float4 v = acc[h];
            if (s > 0) {
                const float4 before = *at;
                v.x = before.x + v.x;
                v.y = before.y + v.y;
                v.z = before.z + v.z;
                v.w = before.w + v.w;
            }
            *at = v;
        }
    }
    if (item % 8 == 0 && item / 8 < at_once)
        factor[soft] = sum;
    st_barrier();
    const ulong to_head = (ulong)row * heads + head;
    if (splits > 1 && item % 8 == 0 && item / 8 < own) {
        state[((to_head + soft) * splits + split) * 2] = top;
        state[((to_head + soft) * splits + split) * 2 + 1] = sum;
    }
    for (uint i = item; i < own * dim && (splits == 1 || from < to); i += QSA_GROUP) {
        const uint h = i / dim, d = i % dim;
        const float v = query[h * DIM_MAX + d];
        if (splits > 1)
            acc_all[((to_head + h) * splits + split) * dim + d] = v;
        else
            out[(to_head + h) * dim + d] =
                v / factor[h] * (QSA_GATED(flags) ? st_sigmoidf(qr[(ulong)h * 2 * dim + dim + d]) : 1.0f);
    }
}

/* grid: (kv_heads * ceil(query heads of a key head / at_once) * splits, rows). dim: a multiple of 8. */
#define QSA_ATTEND(name, at_once) \
    KERNEL(QSA_GROUP) \
    name(global float *restrict out, global float *restrict acc, global float *restrict state, \
         global const float *restrict q, global const uchar *restrict k_cache, global const uchar *restrict v_cache, \
         global const uint *restrict chosen, global const int *restrict count, global const int *restrict slot, \
         global const int *restrict pos, uint heads, uint kv_heads, uint dim, uint context, uint limit, uint flags, \
         uint kv_bytes, uint splits) \
    { \
        LOCAL_ARRAY(float, query, (at_once)*DIM_MAX); \
        LOCAL_ARRAY(float, weight, QSA_TILE *(at_once)); \
        LOCAL_ARRAY(float, factor, 16); \
        LOCAL_ARRAY(uint, place, QSA_TILE); \
        LOCAL_ARRAY(uint, words, QSA_GROUP); \
        qsa_attend(at_once, query, weight, factor, place, words, out, acc, state, q, k_cache, v_cache, chosen, count, \
                   slot, pos, heads, kv_heads, dim, context, limit, flags, kv_bytes, splits); \
    }

QSA_ATTEND(st_qsa_attend_4, 4)
QSA_ATTEND(st_qsa_attend_12, 12)

/* ---- attention of prompts on binary16 keys and values by matrix units ----
 *
 * A group has one row and up to 12 query heads of a key head: rows of a 16 x 16 fragment. Queries and the weights of values are
 * each cut into two binary16 numbers, the upper 11 bits and the next 11, after a multiplication with a power of two that
 * keeps the lower one from becoming too small; keys and values are what they are. A tile is 32 positions: while scores are
 * made the values are on their way, and while values are added the keys of the next tile. Waves share positions and
 * halves of the elements for scores, elements for values. Limit: bytes of keys and values, 4 * dim for each row, key head and
 * allowed position, from the second-level cache; multiplications would take a third of that time. */

#define HALVES_HEADS 12
#define HALVES_TILE 32
#define HALVES_WEIGHT 16384.0f /* factor of the weights, which are at most 1 */
#define HALVES_WEIGHT_LINE (HALVES_TILE * 2 + 16)
#define HALVES_SCORE_LINE (HALVES_TILE + 4)
#define HALVES_LINE(dim) ((dim) * 2 + 16) /* bytes of 16 lines of a fragment are in different banks */
/* One array: queries (two parts of 16 lines), keys, values, weights (two parts), scores of two parts of the elements, factors
 * of the heads, places of two tiles. */
#define HALVES_AT_KEYS(dim) (32 * HALVES_LINE(dim))
#define HALVES_AT_VALUES(dim) (HALVES_AT_KEYS(dim) + HALVES_TILE * HALVES_LINE(dim))
#define HALVES_AT_WEIGHTS(dim) (HALVES_AT_VALUES(dim) + HALVES_TILE * HALVES_LINE(dim))
#define HALVES_AT_SCORES(dim) (HALVES_AT_WEIGHTS(dim) + 32 * HALVES_WEIGHT_LINE)
#define HALVES_AT_FACTORS(dim) (HALVES_AT_SCORES(dim) + 2 * 16 * HALVES_SCORE_LINE * 4)
#define HALVES_AT_PLACES(dim) (HALVES_AT_FACTORS(dim) + 16 * 4)
#define HALVES_BYTES(dim) (HALVES_AT_PLACES(dim) + 2 * HALVES_TILE * 4)

#if ST_TILE_HALVES

/* Starts the copies of a tile's rows of a cache. */
INLINE void halves_fetch(local uchar *to, global const uchar *cache, local const uint *place, uint dim)
{
    UNROLL
    for (uint k = 0; k < HALVES_TILE * dim / 8 / QSA_GROUP; k++) {
        const uint i = k * QSA_GROUP + st_item(), line = i / (dim / 8), at = i % (dim / 8) * 16;
        st_copy_issue((local uint4 *)(to + line * HALVES_LINE(dim) + at),
                      (global const uint4 *)(cache + (ulong)place[line] * (dim * 2) + at));
    }
    st_copies_commit();
}

/* v as two binary16 numbers, the second part's line `apart` bytes behind the first's. */
INLINE void halves_cut(local uchar *to, uint apart, float v)
{
    const ushort upper = st_half_of_float(v);
    *(local ushort *)to = upper;
    *(local ushort *)(to + apart) = st_half_of_float(v - st_float_of_half(upper));
}

/* The queries in two parts; returns what scores are to be multiplied with. words: QSA_GROUP words. */
INLINE float halves_queries(local uchar *memory, local float *words, global const float *q, uint stride, uint own, uint dim)
{
    const uint item = st_item();
    uint most = 0;
    for (uint i = item; i < own * dim; i += QSA_GROUP) {
        const uint bits = st_bits_of(q[(ulong)(i / dim) * stride + i % dim]) & 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    for (uint mask = 16; mask > 0; mask /= 2) {
        const uint other = st_shuffle_xor(most, mask);
        most = other > most ? other : most;
    }
    if (item % 32 == 0)
        words[item / 32] = st_float_of(most);
    st_barrier();
    most = 0;
    for (uint i = 0; i < QSA_GROUP / 32; i++)
        most = st_bits_of(words[i]) > most ? st_bits_of(words[i]) : most;
    /* exponents: 2^13 <= largest * factor < 2^14; factor and its inverse stay normal */
    const int exponent = (int)(most >> 23) - 127, shift = exponent < -100 ? 113 : 13 - exponent;
    const float factor = st_float_of((uint)(127 + shift) << 23);
    for (uint i = item; i < 16 * dim; i += QSA_GROUP) {
        const uint h = i / dim, d = i % dim;
        halves_cut(memory + h * HALVES_LINE(dim) + d * 2, 16 * HALVES_LINE(dim),
                   h < own ? q[(ulong)h * stride + d] * factor : 0.0f);
    }
    st_barrier();
    return st_float_of((uint)(127 - shift) << 23) * st_rsqrt((float)dim);
}

#define HALVES_WAVES (QSA_GROUP / ST_LANES)
#define HALVES_PARTS (HALVES_WAVES / 2) /* of the elements, for scores */

INLINE void halves_attend(uint dim, local uchar *memory, global float *restrict out, global const float *restrict q,
                          global const uchar *restrict k_cache, global const uchar *restrict v_cache,
                          global const uint *restrict chosen, global const int *restrict count,
                          global const int *restrict slot, global const int *restrict pos, uint heads, uint kv_heads,
                          uint context, uint limit, uint flags)
{
    const uint item = st_item(), wave = item / ST_LANES, row = st_group_y(), each = heads / kv_heads;
    const uint parts = (each + HALVES_HEADS - 1) / HALVES_HEADS, g = st_group() / parts;
    const uint head = g * each + st_group() % parts * HALVES_HEADS;
    const uint own = (g + 1) * each - head < HALVES_HEADS ? (g + 1) * each - head : HALVES_HEADS;
    const int listed = count[row];
    const uint all = listed < 0 ? (uint)pos[row] + 1 : (uint)listed;
    global const uint *list = chosen + (ulong)row * limit;
    const ulong base = ((ulong)(uint)slot[row] * kv_heads + g) * context * (dim * 2);
    global const uchar *keys = k_cache + base, *values = v_cache + base;
    const uint stride = (QSA_GATED(flags) ? 2 : 1) * dim;
    global const float *qr = q + ((ulong)row * heads + head) * stride;
    local uchar *key = memory + HALVES_AT_KEYS(dim), *value = memory + HALVES_AT_VALUES(dim);
    local uchar *weight = memory + HALVES_AT_WEIGHTS(dim);
    local float *score = (local float *)(memory + HALVES_AT_SCORES(dim)), *factor = (local float *)(memory + HALVES_AT_FACTORS(dim));
    local uint *place = (local uint *)(memory + HALVES_AT_PLACES(dim));
    if (item < 2 * HALVES_TILE) {
        const uint t = item < all ? item : all - 1;
        place[item] = listed < 0 ? t : list[t];
    }
    const float scale = halves_queries(memory, factor, qr, stride, own, dim);
    halves_fetch(key, keys, place, dim);
    /* scores: 16 positions and a part of the elements; values: elements from d0 on */
    const uint half_tile = wave % 2 * 16, part = wave / 2, d0 = wave * (dim / HALVES_WAVES);
    local const char *key_at = (local const char *)key + half_tile * HALVES_LINE(dim) + part * (dim / HALVES_PARTS) * 2;
    local const char *query_at = (local const char *)memory + part * (dim / HALVES_PARTS) * 2;
    struct st_tile_a upper[256 / 16 / HALVES_PARTS]; /* of the queries; there are not enough registers for both parts */
    UNROLL
    for (uint k = 0; k < dim / 16 / HALVES_PARTS; k++)
        upper[k] = st_tile_load_a(query_at, HALVES_LINE(dim), k * 32);
    float acc[256 / 16 / HALVES_WAVES][ST_TILE_VALUES], top = -INFINITY, sum = 0.0f;
    UNROLL
    for (uint n = 0; n < dim / 16 / HALVES_WAVES; n++)
        UNROLL
        for (uint v = 0; v < ST_TILE_VALUES; v++)
            acc[n][v] = 0.0f;
    for (uint t0 = 0, turn = 0; t0 < all; t0 += HALVES_TILE, turn ^= HALVES_TILE) {
        const uint left = all - t0, n = left < HALVES_TILE ? left : HALVES_TILE;
        halves_fetch(value, values, place + turn, dim);
        st_copies_wait(1);
        st_barrier();
        struct st_tile_sums small, large;
        UNROLL
        for (uint v = 0; v < ST_TILE_VALUES; v++)
            small.v[v] = large.v[v] = 0.0f;
        UNROLL
        for (uint k = 0; k < dim / 16 / HALVES_PARTS; k++) {
            const struct st_tile_b b = st_tile_load_b(key_at, HALVES_LINE(dim), k * 32);
            const struct st_tile_a lower = st_tile_load_a(query_at, HALVES_LINE(dim), 16 * HALVES_LINE(dim) + k * 32);
            st_tile_multiply_f16(&small, &lower, &b);
            st_tile_multiply_f16(&large, &upper[k], &b);
        }
        UNROLL
        for (uint v = 0; v < ST_TILE_VALUES; v++)
            score[(part * 16 + st_tile_row(v)) * HALVES_SCORE_LINE + half_tile + st_tile_column(v)] = large.v[v] + small.v[v];
        st_barrier();
        if (t0 + HALVES_TILE < all)
            halves_fetch(key, keys, place + (turn ^ HALVES_TILE), dim);
        else
            st_copies_commit();
        /* softmax: eight neighbours have a head */
        const uint h = item / 8;
        float mine[HALVES_TILE / 8], most = top, more = 0.0f;
        UNROLL
        for (uint i = 0; i < HALVES_TILE / 8; i++) {
            const uint t = 8 * i + item % 8;
            float v = score[h * HALVES_SCORE_LINE + t];
            if (HALVES_PARTS == 2)
                v = v + score[(16 + h) * HALVES_SCORE_LINE + t];
            mine[i] = t < n ? v * scale : -INFINITY;
            most = mine[i] > most ? mine[i] : most;
        }
        for (uint mask = 4; mask > 0; mask /= 2) {
            const float other = st_float_of(st_shuffle_xor(st_bits_of(most), mask));
            most = other > most ? other : most;
        }
        UNROLL
        for (uint i = 0; i < HALVES_TILE / 8; i++) {
            const float w = st_expf(mine[i] - most);
            more = more + w;
            halves_cut(weight + h * HALVES_WEIGHT_LINE + (8 * i + item % 8) * 2, 16 * HALVES_WEIGHT_LINE, w * HALVES_WEIGHT);
        }
        for (uint mask = 4; mask > 0; mask /= 2)
            more = more + st_float_of(st_shuffle_xor(st_bits_of(more), mask));
        const float keep = st_expf(top - most);
        sum = st_fma(sum, keep, more);
        top = most;
        if (item % 8 == 0)
            factor[h] = keep;
        if (item < HALVES_TILE) { /* of the tile after the next, in the place of this one */
            const uint t = t0 + 2 * HALVES_TILE + item < all ? t0 + 2 * HALVES_TILE + item : all - 1;
            place[turn + item] = listed < 0 ? t : list[t];
        }
        st_copies_wait(1);
        st_barrier();
        UNROLL
        for (uint m = 0; m < dim / 16 / HALVES_WAVES; m++) {
            struct st_tile_sums fresh;
            UNROLL
            for (uint v = 0; v < ST_TILE_VALUES; v++)
                fresh.v[v] = 0.0f;
            UNROLL
            for (uint k = 0; k < HALVES_TILE / 16; k++) {
                const struct st_tile_rows b = st_tile_load_rows((local const char *)value + d0 * 2, HALVES_LINE(dim),
                                                               k * 16 * HALVES_LINE(dim) + m * 32);
                UNROLL
                for (uint p = 0; p < 2; p++) { /* the small part first */
                    const struct st_tile_a a = st_tile_load_a((local const char *)weight, HALVES_WEIGHT_LINE,
                                                              (1 - p) * 16 * HALVES_WEIGHT_LINE + k * 32);
                    st_tile_multiply_rows(&fresh, &a, &b);
                }
            }
            UNROLL
            for (uint v = 0; v < ST_TILE_VALUES; v++)
                acc[m][v] = st_fma(acc[m][v], factor[st_tile_row(v)], fresh.v[v]);
        }
        st_barrier();
    }
    if (item % 8 == 0)
        factor[item / 8] = sum * HALVES_WEIGHT;
    st_barrier();
    UNROLL
    for (uint m = 0; m < dim / 16 / HALVES_WAVES; m++)
        UNROLL
        for (uint v = 0; v < ST_TILE_VALUES; v++) {
            const uint h = st_tile_row(v), d = d0 + m * 16 + st_tile_column(v);
            if (h < own)
                out[((ulong)row * heads + head + h) * dim + d] =
                    acc[m][v] / factor[h] * (QSA_GATED(flags) ? st_sigmoidf(qr[(ulong)h * stride + dim + d]) : 1.0f);
        }
}

/* grid: (kv_heads * ceil(query heads of a key head / 12), rows). The cache is binary16. */
#define QSA_HALVES(name, dim) \
    GROUPS_OF_A_UNIT(QSA_GROUP, 3) \
    KERNEL(QSA_GROUP) \
    name(global float *restrict out, global const float *restrict q, global const uchar *restrict k_cache, \
         global const uchar *restrict v_cache, global const uint *restrict chosen, global const int *restrict count, \
         global const int *restrict slot, global const int *restrict pos, uint heads, uint kv_heads, uint context, \
         uint limit, uint flags) \
    { \
        LOCAL_ARRAY(uchar, memory, HALVES_BYTES(dim)); \
        halves_attend(dim, memory, out, q, k_cache, v_cache, chosen, count, slot, pos, heads, kv_heads, context, limit, flags); \
    }

#else

/* The same work without such units. */
#define QSA_HALVES(name, dim) \
    KERNEL(QSA_GROUP) \
    name(global float *restrict out, global const float *restrict q, global const uchar *restrict k_cache, \
         global const uchar *restrict v_cache, global const uint *restrict chosen, global const int *restrict count, \
         global const int *restrict slot, global const int *restrict pos, uint heads, uint kv_heads, uint context, \
         uint limit, uint flags) \
    { \
        LOCAL_ARRAY(float, query, HALVES_HEADS *DIM_MAX); \
        LOCAL_ARRAY(float, weight, QSA_TILE *HALVES_HEADS); \
        LOCAL_ARRAY(float, factor, 16); \
        LOCAL_ARRAY(uint, place, QSA_TILE); \
        LOCAL_ARRAY(uint, words, QSA_GROUP); \
        qsa_attend(HALVES_HEADS, query, weight, factor, place, words, out, 0, 0, q, k_cache, v_cache, chosen, count, slot, \
                   pos, heads, kv_heads, dim, context, limit, flags, 2 * (dim), 1); \
    }

#endif

QSA_HALVES(st_qsa_halves_64, 64)
QSA_HALVES(st_qsa_halves_128, 128)
QSA_HALVES(st_qsa_halves_256, 256)

#define JOIN_SPLITS 64 /* splits at most */
#define JOIN_AHEAD 16  /* of which the values are read at once */

/* out = splits put together in order, gated; also as Q8 rows where quantize is set (dim a multiple of 32). A split
 * without positions has no sum and no values. grid: (heads, rows). */
KERNEL(QSA_GROUP)
st_qsa_join(global float *restrict out, global uchar *restrict codes, global const float *restrict acc,
            global const float *restrict state, global const float *restrict q, uint heads, uint dim, uint splits,
            uint flags, uint quantize)
{
    LOCAL_ARRAY(uint, words, QSA_GROUP);
    LOCAL_ARRAY(float, split, 2 * JOIN_SPLITS);
    const uint h = st_group(), row = st_group_y();
    const ulong place = (ulong)row * heads + h;
    /* Each work-item would wait for every number of every split: they come to local memory at once. */
    for (uint s = st_item(); s < 2 * splits; s += QSA_GROUP)
        split[s] = state[place * splits * 2 + s];
    st_barrier();
    float top = -INFINITY, sum = 0.0f;
    for (uint s = 0; s < splits; s++)
        top = split[2 * s] > top ? split[2 * s] : top;
    st_barrier();
    for (uint s = st_item(); s < splits; s += QSA_GROUP)
        split[2 * s] = st_expf(split[2 * s] - top);
    st_barrier();
    for (uint s = 0; s < splits; s++)
        sum = st_fma(split[2 * s + 1], split[2 * s], sum);
    for (uint i = st_item(); i < dim; i += QSA_GROUP) {
        float v = 0.0f;
        for (uint s0 = 0; s0 < splits; s0 += JOIN_AHEAD) {
            float part[JOIN_AHEAD];
            UNROLL
            for (uint k = 0; k < JOIN_AHEAD; k++)
                part[k] = acc[(place * splits + (s0 + k < splits ? s0 + k : s0)) * dim + i];
            UNROLL
            for (uint k = 0; k < JOIN_AHEAD; k++) {
                const float w = s0 + k < splits ? split[2 * (s0 + k)] : 0.0f;
                v = w > 0.0f ? st_fma(part[k], w, v) : v;
            }
        }
        v = v / sum;
        out[place * dim + i] = QSA_GATED(flags) ? v * st_sigmoidf(q[place * 2 * dim + dim + i]) : v;
    }
    for (uint base = 0; base < dim && quantize; base += QSA_GROUP) {
        const uint i = base + st_item();
        put_q8(words, codes + (ulong)row * ST_Q8_STRIDE(heads * dim), heads * dim, h * dim + i,
               i < dim ? out[place * dim + i] : 0.0f, i < dim);
    }
}
