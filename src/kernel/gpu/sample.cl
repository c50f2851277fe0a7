/* Sampling, the rules of kernel/sample.h: the logits of each row of a window become a token.
 *
 * Groups of the first kind have a chunk of a row's logits each, grid (chunks, rows); those of the second kind a whole row, grid
 * (1, rows). Top-k and top-p are the same search for a key (the float's bits in the order of the floats): four times, from the
 * highest byte, st_sample_digit adds up the masses of the tokens by the next byte of their keys, and st_sample_choose takes the
 * byte in which the masses, the best first, reach what is asked for. A mass is 1 for top-k and the weight for top-p. Masses are
 * integers, so their order does not matter. Limit: latency; a row of 250,000 logits is read about ten times from the cache. */
#include "exchange.h"
#include "sample_layout.h"

#define GROUP 256
#define SAMPLE_EACH (ST_SAMPLE_CHUNK / GROUP)
#define SAMPLE_SPLIT 20 /* bits: a chunk's masses of at most 2^40 add up in two words */
#define SAMPLE_ROOM (2 * GROUP + 2)

/* Bits of a logit such that unsigned order is order by logit; 0 for NaN. */
INLINE uint sample_key(float l)
{
    const uint u = st_bits_of(l);
    return l != l ? 0u : u >> 31 ? ~u : u | 0x80000000u;
}

INLINE float sample_logit(uint key)
{
    return st_float_of(key >> 31 ? key & 0x7fffffffu : ~key);
}

INLINE ulong sample_weight(float l, float best, float temperature)
{
    return (ulong)(st_expf((l - best) / temperature) * 0x1p40f);
}

INLINE bool sample_keeps(global const struct st_sample_state *s, uint which, uint key, uint token)
{
    return key > s->key[which] || (key == s->key[which] && token <= s->last[which]);
}

/* What a token gives to the choice of top-k (which 0) or of top-p (1). */
INLINE ulong sample_mass(global const struct st_sample_state *s, uint which, float l, uint token, float temperature)
{
    return which == 0 ? 1 : sample_keeps(s, 0, sample_key(l), token) ? sample_weight(l, s->best, temperature) : 0;
}

/* Whether the row has a choice of top-k (which 0) or of top-p (1). */
INLINE bool sample_chooses(global const struct st_sample_row *r, global const struct st_sample_state *s, uint which)
{
    return s->status == 0 && r->temperature > 0.0f && (which == 0 ? r->top_k != 0 : r->share < 1u << 24);
}

/* The weight that takes part in the draw. */
INLINE ulong sample_width(global const struct st_sample_row *r, global const struct st_sample_state *s, float l, uint token)
{
    const uint key = sample_key(l);
    const ulong weight = sample_weight(l, s->best, r->temperature);
    return sample_keeps(s, 0, key, token) && sample_keeps(s, 1, key, token) && weight >= r->least ? weight : 0;
}

/* The upper half of a * b. */
INLINE ulong sample_high(ulong a, ulong b)
{
    const ulong low = (a & 0xffffffffu) * (b & 0xffffffffu);
    const ulong middle = (a >> 32) * (b & 0xffffffffu) + (low >> 32);
    const ulong other = (a & 0xffffffffu) * (b >> 32) + (middle & 0xffffffffu);
    return (a >> 32) * (b >> 32) + (middle >> 32) + (other >> 32);
}

/* The sum of the values of the group's work-items before this one; *total of all. room: SAMPLE_ROOM words. */
INLINE ulong sample_before(local ulong *room, ulong value, ulong *total)
{
    const uint item = st_item();
    ulong sum = value;
    st_barrier();
    room[item] = sum;
    for (uint step = 1, from = 0; step < GROUP; step *= 2, from = GROUP - from) {
        st_barrier();
        sum += item >= step ? room[from + item - step] : 0;
        room[GROUP - from + item] = sum;
    }
    st_barrier();
    *total = room[GROUP - 1]; /* eight steps end in the first half */
    return sum - value;
}

/* The sum of a chunk's values. */
INLINE ulong sample_total(local ulong *room, local const ulong *values)
{
    ulong sum = 0, total;
    for (uint i = 0; i < SAMPLE_EACH; i++)
        sum += values[st_item() * SAMPLE_EACH + i];
    (void)sample_before(room, sum, &total);
    return total;
}

/* The first of a chunk's values whose running sum exceeds *left, which is less than their total; *left: what it exceeds the sum
 * before it by. */
