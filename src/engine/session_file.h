/* Session files: a conversation's tokens and state, for any engine with the same model and settings, whatever its
 * devices.
 *
 * Little-endian, version 2:
 *     header (struct st_session_header)
 *     the form of each piece of state: u64 unit_bytes, u32 outer, u32 tokens_per_unit   [pieces]
 *     checkpoints, ascending: u32 tokens, i32 next_axis                                  [points]
 *     i32 ids[tokens]
 *     the state after all tokens: for each piece, in the order of layers and then the draft layer's, its outer arrays
 *     of used units
 *     for each checkpoint its fixed pieces
 *     u64 XXH3 of everything before, "STRATAE1" */
#ifndef ST_ENGINE_SESSION_FILE_H
#define ST_ENGINE_SESSION_FILE_H

#include "engine/state.h"

struct st_session_header {
    char mark[8];
    uint32_t version, pieces;
    struct st_session_print print;
    uint32_t tokens;
    int32_t next_axis;
    uint32_t points, reserved; /* 0 */
};

struct st_session_point {
    uint32_t tokens;
    int32_t next_axis;
};

/* A file's parts, checked against each other: marks, hash, sizes, order of checkpoints. Pointers into the file's bytes,
 * which are not aligned. */
struct st_session_view {
    struct st_session_header h;
    const uint8_t *shapes, *points, *ids, *state, *point_states;
    uint64_t state_bytes, fixed_bytes; /* after all tokens; of one checkpoint */
};

/* What a file is written from: a session's state in the stages, or a copy of it. */
struct st_session_source {
    uint32_t tokens;
    int32_t next_axis;
    const int32_t *ids;
    struct st_checkpoint *const *point; /* [points], ascending */
    int points;
    const struct strata_session *session; /* NULL: */
    const uint8_t *state;                 /* as st_state_read gives all pieces */
};
struct st_session_source st_session_source(const struct strata_session *s);
/* Writing, in two steps. The first one opens the file and writes all that the engine is needed for: head and states of a
 * session, the head alone of a copy. The second one, which may be another thread's, writes the rest, gives the file its
 * name and frees w, whatever comes of it; until then a copy and the checkpoints of its source must stay as they are. stop
 * (may be NULL): the file is given up once this is true, STRATA_E_CANCELLED. */
struct st_session_writing;
enum strata_result st_session_write_begin(struct strata_engine *e, const char *path,
                                          const struct st_session_source *source, struct st_session_writing **out,
                                          struct strata_error *err);
enum strata_result st_session_write_end(struct st_session_writing *w, const _Atomic bool *stop,
                                        struct strata_error *err);
/* Bytes that the file will have. */
uint64_t st_session_file_bytes(const struct strata_engine *e, const struct st_session_source *source);

/* name is for messages. Nothing about an engine is checked. */
enum strata_result st_session_parse(const uint8_t *data, uint64_t size, const char *name, struct st_session_view *out,
                                    struct strata_error *err);
/* The same without looking at what the hash covers: what is found is not to be relied on yet. */
enum strata_result st_session_peek(const uint8_t *data, uint64_t size, const char *name, struct st_session_view *out,
                                   struct strata_error *err);
struct st_session_point st_session_view_point(const struct st_session_view *v, uint32_t i);

/* Whether the engine's sessions can take the view's state; the message names what differs. */
enum strata_result st_session_fits(struct strata_engine *e, const struct st_session_view *v, const char *name,
                                   struct strata_error *err);

/* The session becomes the view's, which fits. After a failure it holds nothing. */
enum strata_result st_session_take(struct strata_session *s, const struct st_session_view *v, struct strata_error *err);

/* The engine's own; computed at the first call. */
const struct st_session_print *st_engine_print(struct strata_engine *e);

/* 64-bit fingerprint of a model file: names, shapes, types, and a sample of every tensor's bytes. */
uint64_t st_model_fingerprint(const struct st_gguf *g);

#endif
