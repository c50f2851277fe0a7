/* Families, arenas and programs. */
#include "model/model.h"

#include <stdlib.h>

#include "base/checked.h"

static const struct st_family *const families[] = {&st_family_qwen4exp, &st_family_llama};

void *st_bump_take(struct st_bump *b, uint64_t count, uint64_t size)
{
    uint64_t bytes, end;
    if (!st_mul_u64(count, size, &bytes) || !st_align_u64(bytes, 64, &bytes) || !st_add_u64(b->used, bytes, &end)) {
        b->overflow = true;
        return NULL;
    }
    uint8_t *p = b->base ? b->base + b->used : NULL;
    b->used = end;
    b->peak = end > b->peak ? end : b->peak;
    return p;
}

/* Makes room for one more element. */
static bool grow(void **data, size_t n, size_t *capacity, size_t size)
{
    if (n < *capacity)
        return true;
    size_t more = *capacity ? *capacity * 2 : 64;
    void *p = realloc(*data, more * size);
    if (!p)
        return false;
    *data = p;
    *capacity = more;
    return true;
}

struct st_command *st_program_add(struct st_program *p, enum st_op op, int32_t layer)
{
    void *data = p->commands;
    if (p->failed || !grow(&data, p->n_commands, &p->commands_capacity, sizeof *p->commands)) {
        p->failed = true;
        return &p->spare;
    }
    p->commands = data;
    p->commands[p->n_commands] = (struct st_command){.op = op, .layer = layer};
    return &p->commands[p->n_commands++];
}

void st_program_add_piece(struct st_program *p, struct st_state_piece piece)
{
    void *data = p->pieces;
    if (p->failed || !grow(&data, p->n_pieces, &p->pieces_capacity, sizeof *p->pieces)) {
        p->failed = true;
        return;
    }
    p->pieces = data;
    p->pieces[p->n_pieces++] = piece;
}

void *st_program_describe(struct st_program *p, size_t size)
{
    void *list = p->owned, *memory = NULL;
    if (!p->failed && size <= sizeof p->spare_descriptor &&
        grow(&list, p->n_owned, &p->owned_capacity, sizeof *p->owned)) {
        p->owned = list;
        memory = calloc(1, size);
    }
    if (!memory) {
        p->failed = true;
        return p->spare_descriptor;
    }
    p->owned[p->n_owned++] = memory;
    return memory;
}

void st_program_free(struct st_program *p)
{
    for (size_t i = 0; i < p->n_owned; i++)
        free(p->owned[i]);
    free(p->owned);
    free(p->commands);
    free(p->pieces);
    *p = (struct st_program){0};
}

enum strata_result st_model_open(const struct st_gguf *g, const struct st_gguf *draft, const struct st_model_options *o,
                                 struct st_model *out, struct strata_error *err)
{
    const char *name;
    size_t size;
    enum strata_result r = st_gguf_string(g, "general.architecture", &name, &size, err);
    if (r)
        return r;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strlen(families[i]->architecture) == size && !memcmp(families[i]->architecture, name, size)) {
            *out = (struct st_model){.family = families[i], .gguf = g, .draft_gguf = draft};
            return families[i]->open(out, o, err);
        }
    char shown[64];
    return st_fail(err, STRATA_E_UNSUPPORTED, "%s: architecture '%s' is not supported", g->path,
                   st_printable(shown, sizeof shown, name, size));
}

void st_model_close(struct st_model *m)
{
    if (m->family)
        m->family->close(m);
    *m = (struct st_model){0};
}
