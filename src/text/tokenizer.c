/* Vocabulary tables of the tokenizer and encoding. Decoding a stream is in decoder.c. */
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/checked.h"
#include "base/utf8.h"
#include "text/nfc.h"
#include "text/pretoken.h"

enum {
    MAX_TOKENS = 1 << 24,
    MAX_SPECIAL_BYTES = 1024, /* bounds the work of matching special tokens at one place of a text */
    MAX_STOPS = 16,
    NONE = -1,
};

#define NO_RANK UINT32_MAX

struct merge {
    uint64_t pair; /* left id << 32 | right id */
    uint32_t rank; /* NO_RANK: empty slot */
    int32_t result;
};

struct st_tokenizer {
    struct st_pretoken *pre;
    size_t count;
    char *bytes;      /* decoded bytes of all tokens, one after the other */
    uint64_t *starts; /* count + 1 */
    uint8_t *types;
    int32_t *by_text; /* open addressing, ids; -1: empty */
    size_t by_text_mask;
    struct merge *merges; /* open addressing */
    size_t merge_mask;
    int32_t by_byte[256];
    int32_t *special; /* ids of tokens matched literally, in the order of their bytes */
    size_t special_count;
    size_t special_first[257]; /* special[first[b] .. first[b + 1]) begin with byte b */
    int32_t bos, eos, eot, pad;
    bool add_bos;
    int32_t stops[MAX_STOPS];
    int stop_count;
};

static struct st_bytes token_bytes(const struct st_tokenizer *t, int32_t id)
{
    return (struct st_bytes){t->bytes + t->starts[id], (size_t)(t->starts[id + 1] - t->starts[id])};
}

static bool is_literal(uint8_t type)
{
    return type == ST_TOKEN_CONTROL || type == ST_TOKEN_USER_DEFINED || type == ST_TOKEN_UNKNOWN;
}

