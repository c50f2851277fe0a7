/* Speculation: a row of a window has the bits that its token would have alone; rows that are taken back leave no trace;
 * and an answer is the same text, whoever guesses and however often it is right: greedy, sampled, with penalties,
 * wherever it ends. */
#include "test.h"

#include <sys/stat.h>

#include "engine/speculate.h"
#include "fixture.h"
#include "model/convert.h"

enum { PROMPT = 70, ANSWER = 32, CONTEXT = 256 };

static struct {
    struct strata_model *tiny, *demo;
    char *tiny_draft;
    int32_t *ids; /* a question for the demo model */
    size_t count;
} f;

static const char *expert_cache, *layer_split; /* of engines that are opened */

static struct strata_engine *open_engine(const struct strata_model *m, const char *devices, const char *mtp,
                                         uint32_t drafts)
{
    struct strata_error err;
    struct strata_engine *e;
    struct strata_engine_options o = {.devices = devices,
                                      .threads = 2,
                                      .context = CONTEXT,
                                      .prefill = 32,
                                      .sessions = 2,
                                      .expert_cache = expert_cache,
                                      .layer_split = layer_split,
                                      .mtp_path = mtp,
                                      .drafts = drafts};
    assert_ok(strata_engine_create(m, &o, &e, &err), &err);
    return e;
}

static struct strata_session *open_session(struct strata_engine *e)
{
    struct strata_error err;
    struct strata_session *s;
    assert_ok(strata_session_create(e, &s, &err), &err);
    return s;
}

/* ---- windows and what is kept of them ---- */

static int32_t id_at(size_t i)
{
    return (int32_t)((i * 37 + 11) % 600);
}

/* Logits of tokens [from, from + n) one after the other, each alone. */
static void one_by_one(struct strata_session *s, size_t from, size_t n, float *logits)
{
    struct strata_error err;
    for (size_t i = 0; i < n; i++) {
        int32_t id = id_at(from + i);
        assert_ok(strata_session_eval(s, &id, 1, false, logits + i * s->engine->dims.vocabulary, &err), &err);
    }
}

/* Windows of one session. */
static enum strata_result window(struct strata_session *s, const int32_t *ids, size_t n, struct strata_error *err)
{
    return st_engine_window(s->engine, &(struct st_window_part){.session = s, .ids = ids, .n = n}, 1, err);
}

static enum strata_result commit(struct strata_session *s, size_t keep, struct strata_error *err)
{
    return st_engine_commit(s->engine, &(struct st_window_part){.session = s, .n = s->held, .keep = keep}, 1, err);
}

static void windows_keep_what_they_are_told(const char *devices)
{
    enum { TURNS = 12, AFTER = 3 };
    struct strata_error err;
    struct strata_engine *e = open_engine(f.tiny, devices, NULL, 7);
    struct strata_session *plain = open_session(e), *s = open_session(e);
    size_t vocabulary = e->dims.vocabulary, at = PROMPT;
    int32_t prompt[PROMPT], ids[ST_HELD_ROWS];
    float *want = malloc(ST_HELD_ROWS * vocabulary * sizeof *want), *got = malloc(vocabulary * sizeof *got);
    for (size_t i = 0; i < PROMPT; i++)
        prompt[i] = id_at(i);
    assert_ok(strata_session_eval(plain, prompt, PROMPT, false, NULL, &err), &err);
    assert_ok(strata_session_eval(s, prompt, PROMPT, false, NULL, &err), &err);
    for (size_t turn = 0; turn < TURNS; turn++) {
        size_t n = 1 + turn % ST_HELD_ROWS, keep = turn < ST_HELD_ROWS ? n : 1 + turn * 5 % n;
        for (size_t i = 0; i < n; i++)
            ids[i] = i < keep ? id_at(at + i) : 599 - id_at(at + i); /* those that are taken back are others */
        one_by_one(plain, at, keep, want);
        assert_ok(window(s, ids, n, &err), &err);
        assert_memory_equal(e->logits, want, keep * vocabulary * sizeof *want);
        assert_ok(commit(s, keep, &err), &err);
        at += keep;
    }
    for (size_t i = 0; i < AFTER; i++) {
        one_by_one(plain, at + i, 1, want);
        one_by_one(s, at + i, 1, got);
        assert_memory_equal(got, want, vocabulary * sizeof *got);
    }
    assert_int_equal(strata_session_tokens(s, NULL), strata_session_tokens(plain, NULL));
    free(want);
    free(got);
    strata_session_free(s);
    strata_session_free(plain);
    strata_engine_free(e);
}

