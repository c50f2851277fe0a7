/* NVIDIA GPUs through the CUDA driver API (libcuda.so.1), opened when present.
 *
 * Our own declarations of the functions that are called, by the exact symbol of the form that is declared here (cuda.h
 * maps plain names to suffixed ones; the plain symbols are older forms with 32-bit sizes). Numbers and signatures:
 * cuda.h of CUDA 13.0. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/library.h"
#include "runtime/stream.h"

/* CUDA 11.4, driver branch 470: the first with cuGraphInstantiateWithFlags. 12.3: the first whose graphs keep that a kernel
 * may start while the one before it runs. */
enum { DRIVER_MINIMUM = 11040, DRIVER_OVERLAPS = 12030 };

enum {
    ATTR_MAX_THREADS = 1,
    ATTR_WARP = 10,
    ATTR_UNITS = 16,
    ATTR_EXEC_TIMEOUT = 17,
    ATTR_INTEGRATED = 18,
    ATTR_MAP_HOST = 19,
    ATTR_MAJOR = 75,
    ATTR_MINOR = 76,
    ATTR_LOCAL_OPTIN = 97,
    ATTR_MEM_OPS = 122,
};

/* A launch with attributes. */
struct cuda_attribute {
    int id;
    int pad;
    union {
        int overlaps;
        char room[64];
    } value;
};

struct cuda_config {
    unsigned grid[3], group[3], shared;
    void *stream;
    struct cuda_attribute *attributes;
    unsigned count;
};

struct cuda_functions {
    int (*Init)(unsigned flags);
    int (*DriverGetVersion)(int *version);
    int (*DeviceGetCount)(int *count);
    int (*DeviceGet)(int *device, int ordinal);
    int (*DeviceGetName)(char *name, int length, int device);
    int (*DeviceGetAttribute)(int *value, int attribute, int device);
    int (*DeviceGetPCIBusId)(char *id, int length, int device);
    int (*DeviceGetUuid)(unsigned char uuid[16], int device);
    int (*DeviceTotalMem)(size_t *bytes, int device);
    int (*DeviceCanAccessPeer)(int *can, int device, int peer);
    int (*DevicePrimaryCtxRetain)(void **context, int device);
    int (*DevicePrimaryCtxRelease)(int device);
    int (*CtxSetCurrent)(void *context);
    int (*CtxSynchronize)(void);
    int (*CtxEnablePeerAccess)(void *peer, unsigned flags);
    int (*CtxGetStreamPriorityRange)(int *least, int *greatest);
    int (*MemGetInfo)(size_t *free_bytes, size_t *total);
    int (*MemAlloc)(uint64_t *address, size_t size);
    int (*MemFree)(uint64_t address);
    int (*MemHostAlloc)(void **memory, size_t size, unsigned flags);
    int (*MemFreeHost)(void *memory);
    int (*MemHostRegister)(void *memory, size_t size, unsigned flags);
    int (*MemHostUnregister)(void *memory);
    int (*MemHostGetDevicePointer)(uint64_t *address, void *memory, unsigned flags);
    int (*MemcpyHtoDAsync)(uint64_t dst, const void *src, size_t size, void *stream);
    int (*MemcpyDtoHAsync)(void *dst, uint64_t src, size_t size, void *stream);
    int (*MemcpyDtoDAsync)(uint64_t dst, uint64_t src, size_t size, void *stream);
    int (*MemcpyPeerAsync)(uint64_t dst, void *dst_context, uint64_t src, void *src_context, size_t size, void *stream);
    int (*MemsetD8Async)(uint64_t dst, unsigned char value, size_t count, void *stream);
    int (*StreamCreateWithPriority)(void **stream, unsigned flags, int priority);
    int (*StreamDestroy)(void *stream);
    int (*StreamSynchronize)(void *stream);
    int (*StreamWaitEvent)(void *stream, void *event, unsigned flags);
    int (*StreamWaitValue32)(void *stream, uint64_t address, uint32_t value, unsigned flags);
    int (*StreamWriteValue32)(void *stream, uint64_t address, uint32_t value, unsigned flags);
    int (*EventCreate)(void **event, unsigned flags);
    int (*EventDestroy)(void *event);
    int (*EventRecord)(void *event, void *stream);
    int (*EventSynchronize)(void *event);
    int (*EventQuery)(void *event);
    int (*EventElapsedTime)(float *milliseconds, void *from, void *to);
    int (*ModuleLoadDataEx)(void **module, const void *image, unsigned count, int *options, void **values);
    int (*ModuleUnload)(void *module);
    int (*ModuleGetFunction)(void **function, void *module, const char *name);
    int (*FuncGetAttribute)(int *value, int attribute, void *function);
    int (*FuncSetAttribute)(void *function, int attribute, int value);
    int (*FuncLoad)(void *function);
    int (*LaunchKernel)(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, void *stream, void **params, void **extra);
    int (*LaunchKernelEx)(const struct cuda_config *config, void *function, void **params, void **extra);
    int (*StreamBeginCapture)(void *stream, int mode);
    int (*StreamEndCapture)(void *stream, void **graph);
    int (*GraphInstantiateWithFlags)(void **exec, void *graph, unsigned long long flags);
    int (*GraphLaunch)(void *exec, void *stream);
    int (*GraphExecDestroy)(void *exec);
    int (*GraphDestroy)(void *graph);
    int (*GetErrorName)(int result, const char **text);
    int (*GetErrorString)(int result, const char **text);
};

