/* A test double of libamdhip64: the functions that hip.c calls, in the shapes of versions 5 and 6 (DOUBLE_MAJOR), on
 * host memory. Kernels run as the C reference. It is strict where the real library is dangerous: it ends the process
 * when a function is looked up under the wrong device, and refuses what the real one would take silently and get wrong.
 *
 * STRATA_DOUBLE, read by hipInit: items "count=2 arch=gfx1100,gfx1201 version=60200000 fail=Malloc:2:1 overfill=1
 * lanes=64 stuck=1". With stuck=1 no event ever passes, and whoever waits for one or frees device memory ends the process, where a
 * driver would not come back. fail=NAME:CODE:N makes the Nth call of hipNAME return CODE. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/gpu_launch.h"
#include "runtime/hip_functions.h"
#include "runtime/images.h"

enum { MOST = 4, MEMORY = 1 << 30, LOCAL = 65536, ALLOCATIONS = 512, OPS = 512 };

static struct {
    int count, version, fail_code, fail_at, calls, overfill, lanes, corrupt, stuck;
    char arch[MOST][64], fail[48];
    bool peers[MOST][MOST];
    size_t used;
    struct {
        char *base;
        size_t size;
    } allocations[ALLOCATIONS];
    void *registered[64];
} state;
static _Thread_local int current;

struct op {
    enum { COPY, FILL, LAUNCH } kind;
    void *dst;
    const void *src;
    size_t size;
    unsigned char value;
    struct function *function;
    uint32_t grid[3];
    union st_arg args[ST_MAX_ARGS];
};

struct graph {
    struct op ops[OPS];
    int count;
};

struct stream {
    int device;
    struct graph *capture;
};

struct event {
    bool recorded, timed;
};

struct function {
    int kernel; /* enum st_gpu_kernel */
    struct st_image_kernel facts;
    struct function *next;
};

struct module {
    int device;
    struct st_image_kernel *kernels;
    size_t count;
    struct function *functions;
};

static int enter(const char *name)
{
    return strcmp(name, state.fail) == 0 && ++state.calls == state.fail_at ? state.fail_code : 0;
}

