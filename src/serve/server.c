/* The server: start and stop, the event thread's loop, and the life of jobs in it. */
#include "serve/server.h"

#include <event2/event.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { STOP_SECONDS = 5 };

void st_serve_default(struct st_serve_options *options)
{
    *options = (struct st_serve_options){
        .host = "127.0.0.1",
        .port = 8080,
        .queue = 32,
        .max_connections = 256,
        .max_body = 16u << 20,
        .max_pending = 1u << 20,
        .request_seconds = 60,
        .keepalive_ms = 10000,
        .log_requests = true,
        .sampling = {.temperature = -1, .top_k = -1, .top_p = -1, .min_p = -1, .repetition_penalty = -1},
    };
}

void st_server_log(struct st_server *s, const char *fmt, ...)
{
    if (!s->options.log)
        return;
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    s->options.log(s->options.log_user, line);
}

void st_server_wake(struct st_server *s)
{
    uint64_t one = 1;
    ssize_t written = write(s->wake_fd, &one, sizeof one);
    (void)written; /* it only fails when the counter is full, and then the loop is awake */
}

static void prepare_work(struct st_server *s, struct st_job *job)
{
    st_job_prepare(job, s->backend);
}

static void engine_work(struct st_server *s, struct st_job *job)
{
    switch (job->call.kind) {
    case ST_CALL_LOAD: st_job_load(job); break;
    case ST_CALL_UNLOAD: st_job_unload(job); break;
    case ST_CALL_VRAM: st_job_vram(job); break;
    case ST_CALL_SLOT:
        if (st_job_needs_model(job))
            st_job_slot(job, s->backend);
        break;
    default:
        if (st_job_needs_model(job))
            st_job_begin(job);
        break;
    }
}

static void engine_step(struct st_server *s)
{
    for (struct st_job *job = s->running; job; job = job->lane_next)
        if (!job->told && atomic_load(&job->cancelled)) {
            job->told = true;
            s->backend->ops->cancel(s->backend, &job->run);
        }
    s->backend->ops->step(s->backend);
}

void st_job_cancel(struct st_job *job)
{
    atomic_store(&job->cancelled, true);
    job->server->backend->ops->wake(job->server->backend);
}

/* ---- deltas ---- */

void st_job_post(struct st_job *job, enum st_delta_kind kind, const char *text, size_t size, size_t a, size_t b,
                 double seconds, json_t *logprob)
{
    struct st_server *s = job->server;
    bool last = kind == ST_DELTA_PREPARED || kind == ST_DELTA_END;
    struct st_delta *d = malloc(sizeof *d + size + 1);
    if (!d) {
        json_decref(logprob);
        job->failed = true;
        st_call_out_of_memory(&job->error);
        atomic_store(&job->cancelled, true);
        if (!last)
            return;
        /* The end has to arrive: wait for memory. */
        while (!(d = malloc(sizeof *d + 1)))
            usleep(1000);
        size = 0;
    }
    *d = (struct st_delta){.kind = kind, .a = a, .b = b, .seconds = seconds, .logprob = logprob, .size = size};
    if (size)
        memcpy(d->text, text, size);
    d->text[size] = 0;
    pthread_mutex_lock(&s->lock);
    if (job->last)
        job->last->next = d;
    else
        job->first = d;
    job->last = d;
    bool first = !s->outbox_first;
    if (!job->in_outbox) {
        job->in_outbox = true;
        job->outbox_next = NULL;
        if (s->outbox_last)
            s->outbox_last->outbox_next = job;
        else
            s->outbox_first = job;
        s->outbox_last = job;
    }
    pthread_mutex_unlock(&s->lock);
    if (first)
        st_server_wake(s);
}

void st_server_add_rate(struct st_server *s, size_t read, size_t generated)
{
    long second = (long)st_now();
    size_t i = (size_t)second % ST_RATE_SECONDS;
    if (s->rate[i].second != second) {
        s->rate[i].second = second;
        s->rate[i].read = s->rate[i].generated = 0;
    }
    s->rate[i].read += (uint32_t)read;
    s->rate[i].generated += (uint32_t)generated;
}

/* ---- jobs ---- */

