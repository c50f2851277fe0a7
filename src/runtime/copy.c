/* Copies between devices; see copy.h. */
#include "runtime/copy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

enum { PAGE = 4096, TEST_BYTES = 1 << 20 };

static enum strata_result open_host_way(struct st_channel *c, struct strata_error *err)
{
    if (!st_mul_u64(c->piece, 2, &c->memory_size) || !st_add_u64(c->memory_size, PAGE, &c->memory_size))
        return st_fail(err, STRATA_E_ARGUMENT, "copies %s to %s: the pieces are too large", c->from->name, c->to->name);
    void *memory = NULL;
    if (posix_memalign(&memory, PAGE, c->memory_size) != 0)
        return st_fail(err, STRATA_E_MEMORY, "copies %s to %s: no host memory for %llu bytes", c->from->name,
                       c->to->name, (unsigned long long)c->memory_size);
    memset(memory, 0, c->memory_size);
    c->memory = memory;
    c->timeline = (_Atomic uint32_t *)(void *)(c->memory + 2 * c->piece);
    enum strata_result r = c->from->table->host_register(c->from->rt, c->memory, c->memory_size, err);
    c->from_registered = r == STRATA_OK;
    if (r == STRATA_OK)
        r = c->to->table->host_register(c->to->rt, c->memory, c->memory_size, err);
    c->to_registered = c->from_registered && r == STRATA_OK;
    for (int i = 0; i < 2 && r == STRATA_OK; i++) {
        r = c->from->table->event_create(c->from->rt, false, &c->filled[i], err);
        if (r == STRATA_OK)
            r = c->to->table->event_create(c->to->rt, false, &c->emptied[i], err);
    }
    return r;
}

/* Copies a pattern directly and compares what arrived. *right is the answer; a failure of the driver is one too, and
 * its message is of no use to anybody, because the host way works without it. */
static enum strata_result test_direct(struct st_channel *c, bool *right, struct strata_error *err)
{
    struct st_device *from = c->from, *to = c->to;
    *right = false;
    if (from->table->peer_enable(from->rt, to->rt, NULL) != STRATA_OK ||
        to->table->peer_enable(to->rt, from->rt, NULL) != STRATA_OK)
        return STRATA_OK;
    uint8_t *pattern = malloc(TEST_BYTES), *arrived = calloc(1, TEST_BYTES);
    st_addr src = 0, dst = 0;
    enum strata_result r = STRATA_OK;
    if (!pattern || !arrived)
        r = st_fail(err, STRATA_E_MEMORY, "copies %s to %s: no memory for the test", from->name, to->name);
    uint32_t state = 1;
    for (size_t i = 0; r == STRATA_OK && i < TEST_BYTES; i++) {
        state = state * 1664525u + 1013904223u;
        pattern[i] = (uint8_t)(state >> 24);
    }
    if (r == STRATA_OK)
        r = from->table->allocate(from->rt, TEST_BYTES, &src, err);
    if (r == STRATA_OK)
        r = to->table->allocate(to->rt, TEST_BYTES, &dst, err);
    if (r == STRATA_OK)
        *right = from->table->copy_in(from->copy, src, pattern, TEST_BYTES, NULL) == STRATA_OK &&
                 from->table->peer_copy(from->copy, to->rt, dst, from->rt, src, TEST_BYTES, NULL) == STRATA_OK &&
                 from->table->queue_sync(from->copy, NULL) == STRATA_OK &&
                 to->table->copy_out(to->copy, arrived, dst, TEST_BYTES, NULL) == STRATA_OK &&
                 to->table->queue_sync(to->copy, NULL) == STRATA_OK && memcmp(pattern, arrived, TEST_BYTES) == 0;
    from->table->release(from->rt, src);
    to->table->release(to->rt, dst);
    free(pattern);
    free(arrived);
    return r;
}

enum strata_result st_channel_open(struct st_device *from, struct st_device *to, uint64_t piece, bool direct,
                                   struct st_channel **out, struct strata_error *err)
{
    struct st_channel *c = calloc(1, sizeof *c);
    if (!c)
        return st_fail(err, STRATA_E_MEMORY, "copies %s to %s: no memory", from->name, to->name);
    c->from = from;
    c->to = to;
    enum strata_result r = STRATA_OK;
    bool right = false;
    if (piece == 0 || !st_align_u64(piece, PAGE, &c->piece))
        r = st_fail(err, STRATA_E_ARGUMENT, "copies %s to %s: pieces of %llu bytes", from->name, to->name,
                    (unsigned long long)piece);
    else if (from != to && direct && from->table == to->table &&
             (from->info.features & to->info.features & ST_FEATURE_PEER))
        r = test_direct(c, &right, err);
    c->way = from == to ? ST_CHANNEL_SAME : right ? ST_CHANNEL_DIRECT : ST_CHANNEL_HOST;
    if (r == STRATA_OK && c->way == ST_CHANNEL_HOST)
        r = open_host_way(c, err);
    else if (r == STRATA_OK)
        r = from->table->event_create(from->rt, false, &c->passed, err);
    if (r != STRATA_OK) {
        st_channel_close(c);
        return r;
    }
    *out = c;
    return STRATA_OK;
}

