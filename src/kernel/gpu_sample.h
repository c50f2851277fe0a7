/* Sampling family on devices: rows of logits become tokens (kernel/sample.h has the rules, gpu/sample.cl the kernels). */
#ifndef ST_KERNEL_GPU_SAMPLE_H
#define ST_KERNEL_GPU_SAMPLE_H

#include "kernel/gpu/sample_layout.h"
#include "kernel/gpu_ops.h"
#include "kernel/sample.h"

enum {
    ST_GPU_SAMPLE_VOCABULARY = ST_SAMPLE_CHUNK * ST_SAMPLE_CHUNK, /* at most */
    ST_GPU_SAMPLE_PAIRS = 4096, /* biases and tokens seen of a row, about: all rows share their room */
};

/* What rows ask for, together. */
struct st_gpu_sample_steps {
    bool draw, top_k, top_p;
};

/* A block is what the device is told about up to rows rows: struct st_sample_row for each, then lists and masks. Bytes of one: */
uint64_t st_gpu_sample_block(uint32_t rows, uint32_t vocabulary);
/* Writes the block of n rows. *used: the bytes that the device needs of it. False: the lists do not fit. */
bool st_gpu_sample_pack(const struct st_sample *rows, uint32_t n, uint32_t vocabulary, uint8_t *block, uint64_t bytes,
                        uint64_t *used, struct st_gpu_sample_steps *steps);

struct st_gpu_sample {
    st_addr picks;   /* [n] struct st_sample_pick */
    st_addr logits;  /* [n][vocabulary] f32 */
    st_addr block;   /* as packed */
    st_addr scratch; /* st_gpu_sample_scratch bytes, a multiple of 16 */
    uint32_t n, vocabulary;
    struct st_gpu_sample_steps steps;
};

uint64_t st_gpu_sample_scratch(uint32_t n, uint32_t vocabulary);
/* Appends the launches. STRATA_E_UNSUPPORTED for a vocabulary that is too large. */
enum strata_result st_gpu_sample(const struct st_gpu_sample *a, struct st_gpu_list *list, struct strata_error *err);

/* The C form of a launch (st_gpu_reference); false for a kernel of another family. */
bool st_gpu_sample_reference(enum st_gpu_kernel kernel, const uint32_t grid[3], const union st_arg *args);

#endif
