/* The validation layer (--check runtime): stands between a runtime's table and its users, and refuses what drivers
 * would take silently or die of:
 *  - handles that were freed, or belong to another device;
 *  - addresses outside live allocations of the device, ranges that leave their allocation;
 *  - two queues touching the same bytes, one of them writing, without an event or a host wait between them;
 *  - what must not happen while a queue captures; grids and kernels that do not fit.
 *
 * How order is known: every queue counts its commands; a queue remembers for every other queue the count that it is
 * ordered behind (through events), and the runtime remembers the counts that the host has waited for. What a kernel
 * touches beyond the first byte of its pointer arguments is not known and not followed, nor is the content of captured
 * graphs. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/device.h"

enum { MAX_QUEUES = 256, ACCESSES = 512, LIVE = 0x4C495645, DEAD = 0x44454144 };

enum kind { K_DEVICE, K_QUEUE, K_EVENT, K_MODULE, K_FUNCTION, K_GRAPH };

static const char *const kind_names[] = {"device", "queue", "event", "image", "kernel", "graph"};

struct clock {
    uint64_t count[MAX_QUEUES];
};

struct check_rt;

/* Every handle starts with this. Memory of freed handles is kept until the runtime closes, so that their use is seen.
 */
struct handle {
    int mark;
    enum kind kind;
    struct check_device *dev;
    struct handle *next;
};

struct range {
    st_addr begin, end;
    bool host; /* page-locked host memory as the device sees it */
    void *memory;
};

struct access {
    st_addr begin, end;
    int queue;
    uint64_t count;
    bool write;
};

struct check_device {
    struct handle handle;
    struct check_rt *rt;
    struct st_rt_device *inner;
    char name[24];
    struct range *ranges;
    size_t range_count, range_capacity;
    struct access accesses[ACCESSES];
    unsigned access_count;
};

struct check_queue {
    struct handle handle;
    struct st_queue *inner;
    int id;
    bool capturing;
    struct clock clock; /* what its next command is ordered behind; its own entry counts its commands */
};

struct check_event {
    struct handle handle;
    struct st_event *inner;
    bool recorded, timed;
    struct clock clock;
};

struct check_module {
    struct handle handle;
    struct st_module *inner;
};

struct check_function {
    struct handle handle;
    struct st_function *inner;
    struct check_module *module;
    const struct st_kernel_desc *desc;
};

struct check_graph {
    struct handle handle;
    struct st_graph *inner;
};

struct check_rt {
    const struct st_runtime *inner;
    struct st_rt *rt;
    pthread_mutex_t lock; /* guards everything of this layer */
    struct handle *handles;
    int queues;
    struct clock done; /* what the host has waited for */
};

static enum strata_result wrong(const struct check_device *dev, struct strata_error *err, const char *what)
{
    return st_fail(err, STRATA_E_ARGUMENT, "%s: validation: %s", dev ? dev->name : "device", what);
}

static void *handle_new(struct check_rt *rt, struct check_device *dev, enum kind kind, size_t size)
{
    struct handle *handle = calloc(1, size);
    if (!handle)
        return NULL;
    handle->mark = LIVE;
    handle->kind = kind;
    handle->dev = dev;
    pthread_mutex_lock(&rt->lock);
    handle->next = rt->handles;
    rt->handles = handle;
    pthread_mutex_unlock(&rt->lock);
    return handle;
}

/* dev may be NULL: the handle's own device is then taken. */
static enum strata_result handle_check(const void *object, enum kind kind, const struct check_device *dev,
                                       struct strata_error *err)
{
    const struct handle *handle = object;
    char text[96];
    if (!handle) {
        snprintf(text, sizeof text, "no %s was given", kind_names[kind]);
    } else if (handle->mark == DEAD) {
        snprintf(text, sizeof text, "a %s is used after it was freed", kind_names[kind]);
        dev = handle->dev;
    } else if (handle->mark != LIVE || handle->kind != kind) {
        snprintf(text, sizeof text, "what was given is not a %s", kind_names[kind]);
    } else if (dev && handle->dev != dev) {
        snprintf(text, sizeof text, "a %s of %s is used here", kind_names[kind], handle->dev->name);
    } else if (handle->dev && handle->dev->handle.mark == DEAD) {
        snprintf(text, sizeof text, "a %s is used after its device was closed", kind_names[kind]);
        dev = handle->dev;
    } else {
        return STRATA_OK;
    }
    return wrong(dev, err, text);
}

