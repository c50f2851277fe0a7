/* Owns the choice of experts for slots, and profiles. */
#include "engine/expert_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/checked.h"
#include "base/file.h"

enum { SECTION_ALIGN = 16, SLOT_ALIGN = 256, VERSION = 1, PROFILE_ROWS = 4096, PROFILE_EXPERTS = 65536 };

static const float DECAY = 0.7f, WANTED = 1.5f, FORGOTTEN = 0.01f;

/* ---- the set ---- */

static enum strata_result new_layer(struct st_expert_set *set, const struct st_gguf *g, uint32_t block,
                                    struct strata_error *err)
{
    if (set->count == set->capacity) {
        uint32_t more = set->capacity ? 2 * set->capacity : 64;
        struct st_expert_layer *p = realloc(set->layer, more * sizeof *p);
        if (!p)
            return st_fail(err, STRATA_E_MEMORY, "%s: no memory for a list of experts", g->path);
        set->layer = p;
        set->capacity = more;
    }
    set->layer[set->count++] =
        (struct st_expert_layer){.g = g, .block = block, .row = block < set->trunk_rows ? block : set->trunk_rows};
    return STRATA_OK;
}

enum strata_result st_expert_set_add(struct st_expert_set *set, const struct st_gguf *g, const struct st_gguf_tensor *t,
                                     uint32_t experts, uint32_t *layer, uint32_t *section, struct strata_error *err)
{
    unsigned block;
    if (sscanf(t->name, "blk.%u.", &block) != 1)
        return st_fail(err, STRATA_E_UNSUPPORTED, "%s: tensor %s belongs to no layer", g->path, t->name);
    if (set->count && set->experts != experts)
        return st_fail(err, STRATA_E_UNSUPPORTED, "%s: tensor %s has %u experts, others have %u", g->path, t->name,
                       experts, set->experts);
    set->experts = experts;
    struct st_expert_layer *l = set->count ? &set->layer[set->count - 1] : NULL;
    if (!l || l->g != g || l->block != block) {
        enum strata_result r = new_layer(set, g, block, err);
        if (r)
            return r;
        l = &set->layer[set->count - 1];
    }
    if (l->sections == ST_EXPERT_SECTIONS)
        return st_fail(err, STRATA_E_UNSUPPORTED, "%s: tensor %s: too many tensors of experts", g->path, t->name);
    struct st_expert_section *s = &l->section[l->sections];
    uint64_t end;
    *s = (struct st_expert_section){.tensor = t, .bytes = t->bytes / experts};
    s->at = l->sections ? l->section[l->sections - 1].at + l->section[l->sections - 1].bytes : 0;
    if (!st_align_u64(s->at, SECTION_ALIGN, &s->at) || !st_add_u64(s->at, s->bytes, &end) ||
        !st_align_u64(end, SLOT_ALIGN, &l->slot) || l->slot > UINT64_MAX / 2 / experts)
        return st_fail(err, STRATA_E_LIMIT, "%s: tensor %s does not fit in any memory", g->path, t->name);
    *layer = set->count - 1;
    *section = l->sections++;
    return STRATA_OK;
}

void st_expert_set_free(struct st_expert_set *set)
{
    free(set->layer);
    *set = (struct st_expert_set){.trunk_rows = set->trunk_rows};
}

uint64_t st_expert_set_bytes(const struct st_expert_set *set)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < set->count; i++)
        bytes += set->layer[i].slot * set->experts;
    return bytes;
}

uint64_t st_expert_set_largest(const struct st_expert_set *set)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < set->count; i++)
        most = set->layer[i].slot > most ? set->layer[i].slot : most;
    return most;
}

/* ---- profiles ---- */

enum strata_result st_expert_profile_create(uint32_t rows, uint32_t experts, struct st_expert_profile *out,
                                            struct strata_error *err)
{
    *out = (struct st_expert_profile){.rows = rows, .experts = experts};
    if (rows == 0 || rows > PROFILE_ROWS || experts == 0 || experts > PROFILE_EXPERTS)
        return st_fail(err, STRATA_E_ARGUMENT, "no profile has %u layers of %u experts", rows, experts);
    out->count = calloc((size_t)rows * experts, sizeof *out->count);
    return out->count ? STRATA_OK : st_fail(err, STRATA_E_MEMORY, "no memory for a profile of experts");
}

