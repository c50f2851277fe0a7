/* Router: choice of experts per row, and the rows' choices grouped by expert (struct st_routing of kernel/moe.h).
 *
 * Limit: latency. Order of the choice: larger logit first, lower index on ties; NaN counts as the smallest. */
#include "exchange.h"

#define GROUP 256

/* A number that orders like the float; 0 for NaN. */
INLINE uint route_key(float v)
{
    const uint u = st_bits_of(v);
    return v != v ? 0u : u >> 31 ? ~u : u | 0x80000000u;
}

/* expert, weight [rows][used]; shared [rows] holds the gate's logit and becomes its sigmoid. grid: (1, rows). */
KERNEL(GROUP) st_route_choose(global int *restrict expert, global float *restrict weight, global float *restrict shared,
                              global const float *restrict logits, uint experts, uint used)
{
    LOCAL_ARRAY(uint, words, GROUP);
    LOCAL_ARRAY(uint, best, GROUP / 32);
    const uint row = st_group_y(), item = st_item();
    global const float *logit = logits + (ulong)row * experts;
    uint last_key = 0xffffffffu, last = 0;
    float largest = 0.0f, sum = 0.0f;
    for (uint n = 0; n < used; n++) {
        uint key = 0;
        for (uint e = item; e < experts; e += GROUP) {
            const uint k = route_key(logit[e]);
            if (n == 0 || k < last_key || (k == last_key && e > last))
                key = k + 1 > key ? k + 1 : key; /* 0: none */
        }
        const uint top = max256(words, best, key) - 1;
        st_barrier();
        uint place = 0; /* experts - index, so that the lowest index is the largest */
        for (uint e = item; e < experts; e += GROUP)
            if (route_key(logit[e]) == top && (n == 0 || top < last_key || e > last))
                place = experts - e > place ? experts - e : place;
        last = experts - max256(words, best, place);
        st_barrier();
        last_key = top;
        const float v = logit[last];
        largest = n == 0 ? v : largest;
        const float w = st_expf(v - largest);
        sum = sum + w;
        if (item == 0) {
            expert[(ulong)row * used + n] = (int)last;
            weight[(ulong)row * used + n] = w;
        }
    }
    if (item == 0) {
        for (uint n = 0; n < used; n++)
            weight[(ulong)row * used + n] = weight[(ulong)row * used + n] / sum;
        shared[row] = st_sigmoidf(shared[row]);
    }
}

#define ROUTE_EACH 16      /* experts of a work-item, at most */
#define ROUTE_ENTRIES 256 /* choices of a window, at most */

/* The whole choice of a window, as st_route_choose, st_route_count, st_route_sum and st_route_place make it: 32 neighbours have a
 * row, with the logits in registers. One group; rows up to 8, experts up to 512, rows * used up to 256. */
KERNEL(GROUP) st_route_window(global int *restrict expert, global float *restrict weight, global float *restrict shared,
                              global int *restrict first, global int *restrict entry, global int *restrict where,
                              global const float *restrict logits, uint rows, uint experts, uint used)
{
    LOCAL_ARRAY(uint, words, GROUP);
    LOCAL_ARRAY(uint, chosen, ROUTE_ENTRIES);
    LOCAL_ARRAY(float, values, GROUP);
    const uint item = st_item(), lane = item % 32, mine = item / 32, row = mine < rows ? mine : 0;
    global const float *logit = logits + (ulong)row * experts;
    uint key[ROUTE_EACH]; /* 0: none, or taken */
    UNROLL
    for (uint i = 0; i < ROUTE_EACH; i++)
        key[i] = 32 * i + lane < experts ? route_key(logit[32 * i + lane]) + 1 : 0;
    uint own = 0; /* the expert of the choice that is this work-item's to weigh */
    for (uint n = 0; n < used; n++) {
        uint best = 0, place = 0; /* experts - index, so that the lowest index is the largest */
        UNROLL
        for (uint i = 0; i < ROUTE_EACH; i++)
            best = key[i] > best ? key[i] : best;
        best = max32(words, best);
        UNROLL
        for (uint i = ROUTE_EACH; i-- > 0;)
            place = key[i] == best ? experts - 32 * i - lane : place;
        const uint e = experts - max32(words, place);
        UNROLL
        for (uint i = 0; i < ROUTE_EACH; i++)
            key[i] = e == 32 * i + lane ? 0 : key[i];
        own = n == lane ? e : own;
        if (lane == 0 && mine < rows) {
            chosen[row * used + n] = e;
            expert[row * used + n] = (int)e;
        }
    }
    /* the weights: of all choices at once, added in order */
    const float v = lane < used ? logit[own] : 0.0f;
    st_barrier();
    values[item] = v;
    st_barrier();
    const float w = st_expf(v - values[item - lane]);
    st_barrier();
    values[item] = w;
    st_barrier();
    float sum = 0.0f;
    UNROLL_TERMS
    for (uint n = 0; n < used; n++)
        sum = sum + values[item - lane + n];
    if (mine < rows && lane < used)
        weight[row * used + lane] = w / sum;
    if (mine < rows && lane == 0)
        shared[row] = st_sigmoidf(shared[row]);
    const uint entries = rows * used;
    for (uint e = item; e <= experts; e += GROUP) {
        uint before = 0;
        UNROLL_TERMS
        for (uint i = 0; i < entries; i++)
            before += chosen[i] < e;
        first[e] = (int)before;
    }
    if (item < entries) {
        uint at = 0;
        UNROLL_TERMS
        for (uint i = 0; i < entries; i++)
            at += chosen[i] < chosen[item] || (chosen[i] == chosen[item] && i < item);
        entry[at] = (int)item;
        where[item] = (int)at;
    }
}

/* first[expert + 1] = number of entries of the expert. grid: (experts, 1). */
KERNEL(GROUP) st_route_count(global int *restrict first, global const int *restrict expert, uint entries)
{
    LOCAL_ARRAY(uint, room, BEFORE_WORDS);
    uint count = 0, total;
    for (uint i = st_item(); i < entries; i += GROUP)
        count += (uint)expert[i] == st_group();
    (void)before256(room, count, &total);
    if (st_item() == 0)
        first[st_group() + 1] = (int)total;
}

/* Sums up first in place. One group. */
KERNEL(GROUP) st_route_sum(global int *restrict first, uint experts)
{
    LOCAL_ARRAY(uint, room, BEFORE_WORDS);
    uint before = 0;
    if (st_item() == 0)
        first[0] = 0;
    for (uint base = 0; base < experts; base += GROUP) {
        const uint e = base + st_item(), value = e < experts ? (uint)first[e + 1] : 0;
        uint total;
        const uint mine = before256(room, value, &total);
        if (e < experts)
            first[e + 1] = (int)(before + mine + value);
        before += total;
    }
}

/* entry, where: the entries of each expert in ascending order from first[expert] on. grid: (experts, 1). */
KERNEL(GROUP) st_route_place(global int *restrict entry, global int *restrict where, global const int *restrict first,
                             global const int *restrict expert, uint entries)
{
    LOCAL_ARRAY(uint, room, BEFORE_WORDS);
    const uint e = st_group();
    uint at = (uint)first[e];
    if (first[e] == first[e + 1])
        return;
    for (uint base = 0; base < entries; base += GROUP) {
        const uint i = base + st_item(), mine = i < entries && (uint)expert[i] == e;
        uint total;
        const uint place = before256(room, mine, &total);
        if (mine) {
            entry[at + place] = (int)i;
            where[i] = (int)(at + place);
        }
        at += total;
    }
}
