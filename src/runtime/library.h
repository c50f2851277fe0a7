/* Opening a driver's library and finding its functions by name. */
#ifndef ST_RUNTIME_LIBRARY_H
#define ST_RUNTIME_LIBRARY_H

#include "base/result.h"

/* A function to find: exact symbol, another one with the same signature to take when the first is missing (or NULL),
 * where its pointer goes in the caller's structure, and whether the runtime is unusable without it. */
struct st_symbol {
    const char *name, *fallback;
    size_t offset;
    bool required;
};

/* Opens path, or the first of names (ended by NULL) that opens, with its symbols kept to itself. used gets the name
 * that opened. A failure says whether the library is missing or broken: STRATA_E_UNSUPPORTED. */
enum strata_result st_library_open(const char *path, const char *const *names, void **out, char used[256],
                                   struct strata_error *err);

/* Fills the function pointers in base. Names a required function that is missing. */
enum strata_result st_library_symbols(void *library, const char *name, const struct st_symbol *symbols, size_t count,
                                      void *base, struct strata_error *err);

#endif
