/* Prompts of a stage whose experts are not all on its device: the missing ones are brought through a ring. And
 * exchanges: experts that a text wants come to the slots of others. The idea: expert_store.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/helper.h"
#include "engine/profile.h"
#include "engine/stage_experts.h"
#include "kernel/gpu/layout.h"

enum { FROM_FILE = 8 /* exchanges of one adaptation whose expert comes from the file */ };

/* ---- prompts ---- */

/* Experts [from, to) of a layer, and the part of the ring that their missing ones come to. */
struct run {
    uint32_t from, to;
    int part;
};

/* The second list of layer k: slots, and places in the ring for the missing experts that are wanted (NULL: all); cut
 * into runs. Returns how many; *brought: experts that come through the ring. */
static uint32_t cut(struct device_stage *d, uint32_t k, const uint8_t *wanted, struct run *runs, uint32_t *brought)
{
    struct st_device_experts *e = d->experts;
    const uint32_t *slot = d->store.slot_of + (size_t)k * e->experts;
    uint64_t *place = e->places + ((uint64_t)k * 2 + 1) * e->experts;
    /* The end of the memory that slots lend. */
    uint64_t ring = d->at.state - st_stage_align(st_device_experts_ring(d));
    uint32_t n = 0, in_part = 0;
    runs[0] = (struct run){0, 0, 0};
    *brought = 0;
    for (uint32_t x = 0; x < e->experts; x++) {
        bool missing = slot[x] == ST_NO_SLOT, comes = missing && (!wanted || wanted[x]);
        if (comes && in_part == ST_RING_EXPERTS) {
            n++;
            runs[n] = (struct run){x, x, (int)(n % ST_RING_PARTS)};
            in_part = 0;
        }
        place[x] = comes     ? ring + ((uint64_t)runs[n].part * ST_RING_EXPERTS + in_part) * e->pitch
                   : missing ? ST_NO_PLACE
                             : d->at.slots + d->store.slot[slot[x]].at;
        in_part += comes;
        *brought += comes;
        runs[n].to = x + 1;
    }
    return n + 1;
}

/* Copies tensors [from, to) of an expert to a place laid out like a slot, if it is in the arena. */
enum strata_result st_experts_copy(struct device_stage *d, uint32_t k, const uint8_t *arena, uint32_t from, uint32_t to,
                                   st_addr place, struct strata_error *err)
{
    const struct st_expert_section *a = &d->store.set.layer[k].section[from],
                                   *b = &d->store.set.layer[k].section[to - 1];
    return st_device_table(d)->copy_in(d->dev->copy, place + a->at, arena + a->at, b->at + b->bytes - a->at, err);
}

/* Reads from the file what a piece has room for, and copies it to its places. */
static enum strata_result copy_reads(struct device_stage *d, struct st_expert_read *reads, const st_addr *to, size_t n,
                                     struct strata_error *err)
{
    const struct st_runtime *t = st_device_table(d);
    enum strata_result r = STRATA_OK;
    for (size_t i = 0, first; i < n && !r;) {
        int piece;
        uint64_t used = 0;
        r = st_device_take_piece(d, &piece, err);
        for (first = i; i < n && !r; i++) {
            uint64_t room = st_expert_read_room(d->store.set.layer[reads[i].layer].section[reads[i].section].bytes);
            if (used + room > ST_STAGE_PIECE && i > first)
                break;
            if (room > ST_STAGE_PIECE)
                return st_fail(err, STRATA_E_LIMIT, "%s: an expert of %llu bytes is too large", d->base.name,
                               (unsigned long long)room);
            reads[i].buffer = d->piece[piece] + used;
            used += room;
        }
        if (!r)
            r = st_expert_host_begin(d->experts->host, reads + first, i - first, err);
        if (!r)
            r = st_expert_host_finish(d->experts->host, err);
        for (size_t j = first; j < i && !r; j++)
            r = t->copy_in(d->dev->copy, to[j], reads[j].data,
                           d->store.set.layer[reads[j].layer].section[reads[j].section].bytes, err);
        if (!r)
            r = st_device_piece_given(d, piece, err);
    }
    return r;
}

