/* The demo model's tokenizer for tests: tests/unit/data/demo_tokenizer.json.zst, a Hugging Face tokenizer.json reduced
 * to the vocabulary, the merges and the added tokens. */
#ifndef ST_TESTS_TEXT_FIXTURE_H
#define ST_TESTS_TEXT_FIXTURE_H

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "base/file.h"
#include "text/tokenizer.h"

/* Content of tests/unit/data/NAME, freed by the caller. */
static inline char *fixture_read(const char *name, size_t *size)
{
    char path[4096];
    const char *root = getenv("STRATA_TEST_SOURCE");
    snprintf(path, sizeof path, "%s/tests/unit/data/%s", root ? root : ".", name);
    char *data;
    struct strata_error err;
    if (st_read_file(path, 64 << 20, &data, size, &err) != STRATA_OK)
        fail_msg("%s", err.text);
    return data;
}

static inline json_t *fixture_json(const char *name)
{
    size_t size;
    char *text = fixture_read(name, &size);
    json_error_t why;
    json_t *json = json_loadb(text, size, JSON_ALLOW_NUL, &why);
    free(text);
    if (!json)
        fail_msg("%s: %s", name, why.text);
    return json;
}

/* A tokenizer of the fixture's vocabulary with the given pre-tokenizer. */
static inline enum strata_result fixture_tokenizer(const char *pre, struct st_tokenizer **out, struct strata_error *err)
{
    size_t packed_size;
    char *packed = fixture_read("demo_tokenizer.json.zst", &packed_size);
    size_t size = (size_t)ZSTD_getFrameContentSize(packed, packed_size);
    char *text = malloc(size + 1);
    assert_int_equal(ZSTD_decompress(text, size, packed, packed_size), size);
    free(packed);
    json_error_t why;
    json_t *root = json_loadb(text, size, 0, &why), *entry;
    free(text);
    assert_non_null(root);
    json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    json_t *merges = json_object_get(json_object_get(root, "model"), "merges");
    json_t *added = json_object_get(root, "added_tokens");
    size_t count = json_object_size(vocab) + json_array_size(added), i;
    struct st_bytes *tokens = calloc(count, sizeof *tokens), *pairs = calloc(json_array_size(merges), sizeof *pairs);
    int32_t *types = calloc(count, sizeof *types);
    const char *key;
    json_object_foreach(vocab, key, entry)
    {
        size_t id = (size_t)json_integer_value(entry);
        tokens[id] = (struct st_bytes){key, strlen(key)};
        types[id] = ST_TOKEN_NORMAL;
    }
    json_array_foreach(added, i, entry)
    {
        size_t id = (size_t)json_integer_value(json_object_get(entry, "id"));
        const char *content = json_string_value(json_object_get(entry, "content"));
        tokens[id] = (struct st_bytes){content, strlen(content)};
        types[id] = json_is_true(json_object_get(entry, "special")) ? ST_TOKEN_CONTROL : ST_TOKEN_USER_DEFINED;
    }
    json_array_foreach(merges, i, entry) pairs[i] =
        (struct st_bytes){json_string_value(entry), json_string_length(entry)};
    struct st_vocab v = {.tokens = tokens,
                         .types = types,
                         .count = count,
                         .merges = pairs,
                         .merge_count = json_array_size(merges),
                         .pre = pre,
                         .bos = -1,
                         .eos = 8181,
                         .eot = -1,
                         .pad = 8179};
    enum strata_result r = st_tokenizer_create(&v, out, err);
    free(tokens);
    free(types);
    free(pairs);
    json_decref(root);
    return r;
}

/* Set-up and tear-down of a group of tests that share the tokenizer of the demo model. */
static struct st_tokenizer *demo;

static inline int open_demo(void **state)
{
    (void)state;
    struct strata_error err;
    assert_ok(fixture_tokenizer("qwen35", &demo, &err), &err);
    return 0;
}

static inline int close_demo(void **state)
{
    (void)state;
    st_tokenizer_free(demo);
    return 0;
}

#endif
