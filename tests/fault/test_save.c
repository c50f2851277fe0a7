/* Sessions and disks. kill -9 while a session is saved: the file holds the session of before or the new one, whole, and
 * what killed writers leave behind is cleared away. A second process saves and kills itself between two system calls, or
 * in the middle of a write. Parked conversations on a disk that takes its time, is full, or refuses files of their size.
 *
 * test_save: a short form. test_save long: 200 times. */
#include "test.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/park.h"
#include "engine/state.h"
#include "golden/fixture.h"
#include "machine.h"

enum { CONTEXT = 128, CALLS = 9 };

static int kills = 24;
static struct strata_model *model;
static struct strata_engine *engine;
static char program[PATH_SIZE];

/* ---- a slow disk, and a full one ---- */

static _Atomic bool disk_stands; /* nothing can be synced */
static _Atomic bool disk_full;
static _Atomic int syncs_by_the_engine; /* files that the test's thread had to sync, folders too */
static pthread_t test_thread;

static void sync_slowly(void)
{
    if (pthread_equal(pthread_self(), test_thread)) {
        atomic_fetch_add(&syncs_by_the_engine, 1);
        return;
    }
    while (atomic_load(&disk_stands))
        usleep(1000);
}

/* ---- the process that is killed ---- */

static int calls_left; /* until it dies; 0: it does not */
static bool half;      /* of a write is done first */

static bool last_call(void)
{
    return calls_left && --calls_left == 0;
}

static void die(void)
{
    kill(getpid(), SIGKILL);
}

ssize_t __real_write(int fd, const void *data, size_t bytes);
ssize_t __wrap_write(int fd, const void *data, size_t bytes);
ssize_t __wrap_write(int fd, const void *data, size_t bytes)
{
    if (last_call()) {
        if (half && __real_write(fd, data, bytes / 2) < 0)
            _exit(3);
        die();
    }
    if (atomic_load(&disk_full)) {
        errno = ENOSPC;
        return -1;
    }
    return __real_write(fd, data, bytes);
}

int __real_mkostemp(char *name, int flags);
int __wrap_mkostemp(char *name, int flags);
int __wrap_mkostemp(char *name, int flags)
{
    if (last_call())
        die();
    return __real_mkostemp(name, flags);
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
    if (last_call())
        die();
    sync_slowly();
    return __real_fsync(fd);
}

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to)
{
    if (last_call())
        die();
    int r = __real_rename(from, to);
    if (last_call())
        die();
    return r;
}

static enum strata_result open_engine(struct strata_error *err)
{
    struct strata_engine_options o = {
        .threads = 1, .context = CONTEXT, .prefill = 16, .sessions = 2, .kv = STRATA_KV_F32, .fp32 = true};
    if (open_tiny(&model))
        return st_fail(err, STRATA_E_IO, "the model cannot be opened");
    return strata_engine_create(model, &o, &engine, err);
}

static int32_t id_of(uint32_t at)
{
    return (int32_t)(at * 37 % TINY_VOCABULARY);
}

/* Chunks are 6 tokens, and a checkpoint follows every second one. */
static enum strata_result go_on(struct strata_session *s, uint32_t tokens, struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    while (s->count < tokens && !r) {
        int32_t ids[6];
        for (uint32_t i = 0; i < 6; i++)
            ids[i] = id_of(s->count + i);
        r = strata_session_eval(s, ids, 6, false, NULL, err);
        if (!r && s->count % 12 == 0)
            r = st_checkpoint_take(s, err);
    }
    return r;
}

/* Restores, goes on to a length, and saves. Exit code 0: it was not killed. */
static int victim(const char *path, uint32_t tokens, int calls, bool in_the_middle)
{
    struct strata_error err = {0};
    struct strata_session *s;
    enum strata_result r = open_engine(&err);
    if (!r)
        r = strata_session_create(engine, &s, &err);
    if (!r && access(path, F_OK) == 0)
        r = strata_session_restore(s, path, &err);
    if (!r && s->count > tokens)
        strata_session_reset(s);
    if (!r)
        r = go_on(s, tokens, &err);
    calls_left = calls;
    half = in_the_middle;
    if (!r)
        r = strata_session_save(s, path, &err);
    calls_left = 0;
    if (r)
        fprintf(stderr, "# %s\n", err.text);
    return r ? 2 : 0;
}

