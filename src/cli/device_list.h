/* Choosing devices from options, and showing the list of devices: shared by "strata devices", strata-device and the
 * commands that compute. */
#ifndef ST_CLI_DEVICE_LIST_H
#define ST_CLI_DEVICE_LIST_H

#include <jansson.h>

#include "cli/options.h"
#include "runtime/device.h"

struct st_device_args {
    const char *devices;
    int check;    /* index into st_check_names, enum st_check */
    int executor; /* index into st_executor_names */
    const char *cuda, *hip, *opencl, *cache, *sysfs;
};
extern const char *const st_check_names[], *const st_executor_names[];

enum { ST_CACHE_PATH = 512 };
/* The directory that is asked for, or strata in the user's cache directory (then in buffer); NULL when there is none. */
const char *st_cache_directory(const char *asked, char buffer[ST_CACHE_PATH]);

#define ST_DEVICE_OPTIONS(a)                                                                                           \
    ST_TEXT(                                                                                                           \
        "device", 'd', &(a).devices, "LIST",                                                                           \
        "devices: auto (default), cpu, or names such as cuda:0,hip:1,opencl:0; sim:ARCH:MEMORY is a simulated one"),   \
        ST_CHOICE("check", 0, &(a).check, st_check_names, "HOW",                                                       \
                  "none (default), sync: wait after every launch, runtime: check every call and wait"),                \
        ST_CHOICE("sim", 0, &(a).executor, st_executor_names, "HOW",                                                   \
                  "what simulated devices run: cpu (default, the CPU's kernels) or fibers (the GPU's own sources)"),   \
        ST_TEXT("cache", 0, &(a).cache, "DIR",                                                                         \
                "where programs that drivers compiled are kept (default: strata in the user's cache directory)"),      \
        ST_TEXT("cuda-library", 0, &(a).cuda, "FILE", "the CUDA driver's library (default: libcuda.so.1)"),            \
        ST_TEXT("hip-library", 0, &(a).hip, "FILE", "the HIP library (default: libamdhip64.so.7, .6 or .5)"),          \
        ST_TEXT("opencl-library", 0, &(a).opencl, "FILE", "the OpenCL loader (default: libOpenCL.so.1)"),              \
        ST_TEXT("sysfs", 0, &(a).sysfs, "DIR", "the kernel's file tree (default: /sys)")

/* Opens what the arguments say; see st_devices_open for *out. list_all: for showing. */
enum strata_result st_device_args_open(const struct st_device_args *args, bool list_all, struct st_devices **out,
                                       struct strata_error *err);

/* The table for people, to standard output. */
void st_device_list_print(const struct st_devices *devices);
/* The same as JSON; NULL when memory ran out. */
json_t *st_device_list_json(const struct st_devices *devices);

#endif
