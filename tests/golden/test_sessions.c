/* Sessions that go back, are saved and come back: after any order of such steps a session gives the bits of one that
 * read the same tokens in the same chunks, and nearly those of one that read them in other chunks. */
#include "test.h"

#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>

#include "engine/park.h"
#include "engine/state.h"
#include "fixture.h"
#include "model/convert.h"

enum { CONTEXT = 256, VOCABULARY = 600, STEPS = 60 };

static const float tolerance = 2e-4f;
static struct strata_model *model;
static char *draft;

static struct strata_engine *engine_in(uint64_t session_ram, bool with_draft, const char *dir, uint64_t disk)
{
    struct strata_error err;
    struct strata_engine *e;
    struct strata_engine_options o = {.threads = 2,
                                      .context = CONTEXT,
                                      .prefill = 16,
                                      .sessions = 2,
                                      .session_ram = session_ram,
                                      .session_dir = dir,
                                      .session_disk = disk,
                                      .kv = STRATA_KV_F32,
                                      .fp32 = true,
                                      .mtp_path = with_draft ? draft : NULL};
    assert_ok(strata_engine_create(model, &o, &e, &err), &err);
    assert_int_equal(e->dims.vocabulary, VOCABULARY);
    return e;
}

static struct strata_engine *engine(uint64_t session_ram, bool with_draft)
{
    return engine_in(session_ram, with_draft, NULL, 0);
}

static struct strata_session *session(struct strata_engine *e)
{
    struct strata_error err;
    struct strata_session *s;
    assert_ok(strata_session_create(e, &s, &err), &err);
    return s;
}

static uint32_t draw(uint64_t *seed, uint32_t n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33) % n;
}

/* Bytes of the session files in a folder; removes them with the folder on request. */
static uint64_t folder_bytes(const char *dir, bool removing)
{
    uint64_t bytes = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        struct stat st;
        if (strstr(e->d_name, ".session") && !fstatat(dirfd(d), e->d_name, &st, 0))
            bytes += (uint64_t)st.st_size;
        if (removing)
            unlinkat(dirfd(d), e->d_name, 0);
    }
    if (d)
        closedir(d);
    if (removing)
        rmdir(dir);
    return bytes;
}

/* What a session should hold, and in which chunks it was read. */
struct story {
    int32_t first, ids[CONTEXT];
    uint32_t count, chunk[CONTEXT], chunks;
};

static void story_back(struct story *t, uint32_t tokens)
{
    t->count = 0;
    uint32_t i = 0;
    while (i < t->chunks && t->count + t->chunk[i] <= tokens)
        t->count += t->chunk[i++];
    t->chunks = i;
    assert_int_equal(t->count, tokens); /* sessions go back to ends of chunks only */
}

static void append(struct strata_session *s, struct story *t, uint64_t *seed, uint32_t n)
{
    struct strata_error err;
    for (uint32_t i = 0; i < n; i++)
        t->ids[t->count + i] = (int32_t)draw(seed, VOCABULARY);
    assert_ok(strata_session_eval(s, t->ids + t->count, n, false, NULL, &err), &err);
    t->count += n;
    t->chunk[t->chunks++] = n;
}

/* The next token's logits of s are those of a session that reads the story now: in the same chunks bit for bit, in
 * chunks of 16 within the tolerance. s goes one token on. */
static void check(struct strata_session *s, struct strata_session *other, struct story *t, uint64_t *seed)
{
    static float got[VOCABULARY], same[VOCABULARY], cold[VOCABULARY];
    struct strata_error err;
    const int32_t *held;
    assert_int_equal(strata_session_tokens(s, &held), t->count);
    assert_memory_equal(held, t->ids, t->count * sizeof *held);
    strata_session_reset(other);
    for (uint32_t i = 0, at = 0; i < t->chunks; at += t->chunk[i++])
        assert_ok(strata_session_eval(other, t->ids + at, t->chunk[i], false, NULL, &err), &err);
    int32_t next = (int32_t)draw(seed, VOCABULARY);
    assert_ok(strata_session_eval(s, &next, 1, false, got, &err), &err);
    assert_ok(strata_session_eval(other, &next, 1, false, same, &err), &err);
    assert_memory_equal(got, same, sizeof got);
    t->ids[t->count++] = next;
    t->chunk[t->chunks++] = 1;
    strata_session_reset(other);
    assert_ok(strata_session_eval(other, t->ids, t->count, false, cold, &err), &err);
    for (int i = 0; i < VOCABULARY; i++)
        if (!(fabsf(got[i] - cold[i]) <= tolerance))
            fail_msg("logit %d differs by %g from a cold read", i, (double)fabsf(got[i] - cold[i]));
}

