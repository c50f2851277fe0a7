/* src/text/gbnf, grammar and matcher: what grammars take, what they refuse, and that masks are those of a search by hand. */
#include "test.h"

#include <stdlib.h>
#include <string.h>

#include "text/matcher.h"
#include "text/sketch.h"
#include "text_fixture.h"

static struct st_trie *trie;

static int open_all(void **state)
{
    struct strata_error err;
    open_demo(state);
    assert_ok(st_trie_create(demo, &trie, &err), &err);
    return 0;
}

static int close_all(void **state)
{
    st_trie_free(trie);
    return close_demo(state);
}

static enum strata_result compile(const char *text, struct st_grammar **g, struct strata_error *err)
{
    struct st_net *net;
    uint32_t root;
    *g = NULL;
    assert_ok(st_net_create(&net, err), err);
    enum strata_result r = st_gbnf_read(net, text, strlen(text), &root, err);
    if (!r)
        r = st_net_finish(net, root, g, err);
    st_net_free(net);
    return r;
}

/* 'y': the grammar takes the whole text, 'p': the text is the beginning of one it takes, 'n': neither. */
static char try_text(const struct st_grammar *g, const char *text)
{
    struct strata_error err;
    struct st_matcher *m;
    assert_ok(st_matcher_create(g, trie, st_tokenizer_count(demo), &m, &err), &err);
    enum strata_result r = st_matcher_text(m, text, strlen(text), &err);
    char got = r ? 'n' : st_matcher_can_end(m) ? 'y' : 'p';
    st_matcher_free(m);
    return got;
}

/* cases: a letter as above and the text, ended by NULL. */
static void check(const char *grammar, const char *const *cases)
{
    struct strata_error err;
    struct st_grammar *g;
    assert_ok(compile(grammar, &g, &err), &err);
    for (; *cases; cases++)
        if (try_text(g, *cases + 1) != **cases)
            fail_msg("%s\nof \"%s\" says %c instead of %c", grammar, *cases + 1, try_text(g, *cases + 1), **cases);
    st_grammar_free(g);
}

#define CHECK(grammar, ...) check(grammar, (const char *const[]){__VA_ARGS__, NULL})

static void grammars_take_what_their_rules_say(void **state)
{
    (void)state;
    CHECK("root ::= \"yes\" | \"no\" [0-9]{2,3}", "yyes", "pno", "pno1", "yno12", "yno123", "nno1234", "nyesno", "p");
    CHECK("root ::= \"a\"? \"b\"* \"c\"+", "yc", "yabbcc", "pabb", "nca");
    CHECK("root ::= \"ab\"{2} \"c\"{,2} \"d\"{1,}", "yababd", "yababccdd", "nababcccd", "pababc", "naab");
    CHECK("root ::= (\"a\" | \"b\" (\"c\" | \"d\"))+ \"!\"", "ya!", "ybcabd!", "nb!", "pbd");
    CHECK("root ::= \"x\" |", "yx", "y", "ny");
    CHECK("root ::= \"\"", "y", "na");
    CHECK("root ::= ((\"a\"?)*)*", "y", "yaaa", "nb");
}

static void rules_may_contain_themselves(void **state)
{
    (void)state;
    CHECK("root ::= e \"=\"\ne ::= t (\"+\" t)*\nt ::= [0-9]+ | \"(\" e \")\"", "y1=", "y1+(2+(3))=", "n(1=", "p((((((1", "n1)");
    CHECK("root ::= \"a\" root | \"b\"", "yb", "yaaaaab", "paaaa", "nab b");
    CHECK("root ::= \"a\" root \"b\" | \"\"", "yaabb", "naabbb", "paab");
}

