/* The reference's own numbers (golden/tiny): logits, residuals, greedy tokens, draft logits and an image prompt, with
 * FP32 activations and FP32 KV cache, for several chunk sizes, and across a saved and restored state. The GGUF files
 * are converted from the checkpoint here. */
#include "test.h"

#include <math.h>

#include "engine/engine.h"
#include "fixture.h"
#include "format/safetensors.h"
#include "model/convert.h"

static const float tolerance = 2e-4f;
static const int prompts[] = {1, 2, 7, 37, 90, 200};
enum { PROMPTS = sizeof prompts / sizeof *prompts };

static struct {
    struct st_safetensors *golden;
    struct strata_model *model;
    char *draft;
} f;

static const struct st_safetensor *golden(const char *fmt, ...)
{
    char name[64];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    const struct st_safetensor *t = st_safetensors_find(f.golden, name);
    if (!t)
        fail_msg("golden tensor %s is missing", name);
    return t;
}

static struct strata_engine *engine(uint32_t prefill, int threads, bool draft)
{
    struct strata_error err;
    struct strata_engine *e;
    struct strata_engine_options o = {.threads = threads,
                                      .context = 256,
                                      .prefill = prefill,
                                      .sessions = 2,
                                      .kv = STRATA_KV_F32,
                                      .fp32 = true,
                                      .mtp_path = draft ? f.draft : NULL};
    assert_ok(strata_engine_create(f.model, &o, &e, &err), &err);
    return e;
}

static struct strata_session *session(struct strata_engine *e)
{
    struct strata_error err;
    struct strata_session *s;
    assert_ok(strata_session_create(e, &s, &err), &err);
    return s;
}

/* Largest absolute difference; NaN counts as infinite. */
static float worst(const float *got, const struct st_safetensor *want, size_t n)
{
    float *w = malloc(n * sizeof *w), most = 0;
    assert_true(st_safetensor_floats(want, 0, n, w));
    for (size_t i = 0; i < n; i++) {
        float d = fabsf(got[i] - w[i]);
        most = d > most || !(d == d) ? (d == d ? d : INFINITY) : most;
    }
    free(w);
    return most;
}

static void assert_close(const float *got, const struct st_safetensor *want, float bound)
{
    float d = worst(got, want, want->elements);
    if (!(d <= bound))
        fail_msg("%s differs by %g, more than %g", want->name, (double)d, (double)bound);
}

static const int32_t *ids_of(int n)
{
    return (const int32_t *)(const void *)golden("p%d.ids", n)->data;
}

static void check_logits(struct strata_session *s, int n)
{
    struct strata_error err;
    size_t vocabulary = s->engine->dims.vocabulary;
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    memcpy(ids, ids_of(n), (size_t)n * sizeof *ids);
    float *logits = malloc((size_t)n * vocabulary * sizeof *logits);
    strata_session_reset(s);
    assert_ok(strata_session_eval(s, ids, (size_t)n, true, logits, &err), &err);
    assert_close(logits, golden("p%d.logits", n), tolerance);
    free(logits);
    free(ids);
}

static void logits_of_every_prompt_for_every_chunk_size(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {256, 48, 16, 7, 3, 1};
    for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
        struct strata_engine *e = engine(chunks[c], 1 + (int)c % 3, false);
        struct strata_session *s = session(e);
        for (int p = 0; p < PROMPTS; p++)
            check_logits(s, prompts[p]);
        strata_session_free(s);
        strata_engine_free(e);
    }
}

static void residuals_after_every_layer(void **state)
{
    (void)state;
    struct strata_error err;
    struct strata_engine *e = engine(16, 2, false);
    struct strata_session *s = session(e);
    for (int p = 2; p <= 3; p++) {
        size_t n = (size_t)prompts[p], size = n * e->dims.wide;
        float *r = malloc(e->dims.layers * size * sizeof *r);
        struct st_input in = {.ids = ids_of(prompts[p]), .count = n};
        struct st_output out = {.residuals = r};
        strata_session_reset(s);
        assert_ok(st_session_eval(s, &in, &out, &err), &err);
        for (uint32_t i = 0; i < e->dims.layers; i++)
            assert_close(r + i * size, golden("p%d.R%u", prompts[p], i), tolerance);
        free(r);
    }
    strata_session_free(s);
    strata_engine_free(e);
}