void st_expert_profile_free(struct st_expert_profile *p)
{
    free(p->count);
    p->count = NULL;
}

void st_expert_profile_add(struct st_expert_profile *p, uint32_t row, const int32_t *first)
{
    for (uint32_t e = 0; e < p->experts && row < p->rows; e++)
        p->count[(size_t)row * p->experts + e] += (uint64_t)(first[e + 1] - first[e]);
}

static int larger_first(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? 1 : -(x > y);
}

double st_expert_profile_share(const struct st_expert_profile *p, double experts)
{
    size_t n = (size_t)p->rows * p->experts, used = 0;
    uint64_t *sorted = malloc(n * sizeof *sorted), all = 0, served = 0;
    if (!sorted)
        return 0;
    memcpy(sorted, p->count, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, larger_first);
    for (uint32_t r = 0; r < p->rows; r++) { /* a row without counts is a layer that was not there */
        uint64_t row = 0;
        for (uint32_t e = 0; e < p->experts; e++)
            row += p->count[(size_t)r * p->experts + e];
        used += row ? p->experts : 0;
        all += row;
    }
    for (size_t i = 0; i < n && (double)i < experts * (double)used; i++)
        served += sorted[i];
    free(sorted);
    return all ? (double)served / (double)all : 0;
}

/* What stands before the counts. */
struct profile_head {
    char magic[8];
    uint32_t version, rows, experts, zero;
    uint64_t fingerprint, tokens;
};
static const char magic[8] = {'S', 'T', 'R', 'A', 'T', 'A', 'E', 'P'};

static enum strata_result parse_profile(const char *path, const char *data, size_t size, struct st_expert_profile *out,
                                        struct strata_error *err)
{
    struct profile_head head;
    uint64_t sum;
    if (size < sizeof head + sizeof sum || memcmp(data, magic, sizeof magic))
        return st_fail(err, STRATA_E_FORMAT, "%s: this is no profile of experts", path);
    memcpy(&head, data, sizeof head);
    if (head.version != VERSION)
        return st_fail(err, STRATA_E_FORMAT, "%s: profiles of version %u are not read, only %d", path, head.version,
                       VERSION);
    if (head.rows == 0 || head.rows > PROFILE_ROWS || head.experts == 0 || head.experts > PROFILE_EXPERTS)
        return st_fail(err, STRATA_E_FORMAT, "%s: a profile of %u layers and %u experts", path, head.rows,
                       head.experts);
    size_t counts = (size_t)head.rows * head.experts * sizeof *out->count;
    if (size != sizeof head + counts + sizeof sum)
        return st_fail(err, STRATA_E_FORMAT, "%s: %zu bytes instead of %zu", path, size,
                       sizeof head + counts + sizeof sum);
    memcpy(&sum, data + size - sizeof sum, sizeof sum);
    if (XXH64(data, size - sizeof sum, 0) != sum)
        return st_fail(err, STRATA_E_FORMAT, "%s: the checksum does not fit: the profile is damaged", path);
    enum strata_result r = st_expert_profile_create(head.rows, head.experts, out, err);
    if (r)
        return r;
    out->fingerprint = head.fingerprint;
    out->tokens = head.tokens;
    memcpy(out->count, data + sizeof head, counts);
    return STRATA_OK;
}

enum strata_result st_expert_profile_read(const char *path, struct st_expert_profile *out, struct strata_error *err)
{
    uint64_t most =
        sizeof(struct profile_head) + (uint64_t)PROFILE_ROWS * PROFILE_EXPERTS * sizeof *out->count + sizeof(uint64_t);
    char *data;
    size_t size;
    enum strata_result r = st_read_file(path, most, &data, &size, err);
    if (r)
        return r;
    r = parse_profile(path, data, size, out, err);
    free(data);
    return r;
}