static void rows_of_a_window_have_the_bits_of_rows_alone_and_leave_no_trace_when_taken_back(void **state)
{
    (void)state;
    windows_keep_what_they_are_told("cpu");
}

static void windows_do_so_on_devices_and_across_stages(void **state)
{
    (void)state;
    windows_keep_what_they_are_told("sim:gfx1100:8G");
    windows_keep_what_they_are_told("sim:sm_89:8G,cpu,sim:gfx90a:8G:nograph");
    expert_cache = "40%"; /* the host computes the other experts */
    windows_keep_what_they_are_told("sim:gfx1100:8G");
    windows_keep_what_they_are_told("sim:gfx1100:8G:nograph");
    expert_cache = NULL;
}

static void windows_out_of_range_are_refused_and_change_nothing(void **state)
{
    (void)state;
    struct strata_error err;
    struct strata_engine *e = open_engine(f.tiny, "cpu", NULL, 0);
    struct strata_session *s = open_session(e);
    int32_t ids[ST_HELD_ROWS + 1] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    assert_int_equal(window(s, ids, 2, &err), STRATA_E_INTERNAL); /* no room for held rows */
    assert_int_equal(window(s, ids, 0, &err), STRATA_E_INTERNAL);
    assert_int_equal(commit(s, 1, &err), STRATA_E_INTERNAL);
    assert_ok(window(s, ids, 1, &err), &err);
    assert_int_equal(commit(s, 2, &err), STRATA_E_INTERNAL);
    assert_ok(commit(s, 1, &err), &err);
    assert_int_equal(strata_session_tokens(s, NULL), 1);
    strata_session_free(s);
    strata_engine_free(e);
    e = open_engine(f.tiny, "cpu", NULL, 7);
    s = open_session(e);
    assert_int_equal(window(s, ids, ST_HELD_ROWS + 1, &err), STRATA_E_INTERNAL);
    ids[1] = -1;
    assert_int_equal(window(s, ids, 2, &err), STRATA_E_ARGUMENT);
    assert_int_equal(strata_session_tokens(s, NULL), 0);
    strata_session_free(s);
    strata_engine_free(e);
    struct strata_engine_options o = {.drafts = 8};
    assert_int_equal(strata_engine_create(f.tiny, &o, &e, &err), STRATA_E_ARGUMENT);
}

/* ---- answers ---- */

struct answer {
    int32_t ids[CONTEXT];
    size_t count;
    char text[4096];
    size_t size;
    enum strata_end end;
    struct strata_stats stats;
    int32_t held[CONTEXT]; /* what the session holds afterwards */
    size_t n_held;
    size_t cancel_after; /* tokens; 0: never */
};

static bool collect(void *user, const struct strata_event *e)
{
    struct answer *a = user;
    if (e->kind == STRATA_EVENT_TEXT) {
        if (e->token >= 0)
            a->ids[a->count++] = e->token;
        assert_true(e->size < sizeof a->text - a->size);
        memcpy(a->text + a->size, e->text, e->size);
        a->size += e->size;
    }
    if (e->kind == STRATA_EVENT_END)
        a->end = e->end;
    return !a->cancel_after || a->count < a->cancel_after;
}

enum { KINDS = 4 };

/* Greedy; sampled; sampled from everything with penalties; greedy with penalties. */
static struct strata_request request(int kind)
{
    struct strata_request q = {.ids = f.ids, .count = f.count, .max_tokens = ANSWER, .ignore_eos = true};
    strata_sampling_default(&q.sampling);
    if (kind == 1 || kind == 2) {
        q.sampling.temperature = 0.8f;
        q.sampling.seed = 7;
    }
    if (kind == 1) {
        q.sampling.top_k = 40;
        q.sampling.top_p = 0.95f;
    }
    if (kind >= 2) {
        q.sampling.repetition_penalty = 1.3f;
        q.sampling.frequency_penalty = 0.5f;
        q.sampling.presence_penalty = 0.2f;
    }
    return q;
}

static void answer_on(struct strata_session *s, struct strata_request q, struct answer *a)
{
    struct strata_error err;
    const int32_t *held;
    q.event = collect;
    q.user = a;
    assert_ok(strata_generate(s, &q, &a->stats, &err), &err);
    a->n_held = strata_session_tokens(s, &held);
    memcpy(a->held, held, a->n_held * sizeof *held);
}

