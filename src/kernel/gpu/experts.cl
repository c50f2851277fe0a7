/* Grouped expert products of a decode window; body in product.h. One launch serves all used experts of a layer.
 *
 * jobs: one struct st_expert_job per used expert, with the places of its matrices as byte offsets from `base`. x: Q8 rows of
 * layout.h. grid: (groups, jobs): the groups of a job share its tiles. n, tile as in matvec.cl; job.count is at most the
 * number in the kernel's name; rows: of one matrix.
 *
 * gate and up: h[place][o] = silu(gate row o . x[row]) * (up row o . x[row]); a tile of gate is followed by the same of up.
 * down: y[place][o] = down row o . x[place]. */
#include "product.h"

#define EXPERTS(name, type, many, matrices, one, other, input) \
    KERNEL(GROUP) name(global float *restrict y, global const uchar *base, global const struct st_expert_job *restrict jobs, \
                       global const uchar *restrict x, uint n, uint rows, uint ldy, uint tile, uint groups) \
    { \
        PRODUCT_MEMORY(type, many); \
        global const struct st_expert_job *job = jobs + st_group_y(); \
        const struct product p = describe(type, n, rows, tile, groups); \
        run_product(type, many, matrices, tiles, terms, kept, &p, st_group(), base + job->one, base + job->other, x, \
                    ST_Q8_STRIDE(n), job->input, (many) == 1 ? 1 : job->count, y, ldy, job->place); \
    }

#define GATE_UP(name, type, many) EXPERTS(name, type, many, 2, gate, up, row)
#define DOWN(name, type, many) EXPERTS(name, type, many, 1, down, down, place)

GATE_UP(st_gate_up_q8_0_1, Q8_0, 1)
GATE_UP(st_gate_up_q8_0_8, Q8_0, 8)
GATE_UP(st_gate_up_q2_0_1, Q2_0, 1)
GATE_UP(st_gate_up_q2_0_8, Q2_0, 8)
DOWN(st_down_q8_0_1, Q8_0, 1)
DOWN(st_down_q8_0_8, Q8_0, 8)
DOWN(st_down_q2_0_1, Q2_0, 1)
DOWN(st_down_q2_0_8, Q2_0, 8)
