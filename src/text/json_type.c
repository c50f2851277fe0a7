/* See json_type.h. */
#include "text/json_type.h"

#include <string.h>

int st_type_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_STRING: return ST_TYPE_STRING;
    case JSON_INTEGER: return ST_TYPE_INTEGER | ST_TYPE_NUMBER;
    case JSON_REAL: return ST_TYPE_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE: return ST_TYPE_BOOLEAN;
    case JSON_NULL: return ST_TYPE_NULL;
    case JSON_OBJECT: return ST_TYPE_OBJECT;
    case JSON_ARRAY: return ST_TYPE_ARRAY;
    }
    return 0;
}

int st_type_named(const json_t *name)
{
    static const struct {
        const char *name;
        int type;
    } types[] = {{"string", ST_TYPE_STRING},   {"number", ST_TYPE_NUMBER | ST_TYPE_INTEGER},
                 {"integer", ST_TYPE_INTEGER}, {"boolean", ST_TYPE_BOOLEAN},
                 {"null", ST_TYPE_NULL},       {"object", ST_TYPE_OBJECT},
                 {"array", ST_TYPE_ARRAY}};
    for (size_t i = 0; json_is_string(name) && i < sizeof types / sizeof types[0]; i++)
        if (strcmp(json_string_value(name), types[i].name) == 0)
            return types[i].type;
    return 0;
}
