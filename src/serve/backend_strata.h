/* The backend that computes: one model, one engine, one session, over the public API. */
#ifndef ST_SERVE_BACKEND_STRATA_H
#define ST_SERVE_BACKEND_STRATA_H

#include "serve/backend.h"

/* path and the texts in options must live until the backend is freed. Nothing is opened before load. */
enum strata_result st_backend_strata(const char *path, const struct strata_engine_options *options,
                                     struct st_backend **out, struct strata_error *err);

#endif
