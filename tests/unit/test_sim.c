/* The simulated runtime: descriptions, queues that are asynchronous, events, graphs, the modelled clock, faults on
 * request, and what fibers refuse. */
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/gpu/host.h"
#include "kernel/gpu_copy.h"
#include "kernel/gpu_norm.h"
#include "runtime/device.h"
#include "runtime/fibers.h"

extern const struct st_runtime st_runtime_sim;
static const struct st_runtime *const sim = &st_runtime_sim;

struct fixture {
    struct st_rt *rt;
    struct st_rt_device *dev[3];
    struct st_queue *queue;
    struct st_module *module;
    struct st_function *copy;
    struct strata_error err;
};

static struct fixture begin(const char *devices, const char *executor)
{
    struct fixture f = {0};
    struct st_function_info info;
    assert_ok(sim->open(&(struct st_runtime_options){.devices = devices, .executor = executor}, &f.rt, &f.err), &f.err);
    for (int i = 0; i < sim->count(f.rt); i++)
        assert_ok(sim->device_open(f.rt, i, &f.dev[i], &f.err), &f.err);
    assert_ok(sim->queue_create(f.dev[0], ST_QUEUE_COMPUTE, &f.queue, &f.err), &f.err);
    assert_ok(sim->module_load(f.dev[0], "copy", NULL, 0, &f.module, &f.err), &f.err);
    assert_ok(sim->function(f.module, &st_gpu_kernels[ST_GPU_COPY], &f.copy, &info, &f.err), &f.err);
    return f;
}

static void end(struct fixture *f)
{
    sim->module_free(f->module);
    for (int i = 0; i < 3; i++)
        sim->device_close(f->dev[i]);
    sim->close(f->rt);
}

static st_addr allocate(struct fixture *f, int dev, uint64_t size)
{
    st_addr a = 0;
    assert_ok(sim->allocate(f->dev[dev], size, &a, &f->err), &f->err);
    assert_int_equal(a % 256, 0);
    return a;
}

static enum strata_result launch_copy(struct fixture *f, st_addr to, st_addr from, uint64_t bytes)
{
    struct st_gpu_launch l;
    st_gpu_copy(to, from, bytes, &l);
    return sim->launch(f->queue, f->copy, l.grid, l.args, &f->err);
}

static __attribute__((noinline)) void assert_says(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("\"%s\" does not say \"%s\"", text, part);
}

static void a_description_says_what_the_device_is(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_rt *rt;
    struct st_device_info info;
    assert_ok(
        sim->open(&(struct st_runtime_options){.devices =
                                                   "sim:gfx90a:64G:bw=1.6T:link=50G:units=104:pci=c1.00.0:model=MI210,"
                                                   "sm_89:8G:lanes=64:images=sm_75+sm_80:integrated:nograph"},
                  &rt, &err),
        &err);
    assert_int_equal(sim->count(rt), 2);
    assert_ok(sim->describe(rt, 0, &info, &err), &err);
    assert_string_equal(info.arch, "gfx90a");
    assert_string_equal(info.model, "MI210");
    assert_string_equal(info.pci, "0000:c1:00.0");
    assert_string_equal(info.driver, "simulated, executor cpu");
    assert_string_equal(info.images, "gfx90a");
    assert_int_equal(info.lanes, 64);
    assert_int_equal(info.units, 104);
    assert_true(info.memory == 64ull << 30);
    assert_true(info.memory_rate == 1600000000000ull && info.link_rate == 50000000000ull);
    assert_ok(sim->describe(rt, 1, &info, &err), &err);
    assert_int_equal(info.lanes, 64);
    assert_string_equal(info.images, "sm_75,sm_80");
    assert_true(info.features & ST_FEATURE_INTEGRATED);
    assert_false(info.features & ST_FEATURE_GRAPHS);
    assert_int_equal(sim->describe(rt, 2, &info, &err), STRATA_E_ARGUMENT);
    sim->close(rt);
}