/* Another answer to the same: what follows the state before the last chunk is read again, in the same chunks. */
static void regenerate(struct strata_session *s, struct story *t)
{
    struct strata_error err;
    uint32_t back = t->count ? st_session_reach(s, t->count - 1) : 0, at = 0;
    assert_ok(st_session_rewind(s, back, &err), &err);
    assert_int_equal(s->count, back);
    for (uint32_t i = 0; i < t->chunks; at += t->chunk[i++])
        if (at >= back)
            assert_ok(strata_session_eval(s, t->ids + at, t->chunk[i], false, NULL, &err), &err);
    assert_int_equal(s->count, t->count);
}

/* Another conversation takes the session's place for a while. */
static void park_and_come_back(struct strata_session *s, struct story *t, uint64_t *seed)
{
    enum { VISIT = 40 };
    struct strata_error err;
    int32_t ids[CONTEXT + 1];
    for (uint32_t i = 0; i < VISIT; i++)
        ids[i] = (int32_t)draw(seed, VOCABULARY);
    ids[0] = t->count ? (t->ids[0] + 1) % VOCABULARY : 0;
    assert_ok(st_park_choose(s, ids, VISIT, &err), &err);
    while (s->count < VISIT)
        assert_ok(strata_session_eval(s, ids + s->count, VISIT - s->count < 16 ? VISIT - s->count : 16, false, NULL, &err), &err);
    memcpy(ids, t->ids, t->count * sizeof *ids);
    ids[t->count] = 0;
    assert_ok(st_park_choose(s, ids, t->count + 1, &err), &err);
    story_back(t, s->count);
}

static void any_order_of_steps_gives_the_bits_of_the_same_chunks(void **state)
{
    (void)state;
    struct strata_error err;
    const char *path = work_path("any.session"), *dir = work_path("any");
    for (uint64_t seed = 1; seed <= 4; seed++) { /* parked in memory, and in files */
        struct strata_engine *e = seed < 3 ? engine(0, seed % 2) : engine_in(1 << 16, seed % 2, dir, 0);
        struct strata_session *s = session(e), *other = session(e);
        struct story t = {.count = 0}, saved = {.count = 0};
        uint64_t random = seed * 977;
        bool on_disk = false;
        for (int step = 0; step < STEPS; step++) {
            uint32_t n = 1 + draw(&random, 16), back = t.count ? draw(&random, t.count + 1) : 0;
            switch (draw(&random, 10)) {
            case 0: assert_ok(st_checkpoint_take(s, &err), &err); break;
            case 1:
                back = st_session_reach(s, back);
                assert_ok(st_session_rewind(s, back, &err), &err);
                story_back(&t, back);
                break;
            case 2:
                assert_ok(strata_session_save(s, path, &err), &err);
                saved = t;
                on_disk = true;
                break;
            case 3:
                if (on_disk) {
                    assert_ok(strata_session_restore(s, path, &err), &err);
                    t = saved;
                }
                break;
            case 4: check(s, other, &t, &random); break;
            case 5: regenerate(s, &t); break;
            case 6: park_and_come_back(s, &t, &random); break;
            default:
                if (t.count + n + STEPS < CONTEXT)
                    append(s, &t, &random, n);
            }
        }
        check(s, other, &t, &random);
        strata_session_free(s);
        strata_session_free(other);
        st_park_close(e);
        assert_int_equal(e->keep.used, 0);
        strata_engine_free(e);
    }
    folder_bytes(dir, true);
}

static void a_session_goes_back_to_the_nearest_checkpoint(void **state)
{
    (void)state;
    struct strata_error err;
    struct strata_engine *e = engine(0, false);
    struct strata_session *s = session(e), *other = session(e);
    struct story t = {.count = 0};
    uint64_t random = 5;
    for (int i = 0; i < 4; i++) {
        append(s, &t, &random, 10);
        assert_ok(st_checkpoint_take(s, &err), &err);
    }
    append(s, &t, &random, 7);
    assert_int_equal(st_session_reach(s, 47), 47);
    assert_int_equal(st_session_reach(s, 46), 40);
    assert_int_equal(st_session_reach(s, 39), 30);
    assert_int_equal(st_session_reach(s, 9), 0);
    assert_ok(st_session_rewind(s, 39, &err), &err);
    story_back(&t, 30);
    assert_int_equal(s->points, 3);
    check(s, other, &t, &random);
    assert_ok(st_session_rewind(s, 9, &err), &err);
    assert_int_equal(s->count, 0);
    assert_int_equal(s->points, 0);
    strata_session_free(s);
    strata_session_free(other);
    strata_engine_free(e);
}

