/* Files: read-only maps, and outputs that appear whole or not at all. */
#ifndef ST_BASE_FILE_H
#define ST_BASE_FILE_H

#include "base/result.h"

/* A read-only map of a whole regular file. data is NULL for an empty file. fd stays open for direct reads. */
struct st_map {
    const uint8_t *data;
    uint64_t size;
    int fd;
};

enum strata_result st_map_open(const char *path, struct st_map *out, struct strata_error *err);
void st_map_close(struct st_map *map);

/* Reads a whole file of at most limit bytes into memory the caller frees; one NUL follows the content. */
enum strata_result st_read_file(const char *path, uint64_t limit, char **out, size_t *size, struct strata_error *err);

/* An output file under a temporary name beside its final one. Nothing appears at path before st_out_commit, which syncs
 * and renames; st_out_abort (safe after commit and on a zeroed struct) removes the temporary file. */
struct st_out {
    char *path, *temp;
    int fd;
    unsigned mode;    /* permissions of the finished file: 0644 unless changed before commit */
    uint64_t written; /* bytes so far, the file position of the next st_out_write */
    char *buffer;
    size_t used;
};

/* STRATA_E_IO when something that is no regular file stands there. Of a symbolic link the file is replaced that it points to. */
enum strata_result st_out_open(const char *path, struct st_out *out, struct strata_error *err);
enum strata_result st_out_write(struct st_out *out, const void *data, size_t size, struct strata_error *err);
/* Leaves a hole of size zero bytes. */
enum strata_result st_out_skip(struct st_out *out, uint64_t size, struct strata_error *err);
/* Sets the next size bytes aside, to be written with st_out_write_at: *at is where they begin. */
enum strata_result st_out_set_aside(struct st_out *out, uint64_t size, uint64_t *at, struct strata_error *err);
/* Writes into a part that was set aside. From any thread, also while others write elsewhere. */
enum strata_result st_out_write_at(const struct st_out *out, uint64_t at, const void *data, size_t size,
                                   struct strata_error *err);
enum strata_result st_out_commit(struct st_out *out, struct strata_error *err);
void st_out_abort(struct st_out *out);

/* Removes temporary files of this path that nobody writes any more: left by processes that were killed. */
void st_out_sweep(const char *path);

#endif