static void assert_same(const struct answer *got, const struct answer *want)
{
    assert_int_equal(got->count, want->count);
    assert_memory_equal(got->ids, want->ids, want->count * sizeof *want->ids);
    assert_int_equal(got->size, want->size);
    assert_memory_equal(got->text, want->text, want->size);
    assert_int_equal(got->end, want->end);
    assert_int_equal(got->n_held, want->n_held);
    assert_memory_equal(got->held, want->held, want->n_held * sizeof *want->held);
}

/* Guesses that are right `right` times, then wrong, of `each`. */
struct drafter {
    const struct answer *know;
    size_t right, each;
};

static size_t draft(void *user, const struct strata_session *s, int32_t next, size_t most, int32_t *out)
{
    const struct drafter *d = user;
    size_t behind = s->count + 1 - f.count,
           n = d->each < most ? d->each : most; /* tokens of the answer that are known */
    assert_int_equal(next, d->know->ids[behind - 1]);
    for (size_t i = 0; i < n; i++) {
        int32_t id = behind + i < d->know->count ? d->know->ids[behind + i] : 0;
        out[i] = i < d->right ? id : (id + 1) % 100;
    }
    return n;
}

static const struct drafter drafters[] = {{.right = 7, .each = 7},
                                          {.right = 0, .each = 7},
                                          {.right = 2, .each = 5},
                                          {.right = 1, .each = 2},
                                          {.right = 0, .each = 0}};
enum { DRAFTERS = sizeof drafters / sizeof *drafters };

/* Kinds from .. to - 1, with drafters first .. last. */
static void answers_do_not_depend_on_guesses(const char *devices, int from, int to, int first, int last)
{
    struct strata_engine *e = open_engine(f.demo, devices, NULL, 7);
    for (int kind = from; kind < to; kind++) {
        struct answer want = {0};
        struct strata_session *s = open_session(e);
        struct drafter none = drafters[DRAFTERS - 1];
        none.know = &want;
        st_spec_use(s->spec, draft, &none);
        answer_on(s, request(kind), &want);
        assert_int_equal(want.count, ANSWER);
        assert_int_equal(want.stats.passes, ANSWER - 1);
        assert_int_equal(want.stats.drafted_tokens, 0);
        for (int i = first; i <= last; i++) {
            struct drafter d = drafters[i];
            struct answer got = {0};
            d.know = &want;
            strata_session_reset(s);
            st_spec_use(s->spec, draft, &d);
            answer_on(s, request(kind), &got);
            assert_same(&got, &want);
            assert_int_equal(got.stats.passes + got.stats.accepted_tokens, ANSWER - 1);
            if (d.right == 0)
                assert_int_equal(got.stats.accepted_tokens, 0);
            else if (d.right == d.each)
                assert_int_equal(got.stats.accepted_tokens, got.stats.drafted_tokens);
            else
                assert_true(got.stats.accepted_tokens > got.stats.passes / 2 &&
                            got.stats.accepted_tokens < got.stats.drafted_tokens);
        }
        strata_session_free(s);
    }
    strata_engine_free(e);
}

static void answers_are_the_same_with_right_wrong_and_mixed_guesses(void **state)
{
    (void)state;
    answers_do_not_depend_on_guesses("cpu", 0, KINDS, 0, DRAFTERS - 1);
}

