/* How fast a device's matrix units are when nothing else is asked of them: what prompt products are measured against.
 * Limit: matrix units. */
#include "dialect.h"

#define GROUP 256
#define PEAK_TILES 8 /* accumulators of a wave, independent of each other */

/* Every wave does rounds * 8 fragment products of 16 x 16 x 32; out: one word for each work-item. grid: any. */
KERNEL(GROUP) st_tile_peak(global int *restrict out, uint rounds)
{
    LOCAL_ARRAY(uint, operands, 256);
    operands[st_item()] = st_item() * 0x9e3779b9u;
    st_barrier();
    struct st_tile d[PEAK_TILES];
    const struct st_tile_a a = st_tile_load_a((local const char *)operands, 32, 0);
    const struct st_tile_b b = st_tile_load_b((local const char *)(operands + 128), 32, 0);
    UNROLL
    for (uint i = 0; i < PEAK_TILES; i++)
        st_tile_product(&d[i], &a, &b, (int)i, 2);
    for (uint r = 1; r < rounds; r++) {
        UNROLL
        for (uint i = 0; i < PEAK_TILES; i++)
            st_tile_multiply(&d[i], &a, &b);
    }
    int sum = 0;
    UNROLL
    for (uint i = 0; i < PEAK_TILES; i++)
        for (uint v = 0; v < ST_TILE_VALUES; v++)
            sum ^= d[i].v[v];
    out[(ulong)st_group() * GROUP + st_item()] = sum;
}
