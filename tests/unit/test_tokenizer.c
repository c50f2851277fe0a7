/* src/text: tokenizer, pre-tokenizers, normalisation, streaming decoder. */
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/nfc.h"
#include "text/pretoken.h"
#include "text/tokenizer.h"
#include "text_fixture.h"

static void golden_strings_give_the_reference_ids(void **state)
{
    (void)state;
    struct strata_error err;
    json_t *golden = fixture_json("tokenizer_golden.json"), *entry;
    size_t i;
    assert_int_equal(json_array_size(golden), 25);
    json_array_foreach(golden, i, entry)
    {
        json_t *text = json_object_get(entry, "text"), *want = json_object_get(entry, "ids");
        struct st_ids ids = {0};
        assert_ok(st_tokenizer_encode(demo, json_string_value(text), json_string_length(text), true, &ids, &err), &err);
        if (ids.count != json_array_size(want))
            fail_msg("string %zu: %zu ids instead of %zu", i, ids.count, json_array_size(want));
        for (size_t k = 0; k < ids.count; k++)
            if (ids.data[k] != json_integer_value(json_array_get(want, k)))
                fail_msg("string %zu, id %zu: %d instead of %lld", i, k, ids.data[k],
                         (long long)json_integer_value(json_array_get(want, k)));
        st_ids_free(&ids);
    }
    json_decref(golden);
}

static void decode(struct st_tokenizer *t, const int32_t *ids, size_t n, bool special, char *out, size_t room)
{
    struct strata_error err;
    struct st_decoder d;
    struct st_bytes got;
    size_t used = 0;
    st_decoder_init(&d, t, special);
    for (size_t i = 0; i <= n; i++) {
        if (i < n)
            assert_ok(st_decoder_push(&d, ids[i], &got, &err), &err);
        else
            assert_ok(st_decoder_finish(&d, &got, &err), &err);
        assert_true(used + got.size < room);
        assert_int_equal(st_utf8_invalid(got.data, got.size), got.size);
        memcpy(out + used, got.data, got.size);
        used += got.size;
    }
    out[used] = 0;
    st_decoder_free(&d);
}

static void decoding_gives_the_normalised_text_back_in_whole_characters(void **state)
{
    (void)state;
    struct strata_error err;
    json_t *golden = fixture_json("tokenizer_golden.json"), *entry;
    size_t i;
    json_array_foreach(golden, i, entry)
    {
        json_t *text = json_object_get(entry, "text");
        struct st_ids ids = {0};
        char out[4096], *normal;
        size_t normal_size;
        assert_ok(st_tokenizer_encode(demo, json_string_value(text), json_string_length(text), true, &ids, &err), &err);
        decode(demo, ids.data, ids.count, true, out, sizeof out);
        assert_ok(st_nfc(json_string_value(text), json_string_length(text), &normal, &normal_size, &err), &err);
        assert_string_equal(out, normal ? normal : json_string_value(text));
        free(normal);
        st_ids_free(&ids);
    }
    json_decref(golden);
}

static void control_tokens_are_hidden_and_user_defined_ones_shown(void **state)
{
    (void)state;
    char out[100];
    const int32_t ids[] = {8180, 8186, 72, 8187, 8181, 9000, -1};
    decode(demo, ids, 7, false, out, sizeof out);
    assert_string_equal(out, "<think>i</think>");
    decode(demo, ids, 7, true, out, sizeof out);
    assert_string_equal(out, "<|im_start|><think>i</think><|im_end|>");
}

static void special_tokens_are_only_recognised_inside_spans(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_ids ids = {0};
    const char text[] = "<think>x<think>";
    assert_ok(st_tokenizer_encode(demo, text, 15, false, &ids, &err), &err);
    for (size_t i = 0; i < ids.count; i++)
        assert_true(ids.data[i] < 8179);
    ids.count = 0;
    const struct st_span first = {0, 8};
    assert_ok(st_tokenizer_encode_spans(demo, text, 15, &first, 1, &ids, &err), &err);
    assert_int_equal(ids.data[0], 8186);
    for (size_t i = 1; i < ids.count; i++)
        assert_true(ids.data[i] < 8179);
    ids.count = 0;
    const struct st_span cut = {0, 14}; /* the second tag begins inside, but does not end there */
    assert_ok(st_tokenizer_encode_spans(demo, text, 15, &cut, 1, &ids, &err), &err);
    assert_int_equal(ids.data[0], 8186);
    assert_int_not_equal(ids.data[ids.count - 1], 8186);
    const struct st_span wrong[] = {{4, 8}, {2, 3}};
    assert_int_equal(st_tokenizer_encode_spans(demo, text, 15, wrong, 2, &ids, &err), STRATA_E_ARGUMENT);
    st_ids_free(&ids);
}

