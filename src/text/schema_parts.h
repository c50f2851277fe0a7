/* What the files of the schema reader share. */
#ifndef ST_TEXT_SCHEMA_PARTS_H
#define ST_TEXT_SCHEMA_PARTS_H

#include "text/json_type.h"
#include "text/schema.h"

enum { ST_SCHEMA_WHERE = 200, ST_SCHEMA_MEMBERS = 4096 /* most of an object */ };

/* A schema that has a rule, which may not be made yet. */
struct st_schema_entry {
    const json_t *schema, *root;
    uint32_t rule;
    char where[ST_SCHEMA_WHERE];
};

struct st_schema {
    struct st_net *net;
    struct st_gbnf_names *names; /* of the rules that every schema stands on */
    bool tagged;
    st_set_fn *set; /* characters inside quotes */
    char rules[4096]; /* text of the rules that every schema stands on */
    struct st_schema_entry *entries;
    size_t count, room, done;
    json_t *owned; /* array of schemas that were made by merging */
    size_t merged; /* members and elements that merging has copied */
    struct strata_error *err;
    enum strata_result failed;
};

/* Remembers the first error: "WHERE: message". Returns ST_NET_RETURN. */
uint32_t st_schema_bad(struct st_schema *s, const char *where, enum strata_result code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
bool st_schema_good(const struct st_schema *s);

/* Reads the rules that every schema stands on. */
enum strata_result st_schema_builtins(struct st_schema *s, struct strata_error *err);

/* Two keywords that bound a count (0 and ST_REPEAT_FOREVER where they are missing). False: there are none. */
bool st_schema_counts(struct st_schema *s, const json_t *schema, const char *least, const char *most, const char *where,
                      uint32_t *min, uint32_t *max);

/* The rule of a schema that is part of another one; it is made later. where: the other one's place, step: the way from there. */
uint32_t st_schema_part(struct st_schema *s, const json_t *schema, const json_t *root, const char *where, const char *step);

/* Nodes for objects and arrays. */
uint32_t st_schema_object(struct st_schema *s, const struct st_schema_entry *e, uint32_t next);
uint32_t st_schema_array(struct st_schema *s, const struct st_schema_entry *e, uint32_t next);
/* A JSON text that is written in one way only, but for a blank behind ',' and ':'. */
uint32_t st_schema_literal(struct st_schema *s, const char *text, size_t size, uint32_t next);
/* A value as JSON text, numbers as short as they can be; freed by the caller, NULL without memory. */
char *st_schema_dump(const struct st_schema *s, const json_t *value);

/* Merges the members of schemas that must all hold into a new schema owned by s; NULL with s failed. */
const json_t *st_schema_merge(struct st_schema *s, const struct st_schema_entry *e, const json_t *const *list, size_t count);
/* Does no value belong to both? As far as types, constants and required members show it. */
bool st_schema_disjoint(const json_t *a, const json_t *b, const json_t *root);
/* What $ref means, NULL if it is not in the document. Follows chains, up to a limit. */
const json_t *st_schema_resolve(const json_t *schema, const json_t *root);
/* Is this keyword one that says nothing about values? */
bool st_schema_annotation(const char *keyword);
/* The types that "type" lists; ST_TYPE_ALL without it, 0 if it is wrong. */
int st_schema_types(const json_t *schema);

/* Nodes for the values of one type, by the keywords of the schema. */
uint32_t st_schema_integer(struct st_schema *s, const json_t *schema, const char *where, uint32_t next);
uint32_t st_schema_number(struct st_schema *s, const json_t *schema, const char *where, uint32_t next);
/* Between quotes, or raw: without them and without '<', where anything else says what is allowed. */
uint32_t st_schema_string_body(struct st_schema *s, const json_t *schema, const char *where, bool raw, uint32_t next);

/* Characters inside the quotes of JSON, plain and tagged ('<' is written \u003c), and raw ones but '<'. */
uint32_t st_json_set(struct st_net *net, const struct st_range *ranges, size_t count, uint32_t next);
uint32_t st_json_set_tagged(struct st_net *net, const struct st_range *ranges, size_t count, uint32_t next);
uint32_t st_raw_set(struct st_net *net, const struct st_range *ranges, size_t count, uint32_t next);

/* A regular expression as in JSON Schema (found anywhere unless ^ and $ say otherwise), as a rule: literals, ., classes, \d \w \s
 * and their opposites (within ASCII), groups, |, repetitions, ^ at the beginning and $ at the end of an alternative. Anything else is
 * refused in the net. */
uint32_t st_pattern_rule(struct st_net *net, st_set_fn *set, const char *pattern, size_t size, const char *where);

#endif
