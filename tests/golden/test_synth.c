/* Random models: the real shape and its sizes to the byte, equal seeds give equal files, and every type has values in range. */
#include "test.h"

#include <math.h>

#include "format/gguf.h"
#include "format/quant.h"
#include "golden/fixture.h"
#include "model/synth.h"

static struct st_gguf *make(struct st_synth_options o, const char *name)
{
    struct strata_error err;
    struct st_synth_report report;
    struct st_gguf *g;
    o.out = work_path(name);
    assert_ok(st_synth(&o, &report, &err), &err);
    assert_ok(st_gguf_open(o.out, &g, &err), &err);
    assert_int_equal(report.tensors, g->n_tensors);
    assert_int_equal(report.bytes, g->shards[0].map.size);
    return g;
}

static void assert_shape(const struct st_gguf *g, const char *name, int type, uint64_t ne0, uint64_t ne1, uint64_t ne2)
{
    const struct st_gguf_tensor *t = st_gguf_tensor(g, name);
    if (!t || (int)t->type != type || t->ne[0] != ne0 || t->ne[1] != ne1 || t->ne[2] != ne2)
        fail_msg("tensor %s is missing or has another type or shape", name);
}

static void the_real_shape_has_the_released_names_sizes_and_constants(void **state)
{
    (void)state;
    struct strata_error err;
    int64_t *sizes;
    size_t n;
    struct st_gguf *g = make((struct st_synth_options){.type = ST_TYPE_Q2_0, .header_only = true}, "real");
    assert_int_equal(g->n_tensors, 1224);
    assert_shape(g, "per_layer_token_embd.weight", ST_TYPE_IQ4_NL, 160, 320001536, 1);
    assert_int_equal(st_gguf_tensor(g, "per_layer_token_embd.weight")->bytes, 28800138240);
    assert_shape(g, "token_embd.weight", ST_TYPE_Q3_K, 2560, 248320, 1);
    assert_shape(g, "blk.47.attn_q.weight", ST_TYPE_Q6_K, 2560, 12288, 1);
    assert_shape(g, "blk.46.attn_qkv.weight", ST_TYPE_Q6_K, 2560, 10240, 1);
    assert_shape(g, "blk.0.ffn_gate_exps.weight", ST_TYPE_Q2_0, 2560, 640, 512);
    assert_shape(g, "blk.0.ffn_down_exps.weight", ST_TYPE_Q2_0, 640, 2560, 512);
    assert_shape(g, "blk.0.hc_attn_up.weight", ST_TYPE_BF16, 320, 10240, 1);
    assert_shape(g, "blk.3.indexer.k_proj.weight", ST_TYPE_BF16, 2560, 128, 1);
    assert_shape(g, "blk.1.ple_key.weight", ST_TYPE_Q6_K, 2560, 10240, 1);
    assert_shape(g, "blk.0.ffn_gate_inp.weight", ST_TYPE_F32, 2560, 512, 1);
    assert_shape(g, "blk.0.ssm_conv1d.weight", ST_TYPE_F32, 4, 10240, 1);
    assert_ok(st_gguf_ints(g, "qwen4exp.ple.layer_multipliers", &sizes, &n, &err), &err);
    assert_true(n == 3 && sizes[0] == 23703573157769 && sizes[1] == 20109073645365 && sizes[2] == 8052911324071);
    free(sizes);
    assert_ok(st_gguf_ints(g, "qwen4exp.ple.head_vocab_sizes", &sizes, &n, &err), &err);
    assert_true(n == 16 && sizes[0] == 20000003 && sizes[7] == 20000077 && sizes[15] == 20000171);
    free(sizes);
    st_gguf_close(g);
}

static void equal_seeds_give_equal_files_and_others_do_not(void **state)
{
    (void)state;
    struct st_synth_options o = {.type = ST_TYPE_IQ4_NL, .layers = 1, .experts = 2, .vocabulary = 512, .seed = 5};
    struct st_gguf *a = make(o, "a"), *b = make(o, "b");
    o.seed = 6;
    struct st_gguf *c = make(o, "c");
    assert_int_equal(a->shards[0].map.size, b->shards[0].map.size);
    assert_memory_equal(a->shards[0].map.data, b->shards[0].map.data, a->shards[0].map.size);
    for (size_t i = 0; i < a->n_tensors; i++)
        assert_int_not_equal(memcmp(a->tensors[i].data, c->tensors[i].data, a->tensors[i].bytes), 0);
    st_gguf_close(a);
    st_gguf_close(b);
    st_gguf_close(c);
}

static void any_number_of_threads_gives_the_same_file(void **state)
{
    (void)state;
    for (int mixed = 0; mixed < 2; mixed++) { /* types with an encoder, and IQ1_M, which has none */
        struct st_synth_options o = {.type = ST_TYPE_IQ1_M, .layers = 1, .experts = 6, .vocabulary = 512, .mixed = mixed, .threads = 1};
        struct st_gguf *a = make(o, "one");
        o.threads = 5;
        struct st_gguf *b = make(o, "five");
        assert_int_equal(a->shards[0].map.size, b->shards[0].map.size);
        assert_memory_equal(a->shards[0].map.data, b->shards[0].map.data, a->shards[0].map.size);
        st_gguf_close(a);
        st_gguf_close(b);
    }
}

static void every_type_has_finite_values_of_the_wanted_size(void **state)
{
    (void)state;
    for (int type = 0; type < ST_TYPE_COUNT; type++) {
        if (!st_type_info(type))
            continue;
        struct st_gguf *g = make((struct st_synth_options){.type = type, .layers = 1, .experts = 1, .vocabulary = 512}, "t");
        const struct st_gguf_tensor *t = st_gguf_tensor(g, "blk.0.ffn_gate_exps.weight");
        size_t n = (size_t)st_gguf_elements(t);
        float *v = malloc(n * sizeof *v);
        assert_int_equal(t->type, type);
        st_type_info(type)->decode(t->data, v, n);
        double sum = 0;
        for (size_t i = 0; i < n; i++)
            sum += (double)v[i] * (double)v[i];
        double rms = sqrt(sum / (double)n) * sqrt(2560);
        if (!(rms > 0.5 && rms < 2))
            fail_msg("%s: values are %g times as large as wanted", st_type_info(type)->name, rms);
        free(v);
        st_gguf_close(g);
    }
}

static void shapes_that_make_no_model_are_refused(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_synth_report report;
    const struct st_synth_options cases[] = {{.layers = 2000}, {.vocabulary = 100}, {.experts = 100000}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct st_synth_options o = cases[i];
        o.out = work_path("none");
        assert_int_equal(st_synth(&o, &report, &err), STRATA_E_ARGUMENT);
        assert_int_not_equal(access(o.out, F_OK), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_real_shape_has_the_released_names_sizes_and_constants),
        cmocka_unit_test(equal_seeds_give_equal_files_and_others_do_not),
        cmocka_unit_test(any_number_of_threads_gives_the_same_file),
        cmocka_unit_test(every_type_has_finite_values_of_the_wanted_size),
        cmocka_unit_test(shapes_that_make_no_model_are_refused),
    };
    return cmocka_run_group_tests(tests, make_work, remove_work);
}
