/* src/text/toolcall: reasoning, content and tool calls in a stream. */
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/toolcall.h"

static const char tool_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},\"b\":{\"type\":\"boolean\"},\"o\":{\"type\":\"object\"},"
    "\"n\":{\"type\":[\"string\",\"null\"]},\"e\":{\"enum\":[\"1\",\"2\"]},\"a\":{\"anyOf\":[{\"type\":\"integer\"},{"
    "\"type\":"
    "\"string\"}]}}}}},{\"name\":\"g\",\"input_schema\":{\"properties\":{\"x\":{\"type\":\"string\"}}}}]";

struct log {
    char text[4000];
    size_t used;
    enum st_output_kind last;
    bool any;
};

/* Writes events as R[...] C[...] F0(name) arguments E0 or X0[rest]; texts of one kind in a row become one. */
static void note(void *user, const struct st_output_event *e)
{
    struct log *l = user;
    bool text = e->kind == ST_OUTPUT_REASONING || e->kind == ST_OUTPUT_CONTENT;
    bool joined = l->any && l->last == e->kind && text;
    static const char *const open[] = {"R[", "C[", "F", "", "E"};
    if (joined)
        l->used--;
    else if (e->kind == ST_OUTPUT_CALL_END)
        l->used += (size_t)sprintf(l->text + l->used, e->complete ? "E%d" : "X%d[", e->call);
    else if (e->kind == ST_OUTPUT_CALL)
        l->used += (size_t)sprintf(l->text + l->used, "F%d(", e->call);
    else
        l->used += (size_t)sprintf(l->text + l->used, "%s", open[e->kind]);
    assert_true(l->used + e->size + 10 < sizeof l->text);
    memcpy(l->text + l->used, e->text, e->size);
    l->used += e->size;
    if (text || (e->kind == ST_OUTPUT_CALL_END && !e->complete))
        l->text[l->used++] = ']';
    if (e->kind == ST_OUTPUT_CALL)
        l->text[l->used++] = ')';
    l->text[l->used] = 0;
    l->last = e->kind;
    l->any = true;
}

static void read_in_steps(const char *text, size_t size, bool thinking, const json_t *tools, size_t step, struct log *l)
{
    struct strata_error err;
    struct st_output *o;
    *l = (struct log){0};
    struct st_output_options options = {thinking, tools, note, l};
    assert_ok(st_output_create(&options, &o, &err), &err);
    for (size_t at = 0; at < size; at += step)
        assert_ok(st_output_push(o, text + at, size - at < step ? size - at : step, &err), &err);
    assert_ok(st_output_finish(o, &err), &err);
    st_output_free(o);
}

static void check(const char *text, bool thinking, const char *tools_text, const char *want)
{
    json_t *tools = tools_text ? json_loads(tools_text, 0, NULL) : NULL;
    for (size_t step = 1; step <= strlen(text) + 1; step++) {
        struct log l;
        read_in_steps(text, strlen(text), thinking, tools, step, &l);
        if (strcmp(l.text, want) != 0)
            fail_msg("in steps of %zu: \"%s\" gives\n%s\ninstead of\n%s", step, text, l.text, want);
    }
    json_decref(tools);
}

static void reasoning_ends_at_its_tag(void **state)
{
    (void)state;
    check("\nlet me\nthink\n</think>\n\nanswer\n", true, NULL, "R[let me\nthink]C[answer\n]");
    check("a</think>b", true, tool_text, "R[a]C[b]");
    check("</think>b", true, tool_text, "C[b]");
    check("\n</think>\n\n", true, tool_text, "");
    check("<think>\nx\n\n</think>y", true, NULL, "R[x\n]C[y]");
    check("a </thin", true, NULL, "R[a </thin]");
    check("a\n</x>\n</think", true, NULL, "R[a\n</x>\n</think]");
    check("a <tool_call>", true, tool_text, "R[a <tool_call>]");
    check("<think>x</think>y", false, NULL, "R[x]C[y]");
    check("\n<think>\nx\n</think>\n\ny", false, tool_text, "R[x]C[y]");
    check("say <think>x</think>", false, tool_text, "C[say <think>x</think>]");
    check("<thin", false, NULL, "C[<thin]");
    check("", true, NULL, "");
}

static void content_passes_what_is_no_call(void **state)
{
    (void)state;
    check("a < b <tool> <tool_call", false, tool_text, "C[a < b <tool> <tool_call]");
    check("a <tool_call> b </tool_call>", false, tool_text, "C[a <tool_call> b </tool_call>]");
    check("x <function=f> y", false, tool_text, "C[x <function=f> y]");
    check("<function=f g>", false, tool_text, "C[<function=f g>]");
    check("<tool_call>\n<function=f", false, tool_text, "C[<tool_call>\n<function=f]");
    check("<tool_call>{\"name\": 5}</tool_call>z", false, tool_text, "C[<tool_call>{\"name\": 5}</tool_call>z]");
    check("<tool_call>{\"name\": ", false, tool_text, "C[<tool_call>{\"name\": ]");
    check("<tool_call>{]</tool_call>", false, tool_text, "C[<tool_call>{]</tool_call>]");
    check("<tool_call>\n<function=f>\n</function>\n</tool_call>", false, NULL,
          "C[<tool_call>\n<function=f>\n</function>\n</tool_call>]");
    check("ends with blanks \n ", false, tool_text, "C[ends with blanks \n ]");
}

