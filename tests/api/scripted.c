/* A server without a model, for the tests of the APIs: it replays texts from a script and counts every byte as a token.
 *
 * The script is a JSON object:
 *   "context"    tokens (default 4096)          "load_ms"  time that loading takes
 *   "read_us"    time per prompt token          "token_us" time per answer token
 *   "template"   chat template (default: plain ChatML)
 *   "parallel"   answers at once (default 1), each token of them in the time of the slowest
 *   "machine"    what /v1/status says of devices (default: one that does not exist)
 *   "refuse_file" while there is such a file loading fails; "hold_file": it does not end
 *   "answers"    list of {"match", "text", "repeat", "read_us", "token_us", "fail_after"}: the first entry whose match
 *                is part of the last message (or of the raw prompt) answers with its text, repeat times; fail_after:
 * the number of tokens after which the device fails, abort_after: the process does, hang_after: it stands still. Without a match
 * the answer repeats the last message. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "cli/serve_options.h"
#include "serve/backend_child.h"
#include "serve/child.h"
#include "text/chat.h"
#include "text/constraint.h"
#include "text/stop.h"
#include "text/tokenizer.h"

#define PROCESS "scripted-engine" /* as whom it starts itself for the engine */
enum { PARALLEL_MAX = 16 };
enum { BYTES = 256, START = BYTES, END_OF_TURN, END_OF_TEXT, VOCABULARY, READ_CHUNK = 64 };

/* A place for a conversation, and the answer that is under way in it. */
struct slot {
    int32_t *held; /* the last conversation */
    size_t held_count;
    struct st_backend_run *run; /* NULL: free */
    const json_t *answer;
    char *text;
    size_t size, read, written; /* bytes of the text; prompt tokens that are there; tokens of the answer */
    struct st_stop *stop;
    struct st_decoder decoder;
    bool cancelled, ended;
    enum strata_end end;
    int stop_index;
};

struct scripted {
    struct st_backend base;
    const char *path;
    json_t *script;
    struct st_tokenizer *tokenizer;
    struct st_chat *chat;
    struct st_trie *trie;
    uint32_t context;
    uint32_t parallel;
    struct slot slot[PARALLEL_MAX];
};

static void pause_us(int64_t us)
{
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    if (us > 0)
        nanosleep(&t, NULL);
}

static int64_t number(const json_t *object, const char *name, int64_t otherwise)
{
    const json_t *value = json_object_get(object, name);
    return json_is_integer(value) ? json_integer_value(value) : otherwise;
}

/* Byte-level vocabularies write a byte as a character: printable ones as themselves, the others from U+0100 on. */
static enum strata_result make_tokenizer(struct scripted *s, struct strata_error *err)
{
    static char text[BYTES][3];
    struct st_bytes tokens[VOCABULARY];
    int32_t types[VOCABULARY];
    int shifted = 256;
    for (int b = 0; b < BYTES; b++) {
        bool plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        int cp = plain ? b : shifted++;
        size_t n = 0;
        if (cp >= 0x80)
            text[b][n++] = (char)(0xC0 | cp >> 6);
        text[b][n++] = (char)(cp >= 0x80 ? 0x80 | (cp & 0x3F) : cp);
        tokens[b] = (struct st_bytes){text[b], n};
        types[b] = ST_TOKEN_NORMAL;
    }
    static const char *const special[] = {"<|im_start|>", "<|im_end|>", "<|endoftext|>"};
    for (int i = START; i < VOCABULARY; i++) {
        tokens[i] = (struct st_bytes){special[i - START], strlen(special[i - START])};
        types[i] = ST_TOKEN_CONTROL;
    }
    struct st_vocab vocab = {tokens, types, VOCABULARY, NULL, 0, "gpt2", -1, END_OF_TEXT, END_OF_TURN, -1, false};
    return st_tokenizer_create(&vocab, &s->tokenizer, err);
}

