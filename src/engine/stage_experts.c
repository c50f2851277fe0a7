/* Windows of a stage whose experts are not all on its device: the host's step in each layer. The idea: expert_store.h.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/helper.h"
#include "engine/stage_experts.h"
#include "engine/trace.h"
#include "kernel/gpu/layout.h"
#include "kernel/gpu_copy.h"

enum {
    LOOK_AT_LINK = 4,  /* in every so-manieth layer in which the link took part */
    FORGET_LINK = 1000 /* after so many layers in which it did not */
};

/* Which of the set's layers a command computes: commands and tensors come in the same order, the trunk's first. */
static uint32_t layer_of(const struct device_stage *d, const struct st_program *p, const struct st_command *c)
{
    bool draft = p == &d->base.draft;
    for (int i = 0; i < d->rooms; i++)
        draft = draft || p == &d->room[i].draft;
    uint32_t k = draft ? (uint32_t)st_experts_commands(&d->base.trunk) : 0;
    for (const struct st_command *o = p->commands; o != c; o++)
        k += o->op == ST_OP_experts;
    return k;
}

/* The address of the first row from the host for the command's outputs, a whole number of rows behind them. */
static st_addr rows_of(const struct device_stage *d, const struct st_experts *a, int32_t *number)
{
    uint64_t row = (uint64_t)a->hidden * sizeof(float), least = d->memory + d->at.experts + st_where_bytes(a->used);
    uint64_t o = st_gpu_at(a->o), rows = (least - o + row - 1) / row;
    *number = (int32_t)rows;
    return o + rows * row;
}

/* ---- launches ---- */

enum strata_result st_experts_give_part(struct device_stage *d, const struct st_command *c,
                                        const struct st_gpu_experts_part *part, struct strata_error *err)
{
    d->list.count = 0;
    d->list.next = NULL;
    d->list.held = NULL;
    enum strata_result r = st_gpu_lower_experts_part(&c->u.experts, part, &d->target, &d->list, err);
    return r ? r : st_device_launch(d, &d->list, c, err);
}

enum strata_result st_experts_give_step(struct device_stage *d, const struct st_command *c,
                                        enum st_gpu_experts_step step, struct strata_error *err)
{
    const struct st_gpu_experts_part part = {.step = step, .to = c->u.experts.experts};
    return st_experts_give_part(d, c, &part, err);
}

/* The forms of the input; and the list of rows as it is when nothing comes from the host. */
static enum strata_result give_begin(struct device_stage *d, const struct st_command *c, struct strata_error *err)
{
    int32_t number;
    const struct st_experts *a = &c->u.experts;
    enum strata_result r = st_experts_give_step(d, c, ST_EXPERTS_BEGIN, err);
    d->list.count = 0;
    st_gpu_copy(rows_of(d, a, &number) - st_where_bytes(a->used), st_gpu_at(a->routing->where),
                ((uint64_t)*a->n * a->used * sizeof(int32_t) + 15) / 16 * 16, st_gpu_push(&d->list));
    return r ? r : st_device_launch(d, &d->list, c, err);
}

/* What the device computes while the host does its part. */
static enum strata_result give_own(struct device_stage *d, const struct st_command *c, struct strata_error *err)
{
    enum strata_result r = st_experts_give_step(d, c, ST_EXPERTS_UP, err);
    if (!r)
        r = st_experts_give_step(d, c, ST_EXPERTS_MIDDLE, err);
    return r ? r : st_experts_give_step(d, c, ST_EXPERTS_DOWN, err);
}

static enum strata_result give_end(struct device_stage *d, const struct st_command *c, struct strata_error *err)
{
    int32_t number;
    struct st_gpu_experts_part part = {.step = ST_EXPERTS_END, .to = c->u.experts.experts};
    part.where = rows_of(d, &c->u.experts, &number) - st_where_bytes(c->u.experts.used);
    return st_experts_give_part(d, c, &part, err);
}

/* ---- the host's step ---- */

