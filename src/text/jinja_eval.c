/* Template interpreter: evaluation of the syntax tree, scopes, loops, macros, functions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "text/jinja_loop.h"
#include "text/jinja_tree.h"

const struct st_jinja_limits st_jinja_default_limits = {.memory = (size_t)512 << 20, .steps = 200000000};

/* Variables of a block that has its own. Macros keep the scope they were defined in. */
struct st_jscope {
    struct st_jscope *parent;
    int *ids;
    struct st_jvalue *values;
    size_t count, room;
};

struct st_jloop {
    struct st_jlist *items;
    size_t index;
    struct st_jvalue seen; /* arguments of the last changed() */
};

struct st_jmacro {
    const struct st_jnode *node;
    struct st_jscope *scope;
};

enum { RUNNING, BREAKING, CONTINUING };

static struct st_jvalue eval(struct st_j *j, const struct st_jnode *n);
static void exec(struct st_j *j, const struct st_jnode *n);

/* ---- scopes ---- */

static struct st_jscope *push_scope(struct st_j *j, struct st_jscope *parent)
{
    struct st_jscope *s = st_j_alloc(j, 1, sizeof *s);
    if (s)
        s->parent = parent;
    return s;
}

static void set_in(struct st_j *j, struct st_jscope *s, int id, struct st_jvalue v)
{
    for (size_t i = 0; i < s->count; i++)
        if (s->ids[i] == id) {
            s->values[i] = v;
            return;
        }
    if (s->count == s->room) {
        size_t room = s->room ? 2 * s->room : 4;
        int *ids = st_j_alloc(j, room, sizeof *ids);
        struct st_jvalue *values = st_j_alloc(j, room, sizeof *values);
        if (!ids || !values)
            return;
        if (s->count) {
            memcpy(ids, s->ids, s->count * sizeof *ids);
            memcpy(values, s->values, s->count * sizeof *values);
        }
        s->ids = ids;
        s->values = values;
        s->room = room;
    }
    s->ids[s->count] = id;
    s->values[s->count++] = v;
}

static struct st_jvalue look_up(struct st_j *j, int id)
{
    uint64_t seen = 0;
    for (const struct st_jscope *s = j->scope; s; s = s->parent) {
        seen += s->count;
        for (size_t i = 0; i < s->count; i++)
            if (s->ids[i] == id)
                return s->values[i];
    }
    if (!st_j_work(j, seen / 8))
        return st_j_undefined(NULL);
    if (id >= ST_ID_FUNCTIONS && id < ST_ID_COUNT)
        return (struct st_jvalue){.kind = ST_J_FUNCTION, .of.number = id};
    return st_j_undefined(j->program->names[id]);
}

static void assign(struct st_j *j, const struct st_jnode *to, struct st_jvalue v)
{
    if (!st_j_enter(j))
        return;
    if (to->kind == ST_N_NAME) {
        set_in(j, j->scope, to->id, v);
    } else if (to->kind == ST_N_NSREF) {
        struct st_jvalue space = look_up(j, to->id);
        if (space.kind != ST_J_NAMESPACE)
            st_j_fail(j, STRATA_E_ARGUMENT, "attributes can be set on a namespace only, not on a %s",
                      st_j_type(&space));
        else
            st_j_dict_set(j, space.of.dict, st_j_literal(j, to->name), v);
    } else {
        struct st_jvalue all = st_j_iterate(j, v);
        if (!j->failed && all.of.list->count != to->count)
            st_j_fail(j, STRATA_E_ARGUMENT, "%zu values for %zu names", all.of.list->count, to->count);
        for (size_t i = 0; i < to->count && !j->failed; i++)
            assign(j, to->list[i], all.of.list->items[i]);
    }
    st_j_leave(j);
}

