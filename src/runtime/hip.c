/* AMD GPUs through the HIP module API (libamdhip64.so.N), opened when present: versions 5.2 to 7.x.
 *
 * The library's own claims are checked where they have been wrong: the layout of the properties is chosen by symbol,
 * the architecture is compared with the kernel driver's (/sys/devices/virtual/kfd), the right device is made current
 * before every call. Numbers: hip_runtime_api.h 5.2.3 to 6.2.2; behaviour: ROCm/clr 5.6 to 7.x. */
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "runtime/hip_functions.h"
#include "runtime/library.h"
#include "runtime/stream.h"

enum { VERSION_MINIMUM = 50200000, VERSION_GENERIC = 60400000, VERSION_FAULTS_RETURN = 70000000 };

#define HIP_SYMBOL(name, result, params, required) {"hip" #name, NULL, offsetof(struct hip_functions, name), required},
static const struct st_symbol hip_symbols[] = {HIP_FUNCTIONS(HIP_SYMBOL)};
#undef HIP_SYMBOL

static const struct hip_layout layout_5 = HIP_LAYOUT_5, layout_6 = HIP_LAYOUT_6;

struct hip {
    struct st_stream_rt common;
    void *library;
    char used[256];
    char sysfs[256];
    int version; /* major * 10,000,000 + minor * 100,000 + patch */
    struct hip_functions fn;
};

static const struct hip_functions *fn_of(const struct st_stream_device *dev)
{
    return &((const struct hip *)dev->rt)->fn;
}

static void *pointer(st_addr address)
{
    return (void *)(uintptr_t)address;
}

/* ---- results ---- */

static void words(const struct hip_functions *fn, int result, char *out, size_t size)
{
    const char *name = fn->GetErrorName(result), *text = fn->GetErrorString(result);
    snprintf(out, size, "%s (%d): %s", name ? name : "unknown result", result, text ? text : "no description");
}

static void hip_describe_result(struct st_stream_device *dev, int result, char *out, size_t size)
{
    words(fn_of(dev), result, out, size);
}

/* 719 is missing on purpose: a group larger than the kernel allows also gives it, on the host, and loses nothing. */
static bool hip_sticky(int result)
{
    return result == 700 || result == 702 || result == 709 || result == 710 || result == 1053;
}

/* ---- thin calls ---- */

static int hip_make_current(struct st_stream_device *dev)
{
    return fn_of(dev)->SetDevice(dev->index);
}

static int hip_sync(struct st_stream_device *dev)
{
    return fn_of(dev)->DeviceSynchronize();
}

static int hip_memory(struct st_stream_device *dev, size_t *free_bytes, size_t *total)
{
    return fn_of(dev)->MemGetInfo(free_bytes, total);
}

static int hip_allocate(struct st_stream_device *dev, size_t size, st_addr *out)
{
    void *address = NULL;
    int result = fn_of(dev)->Malloc(&address, size);
    *out = (st_addr)(uintptr_t)address;
    return result;
}

static int hip_release(struct st_stream_device *dev, st_addr address)
{
    return fn_of(dev)->Free(pointer(address));
}

static int hip_host_allocate(struct st_stream_device *dev, size_t size, void **out)
{
    /* portable, mapped, and coherent by name: portable alone is not coherent, a polling CPU might never see a write */
    return fn_of(dev)->HostMalloc(out, size, 0x40000003u);
}

static int hip_host_free(struct st_stream_device *dev, void *memory)
{
    return fn_of(dev)->HostFree(memory);
}

static int hip_host_register(struct st_stream_device *dev, void *memory, size_t size)
{
    return fn_of(dev)->HostRegister(memory, size, 1 | 2 /* portable, mapped */);
}

static int hip_host_unregister(struct st_stream_device *dev, void *memory)
{
    return fn_of(dev)->HostUnregister(memory);
}

static int hip_host_address(struct st_stream_device *dev, void *memory, st_addr *out)
{
    void *address = NULL;
    int result = fn_of(dev)->HostGetDevicePointer(&address, memory, 0);
    *out = (st_addr)(uintptr_t)address;
    return result;
}

