/* Owns the C table of dot products: each weight block is opened once for all activation rows. */
#include "kernel/dot.h"

#include "format/quant_block.h"

enum { GROUP = 8 }; /* activation rows that share an opened block */

static int group_size(int n_x, int j)
{
    return n_x - j < GROUP ? n_x - j : GROUP;
}

static void rows_blocks(int type, float *y, const void *w, size_t row_bytes, int n_rows, const struct st_act_row *x,
                        int n_x, size_t ldy, size_t n)
{
    const struct st_block_form *form = st_block_form(type);
    struct st_block b;
    for (int r = 0; r < n_rows; r++) {
        for (int j = 0; j < n_x; j += GROUP) {
            const uint8_t *p = (const uint8_t *)w + row_bytes * (size_t)r;
            int group = group_size(n_x, j);
            float acc[GROUP] = {0};
            for (size_t i = 0; i < n; i += form->elems, p += form->bytes) {
                form->unpack(p, &b);
                for (int g = 0; g < group; g++)
                    acc[g] = st_block_dot(form, &b, &x[j + g], i, acc[g]);
            }
            for (int g = 0; g < group; g++)
                y[(size_t)(j + g) * ldy + (size_t)r] = acc[g];
        }
    }
}

/* The order of st_dot_f32 over a decoded row. 256 elements are decoded at a time: a multiple of every block. */
static void rows_decoded(int type, float *y, const void *w, size_t row_bytes, int n_rows, const struct st_act_row *x,
                         int n_x, size_t ldy, size_t n)
{
    const struct st_type_info *info = st_type_info(type);
    float values[256];
    for (int r = 0; r < n_rows; r++) {
        for (int j = 0; j < n_x; j += GROUP) {
            const uint8_t *p = (const uint8_t *)w + row_bytes * (size_t)r;
            int group = group_size(n_x, j);
            float acc[GROUP][16] = {{0}};
            for (size_t i = 0; i < n; i += 256, p += 256 / info->block_elems * info->block_bytes) {
                size_t count = n - i < 256 ? n - i : 256;
                info->decode(p, values, count);
                for (size_t pad = count; pad % 16; pad++)
                    values[pad] = 0.0f;
                for (int g = 0; g < group; g++)
                    for (size_t k = 0; k < count; k += 16)
                        for (size_t l = 0; l < 16; l++)
                            acc[g][l] =
                                __builtin_fmaf(k + l < count ? x[j + g].f[i + k + l] : 0.0f, values[k + l], acc[g][l]);
            }
            for (int g = 0; g < group; g++) {
                for (int half = 8; half; half /= 2)
                    for (int l = 0; l < half; l++)
                        acc[g][l] += acc[g][l + half];
                y[(size_t)(j + g) * ldy + (size_t)r] = acc[g][0];
            }
        }
    }
}

#define ROWS(kind, TYPE)                                                                                               \
    static void kind##_##TYPE(float *y, const void *w, size_t row_bytes, int n_rows, const struct st_act_row *x,       \
                              int n_x, size_t ldy, size_t n)                                                           \
    {                                                                                                                  \
        rows_##kind(ST_TYPE_##TYPE, y, w, row_bytes, n_rows, x, n_x, ldy, n);                                          \
    }
#define FLOAT_TYPE(TYPE) ROWS(decoded, TYPE)
#define BLOCK_TYPE(TYPE) ROWS(decoded, TYPE) ROWS(blocks, TYPE)
#include "kernel/dot_types.inc"
#undef FLOAT_TYPE
#undef BLOCK_TYPE

const struct st_dot_table *st_dot_table_c(void)
{
    static const struct st_dot_table table = {
        .name = "c",
        .rows =
            {
#define FLOAT_TYPE(TYPE) [ST_TYPE_##TYPE] = decoded_##TYPE,
#define BLOCK_TYPE(TYPE) [ST_TYPE_##TYPE] = blocks_##TYPE,
#include "kernel/dot_types.inc"
#undef FLOAT_TYPE
#undef BLOCK_TYPE
            },
        .rows_f32 =
            {
#define FLOAT_TYPE(TYPE) [ST_TYPE_##TYPE] = decoded_##TYPE,
#define BLOCK_TYPE(TYPE) [ST_TYPE_##TYPE] = decoded_##TYPE,
#include "kernel/dot_types.inc"
#undef FLOAT_TYPE
#undef BLOCK_TYPE
            },
        .quantize = st_act_quantize,
    };
    return &table;
}
