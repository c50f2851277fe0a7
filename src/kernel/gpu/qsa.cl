/* Attention with a block index (kernel/qsa.h): norms and rotation, stores into the caches, pooled index keys, choice of blocks,
 * attention in splits of the positions.
 *
 * Caches: [slots][kv_heads][context][kv_bytes], row formats as in kernel/qsa.h. flags: bit 0 outputs are gated (a head's query is
 * followed by its gate), bit 1 rotation of neighbours, bit 2 queries and keys are normed, bits 4.. type of the cache (0 f32,
 * 1 f16, 2 int8, 3 q4).
 * Limits: bytes of keys and values for windows; for prompts their reads from the second-level cache. */
#include "exchange.h"

#define GROUP 256
#define ATTEND 128 /* work-items of an attention group */
#define TILE 32    /* positions of a step */
#define DIM_MAX 256

#define GATED(flags) ((flags)&1u)
#define NEIGHBOURS(flags) (((flags) >> 1) & 1u)
#define NORMED(flags) (((flags) >> 2) & 1u)
#define KV_TYPE(flags) ((flags) >> 4)

/* sin and cos of x >= 0 below 2^20: a multiple of pi / 2 is taken away in three steps that fma makes exact enough (pi / 2 in
 * parts of 24 bits), then polynomials on [-pi / 4, pi / 4]. Error about 2^-23. */
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
INLINE void qsa_norm(local uint *words, local float *partial, local float *x, global const float *gamma, uint dim, float eps)
{
    float sum = 0.0f;
    for (uint i = st_item(); i < dim; i += GROUP)
        sum = st_fma(x[i], x[i], sum);
    const float inverse = st_rsqrt(sum256(words, partial, sum) / (float)dim + eps);
    for (uint i = st_item(); i < dim; i += GROUP)
        x[i] = x[i] * inverse * gamma[i];
    st_barrier();
}

