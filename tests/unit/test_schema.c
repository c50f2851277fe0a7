/* src/text/schema: which texts a schema's grammar takes, and which keywords are refused by name. */
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/matcher.h"
#include "text/schema.h"
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

enum form { PLAIN, TAGGED, PARAMETER };

static enum strata_result compile(const char *text, enum form form, struct st_grammar **g, struct strata_error *err)
{
    struct st_net *net;
    struct st_schema *s;
    uint32_t rule;
    json_t *schema = json_loads(text, JSON_DECODE_ANY, NULL);
    if (!schema)
        fail_msg("not JSON: %s", text);
    *g = NULL;
    assert_ok(st_net_create(&net, err), err);
    assert_ok(st_schema_create(net, form != PLAIN, &s, err), err);
    enum strata_result r = form == PARAMETER ? st_schema_parameter(s, schema, schema, "schema", &rule, err)
                                             : st_schema_rule(s, schema, schema, "schema", &rule, err);
    if (!r)
        r = st_net_finish(net, rule, g, err);
    st_schema_free(s);
    st_net_free(net);
    json_decref(schema);
    return r;
}

/* cases: '+' and a text that is taken, '-' and one that is not; ended by NULL. */
static void check(enum form form, const char *schema, const char *const *cases)
{
    struct strata_error err;
    struct st_grammar *g;
    assert_ok(compile(schema, form, &g, &err), &err);
    for (; *cases; cases++) {
        struct st_matcher *m;
        assert_ok(st_matcher_create(g, trie, st_tokenizer_count(demo), &m, &err), &err);
        bool taken = !st_matcher_text(m, *cases + 1, strlen(*cases + 1), &err) && st_matcher_can_end(m);
        if (taken != (**cases == '+'))
            fail_msg("%s %s \"%s\"", schema, taken ? "takes" : "does not take", *cases + 1);
        st_matcher_free(m);
    }
    st_grammar_free(g);
}

#define CHECK(schema, ...) check(PLAIN, schema, (const char *const[]){__VA_ARGS__, NULL})

static void any_value_is_any_json(void **state)
{
    (void)state;
    CHECK("{}", "+null", "+[1, -2.5e+10, \"a\\u00e9\\n\", {}, {\"a\":{\"b\": [ ]}}]", "-[1,]", "-{a:1}", "-01", "-\"\x01\"", "-",
          "-\"\\u0000\"", "-\"\\ud800\"", "+\"\\ud83d\\ude00\"", "-\"\\q\"", "+{\n  \"a\": 1,\n  \"b\": 2\n}", "-{  \"a\": 1}");
    CHECK("true", "+0", "-0 ");
    CHECK("{\"title\": \"t\", \"description\": \"d\", \"default\": 3, \"examples\": [1], \"$comment\": \"\"}", "+\"x\"");
}

static void types_are_enforced(void **state)
{
    (void)state;
    CHECK("{\"type\":\"string\"}", "+\"\"", "+\"a\\\"b\"", "-1", "-\"a");
    CHECK("{\"type\":\"integer\"}", "+0", "+-12", "-1.5", "--0", "-1e3");
    CHECK("{\"type\":\"number\"}", "+1.5", "+-0.25e-3", "+7", "-.5", "-1e999");
    CHECK("{\"type\":[\"boolean\",\"null\"]}", "+true", "+false", "+null", "-0");
    CHECK("{\"type\":\"array\"}", "+[]", "+[1,\"a\"]", "-{}");
    CHECK("{\"type\":\"object\"}", "+{}", "+{\"a\":[1]}", "-[]");
    CHECK("{\"minLength\":2}", "+\"ab\"", "-\"a\"", "-12");
}

