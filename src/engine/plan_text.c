/* A plan in words. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/plan.h"

void st_plan_note(struct st_plan *plan, const char *fmt, ...)
{
    size_t used = strlen(plan->notes);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(plan->notes + used, sizeof plan->notes - used, fmt, ap);
    va_end(ap);
    used += n > 0 ? (size_t)n : 0;
    if (used + 1 < sizeof plan->notes)
        memcpy(plan->notes + used, "\n", 2);
    else
        memcpy(plan->notes + sizeof plan->notes - 2, "\n", 2);
}

static void add(char *out, size_t size, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void add(char *out, size_t size, const char *fmt, ...)
{
    size_t used = strlen(out);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(out + used, size - used, fmt, ap);
    va_end(ap);
}

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

static double stage_seconds(const struct st_plan_stage *s)
{
    return s->time.memory + s->time.misses + s->time.launch + s->time.link;
}

void st_plan_decides(const struct st_plan *plan, char *out, size_t size)
{
    double most = -1;
    for (int k = 0; k < plan->n_stages; k++) {
        const struct st_plan_stage *s = &plan->stage[k];
        const struct {
            double seconds;
            const char *what;
        } parts[] = {{s->time.memory, "memory"},
                     {s->time.misses, "experts outside"},
                     {s->time.launch, s->found < 0 ? "barriers" : "launches"},
                     {s->time.link, "link"}};
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
            if (parts[i].seconds > most) {
                most = parts[i].seconds;
                snprintf(out, size, "%s of %s", parts[i].what, s->name);
            }
    }
}

void st_plan_summary(const struct st_plan *plan, char *out, size_t size)
{
    char decides[64] = "";
    out[0] = 0;
    for (int k = 0; k < plan->n_stages; k++) {
        const struct st_plan_stage *s = &plan->stage[k];
        add(out, size, "%s (%s): layers %u..%u, ", s->name, s->arch, s->first, s->end - 1);
        if (s->found >= 0)
            add(out, size, "%.1f of %.1f MiB", mib(s->size.total), mib(s->limit));
        else
            add(out, size, "%.1f MiB beside the mapped file", mib(s->size.total));
        if (s->cached)
            add(out, size, ", %.1f of %.1f MiB of experts (%.0f %% of what is chosen)", mib(s->size.slots), mib(s->size.all_experts),
                100 * s->size.hit);
        if (plan->seconds > 0)
            add(out, size, ", %.3f ms a token", stage_seconds(s) * 1e3);
        add(out, size, "\n");
    }
    st_plan_decides(plan, decides, sizeof decides);
    add(out, size, "prompts in chunks of %u, %.1f MiB of host memory", plan->prefill, mib(plan->host.total));
    if (plan->host.arena || plan->host.in_file)
        add(out, size, ", %.1f of them experts, %.1f MiB more in the file alone", mib(plan->host.arena), mib(plan->host.in_file));
    if (plan->seconds > 0)
        add(out, size, "; predicted: %.1f tok/s, decided by %s", 1 / plan->seconds, decides);
    add(out, size, "\n%s", plan->notes);
}
