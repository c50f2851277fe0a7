/* Writing and reading session files: see session_file.h. */
#include "engine/session_file.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/checked.h"
#include "base/file.h"
#include "engine/checkpoint.h"
#include "engine/speculate.h"

enum { VERSION = 2, SAMPLE_BYTES = 256, BUFFER_BYTES = 1 << 20, PIECE_BYTES = 4 << 20, ALL = ST_STATE_FIXED | ST_STATE_GROWING };
enum { TAIL = 16 }; /* bytes behind the content: hash and end mark */

static const char begin_mark[8] = "STRATAS1", end_mark[8] = "STRATAE1";
#define DAMAGED "%s: the session file is damaged or incomplete"

/* ---- fingerprints ---- */

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

const struct st_session_print *st_engine_print(struct strata_engine *e)
{
    if (!e->print.model)
        e->print = (struct st_session_print){.model = st_model_fingerprint(e->model->gguf),
                                             .draft = e->draft_gguf ? st_model_fingerprint(e->draft_gguf) : 0,
                                             .kv = e->options.kv,
                                             .fp32 = e->options.fp32,
                                             .mtp_norm = e->options.mtp_norm,
                                             .rope_scaling = e->options.rope_scaling,
                                             .rope_scale = e->options.rope_scale};
    return &e->print;
}

/* ---- writing ---- */

struct st_session_writing {
    struct st_out out;
    XXH3_state_t *hash;
    uint8_t *buffer;
    struct st_session_source left; /* of which the states are still to be written; no session: none */
    uint64_t state_bytes;
    const _Atomic bool *stop; /* NULL: it cannot be stopped */
    struct strata_error *err;
};

static enum strata_result go_on(const struct st_session_writing *w)
{
    return w->stop && atomic_load(w->stop)
               ? st_fail(w->err, STRATA_E_CANCELLED, "%s: the session is not needed any more", w->out.path)
               : STRATA_OK;
}

/* A large state in pieces, so that a write that nobody needs any more ends soon. */
static enum strata_result put(struct st_session_writing *w, const void *data, size_t bytes)
{
    enum strata_result r = STRATA_OK;
    const uint8_t *at = data;
    for (size_t n; bytes && !r; at += n, bytes -= n) {
        n = bytes < PIECE_BYTES ? bytes : PIECE_BYTES;
        XXH3_64bits_update(w->hash, at, n);
        r = st_out_write(&w->out, at, n, w->err);
        r = r ? r : go_on(w);
    }
    return r;
}

static enum strata_result put_stretch(void *user, struct st_stage *stage, uint8_t *at, uint64_t bytes)
{
    struct st_session_writing *w = user;
    enum strata_result r = stage->ops->read(stage, w->buffer, at, bytes, w->err);
    return r ? r : put(w, w->buffer, (size_t)bytes);
}

struct st_session_source st_session_source(const struct strata_session *s)
{
    return (struct st_session_source){.tokens = s->count,
                                      .next_axis = s->next_axis,
                                      .ids = s->ids,
                                      .point = s->point,
                                      .points = s->points,
                                      .session = s};
}

uint64_t st_session_file_bytes(const struct strata_engine *e, const struct st_session_source *source)
{
    uint64_t bytes = sizeof(struct st_session_header) + st_state_shapes(e, NULL) * sizeof(struct st_state_shape) +
                     (uint64_t)source->points * sizeof(struct st_session_point) + source->tokens * sizeof(int32_t) +
                     st_state_bytes(e, ALL, source->tokens) + sizeof(uint64_t) + sizeof end_mark;
    for (int i = 0; i < source->points; i++)
        bytes += source->point[i]->bytes;
    return bytes;
}

/* Everything before the states. */
static enum strata_result put_head(struct st_session_writing *w, struct strata_engine *e,
                                   const struct st_session_source *source)
{
    struct st_state_shape *shapes = malloc(st_state_shapes(e, NULL) * sizeof *shapes + 1);
    if (!shapes)
        return st_fail(w->err, STRATA_E_MEMORY, "%s: no memory", w->out.path);
    struct st_session_header h = {.version = VERSION,
                                  .pieces = (uint32_t)st_state_shapes(e, shapes),
                                  .print = *st_engine_print(e),
                                  .tokens = source->tokens,
                                  .next_axis = source->next_axis,
                                  .points = (uint32_t)source->points};
    memcpy(h.mark, begin_mark, sizeof h.mark);
    enum strata_result r = put(w, &h, sizeof h);
    if (!r)
        r = put(w, shapes, h.pieces * sizeof *shapes);
    free(shapes);
    for (int i = 0; i < source->points && !r; i++) {
        struct st_session_point point = {source->point[i]->tokens, source->point[i]->next_axis};
        r = put(w, &point, sizeof point);
    }
    return r ? r : put(w, source->ids, source->tokens * sizeof *source->ids);
}

