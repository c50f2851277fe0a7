/* Any order of appending, editing, regenerating, changing to another conversation, keeping, saving, restoring and kill -9:
 * what a session then holds has the bits of one that read the same tokens in the same chunks, and nearly those of one that
 * read them in other chunks; what was kept or saved before a kill is there behind it.
 *
 * A second process (a life) does the steps and is killed, by the parent at any moment or by itself in front of a system call
 * of a save. What every step does follows from the seed and its number alone, so the next life knows what there has to be.
 *
 * test_interleaved: a short form. test_interleaved long [SEED]: more lives and steps. */
#include "test.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/park.h"
#include "golden/fixture.h"
#include "model/convert.h"

/* A chunk's first token is the number of its step, so that two chunks are the same if their first tokens are. */
enum { CONTEXT = 256, VOCABULARY = 600, TALKS = 3, FILES = 2, CHUNK = 16 };

static const float tolerance = 2e-4f;
static uint32_t steps = 60, kills = 8, first_seed = 1, seeds = 3;
static char program[PATH_SIZE];

/* ---- what is to happen: the same in every process ---- */

enum kind { APPEND, EDIT, REGENERATE, KEEP, SAVE, RESTORE, CHECK };

struct story {
    int32_t ids[CONTEXT];
    uint32_t count, chunk[CONTEXT], chunks;
};

struct step {
    enum kind kind;
    int file;
};

struct tale {
    struct story talk[TALKS], file[FILES];
    int of[FILES]; /* the talk that was saved there, -1: none yet */
    int now;       /* talk of the last step */
    bool kept[TALKS]; /* in a file of the folder, and not touched since */
};

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint32_t draw(uint64_t *random, uint32_t n)
{
    *random += 0x9e3779b97f4a7c15u;
    return (uint32_t)(mix(*random) >> 33) % n;
}

static void add_chunk(struct story *t, uint32_t number, uint32_t n, uint64_t *random)
{
    for (uint32_t i = 0; i < n; i++)
        t->ids[t->count++] = (int32_t)(i ? draw(random, VOCABULARY) : number % VOCABULARY);
    t->chunk[t->chunks++] = n;
}

/* Moves the tale on by one step, and says which. */
static struct step tell(struct tale *tale, uint32_t seed, uint32_t number)
{
    uint64_t random = mix(seed * 1000003u + number);
    struct step step = {.kind = (enum kind[]){APPEND, APPEND, APPEND, EDIT, EDIT, REGENERATE, KEEP, SAVE, RESTORE, CHECK}[draw(&random, 10)]};
    step.file = (int)draw(&random, FILES);
    if (step.kind == RESTORE && tale->of[step.file] < 0)
        step.kind = APPEND;
    if (step.kind == RESTORE) {
        tale->now = tale->of[step.file];
        tale->talk[tale->now] = tale->file[step.file];
    } else if (step.kind != KEEP && step.kind != SAVE) {
        tale->now = (int)draw(&random, TALKS);
    }
    struct story *t = &tale->talk[tale->now];
    uint32_t n = step.kind == CHECK ? 1 : 1 + draw(&random, CHUNK);
    if (step.kind == EDIT || t->count + n > CONTEXT - CHUNK)
        for (uint32_t to = draw(&random, t->chunks + 1); t->chunks > to;)
            t->count -= t->chunk[--t->chunks];
    if (step.kind == APPEND || step.kind == EDIT || step.kind == CHECK || !t->count)
        add_chunk(t, number, n, &random);
    tale->kept[tale->now] = false;
    if (step.kind == KEEP)
        for (int i = 0; i < TALKS; i++)
            tale->kept[i] = tale->talk[i].count >= ST_PARK_LEAST;
    if (step.kind == SAVE) {
        tale->file[step.file] = *t;
        tale->of[step.file] = tale->now;
    }
    return step;
}

/* ---- a life ---- */

static _Atomic int calls_left; /* until it dies; below 1: it does not */

static void call(void)
{
    if (atomic_fetch_sub(&calls_left, 1) == 1)
        kill(getpid(), SIGKILL);
}

ssize_t __real_write(int fd, const void *data, size_t bytes);
ssize_t __wrap_write(int fd, const void *data, size_t bytes);
ssize_t __wrap_write(int fd, const void *data, size_t bytes)
{
    if (bytes > 1 && atomic_load(&calls_left) == 1 && __real_write(fd, data, bytes / 2) < 0)
        _exit(3);
    call();
    return __real_write(fd, data, bytes);
}

