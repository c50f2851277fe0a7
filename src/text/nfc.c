/* NFC with utf8proc's tables. The ordering of combining marks is our own: utf8proc's is quadratic in the length of a
 * run of marks, and texts come from anywhere. */
#include "text/nfc.h"

#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "base/checked.h"
#include "base/utf8.h"

/* Everything below U+0300 (lead byte 0xCC) stays as it is: no mark is among it, and its characters are composed. */
static bool needs_work(const unsigned char *s, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (s[i] >= 0xCC)
            return true;
    return false;
}

static uint8_t mark_class(int32_t cp)
{
    return (uint8_t)utf8proc_get_property(cp)->combining_class;
}

/* Stable counting sort of a run of marks by their class. */
static void sort_marks(int32_t *run, size_t n, int32_t *spare)
{
    size_t start[257] = {0};
    for (size_t i = 0; i < n; i++)
        start[mark_class(run[i]) + 1]++;
    for (int c = 1; c < 257; c++)
        start[c] += start[c - 1];
    for (size_t i = 0; i < n; i++)
        spare[start[mark_class(run[i])]++] = run[i];
    memcpy(run, spare, n * sizeof *run);
}

static void order_marks(int32_t *cps, size_t n, int32_t *spare)
{
    for (size_t i = 0; i < n;) {
        if (mark_class(cps[i]) == 0) {
            i++;
            continue;
        }
        size_t end = i + 1;
        bool sorted = true;
        for (; end < n && mark_class(cps[end]) != 0; end++)
            sorted = sorted && mark_class(cps[end - 1]) <= mark_class(cps[end]);
        if (!sorted)
            sort_marks(cps + i, end - i, spare);
        i = end;
    }
}

enum strata_result st_nfc(const char *text, size_t size, char **out, size_t *out_size, struct strata_error *err)
{
    *out = NULL;
    const unsigned char *s = (const unsigned char *)text;
    if (!needs_work(s, size))
        return STRATA_OK;
    /* A canonical decomposition has at most 4 code points, and at most 3 for each 2 bytes of UTF-8. */
    uint64_t room, bytes;
    if (!st_mul_u64(size, 2, &room) || !st_add_u64(room, 4, &room) || !st_mul_u64(room, 2 * sizeof(int32_t), &bytes) ||
        bytes > SIZE_MAX)
        return st_fail(err, STRATA_E_LIMIT, "text of %zu bytes is too long to normalise", size);
    int32_t *cps = malloc(bytes);
    if (!cps)
        return st_fail(err, STRATA_E_MEMORY, "no memory to normalise a text of %zu bytes", size);
    size_t n = 0;
    int last_class = 0;
    for (size_t i = 0; i < size;) {
        uint32_t cp = 0;
        i += (size_t)st_utf8_scan(s + i, size - i, &cp);
        utf8proc_ssize_t got = utf8proc_decompose_char((int32_t)cp, cps + n, (utf8proc_ssize_t)(room - n),
                                                       UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &last_class);
        if (got < 0 || (uint64_t)got > room - n) {
            free(cps);
            return st_fail(err, STRATA_E_INTERNAL, "normalising U+%04X failed", (unsigned)cp);
        }
        n += (size_t)got;
    }
    order_marks(cps, n, cps + room);
    utf8proc_ssize_t m = utf8proc_normalize_utf32(cps, (utf8proc_ssize_t)n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    char *result = m < 0 ? NULL : malloc((size_t)m * 4 + 1);
    if (!result) {
        free(cps);
        return m < 0 ? st_fail(err, STRATA_E_INTERNAL, "normalising a text of %zu bytes failed", size)
                     : st_fail(err, STRATA_E_MEMORY, "no memory to normalise a text of %zu bytes", size);
    }
    size_t used = 0;
    for (utf8proc_ssize_t i = 0; i < m; i++)
        used += st_utf8_put((uint32_t)cps[i], result + used);
    result[used] = 0;
    free(cps);
    *out = result;
    *out_size = used;
    return STRATA_OK;
}
