/* Router and experts. Limit: bytes of the chosen experts' weights, each read once per pass however many rows chose it. */
#include "kernel/c/level.h"

#include <stdatomic.h>

#include "kernel/exact_math.h"
#include "kernel/multiply.h"
#include "kernel/vec.h"

/* Activation rows and weight rows of a piece of work; of experts that are taken piece by piece up to MOST_AT_ONCE. */
enum { ROWS_AT_ONCE = 32, WEIGHTS_AT_ONCE = 32, MOST_AT_ONCE = 128 };

/* The used largest logits, best first and lower index first on ties, and their softmax. */
static void choose(const struct st_route *a, size_t r)
{
    const float *logit = a->logits + r * a->experts;
    int32_t *expert = a->to->expert + r * a->used;
    float *weight = a->to->weight + r * a->used, sum = 0;
    for (uint32_t n = 0; n < a->used; n++) {
        /* The next one after (last logit, last index) in the order. */
        int32_t best = -1;
        for (uint32_t e = 0; e < a->experts; e++) {
            bool after = n == 0 || logit[e] < logit[expert[n - 1]] ||
                         (logit[e] == logit[expert[n - 1]] && (int32_t)e > expert[n - 1]);
            if (after && (best < 0 || logit[e] > logit[best]))
                best = (int32_t)e;
        }
        /* NaN logits compare with nothing; take the lowest free index so that the lists stay valid. */
        for (uint32_t e = 0; best < 0; e++) {
            bool taken = false;
            for (uint32_t i = 0; i < n; i++)
                taken = taken || expert[i] == (int32_t)e;
            best = taken ? -1 : (int32_t)e;
        }
        expert[n] = best;
    }
    for (uint32_t n = 0; n < a->used; n++) {
        weight[n] = st_expf(logit[expert[n]] - logit[expert[0]]);
        sum += weight[n];
    }
    for (uint32_t n = 0; n < a->used; n++)
        weight[n] /= sum;
}

/* Counting sort of the rows' choices by expert. */
static void group(const struct st_route *a, size_t n)
{
    struct st_routing *to = a->to;
    size_t entries = n * a->used;
    memset(to->first, 0, (a->experts + 1) * sizeof *to->first);
    for (size_t i = 0; i < entries; i++)
        to->first[to->expert[i] + 1]++;
    for (uint32_t e = 0; e < a->experts; e++)
        to->first[e + 1] += to->first[e];
    for (size_t i = 0; i < entries; i++) {
        int32_t at = to->first[to->expert[i]]++;
        to->entry[at] = (int32_t)i;
        to->where[i] = at;
    }
    for (uint32_t e = a->experts; e > 0; e--)
        to->first[e] = to->first[e - 1];
    to->first[0] = 0;
}

void ST_K(st_route)(const struct st_kernels *k, const struct st_route *a, struct st_worker *w)
{
    size_t n = (size_t)*a->n, from, to;
    st_act_prepare(k, a->acts, st_act_mask(a->router) | st_act_mask(a->shared_gate), a->m, a->hidden, n, a->hidden, w);
    st_barrier(w);
    st_share(w, a->experts, 8, &from, &to);
    for (size_t r = 0; r < n; r += ROWS_AT_ONCE) {
        size_t count = n - r < ROWS_AT_ONCE ? n - r : ROWS_AT_ONCE;
        struct st_act_row rows[ROWS_AT_ONCE];
        for (size_t j = 0; j < count; j++)
            rows[j] = st_act_row_of(a->acts, a->router, a->m, a->hidden, r + j);
        st_multiply(k, a->router, 0, from, to, rows, count, a->logits + r * a->experts + from, a->experts);
    }
    st_barrier(w);
    st_share(w, n, 1, &from, &to);
    for (size_t r = from; r < to; r++) {
        choose(a, r);
        struct st_act_row row = st_act_row_of(a->acts, a->shared_gate, a->m, a->hidden, r);
        st_multiply(k, a->shared_gate, 0, 0, 1, &row, 1, a->to->shared + r, 1);
        a->to->shared[r] = st_sigmoidf(a->to->shared[r]);
    }
    st_barrier(w);
    if (w->index == 0)
        group(a, n);
}

/* A piece of work: some weight rows of one expert (experts = the shared one) with all its entries. */
struct piece {
    uint32_t expert;
    size_t first, count; /* entries in the grouped order; the shared expert's follow all others */
    size_t from, to;     /* weight rows */
};

