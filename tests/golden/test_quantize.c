/* Rewriting the types of GGUF files: which tensors change and to what, exact widening, equal results for any number of
 * threads, shards joined, and no file from a source with values that are not finite. */
#include "test.h"

#include <math.h>

#include "golden/fixture.h"

#include "format/gguf_write.h"
#include "format/quant.h"
#include "model/convert.h"
#include "model/quantize.h"

static const char *trunk;

static struct st_gguf *open_file(const char *path)
{
    struct strata_error err;
    struct st_gguf *g;
    assert_ok(st_gguf_open(path, &g, &err), &err);
    return g;
}

static void quantize(const char *in, const char *out, int type, const struct st_quantize_rule *rules, size_t n, int threads)
{
    struct strata_error err;
    const struct st_quantize_options o = {
        .in = in, .out = out, .type = type, .rules = rules, .n_rules = n, .threads = threads};
    assert_ok(st_quantize(&o, &err), &err);
}

static int type_of(const struct st_gguf *g, const char *name)
{
    const struct st_gguf_tensor *t = st_gguf_tensor(g, name);
    assert_non_null(t);
    return (int)t->type;
}

static float *values(const struct st_gguf_tensor *t)
{
    size_t n = (size_t)st_gguf_elements(t);
    float *v = malloc(n * sizeof *v);
    assert_non_null(v);
    st_type_info((int)t->type)->decode(t->data, v, n);
    return v;
}

static void rules_win_and_vectors_routers_and_convolutions_stay(void **state)
{
    (void)state;
    static const struct st_quantize_rule rules[] = {{"blk\\.0\\.attn_qkv", ST_TYPE_F16},
                                                    {"attn_(qkv|gate)", ST_TYPE_Q4_0},
                                                    {"^blk\\.1\\.ffn_gate_inp\\.", ST_TYPE_BF16}};
    quantize(trunk, work_path("a"), ST_TYPE_Q8_0, rules, 3, 2);
    struct st_gguf *g = open_file(work_path("a")), *source = open_file(trunk);
    assert_int_equal(type_of(g, "blk.0.attn_qkv.weight"), ST_TYPE_F16);
    assert_int_equal(type_of(g, "blk.1.attn_qkv.weight"), ST_TYPE_Q4_0);
    assert_int_equal(type_of(g, "blk.1.ffn_gate_inp.weight"), ST_TYPE_BF16);
    assert_int_equal(type_of(g, "blk.2.ffn_gate_inp.weight"), ST_TYPE_F32);
    assert_int_equal(type_of(g, "blk.2.ffn_gate_inp_shexp.weight"), ST_TYPE_F32);
    assert_int_equal(type_of(g, "blk.2.ssm_conv1d.weight"), ST_TYPE_F32);
    assert_int_equal(type_of(g, "blk.2.hc_attn_norm.weight"), ST_TYPE_F32);
    assert_int_equal(type_of(g, "blk.2.ssm_a"), ST_TYPE_F32);
    assert_int_equal(type_of(g, "token_embd.weight"), ST_TYPE_Q8_0);
    assert_int_equal(g->n_tensors, source->n_tensors);
    for (size_t i = 0; i < source->n_keys; i++) {
        const struct st_gguf_key *a = &source->keys[i], *b = st_gguf_key(g, a->name);
        if (!strcmp(a->name, "general.file_type"))
            continue;
        assert_non_null(b);
        assert_int_equal(a->bytes, b->bytes);
        assert_memory_equal(a->data, b->data, a->bytes);
    }
    st_gguf_close(g);
    st_gguf_close(source);
}

static void rows_that_cannot_hold_a_type_get_the_next_one_that_fits(void **state)
{
    (void)state;
    static const struct {
        int type, by_row_128, by_row_64, by_row_24;
    } cases[] = {
        {ST_TYPE_Q2_0, ST_TYPE_Q2_0, ST_TYPE_Q2_0, ST_TYPE_BF16},
        {ST_TYPE_Q6_K, ST_TYPE_Q8_0, ST_TYPE_Q8_0, ST_TYPE_BF16},
        {ST_TYPE_Q8_0, ST_TYPE_Q8_0, ST_TYPE_Q8_0, ST_TYPE_BF16},
        {ST_TYPE_F16, ST_TYPE_F16, ST_TYPE_F16, ST_TYPE_F16},
        {ST_TYPE_IQ3_XXS, ST_TYPE_IQ4_NL, ST_TYPE_IQ4_NL, ST_TYPE_BF16},
        {ST_TYPE_Q4_K, ST_TYPE_IQ4_NL, ST_TYPE_IQ4_NL, ST_TYPE_BF16},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        quantize(trunk, work_path("b"), cases[i].type, NULL, 0, 1);
        struct st_gguf *g = open_file(work_path("b"));
        assert_int_equal(type_of(g, "blk.3.attn_q.weight"), cases[i].by_row_128);
        assert_int_equal(type_of(g, "blk.0.ffn_down_exps.weight"), cases[i].by_row_64);
        assert_int_equal(type_of(g, "blk.0.hc_attn_up.weight"), cases[i].by_row_24);
        st_gguf_close(g);
    }
    quantize(trunk, work_path("b"), ST_TYPE_IQ3_XXS, NULL, 0, 1);
    struct st_gguf *g = open_file(work_path("b"));
    assert_int_equal(type_of(g, "output_hc_down.weight"), ST_TYPE_IQ3_XXS); /* rows of 512 */
    st_gguf_close(g);
}

