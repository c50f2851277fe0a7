/* Memory layouts that the host and the GPU kernels share. Valid C and OpenCL C. Every size is in bytes, every row starts at
 * a multiple of 16 bytes. n is the number of elements of a row, a multiple of 32 (Q8) or 256 (Q8K). */
#ifndef ST_KERNEL_GPU_LAYOUT_H
#define ST_KERNEL_GPU_LAYOUT_H

#ifdef __OPENCL_C_VERSION__
typedef uint st_u32;
typedef ulong st_u64;
#else
#include <stdint.h>
typedef uint32_t st_u32;
typedef uint64_t st_u64;
#endif

/* One row of Q8 activations: the bytes q[n]; the same bytes with each 16 elements transposed as a 4 x 4 matrix (element
 * 4 b + k at place 4 k + b, what two-bit weights are multiplied with); the scale d of each 32 elements as f32; the sum of each
 * 32 q as i32. */
#define ST_Q8_TRANSPOSED(n) (n)
#define ST_Q8_SCALES(n) (2 * (n))
#define ST_Q8_SUMS(n) (2 * (n) + (n) / 8)
#define ST_Q8_STRIDE(n) (2 * (n) + ((n) / 4 + 15) / 16 * 16)

/* One row of Q8K activations: the bytes q[n]; the scale of each 256 elements as f32; the sum of each 32 q as i32. */
#define ST_Q8K_SCALES(n) (n)
#define ST_Q8K_SUMS(n) ((n) + (n) / 64)
#define ST_Q8K_STRIDE(n) ((n) + ((n) / 64 + (n) / 8 + 15) / 16 * 16)

/* Products work on chunks of a row so that local memory is bounded: a row of `blocks` 32-element blocks is cut into
 * ceil(blocks / ST_CHUNK) chunks of equal size, rounded up to 8 blocks. */
#define ST_CHUNK 80

/* Local memory of a product kernel for up to `many` activation rows, in 16-byte vectors: the bytes of tile rows, the sums
 * and the scales. For chunks of `blocks` blocks a tile may have `rows` rows (of both matrices of a gate and up kernel together)
 * when rows * (bytes of a chunk + 32) / 16 + 2, rows * many * v and rows * v with v = ceil(blocks / 4) | 1 fit and
 * rows * many <= 128. */
#define ST_TILE_ROWS(q8_0, many) ((q8_0) || (many) > 1 ? 8 : 16)
#define ST_TILE_VECTORS(q8_0, q2_0, many) (ST_TILE_ROWS(q8_0, many) * (ST_CHUNK * ((q8_0) ? 34 : (q2_0) ? 9 : 18) / 16 + 2) + 2)
#define ST_SUM_VECTORS(q8_0, many) (ST_TILE_ROWS(q8_0, many) * (many) * (ST_CHUNK / 4 + 1))
#define ST_SCALE_VECTORS(q8_0, many) (ST_TILE_ROWS(q8_0, many) * (ST_CHUNK / 4 + 1))

/* Most activation rows of one decode product. */
#define ST_MAX_ROWS 8

/* One used expert of a window: where its matrices are (byte offsets from the address that the launch passes; they wrap, so
 * any address can be reached) and which rows it serves. place[i] = token * choices + choice, the row of h and of the output
 * that belongs to entry i; row[i] is the row of the input. */
struct st_expert_job {
    st_u64 gate, up, down;
    st_u32 count, reserved;
    st_u32 row[ST_MAX_ROWS];
    st_u32 place[ST_MAX_ROWS];
};

#endif
