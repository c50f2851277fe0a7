/* src/text/constraint: whole answers, with thinking, calls of tools in both forms, and what was begun; each call that is taken is
 * read back as one call with arguments that follow the schema. */
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/constraint.h"
#include "text/toolcall.h"
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

static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":"
    "\"string\"},\"days\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":9},\"units\":{\"enum\":[\"metric\",\"us\"]}},\"required\":[\"city\"]}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"stop\"}}]";
static const char tags_template[] = "...<tool_call>\n<function=x>...<think>...", json_template[] = "...<tool_call>...", thinking_template[] =
    "<think>";

/* '+': taken as a whole, '.': the beginning of something, '-': neither. */
static void check(const struct strata_constraint_options *o, const char *template_text, const char *const *cases)
{
    struct strata_error err;
    struct strata_constraint *c;
    assert_ok(st_constraint_create(o, template_text, trie, &c, &err), &err);
    for (; *cases; cases++) {
        struct st_matcher *m;
        assert_ok(st_constraint_begin(c, st_tokenizer_count(demo), &m, &err), &err);
        char got = st_matcher_text(m, *cases + 1, strlen(*cases + 1), &err) ? '-' : st_matcher_can_end(m) ? '+' : '.';
        if (got != **cases)
            fail_msg("\"%s\" is %c instead of %c", *cases + 1, got, **cases);
        st_matcher_free(m);
    }
    strata_constraint_free(c);
}

#define CHECK(template_text, options, ...) \
    check(&(struct strata_constraint_options)options, template_text, (const char *const[]){__VA_ARGS__, NULL})
#define WITH(...) {__VA_ARGS__}

static void thinking_comes_before_what_is_asked_for(void **state)
{
    (void)state;
    const char *grammar = "root ::= \"yes\" | \"no\"";
    CHECK(NULL, WITH(.grammar = grammar), "+yes", "-maybe", "-</think>yes");
    CHECK(thinking_template, WITH(.grammar = grammar, .prompt = "assistant\n<think>\n"), ".yes", "+hm </think</think>\n\nyes",
          "+</think>no", "-x</think>maybe", "-x</think>\n\n\nyes");
    CHECK(thinking_template, WITH(.grammar = grammar, .prompt = "assistant\n<think>\n\n</think>\n\n"), "+yes", "-<think>");
    CHECK(thinking_template, WITH(.grammar = grammar, .prompt = "assistant\n"), "+yes", "+<think>x</think>\nno", "-x");
    CHECK(json_template, WITH(.grammar = grammar, .prompt = "assistant\n"), "+yes", "-<think>");
}

static void an_answer_that_was_begun_is_finished(void **state)
{
    (void)state;
    struct strata_error err;
    struct strata_constraint *c;
    struct strata_constraint_options o = {.json_schema = "{\"type\":\"object\",\"required\":[\"a\"]}", .begun = "{\"a\":"};
    CHECK(NULL, WITH(.json_schema = o.json_schema, .begun = o.begun), "+1}", "- }", ".");
    o.begun = "[";
    assert_int_equal(st_constraint_create(&o, NULL, trie, &c, &err), STRATA_E_ARGUMENT);
    assert_non_null(strstr(err.text, "beginning of the answer"));
}

static void calls_have_the_form_of_the_template(void **state)
{
    (void)state;
    CHECK(tags_template, WITH(.tools = tools),
          "+<tool_call>\n<function=weather>\n<parameter=city>\nBonn\n</parameter>\n</function>\n</tool_call>",
          "+<tool_call>\n<function=weather>\n<parameter=city>\nBonn\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n"
          "<tool_call>\n<function=stop>\n</function>\n</tool_call>",
          "-<tool_call>\n<function=weather>\n<parameter=days>", "-<tool_call>\n<function=rain>", "-Let me see",
          "-<tool_call>\n<function=weather>\n<parameter=city>\nBonn\n</parameter>\n<parameter=days>\n10",
          ".<tool_call>\n<function=weather>\n<parameter=city>\nBonn\n</parameter>\n<parameter=units>\nus");
    CHECK(json_template, WITH(.tools = tools), "+<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bonn\", \"days\": 3}}\n</tool_call>",
          "-<tool_call>\n{\"name\": \"weather\", \"arguments\": {}", "+<tool_call>\n{\"name\": \"stop\", \"arguments\": {}}\n</tool_call>",
          "-<tool_call>\n<function");
    CHECK(tags_template, WITH(.tools = tools, .tool = "stop", .one_call = true), "+<tool_call>\n<function=stop>\n</function>\n</tool_call>",
          "-<tool_call>\n<function=weather>", "-<tool_call>\n<function=stop>\n</function>\n</tool_call>\n");
    CHECK(tags_template, WITH(.tools = tools, .json_schema = "{\"type\":\"boolean\"}"), "+true", ".<tool_call>\n<function=", "-\"");
}

