/* Gated delta network: short convolution, delta-rule recurrence over a matrix state, gated norm.
 *
 * Value head j uses key head j mod key_heads (the tiled order of GGUF files). Per row, with q, k normalised and q scaled by
 * 1/sqrt(key_dim): S *= exp(g); d = beta * (v - S'k); S += k d'; o = S'q; o = norm(o) * gamma * sigmoid(z). */
#ifndef ST_KERNEL_GDN_H
#define ST_KERNEL_GDN_H

#include "kernel/rows.h"

enum {
    ST_GDN_CHUNK = 64, /* rows that the chunked form takes at once */
    ST_GDN_STEP = 8,   /* spans up to this many rows go step by step, so that decode windows are row-independent */
};

struct st_gdn {
    const struct st_rows *rows;
    const float *u; /* [rows][channels] before the convolution: q, k (key_heads * key_dim each), v */
    const float *z; /* [rows][value_heads * value_dim] output gate */
    const float *b, *a; /* [rows][value_heads] */
    const float *conv;  /* [taps][channels], the last tap is the current row's */
    const float *ssm_a, *dt_bias; /* [value_heads]; ssm_a is -exp(A_log) */
    const float *gamma;           /* [value_dim] */
    float *conv_state; /* [slots][taps - 1][channels]; ring: position p is at p mod (taps - 1) */
    float *state;      /* [slots][value_heads][key_dim][value_dim] */
    float *kept; /* NULL, or of held rows: u [ST_HELD_ROWS][channels], b and a [ST_HELD_ROWS][value_heads] */
    float *c;          /* scratch [rows][channels]: after the convolution */
    float *o;          /* [rows][value_heads * value_dim] */
    uint32_t key_heads, value_heads, key_dim, value_dim, taps, channels;
    float eps;
};

/* Floats of kept. */
static inline size_t st_gdn_kept_floats(size_t channels, size_t value_heads)
{
    return ST_HELD_ROWS * (channels + 2 * value_heads);
}
/* The three arrays of kept. */
static inline float *st_gdn_kept_u(const struct st_gdn *a)
{
    return a->kept;
}
static inline float *st_gdn_kept_b(const struct st_gdn *a)
{
    return a->kept + (size_t)ST_HELD_ROWS * a->channels;
}
static inline float *st_gdn_kept_a(const struct st_gdn *a)
{
    return a->kept + (size_t)ST_HELD_ROWS * (a->channels + a->value_heads);
}

#endif
