/* Sets of stacks, their steps and masks: see matcher.h. A stack is a cell: a node, and the cell below it, which says where to
 * go on when the rule of the node ends. Equal stacks are one cell, equal sets one number. */
#include "text/matcher.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "text/trie.h"

enum { BOTTOM = 0, DEAD = 0, WORK_LIMIT = 50000000, FIRST_ROOM = 256 };

#define UNKNOWN UINT32_MAX

struct cell {
    uint32_t node, below; /* below: a cell, BOTTOM for none */
    uint32_t depth;
    uint32_t seen; /* the step that met it last */
};

/* A set: its stacks end at BYTES nodes, ascending by number. */
struct set {
    uint32_t from, count; /* of members */
    int32_t mask;         /* -1: not computed */
    bool can_end;
};

struct table { /* open addressing; 0: empty */
    uint32_t *slots;
    size_t mask;
};

/* Everything that was learnt. */
struct memory {
    struct cell *cells;
    struct set *sets;
    uint32_t *members;
    uint32_t *steps; /* [sets][classes] */
    size_t cell_count, cell_room, set_count, set_room, member_count, member_room, step_room;
    struct table cell_table, set_table;
};

struct st_matcher {
    const struct st_grammar *g;
    const struct st_trie *trie;
    size_t words; /* of a mask */
    struct memory k;
    struct place {
        uint32_t set; /* DEAD: nowhere */
        bool ended;   /* a token that ends the answer was accepted */
    } at, back[ST_MATCHER_BACK]; /* back: before the tokens accepted last, as a ring */
    size_t accepted;
    uint32_t row;  /* a set that must survive beside these */
    uint32_t step; /* number of the current step */
    uint64_t work;
    uint32_t *todo, *found; /* cells */
    size_t todo_count, todo_room, found_count;
    uint32_t *path; /* [deepest + 1] sets on the way through the tree */
    uint32_t *masks; /* [ST_MATCHER_MASKS][words] */
    uint32_t *end_mask, *all_mask;
    uint32_t mask_of[ST_MATCHER_MASKS];
    int next_mask;
    struct strata_error *err;
    enum strata_result failed;
    bool full; /* failed for want of room, which forgetting may make */
};

/* ---- memory ---- */

static void memory_free(struct memory *k)
{
    free(k->cells);
    free(k->sets);
    free(k->members);
    free(k->steps);
    free(k->cell_table.slots);
    free(k->set_table.slots);
    *k = (struct memory){0};
}

static size_t memory_bytes(const struct memory *k)
{
    return k->cell_room * sizeof *k->cells + k->set_room * sizeof *k->sets + k->member_room * sizeof *k->members +
           k->step_room * sizeof *k->steps + (k->cell_table.mask + k->set_table.mask + 2) * sizeof(uint32_t);
}

static bool fail_memory(struct st_matcher *m)
{
    if (!m->failed)
        m->failed = st_fail(m->err, STRATA_E_MEMORY, "no memory to follow a grammar");
    return false;
}

/* The list with room for more entries; NULL with failed set if there is none. */
static void *with_room(struct st_matcher *m, void *list, size_t count, size_t more, size_t *have, size_t size)
{
    if (m->failed)
        return NULL;
    if (count + more <= *have)
        return list;
    size_t want = 2 * (count + more) + FIRST_ROOM;
    if (memory_bytes(&m->k) + (want - *have) * size > ST_MATCHER_BYTES) {
        m->full = true;
        m->failed = st_fail(m->err, STRATA_E_LIMIT, "the grammar is too ambiguous: following it takes more than %d MiB",
                            ST_MATCHER_BYTES >> 20);
        return NULL;
    }
    void *grown = realloc(list, want * size);
    if (!grown)
        fail_memory(m);
    else
        *have = want;
    return grown;
}

static uint64_t cell_hash(uint32_t node, uint32_t below)
{
    uint64_t h = ((uint64_t)node << 32 | below) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 32;
}

static uint64_t set_hash(const uint32_t *cells, size_t count, bool can_end)
{
    return XXH3_64bits(cells, count * sizeof *cells) + can_end;
}

