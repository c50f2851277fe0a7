/* Answers by chance under schemas: constrained MODEL. Each line of standard input is {"schema", "seed", "count"}; for each the
 * program prints a line: {"error": TEXT}, or {"texts": [...], "unfinished": N}. A token is drawn from those that the mask allows,
 * those that close something more often, so that answers end. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "text/constraint.h"

enum { TOKENS_MAX = 300, LINE_MAX_BYTES = 1 << 20 };

static uint64_t next_random(uint64_t *state)
{
    *state += 0x9E3779B97F4A7C15u;
    uint64_t z = *state;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* An allowed token; each is as likely as its weight says. */
static int32_t draw(const struct st_tokenizer *t, const uint32_t *mask, uint64_t *random)
{
    uint64_t total = 0;
    int32_t pick = -1;
    for (int32_t id = 0; id < (int32_t)st_tokenizer_count(t); id++) {
        if (!(mask[id / 32] >> id % 32 & 1))
            continue;
        struct st_bytes text = st_tokenizer_bytes(t, id, false);
        bool closes = st_tokenizer_is_stop(t, id) || (text.size && strchr("\"}]", text.data[0]));
        uint64_t weight = closes ? 2000 : text.size == 1 ? 20 : 1;
        total += weight;
        if (next_random(random) % total < weight)
            pick = id;
    }
    return pick;
}

/* Appends an answer to texts. False: it did not end within TOKENS_MAX tokens. */
static bool answer(const struct strata_model *model, const struct strata_constraint *c, uint64_t *random, json_t *texts)
{
    struct strata_error err;
    struct st_matcher *m;
    char *text = NULL;
    size_t size = 0;
    bool ended = false;
    if (st_constraint_begin(c, 0, &m, &err)) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    for (int i = 0; i < TOKENS_MAX && !ended; i++) {
        const uint32_t *mask;
        if (st_matcher_mask(m, &mask, &err)) {
            fprintf(stderr, "%s behind %.*s\n", err.text, (int)size, text);
            exit(1);
        }
        int32_t token = draw(model->tokenizer, mask, random);
        struct st_bytes piece = st_tokenizer_bytes(model->tokenizer, token, false);
        if (st_matcher_accept(m, token, &err) || st_matcher_nowhere(m)) {
            fprintf(stderr, "token %d is in the mask, but not accepted\n", token);
            exit(1);
        }
        ended = st_tokenizer_is_stop(model->tokenizer, token);
        if (ended)
            break;
        text = realloc(text, size + piece.size + 1);
        memcpy(text + size, piece.data, piece.size);
        size += piece.size;
    }
    json_t *value = ended ? json_stringn(text ? text : "", size) : NULL;
    if (ended && !value) {
        fprintf(stderr, "an answer is not valid UTF-8\n");
        exit(1);
    }
    if (ended)
        json_array_append_new(texts, value);
    st_matcher_free(m);
    free(text);
    return ended;
}

static json_t *work(const struct strata_model *model, const json_t *job)
{
    char *schema = json_dumps(json_object_get(job, "schema"), JSON_ENCODE_ANY);
    uint64_t random = (uint64_t)json_integer_value(json_object_get(job, "seed"));
    struct strata_constraint_options options = {.json_schema = schema};
    struct strata_constraint *c;
    struct strata_error err;
    json_t *texts = json_array();
    json_int_t unfinished = 0;
    enum strata_result r = strata_constraint_create(model, &options, &c, &err);
    for (json_int_t i = 0; !r && i < json_integer_value(json_object_get(job, "count")); i++)
        unfinished += !answer(model, c, &random, texts);
    if (!r)
        strata_constraint_free(c);
    free(schema);
    if (r) {
        json_decref(texts);
        return json_pack("{s:s}", "error", err.text);
    }
    return json_pack("{s:o, s:I}", "texts", texts, "unfinished", unfinished);
}

int main(int argc, char **argv)
{
    static char line[LINE_MAX_BYTES];
    struct strata_model *model;
    struct strata_error err;
    if (argc != 2 || strata_model_open(argv[1], &model, &err)) {
        fprintf(stderr, argc == 2 ? "%s\n" : "usage: constrained MODEL\n", err.text);
        return 1;
    }
    while (fgets(line, sizeof line, stdin)) {
        json_t *job = json_loads(line, 0, NULL), *result = work(model, job);
        char *text = json_dumps(result, JSON_COMPACT);
        puts(text);
        free(text);
        json_decref(result);
        json_decref(job);
    }
    strata_model_free(model);
    return 0;
}
