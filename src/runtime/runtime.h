/* The table that a GPU runtime fills, and the plain facts that pass through it.
 *
 * One file per runtime (src/runtime/<name>.c) opens its driver's library and fills one struct st_runtime. All of them
 * can be open in one process; they share nothing but host memory. Everything above this table (src/runtime/device.h and
 * the engine) speaks of devices, never of vendors.
 *
 * Conventions of every function in the table:
 *  - the result is enum strata_result; the message in err names the device ("cuda:0") and the driver's own words;
 *  - *out is written on success only;
 *  - copies, fills, launches and graph replays are asynchronous: they are in order within a queue, and a pointer handed
 * to them must stay valid until the queue has passed them. Everything else has happened when it returns;
 *  - any thread may call; one queue is used by one thread at a time. While a queue captures (graph_begin to graph_end),
 * the same thread does nothing on that device but copies inside the device, fills, launches, event_record and
 * event_wait;
 *  - an error that the driver reports late (a fault inside a kernel) is returned by whichever call sees it first. A
 * device that its driver gives up is lost: from then on every call returns the first message again, and close still
 * frees what belongs to us;
 *  - free and close functions accept NULL, and wait for nothing: the caller has synchronised the queues concerned. */
#ifndef ST_RUNTIME_RUNTIME_H
#define ST_RUNTIME_RUNTIME_H

#include "base/result.h"

/* An address in a device's memory (or of page-locked host memory as the device sees it); 0 is none. Arithmetic inside
 * one allocation is allowed. */
typedef uint64_t st_addr;

/* Each runtime defines its own structures behind these names. */
struct st_rt;        /* an opened runtime: library, functions, devices seen */
struct st_rt_device; /* an opened device */
struct st_queue;     /* commands in order */
struct st_event;
struct st_module;   /* an image loaded on a device */
struct st_function; /* a kernel of a module */
struct st_graph;

/* What an image contains, that is, what module_load takes. */
enum st_image_kind {
    ST_IMAGE_PTX,     /* NUL-terminated text (the NUL counts in the size) */
    ST_IMAGE_ELF,     /* a code object with its section headers; the bytes stay valid until module_free */
    ST_IMAGE_SOURCE,  /* OpenCL C text without includes, NUL-terminated; stays valid until module_free */
    ST_IMAGE_BUILTIN, /* kernels compiled into the program itself: size 0, found by name */
};

enum {
    ST_FEATURE_GRAPHS = 1u << 0,      /* graph_begin .. graph_free work */
    ST_FEATURE_PEER = 1u << 1,        /* peer_enable may be tried */
    ST_FEATURE_HOST_MAPPED = 1u << 2, /* host_address works: kernels can reach page-locked host memory */
    ST_FEATURE_WAIT_VALUE = 1u << 3, /* wait_value and write_value may be tried; whether they pay is measured at open */
    ST_FEATURE_INTEGRATED = 1u << 4, /* shares memory with the CPU */
    ST_FEATURE_DISPLAY = 1u << 5,    /* drives a display: long kernels may be cut off, keep more memory free */
    ST_FEATURE_CPU = 1u << 6,        /* a CPU behind a GPU runtime: used only when it is named */
    ST_FEATURE_FAULT_ABORTS = 1u << 7, /* a fault inside a kernel ends the process, as the driver cannot do otherwise */
    ST_FEATURE_SIMULATED = 1u << 8,
    ST_FEATURE_GENERIC = 1u << 9, /* loads images made for a family of architectures */
    ST_FEATURE_FOLDED = 1u << 10, /* the image that serves it folds weights (kernel/gpu/gemm_fold.h); found by st_devices_open */
};

/* One device as its runtime describes it, before anything is opened on it. All texts are printable UTF-8. */
struct st_device_info {
    char model[128];         /* the card's name for people */
    char arch[32];           /* "sm_90", "gfx1100", "opencl": what an image is chosen by */
    char arch_driver[96];    /* the same in the driver's full words ("gfx90a:sramecc+:xnack-"), or equal to arch */
    char pci[16];            /* "0000:41:00.0", or "" when unknown */
    char uuid[40];           /* 32 hexadecimal digits, or "" when the driver has none that can be trusted */
    char driver[64];         /* version of driver or library */
    char note[300];          /* something the user should know (a version override, a missing permission), or "" */
    char unusable[300];      /* why this device cannot be used, or "" */
    uint32_t lanes;          /* width of a wave: 32 or 64; 1 where lanes cannot exchange values */
    uint32_t units;          /* multiprocessors or compute units */
    uint32_t max_group;      /* work-items in one group */
    uint64_t local_bytes;    /* most local memory that one group can have */
    uint64_t memory;         /* bytes of device memory */
    uint64_t max_allocation; /* largest single allocation */
    uint32_t features;       /* ST_FEATURE_* */
    /* Stated by simulated devices, otherwise empty or 0: */
    char images[256];     /* comma-separated architectures it has images for, instead of this build's list */
    uint64_t memory_rate; /* bytes per second of device memory, instead of a measurement */
    uint64_t link_rate;   /* bytes per second between host and device, likewise */
    double launch_us;     /* microseconds of a launch, likewise for predictions */
    uint32_t patience;    /* milliseconds that a wait may last */
};

