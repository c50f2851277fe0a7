/* What a decoded token costs: the bytes that the commands of a program read and write for one row. */
#include "engine/stage.h"

static double matrix(const struct st_weight *w)
{
    return w && w->data ? (double)w->row_bytes * w->rows : 0;
}

static double gated(const struct st_gated_read *a)
{
    return matrix(a->down) + matrix(a->up) + matrix(a->inject);
}

static double chosen_experts(const struct st_experts *a)
{
    return (matrix(a->gate) + matrix(a->up) + matrix(a->down)) * a->used;
}

static double experts(const struct st_experts *a)
{
    return chosen_experts(a) + matrix(a->shared_gate) + matrix(a->shared_up) + matrix(a->shared_down);
}

/* The state is read and written, the convolution's last inputs too. */
static double recurrence(const struct st_gdn *a)
{
    double state = (double)a->value_heads * a->key_dim * a->value_dim, inputs = (double)(a->taps - 1) * a->channels;
    return 2 * sizeof(float) * (state + inputs);
}

/* Keys and values of the tokens that are attended to, and one index key of every block. */
static double attention(const struct st_qsa *a, uint32_t depth)
{
    uint32_t seen = depth < a->context ? depth : a->context;
    uint32_t most = a->budget + a->ratio, attended = a->ratio && seen > most ? most : seen;
    double index = a->ratio ? (double)(seen / a->ratio) * a->index_dim * sizeof(float) : 0;
    return 2.0 * a->kv_heads * (double)a->kv_bytes * attended + index;
}

double st_program_traffic(const struct st_program *p, uint32_t depth)
{
    double bytes = 0;
    for (size_t i = 0; i < p->n_commands; i++) {
        const struct st_command *c = &p->commands[i];
        switch (c->op) {
        case ST_OP_products:
            for (uint32_t k = 0; k < (uint32_t)c->u.products.count; k++)
                bytes += matrix(c->u.products.product[k].w);
            break;
        case ST_OP_gated_read: bytes += gated(&c->u.gated_read); break;
        case ST_OP_route: bytes += matrix(c->u.route.router) + matrix(c->u.route.shared_gate); break;
        case ST_OP_experts: bytes += experts(&c->u.experts); break;
        case ST_OP_gdn: bytes += recurrence(&c->u.gdn); break;
        case ST_OP_qsa: bytes += attention(&c->u.qsa, depth); break;
        default: break; /* vectors of the row itself */
        }
    }
    return bytes;
}

double st_program_expert_traffic(const struct st_program *p, uint64_t *layers)
{
    double bytes = 0;
    *layers = 0;
    for (size_t i = 0; i < p->n_commands; i++)
        if (p->commands[i].op == ST_OP_experts) {
            bytes += chosen_experts(&p->commands[i].u.experts);
            *layers += 1;
        }
    return bytes;
}

/* Type and sizes of the larger one; places and scales are no part of a shape. */
static void larger(struct st_weight *most, const struct st_weight *w)
{
    if (!w || !w->data || matrix(w) <= (double)most->row_bytes * most->rows)
        return;
    *most = (struct st_weight){.type = w->type, .act = w->act, .cols = w->cols, .rows = w->rows, .row_bytes = w->row_bytes};
}

void st_program_shape(const struct st_program *p, struct st_decode_shape *out)
{
    *out = (struct st_decode_shape){0};
    for (size_t i = 0; i < p->n_commands; i++) {
        const struct st_command *c = &p->commands[i];
        for (int k = 0; c->op == ST_OP_products && c->layer >= 0 && k < c->u.products.count; k++)
            larger(&out->dense, c->u.products.product[k].w);
        if (c->op == ST_OP_experts && !out->used) {
            larger(&out->gate, c->u.experts.gate);
            larger(&out->up, c->u.experts.up);
            larger(&out->down, c->u.experts.down);
            out->used = c->u.experts.used;
        }
    }
}

uint64_t st_program_kv_bytes(const struct st_program *p, uint32_t slots)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < p->n_pieces; i++)
        if (p->pieces[i].tokens_per_unit)
            bytes += (p->pieces[i].slot_stride * slots + 63) / 64 * 64;
    return bytes;
}
