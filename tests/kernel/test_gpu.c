/* Every GPU kernel against its C reference on every kind of device that this machine has: simulated ones with waves of
 * 32 and 64 lanes (fibers) and on the CPU's tables, a CPU behind OpenCL, and real cards. STRATA_TEST_SEED repeats a
 * run; without --all every kernel runs on a few shapes only. */
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "format/quant.h"
#include "kernel/gpu/host.h"
#include "runtime/fibers.h"
#include "runtime/selftest.h"

static bool all;

static uint64_t seed(void)
{
    const char *text = getenv("STRATA_TEST_SEED");
    return text ? strtoull(text, NULL, 10) : (uint64_t)time(NULL);
}

static void show(void *arg, const struct st_selftest_case *c)
{
    if (c->fault)
        printf("# %s: %s: %s: %s\n", (const char *)arg, c->family, c->shape, c->fault);
}

/* Whether the kernel's name ends with that of a type (but for the number of rows, _1 or _8) that is not among types. */
static bool of_another_type(const char *kernel, uint64_t types)
{
    size_t length = strlen(kernel), rows = !strncmp(kernel, "st_mv_", 6) ? 2 : 0;
    for (int type = 0; type < ST_TYPE_COUNT; type++) {
        const char *name = st_type_info(type) ? st_type_info(type)->name : "";
        size_t n = strlen(name);
        if (n > 0 && length > n + rows && kernel[length - rows - n - 1] == '_' &&
            !strncasecmp(kernel + length - rows - n, name, n) && !(types >> type & 1))
            return true;
    }
    return false;
}

/* Opens devices by name and runs the self-test on each that can be opened, for products of some types (OR of 1 << type) or of
 * all (0); returns how many devices that were. */
static int run(const char *devices, const char *executor, uint64_t types, bool required)
{
    bool needed[ST_GPU_KERNEL_COUNT];
    for (int i = 0; i < ST_GPU_KERNEL_COUNT; i++)
        needed[i] = !types || !of_another_type(st_gpu_kernels[i].name, types);
    struct st_device_options options = {.devices = devices, .executor = executor};
    struct st_devices *set;
    struct strata_error err = {0};
    enum strata_result r = st_devices_open(&options, &set, &err);
    if (r != STRATA_OK && required)
        fail_msg("%s: %s", devices, err.text);
    if (r != STRATA_OK)
        printf("# %s: %s\n", devices, err.text);
    int ran = 0;
    for (int i = 0; r == STRATA_OK && i < set->chosen_count; i++) {
        struct st_device *dev;
        struct st_selftest_result result;
        uint64_t s = seed();
        assert_ok(st_device_open(set, set->chosen[i], needed, &dev, &err), &err);
        printf("# %s: %s, %s, %u lanes, seed %llu\n", dev->name, dev->info.model, dev->info.driver, dev->info.lanes,
               (unsigned long long)s);
        struct st_selftest_options test = {.seed = s, .quick = !all, .types = types, .report = show, .arg = dev->name};
        assert_ok(st_selftest(dev, &test, &result, &err), &err);
        printf("# %s: %d cases\n", dev->name, result.cases);
        assert_true(result.cases > (all ? 250 : 70));
        assert_int_equal(result.failed, 0);
        st_device_close(dev);
        ran++;
    }
    st_devices_close(set);
    return ran;
}

static void kernels_on_fibers_with_32_lanes_give_the_reference_bits(void **state)
{
    (void)state;
    assert_int_equal(run("sim:gfx1100:1G", "fibers", 0, true), 1);
}

static void kernels_on_fibers_with_64_lanes_give_the_reference_bits(void **state)
{
    (void)state;
    assert_int_equal(run("sim:gfx90a:1G", "fibers", 0, true), 1);
}

static void the_cpu_tables_behind_a_simulated_device_give_the_reference_bits(void **state)
{
    (void)state;
    assert_int_equal(run("sim:sm_80:1G", "cpu", 0, true), 1);
}

static void a_cpu_behind_opencl_gives_the_reference_bits(void **state)
{
    (void)state;
    /* Its driver takes about half a second for each kernel. */
    const uint64_t four = 1ull << ST_TYPE_Q8_0 | 1ull << ST_TYPE_Q2_0 | 1ull << ST_TYPE_Q6_K | 1ull << ST_TYPE_IQ3_S;
    if (run("opencl:0", NULL, all ? 0 : four | 1ull << ST_TYPE_F32, false) == 0)
        skip();
}

static void the_cards_of_this_machine_give_the_reference_bits(void **state)
{
    (void)state;
    /* None here is no failure: cmocka's skip would be one to the test runner. */
    if (run("auto", NULL, 0, true) == 0)
        print_message("# no card on this machine\n");
}

static void every_kernel_exists_for_the_host_in_both_widths(void **state)
{
    (void)state;
    for (int i = 0; i < ST_GPU_KERNEL_COUNT; i++) {
        if (!st_host_kernel_32(st_gpu_kernels[i].name) || !st_host_kernel_64(st_gpu_kernels[i].name))
            fail_msg("%s is not in host_kernels.h", st_gpu_kernels[i].name);
    }
    assert_null(st_host_kernel_32("st_nothing"));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_kernel_exists_for_the_host_in_both_widths),
    cmocka_unit_test(kernels_on_fibers_with_32_lanes_give_the_reference_bits),
    cmocka_unit_test(kernels_on_fibers_with_64_lanes_give_the_reference_bits),
    cmocka_unit_test(the_cpu_tables_behind_a_simulated_device_give_the_reference_bits),
    cmocka_unit_test(a_cpu_behind_opencl_gives_the_reference_bits),
    cmocka_unit_test(the_cards_of_this_machine_give_the_reference_bits),
};

int main(int argc, char **argv)
{
    all = argc > 1 && strcmp(argv[1], "--all") == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