static void checkpoints_stay_within_their_memory_and_spread(void **state)
{
    (void)state;
    struct strata_error err;
    struct strata_engine *probe = engine(0, false);
    uint64_t one = st_checkpoint_bytes(probe);
    assert_true(one > sizeof(struct st_checkpoint));
    assert_true(probe->plan.host.kept >= 2 * ST_CHECKPOINTS_KEPT * one); /* two sessions */
    strata_engine_free(probe);
    struct strata_engine *e = engine(8 * one + one / 2, false);
    struct strata_session *s = session(e);
    struct story t = {.count = 0};
    uint64_t random = 6;
    for (int i = 0; i < 20; i++) {
        append(s, &t, &random, 10);
        assert_ok(st_checkpoint_take(s, &err), &err);
        assert_true(e->keep.used <= e->keep.limit);
    }
    assert_int_equal(s->points, 8);
    assert_int_equal(s->point[0]->tokens, 10);
    assert_int_equal(s->point[6]->tokens, 190);
    assert_int_equal(s->point[7]->tokens, 200);
    for (int i = 1; i < 8; i++) /* closer towards the end */
        assert_true(s->point[i]->tokens - s->point[i - 1]->tokens <= 80);
    strata_session_free(s);
    strata_engine_free(e);
    e = engine(1, false); /* no room for any: nothing is kept, everything works */
    s = session(e);
    t.count = t.chunks = 0;
    append(s, &t, &random, 10);
    assert_ok(st_checkpoint_take(s, &err), &err);
    assert_int_equal(s->points, 0);
    assert_int_equal(st_session_reach(s, 9), 0);
    strata_session_free(s);
    strata_engine_free(e);
}

/* ---- parked conversations ---- */

enum { STORIES = 3 };

/* A request of a conversation: all it has, or a part, and something new. Returns what did not have to be read. */
static uint32_t request(struct strata_session *s, struct story *t, uint64_t *random)
{
    struct strata_error err;
    int32_t ids[CONTEXT];
    uint32_t keep = draw(random, 3) && t->count ? t->count : t->count / 2, n = 1 + draw(random, 16);
    if (keep + n + 2 > CONTEXT / 2)
        keep = 60;
    memcpy(ids, t->ids, keep * sizeof *ids);
    for (uint32_t i = 0; i < n; i++)
        ids[keep + i] = (int32_t)draw(random, VOCABULARY);
    if (!keep)
        ids[0] = t->first; /* conversations have nothing in common */
    assert_ok(st_park_choose(s, ids, keep + n, &err), &err);
    uint32_t had = s->count;
    assert_in_range(had, 0, keep);
    story_back(t, had);
    for (uint32_t more; t->count < keep + n; t->count += more) {
        more = keep + n - t->count < 16 ? keep + n - t->count : 16;
        memcpy(t->ids + t->count, ids + t->count, more * sizeof *ids);
        assert_ok(strata_session_eval(s, ids + t->count, more, false, NULL, &err), &err);
        t->chunk[t->chunks++] = more;
        if (draw(random, 2))
            assert_ok(st_checkpoint_take(s, &err), &err);
    }
    return had;
}

static void conversations_that_take_turns_come_back_bit_for_bit(void **state)
{
    (void)state;
    struct strata_error err;
    const char *dir = work_path("parked");
    struct strata_engine *e = engine(0, false);
    uint64_t point = st_checkpoint_bytes(e), whole = st_state_bytes(e, ST_STATE_FIXED | ST_STATE_GROWING, CONTEXT / 2);
    strata_engine_free(e);
    const struct {
        uint64_t ram, disk;
        bool files;
    } limits[] = {{40 * point + 4 * whole, 0, false},     /* room for everything */
                  {8 * point, 0, false},                  /* for next to nothing */
                  {8 * point + whole, 100 * whole, true}, /* and the rest in files */
                  {4096, 2 * whole + 20 * point, true}};  /* in a few files alone */
    for (size_t k = 0; k < sizeof limits / sizeof *limits; k++) {
        struct story t[STORIES] = {{.first = 1}, {.first = 2}, {.first = 3}};
        uint64_t random = 77 + k, had = 0;
        struct st_park_info info;
        e = engine_in(limits[k].ram, false, limits[k].files ? dir : NULL, limits[k].disk);
        struct strata_session *s = session(e), *other = session(e);
        for (int step = 0; step < STEPS; step++) {
            uint32_t i = draw(&random, STORIES);
            had += request(s, &t[i], &random);
            if (step % 3 == 0)
                check(s, other, &t[i], &random);
            assert_true(e->keep.used <= e->keep.limit);
            if (limits[k].files)
                assert_true(folder_bytes(dir, false) <= limits[k].disk);
            if (limits[k].files && step % 16 == 15) { /* the end of the program, announced or not */
                if (step % 32 == 15)
                    assert_ok(strata_engine_keep(e, &err), &err);
                strata_session_free(s);
                strata_session_free(other);
                strata_engine_free(e);
                e = engine_in(limits[k].ram, false, dir, limits[k].disk);
                s = session(e);
                other = session(e);
            }
        }
        st_park_info(e, &info);
        assert_string_equal(info.last_failure, "");
        assert_int_equal(info.in_files > 0, limits[k].files);
        print_message("# %llu tokens were not read again\n", (unsigned long long)had);
        assert_true(had > 200);
        strata_session_free(s);
        strata_session_free(other);
        st_park_close(e);
        assert_int_equal(e->keep.used, 0);
        strata_engine_free(e);
        folder_bytes(dir, true);
    }
}

