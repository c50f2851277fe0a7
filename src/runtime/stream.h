/* The common part of runtimes whose driver has contexts, streams, events, modules and captured graphs: objects, lost
 * devices, page-locked memory shared by several devices, checks of an image before the driver sees it.
 *
 * Such a runtime fills a struct st_stream_api with thin calls of its driver and puts ST_STREAM_RUNTIME into its table.
 * The drivers concerned share the numbers of the few results that matter here. */
#ifndef ST_RUNTIME_STREAM_H
#define ST_RUNTIME_STREAM_H

#include <pthread.h>

#include "runtime/images.h"
#include "runtime/runtime.h"

enum {
    ST_DRIVER_OK = 0,
    ST_DRIVER_OUT_OF_MEMORY = 2,
    ST_DRIVER_NOT_FOUND = 500,
    ST_DRIVER_NOT_READY = 600,
    ST_DRIVER_PEER_ALREADY_ENABLED = 704,
    ST_DRIVER_ALREADY_REGISTERED = 712,
    ST_DRIVER_NOT_REGISTERED = 713,
};

struct st_stream_device;

/* Every function returns the driver's result and is called with the device current (but for make_current itself). */
struct st_stream_api {
    int (*make_current)(struct st_stream_device *dev);
    /* Name and meaning of a result in the driver's words. */
    void (*describe)(struct st_stream_device *dev, int result, char *out, size_t size);
    /* True for a result after which nothing on the device works any more. */
    bool (*sticky)(int result);
    int (*sync)(struct st_stream_device *dev);
    int (*memory)(struct st_stream_device *dev, size_t *free_bytes, size_t *total);
    int (*allocate)(struct st_stream_device *dev, size_t size, st_addr *out);
    int (*release)(struct st_stream_device *dev, st_addr address);
    int (*host_allocate)(struct st_stream_device *dev, size_t size, void **out);
    int (*host_free)(struct st_stream_device *dev, void *memory);
    int (*host_register)(struct st_stream_device *dev, void *memory, size_t size);
    int (*host_unregister)(struct st_stream_device *dev, void *memory);
    int (*host_address)(struct st_stream_device *dev, void *memory, st_addr *out);
    int (*stream_create)(struct st_stream_device *dev, bool urgent, void **out);
    int (*stream_destroy)(struct st_stream_device *dev, void *stream);
    int (*stream_sync)(struct st_stream_device *dev, void *stream);
    int (*copy_in)(struct st_stream_device *dev, st_addr dst, const void *src, size_t size, void *stream);
    int (*copy_out)(struct st_stream_device *dev, void *dst, st_addr src, size_t size, void *stream);
    int (*copy)(struct st_stream_device *dev, st_addr dst, st_addr src, size_t size, void *stream);
    int (*fill)(struct st_stream_device *dev, st_addr dst, uint8_t value, size_t size, void *stream);
    /* *can: whether the driver offers the access at all. */
    int (*peer_enable)(struct st_stream_device *dev, struct st_stream_device *peer, bool *can);
    int (*peer_copy)(struct st_stream_device *dst_dev, st_addr dst, struct st_stream_device *src_dev, st_addr src,
                     size_t size, void *stream);
    int (*event_create)(struct st_stream_device *dev, bool timed, void **out);
    int (*event_destroy)(struct st_stream_device *dev, void *event);
    int (*event_record)(struct st_stream_device *dev, void *event, void *stream);
    int (*event_wait)(struct st_stream_device *dev, void *event, void *stream);
    int (*event_sync)(struct st_stream_device *dev, void *event);
    int (*event_query)(struct st_stream_device *dev, void *event);
    int (*event_elapsed)(struct st_stream_device *dev, void *from, void *to, float *milliseconds);
    /* log gets what the driver's compiler said. */
    int (*module_load)(struct st_stream_device *dev, const void *image, void **out, char *log, size_t log_size);
    int (*module_unload)(struct st_stream_device *dev, void *module);
    /* dynamic_local: bytes that launches will ask for. Fills registers, spills and max_group of info. */
    int (*function)(struct st_stream_device *dev, void *module, const char *name, int dynamic_local, void **out,
                    struct st_function_info *info);
    /* overlaps: the launch is captured, and the kernel waits itself for the one before it, so it may start while that one runs. */
    int (*launch)(struct st_stream_device *dev, void *function, const uint32_t grid[3], const uint16_t group[3],
                  unsigned dynamic_local, bool overlaps, void *stream, void **params);
    int (*capture_begin)(struct st_stream_device *dev, void *stream);
    int (*capture_end)(struct st_stream_device *dev, void *stream, void **graph);
    /* Makes *exec of graph and frees graph in any case. */
    int (*graph_finish)(struct st_stream_device *dev, void *graph, void **exec);
    int (*graph_launch)(struct st_stream_device *dev, void *exec, void *stream);
    int (*graph_destroy)(struct st_stream_device *dev, void *exec);
    int (*wait_value)(struct st_stream_device *dev, void *stream, st_addr address, uint32_t value);
    int (*write_value)(struct st_stream_device *dev, void *stream, st_addr address, uint32_t value);
};

