/* Safetensors: reader and writer. */
#include "format/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/json.h"
#include "format/quant_half.h"

enum { MAX_HEADER = 100 << 20, MAX_INDEX = 100 << 20, MAX_NAME = 512, MAX_TENSORS = 1 << 20 };

static const struct {
    const char *name;
    size_t size;
} dtypes[ST_DTYPE_COUNT] = {
    [ST_DTYPE_BOOL] = {"BOOL", 1},       [ST_DTYPE_U8] = {"U8", 1},           [ST_DTYPE_I8] = {"I8", 1},
    [ST_DTYPE_F8_E4M3] = {"F8_E4M3", 1}, [ST_DTYPE_F8_E5M2] = {"F8_E5M2", 1}, [ST_DTYPE_U16] = {"U16", 2},
    [ST_DTYPE_I16] = {"I16", 2},         [ST_DTYPE_F16] = {"F16", 2},         [ST_DTYPE_BF16] = {"BF16", 2},
    [ST_DTYPE_U32] = {"U32", 4},         [ST_DTYPE_I32] = {"I32", 4},         [ST_DTYPE_F32] = {"F32", 4},
    [ST_DTYPE_U64] = {"U64", 8},         [ST_DTYPE_I64] = {"I64", 8},         [ST_DTYPE_F64] = {"F64", 8},
};

struct file {
    char *path;
    struct st_map map; /* fd -1: memory of the caller */
};

struct st_safetensors {
    struct file *files;
    size_t n_files;
    struct st_safetensor *tensors; /* sorted by name after every addition */
    size_t n_tensors;
};

const char *st_dtype_name(enum st_dtype type)
{
    return (unsigned)type < ST_DTYPE_COUNT ? dtypes[type].name : "unknown";
}

size_t st_dtype_size(enum st_dtype type)
{
    return (unsigned)type < ST_DTYPE_COUNT ? dtypes[type].size : 0;
}

enum strata_result st_safetensors_create(struct st_safetensors **out, struct strata_error *err)
{
    *out = calloc(1, sizeof **out);
    return *out ? STRATA_OK : st_fail(err, STRATA_E_MEMORY, "no memory for a set of tensors");
}

void st_safetensors_free(struct st_safetensors *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n_tensors; i++)
        free((char *)s->tensors[i].name);
    for (size_t i = 0; i < s->n_files; i++) {
        free(s->files[i].path);
        if (s->files[i].map.fd >= 0)
            st_map_close(&s->files[i].map);
    }
    free(s->tensors);
    free(s->files);
    free(s);
}

static enum strata_result check_name(const char *path, const char *name, struct strata_error *err)
{
    size_t n = strlen(name);
    bool good = n > 0 && n <= MAX_NAME;
    for (size_t i = 0; good && i < n; i++)
        good = name[i] >= 0x20 && name[i] <= 0x7e;
    if (good)
        return STRATA_OK;
    char shown[80];
    return st_fail(err, STRATA_E_FORMAT, "%s: tensor name '%s' is empty, longer than %d bytes or not printable ASCII", path,
                   st_printable(shown, sizeof shown, name, n), MAX_NAME);
}

static enum strata_result read_dtype(struct st_json object, enum st_dtype *out, struct strata_error *err)
{
    const char *name;
    enum strata_result r = st_json_text(object, "dtype", &name, err);
    if (r)
        return r;
    for (int i = 0; i < ST_DTYPE_COUNT; i++)
        if (!strcmp(dtypes[i].name, name)) {
            *out = (enum st_dtype)i;
            return STRATA_OK;
        }
    char shown[40];
    return st_fail(err, STRATA_E_UNSUPPORTED, "%s: unknown dtype '%s'", object.where,
                   st_printable(shown, sizeof shown, name, strlen(name)));
}

static enum strata_result read_shape(struct st_json object, struct st_safetensor *t, struct strata_error *err)
{
    const json_t *shape;
    enum strata_result r = st_json_array(object, "shape", &shape, err);
    if (r)
        return r;
    if (json_array_size(shape) > ST_SAFETENSOR_DIMS)
        return st_fail(err, STRATA_E_LIMIT, "%s: %zu dimensions, more than %d", object.where, json_array_size(shape),
                       ST_SAFETENSOR_DIMS);
    t->n_dims = (uint32_t)json_array_size(shape);
    t->elements = 1;
    for (uint32_t i = 0; i < t->n_dims; i++)
        if (!st_json_as_u64(json_array_get(shape, i), &t->shape[i]) ||
            !st_mul_u64(t->elements, t->shape[i], &t->elements))
            return st_fail(err, STRATA_E_FORMAT, "%s: dimension %lu is no size, or the product overflows", object.where,
                           (unsigned long)i);
    return STRATA_OK;
}

