/* Template interpreter: tokens to syntax tree. Recursive descent with a counted depth. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/jinja_tree.h"

struct parser {
    struct st_j *j;
    struct st_jinja *program;
    const struct st_jtoken *at;
    int nesting, loops;
    struct st_jnode *macro; /* the innermost macro around, to note which special names it reads */
};

static struct st_jnode *expression(struct parser *p, bool conditional);
static struct st_jnode *unary(struct parser *p, bool filters);
static struct st_jnode *body(struct parser *p, const char *const *ends);

/* ---- tokens ---- */

static bool is_op(const struct parser *p, int op)
{
    return p->at->kind == ST_T_OPERATOR && p->at->op == op;
}

static bool is_name(const struct parser *p, const char *name)
{
    return p->at->kind == ST_T_NAME && p->at->size == strlen(name) && memcmp(p->at->text, name, p->at->size) == 0;
}

static void next(struct parser *p)
{
    if (p->at->kind != ST_T_END)
        p->at++;
    p->j->line = p->at->line;
}

static bool skip_op(struct parser *p, int op)
{
    if (!is_op(p, op))
        return false;
    next(p);
    return true;
}

static bool skip_name(struct parser *p, const char *name)
{
    if (!is_name(p, name))
        return false;
    next(p);
    return true;
}

static void unexpected(struct parser *p, const char *wanted)
{
    static const char *const names[] = {"the end of the template",   "text", "{{",
                                        "the end of the expression", "{%",   "the end of the tag"};
    if (p->at->kind <= ST_T_BLOCK_END)
        st_j_fail(p->j, STRATA_E_FORMAT, "expected %s, found %s", wanted, names[p->at->kind]);
    else
        st_j_fail(p->j, STRATA_E_FORMAT, "expected %s, found \"%.*s\"", wanted,
                  p->at->size > 40 ? 40 : (int)p->at->size, p->at->text);
}

static void expect_op(struct parser *p, int op, const char *shown)
{
    if (!skip_op(p, op))
        unexpected(p, shown);
}

static void expect_block_end(struct parser *p)
{
    if (p->at->kind == ST_T_BLOCK_END)
        next(p);
    else
        unexpected(p, "the end of the tag");
}

static bool nest(struct parser *p)
{
    if (p->j->failed)
        return false;
    if (p->nesting >= ST_J_NESTING) {
        st_j_fail(p->j, STRATA_E_LIMIT, "nested more than %d deep", ST_J_NESTING);
        return false;
    }
    p->nesting++;
    return true;
}

/* ---- nodes ---- */

static struct st_jnode *node(struct parser *p, enum st_jnode_kind kind)
{
    static struct st_jnode nothing; /* never written: after a failure nodes are only read */
    struct st_jnode *n = st_j_alloc(p->j, 1, sizeof *n);
    if (!n)
        return &nothing;
    n->kind = kind;
    n->line = p->at->line;
    return n;
}

static void add_child(struct parser *p, struct st_jnode *n, struct st_jnode *child, const char *name)
{
    if (p->j->failed)
        return;
    /* Room is a power of two, and grows when the count reaches one. */
    if ((n->count & (n->count - 1)) == 0) {
        size_t room = n->count ? 2 * n->count : 1;
        struct st_jnode **list = st_j_alloc(p->j, room, sizeof(struct st_jnode *));
        const char **names = st_j_alloc(p->j, room, sizeof *names);
        int *ids = st_j_alloc(p->j, room, sizeof *ids);
        if (!list || !names || !ids)
            return;
        if (n->count) {
            memcpy(list, n->list, n->count * sizeof(struct st_jnode *));
            memcpy(names, n->names, n->count * sizeof *names);
            memcpy(ids, n->ids, n->count * sizeof *ids);
        }
        n->list = list;
        n->names = names;
        n->ids = ids;
    }
    n->list[n->count] = child;
    n->names[n->count] = name;
    n->count++;
}

static const char *copy(struct parser *p, const char *text, size_t size)
{
    char *c = st_j_alloc(p->j, size + 1, 1);
    if (c)
        memcpy(c, text, size);
    return c ? c : "";
}