static void members_come_in_order_and_optional_ones_may_be_left_out(void **state)
{
    (void)state;
    CHECK("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"},\"c\":{\"type\":\"null\"}},"
          "\"required\":[\"b\"]}",
          "+{\"b\":\"\"}", "+{\"a\":1,\"b\":\"\"}", "+{\"a\": 1, \"b\": \"x\", \"c\": null}", "+{\"b\":\"\",\"c\":null}", "-{}",
          "-{\"a\":1}", "-{\"b\":\"\",\"a\":1}", "-{\"b\":\"\",\"d\":1}", "-{\"a\":1,\"a\":1,\"b\":\"\"}", "-{\"a\":\"1\",\"b\":\"\"}");
    CHECK("{\"properties\":{\"a\":{},\"b\":{}},\"additionalProperties\":false}", "+{}", "+{\"a\":1}", "+{\"b\":[]}", "-{\"c\":1}");
    CHECK("{\"type\":\"object\",\"required\":[\"x\"]}", "+{\"x\":1}", "+{\"x\":1,\"y\":2}", "-{}", "-{\"y\":2}");
    CHECK("{\"properties\":{\"q\\\"\\\\\":{\"type\":\"null\"}}}", "+{\"q\\\"\\\\\":null}");
}

static void other_members_follow_their_schema_and_have_other_names(void **state)
{
    (void)state;
    CHECK("{\"properties\":{\"a\":{\"type\":\"integer\"},\"ab\":{\"type\":\"integer\"}},\"additionalProperties\":{\"type\":\"boolean\"}}",
          "+{\"a\":1,\"ab\":2}", "+{\"b\":true}", "+{\"a\":1,\"abc\":true,\"\":false}", "-{\"a\":true}", "-{\"ab\":true}",
          "+{\"\xC3\xA9\":true}", "-{\"\\u0061\":true}", "-{\"b\":1}");
    CHECK("{\"properties\":{\"a\":{\"type\":\"integer\"}},\"additionalProperties\":true}", "+{\"z\":[1]}", "-{\"a\":[1]}");
}

static void arrays_have_their_elements_and_counts(void **state)
{
    (void)state;
    CHECK("{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":3}", "+[1,2]", "+[1, 2, 3]", "-[1]",
          "-[1,2,3,4]", "-[]", "-[1,\"2\"]");
    CHECK("{\"items\":{\"type\":\"null\"}}", "+[]", "+[null]", "+[null,null,null]", "-[1]");
    CHECK("{\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"items\":false}", "+[]", "+[1]", "+[1,\"a\"]", "-[1,\"a\",1]",
          "-[\"a\"]");
    CHECK("{\"prefixItems\":[{\"type\":\"integer\"}],\"items\":{\"type\":\"string\"},\"minItems\":1}", "+[1]", "+[1,\"a\",\"b\"]", "-[]",
          "-[1,2]");
    CHECK("{\"type\":\"array\",\"maxItems\":0}", "+[]", "-[1]");
    CHECK("{\"type\":\"array\",\"minItems\":3,\"items\":{\"const\":1}}", "-[1,1]", "+[1,1,1]", "+[1,1,1,1]");
}

static void strings_have_lengths_patterns_and_formats(void **state)
{
    (void)state;
    CHECK("{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}", "+\"ab\"", "+\"\xC3\xA9\\n\xF0\x9F\x98\x80\"", "-\"a\"", "-\"abcd\"",
          "+\"\\ud83d\\ude00a\"");
    CHECK("{\"type\":\"string\",\"pattern\":\"^[A-Z]{2}-\\\\d+$\"}", "+\"AB-1\"", "-\"AB-\"", "-\"xAB-1\"", "-\"AB-1x\"");
    CHECK("{\"type\":\"string\",\"pattern\":\"b+\"}", "+\"b\"", "+\"abba\"", "-\"aa\"", "+\"\\\"b\\\\\"");
    CHECK("{\"type\":\"string\",\"pattern\":\"^a|b$\"}", "+\"ax\"", "+\"xb\"", "-\"xa\"", "-\"bx\"");
    CHECK("{\"type\":\"string\",\"pattern\":\"^(?:a|[^b-z\\\\s]\\\\.)*?$\"}", "+\"\"", "+\"aA.a\"", "-\"b.\"", "-\" .\"");
    CHECK("{\"type\":\"string\",\"pattern\":\"^\\\\\\\\\\\"$\"}", "+\"\\\\\\\"\"", "-\"\\\\\"");
    CHECK("{\"type\":\"string\",\"pattern\":\"^\\\\w\\\\W\\\\S\\\\D.$\"}", "+\"a-b!\xC3\xA9\"", "-\"a\xC3\xA9""b!x\"");
    CHECK("{\"type\":\"string\",\"format\":\"date\"}", "+\"2024-02-29\"", "-\"2023-02-29\"", "-\"2024-04-31\"", "+\"1999-12-31\"");
    CHECK("{\"type\":\"string\",\"format\":\"date-time\"}", "+\"2024-01-01T23:59:59.5Z\"", "-\"2024-01-01 23:59:59Z\"");
    CHECK("{\"type\":\"string\",\"format\":\"time\"}", "+\"00:00:00+05:30\"", "-\"24:00:00Z\"");
    CHECK("{\"type\":\"string\",\"format\":\"uuid\"}", "+\"01234567-89ab-CDEF-0123-456789abcdef\"", "-\"0123\"");
    CHECK("{\"type\":\"string\",\"format\":\"ipv4\"}", "+\"255.0.10.199\"", "-\"256.0.0.1\"");
    CHECK("{\"type\":\"string\",\"format\":\"email\"}", "+\"a.b@c-d.org\"", "-\"a@b\"");
}