static void calls_are_read_with_their_types(void **state)
{
    (void)state;
    check("Text.\n\n<tool_call>\n<function=f>\n<parameter=s>\n12\n</parameter>\n<parameter=i>\n34\n</parameter>\n</"
          "function>\n"
          "</tool_call>\n",
          false, tool_text, "C[Text.]F0(f){\"s\": \"12\", \"i\": 34}E0");
    check("<tool_call><function=f></function></tool_call>", false, tool_text, "F0(f){}E0");
    check("<tool_call><function=f><parameter=s>a\n<b>\n\"q\"</parameter></function></tool_call>after", false, tool_text,
          "F0(f){\"s\": \"a\\n<b>\\n\\\"q\\\"\"}E0C[after]");
    check(
        "<function=f>\n<parameter=b>\nTrue\n</parameter>\n<parameter=o>\n{\"k\": [1, 2.50]}\n</parameter>\n</function>",
        false, tool_text, "F0(f){\"b\": true, \"o\": {\"k\": [1, 2.50]}}E0");
    check(
        "<function=f>\n<parameter=n>\nnull\n</parameter>\n<parameter=e>\n1\n</parameter>\n<parameter=a>\n1\n</"
        "parameter>\n"
        "<parameter=i>\nnot a number\n</parameter>\n<parameter=unknown>\n[1]\n</parameter>\n</function>\n</tool_call>",
        false, tool_text, "F0(f){\"n\": null, \"e\": \"1\", \"a\": 1, \"i\": \"not a number\", \"unknown\": [1]}E0");
    check("<function=g>\n<parameter=x>\n7\n</parameter>\n</function>", false, tool_text, "F0(g){\"x\": \"7\"}E0");
    check("<function=other>\n<parameter=x>\n7\n</parameter>\n</function>", false, tool_text, "F0(other){\"x\": 7}E0");
    check("<function=f><parameter=s>\n\n\n</parameter><parameter=n></parameter></function>", false, tool_text,
          "F0(f){\"s\": \"\\n\", \"n\": \"\"}E0");
    check("think</think>\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>", true, tool_text,
          "R[think]F0(f){}E0");
}

static void several_calls_are_numbered(void **state)
{
    (void)state;
    check("<tool_call>\n<function=f>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
          false, tool_text, "F0(f){}E0F1(g){}E1");
    check("<tool_call>\n<function=f>\n</function>\n<function=g>\n</function>\n<function=f></function></tool_call>end",
          false, tool_text, "F0(f){}E0F1(g){}E1F2(f){}E2C[end]");
    check("hi\n<function=f>\n</function>\n<function=g>\n</function>", false, tool_text, "C[hi]F0(f){}E0F1(g){}E1");
    check("<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"g\"}</tool_call>", false,
          tool_text, "F0(f){}E0F1(g){}E1");
    check("<tool_call><function=f></function></tool_call>\n\nThen <b>\n<tool_call><function=g></function></tool_call>",
          false, tool_text, "F0(f){}E0C[Then <b>]F1(g){}E1");
}

static void json_calls_are_read(void **state)
{
    (void)state;
    check("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"}</tool_call>\\\"\", \"l\": [{}]}}\n</tool_call>x",
          false, tool_text, "F0(f){\"s\": \"}</tool_call>\\\"\", \"l\": [{}]}E0C[x]");
    check("<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}</tool_call>", false, tool_text,
          "F0(f){\"a\":1}E0");
    check("<tool_call>{\"name\":\"f\",\"arguments\":\"no\"}</tool_call>", false, tool_text,
          "C[<tool_call>{\"name\":\"f\",\"arguments\":\"no\"}</tool_call>]");
    check("<tool_call>{\"name\":\"f\",\"parameters\":{\"x\":1}}", false, tool_text, "F0(f){\"x\": 1}E0");
}

static void calls_cut_off_say_so(void **state)
{
    (void)state;
    check("<tool_call>\n<function=f>\n<parameter=i>\n1\n</parameter>\n<parameter=s>\nhalf", false, tool_text,
          "F0(f){\"i\": 1X0[\nhalf]");
    check("<tool_call>\n<function=f>\n", false, tool_text, "F0(f)X0[]");
    check("<tool_call>\n<function=f>\n<para", false, tool_text, "F0(f)X0[<para]");
    check("<tool_call>\n<function=f>\n</function>\n</tool", false, tool_text, "F0(f){}E0C[</tool]");
    check("<function=f>\nnoise <x>\n<parameter=a b>\n</tool_call>", false, tool_text, "F0(f){}E0");
}

