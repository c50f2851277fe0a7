/* Parked conversations: see park.h. */
#include "engine/park.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/file.h"
#include "engine/park_writer.h"
#include "engine/speculate.h"

enum {
    ALL = ST_STATE_FIXED | ST_STATE_GROWING,
    MANY_TOKENS = 1024,
    FEW_POINTS = 3, /* checkpoints that a conversation keeps when memory is short: the first and the last two */
};

/* A conversation, in memory (state), in a complete file (path), or both: its memory then goes as soon as it is needed. */
struct parked {
    struct parked *next; /* the one that was used before this one */
    uint32_t tokens;
    int32_t next_axis;
    int32_t *ids;
    struct st_session_point where[ST_CHECKPOINTS]; /* checkpoints, ascending */
    struct st_checkpoint *point[ST_CHECKPOINTS];   /* shared with sessions; not of files */
    int points;
    uint8_t *state;
    uint64_t state_bytes;
    char *path;
    uint64_t file_bytes;
    bool writing;  /* to a file; what the writer reads of it stays as it is */
    bool unwanted; /* and on no list any more: goes when the writer is done with it */
};

struct st_park {
    struct parked *first; /* used last */
    char *dir;
    int lock; /* of the folder */
    uint64_t dir_limit, file_limit; /* of the folder, and what others leave of it */
    uint64_t file_used, dropped, number; /* used: with the file that is being written */
    struct st_park_writer *writer;
    struct parked *in_hand; /* being written, or NULL */
    char *new_path;         /* to this file */
    uint64_t failures;      /* of files that were to be written, lack of room not among them */
    enum strata_result last_result;
    char prefix[20]; /* of the names of files that sessions of this engine can take */
    char last_failure[300];
};

/* ---- the list ---- */

static void put_first(struct st_park *park, struct parked *p)
{
    p->next = park->first;
    park->first = p;
}

static void detach(struct st_park *park, struct parked *p)
{
    struct parked **at = &park->first;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
}

static void free_memory(struct strata_engine *e, struct parked *p)
{
    for (int i = 0; i < p->points; i++) {
        st_checkpoint_release(e, p->point[i]);
        p->point[i] = NULL;
    }
    st_keep_free(e, p->state, p->state_bytes);
    p->state = NULL;
}

static void free_parked(struct strata_engine *e, struct parked *p)
{
    free_memory(e, p);
    st_keep_free(e, p->ids, p->tokens * sizeof *p->ids);
    free(p->path);
    st_keep_free(e, p, sizeof *p);
}

static void remove_file(struct st_park *park, struct parked *p)
{
    if (p->path && !unlink(p->path))
        park->file_used -= p->file_bytes;
}

/* Takes a detached conversation out of the world; one that is being written later. */
static void discard(struct strata_engine *e, struct parked *p)
{
    if (p->writing) {
        p->unwanted = true;
        st_park_writer_stop(e->park->writer);
        return;
    }
    remove_file(e->park, p);
    free_parked(e, p);
}

static void drop(struct strata_engine *e, struct parked *p)
{
    detach(e->park, p);
    discard(e, p);
    e->park->dropped++;
}

static struct parked *new_parked(struct strata_engine *e, uint32_t tokens)
{
    struct parked *p = st_keep_take(e, sizeof *p);
    int32_t *ids = p ? st_keep_take(e, tokens * sizeof *ids) : NULL;
    if (!ids) {
        st_keep_free(e, p, sizeof *p);
        return NULL;
    }
    *p = (struct parked){.tokens = tokens, .ids = ids};
    return p;
}

static void failed(struct st_park *park, enum strata_result r, const struct strata_error *why)
{
    park->failures += r != STRATA_E_LIMIT;
    park->last_result = r;
    snprintf(park->last_failure, sizeof park->last_failure, "%.*s", (int)sizeof park->last_failure - 1, why->text);
}

static uint32_t common(const int32_t *a, size_t n, const int32_t *b, size_t m)
{
    size_t i = 0, most = n < m ? n : m;
    while (i < most && a[i] == b[i])
        i++;
    return (uint32_t)i;
}

/* Discards conversations behind this one in the list, of which it holds nearly everything. A file outlives a program that is killed,
 * which what is in memory alone does not: it stays until a file takes its place. */