static void free_job(struct st_job *job)
{
    for (struct st_delta *d = job->first, *next; d; d = next) {
        next = d->next;
        json_decref(d->logprob);
        free(d);
    }
    if (job->head == job) { /* the others have borrowed it */
        st_call_free(&job->call);
        free(job->ids);
        free(job->text);
        strata_constraint_free(job->constraint);
        free(job->others);
    }
    json_decref(job->pieces);
    json_decref(job->report);
    json_decref(job->stages);
    st_buffer_free(&job->content);
    st_buffer_free(&job->reasoning);
    for (size_t i = 0; i < job->tool_count; i++) {
        st_buffer_free(&job->tools[i].name);
        st_buffer_free(&job->tools[i].arguments);
    }
    free(job->tools);
    json_decref(job->logprobs);
    json_decref(job->items);
    free(job);
}

static const char *finish_name(const struct st_job *job)
{
    if (job->gone)
        return "cancelled";
    if (job->failed)
        return "error";
    switch (job->end) {
    case STRATA_END_STOP_TOKEN: return job->called_tool ? "tool" : "stop";
    case STRATA_END_STOP_TEXT: return "stop text";
    case STRATA_END_LENGTH: return "length";
    case STRATA_END_CONTEXT: return "context full";
    case STRATA_END_CANCELLED: return job->enough ? "tool" : "time limit";
    }
    return "";
}

/* Counts an answer that has ended. */
static void account(struct st_server *s, struct st_job *job)
{
    double now = st_now();
    bool answers = job->format != &st_format_small;
    job->stage = ST_STAGE_ENDED;
    if (answers) {
        struct st_past *p = &s->past[s->past_count++ % ST_PAST];
        *p = (struct st_past){.number = job->number,
                              .route = job->route,
                              .status = job->status,
                              .finish = finish_name(job),
                              .prompt = job->count,
                              .reused = job->run.stats.reused_tokens,
                              .generated = job->generated,
                              .arrived = job->arrived,
                              .wait = (job->started > 0 ? job->started : now) - job->arrived,
                              .seconds = now - job->arrived,
                              .read_seconds = job->run.stats.read_seconds,
                              .generate_seconds = job->run.stats.generate_seconds};
        s->metrics.prompt_tokens += job->run.stats.prompt_tokens;
        s->metrics.reused_tokens += job->run.stats.reused_tokens;
        s->metrics.read_tokens += job->run.stats.read_tokens;
        s->metrics.generated_tokens += job->run.stats.generated_tokens;
        s->metrics.read_seconds += job->run.stats.read_seconds;
        s->metrics.generate_seconds += job->run.stats.generate_seconds;
        st_histogram_add(&s->metrics.duration, now - job->arrived);
        if (s->options.log_requests)
            st_server_log(s, "#%llu %s %d: prompt %zu tokens (%zu reused), %zu generated, %.2f s, %s",
                          (unsigned long long)job->number, job->route, job->status, job->count,
                          job->run.stats.reused_tokens, job->generated, now - job->arrived, p->finish);
        s->answers -= job->others || job->head != job ? 1 : (size_t)job->call.choices;
    }
}

static void remove_job(struct st_server *s, struct st_job *job)
{
    struct st_job **at = &s->jobs;
    while (*at != job)
        at = &(*at)->next;
    *at = job->next;
    if (s->jobs_end == &job->next)
        s->jobs_end = at;
    s->job_count--;
    free_job(job);
}

/* The last act of every job; with the last answer of a request all of them go. */
static void finish_job(struct st_server *s, struct st_job *job)
{
    struct st_job *head = job->head;
    account(s, job);
    if (--head->left)
        return;
    if (head->status && !head->counted)
        st_metrics_request(&s->metrics, head->route, head->status);
    for (int i = 1; head->others && i < head->call.choices; i++)
        remove_job(s, head->others[i - 1]);
    remove_job(s, head);
}

bool st_server_withdraw(struct st_server *s, struct st_job *job)
{
    if (job->stage != ST_STAGE_QUEUED || job->alone || !st_lane_remove(&s->engine, job))
        return false;
    job->withdrawn = true;
    for (int i = 1; job->others && i < job->call.choices; i++)
        job->others[i - 1]->withdrawn = true;
    event_active(s->outbox_event, EV_READ, 0);
    return true;
}