static void lists_of_any_length_need_no_deeper_stack(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_grammar *g;
    struct st_matcher *m;
    assert_ok(compile("root ::= \"a\" root | \"b\"", &g, &err), &err);
    assert_ok(st_matcher_create(g, trie, st_tokenizer_count(demo), &m, &err), &err);
    for (int i = 0; i < 10 * ST_MATCHER_DEPTH; i++)
        assert_ok(st_matcher_text(m, "a", 1, &err), &err);
    assert_ok(st_matcher_text(m, "b", 1, &err), &err);
    assert_true(st_matcher_can_end(m));
    st_matcher_free(m);
    st_grammar_free(g);
    assert_ok(compile("root ::= \"(\" root \")\" | \"x\"", &g, &err), &err);
    assert_ok(st_matcher_create(g, trie, st_tokenizer_count(demo), &m, &err), &err);
    int deep = 0;
    while (deep < 10 * ST_MATCHER_DEPTH && !st_matcher_text(m, "(", 1, &err))
        deep++;
    assert_in_range(deep, ST_MATCHER_DEPTH / 2, ST_MATCHER_DEPTH);
    assert_ok(st_matcher_text(m, "x)", 2, &err), &err);
    st_matcher_free(m);
    st_grammar_free(g);
}

static void classes_are_sets_of_characters(void **state)
{
    (void)state;
    CHECK("root ::= [^a-z\xC3\xA9]{2} \"\xC3\xA9\"", "yAB\xC3\xA9", "n\xC3\xA9", "y\xE6\xBC\xA2\xF0\x9F\x98\x80\xC3\xA9", "p\xE6\xBC",
          "na");
    CHECK("root ::= [\\x41-\\u00e9\\U0001F600] .", "yA\n", "y\xC3\xA9\xF0\x9F\x98\x80", "y\xF0\x9F\x98\x80z", "n\xC3\xAA", "n@");
    CHECK("root ::= [\\]\\\\-] [a-] [\\n\\t]", "y]a\n", "y\\-\t", "n-b");
    CHECK("root ::= [\xED\x9F\xBF-\xEE\x80\x80]", "y\xED\x9F\xBF", "y\xEE\x80\x80", "n\xED\xA0\x80");
    CHECK("root ::= .", "n\xC0", "n\xED\xA0", "n\xF4\x90", "p\xF4\x8F", "nab");
}

static void lines_and_comments_are_as_documented(void **state)
{
    (void)state;
    CHECK("# first\n\nroot ::= # what follows\n  a | # one\n  b # two\na ::= (\"a\"\n  | # inside\n \"A\")\nb ::= \"b\"\n", "ya", "yA", "yb");
    CHECK("root ::= a\n  | b\r\na ::= \"a\"\r\nb ::= \"b\"", "ya", "yb");
    CHECK("my-Rule_2 ::= \"x\"\nroot ::= my-Rule_2 my-Rule_2", "yxx");
}

static void check_refused(const char *grammar, enum strata_result code, const char *says)
{
    struct strata_error err;
    struct st_grammar *g;
    enum strata_result r = compile(grammar, &g, &err);
    st_grammar_free(g);
    if (r != code || !strstr(err.text, says))
        fail_msg("\"%.60s\" gives %s: %s", grammar, strata_result_name(r), r ? err.text : "");
}

static void wrong_grammars_are_refused_with_rule_or_line(void **state)
{
    (void)state;
    const enum strata_result bad = STRATA_E_FORMAT;
    check_refused("root ::= root \"a\" | \"b\"", bad, "rule root begins with itself");
    check_refused("root ::= \"x\" a\na ::= b? c \"y\"\nb ::= \"b\"\nc ::= b* a", bad, "begins with itself");
    check_refused("root ::= (root)", bad, "rule root begins with itself");
    check_refused("root ::= other", bad, "rule other is used but not defined");
    check_refused("a ::= \"a\"", bad, "no rule named root");
    check_refused("root ::= \"a\" root", bad, "rule root can never end");
    check_refused("root ::= \"a\"\nroot ::= \"b\"", bad, "line 2: a rule is defined twice");
    check_refused("root ::= (\"a\"", bad, "a group is not closed");
    check_refused("root ::= \"a\")", bad, "was not opened");
    check_refused("root ::= \"a", bad, "a literal is not closed");
    check_refused("root ::= [a", bad, "a class is not closed");
    check_refused("root ::= [z-a]", bad, "ends before it begins");
    check_refused("root ::= * \"a\"", bad, "repetition of nothing");
    check_refused("root ::= \"a\"{3,2}", bad, "below its least");
    check_refused("root ::= \"a\"{", bad, "number is missing");
    check_refused("root ::= \"\\q\"", bad, "unknown escape");
    check_refused("root ::= \"\\ud800\"", bad, "not a character");
    check_refused("root ::= <think>", bad, "tokens by number or name");
    check_refused("root ::= \"a\"\n$", bad, "line 2: expected a rule");
    check_refused("root ::= \"\xFF\"", bad, "UTF-8");
    check_refused("", bad, "no rule named root");
}