struct collected {
    int32_t ids[64];
    size_t count;
    enum strata_end end;
};

static bool collect(void *user, const struct strata_event *event)
{
    struct collected *c = user;
    if (event->kind == STRATA_EVENT_TEXT && event->token >= 0 && c->count < 64)
        c->ids[c->count++] = event->token;
    if (event->kind == STRATA_EVENT_END)
        c->end = event->end;
    return true;
}

static void greedy_tokens_go_on_into_the_sparse_range(void **state)
{
    (void)state;
    struct strata_error err;
    struct strata_engine *e = engine(256, 2, false);
    struct strata_session *s = session(e);
    const struct st_safetensor *want = golden("p7.greedy");
    struct collected c = {0};
    struct strata_stats stats;
    struct strata_request q = {
        .ids = ids_of(7), .count = 7, .max_tokens = want->elements, .ignore_eos = true, .event = collect, .user = &c};
    strata_sampling_default(&q.sampling);
    assert_ok(strata_generate(s, &q, &stats, &err), &err);
    assert_int_equal(c.count, want->elements);
    assert_memory_equal(c.ids, want->data, want->bytes);
    assert_int_equal(c.end, STRATA_END_LENGTH);
    assert_int_equal(stats.generated_tokens, want->elements);
    /* The answer's tokens but the last are held; going on from them reads only what is new. */
    int32_t longer[64];
    memcpy(longer, ids_of(7), 7 * sizeof *longer);
    memcpy(longer + 7, c.ids, c.count * sizeof *longer);
    q.ids = longer;
    q.count = 7 + c.count;
    q.max_tokens = 1;
    assert_ok(strata_generate(s, &q, &stats, &err), &err);
    assert_int_equal(stats.reused_tokens, q.count - 1);
    assert_int_equal(stats.read_tokens, 1);
    strata_session_free(s);
    strata_engine_free(e);
}

static void draft_logits_of_every_row(void **state)
{
    (void)state;
    struct strata_error err;
    struct strata_engine *e = engine(64, 2, true);
    struct strata_session *s = session(e);
    for (int p = 2; p < PROMPTS; p++) {
        size_t n = (size_t)prompts[p], vocabulary = e->dims.vocabulary;
        float *wide = malloc(n * e->dims.wide * sizeof *wide), *logits = malloc(n * vocabulary * sizeof *logits);
        struct st_input in = {.ids = ids_of(prompts[p]), .count = n};
        struct st_output out = {.wide = wide};
        strata_session_reset(s);
        assert_ok(st_session_eval(s, &in, &out, &err), &err);
        assert_ok(st_session_draft(s, 0, in.ids + 1, wide, n - 1, logits, NULL, &err), &err);
        assert_close(logits, golden("p%d.mtp_logits", prompts[p]), tolerance);
        free(wide);
        free(logits);
    }
    strata_session_free(s);
    strata_engine_free(e);
}

static void image_prompt_from_embeddings_and_positions(void **state)
{
    (void)state;
    struct strata_error err;
    for (uint32_t chunk = 1; chunk <= 256; chunk = chunk * 4 + 1) {
        struct strata_engine *e = engine(chunk, 1, false);
        struct strata_session *s = session(e);
        const struct st_safetensor *ids = golden("img.ids"), *embeds = golden("img.embeds"),
                                   *pos = golden("img.positions");
        size_t n = ids->elements, hidden = e->dims.hidden, next = 0;
        int32_t *axis = calloc(3 * n, sizeof *axis);
        float *embd = calloc(n * hidden, sizeof *embd), *logits = calloc(n * e->dims.vocabulary, sizeof *logits);
        uint8_t *flags = calloc(n, 1);
        const int32_t *id = (const int32_t *)(const void *)ids->data, *p = (const int32_t *)(const void *)pos->data;
        for (size_t i = 0; i < n; i++) {
            for (size_t k = 0; k < 3; k++)
                axis[3 * i + k] = p[k * n + i];
            if (id[i] == 590) {
                flags[i] = 1;
                assert_true(st_safetensor_floats(embeds, next++ * hidden, hidden, embd + i * hidden));
            }
        }
        struct st_input in = {.ids = id, .count = n, .embd = embd, .embd_row = flags, .axis = axis};
        struct st_output out = {.logits = logits, .all_logits = true};
        assert_ok(st_session_eval(s, &in, &out, &err), &err);
        assert_int_equal(next * hidden, embeds->elements);
        assert_close(logits, golden("img.logits"), tolerance);
        free(axis);
        free(embd);
        free(flags);
        free(logits);
        strata_session_free(s);
        strata_engine_free(e);
    }
}

