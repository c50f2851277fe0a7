/* kill -9 while a session is saved: the file holds the session of before or the new one, whole, and what killed writers
 * leave behind is cleared away. A second process saves and kills itself between two system calls, or in the middle of a
 * write.
 *
 * test_save: a short form. test_save long: 200 times. */
#include "test.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/checkpoint.h"
#include "golden/fixture.h"
#include "machine.h"

enum { CONTEXT = 128, CALLS = 9 };

static int kills = 24;
static struct strata_model *model;
static struct strata_engine *engine;
static char program[PATH_SIZE];

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

static int setup(void **state)
{
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
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
