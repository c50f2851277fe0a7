/* Building and checking of the nets of grammar.h. */
#include "text/grammar.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

enum { NAME_MAX = 80 };

struct rule {
    char name[NAME_MAX];
    uint32_t start; /* ST_NET_NOWHERE until it is defined */
};

struct st_net {
    struct st_node *nodes;
    size_t node_count, node_room;
    struct st_edge *edges;
    size_t edge_count, edge_room;
    struct rule *rules;
    size_t rule_count, rule_room;
    struct strata_error error; /* code 0: none */
};

/* ---- growing ---- */

void st_net_refuse(struct st_net *net, enum strata_result code, const char *fmt, ...)
{
    if (net->error.code)
        return;
    va_list list;
    va_start(list, fmt);
    vsnprintf(net->error.text, sizeof net->error.text, fmt, list);
    va_end(list);
    net->error.code = code;
}

bool st_net_good(const struct st_net *net)
{
    return !net->error.code;
}

/* The list with room for more entries (and one besides), NULL on failure; a list may have ST_NET_NODES entries. */
static void *with_room(struct st_net *net, void *list, size_t count, size_t more, size_t *have, size_t size,
                       const char *what)
{
    if (net->error.code)
        return NULL;
    if (count + more > ST_NET_NODES) {
        st_net_refuse(net, STRATA_E_LIMIT, "the grammar has more than %d %s", ST_NET_NODES, what);
        return NULL;
    }
    if (count + more < *have)
        return list;
    size_t want = 2 * (count + more) + 64;
    void *grown = realloc(list, want * size);
    if (!grown)
        st_net_refuse(net, STRATA_E_MEMORY, "no memory for a grammar");
    else
        *have = want;
    return grown;
}

static uint32_t add_node(struct st_net *net, enum st_node_kind kind, uint32_t a, uint32_t b)
{
    struct st_node *nodes = with_room(net, net->nodes, net->node_count, 1, &net->node_room, sizeof *nodes, "nodes");
    if (!nodes)
        return ST_NET_RETURN;
    net->nodes = nodes;
    net->nodes[net->node_count] = (struct st_node){kind, a, b, 0};
    return (uint32_t)net->node_count++;
}

enum strata_result st_net_create(struct st_net **out, struct strata_error *err)
{
    struct st_net *net = *out = calloc(1, sizeof *net);
    if (net)
        add_node(net, ST_NODE_RETURN, 0, 0);
    if (!net || net->error.code) {
        st_net_free(net);
        *out = NULL;
        return st_fail(err, STRATA_E_MEMORY, "no memory for a grammar");
    }
    return STRATA_OK;
}

void st_net_free(struct st_net *net)
{
    if (!net)
        return;
    free(net->nodes);
    free(net->edges);
    free(net->rules);
    free(net);
}

uint32_t st_net_rule(struct st_net *net, const char *name, size_t size)
{
    char shown[NAME_MAX]; /* the name may be another rule's, which moves */
    st_printable(shown, sizeof shown, name, size);
    struct rule *rules = with_room(net, net->rules, net->rule_count, 1, &net->rule_room, sizeof *rules, "rules");
    if (!rules)
        return 0;
    net->rules = rules;
    struct rule *rule = &net->rules[net->rule_count];
    rule->start = ST_NET_NOWHERE;
    memcpy(rule->name, shown, sizeof shown);
    return (uint32_t)net->rule_count++;
}

const char *st_net_rule_name(const struct st_net *net, uint32_t rule)
{
    return rule < net->rule_count ? net->rules[rule].name : "";
}

void st_net_define(struct st_net *net, uint32_t rule, uint32_t start)
{
    if (rule < net->rule_count)
        net->rules[rule].start = start;
}

bool st_net_defined(const struct st_net *net, uint32_t rule)
{
    return rule < net->rule_count && net->rules[rule].start != ST_NET_NOWHERE;
}

/* ---- nodes ---- */

uint32_t st_net_call(struct st_net *net, uint32_t rule, uint32_t next)
{
    return add_node(net, ST_NODE_CALL, rule, next);
}

