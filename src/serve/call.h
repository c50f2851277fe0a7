/* A request for work, read from a body and checked: what the families of APIs have in common once their words are
 * gone. Reading is pure (no server, no model), so that it can be fuzzed. */
#ifndef ST_SERVE_CALL_H
#define ST_SERVE_CALL_H

#include "serve/body.h"

enum st_call_kind {
    ST_CALL_CHAT,         /* POST /v1/chat/completions */
    ST_CALL_COMPLETION,   /* POST /v1/completions */
    ST_CALL_MESSAGES,     /* POST /v1/messages */
    ST_CALL_COUNT_TOKENS, /* POST /v1/messages/count_tokens */
    ST_CALL_TOKENIZE,     /* POST /tokenize */
    ST_CALL_DETOKENIZE,   /* POST /detokenize */
    ST_CALL_TEMPLATE,     /* POST /apply-template */
    ST_CALL_SLOT,         /* POST /slots/N?action=... */
    ST_CALL_LOAD,         /* POST /load */
    ST_CALL_UNLOAD,       /* POST /unload */
    ST_CALL_VRAM,         /* POST /v1/vram */
    ST_CALL_RESPONSES,    /* POST /v1/responses */
};

/* What thoughts begin with in a response's encrypted_content, where this server hides nothing. */
#define ST_THOUGHTS_MARK "strata:"

enum st_slot_action { ST_SLOT_SAVE, ST_SLOT_RESTORE, ST_SLOT_ERASE };
enum {
    ST_SLOT_FILE = 128,   /* bytes of a file's name, the end included */
    ST_CHOICES_MAX = 16,  /* answers to one request */
};

struct st_call {
    enum st_call_kind kind;
    char model[128]; /* as the client named it, "" if it did not */

    json_t *messages; /* array of {role, content, tool_calls, ...} with plain string contents */
    json_t *options;  /* object for the template */
    char *prefix;     /* start of the answer that the client wrote, or NULL */

    char *prompt; /* raw text, or NULL; prompt_size bytes */
    size_t prompt_size;
    int32_t *ids; /* raw tokens, or NULL */
    size_t id_count;
    bool special; /* special tokens are recognised in the raw prompt; in answers of /detokenize they are shown */
    bool pieces;  /* /tokenize: with the text of each token */

    uint32_t slot;
    enum st_slot_action slot_action;
    char slot_file[ST_SLOT_FILE]; /* a plain name, "" for erase */
    int64_t deadline;             /* /unload, /v1/vram: seconds that answers have to end */
    uint64_t reserve;             /* /v1/vram: bytes of each device that are to stay free */

    int choices; /* answers to the same prompt, 1 to ST_CHOICES_MAX; each has a seed of its own, the request's and its number */
    bool stream, include_usage, progress;
    bool tools;          /* tool calls are looked for in the answer */
    bool parallel_tools; /* more than one of them */

    /* What the answer must be. */
    char *grammar;        /* GBNF, or NULL */
    json_t *schema;       /* a JSON Schema, or NULL; with tools, calls are possible too */
    bool demands_tools;   /* calls of tools, nothing else */
    char *demanded_tool;  /* of this one, or NULL */
    const char *constraint_param; /* the member of the body that says so; static */

    bool logprobs;
    int top_logprobs;
    int64_t max_tokens;              /* 0: until the context is full */
    struct strata_sampling sampling; /* bias points to memory of this call */
    struct strata_logit_bias *bias;
    char **stop;
    size_t stop_count;
    bool ignore_eos;

    /* Of the Responses API: members of the request that the answer repeats, and whether thoughts are repeated in the member that
     * clients keep where a server stores nothing. */
    json_t *echo;
    bool carries_thoughts;
};

/* Starts a call with the server's sampling defaults. Every reader below leaves a call that st_call_free accepts. */
void st_call_init(struct st_call *call, enum st_call_kind kind, const struct strata_sampling *defaults);
void st_call_free(struct st_call *call);

/* Reads the body of call->kind. */
bool st_call_read(struct st_call *call, const char *body, size_t size, struct st_api_error *error);

/* What ?action=... says, before the body is read. query may be NULL. */
bool st_slot_read_action(struct st_call *call, const char *query, struct st_api_error *error);
bool st_slot_read(struct st_call *call, const json_t *body, struct st_api_error *error);

/* The readers of the families, for st_call_read. */
bool st_openai_read_chat(struct st_call *call, const json_t *body, struct st_api_error *error);
bool st_openai_read_completion(struct st_call *call, const json_t *body, struct st_api_error *error);
bool st_responses_read(struct st_call *call, const json_t *body, struct st_api_error *error);
bool st_anthropic_read_messages(struct st_call *call, const json_t *body, struct st_api_error *error);

/* Shared pieces: members that mean the same in both families. */
bool st_call_read_sampling(struct st_call *call, const json_t *body, struct st_api_error *error);
bool st_call_read_stop(struct st_call *call, const json_t *body, const char *name, struct st_api_error *error);
/* Text of a member that is a string or an array of parts of text, which are joined with line breaks; where: the member's place. A new
 * reference; NULL with the error filled. */
json_t *st_openai_text(const json_t *content, const char *where, struct st_api_error *error);
/* How much the model is to think; effort may be NULL. param: the member for messages. */
bool st_openai_read_effort(struct st_call *call, const char *effort, const char *param, struct st_api_error *error);
/* The member chat_template_kwargs. */
bool st_openai_read_template(struct st_call *call, const json_t *body, struct st_api_error *error);
/* Appends one tool in the form that templates read; schema may be NULL. */
bool st_call_add_tool(struct st_call *call, const char *name, const char *description, json_t *schema);
/* The tools that must be called: all, or the one named; after the tools were read. param: the member for messages. */
bool st_call_demand_tools(struct st_call *call, const char *name, const char *param, struct st_api_error *error);
/* Arguments of a tool call that a client sent back: text that holds an object becomes that object, as templates want.
 */
json_t *st_call_arguments(const json_t *value);
/* Appends a message {role, content}; returns a borrowed reference to it, NULL without memory. */
json_t *st_call_add_message(struct st_call *call, const char *role, const char *content);
/* Joins the leading system messages into one. */
bool st_call_join_system(struct st_call *call);
/* Moves every system message to the front and joins them, for templates that refuse one elsewhere; false if there is
 * nothing to move. */
bool st_call_move_system(struct st_call *call);
bool st_call_out_of_memory(struct st_api_error *error);

#endif