static void choices_are_exact(void **state)
{
    (void)state;
    CHECK("{\"enum\":[\"a\",\"ab\",1,1.5,null,{\"x\":[1,2]}]}", "+\"a\"", "+\"ab\"", "-\"abc\"", "+1", "+1.5", "+null",
          "+{\"x\":[1,2]}", "+{\"x\": [1, 2]}", "-{\"x\":[1]}");
    CHECK("{\"const\":\"a\\\"\\n,:\"}", "+\"a\\\"\\n,:\"", "-\"a\"");
    CHECK("{\"enum\":[\"a\",1],\"type\":\"string\"}", "+\"a\"", "-1");
    CHECK("{\"const\":0.1}", "+0.1");
}

static void alternatives_references_and_merged_schemas_hold(void **state)
{
    (void)state;
    CHECK("{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\",\"maxLength\":1}]}", "+12", "+\"a\"", "-\"ab\"", "-null");
    CHECK("{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"string\"}]}", "+1", "+\"a\"");
    CHECK("{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"a\"},\"x\":{\"type\":\"integer\"}},\"required\":[\"k\",\"x\"]},"
          "{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"b\"}},\"required\":[\"k\"]}]}",
          "+{\"k\":\"a\",\"x\":1}", "+{\"k\":\"b\"}", "-{\"k\":\"b\",\"x\":1}", "-{\"k\":\"a\"}");
    CHECK("{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"next\":{\"anyOf\":[{"
          "\"$ref\":\"#/$defs/n\"},{\"type\":\"null\"}]}},\"required\":[\"v\",\"next\"]}}}",
          "+{\"v\":1,\"next\":{\"v\":2,\"next\":null}}", "-{\"v\":1}");
    CHECK("{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}", "+[]", "+[[],[[]]]", "-[1]");
    CHECK("{\"allOf\":[{\"$ref\":\"#/definitions/a\"},{\"properties\":{\"b\":{\"type\":\"null\"}},\"required\":[\"b\"]}],\"definitions\":{"
          "\"a\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]}}}",
          "+{\"a\":1,\"b\":null}", "-{\"a\":1}", "-{\"b\":null}");
    CHECK("{\"properties\":{\"a\":{\"type\":\"number\"}},\"allOf\":[{\"properties\":{\"a\":{\"type\":\"integer\"}}}]}", "+{\"a\":1}",
          "-{\"a\":1.5}");
    CHECK("{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"anyOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]}", "+{\"a\":1}",
          "+{\"b\":1}", "-{}");
}

static void check_refused(const char *schema, enum form form, const char *says)
{
    struct strata_error err;
    struct st_grammar *g;
    enum strata_result r = compile(schema, form, &g, &err);
    st_grammar_free(g);
    if (!r || !strstr(err.text, says))
        fail_msg("%s gives %s: %s", schema, strata_result_name(r), r ? err.text : "");
}

