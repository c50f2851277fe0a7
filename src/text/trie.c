/* The vocabulary as a tree of bytes, parents before children, children in ascending order: see matcher.h and trie.h. */
#include "text/trie.h"

#include <stdlib.h>
#include <string.h>

enum { TOKEN_BYTES = UINT16_MAX };

struct entry {
    struct st_bytes text;
    int32_t id;
};

static int by_text(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    size_t n = x->text.size < y->text.size ? x->text.size : y->text.size;
    int c = memcmp(x->text.data, y->text.data, n);
    if (c)
        return c;
    return x->text.size != y->text.size ? (x->text.size < y->text.size ? -1 : 1) : x->id < y->id ? -1 : x->id > y->id;
}

static bool is_text(const struct st_tokenizer *t, int32_t id)
{
    enum st_token_type type = st_tokenizer_type(t, id);
    size_t size = st_tokenizer_bytes(t, id, false).size;
    return (type == ST_TOKEN_NORMAL || type == ST_TOKEN_USER_DEFINED) && size > 0 && size <= TOKEN_BYTES &&
           !st_tokenizer_is_stop(t, id);
}

static size_t common(struct st_bytes a, struct st_bytes b)
{
    size_t n = 0;
    while (n < a.size && n < b.size && a.data[n] == b.data[n])
        n++;
    return n;
}

/* Appends the nodes of the sorted entries. open[d]: the last node of depth d + 1. */
static void plant(struct st_trie *trie, const struct entry *entries, size_t count, uint32_t *open)
{
    struct st_bytes before = {NULL, 0};
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        struct st_bytes text = entries[i].text;
        size_t same = common(before, text);
        for (size_t d = same; d < before.size; d++)
            trie->skip[open[d]] = (uint32_t)n;
        for (size_t d = same; d < text.size; d++) {
            trie->byte[n] = (uint8_t)text.data[d];
            trie->depth[n] = (uint16_t)(d + 1);
            trie->first[n] = (uint32_t)i;
            open[d] = (uint32_t)n++;
        }
        trie->ids[i] = entries[i].id;
        before = text;
        if (text.size > trie->deepest)
            trie->deepest = text.size;
    }
    for (size_t d = 0; d < before.size; d++)
        trie->skip[open[d]] = (uint32_t)n;
    trie->first[n] = (uint32_t)count;
    trie->nodes = n;
}

static enum strata_result fill(struct st_trie *trie, const struct st_tokenizer *t, struct entry *entries,
                               struct strata_error *err)
{
    size_t count = 0, nodes = 0, longest = 0;
    for (size_t id = 0; id < trie->vocabulary; id++) {
        if (!is_text(t, (int32_t)id))
            continue;
        entries[count].text = st_tokenizer_bytes(t, (int32_t)id, false);
        entries[count++].id = (int32_t)id;
    }
    if (count)
        qsort(entries, count, sizeof *entries, by_text);
    for (size_t i = 0; i < count; i++) {
        nodes += entries[i].text.size - (i ? common(entries[i - 1].text, entries[i].text) : 0);
        longest = entries[i].text.size > longest ? entries[i].text.size : longest;
    }
    uint32_t *open = malloc((longest + 1) * sizeof *open);
    trie->byte = malloc(nodes + 1);
    trie->depth = malloc((nodes + 1) * sizeof *trie->depth);
    trie->skip = malloc((nodes + 1) * sizeof *trie->skip);
    trie->first = malloc((nodes + 1) * sizeof *trie->first);
    trie->ids = malloc((count + 1) * sizeof *trie->ids);
    bool good = open && trie->byte && trie->depth && trie->skip && trie->first && trie->ids;
    if (good)
        plant(trie, entries, count, open);
    free(open);
    return good ? STRATA_OK : st_fail(err, STRATA_E_MEMORY, "no memory for a tree of %zu tokens", count);
}

enum strata_result st_trie_create(const struct st_tokenizer *t, struct st_trie **out, struct strata_error *err)
{
    struct st_trie *trie = *out = NULL;
    struct entry *entries = malloc((st_tokenizer_count(t) + 1) * sizeof *entries);
    if (!entries || !(trie = calloc(1, sizeof *trie))) {
        free(entries);
        return st_fail(err, STRATA_E_MEMORY, "no memory for a tree of %zu tokens", st_tokenizer_count(t));
    }
    trie->vocabulary = st_tokenizer_count(t);
    trie->tokenizer = t;
    for (size_t id = 0; id < trie->vocabulary; id++)
        if (st_tokenizer_is_stop(t, (int32_t)id) && trie->stop_count < ST_TRIE_STOPS)
            trie->stops[trie->stop_count++] = (int32_t)id;
    enum strata_result r = fill(trie, t, entries, err);
    free(entries);
    if (!r && trie->stop_count == 0)
        r = st_fail(err, STRATA_E_UNSUPPORTED, "the vocabulary has no token that ends an answer, so none can be enforced");
    if (r)
        st_trie_free(trie);
    else
        *out = trie;
    return r;
}

void st_trie_free(struct st_trie *trie)
{
    if (!trie)
        return;
    free(trie->byte);
    free(trie->depth);
    free(trie->skip);
    free(trie->first);
    free(trie->ids);
    free(trie);
}
