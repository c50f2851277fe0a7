/* Making a plan: candidates, per-layer sizes from counting binds, ranges by the least predicted time that fits, the
 * chunk of prompts, exact sizes of the stages, refusals. The words for people: plan_text.c. */
#include "engine/plan.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "engine/checkpoint.h"
#include "engine/miss.h"
#include "engine/pipeline.h"

enum {
    BASE_PREFILL = 256, /* what placements with larger chunks are compared with; the most where a CPU computes layers */
    SHARED_PREFILL = 2048,   /* the most where several stages share the work */
    HELPER_LAUNCHES = 8,     /* of a layer's experts on a helper */
    HELPER_FLOATS = 48,      /* bytes over the link for each float of a row: the input once, outputs of some experts */
    EXPERT_LISTS = 16384,    /* lists of places of a layer with 512 experts, in estimates */
    LEAST_PREFILL = 64,      /* smaller automatic chunks would only hide that the memory is too small */
    LOGITS_BYTES = 64 << 20, /* rows of logits kept at once fit in this, but at least a window's */
    WINDOW_ROWS = 8,
    FREE_ORDERS = 10, /* up to so many candidates every order is looked at, more keep the order of their rates */
};

/* Stays free on a device for its driver and others. */
static const double WORTH = 0.98; /* a helper is taken when a token then takes less than this */
static const uint64_t RAM_RESERVE = 1ull << 30, RESERVE = 512ull << 20, RESERVE_DISPLAY = 1ull << 30;

struct candidate {
    struct st_plan_stage stage; /* without a range */
    bool named;
    bool off;                    /* not looked at as a stage */
    bool helps;                  /* has no layers because the user says so, and is to help */
    bool stated;                 /* limit is the user's */
    uint64_t most;               /* bytes of one allocation; 0: not known */
    double out_rate;             /* to the host, bytes per second; 0: no link */
    double notice;               /* seconds until the host sees that the device is done */
    struct st_stage_size *layer; /* [layers] as stages of a single layer */
    struct st_stage_size *least; /* the same with no expert in its memory; NULL: the model has none, or a CPU */
};

/* How many times as long a launch of decoding takes as one of those that a device is measured with: it walks through more
 * reads that wait for each other; and a command on the CPU, which has more barriers. Properties of the model's operations,
 * seen on one card and one CPU (docs/benchmarks.md, "Predictions"); a wrong number misleads predictions and the automatic
 * choice, never results. */
static const double LAUNCH_DEPTH = 1.75, COMMAND_DEPTH = 1.5;

struct planner {
    const struct st_plan_request *q;
    struct st_plan *plan;
    struct candidate candidate[ST_PLAN_STAGES];
    int n;
    bool free_order;
    uint64_t cache_bytes; /* the user's limit of experts in a device's memory, UINT64_MAX for none */
    double cache_share;   /* the same as a share of all, -1 for none */
    bool experts;    /* the model has experts, there are devices, and not all experts are asked for in their memory */
    bool cpu_known;
    struct st_cpu_rates cpu; /* once that is set */
    uint64_t shared; /* bytes of weights that a device's stages hold whatever their layers are */
    struct strata_error *err;
};

/* Sums of a range of layers. */
struct range {
    struct st_stage_size size;
    struct st_stage_size least; /* with no expert in the device's memory */
    uint32_t layers;
};

enum strata_result st_parse_expert_cache(const char *text, uint64_t *bytes, double *share, struct strata_error *err)
{
    size_t n = text ? strlen(text) : 0;
    uint64_t v;
    *bytes = UINT64_MAX;
    *share = -1;
    if (n == 0 || !strcmp(text, "auto") || st_parse_size(text, n, bytes))
        return STRATA_OK;
    if (text[n - 1] == '%' && st_parse_size(text, n - 1, &v) && v <= 100 && isdigit((unsigned char)text[n - 2])) {
        *share = (double)v / 100;
        return STRATA_OK;
    }
    return st_fail(err, STRATA_E_ARGUMENT, "expert cache '%s' is none of auto, a size as in 6G, a share as in 30%%",
                   text);
}

bool st_parse_size(const char *text, size_t size, uint64_t *out)
{
    uint64_t v = 0;
    size_t i = 0;
    for (; i < size && text[i] >= '0' && text[i] <= '9'; i++)
        if (!st_mul_u64(v, 10, &v) || !st_add_u64(v, (uint64_t)(text[i] - '0'), &v))
            return false;
    if (i == 0 || size - i > 1)
        return false;
    unsigned shift = 0;
    if (i < size) {
        const char *units = "KMGT", *u = strchr(units, toupper((unsigned char)text[i]));
        if (!u || !*u)
            return false;
        shift = (unsigned)(u - units + 1) * 10;
    }
    return st_mul_u64(v, (uint64_t)1 << shift, out);
}

