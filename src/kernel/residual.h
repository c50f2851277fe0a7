/* Wide residual of C streams: embedding, gated read and write, choice of output rows.
 *
 * R is [rows][streams][hidden] f32, stream-major. Source of the formulas: Qwen3.8-Flash-Next's gated residual. */
#ifndef ST_KERNEL_RESIDUAL_H
#define ST_KERNEL_RESIDUAL_H

#include "kernel/products.h"

/* R[r][c] = embedding of the row's token (or the row's own input embedding) for every stream. */
struct st_embed {
    const struct st_rows *rows;
    const struct st_weight *table; /* [vocabulary][hidden] */
    float *r;
    uint32_t streams;
};

/* x = rms_norm of each stream * gamma; lo = silu((down x) / streams); m = mean over streams of sigmoid(up lo) * x;
 * inject[c] = 2 sigmoid((inject x)[c] / streams). */
struct st_gated_read {
    const int32_t *n;
    const float *r;     /* [*n][streams * hidden] */
    const float *gamma; /* [streams * hidden] */
    const struct st_weight *down, *up;
    const struct st_weight *inject; /* NULL: read only */
    float *m;                       /* [*n][hidden] */
    float *inj;                     /* [*n][streams] */
    uint32_t streams, hidden, rank;
    float eps;
    float *x, *lo; /* scratch: [*n][streams * hidden], [*n][rank] */
    struct st_act_buffer *acts;
};

/* r[c] += inj[c] * o for every stream. */
struct st_gated_write {
    const int32_t *n;
    float *r;
    const float *inj; /* [*n][streams] */
    const float *o;   /* [*n][hidden] */
    uint32_t streams, hidden;
};

/* to[i] = from[rows->out[i]], width floats each. */
struct st_select {
    const struct st_rows *rows;
    const float *from;
    float *to;
    uint32_t width;
};

/* Input of a draft layer, one row per stream: x[r][c] = [norm(embedding) ; norm(hidden)[c]].
 * The embedding is that of the row's token; hidden is the trunk's wide residual that the row is paired with. */
struct st_draft_input {
    const struct st_rows *rows;
    const struct st_weight *table;
    const float *hidden_in;          /* [rows][streams * hidden] */
    const float *enorm, *hnorm;      /* [hidden], [streams * hidden] */
    float *x;                        /* [rows * streams][2 * hidden] */
    uint32_t streams, hidden;
    bool per_stream;                 /* normalise each stream of hidden by itself instead of the whole vector */
    float eps;
};

#endif