/* A window's entries by expert, as the device has grouped them: first, entry, where behind one another in e->group. first
 * holds for chosen experts x and x + 1 only: a layer has many more, and every microsecond here is one of each layer. */
static enum strata_result group_entries(struct st_device_experts *e, int32_t layer, int32_t entries,
                                        struct strata_error *err)
{
    int32_t *first = e->group, *entry = first + e->experts + 1, *where = entry + e->entries;
    for (int32_t i = 0; i < entries; i++) {
        if (e->ids[i] < 0 || (uint32_t)e->ids[i] >= e->experts)
            return st_fail(err, STRATA_E_DEVICE, "layer %d: the router chose expert %d of %u", layer, e->ids[i],
                           e->experts);
        int32_t at = i;
        for (; at > 0 && e->ids[entry[at - 1]] > e->ids[i]; at--)
            entry[at] = entry[at - 1];
        entry[at] = i;
    }
    e->n_chosen = 0;
    for (int32_t at = 0; at < entries; at++) {
        int32_t x = e->ids[entry[at]];
        where[entry[at]] = at;
        if (at == 0 || e->chosen[e->n_chosen - 1] != x) {
            e->chosen[e->n_chosen++] = x;
            first[x] = at;
        }
        first[x + 1] = at + 1;
    }
    return STRATA_OK;
}

/* Tells the trace what the host did for a layer. Where one thing ends and the next begins is one number. */
static void tell(const struct device_stage *d, const char *lane, int number, const char *name, int layer, double from,
                 double to)
{
    if (d->base.trace)
        st_trace_add(d->base.trace, &(struct st_trace_span){.place = d->base.name, .lane = lane, .number = number, .name = name,
                                                            .layer = layer, .from = from, .to = to});
}

/* What the team computes; the caller's thread does something else until it has time for its part. */
struct host_run {
    const struct device_stage *d;
    const struct st_kernels *kernels;
    struct st_experts a;
    struct st_routing routing;
    int32_t n, layer;
    uint64_t bytes; /* of experts' weights; 0: nothing runs */
    double begun;
    uint64_t sleeps;
    _Atomic uint64_t ended; /* nanoseconds after begun, of the worker that ended last */
};

static void run_experts(void *arg, struct st_worker *w)
{
    struct host_run *run = arg;
    double start = st_trace_now();
    run->kernels->experts(run->kernels, &run->a, w);
    double end = st_trace_now();
    tell(run->d, "worker", (int)w->index, "experts", run->layer, start, end);
    uint64_t mine = (uint64_t)((end - run->begun) * 1e9), last = atomic_load(&run->ended);
    while (mine > last && !atomic_compare_exchange_weak(&run->ended, &last, mine))
        ;
}

/* Begins to compute the marked experts' outputs into rows from number `row` on; *row counts on. Their places are set. */
static void begin_run(const struct device_stage *d, struct st_host_layer *l, int32_t n, uint64_t slot,
                      const uint8_t *marked, struct host_run *run, int32_t *row)
{
    struct st_device_experts *e = d->experts;
    const int32_t *first = e->group, *entry = first + e->experts + 1;
    int32_t *where = e->group + e->experts + 1 + e->entries, *some = e->some, *list = some + e->experts + 1, count = 0;
    struct st_experts_work *work = &e->work;
    *run = (struct host_run){.d = d, .kernels = e->kernels, .n = n, .layer = l->layer};
    work->count = 0;
    work->next = 0;
    for (uint32_t k = 0; k < e->n_chosen; k++) {
        int32_t x = e->chosen[k];
        if (!marked[x])
            continue;
        some[x] = count;
        work->taken[work->count++] = (struct st_experts_taken){.expert = (uint32_t)x};
        for (int32_t i = first[x]; i < first[x + 1]; i++) {
            where[entry[i]] = -1 - (*row + count); /* of the host; the address behind it is known later */
            list[count++] = entry[i];
        }
        some[x + 1] = count;
    }
    if (!count)
        return;
    e->by_cpu += work->count;
    run->bytes = work->count * slot;
    run->routing = (struct st_routing){.first = some, .entry = list};
    run->a = (struct st_experts){.n = &run->n,
                                 .m = e->m,
                                 .routing = &run->routing,
                                 .gate = &l->gate,
                                 .up = &l->up,
                                 .down = &l->down,
                                 .h = e->h,
                                 .o = (float *)(void *)(e->back + e->where_bytes) + (size_t)*row * e->hidden,
                                 .experts = e->experts,
                                 .used = e->used,
                                 .hidden = e->hidden,
                                 .width = e->width,
                                 .shared_width = e->width,
                                 .acts = &e->acts,
                                 .hacts = &e->hacts,
                                 .work = work};
    const struct st_worker alone = {.count = 1};
    run->sleeps = st_team_sleeps(e->team);
    run->begun = st_trace_now();
    st_act_prepare(e->kernels, &e->acts, st_act_mask(&l->gate) | st_act_mask(&l->up), e->m, e->hidden, (size_t)n,
                   e->hidden, &alone);
    st_team_begin(e->team, st_pace_workers(&e->pace), run_experts, run);
    *row += count;
}