static void widening_is_exact_and_rounding_errors_are_measured(void **state)
{
    (void)state;
    quantize(trunk, work_path("narrow"), ST_TYPE_Q8_0, NULL, 0, 1);
    quantize(work_path("narrow"), work_path("wide"), ST_TYPE_F32, NULL, 0, 2);
    struct st_gguf *source = open_file(trunk), *narrow = open_file(work_path("narrow")), *wide = open_file(work_path("wide"));
    for (size_t i = 0; i < source->n_tensors; i++) {
        const struct st_gguf_tensor *t = &source->tensors[i];
        size_t n = (size_t)st_gguf_elements(t);
        float *a = values(t), *b = values(st_gguf_tensor(narrow, t->name)), *c = values(st_gguf_tensor(wide, t->name));
        assert_memory_equal(b, c, n * sizeof *b);
        double error = 0, square = 0;
        for (size_t k = 0; k < n; k++) {
            error += (double)(a[k] - b[k]) * (double)(a[k] - b[k]);
            square += (double)a[k] * (double)a[k];
        }
        assert_true(sqrt(error) <= 0.01 * sqrt(square));
        free(a);
        free(b);
        free(c);
    }
    st_gguf_close(source);
    st_gguf_close(narrow);
    st_gguf_close(wide);
}

static void the_number_of_threads_does_not_change_a_byte(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_map a, b;
    quantize(trunk, work_path("t1"), ST_TYPE_IQ4_NL, NULL, 0, 1);
    quantize(trunk, work_path("t3"), ST_TYPE_IQ4_NL, NULL, 0, 3);
    assert_ok(st_map_open(work_path("t1"), &a, &err), &err);
    assert_ok(st_map_open(work_path("t3"), &b, &err), &err);
    assert_int_equal(a.size, b.size);
    assert_memory_equal(a.data, b.data, a.size);
    st_map_close(&a);
    st_map_close(&b);
}

static void shards_are_joined_to_one_file(void **state)
{
    (void)state;
    char path[PATH_SIZE];
    unpacked(path, "spec-tiny-c", "tiny-qwen4exp-quant-00002-of-00002.gguf");
    quantize(path, work_path("joined"), ST_TYPE_F32, NULL, 0, 2);
    struct st_gguf *a = open_file(path), *b = open_file(work_path("joined"));
    assert_int_equal(a->n_shards, 2);
    assert_int_equal(b->n_shards, 1);
    assert_int_equal(b->n_tensors, 214);
    assert_null(st_gguf_key(b, "split.count"));
    for (size_t i = 0; i < a->n_tensors; i++) {
        const struct st_gguf_tensor *t = &a->tensors[i];
        float *x = values(t), *y = values(st_gguf_tensor(b, t->name));
        assert_memory_equal(x, y, st_gguf_elements(t) * sizeof *x);
        free(x);
        free(y);
    }
    st_gguf_close(a);
    st_gguf_close(b);
}

static enum strata_result fill(void *user, struct st_out *out, struct strata_error *err)
{
    return st_out_write(out, user, 256, err);
}

static void refusals_name_what_is_wrong_and_leave_no_file(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_gguf_writer *w;
    float v[64] = {1, 2, INFINITY};
    assert_ok(st_gguf_writer_create(&w, &err), &err);
    st_gguf_add_tensor(w, "blk.0.bad", ST_TYPE_F32, 2, (const uint64_t[]){32, 2}, fill, v);
    assert_ok(st_gguf_writer_save(w, work_path("inf"), &err), &err);
    st_gguf_writer_free(w);
    const struct st_quantize_rule broken = {"(", ST_TYPE_Q8_0}, unwritable = {"x", 4};
    const struct {
        struct st_quantize_options o;
        enum strata_result code;
        const char *names;
    } cases[] = {
        {{.in = work_path("inf"), .type = ST_TYPE_Q8_0, .threads = 1}, STRATA_E_MODEL, "blk.0.bad"},
        {{.in = trunk, .type = ST_TYPE_Q8_0, .threads = 1, .rules = &broken, .n_rules = 1}, STRATA_E_ARGUMENT, "pattern ("},
        {{.in = trunk, .type = ST_TYPE_Q8_0, .threads = 1, .rules = &unwritable, .n_rules = 1}, STRATA_E_ARGUMENT, "type"},
        {{.in = trunk, .type = 5, .threads = 1}, STRATA_E_ARGUMENT, "type"},
        {{.in = "/nowhere/file.gguf", .type = ST_TYPE_Q8_0, .threads = 1}, STRATA_E_IO, "/nowhere/file.gguf"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct st_quantize_options o = cases[i].o;
        o.out = work_path("none");
        enum strata_result r = st_quantize(&o, &err);
        if (r != cases[i].code || !strstr(err.text, cases[i].names))
            fail_msg("case %zu: %s: %s", i, strata_result_name(r), err.text);
        assert_int_not_equal(access(work_path("none"), F_OK), 0);
    }
}

static int set_up(void **state)
{
    struct strata_error err;
    struct st_convert_report report;
    char model[PATH_SIZE];
    if (make_work(state))
        return -1;
    trunk = strdup(work_path("trunk.gguf"));
    struct st_convert_options o = {.dir = unpacked(model, "tiny-model", ""), .out = trunk, .type = ST_CONVERT_F32};
    return st_convert(&o, &report, &err);
}

static int tear_down(void **state)
{
    free((char *)trunk);
    return remove_work(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules_win_and_vectors_routers_and_convolutions_stay),
        cmocka_unit_test(rows_that_cannot_hold_a_type_get_the_next_one_that_fits),
        cmocka_unit_test(widening_is_exact_and_rounding_errors_are_measured),
        cmocka_unit_test(the_number_of_threads_does_not_change_a_byte),
        cmocka_unit_test(shards_are_joined_to_one_file),
        cmocka_unit_test(refusals_name_what_is_wrong_and_leave_no_file),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
