/* Rules that are read from left to right (GBNF, regular expressions), turned into nets, which are built from right to left.
 * Errors are the net's (st_net_good). Groups are rules of their own. */
#ifndef ST_TEXT_SKETCH_H
#define ST_TEXT_SKETCH_H

#include "text/grammar.h"

enum { ST_REPEAT_MAX = 100000 };

struct st_sketch;

/* How one character of a set is written: st_net_set, or with JSON's escapes. */
typedef uint32_t st_set_fn(struct st_net *net, const struct st_range *ranges, size_t count, uint32_t next);

struct st_sketch *st_sketch_create(struct st_net *net, st_set_fn *set);
void st_sketch_free(struct st_sketch *s);

/* A rule begins; what follows belongs to it, up to st_sketch_end, which defines it. */
void st_sketch_begin(struct st_sketch *s, uint32_t rule);
void st_sketch_end(struct st_sketch *s);

void st_sketch_set(struct st_sketch *s, const struct st_range *ranges, size_t count);
/* These characters in a row, repeated as a whole. An empty one is possible. */
void st_sketch_text(struct st_sketch *s, const uint32_t *code_points, size_t count);
void st_sketch_call(struct st_sketch *s, uint32_t rule);
void st_sketch_or(struct st_sketch *s);
void st_sketch_open(struct st_sketch *s);
/* False: no group is open. */
bool st_sketch_close(struct st_sketch *s);
/* Groups that are open. */
size_t st_sketch_depth(const struct st_sketch *s);
/* Repeats what stands before. False: there is nothing, or it is repeated already. */
bool st_sketch_repeat(struct st_sketch *s, uint32_t min, uint32_t max);

/* GBNF: llama.cpp's notation (its grammars/README.md). A text of rules "name ::= ...": "literals" and [classes] with \n \t \r \\ \"
 * \[ \] \xHH \uHHHH \UHHHHHHHH, . for any character, rule names, ( groups ), | between alternatives, * + ? {m} {m,} {,n} {m,n}
 * behind an item, # to the end of the line for comments. A rule ends with its line unless a group is open or the next line begins
 * with |. Defines the rules in the net; *root gets the rule named "root". STRATA_E_FORMAT names the line and what is wrong. */
enum strata_result st_gbnf_read(struct st_net *net, const char *text, size_t size, uint32_t *root, struct strata_error *err);
/* The same, with all names to look up instead of root's; text must live as long as the names. */
struct st_gbnf_names;
enum strata_result st_gbnf_read_names(struct st_net *net, const char *text, size_t size, struct st_gbnf_names **names,
                                      struct strata_error *err);
/* ST_NET_NOWHERE: there is none. */
uint32_t st_gbnf_find(const struct st_gbnf_names *names, const char *name);
void st_gbnf_free(struct st_gbnf_names *names);

#endif