static void answers_end_where_they_would_without_guesses(void **state)
{
    (void)state;
    struct strata_engine *e = open_engine(f.demo, "cpu", NULL, 7);
    struct strata_session *s = open_session(e);
    struct answer know = {0};
    struct drafter none = {.know = &know}, right = {.know = &know, .right = 7, .each = 7};
    st_spec_use(s->spec, draft, &none);
    answer_on(s, request(0), &know);
    static char stop[16];
    snprintf(stop, sizeof stop, "%.6s", know.text + know.size / 2);
    const char *const stops[] = {stop};
    for (int how = 0; how < 5; how++) {
        struct answer want = {.cancel_after = how == 0 ? 11 : 0}, got = want;
        struct strata_request q = request(0);
        if (how == 1) {
            q.stop = stops;
            q.stop_count = 1;
        } else if (how == 2) {
            q.max_tokens = 10;
        } else if (how == 3) {
            q.ignore_eos = false;
            q.max_tokens = 0;
        } else if (how == 4) {
            q.max_tokens = 0; /* the context ends it; guesses know the beginning only */
        }
        strata_session_reset(s);
        st_spec_use(s->spec, draft, &none);
        none.know = &want; /* filled while it goes on */
        answer_on(s, q, &want);
        struct drafter d = right;
        d.know = &want;
        strata_session_reset(s);
        st_spec_use(s->spec, draft, &d);
        answer_on(s, q, &got);
        assert_same(&got, &want);
        assert_int_equal(got.end, how == 0   ? STRATA_END_CANCELLED
                                  : how == 1 ? STRATA_END_STOP_TEXT
                                  : how == 2 ? STRATA_END_LENGTH
                                  : how == 3 ? STRATA_END_STOP_TOKEN
                                             : STRATA_END_CONTEXT);
        if (how == 4)
            assert_int_equal(got.n_held, CONTEXT);
    }
    strata_session_free(s);
    strata_engine_free(e);
}

/* ---- the engine's own guesses ---- */

static void answers_do_not_depend_on_the_draft_layer(const char *devices, int from, int to)
{
    struct strata_engine *plain = open_engine(f.demo, devices, NULL, 0), *e = open_engine(f.demo, devices, "auto", 3);
    size_t accepted = 0;
    for (int kind = from; kind < to; kind++) {
        struct answer want = {0}, got = {0};
        struct strata_session *a = open_session(plain), *b = open_session(e);
        answer_on(a, request(kind), &want);
        answer_on(b, request(kind), &got);
        assert_same(&got, &want);
        accepted += got.stats.accepted_tokens;
        /* And the next turn goes on from there. */
        struct strata_request q = request(kind);
        int32_t longer[CONTEXT];
        memcpy(longer, want.held, want.n_held * sizeof *longer);
        memcpy(longer + want.n_held, f.ids, f.count * sizeof *longer);
        q.ids = longer;
        q.count = want.n_held + f.count;
        struct answer next_want = {0}, next_got = {0};
        answer_on(a, q, &next_want);
        answer_on(b, q, &next_got);
        assert_same(&next_got, &next_want);
        strata_session_free(a);
        strata_session_free(b);
    }
    assert_true(accepted > 0); /* times choose how many are checked, but some are tried on every machine */
    strata_engine_free(plain);
    strata_engine_free(e);
}

static void the_draft_layer_changes_no_answer(void **state)
{
    (void)state;
    answers_do_not_depend_on_the_draft_layer("cpu", 0, KINDS);
}

static void answers_are_the_same_on_devices(void **state)
{
    (void)state;
    answers_do_not_depend_on_guesses("sim:gfx1100:8G", 1, 2, 2, 2); /* two of five are right */
    answers_do_not_depend_on_the_draft_layer("sim:sm_89:8G,sim:gfx90a:8G", 1, 2);
}

/* The next turn behind an answer that the session holds. */
static struct strata_request next_turn(int kind, const struct answer *before, int32_t ids[CONTEXT])
{
    struct strata_request q = request(kind);
    memcpy(ids, before->held, before->n_held * sizeof *ids);
    memcpy(ids + before->n_held, f.ids, f.count * sizeof *ids);
    q.ids = ids;
    q.count = before->n_held + f.count;
    q.max_tokens = 8;
    return q;
}

/* One stage and two, each with some of the experts only; windows always hold guesses of the draft layer. The second turn
 * goes on from a file that the first machine wrote. */
