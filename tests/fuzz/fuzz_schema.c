/* A JSON Schema from anywhere; behind a NUL byte a text that is followed in its grammar, plain or (first byte 't') between tags. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "fuzz_vocabulary.h"
#include "text/schema.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    size_t n = end ? (size_t)(end - data) : size;
    struct strata_error err;
    struct st_net *net;
    struct st_schema *s;
    struct st_grammar *g = NULL;
    json_t *schema;
    uint32_t rule;
    bool tagged = n && data[0] == 't';
    if (n > 4096 || st_json_parse((const char *)data + tagged, n - tagged, "fuzz", &schema, &err))
        return 0;
    if (!st_net_create(&net, &err)) {
        if (!st_schema_create(net, tagged, &s, &err)) {
            if (!(tagged ? st_schema_parameter(s, schema, schema, "schema", &rule, &err)
                         : st_schema_rule(s, schema, schema, "schema", &rule, &err)) &&
                !st_net_finish(net, rule, &g, &err))
                fuzz_follow(g, end ? (const char *)end + 1 : "", end ? size - n - 1 : 0);
            st_schema_free(s);
        }
        st_grammar_free(g);
        st_net_free(net);
    }
    json_decref(schema);
    return 0;
}