static enum strata_result scripted_open(struct st_backend *b, struct strata_error *err)
{
    struct scripted *s = (struct scripted *)b;
    char *text;
    size_t size;
    enum strata_result r = st_read_file(s->path, 1 << 20, &text, &size, err);
    if (r != STRATA_OK)
        return r;
    s->script = json_loadb(text, size, 0, NULL);
    free(text);
    if (!s->script)
        return st_fail(err, STRATA_E_FORMAT, "%s: not a script", s->path);
    s->context = (uint32_t)number(s->script, "context", 4096);
    s->parallel = (uint32_t)number(s->script, "parallel", 1);
    if (s->parallel < 1 || s->parallel > PARALLEL_MAX)
        return st_fail(err, STRATA_E_FORMAT, "%s: parallel is not in 1..%d", s->path, PARALLEL_MAX);
    const json_t *template_text = json_object_get(s->script, "template");
    r = make_tokenizer(s, err);
    if (r == STRATA_OK)
        r = st_chat_create(json_string_value(template_text), json_string_length(template_text), NULL, NULL, &s->chat,
                           err);
    return r ? r : st_trie_create(s->tokenizer, &s->trie, err);
}

static enum strata_result scripted_load(struct st_backend *b, st_backend_progress *progress, void *user,
                                        struct strata_error *err)
{
    struct scripted *s = (struct scripted *)b;
    int64_t load_ms = number(s->script, "load_ms", 0);
    for (int i = 0; i < 10; i++) {
        progress(user, "reading the script", 0.1 * i);
        pause_us(100 * load_ms);
    }
    const char *holds = json_string_value(json_object_get(s->script, "hold_file"));
    while (holds && !access(holds, F_OK)) {
        progress(user, "reading the script", 0.9);
        pause_us(10000);
    }
    const char *refuses = json_string_value(json_object_get(s->script, "refuse_file"));
    if (refuses && !access(refuses, F_OK))
        return st_fail(err, STRATA_E_DEVICE, "script: there is no device as long as %s exists", refuses);
    return STRATA_OK;
}

static enum strata_result scripted_unload(struct st_backend *b, json_t **report, struct strata_error *err)
{
    (void)b, (void)err;
    *report = json_pack("{s:{s:i, s:i}, s:[{s:s, s:I, s:i}]}", "conversations", "files", 0, "bytes", 0, "freed", "name",
                        "script", "bytes", (json_int_t)700 << 20, "driver_bytes", 0);
    return STRATA_OK;
}

static void scripted_free(struct st_backend *b)
{
    struct scripted *s = (struct scripted *)b;
    json_decref(s->script);
    st_trie_free(s->trie);
    st_tokenizer_free(s->tokenizer);
    st_chat_free(s->chat);
    for (int i = 0; i < PARALLEL_MAX; i++)
        free(s->slot[i].held);
    free(s);
}

static void scripted_info(const struct st_backend *b, struct st_backend_info *out)
{
    const struct scripted *s = (const struct scripted *)b;
    *out = (struct st_backend_info){.name = "scripted",
                                    .path = s->path,
                                    .architecture = "none",
                                    .chat_template = json_string_value(json_object_get(s->script, "template")),
                                    .parameters = 1,
                                    .bytes = 1,
                                    .context = s->context,
                                    .trained_context = s->context,
                                    .vocabulary = VOCABULARY,
                                    .parallel = s->parallel,
                                    .sampling = {.top_p = 1, .repetition_penalty = 1}};
}

static enum strata_result scripted_tokenize(const struct st_backend *b, const char *text, size_t size, bool special,
                                            int32_t **ids, size_t *count, struct strata_error *err)
{
    struct st_ids list = {0};
    enum strata_result r =
        st_tokenizer_encode(((const struct scripted *)b)->tokenizer, text, size, special, &list, err);
    *ids = list.data;
    *count = list.count;
    return r;
}

static enum strata_result scripted_detokenize(const struct st_backend *b, const int32_t *ids, size_t count,
                                              bool special, char **text, size_t *size, struct strata_error *err)
{
    (void)err;
    const struct scripted *s = (const struct scripted *)b;
    size_t room = 16 * count + 1, n = 0;
    char *out = malloc(room);
    for (size_t i = 0; out && i < count; i++) {
        struct st_bytes piece = st_tokenizer_bytes(s->tokenizer, ids[i], special);
        memcpy(out + n, piece.data, piece.size);
        n += piece.size;
    }
    if (!out)
        return st_fail(err, STRATA_E_MEMORY, "out of memory");
    out[n] = 0;
    *text = out;
    *size = n;
    return STRATA_OK;
}