static void tools_are_found_in_all_api_forms(void **state)
{
    (void)state;
    json_t *tools = json_loads(tool_text, 0, NULL);
    assert_true(st_tool_known(tools, "f", 1) && st_tool_known(tools, "g", 1));
    assert_false(st_tool_known(tools, "h", 1) || st_tool_known(NULL, "f", 1));
    assert_non_null(json_object_get(st_tool_parameters(tools, "f", 1), "type"));
    assert_non_null(json_object_get(st_tool_parameters(tools, "g", 1), "properties"));
    assert_null(st_tool_parameters(tools, "h", 1));
    json_decref(tools);
}

/* Random texts of tags and their pieces: any cutting gives the same, and content and reasoning of the whole lose
 * nothing but blanks and the tags of calls that were read. */
static void any_cutting_gives_the_same(void **state)
{
    (void)state;
    static const char *const pieces[] = {"<tool_call>",
                                         "</tool_call>",
                                         "<function=f>",
                                         "</function>",
                                         "<parameter=s>",
                                         "<parameter=i>",
                                         "</parameter>",
                                         "\n",
                                         "\n\n",
                                         " ",
                                         "x",
                                         "12",
                                         "<",
                                         "</",
                                         "<think>",
                                         "</think>",
                                         "<tool_",
                                         "{\"name\":\"f\",\"arguments\":{\"a\":\"}\"}}",
                                         "{",
                                         "}",
                                         "\"",
                                         "<function=",
                                         "=f>",
                                         "\xC3\xA9"};
    json_t *tools = json_loads(tool_text, 0, NULL);
    uint32_t seed = 12345;
    for (int round = 0; round < 4000; round++) {
        char text[600];
        size_t used = 0;
        int n = 1 + round % 14;
        for (int i = 0; i < n; i++) {
            seed = seed * 1664525 + 1013904223;
            const char *piece = pieces[(seed >> 16) % (sizeof pieces / sizeof pieces[0])];
            memcpy(text + used, piece, strlen(piece));
            used += strlen(piece);
        }
        struct log whole, parts;
        bool thinking = round % 3 == 0;
        read_in_steps(text, used, thinking, tools, used, &whole);
        for (size_t step = 1; step < 8; step++) {
            read_in_steps(text, used, thinking, tools, step, &parts);
            if (strcmp(whole.text, parts.text) != 0)
                fail_msg("\"%.*s\" in steps of %zu:\n%s\ninstead of\n%s", (int)used, text, step, parts.text,
                         whole.text);
        }
    }
    json_decref(tools);
}

/* Everything that has come out at any time is final: no event ever shows the beginning of a tag that is then taken
 * back. */
static void no_part_of_a_tag_comes_out(void **state)
{
    (void)state;
    struct strata_error err;
    json_t *tools = json_loads(tool_text, 0, NULL);
    const char text[] =
        "r\n</think>\n\nhello\n\n<tool_call>\n<function=f>\n<parameter=s>\nv\n</parameter>\n</function>\n</tool_call>";
    struct log l = {0};
    struct st_output *o;
    struct st_output_options options = {true, tools, note, &l};
    assert_ok(st_output_create(&options, &o, &err), &err);
    for (size_t i = 0; i < sizeof text - 1; i++) {
        assert_ok(st_output_push(o, text + i, 1, &err), &err);
        assert_null(strchr(l.text, '<'));
    }
    assert_string_equal(l.text, "R[r]C[hello]F0(f){\"s\": \"v\"}E0");
    assert_int_equal(st_output_calls(o), 1);
    st_output_free(o);
    json_decref(tools);
}

static void count_bytes(void *user, const struct st_output_event *e)
{
    *(size_t *)user += e->size;
}

static void long_values_arrive_byte_by_byte(void **state)
{
    (void)state;
    struct strata_error err;
    json_t *tools = json_loads(tool_text, 0, NULL);
    size_t total = 0, n = 1 << 20;
    struct st_output *o;
    struct st_output_options options = {false, tools, count_bytes, &total};
    assert_ok(st_output_create(&options, &o, &err), &err);
    const char begin[] = "<tool_call><function=f><parameter=s>\n", end[] = "\n</parameter></function></tool_call>";
    assert_ok(st_output_push(o, begin, sizeof begin - 1, &err), &err);
    for (size_t i = 0; i < n; i++)
        assert_ok(st_output_push(o, i % 50 ? "a" : "<", 1, &err), &err);
    assert_ok(st_output_push(o, end, sizeof end - 1, &err), &err);
    assert_ok(st_output_finish(o, &err), &err);
    assert_int_equal(total, n + strlen("f{\"s\": \"\"}"));
    st_output_free(o);
    json_decref(tools);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reasoning_ends_at_its_tag),
        cmocka_unit_test(content_passes_what_is_no_call),
        cmocka_unit_test(calls_are_read_with_their_types),
        cmocka_unit_test(several_calls_are_numbered),
        cmocka_unit_test(json_calls_are_read),
        cmocka_unit_test(calls_cut_off_say_so),
        cmocka_unit_test(tools_are_found_in_all_api_forms),
        cmocka_unit_test(any_cutting_gives_the_same),
        cmocka_unit_test(no_part_of_a_tag_comes_out),
        cmocka_unit_test(long_values_arrive_byte_by_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