static void saved_state_goes_on_bit_for_bit(void **state)
{
    (void)state;
    struct strata_error err;
    char path[] = "/tmp/strata-session-XXXXXX";
    close(mkstemp(path));
    struct strata_engine *e = engine(16, 2, true);
    struct strata_session *a = session(e), *b = session(e);
    size_t vocabulary = e->dims.vocabulary, rest = 90 - 13;
    float *one = malloc(rest * vocabulary * sizeof *one), *two = malloc(rest * vocabulary * sizeof *two);
    const int32_t *ids = ids_of(90);
    /* 13: between two index blocks and inside the window of the n-gram convolution. */
    assert_ok(strata_session_eval(a, ids, 13, false, NULL, &err), &err);
    assert_ok(strata_session_save(a, path, &err), &err);
    assert_ok(strata_session_eval(a, ids + 13, rest, true, one, &err), &err);
    assert_ok(strata_session_eval(b, ids, 50, false, NULL, &err), &err);
    assert_ok(strata_session_restore(b, path, &err), &err);
    assert_int_equal(strata_session_tokens(b, NULL), 13);
    assert_ok(strata_session_eval(b, ids + 13, rest, true, two, &err), &err);
    assert_memory_equal(one, two, rest * vocabulary * sizeof *one);
    float *all = malloc(90 * vocabulary * sizeof *all);
    assert_true(st_safetensor_floats(golden("p90.logits"), 0, 90 * vocabulary, all));
    for (size_t i = 0; i < rest * vocabulary; i++)
        assert_true(fabsf(two[i] - all[13 * vocabulary + i]) <= tolerance);
    free(all);
    free(one);
    free(two);
    strata_session_free(a);
    strata_session_free(b);
    strata_engine_free(e);
    unlink(path);
}

static void damaged_session_files_change_nothing(void **state)
{
    (void)state;
    struct strata_error err;
    char path[] = "/tmp/strata-session-XXXXXX";
    int fd = mkstemp(path);
    struct strata_engine *e = engine(16, 1, false);
    struct strata_session *s = session(e);
    const int32_t *ids = ids_of(37);
    assert_ok(strata_session_eval(s, ids, 20, false, NULL, &err), &err);
    assert_ok(strata_session_save(s, path, &err), &err);
    char *bytes;
    size_t size;
    assert_ok(st_read_file(path, 1 << 30, &bytes, &size, &err), &err);
    for (size_t at = 0; at < size; at += at < 200 ? 1 : size / 37) {
        bytes[at] ^= 16;
        struct st_out out;
        assert_ok(st_out_open(path, &out, &err), &err);
        assert_ok(st_out_write(&out, bytes, size, &err), &err);
        assert_ok(st_out_commit(&out, &err), &err);
        bytes[at] ^= 16;
        assert_true(strata_session_restore(s, path, &err) < 0);
        assert_int_equal(strata_session_tokens(s, NULL), 20);
    }
    assert_int_equal(truncate(path, (off_t)size / 2), 0);
    assert_int_equal(strata_session_restore(s, path, &err), STRATA_E_FORMAT);
    free(bytes);
    close(fd);
    unlink(path);
    strata_session_free(s);
    strata_engine_free(e);
}

static void two_conversations_do_not_touch_each_other(void **state)
{
    (void)state;
    struct strata_error err;
    struct strata_engine *e = engine(16, 2, false);
    struct strata_session *a = session(e), *b = session(e), *c = NULL;
    assert_int_equal(strata_session_create(e, &c, &err), STRATA_E_LIMIT);
    size_t vocabulary = e->dims.vocabulary;
    const int32_t *one = ids_of(37), *two = ids_of(90);
    float *logits = malloc(90 * vocabulary * sizeof *logits), *other = malloc(90 * vocabulary * sizeof *other);
    for (size_t i = 0; i < 37; i++) {
        assert_ok(strata_session_eval(a, one + i, 1, true, logits + i * vocabulary, &err), &err);
        assert_ok(strata_session_eval(b, two + i, 1, true, other + i * vocabulary, &err), &err);
    }
    assert_ok(strata_session_eval(b, two + 37, 53, true, other + 37 * vocabulary, &err), &err);
    assert_close(logits, golden("p37.logits"), tolerance);
    assert_close(other, golden("p90.logits"), tolerance);
    free(logits);
    free(other);
    strata_session_free(a);
    strata_session_free(b);
    strata_engine_free(e);
}

