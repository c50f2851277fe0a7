/* The CUDA runtime against a double of its library, and against libraries that are no such thing. */
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/selftest.h"
#include "scenario.h"

static const char *library(void)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/tests/runtime/libdouble-cuda.so", getenv("STRATA_TEST_BUILD"));
    return path;
}

static enum strata_result open_set(const char *config, const char *devices, enum st_check check,
                                   struct st_devices **set, struct strata_error *err)
{
    return st_open_double("cuda", library(), config, devices, NULL, check, set, err);
}

/* Whether this build has an image that serves the double. */
static bool has_images(void)
{
    return st_image_find(&st_images_builtin, "copy", "sm_90", false) != NULL;
}

static void cards_are_described_by_capability_address_and_uuid(void **state)
{
    (void)state;
    struct st_devices *set = NULL;
    struct strata_error err = {0};
    open_set("count=2 arch=sm_75,sm_120", "cuda:0,cuda:1", ST_CHECK_NONE, &set, &err);
    assert_int_equal(set->count, 2);
    const struct st_device_info *a = &set->list[0].info;
    assert_string_equal(set->list[1].name, "cuda:1");
    assert_string_equal(a->arch, "sm_75");
    assert_string_equal(set->list[1].info.arch, "sm_120");
    assert_string_equal(a->pci, "0000:03:00.0");
    assert_string_equal(a->uuid, "a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0");
    assert_string_equal(a->driver, "CUDA 13.0");
    assert_int_equal(a->lanes, 32);
    assert_int_equal(a->local_bytes, 65536);
    assert_true(a->features & ST_FEATURE_WAIT_VALUE);
    assert_false(a->features & ST_FEATURE_FAULT_ABORTS);
    st_devices_close(set);
}

/* Two cards of different generations at once, with the validation layer between. */
static void kernels_copies_and_graphs_go_through_the_library_with_right_results(void **state)
{
    (void)state;
    if (!has_images())
        skip();
    static const char *const families[] = {"copy", "norm", "products", "rows"};
    struct st_devices *set = NULL;
    struct st_device *dev[2] = {NULL, NULL};
    struct strata_error err = {0};
    bool plain = st_image_find(&st_images_builtin, "copy", "sm_120", false) != NULL;
    assert_ok(open_set(plain ? "count=2 arch=sm_90,sm_120" : "count=2 arch=sm_90,sm_90", "cuda:1,cuda:0",
                       ST_CHECK_RUNTIME, &set, &err),
              &err);
    for (int i = 0; i < 2; i++)
        assert_ok(st_device_open(set, set->chosen[i], NULL, &dev[i], &err), &err);
    assert_string_equal(dev[0]->name, "cuda:1");
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        struct st_selftest_options options = {.seed = 7, .family = families[i], .quick = true};
        struct st_selftest_result result = {0};
        assert_ok(st_selftest(dev[i % 2], &options, &result, &err), &err);
        assert_true(result.cases > 0);
        assert_int_equal(result.failed, 0);
    }
    st_device_close(dev[0]);
    st_device_close(dev[1]);
    st_devices_close(set);
}

static void a_failure_of_any_function_is_a_message_that_names_the_device(void **state)
{
    (void)state;
    if (!has_images())
        skip();
    static const char *const functions[] = {"GetDeviceProperties",
                                            "DeviceTotalMem",
                                            "DeviceGetStreamPriorityRange",
                                            "PrimaryCtxRetain",
                                            "SetDevice",
                                            "MemGetInfo",
                                            "Malloc",
                                            "HostMalloc",
                                            "HostRegister",
                                            "MemcpyHtoDAsync",
                                            "MemcpyDtoHAsync",
                                            "MemcpyDtoDAsync",
                                            "MemsetD8Async",
                                            "StreamCreateWithPriority",
                                            "StreamSynchronize",
                                            "EventCreateWithFlags",
                                            "EventRecord",
                                            "EventSynchronize",
                                            "EventElapsedTime",
                                            "ModuleLoadData",
                                            "ModuleGetFunction",
                                            "ModuleLaunchKernel",
                                            "StreamBeginCapture",
                                            "StreamEndCapture",
                                            "GraphInstantiateWithFlags",
                                            "GraphLaunch",
                                            "HostGetDevicePointer"};
    struct strata_error err = {0};
    assert_ok(st_scenario("cuda", library(), "count=2 arch=sm_90,sm_90", &err), &err);
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        char config[128];
        snprintf(config, sizeof config, "count=2 arch=sm_90,sm_90 fail=%s:999:1", functions[i]);
        memset(&err, 0, sizeof err);
        if (st_scenario("cuda", library(), config, &err) == STRATA_OK)
            fail_msg("a failure of %s is not noticed", functions[i]);
        if (!strstr(err.text, "cuda:0") && !strstr(err.text, "cuda:1"))
            fail_msg("%s: the message names no device: %s", functions[i], err.text);
    }
}

