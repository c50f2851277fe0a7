/* Owns a helper's memory and what it launches. */
#include "engine/helper.h"

#include <stdlib.h>
#include <string.h>

#include "kernel/gpu/layout.h"
#include "kernel/gpu_norm.h"

enum { PIECE = 32 << 20 /* bytes that experts come through */ };

/* Where things lie, of the host's numbers in page-locked memory and of everything on the device. */
struct input {
    int32_t *ids, *first, *entry;
    float *m;
};

struct st_helper {
    struct st_device *dev;
    const struct st_expert_store *stage;
    const struct st_expert_set *set; /* the stage's */
    struct st_expert_store own;      /* what it holds; its set is a copy of the stage's */
    struct st_expert_swap swap[ST_EXPERT_SWAPS];
    uint32_t swaps; /* under way */
    uint32_t experts, used, hidden, width;
    st_addr memory;
    uint64_t bytes; /* of it */
    uint8_t *host;  /* page-locked: input, then rows, then places, then a piece */
    uint64_t in_bytes;
    struct input in, on_device;
    float *rows;
    uint8_t *piece;
    uint64_t *places;    /* [layers][experts], host's copy */
    st_addr lists;
    uint64_t slots_at; /* slots, from the allocation's start */
    struct layer {
        struct st_weight gate, up, down;
    } * layer;
    struct st_experts a;
    struct st_routing routing;
    struct st_act_buffer acts, hacts;
    int32_t n, count; /* rows of the window; entries under way */
    struct st_gpu_target target;
    struct st_gpu_list list;
    struct st_event *done, *copied, *swapped;
};

static uint64_t place_input(struct input *in, const struct st_experts *a, uint8_t *base)
{
    struct st_bump b = {.base = base};
    uint64_t entries = (uint64_t)ST_GPU_WINDOW * a->used;
    in->ids = st_bump_take(&b, entries, sizeof *in->ids);
    in->first = st_bump_take(&b, a->experts + 1ull, sizeof *in->first);
    in->entry = st_bump_take(&b, entries, sizeof *in->entry);
    in->m = st_bump_take(&b, (uint64_t)ST_GPU_WINDOW * a->hidden, sizeof *in->m);
    return b.peak;
}

static size_t act_bytes(enum st_act form, size_t n)
{
    return st_stage_align(st_gpu_act_stride(form, (uint32_t)n));
}

/* Everything but the slots, from base; NULL only counts. */
static uint64_t place_device(struct st_helper *h, const struct st_expert_set *set, const struct st_experts *a,
                             uint8_t *base)
{
    struct st_bump b = {.base = base};
    uint64_t entries = (uint64_t)ST_GPU_WINDOW * a->used;
    uint8_t *in = st_bump_take(&b, place_input(&h->on_device, a, NULL), 1);
    place_input(&h->on_device, a, in);
    h->lists = (st_addr)(uintptr_t)st_bump_take(&b, (uint64_t)set->count * set->experts, sizeof(uint64_t));
    st_act_buffer_place(&h->acts, st_bump_take(&b, st_act_buffer_bytes(ST_GPU_WINDOW, a->hidden, act_bytes), 1),
                        ST_GPU_WINDOW, a->hidden, act_bytes);
    h->a.h = st_bump_take(&b, entries * a->width, sizeof(float));
    st_act_buffer_place(&h->hacts, st_bump_take(&b, st_act_buffer_bytes(entries, a->width, act_bytes), 1), entries,
                        a->width, act_bytes);
    h->a.o = st_bump_take(&b, entries * a->hidden, sizeof(float));
    const struct st_command c = {.op = ST_OP_experts, .u.experts = *a};
    h->target.scratch_bytes = st_gpu_scratch(&c, ST_GPU_WINDOW, &h->target);
    h->target.scratch = (st_addr)(uintptr_t)st_bump_take(&b, h->target.scratch_bytes, 1);
    /* factors of results, of types that have some */
    for (uint32_t k = 0; k < set->count; k++)
        for (int i = 0; i < 3; i++) {
            const float *v = st_bump_take(&b, set->experts, sizeof(float));
            struct st_weight *w = !h->layer ? NULL
                                  : i == 0  ? &h->layer[k].gate
                                  : i == 1  ? &h->layer[k].up
                                            : &h->layer[k].down;
            if (w && w->scale && base)
                w->scale = v;
        }
    return st_stage_align(b.peak);
}