static void guesses_change_no_answer_where_experts_are_missing(void **state)
{
    (void)state;
    static const char *const machines[] = {"sim:gfx1100:8G", "sim:gfx1100:8G", "sim:gfx1100:8G,sim:gfx1100:4G"};
    struct strata_error err;
    struct answer first[2] = {0}, second[2] = {0};
    const char *path = work_path("cached-session");
    for (int m = 0; m < 3; m++) {
        bool plain = m == 0;
        expert_cache = plain ? NULL : "40%";
        layer_split = m == 2 ? "5,3" : NULL;
        struct strata_engine *e = open_engine(f.demo, machines[m], plain ? NULL : "auto", plain ? 0 : 3);
        expert_cache = layer_split = NULL;
        assert_int_equal(e->n_stages, m == 2 ? 2 : 1);
        assert_int_equal(e->plan.stage[0].cached, !plain);
        for (int kind = 0; kind < 2; kind++) { /* greedy, sampled */
            struct answer got = {0}, next = {0};
            struct strata_session *s = open_session(e);
            struct strata_request q = request(kind);
            int32_t ids[CONTEXT];
            q.max_tokens = 12;
            if (!plain)
                st_spec_always(s->spec, ST_GUESS_LAYER, 3);
            answer_on(s, q, &got);
            if (m == 1 && kind == 1)
                assert_ok(strata_session_save(s, path, &err), &err);
            if (m == 2 && kind == 1)
                assert_ok(strata_session_restore(s, path, &err), &err);
            answer_on(s, next_turn(kind, plain ? &got : &first[kind], ids), &next);
            if (plain) {
                first[kind] = got;
                second[kind] = next;
            } else {
                assert_true(got.stats.drafted_tokens > 0 && next.stats.drafted_tokens > 0);
                assert_same(&got, &first[kind]);
                assert_same(&next, &second[kind]);
            }
            strata_session_free(s);
        }
        strata_engine_free(e);
    }
}

/* That most guesses are right shows that the layer's rows hold what they should. */
static void the_draft_layer_guesses_mostly_right(void **state)
{
    (void)state;
    struct strata_engine *e = open_engine(f.demo, "cpu", "auto", 3);
    struct strata_session *s = open_session(e);
    struct answer a = {0};
    struct strata_request q = request(0);
    q.max_tokens = 100;
    st_spec_always(s->spec, ST_GUESS_LAYER, 3);
    answer_on(s, q, &a);
    assert_true(a.stats.drafted_tokens >= 20);
    assert_true(2 * a.stats.accepted_tokens >= a.stats.drafted_tokens);
    strata_session_free(s);
    strata_engine_free(e);
}

static void a_device_finds_the_most_probable_token_of_the_draft_layer_and_the_weight_of_all(void **state)
{
    (void)state;
    enum { ROWS = 3 };
    struct strata_error err;
    struct strata_engine *e = open_engine(f.tiny, "sim:sm_89:8G", f.tiny_draft, 3);
    struct strata_session *s = open_session(e);
    size_t vocabulary = e->dims.vocabulary, best = 0;
    float *logits = malloc(vocabulary * sizeof *logits), *wide = malloc((ROWS + 1) * e->dims.wide * sizeof *wide);
    uint64_t *weights = malloc(vocabulary * sizeof *weights), total = 0;
    int32_t ids[ROWS + 1];
    for (size_t i = 0; i <= ROWS; i++)
        ids[i] = id_at(i);
    struct st_input in = {.ids = ids, .count = ROWS + 1};
    assert_ok(st_session_eval(s, &in, &(struct st_output){.wide = wide}, &err), &err);
    struct st_sample_pick pick = {0};
    struct st_draft_rows d = {.count = ROWS, .ids = ids + 1, .wide = wide, .last_only = true, .logits = logits};
    assert_ok(st_session_draft_rows(s, &d, &err), &err);
    d.pick = &pick;
    assert_ok(st_session_draft_rows(s, &d, &err), &err);
    for (size_t i = 1; i < vocabulary; i++)
        best = logits[i] > logits[best] ? i : best;
    st_sample_weigh(logits, vocabulary, logits[best], 1.0f, weights);
    for (size_t i = 0; i < vocabulary; i++)
        total += weights[i];
    assert_true(pick.token == (int32_t)best && pick.status == ST_SAMPLE_OK && pick.total == total);
    free(logits);
    free(wide);
    free(weights);
    strata_session_free(s);
    strata_engine_free(e);
}

static void a_restored_session_goes_on_with_the_same_text(void **state)
{
    (void)state;
    struct strata_error err;
    struct strata_engine *e = open_engine(f.tiny, "cpu", f.tiny_draft, 3);
    struct strata_session *s = open_session(e), *other = open_session(e);
    int32_t ids[PROMPT + 8];
    for (size_t i = 0; i < PROMPT + 8; i++)
        ids[i] = id_at(i);
    struct strata_request q = {.ids = ids, .count = PROMPT, .max_tokens = 24, .ignore_eos = true};
    strata_sampling_default(&q.sampling);
    struct answer first = {0}, want = {0}, got = {0};
    const char *path = work_path("session");
    answer_on(s, q, &first);
    assert_ok(strata_session_save(s, path, &err), &err);
    int32_t longer[CONTEXT];
    memcpy(longer, first.held, first.n_held * sizeof *longer);
    memcpy(longer + first.n_held, ids, 5 * sizeof *longer);
    q.ids = longer;
    q.count = first.n_held + 5;
    answer_on(s, q, &want);
    assert_ok(strata_session_restore(other, path, &err), &err);
    answer_on(other, q, &got);
    assert_same(&got, &want);
    assert_int_equal(got.stats.reused_tokens, first.n_held);
    strata_session_free(s);
    strata_session_free(other);
    strata_engine_free(e);
}