/* Doubles a table when it is half full. hash gives the place of entry i. */
static bool table_room(struct st_matcher *m, struct table *t, size_t count, uint64_t (*hash)(const struct memory *, size_t))
{
    if (t->slots && 2 * count < t->mask)
        return true;
    size_t slots = t->slots ? 2 * (t->mask + 1) : 1024;
    uint32_t *fresh = calloc(slots, sizeof *fresh);
    if (!fresh)
        return fail_memory(m);
    for (size_t i = 1; i < count; i++) {
        size_t at = (size_t)hash(&m->k, i) & (slots - 1);
        while (fresh[at])
            at = (at + 1) & (slots - 1);
        fresh[at] = (uint32_t)i;
    }
    free(t->slots);
    t->slots = fresh;
    t->mask = slots - 1;
    return true;
}

static uint64_t hash_of_cell(const struct memory *k, size_t i)
{
    return cell_hash(k->cells[i].node, k->cells[i].below);
}

static uint64_t hash_of_set(const struct memory *k, size_t i)
{
    return set_hash(k->members + k->sets[i].from, k->sets[i].count, k->sets[i].can_end);
}

/* The cell of a stack; BOTTOM with failed set without room. */
static uint32_t cell_of(struct st_matcher *m, uint32_t node, uint32_t below)
{
    struct memory *k = &m->k;
    struct cell *cells = with_room(m, k->cells, k->cell_count, 1, &k->cell_room, sizeof *cells);
    if (!cells || !(k->cells = cells) || !table_room(m, &k->cell_table, k->cell_count, hash_of_cell))
        return BOTTOM;
    struct table *t = &k->cell_table;
    size_t at = (size_t)cell_hash(node, below) & t->mask;
    for (; t->slots[at]; at = (at + 1) & t->mask)
        if (cells[t->slots[at]].node == node && cells[t->slots[at]].below == below)
            return t->slots[at];
    uint32_t id = t->slots[at] = (uint32_t)k->cell_count++;
    cells[id] = (struct cell){node, below, cells[below].depth + 1, 0};
    return id;
}

/* The number of a set, DEAD for an empty one that cannot end. */
static uint32_t set_of(struct st_matcher *m, const uint32_t *cells, size_t count, bool can_end)
{
    struct memory *k = &m->k;
    size_t classes = (size_t)m->g->classes;
    if (m->failed || (count == 0 && !can_end))
        return DEAD;
    struct set *sets = with_room(m, k->sets, k->set_count, 1, &k->set_room, sizeof *sets);
    if (sets)
        k->sets = sets;
    uint32_t *members = with_room(m, k->members, k->member_count, count, &k->member_room, sizeof *members);
    if (members)
        k->members = members;
    uint32_t *steps = with_room(m, k->steps, k->set_count * classes, classes, &k->step_room, sizeof *steps);
    if (steps)
        k->steps = steps;
    if (m->failed || !table_room(m, &k->set_table, k->set_count, hash_of_set))
        return DEAD;
    struct table *t = &k->set_table;
    size_t at = (size_t)set_hash(cells, count, can_end) & t->mask;
    for (; t->slots[at]; at = (at + 1) & t->mask) {
        const struct set *s = &sets[t->slots[at]];
        if (s->count == count && s->can_end == can_end &&
            (count == 0 || memcmp(members + s->from, cells, count * sizeof *cells) == 0))
            return t->slots[at];
    }
    uint32_t id = t->slots[at] = (uint32_t)k->set_count++;
    sets[id] = (struct set){(uint32_t)k->member_count, (uint32_t)count, -1, can_end};
    if (count)
        memcpy(members + k->member_count, cells, count * sizeof *cells);
    k->member_count += count;
    for (size_t i = 0; i < classes; i++)
        steps[id * classes + i] = UNKNOWN;
    return id;
}