static bool equal(struct st_bytes a, struct st_bytes b)
{
    return a.size == b.size && (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}

/* ---- creation ---- */

/* Byte-level alphabet: printable bytes stand for themselves, the 68 others for U+0100 and on in ascending order. */
static void make_alphabet(int16_t byte_of[0x144])
{
    for (int i = 0; i < 0x144; i++)
        byte_of[i] = -1;
    int next = 0x100;
    for (int b = 0; b < 256; b++) {
        bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        byte_of[itself ? b : next++] = (int16_t)b;
    }
}

/* Decodes a text in the byte-level alphabet to out (at least size bytes); returns the length, or size_t max if a
 * character is outside the alphabet. text is valid UTF-8. */
static size_t from_alphabet(const int16_t *byte_of, struct st_bytes text, char *out)
{
    const unsigned char *s = (const unsigned char *)text.data;
    size_t used = 0;
    for (size_t i = 0; i < text.size;) {
        uint32_t cp = 0;
        i += (size_t)st_utf8_scan(s + i, text.size - i, &cp);
        if (cp >= 0x144 || byte_of[cp] < 0)
            return SIZE_MAX;
        out[used++] = (char)byte_of[cp];
    }
    return used;
}

static enum strata_result load_tokens(struct st_tokenizer *t, const struct st_vocab *v, const int16_t *byte_of,
                                      struct strata_error *err)
{
    uint64_t total = 1;
    for (size_t i = 0; i < v->count; i++)
        if (!st_add_u64(total, v->tokens[i].size, &total))
            return st_fail(err, STRATA_E_FORMAT, "tokenizer: the tokens' sizes overflow");
    t->bytes = total <= SIZE_MAX ? malloc((size_t)total) : NULL;
    t->starts = malloc((v->count + 1) * sizeof *t->starts);
    t->types = malloc(v->count + 1);
    if (!t->bytes || !t->starts || !t->types)
        return st_fail(err, STRATA_E_MEMORY, "tokenizer: no memory for %zu tokens", v->count);
    uint64_t at = 0;
    for (size_t i = 0; i < v->count; i++) {
        struct st_bytes text = v->tokens[i];
        int32_t type = v->types ? v->types[i] : ST_TOKEN_NORMAL;
        if (type < ST_TOKEN_NORMAL || type > ST_TOKEN_UNUSED)
            return st_fail(err, STRATA_E_FORMAT, "tokenizer: token %zu has type %d, not 1..5", i, type);
        if (st_utf8_invalid(text.data, text.size) != text.size)
            return st_fail(err, STRATA_E_FORMAT, "tokenizer: token %zu is not valid UTF-8", i);
        if (is_literal((uint8_t)type) && text.size > MAX_SPECIAL_BYTES)
            return st_fail(err, STRATA_E_FORMAT, "tokenizer: special token %zu has %zu bytes, more than %d", i,
                           text.size, MAX_SPECIAL_BYTES);
        t->starts[i] = at;
        t->types[i] = (uint8_t)type;
        size_t n = type == ST_TOKEN_NORMAL ? from_alphabet(byte_of, text, t->bytes + at) : SIZE_MAX;
        if (n == SIZE_MAX) {
            n = text.size;
            if (n)
                memcpy(t->bytes + at, text.data, n);
        }
        at += n;
    }
    t->starts[v->count] = at;
    t->count = v->count;
    return STRATA_OK;
}

/* Searches the table for a token with these bytes whose type is normal, or is another one (literal). Returns the slot.
 */
static size_t find_slot(const struct st_tokenizer *t, struct st_bytes text, bool normal)
{
    size_t slot = (size_t)XXH3_64bits(text.data, text.size) & t->by_text_mask;
    for (;; slot = (slot + 1) & t->by_text_mask) {
        int32_t id = t->by_text[slot];
        if (id == NONE || ((t->types[id] == ST_TOKEN_NORMAL) == normal && equal(token_bytes(t, id), text)))
            return slot;
    }
}

static enum strata_result index_tokens(struct st_tokenizer *t, struct strata_error *err)
{
    size_t slots = 16;
    while (slots < 2 * t->count)
        slots *= 2;
    t->by_text = malloc(slots * sizeof *t->by_text);
    if (!t->by_text)
        return st_fail(err, STRATA_E_MEMORY, "tokenizer: no memory for the index of %zu tokens", t->count);
    t->by_text_mask = slots - 1;
    for (size_t i = 0; i < slots; i++)
        t->by_text[i] = NONE;
    for (size_t i = 0; i < t->count; i++) {
        struct st_bytes text = token_bytes(t, (int32_t)i);
        if (t->types[i] == ST_TOKEN_UNUSED || text.size == 0)
            continue;
        size_t slot = find_slot(t, text, t->types[i] == ST_TOKEN_NORMAL);
        if (t->by_text[slot] == NONE) /* of two equal tokens the first one is used */
            t->by_text[slot] = (int32_t)i;
    }
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        t->by_byte[b] = t->by_text[find_slot(t, (struct st_bytes){&byte, 1}, true)];
    }
    return STRATA_OK;
}

/* A token that ordinary text may become: normal, or else user-defined. Control tokens are never made by merging. */
static int32_t find_text_token(const struct st_tokenizer *t, struct st_bytes text)
{
    int32_t id = t->by_text[find_slot(t, text, true)];
    if (id != NONE)
        return id;
    id = t->by_text[find_slot(t, text, false)];
    return id != NONE && t->types[id] == ST_TOKEN_USER_DEFINED ? id : NONE;
}

static struct merge *merge_slot(const struct st_tokenizer *t, uint64_t pair)
{
    uint64_t h = pair * 0x9E3779B97F4A7C15u;
    for (size_t slot = (size_t)(h ^ h >> 32) & t->merge_mask;; slot = (slot + 1) & t->merge_mask)
        if (t->merges[slot].rank == NO_RANK || t->merges[slot].pair == pair)
            return &t->merges[slot];
}

