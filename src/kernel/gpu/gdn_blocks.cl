/* Gated delta network in prompts: the recurrence of gdn.cl for eight rows of a span at once. With S the state before such a
 * block, C_i the product of the decays of its rows up to i, D_ij that of rows j + 1 .. i:
 *
 *   d_i = beta_i (v_i - C_i S'k_i) - sum over j < i of A_ij d_j      A_ij = beta_i (k_i . k_j) D_ij
 *   o_i = C_i S'q_i + sum over j <= i of P_ij d_j                    P_ij = (q_i . k_j) D_ij
 *   S   = C_last S + sum of D_last,j k_j d_j'
 *
 * A and P of all blocks come first, in a launch of their own that all heads and columns share. Why eight rows: a longer
 * block costs more (two numbers for each pair of rows and column) and saves nothing but the multiplication by the decay;
 * eight are enough to take sums over lanes and waits for the row before out of the way, and S stays in registers.
 * Limit: multiply-adds, (3 key_dim + 8) for a row and column: 8,192 rows of 48 heads of 128 x 128 are 20 G, 0.6 ms at
 * the 33.5 T/s of an H200; with reads of local memory and sums over lanes about 75 instructions instead of 51. */
#include "gdn.h"

#define GDN_BLOCK 8
/* Of a (value head, row): its rows of A and P, then beta, C_i, D_last,i, C_last. */
#define GDN_PAIRS (2 * GDN_BLOCK + 4)
#define AT_BETA (2 * GDN_BLOCK)
#define AT_CARRY (2 * GDN_BLOCK + 1)
#define AT_LEFT (2 * GDN_BLOCK + 2)
#define AT_TOTAL (2 * GDN_BLOCK + 3)

#define PAIRS_GROUP 128
#define PAIRS_DIM 128 /* key_dim at most */
#define PAIRS_LINE (PAIRS_DIM + 4)

/* pairs [value_heads][rows][GDN_PAIRS] of one block for the value heads that use a key head. A work-item has one product
 * of two keys or of a query with a key. grid: (key_heads, blocks of all spans at most). */
KERNEL(PAIRS_GROUP)
st_gdn_pairs(global float *restrict pairs, global const float *restrict c, global const float *restrict gates,
             global const int *restrict span, uint rows, uint spans, uint key_heads, uint value_heads, uint dk, uint dv)
{
    LOCAL_ARRAY(float, lines, 2 * GDN_BLOCK * PAIRS_LINE);
    const uint item = st_item(), head = st_group(), channels = 2 * key_heads * dk + value_heads * dv;
    uint s = 0, block = st_group_y();
    for (; s < spans; s++) {
        const uint blocks = ((uint)(span[s + 1] - span[s]) + GDN_BLOCK - 1) / GDN_BLOCK;
        if (block < blocks)
            break;
        block -= blocks;
    }
    if (s == spans)
        return;
    const uint first = (uint)span[s] + block * GDN_BLOCK, left = (uint)span[s + 1] - first;
    const uint count = left < GDN_BLOCK ? left : GDN_BLOCK;
    for (uint at = item; at < 2 * count * (dk / 4); at += PAIRS_GROUP) { /* keys, then queries */
        const uint line = at / (dk / 4), d = at % (dk / 4) * 4, is_query = line / count, row = first + line % count;
        *(local float4 *)(lines + (is_query * GDN_BLOCK + line % count) * PAIRS_LINE + d) =
            *(global const float4 *)(c + (ulong)row * channels + ((1 - is_query) * key_heads + head) * dk + d);
    }
    st_barrier();
    const uint is_query = item / (GDN_BLOCK * GDN_BLOCK), i = item / GDN_BLOCK % GDN_BLOCK, j = item % GDN_BLOCK;
    const bool there = i < count && (is_query ? j <= i : j < i);
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
    for (uint d = 0; d < dk && there; d += 4) {
        const float4 x = *(local const float4 *)(lines + (is_query * GDN_BLOCK + i) * PAIRS_LINE + d);
        const float4 y = *(local const float4 *)(lines + j * PAIRS_LINE + d);
        sum.x = st_fma(x.x, y.x, sum.x);
        sum.y = st_fma(x.y, y.y, sum.y);
        sum.z = st_fma(x.z, y.z, sum.z);
        sum.w = st_fma(x.w, y.w, sum.w);
    }
    const float dot = (sum.x + sum.y) + (sum.z + sum.w);
    if (i >= count)
        return;
    for (uint value = head; value < value_heads; value += key_heads) {
        global const float *gate = gates + ((ulong)value * rows + first) * GDN_GATES;
        global float *to = pairs + ((ulong)value * rows + first + i) * GDN_PAIRS;
        float decay = 1.0f;
        for (uint r = j + 1; r <= i; r++)
            decay = decay * gate[r * GDN_GATES + 1];
        to[is_query * GDN_BLOCK + j] =
            there ? (is_query ? decay : gate[i * GDN_GATES] * decay) * dot : 0.0f;
        if (is_query || j > 0)
            continue;
        float carry = 1.0f, after = 1.0f;
        for (uint r = 0; r <= i; r++)
            carry = carry * gate[r * GDN_GATES + 1];
        for (uint r = i + 1; r < count; r++)
            after = after * gate[r * GDN_GATES + 1];
        to[AT_BETA] = gate[i * GDN_GATES];
        to[AT_CARRY] = carry;
        to[AT_LEFT] = after;
        to[AT_TOTAL] = carry * after;
    }
}