static void a_parked_file_that_is_damaged_costs_a_cold_read_and_says_so(void **state)
{
    (void)state;
    struct strata_error err;
    struct strata_engine *second = NULL;
    struct st_park_info info;
    const char *dir = work_path("damaged");
    struct strata_engine *e = engine_in(0, false, dir, 0);
    struct strata_session *s = session(e);
    struct strata_engine_options o = {.session_dir = dir};
    assert_int_equal(strata_engine_create(model, &o, &second, &err), STRATA_OK); /* other settings: other files */
    strata_engine_free(second);
    struct story t = {.first = 1};
    uint64_t random = 9;
    append(s, &t, &random, 50);
    assert_ok(strata_engine_keep(e, &err), &err);
    strata_session_free(s);
    strata_engine_options(e, &o);
    assert_int_equal(strata_engine_create(model, &o, &second, &err), STRATA_E_IO);
    assert_non_null(strstr(err.text, "another program"));
    strata_engine_free(e);

    /* One with less context leaves the file alone. */
    o.session_dir = dir;
    o.context = 49;
    o.prefill = 0;
    assert_ok(strata_engine_create(model, &o, &second, &err), &err);
    s = session(second);
    st_park_info(second, &info);
    assert_int_equal(info.in_files, 1);
    assert_ok(st_park_choose(s, t.ids, 49, &err), &err);
    assert_int_equal(s->count, 0);
    strata_session_free(s);
    strata_engine_free(second);

    DIR *d = opendir(dir);
    char path[PATH_SIZE + 300] = "";
    for (struct dirent *entry; (entry = readdir(d));)
        if (strstr(entry->d_name, ".session"))
            snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
    closedir(d);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "damage", 6, 4000), 6);
    close(fd);

    e = engine_in(0, false, dir, 0);
    s = session(e);
    st_park_info(e, &info);
    assert_int_equal(info.in_files, 1);
    assert_ok(st_park_choose(s, t.ids, 51, &err), &err);
    assert_int_equal(s->count, 0);
    st_park_info(e, &info);
    assert_int_equal(info.in_files, 0);
    assert_non_null(strstr(info.last_failure, "damaged"));
    assert_int_equal(folder_bytes(dir, false), 0);
    strata_session_free(s);
    strata_engine_free(e);
    folder_bytes(dir, true);
}

static int setup(void **state)
{
    struct strata_error err = {0};
    struct st_convert_report report;
    char source[PATH_SIZE];
    if (make_work(state))
        return -1;
    draft = strdup(work_path("tiny-mtp.gguf"));
    struct st_convert_options c = {.dir = unpacked(source, "tiny-model", ""),
                                   .out = work_path("tiny.gguf"),
                                   .mtp_out = draft,
                                   .type = ST_CONVERT_F32};
    enum strata_result r = st_convert(&c, &report, &err);
    if (!r)
        r = strata_model_open(c.out, &model, &err);
    if (r)
        fprintf(stderr, "%s\n", err.text);
    return r ? -1 : 0;
}

static int teardown(void **state)
{
    strata_model_free(model);
    free(draft);
    return remove_work(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_order_of_steps_gives_the_bits_of_the_same_chunks),
        cmocka_unit_test(a_session_goes_back_to_the_nearest_checkpoint),
        cmocka_unit_test(checkpoints_stay_within_their_memory_and_spread),
        cmocka_unit_test(conversations_that_take_turns_come_back_bit_for_bit),
        cmocka_unit_test(a_parked_file_that_is_damaged_costs_a_cold_read_and_says_so),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