static enum strata_result load_merges(struct st_tokenizer *t, const struct st_vocab *v, const int16_t *byte_of,
                                      struct strata_error *err)
{
    size_t slots = 16, longest = 1;
    while (slots < 2 * v->merge_count)
        slots *= 2;
    for (size_t i = 0; i < v->merge_count; i++)
        if (v->merges[i].size > longest)
            longest = v->merges[i].size;
    t->merges = malloc(slots * sizeof *t->merges);
    char *both = malloc(longest);
    if (!t->merges || !both) {
        free(both);
        return st_fail(err, STRATA_E_MEMORY, "tokenizer: no memory for %zu merges", v->merge_count);
    }
    t->merge_mask = slots - 1;
    for (size_t i = 0; i < slots; i++)
        t->merges[i].rank = NO_RANK;
    enum strata_result r = STRATA_OK;
    for (size_t i = 0; r == STRATA_OK && i < v->merge_count; i++) {
        struct st_bytes m = v->merges[i];
        const char *space = m.size > 2 ? memchr(m.data + 1, ' ', m.size - 2) : NULL;
        size_t n = SIZE_MAX, right_size = SIZE_MAX;
        if (space && st_utf8_invalid(m.data, m.size) == m.size) {
            n = from_alphabet(byte_of, (struct st_bytes){m.data, (size_t)(space - m.data)}, both);
            if (n != SIZE_MAX) {
                struct st_bytes right = {space + 1, (size_t)(m.data + m.size - space - 1)};
                right_size = from_alphabet(byte_of, right, both + n);
            }
        }
        if (n == SIZE_MAX || right_size == SIZE_MAX) {
            char shown[80];
            r = st_fail(err, STRATA_E_FORMAT,
                        "tokenizer: merge %zu (\"%s\") is not two byte-level texts with a space between", i,
                        st_printable(shown, sizeof shown, m.data, m.size));
            break;
        }
        int32_t left = find_text_token(t, (struct st_bytes){both, n});
        int32_t right = find_text_token(t, (struct st_bytes){both + n, right_size});
        int32_t result = find_text_token(t, (struct st_bytes){both, n + right_size});
        if (left == NONE || right == NONE || result == NONE) {
            char shown[80];
            r = st_fail(err, STRATA_E_FORMAT, "tokenizer: merge %zu (\"%s\"): %s is not a token", i,
                        st_printable(shown, sizeof shown, m.data, m.size),
                        left == NONE    ? "its left part"
                        : right == NONE ? "its right part"
                                        : "its result");
            break;
        }
        uint64_t pair = (uint64_t)left << 32 | (uint32_t)right;
        struct merge *slot = merge_slot(t, pair);
        if (slot->rank == NO_RANK) /* a pair listed twice keeps its better rank */
            *slot = (struct merge){pair, (uint32_t)i, result};
    }
    free(both);
    return r;
}

struct sort_entry {
    struct st_bytes text;
    int32_t id;
};

static int by_bytes(const void *a, const void *b)
{
    const struct sort_entry *x = a, *y = b;
    size_t n = x->text.size < y->text.size ? x->text.size : y->text.size;
    int c = memcmp(x->text.data, y->text.data, n);
    if (c)
        return c;
    return x->text.size != y->text.size ? (x->text.size < y->text.size ? -1 : 1) : x->id < y->id ? -1 : x->id > y->id;
}