static uint64_t align_up(uint64_t v)
{
    return (v + ST_STAGE_ALIGN - 1) / ST_STAGE_ALIGN * ST_STAGE_ALIGN;
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

struct st_placement st_plan_placement(const struct st_placement *base, const struct st_model_dims *dims,
                                      uint32_t prefill)
{
    struct st_placement p = *base;
    uint64_t out = LOGITS_BYTES / ((uint64_t)dims->vocabulary * sizeof(float));
    p.rows = prefill > WINDOW_ROWS ? prefill : WINDOW_ROWS;
    out = out < WINDOW_ROWS ? WINDOW_ROWS : out;
    p.out_rows = out < p.rows ? (uint32_t)out : p.rows;
    return p;
}

/* ---- candidates ---- */

/* What is left for the one allocation of a stage. */
static uint64_t room(const struct candidate *c)
{
    uint64_t left = c->stage.free - c->stage.reserve;
    return c->most && c->most < left ? c->most : left;
}

/* The limit that --vram-limit states for a device; the last item that concerns it holds. */
static enum strata_result stated_limit(const struct planner *p, struct candidate *c)
{
    const char *name = c->stage.name;
    for (const char *at = p->q->vram_limit; at && *at;) {
        size_t n = strcspn(at, ",");
        const char *equal = memchr(at, '=', n), *size = equal ? equal + 1 : at;
        bool mine = !equal || (strlen(name) == (size_t)(equal - at) && !memcmp(at, name, (size_t)(equal - at)));
        uint64_t v;
        if (!st_parse_size(size, n - (size_t)(size - at), &v))
            return st_fail(p->err, STRATA_E_ARGUMENT, "vram limit '%.*s' is no size", (int)n, at);
        if (mine) {
            c->stated = v < room(c);
            c->stage.limit = c->stated ? v : room(c);
        }
        at += n + (at[n] == ',');
    }
    return STRATA_OK;
}

/* Names in --vram-limit must be devices that were found. */
static enum strata_result check_limit_names(const struct planner *p)
{
    for (const char *at = p->q->vram_limit; at && *at;) {
        size_t n = strcspn(at, ","), length = strcspn(at, "=");
        bool known = length >= n;
        for (int i = 0; p->q->devices && i < p->q->devices->count && !known; i++) {
            const char *name = p->q->devices->list[i].name;
            known = strlen(name) == length && !memcmp(name, at, length);
        }
        if (!known)
            return st_fail(p->err, STRATA_E_ARGUMENT, "vram limit '%.*s': there is no device of this name", (int)n, at);
        at += n + (at[n] == ',');
    }
    return STRATA_OK;
}

/* NULL, with a message, when there are too many. */
static struct candidate *new_candidate(struct planner *p)
{
    if (p->n == ST_PLAN_STAGES) {
        st_fail(p->err, STRATA_E_ARGUMENT, "more than %d devices", ST_PLAN_STAGES);
        return NULL;
    }
    struct candidate *c = &p->candidate[p->n++];
    *c = (struct candidate){.stage.found = -1, .stage.helper = -1};
    return c;
}

static enum strata_result add_cpu(struct planner *p, bool named)
{
    struct candidate *c = new_candidate(p);
    if (!c)
        return STRATA_E_ARGUMENT;
    c->named = named;
    snprintf(c->stage.name, sizeof c->stage.name, "cpu");
    snprintf(c->stage.arch, sizeof c->stage.arch, "host");
    return STRATA_OK;
}

/* The chosen device number i. */
static enum strata_result add_device(struct planner *p, int i)
{
    struct candidate *c = new_candidate(p);
    const struct st_found *found = &p->q->devices->list[p->q->devices->chosen[i]];
    struct st_device *dev = p->q->opened[i];
    const struct st_measured *m = &dev->measured;
    if (!c)
        return STRATA_E_ARGUMENT;
    struct st_plan_stage *s = &c->stage;
    s->found = p->q->devices->chosen[i];
    c->named = found->named;
    memcpy(s->name, found->name, sizeof s->name);
    memcpy(s->arch, found->info.arch, sizeof s->arch);
    enum strata_result r = dev->table->memory(dev->rt, &s->free, &s->memory, p->err);
    if (r)
        return r;
    s->taken = s->memory - s->free;
    c->most = found->info.max_allocation;
    s->reserve = p->q->reserve ? p->q->reserve : found->info.features & ST_FEATURE_DISPLAY ? RESERVE_DISPLAY : RESERVE;
    s->reserve = s->reserve < s->free ? s->reserve : s->free;
    s->limit = room(c);
    s->memory_rate = m->dense.rate;
    s->expert_rate = m->experts.rate;
    s->link_rate = m->in_rate;
    s->launch_seconds = LAUNCH_DEPTH * m->dense.start;
    s->link_experts = m->bring;
    s->answer_seconds = m->answer_us * 1e-6;
    c->out_rate = m->out_rate;
    c->notice = m->notice_us * 1e-6;
    return stated_limit(p, c);
}

/* In the order of the list; with "auto" in it every device that is left, and the CPU, in any order. */
static enum strata_result candidates(struct planner *p)
{
    const struct st_devices *set = p->q->devices;
    if (!set)
        return add_cpu(p, true);
    int next = 0;
    bool cpu = false;
    enum strata_result r = STRATA_OK;
    p->free_order = st_devices_automatic(p->q->order);
    for (const char *at = p->q->order ? p->q->order : ""; *at && !r;) {
        size_t n = strcspn(at, ", ");
        if (n == 3 && !memcmp(at, "cpu", 3)) {
            r = cpu ? STRATA_OK : add_cpu(p, true);
            cpu = true;
        } else if (n > 0 && !(n == 4 && !memcmp(at, "auto", 4)) && next < set->chosen_count) {
            r = add_device(p, next++);
        }
        at += n + (at[n] != 0);
    }
    while (next < set->chosen_count && !r)
        r = add_device(p, next++);
    if (!r && p->free_order && !cpu)
        r = add_cpu(p, false);
    return r;
}

/* What the user wants of experts in devices' memory. */
static enum strata_result look_at_experts(struct planner *p)
{
    enum strata_result r = st_parse_expert_cache(p->q->expert_cache, &p->cache_bytes, &p->cache_share, p->err);
    for (int i = 0; i < p->n; i++)
        p->experts = p->experts || (p->candidate[i].stage.found >= 0 && p->q->dims->experts && p->cache_share < 1);
    return r;
}

/* What the CPU does with the model's weights; measured once, where a plan needs it. */
static enum strata_result know_cpu(struct planner *p)
{
    struct st_decode_shape shape;
    struct st_stage_config config = *p->q->config;
    if (p->cpu_known)
        return STRATA_OK;
    config.placement = st_plan_placement(&config.placement, p->q->dims, WINDOW_ROWS);
    config.options.first = 0;
    config.options.end = p->q->dims->layers;
    enum strata_result r = st_stage_shape(&config, &shape, p->err);
    if (!r)
        r = st_cpu_measure(p->q->kernels, p->q->threads, &shape, &p->cpu, p->err);
    p->cpu_known = !r;
    return r;
}

/* Measures the CPU's memory where that decides something or is asked for. */
static enum strata_result measure_cpu(struct planner *p)
{
    for (int i = 0; i < p->n; i++) {
        struct st_plan_stage *s = &p->candidate[i].stage;
        if (s->found >= 0 || (p->n == 1 && !p->q->predict))
            continue;
        enum strata_result r = know_cpu(p);
        if (r)
            return r;
        s->memory_rate = p->cpu.dense.rate;
        s->expert_rate = p->cpu.experts.rate;
        s->launch_seconds = COMMAND_DEPTH * p->cpu.dense.start;
    }
    return STRATA_OK;
}

/* ---- sizes ---- */

/* experts: NULL, or how those of a device's stage are kept. */
static enum strata_result size_with(const struct planner *p, const struct candidate *c, uint32_t first, uint32_t end,
                                    uint32_t prefill, const struct st_stage_experts *experts, struct st_stage_size *out)
{
    struct st_stage_config config = *p->q->config;
    config.placement = st_plan_placement(&config.placement, p->q->dims, prefill);
    config.options.first = first;
    config.options.end = end;
    config.experts = experts ? *experts : (struct st_stage_experts){0};
    return c->stage.found < 0 ? st_stage_cpu_size(&config, p->q->threads, out, p->err)
                              : st_stage_device_size(&config, &p->q->devices->list[c->stage.found].info, out, p->err);
}

/* All weights in the device's memory. */
static enum strata_result size_range(const struct planner *p, const struct candidate *c, uint32_t first, uint32_t end,
                                     uint32_t prefill, struct st_stage_size *out)
{
    return size_with(p, c, first, end, prefill, NULL, out);
}

static struct st_stage_experts some_experts(const struct planner *p, uint64_t slots, uint64_t arena)
{
    return (struct st_stage_experts){
        .cached = true, .slots = slots, .arena = arena, .profile = p->q->profile, .trunk_layers = p->q->dims->layers};
}

static enum strata_result size_least(struct planner *p, struct candidate *c, uint32_t prefill)
{
    const struct st_stage_experts none = some_experts(p, 0, 0);
    uint32_t layers = p->q->dims->layers;
    enum strata_result r = STRATA_OK;
    if (!p->experts || c->stage.found < 0)
        return r;
    if (!c->least && !(c->least = calloc(layers, sizeof *c->least)))
        return st_fail(p->err, STRATA_E_MEMORY, "no memory for a plan of %u layers", layers);
    for (uint32_t k = 0; k < layers && !r; k++)
        r = size_with(p, c, k, k + 1, prefill, &none, &c->least[k]);
    return r;
}

static enum strata_result size_layers(struct planner *p, uint32_t prefill)
{
    uint32_t layers = p->q->dims->layers;
    enum strata_result r = STRATA_OK;
    for (int i = 0; i < p->n && !r; i++) {
        struct candidate *c = &p->candidate[i];
        if (!c->layer && !(c->layer = calloc(layers + 1ull, sizeof *c->layer)))
            return st_fail(p->err, STRATA_E_MEMORY, "no memory for a plan of %u layers", layers);
        for (uint32_t k = 0; k < layers && !r; k++)
            r = size_range(p, c, k, k + 1, prefill, &c->layer[k]);
        if (!r)
            r = size_least(p, c, prefill);
        struct st_stage_size two;
        if (!r && c->stage.found >= 0 && layers > 1) {
            r = size_range(p, c, 0, 2, prefill, &two);
            p->shared = r ? 0 : c->layer[0].weights + c->layer[1].weights - two.weights;
        }
    }
    return r;
}

/* Adds the next layer to a range. Weights, state, launches add up, what holds one layer's work at a time is the
 * largest. */
static void extend_size(const struct planner *p, const struct candidate *c, struct range *range,
                        const struct st_stage_size *one, struct st_stage_size *s)
{
    s->weights += one->weights - (range->layers && c->stage.found >= 0 ? p->shared : 0);
    s->state += one->state;
    s->buffers = max_u64(s->buffers, one->buffers);
    s->rows = max_u64(s->rows, one->rows);
    s->scratch = max_u64(s->scratch, one->scratch);
    s->launches += one->launches;
    s->read += one->read;
    s->all_experts += one->all_experts;
    s->expert_read += one->expert_read;
    s->steps += one->steps;
    s->experts = max_u64(s->experts, one->experts) + (one->experts ? EXPERT_LISTS * one->steps : 0);
    s->room.buffers = max_u64(s->room.buffers, one->room.buffers);
    s->room.rows = max_u64(s->room.rows, one->room.rows);
    s->room.scratch = max_u64(s->room.scratch, one->room.scratch);
    s->room.ring = max_u64(s->room.ring, one->room.ring);
    s->prompts = st_room_bytes(&s->room);
    s->total = align_up(s->weights) + s->prompts + align_up(s->state) + align_up(s->buffers) + align_up(s->experts) +
               align_up(s->rows) + align_up(s->scratch);
}

static void extend(const struct planner *p, const struct candidate *c, struct range *range, uint32_t layer)
{
    extend_size(p, c, range, &c->layer[layer], &range->size);
    if (c->least)
        extend_size(p, c, range, &c->least[layer], &range->least);
    range->layers++;
}

/* Bytes of slots that a device gets for a range's experts: what the user says, otherwise what there is room for. */
static uint64_t slot_room(const struct planner *p, uint64_t room, uint64_t all)
{
    uint64_t stated = p->cache_share >= 0    ? (uint64_t)(p->cache_share * (double)all)
                      : p->cache_bytes < all ? p->cache_bytes
                                             : all;
    bool automatic = p->cache_share < 0 && p->cache_bytes == UINT64_MAX;
    return automatic && room < all ? room : stated;
}

/* Everything in the device's memory: it fits, and nothing else is asked for. */
static bool fits_whole(const struct planner *p, const struct candidate *c, uint64_t total, uint64_t all_experts)
{
    return c->stage.found < 0 || (total <= c->stage.limit && slot_room(p, UINT64_MAX, all_experts) == all_experts);
}

static struct st_plan_time time_of(const struct planner *p, const struct candidate *c, const struct st_stage_size *size,
                                   uint32_t first, uint32_t end)
{
    const struct st_model_dims *d = p->q->dims;
    const struct st_plan_stage *s = &c->stage;
    double in = (first == 0 ? d->hidden : d->wide) * 4.0, out = (end == d->layers ? d->vocabulary : d->wide) * 4.0;
    struct st_plan_time t = {.launch = (double)size->launches * s->launch_seconds};
    t.memory = s->memory_rate > 0 ? (size->read - size->expert_read) / s->memory_rate : 0;
    t.memory += s->expert_rate > 0 ? size->expert_read / s->expert_rate : 0;
    if (s->link_rate > 0 && c->out_rate > 0)
        t.link = in / s->link_rate + out / c->out_rate + c->notice;
    return t;
}

/* Seconds of a token for the missing experts of a stage's layers, of which the CPU and the link compute so many bytes;
 * every layer waits for the host. */
static double miss_seconds(const struct planner *p, const struct candidate *c, double steps, double missed)
{
    double each = steps > 0 ? missed / steps : 0;
    return steps * (c->stage.answer_seconds + st_miss_seconds(p->cpu.experts, c->stage.link_experts, each));
}

/* The same where a share `hit` of the chosen experts is in the device's memory. */
static struct st_plan_time time_with(const struct planner *p, const struct candidate *c,
                                     const struct st_stage_size *size, double hit, uint32_t first, uint32_t end)
{
    struct st_plan_time t = time_of(p, c, size, first, end);
    double missed = (1 - hit) * size->expert_read;
    t.memory -= c->stage.expert_rate > 0 ? missed / c->stage.expert_rate : 0;
    t.misses = miss_seconds(p, c, (double)size->steps, missed);
    return t;
}

static double sum(struct st_plan_time t)
{
    return t.memory + t.misses + t.launch + t.link;
}

/* Predicted time of a range on a candidate; negative when it does not fit. */
static double range_seconds(const struct planner *p, const struct candidate *c, const struct range *range,
                            uint32_t first, uint32_t end)
{
    const struct st_stage_size *least = &range->least;
    if (fits_whole(p, c, range->size.total, least->all_experts))
        return sum(time_of(p, c, &range->size, first, end));
    if (!c->least || !least->all_experts || least->total > c->stage.limit)
        return -1;
    uint64_t room = c->stage.limit - least->total + least->prompts, slots = slot_room(p, room, least->all_experts);
    if (slots > room || !p->cpu_known)
        return -1;
    return sum(time_with(p, c, least, (double)slots / (double)least->all_experts, first, end));
}

/* ---- ranges ---- */

static void take_stage(struct planner *p, int k, const struct candidate *c, uint32_t first, uint32_t end)
{
    struct st_plan_stage *s = &p->plan->stage[k];
    *s = c->stage;
    s->first = first;
    s->end = end;
}

static enum strata_result stated_split(struct planner *p)
{
    const char *at = p->q->layer_split;
    uint32_t first = 0, layers = p->q->dims->layers;
    /* Without names the CPU takes layers only when nothing else is there. */
    int n = p->n > 1 && p->candidate[p->n - 1].stage.found < 0 && !p->candidate[p->n - 1].named ? p->n - 1 : p->n;
    p->plan->n_stages = 0;
    for (int k = 0; k < n; k++) {
        char *end;
        struct candidate *c = &p->candidate[k];
        bool number = isdigit((unsigned char)*at), helps = number && *at == '0' && c->stage.found >= 0;
        unsigned long count = number ? strtoul(at, &end, 10) : 0;
        if (!*at)
            return st_fail(p->err, STRATA_E_ARGUMENT, "layer split '%s' has no number for %s", p->q->layer_split, c->stage.name);
        if (!helps && first == layers)
            return st_fail(p->err, STRATA_E_ARGUMENT, "layer split '%s' leaves no layer for %s", p->q->layer_split, c->stage.name);
        if ((count == 0 && !helps) || count > layers - first)
            return st_fail(p->err, STRATA_E_ARGUMENT, "layer split '%s': device %s needs 1..%u layers",
                           p->q->layer_split, c->stage.name, layers - first);
        c->helps = count == 0;
        if (count)
            take_stage(p, p->plan->n_stages++, c, first, first + (uint32_t)count);
        first += (uint32_t)count;
        at = *end == ',' ? end + 1 : end;
    }
    if (*at)
        return st_fail(p->err, STRATA_E_ARGUMENT, "layer split '%s': '%s' is too much for %d device%s", p->q->layer_split, at, n,
                       n == 1 ? "" : "s");
    if (first != layers)
        return st_fail(p->err, STRATA_E_ARGUMENT, "layer split '%s' gives %u layers to %d device%s; the model has %u",
                       p->q->layer_split, first, n, n == 1 ? "" : "s", layers);
    return STRATA_OK;
}

/* A cell of the table of cheapest placements: the least time of layers 0 .. i - 1, and the stage that comes last there.
 */
struct cell {
    double seconds;
    uint32_t first;
    int16_t candidate;
    uint32_t before; /* state of the cell that it continues */
};

/* States: in a free order the set of candidates that are used, otherwise how many of them have been passed. Twice each:
 * the lowest bit says that the candidate must is among the used ones. */
static uint32_t states_of(const struct planner *p)
{
    return 2 * (p->free_order ? 1u << p->n : (uint32_t)p->n + 1);
}

/* The state after using candidate k in state s; s itself when that is not allowed. */
static uint32_t next_state(const struct planner *p, uint32_t s, int k, int must)
{
    uint32_t held = s >> 1, flag = (s & 1) | (k == must);
    if (p->free_order)
        return held >> k & 1 ? s : (held | 1u << k) << 1 | flag;
    return (uint32_t)k < held ? s : ((uint32_t)k + 1) << 1 | flag;
}

/* Continues the cell of state s and i layers with stages on candidate k of every length that fits. */
static void continue_cell(const struct planner *p, struct cell *cells, uint32_t s, uint32_t i, int k, uint32_t to)
{
    uint32_t layers = p->q->dims->layers;
    const struct candidate *c = &p->candidate[k];
    double before = cells[(size_t)s * (layers + 1) + i].seconds;
    struct range range = {0};
    for (uint32_t end = i + 1; end <= layers; end++) {
        extend(p, c, &range, end - 1);
        double seconds = range_seconds(p, c, &range, i, end), t = before + seconds;
        if (seconds < 0)
            break;
        struct cell *cell = &cells[(size_t)to * (layers + 1) + end];
        if (cell->candidate < 0 || t < cell->seconds)
            *cell = (struct cell){t, i, (int16_t)k, s};
    }
}

/* The cheapest placement, of those that use candidate must if that is one (must < 0: any). *seconds is negative when
 * nothing fits; take: it becomes the plan's stages. */
static enum strata_result cheapest(struct planner *p, int must, bool take, double *seconds)
{
    uint32_t layers = p->q->dims->layers, states = states_of(p), best = 0;
    struct cell *cells = malloc((size_t)states * (layers + 1) * sizeof *cells);
    if (!cells)
        return st_fail(p->err, STRATA_E_MEMORY, "no memory for a plan");
    for (size_t i = 0; i < (size_t)states * (layers + 1); i++)
        cells[i] = (struct cell){.candidate = -1};
    for (uint32_t s = 0; s < states; s++)
        for (uint32_t i = 0; i < layers; i++)
            for (int k = 0; k < p->n && (s == 0 ? i == 0 : cells[(size_t)s * (layers + 1) + i].candidate >= 0); k++) {
                uint32_t to = next_state(p, s, k, must);
                if (to != s && !p->candidate[k].off)
                    continue_cell(p, cells, s, i, k, to);
            }
    *seconds = -1;
    for (uint32_t s = 0; s < states; s++) {
        const struct cell *c = &cells[(size_t)s * (layers + 1) + layers];
        if (c->candidate >= 0 && (must < 0 || (s & 1)) && (*seconds < 0 || c->seconds < *seconds)) {
            *seconds = c->seconds;
            best = s;
        }
    }
    int count = 0;
    for (uint32_t s = best, i = layers; take && *seconds >= 0 && i > 0; count++) {
        const struct cell *c = &cells[(size_t)s * (layers + 1) + i];
        take_stage(p, count, &p->candidate[c->candidate], c->first, i);
        i = c->first;
        s = c->before;
    }
    for (int k = 0; k < count / 2; k++) {
        struct st_plan_stage swap = p->plan->stage[k];
        p->plan->stage[k] = p->plan->stage[count - 1 - k];
        p->plan->stage[count - 1 - k] = swap;
    }
    p->plan->n_stages = take ? count : p->plan->n_stages;
    free(cells);
    return STRATA_OK;
}

static const struct candidate *candidate_of(const struct planner *p, const struct st_plan_stage *s)
{
    for (int k = 0; k < p->n; k++)
        if (p->candidate[k].stage.found == s->found)
            return &p->candidate[k];
    return NULL;
}

static bool is_used(const struct planner *p, const struct candidate *c)
{
    for (int k = 0; k < p->plan->n_stages; k++)
        if (p->plan->stage[k].found == c->stage.found)
            return true;
    return false;
}

static bool is_helper(const struct st_plan *plan, int found)
{
    for (int k = 0; k < plan->n_stages; k++)
        if (plan->stage[k].helper == found)
            return true;
    return false;
}

/* A line for each device without layers. That the CPU has none is worth a line only to those who named it. seconds: of the placement,
 * as cheapest says; what the plan says later comes from the stages' own sizes. */
static enum strata_result note_idle(struct planner *p, double seconds)
{
    const double least = 1e-7; /* seconds that are worth a number */
    enum strata_result r = STRATA_OK;
    for (int k = 0; k < p->n && !r; k++) {
        const struct candidate *c = &p->candidate[k];
        double with;
        if (is_used(p, c) || is_helper(p->plan, c->stage.found) || (c->stage.found < 0 && !c->named))
            continue;
        r = cheapest(p, k, false, &with);
        if (!r && with < 0)
            st_plan_note(p->plan, "%s is left out: no layer fits in the %llu bytes that it may use", c->stage.name,
                         (unsigned long long)c->stage.limit);
        else if (!r && with - seconds < least)
            st_plan_note(p->plan, "%s is left out: a token takes %.3f ms, and no less with it", c->stage.name, p->plan->seconds * 1e3);
        else if (!r)
            st_plan_note(p->plan, "%s is left out: a token takes %.3f ms, and %.4f ms more with it", c->stage.name,
                         p->plan->seconds * 1e3, (with - seconds) * 1e3);
    }
    return r;
}

/* ---- refusals ---- */

static enum strata_result too_small(const struct planner *p, const struct st_plan_stage *s)
{
    const struct st_stage_size *z = &s->size;
    const struct candidate *c = candidate_of(p, s);
    char why[120];
    if (c && c->stated)
        snprintf(why, sizeof why, "as --vram-limit says");
    else if (c && s->limit == c->most)
        snprintf(why, sizeof why, "its driver allows no larger allocation");
    else
        snprintf(why, sizeof why, "%llu are free and %llu of them stay so", (unsigned long long)s->free,
                 (unsigned long long)s->reserve);
    return st_fail(p->err, STRATA_E_DEVICE,
                   "%s: layers %u..%u take %llu bytes (weights %llu, slots of experts %llu, prompts beside them %llu, "
                   "state %llu, buffers %llu, for experts %llu, "
                   "rows %llu, scratch %llu), %llu may be used: %s",
                   s->name, s->first, s->end - 1, (unsigned long long)z->total, (unsigned long long)z->weights,
                   (unsigned long long)z->slots, (unsigned long long)z->prompts, (unsigned long long)z->state, (unsigned long long)z->buffers,
                   (unsigned long long)z->experts, (unsigned long long)z->rows, (unsigned long long)z->scratch,
                   (unsigned long long)s->limit, why);
}

/* No placement fits: the numbers of the only device, or of all. */
static enum strata_result no_room(struct planner *p, uint32_t prefill)
{
    uint32_t layers = p->q->dims->layers;
    if (p->n == 1) {
        struct st_plan_stage s = p->candidate[0].stage;
        s.end = layers;
        const struct st_stage_experts none = some_experts(p, 0, 0);
        enum strata_result r =
            size_with(p, &p->candidate[0], 0, layers, prefill, p->candidate[0].least ? &none : NULL, &s.size);
        return r ? r : too_small(p, &s);
    }
    struct range all = {0};
    for (uint32_t i = 0; i < layers; i++)
        extend(p, &p->candidate[0], &all, i);
    if (p->candidate[0].least)
        all.size = all.least;
    char list[300] = "";
    for (int k = 0; k < p->n; k++) {
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s %s may take %llu", used ? "," : "", p->candidate[k].stage.name,
                 (unsigned long long)p->candidate[k].stage.limit);
    }
    return st_fail(p->err, STRATA_E_DEVICE,
                   "the model does not fit: %llu bytes of weights and state, and %llu of buffers on each device;%s",
                   (unsigned long long)(all.size.weights + all.size.state),
                   (unsigned long long)(all.size.total - align_up(all.size.weights) - align_up(all.size.state)), list);
}

