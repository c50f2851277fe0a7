/* A session file from anywhere: parsed as it is, and once more with a hash that is right, so that inputs get past it.
 */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "engine/session_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint8_t seen;

static void touch(const uint8_t *p, uint64_t bytes)
{
    if (bytes)
        seen = p[0] ^ p[bytes - 1];
}

static void parse(const uint8_t *data, size_t size)
{
    struct strata_error err;
    struct st_session_view v;
    if (st_session_parse(data, size, "fuzz", &v, &err))
        return;
    uint64_t own = 0;
    for (uint32_t i = 0; i < v.h.pieces; i++) {
        struct st_state_shape shape;
        uint64_t bytes;
        memcpy(&shape, v.shapes + i * sizeof shape, sizeof shape);
        if (!st_state_shape_bytes(&shape, v.h.tokens, &bytes))
            abort();
        own += bytes;
    }
    if (own != v.state_bytes || v.fixed_bytes > v.state_bytes)
        abort();
    for (uint32_t i = 0; i < v.h.points; i++)
        if (st_session_view_point(&v, i).tokens > v.h.tokens)
            abort();
    touch(v.ids, (uint64_t)v.h.tokens * sizeof(int32_t));
    touch(v.state, v.state_bytes);
    touch(v.point_states, v.h.points * v.fixed_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { TAIL = 16 };
    parse(data, size);
    if (size < TAIL)
        return 0;
    uint8_t *mended = malloc(size);
    if (!mended)
        return 0;
    memcpy(mended, data, size);
    uint64_t hash = XXH3_64bits(mended, size - TAIL);
    memcpy(mended + size - TAIL, &hash, sizeof hash);
    memcpy(mended + size - 8, "STRATAE1", 8);
    parse(mended, size);
    free(mended);
    return 0;
}
