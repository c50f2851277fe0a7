/* GGUF reader: header, records and shards. Accessors for metadata values are in gguf_keys.c.
 *
 * Layout (spec/gguf-and-quants.md 1.1): u32 magic, u32 version, i64 tensors, i64 keys, key records, tensor records, padding,
 * data section; records follow each other byte by byte. Every check of section 1.5 that needs no knowledge of a model is
 * made here, before memory is taken for what a number in the file announces. */
#include "format/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "format/gguf_value.h"
#include "format/quant.h"

enum {
    MAX_KEYS = 1 << 16,
    MAX_TENSORS = 1 << 20,
    MAX_NAME = 1 << 16,
    MAX_STRING = 1 << 24,
    MAX_ELEMENTS = 1 << 24,
    MAX_ALIGNMENT = 1 << 20,
    MAX_SHARDS = 1024,
    MIN_KEY_RECORD = 14,
    MIN_TENSOR_RECORD = 24,
    NAMES_CHUNK = 1 << 16,
};

struct st_gguf_names {
    struct st_gguf_names *next;
    size_t used, size;
    char data[];
};

struct cursor {
    const struct st_gguf_shard *shard;
    uint64_t at; /* next byte of the file */
};

static const char *keep_name(struct st_gguf *g, const char *text, size_t size)
{
    struct st_gguf_names *n = g->names;
    if (!n || n->size - n->used < size + 1) {
        size_t want = size + 1 > NAMES_CHUNK ? size + 1 : NAMES_CHUNK;
        n = malloc(sizeof *n + want);
        if (!n)
            return NULL;
        *n = (struct st_gguf_names){.next = g->names, .size = want};
        g->names = n;
    }
    char *out = n->data + n->used;
    memcpy(out, text, size);
    out[size] = 0;
    n->used += size + 1;
    return out;
}

static uint64_t left(const struct cursor *c)
{
    return c->shard->map.size - c->at;
}

static bool take(struct cursor *c, void *out, size_t size)
{
    if (left(c) < size)
        return false;
    memcpy(out, c->shard->map.data + c->at, size);
    c->at += size;
    return true;
}

/* A length-prefixed string within limit bytes; *text views the file. */
static bool take_string(struct cursor *c, uint64_t limit, struct st_bytes *out)
{
    uint64_t n;
    if (!take(c, &n, sizeof n) || n > left(c) || n > limit)
        return false;
    *out = (struct st_bytes){(const char *)c->shard->map.data + c->at, (size_t)n};
    c->at += n;
    return true;
}

static bool printable_ascii(struct st_bytes s)
{
    for (size_t i = 0; i < s.size; i++)
        if (s.data[i] < 0x20 || s.data[i] > 0x7e)
            return false;
    return s.size > 0;
}

/* A name that may be shown and used as a C string. what and index say where it stands when it is refused. */
static enum strata_result take_name(struct st_gguf *g, struct cursor *c, uint64_t limit, const char *what, size_t index,
                                    const char **out, struct strata_error *err)
{
    struct st_bytes s;
    if (!take_string(c, limit, &s))
        return st_fail(err, STRATA_E_FORMAT, "%s: %s %zu: the name is cut off or longer than %llu bytes", c->shard->path,
                       what, index, (unsigned long long)limit);
    if (!printable_ascii(s)) {
        char shown[80];
        return st_fail(err, STRATA_E_FORMAT, "%s: %s %zu: the name '%s' is empty or not printable ASCII", c->shard->path,
                       what, index, st_printable(shown, sizeof shown, s.data, s.size));
    }
    *out = keep_name(g, s.data, s.size);
    if (!*out)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for names", c->shard->path);
    return STRATA_OK;
}

