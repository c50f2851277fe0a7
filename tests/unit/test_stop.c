/* src/text/stop: stop texts in a stream. */
#include "test.h"

#include <stdlib.h>
#include <string.h>

#include "text/stop.h"

/* Feeds text in pieces of step bytes; collects what comes out. Returns the index found. */
static int feed(const char *const *stops, size_t n, const char *text, size_t step, char *out, size_t *most_held)
{
    struct strata_error err;
    struct st_stop *s;
    assert_ok(st_stop_create(stops, n, &s, &err), &err);
    size_t used = 0, size = strlen(text);
    int result = -1;
    for (size_t at = 0; at < size; at += step) {
        size_t piece = size - at < step ? size - at : step;
        struct st_bytes got;
        int found;
        assert_ok(st_stop_push(s, text + at, piece, &got, &found, &err), &err);
        memcpy(out + used, got.data, got.size);
        used += got.size;
        if (found >= 0)
            result = found;
        else if (result < 0 && at + piece - used > *most_held)
            *most_held = at + piece - used;
    }
    struct st_bytes rest = st_stop_finish(s);
    memcpy(out + used, rest.data, rest.size);
    out[used + rest.size] = 0;
    st_stop_free(s);
    return result;
}

static void check(const char *const *stops, size_t n, const char *text, int found, const char *want, size_t held)
{
    for (size_t step = 1; step <= strlen(text) + 1; step++) {
        char out[200];
        size_t most = 0;
        assert_int_equal(feed(stops, n, text, step, out, &most), found);
        assert_string_equal(out, want);
        if (step == 1)
            assert_int_equal(most, held);
    }
}

static void text_before_the_first_stop_text_comes_out(void **state)
{
    (void)state;
    const char *const one[] = {"END"};
    check(one, 1, "some ENENDING", 0, "some EN", 2);
    check(one, 1, "EEENNN EN", -1, "EEENNN EN", 2);
    check(one, 1, "ENDEND", 0, "", 2);
    check(NULL, 0, "anything", -1, "anything", 0);
}

static void only_what_may_become_a_stop_text_is_held(void **state)
{
    (void)state;
    const char *const two[] = {"aab", "abaa"};
    check(two, 2, "xxaaaa", -1, "xxaaaa", 2);
    check(two, 2, "abab", -1, "abab", 3);
    check(two, 2, "ababaa", 1, "ab", 3);
    check(two, 2, "abaab", 1, "", 3);
    const char *const nested[] = {"b", "ab", "cab"};
    check(nested, 3, "xxcab", 2, "xx", 2);
    check(nested, 3, "xxab", 1, "xx", 1);
    const char *const utf8[] = {"\xC3\xA9t\xC3\xA9"};
    check(utf8, 1, "l'\xC3\xA9t\xC3\xA8, l'\xC3\xA9t\xC3\xA9.", 0, "l'\xC3\xA9t\xC3\xA8, l'", 4);
}

static void empty_stop_texts_are_refused(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_stop *s;
    const char *const stops[] = {"x", ""};
    assert_int_equal(st_stop_create(stops, 2, &s, &err), STRATA_E_ARGUMENT);
    assert_null(s);
}

static void random_streams_agree_with_a_search_of_the_whole(void **state)
{
    (void)state;
    uint32_t seed = 3;
    for (int round = 0; round < 3000; round++) {
        char text[41], stops[3][6];
        const char *views[3];
        for (int k = 0; k < 3; k++) {
            seed = seed * 1664525 + 1013904223;
            size_t n = 1 + (seed >> 24) % 5;
            for (size_t i = 0; i < n; i++) {
                seed = seed * 1664525 + 1013904223;
                stops[k][i] = (char)('a' + (seed >> 24) % 2);
            }
            stops[k][n] = 0;
            views[k] = stops[k];
        }
        for (int i = 0; i < 40; i++) {
            seed = seed * 1664525 + 1013904223;
            text[i] = (char)('a' + (seed >> 24) % (round % 5 ? 2 : 3));
        }
        text[40] = 0;
        int want = -1;
        size_t want_end = 41;
        for (size_t end = 1; end <= 40 && want < 0; end++)
            for (int k = 0; k < 3; k++) {
                size_t n = strlen(stops[k]);
                if (n <= end && memcmp(text + end - n, stops[k], n) == 0 && (want < 0 || n > strlen(stops[want]))) {
                    want = k;
                    want_end = end;
                }
            }
        char out[200], expect[41];
        size_t most = 0;
        memcpy(expect, text, 41);
        if (want >= 0)
            expect[want_end - strlen(stops[want])] = 0;
        assert_int_equal(feed(views, 3, text, 1 + (size_t)round % 7, out, &most), want);
        assert_string_equal(out, expect);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_before_the_first_stop_text_comes_out),
        cmocka_unit_test(only_what_may_become_a_stop_text_is_held),
        cmocka_unit_test(empty_stop_texts_are_refused),
        cmocka_unit_test(random_streams_agree_with_a_search_of_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
