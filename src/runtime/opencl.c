/* Other GPUs (and CPUs, when named) through OpenCL (libOpenCL.so.1), opened when present.
 *
 * Kernels are the same OpenCL C text, compiled by the device's driver; what it compiled is kept in the cache directory
 * and is handed back only after our own hash of it matched, because a damaged binary can end the process inside a
 * driver. Device memory is shared virtual memory, so that addresses are real numbers on the device and tables of
 * pointers work. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <xxhash.h>

#include "base/checked.h"
#include "base/file.h"
#include "runtime/library.h"
#include "runtime/opencl_functions.h"
#include "runtime/runtime.h"

#define SYMBOL(name, result, params) {"cl" #name, NULL, offsetof(struct opencl_functions, name), true},
static const struct st_symbol opencl_symbols[] = {OPENCL_FUNCTIONS(SYMBOL)};
#undef SYMBOL

struct place {
    void *platform, *device;
};

struct opencl {
    void *library;
    char used[256];
    char cache[400]; /* directory, "" for none */
    int count;
    struct place *places;
    struct opencl_functions fn;
};

struct allocation {
    void *base; /* what the driver gave */
    st_addr address;
    uint64_t size;
};

struct opencl_device {
    struct opencl *rt;
    char name[16];
    void *platform, *device, *context;
    uint64_t memory;
    pthread_mutex_t lock; /* guards everything below */
    bool lost, given_up; /* given up: the driver is not asked to free anything any more */
    struct strata_error first;
    struct allocation *allocations;
    size_t allocation_count, allocation_capacity;
    uint64_t allocated;
    uint32_t generation; /* changes with every allocation and release */
    struct opencl_queue *queues;
};

struct opencl_queue {
    struct opencl_device *dev;
    void *queue;
    struct opencl_queue *next;
};

struct opencl_event {
    struct opencl_device *dev;
    void *event; /* of the latest record, or NULL */
};

/* Every kernel is a program of its own, compiled when it is asked for: drivers take minutes for a file of many. */
struct opencl_module {
    struct opencl_device *dev;
    const char *source; /* the caller's */
    uint64_t size;      /* of the source with its NUL */
    char name[96];
    struct opencl_kernel *kernels;
};

struct opencl_kernel {
    struct opencl_module *module;
    void *program, *kernel;
    const struct st_kernel_desc *desc;
    pthread_mutex_t lock; /* arguments belong to the kernel object until it is in the queue */
    uint32_t generation;  /* of the device's allocations that the kernel object was told */
    struct opencl_kernel *next;
};

static const struct opencl_functions *fn_of(const struct opencl_device *dev)
{
    return &dev->rt->fn;
}

/* ---- results ---- */

static const char *result_name(int32_t result)
{
    static const struct {
        int32_t result;
        const char *name;
    } names[] = {
        {-1, "device not found"},
        {-2, "device not available"},
        {-3, "compiler not available"},
        {-4, "memory allocation failed"},
        {-5, "out of resources"},
        {-6, "out of host memory"},
        {-7, "no profiling"},
        {-11, "build failed"},
        {-14, "a command before it failed"},
        {-30, "invalid value"},
        {-33, "invalid device"},
        {-34, "invalid context"},
        {-36, "invalid queue"},
        {-38, "invalid memory object"},
        {-42, "invalid binary"},
        {-43, "invalid build options"},
        {-45, "no executable"},
        {-46, "no kernel of this name"},
        {-50, "invalid argument value"},
        {-51, "invalid argument size"},
        {-52, "arguments missing"},
        {-54, "invalid group size"},
        {-58, "invalid event"},
        {-59, "invalid operation"},
        {-61, "invalid buffer size"},
        {-63, "invalid grid size"},
        {-1001, "no platform"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].result == result)
            return names[i].name;
    return "unknown result";
}

/* lasting: the result came from waiting for work, so the device cannot be trusted any more. */
static enum strata_result device_fail(struct opencl_device *dev, int32_t result, bool lasting, const char *what,
                                      struct strata_error *err)
{
    bool memory = result == CL_MEM_ALLOCATION_FAILURE || result == CL_OUT_OF_HOST_MEMORY;
    struct strata_error mine = {0};
    enum strata_result r = st_fail(&mine, memory ? STRATA_E_LIMIT : STRATA_E_DEVICE, "%s: %s: %s (%d)", dev->name, what,
                                   result_name(result), result);
    if (lasting && !memory) {
        pthread_mutex_lock(&dev->lock);
        if (!dev->lost) {
            dev->lost = true;
            dev->first = mine;
        }
        mine = dev->first;
        pthread_mutex_unlock(&dev->lock);
    }
    if (err)
        *err = mine;
    return r;
}

static enum strata_result enter(struct opencl_device *dev, struct strata_error *err)
{
    pthread_mutex_lock(&dev->lock);
    bool lost = dev->lost;
    struct strata_error first = dev->first;
    pthread_mutex_unlock(&dev->lock);
    if (lost && err)
        *err = first;
    return lost ? first.code : STRATA_OK;
}

static void opencl_give_up(struct st_rt_device *rt_dev, const char *why)
{
    struct opencl_device *dev = (struct opencl_device *)rt_dev;
    pthread_mutex_lock(&dev->lock);
    if (!dev->lost)
        st_fail(&dev->first, STRATA_E_DEVICE, "%s: %s", dev->name, why);
    dev->lost = dev->given_up = true;
    pthread_mutex_unlock(&dev->lock);
}

static bool may_free(struct opencl_device *dev)
{
    pthread_mutex_lock(&dev->lock);
    bool given_up = dev->given_up;
    pthread_mutex_unlock(&dev->lock);
    return !given_up;
}

