/* Processes: see process.h. */
#define _GNU_SOURCE
#include "serve/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "serve/child.h"
#include "serve/job.h"

extern char **environ;

/* The child's side: standard input is empty, standard error a pipe, the socket at its place, the rest closed. */
static int spawn(const char *program, char *const *argv, int fd, int err_fd, pid_t *pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t all, none;
    sigfillset(&all);
    sigemptyset(&none);
    int failed = posix_spawn_file_actions_init(&actions);
    if (failed)
        return failed;
    failed = posix_spawnattr_init(&attributes);
    if (failed) {
        posix_spawn_file_actions_destroy(&actions);
        return failed;
    }
    if ((failed = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0)) == 0 &&
        (failed = posix_spawn_file_actions_adddup2(&actions, err_fd, 2)) == 0 &&
        (failed = posix_spawn_file_actions_adddup2(&actions, fd, ST_CHILD_FD)) == 0 &&
        (failed = posix_spawn_file_actions_addclosefrom_np(&actions, ST_CHILD_FD + 1)) == 0 &&
        (failed = posix_spawnattr_setsigmask(&attributes, &none)) == 0 &&
        (failed = posix_spawnattr_setsigdefault(&attributes, &all)) == 0 &&
        (failed = posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF)) == 0)
        failed = posix_spawn(pid, program, &actions, &attributes, argv, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return failed;
}

static void close_pair(int pair[2])
{
    for (int i = 0; i < 2; i++)
        if (pair[i] >= 0)
            close(pair[i]);
}

/* A descriptor that is above the places which the child's side fills. */
static int raise_fd(int fd)
{
    if (fd < 0 || fd > ST_CHILD_FD)
        return fd;
    int higher = fcntl(fd, F_DUPFD_CLOEXEC, ST_CHILD_FD + 1);
    close(fd);
    return higher;
}

enum strata_result st_process_start(const char *program, char *const *argv, struct st_process *out, struct strata_error *err)
{
    int sockets[2] = {-1, -1}, pipes[2] = {-1, -1}, failed = 0;
    *out = (struct st_process){.fd = -1, .err_fd = -1};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) || pipe2(pipes, O_CLOEXEC)) {
        failed = errno;
    } else {
        sockets[1] = raise_fd(sockets[1]);
        pipes[1] = raise_fd(pipes[1]);
        failed = sockets[1] < 0 || pipes[1] < 0 ? EMFILE : spawn(program, argv, sockets[1], pipes[1], &out->pid);
    }
    if (failed) {
        close_pair(sockets);
        close_pair(pipes);
        return st_fail(err, STRATA_E_IO, "%s: the engine's process could not be started: %s", program, strerror(failed));
    }
    close(sockets[1]);
    close(pipes[1]);
    out->fd = sockets[0];
    out->err_fd = pipes[0];
    fcntl(out->err_fd, F_SETFL, O_NONBLOCK);
    return STRATA_OK;
}

static void end_line(struct st_process *p, void (*log)(void *user, const char *line), void *user)
{
    p->line[p->line_size] = 0;
    if (log)
        log(user, p->line);
    if (p->line_size)
        st_printable(p->last_line, sizeof p->last_line, p->line, p->line_size);
    for (char *c = p->last_line; *c; c++)
        if (*c & 0x80) /* messages are cut to size, which must not be inside of a character */
            *c = '?';
    p->line_size = 0;
}

void st_process_read_lines(struct st_process *p, void (*log)(void *user, const char *line), void *user)
{
    char piece[4096];
    while (p->err_fd >= 0) {
        ssize_t n = read(p->err_fd, piece, sizeof piece);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            close(p->err_fd);
            p->err_fd = -1;
            if (p->line_size)
                end_line(p, log, user);
            return;
        }
        for (ssize_t i = 0; i < n; i++) {
            if (piece[i] == '\n' || p->line_size + 1 == sizeof p->line)
                end_line(p, log, user);
            if (piece[i] != '\n')
                p->line[p->line_size++] = piece[i];
        }
    }
}

bool st_process_works(struct st_process *p)
{
    char path[64], text[1024];
    unsigned long long faults = 0, user_time = 0, system_time = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)p->pid);
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f)
        fclose(f);
    text[n] = 0;
    /* The program's name, in brackets, may hold anything. Then: state, 8 numbers, major faults, one more, times. */
    const char *rest = strrchr(text, ')');
    if (!rest || sscanf(rest + 1, " %*c %*s %*s %*s %*s %*s %*s %*s %*s %llu %*s %llu %llu", &faults, &user_time, &system_time) != 3)
        return false;
    uint64_t work = faults + user_time + system_time;
    bool more = work != p->work;
    p->work = work;
    return more;
}

uint64_t st_process_resident(pid_t pid)
{
    unsigned long long pages = 0, total;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    if (fscanf(f, "%llu %llu", &total, &pages) != 2)
        pages = 0;
    fclose(f);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Waits until the process has ended, at most so many seconds, while its last words are read. */
static bool wait_end(struct st_process *p, double seconds, void (*log)(void *user, const char *line), void *user, int *status)
{
    enum { LOOK_MS = 5 };
    double until = st_now() + seconds;
    for (;;) {
        pid_t got = waitpid(p->pid, status, WNOHANG);
        if (got == p->pid)
            return true;
        if (got < 0 && errno != EINTR) {
            *status = 0; /* somebody else waited for it */
            return true;
        }
        if (st_now() >= until)
            return false;
        struct pollfd look = {.fd = p->err_fd, .events = POLLIN};
        poll(&look, 1, LOOK_MS);
        st_process_read_lines(p, log, user);
    }
}

bool st_process_end(struct st_process *p, double seconds, void (*log)(void *user, const char *line), void *user, char *how,
                    size_t size)
{
    enum { KILL_SECONDS = 10 };
    int status = 0;
    bool killed = !wait_end(p, seconds, log, user, &status), left = false;
    if (killed) {
        kill(p->pid, SIGKILL);
        left = !wait_end(p, KILL_SECONDS, log, user, &status);
    }
    st_process_read_lines(p, log, user);
    if (left)
        snprintf(how, size, "process %d cannot be ended: the system is inside of a driver for it", (int)p->pid);
    else if (killed)
        snprintf(how, size, "it was ended");
    else if (WIFSIGNALED(status))
        snprintf(how, size, "it was ended by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(how, size, "it ended with status %d", WEXITSTATUS(status));
    size_t n = strlen(how);
    if (*p->last_line && n < size)
        snprintf(how + n, size - n, "; its last words: %s", p->last_line);
    if (p->err_fd >= 0)
        close(p->err_fd);
    close(p->fd);
    st_wire_input_free(&p->in);
    *p = (struct st_process){.fd = -1, .err_fd = -1};
    return !killed && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}
