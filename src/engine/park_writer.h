/* The thread that writes parked conversations to disk, so that the engine does not wait for it: one file at a time. All
 * calls come from the engine's thread; what the writer is given is its own until the result is taken. */
#ifndef ST_ENGINE_PARK_WRITER_H
#define ST_ENGINE_PARK_WRITER_H

#include "engine/session_file.h"

struct st_park_writer;

enum strata_result st_park_writer_create(struct st_park_writer **out, struct strata_error *err);
/* Only when no file is under way. w may be NULL. */
void st_park_writer_free(struct st_park_writer *w);

/* Gives the writer a file that was begun. Only when no file is under way. */
void st_park_writer_start(struct st_park_writer *w, struct st_session_writing *file);
/* The file that is under way is not needed any more. Its result comes nevertheless, sooner and maybe a failure. */
void st_park_writer_stop(struct st_park_writer *w);
/* Whether the file that is under way is complete or given up: *r and err then have its result, and none is under way.
 * wait: for that. */
bool st_park_writer_done(struct st_park_writer *w, bool wait, enum strata_result *r, struct strata_error *err);

#endif
