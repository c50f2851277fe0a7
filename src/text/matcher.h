/* Following a grammar token by token: which tokens of a vocabulary may come next.
 *
 * A place in the grammar is a set of stacks of nodes. Sets that were met once have a number and remember where each byte
 * leads, so most steps are a table look-up; the vocabulary is a tree of bytes that is walked once for all tokens with the same
 * beginning, and the masks of the sets met last are kept. All of it has a limit: what was learnt is forgotten when
 * ST_MATCHER_BYTES are full. Rules may be inside each other ST_MATCHER_DEPTH deep; what would go deeper is not allowed. */
#ifndef ST_TEXT_MATCHER_H
#define ST_TEXT_MATCHER_H

#include "text/grammar.h"
#include "text/tokenizer.h"

enum {
    ST_MATCHER_BYTES = 16 << 20, /* of sets and their steps; masks come on top */
    ST_MATCHER_DEPTH = 512,
    ST_MATCHER_STACKS = 4096, /* most stacks in a set */
    ST_MATCHER_MASKS = 32,    /* masks kept */
    ST_MATCHER_BACK = 16,     /* most tokens that can be taken back */
};

/* The tokens of a vocabulary that are text (normal and user-defined), and those that end an answer. Read-only. */
struct st_trie;
/* STRATA_E_UNSUPPORTED: no token ends an answer. The tokenizer must outlive it. */
enum strata_result st_trie_create(const struct st_tokenizer *t, struct st_trie **out, struct strata_error *err);
void st_trie_free(struct st_trie *trie);

/* One answer that follows a grammar. Belongs to one thread; grammar and trie must outlive it. vocabulary: the model's, which may
 * have more ids than the tokenizer; those are never allowed. */
struct st_matcher;
enum strata_result st_matcher_create(const struct st_grammar *g, const struct st_trie *trie, size_t vocabulary,
                                     struct st_matcher **out, struct strata_error *err);
/* Words of a mask: bit id % 32 of word id / 32 says whether a token is allowed. At least as many as the vocabulary needs. */
size_t st_matcher_words(const struct st_matcher *m);
void st_matcher_free(struct st_matcher *m);

/* The tokens that may come next, valid until the next call. Tokens that end an answer are allowed exactly where the grammar
 * can end, control tokens never. STRATA_E_LIMIT: no token is allowed, or the grammar is too ambiguous to be followed. */
enum strata_result st_matcher_mask(struct st_matcher *m, const uint32_t **mask, struct strata_error *err);
/* Goes on behind a token. One that is not allowed leads nowhere: from there everything is allowed, until it is taken back. So
 * guesses of tokens can be accepted without a look at them; nobody uses what is behind a wrong one. */
enum strata_result st_matcher_accept(struct st_matcher *m, int32_t token, struct strata_error *err);
bool st_matcher_nowhere(const struct st_matcher *m);
/* Undoes the last count accepts, at most ST_MATCHER_BACK of them and none before a call of st_matcher_text. */
void st_matcher_take_back(struct st_matcher *m, size_t count);
/* Goes on behind bytes. STRATA_E_ARGUMENT: they are not allowed; nothing changes. */
enum strata_result st_matcher_text(struct st_matcher *m, const char *text, size_t size, struct strata_error *err);
/* May the answer end here? */
bool st_matcher_can_end(const struct st_matcher *m);

#endif