/* Renders a body into a string. */
static struct st_jvalue capture(struct st_j *j, const struct st_jnode *inner, struct st_jscope *scope)
{
    struct st_jbuffer b = {0}, *out = j->out;
    struct st_jscope *before = j->scope;
    if (!scope)
        return st_j_undefined(NULL);
    j->out = &b;
    j->scope = scope;
    exec(j, inner);
    j->out = out;
    j->scope = before;
    return st_j_built(j, &b);
}

/* ---- loops ---- */

struct st_jvalue st_j_loop_attribute(struct st_j *j, struct st_jvalue loop, const char *name, size_t size)
{
    static const char *const names[] = {"index", "index0", "revindex", "revindex0", "first", "last",   "length",
                                        "depth", "depth0", "previtem", "nextitem",  "cycle", "changed"};
    const struct st_jloop *l = loop.of.loop;
    size_t which = 0, n = l->items->count;
    while (which < sizeof names / sizeof names[0] &&
           !(strlen(names[which]) == size && memcmp(names[which], name, size) == 0))
        which++;
    switch (which) {
    case 0: return st_j_int((int64_t)l->index + 1);
    case 1: return st_j_int((int64_t)l->index);
    case 2: return st_j_int((int64_t)(n - l->index));
    case 3: return st_j_int((int64_t)(n - l->index) - 1);
    case 4: return st_j_bool(l->index == 0);
    case 5: return st_j_bool(l->index + 1 == n);
    case 6: return st_j_int((int64_t)n);
    case 7: return st_j_int(1);
    case 8: return st_j_int(0);
    case 9: return l->index ? l->items->items[l->index - 1] : st_j_undefined("previtem");
    case 10: return l->index + 1 < n ? l->items->items[l->index + 1] : st_j_undefined("nextitem");
    case 11:
    case 12: {
        struct st_jmethod *m = st_j_alloc(j, 1, sizeof *m);
        if (!m)
            break;
        *m = (struct st_jmethod){loop, which == 12};
        return (struct st_jvalue){.kind = ST_J_METHOD, .of.method = m};
    }
    default: break;
    }
    return st_j_undefined("loop attribute");
}

struct st_jvalue st_j_call_loop(struct st_j *j, const struct st_jmethod *m, const struct st_jargs *args)
{
    struct st_jloop *l = m->self.of.loop;
    if (args->named || (args->count == 0 && m->which == 0)) {
        st_j_fail(j, STRATA_E_ARGUMENT, "loop.%s takes values", m->which ? "changed" : "cycle");
        return st_j_undefined(NULL);
    }
    if (m->which == 0)
        return args->values[l->index % args->count];
    struct st_jvalue now = st_j_list(j, args->count, true);
    for (size_t i = 0; i < args->count && !j->failed; i++)
        st_j_append(j, now, args->values[i]);
    if (j->failed || (l->seen.kind == ST_J_LIST && st_j_equal(j, l->seen, now)))
        return st_j_bool(false);
    l->seen = now;
    return st_j_bool(true);
}

static void exec_for(struct st_j *j, const struct st_jnode *n)
{
    struct st_jvalue all = st_j_iterate(j, eval(j, n->b));
    struct st_jscope *outer = j->scope;
    if (j->failed)
        return;
    if (n->list[0]) {
        struct st_jvalue kept = st_j_list(j, 8, false);
        for (size_t i = 0; i < all.of.list->count && !j->failed; i++) {
            j->scope = push_scope(j, outer);
            if (!j->scope)
                break;
            assign(j, n->a, all.of.list->items[i]);
            if (st_j_true(j, eval(j, n->list[0])) && !j->failed)
                st_j_append(j, kept, all.of.list->items[i]);
        }
        j->scope = outer;
        all = kept;
    }
    struct st_jloop *loop = st_j_alloc(j, 1, sizeof *loop);
    if (!loop)
        return;
    *loop = (struct st_jloop){all.of.list, 0, st_j_none()};
    size_t i = 0;
    for (; i < all.of.list->count && !j->failed; i++) {
        loop->index = i;
        j->scope = push_scope(j, outer);
        if (!j->scope)
            break;
        set_in(j, j->scope, ST_ID_LOOP, (struct st_jvalue){.kind = ST_J_LOOP, .of.loop = loop});
        assign(j, n->a, all.of.list->items[i]);
        exec(j, n->c);
        int signal = j->signal;
        j->signal = RUNNING;
        if (signal == BREAKING) {
            i++;
            break;
        }
    }
    j->scope = outer;
    if (i == 0 && n->list[1] && !j->failed)
        exec(j, n->list[1]);
}

