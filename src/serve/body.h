/* Bodies of requests: JSON with limits, and members of a stated type. Every complaint names the member in the way
 * clients show it ("messages[2].content"), and null always counts as absent. */
#ifndef ST_SERVE_BODY_H
#define ST_SERVE_BODY_H

#include <jansson.h>

#include "base/result.h"

/* Longest name of a member in a message; longer ones end in dots. */
enum { ST_PATH = 128 };

/* What is wrong with a request, in the terms of the HTTP APIs. */
struct st_api_error {
    int status;          /* HTTP status */
    const char *code;    /* "context_length_exceeded" or NULL; static */
    char param[ST_PATH]; /* member at fault, "" if none */
    char message[600];
    int retry_after; /* seconds, 0: no header */
};

/* Fills the error (status 400 and so on) and returns false, so that "return st_refuse(...)" reads as one step.
 * param may be NULL. */
bool st_refuse(struct st_api_error *error, int status, const char *code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* Parses an object. Deeper than 64 levels, a NUL character in a string, text after the end and the like are 400. */
json_t *st_body_parse(const char *text, size_t size, struct st_api_error *error);

/* Each returns false with the error filled if the member has another type or is out of range, and leaves *out untouched
 * if it is absent or null. path is the prefix for the message ("" or "messages[1]"). */
bool st_body_bool(const json_t *object, const char *path, const char *name, bool *out, struct st_api_error *error);
bool st_body_number(const json_t *object, const char *path, const char *name, double min, double max, double *out,
                    struct st_api_error *error);
bool st_body_integer(const json_t *object, const char *path, const char *name, int64_t min, int64_t max, int64_t *out,
                     struct st_api_error *error);
/* *out is owned by the object. */
bool st_body_string(const json_t *object, const char *path, const char *name, const char **out,
                    struct st_api_error *error);
/* type: JSON_OBJECT or JSON_ARRAY. *out is borrowed. */
bool st_body_container(const json_t *object, const char *path, const char *name, json_type type, json_t **out,
                       struct st_api_error *error);

/* "object", "array", "string", ... */
const char *st_body_type_name(const json_t *value);

/* "path.name", or name alone for an empty path; returns dst. */
char *st_body_path(char *dst, size_t size, const char *path, const char *name);

#endif