static enum strata_result read_array(struct cursor *c, struct st_gguf_key *k, struct strata_error *err)
{
    int32_t element;
    const char *path = c->shard->path;
    if (!take(c, &element, sizeof element) || !take(c, &k->count, sizeof k->count))
        return st_fail(err, STRATA_E_FORMAT, "%s: key %s: the file ends inside the array's head", path, k->name);
    k->element = (enum st_gguf_type)element;
    size_t size = st_gguf_scalar_size(k->element);
    if (!size && k->element != ST_GGUF_STRING)
        return st_fail(err, STRATA_E_FORMAT, "%s: key %s: array of element type %ld, which is no type or an array", path,
                       k->name, (long)element);
    if (k->count > MAX_ELEMENTS)
        return st_fail(err, STRATA_E_LIMIT, "%s: key %s: %llu elements, more than the %d allowed", path, k->name,
                       (unsigned long long)k->count, MAX_ELEMENTS);
    k->data = c->shard->map.data + c->at;
    uint64_t from = c->at;
    if (size) {
        if (k->count > left(c) / size)
            return st_fail(err, STRATA_E_FORMAT, "%s: key %s: %llu elements do not fit into the file", path, k->name,
                           (unsigned long long)k->count);
        c->at += k->count * size;
    } else {
        if (k->count > left(c) / 8)
            return st_fail(err, STRATA_E_FORMAT, "%s: key %s: %llu strings do not fit into the file", path, k->name,
                           (unsigned long long)k->count);
        for (uint64_t i = 0; i < k->count; i++) {
            struct st_bytes s;
            if (!take_string(c, MAX_STRING, &s))
                return st_fail(err, STRATA_E_FORMAT, "%s: key %s: string %llu is cut off or longer than %d bytes", path,
                               k->name, (unsigned long long)i, MAX_STRING);
        }
    }
    k->bytes = c->at - from;
    return STRATA_OK;
}

static enum strata_result read_key(struct st_gguf *g, struct cursor *c, size_t index, struct st_gguf_key *k,
                                   struct strata_error *err)
{
    const char *path = c->shard->path;
    enum strata_result r = take_name(g, c, MAX_NAME - 1, "key", index, &k->name, err);
    if (r)
        return r;
    int32_t type;
    if (!take(c, &type, sizeof type))
        return st_fail(err, STRATA_E_FORMAT, "%s: key %s: the file ends before its type", path, k->name);
    k->type = k->element = (enum st_gguf_type)type;
    k->count = 1;
    if (k->type == ST_GGUF_ARRAY)
        return read_array(c, k, err);
    size_t size = st_gguf_scalar_size(k->type);
    if (k->type == ST_GGUF_STRING) {
        struct st_bytes s;
        if (!take_string(c, MAX_STRING, &s))
            return st_fail(err, STRATA_E_FORMAT, "%s: key %s: the string is cut off or longer than %d bytes", path, k->name,
                           MAX_STRING);
        k->data = (const uint8_t *)s.data;
        k->count = k->bytes = s.size;
        return STRATA_OK;
    }
    if (!size)
        return st_fail(err, STRATA_E_FORMAT, "%s: key %s: unknown value type %ld", path, k->name, (long)type);
    if (left(c) < size)
        return st_fail(err, STRATA_E_FORMAT, "%s: key %s: the file ends inside its value", path, k->name);
    k->data = c->shard->map.data + c->at;
    k->bytes = size;
    c->at += size;
    return STRATA_OK;
}

