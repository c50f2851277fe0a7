/* Worker scratch of the attention family: scores of the query heads that share a key head, and the order of blocks. */
#ifndef ST_KERNEL_QSA_SCRATCH_H
#define ST_KERNEL_QSA_SCRATCH_H

#include "kernel/qsa.h"

enum { ST_QSA_DIM_MAX = 1024, ST_QSA_GROUP_MAX = 64 };

struct st_qsa_scratch {
    float *score; /* [heads / kv_heads][score_stride] */
    size_t score_stride;
    float *inverse; /* [heads / kv_heads] */
    uint64_t *key;  /* [context / ratio] */
    uint8_t *taken; /* one bit per block */
};

/* Positions that one row may attend to at most. */
static inline size_t st_qsa_positions(const struct st_qsa *a)
{
    return a->ratio && a->budget + a->ratio < a->context ? a->budget + a->ratio : a->context;
}

static inline struct st_qsa_scratch st_qsa_scratch_at(const struct st_qsa *a, void *memory)
{
    size_t group = a->heads / a->kv_heads, blocks = a->ratio ? a->context / a->ratio : 0;
    struct st_qsa_scratch s = {.key = memory, .score_stride = st_qsa_positions(a)};
    s.score = (float *)(s.key + blocks);
    s.inverse = s.score + group * s.score_stride;
    s.taken = (uint8_t *)(s.inverse + group);
    return s;
}

/* Bytes that st_qsa_scratch_at lays out. */
static inline size_t st_qsa_scratch_bytes(const struct st_qsa *a)
{
    size_t group = a->heads / a->kv_heads, blocks = a->ratio ? a->context / a->ratio : 0;
    return blocks * 8 + group * (st_qsa_positions(a) + 1) * 4 + (blocks + 7) / 8;
}

#endif