static void a_keyword_that_would_be_ignored_is_refused_with_name_and_place(void **state)
{
    (void)state;
    check_refused("{\"properties\":{\"a\":{\"items\":{\"uniqueItems\":true}}}}", PLAIN,
                  "schema.properties.a.items: keyword \"uniqueItems\" is not supported");
    static const char *const unknown[] = {"not",           "if",       "multipleOf",    "patternProperties", "minProperties",
                                          "propertyNames", "contains", "dependentRequired", "nullable",       "unevaluatedProperties"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        char schema[100], says[100];
        snprintf(schema, sizeof schema, "{\"type\":\"object\",\"%s\":1}", unknown[i]);
        snprintf(says, sizeof says, "schema: keyword \"%s\"", unknown[i]);
        check_refused(schema, PLAIN, says);
    }
    check_refused("{\"type\":\"integer\",\"minLength\":1}", PLAIN, "keyword \"minLength\" says nothing about the type");
    check_refused("{\"enum\":[1],\"minimum\":0}", PLAIN, "keyword \"minimum\" beside \"enum\"");
    check_refused("{\"$ref\":\"#\",\"maximum\":0}", PLAIN, "keyword \"maximum\" beside \"$ref\"");
    check_refused("{\"$ref\":\"other.json#/a\"}", PLAIN, "leads to nothing inside the schema");
    check_refused("{\"$ref\":\"#\"}", PLAIN, "leads to nothing");
    check_refused("{\"format\":\"int32\",\"type\":\"string\"}", PLAIN, "format \"int32\"");
    check_refused("{\"pattern\":\"(?=a)\"}", PLAIN, "pattern \"(?=a)\"");
    check_refused("{\"pattern\":\"a\\\\b\"}", PLAIN, "this escape is not supported");
    check_refused("{\"pattern\":\"a^b\"}", PLAIN, "^ and $");
    check_refused("{\"pattern\":\"[a\"}", PLAIN, "a class is not closed");
    check_refused("{\"pattern\":\"a\",\"minLength\":1}", PLAIN, "beside each other");
    check_refused("{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", PLAIN, "keyword \"oneOf\"");
    check_refused("{\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]}", PLAIN, "keyword \"oneOf\"");
    check_refused("{\"allOf\":[{\"properties\":{\"a\":{}},\"additionalProperties\":false},{\"properties\":{\"b\":{}}}]}", PLAIN,
                  "keyword \"additionalProperties\"");
    check_refused("{\"allOf\":[{\"minimum\":1},{\"minimum\":2}]}", PLAIN, "keyword \"minimum\" stands twice");
    check_refused("{\"type\":\"text\"}", PLAIN, "type is not one of");
    check_refused("false", PLAIN, "allows nothing");
    check_refused("3", PLAIN, "neither an object nor a boolean");
    check_refused("{\"enum\":[]}", PLAIN, "leave no value");
    check_refused("{\"type\":\"integer\",\"minimum\":2,\"maximum\":1}", PLAIN, "no integer is between");
    check_refused("{\"type\":\"integer\",\"minimum\":0.2,\"maximum\":0.8}", PLAIN, "no integer is between");
    check_refused("{\"type\":\"array\",\"minItems\":2,\"items\":false}", PLAIN, "minItems is more");
    check_refused("{\"required\":[\"a\"],\"additionalProperties\":false}", PLAIN, "forbids");
    check_refused("{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", PLAIN, "can never end");
    check_refused("{\"type\":\"string\",\"maxLength\":100000000}", PLAIN, "maxLength is not a whole number up to");
}

/* Bounds by chance, and numbers near them: taken exactly when they are inside. */
static void numbers_are_taken_exactly_between_their_bounds(void **state)
{
    (void)state;
    uint64_t seed = 7;
    int taken_count = 0;
    for (int round = 0; round < 300; round++) {
        long v[3];
        for (int i = 0; i < 3; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            v[i] = (long)(seed >> 33) % (round % 3 == 0 ? 3000 : 40) - (round % 3 == 0 ? 1500 : 20);
        }
        bool open_min = seed >> 20 & 1, open_max = seed >> 21 & 1, whole = round & 1;
        double unit = whole ? 1 : 8, min = (double)(v[0] < v[1] ? v[0] : v[1]) / unit, max = (double)(v[0] < v[1] ? v[1] : v[0]) / unit;
        char schema[300], text[40];
        snprintf(schema, sizeof schema, "{\"type\":\"%s\",\"%s\":%.3f,\"%s\":%.3f}", whole ? "integer" : "number",
                 open_min ? "exclusiveMinimum" : "minimum", min, open_max ? "exclusiveMaximum" : "maximum", max);
        struct strata_error err;
        struct st_grammar *g;
        if (compile(schema, PLAIN, &g, &err))
            continue;
        for (int k = -12; k < 40; k++) {
            double x = (k < 14 ? min : k < 30 ? max : (double)v[2] / unit) + (k < 0 ? k : k % 7 - 3) / unit / (k & 1 ? 1 : 16);
            snprintf(text, sizeof text, whole ? "%.0f" : k % 3 ? "%.7g" : "%.4f", x);
            x = strtod(text, NULL);
            if (strcmp(text, "-0") == 0 || (text[0] == '-' && x == 0) || strchr(text, 'e'))
                continue;
            bool inside = (open_min ? x > min : x >= min) && (open_max ? x < max : x <= max);
            struct st_matcher *m;
            assert_ok(st_matcher_create(g, trie, st_tokenizer_count(demo), &m, &err), &err);
            bool taken = !st_matcher_text(m, text, strlen(text), &err) && st_matcher_can_end(m);
            st_matcher_free(m);
            if (taken != inside)
                fail_msg("%s %s %s", schema, taken ? "takes" : "does not take", text);
            taken_count += taken;
        }
        st_grammar_free(g);
    }
    assert_true(taken_count > 1000);
}