uint32_t st_net_split(struct st_net *net, uint32_t a, uint32_t b)
{
    if (a == ST_NET_NOWHERE || b == ST_NET_NOWHERE || a == b)
        return a == ST_NET_NOWHERE ? b : a;
    return add_node(net, ST_NODE_SPLIT, a, b);
}

uint32_t st_net_loop(struct st_net *net, uint32_t next)
{
    return add_node(net, ST_NODE_SPLIT, next, next);
}

void st_net_loop_body(struct st_net *net, uint32_t loop, uint32_t body)
{
    if (net->nodes[loop].kind == ST_NODE_SPLIT)
        net->nodes[loop].a = body;
}

/* Notes that from the place number count of a repetition on, all are alike. */
static void note_alike(struct st_net *net, uint32_t count, uint32_t node, uint32_t *like)
{
    if (count == ST_NET_FAR)
        *like = node;
    else if (count > ST_NET_FAR && st_net_good(net))
        net->nodes[node].alike = *like;
}

uint32_t st_net_repeat(struct st_net *net, uint32_t min, uint32_t max, uint32_t (*once)(void *user, uint32_t next), void *user,
                       uint32_t next)
{
    uint32_t behind = next, like = ST_NET_RETURN;
    if (max == ST_REPEAT_FOREVER) {
        next = st_net_loop(net, next);
        st_net_loop_body(net, next, once(user, next));
    }
    for (uint32_t i = min; max != ST_REPEAT_FOREVER && i < max && st_net_good(net); i++) {
        next = st_net_split(net, once(user, next), behind);
        note_alike(net, i - min, next, &like);
    }
    for (uint32_t i = 0; i < min && st_net_good(net); i++) {
        next = once(user, next);
        note_alike(net, i, next, &like);
    }
    return next;
}

uint32_t st_net_bytes(struct st_net *net, const struct st_edge *edges, size_t count)
{
    struct st_edge *all = with_room(net, net->edges, net->edge_count, count, &net->edge_room, sizeof *all, "edges");
    if (!all)
        return ST_NET_RETURN;
    net->edges = all;
    if (count)
        memcpy(net->edges + net->edge_count, edges, count * sizeof *edges);
    net->edge_count += count;
    return add_node(net, ST_NODE_BYTES, (uint32_t)(net->edge_count - count), (uint32_t)count);
}

uint32_t st_net_text(struct st_net *net, const char *text, size_t size, uint32_t next)
{
    for (size_t i = size; i > 0 && st_net_good(net); i--) {
        uint8_t byte = (uint8_t)text[i - 1];
        next = st_net_bytes(net, &(struct st_edge){byte, byte, next}, 1);
    }
    return next;
}

/* ---- character sets ---- */

static int by_lo(const void *a, const void *b)
{
    const struct st_range *x = a, *y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

size_t st_ranges_sort(struct st_range *ranges, size_t count)
{
    size_t kept = 0;
    if (count)
        qsort(ranges, count, sizeof *ranges, by_lo);
    for (size_t i = 0; i < count; i++) {
        if (kept && ranges[i].lo <= ranges[kept - 1].hi + 1) {
            if (ranges[i].hi > ranges[kept - 1].hi)
                ranges[kept - 1].hi = ranges[i].hi;
        } else {
            ranges[kept++] = ranges[i];
        }
    }
    return kept;
}

size_t st_ranges_invert(const struct st_range *ranges, size_t count, struct st_range *out)
{
    uint32_t from = 0;
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        if (ranges[i].lo > from)
            out[n++] = (struct st_range){from, ranges[i].lo - 1};
        from = ranges[i].hi + 1;
    }
    if (from <= ST_CODE_POINT_MAX)
        out[n++] = (struct st_range){from, ST_CODE_POINT_MAX};
    return n;
}

/* Byte ranges, one for each of a character's bytes: every combination is a character. */
struct sequence {
    int size;
    uint8_t lo[4], hi[4];
};