/* Two runtimes' views of one card share its memory. */
static const struct st_plan_stage *twin_of(const struct planner *p, const struct st_plan_stage *s)
{
    const char *twin = s->found < 0 ? "" : p->q->devices->list[s->found].twin;
    for (int k = 0; k < p->plan->n_stages; k++)
        if (*twin && !strcmp(p->plan->stage[k].name, twin))
            return &p->plan->stage[k];
    return NULL;
}

static enum strata_result check_limits(const struct planner *p)
{
    const struct st_plan_host *h = &p->plan->host;
    for (int k = 0; k < p->plan->n_stages; k++) {
        const struct st_plan_stage *s = &p->plan->stage[k], *twin = twin_of(p, s);
        if (s->found >= 0 && s->size.total > s->limit)
            return too_small(p, s);
        uint64_t room = twin ? twin->free - twin->reserve : 0;
        if (twin && (twin->size.total > room || s->size.total > room - twin->size.total))
            return st_fail(p->err, STRATA_E_DEVICE,
                           "%s and %s are one card: they take %llu and %llu bytes, %llu may be used", twin->name,
                           s->name, (unsigned long long)twin->size.total, (unsigned long long)s->size.total,
                           (unsigned long long)room);
    }
    if (h->limit && h->total > h->limit)
        return st_fail(
            p->err, STRATA_E_MEMORY,
            "host memory: %llu bytes are planned (page-locked %llu, of them between stages %llu, state %llu, buffers "
            "%llu, "
            "workers %llu, passes %llu, kept states %llu, experts %llu), %llu may be used as --ram-limit says",
            (unsigned long long)h->total, (unsigned long long)h->locked, (unsigned long long)h->hand_off,
            (unsigned long long)h->state, (unsigned long long)h->buffers, (unsigned long long)h->workers,
            (unsigned long long)h->passes, (unsigned long long)h->kept, (unsigned long long)(h->arena + h->experts),
            (unsigned long long)h->limit);
    return STRATA_OK;
}