static int hip_stream_create(struct st_stream_device *dev, bool urgent, void **out)
{
    int least = 0, greatest = 0;
    int result = fn_of(dev)->DeviceGetStreamPriorityRange(&least, &greatest);
    if (result != 0)
        return result;
    int normal = least > 0 ? 0 : least; /* the range goes from low over normal (0) to high */
    return fn_of(dev)->StreamCreateWithPriority(out, 1 /* non-blocking */, urgent ? greatest : normal);
}

static int hip_stream_destroy(struct st_stream_device *dev, void *stream)
{
    return fn_of(dev)->StreamDestroy(stream);
}

static int hip_stream_sync(struct st_stream_device *dev, void *stream)
{
    return fn_of(dev)->StreamSynchronize(stream);
}

static int hip_copy_in(struct st_stream_device *dev, st_addr dst, const void *src, size_t size, void *stream)
{
    return fn_of(dev)->MemcpyHtoDAsync(pointer(dst), (void *)(uintptr_t)src, size, stream);
}

static int hip_copy_out(struct st_stream_device *dev, void *dst, st_addr src, size_t size, void *stream)
{
    return fn_of(dev)->MemcpyDtoHAsync(dst, pointer(src), size, stream);
}

static int hip_copy(struct st_stream_device *dev, st_addr dst, st_addr src, size_t size, void *stream)
{
    return fn_of(dev)->MemcpyDtoDAsync(pointer(dst), pointer(src), size, stream);
}

static int hip_fill(struct st_stream_device *dev, st_addr dst, uint8_t value, size_t size, void *stream)
{
    return fn_of(dev)->MemsetD8Async(pointer(dst), value, size, stream);
}

static int hip_peer_enable(struct st_stream_device *dev, struct st_stream_device *peer, bool *can)
{
    int offered = 0;
    int result = fn_of(dev)->DeviceCanAccessPeer(&offered, dev->index, peer->index);
    *can = offered != 0;
    return result != 0 || !offered ? result : fn_of(dev)->DeviceEnablePeerAccess(peer->index, 0);
}

static int hip_peer_copy(struct st_stream_device *dst_dev, st_addr dst, struct st_stream_device *src_dev, st_addr src,
                         size_t size, void *stream)
{
    return fn_of(src_dev)->MemcpyPeerAsync(pointer(dst), dst_dev->index, pointer(src), src_dev->index, size, stream);
}

static int hip_event_create(struct st_stream_device *dev, bool timed, void **out)
{
    return fn_of(dev)->EventCreateWithFlags(out, timed ? 0 : 2 /* without time */);
}

static int hip_event_destroy(struct st_stream_device *dev, void *event)
{
    return fn_of(dev)->EventDestroy(event);
}

static int hip_event_record(struct st_stream_device *dev, void *event, void *stream)
{
    return fn_of(dev)->EventRecord(event, stream);
}

static int hip_event_wait(struct st_stream_device *dev, void *event, void *stream)
{
    return fn_of(dev)->StreamWaitEvent(stream, event, 0);
}

static int hip_event_sync(struct st_stream_device *dev, void *event)
{
    return fn_of(dev)->EventSynchronize(event);
}

static int hip_event_query(struct st_stream_device *dev, void *event)
{
    return fn_of(dev)->EventQuery(event);
}

static int hip_event_elapsed(struct st_stream_device *dev, void *from, void *to, float *milliseconds)
{
    return fn_of(dev)->EventElapsedTime(milliseconds, from, to);
}

static int hip_module_load(struct st_stream_device *dev, const void *image, void **out, char *log, size_t log_size)
{
    if (log_size)
        log[0] = 0; /* nothing is compiled at load */
    return fn_of(dev)->ModuleLoadData(out, image);
}

static int hip_module_unload(struct st_stream_device *dev, void *module)
{
    return fn_of(dev)->ModuleUnload(module);
}