struct sequences {
    struct sequence *list;
    size_t count, have;
};

/* Appends a range whose ends have the same number of bytes and differ only in bytes whose followers are free. */
static bool add_sequence(struct st_net *net, struct sequences *s, struct st_range range)
{
    char lo[4] = {0}, hi[4] = {0};
    struct sequence *list = with_room(net, s->list, s->count, 1, &s->have, sizeof *list, "ranges of bytes");
    if (!list)
        return false;
    s->list = list;
    struct sequence *q = &s->list[s->count++];
    q->size = (int)st_utf8_put(range.lo, lo);
    st_utf8_put(range.hi, hi);
    memcpy(q->lo, lo, 4);
    memcpy(q->hi, hi, 4);
    return true;
}

/* Cuts a range until add_sequence can take the parts, lowest first. */
static void cut_range(struct st_net *net, struct sequences *s, struct st_range range)
{
    static const uint32_t ends[] = {0x7F, 0x7FF, 0xD7FF, 0xDFFF, 0xFFFF};
    struct st_range todo[16] = {range};
    int n = 1;
    while (n > 0) {
        struct st_range r = todo[--n];
        uint32_t cut = r.hi; /* the last code point of the first part */
        for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
            if (r.lo <= ends[i] && cut > ends[i])
                cut = ends[i];
        if (cut == r.hi && r.lo >= 0x80) {
            int free_bytes = r.lo < 0x800 ? 1 : r.lo < 0x10000 ? 2 : 3;
            for (int i = 1; i <= free_bytes && cut == r.hi; i++) {
                uint32_t mask = (1u << 6 * i) - 1;
                if ((r.lo & ~mask) == (r.hi & ~mask))
                    continue;
                if (r.lo & mask)
                    cut = r.lo | mask;
                else if ((r.hi & mask) != mask)
                    cut = (r.hi & ~mask) - 1;
            }
        }
        if (cut < r.hi) {
            todo[n++] = (struct st_range){cut + 1, r.hi};
            todo[n++] = (struct st_range){r.lo, cut};
        } else if ((r.lo < 0xD800 || r.lo > 0xDFFF) && !add_sequence(net, s, r)) {
            return;
        }
    }
}

/* Nodes made for one set, so that equal ends of characters are one node. */
struct made {
    uint32_t nodes[64];
    int count;
};

static uint32_t shared_bytes(struct st_net *net, struct made *made, const struct st_edge *edges, size_t count)
{
    for (int i = 0; i < made->count; i++) {
        const struct st_node *n = &net->nodes[made->nodes[i]];
        const struct st_edge *have = net->edges + n->a;
        size_t same = 0;
        while (n->b == count && same < count && have[same].lo == edges[same].lo && have[same].hi == edges[same].hi &&
               have[same].next == edges[same].next)
            same++;
        if (n->b == count && same == count)
            return made->nodes[i];
    }
    uint32_t node = st_net_bytes(net, edges, count);
    if (made->count < (int)(sizeof made->nodes / sizeof *made->nodes) && st_net_good(net))
        made->nodes[made->count++] = node;
    return node;
}

/* The node for sequences that agree in their bytes before depth; sorted, so equal first ranges stand together. Calls itself
 * at most three deep: a character has four bytes. */
static uint32_t set_level(struct st_net *net, struct made *made, const struct sequence *list, size_t count, int depth,
                          uint32_t next)
{
    struct st_edge edges[256];
    size_t n = 0;
    for (size_t from = 0, to; from < count && st_net_good(net); from = to) {
        for (to = from + 1; to < count && list[to].lo[depth] == list[from].lo[depth]; to++)
            ;
        uint32_t target = list[from].size == depth + 1 || depth == 3
                              ? next
                              : set_level(net, made, list + from, to - from, depth + 1, next);
        if (n && edges[n - 1].next == target && edges[n - 1].hi + 1 == list[from].lo[depth])
            edges[n - 1].hi = list[from].hi[depth];
        else
            edges[n++] = (struct st_edge){list[from].lo[depth], list[from].hi[depth], target};
    }
    return shared_bytes(net, made, edges, n);
}

