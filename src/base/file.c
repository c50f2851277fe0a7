/* Files: maps, whole reads, and outputs by temporary name and rename. */
#define _GNU_SOURCE
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OUT_BUFFER = 1 << 20 };

static enum strata_result io_error(struct strata_error *err, const char *what, const char *path)
{
    return st_fail(err, STRATA_E_IO, "%s: %s: %s", path, what, strerror(errno));
}

static enum strata_result open_regular(const char *path, int *fd, uint64_t *size, struct strata_error *err)
{
    /* not waiting for the other end of a pipe, which is refused below */
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        return io_error(err, "cannot open", path);
    struct stat st;
    enum strata_result r = STRATA_OK;
    if (fstat(*fd, &st))
        r = io_error(err, "cannot stat", path);
    else if (!S_ISREG(st.st_mode))
        r = st_fail(err, STRATA_E_IO, "%s: not a regular file", path);
    if (r) {
        close(*fd);
        return r;
    }
    *size = (uint64_t)st.st_size;
    return STRATA_OK;
}

enum strata_result st_map_open(const char *path, struct st_map *out, struct strata_error *err)
{
    struct st_map m = {.fd = -1};
    enum strata_result r = open_regular(path, &m.fd, &m.size, err);
    if (r)
        return r;
    if (m.size) {
        void *p = mmap(NULL, (size_t)m.size, PROT_READ, MAP_SHARED, m.fd, 0);
        if (p == MAP_FAILED) {
            r = io_error(err, "cannot map", path);
            close(m.fd);
            return r;
        }
        m.data = p;
    }
    *out = m;
    return STRATA_OK;
}

void st_map_close(struct st_map *m)
{
    if (m->data) {
        munmap((void *)m->data, (size_t)m->size);
        m->data = NULL;
    }
    if (m->fd >= 0)
        close(m->fd);
    m->fd = -1;
    m->size = 0;
}

enum strata_result st_read_file(const char *path, uint64_t limit, char **out, size_t *size, struct strata_error *err)
{
    int fd;
    uint64_t n = 0;
    enum strata_result r = open_regular(path, &fd, &n, err);
    if (r)
        return r;
    char *text = NULL;
    size_t got = 0;
    if (n > limit)
        r = st_fail(err, STRATA_E_LIMIT, "%s: %llu bytes, more than the %llu allowed", path, (unsigned long long)n,
                    (unsigned long long)limit);
    else if (!(text = malloc((size_t)n + 1)))
        r = st_fail(err, STRATA_E_MEMORY, "%s: no memory for %llu bytes", path, (unsigned long long)n);
    while (!r && got < n) {
        ssize_t k = read(fd, text + got, (size_t)n - got);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            r = io_error(err, "cannot read", path);
        if (k <= 0)
            break;
        got += (size_t)k;
    }
    close(fd);
    if (r) {
        free(text);
        return r;
    }
    text[got] = 0;
    *out = text;
    *size = got;
    return STRATA_OK;
}

/* Between an output's name and six characters of chance: nobody else's files are called so. */
#define TEMP_MARK ".strata-part."

/* A temporary file that is locked as long as it is written: st_out_sweep takes those that are not. */
static int open_temp(char *temp, size_t length)
{
    for (;;) {
        struct stat st;
        memset(temp + length - 6, 'X', 6);
        int fd = mkostemp(temp, O_CLOEXEC);
        if (fd < 0 || flock(fd, LOCK_EX) || fstat(fd, &st) || st.st_nlink)
            return fd;
        close(fd); /* swept away before it was locked */
    }
}

enum strata_result st_out_open(const char *path, struct st_out *out, struct strata_error *err)
{
    *out = (struct st_out){.fd = -1, .mode = 0644};
    struct stat st;
    if (!*path)
        return st_fail(err, STRATA_E_IO, "an output file without a name");
    if (!stat(path, &st) && !S_ISREG(st.st_mode))
        return st_fail(err, STRATA_E_IO, "%s: exists and is not a regular file", path);
    out->path = realpath(path, NULL); /* what a link points to is replaced, not the link */
    if (!out->path)
        out->path = strdup(path);
    size_t n = out->path ? strlen(out->path) : 0;
    out->temp = malloc(n + 32);
    out->buffer = malloc(OUT_BUFFER);
    if (!out->path || !out->temp || !out->buffer) {
        st_out_abort(out);
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for an output file", path);
    }
    snprintf(out->temp, n + 32, "%s" TEMP_MARK "XXXXXX", out->path);
    out->fd = open_temp(out->temp, strlen(out->temp));
    if (out->fd < 0) {
        enum strata_result r = io_error(err, "cannot create a file in its folder", out->path);
        free(out->temp);
        out->temp = NULL;
        st_out_abort(out);
        return r;
    }
    return STRATA_OK;
}

