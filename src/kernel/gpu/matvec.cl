/* Decode products: y[m][o] = row o of w times activation row m, for 1 to 8 activation rows; body in product.h.
 *
 * w: rows of the file's blocks. x: Q8 rows (Q4_K: Q8K rows) of layout.h. y: f32, ldy floats from row to row.
 * n: columns, a multiple of 32 (Q8_0, IQ4_NL), 64 (Q2_0), 256 (Q4_K). tile: weight rows of a tile within the limits of
 * layout.h. count: activation rows, at most the number in the kernel's name. grid: groups, which share the tiles. */
#include "product.h"

#define MATVEC(name, type, many) \
    KERNEL(GROUP) name(global float *restrict y, global const uchar *restrict w, global const uchar *restrict x, uint n, \
                       uint rows, uint count, uint ldy, uint tile, uint groups) \
    { \
        PRODUCT_MEMORY(type, many); \
        const struct product p = describe(type, n, rows, tile, groups); \
        run_product(type, many, tiles, terms, kept, &p, st_group(), w, x, \
                    (type) == Q4_K ? ST_Q8K_STRIDE(n) : ST_Q8_STRIDE(n), (many) == 1 ? 1 : count, y, ldy); \
    }

MATVEC(st_mv_q8_0_1, Q8_0, 1)
MATVEC(st_mv_q8_0_8, Q8_0, 8)
MATVEC(st_mv_q2_0_1, Q2_0, 1)
MATVEC(st_mv_q2_0_8, Q2_0, 8)
MATVEC(st_mv_iq4_nl_1, IQ4_NL, 1)
MATVEC(st_mv_iq4_nl_8, IQ4_NL, 8)
MATVEC(st_mv_q4_k_1, Q4_K, 1)
MATVEC(st_mv_q4_k_8, Q4_K, 8)