uint32_t st_net_set(struct st_net *net, const struct st_range *ranges, size_t count, uint32_t next)
{
    struct sequences s = {0};
    struct made made = {.count = 0};
    uint32_t node = ST_NET_RETURN;
    struct st_range *sorted = malloc((count + 1) * sizeof *sorted);
    if (!sorted || count > ST_NET_RANGES) {
        st_net_refuse(net, STRATA_E_LIMIT, "a character set has more than %d ranges", ST_NET_RANGES);
    } else {
        if (count)
            memcpy(sorted, ranges, count * sizeof *sorted);
        count = st_ranges_sort(sorted, count);
        for (size_t i = 0; i < count; i++)
            cut_range(net, &s, sorted[i]);
        node = set_level(net, &made, s.list, s.count, 0, next);
    }
    free(sorted);
    free(s.list);
    return node;
}

/* ---- choices ---- */

/* A tree of texts: children of a node are a list by first, sibling. Parents come before their children. */
struct branch {
    uint8_t byte;
    bool ends;
    uint32_t child, sibling; /* 0: none */
};

static uint32_t plant(struct st_net *net, struct branch **tree, size_t *count, size_t *have, uint32_t at, uint8_t byte)
{
    for (uint32_t c = (*tree)[at].child; c; c = (*tree)[c].sibling)
        if ((*tree)[c].byte == byte)
            return c;
    struct branch *grown = with_room(net, *tree, *count, 1, have, sizeof *grown, "bytes of texts to choose from");
    if (!grown)
        return 0;
    *tree = grown;
    uint32_t fresh = (uint32_t)(*count)++;
    (*tree)[fresh] = (struct branch){.byte = byte, .sibling = (*tree)[at].child};
    (*tree)[at].child = fresh;
    return fresh;
}

static int by_byte(const void *a, const void *b)
{
    return ((const struct st_edge *)a)->lo - ((const struct st_edge *)b)->lo;
}

uint32_t st_net_choice(struct st_net *net, const char *const *texts, const size_t *sizes, size_t count, uint32_t next)
{
    size_t branches = 1, have = 0;
    uint32_t node = ST_NET_RETURN, *made = NULL;
    struct branch *tree = with_room(net, NULL, 0, 1, &have, sizeof *tree, "texts to choose from");
    if (tree) {
        tree[0] = (struct branch){0};
        for (size_t i = 0; i < count && st_net_good(net); i++) {
            uint32_t at = 0;
            for (size_t k = 0; k < sizes[i] && st_net_good(net); k++)
                at = plant(net, &tree, &branches, &have, at, (uint8_t)texts[i][k]);
            tree[at].ends = true;
        }
        made = malloc(branches * sizeof *made);
        if (!made)
            st_net_refuse(net, STRATA_E_MEMORY, "no memory for a grammar");
    }
    for (size_t b = branches; b > 0 && st_net_good(net); b--) {
        struct st_edge edges[256];
        size_t n = 0;
        for (uint32_t c = tree[b - 1].child; c; c = tree[c].sibling)
            edges[n++] = (struct st_edge){tree[c].byte, tree[c].byte, made[c]};
        if (n)
            qsort(edges, n, sizeof *edges, by_byte);
        node = n || !tree[b - 1].ends ? st_net_bytes(net, edges, n) : next;
        if (n && tree[b - 1].ends)
            node = st_net_split(net, node, next);
        made[b - 1] = node;
    }
    free(tree);
    free(made);
    return node;
}

/* Edges of the node at which the last k bytes are the first k of end; at: the nodes for every k. */
static size_t until_edges(const char *end, size_t k, const char *without, const uint32_t *at, struct st_edge *edges)
{
    char seen[64];
    size_t n = 0;
    memcpy(seen, end, k);
    for (int byte = 0; byte < 256; byte++) {
        if (byte && strchr(without, byte))
            continue;
        seen[k] = (char)byte;
        size_t match = k + 1;
        while (match > 0 && memcmp(end, seen + k + 1 - match, match) != 0)
            match--;
        if (n && edges[n - 1].next == at[match] && edges[n - 1].hi == byte - 1)
            edges[n - 1].hi = (uint8_t)byte;
        else
            edges[n++] = (struct st_edge){(uint8_t)byte, (uint8_t)byte, at[match]};
    }
    return n;
}

