/* HTTP: evhttp with the limits and notices described in http.h.
 *
 * evhttp 2.1 tells nobody about a connection before its first request is complete, and has no limit on their number.
 * The bufferevent of every connection is therefore made here and a reference to it is kept: evhttp removes all
 * callbacks from a bufferevent when it frees the connection, and the next sweep then forgets it. Until then the number
 * of the closed descriptor may be in use again, so no event of the old bufferevent may be pending: evhttp deletes them
 * when a connection fails, and on_output sees to it when an answer is complete. */
#include "serve/http.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/http_struct.h>
#include <event2/listener.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>

#include "serve/tls.h"

/* EARLY_LIMIT: bytes that a client may send while it is being answered. BODIES: how many bodies of the largest size may
 * be arriving at the same time, whatever the number of connections; beyond that a request of more than SMALL bytes is
 * cut off. */
enum { EARLY_LIMIT = 1 << 20, BODIES = 8, SMALL = 64 << 10 };

enum connection_state { WAITING, ANSWERING, FLUSHING };

struct st_connection {
    struct st_connection *next;
    struct st_http *http;
    struct bufferevent *bev;
    struct ssl_st *session; /* NULL: plain */
    enum connection_state state;
    time_t since; /* when state was entered, monotonic seconds */
    bool refused; /* over the limit: told so and closed as soon as its socket is known */
    bool cut;
    bool last; /* evhttp closes after this answer */
    struct st_exchange *exchange;
};

struct st_http {
    struct event_base *base;
    struct evhttp *evhttp;
    struct evhttp_bound_socket *bound;
    struct event *sweep_event, *refuse_event;
    struct st_http_options options;
    struct st_connection *connections;
    size_t count;
    size_t arriving; /* bytes of requests that are not complete yet */
    int port;
    struct st_http_counts counts;
    st_http_handler *handler;
    void *user;
};

static time_t monotonic_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec;
}

static bool freed_by_evhttp(const struct st_connection *c)
{
    bufferevent_data_cb read_cb, write_cb;
    bufferevent_event_cb event_cb;
    bufferevent_getcb(c->bev, &read_cb, &write_cb, &event_cb, NULL);
    return !read_cb && !write_cb && !event_cb;
}

static void enter(struct st_connection *c, enum connection_state state)
{
    c->state = state;
    c->since = monotonic_seconds();
}

/* evhttp sees the end of the stream and frees the connection. */
static void cut(struct st_connection *c)
{
    evutil_socket_t fd = bufferevent_getfd(c->bev);
    if (fd >= 0 && !c->cut)
        shutdown(fd, SHUT_RDWR);
    c->cut = true;
}

/* evhttp reads while it writes, to learn of a close, and frees a connection right after the last byte has left. */
static void on_output(struct evbuffer *buffer, const struct evbuffer_cb_info *info, void *arg)
{
    struct st_connection *c = arg;
    if (!info->n_deleted || evbuffer_get_length(buffer) > 0)
        return;
    bufferevent_disable(c->bev, EV_READ);
    if (c->session && c->last && c->state == FLUSHING)
        st_tls_end(c->session, NULL);
}

/* Refuses a connection and closes it. A fresh socket's buffer holds the answer; if it does not, or no keys are agreed on, the client
 * sees the connection close. */
static void refuse(struct st_connection *c, const char *answer)
{
    if (c->session) {
        st_tls_end(c->session, answer);
    } else {
        ssize_t sent = send(bufferevent_getfd(c->bev), answer, strlen(answer), MSG_DONTWAIT | MSG_NOSIGNAL);
        (void)sent;
    }
    cut(c);
}

