/* Memory layouts that the host and the GPU kernels share. Valid C and OpenCL C. Every size is in bytes, every part of a
 * row starts at a multiple of 16 bytes. n is the number of elements of a row, a multiple of 32 (Q8) or 256 (Q8K). */
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

/* Activation bytes are stored so that neighbouring work-items, each of which needs the bytes of its own unit of
 * columns, read neighbouring 16-byte vectors: vector k of all units, then vector k + 1 of all units. A unit has 64
 * columns; in the second copy, which two-bit weights are multiplied with, 128, and the 16 bytes of a vector are
 * transposed as a 4 x 4 matrix there (byte 4 b + c at place 4 c + b). The last unit may be padded. */
#define ST_UNITS(n) (((n) + 63) / 64)
#define ST_T_UNITS(n) (((n) + 127) / 128)
/* Where element e is, from the start of the copy. */
#define ST_PLACE(n, e) (((e) / 16 % 4 * ST_UNITS(n) + (e) / 64) * 16 + (e) % 16)
#define ST_T_PLACE(n, e) (((e) / 16 % 8 * ST_T_UNITS(n) + (e) / 128) * 16 + (e) % 4 * 4 + (e) / 4 % 4)

#define ST_ROUND16(bytes) (((bytes) + 15) / 16 * 16)

/* One row of Q8 activations: both copies of the bytes, a third in their own order (for prompts: groups of work-items copy
 * 64 columns of many rows), the scale of each 32 elements as f32, the sum of each 32 q as i32, the s of each 32 elements as f32
 * (docs/numerics.md: for types with a minimum). */
#define ST_Q8_TRANSPOSED(n) (ST_UNITS(n) * 64)
#define ST_Q8_PLAIN(n) (ST_Q8_TRANSPOSED(n) + ST_T_UNITS(n) * 128)
#define ST_Q8_SCALES(n) (ST_Q8_PLAIN(n) + ST_UNITS(n) * 64)
#define ST_Q8_SUMS(n) (ST_Q8_SCALES(n) + ST_ROUND16((n) / 8))
#define ST_Q8_S(n) (ST_Q8_SUMS(n) + ST_ROUND16((n) / 8))
#define ST_Q8_STRIDE(n) (ST_Q8_S(n) + ST_ROUND16((n) / 8))

/* One row of Q8K activations: the first copy of the bytes, the one in their own order, the scale of each 256 elements as f32, the sum of each 32 q
 * as i32; then for each 256 elements 32 signed bytes: the sums of 16 q as ST_PAIR * a + b, sixteen a, sixteen b (what
 * matrix units multiply minima with). */
#define ST_Q8K_PLAIN(n) (n)
#define ST_Q8K_SCALES(n) (2 * (n))
#define ST_Q8K_SUMS(n) (ST_Q8K_SCALES(n) + ST_ROUND16((n) / 64))
#define ST_Q8K_PAIRS(n) (ST_Q8K_SUMS(n) + ST_ROUND16((n) / 8))
#define ST_Q8K_STRIDE(n) (ST_Q8K_PAIRS(n) + (n) / 8)
#define ST_PAIR 64

/* Decode products: of a group of ST_PRODUCT_GROUP work-items the first ST_PRODUCT_ITEMS multiply and the others add. A
 * group handles tiles of weight rows; a multiplying work-item has one unit of columns (2 blocks of 32 elements, Q2_0:
 * 4) of ST_PRODUCT_PASSES rows of the tile. A row of more than ST_CHUNK blocks is cut into ceil(blocks / ST_CHUNK)
 * equal chunks, rounded up to 8 blocks. With `units` units in a chunk, `passes` rows and v = half of the units' blocks
 * | 1, a tile has at most ST_PRODUCT_ITEMS / units * passes rows, ST_TERM_VECTORS * passes / v rows and
 * ST_PRODUCT_GROUP - ST_PRODUCT_ITEMS rows; a tile that is not one stretch of memory beginning at a multiple of 16
 * bytes (rows in chunks, or rows whose bytes do not fit) at most ST_LOOSE_ROWS. many: activation rows that the kernel
 * can serve, 1 or ST_MAX_ROWS. */
#define ST_PRODUCT_GROUP 192
#define ST_PRODUCT_ITEMS 160
#define ST_PRODUCT_PASSES(q8_0, q2_0, many) ((q8_0) || ((q2_0) && (many) > 1) ? 1 : 2)
#define ST_TERM_VECTORS(q2_0) ((q2_0) ? 336 : 168)
#define ST_CHUNK 320
#define ST_LOOSE_ROWS 8

/* Most activation rows of one decode product. */
#define ST_MAX_ROWS 8

/* Products of rows.h: work-items of a group, 16-byte vectors of local memory for weights, pairs of words for terms, floats
 * for FP32 activations; the pairs that an output takes for `parts` parts of 32 elements (odd: outputs lie in different
 * banks). */
#define ST_ROWS_GROUP 128
#define ST_ROWS_STAGE 1088
#define ST_ROWS_ROOM 1152
#define ST_ROWS_INPUTS 4096
/* FP32 activations: outputs of a group, and floats for the partial sums of one (odd). */
#define ST_ROWS_OUTPUTS 64
#define ST_ROWS_TEAM 17
#define ST_ROWS_TERMS(parts, large, two) (((large) ? (parts) + (parts) / 8 : (two) ? 2 * (parts) : (parts)) | 1)

