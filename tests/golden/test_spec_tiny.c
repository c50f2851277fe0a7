/* The second miniature model: expected values in FP64 for BF16 and for mixed quantised types, text and image-like
 * positions, draft rows with both norms. FP32 activations; residuals, experts, index blocks, n-gram rows and logits.
 *
 * test_spec_tiny: test C, whose files are committed. test_spec_tiny large: tests A, B and D from $STRATA_FIXTURES. */
#include "test.h"

#include <math.h>

#include "engine/engine.h"
#include "fixture.h"
#include "format/gguf_write.h"

enum { TOKENS = 48, LAYERS = 8, VOCABULARY = 160, USED = 3, BLOCKS = 8, WIDE = 512 };

static const float tolerance = 2e-4f;

static char dir[PATH_SIZE], *golden;

/* ---- what the engine computed ---- */

struct pass {
    float residual[LAYERS][TOKENS][WIDE], logits[TOKENS][VOCABULARY];
    int32_t expert[TOKENS][LAYERS][USED];
    int32_t block[TOKENS][LAYERS][BLOCKS], blocks[TOKENS][LAYERS]; /* -1 blocks: all positions */
    uint64_t ngram[TOKENS][8];
};

/* Table entries that also write down what routing and selection chose. */
static struct {
    struct st_kernels real;
    const struct st_ngram_hash *hash;
    const struct st_rows *rows;
    struct pass *to;
} record;

static int32_t layer_of(const void *argument)
{
    const struct st_command *c = (const void *)((const char *)argument - offsetof(struct st_command, u));
    return c->layer;
}

static void record_route(const struct st_kernels *k, const struct st_route *a, struct st_worker *w)
{
    record.real.route(k, a, w);
    for (int32_t r = 0; w->index == 0 && r < *a->n; r++)
        memcpy(record.to->expert[record.rows->pos[r]][layer_of(a)], a->to->expert + r * USED, USED * sizeof(int32_t));
}

static void record_qsa(const struct st_kernels *k, const struct st_qsa *a, struct st_worker *w)
{
    record.real.qsa(k, a, w);
    for (int32_t r = 0; w->index == 0 && r < record.rows->n; r++) {
        int32_t pos = record.rows->pos[r], count = a->chosen_count[r], tail = (pos + 1) % (int32_t)a->ratio;
        const uint32_t *chosen = a->chosen + (size_t)r * (a->budget + a->ratio);
        int32_t *blocks = &record.to->blocks[pos][layer_of(a)];
        *blocks = count < 0 ? -1 : (count - tail) / (int32_t)a->ratio;
        assert_true(*blocks <= BLOCKS);
        for (int32_t i = 0; i < count; i++) {
            uint32_t want = i < count - tail ? chosen[i / 4 * 4] + (uint32_t)i % 4 : (uint32_t)(pos + 1 - count + i);
            assert_int_equal(chosen[i], want); /* whole blocks, then the tail up to the row itself */
            if (i < count - tail)
                record.to->block[pos][layer_of(a)][i / 4] = (int32_t)chosen[i] / 4;
        }
    }
}

static void record_gather(const struct st_kernels *k, const struct st_ngram_gather *a, struct st_worker *w)
{
    record.real.ngram_gather(k, a, w);
    for (int32_t r = 0; w->index == 0 && r < a->rows->n; r++)
        st_ngram_rows(record.hash, a->rows->token[r], a->rows->history + r * ST_HISTORY,
                      record.to->ngram[a->rows->pos[r]]);
}

struct test {
    const char *text; /* the section of golden.txt */
    int32_t ids[TOKENS], axis[TOKENS][3];
    struct strata_model *model;
};

static struct strata_engine *engine(const struct test *t, uint32_t prefill, int threads, const char *draft,
                                    enum strata_mtp_norm norm)
{
    struct strata_error err;
    struct strata_engine *e;
    struct strata_engine_options o = {.threads = threads,
                                      .context = 64,
                                      .prefill = prefill,
                                      .kv = STRATA_KV_F32,
                                      .fp32 = true,
                                      .mtp_path = draft,
                                      .mtp_norm = norm};
    assert_ok(strata_engine_create(t->model, &o, &e, &err), &err);
    assert_int_equal(e->dims.vocabulary, VOCABULARY);
    assert_int_equal(e->dims.wide, WIDE);
    assert_int_equal(e->dims.layers, LAYERS);
    return e;
}