/* ---- the whole ---- */

static uint64_t file_bytes(const struct st_gguf *g)
{
    uint64_t bytes = 0;
    for (size_t i = 0; g && i < g->n_shards; i++)
        bytes += g->shards[i].map.size;
    return bytes;
}

uint64_t st_plan_recurrent(const struct st_plan *plan)
{
    uint64_t bytes = 0;
    for (int k = 0; k < plan->n_stages; k++)
        bytes += plan->stage[k].size.state - plan->stage[k].size.kv;
    return bytes;
}

/* Memory for checkpoints of every session: their state without what grows with the context. */
static uint64_t default_kept(const struct st_plan *plan)
{
    uint64_t fixed = st_plan_recurrent(plan), head = (uint64_t)plan->placement.slots * sizeof(struct st_checkpoint);
    return fixed ? ST_CHECKPOINTS_KEPT * (fixed + head) : 0;
}

/* Exact size of a stage: whole, or with what is left for slots. */
static enum strata_result size_stage(struct planner *p, const struct candidate *c, struct st_plan_stage *s,
                                     uint32_t prefill)
{
    enum strata_result r = size_range(p, c, s->first, s->end, prefill, &s->size);
    struct st_stage_experts some = some_experts(p, 0, 0);
    s->cached = false;
    s->helper = -1;
    if (r || c->stage.found < 0 || !p->experts)
        return r;
    struct st_stage_size least;
    r = size_with(p, c, s->first, s->end, prefill, &some, &least);
    if (r || fits_whole(p, c, s->size.total, least.all_experts) || !least.all_experts)
        return r;
    r = know_cpu(p);
    if (r)
        return r;
    s->cached = true;
    s->cpu_experts = p->cpu.experts;
    s->size = least;
    if (least.total > s->limit)
        return r;
    some.slots = s->slots = slot_room(p, s->limit - least.total + least.prompts, least.all_experts);
    return size_with(p, c, s->first, s->end, prefill, &some, &s->size);
}