/* Takes part in what runs, and ends it. How fast it was decides what the link gets. */
static void end_run(struct st_device_experts *e, struct host_run *run)
{
    if (!run->bytes)
        return;
    st_team_end(e->team);
    double seconds = (double)atomic_load(&run->ended) * 1e-9;
    e->computed += seconds;
    e->cpu_bytes += run->bytes;
    /* Beside what was expected at first: a layer with one expert and one with five are no sign of anything. */
    double expected = st_line_at(e->expected, (double)run->bytes);
    e->expected_seconds += expected;
    st_pace_report(&e->pace, seconds / expected, st_team_sleeps(e->team) - run->sleeps);
    st_miss_add(&e->cpu_times, (double)run->bytes, seconds);
    run->bytes = 0;
}

/* Where an expert's matrices are for the CPU; parts: of its tensors. */
static void set_places(struct st_host_layer *l, uint32_t expert, const uint8_t *const parts[ST_EXPERT_SECTIONS])
{
    for (int k = 0; k < 3; k++)
        l->at[k][expert] = parts[l->section[k]] + l->skip[k];
}

/* Reads for the next of the chosen experts that are wanted and not in the arena, from number *next of them on; returns how
 * many. */
static size_t stage_reads(const struct device_stage *d, struct st_device_experts *e, uint32_t k, const uint8_t *wanted,
                          uint32_t *next, struct st_expert_read *reads, size_t *n)
{
    const struct st_expert_layer *l = &d->store.set.layer[k];
    uint8_t *at = e->staged;
    size_t count = 0;
    for (*n = 0; *next < e->n_chosen && count < ST_STAGED; ++*next) {
        uint32_t x = (uint32_t)e->chosen[*next];
        if (!wanted[x] || st_expert_host_at(e->host, k, x))
            continue;
        for (uint32_t s = 0; s < l->sections; s++) {
            reads[(*n)++] = (struct st_expert_read){.layer = k, .expert = x, .section = s, .buffer = at};
            at += st_expert_read_room(l->section[s].bytes);
        }
        count++;
    }
    return count;
}

/* Missing experts of a layer on the CPU: those in the arena while the first of the others are read, then those. */
struct missing {
    struct host_run run;
    struct st_expert_read reads[ST_STAGED * ST_EXPERT_SECTIONS];
    size_t n_reads, staged;
    uint32_t next; /* of the chosen experts, whose read comes next */
};

