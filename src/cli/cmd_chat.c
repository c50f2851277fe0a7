/* strata chat: a conversation, line by line, from a terminal or a pipe. The session keeps what it has read; each turn reads
 * only what is new. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/talks.h"

struct chat {
    struct st_host host;
    struct strata_request request;
    const char *system;
    struct st_talks talks;
    int thinking;
    bool terminal;
};

static const char chat_help[] = "/help   this text\n"
                                "/reset  forget the conversation\n"
                                "/new    begin another one\n"
                                "/list   the conversations\n"
                                "/go N   go on with conversation N\n"
                                "/quit   leave (so does the end of input)\n"
                                "A line that ends with \\ goes on in the next one. Ctrl-C ends an answer.\n";

/* An empty conversation begins with the system's message. */
static int begin(struct chat *c)
{
    if (c->system && !json_array_size(c->talks.messages) &&
        json_array_append_new(c->talks.messages, json_pack("{s:s, s:s}", "role", "system", "content", c->system)))
        return st_user_error("chat: no memory");
    return st_talks_save(&c->talks);
}

static int reset(struct chat *c)
{
    strata_session_reset(c->host.session);
    json_array_clear(c->talks.messages);
    return begin(c);
}

static int go(struct chat *c, const char *number)
{
    char *end;
    unsigned long n = strtoul(number, &end, 10);
    if (end == number || *end || !st_talks_go(&c->talks, n))
        return st_user_error("chat: there is no conversation %s; /list shows them", number);
    return begin(c);
}

static int add_message(struct chat *c, const char *role, const char *text, size_t size)
{
    if (json_array_append_new(c->talks.messages, json_pack("{s:s, s:s%}", "role", role, "content", text, size)))
        return st_user_error("chat: no memory for a message");
    return ST_EXIT_OK;
}

/* One turn: the user's text in, the answer printed and remembered. After a failure the message is taken back. */
static int turn(struct chat *c, const char *text, size_t size)
{
    json_t *messages = c->talks.messages;
    size_t before = json_array_size(messages);
    int status = add_message(c, "user", text, size);
    int32_t *ids = NULL;
    if (!status)
        status = st_chat_ids(&c->host, messages, c->thinking, &ids, &c->request.count, NULL);
    struct st_answer answer = {.print = true};
    if (!status) {
        c->request.ids = ids;
        status = st_answer_generate(&c->host, &c->request, &answer);
    }
    if (!status)
        status = add_message(c, "assistant", answer.text ? answer.text : "", answer.size);
    if (!status) {
        st_print("\n", 1);
        st_answer_stats(&answer);
    }
    while (status && json_array_size(messages) > before)
        json_array_remove(messages, json_array_size(messages) - 1);
    if (!status)
        status = st_talks_save(&c->talks);
    st_answer_free(&answer);
    strata_free(ids);
    return status;
}

/* Reads a message: one line, or several of which all but the last end with a backslash. NULL at the end of input. */
static char *read_message(const struct chat *c, size_t *size)
{
    char *line = NULL, *text = NULL;
    size_t room = 0, used = 0;
    bool more = true;
    while (more) {
        if (c->terminal)
            st_print(used ? "... " : "> ", used ? 4 : 2);
        ssize_t n = getline(&line, &room, stdin);
        if (n < 0 && !used) {
            free(line);
            free(text);
            return NULL;
        }
        if (n < 0)
            break;
        if (n && line[n - 1] == '\n')
            n--;
        more = n && line[n - 1] == '\\';
        char *bigger = realloc(text, used + (size_t)n + 2);
        if (!bigger)
            break;
        text = bigger;
        memcpy(text + used, line, (size_t)n);
        used += (size_t)n;
        if (more)
            text[used - 1] = '\n';
        text[used] = 0;
    }
    free(line);
    *size = used;
    return text;
}