/* Whether a line that arrived is the length of a body that no integer holds: evhttp would wait for all of it. */
static bool endless_length(struct evbuffer *buffer)
{
    static const char name[] = "content-length:";
    char line[80];
    struct evbuffer_ptr at;
    evbuffer_ptr_set(buffer, &at, 0, EVBUFFER_PTR_SET);
    for (;;) {
        size_t end_bytes;
        ev_ssize_t n = evbuffer_copyout_from(buffer, &at, line, sizeof line - 1);
        struct evbuffer_ptr end = evbuffer_search_eol(buffer, &at, &end_bytes, EVBUFFER_EOL_CRLF);
        if (n <= 0 || end.pos < 0 || end.pos == at.pos) /* the last: behind it comes the body */
            return false;
        line[n] = 0;
        if (strncasecmp(line, name, sizeof name - 1) == 0) {
            errno = 0;
            return strtoll(line + sizeof name - 1, NULL, 10) == LLONG_MAX && errno == ERANGE;
        }
        at = end;
        evbuffer_ptr_set(buffer, &at, end_bytes, EVBUFFER_PTR_ADD);
    }
}

/* What arrives is kept until a request is complete, but not without limit. */
static void on_input(struct evbuffer *buffer, const struct evbuffer_cb_info *info, void *arg)
{
    struct st_connection *c = arg;
    struct st_http *http = c->http;
    http->arriving += info->n_added;
    http->arriving -= info->n_deleted;
    if (!info->n_added || c->cut)
        return;
    if (c->state == WAITING && evbuffer_get_length(buffer) <= http->options.max_headers && endless_length(buffer)) {
        http->counts.refused++;
        refuse(c, "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: 124\r\n\r\n"
                  "{\"error\":{\"message\":\"the Content-Length is too large for a number\",\"type\":\"invalid_request_error\",\"param\":null,"
                  "\"code\":null}}");
        return;
    }
    if (http->arriving > BODIES * http->options.max_body && evbuffer_get_length(buffer) > SMALL) {
        http->counts.refused++;
        cut(c);
    } else if (c->state != WAITING && evbuffer_get_length(buffer) > EARLY_LIMIT) {
        cut(c);
    }
}

static void forget(struct st_connection *c)
{
    c->http->arriving -= evbuffer_get_length(bufferevent_get_input(c->bev));
    evbuffer_remove_cb(bufferevent_get_output(c->bev), on_output, c);
    evbuffer_remove_cb(bufferevent_get_input(c->bev), on_input, c);
    bufferevent_decref(c->bev);
    st_tls_session_free(c->session);
    free(c);
}

static void sweep(struct st_http *http)
{
    time_t now = monotonic_seconds();
    for (struct st_connection **at = &http->connections; *at;) {
        struct st_connection *c = *at;
        if (freed_by_evhttp(c)) {
            *at = c->next;
            forget(c);
            http->count--;
            continue;
        }
        if (c->state == WAITING && now - c->since > http->options.request_seconds) {
            struct evbuffer *in = bufferevent_get_input(c->bev);
            if (!c->cut && (evbuffer_get_length(in) > 0 || (c->session && !st_tls_agreed(c->session))))
                http->counts.slow_requests++;
            cut(c);
        } else if (c->state == FLUSHING && now - c->since > http->options.write_seconds) {
            if (!c->cut)
                http->counts.slow_readers++;
            cut(c);
        }
        at = &c->next;
    }
}

static void sweep_cb(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    sweep(arg);
}

static void refuse_cb(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    static const char answer[] =
        "HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n"
        "Content-Length: 105\r\n\r\n"
        "{\"error\":{\"message\":\"too many open connections\",\"type\":\"rate_limit_error\",\"param\":null,"
        "\"code\":\"connections\"}}";
    struct st_http *http = arg;
    for (struct st_connection *c = http->connections; c; c = c->next)
        if (c->refused && !c->cut && !freed_by_evhttp(c))
            refuse(c, answer);
}