#define ENTER(name)                                                                                                    \
    do {                                                                                                               \
        int code_ = enter(#name);                                                                                      \
        if (code_)                                                                                                     \
            return code_;                                                                                              \
    } while (0)

/* Where a driver would wait for a device that stands still. */
static void never_back(void)
{
    if (state.stuck) {
        fprintf(stderr, "a call that never comes back\n");
        abort();
    }
}

static void item(const char *text, const char *name, int *out)
{
    const char *at = text ? strstr(text, name) : NULL;
    if (at)
        *out = atoi(at + strlen(name));
}

#define HIP_API(name, result, params, required) result hip##name params;
HIP_FUNCTIONS(HIP_API)

hip_result hipInit(unsigned flags)
{
    (void)flags;
    const char *text = getenv("STRATA_DOUBLE");
    memset(&state, 0, sizeof state);
    state.count = 1;
    state.version = DOUBLE_MAJOR == 5 ? 50221153 : 60241134;
    state.lanes = 32;
    item(text, "count=", &state.count);
    item(text, "version=", &state.version);
    item(text, "overfill=", &state.overfill);
    item(text, "lanes=", &state.lanes);
    item(text, "corrupt=", &state.corrupt);
    item(text, "stuck=", &state.stuck);
    for (int i = 0; i < MOST; i++)
        snprintf(state.arch[i], sizeof state.arch[i], "gfx1100");
    const char *arch = text ? strstr(text, "arch=") : NULL;
    if (arch)
        sscanf(arch, "arch=%63[^, ],%63[^, ],%63[^, ]", state.arch[0], state.arch[1], state.arch[2]);
    const char *fail = text ? strstr(text, "fail=") : NULL;
    if (fail)
        sscanf(fail, "fail=%47[^: ]:%d:%d", state.fail, &state.fail_code, &state.fail_at);
    return DOUBLE_MAJOR == 5 && state.count == 0 ? 101 : 0; /* later versions call it a success */
}

hip_result hipRuntimeGetVersion(int *version)
{
    ENTER(RuntimeGetVersion);
    *version = state.version;
    return 0;
}

const char *hipGetErrorName(hip_result result)
{
    return result == 2 ? "hipErrorOutOfMemory" : result == 700 ? "hipErrorIllegalAddress" : "hipErrorOfTheDouble";
}

const char *hipGetErrorString(hip_result result)
{
    return result == 2 ? "out of memory" : "as the test wants it";
}

hip_result hipGetDeviceCount(int *count)
{
    ENTER(GetDeviceCount);
    *count = state.count;
    return state.count ? 0 : 100;
}

static void put(uint8_t *p, uint16_t offset, int value)
{
    memcpy(p + offset, &value, sizeof value);
}

static int fill_properties(uint8_t *p, const struct hip_layout *layout, int device)
{
    if (device < 0 || device >= state.count)
        return 101;
    uint64_t local = LOCAL;
    memset(p, 0, layout->size + (state.overfill ? 8u : 0u));
    if (state.overfill)
        p[layout->size] = 1;
    snprintf((char *)p + layout->name, 256, "Double of a card \x1b");
    snprintf((char *)p + layout->arch, 256, "%s:sramecc-:xnack-", state.arch[device]);
    memcpy(p + layout->local_bytes, &local, sizeof local);
    put(p, layout->lanes, state.lanes);
    put(p, layout->max_group, 1024);
    put(p, layout->units, 24);
    put(p, layout->map_host, 1);
    put(p, layout->display, device == 1);
    return 0;
}

hip_result hipGetDeviceProperties(hip_properties *properties, int device)
{
    static const struct hip_layout layout = HIP_LAYOUT_5; /* in every version */
    ENTER(GetDeviceProperties);
    return fill_properties(properties, &layout, device);
}

#if DOUBLE_MAJOR >= 6
hip_result hipGetDevicePropertiesR0600(hip_properties *properties, int device)
{
    static const struct hip_layout layout = HIP_LAYOUT_6;
    ENTER(GetDevicePropertiesR0600);
    return fill_properties(properties, &layout, device);
}
#endif

hip_result hipDeviceTotalMem(size_t *bytes, int device)
{
    ENTER(DeviceTotalMem);
    *bytes = MEMORY;
    return device < state.count ? 0 : 101;
}

hip_result hipDeviceGetPCIBusId(char *id, int length, int device)
{
    ENTER(DeviceGetPCIBusId);
    return length >= 13 && snprintf(id, (size_t)length, "0000:%02x:00.0", 3 + device) < length ? 0 : 1;
}

hip_result hipDeviceCanAccessPeer(int *can, int device, int peer)
{
    ENTER(DeviceCanAccessPeer);
    *can = device != peer;
    return 0;
}

hip_result hipDeviceEnablePeerAccess(int peer, unsigned flags)
{
    ENTER(DeviceEnablePeerAccess);
    if (flags || peer >= state.count)
        return 101;
    bool before = state.peers[current][peer];
    state.peers[current][peer] = true;
    return before ? 704 : 0;
}

hip_result hipDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    ENTER(DeviceGetStreamPriorityRange);
    *least = 1;
    *greatest = -1;
    return 0;
}

hip_result hipSetDevice(int device)
{
    ENTER(SetDevice);
    current = device;
    return device < state.count ? 0 : 101;
}

hip_result hipDeviceSynchronize(void)
{
    ENTER(DeviceSynchronize);
    never_back();
    return 0;
}

hip_result hipMemGetInfo(size_t *free_bytes, size_t *total)
{
    ENTER(MemGetInfo);
    *free_bytes = MEMORY - state.used;
    *total = MEMORY;
    return 0;
}

