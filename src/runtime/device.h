/* Devices: what is in the machine, which of it is used, and a device opened with its kernels resolved.
 *
 * A device is an object that knows everything about itself; nothing is known about "the GPU" in general. Every runtime
 * of the build can be open at once. The name shown to people is "<runtime>:<index>". */
#ifndef ST_RUNTIME_DEVICE_H
#define ST_RUNTIME_DEVICE_H

#include <pthread.h>

#include "kernel/gpu_kernels.h"
#include "runtime/images.h"
#include "runtime/line.h"
#include "runtime/runtime.h"
#include "runtime/shape.h"

enum { ST_MAX_RUNTIMES = 8, ST_MAX_DEVICES = 64, ST_MAX_MODULES = 64, ST_RECENT_LAUNCHES = 8 };

enum st_check {
    ST_CHECK_NONE,
    ST_CHECK_SYNC,    /* wait after every launch, so that a fault is reported by the launch that made it */
    ST_CHECK_RUNTIME, /* a validation layer around the runtime's table (src/runtime/check.c), and sync */
};

struct st_device_options {
    const char *devices; /* "auto" (NULL is the same), or names separated by commas: cpu, cuda:0, sim:gfx1100:24G */
    enum st_check check;
    const char *executor; /* of simulated devices: "cpu" (NULL is the same) or "fibers" */
    const char *cache;    /* directory for programs that drivers compiled, NULL for none */
    const char *sysfs;    /* "/sys" when NULL */
    /* Paths of libraries to open instead of the usual names. A runtime that is not among them, or whose path is NULL,
     * is looked up in the environment: STRATA_<NAME>_LIBRARY. */
    struct {
        const char *runtime, *path;
    } libraries[ST_MAX_RUNTIMES];
    const struct st_image_set *images;        /* NULL: this build's */
    const struct st_runtime *const *runtimes; /* ends with NULL, at most ST_MAX_RUNTIMES; NULL: this build's */
    bool list_all;                            /* open every runtime, also those that devices does not name */
};

/* A device that was found, usable or not. */
struct st_found {
    char name[16]; /* "cuda:0" */
    int runtime;   /* index in st_devices.runtimes */
    int index;     /* in that runtime */
    struct st_device_info info;
    char twin[16];      /* the same card under a runtime that comes first, or "" */
    bool named;         /* devices names it */
    char left_out[480]; /* why it is not chosen, or "" */
};

struct st_devices {
    struct st_found_runtime {
        const struct st_runtime *table;
        struct st_runtime *wrapper; /* table, when the validation layer made it */
        struct st_rt *rt;           /* NULL when it could not be opened */
        char reason[480];           /* then why */
    } runtimes[ST_MAX_RUNTIMES];
    int runtime_count;
    struct st_found list[ST_MAX_DEVICES];
    int count;
    int chosen[ST_MAX_DEVICES]; /* indices in list, in the order of devices, or of the list for "auto" */
    int chosen_count;
    bool cpu; /* the CPU is named (or devices is "auto") */
    enum st_check check;
    const struct st_image_set *images;
    const struct st_runtime *const *tables; /* of the runtimes that were looked at, ends with NULL */
};

/* Opens runtimes, lists their devices, chooses. A runtime that is missing or a device that cannot be used is a line
 * with a reason; but a device that is named and cannot be used, or a name that means nothing, is a failure: *out then
 * is still valid, for showing the list, and must be closed. *out is NULL only when memory ran out. */
enum strata_result st_devices_open(const struct st_device_options *options, struct st_devices **out,
                                   struct strata_error *err);
/* Whether a device list leaves the choice to the program: it is empty or holds "auto". */
bool st_devices_automatic(const char *devices);
/* All devices opened from it are closed before. */
void st_devices_close(struct st_devices *devices);

