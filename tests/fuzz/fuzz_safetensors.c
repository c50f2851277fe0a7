/* A safetensors file from anywhere: opening it and reading every tensor's ends. */
#include <stdlib.h>

#include "format/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint8_t seen;
static volatile float seen_float;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct strata_error err;
    struct st_safetensors *s;
    if (st_safetensors_create(&s, &err))
        return 0;
    if (!st_safetensors_add_memory(s, data, size, "fuzz", &err))
        for (size_t i = 0; i < st_safetensors_count(s); i++) {
            const struct st_safetensor *t = st_safetensors_at(s, i);
            float v;
            if (st_safetensors_find(s, t->name) != t)
                abort();
            if (t->bytes)
                seen = t->data[0] ^ t->data[t->bytes - 1];
            if (t->elements && st_safetensor_floats(t, t->elements - 1, 1, &v))
                seen_float = v;
        }
    st_safetensors_free(s);
    return 0;
}
