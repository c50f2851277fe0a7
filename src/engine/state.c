/* Walks over the state of a session: see state.h. */
#include "engine/state.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

enum { COPY_BYTES = 4 << 20 };

static struct st_state_shape shape_of(const struct st_state_piece *p)
{
    return (struct st_state_shape){
        .unit_bytes = p->unit_bytes, .outer = p->outer, .tokens_per_unit = p->tokens_per_unit};
}

static unsigned kind_of(const struct st_state_piece *p)
{
    return p->tokens_per_unit ? ST_STATE_GROWING : ST_STATE_FIXED;
}

/* Units of a piece that tokens tokens fill. */
static uint64_t used_units(uint32_t tokens_per_unit, uint32_t tokens)
{
    return tokens_per_unit ? tokens / tokens_per_unit : 1;
}

bool st_state_shape_bytes(const struct st_state_shape *shape, uint32_t tokens, uint64_t *out)
{
    uint64_t bytes;
    return st_mul_u64(used_units(shape->tokens_per_unit, tokens), shape->unit_bytes, &bytes) &&
           st_mul_u64(bytes, shape->outer, out);
}

/* The next piece of the engine, NULL behind the last: a part of all stages, then the other part. */
struct cursor {
    const struct strata_engine *e;
    int part, stage;
    size_t piece;
};

static const struct st_state_piece *next_piece(struct cursor *c, struct st_stage **stage)
{
    for (; c->part < 2; c->part++, c->stage = 0)
        for (; c->stage < c->e->n_stages; c->stage++, c->piece = 0) {
            *stage = c->e->stages[c->stage];
            const struct st_program *p = c->part ? &(*stage)->draft : &(*stage)->trunk;
            if (c->piece < p->n_pieces)
                return &p->pieces[c->piece++];
        }
    return NULL;
}

size_t st_state_shapes(const struct strata_engine *e, struct st_state_shape *shapes)
{
    struct cursor c = {.e = e};
    struct st_stage *stage;
    size_t count = 0;
    for (const struct st_state_piece *p; (p = next_piece(&c, &stage)); count++)
        if (shapes)
            shapes[count] = shape_of(p);
    return count;
}

uint64_t st_state_bytes(const struct strata_engine *e, unsigned kinds, uint32_t tokens)
{
    struct cursor c = {.e = e};
    struct st_stage *stage;
    uint64_t total = 0;
    /* What was allocated cannot overflow. */
    for (const struct st_state_piece *p; (p = next_piece(&c, &stage));)
        if (kind_of(p) & kinds)
            total += used_units(p->tokens_per_unit, tokens) * p->unit_bytes * p->outer;
    return total;
}

enum strata_result st_state_walk(const struct strata_session *s, unsigned kinds, uint32_t tokens, uint64_t most,
                                 st_state_visit *visit, void *user)
{
    struct cursor c = {.e = s->engine};
    struct st_stage *stage;
    enum strata_result r = STRATA_OK;
    for (const struct st_state_piece *p; !r && (p = next_piece(&c, &stage));) {
        if (!(kind_of(p) & kinds))
            continue;
        uint64_t bytes = used_units(p->tokens_per_unit, tokens) * p->unit_bytes;
        for (uint32_t o = 0; o < p->outer; o++)
            for (uint64_t at = 0; at < bytes && !r; at += bytes - at < most ? bytes - at : most)
                r = visit(user, stage, p->base + s->slot * p->slot_stride + o * p->outer_stride + at,
                          bytes - at < most ? bytes - at : most);
    }
    return r;
}

struct copying {
    uint8_t *to;
    const uint8_t *from;
    struct strata_error *err;
};

static enum strata_result read_stretch(void *user, struct st_stage *stage, uint8_t *at, uint64_t bytes)
{
    struct copying *c = user;
    enum strata_result r = stage->ops->read(stage, c->to, at, bytes, c->err);
    c->to += bytes;
    return r;
}

static enum strata_result write_stretch(void *user, struct st_stage *stage, uint8_t *at, uint64_t bytes)
{
    struct copying *c = user;
    enum strata_result r = stage->ops->write(stage, at, c->from, bytes, c->err);
    c->from += bytes;
    return r;
}

static enum strata_result clear_stretch(void *user, struct st_stage *stage, uint8_t *at, uint64_t bytes)
{
    struct copying *c = user;
    return stage->ops->clear(stage, at, bytes, c->err);
}

enum strata_result st_state_read(const struct strata_session *s, unsigned kinds, uint32_t tokens, uint8_t *to,
                                 struct strata_error *err)
{
    return st_state_walk(s, kinds, tokens, UINT64_MAX, read_stretch, &(struct copying){.to = to, .err = err});
}

enum strata_result st_state_write(const struct strata_session *s, unsigned kinds, uint32_t tokens, const uint8_t *from,
                                  struct strata_error *err)
{
    return st_state_walk(s, kinds, tokens, UINT64_MAX, write_stretch, &(struct copying){.from = from, .err = err});
}

static enum strata_result copy_stretch(struct st_stage *stage, uint8_t *to, const uint8_t *from, uint64_t bytes, uint8_t *through,
                                       struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    for (uint64_t at = 0; at < bytes && !r; at += COPY_BYTES) {
        uint64_t n = bytes - at < COPY_BYTES ? bytes - at : COPY_BYTES;
        r = stage->ops->read(stage, through, from + at, n, err);
        if (!r)
            r = stage->ops->write(stage, to + at, through, n, err);
    }
    return r;
}

enum strata_result st_state_copy(const struct strata_session *to, const struct strata_session *from, unsigned kinds, uint32_t tokens,
                                 struct strata_error *err)
{
    struct cursor c = {.e = to->engine};
    struct st_stage *stage;
    enum strata_result r = STRATA_OK;
    uint8_t *through = malloc(COPY_BYTES);
    if (!through)
        return st_fail(err, STRATA_E_MEMORY, "no memory to copy a conversation");
    for (const struct st_state_piece *p; !r && (p = next_piece(&c, &stage));)
        for (uint32_t o = 0; o < p->outer && !r && kind_of(p) & kinds; o++) {
            uint8_t *base = p->base + o * p->outer_stride;
            r = copy_stretch(stage, base + to->slot * p->slot_stride, base + from->slot * p->slot_stride,
                             used_units(p->tokens_per_unit, tokens) * p->unit_bytes, through, err);
        }
    free(through);
    return r;
}

enum strata_result st_state_clear(const struct strata_session *s, struct strata_error *err)
{
    return st_state_walk(s, ST_STATE_FIXED, 0, UINT64_MAX, clear_stretch, &(struct copying){.err = err});
}