/* True: it was killed. */
static bool run_victim(const char *path, uint32_t tokens, int calls, bool in_the_middle)
{
    char number[2][16];
    int status;
    snprintf(number[0], sizeof number[0], "%u", tokens);
    snprintf(number[1], sizeof number[1], "%d", calls);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        execl(program, program, "victim", path, number[0], number[1], in_the_middle ? "half" : "whole", (char *)NULL);
        _exit(4);
    }
    while (waitpid(child, &status, 0) < 0)
        assert_int_equal(errno, EINTR);
    if (WIFSIGNALED(status))
        assert_int_equal(WTERMSIG(status), SIGKILL);
    else
        assert_int_equal(WEXITSTATUS(status), 0);
    return WIFSIGNALED(status);
}

/* ---- the test ---- */

static struct strata_session *session(void)
{
    struct strata_error err;
    struct strata_session *s;
    assert_ok(strata_session_create(engine, &s, &err), &err);
    return s;
}

static size_t leftovers(void)
{
    size_t n = 0;
    DIR *d = opendir(work);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += strstr(e->d_name, ".strata-part.") != NULL;
    closedir(d);
    return n;
}

/* The file's session has the bits of one that was never saved, at its end and at its last checkpoint. Returns its
 * length. */
static uint32_t check_file(const char *path)
{
    static float got[TINY_VOCABULARY], want[TINY_VOCABULARY];
    struct strata_error err;
    struct strata_session *s = session(), *other = session();
    assert_ok(strata_session_restore(s, path, &err), &err);
    uint32_t tokens = s->count, lengths[2] = {tokens, tokens / 12 * 12};
    assert_int_equal(s->points, tokens / 12);
    for (int i = 0; i < 2; i++) {
        int32_t next = id_of(7);
        assert_ok(st_session_rewind(s, lengths[i], &err), &err);
        assert_int_equal(s->count, lengths[i]);
        strata_session_reset(other);
        assert_ok(go_on(other, lengths[i], &err), &err);
        assert_ok(strata_session_eval(s, &next, 1, false, got, &err), &err);
        assert_ok(strata_session_eval(other, &next, 1, false, want, &err), &err);
        assert_memory_equal(got, want, sizeof got);
    }
    strata_session_free(s);
    strata_session_free(other);
    return tokens;
}

static void a_save_that_is_killed_anywhere_never_loses_the_session_before(void **state)
{
    (void)state;
    const char *path = work_path("killed.session");
    int killed = 0, renamed = 0, done = 0;
    uint32_t before = 12;
    assert_false(run_victim(path, before, 0, false));
    assert_int_equal(check_file(path), before);
    for (int i = 0; killed < kills; i++) {
        /* Every call of a save in turn, and one more than it makes. */
        uint32_t tokens = 12 + 6 * (uint32_t)(i % 7);
        bool died = run_victim(path, tokens, 1 + i % CALLS, i / CALLS % 2);
        uint32_t now = check_file(path);
        if (died) {
            assert_true(now == before || now == tokens);
            assert_true(leftovers() <= 1);
        } else {
            assert_int_equal(now, tokens);
            assert_int_equal(leftovers(), 0);
        }
        killed += died;
        done += !died;
        renamed += died && now == tokens && before != tokens;
        before = now;
        assert_true(i < 2 * kills + 2 * CALLS);
    }
    print_message("# killed %d times, %d of them after the rename; %d saves were whole\n", killed, renamed, done);
    assert_true(renamed > 0 && done > 0);
}

/* ---- parked conversations ---- */

enum { TALK = 60, MORE = 40, FORK = 9, FORKED = 36 };

static char folder[PATH_SIZE + 64];

/* An engine with one session and memory for two conversations of TALK tokens, less a little. */
static struct strata_engine *parking(struct strata_session **s)
{
    struct strata_error err;
    struct strata_engine *e;
    uint64_t whole = st_state_bytes(engine, ST_STATE_FIXED | ST_STATE_GROWING, TALK), point = st_checkpoint_bytes(engine);
    struct strata_engine_options o = {.threads = 1,
                                      .context = CONTEXT,
                                      .prefill = 16,
                                      .session_ram = 2 * whole + point,
                                      .session_dir = folder,
                                      .kv = STRATA_KV_F32,
                                      .fp32 = true};
    snprintf(folder, sizeof folder, "%s/parked", work);
    assert_ok(strata_engine_create(model, &o, &e, &err), &err);
    assert_ok(strata_session_create(e, s, &err), &err);
    return e;
}

static void leave(struct strata_engine *e, struct strata_session *s)
{
    strata_session_free(s);
    strata_engine_free(e);
}

