/* Rendered conversations: by the model's template or as plain ChatML; and encoding them. */
#include "text/chat.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "text/jinja.h"

struct st_chat {
    struct st_jinja *program; /* NULL: plain ChatML */
    char *bos, *eos;
};

/* ---- rendered text ---- */

void st_rendered_free(struct st_rendered *r)
{
    free(r->text);
    free(r->spans);
    *r = (struct st_rendered){0};
}

enum strata_result st_rendered_add(struct st_rendered *r, const char *text, size_t size, bool from_template,
                                   struct strata_error *err)
{
    uint64_t need, room;
    if (!st_add_u64(r->size, size, &need) || !st_add_u64(need, need / 2 + 256, &room) || room > SIZE_MAX)
        return st_fail(err, STRATA_E_LIMIT, "chat: the rendered text is too long");
    if (!r->text || need + 1 > r->text_room) {
        char *grown = realloc(r->text, (size_t)room);
        if (!grown)
            return st_fail(err, STRATA_E_MEMORY, "chat: no memory for %llu bytes of text", (unsigned long long)need);
        r->text = grown;
        r->text_room = (size_t)room;
    }
    if (from_template && size) {
        struct st_span *last = r->span_count ? &r->spans[r->span_count - 1] : NULL;
        if (last && last->to == r->size) {
            last->to = (size_t)need;
        } else {
            if (r->span_count == r->span_room) {
                size_t more = r->span_room ? 2 * r->span_room : 16;
                struct st_span *grown = realloc(r->spans, more * sizeof *grown);
                if (!grown)
                    return st_fail(err, STRATA_E_MEMORY, "chat: no memory for %zu stretches of text", more);
                r->spans = grown;
                r->span_room = more;
            }
            r->spans[r->span_count++] = (struct st_span){r->size, (size_t)need};
        }
    }
    if (size)
        memcpy(r->text + r->size, text, size);
    r->size = (size_t)need;
    r->text[need] = 0;
    return STRATA_OK;
}

/* ---- plain ChatML ---- */

static enum strata_result add_literal(struct st_rendered *r, const char *text, struct strata_error *err)
{
    return st_rendered_add(r, text, strlen(text), true, err);
}

static enum strata_result add_content(struct st_rendered *r, const json_t *content, size_t index,
                                      struct strata_error *err)
{
    if (content == NULL || json_is_null(content))
        return STRATA_OK;
    if (json_is_string(content))
        return st_rendered_add(r, json_string_value(content), json_string_length(content), false, err);
    if (!json_is_array(content))
        return st_fail(err, STRATA_E_ARGUMENT, "messages[%zu].content is neither a string nor an array", index);
    size_t i;
    json_t *part;
    json_array_foreach(content, i, part)
    {
        const json_t *text = json_object_get(part, "text");
        if (!json_is_string(text))
            return st_fail(err, STRATA_E_ARGUMENT, "messages[%zu].content[%zu] is not text; plain ChatML has only text",
                           index, i);
        enum strata_result r_ = st_rendered_add(r, json_string_value(text), json_string_length(text), false, err);
        if (r_ != STRATA_OK)
            return r_;
    }
    return STRATA_OK;
}

static enum strata_result render_chatml(const json_t *messages, bool generation, struct st_rendered *out,
                                        struct strata_error *err)
{
    size_t i;
    json_t *message;
    enum strata_result r = STRATA_OK;
    json_array_foreach(messages, i, message)
    {
        const json_t *role = json_object_get(message, "role");
        if (!json_is_string(role))
            return st_fail(err, STRATA_E_ARGUMENT, "messages[%zu].role is not a string", i);
        if ((r = add_literal(out, "<|im_start|>", err)) != STRATA_OK ||
            (r = st_rendered_add(out, json_string_value(role), json_string_length(role), false, err)) != STRATA_OK ||
            (r = add_literal(out, "\n", err)) != STRATA_OK ||
            (r = add_content(out, json_object_get(message, "content"), i, err)) != STRATA_OK ||
            (r = add_literal(out, "<|im_end|>\n", err)) != STRATA_OK)
            return r;
    }
    return generation ? add_literal(out, "<|im_start|>assistant\n", err) : STRATA_OK;
}

/* ---- the chat form ---- */

static char *copy_text(const char *text)
{
    return text ? strdup(text) : NULL;
}

