/* Plan: candidates in the user's order, per-layer sizes from counting binds, ranges by the least predicted time that fits. */
#include "engine/plan.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

/* What is assumed of memory whose rate nobody has stated, in bytes per second: only the ratio between devices matters. */
static const double CPU_RATE = 40e9, DEVICE_RATE = 400e9;
/* Handing the residual from stage to stage, and what a stage costs beside its bytes. */
static const double HAND_OFF_SECONDS = 30e-6;

struct layer_cost {
    uint64_t weights, state;
    double read; /* bytes that one token reads */
};

struct planner {
    const struct st_plan_request *q;
    struct st_plan *plan;
    struct layer_cost *layer; /* [layers + 1]; the last entry is the head's */
    uint32_t layers;
    uint64_t buffers;
    struct strata_error *err;
};

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

/* ---- sizes ---- */

struct counter {
    uint64_t bytes;
};

static enum strata_result count_weight(void *user, const char *name, const void *data, uint64_t bytes, const void **out,
                                       struct strata_error *err)
{
    (void)name;
    (void)err;
    ((struct counter *)user)->bytes += (bytes + 255) / 256 * 256;
    *out = data;
    return STRATA_OK;
}

/* Bytes of experts, of which a token reads only the used share. */
static double unread_experts(const struct st_program *p)
{
    double bytes = 0;
    for (size_t i = 0; i < p->n_commands; i++)
        if (p->commands[i].op == ST_OP_experts) {
            const struct st_experts *x = &p->commands[i].u.experts;
            double all = (double)x->gate->expert_bytes + (double)x->up->expert_bytes + (double)x->down->expert_bytes;
            bytes += all * (x->experts - x->used);
        }
    return bytes;
}

/* Weights, state and buffers of layers [first, end) on a device. */
static enum strata_result measure_range(const struct planner *p, uint32_t first, uint32_t end, struct layer_cost *cost,
                                        uint64_t *buffers, struct strata_error *err)
{
    struct counter counter = {0};
    struct st_model_options o = p->q->config->options;
    struct st_placement placement = p->q->config->placement;
    struct st_model m = {0};
    struct st_rows rows = {0};
    struct st_bump state = {0}, scratch = {0};
    struct st_program program = {0};
    o.first = first;
    o.end = end;
    o.put = count_weight;
    o.put_user = &counter;
    enum strata_result r = st_model_open(p->q->config->gguf, p->q->config->draft_gguf, &o, &m, err);
    if (!r)
        r = m.family->place(&m, ST_PART_TRUNK, &placement, &rows, &state, &scratch, &program, err);
    if (!r) {
        cost->weights = counter.bytes;
        cost->state = state.peak;
        cost->read = (double)counter.bytes - unread_experts(&program);
        *buffers = scratch.peak;
    }
    st_program_free(&program);
    st_model_close(&m);
    return r;
}

static enum strata_result measure_layers(struct planner *p, struct strata_error *err)
{
    struct st_model m;
    struct st_model_dims dims;
    struct st_model_options whole = p->q->config->options;
    whole.first = whole.end = 0;
    enum strata_result r = st_model_open(p->q->config->gguf, NULL, &whole, &m, err);
    if (r)
        return r;
    m.family->dims(&m, &dims);
    st_model_close(&m);
    p->layers = dims.layers;
    if (!(p->layer = calloc(dims.layers, sizeof *p->layer)))
        return st_fail(err, STRATA_E_MEMORY, "no memory for a plan of %u layers", dims.layers);
    for (uint32_t i = 0; i < dims.layers && !r; i++) {
        uint64_t buffers;
        r = measure_range(p, i, i + 1, &p->layer[i], &buffers, err);
        p->buffers = !r && buffers > p->buffers ? buffers : p->buffers;
    }
    return r;
}

/* ---- candidates ---- */

static double rate_of(const struct planner *p, const struct st_plan_stage *s)
{
    if (s->found < 0)
        return CPU_RATE;
    uint64_t stated = p->q->devices->list[s->found].info.memory_rate;
    return stated ? (double)stated : DEVICE_RATE;
}