/* ---- calls ---- */

struct gathered {
    struct st_jvalue *values, *named;
    const char **names;
    size_t count, named_count, room;
};

static void gather(struct st_j *j, struct gathered *g, const char *name, struct st_jvalue v)
{
    if (g->count + g->named_count == g->room) {
        size_t room = g->room ? 2 * g->room : 4;
        struct st_jvalue *values = st_j_alloc(j, room, sizeof *values), *named = st_j_alloc(j, room, sizeof *named);
        const char **names = st_j_alloc(j, room, sizeof *names);
        if (!values || !named || !names)
            return;
        if (g->room) {
            memcpy(values, g->values, g->count * sizeof *values);
            memcpy(named, g->named, g->named_count * sizeof *named);
            memcpy(names, g->names, g->named_count * sizeof *names);
        }
        g->values = values;
        g->named = named;
        g->names = names;
        g->room = room;
    }
    if (name) {
        g->named[g->named_count] = v;
        g->names[g->named_count++] = name;
    } else {
        g->values[g->count++] = v;
    }
}

static void gather_mapping(struct st_j *j, struct gathered *g, struct st_jvalue v)
{
    if (v.kind != ST_J_DICT) {
        st_j_fail(j, STRATA_E_ARGUMENT, "** needs a dict, not a %s", st_j_type(&v));
        return;
    }
    for (size_t i = 0; i < v.of.dict->count && !j->failed; i++) {
        struct st_jvalue key = v.of.dict->keys[i];
        if (key.kind != ST_J_STRING) {
            st_j_fail(j, STRATA_E_ARGUMENT, "the names of arguments are str, not %s", st_j_type(&key));
            return;
        }
        char *name = st_j_alloc(j, key.of.string->size + 1, 1);
        if (name)
            memcpy(name, st_j_data(j, key.of.string), key.of.string->size);
        gather(j, g, name, v.of.dict->values[i]);
    }
}

/* Evaluates the arguments of a call, filter or test. */
static bool eval_arguments(struct st_j *j, const struct st_jnode *n, struct st_jargs *out)
{
    struct gathered g = {0};
    for (size_t i = 0; i < n->count && !j->failed; i++) {
        struct st_jvalue v = eval(j, n->list[i]);
        const char *name = n->names[i];
        if (j->failed)
            break;
        if (name && strcmp(name, "*") == 0) {
            struct st_jvalue all = st_j_iterate(j, v);
            for (size_t k = 0; !j->failed && k < all.of.list->count; k++)
                gather(j, &g, NULL, all.of.list->items[k]);
        } else if (name && strcmp(name, "**") == 0) {
            gather_mapping(j, &g, v);
        } else {
            gather(j, &g, name, v);
        }
    }
    if (j->failed)
        return false;
    /* values has room for all: the named ones follow the positional ones. */
    if (g.named_count)
        memcpy(g.values + g.count, g.named, g.named_count * sizeof *g.values);
    *out = (struct st_jargs){g.values, g.count + g.named_count, g.names, g.named_count};
    j->line = n->line;
    return true;
}

