/* Options of a server, whatever its backend. */
#ifndef ST_CLI_SERVE_OPTIONS_H
#define ST_CLI_SERVE_OPTIONS_H

#include "cli/options.h"
#include "serve/serve.h"

/* Makes the backend once the options are known to be good. */
typedef enum strata_result st_make_backend(void *user, struct st_backend **out, struct strata_error *err);

/* Parses the server's options and the extra ones, and serves until a signal. Returns the exit code. */
int st_serve_main(int argc, char **argv, const char *form, const char *summary, const struct st_opt *extra,
                  size_t extra_count, st_make_backend *make, void *user);

#endif