enum strata_result st_experts_bring(struct device_stage *d, uint32_t k, uint32_t first, uint32_t end, int part,
                                    uint32_t from, uint32_t to, struct strata_error *err)
{
    const struct st_runtime *t = st_device_table(d);
    struct st_device_experts *e = d->experts;
    const struct st_expert_layer *l = &d->store.set.layer[k];
    const uint64_t *place = e->places + ((uint64_t)k * 2 + 1) * e->experts;
    struct st_expert_read reads[ST_RING_EXPERTS * ST_EXPERT_SECTIONS];
    st_addr to_place[ST_RING_EXPERTS * ST_EXPERT_SECTIONS];
    size_t n = 0;
    enum strata_result r = e->in_use[part] ? t->event_wait(d->dev->copy, e->free_again[part], err) : STRATA_OK;
    if (!r)
        r = st_profile_copy_begin(d->base.profile, e->layer[k].layer, err);
    for (uint32_t x = first; x < end && !r; x++) {
        if (d->store.slot_of[(size_t)k * e->experts + x] != ST_NO_SLOT || place[x] == ST_NO_PLACE)
            continue;
        const uint8_t *arena = st_expert_host_at(e->host, k, x);
        st_addr at = d->memory + place[x];
        if (arena)
            r = st_experts_copy(d, k, arena, from, to, at, err);
        for (uint32_t s = from; s < to && !arena; s++) {
            reads[n] = (struct st_expert_read){.layer = k, .expert = x, .section = s};
            to_place[n++] = at + l->section[s].at;
        }
    }
    if (!r)
        r = copy_reads(d, reads, to_place, n, err);
    if (!r)
        r = st_profile_copy_end(d->base.profile, err);
    if (!r)
        r = t->event_record(d->dev->copy, e->ready[part], err);
    if (!r)
        r = t->queue_flush(d->dev->copy, err);
    return r ? r : t->event_wait(d->dev->compute, e->ready[part], err);
}

/* One of the two phases: gates and ups, or downs. */
static enum strata_result phase(struct device_stage *d, const struct st_command *c, uint32_t k, const struct run *runs,
                                uint32_t n, enum st_gpu_experts_step step, struct strata_error *err)
{
    const struct st_runtime *t = st_device_table(d);
    struct st_device_experts *e = d->experts;
    uint32_t last = d->store.set.layer[k].sections - 1, from = step == ST_EXPERTS_UP ? 0 : last;
    enum strata_result r = STRATA_OK;
    for (uint32_t i = 0; i < n && !r; i++) {
        const struct st_gpu_experts_part part = {.step = step, .from = runs[i].from, .to = runs[i].to, .brought = true};
        r = st_experts_bring(d, k, runs[i].from, runs[i].to, runs[i].part, from,
                             step == ST_EXPERTS_UP ? last : last + 1, err);
        if (!r)
            r = st_experts_give_part(d, c, &part, err);
        if (!r)
            r = t->event_record(d->dev->compute, e->free_again[runs[i].part], err);
        if (!r)
            r = t->queue_flush(d->dev->compute, err);
        e->in_use[runs[i].part] = true;
    }
    return r;
}

/* Of a prompt that can take but some of the experts: waits for the router and marks them in e->wanted. */
static enum strata_result wait_for_router(struct device_stage *d, const struct st_command *c, const int32_t *first,
                                          struct strata_error *err)
{
    const struct st_runtime *t = st_device_table(d);
    struct st_device_experts *e = d->experts;
    enum strata_result r = t->event_record(d->dev->compute, e->routed, err);
    if (!r)
        r = t->queue_flush(d->dev->compute, err);
    if (!r)
        r = st_wait_event(d->dev, e->routed, err);
    if (r)
        return st_fail_in(err, r, "router of layer %d", c->layer);
    for (uint32_t x = 0; x < e->experts; x++)
        e->wanted[x] = first[x + 1] > first[x];
    return STRATA_OK;
}