#define CALL(dev, lasting, what, call, err)                                                                            \
    do {                                                                                                               \
        enum strata_result entered_ = enter(dev, err);                                                                 \
        if (entered_ != STRATA_OK)                                                                                     \
            return entered_;                                                                                           \
        int32_t result_ = (call);                                                                                      \
        if (result_ != 0)                                                                                              \
            return device_fail(dev, result_, lasting, what, err);                                                      \
    } while (0)

/* ---- opening ---- */

static void opencl_close(struct st_rt *rt)
{
    struct opencl *cl = (struct opencl *)rt;
    if (!cl)
        return;
    free(cl->places);
    free(cl);
}

static enum strata_result list_devices(struct opencl *cl, struct strata_error *err)
{
    enum { MOST = 32 };
    void *platforms[MOST], *devices[MOST];
    uint32_t platform_count = 0;
    int32_t result = cl->fn.GetPlatformIDs(MOST, platforms, &platform_count);
    if (result == CL_NO_PLATFORM || (result == 0 && platform_count == 0))
        return st_fail(err, STRATA_E_UNSUPPORTED, "%s: no platform (no vendor's driver is installed for it)", cl->used);
    if (result != 0)
        return st_fail(err, STRATA_E_UNSUPPORTED, "%s: %s (%d)", cl->used, result_name(result), result);
    for (uint32_t i = 0; i < platform_count && i < MOST; i++) {
        uint32_t count = 0;
        if (cl->fn.GetDeviceIDs(platforms[i], 0xFFFFFFFF /* all types */, MOST, devices, &count) != 0)
            continue;
        count = count < MOST ? count : MOST;
        struct place *places = realloc(cl->places, ((size_t)cl->count + count) * sizeof *places);
        if (!places)
            return st_fail(err, STRATA_E_MEMORY, "no memory for the list of OpenCL devices");
        cl->places = places;
        for (uint32_t j = 0; j < count; j++)
            places[cl->count++] = (struct place){platforms[i], devices[j]};
    }
    return cl->count ? STRATA_OK : st_fail(err, STRATA_E_UNSUPPORTED, "%s: no device", cl->used);
}

static enum strata_result opencl_open(const struct st_runtime_options *options, struct st_rt **out,
                                      struct strata_error *err)
{
    static const char *const names[] = {"libOpenCL.so.1", NULL};
    struct opencl *cl = calloc(1, sizeof *cl);
    if (!cl)
        return st_fail(err, STRATA_E_MEMORY, "no memory for the OpenCL runtime");
    if (options->cache)
        snprintf(cl->cache, sizeof cl->cache, "%s", options->cache);
    enum strata_result r = st_library_open(options->library, names, &cl->library, cl->used, err);
    if (r != STRATA_OK) {
        free(cl);
        return r;
    }
    r = st_library_symbols(cl->library, cl->used, opencl_symbols, sizeof opencl_symbols / sizeof opencl_symbols[0],
                           &cl->fn, err);
    if (r == STRATA_OK)
        r = list_devices(cl, err);
    if (r != STRATA_OK) {
        opencl_close((struct st_rt *)cl);
        return r;
    }
    *out = (struct st_rt *)cl;
    return STRATA_OK;
}

static int opencl_count(const struct st_rt *rt)
{
    return ((const struct opencl *)rt)->count;
}

/* An integer property of up to 8 bytes, 0 when the driver does not have it. */
static uint64_t number(const struct opencl *cl, void *device, uint32_t what)
{
    uint64_t value = 0;
    size_t got = 0;
    if (cl->fn.GetDeviceInfo(device, what, sizeof value, &value, &got) != 0 || got > sizeof value)
        return 0;
    return value;
}

/* A text property in printable form; the caller frees it. NULL when the driver does not have it. */
static char *text(const struct opencl *cl, void *device, uint32_t what)
{
    size_t size = 0;
    if (cl->fn.GetDeviceInfo(device, what, 0, NULL, &size) != 0 || size == 0 || size > 1 << 20)
        return NULL;
    char *value = calloc(1, size + 1);
    if (value && cl->fn.GetDeviceInfo(device, what, size, value, NULL) != 0) {
        free(value);
        return NULL;
    }
    return value;
}

static bool has_word(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *p = list; p && (p = strstr(p, word)) != NULL; p += length)
        if ((p == list || p[-1] == ' ') && (p[length] == ' ' || p[length] == 0))
            return true;
    return false;
}

static void find_pci(const struct opencl *cl, void *device, const char *extensions, char out[16])
{
    uint32_t pci[4] = {0};
    uint8_t topology[24] = {0};
    if (has_word(extensions, "cl_khr_pci_bus_info") &&
        cl->fn.GetDeviceInfo(device, D_PCI, sizeof pci, pci, NULL) == 0) {
        /* domain, bus, device, function */
    } else if (has_word(extensions, "cl_nv_device_attribute_query") &&
               cl->fn.GetDeviceInfo(device, D_NV_BUS, 4, &pci[1], NULL) == 0) {
        uint32_t slot = (uint32_t)number(cl, device, D_NV_SLOT);
        pci[0] = (uint32_t)number(cl, device, D_NV_DOMAIN);
        pci[2] = slot >> 3;
        pci[3] = slot & 7;
    } else if (has_word(extensions, "cl_amd_device_attribute_query") &&
               cl->fn.GetDeviceInfo(device, D_AMD_TOPOLOGY, sizeof topology, topology, NULL) == 0 && topology[0] == 1) {
        pci[1] = topology[21];
        pci[2] = topology[22];
        pci[3] = topology[23];
    } else {
        return;
    }
    snprintf(out, 16, "%04x:%02x:%02x.%x", pci[0] & 0xFFFF, pci[1] & 0xFF, pci[2] & 0xFF, pci[3] & 0xF);
}