static void invalid_utf8_is_refused_with_its_position(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_ids ids = {0};
    static const struct {
        const char *text;
        size_t size, at;
    } bad[] = {{"ab\xff", 3, 2},           {"\xC3", 1, 0},
               {"a\xC0\x80", 3, 1},        {"\xED\xA0\x80", 3, 0},
               {"\xF4\x90\x80\x80", 4, 0}, {"\xE2\x82\xAC\x80", 4, 3},
               {"x\xE2\x82", 3, 1}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char want[40];
        snprintf(want, sizeof want, "at byte %zu", bad[i].at);
        assert_int_equal(st_tokenizer_encode(demo, bad[i].text, bad[i].size, true, &ids, &err), STRATA_E_FORMAT);
        assert_non_null(strstr(err.text, want));
        assert_int_equal(ids.count, 0);
    }
    st_ids_free(&ids);
}

static void stream_shows_broken_bytes_as_replacement_characters(void **state)
{
    (void)state;
    int32_t euro[3], id;
    for (int i = 0; i < 3; i++) {
        char byte = "\xE2\x82\xAC"[i];
        euro[i] = st_tokenizer_find(demo, &byte, 1);
        assert_true(euro[i] >= 0);
    }
    id = st_tokenizer_find(demo, "a", 1);
    char out[64];
    decode(demo, (int32_t[]){euro[0], euro[1], euro[2], id}, 4, false, out, sizeof out);
    assert_string_equal(out, "\xE2\x82\xAC"
                             "a");
    decode(demo, (int32_t[]){euro[0], euro[1], id, euro[2], euro[0]}, 5, false, out, sizeof out);
    assert_string_equal(out, "\xEF\xBF\xBD"
                             "a\xEF\xBF\xBD\xEF\xBF\xBD");
}

static void questions_about_tokens_are_answered(void **state)
{
    (void)state;
    assert_int_equal(st_tokenizer_count(demo), 8192);
    assert_int_equal(st_tokenizer_find(demo, "<tool_call>", 11), 8188);
    assert_int_equal(st_tokenizer_find(demo, "no such token", 13), -1);
    assert_int_equal(st_tokenizer_find(demo, "", 0), -1);
    assert_true(st_tokenizer_is_stop(demo, 8181) && st_tokenizer_is_stop(demo, 8179));
    assert_false(st_tokenizer_is_stop(demo, 8180) || st_tokenizer_is_stop(demo, 8187) ||
                 st_tokenizer_is_stop(demo, -1));
    assert_int_equal(st_tokenizer_type(demo, 8179), ST_TOKEN_CONTROL);
    assert_int_equal(st_tokenizer_type(demo, 1 << 20), ST_TOKEN_UNUSED);
    assert_int_equal(st_tokenizer_bos(demo), -1);
    assert_int_equal(st_tokenizer_eos(demo), 8181);
    assert_int_equal(st_tokenizer_eot(demo), -1);
    assert_int_equal(st_tokenizer_pad(demo), 8179);
    assert_false(st_tokenizer_add_bos(demo));
}

/* The merges of a piece by definition: look at every pair, merge the leftmost of the best rank, start again. */
static size_t merge_slowly(struct st_tokenizer *t, int32_t *ids, size_t n, json_t *merges)
{
    for (;;) {
        json_int_t best = INT32_MAX;
        size_t at = 0;
        char key[200];
        for (size_t i = 0; i + 1 < n; i++) {
            struct st_bytes a = st_tokenizer_bytes(t, ids[i], true), b = st_tokenizer_bytes(t, ids[i + 1], true);
            snprintf(key, sizeof key, "%.*s %.*s", (int)a.size, a.data, (int)b.size, b.data);
            json_t *rank = json_object_get(merges, key);
            if (rank && json_integer_value(rank) < best) {
                best = json_integer_value(rank);
                at = i;
            }
        }
        if (best == INT32_MAX)
            return n;
        struct st_bytes a = st_tokenizer_bytes(t, ids[at], true), b = st_tokenizer_bytes(t, ids[at + 1], true);
        snprintf(key, sizeof key, "%.*s%.*s", (int)a.size, a.data, (int)b.size, b.data);
        ids[at] = st_tokenizer_find(t, key, a.size + b.size);
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        n--;
    }
}