/* An answer for which nobody waits any more. Not freed here: a writer of its stream may be further up the stack. */
static void abandon(struct st_server *s, struct st_job *job)
{
    if (job->stage == ST_STAGE_ENDED)
        return;
    job->gone = true;
    st_job_cancel(job);
    st_server_withdraw(s, job);
}

/* All answers of a request but one, which may be NULL. */
static void abandon_all(struct st_server *s, struct st_job *head, const struct st_job *but)
{
    if (head != but)
        abandon(s, head);
    for (int i = 1; head->others && i < head->call.choices; i++)
        if (head->others[i - 1] != but)
            abandon(s, head->others[i - 1]);
}

static void on_gone(struct st_exchange *x, void *user)
{
    (void)x;
    struct st_job *job = user;
    struct st_server *s = job->server;
    job->x = NULL;
    s->metrics.cancelled++;
    abandon_all(s, job, NULL);
}

/* Into the engine thread's list. */
static void queue_job(struct st_server *s, struct st_job *job)
{
    job->stage = ST_STAGE_QUEUED;
    job->place = ++s->places;
    st_lane_add(&s->engine, job);
    s->backend->ops->wake(s->backend);
}

void st_server_start(struct st_server *s, struct st_exchange *x, const char *route, struct st_call *call)
{
    static const struct st_format *const formats[] = {
        [ST_CALL_CHAT] = &st_format_chat,         [ST_CALL_COMPLETION] = &st_format_completion,
        [ST_CALL_MESSAGES] = &st_format_messages, [ST_CALL_COUNT_TOKENS] = &st_format_small,
        [ST_CALL_TOKENIZE] = &st_format_small,    [ST_CALL_DETOKENIZE] = &st_format_small,
        [ST_CALL_TEMPLATE] = &st_format_small,    [ST_CALL_SLOT] = &st_format_small,
        [ST_CALL_LOAD] = &st_format_small,        [ST_CALL_UNLOAD] = &st_format_small,
        [ST_CALL_VRAM] = &st_format_small,        [ST_CALL_RESPONSES] = &st_format_responses};
    static const char *const prefixes[] = {
        [ST_CALL_CHAT] = "chatcmpl-", [ST_CALL_COMPLETION] = "cmpl-", [ST_CALL_MESSAGES] = "msg_",
        [ST_CALL_COUNT_TOKENS] = "",  [ST_CALL_TOKENIZE] = "",        [ST_CALL_DETOKENIZE] = "",
        [ST_CALL_TEMPLATE] = "",      [ST_CALL_SLOT] = "",           [ST_CALL_LOAD] = "",
        [ST_CALL_UNLOAD] = "",        [ST_CALL_VRAM] = "",         [ST_CALL_RESPONSES] = "resp_"};
    struct st_job *job = calloc(1, sizeof *job);
    if (!job) {
        struct st_api_error error;
        st_call_free(call);
        st_call_out_of_memory(&error);
        if (x)
            st_reply_error(s, x, route, &error);
        return;
    }
    job->server = s;
    job->head = job;
    job->left = 1;
    job->call = *call;
    job->x = x;
    job->format = formats[call->kind];
    job->route = route;
    job->number = ++s->numbers;
    job->slot = -1;
    job->created = time(NULL);
    job->arrived = job->last_write = st_now();
    job->streaming = call->stream && job->format != &st_format_small;
    snprintf(job->id, sizeof job->id, "%s%08llx%08llx", prefixes[call->kind],
             (unsigned long long)(s->begun_wall & 0xffffffff), (unsigned long long)job->number);
    atomic_init(&job->cancelled, false);
    if (x) {
        x->gone = on_gone;
        x->user = job;
    }
    *s->jobs_end = job;
    s->jobs_end = &job->next;
    s->job_count++;
    s->answers += job->format != &st_format_small ? (size_t)call->choices : 0;
    if (s->options.log_prompts && job->format != &st_format_small) {
        char shown[800];
        char *text = call->prompt ? strdup(call->prompt) : json_dumps(job->call.messages, JSON_COMPACT);
        if (text)
            st_server_log(s, "#%llu prompt: %s", (unsigned long long)job->number,
                          st_printable(shown, sizeof shown, text, strlen(text)));
        free(text);
    }
    job->alone = call->kind == ST_CALL_LOAD || call->kind == ST_CALL_UNLOAD || call->kind == ST_CALL_VRAM;
    if (job->alone) {
        st_job_waits(job);
        queue_job(s, job);
    } else {
        st_lane_add(&s->prepare, job);
    }
}