enum strata_result st_expert_profile_write(const struct st_expert_profile *p, const char *path,
                                           struct strata_error *err)
{
    struct profile_head head = {
        .version = VERSION, .rows = p->rows, .experts = p->experts, .fingerprint = p->fingerprint, .tokens = p->tokens};
    memcpy(head.magic, magic, sizeof magic);
    size_t counts = (size_t)p->rows * p->experts * sizeof *p->count;
    XXH64_state_t *hash = XXH64_createState();
    if (!hash)
        return st_fail(err, STRATA_E_MEMORY, "no memory for a checksum");
    XXH64_reset(hash, 0);
    XXH64_update(hash, &head, sizeof head);
    XXH64_update(hash, p->count, counts);
    uint64_t sum = XXH64_digest(hash);
    XXH64_freeState(hash);
    struct st_out out;
    enum strata_result r = st_out_open(path, &out, err);
    if (r)
        return r;
    r = st_out_write(&out, &head, sizeof head, err);
    if (!r)
        r = st_out_write(&out, p->count, counts, err);
    if (!r)
        r = st_out_write(&out, &sum, sizeof sum, err);
    if (!r)
        r = st_out_commit(&out, err);
    st_out_abort(&out);
    return r;
}

/* ---- choice ---- */

struct candidate {
    double count;
    uint32_t layer, expert;
};

static int by_count(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->count != y->count)
        return x->count < y->count ? 1 : -1;
    if (x->expert != y->expert)
        return x->expert < y->expert ? -1 : 1;
    return x->layer < y->layer ? -1 : x->layer > y->layer;
}

static double profiled(const struct st_expert_profile *profile, const struct st_expert_layer *l, uint32_t e)
{
    bool known = profile && l->row < profile->rows && e < profile->experts;
    return known ? (double)profile->count[(size_t)l->row * profile->experts + e] : 0;
}

/* The experts for budget bytes, the most wanted first: order [layers * experts] gets layer * experts + expert of each.
 * Those that are marked ST_EXPERT_KEPT in marks (or NULL) are passed over, those marked ST_EXPERT_LENT come after all
 * others. Returns how many; *used: bytes of their slots. */
static size_t choose(const struct st_expert_set *set, const struct st_expert_profile *profile, const uint8_t *marks,
                     uint64_t budget, uint32_t *order, uint64_t *used)
{
    size_t n = (size_t)set->count * set->experts, chosen = 0;
    struct candidate *c = malloc((n + 1) * sizeof *c);
    *used = 0;
    for (size_t i = 0; i < n && c; i++) {
        uint32_t layer = (uint32_t)(i / set->experts), e = (uint32_t)(i % set->experts);
        c[i] = (struct candidate){profiled(profile, &set->layer[layer], e), layer, e};
    }
    if (c)
        qsort(c, n, sizeof *c, by_count);
    static const uint8_t turns[] = {ST_EXPERT_OUT, ST_EXPERT_LENT};
    for (size_t turn = 0; turn < (marks ? 2 : 1); turn++)
        for (size_t i = 0; i < n && c; i++) {
            uint64_t bytes = set->layer[c[i].layer].slot;
            uint32_t number = c[i].layer * set->experts + c[i].expert;
            if (bytes > budget - *used || (marks && marks[number] != turns[turn]))
                continue;
            *used += bytes;
            order[chosen++] = number;
        }
    free(c);
    return chosen;
}

uint64_t st_expert_choose(const struct st_expert_set *set, const struct st_expert_profile *profile, uint64_t budget,
                          uint64_t lent, uint8_t *marks)
{
    size_t n = (size_t)set->count * set->experts;
    uint32_t *order = malloc((n + 1) * sizeof *order);
    uint64_t used = 0, at = 0;
    size_t chosen = order ? choose(set, profile, NULL, budget, order, &used) : 0;
    memset(marks, ST_EXPERT_OUT, n);
    for (size_t i = 0; i < chosen; i++) {
        at += set->layer[order[i] / set->experts].slot;
        marks[order[i]] = lent < used && at <= used - lent ? ST_EXPERT_KEPT : ST_EXPERT_LENT;
    }
    free(order);
    return used;
}