#define BLOCKS_GROUP 128

/* Starts the copies of a block's rows from row on: for each its key, query, values of the group's columns, pairs. Rows past
 * the end are 0, with which they change nothing. */
INLINE void blocks_fetch(local uint4 *to, global const float *c, global const float *pairs, uint row, uint end, uint channels,
                         uint query_at, uint key_at, uint value_at, uint dk)
{
    const uint each = dk / 2 + GDN_COLUMNS / 4 + GDN_PAIRS / 4;
    const uint4 none = {0, 0, 0, 0};
    for (uint i = st_item(); i < GDN_BLOCK * each; i += BLOCKS_GROUP) {
        const uint t = i / each, w = i % each;
        global const float *from = c + (ulong)(row + t) * channels;
        from = w < dk / 4                     ? from + key_at + 4 * w
               : w < dk / 2                   ? from + query_at + 4 * (w - dk / 4)
               : w < dk / 2 + GDN_COLUMNS / 4 ? from + value_at + 4 * (w - dk / 2)
                                              : pairs + (ulong)(row + t) * GDN_PAIRS + 4 * (w - dk / 2 - GDN_COLUMNS / 4);
        if (row + t < end)
            st_copy_issue(to + i, (global const uint4 *)from);
        else
            to[i] = none;
    }
    st_copies_commit();
}

/* The value of the from'th of the `count` neighbours that this work-item is one of. */
INLINE uint blocks_neighbour(local uint *words, uint value, uint count, uint from)
{
    const uint item = st_item();
#if ST_LANES >= 32
    (void)words;
    return st_shuffle(value, item % ST_LANES / count * count + from);
#else
    st_barrier();
    words[item] = value;
    st_barrier();
    return words[item / count * count + from];
#endif
}

/* v[i] of a work-item and of its m'th neighbour become one sum: the lower of the two takes the first m values, the upper
 * the others. */
INLINE void blocks_fold(float *v, uint m, local uint *words, uint part)
{
    const bool upper = (part & m) != 0;
    UNROLL
    for (uint i = 0; i < m; i++) {
        const float low = v[i], high = v[i + m];
        v[i] = (upper ? high : low) + st_float_of(exchange(words, st_bits_of(upper ? low : high), m));
    }
}