INLINE void qsa_rotate(local float *x, global const float *freq, global const uchar *axis, global const int *at, uint rot,
                       uint neighbours)
{
    const uint i = st_item(), half_rot = rot / 2;
    if (i < half_rot) {
        float s, c;
        qsa_sincos((float)at[axis[i]] * freq[i], &s, &c);
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
    const ushort hd = st_half_of_float((high - low) / 15.0f + 0.0f), hm = st_half_of_float(low + 0.0f); /* + 0: never -0 */
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

/* Norm and rotation of queries and index queries in place; keys and values into the caches. grid: (heads + kv_heads +
 * index_heads, rows), heads of all kinds in a line. */
KERNEL(GROUP) st_qsa_heads(global float *restrict q, global uchar *restrict k_cache, global uchar *restrict v_cache,
                           global float *restrict iq, global const float *restrict k, global const float *restrict v,
                           global const float *restrict q_norm, global const float *restrict k_norm,
                           global const float *restrict iq_norm, global const float *restrict freq,
                           global const uchar *restrict axis, global const int *restrict row_axis,
                           global const int *restrict slot, global const int *restrict pos, uint heads, uint kv_heads,
                           uint index_heads, uint dim, uint index_dim, uint context, uint rot, uint flags, uint kv_bytes,
                           float eps)
{
    LOCAL_ARRAY(uint, words, GROUP);
    LOCAL_ARRAY(float, partial, 8);
    LOCAL_ARRAY(float, x, DIM_MAX);
    const uint h = st_group(), row = st_group_y(), item = st_item();
    const bool is_query = h < heads, is_key = !is_query && h < heads + kv_heads;
    const uint n = is_query || is_key ? dim : index_dim, g = h - heads;
    global float *in_place = is_query ? q + ((ulong)row * heads + h) * (GATED(flags) ? 2 : 1) * dim
                                      : iq + ((ulong)row * index_heads + (h - heads - kv_heads)) * index_dim;
    global const float *from = is_key ? k + ((ulong)row * kv_heads + g) * dim : in_place;
    if (item < n)
        x[item] = from[item];
    st_barrier();
    if (NORMED(flags) || !(is_query || is_key))
        qsa_norm(words, partial, x, is_query ? q_norm : is_key ? k_norm : iq_norm, n, eps);
    qsa_rotate(x, freq, axis, row_axis + 3 * row, rot, NEIGHBOURS(flags));
    if (!is_key) {
        if (item < n)
            in_place[item] = x[item];
        return;
    }
    const ulong at = (((ulong)(uint)slot[row] * kv_heads + g) * context + (uint)pos[row]) * kv_bytes;
    qsa_store(k_cache + at, x, dim, KV_TYPE(flags));
    if (item < dim)
        x[item] = v[((ulong)row * kv_heads + g) * dim + item];
    st_barrier();
    qsa_store(v_cache + at, x, dim, KV_TYPE(flags));
}

/* Key of the block that a row completes: mean of its raw keys (rows of this pass, or the ring), norm, rotation at the position
 * of its first token. grid: (1, rows). */
KERNEL(GROUP) st_qsa_pool(global float *restrict pooled, global const float *restrict ik, global const float *restrict ring,
                          global const int *restrict axis_ring, global const float *restrict ik_norm,
                          global const float *restrict freq, global const uchar *restrict axis,
                          global const int *restrict row_axis, global const int *restrict slot, global const int *restrict pos,
                          uint dim, uint ratio, uint ring_length, uint blocks, uint rot, uint flags, float eps)
{
    LOCAL_ARRAY(uint, words, GROUP);
    LOCAL_ARRAY(float, partial, 8);
    LOCAL_ARRAY(float, x, DIM_MAX);
    const uint row = st_group_y(), item = st_item(), p = (uint)pos[row], s = (uint)slot[row];
    if ((p + 1) % ratio != 0)
        return;
    uint in_pass = 0; /* how many rows before this one are of the same sequence, up to the block's length */
    while (in_pass + 1 < ratio && in_pass < row && (uint)slot[row - in_pass - 1] == s)
        in_pass++;
    float sum = 0.0f;
    for (uint back = ratio; back-- > 0 && item < dim;) {
        const ulong place = back <= in_pass ? (ulong)(row - back) : (ulong)s * ring_length + (p - back) % ring_length;
        sum = sum + (back <= in_pass ? ik : ring)[place * dim + item];
    }
    if (item < dim)
        x[item] = sum / (float)ratio;
    st_barrier();
    qsa_norm(words, partial, x, ik_norm, dim, eps);
    const uint back = ratio - 1;
    qsa_rotate(x, freq, axis,
               back <= in_pass ? row_axis + 3 * (row - back) : axis_ring + 3 * (s * ring_length + (p - back) % ring_length), rot,
               NEIGHBOURS(flags));
    if (item < dim)
        pooled[((ulong)s * blocks + p / ratio) * dim + item] = x[item];
}

/* The last raw keys of each span into the ring. grid: (1, rows). After st_qsa_pool. */
KERNEL(GROUP) st_qsa_ring(global float *restrict ring, global int *restrict axis_ring, global const float *restrict ik,
                          global const int *restrict row_axis, global const int *restrict slot, global const int *restrict pos,
                          uint rows, uint dim, uint ring_length)
{
    const uint row = st_group_y(), item = st_item(), s = (uint)slot[row];
    if (row + ring_length < rows && (uint)slot[row + ring_length] == s)
        return;
    const ulong at = (ulong)s * ring_length + (uint)pos[row] % ring_length;
    for (uint i = item; i < dim; i += GROUP)
        ring[at * dim + i] = ik[(ulong)row * dim + i];
    if (item < 3)
        axis_ring[at * 3 + item] = row_axis[3 * row + item];
}

/* scores[row - first][block] for rows that see more than keep blocks. A work-item has a block. grid: (ceil(blocks / 256), rows
 * from first on). */
KERNEL(GROUP) st_qsa_score(global float *restrict scores, global const float *restrict iq, global const float *restrict pooled,
                           global const int *restrict slot, global const int *restrict pos, uint index_heads, uint dim,
                           uint ratio, uint keep, uint blocks, uint first)
{
    const uint row = first + st_group_y(), block = st_group() * GROUP + st_item(), seen = ((uint)pos[row] + 1) / ratio;
    if (seen <= keep || block >= seen)
        return;
    global const float *key = pooled + ((ulong)(uint)slot[row] * blocks + block) * dim;
    global const float *query = iq + (ulong)row * index_heads * dim;
    float score = 0.0f;
    for (uint h = 0; h < index_heads; h++) {
        float dot = 0.0f;
        for (uint i = 0; i < dim; i++)
            dot = st_fma(query[h * dim + i], key[i], dot);
        score = score + (dot > 0.0f ? dot : 0.0f);
    }
    scores[(ulong)st_group_y() * blocks + block] = score;
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

/* Exclusive sum over the group of a value of 0 or 1; *total the sum. room: two times GROUP words. */
INLINE uint qsa_rank(local uint *room, uint value, uint *total)
{
    const uint item = st_item();
    uint from = 0;
    room[item] = value;
    st_barrier();
    for (uint step = 1; step < GROUP; step *= 2) {
        const uint v = room[from + item] + (item >= step ? room[from + item - step] : 0);
        from = GROUP - from;
        room[from + item] = v;
        st_barrier();
    }
    *total = room[from + GROUP - 1];
    const uint mine = room[from + item] - value;
    st_barrier();
    return mine;
}

/* The row's list of allowed positions: the keep best blocks (higher score first, then lower index) in ascending order, then the
 * tail; count -1 where all positions are allowed. grid: (1, rows from first on). chosen: [rows][limit]. */
KERNEL(GROUP) st_qsa_choose(global uint *restrict chosen, global int *restrict count, global const float *restrict scores_all,
                            global const int *restrict pos, uint ratio, uint keep, uint limit, uint blocks, uint first)
{
    LOCAL_ARRAY(uint, words, GROUP);
    LOCAL_ARRAY(float, partial, 8);
    LOCAL_ARRAY(uint, room, 2 * GROUP);
    const uint row = first + st_group_y(), item = st_item(), visible = (uint)pos[row] + 1, seen = visible / ratio;
    if (seen <= keep) {
        if (item == 0)
            count[row] = -1;
        return;
    }
    global const float *scores = scores_all + (ulong)st_group_y() * blocks;
    uint bound = 0; /* the largest with at least keep scores not below it */
    for (uint bit = 0x80000000u; bit > 0; bit /= 2)
        if (qsa_count(words, partial, scores, seen, bound | bit) >= keep)
            bound |= bit;
    const uint above = bound == 0xffffffffu ? 0 : qsa_count(words, partial, scores, seen, bound + 1);
    uint equal_left = keep - above, used = 0;
    global uint *to = chosen + (ulong)row * limit;
    for (uint base = 0; base < seen; base += GROUP) {
        const uint b = base + item, bits = b < seen ? st_bits_of(scores[b]) : 0;
        const uint equal = b < seen && bits == bound;
        uint equals, total;
        const uint before = qsa_rank(room, equal, &equals);
        const uint take = b < seen && (bits > bound || (equal && before < equal_left));
        const uint place = qsa_rank(room, take, &total);
        if (take)
            for (uint i = 0; i < ratio; i++)
                to[(used + place) * ratio + i] = b * ratio + i;
        equal_left -= equals < equal_left ? equals : equal_left;
        used += total;
    }
    for (uint p = seen * ratio + item; p < visible; p += GROUP)
        to[keep * ratio + p - seen * ratio] = p;
    if (item == 0)
        count[row] = (int)(keep * ratio + visible - seen * ratio);
}

/* Element i of a stored row. */
INLINE float qsa_load(global const uchar *row, uint type, uint dim, uint i)
{
    if (type == 1)
        return st_float_of_half(((global const ushort *)row)[i]);
    if (type == 0)
        return ((global const float *)row)[i];
    if (type == 2)
        return (float)(signed char)row[i] * *(global const float *)(row + dim + i / 64 * 4);
    const uint pair = *(global const uint *)(row + dim / 2 + i / 32 * 4);
    const uint nibble = (uint)(row[i / 32 * 16 + i % 16] >> (i % 32 / 16 * 4)) & 15u;
    return st_fma((float)nibble, st_float_of_half((ushort)pair), st_float_of_half((ushort)(pair >> 16)));
}

/* One split of the positions of one (row, head) with a running softmax: acc [rows][heads][splits][dim], and (largest score, sum)
 * in state [rows][heads][splits][2]. grid: (heads * splits, rows). Keys of a tile lie in local memory; work-item i has
 * elements i and i + 128 of the sum of values. */
KERNEL(ATTEND) st_qsa_attend(global float *restrict acc, global float *restrict state, global const float *restrict q,
                             global const uchar *restrict k_cache, global const uchar *restrict v_cache,
                             global const uint *restrict chosen, global const int *restrict count,
                             global const int *restrict slot, global const int *restrict pos, uint heads, uint kv_heads,
                             uint dim, uint context, uint limit, uint flags, uint kv_bytes, uint splits)
{
    LOCAL_ARRAY(float, keys, TILE * (DIM_MAX + 1));
    LOCAL_ARRAY(float, query, DIM_MAX);
    LOCAL_ARRAY(float, parts, ATTEND);
    LOCAL_ARRAY(float, score, TILE);
    const uint item = st_item(), h = st_group() / splits, split = st_group() % splits, row = st_group_y();
    const uint type = KV_TYPE(flags), g = h / (heads / kv_heads);
    const int listed = count[row];
    const uint all = listed < 0 ? (uint)pos[row] + 1 : (uint)listed;
    /* whole tiles go to the splits, so that cuts lie at multiples of a tile */
    const uint tiles = (all + TILE - 1) / TILE, from = tiles * split / splits * TILE;
    const uint stop = tiles * (split + 1) / splits * TILE, to = stop < all ? stop : all;
    global const uint *list = chosen + (ulong)row * limit;
    const ulong base = ((ulong)(uint)slot[row] * kv_heads + g) * context;
    global const float *qr = q + ((ulong)row * heads + h) * (GATED(flags) ? 2 : 1) * dim;
    for (uint i = item; i < dim; i += ATTEND)
        query[i] = qr[i] * st_rsqrt((float)dim);
    float top = -INFINITY, sum = 0.0f, v0 = 0.0f, v1 = 0.0f;
    for (uint t0 = from; t0 < to; t0 += TILE) {
        const uint n = to - t0 < TILE ? to - t0 : TILE;
        st_barrier();
        for (uint i = item; i < n * dim; i += ATTEND) {
            const uint t = i / dim, d = i % dim, p = listed < 0 ? t0 + t : list[t0 + t];
            keys[t * (DIM_MAX + 1) + d] = qsa_load(k_cache + (base + p) * kv_bytes, type, dim, d);
        }
        st_barrier();
        const uint t = item / 4;
        float dot = 0.0f;
        if (t < n)
            for (uint d = item % 4; d < dim; d += 4)
                dot = st_fma(query[d], keys[t * (DIM_MAX + 1) + d], dot);
        parts[item] = dot;
        st_barrier();
        if (item < TILE)
            score[item] = item < n ? ((parts[4 * item] + parts[4 * item + 1]) + parts[4 * item + 2]) + parts[4 * item + 3]
                                   : -INFINITY;
        st_barrier();
        float most = top;
        for (uint i = 0; i < n; i++)
            most = score[i] > most ? score[i] : most;
        const float keep = st_expf(top - most);
        sum = sum * keep;
        v0 = v0 * keep;
        v1 = v1 * keep;
        top = most;
        for (uint i = 0; i < n; i++) {
            const float w = st_expf(score[i] - top);
            const uint p = listed < 0 ? t0 + i : list[t0 + i];
            global const uchar *value = v_cache + (base + p) * kv_bytes;
            sum = sum + w;
            if (item < dim)
                v0 = st_fma(w, qsa_load(value, type, dim, item), v0);
            if (item + ATTEND < dim)
                v1 = st_fma(w, qsa_load(value, type, dim, item + ATTEND), v1);
        }
    }
    const ulong place = ((ulong)row * heads + h) * splits + split;
    if (item < dim)
        acc[place * dim + item] = v0;
    if (item + ATTEND < dim)
        acc[place * dim + item + ATTEND] = v1;
    if (item == 0) {
        state[place * 2] = top;
        state[place * 2 + 1] = sum;
    }
}

/* out = splits put together in order, gated. grid: (heads, rows). */
KERNEL(ATTEND) st_qsa_join(global float *restrict out, global const float *restrict acc, global const float *restrict state,
                           global const float *restrict q, uint heads, uint dim, uint splits, uint flags)
{
    const uint h = st_group(), row = st_group_y();
    const ulong place = (ulong)row * heads + h;
    float top = -INFINITY;
    for (uint s = 0; s < splits; s++)
        top = state[(place * splits + s) * 2] > top ? state[(place * splits + s) * 2] : top;
    float sum = 0.0f;
    for (uint s = 0; s < splits; s++)
        sum = st_fma(state[(place * splits + s) * 2 + 1], st_expf(state[(place * splits + s) * 2] - top), sum);
    for (uint i = st_item(); i < dim; i += ATTEND) {
        float v = 0.0f;
        for (uint s = 0; s < splits; s++)
            v = st_fma(acc[(place * splits + s) * dim + i], st_expf(state[(place * splits + s) * 2] - top), v);
        v = v / sum;
        out[place * dim + i] = GATED(flags) ? v * st_sigmoidf(q[place * 2 * dim + dim + i]) : v;
    }
}

/* count = -1 for every row: all positions are allowed. grid: (ceil(rows / 256), 1). */
KERNEL(GROUP) st_qsa_dense(global int *restrict count, uint rows)
{
    const uint row = st_group() * GROUP + st_item();
    if (row < rows)
        count[row] = -1;
}
