/* Typed access to the metadata of a GGUF file. Producers differ in the integer and float types they write, so values are
 * converted where they fit and refused where they do not (spec/gguf-and-quants.md 1.2). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "format/gguf_value.h"

size_t st_gguf_scalar_size(enum st_gguf_type type)
{
    switch (type) {
    case ST_GGUF_U8:
    case ST_GGUF_I8:
    case ST_GGUF_BOOL:
        return 1;
    case ST_GGUF_U16:
    case ST_GGUF_I16:
        return 2;
    case ST_GGUF_U32:
    case ST_GGUF_I32:
    case ST_GGUF_F32:
        return 4;
    case ST_GGUF_U64:
    case ST_GGUF_I64:
    case ST_GGUF_F64:
        return 8;
    case ST_GGUF_STRING:
    case ST_GGUF_ARRAY:
        break;
    }
    return 0;
}

const char *st_gguf_type_name(enum st_gguf_type type)
{
    static const char *const names[] = {"u8", "i8", "u16", "i16", "u32", "i32", "f32",
                                        "bool", "string", "array", "u64", "i64", "f64"};
    return (unsigned)type < sizeof names / sizeof names[0] ? names[type] : "unknown";
}

/* A scalar with its sign: integers keep all 64 bits. */
struct number {
    enum { INTEGER, BOOLEAN, REAL, NONE } kind;
    bool negative;
    uint64_t magnitude;
    double real;
};

static struct number from_signed(int64_t v)
{
    return (struct number){.kind = INTEGER, .negative = v < 0, .magnitude = v < 0 ? -(uint64_t)v : (uint64_t)v};
}

static struct number load(enum st_gguf_type type, const uint8_t *p)
{
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        float f32;
        uint64_t u64;
        int64_t i64;
        double f64;
    } v = {.u64 = 0};
    memcpy(&v, p, st_gguf_scalar_size(type));
    switch (type) {
    case ST_GGUF_U8:
        return (struct number){.kind = INTEGER, .magnitude = v.u8};
    case ST_GGUF_U16:
        return (struct number){.kind = INTEGER, .magnitude = v.u16};
    case ST_GGUF_U32:
        return (struct number){.kind = INTEGER, .magnitude = v.u32};
    case ST_GGUF_U64:
        return (struct number){.kind = INTEGER, .magnitude = v.u64};
    case ST_GGUF_I8:
        return from_signed(v.i8);
    case ST_GGUF_I16:
        return from_signed(v.i16);
    case ST_GGUF_I32:
        return from_signed(v.i32);
    case ST_GGUF_I64:
        return from_signed(v.i64);
    case ST_GGUF_BOOL:
        return (struct number){.kind = BOOLEAN, .magnitude = v.u8 != 0};
    case ST_GGUF_F32:
        return (struct number){.kind = REAL, .real = (double)v.f32};
    case ST_GGUF_F64:
        return (struct number){.kind = REAL, .real = v.f64};
    case ST_GGUF_STRING:
    case ST_GGUF_ARRAY:
        break;
    }
    return (struct number){.kind = NONE};
}

static enum strata_result wrong_kind(const char *path, const struct st_gguf_key *k, const char *expected,
                                     struct strata_error *err)
{
    bool array = k->type == ST_GGUF_ARRAY;
    return st_fail(err, STRATA_E_FORMAT, "%s: key %s: %s%s where %s is expected", path, k->name, array ? "array of " : "",
                   st_gguf_type_name(k->element), expected);
}

static enum strata_result to_u64(const char *path, const struct st_gguf_key *k, struct number n, uint64_t *out,
                                 struct strata_error *err)
{
    if (n.kind != INTEGER)
        return wrong_kind(path, k, "an integer", err);
    if (n.negative)
        return st_fail(err, STRATA_E_FORMAT, "%s: key %s: -%llu is negative", path, k->name,
                       (unsigned long long)n.magnitude);
    *out = n.magnitude;
    return STRATA_OK;
}

static enum strata_result to_i64(const char *path, const struct st_gguf_key *k, struct number n, int64_t *out,
                                 struct strata_error *err)
{
    if (n.kind != INTEGER)
        return wrong_kind(path, k, "an integer", err);
    if (!n.negative && n.magnitude > INT64_MAX)
        return st_fail(err, STRATA_E_FORMAT, "%s: key %s: %llu is too large", path, k->name,
                       (unsigned long long)n.magnitude);
    *out = n.negative ? (int64_t)-n.magnitude : (int64_t)n.magnitude;
    return STRATA_OK;
}