static void size_and_ambiguity_are_bounded(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_grammar *g;
    struct st_matcher *m;
    check_refused("root ::= \"a\"{100000} \"b\"{100000} \"c\"{100000}", STRATA_E_LIMIT, "more than");
    check_refused("root ::= \"a\"{999999}", STRATA_E_FORMAT, "too large");
    /* Every way of putting brackets around the text is a stack of its own. */
    assert_ok(compile("root ::= s\ns ::= \"a\" | \"a\" s s s s s | \"a\" s s s s | \"a\" s s s", &g, &err), &err);
    assert_ok(st_matcher_create(g, trie, st_tokenizer_count(demo), &m, &err), &err);
    enum strata_result r = STRATA_OK;
    for (int i = 0; i < 400 && !r; i++)
        r = st_matcher_text(m, "a", 1, &err);
    assert_int_equal(r, STRATA_E_LIMIT);
    assert_non_null(strstr(err.text, "too ambiguous"));
    st_matcher_free(m);
    st_grammar_free(g);
}

/* ---- masks ---- */

static bool in_mask(const uint32_t *mask, int32_t id)
{
    return mask[id / 32] >> id % 32 & 1;
}

/* Each token tried on its own. path: text that was accepted before. */
static void check_mask(const struct st_grammar *g, const char *path, const uint32_t *mask, bool can_end)
{
    struct strata_error err;
    for (int32_t id = 0; id < (int32_t)st_tokenizer_count(demo); id++) {
        enum st_token_type type = st_tokenizer_type(demo, id);
        struct st_bytes text = st_tokenizer_bytes(demo, id, false);
        bool want = can_end;
        if (!st_tokenizer_is_stop(demo, id)) {
            struct st_matcher *m;
            assert_ok(st_matcher_create(g, trie, st_tokenizer_count(demo), &m, &err), &err);
            assert_ok(st_matcher_text(m, path, strlen(path), &err), &err);
            want = (type == ST_TOKEN_NORMAL || type == ST_TOKEN_USER_DEFINED) && text.size > 0 &&
                   !st_matcher_text(m, text.data, text.size, &err);
            st_matcher_free(m);
        }
        if (want != in_mask(mask, id))
            fail_msg("token %d (%.*s) behind \"%s\" is %sallowed", id, (int)text.size, text.data, path, want ? "not " : "");
    }
}