static enum strata_result sort_specials(struct st_tokenizer *t, struct strata_error *err)
{
    size_t n = 0;
    for (size_t i = 0; i < t->count; i++)
        n += is_literal(t->types[i]) && t->starts[i + 1] > t->starts[i];
    struct sort_entry *entries = malloc((n + 1) * sizeof *entries);
    t->special = malloc((n + 1) * sizeof *t->special);
    if (!entries || !t->special) {
        free(entries);
        return st_fail(err, STRATA_E_MEMORY, "tokenizer: no memory for %zu special tokens", n);
    }
    n = 0;
    for (size_t i = 0; i < t->count; i++)
        if (is_literal(t->types[i]) && t->starts[i + 1] > t->starts[i])
            entries[n++] = (struct sort_entry){token_bytes(t, (int32_t)i), (int32_t)i};
    qsort(entries, n, sizeof *entries, by_bytes);
    for (size_t i = 0; i < n; i++) {
        if (i && equal(entries[i].text, entries[i - 1].text))
            continue;
        t->special[t->special_count++] = entries[i].id;
        t->special_first[(unsigned char)entries[i].text.data[0] + 1] = t->special_count;
    }
    for (int b = 1; b <= 256; b++)
        if (t->special_first[b] < t->special_first[b - 1])
            t->special_first[b] = t->special_first[b - 1];
    free(entries);
    return STRATA_OK;
}

static void add_stop(struct st_tokenizer *t, int32_t id)
{
    if (id >= 0 && !st_tokenizer_is_stop(t, id) && t->stop_count < MAX_STOPS)
        t->stops[t->stop_count++] = id;
}

static void collect_stops(struct st_tokenizer *t)
{
    /* Ends of turn and of text in the vocabularies of the families that are served. */
    static const char *const names[] = {"<|im_end|>",      "<|endoftext|>", "<|eot_id|>",
                                        "<|end_of_text|>", "<|eom_id|>",    "</s>"};
    add_stop(t, t->eos);
    add_stop(t, t->eot);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        int32_t id = st_tokenizer_find(t, names[i], strlen(names[i]));
        if (id >= 0 && t->types[id] == ST_TOKEN_CONTROL)
            add_stop(t, id);
    }
}

static enum strata_result check_vocab(const struct st_vocab *v, struct strata_error *err)
{
    if (v->count == 0 || v->count > MAX_TOKENS)
        return st_fail(err, STRATA_E_FORMAT, "tokenizer: %zu tokens, not 1..%d", v->count, MAX_TOKENS);
    if (v->merge_count > MAX_TOKENS)
        return st_fail(err, STRATA_E_FORMAT, "tokenizer: %zu merges, more than %d", v->merge_count, MAX_TOKENS);
    const struct {
        const char *name;
        int32_t id;
    } ids[] = {{"bos", v->bos}, {"eos", v->eos}, {"eot", v->eot}, {"padding", v->pad}};
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++)
        if (ids[i].id < NONE || (ids[i].id >= 0 && (size_t)ids[i].id >= v->count))
            return st_fail(err, STRATA_E_FORMAT, "tokenizer: %s token %d is outside the vocabulary of %zu", ids[i].name,
                           ids[i].id, v->count);
    if (v->add_bos && v->bos == NONE)
        return st_fail(err, STRATA_E_FORMAT, "tokenizer: prompts start with bos, but there is no bos token");
    return STRATA_OK;
}

enum strata_result st_tokenizer_create(const struct st_vocab *vocab, struct st_tokenizer **out,
                                       struct strata_error *err)
{
    *out = NULL;
    enum strata_result r = check_vocab(vocab, err);
    if (r != STRATA_OK)
        return r;
    struct st_tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return st_fail(err, STRATA_E_MEMORY, "no memory for a tokenizer");
    t->bos = vocab->bos;
    t->eos = vocab->eos;
    t->eot = vocab->eot;
    t->pad = vocab->pad;
    t->add_bos = vocab->add_bos;
    int16_t byte_of[0x144];
    make_alphabet(byte_of);
    if ((r = st_pretoken_create(vocab->pre, &t->pre, err)) != STRATA_OK ||
        (r = load_tokens(t, vocab, byte_of, err)) != STRATA_OK || (r = index_tokens(t, err)) != STRATA_OK ||
        (r = load_merges(t, vocab, byte_of, err)) != STRATA_OK || (r = sort_specials(t, err)) != STRATA_OK) {
        st_tokenizer_free(t);
        return r;
    }
    collect_stops(t);
    *out = t;
    return STRATA_OK;
}