#define NEED(object, kind, dev, err)                                                                                   \
    do {                                                                                                               \
        enum strata_result checked_ = handle_check(object, kind, dev, err);                                            \
        if (checked_ != STRATA_OK)                                                                                     \
            return checked_;                                                                                           \
    } while (0)

#define INNER(dev) ((dev)->rt->inner)

/* ---- addresses ---- */

static const struct range *find_range(const struct check_device *dev, st_addr address)
{
    for (size_t i = 0; i < dev->range_count; i++)
        if (address >= dev->ranges[i].begin && address < dev->ranges[i].end)
            return &dev->ranges[i];
    return NULL;
}

static bool add_range(struct check_device *dev, st_addr begin, uint64_t size, void *memory, bool host)
{
    pthread_mutex_lock(&dev->rt->lock);
    bool room = dev->range_count < dev->range_capacity;
    if (!room) {
        size_t capacity = dev->range_capacity ? 2 * dev->range_capacity : 32;
        struct range *ranges = realloc(dev->ranges, capacity * sizeof *ranges);
        if (ranges) {
            dev->ranges = ranges;
            dev->range_capacity = capacity;
            room = true;
        }
    }
    if (room)
        dev->ranges[dev->range_count++] = (struct range){begin, begin + size, host, memory};
    pthread_mutex_unlock(&dev->rt->lock);
    return room;
}

static bool remove_range(struct check_device *dev, st_addr begin, const void *memory)
{
    bool found = false;
    pthread_mutex_lock(&dev->rt->lock);
    for (size_t i = 0; i < dev->range_count && !found; i++)
        if (memory ? dev->ranges[i].memory == memory : dev->ranges[i].begin == begin && !dev->ranges[i].host) {
            dev->ranges[i] = dev->ranges[--dev->range_count];
            found = true;
        }
    pthread_mutex_unlock(&dev->rt->lock);
    return found;
}

/* ---- order ---- */

static void clock_merge(struct clock *into, const struct clock *from)
{
    for (int i = 0; i < MAX_QUEUES; i++)
        if (from->count[i] > into->count[i])
            into->count[i] = from->count[i];
}

/* Called with the lock held: is the access ordered before whatever comes next in the queue? */
static bool ordered(const struct check_rt *rt, const struct check_queue *q, const struct access *access)
{
    return access->queue == q->id || access->count <= q->clock.count[access->queue] ||
           access->count <= rt->done.count[access->queue];
}

/* A command of the queue will touch [address, address + size): checks the range and the order. */
static enum strata_result touch(struct check_device *dev, struct check_queue *q, st_addr address, uint64_t size,
                                bool write, const char *what, struct strata_error *err)
{
    struct check_rt *rt = dev->rt;
    enum strata_result r = STRATA_OK;
    pthread_mutex_lock(&rt->lock);
    const struct range *range = find_range(dev, address);
    if (!range)
        r = st_fail(err, STRATA_E_ARGUMENT, "%s: validation: %s: 0x%" PRIx64 " is in no live allocation of the device",
                    dev->name, what, address);
    else if (size > range->end - address)
        r = st_fail(err, STRATA_E_ARGUMENT,
                    "%s: validation: %s: %" PRIu64 " bytes at 0x%" PRIx64
                    " leave their allocation, which ends after %" PRIu64,
                    dev->name, what, size, address, range->end - address);
    for (unsigned i = 0; i < ACCESSES && i < dev->access_count && r == STRATA_OK && !q->capturing; i++) {
        const struct access *a = &dev->accesses[i];
        if (a->begin < address + size && address < a->end && (write || a->write) && !ordered(rt, q, a))
            r = st_fail(err, STRATA_E_ARGUMENT,
                        "%s: validation: %s: 0x%" PRIx64
                        " was %s by another queue, and nothing makes this queue wait for it",
                        dev->name, what, address, a->write ? "written" : "read");
    }
    pthread_mutex_unlock(&rt->lock);
    return r;
}

/* The command that was just given touches the range. Called once for each of its ranges, then advance. */
static void note(struct check_device *dev, const struct check_queue *q, st_addr address, uint64_t size, bool write)
{
    if (q->capturing)
        return;
    pthread_mutex_lock(&dev->rt->lock);
    dev->accesses[dev->access_count++ % ACCESSES] =
        (struct access){address, address + size, q->id, q->clock.count[q->id] + 1, write};
    pthread_mutex_unlock(&dev->rt->lock);
}

static void advance(struct check_queue *q)
{
    if (!q->capturing)
        q->clock.count[q->id]++;
}