enum strata_result st_experts_prompt(struct device_stage *d, const struct st_command *c, uint32_t k,
                                     struct strata_error *err)
{
    const struct st_runtime *t = st_device_table(d);
    const struct st_experts *a = &c->u.experts;
    struct st_device_experts *e = d->experts;
    int flight = (int)(d->begun % ST_STAGE_PASSES);
    int32_t *first = e->first[flight] + (size_t)k * (e->experts + 1);
    uint64_t list = (uint64_t)e->experts * sizeof(uint64_t);
    bool few = (uint64_t)*a->n * a->used < e->experts && d->store.missing[k];
    struct run *runs = malloc((e->experts / ST_RING_EXPERTS + 2) * sizeof *runs);
    if (!runs)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for a prompt's experts", d->base.name);
    enum strata_result r = st_experts_give_step(d, c, ST_EXPERTS_BEGIN, err);
    if (!r)
        r = t->copy_out(d->dev->compute, first, st_gpu_at(a->routing->first), (e->experts + 1) * sizeof *first, err);
    e->counted[flight] = true;
    if (!r && few)
        r = wait_for_router(d, c, first, err);
    uint32_t brought, n = cut(d, k, few ? e->wanted : NULL, runs, &brought);
    if (!r)
        r = t->copy_in(d->dev->compute, st_experts_list(d, k) + list, e->places + ((uint64_t)k * 2 + 1) * e->experts,
                       list, err);
    if (!r)
        r = phase(d, c, k, runs, n, ST_EXPERTS_UP, err);
    if (!r)
        r = st_experts_give_step(d, c, ST_EXPERTS_MIDDLE, err);
    if (!r)
        r = phase(d, c, k, runs, n, ST_EXPERTS_DOWN, err);
    free(runs);
    return r ? r : st_experts_give_step(d, c, ST_EXPERTS_END, err);
}

/* ---- exchanges ---- */

void st_experts_set_place(struct device_stage *d, uint32_t layer, uint32_t expert)
{
    struct st_device_experts *e = d->experts;
    uint32_t slot = d->store.slot_of[(size_t)layer * e->experts + expert];
    e->places[(uint64_t)layer * 2 * e->experts + expert] =
        slot == ST_NO_SLOT ? ST_NO_PLACE : d->at.slots + d->store.slot[slot].at;
}

enum strata_result st_experts_send_places(struct device_stage *d, struct strata_error *err)
{
    struct st_device_experts *e = d->experts;
    return st_device_table(d)->copy_in(d->dev->compute, e->lists, e->places,
                                       (uint64_t)d->store.set.count * 2 * e->experts * sizeof *e->places, err);
}

static enum strata_result begin_exchange(struct device_stage *d, const struct st_expert_swap *swap,
                                         struct strata_error *err)
{
    const struct st_runtime *t = st_device_table(d);
    struct st_device_experts *e = d->experts;
    const struct st_expert_slot *slot = &d->store.slot[swap->slot];
    const struct st_expert_layer *l = &d->store.set.layer[swap->layer];
    const uint8_t *arena = st_expert_host_at(e->host, swap->layer, swap->expert);
    struct st_exchange *x = &e->exchange[e->exchanges++];
    *x = (struct st_exchange){.swap = *swap, .layer = slot->layer, .expert = slot->expert};
    st_addr at = d->memory + d->at.slots + slot->at;
    bool held = st_expert_store_holds(&d->store, swap->slot);
    if (held) {
        st_expert_store_take_out(&d->store, swap->slot);
        st_experts_set_place(d, x->layer, x->expert);
    }
    if (arena && swap->slot < d->store.kept) /* the host has what is in slots that may be lent */
        x->spare = st_expert_host_spare(e->host, l->slot);
    enum strata_result r = x->spare ? t->copy_out(d->dev->copy, x->spare, at, l->slot, err) : STRATA_OK;
    if (!r && arena)
        r = st_experts_copy(d, swap->layer, arena, 0, l->sections, at, err);
    if (r || arena)
        return r;
    struct st_expert_read reads[ST_EXPERT_SECTIONS];
    st_addr to[ST_EXPERT_SECTIONS];
    for (uint32_t s = 0; s < l->sections; s++) {
        reads[s] = (struct st_expert_read){.layer = swap->layer, .expert = swap->expert, .section = s};
        to[s] = at + l->section[s].at;
    }
    r = copy_reads(d, reads, to, l->sections, err);
    if (r) { /* nothing was copied yet: the slot has what it had */
        const struct st_expert_swap back = {swap->slot, x->layer, x->expert};
        if (held)
            st_expert_store_put_in(&d->store, &back);
        st_experts_set_place(d, x->layer, x->expert);
        e->exchanges--;
    }
    return r;
}

