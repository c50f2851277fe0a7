/* The layout of messages between the two processes, in one place for both directions: see wire.h. */
#include "serve/wire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/checked.h"
#include "text/constraint.h"

/* A new member of what is sent must be added to its fields below. */
_Static_assert(sizeof(struct strata_request) == 136, "fields of a request");
_Static_assert(sizeof(struct strata_event) == 80, "fields of an event");

struct head {
    uint32_t size;
    uint16_t version, kind;
    uint64_t number;
};
_Static_assert(sizeof(struct head) == ST_WIRE_HEAD, "a head has no gaps");

/* Goes through the fields of a message: writes them to out, or, where out is NULL, reads them from at. */
struct codec {
    struct st_buffer *out;
    const uint8_t *at, *end;
    bool bad; /* the input ends too early, or a value is out of range */
};

/* size bytes at a multiple of 8; reading: NULL after a fault. */
static const void *bytes(struct codec *c, const void *data, uint64_t size)
{
    static const char zeros[8];
    uint64_t padded;
    if (!st_align_u64(size, 8, &padded) || (!c->out && padded > (uint64_t)(c->end - c->at)))
        c->bad = true;
    if (c->bad)
        return NULL;
    if (c->out) {
        st_buffer_add(c->out, data, size);
        st_buffer_add(c->out, zeros, padded - size);
        return data;
    }
    const void *from = c->at;
    c->at += padded;
    return from;
}

static void plain(struct codec *c, void *value, size_t size)
{
    const void *from = bytes(c, value, size);
    if (from && !c->out)
        memcpy(value, from, size);
}

static int64_t whole(struct codec *c, int64_t value, int64_t low, int64_t high)
{
    plain(c, &value, sizeof value);
    c->bad = c->bad || value < low || value > high;
    return c->bad ? low : value;
}

#define WHOLE(c, target, low, high) ((target) = (__typeof__(target))whole(c, (int64_t)(target), low, high))
#define COUNT(c, target) WHOLE(c, target, 0, INT64_MAX)

/* *size may be NULL: then the text has no NUL inside. */
static void text(struct codec *c, const char **value, size_t *size)
{
    uint64_t n = c->out ? size ? *size : strlen(*value) : 0, with_end = 0;
    plain(c, &n, sizeof n);
    if (!st_add_u64(n, 1, &with_end))
        c->bad = true;
    if (c->out && size) { /* what is sent with its size need not have an end */
        char *copy = malloc(with_end);
        if (copy) {
            memcpy(copy, *value ? *value : "", n);
            copy[n] = 0;
            bytes(c, copy, with_end);
        }
        c->out->failed = c->out->failed || !copy;
        free(copy);
        return;
    }
    const char *from = bytes(c, *value, with_end);
    if (!c->out) {
        c->bad = c->bad || from[n] != 0 || (!size && strlen(from) != n);
        *value = c->bad ? "" : from;
        if (size)
            *size = c->bad ? 0 : n;
    }
}

static void array(struct codec *c, const void **value, size_t *count, size_t element)
{
    uint64_t n = *count, size = 0;
    plain(c, &n, sizeof n);
    if (c->bad || !st_mul_u64(n, element, &size))
        c->bad = true;
    const void *from = bytes(c, *value, size);
    if (!c->out) {
        *value = c->bad || !n ? NULL : from;
        *count = c->bad ? 0 : n;
    }
}

#define ARRAY(c, pointer, count) \
    do { \
        const void *any = pointer; \
        array(c, &any, &(count), sizeof *(pointer)); \
        (pointer) = any; \
    } while (0)

static void stop_fields(struct codec *c, struct st_wire_message *m)
{
    struct strata_request *q = &m->request;
    COUNT(c, q->stop_count);
    if (!c->out) {
        /* A text takes at least 16 bytes. */
        c->bad = c->bad || q->stop_count > (size_t)(c->end - c->at) / 16;
        if (c->bad || !q->stop_count)
            return;
        m->stop = calloc(q->stop_count, sizeof *m->stop);
        q->stop = m->stop;
        c->bad = !m->stop;
    }
    for (size_t i = 0; i < q->stop_count && !c->bad; i++)
        text(c, c->out ? &(const char *){q->stop[i]} : &m->stop[i], NULL);
}

/* A text that may be missing. */
static void maybe_text(struct codec *c, const char **value)
{
    bool there = *value != NULL;
    WHOLE(c, there, 0, 1);
    if (there && !c->bad)
        text(c, value, NULL);
}

