/* Routes: which call a path means, and who may make it. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "serve/server.h"

struct route {
    const char *method, *path;
    void (*answer)(struct st_server *s, struct st_exchange *x); /* NULL: a call */
    enum st_call_kind kind;
    bool open; /* needs no key */
};

static const struct route routes[] = {
    {"POST", "/v1/chat/completions", NULL, ST_CALL_CHAT, false},
    {"POST", "/v1/completions", NULL, ST_CALL_COMPLETION, false},
    {"POST", "/v1/responses", NULL, ST_CALL_RESPONSES, false},
    {"POST", "/v1/messages", NULL, ST_CALL_MESSAGES, false},
    {"POST", "/v1/messages/count_tokens", NULL, ST_CALL_COUNT_TOKENS, false},
    {"POST", "/tokenize", NULL, ST_CALL_TOKENIZE, false},
    {"POST", "/detokenize", NULL, ST_CALL_DETOKENIZE, false},
    {"POST", "/apply-template", NULL, ST_CALL_TEMPLATE, false},
    {"POST", "/slots/", NULL, ST_CALL_SLOT, false},
    {"POST", "/load", NULL, ST_CALL_LOAD, false},
    {"POST", "/unload", NULL, ST_CALL_UNLOAD, false},
    {"POST", "/v1/vram", NULL, ST_CALL_VRAM, false},
    {"GET", "/v1/models", st_answer_models, 0, false},
    {"GET", "/props", st_answer_props, 0, false},
    {"GET", "/slots", st_answer_slots, 0, false},
    {"GET", "/v1/status", st_answer_status, 0, false},
    {"GET", "/metrics", st_answer_metrics, 0, false},
    {"GET", "/health", st_answer_health, 0, true},
};

/* ---- who asks ---- */

/* Time does not depend on where the texts differ, only on the length of what was presented. */
static bool same_secret(const char *key, const char *presented)
{
    size_t n = strlen(key), m = strlen(presented);
    unsigned difference = (unsigned)(n ^ m);
    for (size_t i = 0; i < m; i++)
        difference |= (unsigned char)presented[i] ^ (unsigned char)key[n ? i % n : 0];
    return difference == 0 && n == m;
}

static bool key_given(const struct st_server *s, const struct st_exchange *x)
{
    const char *bearer = st_exchange_header(x, "Authorization"), *plain = st_exchange_header(x, "x-api-key");
    bearer = bearer && strncasecmp(bearer, "Bearer ", 7) == 0 ? bearer + 7 : NULL;
    unsigned found = 0;
    for (size_t i = 0; i < s->options.key_count; i++) {
        if (bearer)
            found |= same_secret(s->options.keys[i], bearer);
        if (plain)
            found |= same_secret(s->options.keys[i], plain);
    }
    return found != 0;
}

static bool is_address(const char *name)
{
    unsigned char address[16];
    return inet_pton(AF_INET, name, address) == 1 || inet_pton(AF_INET6, name, address) == 1;
}

/* The name in "name:port" or "[address]:port". */
static bool host_name(const char *host, char *name, size_t size)
{
    const char *from = host, *to = strrchr(host, ':');
    if (*host == '[') {
        from++;
        to = strchr(host, ']');
        if (!to)
            return false;
    } else if (!to) {
        to = host + strlen(host);
    }
    if ((size_t)(to - from) >= size)
        return false;
    memcpy(name, from, (size_t)(to - from));
    name[to - from] = 0;
    return true;
}

/* A page elsewhere can make a browser look its own name up to this machine's address, but it cannot choose the name
 * that is then in Host: an address, localhost and the names that were listed are safe. */
