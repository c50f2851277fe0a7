/* The plan: which layers go to which device, how many bytes each takes, and how long a token is expected to take. Made
 * before anything is loaded, and the only source of sizes: what it says is what is allocated. */
#ifndef ST_ENGINE_PLAN_H
#define ST_ENGINE_PLAN_H

#include "engine/stage.h"
#include "runtime/device.h"

enum { ST_PLAN_STAGES = 16, ST_PREFILL_MAX = 8192 };

/* Predicted time of one decoded token, in seconds. */
struct st_plan_time {
    double memory; /* bytes that the token reads over the memory's rate */
    double misses; /* chosen experts that the CPU computes, and the host's step in each layer */
    double launch; /* launches, or commands of the CPU */
    double link;   /* what is handed in and out over the link, and noticing that it is there */
};

struct st_plan_stage {
    int found;     /* index in st_devices.list, -1: the CPU */
    char name[16]; /* as shown to people: "sim:0" */
    char arch[32];
    uint32_t first, end;
    struct st_stage_size size;
    /* Of a device's memory, in bytes; 0 for the CPU: */
    uint64_t memory;  /* all of it */
    uint64_t taken;   /* once the device is open: by the driver's context, its kernels, and other programs */
    uint64_t free;    /* the rest */
    uint64_t reserve; /* of free, stays free */
    uint64_t limit;   /* most that the stage may take: what is left, or less by request */
    bool cached;      /* not all of its experts are in its memory */
    uint64_t slots;   /* then bytes that slots may take (size.slots is what they do) */
    int helper;       /* index in st_devices.list of a device that computes some of the others, -1: none */
    uint64_t arena;   /* and bytes that the host's arena may take (size.arena is what it does) */
    struct st_plan_time time;
    /* Of cached stages: times of the CPU's and of the link's share of a layer's missing experts, by bytes. */
    struct st_line cpu_experts, link_experts;
    double answer_seconds; /* what the host's part of a layer costs beside them */
    double memory_rate, expert_rate, link_rate, launch_seconds; /* what the prediction rests on; link_rate 0: no link */
};

/* Host memory, in bytes. total is all but the file, which the system can drop and read again. */
struct st_plan_host {
    uint64_t file;                        /* mapped: all shards, and the draft layer's file */
    uint64_t locked;                      /* page-locked, of devices' stages and between stages */
    uint64_t hand_off;                    /* of it: between stages, and between the last one and its draft layer */
    uint64_t kv, state, buffers, workers; /* of CPU stages; kv is part of state */
    uint64_t passes;                      /* rows of a pass, n-gram rows, tokens of sessions, residuals for a CPU's draft layer */
    uint64_t kept;                        /* most that checkpoints and parked conversations may take */
    uint64_t arena;                       /* experts that are not on a device, page-locked as far as the system allows */
    uint64_t experts;                     /* what computing them takes */
    uint64_t in_file;                     /* experts that are in the file alone; not part of total */
    uint64_t total;
    uint64_t limit; /* most that total may be; 0: not limited */
};

struct st_plan {
    struct st_plan_stage stage[ST_PLAN_STAGES];
    int n_stages;
    struct st_placement placement; /* of every stage */
    uint32_t prefill;              /* rows of a prompt's pass */
    struct st_plan_host host;
    double seconds;   /* of one decoded token through all stages */
    char notes[4096]; /* one line for each device that was left out */
};

struct st_plan_request {
    const struct st_stage_config *config; /* range and placement's rows ignored */
    const struct st_model_dims *dims;
    struct st_devices *devices;      /* NULL: the CPU alone */
    struct st_device *const *opened; /* of devices->chosen */
    const char *order;               /* device list as the user wrote it: stages follow it unless it holds "auto" */
    const char *layer_split;         /* "auto" (NULL), or layers of each device: "10,38" */
    const char *vram_limit;          /* NULL; "12G" for every device, "sim:0=12G,sim:1=8G" by name */
    uint64_t reserve;                /* bytes of each device that stay free, 0: as devices need it */
    uint64_t ram_limit;              /* bytes of host memory, 0: none */
    uint64_t kept;                   /* bytes for kept states, 0: for some checkpoints of each session */
    const char *expert_cache; /* experts in a device's memory: NULL or "auto": what is left, "12G" of each device, or "30%" */
    const struct st_expert_profile *profile; /* or NULL */
    uint32_t prefill;                /* 0: as many rows as there is memory for, */
    uint32_t most_prefill;           /* but not more than this */
    int threads;                     /* of the CPU, with these */
    const struct st_kernels *kernels;
    bool predict;                    /* measure the CPU even where nothing has to be decided */
    /* Host memory that passes with that placement take outside of the stages. */
    uint64_t (*pass_bytes)(void *user, const struct st_placement *placement);
    void *user;
};

/* The placement of passes of prefill rows, from one whose slots, context and cache are set. */
struct st_placement st_plan_placement(const struct st_placement *base, const struct st_model_dims *dims,
                                      uint32_t prefill);

/* Measures the opened devices, and the CPU where it is a candidate beside others. notes of out may hold lines already.
 * When the layers do not fit: STRATA_E_DEVICE with device and numbers, STRATA_E_MEMORY when it is the host's memory. */
enum strata_result st_plan_make(const struct st_plan_request *request, struct st_plan *out, struct strata_error *err);

/* Bytes of state that do not grow with the context, of all sessions and stages; 0: keys and values are all there is. */
uint64_t st_plan_recurrent(const struct st_plan *plan);

/* Adds a line to the notes. */
void st_plan_note(struct st_plan *plan, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The short form: a line for each stage, one with the prediction, the notes. */
void st_plan_summary(const struct st_plan *plan, char *out, size_t size);
/* What takes most of the time: "memory of sim:0". */
void st_plan_decides(const struct st_plan *plan, char *out, size_t size);

/* "auto", a size, or a share of all experts in percent: *bytes UINT64_MAX or a size, *share -1 or 0 .. 1. */
enum strata_result st_parse_expert_cache(const char *text, uint64_t *bytes, double *share, struct strata_error *err);
/* "24G", "512M", bytes without a letter. False for anything else, and on overflow. */
bool st_parse_size(const char *text, size_t size, uint64_t *out);

#endif