static void discard_superseded(struct strata_engine *e, const struct parked *by)
{
    for (struct parked *p = by->next, *next; p; p = next) {
        next = p->next;
        if (common(p->ids, p->tokens, by->ids, by->tokens) < p->tokens - p->tokens / 8 || ((p->path || p->writing) && !by->path))
            continue;
        detach(e->park, p);
        discard(e, p);
    }
}

static bool in_list(const struct st_park *park, const struct parked *p)
{
    const struct parked *at = park->first;
    while (at && at != p)
        at = at->next;
    return at != NULL;
}

/* ---- files ---- */

/* Looks what became of the file that is being written. wait: until it is complete or has failed. Conversations that it holds
 * are then gone from the list. */
static void settle(struct strata_engine *e, bool wait)
{
    struct st_park *park = e->park;
    struct parked *p = park->in_hand;
    struct strata_error why;
    enum strata_result r;
    if (!p || !st_park_writer_done(park->writer, wait, &r, &why))
        return;
    park->in_hand = NULL;
    p->writing = false;
    if (!r) {
        p->path = park->new_path;
    } else {
        free(park->new_path);
        park->file_used -= p->file_bytes;
    }
    park->new_path = NULL;
    if (r && !p->unwanted)
        failed(park, r, &why);
    if (p->unwanted)
        discard(e, p);
    else if (r && !p->state)
        drop(e, p);
    else if (!r && in_list(park, p))
        discard_superseded(e, p);
}

/* Deletes the longest unused files until bytes more fit. None is being written. */
static bool file_room(struct strata_engine *e, uint64_t bytes)
{
    struct st_park *park = e->park;
    while (bytes <= park->file_limit && park->file_used > park->file_limit - bytes) {
        struct parked *last = NULL;
        for (struct parked *p = park->first; p; p = p->next)
            last = p->path ? p : last;
        if (!last)
            return false;
        drop(e, last);
    }
    return bytes <= park->file_limit;
}

/* Begins to write a conversation to a file, when the one before is complete. False: that is not possible, as last_failure
 * then says. */
static bool begin_file(struct strata_engine *e, struct parked *p, const struct st_session_source *source)
{
    struct st_park *park = e->park;
    struct st_session_writing *file;
    struct strata_error why;
    settle(e, true);
    size_t room = strlen(park->dir) + sizeof park->prefix + 40;
    uint64_t bytes = st_session_file_bytes(e, source);
    char *path = malloc(room);
    enum strata_result r = STRATA_OK;
    if (!path)
        r = st_fail(&why, STRATA_E_MEMORY, "%s: no memory for a file's name", park->dir);
    else
        snprintf(path, room, "%s/%s%08llx.session", park->dir, park->prefix, (unsigned long long)++park->number);
    if (!r && !file_room(e, bytes))
        r = st_fail(&why, STRATA_E_LIMIT,
                    "%s: a conversation of %llu bytes has no room in the %llu that files may take", park->dir,
                    (unsigned long long)bytes, (unsigned long long)park->file_limit);
    if (!r)
        r = st_session_write_begin(e, path, source, &file, &why);
    if (r) {
        failed(park, r, &why);
        free(path);
        return false;
    }
    park->in_hand = p;
    park->new_path = path;
    park->file_used += bytes;
    p->file_bytes = bytes;
    p->writing = true;
    st_park_writer_start(park->writer, file);
    return true;
}

static struct st_session_source source_of(const struct parked *p)
{
    return (struct st_session_source){.tokens = p->tokens,
                                      .next_axis = p->next_axis,
                                      .ids = p->ids,
                                      .point = p->point,
                                      .points = p->points,
                                      .state = p->state};
}

static bool begin_copy(struct strata_engine *e, struct parked *p)
{
    struct st_session_source source = source_of(p);
    return begin_file(e, p, &source);
}

void st_park_set_aside(struct strata_engine *e, uint64_t bytes)
{
    struct st_park *park = e->park;
    park->file_limit = bytes < park->dir_limit ? park->dir_limit - bytes : 0;
    settle(e, true);
    file_room(e, 0);
}

