/* GGUF writer: two growing byte buffers hold the finished records of keys and tensors; saving streams them and the data. */
#include "format/gguf_write.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "format/gguf_value.h"
#include "format/quant.h"

enum { ALIGNMENT = 32 };

struct buffer {
    uint8_t *data;
    size_t size, capacity;
};

struct pending {
    char name[ST_GGUF_NAME_MAX + 1];
    uint64_t bytes;
    st_gguf_fill *fill;
    void *user;
};

struct st_gguf_writer {
    struct buffer keys, records;
    char **key_names;
    size_t n_keys, key_capacity;
    struct pending *tensors;
    size_t n_tensors, tensor_capacity;
    uint64_t offset; /* of the next tensor in the data section */
    enum strata_result failed;
    struct strata_error why;
};

enum strata_result st_gguf_writer_create(struct st_gguf_writer **out, struct strata_error *err)
{
    *out = calloc(1, sizeof **out);
    return *out ? STRATA_OK : st_fail(err, STRATA_E_MEMORY, "no memory for a GGUF writer");
}

void st_gguf_writer_free(struct st_gguf_writer *w)
{
    if (!w)
        return;
    for (size_t i = 0; i < w->n_keys; i++)
        free(w->key_names[i]);
    free(w->key_names);
    free(w->keys.data);
    free(w->records.data);
    free(w->tensors);
    free(w);
}

static void out_of_memory(struct st_gguf_writer *w)
{
    w->failed = st_fail(&w->why, STRATA_E_MEMORY, "no memory for the head of a GGUF file");
}

/* Makes room for one more item; false when there is no memory. */
static bool grow(void **items, size_t used, size_t *capacity, size_t item)
{
    if (used < *capacity)
        return true;
    size_t n = *capacity ? *capacity * 2 : 64;
    void *p = realloc(*items, n * item);
    if (!p)
        return false;
    *items = p;
    *capacity = n;
    return true;
}

static void put(struct st_gguf_writer *w, struct buffer *b, const void *data, size_t size)
{
    if (w->failed || !size)
        return;
    if (size > b->capacity - b->size) {
        size_t n = b->capacity * 2 > b->size + size ? b->capacity * 2 : b->size + size;
        uint8_t *p = realloc(b->data, n);
        if (!p) {
            out_of_memory(w);
            return;
        }
        b->data = p;
        b->capacity = n;
    }
    memcpy(b->data + b->size, data, size);
    b->size += size;
}

static void put_text(struct st_gguf_writer *w, struct buffer *b, const char *text, size_t size)
{
    uint64_t n = size;
    put(w, b, &n, sizeof n);
    put(w, b, text, size);
}

/* Name and type of a record; the value follows. False when the writer has failed. */
static bool put_key(struct st_gguf_writer *w, const char *name, enum st_gguf_type type)
{
    if (w->failed)
        return false;
    size_t size = strlen(name);
    if (size == 0 || size > UINT16_MAX) {
        w->failed = st_fail(&w->why, STRATA_E_ARGUMENT, "a key's name has %zu bytes", size);
        return false;
    }
    char *copy = strdup(name);
    if (!copy || !grow((void **)&w->key_names, w->n_keys, &w->key_capacity, sizeof *w->key_names)) {
        free(copy);
        out_of_memory(w);
        return false;
    }
    w->key_names[w->n_keys++] = copy;
    uint32_t id = type;
    put_text(w, &w->keys, name, size);
    put(w, &w->keys, &id, sizeof id);
    return !w->failed;
}

static void set_scalar(struct st_gguf_writer *w, const char *name, enum st_gguf_type type, const void *value)
{
    if (put_key(w, name, type))
        put(w, &w->keys, value, st_gguf_scalar_size(type));
}

void st_gguf_set_u16(struct st_gguf_writer *w, const char *name, uint16_t value)
{
    set_scalar(w, name, ST_GGUF_U16, &value);
}

void st_gguf_set_u32(struct st_gguf_writer *w, const char *name, uint32_t value)
{
    set_scalar(w, name, ST_GGUF_U32, &value);
}

void st_gguf_set_i32(struct st_gguf_writer *w, const char *name, int32_t value)
{
    set_scalar(w, name, ST_GGUF_I32, &value);
}

