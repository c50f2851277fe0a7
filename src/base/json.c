/* Reading JSON files and members. */
#include "base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

enum strata_result st_json_parse(const char *text, size_t size, const char *name, json_t **out, struct strata_error *err)
{
    json_error_t e;
    json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &e);
    if (!root) {
        char shown[160];
        st_printable(shown, sizeof shown, e.text, strnlen(e.text, sizeof e.text));
        return st_fail(err, STRATA_E_FORMAT, "%s: JSON, line %d: %s", name, e.line, shown);
    }
    *out = root;
    return STRATA_OK;
}

enum strata_result st_json_read(const char *path, uint64_t limit, json_t **out, struct strata_error *err)
{
    char *text;
    size_t size;
    enum strata_result r = st_read_file(path, limit, &text, &size, err);
    if (r)
        return r;
    r = st_json_parse(text, size, path, out, err);
    free(text);
    return r;
}

const json_t *st_json_get(struct st_json object, const char *name)
{
    const json_t *v = json_object_get(object.value, name);
    return json_is_null(v) ? NULL : v;
}

static const char *kind_name(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a float";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a bool";
    case JSON_NULL:
        break;
    }
    return "null";
}

static enum strata_result wrong_kind(struct st_json object, const char *name, const char *expected, struct strata_error *err)
{
    const json_t *v = st_json_get(object, name);
    if (!v)
        return st_fail(err, STRATA_E_FORMAT, "%s: %s is missing", object.where, name);
    return st_fail(err, STRATA_E_FORMAT, "%s: %s is %s where %s is expected", object.where, name, kind_name(v), expected);
}

bool st_json_as_u64(const json_t *v, uint64_t *out)
{
    if (json_is_integer(v) && json_integer_value(v) >= 0) {
        *out = (uint64_t)json_integer_value(v);
        return true;
    }
    double d = json_is_real(v) ? json_real_value(v) : -1;
    if (!(d >= 0 && d <= 0x1p53 && d == floor(d)))
        return false;
    *out = (uint64_t)d;
    return true;
}

enum strata_result st_json_u64(struct st_json object, const char *name, uint64_t *out, struct strata_error *err)
{
    const json_t *v = st_json_get(object, name);
    return v && st_json_as_u64(v, out) ? STRATA_OK : wrong_kind(object, name, "an integer from 0 on", err);
}

enum strata_result st_json_f64(struct st_json object, const char *name, double *out, struct strata_error *err)
{
    const json_t *v = st_json_get(object, name);
    if (!v || !json_is_number(v) || !isfinite(json_number_value(v)))
        return wrong_kind(object, name, "a number", err);
    *out = json_number_value(v);
    return STRATA_OK;
}

enum strata_result st_json_bool(struct st_json object, const char *name, bool *out, struct strata_error *err)
{
    const json_t *v = st_json_get(object, name);
    if (!v || !json_is_boolean(v))
        return wrong_kind(object, name, "a bool", err);
    *out = json_is_true(v);
    return STRATA_OK;
}

enum strata_result st_json_text(struct st_json object, const char *name, const char **out, struct strata_error *err)
{
    const json_t *v = st_json_get(object, name);
    if (!v || !json_is_string(v))
        return wrong_kind(object, name, "a string", err);
    *out = json_string_value(v);
    return STRATA_OK;
}

enum strata_result st_json_object(struct st_json object, const char *name, const json_t **out, struct strata_error *err)
{
    const json_t *v = st_json_get(object, name);
    if (!v || !json_is_object(v))
        return wrong_kind(object, name, "an object", err);
    *out = v;
    return STRATA_OK;
}

enum strata_result st_json_array(struct st_json object, const char *name, const json_t **out, struct strata_error *err)
{
    const json_t *v = st_json_get(object, name);
    if (!v || !json_is_array(v))
        return wrong_kind(object, name, "an array", err);
    *out = v;
    return STRATA_OK;
}

enum strata_result st_json_u64_or(struct st_json object, const char *name, uint64_t missing, uint64_t *out,
                                  struct strata_error *err)
{
    *out = missing;
    return st_json_get(object, name) ? st_json_u64(object, name, out, err) : STRATA_OK;
}

enum strata_result st_json_f64_or(struct st_json object, const char *name, double missing, double *out,
                                  struct strata_error *err)
{
    *out = missing;
    return st_json_get(object, name) ? st_json_f64(object, name, out, err) : STRATA_OK;
}

enum strata_result st_json_bool_or(struct st_json object, const char *name, bool missing, bool *out,
                                   struct strata_error *err)
{
    *out = missing;
    return st_json_get(object, name) ? st_json_bool(object, name, out, err) : STRATA_OK;
}

enum strata_result st_json_text_or(struct st_json object, const char *name, const char *missing, const char **out,
                                   struct strata_error *err)
{
    *out = missing;
    return st_json_get(object, name) ? st_json_text(object, name, out, err) : STRATA_OK;
}