double st_expert_share(const struct st_expert_set *set, const struct st_expert_profile *profile, const uint8_t *marked)
{
    double all = 0, served = 0;
    size_t n = (size_t)set->count * set->experts, count = 0;
    for (size_t i = 0; i < n; i++) {
        double c = profiled(profile, &set->layer[i / set->experts], (uint32_t)(i % set->experts));
        all += c;
        served += marked[i] ? c : 0;
        count += marked[i] != 0;
    }
    return all > 0 ? served / all : n ? (double)count / (double)n : 0;
}

void st_expert_rank(const struct st_expert_set *set, const struct st_expert_profile *profile, const uint8_t *marks,
                    uint64_t budget, uint8_t *chosen)
{
    size_t n = (size_t)set->count * set->experts;
    uint32_t *order = malloc((n + 1) * sizeof *order);
    uint64_t used;
    size_t count = order ? choose(set, profile, marks, budget, order, &used) : 0;
    memset(chosen, 0, n);
    for (size_t i = 0; i < count; i++)
        chosen[order[i]] = 1;
    free(order);
}

enum strata_result st_expert_store_fill(struct st_expert_store *s, const struct st_expert_profile *profile,
                                        const uint8_t *marks, uint64_t budget, uint64_t lent, struct strata_error *err)
{
    size_t n = (size_t)s->set.count * s->set.experts;
    uint32_t *order = malloc((n + 1) * sizeof *order);
    uint64_t used;
    s->slot = malloc((n + 1) * sizeof *s->slot);
    s->slot_of = malloc((n + 1) * sizeof *s->slot_of);
    s->missing = calloc(s->set.count + 1ull, sizeof *s->missing);
    s->count = calloc(n + 1, sizeof *s->count);
    if (!order || !s->slot || !s->slot_of || !s->missing || !s->count) {
        free(order);
        return st_fail(err, STRATA_E_MEMORY, "no memory for a table of %zu experts", n);
    }
    for (uint32_t l = 0; l < s->set.count; l++)
        s->missing[l] = s->set.experts;
    for (size_t i = 0; i < n; i++)
        s->slot_of[i] = ST_NO_SLOT;
    s->slots = (uint32_t)choose(&s->set, profile, marks, budget, order, &used);
    for (uint32_t i = 0; i < s->slots; i++) {
        uint32_t layer = order[i] / s->set.experts;
        s->slot[i] = (struct st_expert_slot){s->bytes, layer, order[i] % s->set.experts};
        s->slot_of[order[i]] = i;
        s->missing[layer]--;
        s->bytes += s->set.layer[layer].slot;
        s->kept += lent < used && s->bytes <= used - lent;
    }
    free(order);
    return STRATA_OK;
}

uint8_t st_expert_store_mark(const struct st_expert_store *s, uint32_t layer, uint32_t expert)
{
    uint32_t slot = s->slot_of[(size_t)layer * s->set.experts + expert];
    return slot == ST_NO_SLOT ? ST_EXPERT_OUT : slot < s->kept ? ST_EXPERT_KEPT : ST_EXPERT_LENT;
}

bool st_expert_store_holds(const struct st_expert_store *s, uint32_t slot)
{
    return s->slot_of[(size_t)s->slot[slot].layer * s->set.experts + s->slot[slot].expert] == slot;
}

void st_expert_store_lend(struct st_expert_store *s, uint64_t from)
{
    for (uint32_t i = s->kept; i < s->slots; i++)
        if (s->slot[i].at + s->set.layer[s->slot[i].layer].slot > from && st_expert_store_holds(s, i))
            st_expert_store_take_out(s, i);
}

void st_expert_store_free(struct st_expert_store *s)
{
    st_expert_set_free(&s->set);
    free(s->slot);
    free(s->slot_of);
    free(s->missing);
    free(s->count);
    *s = (struct st_expert_store){0};
}

/* ---- adaptation ---- */

