/* Checkpoints of recurrent state: see checkpoint.h. */
#include "engine/checkpoint.h"

#include <stdlib.h>
#include <string.h>

#include "engine/park.h"
#include "engine/speculate.h"
#include "engine/state.h"

enum {
    LAST_TURNS = 4,  /* turns at the end of a prompt that always get one */
    SPACING = 1024,  /* tokens between two others */
    LONG_TEXT = 256, /* tokens behind the last turn that are worth one before the last of them */
};

void *st_keep_take(struct strata_engine *e, uint64_t bytes)
{
    if (bytes > e->keep.limit - e->keep.used)
        return NULL;
    void *memory = malloc(bytes);
    if (memory)
        e->keep.used += bytes;
    return memory;
}

void st_keep_free(struct strata_engine *e, void *memory, uint64_t bytes)
{
    if (memory)
        e->keep.used -= bytes;
    free(memory);
}

uint64_t st_checkpoint_bytes(const struct strata_engine *e)
{
    uint64_t bytes = st_state_bytes(e, ST_STATE_FIXED, 0);
    return bytes ? sizeof(struct st_checkpoint) + bytes : 0;
}

/* Checkpoints that a session can count on. */
static uint32_t affordable(const struct strata_engine *e)
{
    uint64_t one = st_checkpoint_bytes(e), n = one ? e->keep.limit / one / e->options.sessions : 0;
    return n < ST_CHECKPOINTS ? (uint32_t)n : ST_CHECKPOINTS;
}

/* Puts a position into a descending list of distinct ones. */
static size_t insert(uint32_t *list, size_t n, uint32_t at)
{
    size_t i = 0;
    while (i < n && list[i] > at)
        i++;
    if (i < n && list[i] == at)
        return n;
    memmove(list + i + 1, list + i, (n - i) * sizeof *list);
    list[i] = at;
    return n + 1;
}

/* The turns: a stop token ends one, and the position behind it begins the next. Descending. */
static size_t turn_cuts(const struct strata_engine *e, const int32_t *ids, size_t from, size_t count, uint32_t most,
                        uint32_t *list)
{
    size_t n = 0, first = 0, spacing = (count - from) / most;
    spacing = spacing > SPACING ? spacing : SPACING;
    for (size_t at = count - 1; at > 0; at--) {
        if (!strata_is_stop_token(e->model, ids[at - 1]))
            continue;
        first = at;
        if (at > from && n + 1 < most && (n < LAST_TURNS || list[n - 1] - at >= spacing))
            list[n++] = (uint32_t)at;
    }
    return first > from && n < most ? insert(list, n, (uint32_t)first) : n;
}

size_t st_checkpoint_cuts(const struct strata_engine *e, const int32_t *ids, size_t from, size_t count,
                          uint32_t cuts[ST_CHECKPOINTS])
{
    uint32_t most = affordable(e), list[ST_CHECKPOINTS + 1];
    if (!most || from + 1 >= count)
        return 0;
    size_t n = turn_cuts(e, ids, from, count, most, list), last = n ? list[0] : from;
    if (count - last > LONG_TEXT && n < most)
        n = insert(list, n, (uint32_t)count - 1);
    for (size_t at = (from / ST_CHECKPOINT_EVERY + 1) * ST_CHECKPOINT_EVERY; at < count && n < most;
         at += ST_CHECKPOINT_EVERY)
        n = insert(list, n, (uint32_t)at);
    for (size_t i = 0; i < n; i++)
        cuts[i] = list[n - 1 - i];
    return n;
}

/* ---- the session's list, ascending ---- */

struct st_checkpoint *st_checkpoint_share(struct st_checkpoint *c)
{
    c->users++;
    return c;
}

void st_checkpoint_release(struct strata_engine *e, struct st_checkpoint *c)
{
    if (c && --c->users == 0)
        st_keep_free(e, c, sizeof *c + c->bytes);
}

static void drop_at(struct strata_session *s, int i)
{
    struct st_checkpoint *c = s->point[i];
    memmove(s->point + i, s->point + i + 1, (size_t)(s->points - i - 1) * sizeof *s->point);
    s->points--;
    st_checkpoint_release(s->engine, c);
}

void st_checkpoints_drop(struct strata_session *s, uint32_t tokens)
{
    while (s->points && s->point[s->points - 1]->tokens > tokens)
        drop_at(s, s->points - 1);
}

/* Gives up the checkpoint that is missed least: not the first and not the last two if there are others, and where its
 * neighbours are closest, seen from the end: edits are near the end more often than far from it. */
static void thin(struct strata_session *s)
{
    int least = s->points > 1 ? 1 : 0;
    uint64_t end = s->count, gap = 0, back = 0;
    for (int i = 1; i < s->points - 2; i++) {
        uint64_t own_gap = s->point[i + 1]->tokens - s->point[i - 1]->tokens, own_back = end - s->point[i]->tokens;
        if (i > 1 && own_gap * back >= gap * own_back)
            continue;
        least = i;
        gap = own_gap;
        back = own_back;
    }
    drop_at(s, least);
}

bool st_checkpoint_thin(struct strata_session *s, int least)
{
    if (s->points <= least)
        return false;
    thin(s);
    return true;
}