static void check_refused(struct strata_constraint_options o, const char *template_text, enum strata_result code, const char *says)
{
    struct strata_error err;
    struct strata_constraint *c;
    enum strata_result r = st_constraint_create(&o, template_text, trie, &c, &err);
    strata_constraint_free(c);
    if (r != code || !strstr(err.text, says))
        fail_msg("%s: %s, but should say %s", strata_result_name(r), r ? err.text : "", says);
}

static void what_cannot_be_enforced_is_refused_by_name(void **state)
{
    (void)state;
    check_refused((struct strata_constraint_options){0}, NULL, STRATA_E_ARGUMENT, "needs a grammar");
    check_refused((struct strata_constraint_options){.grammar = "root ::= \"a\"", .json_schema = "{}"}, NULL, STRATA_E_ARGUMENT,
                  "cannot go with");
    check_refused((struct strata_constraint_options){.json_schema = "{"}, NULL, STRATA_E_FORMAT, "is not JSON");
    check_refused((struct strata_constraint_options){.json_schema = "{\"properties\":{\"x\":{\"multipleOf\":2}}}"}, NULL,
                  STRATA_E_UNSUPPORTED, "schema.properties.x: keyword \"multipleOf\"");
    check_refused((struct strata_constraint_options){.tools = tools, .tool = "rain"}, tags_template, STRATA_E_ARGUMENT, "no tool named rain");
    const char *odd = "[{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a b\":{}}}}]";
    check_refused((struct strata_constraint_options){.tools = odd}, tags_template, STRATA_E_UNSUPPORTED, "cannot be written in a tag");
    odd = "[{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\",\"uniqueItems\":true}}}}]";
    check_refused((struct strata_constraint_options){.tools = odd}, tags_template, STRATA_E_UNSUPPORTED,
                  "tool f.properties.a: keyword \"uniqueItems\"");
    odd = "[{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"minProperties\":1}}]";
    check_refused((struct strata_constraint_options){.tools = odd}, tags_template, STRATA_E_UNSUPPORTED, "keyword \"minProperties\"");
    check_refused((struct strata_constraint_options){.tools = odd}, json_template, STRATA_E_UNSUPPORTED, "keyword \"minProperties\"");
}

/* ---- answers by chance ---- */

struct calls_seen {
    int calls, complete, content;
    char arguments[20000];
    size_t size;
};

static void note(void *user, const struct st_output_event *e)
{
    struct calls_seen *seen = user;
    if (e->kind == ST_OUTPUT_CALL)
        seen->calls++, seen->size = 0;
    if (e->kind == ST_OUTPUT_CONTENT)
        seen->content++;
    if (e->kind == ST_OUTPUT_ARGUMENTS && seen->size + e->size < sizeof seen->arguments) {
        memcpy(seen->arguments + seen->size, e->text, e->size);
        seen->size += e->size;
    }
    if (e->kind == ST_OUTPUT_CALL_END && e->complete) {
        json_t *arguments = json_loadb(seen->arguments, seen->size, 0, NULL);
        const json_t *city = json_object_get(arguments, "city"), *days = json_object_get(arguments, "days"),
                     *units = json_object_get(arguments, "units");
        bool good = json_is_object(arguments) && (!city || json_is_string(city)) &&
                    (!days || (json_is_integer(days) && json_integer_value(days) >= 1 && json_integer_value(days) <= 9)) &&
                    (!units || strcmp(json_string_value(units), "metric") == 0 || strcmp(json_string_value(units), "us") == 0);
        if (!good)
            fail_msg("arguments %.*s", (int)seen->size, seen->arguments);
        seen->complete++;
        json_decref(arguments);
    }
}

