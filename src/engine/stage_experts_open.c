/* Memory and opening of a stage's experts that are not all on its device.
 *
 * Behind the stage's buffers on the device: room for the rows of outputs that come from the host, at a whole number of
 * rows behind each program's own outputs (the sum reads both by one list of row numbers); the two lists of places of
 * every layer; a ring for the experts that a window brings. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/helper.h"
#include "engine/stage_experts.h"
#include "kernel/gpu/layout.h"

/* Yields of a worker before it sleeps: some milliseconds, a few layers. */
enum { PAGE = 4096, LINGER = 5000 };

/* ---- where things are ---- */

static const struct st_experts *shape_of(const struct device_stage *d)
{
    const struct st_program *p[2] = {&d->base.trunk, &d->base.draft};
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < p[k]->n_commands; i++)
            if (p[k]->commands[i].op == ST_OP_experts)
                return &p[k]->commands[i].u.experts;
    return NULL;
}

/* Bytes on the device, in the order in which they lie: rows from the host, with a row and a list before them; lists;
 * ring. */
struct parts {
    uint64_t rows, lists, ring;
};

static struct parts parts_of(const struct device_stage *d, const struct st_experts *a)
{
    uint64_t row = (uint64_t)a->hidden * sizeof(float);
    return (struct parts){
        .rows = st_stage_align(st_where_bytes(a->used) + row + (uint64_t)ST_GPU_WINDOW * a->used * row),
        .lists = st_stage_align((uint64_t)d->store.set.count * 2 * d->store.set.experts * sizeof(uint64_t)),
        .ring = (uint64_t)ST_RING_EXPERTS * st_expert_set_largest(&d->store.set)};
}

uint64_t st_device_experts_ring(const struct device_stage *d)
{
    return (uint64_t)ST_RING_PARTS * ST_RING_EXPERTS * st_expert_set_largest(&d->store.set);
}

/* The page-locked part of host memory; base NULL only counts. */
static uint64_t place_locked(struct st_device_experts *e, const struct device_stage *d, const struct st_experts *a,
                             uint8_t *base)
{
    struct st_bump b = {.base = base};
    uint64_t entries = (uint64_t)ST_GPU_WINDOW * a->used, layers = d->store.set.count, experts = d->store.set.experts;
    e->ids = st_bump_take(&b, entries, sizeof *e->ids);
    e->m = st_bump_take(&b, (uint64_t)ST_GPU_WINDOW * a->hidden, sizeof *e->m);
    e->back = st_bump_take(&b, st_where_bytes(a->used) + entries * a->hidden * sizeof(float), 1);
    e->places = st_bump_take(&b, layers * 2 * experts, sizeof *e->places);
    for (int k = 0; k < ST_STAGE_PASSES; k++)
        e->first[k] = st_bump_take(&b, layers * (experts + 1), sizeof *e->first[k]);
    return b.peak;
}