/* A place for one more: parked conversations make room first, then the session's others. NULL: that is not enough. */
static struct st_checkpoint *make(struct strata_session *s, uint32_t tokens, int32_t next_axis)
{
    uint64_t bytes = st_checkpoint_bytes(s->engine);
    if (s->points == ST_CHECKPOINTS)
        thin(s);
    struct st_checkpoint *c;
    while (!(c = st_keep_take(s->engine, bytes))) {
        if (st_park_make_room(s->engine))
            continue;
        if (!s->points)
            return NULL;
        thin(s);
    }
    *c = (struct st_checkpoint){.tokens = tokens, .next_axis = next_axis, .users = 1, .bytes = bytes - sizeof *c};
    return c;
}

void st_checkpoint_add(struct strata_session *s, uint32_t tokens, int32_t next_axis, const uint8_t *state)
{
    struct st_checkpoint *c = st_checkpoint_bytes(s->engine) ? make(s, tokens, next_axis) : NULL;
    if (!c)
        return;
    memcpy(c->state, state, c->bytes);
    s->point[s->points++] = c;
}

enum strata_result st_checkpoint_take(struct strata_session *s, struct strata_error *err)
{
    if (!st_checkpoint_bytes(s->engine) || !s->count || (s->points && s->point[s->points - 1]->tokens == s->count))
        return STRATA_OK;
    struct st_checkpoint *c = make(s, s->count, s->next_axis);
    if (!c)
        return STRATA_OK;
    enum strata_result r = st_state_read(s, ST_STATE_FIXED, 0, c->state, err);
    if (!r) {
        s->point[s->points++] = c;
        return r;
    }
    st_checkpoint_release(s->engine, c);
    st_engine_find_lost(s->engine);
    return r;
}

uint32_t st_checkpoint_left(const struct strata_session *s)
{
    uint32_t last = s->points ? s->point[s->points - 1]->tokens : 0, since = s->count - last;
    return since < ST_CHECKPOINT_EVERY ? ST_CHECKPOINT_EVERY - since : 0;
}

bool st_checkpoint_due(const struct strata_session *s)
{
    return st_checkpoint_left(s) == 0;
}

/* ---- going back ---- */

/* Without recurrent state any length is as good, as long as positions are token numbers. */
static bool free_length(const struct strata_session *s)
{
    return s->next_axis == (int32_t)s->count && !st_checkpoint_bytes(s->engine);
}

static const struct st_checkpoint *point_up_to(const struct strata_session *s, uint32_t most)
{
    for (int i = s->points - 1; i >= 0; i--)
        if (s->point[i]->tokens <= most)
            return s->point[i];
    return NULL;
}

uint32_t st_session_reach(const struct strata_session *s, uint32_t most)
{
    if (s->count <= most)
        return s->count;
    const struct st_checkpoint *c = point_up_to(s, most);
    return free_length(s) ? most : c ? c->tokens : 0;
}

enum strata_result st_session_rewind(struct strata_session *s, uint32_t most, struct strata_error *err)
{
    uint32_t tokens = st_session_reach(s, most);
    if (tokens == s->count)
        return STRATA_OK;
    if (!tokens) {
        st_session_forget(s);
        return STRATA_OK;
    }
    const struct st_checkpoint *c = free_length(s) ? NULL : point_up_to(s, most);
    enum strata_result r = st_session_ready(s, err);
    if (!r && c)
        r = st_state_write(s, ST_STATE_FIXED, 0, c->state, err);
    if (r) {
        st_engine_find_lost(s->engine);
        st_session_forget(s);
        return r;
    }
    s->next_axis = c ? c->next_axis : (int32_t)tokens;
    s->count = tokens;
    if (s->engine->logits_of == s)
        s->engine->logits_of = NULL;
    st_checkpoints_drop(s, tokens);
    return r;
}

uint32_t st_session_lends(const struct strata_session *s, uint32_t most)
{
    const struct st_checkpoint *c = point_up_to(s, most);
    most = most < s->count ? most : s->count;
    return free_length(s) ? most : c ? c->tokens : 0;
}

enum strata_result st_session_borrow(struct strata_session *s, const struct strata_session *from, uint32_t tokens, struct strata_error *err)
{
    const struct st_checkpoint *c = free_length(from) ? NULL : point_up_to(from, tokens);
    st_session_forget(s);
    enum strata_result r = st_session_ready(s, err);
    if (!r)
        r = st_state_copy(s, from, ST_STATE_GROWING, tokens, err);
    if (!r && c)
        r = st_state_write(s, ST_STATE_FIXED, 0, c->state, err);
    if (r) {
        st_engine_find_lost(s->engine);
        st_session_forget(s);
        return r;
    }
    memcpy(s->ids, from->ids, tokens * sizeof *s->ids);
    s->count = tokens;
    s->next_axis = c ? c->next_axis : (int32_t)tokens;
    st_spec_restored(s);
    for (int i = 0; i < from->points && from->point[i]->tokens <= tokens; i++)
        s->point[s->points++] = st_checkpoint_share(from->point[i]);
    return r;
}
