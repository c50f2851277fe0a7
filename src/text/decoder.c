/* Streaming decoder: token bytes to complete characters. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/tokenizer.h"

static const char replacement[] = "\xEF\xBF\xBD"; /* U+FFFD */

void st_decoder_init(struct st_decoder *d, const struct st_tokenizer *t, bool special)
{
    *d = (struct st_decoder){.tokenizer = t, .special = special};
}

void st_decoder_free(struct st_decoder *d)
{
    free(d->buffer);
    *d = (struct st_decoder){0};
}

static enum strata_result reserve(struct st_decoder *d, size_t size, struct strata_error *err)
{
    if (size < d->capacity)
        return STRATA_OK;
    char *grown = realloc(d->buffer, size + 64);
    if (!grown)
        return st_fail(err, STRATA_E_MEMORY, "no memory to decode a token of %zu bytes", size);
    d->buffer = grown;
    d->capacity = size + 64;
    return STRATA_OK;
}

enum strata_result st_decoder_push(struct st_decoder *d, int32_t id, struct st_bytes *out, struct strata_error *err)
{
    struct st_bytes token = st_tokenizer_bytes(d->tokenizer, id, d->special);
    /* Every invalid byte may become three. The token's bytes go to the end of the buffer first, behind what is pending.
     */
    size_t total = d->pending_size + token.size;
    if (total > (SIZE_MAX - 64) / 4)
        return st_fail(err, STRATA_E_LIMIT, "token %d is too long to decode", id);
    enum strata_result r = reserve(d, 4 * total + 1, err);
    if (r != STRATA_OK)
        return r;
    char *in = d->buffer + 3 * total + 1;
    memcpy(in, d->pending, d->pending_size);
    memcpy(in + d->pending_size, token.data, token.size);
    d->pending_size = 0;
    size_t used = 0;
    for (size_t i = 0; i < total;) {
        int n = st_utf8_scan((const unsigned char *)in + i, total - i, NULL);
        if (n == 0) {
            d->pending_size = total - i;
            memcpy(d->pending, in + i, d->pending_size);
            break;
        }
        const char *piece = n > 0 ? in + i : replacement;
        size_t size = n > 0 ? (size_t)n : sizeof replacement - 1;
        memmove(d->buffer + used, piece, size);
        used += size;
        i += n > 0 ? (size_t)n : (size_t)-n;
    }
    d->buffer[used] = 0;
    *out = (struct st_bytes){d->buffer, used};
    return STRATA_OK;
}

enum strata_result st_decoder_finish(struct st_decoder *d, struct st_bytes *out, struct strata_error *err)
{
    enum strata_result r = reserve(d, sizeof replacement, err);
    if (r != STRATA_OK)
        return r;
    size_t used = d->pending_size ? sizeof replacement - 1 : 0;
    memcpy(d->buffer, replacement, used);
    d->buffer[used] = 0;
    d->pending_size = 0;
    *out = (struct st_bytes){d->buffer, used};
    return STRATA_OK;
}
