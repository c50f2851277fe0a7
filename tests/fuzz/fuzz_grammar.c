/* A GBNF grammar from anywhere; behind a NUL byte a text that is followed in it. Whatever the grammar, every token of a mask can
 * be accepted and no other, and memory and time are bounded. */
#include <stdlib.h>
#include <string.h>

#include "fuzz_vocabulary.h"
#include "text/sketch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    size_t n = end ? (size_t)(end - data) : size;
    struct strata_error err;
    struct st_net *net;
    struct st_grammar *g = NULL;
    uint32_t root;
    if (n > 4096 || st_net_create(&net, &err))
        return 0;
    if (!st_gbnf_read(net, (const char *)data, n, &root, &err) && !st_net_finish(net, root, &g, &err))
        fuzz_follow(g, end ? (const char *)end + 1 : "", end ? size - n - 1 : 0);
    st_grammar_free(g);
    st_net_free(net);
    return 0;
}