#define F(member, symbol, fallback, required)                                                                          \
    {                                                                                                                  \
        symbol, fallback, offsetof(struct cuda_functions, member), required                                            \
    }
static const struct st_symbol cuda_symbols[] = {
    F(Init, "cuInit", NULL, true),
    F(DriverGetVersion, "cuDriverGetVersion", NULL, true),
    F(DeviceGetCount, "cuDeviceGetCount", NULL, true),
    F(DeviceGet, "cuDeviceGet", NULL, true),
    F(DeviceGetName, "cuDeviceGetName", NULL, true),
    F(DeviceGetAttribute, "cuDeviceGetAttribute", NULL, true),
    F(DeviceGetPCIBusId, "cuDeviceGetPCIBusId", NULL, true),
    F(DeviceGetUuid, "cuDeviceGetUuid_v2", "cuDeviceGetUuid", true),
    F(DeviceTotalMem, "cuDeviceTotalMem_v2", NULL, true),
    F(DeviceCanAccessPeer, "cuDeviceCanAccessPeer", NULL, true),
    F(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", NULL, true),
    F(DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRelease", true),
    F(CtxSetCurrent, "cuCtxSetCurrent", NULL, true),
    F(CtxSynchronize, "cuCtxSynchronize", NULL, true),
    F(CtxEnablePeerAccess, "cuCtxEnablePeerAccess", NULL, true),
    F(CtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange", NULL, true),
    F(MemGetInfo, "cuMemGetInfo_v2", NULL, true),
    F(MemAlloc, "cuMemAlloc_v2", NULL, true),
    F(MemFree, "cuMemFree_v2", NULL, true),
    F(MemHostAlloc, "cuMemHostAlloc", NULL, true),
    F(MemFreeHost, "cuMemFreeHost", NULL, true),
    F(MemHostRegister, "cuMemHostRegister_v2", NULL, true),
    F(MemHostUnregister, "cuMemHostUnregister", NULL, true),
    F(MemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2", NULL, true),
    F(MemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", NULL, true),
    F(MemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", NULL, true),
    F(MemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", NULL, true),
    F(MemcpyPeerAsync, "cuMemcpyPeerAsync", NULL, true),
    F(MemsetD8Async, "cuMemsetD8Async", NULL, true),
    F(StreamCreateWithPriority, "cuStreamCreateWithPriority", NULL, true),
    F(StreamDestroy, "cuStreamDestroy_v2", NULL, true),
    F(StreamSynchronize, "cuStreamSynchronize", NULL, true),
    F(StreamWaitEvent, "cuStreamWaitEvent", NULL, true),
    F(StreamWaitValue32, "cuStreamWaitValue32_v2", NULL, false),
    F(StreamWriteValue32, "cuStreamWriteValue32_v2", NULL, false),
    F(EventCreate, "cuEventCreate", NULL, true),
    F(EventDestroy, "cuEventDestroy_v2", NULL, true),
    F(EventRecord, "cuEventRecord", NULL, true),
    F(EventSynchronize, "cuEventSynchronize", NULL, true),
    F(EventQuery, "cuEventQuery", NULL, true),
    F(EventElapsedTime, "cuEventElapsedTime_v2", "cuEventElapsedTime", true),
    F(ModuleLoadDataEx, "cuModuleLoadDataEx", NULL, true),
    F(ModuleUnload, "cuModuleUnload", NULL, true),
    F(ModuleGetFunction, "cuModuleGetFunction", NULL, true),
    F(FuncGetAttribute, "cuFuncGetAttribute", NULL, true),
    F(FuncSetAttribute, "cuFuncSetAttribute", NULL, true),
    F(FuncLoad, "cuFuncLoad", NULL, false),
    F(LaunchKernel, "cuLaunchKernel", NULL, true),
    F(LaunchKernelEx, "cuLaunchKernelEx", NULL, false),
    F(StreamBeginCapture, "cuStreamBeginCapture_v2", NULL, true),
    F(StreamEndCapture, "cuStreamEndCapture", NULL, true),
    F(GraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", NULL, true),
    F(GraphLaunch, "cuGraphLaunch", NULL, true),
    F(GraphExecDestroy, "cuGraphExecDestroy", NULL, true),
    F(GraphDestroy, "cuGraphDestroy", NULL, true),
    F(GetErrorName, "cuGetErrorName", NULL, true),
    F(GetErrorString, "cuGetErrorString", NULL, true),
};
#undef F

struct cuda {
    struct st_stream_rt common;
    void *library;
    char used[256];
    int version;
    struct cuda_functions fn;
};

struct cuda_device {
    struct st_stream_device common;
    int device;
    void *context;
    int most_urgent, normal; /* stream priorities */
};

static const struct cuda_functions *fn_of(const struct st_stream_device *dev)
{
    return &((const struct cuda *)dev->rt)->fn;
}

static void *context_of(const struct st_stream_device *dev)
{
    return ((const struct cuda_device *)dev)->context;
}

/* ---- results ---- */

static void words(const struct cuda_functions *fn, int result, char *out, size_t size)
{
    const char *name = NULL, *text = NULL;
    fn->GetErrorName(result, &name);
    fn->GetErrorString(result, &text);
    const char *advice = "";
    if (result == 222)
        advice = "; the driver is too old for this image: update it";
    else if (result == 221)
        advice = "; libnvidia-ptxjitcompiler.so.1 is missing (in a container: add the driver's compute libraries)";
    else if (result == 803)
        advice = "; the kernel module and libcuda differ after an update: reboot";
    snprintf(out, size, "%s (%d): %s%s", name ? name : "unknown result", result, text ? text : "no description",
             advice);
}

static void cuda_describe_result(struct st_stream_device *dev, int result, char *out, size_t size)
{
    words(fn_of(dev), result, out, size);
}

/* cuda.h says of these that the process must end to use the device again; 214 and 220 are hardware faults. */
static bool cuda_sticky(int result)
{
    return result == 214 || result == 220 || result == 226 || result == 700 || result == 702 || result == 710 ||
           (result >= 714 && result <= 719) || result == 721 || result == 810 || result == 911;
}

/* ---- thin calls ---- */

static int cuda_make_current(struct st_stream_device *dev)
{
    return fn_of(dev)->CtxSetCurrent(context_of(dev));
}

static int cuda_sync(struct st_stream_device *dev)
{
    return fn_of(dev)->CtxSynchronize();
}

static int cuda_memory(struct st_stream_device *dev, size_t *free_bytes, size_t *total)
{
    return fn_of(dev)->MemGetInfo(free_bytes, total);
}

static int cuda_allocate(struct st_stream_device *dev, size_t size, st_addr *out)
{
    return fn_of(dev)->MemAlloc(out, size);
}

static int cuda_release(struct st_stream_device *dev, st_addr address)
{
    return fn_of(dev)->MemFree(address);
}

static int cuda_host_allocate(struct st_stream_device *dev, size_t size, void **out)
{
    return fn_of(dev)->MemHostAlloc(out, size, 1 | 2 /* portable, mapped */);
}

static int cuda_host_free(struct st_stream_device *dev, void *memory)
{
    return fn_of(dev)->MemFreeHost(memory);
}

static int cuda_host_register(struct st_stream_device *dev, void *memory, size_t size)
{
    return fn_of(dev)->MemHostRegister(memory, size, 1 | 2 /* portable, mapped */);
}

static int cuda_host_unregister(struct st_stream_device *dev, void *memory)
{
    return fn_of(dev)->MemHostUnregister(memory);
}

static int cuda_host_address(struct st_stream_device *dev, void *memory, st_addr *out)
{
    return fn_of(dev)->MemHostGetDevicePointer(out, memory, 0);
}

static int cuda_stream_create(struct st_stream_device *dev, bool urgent, void **out)
{
    const struct cuda_device *mine = (const struct cuda_device *)dev;
    return fn_of(dev)->StreamCreateWithPriority(out, 1 /* non-blocking */, urgent ? mine->most_urgent : mine->normal);
}

static int cuda_stream_destroy(struct st_stream_device *dev, void *stream)
{
    return fn_of(dev)->StreamDestroy(stream);
}

static int cuda_stream_sync(struct st_stream_device *dev, void *stream)
{
    return fn_of(dev)->StreamSynchronize(stream);
}

static int cuda_copy_in(struct st_stream_device *dev, st_addr dst, const void *src, size_t size, void *stream)
{
    return fn_of(dev)->MemcpyHtoDAsync(dst, src, size, stream);
}

static int cuda_copy_out(struct st_stream_device *dev, void *dst, st_addr src, size_t size, void *stream)
{
    return fn_of(dev)->MemcpyDtoHAsync(dst, src, size, stream);
}

static int cuda_copy(struct st_stream_device *dev, st_addr dst, st_addr src, size_t size, void *stream)
{
    return fn_of(dev)->MemcpyDtoDAsync(dst, src, size, stream);
}

static int cuda_fill(struct st_stream_device *dev, st_addr dst, uint8_t value, size_t size, void *stream)
{
    return fn_of(dev)->MemsetD8Async(dst, value, size, stream);
}

static int cuda_peer_enable(struct st_stream_device *dev, struct st_stream_device *peer, bool *can)
{
    int offered = 0;
    int result = fn_of(dev)->DeviceCanAccessPeer(&offered, ((struct cuda_device *)dev)->device,
                                                 ((struct cuda_device *)peer)->device);
    *can = offered != 0;
    return result != 0 || !offered ? result : fn_of(dev)->CtxEnablePeerAccess(context_of(peer), 0);
}

static int cuda_peer_copy(struct st_stream_device *dst_dev, st_addr dst, struct st_stream_device *src_dev, st_addr src,
                          size_t size, void *stream)
{
    return fn_of(src_dev)->MemcpyPeerAsync(dst, context_of(dst_dev), src, context_of(src_dev), size, stream);
}

static int cuda_event_create(struct st_stream_device *dev, bool timed, void **out)
{
    return fn_of(dev)->EventCreate(out, timed ? 0 : 2 /* without time */);
}

static int cuda_event_destroy(struct st_stream_device *dev, void *event)
{
    return fn_of(dev)->EventDestroy(event);
}

static int cuda_event_record(struct st_stream_device *dev, void *event, void *stream)
{
    return fn_of(dev)->EventRecord(event, stream);
}

static int cuda_event_wait(struct st_stream_device *dev, void *event, void *stream)
{
    return fn_of(dev)->StreamWaitEvent(stream, event, 0);
}

static int cuda_event_sync(struct st_stream_device *dev, void *event)
{
    return fn_of(dev)->EventSynchronize(event);
}

static int cuda_event_query(struct st_stream_device *dev, void *event)
{
    return fn_of(dev)->EventQuery(event);
}

static int cuda_event_elapsed(struct st_stream_device *dev, void *from, void *to, float *milliseconds)
{
    return fn_of(dev)->EventElapsedTime(milliseconds, from, to);
}

static int cuda_module_load(struct st_stream_device *dev, const void *image, void **out, char *log, size_t log_size)
{
    int options[] = {5 /* error log */, 6 /* its size */};
    void *values[] = {log, (void *)(uintptr_t)log_size}; /* an integer option is the integer itself */
    return fn_of(dev)->ModuleLoadDataEx(out, image, 2, options, values);
}

static int cuda_module_unload(struct st_stream_device *dev, void *module)
{
    return fn_of(dev)->ModuleUnload(module);
}

static int cuda_function(struct st_stream_device *dev, void *module, const char *name, int dynamic_local, void **out,
                         struct st_function_info *info)
{
    const struct cuda_functions *fn = fn_of(dev);
    int result = fn->ModuleGetFunction(out, module, name);
    if (result == 0 && fn->FuncLoad)
        result = fn->FuncLoad(*out);
    if (result == 0 && dynamic_local > 0)
        result = fn->FuncSetAttribute(*out, 8 /* dynamic local memory allowed */, dynamic_local);
    if (result != 0)
        return result;
    int value = 0;
    if (fn->FuncGetAttribute(&value, 4, *out) == 0)
        info->registers = value;
    if (fn->FuncGetAttribute(&value, 3, *out) == 0)
        info->spills = value;
    if (fn->FuncGetAttribute(&value, 1, *out) == 0)
        info->local = value + dynamic_local;
    if (fn->FuncGetAttribute(&value, 0, *out) == 0)
        info->max_group = value;
    return 0;
}

static int cuda_launch(struct st_stream_device *dev, void *function, const uint32_t grid[3], const uint16_t group[3],
                       unsigned dynamic_local, bool overlaps, void *stream, void **params)
{
    const struct cuda *cuda = (const struct cuda *)dev->rt;
    if (overlaps && cuda->version >= DRIVER_OVERLAPS && cuda->fn.LaunchKernelEx) {
        struct cuda_attribute attribute = {.id = 6 /* programmatic stream serialization */, .value.overlaps = 1};
        struct cuda_config config = {{grid[0], grid[1], grid[2]}, {group[0], group[1], group[2]}, dynamic_local, stream,
                                     &attribute, 1};
        return cuda->fn.LaunchKernelEx(&config, function, params, NULL);
    }
    return cuda->fn.LaunchKernel(function, grid[0], grid[1], grid[2], group[0], group[1], group[2], dynamic_local,
                                    stream, params, NULL);
}

static int cuda_capture_begin(struct st_stream_device *dev, void *stream)
{
    return fn_of(dev)->StreamBeginCapture(stream, 1 /* restricts this thread only */);
}

static int cuda_capture_end(struct st_stream_device *dev, void *stream, void **graph)
{
    return fn_of(dev)->StreamEndCapture(stream, graph);
}

static int cuda_graph_finish(struct st_stream_device *dev, void *graph, void **exec)
{
    int result = fn_of(dev)->GraphInstantiateWithFlags(exec, graph, 0);
    fn_of(dev)->GraphDestroy(graph);
    return result;
}

static int cuda_graph_launch(struct st_stream_device *dev, void *exec, void *stream)
{
    return fn_of(dev)->GraphLaunch(exec, stream);
}

static int cuda_graph_destroy(struct st_stream_device *dev, void *exec)
{
    return fn_of(dev)->GraphExecDestroy(exec);
}

static int cuda_wait_value(struct st_stream_device *dev, void *stream, st_addr address, uint32_t value)
{
    return fn_of(dev)->StreamWaitValue32(stream, address, value, 0 /* greater or equal, cyclic */);
}

static int cuda_write_value(struct st_stream_device *dev, void *stream, st_addr address, uint32_t value)
{
    return fn_of(dev)->StreamWriteValue32(stream, address, value, 0);
}

static const struct st_stream_api cuda_api = {
    .make_current = cuda_make_current,
    .describe = cuda_describe_result,
    .sticky = cuda_sticky,
    .sync = cuda_sync,
    .memory = cuda_memory,
    .allocate = cuda_allocate,
    .release = cuda_release,
    .host_allocate = cuda_host_allocate,
    .host_free = cuda_host_free,
    .host_register = cuda_host_register,
    .host_unregister = cuda_host_unregister,
    .host_address = cuda_host_address,
    .stream_create = cuda_stream_create,
    .stream_destroy = cuda_stream_destroy,
    .stream_sync = cuda_stream_sync,
    .copy_in = cuda_copy_in,
    .copy_out = cuda_copy_out,
    .copy = cuda_copy,
    .fill = cuda_fill,
    .peer_enable = cuda_peer_enable,
    .peer_copy = cuda_peer_copy,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .event_wait = cuda_event_wait,
    .event_sync = cuda_event_sync,
    .event_query = cuda_event_query,
    .event_elapsed = cuda_event_elapsed,
    .module_load = cuda_module_load,
    .module_unload = cuda_module_unload,
    .function = cuda_function,
    .launch = cuda_launch,
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .graph_finish = cuda_graph_finish,
    .graph_launch = cuda_graph_launch,
    .graph_destroy = cuda_graph_destroy,
    .wait_value = cuda_wait_value,
    .write_value = cuda_write_value,
};

/* ---- opening ---- */

static void cuda_close(struct st_rt *rt)
{
    struct cuda *cuda = (struct cuda *)rt;
    if (!cuda)
        return;
    st_stream_rt_free(&cuda->common);
    free(cuda);
}

static enum strata_result start(struct cuda *cuda, struct strata_error *err)
{
    enum strata_result r = st_library_symbols(cuda->library, cuda->used, cuda_symbols,
                                              sizeof cuda_symbols / sizeof cuda_symbols[0], &cuda->fn, err);
    if (r != STRATA_OK)
        return r;
    char said[256];
    int result = cuda->fn.Init(0);
    if (result == 0)
        result = cuda->fn.DriverGetVersion(&cuda->version);
    if (result == 0 && cuda->version < DRIVER_MINIMUM)
        return st_fail(err, STRATA_E_UNSUPPORTED,
                       "%s: the driver speaks CUDA %d.%d, at least %d.%d is needed (driver 470 or newer)", cuda->used,
                       cuda->version / 1000, cuda->version % 1000 / 10, DRIVER_MINIMUM / 1000,
                       DRIVER_MINIMUM % 1000 / 10);
    if (result == 0)
        result = cuda->fn.DeviceGetCount(&cuda->common.count);
    if (result == 100 || (result == 0 && cuda->common.count <= 0))
        return st_fail(err, STRATA_E_UNSUPPORTED, "%s: no device", cuda->used);
    if (result != 0) {
        words(&cuda->fn, result, said, sizeof said);
        return st_fail(err, STRATA_E_UNSUPPORTED, "%s: %s", cuda->used, said);
    }
    return STRATA_OK;
}

static enum strata_result cuda_open(const struct st_runtime_options *options, struct st_rt **out,
                                    struct strata_error *err)
{
    static const char *const names[] = {"libcuda.so.1", NULL};
    struct cuda *cuda = calloc(1, sizeof *cuda);
    if (!cuda)
        return st_fail(err, STRATA_E_MEMORY, "no memory for the CUDA runtime");
    enum strata_result r = st_library_open(options->library, names, &cuda->library, cuda->used, err);
    if (r != STRATA_OK) {
        free(cuda);
        return r;
    }
    st_stream_rt_init(&cuda->common, &cuda_api, ST_IMAGE_PTX);
    r = start(cuda, err);
    if (r != STRATA_OK) {
        cuda_close((struct st_rt *)cuda);
        return r;
    }
    *out = (struct st_rt *)cuda;
    return STRATA_OK;
}

/* An attribute's value, 0 when the driver does not know it. */
static int attribute(const struct cuda *cuda, int device, int number)
{
    int value = 0;
    return cuda->fn.DeviceGetAttribute(&value, number, device) == 0 ? value : 0;
}

static enum strata_result cuda_describe(struct st_rt *rt, int index, struct st_device_info *out,
                                        struct strata_error *err)
{
    const struct cuda *cuda = (const struct cuda *)rt;
    struct st_device_info info = {0};
    int device = 0;
    size_t memory = 0;
    char name[128] = "", said[256];
    unsigned char uuid[16];
    int result = cuda->fn.DeviceGet(&device, index);
    if (result == 0)
        result = cuda->fn.DeviceGetName(name, sizeof name, device);
    if (result == 0)
        result = cuda->fn.DeviceTotalMem(&memory, device);
    if (result != 0) {
        words(&cuda->fn, result, said, sizeof said);
        return st_fail(err, STRATA_E_DEVICE, "cuda:%d: asking for its properties: %s", index, said);
    }
    st_printable(info.model, sizeof info.model, name, strnlen(name, sizeof name));
    snprintf(info.arch, sizeof info.arch, "sm_%d%d", attribute(cuda, device, ATTR_MAJOR),
             attribute(cuda, device, ATTR_MINOR));
    memcpy(info.arch_driver, info.arch, sizeof info.arch);
    if (cuda->fn.DeviceGetPCIBusId(info.pci, sizeof info.pci, device) != 0)
        info.pci[0] = 0;
    for (char *p = info.pci; *p; p++)
        if (*p >= 'A' && *p <= 'F')
            *p = (char)(*p - 'A' + 'a');
    if (cuda->fn.DeviceGetUuid(uuid, device) == 0)
        for (int i = 0; i < 16; i++)
            snprintf(info.uuid + 2 * i, 3, "%02x", uuid[i]);
    snprintf(info.driver, sizeof info.driver, "CUDA %d.%d", cuda->version / 1000, cuda->version % 1000 / 10);
    info.lanes = (uint32_t)attribute(cuda, device, ATTR_WARP);
    info.units = (uint32_t)attribute(cuda, device, ATTR_UNITS);
    info.max_group = (uint32_t)attribute(cuda, device, ATTR_MAX_THREADS);
    info.local_bytes = (uint64_t)attribute(cuda, device, ATTR_LOCAL_OPTIN);
    info.memory = info.max_allocation = memory;
    info.features = ST_FEATURE_GRAPHS | (cuda->common.count > 1 ? ST_FEATURE_PEER : 0);
    if (attribute(cuda, device, ATTR_MAP_HOST))
        info.features |= ST_FEATURE_HOST_MAPPED;
    if (attribute(cuda, device, ATTR_INTEGRATED))
        info.features |= ST_FEATURE_INTEGRATED;
    if (attribute(cuda, device, ATTR_EXEC_TIMEOUT))
        info.features |= ST_FEATURE_DISPLAY;
    if (attribute(cuda, device, ATTR_MEM_OPS) && cuda->fn.StreamWaitValue32 && cuda->fn.StreamWriteValue32)
        info.features |= ST_FEATURE_WAIT_VALUE;
    *out = info;
    return STRATA_OK;
}

static void cuda_device_close(struct st_rt_device *rt_dev)
{
    struct cuda_device *dev = (struct cuda_device *)rt_dev;
    if (!dev)
        return;
    if (!dev->common.given_up)
        fn_of(&dev->common)->DevicePrimaryCtxRelease(dev->device);
    st_stream_device_free(&dev->common);
    free(dev);
}

static enum strata_result cuda_device_open(struct st_rt *rt, int index, struct st_rt_device **out,
                                           struct strata_error *err)
{
    struct cuda *cuda = (struct cuda *)rt;
    struct st_device_info info;
    enum strata_result r = cuda_describe(rt, index, &info, err);
    if (r != STRATA_OK)
        return r;
    struct cuda_device *dev = calloc(1, sizeof *dev);
    if (!dev)
        return st_fail(err, STRATA_E_MEMORY, "cuda:%d: no memory for the device", index);
    char name[16];
    snprintf(name, sizeof name, "cuda:%d", index);
    st_stream_device_init(&dev->common, &cuda->common, index, name, &info);
    int result = cuda->fn.DeviceGet(&dev->device, index);
    if (result == 0)
        result = cuda->fn.DevicePrimaryCtxRetain(&dev->context, dev->device);
    if (result != 0) {
        r = st_stream_fail(&dev->common, result, "opening the device", err);
        st_stream_device_free(&dev->common);
        free(dev);
        return r;
    }
    result = cuda->fn.CtxSetCurrent(dev->context);
    if (result == 0)
        result = cuda->fn.CtxGetStreamPriorityRange(&dev->normal, &dev->most_urgent);
    if (result != 0) {
        r = st_stream_fail(&dev->common, result, "opening the device", err);
        cuda_device_close((struct st_rt_device *)dev);
        return r;
    }
    *out = (struct st_rt_device *)dev;
    return STRATA_OK;
}

extern const struct st_runtime st_runtime_cuda;
const struct st_runtime st_runtime_cuda = {
    .name = "cuda",
    .image = ST_IMAGE_PTX,
    .rank = 0,
    .open = cuda_open,
    .close = cuda_close,
    .describe = cuda_describe,
    .device_open = cuda_device_open,
    .device_close = cuda_device_close,
    ST_STREAM_RUNTIME,
};
