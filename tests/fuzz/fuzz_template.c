/* A chat template from anywhere, with variables: the template, then if there is a NUL byte a JSON object. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "text/jinja.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char usual[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"S \xC3\xA9\"},{\"role\":\"user\",\"content\":[{\"type\":"
    "\"text\",\"text\":\"U\"}]},{\"role\":\"assistant\",\"content\":\"A\",\"tool_calls\":[{\"function\":{"
    "\"name\":\"f\",\"arguments\":{\"x\":1.5,\"y\":null}}}]}],\"tools\":[{\"name\":\"f\"}],\"s\":\"a,b c\","
    "\"n\":5,\"l\":[3,1,2]}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    size_t n = end ? (size_t)(end - data) : size, count = 0;
    struct strata_error err;
    struct st_jinja *program;
    if (st_jinja_compile((const char *)data, n, &program, &err))
        return 0;
    json_t *object = NULL, *value;
    const char *name;
    struct st_jinja_variable variables[8];
    if (!end || st_json_parse((const char *)end + 1, size - n - 1, "fuzz", &object, &err))
        object = json_loads(usual, 0, NULL);
    json_object_foreach(object, name, value) if (count < 8) variables[count++] =
        (struct st_jinja_variable){.name = name, .json = value};
    const struct st_jinja_limits limits = {.memory = 8 << 20, .steps = 200000};
    struct st_rendered out = {0};
    if (!st_jinja_render(program, variables, count, &limits, 0, &out, &err)) {
        size_t at = 0;
        if (st_utf8_invalid(out.text, out.size) != out.size)
            abort();
        for (size_t i = 0; i < out.span_count; i++) {
            if (out.spans[i].from < at || out.spans[i].to <= out.spans[i].from || out.spans[i].to > out.size)
                abort();
            at = out.spans[i].to;
        }
        st_rendered_free(&out);
    }
    json_decref(object);
    st_jinja_free(program);
    return 0;
}