static int hip_get_function(struct st_stream_device *dev, void *module, const char *name, int dynamic_local, void **out,
                            struct st_function_info *info)
{
    const struct hip_functions *fn = fn_of(dev);
    (void)dynamic_local; /* code objects state all of their local memory */
    int result = fn->ModuleGetFunction(out, module, name);
    if (result != 0)
        return result;
    int value = 0;
    if (fn->FuncGetAttribute(&value, 4, *out) == 0)
        info->registers = value;
    if (fn->FuncGetAttribute(&value, 3, *out) == 0)
        info->spills = value;
    if (fn->FuncGetAttribute(&value, 0, *out) == 0)
        info->max_group = value;
    return 0;
}

static int hip_launch(struct st_stream_device *dev, void *function, const uint32_t grid[3], const uint16_t group[3],
                      unsigned dynamic_local, bool overlaps, void *stream, void **params)
{
    (void)overlaps; /* no code object waits for the kernels before it */
    return fn_of(dev)->ModuleLaunchKernel(function, grid[0], grid[1], grid[2], group[0], group[1], group[2],
                                          dynamic_local, stream, params, NULL);
}

static int hip_capture_begin(struct st_stream_device *dev, void *stream)
{
    return fn_of(dev)->StreamBeginCapture(stream, 1 /* restricts this thread only */);
}

static int hip_capture_end(struct st_stream_device *dev, void *stream, void **graph)
{
    return fn_of(dev)->StreamEndCapture(stream, graph);
}

static int hip_graph_finish(struct st_stream_device *dev, void *graph, void **exec)
{
    int result = fn_of(dev)->GraphInstantiateWithFlags(exec, graph, 0);
    fn_of(dev)->GraphDestroy(graph);
    return result;
}

static int hip_graph_launch(struct st_stream_device *dev, void *exec, void *stream)
{
    return fn_of(dev)->GraphLaunch(exec, stream);
}

static int hip_graph_destroy(struct st_stream_device *dev, void *exec)
{
    return fn_of(dev)->GraphExecDestroy(exec);
}

/* No wait_value: up to 7.x it is a shader that polls host memory, whatever the device attribute says. */
static const struct st_stream_api hip_api = {
    .make_current = hip_make_current,
    .describe = hip_describe_result,
    .sticky = hip_sticky,
    .sync = hip_sync,
    .memory = hip_memory,
    .allocate = hip_allocate,
    .release = hip_release,
    .host_allocate = hip_host_allocate,
    .host_free = hip_host_free,
    .host_register = hip_host_register,
    .host_unregister = hip_host_unregister,
    .host_address = hip_host_address,
    .stream_create = hip_stream_create,
    .stream_destroy = hip_stream_destroy,
    .stream_sync = hip_stream_sync,
    .copy_in = hip_copy_in,
    .copy_out = hip_copy_out,
    .copy = hip_copy,
    .fill = hip_fill,
    .peer_enable = hip_peer_enable,
    .peer_copy = hip_peer_copy,
    .event_create = hip_event_create,
    .event_destroy = hip_event_destroy,
    .event_record = hip_event_record,
    .event_wait = hip_event_wait,
    .event_sync = hip_event_sync,
    .event_query = hip_event_query,
    .event_elapsed = hip_event_elapsed,
    .module_load = hip_module_load,
    .module_unload = hip_module_unload,
    .function = hip_get_function,
    .launch = hip_launch,
    .capture_begin = hip_capture_begin,
    .capture_end = hip_capture_end,
    .graph_finish = hip_graph_finish,
    .graph_launch = hip_graph_launch,
    .graph_destroy = hip_graph_destroy,
};

/* ---- what the kernel driver says, without the library ---- */

struct card {
    unsigned domain, bus, device;
    uint64_t version; /* gfx_target_version, 0 when unknown */
};

/* The value of a "name value" line, 0 when there is none. */
static uint64_t property(const char *text, const char *name)
{
    size_t length = strlen(name);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, length) == 0 && line[length] == ' ')
            return strtoull(line + length + 1, NULL, 10);
    }
    return 0;
}

static bool read_card(const char *directory, const char *node, struct card *out)
{
    char path[512], *text = NULL;
    size_t size;
    int n = snprintf(path, sizeof path, "%s/%s/properties", directory, node);
    if (n < 0 || (size_t)n >= sizeof path || st_read_file(path, 1 << 16, &text, &size, NULL) != STRATA_OK)
        return false;
    uint64_t location = property(text, "location_id");
    *out = (struct card){(unsigned)property(text, "domain"), (unsigned)(location >> 8 & 0xFF),
                         (unsigned)(location >> 3 & 0x1F), property(text, "gfx_target_version")};
    bool gpu = property(text, "simd_count") > 0;
    free(text);
    return gpu;
}

