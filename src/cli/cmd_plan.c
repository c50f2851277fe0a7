/* strata plan: where a model would lie, how many bytes it takes there, and how long a token is expected to take. Opens
 * and measures the devices; loads nothing. */
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/common.h"
#include "engine/engine.h"

struct plan_args {
    struct st_engine_args engine;
    bool json;
};

/* ---- table ---- */

static const char *mib(uint64_t bytes, char out[16])
{
    snprintf(out, 16, "%.1f", (double)bytes / (1 << 20));
    return out;
}

/* Right-aligned MiB; "-" where the number means nothing. */
static void print_mib(bool there, uint64_t bytes)
{
    char text[16] = "-";
    printf(" %9s", there ? mib(bytes, text) : text);
}

static void print_devices(const struct st_plan *plan)
{
    printf("%-10s %-8s %9s %9s %9s %9s %9s %9s %9s %9s %9s %9s %9s %9s %9s %9s\n", "MiB", "", "layers", "weights",
           "slots", "prompts", "KV", "recurrent", "buffers", "experts", "rows", "scratch", "total", "available", "reserve", "taken");
    for (int k = 0; k < plan->n_stages; k++) {
        const struct st_plan_stage *s = &plan->stage[k];
        const struct st_stage_size *z = &s->size;
        bool device = s->found >= 0;
        char layers[24];
        snprintf(layers, sizeof layers, "%u..%u", s->first, s->end - 1);
        printf("%-10s %-8s %9s", s->name, s->arch, layers);
        print_mib(true, z->weights);
        print_mib(s->cached, z->slots);
        print_mib(s->cached, z->prompts);
        print_mib(true, z->kv);
        print_mib(true, z->state - z->kv);
        print_mib(true, z->buffers);
        print_mib(s->cached, z->experts);
        print_mib(device, z->rows);
        print_mib(true, z->scratch);
        print_mib(true, z->total);
        print_mib(device, s->limit);
        print_mib(device, s->reserve);
        print_mib(device, s->taken);
        putchar('\n');
    }
    for (int k = 0; k < plan->n_stages; k++) {
        const struct st_plan_stage *s = &plan->stage[k];
        if (s->cached)
            printf("%s: slots for %.1f of %.1f MiB of experts, expected to serve %.1f %% of the choices, of which "
                   "prompts borrow up to %.1f MiB; a token misses "
                   "%.1f MiB, which the CPU computes at %.1f GB/s beside a link of %.1f GB/s, in each of %llu "
                   "layers\n",
                   s->name, (double)s->size.slots / (1 << 20), (double)s->size.all_experts / (1 << 20),
                   100 * s->size.hit, (double)st_stage_lent(&s->size) / (1 << 20),
                   (1 - s->size.hit) * s->size.expert_read / (1 << 20), s->cpu_experts.rate * 1e-9,
                   s->link_experts.rate * 1e-9, (unsigned long long)s->size.steps);
    }
}

static void print_host(const struct st_plan *plan)
{
    const struct st_plan_host *h = &plan->host;
    char a[11][16];
    printf("host memory: %s MiB = page-locked %s (of it between stages %s) + KV of CPU stages %s + their recurrent "
           "state %s, "
           "buffers and workers %s + "
           "passes %s + kept states %s + experts %s + beside them %s",
           mib(h->total, a[0]), mib(h->locked, a[1]), mib(h->hand_off, a[7]), mib(h->kv, a[2]),
           mib(h->state - h->kv, a[3]), mib(h->buffers + h->workers, a[4]), mib(h->passes, a[5]), mib(h->kept, a[10]),
           mib(h->arena, a[8]), mib(h->experts, a[9]));
    if (h->limit)
        printf(", of %s", mib(h->limit, a[6]));
    printf("; mapped file %s MiB, of it experts that are nowhere else %s\n", mib(h->file, a[6]), mib(h->in_file, a[8]));
}