static enum strata_result scripted_prompt(const struct st_backend *b, const char *messages, const char *options,
                                          int32_t **ids, size_t *count, char **text, struct strata_error *err)
{
    const struct scripted *s = (const struct scripted *)b;
    json_t *list = json_loads(messages, 0, NULL), *object = json_loads(options, 0, NULL);
    struct st_ids out = {0};
    struct st_rendered rendered = {0};
    enum strata_result r = st_chat_encode(s->chat, s->tokenizer, list, object, &out, &rendered, err);
    json_decref(list);
    json_decref(object);
    *ids = out.data;
    *count = out.count;
    *text = rendered.text;
    rendered.text = NULL;
    st_rendered_free(&rendered);
    return r;
}

static enum strata_result scripted_constrain(const struct st_backend *b, const struct strata_constraint_options *options,
                                             struct strata_constraint **out, struct strata_error *err)
{
    const struct scripted *s = (const struct scripted *)b;
    return st_constraint_create(options, json_string_value(json_object_get(s->script, "template")), s->trie, out, err);
}

static json_t *scripted_status(const struct st_backend *b)
{
    const struct scripted *s = (const struct scripted *)b;
    const json_t *machine = json_object_get(s->script, "machine");
    if (machine)
        return json_deep_copy(machine);
    return json_pack("{s:[{s:s, s:s, s:I, s:[{s:s, s:I}, {s:s, s:I}]}]}", "devices", "name", "script", "description",
                     "no device", "total_bytes", (json_int_t)1 << 30, "memory", "kind", "weights", "bytes",
                     (json_int_t)600 << 20, "kind", "cache", "bytes", (json_int_t)100 << 20);
}

/* The last message that is not the start of an answer, or the raw prompt. */
static char *last_message(const struct scripted *s, const struct strata_request *request, struct strata_error *err)
{
    char *text = NULL;
    size_t size = 0;
    if (scripted_detokenize(&s->base, request->ids, request->count, true, &text, &size, err) != STRATA_OK)
        return NULL;
    char *from = text, *before = text;
    for (char *at = text; (at = strstr(at, "<|im_start|>")); at++) {
        before = from;
        from = at;
    }
    char *message = strndup(before, (size_t)(from == text ? text + size - before : from - before));
    free(text);
    return message;
}

static const json_t *find_answer(const struct scripted *s, const char *message)
{
    size_t i;
    json_t *answer;
    json_array_foreach(json_object_get(s->script, "answers"), i, answer)
    {
        const char *match = json_string_value(json_object_get(answer, "match"));
        if (match && strstr(message, match))
            return answer;
    }
    return NULL;
}

/* The text of an answer, as often as the script says; without one what the message says after its first line. */
static char *answer_text(const json_t *answer, const char *message)
{
    const json_t *text = json_object_get(answer, "text");
    if (!json_is_string(text)) {
        const char *from = strchr(message, '\n'), *to = strstr(message, "<|im_end|>");
        from = from ? from + 1 : message;
        return strndup(from, to && to > from ? (size_t)(to - from) : strlen(from));
    }
    size_t size = json_string_length(text), repeat = (size_t)number(answer, "repeat", 1);
    char *out = malloc(size * repeat + 1);
    if (!out)
        return NULL;
    for (size_t i = 0; i < repeat; i++)
        memcpy(out + i * size, json_string_value(text), size);
    out[size * repeat] = 0;
    return out;
}

static bool allowed(const uint32_t *mask, int32_t id)
{
    return mask[id / 32] >> id % 32 & 1;
}

