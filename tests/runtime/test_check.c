/* The validation layer on a simulated device: what drivers take silently or die of is a message here. */
#include "test.h"

#include <stdlib.h>
#include <string.h>

#include "kernel/gpu_copy.h"
#include "runtime/device.h"

enum { BYTES = 65536 };

struct fixture {
    struct st_devices *set;
    struct st_device *dev, *other;
    st_addr a, b;
    uint8_t host[BYTES];
    struct strata_error err;
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct st_device_options options = {.devices = "sim:gfx1100:1G,sim:gfx1100:1G", .check = ST_CHECK_RUNTIME};
    if (!f)
        return -1;
    *state = f;
    if (st_devices_open(&options, &f->set, &f->err) != STRATA_OK ||
        st_device_open(f->set, f->set->chosen[0], NULL, &f->dev, &f->err) != STRATA_OK ||
        st_device_open(f->set, f->set->chosen[1], NULL, &f->other, &f->err) != STRATA_OK ||
        f->dev->table->allocate(f->dev->rt, BYTES, &f->a, &f->err) != STRATA_OK ||
        f->dev->table->allocate(f->dev->rt, BYTES, &f->b, &f->err) != STRATA_OK)
        return -1;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    st_device_close(f->other);
    st_device_close(f->dev);
    st_devices_close(f->set);
    free(f);
    return 0;
}

#define REFUSED(call, words)                                                                                           \
    do {                                                                                                               \
        assert_int_equal(call, STRATA_E_ARGUMENT);                                                                     \
        if (!strstr(f->err.text, "sim:") || !strstr(f->err.text, words))                                               \
            fail_msg("\"%s\" does not say \"%s\"", f->err.text, words);                                                \
    } while (0)

/* Every kind of activations, and both ways of giving launches. */
static void a_device_is_measured_with_what_a_model_multiplies(void **state)
{
    struct fixture *f = *state;
    static const int types[] = {ST_TYPE_Q6_K, ST_TYPE_Q2_0, ST_TYPE_BF16};
    for (int i = 0; i < 3; i++) {
        const struct st_decode_shape shape = {.dense = st_decode_weight(types[i], 512, 512),
                                              .gate = st_decode_weight(types[(i + 1) % 3], 512, 64),
                                              .used = 2};
        bool needed[ST_GPU_KERNEL_COUNT] = {false};
        assert_ok(st_device_measure_needs(&shape, needed, &f->err), &f->err);
        for (int k = 0; k < ST_GPU_KERNEL_COUNT; k++)
            assert_true(!needed[k] || f->dev->kernels[k].function);
        assert_ok(st_device_measure(f->dev, &shape, &f->err), &f->err);
        const struct st_measured *m = &f->dev->measured;
        assert_true(m->dense.rate > 0 && m->experts.rate > 0 && m->bring.rate > 0 && m->answer_us >= 0);
    }
    const struct st_decode_shape dense = {.dense = st_decode_weight(ST_TYPE_Q8_0, 512, 512)};
    assert_ok(st_device_measure(f->dev, &dense, &f->err), &f->err);
    assert_true(f->dev->measured.dense.rate > 0);
    /* What a simulated device states is what it is predicted with, whatever its kernels take here. */
    assert_ok(st_device_rates(f->dev, &dense, &f->err), &f->err);
    assert_true(f->dev->measured.dense.rate == (double)f->dev->info.memory_rate &&
                f->dev->measured.dense.start == f->dev->info.launch_us * 1e-6);
}

static void ranges_that_leave_an_allocation_are_refused(void **state)
{
    struct fixture *f = *state;
    const struct st_runtime *t = f->dev->table;
    struct st_queue *q = f->dev->compute;
    assert_ok(t->copy_in(q, f->a, f->host, BYTES, &f->err), &f->err);
    REFUSED(t->copy_in(q, f->a + 1, f->host, BYTES, &f->err), "leave their allocation");
    REFUSED(t->copy_out(q, f->host, f->b + BYTES, 1, &f->err), "no live allocation");
    REFUSED(t->fill(q, 64, 0, 16, &f->err), "no live allocation");
    REFUSED(t->copy(q, f->a + 8, f->a, 16, &f->err), "onto itself");
    REFUSED(t->copy_in(q, f->a, NULL, 16, &f->err), "from nothing");
}