/* Bytes of memory that the system could give now. */
static uint64_t available_memory(void)
{
    FILE *f = fopen("/proc/meminfo", "re");
    char line[128];
    unsigned long long kib = 0;
    while (f && fgets(line, sizeof line, f) && sscanf(line, "MemAvailable: %llu kB", &kib) != 1)
        ;
    if (f)
        fclose(f);
    return kib * 1024;
}

/* Host memory for experts that are not on a device: what the limit leaves, or the system. */
static enum strata_result size_arenas(struct planner *p, uint32_t prefill)
{
    struct st_plan *plan = p->plan;
    struct st_plan_host *h = &plan->host;
    uint64_t room = available_memory();
    room = h->limit ? h->limit : room > RAM_RESERVE ? room - RAM_RESERVE : 0;
    room = room > h->total ? room - h->total : 0;
    for (int k = 0; k < plan->n_stages; k++) {
        struct st_plan_stage *s = &plan->stage[k];
        if (!s->cached)
            continue;
        s->arena = room;
        const struct st_stage_experts some = some_experts(p, s->slots, s->arena);
        enum strata_result r = size_with(p, candidate_of(p, s), s->first, s->end, prefill, &some, &s->size);
        if (r)
            return r;
        room -= s->size.arena;
        h->arena += s->size.arena;
        h->in_file += s->size.in_file;
    }
    h->total += h->arena;
    return STRATA_OK;
}