/* What the driver says about a loaded kernel; -1 where it does not say. */
struct st_function_info {
    int32_t registers; /* per work-item */
    int32_t spills;    /* bytes per work-item outside registers */
    int32_t local;     /* bytes of local memory per group, static and requested ones together */
    int32_t max_group; /* largest group it can be launched with */
    int32_t lanes;     /* wave width it was compiled for */
};

/* A kernel as the host knows it. The list is in src/kernel/gpu_kernels.h.
 * args: one letter per argument, in order: 'p' address that is written (or read and written), 'c' address that is only
 * read, 'i' 32-bit integer, 'l' 64-bit integer, 'f' float. */
struct st_kernel_desc {
    const char *name;   /* symbol in the image */
    const char *module; /* source file without .cl, that is, the image it is in */
    const char *args;
    uint16_t group[3]; /* reqd_work_group_size */
    bool hot;          /* runs per token: spills are a build failure */
};

union st_arg {
    st_addr p;
    uint64_t l;
    uint32_t i;
    float f;
};

enum { ST_MAX_ARGS = 32 };

enum st_queue_kind {
    ST_QUEUE_COMPUTE,
    ST_QUEUE_COPY, /* runs beside compute queues, more urgent where the driver knows urgency */
};

struct st_runtime_options {
    const char *library;  /* path of the driver's library to open instead of the usual names, or NULL */
    const char *devices;  /* simulated runtime: comma-separated device descriptions; NULL elsewhere */
    const char *executor; /* simulated runtime: "cpu" or "fibers" */
    const char *cache;    /* directory for programs that a driver compiled, or NULL for none */
    const char *sysfs;    /* root of the kernel's file tree ("/sys"), replaced by tests; NULL is "/sys" */
};

struct st_runtime {
    const char *name; /* prefix of device names: "cuda" */
    enum st_image_kind image;
    int rank; /* of two runtimes that see the same card the lower rank gets it */

    /* Opens the library and counts devices. A missing or broken library, an old driver, no devices:
     * STRATA_E_UNSUPPORTED with the reason, which becomes a line of the device list. */
    enum strata_result (*open)(const struct st_runtime_options *options, struct st_rt **out, struct strata_error *err);
    void (*close)(struct st_rt *rt);
    int (*count)(const struct st_rt *rt);
    enum strata_result (*describe)(struct st_rt *rt, int index, struct st_device_info *out, struct strata_error *err);

    /* rt outlives its devices, a device its queues, events, modules and memory. */
    enum strata_result (*device_open)(struct st_rt *rt, int index, struct st_rt_device **out, struct strata_error *err);
    void (*device_close)(struct st_rt_device *dev);
    /* Waits for all queues of the device. */
    enum strata_result (*device_sync)(struct st_rt_device *dev, struct strata_error *err);
    /* The caller has waited for longer than anything on the device can take. The device is lost, with why as its reason, and
     * what its driver may still touch is left alone for good by the functions that free. */
    void (*give_up)(struct st_rt_device *dev, const char *why);

    /* free_bytes is an estimate of the driver's. */
    enum strata_result (*memory)(struct st_rt_device *dev, uint64_t *free_bytes, uint64_t *total,
                                 struct strata_error *err);
    /* At least 256-byte aligned, content undefined. Out of memory is STRATA_E_LIMIT. */
    enum strata_result (*allocate)(struct st_rt_device *dev, uint64_t size, st_addr *out, struct strata_error *err);
    void (*release)(struct st_rt_device *dev, st_addr address);

    /* Page-locked host memory, coherent, page aligned. Other devices use it after host_register (same pointer and
     * size). */
    enum strata_result (*host_allocate)(struct st_rt_device *dev, uint64_t size, void **out, struct strata_error *err);
    void (*host_free)(struct st_rt_device *dev, void *memory);
    /* Page-locks memory of the caller's (page aligned, whole pages) for this device. Memory that is already page-locked
     * by the same runtime is accepted. A runtime without page-locking accepts and does nothing. */
    enum strata_result (*host_register)(struct st_rt_device *dev, void *memory, uint64_t size,
                                        struct strata_error *err);
    /* False: the device was given up and may still touch the memory, which must then stay where it is. */
    bool (*host_unregister)(struct st_rt_device *dev, void *memory);
    /* Where kernels of this device see page-locked host memory. */
    enum strata_result (*host_address)(struct st_rt_device *dev, void *memory, st_addr *out, struct strata_error *err);