/* All tokens, step at a time, in chunks of the engine's prefill. */
static void compute(const struct test *t, struct strata_engine *e, size_t step, struct pass *p)
{
    struct strata_error err;
    struct strata_session *s;
    record.real = e->kernels;
    record.rows = &e->rows;
    record.hash = e->ngram.hash;
    record.to = p;
    e->kernels.route = record_route;
    e->kernels.qsa = record_qsa;
    e->kernels.ngram_gather = record_gather;
    assert_ok(strata_session_create(e, &s, &err), &err);
    float *residuals = malloc(LAYERS * step * WIDE * sizeof *residuals);
    for (size_t at = 0; at < TOKENS; at += step) {
        struct st_input in = {.ids = t->ids + at, .count = step, .axis = t->axis[at]};
        struct st_output out = {.logits = p->logits[at], .all_logits = true, .residuals = residuals};
        assert_ok(st_session_eval(s, &in, &out, &err), &err);
        for (size_t i = 0; i < LAYERS; i++)
            memcpy(p->residual[i][at], residuals + i * step * WIDE, step * WIDE * sizeof *residuals);
    }
    free(residuals);
    strata_session_free(s);
    e->kernels = record.real;
}

/* ---- what golden.txt says ---- */

/* Copies the section that begins with a title; freed by the caller. */
static char *section(const char *title)
{
    char *start = strstr(golden, title);
    char *end = start ? strstr(start, "\n###") : NULL;
    if (!start)
        fail_msg("golden.txt has no section '%s'", title);
    return end ? strndup(start, (size_t)(end + 1 - start)) : strdup(start ? start : "");
}

/* Reads one number and what follows it of any of the characters in skip. */
static double number(const char **p, const char *skip)
{
    char *end;
    double v = strtod(*p, &end);
    if (end == *p)
        fail_msg("golden.txt: no number at '%.40s'", *p);
    *p = end + strspn(end, skip);
    return v;
}

static const char *after(const char *line, const char *word)
{
    const char *p = strstr(line, word);
    if (!p)
        fail_msg("golden.txt: no '%s' in '%.60s'", word, line);
    return p ? p + strlen(word) : line;
}

static void near(float got, double want, const char *line)
{
    if (!(fabs((double)got - want) <= (double)tolerance))
        fail_msg("%g instead of %g: %.70s", (double)got, want, line);
}

static void rms_near(const float *r, double want, const char *line)
{
    double sum = 0;
    for (size_t i = 0; i < WIDE; i++)
        sum += (double)r[i] * (double)r[i];
    near((float)sqrt(sum / WIDE), want, line);
}

static void check_residual(const struct pass *p, size_t pos, const char *line)
{
    const char *s = after(line, "after_layer ");
    size_t layer = (size_t)number(&s, ": ");
    assert_in_range(layer, 0, LAYERS - 1);
    const float *r = p->residual[layer][pos];
    s = after(line, "rms ");
    rms_near(r, number(&s, " "), line);
    s = after(line, "first4_of_stream0 ");
    for (size_t i = 0; i < 4; i++)
        near(r[i], number(&s, " "), line);
    s = after(line, "first2_of_stream3 ");
    for (size_t i = 0; i < 2; i++)
        near(r[3 * WIDE / 4 + i], number(&s, " "), line);
}

static void check_experts(const struct pass *p, size_t pos, const char *line)
{
    const char *s = after(line, ": ");
    for (size_t layer = 0; layer < LAYERS; layer++) {
        s = after(s, "L");
        assert_int_equal((size_t)number(&s, " "), layer);
        for (size_t i = 0; i < USED; i++)
            if (p->expert[pos][layer][i] != (int32_t)number(&s, ", "))
                fail_msg("layer %zu took expert %d as number %zu: %.70s", layer, p->expert[pos][layer][i], i, line);
    }
}