static void a_mask_has_exactly_the_tokens_that_fit(void **state)
{
    (void)state;
    static const char *const grammars[] = {
        "root ::= \"yes\" | \"no\" [0-9]{2,3}",
        "root ::= \"{\" (\"\\\"\" [^\"\\\\]* \"\\\"\" | [0-9]+ | root)? \"}\"",
        "root ::= [a-z ]+ \".\"",
        "root ::= ([\xC3\xA0-\xC3\xBF] | \"\xE6\xBC\xA2\")*",
    };
    static const char *const paths[] = {"", "no", "n", "{", "{\"a", "{\"a\"", "abc", "abc.", "\xC3", "\xE6\xBC\xA2\xE6", "yes"};
    struct strata_error err;
    int compared = 0;
    for (size_t i = 0; i < sizeof grammars / sizeof *grammars; i++) {
        struct st_grammar *g;
        assert_ok(compile(grammars[i], &g, &err), &err);
        for (size_t k = 0; k < sizeof paths / sizeof *paths; k++) {
            struct st_matcher *m;
            const uint32_t *mask;
            assert_ok(st_matcher_create(g, trie, st_tokenizer_count(demo), &m, &err), &err);
            if (!st_matcher_text(m, paths[k], strlen(paths[k]), &err)) {
                assert_ok(st_matcher_mask(m, &mask, &err), &err);
                check_mask(g, paths[k], mask, st_matcher_can_end(m));
                compared++;
            }
            st_matcher_free(m);
        }
        st_grammar_free(g);
    }
    assert_in_range(compared, 12, 40);
}

static void places_of_long_repetitions_share_masks_only_where_they_are_alike(void **state)
{
    (void)state;
    static const int lengths[] = {0, 42, 43, 300, 640, 690, 699, 700};
    struct strata_error err;
    struct st_grammar *g;
    struct st_matcher *m;
    const uint32_t *mask, *first = NULL;
    char path[701];
    assert_ok(compile("root ::= [a-z]{300,700} \".\"", &g, &err), &err);
    assert_ok(st_matcher_create(g, trie, st_tokenizer_count(demo), &m, &err), &err);
    memset(path, 'x', sizeof path);
    for (int at = 0, i = 0; i < (int)(sizeof lengths / sizeof *lengths); i++) {
        assert_ok(st_matcher_text(m, path, (size_t)(lengths[i] - at), &err), &err);
        at = lengths[i];
        assert_ok(st_matcher_mask(m, &mask, &err), &err);
        first = i ? first : mask;
        assert_int_equal(mask == first, at <= 298 - ST_NET_FAR);
        path[at] = 0;
        check_mask(g, path, mask, st_matcher_can_end(m));
        path[at] = 'x';
    }
    st_matcher_free(m);
    st_grammar_free(g);
}

static void an_answer_ends_where_the_grammar_can_end(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_grammar *g;
    struct st_matcher *m;
    const uint32_t *mask;
    int32_t stop = st_tokenizer_eos(demo);
    struct st_ids yes = {0};
    assert_true(stop >= 0);
    assert_ok(st_tokenizer_encode(demo, "yes", 3, false, &yes, &err), &err);
    assert_ok(compile("root ::= \"yes\"", &g, &err), &err);
    assert_ok(st_matcher_create(g, trie, st_tokenizer_count(demo), &m, &err), &err);
    assert_ok(st_matcher_accept(m, stop, &err), &err);
    assert_true(st_matcher_nowhere(m) && !st_matcher_can_end(m));
    st_matcher_take_back(m, 1);
    assert_false(st_matcher_nowhere(m));
    for (size_t i = 0; i < yes.count; i++)
        assert_ok(st_matcher_accept(m, yes.data[i], &err), &err);
    assert_ok(st_matcher_mask(m, &mask, &err), &err);
    for (int32_t id = 0; id < (int32_t)st_tokenizer_count(demo); id++)
        assert_int_equal(in_mask(mask, id), st_tokenizer_is_stop(demo, id));
    assert_ok(st_matcher_accept(m, stop, &err), &err);
    assert_ok(st_matcher_mask(m, &mask, &err), &err);
    assert_true(in_mask(mask, stop) && !in_mask(mask, yes.data[0]));
    assert_ok(st_matcher_accept(m, yes.data[0], &err), &err);
    assert_true(st_matcher_nowhere(m));
    st_ids_free(&yes);
    st_matcher_free(m);
    st_grammar_free(g);
}