/* Cell BOTTOM and set DEAD. */
static bool memory_begin(struct st_matcher *m)
{
    struct memory *k = &m->k;
    m->failed = STRATA_OK;
    m->full = false;
    k->cells = with_room(m, NULL, 0, 1, &k->cell_room, sizeof *k->cells);
    k->sets = with_room(m, NULL, 0, 1, &k->set_room, sizeof *k->sets);
    k->members = with_room(m, NULL, 0, 1, &k->member_room, sizeof *k->members);
    k->steps = with_room(m, NULL, 0, (size_t)m->g->classes, &k->step_room, sizeof *k->steps);
    if (m->failed)
        return false;
    k->cells[BOTTOM] = (struct cell){0};
    k->sets[DEAD] = (struct set){0, 0, -1, false};
    k->cell_count = k->set_count = 1;
    for (int i = 0; i < m->g->classes; i++)
        k->steps[i] = DEAD;
    m->step = 0;
    return true;
}

/* A stack of the old memory in the new one; moved: by old cell, its new number, 0 if it was not moved yet. */
static uint32_t move_cell(struct st_matcher *m, const struct memory *old, uint32_t *moved, uint32_t cell)
{
    while (!moved[cell]) {
        uint32_t c = cell;
        while (old->cells[c].below != BOTTOM && !moved[old->cells[c].below])
            c = old->cells[c].below;
        uint32_t below = old->cells[c].below == BOTTOM ? BOTTOM : moved[old->cells[c].below];
        moved[c] = cell_of(m, old->cells[c].node, below);
        if (m->failed)
            return BOTTOM;
    }
    return moved[cell];
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static uint32_t move_set(struct st_matcher *m, const struct memory *old, uint32_t *moved, uint32_t set)
{
    const struct set *s = &old->sets[set];
    for (uint32_t i = 0; i < s->count && !m->failed; i++)
        m->found[i] = move_cell(m, old, moved, old->members[s->from + i]);
    if (s->count)
        qsort(m->found, s->count, sizeof *m->found, by_number);
    return set_of(m, m->found, s->count, s->can_end);
}

/* Forgets everything but the places and the set row. */
static bool forget(struct st_matcher *m)
{
    struct memory old = m->k;
    uint32_t *moved = calloc(old.cell_count + 1, sizeof *moved);
    m->k = (struct memory){0};
    bool good = moved ? memory_begin(m) : fail_memory(m);
    if (good) {
        m->at.set = move_set(m, &old, moved, m->at.set);
        m->row = move_set(m, &old, moved, m->row);
        for (int i = 0; i < ST_MATCHER_BACK; i++)
            m->back[i].set = move_set(m, &old, moved, m->back[i].set);
        for (int i = 0; i < ST_MATCHER_MASKS; i++)
            m->mask_of[i] = DEAD;
        good = !m->failed;
    }
    free(moved);
    memory_free(&old);
    return good;
}

/* ---- steps ---- */

static void visit(struct st_matcher *m, uint32_t node, uint32_t below)
{
    if (!m->g->alive[node])
        return;
    uint32_t cell = cell_of(m, node, below);
    if (m->failed || m->k.cells[cell].seen == m->step || m->k.cells[cell].depth > ST_MATCHER_DEPTH)
        return;
    m->k.cells[cell].seen = m->step;
    if (m->todo_count == m->todo_room) {
        size_t more = 2 * m->todo_room + FIRST_ROOM;
        uint32_t *grown = realloc(m->todo, more * sizeof *grown);
        if (!grown) {
            fail_memory(m);
            return;
        }
        m->todo = grown;
        m->todo_room = more;
    }
    m->todo[m->todo_count++] = cell;
}

/* Follows what needs no byte from the cells in todo: the stacks that wait for one go to found. */
static bool settle(struct st_matcher *m)
{
    const struct st_grammar *g = m->g;
    bool can_end = false;
    while (m->todo_count > 0 && !m->failed) {
        uint32_t id = m->todo[--m->todo_count];
        struct cell cell = m->k.cells[id];
        const struct st_node *node = &g->nodes[cell.node];
        switch (node->kind) {
        case ST_NODE_RETURN:
            if (cell.below == BOTTOM)
                can_end = true;
            else
                visit(m, m->k.cells[cell.below].node, m->k.cells[cell.below].below);
            break;
        case ST_NODE_SPLIT:
            visit(m, node->a, cell.below);
            visit(m, node->b, cell.below);
            break;
        case ST_NODE_CALL: {
            /* Where nothing comes behind the rule, its end is that of the rule around it: stacks of lists stay flat. */
            uint32_t below = node->b == ST_NET_RETURN ? cell.below : cell_of(m, node->b, cell.below);
            visit(m, g->starts[node->a], below);
            break;
        }
        case ST_NODE_BYTES:
            if (m->found_count == ST_MATCHER_STACKS)
                m->failed = st_fail(m->err, STRATA_E_LIMIT, "the grammar is too ambiguous: more than %d ways to go on",
                                    ST_MATCHER_STACKS);
            else
                m->found[m->found_count++] = id;
            break;
        }
        if (++m->work > WORK_LIMIT && !m->failed)
            m->failed = st_fail(m->err, STRATA_E_LIMIT, "the grammar is too ambiguous: a token takes too many steps");
    }
    return can_end;
}

static void begin_step(struct st_matcher *m)
{
    m->step++;
    m->todo_count = m->found_count = 0;
}

static uint32_t found_set(struct st_matcher *m, bool can_end)
{
    if (m->found_count)
        qsort(m->found, m->found_count, sizeof *m->found, by_number);
    return set_of(m, m->found, m->found_count, can_end);
}

static uint32_t target(const struct st_grammar *g, uint32_t node, uint8_t byte)
{
    const struct st_edge *edges = g->edges + g->nodes[node].a;
    uint32_t lo = 0, hi = g->nodes[node].b;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (edges[mid].hi < byte)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < g->nodes[node].b && edges[lo].lo <= byte ? edges[lo].next : UNKNOWN;
}

/* Where a class of bytes leads from a set; DEAD, maybe with failed set. */
static uint32_t step(struct st_matcher *m, uint32_t set, uint8_t class)
{
    size_t classes = (size_t)m->g->classes;
    uint32_t known = m->k.steps[set * classes + class];
    if (known != UNKNOWN)
        return known;
    begin_step(m);
    uint8_t byte = m->g->class_byte[class];
    for (uint32_t i = 0; i < m->k.sets[set].count && !m->failed; i++) {
        struct cell cell = m->k.cells[m->k.members[m->k.sets[set].from + i]];
        uint32_t to = target(m->g, cell.node, byte);
        m->work++;
        if (to != UNKNOWN)
            visit(m, to, cell.below);
    }
    bool can_end = settle(m);
    uint32_t to = found_set(m, can_end);
    if (!m->failed)
        m->k.steps[set * classes + class] = to;
    return to;
}

static uint32_t first_set(struct st_matcher *m)
{
    begin_step(m);
    visit(m, m->g->start, BOTTOM);
    bool can_end = settle(m);
    return found_set(m, can_end);
}

/* ---- the object ---- */

enum strata_result st_matcher_create(const struct st_grammar *g, const struct st_trie *trie, size_t vocabulary,
                                     struct st_matcher **out, struct strata_error *err)
{
    struct st_matcher *m = *out = calloc(1, sizeof *m);
    size_t words = ((vocabulary > trie->vocabulary ? vocabulary : trie->vocabulary) + 31) / 32;
    if (!m)
        return st_fail(err, STRATA_E_MEMORY, "no memory to follow a grammar");
    m->g = g;
    m->trie = trie;
    m->words = words;
    m->err = err;
    m->found = malloc(ST_MATCHER_STACKS * sizeof *m->found);
    m->path = malloc((trie->deepest + 1) * sizeof *m->path);
    m->masks = malloc(ST_MATCHER_MASKS * words * sizeof *m->masks);
    m->end_mask = calloc(words, sizeof *m->end_mask);
    m->all_mask = malloc(words * sizeof *m->all_mask);
    if (!m->found || !m->path || !m->masks || !m->end_mask || !m->all_mask)
        fail_memory(m);
    else if (memory_begin(m))
        m->at.set = first_set(m);
    if (!m->failed)
        memset(m->all_mask, 0xFF, words * sizeof *m->all_mask);
    for (int i = 0; !m->failed && i < trie->stop_count; i++)
        m->end_mask[trie->stops[i] / 32] |= 1u << trie->stops[i] % 32;
    enum strata_result r = m->failed;
    m->err = NULL;
    if (r) {
        st_matcher_free(m);
        *out = NULL;
    }
    return r;
}

size_t st_matcher_words(const struct st_matcher *m)
{
    return m->words;
}

void st_matcher_free(struct st_matcher *m)
{
    if (!m)
        return;
    memory_free(&m->k);
    free(m->todo);
    free(m->found);
    free(m->path);
    free(m->masks);
    free(m->end_mask);
    free(m->all_mask);
    free(m);
}

/* ---- tokens ---- */

/* The set that bytes lead to from a set; where there is no room, what was learnt is forgotten once and the rest tried again. */
static uint32_t follow(struct st_matcher *m, uint32_t set, const char *text, size_t size)
{
    bool again = true;
    m->row = set;
    m->work = 0;
    for (size_t i = 0; i < size && m->row != DEAD && !m->failed;) {
        uint32_t to = step(m, m->row, m->g->class_of[(uint8_t)text[i]]);
        if (!m->failed) {
            m->row = to;
            i++;
        } else if (m->full && again) {
            again = false;
            forget(m);
        }
    }
    return m->failed ? DEAD : m->row;
}

static enum strata_result no_token(struct st_matcher *m)
{
    return m->failed = st_fail(m->err, STRATA_E_LIMIT, "the constraint allows no token of the vocabulary here");
}

/* Walks the tree from a set and marks the tokens that lead somewhere. */
static void walk(struct st_matcher *m, uint32_t set, uint32_t *mask)
{
    const struct st_trie *t = m->trie;
    const uint8_t *class_of = m->g->class_of;
    size_t classes = (size_t)m->g->classes;
    memset(mask, 0, m->words * sizeof *mask);
    m->work = 0;
    m->path[0] = set;
    for (size_t n = 0; n < t->nodes;) {
        uint32_t before = m->path[t->depth[n] - 1], class = class_of[t->byte[n]];
        uint32_t to = m->k.steps[before * classes + class];
        if (to == UNKNOWN)
            to = step(m, before, (uint8_t)class);
        if (m->failed)
            return;
        if (to == DEAD) {
            n = t->skip[n];
            continue;
        }
        for (uint32_t i = t->first[n]; i < t->first[n + 1]; i++)
            mask[t->ids[i] / 32] |= 1u << t->ids[i] % 32;
        m->path[t->depth[n]] = to;
        n++;
    }
    if (m->k.sets[set].can_end)
        for (size_t i = 0; i < m->words; i++)
            mask[i] |= m->end_mask[i];
}

/* A stack whose nodes are replaced by those that are alike. */
static uint32_t alike_cell(struct st_matcher *m, uint32_t cell)
{
    uint32_t chain[ST_MATCHER_DEPTH + 2], below = BOTTOM;
    size_t n = 0;
    for (uint32_t c = cell; c != BOTTOM; c = m->k.cells[c].below)
        chain[n++] = m->k.cells[c].node;
    while (n > 0) {
        uint32_t node = chain[--n], alike = m->g->nodes[node].alike;
        below = cell_of(m, alike ? alike : node, below);
    }
    return below;
}

/* The set with the same mask that stands for all places of long repetitions that differ only beyond the longest token. */
static uint32_t alike_set(struct st_matcher *m, uint32_t set)
{
    uint32_t kept = 0, count = m->k.sets[set].count;
    bool changed = false;
    if (m->trie->deepest > ST_NET_FAR)
        return set;
    for (uint32_t i = 0; i < count && !m->failed; i++) {
        uint32_t cell = m->k.members[m->k.sets[set].from + i];
        m->found[i] = alike_cell(m, cell);
        changed |= m->found[i] != cell;
    }
    if (!changed || m->failed)
        return set;
    qsort(m->found, count, sizeof *m->found, by_number);
    for (uint32_t i = 0; i < count; i++)
        if (!kept || m->found[kept - 1] != m->found[i])
            m->found[kept++] = m->found[i];
    return set_of(m, m->found, kept, m->k.sets[set].can_end);
}

/* The mask of the set row, which may get another number. NULL with failed set. */
static const uint32_t *mask_of_row(struct st_matcher *m)
{
    size_t words = m->words;
    m->row = alike_set(m, m->row);
    if (m->failed && m->full && forget(m))
        m->row = alike_set(m, m->row);
    if (m->failed)
        return NULL;
    if (m->k.sets[m->row].mask >= 0)
        return m->masks + (size_t)m->k.sets[m->row].mask * words;
    int slot = m->next_mask;
    m->next_mask = (slot + 1) % ST_MATCHER_MASKS;
    if (m->mask_of[slot] != DEAD)
        m->k.sets[m->mask_of[slot]].mask = -1;
    m->mask_of[slot] = DEAD;
    uint32_t *mask = m->masks + (size_t)slot * words;
    walk(m, m->row, mask);
    if (m->failed && m->full && forget(m))
        walk(m, m->row, mask);
    if (m->failed)
        return NULL;
    size_t i = 0;
    while (i < words && !mask[i])
        i++;
    if (i == words) {
        no_token(m);
        return NULL;
    }
    m->mask_of[slot] = m->row;
    m->k.sets[m->row].mask = slot;
    return mask;
}

static void begin_call(struct st_matcher *m, struct strata_error *err)
{
    m->err = err;
    m->failed = STRATA_OK;
    m->full = false;
    m->row = m->at.set;
}

enum strata_result st_matcher_mask(struct st_matcher *m, const uint32_t **mask, struct strata_error *err)
{
    begin_call(m, err);
    *mask = st_matcher_nowhere(m) ? m->all_mask : m->at.ended ? m->end_mask : mask_of_row(m);
    return m->failed;
}

/* Where a token leads; nowhere with failed set. */
static struct place behind(struct st_matcher *m, int32_t token)
{
    const struct place nowhere = {DEAD, false};
    struct st_bytes text = st_tokenizer_bytes(m->trie->tokenizer, token, false);
    enum st_token_type type = st_tokenizer_type(m->trie->tokenizer, token);
    if (st_matcher_nowhere(m))
        return nowhere;
    for (int i = 0; i < m->trie->stop_count; i++)
        if (m->trie->stops[i] == token)
            return st_matcher_can_end(m) ? (struct place){m->at.set, true} : nowhere;
    if (m->at.ended || text.size == 0 || (type != ST_TOKEN_NORMAL && type != ST_TOKEN_USER_DEFINED))
        return nowhere;
    return (struct place){follow(m, m->at.set, text.data, text.size), false};
}

enum strata_result st_matcher_accept(struct st_matcher *m, int32_t token, struct strata_error *err)
{
    begin_call(m, err);
    struct place to = behind(m, token);
    if (m->failed)
        return m->failed;
    m->back[m->accepted++ % ST_MATCHER_BACK] = m->at;
    m->at = to;
    return STRATA_OK;
}

bool st_matcher_nowhere(const struct st_matcher *m)
{
    return m->at.set == DEAD;
}

void st_matcher_take_back(struct st_matcher *m, size_t count)
{
    if (count > m->accepted)
        count = m->accepted;
    m->accepted -= count;
    if (count)
        m->at = m->back[m->accepted % ST_MATCHER_BACK];
}

enum strata_result st_matcher_text(struct st_matcher *m, const char *text, size_t size, struct strata_error *err)
{
    begin_call(m, err);
    uint32_t to = m->at.ended && size ? DEAD : follow(m, m->at.set, text, size);
    if (m->failed)
        return m->failed;
    if (to == DEAD)
        return st_fail(err, STRATA_E_ARGUMENT, "the text is not allowed by the constraint");
    m->at.set = to;
    m->accepted = 0;
    return STRATA_OK;
}

bool st_matcher_can_end(const struct st_matcher *m)
{
    return m->at.ended || m->k.sets[m->at.set].can_end;
}
