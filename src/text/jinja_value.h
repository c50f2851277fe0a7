/* Values of the template interpreter and the memory they live in. Nothing is freed before the end of a rendering.
 *
 * Failure is sticky: the first error sets failed, after which every function returns quickly with some harmless value;
 * loops and users of pointers look at it. */
#ifndef ST_TEXT_JINJA_VALUE_H
#define ST_TEXT_JINJA_VALUE_H

#include "text/jinja.h"

enum {
    ST_J_DEPTH = 1000,        /* nested evaluations, statements and conversions */
    ST_J_NESTING = 80,        /* brackets and blocks in the template's text */
    ST_J_CALLS = 60,          /* macro calls inside macro calls */
    ST_J_RANGE = 100000,      /* most numbers of a range() */
    ST_J_TEXT = 1 << 28,      /* bytes of one string */
    ST_J_TEMPLATE = 16 << 20, /* bytes of a template */
};

struct st_arena_chunk;

struct st_arena {
    struct st_arena_chunk *chunks;
    size_t used, room; /* in the newest chunk */
    size_t total, limit;
};

enum st_jkind {
    ST_J_UNDEFINED, /* of.hint names what is missing, or NULL */
    ST_J_NONE,
    ST_J_BOOL,
    ST_J_INT,
    ST_J_FLOAT,
    ST_J_STRING,
    ST_J_LIST, /* also tuples */
    ST_J_DICT,
    ST_J_NAMESPACE, /* of.dict */
    ST_J_MACRO,
    ST_J_FUNCTION, /* of.number: enum in jinja_eval.c */
    ST_J_METHOD,   /* a method of a value */
    ST_J_LOOP,
    ST_J_ABSENT, /* an argument that was not given; never seen by templates */
};

struct st_jvalue {
    enum st_jkind kind;
    union {
        const char *hint;
        bool flag;
        int64_t number;
        double real;
        struct st_jstring *string;
        struct st_jlist *list;
        struct st_jdict *dict;
        struct st_jmacro *macro;
        struct st_jmethod *method;
        struct st_jloop *loop;
    } of;
};

/* Text in UTF-8. user says whose the bytes are, byte by byte in marks (1: the request's) if they are mixed. A string
 * made of two long ones keeps them in left and right until its bytes are needed. */
struct st_jstring {
    size_t size;
    const char *data; /* NULL until the two halves have been put together */
    const uint8_t *marks;
    bool user;
    struct st_jstring *left, *right;
};

struct st_jlist {
    struct st_jvalue *items;
    size_t count, room;
    bool tuple;
    bool group; /* of the filter groupby: [0] is .grouper, [1] is .list */
};

struct st_jdict {
    struct st_jvalue *keys, *values; /* in the order of insertion */
    size_t count, room;
    uint32_t *index; /* open addressing over entries + 1, for larger dictionaries */
    size_t index_mask;
};

struct st_jmethod {
    struct st_jvalue self;
    int which; /* index of the method's name in jinja_method.c, or of a loop's method */
};

/* Text under construction, every byte with its mark. */
struct st_jbuffer {
    char *data;
    uint8_t *marks;
    size_t size, room;
};

/* Arguments of a call. */
struct st_jargs {
    const struct st_jvalue *values;
    size_t count;
    const char *const *names; /* of the last named of the values; the first count - named are positional */
    size_t named;
};

struct st_j {
    struct st_arena arena;
    uint64_t steps;
    int depth, calls;
    int line;
    bool failed;
    enum strata_result code;
    struct strata_error *err;
    time_t now;
    const struct st_jinja *program;
    struct st_jbuffer *out;
    struct st_jscope *scope;
    struct st_jvalue captured;
    int signal; /* a break or continue on its way to its loop */
};

