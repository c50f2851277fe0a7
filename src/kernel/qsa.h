/* Grouped-query attention with a block index: each query attends to the best blocks of ratio tokens, by the index's
 * score, and to the incomplete last block. With at most budget / ratio blocks it is plain causal attention.
 *
 * Query rows: per head [query(head_dim) | gate(head_dim)]. Rotation: pairs (i, i + rot/2) of the first rot elements; pair i
 * turns by axis(i) * freq[i]. */
#ifndef ST_KERNEL_QSA_H
#define ST_KERNEL_QSA_H

#include "kernel/rows.h"

enum {
    ST_QSA_RING = 16, /* raw index keys kept per slot: the open block plus the longest window that may be taken back */
    ST_ROT_MAX = 512,
};

enum st_kv_type { ST_KV_F32, ST_KV_F16 };

struct st_rope {
    uint32_t rot;                  /* rotated elements, even */
    float freq[ST_ROT_MAX / 2];    /* per pair */
    uint8_t axis[ST_ROT_MAX / 2];  /* 0 t, 1 h, 2 w */
};

struct st_qsa {
    const struct st_rows *rows;
    const struct st_rope *rope;
    float *q;       /* [rows][heads][2 * head_dim]; query parts are normed and rotated in place */
    const float *k; /* [rows][kv_heads * head_dim] */
    const float *v;
    float *iq;       /* [rows][index_heads * index_dim], normed and rotated in place */
    const float *ik; /* [rows][index_dim] */
    const float *q_norm, *k_norm, *iq_norm, *ik_norm;
    void *k_cache, *v_cache; /* [slots][kv_heads][context][head_dim] of kv type */
    float *raw_ring;         /* [slots][ST_QSA_RING][index_dim]; position p is at p mod ST_QSA_RING */
    int32_t *axis_ring;      /* [slots][ST_QSA_RING][3] */
    float *pooled;           /* [slots][context / ratio][index_dim] */
    uint32_t *chosen;        /* scratch [rows][budget + ratio]: allowed positions */
    int32_t *chosen_count;   /* scratch [rows]; -1: all positions up to the row's */
    float *out;              /* [rows][heads * head_dim], gated */
    enum st_kv_type kv;
    uint32_t heads, kv_heads, head_dim, index_heads, index_dim, context;
    uint32_t budget, ratio; /* ratio 0: dense, no index */
    float eps;
};

#endif
