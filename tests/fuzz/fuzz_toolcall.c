/* A model's output: the first byte says how it is cut, the rest is the text. Any cutting gives the same, and everything
 * that is not a call comes out. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/toolcall.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct log {
    char *text;
    size_t size, room;
    int last; /* kind of the last text, joined with the next of the same kind */
};

static void put(struct log *l, const char *text, size_t size)
{
    if (l->size + size > l->room) {
        l->room = 2 * (l->size + size);
        l->text = realloc(l->text, l->room);
        if (!l->text)
            abort();
    }
    if (size)
        memcpy(l->text + l->size, text, size);
    l->size += size;
}

static void note(void *user, const struct st_output_event *e)
{
    struct log *l = user;
    char head[3] = {1, (char)('0' + e->kind), (char)e->complete};
    if (l->last != (int)e->kind || e->kind >= ST_OUTPUT_CALL)
        put(l, head, 3);
    put(l, e->text, e->size);
    l->last = (int)e->kind;
}

/* Only text that is no UTF-8 may be refused. */
static struct log read_all(const char *text, size_t size, size_t step, bool thinking, const json_t *tools)
{
    struct log l = {.last = -1};
    struct st_output_options options = {thinking, tools, note, &l};
    struct strata_error err;
    struct st_output *o;
    if (st_output_create(&options, &o, &err))
        abort();
    enum strata_result r = STRATA_OK;
    for (size_t at = 0; !r && at < size; at += step)
        r = st_output_push(o, text + at, size - at < step ? size - at : step, &err);
    if (!r)
        r = st_output_finish(o, &err);
    if (r && st_utf8_invalid(text, size) == size)
        abort();
    st_output_free(o);
    return l;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    json_t *tools =
        data[0] & 1 ? json_loads("[{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},\"i\":{"
                                 "\"type\":\"integer\"}}}}]",
                                 0, NULL)
                    : NULL;
    const char *text = (const char *)data + 1;
    bool thinking = data[0] & 2;
    struct log whole = read_all(text, size - 1, size - 1, thinking, tools);
    struct log parts = read_all(text, size - 1, 1 + (data[0] >> 2) % 9, thinking, tools);
    if (whole.size != parts.size || (whole.size && memcmp(whole.text, parts.text, whole.size) != 0))
        abort();
    free(whole.text);
    free(parts.text);
    json_decref(tools);
    return 0;
}