static void a_description_that_is_not_understood_is_refused_with_its_part(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"sim:gfx1100:24X", "24X"},
        {"sim:gfx1100:24G:speed=3", "speed=3"},
        {"sim:gfx1100:lanes=16", "32 or 64"},
        {"sim::", "architecture"},
        {"sim:gfx1100:pci=zz", "pci=zz"},
        {"sim:gfx1100:-3G", "-3G"},
        {"sim:gfx1100:oom=x", "oom=x"},
        {"sim:gfx1100:uuid=12", "uuid=12"},
        {"sim:gfx1100:nanG", "nanG"},
        {"sim:gfx1100:oom=99999999999", "oom="},
        {"sim:a-name-that-is-longer-than-any-architecture", "architecture"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct strata_error err;
        struct st_rt *rt;
        assert_int_equal(sim->open(&(struct st_runtime_options){.devices = bad[i][0]}, &rt, &err), STRATA_E_ARGUMENT);
        assert_says(err.text, bad[i][1]);
    }
    struct strata_error err;
    struct st_rt *rt;
    assert_int_equal(sim->open(&(struct st_runtime_options){.devices = "sm_80", .executor = "gpu"}, &rt, &err),
                     STRATA_E_ARGUMENT);
    assert_int_equal(sim->open(&(struct st_runtime_options){.devices = NULL}, &rt, &err), STRATA_E_UNSUPPORTED);
}

static void commands_run_in_order_and_touch_host_memory_when_they_run(void **state)
{
    (void)state;
    struct fixture f = begin("gfx1100:1G:slow=2000", "fibers");
    enum { SIZE = 65536 };
    st_addr a = allocate(&f, 0, SIZE), b = allocate(&f, 0, SIZE);
    uint8_t *in = malloc(SIZE), *out = calloc(1, SIZE);
    memset(in, 1, SIZE);
    /* a wait holds the queue until the host says so: what comes behind sees the memory of then, not of now */
    void *number;
    st_addr number_at;
    assert_ok(sim->host_allocate(f.dev[0], 4096, &number, &f.err), &f.err);
    assert_ok(sim->host_address(f.dev[0], number, &number_at, &f.err), &f.err);
    assert_ok(sim->wait_value(f.queue, number_at, 1, &f.err), &f.err);
    assert_ok(sim->copy_in(f.queue, a, in, SIZE, &f.err), &f.err);
    assert_ok(launch_copy(&f, b, a, SIZE), &f.err);
    assert_ok(sim->copy_out(f.queue, out, b, SIZE, &f.err), &f.err);
    memset(in, 2, SIZE);
    assert_int_equal(out[0], 0);
    __atomic_store_n((uint32_t *)number, 1, __ATOMIC_RELEASE);
    assert_ok(sim->queue_sync(f.queue, &f.err), &f.err);
    assert_int_equal(out[0], 2);
    assert_int_equal(out[SIZE - 1], 2);
    sim->host_free(f.dev[0], number);
    free(in);
    free(out);
    end(&f);
}

static void an_event_holds_another_queue_until_its_record_is_passed(void **state)
{
    (void)state;
    struct fixture f = begin("gfx1100:1G", "cpu");
    struct st_queue *second;
    struct st_event *event;
    void *number;
    bool done = true;
    st_addr a = allocate(&f, 0, 4096);
    uint32_t out = 0;
    assert_ok(sim->queue_create(f.dev[0], ST_QUEUE_COPY, &second, &f.err), &f.err);
    assert_ok(sim->event_create(f.dev[0], false, &event, &f.err), &f.err);
    assert_ok(sim->host_allocate(f.dev[0], 4096, &number, &f.err), &f.err);
    assert_ok(sim->fill(f.queue, a, 0, 4096, &f.err), &f.err);
    assert_ok(sim->queue_sync(f.queue, &f.err), &f.err);
    assert_ok(sim->wait_value(f.queue, (st_addr)(uintptr_t)number, 5, &f.err), &f.err);
    assert_ok(sim->fill(f.queue, a, 7, 4096, &f.err), &f.err);
    assert_ok(sim->event_record(f.queue, event, &f.err), &f.err);
    assert_ok(sim->event_wait(second, event, &f.err), &f.err);
    assert_ok(sim->copy_out(second, &out, a, 4, &f.err), &f.err);
    assert_ok(sim->event_query(event, &done, &f.err), &f.err);
    assert_false(done);
    __atomic_store_n((uint32_t *)number, 6, __ATOMIC_RELEASE);
    assert_ok(sim->queue_sync(second, &f.err), &f.err);
    assert_int_equal(out, 0x07070707);
    assert_ok(sim->event_sync(event, &f.err), &f.err);
    assert_ok(sim->queue_sync(f.queue, &f.err), &f.err);
    sim->host_free(f.dev[0], number);
    sim->event_free(event);
    end(&f);
}

