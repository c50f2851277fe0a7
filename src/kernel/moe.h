/* Mixture of experts: router, and the products of the chosen experts and the shared one. */
#ifndef ST_KERNEL_MOE_H
#define ST_KERNEL_MOE_H

#include "kernel/products.h"

/* Entries: (row, place in the row's choice), grouped by expert, rows ascending within one expert. */
struct st_routing {
    int32_t *expert;  /* [rows][used]: the chosen, best first (lower index first on ties) */
    float *weight;    /* [rows][used]: renormalised probabilities */
    float *shared;    /* [rows]: sigmoid gate of the shared expert */
    int32_t *first;   /* [experts + 1]: first entry of each expert */
    int32_t *entry;   /* [rows * used]: row * used + place */
    int32_t *where;   /* [rows * used]: the inverse of entry */
};

struct st_route {
    const int32_t *n;
    const float *m; /* [*n][hidden] */
    const struct st_weight *router;      /* [experts][hidden] */
    const struct st_weight *shared_gate; /* [1][hidden] */
    float *logits;                       /* scratch [*n][experts] */
    struct st_routing *to;
    uint32_t experts, used, hidden;
    struct st_act_buffer *acts;
};

/* Work on some experts that is taken piece by piece: a worker that comes late or is held up takes fewer, and nobody
 * waits for it before the end. The caller fills it for each run. */
struct st_experts_work {
    uint32_t count; /* experts with entries, */
    struct st_experts_taken {
        uint32_t expert; /* ascending; */
        _Atomic uint32_t done;  /* pieces of gate and up, 0 at first */
        _Atomic uint32_t ready; /* its rows between up and down are: 0 at first */
    } *taken;
    _Atomic uint32_t next; /* 0 at first */
};

/* y = sum over the row's choice, best first, of weight * down(silu(gate m) * (up m)), then + shared * the shared expert.
 * On the CPU y may be NULL: then o is the result, routing has but entry, of the entries that are wanted, and of first
 * what says where those of taken experts begin and end; there is no shared expert, acts hold m already (st_act_prepare),
 * and work says how far it is. */
struct st_experts {
    const int32_t *n;
    const float *m;
    const struct st_routing *routing;
    const struct st_weight *gate, *up, *down;                      /* experts' */
    const struct st_weight *shared_gate, *shared_up, *shared_down; /* the shared expert's */
    float *h;   /* scratch [*n * (used + 1)][max(width, shared_width)] */
    float *o;   /* scratch [*n * (used + 1)][hidden] */
    float *y;   /* [*n][hidden] */
    uint32_t experts, used, hidden, width, shared_width;
    struct st_act_buffer *acts;  /* of m */
    struct st_act_buffer *hacts; /* of h: room for *n * (used + 1) rows */
    struct st_experts_work *work; /* where y is NULL */
};

#endif
