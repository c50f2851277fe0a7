/* Parts of the simulated runtime that its two files share: sim.c owns devices and memory, sim_queue.c queues, events
 * and graphs. */
#ifndef ST_RUNTIME_SIM_H
#define ST_RUNTIME_SIM_H

#include <pthread.h>

#include "kernel/gpu_launch.h"
#include "runtime/fibers.h"
#include "runtime/runtime.h"

enum { ST_SIM_DEVICES = 16 };

/* A simulated device as its description says. Counts of faults start at 1; 0 is never. */
struct st_sim_spec {
    char arch[32], name[16]; /* name: prefix in messages, "sim" unless it stands for another runtime */
    char model[64], pci[16], uuid[40], unusable[128];
    char images[256]; /* architectures that there are images for, comma separated */
    char lacks[64];   /* a kernel that no image has */
    uint64_t memory;
    double bandwidth, link; /* bytes per second; 0: not modelled */
    double launch;          /* microseconds of a launch; 0: not stated */
    uint64_t driver;        /* bytes of memory that opening takes */
    uint64_t most;          /* bytes of one allocation; 0: as many as there are */
    uint32_t lanes, units;
    uint32_t oom;      /* this allocation fails */
    uint32_t host_oom; /* likewise of page-locked host memory */
    uint32_t refuse;   /* this launch is refused, the device goes on */
    uint32_t late;     /* this launch fails when it runs, the device is lost */
    uint32_t lost;     /* the device is lost when this launch is given */
    uint32_t stuck;    /* this launch never ends */
    uint32_t patience; /* milliseconds without progress after which a waiting call gives a stuck device up */
    uint32_t slow;     /* microseconds that every command takes longer */
    bool generic, no_graphs, no_peer, no_mapping, integrated, display;
};

struct st_rt {
    pthread_mutex_t lock; /* guards everything below that changes after open, in all devices of the runtime */
    pthread_cond_t moved; /* a queue made progress, an event passed, a device was lost */
    bool cpu;             /* executor: the CPU's products, or fibers */
    int count;
    struct st_sim_spec spec[ST_SIM_DEVICES];
};

struct st_sim_range {
    uint64_t start, size;
    bool host, owned;
};

struct st_rt_device {
    struct st_rt *rt;
    const struct st_sim_spec *spec;
    char name[24];
    struct st_sim_range *range;
    size_t ranges, room;
    uint64_t used;
    bool driver_took; /* its share is part of used */
    uint32_t allocations, host_allocations, launches;
    struct st_queue *queues;
    uint64_t progress; /* commands that ended, on all queues */
    bool is_lost;
    char lost[400];
    struct st_rt_device *peers[ST_SIM_DEVICES];
    int n_peers;
};

struct st_module {
    struct st_rt_device *dev;
    struct st_function *functions;
};

struct st_function {
    struct st_rt_device *dev;
    const struct st_kernel_desc *desc;
    const struct st_host_kernel *host;
    enum st_gpu_kernel kernel;
    struct st_function *next;
};

/* The first message of a lost device, or STRATA_OK. The lock is held. */
enum strata_result st_sim_alive(const struct st_rt_device *dev, struct strata_error *err);
/* Marks the device lost with a message; the lock is held. */
void st_sim_lose(struct st_rt_device *dev, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Whether the bytes lie in one allocation of the device (or in page-locked memory that it maps). The lock is held. */
bool st_sim_inside(const struct st_rt_device *dev, uint64_t address, uint64_t size);

/* What a launch costs and how fast memory and link are where the description does not say. */
static const double ST_SIM_LAUNCH = 3.0, ST_SIM_BANDWIDTH = 400e9, ST_SIM_LINK = 25e9;

/* Bytes of device memory and of page-locked host memory that are allocated now. */
void st_sim_usage(struct st_rt_device *dev, uint64_t *device, uint64_t *host);

/* Entries of the runtime's table that sim_queue.c fills. */
enum strata_result st_sim_queue_create(struct st_rt_device *dev, enum st_queue_kind kind, struct st_queue **out,
                                       struct strata_error *err);
void st_sim_queue_free(struct st_queue *queue);
enum strata_result st_sim_queue_sync(struct st_queue *queue, struct strata_error *err);
enum strata_result st_sim_queue_flush(struct st_queue *queue, struct strata_error *err);
void st_sim_give_up(struct st_rt_device *dev, const char *why);
enum strata_result st_sim_device_sync(struct st_rt_device *dev, struct strata_error *err);
enum strata_result st_sim_copy_in(struct st_queue *queue, st_addr dst, const void *src, uint64_t size,
                                  struct strata_error *err);
enum strata_result st_sim_copy_out(struct st_queue *queue, void *dst, st_addr src, uint64_t size,
                                   struct strata_error *err);
enum strata_result st_sim_copy(struct st_queue *queue, st_addr dst, st_addr src, uint64_t size,
                               struct strata_error *err);
enum strata_result st_sim_fill(struct st_queue *queue, st_addr dst, uint8_t value, uint64_t size,
                               struct strata_error *err);
enum strata_result st_sim_peer_copy(struct st_queue *queue, struct st_rt_device *dst_dev, st_addr dst,
                                    struct st_rt_device *src_dev, st_addr src, uint64_t size, struct strata_error *err);
enum strata_result st_sim_event_create(struct st_rt_device *dev, bool timed, struct st_event **out,
                                       struct strata_error *err);
void st_sim_event_free(struct st_event *event);
enum strata_result st_sim_event_record(struct st_queue *queue, struct st_event *event, struct strata_error *err);
enum strata_result st_sim_event_wait(struct st_queue *queue, struct st_event *event, struct strata_error *err);
enum strata_result st_sim_event_sync(struct st_event *event, struct strata_error *err);
enum strata_result st_sim_event_query(struct st_event *event, bool *done, struct strata_error *err);
enum strata_result st_sim_event_elapsed(struct st_event *from, struct st_event *to, double *microseconds,
                                        struct strata_error *err);
enum strata_result st_sim_launch(struct st_queue *queue, struct st_function *function, const uint32_t grid[3],
                                 const union st_arg *args, struct strata_error *err);
enum strata_result st_sim_graph_begin(struct st_queue *queue, struct strata_error *err);
enum strata_result st_sim_graph_end(struct st_queue *queue, struct st_graph **out, struct strata_error *err);
enum strata_result st_sim_graph_launch(struct st_queue *queue, struct st_graph *graph, struct strata_error *err);
void st_sim_graph_free(struct st_graph *graph);
enum strata_result st_sim_wait_value(struct st_queue *queue, st_addr address, uint32_t value, struct strata_error *err);
enum strata_result st_sim_write_value(struct st_queue *queue, st_addr address, uint32_t value,
                                      struct strata_error *err);

#endif