static struct bufferevent *new_connection(struct event_base *base, void *arg)
{
    struct st_http *http = arg;
    if (http->count >= (size_t)http->options.max_connections)
        sweep(http);
    struct st_connection *c = calloc(1, sizeof *c);
    struct bufferevent *bev = NULL;
    if (c)
        bev = http->options.tls ? st_tls_accept(http->options.tls, base, &c->session) : bufferevent_socket_new(base, -1, 0);
    if (!bev || !evbuffer_add_cb(bufferevent_get_output(bev), on_output, c) ||
        !evbuffer_add_cb(bufferevent_get_input(bev), on_input, c)) {
        if (bev)
            bufferevent_free(bev);
        if (c)
            st_tls_session_free(c->session);
        free(c);
        return NULL;
    }
    bufferevent_incref(bev);
    c->http = http;
    c->bev = bev;
    enter(c, WAITING);
    if (http->count >= (size_t)http->options.max_connections) {
        c->refused = true;
        http->counts.refused++;
        struct timeval now = {0, 0};
        event_add(http->refuse_event, &now);
    }
    c->next = http->connections;
    http->connections = c;
    http->count++;
    return bev;
}

static struct st_connection *find_connection(struct st_http *http, struct bufferevent *bev)
{
    struct st_connection *c = http->connections;
    while (c && c->bev != bev)
        c = c->next;
    return c;
}

/* Takes the exchange off its connection; the caller still has the request to finish. */
static void detach(struct st_exchange *x)
{
    if (x->closed_event)
        event_free(x->closed_event);
    x->closed_event = NULL;
    x->connection->exchange = NULL;
    struct evhttp_connection *evcon = evhttp_request_get_connection(x->request);
    if (evcon)
        evhttp_connection_set_closecb(evcon, NULL, NULL);
}

static void tell_gone(struct st_exchange *x)
{
    if (x->gone)
        x->gone(x, x->user);
    free(x);
}

/* evhttp frees the connection (a failed write, or the server stops) while the answer is not complete. */
static void connection_closed(struct evhttp_connection *evcon, void *arg)
{
    (void)evcon;
    struct st_connection *c = arg;
    struct st_exchange *x = c->exchange;
    if (!x)
        return;
    struct evhttp_request *request = x->request;
    detach(x);
    tell_gone(x);
    /* A request that evhttp took off its connection is ours to free; one that is still on it goes with it. */
    if (!evhttp_request_get_connection(request))
        evhttp_request_free(request);
}

/* The client closed while its answer was being computed; evhttp itself may not read then. */
static void drop(struct st_exchange *x)
{
    struct evhttp_connection *evcon = evhttp_request_get_connection(x->request);
    struct bufferevent *bev = x->connection->bev;
    detach(x);
    tell_gone(x);
    /* No event of this descriptor may stay pending: its number can be in use again before the sweep. */
    bufferevent_disable(bev, EV_READ | EV_WRITE);
    evhttp_connection_free(evcon);
}

static void client_closed(evutil_socket_t fd, short what, void *arg);

static void watch(struct st_exchange *x, short what)
{
    x->closed_event = event_new(x->http->base, bufferevent_getfd(x->connection->bev), what, client_closed, x);
    if (x->closed_event)
        event_add(x->closed_event, NULL);
}

/* A close, a reset (which the system reports as readable) or the next request, which has to wait. */
static void client_closed(evutil_socket_t fd, short what, void *arg)
{
    struct st_exchange *x = arg;
    char byte;
    ssize_t got = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (what & EV_CLOSED || got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
        drop(x);
        return;
    }
    event_free(x->closed_event);
    watch(x, EV_CLOSED);
}

static void answer_complete(struct evhttp_request *request, void *arg)
{
    (void)request;
    enter(arg, WAITING);
}

static const char *method_name(enum evhttp_cmd_type type)
{
    switch (type) {
    case EVHTTP_REQ_GET: return "GET";
    case EVHTTP_REQ_HEAD: return "HEAD";
    case EVHTTP_REQ_POST: return "POST";
    case EVHTTP_REQ_PUT: return "PUT";
    case EVHTTP_REQ_DELETE: return "DELETE";
    case EVHTTP_REQ_OPTIONS: return "OPTIONS";
    case EVHTTP_REQ_PATCH: return "PATCH";
    default: return "OTHER";
    }
}

/* Whether evhttp closes the connection behind the answer to this request. */
static bool is_last(struct evhttp_request *request)
{
    const char *connection = evhttp_find_header(evhttp_request_get_input_headers(request), "Connection");
    bool old = request->major < 1 || (request->major == 1 && request->minor == 0);
    return (connection && strcasecmp(connection, "close") == 0) || (old && !(connection && strcasecmp(connection, "keep-alive") == 0));
}

