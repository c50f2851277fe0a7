/* strata inspect: what a GGUF file says about itself. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/options.h"
#include "format/gguf.h"
#include "format/quant.h"

enum { SHOWN_ELEMENTS = 8, SHOWN_TEXT = 100, ALL = 1 << 24 };

/* The values of a key as a JSON array of at most limit elements; NULL with a message when they cannot be shown (a number
 * that is not finite or too large). */
static json_t *key_values(const struct st_gguf *g, const struct st_gguf_key *k, size_t limit, struct strata_error *err)
{
    void *items = NULL;
    size_t n = 0;
    enum strata_result r;
    switch (k->element) {
    case ST_GGUF_BOOL:
        r = st_gguf_bools(g, k->name, (bool **)&items, &n, err);
        break;
    case ST_GGUF_F32:
    case ST_GGUF_F64:
        r = st_gguf_floats(g, k->name, (double **)&items, &n, err);
        break;
    case ST_GGUF_STRING:
        r = st_gguf_strings(g, k->name, (struct st_bytes **)&items, &n, err);
        break;
    default:
        r = st_gguf_ints(g, k->name, (int64_t **)&items, &n, err);
    }
    if (r)
        return NULL;
    json_t *list = json_array();
    for (size_t i = 0; i < n && i < limit; i++) {
        if (k->element == ST_GGUF_BOOL) {
            json_array_append_new(list, json_boolean(((bool *)items)[i]));
        } else if (k->element == ST_GGUF_F32 || k->element == ST_GGUF_F64) {
            json_array_append_new(list, json_real(((double *)items)[i]));
        } else if (k->element == ST_GGUF_STRING) {
            struct st_bytes s = ((struct st_bytes *)items)[i];
            json_t *text = json_stringn(s.data, s.size);
            json_array_append_new(list, text ? text : json_string("(not UTF-8)"));
        } else {
            json_array_append_new(list, json_integer(((int64_t *)items)[i]));
        }
    }
    free(items);
    return list;
}

struct total {
    uint64_t tensors, elements, bytes;
};

static void count_types(const struct st_gguf *g, struct total *totals)
{
    for (size_t i = 0; i < g->n_tensors; i++) {
        struct total *t = &totals[g->tensors[i].type];
        t->tensors++;
        t->elements += st_gguf_elements(&g->tensors[i]);
        t->bytes += g->tensors[i].bytes;
    }
}

static json_t *size_value(uint64_t v)
{
    return json_integer((json_int_t)v);
}

static json_t *tensor_json(const struct st_gguf_tensor *t)
{
    json_t *o = json_object(), *shape = json_array();
    for (uint32_t d = 0; d < t->n_dims; d++)
        json_array_append_new(shape, size_value(t->ne[d]));
    json_object_set_new(o, "name", json_string(t->name));
    json_object_set_new(o, "type", json_string(st_type_info((int)t->type)->name));
    json_object_set_new(o, "shape", shape);
    json_object_set_new(o, "bytes", size_value(t->bytes));
    json_object_set_new(o, "shard", size_value(t->shard));
    json_object_set_new(o, "offset", size_value(t->offset));
    return o;
}

static enum strata_result print_json(const struct st_gguf *g, struct strata_error *err)
{
    json_t *root = json_object(), *shards = json_array(), *keys = json_object(), *tensors = json_array(),
           *types = json_object();
    for (size_t i = 0; i < g->n_shards; i++) {
        const struct st_gguf_shard *s = &g->shards[i];
        json_array_append_new(shards, json_pack("{s:s, s:I, s:I, s:I}", "path", s->path, "version", (json_int_t)s->version,
                                                "bytes", (json_int_t)s->map.size, "tensors", (json_int_t)s->n_tensors));
    }
    for (size_t i = 0; i < g->n_keys; i++) {
        struct strata_error why;
        json_t *list = key_values(g, &g->keys[i], ALL, &why);
        json_t *value = !list ? json_null() : g->keys[i].type == ST_GGUF_ARRAY ? list : json_incref(json_array_get(list, 0));
        if (value != list)
            json_decref(list);
        json_object_set_new(keys, g->keys[i].name,
                            json_pack("{s:s, s:o}", "type", st_gguf_type_name(g->keys[i].element), "value", value));
    }
    for (size_t i = 0; i < g->n_tensors; i++)
        json_array_append_new(tensors, tensor_json(&g->tensors[i]));
    struct total totals[ST_TYPE_COUNT] = {0};
    count_types(g, totals);
    for (int i = 0; i < ST_TYPE_COUNT; i++)
        if (totals[i].tensors)
            json_object_set_new(types, st_type_info(i)->name,
                                json_pack("{s:I, s:I, s:I}", "tensors", (json_int_t)totals[i].tensors, "elements",
                                          (json_int_t)totals[i].elements, "bytes", (json_int_t)totals[i].bytes));
    json_object_set_new(root, "shards", shards);
    json_object_set_new(root, "keys", keys);
    json_object_set_new(root, "types", types);
    json_object_set_new(root, "tensors", tensors);
    char *text = json_dumps(root, JSON_INDENT(1));
    json_decref(root);
    if (!text)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for its JSON form", g->path);
    puts(text);
    free(text);
    return STRATA_OK;
}