hip_result hipMalloc(void **address, size_t size)
{
    ENTER(Malloc);
    if (size > MEMORY - state.used)
        return 2;
    for (int i = 0; i < ALLOCATIONS; i++)
        if (!state.allocations[i].base) {
            if (posix_memalign(address, 256, size ? size : 1) != 0)
                return 2;
            state.allocations[i].base = *address;
            state.allocations[i].size = size;
            state.used += size;
            return 0;
        }
    return 2;
}

hip_result hipFree(void *address)
{
    never_back();
    for (int i = 0; i < ALLOCATIONS; i++)
        if (address && state.allocations[i].base == address) {
            state.used -= state.allocations[i].size;
            state.allocations[i].base = NULL;
            free(address);
            return enter("Free");
        }
    return address ? 1 : 0;
}

static bool inside(const void *address, size_t size)
{
    for (int i = 0; i < ALLOCATIONS; i++) {
        const char *base = state.allocations[i].base;
        if (base && (const char *)address >= base && (const char *)address + size <= base + state.allocations[i].size)
            return true;
    }
    return false;
}

hip_result hipHostMalloc(void **memory, size_t size, unsigned flags)
{
    ENTER(HostMalloc);
    if (!(flags & 0x40000000u)) /* the real one would give memory that a polling CPU does not see change */
        return 1;
    return posix_memalign(memory, 4096, size) == 0 ? 0 : 2;
}

hip_result hipHostFree(void *memory)
{
    free(memory);
    return enter("HostFree");
}

hip_result hipHostRegister(void *memory, size_t size, unsigned flags)
{
    ENTER(HostRegister);
    if (flags > 15 || size == 0)
        return 1;
    int place = -1;
    for (int i = 0; i < 64; i++) {
        if (state.registered[i] == memory)
            return 712;
        if (!state.registered[i])
            place = i;
    }
    if (place < 0)
        return 2;
    state.registered[place] = memory;
    return 0;
}

hip_result hipHostUnregister(void *memory)
{
    ENTER(HostUnregister);
    never_back();
    for (int i = 0; i < 64; i++)
        if (state.registered[i] == memory) {
            state.registered[i] = NULL;
            return 0;
        }
    return 713;
}

hip_result hipHostGetDevicePointer(void **address, void *memory, unsigned flags)
{
    ENTER(HostGetDevicePointer);
    *address = memory;
    return flags ? 1 : 0;
}

/* ---- work ---- */

static void run(const struct op *op)
{
    if (op->kind == COPY)
        memmove(op->dst, op->src, op->size);
    else if (op->kind == FILL)
        memset(op->dst, op->value, op->size);
    else
        st_gpu_reference(st_dot_table_c(), (enum st_gpu_kernel)op->function->kernel, op->grid, op->args);
}

static int submit(hip_stream handle, const struct op *op)
{
    struct stream *stream = handle;
    if (!stream || stream->device != current)
        return 400;
    if (!stream->capture) {
        run(op);
        return 0;
    }
    if (stream->capture->count == OPS)
        return 2;
    stream->capture->ops[stream->capture->count++] = *op;
    return 0;
}

hip_result hipMemcpyHtoDAsync(hip_address dst, void *src, size_t size, hip_stream stream)
{
    ENTER(MemcpyHtoDAsync);
    return inside(dst, size) ? submit(stream, &(struct op){.kind = COPY, .dst = dst, .src = src, .size = size}) : 1;
}

hip_result hipMemcpyDtoHAsync(void *dst, hip_address src, size_t size, hip_stream stream)
{
    ENTER(MemcpyDtoHAsync);
    return inside(src, size) ? submit(stream, &(struct op){.kind = COPY, .dst = dst, .src = src, .size = size}) : 1;
}

hip_result hipMemcpyDtoDAsync(hip_address dst, hip_address src, size_t size, hip_stream stream)
{
    ENTER(MemcpyDtoDAsync);
    bool right = inside(src, size) && inside(dst, size);
    return right ? submit(stream, &(struct op){.kind = COPY, .dst = dst, .src = src, .size = size}) : 1;
}