uint32_t st_net_until(struct st_net *net, const char *end, const char *not_first, uint32_t next)
{
    struct st_edge edges[256];
    uint32_t at[64];
    size_t size = strlen(end);
    /* The nodes lead to each other, so their edges come later. */
    for (size_t k = 0; k < size; k++)
        at[k] = st_net_bytes(net, NULL, 0);
    at[size] = next;
    for (size_t k = 0; k < size && st_net_good(net); k++) {
        uint32_t copy = st_net_bytes(net, edges, until_edges(end, k, "", at, edges));
        net->nodes[at[k]] = net->nodes[copy];
    }
    return *not_first ? st_net_bytes(net, edges, until_edges(end, 0, not_first, at, edges)) : at[0];
}

/* ---- checks ---- */

/* Nodes by what they lead to, so that a property can be spread backwards. A CALL node stands under the node behind it and
 * under the start of its rule. */
struct reverse {
    uint32_t *first, *from; /* from[first[n] .. first[n + 1]) lead to n */
};

static size_t leads_to(const struct st_net *net, uint32_t n, struct st_edge *edge_scratch, const struct st_edge **edges)
{
    const struct st_node *node = &net->nodes[n];
    *edges = edge_scratch;
    switch (node->kind) {
    case ST_NODE_RETURN: return 0;
    case ST_NODE_BYTES: *edges = net->edges + node->a; return node->b;
    case ST_NODE_SPLIT:
        edge_scratch[0].next = node->a;
        edge_scratch[1].next = node->b;
        return 2;
    case ST_NODE_CALL:
        edge_scratch[0].next = net->rules[node->a].start;
        edge_scratch[1].next = node->b;
        return 2;
    }
    return 0;
}

static enum strata_result reverse_edges(const struct st_net *net, struct reverse *out, struct strata_error *err)
{
    struct st_edge scratch[2];
    const struct st_edge *edges;
    out->first = calloc(net->node_count + 2, sizeof *out->first);
    out->from = malloc((net->edge_count + 2 * net->node_count + 1) * sizeof *out->from);
    if (!out->first || !out->from)
        return st_fail(err, STRATA_E_MEMORY, "no memory for a grammar");
    uint32_t *count = out->first + 2;
    for (uint32_t n = 0; n < net->node_count; n++) {
        size_t k = leads_to(net, n, scratch, &edges);
        for (size_t i = 0; i < k; i++)
            count[edges[i].next]++;
    }
    for (size_t n = 2; n < net->node_count + 2; n++)
        out->first[n] += out->first[n - 1];
    for (uint32_t n = 0; n < net->node_count; n++) {
        size_t k = leads_to(net, n, scratch, &edges);
        for (size_t i = 0; i < k; i++)
            out->from[out->first[edges[i].next + 1]++] = n;
    }
    return STRATA_OK;
}

/* From which nodes the end of the rule can be reached: at all, or without a byte. */
static void spread(const struct st_net *net, const struct reverse *reverse, bool through_bytes, bool *reached, uint32_t *todo)
{
    size_t n = 0;
    memset(reached, 0, net->node_count);
    reached[ST_NET_RETURN] = true;
    todo[n++] = ST_NET_RETURN;
    while (n > 0) {
        uint32_t to = todo[--n];
        for (uint32_t i = reverse->first[to]; i < reverse->first[to + 1]; i++) {
            uint32_t from = reverse->from[i];
            const struct st_node *node = &net->nodes[from];
            bool good = node->kind == ST_NODE_SPLIT || (node->kind == ST_NODE_BYTES && through_bytes) ||
                        (node->kind == ST_NODE_CALL && reached[node->b] && reached[net->rules[node->a].start]);
            if (good && !reached[from]) {
                reached[from] = true;
                todo[n++] = from;
            }
        }
    }
}