/* A macro's arguments: its parameters, then varargs, kwargs and caller if its body reads them. */
static void bind_macro(struct st_j *j, const struct st_jnode *m, struct st_jscope *scope, const struct st_jargs *args)
{
    const char *name = m->id == ST_ID_CALLER ? "caller" : j->program->names[m->id];
    size_t positional = args->count - args->named;
    struct st_jvalue *bound = st_j_alloc(j, m->count + 1, sizeof *bound);
    struct st_jvalue rest = st_j_list(j, 0, true), others = st_j_dict(j), caller = st_j_undefined("caller");
    if (j->failed)
        return;
    for (size_t i = 0; i < m->count; i++)
        bound[i] = i < positional ? args->values[i] : (struct st_jvalue){.kind = ST_J_ABSENT};
    for (size_t i = m->count; i < positional; i++)
        st_j_append(j, rest, args->values[i]);
    if (positional > m->count && !m->varargs)
        st_j_fail(j, STRATA_E_ARGUMENT, "macro '%s' takes at most %zu arguments, not %zu", name, m->count, positional);
    for (size_t k = 0; k < args->named && !j->failed; k++) {
        size_t i = 0;
        while (i < m->count && strcmp(m->names[i], args->names[k]) != 0)
            i++;
        struct st_jvalue v = args->values[positional + k];
        if (i < m->count && bound[i].kind != ST_J_ABSENT)
            st_j_fail(j, STRATA_E_ARGUMENT, "macro '%s' gets its argument '%s' twice", name, args->names[k]);
        else if (i < m->count)
            bound[i] = v;
        else if (m->caller && strcmp(args->names[k], "caller") == 0)
            caller = v;
        else if (m->kwargs)
            st_j_dict_set(j, others.of.dict, st_j_literal(j, args->names[k]), v);
        else
            st_j_fail(j, STRATA_E_ARGUMENT, "macro '%s' has no argument '%s'", name, args->names[k]);
    }
    for (size_t i = 0; i < m->count && !j->failed; i++) {
        if (bound[i].kind == ST_J_ABSENT)
            bound[i] = m->list[i] ? eval(j, m->list[i]) : st_j_undefined(m->names[i]);
        set_in(j, scope, m->ids[i], bound[i]);
    }
    if (m->varargs)
        set_in(j, scope, ST_ID_VARARGS, rest);
    if (m->kwargs)
        set_in(j, scope, ST_ID_KWARGS, others);
    if (m->caller)
        set_in(j, scope, ST_ID_CALLER, caller);
}

static struct st_jvalue call_macro(struct st_j *j, const struct st_jmacro *m, const struct st_jargs *args)
{
    struct st_jscope *before = j->scope, *scope = push_scope(j, m->scope);
    if (!scope)
        return st_j_undefined(NULL);
    if (j->calls >= ST_J_CALLS) {
        st_j_fail(j, STRATA_E_LIMIT, "macros call each other more than %d deep", ST_J_CALLS);
        return st_j_undefined(NULL);
    }
    j->calls++;
    j->scope = scope;
    bind_macro(j, m->node, scope, args);
    struct st_jvalue v = j->failed ? st_j_undefined(NULL) : capture(j, m->node->c, scope);
    j->scope = before;
    j->calls--;
    return v;
}

static struct st_jvalue function_range(struct st_j *j, const struct st_jargs *args)
{
    int64_t n[3] = {0, 0, 1};
    if (args->named || args->count < 1 || args->count > 3) {
        st_j_fail(j, STRATA_E_ARGUMENT, "range takes one to three integers");
        return st_j_undefined(NULL);
    }
    for (size_t i = 0; i < args->count; i++)
        if (!st_j_integer(&args->values[i], &n[args->count == 1 ? 1 : i]))
            st_j_fail(j, STRATA_E_ARGUMENT, "range takes integers, not a %s", st_j_type(&args->values[i]));
    if (n[2] == 0)
        st_j_fail(j, STRATA_E_ARGUMENT, "the step of a range is 0");
    struct st_jvalue out = st_j_list(j, 8, false);
    for (int64_t v = n[0]; !j->failed && (n[2] > 0 ? v < n[1] : v > n[1]);) {
        if (out.of.list->count == ST_J_RANGE)
            st_j_fail(j, STRATA_E_LIMIT, "a range has more than %d numbers", ST_J_RANGE);
        st_j_append(j, out, st_j_int(v));
        if (__builtin_add_overflow(v, n[2], &v))
            break;
    }
    return out;
}

