/* Counters and histograms of the server in Prometheus' text form. Event thread only. */
#ifndef ST_SERVE_METRICS_H
#define ST_SERVE_METRICS_H

#include "serve/buffer.h"

enum { ST_HISTOGRAM_BUCKETS = 14, ST_METRIC_ROUTES = 24, ST_METRIC_CODES = 12 };

struct st_histogram {
    const double *bounds;                      /* ascending upper bounds in seconds, ST_HISTOGRAM_BUCKETS of them */
    uint64_t counts[ST_HISTOGRAM_BUCKETS + 1]; /* the last one: above all bounds */
    double sum;
};

struct st_metrics {
    struct {
        const char *route; /* static, NULL: unused */
        int code;
        uint64_t count;
    } requests[ST_METRIC_ROUTES * ST_METRIC_CODES];
    struct st_histogram first_token, per_token, wait, duration;
    uint64_t prompt_tokens, reused_tokens, read_tokens, generated_tokens, cancelled;
    double read_seconds, generate_seconds;
};

void st_metrics_init(struct st_metrics *m);
void st_metrics_request(struct st_metrics *m, const char *route, int code);
void st_histogram_add(struct st_histogram *h, double seconds);

/* Writers for the text. labels: "" or a list without braces. */
void st_metrics_value(struct st_buffer *out, const char *name, const char *type, const char *help, double value);
void st_metrics_write(const struct st_metrics *m, struct st_buffer *out);

#endif