/* The newest of OpenCL C 3.0 and 1.2 that the device compiles. */
static const char *language(const struct opencl *cl, void *device)
{
    struct {
        uint32_t version;
        char name[64];
    } versions[32];
    size_t got = 0;
    if (cl->fn.GetDeviceInfo(device, D_C_VERSIONS, sizeof versions, versions, &got) == 0)
        for (size_t i = 0; i < got / sizeof versions[0]; i++)
            if (versions[i].version >> 22 >= 3)
                return "-cl-std=CL3.0";
    return "-cl-std=CL1.2";
}

/* Says what a device lacks, "" when it can be used. */
static void find_obstacle(const struct opencl *cl, void *device, const char *version, char *out, size_t size)
{
    uint64_t fp = number(cl, device, D_SINGLE_FP);
    int major = version && strncmp(version, "OpenCL ", 7) == 0 ? version[7] - '0' : 0;
    const char *lack = NULL;
    if (major < 2)
        lack = "a driver for OpenCL 2.0 or newer";
    else if (!number(cl, device, D_AVAILABLE))
        lack = "availability (the driver says so)";
    else if (!number(cl, device, D_COMPILER))
        lack = "a compiler";
    else if (!number(cl, device, D_LITTLE_ENDIAN) || number(cl, device, D_ADDRESS_BITS) != 64)
        lack = "64-bit little-endian memory";
    else if (!(number(cl, device, D_SVM) & 1))
        lack = "shared virtual memory";
    else if ((fp & 0xA0) != 0xA0)
        lack = "fused multiply-add or correctly rounded division";
    if (lack)
        snprintf(out, size, "the device lacks %s", lack);
}

static enum strata_result opencl_describe(struct st_rt *rt, int index, struct st_device_info *out,
                                          struct strata_error *err)
{
    const struct opencl *cl = (const struct opencl *)rt;
    void *device = cl->places[index].device;
    struct st_device_info info = {.arch = "opencl", .arch_driver = "opencl", .lanes = 1};
    char *name = text(cl, device, D_NAME), *board = NULL, *extensions = text(cl, device, D_EXTENSIONS);
    char *version = text(cl, device, D_VERSION), *driver = text(cl, device, D_DRIVER);
    if (!name || !version || !driver || !extensions) {
        free(name);
        free(extensions);
        free(version);
        free(driver);
        return st_fail(err, STRATA_E_DEVICE, "opencl:%d: the driver does not describe the device", index);
    }
    if (has_word(extensions, "cl_amd_device_attribute_query"))
        board = text(cl, device, D_AMD_BOARD); /* the plain name is the architecture there */
    const char *model = board ? board : name;
    st_printable(info.model, sizeof info.model, model, strlen(model));
    char said[128];
    snprintf(info.driver, sizeof info.driver, "OpenCL %.16s", st_printable(said, sizeof said, driver, strlen(driver)));
    find_pci(cl, device, extensions, info.pci);
    unsigned char uuid[16];
    if (has_word(extensions, "cl_khr_device_uuid") &&
        cl->fn.GetDeviceInfo(device, D_UUID, sizeof uuid, uuid, NULL) == 0)
        for (int i = 0; i < 16; i++)
            snprintf(info.uuid + 2 * i, 3, "%02x", uuid[i]);
    info.units = (uint32_t)number(cl, device, D_UNITS);
    info.max_group = (uint32_t)number(cl, device, D_MAX_GROUP);
    info.local_bytes = number(cl, device, D_LOCAL);
    info.memory = number(cl, device, D_MEMORY);
    info.max_allocation = number(cl, device, D_MAX_ALLOCATION);
    if (number(cl, device, D_TYPE) & DEVICE_TYPE_CPU)
        info.features |= ST_FEATURE_CPU;
    if (number(cl, device, D_UNIFIED))
        info.features |= ST_FEATURE_INTEGRATED;
    find_obstacle(cl, device, version, info.unusable, sizeof info.unusable);
    free(name);
    free(board);
    free(extensions);
    free(version);
    free(driver);
    *out = info;
    return STRATA_OK;
}

static void opencl_device_close(struct st_rt_device *rt_dev)
{
    struct opencl_device *dev = (struct opencl_device *)rt_dev;
    if (!dev)
        return;
    for (size_t i = 0; i < dev->allocation_count && !dev->given_up; i++)
        fn_of(dev)->SVMFree(dev->context, dev->allocations[i].base);
    if (!dev->given_up)
        fn_of(dev)->ReleaseContext(dev->context);
    pthread_mutex_destroy(&dev->lock);
    free(dev->allocations);
    free(dev);
}

static enum strata_result opencl_device_open(struct st_rt *rt, int index, struct st_rt_device **out,
                                             struct strata_error *err)
{
    struct opencl *cl = (struct opencl *)rt;
    struct opencl_device *dev = calloc(1, sizeof *dev);
    if (!dev)
        return st_fail(err, STRATA_E_MEMORY, "opencl:%d: no memory for the device", index);
    dev->rt = cl;
    dev->platform = cl->places[index].platform;
    dev->device = cl->places[index].device;
    dev->memory = number(cl, dev->device, D_MEMORY);
    snprintf(dev->name, sizeof dev->name, "opencl:%d", index);
    pthread_mutex_init(&dev->lock, NULL);
    const intptr_t properties[] = {CL_CONTEXT_PLATFORM, (intptr_t)dev->platform, 0};
    int32_t result = 0;
    dev->context = cl->fn.CreateContext(properties, 1, &dev->device, NULL, NULL, &result);
    if (!dev->context) {
        enum strata_result r = device_fail(dev, result, false, "opening the device", err);
        pthread_mutex_destroy(&dev->lock);
        free(dev);
        return r;
    }
    *out = (struct st_rt_device *)dev;
    return STRATA_OK;
}

/* ---- memory ---- */

