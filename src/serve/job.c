/* What happens to a job outside the event thread: its prompt is prepared, its answer computed and cut into deltas. */
#include "serve/job.h"

#include <stdlib.h>
#include <string.h>

#include "serve/server.h"
#include "text/toolcall.h"

double st_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- prepare ---- */

static void fail_from(struct st_job *job, const char *param, const struct strata_error *err)
{
    job->failed = true;
    switch (err->code) {
    case STRATA_E_MEMORY: st_call_out_of_memory(&job->error); break;
    case STRATA_E_DEVICE:
    case STRATA_E_INTERNAL:
    case STRATA_E_IO:
    case STRATA_E_MODEL: st_refuse(&job->error, 500, NULL, NULL, "%s", err->text); break;
    default: st_refuse(&job->error, 400, NULL, param, "%s", err->text); break;
    }
}

/* The member that the prompt comes from, for messages. */
static const char *prompt_param(const struct st_job *job)
{
    return job->call.kind == ST_CALL_COMPLETION ? "prompt" : job->call.kind == ST_CALL_RESPONSES ? "input" : "messages";
}

static bool render(struct st_job *job, const struct st_backend *b)
{
    struct strata_error err = {0};
    for (int attempt = 0;; attempt++) {
        char *messages = json_dumps(job->call.messages, JSON_COMPACT),
             *options = json_dumps(job->call.options, JSON_COMPACT);
        enum strata_result r = messages && options
                                   ? b->ops->chat_prompt(b, messages, options, &job->ids, &job->count, &job->text, &err)
                                   : st_fail(&err, STRATA_E_MEMORY, "out of memory");
        free(messages);
        free(options);
        if (r == STRATA_OK)
            break;
        /* Some templates take a system message only at the front, while real clients send them anywhere. */
        if (attempt > 0 || r != STRATA_E_ARGUMENT || !st_call_move_system(&job->call)) {
            fail_from(job, prompt_param(job), &err);
            return false;
        }
    }
    job->text_size = strlen(job->text);
    return true;
}

static bool add_prefix(struct st_job *job, const struct st_backend *b)
{
    struct strata_error err = {0};
    int32_t *more = NULL;
    size_t count = 0;
    if (b->ops->tokenize(b, job->call.prefix, strlen(job->call.prefix), false, &more, &count, &err) != STRATA_OK) {
        fail_from(job, "messages", &err);
        return false;
    }
    int32_t *all = realloc(job->ids, (job->count + count + 1) * sizeof *all);
    if (!all) {
        free(more);
        job->failed = true;
        return st_call_out_of_memory(&job->error);
    }
    job->ids = all;
    if (count)
        memcpy(all + job->count, more, count * sizeof *all);
    job->count += count;
    free(more);
    return true;
}

static bool check_ids(struct st_job *job, const struct st_backend_info *info, const char *param)
{
    for (size_t i = 0; i < job->call.id_count; i++)
        if ((uint32_t)job->call.ids[i] >= info->vocabulary) {
            job->failed = true;
            return st_refuse(&job->error, 400, NULL, param, "%s[%zu]: the model has tokens 0 to %u", param, i,
                             info->vocabulary - 1);
        }
    return true;
}

static bool check_bias(struct st_job *job, const struct st_backend_info *info)
{
    for (size_t i = 0; i < job->call.sampling.bias_count; i++)
        if ((uint32_t)job->call.bias[i].token >= info->vocabulary) {
            job->failed = true;
            return st_refuse(&job->error, 400, NULL, "logit_bias", "logit_bias: the model has tokens 0 to %u",
                             info->vocabulary - 1);
        }
    return true;
}

/* The bytes of one token: text where it is UTF-8, otherwise the list of byte values. */
static json_t *piece_json(const struct st_backend *b, int32_t id)
{
    char *text;
    size_t size;
    struct strata_error err;
    if (b->ops->detokenize(b, &id, 1, true, &text, &size, &err) != STRATA_OK)
        return NULL;
    json_t *piece = json_stringn(text, size);
    if (!piece) {
        piece = json_array();
        for (size_t i = 0; i < size; i++)
            json_array_append_new(piece, json_integer((unsigned char)text[i]));
    }
    free(text);
    return piece;
}

