/* One metadata value of a GGUF file, read with the tolerance of spec/gguf-and-quants.md 1.2: shared by the reader, which
 * needs a few keys of every shard, and the accessors of gguf.h. path names the file in messages. */
#ifndef ST_FORMAT_GGUF_VALUE_H
#define ST_FORMAT_GGUF_VALUE_H

#include "format/gguf.h"

/* Bytes of one value of a type; 0 for strings, arrays and unknown types. */
size_t st_gguf_scalar_size(enum st_gguf_type type);
enum strata_result st_gguf_value_u64(const char *path, const struct st_gguf_key *k, uint64_t *out, struct strata_error *err);

#endif
