/* Files of slots: see slot_files.h. */
#include "serve/slot_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/park.h"
#include "engine/session_file.h"

#define FOLDER "/saved/"

struct place {
    char path[PATH_MAX];
    size_t folder; /* bytes of path before the name */
    bool there;
    uint64_t bytes; /* of the file that is there */
};

static enum strata_result find(const struct strata_engine *e, const char *name, struct place *p, struct strata_error *err)
{
    struct stat st;
    int n = snprintf(p->path, sizeof p->path, "%s" FOLDER "%s", e->options.session_dir, name);
    if (n < 0 || (size_t)n >= sizeof p->path)
        return st_fail(err, STRATA_E_ARGUMENT, "%s: the path of a file in --session-dir is too long", name);
    p->folder = (size_t)n - strlen(name);
    p->there = lstat(p->path, &st) == 0;
    p->bytes = p->there ? (uint64_t)st.st_size : 0;
    if (p->there && !S_ISREG(st.st_mode))
        return st_fail(err, STRATA_E_ARGUMENT, "%s: exists and is not a file", name);
    return STRATA_OK;
}

/* Bytes of all saved files. */
static uint64_t saved_bytes(const struct strata_engine *e)
{
    char path[PATH_MAX];
    uint64_t bytes = 0;
    int n = snprintf(path, sizeof path, "%s" FOLDER, e->options.session_dir);
    DIR *d = n > 0 && (size_t)n < sizeof path ? opendir(path) : NULL;
    for (struct dirent *entry; d && (entry = readdir(d));) {
        struct stat st;
        if (!fstatat(dirfd(d), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) && S_ISREG(st.st_mode))
            bytes += (uint64_t)st.st_size;
    }
    if (d)
        closedir(d);
    return bytes;
}

void st_slot_files_open(struct strata_engine *e)
{
    if (e->options.session_dir)
        st_park_set_aside(e, saved_bytes(e));
}

/* A message about the file begins with its path, maybe behind a canonical name of the folder. */
static void hide_folder(struct strata_error *err, const char *name)
{
    char part[NAME_MAX + sizeof FOLDER];
    snprintf(part, sizeof part, FOLDER "%s", name);
    char *at = err ? strstr(err->text, part) : NULL;
    if (at)
        memmove(err->text, at + strlen(FOLDER), strlen(at + strlen(FOLDER)) + 1);
}

static enum strata_result make_folder(struct place *p, const char *name, struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    p->path[p->folder - 1] = 0;
    if (mkdir(p->path, 0700) && errno != EEXIST)
        r = st_fail(err, STRATA_E_IO, "%s: cannot make the folder: %s", name, strerror(errno));
    p->path[p->folder - 1] = '/';
    return r;
}

enum strata_result st_slot_file_save(struct strata_session *s, const char *name, uint64_t *bytes, struct strata_error *err)
{
    struct strata_engine *e = s->engine;
    struct place p;
    struct st_session_source source = st_session_source(s);
    uint64_t limit = e->options.session_disk, own = st_session_file_bytes(e, &source);
    enum strata_result r = find(e, name, &p, err);
    if (r)
        return r;
    uint64_t others = saved_bytes(e) - p.bytes;
    if (own > limit || others > limit - own)
        return st_fail(err, STRATA_E_LIMIT,
                       "%s: the session takes %llu bytes, other saved ones %llu, and --session-disk allows %llu", name,
                       (unsigned long long)own, (unsigned long long)others, (unsigned long long)limit);
    st_park_set_aside(e, others + own); /* parked conversations make room first */
    r = make_folder(&p, name, err);
    if (!r && (r = strata_session_save(s, p.path, err)))
        hide_folder(err, name);
    if (!r)
        r = find(e, name, &p, err);
    *bytes = p.bytes;
    return r;
}

enum strata_result st_slot_file_restore(struct strata_session *s, const char *name, uint64_t *bytes, bool *missing,
                                        struct strata_error *err)
{
    struct place p;
    enum strata_result r = find(s->engine, name, &p, err);
    if (r)
        return r;
    *missing = !p.there;
    *bytes = p.bytes;
    if ((r = strata_session_restore(s, p.path, err)))
        hide_folder(err, name);
    return r;
}
