/* The part of strata bench that measures drafts: the same answer without and with them, greedy and sampled. */
#ifndef ST_CLI_BENCH_DRAFTS_H
#define ST_CLI_BENCH_DRAFTS_H

#include "cli/common.h"

/* One line of it. */
struct st_draft_result {
    const char *text;   /* "greedy" or "sampled" */
    char drafts[32];    /* "none", "as many as pay", "always 3" */
    double rate, speed; /* tokens for a second of generating; the same divided by that without drafts */
    size_t generated, passes, drafted, accepted; /* of all repetitions */
};

enum { ST_DRAFT_RESULTS = 6, ST_DRAFT_PROMPT_MOST = 512 };

/* Answers the text with n tokens, repetitions times each way and once more to warm up. The engine has drafts. out has
 * room for ST_DRAFT_RESULTS; *count: how many there are. An answer that drafts change is a failure. */
int st_bench_drafts(const struct st_host *h, const char *text, size_t n, size_t repetitions,
                    struct st_draft_result out[ST_DRAFT_RESULTS], size_t *count);

#endif