static void print_time(const struct st_plan *plan)
{
    char decides[64] = "";
    printf("%-10s %9s %9s %9s %9s %9s    from\n", "ms a token", "total", "memory", "misses", "launches", "link");
    for (int k = 0; k < plan->n_stages; k++) {
        const struct st_plan_stage *s = &plan->stage[k];
        const struct st_plan_time *t = &s->time;
        printf("%-10s %9.3f %9.3f %9.3f %9.3f %9.3f    %.1f MiB at %.1f GB/s", s->name,
               (t->memory + t->misses + t->launch + t->link) * 1e3, t->memory * 1e3, t->misses * 1e3, t->launch * 1e3,
               t->link * 1e3, s->size.read / (1 << 20), s->memory_rate * 1e-9);
        if (s->size.expert_read > 0)
            printf(", of them %.1f MiB of experts at %.1f GB/s", s->size.expert_read / (1 << 20), s->expert_rate * 1e-9);
        printf(", %llu %s of %.2f us", (unsigned long long)s->size.launches, s->found < 0 ? "commands" : "launches",
               s->launch_seconds * 1e6);
        if (s->link_rate > 0)
            printf(", link %.1f GB/s", s->link_rate * 1e-9);
        putchar('\n');
    }
    st_plan_decides(plan, decides, sizeof decides);
    printf("predicted: %.3f ms a token (%.1f tok/s), decided by %s\n", plan->seconds * 1e3, 1 / plan->seconds, decides);
}

static void print_plan(const struct strata_engine *e)
{
    const struct st_plan *plan = &e->plan;
    print_devices(plan);
    print_host(plan);
    printf("context %u, sessions %u, keys and values %s, prompts in chunks of %u\n", plan->placement.context,
           plan->placement.slots, st_kv_names[e->options.kv], plan->prefill);
    print_time(plan);
    fputs(plan->notes, stdout);
}

/* ---- JSON ---- */

static json_t *stage_json(const struct st_plan_stage *s)
{
    const struct st_stage_size *z = &s->size;
    const struct st_plan_time *t = &s->time;
    json_t *out = json_pack(
        "{s:s, s:s, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "name", s->name, "arch", s->arch,
        "first_layer", (int)s->first, "last_layer", (int)s->end - 1, "weights", (json_int_t)z->weights, "kv",
        (json_int_t)z->kv, "recurrent", (json_int_t)(z->state - z->kv), "buffers", (json_int_t)z->buffers, "rows",
        (json_int_t)z->rows, "scratch", (json_int_t)z->scratch, "total", (json_int_t)z->total, "page_locked",
        (json_int_t)z->locked, "slots", (json_int_t)z->slots, "prompts", (json_int_t)z->prompts, "experts",
        (json_int_t)z->experts);
    json_t *time = json_pack("{s:f, s:f, s:f, s:f, s:I, s:I, s:f, s:f, s:f, s:I, s:f}", "memory_seconds", t->memory,
                             "miss_seconds", t->misses, "launch_seconds", t->launch, "link_seconds", t->link,
                             "bytes_read", (json_int_t)s->size.read, "launches", (json_int_t)z->launches, "memory_rate",
                             s->memory_rate, "seconds_per_launch", s->launch_seconds, "link_rate", s->link_rate, "expert_bytes",
                             (json_int_t)s->size.expert_read, "expert_rate", s->expert_rate);
    json_object_set_new(out, "token", time);
    if (s->cached)
        json_object_set_new(out, "expert_cache",
                            json_pack("{s:I, s:I, s:I, s:f, s:I, s:f, s:f, s:f, s:f, s:f, s:I, s:I}", "all",
                                      (json_int_t)z->all_experts, "slots",
                                      (json_int_t)z->slots, "lent", (json_int_t)st_stage_lent(z), "hit", z->hit, "layers", (json_int_t)z->steps, "cpu_seconds",
                                      s->cpu_experts.start, "cpu_rate", s->cpu_experts.rate, "link_seconds",
                                      s->link_experts.start, "link_rate", s->link_experts.rate, "answer_seconds",
                                      s->answer_seconds, "arena", (json_int_t)z->arena, "in_file", (json_int_t)z->in_file));
    if (s->found >= 0)
        json_object_set_new(out, "memory",
                            json_pack("{s:I, s:I, s:I, s:I, s:I}", "total", (json_int_t)s->memory, "taken",
                                      (json_int_t)s->taken, "free", (json_int_t)s->free, "reserve",
                                      (json_int_t)s->reserve, "available", (json_int_t)s->limit));
    return out;
}