static void prepare_tokenize(struct st_job *job, const struct st_backend *b)
{
    struct strata_error err = {0};
    if (b->ops->tokenize(b, job->call.prompt, job->call.prompt_size, job->call.special, &job->ids, &job->count, &err) !=
        STRATA_OK) {
        fail_from(job, "content", &err);
        return;
    }
    if (!job->call.pieces)
        return;
    job->pieces = json_array();
    for (size_t i = 0; i < job->count; i++)
        json_array_append_new(job->pieces, piece_json(b, job->ids[i]));
    if (json_array_size(job->pieces) != job->count) {
        job->failed = true;
        st_call_out_of_memory(&job->error);
    }
}

static void check_context(struct st_job *job, const struct st_backend_info *info)
{
    if (job->count < info->context)
        return;
    job->failed = true;
    if (job->call.kind == ST_CALL_MESSAGES)
        st_refuse(&job->error, 400, "context_length_exceeded", "messages",
                  "prompt is too long: %zu tokens > %u maximum", job->count, info->context);
    else
        st_refuse(&job->error, 400, "context_length_exceeded", prompt_param(job),
                  "the prompt has %zu tokens, and the maximum context length is %u tokens, the answer included",
                  job->count, info->context);
}

/* A schema beside demanded calls constrains nothing, and must be one all the same. */
static bool check_schema(struct st_job *job, const struct st_backend *b)
{
    struct strata_constraint *unused = NULL;
    struct strata_error err = {0};
    char *schema = json_dumps(job->call.schema, JSON_COMPACT | JSON_ENCODE_ANY);
    const struct strata_constraint_options o = {.json_schema = schema};
    enum strata_result r = schema ? b->ops->constrain(b, &o, &unused, &err) : st_fail(&err, STRATA_E_MEMORY, "out of memory");
    if (r)
        fail_from(job, job->call.constraint_param, &err);
    strata_constraint_free(unused);
    free(schema);
    return !r;
}

/* What the answer must be, if the request says so. */
static void constrain(struct st_job *job, const struct st_backend *b)
{
    const struct st_call *call = &job->call;
    struct strata_error err = {0};
    struct strata_constraint_options o = {.grammar = call->grammar,
                                          .one_call = !call->parallel_tools,
                                          .tool = call->demanded_tool,
                                          .prompt = call->kind == ST_CALL_COMPLETION ? NULL : job->text,
                                          .begun = call->prefix};
    bool tools = call->tools && (call->demands_tools || call->schema);
    if ((!call->grammar && !call->schema && !tools) || (call->schema && call->demands_tools && !check_schema(job, b)))
        return;
    char *schema = call->schema && !call->demands_tools ? json_dumps(call->schema, JSON_COMPACT | JSON_ENCODE_ANY) : NULL,
         *list = tools ? json_dumps(json_object_get(call->options, "tools"), JSON_COMPACT) : NULL;
    o.json_schema = schema;
    o.tools = list;
    enum strata_result r = (call->schema && !call->demands_tools && !schema) || (tools && !list)
                               ? st_fail(&err, STRATA_E_MEMORY, "out of memory")
                               : b->ops->constrain(b, &o, &job->constraint, &err);
    if (r)
        fail_from(job, call->demands_tools || strncmp(err.text, "tool ", 5) == 0 ? "tools" : call->constraint_param, &err);
    free(schema);
    free(list);
}

