/* The OpenCL runtime on whatever the machine has (PoCL in CI): its cache of compiled programs, and loaders that lead
 * nowhere. */
#include "test.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "kernel/gpu_copy.h"
#include "scenario.h"

/* Opens opencl:0 with the given cache and kernels; false when the machine has no such device. */
static bool open_with(const char *cache, const bool *needed, struct st_devices **set, struct st_device **dev)
{
    struct strata_error err = {0};
    struct st_device_options options = {.devices = "opencl:0", .cache = cache};
    if (st_devices_open(&options, set, &err) != STRATA_OK) {
        st_devices_close(*set);
        printf("# %s\n", err.text);
        return false;
    }
    assert_ok(st_device_open(*set, (*set)->chosen[0], needed, dev, &err), &err);
    return true;
}

static bool open_device(const char *cache, struct st_devices **set, struct st_device **dev)
{
    static const bool needed[ST_GPU_KERNEL_COUNT] = {[ST_GPU_COPY] = true};
    return open_with(cache, needed, set, dev);
}

static void close_device(struct st_devices *set, struct st_device *dev)
{
    st_device_close(dev);
    st_devices_close(set);
}

static void copies_right(struct st_device *dev)
{
    enum { BYTES = 40000 };
    static uint8_t from[BYTES], to[BYTES];
    struct strata_error err = {0};
    struct st_gpu_launch l;
    st_addr a = 0, b = 0;
    for (int i = 0; i < BYTES; i++)
        from[i] = (uint8_t)(i * 13);
    memset(to, 0, sizeof to);
    assert_ok(dev->table->allocate(dev->rt, BYTES, &a, &err), &err);
    assert_ok(dev->table->allocate(dev->rt, BYTES, &b, &err), &err);
    assert_int_equal(a % 256, 0);
    assert_ok(dev->table->copy_in(dev->compute, a, from, BYTES, &err), &err);
    st_gpu_copy(b, a, BYTES, &l);
    assert_ok(st_launch(dev, dev->compute, l.kernel, l.grid[0], l.grid[1], l.grid[2], l.args, NULL, &err), &err);
    assert_ok(dev->table->copy_out(dev->compute, to, b, BYTES, &err), &err);
    assert_ok(st_wait(dev, dev->compute, &err), &err);
    assert_memory_equal(from, to, BYTES);
    dev->table->release(dev->rt, a);
    dev->table->release(dev->rt, b);
}

/* The number of entries of the cache, of which out is the last one listed. */
static int entry_path(const char *cache, char out[512])
{
    DIR *d = opendir(cache);
    int count = 0;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        if (e->d_name[0] != '.') {
            snprintf(out, 512, "%s/%s", cache, e->d_name);
            count++;
        }
    closedir(d);
    return count;
}

/* Some drivers take minutes for a file of many kernels, so each is a program of its own. */
static void only_the_kernels_that_are_asked_for_are_compiled(void **state)
{
    (void)state;
    char cache[64] = "/tmp/strata-test-XXXXXX", path[512];
    struct st_devices *set = NULL;
    struct st_device *dev = NULL;
    bool needed[ST_GPU_KERNEL_COUNT] = {[ST_GPU_COPY] = true};
    assert_non_null(mkdtemp(cache));
    if (!open_with(cache, needed, &set, &dev)) {
        rmdir(cache);
        skip();
    }
    close_device(set, dev);
    assert_int_equal(entry_path(cache, path), 1);
    needed[ST_GPU_EMPTY] = true; /* of the same file */
    assert_true(open_with(cache, needed, &set, &dev));
    copies_right(dev);
    close_device(set, dev);
    assert_int_equal(entry_path(cache, path), 2);
    while (entry_path(cache, path) > 0)
        assert_int_equal(unlink(path), 0);
    rmdir(cache);
}

static void flip(const char *path, long at)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, at, at < 0 ? SEEK_END : SEEK_SET);
    int byte = fgetc(f);
    fseek(f, -1, SEEK_CUR);
    fputc(byte ^ 1, f);
    fclose(f);
}