int __real_mkostemp(char *name, int flags);
int __wrap_mkostemp(char *name, int flags);
int __wrap_mkostemp(char *name, int flags)
{
    call();
    return __real_mkostemp(name, flags);
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
    call();
    return __real_fsync(fd);
}

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to)
{
    call();
    int r = __real_rename(from, to);
    call();
    return r;
}

/* A life has no test around it: what is wrong ends it with a line. */
#define NEED(condition, ...)                                                                                                   \
    do {                                                                                                                       \
        if (!(condition)) {                                                                                                    \
            fprintf(stderr, "# seed %u, step %u: ", life.seed, life.number);                                                   \
            fprintf(stderr, __VA_ARGS__);                                                                                      \
            fprintf(stderr, "\n");                                                                                             \
            exit(2);                                                                                                           \
        }                                                                                                                      \
    } while (0)

static struct {
    uint32_t seed, number;
    struct strata_model *model;
    struct strata_engine *engine;
    struct strata_session *session, *other;
    struct strata_error err;
    uint32_t held; /* tokens that were not read again */
} life;

static void eval(struct strata_session *s, const int32_t *ids, uint32_t n, float *logits)
{
    NEED(!strata_session_eval(s, ids, n, false, logits, &life.err), "%s", life.err.text);
}

/* The session holds a beginning of the story that ends with a chunk; reads what is missing, in the story's chunks. */
static void read_on(struct strata_session *s, const struct story *t, bool checkpoints)
{
    uint32_t had = s->count, at = 0;
    for (uint32_t i = 0; i < t->chunks; at += t->chunk[i++]) {
        NEED(at >= had || at + t->chunk[i] <= had, "a session of %u tokens ends within a chunk", had);
        if (at < had)
            continue;
        eval(s, t->ids + at, t->chunk[i], NULL);
        if (checkpoints && t->ids[at] % 2)
            NEED(!st_checkpoint_take(s, &life.err), "%s", life.err.text);
    }
    const int32_t *ids;
    NEED(strata_session_tokens(s, &ids) == t->count && !memcmp(ids, t->ids, t->count * sizeof *ids), "other tokens");
}

/* A request goes on with this conversation: the session holds what can be had of it. */
static void choose(const struct story *t)
{
    int32_t ids[CONTEXT + 1];
    memcpy(ids, t->ids, t->count * sizeof *ids);
    ids[t->count] = VOCABULARY - 1; /* begins no chunk */
    NEED(!st_park_choose(life.session, ids, t->count + 1, &life.err), "%s", life.err.text);
}

static void visit(const struct story *t)
{
    if (!t->count)
        return;
    choose(t);
    life.held += life.session->count;
    read_on(life.session, t, true);
}

/* The session holds the story; compares what it predicts, and leaves it as it is in all but the last token. */
static void compare(const struct story *t)
{
    static float got[VOCABULARY], same[VOCABULARY], cold[VOCABULARY];
    int32_t last = 7;
    struct strata_session *s = life.session, *other = life.other;
    strata_session_reset(other);
    read_on(other, t, false);
    eval(other, &last, 1, same);
    strata_session_reset(other);
    for (uint32_t at = 0, n; at < t->count; at += n) {
        n = t->count - at < 13 ? t->count - at : 13;
        eval(other, t->ids + at, n, NULL);
    }
    eval(other, &last, 1, cold);
    strata_session_reset(other);
    NEED(!st_checkpoint_take(s, &life.err), "%s", life.err.text);
    eval(s, &last, 1, got);
    NEED(!memcmp(got, same, sizeof got), "%u tokens have other bits than when they are read in the same chunks", t->count);
    for (int i = 0; i < VOCABULARY; i++)
        NEED(fabsf(got[i] - cold[i]) <= tolerance, "logit %d of %u tokens is off by %g", i, t->count, (double)fabsf(got[i] - cold[i]));
}

static void do_step(const struct tale *tale, struct step step)
{
    const struct story *t = &tale->talk[tale->now];
    struct strata_session *s = life.session;
    char name[24];
    snprintf(name, sizeof name, "%d.saved", step.file);
    if (step.kind == RESTORE) {
        NEED(!strata_session_restore(s, work_path(name), &life.err), "%s", life.err.text);
        read_on(s, t, false);
        return;
    }
    if (step.kind == KEEP) /* a life may not have had the others yet */
        for (int i = 0; i < TALKS; i++)
            visit(&tale->talk[i]);
    visit(t);
    if (step.kind == REGENERATE) {
        NEED(!st_session_rewind(s, st_session_reach(s, t->count - 1), &life.err), "%s", life.err.text);
        read_on(s, t, true);
    } else if (step.kind == KEEP) {
        NEED(!strata_engine_keep(life.engine, &life.err), "%s", life.err.text);
    } else if (step.kind == SAVE) {
        NEED(!strata_session_save(s, work_path(name), &life.err), "%s", life.err.text);
    } else if (step.kind == CHECK) {
        compare(t);
    }
}