static enum strata_result read_tensor(struct st_gguf *g, struct cursor *c, size_t index, struct st_gguf_tensor *t,
                                      struct strata_error *err)
{
    const char *path = c->shard->path;
    enum strata_result r = take_name(g, c, ST_GGUF_NAME_MAX, "tensor", index, &t->name, err);
    if (r)
        return r;
    if (!take(c, &t->n_dims, sizeof t->n_dims))
        return st_fail(err, STRATA_E_FORMAT, "%s: tensor %s: the file ends inside its record", path, t->name);
    if (t->n_dims < 1 || t->n_dims > ST_GGUF_DIMS)
        return st_fail(err, STRATA_E_FORMAT, "%s: tensor %s: %lu dimensions, not 1 to %d", path, t->name,
                       (unsigned long)t->n_dims, ST_GGUF_DIMS);
    int32_t type;
    for (int i = 0; i < ST_GGUF_DIMS; i++)
        t->ne[i] = 1;
    if (!take(c, t->ne, t->n_dims * sizeof t->ne[0]) || !take(c, &type, sizeof type) ||
        !take(c, &t->offset, sizeof t->offset))
        return st_fail(err, STRATA_E_FORMAT, "%s: tensor %s: the file ends inside its record", path, t->name);
    uint64_t elements = 1;
    for (int i = 0; i < ST_GGUF_DIMS; i++) {
        if (t->ne[i] == 0 || t->ne[i] > INT64_MAX)
            return st_fail(err, STRATA_E_FORMAT, "%s: tensor %s: dimension %d is %lld", path, t->name, i,
                           (long long)t->ne[i]);
        if (!st_mul_u64(elements, t->ne[i], &elements) || elements > INT64_MAX)
            return st_fail(err, STRATA_E_FORMAT, "%s: tensor %s: more than 2^63 elements", path, t->name);
    }
    const struct st_type_info *info = st_type_info(type);
    if (!info)
        return st_fail(err, STRATA_E_UNSUPPORTED, "%s: tensor %s: type %ld is unknown or removed", path, t->name,
                       (long)type);
    t->type = (uint32_t)type;
    if (t->ne[0] % info->block_elems)
        return st_fail(err, STRATA_E_FORMAT, "%s: tensor %s: rows of %llu elements do not hold whole blocks of %u (%s)", path,
                       t->name, (unsigned long long)t->ne[0], (unsigned)info->block_elems, info->name);
    if (!st_mul_u64(elements / info->block_elems, info->block_bytes, &t->bytes))
        return st_fail(err, STRATA_E_FORMAT, "%s: tensor %s: its size overflows", path, t->name);
    return STRATA_OK;
}

/* The data section begins where the records end, rounded up; makes offsets absolute and sets data. */
static enum strata_result place_tensors(struct st_gguf_shard *s, uint64_t records_end, struct st_gguf_tensor *tensors,
                                        struct strata_error *err)
{
    if (!s->n_tensors)
        return STRATA_OK;
    if (!st_align_u64(records_end, s->alignment, &s->data_start))
        return st_fail(err, STRATA_E_FORMAT, "%s: the data section has no place", s->path);
    for (size_t i = 0; i < s->n_tensors; i++) {
        struct st_gguf_tensor *t = &tensors[i];
        if (t->offset % s->alignment)
            return st_fail(err, STRATA_E_FORMAT, "%s: tensor %s: offset %llu is not a multiple of %llu", s->path, t->name,
                           (unsigned long long)t->offset, (unsigned long long)s->alignment);
        uint64_t end;
        if (!st_add_u64(t->offset, s->data_start, &t->offset) || !st_add_u64(t->offset, t->bytes, &end) ||
            end > s->map.size)
            return st_fail(err, STRATA_E_FORMAT, "%s: tensor %s: its %llu bytes end after the file's %llu", s->path,
                           t->name, (unsigned long long)t->bytes, (unsigned long long)s->map.size);
        t->data = s->map.data + t->offset;
    }
    return STRATA_OK;
}

