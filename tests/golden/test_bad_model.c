/* Files that are well-formed GGUF but no model: every tensor missing, of a wrong shape or not a number, every key
 * missing or out of range. Each is refused with one line that names the file and the tensor or key, or serves; nothing
 * crashes. */
#include "test.h"

#include <math.h>

#include "engine/engine.h"
#include "fixture.h"
#include "format/quant.h"
#include "make_model.h"

static char path[PATH_SIZE + 64];

static struct make_model *small(void)
{
    struct make_model *m = malloc(sizeof *m);
    assert_non_null(m);
    make_small(m);
    return m;
}

/* Opens the model and an engine, and reads some tokens when that works. The file must be a valid GGUF file. */
static enum strata_result serve(const struct make_model *spec, struct strata_error *err)
{
    struct strata_model *m;
    struct strata_engine *e;
    struct strata_session *s;
    *err = (struct strata_error){0};
    assert_ok(make_write(spec, path, err), err);
    assert_ok(strata_model_open(path, &m, err), err);
    struct strata_engine_options o = {.threads = 1, .context = 16, .prefill = 4};
    enum strata_result r = strata_engine_create(m, &o, &e, err);
    if (!r) {
        float logits[64];
        const int32_t ids[6] = {0, 1, 0, 1, 0, 1};
        assert_true(e->dims.vocabulary <= 64);
        assert_ok(strata_session_create(e, &s, err), err);
        assert_ok(strata_session_eval(s, ids, 6, false, logits, err), err);
        for (uint32_t i = 0; i < e->dims.vocabulary; i++)
            assert_true(isfinite(logits[i]));
        strata_session_free(s);
        strata_engine_free(e);
    }
    strata_model_free(m);
    return r;
}

static void assert_one_line(const struct strata_error *err)
{
    assert_null(strchr(err->text, '\n'));
    assert_non_null(strstr(err->text, path));
}

static void assert_refused(const struct make_model *spec, enum strata_result code, const char *names)
{
    struct strata_error err;
    enum strata_result r = serve(spec, &err);
    if (r != code || !strstr(err.text, names))
        fail_msg("%s instead of %s with '%s': %s", strata_result_name(r), strata_result_name(code), names, err.text);
    assert_one_line(&err);
}

static void assert_served(const struct make_model *spec)
{
    struct strata_error err;
    enum strata_result r = serve(spec, &err);
    if (r)
        fail_msg("%s", err.text);
}

static void remove_tensor(struct make_model *m, const char *name)
{
    struct make_tensor *t = make_find(m, name);
    assert_non_null(t);
    *t = m->tensor[--m->tensors];
}

static void remove_key(struct make_model *m, const char *name)
{
    struct make_key *k = make_find_key(m, name);
    assert_non_null(k);
    *k = m->key[--m->keys];
}

static struct make_key *the_key(struct make_model *m, const char *tail)
{
    char name[ST_GGUF_NAME_MAX + 1];
    snprintf(name, sizeof name, "qwen4exp.%s", tail);
    struct make_key *k = make_find_key(m, name);
    if (!k)
        fail_msg("the maker writes no key %s", name);
    return k;
}

static void the_unbroken_model_is_served(void **state)
{
    (void)state;
    struct make_model *m = small();
    assert_served(m);
    /* The maker and the reader agree on what a model of this kind consists of: nothing is left over, nothing is
     * missing. */
    assert_int_equal(m->tensors, 6 + 3 * 16 + 9 + 2 * 10 + 6 + 6);
    free(m);
}

static void every_missing_tensor_is_named(void **state)
{
    (void)state;
    struct make_model *all = small();
    for (size_t i = 0; i < all->tensors; i++) {
        struct make_model *m = small();
        remove_tensor(m, all->tensor[i].name);
        if (!strcmp(all->tensor[i].name, "output.weight"))
            assert_served(m); /* the embedding serves as head */
        else
            assert_refused(m, STRATA_E_MODEL, all->tensor[i].name);
        free(m);
    }
    free(all);
}