/* The token that an answer goes on with where the script has nothing that is allowed: what closes something, or the first. */
static int32_t any_token(const uint32_t *mask)
{
    static const char close[] = "\"}]";
    if (allowed(mask, END_OF_TURN))
        return END_OF_TURN;
    for (size_t i = 0; i < sizeof close - 1; i++)
        if (allowed(mask, close[i]))
            return close[i];
    int32_t id = 0;
    while (!allowed(mask, id))
        id++;
    return id;
}

/* What becomes of a text under a constraint: of the bytes that are left the first one that is allowed comes next. */
static char *constrained(const struct strata_constraint *c, const char *wish, struct strata_error *err)
{
    enum { MOST = 4096 };
    struct st_matcher *m = NULL;
    char *out = malloc(MOST + 1);
    size_t n = 0, at = 0, size = strlen(wish);
    enum strata_result r = out ? st_constraint_begin(c, VOCABULARY, &m, err) : st_fail(err, STRATA_E_MEMORY, "out of memory");
    while (!r && n < MOST) {
        const uint32_t *mask;
        int32_t token;
        if ((r = st_matcher_mask(m, &mask, err)))
            break;
        size_t next = at;
        while (next < size && !allowed(mask, (unsigned char)wish[next]))
            next++;
        token = next < size ? (unsigned char)wish[next] : any_token(mask);
        at = next < size ? next + 1 : at;
        if (token == END_OF_TURN)
            break;
        out[n++] = (char)token;
        r = st_matcher_accept(m, token, err);
    }
    st_matcher_free(m);
    if (r) {
        free(out);
        return NULL;
    }
    out[n] = 0;
    return out;
}

static void add_logprobs(const struct strata_request *request, int32_t token, struct strata_event *e,
                         struct strata_token_logprob top[2])
{
    if (request->sampling.logprobs == 0)
        return;
    top[0] = e->logprob = (struct strata_token_logprob){token, -0.25f};
    top[1] = (struct strata_token_logprob){(token + 1) % BYTES, -1.5f};
    e->top = top;
    e->top_count = request->sampling.logprobs < 2 ? 1 : 2;
}

/* ---- answers under way ---- */

static size_t shared(const struct slot *slot, const struct strata_request *request)
{
    size_t same = 0;
    while (same < slot->held_count && same + 1 < request->count && slot->held[same] == request->ids[same])
        same++;
    return same;
}

/* The free slot that holds most of the prompt. */
static struct slot *choose_slot(struct scripted *s, const struct strata_request *request)
{
    struct slot *best = NULL;
    for (uint32_t i = 0; i < s->parallel; i++)
        if (!s->slot[i].run && (!best || shared(&s->slot[i], request) > shared(best, request)))
            best = &s->slot[i];
    return best;
}

static enum strata_result scripted_start(struct st_backend *b, struct st_backend_run *run, struct strata_error *err)
{
    struct scripted *s = (struct scripted *)b;
    const struct strata_request *request = run->request;
    struct slot *slot = choose_slot(s, request);
    char *message = last_message(s, request, err);
    if (!message)
        return STRATA_E_MEMORY;
    const json_t *answer = find_answer(s, message);
    *slot = (struct slot){.held = slot->held, .held_count = slot->held_count, .answer = answer, .end = STRATA_END_STOP_TOKEN, .stop_index = -1};
    enum strata_result r = st_stop_create(request->stop, request->stop_count, &slot->stop, err); /* NULL on failure */
    slot->text = answer_text(answer, message);
    free(message);
    if (!r && !slot->text)
        r = st_fail(err, STRATA_E_MEMORY, "out of memory");
    if (!r && request->constraint) {
        char *text = constrained(request->constraint, slot->text, err);
        free(slot->text);
        slot->text = text;
        r = text ? STRATA_OK : err->code;
    }
    if (r) {
        st_stop_free(slot->stop);
        free(slot->text);
        return r;
    }
    slot->size = strlen(slot->text);
    slot->run = run;
    slot->read = shared(slot, request);
    st_decoder_init(&slot->decoder, s->tokenizer, false);
    run->stats = (struct strata_stats){.prompt_tokens = request->count, .reused_tokens = slot->read};
    run->slot = (int)(slot - s->slot);
    return STRATA_OK;
}