uint64_t st_helper_bytes(const struct st_expert_set *set, const struct st_experts *shape, uint64_t *locked)
{
    struct st_helper h = {0};
    *locked = st_stage_align(place_input(&h.in, shape, NULL)) +
              st_stage_align((uint64_t)ST_GPU_WINDOW * shape->used * shape->hidden * sizeof(float)) +
              st_stage_align((uint64_t)set->count * set->experts * sizeof *h.places) + PIECE;
    return place_device(&h, set, shape, NULL);
}

bool st_helper_has(const struct st_helper *h, uint32_t layer, uint32_t expert)
{
    return h->own.slot_of[(size_t)layer * h->experts + expert] != ST_NO_SLOT;
}

/* ---- opening ---- */

/* Through the page-locked piece: copies and waits, since the file is slower than the link. */
static enum strata_result put(struct st_helper *h, st_addr to, const void *from, uint64_t bytes,
                              struct strata_error *err)
{
    const struct st_runtime *t = h->dev->table;
    enum strata_result r = STRATA_OK;
    for (uint64_t done = 0; done < bytes && !r; done += PIECE) {
        uint64_t n = bytes - done < PIECE ? bytes - done : PIECE;
        memcpy(h->piece, (const uint8_t *)from + done, n);
        r = t->copy_in(h->dev->copy, to + done, h->piece, n, err);
        if (!r)
            r = t->event_record(h->dev->copy, h->copied, err);
        if (!r)
            r = t->queue_flush(h->dev->copy, err);
        if (!r)
            r = st_wait_event(h->dev, h->copied, err);
    }
    return r;
}

static enum strata_result send_places(struct st_helper *h, struct strata_error *err)
{
    for (size_t i = 0; i < (size_t)h->set->count * h->experts; i++) {
        uint32_t slot = h->own.slot_of[i];
        h->places[i] = slot == ST_NO_SLOT ? ST_NO_PLACE : h->slots_at + h->own.slot[slot].at;
    }
    return h->dev->table->copy_in(h->dev->compute, h->lists, h->places,
                                  (uint64_t)h->set->count * h->experts * sizeof *h->places, err);
}

static enum strata_result fill(struct st_helper *h, struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    for (uint32_t i = 0; i < h->own.slots && !r; i++) {
        const struct st_expert_slot *slot = &h->own.slot[i];
        const struct st_expert_layer *l = &h->set->layer[slot->layer];
        for (uint32_t s = 0; s < l->sections && !r; s++)
            r = put(h, h->memory + h->slots_at + slot->at + l->section[s].at,
                    l->section[s].tensor->data + slot->expert * l->section[s].bytes, l->section[s].bytes, err);
    }
    return r ? r : send_places(h, err);
}

/* A weight of the file as the helper has it; its factors are sent to where place_device put them. */
static struct st_weight weight_of(const struct st_helper *h, uint32_t k, const struct st_weight *file, uint32_t section,
                                  uint32_t skip)
{
    struct st_weight w = *file;
    w.data = (const void *)(uintptr_t)(h->memory + h->set->layer[k].section[section].at + skip);
    w.places = (const void *)(uintptr_t)(h->lists + (uint64_t)k * h->experts * sizeof(uint64_t));
    return w;
}

static enum strata_result set_layers(struct st_helper *h, const struct st_helper_config *c, struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    for (uint32_t k = 0; k < h->set->count; k++) {
        const struct st_host_layer *l = &c->layer[k];
        h->layer[k] = (struct layer){.gate = weight_of(h, k, &l->gate, l->section[0], l->skip[0]),
                                     .up = weight_of(h, k, &l->up, l->section[1], l->skip[1]),
                                     .down = weight_of(h, k, &l->down, l->section[2], l->skip[2])};
    }
    place_device(h, h->set, c->shape, (uint8_t *)(uintptr_t)h->memory);
    for (uint32_t k = 0; k < h->set->count && !r; k++) {
        const struct st_weight *own[3] = {&h->layer[k].gate, &h->layer[k].up, &h->layer[k].down};
        const struct st_weight *file[3] = {&c->layer[k].gate, &c->layer[k].up, &c->layer[k].down};
        for (int i = 0; i < 3 && !r; i++)
            if (file[i]->scale)
                r = put(h, st_gpu_at(own[i]->scale), file[i]->scale, file[i]->scale_count * sizeof(float), err);
    }
    return r;
}