static void bad_requests_are_refused_before_anything_is_computed(void **state)
{
    (void)state;
    struct strata_error err;
    struct strata_engine *e = engine(16, 1, false);
    struct strata_session *s = session(e);
    int32_t ids[300] = {0};
    assert_ok(strata_session_eval(s, ids, 10, false, NULL, &err), &err);
    assert_int_equal(strata_session_eval(s, ids, 247, false, NULL, &err), STRATA_E_LIMIT);
    assert_non_null(strstr(err.text, "context of 256"));
    ids[3] = 600;
    assert_int_equal(strata_session_eval(s, ids, 5, false, NULL, &err), STRATA_E_ARGUMENT);
    assert_non_null(strstr(err.text, "token 3"));
    assert_int_equal(strata_session_tokens(s, NULL), 10);
    struct strata_request q = {.ids = ids, .count = 300};
    strata_sampling_default(&q.sampling);
    assert_int_equal(strata_generate(s, &q, NULL, &err), STRATA_E_LIMIT);
    assert_int_equal(strata_session_tokens(s, NULL), 10);
    strata_session_free(s);
    strata_engine_free(e);
}

static void bf16_matrices_give_the_same_bits_as_f32(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_convert_report report;
    char source[PATH_SIZE];
    const char *path = work_path("bf16.gguf");
    struct st_convert_options c = {.dir = unpacked(source, "tiny-model", ""), .out = path, .type = ST_CONVERT_SOURCE};
    assert_ok(st_convert(&c, &report, &err), &err);
    struct strata_model *wide = f.model;
    float *logits[2];
    for (int i = 0; i < 2; i++) {
        if (i == 1)
            assert_ok(strata_model_open(path, &f.model, &err), &err);
        struct strata_engine *e = engine(16, 2, false);
        struct strata_session *s = session(e);
        logits[i] = malloc(37 * (size_t)e->dims.vocabulary * sizeof(float));
        assert_ok(strata_session_eval(s, ids_of(37), 37, true, logits[i], &err), &err);
        if (i == 1)
            assert_memory_equal(logits[0], logits[1], 37 * (size_t)e->dims.vocabulary * sizeof(float));
        strata_session_free(s);
        strata_engine_free(e);
    }
    strata_model_free(f.model);
    f.model = wide;
    free(logits[0]);
    free(logits[1]);
}

static int setup(void **state)
{
    struct strata_error err = {0};
    struct st_convert_report report;
    char source[PATH_SIZE], values[PATH_SIZE];
    if (make_work(state))
        return -1;
    f.draft = strdup(work_path("draft.gguf"));
    struct st_convert_options c = {.dir = unpacked(source, "tiny-model", ""),
                                   .out = work_path("trunk.gguf"),
                                   .mtp_out = f.draft,
                                   .type = ST_CONVERT_F32};
    if (st_convert(&c, &report, &err) || st_safetensors_create(&f.golden, &err) ||
        st_safetensors_add(f.golden, unpacked(values, "tiny-model", "golden.safetensors"), &err) ||
        strata_model_open(c.out, &f.model, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return -1;
    }
    return 0;
}

static int teardown(void **state)
{
    strata_model_free(f.model);
    st_safetensors_free(f.golden);
    free(f.draft);
    return remove_work(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_of_every_prompt_for_every_chunk_size),
        cmocka_unit_test(residuals_after_every_layer),
        cmocka_unit_test(greedy_tokens_go_on_into_the_sparse_range),
        cmocka_unit_test(draft_logits_of_every_row),
        cmocka_unit_test(image_prompt_from_embeddings_and_positions),
        cmocka_unit_test(saved_state_goes_on_bit_for_bit),
        cmocka_unit_test(damaged_session_files_change_nothing),
        cmocka_unit_test(two_conversations_do_not_touch_each_other),
        cmocka_unit_test(bad_requests_are_refused_before_anything_is_computed),
        cmocka_unit_test(bf16_matrices_give_the_same_bits_as_f32),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