static struct st_jvalue function_dict(struct st_j *j, const struct st_jargs *args, bool space)
{
    struct st_jvalue out = st_j_dict(j);
    size_t positional = args->count - args->named;
    if (positional > 1)
        st_j_fail(j, STRATA_E_ARGUMENT, "%s takes one value and names", space ? "namespace" : "dict");
    if (positional == 1 && args->values[0].kind == ST_J_DICT) {
        const struct st_jdict *d = args->values[0].of.dict;
        for (size_t i = 0; i < d->count && !j->failed; i++)
            st_j_dict_set(j, out.of.dict, d->keys[i], d->values[i]);
    } else if (positional == 1 && !j->failed) {
        struct st_jvalue pairs = st_j_iterate(j, args->values[0]);
        for (size_t i = 0; !j->failed && i < pairs.of.list->count; i++) {
            struct st_jvalue pair = st_j_iterate(j, pairs.of.list->items[i]);
            if (!j->failed && pair.of.list->count != 2)
                st_j_fail(j, STRATA_E_ARGUMENT, "a dict is made of pairs");
            if (!j->failed)
                st_j_dict_set(j, out.of.dict, pair.of.list->items[0], pair.of.list->items[1]);
        }
    }
    for (size_t i = 0; i < args->named && !j->failed; i++)
        st_j_dict_set(j, out.of.dict, st_j_literal(j, args->names[i]), args->values[positional + i]);
    if (space)
        out.kind = ST_J_NAMESPACE;
    return out;
}

/* The only string argument of a function, as C text. */
static const char *one_text(struct st_j *j, const char *function, const struct st_jargs *args, size_t *size)
{
    static const char *const names[] = {"!text"};
    struct st_jvalue v;
    if (!st_j_bind(j, function, args, names, 1, &v))
        return "";
    v = st_j_str(j, v);
    if (j->failed)
        return "";
    *size = v.of.string->size;
    return st_j_data(j, v.of.string);
}

static struct st_jvalue function_strftime(struct st_j *j, const struct st_jargs *args)
{
    char form[256], text[1024];
    size_t size = 0;
    const char *given = one_text(j, "strftime_now", args, &size);
    struct tm when;
    if (size >= sizeof form || !localtime_r(&j->now, &when)) {
        st_j_fail(j, STRATA_E_LIMIT, "strftime_now: the format has %zu bytes", size);
        return st_j_undefined(NULL);
    }
    memcpy(form, given, size);
    form[size] = 0;
    return st_j_text(j, text, strftime(text, sizeof text, form, &when), false);
}

static struct st_jvalue call_function(struct st_j *j, int64_t which, const struct st_jargs *args)
{
    size_t size = 0;
    switch (which) {
    case ST_ID_RANGE: return function_range(j, args);
    case ST_ID_DICT: return function_dict(j, args, false);
    case ST_ID_NAMESPACE: return function_dict(j, args, true);
    case ST_ID_STRFTIME_NOW: return function_strftime(j, args);
    default: break;
    }
    const char *message = one_text(j, "raise_exception", args, &size);
    st_j_fail(j, STRATA_E_ARGUMENT, "%.*s", size > 300 ? 300 : (int)size, message);
    return st_j_undefined(NULL);
}

static struct st_jvalue call_value(struct st_j *j, struct st_jvalue callee, const struct st_jargs *args)
{
    switch (callee.kind) {
    case ST_J_MACRO: return call_macro(j, callee.of.macro, args);
    case ST_J_FUNCTION: return call_function(j, callee.of.number, args);
    case ST_J_METHOD: return st_j_call_method(j, callee.of.method, args);
    case ST_J_UNDEFINED:
        st_j_fail(j, STRATA_E_ARGUMENT, "'%s' is undefined and cannot be called",
                  callee.of.hint ? callee.of.hint : "value");
        break;
    default: st_j_fail(j, STRATA_E_ARGUMENT, "a %s cannot be called", st_j_type(&callee)); break;
    }
    return st_j_undefined(NULL);
}