static enum strata_result to_f64(const char *path, const struct st_gguf_key *k, struct number n, double *out,
                                 struct strata_error *err)
{
    if (n.kind == REAL && !isfinite(n.real))
        return st_fail(err, STRATA_E_FORMAT, "%s: key %s: not a finite number", path, k->name);
    if (n.kind == REAL)
        *out = n.real;
    else if (n.kind == INTEGER)
        *out = n.negative ? -(double)n.magnitude : (double)n.magnitude;
    else
        return wrong_kind(path, k, "a number", err);
    return STRATA_OK;
}

static enum strata_result to_bool(const char *path, const struct st_gguf_key *k, struct number n, bool *out,
                                  struct strata_error *err)
{
    if (n.kind != BOOLEAN && (n.kind != INTEGER || n.negative || n.magnitude > 1))
        return wrong_kind(path, k, "a bool", err);
    *out = n.magnitude != 0;
    return STRATA_OK;
}

enum strata_result st_gguf_value_u64(const char *path, const struct st_gguf_key *k, uint64_t *out, struct strata_error *err)
{
    return to_u64(path, k, load(k->type, k->data), out, err);
}

static enum strata_result need(const struct st_gguf *g, const char *name, const struct st_gguf_key **out,
                               struct strata_error *err)
{
    *out = st_gguf_key(g, name);
    return *out ? STRATA_OK : st_fail(err, STRATA_E_MODEL, "%s: key %s is missing", g->path, name);
}

enum strata_result st_gguf_u64(const struct st_gguf *g, const char *name, uint64_t *out, struct strata_error *err)
{
    const struct st_gguf_key *k;
    enum strata_result r = need(g, name, &k, err);
    return r ? r : st_gguf_value_u64(g->path, k, out, err);
}

enum strata_result st_gguf_u32(const struct st_gguf *g, const char *name, uint32_t *out, struct strata_error *err)
{
    uint64_t v = 0;
    enum strata_result r = st_gguf_u64(g, name, &v, err);
    if (!r && v > UINT32_MAX)
        r = st_fail(err, STRATA_E_FORMAT, "%s: key %s: %llu does not fit 32 bits", g->path, name, (unsigned long long)v);
    if (!r)
        *out = (uint32_t)v;
    return r;
}

enum strata_result st_gguf_i64(const struct st_gguf *g, const char *name, int64_t *out, struct strata_error *err)
{
    const struct st_gguf_key *k;
    enum strata_result r = need(g, name, &k, err);
    return r ? r : to_i64(g->path, k, load(k->type, k->data), out, err);
}

enum strata_result st_gguf_f64(const struct st_gguf *g, const char *name, double *out, struct strata_error *err)
{
    const struct st_gguf_key *k;
    enum strata_result r = need(g, name, &k, err);
    return r ? r : to_f64(g->path, k, load(k->type, k->data), out, err);
}

enum strata_result st_gguf_bool(const struct st_gguf *g, const char *name, bool *out, struct strata_error *err)
{
    const struct st_gguf_key *k;
    enum strata_result r = need(g, name, &k, err);
    return r ? r : to_bool(g->path, k, load(k->type, k->data), out, err);
}

enum strata_result st_gguf_string(const struct st_gguf *g, const char *name, const char **text, size_t *size,
                                  struct strata_error *err)
{
    const struct st_gguf_key *k;
    enum strata_result r = need(g, name, &k, err);
    if (!r && k->type != ST_GGUF_STRING)
        r = wrong_kind(g->path, k, "a string", err);
    if (r)
        return r;
    *text = (const char *)k->data;
    *size = (size_t)k->bytes;
    return STRATA_OK;
}

enum strata_result st_gguf_u64_or(const struct st_gguf *g, const char *name, uint64_t missing, uint64_t *out,
                                  struct strata_error *err)
{
    if (st_gguf_key(g, name))
        return st_gguf_u64(g, name, out, err);
    *out = missing;
    return STRATA_OK;
}

enum strata_result st_gguf_u32_or(const struct st_gguf *g, const char *name, uint32_t missing, uint32_t *out,
                                  struct strata_error *err)
{
    if (st_gguf_key(g, name))
        return st_gguf_u32(g, name, out, err);
    *out = missing;
    return STRATA_OK;
}