/* Memory and failure. */
void *st_arena_alloc(struct st_arena *a, size_t size); /* NULL: limit or memory; zeroed */
void st_arena_free(struct st_arena *a);
void st_j_fail(struct st_j *j, enum strata_result code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void *st_j_alloc(struct st_j *j, size_t count, size_t size); /* NULL: failed */
bool st_j_work(struct st_j *j, uint64_t steps);              /* false: failed */
bool st_j_enter(struct st_j *j);                             /* false: failed; otherwise st_j_leave follows */
void st_j_leave(struct st_j *j);

/* Making values. */
static inline struct st_jvalue st_j_undefined(const char *hint)
{
    return (struct st_jvalue){.kind = ST_J_UNDEFINED, .of.hint = hint};
}
static inline struct st_jvalue st_j_none(void)
{
    return (struct st_jvalue){.kind = ST_J_NONE};
}
static inline struct st_jvalue st_j_bool(bool b)
{
    return (struct st_jvalue){.kind = ST_J_BOOL, .of.flag = b};
}
static inline struct st_jvalue st_j_int(int64_t i)
{
    return (struct st_jvalue){.kind = ST_J_INT, .of.number = i};
}
static inline struct st_jvalue st_j_real(double f)
{
    return (struct st_jvalue){.kind = ST_J_FLOAT, .of.real = f};
}
struct st_jvalue st_j_text(struct st_j *j, const char *text, size_t size, bool user); /* copies */
struct st_jvalue st_j_literal(struct st_j *j, const char *text); /* keeps the pointer; not the user's */
struct st_jvalue st_j_list(struct st_j *j, size_t room, bool tuple);
struct st_jvalue st_j_dict(struct st_j *j);
struct st_jvalue st_j_from_json(struct st_j *j, const json_t *json);
void st_j_append(struct st_j *j, struct st_jvalue list, struct st_jvalue item);

/* Dictionaries. Keys that cannot be hashed fail. */
struct st_jvalue *st_j_dict_find(struct st_j *j, const struct st_jdict *d, struct st_jvalue key); /* NULL: not there */
void st_j_dict_set(struct st_j *j, struct st_jdict *d, struct st_jvalue key, struct st_jvalue value);
bool st_j_dict_remove(struct st_j *j, struct st_jdict *d, struct st_jvalue key, struct st_jvalue *value);
struct st_jvalue st_j_dict_get(struct st_j *j, const struct st_jdict *d, const char *key); /* undefined if not there */

/* Strings. */
const char *st_j_data(struct st_j *j, struct st_jstring *s); /* never NULL; "" after failure */
struct st_jvalue st_j_concat(struct st_j *j, struct st_jvalue a, struct st_jvalue b);
struct st_jvalue st_j_part(struct st_j *j, struct st_jstring *s, size_t from, size_t to); /* bytes, clipped */
size_t st_j_length(struct st_j *j, struct st_jstring *s);                                 /* in characters */
size_t st_j_offset(struct st_j *j, struct st_jstring *s, size_t character);               /* byte where it begins */
bool st_j_is(const struct st_jvalue *v, const char *text); /* a flat string equal to text */
bool st_j_space(uint32_t cp);
/* The part of s without characters of set (NULL: white space) at its ends. side: -1 left, 1 right, 0 both. */
struct st_jvalue st_j_strip(struct st_j *j, struct st_jstring *s, struct st_jstring *set, int side);

/* Text under construction. */
void st_j_put(struct st_j *j, struct st_jbuffer *b, const char *text, size_t size, bool user);
void st_j_puts(struct st_j *j, struct st_jbuffer *b, const char *text);
void st_j_put_part(struct st_j *j, struct st_jbuffer *b, struct st_jstring *s, size_t from, size_t to);
void st_j_put_string(struct st_j *j, struct st_jbuffer *b, struct st_jstring *s);
void st_j_put_cp(struct st_j *j, struct st_jbuffer *b, uint32_t cp, bool user);
struct st_jvalue st_j_built(struct st_j *j, const struct st_jbuffer *b);

/* What Python does with values: bool(), str(), repr(), ==, <, in, iteration. */
bool st_j_true(struct st_j *j, struct st_jvalue v);
void st_j_put_value(struct st_j *j, struct st_jbuffer *b, struct st_jvalue v, bool repr);
struct st_jvalue st_j_str(struct st_j *j, struct st_jvalue v);
bool st_j_equal(struct st_j *j, struct st_jvalue a, struct st_jvalue b);
int st_j_compare(struct st_j *j, struct st_jvalue a, struct st_jvalue b); /* <0 0 >0; 2: not comparable (NaN) */
/* Sorts order, indices into keys, by their keys; stable. */
void st_j_sort(struct st_j *j, const struct st_jvalue *keys, size_t *order, size_t n);
bool st_j_in(struct st_j *j, struct st_jvalue item, struct st_jvalue container);
struct st_jvalue st_j_iterate(struct st_j *j, struct st_jvalue v); /* a list: the value itself or its elements */
const char *st_j_type(const struct st_jvalue *v);                  /* "str", for messages */
bool st_j_number(const struct st_jvalue *v, double *real);         /* int, float or bool */
bool st_j_integer(const struct st_jvalue *v, int64_t *number);     /* int or bool */
void st_j_format_real(double f, char out[40]);                     /* as Python's repr */
struct st_jvalue st_j_item(struct st_j *j, struct st_jvalue v, struct st_jvalue key);
struct st_jvalue st_j_slice(struct st_j *j, struct st_jvalue v, const struct st_jvalue part[3]);
struct st_jvalue st_j_binary(struct st_j *j, int op, struct st_jvalue a, struct st_jvalue b);

/* tojson: json.dumps with ensure_ascii=False by default. indent < 0: on one line. */
struct st_jdump {
    int indent;
    bool ascii, sort;
    struct st_jstring *item, *key; /* separators, NULL: Python's */
};
struct st_jvalue st_j_to_json(struct st_j *j, struct st_jvalue v, const struct st_jdump *how);

/* Named things; -1: unknown. */
int st_j_find_filter(const char *name, size_t size);
int st_j_find_test(const char *name, size_t size);
struct st_jvalue st_j_filter(struct st_j *j, int which, struct st_jvalue v, const struct st_jargs *args);
bool st_j_test(struct st_j *j, int which, struct st_jvalue v, const struct st_jargs *args);
/* The method of a value, undefined if it has none of that name. */
struct st_jvalue st_j_method(struct st_j *j, struct st_jvalue self, const char *name, size_t size);
struct st_jvalue st_j_call_method(struct st_j *j, const struct st_jmethod *m, const struct st_jargs *args);
/* Attribute (methods before keys) and item (keys before methods) as the environment looks them up. */
struct st_jvalue st_j_attribute(struct st_j *j, struct st_jvalue v, const char *name, size_t size);
struct st_jvalue st_j_subscript(struct st_j *j, struct st_jvalue v, struct st_jvalue key);
/* "%s" % values and "{}".format(values). */
struct st_jvalue st_j_percent(struct st_j *j, struct st_jstring *form, struct st_jvalue values);
struct st_jvalue st_j_format(struct st_j *j, struct st_jstring *form, const struct st_jargs *args);
/* Case mappings: 'u'pper, 'l'ower, 'c'apitalize, 't'itle (str.title), 'T' (the filter title). */
struct st_jvalue st_j_case(struct st_j *j, struct st_jstring *s, char how);
struct st_jvalue st_j_split_lines(struct st_j *j, struct st_jstring *s, bool keep_ends);
struct st_jvalue st_j_replace(struct st_j *j, struct st_jstring *s, struct st_jstring *from, struct st_jstring *to,
                              int64_t most);

/* Puts arguments into out[n] by position and name; names[i] of required ones begin with '!'. what: for messages. */
bool st_j_bind(struct st_j *j, const char *what, const struct st_jargs *args, const char *const *names, size_t n,
               struct st_jvalue *out);

/* Operators of st_j_binary. */
enum st_jop { ST_J_ADD, ST_J_SUB, ST_J_MUL, ST_J_DIV, ST_J_FLOORDIV, ST_J_MOD, ST_J_POW, ST_J_JOIN };

#endif
