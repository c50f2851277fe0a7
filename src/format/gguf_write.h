/* GGUF writer: metadata and tensor shapes are collected first, then everything is streamed into the file, so that a file of
 * any size needs little memory. The file appears under its name only when it is complete. */
#ifndef ST_FORMAT_GGUF_WRITE_H
#define ST_FORMAT_GGUF_WRITE_H

#include "format/gguf.h"

struct st_gguf_writer;

/* Writes the data of one tensor with st_out_write and st_out_skip: exactly the number of bytes that its type and shape
 * need, in file order. */
typedef enum strata_result st_gguf_fill(void *user, struct st_out *out, struct strata_error *err);

/* An empty file of version 3, alignment 32. */
enum strata_result st_gguf_writer_create(struct st_gguf_writer **out, struct strata_error *err);
void st_gguf_writer_free(struct st_gguf_writer *w);

/* Metadata in the order of the calls. Names and values are copied. The first failure (no memory, a name that is empty, too
 * long or set twice) is kept and returned by st_gguf_writer_save. */
void st_gguf_set_u16(struct st_gguf_writer *w, const char *name, uint16_t value);
void st_gguf_set_u32(struct st_gguf_writer *w, const char *name, uint32_t value);
void st_gguf_set_i32(struct st_gguf_writer *w, const char *name, int32_t value);
void st_gguf_set_u64(struct st_gguf_writer *w, const char *name, uint64_t value);
void st_gguf_set_f32(struct st_gguf_writer *w, const char *name, float value);
void st_gguf_set_bool(struct st_gguf_writer *w, const char *name, bool value);
void st_gguf_set_string(struct st_gguf_writer *w, const char *name, const char *text, size_t size);
/* element: a scalar type; values: count of them, in the machine's layout of that type. */
void st_gguf_set_array(struct st_gguf_writer *w, const char *name, enum st_gguf_type element, const void *values,
                       size_t count);
void st_gguf_set_strings(struct st_gguf_writer *w, const char *name, const struct st_bytes *texts, size_t count);
/* A record as it stands in another file. */
void st_gguf_set_copy(struct st_gguf_writer *w, const struct st_gguf_key *key);

/* Tensors in the order of the calls; the name is copied. fill is called by st_gguf_writer_save with user; NULL leaves a hole
 * of zeros. Failures are kept as above: a name that is no tensor name or stands twice, a type or shape that do not fit. */
void st_gguf_add_tensor(struct st_gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims, const uint64_t *ne,
                        st_gguf_fill *fill, void *user);

/* Bytes of the file that st_gguf_writer_save would write. */
uint64_t st_gguf_writer_size(const struct st_gguf_writer *w);

/* Writes the file. On failure nothing is left at path. */
enum strata_result st_gguf_writer_save(struct st_gguf_writer *w, const char *path, struct strata_error *err);

#endif