static void emit(struct slot *slot, const struct strata_event *e)
{
    const struct strata_request *request = slot->run->request;
    if (!request->event(request->user, e) || slot->cancelled) {
        slot->ended = true;
        slot->end = STRATA_END_CANCELLED;
    }
}

static void emit_read(struct slot *slot)
{
    emit(slot, &(struct strata_event){.kind = STRATA_EVENT_PROMPT, .prompt_done = slot->read, .prompt_total = slot->run->request->count});
}

/* Reads on with a pause per token, as an engine does: what is held already is skipped. */
static void read_chunk(const struct scripted *s, struct slot *slot)
{
    struct strata_stats *stats = &slot->run->stats;
    size_t left = slot->run->request->count - slot->read, more = left < READ_CHUNK ? left : READ_CHUNK;
    int64_t us = (int64_t)more * number(slot->answer, "read_us", number(s->script, "read_us", 0));
    if (!stats->read_tokens)
        emit_read(slot);
    if (slot->ended)
        return;
    pause_us(us);
    slot->read += more;
    stats->read_tokens += more;
    stats->read_seconds += 1e-6 * (double)us;
    emit_read(slot);
}

static void finish(struct slot *slot, enum strata_end end)
{
    slot->ended = true;
    slot->end = end;
}

/* The next token, or the end of the answer. */
static enum strata_result write_token(const struct scripted *s, struct slot *slot, struct strata_error *err)
{
    const struct strata_request *request = slot->run->request;
    struct strata_stats *stats = &slot->run->stats;
    size_t i = slot->written;
    struct strata_event e = {.kind = STRATA_EVENT_TEXT, .token = i < slot->size ? (unsigned char)slot->text[i] : END_OF_TURN};
    struct strata_token_logprob top[2];
    struct st_bytes piece, free_text = {0};
    int found = -1;
    if ((int64_t)i == number(slot->answer, "fail_after", -1))
        return st_fail(err, STRATA_E_DEVICE, "script: the device failed as asked");
    if ((int64_t)i == number(slot->answer, "abort_after", -1)) {
        fprintf(stderr, "script: fault at address 0x%x\n", 4096);
        abort();
    }
    while ((int64_t)i == number(slot->answer, "hang_after", -1))
        pause();
    if (i == slot->size)
        finish(slot, STRATA_END_STOP_TOKEN);
    else if (request->max_tokens && i == request->max_tokens)
        finish(slot, STRATA_END_LENGTH);
    else if (request->count + i >= s->context)
        finish(slot, STRATA_END_CONTEXT);
    if (slot->ended)
        return STRATA_OK;
    slot->written++;
    stats->generated_tokens++;
    stats->generate_seconds += 1e-6 * (double)number(slot->answer, "token_us", number(s->script, "token_us", 0));
    enum strata_result r = st_decoder_push(&slot->decoder, e.token, &piece, err);
    if (!r)
        r = st_stop_push(slot->stop, piece.data, piece.size, &free_text, &found, err);
    if (r)
        return r;
    e.text = free_text.data;
    e.size = free_text.size;
    add_logprobs(request, e.token, &e, top);
    emit(slot, &e);
    if (found >= 0 && !slot->ended) {
        finish(slot, STRATA_END_STOP_TEXT);
        slot->stop_index = found;
    }
    return STRATA_OK;
}

/* The slot then holds prompt and answer. */
static void keep(struct slot *slot)
{
    const struct strata_request *request = slot->run->request;
    free(slot->held);
    slot->held_count = 0;
    slot->held = malloc((request->count + slot->size) * sizeof *slot->held);
    if (!slot->held)
        return;
    memcpy(slot->held, request->ids, slot->read * sizeof *slot->held);
    for (size_t i = 0; i < slot->written; i++)
        slot->held[slot->read + i] = (unsigned char)slot->text[i];
    slot->held_count = slot->read + slot->written;
}

