/* The HIP runtime against doubles of its library in the shapes of versions 5 and 6, against libraries that are no such
 * thing, and against the real one of Debian where that is installed. */
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/copy.h"
#include "runtime/selftest.h"
#include "scenario.h"

#define STRING(x) #x
#define HIP_NAME(name, result, params, required) STRING(name),
#include "runtime/hip_functions.h"
static const char *const functions[] = {HIP_FUNCTIONS(HIP_NAME)};

static const char *library(int version)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/tests/runtime/libdouble-hip-%d.so", getenv("STRATA_TEST_BUILD"), version);
    return path;
}

/* A sysfs tree with one card at 0000:03:00.0; returns its root. */
static const char *sysfs(unsigned version)
{
    static char root[64];
    char path[512];
    snprintf(root, sizeof root, "/tmp/strata-test-XXXXXX");
    assert_non_null(mkdtemp(root));
    static const char *const parts[] = {"devices", "virtual", "kfd", "kfd", "topology", "nodes", "1"};
    snprintf(path, sizeof path, "%s", root);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        strcat(path, "/");
        strcat(path, parts[i]);
        assert_int_equal(mkdir(path, 0755), 0);
    }
    strcat(path, "/properties");
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "cpu_cores_count 0\nsimd_count 96\ngfx_target_version %u\nlocation_id 768\ndomain 0\n", version);
    fclose(f);
    return root;
}

static void remove_sysfs(const char *root)
{
    char path[512];
    static const char *const parts[] = {"devices/virtual/kfd/kfd/topology/nodes/1/properties",
                                        "devices/virtual/kfd/kfd/topology/nodes/1",
                                        "devices/virtual/kfd/kfd/topology/nodes",
                                        "devices/virtual/kfd/kfd/topology",
                                        "devices/virtual/kfd/kfd",
                                        "devices/virtual/kfd",
                                        "devices/virtual",
                                        "devices",
                                        ""};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", root, parts[i]);
        assert_int_equal(remove(path), 0);
    }
}

static enum strata_result open_set(int version, const char *config, const char *devices, const char *tree,
                                   enum st_check check, struct st_devices **set, struct strata_error *err)
{
    return st_open_double("hip", library(version), config, devices, tree, check, set, err);
}

/* Whether this build has AMD images that serve the doubles. */
static bool has_image(const char *arch)
{
    return st_image_find(&st_images_builtin, "copy", arch, false) != NULL;
}

static bool has_images(void)
{
    return has_image("gfx1100");
}

static void both_shapes_of_the_library_describe_their_cards(void **state)
{
    (void)state;
    for (int version = 5; version <= 6; version++) {
        struct st_devices *set = NULL;
        struct strata_error err = {0};
        enum strata_result r =
            open_set(version, "count=2 arch=gfx1100,gfx1201", "hip:0,hip:1", NULL, ST_CHECK_NONE, &set, &err);
        if (has_images() && has_image("gfx1201"))
            assert_ok(r, &err);
        assert_int_equal(set->count, 2);
        const struct st_device_info *a = &set->list[0].info, *b = &set->list[1].info;
        assert_string_equal(set->list[1].name, "hip:1");
        assert_string_equal(a->arch, "gfx1100");
        assert_string_equal(a->arch_driver, "gfx1100:sramecc-:xnack-");
        assert_string_equal(b->arch, "gfx1201");
        assert_string_equal(a->pci, "0000:03:00.0");
        assert_string_equal(a->uuid, "");
        assert_null(strchr(a->model, 0x1b));
        assert_string_equal(a->driver, version == 5 ? "HIP 5.2.21153" : "HIP 6.2.41134");
        assert_int_equal(a->lanes, 32);
        assert_int_equal(a->units, 24);
        assert_int_equal(a->local_bytes, 65536);
        assert_int_equal(a->memory, 1 << 30);
        assert_true(a->features & ST_FEATURE_FAULT_ABORTS);
        assert_false(a->features & ST_FEATURE_GENERIC);
        assert_false(a->features & ST_FEATURE_WAIT_VALUE);
        assert_false(a->features & ST_FEATURE_DISPLAY);
        assert_true(b->features & ST_FEATURE_DISPLAY);
        st_devices_close(set);
    }
}

