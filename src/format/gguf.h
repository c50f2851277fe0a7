/* GGUF files, versions 2 and 3: a memory-mapped reader that sees all shards of a split model as one, and the accessors for
 * its metadata. The writer is in gguf_write.h. Every number in a file is untrusted: what st_gguf_open returns has passed
 * all structural checks, so names are unique, types known, and every tensor lies inside its file without overlap. */
#ifndef ST_FORMAT_GGUF_H
#define ST_FORMAT_GGUF_H

#include "base/bytes.h"
#include "base/file.h"

/* Value types of metadata, as numbered in the file. */
enum st_gguf_type {
    ST_GGUF_U8 = 0,
    ST_GGUF_I8 = 1,
    ST_GGUF_U16 = 2,
    ST_GGUF_I16 = 3,
    ST_GGUF_U32 = 4,
    ST_GGUF_I32 = 5,
    ST_GGUF_F32 = 6,
    ST_GGUF_BOOL = 7,
    ST_GGUF_STRING = 8,
    ST_GGUF_ARRAY = 9,
    ST_GGUF_U64 = 10,
    ST_GGUF_I64 = 11,
    ST_GGUF_F64 = 12,
};

enum { ST_GGUF_DIMS = 4, ST_GGUF_NAME_MAX = 63 };

struct st_gguf_tensor {
    const char *name; /* NUL-terminated, 1 to ST_GGUF_NAME_MAX bytes of printable ASCII */
    uint32_t type;    /* enum st_type of format/quant.h; always a known one */
    uint32_t n_dims;  /* as the file declares, 1 to 4 */
    uint64_t ne[ST_GGUF_DIMS]; /* ne[0] varies fastest; missing dimensions are 1; never 0 */
    const uint8_t *data; /* in the mapped shard; aligned to the file's alignment relative to its start */
    uint64_t bytes;
    uint32_t shard;  /* index into st_gguf.shards */
    uint64_t offset; /* of data in that shard's file, for positional reads */
};

/* One metadata record. data points at the value in the mapped file (unaligned, little-endian): the scalar, the bytes of a
 * string without its length, or the first element of an array (strings in an array still carry their u64 lengths). */
struct st_gguf_key {
    const char *name; /* NUL-terminated printable ASCII */
    enum st_gguf_type type;
    enum st_gguf_type element; /* of an array; equal to type otherwise */
    uint64_t count;            /* elements of an array, bytes of a string, otherwise 1 */
    const uint8_t *data;
    uint64_t bytes; /* of everything at data */
};

struct st_gguf_shard {
    char *path;
    struct st_map map; /* its fd stays open for direct reads; -1 for a file that was parsed from memory */
    uint32_t version;
    uint64_t alignment;
    uint64_t data_start; /* file offset of the data section */
    size_t n_keys;
    size_t n_tensors;
};

struct st_gguf {
    const char *path; /* of the first shard, owned by it */
    struct st_gguf_shard *shards;
    size_t n_shards;
    struct st_gguf_key *keys; /* of the first shard, in file order */
    size_t n_keys;
    struct st_gguf_tensor *tensors; /* of all shards, in file order */
    size_t n_tensors;
    uint64_t bytes; /* tensor data of all shards */
    const struct st_gguf_key **keys_by_name; /* sorted, for the look-ups below */
    const struct st_gguf_tensor **tensors_by_name;
    struct st_gguf_names *names; /* memory of all names */
};

/* Opens a model by the path of any of its shards; the others are found by the name pattern -00001-of-0000N beside it.
 * STRATA_E_IO: a file cannot be read; STRATA_E_FORMAT: a file breaks the format (the message names file and key or
 * tensor); STRATA_E_LIMIT: more than the reader accepts; STRATA_E_UNSUPPORTED: an unknown or foreign tensor type or version. */
enum strata_result st_gguf_open(const char *path, struct st_gguf **out, struct strata_error *err);
/* The same for one unsplit file in memory, which must outlive the result. name stands for the path in messages. */
enum strata_result st_gguf_open_memory(const void *data, uint64_t size, const char *name, struct st_gguf **out,
                                       struct strata_error *err);
/* Unmaps everything; accepts NULL. */
void st_gguf_close(struct st_gguf *g);

/* NULL when there is none. */
const struct st_gguf_tensor *st_gguf_tensor(const struct st_gguf *g, const char *name);
const struct st_gguf_key *st_gguf_key(const struct st_gguf *g, const char *name);

/* Elements of a tensor, and the bytes of one of its rows (ne[0] elements). */
uint64_t st_gguf_elements(const struct st_gguf_tensor *t);
uint64_t st_gguf_row_bytes(const struct st_gguf_tensor *t);

/* "u32", "string", ... never NULL. */
const char *st_gguf_type_name(enum st_gguf_type type);

/* Typed access to metadata. A missing key is STRATA_E_MODEL, a value of the wrong kind or out of range STRATA_E_FORMAT;
 * both messages name file and key, and out is untouched. For an optional key ask st_gguf_key first, or use the _or forms,
 * which give the default only when the key is missing. Integers are accepted from every integer type whose value fits,
 * floats from f32, f64 and integers, bools from bool and from integers 0 and 1. */
enum strata_result st_gguf_u64(const struct st_gguf *g, const char *name, uint64_t *out, struct strata_error *err);
enum strata_result st_gguf_u32(const struct st_gguf *g, const char *name, uint32_t *out, struct strata_error *err);
enum strata_result st_gguf_i64(const struct st_gguf *g, const char *name, int64_t *out, struct strata_error *err);
enum strata_result st_gguf_f64(const struct st_gguf *g, const char *name, double *out, struct strata_error *err);
enum strata_result st_gguf_bool(const struct st_gguf *g, const char *name, bool *out, struct strata_error *err);
/* *text is not NUL-terminated and lives as long as g; it may hold any bytes. */
enum strata_result st_gguf_string(const struct st_gguf *g, const char *name, const char **text, size_t *size,
                                  struct strata_error *err);
enum strata_result st_gguf_u64_or(const struct st_gguf *g, const char *name, uint64_t missing, uint64_t *out,
                                  struct strata_error *err);
enum strata_result st_gguf_u32_or(const struct st_gguf *g, const char *name, uint32_t missing, uint32_t *out,
                                  struct strata_error *err);
enum strata_result st_gguf_f64_or(const struct st_gguf *g, const char *name, double missing, double *out,
                                  struct strata_error *err);
enum strata_result st_gguf_bool_or(const struct st_gguf *g, const char *name, bool missing, bool *out,
                                   struct strata_error *err);

/* Arrays: *out is memory that the caller frees with free(), never NULL on success. A scalar counts as an array of one.
 * The same results and tolerance as above, for each element. */
enum strata_result st_gguf_ints(const struct st_gguf *g, const char *name, int64_t **out, size_t *count,
                                struct strata_error *err);
enum strata_result st_gguf_floats(const struct st_gguf *g, const char *name, double **out, size_t *count,
                                  struct strata_error *err);
enum strata_result st_gguf_bools(const struct st_gguf *g, const char *name, bool **out, size_t *count,
                                 struct strata_error *err);
/* The texts lie in the mapped file and live as long as g. */
enum strata_result st_gguf_strings(const struct st_gguf *g, const char *name, struct st_bytes **out, size_t *count,
                                   struct strata_error *err);

#endif
