/* Items of the open rules and groups lie on one stack; the end of a group takes its items off, last one first. */
#include "text/sketch.h"

#include <stdlib.h>
#include <string.h>

enum kind { SET, TEXT, CALL, OR };

struct item {
    enum kind kind;
    uint32_t from, count; /* SET, TEXT: of ranges; CALL: from is the rule */
    uint32_t min, max;
    bool repeated;
};

struct frame {
    uint32_t rule;
    size_t items, ranges; /* what was there before it */
};

struct st_sketch {
    struct st_net *net;
    st_set_fn *set;
    struct item *items;
    struct st_range *ranges;
    struct frame *frames;
    size_t item_count, item_room, range_count, range_room, frame_count, frame_room;
};

struct st_sketch *st_sketch_create(struct st_net *net, st_set_fn *set)
{
    struct st_sketch *s = calloc(1, sizeof *s);
    if (s) {
        s->net = net;
        s->set = set;
    } else {
        st_net_refuse(net, STRATA_E_MEMORY, "no memory for a grammar");
    }
    return s;
}

void st_sketch_free(struct st_sketch *s)
{
    if (!s)
        return;
    free(s->items);
    free(s->ranges);
    free(s->frames);
    free(s);
}

static void *with_room(struct st_sketch *s, void *list, size_t count, size_t more, size_t *have, size_t size)
{
    if (!st_net_good(s->net))
        return NULL;
    if (count + more > ST_NET_NODES) {
        st_net_refuse(s->net, STRATA_E_LIMIT, "a rule has more than %d parts", ST_NET_NODES);
        return NULL;
    }
    if (count + more < *have)
        return list;
    size_t want = 2 * (count + more) + 16;
    void *grown = realloc(list, want * size);
    if (!grown)
        st_net_refuse(s->net, STRATA_E_MEMORY, "no memory for a grammar");
    else
        *have = want;
    return grown;
}

static void add_item(struct st_sketch *s, enum kind kind, size_t from, size_t count)
{
    struct item *items = with_room(s, s->items, s->item_count, 1, &s->item_room, sizeof *items);
    if (!items)
        return;
    s->items = items;
    items[s->item_count++] = (struct item){kind, (uint32_t)from, (uint32_t)count, 1, 1, false};
}

static struct st_range *add_ranges(struct st_sketch *s, size_t count)
{
    struct st_range *ranges = with_room(s, s->ranges, s->range_count, count, &s->range_room, sizeof *ranges);
    if (!ranges)
        return NULL;
    s->ranges = ranges;
    s->range_count += count;
    return ranges + s->range_count - count;
}

void st_sketch_set(struct st_sketch *s, const struct st_range *ranges, size_t count)
{
    struct st_range *to = add_ranges(s, count);
    if (to && count)
        memcpy(to, ranges, count * sizeof *to);
    if (to)
        add_item(s, SET, s->range_count - count, count);
}

void st_sketch_text(struct st_sketch *s, const uint32_t *code_points, size_t count)
{
    struct st_range *to = add_ranges(s, count);
    for (size_t i = 0; to && i < count; i++)
        to[i] = (struct st_range){code_points[i], code_points[i]};
    if (to)
        add_item(s, TEXT, s->range_count - count, count);
}

void st_sketch_call(struct st_sketch *s, uint32_t rule)
{
    add_item(s, CALL, rule, 0);
}

void st_sketch_or(struct st_sketch *s)
{
    add_item(s, OR, 0, 0);
}

bool st_sketch_repeat(struct st_sketch *s, uint32_t min, uint32_t max)
{
    size_t base = s->frame_count ? s->frames[s->frame_count - 1].items : 0;
    struct item *last = s->item_count > base ? &s->items[s->item_count - 1] : NULL;
    if (!last || last->kind == OR || last->repeated)
        return false;
    last->min = min;
    last->max = max;
    last->repeated = true;
    return true;
}

void st_sketch_begin(struct st_sketch *s, uint32_t rule)
{
    struct frame *frames = with_room(s, s->frames, s->frame_count, 1, &s->frame_room, sizeof *frames);
    if (!frames)
        return;
    s->frames = frames;
    frames[s->frame_count++] = (struct frame){rule, s->item_count, s->range_count};
}

void st_sketch_open(struct st_sketch *s)
{
    uint32_t outer = s->frame_count ? s->frames[s->frame_count - 1].rule : 0;
    const char *name = st_net_rule_name(s->net, outer);
    st_sketch_begin(s, st_net_rule(s->net, name, strlen(name)));
}

struct emitting {
    struct st_sketch *s;
    const struct item *item;
    uint32_t rule; /* of the item, ST_NET_NOWHERE: it is written out */
};

static uint32_t emit_once(void *user, uint32_t next)
{
    const struct emitting *e = user;
    const struct item *item = e->item;
    struct st_sketch *s = e->s;
    if (e->rule != ST_NET_NOWHERE)
        return st_net_call(s->net, e->rule, next);
    if (item->kind == SET)
        return s->set(s->net, s->ranges + item->from, item->count, next);
    for (size_t i = item->count; i > 0 && st_net_good(s->net); i--) /* TEXT */
        next = s->set(s->net, s->ranges + item->from + i - 1, 1, next);
    return next;
}

/* What is repeated often becomes a rule of its own. */
static uint32_t emit(struct st_sketch *s, const struct item *item, uint32_t next)
{
    struct emitting e = {s, item, item->kind == CALL ? item->from : ST_NET_NOWHERE};
    uint32_t most = item->max == ST_REPEAT_FOREVER ? item->min : item->max;
    if (item->kind != CALL && most > ST_NET_FAR) {
        uint32_t own = st_net_rule(s->net, "repetition", 10);
        st_net_define(s->net, own, emit_once(&e, ST_NET_RETURN));
        e.rule = own;
    }
    return st_net_repeat(s->net, item->min, item->max, emit_once, &e, next);
}

void st_sketch_end(struct st_sketch *s)
{
    if (s->frame_count == 0)
        return;
    struct frame frame = s->frames[--s->frame_count];
    uint32_t node = ST_NET_RETURN, start = ST_NET_NOWHERE;
    while (s->item_count > frame.items && st_net_good(s->net)) {
        const struct item *item = &s->items[--s->item_count];
        if (item->kind == OR) {
            start = st_net_split(s->net, node, start);
            node = ST_NET_RETURN;
        } else {
            node = emit(s, item, node);
        }
    }
    s->range_count = frame.ranges;
    st_net_define(s->net, frame.rule, st_net_split(s->net, node, start));
}

size_t st_sketch_depth(const struct st_sketch *s)
{
    return s->frame_count ? s->frame_count - 1 : 0;
}

bool st_sketch_close(struct st_sketch *s)
{
    if (st_sketch_depth(s) == 0)
        return !st_net_good(s->net);
    uint32_t rule = s->frames[s->frame_count - 1].rule;
    st_sketch_end(s);
    st_sketch_call(s, rule);
    return true;
}