static enum strata_result opencl_memory(struct st_rt_device *rt_dev, uint64_t *free_bytes, uint64_t *total,
                                        struct strata_error *err)
{
    struct opencl_device *dev = (struct opencl_device *)rt_dev;
    enum strata_result r = enter(dev, err);
    if (r != STRATA_OK)
        return r;
    /* The standard has no question for free memory: what others use is not known. */
    pthread_mutex_lock(&dev->lock);
    *free_bytes = dev->memory > dev->allocated ? dev->memory - dev->allocated : 0;
    pthread_mutex_unlock(&dev->lock);
    *total = dev->memory;
    return STRATA_OK;
}

static enum strata_result opencl_allocate(struct st_rt_device *rt_dev, uint64_t size, st_addr *out,
                                          struct strata_error *err)
{
    enum { ALIGN = 256 };
    struct opencl_device *dev = (struct opencl_device *)rt_dev;
    enum strata_result r = enter(dev, err);
    if (r != STRATA_OK)
        return r;
    uint64_t padded; /* drivers need not align to more than 128 */
    if (!st_add_u64(size, ALIGN, &padded))
        return st_fail(err, STRATA_E_LIMIT, "%s: allocating %llu bytes: too large", dev->name,
                       (unsigned long long)size);
    pthread_mutex_lock(&dev->lock);
    if (dev->allocation_count == dev->allocation_capacity) {
        size_t capacity = dev->allocation_capacity ? 2 * dev->allocation_capacity : 16;
        struct allocation *list = realloc(dev->allocations, capacity * sizeof *list);
        if (list) {
            dev->allocations = list;
            dev->allocation_capacity = capacity;
        }
    }
    void *base = NULL;
    if (dev->allocation_count < dev->allocation_capacity)
        base = fn_of(dev)->SVMAlloc(dev->context, 1 /* read and write */, padded, 0);
    if (base) {
        st_addr address = ((st_addr)(uintptr_t)base + ALIGN - 1) & ~(st_addr)(ALIGN - 1);
        dev->allocations[dev->allocation_count++] = (struct allocation){base, address, padded};
        dev->allocated += padded;
        dev->generation++;
        *out = address;
    }
    pthread_mutex_unlock(&dev->lock);
    return base ? STRATA_OK
                : st_fail(err, STRATA_E_LIMIT, "%s: allocating %llu bytes: out of memory", dev->name,
                          (unsigned long long)size);
}

static void opencl_release(struct st_rt_device *rt_dev, st_addr address)
{
    struct opencl_device *dev = (struct opencl_device *)rt_dev;
    pthread_mutex_lock(&dev->lock);
    for (size_t i = 0; i < dev->allocation_count; i++)
        if (dev->allocations[i].address == address) {
            if (!dev->given_up)
                fn_of(dev)->SVMFree(dev->context, dev->allocations[i].base);
            dev->allocated -= dev->allocations[i].size;
            dev->allocations[i] = dev->allocations[--dev->allocation_count];
            dev->generation++;
            break;
        }
    pthread_mutex_unlock(&dev->lock);
}

static enum strata_result opencl_host_allocate(struct st_rt_device *rt_dev, uint64_t size, void **out,
                                               struct strata_error *err)
{
    struct opencl_device *dev = (struct opencl_device *)rt_dev;
    void *memory = NULL;
    if (posix_memalign(&memory, 4096, size) != 0)
        return st_fail(err, STRATA_E_MEMORY, "%s: no host memory for %llu bytes", dev->name, (unsigned long long)size);
    *out = memory;
    return STRATA_OK;
}

static void opencl_host_free(struct st_rt_device *rt_dev, void *memory)
{
    if (may_free((struct opencl_device *)rt_dev))
        free(memory);
}

static enum strata_result opencl_host_register(struct st_rt_device *rt_dev, void *memory, uint64_t size,
                                               struct strata_error *err)
{
    (void)memory;
    (void)size;
    return enter((struct opencl_device *)rt_dev, err);
}

static bool opencl_host_unregister(struct st_rt_device *rt_dev, void *memory)
{
    (void)memory;
    return may_free((struct opencl_device *)rt_dev);
}

static enum strata_result opencl_host_address(struct st_rt_device *rt_dev, void *memory, st_addr *out,
                                              struct strata_error *err)
{
    (void)memory;
    (void)out;
    return st_fail(err, STRATA_E_UNSUPPORTED, "%s: kernels cannot reach host memory",
                   ((struct opencl_device *)rt_dev)->name);
}

/* ---- queues, copies, events ---- */

static enum strata_result opencl_queue_create(struct st_rt_device *rt_dev, enum st_queue_kind kind,
                                              struct st_queue **out, struct strata_error *err)
{
    struct opencl_device *dev = (struct opencl_device *)rt_dev;
    (void)kind; /* urgency is an extension that few drivers have */
    enum strata_result r = enter(dev, err);
    if (r != STRATA_OK)
        return r;
    const uint64_t properties[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_PROFILING, 0};
    int32_t result = 0;
    void *handle = fn_of(dev)->CreateCommandQueueWithProperties(dev->context, dev->device, properties, &result);
    if (!handle)
        return device_fail(dev, result, false, "creating a queue", err);
    struct opencl_queue *queue = malloc(sizeof *queue);
    if (!queue) {
        fn_of(dev)->ReleaseCommandQueue(handle);
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for a queue", dev->name);
    }
    pthread_mutex_lock(&dev->lock);
    *queue = (struct opencl_queue){dev, handle, dev->queues};
    dev->queues = queue;
    pthread_mutex_unlock(&dev->lock);
    *out = (struct st_queue *)queue;
    return STRATA_OK;
}