/* The number of a variable's name. */
static int name_id(struct parser *p, const char *text, size_t size)
{
    struct st_jinja *g = p->program;
    struct st_jvalue key = st_j_text(p->j, text, size, false);
    if (p->j->failed)
        return 0;
    struct st_jvalue *found = st_j_dict_find(p->j, g->ids, key);
    if (found)
        return (int)found->of.number;
    if (g->name_count == g->name_room) {
        size_t room = g->name_room ? 2 * g->name_room : 32;
        const char **names = st_j_alloc(p->j, room, sizeof *names);
        if (!names)
            return 0;
        if (g->name_count)
            memcpy(names, g->names, g->name_count * sizeof *names);
        g->names = names;
        g->name_room = room;
    }
    g->names[g->name_count] = key.of.string->data;
    st_j_dict_set(p->j, g->ids, key, st_j_int((int64_t)g->name_count));
    return (int)g->name_count++;
}

static struct st_jnode *name_node(struct parser *p)
{
    struct st_jnode *n = node(p, ST_N_NAME);
    if (p->at->kind != ST_T_NAME)
        unexpected(p, "a name");
    if (p->j->failed)
        return n;
    n->id = name_id(p, p->at->text, p->at->size);
    if (p->macro) {
        p->macro->varargs |= n->id == ST_ID_VARARGS;
        p->macro->kwargs |= n->id == ST_ID_KWARGS;
        p->macro->caller |= n->id == ST_ID_CALLER;
    }
    next(p);
    return n;
}

/* ---- constants ---- */

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1;
}

/* Puts the string of a token into b, its escapes (those of Python) resolved. */
static void unescape(struct parser *p, const struct st_jtoken *t, struct st_jbuffer *b)
{
    for (size_t i = 0; i < t->size && !p->j->failed;) {
        const char *slash = memchr(t->text + i, '\\', t->size - i);
        size_t plain = slash ? (size_t)(slash - t->text) : t->size;
        st_j_put(p->j, b, t->text + i, plain - i, false);
        i = plain + 1;
        if (i >= t->size)
            break;
        char c = t->text[i++];
        static const char from[] = "ntr\\'\"abfv", to[] = "\n\t\r\\'\"\a\b\f\v";
        const char *simple = strchr(from, c);
        size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
        uint32_t cp = 0;
        if (c == '\n')
            continue;
        if (simple && c) {
            st_j_put(p->j, b, to + (simple - from), 1, false);
        } else if (digits) {
            for (size_t k = 0; k < digits; k++) {
                int d = i < t->size ? hex_digit(t->text[i]) : -1;
                if (d < 0 || cp > 0x10FFFF) {
                    st_j_fail(p->j, STRATA_E_FORMAT, "\\%c is followed by %zu hexadecimal digits", c, digits);
                    return;
                }
                cp = cp << 4 | (uint32_t)d;
                i++;
            }
            if (cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000)) {
                st_j_fail(p->j, STRATA_E_FORMAT, "\\%c%08x is not a character", c, (unsigned)cp);
                return;
            }
            st_j_put_cp(p->j, b, cp, false);
        } else if (c >= '0' && c <= '7') {
            cp = (uint32_t)(c - '0');
            for (int k = 0; k < 2 && i < t->size && t->text[i] >= '0' && t->text[i] <= '7'; k++)
                cp = cp * 8 + (uint32_t)(t->text[i++] - '0');
            st_j_put_cp(p->j, b, cp, false);
        } else {
            st_j_put(p->j, b, t->text + i - 2, 2, false);
        }
    }
}

static struct st_jnode *constant(struct parser *p, struct st_jvalue v)
{
    struct st_jnode *n = node(p, ST_N_CONST);
    if (!p->j->failed)
        n->value = v;
    return n;
}

static struct st_jnode *number(struct parser *p)
{
    char digits[64];
    size_t n = 0;
    for (size_t i = 0; i < p->at->size && n + 1 < sizeof digits; i++)
        if (p->at->text[i] != '_')
            digits[n++] = p->at->text[i];
    digits[n] = 0;
    struct st_jvalue v;
    if (p->at->kind == ST_T_FLOAT) {
        v = st_j_real(strtod(digits, NULL));
    } else {
        int base = n > 2 && digits[0] == '0' && (digits[1] | 0x20) == 'x' ? 16
                   : n > 2 && (digits[1] | 0x20) == 'o'                   ? 8
                   : n > 2 && (digits[1] | 0x20) == 'b'                   ? 2
                                                                          : 10;
        int64_t value = 0;
        for (const char *c = digits + (base == 10 ? 0 : 2); *c; c++) {
            int d = hex_digit(*c);
            if (d < 0 || d >= base || __builtin_mul_overflow(value, base, &value) ||
                __builtin_add_overflow(value, d, &value)) {
                st_j_fail(p->j, STRATA_E_FORMAT, "%s is not an integer of 64 bits", digits);
                break;
            }
        }
        v = st_j_int(value);
    }
    struct st_jnode *result = constant(p, v);
    next(p);
    return result;
}