/* The cards that the kernel driver lists, at most capacity of them. */
static size_t list_cards(const char *sysfs, struct card *out, size_t capacity)
{
    char directory[400];
    snprintf(directory, sizeof directory, "%s/devices/virtual/kfd/kfd/topology/nodes", sysfs);
    DIR *nodes = opendir(directory);
    size_t count = 0;
    /* cppcheck-suppress readdirCalled ; the stream is this call's own */
    for (struct dirent *node; nodes && count < capacity && (node = readdir(nodes)) != NULL;)
        if (node->d_name[0] >= '0' && node->d_name[0] <= '9' && read_card(directory, node->d_name, &out[count]))
            count++;
    if (nodes)
        closedir(nodes);
    return count;
}

/* ---- opening ---- */

static void hip_close(struct st_rt *rt)
{
    struct hip *hip = (struct hip *)rt;
    if (!hip)
        return;
    st_stream_rt_free(&hip->common);
    free(hip);
}

/* Why there may be no device although there is a card. */
static enum strata_result no_device(const char *used, const char *sysfs, struct strata_error *err)
{
    struct card cards[16];
    size_t count = list_cards(sysfs, cards, 16);
    if (count == 0)
        return st_fail(err, STRATA_E_UNSUPPORTED, "%s: no device", used);
    char arch[32] = "AMD GPU";
    st_arch_from_version(cards[0].version, arch);
    const char *why = "this version of the library does not know it, or its device files cannot be opened";
    if (access("/dev/kfd", F_OK) != 0)
        why = "/dev/kfd is missing";
    else if (access("/dev/kfd", R_OK | W_OK) != 0)
        why = "no permission for /dev/kfd: the user must be in the groups render and video";
    return st_fail(err, STRATA_E_UNSUPPORTED,
                   "%s: no device, but the kernel driver sees %zu (%s at %04x:%02x:%02x.0): %s", used, count, arch,
                   cards[0].domain, cards[0].bus, cards[0].device, why);
}

static enum strata_result start(struct hip *hip, struct strata_error *err)
{
    enum strata_result r = st_library_symbols(hip->library, hip->used, hip_symbols,
                                              sizeof hip_symbols / sizeof hip_symbols[0], &hip->fn, err);
    if (r != STRATA_OK)
        return r;
    if (!hip->fn.GetDeviceProperties && !hip->fn.GetDevicePropertiesR0600)
        return st_fail(err, STRATA_E_UNSUPPORTED, "%s has no hipGetDeviceProperties", hip->used);
    hip->fn.Init(0); /* its result differs by version where there is no device; the count decides */
    int result = hip->fn.RuntimeGetVersion(&hip->version);
    if (result == 0 && hip->version < VERSION_MINIMUM)
        return st_fail(err, STRATA_E_UNSUPPORTED, "%s: HIP %d.%d, at least 5.2 is needed", hip->used,
                       hip->version / 10000000, hip->version / 100000 % 100);
    if (result == 0)
        result = hip->fn.GetDeviceCount(&hip->common.count);
    if (result == 100 || result == 101 || (result == 0 && hip->common.count <= 0))
        return no_device(hip->used, hip->sysfs, err);
    if (result != 0) {
        char said[256];
        words(&hip->fn, result, said, sizeof said);
        return st_fail(err, STRATA_E_UNSUPPORTED, "%s: %s", hip->used, said);
    }
    return STRATA_OK;
}

/* A library of a later version than those known here, for the message. */
static int newer_version(void)
{
    for (int version = 8; version <= 12; version++) {
        char name[32];
        snprintf(name, sizeof name, "libamdhip64.so.%d", version);
        void *library = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
        if (library)
            return version;
    }
    return 0;
}

