/* Opening a driver's library and finding its functions by name. */
#include "runtime/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum strata_result st_library_open(const char *path, const char *const *names, void **out, char used[256],
                                   struct strata_error *err)
{
    const char *const single[] = {path, NULL};
    char reason[256] = "";
    for (const char *const *name = path ? single : names; *name; name++) {
        void *library = dlopen(*name, RTLD_NOW | RTLD_LOCAL);
        if (library) {
            snprintf(used, 256, "%s", *name);
            *out = library;
            return STRATA_OK;
        }
        /* The most telling reason is that of a file which exists and does not load. */
        const char *said = dlerror();
        if (said && (!reason[0] || !strstr(said, "cannot open shared object file")))
            st_printable(reason, sizeof reason, said, strlen(said));
    }
    return st_fail(err, STRATA_E_UNSUPPORTED, "%s", reason);
}

enum strata_result st_library_symbols(void *library, const char *name, const struct st_symbol *symbols, size_t count,
                                      void *base, struct strata_error *err)
{
    for (size_t i = 0; i < count; i++) {
        void *found = dlsym(library, symbols[i].name);
        if (!found && symbols[i].fallback)
            found = dlsym(library, symbols[i].fallback);
        if (!found && symbols[i].required)
            return st_fail(err, STRATA_E_UNSUPPORTED, "%s has no function %s: the driver is too old or broken", name,
                           symbols[i].name);
        /* ISO C has no conversion from an object to a function pointer; POSIX guarantees the representation. */
        memcpy((char *)base + symbols[i].offset, &found, sizeof found);
    }
    return STRATA_OK;
}