bool st_park_make_room(struct strata_engine *e)
{
    struct st_park *park = e->park;
    struct parked *last = NULL;
    if (!park)
        return false;
    settle(e, false);
    for (struct parked *p = park->first; p; p = p->next)
        last = p->state ? p : last;
    /* Memory is short before the file is complete. What takes it then may be another one: of this file's, or of one that
     * nobody wants any more. */
    if (park->in_hand && !(last && last->path)) {
        settle(e, true);
        return true;
    }
    if (!last)
        return false;
    if (park->dir && !last->path && begin_copy(e, last))
        settle(e, true);
    if (last->path)
        free_memory(e, last);
    else
        drop(e, last);
    return true;
}

/* Begins to write the longest unused conversation before memory is needed: when what the session is about to hold would
 * find no room. */
static void write_ahead(struct strata_engine *e, uint32_t tokens)
{
    struct st_park *park = e->park;
    struct parked *last = NULL;
    uint64_t need = st_state_bytes(e, ALL, tokens) + st_checkpoint_bytes(e);
    if (!park->dir || park->in_hand || e->keep.limit - e->keep.used >= need)
        return;
    for (struct parked *p = park->first; p; p = p->next)
        last = p->state && !p->path ? p : last;
    if (last)
        begin_copy(e, last);
}

/* A file that lies in the folder from before. */
static void adopt(struct strata_engine *e, const char *path, uint64_t bytes)
{
    struct st_map map;
    struct st_session_view v;
    if (st_map_open(path, &map, NULL))
        return;
    /* One that is too long for this engine waits for another. */
    bool good = !st_session_peek(map.data, map.size, path, &v, NULL) && v.h.points <= ST_CHECKPOINTS &&
                (v.h.tokens > e->options.context || !st_session_fits(e, &v, path, NULL));
    struct parked *p = good ? new_parked(e, v.h.tokens) : NULL;
    char *copy = p ? strdup(path) : NULL;
    if (copy) {
        p->next_axis = v.h.next_axis;
        memcpy(p->ids, v.ids, p->tokens * sizeof *p->ids);
        p->points = (int)v.h.points;
        for (uint32_t i = 0; i < v.h.points; i++)
            p->where[i] = st_session_view_point(&v, i);
        p->path = copy;
        p->file_bytes = bytes;
        e->park->file_used += bytes;
        put_first(e->park, p);
    } else if (p) {
        free_parked(e, p);
    }
    st_map_close(&map);
    if (!good)
        unlink(path); /* by its name it is ours, and nobody can use it */
}

struct found {
    struct timespec time;
    uint64_t bytes;
    char name[64];
};

