/* Grammars as nets of nodes over bytes. A rule is a part of the net that begins at its start node and ends at the RETURN
 * node; a CALL node goes through another rule and on behind it, so rules may contain themselves, but not begin with
 * themselves. Character sets are taken apart into the bytes of UTF-8.
 *
 * A net is built from its end: every function below makes what comes before a node that exists ("next") and returns where
 * that begins. Functions that fail remember the first error and return ST_NET_RETURN; st_net_finish reports it. Sizes are
 * bounded: at most ST_NET_NODES nodes and as many rules, which also bounds the time, linear in both. */
#ifndef ST_TEXT_GRAMMAR_H
#define ST_TEXT_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/result.h"

enum {
    ST_NET_RETURN = 0,      /* the node that ends every rule */
    ST_NET_NODES = 1 << 18, /* most nodes, and most edges of BYTES nodes */
    ST_NET_RANGES = 4096,   /* most ranges of a character set */
    ST_CODE_POINT_MAX = 0x10FFFF,
    ST_NET_FAR = 256, /* bytes, see struct st_node */
};

#define ST_REPEAT_FOREVER UINT32_MAX

enum st_node_kind { ST_NODE_RETURN, ST_NODE_BYTES, ST_NODE_SPLIT, ST_NODE_CALL };

struct st_node {
    enum st_node_kind kind;
    uint32_t a; /* BYTES: first edge; SPLIT: one way; CALL: rule */
    uint32_t b; /* BYTES: number of edges; SPLIT: other way; CALL: node behind the rule */
    uint32_t alike; /* a node behind which the same texts of up to ST_NET_FAR bytes can come, 0: none is known. Of long repetitions
                     * only the last places differ from each other */
};

/* Bytes lo .. hi lead to a node; edges of a node ascend and do not overlap. */
struct st_edge {
    uint8_t lo, hi;
    uint32_t next;
};

/* Code points lo .. hi. */
struct st_range {
    uint32_t lo, hi;
};

struct st_net;

enum strata_result st_net_create(struct st_net **out, struct strata_error *err);
void st_net_free(struct st_net *net);
/* Room is left and nothing has failed: loops over a caller's numbers ask. */
bool st_net_good(const struct st_net *net);
/* Remembers an error unless there is one. */
void st_net_refuse(struct st_net *net, enum strata_result code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* A new rule, to be defined once. name (copied) stands for it in messages. */
uint32_t st_net_rule(struct st_net *net, const char *name, size_t size);
const char *st_net_rule_name(const struct st_net *net, uint32_t rule);
void st_net_define(struct st_net *net, uint32_t rule, uint32_t start);
bool st_net_defined(const struct st_net *net, uint32_t rule);

uint32_t st_net_call(struct st_net *net, uint32_t rule, uint32_t next);
/* Either way; a way of ST_NET_NOWHERE is left out. */
#define ST_NET_NOWHERE UINT32_MAX
uint32_t st_net_split(struct st_net *net, uint32_t a, uint32_t b);
/* A node that leads to next or, once st_net_loop_body was called, into the body, which leads back to it. */
uint32_t st_net_loop(struct st_net *net, uint32_t next);
void st_net_loop_body(struct st_net *net, uint32_t loop, uint32_t body);
/* min to max times what once makes before next; with more than ST_NET_FAR times, once should make a CALL node. */
uint32_t st_net_repeat(struct st_net *net, uint32_t min, uint32_t max, uint32_t (*once)(void *user, uint32_t next), void *user,
                       uint32_t next);
uint32_t st_net_bytes(struct st_net *net, const struct st_edge *edges, size_t count);
/* These bytes, one after the other. */
uint32_t st_net_text(struct st_net *net, const char *text, size_t size, uint32_t next);
/* One character of the set as UTF-8. Ranges in any order; surrogates are left out. */
uint32_t st_net_set(struct st_net *net, const struct st_range *ranges, size_t count, uint32_t next);
/* One of the texts, as a tree of their common beginnings. */
uint32_t st_net_choice(struct st_net *net, const char *const *texts, const size_t *sizes, size_t count, uint32_t next);
/* Any bytes up to and including the first place where end (1 .. 63 bytes) occurs. not_first: bytes that it cannot begin with. */
uint32_t st_net_until(struct st_net *net, const char *end, const char *not_first, uint32_t next);

/* Sorts ranges and joins those that touch; returns how many are left. */
size_t st_ranges_sort(struct st_range *ranges, size_t count);
/* Everything else; out has room for count + 1. ranges are sorted. */
size_t st_ranges_invert(const struct st_range *ranges, size_t count, struct st_range *out);

/* A finished grammar: read-only, usable from any thread. */
struct st_grammar {
    struct st_node *nodes;
    bool *alive; /* [nodes] the rule's end can be reached from here */
    size_t node_count;
    struct st_edge *edges;
    uint32_t *starts; /* by rule */
    size_t rule_count;
    uint32_t start;         /* node of the root rule */
    uint8_t class_of[256];  /* bytes that no edge tells apart have one class */
    uint8_t class_byte[256]; /* a byte of each class */
    int classes;
};

/* Checks and finishes. STRATA_E_FORMAT: a rule is not defined, begins with itself, or the root rule can never end; the
 * message names it. STRATA_E_LIMIT: too large. The net can only be freed afterwards. */
enum strata_result st_net_finish(struct st_net *net, uint32_t root, struct st_grammar **out, struct strata_error *err);
void st_grammar_free(struct st_grammar *g);

#endif
