/* src/cli/options.c: what a table of options accepts, refuses and suggests. Messages go to stderr and are not looked at. */
#include "test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/options.h"

struct values {
    const char *text;
    int64_t whole;
    double number;
    uint64_t size;
    bool flag;
    int choice;
    struct st_list list;
    const char *words[2];
    size_t word_count;
};

static const char *const colours[] = {"red", "green", NULL};

/* Parses the arguments after the command's name with one option of each kind. */
static bool parse(struct values *v, int *status, int argc, char **argv)
{
    struct st_opt options[] = {
        ST_TEXT("text", 't', &v->text, "TEXT", "a text"),
        ST_INT("whole", 'w', &v->whole, -5, 10, "N", "a number"),
        ST_NUMBER("real-number", 0, &v->number, 0, 2, "X", "a number"),
        ST_SIZE("size", 0, &v->size, 0, 1e15, "SIZE", "a size"),
        ST_FLAG("flag", 'f', &v->flag, "a flag"),
        ST_CHOICE("choice", 0, &v->choice, colours, "COLOUR", "a colour"),
        ST_LIST("list", 0, &v->list, "TEXT", "several"),
    };
    struct st_usage usage = {.command = "try", .form = "[options]", .summary = "Tries.", .options = options,
                             .count = ST_COUNT(options), .words = v->words, .least = 0, .most = 2,
                             .word_count = &v->word_count};
    return st_options_parse(&usage, argc, argv, status);
}

#define PARSE(v, status, ...)                                                                                          \
    parse(v, status, (int)(sizeof((char *[]){"try", __VA_ARGS__}) / sizeof(char *)), (char *[]){"try", __VA_ARGS__, NULL})

static void every_kind_is_read_in_all_its_forms(void **state)
{
    (void)state;
    struct values v = {0};
    int status;
    assert_true(PARSE(&v, &status, "-t", "a", "--whole=-5", "--real-number", "1.5", "one", "--size", "24G", "-f", "--choice",
                      "green", "--list", "x", "--list=y=z", "-w7", "--", "-t"));
    assert_string_equal(v.text, "a");
    assert_int_equal(v.whole, 7);
    assert_true(v.number == 1.5 && v.flag && v.choice == 1);
    assert_int_equal(v.size, 24ull << 30);
    assert_int_equal(v.list.count, 2);
    assert_string_equal(v.list.items[1], "y=z");
    assert_int_equal(v.word_count, 2);
    assert_string_equal(v.words[0], "one");
    assert_string_equal(v.words[1], "-t");
    st_list_free(&v.list);
}

static void wrong_values_are_refused_with_the_users_code(void **state)
{
    (void)state;
    struct values v = {0};
    int status = 0;
#define REFUSED(...)                                                                                                   \
    do {                                                                                                               \
        status = -1;                                                                                                   \
        assert_false(PARSE(&v, &status, __VA_ARGS__));                                                                 \
        assert_int_equal(status, ST_EXIT_USER);                                                                        \
    } while (0)
    REFUSED("--whole", "11");
    REFUSED("--whole", "-6");
    REFUSED("--whole", "3x");
    REFUSED("--whole", "");
    REFUSED("--whole", "99999999999999999999");
    REFUSED("--whole");
    REFUSED("--real-number", "nan");
    REFUSED("--real-number", "2.1");
    REFUSED("--size", "24Q");
    REFUSED("--size", "-1");
    REFUSED("--size", "99999999999G");
    REFUSED("--flag=1");
    REFUSED("--choice", "blue");
    REFUSED("--wole", "3");
    REFUSED("-x");
    REFUSED("a", "b", "c");
    assert_int_equal(v.whole, 0);
}

static void help_ends_with_success_before_values_are_checked(void **state)
{
    (void)state;
    struct values v = {0};
    int status = -1;
    setenv("STRATA_WHOLE", "wrong", 1);
    /* The help text would stand between the lines of the test protocol. */
    fflush(stdout);
    int out = dup(STDOUT_FILENO), nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, STDOUT_FILENO);
    bool parsed = PARSE(&v, &status, "--help", "--whole", "wrong");
    fflush(stdout);
    dup2(out, STDOUT_FILENO);
    close(out);
    close(nowhere);
    assert_false(parsed);
    assert_int_equal(status, ST_EXIT_OK);
    unsetenv("STRATA_WHOLE");
}

