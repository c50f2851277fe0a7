/* Version, commit and compiler of this build. */
#include "base/build_info.h"
#include "strata.h"

#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

const char *strata_version(void)
{
    return ST_VERSION;
}

const char *strata_build(void)
{
    return "commit " ST_BUILD_COMMIT ", " COMPILER;
}