/* What the second index of the grid counts: eight activation rows of one matrix, entries of a routing (the first of each
 * expert has the work of all), or experts. */
#define ST_ROWS_DENSE 0
#define ST_ROWS_ENTRY 1
#define ST_ROWS_EXPERT 2
/* Bit of the mode: the third matrix stands for a list of 64-bit offsets, where each expert's matrix lies behind the first
 * matrix's address. Without it the experts lie one after the other. */
#define ST_ROWS_PLACED 256
/* The same for prompt products, a bit of the argument that says what is scaled. */
#define ST_GEMM_PLACED 256
/* Place of an expert that is not there: nothing is computed for it. */
#define ST_NO_PLACE 0xfffffffffffffffful

/* How the products of several matrices make one output: silu(first) * second, or the mean over streams of sigmoid(product) *
 * value. */
#define ST_ROWS_JOIN_NONE 0
#define ST_ROWS_JOIN_SWIGLU 1
#define ST_ROWS_JOIN_MEAN 2
/* What becomes of a product v of one matrix: silu(v / streams), 2 sigmoid(v / streams). */
#define ST_ROWS_FINISH_NONE 0
#define ST_ROWS_FINISH_SILU 1
#define ST_ROWS_FINISH_GATE 2

/* Prompt products (gemm.h): weight rows of a group's tile, and its activation rows: of large products, and of small ones and
 * experts. A tile of experts is four i32: expert or -1, first entry, entries, 0. */
#define ST_GEMM_OUT 128
#define ST_GEMM_WIDE 128
#define ST_GEMM_FEW 64

/* Opened weights (opened.h), what large prompt products read: tiles of ST_GEMM_OUT weight rows, one after the other. A tile is made
 * of steps of 64 columns: 64 signed bytes of each row, then rows of ST_GEMM_OUT numbers, one for each weight row: the scales of the
 * step's parts of 32 columns (halves: 16) as f32, in blocks of 256 as i32, and with `offset` the minima of the parts as f32. In
 * blocks of 256 every fourth step is followed by a row of d as f32 and, with `min`, a row of dmin as f32 and 16 bytes for
 * each weight row, the minima of each 16 columns. */
#define ST_OPENED_STEP(halves, offset) (ST_GEMM_OUT * (64 + 4 * (((halves) ? 4 : 2) + ((offset) ? 2 : 0))))
#define ST_OPENED_BLOCK(large, min) ((large) ? ST_GEMM_OUT * (4 + ((min) ? 20 : 0)) : 0)
/* Bytes before step `step`. */
#define ST_OPENED_AT(step, halves, offset, large, min) \
    ((step) * ST_OPENED_STEP(halves, offset) + (step) / 4 * ST_OPENED_BLOCK(large, min))

/* Folded weights (gemm_fold.h): tiles of ST_GEMM_OUT weight rows, one after the other, made of blocks of 256 columns. A weight times
 * its scale is 128 high + low, low in -64 .. 63. A block has the high digits, the low digits, a row of d as f32 or, with `min`,
 * d and dmin of two rows in turns (d d dmin dmin), and 16 bytes for each weight row, the minima of each 16 columns. Digits lie in vectors of 16 columns: the first
 * 16 columns of all rows, then the next 16. */
#define ST_FOLD_BLOCK(min) (ST_GEMM_OUT * (2 * 256 + 4 + ((min) ? 20 : 0)))
/* Folded activations: 64 rows at a time, the last row again and again where there are fewer, of a block of 256 columns: the bytes in
 * vectors as above, 64 scales as f32 and, with `min`, the sums of 16: 128 vectors of four words, number 32 a + 4 b + c
 * has words c of the upper sums of rows 16 a + b and 16 a + b + 8, then of the lower ones. */
#define ST_FOLD_ROWS 192
#define ST_FOLD_PART(min) (64 * (256 + 4 + ((min) ? 32 : 0)))
/* Bytes for all activation rows. */
#define ST_FOLD_X(n, total, min) \
    ((st_u64)(((total) + ST_FOLD_ROWS - 1) / ST_FOLD_ROWS) * (ST_FOLD_ROWS / 64) * ((n) / 256) * ST_FOLD_PART(min))

/* Strips (gemm_strips.h), of types with a scale for each 32 columns: tiles of ST_GEMM_OUT weight rows and of 128 activation rows,
 * made of chunks of 128 columns; the last chunk may hold less. Of weights a chunk has the bytes in vectors of 16 columns as above,
 * four rows of scales as f32, one for each 32 columns, and, with `offset`, four rows of minima. Of activations twice the vectors of
 * 64 rows, four times 128 scales and, with `offset`, four times 128 numbers s. */
#define ST_STRIPS_W(offset) (ST_GEMM_OUT * (128 + ((offset) ? 32 : 16)))
#define ST_STRIPS_X(offset) (128 * (128 + ((offset) ? 32 : 16)))
#define ST_STRIPS_ROWS(n, total, offset) ((st_u64)(((total) + 127) / 128) * (((n) + 127) / 128) * ST_STRIPS_X(offset))

#endif
