/* Grouped-query attention with a block index: each query attends to the best blocks of ratio tokens, by the index's
 * score, and to the incomplete last block. With at most budget / ratio blocks it is plain causal attention.
 *
 * Query rows: per head [query(head_dim) | gate(head_dim)], or the query alone where outputs are not gated. Rotation: pairs
 * (i, i + rot/2) of the first rot elements, or neighbours (2i, 2i + 1); pair i turns by axis(i) * freq[i]
 * and is multiplied by 1 + gain. */
#ifndef ST_KERNEL_QSA_H
#define ST_KERNEL_QSA_H

#include "kernel/rows.h"

enum {
    ST_QSA_RING = 16, /* raw index keys kept per slot: the open block plus the longest window that may be taken back */
    ST_ROT_MAX = 512,
};

/* Storage of keys and values. INT8: dim signed bytes, then one f32 scale for each 64 elements. Q4: dim / 2 bytes (element i of
 * a 32-block in the low nibble of byte i mod 16 for i < 16, otherwise in the high one), then for each 32 elements an f16
 * scale and an f16 minimum. Rows of one position and head are contiguous. */
enum st_kv_type { ST_KV_F32, ST_KV_F16, ST_KV_INT8, ST_KV_Q4, ST_KV_COUNT };

/* Bytes of dim elements; 0 when the type cannot hold rows of that length. */
size_t st_kv_row_bytes(enum st_kv_type type, size_t dim);

struct st_rope {
    uint32_t rot;                  /* rotated elements, even */
    bool neighbours;               /* pairs (2i, 2i + 1) instead of halves */
    float freq[ST_ROT_MAX / 2];    /* per pair */
    float gain;                    /* turned elements grow by this share; 0 unless the context is extended */
    uint8_t axis[ST_ROT_MAX / 2];  /* 0 t, 1 h, 2 w */
    const float *freq_at;          /* the same two lists where a device reads them; NULL on the CPU */
    const uint8_t *axis_at;
};

struct st_qsa {
    const struct st_rows *rows;
    const struct st_rope *rope;
    float *q;       /* [rows][heads][(gated ? 2 : 1) * head_dim]; query parts are normed and rotated in place */
    const float *k; /* [rows][kv_heads * head_dim] */
    const float *v;
    float *iq;       /* [rows][index_heads * index_dim], normed and rotated in place */
    const float *ik; /* [rows][index_dim] */
    const float *q_norm, *k_norm, *iq_norm, *ik_norm; /* the first two NULL: no norm */
    uint8_t *k_cache, *v_cache; /* [slots][kv_heads][context][kv_bytes] */
    float *raw_ring;         /* [slots][ST_QSA_RING][index_dim]; position p is at p mod ST_QSA_RING */
    int32_t *axis_ring;      /* [slots][ST_QSA_RING][3] */
    float *pooled;           /* [slots][context / ratio][index_dim] */
    size_t kv_bytes;         /* st_kv_row_bytes of head_dim */
    uint32_t *chosen;        /* scratch [rows][budget + ratio]: allowed positions */
    int32_t *chosen_count;   /* scratch [rows]; -1: all positions up to the row's */
    float *out;              /* [rows][heads * head_dim] */
    bool gated;
    enum st_kv_type kv;
    uint32_t heads, kv_heads, head_dim, index_heads, index_dim, context;
    uint32_t budget, ratio; /* ratio 0: dense, no index */
    float eps;
};

#endif