INLINE uint sample_find(local ulong *room, local const ulong *values, ulong *left)
{
    const uint first = st_item() * SAMPLE_EACH;
    ulong sum = 0, total;
    for (uint i = 0; i < SAMPLE_EACH; i++)
        sum += values[first + i];
    const ulong before = sample_before(room, sum, &total);
    if (before <= *left && *left < before + sum) {
        ulong rest = *left - before;
        uint i = first;
        while (rest >= values[i])
            rest -= values[i++];
        room[2 * GROUP] = i;
        room[2 * GROUP + 1] = rest;
    }
    st_barrier();
    *left = room[2 * GROUP + 1];
    return (uint)room[2 * GROUP];
}

/* adjusted [rows][vocabulary]: the logits after mask, bias and penalties. best [rows][chunks]: the chunk's largest key, the first
 * token with it, and the first token that is not a number or infinite, ~0 if none is. First kind. */
KERNEL(GROUP) st_sample_adjust(global float *restrict adjusted, global uint4 *restrict best, global const float *restrict logits,
                               global const struct st_sample_row *restrict rows, global const uint *restrict words, uint vocabulary,
                               uint chunks)
{
    LOCAL_ARRAY(float, l, ST_SAMPLE_CHUNK);
    LOCAL_ARRAY(uint, room, GROUP);
    LOCAL_ARRAY(uint, partial, GROUP / 32);
    global const struct st_sample_row *r = rows + st_group_y();
    const uint item = st_item(), first = st_group() * ST_SAMPLE_CHUNK;
    const uint count = vocabulary - first < ST_SAMPLE_CHUNK ? vocabulary - first : ST_SAMPLE_CHUNK;
    const ulong start = (ulong)st_group_y() * vocabulary + first;
    for (uint i = item; i < count; i += GROUP) {
        const uint token = first + i;
        const bool may = r->mask == ST_SAMPLE_NO_MASK || (words[r->mask + token / 32] >> token % 32 & 1);
        l[i] = may ? logits[start + i] + 0.0f : st_float_of(0xff800000u);
    }
    st_barrier();
    global const uint *bias = words + r->bias;
    for (uint i = item; i < r->biases; i += GROUP) { /* the first of a token's adds all of them */
        const uint token = bias[2 * i];
        if (token - first >= count || (i > 0 && bias[2 * i - 2] == token))
            continue;
        float v = l[token - first];
        for (uint j = i; j < r->biases && bias[2 * j] == token; j++)
            v = v + st_float_of(bias[2 * j + 1]);
        l[token - first] = v;
    }
    st_barrier();
    global const uint *seen = words + r->seen;
    for (uint i = item; i < r->seen_count; i += GROUP) {
        const uint token = seen[2 * i];
        if (token - first >= count)
            continue;
        float v = l[token - first];
        v = v > 0.0f ? v / r->repetition : v * r->repetition;
        v = v - (float)seen[2 * i + 1] * r->frequency;
        l[token - first] = v - r->presence + 0.0f;
    }
    st_barrier();
    uint key = 0, place = 0, bad = 0; /* place, bad: ~token, so that the first one is the largest */
    for (uint i = item; i < count; i += GROUP) {
        const float v = l[i];
        const uint k = sample_key(v);
        adjusted[start + i] = v;
        place = k > key ? ~(first + i) : place;
        key = k > key ? k : key;
        bad = bad == 0 && (k == 0 || k == 0xff800000u) ? ~(first + i) : bad;
    }
    const uint top = max256(room, partial, key);
    st_barrier();
    place = max256(room, partial, key == top ? place : 0);
    st_barrier();
    bad = max256(room, partial, bad);
    if (item == 0) {
        const uint4 out = {top, ~place, ~bad, 0};
        best[(ulong)st_group_y() * chunks + st_group()] = out;
    }
}

/* picks [rows]: the best token and status OK, or what is wrong. state [rows]: of a row of which nothing is chosen yet. work:
 * room that only the C form uses, which draws here. Second kind. */