/* Limit for a device from --vram-limit; 0 when none names it. */
static enum strata_result stated_limit(const struct planner *p, const char *name, uint64_t *out)
{
    *out = 0;
    const char *at = p->q->vram_limit;
    while (at && *at) {
        size_t n = strcspn(at, ",");
        const char *equal = memchr(at, '=', n), *size = equal ? equal + 1 : at;
        bool mine = !equal || (strlen(name) == (size_t)(equal - at) && !memcmp(at, name, (size_t)(equal - at)));
        uint64_t v;
        if (!st_parse_size(size, n - (size_t)(size - at), &v))
            return st_fail(p->err, STRATA_E_ARGUMENT, "vram limit '%.*s' is no size", (int)n, at);
        *out = mine ? v : *out;
        at += n + (at[n] == ',');
    }
    return STRATA_OK;
}

static enum strata_result add_candidate(struct planner *p, int found)
{
    struct st_plan *plan = p->plan;
    if (plan->n_stages == ST_PLAN_STAGES)
        return st_fail(p->err, STRATA_E_LIMIT, "more than %d devices", ST_PLAN_STAGES);
    struct st_plan_stage *s = &plan->stage[plan->n_stages++];
    *s = (struct st_plan_stage){.found = found};
    if (found < 0) {
        snprintf(s->name, sizeof s->name, "cpu");
        snprintf(s->arch, sizeof s->arch, "host");
        return STRATA_OK;
    }
    const struct st_found *f = &p->q->devices->list[found];
    memcpy(s->name, f->name, sizeof s->name);
    memcpy(s->arch, f->info.arch, sizeof s->arch);
    enum strata_result r = stated_limit(p, s->name, &s->limit);
    uint64_t free_bytes = f->info.memory > p->q->reserve ? f->info.memory - p->q->reserve : 0;
    if (!s->limit || s->limit > free_bytes)
        s->limit = free_bytes;
    return r;
}

/* Chosen devices in the order of the list, with the CPU where the user put it. */
static enum strata_result candidates(struct planner *p)
{
    const struct st_devices *set = p->q->devices;
    if (!set)
        return add_candidate(p, -1);
    int next = 0;
    enum strata_result r = STRATA_OK;
    bool automatic = !p->q->order || !strcmp(p->q->order, "auto");
    for (const char *at = automatic ? "" : p->q->order; *at && !r;) {
        size_t n = strcspn(at, ",");
        if (n == 3 && !memcmp(at, "cpu", 3))
            r = add_candidate(p, -1);
        else if (next < set->chosen_count)
            r = add_candidate(p, set->chosen[next++]);
        at += n + (at[n] == ',');
    }
    while (next < set->chosen_count && !r)
        r = add_candidate(p, set->chosen[next++]);
    if (!r && p->plan->n_stages == 0)
        r = add_candidate(p, -1);
    return r;
}

/* ---- ranges ---- */

static bool fits(const struct planner *p, const struct st_plan_stage *s, uint32_t first, uint32_t end)
{
    uint64_t total = p->buffers;
    for (uint32_t i = first; i < end; i++)
        total += p->layer[i].weights + p->layer[i].state;
    return s->found < 0 || total <= s->limit;
}

static double seconds_of(const struct planner *p, const struct st_plan_stage *s, uint32_t first, uint32_t end)
{
    double read = 0;
    for (uint32_t i = first; i < end; i++)
        read += p->layer[i].read;
    return read / rate_of(p, s) + (end > first ? HAND_OFF_SECONDS : 0);
}

static enum strata_result stated_split(struct planner *p)
{
    const char *at = p->q->layer_split;
    uint32_t first = 0;
    for (int k = 0; k < p->plan->n_stages; k++) {
        char *end;
        unsigned long n = isdigit((unsigned char)*at) ? strtoul(at, &end, 10) : 0;
        if (n == 0 || n > p->layers - first)
            return st_fail(p->err, STRATA_E_ARGUMENT, "layer split '%s': device %s needs 1..%u layers", p->q->layer_split,
                           p->plan->stage[k].name, p->layers - first);
        p->plan->stage[k].first = first;
        first = p->plan->stage[k].end = first + (uint32_t)n;
        at = *end == ',' ? end + 1 : end;
    }
    if (first != p->layers || *at)
        return st_fail(p->err, STRATA_E_ARGUMENT, "layer split '%s' gives %u layers to %d devices; the model has %u",
                       p->q->layer_split, first, p->plan->n_stages, p->layers);
    return STRATA_OK;
}

