/* Stop texts by one Knuth-Morris-Pratt automaton per string, so that a byte costs a bounded amount whatever came
 * before. */
#include "text/stop.h"

#include <stdlib.h>
#include <string.h>

struct pattern {
    char *text;
    size_t size;
    size_t *fallback; /* fallback[i]: longest proper prefix of text that ends text[0..i) */
    size_t matched;
};

struct st_stop {
    struct pattern *patterns;
    size_t count;
    char *buffer; /* text handed out, then the held part */
    size_t out_size, held, capacity;
    bool done;
};

static enum strata_result prepare(struct pattern *p, const char *text, struct strata_error *err)
{
    p->size = strlen(text);
    if (p->size == 0)
        return st_fail(err, STRATA_E_ARGUMENT, "a stop text is empty");
    p->text = malloc(p->size);
    p->fallback = calloc(p->size + 1, sizeof *p->fallback);
    if (!p->text || !p->fallback)
        return st_fail(err, STRATA_E_MEMORY, "no memory for a stop text of %zu bytes", p->size);
    memcpy(p->text, text, p->size);
    size_t k = 0;
    for (size_t i = 1; i < p->size; i++) {
        while (k && text[i] != text[k])
            k = p->fallback[k];
        k += text[i] == text[k];
        p->fallback[i + 1] = k;
    }
    return STRATA_OK;
}

enum strata_result st_stop_create(const char *const *texts, size_t count, struct st_stop **out,
                                  struct strata_error *err)
{
    *out = NULL;
    struct st_stop *s = calloc(1, sizeof *s);
    if (!s || !(s->patterns = calloc(count ? count : 1, sizeof *s->patterns))) {
        free(s);
        return st_fail(err, STRATA_E_MEMORY, "no memory for %zu stop texts", count);
    }
    for (; s->count < count; s->count++) {
        enum strata_result r = prepare(&s->patterns[s->count], texts[s->count], err);
        if (r != STRATA_OK) {
            s->count++;
            st_stop_free(s);
            return r;
        }
    }
    *out = s;
    return STRATA_OK;
}

void st_stop_free(struct st_stop *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->count; i++) {
        free(s->patterns[i].text);
        free(s->patterns[i].fallback);
    }
    free(s->patterns);
    free(s->buffer);
    free(s);
}

enum strata_result st_stop_push(struct st_stop *s, const char *text, size_t size, struct st_bytes *out, int *found,
                                struct strata_error *err)
{
    *found = -1;
    *out = (struct st_bytes){"", 0};
    if (s->done)
        return STRATA_OK;
    if (size > SIZE_MAX - s->held)
        return st_fail(err, STRATA_E_LIMIT, "a text of %zu bytes is too long to search for stop texts", size);
    size_t total = s->held + size;
    if (total > s->capacity) {
        char *grown = malloc(total);
        if (!grown)
            return st_fail(err, STRATA_E_MEMORY, "no memory to search %zu bytes for stop texts", total);
        if (s->held)
            memcpy(grown, s->buffer + s->out_size, s->held);
        free(s->buffer);
        s->buffer = grown;
        s->capacity = total;
    } else if (s->held) {
        memmove(s->buffer, s->buffer + s->out_size, s->held);
    }
    if (size)
        memcpy(s->buffer + s->held, text, size);
    size_t hold = 0, end = total;
    for (size_t i = 0; i < size && *found < 0; i++) {
        hold = 0;
        for (size_t k = 0; k < s->count; k++) {
            struct pattern *p = &s->patterns[k];
            while (p->matched && text[i] != p->text[p->matched])
                p->matched = p->fallback[p->matched];
            p->matched += text[i] == p->text[p->matched];
            if (p->matched == p->size) {
                if (*found < 0 || p->size > s->patterns[*found].size)
                    *found = (int)k;
                p->matched = p->fallback[p->size];
            } else if (p->matched > hold) {
                hold = p->matched;
            }
        }
        end = s->held + i + 1;
    }
    if (*found >= 0) {
        s->done = true;
        s->out_size = end - s->patterns[*found].size;
        s->held = 0;
    } else {
        if (size == 0)
            hold = s->held;
        s->out_size = total - hold;
        s->held = hold;
    }
    *out = (struct st_bytes){s->out_size ? s->buffer : "", s->out_size};
    return STRATA_OK;
}

struct st_bytes st_stop_finish(struct st_stop *s)
{
    struct st_bytes rest = {s->held ? s->buffer + s->out_size : "", s->held};
    s->done = true;
    s->held = 0;
    return rest;
}