    enum strata_result (*queue_create)(struct st_rt_device *dev, enum st_queue_kind kind, struct st_queue **out,
                                       struct strata_error *err);
    void (*queue_free)(struct st_queue *queue);
    enum strata_result (*queue_sync)(struct st_queue *queue, struct strata_error *err);
    /* Makes the driver start what was given so far (some collect commands until then). */
    enum strata_result (*queue_flush)(struct st_queue *queue, struct strata_error *err);

    enum strata_result (*copy_in)(struct st_queue *queue, st_addr dst, const void *src, uint64_t size,
                                  struct strata_error *err);
    enum strata_result (*copy_out)(struct st_queue *queue, void *dst, st_addr src, uint64_t size,
                                   struct strata_error *err);
    enum strata_result (*copy)(struct st_queue *queue, st_addr dst, st_addr src, uint64_t size,
                               struct strata_error *err);
    enum strata_result (*fill)(struct st_queue *queue, st_addr dst, uint8_t value, uint64_t size,
                               struct strata_error *err);

    /* Lets dev reach memory of peer, a device of the same runtime. */
    enum strata_result (*peer_enable)(struct st_rt_device *dev, struct st_rt_device *peer, struct strata_error *err);
    /* queue belongs to src_dev. */
    enum strata_result (*peer_copy)(struct st_queue *queue, struct st_rt_device *dst_dev, st_addr dst,
                                    struct st_rt_device *src_dev, st_addr src, uint64_t size, struct strata_error *err);

    /* timed: event_elapsed will be asked. */
    enum strata_result (*event_create)(struct st_rt_device *dev, bool timed, struct st_event **out,
                                       struct strata_error *err);
    void (*event_free)(struct st_event *event);
    enum strata_result (*event_record)(struct st_queue *queue, struct st_event *event, struct strata_error *err);
    /* The queue goes on when the event's latest record has been passed; queue and event belong to one runtime. */
    enum strata_result (*event_wait)(struct st_queue *queue, struct st_event *event, struct strata_error *err);
    enum strata_result (*event_sync)(struct st_event *event, struct strata_error *err);
    enum strata_result (*event_query)(struct st_event *event, bool *done, struct strata_error *err);
    /* Both events are done. */
    enum strata_result (*event_elapsed)(struct st_event *from, struct st_event *to, double *microseconds,
                                        struct strata_error *err);

    /* name is the image's name for messages ("matvec for sm_80"). */
    enum strata_result (*module_load)(struct st_rt_device *dev, const char *name, const void *image, uint64_t size,
                                      struct st_module **out, struct strata_error *err);
    void (*module_free)(struct st_module *module);
    /* The function lives as long as its module. It is fully loaded: a later launch allocates nothing. desc outlives it.
     */
    enum strata_result (*function)(struct st_module *module, const struct st_kernel_desc *desc,
                                   struct st_function **out, struct st_function_info *info, struct strata_error *err);

    /* grid is in groups; the group size is the kernel's own. args follow desc->args. */
    enum strata_result (*launch)(struct st_queue *queue, struct st_function *function, const uint32_t grid[3],
                                 const union st_arg *args, struct strata_error *err);

    /* Only with ST_FEATURE_GRAPHS. Between begin and end the queue records instead of running; a failure leaves the
     * queue usable and not capturing. graph_launch runs on any queue of the device. */
    enum strata_result (*graph_begin)(struct st_queue *queue, struct strata_error *err);
    enum strata_result (*graph_end)(struct st_queue *queue, struct st_graph **out, struct strata_error *err);
    enum strata_result (*graph_launch)(struct st_queue *queue, struct st_graph *graph, struct strata_error *err);
    void (*graph_free)(struct st_graph *graph);

    /* Only with ST_FEATURE_WAIT_VALUE. address: of a 32-bit number as the device sees it (host_address). The queue
     * waits until (int32_t)(number - value) >= 0. Never part of a captured graph. */
    enum strata_result (*wait_value)(struct st_queue *queue, st_addr address, uint32_t value, struct strata_error *err);
    enum strata_result (*write_value)(struct st_queue *queue, st_addr address, uint32_t value,
                                      struct strata_error *err);
};

#endif