/* What the lives before left: files that were saved hold what was saved last, or what was being saved; conversations that
 * were kept are there. */
static void look_around(const struct tale *tale, const struct tale *after, struct step next)
{
    for (int j = 0; j < FILES; j++) {
        char name[24];
        snprintf(name, sizeof name, "%d.saved", j);
        bool saving = next.kind == SAVE && next.file == j;
        if (tale->of[j] < 0 && !(saving && !access(work_path(name), F_OK)))
            continue;
        NEED(!strata_session_restore(life.session, work_path(name), &life.err), "%s", life.err.text);
        const struct story *t = &tale->file[j];
        const int32_t *ids;
        size_t n = strata_session_tokens(life.session, &ids);
        if (saving && (tale->of[j] < 0 || n != t->count || memcmp(ids, t->ids, n * sizeof *ids)))
            t = &after->file[j];
        read_on(life.session, t, false); /* nothing to read, or the session would hold less */
        NEED(n == t->count, "%s holds %zu of %u tokens", name, n, t->count);
        compare(t);
        strata_session_reset(life.session);
    }
    for (int i = 0; i < TALKS; i++) {
        const struct story *t = &tale->talk[i];
        if (!tale->kept[i])
            continue;
        choose(t);
        NEED(life.session->count == t->count, "%u of %u kept tokens are there", life.session->count, t->count);
    }
}

static const struct {
    const char *devices, *split;
    uint64_t ram;
    uint32_t rarely; /* a start takes long: so many times fewer of them */
} machines[] = {{"cpu", NULL, 1 << 16, 1}, {"sim:gfx1100:8G,cpu", "3,2", 0, 3}, {"cpu", NULL, 64 << 20, 1}};

/* argv: program "life" folder seed steps done calls pipe. The number of each step that is done goes into the pipe. */
static int live(char **argv)
{
    snprintf(work, sizeof work, "%s", argv[2]);
    life.seed = (uint32_t)atoi(argv[3]);
    steps = (uint32_t)atoi(argv[4]);
    uint32_t done = (uint32_t)atoi(argv[5]);
    size_t machine = life.seed % (sizeof machines / sizeof *machines);
    int progress = atoi(argv[7]);
    struct strata_engine_options o = {.devices = machines[machine].devices,
                                      .layer_split = machines[machine].split,
                                      .threads = 1,
                                      .context = CONTEXT,
                                      .prefill = CHUNK,
                                      .sessions = 2,
                                      .session_ram = machines[machine].ram,
                                      .session_dir = work_path("kept"),
                                      .kv = STRATA_KV_F32,
                                      .fp32 = true,
                                      .mtp_path = life.seed % 2 ? work_path("tiny-mtp.gguf") : NULL};
    NEED(!strata_model_open(work_path("tiny.gguf"), &life.model, &life.err) &&
             !strata_engine_create(life.model, &o, &life.engine, &life.err) &&
             !strata_session_create(life.engine, &life.session, &life.err) &&
             !strata_session_create(life.engine, &life.other, &life.err),
         "%s", life.err.text);
    struct tale tale = {.of = {-1, -1}};
    for (uint32_t i = 0; i < done; i++)
        tell(&tale, life.seed, i);
    life.number = done;
    struct tale after = tale;
    struct step next = tell(&after, life.seed, done);
    look_around(&tale, &after, next);
    atomic_store(&calls_left, atoi(argv[6]));
    for (; life.number < steps; life.number++) {
        next = tell(&tale, life.seed, life.number);
        do_step(&tale, next);
        uint32_t word[2] = {life.number + 1, life.held};
        NEED(__real_write(progress, word, sizeof word) == sizeof word, "nobody reads");
    }
    for (int i = 0; i < TALKS; i++)
        if (tale.talk[i].count) {
            visit(&tale.talk[i]);
            compare(&tale.talk[i]);
        }
    struct st_park_info info;
    st_park_info(life.engine, &info);
    NEED(!info.last_failure[0], "%s", info.last_failure);
    strata_session_free(life.session);
    strata_session_free(life.other);
    strata_engine_free(life.engine);
    strata_model_free(life.model);
    return 0;
}