/* ---- expressions ---- */

static bool at_tuple_end(const struct parser *p, const char *stop)
{
    return p->at->kind == ST_T_VARIABLE_END || p->at->kind == ST_T_BLOCK_END || is_op(p, ')') ||
           (stop && is_name(p, stop));
}

/* Expressions with commas between them make a tuple; one alone is itself. stop: a name that ends it. */
static struct st_jnode *tuple(struct parser *p, bool conditional, const char *stop, bool in_brackets)
{
    struct st_jnode *all = node(p, ST_N_TUPLE);
    bool comma = false;
    while (!p->j->failed && !at_tuple_end(p, stop)) {
        if (all->count && !comma)
            break;
        add_child(p, all, expression(p, conditional), NULL);
        comma = skip_op(p, ',');
        if (!comma)
            break;
    }
    if (all->count == 1 && !comma)
        return all->list[0];
    if (all->count == 0 && !in_brackets)
        unexpected(p, "an expression");
    return all;
}

static struct st_jnode *list_or_dict(struct parser *p)
{
    bool dict = is_op(p, '{');
    int close = dict ? '}' : ']';
    struct st_jnode *n = node(p, dict ? ST_N_DICT : ST_N_LIST);
    next(p);
    while (!p->j->failed && !is_op(p, close)) {
        if (n->count) {
            expect_op(p, ',', dict ? "\",\" or \"}\"" : "\",\" or \"]\"");
            if (is_op(p, close))
                break;
        }
        add_child(p, n, expression(p, true), NULL);
        if (dict) {
            expect_op(p, ':', "\":\"");
            add_child(p, n, expression(p, true), NULL);
        }
    }
    next(p);
    return n;
}

static struct st_jnode *primary(struct parser *p)
{
    struct st_jnode *n;
    if (!nest(p))
        return node(p, ST_N_CONST);
    if (p->at->kind == ST_T_NAME) {
        static const struct {
            const char *name;
            struct st_jvalue value;
        } words[] = {{"true", {.kind = ST_J_BOOL, .of.flag = true}},
                     {"True", {.kind = ST_J_BOOL, .of.flag = true}},
                     {"false", {.kind = ST_J_BOOL, .of.flag = false}},
                     {"False", {.kind = ST_J_BOOL, .of.flag = false}},
                     {"none", {.kind = ST_J_NONE}},
                     {"None", {.kind = ST_J_NONE}}};
        n = NULL;
        for (size_t i = 0; i < sizeof words / sizeof words[0] && !n; i++)
            if (is_name(p, words[i].name)) {
                n = constant(p, words[i].value);
                next(p);
            }
        if (!n)
            n = name_node(p);
    } else if (p->at->kind == ST_T_STRING) {
        struct st_jbuffer b = {0};
        struct st_jnode *result = node(p, ST_N_CONST);
        while (p->at->kind == ST_T_STRING && !p->j->failed) {
            unescape(p, p->at, &b);
            next(p);
        }
        struct st_jvalue v = st_j_built(p->j, &b);
        if (!p->j->failed)
            result->value = v;
        n = result;
    } else if (p->at->kind == ST_T_INTEGER || p->at->kind == ST_T_FLOAT) {
        n = number(p);
    } else if (is_op(p, '[') || is_op(p, '{')) {
        n = list_or_dict(p);
    } else if (skip_op(p, '(')) {
        n = tuple(p, true, NULL, true);
        expect_op(p, ')', "\")\"");
    } else {
        unexpected(p, "an expression");
        n = node(p, ST_N_CONST);
    }
    p->nesting--;
    return n;
}

/* The arguments between "(", already taken, and ")". */
static void arguments(struct parser *p, struct st_jnode *call)
{
    bool named = false;
    while (!p->j->failed && !is_op(p, ')')) {
        if (call->count) {
            expect_op(p, ',', "\",\" or \")\"");
            if (is_op(p, ')'))
                break;
        }
        const char *name = NULL;
        if (skip_op(p, '*')) {
            name = "*";
        } else if (skip_op(p, ST_OP2('*', '*'))) {
            name = "**";
            named = true;
        } else if (p->at->kind == ST_T_NAME && p->at[1].kind == ST_T_OPERATOR && p->at[1].op == '=') {
            name = copy(p, p->at->text, p->at->size);
            named = true;
            next(p);
            next(p);
        } else if (named) {
            st_j_fail(p->j, STRATA_E_FORMAT, "a positional argument follows a named one");
        }
        add_child(p, call, expression(p, true), name);
    }
    expect_op(p, ')', "\")\"");
}