void st_job_prepare(struct st_job *job, const struct st_backend *b)
{
    struct st_backend_info info;
    struct strata_error err = {0};
    b->ops->info(b, &info);
    switch (job->call.kind) {
    case ST_CALL_CHAT:
    case ST_CALL_MESSAGES:
    case ST_CALL_RESPONSES:
        if (check_bias(job, &info) && render(job, b) && (!job->call.prefix || add_prefix(job, b)))
            check_context(job, &info);
        if (!job->failed)
            constrain(job, b);
        break;
    case ST_CALL_COUNT_TOKENS:
    case ST_CALL_TEMPLATE:
        if (render(job, b) && job->call.prefix)
            add_prefix(job, b);
        break;
    case ST_CALL_COMPLETION:
        if (!check_bias(job, &info))
            break;
        if (job->call.prompt) {
            if (b->ops->tokenize(b, job->call.prompt, job->call.prompt_size, job->call.special, &job->ids, &job->count,
                                 &err) != STRATA_OK)
                fail_from(job, "prompt", &err);
        } else if (check_ids(job, &info, "prompt")) {
            job->ids = job->call.ids;
            job->count = job->call.id_count;
            job->call.ids = NULL;
        }
        if (!job->failed)
            check_context(job, &info);
        if (!job->failed)
            constrain(job, b);
        break;
    case ST_CALL_TOKENIZE: prepare_tokenize(job, b); break;
    case ST_CALL_DETOKENIZE:
        if (check_ids(job, &info, "tokens") &&
            b->ops->detokenize(b, job->call.ids, job->call.id_count, job->call.special, &job->text, &job->text_size,
                               &err) != STRATA_OK)
            fail_from(job, "tokens", &err);
        break;
    case ST_CALL_SLOT:
    case ST_CALL_LOAD:
    case ST_CALL_UNLOAD:
    case ST_CALL_VRAM: break;
    }
    st_job_post(job, ST_DELTA_PREPARED, NULL, 0, 0, 0, 0, NULL);
}

/* ---- answer ---- */

/* A piece of the answer, taken apart. */
static void on_output(void *user, const struct st_output_event *e)
{
    static const enum st_delta_kind kinds[] = {[ST_OUTPUT_REASONING] = ST_DELTA_REASONING,
                                               [ST_OUTPUT_CONTENT] = ST_DELTA_CONTENT,
                                               [ST_OUTPUT_CALL] = ST_DELTA_TOOL_BEGIN,
                                               [ST_OUTPUT_ARGUMENTS] = ST_DELTA_TOOL_ARGUMENTS,
                                               [ST_OUTPUT_CALL_END] = ST_DELTA_TOOL_END};
    struct st_job *job = user;
    if (job->enough)
        return;
    job->in_reasoning = e->kind == ST_OUTPUT_REASONING;
    if (e->kind == ST_OUTPUT_CALL_END) {
        job->called_tool = e->complete;
        job->enough = e->complete && !job->call.parallel_tools;
    }
    st_job_post(job, kinds[e->kind], e->text, e->size, e->kind == ST_OUTPUT_CALL_END && e->complete, 0, 0, NULL);
}

static bool ends_with(const char *text, size_t size, const char *end)
{
    size_t n = strlen(end);
    return size >= n && memcmp(text + size - n, end, n) == 0;
}

/* Answers of conversations have parts; the answer to a raw prompt is text. */
static enum strata_result open_output(struct st_job *job, struct strata_error *err)
{
    if (job->call.kind == ST_CALL_COMPLETION)
        return STRATA_OK;
    job->in_reasoning = !job->call.prefix && (ends_with(job->text, job->text_size, "<think>") ||
                                              ends_with(job->text, job->text_size, "<think>\n"));
    struct st_output_options options = {.thinking = job->in_reasoning,
                                        .tools = job->call.tools ? json_object_get(job->call.options, "tools") : NULL,
                                        .event = on_output,
                                        .user = job};
    return st_output_create(&options, &job->output, err);
}

/* size 0: the answer has ended. */
static void take_text(struct st_job *job, const char *text, size_t size)
{
    struct strata_error err = {0};
    if (!job->output) {
        if (size)
            st_job_post(job, ST_DELTA_CONTENT, text, size, 0, 0, 0, NULL);
    } else if (!job->failed && (size ? st_output_push(job->output, text, size, &err)
                                     : st_output_finish(job->output, &err)) != STRATA_OK) {
        fail_from(job, NULL, &err);
    }
}

static json_t *logprob_entry(const struct st_backend *b, const struct strata_token_logprob *p)
{
    char *text;
    size_t size;
    struct strata_error err;
    if (b->ops->detokenize(b, &p->token, 1, true, &text, &size, &err) != STRATA_OK)
        return NULL;
    json_t *bytes = json_array(), *token = json_stringn(text, size);
    for (size_t i = 0; i < size; i++)
        json_array_append_new(bytes, json_integer((unsigned char)text[i]));
    if (!token) {
        /* Part of a character: shown as byte escapes, the exact value is in bytes. */
        char shown[64];
        token = json_string(st_printable(shown, sizeof shown, text, size));
    }
    free(text);
    return json_pack("{s:i, s:o, s:f, s:o}", "id", (int)p->token, "token", token, "logprob", (double)p->logprob,
                     "bytes", bytes);
}