struct st_device {
    char name[16];
    const struct st_runtime *table;
    struct st_rt_device *rt;
    struct st_device_info info;
    enum st_check check;
    int capturing; /* captures begun and not ended */
    struct st_loaded {
        const char *name; /* "matvec" */
        char label[80];   /* "matvec for sm_80" */
        struct st_module *module;
        void *image; /* the driver may keep pointers into it */
    } modules[ST_MAX_MODULES];
    int module_count;
    struct st_kernel_slot {
        struct st_function *function; /* NULL when it was not asked for */
        struct st_function_info info;
        int module;
    } kernels[ST_GPU_KERNEL_COUNT];
    struct st_queue *compute, *copy;
    struct st_event *passed[2]; /* of st_wait on these two */
    bool given_up;              /* a wait lasted too long */
    uint64_t driver_bytes; /* device memory that opening took: context, modules */
    uint64_t held;         /* bytes of st_device_allocate that were not released */
    pthread_mutex_t lock;  /* guards recent and recent_count */
    /* Launches since the last successful wait, newest last, for the message of a fault that is reported late. */
    enum st_gpu_kernel recent[ST_RECENT_LAUNCHES];
    unsigned recent_count;
    struct st_measured {
        double copy_rate; /* bytes per second read plus written by the copy kernel */
        double in_rate;   /* bytes per second from page-locked host memory */
        double out_rate;  /* bytes per second to it */
        double launch_us; /* one launch of a kernel that does nothing, queue busy */
        double replay_us; /* the same inside a replayed graph, 0 without graphs */
        double step_us;   /* a small kernel that reads what the one before wrote, replayed where there are graphs */
        double notice_us; /* from an event's end to the host's next launch running */
        double answer_us; /* what it costs that the host reads a few KB between two launches and sends some more back */
        /* Launches of a model that decodes one row, in a chain as there, by bytes of weights; 0 without a shape: */
        struct st_line dense;   /* products, and the small ones between them */
        struct st_line experts; /* the same with experts' weights */
        struct st_line bring;   /* weights that the host sends for some launches, until those are done, by their bytes */
        double wait_us;   /* from a host's store to the end of a queue's wait for the number, 0 where there is none */
        bool wait_value;  /* a queue may wait for a number in host memory, and that is quicker than the host */
    } measured;
};

/* Opens a chosen device and resolves kernels: needed[id] says which (NULL: all of them). A kernel without an image is a
 * refusal that names the device, its architecture, the kernel and the architectures that there are images for. */
enum strata_result st_device_open(struct st_devices *devices, int found, const bool *needed, struct st_device **out,
                                  struct strata_error *err);
void st_device_close(struct st_device *dev);

/* Device memory as the runtime's table gives it, counted. release: address 0 is none; size is that of the allocation. By one thread
 * at a time. */
enum strata_result st_device_allocate(struct st_device *dev, uint64_t size, st_addr *out, struct strata_error *err);
void st_device_release(struct st_device *dev, st_addr address, uint64_t size);

/* Launches a kernel; shape (may be NULL) is what the caller computes, for the message. The message of a failure holds
 * kernel, image, grid, shape and device. */
enum strata_result st_launch(struct st_device *dev, struct st_queue *queue, enum st_gpu_kernel kernel, uint32_t gx,
                             uint32_t gy, uint32_t gz, const union st_arg *args, const char *shape,
                             struct strata_error *err);

/* Waits for a queue; the message of a late fault names the launches since the last good wait. A device on which nothing ends
 * within its patience (two minutes, or what a simulated device states) is given up: it is lost from then on. */
enum strata_result st_wait(struct st_device *dev, struct st_queue *queue, struct strata_error *err);
/* The same for an event of the device. */
enum strata_result st_wait_event(struct st_device *dev, struct st_event *event, struct strata_error *err);

/* Capture on a queue of the device, aware of ST_CHECK_SYNC. */
enum strata_result st_capture_begin(struct st_device *dev, struct st_queue *queue, struct strata_error *err);
enum strata_result st_capture_end(struct st_device *dev, struct st_queue *queue, struct st_graph **out,
                                  struct strata_error *err);

/* Fills dev->measured; takes a fraction of a second and up to 256 MiB of the device for its duration. shape: what the
 * model multiplies, or NULL. Rates that a simulated device states are taken as they are. */
enum strata_result st_device_measure(struct st_device *dev, const struct st_decode_shape *shape, struct strata_error *err);
/* Marks the kernels that it needs. */
enum strata_result st_device_measure_needs(const struct st_decode_shape *shape, bool *needed, struct strata_error *err);

/* Fills dev->measured with what predictions need: what a simulated device states (a run of the CPU's kernels says nothing about
 * the card), otherwise st_device_measure. */
enum strata_result st_device_rates(struct st_device *dev, const struct st_decode_shape *shape, struct strata_error *err);

/* Puts the validation layer around an open runtime (src/runtime/check.c): *table and *rt are used instead of inner and
 * inner_rt, which table->close closes too. *table is freed with free() after that. */
enum strata_result st_check_wrap(const struct st_runtime *inner, struct st_rt *inner_rt, struct st_runtime **table,
                                 struct st_rt **rt, struct strata_error *err);

#endif