static void a_graph_replays_what_was_recorded_and_recording_runs_nothing(void **state)
{
    (void)state;
    struct fixture f = begin("gfx1100:1G", "fibers");
    st_addr a = allocate(&f, 0, 4096), b = allocate(&f, 0, 4096);
    struct st_graph *graph;
    uint8_t out[4096];
    assert_ok(sim->fill(f.queue, a, 1, 4096, &f.err), &f.err);
    assert_ok(sim->fill(f.queue, b, 0, 4096, &f.err), &f.err);
    assert_ok(sim->queue_sync(f.queue, &f.err), &f.err);
    assert_ok(sim->graph_begin(f.queue, &f.err), &f.err);
    assert_ok(launch_copy(&f, b, a, 4096), &f.err);
    assert_ok(sim->fill(f.queue, a, 9, 2048, &f.err), &f.err);
    assert_int_equal(sim->copy_out(f.queue, out, b, 4096, &f.err), STRATA_E_DEVICE);
    assert_ok(sim->graph_end(f.queue, &graph, &f.err), &f.err);
    assert_ok(sim->copy_out(f.queue, out, b, 4096, &f.err), &f.err);
    assert_ok(sim->queue_sync(f.queue, &f.err), &f.err);
    assert_int_equal(out[0], 0);
    for (int i = 0; i < 2; i++)
        assert_ok(sim->graph_launch(f.queue, graph, &f.err), &f.err);
    assert_ok(sim->copy_out(f.queue, out, b, 4096, &f.err), &f.err);
    assert_ok(sim->queue_sync(f.queue, &f.err), &f.err);
    assert_int_equal(out[0], 9);
    assert_int_equal(out[2048], 1);
    sim->graph_free(graph);
    assert_int_equal(sim->graph_end(f.queue, &graph, &f.err), STRATA_E_DEVICE);
    end(&f);
}

static void a_modelled_device_takes_the_time_of_its_bytes(void **state)
{
    (void)state;
    struct fixture f = begin("gfx1100:1G:bw=1000G:link=10G", "cpu");
    enum { SIZE = 1 << 20 };
    st_addr a = allocate(&f, 0, SIZE), b = allocate(&f, 0, SIZE);
    uint8_t *host = calloc(1, SIZE);
    struct st_event *from, *to;
    double us;
    assert_ok(sim->event_create(f.dev[0], true, &from, &f.err), &f.err);
    assert_ok(sim->event_create(f.dev[0], true, &to, &f.err), &f.err);
    assert_ok(sim->copy_in(f.queue, a, host, SIZE, &f.err), &f.err);
    assert_ok(sim->event_record(f.queue, from, &f.err), &f.err);
    assert_ok(launch_copy(&f, b, a, SIZE), &f.err);
    assert_ok(sim->event_record(f.queue, to, &f.err), &f.err);
    assert_ok(sim->queue_sync(f.queue, &f.err), &f.err);
    assert_ok(sim->event_elapsed(from, to, &us, &f.err), &f.err);
    assert_true(us > 5.0 && us < 5.2); /* 3 us for the launch, 2 MiB at 1000 GB/s */
    assert_ok(sim->event_record(f.queue, from, &f.err), &f.err);
    assert_ok(sim->copy_out(f.queue, host, a, SIZE, &f.err), &f.err);
    assert_ok(sim->event_record(f.queue, to, &f.err), &f.err);
    assert_ok(sim->queue_sync(f.queue, &f.err), &f.err);
    assert_ok(sim->event_elapsed(from, to, &us, &f.err), &f.err);
    assert_true(us > 109.8 && us < 109.9); /* 5 us and 1 MiB at 10 GB/s */
    sim->event_free(from);
    sim->event_free(to);
    free(host);
    end(&f);
}

static void memory_has_a_limit_and_the_nth_allocation_fails_on_request(void **state)
{
    (void)state;
    struct fixture f = begin("gfx1100:1M:oom=3", "cpu");
    st_addr a = allocate(&f, 0, 512 * 1024), b = 0;
    uint64_t free_bytes, total;
    assert_int_equal(sim->allocate(f.dev[0], 600 * 1024, &b, &f.err), STRATA_E_LIMIT);
    assert_says(f.err.text, "524288 of 1048576 are free");
    assert_int_equal(sim->allocate(f.dev[0], 16, &b, &f.err), STRATA_E_LIMIT);
    assert_says(f.err.text, "allocation 3");
    assert_int_equal(b, 0);
    b = allocate(&f, 0, 512 * 1024);
    assert_ok(sim->memory(f.dev[0], &free_bytes, &total, &f.err), &f.err);
    assert_true(free_bytes == 0 && total == 1 << 20);
    sim->release(f.dev[0], a);
    assert_ok(sim->memory(f.dev[0], &free_bytes, &total, &f.err), &f.err);
    assert_true(free_bytes == 512 * 1024);
    sim->release(f.dev[0], b);
    end(&f);
}

