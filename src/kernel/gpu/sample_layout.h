/* What the host and the kernels of sample.cl share. Valid C and OpenCL C. */
#ifndef ST_KERNEL_GPU_SAMPLE_LAYOUT_H
#define ST_KERNEL_GPU_SAMPLE_LAYOUT_H

#include "layout.h"

#define ST_SAMPLE_CHUNK 2048          /* logits of a group */
#define ST_SAMPLE_BINS 256            /* values of a digit of the key */
#define ST_SAMPLE_NO_MASK 0xffffffffu /* mask of a row that has none */

/* struct st_sample of kernel/sample.h as kernels read it. Lists are pairs of words, (token, bias as float bits) and (token,
 * times), and lie with the masks in one array: bias, seen and mask are indices of first words. */
struct st_sample_row {
    st_u64 random, least;
    float temperature, repetition, frequency, presence;
    st_u32 top_k, share;
    st_u32 bias, biases, seen, seen_count;
    st_u32 mask, measure;
};

/* struct st_sample_pick. */
struct st_sample_result {
    st_u32 token, status;
    st_u64 total;
};

/* What the kernels find out about a row. key and last: top-k [0] and top-p [1] keep tokens with larger keys and those with this
 * key up to token last. */
struct st_sample_state {
    st_u64 left; /* what tokens with the key's digits so far have to give to the choice under way */
    float best;  /* logit */
    st_u32 status;
    st_u32 key[2], last[2];
};

#endif