static void tokens_can_be_taken_back(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_grammar *g;
    struct st_matcher *m, *one;
    const uint32_t *mask, *want;
    struct st_ids ids = {0};
    assert_ok(st_tokenizer_encode(demo, "no12", 4, false, &ids, &err), &err);
    size_t good = ids.count;
    assert_ok(st_ids_push(&ids, 100, &err), &err); /* a guess that is not allowed, and one behind it */
    assert_ok(st_ids_push(&ids, ids.data[0], &err), &err);
    assert_ok(compile("root ::= \"yes\" | \"no\" [0-9]{2,3}", &g, &err), &err);
    assert_ok(st_matcher_create(g, trie, st_tokenizer_count(demo), &m, &err), &err);
    for (size_t i = 0; i < ids.count; i++) {
        assert_ok(st_matcher_accept(m, ids.data[i], &err), &err);
        assert_int_equal(st_matcher_nowhere(m), i >= good);
        assert_ok(st_matcher_mask(m, &mask, &err), &err);
        for (size_t w = 0; i >= good && w < st_matcher_words(m); w++)
            assert_int_equal(mask[w], UINT32_MAX);
    }
    for (size_t left = ids.count; left > 0; left--) {
        st_matcher_take_back(m, 1);
        if (left - 1 > good)
            continue;
        assert_ok(st_matcher_create(g, trie, st_tokenizer_count(demo), &one, &err), &err);
        for (size_t i = 0; i + 1 < left; i++)
            assert_ok(st_matcher_accept(one, ids.data[i], &err), &err);
        assert_ok(st_matcher_mask(m, &mask, &err), &err);
        assert_ok(st_matcher_mask(one, &want, &err), &err);
        assert_memory_equal(mask, want, st_matcher_words(m) * sizeof *mask);
        st_matcher_free(one);
    }
    st_ids_free(&ids);
    st_matcher_free(m);
    st_grammar_free(g);
}

static void masks_stay_right_when_memory_was_full_and_is_forgotten(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_grammar *g;
    struct st_matcher *m, *fresh;
    const uint32_t *mask, *want;
    /* Each of 58,000 places is a set of its own with 60 classes of bytes: more than there is room for. */
    assert_ok(compile("root ::= ([a-c] [b-d]){30000} | [a-d]{60000} | "
                      "\"zyxwvutsrqponmlkjihgfedcba0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ\"",
                      &g, &err),
              &err);
    assert_in_range(g->classes, 60, 70);
    assert_ok(st_matcher_create(g, trie, st_tokenizer_count(demo), &m, &err), &err);
    for (int i = 0; i < 29000; i++)
        assert_ok(st_matcher_text(m, "bc", 2, &err), &err);
    assert_ok(st_matcher_text(m, "d", 1, &err), &err); /* the second way only */
    assert_ok(st_matcher_mask(m, &mask, &err), &err);
    assert_ok(st_matcher_create(g, trie, st_tokenizer_count(demo), &fresh, &err), &err);
    assert_ok(st_matcher_text(fresh, "d", 1, &err), &err);
    assert_ok(st_matcher_mask(fresh, &want, &err), &err);
    assert_memory_equal(mask, want, st_matcher_words(m) * sizeof *mask);
    st_matcher_free(m);
    st_matcher_free(fresh);
    st_grammar_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grammars_take_what_their_rules_say),
        cmocka_unit_test(rules_may_contain_themselves),
        cmocka_unit_test(lists_of_any_length_need_no_deeper_stack),
        cmocka_unit_test(classes_are_sets_of_characters),
        cmocka_unit_test(lines_and_comments_are_as_documented),
        cmocka_unit_test(wrong_grammars_are_refused_with_rule_or_line),
        cmocka_unit_test(size_and_ambiguity_are_bounded),
        cmocka_unit_test(a_mask_has_exactly_the_tokens_that_fit),
        cmocka_unit_test(places_of_long_repetitions_share_masks_only_where_they_are_alike),
        cmocka_unit_test(an_answer_ends_where_the_grammar_can_end),
        cmocka_unit_test(tokens_can_be_taken_back),
        cmocka_unit_test(masks_stay_right_when_memory_was_full_and_is_forgotten),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
