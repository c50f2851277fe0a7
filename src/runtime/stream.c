/* The common part of runtimes with streams and modules; see stream.h. */
#include "runtime/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct stream_queue {
    struct st_stream_device *dev;
    void *stream;
    bool captures; /* between the beginning and the end of a capture */
};

struct stream_event {
    struct st_stream_device *dev;
    void *event;
};

struct stream_module {
    struct st_stream_device *dev;
    void *module;
    char name[96];
    struct st_image_kernel *kernels;
    size_t count;
    struct stream_function *functions; /* list of what was handed out */
};

struct stream_function {
    struct st_stream_device *dev;
    void *function;
    const struct st_kernel_desc *desc;
    unsigned dynamic_local;
    bool overlaps;
    int args;
    struct stream_function *next;
};

struct stream_graph {
    struct st_stream_device *dev;
    void *exec;
};

static struct st_stream_device *device_of(struct st_rt_device *dev)
{
    return (struct st_stream_device *)dev;
}

static struct stream_queue *queue_of(struct st_queue *queue)
{
    return (struct stream_queue *)queue;
}

void st_stream_rt_init(struct st_stream_rt *rt, const struct st_stream_api *api, enum st_image_kind image)
{
    *rt = (struct st_stream_rt){.api = api, .image = image};
    pthread_mutex_init(&rt->lock, NULL);
}

void st_stream_rt_free(struct st_stream_rt *rt)
{
    pthread_mutex_destroy(&rt->lock);
    free(rt->registered);
}

void st_stream_device_init(struct st_stream_device *dev, struct st_stream_rt *rt, int index, const char *name,
                           const struct st_device_info *info)
{
    *dev = (struct st_stream_device){.rt = rt, .index = index, .lanes = info->lanes};
    snprintf(dev->name, sizeof dev->name, "%s", name);
    snprintf(dev->arch, sizeof dev->arch, "%s", info->arch);
    pthread_mutex_init(&dev->lock, NULL);
}

void st_stream_device_free(struct st_stream_device *dev)
{
    pthread_mutex_destroy(&dev->lock);
}