static void the_draft_file_is_found_beside_the_model_or_its_absence_is_said(void **state)
{
    (void)state;
    struct strata_error err;
    char *path;
    assert_ok(st_find_draft_file(f.demo, &path, &err), &err);
    assert_non_null(strstr(path, "models/demo-mtp.gguf"));
    free(path);
    assert_ok(st_find_draft_file(f.tiny, &path, &err), &err); /* trunk.gguf and trunk-mtp.gguf */
    assert_string_equal(path, f.tiny_draft);
    free(path);
    const char *alone = work_path("alone"), *copy = work_path("alone/m.gguf");
    char target[PATH_SIZE + 64];
    snprintf(target, sizeof target, "%s", work_path("trunk.gguf"));
    struct strata_model *m;
    assert_int_equal(mkdir(alone, 0700), 0);
    assert_int_equal(symlink(target, copy), 0);
    assert_ok(strata_model_open(copy, &m, &err), &err);
    assert_int_equal(st_find_draft_file(m, &path, &err), STRATA_E_IO);
    assert_non_null(strstr(err.text, "m.gguf: no file with a draft layer"));
    struct strata_engine *e;
    assert_int_equal(strata_engine_create(m, &(struct strata_engine_options){.mtp_path = "auto"}, &e, &err),
                     STRATA_E_IO);
    strata_model_free(m);
    unlink(copy);
    rmdir(alone);
}

static int setup(void **state)
{
    struct strata_error err = {0};
    struct st_convert_report report;
    const char *root = getenv("STRATA_TEST_SOURCE");
    char source[PATH_SIZE], demo[PATH_SIZE];
    static const char messages[] = "[{\"role\": \"user\", \"content\": \"What is gimp?\"}]";
    if (make_work(state))
        return -1;
    f.tiny_draft = strdup(work_path("trunk-mtp.gguf"));
    struct st_convert_options c = {.dir = unpacked(source, "tiny-model", ""),
                                   .out = work_path("trunk.gguf"),
                                   .mtp_out = f.tiny_draft,
                                   .type = ST_CONVERT_F32};
    snprintf(demo, sizeof demo, "%s/models/demo.gguf", root ? root : ".");
    if (!st_convert(&c, &report, &err) && !strata_model_open(c.out, &f.tiny, &err) &&
        !strata_model_open(demo, &f.demo, &err) &&
        !strata_chat_prompt(f.demo, messages, NULL, &f.ids, &f.count, NULL, &err))
        return 0;
    fprintf(stderr, "%s\n", err.text);
    return -1;
}

static int teardown(void **state)
{
    strata_free(f.ids);
    strata_model_free(f.tiny);
    strata_model_free(f.demo);
    free(f.tiny_draft);
    return remove_work(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_a_window_have_the_bits_of_rows_alone_and_leave_no_trace_when_taken_back),
        cmocka_unit_test(windows_do_so_on_devices_and_across_stages),
        cmocka_unit_test(windows_out_of_range_are_refused_and_change_nothing),
        cmocka_unit_test(answers_are_the_same_with_right_wrong_and_mixed_guesses),
        cmocka_unit_test(answers_are_the_same_on_devices),
        cmocka_unit_test(answers_end_where_they_would_without_guesses),
        cmocka_unit_test(the_draft_layer_changes_no_answer),
        cmocka_unit_test(guesses_change_no_answer_where_experts_are_missing),
        cmocka_unit_test(the_draft_layer_guesses_mostly_right),
        cmocka_unit_test(a_device_finds_the_most_probable_token_of_the_draft_layer_and_the_weight_of_all),
        cmocka_unit_test(a_restored_session_goes_on_with_the_same_text),
        cmocka_unit_test(the_draft_file_is_found_beside_the_model_or_its_absence_is_said),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