static enum strata_result not_capturing(const struct check_queue *q, const char *what, struct strata_error *err)
{
    if (!q->capturing)
        return STRATA_OK;
    char text[96];
    snprintf(text, sizeof text, "%s while the queue captures", what);
    return wrong(q->handle.dev, err, text);
}

/* ---- the table ---- */

static void check_close(struct st_rt *handle)
{
    struct check_rt *rt = (struct check_rt *)handle;
    if (!rt)
        return;
    for (struct handle *h = rt->handles; h;) {
        struct handle *next = h->next;
        if (h->kind == K_DEVICE)
            free(((struct check_device *)h)->ranges);
        free(h);
        h = next;
    }
    rt->inner->close(rt->rt);
    pthread_mutex_destroy(&rt->lock);
    free(rt);
}

static int check_count(const struct st_rt *handle)
{
    const struct check_rt *rt = (const struct check_rt *)handle;
    return rt->inner->count(rt->rt);
}

static enum strata_result check_describe(struct st_rt *handle, int index, struct st_device_info *out,
                                         struct strata_error *err)
{
    struct check_rt *rt = (struct check_rt *)handle;
    if (index < 0 || index >= rt->inner->count(rt->rt))
        return st_fail(err, STRATA_E_ARGUMENT, "%s: validation: there is no device %d", rt->inner->name, index);
    return rt->inner->describe(rt->rt, index, out, err);
}

static enum strata_result check_device_open(struct st_rt *handle, int index, struct st_rt_device **out,
                                            struct strata_error *err)
{
    struct check_rt *rt = (struct check_rt *)handle;
    struct check_device *dev = handle_new(rt, NULL, K_DEVICE, sizeof *dev);
    if (!dev)
        return st_fail(err, STRATA_E_MEMORY, "no memory for a device");
    dev->rt = rt;
    dev->handle.dev = dev;
    snprintf(dev->name, sizeof dev->name, "%.12s:%d", rt->inner->name, index);
    enum strata_result r = rt->inner->device_open(rt->rt, index, &dev->inner, err);
    if (r != STRATA_OK) {
        dev->handle.mark = DEAD;
        return r;
    }
    *out = (struct st_rt_device *)dev;
    return STRATA_OK;
}

static void check_device_close(struct st_rt_device *handle)
{
    struct check_device *dev = (struct check_device *)handle;
    if (!dev || dev->handle.mark != LIVE)
        return;
    dev->handle.mark = DEAD;
    INNER(dev)->device_close(dev->inner);
}

static void host_waited(struct check_rt *rt, const struct clock *clock)
{
    pthread_mutex_lock(&rt->lock);
    clock_merge(&rt->done, clock);
    pthread_mutex_unlock(&rt->lock);
}

static enum strata_result check_device_sync(struct st_rt_device *handle, struct strata_error *err)
{
    struct check_device *dev = (struct check_device *)handle;
    NEED(dev, K_DEVICE, NULL, err);
    enum strata_result r = INNER(dev)->device_sync(dev->inner, err);
    for (struct handle *h = dev->rt->handles; h && r == STRATA_OK; h = h->next)
        if (h->kind == K_QUEUE && h->mark == LIVE && h->dev == dev)
            host_waited(dev->rt, &((struct check_queue *)h)->clock);
    return r;
}

static void check_give_up(struct st_rt_device *handle, const char *why)
{
    struct check_device *dev = (struct check_device *)handle;
    if (handle_check(dev, K_DEVICE, NULL, NULL) == STRATA_OK)
        INNER(dev)->give_up(dev->inner, why);
}

static enum strata_result check_memory(struct st_rt_device *handle, uint64_t *free_bytes, uint64_t *total,
                                       struct strata_error *err)
{
    struct check_device *dev = (struct check_device *)handle;
    NEED(dev, K_DEVICE, NULL, err);
    return INNER(dev)->memory(dev->inner, free_bytes, total, err);
}

static enum strata_result check_allocate(struct st_rt_device *handle, uint64_t size, st_addr *out,
                                         struct strata_error *err)
{
    struct check_device *dev = (struct check_device *)handle;
    NEED(dev, K_DEVICE, NULL, err);
    if (size == 0)
        return wrong(dev, err, "an allocation of no bytes");
    st_addr address = 0;
    enum strata_result r = INNER(dev)->allocate(dev->inner, size, &address, err);
    if (r != STRATA_OK)
        return r;
    if (!address || address % 256)
        return wrong(dev, err, "the runtime gave an address that is not 256-byte aligned");
    if (!add_range(dev, address, size, NULL, false)) {
        INNER(dev)->release(dev->inner, address);
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for the list of allocations", dev->name);
    }
    *out = address;
    return STRATA_OK;
}