static enum strata_result put_points(struct st_session_writing *w, const struct st_session_source *source)
{
    enum strata_result r = STRATA_OK;
    for (int i = 0; i < source->points && !r; i++)
        r = put(w, source->point[i]->state, (size_t)source->point[i]->bytes);
    return r;
}

/* The states of a session, which changes with the next pass. */
static enum strata_result put_session(struct st_session_writing *w, const struct st_session_source *source)
{
    enum strata_result r = st_state_walk(source->session, ALL, source->tokens, BUFFER_BYTES, put_stretch, w);
    if (r)
        st_engine_find_lost(source->session->engine);
    return r ? r : put_points(w, source);
}

static enum strata_result put_end(struct st_session_writing *w)
{
    uint64_t hash = XXH3_64bits_digest(w->hash);
    enum strata_result r = st_out_write(&w->out, &hash, sizeof hash, w->err);
    return r ? r : st_out_write(&w->out, end_mark, sizeof end_mark, w->err);
}

static void free_writing(struct st_session_writing *w)
{
    st_out_abort(&w->out); /* after a commit there is nothing to abort */
    XXH3_freeState(w->hash);
    free(w->buffer);
    free(w);
}

enum strata_result st_session_write_begin(struct strata_engine *e, const char *path,
                                          const struct st_session_source *source, struct st_session_writing **out,
                                          struct strata_error *err)
{
    struct st_session_writing *w = calloc(1, sizeof *w);
    if (!w)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory", path);
    *w = (struct st_session_writing){
        .out = {.fd = -1}, .hash = XXH3_createState(), .buffer = malloc(BUFFER_BYTES), .err = err};
    enum strata_result r = STRATA_OK;
    if (!w->hash || !w->buffer)
        r = st_fail(err, STRATA_E_MEMORY, "%s: no memory", path);
    if (!r) {
        XXH3_64bits_reset(w->hash);
        st_out_sweep(path);
        r = st_out_open(path, &w->out, err);
        w->out.mode = 0600; /* what was said is its owner's */
    }
    if (!r)
        r = put_head(w, e, source);
    if (!r && source->session) {
        r = put_session(w, source);
    } else {
        w->left = *source;
        w->state_bytes = st_state_bytes(e, ALL, source->tokens);
    }
    if (r)
        free_writing(w);
    else
        *out = w;
    return r;
}

enum strata_result st_session_write_end(struct st_session_writing *w, const _Atomic bool *stop,
                                        struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    w->err = err;
    w->stop = stop;
    if (w->left.state)
        r = put(w, w->left.state, (size_t)w->state_bytes);
    if (w->left.state && !r)
        r = put_points(w, &w->left);
    if (!r)
        r = put_end(w);
    if (!r)
        r = st_out_commit(&w->out, err);
    free_writing(w);
    return r;
}

enum strata_result strata_session_save(struct strata_session *s, const char *path, struct strata_error *err)
{
    struct st_session_writing *w;
    enum strata_result r = st_session_ready(s, err);
    if (!r)
        r = st_spec_settle(s, err);
    struct st_session_source source = st_session_source(s);
    if (!r)
        r = st_session_write_begin(s->engine, path, &source, &w, err);
    return r ? r : st_session_write_end(w, NULL, err);
}

/* ---- reading ---- */

/* Takes count elements of size bytes off the front; NULL when there are not that many. */
static const uint8_t *take(const uint8_t **at, const uint8_t *end, uint64_t count, uint64_t size)
{
    uint64_t bytes;
    const uint8_t *p = *at;
    if (!st_mul_u64(count, size, &bytes) || bytes > (uint64_t)(end - p))
        return NULL;
    *at = p + bytes;
    return p;
}