/* A damaged entry would end the process inside PoCL, so it must not get there; it is replaced. */
static void damaged_cache_entries_are_compiled_again_and_replaced(void **state)
{
    (void)state;
    char cache[64] = "/tmp/strata-test-XXXXXX", path[512];
    struct st_devices *set = NULL;
    struct st_device *dev = NULL;
    assert_non_null(mkdtemp(cache));
    if (!open_device(cache, &set, &dev)) {
        rmdir(cache);
        skip();
    }
    close_device(set, dev);
    assert_int_equal(entry_path(cache, path), 1);
    char *good = NULL, *again = NULL;
    size_t good_size = 0, again_size = 0;
    assert_int_equal(st_read_file(path, 64 << 20, &good, &good_size, NULL), STRATA_OK);
    static const long places[] = {0, 15, 16, 200, -1};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        flip(path, places[i]);
        assert_true(open_device(cache, &set, &dev));
        copies_right(dev);
        close_device(set, dev);
        assert_int_equal(st_read_file(path, 64 << 20, &again, &again_size, NULL), STRATA_OK);
        assert_true(again_size > 16);
        free(again);
    }
    assert_int_equal(truncate(path, 10), 0);
    assert_true(open_device(cache, &set, &dev));
    copies_right(dev);
    close_device(set, dev);
    free(good);
    unlink(path);
    rmdir(cache);
}

static void a_cache_that_cannot_be_written_costs_nothing_but_time(void **state)
{
    (void)state;
    struct st_devices *set = NULL;
    struct st_device *dev = NULL;
    if (!open_device("/proc/nothing/there", &set, &dev))
        skip();
    copies_right(dev);
    close_device(set, dev);
}

static void a_cpu_behind_opencl_is_used_only_when_it_is_named(void **state)
{
    (void)state;
    struct st_devices *set = NULL;
    struct strata_error err = {0};
    struct st_device_options options = {.devices = "auto"};
    assert_ok(st_devices_open(&options, &set, &err), &err);
    for (int i = 0; i < set->chosen_count; i++)
        assert_false(set->list[set->chosen[i]].info.features & ST_FEATURE_CPU);
    st_devices_close(set);
}

static void a_loader_without_drivers_is_a_line_with_the_reason(void **state)
{
    (void)state;
    char said[480];
    assert_non_null(strstr(st_library_reason("opencl", "/nonexistent/libOpenCL.so.1", said), "No such file"));
    assert_non_null(strstr(st_library_reason("opencl", "libm.so.6", said), "clGetPlatformIDs"));
    if (access("/etc/OpenCL/vendors", F_OK) != 0)
        skip();
}

/* In a process of its own, because loaders read their environment once. */
static void a_loader_that_finds_no_platform_says_so(void **state)
{
    (void)state;
    char command[700], line[512];
    snprintf(command, sizeof command, "OCL_ICD_VENDORS=/nonexistent %s/src/cli/strata-device --list-devices",
             getenv("STRATA_TEST_BUILD"));
    FILE *p = popen(command, "r");
    assert_non_null(p);
    bool missing = false, said = false;
    while (fgets(line, sizeof line, p)) {
        missing = missing || strstr(line, "cannot open shared object file") != NULL;
        said = said || (strncmp(line, "opencl: ", 8) == 0 && strstr(line, "no platform") != NULL);
    }
    assert_int_equal(pclose(p), 0);
    if (!said && missing)
        skip();
    assert_true(said);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_the_kernels_that_are_asked_for_are_compiled),
        cmocka_unit_test(damaged_cache_entries_are_compiled_again_and_replaced),
        cmocka_unit_test(a_cache_that_cannot_be_written_costs_nothing_but_time),
        cmocka_unit_test(a_cpu_behind_opencl_is_used_only_when_it_is_named),
        cmocka_unit_test(a_loader_without_drivers_is_a_line_with_the_reason),
        cmocka_unit_test(a_loader_that_finds_no_platform_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