static void opencl_queue_free(struct st_queue *rt_queue)
{
    struct opencl_queue *q = (struct opencl_queue *)rt_queue;
    if (!q)
        return;
    pthread_mutex_lock(&q->dev->lock);
    for (struct opencl_queue **link = &q->dev->queues; *link; link = &(*link)->next)
        if (*link == q) {
            *link = q->next;
            break;
        }
    pthread_mutex_unlock(&q->dev->lock);
    if (may_free(q->dev))
        fn_of(q->dev)->ReleaseCommandQueue(q->queue);
    free(q);
}

static enum strata_result opencl_queue_sync(struct st_queue *rt_queue, struct strata_error *err)
{
    struct opencl_queue *q = (struct opencl_queue *)rt_queue;
    CALL(q->dev, true, "waiting for a queue", fn_of(q->dev)->Finish(q->queue), err);
    return STRATA_OK;
}

static enum strata_result opencl_queue_flush(struct st_queue *rt_queue, struct strata_error *err)
{
    struct opencl_queue *q = (struct opencl_queue *)rt_queue;
    CALL(q->dev, false, "starting a queue", fn_of(q->dev)->Flush(q->queue), err);
    return STRATA_OK;
}

static enum strata_result opencl_device_sync(struct st_rt_device *rt_dev, struct strata_error *err)
{
    struct opencl_device *dev = (struct opencl_device *)rt_dev;
    enum strata_result r = enter(dev, err);
    pthread_mutex_lock(&dev->lock);
    int32_t result = 0;
    for (struct opencl_queue *q = dev->queues; r == STRATA_OK && result == 0 && q; q = q->next)
        result = fn_of(dev)->Finish(q->queue);
    pthread_mutex_unlock(&dev->lock);
    return result == 0 ? r : device_fail(dev, result, true, "waiting for the device", err);
}

static void *pointer(st_addr address)
{
    return (void *)(uintptr_t)address;
}

static enum strata_result enqueue_copy(struct opencl_queue *q, void *dst, const void *src, uint64_t size,
                                       const char *what, struct strata_error *err)
{
    CALL(q->dev, false, what, fn_of(q->dev)->EnqueueSVMMemcpy(q->queue, 0, dst, src, size, 0, NULL, NULL), err);
    return STRATA_OK;
}

static enum strata_result opencl_copy_in(struct st_queue *rt_queue, st_addr dst, const void *src, uint64_t size,
                                         struct strata_error *err)
{
    return enqueue_copy((struct opencl_queue *)rt_queue, pointer(dst), src, size, "copying to the device", err);
}

static enum strata_result opencl_copy_out(struct st_queue *rt_queue, void *dst, st_addr src, uint64_t size,
                                          struct strata_error *err)
{
    return enqueue_copy((struct opencl_queue *)rt_queue, dst, pointer(src), size, "copying from the device", err);
}

static enum strata_result opencl_copy(struct st_queue *rt_queue, st_addr dst, st_addr src, uint64_t size,
                                      struct strata_error *err)
{
    return enqueue_copy((struct opencl_queue *)rt_queue, pointer(dst), pointer(src), size, "copying on the device",
                        err);
}

static enum strata_result opencl_fill(struct st_queue *rt_queue, st_addr dst, uint8_t value, uint64_t size,
                                      struct strata_error *err)
{
    struct opencl_queue *q = (struct opencl_queue *)rt_queue;
    CALL(q->dev, false, "filling memory",
         fn_of(q->dev)->EnqueueSVMMemFill(q->queue, pointer(dst), &value, sizeof value, size, 0, NULL, NULL), err);
    return STRATA_OK;
}

static enum strata_result opencl_peer_enable(struct st_rt_device *rt_dev, struct st_rt_device *peer,
                                             struct strata_error *err)
{
    (void)peer;
    return st_fail(err, STRATA_E_UNSUPPORTED, "%s: no direct copies between devices",
                   ((struct opencl_device *)rt_dev)->name);
}

static enum strata_result opencl_peer_copy(struct st_queue *queue, struct st_rt_device *dst_dev, st_addr dst,
                                           struct st_rt_device *src_dev, st_addr src, uint64_t size,
                                           struct strata_error *err)
{
    (void)queue;
    (void)dst;
    (void)src;
    (void)size;
    return opencl_peer_enable(src_dev, dst_dev, err);
}

static enum strata_result opencl_event_create(struct st_rt_device *rt_dev, bool timed, struct st_event **out,
                                              struct strata_error *err)
{
    struct opencl_device *dev = (struct opencl_device *)rt_dev;
    (void)timed; /* all queues keep times */
    struct opencl_event *event = calloc(1, sizeof *event);
    if (!event)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for an event", dev->name);
    event->dev = dev;
    *out = (struct st_event *)event;
    return STRATA_OK;
}

static void opencl_event_free(struct st_event *rt_event)
{
    struct opencl_event *event = (struct opencl_event *)rt_event;
    if (event && event->event && may_free(event->dev))
        fn_of(event->dev)->ReleaseEvent(event->event);
    free(event);
}

static enum strata_result opencl_event_record(struct st_queue *rt_queue, struct st_event *rt_event,
                                              struct strata_error *err)
{
    struct opencl_queue *q = (struct opencl_queue *)rt_queue;
    struct opencl_event *event = (struct opencl_event *)rt_event;
    void *marker = NULL;
    CALL(q->dev, false, "recording an event", fn_of(q->dev)->EnqueueMarkerWithWaitList(q->queue, 0, NULL, &marker),
         err);
    if (event->event)
        fn_of(q->dev)->ReleaseEvent(event->event);
    event->event = marker;
    /* Another queue may wait for it next, and would wait for ever if this one were not started. */
    return opencl_queue_flush(rt_queue, err);
}

