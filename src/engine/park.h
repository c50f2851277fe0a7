/* Conversations that are not under way: when a request belongs to another one than the session holds, the session's
 * state is parked in host memory within the engine's limit for kept states, then in files within a limit of their own,
 * the longest unused first, and comes back when a request goes on with it. Files outlive the program.
 *
 * A thread of the engine writes the files, one at a time, from copies in memory: the engine goes on, and takes a
 * conversation that is being written from there. It begins before memory is short, when the next conversation would find
 * no room, and a copy stays until its memory is needed; the engine waits for a file only where memory runs out before it
 * is complete. A state that never had room in memory is read from the stages into the file by the engine, and the thread
 * syncs it. */
#ifndef ST_ENGINE_PARK_H
#define ST_ENGINE_PARK_H

#include "engine/checkpoint.h"

enum { ST_PARK_LEAST = 32 }; /* tokens that must be saved for a conversation to be parked or taken back */

struct st_park; /* owned by the engine: e->park */

/* dir: where files lie, made when it is missing, used by one engine at a time; NULL: memory only. limit: bytes of all
 * files there. Files of this model's conversations that lie there are taken over, those that do not fit are left alone.
 */
enum strata_result st_park_open(struct strata_engine *e, const char *dir, uint64_t limit, struct strata_error *err);
void st_park_close(struct strata_engine *e);

/* Makes the session hold as much of the prompt's beginning as can be had, from its own state, a parked one or that of another session,
 * and nothing else. What it held is parked if that is worth it. logits: the last token's logits are needed unless the
 * session still has them. */
enum strata_result st_park_choose(struct strata_session *s, const int32_t *ids, size_t count, struct strata_error *err);

/* Which of several sessions, the least recently used one first, should take a prompt: the one that holds most of its beginning. If
 * that is little, if it would lose more than it has in common while another one is empty, or if a parked conversation has more:
 * an empty one, or the first. */
struct strata_session *st_park_pick(struct strata_session *const *sessions, size_t count, const int32_t *ids, size_t n);

/* Parks what the session holds, in a file if there is a folder: the file may not be complete when this returns. Nothing
 * is lost from the session. Where there is no room that is no failure. */
enum strata_result st_park_put(struct strata_session *s, struct strata_error *err);

/* Bytes of the files' limit that others take from now on: the longest unused conversations go where they have no room then. */
void st_park_set_aside(struct strata_engine *e, uint64_t bytes);

/* Frees the longest unused conversation's memory, through a file if there is a folder. False: there is none. */
bool st_park_make_room(struct strata_engine *e);

struct st_park_info {
    size_t in_memory, in_files; /* one that is in a file may still be in memory too */
    uint64_t memory_bytes, file_bytes;
    uint64_t dropped;       /* conversations that found no room, since the start */
    char last_failure[300]; /* of a file, "" if there was none */
};
void st_park_info(struct strata_engine *e, struct st_park_info *out);

#endif