/* Begins with those that are marked in e->wanted. finish_missing must follow, also after a failure. */
static enum strata_result begin_missing(struct device_stage *d, uint32_t k, int32_t n, struct missing *m, int32_t *rows,
                                        struct strata_error *err)
{
    struct st_device_experts *e = d->experts;
    const struct st_expert_layer *file = &d->store.set.layer[k];
    struct st_host_layer *l = &e->layer[k];
    m->next = 0;
    m->run.bytes = 0;
    m->staged = stage_reads(d, e, k, e->wanted, &m->next, m->reads, &m->n_reads);
    enum strata_result r = st_expert_host_begin(e->host, m->reads, m->n_reads, err);
    for (uint32_t i = 0; i < e->n_chosen && !r; i++) {
        uint32_t x = (uint32_t)e->chosen[i];
        const uint8_t *arena = e->wanted[x] ? st_expert_host_at(e->host, k, x) : NULL;
        e->marked[x] = arena != NULL;
        const uint8_t *parts[ST_EXPERT_SECTIONS];
        for (uint32_t s = 0; s < file->sections && arena; s++)
            parts[s] = arena + file->section[s].at;
        if (arena)
            set_places(l, x, parts);
    }
    if (!r)
        begin_run(d, l, n, file->slot, e->marked, &m->run, rows);
    return r;
}

static enum strata_result finish_missing(struct device_stage *d, uint32_t k, int32_t n, struct missing *m,
                                         int32_t *rows, struct strata_error *err)
{
    struct st_device_experts *e = d->experts;
    const struct st_expert_layer *file = &d->store.set.layer[k];
    struct st_host_layer *l = &e->layer[k];
    enum strata_result r = STRATA_OK;
    end_run(e, &m->run);
    while (!r && m->staged) {
        r = st_expert_host_finish(e->host, err);
        memset(e->marked, 0, e->experts);
        for (size_t i = 0; i < m->n_reads && !r; i += file->sections) {
            const uint8_t *parts[ST_EXPERT_SECTIONS];
            for (uint32_t s = 0; s < file->sections; s++)
                parts[s] = m->reads[i + s].data;
            set_places(l, m->reads[i].expert, parts);
            e->marked[m->reads[i].expert] = 1;
        }
        if (!r) {
            begin_run(d, l, n, file->slot, e->marked, &m->run, rows);
            end_run(e, &m->run);
            e->from_file += m->staged;
        }
        m->staged = r ? 0 : stage_reads(d, e, k, e->wanted, &m->next, m->reads, &m->n_reads);
        if (m->staged)
            r = st_expert_host_begin(e->host, m->reads, m->n_reads, err);
    }
    return r;
}

/* Counts the window's choices and marks those that are missing in e->wanted; returns how many experts are. */
static uint32_t plan_window(struct device_stage *d, uint32_t k)
{
    struct st_device_experts *e = d->experts;
    const uint32_t *slot = d->store.slot_of + (size_t)k * e->experts;
    float *count = d->store.count + (size_t)k * e->experts;
    uint32_t missing = 0;
    memset(e->wanted, 0, e->experts);
    for (uint32_t i = 0; i < e->n_chosen; i++) {
        int32_t x = e->chosen[i];
        e->wanted[x] = slot[x] == ST_NO_SLOT;
        missing += e->wanted[x];
        count[x] += (float)(e->group[x + 1] - e->group[x]);
    }
    d->store.asked += e->n_chosen;
    d->store.hit += e->n_chosen - missing;
    return missing;
}

/* Marks the link's share of the missing experts with places in the ring, and returns how many they are; they are not
 * wanted any more. Those that most rows have chosen go: a device reads an expert once for all of them. */
