/* Passes of a stage whose experts are not all on its device: windows with the host's step in each layer, prompts that have the
 * missing experts brought through a ring, exchanges. The idea: expert_store.h.
 *
 * Behind the stage's buffers on the device: room for the rows of outputs that come from the host, at a whole number of rows behind
 * each program's own outputs (the sum reads both by one list of row numbers); the two lists of places of every layer; the ring. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/team.h"
#include "engine/expert_host.h"
#include "engine/pace.h"
#include "engine/stage_device.h"
#include "kernel/gpu/layout.h"
#include "kernel/gpu_copy.h"
#include "kernel/multiply.h"

enum {
    RING_PARTS = 3,
    RING_EXPERTS = 16, /* in a part */
    STAGED = 16,       /* experts that are read from the file at a time for the CPU */
    FROM_FILE = 8,     /* exchanges of one adaptation whose expert comes from the file */
    PAGE = 4096,
};

/* A layer as the CPU computes it. */
struct host_layer {
    int32_t layer; /* for messages */
    struct st_weight gate, up, down;
    const uint8_t **at[3];                /* [experts] places of gate, up, down */
    uint32_t section[3], skip[3];         /* where they begin: tensor, and bytes in an expert's part of it */
};

struct exchange {
    struct st_expert_swap swap;
    uint32_t layer, expert; /* who was in the slot */
    uint8_t *spare;         /* where it goes, or NULL: the file has it */
};

struct st_device_experts {
    uint32_t experts, used, hidden, width;
    uint32_t entries;      /* of the largest window */
    uint64_t where_bytes;  /* of the list before the rows from the host */
    st_addr lists, ring;
    uint64_t pitch;        /* of the ring's places */
    /* Page-locked: */
    uint8_t *locked;
    int32_t *ids;          /* [entries] chosen experts of a window */
    float *m;              /* [rows][hidden] its input */
    uint8_t *back;         /* list of rows, then rows, that go to the device */
    uint64_t *places;      /* [layers][2][experts] as on the device */
    int32_t *first[ST_STAGE_PASSES]; /* [layers][experts + 1] of prompts */
    bool counted[ST_STAGE_PASSES];   /* they are on their way */
    /* The CPU's part: */
    struct st_model model; /* weights in the file */
    struct st_program trunk, draft;
    struct st_rows rows;
    struct host_layer *layer;
    const struct st_kernels *kernels;
    struct st_team *team;
    struct st_pace pace;
    struct st_expert_host *host;
    uint8_t *memory;  /* of all that follows */
    float *h;
    struct st_act_buffer acts, hacts;
    uint8_t *staged;  /* [STAGED][sections] buffers of reads */
    int32_t *group;   /* [experts + 1] first, then [entries] entry, [entries] where */
    int32_t *some;    /* [experts + 1] first of the experts that are computed, then [entries] entry */
    uint8_t *wanted;  /* [experts] */
    struct st_event *routed, *ready[RING_PARTS], *free_again[RING_PARTS];
    bool in_use[RING_PARTS];
    struct st_graph **graphs[ST_WINDOW_KINDS][ST_STAGE_GRAPHS];
    struct st_event *exchanged;
    struct exchange exchange[ST_EXPERT_SWAPS];
    uint32_t exchanges; /* under way */
};

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

static uint64_t where_bytes(uint32_t used)
{
    return ((uint64_t)ST_GPU_WINDOW * used * sizeof(int32_t) + 15) / 16 * 16;
}

/* Bytes on the device, in the order in which they lie: rows from the host, with a row and a list before them; lists; ring. */
struct parts {
    uint64_t rows, lists, ring;
};

static struct parts parts_of(const struct device_stage *d, const struct st_experts *a)
{
    uint64_t row = (uint64_t)a->hidden * sizeof(float);
    return (struct parts){.rows = st_stage_align(where_bytes(a->used) + row + (uint64_t)ST_GPU_WINDOW * a->used * row),
                          .lists = st_stage_align((uint64_t)d->store.set.count * 2 * d->store.set.experts * sizeof(uint64_t)),
                          .ring = (uint64_t)RING_PARTS * RING_EXPERTS * st_expert_set_largest(&d->store.set)};
}