/* Of `lanes` neighbours, 8 or 16, each with `lanes` values: the part'th gets the sum of all part'th values. */
INLINE float blocks_sum(float *v, uint lanes, local uint *words, uint part)
{
    if (lanes == 16)
        blocks_fold(v, 8, words, part);
    blocks_fold(v, 4, words, part);
    blocks_fold(v, 2, words, part);
    blocks_fold(v, 1, words, part);
    return v[0];
}

/* sum += the products of four elements */
INLINE float blocks_dot(float sum, const float *s, float4 v)
{
    return st_fma(s[3], v.w, st_fma(s[2], v.z, st_fma(s[1], v.y, st_fma(s[0], v.x, sum))));
}

#define OWN_MAX 8  /* rows of the state that a work-item has */
#define WIDE_MAX 2 /* columns */

/* The recurrence of GDN_COLUMNS columns of one head over the rows of a span; o [rows][value_heads * dv] before norm and
 * gate. 8 * wide neighbours share `wide` columns of the state; each has `own` rows of it: four, and four more 32 * wide rows
 * on. Both are constants of the kernel, so that state, keys and sums stay in registers. After the sums over lanes each
 * work-item has one row of the block in one of the columns. */
INLINE void blocks_run(uint own, uint wide, local uint4 *stage, local uint *words, global float *restrict o,
                       global float *restrict state_all, global const float *restrict c,
                       global const float *restrict pairs_all, global const int *restrict slot,
                       global const int *restrict span, uint rows, uint key_heads, uint value_heads, uint dv)
{
    const uint lanes = GDN_BLOCK * wide, dk = own * lanes, each = dk / 2 + GDN_COLUMNS / 4 + GDN_PAIRS / 4;
    const uint item = st_item(), part = item % lanes, mine = item / lanes * wide, blocks = dv / GDN_COLUMNS;
    const uint j = st_group() / blocks, e0 = st_group() % blocks * GDN_COLUMNS;
    const uint first = (uint)span[st_group_y()], end = (uint)span[st_group_y() + 1];
    const uint query_at = j % key_heads * dk, key_at = key_heads * dk + query_at;
    const uint channels = 2 * key_heads * dk + value_heads * dv, value_at = 2 * key_heads * dk + j * dv + e0;
    global const float *pairs = pairs_all + (ulong)j * rows * GDN_PAIRS;
    global float *state = state_all + ((ulong)(uint)slot[first] * value_heads + j) * dk * dv + e0 + mine;
    blocks_fetch(stage, c, pairs, first, end, channels, query_at, key_at, value_at, dk);
    float s[WIDE_MAX * OWN_MAX];
    UNROLL
    for (uint w = 0; w < wide; w++)
        UNROLL
        for (uint i = 0; i < own; i++)
            s[w * own + i] = state[(ulong)((i / 4 * lanes + part) * 4 + i % 4) * dv + w];
    uint turn = 0;
    for (uint base = first; base < end; base += GDN_BLOCK) {
        st_copies_wait(0);
        st_barrier();
        if (base + GDN_BLOCK < end)
            blocks_fetch(stage + (1 - turn) * GDN_BLOCK * each, c, pairs, base + GDN_BLOCK, end, channels, query_at, key_at,
                         value_at, dk);
        local const float4 *block = (local const float4 *)(stage + turn * GDN_BLOCK * each);
        float4 key[GDN_BLOCK * OWN_MAX / 4];
        float p[WIDE_MAX * GDN_BLOCK], q[WIDE_MAX * GDN_BLOCK], delta[WIDE_MAX * GDN_BLOCK];
        UNROLL
        for (uint i = 0; i < wide * GDN_BLOCK; i++)
            p[i] = q[i] = 0.0f;
        UNROLL
        for (uint i = 0; i < own / 4; i++)
            UNROLL
            for (uint t = 0; t < GDN_BLOCK; t++) {
                const float4 query = block[t * each + dk / 4 + i * lanes + part];
                key[i * GDN_BLOCK + t] = block[t * each + i * lanes + part];
                UNROLL
                for (uint w = 0; w < wide; w++) {
                    p[w * GDN_BLOCK + t] = blocks_dot(p[w * GDN_BLOCK + t], s + w * own + 4 * i, key[i * GDN_BLOCK + t]);
                    q[w * GDN_BLOCK + t] = blocks_dot(q[w * GDN_BLOCK + t], s + w * own + 4 * i, query);
                }
            }
        const uint row = part % GDN_BLOCK, column = part / GDN_BLOCK;
        local const float *given = (local const float *)(block + row * each + dk / 2), *pair = given + GDN_COLUMNS;
        float fresh = blocks_sum(p, lanes, words, part), out = pair[AT_CARRY] * blocks_sum(q, lanes, words, part);
        fresh = pair[AT_BETA] * (given[mine + column] - pair[AT_CARRY] * fresh);
        UNROLL
        for (uint t = 0; t < GDN_BLOCK; t++) {
            UNROLL
            for (uint w = 0; w < wide; w++)
                delta[w * GDN_BLOCK + t] =
                    st_float_of(blocks_neighbour(words, st_bits_of(fresh), lanes, w * GDN_BLOCK + t));
            const float low = delta[t], high = delta[(wide - 1) * GDN_BLOCK + t], own_delta = column ? high : low;
            fresh = st_fma(-pair[t], own_delta, fresh);
            out = st_fma(pair[GDN_BLOCK + t], own_delta, out);
        }
        if (base + row < end)
            o[((ulong)(base + row) * value_heads + j) * dv + e0 + mine + column] = out;
        const float total = ((local const float *)(block + dk / 2))[GDN_COLUMNS + AT_TOTAL];
        UNROLL
        for (uint i = 0; i < wide * own; i++)
            s[i] = s[i] * total;
        UNROLL
        for (uint t = 0; t < GDN_BLOCK; t++) {
            const float left = ((local const float *)(block + t * each + dk / 2))[GDN_COLUMNS + AT_LEFT];
            UNROLL
            for (uint w = 0; w < wide; w++) {
                const float d = delta[w * GDN_BLOCK + t] * left;
                UNROLL
                for (uint i = 0; i < own / 4; i++) {
                    float *at = s + w * own + 4 * i;
                    at[0] = st_fma(key[i * GDN_BLOCK + t].x, d, at[0]);
                    at[1] = st_fma(key[i * GDN_BLOCK + t].y, d, at[1]);
                    at[2] = st_fma(key[i * GDN_BLOCK + t].z, d, at[2]);
                    at[3] = st_fma(key[i * GDN_BLOCK + t].w, d, at[3]);
                }
            }
        }
        turn = 1 - turn;
    }
    UNROLL
    for (uint w = 0; w < wide; w++)
        UNROLL
        for (uint i = 0; i < own; i++)
            state[(ulong)((i / 4 * lanes + part) * 4 + i % 4) * dv + w] = s[w * own + i];
}

/* grid: (value_heads * dv / GDN_COLUMNS, spans); the key dimension is 8 * own * wide, dv a multiple of GDN_COLUMNS. */
#define GDN_BLOCKS(name, own, wide) \
    GROUPS_OF_A_UNIT(BLOCKS_GROUP, 3) \
    KERNEL(BLOCKS_GROUP) \
    name(global float *restrict o, global float *restrict state, global const float *restrict c, \
         global const float *restrict pairs, global const int *restrict slot, global const int *restrict span, uint rows, \
         uint key_heads, uint value_heads, uint dv) \
    { \
        LOCAL_ARRAY(uint4, stage, 2 * GDN_BLOCK * (4 * (own) * (wide) + GDN_COLUMNS / 4 + GDN_PAIRS / 4)); \
        LOCAL_ARRAY(uint, words, BLOCKS_GROUP); \
        blocks_run(own, wide, stage, words, o, state, c, pairs, slot, span, rows, key_heads, value_heads, dv); \
    }

GDN_BLOCKS(st_gdn_blocks_32, 4, 1)
GDN_BLOCKS(st_gdn_blocks_64, 4, 2)
GDN_BLOCKS(st_gdn_blocks_128, 8, 2)