static void constraint_fields(struct codec *c, struct st_wire_message *m)
{
    struct strata_constraint_options *o = &m->constraint;
    if (c->out && m->request.constraint) {
        m->constrained = true;
        *o = m->request.constraint->source;
    }
    WHOLE(c, m->constrained, 0, 1);
    if (!m->constrained)
        return;
    maybe_text(c, &o->grammar);
    maybe_text(c, &o->json_schema);
    maybe_text(c, &o->tools);
    maybe_text(c, &o->tool);
    WHOLE(c, o->one_call, 0, 1);
    maybe_text(c, &o->prompt);
    maybe_text(c, &o->begun);
}

static void request_fields(struct codec *c, struct st_wire_message *m)
{
    struct strata_request *q = &m->request;
    struct strata_sampling numbers = q->sampling;
    numbers.bias = NULL;
    numbers.bias_count = 0;
    ARRAY(c, q->ids, q->count);
    COUNT(c, q->max_tokens);
    plain(c, &numbers, sizeof numbers);
    if (!c->out) {
        q->sampling = numbers;
        q->sampling.bias = NULL;
        q->sampling.bias_count = 0;
    }
    ARRAY(c, q->sampling.bias, q->sampling.bias_count);
    stop_fields(c, m);
    WHOLE(c, q->ignore_eos, 0, 1);
    WHOLE(c, q->show_special, 0, 1);
    WHOLE(c, q->no_answer, 0, 1);
}

static void event_fields(struct codec *c, struct st_wire_message *m)
{
    struct strata_event *e = &m->event.event;
    WHOLE(c, m->event.slot, -1, INT32_MAX);
    WHOLE(c, e->kind, STRATA_EVENT_PROMPT, STRATA_EVENT_END);
    COUNT(c, e->prompt_done);
    COUNT(c, e->prompt_total);
    WHOLE(c, e->token, -1, INT32_MAX);
    text(c, &e->text, &e->size);
    plain(c, &e->logprob, sizeof e->logprob);
    ARRAY(c, e->top, e->top_count);
    WHOLE(c, e->end, STRATA_END_STOP_TOKEN, STRATA_END_CANCELLED);
    WHOLE(c, e->stop_index, -1, INT32_MAX);
}

static void slot_result_fields(struct codec *c, struct st_slot_result *slot)
{
    COUNT(c, slot->tokens);
    COUNT(c, slot->bytes);
    WHOLE(c, slot->missing, 0, 1);
    WHOLE(c, slot->busy, 0, 1);
}

static void result_fields(struct codec *c, enum strata_result *result, const char **why)
{
    WHOLE(c, *result, STRATA_E_INTERNAL, STRATA_OK);
    text(c, why, NULL);
}

static void fields(struct codec *c, struct st_wire_message *m)
{
    switch (m->kind) {
    case ST_WIRE_START:
        request_fields(c, m);
        constraint_fields(c, m);
        break;
    case ST_WIRE_SLOT:
        WHOLE(c, m->slot.number, 0, UINT32_MAX);
        WHOLE(c, m->slot.action, ST_SLOT_SAVE, ST_SLOT_ERASE);
        text(c, &m->slot.file, NULL);
        break;
    case ST_WIRE_LOADING:
        plain(c, &m->loading.part, sizeof m->loading.part);
        text(c, &m->loading.what, NULL);
        break;
    case ST_WIRE_READY:
        WHOLE(c, m->ready.context, 1, UINT32_MAX);
        WHOLE(c, m->ready.parallel, 1, UINT32_MAX);
        text(c, &m->ready.status, NULL);
        break;
    case ST_WIRE_EVENT: event_fields(c, m); break;
    case ST_WIRE_FAILED:
    case ST_WIRE_DONE:
        result_fields(c, &m->done.result, &m->done.text);
        plain(c, &m->done.stats, sizeof m->done.stats);
        break;
    case ST_WIRE_SLOT_DONE:
        result_fields(c, &m->slot_done.result, &m->slot_done.text);
        slot_result_fields(c, &m->slot_done.slot);
        break;
    case ST_WIRE_STATUS: text(c, &m->status, NULL); break;
    case ST_WIRE_CLOSED:
        result_fields(c, &m->closed.result, &m->closed.text);
        text(c, &m->closed.report, NULL);
        break;
    case ST_WIRE_CANCEL:
    case ST_WIRE_CLOSE:
    case ST_WIRE_ALIVE:
    case ST_WIRE_KINDS: break;
    }
}

void st_wire_write(const struct st_wire_message *m, struct st_buffer *out)
{
    struct st_wire_message copy = *m;
    struct codec c = {.out = out};
    struct head head = {.version = ST_WIRE_VERSION, .kind = (uint16_t)m->kind, .number = m->number};
    size_t at = out->size;
    st_buffer_add(out, &head, sizeof head);
    fields(&c, &copy);
    if (out->failed || c.bad || out->size - at - ST_WIRE_HEAD > ST_WIRE_MOST) {
        out->failed = true;
        return;
    }
    head.size = (uint32_t)(out->size - at - ST_WIRE_HEAD);
    memcpy(out->data + at, &head, sizeof head);
}

