/* Files of slots: states that clients save under a name, in the folder "saved" of the engine's folder for sessions. Together
 * with parked conversations they take no more than its limit. Messages name the file, not the folder. */
#ifndef ST_SERVE_SLOT_FILES_H
#define ST_SERVE_SLOT_FILES_H

#include <limits.h>

#include "engine/engine.h"

/* After the engine was created: parked conversations leave room for what is saved. */
void st_slot_files_open(struct strata_engine *e);
/* *bytes: of the file. STRATA_E_LIMIT where it has no room. */
enum strata_result st_slot_file_save(struct strata_session *s, const char *name, uint64_t *bytes, struct strata_error *err);
/* *missing: there is no such file. */
enum strata_result st_slot_file_restore(struct strata_session *s, const char *name, uint64_t *bytes, bool *missing,
                                        struct strata_error *err);

#endif