enum strata_result st_chat_create(const char *template_text, size_t size, const char *bos, const char *eos,
                                  struct st_chat **out, struct strata_error *err)
{
    *out = NULL;
    struct st_chat *chat = calloc(1, sizeof *chat);
    if (!chat)
        return st_fail(err, STRATA_E_MEMORY, "no memory for a chat form");
    chat->bos = copy_text(bos);
    chat->eos = copy_text(eos);
    enum strata_result r = STRATA_OK;
    if ((bos && !chat->bos) || (eos && !chat->eos))
        r = st_fail(err, STRATA_E_MEMORY, "no memory for a chat form");
    else if (template_text)
        r = st_jinja_compile(template_text, size, &chat->program, err);
    if (r != STRATA_OK) {
        st_chat_free(chat);
        return r;
    }
    *out = chat;
    return STRATA_OK;
}

void st_chat_free(struct st_chat *chat)
{
    if (!chat)
        return;
    st_jinja_free(chat->program);
    free(chat->bos);
    free(chat->eos);
    free(chat);
}

/* The variables of a template: what callers of templates always give, then the members of options, then the messages;
 * of two with the same name the later one counts. */
static enum strata_result render_template(const struct st_chat *chat, const json_t *messages, const json_t *options,
                                          struct st_rendered *out, struct strata_error *err)
{
    size_t n = 0;
    struct st_jinja_variable *list = calloc(json_object_size(options) + 6, sizeof *list);
    json_t *yes = json_true(), *nothing = json_null(); /* both are static in jansson */
    if (!list)
        return st_fail(err, STRATA_E_MEMORY, "chat: no memory for %zu options", json_object_size(options));
    list[n++] = (struct st_jinja_variable){.name = "add_generation_prompt", .json = yes};
    list[n++] = (struct st_jinja_variable){.name = "tools", .json = nothing};
    list[n++] = (struct st_jinja_variable){.name = "documents", .json = nothing};
    if (chat->bos)
        list[n++] = (struct st_jinja_variable){.name = "bos_token", .template_text = chat->bos};
    if (chat->eos)
        list[n++] = (struct st_jinja_variable){.name = "eos_token", .template_text = chat->eos};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)options, key, value) list[n++] =
        (struct st_jinja_variable){.name = key, .json = value};
    list[n++] = (struct st_jinja_variable){.name = "messages", .json = messages};
    enum strata_result r = st_jinja_render(chat->program, list, n, NULL, time(NULL), out, err);
    free(list);
    return r;
}

enum strata_result st_chat_render(const struct st_chat *chat, const json_t *messages, const json_t *options,
                                  struct st_rendered *out, struct strata_error *err)
{
    *out = (struct st_rendered){0};
    if (!json_is_array(messages))
        return st_fail(err, STRATA_E_ARGUMENT, "messages is not an array");
    if (options && !json_is_object(options))
        return st_fail(err, STRATA_E_ARGUMENT, "chat options are not an object");
    if (chat->program)
        return render_template(chat, messages, options, out, err);
    enum strata_result r = st_rendered_add(out, "", 0, true, err);
    if (r == STRATA_OK)
        r = render_chatml(messages, !json_is_false(json_object_get(options, "add_generation_prompt")), out, err);
    if (r != STRATA_OK)
        st_rendered_free(out);
    return r;
}

enum strata_result st_chat_encode(const struct st_chat *chat, const struct st_tokenizer *t, const json_t *messages,
                                  const json_t *options, struct st_ids *ids, struct st_rendered *rendered,
                                  struct strata_error *err)
{
    struct st_rendered text;
    enum strata_result r = st_chat_render(chat, messages, options, &text, err);
    if (r != STRATA_OK)
        return r;
    struct st_ids encoded = {0};
    r = st_tokenizer_encode_spans(t, text.text, text.size, text.spans, text.span_count, &encoded, err);
    size_t before = ids->count;
    int32_t bos = st_tokenizer_bos(t);
    if (r == STRATA_OK && st_tokenizer_add_bos(t) && (encoded.count == 0 || encoded.data[0] != bos))
        r = st_ids_push(ids, bos, err);
    for (size_t i = 0; r == STRATA_OK && i < encoded.count; i++)
        r = st_ids_push(ids, encoded.data[i], err);
    st_ids_free(&encoded);
    if (r != STRATA_OK)
        ids->count = before;
    if (r == STRATA_OK && rendered)
        *rendered = text;
    else
        st_rendered_free(&text);
    return r;
}