/* Visits what a rule can begin with. Rules are gone through depth first with a stack of their own; a rule that is met while
 * it is still open begins with itself. */
struct beginnings {
    const struct st_net *net;
    const bool *empty; /* by node: the rest of the rule may be empty */
    uint8_t *state;    /* by rule: 0 new, 1 open, 2 done */
    bool *seen;        /* by node */
    uint32_t *nodes, *rules, *list; /* stacks; list: rules found, in groups of the rules on the stack */
    uint32_t *from;                 /* where the group of each rule on the stack begins */
};

/* Appends the rules that a rule may call before any byte. Each node belongs to one rule, so it is seen once. */
static size_t first_calls(struct beginnings *b, uint32_t rule, size_t listed)
{
    size_t n = 0;
    uint32_t start = b->net->rules[rule].start;
    if (!b->seen[start])
        b->nodes[n++] = start;
    b->seen[start] = true;
    while (n > 0) {
        const struct st_node *node = &b->net->nodes[b->nodes[--n]];
        uint32_t next[2];
        int k = 0;
        if (node->kind == ST_NODE_SPLIT) {
            next[k++] = node->a;
            next[k++] = node->b;
        } else if (node->kind == ST_NODE_CALL) {
            b->list[listed++] = node->a;
            if (b->empty[b->net->rules[node->a].start])
                next[k++] = node->b;
        }
        for (int i = 0; i < k; i++)
            if (!b->seen[next[i]]) {
                b->seen[next[i]] = true;
                b->nodes[n++] = next[i];
            }
    }
    return listed;
}

/* The first rule found that begins with itself, ST_NET_NOWHERE if there is none. */
static uint32_t find_left_recursion(struct beginnings *b)
{
    for (uint32_t root = 0; root < b->net->rule_count; root++) {
        size_t depth = 0, listed = 0;
        if (b->state[root])
            continue;
        b->rules[0] = root;
        b->from[0] = 0;
        b->state[root] = 1;
        depth = 1;
        listed = first_calls(b, root, 0);
        while (depth > 0) {
            if (listed == b->from[depth - 1]) {
                b->state[b->rules[--depth]] = 2;
                continue;
            }
            uint32_t rule = b->list[--listed];
            if (b->state[rule] == 1)
                return rule;
            if (b->state[rule] == 2)
                continue;
            b->state[rule] = 1;
            b->rules[depth] = rule;
            b->from[depth++] = (uint32_t)listed;
            listed = first_calls(b, rule, listed);
        }
    }
    return ST_NET_NOWHERE;
}

static enum strata_result check_left_recursion(const struct st_net *net, const bool *empty, struct strata_error *err)
{
    struct beginnings b = {.net = net,
                           .empty = empty,
                           .state = calloc(net->rule_count + 1, 1),
                           .seen = calloc(net->node_count, 1),
                           .nodes = malloc(net->node_count * sizeof *b.nodes),
                           .rules = malloc((net->rule_count + 1) * sizeof *b.rules),
                           .list = malloc((net->node_count + 1) * sizeof *b.list),
                           .from = malloc((net->rule_count + 1) * sizeof *b.from)};
    enum strata_result r = STRATA_OK;
    if (!b.state || !b.seen || !b.nodes || !b.rules || !b.list || !b.from) {
        r = st_fail(err, STRATA_E_MEMORY, "no memory for a grammar");
    } else {
        uint32_t rule = find_left_recursion(&b);
        if (rule != ST_NET_NOWHERE)
            r = st_fail(err, STRATA_E_FORMAT, "rule %s begins with itself (left recursion)", net->rules[rule].name);
    }
    free(b.state);
    free(b.seen);
    free(b.nodes);
    free(b.rules);
    free(b.list);
    free(b.from);
    return r;
}