void st_channel_close(struct st_channel *c)
{
    if (!c)
        return;
    c->from->table->event_free(c->passed);
    for (int i = 0; i < 2; i++) {
        c->from->table->event_free(c->filled[i]);
        c->to->table->event_free(c->emptied[i]);
    }
    bool ours = true;
    if (c->to_registered)
        ours = c->to->table->host_unregister(c->to->rt, c->memory);
    if (c->from_registered)
        ours = c->from->table->host_unregister(c->from->rt, c->memory) && ours;
    if (ours)
        free(c->memory);
    free(c);
}

/* Gives piece number k (of this copy) to the sending queue, once its buffer is empty. */
static enum strata_result fill_buffer(struct st_channel *c, struct st_queue *queue, st_addr src, uint64_t size,
                                      uint64_t piece, struct strata_error *err)
{
    int buffer = (int)(piece % 2);
    enum strata_result r = STRATA_OK;
    if (c->in_use[buffer])
        r = st_wait_event(c->to, c->emptied[buffer], err);
    c->in_use[buffer] = false;
    if (r == STRATA_OK)
        r = c->from->table->copy_out(queue, c->memory + (uint64_t)buffer * c->piece, src, size, err);
    if (r == STRATA_OK)
        r = c->from->table->event_record(queue, c->filled[buffer], err);
    return r == STRATA_OK ? c->from->table->queue_flush(queue, err) : r;
}

static enum strata_result empty_buffer(struct st_channel *c, struct st_queue *queue, st_addr dst, uint64_t size,
                                       uint64_t piece, struct strata_error *err)
{
    int buffer = (int)(piece % 2);
    enum strata_result r = st_wait_event(c->from, c->filled[buffer], err);
    if (r == STRATA_OK) {
        atomic_store_explicit(c->timeline, (uint32_t)(piece + 1), memory_order_release);
        r = c->to->table->copy_in(queue, dst, c->memory + (uint64_t)buffer * c->piece, size, err);
    }
    if (r == STRATA_OK)
        r = c->to->table->event_record(queue, c->emptied[buffer], err);
    c->in_use[buffer] = r == STRATA_OK;
    return r == STRATA_OK ? c->to->table->queue_flush(queue, err) : r;
}

static enum strata_result copy_through_host(struct st_channel *c, struct st_queue *from_queue, st_addr src,
                                            struct st_queue *to_queue, st_addr dst, uint64_t size,
                                            struct strata_error *err)
{
    uint64_t count = size / c->piece + (size % c->piece != 0);
    enum strata_result r = STRATA_OK;
    for (uint64_t k = 0; k <= count && r == STRATA_OK; k++) {
        uint64_t at = k * c->piece, length = size - at < c->piece ? size - at : c->piece;
        if (k < count)
            r = fill_buffer(c, from_queue, src + at, length, c->pieces + k, err);
        if (k > 0 && r == STRATA_OK) {
            uint64_t before = at - c->piece;
            r = empty_buffer(c, to_queue, dst + before, size - before < c->piece ? size - before : c->piece,
                             c->pieces + k - 1, err);
        }
    }
    c->pieces += count;
    return r;
}

enum strata_result st_channel_copy(struct st_channel *c, struct st_queue *from_queue, st_addr src,
                                   struct st_queue *to_queue, st_addr dst, uint64_t size, struct strata_error *err)
{
    if (size == 0)
        return STRATA_OK;
    enum strata_result r;
    if (c->way == ST_CHANNEL_HOST)
        r = copy_through_host(c, from_queue, src, to_queue, dst, size, err);
    else if (c->way == ST_CHANNEL_DIRECT)
        r = c->from->table->peer_copy(from_queue, c->to->rt, dst, c->from->rt, src, size, err);
    else
        r = c->from->table->copy(from_queue, dst, src, size, err);
    if (r == STRATA_OK && c->way != ST_CHANNEL_HOST) {
        r = c->from->table->event_record(from_queue, c->passed, err);
        if (r == STRATA_OK)
            r = c->to->table->event_wait(to_queue, c->passed, err);
    }
    return r == STRATA_OK ? r
                          : st_fail_in(err, r, "copying %llu bytes %s to %s", (unsigned long long)size, c->from->name,
                                       c->to->name);
}

uint32_t st_channel_timeline(const struct st_channel *c)
{
    return c->timeline ? atomic_load_explicit(c->timeline, memory_order_acquire) : 0;
}
