/* Options of a server, whatever its backend. */
#ifndef ST_CLI_SERVE_OPTIONS_H
#define ST_CLI_SERVE_OPTIONS_H

#include "cli/options.h"
#include "serve/serve.h"

/* Serves, or does what else is to be done with such options, once they are known to be good. */
typedef enum strata_result st_serve_run(void *user, const struct st_serve_options *options, struct strata_error *err);

/* Parses the server's options and the extra ones, and runs. Returns the exit code. */
int st_serve_main(int argc, char **argv, const char *form, const char *summary, const struct st_opt *extra,
                  size_t extra_count, st_serve_run *run, void *user);

#endif