static struct st_jvalue eval_call(struct st_j *j, const struct st_jnode *n, const struct st_jvalue *caller)
{
    struct st_jargs args;
    struct st_jvalue callee = eval(j, n->a);
    if (!eval_arguments(j, n, &args))
        return st_j_undefined(NULL);
    if (!caller)
        return call_value(j, callee, &args);
    struct st_jvalue *values = st_j_alloc(j, args.count + 1, sizeof *values);
    const char **names = st_j_alloc(j, args.named + 1, sizeof *names);
    if (!values || !names)
        return st_j_undefined(NULL);
    if (args.count)
        memcpy(values, args.values, args.count * sizeof *values);
    if (args.named)
        memcpy(names, args.names, args.named * sizeof *names);
    values[args.count] = *caller;
    names[args.named] = "caller";
    return call_value(j, callee, &(struct st_jargs){values, args.count + 1, names, args.named + 1});
}

/* ---- expressions ---- */

static struct st_jvalue eval_list(struct st_j *j, const struct st_jnode *n)
{
    struct st_jvalue out = n->kind == ST_N_DICT ? st_j_dict(j) : st_j_list(j, n->count, n->kind == ST_N_TUPLE);
    size_t step = n->kind == ST_N_DICT ? 2 : 1;
    for (size_t i = 0; i + step <= n->count && !j->failed; i += step) {
        struct st_jvalue first = eval(j, n->list[i]), second = step == 2 ? eval(j, n->list[i + 1]) : first;
        if (j->failed)
            break;
        if (step == 2)
            st_j_dict_set(j, out.of.dict, first, second);
        else
            st_j_append(j, out, first);
    }
    return out;
}

static bool compare(struct st_j *j, int op, struct st_jvalue a, struct st_jvalue b)
{
    if (op == ST_C_EQ || op == ST_C_NE)
        return st_j_equal(j, a, b) == (op == ST_C_EQ);
    if (op == ST_C_IN || op == ST_C_NOT_IN)
        return st_j_in(j, a, b) == (op == ST_C_IN);
    int c = st_j_compare(j, a, b);
    return c != 2 && (op == ST_C_LT ? c < 0 : op == ST_C_LE ? c <= 0 : op == ST_C_GT ? c > 0 : c >= 0);
}

static struct st_jvalue eval_compare(struct st_j *j, const struct st_jnode *n)
{
    struct st_jvalue left = eval(j, n->a);
    for (size_t i = 0; i < n->count && !j->failed; i++) {
        struct st_jvalue right = eval(j, n->list[i]);
        j->line = n->line;
        if (j->failed || !compare(j, n->ids[i], left, right))
            return st_j_bool(false);
        left = right;
    }
    return st_j_bool(true);
}

static struct st_jvalue eval_sign(struct st_j *j, const struct st_jnode *n)
{
    struct st_jvalue v = eval(j, n->a);
    double real;
    if (!j->failed && !st_j_number(&v, &real)) {
        st_j_fail(j, STRATA_E_ARGUMENT, "a %s has no sign", st_j_type(&v));
        return v;
    }
    if (v.kind == ST_J_FLOAT)
        return st_j_real(n->kind == ST_N_NEGATE ? -v.of.real : v.of.real);
    return st_j_binary(j, n->kind == ST_N_NEGATE ? ST_J_SUB : ST_J_ADD, st_j_int(0), v);
}

static struct st_jvalue eval_slice(struct st_j *j, const struct st_jnode *n)
{
    struct st_jvalue of = eval(j, n->a), part[3];
    for (int i = 0; i < 3; i++)
        part[i] = n->list[i] ? eval(j, n->list[i]) : st_j_none();
    j->line = n->line;
    if (of.kind == ST_J_UNDEFINED && !j->failed)
        st_j_fail(j, STRATA_E_ARGUMENT, "'%s' is undefined", of.of.hint ? of.of.hint : "value");
    return j->failed ? of : st_j_slice(j, of, part);
}