static void heap_merges_like_the_definition(void **state)
{
    (void)state;
    struct strata_error err;
    static const char *const tokens[] = {"a", "b", "c", "ab", "ba", "aab", "abab", "ca", "cab", "bc", "abc", "aa"};
    static const char *const merges[] = {"b a", "a b", "a a", "ab ab", "a ab", "c ab", "c a", "b c", "ab c"};
    struct st_bytes token_views[12], merge_views[9];
    json_t *ranks = json_object();
    for (size_t i = 0; i < 12; i++)
        token_views[i] = (struct st_bytes){tokens[i], strlen(tokens[i])};
    for (size_t i = 0; i < 9; i++) {
        merge_views[i] = (struct st_bytes){merges[i], strlen(merges[i])};
        json_object_set_new(ranks, merges[i], json_integer((json_int_t)i));
    }
    struct st_vocab v = {.tokens = token_views,
                         .count = 12,
                         .merges = merge_views,
                         .merge_count = 9,
                         .pre = "gpt2",
                         .bos = -1,
                         .eos = -1,
                         .eot = -1,
                         .pad = -1};
    struct st_tokenizer *t;
    assert_ok(st_tokenizer_create(&v, &t, &err), &err);
    uint32_t seed = 1;
    for (int round = 0; round < 2000; round++) {
        char text[40];
        int32_t slow[40];
        size_t n = 1 + (size_t)round % 37;
        for (size_t i = 0; i < n; i++) {
            seed = seed * 1664525 + 1013904223;
            text[i] = (char)('a' + (seed >> 20) % 3);
            slow[i] = text[i] - 'a';
        }
        struct st_ids ids = {0};
        assert_ok(st_tokenizer_encode(t, text, n, false, &ids, &err), &err);
        assert_int_equal(merge_slowly(t, slow, n, ranks), ids.count);
        assert_memory_equal(slow, ids.data, ids.count * sizeof *slow);
        st_ids_free(&ids);
    }
    struct st_ids none = {0};
    assert_int_equal(st_tokenizer_encode(t, "abd", 3, false, &none, &err), STRATA_E_UNSUPPORTED);
    st_ids_free(&none);
    json_decref(ranks);
    st_tokenizer_free(t);
}

static void check_cuts(const char *pre, const char *text, const char *want)
{
    struct strata_error err;
    struct st_pretoken *p;
    struct st_cuts cuts;
    assert_ok(st_pretoken_create(pre, &p, &err), &err);
    assert_ok(st_pretoken_cut(p, text, strlen(text), &cuts, &err), &err);
    char got[400] = "";
    size_t used = 0, from = 0;
    for (size_t i = 0; i < cuts.count; i++) {
        used += (size_t)snprintf(got + used, sizeof got - used, "%s%.*s", i ? "|" : "", (int)(cuts.ends[i] - from),
                                 text + from);
        from = cuts.ends[i];
    }
    if (strcmp(got, want) != 0)
        fail_msg("%s: [%s] instead of [%s]", pre, got, want);
    free(cuts.ends);
    st_pretoken_free(p);
}

static void pretokenizers_cut_as_published(void **state)
{
    (void)state;
    check_cuts("qwen35", "Don'T cafe\xCC\x81s 12", "Don|'T| cafe\xCC\x81s| |1|2");
    check_cuts("qwen2", "Don'T cafe\xCC\x81s 12", "Don|'T| cafe|\xCC\x81s| |1|2");
    check_cuts("llama-bpe", "Don'T 12345  x\n\ny", "Don|'T| |123|45| | x|\n\n|y");
    check_cuts("gpt2", "Don'T 12345  x\n\ny.", "Don|'|T| 12345| | x|\n|\n|y|.");
    check_cuts("gpt2", "it's  \n", "it|'s|  \n");
    check_cuts("smollm", "a 12  3x", "a| |1|2|  |3|x");
    check_cuts("default", "a: $12345+x", "a|:| |$|123|45|+|x");
    check_cuts("qwen35", "", "");
    check_cuts("qwen35", "x \xE1\xA0\x8E", "x| \xE1\xA0\x8E"); /* U+180E is not white space */
    struct strata_error err;
    struct st_pretoken *p;
    assert_int_equal(st_pretoken_create("no\nsuch", &p, &err), STRATA_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "no\\x0asuch"));
}