/* One more, one less, in every dimension; dimensions exchanged; one dimension more. */
static void every_wrong_shape_is_named(void **state)
{
    (void)state;
    struct make_model *all = small();
    for (size_t i = 0; i < all->tensors; i++) {
        const struct make_tensor *right = &all->tensor[i];
        bool embedding = !strcmp(right->name, "token_embd.weight"),
             table = !strcmp(right->name, "per_layer_token_embd.weight");
        for (uint32_t form = 0; form < 2 * right->n_dims + 2; form++) {
            struct make_model *m = small();
            struct make_tensor *t = make_find(m, right->name);
            uint32_t d = form / 2;
            if (d < right->n_dims) {
                t->ne[d] += form % 2 ? 1 : (uint64_t)-1;
            } else if (form % 2) {
                t->ne[t->n_dims++] = 2;
            } else {
                uint64_t first = t->ne[0];
                t->ne[0] = t->ne[t->n_dims - 1];
                t->ne[t->n_dims - 1] = first;
            }
            if (t->ne[0] == 0 || (d >= right->n_dims && form % 2 == 0 && t->ne[0] == right->ne[0])) {
                free(m); /* no shape, or the same one */
                continue;
            }
            if (table && d == 1 && form % 2)
                assert_served(m); /* rows that no head reaches pad the table */
            else if (embedding && d == 1)
                assert_refused(m, STRATA_E_MODEL, "output.weight"); /* which then has another number of tokens */
            else
                assert_refused(m, STRATA_E_MODEL, right->name);
            free(m);
        }
    }
    free(all);
}

static bool is_vector(const struct make_tensor *t)
{
    return (t->n_dims == 1 && !strstr(t->name, "ffn_gate_inp_shexp")) || strstr(t->name, "conv1d");
}

static void numbers_that_are_none_in_norms_and_constants_are_named(void **state)
{
    (void)state;
    struct make_model *all = small();
    size_t vectors = 0;
    for (size_t i = 0; i < all->tensors; i++) {
        if (!is_vector(&all->tensor[i]))
            continue;
        struct make_model *m = small();
        make_find(m, all->tensor[i].name)->nan = true;
        assert_refused(m, STRATA_E_MODEL, all->tensor[i].name);
        vectors++;
        free(m);
    }
    assert_true(vectors > 20);
    free(all);
}

static void tensors_of_other_models_are_named(void **state)
{
    (void)state;
    static const char *const names[] = {"blk.0.attn_norm.weight",
                                        "blk.3.ffn_gate_inp.weight",
                                        "rope_freqs.weight",
                                        "blk.0.attn_q.weight",
                                        "blk.1.ssm_a",
                                        "blk.0.ple_key.weight"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct make_model *m = small();
        make_add(m, names[i], 8, 0, 0, 1, 0);
        assert_refused(m, STRATA_E_UNSUPPORTED, names[i]);
        free(m);
    }
    /* Scales of activations mean nothing where activations are not in that type. */
    struct make_model *m = small();
    make_add(m, "blk.0.ffn_up_exps.input_scale", 4, 0, 0, 1, 0);
    assert_served(m);
    free(m);
}

static void factors_of_products_have_one_value_or_one_per_expert(void **state)
{
    (void)state;
    for (uint64_t n = 1; n <= 5; n++) {
        struct make_model *m = small();
        make_add(m, "blk.0.ffn_up_exps.scale", n, 0, 0, 1, 0.1f);
        if (n == 1 || n == m->experts)
            assert_served(m);
        else
            assert_refused(m, STRATA_E_MODEL, "blk.0.ffn_up_exps.scale");
        free(m);
    }
}

static void every_missing_key_is_named_or_has_a_default(void **state)
{
    (void)state;
    static const struct {
        const char *key, *names; /* what the message names instead, NULL: served */
        enum strata_result code;
    } others[] = {
        {"qwen4exp.attention.compress_ratios", NULL, 0}, /* 4, as published */
        {"qwen4exp.attention.recurrent_layers", "blk.1.attn_qkv.weight",
         STRATA_E_MODEL},                                        /* attention every fourth layer */
        {"qwen4exp.ple.layers", "tensor", STRATA_E_UNSUPPORTED}, /* its tensors are left over */
        {"qwen4exp.nextn_predict_layers", "nextn", STRATA_E_UNSUPPORTED},
    };
    struct make_model *all = small();
    for (size_t i = 0; i < all->keys; i++) {
        const char *name = all->key[i].name, *names = name;
        enum strata_result code = STRATA_E_MODEL;
        for (size_t k = 0; k < sizeof others / sizeof *others; k++)
            if (!strcmp(others[k].key, name)) {
                names = others[k].names;
                code = others[k].code;
            }
        if (!strcmp(name, "general.architecture"))
            continue; /* below: the file is not even opened */
        struct make_model *m = small();
        remove_key(m, name);
        if (names)
            assert_refused(m, code, names);
        else
            assert_served(m);
        free(m);
    }
    free(all);
}