KERNEL(GROUP) st_sample_best(global struct st_sample_result *restrict picks, global struct st_sample_state *restrict state, global ulong *restrict work,
                             global const uint4 *restrict best, global const float *restrict adjusted,
                             global const struct st_sample_row *restrict rows, uint vocabulary, uint chunks)
{
    LOCAL_ARRAY(uint, room, GROUP);
    LOCAL_ARRAY(uint, partial, GROUP / 32);
    const uint row = st_group_y();
    (void)work;
    (void)rows;
    best += (ulong)row * chunks;
    uint key = 0, place = 0, bad = 0;
    for (uint i = st_item(); i < chunks; i += GROUP) {
        const uint4 b = best[i];
        place = b.x > key ? ~b.y : place;
        key = b.x > key ? b.x : key;
        bad = ~b.z > bad ? ~b.z : bad;
    }
    const uint top = max256(room, partial, key);
    st_barrier();
    place = max256(room, partial, key == top ? place : 0);
    st_barrier();
    bad = max256(room, partial, bad);
    if (st_item() == 0) {
        const float wrong = bad ? adjusted[(ulong)row * vocabulary + ~bad] : 0.0f, logit = sample_logit(top);
        const uint none = top == 0x007fffffu; /* -infinity */
        const uint status = bad ? (wrong != wrong ? 1 : 2) : none ? 3 : 0;
        const struct st_sample_state s = {0, logit, status, {0, 0}, {0xffffffffu, 0xffffffffu}};
        const struct st_sample_result p = {bad ? ~bad : none ? 0 : ~place, status, 0};
        picks[row] = p;
        state[row] = s;
    }
}

/* sums [rows][chunks][bins]: masses of the chunk's tokens whose keys have the digits so far, by the next one. pass: 4 * which +
 * digit. First kind. */
KERNEL(GROUP) st_sample_digit(global ulong *restrict sums, global const struct st_sample_state *restrict state,
                              global const float *restrict adjusted, global const struct st_sample_row *restrict rows,
                              uint vocabulary, uint chunks, uint pass)
{
    LOCAL_ARRAY(uint, lower, ST_SAMPLE_BINS);
    LOCAL_ARRAY(uint, upper, ST_SAMPLE_BINS);
    const uint row = st_group_y(), item = st_item(), which = pass / 4, shift = 24 - pass % 4 * 8;
    global const struct st_sample_row *r = rows + row;
    global const struct st_sample_state *s = state + row;
    if (!sample_chooses(r, s, which))
        return;
    const uint first = st_group() * ST_SAMPLE_CHUNK + item;
    float logit[SAMPLE_EACH]; /* all on their way before the first is used */
    UNROLL
    for (uint i = 0; i < SAMPLE_EACH; i++)
        logit[i] = first + i * GROUP < vocabulary ? adjusted[(ulong)row * vocabulary + first + i * GROUP] : 0.0f;
    lower[item] = 0;
    upper[item] = 0;
    st_barrier();
    UNROLL
    for (uint i = 0; i < SAMPLE_EACH; i++) {
        const uint token = first + i * GROUP;
        const float l = logit[i];
        const uint key = sample_key(l), differs = key ^ s->key[which];
        if (token < vocabulary && (shift == 24 || differs >> (shift + 8) % 32 == 0)) {
            const ulong mass = sample_mass(s, which, l, token, r->temperature);
            st_add_local(lower + (key >> shift & 255), (uint)mass & ((1u << SAMPLE_SPLIT) - 1));
            st_add_local(upper + (key >> shift & 255), (uint)(mass >> SAMPLE_SPLIT));
        }
    }
    st_barrier();
    sums[((ulong)row * chunks + st_group()) * ST_SAMPLE_BINS + item] = ((ulong)upper[item] << SAMPLE_SPLIT) + lower[item];
}

