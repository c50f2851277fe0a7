/* The backend whose engine and devices live in a process of their own (child.h), so that the server survives them: a process
 * that dies or stands still ends its answers with an error, is started again, and conversations go on from what was saved. */
#ifndef ST_SERVE_BACKEND_CHILD_H
#define ST_SERVE_BACKEND_CHILD_H

#include "serve/backend.h"

struct st_backend_child_options {
    const char *program;   /* what is started: the path of this program */
    char *const *argv;     /* its arguments, NULL at the end; it finds its socket at ST_CHILD_FD */
    const char *reserve;   /* option of the program that takes the bytes of ops->reserve: "--vram-reserve" */
    double silent_seconds; /* a process that owes something and does not show a sign of life for longer is ended */
    void (*log)(void *user, const char *line); /* what the process writes to standard error, and when it fails; any thread */
    void *log_user;
};

/* local (taken over, after a failure too) serves texts: it is opened and never loaded. argv and texts in options live as long as the
 * backend. Nothing is started before load. */
enum strata_result st_backend_child(struct st_backend *local, const struct st_backend_child_options *options,
                                    struct st_backend **out, struct strata_error *err);

#endif
