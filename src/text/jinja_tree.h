/* Template interpreter: tokens, the syntax tree, the compiled program. */
#ifndef ST_TEXT_JINJA_TREE_H
#define ST_TEXT_JINJA_TREE_H

#include "text/jinja_value.h"

enum st_jtoken_kind {
    ST_T_END,
    ST_T_DATA, /* text between tags */
    ST_T_VARIABLE_BEGIN,
    ST_T_VARIABLE_END,
    ST_T_BLOCK_BEGIN,
    ST_T_BLOCK_END,
    ST_T_NAME,
    ST_T_STRING, /* text without its quotes, escapes as written */
    ST_T_INTEGER,
    ST_T_FLOAT,
    ST_T_OPERATOR, /* op: its character, or first | second << 8 */
};

struct st_jtoken {
    enum st_jtoken_kind kind;
    int line, op;
    const char *text;
    size_t size;
};

#define ST_OP2(a, b) ((a) | (b) << 8)

/* Cuts a template (newlines already normalised) into tokens; the last is ST_T_END. NULL: failed. */
struct st_jtoken *st_j_lex(struct st_j *j, const char *text, size_t size);

enum st_jnode_kind {
    /* expressions */
    ST_N_CONST,    /* value */
    ST_N_NAME,     /* id */
    ST_N_LIST,     /* list */
    ST_N_TUPLE,    /* list */
    ST_N_DICT,     /* list: key, value, key, value */
    ST_N_ATTR,     /* a . name */
    ST_N_ITEM,     /* a [ b ] */
    ST_N_SLICE,    /* a [ list[0] : list[1] : list[2] ], entries may be NULL */
    ST_N_CALL,     /* a ( arguments ) */
    ST_N_FILTER,   /* a | which ( arguments ) */
    ST_N_TEST,     /* a is which ( arguments ) */
    ST_N_CAPTURED, /* what a set, filter or call block has rendered */
    ST_N_NEGATE,   /* - a */
    ST_N_PLUS,     /* + a */
    ST_N_NOT,
    ST_N_AND,
    ST_N_OR,
    ST_N_BINARY,  /* a which b */
    ST_N_COMPARE, /* a, then list[i] with the operators ops[i] */
    ST_N_COND,    /* b if a else c, c may be NULL */
    ST_N_NSREF,   /* target only: the attribute name of the namespace in id */
    /* statements */
    ST_N_BLOCK,        /* list */
    ST_N_DATA,         /* value */
    ST_N_OUTPUT,       /* a */
    ST_N_IF,           /* list: condition, body, condition, body; c: else */
    ST_N_FOR,          /* targets a in b; c: body; list[0]: filter, list[1]: else, may be NULL */
    ST_N_SET,          /* target a = b */
    ST_N_SET_BLOCK,    /* target a = the rendered c, through the filters b (may be NULL) */
    ST_N_MACRO,        /* id, params, c: body */
    ST_N_CALL_BLOCK,   /* call a with a macro of params and body c */
    ST_N_FILTER_BLOCK, /* filters b of body c */
    ST_N_WITH,         /* list: target, value, target, value; c: body */
    ST_N_BREAK,
    ST_N_CONTINUE,
};

struct st_jnode {
    enum st_jnode_kind kind;
    int line, which;
    int id; /* of a variable */
    struct st_jnode *a, *b, *c;
    struct st_jnode *
        *list; /* children; of calls, filters and tests: the arguments; of macros: the defaults, may be NULL */
    size_t count;
    const char **names; /* of arguments: NULL positional, "*", "**" or the keyword */
    int *ids;           /* of parameters; of comparisons: operators */
    const char *name;
    size_t name_size;
    bool varargs, kwargs, caller; /* of macros: the body reads that name */
    struct st_jvalue value;
};

/* Variables known before any name of the template, in the order of their ids. */
enum {
    ST_ID_LOOP,
    ST_ID_CALLER,
    ST_ID_VARARGS,
    ST_ID_KWARGS,
    ST_ID_FUNCTIONS, /* from here on: functions */
    ST_ID_RANGE = ST_ID_FUNCTIONS,
    ST_ID_DICT,
    ST_ID_NAMESPACE,
    ST_ID_RAISE_EXCEPTION,
    ST_ID_STRFTIME_NOW,
    ST_ID_COUNT,
};

/* Comparison operators in ids of ST_N_COMPARE. */
enum { ST_C_EQ, ST_C_NE, ST_C_LT, ST_C_LE, ST_C_GT, ST_C_GE, ST_C_IN, ST_C_NOT_IN };

struct st_jinja {
    struct st_arena arena;
    struct st_jnode *root;
    struct st_jdict *ids; /* variable name -> id */
    const char **names;   /* by id */
    size_t name_count, name_room;
};

#endif