static enum strata_result open_memory(struct st_helper *h, const struct st_helper_config *c, struct strata_error *err)
{
    const struct st_runtime *t = h->dev->table;
    size_t n = (size_t)h->set->count * h->experts;
    uint64_t locked, fixed = st_helper_bytes(h->set, c->shape, &locked);
    uint8_t *marks = malloc(n + 1);
    void *memory;
    h->layer = calloc(h->set->count, sizeof *h->layer);
    if (!marks || !h->layer) {
        free(marks);
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for a table of experts", h->dev->name);
    }
    for (size_t i = 0; i < n; i++)
        marks[i] = c->store->slot_of[i] == ST_NO_SLOT ? ST_EXPERT_OUT : ST_EXPERT_KEPT;
    h->own.set = *h->set;
    enum strata_result r = st_expert_store_fill(&h->own, c->profile, marks, c->slots, 0, err);
    free(marks);
    if (!r)
        r = st_device_allocate(h->dev, h->own.bytes + fixed, &h->memory, err);
    h->bytes = r ? 0 : h->own.bytes + fixed;
    if (!r)
        r = t->host_allocate(h->dev->rt, locked, &memory, err);
    if (r)
        return r;
    h->host = memory;
    h->slots_at = fixed;
    h->in_bytes = place_input(&h->in, c->shape, h->host);
    h->rows = (float *)(void *)(h->host + st_stage_align(h->in_bytes));
    h->piece = h->host + locked - PIECE;
    h->places = (uint64_t *)(void *)(h->piece - st_stage_align(n * sizeof *h->places));
    place_device(h, h->set, c->shape, (uint8_t *)(uintptr_t)h->memory);
    return STRATA_OK;
}

enum strata_result st_helper_open(const struct st_helper_config *c, struct st_helper **out, struct strata_error *err)
{
    struct st_helper *h = calloc(1, sizeof *h);
    if (!h)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for a helper", c->dev->name);
    const struct st_runtime *t = c->dev->table;
    h->dev = c->dev;
    h->stage = c->store;
    h->set = &c->store->set;
    h->experts = c->shape->experts;
    h->used = c->shape->used;
    h->hidden = c->shape->hidden;
    h->width = c->shape->width;
    h->target = st_gpu_target_of(&c->dev->info);
    enum strata_result r = t->event_create(c->dev->rt, false, &h->done, err);
    if (!r)
        r = t->event_create(c->dev->rt, false, &h->copied, err);
    if (!r)
        r = t->event_create(c->dev->rt, false, &h->swapped, err);
    if (!r)
        r = open_memory(h, c, err);
    if (!r)
        r = set_layers(h, c, err);
    if (!r)
        r = fill(h, err);
    if (r) {
        st_helper_close(h);
        return st_fail_in(err, r, "%s as a helper", c->dev->name);
    }
    h->routing =
        (struct st_routing){.expert = h->on_device.ids, .first = h->on_device.first, .entry = h->on_device.entry};
    float *at_h = h->a.h, *at_o = h->a.o;
    h->a = *c->shape;
    h->a.h = at_h;
    h->a.o = at_o;
    h->a.n = &h->n;
    h->a.m = h->on_device.m;
    h->a.routing = &h->routing;
    h->a.shared_gate = h->a.shared_up = h->a.shared_down = NULL;
    h->a.acts = &h->acts;
    h->a.hacts = &h->hacts;
    *out = h;
    return STRATA_OK;
}

void st_helper_close(struct st_helper *h)
{
    if (!h)
        return;
    const struct st_runtime *t = h->dev->table;
    st_wait(h->dev, h->dev->copy, NULL);
    st_wait(h->dev, h->dev->compute, NULL);
    t->event_free(h->done);
    t->event_free(h->copied);
    t->event_free(h->swapped);
    t->host_free(h->dev->rt, h->host);
    st_device_release(h->dev, h->memory, h->bytes);
    st_gpu_list_free(&h->list);
    h->own.set = (struct st_expert_set){0}; /* the layers are the stage's */
    st_expert_store_free(&h->own);
    free(h->layer);
    free(h);
}

/* ---- exchanges ---- */