/* The double takes each kernel by one of two ways only. */
static void kernels_start_early_where_image_and_driver_can(void **state)
{
    (void)state;
    if (!has_images())
        skip();
    static const char *const drivers[] = {"count=2 arch=sm_90,sm_90 version=12020", "count=2 arch=sm_90,sm_90 version=12030",
                                          "count=2 arch=sm_80,sm_90 version=13000"};
    for (size_t i = 0; i < sizeof drivers / sizeof *drivers; i++) {
        struct strata_error err = {0};
        assert_ok(st_scenario("cuda", library(), drivers[i], &err), &err);
    }
}

static void a_launch_that_fails_names_kernel_image_grid_shape_and_device(void **state)
{
    (void)state;
    if (!has_images())
        skip();
    struct strata_error err = {0};
    assert_int_equal(st_scenario("cuda", library(), "count=2 arch=sm_90,sm_90 fail=ModuleLaunchKernel:719:1", &err),
                     STRATA_E_DEVICE);
    assert_non_null(strstr(err.text, "st_"));
    assert_non_null(strstr(err.text, "copy for sm_"));
    assert_non_null(strstr(err.text, "grid "));
    assert_non_null(strstr(err.text, "cuda:0"));
    assert_non_null(strstr(err.text, "(719)"));
}

static void a_broken_image_is_refused_before_the_driver_sees_it(void **state)
{
    (void)state;
    if (!has_images())
        skip();
    /* an image set that holds no text at all behind the name */
    static const uint8_t frame[] = {0x28, 0xB5, 0x2F, 0xFD, 0x20, 0x05, 0x29, 0x00, 0x00, 'h', 'e', 'l', 'l', 'o'};
    static const struct st_image broken = {"sm_90", "copy", ST_IMAGE_PTX, frame, sizeof frame};
    const struct st_image_set images = {&broken, 1};
    struct st_devices *set = NULL;
    struct st_device *dev = NULL;
    struct strata_error err = {0};
    const bool needed[ST_GPU_KERNEL_COUNT] = {[ST_GPU_EMPTY] = true};
    assert_ok(open_set("arch=sm_90", "cuda:0", ST_CHECK_NONE, &set, &err), &err);
    set->images = &images;
    assert_int_equal(st_device_open(set, set->chosen[0], needed, &dev, &err), STRATA_E_FORMAT);
    assert_non_null(strstr(err.text, "cuda:0"));
    assert_non_null(strstr(err.text, "copy for sm_90"));
    st_devices_close(set);
}

static void drivers_that_cannot_serve_are_one_line_with_the_reason(void **state)
{
    (void)state;
    struct st_devices *set = NULL;
    struct strata_error err = {0};
    static const char *const cases[][2] = {{"count=0", "no device"},
                                           {"init=100", "no device"},
                                           {"init=803", "reboot"},
                                           {"version=11030", "at least 11.4"},
                                           {"fail=GetDeviceCount:999:1", "(999)"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_ok(open_set(cases[i][0], "auto", ST_CHECK_NONE, &set, &err), &err);
        const char *said = st_runtime_reason(set, "cuda");
        if (!strstr(said, cases[i][1]))
            fail_msg("%s: \"%s\" does not say \"%s\"", cases[i][0], said, cases[i][1]);
        st_devices_close(set);
    }
}

static void what_is_no_cuda_library_is_a_line_with_the_reason(void **state)
{
    (void)state;
    char said[480];
    assert_non_null(strstr(st_library_reason("cuda", "/nonexistent/libcuda.so", said), "No such file"));
    assert_non_null(strstr(st_library_reason("cuda", "libm.so.6", said), "cuInit"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cards_are_described_by_capability_address_and_uuid),
        cmocka_unit_test(kernels_copies_and_graphs_go_through_the_library_with_right_results),
        cmocka_unit_test(a_failure_of_any_function_is_a_message_that_names_the_device),
        cmocka_unit_test(kernels_start_early_where_image_and_driver_can),
        cmocka_unit_test(a_launch_that_fails_names_kernel_image_grid_shape_and_device),
        cmocka_unit_test(a_broken_image_is_refused_before_the_driver_sees_it),
        cmocka_unit_test(drivers_that_cannot_serve_are_one_line_with_the_reason),
        cmocka_unit_test(what_is_no_cuda_library_is_a_line_with_the_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