/* Marks the nodes that can be reached from the root; todo has room for all. */
static void reach(const struct st_net *net, uint32_t start, bool *reached, uint32_t *todo)
{
    struct st_edge scratch[2];
    const struct st_edge *edges;
    size_t n = 0;
    memset(reached, 0, net->node_count);
    reached[start] = true;
    todo[n++] = start;
    while (n > 0) {
        size_t k = leads_to(net, todo[--n], scratch, &edges);
        for (size_t i = 0; i < k; i++)
            if (!reached[edges[i].next]) {
                reached[edges[i].next] = true;
                todo[n++] = edges[i].next;
            }
    }
}

static void find_classes(struct st_grammar *g, const bool *reached)
{
    bool begins[257] = {true};
    for (size_t n = 0; n < g->node_count; n++)
        for (uint32_t i = 0; reached[n] && g->nodes[n].kind == ST_NODE_BYTES && i < g->nodes[n].b; i++) {
            const struct st_edge *e = &g->edges[g->nodes[n].a + i];
            begins[e->lo] = true;
            begins[e->hi + 1] = true;
        }
    for (int byte = 0; byte < 256; byte++) {
        if (begins[byte])
            g->class_byte[g->classes++] = (uint8_t)byte;
        g->class_of[byte] = (uint8_t)(g->classes - 1);
    }
}

/* Moves the net's lists into the grammar. */
static enum strata_result assemble(struct st_net *net, uint32_t root, struct st_grammar *g, struct strata_error *err)
{
    struct reverse reverse = {0};
    bool *empty = malloc(net->node_count);
    uint32_t *todo = malloc(net->node_count * sizeof *todo);
    g->alive = malloc(net->node_count);
    g->starts = malloc((net->rule_count + 1) * sizeof *g->starts);
    enum strata_result r = reverse_edges(net, &reverse, err);
    if (!r && (!empty || !todo || !g->alive || !g->starts))
        r = st_fail(err, STRATA_E_MEMORY, "no memory for a grammar");
    if (!r) {
        spread(net, &reverse, false, empty, todo);
        r = check_left_recursion(net, empty, err);
    }
    if (!r) {
        spread(net, &reverse, true, g->alive, todo);
        g->start = net->rules[root].start;
        if (!g->alive[g->start])
            r = st_fail(err, STRATA_E_FORMAT, "rule %s can never end", net->rules[root].name);
    }
    if (!r) {
        for (size_t i = 0; i < net->rule_count; i++)
            g->starts[i] = net->rules[i].start;
        g->rule_count = net->rule_count;
        g->nodes = net->nodes;
        g->node_count = net->node_count;
        g->edges = net->edges;
        net->nodes = NULL;
        net->edges = NULL;
        net->node_count = net->edge_count = 0;
    }
    if (!r) {
        struct st_net view = {.nodes = g->nodes, .node_count = g->node_count, .edges = g->edges, .rules = net->rules};
        reach(&view, g->start, empty, todo);
        find_classes(g, empty);
    }
    free(reverse.first);
    free(reverse.from);
    free(empty);
    free(todo);
    return r;
}

enum strata_result st_net_finish(struct st_net *net, uint32_t root, struct st_grammar **out, struct strata_error *err)
{
    *out = NULL;
    for (size_t i = 0; i < net->rule_count; i++)
        if (net->rules[i].start == ST_NET_NOWHERE)
            st_net_refuse(net, STRATA_E_FORMAT, "rule %s is used but not defined", net->rules[i].name);
    if (net->error.code)
        return st_fail(err, net->error.code, "%s", net->error.text);
    struct st_grammar *g = calloc(1, sizeof *g);
    if (!g)
        return st_fail(err, STRATA_E_MEMORY, "no memory for a grammar");
    enum strata_result r = assemble(net, root, g, err);
    if (r) {
        st_grammar_free(g);
        return r;
    }
    *out = g;
    return STRATA_OK;
}

void st_grammar_free(struct st_grammar *g)
{
    if (!g)
        return;
    free(g->nodes);
    free(g->alive);
    free(g->edges);
    free(g->starts);
    free(g);
}