/* The best candidates of a size meet the slots of that size, most wanted with least wanted. */
static uint32_t match(const struct st_expert_store *s, const struct candidate *in, size_t n_in,
                      const struct candidate *held, size_t n_held, uint64_t bytes, struct st_expert_swap *out,
                      uint32_t room)
{
    uint32_t n = 0;
    size_t h = n_held; /* held is sorted like in, so its end is the least wanted */
    for (size_t i = 0; i < n_in && n < room; i++) {
        if (s->set.layer[in[i].layer].slot != bytes)
            continue;
        while (h > 0 && s->set.layer[held[h - 1].layer].slot != bytes)
            h--;
        if (h == 0 || in[i].count <= WANTED * held[h - 1].count)
            break;
        h--;
        out[n++] = (struct st_expert_swap){s->slot_of[(size_t)held[h].layer * s->set.experts + held[h].expert],
                                           in[i].layer, in[i].expert};
    }
    return n;
}

/* The first layer whose slots have the size of the layer's. */
static uint32_t first_of_size(const struct st_expert_set *set, uint32_t layer)
{
    uint32_t k = 0;
    while (set->layer[k].slot != set->layer[layer].slot)
        k++;
    return k;
}

/* Experts in slots that may have to leave. Of a size of which enough were never wanted, only such ones: sorting
 * thousands would take longer than the copies. */
static size_t list_held(const struct st_expert_store *s, struct candidate *held, uint32_t *unwanted)
{
    size_t n = 0;
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t l = 0; l < s->set.count; l++) {
            uint32_t *count = &unwanted[first_of_size(&s->set, l)];
            for (uint32_t e = 0; e < s->set.experts && *count < ST_EXPERT_SWAPS; e++) {
                size_t i = (size_t)l * s->set.experts + e;
                if (s->slot_of[i] == ST_NO_SLOT || (s->count[i] > 0) != (pass > 0))
                    continue;
                held[n++] = (struct candidate){(double)s->count[i], l, e};
                *count += pass == 0;
            }
        }
    return n;
}

/* Brings the first `most` of n in their order to the front, sorted. All would take milliseconds of every window. */
static void best_first(struct candidate *c, size_t n, size_t most)
{
    for (size_t from = 0, to = n; most < n && to - from > 1;) {
        const struct candidate middle = c[from + (to - from) / 2];
        size_t i = from, k = to - 1;
        for (;; i++, k--) {
            while (by_count(&c[i], &middle) < 0)
                i++;
            while (by_count(&c[k], &middle) > 0)
                k--;
            if (i >= k)
                break;
            struct candidate swap = c[i];
            c[i] = c[k];
            c[k] = swap;
        }
        /* Those before i come before all others; no two are equal. */
        if (most <= i)
            to = i;
        else
            from = i + (i == from);
    }
    qsort(c, most < n ? most : n, sizeof *c, by_count);
}

/* Missing experts that have been chosen of late, sorted. */
static size_t list_wanted(const struct st_expert_store *s, struct candidate *in)
{
    size_t n = (size_t)s->set.count * s->set.experts, n_in = 0;
    for (size_t i = 0; i < n; i++)
        if (s->slot_of[i] == ST_NO_SLOT && s->count[i] > 0)
            in[n_in++] =
                (struct candidate){(double)s->count[i], (uint32_t)(i / s->set.experts), (uint32_t)(i % s->set.experts)};
    qsort(in, n_in, sizeof *in, by_count);
    return n_in;
}

/* All missing experts whose size has empty slots, the first ones sorted; of those that were not chosen of late the ones
 * that were in such a slot come first. next [layers]: zeros; gets, at the first layer of a size, its first empty slot
 * and 1. was_here [layers][experts]: zeros. */