static void environment_is_read_and_the_command_line_wins(void **state)
{
    (void)state;
    struct values v = {0};
    int status;
    setenv("STRATA_WHOLE", "3", 1);
    setenv("STRATA_REAL_NUMBER", "0.5", 1);
    setenv("STRATA_FLAG", "yes", 1);
    setenv("STRATA_LIST", "env", 1);
    assert_true(PARSE(&v, &status, "--whole", "4", "--list", "arg"));
    assert_int_equal(v.whole, 4);
    assert_true(v.number == 0.5 && v.flag);
    assert_int_equal(v.list.count, 1);
    assert_string_equal(v.list.items[0], "arg");
    st_list_free(&v.list);
    setenv("STRATA_FLAG", "off", 1);
    setenv("STRATA_WHOLE", "77", 1);
    assert_false(PARSE(&v, &status, "one"));
    assert_int_equal(status, ST_EXIT_USER);
    unsetenv("STRATA_WHOLE");
    unsetenv("STRATA_REAL_NUMBER");
    unsetenv("STRATA_FLAG");
    unsetenv("STRATA_LIST");
    st_list_free(&v.list);
}

static void near_misses_are_suggested_and_strangers_are_not(void **state)
{
    (void)state;
    static const char *const names[] = {"run", "chat", "tokenize", "temperature", "top-k", "top-p"};
    assert_string_equal(st_nearest("rnu", names, ST_COUNT(names), sizeof *names), "run");
    assert_string_equal(st_nearest("tokenise", names, ST_COUNT(names), sizeof *names), "tokenize");
    assert_string_equal(st_nearest("temp", names, ST_COUNT(names), sizeof *names), "temperature");
    assert_string_equal(st_nearest("topk", names, ST_COUNT(names), sizeof *names), "top-k");
    assert_null(st_nearest("zebra", names, ST_COUNT(names), sizeof *names));
    assert_null(st_nearest("", names, ST_COUNT(names), sizeof *names));
    assert_null(st_nearest("xy", names, ST_COUNT(names), sizeof *names));
}

static void sizes_take_powers_of_1024_and_refuse_overflow(void **state)
{
    (void)state;
    uint64_t v;
    assert_true(st_size_parse("0", &v) && v == 0);
    assert_true(st_size_parse("512M", &v) && v == 512ull << 20);
    assert_true(st_size_parse("3k", &v) && v == 3072);
    assert_true(st_size_parse("2GiB", &v) && v == 2ull << 30);
    assert_true(st_size_parse("1TB", &v) && v == 1ull << 40);
    assert_false(st_size_parse("", &v));
    assert_false(st_size_parse("G", &v));
    assert_false(st_size_parse("1.5G", &v));
    assert_false(st_size_parse("-1", &v));
    assert_false(st_size_parse("1GG", &v));
    assert_false(st_size_parse("18446744073709551615K", &v));
    assert_false(st_size_parse("99999999999999999999", &v));
}

static void each_result_has_its_exit_code(void **state)
{
    (void)state;
    assert_int_equal(st_exit_code(STRATA_OK), 0);
    assert_int_equal(st_exit_code(STRATA_E_ARGUMENT), 1);
    assert_int_equal(st_exit_code(STRATA_E_IO), 1);
    assert_int_equal(st_exit_code(STRATA_E_LIMIT), 1);
    assert_int_equal(st_exit_code(STRATA_E_FORMAT), 2);
    assert_int_equal(st_exit_code(STRATA_E_MODEL), 2);
    assert_int_equal(st_exit_code(STRATA_E_UNSUPPORTED), 2);
    assert_int_equal(st_exit_code(STRATA_E_DEVICE), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_is_read_in_all_its_forms),
        cmocka_unit_test(wrong_values_are_refused_with_the_users_code),
        cmocka_unit_test(help_ends_with_success_before_values_are_checked),
        cmocka_unit_test(environment_is_read_and_the_command_line_wins),
        cmocka_unit_test(near_misses_are_suggested_and_strangers_are_not),
        cmocka_unit_test(sizes_take_powers_of_1024_and_refuse_overflow),
        cmocka_unit_test(each_result_has_its_exit_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