static void end_answer(struct slot *slot, enum strata_result r, const struct strata_error *err)
{
    struct st_backend_run *run = slot->run;
    const struct strata_request *request = run->request;
    if (!r && slot->end != STRATA_END_CANCELLED && slot->end != STRATA_END_STOP_TEXT) {
        struct st_bytes rest = st_stop_finish(slot->stop);
        struct strata_event e = {.kind = STRATA_EVENT_TEXT, .token = -1, .text = rest.data, .size = rest.size};
        if (rest.size)
            request->event(request->user, &e);
    }
    if (!r)
        request->event(request->user, &(struct strata_event){.kind = STRATA_EVENT_END, .token = -1, .end = slot->end, .stop_index = slot->stop_index});
    keep(slot);
    st_decoder_free(&slot->decoder);
    st_stop_free(slot->stop);
    free(slot->text);
    slot->text = NULL;
    slot->run = NULL;
    run->done(run->user, r, err);
}

static void scripted_step(struct st_backend *b)
{
    struct scripted *s = (struct scripted *)b;
    int64_t longest = 0;
    for (uint32_t i = 0; i < s->parallel; i++) {
        struct slot *slot = &s->slot[i];
        struct strata_error err = {0};
        enum strata_result r = STRATA_OK;
        if (!slot->run)
            continue;
        int64_t us = number(slot->answer, "token_us", number(s->script, "token_us", 0));
        if (slot->read < slot->run->request->count)
            read_chunk(s, slot);
        else if ((r = write_token(s, slot, &err)) == STRATA_OK && !slot->ended && us > longest)
            longest = us;
        if (r || slot->ended)
            end_answer(slot, r, &err);
    }
    pause_us(longest);
}

static void scripted_cancel(struct st_backend *b, struct st_backend_run *run)
{
    ((struct scripted *)b)->slot[run->slot].cancelled = true;
}

static void scripted_wake(struct st_backend *b)
{
    (void)b; /* pauses are short */
}

static const struct st_backend_ops ops = {
    .open = scripted_open,     .load = scripted_load,         .unload = scripted_unload,         .free = scripted_free,
    .constrain = scripted_constrain,
    .info = scripted_info,     .tokenize = scripted_tokenize, .detokenize = scripted_detokenize, .chat_prompt = scripted_prompt,
    .status = scripted_status, .start = scripted_start,       .step = scripted_step,             .cancel = scripted_cancel,
    .wake = scripted_wake};

static enum strata_result make(const char *path, struct st_backend **out, struct strata_error *err)
{
    struct scripted *s = calloc(1, sizeof *s);
    if (!s)
        return st_fail(err, STRATA_E_MEMORY, "out of memory");
    s->base.ops = &ops;
    s->path = path;
    *out = &s->base;
    return STRATA_OK;
}

struct args {
    const char *script;
    char **argv;
    bool process; /* this is the engine's process */
    bool two;     /* make one */
    int64_t watchdog;
};

static void end_at_once(void)
{
    _exit(3);
}

static enum strata_result run(void *user, const struct st_serve_options *o, struct strata_error *err)
{
    const struct args *a = user;
    struct st_backend *backend;
    enum strata_result r = make(a->script, &backend, err);
    if (!r && a->process)
        return st_child_run(backend, &(struct st_child_options){.orphaned = end_at_once}, err);
    const struct st_backend_child_options child = {
        .program = "/proc/self/exe", .argv = a->argv, .silent_seconds = (double)a->watchdog, .log = o->log, .log_user = o->log_user};
    if (!r && a->two)
        r = st_backend_child(backend, &child, &backend, err);
    return r ? r : st_serve(backend, o, err);
}

int main(int argc, char **argv)
{
    struct args a = {.argv = argv, .process = !strcmp(argv[0], PROCESS), .watchdog = 150};
    const struct st_opt extra[] = {
        ST_TEXT("script", 's', &a.script, "FILE", "answers to replay"),
        ST_FLAG("two", 0, &a.two, "the engine in a process of its own"),
        ST_INT("watchdog", 0, &a.watchdog, 1, 1000, "SECONDS", "as in strata serve"),
    };
    argv[0] = PROCESS;
    return st_serve_main(argc, argv, "--script FILE [options]", "Replays a script.", extra, ST_COUNT(extra), run, &a);
}
