/* The backend that computes: one model, one engine, several sessions, over the public API. */
#ifndef ST_SERVE_BACKEND_STRATA_H
#define ST_SERVE_BACKEND_STRATA_H

#include "serve/backend.h"

/* options->sessions: answers at once, at most 256; 0: four, or fewer where memory is short. path and the texts in options must
 * live until the backend is freed. Nothing is opened before load; placed (may be NULL) is called in the engine thread once the
 * model lies in its place. */
enum strata_result st_backend_strata(const char *path, const struct strata_engine_options *options,
                                     void (*placed)(const struct strata_engine *engine), struct st_backend **out,
                                     struct strata_error *err);

#endif