/* The request has failed with one of its answers. */
static void reply_failed(struct st_server *s, struct st_job *job)
{
    struct st_job *head = job->head;
    struct st_exchange *x = head->x;
    job->status = job->error.status;
    if (x) {
        head->status = job->status;
        abandon_all(s, head, job);
    }
    if (x && !x->streaming) {
        head->x = NULL;
        head->counted = true;
        st_reply_error(s, x, head->route, &job->error);
    } else if (x) {
        head->format->fail(head, &job->error);
        st_job_end_stream(head);
    }
    if (job->error.status >= 500 && !job->gone)
        st_server_log(s, "#%llu %s failed: %s", (unsigned long long)job->number, job->route, job->error.message);
}

/* The other answers to a request whose prompt is prepared. False: there is no memory. */
static bool add_others(struct st_server *s, struct st_job *head)
{
    size_t n = (size_t)head->call.choices - 1;
    struct st_job **others = calloc(n, sizeof *others);
    bool good = others != NULL;
    for (size_t i = 0; good && i < n; i++)
        good = (others[i] = calloc(1, sizeof **others)) != NULL;
    if (!good) {
        for (size_t i = 0; others && i < n; i++)
            free(others[i]);
        free(others);
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        struct st_job *job = others[i];
        job->server = s;
        job->head = head;
        job->index = i + 1;
        job->call = head->call;
        job->call.sampling.seed += job->index;
        job->format = head->format;
        job->route = head->route;
        job->number = ++s->numbers;
        job->created = head->created;
        memcpy(job->id, head->id, sizeof job->id);
        job->ids = head->ids;
        job->count = head->count;
        job->text = head->text;
        job->text_size = head->text_size;
        job->constraint = head->constraint;
        job->slot = -1;
        job->arrived = head->arrived;
        job->streaming = head->streaming;
        job->stage = ST_STAGE_QUEUED;
        job->place = s->places + 1; /* that of the first one */
        atomic_init(&job->cancelled, false);
        *s->jobs_end = job;
        s->jobs_end = &job->next;
    }
    s->job_count += n;
    head->others = others;
    head->left += n;
    return true;
}

static void prepared(struct st_server *s, struct st_job *job)
{
    if (job->x && !job->failed && !s->stopping && job->call.choices > 1 && !add_others(s, job)) {
        job->failed = true;
        st_call_out_of_memory(&job->error);
    }
    if (!job->x || job->failed || s->stopping) {
        if (!job->failed) {
            job->failed = true;
            st_refuse(&job->error, 503, NULL, NULL, "the server is stopping");
        }
        if (job->x)
            reply_failed(s, job);
        finish_job(s, job);
        return;
    }
    if (job->format == &st_format_small && job->call.kind != ST_CALL_SLOT) {
        job->format->end(job);
        finish_job(s, job);
        return;
    }
    queue_job(s, job);
    if (job->streaming) {
        job->status = 200;
        st_exchange_add_header(job->x, "Cache-Control", "no-store");
        st_exchange_add_header(job->x, "X-Accel-Buffering", "no");
        st_exchange_begin(job->x, 200, "text/event-stream; charset=utf-8");
        job->format->begin(job);
        for (int i = 1; i < job->call.choices; i++)
            job->format->begin(job->others[i - 1]);
    }
}

static struct st_tool_call *add_tool(struct st_job *job)
{
    if (job->tool_count == job->tool_capacity) {
        size_t capacity = job->tool_capacity ? 2 * job->tool_capacity : 4;
        struct st_tool_call *tools = realloc(job->tools, capacity * sizeof *tools);
        if (!tools)
            return NULL;
        job->tools = tools;
        job->tool_capacity = capacity;
    }
    struct st_tool_call *tool = &job->tools[job->tool_count++];
    *tool = (struct st_tool_call){0};
    snprintf(tool->id, sizeof tool->id, job->call.kind == ST_CALL_MESSAGES ? "toolu_%06llx%06zx" : "call_%06llx%06zx",
             (unsigned long long)(job->number & 0xffffff), job->tool_count);
    return tool;
}

