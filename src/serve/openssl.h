/* OpenSSL in portable builds: opened when it is first needed instead of linked. A static copy would be 4.4 MB of the binary, and old
 * soon; every system that runs the binary has packages of libssl.so.3, with the corrections of its distribution. */
#ifndef ST_SERVE_OPENSSL_H
#define ST_SERVE_OPENSSL_H

#include "base/result.h"

/* Opens the library; no function of OpenSSL may be called before that has succeeded. Not from two threads at once. A library that is
 * missing or too old is STRATA_E_UNSUPPORTED with its name. */
enum strata_result st_openssl_open(struct strata_error *err);

#endif