/* The length of the message whose head lies at data; 0: not all of it is there. */
static enum strata_result whole_size(const void *data, size_t size, size_t *used, struct strata_error *err)
{
    struct head head;
    *used = 0;
    if (size < ST_WIRE_HEAD)
        return STRATA_OK;
    memcpy(&head, data, sizeof head);
    if (head.version != ST_WIRE_VERSION)
        return st_fail(err, STRATA_E_FORMAT, "a message of version %u, not %d", head.version, ST_WIRE_VERSION);
    if (head.kind < ST_WIRE_START || head.kind >= ST_WIRE_KINDS)
        return st_fail(err, STRATA_E_FORMAT, "a message of the unknown kind %u", head.kind);
    if (head.size > ST_WIRE_MOST || head.size % 8)
        return st_fail(err, STRATA_E_FORMAT, "a message of %u bytes", head.size);
    if (size - ST_WIRE_HEAD >= head.size)
        *used = ST_WIRE_HEAD + head.size;
    return STRATA_OK;
}

enum strata_result st_wire_read(const void *data, size_t size, struct st_wire_message *out, size_t *used,
                                struct strata_error *err)
{
    struct head head;
    enum strata_result r = whole_size(data, size, used, err);
    if (r || !*used)
        return r;
    memcpy(&head, data, sizeof head);
    struct codec c = {.at = (const uint8_t *)data + ST_WIRE_HEAD, .end = (const uint8_t *)data + *used};
    *out = (struct st_wire_message){.kind = (enum st_wire_kind)head.kind, .number = head.number};
    fields(&c, out);
    if (!c.bad && c.at == c.end)
        return STRATA_OK;
    st_wire_free(out);
    return st_fail(err, STRATA_E_FORMAT, "a message of kind %u that breaks its layout", head.kind);
}

void st_wire_free(struct st_wire_message *m)
{
    free(m->stop);
    m->stop = NULL;
}

/* ---- the socket ---- */

enum strata_result st_wire_send(int fd, const struct st_wire_message *m, struct strata_error *err)
{
    struct st_buffer out = {0};
    st_wire_write(m, &out);
    enum strata_result r = out.failed ? st_fail(err, STRATA_E_MEMORY, "no memory for a message") : STRATA_OK;
    for (size_t done = 0; !r && done < out.size;) {
        ssize_t n = send(fd, out.data + done, out.size - done, MSG_NOSIGNAL);
        if (n > 0)
            done += (size_t)n;
        else if (errno != EINTR)
            r = st_fail(err, STRATA_E_IO, "the other process does not take messages: %s", strerror(errno));
    }
    st_buffer_free(&out);
    return r;
}

enum strata_result st_wire_receive(int fd, struct st_wire_input *in, struct strata_error *err)
{
    enum { PIECE = 64 << 10 };
    if (in->room - in->size < PIECE) {
        size_t room = 2 * in->room + PIECE;
        uint8_t *data = realloc(in->data, room);
        if (!data)
            return st_fail(err, STRATA_E_MEMORY, "no memory for messages");
        in->data = data;
        in->room = room;
    }
    ssize_t n;
    do
        n = recv(fd, in->data + in->size, in->room - in->size, 0);
    while (n < 0 && errno == EINTR);
    if (n <= 0)
        return st_fail(err, STRATA_E_IO, "the other process is gone%s%s", n ? ": " : "", n ? strerror(errno) : "");
    in->size += (size_t)n;
    return STRATA_OK;
}

/* A message with its bytes behind it. */
struct held {
    struct st_wire_message message;
    _Alignas(8) uint8_t data[];
};

enum strata_result st_wire_next(struct st_wire_input *in, struct st_wire_message **out, struct strata_error *err)
{
    size_t size, used;
    *out = NULL;
    enum strata_result r = whole_size(in->data, in->size, &size, err);
    if (r || !size)
        return r;
    struct held *held = malloc(sizeof *held + size);
    if (!held)
        return st_fail(err, STRATA_E_MEMORY, "no memory for a message");
    memcpy(held->data, in->data, size);
    in->size -= size;
    memmove(in->data, in->data + size, in->size);
    r = st_wire_read(held->data, size, &held->message, &used, err);
    if (r)
        free(held);
    else
        *out = &held->message;
    return r;
}

void st_wire_drop(struct st_wire_message *m)
{
    if (m)
        st_wire_free(m);
    free(m);
}

void st_wire_input_free(struct st_wire_input *in)
{
    free(in->data);
    *in = (struct st_wire_input){0};
}