static uint32_t give_to_link(struct device_stage *d, uint32_t k, uint32_t missing)
{
    struct st_device_experts *e = d->experts;
    uint64_t *place = e->places + ((uint64_t)k * 2 + 1) * e->experts, ring = e->ring - d->memory;
    uint32_t in_arena = 0, taken = 0;
    for (uint32_t i = 0; i < e->n_chosen; i++)
        in_arena += e->wanted[e->chosen[i]] && st_expert_host_at(e->host, k, (uint32_t)e->chosen[i]);
    uint32_t most = in_arena < ST_RING_EXPERTS ? in_arena : ST_RING_EXPERTS;
    if (missing > 2 && most == missing)
        most--; /* one stays with the CPU, whose time would otherwise never be measured again */
    uint32_t share = st_miss_over_link(st_miss_line(&e->cpu_times), st_miss_line(&e->link_times), missing, most,
                                       (double)d->store.set.layer[k].slot);
    e->without_link = share ? 0 : e->without_link + 1;
    if (e->without_link == FORGET_LINK) /* what it took may be long past */
        e->link_times = st_miss_times(d->dev->measured.bring);
    for (uint32_t x = 0; x < e->experts && share; x++)
        place[x] = ST_NO_PLACE;
    for (int32_t rows = ST_GPU_WINDOW; rows > 0; rows--)
        for (uint32_t i = 0; i < e->n_chosen && taken < share; i++) {
            int32_t x = e->chosen[i];
            if (e->wanted[x] && e->group[x + 1] - e->group[x] == rows && st_expert_host_at(e->host, k, (uint32_t)x)) {
                place[x] = ring + taken++ * e->pitch;
                e->wanted[x] = 0;
            }
        }
    return taken;
}

/* Brings the link's share to the ring and has the device compute it. */
static enum strata_result compute_over_link(struct device_stage *d, const struct st_command *c, uint32_t k,
                                            uint32_t share, struct strata_error *err)
{
    const struct st_runtime *t = st_device_table(d);
    struct st_device_experts *e = d->experts;
    uint64_t *place = e->places + ((uint64_t)k * 2 + 1) * e->experts, bytes = e->experts * sizeof *place;
    if (!share)
        return STRATA_OK;
    e->over_link += share;
    static const enum st_gpu_experts_step steps[3] = {ST_EXPERTS_UP, ST_EXPERTS_LATER, ST_EXPERTS_DOWN};
    enum strata_result r = t->copy_in(d->dev->compute, st_experts_list(d, k) + bytes, place, bytes, err);
    if (!r)
        r = st_experts_bring(d, k, 0, e->experts, 0, 0, d->store.set.layer[k].sections, err);
    for (int i = 0; i < 3 && !r; i++) {
        const struct st_gpu_experts_part part = {.step = steps[i], .to = e->experts, .brought = true};
        r = st_experts_give_part(d, c, &part, err);
    }
    if (!r)
        r = t->event_record(d->dev->compute, e->free_again[0], err);
    e->in_use[0] = true;
    return r ? r : t->queue_flush(d->dev->compute, err);
}

void st_experts_lose_helper(struct device_stage *d, const struct strata_error *why)
{
    d->experts->helper_lost = true;
    snprintf(d->base.note, sizeof d->base.note, "the helper is lost, the CPU computes in its place: %.*s", 240,
             why->text);
}

/* Gives the helper those of the missing experts that it has; they are not wanted any more. Returns their entries, whose
 * rows come first. */
static int32_t ask_helper(struct device_stage *d, uint32_t k, int32_t n)
{
    struct st_device_experts *e = d->experts;
    const int32_t *first = e->group, *entry = first + e->experts + 1;
    int32_t *where = e->group + e->experts + 1 + e->entries, *some = e->some, *list = some + e->experts + 1, count = 0;
    struct strata_error why;
    if (!e->helper || e->helper_lost)
        return 0;
    for (uint32_t x = 0; x < e->experts; x++) {
        some[x] = count;
        e->helped[x] = e->wanted[x] && st_helper_has(e->helper, k, x);
        for (int32_t i = first[x]; i < first[x + 1] && e->helped[x]; i++) {
            where[entry[i]] = -1 - count;
            list[count++] = entry[i];
        }
    }
    some[e->experts] = count;
    if (count && st_helper_begin(e->helper, k, n, e->ids, e->m, some, list, &why)) {
        st_experts_lose_helper(d, &why);
        for (int32_t at = 0; at < n * (int32_t)e->used; at++)
            where[entry[at]] = at; /* some of these may come over the link instead, to the device's own rows */
        return 0;
    }
    for (uint32_t x = 0; x < e->experts && count; x++) {
        e->wanted[x] = e->wanted[x] && !e->helped[x];
        e->by_helper += e->helped[x];
    }
    return count;
}

