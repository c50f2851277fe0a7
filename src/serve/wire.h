/* The messages between the server's process and the one that holds the engine (backend_child.c and child.c), over a stream
 * socket. Both ends are the same program, so numbers have the machine's byte order; but a driver may have damaged the sender's
 * memory, so whatever is read is checked.
 *
 * A message is a head of 16 bytes and its payload:
 *
 *     u32 size      of the payload, at most ST_WIRE_MOST, a multiple of 8
 *     u16 version   ST_WIRE_VERSION
 *     u16 kind      enum st_wire_kind
 *     u64 number    of the request that it belongs to, 0 for none
 *
 * The payload has the fields that struct st_wire_message lists for the kind, in that order, each at a multiple of 8: whole
 * numbers as i64, fractions as f64; a text as its length in a u64, its bytes and a NUL; an array as its count in a u64 and its
 * elements; structures that hold numbers alone (strata_sampling without its bias, strata_stats, strata_token_logprob,
 * strata_logit_bias) as they lie in memory. */
#ifndef ST_SERVE_WIRE_H
#define ST_SERVE_WIRE_H

#include "serve/backend.h"
#include "serve/buffer.h"

enum { ST_WIRE_VERSION = 1, ST_WIRE_HEAD = 16, ST_WIRE_MOST = 1 << 28 };

enum st_wire_kind {
    /* to the engine's process */
    ST_WIRE_START = 1, /* an answer is asked for, under a new number */
    ST_WIRE_CANCEL,    /* it is to end soon; no payload */
    ST_WIRE_SLOT,      /* a slot is saved, restored or erased */
    ST_WIRE_CLOSE,     /* write what is to outlive the engine, free everything, end; no payload. No answer is under way */
    /* from it */
    ST_WIRE_LOADING,   /* signs of progress, until: */
    ST_WIRE_READY,     /* the model lies on its devices */
    ST_WIRE_FAILED,    /* or it could not be loaded; the last message */
    ST_WIRE_EVENT,     /* of an answer */
    ST_WIRE_DONE,      /* an answer has ended; the last message of its number */
    ST_WIRE_SLOT_DONE, /* reply to ST_WIRE_SLOT */
    ST_WIRE_STATUS,    /* what /v1/status shows has changed */
    ST_WIRE_ALIVE,     /* a piece of work was done that nothing else tells of; no payload */
    ST_WIRE_CLOSED,    /* reply to ST_WIRE_CLOSE; the last message */
    ST_WIRE_KINDS,
};

/* Texts and arrays of a message that was read lie in the bytes that were given, but for the list of stop texts. */
struct st_wire_message {
    struct st_wire_message *next; /* for whoever keeps a list of them */
    enum st_wire_kind kind;
    uint64_t number;
    union {
        struct strata_request request; /* START; event and user are not sent, of a constraint what it was made from */
        struct {
            uint32_t number;
            enum st_slot_action action;
            const char *file;
        } slot; /* SLOT */
        struct {
            double part;
            const char *what;
        } loading;
        struct {
            uint32_t context, parallel;
            const char *status; /* JSON, as ops->status gives it */
        } ready;
        struct {
            int slot;
            struct strata_event event;
        } event;
        struct {
            enum strata_result result;
            const char *text; /* of the error, "" if there is none */
            struct strata_stats stats;
        } done; /* DONE, and FAILED without stats */
        struct {
            enum strata_result result;
            const char *text;
            struct st_slot_result slot;
        } slot_done;
        const char *status; /* STATUS: JSON */
        struct {
            enum strata_result result;
            const char *text;
            const char *report; /* JSON, as ops->unload gives it */
        } closed;
    };
    const char **stop; /* START: memory of the message */
    bool constrained;  /* START, read: the request has a constraint, to be made from: */
    struct strata_constraint_options constraint;
};

/* Appends a message; out->failed afterwards: no memory, or it is too long. */
void st_wire_write(const struct st_wire_message *m, struct st_buffer *out);

/* Reads the message that data (size bytes, 8-byte aligned) begins with. *used: its length, 0 if it is not complete; the caller
 * then gives it again with more behind it. What breaks the layout or is out of range is STRATA_E_FORMAT. */
enum strata_result st_wire_read(const void *data, size_t size, struct st_wire_message *out, size_t *used,
                                struct strata_error *err);
/* Frees what a message that was read has of its own. */
void st_wire_free(struct st_wire_message *m);

/* What comes from a socket, until it is a message. */
struct st_wire_input {
    uint8_t *data; /* at least 8-byte aligned */
    size_t size, room;
};

/* Sends a message, whole; one sender at a time. STRATA_E_IO when the other end is gone. */
enum strata_result st_wire_send(int fd, const struct st_wire_message *m, struct strata_error *err);
/* Reads once from a blocking socket what there is. STRATA_E_IO when the other end is gone. */
enum strata_result st_wire_receive(int fd, struct st_wire_input *in, struct strata_error *err);
/* Takes the next complete message with the memory that it lies in, which the caller frees; NULL: there is none yet. */
enum strata_result st_wire_next(struct st_wire_input *in, struct st_wire_message **out, struct strata_error *err);
void st_wire_drop(struct st_wire_message *m);
void st_wire_input_free(struct st_wire_input *in);

#endif