/* First member of the runtime's own structure. */
struct st_stream_rt {
    const struct st_stream_api *api;
    enum st_image_kind image;
    int count;
    pthread_mutex_t lock; /* guards registered */
    struct st_registered {
        void *memory;
        uint32_t users;
        bool owned; /* we registered it; otherwise it was page-locked before */
    } * registered;
    size_t registered_count, registered_capacity;
};

/* First member of the runtime's own structure. */
struct st_stream_device {
    struct st_stream_rt *rt;
    int index;
    uint32_t lanes;
    char name[16]; /* "cuda:0" */
    char arch[32];
    pthread_mutex_t lock; /* guards lost and first */
    bool lost;
    bool given_up;             /* the driver is not asked to free anything any more */
    struct strata_error first; /* why it is lost */
};

void st_stream_rt_init(struct st_stream_rt *rt, const struct st_stream_api *api, enum st_image_kind image);
void st_stream_rt_free(struct st_stream_rt *rt);
void st_stream_device_init(struct st_stream_device *dev, struct st_stream_rt *rt, int index, const char *name,
                           const struct st_device_info *info);
void st_stream_device_free(struct st_stream_device *dev);

/* The message for a driver's result: "cuda:0: WHAT: NAME (number): meaning". Remembers a result that loses the device.
 */
enum strata_result st_stream_fail(struct st_stream_device *dev, int result, const char *what, struct strata_error *err);

int st_stream_count(const struct st_rt *rt);
enum strata_result st_stream_sync(struct st_rt_device *dev, struct strata_error *err);
void st_stream_give_up(struct st_rt_device *dev, const char *why);
enum strata_result st_stream_memory(struct st_rt_device *dev, uint64_t *free_bytes, uint64_t *total,
                                    struct strata_error *err);
enum strata_result st_stream_allocate(struct st_rt_device *dev, uint64_t size, st_addr *out, struct strata_error *err);
void st_stream_release(struct st_rt_device *dev, st_addr address);
enum strata_result st_stream_host_allocate(struct st_rt_device *dev, uint64_t size, void **out,
                                           struct strata_error *err);
void st_stream_host_free(struct st_rt_device *dev, void *memory);
enum strata_result st_stream_host_register(struct st_rt_device *dev, void *memory, uint64_t size,
                                           struct strata_error *err);
bool st_stream_host_unregister(struct st_rt_device *dev, void *memory);
enum strata_result st_stream_host_address(struct st_rt_device *dev, void *memory, st_addr *out,
                                          struct strata_error *err);
enum strata_result st_stream_queue_create(struct st_rt_device *dev, enum st_queue_kind kind, struct st_queue **out,
                                          struct strata_error *err);
void st_stream_queue_free(struct st_queue *queue);
enum strata_result st_stream_queue_sync(struct st_queue *queue, struct strata_error *err);
enum strata_result st_stream_queue_flush(struct st_queue *queue, struct strata_error *err);
enum strata_result st_stream_copy_in(struct st_queue *queue, st_addr dst, const void *src, uint64_t size,
                                     struct strata_error *err);
enum strata_result st_stream_copy_out(struct st_queue *queue, void *dst, st_addr src, uint64_t size,
                                      struct strata_error *err);