/* The helper's rows, or the CPU's in their place. */
static enum strata_result helper_rows(struct device_stage *d, uint32_t k, int32_t n, struct strata_error *err)
{
    struct st_device_experts *e = d->experts;
    struct strata_error why;
    int32_t row = 0;
    if (!st_helper_finish(e->helper, (float *)(void *)(e->back + e->where_bytes), &why))
        return STRATA_OK;
    st_experts_lose_helper(d, &why);
    memcpy(e->wanted, e->helped, e->experts);
    struct missing m;
    enum strata_result r = begin_missing(d, k, n, &m, &row, err), end = finish_missing(d, k, n, &m, &row, r ? &why : err);
    return r ? r : end;
}

/* What the link's share took, looked at in some layers. When it was done before the CPU, all that is known is that it did
 * not take longer. */
static enum strata_result learn_link(struct device_stage *d, uint32_t k, uint32_t share, double begun,
                                     struct strata_error *err)
{
    struct st_device_experts *e = d->experts;
    double bytes = share * (double)d->store.set.layer[k].slot;
    bool done;
    if (!share || e->with_link++ % LOOK_AT_LINK)
        return STRATA_OK;
    enum strata_result r = st_device_table(d)->event_query(e->free_again[0], &done, err);
    bool waited = !r && !done;
    if (waited)
        r = st_wait_event(d->dev, e->free_again[0], err);
    double seconds = st_trace_now() - begun;
    if (!r && (waited || seconds < st_line_at(st_miss_line(&e->link_times), bytes)))
        st_miss_add(&e->link_times, bytes, seconds);
    return r;
}

/* The missing experts that are still wanted: the link's share on its way and the CPU's at the same time. */
static enum strata_result compute_missing(struct device_stage *d, const struct st_command *c, uint32_t k, int32_t n,
                                          uint32_t missing, int32_t *rows, struct strata_error *err)
{
    struct missing m;
    struct strata_error later;
    uint32_t share = give_to_link(d, k, missing);
    double begun = st_trace_now();
    enum strata_result r = begin_missing(d, k, n, &m, rows, err);
    double planned = st_trace_now();
    d->experts->planned += planned - d->experts->asked;
    tell(d, "host", -1, "plans", c->layer, d->experts->asked, planned);
    if (!r)
        r = compute_over_link(d, c, k, share, err);
    double alone = st_trace_now();
    tell(d, "host", -1, "gives the link's part", c->layer, planned, alone);
    enum strata_result end = finish_missing(d, k, n, &m, rows, r ? &later : err);
    tell(d, "host", -1, "computes experts", c->layer, alone, st_trace_now());
    r = r ? r : end;
    return r ? r : learn_link(d, k, share, begun, err);
}

/* Gives the copies that the host's step begins with, behind give_begin. */
static enum strata_result ask_host(struct device_stage *d, const struct st_command *c, struct strata_error *err)
{
    const struct st_runtime *t = st_device_table(d);
    const struct st_experts *a = &c->u.experts;
    struct st_device_experts *e = d->experts;
    uint64_t n = (uint64_t)*a->n;
    enum strata_result r =
        t->copy_out(d->dev->compute, e->ids, st_gpu_at(a->routing->expert), n * a->used * sizeof(int32_t), err);
    if (!r)
        r = t->copy_out(d->dev->compute, e->m, st_gpu_at(a->m), n * a->hidden * sizeof(float), err);
    return r ? r : t->event_record(d->dev->compute, e->routed, err);
}

/* The host's step for layer k of the set: waits for the router, computes what is missing, sends it behind what the
 * device does. */
