/* TLS: see tls.h. */
#include "serve/tls.h"

#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#ifdef ST_OPENSSL_OPENED
#include "serve/openssl.h"
#endif

enum { PEM_MOST = 1 << 20 };

struct st_tls {
    char *cert, *key;
    SSL_CTX *context;
};

/* What OpenSSL says of its last failure. */
static const char *last_reason(void)
{
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    return reason ? reason : "OpenSSL does not say why";
}

/* A key that is encrypted is refused instead of asking the terminal. */
static int no_password(char *buffer, int size, int writing, void *user)
{
    (void)buffer, (void)size, (void)writing, (void)user;
    return -1;
}

static enum strata_result check_time(const char *path, const X509 *cert, struct strata_error *err)
{
    const ASN1_TIME *from = X509_get0_notBefore(cert), *to = X509_get0_notAfter(cert);
    bool over = X509_cmp_time(to, NULL) <= 0, early = X509_cmp_time(from, NULL) >= 0;
    struct tm when;
    char text[64] = "a time that cannot be read";
    if (!over && !early)
        return STRATA_OK;
    if (ASN1_TIME_to_tm(over ? to : from, &when) == 1)
        strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &when);
    return st_fail(err, STRATA_E_ARGUMENT, over ? "certificate %s: it expired at %s" : "certificate %s: it is not valid before %s", path,
                   text);
}

/* The first certificate of a PEM text is the server's, the others are those of its issuers. *out is it, of context. */
static enum strata_result use_certificates(SSL_CTX *context, const char *path, BIO *pem, const X509 **out, struct strata_error *err)
{
    X509 *cert = PEM_read_bio_X509(pem, NULL, no_password, NULL);
    if (!cert)
        return st_fail(err, STRATA_E_FORMAT, "certificate %s: there is none in it, in PEM form (%s)", path, last_reason());
    int used = SSL_CTX_use_certificate(context, cert);
    X509_free(cert);
    if (used != 1)
        return st_fail(err, STRATA_E_ARGUMENT, "certificate %s: %s", path, last_reason());
    *out = SSL_CTX_get0_certificate(context);
    while ((cert = PEM_read_bio_X509(pem, NULL, no_password, NULL)))
        if (SSL_CTX_add0_chain_cert(context, cert) != 1) {
            X509_free(cert);
            return st_fail(err, STRATA_E_ARGUMENT, "certificate %s: one of its issuers: %s", path, last_reason());
        }
    if (ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE)
        return st_fail(err, STRATA_E_FORMAT, "certificate %s: one of its issuers: %s", path, last_reason());
    return check_time(path, *out, err);
}

static enum strata_result use_key(SSL_CTX *context, const struct st_tls *tls, BIO *pem, const X509 *cert, struct strata_error *err)
{
    EVP_PKEY *key = PEM_read_bio_PrivateKey(pem, NULL, no_password, NULL);
    enum strata_result r = STRATA_OK;
    if (!key)
        r = st_fail(err, STRATA_E_FORMAT, "key %s: there is none in it, in PEM form and not encrypted (%s)", tls->key, last_reason());
    else if (X509_check_private_key(cert, key) != 1)
        r = st_fail(err, STRATA_E_ARGUMENT, "key %s: it does not belong to the certificate %s", tls->key, tls->cert);
    else if (SSL_CTX_use_PrivateKey(context, key) != 1)
        r = st_fail(err, STRATA_E_ARGUMENT, "key %s: %s", tls->key, last_reason());
    EVP_PKEY_free(key);
    return r;
}

static SSL_CTX *new_context(void)
{
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    if (!context || SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) != 1) {
        SSL_CTX_free(context);
        return NULL;
    }
    SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF); /* clients keep tickets instead */
    return context;
}

/* A context with what the two files hold. */
static enum strata_result read_files(const struct st_tls *tls, SSL_CTX **out, struct strata_error *err)
{
    char *cert_text = NULL, *key_text = NULL;
    size_t cert_size = 0, key_size = 0;
    enum strata_result r = st_read_file(tls->cert, PEM_MOST, &cert_text, &cert_size, err);
    if (r)
        return st_fail_in(err, r, "certificate");
    r = st_read_file(tls->key, PEM_MOST, &key_text, &key_size, err);
    if (r) {
        free(cert_text);
        return st_fail_in(err, r, "key");
    }
    ERR_clear_error();
    SSL_CTX *context = new_context();
    BIO *cert_pem = BIO_new_mem_buf(cert_text, (int)cert_size), *key_pem = BIO_new_mem_buf(key_text, (int)key_size);
    const X509 *cert = NULL;
    if (!context || !cert_pem || !key_pem)
        r = st_fail(err, STRATA_E_MEMORY, "server: TLS: %s", last_reason());
    if (!r)
        r = use_certificates(context, tls->cert, cert_pem, &cert, err);
    if (!r)
        r = use_key(context, tls, key_pem, cert, err);
    BIO_free(cert_pem);
    BIO_free(key_pem);
    explicit_bzero(key_text, key_size);
    free(key_text);
    free(cert_text);
    ERR_clear_error();
    if (r) {
        SSL_CTX_free(context);
        return r;
    }
    *out = context;
    return STRATA_OK;
}

enum strata_result st_tls_create(const char *cert, const char *key, struct st_tls **out, struct strata_error *err)
{
#ifdef ST_OPENSSL_OPENED
    enum strata_result opened = st_openssl_open(err);
    if (opened)
        return opened;
#endif
    struct st_tls *tls = calloc(1, sizeof *tls);
    if (!tls || !(tls->cert = strdup(cert)) || !(tls->key = strdup(key))) {
        st_tls_free(tls);
        return st_fail(err, STRATA_E_MEMORY, "server: out of memory");
    }
    enum strata_result r = read_files(tls, &tls->context, err);
    if (r) {
        st_tls_free(tls);
        return r;
    }
    *out = tls;
    return STRATA_OK;
}

enum strata_result st_tls_reload(struct st_tls *tls, struct strata_error *err)
{
    SSL_CTX *context;
    enum strata_result r = read_files(tls, &context, err);
    if (r)
        return r;
    SSL_CTX_free(tls->context); /* connections have references of their own */
    tls->context = context;
    return STRATA_OK;
}

void st_tls_free(struct st_tls *tls)
{
    if (!tls)
        return;
    if (tls->context)
        SSL_CTX_free(tls->context);
    free(tls->cert);
    free(tls->key);
    free(tls);
}

struct bufferevent *st_tls_accept(struct st_tls *tls, struct event_base *base, struct ssl_st **session)
{
    *session = SSL_new(tls->context);
    if (!*session)
        return NULL;
    struct bufferevent *bev = bufferevent_openssl_socket_new(base, -1, *session, BUFFEREVENT_SSL_ACCEPTING, 0);
    if (!bev) {
        SSL_free(*session);
        *session = NULL;
        return NULL;
    }
    bufferevent_openssl_set_allow_dirty_shutdown(bev, 1);
    return bev;
}

void st_tls_session_free(struct ssl_st *session)
{
    if (session)
        SSL_free(session);
}

bool st_tls_agreed(const struct ssl_st *session)
{
    return SSL_is_init_finished(session);
}

void st_tls_end(struct ssl_st *session, const char *text)
{
    if (!SSL_is_init_finished(session))
        return;
    if (!text || SSL_write(session, text, (int)strlen(text)) > 0)
        SSL_shutdown(session);
    ERR_clear_error();
}