/* One member of the header. data: the bytes after the header. */
static enum strata_result read_tensor(const struct file *f, const uint8_t *data, uint64_t size, const char *name,
                                      const json_t *value, struct st_safetensor *t, struct strata_error *err)
{
    char where[MAX_NAME + 16];
    snprintf(where, sizeof where, "tensor %s", name);
    struct st_json object = {value, where};
    enum strata_result r = json_is_object(value) ? STRATA_OK : st_fail(err, STRATA_E_FORMAT, "%s: no object", where);
    if (!r)
        r = read_dtype(object, &t->dtype, err);
    if (!r)
        r = read_shape(object, t, err);
    const json_t *range = NULL;
    if (!r)
        r = st_json_array(object, "data_offsets", &range, err);
    uint64_t from = 0, to = 0;
    if (!r && (json_array_size(range) != 2 || !st_json_as_u64(json_array_get(range, 0), &from) ||
               !st_json_as_u64(json_array_get(range, 1), &to)))
        r = st_fail(err, STRATA_E_FORMAT, "%s: data_offsets are not two integers", where);
    if (!r && (from > to || to > size))
        r = st_fail(err, STRATA_E_FORMAT, "%s: bytes %llu to %llu do not lie within the %llu bytes of data", where,
                    (unsigned long long)from, (unsigned long long)to, (unsigned long long)size);
    uint64_t bytes = 0;
    if (!r && (!st_mul_u64(t->elements, dtypes[t->dtype].size, &bytes) || bytes != to - from))
        r = st_fail(err, STRATA_E_FORMAT, "%s: %llu elements of %s do not make %llu bytes", where,
                    (unsigned long long)t->elements, dtypes[t->dtype].name, (unsigned long long)(to - from));
    if (r)
        return st_fail_in(err, r, "%s", f->path);
    t->bytes = bytes;
    t->data = data + from;
    t->path = f->path;
    return STRATA_OK;
}

static int by_place(const void *a, const void *b)
{
    const struct st_safetensor *x = a, *y = b;
    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct st_safetensor *)a)->name, ((const struct st_safetensor *)b)->name);
}

static enum strata_result check_places(struct st_safetensor *t, size_t n, struct strata_error *err)
{
    qsort(t, n, sizeof *t, by_place);
    for (size_t i = 1; i < n; i++)
        if (t[i - 1].bytes && t[i].bytes && t[i - 1].data + t[i - 1].bytes > t[i].data)
            return st_fail(err, STRATA_E_FORMAT, "%s: tensors %s and %s overlap", t[i].path, t[i - 1].name, t[i].name);
    return STRATA_OK;
}

static enum strata_result check_unique(const struct st_safetensors *s, struct strata_error *err)
{
    qsort(s->tensors, s->n_tensors, sizeof *s->tensors, by_name);
    for (size_t i = 1; i < s->n_tensors; i++)
        if (!strcmp(s->tensors[i - 1].name, s->tensors[i].name))
            return st_fail(err, STRATA_E_FORMAT, "tensor %s stands in %s and in %s", s->tensors[i].name,
                           s->tensors[i - 1].path, s->tensors[i].path);
    return STRATA_OK;
}

/* Appends the members of a parsed header. */
static enum strata_result add_tensors(struct st_safetensors *s, const struct file *f, const uint8_t *data, uint64_t size,
                                      json_t *header, struct strata_error *err)
{
    size_t n = json_object_size(header), first = s->n_tensors;
    if (n > MAX_TENSORS - first)
        return st_fail(err, STRATA_E_LIMIT, "%s: %zu tensors, more than the %d allowed", f->path, n, MAX_TENSORS);
    struct st_safetensor *all = realloc(s->tensors, (first + n + 1) * sizeof *all);
    if (!all)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for %zu tensors", f->path, n);
    s->tensors = all;
    const char *name;
    json_t *value;
    json_object_foreach(header, name, value) {
        if (!strcmp(name, "__metadata__"))
            continue;
        struct st_safetensor t = {0};
        enum strata_result r = check_name(f->path, name, err);
        if (!r)
            r = read_tensor(f, data, size, name, value, &t, err);
        if (!r && !(t.name = strdup(name)))
            r = st_fail(err, STRATA_E_MEMORY, "%s: no memory for names", f->path);
        if (r)
            return r;
        s->tensors[s->n_tensors++] = t;
    }
    enum strata_result r = check_places(s->tensors + first, s->n_tensors - first, err);
    return r ? r : check_unique(s, err);
}

