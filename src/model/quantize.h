/* Rewriting a GGUF file with other tensor types. */
#ifndef ST_MODEL_QUANTIZE_H
#define ST_MODEL_QUANTIZE_H

#include "base/result.h"

/* Tensors whose name matches the pattern (PCRE2, anywhere in the name) get this type; the first rule that matches counts. */
struct st_quantize_rule {
    const char *pattern;
    int type; /* enum st_type */
};

struct st_quantize_options {
    const char *in, *out;
    int type; /* of every matrix that no rule names, unless it is a router or a convolution kernel */
    const struct st_quantize_rule *rules;
    size_t n_rules;
    int threads;
    /* After each tensor: what it was and is, and the root mean square of the change. May be NULL. */
    void (*progress)(void *user, const char *tensor, int from, int to, double rmse, double rms);
    void *user;
};

/* Vectors, routers (ffn_gate_inp) and convolution kernels keep their type unless a rule names them. Rows that the blocks of
 * their type do not divide get the first of Q2_0, IQ4_NL, Q5_1, Q8_0 and BF16 that fits and has no fewer bits. Shards are
 * joined to one file. Values that are not finite are refused. out appears whole or not at all. */
enum strata_result st_quantize(const struct st_quantize_options *options, struct strata_error *err);

#endif
