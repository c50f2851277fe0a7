/* Bodies of requests: see body.h. */
#include "serve/body.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { DEPTH_LIMIT = 64 };

bool st_refuse(struct st_api_error *error, int status, const char *code, const char *param, const char *fmt, ...)
{
    memset(error, 0, sizeof *error);
    error->status = status;
    error->code = code;
    snprintf(error->param, sizeof error->param, "%s", param ? param : "");
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(error->message, sizeof error->message, fmt, ap);
    va_end(ap);
    if (status == 429 || status == 503)
        error->retry_after = 1;
    return false;
}

/* The parser recurses per level, so depth is bounded before it runs. */
static bool shallow(const char *text, size_t size)
{
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < size; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > DEPTH_LIMIT)
                return false;
        } else if (c == '}' || c == ']') {
            depth--;
        }
    }
    return true;
}

json_t *st_body_parse(const char *text, size_t size, struct st_api_error *error)
{
    if (size == 0) {
        st_refuse(error, 400, NULL, NULL, "the request has no body; a JSON object is expected");
        return NULL;
    }
    if (!shallow(text, size)) {
        st_refuse(error, 400, NULL, NULL, "the JSON body is nested deeper than %d levels", DEPTH_LIMIT);
        return NULL;
    }
    json_error_t why;
    json_t *value = json_loadb(text, size, JSON_DECODE_ANY, &why);
    if (!value) {
        char shown[160];
        st_printable(shown, sizeof shown, why.text, strlen(why.text));
        st_refuse(error, 400, NULL, NULL, "the body is not valid JSON: line %d, column %d: %s", why.line, why.column,
                  shown);
        return NULL;
    }
    if (!json_is_object(value)) {
        st_refuse(error, 400, NULL, NULL, "the body must be a JSON object, not %s", st_body_type_name(value));
        json_decref(value);
        return NULL;
    }
    return value;
}

const char *st_body_type_name(const json_t *value)
{
    switch (value ? json_typeof(value) : JSON_NULL) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    case JSON_NULL: break;
    }
    return "null";
}

char *st_body_path(char *dst, size_t size, const char *path, const char *name)
{
    int used = snprintf(dst, size, "%s%s%s", path, *path ? "." : "", name);
    if (used < 0 || (size_t)used >= size)
        memcpy(dst + size - 4, "...", 4);
    return dst;
}

static bool wrong(const char *path, const char *name, const char *expected, const json_t *value,
                  struct st_api_error *error)
{
    char where[ST_PATH];
    st_body_path(where, sizeof where, path, name);
    return st_refuse(error, 400, NULL, where, "%s: expected %s, got %s", where, expected, st_body_type_name(value));
}

static const json_t *member(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

bool st_body_bool(const json_t *object, const char *path, const char *name, bool *out, struct st_api_error *error)
{
    const json_t *value = member(object, name);
    if (!value)
        return true;
    if (!json_is_boolean(value))
        return wrong(path, name, "a boolean", value, error);
    *out = json_is_true(value);
    return true;
}

bool st_body_number(const json_t *object, const char *path, const char *name, double min, double max, double *out,
                    struct st_api_error *error)
{
    const json_t *value = member(object, name);
    if (!value)
        return true;
    if (!json_is_number(value))
        return wrong(path, name, "a number", value, error);
    double v = json_number_value(value);
    if (!isfinite(v) || v < min || v > max) {
        char where[ST_PATH];
        st_body_path(where, sizeof where, path, name);
        return st_refuse(error, 400, NULL, where, "%s: %g is not between %g and %g", where, v, min, max);
    }
    *out = v;
    return true;
}

bool st_body_integer(const json_t *object, const char *path, const char *name, int64_t min, int64_t max, int64_t *out,
                     struct st_api_error *error)
{
    const json_t *value = member(object, name);
    if (!value)
        return true;
    int64_t v;
    if (json_is_integer(value)) {
        v = json_integer_value(value);
    } else if (json_is_real(value) && json_real_value(value) == floor(json_real_value(value)) &&
               fabs(json_real_value(value)) < 9e15) {
        v = (int64_t)json_real_value(value); /* some clients write 100.0 */
    } else {
        return wrong(path, name, "an integer", value, error);
    }
    if (v < min || v > max) {
        char where[ST_PATH];
        st_body_path(where, sizeof where, path, name);
        return st_refuse(error, 400, NULL, where, "%s: %lld is not between %lld and %lld", where, (long long)v,
                         (long long)min, (long long)max);
    }
    *out = v;
    return true;
}

bool st_body_string(const json_t *object, const char *path, const char *name, const char **out,
                    struct st_api_error *error)
{
    const json_t *value = member(object, name);
    if (!value)
        return true;
    if (!json_is_string(value))
        return wrong(path, name, "a string", value, error);
    *out = json_string_value(value);
    return true;
}

bool st_body_container(const json_t *object, const char *path, const char *name, json_type type, json_t **out,
                       struct st_api_error *error)
{
    json_t *value = json_object_get(object, name);
    if (!value || json_is_null(value))
        return true;
    if (json_typeof(value) != type)
        return wrong(path, name, type == JSON_OBJECT ? "an object" : "an array", value, error);
    *out = value;
    return true;
}