static void addresses_of_another_device_or_outside_an_allocation_are_refused(void **state)
{
    (void)state;
    struct fixture f = begin("gfx1100:1G,gfx1201:1G", "cpu");
    st_addr a = allocate(&f, 0, 4096), other = allocate(&f, 1, 4096);
    uint8_t host[4096] = {0};
    assert_int_equal(launch_copy(&f, a, other, 4096), STRATA_E_DEVICE);
    assert_says(f.err.text, "argument 1");
    assert_int_equal(sim->copy_in(f.queue, a + 1, host, 4096, &f.err), STRATA_E_DEVICE);
    assert_int_equal(sim->copy(f.queue, other, a, 16, &f.err), STRATA_E_DEVICE);
    assert_int_equal(sim->peer_copy(f.queue, f.dev[1], other, f.dev[0], a, 4096, &f.err), STRATA_E_DEVICE);
    assert_ok(sim->peer_enable(f.dev[0], f.dev[1], &f.err), &f.err);
    assert_ok(sim->fill(f.queue, a, 3, 4096, &f.err), &f.err);
    assert_ok(sim->peer_copy(f.queue, f.dev[1], other, f.dev[0], a, 4096, &f.err), &f.err);
    assert_ok(sim->queue_sync(f.queue, &f.err), &f.err);
    assert_int_equal(*(uint8_t *)(uintptr_t)other, 3);
    end(&f);
}

static void a_refused_launch_leaves_the_device_usable(void **state)
{
    (void)state;
    struct fixture f = begin("gfx1100:1G:refuse=2", "cpu");
    st_addr a = allocate(&f, 0, 4096), b = allocate(&f, 0, 4096);
    assert_ok(launch_copy(&f, b, a, 4096), &f.err);
    assert_int_equal(launch_copy(&f, b, a, 4096), STRATA_E_DEVICE);
    assert_says(f.err.text, "st_copy");
    assert_ok(launch_copy(&f, b, a, 4096), &f.err);
    assert_ok(sim->queue_sync(f.queue, &f.err), &f.err);
    end(&f);
}

static void a_launch_that_fails_late_is_reported_later_and_the_device_is_lost(void **state)
{
    (void)state;
    struct fixture f = begin("gfx1100:1G:late=2,gfx1201:1G", "cpu");
    st_addr a = allocate(&f, 0, 4096), b = allocate(&f, 0, 4096), c;
    assert_ok(launch_copy(&f, b, a, 4096), &f.err);
    assert_ok(launch_copy(&f, b, a, 4096), &f.err);
    assert_int_equal(sim->queue_sync(f.queue, &f.err), STRATA_E_DEVICE);
    assert_says(f.err.text, "sim:0: kernel st_copy");
    char first[sizeof f.err.text];
    memcpy(first, f.err.text, sizeof first);
    assert_int_equal(sim->allocate(f.dev[0], 16, &c, &f.err), STRATA_E_DEVICE);
    assert_string_equal(f.err.text, first);
    assert_int_equal(sim->device_sync(f.dev[0], &f.err), STRATA_E_DEVICE);
    allocate(&f, 1, 4096); /* the other one lives */
    end(&f);
}

static void a_lost_device_answers_every_call_with_its_first_message(void **state)
{
    (void)state;
    struct fixture f = begin("gfx1100:1G:lost=1", "cpu");
    st_addr a = allocate(&f, 0, 4096);
    struct st_event *event;
    assert_ok(sim->event_create(f.dev[0], false, &event, &f.err), &f.err);
    assert_int_equal(launch_copy(&f, a, a, 4096), STRATA_E_DEVICE);
    assert_says(f.err.text, "the device was lost");
    assert_int_equal(sim->event_record(f.queue, event, &f.err), STRATA_E_DEVICE);
    assert_int_equal(sim->fill(f.queue, a, 0, 16, &f.err), STRATA_E_DEVICE);
    assert_says(f.err.text, "the device was lost");
    sim->release(f.dev[0], a);
    sim->event_free(event);
    end(&f);
}

static void a_stuck_queue_is_given_up_after_its_patience(void **state)
{
    (void)state;
    struct fixture f = begin("gfx1100:1G:stuck=1:patience=30", "cpu");
    st_addr a = allocate(&f, 0, 4096);
    struct st_event *event;
    bool done = true;
    assert_ok(sim->event_create(f.dev[0], false, &event, &f.err), &f.err);
    assert_ok(launch_copy(&f, a, a, 4096), &f.err);
    assert_ok(sim->event_record(f.queue, event, &f.err), &f.err);
    assert_ok(sim->event_query(event, &done, &f.err), &f.err);
    assert_false(done);
    assert_int_equal(sim->event_sync(event, &f.err), STRATA_E_DEVICE);
    assert_says(f.err.text, "no progress for 30 ms");
    sim->event_free(event);
    end(&f);
}

