/* Messages between the two processes of the server: what is written is read, and what is damaged is refused. */
#include "test.h"

#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "serve/wire.h"
#include "text/constraint.h"

static const int32_t ids[] = {5, 6, 7};
static const struct strata_logit_bias bias[] = {{3, 0.5f}, {4, -1.0f}};
static const char *const stop[] = {"", "the end"};
static const struct strata_constraint constraint = {
    .source = {.json_schema = "{\"type\":\"object\"}", .tools = "[]", .one_call = true, .prompt = "<think>"}};
static const struct strata_token_logprob top[] = {{9, -0.5f}, {10, -2.0f}};

/* One of each kind. */
static struct st_wire_message example(enum st_wire_kind kind)
{
    struct st_wire_message m = {.kind = kind, .number = 70 + kind};
    switch (kind) {
    case ST_WIRE_START:
        m.request = (struct strata_request){.ids = ids, .count = 3, .max_tokens = 12, .stop = stop, .stop_count = 2, .show_special = true};
        m.request.constraint = &constraint;
        m.request.sampling.temperature = 0.75f;
        m.request.sampling.seed = 1ull << 63;
        m.request.sampling.bias = bias;
        m.request.sampling.bias_count = 2;
        break;
    case ST_WIRE_SLOT:
        m.slot.number = 2;
        m.slot.action = ST_SLOT_RESTORE;
        m.slot.file = "name";
        break;
    case ST_WIRE_LOADING:
        m.loading.part = 0.25;
        m.loading.what = "reading";
        break;
    case ST_WIRE_READY:
        m.ready.context = 4096;
        m.ready.parallel = 3;
        m.ready.status = "{}";
        break;
    case ST_WIRE_EVENT:
        m.event.slot = 1;
        m.event.event = (struct strata_event){.kind = STRATA_EVENT_TEXT, .token = 9, .text = "a\0b", .size = 3, .logprob = top[0],
                                              .top = top, .top_count = 2, .end = STRATA_END_LENGTH, .stop_index = -1};
        break;
    case ST_WIRE_FAILED:
    case ST_WIRE_DONE:
        m.done.result = STRATA_E_DEVICE;
        m.done.text = "a device is lost";
        m.done.stats.read_seconds = 1.5;
        break;
    case ST_WIRE_SLOT_DONE:
        m.slot_done.text = "";
        m.slot_done.slot = (struct st_slot_result){.tokens = 7, .bytes = 1000, .missing = true};
        break;
    case ST_WIRE_STATUS: m.status = "{\"devices\": []}"; break;
    case ST_WIRE_CLOSED:
        m.closed.text = "";
        m.closed.report = "{\"freed\": []}";
        break;
    default: break;
    }
    return m;
}

static void check_request(const struct strata_request *q)
{
    assert_int_equal(q->count, 3);
    assert_memory_equal(q->ids, ids, sizeof ids);
    assert_int_equal(q->max_tokens, 12);
    assert_true(q->sampling.temperature == 0.75f && q->sampling.seed == 1ull << 63);
    assert_int_equal(q->sampling.bias_count, 2);
    assert_memory_equal(q->sampling.bias, bias, sizeof bias);
    assert_int_equal(q->stop_count, 2);
    assert_string_equal(q->stop[0], "");
    assert_string_equal(q->stop[1], "the end");
    assert_true(q->show_special && !q->ignore_eos);
}

static void check_constraint(const struct st_wire_message *m)
{
    const struct strata_constraint_options *o = &m->constraint;
    assert_true(m->constrained && o->one_call && !o->grammar && !o->tool && !o->begun && !m->request.constraint);
    assert_string_equal(o->json_schema, constraint.source.json_schema);
    assert_string_equal(o->tools, "[]");
    assert_string_equal(o->prompt, "<think>");
}

static void check_event(const struct strata_event *e)
{
    assert_int_equal(e->kind, STRATA_EVENT_TEXT);
    assert_int_equal(e->token, 9);
    assert_int_equal(e->size, 3);
    assert_memory_equal(e->text, "a\0b", 4);
    assert_int_equal(e->top_count, 2);
    assert_memory_equal(e->top, top, sizeof top);
    assert_int_equal(e->end, STRATA_END_LENGTH);
    assert_int_equal(e->stop_index, -1);
}

static void check(const struct st_wire_message *m)
{
    assert_int_equal(m->number, 70 + m->kind);
    switch (m->kind) {
    case ST_WIRE_START:
        check_request(&m->request);
        check_constraint(m);
        break;
    case ST_WIRE_SLOT:
        assert_int_equal(m->slot.number, 2);
        assert_int_equal(m->slot.action, ST_SLOT_RESTORE);
        assert_string_equal(m->slot.file, "name");
        break;
    case ST_WIRE_LOADING: assert_true(m->loading.part == 0.25 && !strcmp(m->loading.what, "reading")); break;
    case ST_WIRE_READY: assert_true(m->ready.context == 4096 && m->ready.parallel == 3 && !strcmp(m->ready.status, "{}")); break;
    case ST_WIRE_EVENT:
        assert_int_equal(m->event.slot, 1);
        check_event(&m->event.event);
        break;
    case ST_WIRE_FAILED:
    case ST_WIRE_DONE:
        assert_int_equal(m->done.result, STRATA_E_DEVICE);
        assert_string_equal(m->done.text, "a device is lost");
        assert_true(m->done.stats.read_seconds == 1.5);
        break;
    case ST_WIRE_SLOT_DONE: assert_true(m->slot_done.slot.tokens == 7 && m->slot_done.slot.bytes == 1000 && m->slot_done.slot.missing); break;
    case ST_WIRE_STATUS: assert_string_equal(m->status, "{\"devices\": []}"); break;
    case ST_WIRE_CLOSED: assert_string_equal(m->closed.report, "{\"freed\": []}"); break;
    default: break;
    }
}

