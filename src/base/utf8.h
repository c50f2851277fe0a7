/* UTF-8, one character at a time (Unicode, table 3-7: well-formed byte sequences). */
#ifndef ST_BASE_UTF8_H
#define ST_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Looks at the character that begins at s (left >= 1 bytes are there). Returns its length 1..4 and sets *cp (may be
 * NULL); 0 if the bytes are the beginning of a character that goes on after them; -n if the first n bytes can never be
 * one. */
static inline int st_utf8_scan(const unsigned char *s, size_t left, uint32_t *cp)
{
    unsigned char a = s[0];
    if (a < 0x80) {
        if (cp)
            *cp = a;
        return 1;
    }
    if (a < 0xC2 || a > 0xF4)
        return -1;
    int n = a < 0xE0 ? 2 : a < 0xF0 ? 3 : 4;
    unsigned char low = a == 0xE0 ? 0xA0 : a == 0xF0 ? 0x90 : 0x80;
    unsigned char high = a == 0xED ? 0x9F : a == 0xF4 ? 0x8F : 0xBF;
    uint32_t v = a & (0xFFu >> (n + 1));
    for (int i = 1; i < n; i++) {
        if ((size_t)i >= left)
            return 0;
        if (s[i] < low || s[i] > high)
            return -i;
        v = v << 6 | (s[i] & 0x3Fu);
        low = 0x80;
        high = 0xBF;
    }
    if (cp)
        *cp = v;
    return n;
}

/* Position of the first byte that is not part of valid UTF-8, size if there is none. */
static inline size_t st_utf8_invalid(const char *text, size_t size)
{
    const unsigned char *s = (const unsigned char *)text;
    for (size_t i = 0; i < size;) {
        int n = st_utf8_scan(s + i, size - i, NULL);
        if (n <= 0)
            return i;
        i += (size_t)n;
    }
    return size;
}

/* Writes a code point (not a surrogate, at most U+10FFFF) and returns the number of bytes, 1..4. */
static inline size_t st_utf8_put(uint32_t cp, char *out)
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    size_t n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (cp & 0x3F));
        cp >>= 6;
    }
    out[0] = (char)((0xF00u >> n & 0xFF) | cp);
    return n;
}

#endif
