/* What the tests of runtimes over doubles share; see scenario.h. */
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/gpu_copy.h"
#include "runtime/copy.h"
#include "scenario.h"

extern const struct st_runtime st_runtime_cuda, st_runtime_hip, st_runtime_opencl;

enum strata_result st_open_double(const char *runtime, const char *library, const char *config, const char *devices,
                                  const char *tree, enum st_check check, struct st_devices **set,
                                  struct strata_error *err)
{
    setenv("STRATA_DOUBLE", config, 1);
    struct st_device_options options = {.devices = devices, .check = check, .sysfs = tree ? tree : "/nonexistent"};
    static const struct st_runtime *const only[][2] = {
        {&st_runtime_cuda, NULL}, {&st_runtime_hip, NULL}, {&st_runtime_opencl, NULL}};
    for (size_t i = 0; i < sizeof only / sizeof only[0]; i++)
        if (strcmp(only[i][0]->name, runtime) == 0)
            options.runtimes = only[i];
    options.libraries[0].runtime = runtime;
    options.libraries[0].path = library;
    return st_devices_open(&options, set, err);
}

const char *st_runtime_reason(const struct st_devices *set, const char *runtime)
{
    for (int i = 0; i < set->runtime_count; i++)
        if (strcmp(set->runtimes[i].table->name, runtime) == 0)
            return set->runtimes[i].rt ? "" : set->runtimes[i].reason;
    return "not opened";
}

const char *st_library_reason(const char *runtime, const char *path, char out[480])
{
    struct st_devices *set = NULL;
    struct strata_error err = {0};
    assert_ok(st_open_double(runtime, path, "", "auto", NULL, ST_CHECK_NONE, &set, &err), &err);
    snprintf(out, 480, "%s", st_runtime_reason(set, runtime));
    st_devices_close(set);
    return out;
}

enum strata_result st_scenario(const char *runtime, const char *library, const char *config, struct strata_error *err)
{
    enum { BYTES = 1 << 16 };
    static uint8_t from[BYTES], to[BYTES];
    struct st_devices *set = NULL;
    struct st_device *a = NULL, *b = NULL;
    struct st_channel *channel = NULL;
    struct st_graph *graph = NULL;
    st_addr src = 0, dst = 0, far = 0;
    struct st_gpu_launch l;
    bool needed[ST_GPU_KERNEL_COUNT] = {[ST_GPU_COPY] = true, [ST_GPU_EMPTY] = true};
    for (int i = 0; i < BYTES; i++)
        from[i] = (uint8_t)(i * 7);
    memset(to, 0, sizeof to);
    char devices[64];
    snprintf(devices, sizeof devices, "%s:0,%s:1", runtime, runtime);
    enum strata_result r = st_open_double(runtime, library, config, devices, NULL, ST_CHECK_NONE, &set, err);
    if (r == STRATA_OK)
        r = st_device_open(set, set->chosen[0], needed, &a, err);
    if (r == STRATA_OK)
        r = st_device_open(set, set->chosen[1], needed, &b, err);
    if (r == STRATA_OK)
        r = st_device_measure(a, NULL, err);
    if (r == STRATA_OK)
        r = a->table->allocate(a->rt, BYTES, &src, err);
    if (r == STRATA_OK)
        r = a->table->allocate(a->rt, BYTES, &dst, err);
    if (r == STRATA_OK)
        r = b->table->allocate(b->rt, BYTES, &far, err);
    if (r == STRATA_OK)
        r = a->table->copy_in(a->compute, src, from, BYTES, err);
    if (r == STRATA_OK)
        r = st_capture_begin(a, a->compute, err);
    if (r == STRATA_OK) {
        st_gpu_copy(dst, src, BYTES, &l);
        r = st_launch(a, a->compute, l.kernel, l.grid[0], l.grid[1], l.grid[2], l.args, "64 KiB", err);
        if (r == STRATA_OK)
            r = a->table->copy(a->compute, src, dst, BYTES, err);
        enum strata_result end = st_capture_end(a, a->compute, &graph, r == STRATA_OK ? err : NULL);
        r = r == STRATA_OK ? end : r;
    }
    if (r == STRATA_OK)
        r = a->table->graph_launch(a->compute, graph, err);
    if (r == STRATA_OK)
        r = st_channel_open(a, b, 4096, false, &channel, err);
    if (r == STRATA_OK)
        r = st_channel_copy(channel, a->compute, dst, b->compute, far, BYTES, err);
    if (r == STRATA_OK)
        r = b->table->copy_out(b->compute, to, far, BYTES, err);
    if (r == STRATA_OK)
        r = st_wait(b, b->compute, err);
    if (r == STRATA_OK) /* the plain waits, which st_wait does without */
        r = a->table->queue_sync(a->compute, err);
    if (r == STRATA_OK)
        r = b->table->event_sync(channel->emptied[0], err);
    if (r == STRATA_OK)
        assert_memory_equal(from, to, BYTES);
    if (r == STRATA_OK)
        assert_int_equal(st_channel_timeline(channel), BYTES / 4096);
    st_channel_close(channel);
    if (graph)
        a->table->graph_free(graph);
    if (a) {
        a->table->release(a->rt, src);
        a->table->release(a->rt, dst);
    }
    if (b)
        b->table->release(b->rt, far);
    st_device_close(b);
    st_device_close(a);
    st_devices_close(set);
    return r;
}