/* The page-locked part of host memory; base NULL only counts. */
static uint64_t place_locked(struct st_device_experts *e, const struct device_stage *d, const struct st_experts *a, uint8_t *base)
{
    struct st_bump b = {.base = base};
    uint64_t entries = (uint64_t)ST_GPU_WINDOW * a->used, layers = d->store.set.count, experts = d->store.set.experts;
    e->ids = st_bump_take(&b, entries, sizeof *e->ids);
    e->m = st_bump_take(&b, (uint64_t)ST_GPU_WINDOW * a->hidden, sizeof *e->m);
    e->back = st_bump_take(&b, where_bytes(a->used) + entries * a->hidden * sizeof(float), 1);
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
static uint64_t place_host(struct st_device_experts *e, const struct device_stage *d, const struct st_experts *a, uint8_t *base)
{
    struct st_bump b = {.base = base};
    uint64_t entries = (uint64_t)ST_GPU_WINDOW * a->used, experts = d->store.set.experts;
    e->staged = st_bump_take(&b, STAGED, staged_bytes(d));
    e->h = st_bump_take(&b, entries * a->width, sizeof *e->h);
    st_act_buffer_place(&e->acts, st_bump_take(&b, st_act_buffer_bytes(ST_GPU_WINDOW, a->hidden, st_act_bytes), 1), ST_GPU_WINDOW,
                        a->hidden, st_act_bytes);
    st_act_buffer_place(&e->hacts, st_bump_take(&b, st_act_buffer_bytes(entries, a->width, st_act_bytes), 1), entries, a->width,
                        st_act_bytes);
    e->group = st_bump_take(&b, experts + 1 + 2 * entries, sizeof *e->group);
    e->some = st_bump_take(&b, experts + 1 + entries, sizeof *e->some);
    e->wanted = st_bump_take(&b, experts, 1);
    return (b.peak + PAGE - 1) / PAGE * PAGE;
}

enum strata_result st_device_experts_size(const struct device_stage *d, uint64_t *device, uint64_t *host, uint64_t *locked,
                                          struct strata_error *err)
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

static st_addr list_of(const struct device_stage *d, uint32_t layer)
{
    const struct st_experts *a = shape_of(d);
    uint64_t rows = a ? parts_of(d, a).rows : 0; /* while tensors are counted there are no programs yet */
    return d->memory + d->at.experts + rows + (uint64_t)layer * 2 * d->store.set.experts * sizeof(uint64_t);
}

enum strata_result st_device_put_experts(void *user, const struct st_gguf *g, const struct st_gguf_tensor *t, uint32_t experts,
                                         const void **base, const void **places, struct strata_error *err)
{
    struct device_stage *d = user;
    uint32_t layer, section;
    enum strata_result r = st_expert_set_add(&d->store.set, g, t, experts, &layer, &section, err);
    if (r)
        return r;
    /* Never NULL, which would be an absent weight, also where nothing is allocated yet. */
    st_addr memory = d->memory ? d->memory : ST_STAGE_ALIGN;
    *base = (const void *)(uintptr_t)(memory + d->at.slots + d->store.set.layer[layer].section[section].at);
    *places = (const void *)(uintptr_t)(list_of(d, layer) + (d->memory ? 0 : ST_STAGE_ALIGN));
    return STRATA_OK;
}

/* Which of the set's layers a command computes: commands and tensors come in the same order, the trunk's first. */
static uint32_t layer_of(const struct device_stage *d, const struct st_program *p, const struct st_command *c)
{
    uint32_t k = 0;
    const struct st_program *all[2] = {&d->base.trunk, &d->base.draft};
    for (int i = 0; i < 2; i++)
        for (size_t n = 0; n < all[i]->n_commands; n++) {
            const struct st_command *o = &all[i]->commands[n];
            if (all[i] == p && o == c)
                return k;
            k += o->op == ST_OP_experts;
        }
    return k;
}

/* The address of the first row from the host for the command's outputs, a whole number of rows behind them. */
static st_addr rows_of(const struct device_stage *d, const struct st_experts *a, int32_t *number)
{
    uint64_t row = (uint64_t)a->hidden * sizeof(float), least = d->memory + d->at.experts + where_bytes(a->used);
    uint64_t o = st_gpu_at(a->o), rows = (least - o + row - 1) / row;
    *number = (int32_t)rows;
    return o + rows * row;
}

/* ---- launches ---- */

static enum strata_result give_part(struct device_stage *d, const struct st_command *c, const struct st_gpu_experts_part *part,
                                    struct strata_error *err)
{
    d->list.count = 0;
    d->list.next = NULL;
    d->list.held = NULL;
    enum strata_result r = st_gpu_lower_experts_part(&c->u.experts, part, &d->target, &d->list, err);
    return r ? r : st_device_launch(d, &d->list, c, err);
}

static enum strata_result give_step(struct device_stage *d, const struct st_command *c, enum st_gpu_experts_step step,
                                    struct strata_error *err)
{
    const struct st_gpu_experts_part part = {.step = step, .to = c->u.experts.experts};
    return give_part(d, c, &part, err);
}

/* The forms of the input; and the list of rows as it is when nothing comes from the host. */
static enum strata_result give_begin(struct device_stage *d, const struct st_command *c, struct strata_error *err)
{
    int32_t number;
    const struct st_experts *a = &c->u.experts;
    enum strata_result r = give_step(d, c, ST_EXPERTS_BEGIN, err);
    d->list.count = 0;
    st_gpu_copy(rows_of(d, a, &number) - where_bytes(a->used), st_gpu_at(a->routing->where),
                ((uint64_t)*a->n * a->used * sizeof(int32_t) + 15) / 16 * 16, st_gpu_push(&d->list));
    return r ? r : st_device_launch(d, &d->list, c, err);
}

/* What the device computes while the host does its part. */
static enum strata_result give_own(struct device_stage *d, const struct st_command *c, struct strata_error *err)
{
    enum strata_result r = give_step(d, c, ST_EXPERTS_UP, err);
    if (!r)
        r = give_step(d, c, ST_EXPERTS_MIDDLE, err);
    return r ? r : give_step(d, c, ST_EXPERTS_DOWN, err);
}

static enum strata_result give_end(struct device_stage *d, const struct st_command *c, struct strata_error *err)
{
    int32_t number;
    struct st_gpu_experts_part part = {.step = ST_EXPERTS_END, .to = c->u.experts.experts};
    part.where = rows_of(d, &c->u.experts, &number) - where_bytes(c->u.experts.used);
    return give_part(d, c, &part, err);
}

/* ---- the host's step ---- */

/* A window's entries by expert, as the device has grouped them: first, entry, where behind one another in e->group. */
static enum strata_result group_entries(struct st_device_experts *e, int32_t layer, int32_t entries, struct strata_error *err)
{
    int32_t *first = e->group, *entry = first + e->experts + 1, *where = entry + e->entries;
    memset(first, 0, (e->experts + 1) * sizeof *first);
    for (int32_t i = 0; i < entries; i++) {
        if (e->ids[i] < 0 || (uint32_t)e->ids[i] >= e->experts)
            return st_fail(err, STRATA_E_DEVICE, "layer %d: the router chose expert %d of %u", layer, e->ids[i], e->experts);
        first[e->ids[i] + 1]++;
    }
    for (uint32_t x = 0; x < e->experts; x++)
        first[x + 1] += first[x];
    for (int32_t i = 0; i < entries; i++) {
        int32_t at = first[e->ids[i]]++;
        entry[at] = i;
        where[i] = at;
    }
    for (uint32_t x = e->experts; x > 0; x--)
        first[x] = first[x - 1];
    first[0] = 0;
    return STRATA_OK;
}

struct host_run {
    const struct st_kernels *kernels;
    struct st_experts a;
};

static void run_experts(void *arg, struct st_worker *w)
{
    const struct host_run *run = arg;
    run->kernels->experts(run->kernels, &run->a, w);
}

/* Computes the marked experts' outputs into rows from number `row` on; *row counts on. Their places are set. */
static void compute(struct st_device_experts *e, struct host_layer *l, int32_t n, const uint8_t *marked, int32_t *row)
{
    const int32_t *first = e->group, *entry = first + e->experts + 1;
    int32_t *where = e->group + e->experts + 1 + e->entries, *some = e->some, *list = some + e->experts + 1, count = 0;
    for (uint32_t x = 0; x < e->experts; x++) {
        some[x] = count;
        for (int32_t i = first[x]; i < first[x + 1] && marked[x]; i++) {
            where[entry[i]] = -1 - (*row + count); /* of the host; the address behind it is known later */
            list[count++] = entry[i];
        }
    }
    some[e->experts] = count;
    if (!count)
        return;
    const struct st_routing routing = {.first = some, .entry = list};
    struct host_run run = {.kernels = e->kernels,
                           .a = {.n = &n,
                                 .m = e->m,
                                 .routing = &routing,
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
                                 .hacts = &e->hacts}};
    st_team_run_on(e->team, st_pace_workers(&e->pace), run_experts, &run);
    *row += count;
}

/* Where an expert's matrices are for the CPU; parts: of its tensors. */
static void set_places(struct host_layer *l, uint32_t expert, const uint8_t *const parts[ST_EXPERT_SECTIONS])
{
    for (int k = 0; k < 3; k++)
        l->at[k][expert] = parts[l->section[k]] + l->skip[k];
}

/* Reads for the next experts of wanted that are not in the arena, from expert *next on; returns how many experts. */
static size_t stage_reads(const struct device_stage *d, struct st_device_experts *e, uint32_t k, const uint8_t *wanted,
                          uint32_t *next, struct st_expert_read *reads, size_t *n)
{
    const struct st_expert_layer *l = &d->store.set.layer[k];
    uint8_t *at = e->staged;
    size_t count = 0;
    for (*n = 0; *next < e->experts && count < STAGED; ++*next) {
        if (!wanted[*next] || st_expert_host_at(e->host, k, *next))
            continue;
        for (uint32_t s = 0; s < l->sections; s++) {
            reads[(*n)++] = (struct st_expert_read){.layer = k, .expert = *next, .section = s, .buffer = at};
            at += st_expert_read_room(l->section[s].bytes);
        }
        count++;
    }
    return count;
}

/* Computes the missing experts (marked in e->wanted): those in the arena while the first of the others are read, then those. */
static enum strata_result compute_missing(struct device_stage *d, uint32_t k, int32_t n, int32_t *rows, struct strata_error *err)
{
    struct st_device_experts *e = d->experts;
    const struct st_expert_layer *file = &d->store.set.layer[k];
    struct host_layer *l = &e->layer[k];
    struct st_expert_read reads[STAGED * ST_EXPERT_SECTIONS];
    uint8_t *marked = malloc(e->experts);
    if (!marked)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for a layer's experts", d->base.name);
    uint32_t next = 0;
    size_t n_reads, staged = stage_reads(d, e, k, e->wanted, &next, reads, &n_reads);
    enum strata_result r = st_expert_host_begin(e->host, reads, n_reads, err);
    for (uint32_t x = 0; x < e->experts && !r; x++) {
        const uint8_t *arena = e->wanted[x] ? st_expert_host_at(e->host, k, x) : NULL;
        marked[x] = arena != NULL;
        const uint8_t *parts[ST_EXPERT_SECTIONS];
        for (uint32_t s = 0; s < file->sections && arena; s++)
            parts[s] = arena + file->section[s].at;
        if (arena)
            set_places(l, x, parts);
    }
    if (!r)
        compute(e, l, n, marked, rows);
    while (!r && staged) {
        r = st_expert_host_finish(e->host, err);
        memset(marked, 0, e->experts);
        for (size_t i = 0; i < n_reads && !r; i += file->sections) {
            const uint8_t *parts[ST_EXPERT_SECTIONS];
            for (uint32_t s = 0; s < file->sections; s++)
                parts[s] = reads[i + s].data;
            set_places(l, reads[i].expert, parts);
            marked[reads[i].expert] = 1;
        }
        if (!r)
            compute(e, l, n, marked, rows);
        staged = r ? 0 : stage_reads(d, e, k, e->wanted, &next, reads, &n_reads);
        if (staged)
            r = st_expert_host_begin(e->host, reads, n_reads, err);
    }
    free(marked);
    return r;
}

/* Counts the window's choices and marks those that are missing in e->wanted; returns how many experts are. */
static uint32_t plan_window(struct device_stage *d, uint32_t k)
{
    struct st_device_experts *e = d->experts;
    const uint32_t *slot = d->store.slot_of + (size_t)k * e->experts;
    float *count = d->store.count + (size_t)k * e->experts;
    uint32_t missing = 0;
    for (uint32_t x = 0; x < e->experts; x++) {
        int32_t chosen = e->group[x + 1] - e->group[x];
        e->wanted[x] = chosen && slot[x] == ST_NO_SLOT;
        missing += e->wanted[x];
        count[x] += (float)chosen;
        d->store.asked += chosen > 0;
        d->store.hit += chosen && slot[x] != ST_NO_SLOT;
    }
    return missing;
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

/* The host's step for layer k of the set: waits for the router, computes what is missing, sends it behind what the device does. */
static enum strata_result answer(struct device_stage *d, const struct st_command *c, uint32_t k, struct strata_error *err)
{
    const struct st_runtime *t = st_device_table(d);
    const struct st_experts *a = &c->u.experts;
    struct st_device_experts *e = d->experts;
    int32_t n = *a->n, entries = n * (int32_t)a->used, rows = 0, number;
    enum strata_result r = st_wait_event(d->dev, e->routed, err);
    if (r)
        return st_fail_in(err, r, "router of layer %d", c->layer);
    r = group_entries(e, c->layer, entries, err);
    if (r || !plan_window(d, k))
        return r;
    r = compute_missing(d, k, n, &rows, err);
    if (r)
        return st_fail_in(err, r, "experts of layer %d", c->layer);
    st_addr to = rows_of(d, a, &number);
    const int32_t *where = e->group + e->experts + 1 + e->entries;
    /* The rows begin right behind the list's room. */
    int32_t *list = (int32_t *)(void *)e->back;
    for (int32_t i = 0; i < entries; i++)
        list[i] = where[i] < 0 ? number - 1 - where[i] : where[i];
    return t->copy_in(d->dev->compute, to - e->where_bytes, e->back,
                      e->where_bytes + (uint64_t)rows * a->hidden * sizeof(float), err);
}

/* ---- windows ---- */

/* A stretch of a window between two steps of the host. */
struct stretch {
    const struct st_program *program;
    size_t from, to;              /* commands */
    const struct st_command *end; /* experts whose sum comes first, or NULL */
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
static enum strata_result play(struct device_stage *d, struct st_graph **graph, const struct stretch *s, struct strata_error *err)
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

static size_t commands_with_experts(const struct st_program *p)
{
    size_t n = 0;
    for (size_t i = 0; i < p->n_commands; i++)
        n += p->commands[i].op == ST_OP_experts;
    return n;
}

enum strata_result st_device_experts_window(struct device_stage *d, enum st_window_kind kind, const struct st_program *p,
                                            struct strata_error *err)
{
    const struct st_runtime *t = st_device_table(d);
    struct st_device_experts *e = d->experts;
    struct st_graph ***graphs = &e->graphs[kind][d->rows.n];
    bool trunk = kind <= ST_WINDOW_COMMIT;
    size_t steps = commands_with_experts(p), at = 0;
    if (!*graphs && !(*graphs = calloc(2 * steps + 1, sizeof **graphs)))
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for graphs", d->base.name);
    const struct st_command *before = NULL;
    enum strata_result r = STRATA_OK;
    uint32_t k = trunk ? 0 : (uint32_t)commands_with_experts(&d->base.trunk);
    for (size_t step = 0; step < steps && !r; step++, k++) {
        size_t to = at;
        while (p->commands[to].op != ST_OP_experts)
            to++;
        const struct st_command *c = &p->commands[to];
        const struct stretch ahead = {.program = p, .from = at, .to = to, .end = before, .begin = c}, own = {.own = c};
        bool host = d->store.missing[k] > 0;
        r = play(d, &(*graphs)[2 * step], &ahead, err);
        if (!r && host)
            r = ask_host(d, c, err);
        if (!r)
            r = play(d, &(*graphs)[2 * step + 1], &own, err);
        if (!r)
            r = t->queue_flush(d->dev->compute, err);
        if (!r && host)
            r = answer(d, c, k, err);
        before = c;
        at = to + 1;
    }
    const struct stretch rest = {.program = p, .from = at, .to = p->n_commands, .end = before};
    d->store.windows += trunk;
    return r ? r : play(d, &(*graphs)[2 * steps], &rest, err);
}

/* ---- prompts ---- */

/* Experts [from, to) of a layer, and the part of the ring that their missing ones come to. */
struct run {
    uint32_t from, to;
    int part;
};

/* The second list of layer k: slots, and places in the ring for the missing experts that are wanted (NULL: all); cut into runs.
 * Returns how many; *brought: experts that come through the ring. */
static uint32_t cut(struct device_stage *d, uint32_t k, const uint8_t *wanted, struct run *runs, uint32_t *brought)
{
    struct st_device_experts *e = d->experts;
    const uint32_t *slot = d->store.slot_of + (size_t)k * e->experts;
    uint64_t *place = e->places + ((uint64_t)k * 2 + 1) * e->experts, ring = e->ring - (d->memory + d->at.slots);
    uint32_t n = 0, in_part = 0;
    runs[0] = (struct run){0, 0, 0};
    *brought = 0;
    for (uint32_t x = 0; x < e->experts; x++) {
        bool missing = slot[x] == ST_NO_SLOT, comes = missing && (!wanted || wanted[x]);
        if (comes && in_part == RING_EXPERTS) {
            n++;
            runs[n] = (struct run){x, x, (int)(n % RING_PARTS)};
            in_part = 0;
        }
        place[x] = comes     ? ring + ((uint64_t)runs[n].part * RING_EXPERTS + in_part) * e->pitch
                   : missing ? ST_NO_PLACE
                             : d->store.slot[slot[x]].at;
        in_part += comes;
        *brought += comes;
        runs[n].to = x + 1;
    }
    return n + 1;
}

/* Copies tensors [from, to) of an expert to a place laid out like a slot, if it is in the arena. */
static enum strata_result copy_expert(struct device_stage *d, uint32_t k, const uint8_t *arena, uint32_t from, uint32_t to,
                                      st_addr place, struct strata_error *err)
{
    const struct st_expert_section *a = &d->store.set.layer[k].section[from], *b = &d->store.set.layer[k].section[to - 1];
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
            r = t->copy_in(d->dev->copy, to[j], reads[j].data, d->store.set.layer[reads[j].layer].section[reads[j].section].bytes,
                           err);
        if (!r)
            r = st_device_piece_given(d, piece, err);
    }
    return r;
}

/* Brings tensors [from, to) of the run's missing experts to its part of the ring; the compute queue waits for them. */
static enum strata_result bring(struct device_stage *d, uint32_t k, const struct run *run, uint32_t from, uint32_t to,
                                struct strata_error *err)
{
    const struct st_runtime *t = st_device_table(d);
    struct st_device_experts *e = d->experts;
    const struct st_expert_layer *l = &d->store.set.layer[k];
    const uint64_t *place = e->places + ((uint64_t)k * 2 + 1) * e->experts;
    struct st_expert_read reads[RING_EXPERTS * ST_EXPERT_SECTIONS];
    st_addr to_place[RING_EXPERTS * ST_EXPERT_SECTIONS];
    size_t n = 0;
    enum strata_result r = e->in_use[run->part] ? t->event_wait(d->dev->copy, e->free_again[run->part], err) : STRATA_OK;
    for (uint32_t x = run->from; x < run->to && !r; x++) {
        if (d->store.slot_of[(size_t)k * e->experts + x] != ST_NO_SLOT || place[x] == ST_NO_PLACE)
            continue;
        const uint8_t *arena = st_expert_host_at(e->host, k, x);
        st_addr at = d->memory + d->at.slots + place[x];
        if (arena)
            r = copy_expert(d, k, arena, from, to, at, err);
        for (uint32_t s = from; s < to && !arena; s++) {
            reads[n] = (struct st_expert_read){.layer = k, .expert = x, .section = s};
            to_place[n++] = at + l->section[s].at;
        }
    }
    if (!r)
        r = copy_reads(d, reads, to_place, n, err);
    if (!r)
        r = t->event_record(d->dev->copy, e->ready[run->part], err);
    if (!r)
        r = t->queue_flush(d->dev->copy, err);
    return r ? r : t->event_wait(d->dev->compute, e->ready[run->part], err);
}

/* One of the two phases: gates and ups, or downs. */
static enum strata_result phase(struct device_stage *d, const struct st_command *c, uint32_t k, const struct run *runs, uint32_t n,
                                enum st_gpu_experts_step step, struct strata_error *err)
{
    const struct st_runtime *t = st_device_table(d);
    struct st_device_experts *e = d->experts;
    uint32_t last = d->store.set.layer[k].sections - 1, from = step == ST_EXPERTS_UP ? 0 : last;
    enum strata_result r = STRATA_OK;
    for (uint32_t i = 0; i < n && !r; i++) {
        const struct st_gpu_experts_part part = {.step = step, .from = runs[i].from, .to = runs[i].to, .brought = true};
        r = bring(d, k, &runs[i], from, step == ST_EXPERTS_UP ? last : last + 1, err);
        if (!r)
            r = give_part(d, c, &part, err);
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

static enum strata_result prompt(struct device_stage *d, const struct st_command *c, uint32_t k, struct strata_error *err)
{
    const struct st_runtime *t = st_device_table(d);
    const struct st_experts *a = &c->u.experts;
    struct st_device_experts *e = d->experts;
    int flight = (int)(d->begun % ST_STAGE_PASSES);
    int32_t *first = e->first[flight] + (size_t)k * (e->experts + 1);
    uint64_t list = (uint64_t)e->experts * sizeof(uint64_t);
    bool few = (uint64_t)*a->n * a->used < e->experts && d->store.missing[k];
    struct run *runs = malloc((e->experts / RING_EXPERTS + 2) * sizeof *runs);
    if (!runs)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for a prompt's experts", d->base.name);
    enum strata_result r = give_step(d, c, ST_EXPERTS_BEGIN, err);
    if (!r)
        r = t->copy_out(d->dev->compute, first, st_gpu_at(a->routing->first), (e->experts + 1) * sizeof *first, err);
    e->counted[flight] = true;
    if (!r && few)
        r = wait_for_router(d, c, first, err);
    uint32_t brought, n = cut(d, k, few ? e->wanted : NULL, runs, &brought);
    if (!r)
        r = t->copy_in(d->dev->compute, list_of(d, k) + list, e->places + ((uint64_t)k * 2 + 1) * e->experts, list, err);
    if (!r)
        r = phase(d, c, k, runs, n, ST_EXPERTS_UP, err);
    if (!r)
        r = give_step(d, c, ST_EXPERTS_MIDDLE, err);
    if (!r)
        r = phase(d, c, k, runs, n, ST_EXPERTS_DOWN, err);
    free(runs);
    return r ? r : give_step(d, c, ST_EXPERTS_END, err);
}

enum strata_result st_device_experts_run(struct device_stage *d, const struct st_program *p, const struct st_command *c,
                                         struct strata_error *err)
{
    uint32_t k = layer_of(d, p, c);
    if (*c->u.experts.n > ST_GPU_WINDOW)
        return prompt(d, c, k, err);
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

/* ---- exchanges ---- */

static void set_place(struct device_stage *d, uint32_t layer, uint32_t expert)
{
    struct st_device_experts *e = d->experts;
    uint32_t slot = d->store.slot_of[(size_t)layer * e->experts + expert];
    e->places[(uint64_t)layer * 2 * e->experts + expert] = slot == ST_NO_SLOT ? ST_NO_PLACE : d->store.slot[slot].at;
}

static enum strata_result send_places(struct device_stage *d, struct strata_error *err)
{
    struct st_device_experts *e = d->experts;
    return st_device_table(d)->copy_in(d->dev->compute, e->lists, e->places,
                                       (uint64_t)d->store.set.count * 2 * e->experts * sizeof *e->places, err);
}

static enum strata_result begin_exchange(struct device_stage *d, const struct st_expert_swap *swap, struct strata_error *err)
{
    const struct st_runtime *t = st_device_table(d);
    struct st_device_experts *e = d->experts;
    const struct st_expert_slot *slot = &d->store.slot[swap->slot];
    const struct st_expert_layer *l = &d->store.set.layer[swap->layer];
    const uint8_t *arena = st_expert_host_at(e->host, swap->layer, swap->expert);
    struct exchange *x = &e->exchange[e->exchanges++];
    *x = (struct exchange){.swap = *swap, .layer = slot->layer, .expert = slot->expert};
    st_addr at = d->memory + d->at.slots + slot->at;
    st_expert_store_take_out(&d->store, swap->slot);
    set_place(d, x->layer, x->expert);
    if (arena)
        x->spare = st_expert_host_spare(e->host, l->slot);
    enum strata_result r = x->spare ? t->copy_out(d->dev->copy, x->spare, at, l->slot, err) : STRATA_OK;
    if (!r && arena)
        r = copy_expert(d, swap->layer, arena, 0, l->sections, at, err);
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
        st_expert_store_put_in(&d->store, &back);
        set_place(d, x->layer, x->expert);
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
    enum strata_result r = STRATA_OK;
    for (uint32_t i = 0; i < n && !r; i++) {
        bool arena = st_expert_host_at(e->host, swaps[i].layer, swaps[i].expert);
        from_file += !arena;
        if (arena || from_file <= FROM_FILE)
            r = begin_exchange(d, &swaps[i], err);
    }
    if (!r && e->exchanges) {
        r = send_places(d, err);
        if (!r)
            r = t->event_record(d->dev->copy, e->exchanged, err);
        if (!r)
            r = t->queue_flush(d->dev->copy, err);
    }
    return r;
}

/* The copies are complete. */
static enum strata_result publish(struct device_stage *d, struct strata_error *err)
{
    struct st_device_experts *e = d->experts;
    for (uint32_t i = 0; i < e->exchanges; i++) {
        const struct exchange *x = &e->exchange[i];
        st_expert_store_put_in(&d->store, &x->swap);
        set_place(d, x->swap.layer, x->swap.expert);
        st_expert_host_exchange(e->host, x->swap.layer, x->swap.expert, x->layer, x->expert, x->spare);
    }
    e->exchanges = 0;
    return send_places(d, err);
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
    bool done = false;
    memset(e->counted, 0, sizeof e->counted); /* of passes that failed */
    if (e->exchanges) {
        enum strata_result r = st_device_table(d)->event_query(e->exchanged, &done, err);
        return r || !done ? r : publish(d, err);
    }
    return d->store.windows >= ST_EXPERT_PERIOD && d->store.slots ? adapt(d, err) : STRATA_OK;
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

static enum strata_result open_layer(struct device_stage *d, const struct st_command *c, uint32_t k, struct strata_error *err)
{
    struct st_device_experts *e = d->experts;
    struct host_layer *l = &e->layer[k];
    *l = (struct host_layer){
        .layer = c->layer, .gate = *c->u.experts.gate, .up = *c->u.experts.up, .down = *c->u.experts.down};
    struct st_weight *w[3] = {&l->gate, &l->up, &l->down};
    for (int i = 0; i < 3; i++) {
        if (!find_section(&d->store.set.layer[k], w[i], &l->section[i], &l->skip[i]))
            return st_fail(err, STRATA_E_INTERNAL, "%s: experts of layer %d are not where they were", d->base.name, c->layer);
        if (!(l->at[i] = calloc(e->experts, sizeof *l->at[i])))
            return st_fail(err, STRATA_E_MEMORY, "%s: no memory for a table of experts", d->base.name);
        w[i]->places = l->at[i];
    }
    return STRATA_OK;
}

/* The model once more with weights in the file: what the CPU multiplies with. */
static enum strata_result open_host_model(struct device_stage *d, const struct st_stage_config *c, struct strata_error *err)
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
               ? st_fail(err, STRATA_E_INTERNAL, "%s: %u layers have experts, %u tensors of them", d->base.name, k, d->store.set.count)
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
                                       l->section[s].tensor->data + slot->expert * l->section[s].bytes, l->section[s].bytes, err);
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
    for (int i = 0; i < RING_PARTS && !r; i++) {
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
    enum strata_result r =
        st_device_table(d)->host_allocate(d->dev->rt, place_locked(e, d, a, NULL), &memory, err);
    if (r)
        return r;
    e->locked = memory;
    place_locked(e, d, a, e->locked);
    uint64_t bytes = place_host(e, d, a, NULL);
    if (!(e->memory = aligned_alloc(PAGE, bytes)))
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for %llu bytes beside experts", d->base.name, (unsigned long long)bytes);
    place_host(e, d, a, e->memory);
    return STRATA_OK;
}

/* The lists of places of all layers. */
static enum strata_result first_places(struct device_stage *d, struct strata_error *err)
{
    struct st_device_experts *e = d->experts;
    for (uint32_t k = 0; k < d->store.set.count; k++)
        for (uint32_t x = 0; x < e->experts; x++) {
            set_place(d, k, x);
            e->places[((uint64_t)k * 2 + 1) * e->experts + x] = ST_NO_PLACE;
        }
    return send_places(d, err);
}

enum strata_result st_device_experts_open(struct device_stage *d, const struct st_stage_config *c, struct strata_error *err)
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
    e->where_bytes = where_bytes(a->used);
    e->lists = d->memory + d->at.experts + parts.rows;
    e->ring = e->lists + parts.lists;
    e->pitch = st_expert_set_largest(&d->store.set);
    e->kernels = c->experts.kernels;
    e->pace = st_pace(c->experts.threads);
    enum strata_result r = open_memory(d, a, err);
    if (!r)
        r = open_events(d, err);
    if (!r)
        r = st_expert_store_fill(&d->store, c->experts.profile, c->experts.slots, err);
    if (!r)
        r = open_host_model(d, c, err);
    if (!r)
        r = st_team_create(c->experts.threads, 0, &e->team, err);
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
                size_t count = 2 * commands_with_experts(kind <= ST_WINDOW_COMMIT ? &d->base.trunk : &d->base.draft) + 1;
                for (size_t i = 0; e->graphs[kind][n] && i < count; i++)
                    if (e->graphs[kind][n][i])
                        t->graph_free(e->graphs[kind][n][i]);
                free(e->graphs[kind][n]);
            }
        t->event_free(e->routed);
        t->event_free(e->exchanged);
        for (int i = 0; i < RING_PARTS; i++) {
            t->event_free(e->ready[i]);
            t->event_free(e->free_again[i]);
        }
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