static struct st_jnode *subscript(struct parser *p, struct st_jnode *of)
{
    struct st_jnode *n;
    if (skip_op(p, '.')) {
        if (p->at->kind == ST_T_INTEGER) {
            n = node(p, ST_N_ITEM);
            struct st_jnode *key = number(p);
            if (!p->j->failed) {
                n->a = of;
                n->b = key;
            }
            return n;
        }
        n = node(p, ST_N_ATTR);
        if (p->at->kind != ST_T_NAME)
            unexpected(p, "a name");
        if (p->j->failed)
            return n;
        n->a = of;
        n->name = copy(p, p->at->text, p->at->size);
        n->name_size = p->at->size;
        next(p);
        return n;
    }
    n = node(p, ST_N_ITEM);
    next(p);
    if (p->j->failed || !nest(p))
        return n;
    n->a = of;
    struct st_jnode *parts[3] = {NULL, NULL, NULL};
    int part = 0;
    while (!p->j->failed && !is_op(p, ']')) {
        if (skip_op(p, ':')) {
            if (++part > 2)
                st_j_fail(p->j, STRATA_E_FORMAT, "a slice has three parts");
        } else if (part < 3 && !parts[part]) {
            parts[part] = part == 0 ? tuple(p, true, NULL, false) : expression(p, true);
        } else {
            unexpected(p, "\":\" or \"]\"");
        }
    }
    expect_op(p, ']', "\"]\"");
    p->nesting--;
    if (p->j->failed)
        return n;
    n->b = parts[0];
    if (part > 0) {
        n->kind = ST_N_SLICE;
        for (int i = 0; i < 3; i++)
            add_child(p, n, parts[i], NULL);
    } else if (!parts[0]) {
        unexpected(p, "an expression");
    }
    return n;
}

static struct st_jnode *call(struct parser *p, struct st_jnode *of)
{
    struct st_jnode *n = node(p, ST_N_CALL);
    next(p);
    if (p->j->failed || !nest(p))
        return n;
    n->a = of;
    arguments(p, n);
    p->nesting--;
    return n;
}

static struct st_jnode *postfix(struct parser *p, struct st_jnode *n)
{
    while (!p->j->failed) {
        if (is_op(p, '.') || is_op(p, '['))
            n = subscript(p, n);
        else if (is_op(p, '('))
            n = call(p, n);
        else
            break;
    }
    return n;
}

/* At the name of a filter. */
static struct st_jnode *filter(struct parser *p, struct st_jnode *of)
{
    struct st_jnode *n = node(p, ST_N_FILTER);
    if (p->at->kind != ST_T_NAME)
        unexpected(p, "the name of a filter");
    if (p->j->failed)
        return n;
    n->a = of;
    n->which = st_j_find_filter(p->at->text, p->at->size);
    if (n->which < 0)
        st_j_fail(p->j, STRATA_E_UNSUPPORTED, "there is no filter \"%.*s\"", p->at->size > 40 ? 40 : (int)p->at->size,
                  p->at->text);
    next(p);
    if (skip_op(p, '('))
        arguments(p, n);
    return n;
}

static struct st_jnode *test(struct parser *p, struct st_jnode *of)
{
    struct st_jnode *n = node(p, ST_N_TEST), *result = n;
    if (skip_name(p, "not")) {
        result = node(p, ST_N_NOT);
        if (!p->j->failed)
            result->a = n;
    }
    if (p->at->kind != ST_T_NAME)
        unexpected(p, "the name of a test");
    if (p->j->failed)
        return n;
    n->a = of;
    n->which = st_j_find_test(p->at->text, p->at->size);
    if (n->which < 0)
        st_j_fail(p->j, STRATA_E_UNSUPPORTED, "there is no test \"%.*s\"", p->at->size > 40 ? 40 : (int)p->at->size,
                  p->at->text);
    next(p);
    bool word = p->at->kind == ST_T_NAME && !is_name(p, "else") && !is_name(p, "or") && !is_name(p, "and") &&
                !is_name(p, "if") && !is_name(p, "is") && !is_name(p, "in") && !is_name(p, "not");
    if (skip_op(p, '('))
        arguments(p, n);
    else if (word || p->at->kind == ST_T_STRING || p->at->kind == ST_T_INTEGER || p->at->kind == ST_T_FLOAT ||
             is_op(p, '[') || is_op(p, '{'))
        add_child(p, n, postfix(p, primary(p)), NULL);
    return result;
}

