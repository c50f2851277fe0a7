/* Byte-level BPE tokenizer, built from plain arrays so that it does not depend on a file format.
 *
 * Rules (spec/qwen4exp.md 6.1): special tokens are matched literally, longest first, where the caller allows it; the
 * text between them is normalised (NFC, for the pre-tokenizers that ask for it), cut into pieces by the pre-tokenizer's
 * regular expressions, and each piece is merged by rank, lowest first. A tokenizer is read-only after
 * st_tokenizer_create and may be used from any thread; decoders belong to one thread. */
#ifndef ST_TEXT_TOKENIZER_H
#define ST_TEXT_TOKENIZER_H

#include "base/bytes.h"
#include "base/result.h"

struct st_tokenizer;

/* Values of tokenizer.ggml.token_type. */
enum st_token_type {
    ST_TOKEN_NORMAL = 1,       /* text in the byte-level alphabet */
    ST_TOKEN_UNKNOWN = 2,      /* treated like CONTROL */
    ST_TOKEN_CONTROL = 3,      /* literal text, hidden in decoded text unless asked for */
    ST_TOKEN_USER_DEFINED = 4, /* literal text, always shown */
    ST_TOKEN_UNUSED = 5,       /* decodes to nothing, never produced */
};

/* What a file says about its vocabulary. Everything is untrusted and copied where it is kept. */
struct st_vocab {
    const struct st_bytes *tokens; /* count entries */
    const int32_t *types;          /* count entries of enum st_token_type, or NULL: all normal */
    size_t count;
    const struct st_bytes *merges; /* "left right", best rank first */
    size_t merge_count;
    const char *pre;            /* qwen35, qwen2, gpt2, llama-bpe, smollm or default */
    int32_t bos, eos, eot, pad; /* ids, -1 where the file has none */
    bool add_bos;               /* encoding a prompt starts with bos */
};

/* STRATA_E_FORMAT names the token, merge or id that is wrong; STRATA_E_UNSUPPORTED an unknown pre-tokenizer. */
enum strata_result st_tokenizer_create(const struct st_vocab *vocab, struct st_tokenizer **out,
                                       struct strata_error *err);
void st_tokenizer_free(struct st_tokenizer *t);

size_t st_tokenizer_count(const struct st_tokenizer *t);
int32_t st_tokenizer_bos(const struct st_tokenizer *t); /* -1: none; likewise below */
int32_t st_tokenizer_eos(const struct st_tokenizer *t);
int32_t st_tokenizer_eot(const struct st_tokenizer *t);
int32_t st_tokenizer_pad(const struct st_tokenizer *t);
bool st_tokenizer_add_bos(const struct st_tokenizer *t);
/* True for tokens that end an answer: eos, eot, and control tokens whose text is a known end of turn or of text. */
bool st_tokenizer_is_stop(const struct st_tokenizer *t, int32_t id);
/* Id of the token whose decoded text is exactly this, -1 if there is none. Control and user-defined tokens come before
 * normal ones. */
int32_t st_tokenizer_find(const struct st_tokenizer *t, const char *text, size_t size);
/* Type of a token; ids outside the vocabulary are ST_TOKEN_UNUSED. */
enum st_token_type st_tokenizer_type(const struct st_tokenizer *t, int32_t id);
/* Decoded bytes of one token: maybe only a part of a character. special: control tokens give their text, otherwise
 * nothing. Unused tokens and ids outside the vocabulary give nothing. The view lives as long as the tokenizer. */
struct st_bytes st_tokenizer_bytes(const struct st_tokenizer *t, int32_t id, bool special);

/* A growing list of ids; starts zeroed, is released with st_ids_free. */
struct st_ids {
    int32_t *data;
    size_t count, capacity;
};
void st_ids_free(struct st_ids *ids);
enum strata_result st_ids_push(struct st_ids *ids, int32_t id, struct strata_error *err);

/* Bytes [from, to) of a text in which special tokens are recognised. */
struct st_span {
    size_t from, to;
};

/* Appends the ids of a text. Special tokens are recognised where they lie entirely inside one of the spans (ascending,
 * not overlapping); all other text is encoded as if it had been written in one go. No bos is added. On failure ids has
 * its old count. Invalid UTF-8 is STRATA_E_FORMAT and names the byte position. */
enum strata_result st_tokenizer_encode_spans(const struct st_tokenizer *t, const char *text, size_t size,
                                             const struct st_span *spans, size_t span_count, struct st_ids *ids,
                                             struct strata_error *err);
/* The same with special tokens recognised everywhere or nowhere. */
enum strata_result st_tokenizer_encode(const struct st_tokenizer *t, const char *text, size_t size, bool special,
                                       struct st_ids *ids, struct strata_error *err);

/* Streaming decoder: token by token to text of complete characters. Bytes that can never become a character are shown
 * as U+FFFD (one for each maximal invalid part). */
struct st_decoder {
    const struct st_tokenizer *tokenizer;
    bool special;
    unsigned char pending[4];
    size_t pending_size;
    char *buffer;
    size_t capacity;
};
void st_decoder_init(struct st_decoder *d, const struct st_tokenizer *t, bool special);
void st_decoder_free(struct st_decoder *d);
/* *out views the decoder's buffer (also NUL-terminated) until its next call. */
enum strata_result st_decoder_push(struct st_decoder *d, int32_t id, struct st_bytes *out, struct strata_error *err);
/* What is still pending, as U+FFFD; the decoder is then as new. */
enum strata_result st_decoder_finish(struct st_decoder *d, struct st_bytes *out, struct strata_error *err);

#endif