static enum strata_result answer(struct device_stage *d, const struct st_command *c, uint32_t k,
                                 struct strata_error *err)
{
    const struct st_runtime *t = st_device_table(d);
    const struct st_experts *a = &c->u.experts;
    struct st_device_experts *e = d->experts;
    int32_t n = *a->n, entries = n * (int32_t)a->used, rows = 0, number;
    double start = st_trace_now();
    enum strata_result r = st_wait_event(d->dev, e->routed, err);
    e->asked = st_trace_now();
    e->waited += e->asked - start;
    tell(d, "host", -1, "waits for the router", c->layer, start, e->asked);
    e->steps++;
    if (r)
        return st_fail_in(err, r, "router of layer %d", c->layer);
    r = group_entries(e, c->layer, entries, err);
    uint32_t missing = r ? 0 : plan_window(d, k);
    if (r || !missing)
        return r;
    int32_t helped = rows = ask_helper(d, k, n);
    for (uint32_t x = 0; x < e->experts && helped; x++)
        missing -= e->helped[x];
    r = compute_missing(d, c, k, n, missing, &rows, err);
    if (!r && helped)
        r = helper_rows(d, k, n, err);
    if (r)
        return st_fail_in(err, r, "experts of layer %d", c->layer);
    st_addr to = rows_of(d, a, &number);
    const int32_t *where = e->group + e->experts + 1 + e->entries;
    /* The rows begin right behind the list's room. */
    int32_t *list = (int32_t *)(void *)e->back;
    for (int32_t i = 0; i < entries; i++)
        list[i] = where[i] < 0 ? number - 1 - where[i] : where[i];
    r = t->copy_in(d->dev->compute, to - e->where_bytes, e->back,
                   e->where_bytes + (uint64_t)rows * a->hidden * sizeof(float), err);
    e->answered += st_trace_now() - e->asked;
    return r;
}

/* ---- windows ---- */

void st_device_experts_counts(const struct st_stage *stage, struct st_expert_counts *out)
{
    const struct device_stage *d = (const struct device_stage *)stage;
    const struct st_device_experts *e = d->experts;
    *out = (struct st_expert_counts){.chosen = d->store.asked,
                                     .in_slots = d->store.hit,
                                     .by_helper = e->by_helper,
                                     .over_link = e->over_link,
                                     .by_cpu = e->by_cpu,
                                     .from_file = e->from_file};
}

void st_device_experts_report(const struct st_stage *stage, char *out, size_t size)
{
    const struct device_stage *d = (const struct device_stage *)stage;
    const struct st_device_experts *e = d->experts;
    struct st_expert_counts n;
    st_device_experts_counts(stage, &n);
    double asked = n.chosen ? (double)n.chosen : 1, steps = e->steps ? (double)e->steps : 1;
    snprintf(out, size,
             "%s: of the experts that windows chose %.1f %% were in slots, %.1f %% computed by the CPU (%.1f GB/s, "
             "%.0f %% of what the plan measured), %.1f %% brought over the link, %.1f %% computed by a helper; us of a "
             "layer: %.0f giving launches, %.0f until its router had chosen, %.0f planning, %.0f the CPU's experts, %.0f "
             "the rest of the answer",
             stage->name, 100 * (double)n.in_slots / asked, 100 * (double)n.by_cpu / asked,
             e->computed > 0 ? (double)e->cpu_bytes / e->computed * 1e-9 : 0,
             e->computed > 0 ? 100 * e->expected_seconds / e->computed : 0, 100 * (double)n.over_link / asked,
             100 * (double)n.by_helper / asked, e->given / steps * 1e6, e->waited / steps * 1e6, e->planned / steps * 1e6,
             e->computed / steps * 1e6, (e->answered - e->planned - e->computed) / steps * 1e6);
}

/* A stretch of a window between two steps of the host. */
struct stretch {
    const struct st_program *program;
    size_t from, to;                      /* commands */
    const struct st_command *end;         /* experts whose sum comes first, or NULL */
    const struct st_command *begin, *own; /* experts whose input comes last; or that are computed */
};