static struct st_jnode *filters_and_tests(struct parser *p, struct st_jnode *n)
{
    while (!p->j->failed) {
        if (skip_op(p, '|'))
            n = filter(p, n);
        else if (skip_name(p, "is"))
            n = test(p, n);
        else if (is_op(p, '('))
            n = call(p, n);
        else
            break;
    }
    return n;
}

static struct st_jnode *unary(struct parser *p, bool filters)
{
    struct st_jnode *n;
    if (is_op(p, '-') || is_op(p, '+')) {
        n = node(p, is_op(p, '-') ? ST_N_NEGATE : ST_N_PLUS);
        next(p);
        if (!nest(p))
            return n;
        n->a = unary(p, false);
        p->nesting--;
    } else {
        n = postfix(p, primary(p));
    }
    return filters ? filters_and_tests(p, n) : n;
}

/* Operators from the tightest level (0: **) to the loosest (3: + and -); all bind to the left. */
static int operator_at(const struct parser *p, int level)
{
    static const struct {
        int level, op, which;
    } table[] = {{0, ST_OP2('*', '*'), ST_J_POW},
                 {1, '*', ST_J_MUL},
                 {1, '/', ST_J_DIV},
                 {1, ST_OP2('/', '/'), ST_J_FLOORDIV},
                 {1, '%', ST_J_MOD},
                 {2, '~', ST_J_JOIN},
                 {3, '+', ST_J_ADD},
                 {3, '-', ST_J_SUB}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (table[i].level == level && is_op(p, table[i].op))
            return table[i].which;
    return -1;
}

static struct st_jnode *binary(struct parser *p, int level)
{
    struct st_jnode *left = level ? binary(p, level - 1) : unary(p, true);
    int which;
    while (!p->j->failed && (which = operator_at(p, level)) >= 0) {
        struct st_jnode *n = node(p, ST_N_BINARY);
        next(p);
        struct st_jnode *right = level ? binary(p, level - 1) : unary(p, true);
        if (p->j->failed)
            return left;
        n->which = which;
        n->a = left;
        n->b = right;
        left = n;
    }
    return left;
}

static int comparison_at(struct parser *p)
{
    static const int ops[] = {ST_OP2('=', '='), ST_OP2('!', '='), '<', ST_OP2('<', '='), '>', ST_OP2('>', '=')};
    for (int i = 0; i < 6; i++)
        if (skip_op(p, ops[i]))
            return i;
    if (skip_name(p, "in"))
        return ST_C_IN;
    if (is_name(p, "not") && p->at[1].kind == ST_T_NAME && p->at[1].size == 2 && memcmp(p->at[1].text, "in", 2) == 0) {
        next(p);
        next(p);
        return ST_C_NOT_IN;
    }
    return -1;
}

static struct st_jnode *comparison(struct parser *p)
{
    if (is_name(p, "not")) {
        struct st_jnode *n = node(p, ST_N_NOT);
        next(p);
        if (!nest(p))
            return n;
        n->a = comparison(p);
        p->nesting--;
        return n;
    }
    struct st_jnode *first = binary(p, 3), *n = NULL;
    int which;
    while (!p->j->failed && (which = comparison_at(p)) >= 0) {
        if (!n) {
            n = node(p, ST_N_COMPARE);
            if (p->j->failed)
                return first;
            n->a = first;
        }
        add_child(p, n, binary(p, 3), NULL);
        if (!p->j->failed)
            n->ids[n->count - 1] = which;
    }
    return n ? n : first;
}

static struct st_jnode *logic(struct parser *p, bool any)
{
    struct st_jnode *left = any ? logic(p, false) : comparison(p);
    while (!p->j->failed && skip_name(p, any ? "or" : "and")) {
        struct st_jnode *n = node(p, any ? ST_N_OR : ST_N_AND), *right = any ? logic(p, false) : comparison(p);
        if (p->j->failed)
            return left;
        n->a = left;
        n->b = right;
        left = n;
    }
    return left;
}

static struct st_jnode *expression(struct parser *p, bool conditional)
{
    struct st_jnode *value = logic(p, true);
    while (conditional && !p->j->failed && skip_name(p, "if")) {
        struct st_jnode *n = node(p, ST_N_COND), *condition = logic(p, true), *other = NULL;
        if (skip_name(p, "else") && nest(p)) {
            other = expression(p, true);
            p->nesting--;
        }
        if (p->j->failed)
            return value;
        n->a = condition;
        n->b = value;
        n->c = other;
        value = n;
    }
    return value;
}

/* ---- statements ---- */

/* What is assigned to: a name, names in brackets or with commas, or the attribute of a namespace. */
static struct st_jnode *target(struct parser *p, const char *stop, bool attribute)
{
    if (attribute && p->at->kind == ST_T_NAME && p->at[1].kind == ST_T_OPERATOR && p->at[1].op == '.') {
        struct st_jnode *n = name_node(p);
        next(p);
        if (p->at->kind != ST_T_NAME)
            unexpected(p, "a name");
        if (p->j->failed)
            return n;
        n->kind = ST_N_NSREF;
        n->name = copy(p, p->at->text, p->at->size);
        n->name_size = p->at->size;
        next(p);
        return n;
    }
    struct st_jnode *all = node(p, ST_N_TUPLE);
    bool comma = false;
    while (!p->j->failed && !at_tuple_end(p, stop) && !is_op(p, '=') && (all->count == 0 || comma)) {
        if (is_op(p, '(')) {
            next(p);
            if (!nest(p))
                break;
            add_child(p, all, target(p, NULL, false), NULL);
            p->nesting--;
            expect_op(p, ')', "\")\"");
        } else {
            add_child(p, all, name_node(p), NULL);
        }
        comma = skip_op(p, ',');
    }
    if (all->count == 0)
        unexpected(p, "a name");
    return all->count == 1 && !comma ? all->list[0] : all;
}

static struct st_jnode *for_statement(struct parser *p, struct st_jnode *n)
{
    static const char *const first_ends[] = {"else", "endfor", NULL}, *const last_ends[] = {"endfor", NULL};
    struct st_jnode *to = target(p, "in", false);
    if (!skip_name(p, "in"))
        unexpected(p, "\"in\"");
    struct st_jnode *from = tuple(p, false, "recursive", false), *condition = NULL, *other = NULL;
    if (skip_name(p, "if"))
        condition = expression(p, true);
    if (is_name(p, "recursive"))
        st_j_fail(p->j, STRATA_E_UNSUPPORTED, "recursive loops are not supported");
    expect_block_end(p);
    p->loops++;
    struct st_jnode *inner = body(p, first_ends);
    p->loops--;
    if (skip_name(p, "else")) {
        expect_block_end(p);
        other = body(p, last_ends);
    }
    next(p);
    expect_block_end(p);
    if (p->j->failed)
        return n;
    n->a = to;
    n->b = from;
    n->c = inner;
    add_child(p, n, condition, NULL);
    add_child(p, n, other, NULL);
    return n;
}

static struct st_jnode *if_statement(struct parser *p, struct st_jnode *n)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL}, *const last[] = {"endif", NULL};
    do {
        struct st_jnode *condition = tuple(p, false, NULL, false);
        expect_block_end(p);
        add_child(p, n, condition, NULL);
        add_child(p, n, body(p, ends), NULL);
    } while (!p->j->failed && skip_name(p, "elif"));
    if (skip_name(p, "else")) {
        expect_block_end(p);
        struct st_jnode *other = body(p, last);
        if (!p->j->failed)
            n->c = other;
    }
    next(p);
    expect_block_end(p);
    return n;
}

