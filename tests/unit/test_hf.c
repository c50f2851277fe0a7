/* src/format/hf: model folders, their tokenizers and chat templates, and the messages for broken ones. */
#include "test.h"

#include "golden/fixture.h"

#include "format/hf.h"

static void write_text(const char *name, const char *text)
{
    const char *path = work_path(name);
    if (!text) {
        unlink(path);
        return;
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* A folder with these files (NULL: absent) and one tensor. */
static void write_folder(const char *config, const char *tokenizer, const char *tokenizer_config)
{
    struct strata_error err;
    const struct st_safetensor_out t = {"t", ST_DTYPE_U8, 1, {1}, "x"};
    assert_ok(st_safetensors_save(work_path("model.safetensors"), &t, 1, &err), &err);
    write_text("config.json", config);
    write_text("tokenizer.json", tokenizer);
    write_text("tokenizer_config.json", tokenizer_config);
}

#define QWEN35 \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{L}\\\\p{M}]+|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{M}" \
    "\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define PRE \
    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" QWEN35 \
    "\"}},{\"type\":\"ByteLevel\",\"use_regex\":false}]}"
#define MODEL "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[[\"a\",\"b\"]]}"
#define ADDED "\"added_tokens\":[{\"id\":4,\"content\":\"<end>\",\"special\":true},{\"id\":5,\"content\":\"<tag>\",\"special\":false}]"

static void a_tokenizer_becomes_lists_with_types(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_hf *hf;
    struct st_hf_tokenizer t;
    write_folder("{\"eos_token_id\":[3,4]}", "{" PRE "," MODEL "," ADDED "}", "{\"pad_token\":{\"content\":\"<end>\"},\"add_bos_token\":true}");
    assert_ok(st_hf_open(work, &hf, &err), &err);
    assert_ok(st_hf_read_tokenizer(hf, 7, &t, &err), &err);
    static const char *const texts[] = {"a", "b", "ab", "[PAD3]", "<end>", "<tag>", "[PAD6]"};
    static const int32_t types[] = {1, 1, 1, 5, 3, 4, 5};
    for (size_t i = 0; i < 7; i++) {
        assert_int_equal(t.tokens[i].size, strlen(texts[i]));
        assert_memory_equal(t.tokens[i].data, texts[i], t.tokens[i].size);
        assert_int_equal(t.types[i], types[i]);
    }
    assert_int_equal(t.merge_count, 1);
    assert_memory_equal(t.merges[0].data, "a b", 3);
    assert_string_equal(t.pre, "qwen35");
    assert_int_equal(t.bos, -1);
    assert_int_equal(t.eos, 3);
    assert_int_equal(t.pad, 4);
    assert_true(t.add_bos);
    st_hf_tokenizer_free(&t);
    st_hf_close(hf);
}

static void merges_written_as_text_and_other_pre_tokenizers_are_read(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_hf *hf;
    struct st_hf_tokenizer t;
    write_folder("{}", "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"model\":{\"vocab\":{\"a\":0,\"b\":1},"
                       "\"merges\":[\"a b\"]}}", NULL);
    assert_ok(st_hf_open(work, &hf, &err), &err);
    assert_ok(st_hf_read_tokenizer(hf, 2, &t, &err), &err);
    assert_string_equal(t.pre, "gpt2");
    assert_int_equal(t.merges[0].size, 3);
    assert_int_equal(t.eos, -1);
    st_hf_tokenizer_free(&t);
    st_hf_close(hf);
}

#define LLAMA_BPE \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+" \
    "[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define SPLIT "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" LLAMA_BPE "\"}}"
#define DIGITS "{\"type\":\"Digits\",\"individual_digits\":true}"
#define BYTES "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}"
#define STEPS(a, b) "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[" a "," b "]}"
#define FRONT(token) "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"" token "\"}},{\"Sequence\":{\"id\":\"A\"}}]}"

static void tokenizers_of_llama_models_are_recognised_with_their_first_token(void **state)
{
    (void)state;
    static const struct {
        const char *tokenizer, *config, *pre;
        bool add_bos;
        int64_t bos;
    } cases[] = {
        {"{" STEPS(SPLIT, "{\"type\":\"ByteLevel\",\"use_regex\":false}") "," MODEL "," ADDED
         ",\"post_processor\":{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"}," FRONT("<end>") "]}}",
         "{\"bos_token\":\"<end>\"}", "llama-bpe", true, 4},
        {"{" STEPS(SPLIT, BYTES) "," MODEL "," ADDED ",\"post_processor\":" FRONT("<tag>") "}", "{}", "llama-bpe", true, 5},
        {"{" STEPS(SPLIT, BYTES) "," MODEL "," ADDED ",\"post_processor\":" FRONT("<tag>") "}",
         "{\"bos_token\":\"<end>\",\"add_bos_token\":false}", "llama-bpe", false, 4},
        {"{" STEPS(DIGITS, BYTES) "," MODEL "," ADDED "}", "{\"bos_token\":\"<end>\"}", "smollm", false, 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct strata_error err;
        struct st_hf *hf;
        struct st_hf_tokenizer t;
        write_folder("{}", cases[i].tokenizer, cases[i].config);
        assert_ok(st_hf_open(work, &hf, &err), &err);
        assert_ok(st_hf_read_tokenizer(hf, 7, &t, &err), &err);
        assert_string_equal(t.pre, cases[i].pre);
        assert_int_equal(t.add_bos, cases[i].add_bos);
        assert_int_equal(t.bos, cases[i].bos);
        st_hf_tokenizer_free(&t);
        st_hf_close(hf);
    }
}