/* state: with one more digit of the key, and with the last one also the last token of that key that is kept. Second kind. */
KERNEL(GROUP) st_sample_choose(global struct st_sample_state *restrict state, global const ulong *restrict sums,
                               global const float *restrict adjusted, global const struct st_sample_row *restrict rows,
                               uint vocabulary, uint chunks, uint pass)
{
    LOCAL_ARRAY(ulong, room, SAMPLE_ROOM);
    LOCAL_ARRAY(ulong, values, ST_SAMPLE_CHUNK);
    const uint row = st_group_y(), item = st_item(), which = pass / 4, shift = 24 - pass % 4 * 8, bin = GROUP - 1 - item;
    global const struct st_sample_row *r = rows + row;
    global struct st_sample_state *s = state + row;
    if (!sample_chooses(r, s, which))
        return;
    const uint key_so_far = s->key[which];
    sums += (ulong)row * chunks * ST_SAMPLE_BINS;
    ulong mass = 0, total, left = s->left;
    for (uint c = 0; c < chunks; c++)
        mass += sums[(ulong)c * ST_SAMPLE_BINS + bin];
    const ulong before = sample_before(room, mass, &total);
    if (shift == 24 && which == 1) {
        left = (total >> 24) * r->share + ((total & 0xffffffu) * r->share >> 24);
        left = left == 0 ? 1 : left;
    } else if (shift == 24) {
        left = r->top_k;
    }
    if (before < left && left <= before + mass) {
        room[2 * GROUP] = bin;
        room[2 * GROUP + 1] = left - before;
    }
    st_barrier();
    const uint chosen = (uint)room[2 * GROUP], key = key_so_far | chosen << shift;
    left = room[2 * GROUP + 1];
    if (shift > 0) {
        if (item == 0) {
            s->key[which] = key;
            s->left = left;
        }
        return;
    }
    for (uint c = item; c < ST_SAMPLE_CHUNK; c += GROUP)
        values[c] = c < chunks ? sums[(ulong)c * ST_SAMPLE_BINS + chosen] : 0;
    left = left - 1;
    st_barrier();
    const uint chunk = sample_find(room, values, &left);
    for (uint i = item; i < ST_SAMPLE_CHUNK; i += GROUP) {
        const uint token = chunk * ST_SAMPLE_CHUNK + i;
        const float l = token < vocabulary ? adjusted[(ulong)row * vocabulary + token] : 0.0f;
        values[i] = token < vocabulary && sample_key(l) == key ? sample_mass(s, which, l, token, r->temperature) : 0;
    }
    st_barrier();
    const uint place = sample_find(room, values, &left);
    if (item == 0) {
        s->key[which] = key;
        s->last[which] = chunk * ST_SAMPLE_CHUNK + place;
    }
}

/* sums [rows][chunks]: weights of the chunk's tokens that take part in the draw. First kind. */
KERNEL(GROUP) st_sample_sum(global ulong *restrict sums, global const struct st_sample_state *restrict state,
                            global const float *restrict adjusted, global const struct st_sample_row *restrict rows,
                            uint vocabulary, uint chunks)
{
    LOCAL_ARRAY(ulong, room, SAMPLE_ROOM);
    const uint row = st_group_y();
    global const struct st_sample_row *r = rows + row;
    global const struct st_sample_state *s = state + row;
    ulong sum = 0, total;
    if (s->status != 0 || r->temperature == 0.0f)
        return;
    for (uint i = 0; i < SAMPLE_EACH; i++) {
        const uint token = st_group() * ST_SAMPLE_CHUNK + i * GROUP + st_item();
        sum += token < vocabulary ? sample_width(r, s, adjusted[(ulong)row * vocabulary + token], token) : 0;
    }
    (void)sample_before(room, sum, &total);
    if (st_item() == 0)
        sums[(ulong)row * chunks + st_group()] = total;
}

/* picks [rows]: the token that is drawn, of rows with a temperature. Second kind. */
KERNEL(GROUP) st_sample_draw(global struct st_sample_result *restrict picks, global const struct st_sample_state *restrict state,
                             global const ulong *restrict sums, global const float *restrict adjusted,
                             global const struct st_sample_row *restrict rows, uint vocabulary, uint chunks)
{
    LOCAL_ARRAY(ulong, room, SAMPLE_ROOM);
    LOCAL_ARRAY(ulong, values, ST_SAMPLE_CHUNK);
    const uint row = st_group_y(), item = st_item();
    global const struct st_sample_row *r = rows + row;
    global const struct st_sample_state *s = state + row;
    if (s->status != 0 || r->temperature == 0.0f)
        return;
    for (uint c = item; c < ST_SAMPLE_CHUNK; c += GROUP)
        values[c] = c < chunks ? sums[(ulong)row * chunks + c] : 0;
    st_barrier();
    const ulong total = sample_total(room, values);
    if (item == 0)
        picks[row].total = total;
    if (r->measure)
        return;
    ulong left = sample_high(r->random, total);
    const uint chunk = sample_find(room, values, &left);
    for (uint i = item; i < ST_SAMPLE_CHUNK; i += GROUP) {
        const uint token = chunk * ST_SAMPLE_CHUNK + i;
        values[i] = token < vocabulary ? sample_width(r, s, adjusted[(ulong)row * vocabulary + token], token) : 0;
    }
    st_barrier();
    const uint place = sample_find(room, values, &left);
    if (item == 0)
        picks[row].token = chunk * ST_SAMPLE_CHUNK + place;
}