static json_t *logprob_json(const struct st_job *job, const struct strata_event *e)
{
    if (!job->call.logprobs)
        return NULL;
    const struct st_backend *b = job->server->backend;
    json_t *entry = logprob_entry(b, &e->logprob), *top = json_array();
    size_t count = e->top_count < (size_t)job->call.top_logprobs ? e->top_count : (size_t)job->call.top_logprobs;
    for (size_t i = 0; i < count; i++)
        json_array_append_new(top, logprob_entry(b, &e->top[i]));
    json_object_set_new(entry, "top_logprobs", top);
    return entry;
}

void st_job_release(struct st_job *job)
{
    if (!job->others || job->released)
        return;
    job->released = true;
    for (size_t i = (size_t)job->call.choices - 1; i-- > 0;) {
        if (job->failed)
            atomic_store(&job->others[i]->cancelled, true);
        st_lane_add_first(&job->server->engine, job->others[i]);
    }
}

static bool on_event(void *user, const struct strata_event *e)
{
    struct st_job *job = user;
    switch (e->kind) {
    case STRATA_EVENT_PROMPT:
        st_job_post(job, ST_DELTA_PROMPT, NULL, 0, e->prompt_done, (size_t)job->run.slot, 0, NULL);
        break;
    case STRATA_EVENT_TEXT:
        st_job_release(job);
        if (e->token >= 0) {
            double now = st_now();
            st_job_post(job, ST_DELTA_TOKEN, NULL, 0, 0, 0, job->last_token > 0 ? now - job->last_token : 0,
                        logprob_json(job, e));
            job->last_token = now;
        }
        if (e->size)
            take_text(job, e->text, e->size);
        job->reasoning_tokens += e->token >= 0 && job->in_reasoning;
        break;
    case STRATA_EVENT_END:
        job->end = e->end;
        job->stop_index = e->stop_index;
        take_text(job, NULL, 0);
        break;
    }
    return !job->failed && !job->enough && !atomic_load(&job->cancelled);
}

static void end_answer(struct st_job *job)
{
    st_output_free(job->output);
    job->output = NULL;
    st_job_release(job);
    st_job_post(job, ST_DELTA_END, NULL, 0, 0, 0, 0, NULL);
}

static void on_done(void *user, enum strata_result result, const struct strata_error *err)
{
    struct st_job *job = user;
    struct st_job **at = &job->server->running;
    while (*at != job)
        at = &(*at)->lane_next;
    *at = job->lane_next;
    job->server->engine.under_way--;
    if (result != STRATA_OK && !job->failed)
        fail_from(job, NULL, err);
    struct st_condition c;
    st_server_condition(job->server, &c);
    if (result == STRATA_E_DEVICE && c.refuses)
        job->error.status = 503;
    end_answer(job);
}

/* Whoever runs behind it in the list began later. */
static void add_running(struct st_job *job)
{
    struct st_job **at = &job->server->running;
    while (*at)
        at = &(*at)->lane_next;
    *at = job;
    job->lane_next = NULL;
    job->server->engine.under_way++;
}

void st_job_begin(struct st_job *job)
{
    struct st_backend *b = job->server->backend;
    struct strata_error err = {0};
    st_job_post(job, ST_DELTA_STARTED, NULL, 0, 0, 0, 0, NULL);
    job->end = STRATA_END_CANCELLED;
    job->request = (struct strata_request){.ids = job->ids,
                                           .count = job->count,
                                           .max_tokens = (size_t)job->call.max_tokens,
                                           .sampling = job->call.sampling,
                                           .constraint = job->constraint,
                                           .stop = (const char *const *)job->call.stop,
                                           .stop_count = job->call.stop_count,
                                           .ignore_eos = job->call.ignore_eos,
                                           .event = on_event,
                                           .user = job};
    job->run = (struct st_backend_run){.request = &job->request, .slot = -1, .done = on_done, .user = job};
    if (atomic_load(&job->cancelled))
        end_answer(job);
    else if (open_output(job, &err) == STRATA_OK && b->ops->start(b, &job->run, &err) == STRATA_OK)
        add_running(job);
    else {
        fail_from(job, NULL, &err);
        end_answer(job);
    }
}