static void broken_tokenizers_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *tokenizer, *config;
        uint64_t count;
        enum strata_result code;
        const char *names;
    } cases[] = {
        {NULL, "{}", 7, STRATA_E_IO, "tokenizer.json is missing"},
        {"{" PRE "}", "{}", 7, STRATA_E_FORMAT, "model is missing"},
        {"{" MODEL "}", "{}", 7, STRATA_E_FORMAT, "pre_tokenizer is missing"},
        {"{" PRE "," MODEL "," ADDED "}", "{}", 5, STRATA_E_FORMAT, "'<tag>' has id 5, but the model has 5 rows"},
        {"{" PRE "," MODEL "}", "{}", 2, STRATA_E_FORMAT, "token id 2"},
        {"{" PRE ",\"model\":{\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", "{}", 7, STRATA_E_FORMAT, "two tokens have id 0"},
        {"{" PRE ",\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", "{}", 7, STRATA_E_FORMAT, "no integer"},
        {"{" PRE ",\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a z\"]}}", "{}", 7, STRATA_E_FORMAT, "merge 0"},
        {"{" PRE ",\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"aa\"]}}", "{}", 7, STRATA_E_FORMAT, "merge 0"},
        {"{" PRE ",\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}", "{}", 7, STRATA_E_FORMAT, "merge 0"},
        {"{" PRE ",\"model\":{\"type\":\"Unigram\",\"vocab\":{},\"merges\":[]}}", "{}", 7, STRATA_E_UNSUPPORTED, "no BPE"},
        {"{" PRE "," MODEL ",\"added_tokens\":[{\"id\":0,\"content\":\"z\"}]}", "{}", 7, STRATA_E_FORMAT, "two tokens have id 0"},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\w+\"}}," MODEL "}", "{}", 7, STRATA_E_UNSUPPORTED,
         "not one of the known ones"},
        {"{\"pre_tokenizer\":{\"type\":\"Metaspace\"}," MODEL "}", "{}", 7, STRATA_E_UNSUPPORTED, "unknown type"},
        {"{" STEPS(DIGITS, SPLIT) "," MODEL "}", "{}", 7, STRATA_E_UNSUPPORTED, "single digits"},
        {"{" PRE "," MODEL "," ADDED ",\"post_processor\":" FRONT("<tag>") "}", "{\"bos_token\":\"<end>\"}", 7,
         STRATA_E_UNSUPPORTED, "post_processor adds a token"},
        {"{" PRE "," MODEL "}", "{\"eos_token\":\"<none>\"}", 7, STRATA_E_FORMAT, "eos_token '<none>' is no token"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct strata_error err;
        struct st_hf *hf;
        struct st_hf_tokenizer t;
        write_folder("{}", cases[i].tokenizer, cases[i].config);
        assert_ok(st_hf_open(work, &hf, &err), &err);
        enum strata_result r = st_hf_read_tokenizer(hf, cases[i].count, &t, &err);
        if (r != cases[i].code || !strstr(err.text, cases[i].names))
            fail_msg("case %zu: %s: %s", i, strata_result_name(r), err.text);
        st_hf_close(hf);
    }
}

static void folders_that_are_no_models_are_refused(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_hf *hf;
    assert_int_equal(st_hf_open("/nowhere", &hf, &err), STRATA_E_IO);
    write_folder(NULL, NULL, NULL);
    assert_int_equal(st_hf_open(work, &hf, &err), STRATA_E_IO);
    assert_non_null(strstr(err.text, "config.json is missing"));
    write_folder("[]", NULL, NULL);
    assert_int_equal(st_hf_open(work, &hf, &err), STRATA_E_FORMAT);
    write_folder("{\"a\":", NULL, NULL);
    assert_int_equal(st_hf_open(work, &hf, &err), STRATA_E_FORMAT);
    assert_non_null(strstr(err.text, "config.json: JSON, line 1"));
    write_folder("{}", NULL, NULL);
    unlink(work_path("model.safetensors"));
    assert_int_equal(st_hf_open(work, &hf, &err), STRATA_E_IO);
    assert_non_null(strstr(err.text, "model.safetensors.index.json"));
}

static void chat_templates_come_from_either_place(void **state)
{
    (void)state;
    static const struct {
        const char *config, *file, *want;
    } cases[] = {
        {"{}", NULL, NULL},
        {"{\"chat_template\":\"one\"}", NULL, "one"},
        {"{\"chat_template\":\"one\"}", "two", "two"},
        {"{\"chat_template\":[{\"name\":\"tools\",\"template\":\"x\"},{\"name\":\"default\",\"template\":\"three\"}]}", NULL, "three"},
    };
    struct strata_error err;
    struct st_hf *hf;
    const char *text;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_folder("{}", NULL, cases[i].config);
        write_text("chat_template.jinja", cases[i].file);
        assert_ok(st_hf_open(work, &hf, &err), &err);
        assert_ok(st_hf_chat_template(hf, &text, &err), &err);
        if (cases[i].want)
            assert_string_equal(text, cases[i].want);
        else
            assert_null(text);
        st_hf_close(hf);
    }
    write_text("chat_template.jinja", NULL);
    write_folder("{}", NULL, "{\"chat_template\":7}");
    assert_ok(st_hf_open(work, &hf, &err), &err);
    assert_int_equal(st_hf_chat_template(hf, &text, &err), STRATA_E_FORMAT);
    st_hf_close(hf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tokenizer_becomes_lists_with_types),
        cmocka_unit_test(merges_written_as_text_and_other_pre_tokenizers_are_read),
        cmocka_unit_test(tokenizers_of_llama_models_are_recognised_with_their_first_token),
        cmocka_unit_test(broken_tokenizers_are_named),
        cmocka_unit_test(folders_that_are_no_models_are_refused),
        cmocka_unit_test(chat_templates_come_from_either_place),
    };
    return cmocka_run_group_tests(tests, make_work, remove_work);
}
