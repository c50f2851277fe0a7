/* Reading JSON files and members with messages that say where they stand. All of it is for untrusted input: sizes are
 * limited, the parser's depth is bounded by the library, duplicate members are refused. */
#ifndef ST_BASE_JSON_H
#define ST_BASE_JSON_H

#include <jansson.h>

#include "base/result.h"

/* A JSON value with the words that name it in messages ("config.json", "config.json: text_config"). */
struct st_json {
    const json_t *value;
    const char *where;
};

/* Parses text; *out is released with json_decref. name stands for the text in messages. */
enum strata_result st_json_parse(const char *text, size_t size, const char *name, json_t **out, struct strata_error *err);
/* The same for a file of at most limit bytes. */
enum strata_result st_json_read(const char *path, uint64_t limit, json_t **out, struct strata_error *err);

/* Member of an object; NULL when it is missing or null. */
const json_t *st_json_get(struct st_json object, const char *name);

/* Required members of an object. Missing ones and those of the wrong kind are STRATA_E_FORMAT and leave out untouched. An
 * integer may be written as a float of integral value, a float as an integer. Strings live as long as the value. */
enum strata_result st_json_u64(struct st_json object, const char *name, uint64_t *out, struct strata_error *err);
enum strata_result st_json_f64(struct st_json object, const char *name, double *out, struct strata_error *err);
enum strata_result st_json_bool(struct st_json object, const char *name, bool *out, struct strata_error *err);
enum strata_result st_json_text(struct st_json object, const char *name, const char **out, struct strata_error *err);
enum strata_result st_json_object(struct st_json object, const char *name, const json_t **out, struct strata_error *err);
enum strata_result st_json_array(struct st_json object, const char *name, const json_t **out, struct strata_error *err);

/* Optional members: the default when missing or null, still an error when of the wrong kind. */
enum strata_result st_json_u64_or(struct st_json object, const char *name, uint64_t missing, uint64_t *out,
                                  struct strata_error *err);
enum strata_result st_json_f64_or(struct st_json object, const char *name, double missing, double *out,
                                  struct strata_error *err);
enum strata_result st_json_bool_or(struct st_json object, const char *name, bool missing, bool *out,
                                   struct strata_error *err);
enum strata_result st_json_text_or(struct st_json object, const char *name, const char *missing, const char **out,
                                   struct strata_error *err);

/* An integer value within 0 .. 2^64-1 (jansson itself holds up to 2^63-1), or a float of integral value up to 2^53. */
bool st_json_as_u64(const json_t *value, uint64_t *out);

#endif
