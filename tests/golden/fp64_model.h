/* An independent evaluation of qwen4exp files in double precision, written plainly after the model's description and
 * with nothing of src/model or src/kernel. Weights are the exact decoded values. Text only: all rotary positions are
 * the index. */
#ifndef ST_TESTS_GOLDEN_FP64_MODEL_H
#define ST_TESTS_GOLDEN_FP64_MODEL_H

#include "format/gguf.h"

/* residual [layers][n][streams * hidden] after each layer; logits [n][vocabulary]; both may be NULL. A file that lacks
 * something fails the running test. */
void fp64_evaluate(const struct st_gguf *g, const int32_t *ids, size_t n, double *residual, double *logits);

#endif
