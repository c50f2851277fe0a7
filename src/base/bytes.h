/* A view of bytes that somebody else owns: not NUL-terminated, may hold any byte. */
#ifndef ST_BASE_BYTES_H
#define ST_BASE_BYTES_H

#include <stddef.h>

struct st_bytes {
    const char *data;
    size_t size;
};

#endif