static struct st_jnode *filter_chain(struct parser *p)
{
    struct st_jnode *n = node(p, ST_N_CAPTURED);
    do
        n = filter(p, n);
    while (!p->j->failed && skip_op(p, '|'));
    return n;
}

static struct st_jnode *set_statement(struct parser *p, struct st_jnode *n)
{
    static const char *const ends[] = {"endset", NULL};
    struct st_jnode *to = target(p, NULL, true), *value = NULL, *inner = NULL;
    bool block = !skip_op(p, '=');
    if (!block)
        value = tuple(p, true, NULL, false);
    else if (skip_op(p, '|'))
        value = filter_chain(p);
    expect_block_end(p);
    if (block) {
        inner = body(p, ends);
        next(p);
        expect_block_end(p);
    }
    if (p->j->failed)
        return n;
    n->kind = block ? ST_N_SET_BLOCK : ST_N_SET;
    n->a = to;
    n->b = value;
    n->c = inner;
    return n;
}

/* Parameters between brackets; defaults may be missing. */
static void parameters(struct parser *p, struct st_jnode *macro)
{
    expect_op(p, '(', "\"(\"");
    while (!p->j->failed && !is_op(p, ')')) {
        if (macro->count) {
            expect_op(p, ',', "\",\" or \")\"");
            if (is_op(p, ')'))
                break;
        }
        struct st_jnode *name = name_node(p), *usual = NULL;
        if (skip_op(p, '='))
            usual = expression(p, true);
        else if (macro->count && macro->list[macro->count - 1])
            st_j_fail(p->j, STRATA_E_FORMAT, "a parameter without default follows one with a default");
        if (p->j->failed)
            return;
        add_child(p, macro, usual, p->program->names[name->id]);
        if (!p->j->failed)
            macro->ids[macro->count - 1] = name->id;
    }
    expect_op(p, ')', "\")\"");
}