static struct st_state_shape shape_at(const struct st_session_view *v, uint32_t i)
{
    struct st_state_shape shape;
    memcpy(&shape, v->shapes + i * sizeof shape, sizeof shape);
    return shape;
}

struct st_session_point st_session_view_point(const struct st_session_view *v, uint32_t i)
{
    struct st_session_point p;
    memcpy(&p, v->points + i * sizeof p, sizeof p);
    return p;
}

/* Bytes of the states as the pieces' forms say. */
static bool count_states(struct st_session_view *v)
{
    for (uint32_t i = 0; i < v->h.pieces; i++) {
        struct st_state_shape shape = shape_at(v, i);
        uint64_t bytes;
        if (!st_state_shape_bytes(&shape, v->h.tokens, &bytes) || !st_add_u64(v->state_bytes, bytes, &v->state_bytes) ||
            (!shape.tokens_per_unit && !st_add_u64(v->fixed_bytes, bytes, &v->fixed_bytes)))
            return false;
    }
    return true;
}

static bool axis_in_range(int32_t axis)
{
    return axis >= 0 && axis <= INT_MAX / 2;
}

/* Lengths grow and positions are possible. */
static bool points_in_order(const struct st_session_view *v)
{
    uint32_t before = 0;
    for (uint32_t i = 0; i < v->h.points; i++) {
        struct st_session_point p = st_session_view_point(v, i);
        if (p.tokens <= before || p.tokens > v->h.tokens || !axis_in_range(p.next_axis))
            return false;
        before = p.tokens;
    }
    return axis_in_range(v->h.next_axis);
}

enum strata_result st_session_peek(const uint8_t *data, uint64_t size, const char *name, struct st_session_view *out,
                                   struct strata_error *err)
{
    struct st_session_view v = {.shapes = NULL};
    if (size < sizeof v.h + TAIL || memcmp(data, begin_mark, sizeof begin_mark))
        return st_fail(err, STRATA_E_ARGUMENT, "%s: not a session file", name);
    memcpy(&v.h, data, sizeof v.h);
    if (v.h.version != VERSION)
        return st_fail(err, STRATA_E_UNSUPPORTED, "%s: session file version %u, not %d", name, v.h.version, VERSION);
    const uint8_t *at = data + sizeof v.h, *end = data + size - TAIL;
    if (memcmp(end + sizeof(uint64_t), end_mark, sizeof end_mark))
        return st_fail(err, STRATA_E_FORMAT, DAMAGED, name);
    v.shapes = take(&at, end, v.h.pieces, sizeof(struct st_state_shape));
    v.points = v.shapes ? take(&at, end, v.h.points, sizeof(struct st_session_point)) : NULL;
    v.ids = v.points ? take(&at, end, v.h.tokens, sizeof(int32_t)) : NULL;
    v.state = v.ids && count_states(&v) ? take(&at, end, v.state_bytes, 1) : NULL;
    v.point_states = v.state ? take(&at, end, v.h.points, v.fixed_bytes) : NULL;
    if (!v.point_states || at != end)
        return st_fail(err, STRATA_E_FORMAT, "%s: the session file's size does not fit its content", name);
    if (!points_in_order(&v))
        return st_fail(err, STRATA_E_FORMAT, "%s: checkpoints or positions of the session file are out of order", name);
    *out = v;
    return STRATA_OK;
}

enum strata_result st_session_parse(const uint8_t *data, uint64_t size, const char *name, struct st_session_view *out,
                                    struct strata_error *err)
{
    uint64_t hash;
    struct st_session_view v;
    bool marked = size >= sizeof v.h + TAIL && !memcmp(data, begin_mark, sizeof begin_mark);
    memcpy(&v.h, data, marked ? sizeof v.h : 0);
    if (marked && v.h.version == VERSION) { /* a file of another version or kind is not damaged */
        memcpy(&hash, data + size - TAIL, sizeof hash);
        if (XXH3_64bits(data, size - TAIL) != hash)
            return st_fail(err, STRATA_E_FORMAT, DAMAGED, name);
    }
    return st_session_peek(data, size, name, out, err);
}

static const char *kv_name(uint32_t kv)
{
    static const char *const names[] = {
        [STRATA_KV_F16] = "f16", [STRATA_KV_F32] = "f32", [STRATA_KV_INT8] = "int8", [STRATA_KV_Q4] = "q4"};
    return kv < sizeof names / sizeof *names ? names[kv] : "unknown";
}