static size_t list_fitting(const struct st_expert_store *s, struct candidate *in, uint8_t *was_here, uint32_t *next)
{
    size_t n_in = 0, i = 0;
    for (uint32_t k = s->slots; k-- > s->kept;) {
        const struct st_expert_slot *slot = &s->slot[k];
        if (st_expert_store_holds(s, k))
            continue;
        was_here[(size_t)slot->layer * s->set.experts + slot->expert] = 1;
        next[first_of_size(&s->set, slot->layer)] = k + 1;
    }
    for (uint32_t l = 0; l < s->set.count; l++) {
        bool fits = next[first_of_size(&s->set, l)] > 0;
        for (uint32_t e = 0; e < s->set.experts; e++, i++) {
            double count = s->count[i] > 0 ? (double)s->count[i] : was_here[i] ? (double)FORGOTTEN / 2 : 0;
            if (fits && s->slot_of[i] == ST_NO_SLOT)
                in[n_in++] = (struct candidate){count, l, e};
        }
    }
    best_first(in, n_in, ST_EXPERT_SWAPS);
    return n_in < ST_EXPERT_SWAPS ? n_in : ST_EXPERT_SWAPS;
}

/* Each goes to the next empty slot of its size. */
static uint32_t fill_empty(const struct st_expert_store *s, const struct candidate *in, size_t n_in, uint32_t *next,
                           struct st_expert_swap *out)
{
    uint32_t n = 0;
    for (size_t i = 0; i < n_in; i++) {
        uint64_t bytes = s->set.layer[in[i].layer].slot;
        uint32_t *slot = &next[first_of_size(&s->set, in[i].layer)]; /* and 1 */
        while (*slot <= s->slots &&
               (st_expert_store_holds(s, *slot - 1) || s->set.layer[s->slot[*slot - 1].layer].slot != bytes))
            ++*slot;
        if (*slot <= s->slots)
            out[n++] = (struct st_expert_swap){(*slot)++ - 1, in[i].layer, in[i].expert};
    }
    return n;
}

/* Missing experts that are wanted meet those in slots that are not. */
static uint32_t exchange(const struct st_expert_store *s, const struct candidate *in, size_t n_in,
                         struct candidate *held, uint32_t *unwanted, struct st_expert_swap *out)
{
    uint32_t swaps = 0;
    size_t n_held = list_held(s, held, unwanted);
    qsort(held, n_held, sizeof *held, by_count);
    for (uint32_t l = 0; l < s->set.count; l++)
        if (first_of_size(&s->set, l) == l)
            swaps += match(s, in, n_in, held, n_held, s->set.layer[l].slot, out + swaps, ST_EXPERT_SWAPS - swaps);
    return swaps;
}

uint32_t st_expert_store_adapt(struct st_expert_store *s, struct st_expert_swap out[ST_EXPERT_SWAPS])
{
    size_t n = (size_t)s->set.count * s->set.experts;
    struct candidate *in = malloc((n + 1) * sizeof *in), *held = malloc((n + 1) * sizeof *held);
    uint8_t *was_here = calloc(n + 1, 1);
    uint32_t swaps = 0, *by_size = calloc(s->set.count + 1ull, sizeof *by_size);
    bool fills = s->empty > 0;
    if (in && held && was_here && by_size) {
        size_t n_in = fills ? list_fitting(s, in, was_here, by_size) : list_wanted(s, in);
        swaps = fills ? fill_empty(s, in, n_in, by_size, out) : exchange(s, in, n_in, held, by_size, out);
    }
    free(in);
    free(held);
    free(was_here);
    free(by_size);
    for (size_t i = 0; i < n && !fills; i++)
        s->count[i] = s->count[i] < FORGOTTEN ? 0 : DECAY * s->count[i];
    s->windows = fills ? s->windows : 0;
    return swaps;
}

void st_expert_store_take_out(struct st_expert_store *s, uint32_t slot)
{
    const struct st_expert_slot *was = &s->slot[slot];
    s->slot_of[(size_t)was->layer * s->set.experts + was->expert] = ST_NO_SLOT;
    s->missing[was->layer]++;
    s->empty++;
}

void st_expert_store_put_in(struct st_expert_store *s, const struct st_expert_swap *swap)
{
    s->slot[swap->slot].layer = swap->layer;
    s->slot[swap->slot].expert = swap->expert;
    s->slot_of[(size_t)swap->layer * s->set.experts + swap->expert] = swap->slot;
    s->missing[swap->layer]--;
    s->empty--;
}