static void every_message_is_read_as_it_was_written(void **state)
{
    (void)state;
    for (int kind = ST_WIRE_START; kind < ST_WIRE_KINDS; kind++) {
        struct st_buffer out = {0};
        struct st_wire_message m = example((enum st_wire_kind)kind), got;
        struct strata_error err;
        size_t used;
        st_wire_write(&m, &out);
        assert_false(out.failed);
        for (size_t part = 0; part < out.size; part++) {
            assert_int_equal(st_wire_read(out.data, part, &got, &used, &err), STRATA_OK);
            assert_int_equal(used, 0);
        }
        assert_int_equal(st_wire_read(out.data, out.size, &got, &used, &err), STRATA_OK);
        assert_int_equal(used, out.size);
        assert_int_equal(got.kind, kind);
        check(&got);
        st_wire_free(&got);
        st_buffer_free(&out);
    }
}

/* A field of the first message of a kind, as 32-bit words from the head on, gets a value that nobody sends. */
static void refused(enum st_wire_kind kind, size_t word, uint32_t value)
{
    struct st_buffer out = {0};
    struct st_wire_message m = example(kind), got;
    struct strata_error err;
    size_t used;
    st_wire_write(&m, &out);
    assert_true(4 * word + 4 <= out.size);
    memcpy(out.data + 4 * word, &value, sizeof value);
    assert_int_equal(st_wire_read(out.data, out.size, &got, &used, &err), STRATA_E_FORMAT);
    st_buffer_free(&out);
}

static void lengths_kinds_and_values_out_of_range_are_refused(void **state)
{
    (void)state;
    enum { SIZE, KIND, FIELD = 4 };
    refused(ST_WIRE_ALIVE, SIZE, UINT32_MAX - 7);
    refused(ST_WIRE_SLOT, SIZE, 9);
    refused(ST_WIRE_ALIVE, KIND, ST_WIRE_VERSION | ST_WIRE_KINDS << 16);
    refused(ST_WIRE_ALIVE, KIND, ST_WIRE_VERSION + 1);
    refused(ST_WIRE_START, FIELD, 1 << 30);          /* ids */
    refused(ST_WIRE_START, FIELD + 1, 1u << 31);     /* their size overflows */
    refused(ST_WIRE_SLOT, FIELD + 2, 3);             /* action */
    refused(ST_WIRE_SLOT, FIELD + 4, 3);             /* length of the name: its end is elsewhere */
    refused(ST_WIRE_EVENT, FIELD, (uint32_t)-2);     /* slot */
    refused(ST_WIRE_EVENT, FIELD + 2, 3);            /* kind of event */
    refused(ST_WIRE_DONE, FIELD, (uint32_t)-11);     /* result */
    refused(ST_WIRE_READY, FIELD + 2, 0);            /* parallel */
}

static void *send_all(void *arg)
{
    int fd = *(int *)arg;
    struct strata_error err;
    for (int round = 0; round < 50; round++)
        for (int kind = ST_WIRE_START; kind < ST_WIRE_KINDS; kind++) {
            struct st_wire_message m = example((enum st_wire_kind)kind);
            assert_int_equal(st_wire_send(fd, &m, &err), STRATA_OK);
        }
    close(fd);
    return NULL;
}

static void messages_cross_a_socket_in_order_until_the_other_end_is_gone(void **state)
{
    (void)state;
    int fd[2], count = 0;
    pthread_t sender;
    struct st_wire_input in = {0};
    struct st_wire_message *m;
    struct strata_error err;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
    assert_int_equal(pthread_create(&sender, NULL, send_all, &fd[1]), 0);
    while (st_wire_receive(fd[0], &in, &err) == STRATA_OK)
        for (;;) {
            assert_int_equal(st_wire_next(&in, &m, &err), STRATA_OK);
            if (!m)
                break;
            assert_int_equal(m->kind, ST_WIRE_START + count++ % (ST_WIRE_KINDS - ST_WIRE_START));
            check(m);
            st_wire_drop(m);
        }
    assert_int_equal(count, 50 * (ST_WIRE_KINDS - ST_WIRE_START));
    pthread_join(sender, NULL);
    st_wire_input_free(&in);
    close(fd[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_message_is_read_as_it_was_written),
        cmocka_unit_test(lengths_kinds_and_values_out_of_range_are_refused),
        cmocka_unit_test(messages_cross_a_socket_in_order_until_the_other_end_is_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
