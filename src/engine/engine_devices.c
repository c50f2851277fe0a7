/* From the device list to stages: devices opened, layers planned, kernels resolved before a byte of the model is
 * loaded. */
#include <stdio.h>
#include <string.h>

#include "engine/pipeline.h"

static enum strata_result device_options(const struct strata_engine *e, struct st_device_options *out,
                                         struct strata_error *err)
{
    const struct strata_engine_options *o = &e->options;
    *out = (struct st_device_options){
        .devices = o->devices, .executor = o->simulate, .cache = o->program_cache, .runtimes = e->runtimes, .images = e->images};
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

/* What a device lacks (a kernel, memory) is its failure, not the model's and not the caller's. */
static enum strata_result as_device_failure(enum strata_result r, struct strata_error *err)
{
    if (r != STRATA_E_UNSUPPORTED && r != STRATA_E_LIMIT)
        return r;
    if (err)
        err->code = STRATA_E_DEVICE;
    return STRATA_E_DEVICE;
}

/* Opens a device with the kernels that the model needs and those that measure. */
static enum strata_result open_device(struct strata_engine *e, const struct st_stage_config *config, int found,
                                      struct st_device **out, struct strata_error *err)
{
    const struct st_device_info *info = &e->devices->list[found].info;
    bool needed[ST_GPU_KERNEL_COUNT] = {[ST_GPU_COPY] = true, [ST_GPU_EMPTY] = true};
    struct st_decode_shape shape;
    enum strata_result r = st_stage_shape(config, &shape, err);
    if (!r)
        r = st_device_measure_needs(&shape, needed, err);
    if (!r)
        r = st_stage_device_needs(config, info, needed, err);
    if (r) {
        st_fail_in(err, r, "%s (%s)", e->devices->list[found].name, info->arch);
        return as_device_failure(r, err);
    }
    r = st_device_open(e->devices, found, needed, out, err);
    if (!r && (r = st_device_rates(*out, &shape, err))) {
        st_device_close(*out);
        *out = NULL;
    }
    return as_device_failure(r, err);
}

/* Why a device that was lost before is not opened again, or NULL. */
static const char *shut_out(const struct strata_engine *e, const struct st_found *found)
{
    for (int i = 0; i < e->n_lost; i++)
        if (!strcmp(e->lost[i].name, found->name) && (!found->named || e->lost[i].given_up))
            return e->lost[i].why;
    return NULL;
}

/* Opens every chosen device; one that was not named and lacks something is left out with a line. The caller closes what
 * is in by_choice, also after a failure. */
static enum strata_result open_devices(struct strata_engine *e, const struct st_stage_config *config,
                                       struct st_device *by_choice[], struct strata_error *err)
{
    struct st_devices *set = e->devices;
    int kept = 0;
    for (int i = 0; i < set->chosen_count; i++) {
        struct st_device *dev = NULL;
        const struct st_found *found = &set->list[set->chosen[i]];
        const char *lost = shut_out(e, found);
        struct strata_error why = {0};
        enum strata_result r = lost ? st_fail(&why, STRATA_E_DEVICE, "it was lost and is not used again: %s", lost)
                                    : open_device(e, config, set->chosen[i], &dev, &why);
        if (r && found->named) {
            set->chosen_count = kept;
            if (err)
                *err = why;
            return lost ? st_fail_in(err, r, "%s", found->name) : r;
        }
        if (r) {
            st_plan_note(&e->plan, "%s is left out: %s", found->name, why.text);
            continue;
        }
        by_choice[kept] = dev;
        set->chosen[kept++] = set->chosen[i];
    }
    set->chosen_count = kept;
    return STRATA_OK;
}

/* Devices that an automatic choice passed over, a line each; not those that nobody could have meant. */
static void note_passed_over(struct strata_engine *e)
{
    for (int i = 0; i < e->devices->count && st_devices_automatic(e->options.devices); i++) {
        const struct st_found *found = &e->devices->list[i];
        if (found->left_out[0] && !found->twin[0] && !(found->info.features & ST_FEATURE_CPU))
            st_plan_note(&e->plan, "%s is left out: %s", found->name, found->left_out);
    }
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

enum strata_result st_engine_make_plan(struct strata_engine *e, const struct st_stage_config *config, uint32_t most,
                                       bool predict, struct strata_error *err)
{
    struct st_device_options o;
    struct st_device *by_choice[ST_MAX_DEVICES] = {NULL};
    e->plan = (struct st_plan){0};
    enum strata_result r = device_options(e, &o, err);
    if (!r && strcmp(e->options.devices, "cpu")) {
        /* The kernels of prompts are those of the largest chunk that the plan may choose. */
        struct st_stage_config largest = *config;
        largest.placement = st_plan_placement(&config->placement, &e->dims, e->asked_prefill ? e->asked_prefill : most);
        r = st_devices_open(&o, &e->devices, err);
        if (!r)
            note_passed_over(e);
        if (!r)
            r = open_devices(e, &largest, by_choice, err);
    }
    /* Layers that the user counted out for devices of which one is lost are counted anew. */
    const char *split = e->n_lost && st_devices_automatic(e->options.devices) ? NULL : e->options.layer_split;
    struct st_plan_request request = {.config = config,
                                      .dims = &e->dims,
                                      .devices = e->devices,
                                      .opened = by_choice,
                                      .order = e->options.devices,
                                      .layer_split = split,
                                      .vram_limit = e->options.vram_limit,
                                      .reserve = e->options.vram_reserve,
                                      .ram_limit = e->options.ram_limit,
                                      .kept = e->options.session_ram,
                                      .expert_cache = e->options.expert_cache,
                                      .profile = e->profile,
                                      .prefill = e->asked_prefill,
                                      .most_prefill = most,
                                      .threads = e->options.threads,
                                      .kernels = &e->kernels,
                                      .predict = predict,
                                      .pass_bytes = st_engine_pass_bytes,
                                      .user = e};
    if (!r)
        r = st_plan_make(&request, &e->plan, err);
    for (int k = 0; k < e->plan.n_stages && !r; k++)
        if (e->plan.stage[k].found >= 0)
            e->opened[k] = take_device(e, by_choice, e->plan.stage[k].found);
    for (int k = 0; k < e->plan.n_stages && !r; k++)
        if (e->plan.stage[k].cached && e->plan.stage[k].helper >= 0)
            e->helpers[k] = take_device(e, by_choice, e->plan.stage[k].helper);
    for (int i = 0; i < ST_MAX_DEVICES; i++)
        if (by_choice[i])
            st_device_close(by_choice[i]);
    e->keep.limit = e->plan.host.kept;
    if (!r)
        st_plan_summary(&e->plan, e->placement_text, sizeof e->placement_text);
    return r;
}

static enum strata_result open_stage(struct strata_engine *e, const struct st_stage_config *config, int k,
                                     struct strata_error *err)
{
    const struct st_plan_stage *s = &e->plan.stage[k];
    struct st_stage_config own = *config;
    own.options.first = s->first;
    own.options.end = s->end;
    own.experts = (struct st_stage_experts){.cached = s->cached,
                                            .slots = s->slots,
                                            .arena = s->arena,
                                            .helper = e->helpers[k],
                                            .helper_slots = s->size.helper_slots,
                                            .profile = e->profile,
                                            .trunk_layers = e->dims.layers,
                                            .kernels = &e->kernels,
                                            .threads = e->options.threads,
                                            .cpu = e->plan.stage[k].cpu_experts};
    if (s->found < 0)
        return st_stage_cpu_open(&own, &e->rows, &e->kernels, e->options.threads, &e->stages[k], err);
    return as_device_failure(st_stage_device_open(&own, e->opened[k], s->size.total, &e->stages[k], err), err);
}

void st_engine_take_notes(struct strata_engine *e)
{
    bool any = false;
    for (int k = 0; k < e->n_stages; k++) {
        struct st_stage *s = e->stages[k];
        if (s->note[0])
            st_plan_note(&e->plan, "%s: %s", s->name, s->note);
        any = any || s->note[0];
        s->note[0] = 0;
    }
    if (any)
        st_plan_summary(&e->plan, e->placement_text, sizeof e->placement_text);
}

enum strata_result st_engine_open_stages(struct strata_engine *e, const struct st_stage_config *config,
                                         struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    for (int k = 0; k < e->plan.n_stages && !r; k++) {
        r = open_stage(e, config, k, err);
        e->n_stages = r ? e->n_stages : k + 1;
    }
    st_engine_take_notes(e);
    return r;
}

static void close_layers(struct strata_engine *e)
{
    for (int i = 0; i < e->n_stages; i++)
        st_stage_close(e->stages[i]);
    e->n_stages = 0;
}

static void close_devices(struct strata_engine *e)
{
    for (int i = 0; i < ST_STAGES_MAX; i++) {
        st_device_close(e->helpers[i]);
        st_device_close(e->opened[i]);
        e->helpers[i] = e->opened[i] = NULL;
    }
    st_devices_close(e->devices);
    e->devices = NULL;
}

void st_engine_close_stages(struct strata_engine *e)
{
    close_layers(e);
    close_devices(e);
}

int st_engine_close(struct strata_engine *e, struct st_freed *out)
{
    struct st_device *dev[ST_FREED_MAX];
    int n = 0;
    for (int i = 0; i < ST_STAGES_MAX; i++) {
        if (e->opened[i])
            dev[n++] = e->opened[i];
        if (e->helpers[i])
            dev[n++] = e->helpers[i];
    }
    for (int i = 0; i < n; i++) {
        out[i] = (struct st_freed){.bytes = dev[i]->held, .driver_bytes = dev[i]->driver_bytes};
        snprintf(out[i].name, sizeof out[i].name, "%s", dev[i]->name);
    }
    st_pipeline_close(e);
    close_layers(e);
    for (int i = 0; i < n; i++) {
        out[i].left = dev[i]->held;
        out[i].bytes -= out[i].left;
    }
    close_devices(e);
    return n;
}

char *st_engine_devices(const struct strata_engine *e, char *dst, size_t size)
{
    dst[0] = 0;
    for (int k = 0; k < e->plan.n_stages; k++) {
        size_t used = strlen(dst);
        snprintf(dst + used, size - used, "%s%s", k ? "," : "", e->plan.stage[k].name);
    }
    return dst;
}

const char *strata_engine_placement(const struct strata_engine *e)
{
    return e->placement_text;
}
