/* Checkpoints: copies of a session's fixed state at earlier lengths, in host memory, so that a conversation that goes
 * on differently from there is not read from its beginning. Keys and values need no copy: they lie where they were. */
#ifndef ST_ENGINE_CHECKPOINT_H
#define ST_ENGINE_CHECKPOINT_H

#include "engine/engine.h"

enum {
    ST_CHECKPOINTS = ST_SESSION_POINTS,
    ST_CHECKPOINTS_KEPT = 8,       /* of a session, that there is memory for unless the caller says otherwise */
    ST_CHECKPOINT_EVERY = 1 << 14, /* tokens, where nothing else gives a reason */
};

struct st_checkpoint {
    uint32_t tokens;
    int32_t next_axis;
    uint32_t users; /* sessions and parked conversations that have it */
    uint64_t bytes;
    uint8_t state[]; /* the fixed pieces, as st_state_read gives them */
};

/* Memory of a checkpoint of this engine's sessions; 0: the state is a list of keys and values, and sessions go back to
 * any length without one. */
uint64_t st_checkpoint_bytes(const struct strata_engine *e);

/* Where reading tokens [from, count) of a prompt stops for a checkpoint: ascending, each in from + 1 .. count - 1.
 * Behind each of the last turns, the first one (the system's message), others that are not close to one another, and
 * every ST_CHECKPOINT_EVERY tokens. A long text without turns stops before its last token. Returns how many. */
size_t st_checkpoint_cuts(const struct strata_engine *e, const int32_t *ids, size_t from, size_t count,
                          uint32_t cuts[ST_CHECKPOINTS]);

/* Copies the state as it is now. When memory or places run out, checkpoints between others go first; without any room
 * nothing is kept and that is no failure. */
enum strata_result st_checkpoint_take(struct strata_session *s, struct strata_error *err);

/* Whether the session is ST_CHECKPOINT_EVERY tokens behind its last checkpoint. */
bool st_checkpoint_due(const struct strata_session *s);
/* How many tokens before that; 0: due. */
uint32_t st_checkpoint_left(const struct strata_session *s);

/* Adds a checkpoint from elsewhere behind those that the session has, where there is room. state: as st_state_read
 * gives the fixed pieces; copied. */
void st_checkpoint_add(struct strata_session *s, uint32_t tokens, int32_t next_axis, const uint8_t *state);

/* Takes the session back to the greatest length up to most that can be had (0: nothing held), and forgets what lies
 * behind it. */
enum strata_result st_session_rewind(struct strata_session *s, uint32_t most, struct strata_error *err);
/* That length. */
uint32_t st_session_reach(const struct strata_session *s, uint32_t most);

/* The greatest length up to most at which another session can take over what this one holds, while this one goes on; 0: none. */
uint32_t st_session_lends(const struct strata_session *s, uint32_t most);
/* Makes the session hold what another one of its engine has of its first tokens tokens, a length that it lends at; what the session held
 * is forgotten. Bits are those of reading the tokens. */
enum strata_result st_session_borrow(struct strata_session *s, const struct strata_session *from, uint32_t tokens, struct strata_error *err);

/* Frees the checkpoints behind tokens tokens. */
void st_checkpoints_drop(struct strata_session *s, uint32_t tokens);

/* Gives up one of the session's checkpoints, the one that is missed least, if it has more than least. */
bool st_checkpoint_thin(struct strata_session *s, int least);

/* One more user of a checkpoint, and one less. */
struct st_checkpoint *st_checkpoint_share(struct st_checkpoint *c);
void st_checkpoint_release(struct strata_engine *e, struct st_checkpoint *c);

/* Memory for kept states, within the engine's limit; NULL when there is none. */
void *st_keep_take(struct strata_engine *e, uint64_t bytes);
void st_keep_free(struct strata_engine *e, void *memory, uint64_t bytes);

#endif