static enum strata_result write_all(struct st_out *out, const char *p, size_t n, struct strata_error *err)
{
    while (n) {
        ssize_t k = write(out->fd, p, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return io_error(err, "cannot write", out->path);
        p += k;
        n -= (size_t)k;
    }
    return STRATA_OK;
}

static enum strata_result flush_out(struct st_out *out, struct strata_error *err)
{
    size_t n = out->used;
    out->used = 0;
    return write_all(out, out->buffer, n, err);
}

enum strata_result st_out_write(struct st_out *out, const void *data, size_t size, struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    if (size > OUT_BUFFER - out->used)
        r = flush_out(out, err);
    if (!r && size > OUT_BUFFER) {
        r = write_all(out, data, size, err);
    } else if (!r && size) {
        memcpy(out->buffer + out->used, data, size);
        out->used += size;
    }
    out->written += size;
    return r;
}

enum strata_result st_out_skip(struct st_out *out, uint64_t size, struct strata_error *err)
{
    enum strata_result r = flush_out(out, err);
    if (r)
        return r;
    uint64_t to = out->written + size;
    if (ftruncate(out->fd, (off_t)to) || lseek(out->fd, (off_t)to, SEEK_SET) < 0)
        return io_error(err, "cannot extend", out->temp);
    out->written = to;
    return STRATA_OK;
}

enum strata_result st_out_set_aside(struct st_out *out, uint64_t size, uint64_t *at, struct strata_error *err)
{
    *at = out->written;
    return st_out_skip(out, size, err);
}

enum strata_result st_out_write_at(const struct st_out *out, uint64_t at, const void *data, size_t size,
                                   struct strata_error *err)
{
    const char *p = data;
    while (size) {
        ssize_t k = pwrite(out->fd, p, size, (off_t)at);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return io_error(err, "cannot write", out->path);
        p += k;
        at += (uint64_t)k;
        size -= (size_t)k;
    }
    return STRATA_OK;
}

/* The folder of a path, opened; -1 where that is not possible. *name: what follows. */
static int open_folder(const char *path, const char **name)
{
    const char *slash = strrchr(path, '/');
    *name = slash ? slash + 1 : path;
    char *folder = slash ? strndup(path, (size_t)(slash - path + 1)) : strdup(".");
    int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    free(folder);
    return fd;
}

/* The rename is on disk once its folder is. Where a file system cannot sync folders, the file itself is safe. */
static void sync_folder(const char *path)
{
    const char *name;
    int fd = open_folder(path, &name);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
}

void st_out_sweep(const char *path)
{
    const char *name;
    int folder = open_folder(path, &name);
    DIR *d = folder >= 0 ? fdopendir(folder) : NULL;
    size_t n = strlen(name);
    if (!d && folder >= 0)
        close(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (strncmp(e->d_name, name, n) || strncmp(e->d_name + n, TEMP_MARK, sizeof TEMP_MARK - 1) ||
            strlen(e->d_name) != n + sizeof TEMP_MARK - 1 + 6)
            continue;
        int fd = openat(folder, e->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (fd >= 0 && !flock(fd, LOCK_EX | LOCK_NB))
            unlinkat(folder, e->d_name, 0);
        if (fd >= 0)
            close(fd);
    }
    if (d)
        closedir(d);
}

enum strata_result st_out_commit(struct st_out *out, struct strata_error *err)
{
    enum strata_result r = flush_out(out, err);
    if (!r && (fchmod(out->fd, out->mode) || fsync(out->fd)))
        r = io_error(err, "cannot sync", out->temp);
    if (!r && rename(out->temp, out->path))
        r = io_error(err, "cannot rename to its final name", out->temp);
    if (!r) {
        sync_folder(out->path);
        free(out->temp);
        out->temp = NULL;
    }
    st_out_abort(out);
    return r;
}

void st_out_abort(struct st_out *out)
{
    if (out->path && out->fd >= 0)
        close(out->fd);
    if (out->temp)
        unlink(out->temp);
    free(out->path);
    free(out->temp);
    free(out->buffer);
    *out = (struct st_out){.fd = -1};
}