/* Bytes of session files in the folder; the unfinished ones too. With remove they go, and the folder. */
static uint64_t files(uint64_t *bytes, bool removing)
{
    uint64_t n = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    *bytes = 0;
    for (struct dirent *entry; (entry = readdir(d));) {
        struct stat st;
        bool session = strstr(entry->d_name, ".session") != NULL;
        if (session && !fstatat(dirfd(d), entry->d_name, &st, 0)) {
            *bytes += (uint64_t)st.st_size;
            n++;
        }
        if (removing)
            unlinkat(dirfd(d), entry->d_name, 0);
    }
    closedir(d);
    if (removing)
        assert_int_equal(rmdir(folder), 0);
    return n;
}

static void remove_files(void)
{
    uint64_t bytes;
    files(&bytes, true);
}

/* Token at of a conversation: they have nothing in common, but FORK begins as 1 does. */
static int32_t said(int32_t talk, uint32_t at)
{
    if (talk == FORK && at < FORKED)
        talk = 1;
    return (int32_t)((at * 37 + (uint32_t)talk * 101 + 1) % TINY_VOCABULARY);
}

/* A request of count tokens of a conversation, of which the engine reads no more than to. Returns what it had. */
static uint32_t go_on_with(struct strata_session *s, int32_t talk, uint32_t count, uint32_t to)
{
    struct strata_error err;
    int32_t ids[CONTEXT];
    for (uint32_t i = 0; i < count; i++)
        ids[i] = said(talk, i);
    assert_ok(st_park_choose(s, ids, count, &err), &err);
    uint32_t had = s->count;
    for (uint32_t n; s->count < to;) {
        n = to - s->count < 10 ? to - s->count : 10;
        assert_ok(strata_session_eval(s, ids + s->count, n, false, NULL, &err), &err);
    }
    return had;
}

/* The session's next logits are those of one that read the conversation now. */
static void check_talk(struct strata_session *s, int32_t talk)
{
    static float got[TINY_VOCABULARY], want[TINY_VOCABULARY];
    struct strata_error err;
    struct strata_session *other = session();
    int32_t ids[CONTEXT];
    uint32_t count = s->count;
    for (uint32_t i = 0; i <= count; i++)
        ids[i] = said(talk, i);
    for (uint32_t at = 0, n; at < count; at += n) {
        n = count - at < 10 ? count - at : 10;
        assert_ok(strata_session_eval(other, ids + at, n, false, NULL, &err), &err);
    }
    assert_ok(strata_session_eval(other, ids + count, 1, false, want, &err), &err);
    assert_ok(strata_session_eval(s, ids + count, 1, false, got, &err), &err);
    assert_memory_equal(got, want, sizeof got);
    strata_session_free(other);
}

static void assert_parked(struct strata_engine *e, size_t in_memory, size_t in_files)
{
    struct st_park_info info;
    st_park_info(e, &info);
    assert_int_equal(info.in_memory, in_memory);
    assert_int_equal(info.in_files, in_files);
    assert_int_equal(info.dropped, 0);
    assert_string_equal(info.last_failure, "");
}

static void the_engine_goes_on_while_a_conversation_is_written(void **state)
{
    (void)state;
    struct strata_error err;
    struct strata_session *s;
    struct st_park_info info;
    uint64_t bytes;
    struct strata_engine *e = parking(&s);
    atomic_store(&syncs_by_the_engine, 0);
    atomic_store(&disk_stands, true);
    assert_int_equal(go_on_with(s, 1, TALK, TALK), 0);
    /* 1 goes to memory, and a file is begun because the next one would find no room. */
    assert_int_equal(go_on_with(s, 2, TALK, MORE), 0);
    assert_parked(e, 1, 0);
    st_park_info(e, &info);
    assert_true(info.file_bytes > 0); /* is set aside */
    /* Back to 1, which is being written. */
    assert_int_equal(go_on_with(s, 1, TALK + 2, TALK + 1), TALK);
    check_talk(s, 1);
    assert_parked(e, 2, 0);
    atomic_store(&disk_stands, false);
    /* Memory for 1 and 2 is there, for 3 it is not: what is written now makes room. */
    assert_int_equal(go_on_with(s, 3, TALK, TALK), 0);
    assert_int_equal(go_on_with(s, 2, MORE + 1, MORE + 1), MORE);
    check_talk(s, 2);
    assert_ok(strata_engine_keep(e, &err), &err);
    st_park_info(e, &info);
    assert_int_equal(info.dropped, 0);
    assert_int_equal(info.in_files, files(&bytes, false)); /* the first file of 1 has gone when a longer 1 was parked */
    assert_int_equal(info.file_bytes, bytes);
    assert_int_equal(atomic_load(&syncs_by_the_engine), 0);
    leave(e, s);

    e = parking(&s);
    assert_int_equal(go_on_with(s, 3, TALK + 1, TALK + 1), TALK);
    check_talk(s, 3);
    assert_int_equal(go_on_with(s, 1, TALK + 3, TALK + 3), TALK + 2);
    check_talk(s, 1);
    assert_int_equal(go_on_with(s, 2, MORE + 3, MORE + 3), MORE + 2);
    check_talk(s, 2);
    leave(e, s);
    remove_files();
}

