/* The state of a session, wherever its stages are: the same bytes in the same order for every split over devices. First
 * the pieces of the trunk in the order of layers, then those of the draft layer.
 *
 * A piece is fixed (recurrent state, rings: one unit whatever the length, overwritten by every token) or growing (keys
 * and values, block keys: a unit for every so many tokens, never written again). A session can go back to an earlier
 * length where its fixed pieces are known; the growing ones then count for less. */
#ifndef ST_ENGINE_STATE_H
#define ST_ENGINE_STATE_H

#include "engine/engine.h"

enum { ST_STATE_FIXED = 1, ST_STATE_GROWING = 2 };

/* Form of a piece, free of addresses. */
struct st_state_shape {
    uint64_t unit_bytes;
    uint32_t outer, tokens_per_unit; /* as in st_state_piece */
};

/* Bytes of a piece that a session of tokens tokens fills; false on overflow. */
bool st_state_shape_bytes(const struct st_state_shape *shape, uint32_t tokens, uint64_t *out);

/* Pieces of an engine's state, and the form of each. shapes may be NULL. */
size_t st_state_shapes(const struct strata_engine *e, struct st_state_shape *shapes);

/* Bytes of the pieces of these kinds after tokens tokens. */
uint64_t st_state_bytes(const struct strata_engine *e, unsigned kinds, uint32_t tokens);

/* A walk over the session's bytes in stretches of at most `most`; ends at the first failure of visit, which it returns.
 */
typedef enum strata_result st_state_visit(void *user, struct st_stage *stage, uint8_t *at, uint64_t bytes);
enum strata_result st_state_walk(const struct strata_session *s, unsigned kinds, uint32_t tokens, uint64_t most,
                                 st_state_visit *visit, void *user);

/* Copies the pieces of these kinds to and from memory of st_state_bytes bytes. */
enum strata_result st_state_read(const struct strata_session *s, unsigned kinds, uint32_t tokens, uint8_t *to,
                                 struct strata_error *err);
enum strata_result st_state_write(const struct strata_session *s, unsigned kinds, uint32_t tokens, const uint8_t *from,
                                  struct strata_error *err);
/* Copies the pieces of these kinds from one session to another of the same engine, through a little host memory. */
enum strata_result st_state_copy(const struct strata_session *to, const struct strata_session *from, unsigned kinds, uint32_t tokens,
                                 struct strata_error *err);
/* Zeroes the fixed pieces. */
enum strata_result st_state_clear(const struct strata_session *s, struct strata_error *err);

#endif