void st_gguf_set_u64(struct st_gguf_writer *w, const char *name, uint64_t value)
{
    set_scalar(w, name, ST_GGUF_U64, &value);
}

void st_gguf_set_f32(struct st_gguf_writer *w, const char *name, float value)
{
    set_scalar(w, name, ST_GGUF_F32, &value);
}

void st_gguf_set_bool(struct st_gguf_writer *w, const char *name, bool value)
{
    uint8_t byte = value;
    set_scalar(w, name, ST_GGUF_BOOL, &byte);
}

void st_gguf_set_string(struct st_gguf_writer *w, const char *name, const char *text, size_t size)
{
    if (put_key(w, name, ST_GGUF_STRING))
        put_text(w, &w->keys, text, size);
}

static void put_array_head(struct st_gguf_writer *w, enum st_gguf_type element, uint64_t count)
{
    uint32_t id = element;
    put(w, &w->keys, &id, sizeof id);
    put(w, &w->keys, &count, sizeof count);
}

void st_gguf_set_array(struct st_gguf_writer *w, const char *name, enum st_gguf_type element, const void *values,
                       size_t count)
{
    if (!put_key(w, name, ST_GGUF_ARRAY))
        return;
    put_array_head(w, element, count);
    put(w, &w->keys, values, count * st_gguf_scalar_size(element));
}

void st_gguf_set_strings(struct st_gguf_writer *w, const char *name, const struct st_bytes *texts, size_t count)
{
    if (!put_key(w, name, ST_GGUF_ARRAY))
        return;
    put_array_head(w, ST_GGUF_STRING, count);
    for (size_t i = 0; i < count; i++)
        put_text(w, &w->keys, texts[i].data, texts[i].size);
}

void st_gguf_set_copy(struct st_gguf_writer *w, const struct st_gguf_key *key)
{
    if (!put_key(w, key->name, key->type))
        return;
    if (key->type == ST_GGUF_ARRAY)
        put_array_head(w, key->element, key->count);
    else if (key->type == ST_GGUF_STRING)
        put(w, &w->keys, &key->bytes, sizeof key->bytes);
    put(w, &w->keys, key->data, key->bytes);
}

/* Bytes of the data; failure when type and shape do not fit. */
static enum strata_result tensor_bytes(const char *name, uint32_t type, uint32_t n_dims, const uint64_t *ne,
                                       uint64_t *bytes, struct strata_error *err)
{
    const struct st_type_info *info = st_type_info((int)type);
    size_t size = strlen(name);
    if (size == 0 || size > ST_GGUF_NAME_MAX)
        return st_fail(err, STRATA_E_ARGUMENT, "tensor %s: the name has %zu bytes, not 1 to %d", name, size,
                       ST_GGUF_NAME_MAX);
    if (!info || n_dims < 1 || n_dims > ST_GGUF_DIMS)
        return st_fail(err, STRATA_E_ARGUMENT, "tensor %s: type %lu with %lu dimensions cannot be written", name,
                       (unsigned long)type, (unsigned long)n_dims);
    uint64_t rows = 1;
    for (uint32_t i = 1; i < n_dims; i++)
        if (!st_mul_u64(rows, ne[i], &rows))
            return st_fail(err, STRATA_E_ARGUMENT, "tensor %s: its size overflows", name);
    if (!rows || !ne[0] || !st_row_bytes((int)type, ne[0], bytes) || !st_mul_u64(*bytes, rows, bytes))
        return st_fail(err, STRATA_E_ARGUMENT, "tensor %s: rows of %llu elements cannot be %s", name,
                       (unsigned long long)ne[0], info->name);
    return STRATA_OK;
}

void st_gguf_add_tensor(struct st_gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims, const uint64_t *ne,
                        st_gguf_fill *fill, void *user)
{
    if (w->failed)
        return;
    struct pending t = {.fill = fill, .user = user};
    w->failed = tensor_bytes(name, type, n_dims, ne, &t.bytes, &w->why);
    if (w->failed)
        return;
    uint64_t next;
    if (!st_align_u64(t.bytes, ALIGNMENT, &next) || !st_add_u64(w->offset, next, &next) || next > INT64_MAX) {
        w->failed = st_fail(&w->why, STRATA_E_ARGUMENT, "tensor %s: the file's size overflows", name);
        return;
    }
    memcpy(t.name, name, strlen(name) + 1);
    if (!grow((void **)&w->tensors, w->n_tensors, &w->tensor_capacity, sizeof *w->tensors)) {
        out_of_memory(w);
        return;
    }
    w->tensors[w->n_tensors++] = t;
    put_text(w, &w->records, name, strlen(name));
    put(w, &w->records, &n_dims, sizeof n_dims);
    put(w, &w->records, ne, n_dims * sizeof *ne);
    put(w, &w->records, &type, sizeof type);
    put(w, &w->records, &w->offset, sizeof w->offset);
    w->offset = next;
}