/* An address that is not an allocation's, or was released before, is not given to the driver. */
static void check_release(struct st_rt_device *handle, st_addr address)
{
    struct check_device *dev = (struct check_device *)handle;
    if (address && handle_check(dev, K_DEVICE, NULL, NULL) == STRATA_OK && remove_range(dev, address, NULL))
        INNER(dev)->release(dev->inner, address);
}

static enum strata_result check_host_allocate(struct st_rt_device *handle, uint64_t size, void **out,
                                              struct strata_error *err)
{
    struct check_device *dev = (struct check_device *)handle;
    NEED(dev, K_DEVICE, NULL, err);
    return size ? INNER(dev)->host_allocate(dev->inner, size, out, err)
                : wrong(dev, err, "an allocation of no bytes of host memory");
}

static void check_host_free(struct st_rt_device *handle, void *memory)
{
    struct check_device *dev = (struct check_device *)handle;
    if (!memory || handle_check(dev, K_DEVICE, NULL, NULL) != STRATA_OK)
        return;
    remove_range(dev, 0, memory);
    INNER(dev)->host_free(dev->inner, memory);
}

static enum strata_result check_host_register(struct st_rt_device *handle, void *memory, uint64_t size,
                                              struct strata_error *err)
{
    struct check_device *dev = (struct check_device *)handle;
    NEED(dev, K_DEVICE, NULL, err);
    if (!memory || (uintptr_t)memory % 4096 || size == 0 || size % 4096)
        return wrong(dev, err, "page-locking something else than whole pages");
    return INNER(dev)->host_register(dev->inner, memory, size, err);
}

static bool check_host_unregister(struct st_rt_device *handle, void *memory)
{
    struct check_device *dev = (struct check_device *)handle;
    if (!memory || handle_check(dev, K_DEVICE, NULL, NULL) != STRATA_OK)
        return true;
    remove_range(dev, 0, memory);
    return INNER(dev)->host_unregister(dev->inner, memory);
}

static enum strata_result check_host_address(struct st_rt_device *handle, void *memory, st_addr *out,
                                             struct strata_error *err)
{
    struct check_device *dev = (struct check_device *)handle;
    NEED(dev, K_DEVICE, NULL, err);
    st_addr address = 0;
    enum strata_result r = INNER(dev)->host_address(dev->inner, memory, &address, err);
    if (r != STRATA_OK)
        return r;
    remove_range(dev, 0, memory);
    /* Its size is the caller's; a page is what every such memory has. */
    if (!add_range(dev, address, 4096, memory, true))
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for the list of allocations", dev->name);
    *out = address;
    return STRATA_OK;
}

static enum strata_result check_queue_create(struct st_rt_device *handle, enum st_queue_kind kind,
                                             struct st_queue **out, struct strata_error *err)
{
    struct check_device *dev = (struct check_device *)handle;
    NEED(dev, K_DEVICE, NULL, err);
    pthread_mutex_lock(&dev->rt->lock);
    int id = dev->rt->queues < MAX_QUEUES ? dev->rt->queues++ : -1;
    pthread_mutex_unlock(&dev->rt->lock);
    if (id < 0)
        return st_fail(err, STRATA_E_LIMIT, "%s: validation follows at most %d queues", dev->name, MAX_QUEUES);
    struct check_queue *q = handle_new(dev->rt, dev, K_QUEUE, sizeof *q);
    if (!q)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for a queue", dev->name);
    q->id = id;
    enum strata_result r = INNER(dev)->queue_create(dev->inner, kind, &q->inner, err);
    if (r != STRATA_OK) {
        q->handle.mark = DEAD;
        return r;
    }
    *out = (struct st_queue *)q;
    return STRATA_OK;
}

static void check_queue_free(struct st_queue *handle)
{
    struct check_queue *q = (struct check_queue *)handle;
    if (!q || q->handle.mark != LIVE)
        return;
    q->handle.mark = DEAD;
    INNER(q->handle.dev)->queue_free(q->inner);
}

static enum strata_result check_queue_sync(struct st_queue *handle, struct strata_error *err)
{
    struct check_queue *q = (struct check_queue *)handle;
    NEED(q, K_QUEUE, NULL, err);
    enum strata_result r = not_capturing(q, "waiting for a queue", err);
    if (r == STRATA_OK)
        r = INNER(q->handle.dev)->queue_sync(q->inner, err);
    if (r == STRATA_OK)
        host_waited(q->handle.dev->rt, &q->clock);
    return r;
}

