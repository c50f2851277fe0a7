/* Chat form: a conversation rendered to the text that a model reads, with a mark on every stretch that came from the
 * template itself, so that special tokens are recognised there and never in what a caller wrote. */
#ifndef ST_TEXT_CHAT_H
#define ST_TEXT_CHAT_H

#include <jansson.h>

#include "text/tokenizer.h"

struct st_chat;

/* template_text: the model's own template (tokenizer.chat_template), NULL for plain ChatML
 * (<|im_start|>role newline content <|im_end|> newline). The result is read-only and may be used from any thread.
 * bos and eos: texts that the template sees as bos_token and eos_token, NULL for none. */
enum strata_result st_chat_create(const char *template_text, size_t size, const char *bos, const char *eos,
                                  struct st_chat **out, struct strata_error *err);
void st_chat_free(struct st_chat *chat);

/* Rendered text; spans are the stretches that the template wrote. */
struct st_rendered {
    char *text; /* NUL-terminated */
    size_t size;
    struct st_span *spans;
    size_t span_count;
    size_t text_room, span_room; /* allocated */
};
void st_rendered_free(struct st_rendered *r);
/* Appends a stretch of text. */
enum strata_result st_rendered_add(struct st_rendered *r, const char *text, size_t size, bool from_template,
                                   struct strata_error *err);

/* messages: JSON array of objects as in the OpenAI API. options: JSON object or NULL: "tools", "add_generation_prompt"
 * (default true), "enable_thinking", "reasoning_effort" and whatever else the template reads; every member becomes a
 * variable. A request the template refuses (raise_exception) is STRATA_E_ARGUMENT with its message; a template that
 * breaks its language is STRATA_E_FORMAT, one that runs into a limit STRATA_E_LIMIT. */
enum strata_result st_chat_render(const struct st_chat *chat, const json_t *messages, const json_t *options,
                                  struct st_rendered *out, struct strata_error *err);

/* Renders, then encodes; special tokens only where the template wrote them. Starts with bos if the tokenizer adds it
 * and the text does not begin with it. rendered may be NULL. */
enum strata_result st_chat_encode(const struct st_chat *chat, const struct st_tokenizer *t, const json_t *messages,
                                  const json_t *options, struct st_ids *ids, struct st_rendered *rendered,
                                  struct strata_error *err);

#endif
