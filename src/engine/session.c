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
    while (slot < e->options.sessions && e->slot[slot])
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
    e->slot[slot] = s;
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
    s->engine->slot[s->slot] = NULL;
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

/* Calls visit for the pieces of the trunk in the order of layers, then for those of the draft layer, until it fails. */
static enum strata_result for_pieces(const struct strata_session *s,
                                     enum strata_result (*visit)(void *user, struct st_stage *stage,
                                                                 const struct st_state_piece *piece),
                                     void *user)
{
    enum strata_result r = STRATA_OK;
    for (int part = 0; part < 2; part++)
        for (int k = 0; k < s->engine->n_stages; k++) {
            struct st_stage *stage = s->engine->stages[k];
            const struct st_program *p = part ? &stage->draft : &stage->trunk;
            for (size_t i = 0; i < p->n_pieces && !r; i++)
                r = visit(user, stage, &p->pieces[i]);
        }
    return r;
}

struct clearing {
    const struct strata_session *session;
    struct strata_error *err;
};

static enum strata_result clear_piece(void *user, struct st_stage *stage, const struct st_state_piece *p)
{
    const struct clearing *c = user;
    return p->tokens_per_unit ? STRATA_OK
                              : stage->ops->clear(stage, p->base + c->session->slot * p->slot_stride, p->unit_bytes, c->err);
}

void st_session_forget(struct strata_session *s)
{
    s->unclear = for_pieces(s, clear_piece, &(struct clearing){.session = s}) != STRATA_OK;
    s->count = 0;
    s->next_axis = 0;
    if (s->engine->logits_of == s)
        s->engine->logits_of = NULL;
}

enum strata_result st_session_ready(struct strata_session *s, struct strata_error *err)
{
    enum strata_result r = st_engine_ready(s->engine, err);
    if (!r && s->unclear)
        r = for_pieces(s, clear_piece, &(struct clearing){.session = s, .err = err});
    if (r)
        return r;
    s->unclear = false;
    return STRATA_OK;
}

void strata_session_reset(struct strata_session *s)
{
    st_session_forget(s);
    atomic_store(&s->cancelled, false);
}

void strata_session_cancel(struct strata_session *s)
{
    atomic_store(&s->cancelled, true);
}

/* A walk over the used stretches of a slot's state. Bytes pass through a buffer, because the state may be a device's.
 */
struct walk {
    const struct strata_session *session;
    uint32_t tokens;
    enum strata_result (*bytes)(struct walk *w, struct st_stage *stage, uint8_t *at, uint64_t bytes);
    uint64_t total;
    struct writer *writer;
    const uint8_t *from;
    uint8_t *buffer;
    struct strata_error *err;
};

enum { BUFFER_BYTES = 1 << 20 };

static enum strata_result walk_piece(void *user, struct st_stage *stage, const struct st_state_piece *p)
{
    struct walk *w = user;
    uint64_t bytes = used_units(p, w->tokens) * p->unit_bytes;
    enum strata_result r = STRATA_OK;
    w->total += bytes * p->outer;
    for (uint32_t o = 0; o < p->outer && w->bytes; o++)
        for (uint64_t at = 0; at < bytes && !r; at += BUFFER_BYTES)
            r = w->bytes(w, stage, p->base + w->session->slot * p->slot_stride + o * p->outer_stride + at,
                         bytes - at < BUFFER_BYTES ? bytes - at : BUFFER_BYTES);
    return r;
}

static uint64_t state_bytes(const struct strata_session *s, uint32_t tokens)
{
    struct walk w = {.session = s, .tokens = tokens};
    for_pieces(s, walk_piece, &w);
    return w.total;
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

static enum strata_result put_state(struct walk *w, struct st_stage *stage, uint8_t *at, uint64_t bytes)
{
    enum strata_result r = stage->ops->read(stage, w->buffer, at, bytes, w->err);
    return r ? r : put(w->writer, w->buffer, (size_t)bytes);
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
    h.state_bytes = state_bytes(s, s->count);
    return h;
}

enum strata_result strata_session_save(struct strata_session *s, const char *path, struct strata_error *err)
{
    enum strata_result r = st_session_ready(s, err);
    if (r)
        return r;
    struct writer w = {.err = err, .hash = XXH3_createState()};
    struct walk walk = {
        .session = s, .tokens = s->count, .bytes = put_state, .writer = &w, .buffer = malloc(BUFFER_BYTES), .err = err};
    if (!w.hash || !walk.buffer) {
        XXH3_freeState(w.hash);
        free(walk.buffer);
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory", path);
    }
    XXH3_64bits_reset(w.hash);
    struct file_header h = header_of(s);
    r = st_out_open(path, &w.out, err);
    if (!r)
        r = put(&w, &h, sizeof h);
    if (!r)
        r = put(&w, s->ids, s->count * sizeof *s->ids);
    if (!r)
        r = for_pieces(s, walk_piece, &walk);
    if (r)
        st_engine_find_lost(s->engine);
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
    free(walk.buffer);
    return r;
}

static enum strata_result take_state(struct walk *w, struct st_stage *stage, uint8_t *at, uint64_t bytes)
{
    enum strata_result r = stage->ops->write(stage, at, w->from, bytes, w->err);
    w->from += bytes;
    return r;
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
    uint64_t body = map->size - tail, hash, want, size;
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
    want = state_bytes(s, h->tokens);
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
    enum strata_result r = st_session_ready(s, err);
    if (!r)
        r = st_map_open(path, &map, err);
    if (r)
        return r;
    r = check_file(s, path, &map, &h, err);
    if (!r) {
        const uint8_t *at = map.data + sizeof h;
        strata_session_reset(s);
        memcpy(s->ids, at, h.tokens * sizeof *s->ids);
        at += h.tokens * sizeof *s->ids;
        struct walk walk = {.session = s, .tokens = h.tokens, .bytes = take_state, .from = at, .err = err};
        r = for_pieces(s, walk_piece, &walk);
        s->count = r ? 0 : h.tokens;
        s->next_axis = r ? 0 : h.next_axis;
        if (r)
            st_engine_find_lost(s->engine);
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