static enum strata_result read_header(struct st_safetensors *s, const struct file *f, struct strata_error *err)
{
    uint64_t n = 0;
    if (f->map.size >= sizeof n)
        memcpy(&n, f->map.data, sizeof n);
    if (f->map.size < sizeof n || n > f->map.size - sizeof n || n < 2)
        return st_fail(err, STRATA_E_FORMAT, "%s: not a safetensors file: its %llu bytes do not hold a header of %llu",
                       f->path, (unsigned long long)f->map.size, (unsigned long long)n);
    if (n > MAX_HEADER)
        return st_fail(err, STRATA_E_LIMIT, "%s: a header of %llu bytes, more than the %d allowed", f->path,
                       (unsigned long long)n, MAX_HEADER);
    const char *text = (const char *)f->map.data + sizeof n;
    if (text[0] != '{')
        return st_fail(err, STRATA_E_FORMAT, "%s: not a safetensors file: its header is no JSON object", f->path);
    json_t *header;
    enum strata_result r = st_json_parse(text, (size_t)n, f->path, &header, err);
    if (r)
        return r;
    r = add_tensors(s, f, f->map.data + sizeof n + n, f->map.size - sizeof n - n, header, err);
    json_decref(header);
    return r;
}

/* The set owns the map from here on, on failure too. */
static enum strata_result add_file(struct st_safetensors *s, const char *path, struct st_map map, struct strata_error *err)
{
    struct file *files = realloc(s->files, (s->n_files + 1) * sizeof *files);
    char *copy = strdup(path);
    if (files)
        s->files = files;
    if (!files || !copy) {
        free(copy);
        if (map.fd >= 0)
            st_map_close(&map);
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory", path);
    }
    struct file *f = &s->files[s->n_files++];
    *f = (struct file){.path = copy, .map = map};
    return read_header(s, f, err);
}

enum strata_result st_safetensors_add(struct st_safetensors *s, const char *path, struct strata_error *err)
{
    struct st_map map;
    enum strata_result r = st_map_open(path, &map, err);
    return r ? r : add_file(s, path, map, err);
}