static void long_words_and_blanks_are_encoded_in_one_piece(void **state)
{
    (void)state;
    struct strata_error err;
    size_t n = 1 << 20;
    char *text = malloc(n);
    for (int kind = 0; kind < 3; kind++) {
        struct st_ids ids = {0};
        for (size_t i = 0; i < n; i++)
            text[i] = kind == 0   ? "abcdefghijklmnopqrstuvwxyz"[(i * i / 7 + i / 3) % 26]
                      : kind == 1 ? ' '
                                  : "\n \t"[i % 3];
        assert_ok(st_tokenizer_encode(demo, text, n, true, &ids, &err), &err);
        size_t bytes = 0;
        for (size_t i = 0; i < ids.count; i++) {
            struct st_bytes b = st_tokenizer_bytes(demo, ids.data[i], true);
            assert_memory_equal(b.data, text + bytes, b.size);
            bytes += b.size;
        }
        assert_int_equal(bytes, n);
        st_ids_free(&ids);
    }
    free(text);
}

static void normalisation_orders_and_composes(void **state)
{
    (void)state;
    struct strata_error err;
    static const struct {
        const char *in, *out; /* out NULL: stays as it is */
    } cases[] = {
        {"plain \xC3\xA9", NULL},
        {"e\xCC\x81", "\xC3\xA9"},
        {"a\xCC\x81\xCC\xA3", "\xE1\xBA\xA1\xCC\x81"},            /* acute, dot below: the dot comes first */
        {"\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB", "\xED\x95\x9C"}, /* Hangul */
        {"\xE2\x84\xAB", "\xC3\x85"},                             /* angstrom sign */
        {"\xEF\xAC\x81", "\xEF\xAC\x81"},                         /* ligature: no compatibility mapping */
        {"\xE0\xA5\x98", "\xE0\xA4\x95\xE0\xA4\xBC"},             /* excluded from composition */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *out;
        size_t size;
        assert_ok(st_nfc(cases[i].in, strlen(cases[i].in), &out, &size, &err), &err);
        if (!cases[i].out)
            assert_null(out);
        else
            assert_string_equal(out, cases[i].out);
        free(out);
    }
    /* A long run of marks in the worst order: half of them move to the other end. */
    size_t n = 400000;
    char *text = malloc(1 + 2 * n), *out;
    size_t size;
    text[0] = 'q';
    for (size_t i = 0; i < n; i++)
        memcpy(text + 1 + 2 * i, i % 2 ? "\xCC\xA3" : "\xCC\x81", 2);
    assert_ok(st_nfc(text, 1 + 2 * n, &out, &size, &err), &err);
    assert_int_equal(size, 1 + 2 * n);
    assert_memory_equal(out + 1, "\xCC\xA3\xCC\xA3", 4);
    assert_memory_equal(out + size - 4, "\xCC\x81\xCC\x81", 4);
    free(out);
    free(text);
}

struct broken {
    struct st_vocab v;
    const char *names;
    enum strata_result code;
};

