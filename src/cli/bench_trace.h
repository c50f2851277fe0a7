/* bench --trace FILE: what ran when, of a prompt and of windows of one row. */
#ifndef ST_CLI_BENCH_TRACE_H
#define ST_CLI_BENCH_TRACE_H

#include "cli/common.h"

/* Reads depth tokens of ids untraced, then prompt tokens, then windows tokens one by one, and writes the trace to the file.
 * The session is reset before. logits [vocabulary] is scratch. */
int st_bench_trace(const struct st_host *h, const int32_t *ids, size_t depth, size_t prompt, size_t windows, float *logits,
                   const char *path);

#endif
