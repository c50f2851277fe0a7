/* Rows of one pass, and weights: what every kernel family shares.
 *
 * A pass computes n rows. A row is one token of one sequence: (slot, position, token). Rows of the same slot are
 * neighbours and ascend in position without gaps, so a decode window, a prompt chunk and a batch of many conversations
 * have the same form. Memory belongs to the engine; the arrays stay at the same place for every pass so that command
 * lists can be built once. */
#ifndef ST_KERNEL_ROWS_H
#define ST_KERNEL_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/team.h"
#include "format/quant.h"

/* Tokens before a row's own that n-gram features may look at. */
enum { ST_HISTORY = 7 };

/* What a pass does with recurrent state (matrix states, rings of convolutions).
 * ADVANCE: it moves on with the rows. HOLD: it stays as it is, and what the rows would have fed into it is kept; at most ST_HELD_ROWS
 * rows. COMMIT: it moves on by n of the rows that were held last, from number held on: the first ones of one sequence, the same
 * rows in slot, pos and token; nothing else is computed. */
enum st_rows_mode { ST_ROWS_ADVANCE, ST_ROWS_HOLD, ST_ROWS_COMMIT };

enum { ST_HELD_ROWS = 8 };

struct st_rows {
    int32_t n;        /* rows in this pass */
    int32_t n_out;    /* rows whose logits are wanted */
    int32_t n_spans;  /* runs of rows of one slot */
    int32_t n_stream; /* scratch count: rows times residual streams, set with n */
    enum st_rows_mode mode;
    int32_t held;     /* of a pass that commits: which of the held rows its first one is; otherwise 0 */
    int32_t *slot;    /* [n] which sequence's state */
    int32_t *pos;     /* [n] index in the sequence, 0-based: cache place and causal order */
    int32_t *token;   /* [n] token id (of a placeholder for embedding rows) */
    int32_t *axis;    /* [n][3] rotary positions t, h, w; all equal to pos plus an offset for text */
    int32_t *history; /* [n][ST_HISTORY] token ids before the row's, nearest first, -1 where there is none */
    int32_t *out;     /* [n_out] row numbers, ascending */
    int32_t *span;    /* [n + 1] first row of each run of rows of one slot, then n to the end */
    float *embd;      /* [n][hidden] input embeddings, used by rows with embd_row set */
    const uint8_t *ngram;  /* fetched rows of the n-gram table, encoded, one after the other */
    uint32_t *ngram_index; /* [n][heads] which of them each head takes */
    uint8_t *embd_row; /* [n] 1: the row's input is embd, not the token's embedding */
};

/* A matrix of rows x cols, rows stored one after the other in the type's blocks. For experts, rows counts one expert's
 * and data is expert 0's. */
struct st_weight {
    const void *data; /* NULL: the tensor is absent */
    int type;         /* enum st_type */
    enum st_act act;  /* form of the activations it is multiplied with */
    uint32_t cols, rows;
    size_t row_bytes;
    size_t expert_bytes; /* from one expert's data to the next's, unless there are places */
    /* NULL, or where each expert's rows lie. On the CPU: const uint8_t *[experts]. On a device: two lists of [experts] 64-bit
     * offsets from data, in the device's memory: of the experts that are there (the others: ST_NO_PLACE, kernel/gpu/layout.h),
     * and of all of them while a prompt has them brought (engine/experts.h). */
    const void *places;
    const float *scale;  /* NULL, or factors of the product: one, or one per expert */
    uint32_t scale_count;
};

#endif