hip_result hipMemcpyPeerAsync(void *dst, int dst_device, const void *src, int src_device, size_t size,
                              hip_stream stream)
{
    ENTER(MemcpyPeerAsync);
    if (!inside(src, size) || !inside(dst, size) || dst_device == src_device)
        return 1;
    int code = submit(stream, &(struct op){.kind = COPY, .dst = dst, .src = src, .size = size});
    if (code == 0 && state.corrupt)
        ((char *)dst)[size / 2] ^= 1;
    return code;
}

hip_result hipMemsetD8Async(hip_address dst, unsigned char value, size_t count, hip_stream stream)
{
    ENTER(MemsetD8Async);
    return inside(dst, count) ? submit(stream, &(struct op){.kind = FILL, .dst = dst, .value = value, .size = count})
                              : 1;
}

hip_result hipStreamCreateWithPriority(hip_stream *stream, unsigned flags, int priority)
{
    ENTER(StreamCreateWithPriority);
    struct stream *made = calloc(1, sizeof *made);
    if (!made || flags != 1 || priority < -1 || priority > 1) {
        free(made);
        return 1;
    }
    made->device = current;
    *stream = made;
    return 0;
}

hip_result hipStreamDestroy(hip_stream stream)
{
    free(stream);
    return enter("StreamDestroy");
}

hip_result hipStreamSynchronize(hip_stream stream)
{
    ENTER(StreamSynchronize);
    never_back();
    return ((struct stream *)stream)->capture ? 900 : 0;
}

hip_result hipStreamWaitEvent(hip_stream stream, hip_event event, unsigned flags)
{
    ENTER(StreamWaitEvent);
    return stream && event && flags == 0 ? 0 : 400;
}

hip_result hipEventCreateWithFlags(hip_event *event, unsigned flags)
{
    ENTER(EventCreateWithFlags);
    struct event *made = calloc(1, sizeof *made);
    if (!made)
        return 2;
    made->timed = !(flags & 2);
    *event = made;
    return 0;
}

hip_result hipEventDestroy(hip_event event)
{
    free(event);
    return enter("EventDestroy");
}

hip_result hipEventRecord(hip_event event, hip_stream stream)
{
    ENTER(EventRecord);
    if (((struct stream *)stream)->device != current)
        return 400;
    ((struct event *)event)->recorded = true;
    return 0;
}

hip_result hipEventSynchronize(hip_event event)
{
    ENTER(EventSynchronize);
    never_back();
    return event ? 0 : 400;
}

hip_result hipEventQuery(hip_event event)
{
    ENTER(EventQuery);
    return ((struct event *)event)->recorded && !state.stuck ? 0 : 600;
}

hip_result hipEventElapsedTime(float *milliseconds, hip_event from, hip_event to)
{
    ENTER(EventElapsedTime);
    const struct event *a = from, *b = to;
    *milliseconds = 0.5f;
    return a->recorded && b->recorded && a->timed && b->timed ? 0 : 400;
}

hip_result hipModuleLoadData(hip_module *module, const void *image)
{
    ENTER(ModuleLoadData);
    /* Like the real one: the size comes from the section table, which therefore must stand last. */
    uint64_t table;
    uint16_t count;
    memcpy(&table, (const char *)image + 40, sizeof table);
    memcpy(&count, (const char *)image + 60, sizeof count);
    struct module *made = calloc(1, sizeof *made);
    char arch[32];
    if (!made)
        return 2;
    if (st_image_inspect(ST_IMAGE_ELF, image, table + 64u * count, arch, &made->kernels, &made->count, NULL) !=
        STRATA_OK) {
        free(made);
        return 218;
    }
    bool generic = state.version >= 60400000;
    if (st_arch_rank(state.arch[current], arch, generic) == 0) {
        free(made->kernels);
        free(made);
        return DOUBLE_MAJOR == 5 ? 303 : 209;
    }
    made->device = current;
    *module = made;
    return 0;
}

hip_result hipModuleUnload(hip_module handle)
{
    struct module *module = handle;
    for (struct function *f = module->functions; f;) {
        struct function *next = f->next;
        free(f);
        f = next;
    }
    free(module->kernels);
    free(module);
    return enter("ModuleUnload");
}