static enum strata_result opencl_event_wait(struct st_queue *rt_queue, struct st_event *rt_event,
                                            struct strata_error *err)
{
    struct opencl_queue *q = (struct opencl_queue *)rt_queue;
    const struct opencl_event *event = (const struct opencl_event *)rt_event;
    if (!event->event)
        return STRATA_OK;
    if (event->dev != q->dev) { /* contexts do not share events */
        CALL(event->dev, true, "waiting for an event", fn_of(q->dev)->WaitForEvents(1, &event->event), err);
        return STRATA_OK;
    }
    CALL(q->dev, false, "waiting for an event in a queue",
         fn_of(q->dev)->EnqueueBarrierWithWaitList(q->queue, 1, &event->event, NULL), err);
    return STRATA_OK;
}

static enum strata_result opencl_event_sync(struct st_event *rt_event, struct strata_error *err)
{
    const struct opencl_event *event = (const struct opencl_event *)rt_event;
    if (event->event)
        CALL(event->dev, true, "waiting for an event", fn_of(event->dev)->WaitForEvents(1, &event->event), err);
    return STRATA_OK;
}

static enum strata_result opencl_event_query(struct st_event *rt_event, bool *done, struct strata_error *err)
{
    const struct opencl_event *event = (const struct opencl_event *)rt_event;
    int32_t status = 0;
    if (event->event)
        CALL(event->dev, false, "asking an event",
             fn_of(event->dev)->GetEventInfo(event->event, CL_EVENT_STATUS, sizeof status, &status, NULL), err);
    if (status < 0)
        return device_fail(event->dev, status, true, "a command before an event", err);
    *done = status == 0;
    return STRATA_OK;
}

static enum strata_result opencl_event_elapsed(struct st_event *rt_from, struct st_event *rt_to, double *microseconds,
                                               struct strata_error *err)
{
    const struct opencl_event *from = (const struct opencl_event *)rt_from, *to = (const struct opencl_event *)rt_to;
    uint64_t a = 0, b = 0;
    if (!from->event || !to->event)
        return st_fail(err, STRATA_E_ARGUMENT, "%s: reading the time of an event that was not recorded",
                       from->dev->name);
    CALL(from->dev, false, "reading the time of an event",
         fn_of(from->dev)->GetEventProfilingInfo(from->event, CL_PROFILING_END, sizeof a, &a, NULL), err);
    CALL(from->dev, false, "reading the time of an event",
         fn_of(from->dev)->GetEventProfilingInfo(to->event, CL_PROFILING_END, sizeof b, &b, NULL), err);
    *microseconds = b > a ? (double)(b - a) / 1000.0 : 0.0;
    return STRATA_OK;
}

/* ---- programs ---- */

/* Everything that the compiled form depends on. */
static XXH128_hash_t program_key(const struct opencl_device *dev, const char *source, uint64_t size,
                                 const char *options)
{
    const struct opencl *cl = dev->rt;
    char platform[512] = "", version[512] = "";
    cl->fn.GetPlatformInfo(dev->platform, CL_PLATFORM_NAME, sizeof platform - 1, platform, NULL);
    cl->fn.GetPlatformInfo(dev->platform, CL_PLATFORM_VERSION, sizeof version - 1, version, NULL);
    char *device = text(cl, dev->device, D_NAME), *driver = text(cl, dev->device, D_DRIVER);
    XXH3_state_t *state = XXH3_createState();
    XXH128_hash_t key = {0, 0};
    if (state) {
        const char *parts[] = {options, platform, version, device ? device : "", driver ? driver : ""};
        XXH3_128bits_reset(state);
        XXH3_128bits_update(state, source, size);
        for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
            XXH3_128bits_update(state, parts[i], strlen(parts[i]) + 1);
        key = XXH3_128bits_digest(state);
        XXH3_freeState(state);
    }
    free(device);
    free(driver);
    return key;
}

static bool cache_path(const struct opencl_device *dev, XXH128_hash_t key, char *out, size_t size)
{
    int n = snprintf(out, size, "%s/opencl-%016llx%016llx", dev->rt->cache, (unsigned long long)key.high64,
                     (unsigned long long)key.low64);
    return dev->rt->cache[0] && (key.high64 || key.low64) && n > 0 && (size_t)n < size;
}

static int32_t build(const struct opencl_device *dev, void *program, const char *options, char *log, size_t log_size)
{
    int32_t result = fn_of(dev)->BuildProgram(program, 1, &dev->device, options, NULL, NULL);
    size_t got = 0;
    char *said = NULL;
    if (result != 0 && fn_of(dev)->GetProgramBuildInfo(program, dev->device, CL_PROGRAM_LOG, 0, NULL, &got) == 0 &&
        got > 1 && got < 1 << 24 && (said = calloc(1, got + 1)) != NULL &&
        fn_of(dev)->GetProgramBuildInfo(program, dev->device, CL_PROGRAM_LOG, got, said, NULL) == 0)
        st_printable(log, log_size, said, strlen(said));
    free(said);
    return result;
}

/* A program from the cache, or NULL: no entry, a damaged one, one that the driver refuses. */
static void *program_from_cache(const struct opencl_device *dev, const char *path, const char *options)
{
    char *file = NULL;
    size_t size = 0;
    if (st_read_file(path, 64 << 20, &file, &size, NULL) != STRATA_OK)
        return NULL;
    XXH128_canonical_t stored;
    void *program = NULL;
    if (size > sizeof stored) {
        memcpy(&stored, file, sizeof stored);
        const unsigned char *binary = (const unsigned char *)file + sizeof stored;
        size_t binary_size = size - sizeof stored;
        if (XXH128_isEqual(XXH128_hashFromCanonical(&stored), XXH3_128bits(binary, binary_size))) {
            int32_t status = 0, result = 0;
            char log[64] = "";
            program = fn_of(dev)->CreateProgramWithBinary(dev->context, 1, &dev->device, &binary_size, &binary, &status,
                                                          &result);
            if (program && (status != 0 || build(dev, program, options, log, sizeof log) != 0)) {
                fn_of(dev)->ReleaseProgram(program);
                program = NULL;
            }
        }
    }
    free(file);
    return program;
}