/* Calls run for this worker's pieces. The cost of a piece is its entries, so the cut is fair when experts differ. */
static void for_pieces(const struct st_experts *a, size_t width, size_t shared_width, const struct st_worker *w,
                       void (*run)(const struct st_kernels *, const struct st_experts *, const struct piece *),
                       const struct st_kernels *k)
{
    size_t n = (size_t)*a->n, routed = n * a->used;
    size_t parts = (width + WEIGHTS_AT_ONCE - 1) / WEIGHTS_AT_ONCE;
    size_t shared_parts = (shared_width + WEIGHTS_AT_ONCE - 1) / WEIGHTS_AT_ONCE;
    size_t total = routed * parts + n * shared_parts, done = 0;
    size_t mine = total * (size_t)w->index / (size_t)w->count, end = total * ((size_t)w->index + 1) / (size_t)w->count;
    for (uint32_t e = 0; e <= a->experts; e++) {
        bool shared = e == a->experts;
        struct piece p = {.expert = e, .first = shared ? routed : (size_t)a->routing->first[e]};
        p.count = shared ? n : (size_t)a->routing->first[e + 1] - p.first;
        size_t rows = shared ? shared_width : width, n_parts = p.count ? (shared ? shared_parts : parts) : 0;
        for (size_t i = 0; i < n_parts; i++, done += p.count) {
            if (done < mine || done >= end)
                continue;
            p.from = i * WEIGHTS_AT_ONCE;
            p.to = rows - p.from < WEIGHTS_AT_ONCE ? rows : p.from + WEIGHTS_AT_ONCE;
            run(k, a, &p);
        }
    }
}

static size_t entry_row(const struct st_experts *a, const struct piece *p, size_t i)
{
    return p->expert == a->experts ? i : (size_t)a->routing->entry[p->first + i] / a->used;
}

static size_t h_width(const struct st_experts *a)
{
    return a->width > a->shared_width ? a->width : a->shared_width;
}

static void gate_and_up(const struct st_kernels *k, const struct st_experts *a, const struct piece *p)
{
    bool shared = p->expert == a->experts;
    const struct st_weight *gate = shared ? a->shared_gate : a->gate, *up = shared ? a->shared_up : a->up;
    uint32_t expert = shared ? 0 : p->expert;
    size_t count = p->to - p->from;
    for (size_t i = 0; i < p->count; i += ROWS_AT_ONCE) {
        struct st_act_row g_rows[ROWS_AT_ONCE], u_rows[ROWS_AT_ONCE];
        float g[ROWS_AT_ONCE * MOST_AT_ONCE], u[ROWS_AT_ONCE * MOST_AT_ONCE];
        size_t n = p->count - i < ROWS_AT_ONCE ? p->count - i : ROWS_AT_ONCE;
        for (size_t j = 0; j < n; j++) {
            g_rows[j] = st_act_row_of(a->acts, gate, a->m, a->hidden, entry_row(a, p, i + j));
            u_rows[j] = st_act_row_of(a->acts, up, a->m, a->hidden, entry_row(a, p, i + j));
        }
        st_multiply(k, gate, expert, p->from, p->to, g_rows, n, g, count);
        st_multiply(k, up, expert, p->from, p->to, u_rows, n, u, count);
        for (size_t j = 0; j < n; j++) {
            float *h = a->h + (p->first + i + j) * h_width(a) + p->from;
            for (size_t o = 0; o < count; o++)
                h[o] = st_siluf(g[j * count + o]) * u[j * count + o];
        }
    }
}

static void down(const struct st_kernels *k, const struct st_experts *a, const struct piece *p)
{
    bool shared = p->expert == a->experts;
    const struct st_weight *weight = shared ? a->shared_down : a->down;
    for (size_t i = 0; i < p->count; i += ROWS_AT_ONCE) {
        struct st_act_row rows[ROWS_AT_ONCE];
        size_t n = p->count - i < ROWS_AT_ONCE ? p->count - i : ROWS_AT_ONCE;
        for (size_t j = 0; j < n; j++)
            rows[j] = st_act_row_of(a->hacts, weight, a->h, h_width(a), p->first + i + j);
        st_multiply(k, weight, shared ? 0 : p->expert, p->from, p->to, rows, n,
                    a->o + (p->first + i) * a->hidden + p->from, a->hidden);
    }
}