static enum strata_result adapt(struct device_stage *d, struct strata_error *err)
{
    const struct st_runtime *t = st_device_table(d);
    struct st_device_experts *e = d->experts;
    struct st_expert_swap swaps[ST_EXPERT_SWAPS];
    uint32_t n = st_expert_store_adapt(&d->store, swaps), from_file = 0;
    enum strata_result r = STRATA_OK, sent = STRATA_OK;
    for (uint32_t i = 0; i < n && !r; i++) {
        bool arena = st_expert_host_at(e->host, swaps[i].layer, swaps[i].expert);
        from_file += !arena;
        if (arena || from_file <= FROM_FILE)
            r = begin_exchange(d, &swaps[i], err);
    }
    if (e->exchanges) { /* also when one could not be read: the others are under way */
        struct strata_error later, *why = r ? &later : err;
        sent = st_experts_send_places(d, why);
        if (!sent)
            sent = t->event_record(d->dev->copy, e->exchanged, why);
        if (!sent)
            sent = t->queue_flush(d->dev->copy, why);
    }
    return r ? r : sent;
}

/* The copies are complete. */
static enum strata_result publish(struct device_stage *d, struct strata_error *err)
{
    struct st_device_experts *e = d->experts;
    for (uint32_t i = 0; i < e->exchanges; i++) {
        const struct st_exchange *x = &e->exchange[i];
        st_expert_store_put_in(&d->store, &x->swap);
        st_experts_set_place(d, x->swap.layer, x->swap.expert);
        if (x->swap.slot < d->store.kept)
            st_expert_host_exchange(e->host, x->swap.layer, x->swap.expert, x->layer, x->expert, x->spare);
    }
    e->exchanges = 0;
    return st_experts_send_places(d, err);
}

const struct st_expert_host *st_device_experts_host(const struct device_stage *d)
{
    return d->experts->host;
}

void st_device_experts_count(struct device_stage *d, int flight)
{
    struct st_device_experts *e = d->experts;
    if (!e || !e->counted[flight])
        return;
    e->counted[flight] = false;
    for (uint32_t k = 0; k < d->store.set.count; k++) {
        const int32_t *first = e->first[flight] + (size_t)k * (e->experts + 1);
        for (uint32_t x = 0; x < e->experts; x++)
            d->store.count[(size_t)k * e->experts + x] += (float)(first[x + 1] - first[x]);
    }
    d->store.windows = ST_EXPERT_PERIOD;
}

enum strata_result st_device_experts_settle(struct device_stage *d, struct strata_error *err)
{
    struct st_device_experts *e = d->experts;
    bool done = false, due = d->store.windows >= ST_EXPERT_PERIOD;
    struct strata_error why;
    memset(e->counted, 0, sizeof e->counted); /* of passes that failed */
    e->lent = 0;
    if (e->helper && !e->helper_lost && st_helper_adapt(e->helper, e->host, due, &why))
        st_experts_lose_helper(d, &why);
    if (e->exchanges) {
        enum strata_result r = st_device_table(d)->event_query(e->exchanged, &done, err);
        r = r || !done ? r : publish(d, err);
        if (r || !done || !d->store.empty)
            return r;
    }
    due = due && (d->store.slots || e->helper);
    return due || d->store.empty ? adapt(d, err) : STRATA_OK;
}

enum strata_result st_device_experts_lend(struct device_stage *d, const struct st_room *room, struct strata_error *err)
{
    struct st_device_experts *e = d->experts;
    uint64_t bytes = st_room_bytes(&room->size);
    if (d->begun == d->finished)
        memset(e->counted, 0, sizeof e->counted);
    if (bytes <= e->lent)
        return STRATA_OK;
    /* What reads or writes the slots ends first. */
    enum strata_result r = st_wait(d->dev, d->dev->compute, err);
    if (!r && e->exchanges)
        r = st_wait_event(d->dev, e->exchanged, err);
    if (!r && e->exchanges)
        r = publish(d, err);
    if (!r)
        r = st_wait(d->dev, d->dev->compute, err); /* the lists are copied, and may change once more */
    if (r)
        return r;
    st_expert_store_lend(&d->store, room->at - d->at.slots);
    e->lent = bytes;
    for (uint32_t k = 0; k < d->store.set.count; k++)
        for (uint32_t x = 0; x < e->experts; x++)
            st_experts_set_place(d, k, x);
    return st_experts_send_places(d, err);
}