static void files_without_architecture_are_no_models(void **state)
{
    (void)state;
    struct strata_error err;
    struct strata_model *model;
    struct make_model *m = small();
    remove_key(m, "general.architecture");
    assert_ok(make_write(m, path, &err), &err);
    assert_int_equal(strata_model_open(path, &model, &err), STRATA_E_MODEL);
    assert_non_null(strstr(err.text, "general.architecture"));
    free(m);
}

static void values_out_of_range_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        size_t entry;
        double value;
        const char *names;
    } cases[] = {
        {"block_count", 0, 0, "block_count"},
        {"block_count", 0, 5000, "block_count"},
        {"block_count", 0, 4, "attention.recurrent_layers"},
        {"embedding_length", 0, 0, "embedding_length"},
        {"context_length", 0, 0, "context_length"},
        {"attention.head_count", 0, 0, "attention.head_count"},
        {"attention.head_count_kv", 0, 0, "attention.head_count_kv"},
        {"attention.head_count_kv", 0, 3, "query heads"},
        {"attention.key_length", 0, 0, "attention.key_length"},
        {"attention.key_length", 0, 1 << 20, "attention.key_length"},
        {"attention.value_length", 0, 16, "attention.value_length"},
        {"attention.layer_norm_rms_epsilon", 0, -1, "attention.layer_norm_rms_epsilon"},
        {"attention.layer_norm_rms_epsilon", 0, NAN, "attention.layer_norm_rms_epsilon"},
        {"rope.dimension_count", 0, 0, "rope.dimension_count"},
        {"rope.dimension_count", 0, 3, "rope.dimension_count"},
        {"rope.dimension_count", 0, 10, "rope.dimension_count"},
        {"rope.freq_base", 0, 0, "rope.freq_base"},
        {"rope.freq_base", 0, NAN, "rope.freq_base"},
        {"rope.freq_base", 0, INFINITY, "rope.freq_base"},
        {"rope.dimension_sections", 1, -1, "rope.dimension_sections"},
        {"rope.dimension_sections", 1, 1e9, "rope.dimension_sections"},
        {"ssm.conv_kernel", 0, 0, "ssm.conv_kernel"},
        {"ssm.conv_kernel", 0, 1, "ssm.conv_kernel"},
        {"ssm.state_size", 0, 0, "ssm.state_size"},
        {"ssm.group_count", 0, 0, "ssm.group_count"},
        {"ssm.group_count", 0, 3, "ssm"},
        {"ssm.time_step_rank", 0, 0, "ssm.time_step_rank"},
        {"ssm.time_step_rank", 0, 3, "ssm"},
        {"ssm.inner_size", 0, 0, "ssm.inner_size"},
        {"ssm.inner_size", 0, 17, "ssm"},
        {"attention.compress_ratios", 1, -4, "attention.compress_ratios"},
        {"attention.compress_ratios", 1, 3, "index budget"},
        {"expert_count", 0, 0, "expert_count"},
        {"expert_used_count", 0, 0, "expert_used_count"},
        {"expert_used_count", 0, 5, "expert_used_count"},
        {"expert_feed_forward_length", 0, 0, "expert_feed_forward_length"},
        {"expert_shared_feed_forward_length", 0, 0, "expert_shared_feed_forward_length"},
        {"hyper_connection.count", 0, 1, "hyper_connection.count"},
        {"hyper_connection.count", 0, 9, "hyper_connection.count"},
        {"hyper_connection.low_rank", 0, 0, "hyper_connection.low_rank"},
        {"attention.indexer.head_count", 0, 0, "attention.indexer.head_count"},
        {"attention.indexer.key_length", 0, 0, "attention.indexer.key_length"},
        {"attention.indexer.top_k", 0, 0, "attention.indexer.top_k"},
        {"attention.indexer.top_k", 0, 7, "index budget"},
        {"ple.layers", 0, 2, "ple.layers"},
        {"ple.layers", 0, -1, "ple.layers"},
        {"ple.ngram_size", 0, 1, "ple.ngram_size"},
        {"ple.ngram_size", 0, 100, "ple.ngram_size"},
        {"ple.heads_per_ngram", 0, 0, "ple.heads_per_ngram"},
        {"ple.heads_per_ngram", 0, 60, "n-gram heads"},
        {"ple.conv_kernel", 0, 0, "ple.conv_kernel"},
        {"ple.eos_token_id", 0, 20, "ple.eos_token_id"},
        {"embedding_length_per_layer_input", 0, 0, "embedding_length_per_layer_input"},
        {"ple.head_vocab_sizes", 3, 0, "ple.head_vocab_sizes"},
        {"ple.head_vocab_sizes", 3, 1000, "per_layer_token_embd.weight"},
        {"ple.head_vocab_sizes", 3, 0x1p62, "per_layer_token_embd.weight"},
        {"ple.head_offsets", 2, 1000, "per_layer_token_embd.weight"},
        {"ple.head_offsets", 2, 0x1p62, "per_layer_token_embd.weight"},
        {"nextn_predict_layers", 0, 2, "nextn_predict_layers"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct strata_error err;
        struct make_model *m = small();
        the_key(m, cases[i].key)->value[cases[i].entry] = cases[i].value;
        enum strata_result r = serve(m, &err);
        if ((r != STRATA_E_MODEL && r != STRATA_E_UNSUPPORTED && r != STRATA_E_FORMAT) ||
            !strstr(err.text, cases[i].names))
            fail_msg("%s = %g: %s, '%s' does not name %s", cases[i].key, cases[i].value, strata_result_name(r),
                     err.text, cases[i].names);
        assert_one_line(&err);
        free(m);
    }
}