static struct st_jvalue eval_inner(struct st_j *j, const struct st_jnode *n)
{
    struct st_jvalue a, b;
    struct st_jargs args;
    switch (n->kind) {
    case ST_N_CONST: return n->value;
    case ST_N_NAME: return look_up(j, n->id);
    case ST_N_LIST:
    case ST_N_TUPLE:
    case ST_N_DICT: return eval_list(j, n);
    case ST_N_ATTR:
        a = eval(j, n->a);
        j->line = n->line;
        return st_j_attribute(j, a, n->name, n->name_size);
    case ST_N_ITEM:
        a = eval(j, n->a);
        b = eval(j, n->b);
        j->line = n->line;
        return st_j_subscript(j, a, b);
    case ST_N_SLICE: return eval_slice(j, n);
    case ST_N_CALL: return eval_call(j, n, NULL);
    case ST_N_FILTER: a = eval(j, n->a); return eval_arguments(j, n, &args) ? st_j_filter(j, n->which, a, &args) : a;
    case ST_N_TEST:
        a = eval(j, n->a);
        return st_j_bool(eval_arguments(j, n, &args) && st_j_test(j, n->which, a, &args));
    case ST_N_CAPTURED: return j->captured;
    case ST_N_NEGATE:
    case ST_N_PLUS: return eval_sign(j, n);
    case ST_N_NOT: return st_j_bool(!st_j_true(j, eval(j, n->a)));
    case ST_N_AND:
    case ST_N_OR: a = eval(j, n->a); return st_j_true(j, a) == (n->kind == ST_N_OR) ? a : eval(j, n->b);
    case ST_N_BINARY:
        a = eval(j, n->a);
        b = eval(j, n->b);
        j->line = n->line;
        return st_j_binary(j, n->which, a, b);
    case ST_N_COMPARE: return eval_compare(j, n);
    case ST_N_COND:
        if (st_j_true(j, eval(j, n->a)))
            return eval(j, n->b);
        return n->c ? eval(j, n->c) : st_j_undefined("value");
    default: break;
    }
    st_j_fail(j, STRATA_E_INTERNAL, "a node of kind %d is no expression", (int)n->kind);
    return st_j_undefined(NULL);
}

static struct st_jvalue eval(struct st_j *j, const struct st_jnode *n)
{
    if (!st_j_enter(j))
        return st_j_undefined(NULL);
    j->line = n->line;
    struct st_jvalue v = eval_inner(j, n);
    st_j_leave(j);
    return j->failed ? st_j_undefined(NULL) : v;
}

/* ---- statements ---- */

static struct st_jvalue make_macro(struct st_j *j, const struct st_jnode *n)
{
    struct st_jmacro *m = st_j_alloc(j, 1, sizeof *m);
    if (!m)
        return st_j_undefined(NULL);
    *m = (struct st_jmacro){n, j->scope};
    return (struct st_jvalue){.kind = ST_J_MACRO, .of.macro = m};
}

/* What a body renders, through a chain of filters if there is one. */
static struct st_jvalue captured(struct st_j *j, const struct st_jnode *n)
{
    struct st_jvalue v = capture(j, n->c, push_scope(j, j->scope));
    if (n->b && !j->failed) {
        j->captured = v;
        v = eval(j, n->b);
    }
    return v;
}

static void exec_with(struct st_j *j, const struct st_jnode *n)
{
    struct st_jscope *outer = j->scope, *inner = push_scope(j, outer);
    for (size_t i = 0; inner && i + 1 < n->count && !j->failed; i += 2) {
        struct st_jvalue v = eval(j, n->list[i + 1]);
        j->scope = inner;
        assign(j, n->list[i], v);
        j->scope = outer;
    }
    if (!j->failed) {
        j->scope = inner;
        exec(j, n->c);
    }
    j->scope = outer;
}