static struct st_jnode *macro_statement(struct parser *p, struct st_jnode *n, bool call_block)
{
    static const char *const macro_ends[] = {"endmacro", NULL}, *const call_ends[] = {"endcall", NULL};
    struct st_jnode *outer = p->macro, *called = NULL, *name = NULL;
    if (!call_block)
        name = name_node(p);
    if (p->j->failed)
        return n;
    n->id = name ? name->id : ST_ID_CALLER;
    p->macro = n;
    if (!call_block || is_op(p, '('))
        parameters(p, n);
    if (call_block) {
        p->macro = outer;
        called = expression(p, true);
        p->macro = n;
        if (!p->j->failed && called->kind != ST_N_CALL)
            st_j_fail(p->j, STRATA_E_FORMAT, "a call block needs a call");
    }
    expect_block_end(p);
    int loops = p->loops;
    p->loops = 0;
    struct st_jnode *inner = body(p, call_block ? call_ends : macro_ends);
    p->loops = loops;
    next(p);
    expect_block_end(p);
    p->macro = outer;
    if (p->j->failed)
        return n;
    n->a = called;
    n->c = inner;
    return n;
}

static struct st_jnode *with_statement(struct parser *p, struct st_jnode *n)
{
    static const char *const ends[] = {"endwith", NULL};
    while (!p->j->failed && p->at->kind != ST_T_BLOCK_END) {
        if (n->count)
            expect_op(p, ',', "\",\"");
        struct st_jnode *to = target(p, NULL, false);
        expect_op(p, '=', "\"=\"");
        add_child(p, n, to, NULL);
        add_child(p, n, expression(p, true), NULL);
    }
    expect_block_end(p);
    struct st_jnode *inner = body(p, ends);
    next(p);
    expect_block_end(p);
    if (!p->j->failed)
        n->c = inner;
    return n;
}

/* At the name of a tag. */
static struct st_jnode *statement(struct parser *p)
{
    static const char *const refused[] = {"extends",    "block", "include", "import", "from",
                                          "autoescape", "do",    "trans",   "debug"};
    static const char *const filter_ends[] = {"endfilter", NULL}, *const generation_ends[] = {"endgeneration", NULL};
    static const struct {
        const char *name;
        enum st_jnode_kind kind;
    } tags[] = {{"for", ST_N_FOR},         {"if", ST_N_IF},           {"set", ST_N_SET},
                {"macro", ST_N_MACRO},     {"call", ST_N_CALL_BLOCK}, {"filter", ST_N_FILTER_BLOCK},
                {"with", ST_N_WITH},       {"break", ST_N_BREAK},     {"continue", ST_N_CONTINUE},
                {"generation", ST_N_BLOCK}}; /* marks the model's part for training; here a scope */
    struct st_jnode *n = node(p, ST_N_BLOCK);
    if (p->at->kind != ST_T_NAME)
        unexpected(p, "the name of a tag");
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (is_name(p, refused[i]))
            st_j_fail(p->j, STRATA_E_UNSUPPORTED, "the tag \"%s\" is not supported", refused[i]);
    size_t which = 0;
    while (which < sizeof tags / sizeof tags[0] && !is_name(p, tags[which].name))
        which++;
    if (which == sizeof tags / sizeof tags[0])
        unexpected(p, "a known tag");
    if (p->j->failed)
        return n;
    n->kind = tags[which].kind;
    next(p);
    switch (n->kind) {
    case ST_N_FOR: return for_statement(p, n);
    case ST_N_IF: return if_statement(p, n);
    case ST_N_SET: return set_statement(p, n);
    case ST_N_MACRO: return macro_statement(p, n, false);
    case ST_N_CALL_BLOCK: return macro_statement(p, n, true);
    case ST_N_WITH: return with_statement(p, n);
    case ST_N_FILTER_BLOCK:
    case ST_N_BLOCK: {
        struct st_jnode *chain = n->kind == ST_N_FILTER_BLOCK ? filter_chain(p) : NULL;
        expect_block_end(p);
        struct st_jnode *inner = body(p, chain ? filter_ends : generation_ends);
        next(p);
        expect_block_end(p);
        if (p->j->failed)
            return n;
        if (!chain)
            n->kind = ST_N_WITH;
        n->b = chain;
        n->c = inner;
        return n;
    }
    default:
        if (p->loops == 0)
            st_j_fail(p->j, STRATA_E_FORMAT, "break and continue belong inside a loop");
        expect_block_end(p);
        return n;
    }
}