static json_t *notes_json(const char *notes)
{
    json_t *list = json_array();
    for (size_t n; *notes; notes += n + (notes[n] != 0)) {
        n = strcspn(notes, "\n");
        json_array_append_new(list, json_stringn(notes, n));
    }
    return list;
}

static json_t *plan_json(const struct strata_engine *e)
{
    const struct st_plan *plan = &e->plan;
    const struct st_plan_host *h = &plan->host;
    char decides[64] = "";
    json_t *stages = json_array();
    for (int k = 0; k < plan->n_stages; k++)
        json_array_append_new(stages, stage_json(&plan->stage[k]));
    st_plan_decides(plan, decides, sizeof decides);
    json_t *host = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "file", (json_int_t)h->file, "page_locked",
        (json_int_t)h->locked, "between_stages", (json_int_t)h->hand_off, "kv", (json_int_t)h->kv, "recurrent",
        (json_int_t)(h->state - h->kv), "buffers", (json_int_t)h->buffers, "workers", (json_int_t)h->workers, "passes",
        (json_int_t)h->passes, "kept", (json_int_t)h->kept, "total", (json_int_t)h->total, "expert_arena",
        (json_int_t)h->arena, "expert_work", (json_int_t)h->experts, "experts_in_file", (json_int_t)h->in_file);
    return json_pack("{s:o, s:o, s:i, s:i, s:s, s:i, s:f, s:f, s:s, s:o}", "stages", stages, "host", host, "context",
                     (int)plan->placement.context, "sessions", (int)plan->placement.slots, "kv",
                     st_kv_names[e->options.kv], "prefill", (int)plan->prefill, "seconds_per_token", plan->seconds,
                     "tokens_per_second", 1 / plan->seconds, "decided_by", decides, "left_out",
                     notes_json(plan->notes));
}

static int plan(const struct plan_args *a)
{
    struct st_host h;
    struct strata_engine_options o;
    char cache[ST_CACHE_PATH];
    struct strata_engine *e = NULL;
    struct strata_error err;
    int status = st_host_open_model("plan", a->engine.model, &h);
    if (status)
        return status;
    if (st_engine_options(&a->engine, cache, &o, &err) || st_engine_plan_only(h.model, &o, &e, &err))
        status = st_report(&err);
    else if (a->json)
        status = st_print_json(plan_json(e));
    else
        print_plan(e);
    strata_engine_free(e);
    st_host_close(&h);
    return status;
}

int st_cmd_plan(int argc, char **argv)
{
    struct plan_args a = {.engine = ST_ENGINE_ARGS};
    struct st_opt options[] = {
        ST_ENGINE_OPTIONS(a.engine),
        ST_SPEC_OPTIONS(a.engine),
        ST_FLAG("json", 0, &a.json, "one JSON object, sizes in bytes"),
    };
    struct st_usage usage = {
        .command = "plan",
        .form = "-m FILE [--device LIST] [options]",
        .summary = "Shows where a model would lie, how much memory it takes there, and how long a token is "
                   "expected to take. Opens and measures the devices, loads nothing.",
        .options = options,
        .count = ST_COUNT(options)};
    int status;
    return st_options_parse(&usage, argc, argv, &status) ? plan(&a) : status;
}
