/* JSON Schema to grammar: the texts that a rule takes are JSON values that the schema accepts.
 *
 * What is understood: type (one or several), enum, const; properties, required, additionalProperties; items, prefixItems,
 * minItems, maxItems; minLength, maxLength, pattern, format; minimum, maximum, exclusiveMinimum, exclusiveMaximum; anyOf, oneOf of
 * branches that provably exclude each other, allOf that can be merged, $ref into the same document. Annotations (title, description,
 * default, examples and the like) are skipped. Any other keyword is STRATA_E_UNSUPPORTED with its name and place: nothing is
 * ignored, and what the rule takes is never more than the schema accepts. It is less in these ways:
 *   - members come in the order of the schema, each once; others only where additionalProperties is stated, or nothing is said
 *     about members at all, and their names are written without escapes;
 *   - a schema without type is one for the types that its keywords speak of, for any type if there are none;
 *   - blanks: at most one between tokens, or a line break with up to 40 blanks of indentation;
 *   - numbers have at most 15 digits and an exponent of two, between bounds no exponent.
 * Two forms: plain JSON, and JSON that stands between tags and therefore never has "</" in a string (written "<\/"). */
#ifndef ST_TEXT_SCHEMA_H
#define ST_TEXT_SCHEMA_H

#include <jansson.h>

#include "text/sketch.h"

struct st_schema;

enum strata_result st_schema_create(struct st_net *net, bool tagged, struct st_schema **out, struct strata_error *err);
void st_schema_free(struct st_schema *s);

/* The rule for the values of a schema. root: where $ref begins, usually the schema itself. where: names it in messages. Schemas
 * must live as long as s. Schemas that were turned before have the same rule. */
enum strata_result st_schema_rule(struct st_schema *s, const json_t *schema, const json_t *root, const char *where,
                                  uint32_t *rule, struct strata_error *err);
/* A rule for the text of an argument in <parameter> tags as st_output reads it (toolcall.h), up to and including the end tag: strings
 * as they are, everything else as JSON. Only for the tagged form. */
enum strata_result st_schema_parameter(struct st_schema *s, const json_t *schema, const json_t *root, const char *where,
                                       uint32_t *rule, struct strata_error *err);
/* Rules that every schema stands on: "value", "object", "string", "ws" and so on. */
uint32_t st_schema_builtin(const struct st_schema *s, const char *name);

#endif
