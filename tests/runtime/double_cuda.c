/* A test double of libcuda: the driver API's functions as cuda.c calls them, on top of the HIP double, whose
 * configuration it shares (STRATA_DOUBLE; fail= takes the HIP names of the functions behind). A context is the device's
 * number plus one. */
#define DOUBLE_MAJOR 6
#include "double_hip.c"

#define API(name, ...)                                                                                                 \
    int cu##name(__VA_ARGS__);                                                                                         \
    int cu##name(__VA_ARGS__)

API(Init, unsigned flags)
{
    int code = hipInit(flags);
    if (getenv("STRATA_DOUBLE") && strstr(getenv("STRATA_DOUBLE"), "init="))
        item(getenv("STRATA_DOUBLE"), "init=", &code);
    return code;
}

API(DriverGetVersion, int *version)
{
    int code = hipRuntimeGetVersion(version);
    *version = *version >= 10000000 ? 13000 : *version; /* the HIP double's own default */
    return code;
}

API(DeviceGetCount, int *count)
{
    return hipGetDeviceCount(count);
}

API(DeviceGet, int *device, int ordinal)
{
    *device = ordinal;
    return ordinal < state.count ? 0 : 101;
}

API(DeviceGetName, char *name, int length, int device)
{
    (void)device;
    ENTER(GetDeviceProperties);
    snprintf(name, (size_t)length, "Double of a card");
    return 0;
}

/* Local memory that a group may have (CUDA's programming guide, compute capabilities). */
static int local_bytes(int capability)
{
    return capability == 90 ? 227 * 1024 : capability == 80 ? 163 * 1024 : 64 * 1024;
}

API(DeviceGetAttribute, int *value, int attribute, int device)
{
    int capability = 90;
    sscanf(state.arch[device], "sm_%d", &capability);
    switch (attribute) {
    case 1: *value = 1024; return 0;
    case 10: *value = 32; return 0;
    case 16: *value = 24; return 0;
    case 19: *value = 1; return 0;
    case 75: *value = capability / 10; return 0;
    case 76: *value = capability % 10; return 0;
    case 97: *value = local_bytes(capability); return 0;
    case 122: *value = 1; return 0;
    default: return 1;
    }
}

API(DeviceGetPCIBusId, char *id, int length, int device)
{
    return hipDeviceGetPCIBusId(id, length, device);
}

API(DeviceGetUuid_v2, unsigned char uuid[16], int device)
{
    memset(uuid, 0xA0 + device, 16);
    return 0;
}

API(DeviceTotalMem_v2, size_t *bytes, int device)
{
    return hipDeviceTotalMem(bytes, device);
}

API(DeviceCanAccessPeer, int *can, int device, int peer)
{
    return hipDeviceCanAccessPeer(can, device, peer);
}

API(DevicePrimaryCtxRetain, void **context, int device)
{
    ENTER(PrimaryCtxRetain);
    *context = (void *)(uintptr_t)(device + 1);
    return 0;
}

API(DevicePrimaryCtxRelease_v2, int device)
{
    (void)device;
    return 0;
}

API(CtxSetCurrent, void *context)
{
    return hipSetDevice((int)(uintptr_t)context - 1);
}

API(CtxSynchronize, void)
{
    return hipDeviceSynchronize();
}

API(CtxEnablePeerAccess, void *peer, unsigned flags)
{
    return hipDeviceEnablePeerAccess((int)(uintptr_t)peer - 1, flags);
}

API(CtxGetStreamPriorityRange, int *least, int *greatest)
{
    return hipDeviceGetStreamPriorityRange(least, greatest);
}

API(MemGetInfo_v2, size_t *free_bytes, size_t *total)
{
    return hipMemGetInfo(free_bytes, total);
}

API(MemAlloc_v2, uint64_t *address, size_t size)
{
    void *memory = NULL;
    int code = hipMalloc(&memory, size);
    *address = (uint64_t)(uintptr_t)memory;
    return code;
}

API(MemFree_v2, uint64_t address)
{
    return hipFree((void *)(uintptr_t)address);
}

API(MemHostAlloc, void **memory, size_t size, unsigned flags)
{
    return flags == 3 ? hipHostMalloc(memory, size, 0x40000003u) : 1;
}

API(MemFreeHost, void *memory)
{
    return hipHostFree(memory);
}

API(MemHostRegister_v2, void *memory, size_t size, unsigned flags)
{
    return hipHostRegister(memory, size, flags);
}

API(MemHostUnregister, void *memory)
{
    return hipHostUnregister(memory);
}

API(MemHostGetDevicePointer_v2, uint64_t *address, void *memory, unsigned flags)
{
    void *there = NULL;
    int code = hipHostGetDevicePointer(&there, memory, flags);
    *address = (uint64_t)(uintptr_t)there;
    return code;
}

API(MemcpyHtoDAsync_v2, uint64_t dst, const void *src, size_t size, void *stream)
{
    return hipMemcpyHtoDAsync((void *)(uintptr_t)dst, (void *)(uintptr_t)src, size, stream);
}

API(MemcpyDtoHAsync_v2, void *dst, uint64_t src, size_t size, void *stream)
{
    return hipMemcpyDtoHAsync(dst, (void *)(uintptr_t)src, size, stream);
}

API(MemcpyDtoDAsync_v2, uint64_t dst, uint64_t src, size_t size, void *stream)
{
    return hipMemcpyDtoDAsync((void *)(uintptr_t)dst, (void *)(uintptr_t)src, size, stream);
}

API(MemcpyPeerAsync, uint64_t dst, void *dst_context, uint64_t src, void *src_context, size_t size, void *stream)
{
    return hipMemcpyPeerAsync((void *)(uintptr_t)dst, (int)(uintptr_t)dst_context - 1, (void *)(uintptr_t)src,
                              (int)(uintptr_t)src_context - 1, size, stream);
}

