/* bench --clients N,...: tokens per second of several conversations at once. */
#ifndef ST_CLI_BENCH_CLIENTS_H
#define ST_CLI_BENCH_CLIENTS_H

#include "cli/common.h"

enum { ST_BENCH_CLIENTS_MAX = 64, ST_BENCH_CLIENT_PROMPT = 16 };

/* For each of the counts: so many conversations with prompts of depth (at least ST_BENCH_CLIENT_PROMPT) tokens, from ids on, each of which
 * generates n tokens, and what all of them together generate in a second while all of them do. The host's engine has a session for
 * each, and its own is free. Best of so many repetitions. Prints a table. */
int st_bench_clients(const struct st_host *h, const int32_t *ids, size_t depth, size_t n, const size_t *counts, size_t n_counts,
                     size_t repetitions);

#endif