/* ---- fibers ---- */

static void half_of_a_wave(const union st_arg *args)
{
    (void)args;
    if (st_item_now->lane < 5)
        st_fiber_wait(st_item_now, ST_ITEM_AT_EXCHANGE);
}

static void some_at_a_barrier(const union st_arg *args)
{
    (void)args;
    if (st_item_now->index != 17)
        st_fiber_wait(st_item_now, ST_ITEM_AT_BARRIER);
}

static void too_much_local_memory(const union st_arg *args)
{
    (void)args;
    st_fiber_local(st_item_now, 40000);
    st_fiber_local(st_item_now, 40000);
}

static void counts(const union st_arg *args)
{
    uint32_t *total = (uint32_t *)(uintptr_t)args[0].p;
    uint32_t *shared = st_fiber_local(st_item_now, 4);
    if (st_item_now->index == 0)
        *shared = 0;
    st_fiber_wait(st_item_now, ST_ITEM_AT_BARRIER);
    (*shared)++;
    st_fiber_wait(st_item_now, ST_ITEM_AT_BARRIER);
    if (st_item_now->index == 0)
        *total += *shared;
}

static void work_items_that_do_not_meet_are_an_error_and_the_fibers_go_on(void **state)
{
    (void)state;
    struct st_fibers *f;
    struct strata_error err;
    uint32_t total = 0;
    const union st_arg args[] = {{.p = (st_addr)(uintptr_t)&total}};
    const uint32_t one[3] = {1, 1, 1}, many[3] = {3, 2, 1}, deep[3] = {1, 1, 2};
    assert_ok(st_fibers_create(32, &f, &err), &err);
    assert_int_equal(st_fibers_run(f, &(struct st_host_kernel){"lanes", half_of_a_wave}, 64, one, NULL, &err),
                     STRATA_E_DEVICE);
    assert_string_equal(err.text, "kernel lanes: 5 of 32 lanes of a wave exchange values, the others do not");
    assert_int_equal(st_fibers_run(f, &(struct st_host_kernel){"items", some_at_a_barrier}, 64, one, NULL, &err),
                     STRATA_E_DEVICE);
    assert_string_equal(err.text, "kernel items: 63 of 64 work-items wait at a barrier, the others ended");
    assert_int_equal(st_fibers_run(f, &(struct st_host_kernel){"local", too_much_local_memory}, 32, one, NULL, &err),
                     STRATA_E_DEVICE);
    assert_says(err.text, "of local memory, 65536 are there");
    assert_int_equal(st_fibers_run(f, &(struct st_host_kernel){"deep", counts}, 32, deep, args, &err), STRATA_E_DEVICE);
    assert_int_equal(st_fibers_run(f, &(struct st_host_kernel){"wide", counts}, ST_FIBERS_MAX + 1, one, args, &err), STRATA_E_DEVICE);
    assert_ok(st_fibers_run(f, &(struct st_host_kernel){"counts", counts}, 256, many, args, &err), &err);
    assert_int_equal(total, 6 * 256);
    st_fibers_free(f);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_description_says_what_the_device_is),
    cmocka_unit_test(a_description_that_is_not_understood_is_refused_with_its_part),
    cmocka_unit_test(commands_run_in_order_and_touch_host_memory_when_they_run),
    cmocka_unit_test(an_event_holds_another_queue_until_its_record_is_passed),
    cmocka_unit_test(a_graph_replays_what_was_recorded_and_recording_runs_nothing),
    cmocka_unit_test(a_modelled_device_takes_the_time_of_its_bytes),
    cmocka_unit_test(memory_has_a_limit_and_the_nth_allocation_fails_on_request),
    cmocka_unit_test(addresses_of_another_device_or_outside_an_allocation_are_refused),
    cmocka_unit_test(a_refused_launch_leaves_the_device_usable),
    cmocka_unit_test(a_launch_that_fails_late_is_reported_later_and_the_device_is_lost),
    cmocka_unit_test(a_lost_device_answers_every_call_with_its_first_message),
    cmocka_unit_test(a_stuck_queue_is_given_up_after_its_patience),
    cmocka_unit_test(work_items_that_do_not_meet_are_an_error_and_the_fibers_go_on),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