static uint64_t staged_bytes(const struct device_stage *d)
{
    uint64_t most = 0;
    for (uint32_t l = 0; l < d->store.set.count; l++) {
        uint64_t bytes = 0;
        for (uint32_t s = 0; s < d->store.set.layer[l].sections; s++)
            bytes += st_expert_read_room(d->store.set.layer[l].section[s].bytes);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* The rest of host memory, from a multiple of a page. */
static uint64_t place_host(struct st_device_experts *e, const struct device_stage *d, const struct st_experts *a,
                           uint8_t *base)
{
    struct st_bump b = {.base = base};
    uint64_t entries = (uint64_t)ST_GPU_WINDOW * a->used, experts = d->store.set.experts;
    e->staged = st_bump_take(&b, ST_STAGED, staged_bytes(d));
    e->h = st_bump_take(&b, entries * a->width, sizeof *e->h);
    st_act_buffer_place(&e->acts, st_bump_take(&b, st_act_buffer_bytes(ST_GPU_WINDOW, a->hidden, st_act_bytes), 1),
                        ST_GPU_WINDOW, a->hidden, st_act_bytes);
    st_act_buffer_place(&e->hacts, st_bump_take(&b, st_act_buffer_bytes(entries, a->width, st_act_bytes), 1), entries,
                        a->width, st_act_bytes);
    e->group = st_bump_take(&b, experts + 1 + 2 * entries, sizeof *e->group);
    e->chosen = st_bump_take(&b, entries, sizeof *e->chosen);
    e->some = st_bump_take(&b, experts + 1 + entries, sizeof *e->some);
    e->wanted = st_bump_take(&b, experts, 1);
    e->marked = st_bump_take(&b, experts, 1);
    e->helped = st_bump_take(&b, experts, 1);
    e->work.taken = st_bump_take(&b, entries, sizeof *e->work.taken);
    return (b.peak + PAGE - 1) / PAGE * PAGE;
}

enum strata_result st_device_experts_size(const struct device_stage *d, uint64_t *device, uint64_t *host,
                                          uint64_t *locked, struct strata_error *err)
{
    const struct st_experts *a = shape_of(d);
    struct st_device_experts e = {0};
    if (!a || !d->store.set.count)
        return st_fail(err, STRATA_E_INTERNAL, "%s: no experts to place", d->base.name);
    struct parts parts = parts_of(d, a);
    *device = parts.rows + parts.lists + parts.ring;
    *locked = place_locked(&e, d, a, NULL);
    *host = place_host(&e, d, a, NULL);
    return STRATA_OK;
}

enum strata_result st_device_experts_helper(const struct device_stage *d, const struct st_expert_profile *profile,
                                            const uint8_t *marks, uint64_t room, struct st_stage_size *out,
                                            struct strata_error *err)
{
    const struct st_expert_set *set = &d->store.set;
    const struct st_experts *a = shape_of(d);
    size_t n = (size_t)set->count * set->experts;
    uint8_t *has = malloc(n + 1), *passed = malloc(n + 1);
    if (!a || !has || !passed) {
        free(has);
        free(passed);
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for a table of experts", d->base.name);
    }
    uint64_t fixed = st_helper_bytes(set, a, &out->helper_locked);
    for (size_t i = 0; i < n; i++)
        passed[i] = marks[i] ? ST_EXPERT_KEPT : ST_EXPERT_OUT;
    st_expert_rank(set, profile, passed, room > fixed ? room - fixed : 0, has);
    for (size_t i = 0; i < n; i++)
        out->helper_slots += has[i] ? set->layer[i / set->experts].slot : 0;
    out->helper = fixed + out->helper_slots;
    out->helper_hit = st_expert_share(set, profile, has);
    free(has);
    free(passed);
    return STRATA_OK;
}

st_addr st_experts_list(const struct device_stage *d, uint32_t layer)
{
    const struct st_experts *a = shape_of(d);
    uint64_t rows = a ? parts_of(d, a).rows : 0; /* while tensors are counted there are no programs yet */
    return d->memory + d->at.experts + rows + (uint64_t)layer * 2 * d->store.set.experts * sizeof(uint64_t);
}

enum strata_result st_device_put_experts(void *user, const struct st_gguf *g, const struct st_gguf_tensor *t,
                                         uint32_t experts, const void **base, const void **places,
                                         struct strata_error *err)
{
    struct device_stage *d = user;
    uint32_t layer, section;
    enum strata_result r = st_expert_set_add(&d->store.set, g, t, experts, &layer, &section, err);
    if (r)
        return r;
    /* Never NULL, which would be an absent weight, also where nothing is allocated yet. Not an address of slots: kernels
     * are given this one, and the copy queue may be writing to some slot. */
    st_addr memory = d->memory ? d->memory : ST_STAGE_ALIGN;
    *base = (const void *)(uintptr_t)(memory + d->store.set.layer[layer].section[section].at);
    *places = (const void *)(uintptr_t)(st_experts_list(d, layer) + (d->memory ? 0 : ST_STAGE_ALIGN));
    return STRATA_OK;
}

/* ---- opening ---- */

/* Which tensor a weight of the host is in, and where. */
static bool find_section(const struct st_expert_layer *l, const struct st_weight *w, uint32_t *section, uint32_t *skip)
{
    const uint8_t *data = w->data;
    for (uint32_t s = 0; s < l->sections; s++) {
        const uint8_t *from = l->section[s].tensor->data;
        if (data >= from && data < from + l->section[s].bytes) {
            *section = s;
            *skip = (uint32_t)(data - from);
            return true;
        }
    }
    return false;
}

static enum strata_result open_layer(struct device_stage *d, const struct st_command *c, uint32_t k,
                                     struct strata_error *err)
{
    struct st_device_experts *e = d->experts;
    struct st_host_layer *l = &e->layer[k];
    *l = (struct st_host_layer){
        .layer = c->layer, .gate = *c->u.experts.gate, .up = *c->u.experts.up, .down = *c->u.experts.down};
    struct st_weight *w[3] = {&l->gate, &l->up, &l->down};
    for (int i = 0; i < 3; i++) {
        if (!find_section(&d->store.set.layer[k], w[i], &l->section[i], &l->skip[i]))
            return st_fail(err, STRATA_E_INTERNAL, "%s: experts of layer %d are not where they were", d->base.name,
                           c->layer);
        if (!(l->at[i] = calloc(e->experts, sizeof *l->at[i])))
            return st_fail(err, STRATA_E_MEMORY, "%s: no memory for a table of experts", d->base.name);
        w[i]->places = l->at[i];
    }
    return STRATA_OK;
}

/* The model once more with weights in the file: what the CPU multiplies with. */
static enum strata_result open_host_model(struct device_stage *d, const struct st_stage_config *c,
                                          struct strata_error *err)
{
    struct st_device_experts *e = d->experts;
    struct st_bump state = {0}, buffers = {0};
    enum strata_result r = st_model_open(c->gguf, c->draft_gguf, &c->options, &e->model, err);
    if (r)
        return r;
    struct st_placement placement = d->base.placement;
    placement.act_bytes = NULL;
    const struct st_family *f = e->model.family;
    r = f->place(&e->model, ST_PART_TRUNK, &placement, &e->rows, &state, &buffers, &e->trunk, err);
    if (!r && d->base.dims.draft)
        r = f->place(&e->model, ST_PART_DRAFT, &placement, &e->rows, &state, &buffers, &e->draft, err);
    if (!r && !(e->layer = calloc(d->store.set.count, sizeof *e->layer)))
        r = st_fail(err, STRATA_E_MEMORY, "%s: no memory for a table of experts", d->base.name);
    uint32_t k = 0;
    const struct st_program *p[2] = {&e->trunk, &e->draft};
    for (int i = 0; i < 2; i++)
        for (size_t n = 0; n < p[i]->n_commands && !r; n++)
            if (p[i]->commands[n].op == ST_OP_experts && k < d->store.set.count)
                r = open_layer(d, &p[i]->commands[n], k++, err);
    return !r && k != d->store.set.count
               ? st_fail(err, STRATA_E_INTERNAL, "%s: %u layers have experts, %u tensors of them", d->base.name, k,
                         d->store.set.count)
               : r;
}

static enum strata_result lock(void *user, void *memory, uint64_t bytes, struct strata_error *err)
{
    struct device_stage *d = user;
    return st_device_table(d)->host_register(d->dev->rt, memory, bytes, err);
}

static bool unlock(void *user, void *memory)
{
    struct device_stage *d = user;
    return st_device_table(d)->host_unregister(d->dev->rt, memory);
}

static enum strata_result fill_slots(struct device_stage *d, struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    for (uint32_t i = 0; i < d->store.slots && !r; i++) {
        const struct st_expert_slot *slot = &d->store.slot[i];
        const struct st_expert_layer *l = &d->store.set.layer[slot->layer];
        for (uint32_t s = 0; s < l->sections && !r; s++)
            r = st_device_copy_weights(d, d->memory + d->at.slots + slot->at + l->section[s].at,
                                       l->section[s].tensor->data + slot->expert * l->section[s].bytes,
                                       l->section[s].bytes, err);
    }
    return r;
}

static enum strata_result open_events(struct device_stage *d, struct strata_error *err)
{
    const struct st_runtime *t = st_device_table(d);
    struct st_device_experts *e = d->experts;
    enum strata_result r = t->event_create(d->dev->rt, false, &e->routed, err);
    if (!r)
        r = t->event_create(d->dev->rt, false, &e->exchanged, err);
    for (int i = 0; i < ST_RING_PARTS && !r; i++) {
        r = t->event_create(d->dev->rt, false, &e->ready[i], err);
        if (!r)
            r = t->event_create(d->dev->rt, false, &e->free_again[i], err);
    }
    return r;
}

static enum strata_result open_memory(struct device_stage *d, const struct st_experts *a, struct strata_error *err)
{
    struct st_device_experts *e = d->experts;
    void *memory;
    enum strata_result r = st_device_table(d)->host_allocate(d->dev->rt, place_locked(e, d, a, NULL), &memory, err);
    if (r)
        return r;
    e->locked = memory;
    place_locked(e, d, a, e->locked);
    uint64_t bytes = place_host(e, d, a, NULL);
    if (!(e->memory = aligned_alloc(PAGE, bytes)))
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for %llu bytes beside experts", d->base.name,
                       (unsigned long long)bytes);
    place_host(e, d, a, e->memory);
    return STRATA_OK;
}

/* The lists of places of all layers. */
static enum strata_result first_places(struct device_stage *d, struct strata_error *err)
{
    struct st_device_experts *e = d->experts;
    for (uint32_t k = 0; k < d->store.set.count; k++)
        for (uint32_t x = 0; x < e->experts; x++) {
            st_experts_set_place(d, k, x);
            e->places[((uint64_t)k * 2 + 1) * e->experts + x] = ST_NO_PLACE;
        }
    return st_experts_send_places(d, err);
}

enum strata_result st_device_experts_open(struct device_stage *d, const struct st_stage_config *c,
                                          struct strata_error *err)
{
    const struct st_experts *a = shape_of(d);
    struct st_device_experts *e = d->experts = calloc(1, sizeof *e);
    if (!a || !e)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for a store of experts", d->base.name);
    struct parts parts = parts_of(d, a);
    e->experts = a->experts;
    e->used = a->used;
    e->hidden = a->hidden;
    e->width = a->width;
    e->entries = ST_GPU_WINDOW * a->used;
    e->where_bytes = st_where_bytes(a->used);
    e->lists = d->memory + d->at.experts + parts.rows;
    e->ring = e->lists + parts.lists;
    e->pitch = st_expert_set_largest(&d->store.set);
    e->kernels = c->experts.kernels;
    e->pace = st_pace(c->experts.threads);
    e->expected = c->experts.cpu;
    e->cpu_times = st_miss_times(e->expected);
    e->link_times = st_miss_times(d->dev->measured.bring);
    enum strata_result r = open_memory(d, a, err);
    if (!r)
        r = open_events(d, err);
    if (!r)
        r = st_expert_store_fill(&d->store, c->experts.profile, NULL, c->experts.slots,
                                 d->rooms ? st_room_bytes(&d->room[d->rooms - 1].size) : 0, err);
    if (!r)
        r = open_host_model(d, c, err);
    if (!r)
        r = st_team_create(c->experts.threads, 0, &e->team, err);
    if (!r)
        st_team_linger(e->team, LINGER);
    if (!r)
        r = fill_slots(d, err);
    const struct st_expert_host_config host = {.store = &d->store,
                                               .profile = c->experts.profile,
                                               .budget = c->experts.arena,
                                               .team = e->team,
                                               .lock = lock,
                                               .unlock = unlock,
                                               .user = d};
    if (!r)
        r = st_expert_host_open(&host, &e->host, err);
    const struct st_helper_config helper = {.dev = c->experts.helper,
                                            .store = &d->store,
                                            .profile = c->experts.profile,
                                            .layer = e->layer,
                                            .shape = a,
                                            .slots = c->experts.helper_slots};
    if (!r && helper.dev)
        r = st_helper_open(&helper, &e->helper, err);
    if (r)
        return r;
    struct st_expert_host_stats stats;
    st_expert_host_stats(e->host, &stats);
    if (stats.refused[0])
        snprintf(d->base.note, sizeof d->base.note, "%.1f of %.1f MiB of experts in host memory are page-locked: %s",
                 (double)stats.locked / (1 << 20), (double)stats.arena / (1 << 20), stats.refused);
    return first_places(d, err);
}

void st_device_experts_close(struct device_stage *d)
{
    struct st_device_experts *e = d->experts;
    if (e) {
        const struct st_runtime *t = st_device_table(d);
        for (int kind = 0; kind < ST_WINDOW_KINDS; kind++)
            for (int n = 0; n < ST_STAGE_GRAPHS; n++) {
                size_t count = 2 * st_experts_commands(kind <= ST_WINDOW_COMMIT ? &d->base.trunk : &d->base.draft) + 1;
                for (size_t i = 0; e->graphs[kind][n] && i < count; i++)
                    if (e->graphs[kind][n][i])
                        t->graph_free(e->graphs[kind][n][i]);
                free(e->graphs[kind][n]);
            }
        t->event_free(e->routed);
        t->event_free(e->exchanged);
        for (int i = 0; i < ST_RING_PARTS; i++) {
            t->event_free(e->ready[i]);
            t->event_free(e->free_again[i]);
        }
        st_helper_close(e->helper);
        st_expert_host_close(e->host);
        st_team_free(e->team);
        for (uint32_t k = 0; e->layer && k < d->store.set.count; k++)
            for (int i = 0; i < 3; i++)
                free(e->layer[k].at[i]);
        free(e->layer);
        st_program_free(&e->trunk);
        st_program_free(&e->draft);
        st_model_close(&e->model);
        t->host_free(d->dev->rt, e->locked);
        free(e->memory);
        free(e);
    }
    st_expert_store_free(&d->store);
}
