/* Several conversations at once: see bench_clients.h. */
#include "cli/bench_clients.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct client;

/* Conversations that run together. */
struct round {
    size_t clients, begun; /* those whose prompt is read */
    bool ended;            /* one of them: what follows is not measured */
    size_t tokens, enough; /* since all have begun; then all end */
    double start, end;     /* of that time */
    struct strata_error err;
    struct client *client;
};

struct client {
    struct round *round;
    struct strata_session *session;
    struct strata_request request;
    int32_t *ids;
    bool begun;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool on_event(void *user, const struct strata_event *e)
{
    struct client *c = user;
    struct round *r = c->round;
    if (r->tokens >= r->enough)
        return false;
    if (e->kind != STRATA_EVENT_TEXT || e->token < 0 || r->ended)
        return true;
    if (r->begun == r->clients) {
        r->tokens++;
        r->end = now();
    }
    if (!c->begun) {
        c->begun = true;
        if (++r->begun == r->clients)
            r->start = r->end = now();
    }
    return true;
}

static void on_done(void *user, enum strata_result result, const struct strata_error *err)
{
    struct client *c = user;
    c->round->ended = true;
    if (result && !c->round->err.code)
        c->round->err = *err;
}

static enum strata_result run_round(const struct st_host *h, struct round *r, size_t prompt, size_t n, const int32_t *ids,
                                    struct strata_error *err)
{
    struct strata_batch *b;
    enum strata_result result = strata_batch_create(h->engine, &b, err);
    if (result)
        return result;
    for (size_t i = 0; i < r->clients && !result; i++) {
        struct client *c = &r->client[i];
        c->round = r;
        c->begun = false;
        memcpy(c->ids, ids, prompt * sizeof *ids);
        c->ids[0] = ids[i % prompt]; /* nobody goes on with what another one has */
        c->request = (struct strata_request){
            .ids = c->ids, .count = prompt, .max_tokens = ST_BENCH_CLIENT_MOST(n), .ignore_eos = true, .event = on_event, .user = c};
        strata_sampling_default(&c->request.sampling);
        strata_session_reset(c->session);
        result = strata_batch_add(b, c->session, &c->request, NULL, on_done, c, err);
    }
    while (!result && strata_batch_step(b))
        ;
    strata_batch_free(b);
    if (!result && r->err.code) {
        *err = r->err;
        result = r->err.code;
    }
    if (!result && r->tokens < r->enough)
        result = st_fail(err, STRATA_E_ARGUMENT, "bench: --clients: one of %zu conversations had ended after %zu tokens before all "
                         "together had %zu: give more tokens, -n", r->clients, ST_BENCH_CLIENT_MOST(n), r->enough);
    return result;
}

/* Tokens per second of all clients together. */
static enum strata_result measure(const struct st_host *h, struct client *clients, size_t count, size_t prompt, size_t n,
                                  const int32_t *ids, size_t repetitions, double *rate, struct strata_error *err)
{
    enum strata_result result = STRATA_OK;
    *rate = 0;
    for (size_t i = 0; i <= repetitions && !result; i++) {
        struct round r = {.clients = count, .client = clients, .enough = n * count};
        result = run_round(h, &r, prompt, n, ids, err);
        double now_rate = r.end > r.start ? (double)r.tokens / (r.end - r.start) : 0;
        if (i && now_rate > *rate) /* the first one warms up */
            *rate = now_rate;
    }
    return result;
}

static int run_counts(const struct st_host *h, struct client *clients, const int32_t *ids, size_t prompt, size_t n,
                      const size_t *counts, size_t n_counts, size_t repetitions)
{
    double one = 0;
    printf("\n| clients | tokens each | t/s of all | t/s of each | of one |\n|---:|---:|---:|---:|---:|\n");
    for (size_t i = 0; i < n_counts; i++) {
        struct strata_error err;
        double rate;
        if (measure(h, clients, counts[i], prompt, n, ids, repetitions, &rate, &err))
            return st_report(&err);
        one = counts[i] == 1 ? rate : one;
        printf("| %zu | %zu | %.2f | %.2f |", counts[i], n, rate, rate / (double)counts[i]);
        if (one > 0)
            printf(" %.2f |\n", rate / one);
        else
            printf(" |\n");
        if (fflush(stdout))
            return st_user_error("standard output: write error");
    }
    return ST_EXIT_OK;
}

int st_bench_clients(const struct st_host *h, const int32_t *ids, size_t depth, size_t n, const size_t *counts, size_t n_counts,
                     size_t repetitions)
{
    size_t prompt = depth > ST_BENCH_CLIENT_PROMPT ? depth : ST_BENCH_CLIENT_PROMPT, most = 0;
    for (size_t i = 0; i < n_counts; i++)
        most = counts[i] > most ? counts[i] : most;
    struct client *clients = calloc(most, sizeof *clients);
    struct strata_error err;
    int status = clients ? ST_EXIT_OK : st_user_error("bench: no memory");
    for (size_t i = 0; i < most && !status; i++) {
        clients[i].ids = malloc(prompt * sizeof *clients[i].ids);
        clients[i].session = i ? NULL : h->session;
        if (!clients[i].ids)
            status = st_user_error("bench: no memory");
        else if (i && strata_session_create(h->engine, &clients[i].session, &err))
            status = st_report(&err);
    }
    if (!status)
        status = run_counts(h, clients, ids, prompt, n, counts, n_counts, repetitions);
    for (size_t i = 0; clients && i < most; i++) {
        free(clients[i].ids);
        if (i)
            strata_session_free(clients[i].session);
    }
    free(clients);
    return status;
}
