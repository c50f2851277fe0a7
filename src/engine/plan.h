/* The plan: which layers go to which device, and how many bytes each takes. The only source of sizes; made before anything is
 * loaded. */
#ifndef ST_ENGINE_PLAN_H
#define ST_ENGINE_PLAN_H

#include "engine/stage.h"
#include "runtime/device.h"

enum { ST_PLAN_STAGES = 16 };

struct st_plan_stage {
    int found;        /* index in st_devices.list, -1: the CPU */
    char name[16];    /* as shown to people: "sim:0" */
    char arch[32];
    uint32_t first, end;
    uint64_t weights, state, buffers, scratch; /* bytes in the device's memory; on the CPU weights are the mapped file's */
    uint64_t limit;   /* bytes that the stage may take; 0: none stated */
    double seconds;   /* predicted, of one decoded token: weights read once, experts by their used share */
};

struct st_plan {
    struct st_plan_stage stage[ST_PLAN_STAGES];
    int n_stages;
    double seconds;  /* predicted, of one decoded token through all stages */
    char notes[1024]; /* one line for each device that was left out */
};

struct st_plan_request {
    const struct st_stage_config *config; /* range ignored */
    struct st_devices *devices;           /* opened; NULL: the CPU alone */
    const char *order;                    /* device list as the user wrote it: stages follow it; NULL or "auto" */
    const char *layer_split;              /* "auto" (NULL), or layers of each device: "10,38" */
    const char *vram_limit;               /* NULL; "12G" for every device, "sim:0=12G,sim:1=8G" by name */
    uint64_t reserve;                     /* bytes that stay free on every device */
};

/* STRATA_E_LIMIT with the numbers when the layers do not fit. Measures nothing; rates come from the devices' descriptions. */
enum strata_result st_plan_make(const struct st_plan_request *request, struct st_plan *out, struct strata_error *err);

/* "24G", "512M", bytes without a letter. False for anything else, and on overflow. */
bool st_parse_size(const char *text, size_t size, uint64_t *out);

#endif
