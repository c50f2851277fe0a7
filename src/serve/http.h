/* HTTP for the server: libevent's evhttp behind the few calls that the rest needs, with the limits that evhttp lacks
 * (number of connections, time to deliver a request, size of unsent output) and notice of clients that went away while
 * their answer was computed. Everything here runs in the event thread. */
#ifndef ST_SERVE_HTTP_H
#define ST_SERVE_HTTP_H

#include "base/result.h"

struct event;
struct event_base;
struct evhttp_request;

struct st_tls;

struct st_http_options {
    const char *host;    /* address to bind */
    int port;            /* 0: any free one, see st_http_port */
    int max_connections; /* open at once; one more gets a 429, over TLS it is closed */
    size_t max_body;     /* bytes; the handler sees a larger body as too_large, up to twice the limit */
    size_t max_headers;  /* bytes, request line included */
    size_t max_pending;  /* unsent bytes of a streamed answer; a client that lets more pile up is cut off */
    int request_seconds; /* from accept (agreeing on keys included) or the last answer to a complete request */
    struct st_tls *tls;  /* NULL: plain; stays the caller's and outlives the server */
    int write_seconds;   /* without progress of a write; also for the rest of an answer that is complete */
};

struct st_http;
struct st_connection;

/* One request and its answer. Valid in the handler and, if the handler does not answer at once, until st_exchange_send,
 * st_exchange_end, or the gone callback. */
struct st_exchange {
    struct evhttp_request *request;
    struct st_connection *connection;
    struct st_http *http;
    const char *method; /* "GET", "POST", ...; static */
    const char *path;   /* without query; percent escapes left as they are */
    const char *query;  /* what follows '?', NULL if there is none; as it came */
    const char *body;   /* NULL when empty; not terminated; only inside the handler */
    size_t body_size;
    bool too_large; /* body is longer than max_body and is not given */
    bool streaming;
    void (*gone)(struct st_exchange *x, void *user); /* the client is gone and x is no longer valid after this */
    void *user;
    struct event *closed_event; /* waits for the client to close */
};

typedef void st_http_handler(void *user, struct st_exchange *x);

enum strata_result st_http_create(struct event_base *base, const struct st_http_options *options,
                                  st_http_handler *handler, void *user, struct st_http **out, struct strata_error *err);
/* Closes all connections; gone is called for exchanges that are still open. */
void st_http_free(struct st_http *http);
int st_http_port(const struct st_http *http);
/* Stops accepting; open exchanges go on. */
void st_http_stop_accepting(struct st_http *http);
size_t st_http_connections(const struct st_http *http);
/* Connections refused because there were too many (or too many bytes of requests were arriving), requests (and agreements on keys)
 * cut off as too slow, clients cut off for unread output. */
struct st_http_counts {
    uint64_t refused, slow_requests, slow_readers;
};
struct st_http_counts st_http_counts(const struct st_http *http);
/* True when no answer is being computed or written. */
bool st_http_idle(const struct st_http *http);

/* Request header, NULL if absent. */
const char *st_exchange_header(const struct st_exchange *x, const char *name);
/* Adds a header to the answer; before send or begin. */
void st_exchange_add_header(struct st_exchange *x, const char *name, const char *value);

/* Answers at once and ends the exchange. size bytes are copied. */
void st_exchange_send(struct st_exchange *x, int status, const char *type, const void *data, size_t size);

/* A streamed answer: begin, any number of writes, end. write returns false when the client had to be cut off: gone has
 * then been called and x is no longer valid. */
void st_exchange_begin(struct st_exchange *x, int status, const char *type);
bool st_exchange_write(struct st_exchange *x, const void *data, size_t size);
void st_exchange_end(struct st_exchange *x);

#endif
