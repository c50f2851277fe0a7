/* The file of a trace is what viewers read: spans in lanes of places, on one clock that begins with the first. */
#include "test.h"

#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/trace.h"

static json_t *written(const struct st_trace *t)
{
    char path[] = "/tmp/strata-trace-XXXXXX";
    struct strata_error err;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(st_trace_write(t, path, &err), STRATA_OK);
    json_error_t why;
    json_t *file = json_load_file(path, 0, &why);
    if (!file)
        fail_msg("line %d: %s", why.line, why.text);
    unlink(path);
    json_t *events = json_incref(json_object_get(file, "traceEvents"));
    json_decref(file);
    assert_true(json_is_array(events));
    return events;
}

/* The name of a process or thread that the event belongs to. */
static const char *named(const json_t *events, const char *what, const json_t *event)
{
    size_t i;
    json_t *e;
    json_array_foreach(events, i, e) {
        bool same = json_equal(json_object_get(e, "pid"), json_object_get(event, "pid")) &&
                    (!strcmp(what, "process_name") || json_equal(json_object_get(e, "tid"), json_object_get(event, "tid")));
        if (same && !strcmp(json_string_value(json_object_get(e, "name")), what))
            return json_string_value(json_object_get(json_object_get(e, "args"), "name"));
    }
    return "none";
}

static void every_span_stands_in_the_lane_of_its_place_with_its_time(void **state)
{
    (void)state;
    static const struct st_trace_span spans[] = {
        {.place = "sim:0", .lane = "launches", .name = "st_embed", .number = -1, .layer = -1, .from = 1000.5, .to = 1000.75},
        {.place = "cpu", .lane = "worker", .name = "experts", .number = 0, .layer = 3, .from = 1000.25, .to = 1000.5},
        {.place = "cpu", .lane = "worker", .name = "experts", .number = 1, .layer = 3, .from = 1000.25, .to = 1000.5},
        {.place = "sim:0", .lane = "copies", .name = "experts", .number = -1, .layer = 0, .from = 1001, .to = 1001.5},
    };
    static const char *const lanes[] = {"launches", "worker 0", "worker 1", "copies"};
    struct st_trace *t;
    struct strata_error err;
    assert_int_equal(st_trace_open(&t, &err), STRATA_OK);
    for (size_t i = 0; i < 4; i++)
        st_trace_add(t, &spans[i]);
    json_t *events = written(t);
    for (size_t i = 0; i < 4; i++) {
        const json_t *e = json_array_get(events, i), *args = json_object_get(e, "args");
        assert_string_equal(json_string_value(json_object_get(e, "ph")), "X");
        assert_string_equal(json_string_value(json_object_get(e, "name")), spans[i].name);
        assert_string_equal(named(events, "process_name", e), spans[i].place);
        assert_string_equal(named(events, "thread_name", e), lanes[i]);
        double from = json_number_value(json_object_get(e, "ts")), length = json_number_value(json_object_get(e, "dur"));
        assert_true(from > (spans[i].from - 1000.25) * 1e6 - 1 && from < (spans[i].from - 1000.25) * 1e6 + 1);
        assert_true(length > (spans[i].to - spans[i].from) * 1e6 - 1 && length < (spans[i].to - spans[i].from) * 1e6 + 1);
        assert_int_equal(args ? json_integer_value(json_object_get(args, "layer")) : -1, spans[i].layer);
    }
    json_decref(events);
    st_trace_close(t);
}

static void an_empty_trace_is_a_file_without_events(void **state)
{
    (void)state;
    struct st_trace *t;
    struct strata_error err;
    assert_int_equal(st_trace_open(&t, &err), STRATA_OK);
    json_t *events = written(t);
    assert_int_equal(json_array_size(events), 0);
    json_decref(events);
    st_trace_close(t);
}

enum { THREADS = 4, EACH = 5000 };

static void *add_many(void *trace)
{
    for (int i = 0; i < EACH; i++)
        st_trace_add(trace, &(struct st_trace_span){.place = "cpu", .lane = "worker", .name = "x", .layer = -1, .from = i, .to = i + 1});
    return NULL;
}

static void spans_of_several_threads_are_all_there(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    struct st_trace *t;
    struct strata_error err;
    assert_int_equal(st_trace_open(&t, &err), STRATA_OK);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, add_many, t), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(st_trace_count(t), THREADS * EACH);
    st_trace_close(t);
}

static void a_file_that_cannot_be_written_is_named(void **state)
{
    (void)state;
    struct st_trace *t;
    struct strata_error err;
    static const char *const paths[] = {"/nowhere/trace.json", "/dev/full"};
    assert_int_equal(st_trace_open(&t, &err), STRATA_OK);
    st_trace_add(t, &(struct st_trace_span){.place = "cpu", .lane = "worker", .name = "x", .layer = -1});
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(st_trace_write(t, paths[i], &err), STRATA_E_IO);
        assert_non_null(strstr(err.text, paths[i]));
    }
    st_trace_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_span_stands_in_the_lane_of_its_place_with_its_time),
        cmocka_unit_test(an_empty_trace_is_a_file_without_events),
        cmocka_unit_test(spans_of_several_threads_are_all_there),
        cmocka_unit_test(a_file_that_cannot_be_written_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
