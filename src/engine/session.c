/* Sessions: slots, tokens held, and state files.
 *
 * State file, little-endian, version 1:
 *     "STRATAS1"                      8 bytes
 *     u32 version, u32 kv type, u64 fingerprint of the model, u64 fingerprint of the draft file (0: none)
 *     u32 tokens, i32 next rotary position, u64 bytes of the state that follows the ids
 *     i32 ids[tokens]
 *     state: for each piece of the trunk's program, then of the draft's: outer x used units x unit_bytes
 *     u64 XXH3 of everything before, "STRATAE1" */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/checked.h"
#include "engine/engine.h"

enum { VERSION = 1, SAMPLE_BYTES = 256 };

static const char begin_mark[8] = "STRATAS1", end_mark[8] = "STRATAE1";

struct file_header {
    char mark[8];
    uint32_t version, kv;
    uint64_t model, draft;
    uint32_t tokens;
    int32_t next_axis;
    uint64_t state_bytes;
};

uint64_t st_model_fingerprint(const struct st_gguf *g)
{
    XXH3_state_t *x = XXH3_createState();
    if (!x)
        return 0;
    XXH3_64bits_reset(x);
    for (size_t i = 0; i < g->n_tensors; i++) {
        const struct st_gguf_tensor *t = &g->tensors[i];
        XXH3_64bits_update(x, t->name, strlen(t->name) + 1);
        XXH3_64bits_update(x, t->ne, sizeof t->ne);
        XXH3_64bits_update(x, &t->type, sizeof t->type);
        size_t n = t->bytes < SAMPLE_BYTES ? (size_t)t->bytes : SAMPLE_BYTES;
        XXH3_64bits_update(x, t->data + (t->bytes - n) / 2, n);
    }
    uint64_t h = XXH3_64bits_digest(x);
    XXH3_freeState(x);
    return h;
}

enum strata_result strata_session_create(struct strata_engine *e, struct strata_session **out, struct strata_error *err)
{
    uint32_t slot = 0;
    while (slot < e->options.sessions && e->slot_used[slot])
        slot++;
    if (slot == e->options.sessions)
        return st_fail(err, STRATA_E_LIMIT, "all %u sessions of the engine are in use", e->options.sessions);
    struct strata_session *s = calloc(1, sizeof *s);
    int32_t *ids = malloc(e->options.context * sizeof *ids);
    if (!s || !ids) {
        free(s);
        free(ids);
        return st_fail(err, STRATA_E_MEMORY, "no memory for a session of %u tokens", e->options.context);
    }
    s->engine = e;
    s->slot = slot;
    s->ids = ids;
    e->slot_used[slot] = true;
    strata_session_reset(s);
    *out = s;
    return STRATA_OK;
}

void strata_session_free(struct strata_session *s)
{
    if (!s)
        return;
    if (s->engine->logits_of == s)
        s->engine->logits_of = NULL;
    s->engine->slot_used[s->slot] = false;
    free(s->ids);
    free(s);
}

size_t strata_session_tokens(const struct strata_session *s, const int32_t **ids)
{
    if (ids)
        *ids = s->ids;
    return s->count;
}

/* Units of a piece that n tokens fill. */
static uint64_t used_units(const struct st_state_piece *p, uint32_t n)
{
    return p->tokens_per_unit ? n / p->tokens_per_unit : 1;
}

static void clear_program(const struct st_program *p, uint32_t slot)
{
    for (size_t i = 0; i < p->n_pieces; i++)
        if (!p->pieces[i].tokens_per_unit)
            memset(p->pieces[i].base + slot * p->pieces[i].slot_stride, 0, p->pieces[i].unit_bytes);
}

void strata_session_reset(struct strata_session *s)
{
    clear_program(&s->engine->trunk, s->slot);
    clear_program(&s->engine->draft, s->slot);
    s->count = 0;
    s->next_axis = 0;
    atomic_store(&s->cancelled, false);
    if (s->engine->logits_of == s)
        s->engine->logits_of = NULL;
}

void strata_session_cancel(struct strata_session *s)
{
    atomic_store(&s->cancelled, true);
}

/* Calls visit for every used stretch of the slot's state, in file order, until it fails. */
static enum strata_result for_state(const struct strata_session *s, uint32_t tokens,
                                    enum strata_result (*visit)(void *user, uint8_t *data, uint64_t bytes), void *user)
{
    const struct st_program *programs[2] = {&s->engine->trunk, &s->engine->draft};
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < programs[k]->n_pieces; i++) {
            const struct st_state_piece *p = &programs[k]->pieces[i];
            for (uint32_t o = 0; o < p->outer; o++) {
                enum strata_result r = visit(user, p->base + s->slot * p->slot_stride + o * p->outer_stride,
                                             used_units(p, tokens) * p->unit_bytes);
                if (r)
                    return r;
            }
        }
    return STRATA_OK;
}

static enum strata_result add_bytes(void *user, uint8_t *data, uint64_t bytes)
{
    (void)data;
    *(uint64_t *)user += bytes;
    return STRATA_OK;
}

struct writer {
    struct st_out out;
    XXH3_state_t *hash;
    struct strata_error *err;
};

static enum strata_result put(struct writer *w, const void *data, size_t bytes)
{
    XXH3_64bits_update(w->hash, data, bytes);
    return st_out_write(&w->out, data, bytes, w->err);
}