static void on_request(struct evhttp_request *request, void *arg)
{
    struct st_http *http = arg;
    struct evhttp_connection *evcon = evhttp_request_get_connection(request);
    struct st_connection *c = find_connection(http, evhttp_connection_get_bufferevent(evcon));
    struct st_exchange *x = calloc(1, sizeof *x);
    if (!c || !x) {
        free(x);
        evhttp_send_error(request, 503, NULL);
        return;
    }
    x->request = request;
    x->connection = c;
    x->http = http;
    x->method = method_name(evhttp_request_get_command(request));
    x->path = evhttp_uri_get_path(evhttp_request_get_evhttp_uri(request));
    if (!x->path)
        x->path = "/";
    x->query = evhttp_uri_get_query(evhttp_request_get_evhttp_uri(request));
    struct evbuffer *in = evhttp_request_get_input_buffer(request);
    x->body_size = evbuffer_get_length(in);
    if (x->body_size > http->options.max_body) {
        x->too_large = true;
        x->body_size = 0;
        evbuffer_drain(in, evbuffer_get_length(in));
    } else if (x->body_size) {
        x->body = (const char *)evbuffer_pullup(in, -1);
        if (!x->body) {
            free(x);
            evhttp_send_error(request, 503, NULL);
            return;
        }
    }
    c->exchange = x;
    c->last = is_last(request);
    enter(c, ANSWERING);
    evhttp_request_set_on_complete_cb(request, answer_complete, c);
    evhttp_connection_set_closecb(evcon, connection_closed, c);
    http->handler(http->user, x);
    /* Only an exchange that was not answered at once waits for its client to go. */
    if (c->exchange != x)
        return;
    /* The handler has read the body; a long wait must not keep it. */
    x->body = NULL;
    evbuffer_drain(in, evbuffer_get_length(in));
    watch(x, EV_READ | EV_CLOSED);
}

const char *st_exchange_header(const struct st_exchange *x, const char *name)
{
    return evhttp_find_header(evhttp_request_get_input_headers(x->request), name);
}

void st_exchange_add_header(struct st_exchange *x, const char *name, const char *value)
{
    evhttp_add_header(evhttp_request_get_output_headers(x->request), name, value);
}

static const char *reason(int status)
{
    switch (status) {
    case 200: return "OK";
    case 204: return "No Content";
    case 304: return "Not Modified";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 413: return "Content Too Large";
    case 415: return "Unsupported Media Type";
    case 429: return "Too Many Requests";
    case 503: return "Service Unavailable";
    default: return "Internal Server Error";
    }
}

void st_exchange_send(struct st_exchange *x, int status, const char *type, const void *data, size_t size)
{
    struct evhttp_request *request = x->request;
    if (type)
        st_exchange_add_header(x, "Content-Type", type);
    enter(x->connection, FLUSHING);
    detach(x);
    free(x);
    struct evbuffer *out = evbuffer_new();
    if (!out || (size && evbuffer_add(out, data, size) != 0))
        evhttp_send_error(request, 503, NULL);
    else
        evhttp_send_reply(request, status, reason(status), out);
    if (out)
        evbuffer_free(out);
}