static int by_offset(const void *a, const void *b)
{
    const struct st_gguf_tensor *x = *(const struct st_gguf_tensor *const *)a, *y = *(const struct st_gguf_tensor *const *)b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static enum strata_result check_overlap(const struct st_gguf_shard *s, const struct st_gguf_tensor *tensors,
                                        struct strata_error *err)
{
    if (s->n_tensors < 2)
        return STRATA_OK;
    const struct st_gguf_tensor **sorted = malloc(s->n_tensors * sizeof *sorted);
    if (!sorted)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory to check %zu tensors", s->path, s->n_tensors);
    for (size_t i = 0; i < s->n_tensors; i++)
        sorted[i] = &tensors[i];
    qsort(sorted, s->n_tensors, sizeof *sorted, by_offset);
    enum strata_result r = STRATA_OK;
    for (size_t i = 1; i < s->n_tensors && !r; i++)
        if (sorted[i - 1]->offset + sorted[i - 1]->bytes > sorted[i]->offset)
            r = st_fail(err, STRATA_E_FORMAT, "%s: tensors %s and %s overlap", s->path, sorted[i - 1]->name,
                        sorted[i]->name);
    free(sorted);
    return r;
}

static int key_order(const void *a, const void *b)
{
    return strcmp((*(const struct st_gguf_key *const *)a)->name, (*(const struct st_gguf_key *const *)b)->name);
}

static int tensor_order(const void *a, const void *b)
{
    return strcmp((*(const struct st_gguf_tensor *const *)a)->name, (*(const struct st_gguf_tensor *const *)b)->name);
}

/* Sorted pointers to keys; a name that stands twice is refused. *out may be NULL when there are none. */
static enum strata_result sort_keys(const char *path, const struct st_gguf_key *keys, size_t n,
                                    const struct st_gguf_key ***out, struct strata_error *err)
{
    *out = NULL;
    if (!n)
        return STRATA_OK;
    const struct st_gguf_key **sorted = malloc(n * sizeof *sorted);
    if (!sorted)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for %zu keys", path, n);
    for (size_t i = 0; i < n; i++)
        sorted[i] = &keys[i];
    qsort(sorted, n, sizeof *sorted, key_order);
    for (size_t i = 1; i < n; i++)
        if (!strcmp(sorted[i - 1]->name, sorted[i]->name)) {
            enum strata_result r = st_fail(err, STRATA_E_FORMAT, "%s: key %s stands twice", path, sorted[i]->name);
            free(sorted);
            return r;
        }
    *out = sorted;
    return STRATA_OK;
}

static const struct st_gguf_key *find_key(const struct st_gguf_key **sorted, size_t n, const char *name)
{
    struct st_gguf_key want = {.name = name};
    const struct st_gguf_key *p = &want;
    const struct st_gguf_key **hit = sorted ? bsearch(&p, sorted, n, sizeof *sorted, key_order) : NULL;
    return hit ? *hit : NULL;
}

/* What one file holds, before shards are joined. */
struct part {
    struct st_gguf_key *keys;
    const struct st_gguf_key **sorted;
    struct st_gguf_tensor *tensors;
};

static void free_part(struct part *p)
{
    free(p->keys);
    free(p->sorted);
    free(p->tensors);
    *p = (struct part){0};
}

static enum strata_result read_header(struct st_gguf_shard *s, struct cursor *c, struct strata_error *err)
{
    uint32_t magic = 0;
    uint64_t n_tensors, n_keys;
    if (s->map.size < 24)
        return st_fail(err, STRATA_E_FORMAT, "%s: %llu bytes are too few for a GGUF file", s->path,
                       (unsigned long long)s->map.size);
    take(c, &magic, sizeof magic);
    if (magic != 0x46554747)
        return st_fail(err, STRATA_E_FORMAT, "%s: not a GGUF file (the first four bytes are not GGUF)", s->path);
    take(c, &s->version, sizeof s->version);
    if (!(s->version & 0xffff) && s->version)
        return st_fail(err, STRATA_E_UNSUPPORTED, "%s: a big-endian GGUF file", s->path);
    if (s->version != 2 && s->version != 3)
        return st_fail(err, STRATA_E_UNSUPPORTED, "%s: GGUF version %lu, not 2 or 3", s->path, (unsigned long)s->version);
    take(c, &n_tensors, sizeof n_tensors);
    take(c, &n_keys, sizeof n_keys);
    if (n_keys > left(c) / MIN_KEY_RECORD)
        return st_fail(err, STRATA_E_FORMAT, "%s: %llu keys do not fit into the file", s->path, (unsigned long long)n_keys);
    if (n_tensors > left(c) / MIN_TENSOR_RECORD)
        return st_fail(err, STRATA_E_FORMAT, "%s: %llu tensors do not fit into the file", s->path,
                       (unsigned long long)n_tensors);
    if (n_keys > MAX_KEYS || n_tensors > MAX_TENSORS)
        return st_fail(err, STRATA_E_LIMIT, "%s: %llu keys and %llu tensors, more than the %d and %d allowed", s->path,
                       (unsigned long long)n_keys, (unsigned long long)n_tensors, MAX_KEYS, MAX_TENSORS);
    s->n_keys = (size_t)n_keys;
    s->n_tensors = (size_t)n_tensors;
    return STRATA_OK;
}

static enum strata_result read_alignment(struct st_gguf_shard *s, const struct part *p, struct strata_error *err)
{
    s->alignment = 32;
    const struct st_gguf_key *k = find_key(p->sorted, s->n_keys, "general.alignment");
    if (!k)
        return STRATA_OK;
    enum strata_result r = st_gguf_value_u64(s->path, k, &s->alignment, err);
    if (!r && (s->alignment == 0 || s->alignment & (s->alignment - 1) || s->alignment > MAX_ALIGNMENT))
        r = st_fail(err, STRATA_E_FORMAT, "%s: key general.alignment: %llu is not a power of two up to %d", s->path,
                    (unsigned long long)s->alignment, MAX_ALIGNMENT);
    return r;
}

static enum strata_result read_shard(struct st_gguf *g, size_t index, struct part *p, struct strata_error *err)
{
    struct st_gguf_shard *s = &g->shards[index];
    struct cursor c = {.shard = s};
    enum strata_result r = read_header(s, &c, err);
    if (r)
        return r;
    p->keys = calloc(s->n_keys + 1, sizeof *p->keys);
    p->tensors = calloc(s->n_tensors + 1, sizeof *p->tensors);
    if (!p->keys || !p->tensors)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for %zu keys and %zu tensors", s->path, s->n_keys,
                       s->n_tensors);
    for (size_t i = 0; i < s->n_keys && !r; i++)
        r = read_key(g, &c, i, &p->keys[i], err);
    if (!r)
        r = sort_keys(s->path, p->keys, s->n_keys, &p->sorted, err);
    if (!r)
        r = read_alignment(s, p, err);
    for (size_t i = 0; i < s->n_tensors && !r; i++) {
        p->tensors[i].shard = (uint32_t)index;
        r = read_tensor(g, &c, i, &p->tensors[i], err);
    }
    if (!r)
        r = place_tensors(s, c.at, p->tensors, err);
    if (!r)
        r = check_overlap(s, p->tensors, err);
    return r;
}