/* Picks allowed tokens by chance; those that end something are taken sooner or later. Returns the text's size, 0: too long. */
static size_t answer_by_chance(const struct strata_constraint *c, uint64_t *seed, char *text, size_t room)
{
    struct strata_error err;
    struct st_matcher *m;
    size_t size = 0;
    assert_ok(st_constraint_begin(c, st_tokenizer_count(demo), &m, &err), &err);
    static const char end[] = "\n</parameter>";
    while (size + 64 < room) {
        const uint32_t *mask;
        if ((*seed >> 40) % 8 == 0 && !st_matcher_text(m, end, strlen(end), &err)) { /* free text ends sooner or later */
            memcpy(text + size, end, strlen(end));
            size += strlen(end);
        }
        uint32_t seen = 0;
        int32_t pick = -1;
        assert_ok(st_matcher_mask(m, &mask, &err), &err);
        for (int32_t id = 0; id < (int32_t)st_tokenizer_count(demo); id++) {
            if (!(mask[id / 32] >> id % 32 & 1))
                continue;
            *seed = *seed * 6364136223846793005u + 1442695040888963407u;
            struct st_bytes t = st_tokenizer_bytes(demo, id, false);
            uint32_t weight = st_tokenizer_is_stop(demo, id) || memchr(t.data, '"', t.size) ? 1000 : 1;
            seen += weight;
            if ((*seed >> 33) % seen < weight)
                pick = id;
        }
        if (st_tokenizer_is_stop(demo, pick))
            break;
        struct st_bytes t = st_tokenizer_bytes(demo, pick, false);
        memcpy(text + size, t.data, t.size);
        size += t.size;
        assert_ok(st_matcher_accept(m, pick, &err), &err);
        assert_false(st_matcher_nowhere(m));
    }
    bool ended = st_matcher_can_end(m);
    st_matcher_free(m);
    return ended ? size : 0;
}

static void calls_by_chance_are_read_as_calls_with_valid_arguments(void **state)
{
    (void)state;
    struct strata_error err;
    uint64_t seed = 3;
    int finished = 0;
    json_t *list = json_loads(tools, 0, NULL);
    static char text[1500];
    for (int form = 0; form < 2; form++) {
        struct strata_constraint *c;
        struct strata_constraint_options o = {.tools = tools};
        assert_ok(st_constraint_create(&o, form ? json_template : tags_template, trie, &c, &err), &err);
        for (int i = 0; i < 12; i++) {
            struct calls_seen seen = {0};
            struct st_output *out;
            size_t size = answer_by_chance(c, &seed, text, sizeof text);
            if (!size)
                continue;
            /* What is no character is shown as one before anybody reads it. */
            for (size_t bad; (bad = st_utf8_invalid(text, size)) < size;)
                text[bad] = '?';
            struct st_output_options options = {.tools = list, .event = note, .user = &seen};
            assert_ok(st_output_create(&options, &out, &err), &err);
            assert_ok(st_output_push(out, text, size, &err), &err);
            assert_ok(st_output_finish(out, &err), &err);
            st_output_free(out);
            if (seen.calls == 0 || seen.calls != seen.complete || seen.content)
                fail_msg("%d calls, %d complete, %d texts: %.*s", seen.calls, seen.complete, seen.content, (int)size, text);
            finished++;
        }
        strata_constraint_free(c);
    }
    json_decref(list);
    assert_true(finished > 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thinking_comes_before_what_is_asked_for),
        cmocka_unit_test(an_answer_that_was_begun_is_finished),
        cmocka_unit_test(calls_have_the_form_of_the_template),
        cmocka_unit_test(what_cannot_be_enforced_is_refused_by_name),
        cmocka_unit_test(calls_by_chance_are_read_as_calls_with_valid_arguments),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