static void memory_is_not_used_after_its_release(void **state)
{
    struct fixture *f = *state;
    const struct st_runtime *t = f->dev->table;
    st_addr c = 0;
    assert_ok(t->allocate(f->dev->rt, 4096, &c, &f->err), &f->err);
    t->release(f->dev->rt, c);
    REFUSED(t->fill(f->dev->compute, c, 0, 16, &f->err), "no live allocation");
    t->release(f->dev->rt, c); /* the second release does not reach the driver */
    assert_ok(t->fill(f->dev->compute, f->a, 0, 16, &f->err), &f->err);
}

static void handles_are_not_used_after_they_were_freed_or_on_another_device(void **state)
{
    struct fixture *f = *state;
    const struct st_runtime *t = f->dev->table;
    struct st_queue *q = NULL;
    struct st_event *event = NULL;
    assert_ok(t->queue_create(f->dev->rt, ST_QUEUE_COPY, &q, &f->err), &f->err);
    assert_ok(t->event_create(f->dev->rt, false, &event, &f->err), &f->err);
    REFUSED(t->event_sync(event, &f->err), "never recorded");
    REFUSED(t->event_record(f->other->compute, event, &f->err), "a event of sim:0 is used here");
    t->event_free(event);
    REFUSED(t->event_record(q, event, &f->err), "after it was freed");
    t->queue_free(q);
    REFUSED(t->queue_sync(q, &f->err), "after it was freed");
    assert_int_equal(t->queue_sync((struct st_queue *)f->dev->rt, &f->err), STRATA_E_ARGUMENT);
    assert_non_null(strstr(f->err.text, "is not a queue"));
    const union st_arg none[1] = {{.l = 0}};
    const uint32_t grid[3] = {1, 1, 1};
    REFUSED(t->launch(f->other->compute, f->dev->kernels[ST_GPU_EMPTY].function, grid, none, &f->err),
            "of sim:0 is used here");
}

static enum strata_result launch_copy(struct fixture *f, struct st_queue *queue, st_addr to, st_addr from)
{
    struct st_gpu_launch l;
    st_gpu_copy(to, from, 4096, &l);
    return f->dev->table->launch(queue, f->dev->kernels[l.kernel].function, l.grid, l.args, &f->err);
}

static void kernel_arguments_point_into_live_memory(void **state)
{
    struct fixture *f = *state;
    assert_ok(launch_copy(f, f->dev->compute, f->b, f->a), &f->err);
    REFUSED(launch_copy(f, f->dev->compute, f->b, 4096), "argument 2 of kernel st_copy");
}

static void two_queues_on_the_same_bytes_need_an_event_or_a_wait_between(void **state)
{
    struct fixture *f = *state;
    const struct st_runtime *t = f->dev->table;
    struct st_queue *one = f->dev->compute, *two = f->dev->copy;
    struct st_event *event = NULL;
    assert_ok(t->event_create(f->dev->rt, false, &event, &f->err), &f->err);
    assert_ok(t->copy_in(one, f->a, f->host, 4096, &f->err), &f->err);
    REFUSED(t->copy_out(two, f->host, f->a + 100, 4096, &f->err), "nothing makes this queue wait");
    REFUSED(launch_copy(f, two, f->b, f->a), "written by another queue");
    /* other bytes are nobody's business */
    assert_ok(t->copy_out(two, f->host, f->a + 8192, 4096, &f->err), &f->err);
    assert_ok(t->event_record(one, event, &f->err), &f->err);
    REFUSED(t->copy_out(two, f->host, f->a, 4096, &f->err), "nothing makes this queue wait");
    assert_ok(t->event_wait(two, event, &f->err), &f->err);
    assert_ok(t->copy_out(two, f->host, f->a, 4096, &f->err), &f->err);
    /* now the first queue must wait before it writes again, and two readers need nothing */
    REFUSED(t->fill(one, f->a, 0, 16, &f->err), "read by another queue");
    assert_ok(t->copy(one, f->b, f->a, 16, &f->err), &f->err);
    /* a wait of the host orders everything */
    assert_ok(t->queue_sync(two, &f->err), &f->err);
    assert_ok(t->fill(one, f->a, 0, 16, &f->err), &f->err);
    assert_ok(t->queue_sync(one, &f->err), &f->err);
    t->event_free(event);
}

