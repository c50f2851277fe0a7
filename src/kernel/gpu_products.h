/* Decode products: 1 to 8 activation rows times a weight matrix of Q8_0, Q2_0, IQ4_NL or Q4_K blocks, to the bit as
 * st_dot_table.rows. */
#ifndef ST_KERNEL_GPU_PRODUCTS_H
#define ST_KERNEL_GPU_PRODUCTS_H

#include "kernel/gpu/layout.h"
#include "kernel/gpu_launch.h"

struct st_gpu_matvec {
    int type;
    st_addr y; /* [count][rows] f32, ldy floats from row to row */
    st_addr
        w; /* rows x n as in the file; starts at a multiple of 16 and is readable up to the next one after its end */
    st_addr x; /* count activation rows in the type's layout, st_gpu_act_stride apart */
    uint32_t n, rows, count, ldy;
    uint32_t tile; /* weight rows that a group works on at a time: up to ST_LOOSE_ROWS, the limit, or 0 for the limit */
    uint32_t units; /* of the device (struct st_device_info), 0 when they are not known */
};

/* STRATA_E_UNSUPPORTED when the type or the shape has no kernel. */
enum strata_result st_gpu_matvec(const struct st_gpu_matvec *a, struct st_gpu_launch *out, struct strata_error *err);

/* The most weight rows that a group can work on at a time for the type, up to `many` (1 or ST_MAX_ROWS) activation
 * rows and n columns; 0 when no kernel can serve n. */
uint32_t st_gpu_tile_limit(int type, uint32_t many, uint32_t n);

#endif
