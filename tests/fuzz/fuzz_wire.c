/* A message from a process that may be damaged: read, gone through, written again, and read once more. */
#include <stdlib.h>
#include <string.h>

#include "serve/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile size_t seen;

static void touch(const void *p, size_t size)
{
    for (size_t i = 0; i < size; i++)
        seen += ((const uint8_t *)p)[i];
}

static void touch_text(const char *text)
{
    touch(text, strlen(text) + 1);
}

/* Everything that a message says is there. */
static void go_through(const struct st_wire_message *m)
{
    switch (m->kind) {
    case ST_WIRE_START:
        touch(m->request.ids, m->request.count * sizeof *m->request.ids);
        touch(m->request.sampling.bias, m->request.sampling.bias_count * sizeof *m->request.sampling.bias);
        for (size_t i = 0; i < m->request.stop_count; i++)
            touch_text(m->request.stop[i]);
        if (m->constrained) {
            const struct strata_constraint_options *o = &m->constraint;
            const char *const texts[] = {o->grammar, o->json_schema, o->tools, o->tool, o->prompt, o->begun};
            for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
                if (texts[i])
                    touch_text(texts[i]);
        }
        break;
    case ST_WIRE_SLOT: touch_text(m->slot.file); break;
    case ST_WIRE_LOADING: touch_text(m->loading.what); break;
    case ST_WIRE_READY: touch_text(m->ready.status); break;
    case ST_WIRE_EVENT:
        touch(m->event.event.text, m->event.event.size + 1);
        touch(m->event.event.top, m->event.event.top_count * sizeof *m->event.event.top);
        break;
    case ST_WIRE_FAILED:
    case ST_WIRE_DONE: touch_text(m->done.text); break;
    case ST_WIRE_SLOT_DONE: touch_text(m->slot_done.text); break;
    case ST_WIRE_STATUS: touch_text(m->status); break;
    case ST_WIRE_CLOSED:
        touch_text(m->closed.text);
        touch_text(m->closed.report);
        break;
    default: break;
    }
}

/* What was written of a message that was read is as long, and is read again. */
static void write_again(const struct st_wire_message *m, size_t length)
{
    struct st_buffer out = {0};
    struct st_wire_message again;
    struct strata_error err;
    size_t used;
    st_wire_write(m, &out);
    if (out.failed || out.size != length || st_wire_read(out.data, out.size, &again, &used, &err) || used != length ||
        again.kind != m->kind || again.number != m->number)
        abort();
    go_through(&again);
    st_wire_free(&again);
    st_buffer_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct st_wire_message m;
    struct strata_error err;
    size_t used;
    uint8_t *aligned = malloc(size + !size);
    if (!aligned)
        return 0;
    if (size)
        memcpy(aligned, data, size);
    if (!st_wire_read(aligned, size, &m, &used, &err) && used) {
        go_through(&m);
        write_again(&m, used);
        st_wire_free(&m);
    }
    free(aligned);
    return 0;
}
