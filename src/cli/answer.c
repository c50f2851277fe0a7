/* One answer on the command line: see answer.h. */
#define _GNU_SOURCE
#include "cli/answer.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The session that Ctrl-C stops; a signal handler has no other way to know it. */
static struct strata_session *_Atomic running;
static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
    struct strata_session *s = atomic_load(&running);
    if (s)
        strata_session_cancel(s);
}

const char *st_end_name(enum strata_end end)
{
    switch (end) {
    case STRATA_END_STOP_TOKEN: return "stop_token";
    case STRATA_END_STOP_TEXT: return "stop_text";
    case STRATA_END_LENGTH: return "length";
    case STRATA_END_CONTEXT: return "context";
    case STRATA_END_CANCELLED: return "cancelled";
    }
    return "unknown";
}

static void clear_progress(struct st_answer *a)
{
    if (a->shown)
        fputs("\r\033[K", stderr);
    a->shown = false;
}

static void show_progress(struct st_answer *a, const struct strata_event *e)
{
    if (!a->progress || !e->prompt_total || e->prompt_done >= e->prompt_total)
        return;
    fprintf(stderr, "\rreading the prompt: %zu of %zu tokens (%zu %%)", e->prompt_done, e->prompt_total,
            e->prompt_done * 100 / e->prompt_total);
    a->shown = true;
}

static bool keep_text(struct st_answer *a, const char *text, size_t size)
{
    if (a->size + size + 1 > a->room) {
        size_t room = 2 * (a->size + size) + 256;
        char *p = realloc(a->text, room);
        if (!p)
            return false;
        a->text = p;
        a->room = room;
    }
    memcpy(a->text + a->size, text, size);
    a->size += size;
    a->text[a->size] = 0;
    return true;
}

static json_t *logprob_json(const struct strata_token_logprob *p)
{
    return json_pack("{s:i, s:f}", "id", p->token, "logprob", (double)p->logprob);
}

static bool keep_token(struct st_answer *a, const struct strata_event *e)
{
    if (json_array_append_new(a->ids, json_integer(e->token)))
        return false;
    if (!a->logprobs)
        return true;
    json_t *top = json_array();
    for (size_t i = 0; top && i < e->top_count; i++)
        if (json_array_append_new(top, logprob_json(&e->top[i])))
            return false;
    json_t *entry = logprob_json(&e->logprob);
    return entry && top && !json_object_set_new(entry, "top", top) && !json_array_append_new(a->logprobs, entry);
}

static bool on_event(void *user, const struct strata_event *e)
{
    struct st_answer *a = user;
    if (interrupted)
        return false;
    switch (e->kind) {
    case STRATA_EVENT_PROMPT: show_progress(a, e); break;
    case STRATA_EVENT_TEXT:
        clear_progress(a);
        if (!keep_text(a, e->text ? e->text : "", e->size) || (a->collect && e->token >= 0 && !keep_token(a, e)) ||
            (a->print && e->size && !st_print(e->text, e->size))) {
            a->failed = true;
            a->reason = errno;
        }
        break;
    case STRATA_EVENT_END: a->end = e->end; break;
    }
    return !a->failed;
}

int st_answer_generate(const struct st_host *h, struct strata_request *request, struct st_answer *a)
{
    a->progress = isatty(STDERR_FILENO);
    a->end = STRATA_END_CANCELLED;
    if (a->collect && (!(a->ids = json_array()) || (request->sampling.logprobs && !(a->logprobs = json_array()))))
        return st_user_error("no memory for the answer");
    request->event = on_event;
    request->user = a;

    /* One Ctrl-C ends the answer; the default action comes back with it, so a second one ends the program. */
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESETHAND}, old;
    sigemptyset(&action.sa_mask);
    interrupted = 0;
    atomic_store(&running, h->session);
    sigaction(SIGINT, &action, &old);
    struct strata_error err;
    enum strata_result r = strata_generate(h->session, request, &a->stats, &err);
    sigaction(SIGINT, &old, NULL);
    atomic_store(&running, NULL);

    clear_progress(a);
    if (r)
        return st_report(&err);
    if (a->failed)
        return st_user_error("the answer was cut short: %s", strerror(a->reason));
    return ST_EXIT_OK;
}

void st_answer_free(struct st_answer *a)
{
    free(a->text);
    json_decref(a->ids);
    json_decref(a->logprobs);
    a->text = NULL;
    a->size = a->room = 0;
    a->ids = a->logprobs = NULL;
}

static double rate(size_t tokens, double seconds)
{
    return seconds > 0 ? (double)tokens / seconds : 0;
}

void st_answer_stats(const struct st_answer *a)
{
    const struct strata_stats *s = &a->stats;
    fprintf(stderr,
            "prompt %zu tokens = %zu reused + %zu read in %.0f ms (%.1f tok/s), %zu generated in %.0f ms (%.1f tok/s)\n",
            s->prompt_tokens, s->reused_tokens, s->read_tokens, s->read_seconds * 1e3, rate(s->read_tokens, s->read_seconds),
            s->generated_tokens, s->generate_seconds * 1e3, rate(s->generated_tokens, s->generate_seconds));
    if (s->drafted_tokens)
        fprintf(stderr, "drafts: %zu of %zu accepted (%.0f %%), %.2f tokens a pass\n", s->accepted_tokens, s->drafted_tokens,
                100.0 * (double)s->accepted_tokens / (double)s->drafted_tokens,
                (double)(s->passes + s->accepted_tokens) / (double)s->passes);
}