static enum strata_result check_queue_flush(struct st_queue *handle, struct strata_error *err)
{
    struct check_queue *q = (struct check_queue *)handle;
    NEED(q, K_QUEUE, NULL, err);
    return INNER(q->handle.dev)->queue_flush(q->inner, err);
}

static enum strata_result check_copy_in(struct st_queue *handle, st_addr dst, const void *src, uint64_t size,
                                        struct strata_error *err)
{
    struct check_queue *q = (struct check_queue *)handle;
    NEED(q, K_QUEUE, NULL, err);
    struct check_device *dev = q->handle.dev;
    if (!src || size == 0)
        return wrong(dev, err, "a copy from nothing, or of no bytes");
    enum strata_result r = not_capturing(q, "a copy from host memory", err);
    if (r == STRATA_OK)
        r = touch(dev, q, dst, size, true, "copying to the device", err);
    if (r == STRATA_OK)
        r = INNER(dev)->copy_in(q->inner, dst, src, size, err);
    if (r == STRATA_OK) {
        note(dev, q, dst, size, true);
        advance(q);
    }
    return r;
}

static enum strata_result check_copy_out(struct st_queue *handle, void *dst, st_addr src, uint64_t size,
                                         struct strata_error *err)
{
    struct check_queue *q = (struct check_queue *)handle;
    NEED(q, K_QUEUE, NULL, err);
    struct check_device *dev = q->handle.dev;
    if (!dst || size == 0)
        return wrong(dev, err, "a copy to nothing, or of no bytes");
    enum strata_result r = not_capturing(q, "a copy to host memory", err);
    if (r == STRATA_OK)
        r = touch(dev, q, src, size, false, "copying from the device", err);
    if (r == STRATA_OK)
        r = INNER(dev)->copy_out(q->inner, dst, src, size, err);
    if (r == STRATA_OK) {
        note(dev, q, src, size, false);
        advance(q);
    }
    return r;
}

static enum strata_result check_copy(struct st_queue *handle, st_addr dst, st_addr src, uint64_t size,
                                     struct strata_error *err)
{
    struct check_queue *q = (struct check_queue *)handle;
    NEED(q, K_QUEUE, NULL, err);
    struct check_device *dev = q->handle.dev;
    if (size == 0 || (dst < src + size && src < dst + size))
        return wrong(dev, err, "a copy of no bytes, or onto itself");
    enum strata_result r = touch(dev, q, src, size, false, "copying on the device, source", err);
    if (r == STRATA_OK)
        r = touch(dev, q, dst, size, true, "copying on the device, destination", err);
    if (r == STRATA_OK)
        r = INNER(dev)->copy(q->inner, dst, src, size, err);
    if (r == STRATA_OK) {
        note(dev, q, src, size, false);
        note(dev, q, dst, size, true);
        advance(q);
    }
    return r;
}

static enum strata_result check_fill(struct st_queue *handle, st_addr dst, uint8_t value, uint64_t size,
                                     struct strata_error *err)
{
    struct check_queue *q = (struct check_queue *)handle;
    NEED(q, K_QUEUE, NULL, err);
    struct check_device *dev = q->handle.dev;
    if (size == 0)
        return wrong(dev, err, "filling no bytes");
    enum strata_result r = touch(dev, q, dst, size, true, "filling memory", err);
    if (r == STRATA_OK)
        r = INNER(dev)->fill(q->inner, dst, value, size, err);
    if (r == STRATA_OK) {
        note(dev, q, dst, size, true);
        advance(q);
    }
    return r;
}

static enum strata_result check_peer_enable(struct st_rt_device *handle, struct st_rt_device *peer_handle,
                                            struct strata_error *err)
{
    struct check_device *dev = (struct check_device *)handle, *peer = (struct check_device *)peer_handle;
    NEED(dev, K_DEVICE, NULL, err);
    NEED(peer, K_DEVICE, NULL, err);
    if (dev->rt != peer->rt || dev == peer)
        return wrong(dev, err, "direct copies need two devices of one runtime");
    return INNER(dev)->peer_enable(dev->inner, peer->inner, err);
}