static void check_blocks(const struct pass *p, size_t pos, const char *line)
{
    if (strstr(line, "dense")) {
        assert_int_equal(p->blocks[pos][3], -1);
        assert_int_equal(p->blocks[pos][7], -1);
        return;
    }
    const char *s = after(line, ": ");
    for (int k = 0; k < 2; k++) {
        s = after(s, "L");
        size_t layer = (size_t)number(&s, " ");
        assert_int_equal(layer, k ? 7 : 3);
        assert_int_equal(p->blocks[pos][layer], 4);
        for (size_t i = 0; i < 4; i++)
            if (p->block[pos][layer][i] != (int32_t)number(&s, ", "))
                fail_msg("layer %zu took block %d as number %zu: %.70s", layer, p->block[pos][layer][i], i, line);
    }
}

static void check_top(const struct pass *p, size_t pos, const char *line)
{
    const char *s = after(line, ": ");
    bool listed[VOCABULARY] = {false};
    double least = INFINITY;
    for (int i = 0; i < 3; i++) {
        size_t id = (size_t)number(&s, ":");
        assert_in_range(id, 0, VOCABULARY - 1);
        least = number(&s, " ");
        near(p->logits[pos][id], least, line);
        listed[id] = true;
    }
    for (size_t id = 0; id < VOCABULARY; id++)
        if (!listed[id])
            assert_true((double)p->logits[pos][id] <= least + (double)tolerance);
}

static void check_all_logits(const float *got, const char *s, const char *line)
{
    for (size_t i = 0; i < VOCABULARY; i++)
        near(got[i], number(&s, " "), line);
}

static void read_head(struct test *t, const char *title)
{
    t->text = section(title);
    const char *s = after(t->text, "\ntokens ");
    for (size_t i = 0; i < TOKENS; i++)
        t->ids[i] = (int32_t)number(&s, " ");
    s = after(t->text, "\npositions ");
    bool text = strstr(s, "on all three axes") != NULL;
    for (size_t i = 0; i < TOKENS; i++)
        for (size_t k = 0; k < 3; k++)
            t->axis[i][k] = text ? (int32_t)i : (int32_t)number(&s, k < 2 ? "," : " ");
}

/* Compares a pass with every line of the section; the number of lines of each kind must be what the file has. */
static void check(const struct test *t, const struct pass *p)
{
    int residuals = 0, experts = 0, blocks = 0, tops = 0, logits = 0, ngrams = 0;
    char *text = strdup(t->text), *rest = text;
    for (char *line; (line = strsep(&rest, "\n"));) {
        const char *at = strstr(line, " pos ");
        if (!at)
            continue;
        at += 5;
        size_t pos = (size_t)number(&at, ": ");
        assert_in_range(pos, 0, TOKENS - 1);
        if (!strncmp(line, "residual ", 9)) {
            check_residual(p, pos, line);
            residuals++;
        } else if (!strncmp(line, "experts ", 8)) {
            check_experts(p, pos, line);
            experts++;
        } else if (!strncmp(line, "qsa_blocks ", 11)) {
            check_blocks(p, pos, line);
            blocks++;
        } else if (!strncmp(line, "top3 ", 5)) {
            check_top(p, pos, line);
            tops++;
        } else if (!strncmp(line, "logits ", 7)) {
            check_all_logits(p->logits[pos], at, line);
            logits++;
        } else if (!strncmp(line, "ple_rows ", 9)) {
            for (size_t h = 0; h < 4; h++)
                assert_int_equal(p->ngram[pos][h], (uint64_t)number(&at, " "));
            ngrams++;
        } else {
            fail_msg("golden.txt: unknown line '%.60s'", line);
        }
    }
    free(text);
    assert_int_equal(residuals, 5 * LAYERS);
    assert_int_equal(experts, 5);
    assert_int_equal(blocks, 6);
    assert_int_equal(tops, TOKENS);
    assert_int_equal(logits, 4);
    assert_int_equal(ngrams, 10);
}

static void open_model(struct test *t, const char *name)
{
    struct strata_error err;
    char path[2 * PATH_SIZE];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_ok(strata_model_open(path, &t->model, &err), &err);
}

