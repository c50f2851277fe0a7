/* Worker scratch of the attention family: the order of blocks, and the tiles of the running softmax. */
#ifndef ST_KERNEL_QSA_SCRATCH_H
#define ST_KERNEL_QSA_SCRATCH_H

#include "kernel/qsa.h"

enum {
    ST_QSA_DIM_MAX = 1024,
    ST_QSA_GROUP_MAX = 64,
    ST_QSA_TILE = 64, /* positions that a step of the running softmax takes; part of the defined order of sums */
    ST_QSA_ROWS = 8,  /* rows of a prompt that share a tile */
};

struct st_qsa_scratch {
    float *k, *v;  /* [ST_QSA_TILE][head_dim] decoded tiles */
    float *acc;    /* [ST_QSA_ROWS][heads / kv_heads][head_dim] */
    float *top;    /* [ST_QSA_ROWS][heads / kv_heads] largest score so far */
    float *sum;    /* the same: sum of exponentials so far */
    uint64_t *key; /* [context / ratio] */
    uint8_t *taken; /* one bit per block */
};

static inline struct st_qsa_scratch st_qsa_scratch_at(const struct st_qsa *a, void *memory)
{
    size_t states = ST_QSA_ROWS * (size_t)(a->heads / a->kv_heads), tile = (size_t)ST_QSA_TILE * a->head_dim;
    struct st_qsa_scratch s = {.k = memory};
    s.v = s.k + tile;
    s.acc = s.v + tile;
    s.top = s.acc + states * a->head_dim;
    s.sum = s.top + states;
    s.key = (uint64_t *)(void *)(s.sum + states);
    s.taken = (uint8_t *)(s.key + (a->ratio ? a->context / a->ratio : 0));
    return s;
}

/* Bytes that st_qsa_scratch_at lays out. */
static inline size_t st_qsa_scratch_bytes(const struct st_qsa *a)
{
    size_t states = ST_QSA_ROWS * (size_t)(a->heads / a->kv_heads), blocks = a->ratio ? a->context / a->ratio : 0;
    return (2 * (size_t)ST_QSA_TILE * a->head_dim + states * (a->head_dim + 2ul)) * 4 + blocks * 8 + (blocks + 7) / 8;
}

#endif
