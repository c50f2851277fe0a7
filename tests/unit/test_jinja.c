/* src/text/jinja: the interpreter against Jinja itself, its limits and its marks. */
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja.h"
#include "text_fixture.h"

static const time_t now = 1700000000; /* as in jinja_expect.py */

/* Renders with the members of an object as variables. Returns the result; *out is empty on failure. */
static enum strata_result render(const char *text, size_t size, const json_t *variables,
                                 const struct st_jinja_limits *limits, struct st_rendered *out,
                                 struct strata_error *err)
{
    struct st_jinja_variable list[16];
    size_t n = 0;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)variables, key, value) list[n++] =
        (struct st_jinja_variable){.name = key, .json = value};
    struct st_jinja *program;
    *out = (struct st_rendered){0};
    enum strata_result r = st_jinja_compile(text, size, &program, err);
    if (r != STRATA_OK)
        return r;
    r = st_jinja_render(program, list, n, limits, now, out, err);
    st_jinja_free(program);
    return r;
}

static void templates_render_as_jinja_does(void **state)
{
    (void)state;
    setenv("TZ", "UTC", 1);
    size_t size, checked = 0;
    char *cases = fixture_read("jinja_cases.txt", &size);
    json_t *expected = fixture_json("jinja_expected.json");
    int wrong = 0;
    for (char *at = cases; at && strncmp(at, "=== ", 4) == 0;) {
        char *name = at + 4, *vars = strchr(name, '\n') + 1, *text = strchr(vars, '\n') + 1,
             *end = strstr(text, "\n=== ");
        if (text[0] == '=' && strncmp(text, "=== ", 4) == 0) /* an empty template */
            end = text - 1;
        size_t n = end ? (size_t)(end > text ? end - text : 0) : (size_t)(cases + size - text);
        vars[-1] = text[-1] = 0;
        json_t *variables = json_loads(vars, JSON_ALLOW_NUL, NULL), *want = json_object_get(expected, name);
        if (!variables || !want)
            fail_msg("%s: no variables or no expected text", name);
        struct strata_error err;
        struct st_rendered got;
        char *file = NULL;
        if (n && text[0] == '@') {
            text[n] = 0;
            text = file = fixture_read(text + 1, &n);
        }
        enum strata_result r = render(text, n, variables, NULL, &got, &err);
        free(file);
        bool good = json_is_null(want) ? r != STRATA_OK && strstr(err.text, "line ") != NULL
                                       : r == STRATA_OK && got.size == json_string_length(want) &&
                                             memcmp(got.text, json_string_value(want), got.size) == 0;
        if (!good) {
            const char *have = r == STRATA_OK ? got.text : err.text,
                       *wish = json_is_null(want) ? "an error" : json_string_value(want);
            int from = 0;
            while (have[from] && have[from] == wish[from])
                from++;
            print_error("%s: from byte %d\n  got  %.200s\n  want %.200s\n", name, from, have + from, wish + from);
            wrong++;
        }
        st_rendered_free(&got);
        json_decref(variables);
        checked++;
        at = end ? end + 1 : NULL;
    }
    assert_int_equal(checked, json_object_size(expected));
    json_decref(expected);
    free(cases);
    assert_int_equal(wrong, 0);
}

static void expected_texts_are_what_jinja_gives_today(void **state)
{
    (void)state;
    const char *root = getenv("STRATA_TEST_SOURCE");
    if (system("/usr/bin/python3 -c 'import jinja2' 2>/dev/null") != 0) { /* skip() of cmocka counts as a failure */
        puts("# the system's Python has no jinja2");
        return;
    }
    char command[9000];
    snprintf(command, sizeof command,
             "cd '%s/tests/unit/data' && TZ=UTC /usr/bin/python3 jinja_expect.py jinja_cases.txt", root ? root : ".");
    FILE *f = popen(command, "r");
    assert_non_null(f);
    json_t *live = json_loadf(f, JSON_ALLOW_NUL, NULL);
    assert_int_equal(pclose(f), 0);
    json_t *expected = fixture_json("jinja_expected.json");
    assert_non_null(live);
    assert_true(json_equal(live, expected));
    json_decref(live);
    json_decref(expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(templates_render_as_jinja_does),
        cmocka_unit_test(expected_texts_are_what_jinja_gives_today),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