void st_tokenizer_free(struct st_tokenizer *t)
{
    if (!t)
        return;
    st_pretoken_free(t->pre);
    free(t->bytes);
    free(t->starts);
    free(t->types);
    free(t->by_text);
    free(t->merges);
    free(t->special);
    free(t);
}

/* ---- questions ---- */

size_t st_tokenizer_count(const struct st_tokenizer *t)
{
    return t->count;
}

int32_t st_tokenizer_bos(const struct st_tokenizer *t)
{
    return t->bos;
}

int32_t st_tokenizer_eos(const struct st_tokenizer *t)
{
    return t->eos;
}

int32_t st_tokenizer_eot(const struct st_tokenizer *t)
{
    return t->eot;
}

int32_t st_tokenizer_pad(const struct st_tokenizer *t)
{
    return t->pad;
}

bool st_tokenizer_add_bos(const struct st_tokenizer *t)
{
    return t->add_bos;
}

bool st_tokenizer_is_stop(const struct st_tokenizer *t, int32_t id)
{
    for (int i = 0; i < t->stop_count; i++)
        if (t->stops[i] == id)
            return true;
    return false;
}

int32_t st_tokenizer_find(const struct st_tokenizer *t, const char *text, size_t size)
{
    if (size == 0)
        return NONE;
    int32_t id = t->by_text[find_slot(t, (struct st_bytes){text, size}, false)];
    return id != NONE ? id : t->by_text[find_slot(t, (struct st_bytes){text, size}, true)];
}

enum st_token_type st_tokenizer_type(const struct st_tokenizer *t, int32_t id)
{
    return id >= 0 && (size_t)id < t->count ? (enum st_token_type)t->types[id] : ST_TOKEN_UNUSED;
}

struct st_bytes st_tokenizer_bytes(const struct st_tokenizer *t, int32_t id, bool special)
{
    enum st_token_type type = st_tokenizer_type(t, id);
    bool hidden = type == ST_TOKEN_UNUSED || (!special && (type == ST_TOKEN_CONTROL || type == ST_TOKEN_UNKNOWN));
    return hidden ? (struct st_bytes){"", 0} : token_bytes(t, id);
}

/* ---- encoding ---- */

void st_ids_free(struct st_ids *ids)
{
    free(ids->data);
    *ids = (struct st_ids){0};
}

enum strata_result st_ids_push(struct st_ids *ids, int32_t id, struct strata_error *err)
{
    if (ids->count == ids->capacity) {
        size_t more = ids->capacity ? 2 * ids->capacity : 64;
        int32_t *grown = realloc(ids->data, more * sizeof *grown);
        if (!grown)
            return st_fail(err, STRATA_E_MEMORY, "no memory for %zu token ids", more);
        ids->data = grown;
        ids->capacity = more;
    }
    ids->data[ids->count++] = id;
    return STRATA_OK;
}

/* One symbol of a piece while it is merged; symbols form a list by index. */
struct symbol {
    int32_t id;
    uint32_t before, next; /* UINT32_MAX: none */
    uint32_t rank;         /* of the pair with the next symbol, NO_RANK if they do not merge or this one is gone */
};

struct encoder {
    const struct st_tokenizer *t;
    struct symbol *symbols;
    size_t symbol_room;
    uint64_t *heap; /* rank << 32 | position: the smallest is the next merge, leftmost first */
    size_t heap_count, heap_room;
    struct st_ids *ids;
    struct strata_error *err;
};

static enum strata_result heap_push(struct encoder *e, uint64_t key)
{
    if (e->heap_count == e->heap_room) {
        size_t more = e->heap_room ? 2 * e->heap_room : 64;
        uint64_t *grown = realloc(e->heap, more * sizeof *grown);
        if (!grown)
            return st_fail(e->err, STRATA_E_MEMORY, "no memory to merge a piece of text");
        e->heap = grown;
        e->heap_room = more;
    }
    size_t i = e->heap_count++;
    for (; i > 0 && e->heap[(i - 1) / 2] > key; i = (i - 1) / 2)
        e->heap[i] = e->heap[(i - 1) / 2];
    e->heap[i] = key;
    return STRATA_OK;
}