/* Exact sizes of the stages and of host memory with chunks of prefill rows, and the predicted times. */
static enum strata_result size_stages(struct planner *p, uint32_t prefill)
{
    struct st_plan *plan = p->plan;
    plan->prefill = prefill;
    plan->placement = st_plan_placement(&p->q->config->placement, p->q->dims, prefill);
    plan->host = (struct st_plan_host){.limit = p->q->ram_limit};
    plan->seconds = 0;
    struct st_plan_host *h = &plan->host;
    h->file = file_bytes(p->q->config->gguf) + file_bytes(p->q->config->draft_gguf);
    h->passes = p->q->pass_bytes(p->q->user, &plan->placement);
    for (int k = 0; k < plan->n_stages; k++) {
        struct st_plan_stage *s = &plan->stage[k];
        const struct candidate *c = candidate_of(p, s);
        enum strata_result r = size_stage(p, c, s, prefill);
        if (r)
            return r;
        s->time = s->cached ? time_with(p, c, &s->size, s->size.hit, s->first, s->end)
                            : time_of(p, c, &s->size, s->first, s->end);
        plan->seconds += sum(s->time);
        h->locked += s->size.locked;
        h->experts += s->size.host;
        if (s->found < 0) {
            h->state += s->size.state;
            h->kv += s->size.kv;
            h->buffers += s->size.buffers;
            h->workers += s->size.scratch;
        }
    }
    h->hand_off = (uint64_t)(plan->n_stages - 1) * ST_STAGE_PASSES * st_pipeline_buffer(&plan->placement, p->q->dims);
    uint64_t draft = st_pipeline_draft_buffer(&plan->placement, p->q->dims);
    if (plan->stage[plan->n_stages - 1].found < 0)
        h->passes += draft;
    else
        h->hand_off += draft;
    h->locked += h->hand_off;
    h->kept = p->q->kept ? p->q->kept : default_kept(plan);
    h->total = h->locked + h->state + h->buffers + h->workers + h->passes + h->kept + h->experts;
    return size_arenas(p, prefill);
}

