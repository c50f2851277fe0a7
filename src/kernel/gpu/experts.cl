/* Grouped expert products of a decode window; body in product.h. One launch serves all used experts of a layer.
 *
 * jobs: one struct st_expert_job per used expert, with the places of its matrices as byte offsets from `base`. x: Q8 rows of
 * layout.h. grid: (ceil(rows / tile), jobs). n, tile as in matvec.cl; job.count is at most the number in the kernel's name.
 *
 * gate and up: h[place][o] = silu(gate row o . x[row]) * (up row o . x[row]); rows are those of one matrix, a group has
 * tile rows of each (so the limits of layout.h hold for twice tile).
 * down: y[place][o] = down row o . x[place]. */
#include "product.h"

#define GATE_UP(name, type, many)                                                                                         \
    KERNEL(GROUP) name(global float *restrict h, global const uchar *base, global const struct st_expert_job *restrict jobs,  \
                       global const uchar *restrict x, uint n, uint rows, uint ldh, uint tile)                                \
    {                                                                                                                         \
        LOCAL_ARRAY(uint4, bytes, ST_TILE_VECTORS((type) == Q8_0, (type) == Q2_0, many));                                     \
        LOCAL_ARRAY(int4, sums, ST_SUM_VECTORS((type) == Q8_0, many));                                                        \
        LOCAL_ARRAY(float4, scales, ST_SCALE_VECTORS((type) == Q8_0, many));                                                  \
        LOCAL_ARRAY(float, results, GROUP);                                                                                   \
        global const struct st_expert_job *job = jobs + st_group_y();                                                         \
        const uint first = st_group() * tile, item = st_item();                                                               \
        struct product p;                                                                                                     \
        p.n = n;                                                                                                              \
        p.row_bytes = BLOCKS_BYTES(type, n / 32);                                                                             \
        p.split = rows - first < tile ? rows - first : tile;                                                                  \
        p.rows = 2 * p.split;                                                                                                 \
        p.first = base + job->gate + (ulong)first * p.row_bytes;                                                              \
        p.second = base + job->up + (ulong)first * p.row_bytes;                                                               \
        results[item] = multiply_tile(type, (many) == 1 ? 1 : 2, bytes, sums, scales, &p, x, ST_Q8_STRIDE(n), job->row,       \
                                      job->count);                                                                            \
        st_barrier();                                                                                                         \
        if (item < p.split * job->count) {                                                                                    \
            const uint m = item / p.split, r = item % p.split;                                                                \
            h[(ulong)job->place[m] * ldh + first + r] = st_siluf(results[m * p.rows + r]) * results[m * p.rows + p.split + r]; \
        }                                                                                                                     \
    }

#define DOWN(name, type, many)                                                                                            \
    KERNEL(GROUP) name(global float *restrict y, global const uchar *base, global const struct st_expert_job *restrict jobs,  \
                       global const uchar *restrict x, uint n, uint rows, uint ldy, uint tile)                                \
    {                                                                                                                         \
        LOCAL_ARRAY(uint4, bytes, ST_TILE_VECTORS((type) == Q8_0, (type) == Q2_0, many));                                     \
        LOCAL_ARRAY(int4, sums, ST_SUM_VECTORS((type) == Q8_0, many));                                                        \
        LOCAL_ARRAY(float4, scales, ST_SCALE_VECTORS((type) == Q8_0, many));                                                  \
        global const struct st_expert_job *job = jobs + st_group_y();                                                         \
        const uint first = st_group() * tile, item = st_item();                                                               \
        struct product p;                                                                                                     \
        p.n = n;                                                                                                              \
        p.row_bytes = BLOCKS_BYTES(type, n / 32);                                                                             \
        p.rows = p.split = rows - first < tile ? rows - first : tile;                                                         \
        p.first = p.second = base + job->down + (ulong)first * p.row_bytes;                                                   \
        const float v = multiply_tile(type, (many) == 1 ? 1 : 2, bytes, sums, scales, &p, x, ST_Q8_STRIDE(n), job->place,     \
                                      job->count);                                                                            \
        if (item < p.rows * job->count)                                                                                       \
            y[(ulong)job->place[item / p.rows] * ldy + first + item % p.rows] = v;                                            \
    }

GATE_UP(st_gate_up_q8_0_1, Q8_0, 1)
GATE_UP(st_gate_up_q8_0_4, Q8_0, 4)
GATE_UP(st_gate_up_q8_0_8, Q8_0, 8)
GATE_UP(st_gate_up_q2_0_1, Q2_0, 1)
GATE_UP(st_gate_up_q2_0_4, Q2_0, 4)
GATE_UP(st_gate_up_q2_0_8, Q2_0, 8)
DOWN(st_down_q8_0_1, Q8_0, 1)
DOWN(st_down_q8_0_4, Q8_0, 4)
DOWN(st_down_q8_0_8, Q8_0, 8)
DOWN(st_down_q2_0_1, Q2_0, 1)
DOWN(st_down_q2_0_4, Q2_0, 4)
DOWN(st_down_q2_0_8, Q2_0, 8)