/* Experts that the host has at hand, as many as the piece takes, to the places of others. */
static enum strata_result begin_swaps(struct st_helper *h, const struct st_expert_host *host, struct strata_error *err)
{
    const struct st_runtime *t = h->dev->table;
    struct st_expert_swap swaps[ST_EXPERT_SWAPS];
    uint32_t n = st_expert_store_adapt(&h->own, swaps);
    uint64_t used = 0;
    enum strata_result r = STRATA_OK;
    for (uint32_t i = 0; i < n && !r; i++) {
        const uint8_t *from = st_expert_host_at(host, swaps[i].layer, swaps[i].expert);
        uint64_t bytes = h->set->layer[swaps[i].layer].slot;
        if (!from || used + bytes > PIECE)
            continue;
        memcpy(h->piece + used, from, bytes);
        st_expert_store_take_out(&h->own, swaps[i].slot);
        h->swap[h->swaps++] = swaps[i];
        r = t->copy_in(h->dev->copy, h->memory + h->slots_at + h->own.slot[swaps[i].slot].at, h->piece + used, bytes, err);
        used += bytes;
    }
    if (r || !h->swaps)
        return r;
    r = send_places(h, err);
    if (!r)
        r = t->event_record(h->dev->copy, h->swapped, err);
    return r ? r : t->queue_flush(h->dev->copy, err);
}

enum strata_result st_helper_adapt(struct st_helper *h, const struct st_expert_host *host, bool due,
                                   struct strata_error *err)
{
    bool done = false;
    if (h->swaps) {
        enum strata_result r = h->dev->table->event_query(h->swapped, &done, err);
        if (r || !done)
            return r;
        for (uint32_t i = 0; i < h->swaps; i++)
            st_expert_store_put_in(&h->own, &h->swap[i]);
        h->swaps = 0;
        return send_places(h, err);
    }
    if (!due)
        return STRATA_OK;
    /* What has a slot on the stage's own device is not wanted here. */
    for (size_t i = 0; i < (size_t)h->set->count * h->experts; i++)
        h->own.count[i] = h->stage->slot_of[i] == ST_NO_SLOT ? h->stage->count[i] : 0;
    return begin_swaps(h, host, err);
}

/* ---- windows ---- */

static enum strata_result launch(struct st_helper *h, struct strata_error *err)
{
    static const enum st_gpu_experts_step steps[] = {ST_EXPERTS_BEGIN, ST_EXPERTS_UP, ST_EXPERTS_LATER,
                                                     ST_EXPERTS_DOWN};
    enum strata_result r = STRATA_OK;
    h->list.count = 0;
    h->list.ready.forms = 0;
    for (size_t i = 0; i < sizeof steps / sizeof *steps && !r; i++) {
        const struct st_gpu_experts_part part = {.step = steps[i], .to = h->experts};
        r = st_gpu_lower_experts_part(&h->a, &part, &h->target, &h->list, err);
    }
    if (!r && h->list.failed)
        r = st_fail(err, STRATA_E_MEMORY, "%s: no memory for a list of launches", h->dev->name);
    for (size_t i = 0; i < h->list.count && !r; i++) {
        const struct st_gpu_launch *l = &h->list.launch[i];
        r = st_launch(h->dev, h->dev->compute, l->kernel, l->grid[0], l->grid[1], l->grid[2], l->args,
                      "experts of a helper", err);
    }
    return r;
}

enum strata_result st_helper_begin(struct st_helper *h, uint32_t k, int32_t n, const int32_t *ids, const float *m,
                                   const int32_t *first, const int32_t *entry, struct strata_error *err)
{
    const struct st_runtime *t = h->dev->table;
    h->n = n;
    h->count = first[h->experts];
    memcpy(h->in.ids, ids, (size_t)n * h->used * sizeof *ids);
    memcpy(h->in.first, first, (h->experts + 1) * sizeof *first);
    /* Entries behind the last one are looked at too, and must name some expert. */
    memset(h->in.entry, 0, (size_t)n * h->used * sizeof *entry);
    memcpy(h->in.entry, entry, (size_t)h->count * sizeof *entry);
    memcpy(h->in.m, m, (size_t)n * h->hidden * sizeof *m);
    h->a.gate = &h->layer[k].gate;
    h->a.up = &h->layer[k].up;
    h->a.down = &h->layer[k].down;
    enum strata_result r = t->copy_in(h->dev->compute, st_gpu_at(h->on_device.ids), h->host, h->in_bytes, err);
    if (!r)
        r = launch(h, err);
    if (!r)
        r = t->copy_out(h->dev->compute, h->rows, st_gpu_at(h->a.o), (uint64_t)h->count * h->hidden * sizeof(float),
                        err);
    if (!r)
        r = t->event_record(h->dev->compute, h->done, err);
    return r ? r : t->queue_flush(h->dev->compute, err);
}

enum strata_result st_helper_finish(struct st_helper *h, float *rows, struct strata_error *err)
{
    enum strata_result r = st_wait_event(h->dev, h->done, err);
    if (!r)
        memcpy(rows, h->rows, (size_t)h->count * h->hidden * sizeof *rows);
    return r;
}
