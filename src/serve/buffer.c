/* A growing text: see buffer.h. */
#include "serve/buffer.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void st_buffer_free(struct st_buffer *b)
{
    free(b->data);
    memset(b, 0, sizeof *b);
}

static bool reserve(struct st_buffer *b, size_t more)
{
    if (b->failed || more >= SIZE_MAX / 4 - b->size) {
        b->failed = true;
        return false;
    }
    if (b->size + more + 1 <= b->capacity)
        return true;
    size_t capacity = b->capacity ? b->capacity : 128;
    while (capacity < b->size + more + 1)
        capacity *= 2;
    char *data = realloc(b->data, capacity);
    if (!data) {
        b->failed = true;
        return false;
    }
    b->data = data;
    b->capacity = capacity;
    return true;
}

void st_buffer_add(struct st_buffer *b, const void *data, size_t size)
{
    if (!reserve(b, size))
        return;
    if (size)
        memcpy(b->data + b->size, data, size);
    b->size += size;
    b->data[b->size] = 0;
}

void st_buffer_text(struct st_buffer *b, const char *text)
{
    st_buffer_add(b, text, strlen(text));
}

void st_buffer_format(struct st_buffer *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int need = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (need >= 0 && reserve(b, (size_t)need)) {
        vsnprintf(b->data + b->size, (size_t)need + 1, fmt, again);
        b->size += (size_t)need;
    }
    va_end(again);
}

void st_buffer_clear(struct st_buffer *b)
{
    b->size = 0;
    if (b->data)
        b->data[0] = 0;
}

const char *st_buffer_string(const struct st_buffer *b)
{
    return b->data ? b->data : "";
}
