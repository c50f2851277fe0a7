/* The types of JSON values as JSON Schema names them, as bits. */
#ifndef ST_TEXT_JSON_TYPE_H
#define ST_TEXT_JSON_TYPE_H

#include <jansson.h>

enum {
    ST_TYPE_STRING = 1,
    ST_TYPE_NUMBER = 2,
    ST_TYPE_INTEGER = 4,
    ST_TYPE_BOOLEAN = 8,
    ST_TYPE_NULL = 16,
    ST_TYPE_OBJECT = 32,
    ST_TYPE_ARRAY = 64,
    ST_TYPE_ALL = 127,
};

/* The types that a value belongs to: an integer is a number too. */
int st_type_of(const json_t *value);
/* The types that a JSON string names: "number" names integers too. 0: it is no such name. */
int st_type_named(const json_t *name);

#endif
