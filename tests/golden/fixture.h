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

/* The folder of this test program, which setup makes. */
static char work[PATH_SIZE];

/* "<work>/<name>" for short names; valid until eight more have been asked for. */
static inline const char *work_path(const char *name)
{
    static char paths[8][PATH_SIZE + 64];
    static int next;
    char *p = paths[next++ % 8];
    snprintf(p, sizeof paths[0], "%s/%.60s", work, name);
    return p;
}

/* Setup of a group: a new empty folder below the build. */
static inline int make_work(void **state)
{
    (void)state;
    unpacked(work, "", "work.XXXXXX");
    return mkdtemp(work) ? 0 : -1;
}

/* Teardown of a group: removes the folder and the files in it. */
static inline int remove_work(void **state)
{
    (void)state;
    DIR *d = opendir(work);
    for (struct dirent *e; d && (e = readdir(d));)
        unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
    rmdir(work);
    return 0;
}

#endif
