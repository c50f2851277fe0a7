/* The vocabulary as a tree of bytes, laid out so that one walk from left to right visits it, and a subtree is left by one
 * jump. */
#ifndef ST_TEXT_TRIE_H
#define ST_TEXT_TRIE_H

#include "text/matcher.h"

enum { ST_TRIE_STOPS = 16 };

struct st_trie {
    const struct st_tokenizer *tokenizer;
    size_t vocabulary; /* the tokenizer's */
    size_t nodes;
    size_t deepest;  /* bytes of the longest token */
    uint8_t *byte;   /* [nodes] that leads here */
    uint16_t *depth; /* [nodes] from 1 */
    uint32_t *skip;  /* [nodes] the next node that is not below this one */
    uint32_t *first; /* [nodes + 1]: ids[first[n]] .. ids[first[n + 1] - 1] end at node n */
    int32_t *ids;
    int32_t stops[ST_TRIE_STOPS];
    int stop_count;
};

#endif
