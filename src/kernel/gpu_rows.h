/* Products that read every weight once: up to eight activation rows at a time, dense or of the chosen experts, every type,
 * to the bit as st_dot_table.rows and rows_f32. More activation rows read the weights once for each eight. */
#ifndef ST_KERNEL_GPU_ROWS_H
#define ST_KERNEL_GPU_ROWS_H

#include "kernel/gpu/layout.h"
#include "kernel/gpu_launch.h"

enum { ST_GPU_ROWS_MATRICES = 4 };

struct st_gpu_rows {
    int type;
    enum st_act act; /* of the activations: the type's kind, or ST_ACT_F32 */
    /* Matrices of rows x n as in the file, which share the input; the experts' of one kind lie one after the other. Each starts
     * at a multiple of 16, and can be read up to the next one after its end. Without a routing up to four; with one, one. */
    struct st_gpu_rows_matrix {
        st_addr w, y; /* y: f32, ldy floats from row to row */
        uint32_t rows, ldy;
        uint32_t finish; /* ST_ROWS_FINISH_* */
    } matrix[ST_GPU_ROWS_MATRICES];
    uint32_t matrices;
    /* ST_ROWS_JOIN_SWIGLU: y = silu(matrix[0] x) * (second x), second like matrix[0]. ST_ROWS_JOIN_MEAN: matrix[0] stands for
     * `streams` matrices of its rows, one after the other; y = mean over streams c of sigmoid(product) * values[row][c][.]. Not
     * with scales. */
    uint32_t join;
    st_addr second, values;
    uint32_t streams; /* also of FINISH */
    st_addr x;        /* activation rows, stride bytes apart */
    uint32_t n, stride;
    /* Dense: output row i is activation row i times the one matrix, for i < total. Otherwise the entries of a routing
     * (kernel/moe.h) in their order: output row i belongs to the expert in whose range of first it lies; its activation row is
     * entry[i] / used, or i with used = 0. */
    uint32_t mode;  /* ST_ROWS_DENSE, ST_ROWS_ENTRY (for windows: total entries), ST_ROWS_EXPERT (for prompts) */
    uint32_t total; /* output rows */
    uint32_t most;  /* entries that one expert can have, for ST_ROWS_ENTRY at most ST_MAX_ROWS */
    uint32_t experts, used;
    st_addr first, entry, expert;
    /* Where an expert's matrices lie: expert_bytes from one to the next (0: without gaps), or with places at 64-bit offsets from
     * the first matrix's address, [experts] in device memory; those at ST_NO_PLACE are left out. */
    uint32_t expert_bytes;
    st_addr places;
    st_addr scales;  /* f32 factors of the outputs, or 0 */
    bool scale_each; /* one for each expert instead of one */
    uint32_t units;  /* of the device (struct st_device_info), 0 when they are not known */
};

/* STRATA_E_UNSUPPORTED when the type or the shape has no kernel. */
enum strata_result st_gpu_rows(const struct st_gpu_rows *a, struct st_gpu_launch *out, struct strata_error *err);

/* The type that a kernel of the family multiplies, -1 for a kernel of another family; *act as above. */
int st_gpu_rows_type(enum st_gpu_kernel kernel, enum st_act *act);

/* Bytes that a dense launch reads and writes; of experts, as if one were used. */
uint64_t st_gpu_rows_bytes(const union st_arg *args);

#endif
