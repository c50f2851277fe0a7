/* Shows that the dialect means the same on every device: each primitive of dialect.h that kernels build on, one value per
 * work-item and primitive. The host computes the same table (src/kernel/gpu_check.c). Limit: none, it runs once. */
#include "dialect.h"

#define GROUP 128

/* out[value * 128 + item]; in: 128 words; tile: 16 x 32 bytes of A, then 16 x 32 bytes of B; sums: 16 x 16 products.
 * flag: 7 + value 0 of item 0's input, stored last at system scope. grid: 1 group. */
KERNEL(GROUP) st_dialect(global uint *out, global int *sums, global uint *flag, global const uint *in, global const uint4 *tile)
{
    LOCAL_ARRAY(uint, words, GROUP);
    LOCAL_ARRAY(uint4, operands, 64);
    const uint item = st_item(), word = in[item];
    words[item] = word;
    st_barrier();
    if (item < 64)
        st_copy_issue(operands + item, tile + item);
    st_copies_commit();
    st_copies_wait(0);
    st_barrier();

    out[0 * GROUP + item] = words[(item + 1) % GROUP];
    out[1 * GROUP + item] = st_shuffle(word, st_lane() ^ (ST_LANES - 1));
    uint x = word;
    for (uint mask = 1; mask < ST_LANES; mask *= 2)
        x ^= st_shuffle_xor(x, mask) * 3;
    out[2 * GROUP + item] = x;
    const ulong votes = st_ballot((word & 1) != 0);
    out[3 * GROUP + item] = (uint)votes ^ (uint)(votes >> 32);
    out[4 * GROUP + item] = st_any(word % 64 == 5);
    out[5 * GROUP + item] = (uint)st_dot4(word, words[(item + 1) % GROUP], (int)item);
    uint lower, upper, with_lower = words[(item + 1) % GROUP], with_upper = word;
    st_lookup_nibbles(word, 0x03020100u, 0x87868584u, 0x0b0a0908u, 0x8f8e8d8cu, &lower, &upper);
    st_match_nibbles(&with_lower, &with_upper);
    out[6 * GROUP + item] = (uint)st_dot4(lower, with_lower, st_dot4(upper, with_upper, 0));
    const float f = st_float_of((word & 0x807fffffu) | 0x3f000000u);
    out[7 * GROUP + item] = st_bits_of(st_sqrt(st_abs(f)));
    out[8 * GROUP + item] = st_bits_of(1.0f / f);
    out[9 * GROUP + item] = st_bits_of(st_rsqrt(st_abs(f)));
    out[10 * GROUP + item] = st_bits_of(st_expf(f * 60.0f));
    out[11 * GROUP + item] = st_bits_of(st_siluf(f * 8.0f));
    out[12 * GROUP + item] = st_bits_of(st_float_of_half((ushort)word));
    out[13 * GROUP + item] = st_half_of_float(f * (float)(word & 0xffu) * 0x1p-20f);
    out[14 * GROUP + item] = (uint)st_round_even(f * 100.0f);
    out[15 * GROUP + item] = st_bits_of(st_fma(f, 1.0f / 3.0f, -f));

    struct st_tile d;
    for (uint i = 0; i < ST_TILE_VALUES; i++)
        d.v[i] = (int)i;
    const struct st_tile_a a = st_tile_load_a((local const char *)operands, 32, 0);
    const struct st_tile_b b = st_tile_load_b((local const char *)(operands + 32), 32, 0);
    st_tile_multiply(&d, &a, &b);
    st_tile_multiply(&d, &a, &b);
    if (item < ST_LANES)
        for (uint i = 0; i < ST_TILE_VALUES; i++)
            sums[st_tile_row(i) * 16 + st_tile_column(i)] = d.v[i] - (int)i;
    if (item == 0)
        st_store_system(flag, 7 + word);
}