static enum strata_result same_print(struct strata_engine *e, const struct st_session_print *p, const char *name,
                                     struct strata_error *err)
{
    const struct st_session_print *own = st_engine_print(e);
    if (p->kv != own->kv)
        return st_fail(err, STRATA_E_MODEL, "%s: the session was made with --kv %s, not %s", name, kv_name(p->kv),
                       kv_name(own->kv));
    if (p->rope_scaling != own->rope_scaling || p->rope_scale != own->rope_scale)
        return st_fail(err, STRATA_E_MODEL, "%s: the session was made with another context extension: --rope-scale %g, not %g",
                       name, p->rope_scaling ? p->rope_scale : 1.0, own->rope_scaling ? own->rope_scale : 1.0);
    const char *what = p->model != own->model           ? "with another model file"
                       : p->draft && !own->draft        ? "with a draft layer (--mtp)"
                       : !p->draft && own->draft        ? "without a draft layer (--mtp)"
                       : p->draft != own->draft         ? "with another draft layer (--mtp)"
                       : p->fp32 && !own->fp32          ? "with --fp32"
                       : !p->fp32 && own->fp32          ? "without --fp32"
                       : p->mtp_norm != own->mtp_norm   ? "with another norm of the draft layer"
                                                        : NULL;
    return what ? st_fail(err, STRATA_E_MODEL, "%s: the session was made %s", name, what) : STRATA_OK;
}

enum strata_result st_session_fits(struct strata_engine *e, const struct st_session_view *v, const char *name,
                                   struct strata_error *err)
{
    enum strata_result r = same_print(e, &v->h.print, name, err);
    if (r)
        return r;
    size_t pieces = st_state_shapes(e, NULL);
    struct st_state_shape *own = malloc(pieces * sizeof *own + 1);
    if (!own)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory", name);
    st_state_shapes(e, own);
    if (v->h.pieces != pieces || memcmp(own, v->shapes, pieces * sizeof *own))
        r = st_fail(err, STRATA_E_MODEL, "%s: the session's state has another form than this model's", name);
    free(own);
    if (!r && v->h.tokens > e->options.context)
        r = st_fail(err, STRATA_E_LIMIT, "%s: the session holds %u tokens, the context (-c) is %u", name, v->h.tokens,
                    e->options.context);
    for (uint32_t i = 0; i < v->h.tokens && !r; i++) {
        int32_t id;
        memcpy(&id, v->ids + i * sizeof id, sizeof id);
        if (id < 0 || (uint32_t)id >= e->dims.embeddings)
            r = st_fail(err, STRATA_E_FORMAT, "%s: token %u is no id of this model", name, i);
    }
    return r;
}

/* Checkpoints as far as there is memory for them. */
static void take_points(struct strata_session *s, const struct st_session_view *v)
{
    for (uint32_t i = 0; i < v->h.points; i++) {
        struct st_session_point p = st_session_view_point(v, i);
        st_checkpoint_add(s, p.tokens, p.next_axis, v->point_states + i * v->fixed_bytes);
    }
}

enum strata_result st_session_take(struct strata_session *s, const struct st_session_view *v, struct strata_error *err)
{
    st_session_forget(s);
    memcpy(s->ids, v->ids, v->h.tokens * sizeof *s->ids);
    enum strata_result r = st_state_write(s, ALL, v->h.tokens, v->state, err);
    if (r) {
        st_engine_find_lost(s->engine);
        st_session_forget(s);
        return r;
    }
    s->count = v->h.tokens;
    s->next_axis = v->h.next_axis;
    st_spec_restored(s);
    take_points(s, v);
    return r;
}

enum strata_result strata_session_restore(struct strata_session *s, const char *path, struct strata_error *err)
{
    struct st_map map;
    struct st_session_view v;
    enum strata_result r = st_session_ready(s, err);
    if (!r)
        r = st_map_open(path, &map, err);
    if (r)
        return r;
    r = st_session_parse(map.data, map.size, path, &v, err);
    if (!r)
        r = st_session_fits(s->engine, &v, path, err);
    if (!r)
        r = st_session_take(s, &v, err);
    st_map_close(&map);
    return r;
}