void st_exchange_begin(struct st_exchange *x, int status, const char *type)
{
    st_exchange_add_header(x, "Content-Type", type);
    x->streaming = true;
    /* Small pieces must leave at once. */
    int one = 1;
    setsockopt(bufferevent_getfd(x->connection->bev), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    evhttp_send_reply_start(x->request, status, reason(status));
}

bool st_exchange_write(struct st_exchange *x, const void *data, size_t size)
{
    struct evbuffer *out = evbuffer_new();
    size_t pending = evbuffer_get_length(bufferevent_get_output(x->connection->bev));
    if (!out || evbuffer_add(out, data, size) != 0 || pending + size > x->http->options.max_pending) {
        if (out)
            evbuffer_free(out);
        x->http->counts.slow_readers++;
        drop(x);
        return false;
    }
    evhttp_send_reply_chunk(x->request, out);
    evbuffer_free(out);
    return true;
}

void st_exchange_end(struct st_exchange *x)
{
    struct evhttp_request *request = x->request;
    enter(x->connection, FLUSHING);
    detach(x);
    free(x);
    evhttp_send_reply_end(request);
}

enum strata_result st_http_create(struct event_base *base, const struct st_http_options *options,
                                  st_http_handler *handler, void *user, struct st_http **out, struct strata_error *err)
{
    struct st_http *http = calloc(1, sizeof *http);
    if (!http)
        return st_fail(err, STRATA_E_MEMORY, "server: out of memory");
    http->base = base;
    http->options = *options;
    http->handler = handler;
    http->user = user;
    http->evhttp = evhttp_new(base);
    http->sweep_event = event_new(base, -1, EV_PERSIST, sweep_cb, http);
    http->refuse_event = event_new(base, -1, 0, refuse_cb, http);
    struct timeval second = {1, 0};
    if (!http->evhttp || !http->sweep_event || !http->refuse_event || event_add(http->sweep_event, &second) != 0) {
        st_http_free(http);
        return st_fail(err, STRATA_E_MEMORY, "server: out of memory");
    }
    evhttp_set_max_headers_size(http->evhttp, (ssize_t)options->max_headers);
    evhttp_set_max_body_size(http->evhttp, (ssize_t)(2 * options->max_body));
    evhttp_set_timeout(http->evhttp, options->request_seconds);
    evhttp_set_flags(http->evhttp, EVHTTP_SERVER_LINGERING_CLOSE);
    evhttp_set_allowed_methods(http->evhttp, EVHTTP_REQ_GET | EVHTTP_REQ_HEAD | EVHTTP_REQ_POST | EVHTTP_REQ_PUT |
                                                 EVHTTP_REQ_DELETE | EVHTTP_REQ_OPTIONS | EVHTTP_REQ_PATCH);
    evhttp_set_bevcb(http->evhttp, new_connection, http);
    evhttp_set_gencb(http->evhttp, on_request, http);
    EVUTIL_SET_SOCKET_ERROR(0); /* names that cannot be resolved leave it as it was */
    http->bound = evhttp_bind_socket_with_handle(http->evhttp, options->host, (ev_uint16_t)options->port);
    if (!http->bound) {
        int code = EVUTIL_SOCKET_ERROR();
        st_http_free(http);
        return st_fail(err, STRATA_E_IO, "address %s port %d: %s", options->host, options->port,
                       code ? evutil_socket_error_to_string(code) : "cannot be resolved");
    }
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    if (getsockname(evhttp_bound_socket_get_fd(http->bound), (struct sockaddr *)&address, &length) == 0)
        http->port = ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                                         : ((struct sockaddr_in *)&address)->sin_port);
    *out = http;
    return STRATA_OK;
}

void st_http_free(struct st_http *http)
{
    if (!http)
        return;
    if (http->evhttp)
        evhttp_free(http->evhttp);
    for (struct st_connection *c = http->connections, *next; c; c = next) {
        next = c->next;
        forget(c);
    }
    if (http->sweep_event)
        event_free(http->sweep_event);
    if (http->refuse_event)
        event_free(http->refuse_event);
    free(http);
}

int st_http_port(const struct st_http *http)
{
    return http->port;
}

void st_http_stop_accepting(struct st_http *http)
{
    if (http->bound)
        evhttp_del_accept_socket(http->evhttp, http->bound);
    http->bound = NULL;
}

size_t st_http_connections(const struct st_http *http)
{
    size_t n = 0;
    for (const struct st_connection *c = http->connections; c; c = c->next)
        n += !freed_by_evhttp(c);
    return n;
}

struct st_http_counts st_http_counts(const struct st_http *http)
{
    return http->counts;
}

bool st_http_idle(const struct st_http *http)
{
    for (const struct st_connection *c = http->connections; c; c = c->next)
        if (c->state != WAITING && !freed_by_evhttp(c))
            return false;
    return true;
}
