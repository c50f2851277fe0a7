/* bench --session FILE: what keeping a session costs beside reading it again. */
#ifndef ST_CLI_BENCH_SESSION_H
#define ST_CLI_BENCH_SESSION_H

#include "cli/common.h"

/* Reads tokens ids, and prints bytes and seconds of each way to keep that and to have it back. The file stays. */
int st_bench_session(const struct st_host *h, const int32_t *ids, size_t tokens, const char *path);

#endif
