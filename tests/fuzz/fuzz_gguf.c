/* A GGUF file from anywhere: opening it, reading every key in every way, and touching every tensor's ends. */
#include <stdlib.h>

#include "format/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint8_t seen;

static void read_key(const struct st_gguf *g, const char *name)
{
    struct strata_error err;
    uint64_t u;
    double f;
    bool b;
    const char *text;
    void *items;
    size_t n;
    st_gguf_u64(g, name, &u, &err);
    st_gguf_f64(g, name, &f, &err);
    st_gguf_bool(g, name, &b, &err);
    if (!st_gguf_string(g, name, &text, &n, &err) && n)
        seen = (uint8_t)(text[0] + text[n - 1]);
    if (!st_gguf_ints(g, name, (int64_t **)&items, &n, &err))
        free(items);
    if (!st_gguf_floats(g, name, (double **)&items, &n, &err))
        free(items);
    if (!st_gguf_bools(g, name, (bool **)&items, &n, &err))
        free(items);
    if (!st_gguf_strings(g, name, (struct st_bytes **)&items, &n, &err)) {
        const struct st_bytes *s = items;
        for (size_t i = 0; i < n; i++)
            if (s[i].size)
                seen = (uint8_t)s[i].data[s[i].size - 1];
        free(items);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct strata_error err;
    struct st_gguf *g;
    if (st_gguf_open_memory(data, size, "fuzz", &g, &err))
        return 0;
    for (size_t i = 0; i < g->n_keys; i++)
        read_key(g, g->keys[i].name);
    for (size_t i = 0; i < g->n_tensors; i++) {
        const struct st_gguf_tensor *t = &g->tensors[i];
        if (st_gguf_tensor(g, t->name) != t || st_gguf_row_bytes(t) == 0)
            abort();
        seen = t->data[0] ^ t->data[t->bytes - 1];
    }
    st_gguf_close(g);
    return 0;
}
