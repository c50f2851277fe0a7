/* What a model has a device multiply when it decodes: what measurements for predictions are made with. */
#ifndef ST_RUNTIME_SHAPE_H
#define ST_RUNTIME_SHAPE_H

#include "kernel/rows.h"

/* Of the weights type, act, sizes and row_bytes count. */
struct st_decode_shape {
    struct st_weight dense;          /* the largest matrix of a layer that is no expert */
    struct st_weight gate, up, down; /* of experts */
    uint32_t used;                   /* experts that a token chooses in a layer; 0: the model has none */
};

/* A weight of rows x cols as files have it: nothing but type, act and sizes. */
static inline struct st_weight st_decode_weight(int type, uint32_t cols, uint32_t rows)
{
    const struct st_type_info *info = st_type_info(type);
    struct st_weight w = {.type = type, .act = info->act, .cols = cols, .rows = rows};
    w.row_bytes = (size_t)cols / info->block_elems * info->block_bytes;
    return w;
}

static inline double st_weight_bytes(const struct st_weight *w)
{
    return (double)w->row_bytes * w->rows;
}

#endif