/* Adds a delta to the answer so far. */
static bool collect(struct st_server *s, struct st_job *job, struct st_delta *d)
{
    double now = st_now();
    struct st_tool_call *tool = job->tool_count ? &job->tools[job->tool_count - 1] : NULL;
    switch (d->kind) {
    case ST_DELTA_STARTED:
        job->stage = ST_STAGE_READING;
        job->started = now;
        st_histogram_add(&s->metrics.wait, now - job->arrived);
        break;
    case ST_DELTA_PROMPT:
        if (!job->reading) {
            job->reading = true;
            job->reused = d->a;
        } else {
            st_server_add_rate(s, d->a - job->prompt_done, 0);
        }
        job->prompt_done = d->a;
        job->slot = (int)d->b;
        break;
    case ST_DELTA_TOKEN:
        job->stage = ST_STAGE_GENERATING;
        if (job->generated++ == 0) {
            job->first_token = now;
            st_histogram_add(&s->metrics.first_token, now - job->arrived);
        } else {
            st_histogram_add(&s->metrics.per_token, d->seconds);
        }
        st_server_add_rate(s, 0, 1);
        if (d->logprob) {
            if (!job->logprobs)
                job->logprobs = json_array();
            json_array_append(job->logprobs, d->logprob);
        }
        break;
    case ST_DELTA_REASONING: st_buffer_add(&job->reasoning, d->text, d->size); break;
    case ST_DELTA_CONTENT: st_buffer_add(&job->content, d->text, d->size); break;
    case ST_DELTA_TOOL_BEGIN:
        tool = add_tool(job);
        if (!tool)
            return false;
        st_buffer_add(&tool->name, d->text, d->size);
        break;
    case ST_DELTA_TOOL_ARGUMENTS:
        if (tool)
            st_buffer_add(&tool->arguments, d->text, d->size);
        break;
    case ST_DELTA_TOOL_END:
    case ST_DELTA_PREPARED:
    case ST_DELTA_END: break;
    }
    return !job->content.failed && !job->reasoning.failed && (!tool || !tool->arguments.failed);
}

static void ended(struct st_server *s, struct st_job *job)
{
    struct st_job *head = job->head;
    bool answers = job->format != &st_format_small;
    if (answers && !job->failed && (job->withdrawn || (job->end == STRATA_END_CANCELLED && !job->enough && !job->timed_out))) {
        job->failed = true;
        st_refuse(&job->error, 503, NULL, NULL, "%s",
                  s->stopping ? "the server is stopping" : job->cut ? ST_CUT_MESSAGE : "the server is out of memory");
    }
    if (job->failed && !(job->withdrawn && job->gone)) {
        reply_failed(s, job);
    } else if (head->x) {
        job->status = head->status = 200;
        job->format->end(job);
    }
    finish_job(s, job);
}

/* Returns false when the job is gone. */
static bool take_delta(struct st_server *s, struct st_job *job, struct st_delta *d)
{
    if (d->kind == ST_DELTA_PREPARED) {
        prepared(s, job);
        return false;
    }
    if (d->kind == ST_DELTA_END) {
        ended(s, job);
        return false;
    }
    if (!collect(s, job, d)) {
        /* Out of memory. The error is written at the end: until then it belongs to the engine thread. */
        st_job_cancel(job);
        return true;
    }
    if (job->head->x && (job->streaming || job->format->whole))
        job->format->delta(job, d);
    return true;
}

