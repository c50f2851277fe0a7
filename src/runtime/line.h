/* A line through two measurements: how long something takes by its bytes. */
#ifndef ST_RUNTIME_LINE_H
#define ST_RUNTIME_LINE_H

/* What takes `start` seconds, and a second more for every `rate` bytes. */
struct st_line {
    double start, rate;
};

/* Through two measurements, the second of more bytes. Noise may say that more bytes take less time, or that none take
 * less than nothing; then there is no start, and the larger measurement is all rate. */
static inline struct st_line st_line_through(double bytes, double seconds, double more_bytes, double more_seconds)
{
    double rate = more_seconds > seconds ? (more_bytes - bytes) / (more_seconds - seconds) : 0;
    double start = rate > 0 ? seconds - bytes / rate : 0;
    return start > 0 ? (struct st_line){start, rate} : (struct st_line){0, more_bytes / more_seconds};
}

static inline double st_line_at(struct st_line l, double bytes)
{
    return l.rate > 0 ? l.start + bytes / l.rate : l.start;
}

#endif