/* best[k][i]: least time of layers 0 .. i - 1 on the first k candidates (each may stay empty); from[k][i]: where the last of
 * them begins. */
static enum strata_result cheapest_split(struct planner *p)
{
    uint32_t n = p->layers;
    int stages = p->plan->n_stages;
    double *best = malloc((size_t)(stages + 1) * (n + 1) * sizeof *best);
    uint32_t *from = malloc((size_t)(stages + 1) * (n + 1) * sizeof *from);
    if (!best || !from) {
        free(best);
        free(from);
        return st_fail(p->err, STRATA_E_MEMORY, "no memory for a plan");
    }
    for (uint32_t i = 0; i <= n; i++)
        best[i] = i ? 1e300 : 0;
    for (int k = 1; k <= stages; k++)
        for (uint32_t i = 0; i <= n; i++) {
            const struct st_plan_stage *s = &p->plan->stage[k - 1];
            double *b = &best[(size_t)k * (n + 1) + i];
            *b = 1e300;
            for (uint32_t j = 0; j <= i; j++) {
                double before = best[(size_t)(k - 1) * (n + 1) + j];
                if (before >= 1e300 || !fits(p, s, j, i))
                    continue;
                double t = before + (i > j ? seconds_of(p, s, j, i) : 0);
                if (t < *b) {
                    *b = t;
                    from[(size_t)k * (n + 1) + i] = j;
                }
            }
        }
    bool possible = best[(size_t)stages * (n + 1) + n] < 1e300;
    for (int k = stages; k > 0 && possible; k--) {
        uint32_t i = k == stages ? n : p->plan->stage[k].first;
        p->plan->stage[k - 1].end = i;
        p->plan->stage[k - 1].first = from[(size_t)k * (n + 1) + i];
    }
    free(best);
    free(from);
    return possible ? STRATA_OK : STRATA_E_LIMIT;
}

static enum strata_result no_room(const struct planner *p)
{
    uint64_t need = 0, have = 0;
    for (uint32_t i = 0; i < p->layers; i++)
        need += p->layer[i].weights + p->layer[i].state;
    for (int k = 0; k < p->plan->n_stages; k++)
        have += p->plan->stage[k].limit;
    return st_fail(p->err, STRATA_E_LIMIT,
                   "the model does not fit: %llu bytes of weights and state and %llu of buffers per device, %llu bytes on %d "
                   "devices",
                   (unsigned long long)need, (unsigned long long)p->buffers, (unsigned long long)have, p->plan->n_stages);
}

/* Drops devices without layers and says so. */
static void drop_idle(struct planner *p)
{
    struct st_plan *plan = p->plan;
    int kept = 0;
    for (int k = 0; k < plan->n_stages; k++) {
        struct st_plan_stage *s = &plan->stage[k];
        if (s->end > s->first) {
            plan->stage[kept++] = *s;
            continue;
        }
        size_t used = strlen(plan->notes);
        snprintf(plan->notes + used, sizeof plan->notes - used, "%s is left out: the model is faster without it\n", s->name);
    }
    plan->n_stages = kept;
}

static void fill_stages(struct planner *p)
{
    for (int k = 0; k < p->plan->n_stages; k++) {
        struct st_plan_stage *s = &p->plan->stage[k];
        for (uint32_t i = s->first; i < s->end; i++) {
            s->weights += p->layer[i].weights;
            s->state += p->layer[i].state;
        }
        s->buffers = p->buffers;
        s->seconds = seconds_of(p, s, s->first, s->end);
        p->plan->seconds += s->seconds;
    }
}

enum strata_result st_plan_make(const struct st_plan_request *request, struct st_plan *out, struct strata_error *err)
{
    struct planner p = {.q = request, .plan = out, .err = err};
    *out = (struct st_plan){0};
    enum strata_result r = measure_layers(&p, err);
    if (!r)
        r = candidates(&p);
    bool stated = request->layer_split && strcmp(request->layer_split, "auto");
    if (!r && stated) {
        r = stated_split(&p);
        for (int k = 0; k < out->n_stages && !r; k++)
            if (!fits(&p, &out->stage[k], out->stage[k].first, out->stage[k].end))
                r = no_room(&p);
    } else if (!r && cheapest_split(&p)) {
        r = no_room(&p);
    }
    if (!r) {
        drop_idle(&p);
        fill_stages(&p);
    }
    free(p.layer);
    return r;
}