static enum strata_result check_peer_copy(struct st_queue *handle, struct st_rt_device *dst_handle, st_addr dst,
                                          struct st_rt_device *src_handle, st_addr src, uint64_t size,
                                          struct strata_error *err)
{
    struct check_queue *q = (struct check_queue *)handle;
    struct check_device *to = (struct check_device *)dst_handle, *from = (struct check_device *)src_handle;
    NEED(to, K_DEVICE, NULL, err);
    NEED(from, K_DEVICE, NULL, err);
    NEED(q, K_QUEUE, from, err);
    enum strata_result r = not_capturing(q, "a direct copy", err);
    if (r == STRATA_OK)
        r = touch(from, q, src, size, false, "direct copy, source", err);
    if (r == STRATA_OK)
        r = touch(to, q, dst, size, true, "direct copy, destination", err);
    if (r == STRATA_OK)
        r = INNER(from)->peer_copy(q->inner, to->inner, dst, from->inner, src, size, err);
    if (r == STRATA_OK) {
        note(from, q, src, size, false);
        note(to, q, dst, size, true);
        advance(q);
    }
    return r;
}

static enum strata_result check_event_create(struct st_rt_device *handle, bool timed, struct st_event **out,
                                             struct strata_error *err)
{
    struct check_device *dev = (struct check_device *)handle;
    NEED(dev, K_DEVICE, NULL, err);
    struct check_event *event = handle_new(dev->rt, dev, K_EVENT, sizeof *event);
    if (!event)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for an event", dev->name);
    event->timed = timed;
    enum strata_result r = INNER(dev)->event_create(dev->inner, timed, &event->inner, err);
    if (r != STRATA_OK) {
        event->handle.mark = DEAD;
        return r;
    }
    *out = (struct st_event *)event;
    return STRATA_OK;
}

static void check_event_free(struct st_event *handle)
{
    struct check_event *event = (struct check_event *)handle;
    if (!event || event->handle.mark != LIVE)
        return;
    event->handle.mark = DEAD;
    INNER(event->handle.dev)->event_free(event->inner);
}

static enum strata_result check_event_record(struct st_queue *handle, struct st_event *event_handle,
                                             struct strata_error *err)
{
    struct check_queue *q = (struct check_queue *)handle;
    struct check_event *event = (struct check_event *)event_handle;
    NEED(q, K_QUEUE, NULL, err);
    NEED(event, K_EVENT, q->handle.dev, err);
    enum strata_result r = INNER(q->handle.dev)->event_record(q->inner, event->inner, err);
    if (r == STRATA_OK) {
        event->recorded = true;
        event->clock = q->clock;
    }
    return r;
}

static enum strata_result recorded(const struct check_event *event, struct strata_error *err)
{
    return event->recorded ? STRATA_OK
                           : wrong(event->handle.dev, err, "an event is waited for that was never recorded");
}

static enum strata_result check_event_wait(struct st_queue *handle, struct st_event *event_handle,
                                           struct strata_error *err)
{
    struct check_queue *q = (struct check_queue *)handle;
    struct check_event *event = (struct check_event *)event_handle;
    NEED(q, K_QUEUE, NULL, err);
    NEED(event, K_EVENT, NULL, err);
    if (event->handle.dev->rt != q->handle.dev->rt)
        return wrong(q->handle.dev, err, "an event of another runtime");
    enum strata_result r = recorded(event, err);
    if (r == STRATA_OK)
        r = INNER(q->handle.dev)->event_wait(q->inner, event->inner, err);
    if (r == STRATA_OK)
        clock_merge(&q->clock, &event->clock);
    return r;
}

static enum strata_result check_event_sync(struct st_event *handle, struct strata_error *err)
{
    struct check_event *event = (struct check_event *)handle;
    NEED(event, K_EVENT, NULL, err);
    enum strata_result r = recorded(event, err);
    if (r == STRATA_OK)
        r = INNER(event->handle.dev)->event_sync(event->inner, err);
    if (r == STRATA_OK)
        host_waited(event->handle.dev->rt, &event->clock);
    return r;
}

static enum strata_result check_event_query(struct st_event *handle, bool *done, struct strata_error *err)
{
    struct check_event *event = (struct check_event *)handle;
    NEED(event, K_EVENT, NULL, err);
    enum strata_result r = recorded(event, err);
    if (r == STRATA_OK)
        r = INNER(event->handle.dev)->event_query(event->inner, done, err);
    if (r == STRATA_OK && *done)
        host_waited(event->handle.dev->rt, &event->clock);
    return r;
}

static enum strata_result check_event_elapsed(struct st_event *from_handle, struct st_event *to_handle,
                                              double *microseconds, struct strata_error *err)
{
    struct check_event *from = (struct check_event *)from_handle, *to = (struct check_event *)to_handle;
    NEED(from, K_EVENT, NULL, err);
    NEED(to, K_EVENT, from->handle.dev, err);
    if (!from->recorded || !to->recorded || !from->timed || !to->timed)
        return wrong(from->handle.dev, err, "the time of an event that was not recorded or not made for it");
    return INNER(from->handle.dev)->event_elapsed(from->inner, to->inner, microseconds, err);
}

