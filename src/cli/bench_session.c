/* What keeping a session costs: see bench_session.h. */
#include "cli/bench_session.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

#include "engine/checkpoint.h"
#include "engine/state.h"

enum { ALL = ST_STATE_FIXED | ST_STATE_GROWING };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct times {
    double read, point, back, park, unpark, save, restore;
    uint64_t point_bytes, park_bytes, file_bytes;
};

/* A checkpoint, a token behind it, and back. */
static enum strata_result time_checkpoint(struct strata_session *s, const int32_t *ids, struct times *t, struct strata_error *err)
{
    uint32_t count = s->count;
    double start = now();
    enum strata_result r = st_checkpoint_take(s, err);
    t->point = now() - start;
    t->point_bytes = st_checkpoint_bytes(s->engine);
    if (!r)
        r = strata_session_eval(s, ids, 1, false, NULL, err);
    start = now();
    if (!r)
        r = st_session_rewind(s, count, err);
    t->back = now() - start;
    if (!r && s->count != count)
        r = st_fail(err, STRATA_E_LIMIT, "--session-ram has no room for a checkpoint of %llu bytes",
                    (unsigned long long)t->point_bytes);
    st_checkpoints_drop(s, 0);
    return r;
}

/* The whole state to host memory and back, as a conversation is parked. */
static enum strata_result time_memory(struct strata_session *s, struct times *t, struct strata_error *err)
{
    t->park_bytes = st_state_bytes(s->engine, ALL, s->count);
    uint8_t *memory = malloc(t->park_bytes);
    if (!memory)
        return st_fail(err, STRATA_E_MEMORY, "no memory for %llu bytes of state", (unsigned long long)t->park_bytes);
    double start = now();
    enum strata_result r = st_state_read(s, ALL, s->count, memory, err);
    t->park = now() - start;
    start = now();
    if (!r)
        r = st_state_write(s, ALL, s->count, memory, err);
    t->unpark = now() - start;
    free(memory);
    return r;
}

static enum strata_result time_file(struct strata_session *s, const char *path, struct times *t, struct strata_error *err)
{
    struct stat st;
    double start = now();
    enum strata_result r = strata_session_save(s, path, err);
    t->save = now() - start;
    strata_session_reset(s);
    start = now();
    if (!r)
        r = strata_session_restore(s, path, err);
    t->restore = now() - start;
    t->file_bytes = !r && !stat(path, &st) ? (uint64_t)st.st_size : 0;
    return r;
}

int st_bench_session(const struct st_host *h, const int32_t *ids, size_t tokens, const char *path)
{
    struct strata_session *s = h->session;
    struct strata_error err;
    struct times t = {.read = 0};
    strata_session_reset(s);
    double start = now();
    enum strata_result r = strata_session_eval(s, ids, tokens, false, NULL, &err);
    t.read = now() - start;
    if (!r)
        r = time_checkpoint(s, ids, &t, &err);
    if (!r)
        r = time_memory(s, &t, &err);
    if (!r)
        r = time_file(s, path, &t, &err);
    if (r)
        return st_report(&err);
    printf("\n| session of %zu tokens | bytes | seconds to keep | seconds to have it back |\n|---|---:|---:|---:|\n", tokens);
    printf("| checkpoint | %llu | %.4f | %.4f |\n", (unsigned long long)t.point_bytes, t.point, t.back);
    printf("| whole, in memory | %llu | %.4f | %.4f |\n", (unsigned long long)t.park_bytes, t.park, t.unpark);
    printf("| whole, in a file (synced) | %llu | %.4f | %.4f |\n", (unsigned long long)t.file_bytes, t.save, t.restore);
    printf("| read again | | | %.4f |\n", t.read);
    return ST_EXIT_OK;
}