static void print_value(const json_t *v)
{
    char shown[SHOWN_TEXT + 8];
    if (json_is_string(v)) {
        st_printable(shown, sizeof shown, json_string_value(v), json_string_length(v));
        printf(" '%s'%s", shown, json_string_length(v) > SHOWN_TEXT ? "..." : "");
    } else if (json_is_real(v)) {
        printf(" %.7g", json_real_value(v));
    } else if (json_is_boolean(v)) {
        printf(" %s", json_is_true(v) ? "true" : "false");
    } else {
        printf(" %lld", (long long)json_integer_value(v));
    }
}

static void print_key(const struct st_gguf *g, const struct st_gguf_key *k)
{
    struct strata_error why;
    json_t *list = key_values(g, k, SHOWN_ELEMENTS, &why);
    printf("  %-44s %s", k->name, st_gguf_type_name(k->element));
    if (k->type == ST_GGUF_ARRAY)
        printf("[%llu]", (unsigned long long)k->count);
    if (!list)
        printf(" (%s)", why.text);
    for (size_t i = 0; i < json_array_size(list); i++)
        print_value(json_array_get(list, i));
    if (k->type == ST_GGUF_ARRAY && k->count > SHOWN_ELEMENTS)
        printf(" ...");
    printf("\n");
    json_decref(list);
}

static void print_tensor(const struct st_gguf_tensor *t)
{
    printf("  %-44s %-8s {%llu", t->name, st_type_info((int)t->type)->name, (unsigned long long)t->ne[0]);
    for (uint32_t d = 1; d < t->n_dims; d++)
        printf(", %llu", (unsigned long long)t->ne[d]);
    printf("} %llu bytes at %llu of shard %lu\n", (unsigned long long)t->bytes, (unsigned long long)t->offset,
           (unsigned long)t->shard + 1);
}

static void print_text(const struct st_gguf *g, bool tensors)
{
    struct total totals[ST_TYPE_COUNT] = {0}, all = {0};
    count_types(g, totals);
    for (size_t i = 0; i < g->n_shards; i++)
        printf("%s: GGUF v%lu, %llu bytes, %zu keys, %zu tensors\n", g->shards[i].path, (unsigned long)g->shards[i].version,
               (unsigned long long)g->shards[i].map.size, g->shards[i].n_keys, g->shards[i].n_tensors);
    printf("keys:\n");
    for (size_t i = 0; i < g->n_keys; i++)
        print_key(g, &g->keys[i]);
    if (tensors)
        printf("tensors:\n");
    for (size_t i = 0; tensors && i < g->n_tensors; i++)
        print_tensor(&g->tensors[i]);
    printf("types:\n");
    for (int i = 0; i < ST_TYPE_COUNT; i++) {
        struct total *t = &totals[i];
        all.tensors += t->tensors;
        all.elements += t->elements;
        all.bytes += t->bytes;
        if (t->tensors)
            printf("  %-8s %5llu tensors %15llu elements %15llu bytes\n", st_type_info(i)->name,
                   (unsigned long long)t->tensors, (unsigned long long)t->elements, (unsigned long long)t->bytes);
    }
    printf("  %-8s %5llu tensors %15llu elements %15llu bytes, %.2f bits per element\n", "all",
           (unsigned long long)all.tensors, (unsigned long long)all.elements, (unsigned long long)all.bytes,
           all.elements ? 8.0 * (double)all.bytes / (double)all.elements : 0.0);
}

int st_cmd_inspect(int argc, char **argv)
{
    bool json = false, tensors = false;
    const char *words[1];
    int status;
    const struct st_opt options[] = {
        ST_FLAG("json", 0, &json, "everything, tensors and all array elements included, as JSON"),
        ST_FLAG("tensors", 0, &tensors, "list the tensors"),
    };
    const struct st_usage usage = {"inspect", "FILE [options]",
                                   "Shows the keys, tensors and types of a GGUF file, all shards of a split one together.",
                                   options, ST_COUNT(options), words, 1, 1, NULL};
    if (!st_options_parse(&usage, argc, argv, &status))
        return status;
    struct st_gguf *g;
    struct strata_error err;
    enum strata_result r = st_gguf_open(words[0], &g, &err);
    if (r)
        return st_report(&err);
    if (json)
        r = print_json(g, &err);
    else
        print_text(g, tensors);
    st_gguf_close(g);
    return r ? st_report(&err) : ST_EXIT_OK;
}