static enum strata_result check_module_load(struct st_rt_device *handle, const char *name, const void *image,
                                            uint64_t size, struct st_module **out, struct strata_error *err)
{
    struct check_device *dev = (struct check_device *)handle;
    NEED(dev, K_DEVICE, NULL, err);
    struct check_module *module = handle_new(dev->rt, dev, K_MODULE, sizeof *module);
    if (!module)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for an image", dev->name);
    enum strata_result r = INNER(dev)->module_load(dev->inner, name, image, size, &module->inner, err);
    if (r != STRATA_OK) {
        module->handle.mark = DEAD;
        return r;
    }
    *out = (struct st_module *)module;
    return STRATA_OK;
}

static void check_module_free(struct st_module *handle)
{
    struct check_module *module = (struct check_module *)handle;
    if (!module || module->handle.mark != LIVE)
        return;
    module->handle.mark = DEAD;
    INNER(module->handle.dev)->module_free(module->inner);
}

static enum strata_result check_function(struct st_module *handle, const struct st_kernel_desc *desc,
                                         struct st_function **out, struct st_function_info *info,
                                         struct strata_error *err)
{
    struct check_module *module = (struct check_module *)handle;
    NEED(module, K_MODULE, NULL, err);
    struct check_device *dev = module->handle.dev;
    struct check_function *function = handle_new(dev->rt, dev, K_FUNCTION, sizeof *function);
    if (!function)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for a kernel", dev->name);
    function->module = module;
    function->desc = desc;
    enum strata_result r = INNER(dev)->function(module->inner, desc, &function->inner, info, err);
    if (r != STRATA_OK) {
        function->handle.mark = DEAD;
        return r;
    }
    *out = (struct st_function *)function;
    return STRATA_OK;
}

static enum strata_result check_launch(struct st_queue *handle, struct st_function *function_handle,
                                       const uint32_t grid[3], const union st_arg *args, struct strata_error *err)
{
    struct check_queue *q = (struct check_queue *)handle;
    struct check_function *function = (struct check_function *)function_handle;
    NEED(q, K_QUEUE, NULL, err);
    struct check_device *dev = q->handle.dev;
    NEED(function, K_FUNCTION, dev, err);
    NEED(function->module, K_MODULE, dev, err);
    if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0)
        return wrong(dev, err, "an empty grid");
    for (int i = 0; function->desc->args[i]; i++) {
        char what[96], kind = function->desc->args[i];
        if ((kind != 'p' && kind != 'c') || args[i].p == 0)
            continue;
        snprintf(what, sizeof what, "argument %d of kernel %.40s", i + 1, function->desc->name);
        enum strata_result r = touch(dev, q, args[i].p, 1, kind == 'p', what, err);
        if (r != STRATA_OK)
            return r;
    }
    enum strata_result r = INNER(dev)->launch(q->inner, function->inner, grid, args, err);
    if (r == STRATA_OK) {
        for (int i = 0; function->desc->args[i]; i++) {
            char kind = function->desc->args[i];
            if ((kind == 'p' || kind == 'c') && args[i].p)
                note(dev, q, args[i].p, 1, kind == 'p');
        }
        advance(q);
    }
    return r;
}

static enum strata_result check_graph_begin(struct st_queue *handle, struct strata_error *err)
{
    struct check_queue *q = (struct check_queue *)handle;
    NEED(q, K_QUEUE, NULL, err);
    enum strata_result r = not_capturing(q, "beginning a capture", err);
    if (r == STRATA_OK)
        r = INNER(q->handle.dev)->graph_begin(q->inner, err);
    if (r == STRATA_OK)
        q->capturing = true;
    return r;
}

static enum strata_result check_graph_end(struct st_queue *handle, struct st_graph **out, struct strata_error *err)
{
    struct check_queue *q = (struct check_queue *)handle;
    NEED(q, K_QUEUE, NULL, err);
    struct check_device *dev = q->handle.dev;
    if (!q->capturing)
        return wrong(dev, err, "ending a capture that was not begun");
    q->capturing = false;
    struct check_graph *graph = handle_new(dev->rt, dev, K_GRAPH, sizeof *graph);
    if (!graph)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for a graph", dev->name);
    enum strata_result r = INNER(dev)->graph_end(q->inner, &graph->inner, err);
    if (r != STRATA_OK) {
        graph->handle.mark = DEAD;
        return r;
    }
    *out = (struct st_graph *)graph;
    return STRATA_OK;
}