static void later_versions_load_family_images_and_return_from_faults(void **state)
{
    (void)state;
    struct st_devices *set = NULL;
    struct strata_error err = {0};
    open_set(6, "version=70051831", "hip:0", NULL, ST_CHECK_NONE, &set, &err);
    assert_int_equal(set->count, 1);
    assert_true(set->list[0].info.features & ST_FEATURE_GENERIC);
    assert_false(set->list[0].info.features & ST_FEATURE_FAULT_ABORTS);
    st_devices_close(set);
}

/* Every family on both cards, with the validation layer between. */
static void kernels_copies_and_graphs_go_through_the_library_with_right_results(void **state)
{
    (void)state;
    if (!has_images())
        skip();
    static const char *const families[] = {"copy", "norm", "products", "rows"};
    for (int version = 5; version <= 6; version++) {
        struct st_devices *set = NULL;
        struct strata_error err = {0};
        assert_ok(open_set(version, "count=2", "hip:0,hip:1", NULL, ST_CHECK_RUNTIME, &set, &err), &err);
        struct st_device *dev = NULL;
        assert_ok(st_device_open(set, set->chosen[version - 5], NULL, &dev, &err), &err);
        for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
            struct st_selftest_options options = {.seed = 7, .family = families[i], .quick = true};
            struct st_selftest_result result = {0};
            assert_ok(st_selftest(dev, &options, &result, &err), &err);
            assert_true(result.cases > 0);
            assert_int_equal(result.failed, 0);
        }
        assert_ok(st_device_measure(dev, NULL, &err), &err);
        assert_true(dev->measured.copy_rate > 0);
        assert_false(dev->measured.wait_value);
        st_device_close(dev);
        st_devices_close(set);
    }
}

