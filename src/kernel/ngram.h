/* Hashed n-gram memory: rows of a huge table chosen by the last tokens, and their injection into the wide residual. */
#ifndef ST_KERNEL_NGRAM_H
#define ST_KERNEL_NGRAM_H

#include "kernel/rows.h"

enum { ST_NGRAM_HEADS = 64 };

/* How a row's token history becomes row numbers: heads of order 2 first, then of order 3, ... */
struct st_ngram_hash {
    uint32_t order;           /* longest n-gram, 2 .. ST_HISTORY + 1 */
    uint32_t heads_per_order; /* heads = heads_per_order * (order - 1) */
    uint32_t heads;
    int32_t reset; /* token that ends the history: it and everything before it count as this token */
    uint64_t multiplier[ST_HISTORY + 1];
    uint64_t size[ST_NGRAM_HEADS], offset[ST_NGRAM_HEADS];
};

/* Row numbers [heads] of one token. history: ids before it, nearest first, -1 where there is none. */
void st_ngram_rows(const struct st_ngram_hash *h, int32_t token, const int32_t *history, uint64_t *out);

/* e[r] = the row's table rows one after the other, decoded from what the engine has fetched (rows->ngram). */
struct st_ngram_gather {
    const struct st_rows *rows;
    int type; /* of the table's rows */
    size_t row_bytes;
    uint32_t heads, width;
    float *e; /* [rows][heads * width] */
};

/* key = norm(key) per stream, qry = norm(R) per stream, s = key . qry / sqrt(hidden), compressed by sign * sqrt(max(|s|,
 * 1e-6)); gv = sigmoid(s) * value; z = norm(gv); R += gv + silu(causal convolution of z with taps dilation apart). */
struct st_ngram_inject {
    const struct st_rows *rows;
    float *key;         /* [rows][streams * hidden], overwritten */
    const float *value; /* [rows][hidden] */
    const float *norm_key, *norm_query, *norm_conv; /* [streams * hidden] */
    const float *conv; /* [taps][streams * hidden], the last tap is the current token's */
    float *z;          /* scratch [rows][streams * hidden] */
    float *state;      /* [slots][(taps - 1) * dilation][streams * hidden]; ring: position p is at p mod its length */
    float *kept; /* NULL, or z of held rows [ST_HELD_ROWS][streams * hidden] */
    float *r;
    uint32_t streams, hidden, taps, dilation;
    float eps;
};

#endif