/* Statements up to a tag whose name is among ends, which is then the current token; ends NULL: to the end. */
static struct st_jnode *body(struct parser *p, const char *const *ends)
{
    struct st_jnode *all = node(p, ST_N_BLOCK);
    int line = p->at->line;
    if (!nest(p))
        return all;
    while (!p->j->failed) {
        struct st_jnode *n;
        if (p->at->kind == ST_T_DATA) {
            n = node(p, ST_N_DATA);
            struct st_jvalue text = st_j_text(p->j, p->at->text, p->at->size, false);
            if (p->j->failed)
                break;
            n->value = text;
            next(p);
        } else if (p->at->kind == ST_T_VARIABLE_BEGIN) {
            n = node(p, ST_N_OUTPUT);
            next(p);
            struct st_jnode *value = tuple(p, true, NULL, false);
            if (!p->j->failed && p->at->kind != ST_T_VARIABLE_END)
                unexpected(p, "\"}}\"");
            if (p->j->failed)
                break;
            n->a = value;
            next(p);
        } else if (p->at->kind == ST_T_BLOCK_BEGIN) {
            next(p);
            for (size_t i = 0; ends && ends[i]; i++)
                if (is_name(p, ends[i])) {
                    p->nesting--;
                    return all;
                }
            n = statement(p);
        } else {
            if (ends)
                st_j_fail(p->j, STRATA_E_FORMAT, "the template ends before \"%s\" of the block that begins on line %d",
                          ends[0], line);
            break;
        }
        add_child(p, all, n, NULL);
    }
    p->nesting--;
    return all;
}

/* ---- compiling ---- */

/* Newlines become \n, and one at the very end goes. Returns the size. */
static size_t normalise(const char *text, size_t size, char *out)
{
    size_t used = 0;
    for (size_t i = 0; i < size; i++) {
        if (text[i] == '\r') {
            out[used++] = '\n';
            i += i + 1 < size && text[i + 1] == '\n';
        } else {
            out[used++] = text[i];
        }
    }
    return used && out[used - 1] == '\n' ? used - 1 : used;
}

enum strata_result st_jinja_compile(const char *text, size_t size, struct st_jinja **out, struct strata_error *err)
{
    *out = NULL;
    if (size > ST_J_TEMPLATE)
        return st_fail(err, STRATA_E_LIMIT, "chat template has %zu bytes, more than %d", size, ST_J_TEMPLATE);
    size_t bad = st_utf8_invalid(text, size);
    if (bad != size)
        return st_fail(err, STRATA_E_FORMAT, "chat template is not valid UTF-8 at byte %zu", bad);
    struct st_jinja *program = calloc(1, sizeof *program);
    if (!program)
        return st_fail(err, STRATA_E_MEMORY, "no memory for a chat template");
    struct st_j j = {.arena.limit = 1 << 20, .steps = UINT64_MAX, .line = 1, .err = err};
    j.arena.limit += 500 * size; /* a token takes 40 bytes, a node with one child about 240 */
    char *copied = st_j_alloc(&j, size + 1, 1);
    struct st_jvalue ids = st_j_dict(&j);
    struct st_jtoken *tokens = NULL;
    if (copied && !j.failed) {
        program->ids = ids.of.dict;
        tokens = st_j_lex(&j, copied, normalise(text, size, copied));
    }
    if (tokens) {
        static const char *const known[ST_ID_COUNT] = {"loop", "caller",    "varargs",         "kwargs",      "range",
                                                       "dict", "namespace", "raise_exception", "strftime_now"};
        struct parser p = {.j = &j, .program = program, .at = tokens};
        for (int i = 0; i < ST_ID_COUNT; i++)
            name_id(&p, known[i], strlen(known[i]));
        j.line = 1;
        program->root = body(&p, NULL);
    }
    program->arena = j.arena;
    if (j.failed) {
        st_jinja_free(program);
        return j.code;
    }
    *out = program;
    return STRATA_OK;
}

void st_jinja_free(struct st_jinja *program)
{
    if (!program)
        return;
    st_arena_free(&program->arena);
    free(program);
}