/* The rows between up and down of an expert, in the form that its down takes. */
static void prepare_between(const struct st_kernels *k, const struct st_experts *a, const struct piece *p)
{
    const struct st_worker alone = {.count = 1};
    struct st_act_buffer rows = *a->hacts;
    for (int form = ST_ACT_Q8; form < ST_ACT_COUNT; form++)
        rows.memory[form] += p->first * rows.stride[form];
    st_act_prepare(k, &rows, st_act_mask(a->down), a->h + p->first * h_width(a), h_width(a), p->count, a->width, &alone);
}

/* Weight rows of a piece when so many are shared out: some pieces for each worker, so that one that is held up does not
 * hold up all, but long ones, because each begins with rows that nothing has asked for yet. */
static uint32_t rows_of_piece(uint32_t rows, const struct st_worker *w)
{
    uint32_t wanted = rows / (3 * (uint32_t)w->count) / 16 * 16;
    return wanted < WEIGHTS_AT_ONCE ? WEIGHTS_AT_ONCE : wanted > MOST_AT_ONCE ? MOST_AT_ONCE : wanted;
}

/* Experts that others compute the rest of: pieces of gate and up of all of them, then pieces of down. Every piece of
 * gate and up has been taken by a worker that computes it when the first of down is, so waiting for one ends. */
static void some_experts(const struct st_kernels *k, const struct st_experts *a, const struct st_worker *w)
{
    struct st_experts_work *work = a->work;
    const uint32_t up_rows = rows_of_piece(work->count * a->width, w), up_parts = (a->width + up_rows - 1) / up_rows,
                   down_rows = rows_of_piece(work->count * a->hidden, w),
                   down_parts = (a->hidden + down_rows - 1) / down_rows, ups = work->count * up_parts,
                   all = ups + work->count * down_parts;
    for (uint32_t i; (i = atomic_fetch_add_explicit(&work->next, 1, memory_order_relaxed)) < all;) {
        bool up = i < ups;
        uint32_t part = up ? i % up_parts : (i - ups) % down_parts, rows = up ? a->width : a->hidden,
                 step = up ? up_rows : down_rows;
        struct st_experts_taken *t = &work->taken[up ? i / up_parts : (i - ups) / down_parts];
        struct piece p = {.expert = t->expert, .first = (size_t)a->routing->first[t->expert], .from = (size_t)part * step};
        p.count = (size_t)a->routing->first[t->expert + 1] - p.first;
        p.to = rows - p.from < step ? rows : p.from + step;
        if (up) {
            gate_and_up(k, a, &p);
            if (atomic_fetch_add_explicit(&t->done, 1, memory_order_acq_rel) + 1 == up_parts) {
                prepare_between(k, a, &p);
                atomic_store_explicit(&t->ready, 1, memory_order_release);
            }
        } else {
            st_await(&t->ready);
            down(k, a, &p);
        }
    }
}

void ST_K(st_experts)(const struct st_kernels *k, const struct st_experts *a, struct st_worker *w)
{
    size_t n = (size_t)*a->n, routed = n * a->used, from, to;
    if (!a->y) {
        some_experts(k, a, w);
        return;
    }
    unsigned mask = st_act_mask(a->gate) | st_act_mask(a->up) | st_act_mask(a->shared_gate) | st_act_mask(a->shared_up);
    st_act_prepare(k, a->acts, mask, a->m, a->hidden, n, a->hidden, w);
    st_barrier(w);
    for_pieces(a, a->width, a->shared_width, w, gate_and_up, k);
    st_barrier(w);
    st_act_prepare(k, a->hacts, st_act_mask(a->down), a->h, h_width(a), routed, a->width, w);
    /* The shared expert's rows come last and may have another width and another form. */
    struct st_act_buffer tail = *a->hacts;
    for (int form = ST_ACT_Q8; form < ST_ACT_COUNT; form++)
        tail.memory[form] += routed * tail.stride[form];
    st_act_prepare(k, &tail, st_act_mask(a->shared_down), a->h + routed * h_width(a), h_width(a), n, a->shared_width, w);
    st_barrier(w);
    for_pieces(a, a->hidden, a->hidden, w, down, k);
    st_barrier(w);
    st_share(w, a->hidden, 16, &from, &to);
    for (size_t r = 0; r < n; r++) {
        float *y = a->y + r * a->hidden;
        memset(y + from, 0, (to - from) * sizeof *y);
        for (uint32_t p = 0; p < a->used; p++)
            st_vec_axpy(y + from, a->routing->weight[r * a->used + p],
                        a->o + (size_t)a->routing->where[r * a->used + p] * a->hidden + from, to - from);
        st_vec_axpy(y + from, a->routing->shared[r], a->o + (routed + r) * a->hidden + from, to - from);
    }
}
