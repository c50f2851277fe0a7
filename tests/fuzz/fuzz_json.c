/* JSON from anywhere: as messages of plain ChatML, and through a template's tojson, which must give the same value. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "text/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void same_again(const json_t *value)
{
    static const char form[] = "{{ messages|tojson }}";
    struct strata_error err;
    struct st_chat *chat;
    struct st_rendered text;
    if (st_chat_create(form, sizeof form - 1, NULL, NULL, &chat, &err))
        abort();
    if (!st_chat_render(chat, value, NULL, &text, &err)) {
        json_t *again = json_loadb(text.text, text.size, JSON_ALLOW_NUL, NULL);
        if (!again || !json_equal(value, again))
            abort();
        json_decref(again);
        st_rendered_free(&text);
    }
    st_chat_free(chat);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct strata_error err;
    json_t *value;
    if (st_json_parse((const char *)data, size, "fuzz", &value, &err))
        return 0;
    struct st_chat *chat;
    struct st_rendered text;
    if (!st_chat_create(NULL, 0, NULL, NULL, &chat, &err)) {
        if (!st_chat_render(chat, value, NULL, &text, &err))
            st_rendered_free(&text);
        st_chat_free(chat);
    }
    json_t *list = json_array();
    json_array_append_new(list, value);
    same_again(list);
    json_decref(list);
    return 0;
}
