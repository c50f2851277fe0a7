/* What a model wrote, taken apart while it is being written: reasoning, content and tool calls (spec/qwen4exp.md 6.4).
 * A tag never appears in the text that comes out, not even a part of one; what only looked like a tag does.
 *
 * Tool calls are read in two forms, each alone or several in a row:
 *   <tool_call> <function=NAME> { <parameter=ARG> newline VALUE newline </parameter> } </function> </tool_call>
 *     where the outer tags may be missing if <function= begins a line;
 *   <tool_call> {"name": ..., "arguments": {...}} </tool_call>
 * Blanks around tags, and text between parameters, are dropped. */
#ifndef ST_TEXT_TOOLCALL_H
#define ST_TEXT_TOOLCALL_H

#include <jansson.h>

#include "text/tokenizer.h"

struct st_output;

enum st_output_kind {
    ST_OUTPUT_REASONING, /* text, to be appended */
    ST_OUTPUT_CONTENT,   /* text, to be appended */
    ST_OUTPUT_CALL,      /* a call begins; text is the function's name */
    ST_OUTPUT_ARGUMENTS, /* text to be appended to the call's arguments, one JSON object in the end */
    ST_OUTPUT_CALL_END,  /* complete says whether it was closed; if not, its arguments lack their end */
};

struct st_output_event {
    enum st_output_kind kind;
    int call; /* CALL and after: number of the call, from 0 */
    const char *text;
    size_t size;
    bool complete;
};

struct st_output_options {
    bool thinking;       /* the prompt ended inside a think block */
    const json_t *tools; /* array of tools as in the OpenAI, Responses or Anthropic API: gives the types of arguments.
                          * NULL or empty: no calls are looked for, their tags are content */
    /* Called while pushing and finishing. Texts are valid during the call. */
    void (*event)(void *user, const struct st_output_event *event);
    void *user;
};

/* tools must live as long as the object. */
enum strata_result st_output_create(const struct st_output_options *options, struct st_output **out,
                                    struct strata_error *err);
void st_output_free(struct st_output *o);
/* The next piece of text. However a text is cut into pieces, the same comes out of it. STRATA_E_FORMAT: an argument is
 * not valid UTF-8; STRATA_E_LIMIT: a call is longer than 64 MiB. */
enum strata_result st_output_push(struct st_output *o, const char *text, size_t size, struct strata_error *err);
/* The model has ended: what was held back comes out. */
enum strata_result st_output_finish(struct st_output *o, struct strata_error *err);
/* Calls begun so far. */
int st_output_calls(const struct st_output *o);

/* A tool definition by its function's name, and the JSON schema of its parameters; NULL if there is none. */
const json_t *st_tool_parameters(const json_t *tools, const char *name, size_t size);
/* The types that an argument's schema allows (json_type.h) as st_output reads arguments in tags: a text is taken as it is where
 * that is strings alone, else as JSON if it is JSON of another allowed type. 0: the schema does not say. */
int st_argument_types(const json_t *schema);
/* Is there a tool of that name? */
bool st_tool_known(const json_t *tools, const char *name, size_t size);

#endif
