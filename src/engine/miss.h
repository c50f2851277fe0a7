/* Experts that are not where the rest of the layer is computed: how long the CPU takes for them, and how they are divided
 * between it and the link to the device. The plan predicts with it, windows go by it. */
#ifndef ST_ENGINE_MISS_H
#define ST_ENGINE_MISS_H

#include <stdint.h>

#include "runtime/line.h"

/* Times by bytes as they were measured, those of long ago forgotten. */
struct st_miss_times {
    double weight, bytes, seconds, squares, products; /* sums */
};
/* As if the line had been measured. */
struct st_miss_times st_miss_times(struct st_line line);
/* A time that is many times as long as expected (another program had the core) counts as four times that. */
void st_miss_add(struct st_miss_times *t, double bytes, double seconds);
struct st_line st_miss_line(const struct st_miss_times *t);

/* How many of `missing` experts of so many bytes go over the link, at most `most` of them, so that both are done as
 * early as possible; a link without a rate takes none. */
uint32_t st_miss_over_link(struct st_line cpu, struct st_line link, uint32_t missing, uint32_t most, double bytes);
/* The time until both are done, for a number of bytes that can be divided anywhere. */
double st_miss_seconds(struct st_line cpu, struct st_line link, double bytes);

#endif