enum strata_result st_gguf_f64_or(const struct st_gguf *g, const char *name, double missing, double *out,
                                  struct strata_error *err)
{
    if (st_gguf_key(g, name))
        return st_gguf_f64(g, name, out, err);
    *out = missing;
    return STRATA_OK;
}

enum strata_result st_gguf_bool_or(const struct st_gguf *g, const char *name, bool missing, bool *out,
                                   struct strata_error *err)
{
    if (st_gguf_key(g, name))
        return st_gguf_bool(g, name, out, err);
    *out = missing;
    return STRATA_OK;
}

/* Converts one element into place at. */
typedef enum strata_result convert_fn(const char *path, const struct st_gguf_key *k, struct number n, void *at,
                                      struct strata_error *err);

static enum strata_result put_i64(const char *path, const struct st_gguf_key *k, struct number n, void *at,
                                  struct strata_error *err)
{
    return to_i64(path, k, n, at, err);
}

static enum strata_result put_f64(const char *path, const struct st_gguf_key *k, struct number n, void *at,
                                  struct strata_error *err)
{
    return to_f64(path, k, n, at, err);
}

static enum strata_result put_bool(const char *path, const struct st_gguf_key *k, struct number n, void *at,
                                   struct strata_error *err)
{
    return to_bool(path, k, n, at, err);
}

/* An array of numbers as items of size bytes. Strings have no elements of fixed size and are refused first. */
static enum strata_result numbers(const struct st_gguf *g, const char *name, size_t size, convert_fn *convert,
                                  const char *expected, void **out, size_t *count, struct strata_error *err)
{
    const struct st_gguf_key *k;
    enum strata_result r = need(g, name, &k, err);
    if (!r && k->element == ST_GGUF_STRING)
        r = wrong_kind(g->path, k, expected, err);
    if (r)
        return r;
    char *items = calloc(k->count + 1, size);
    if (!items)
        return st_fail(err, STRATA_E_MEMORY, "%s: key %s: no memory for its elements", g->path, name);
    for (size_t i = 0; !r && i < k->count; i++)
        r = convert(g->path, k, load(k->element, k->data + i * st_gguf_scalar_size(k->element)), items + i * size, err);
    if (r) {
        free(items);
        return r;
    }
    *out = items;
    *count = (size_t)k->count;
    return STRATA_OK;
}

enum strata_result st_gguf_ints(const struct st_gguf *g, const char *name, int64_t **out, size_t *count,
                                struct strata_error *err)
{
    void *items = NULL;
    enum strata_result r = numbers(g, name, sizeof **out, put_i64, "integers", &items, count, err);
    if (!r)
        *out = items;
    return r;
}

enum strata_result st_gguf_floats(const struct st_gguf *g, const char *name, double **out, size_t *count,
                                  struct strata_error *err)
{
    void *items = NULL;
    enum strata_result r = numbers(g, name, sizeof **out, put_f64, "numbers", &items, count, err);
    if (!r)
        *out = items;
    return r;
}

enum strata_result st_gguf_bools(const struct st_gguf *g, const char *name, bool **out, size_t *count,
                                 struct strata_error *err)
{
    void *items = NULL;
    enum strata_result r = numbers(g, name, sizeof **out, put_bool, "bools", &items, count, err);
    if (!r)
        *out = items;
    return r;
}

enum strata_result st_gguf_strings(const struct st_gguf *g, const char *name, struct st_bytes **out, size_t *count,
                                   struct strata_error *err)
{
    const struct st_gguf_key *k;
    enum strata_result r = need(g, name, &k, err);
    if (!r && k->element != ST_GGUF_STRING)
        r = wrong_kind(g->path, k, "strings", err);
    if (r)
        return r;
    size_t n = k->type == ST_GGUF_ARRAY ? (size_t)k->count : 1;
    struct st_bytes *items = calloc(n + 1, sizeof *items);
    if (!items)
        return st_fail(err, STRATA_E_MEMORY, "%s: key %s: no memory for its elements", g->path, name);
    if (k->type == ST_GGUF_STRING) {
        items[0] = (struct st_bytes){(const char *)k->data, (size_t)k->bytes};
    } else {
        const uint8_t *p = k->data;
        for (size_t i = 0; i < n; i++) {
            uint64_t size;
            memcpy(&size, p, sizeof size);
            items[i] = (struct st_bytes){(const char *)p + sizeof size, (size_t)size};
            p += sizeof size + size;
        }
    }
    *out = items;
    *count = n;
    return STRATA_OK;
}