static bool has_cpu(const struct st_plan *plan)
{
    for (int k = 0; k < plan->n_stages; k++)
        if (plan->stage[k].found < 0)
            return true;
    return false;
}

/* Automatic chunks are the most that there may be, and powers of two below. */
static uint32_t chunk_below(uint32_t n)
{
    uint32_t power = ST_PREFILL_MAX;
    while (power >= n)
        power /= 2;
    return power;
}

/* For the stages as they are. A CPU computes a small chunk for seconds already, and between chunks an answer can be
 * ended. Several stages work at the same time on chunks of one prompt, so it has to have some. */
static uint32_t most_chunk(const struct planner *p)
{
    uint32_t most = has_cpu(p->plan) ? BASE_PREFILL : p->plan->n_stages > 1 ? SHARED_PREFILL : ST_PREFILL_MAX;
    uint32_t context = p->q->config->placement.context;
    most = most < p->q->most_prefill ? most : p->q->most_prefill;
    return most < context ? most : context;
}

/* Sizes the stages with chunks of n rows; *fits: within the limits, and for a chunk larger than least within half of
 * the machine's memory. */
static enum strata_result try_chunk(struct planner *p, uint32_t n, uint32_t least, bool *fits)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    uint64_t half = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page / 2 : 0;
    enum strata_result r = size_stages(p, n);
    *fits = !r && !check_limits(p) && (n <= least || p->plan->host.total - p->plan->host.arena <= half);
    return r;
}

/* The largest chunk up to most for which the stages as they are fit; the refusal of the least one when none does. */
static enum strata_result largest_chunk(struct planner *p, uint32_t most, uint32_t least)
{
    enum strata_result r = STRATA_OK;
    bool fits = false;
    for (uint32_t n = most; !r && !fits; n = chunk_below(n)) {
        n = n > least ? n : least;
        r = try_chunk(p, n, least, &fits);
        if (n == least)
            break;
    }
    return r ? r : fits ? STRATA_OK : check_limits(p);
}

/* Layers with buffers for chunks of n rows; *seconds is negative when they do not fit. */
static enum strata_result place_layers(struct planner *p, uint32_t n, double *seconds)
{
    enum strata_result r = size_layers(p, n);
    for (int k = 0; k < p->n && !r; k++) {
        struct range all = {0};
        for (uint32_t i = 0; i < p->q->dims->layers; i++)
            extend(p, &p->candidate[k], &all, i);
        if (!fits_whole(p, &p->candidate[k], all.size.total, all.least.all_experts))
            r = know_cpu(p);
    }
    return r ? r : cheapest(p, -1, true, seconds);
}

/* The layers have their places with chunks of base rows and take *seconds; larger chunks may move them for a little
 * more. */
static enum strata_result larger_chunks(struct planner *p, uint32_t base, uint32_t least, double *seconds)
{
    static const double bearable = 1.02;
    enum strata_result r = STRATA_OK;
    bool fits = false;
    struct st_plan first = *p->plan;
    for (uint32_t n = most_chunk(p); n > base && !r && !fits; n = chunk_below(n)) {
        double t;
        r = place_layers(p, n, &t);
        if (!r && t >= 0 && t <= bearable * *seconds && n <= most_chunk(p))
            r = try_chunk(p, n, base, &fits);
        if (fits)
            *seconds = t;
        else
            *p->plan = first;
    }
    if (r || fits)
        return r;
    r = size_layers(p, base); /* for the notes */
    return r ? r : largest_chunk(p, base, least);
}

/* ---- helpers ---- */

/* The stage that loses most time to experts outside of its device, or NULL. */
static struct st_plan_stage *most_missing(struct st_plan *plan)
{
    struct st_plan_stage *most = NULL;
    for (int k = 0; k < plan->n_stages; k++) {
        struct st_plan_stage *s = &plan->stage[k];
        if (s->cached && s->helper < 0 && s->time.misses > 0 && (!most || s->time.misses > most->time.misses))
            most = s;
    }
    return most;
}

/* Seconds of a token's missing experts when a helper has the share size.helper_hit of what is chosen. */
static double helped_misses(const struct planner *p, const struct candidate *c, const struct candidate *h,
                            const struct st_stage_size *size)
{
    double steps = (double)size->steps, missed = (1 - size->hit) * size->expert_read,
           given = size->helper_hit * size->expert_read;
    double helper = given / h->stage.expert_rate + steps * (2 * h->notice + HELPER_LAUNCHES * h->stage.launch_seconds +
                                                            HELPER_FLOATS * p->q->dims->hidden / h->stage.link_rate);
    double wait = steps * c->stage.answer_seconds, rest = miss_seconds(p, c, steps, missed - given) - wait;
    return wait + (rest > helper ? rest : helper);
}

/* Lets a device without layers compute experts that another one lacks, where that makes a token faster or the user
 * wants it. */