static enum strata_result put_state(void *user, uint8_t *data, uint64_t bytes)
{
    return put(user, data, (size_t)bytes);
}

static struct file_header header_of(const struct strata_session *s)
{
    const struct strata_engine *e = s->engine;
    struct file_header h = {.version = VERSION,
                            .kv = e->options.kv,
                            .model = st_model_fingerprint(e->model->gguf),
                            .draft = e->draft_gguf ? st_model_fingerprint(e->draft_gguf) : 0,
                            .tokens = s->count,
                            .next_axis = s->next_axis};
    memcpy(h.mark, begin_mark, sizeof h.mark);
    for_state(s, s->count, add_bytes, &h.state_bytes);
    return h;
}

enum strata_result strata_session_save(struct strata_session *s, const char *path, struct strata_error *err)
{
    struct writer w = {.err = err, .hash = XXH3_createState()};
    if (!w.hash)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory", path);
    XXH3_64bits_reset(w.hash);
    struct file_header h = header_of(s);
    enum strata_result r = st_out_open(path, &w.out, err);
    if (!r)
        r = put(&w, &h, sizeof h);
    if (!r)
        r = put(&w, s->ids, s->count * sizeof *s->ids);
    if (!r)
        r = for_state(s, s->count, put_state, &w);
    uint64_t hash = XXH3_64bits_digest(w.hash);
    if (!r)
        r = st_out_write(&w.out, &hash, sizeof hash, err);
    if (!r)
        r = st_out_write(&w.out, end_mark, sizeof end_mark, err);
    if (!r)
        r = st_out_commit(&w.out, err);
    else
        st_out_abort(&w.out);
    XXH3_freeState(w.hash);
    return r;
}

static enum strata_result take_state(void *user, uint8_t *data, uint64_t bytes)
{
    const uint8_t **at = user;
    memcpy(data, *at, (size_t)bytes);
    *at += bytes;
    return STRATA_OK;
}

/* Everything about the file that must hold before a byte of the session changes. */
static enum strata_result check_file(const struct strata_session *s, const char *path, const struct st_map *map,
                                     struct file_header *h, struct strata_error *err)
{
    const struct strata_engine *e = s->engine;
    const size_t tail = sizeof(uint64_t) + sizeof end_mark;
    if (map->size < sizeof *h + tail || memcmp(map->data, begin_mark, sizeof begin_mark))
        return st_fail(err, STRATA_E_FORMAT, "%s: not a session file", path);
    memcpy(h, map->data, sizeof *h);
    if (h->version != VERSION)
        return st_fail(err, STRATA_E_UNSUPPORTED, "%s: session file version %u, not %d", path, h->version, VERSION);
    uint64_t body = map->size - tail, hash, want = 0, size;
    memcpy(&hash, map->data + body, sizeof hash);
    if (memcmp(map->data + body + sizeof hash, end_mark, sizeof end_mark) || XXH3_64bits(map->data, body) != hash)
        return st_fail(err, STRATA_E_FORMAT, "%s: the session file is damaged or incomplete", path);
    struct file_header now = header_of(s);
    if (h->model != now.model || h->draft != now.draft)
        return st_fail(err, STRATA_E_MODEL, "%s: the session was made with another model file", path);
    if (h->kv != now.kv)
        return st_fail(err, STRATA_E_MODEL, "%s: the session was made with another type of KV cache", path);
    if (h->tokens > e->options.context)
        return st_fail(err, STRATA_E_LIMIT, "%s: the session holds %u tokens, the context is %u", path, h->tokens,
                       e->options.context);
    for_state(s, h->tokens, add_bytes, &want);
    if (h->state_bytes != want || !st_add_u64(sizeof *h + (uint64_t)h->tokens * sizeof(int32_t), want, &size) ||
        size != body)
        return st_fail(err, STRATA_E_FORMAT, "%s: the session file's size does not fit its content", path);
    for (uint32_t i = 0; i < h->tokens; i++) {
        int32_t id;
        memcpy(&id, map->data + sizeof *h + i * sizeof id, sizeof id);
        if (id < 0 || (uint32_t)id >= e->dims.embeddings)
            return st_fail(err, STRATA_E_FORMAT, "%s: token %u is no id of this model", path, i);
    }
    if (h->next_axis < 0 || h->next_axis > INT_MAX / 2)
        return st_fail(err, STRATA_E_FORMAT, "%s: rotary position %d is out of range", path, h->next_axis);
    return STRATA_OK;
}

enum strata_result strata_session_restore(struct strata_session *s, const char *path, struct strata_error *err)
{
    struct st_map map;
    struct file_header h;
    enum strata_result r = st_map_open(path, &map, err);
    if (r)
        return r;
    r = check_file(s, path, &map, &h, err);
    if (!r) {
        const uint8_t *at = map.data + sizeof h;
        strata_session_reset(s);
        memcpy(s->ids, at, h.tokens * sizeof *s->ids);
        at += h.tokens * sizeof *s->ids;
        for_state(s, h.tokens, take_state, &at);
        s->count = h.tokens;
        s->next_axis = h.next_axis;
    }
    st_map_close(&map);
    return r;
}

enum strata_result strata_session_eval(struct strata_session *s, const int32_t *ids, size_t count, bool all_logits,
                                       float *logits, struct strata_error *err)
{
    struct st_input in = {.ids = ids, .count = count};
    struct st_output out = {.logits = logits, .all_logits = all_logits};
    return st_session_eval(s, &in, &out, err);
}