static int by_time(const void *a, const void *b)
{
    const struct timespec *x = &((const struct found *)a)->time, *y = &((const struct found *)b)->time;
    return x->tv_sec != y->tv_sec ? (x->tv_sec > y->tv_sec) - (x->tv_sec < y->tv_sec)
                                  : (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

/* The folder's files with this engine's prefix; *list is freed by the caller. */
static size_t list_files(const struct st_park *park, int folder, struct found **list)
{
    size_t n = 0, room = 0;
    int copy = dup(folder);
    DIR *d = copy >= 0 ? fdopendir(copy) : NULL;
    *list = NULL;
    for (struct dirent *entry; d && (entry = readdir(d));) {
        struct stat st;
        const char *name = entry->d_name, *end = strstr(name, ".session");
        if (strncmp(name, park->prefix, strlen(park->prefix)) || !end || end[8] ||
            strlen(name) >= sizeof(*list)->name || fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) ||
            !S_ISREG(st.st_mode))
            continue;
        if (n == room) {
            struct found *more = realloc(*list, (room = room ? 2 * room : 64) * sizeof *more);
            if (!more)
                break;
            *list = more;
        }
        (*list)[n] = (struct found){.time = st.st_mtim, .bytes = (uint64_t)st.st_size};
        strcpy((*list)[n++].name, name);
    }
    if (d)
        closedir(d);
    else if (copy >= 0)
        close(copy);
    return n;
}

static void adopt_all(struct strata_engine *e, int folder)
{
    struct st_park *park = e->park;
    struct found *list;
    size_t n = list_files(park, folder, &list);
    if (n)
        qsort(list, n, sizeof *list, by_time);
    for (size_t i = 0; i < n; i++) {
        size_t room = strlen(park->dir) + sizeof list->name + 2;
        char *path = malloc(room);
        if (!path)
            break;
        snprintf(path, room, "%s/%s", park->dir, list[i].name);
        uint64_t number = strtoull(list[i].name + strlen(park->prefix), NULL, 16);
        park->number = number > park->number ? number : park->number;
        st_out_sweep(path);
        adopt(e, path, list[i].bytes);
        free(path);
    }
    free(list);
    file_room(e, 0);
}

/* A program that was killed a moment ago may not have ended yet. */
static bool lock(int fd)
{
    enum { TRIES = 300 };
    for (int i = 0; i < TRIES; i++) {
        if (!flock(fd, LOCK_EX | LOCK_NB))
            return true;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    return false;
}

static enum strata_result open_dir(struct strata_engine *e, const char *dir, struct strata_error *err)
{
    struct st_park *park = e->park;
    const struct st_session_print *print = st_engine_print(e);
    snprintf(park->prefix, sizeof park->prefix, "%016llx-", (unsigned long long)XXH3_64bits(print, sizeof *print));
    if (mkdir(dir, 0700) && errno != EEXIST)
        return st_fail(err, STRATA_E_IO, "%s: cannot make the folder: %s", dir, strerror(errno));
    size_t room = strlen(dir) + sizeof park->prefix + 8;
    char *name = malloc(room);
    park->dir = strdup(dir);
    if (!name || !park->dir) {
        free(name);
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory", dir);
    }
    snprintf(name, room, "%s/%slock", dir, park->prefix);
    park->lock = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    free(name);
    if (park->lock < 0)
        return st_fail(err, STRATA_E_IO, "%s: cannot write into the folder: %s", dir, strerror(errno));
    if (!lock(park->lock))
        return st_fail(err, STRATA_E_IO, "%s: another program keeps conversations of the same model there", dir);
    enum strata_result r = st_park_writer_create(&park->writer, err);
    if (r)
        return r;
    int folder = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return st_fail(err, STRATA_E_IO, "%s: cannot open the folder: %s", dir, strerror(errno));
    adopt_all(e, folder);
    close(folder);
    return STRATA_OK;
}

enum strata_result st_park_open(struct strata_engine *e, const char *dir, uint64_t limit, struct strata_error *err)
{
    e->park = calloc(1, sizeof *e->park);
    if (!e->park)
        return st_fail(err, STRATA_E_MEMORY, "no memory for parked conversations");
    e->park->lock = -1;
    e->park->dir_limit = e->park->file_limit = limit;
    return dir ? open_dir(e, dir, err) : STRATA_OK;
}

void st_park_close(struct strata_engine *e)
{
    struct st_park *park = e->park;
    if (!park)
        return;
    settle(e, true);
    st_park_writer_free(park->writer);
    for (struct parked *p; (p = park->first);) {
        detach(park, p);
        free_parked(e, p);
    }
    if (park->lock >= 0)
        close(park->lock);
    free(park->dir);
    free(park);
    e->park = NULL;
}

/* ---- parking ---- */

/* The conversation's state in memory. */
static enum strata_result copy_state(struct strata_session *s, struct parked *p, bool may_thin,
                                     struct strata_error *err)
{
    struct strata_engine *e = s->engine;
    p->state_bytes = st_state_bytes(e, ALL, s->count);
    while (!(p->state = st_keep_take(e, p->state_bytes)) &&
           ((may_thin && st_checkpoint_thin(s, FEW_POINTS)) || st_park_make_room(e)))
        ;
    if (!p->state)
        return STRATA_OK;
    enum strata_result r = st_state_read(s, ALL, s->count, p->state, err);
    for (int i = 0; i < s->points && !r; i++)
        p->point[i] = st_checkpoint_share(s->point[i]);
    if (r)
        st_engine_find_lost(e);
    return r;
}

/* in_file: also where it would find room in memory. may_thin: some of the session's checkpoints may go to make room. */
static enum strata_result put(struct strata_session *s, bool in_file, bool may_thin, struct strata_error *err)
{
    struct strata_engine *e = s->engine;
    struct st_park *park = e->park;
    enum strata_result r = st_session_ready(s, err);
    if (!r)
        r = st_spec_settle(s, err);
    struct parked *p = NULL;
    while (!r && s->count && !(p = new_parked(e, s->count)) && st_park_make_room(e))
        ;
    if (!p)
        return r;
    memcpy(p->ids, s->ids, s->count * sizeof *s->ids);
    p->next_axis = s->next_axis;
    if (!in_file || !park->dir)
        r = copy_state(s, p, may_thin, err);
    p->points = s->points;
    for (int i = 0; i < s->points; i++)
        p->where[i] = (struct st_session_point){s->point[i]->tokens, s->point[i]->next_axis};
    struct st_session_source source = st_session_source(s);
    if (!r && !p->state && (!park->dir || !begin_file(e, p, &source))) {
        park->dropped++;
        free_parked(e, p);
        return r;
    }
    if (r) {
        free_parked(e, p);
        return r;
    }
    put_first(park, p);
    discard_superseded(e, p);
    return r;
}

enum strata_result st_park_put(struct strata_session *s, struct strata_error *err)
{
    return put(s, true, false, err);
}

enum strata_result strata_engine_keep(struct strata_engine *e, struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    struct st_park *park = e->park;
    if (!park->dir)
        return r;
    uint64_t before = park->failures;
    for (uint32_t i = 0; i < e->options.sessions && !r; i++)
        if (e->slot[i] && e->slot[i]->count >= ST_PARK_LEAST)
            r = st_park_put(e->slot[i], err);
    settle(e, true);
    for (struct parked *p = park->first; p && !r; p = p->next)
        if (p->state && !p->path && begin_copy(e, p))
            settle(e, true);
    return r || park->failures == before ? r : st_fail(err, park->last_result, "%s", park->last_failure);
}

/* ---- choosing ---- */

/* Of n tokens in common, how many a state of p can be had of; below: not as many as the prompt. */
static uint32_t reach_of(const struct strata_engine *e, const struct parked *p, const int32_t *ids, size_t count)
{
    uint32_t n = common(p->ids, p->tokens, ids, count);
    if (n == count)
        n--; /* the last token's logits are needed */
    if (n == p->tokens || (!st_checkpoint_bytes(e) && p->next_axis == (int32_t)p->tokens))
        return n;
    for (int i = p->points - 1; i >= 0; i--)
        if (p->where[i].tokens <= n)
            return p->where[i].tokens;
    return 0;
}

/* Makes the session hold a detached conversation. *taken: it does; otherwise it holds nothing, or what it held. */
static enum strata_result take(struct strata_session *s, struct parked *p, bool *taken, struct strata_error *err)
{
    struct strata_engine *e = s->engine;
    struct strata_error why;
    *taken = false;
    if (!p->state) {
        enum strata_result r = strata_session_restore(s, p->path, &why);
        *taken = r == STRATA_OK;
        if (r)
            failed(e->park, r, &why);
        if (r == STRATA_E_DEVICE)
            return st_fail(err, r, "%s", why.text);
        return STRATA_OK;
    }
    st_session_forget(s);
    memcpy(s->ids, p->ids, p->tokens * sizeof *s->ids);
    enum strata_result r = st_state_write(s, ALL, p->tokens, p->state, err);
    if (r) {
        st_engine_find_lost(e);
        st_session_forget(s);
        return r;
    }
    s->count = p->tokens;
    s->next_axis = p->next_axis;
    st_spec_restored(s);
    for (int i = 0; i < p->points; i++)
        s->point[s->points++] = st_checkpoint_share(p->point[i]);
    *taken = true;
    return r;
}

/* What the session would lose by going back to a length is worth the copy. */
static bool worth_parking(const struct strata_session *s, uint32_t reach)
{
    uint32_t lost = s->count - reach;
    return lost >= MANY_TOKENS || (lost >= ST_PARK_LEAST && lost >= s->count / 4);
}

/* The length that the session can go back to, or has, for this prompt. */
static uint32_t own_reach(const struct strata_session *s, const int32_t *ids, size_t count)
{
    uint32_t n = common(s->ids, s->count, ids, count);
    bool whole = n == count && n == s->count && s->engine->logits_of == s;
    return st_session_reach(s, n == count && !whole ? n - 1 : n);
}

/* The parked conversation that saves the most tokens, unless the session's own state does nearly as well. */
static struct parked *best_of(const struct strata_engine *e, const int32_t *ids, size_t count, uint32_t own)
{
    struct parked *best = NULL;
    uint32_t best_reach = own + ST_PARK_LEAST - 1;
    for (struct parked *p = e->park->first; p; p = p->next) {
        uint32_t reach = p->tokens <= e->options.context ? reach_of(e, p, ids, count) : 0;
        best = reach > best_reach ? p : best;
        best_reach = reach > best_reach ? reach : best_reach;
    }
    return best;
}

/* The other session, at work or not, that has most of the prompt, if that saves more than a parked conversation or the session's own state:
 * answers to one prompt, conversations with the same beginning. */
static const struct strata_session *lender_of(const struct strata_session *s, const int32_t *ids, size_t count, uint32_t least,
                                              uint32_t *tokens)
{
    const struct strata_engine *e = s->engine;
    const struct strata_session *best = NULL;
    *tokens = least + ST_PARK_LEAST - 1;
    for (uint32_t i = 0; i < e->options.sessions; i++) {
        const struct strata_session *other = e->slot[i];
        uint32_t n = other && other != s ? common(other->ids, other->count, ids, count - 1) : 0, lends = n ? st_session_lends(other, n) : 0;
        best = lends > *tokens ? other : best;
        *tokens = lends > *tokens ? lends : *tokens;
    }
    return best;
}

struct strata_session *st_park_pick(struct strata_session *const *sessions, size_t count, const int32_t *ids, size_t n)
{
    struct strata_session *best = sessions[0], *empty = NULL;
    uint32_t reach = own_reach(best, ids, n);
    for (size_t i = 0; i < count; i++) {
        uint32_t own = own_reach(sessions[i], ids, n);
        best = own > reach ? sessions[i] : best;
        reach = own > reach ? own : reach;
        empty = empty || sessions[i]->count ? empty : sessions[i];
    }
    bool costly = empty && best->count - reach > reach;
    if (reach >= ST_PARK_LEAST && !costly && !best_of(best->engine, ids, n, reach))
        return best;
    return empty ? empty : sessions[0];
}

enum strata_result st_park_choose(struct strata_session *s, const int32_t *ids, size_t count, struct strata_error *err)
{
    struct strata_engine *e = s->engine;
    enum strata_result r = st_session_ready(s, err);
    if (r)
        return r;
    settle(e, false);
    uint32_t own = own_reach(s, ids, count), first = s->points ? s->point[0]->tokens : 0;
    struct parked *best = best_of(e, ids, count, own);
    if (best && best->writing && !best->state) {
        settle(e, true); /* it is nowhere else */
        best = best_of(e, ids, count, own);
    }
    uint32_t lent;
    const struct strata_session *lender = lender_of(s, ids, count, best ? reach_of(e, best, ids, count) : own, &lent);
    if (lender)
        best = NULL;
    if (best)
        detach(e->park, best); /* parking another one must not cost it its place */
    if (own < s->count && worth_parking(s, best || lender ? 0 : own))
        r = put(s, false, best || lender || own <= first, err); /* the one that it goes back to stays */
    if (lender && !r)
        r = st_session_borrow(s, lender, lent, err);
    bool taken = false;
    if (best && !r)
        r = take(s, best, &taken, err);
    if (best && (r || (taken && (best->path || best->writing))))
        put_first(e->park, best); /* a file stays until a longer one takes its place */
    else if (best)
        discard(e, best);
    if (!r)
        write_ahead(e, (uint32_t)count);
    return r ? r : st_session_rewind(s, own_reach(s, ids, count), err);
}

void st_park_info(struct strata_engine *e, struct st_park_info *out)
{
    const struct st_park *park = e->park;
    settle(e, false);
    *out = (struct st_park_info){.dropped = park->dropped, .file_bytes = park->file_used, .memory_bytes = e->keep.used};
    for (const struct parked *p = park->first; p; p = p->next) {
        out->in_memory += p->state != NULL;
        out->in_files += p->path != NULL;
    }
    snprintf(out->last_failure, sizeof out->last_failure, "%s", park->last_failure);
}
