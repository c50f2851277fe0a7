/* A small vocabulary (every byte, some longer texts, an end), and following a grammar with it. */
#ifndef ST_TESTS_FUZZ_VOCABULARY_H
#define ST_TESTS_FUZZ_VOCABULARY_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/matcher.h"

/* Byte-level vocabularies write a byte as a character: printable ones as themselves, the others from U+0100 on. */
static inline size_t fuzz_byte_text(int byte, int *shifted, char *out)
{
    bool plain = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    int cp = plain ? byte : (*shifted)++;
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    out[0] = (char)(0xC0 | cp >> 6);
    out[1] = (char)(0x80 | (cp & 0x3F));
    return 2;
}

static inline struct st_tokenizer *fuzz_tokenizer(void)
{
    static const char *const more[] = {"true", "\":", "{\"", "},", "abc", "12", "</", "<end>"};
    enum { MORE = sizeof more / sizeof *more, COUNT = 256 + MORE };
    static char text[256][2];
    struct st_bytes tokens[COUNT];
    int32_t types[COUNT];
    int shifted = 256;
    for (int i = 0; i < COUNT; i++) {
        tokens[i] = i < 256 ? (struct st_bytes){text[i], fuzz_byte_text(i, &shifted, text[i])}
                            : (struct st_bytes){more[i - 256], strlen(more[i - 256])};
        types[i] = i == COUNT - 1 ? ST_TOKEN_CONTROL : ST_TOKEN_NORMAL;
    }
    struct st_vocab vocab = {tokens, types, COUNT, NULL, 0, "gpt2", -1, COUNT - 1, -1, -1, false};
    struct st_tokenizer *t;
    struct strata_error err;
    if (st_tokenizer_create(&vocab, &t, &err))
        abort();
    return t;
}

/* Follows the text as far as it goes, and compares every mask with what is accepted. */
static inline void fuzz_follow(const struct st_grammar *g, const char *text, size_t size)
{
    static struct st_tokenizer *t;
    static struct st_trie *trie;
    struct strata_error err;
    struct st_matcher *m, *probe;
    const uint32_t *mask;
    if (!t) {
        t = fuzz_tokenizer();
        if (st_trie_create(t, &trie, &err))
            abort();
    }
    if (st_matcher_create(g, trie, st_tokenizer_count(t), &m, &err))
        return;
    size_t at = 0;
    for (int i = 0; i < 8 && !st_matcher_mask(m, &mask, &err); i++) {
        for (int32_t id = (int32_t)(i % 3); id < (int32_t)st_tokenizer_count(t); id += 3) {
            if (st_matcher_create(g, trie, st_tokenizer_count(t), &probe, &err))
                abort();
            if (!st_matcher_text(probe, text, at, &err)) {
                enum strata_result r = st_matcher_accept(probe, id, &err);
                if (!r && st_matcher_nowhere(probe) == (mask[id / 32] >> id % 32 & 1))
                    abort();
            }
            st_matcher_free(probe);
        }
        if (at == size || st_matcher_text(m, text + at, 1, &err))
            break;
        at++;
    }
    st_matcher_free(m);
}

#endif