enum strata_result st_stream_copy(struct st_queue *queue, st_addr dst, st_addr src, uint64_t size,
                                  struct strata_error *err);
enum strata_result st_stream_fill(struct st_queue *queue, st_addr dst, uint8_t value, uint64_t size,
                                  struct strata_error *err);
enum strata_result st_stream_peer_enable(struct st_rt_device *dev, struct st_rt_device *peer, struct strata_error *err);
enum strata_result st_stream_peer_copy(struct st_queue *queue, struct st_rt_device *dst_dev, st_addr dst,
                                       struct st_rt_device *src_dev, st_addr src, uint64_t size,
                                       struct strata_error *err);
enum strata_result st_stream_event_create(struct st_rt_device *dev, bool timed, struct st_event **out,
                                          struct strata_error *err);
void st_stream_event_free(struct st_event *event);
enum strata_result st_stream_event_record(struct st_queue *queue, struct st_event *event, struct strata_error *err);
enum strata_result st_stream_event_wait(struct st_queue *queue, struct st_event *event, struct strata_error *err);
enum strata_result st_stream_event_sync(struct st_event *event, struct strata_error *err);
enum strata_result st_stream_event_query(struct st_event *event, bool *done, struct strata_error *err);
enum strata_result st_stream_event_elapsed(struct st_event *from, struct st_event *to, double *microseconds,
                                           struct strata_error *err);
enum strata_result st_stream_module_load(struct st_rt_device *dev, const char *name, const void *image, uint64_t size,
                                         struct st_module **out, struct strata_error *err);
void st_stream_module_free(struct st_module *module);
enum strata_result st_stream_function(struct st_module *module, const struct st_kernel_desc *desc,
                                      struct st_function **out, struct st_function_info *info,
                                      struct strata_error *err);
enum strata_result st_stream_launch(struct st_queue *queue, struct st_function *function, const uint32_t grid[3],
                                    const union st_arg *args, struct strata_error *err);
enum strata_result st_stream_graph_begin(struct st_queue *queue, struct strata_error *err);
enum strata_result st_stream_graph_end(struct st_queue *queue, struct st_graph **out, struct strata_error *err);
enum strata_result st_stream_graph_launch(struct st_queue *queue, struct st_graph *graph, struct strata_error *err);
void st_stream_graph_free(struct st_graph *graph);
enum strata_result st_stream_wait_value(struct st_queue *queue, st_addr address, uint32_t value,
                                        struct strata_error *err);
enum strata_result st_stream_write_value(struct st_queue *queue, st_addr address, uint32_t value,
                                         struct strata_error *err);

/* The functions above as members of struct st_runtime. */
#define ST_STREAM_RUNTIME                                                                                              \
    .count = st_stream_count, .device_sync = st_stream_sync, .give_up = st_stream_give_up, .memory = st_stream_memory,  \
    .allocate = st_stream_allocate, .release = st_stream_release, .host_allocate = st_stream_host_allocate,            \
    .host_free = st_stream_host_free, .host_register = st_stream_host_register,                                        \
    .host_unregister = st_stream_host_unregister, .host_address = st_stream_host_address,                              \
    .queue_create = st_stream_queue_create, .queue_free = st_stream_queue_free, .queue_sync = st_stream_queue_sync,    \
    .queue_flush = st_stream_queue_flush, .copy_in = st_stream_copy_in, .copy_out = st_stream_copy_out,                \
    .copy = st_stream_copy, .fill = st_stream_fill, .peer_enable = st_stream_peer_enable,                              \
    .peer_copy = st_stream_peer_copy, .event_create = st_stream_event_create, .event_free = st_stream_event_free,      \
    .event_record = st_stream_event_record, .event_wait = st_stream_event_wait, .event_sync = st_stream_event_sync,    \
    .event_query = st_stream_event_query, .event_elapsed = st_stream_event_elapsed,                                    \
    .module_load = st_stream_module_load, .module_free = st_stream_module_free, .function = st_stream_function,        \
    .launch = st_stream_launch, .graph_begin = st_stream_graph_begin, .graph_end = st_stream_graph_end,                \
    .graph_launch = st_stream_graph_launch, .graph_free = st_stream_graph_free, .wait_value = st_stream_wait_value,    \
    .write_value = st_stream_write_value

#endif
