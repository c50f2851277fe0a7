/* A growing text. A failed allocation is remembered, so that only the end has to ask. */
#ifndef ST_SERVE_BUFFER_H
#define ST_SERVE_BUFFER_H

#include "base/result.h"

struct st_buffer {
    char *data; /* size bytes and a NUL; NULL while empty */
    size_t size, capacity;
    bool failed;
};

void st_buffer_free(struct st_buffer *b);
void st_buffer_add(struct st_buffer *b, const void *data, size_t size);
void st_buffer_text(struct st_buffer *b, const char *text);
void st_buffer_format(struct st_buffer *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Empties it and keeps the memory. */
void st_buffer_clear(struct st_buffer *b);
/* The text, "" while empty. */
const char *st_buffer_string(const struct st_buffer *b);

#endif