static enum strata_result check_graph_launch(struct st_queue *handle, struct st_graph *graph_handle,
                                             struct strata_error *err)
{
    struct check_queue *q = (struct check_queue *)handle;
    struct check_graph *graph = (struct check_graph *)graph_handle;
    NEED(q, K_QUEUE, NULL, err);
    NEED(graph, K_GRAPH, q->handle.dev, err);
    enum strata_result r = not_capturing(q, "replaying a graph", err);
    if (r == STRATA_OK)
        r = INNER(q->handle.dev)->graph_launch(q->inner, graph->inner, err);
    if (r == STRATA_OK)
        advance(q);
    return r;
}

static void check_graph_free(struct st_graph *handle)
{
    struct check_graph *graph = (struct check_graph *)handle;
    if (!graph || graph->handle.mark != LIVE)
        return;
    graph->handle.mark = DEAD;
    INNER(graph->handle.dev)->graph_free(graph->inner);
}

static enum strata_result check_wait_value(struct st_queue *handle, st_addr address, uint32_t value,
                                           struct strata_error *err)
{
    struct check_queue *q = (struct check_queue *)handle;
    NEED(q, K_QUEUE, NULL, err);
    enum strata_result r = not_capturing(q, "waiting for a number", err);
    if (r == STRATA_OK && address % 4)
        r = wrong(q->handle.dev, err, "the address of a number is not a multiple of 4");
    return r == STRATA_OK ? INNER(q->handle.dev)->wait_value(q->inner, address, value, err) : r;
}

static enum strata_result check_write_value(struct st_queue *handle, st_addr address, uint32_t value,
                                            struct strata_error *err)
{
    struct check_queue *q = (struct check_queue *)handle;
    NEED(q, K_QUEUE, NULL, err);
    enum strata_result r = not_capturing(q, "writing a number", err);
    if (r == STRATA_OK && address % 4)
        r = wrong(q->handle.dev, err, "the address of a number is not a multiple of 4");
    return r == STRATA_OK ? INNER(q->handle.dev)->write_value(q->inner, address, value, err) : r;
}

static const struct st_runtime check_table = {
    .close = check_close,
    .count = check_count,
    .describe = check_describe,
    .device_open = check_device_open,
    .device_close = check_device_close,
    .device_sync = check_device_sync,
    .give_up = check_give_up,
    .memory = check_memory,
    .allocate = check_allocate,
    .release = check_release,
    .host_allocate = check_host_allocate,
    .host_free = check_host_free,
    .host_register = check_host_register,
    .host_unregister = check_host_unregister,
    .host_address = check_host_address,
    .queue_create = check_queue_create,
    .queue_free = check_queue_free,
    .queue_sync = check_queue_sync,
    .queue_flush = check_queue_flush,
    .copy_in = check_copy_in,
    .copy_out = check_copy_out,
    .copy = check_copy,
    .fill = check_fill,
    .peer_enable = check_peer_enable,
    .peer_copy = check_peer_copy,
    .event_create = check_event_create,
    .event_free = check_event_free,
    .event_record = check_event_record,
    .event_wait = check_event_wait,
    .event_sync = check_event_sync,
    .event_query = check_event_query,
    .event_elapsed = check_event_elapsed,
    .module_load = check_module_load,
    .module_free = check_module_free,
    .function = check_function,
    .launch = check_launch,
    .graph_begin = check_graph_begin,
    .graph_end = check_graph_end,
    .graph_launch = check_graph_launch,
    .graph_free = check_graph_free,
    .wait_value = check_wait_value,
    .write_value = check_write_value,
};

enum strata_result st_check_wrap(const struct st_runtime *inner, struct st_rt *inner_rt, struct st_runtime **table,
                                 struct st_rt **rt, struct strata_error *err)
{
    struct st_runtime *wrapped = malloc(sizeof *wrapped);
    struct check_rt *mine = calloc(1, sizeof *mine);
    if (!wrapped || !mine) {
        free(wrapped);
        free(mine);
        return st_fail(err, STRATA_E_MEMORY, "no memory for the validation layer");
    }
    *wrapped = check_table;
    wrapped->name = inner->name;
    wrapped->image = inner->image;
    wrapped->rank = inner->rank;
    mine->inner = inner;
    mine->rt = inner_rt;
    pthread_mutex_init(&mine->lock, NULL);
    *table = wrapped;
    *rt = (struct st_rt *)mine;
    return STRATA_OK;
}