API(MemsetD8Async, uint64_t dst, unsigned char value, size_t count, void *stream)
{
    return hipMemsetD8Async((void *)(uintptr_t)dst, value, count, stream);
}

API(StreamCreateWithPriority, void **stream, unsigned flags, int priority)
{
    return hipStreamCreateWithPriority(stream, flags, priority);
}

API(StreamDestroy_v2, void *stream)
{
    return hipStreamDestroy(stream);
}

API(StreamSynchronize, void *stream)
{
    return hipStreamSynchronize(stream);
}

API(StreamWaitEvent, void *stream, void *event, unsigned flags)
{
    return hipStreamWaitEvent(stream, event, flags);
}

/* The double's streams run everything at once, so a number that has not come yet is a refusal. */
API(StreamWaitValue32_v2, void *stream, uint64_t address, uint32_t value, unsigned flags)
{
    (void)stream;
    (void)address;
    (void)value;
    return flags == 0 ? 801 : 1;
}

API(StreamWriteValue32_v2, void *stream, uint64_t address, uint32_t value, unsigned flags)
{
    (void)stream;
    *(uint32_t *)(uintptr_t)address = value;
    return flags == 0 ? 0 : 1;
}

API(EventCreate, void **event, unsigned flags)
{
    return hipEventCreateWithFlags(event, flags);
}

API(EventDestroy_v2, void *event)
{
    return hipEventDestroy(event);
}

API(EventRecord, void *event, void *stream)
{
    return hipEventRecord(event, stream);
}

API(EventSynchronize, void *event)
{
    return hipEventSynchronize(event);
}

API(EventQuery, void *event)
{
    return hipEventQuery(event);
}

API(EventElapsedTime, float *milliseconds, void *from, void *to)
{
    return hipEventElapsedTime(milliseconds, from, to);
}

/* options: only the error log and its size; an image with a later .version than the driver's is refused as 222. */
API(ModuleLoadDataEx, void **module, const void *image, unsigned count, int *options, void **values)
{
    ENTER(ModuleLoadData);
    char arch[32];
    struct module *made = calloc(1, sizeof *made);
    if (!made || count != 2 || options[0] != 5 || options[1] != 6 || (uintptr_t)values[1] < 64) {
        free(made);
        return 1;
    }
    bool broken =
        st_image_inspect(ST_IMAGE_PTX, image, strlen(image) + 1, arch, &made->kernels, &made->count, NULL) != STRATA_OK;
    if (broken || st_arch_rank(state.arch[current], arch, false) == 0) {
        snprintf(values[0], (uintptr_t)values[1], "ptxas fatal: the double refuses %s", broken ? "this" : arch);
        if (!broken)
            free(made->kernels);
        free(made);
        return broken ? 218 : 209;
    }
    made->device = current;
    *module = made;
    return 0;
}

API(ModuleUnload, void *module)
{
    return hipModuleUnload(module);
}

API(ModuleGetFunction, void **function, void *module, const char *name)
{
    return hipModuleGetFunction(function, module, name);
}

API(FuncGetAttribute, int *value, int attribute, void *function)
{
    if (attribute == 1) {
        *value = ((struct function *)function)->facts.local - ((struct function *)function)->facts.dynamic_local;
        return 0;
    }
    return hipFuncGetAttribute(value, attribute, function);
}

API(FuncSetAttribute, void *function, int attribute, int value)
{
    return function && attribute == 8 && value > 0 ? 0 : 1;
}

/* Whether a launch may let its kernel start early: in a capture, where the kernel waits by itself, from 12.3 on. */
static bool starts_early(const void *function, const void *stream)
{
    int version = 0;
    cuDriverGetVersion(&version);
    return version >= 12030 && ((const struct function *)function)->facts.overlaps && ((const struct stream *)stream)->capture;
}

/* Kernels that can start early are launched by the next one. */
API(LaunchKernel, void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
    unsigned shared, void *stream, void **params, void **extra)
{
    return starts_early(function, stream) ? 1
                                  : hipModuleLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}

struct launch_config {
    unsigned grid[3], group[3], shared;
    void *stream;
    struct {
        int id, pad, value, room[15];
    } * attributes;
    unsigned count;
};

API(LaunchKernelEx, const struct launch_config *c, void *function, void **params, void **extra)
{
    if (!starts_early(function, c->stream) || c->count != 1 || c->attributes->id != 6 || c->attributes->value != 1)
        return 1;
    return hipModuleLaunchKernel(function, c->grid[0], c->grid[1], c->grid[2], c->group[0], c->group[1], c->group[2], c->shared,
                                 c->stream, params, extra);
}

API(StreamBeginCapture_v2, void *stream, int mode)
{
    return hipStreamBeginCapture(stream, mode);
}

API(StreamEndCapture, void *stream, void **graph)
{
    return hipStreamEndCapture(stream, graph);
}

API(GraphInstantiateWithFlags, void **exec, void *graph, unsigned long long flags)
{
    return hipGraphInstantiateWithFlags(exec, graph, flags);
}

API(GraphLaunch, void *exec, void *stream)
{
    return hipGraphLaunch(exec, stream);
}

API(GraphExecDestroy, void *exec)
{
    return hipGraphExecDestroy(exec);
}

API(GraphDestroy, void *graph)
{
    return hipGraphDestroy(graph);
}

API(GetErrorName, int result, const char **text)
{
    *text = hipGetErrorName(result);
    return 0;
}

API(GetErrorString, int result, const char **text)
{
    *text = hipGetErrorString(result);
    return 0;
}
