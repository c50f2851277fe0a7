/* OpenSSL's functions that tls.c and libevent's TLS call, each under its own name, as a jump to the library that was opened: see
 * openssl.h. They are hidden, so that no other library of the process finds them here. The headers check the types. */
#include "serve/openssl.h"

#include <dlfcn.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#define LIBRARY "libssl.so.3"

/* X(result, name, parameters, arguments): functions; V likewise for those without a result. */
#define ST_OPENSSL_FUNCTIONS(X, V) \
    X(int, ASN1_TIME_to_tm, (const ASN1_TIME *a, struct tm *b), (a, b)) \
    V(BIO_clear_flags, (BIO *a, int b), (a, b)) \
    X(long, BIO_ctrl, (BIO *a, int b, long c, void *d), (a, b, c, d)) \
    X(int, BIO_free, (BIO *a), (a)) \
    X(void *, BIO_get_data, (BIO *a), (a)) \
    X(int, BIO_get_init, (BIO *a), (a)) \
    X(int, BIO_get_shutdown, (BIO *a), (a)) \
    X(BIO_METHOD *, BIO_meth_new, (int a, const char *b), (a, b)) \
    X(int, BIO_meth_set_create, (BIO_METHOD *a, int (*b)(BIO *)), (a, b)) \
    X(int, BIO_meth_set_ctrl, (BIO_METHOD *a, long (*b)(BIO *, int, long, void *)), (a, b)) \
    X(int, BIO_meth_set_destroy, (BIO_METHOD *a, int (*b)(BIO *)), (a, b)) \
    X(int, BIO_meth_set_puts, (BIO_METHOD *a, int (*b)(BIO *, const char *)), (a, b)) \
    X(int, BIO_meth_set_read, (BIO_METHOD *a, int (*b)(BIO *, char *, int)), (a, b)) \
    X(int, BIO_meth_set_write, (BIO_METHOD *a, int (*b)(BIO *, const char *, int)), (a, b)) \
    X(BIO *, BIO_new, (const BIO_METHOD *a), (a)) \
    X(BIO *, BIO_new_mem_buf, (const void *a, int b), (a, b)) \
    X(BIO *, BIO_new_socket, (int a, int b), (a, b)) \
    X(uint64_t, BIO_number_read, (BIO *a), (a)) \
    X(uint64_t, BIO_number_written, (BIO *a), (a)) \
    V(BIO_set_data, (BIO *a, void *b), (a, b)) \
    V(BIO_set_flags, (BIO *a, int b), (a, b)) \
    V(BIO_set_init, (BIO *a, int b), (a, b)) \
    V(BIO_set_shutdown, (BIO *a, int b), (a, b)) \
    V(ERR_clear_error, (void), ()) \
    X(unsigned long, ERR_get_error, (void), ()) \
    X(unsigned long, ERR_peek_error, (void), ()) \
    X(unsigned long, ERR_peek_last_error, (void), ()) \
    X(const char *, ERR_reason_error_string, (unsigned long a), (a)) \
    V(EVP_PKEY_free, (EVP_PKEY *a), (a)) \
    X(EVP_PKEY *, PEM_read_bio_PrivateKey, (BIO *a, EVP_PKEY **b, pem_password_cb *c, void *d), (a, b, c, d)) \
    X(X509 *, PEM_read_bio_X509, (BIO *a, X509 **b, pem_password_cb *c, void *d), (a, b, c, d)) \
    X(long, SSL_CTX_ctrl, (SSL_CTX *a, int b, long c, void *d), (a, b, c, d)) \
    V(SSL_CTX_free, (SSL_CTX *a), (a)) \
    X(X509 *, SSL_CTX_get0_certificate, (const SSL_CTX *a), (a)) \
    X(SSL_CTX *, SSL_CTX_new, (const SSL_METHOD *a), (a)) \
    X(uint64_t, SSL_CTX_set_options, (SSL_CTX *a, uint64_t b), (a, b)) \
    X(int, SSL_CTX_use_certificate, (SSL_CTX *a, X509 *b), (a, b)) \
    X(int, SSL_CTX_use_PrivateKey, (SSL_CTX *a, EVP_PKEY *b), (a, b)) \
    X(int, SSL_clear, (SSL *a), (a)) \
    X(long, SSL_ctrl, (SSL *a, int b, long c, void *d), (a, b, c, d)) \
    X(int, SSL_do_handshake, (SSL *a), (a)) \
    V(SSL_free, (SSL *a), (a)) \
    X(int, SSL_get_error, (const SSL *a, int b), (a, b)) \
    X(BIO *, SSL_get_rbio, (const SSL *a), (a)) \
    X(int, SSL_get_shutdown, (const SSL *a), (a)) \
    X(BIO *, SSL_get_wbio, (const SSL *a), (a)) \
    X(int, SSL_is_init_finished, (const SSL *a), (a)) \
    X(SSL *, SSL_new, (SSL_CTX *a), (a)) \
    X(int, SSL_pending, (const SSL *a), (a)) \
    X(int, SSL_read, (SSL *a, void *b, int c), (a, b, c)) \
    X(int, SSL_renegotiate, (SSL *a), (a)) \
    V(SSL_set_accept_state, (SSL *a), (a)) \
    V(SSL_set_bio, (SSL *a, BIO *b, BIO *c), (a, b, c)) \
    V(SSL_set_connect_state, (SSL *a), (a)) \
    X(int, SSL_shutdown, (SSL *a), (a)) \
    X(int, SSL_write, (SSL *a, const void *b, int c), (a, b, c)) \
    X(const SSL_METHOD *, TLS_server_method, (void), ()) \
    X(int, X509_check_private_key, (const X509 *a, const EVP_PKEY *b), (a, b)) \
    X(int, X509_cmp_time, (const ASN1_TIME *a, time_t *b), (a, b)) \
    V(X509_free, (X509 *a), (a)) \
    X(const ASN1_TIME *, X509_get0_notAfter, (const X509 *a), (a)) \
    X(const ASN1_TIME *, X509_get0_notBefore, (const X509 *a), (a))

/* The library's functions, set once. */
static struct {
#define FIELD(result, name, parameters, arguments) result(*name) parameters;
#define FIELD_V(name, parameters, arguments) void(*name) parameters;
    ST_OPENSSL_FUNCTIONS(FIELD, FIELD_V)
} library;

#define HIDDEN __attribute__((visibility("hidden")))
#define JUMP(result, name, parameters, arguments) \
    HIDDEN result name parameters \
    { \
        return library.name arguments; \
    }
#define JUMP_V(name, parameters, arguments) \
    HIDDEN void name parameters \
    { \
        library.name arguments; \
    }
ST_OPENSSL_FUNCTIONS(JUMP, JUMP_V)

enum strata_result st_openssl_open(struct strata_error *err)
{
#define NAME(result, name, parameters, arguments) {#name, (void **)&library.name},
#define NAME_V(name, parameters, arguments) {#name, (void **)&library.name},
    static const struct {
        const char *name;
        void **place;
    } functions[] = {ST_OPENSSL_FUNCTIONS(NAME, NAME_V)};
    void *handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return st_fail(err, STRATA_E_UNSUPPORTED, "TLS needs OpenSSL 3, which is not installed: %s", dlerror());
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!(*functions[i].place = dlsym(handle, functions[i].name))) {
            enum strata_result r = st_fail(err, STRATA_E_UNSUPPORTED, LIBRARY ": there is no %s in it", functions[i].name);
            dlclose(handle);
            return r;
        }
    return STRATA_OK;
}