/* ---- the parent ---- */

/* One life from step *done on, to be killed after `most` more steps and `us` microseconds, or by itself. True: it was killed. */
static bool run_life(uint32_t seed, uint32_t *done, int calls, uint32_t most, uint32_t us, uint32_t *held)
{
    int ends[2], status;
    char number[5][16];
    assert_int_equal(pipe(ends), 0);
    snprintf(number[0], sizeof number[0], "%u", seed);
    snprintf(number[1], sizeof number[1], "%u", steps);
    snprintf(number[2], sizeof number[2], "%u", *done);
    snprintf(number[3], sizeof number[3], "%d", calls);
    snprintf(number[4], sizeof number[4], "%d", ends[1]);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        execl(program, program, "life", work, number[0], number[1], number[2], number[3], number[4], (char *)NULL);
        _exit(4);
    }
    close(ends[1]);
    uint32_t word[2], from = *done, own = 0;
    bool struck = false;
    if (!most) {
        usleep(us);
        struck = !kill(child, SIGKILL);
    }
    while (read(ends[0], word, sizeof word) == sizeof word) {
        *done = word[0];
        own = word[1];
        if (!struck && *done - from >= most) {
            usleep(us);
            struck = !kill(child, SIGKILL);
        }
    }
    close(ends[0]);
    *held += own;
    while (waitpid(child, &status, 0) < 0)
        assert_int_equal(errno, EINTR);
    if (WIFSIGNALED(status))
        assert_int_equal(WTERMSIG(status), SIGKILL);
    else if (WEXITSTATUS(status))
        fail_msg("seed %u: a life ended with %d after step %u", seed, WEXITSTATUS(status), *done);
    return WIFSIGNALED(status);
}

static void any_order_of_steps_and_kills_keeps_every_bit(void **state)
{
    (void)state;
    for (uint32_t seed = first_seed; seed < first_seed + seeds; seed++) {
        size_t machine = seed % (sizeof machines / sizeof *machines);
        uint64_t random = seed;
        uint32_t done = 0, killed = 0, held = 0, itself = 0, most = kills / machines[machine].rarely, each = 2 * steps / most;
        while (killed < most && done < steps) {
            bool own = draw(&random, 2);
            bool died = own ? run_life(seed, &done, 1 + (int)draw(&random, 20), each, draw(&random, 3000), &held)
                            : run_life(seed, &done, 0, draw(&random, each), draw(&random, 30000), &held);
            killed += died;
            itself += own && died;
        }
        if (done < steps)
            assert_false(run_life(seed, &done, 0, steps + 1, 0, &held));
        assert_int_equal(done, steps);
        print_message("# seed %u, %s: %u steps, killed %u times, %u of them possibly within a save; %u tokens were not read again\n", seed,
                      machines[machine].devices, steps, killed, itself, held);
        assert_true(killed > 0);
        assert_true(held > 4 * steps);
        for (int j = 0; j < FILES; j++) {
            char name[24];
            snprintf(name, sizeof name, "%d.saved", j);
            unlink(work_path(name));
        }
        DIR *d = opendir(work_path("kept"));
        for (struct dirent *e; d && (e = readdir(d));)
            unlinkat(dirfd(d), e->d_name, 0);
        if (d)
            closedir(d);
        rmdir(work_path("kept"));
    }
}

static int setup(void **state)
{
    struct strata_error err = {0};
    struct st_convert_report report;
    char source[PATH_SIZE];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n <= 0 || make_work(state))
        return -1;
    struct st_convert_options c = {.dir = unpacked(source, "tiny-model", ""),
                                   .out = work_path("tiny.gguf"),
                                   .mtp_out = work_path("tiny-mtp.gguf"),
                                   .type = ST_CONVERT_F32};
    if (!st_convert(&c, &report, &err))
        return 0;
    fprintf(stderr, "# %s\n", err.text);
    return -1;
}

int main(int argc, char **argv)
{
    if (argc == 8 && !strcmp(argv[1], "life"))
        return live(argv);
    if (argc >= 2 && !strcmp(argv[1], "long")) {
        steps = 580;
        kills = 60;
        seeds = 6;
        first_seed = argc > 2 ? (uint32_t)atoi(argv[2]) : 4;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_order_of_steps_and_kills_keeps_every_bit),
    };
    return cmocka_run_group_tests(tests, setup, remove_work);
}