/* Token by token, and in chunks, on one to three workers. */
static void trunk(const char *title, const char *file)
{
    static const size_t steps[] = {1, 3, 16, TOKENS};
    struct test t = {0};
    read_head(&t, title);
    open_model(&t, file);
    struct pass *p = malloc(sizeof *p);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        struct strata_engine *e = engine(&t, (uint32_t)steps[i], 1 + (int)i % 3, NULL, STRATA_MTP_NORM_FILE);
        compute(&t, e, steps[i], p);
        check(&t, p);
        strata_engine_free(e);
    }
    free(p);
    free((char *)t.text);
    strata_model_free(t.model);
}

static void a_text_in_bf16(void **state)
{
    (void)state;
    trunk("### TEST A", "tiny-qwen4exp-bf16.gguf");
}

static void b_image_like_positions(void **state)
{
    (void)state;
    trunk("### TEST B", "tiny-qwen4exp-bf16.gguf");
}

static void c_mixed_types_in_two_shards(void **state)
{
    (void)state;
    trunk("### TEST C", "tiny-qwen4exp-quant-00001-of-00002.gguf");
    /* Any shard names the model. */
    trunk("### TEST C", "tiny-qwen4exp-quant-00002-of-00002.gguf");
}

/* The vocabulary of these files is a dummy with a merge of things that are no tokens. */
static void c_text_is_refused_with_the_reason_where_the_vocabulary_is_broken(void **state)
{
    (void)state;
    struct strata_error err;
    struct test t = {0};
    int32_t *ids;
    size_t count;
    open_model(&t, "tiny-qwen4exp-quant-00001-of-00002.gguf");
    assert_int_equal(strata_tokenize(t.model, "t", 1, false, &ids, &count, &err), STRATA_E_FORMAT);
    assert_non_null(strstr(err.text, "merge 0"));
    assert_non_null(strstr(err.text, "tiny-qwen4exp-quant-00001-of-00002.gguf"));
    strata_model_free(t.model);
}

static size_t best(const float *logits)
{
    size_t at = 0;
    for (size_t i = 1; i < VOCABULARY; i++)
        at = logits[i] > logits[at] ? i : at;
    return at;
}

static void check_draft_row(const float *wide, const float *logits, const char *line, const char *next)
{
    const char *s = after(line, "R_rms ");
    rms_near(wide, number(&s, " "), line);
    s = after(line, "R_first4 ");
    for (size_t i = 0; i < 4; i++)
        near(wide[i], number(&s, " "), line);
    check_all_logits(logits, after(next, "logits "), line);
}

static void draft(const char *title, const char *file, enum strata_mtp_norm norm)
{
    struct strata_error err;
    struct test a = {0};
    read_head(&a, "### TEST A");
    open_model(&a, "tiny-qwen4exp-bf16.gguf");
    struct strata_engine *e = engine(&a, 16, 2, file, norm);
    struct strata_session *s;
    struct pass *p = malloc(sizeof *p);
    compute(&a, e, TOKENS / 3, p);
    float(*wide)[WIDE] = p->residual[LAYERS - 1], logits[TOKENS][VOCABULARY], out[TOKENS][WIDE];
    assert_ok(strata_session_create(e, &s, &err), &err);
    assert_ok(st_session_draft(s, 0, a.ids + 1, wide[0], TOKENS - 1, logits[0], out[0], &err), &err);
    char *text = section(title), *rest = text;
    int rows = 0, steps = 0;
    int32_t id = (int32_t)best(p->logits[TOKENS - 1]);
    float step_in[WIDE], step_out[WIDE], step_logits[VOCABULARY];
    memcpy(step_in, wide[TOKENS - 1], sizeof step_in);
    for (char *line; (line = strsep(&rest, "\n"));) {
        if (!strncmp(line, "mtp_row ", 8)) {
            const char *at = line + 8;
            size_t row = (size_t)number(&at, ": ");
            assert_in_range(row, 0, TOKENS - 2);
            check_draft_row(out[row], logits[row], line, strsep(&rest, "\n"));
            rows++;
        } else if (!strncmp(line, "draft step ", 11)) {
            const char *at = after(line, "input_token ");
            assert_int_equal(id, (int32_t)number(&at, " "));
            assert_ok(st_session_draft(s, TOKENS - 1 + (uint32_t)steps, &id, step_in, 1, step_logits, step_out, &err),
                      &err);
            memcpy(step_in, step_out, sizeof step_in);
            id = (int32_t)best(step_logits);
            at = after(line, "argmax ");
            assert_int_equal(id, (int32_t)number(&at, " "));
            check_all_logits(step_logits, after(line, "logits "), line);
            steps++;
        }
    }
    assert_int_equal(rows, 7);
    assert_int_equal(steps, 3);
    free(text);
    free(p);
    free((char *)a.text);
    strata_session_free(s);
    strata_engine_free(e);
    strata_model_free(a.model);
}