static uint64_t heap_pop(struct encoder *e)
{
    uint64_t top = e->heap[0], last = e->heap[--e->heap_count];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < e->heap_count; i = child) {
        if (child + 1 < e->heap_count && e->heap[child + 1] < e->heap[child])
            child++;
        if (e->heap[child] >= last)
            break;
        e->heap[i] = e->heap[child];
    }
    e->heap[i] = last;
    return top;
}

/* Looks up how symbol at merges with the one after it, and queues that. */
static enum strata_result queue_pair(struct encoder *e, uint32_t at)
{
    struct symbol *s = &e->symbols[at];
    s->rank = NO_RANK;
    if (s->next == UINT32_MAX)
        return STRATA_OK;
    s->rank = merge_slot(e->t, (uint64_t)s->id << 32 | (uint32_t)e->symbols[s->next].id)->rank;
    return s->rank == NO_RANK ? STRATA_OK : heap_push(e, (uint64_t)s->rank << 32 | at);
}

/* Merges one piece. A heap entry is current if its symbol still has that rank; others are left over and skipped. */
static enum strata_result encode_piece(struct encoder *e, const char *text, size_t size)
{
    const struct st_tokenizer *t = e->t;
    if (size == 0)
        return STRATA_OK;
    if (st_pretoken_whole_pieces(t->pre)) {
        int32_t whole = find_text_token(t, (struct st_bytes){text, size});
        if (whole != NONE)
            return st_ids_push(e->ids, whole, e->err);
    }
    if (size > e->symbol_room) {
        struct symbol *grown = realloc(e->symbols, size * sizeof *grown);
        if (!grown)
            return st_fail(e->err, STRATA_E_MEMORY, "no memory to merge a piece of %zu bytes", size);
        e->symbols = grown;
        e->symbol_room = size;
    }
    for (size_t i = 0; i < size; i++) {
        int32_t id = t->by_byte[(unsigned char)text[i]];
        if (id == NONE)
            return st_fail(e->err, STRATA_E_UNSUPPORTED, "the vocabulary has no token for byte 0x%02x",
                           (unsigned)(unsigned char)text[i]);
        e->symbols[i] = (struct symbol){id, (uint32_t)i - 1, i + 1 < size ? (uint32_t)i + 1 : UINT32_MAX, NO_RANK};
    }
    e->heap_count = 0;
    enum strata_result r = STRATA_OK;
    for (size_t i = 0; r == STRATA_OK && i + 1 < size; i++)
        r = queue_pair(e, (uint32_t)i);
    while (r == STRATA_OK && e->heap_count) {
        uint64_t key = heap_pop(e);
        uint32_t at = (uint32_t)key;
        struct symbol *s = &e->symbols[at];
        if (s->rank != (uint32_t)(key >> 32))
            continue;
        struct symbol *gone = &e->symbols[s->next];
        s->id = merge_slot(t, (uint64_t)s->id << 32 | (uint32_t)gone->id)->result;
        s->next = gone->next;
        gone->rank = NO_RANK;
        if (s->next != UINT32_MAX)
            e->symbols[s->next].before = at;
        r = queue_pair(e, at);
        if (r == STRATA_OK && s->before != UINT32_MAX)
            r = queue_pair(e, s->before);
    }
    for (uint32_t i = 0; r == STRATA_OK && i != UINT32_MAX; i = e->symbols[i].next)
        r = st_ids_push(e->ids, e->symbols[i].id, e->err);
    return r;
}