static void *disk_goes_on(void *unused)
{
    (void)unused;
    usleep(200000);
    atomic_store(&disk_stands, false);
    return NULL;
}

/* FORK is the longest unused in memory when it runs out, and the file that is waited for holds nearly all of it. */
static void a_conversation_that_a_file_under_way_makes_superfluous_is_room(void **state)
{
    (void)state;
    struct strata_session *s;
    struct strata_engine *e = parking(&s);
    pthread_t thread;
    atomic_store(&disk_stands, true);
    assert_int_equal(go_on_with(s, 1, TALK, TALK), 0);
    assert_int_equal(go_on_with(s, 2, TALK, 10), 0);
    assert_int_equal(go_on_with(s, FORK, MORE, MORE), 0);
    assert_int_equal(go_on_with(s, 1, TALK + 1, TALK + 1), TALK);
    assert_parked(e, 2, 0);
    assert_int_equal(pthread_create(&thread, NULL, disk_goes_on, NULL), 0);
    assert_int_equal(go_on_with(s, 3, TALK, TALK), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    check_talk(s, 3);
    assert_int_equal(go_on_with(s, 1, TALK + 2, TALK + 2), TALK + 1);
    check_talk(s, 1);
    leave(e, s);
    remove_files();
}

/* A conversation that fails to be written stays in memory as long as there is room, and the failure is told. */
static void survive(const char *message)
{
    struct strata_error err;
    struct strata_session *s;
    struct st_park_info info;
    uint64_t bytes;
    struct strata_engine *e = parking(&s);
    assert_int_equal(go_on_with(s, 1, TALK, TALK), 0);
    assert_int_equal(go_on_with(s, 2, TALK, MORE), 0);
    assert_int_equal(go_on_with(s, 1, TALK + 1, TALK + 1), TALK);
    check_talk(s, 1);
    assert_int_equal(strata_engine_keep(e, &err), STRATA_E_IO);
    assert_says(err.text, message);
    st_park_info(e, &info);
    assert_says(info.last_failure, message);
    assert_int_equal(info.in_files, 0);
    assert_int_equal(info.file_bytes, 0);
    assert_int_equal(info.in_memory, 1);
    assert_int_equal(files(&bytes, false), 0);
    assert_int_equal(go_on_with(s, 2, MORE + 1, MORE + 1), MORE);
    check_talk(s, 2);
    /* Without room one is lost, and counted. */
    assert_int_equal(go_on_with(s, 3, TALK, TALK), 0);
    assert_int_equal(go_on_with(s, 4, TALK, TALK), 0);
    assert_int_equal(go_on_with(s, 5, TALK, TALK), 0);
    check_talk(s, 5);
    st_park_info(e, &info);
    assert_true(info.dropped > 0);
    assert_true(e->keep.used <= e->keep.limit);
    leave(e, s);
    remove_files();
}

static void a_full_disk_costs_files_and_no_answer(void **state)
{
    (void)state;
    atomic_store(&disk_full, true);
    survive("No space left on device");
    atomic_store(&disk_full, false);
}

static void a_limit_of_file_sizes_costs_files_and_no_answer(void **state)
{
    (void)state;
    struct rlimit before, small;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 4096;
    fflush(stdout);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    survive("File too large");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);
}

static int setup(void **state)
{
    test_thread = pthread_self();
    struct strata_error err = {0};
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n <= 0 || make_work(state) || open_engine(&err)) {
        fprintf(stderr, "# %s\n", err.text);
        return -1;
    }
    return 0;
}

static int teardown(void **state)
{
    strata_engine_free(engine);
    strata_model_free(model);
    return remove_work(state);
}

int main(int argc, char **argv)
{
    if (argc == 6 && !strcmp(argv[1], "victim"))
        return victim(argv[2], (uint32_t)atoi(argv[3]), atoi(argv[4]), !strcmp(argv[5], "half"));
    if (argc == 2 && !strcmp(argv[1], "long"))
        kills = 200;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_save_that_is_killed_anywhere_never_loses_the_session_before),
        cmocka_unit_test(the_engine_goes_on_while_a_conversation_is_written),
        cmocka_unit_test(a_conversation_that_a_file_under_way_makes_superfluous_is_room),
        cmocka_unit_test(a_full_disk_costs_files_and_no_answer),
        cmocka_unit_test(a_limit_of_file_sizes_costs_files_and_no_answer),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