/* Whatever single value a key has: a model that works, or a message. */
static void any_value_of_any_key_is_refused_or_served(void **state)
{
    (void)state;
    static const double values[] = {0, 1, 2, 3, 5, 255, 4096, 65537, 1 << 24, 0x7fffffff, 4294967295.0};
    struct make_model *all = small();
    for (size_t i = 0; i < all->keys; i++)
        for (size_t v = 0; v < sizeof values / sizeof *values && all->key[i].type != ST_GGUF_STRING; v++) {
            struct strata_error err;
            struct make_model *m = small();
            struct make_key *k = &m->key[i];
            k->value[k->count - 1] = k->type == ST_GGUF_I32 && values[v] > 0x7fffffff ? -1 : values[v];
            if (serve(m, &err))
                assert_one_line(&err);
            free(m);
        }
    free(all);
}

/* Counts of array entries that do not fit the model. */
static void arrays_of_wrong_length_are_named(void **state)
{
    (void)state;
    struct make_model *all = small();
    for (size_t i = 0; i < all->keys; i++) {
        if (!all->key[i].array)
            continue;
        for (int change = -1; change <= 1; change += 2) {
            struct make_model *m = small();
            m->key[i].count = (size_t)((int)m->key[i].count + change);
            const char *name = strchr(m->key[i].name, '.') + 1;
            bool one_for_all = m->key[i].count == 1 && !strcmp(name, "attention.compress_ratios");
            if (!one_for_all)
                assert_refused(m, STRATA_E_MODEL, name);
            free(m);
        }
    }
    free(all);
}

static void keys_of_the_wrong_kind_are_named(void **state)
{
    (void)state;
    struct make_model *all = small();
    for (size_t i = 0; i < all->keys; i++) {
        if (all->key[i].type == ST_GGUF_STRING)
            continue;
        struct make_model *m = small();
        m->key[i].type = ST_GGUF_STRING;
        m->key[i].array = false;
        assert_refused(m, STRATA_E_FORMAT, all->key[i].name);
        free(m);
    }
    free(all);
}

static int setup(void **state)
{
    int failed = make_work(state);
    snprintf(path, sizeof path, "%s", work_path("model.gguf"));
    return failed;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_unbroken_model_is_served),
        cmocka_unit_test(every_missing_tensor_is_named),
        cmocka_unit_test(every_wrong_shape_is_named),
        cmocka_unit_test(numbers_that_are_none_in_norms_and_constants_are_named),
        cmocka_unit_test(tensors_of_other_models_are_named),
        cmocka_unit_test(factors_of_products_have_one_value_or_one_per_expert),
        cmocka_unit_test(every_missing_key_is_named_or_has_a_default),
        cmocka_unit_test(files_without_architecture_are_no_models),
        cmocka_unit_test(values_out_of_range_are_named),
        cmocka_unit_test(any_value_of_any_key_is_refused_or_served),
        cmocka_unit_test(arrays_of_wrong_length_are_named),
        cmocka_unit_test(keys_of_the_wrong_kind_are_named),
    };
    return cmocka_run_group_tests(tests, setup, remove_work);
}