static enum strata_result give(struct device_stage *d, const struct stretch *s, struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    d->list.ready.forms = 0;
    d->list.held = NULL;
    if (s->own)
        return give_own(d, s->own, err);
    if (s->end)
        r = give_end(d, s->end, err);
    if (!r)
        r = st_device_plain(d, s->program, s->from, s->to, s->to, err);
    return r || !s->begin ? r : give_begin(d, s->begin, err);
}

/* The same by a graph, which is captured the first time. */
static enum strata_result play(struct device_stage *d, struct st_graph **graph, const struct stretch *s,
                               struct strata_error *err)
{
    if (!(d->dev->info.features & ST_FEATURE_GRAPHS))
        return give(d, s, err);
    const struct st_runtime *t = st_device_table(d);
    struct st_graph *captured = NULL;
    enum strata_result r = STRATA_OK;
    if (!*graph) {
        struct strata_error later;
        r = st_capture_begin(d->dev, d->dev->compute, err);
        if (r)
            return r;
        r = give(d, s, err);
        enum strata_result end = st_capture_end(d->dev, d->dev->compute, &captured, r ? &later : err);
        if (r && captured) /* a part of a stretch is none */
            t->graph_free(captured);
        else
            *graph = captured;
        r = r ? r : end;
    }
    return r ? r : t->graph_launch(d->dev->compute, *graph, err);
}

size_t st_experts_commands(const struct st_program *p)
{
    size_t n = 0;
    for (size_t i = 0; i < p->n_commands; i++)
        n += p->commands[i].op == ST_OP_experts;
    return n;
}

enum strata_result st_device_experts_window(struct device_stage *d, enum st_window_kind kind,
                                            const struct st_program *p, struct strata_error *err)
{
    const struct st_runtime *t = st_device_table(d);
    struct st_device_experts *e = d->experts;
    struct st_graph ***graphs = &e->graphs[kind][d->rows.n];
    bool trunk = kind <= ST_WINDOW_COMMIT;
    size_t steps = st_experts_commands(p), at = 0;
    if (!*graphs && !(*graphs = calloc(2 * steps + 1, sizeof **graphs)))
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for graphs", d->base.name);
    const struct st_command *before = NULL;
    enum strata_result r = STRATA_OK;
    uint32_t k = trunk ? 0 : (uint32_t)st_experts_commands(&d->base.trunk);
    for (size_t step = 0; step < steps && !r; step++, k++) {
        size_t to = at;
        while (p->commands[to].op != ST_OP_experts)
            to++;
        const struct st_command *c = &p->commands[to];
        const struct stretch ahead = {.program = p, .from = at, .to = to, .end = before, .begin = c}, own = {.own = c};
        bool host = d->store.missing[k] > 0;
        double start = st_trace_now();
        r = play(d, &(*graphs)[2 * step], &ahead, err);
        if (!r && host)
            r = ask_host(d, c, err);
        if (!r)
            r = play(d, &(*graphs)[2 * step + 1], &own, err);
        if (!r)
            r = t->queue_flush(d->dev->compute, err);
        e->given += st_trace_now() - start;
        if (!r && host)
            r = answer(d, c, k, err);
        before = c;
        at = to + 1;
    }
    const struct stretch rest = {.program = p, .from = at, .to = p->n_commands, .end = before};
    d->store.windows += trunk;
    return r ? r : play(d, &(*graphs)[2 * steps], &rest, err);
}

enum strata_result st_device_experts_run(struct device_stage *d, const struct st_program *p, const struct st_command *c,
                                         struct strata_error *err)
{
    uint32_t k = layer_of(d, p, c);
    if (*c->u.experts.n > ST_GPU_WINDOW)
        return st_experts_prompt(d, c, k, err);
    enum strata_result r = give_begin(d, c, err);
    if (!r)
        r = ask_host(d, c, err);
    if (!r)
        r = give_own(d, c, err);
    if (!r)
        r = st_device_table(d)->queue_flush(d->dev->compute, err);
    if (!r)
        r = answer(d, c, k, err);
    return r ? r : give_end(d, c, err);
}