static void json_between_tags_never_has_the_end_of_one(void **state)
{
    (void)state;
    check(TAGGED, "{}", (const char *const[]){"+\"a<b\"", "-\"a</b\"", "+\"a<\\/b\"", "+\"<<\"", "+\"<<a\"", "-\"<</\"", NULL});
    check(TAGGED, "{\"enum\":[\"</p\"]}", (const char *const[]){"+\"<\\/p\"", "-\"</p\"", NULL});
    check(TAGGED, "{\"type\":\"string\",\"maxLength\":3}", (const char *const[]){"+\"\\u003ca\"", "-\"<\"", NULL});
}

static void arguments_in_tags_are_text_for_strings_and_json_for_the_rest(void **state)
{
    (void)state;
    check(PARAMETER, "{\"type\":\"string\"}",
          (const char *const[]){"+free text\n</parameter>", "+a <b> </param\n</parameter>", "-a\n</parameter>x", "-a", NULL});
    check(PARAMETER, "{\"type\":\"integer\"}", (const char *const[]){"+12\n</parameter>", "-a\n</parameter>", "-\"1\"\n</parameter>", NULL});
    check(PARAMETER, "{\"enum\":[\"north\",\"south\"]}", (const char *const[]){"+north\n</parameter>", "-\"north\"\n</parameter>", NULL});
    check(PARAMETER, "{\"type\":\"string\",\"pattern\":\"^[a-c]+$\"}",
          (const char *const[]){"+abc\n</parameter>", "-abd\n</parameter>", NULL});
    check(PARAMETER, "{\"type\":[\"string\",\"null\"]}", (const char *const[]){"+null\n</parameter>", "+12\n</parameter>", NULL});
    check(PARAMETER, "{\"anyOf\":[{\"type\":\"integer\",\"minimum\":5},{\"type\":\"string\"}]}",
          (const char *const[]){"+7\n</parameter>", "-3\n</parameter>", "- 3\n</parameter>", "+three\n</parameter>", NULL});
    check(PARAMETER, "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]}",
          (const char *const[]){"+{\"a\": 1}\n</parameter>", "-{}\n</parameter>", NULL});
    check_refused("{\"type\":\"string\",\"uniqueItems\":true}", PARAMETER, "keyword \"uniqueItems\" is not supported");
    check_refused("{\"enum\":[\"</parameter>\"]}", PARAMETER, "cannot be written in tags");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_value_is_any_json),
        cmocka_unit_test(types_are_enforced),
        cmocka_unit_test(members_come_in_order_and_optional_ones_may_be_left_out),
        cmocka_unit_test(other_members_follow_their_schema_and_have_other_names),
        cmocka_unit_test(arrays_have_their_elements_and_counts),
        cmocka_unit_test(strings_have_lengths_patterns_and_formats),
        cmocka_unit_test(choices_are_exact),
        cmocka_unit_test(alternatives_references_and_merged_schemas_hold),
        cmocka_unit_test(a_keyword_that_would_be_ignored_is_refused_with_name_and_place),
        cmocka_unit_test(numbers_are_taken_exactly_between_their_bounds),
        cmocka_unit_test(json_between_tags_never_has_the_end_of_one),
        cmocka_unit_test(arguments_in_tags_are_text_for_strings_and_json_for_the_rest),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