/* An event orders what its queue itself was ordered behind. */
static void order_is_carried_through_a_third_queue(void **state)
{
    struct fixture *f = *state;
    const struct st_runtime *t = f->dev->table;
    struct st_queue *third = NULL;
    struct st_event *first = NULL, *second = NULL;
    assert_ok(t->queue_create(f->dev->rt, ST_QUEUE_COMPUTE, &third, &f->err), &f->err);
    assert_ok(t->event_create(f->dev->rt, false, &first, &f->err), &f->err);
    assert_ok(t->event_create(f->dev->rt, false, &second, &f->err), &f->err);
    assert_ok(t->fill(f->dev->compute, f->a, 3, 4096, &f->err), &f->err);
    assert_ok(t->event_record(f->dev->compute, first, &f->err), &f->err);
    assert_ok(t->event_wait(f->dev->copy, first, &f->err), &f->err);
    assert_ok(t->event_record(f->dev->copy, second, &f->err), &f->err);
    assert_ok(t->event_wait(third, second, &f->err), &f->err);
    assert_ok(t->copy_out(third, f->host, f->a, 4096, &f->err), &f->err);
    assert_ok(t->queue_sync(third, &f->err), &f->err);
    assert_int_equal(f->host[4095], 3);
    t->event_free(first);
    t->event_free(second);
    t->queue_free(third);
}

static void captures_hold_device_work_only(void **state)
{
    struct fixture *f = *state;
    const struct st_runtime *t = f->dev->table;
    struct st_queue *q = f->dev->compute;
    struct st_graph *graph = NULL;
    REFUSED(t->graph_end(q, &graph, &f->err), "not begun");
    assert_ok(t->graph_begin(q, &f->err), &f->err);
    REFUSED(t->graph_begin(q, &f->err), "while the queue captures");
    REFUSED(t->copy_in(q, f->a, f->host, 16, &f->err), "while the queue captures");
    REFUSED(t->queue_sync(q, &f->err), "while the queue captures");
    assert_ok(t->fill(q, f->a, 9, 16, &f->err), &f->err);
    assert_ok(t->graph_end(q, &graph, &f->err), &f->err);
    assert_ok(t->graph_launch(q, graph, &f->err), &f->err);
    assert_ok(t->queue_sync(q, &f->err), &f->err);
    t->graph_free(graph);
    REFUSED(t->graph_launch(q, graph, &f->err), "after it was freed");
}

static void sizes_that_mean_nothing_are_refused(void **state)
{
    struct fixture *f = *state;
    const struct st_runtime *t = f->dev->table;
    st_addr c = 0;
    void *memory = NULL;
    REFUSED(t->allocate(f->dev->rt, 0, &c, &f->err), "no bytes");
    REFUSED(t->host_allocate(f->dev->rt, 0, &memory, &f->err), "no bytes");
    REFUSED(t->host_register(f->dev->rt, f->host + 1, 4096, &f->err), "whole pages");
    const union st_arg none[1] = {{.l = 0}};
    const uint32_t grid[3] = {1, 0, 1};
    REFUSED(t->launch(f->dev->compute, f->dev->kernels[ST_GPU_EMPTY].function, grid, none, &f->err), "empty grid");
}

#define ON_DEVICES(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_DEVICES(a_device_is_measured_with_what_a_model_multiplies),
        ON_DEVICES(ranges_that_leave_an_allocation_are_refused),
        ON_DEVICES(memory_is_not_used_after_its_release),
        ON_DEVICES(handles_are_not_used_after_they_were_freed_or_on_another_device),
        ON_DEVICES(kernel_arguments_point_into_live_memory),
        ON_DEVICES(two_queues_on_the_same_bytes_need_an_event_or_a_wait_between),
        ON_DEVICES(order_is_carried_through_a_third_queue),
        ON_DEVICES(captures_hold_device_work_only),
        ON_DEVICES(sizes_that_mean_nothing_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
