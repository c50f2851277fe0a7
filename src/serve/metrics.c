/* Counters and histograms: see metrics.h. The text form is Prometheus' exposition format, version 0.0.4. */
#include "serve/metrics.h"

#include <string.h>

static const double first_bounds[ST_HISTOGRAM_BUCKETS] = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
                                                          2.5,  5,     10,   30,  60,   120, 300};
static const double token_bounds[ST_HISTOGRAM_BUCKETS] = {0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.025,
                                                          0.035, 0.05,   0.075, 0.1,    0.25, 0.5,   1};
static const double long_bounds[ST_HISTOGRAM_BUCKETS] = {0.01, 0.05, 0.1, 0.5, 1,   2.5, 5,
                                                         10,   30,   60,  120, 300, 600, 1800};

void st_metrics_init(struct st_metrics *m)
{
    memset(m, 0, sizeof *m);
    m->first_token.bounds = first_bounds;
    m->per_token.bounds = token_bounds;
    m->wait.bounds = long_bounds;
    m->duration.bounds = long_bounds;
}

void st_metrics_request(struct st_metrics *m, const char *route, int code)
{
    for (size_t i = 0; i < sizeof m->requests / sizeof *m->requests; i++) {
        if (!m->requests[i].route) {
            m->requests[i].route = route;
            m->requests[i].code = code;
        }
        if (m->requests[i].code == code && strcmp(m->requests[i].route, route) == 0) {
            m->requests[i].count++;
            return;
        }
    }
}

void st_histogram_add(struct st_histogram *h, double seconds)
{
    int i = 0;
    while (i < ST_HISTOGRAM_BUCKETS && seconds > h->bounds[i])
        i++;
    h->counts[i]++;
    h->sum += seconds;
}

static void head(struct st_buffer *out, const char *name, const char *type, const char *help)
{
    st_buffer_format(out, "# HELP strata_%s %s\n# TYPE strata_%s %s\n", name, help, name, type);
}

void st_metrics_value(struct st_buffer *out, const char *name, const char *type, const char *help, double value)
{
    head(out, name, type, help);
    st_buffer_format(out, "strata_%s %.17g\n", name, value);
}

static void histogram(struct st_buffer *out, const char *name, const char *help, const struct st_histogram *h)
{
    head(out, name, "histogram", help);
    uint64_t total = 0;
    for (int i = 0; i < ST_HISTOGRAM_BUCKETS; i++) {
        total += h->counts[i];
        st_buffer_format(out, "strata_%s_bucket{le=\"%g\"} %llu\n", name, h->bounds[i], (unsigned long long)total);
    }
    total += h->counts[ST_HISTOGRAM_BUCKETS];
    st_buffer_format(out, "strata_%s_bucket{le=\"+Inf\"} %llu\nstrata_%s_sum %.9g\nstrata_%s_count %llu\n", name,
                     (unsigned long long)total, name, h->sum, name, (unsigned long long)total);
}

void st_metrics_write(const struct st_metrics *m, struct st_buffer *out)
{
    head(out, "requests_total", "counter", "Answered requests by route and status.");
    for (size_t i = 0; i < sizeof m->requests / sizeof *m->requests && m->requests[i].route; i++)
        st_buffer_format(out, "strata_requests_total{route=\"%s\",code=\"%d\"} %llu\n", m->requests[i].route,
                         m->requests[i].code, (unsigned long long)m->requests[i].count);
    histogram(out, "first_token_seconds", "From the arrival of a request to its first token.", &m->first_token);
    histogram(out, "token_seconds", "From one token of an answer to the next.", &m->per_token);
    histogram(out, "queue_wait_seconds", "From the arrival of a request to the start of its computation.", &m->wait);
    histogram(out, "request_seconds", "From the arrival of a request to the end of its answer.", &m->duration);
    st_metrics_value(out, "prompt_tokens_total", "counter", "Tokens of all prompts.", (double)m->prompt_tokens);
    st_metrics_value(out, "reused_tokens_total", "counter", "Prompt tokens whose state was still there.",
                     (double)m->reused_tokens);
    st_metrics_value(out, "read_tokens_total", "counter", "Prompt tokens that were computed.", (double)m->read_tokens);
    st_metrics_value(out, "generated_tokens_total", "counter", "Tokens of all answers.", (double)m->generated_tokens);
    st_metrics_value(out, "read_seconds_total", "counter", "Time spent on prompts.", m->read_seconds);
    st_metrics_value(out, "generate_seconds_total", "counter", "Time spent on answers.", m->generate_seconds);
    st_metrics_value(out, "cancelled_total", "counter", "Answers given up because their client went away.",
                     (double)m->cancelled);
}