/* What may fail without anybody being worse off: freeing, and what is only asked for a message or a better choice. */
static bool may_be_ignored(const char *name)
{
    static const char *const names[] = {
        "Init", "GetErrorName", "GetErrorString", "GetDeviceProperties", "DeviceGetPCIBusId", "DeviceSynchronize",
        "Free", "HostFree", "HostUnregister", "StreamDestroy", "EventDestroy", "ModuleUnload", "FuncGetAttribute",
        "GraphExecDestroy", "GraphDestroy",
        /* only with tested direct copies, and with HOST_MAPPED waits, which HIP has not */
        "DeviceCanAccessPeer", "DeviceEnablePeerAccess", "MemcpyPeerAsync", "HostGetDevicePointer", "EventQuery",
        "StreamWaitEvent"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

static void a_failure_of_any_function_is_a_message_that_names_the_device(void **state)
{
    (void)state;
    if (!has_images())
        skip();
    struct strata_error err = {0};
    assert_ok(st_scenario("hip", library(6), "count=2", &err), &err);
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        char config[128];
        snprintf(config, sizeof config, "count=2 fail=%s:999:1", functions[i]);
        memset(&err, 0, sizeof err);
        enum strata_result r = st_scenario("hip", library(6), config, &err);
        if (may_be_ignored(functions[i]))
            continue;
        if (r == STRATA_OK)
            fail_msg("a failure of hip%s is not noticed", functions[i]);
        if (!strstr(err.text, "hip:0") && !strstr(err.text, "hip:1"))
            fail_msg("hip%s: the message names no device: %s", functions[i], err.text);
    }
}

static void a_fault_loses_the_device_and_every_later_call_says_why(void **state)
{
    (void)state;
    if (!has_images())
        skip();
    struct st_devices *set = NULL;
    struct st_device *dev = NULL;
    struct strata_error err = {0};
    const bool needed[ST_GPU_KERNEL_COUNT] = {[ST_GPU_EMPTY] = true};
    const union st_arg none[1] = {{.l = 0}};
    assert_ok(open_set(6, "fail=EventQuery:700:1", "hip:0", NULL, ST_CHECK_NONE, &set, &err), &err);
    assert_ok(st_device_open(set, set->chosen[0], needed, &dev, &err), &err);
    assert_ok(st_launch(dev, dev->compute, ST_GPU_EMPTY, 1, 1, 1, none, "nothing", &err), &err);
    assert_int_equal(st_wait(dev, dev->compute, &err), STRATA_E_DEVICE);
    assert_non_null(strstr(err.text, "hip:0"));
    assert_non_null(strstr(err.text, "hipErrorIllegalAddress"));
    assert_non_null(strstr(err.text, "st_empty"));
    st_addr address = 0;
    assert_int_equal(dev->table->allocate(dev->rt, 4096, &address, &err), STRATA_E_DEVICE);
    assert_non_null(strstr(err.text, "hipErrorIllegalAddress"));
    st_device_close(dev);
    st_devices_close(set);
}

static void with_sync_the_launch_that_faults_reports_it(void **state)
{
    (void)state;
    if (!has_images())
        skip();
    struct st_devices *set = NULL;
    struct st_device *dev = NULL;
    struct strata_error err = {0};
    const bool needed[ST_GPU_KERNEL_COUNT] = {[ST_GPU_EMPTY] = true};
    const union st_arg none[1] = {{.l = 0}};
    assert_ok(open_set(6, "fail=EventQuery:700:2", "hip:0", NULL, ST_CHECK_SYNC, &set, &err), &err);
    assert_ok(st_device_open(set, set->chosen[0], needed, &dev, &err), &err);
    assert_ok(st_launch(dev, dev->compute, ST_GPU_EMPTY, 1, 1, 1, none, "the first", &err), &err);
    assert_int_equal(st_launch(dev, dev->compute, ST_GPU_EMPTY, 7, 1, 1, none, "the second", &err), STRATA_E_DEVICE);
    assert_non_null(strstr(err.text, "grid 7 x 1 x 1"));
    assert_non_null(strstr(err.text, "the second"));
    assert_non_null(strstr(err.text, "copy for gfx1100"));
    assert_non_null(strstr(err.text, "hipErrorIllegalAddress"));
    st_device_close(dev);
    st_devices_close(set);
}

static void a_queue_that_stands_still_is_given_up_and_its_driver_left_alone(void **state)
{
    (void)state;
    if (!has_images())
        skip();
    struct st_devices *set = NULL;
    struct st_device *dev = NULL;
    struct strata_error err = {0};
    const bool needed[ST_GPU_KERNEL_COUNT] = {[ST_GPU_EMPTY] = true};
    const union st_arg none[1] = {{.l = 0}};
    st_addr memory = 0;
    void *host = aligned_alloc(4096, 4096);
    assert_ok(open_set(6, "stuck=1", "hip:0", NULL, ST_CHECK_NONE, &set, &err), &err);
    assert_ok(st_device_open(set, set->chosen[0], needed, &dev, &err), &err);
    dev->info.patience = 20;
    assert_ok(dev->table->allocate(dev->rt, 4096, &memory, &err), &err);
    assert_ok(dev->table->host_register(dev->rt, host, 4096, &err), &err);
    assert_ok(st_launch(dev, dev->compute, ST_GPU_EMPTY, 1, 1, 1, none, "nothing", &err), &err);
    assert_int_equal(st_wait(dev, dev->compute, &err), STRATA_E_DEVICE);
    assert_non_null(strstr(err.text, "hip:0: no progress for 20 ms"));
    assert_non_null(strstr(err.text, "st_empty"));
    assert_true(dev->given_up);
    assert_int_equal(st_wait(dev, dev->copy, &err), STRATA_E_DEVICE);
    dev->table->release(dev->rt, memory);
    assert_false(dev->table->host_unregister(dev->rt, host));
    st_device_close(dev);
    st_devices_close(set);
    free(host); /* the double touches nothing */
}

/* The way of a channel between two cards under a configuration of the double. */
static enum st_channel_way way(const char *config, bool direct)
{
    struct st_devices *set = NULL;
    struct st_device *a = NULL, *b = NULL;
    struct st_channel *channel = NULL;
    struct strata_error err = {0};
    const bool needed[ST_GPU_KERNEL_COUNT] = {[ST_GPU_EMPTY] = true};
    assert_ok(open_set(6, config, "hip:0,hip:1", NULL, ST_CHECK_NONE, &set, &err), &err);
    assert_ok(st_device_open(set, set->chosen[0], needed, &a, &err), &err);
    assert_ok(st_device_open(set, set->chosen[1], needed, &b, &err), &err);
    assert_ok(st_channel_open(a, b, 4096, direct, &channel, &err), &err);
    enum st_channel_way found = channel->way;
    st_channel_close(channel);
    st_device_close(b);
    st_device_close(a);
    st_devices_close(set);
    return found;
}

static void direct_copies_are_used_only_after_their_bytes_arrived(void **state)
{
    (void)state;
    if (!has_images())
        skip();
    assert_int_equal(way("count=2", true), ST_CHANNEL_DIRECT);
    assert_int_equal(way("count=2", false), ST_CHANNEL_HOST);
    assert_int_equal(way("count=2 corrupt=1", true), ST_CHANNEL_HOST);
    assert_int_equal(way("count=2 fail=MemcpyPeerAsync:1:1", true), ST_CHANNEL_HOST);
    assert_int_equal(way("count=2 fail=DeviceEnablePeerAccess:101:2", true), ST_CHANNEL_HOST);
}

static void out_of_memory_is_a_limit_and_not_a_lost_device(void **state)
{
    (void)state;
    if (!has_images())
        skip();
    struct st_devices *set = NULL;
    struct st_device *dev = NULL;
    struct strata_error err = {0};
    const bool needed[ST_GPU_KERNEL_COUNT] = {[ST_GPU_EMPTY] = true};
    assert_ok(open_set(5, "", "hip:0", NULL, ST_CHECK_NONE, &set, &err), &err);
    assert_ok(st_device_open(set, set->chosen[0], needed, &dev, &err), &err);
    st_addr address = 0;
    assert_int_equal(dev->table->allocate(dev->rt, (uint64_t)2 << 30, &address, &err), STRATA_E_LIMIT);
    assert_ok(dev->table->allocate(dev->rt, 4096, &address, &err), &err);
    dev->table->release(dev->rt, address);
    st_device_close(dev);
    st_devices_close(set);
}

static void an_architecture_without_images_is_refused_when_named_and_left_out_otherwise(void **state)
{
    (void)state;
    struct st_devices *set = NULL;
    struct strata_error err = {0};
    assert_int_equal(open_set(6, "arch=gfx1013", "hip:0", NULL, ST_CHECK_NONE, &set, &err), STRATA_E_DEVICE);
    assert_non_null(strstr(err.text, "hip:0"));
    assert_non_null(strstr(err.text, "gfx1013"));
    assert_non_null(strstr(err.text, "st_empty"));
    st_devices_close(set);
    assert_ok(open_set(6, "arch=gfx1013", "auto", NULL, ST_CHECK_NONE, &set, &err), &err);
    for (int i = 0; i < set->chosen_count; i++)
        assert_string_not_equal(set->list[set->chosen[i]].name, "hip:0");
    st_devices_close(set);
}

static void the_kernel_drivers_word_is_compared(void **state)
{
    (void)state;
    struct st_devices *set = NULL;
    struct strata_error err = {0};
    unsetenv("HSA_OVERRIDE_GFX_VERSION");
    const char *tree = sysfs(110001);
    assert_int_equal(open_set(6, "", "hip:0", tree, ST_CHECK_NONE, &set, &err), STRATA_E_DEVICE);
    assert_non_null(strstr(err.text, "the library says gfx1100, the kernel driver says gfx1101"));
    st_devices_close(set);
    setenv("HSA_OVERRIDE_GFX_VERSION", "11.0.0", 1);
    open_set(6, "", "hip:0", tree, ST_CHECK_NONE, &set, &err);
    assert_string_equal(set->list[0].info.unusable, "");
    assert_non_null(strstr(set->list[0].info.note, "gfx1101"));
    assert_non_null(strstr(set->list[0].info.note, "HSA_OVERRIDE_GFX_VERSION"));
    st_devices_close(set);
    unsetenv("HSA_OVERRIDE_GFX_VERSION");
    remove_sysfs(tree);
    /* 0 and a missing number are no disagreement */
    tree = sysfs(0);
    open_set(6, "", "hip:0", tree, ST_CHECK_NONE, &set, &err);
    assert_string_equal(set->list[0].info.unusable, "");
    st_devices_close(set);
    remove_sysfs(tree);
}

static const char *reason(const struct st_devices *set)
{
    return st_runtime_reason(set, "hip");
}

static void a_machine_without_usable_cards_is_one_line_with_the_reason(void **state)
{
    (void)state;
    struct st_devices *set = NULL;
    struct strata_error err = {0};
    for (int version = 5; version <= 6; version++) {
        assert_ok(open_set(version, "count=0", "auto", NULL, ST_CHECK_NONE, &set, &err), &err);
        assert_non_null(strstr(reason(set), "no device"));
        st_devices_close(set);
    }
    assert_ok(open_set(5, "fail=GetDeviceCount:101:1", "auto", NULL, ST_CHECK_NONE, &set, &err), &err);
    assert_non_null(strstr(reason(set), "no device"));
    st_devices_close(set);
    assert_ok(open_set(5, "version=40400000", "auto", NULL, ST_CHECK_NONE, &set, &err), &err);
    assert_non_null(strstr(reason(set), "at least 5.2"));
    st_devices_close(set);
    const char *tree = sysfs(110000);
    assert_ok(open_set(6, "count=0", "auto", tree, ST_CHECK_NONE, &set, &err), &err);
    assert_non_null(strstr(reason(set), "gfx1100 at 0000:03:00.0"));
    st_devices_close(set);
    remove_sysfs(tree);
}

static void properties_of_an_unknown_layout_are_not_believed(void **state)
{
    (void)state;
    struct st_devices *set = NULL;
    struct strata_error err = {0};
    for (int version = 5; version <= 6; version++) {
        assert_int_equal(open_set(version, "overfill=1", "hip:0", NULL, ST_CHECK_NONE, &set, &err), STRATA_E_DEVICE);
        assert_non_null(strstr(err.text, "unknown layout"));
        st_devices_close(set);
    }
    assert_int_equal(open_set(6, "arch=unknown", "hip:0", NULL, ST_CHECK_NONE, &set, &err), STRATA_E_DEVICE);
    assert_non_null(strstr(err.text, "architecture name"));
    st_devices_close(set);
    assert_int_equal(open_set(6, "lanes=64", "hip:0", NULL, ST_CHECK_NONE, &set, &err), STRATA_E_DEVICE);
    assert_non_null(strstr(err.text, "waves of 64"));
    st_devices_close(set);
}

static const char *reason_of_library(const char *path, char out[480])
{
    return st_library_reason("hip", path, out);
}

static void what_is_no_hip_library_is_a_line_with_the_reason(void **state)
{
    (void)state;
    char said[480], path[512];
    assert_non_null(strstr(reason_of_library("/nonexistent/libamdhip64.so", said), "No such file"));
    assert_non_null(strstr(reason_of_library("libm.so.6", said), "hipInit"));
    snprintf(path, sizeof path, "%s/meson.build", getenv("STRATA_TEST_SOURCE"));
    assert_true(strlen(reason_of_library(path, said)) > 10);
}

/* On a machine with a card the library may of course find it. */
static void debians_library_reports_its_devices_or_none(void **state)
{
    (void)state;
    char said[480];
    reason_of_library("libamdhip64.so.5", said);
    if (strstr(said, "cannot open shared object file"))
        skip();
    if (said[0])
        assert_non_null(strstr(said, "no device"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_shapes_of_the_library_describe_their_cards),
        cmocka_unit_test(later_versions_load_family_images_and_return_from_faults),
        cmocka_unit_test(kernels_copies_and_graphs_go_through_the_library_with_right_results),
        cmocka_unit_test(a_failure_of_any_function_is_a_message_that_names_the_device),
        cmocka_unit_test(a_fault_loses_the_device_and_every_later_call_says_why),
        cmocka_unit_test(with_sync_the_launch_that_faults_reports_it),
        cmocka_unit_test(a_queue_that_stands_still_is_given_up_and_its_driver_left_alone),
        cmocka_unit_test(direct_copies_are_used_only_after_their_bytes_arrived),
        cmocka_unit_test(out_of_memory_is_a_limit_and_not_a_lost_device),
        cmocka_unit_test(an_architecture_without_images_is_refused_when_named_and_left_out_otherwise),
        cmocka_unit_test(the_kernel_drivers_word_is_compared),
        cmocka_unit_test(a_machine_without_usable_cards_is_one_line_with_the_reason),
        cmocka_unit_test(properties_of_an_unknown_layout_are_not_believed),
        cmocka_unit_test(what_is_no_hip_library_is_a_line_with_the_reason),
        cmocka_unit_test(debians_library_reports_its_devices_or_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