static bool host_allowed(const struct st_server *s, const struct st_exchange *x)
{
    const char *host = st_exchange_header(x, "Host");
    char name[256];
    if (!host)
        return true; /* no browser leaves it out */
    if (!host_name(host, name, sizeof name))
        return false;
    size_t length = strlen(name);
    if (strcasecmp(name, "localhost") == 0 || is_address(name) || strcasecmp(name, s->options.host) == 0 ||
        (length > 10 && strcasecmp(name + length - 10, ".localhost") == 0))
        return true;
    for (size_t i = 0; i < s->options.name_count; i++)
        if (strcasecmp(name, s->options.names[i]) == 0)
            return true;
    return false;
}

static bool origin_listed(const struct st_server *s, const char *origin)
{
    for (size_t i = 0; i < s->options.origin_count; i++)
        if (strcmp(s->options.origins[i], "*") == 0 || strcasecmp(s->options.origins[i], origin) == 0)
            return true;
    return false;
}

static bool origin_own(const struct st_exchange *x, const char *origin)
{
    const char *host = st_exchange_header(x, "Host"), *at = strstr(origin, "://");
    return host && at && strcasecmp(at + 3, host) == 0;
}

static bool json_body(const struct st_exchange *x)
{
    const char *type = st_exchange_header(x, "Content-Type");
    return type && strncasecmp(type, "application/json", 16) == 0 && (!type[16] || strchr("; \t", type[16]));
}

static bool may_ask(const struct st_server *s, const struct st_exchange *x, bool open, struct st_api_error *error)
{
    const char *origin = st_exchange_header(x, "Origin");
    if (s->options.key_count)
        return open || key_given(s, x) ||
               st_refuse(error, 401, "invalid_api_key", NULL,
                         "a valid API key is needed, as \"Authorization: Bearer KEY\" or \"x-api-key: KEY\"");
    if (!host_allowed(s, x))
        return st_refuse(error, 403, NULL, NULL,
                         "this name of the server is not known to it; start it with --host-name or with an API key");
    if (origin && !origin_own(x, origin) && !origin_listed(s, origin))
        return st_refuse(error, 403, NULL, NULL,
                         "pages of this origin may not call the server; start it with --cors to allow them");
    if (strcmp(x->method, "POST") == 0 && !json_body(x))
        return st_refuse(error, 415, NULL, NULL, "the content type must be application/json");
    return true;
}

static void add_cors(const struct st_server *s, struct st_exchange *x)
{
    const char *origin = st_exchange_header(x, "Origin");
    if (!origin || !origin_listed(s, origin))
        return;
    st_exchange_add_header(x, "Access-Control-Allow-Origin", origin);
    st_exchange_add_header(x, "Vary", "Origin");
}