static void exec_inner(struct st_j *j, const struct st_jnode *n)
{
    struct st_jvalue v;
    switch (n->kind) {
    case ST_N_BLOCK:
        for (size_t i = 0; i < n->count && !j->failed && j->signal == RUNNING; i++)
            exec(j, n->list[i]);
        return;
    case ST_N_DATA: st_j_put_string(j, j->out, n->value.of.string); return;
    case ST_N_OUTPUT:
        v = eval(j, n->a);
        j->line = n->line;
        st_j_put_value(j, j->out, v, false);
        return;
    case ST_N_IF:
        for (size_t i = 0; i + 1 < n->count && !j->failed; i += 2)
            if (st_j_true(j, eval(j, n->list[i]))) {
                exec(j, n->list[i + 1]);
                return;
            }
        if (n->c && !j->failed)
            exec(j, n->c);
        return;
    case ST_N_FOR: exec_for(j, n); return;
    case ST_N_SET:
        v = eval(j, n->b);
        assign(j, n->a, v);
        return;
    case ST_N_SET_BLOCK:
        v = captured(j, n);
        assign(j, n->a, v);
        return;
    case ST_N_FILTER_BLOCK:
        v = captured(j, n);
        st_j_put_value(j, j->out, v, false);
        return;
    case ST_N_MACRO: set_in(j, j->scope, n->id, make_macro(j, n)); return;
    case ST_N_CALL_BLOCK: {
        struct st_jvalue caller = make_macro(j, n);
        v = eval_call(j, n->a, &caller);
        st_j_put_value(j, j->out, v, false);
        return;
    }
    case ST_N_WITH: exec_with(j, n); return;
    case ST_N_BREAK: j->signal = BREAKING; return;
    case ST_N_CONTINUE: j->signal = CONTINUING; return;
    default: st_j_fail(j, STRATA_E_INTERNAL, "a node of kind %d is no statement", (int)n->kind); return;
    }
}

static void exec(struct st_j *j, const struct st_jnode *n)
{
    if (!st_j_enter(j))
        return;
    j->line = n->line;
    exec_inner(j, n);
    st_j_leave(j);
}

/* ---- rendering ---- */

static enum strata_result hand_out(const struct st_jbuffer *b, struct st_rendered *out, struct strata_error *err)
{
    enum strata_result r = st_rendered_add(out, "", 0, true, err);
    for (size_t from = 0; r == STRATA_OK && from < b->size;) {
        const uint8_t *other = memchr(b->marks + from, b->marks[from] ^ 1, b->size - from);
        size_t to = other ? (size_t)(other - b->marks) : b->size;
        r = st_rendered_add(out, b->data + from, to - from, !b->marks[from], err);
        from = to;
    }
    return r;
}

enum strata_result st_jinja_render(const struct st_jinja *program, const struct st_jinja_variable *variables,
                                   size_t count, const struct st_jinja_limits *limits, time_t now,
                                   struct st_rendered *out, struct strata_error *err)
{
    if (!limits)
        limits = &st_jinja_default_limits;
    struct st_jbuffer text = {0};
    struct st_j j = {.arena.limit = limits->memory,
                     .steps = limits->steps,
                     .err = err,
                     .now = now,
                     .program = program,
                     .out = &text};
    j.scope = push_scope(&j, NULL);
    for (size_t i = 0; i < count && !j.failed; i++) {
        struct st_jvalue *id = st_j_dict_find(&j, program->ids, st_j_literal(&j, variables[i].name));
        if (!id || j.failed)
            continue;
        struct st_jvalue v =
            variables[i].json ? st_j_from_json(&j, variables[i].json) : st_j_literal(&j, variables[i].template_text);
        if (!j.failed)
            set_in(&j, j.scope, (int)id->of.number, v);
    }
    if (!j.failed)
        exec(&j, program->root);
    enum strata_result r = j.failed ? j.code : hand_out(&text, out, err);
    st_arena_free(&j.arena);
    if (r != STRATA_OK)
        st_rendered_free(out);
    return r;
}
