/* Safetensors: a memory-mapped reader over one or several files, and a small writer. Source: the format's description
 * (u64 length of a JSON header; per tensor dtype, shape and [begin, end) within the data that follows the header). What the
 * reader returns has passed all checks: sizes match shapes, ranges lie inside the file and do not overlap, names are unique. */
#ifndef ST_FORMAT_SAFETENSORS_H
#define ST_FORMAT_SAFETENSORS_H

#include "base/file.h"

enum st_dtype {
    ST_DTYPE_BOOL,
    ST_DTYPE_U8,
    ST_DTYPE_I8,
    ST_DTYPE_F8_E4M3,
    ST_DTYPE_F8_E5M2,
    ST_DTYPE_U16,
    ST_DTYPE_I16,
    ST_DTYPE_F16,
    ST_DTYPE_BF16,
    ST_DTYPE_U32,
    ST_DTYPE_I32,
    ST_DTYPE_F32,
    ST_DTYPE_U64,
    ST_DTYPE_I64,
    ST_DTYPE_F64,
    ST_DTYPE_COUNT
};

/* "BF16", never NULL; and bytes of one element. */
const char *st_dtype_name(enum st_dtype type);
size_t st_dtype_size(enum st_dtype type);

enum { ST_SAFETENSOR_DIMS = 8 };

struct st_safetensor {
    const char *name; /* NUL-terminated printable ASCII */
    enum st_dtype dtype;
    uint32_t n_dims;                    /* 0 (one element) to ST_SAFETENSOR_DIMS */
    uint64_t shape[ST_SAFETENSOR_DIMS]; /* slowest dimension first */
    uint64_t elements;                  /* 0 is possible */
    const uint8_t *data;                /* little-endian, at any alignment */
    uint64_t bytes;
    const char *path; /* of its file */
};

struct st_safetensors;

/* An empty set; files are added to it. */
enum strata_result st_safetensors_create(struct st_safetensors **out, struct strata_error *err);
void st_safetensors_free(struct st_safetensors *s);
/* Maps a file and adds its tensors. STRATA_E_FORMAT names file and tensor; a name that another file of the set already has
 * is refused too. After a failure the set may only be freed. */
enum strata_result st_safetensors_add(struct st_safetensors *s, const char *path, struct strata_error *err);
/* The same from memory, which must outlive the set. */
enum strata_result st_safetensors_add_memory(struct st_safetensors *s, const void *data, uint64_t size, const char *name,
                                             struct strata_error *err);
/* Adds all files of a model.safetensors.index.json; they lie beside it, under plain names. Every tensor that the index
 * promises must be in the file that it says. */
enum strata_result st_safetensors_add_index(struct st_safetensors *s, const char *path, struct strata_error *err);

size_t st_safetensors_count(const struct st_safetensors *s);
/* In order of names. */
const struct st_safetensor *st_safetensors_at(const struct st_safetensors *s, size_t index);
/* NULL when there is none. */
const struct st_safetensor *st_safetensors_find(const struct st_safetensors *s, const char *name);
/* True when a file of this name (the last part of its path) is in the set. */
bool st_safetensors_has_file(const struct st_safetensors *s, const char *name);

/* n elements from index on as floats; F16, BF16 and F32 exactly, F64 rounded. False for other types. */
bool st_safetensor_floats(const struct st_safetensor *t, uint64_t from, size_t n, float *out);

/* One tensor to write. */
struct st_safetensor_out {
    const char *name;
    enum st_dtype dtype;
    uint32_t n_dims;
    uint64_t shape[ST_SAFETENSOR_DIMS];
    const void *data;
};
/* Writes a file of count tensors in the given order; it appears whole or not at all. */
enum strata_result st_safetensors_save(const char *path, const struct st_safetensor_out *tensors, size_t count,
                                       struct strata_error *err);

#endif
