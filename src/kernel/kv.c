/* Sizes of stored keys and values. */
#include "kernel/qsa.h"

size_t st_kv_row_bytes(enum st_kv_type type, size_t dim)
{
    switch (type) {
    case ST_KV_F32: return dim * 4;
    case ST_KV_F16: return dim * 2;
    case ST_KV_INT8: return dim % 64 ? 0 : dim + dim / 64 * 4;
    case ST_KV_Q4: return dim % 32 ? 0 : dim / 2 + dim / 32 * 4;
    case ST_KV_COUNT: break;
    }
    return 0;
}