enum strata_result st_stream_fail(struct st_stream_device *dev, int result, const char *what, struct strata_error *err)
{
    char words[256];
    dev->rt->api->describe(dev, result, words, sizeof words);
    struct strata_error mine = {0};
    enum strata_result r = st_fail(&mine, result == ST_DRIVER_OUT_OF_MEMORY ? STRATA_E_LIMIT : STRATA_E_DEVICE,
                                   "%s: %s: %s", dev->name, what, words);
    if (dev->rt->api->sticky(result)) {
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

/* Before a call of the driver: the first message of a lost device again, otherwise the device is made current. */
static enum strata_result enter(struct st_stream_device *dev, struct strata_error *err)
{
    pthread_mutex_lock(&dev->lock);
    bool lost = dev->lost;
    struct strata_error first = dev->first;
    pthread_mutex_unlock(&dev->lock);
    if (lost) {
        if (err)
            *err = first;
        return first.code;
    }
    int result = dev->rt->api->make_current(dev);
    return result == ST_DRIVER_OK ? STRATA_OK : st_stream_fail(dev, result, "making the device current", err);
}

/* Before freeing: a lost device is tried too, since some drivers still give back what they hold on the host's side; one that was
 * given up is not, since its driver would wait for it. */
static bool enter_to_free(struct st_stream_device *dev)
{
    pthread_mutex_lock(&dev->lock);
    bool given_up = dev->given_up;
    pthread_mutex_unlock(&dev->lock);
    return !given_up && dev->rt->api->make_current(dev) == ST_DRIVER_OK;
}

void st_stream_give_up(struct st_rt_device *rt_dev, const char *why)
{
    struct st_stream_device *dev = device_of(rt_dev);
    pthread_mutex_lock(&dev->lock);
    if (!dev->lost)
        st_fail(&dev->first, STRATA_E_DEVICE, "%s: %s", dev->name, why);
    dev->lost = dev->given_up = true;
    pthread_mutex_unlock(&dev->lock);
}

/* Runs one call of the driver on dev and returns its message on failure. */
#define CALL(dev, what, call, err)                                                                                     \
    do {                                                                                                               \
        enum strata_result entered_ = enter(dev, err);                                                                 \
        if (entered_ != STRATA_OK)                                                                                     \
            return entered_;                                                                                           \
        int result_ = (call);                                                                                          \
        if (result_ != ST_DRIVER_OK)                                                                                   \
            return st_stream_fail(dev, result_, what, err);                                                            \
    } while (0)

int st_stream_count(const struct st_rt *rt)
{
    return ((const struct st_stream_rt *)rt)->count;
}

enum strata_result st_stream_sync(struct st_rt_device *rt_dev, struct strata_error *err)
{
    struct st_stream_device *dev = device_of(rt_dev);
    CALL(dev, "waiting for the device", dev->rt->api->sync(dev), err);
    return STRATA_OK;
}

enum strata_result st_stream_memory(struct st_rt_device *rt_dev, uint64_t *free_bytes, uint64_t *total,
                                    struct strata_error *err)
{
    struct st_stream_device *dev = device_of(rt_dev);
    size_t free_size = 0, total_size = 0;
    CALL(dev, "asking for free memory", dev->rt->api->memory(dev, &free_size, &total_size), err);
    *free_bytes = free_size;
    *total = total_size;
    return STRATA_OK;
}

enum strata_result st_stream_allocate(struct st_rt_device *rt_dev, uint64_t size, st_addr *out,
                                      struct strata_error *err)
{
    struct st_stream_device *dev = device_of(rt_dev);
    char what[64];
    snprintf(what, sizeof what, "allocating %llu bytes", (unsigned long long)size);
    st_addr address = 0;
    CALL(dev, what, dev->rt->api->allocate(dev, size, &address), err);
    *out = address;
    return STRATA_OK;
}

void st_stream_release(struct st_rt_device *rt_dev, st_addr address)
{
    struct st_stream_device *dev = device_of(rt_dev);
    if (address && enter_to_free(dev))
        dev->rt->api->release(dev, address);
}

enum strata_result st_stream_host_allocate(struct st_rt_device *rt_dev, uint64_t size, void **out,
                                           struct strata_error *err)
{
    struct st_stream_device *dev = device_of(rt_dev);
    char what[80];
    snprintf(what, sizeof what, "allocating %llu bytes of page-locked memory", (unsigned long long)size);
    void *memory = NULL;
    CALL(dev, what, dev->rt->api->host_allocate(dev, size, &memory), err);
    *out = memory;
    return STRATA_OK;
}

void st_stream_host_free(struct st_rt_device *rt_dev, void *memory)
{
    struct st_stream_device *dev = device_of(rt_dev);
    if (memory && enter_to_free(dev))
        dev->rt->api->host_free(dev, memory);
}

static struct st_registered *registered_find(struct st_stream_rt *rt, void *memory)
{
    for (size_t i = 0; i < rt->registered_count; i++)
        if (rt->registered[i].memory == memory)
            return &rt->registered[i];
    return NULL;
}

static enum strata_result register_locked(struct st_stream_device *dev, void *memory, uint64_t size,
                                          struct strata_error *err)
{
    struct st_stream_rt *rt = dev->rt;
    struct st_registered *known = registered_find(rt, memory);
    if (known) {
        known->users++;
        return STRATA_OK;
    }
    if (rt->registered_count == rt->registered_capacity) {
        size_t capacity = rt->registered_capacity ? 2 * rt->registered_capacity : 16;
        struct st_registered *list = realloc(rt->registered, capacity * sizeof *list);
        if (!list)
            return st_fail(err, STRATA_E_MEMORY, "%s: no memory for the list of page-locked memory", dev->name);
        rt->registered = list;
        rt->registered_capacity = capacity;
    }
    int result = rt->api->host_register(dev, memory, size);
    if (result != ST_DRIVER_OK && result != ST_DRIVER_ALREADY_REGISTERED) {
        char what[64];
        snprintf(what, sizeof what, "page-locking %llu bytes", (unsigned long long)size);
        return st_stream_fail(dev, result, what, err);
    }
    rt->registered[rt->registered_count++] = (struct st_registered){memory, 1, result == ST_DRIVER_OK};
    return STRATA_OK;
}

enum strata_result st_stream_host_register(struct st_rt_device *rt_dev, void *memory, uint64_t size,
                                           struct strata_error *err)
{
    struct st_stream_device *dev = device_of(rt_dev);
    enum strata_result r = enter(dev, err);
    if (r != STRATA_OK)
        return r;
    pthread_mutex_lock(&dev->rt->lock);
    r = register_locked(dev, memory, size, err);
    pthread_mutex_unlock(&dev->rt->lock);
    return r;
}

bool st_stream_host_unregister(struct st_rt_device *rt_dev, void *memory)
{
    struct st_stream_device *dev = device_of(rt_dev);
    pthread_mutex_lock(&dev->lock);
    bool given_up = dev->given_up;
    pthread_mutex_unlock(&dev->lock);
    pthread_mutex_lock(&dev->rt->lock);
    struct st_registered *known = memory ? registered_find(dev->rt, memory) : NULL;
    if (known && --known->users == 0) {
        bool owned = known->owned;
        *known = dev->rt->registered[--dev->rt->registered_count];
        if (owned && enter_to_free(dev))
            dev->rt->api->host_unregister(dev, memory);
    }
    pthread_mutex_unlock(&dev->rt->lock);
    return !given_up;
}

enum strata_result st_stream_host_address(struct st_rt_device *rt_dev, void *memory, st_addr *out,
                                          struct strata_error *err)
{
    struct st_stream_device *dev = device_of(rt_dev);
    st_addr address = 0;
    CALL(dev, "finding the device's address of page-locked memory", dev->rt->api->host_address(dev, memory, &address),
         err);
    *out = address;
    return STRATA_OK;
}

enum strata_result st_stream_queue_create(struct st_rt_device *rt_dev, enum st_queue_kind kind, struct st_queue **out,
                                          struct strata_error *err)
{
    struct st_stream_device *dev = device_of(rt_dev);
    void *stream = NULL;
    CALL(dev, "creating a queue", dev->rt->api->stream_create(dev, kind == ST_QUEUE_COPY, &stream), err);
    struct stream_queue *queue = malloc(sizeof *queue);
    if (!queue) {
        dev->rt->api->stream_destroy(dev, stream);
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for a queue", dev->name);
    }
    *queue = (struct stream_queue){dev, stream};
    *out = (struct st_queue *)queue;
    return STRATA_OK;
}

void st_stream_queue_free(struct st_queue *rt_queue)
{
    struct stream_queue *queue = queue_of(rt_queue);
    if (queue && enter_to_free(queue->dev))
        queue->dev->rt->api->stream_destroy(queue->dev, queue->stream);
    free(queue);
}

enum strata_result st_stream_queue_sync(struct st_queue *rt_queue, struct strata_error *err)
{
    struct stream_queue *queue = queue_of(rt_queue);
    CALL(queue->dev, "waiting for a queue", queue->dev->rt->api->stream_sync(queue->dev, queue->stream), err);
    return STRATA_OK;
}

enum strata_result st_stream_queue_flush(struct st_queue *rt_queue, struct strata_error *err)
{
    return enter(queue_of(rt_queue)->dev, err); /* these drivers start commands at once */
}

enum strata_result st_stream_copy_in(struct st_queue *rt_queue, st_addr dst, const void *src, uint64_t size,
                                     struct strata_error *err)
{
    struct stream_queue *q = queue_of(rt_queue);
    CALL(q->dev, "copying to the device", q->dev->rt->api->copy_in(q->dev, dst, src, size, q->stream), err);
    return STRATA_OK;
}

enum strata_result st_stream_copy_out(struct st_queue *rt_queue, void *dst, st_addr src, uint64_t size,
                                      struct strata_error *err)
{
    struct stream_queue *q = queue_of(rt_queue);
    CALL(q->dev, "copying from the device", q->dev->rt->api->copy_out(q->dev, dst, src, size, q->stream), err);
    return STRATA_OK;
}

enum strata_result st_stream_copy(struct st_queue *rt_queue, st_addr dst, st_addr src, uint64_t size,
                                  struct strata_error *err)
{
    struct stream_queue *q = queue_of(rt_queue);
    CALL(q->dev, "copying on the device", q->dev->rt->api->copy(q->dev, dst, src, size, q->stream), err);
    return STRATA_OK;
}

enum strata_result st_stream_fill(struct st_queue *rt_queue, st_addr dst, uint8_t value, uint64_t size,
                                  struct strata_error *err)
{
    struct stream_queue *q = queue_of(rt_queue);
    CALL(q->dev, "filling memory", q->dev->rt->api->fill(q->dev, dst, value, size, q->stream), err);
    return STRATA_OK;
}

enum strata_result st_stream_peer_enable(struct st_rt_device *rt_dev, struct st_rt_device *rt_peer,
                                         struct strata_error *err)
{
    struct st_stream_device *dev = device_of(rt_dev), *peer = device_of(rt_peer);
    enum strata_result r = enter(dev, err);
    if (r != STRATA_OK)
        return r;
    bool can = false;
    int result = dev->rt->api->peer_enable(dev, peer, &can);
    char what[64];
    snprintf(what, sizeof what, "reaching the memory of %s", peer->name);
    if (result != ST_DRIVER_OK && result != ST_DRIVER_PEER_ALREADY_ENABLED)
        return st_stream_fail(dev, result, what, err);
    return can ? STRATA_OK : st_fail(err, STRATA_E_UNSUPPORTED, "%s: %s: not offered by the driver", dev->name, what);
}

enum strata_result st_stream_peer_copy(struct st_queue *rt_queue, struct st_rt_device *rt_dst, st_addr dst,
                                       struct st_rt_device *rt_src, st_addr src, uint64_t size,
                                       struct strata_error *err)
{
    struct stream_queue *q = queue_of(rt_queue);
    struct st_stream_device *to = device_of(rt_dst), *from = device_of(rt_src);
    char what[64];
    snprintf(what, sizeof what, "copying directly to %s", to->name);
    CALL(q->dev, what, q->dev->rt->api->peer_copy(to, dst, from, src, size, q->stream), err);
    return STRATA_OK;
}

enum strata_result st_stream_event_create(struct st_rt_device *rt_dev, bool timed, struct st_event **out,
                                          struct strata_error *err)
{
    struct st_stream_device *dev = device_of(rt_dev);
    void *handle = NULL;
    CALL(dev, "creating an event", dev->rt->api->event_create(dev, timed, &handle), err);
    struct stream_event *event = malloc(sizeof *event);
    if (!event) {
        dev->rt->api->event_destroy(dev, handle);
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for an event", dev->name);
    }
    *event = (struct stream_event){dev, handle};
    *out = (struct st_event *)event;
    return STRATA_OK;
}

void st_stream_event_free(struct st_event *rt_event)
{
    struct stream_event *event = (struct stream_event *)rt_event;
    if (event && enter_to_free(event->dev))
        event->dev->rt->api->event_destroy(event->dev, event->event);
    free(event);
}

enum strata_result st_stream_event_record(struct st_queue *rt_queue, struct st_event *rt_event,
                                          struct strata_error *err)
{
    struct stream_queue *q = queue_of(rt_queue);
    struct stream_event *event = (struct stream_event *)rt_event;
    CALL(q->dev, "recording an event", q->dev->rt->api->event_record(q->dev, event->event, q->stream), err);
    return STRATA_OK;
}

enum strata_result st_stream_event_wait(struct st_queue *rt_queue, struct st_event *rt_event, struct strata_error *err)
{
    struct stream_queue *q = queue_of(rt_queue);
    struct stream_event *event = (struct stream_event *)rt_event;
    CALL(q->dev, "waiting for an event in a queue", q->dev->rt->api->event_wait(q->dev, event->event, q->stream), err);
    return STRATA_OK;
}

enum strata_result st_stream_event_sync(struct st_event *rt_event, struct strata_error *err)
{
    struct stream_event *event = (struct stream_event *)rt_event;
    CALL(event->dev, "waiting for an event", event->dev->rt->api->event_sync(event->dev, event->event), err);
    return STRATA_OK;
}

enum strata_result st_stream_event_query(struct st_event *rt_event, bool *done, struct strata_error *err)
{
    struct stream_event *event = (struct stream_event *)rt_event;
    enum strata_result r = enter(event->dev, err);
    if (r != STRATA_OK)
        return r;
    int result = event->dev->rt->api->event_query(event->dev, event->event);
    if (result != ST_DRIVER_OK && result != ST_DRIVER_NOT_READY)
        return st_stream_fail(event->dev, result, "asking an event", err);
    *done = result == ST_DRIVER_OK;
    return STRATA_OK;
}

enum strata_result st_stream_event_elapsed(struct st_event *rt_from, struct st_event *rt_to, double *microseconds,
                                           struct strata_error *err)
{
    struct stream_event *from = (struct stream_event *)rt_from, *to = (struct stream_event *)rt_to;
    float milliseconds = 0;
    CALL(from->dev, "reading the time between events",
         from->dev->rt->api->event_elapsed(from->dev, from->event, to->event, &milliseconds), err);
    *microseconds = 1000.0 * (double)milliseconds;
    return STRATA_OK;
}

/* What the loader refuses before the driver sees the image. */
static enum strata_result check_kernels(const struct stream_module *module, const char *image_arch,
                                        struct strata_error *err)
{
    const struct st_stream_device *dev = module->dev;
    if (st_arch_rank(dev->arch, image_arch, true) == 0)
        return st_fail(err, STRATA_E_DEVICE, "%s (%s): image %s is for %s", dev->name, dev->arch, module->name,
                       image_arch);
    for (size_t i = 0; i < module->count; i++) {
        const struct st_image_kernel *kernel = &module->kernels[i];
        if (kernel->problem[0])
            return st_fail(err, STRATA_E_DEVICE, "%s (%s): image %s: kernel %s %s", dev->name, dev->arch, module->name,
                           kernel->name, kernel->problem);
        if (kernel->lanes != (int32_t)dev->lanes)
            return st_fail(err, STRATA_E_DEVICE,
                           "%s (%s): image %s: kernel %s is compiled for waves of %d, the device has %u", dev->name,
                           dev->arch, module->name, kernel->name, kernel->lanes, dev->lanes);
    }
    return STRATA_OK;
}

enum strata_result st_stream_module_load(struct st_rt_device *rt_dev, const char *name, const void *image,
                                         uint64_t size, struct st_module **out, struct strata_error *err)
{
    struct st_stream_device *dev = device_of(rt_dev);
    enum strata_result r = enter(dev, err);
    if (r != STRATA_OK)
        return r;
    struct stream_module *module = calloc(1, sizeof *module);
    if (!module)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for image %s", dev->name, name);
    module->dev = dev;
    snprintf(module->name, sizeof module->name, "%s", name);
    char image_arch[32] = "", log[1024] = "";
    r = st_image_inspect(dev->rt->image, image, size, image_arch, &module->kernels, &module->count, err);
    if (r != STRATA_OK)
        r = st_fail_in(err, r, "%s: image %s", dev->name, name);
    if (r == STRATA_OK)
        r = check_kernels(module, image_arch, err);
    if (r == STRATA_OK) {
        int result = dev->rt->api->module_load(dev, image, &module->module, log, sizeof log);
        if (result != ST_DRIVER_OK) {
            char what[160], said[320];
            snprintf(what, sizeof what, "loading image %s", name);
            r = st_stream_fail(dev, result, what, err);
            if (log[0] && err) {
                char before[sizeof err->text];
                memcpy(before, err->text, sizeof before);
                r = st_fail(err, r, "%s; the driver's compiler says: %s", before,
                            st_printable(said, sizeof said, log, strlen(log)));
            }
        }
    }
    if (r != STRATA_OK) {
        free(module->kernels);
        free(module);
        return r;
    }
    *out = (struct st_module *)module;
    return STRATA_OK;
}

void st_stream_module_free(struct st_module *rt_module)
{
    struct stream_module *module = (struct stream_module *)rt_module;
    if (!module)
        return;
    if (enter_to_free(module->dev))
        module->dev->rt->api->module_unload(module->dev, module->module);
    for (struct stream_function *f = module->functions; f;) {
        struct stream_function *next = f->next;
        free(f);
        f = next;
    }
    free(module->kernels);
    free(module);
}

enum strata_result st_stream_function(struct st_module *rt_module, const struct st_kernel_desc *desc,
                                      struct st_function **out, struct st_function_info *info, struct strata_error *err)
{
    struct stream_module *module = (struct stream_module *)rt_module;
    struct st_stream_device *dev = module->dev;
    const struct st_image_kernel *kernel = NULL;
    for (size_t i = 0; i < module->count; i++)
        if (strcmp(module->kernels[i].name, desc->name) == 0)
            kernel = &module->kernels[i];
    if (!kernel)
        return st_fail(err, STRATA_E_DEVICE, "%s (%s): image %s has no kernel %s", dev->name, dev->arch, module->name,
                       desc->name);
    if (memcmp(kernel->group, desc->group, sizeof desc->group) != 0)
        return st_fail(err, STRATA_E_DEVICE,
                       "%s: image %s: kernel %s has groups of %u x %u x %u instead of %u x %u x %u", dev->name,
                       module->name, desc->name, kernel->group[0], kernel->group[1], kernel->group[2], desc->group[0],
                       desc->group[1], desc->group[2]);
    struct st_function_info facts = {-1, -1, kernel->local, -1, kernel->lanes};
    void *handle = NULL;
    char what[160];
    snprintf(what, sizeof what, "finding kernel %s in image %s", desc->name, module->name);
    CALL(dev, what, dev->rt->api->function(dev, module->module, desc->name, kernel->dynamic_local, &handle, &facts),
         err);
    int group = desc->group[0] * desc->group[1] * desc->group[2];
    if (facts.max_group >= 0 && group > facts.max_group)
        return st_fail(err, STRATA_E_DEVICE, "%s: kernel %s of image %s needs groups of %d, the driver allows %d",
                       dev->name, desc->name, module->name, group, facts.max_group);
    struct stream_function *function = malloc(sizeof *function);
    if (!function)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for kernel %s", dev->name, desc->name);
    *function = (struct stream_function){
        dev, handle, desc, (unsigned)kernel->dynamic_local, kernel->overlaps, (int)strlen(desc->args), module->functions};
    module->functions = function;
    *out = (struct st_function *)function;
    *info = facts;
    return STRATA_OK;
}

enum strata_result st_stream_launch(struct st_queue *rt_queue, struct st_function *rt_function, const uint32_t grid[3],
                                    const union st_arg *args, struct strata_error *err)
{
    struct stream_queue *q = queue_of(rt_queue);
    struct stream_function *f = (struct stream_function *)rt_function;
    void *params[ST_MAX_ARGS];
    for (int i = 0; i < f->args; i++)
        params[i] =
            (void *)(uintptr_t)&args[i]; /* every member of the union starts at its address; the driver only reads */
    CALL(q->dev, "launching",
         q->dev->rt->api->launch(q->dev, f->function, grid, f->desc->group, f->dynamic_local,
                                      f->overlaps && q->captures, q->stream, params),
         err);
    return STRATA_OK;
}

enum strata_result st_stream_graph_begin(struct st_queue *rt_queue, struct strata_error *err)
{
    struct stream_queue *q = queue_of(rt_queue);
    CALL(q->dev, "beginning a capture", q->dev->rt->api->capture_begin(q->dev, q->stream), err);
    q->captures = true;
    return STRATA_OK;
}

enum strata_result st_stream_graph_end(struct st_queue *rt_queue, struct st_graph **out, struct strata_error *err)
{
    struct stream_queue *q = queue_of(rt_queue);
    void *captured = NULL, *exec = NULL;
    q->captures = false;
    CALL(q->dev, "ending a capture", q->dev->rt->api->capture_end(q->dev, q->stream, &captured), err);
    CALL(q->dev, "making a graph of a capture", q->dev->rt->api->graph_finish(q->dev, captured, &exec), err);
    struct stream_graph *graph = malloc(sizeof *graph);
    if (!graph) {
        q->dev->rt->api->graph_destroy(q->dev, exec);
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for a graph", q->dev->name);
    }
    *graph = (struct stream_graph){q->dev, exec};
    *out = (struct st_graph *)graph;
    return STRATA_OK;
}

enum strata_result st_stream_graph_launch(struct st_queue *rt_queue, struct st_graph *rt_graph,
                                          struct strata_error *err)
{
    struct stream_queue *q = queue_of(rt_queue);
    struct stream_graph *graph = (struct stream_graph *)rt_graph;
    CALL(q->dev, "replaying a graph", q->dev->rt->api->graph_launch(q->dev, graph->exec, q->stream), err);
    return STRATA_OK;
}

void st_stream_graph_free(struct st_graph *rt_graph)
{
    struct stream_graph *graph = (struct stream_graph *)rt_graph;
    if (graph && enter_to_free(graph->dev))
        graph->dev->rt->api->graph_destroy(graph->dev, graph->exec);
    free(graph);
}

enum strata_result st_stream_wait_value(struct st_queue *rt_queue, st_addr address, uint32_t value,
                                        struct strata_error *err)
{
    struct stream_queue *q = queue_of(rt_queue);
    if (!q->dev->rt->api->wait_value)
        return st_fail(err, STRATA_E_UNSUPPORTED, "%s: its driver has no waits for numbers in memory", q->dev->name);
    CALL(q->dev, "waiting for a number in memory", q->dev->rt->api->wait_value(q->dev, q->stream, address, value), err);
    return STRATA_OK;
}

enum strata_result st_stream_write_value(struct st_queue *rt_queue, st_addr address, uint32_t value,
                                         struct strata_error *err)
{
    struct stream_queue *q = queue_of(rt_queue);
    if (!q->dev->rt->api->write_value)
        return st_fail(err, STRATA_E_UNSUPPORTED, "%s: its driver has no writes of numbers to memory", q->dev->name);
    CALL(q->dev, "writing a number to memory", q->dev->rt->api->write_value(q->dev, q->stream, address, value), err);
    return STRATA_OK;
}
