/* One process of the engine as its parent sees it: started, listened to, ended. */
#ifndef ST_SERVE_PROCESS_H
#define ST_SERVE_PROCESS_H

#include <sys/types.h>

#include "serve/wire.h"

struct st_process {
    pid_t pid;
    int fd;     /* the socket */
    int err_fd; /* what it writes to standard error, -1 once that is closed */
    struct st_wire_input in;
    char line[400]; /* of standard error, as far as it has come */
    size_t line_size;
    char last_line[400]; /* the last complete one */
    uint64_t work;       /* what st_process_works saw last */
};

/* Starts the program with the other end of the socket at ST_CHILD_FD and no other descriptors but the standard ones. It gets the
 * signal of PR_SET_PDEATHSIG when the calling thread ends, if it asks for that. */
enum strata_result st_process_start(const char *program, char *const *argv, struct st_process *out, struct strata_error *err);

/* Takes what there is of standard error, line by line. */
void st_process_read_lines(struct st_process *p, void (*log)(void *user, const char *line), void *user);

/* Whether the process has used its processor or read memory from a file since the last call. */
bool st_process_works(struct st_process *p);
/* Bytes of its resident memory, 0 if the system does not say. */
uint64_t st_process_resident(pid_t pid);

/* Waits for its end, at most so many seconds, then ends it; says in how (size bytes) what became of it, with its last words.
 * Everything is closed afterwards. True if it ended by itself with 0. */
bool st_process_end(struct st_process *p, double seconds, void (*log)(void *user, const char *line), void *user, char *how,
                    size_t size);

#endif