static int name_order(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Sorts the names; one that stands twice is refused. */
static enum strata_result check_unique(const char **names, size_t n, const char *what, struct strata_error *err)
{
    qsort(names, n, sizeof *names, name_order);
    for (size_t i = 1; i < n; i++)
        if (!strcmp(names[i - 1], names[i]))
            return st_fail(err, STRATA_E_ARGUMENT, "%s %s stands twice", what, names[i]);
    return STRATA_OK;
}

static enum strata_result check_names(const struct st_gguf_writer *w, struct strata_error *err)
{
    size_t n = w->n_tensors > w->n_keys ? w->n_tensors : w->n_keys;
    const char **names = malloc((n + 1) * sizeof *names);
    if (!names)
        return st_fail(err, STRATA_E_MEMORY, "no memory for %zu names", n);
    for (size_t i = 0; i < w->n_keys; i++)
        names[i] = w->key_names[i];
    enum strata_result r = check_unique(names, w->n_keys, "key", err);
    for (size_t i = 0; i < w->n_tensors; i++)
        names[i] = w->tensors[i].name;
    if (!r)
        r = check_unique(names, w->n_tensors, "tensor", err);
    free(names);
    return r;
}

static uint64_t head_size(const struct st_gguf_writer *w)
{
    return 24 + w->keys.size + w->records.size;
}

static uint64_t padded(uint64_t n)
{
    return (n + ALIGNMENT - 1) & ~(uint64_t)(ALIGNMENT - 1);
}

uint64_t st_gguf_writer_size(const struct st_gguf_writer *w)
{
    return w->n_tensors ? padded(head_size(w)) + w->offset : head_size(w);
}

static enum strata_result pad(struct st_out *out, struct strata_error *err)
{
    static const uint8_t zeros[ALIGNMENT];
    return st_out_write(out, zeros, (size_t)(padded(out->written) - out->written), err);
}

static enum strata_result write_tensor(struct st_out *out, const struct pending *t, struct strata_error *err)
{
    uint64_t from = out->written;
    enum strata_result r = t->fill ? t->fill(t->user, out, err) : st_out_skip(out, t->bytes, err);
    if (r)
        return st_fail_in(err, r, "tensor %s", t->name);
    if (out->written - from != t->bytes)
        return st_fail(err, STRATA_E_INTERNAL, "tensor %s: %llu bytes were written instead of %llu", t->name,
                       (unsigned long long)(out->written - from), (unsigned long long)t->bytes);
    return pad(out, err);
}

enum strata_result st_gguf_writer_save(struct st_gguf_writer *w, const char *path, struct strata_error *err)
{
    if (w->failed)
        return st_fail(err, w->failed, "%s: %s", path, w->why.text);
    enum strata_result r = check_names(w, err);
    if (r)
        return st_fail_in(err, r, "%s", path);
    struct st_out out;
    r = st_out_open(path, &out, err);
    if (r)
        return r;
    const uint32_t version = 3;
    const uint64_t counts[2] = {w->n_tensors, w->n_keys};
    r = st_out_write(&out, "GGUF", 4, err);
    if (!r)
        r = st_out_write(&out, &version, sizeof version, err);
    if (!r)
        r = st_out_write(&out, counts, sizeof counts, err);
    if (!r)
        r = st_out_write(&out, w->keys.data, w->keys.size, err);
    if (!r)
        r = st_out_write(&out, w->records.data, w->records.size, err);
    if (!r && w->n_tensors)
        r = pad(&out, err);
    for (size_t i = 0; i < w->n_tensors && !r; i++)
        r = write_tensor(&out, &w->tensors[i], err);
    if (!r)
        r = st_out_commit(&out, err);
    st_out_abort(&out);
    return r;
}
