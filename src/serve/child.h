/* The process that holds the engine: it serves one backend to the server's process over a socket (wire.h). */
#ifndef ST_SERVE_CHILD_H
#define ST_SERVE_CHILD_H

#include "serve/backend.h"

/* The descriptor on which such a process finds its socket. */
enum { ST_CHILD_FD = 3 };

struct st_child_options {
    double save_seconds; /* what a slot holds is saved after an answer if it was not within these seconds */
    /* The server's process is gone. In another thread, and the one that computes may be stuck: meant to end the process. */
    void (*orphaned)(void);
};

/* Loads the backend and computes what is asked for, until the other end says that it is enough or is gone. Takes the backend
 * over. A model that cannot be loaded is told to the other end and is no failure here. */
enum strata_result st_child_run(struct st_backend *backend, const struct st_child_options *options, struct strata_error *err);

#endif
