/* An independent evaluation of qwen4exp files in double precision, written plainly after the model's description and
 * with nothing of src/model or src/kernel. Weights are the exact decoded values. */
#ifndef ST_TESTS_GOLDEN_FP64_MODEL_H
#define ST_TESTS_GOLDEN_FP64_MODEL_H

#include "format/gguf.h"

/* Rotary positions: of text all three are the index. */
struct fp64_positions {
    const int32_t (*axis)[3]; /* [n] time, height, width; NULL: text */
    double yarn;              /* above 1: the trained context is extended by this factor */
};

/* residual [layers][n][streams * hidden] after each layer; logits [n][vocabulary]; both may be NULL. A file that lacks
 * something fails the running test. */
void fp64_evaluate(const struct st_gguf *g, const int32_t *ids, size_t n, double *residual, double *logits);
void fp64_evaluate_at(const struct st_gguf *g, const struct fp64_positions *positions, const int32_t *ids, size_t n,
                      double *residual, double *logits);

#endif