static void on_outbox(evutil_socket_t fd, short what, void *arg)
{
    (void)what;
    struct st_server *s = arg;
    uint64_t count;
    ssize_t got = read(fd, &count, sizeof count);
    (void)got; /* nothing there is as good */
    for (struct st_job *job = s->jobs; job;) {
        bool ends = job->withdrawn && job->stage != ST_STAGE_ENDED;
        if (ends)
            ended(s, job);
        job = ends ? s->jobs : job->next; /* others may have gone with it */
    }
    for (;;) {
        pthread_mutex_lock(&s->lock);
        struct st_job *job = s->outbox_first;
        struct st_delta *d = NULL;
        if (job) {
            s->outbox_first = job->outbox_next;
            if (!s->outbox_first)
                s->outbox_last = NULL;
            job->in_outbox = false;
            d = job->first;
            job->first = job->last = NULL;
        }
        bool fatal = s->fatal;
        pthread_mutex_unlock(&s->lock);
        if (fatal)
            event_base_loopbreak(s->base);
        if (!job)
            return;
        bool there = true;
        for (struct st_delta *n; d; d = n) {
            n = d->next;
            if (there)
                there = take_delta(s, job, d);
            json_decref(d->logprob);
            free(d);
        }
    }
}

/* ---- time ---- */

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct st_server *s = arg;
    double now = st_now();
    for (struct st_job *job = s->jobs; job; job = job->next) {
        if (job->x && job->x->streaming && now - job->last_write >= 1e-3 * s->options.keepalive_ms)
            job->format->alive(job);
        bool running = job->stage == ST_STAGE_READING || job->stage == ST_STAGE_GENERATING;
        if (s->options.answer_seconds && running && now - job->started > s->options.answer_seconds) {
            job->timed_out = true;
            st_job_cancel(job);
        }
    }
    st_server_tick_load(s, now);
    if (s->stopping && ((!s->jobs && st_http_idle(s->http)) || now >= s->stop_at))
        event_base_loopbreak(s->base);
}

static void on_signal(evutil_socket_t number, short what, void *arg)
{
    (void)what;
    struct st_server *s = arg;
    if (s->stopping) {
        event_base_loopbreak(s->base);
        return;
    }
    st_server_log(s, "%s: stopping", number == SIGINT ? "interrupted" : "terminated");
    s->stopping = true;
    s->stop_at = st_now() + STOP_SECONDS;
    st_http_stop_accepting(s->http);
    for (struct st_job *job = s->jobs; job; job = job->next)
        st_job_cancel(job);
    event_active(s->tick_event, EV_TIMEOUT, 0);
}

/* Connections from now on have what the files hold now; those that are open keep what they have. */
static void on_hangup(evutil_socket_t number, short what, void *arg)
{
    (void)number, (void)what;
    struct st_server *s = arg;
    struct strata_error err;
    if (st_tls_reload(s->tls, &err))
        st_server_log(s, "%s; the certificate stays as it was", err.text);
    else
        st_server_log(s, "certificate and key were read again");
}

/* ---- start and stop ---- */

static void on_exchange(void *user, struct st_exchange *x)
{
    st_route(user, x);
}

static enum strata_result set_up(struct st_server *s, struct strata_error *err)
{
    const struct st_serve_options *o = &s->options;
    enum strata_result r = o->tls_cert ? st_tls_create(o->tls_cert, o->tls_key, &s->tls, err) : STRATA_OK;
    if (r)
        return r;
    struct event_config *config = event_config_new();
    if (config) {
        event_config_require_features(config, EV_FEATURE_EARLY_CLOSE);
        s->base = event_base_new_with_config(config);
        event_config_free(config);
    }
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!s->base || s->wake_fd < 0)
        return st_fail(err, STRATA_E_IO, "server: the system has no event queue for it");
    s->outbox_event = event_new(s->base, s->wake_fd, EV_READ | EV_PERSIST, on_outbox, s);
    s->tick_event = event_new(s->base, -1, EV_PERSIST, on_tick, s);
    s->int_event = evsignal_new(s->base, SIGINT, on_signal, s);
    s->term_event = evsignal_new(s->base, SIGTERM, on_signal, s);
    int tick_ms = o->keepalive_ms / 2 < 500 ? o->keepalive_ms / 2 : 500;
    struct timeval tick = {tick_ms / 1000, tick_ms % 1000 * 1000 + 1};
    if (!s->outbox_event || !s->tick_event || !s->int_event || !s->term_event ||
        event_add(s->outbox_event, NULL) != 0 || event_add(s->tick_event, &tick) != 0 ||
        event_add(s->int_event, NULL) != 0 || event_add(s->term_event, NULL) != 0)
        return st_fail(err, STRATA_E_MEMORY, "server: out of memory");
    if (s->tls && (!(s->hup_event = evsignal_new(s->base, SIGHUP, on_hangup, s)) || event_add(s->hup_event, NULL) != 0))
        return st_fail(err, STRATA_E_MEMORY, "server: out of memory");
    struct st_http_options http = {.host = o->host,
                                   .port = o->port,
                                   .max_connections = o->max_connections,
                                   .max_body = o->max_body,
                                   .max_headers = 64u << 10,
                                   .max_pending = o->max_pending,
                                   .request_seconds = o->request_seconds,
                                   .tls = s->tls,
                                   .write_seconds = 60};
    r = st_http_create(s->base, &http, on_exchange, s, &s->http, err);
    if (r == STRATA_OK)
        r = st_lane_start(&s->prepare, s, err);
    if (r == STRATA_OK)
        r = st_lane_start(&s->engine, s, err);
    return r;
}

