/* The demo model's tokenizer, out of models/demo.gguf, and the files of tests/unit/data. */
#ifndef ST_TESTS_TEXT_FIXTURE_H
#define ST_TESTS_TEXT_FIXTURE_H

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "format/gguf.h"
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

/* A tokenizer of the demo model's vocabulary with the given pre-tokenizer and no token for the beginning of a text. */
static inline enum strata_result fixture_tokenizer(const char *pre, struct st_tokenizer **out, struct strata_error *err)
{
    char path[4096];
    const char *root = getenv("STRATA_TEST_SOURCE");
    struct st_gguf *g = NULL;
    struct st_bytes *tokens = NULL, *merges = NULL;
    int64_t *types = NULL;
    size_t count = 0;
    struct st_vocab v = {.pre = pre, .bos = -1, .eos = 8181, .eot = -1, .pad = 8179};
    snprintf(path, sizeof path, "%s/models/demo.gguf", root ? root : ".");
    assert_ok(st_gguf_open(path, &g, err), err);
    assert_ok(st_gguf_strings(g, "tokenizer.ggml.tokens", &tokens, &v.count, err), err);
    assert_ok(st_gguf_strings(g, "tokenizer.ggml.merges", &merges, &v.merge_count, err), err);
    assert_ok(st_gguf_ints(g, "tokenizer.ggml.token_type", &types, &count, err), err);
    assert_int_equal(count, v.count);
    int32_t *narrow = malloc(count * sizeof *narrow);
    assert_non_null(narrow);
    for (size_t i = 0; i < count; i++)
        narrow[i] = (int32_t)types[i];
    v.tokens = tokens;
    v.merges = merges;
    v.types = narrow;
    enum strata_result r = st_tokenizer_create(&v, out, err);
    free(tokens);
    free(merges);
    free(types);
    free(narrow);
    st_gguf_close(g);
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
