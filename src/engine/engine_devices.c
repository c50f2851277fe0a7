/* From the device list to stages: devices opened, layers planned, kernels resolved before a byte of the model is loaded. */
#include <stdio.h>
#include <string.h>

#include "engine/engine.h"

/* Stays free on every device for the driver and others. */
static const uint64_t RESERVE = 512ull << 20;

static enum strata_result device_options(const struct strata_engine *e, struct st_device_options *out,
                                         struct strata_error *err)
{
    const struct strata_engine_options *o = &e->options;
    *out = (struct st_device_options){
        .devices = o->devices, .executor = o->simulate, .runtimes = e->runtimes, .images = e->images};
    if (!o->check || !strcmp(o->check, "none"))
        out->check = ST_CHECK_NONE;
    else if (!strcmp(o->check, "sync"))
        out->check = ST_CHECK_SYNC;
    else if (!strcmp(o->check, "runtime"))
        out->check = ST_CHECK_RUNTIME;
    else
        return st_fail(err, STRATA_E_ARGUMENT, "check '%s' is none of none, sync, runtime", o->check);
    return STRATA_OK;
}

static void note(struct strata_engine *e, const char *line)
{
    size_t used = strlen(e->placement_text);
    snprintf(e->placement_text + used, sizeof e->placement_text - used, "%s\n", line);
}

/* Leaves a device that lacks something out of an automatic choice; a device that was named is refused. */
static enum strata_result resolve(struct strata_engine *e, const struct st_stage_config *config, int found,
                                  struct st_device **out, struct strata_error *err)
{
    bool needed[ST_GPU_KERNEL_COUNT] = {false};
    enum strata_result r = st_stage_device_needs(config, needed, err);
    if (r)
        return st_fail_in(err, r, "%s (%s)", e->devices->list[found].name, e->devices->list[found].info.arch);
    return st_device_open(e->devices, found, needed, out, err);
}

/* Why a device was lost before, or NULL. */
static const char *lost_before(const struct strata_engine *e, const char *name)
{
    for (int i = 0; i < e->n_lost; i++)
        if (!strcmp(e->lost[i].name, name))
            return e->lost[i].why;
    return NULL;
}

/* Opens every chosen device with the kernels of the whole model; drops what cannot serve where that is allowed. The caller closes
 * what is in by_choice, also after a failure. */
static enum strata_result open_devices(struct strata_engine *e, const struct st_stage_config *config,
                                       struct st_device *by_choice[], struct strata_error *err)
{
    struct st_devices *set = e->devices;
    bool automatic = !strcmp(e->options.devices, "auto");
    int kept = 0;
    for (int i = 0; i < set->chosen_count; i++) {
        struct st_device *dev = NULL;
        struct strata_error why = {0};
        const char *name = set->list[set->chosen[i]].name, *lost = automatic ? lost_before(e, name) : NULL;
        enum strata_result r = lost ? st_fail(&why, STRATA_E_DEVICE, "it was lost: %s", lost)
                                    : resolve(e, config, set->chosen[i], &dev, &why);
        if (r && !automatic) {
            set->chosen_count = kept;
            if (err)
                *err = why;
            return r;
        }
        if (r) {
            char line[600];
            snprintf(line, sizeof line, "%s is left out: %s", name, why.text);
            note(e, line);
            continue;
        }
        by_choice[kept] = dev;
        set->chosen[kept++] = set->chosen[i];
    }
    set->chosen_count = kept;
    return STRATA_OK;
}

static void describe(struct strata_engine *e, int k)
{
    const struct st_plan_stage *s = &e->plan.stage[k];
    const struct st_stage *stage = e->stages[k];
    char line[256];
    snprintf(line, sizeof line, "%s (%s): layers %u..%u, weights %.1f MiB, state %.1f MiB, buffers %.1f MiB", s->name, s->arch,
             s->first, s->end - 1, (double)s->weights / (1 << 20), (double)stage->state_bytes / (1 << 20),
             (double)stage->buffer_bytes / (1 << 20));
    note(e, line);
}

/* The opened device of a plan's stage; taken out of by_choice, so that what is left over can be closed. */
static struct st_device *take_device(struct strata_engine *e, struct st_device *by_choice[], int found)
{
    for (int i = 0; i < e->devices->chosen_count; i++)
        if (e->devices->chosen[i] == found) {
            struct st_device *dev = by_choice[i];
            by_choice[i] = NULL;
            return dev;
        }
    return NULL;
}

static enum strata_result open_stage(struct strata_engine *e, const struct st_stage_config *config, int k,
                                     struct strata_error *err)
{
    const struct st_plan_stage *s = &e->plan.stage[k];
    struct st_stage_config own = *config;
    own.options.first = s->first;
    own.options.end = s->end;
    if (s->found < 0)
        return st_stage_cpu_open(&own, &e->rows, &e->kernels, e->options.threads, &e->stages[k], err);
    return st_stage_device_open(&own, e->opened[k], s->limit, &e->stages[k], err);
}

enum strata_result st_engine_open_stages(struct strata_engine *e, const struct st_stage_config *config,
                                         struct strata_error *err)
{
    struct st_device_options o;
    struct st_device *by_choice[ST_MAX_DEVICES] = {NULL};
    e->placement_text[0] = 0;
    enum strata_result r = device_options(e, &o, err);
    if (!r && strcmp(e->options.devices, "cpu")) {
        r = st_devices_open(&o, &e->devices, err);
        if (!r)
            r = open_devices(e, config, by_choice, err);
    }
    struct st_plan_request request = {.config = config,
                                      .devices = e->devices,
                                      .order = e->options.devices,
                                      .layer_split = e->options.layer_split,
                                      .vram_limit = e->options.vram_limit,
                                      .reserve = RESERVE};
    if (!r)
        r = st_plan_make(&request, &e->plan, err);
    if (!r && e->plan.notes[0])
        note(e, e->plan.notes);
    for (int k = 0; k < e->plan.n_stages && !r; k++) {
        if (e->plan.stage[k].found >= 0)
            e->opened[k] = take_device(e, by_choice, e->plan.stage[k].found);
        r = open_stage(e, config, k, err);
        e->n_stages = r ? e->n_stages : k + 1;
        if (!r)
            describe(e, k);
    }
    for (int i = 0; i < ST_MAX_DEVICES; i++)
        if (by_choice[i])
            st_device_close(by_choice[i]);
    return r;
}

void st_engine_close_stages(struct strata_engine *e)
{
    for (int i = 0; i < e->n_stages; i++)
        st_stage_close(e->stages[i]);
    e->n_stages = 0;
    for (int i = 0; i < ST_STAGES_MAX; i++)
        if (e->opened[i]) {
            st_device_close(e->opened[i]);
            e->opened[i] = NULL;
        }
    st_devices_close(e->devices);
    e->devices = NULL;
}

const char *strata_engine_placement(const struct strata_engine *e)
{
    return e->placement_text;
}