enum strata_result st_safetensors_add_memory(struct st_safetensors *s, const void *data, uint64_t size, const char *name,
                                             struct strata_error *err)
{
    return add_file(s, name, (struct st_map){.data = data, .size = size, .fd = -1}, err);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

bool st_safetensors_has_file(const struct st_safetensors *s, const char *name)
{
    for (size_t i = 0; i < s->n_files; i++)
        if (!strcmp(base_name(s->files[i].path), name))
            return true;
    return false;
}

static enum strata_result add_mapped_file(struct st_safetensors *s, const char *index, const char *name,
                                          struct strata_error *err)
{
    char shown[80];
    size_t n = strlen(name), dir = (size_t)(base_name(index) - index);
    if (n == 0 || n > 255 || name[0] == '.' || strchr(name, '/'))
        return st_fail(err, STRATA_E_FORMAT, "%s: '%s' is no plain file name", index,
                       st_printable(shown, sizeof shown, name, n));
    if (st_safetensors_has_file(s, name))
        return STRATA_OK;
    char *path = malloc(dir + n + 1);
    if (!path)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for a path", index);
    memcpy(path, index, dir);
    memcpy(path + dir, name, n + 1);
    enum strata_result r = st_safetensors_add(s, path, err);
    free(path);
    return r;
}

enum strata_result st_safetensors_add_index(struct st_safetensors *s, const char *path, struct strata_error *err)
{
    json_t *root;
    const json_t *map = NULL;
    enum strata_result r = st_json_read(path, MAX_INDEX, &root, err);
    if (r)
        return r;
    r = st_json_object((struct st_json){root, path}, "weight_map", &map, err);
    const char *name;
    json_t *file;
    json_object_foreach((json_t *)map, name, file) {
        if (!r && !json_is_string(file))
            r = st_fail(err, STRATA_E_FORMAT, "%s: weight_map has a member that is no file name", path);
        if (!r)
            r = add_mapped_file(s, path, json_string_value(file), err);
        if (r)
            break;
    }
    if (!r)
        json_object_foreach((json_t *)map, name, file) {
            char shown[80];
            const struct st_safetensor *t = st_safetensors_find(s, name);
            st_printable(shown, sizeof shown, name, strlen(name));
            if (!t || strcmp(base_name(t->path), json_string_value(file))) {
                r = st_fail(err, STRATA_E_FORMAT, "%s: tensor %s is not in the file that the index names", path, shown);
                break;
            }
        }
    json_decref(root);
    return r;
}

size_t st_safetensors_count(const struct st_safetensors *s)
{
    return s->n_tensors;
}

const struct st_safetensor *st_safetensors_at(const struct st_safetensors *s, size_t index)
{
    return &s->tensors[index];
}

const struct st_safetensor *st_safetensors_find(const struct st_safetensors *s, const char *name)
{
    struct st_safetensor want = {.name = name};
    return s->n_tensors ? bsearch(&want, s->tensors, s->n_tensors, sizeof want, by_name) : NULL;
}

bool st_safetensor_floats(const struct st_safetensor *t, uint64_t from, size_t n, float *out)
{
    const uint8_t *p = t->data + from * dtypes[t->dtype].size;
    double wide;
    switch (t->dtype) {
    case ST_DTYPE_F32:
        memcpy(out, p, n * sizeof *out);
        return true;
    case ST_DTYPE_BF16:
        for (size_t i = 0; i < n; i++)
            out[i] = st_bf16_to_f32(st_load16(p + 2 * i));
        return true;
    case ST_DTYPE_F16:
        for (size_t i = 0; i < n; i++)
            out[i] = st_f16_to_f32(st_load16(p + 2 * i));
        return true;
    case ST_DTYPE_F64:
        for (size_t i = 0; i < n; i++) {
            memcpy(&wide, p + 8 * i, sizeof wide);
            out[i] = (float)wide;
        }
        return true;
    default:
        return false;
    }
}

/* The header's JSON text; *data_bytes is what follows it. */
static char *header_text(const struct st_safetensor_out *tensors, size_t count, size_t *size)
{
    json_t *root = json_object();
    uint64_t at = 0;
    bool good = root != NULL;
    for (size_t i = 0; good && i < count; i++) {
        const struct st_safetensor_out *t = &tensors[i];
        json_t *shape = json_array();
        uint64_t bytes = dtypes[t->dtype].size;
        for (uint32_t k = 0; k < t->n_dims; k++) {
            bytes *= t->shape[k];
            json_array_append_new(shape, json_integer((json_int_t)t->shape[k]));
        }
        json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtypes[t->dtype].name, "shape", shape, "data_offsets",
                                  (json_int_t)at, (json_int_t)(at + bytes));
        good = entry && !json_object_set_new(root, t->name, entry);
        at += bytes;
    }
    char *text = good ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    *size = text ? strlen(text) : 0;
    return text;
}

enum strata_result st_safetensors_save(const char *path, const struct st_safetensor_out *tensors, size_t count,
                                       struct strata_error *err)
{
    static const char spaces[8] = "        ";
    size_t size;
    char *text = header_text(tensors, count, &size);
    if (!text)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for the header", path);
    struct st_out out;
    enum strata_result r = st_out_open(path, &out, err);
    size_t gap = (8 - size % 8) % 8; /* the data begins at a multiple of 8 */
    uint64_t n = size + gap;
    if (!r)
        r = st_out_write(&out, &n, sizeof n, err);
    if (!r)
        r = st_out_write(&out, text, size, err);
    if (!r)
        r = st_out_write(&out, spaces, gap, err);
    for (size_t i = 0; i < count && !r; i++) {
        uint64_t bytes = dtypes[tensors[i].dtype].size;
        for (uint32_t k = 0; k < tensors[i].n_dims; k++)
            bytes *= tensors[i].shape[k];
        r = st_out_write(&out, tensors[i].data, (size_t)bytes, err);
    }
    if (!r)
        r = st_out_commit(&out, err);
    st_out_abort(&out);
    free(text);
    return r;
}