hip_result hipModuleGetFunction(hip_function *function, hip_module handle, const char *name)
{
    ENTER(ModuleGetFunction);
    struct module *module = handle;
    if (module->device != current)
        abort(); /* as 5.6 to 6.2 do */
    struct function *made = calloc(1, sizeof *made);
    if (!made)
        return 2;
    made->kernel = -1;
    for (int i = 0; i < ST_GPU_KERNEL_COUNT; i++)
        if (strcmp(st_gpu_kernels[i].name, name) == 0)
            made->kernel = i;
    bool found = false;
    for (size_t i = 0; i < module->count; i++)
        if (strcmp(module->kernels[i].name, name) == 0) {
            made->facts = module->kernels[i];
            found = true;
        }
    if (!found || made->kernel < 0) {
        free(made);
        return 500;
    }
    made->next = module->functions;
    module->functions = made;
    *function = made;
    return 0;
}

hip_result hipFuncGetAttribute(int *value, hip_function_attribute attribute, hip_function function)
{
    ENTER(FuncGetAttribute);
    const struct function *f = function;
    if (attribute != 0 && attribute != 3 && attribute != 4)
        return 1;
    *value = attribute == 0 ? f->facts.max_group : attribute == 3 ? f->facts.scratch : f->facts.registers;
    return 0;
}

hip_result hipModuleLaunchKernel(hip_function function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                 unsigned bz, unsigned shared, hip_stream stream, void **params, void **extra)
{
    ENTER(ModuleLaunchKernel);
    struct function *f = function;
    if (!gx || !gy || !gz || !bx || !by || !bz || (uint64_t)gx * bx > UINT32_MAX)
        return 9;
    if (bx * by * bz > (unsigned)f->facts.max_group)
        return 719;
    if (shared > LOCAL || extra)
        return 1;
    struct op op = {.kind = LAUNCH, .function = f, .grid = {gx, gy, gz}};
    const char *args = st_gpu_kernels[f->kernel].args;
    for (int i = 0; args[i]; i++)
        memcpy(&op.args[i], params[i], args[i] == 'i' || args[i] == 'f' ? 4 : 8);
    return submit(stream, &op);
}

/* ---- graphs ---- */

hip_result hipStreamBeginCapture(hip_stream handle, hip_capture_mode mode)
{
    ENTER(StreamBeginCapture);
    struct stream *stream = handle;
    if (stream->capture || mode != 1)
        return 401;
    stream->capture = calloc(1, sizeof *stream->capture);
    return stream->capture ? 0 : 2;
}

hip_result hipStreamEndCapture(hip_stream handle, hip_graph *graph)
{
    struct stream *stream = handle;
    struct graph *made = stream->capture;
    stream->capture = NULL;
    int code = enter("StreamEndCapture");
    if (code || !made) {
        free(made);
        return code ? code : 401;
    }
    *graph = made;
    return 0;
}

hip_result hipGraphInstantiateWithFlags(hip_graph_exec *exec, hip_graph graph, unsigned long long flags)
{
    ENTER(GraphInstantiateWithFlags);
    if (flags != 0 && flags != 1 && flags != 8)
        return 1;
    struct graph *made = malloc(sizeof *made);
    if (!made)
        return 2;
    *made = *(struct graph *)graph;
    *exec = made;
    return 0;
}

hip_result hipGraphLaunch(hip_graph_exec exec, hip_stream stream)
{
    ENTER(GraphLaunch);
    const struct graph *graph = exec;
    if (((struct stream *)stream)->device != current)
        return 400;
    for (int i = 0; i < graph->count; i++)
        run(&graph->ops[i]);
    return 0;
}

hip_result hipGraphExecDestroy(hip_graph_exec exec)
{
    free(exec);
    return enter("GraphExecDestroy");
}

hip_result hipGraphDestroy(hip_graph graph)
{
    free(graph);
    return enter("GraphDestroy");
}