static void broken_vocabularies_are_refused_and_named(void **state)
{
    (void)state;
    static const struct st_bytes tokens[] = {{"a", 1}, {"b", 1}, {"ab", 2}, {"<x>", 3}};
    static const int32_t types[] = {1, 1, 1, 3}, odd_types[] = {1, 1, 6, 3}, control[] = {1, 1, 3, 3};
    static const struct st_bytes good[] = {{"a b", 3}}, no_space[] = {{"ab", 2}}, unknown[] = {{"a c", 3}},
                                 no_result[] = {{"b a", 3}}, two_spaces[] = {{"a b ", 4}}, bad_utf8[] = {{"\xff b", 3}},
                                 empty[] = {{" b", 2}}, bad_token[] = {{"\xff", 1}};
    static char huge[2000];
    memset(huge, 'x', sizeof huge);
    const struct st_bytes huge_special[] = {{huge, sizeof huge}};
    const struct st_vocab ok = {tokens, types, 4, good, 1, "qwen35", -1, -1, -1, -1, false};
    struct broken cases[15];
    size_t n = 0;
#define CASE(field, value, code_, text)                                                                                \
    cases[n] = (struct broken){ok, text, code_};                                                                       \
    cases[n++].v.field = value
    CASE(count, 0, STRATA_E_FORMAT, "0 tokens");
    CASE(types, odd_types, STRATA_E_FORMAT, "token 2 has type 6");
    CASE(types, control, STRATA_E_FORMAT, "its result is not a token");
    CASE(merges, no_space, STRATA_E_FORMAT, "merge 0");
    CASE(merges, unknown, STRATA_E_FORMAT, "its right part is not a token");
    CASE(merges, no_result, STRATA_E_FORMAT, "its result is not a token");
    CASE(merges, two_spaces, STRATA_E_FORMAT, "merge 0");
    CASE(merges, bad_utf8, STRATA_E_FORMAT, "merge 0");
    CASE(merges, empty, STRATA_E_FORMAT, "merge 0");
    CASE(bos, 4, STRATA_E_FORMAT, "bos token 4");
    CASE(eot, -2, STRATA_E_FORMAT, "eot token -2");
    CASE(add_bos, true, STRATA_E_FORMAT, "no bos token");
    CASE(pre, "klingon", STRATA_E_UNSUPPORTED, "klingon");
    CASE(tokens, bad_token, STRATA_E_FORMAT, "token 0 is not valid UTF-8");
    cases[n - 1].v.count = 1;
    CASE(tokens, huge_special, STRATA_E_FORMAT, "2000 bytes");
    cases[n - 1].v.count = 1;
    cases[n - 1].v.types = types + 3;
    for (size_t i = 0; i < n; i++) {
        struct strata_error err;
        struct st_tokenizer *t;
        assert_int_equal(st_tokenizer_create(&cases[i].v, &t, &err), cases[i].code);
        assert_null(t);
        if (!strstr(err.text, cases[i].names))
            fail_msg("case %zu: \"%s\" does not name \"%s\"", i, err.text, cases[i].names);
    }
    struct strata_error err;
    struct st_tokenizer *t;
    assert_ok(st_tokenizer_create(&ok, &t, &err), &err);
    st_tokenizer_free(t);
}

static void special_tokens_match_the_longest(void **state)
{
    (void)state;
    static const struct st_bytes tokens[] = {{"<", 1}, {"<a", 2}, {"<a>", 3},     {"<ab>", 4},
                                             {"x", 1}, {"a", 1},  {"\xC3\xA9", 2}};
    static const int32_t types[] = {1, 3, 4, 3, 1, 1, 4};
    struct st_vocab v = {tokens, types, 7, NULL, 0, "llama-bpe", -1, -1, -1, -1, false};
    struct strata_error err;
    struct st_tokenizer *t;
    assert_ok(st_tokenizer_create(&v, &t, &err), &err);
    struct st_ids ids = {0};
    assert_ok(st_tokenizer_encode(t, "<a><ab><ax<<a\xC3\xA9", 15, true, &ids, &err), &err);
    const int32_t want[] = {2, 3, 1, 4, 0, 1, 6};
    assert_int_equal(ids.count, 7);
    assert_memory_equal(ids.data, want, sizeof want);
    st_ids_free(&ids);
    st_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_strings_give_the_reference_ids),
        cmocka_unit_test(decoding_gives_the_normalised_text_back_in_whole_characters),
        cmocka_unit_test(control_tokens_are_hidden_and_user_defined_ones_shown),
        cmocka_unit_test(special_tokens_are_only_recognised_inside_spans),
        cmocka_unit_test(invalid_utf8_is_refused_with_its_position),
        cmocka_unit_test(stream_shows_broken_bytes_as_replacement_characters),
        cmocka_unit_test(questions_about_tokens_are_answered),
        cmocka_unit_test(heap_merges_like_the_definition),
        cmocka_unit_test(pretokenizers_cut_as_published),
        cmocka_unit_test(long_words_and_blanks_are_encoded_in_one_piece),
        cmocka_unit_test(normalisation_orders_and_composes),
        cmocka_unit_test(broken_vocabularies_are_refused_and_named),
        cmocka_unit_test(special_tokens_match_the_longest),
    };
    return cmocka_run_group_tests(tests, open_demo, close_demo);
}