/* Encodes text without special tokens. */
static enum strata_result encode_plain(struct encoder *e, const char *text, size_t size)
{
    if (size == 0)
        return STRATA_OK;
    char *normal = NULL;
    enum strata_result r = STRATA_OK;
    if (st_pretoken_normalises(e->t->pre))
        r = st_nfc(text, size, &normal, &size, e->err);
    if (normal)
        text = normal;
    struct st_cuts cuts = {0};
    if (r == STRATA_OK)
        r = st_pretoken_cut(e->t->pre, text, size, &cuts, e->err);
    uint32_t from = 0;
    for (size_t i = 0; r == STRATA_OK && i < cuts.count; i++) {
        r = encode_piece(e, text + from, cuts.ends[i] - from);
        from = cuts.ends[i];
    }
    free(cuts.ends);
    free(normal);
    return r;
}

/* The longest special token at the beginning of text, -1 if there is none. Narrows the range of sorted tokens that
 * agree with the text byte by byte. */
static int32_t special_at(const struct st_tokenizer *t, const char *text, size_t size)
{
    unsigned char first = (unsigned char)text[0];
    size_t lo = t->special_first[first], hi = t->special_first[first + 1];
    int32_t best = NONE;
    for (size_t depth = 1; lo < hi; depth++) {
        struct st_bytes s = token_bytes(t, t->special[lo]);
        if (s.size == depth) {
            best = t->special[lo];
            lo++;
        }
        if (depth == size)
            break;
        unsigned char next = (unsigned char)text[depth];
        /* Each of [lo, hi) is longer than depth and shares its first depth bytes: they are sorted by the next byte. */
        size_t ends[2];
        for (int side = 0; side < 2; side++) {
            size_t a = lo, b = hi;
            while (a < b) {
                size_t mid = a + (b - a) / 2;
                unsigned char c = (unsigned char)token_bytes(t, t->special[mid]).data[depth];
                if (c < next || (side && c == next))
                    a = mid + 1;
                else
                    b = mid;
            }
            ends[side] = a;
        }
        lo = ends[0];
        hi = ends[1];
    }
    return best;
}

enum strata_result st_tokenizer_encode_spans(const struct st_tokenizer *t, const char *text, size_t size,
                                             const struct st_span *spans, size_t span_count, struct st_ids *ids,
                                             struct strata_error *err)
{
    if (size > INT32_MAX)
        return st_fail(err, STRATA_E_LIMIT, "text of %zu bytes is too long to tokenize", size);
    size_t bad = st_utf8_invalid(text, size);
    if (bad != size)
        return st_fail(err, STRATA_E_FORMAT, "text is not valid UTF-8 at byte %zu", bad);
    struct encoder e = {.t = t, .ids = ids, .err = err};
    size_t before = ids->count, plain = 0;
    enum strata_result r = STRATA_OK;
    for (size_t i = 0; r == STRATA_OK && i < span_count; i++) {
        if (spans[i].from > spans[i].to || spans[i].to > size || (i && spans[i].from < spans[i - 1].to)) {
            r = st_fail(err, STRATA_E_ARGUMENT, "span %zu of a text to tokenize is out of order", i);
            break;
        }
        for (size_t at = spans[i].from; r == STRATA_OK && at < spans[i].to;) {
            int32_t id = special_at(t, text + at, spans[i].to - at);
            if (id == NONE) {
                at++;
                continue;
            }
            r = encode_plain(&e, text + plain, at - plain);
            if (r == STRATA_OK)
                r = st_ids_push(ids, id, err);
            at += token_bytes(t, id).size;
            plain = at;
        }
    }
    if (r == STRATA_OK)
        r = encode_plain(&e, text + plain, size - plain);
    if (r != STRATA_OK)
        ids->count = before;
    free(e.symbols);
    free(e.heap);
    return r;
}

enum strata_result st_tokenizer_encode(const struct st_tokenizer *t, const char *text, size_t size, bool special,
                                       struct st_ids *ids, struct strata_error *err)
{
    struct st_span all = {0, size};
    return st_tokenizer_encode_spans(t, text, size, &all, special ? 1 : 0, ids, err);
}
