/* Where golden tests find what the build unpacked, and a folder of their own to write into. */
#ifndef ST_TESTS_GOLDEN_FIXTURE_H
#define ST_TESTS_GOLDEN_FIXTURE_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_SIZE = 1024 };

/* "<build>/tests/golden/<archive>/<name>" */
static inline const char *unpacked(char path[PATH_SIZE], const char *archive, const char *name)
{
    const char *build = getenv("STRATA_TEST_BUILD");
    snprintf(path, PATH_SIZE, "%s/tests/golden/%s/%s", build ? build : ".", archive, name);
    return path;
}

/* A new empty folder below the build; false when the system refuses. */
static inline bool work_folder(char dir[PATH_SIZE])
{
    unpacked(dir, "", "work.XXXXXX");
    return mkdtemp(dir) != NULL;
}

/* Removes the folder and the files in it. */
static inline void remove_work_folder(const char *dir)
{
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));)
        unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
    rmdir(dir);
}

#endif
