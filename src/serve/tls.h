/* TLS of the server: a certificate with its key, and connections that use them. OpenSSL does the work, libevent joins the two.
 * Versions 1.2 and 1.3. Event thread, but for st_tls_create. */
#ifndef ST_SERVE_TLS_H
#define ST_SERVE_TLS_H

#include "base/result.h"

struct bufferevent;
struct event_base;
struct ssl_st;
struct st_tls;

/* Reads a certificate (PEM, those of its issuers behind it) and its key (PEM, not encrypted). Refused by name: a file that cannot be
 * read or holds something else, a certificate whose time has passed or has not come, a key that does not belong to it. The texts are
 * copied. */
enum strata_result st_tls_create(const char *cert, const char *key, struct st_tls **out, struct strata_error *err);
/* Reads both files again, for connections from now on. After a failure everything is as before. */
enum strata_result st_tls_reload(struct st_tls *tls, struct strata_error *err);
void st_tls_free(struct st_tls *tls);

/* What a new connection needs: a bufferevent without a socket, and its session, which the caller frees after the bufferevent. NULL:
 * no memory. */
struct bufferevent *st_tls_accept(struct st_tls *tls, struct event_base *base, struct ssl_st **session);
void st_tls_session_free(struct ssl_st *session);
/* Whether keys are agreed on. */
bool st_tls_agreed(const struct ssl_st *session);
/* Says at once that nothing more follows; with a text before that, unless text is NULL. What does not fit into the socket's buffer is
 * lost. */
void st_tls_end(struct ssl_st *session, const char *text);

#endif
