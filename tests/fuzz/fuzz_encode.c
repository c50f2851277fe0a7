/* Any bytes as a text, through every pre-tokenizer with a small vocabulary and back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { BYTES = 256, MERGED = 5, SPECIAL = 4, COUNT = BYTES + MERGED + SPECIAL };

static struct st_tokenizer *make(const char *pre)
{
    static char alphabet[BYTES][3];
    static const char *const merged[MERGED] = {"ab", "abc", "\xC4\xA0\x61", "\xC4\xA0\xC4\xA0", "\xC3\x8C\xC4\x83"};
    static const char *const merges[MERGED] = {"a b", "ab c", "\xC4\xA0 a", "\xC4\xA0 \xC4\xA0", "\xC3\x8C \xC4\x83"};
    static const char *const special[SPECIAL] = {"<|x|>", "<|x|>>", "<think>", "\xC3\xA9!"};
    struct st_bytes tokens[COUNT], pairs[MERGED];
    int32_t types[COUNT];
    int next = 0x100;
    for (int b = 0; b < BYTES; b++) {
        bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        tokens[b] = (struct st_bytes){alphabet[b], st_utf8_put((uint32_t)(itself ? b : next++), alphabet[b])};
        types[b] = ST_TOKEN_NORMAL;
    }
    for (int i = 0; i < MERGED; i++) {
        tokens[BYTES + i] = (struct st_bytes){merged[i], strlen(merged[i])};
        pairs[i] = (struct st_bytes){merges[i], strlen(merges[i])};
        types[BYTES + i] = ST_TOKEN_NORMAL;
    }
    for (int i = 0; i < SPECIAL; i++) {
        tokens[BYTES + MERGED + i] = (struct st_bytes){special[i], strlen(special[i])};
        types[BYTES + MERGED + i] = ST_TOKEN_CONTROL;
    }
    struct st_vocab v = {.tokens = tokens,
                         .types = types,
                         .count = COUNT,
                         .merges = pairs,
                         .merge_count = MERGED,
                         .pre = pre,
                         .bos = -1,
                         .eos = -1,
                         .eot = -1,
                         .pad = -1};
    struct st_tokenizer *t;
    struct strata_error err;
    if (st_tokenizer_create(&v, &t, &err)) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    return t;
}

static void check(const char *pre, const struct st_tokenizer *t, const char *text, size_t size, bool special)
{
    struct strata_error err;
    struct st_ids ids = {0};
    struct st_decoder d;
    struct st_bytes out;
    enum strata_result r = st_tokenizer_encode(t, text, size, special, &ids, &err);
    if ((r == STRATA_OK) != (st_utf8_invalid(text, size) == size))
        abort();
    size_t at = 0;
    bool exact = strncmp(pre, "qwen", 4) != 0; /* those two normalise */
    st_decoder_init(&d, t, true);
    for (size_t i = 0; i <= ids.count; i++) {
        if (i < ids.count ? st_decoder_push(&d, ids.data[i], &out, &err) : st_decoder_finish(&d, &out, &err))
            abort();
        if (exact && (out.size > size - at || memcmp(out.data, text + at, out.size) != 0))
            abort();
        at += out.size;
    }
    if (exact && r == STRATA_OK && at != size)
        abort();
    st_decoder_free(&d);
    st_ids_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"qwen35", "qwen2", "llama-bpe", "gpt2", "smollm", "default"};
    static struct st_tokenizer *made[sizeof names / sizeof names[0]];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (!made[i])
            made[i] = make(names[i]);
        check(names[i], made[i], (const char *)data, size, i % 2 == 0);
    }
    return 0;
}
