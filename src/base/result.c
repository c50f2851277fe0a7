/* Results and messages. */
#include "base/result.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

const char *strata_result_name(enum strata_result r)
{
    switch (r) {
    case STRATA_OK: return "STRATA_OK";
    case STRATA_E_ARGUMENT: return "STRATA_E_ARGUMENT";
    case STRATA_E_MEMORY: return "STRATA_E_MEMORY";
    case STRATA_E_IO: return "STRATA_E_IO";
    case STRATA_E_FORMAT: return "STRATA_E_FORMAT";
    case STRATA_E_UNSUPPORTED: return "STRATA_E_UNSUPPORTED";
    case STRATA_E_MODEL: return "STRATA_E_MODEL";
    case STRATA_E_DEVICE: return "STRATA_E_DEVICE";
    case STRATA_E_CANCELLED: return "STRATA_E_CANCELLED";
    case STRATA_E_LIMIT: return "STRATA_E_LIMIT";
    case STRATA_E_INTERNAL: return "STRATA_E_INTERNAL";
    }
    return "STRATA_E_UNKNOWN";
}

enum strata_result(st_fail)(struct strata_error *err, enum strata_result code, const char *fmt, ...)
{
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        err->code = code;
        vsnprintf(err->text, sizeof err->text, fmt, ap);
        va_end(ap);
    }
    return code;
}

enum strata_result(st_fail_in)(struct strata_error *err, enum strata_result code, const char *fmt, ...)
{
    if (!err)
        return code;
    err->code = code;
    char inner[sizeof err->text];
    memcpy(inner, err->text, sizeof inner);
    va_list ap;
    va_start(ap, fmt);
    int used = vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    if (used >= 0 && (size_t)used < sizeof err->text)
        snprintf(err->text + used, sizeof err->text - (size_t)used, ": %s", inner);
    return code;
}

char *st_printable(char *dst, size_t size, const char *text, size_t length)
{
    size_t out = 0;
    for (size_t i = 0; i < length;) {
        const unsigned char *s = (const unsigned char *)text + i;
        int length_here = st_utf8_scan(s, length - i, NULL);
        size_t n = length_here > 0 ? (size_t)length_here : 0;
        /* C1 controls are the two-byte sequences C2 80 .. C2 9F; a terminal may obey them. */
        bool plain = n > 1 ? !(n == 2 && s[0] == 0xC2 && s[1] < 0xA0) : n == 1 && s[0] >= 0x20 && s[0] != 0x7F;
        size_t need = plain ? n : 4;
        if (out + need + 1 > size)
            break;
        if (plain)
            memcpy(dst + out, s, n);
        else
            snprintf(dst + out, size - out, "\\x%02x", s[0]);
        out += need;
        i += plain ? n : 1;
    }
    if (size)
        dst[out] = 0;
    return dst;
}