static const char draft_file[] = "tiny-qwen4exp-mtp.gguf", full[] = "### TEST D MTP, hnorm over the full vector",
                  per_stream[] = "### TEST D MTP, hnorm per stream";

static void d_draft_rows_with_the_norm_over_the_full_vector(void **state)
{
    (void)state;
    char path[2 * PATH_SIZE];
    snprintf(path, sizeof path, "%s/%s", dir, draft_file);
    draft(full, path, STRATA_MTP_NORM_FILE);
    draft(full, path, STRATA_MTP_NORM_FULL);
}

static enum strata_result copy_tensor(void *user, struct st_out *out, struct strata_error *err)
{
    const struct st_gguf_tensor *t = user;
    return st_out_write(out, t->data, (size_t)t->bytes, err);
}

/* The norm comes from the option, or from the key of a file that was written with it; the option wins over the key. */
static void d_draft_rows_with_the_norm_per_stream(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_gguf *g;
    struct st_gguf_writer *w;
    char path[2 * PATH_SIZE];
    const char *marked = work_path("per-stream.gguf");
    snprintf(path, sizeof path, "%s/%s", dir, draft_file);
    draft(per_stream, path, STRATA_MTP_NORM_PER_STREAM);
    assert_ok(st_gguf_open(path, &g, &err), &err);
    assert_ok(st_gguf_writer_create(&w, &err), &err);
    for (size_t i = 0; i < g->n_keys; i++)
        st_gguf_set_copy(w, &g->keys[i]);
    st_gguf_set_bool(w, "qwen4exp.nextn_hnorm_per_stream", true);
    for (size_t i = 0; i < g->n_tensors; i++)
        st_gguf_add_tensor(w, g->tensors[i].name, g->tensors[i].type, g->tensors[i].n_dims, g->tensors[i].ne,
                           copy_tensor, &g->tensors[i]);
    assert_ok(st_gguf_writer_save(w, marked, &err), &err);
    st_gguf_writer_free(w);
    st_gguf_close(g);
    draft(per_stream, marked, STRATA_MTP_NORM_FILE);
    draft(full, marked, STRATA_MTP_NORM_FULL);
}

static int setup(void **state)
{
    struct strata_error err;
    char path[2 * PATH_SIZE];
    size_t size;
    snprintf(path, sizeof path, "%s/golden.txt", dir);
    if (make_work(state) || st_read_file(path, 1 << 20, &golden, &size, &err))
        return -1;
    return 0;
}

static int teardown(void **state)
{
    free(golden);
    return remove_work(state);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest committed[] = {
        cmocka_unit_test(c_mixed_types_in_two_shards),
        cmocka_unit_test(c_text_is_refused_with_the_reason_where_the_vocabulary_is_broken),
    };
    const struct CMUnitTest large[] = {
        cmocka_unit_test(a_text_in_bf16),
        cmocka_unit_test(b_image_like_positions),
        cmocka_unit_test(d_draft_rows_with_the_norm_over_the_full_vector),
        cmocka_unit_test(d_draft_rows_with_the_norm_per_stream),
    };
    if (argc < 2) {
        unpacked(dir, "spec-tiny-c", "");
        return cmocka_run_group_tests(committed, setup, teardown);
    }
    const char *fixtures = getenv("STRATA_FIXTURES");
    if (strcmp(argv[1], "large") || !fixtures) {
        fprintf(stderr, "usage: test_spec_tiny [large], the latter with STRATA_FIXTURES set\n");
        return 2;
    }
    snprintf(dir, sizeof dir, "%s/spec/tiny", fixtures);
    return cmocka_run_group_tests(large, setup, teardown);
}