/* Keeps what the driver compiled. A failure costs the next start a compilation and nothing else. */
static void program_to_cache(const struct opencl_device *dev, void *program, const char *path)
{
    size_t size = 0;
    if (fn_of(dev)->GetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, NULL) != 0 || size == 0 ||
        size > 64 << 20)
        return;
    unsigned char *binary = malloc(size);
    struct st_out out = {.fd = -1};
    if (binary && fn_of(dev)->GetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof binary, &binary, NULL) == 0 &&
        (mkdir(dev->rt->cache, 0700) == 0 || errno == EEXIST) && st_out_open(path, &out, NULL) == STRATA_OK) {
        XXH128_canonical_t hash;
        XXH128_canonicalFromHash(&hash, XXH3_128bits(binary, size));
        if (st_out_write(&out, &hash, sizeof hash, NULL) == STRATA_OK &&
            st_out_write(&out, binary, size, NULL) == STRATA_OK)
            st_out_commit(&out, NULL);
        st_out_abort(&out);
    }
    free(binary);
}

static enum strata_result program_from_source(const struct opencl_module *module, const char *kernel, const char *options,
                                              void **out, struct strata_error *err)
{
    struct opencl_device *dev = module->dev;
    int32_t result = 0;
    size_t length = module->size - 1; /* without the NUL */
    char what[240], log[320] = "";
    snprintf(what, sizeof what, "compiling %s of %s", kernel, module->name);
    const char *source = module->source;
    void *program = fn_of(dev)->CreateProgramWithSource(dev->context, 1, &source, &length, &result);
    if (program)
        result = build(dev, program, options, log, sizeof log);
    if (program && result == 0) {
        *out = program;
        return STRATA_OK;
    }
    if (program)
        fn_of(dev)->ReleaseProgram(program);
    enum strata_result r = device_fail(dev, result, false, what, err);
    if (log[0] && err) {
        char before[sizeof err->text];
        memcpy(before, err->text, sizeof before);
        r = st_fail(err, r, "%s; the driver's compiler says: %s", before, log);
    }
    return r;
}

/* The program that holds one kernel of a module, from the cache or compiled and put there. */
static enum strata_result open_program(const struct opencl_module *module, const char *kernel, void **out,
                                       struct strata_error *err)
{
    struct opencl_device *dev = module->dev;
    char options[192], path[512];
    snprintf(options, sizeof options, "%s -cl-fp32-correctly-rounded-divide-sqrt -DST_WANTS_%s",
             language(dev->rt, dev->device), kernel);
    bool cached = cache_path(dev, program_key(dev, module->source, module->size, options), path, sizeof path);
    *out = cached ? program_from_cache(dev, path, options) : NULL;
    if (*out)
        return STRATA_OK;
    enum strata_result r = program_from_source(module, kernel, options, out, err);
    if (r == STRATA_OK && cached)
        program_to_cache(dev, *out, path);
    return r;
}

static enum strata_result opencl_module_load(struct st_rt_device *rt_dev, const char *name, const void *image,
                                             uint64_t size, struct st_module **out, struct strata_error *err)
{
    struct opencl_device *dev = (struct opencl_device *)rt_dev;
    enum strata_result r = enter(dev, err);
    if (r != STRATA_OK)
        return r;
    const char *source = image;
    if (size < 2 || source[size - 1] != 0)
        return st_fail(err, STRATA_E_FORMAT, "%s: image %s is not a text with a NUL at its end", dev->name, name);
    struct opencl_module *module = calloc(1, sizeof *module);
    if (!module)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for image %s", dev->name, name);
    module->dev = dev;
    module->source = source;
    module->size = size;
    snprintf(module->name, sizeof module->name, "%s", name);
    *out = (struct st_module *)module;
    return STRATA_OK;
}

static void free_kernel(struct opencl_kernel *kernel)
{
    const struct opencl_functions *fn = fn_of(kernel->module->dev);
    if (kernel->kernel)
        fn->ReleaseKernel(kernel->kernel);
    if (kernel->program)
        fn->ReleaseProgram(kernel->program);
    pthread_mutex_destroy(&kernel->lock);
    free(kernel);
}

static void opencl_module_free(struct st_module *rt_module)
{
    struct opencl_module *module = (struct opencl_module *)rt_module;
    if (!module)
        return;
    for (struct opencl_kernel *k = module->kernels; k;) {
        struct opencl_kernel *next = k->next;
        free_kernel(k);
        k = next;
    }
    free(module);
}

static int32_t kernel_number(const struct opencl_device *dev, void *kernel, uint32_t what)
{
    uint64_t value = 0;
    size_t got = 0;
    if (fn_of(dev)->GetKernelWorkGroupInfo(kernel, dev->device, what, sizeof value, &value, &got) != 0)
        return -1;
    return value > INT32_MAX ? INT32_MAX : (int32_t)value;
}

static enum strata_result open_kernel(struct opencl_kernel *kernel, struct st_function_info *info, struct strata_error *err)
{
    const struct opencl_module *module = kernel->module;
    const struct st_kernel_desc *desc = kernel->desc;
    struct opencl_device *dev = module->dev;
    enum strata_result r = open_program(module, desc->name, &kernel->program, err);
    if (r != STRATA_OK)
        return r;
    int32_t result = 0;
    kernel->kernel = fn_of(dev)->CreateKernel(kernel->program, desc->name, &result);
    if (!kernel->kernel) {
        char what[160];
        snprintf(what, sizeof what, "finding kernel %s in image %s", desc->name, module->name);
        return device_fail(dev, result, false, what, err);
    }
    *info = (struct st_function_info){-1, kernel_number(dev, kernel->kernel, CL_KERNEL_PRIVATE),
                                      kernel_number(dev, kernel->kernel, CL_KERNEL_LOCAL),
                                      kernel_number(dev, kernel->kernel, CL_KERNEL_MAX_GROUP), 1};
    int group = desc->group[0] * desc->group[1] * desc->group[2];
    if (info->max_group >= 0 && group > info->max_group)
        return st_fail(err, STRATA_E_DEVICE, "%s: kernel %s of image %s needs groups of %d, the driver allows %d",
                       dev->name, desc->name, module->name, group, info->max_group);
    return STRATA_OK;
}