static void preflight(struct st_server *s, struct st_exchange *x)
{
    const char *origin = st_exchange_header(x, "Origin");
    if (origin && origin_listed(s, origin)) {
        const char *headers = st_exchange_header(x, "Access-Control-Request-Headers");
        st_exchange_add_header(x, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
        if (headers)
            st_exchange_add_header(x, "Access-Control-Allow-Headers", headers);
        st_exchange_add_header(x, "Access-Control-Max-Age", "600");
    }
    st_metrics_request(&s->metrics, "OPTIONS", 204);
    st_exchange_send(x, 204, NULL, NULL, 0);
}

/* ---- calls ---- */

static uint32_t parallel(const struct st_server *s)
{
    struct st_backend_info info;
    s->backend->ops->info(s->backend, &info);
    return info.parallel;
}

/* The number at the end of /slots/N. */
static bool slot_number(const struct st_exchange *x, const struct st_backend_info *info, uint32_t *out)
{
    const char *text = x->path + strlen("/slots/");
    size_t n = strlen(text);
    *out = (uint32_t)strtoul(text, NULL, 10);
    return n && n < 6 && strspn(text, "0123456789") == n && *out < info->parallel;
}

static bool read_slot(const struct st_server *s, struct st_exchange *x, struct st_call *call, struct st_api_error *error)
{
    struct st_backend_info info;
    s->backend->ops->info(s->backend, &info);
    if (!info.keeps_slots)
        return st_refuse(error, 501, NULL, NULL, "states are not kept in files here; start the server with --session-dir");
    if (!slot_number(x, &info, &call->slot))
        return st_refuse(error, 404, NULL, NULL, "this server has the slots 0 to %u", info.parallel - 1);
    return st_slot_read_action(call, x->query, error);
}

/* Answers that may be under way or wait. */
static size_t room(const struct st_server *s)
{
    return s->options.queue + parallel(s);
}

static bool refuse_full(const struct st_server *s, struct st_api_error *error)
{
    return st_refuse(error, 429, "queue_full", NULL, "%zu requests are waiting already; try again later", s->options.queue);
}

/* Whether there is room for all answers that a call asks for. */
static bool has_room(const struct st_server *s, const struct st_call *call, struct st_api_error *error)
{
    size_t n = (size_t)call->choices;
    if (n == 1)
        return true;
    if (n > room(s))
        return st_refuse(error, 400, NULL, "n", "n: this server takes %zu answers at once at most (--queue)", room(s));
    return n <= room(s) - s->answers || refuse_full(s, error);
}

static void start_call(struct st_server *s, struct st_exchange *x, const struct route *route)
{
    struct st_api_error error = {0};
    struct st_call call;
    bool answer = route->kind == ST_CALL_CHAT || route->kind == ST_CALL_COMPLETION || route->kind == ST_CALL_MESSAGES ||
                  route->kind == ST_CALL_RESPONSES;
    if (x->too_large) {
        st_refuse(&error, 413, NULL, NULL, "the body is larger than %zu bytes", s->options.max_body);
    } else if (!st_server_open(s, answer, &error)) {
        st_reply_error(s, x, route->path, &error);
        return;
    } else if (answer ? s->answers >= room(s) : s->job_count > s->options.queue + 64) {
        refuse_full(s, &error);
    } else if (route->kind == ST_CALL_VRAM && !(s->options.vram_elastic && s->backend->ops->reserve)) {
        st_refuse(&error, 501, NULL, NULL, "the memory of devices is not changed here; start the server with --vram-elastic");
    } else {
        st_call_init(&call, route->kind, &s->sampling);
        if ((route->kind != ST_CALL_SLOT || read_slot(s, x, &call, &error)) &&
            st_call_read(&call, x->body, x->body_size, &error) && has_room(s, &call, &error)) {
            st_server_start(s, x, route->path, &call);
            return;
        }
        st_call_free(&call);
    }
    st_reply_error(s, x, route->path, &error);
}

void st_route(struct st_server *s, struct st_exchange *x)
{
    struct st_api_error error = {0};
    if (strcmp(x->method, "OPTIONS") == 0) {
        add_cors(s, x);
        preflight(s, x);
        return;
    }
    const struct route *found = NULL;
    bool path_known = false, head = strcmp(x->method, "HEAD") == 0;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        const struct route *r = &routes[i];
        bool sub = (r->answer == st_answer_models && strncmp(x->path, "/v1/models/", 11) == 0) ||
                   (r->kind == ST_CALL_SLOT && strncmp(x->path, r->path, strlen(r->path)) == 0);
        if (strcmp(x->path, r->path) != 0 && !sub)
            continue;
        path_known = true;
        if (strcmp(x->method, r->method) == 0 || (head && strcmp(r->method, "GET") == 0))
            found = r;
    }
    bool page = !path_known && (head || strcmp(x->method, "GET") == 0);
    if (!may_ask(s, x, page || (found && found->open), &error)) {
        st_reply_error(s, x, "refused", &error);
        return;
    }
    add_cors(s, x);
    if (found && found->answer) {
        found->answer(s, x);
    } else if (found) {
        start_call(s, x, found);
    } else if (!page || !st_answer_page(s, x)) {
        if (path_known)
            st_refuse(&error, 405, NULL, NULL, "this path does not take %s", x->method);
        else
            st_refuse(&error, 404, NULL, NULL, "there is nothing at this path");
        st_reply_error(s, x, "unknown", &error);
    }
}
