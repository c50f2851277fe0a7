/* Times of missing experts: a line of least squares over what was measured, and the division that follows from it. */
#include "engine/miss.h"

/* A measurement counts half after 70 more: a few tokens of a model with some tens of layers. */
static const double KEPT = 0.99, OUTLIER = 4, ENOUGH = 8;

static void add(struct st_miss_times *t, double bytes, double seconds)
{
    t->weight = KEPT * t->weight + 1;
    t->bytes = KEPT * t->bytes + bytes;
    t->seconds = KEPT * t->seconds + seconds;
    t->squares = KEPT * t->squares + bytes * bytes;
    t->products = KEPT * t->products + bytes * seconds;
}

struct st_miss_times st_miss_times(struct st_line line)
{
    static const double sizes[] = {1 << 20, 16 << 20};
    struct st_miss_times t = {0};
    for (int i = 0; i < 2 && line.rate > 0; i++)
        add(&t, sizes[i], st_line_at(line, sizes[i]));
    return t;
}

void st_miss_add(struct st_miss_times *t, double bytes, double seconds)
{
    double most = OUTLIER * st_line_at(st_miss_line(t), bytes);
    add(t, bytes, t->weight >= ENOUGH && seconds > most ? most : seconds);
}

struct st_line st_miss_line(const struct st_miss_times *t)
{
    double spread = t->weight * t->squares - t->bytes * t->bytes,
           slope = spread > 1e-6 * t->weight * t->squares
                       ? (t->weight * t->products - t->bytes * t->seconds) / spread
                       : 0,
           start = slope > 0 ? (t->seconds - slope * t->bytes) / t->weight : 0;
    if (start > 0)
        return (struct st_line){start, 1 / slope};
    return (struct st_line){0, t->products > 0 ? t->squares / t->products : 0}; /* through nothing at no time */
}

uint32_t st_miss_over_link(struct st_line cpu, struct st_line link, uint32_t missing, uint32_t most, double bytes)
{
    uint32_t share = 0;
    double best = missing ? st_line_at(cpu, missing * bytes) : 0;
    for (uint32_t n = 1; n <= most && n <= missing && link.rate > 0 && cpu.rate > 0; n++) {
        double here = n < missing ? st_line_at(cpu, (missing - n) * bytes) : 0, there = st_line_at(link, n * bytes),
               t = here > there ? here : there;
        if (t < best) {
            best = t;
            share = n;
        }
    }
    return share;
}

double st_miss_seconds(struct st_line cpu, struct st_line link, double bytes)
{
    double alone = st_line_at(cpu, bytes);
    if (bytes <= 0 || link.rate <= 0 || alone <= link.start)
        return bytes > 0 ? alone : 0;
    /* Both end at the same time: cpu.start + (bytes - x) / cpu.rate = link.start + x / link.rate. */
    double x = (alone - link.start) / (1 / cpu.rate + 1 / link.rate);
    return x < bytes ? st_line_at(link, x) : st_line_at(link, bytes);
}