static enum strata_result opencl_function(struct st_module *rt_module, const struct st_kernel_desc *desc,
                                          struct st_function **out, struct st_function_info *info,
                                          struct strata_error *err)
{
    struct opencl_module *module = (struct opencl_module *)rt_module;
    enum strata_result r = enter(module->dev, err);
    if (r != STRATA_OK)
        return r;
    struct opencl_kernel *kernel = calloc(1, sizeof *kernel);
    if (!kernel)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for kernel %s", module->dev->name, desc->name);
    kernel->module = module;
    kernel->desc = desc;
    pthread_mutex_init(&kernel->lock, NULL);
    r = open_kernel(kernel, info, err);
    if (r != STRATA_OK) {
        free_kernel(kernel);
        return r;
    }
    kernel->next = module->kernels;
    module->kernels = kernel;
    *out = (struct st_function *)kernel;
    return STRATA_OK;
}

/* Tells the kernel object every allocation, as tables of pointers may lead to any of them. */
static int32_t announce_memory(struct opencl_kernel *kernel)
{
    struct opencl_device *dev = kernel->module->dev;
    int32_t result = 0;
    pthread_mutex_lock(&dev->lock);
    if (kernel->generation != dev->generation && dev->allocation_count > 0) {
        void **list = malloc(dev->allocation_count * sizeof *list);
        if (list) {
            for (size_t i = 0; i < dev->allocation_count; i++)
                list[i] = dev->allocations[i].base;
            result = fn_of(dev)->SetKernelExecInfo(kernel->kernel, CL_KERNEL_SVM_POINTERS,
                                                   dev->allocation_count * sizeof *list, list);
            if (result == 0)
                kernel->generation = dev->generation;
            free(list);
        } else {
            result = CL_OUT_OF_HOST_MEMORY;
        }
    }
    pthread_mutex_unlock(&dev->lock);
    return result;
}

static int32_t enqueue_kernel(struct opencl_queue *q, struct opencl_kernel *kernel, const uint32_t grid[3],
                              const union st_arg *args)
{
    const struct opencl_functions *fn = fn_of(q->dev);
    int32_t result = announce_memory(kernel);
    for (uint32_t i = 0; result == 0 && kernel->desc->args[i]; i++) {
        char kind = kernel->desc->args[i];
        if (kind == 'p' || kind == 'c')
            result = fn->SetKernelArgSVMPointer(kernel->kernel, i, pointer(args[i].p));
        else
            result = fn->SetKernelArg(kernel->kernel, i, kind == 'l' ? 8 : 4, &args[i]);
    }
    size_t local[3], global[3];
    for (int i = 0; i < 3; i++) {
        local[i] = kernel->desc->group[i];
        global[i] = local[i] * grid[i];
    }
    if (result == 0)
        result = fn->EnqueueNDRangeKernel(q->queue, kernel->kernel, 3, NULL, global, local, 0, NULL, NULL);
    return result;
}

static enum strata_result opencl_launch(struct st_queue *rt_queue, struct st_function *rt_function,
                                        const uint32_t grid[3], const union st_arg *args, struct strata_error *err)
{
    struct opencl_queue *q = (struct opencl_queue *)rt_queue;
    struct opencl_kernel *kernel = (struct opencl_kernel *)rt_function;
    enum strata_result r = enter(q->dev, err);
    if (r != STRATA_OK)
        return r;
    pthread_mutex_lock(&kernel->lock);
    int32_t result = enqueue_kernel(q, kernel, grid, args);
    pthread_mutex_unlock(&kernel->lock);
    return result == 0 ? STRATA_OK : device_fail(q->dev, result, false, "launching", err);
}

extern const struct st_runtime st_runtime_opencl;
const struct st_runtime st_runtime_opencl = {
    .name = "opencl",
    .image = ST_IMAGE_SOURCE,
    .rank = 1,
    .open = opencl_open,
    .close = opencl_close,
    .count = opencl_count,
    .describe = opencl_describe,
    .device_open = opencl_device_open,
    .device_close = opencl_device_close,
    .device_sync = opencl_device_sync,
    .give_up = opencl_give_up,
    .memory = opencl_memory,
    .allocate = opencl_allocate,
    .release = opencl_release,
    .host_allocate = opencl_host_allocate,
    .host_free = opencl_host_free,
    .host_register = opencl_host_register,
    .host_unregister = opencl_host_unregister,
    .host_address = opencl_host_address,
    .queue_create = opencl_queue_create,
    .queue_free = opencl_queue_free,
    .queue_sync = opencl_queue_sync,
    .queue_flush = opencl_queue_flush,
    .copy_in = opencl_copy_in,
    .copy_out = opencl_copy_out,
    .copy = opencl_copy,
    .fill = opencl_fill,
    .peer_enable = opencl_peer_enable,
    .peer_copy = opencl_peer_copy,
    .event_create = opencl_event_create,
    .event_free = opencl_event_free,
    .event_record = opencl_event_record,
    .event_wait = opencl_event_wait,
    .event_sync = opencl_event_sync,
    .event_query = opencl_event_query,
    .event_elapsed = opencl_event_elapsed,
    .module_load = opencl_module_load,
    .module_free = opencl_module_free,
    .function = opencl_function,
    .launch = opencl_launch,
};
