/* bench --clients N,...: tokens per second of several conversations at once. */
#ifndef ST_CLI_BENCH_CLIENTS_H
#define ST_CLI_BENCH_CLIENTS_H

#include "cli/common.h"

enum { ST_BENCH_CLIENTS_MAX = 64, ST_BENCH_CLIENT_PROMPT = 16 };

/* Tokens that a conversation may generate: the first ones generate while the prompts of the others are read. */
#define ST_BENCH_CLIENT_MOST(n) (4 * (size_t)(n) + 256)

/* For each of the counts: so many conversations with prompts of depth (at least ST_BENCH_CLIENT_PROMPT) tokens, from ids on, of which all generate until
 * they have n tokens each on average, and what all of them together generate in a second from the time on when all have begun. The host's
 * engine has a session for each, and its own is free; its context has room for the prompt and ST_BENCH_CLIENT_MOST(n) tokens. Best of so many repetitions. Prints a table. */
int st_bench_clients(const struct st_host *h, const int32_t *ids, size_t depth, size_t n, const size_t *counts, size_t n_counts,
                     size_t repetitions);

#endif