/* Obeys a line that begins with '/'. True: leave. */
static bool command(struct chat *c, const char *text, int *status)
{
    if (strcmp(text, "/quit") == 0 || strcmp(text, "/exit") == 0)
        return true;
    if (strcmp(text, "/reset") == 0)
        *status = reset(c);
    else if (strcmp(text, "/new") == 0)
        *status = st_talks_begin(&c->talks) ? ST_EXIT_USER : begin(c);
    else if (strcmp(text, "/list") == 0)
        st_talks_list(&c->talks);
    else if (strncmp(text, "/go ", 4) == 0)
        *status = go(c, text + 4);
    else if (strcmp(text, "/help") == 0)
        st_print(chat_help, sizeof chat_help - 1);
    else
        *status = st_user_error("chat: unknown command %s; /help lists them", text);
    return false;
}

/* The exit code is that of the last failure; a failed turn does not end the conversation, a model or device that failed
 * does. */
static int talk(struct chat *c)
{
    int last = begin(c);
    for (;;) {
        size_t size = 0;
        char *text = read_message(c, &size);
        if (!text)
            break;
        int status = ST_EXIT_OK;
        bool leave = false;
        if (size && text[0] == '/')
            leave = command(c, text, &status);
        else if (size && !(status = st_check_utf8("message", text, size)))
            status = turn(c, text, size);
        free(text);
        if (status)
            last = status;
        if (leave || status > ST_EXIT_USER || ferror(stdout))
            break;
    }
    if (c->terminal)
        st_print("\n", 1);
    return last;
}

int st_cmd_chat(int argc, char **argv)
{
    struct st_engine_args engine = ST_ENGINE_ARGS;
    struct st_sampling_args sampling;
    const char *system = NULL, *session = NULL;
    int64_t predict = -1;
    int thinking = 0;
    st_sampling_args_init(&sampling);
    struct st_opt options[] = {
        ST_ENGINE_OPTIONS(engine),
        ST_SPEC_OPTIONS(engine),
        ST_TEXT("system", 0, &system, "TEXT", "system message before the conversation"),
        ST_TEXT("session", 0, &session, "FILE",
                "conversations are kept in FILE.json and the state of the last one in FILE, and go on from there"),
        ST_THINKING_OPTION(&thinking),
        ST_INT("predict", 'n', &predict, -1, 1 << 30, "N", "most tokens of one answer; -1 (default): until it ends"),
        ST_SAMPLING_OPTIONS(sampling),
    };
    struct st_usage usage = {.command = "chat",
                             .form = "-m FILE [options]",
                             .summary = "A conversation: each line is a message, the model answers. /help shows what else a "
                                        "line may be.",
                             .options = options,
                             .count = ST_COUNT(options)};
    int status;
    if (!st_options_parse(&usage, argc, argv, &status)) {
        st_sampling_args_free(&sampling);
        return status;
    }
    struct chat c = {.system = system,
                     .thinking = thinking,
                     .request = {.max_tokens = predict > 0 ? (size_t)predict : 0},
                     .terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)};
    status = sampling.logprobs ? st_user_error("chat: --logprobs is for run --json")
             : predict == 0    ? st_user_error("chat: -n 0 leaves no room for an answer; -1 is without limit")
                               : ST_EXIT_OK;
    if (!status && system)
        status = st_check_utf8("--system", system, strlen(system));
    if (!status)
        status = st_host_open("chat", &engine, false, &c.host);
    if (!status)
        status = st_sampling_resolve(&sampling, &c.host, &c.request.sampling);
    if (!status)
        status = st_talks_open(&c.talks, session);
    if (!status && session)
        status = st_state_load(&c.host, session, true); /* everything said is in FILE.json */
    if (!status && session && json_array_size(c.talks.messages))
        fprintf(stderr, "conversation %zu of %zu goes on after %zu messages\n", c.talks.current + 1,
                json_array_size(c.talks.all), json_array_size(c.talks.messages));
    if (!status) {
        status = talk(&c);
        int saved = session ? st_state_save(&c.host, session) : ST_EXIT_OK;
        status = status ? status : saved;
    }
    st_talks_free(&c.talks);
    free((void *)c.request.sampling.bias);
    st_host_close(&c.host);
    st_sampling_args_free(&sampling);
    return status;
}