static void tear_down(struct st_server *s)
{
    for (struct st_job *job = s->jobs; job; job = job->next)
        st_job_cancel(job);
    st_http_free(s->http);
    st_lane_stop(&s->prepare);
    st_lane_stop(&s->engine);
    while (s->jobs) {
        struct st_job *job = s->jobs;
        s->jobs = job->next;
        free_job(job);
    }
    struct event *events[] = {s->outbox_event, s->tick_event, s->int_event, s->term_event, s->hup_event};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (events[i])
            event_free(events[i]);
    if (s->base)
        event_base_free(s->base);
    st_tls_free(s->tls);
    if (s->wake_fd >= 0)
        close(s->wake_fd);
    struct strata_error err;
    struct st_backend_info info = {.keeps_slots = false};
    json_t *report = NULL;
    if (s->open)
        s->backend->ops->info(s->backend, &info);
    /* Without a folder that stays nothing outlives the server, and the system takes the rest back. */
    if (info.keeps_slots && s->state == ST_READY && s->backend->ops->unload(s->backend, &report, &err))
        st_server_log(s, "conversations could not be kept: %s", err.text);
    json_decref(report);
    s->backend->ops->free(s->backend);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static bool is_loopback(const char *host)
{
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 || strcmp(host, "localhost") == 0;
}

enum strata_result st_serve(struct st_backend *backend, const struct st_serve_options *options,
                            struct strata_error *err)
{
    struct st_server *s = calloc(1, sizeof *s);
    if (!s) {
        backend->ops->free(backend);
        return st_fail(err, STRATA_E_MEMORY, "server: out of memory");
    }
    s->options = *options;
    s->backend = backend;
    s->wake_fd = -1;
    s->prepare.work = prepare_work;
    s->engine.begin = st_server_load_first;
    s->engine.work = engine_work;
    s->engine.step = engine_step;
    s->jobs_end = &s->jobs;
    s->begun = st_now();
    s->begun_wall = time(NULL);
    pthread_mutex_init(&s->lock, NULL);
    snprintf(s->load_what, sizeof s->load_what, "starting");
    st_metrics_init(&s->metrics);
    void (*old_pipe)(int) = signal(SIGPIPE, SIG_IGN);
    enum strata_result r = set_up(s, err);
    if (r == STRATA_OK) {
        const char *bracket = strchr(options->host, ':') ? "[" : "";
        st_server_log(s, "listening on %s://%s%s%s:%d", s->tls ? "https" : "http", bracket, options->host, *bracket ? "]" : "",
                      st_http_port(s->http));
        if (!is_loopback(options->host) && !options->key_count)
            st_server_log(s, "warning: listening on %s without an API key: whoever reaches this machine can use the model",
                          options->host);
        if (event_base_dispatch(s->base) < 0)
            r = st_fail(err, STRATA_E_IO, "server: the event loop failed");
        pthread_mutex_lock(&s->lock);
        if (s->fatal)
            r = st_fail(err, s->load_error.code, "%s", s->load_error.text);
        pthread_mutex_unlock(&s->lock);
    }
    tear_down(s);
    signal(SIGPIPE, old_pipe);
    return r;
}