static enum strata_result split_key(const struct st_gguf_shard *s, const struct part *p, const char *name, uint64_t missing,
                                    uint64_t *out, struct strata_error *err)
{
    const struct st_gguf_key *k = find_key(p->sorted, s->n_keys, name);
    if (k)
        return st_gguf_value_u64(s->path, k, out, err);
    *out = missing;
    return STRATA_OK;
}

/* Takes the shard's number and the count from the end of a path, "-00002-of-00003.gguf"; false when it has no such end.
 * *stem is the length of what stands before. */
static bool split_name(const char *path, size_t *stem, unsigned *number, unsigned *count)
{
    static const char form[] = "-00000-of-00000.gguf";
    size_t n = strlen(path), m = sizeof form - 1;
    if (n <= m)
        return false;
    const char *end = path + n - m;
    for (size_t i = 0; i < m; i++)
        if (form[i] == '0' ? end[i] < '0' || end[i] > '9' : end[i] != form[i])
            return false;
    *stem = n - m;
    *number = (unsigned)strtoul(end + 1, NULL, 10);
    *count = (unsigned)strtoul(end + 10, NULL, 10);
    return true;
}

/* The opened file (shards[0], part in *given) turns out to be one of several: makes the list of shards, the given one in
 * its place, and reads the others. parts has one entry per shard afterwards. */