static enum strata_result hip_open(const struct st_runtime_options *options, struct st_rt **out,
                                   struct strata_error *err)
{
    static const char *const names[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", NULL};
    struct hip *hip = calloc(1, sizeof *hip);
    if (!hip)
        return st_fail(err, STRATA_E_MEMORY, "no memory for the HIP runtime");
    enum strata_result r = st_library_open(options->library, names, &hip->library, hip->used, err);
    if (r != STRATA_OK) {
        int newer = options->library ? 0 : newer_version();
        if (newer)
            r = st_fail(err, STRATA_E_UNSUPPORTED, "found libamdhip64.so.%d, a version that this build does not know",
                        newer);
        free(hip);
        return r;
    }
    st_stream_rt_init(&hip->common, &hip_api, ST_IMAGE_ELF);
    snprintf(hip->sysfs, sizeof hip->sysfs, "%s", options->sysfs ? options->sysfs : "/sys");
    r = start(hip, err);
    if (r != STRATA_OK) {
        hip_close((struct st_rt *)hip);
        return r;
    }
    *out = (struct st_rt *)hip;
    return STRATA_OK;
}

static int field(const uint8_t *properties, uint16_t offset)
{
    int32_t value;
    memcpy(&value, properties + offset, sizeof value);
    return value;
}

static bool architecture_name(const char *text)
{
    if (strncmp(text, "gfx", 3) != 0)
        return false;
    size_t digits = strspn(text + 3, "0123456789abcdef");
    return digits >= 3 && digits <= 8 && (text[3 + digits] == 0 || text[3 + digits] == ':');
}

/* Reads the properties by the layout that belongs to the symbol; anything that does not look right is a failure. */
static enum strata_result read_properties(const struct hip *hip, int index, struct st_device_info *info,
                                          struct strata_error *err)
{
    enum { BUFFER = 4096, MARK = 0xA5 };
    uint8_t properties[BUFFER];
    const struct hip_layout *layout = hip->fn.GetDevicePropertiesR0600 ? &layout_6 : &layout_5;
    memset(properties, 0, layout->size);
    memset(properties + layout->size, MARK, BUFFER - layout->size);
    int result = hip->fn.GetDevicePropertiesR0600 ? hip->fn.GetDevicePropertiesR0600(properties, index)
                                                  : hip->fn.GetDeviceProperties(properties, index);
    if (result != 0) {
        char said[256];
        words(&hip->fn, result, said, sizeof said);
        return st_fail(err, STRATA_E_DEVICE, "hip:%d: asking for its properties: %s", index, said);
    }
    for (size_t i = layout->size; i < BUFFER; i++)
        if (properties[i] != MARK)
            return st_fail(err, STRATA_E_DEVICE, "hip:%d: %s fills a properties structure of an unknown layout", index,
                           hip->used);
    const char *arch = (const char *)properties + layout->arch;
    if (!memchr(arch, 0, 256) || !architecture_name(arch))
        return st_fail(err, STRATA_E_DEVICE,
                       "hip:%d: the architecture name in the properties is not one (unknown layout?)", index);
    st_printable(info->model, sizeof info->model, (const char *)properties + layout->name,
                 strnlen((const char *)properties + layout->name, 256));
    snprintf(info->arch_driver, sizeof info->arch_driver, "%.90s", arch);
    snprintf(info->arch, sizeof info->arch, "%.*s", (int)strcspn(arch, ":"), arch);
    uint64_t local;
    memcpy(&local, properties + layout->local_bytes, sizeof local);
    info->local_bytes = local;
    info->lanes = (uint32_t)field(properties, layout->lanes);
    info->units = (uint32_t)field(properties, layout->units);
    info->max_group = (uint32_t)field(properties, layout->max_group);
    if (field(properties, layout->integrated))
        info->features |= ST_FEATURE_INTEGRATED;
    if (field(properties, layout->display))
        info->features |= ST_FEATURE_DISPLAY;
    if (field(properties, layout->map_host))
        info->features |= ST_FEATURE_HOST_MAPPED;
    return STRATA_OK;
}

/* Compares the architecture with the kernel driver's. HSA_OVERRIDE_GFX_VERSION makes the library report another one. */
static void cross_check(const struct hip *hip, struct st_device_info *info)
{
    unsigned domain, bus, device;
    struct card cards[64];
    size_t count = list_cards(hip->sysfs, cards, 64);
    if (sscanf(info->pci, "%x:%x:%x", &domain, &bus, &device) != 3)
        return;
    char truth[32];
    for (size_t i = 0; i < count; i++) {
        if (cards[i].domain != domain || cards[i].bus != bus || cards[i].device != device ||
            !st_arch_from_version(cards[i].version, truth))
            continue;
        const char *override = getenv("HSA_OVERRIDE_GFX_VERSION");
        if (strcmp(truth, info->arch) == 0)
            return;
        if (override && override[0])
            snprintf(info->note, sizeof info->note,
                     "the card is %s and used as %s because HSA_OVERRIDE_GFX_VERSION is set", truth, info->arch);
        else
            snprintf(info->unusable, sizeof info->unusable, "the library says %s, the kernel driver says %s",
                     info->arch, truth);
        return;
    }
}

static enum strata_result hip_describe(struct st_rt *rt, int index, struct st_device_info *out,
                                       struct strata_error *err)
{
    const struct hip *hip = (const struct hip *)rt;
    struct st_device_info info = {0};
    enum strata_result r = read_properties(hip, index, &info, err);
    if (r != STRATA_OK)
        return r;
    size_t memory = 0;
    int result = hip->fn.DeviceTotalMem(&memory, index);
    if (result != 0) {
        char said[256];
        words(&hip->fn, result, said, sizeof said);
        return st_fail(err, STRATA_E_DEVICE, "hip:%d: asking for its memory: %s", index, said);
    }
    info.memory = info.max_allocation = memory;
    if (hip->fn.DeviceGetPCIBusId(info.pci, sizeof info.pci, index) != 0)
        info.pci[0] = 0;
    snprintf(info.driver, sizeof info.driver, "HIP %d.%d.%d", hip->version / 10000000, hip->version / 100000 % 100,
             hip->version % 100000);
    info.features |= ST_FEATURE_GRAPHS | (hip->common.count > 1 ? ST_FEATURE_PEER : 0);
    if (hip->version >= VERSION_GENERIC)
        info.features |= ST_FEATURE_GENERIC;
    if (hip->version < VERSION_FAULTS_RETURN)
        info.features |= ST_FEATURE_FAULT_ABORTS;
    if (info.lanes != st_arch_lanes(info.arch))
        snprintf(info.unusable, sizeof info.unusable, "the library says waves of %u, %s has %u", info.lanes, info.arch,
                 st_arch_lanes(info.arch));
    cross_check(hip, &info);
    *out = info;
    return STRATA_OK;
}

static void hip_device_close(struct st_rt_device *rt_dev)
{
    struct st_stream_device *dev = (struct st_stream_device *)rt_dev;
    if (!dev)
        return;
    st_stream_device_free(dev);
    free(dev);
}

static enum strata_result hip_device_open(struct st_rt *rt, int index, struct st_rt_device **out,
                                          struct strata_error *err)
{
    struct hip *hip = (struct hip *)rt;
    struct st_device_info info;
    enum strata_result r = hip_describe(rt, index, &info, err);
    if (r != STRATA_OK)
        return r;
    char name[16];
    snprintf(name, sizeof name, "hip:%d", index);
    struct st_stream_device *dev = calloc(1, sizeof *dev);
    if (!dev)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for the device", name);
    st_stream_device_init(dev, &hip->common, index, name, &info);
    int result = hip->fn.SetDevice(index);
    if (result != 0) {
        r = st_stream_fail(dev, result, "opening the device", err);
        hip_device_close((struct st_rt_device *)dev);
        return r;
    }
    *out = (struct st_rt_device *)dev;
    return STRATA_OK;
}

extern const struct st_runtime st_runtime_hip;
const struct st_runtime st_runtime_hip = {
    .name = "hip",
    .image = ST_IMAGE_ELF,
    .rank = 0,
    .open = hip_open,
    .close = hip_close,
    .describe = hip_describe,
    .device_open = hip_device_open,
    .device_close = hip_device_close,
    ST_STREAM_RUNTIME,
};