static enum strata_result try_helper(struct planner *p, const struct candidate *h, bool *taken)
{
    struct st_plan *plan = p->plan;
    struct st_plan_stage *s = most_missing(plan);
    *taken = false;
    if (!s || h->stage.found < 0 || is_used(p, h) || is_helper(plan, h->stage.found) || twin_of(p, &h->stage))
        return STRATA_OK;
    const struct candidate *c = candidate_of(p, s);
    struct st_stage_experts some = some_experts(p, s->slots, s->arena);
    some.helper_room = h->stage.limit;
    struct st_stage_size size;
    enum strata_result r = size_with(p, c, s->first, s->end, plan->prefill, &some, &size);
    some.arena -= size.helper_locked < some.arena ? size.helper_locked : some.arena; /* it takes of the same memory */
    if (!r)
        r = size_with(p, c, s->first, s->end, plan->prefill, &some, &size);
    if (r || size.helper_hit <= 0)
        return r;
    bool known = h->stage.expert_rate > 0 && h->stage.link_rate > 0;
    double misses = known ? helped_misses(p, c, h, &size) : s->time.misses;
    if (!h->helps && (!known || misses > WORTH * s->time.misses))
        return STRATA_OK;
    double before = plan->seconds;
    plan->seconds += misses - s->time.misses;
    plan->host.locked += size.helper_locked;
    plan->host.arena -= s->size.arena - size.arena;
    plan->host.in_file += size.in_file - s->size.in_file;
    plan->host.total += size.helper_locked - (s->size.arena - size.arena);
    s->time.misses = misses;
    s->size = size;
    s->arena = some.arena;
    s->helper = h->stage.found;
    *taken = true;
    st_plan_note(plan,
                 "%s helps %s: it computes %.1f MiB of experts of layers %u..%u, %.0f %% of what is chosen; a token "
                 "takes %.3f ms instead of "
                 "%.3f ms",
                 h->stage.name, s->name, (double)size.helper_slots / (1 << 20), s->first, s->end - 1,
                 100 * size.helper_hit, plan->seconds * 1e3, before * 1e3);
    return STRATA_OK;
}

/* All devices without layers. */
static enum strata_result try_helpers(struct planner *p)
{
    enum strata_result r = STRATA_OK;
    bool taken;
    for (int k = 0; k < p->n && !r; k++)
        r = try_helper(p, &p->candidate[k], &taken);
    return r;
}

/* Every device that has layers might help instead: the plan without its layers, where that is faster. */
static enum strata_result stage_or_helper(struct planner *p)
{
    struct st_plan *plan = p->plan;
    enum strata_result r = most_missing(plan) ? try_helpers(p) : STRATA_OK;
    bool several = plan->n_stages > 1 && most_missing(plan) != NULL;
    struct st_plan *best = malloc(sizeof *best);
    if (!best)
        return st_fail(p->err, STRATA_E_MEMORY, "no memory for a plan");
    *best = *plan;
    for (int k = 0; k < p->n && !r && several; k++) {
        struct candidate *c = &p->candidate[k];
        bool taken = false;
        double seconds;
        if (c->stage.found < 0 || !is_used(p, c))
            continue;
        c->off = true;
        r = cheapest(p, -1, true, &seconds);
        if (!r && seconds >= 0)
            r = size_stages(p, best->prefill);
        if (!r && seconds >= 0 && !check_limits(p))
            r = try_helper(p, c, &taken);
        c->off = false;
        if (!r && taken && plan->seconds < WORTH * best->seconds) {
            st_plan_note(plan, "%s has no layers of its own: with some a token takes %.3f ms", c->stage.name,
                         best->seconds * 1e3);
            *best = *plan;
        }
        *plan = *best;
    }
    free(best);
    return r;
}

/* Everything automatic, or a stated chunk. */
static enum strata_result automatic_split(struct planner *p)
{
    uint32_t context = p->q->config->placement.context, least = LEAST_PREFILL < context ? LEAST_PREFILL : context;
    uint32_t base = p->q->prefill ? p->q->prefill : BASE_PREFILL < context ? BASE_PREFILL : context;
    double seconds;
    enum strata_result r = place_layers(p, base, &seconds);
    if (!r && seconds < 0 && !p->q->prefill) {
        base = least;
        r = place_layers(p, base, &seconds);
    }
    if (!r && seconds < 0)
        r = no_room(p, base);
    else if (!r && p->q->prefill)
        r = largest_chunk(p, base, base);
    else if (!r)
        r = larger_chunks(p, base, least, &seconds);
    if (!r)
        r = stage_or_helper(p);
    return r ? r : note_idle(p, seconds);
}

static enum strata_result stated_ranges(struct planner *p)
{
    uint32_t context = p->q->config->placement.context, least = LEAST_PREFILL < context ? LEAST_PREFILL : context;
    enum strata_result r = stated_split(p);
    if (!r)
        r = p->q->prefill ? largest_chunk(p, p->q->prefill, p->q->prefill) : largest_chunk(p, most_chunk(p), least);
    for (int k = 0; k < p->n && !r; k++) {
        const struct candidate *c = &p->candidate[k];
        bool taken = true;
        if (c->helps)
            r = try_helper(p, c, &taken);
        if (!r && !taken)
            r = st_fail(p->err, STRATA_E_ARGUMENT,
                        "layer split '%s': %s has no layers, and there is nothing for it to help with: %s", p->q->layer_split,
                        c->stage.name,
                        most_missing(p->plan) ? "it has no room for experts, or is a device that has layers by another name"
                                              : "no device lacks experts that another one does not hold already");
    }
    return r ? r : check_limits(p);
}

/* By memory rate, the fastest first: the order of many candidates. */
static int by_rate(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return (x->stage.memory_rate < y->stage.memory_rate) - (x->stage.memory_rate > y->stage.memory_rate);
}

enum strata_result st_plan_make(const struct st_plan_request *request, struct st_plan *out, struct strata_error *err)
{
    struct planner p = {.q = request, .plan = out, .err = err};
    enum strata_result r = check_limit_names(&p);
    if (!r)
        r = candidates(&p);
    if (!r)
        r = measure_cpu(&p);
    if (!r)
        r = look_at_experts(&p);
    if (p.free_order && p.n > FREE_ORDERS) {
        qsort(p.candidate, (size_t)p.n, sizeof *p.candidate, by_rate);
        p.free_order = false;
    }
    if (!r)
        r = request->layer_split && strcmp(request->layer_split, "auto") ? stated_ranges(&p) : automatic_split(&p);
    for (int k = 0; k < p.n; k++) {
        free(p.candidate[k].layer);
        free(p.candidate[k].least);
    }
    return r;
}