static enum strata_result read_other_shards(struct st_gguf *g, uint64_t count, struct part **parts, struct strata_error *err)
{
    struct st_gguf_shard first = g->shards[0];
    size_t stem;
    unsigned number, of;
    if (count > MAX_SHARDS)
        return st_fail(err, STRATA_E_LIMIT, "%s: key split.count: %llu shards, more than the %d allowed", first.path,
                       (unsigned long long)count, MAX_SHARDS);
    if (first.map.fd < 0)
        return st_fail(err, STRATA_E_UNSUPPORTED, "%s: one of %llu shards, and only one is in memory", first.path,
                       (unsigned long long)count);
    if (!split_name(first.path, &stem, &number, &of) || number < 1 || number > of || of != count)
        return st_fail(err, STRATA_E_FORMAT,
                       "%s: one of %llu shards, but its name does not end in -0000N-of-%05llu.gguf, which leads to the others",
                       first.path, (unsigned long long)count, (unsigned long long)count);
    struct st_gguf_shard *shards = calloc(count, sizeof *shards);
    struct part *all = calloc(count, sizeof *all);
    if (!shards || !all) {
        free(shards);
        free(all);
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for %llu shards", first.path, (unsigned long long)count);
    }
    for (size_t i = 0; i < count; i++)
        shards[i].map.fd = -1;
    shards[number - 1] = first;
    all[number - 1] = (*parts)[0];
    for (size_t i = 0; i < first.n_tensors; i++)
        all[number - 1].tensors[i].shard = number - 1;
    free(*parts);
    free(g->shards);
    *parts = all;
    g->shards = shards;
    g->n_shards = (size_t)count;
    enum strata_result r = STRATA_OK;
    for (size_t i = 0; i < count && !r; i++) {
        if (i == number - 1)
            continue;
        size_t size = strlen(first.path) + 1;
        shards[i].path = malloc(size);
        if (!shards[i].path)
            return st_fail(err, STRATA_E_MEMORY, "%s: no memory for a path", first.path);
        snprintf(shards[i].path, size, "%.*s-%05zu-of-%05u.gguf", (int)stem, first.path, i + 1, of);
        r = st_map_open(shards[i].path, &shards[i].map, err);
        if (!r)
            r = read_shard(g, i, &all[i], err);
    }
    for (size_t i = 0; i < count && !r; i++) {
        uint64_t no = 0, n = 0;
        r = split_key(&shards[i], &all[i], "split.no", i ? UINT64_MAX : 0, &no, err);
        if (!r)
            r = split_key(&shards[i], &all[i], "split.count", 0, &n, err);
        if (!r && (no != i || n != count))
            r = st_fail(err, STRATA_E_FORMAT, "%s: its keys say shard %lld of %llu, its name says %zu of %llu",
                        shards[i].path, (long long)no + 1, (unsigned long long)n, i + 1, (unsigned long long)count);
    }
    return r;
}

static enum strata_result join_parts(struct st_gguf *g, struct part *parts, struct strata_error *err)
{
    size_t n = 0;
    for (size_t i = 0; i < g->n_shards; i++)
        n += g->shards[i].n_tensors;
    g->path = g->shards[0].path;
    uint64_t total;
    enum strata_result r = split_key(&g->shards[0], &parts[0], "split.tensors.count", n, &total, err);
    if (r)
        return r;
    if (total != n)
        return st_fail(err, STRATA_E_FORMAT, "%s: key split.tensors.count: %llu tensors, but %zu shards hold %zu", g->path,
                       (unsigned long long)total, g->n_shards, n);
    g->keys = parts[0].keys;
    g->keys_by_name = parts[0].sorted;
    g->n_keys = g->shards[0].n_keys;
    parts[0].keys = NULL;
    parts[0].sorted = NULL;
    g->tensors = malloc((n + 1) * sizeof *g->tensors);
    g->tensors_by_name = malloc((n + 1) * sizeof *g->tensors_by_name);
    if (!g->tensors || !g->tensors_by_name)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for %zu tensors", g->path, n);
    for (size_t i = 0; i < g->n_shards; i++)
        for (size_t k = 0; k < g->shards[i].n_tensors; k++) {
            struct st_gguf_tensor *t = &g->tensors[g->n_tensors];
            *t = parts[i].tensors[k]; /* NOLINT(clang-analyzer-core.NullDereference): n_tensors is 0 */
            g->tensors_by_name[g->n_tensors++] = t;
            g->bytes += t->bytes;
        }
    qsort(g->tensors_by_name, n, sizeof *g->tensors_by_name, tensor_order);
    for (size_t i = 1; i < n; i++)
        if (!strcmp(g->tensors_by_name[i - 1]->name, g->tensors_by_name[i]->name))
            return st_fail(err, STRATA_E_FORMAT, "%s: tensor %s stands twice",
                           g->shards[g->tensors_by_name[i]->shard].path, g->tensors_by_name[i]->name);
    return STRATA_OK;
}

