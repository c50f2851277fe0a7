/* Experts' share of prompt products: which tile belongs to which expert. Limit: latency, it runs once for a layer. */
#include "exchange.h"

#define GROUP 256

/* tiles: four i32 each (layout.h), the tiles of `tile` entries of each expert, then -1 up to `bound` tiles. One group. */
KERNEL(GROUP) st_gemm_tiles(global int *restrict tiles, global const int *restrict first, uint experts, uint tile, uint bound)
{
    LOCAL_ARRAY(uint, room, BEFORE_WORDS);
    uint before = 0;
    for (uint base = 0; base < experts; base += GROUP) {
        const uint e = base + st_item(), from = e < experts ? (uint)first[e] : 0, to = e < experts ? (uint)first[e + 1] : 0;
        uint total;
        const uint mine = before + before256(room, (to - from + tile - 1) / tile, &total);
        for (uint i = from, t = mine; i < to && t < bound; i += tile, t++) {
            tiles[4 * t] = (int)e;
            tiles[4 * t + 1] = (int)i;
            tiles[4 * t + 2] = (int)(to - i < tile ? to - i : tile);
            tiles[4 * t + 3] = 0;
        }
        before += total;
    }
    for (uint t = before + st_item(); t < bound; t += GROUP)
        tiles[4 * t] = -1;
}