/* Takes over the map and, on failure too, closes it. */
static enum strata_result open_map(const char *path, struct st_map map, struct st_gguf **out, struct strata_error *err)
{
    struct st_gguf *g = calloc(1, sizeof *g);
    struct part *parts = calloc(1, sizeof *parts);
    struct st_gguf_shard *shard = calloc(1, sizeof *shard);
    char *copy = strdup(path);
    if (!g || !parts || !shard || !copy) {
        free(g);
        free(parts);
        free(shard);
        free(copy);
        if (map.fd >= 0)
            st_map_close(&map);
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory", path);
    }
    *shard = (struct st_gguf_shard){.path = copy, .map = map};
    g->shards = shard;
    g->n_shards = 1;
    uint64_t count = 0;
    enum strata_result r = read_shard(g, 0, &parts[0], err);
    if (!r)
        r = split_key(&g->shards[0], &parts[0], "split.count", 0, &count, err);
    if (!r && count > 1)
        r = read_other_shards(g, count, &parts, err);
    if (!r)
        r = join_parts(g, parts, err);
    for (size_t i = 0; i < g->n_shards; i++)
        free_part(&parts[i]);
    free(parts);
    if (r) {
        st_gguf_close(g);
        return r;
    }
    *out = g;
    return STRATA_OK;
}

enum strata_result st_gguf_open(const char *path, struct st_gguf **out, struct strata_error *err)
{
    struct st_map map;
    enum strata_result r = st_map_open(path, &map, err);
    return r ? r : open_map(path, map, out, err);
}

enum strata_result st_gguf_open_memory(const void *data, uint64_t size, const char *name, struct st_gguf **out,
                                       struct strata_error *err)
{
    return open_map(name, (struct st_map){.data = data, .size = size, .fd = -1}, out, err);
}

void st_gguf_close(struct st_gguf *g)
{
    if (!g)
        return;
    for (size_t i = 0; i < g->n_shards; i++) {
        free(g->shards[i].path);
        if (g->shards[i].map.fd >= 0)
            st_map_close(&g->shards[i].map);
    }
    while (g->names) {
        struct st_gguf_names *next = g->names->next;
        free(g->names);
        g->names = next;
    }
    free(g->shards);
    free(g->keys);
    free(g->keys_by_name);
    free(g->tensors);
    free(g->tensors_by_name);
    free(g);
}

const struct st_gguf_tensor *st_gguf_tensor(const struct st_gguf *g, const char *name)
{
    struct st_gguf_tensor want = {.name = name};
    const struct st_gguf_tensor *p = &want, **hit = NULL;
    if (g->n_tensors)
        hit = bsearch(&p, g->tensors_by_name, g->n_tensors, sizeof *g->tensors_by_name, tensor_order);
    return hit ? *hit : NULL;
}

const struct st_gguf_key *st_gguf_key(const struct st_gguf *g, const char *name)
{
    return find_key(g->keys_by_name, g->n_keys, name);
}

uint64_t st_gguf_elements(const struct st_gguf_tensor *t)
{
    return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
}

uint64_t st_gguf_row_bytes(const struct st_gguf_tensor *t)
{
    return t->bytes / (t->ne[1] * t->ne[2] * t->ne[3]);
}
