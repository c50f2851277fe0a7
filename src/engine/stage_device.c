/* Stage on a device with kernels of its own: one allocation that holds weights, state and buffers; the command list is lowered
 * to launches; windows are replayed as captured graphs.
 *
 * A pass: the rows are packed into page-locked memory and copied in one piece, the residual that enters follows, the launches
 * run, logits (or what is picked from them) and the residual that leaves are copied out, and an event ends it. The packed rows are two deep, so that a pass can
 * be given while the one before runs; everything on the device is in the order of one queue. In a prompt an event follows every
 * layer: a device that fails or stands still does so in a layer that can be named. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "engine/expert_host.h"
#include "engine/profile.h"
#include "engine/stage_device.h"
#include "kernel/gpu_norm.h"

static const struct st_runtime *table(const struct device_stage *d)
{
    return st_device_table(d);
}

/* ---- weights ---- */

enum strata_result st_device_take_piece(struct device_stage *d, int *piece, struct strata_error *err)
{
    int i = *piece = d->next_piece;
    enum strata_result r = d->piece_busy[i] ? st_wait_event(d->dev, d->piece_free[i], err) : STRATA_OK;
    d->piece_busy[i] = d->piece_busy[i] && r;
    d->next_piece = 1 - i;
    return r;
}

enum strata_result st_device_piece_given(struct device_stage *d, int piece, struct strata_error *err)
{
    d->piece_busy[piece] = true;
    return table(d)->event_record(d->dev->copy, d->piece_free[piece], err);
}

/* Reading the file and the link overlap. */
enum strata_result st_device_copy_weights(struct device_stage *d, st_addr to, const uint8_t *from, uint64_t bytes,
                                          struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    for (uint64_t done = 0; done < bytes && !r;) {
        int i;
        uint64_t n = bytes - done < ST_STAGE_PIECE ? bytes - done : ST_STAGE_PIECE;
        r = st_device_take_piece(d, &i, err);
        if (r)
            break;
        memcpy(d->piece[i], from + done, n);
        r = table(d)->copy_in(d->dev->copy, to + done, d->piece[i], n, err);
        if (!r)
            r = st_device_piece_given(d, i, err);
        done += n;
    }
    return r;
}

/* st_put_fn: counts, or places the bytes at the next free address. */
static enum strata_result put_weight(void *user, const char *name, const void *data, uint64_t bytes, const void **out,
                                     struct strata_error *err)
{
    struct device_stage *d = user;
    uint64_t at = d->put_used, end;
    if (!st_add_u64(at, bytes, &end) || end > UINT64_MAX - 2 * ST_STAGE_ALIGN)
        return st_fail(err, STRATA_E_LIMIT, "%s: %s: weights do not fit", d->base.name, name);
    d->put_used = st_stage_align(end);
    *out = (const void *)(uintptr_t)(d->memory + d->at.weights + at);
    if (d->counting)
        return STRATA_OK;
    enum strata_result r = st_device_copy_weights(d, d->memory + d->at.weights + at, data, bytes, err);
    return r ? st_fail_in(err, r, "%s", name) : STRATA_OK;
}

static enum strata_result bind(struct device_stage *d, const struct st_stage_config *c, bool counting,
                               struct strata_error *err)
{
    struct st_model_options o = c->options;
    o.put = put_weight;
    o.put_user = d;
    o.put_experts = d->cached ? st_device_put_experts : NULL;
    st_expert_set_free(&d->store.set);
    d->put_used = 0;
    d->counting = counting;
    st_model_close(&d->base.bound);
    enum strata_result r = st_model_open(c->gguf, c->draft_gguf, &o, &d->base.bound, err);
    d->base.weight_bytes = d->put_used;
    return r;
}

/* ---- rows ---- */

/* One array of the packed rows: its bytes for n rows. The order here is the order in memory. */
struct row_array {
    void **device;    /* field of device_stage.rows */
    const void *host; /* array of the pass */
    uint64_t bytes;
};

enum { ROW_ARRAYS = 11 };

/* Lists the arrays of a pass with n rows and the given host rows; returns how many. */
static int row_arrays(struct device_stage *d, const struct st_rows *h, uint64_t n, uint64_t ngram_rows,
                      struct row_array list[ROW_ARRAYS])
{
    struct st_rows *r = &d->rows;
    uint64_t hidden = d->base.dims.hidden;
    const struct row_array all[ROW_ARRAYS] = {
        {(void **)&r->slot, h->slot, n * 4},
        {(void **)&r->pos, h->pos, n * 4},
        {(void **)&r->token, h->token, n * 4},
        {(void **)&r->axis, h->axis, n * 12},
        {(void **)&r->history, h->history, n * ST_HISTORY * 4},
        {(void **)&r->out, h->out, n * 4},
        {(void **)&r->span, h->span, (n + 1) * 4},
        {(void **)&r->embd_row, h->embd_row, n},
        {(void **)&r->ngram_index, h->ngram_index, n * d->heads * 4},
        {(void **)&r->embd, h->embd, n * hidden * 4},
        {(void **)&r->ngram, h->ngram, ngram_rows * d->row_bytes},
    };
    memcpy(list, all, sizeof all);
    return ROW_ARRAYS;
}

/* Gives the arrays their device addresses for n rows; the whole is *bytes long. The n-gram rows come last, so that their number
 * changes no other address and a window's graph stays valid. */
static void place_rows(struct device_stage *d, uint64_t n, uint64_t *bytes)
{
    struct row_array list[ROW_ARRAYS];
    struct st_rows none = {0};
    int count = row_arrays(d, &none, n, n * d->heads, list);
    uint64_t at = 0;
    for (int i = 0; i < count; i++) {
        *list[i].device = (void *)(uintptr_t)(d->memory + d->rows_at + at);
        at += st_stage_align(list[i].bytes);
    }
    *bytes = at;
}

/* Embeddings of rows that come as tokens, decoded into the pass's embd array in page-locked memory. */
static void embed_rows(struct device_stage *d, enum st_part part, const struct st_rows *h, float *to)
{
    const struct st_weight *embed = d->base.bound.family->embedding(&d->base.bound, part);
    const struct st_type_info *type = st_type_info(embed->type);
    size_t hidden = d->base.dims.hidden;
    for (int32_t i = 0; i < h->n; i++) {
        float *row = to + (size_t)i * hidden;
        if (h->embd_row[i])
            memcpy(row, h->embd + (size_t)i * hidden, hidden * sizeof *row);
        else
            type->decode((const uint8_t *)embed->data + (size_t)h->token[i] * embed->row_bytes, row, hidden);
    }
}

/* Packs the pass's rows into host and starts their copy. */
static enum strata_result send_rows(struct device_stage *d, const struct st_pass *pass, uint8_t *host,
                                    struct strata_error *err)
{
    const struct st_rows *h = pass->rows;
    uint64_t n = (uint64_t)h->n, bytes, distinct = 0, at = 0;
    struct row_array list[ROW_ARRAYS];
    bool commit = h->mode == ST_ROWS_COMMIT, embeds = pass->part == ST_PART_DRAFT || (!pass->wide_in && !commit);
    bool ngram = d->heads && pass->part == ST_PART_TRUNK && !commit;
    if (ngram) {
        enum strata_result r = st_ngram_io_finish(pass->ngram, err);
        if (r)
            return r;
        distinct = st_ngram_io_distinct(pass->ngram);
    }
    place_rows(d, n, &bytes);
    d->rows.n = h->n;
    d->rows.n_out = h->n_out;
    d->rows.n_spans = h->n_spans;
    d->rows.n_stream = h->n_stream;
    d->rows.mode = h->mode;
    d->rows.held = h->held;
    int count = row_arrays(d, h, n, distinct, list);
    for (int i = 0; i < count; i++) {
        uint64_t used = list[i].bytes;
        if (list[i].host == h->embd && embeds)
            embed_rows(d, pass->part, h, (float *)(void *)(host + at));
        else if (list[i].host == h->embd || ((list[i].host == h->ngram || list[i].host == h->ngram_index) && !ngram))
            used = 0;
        else
            memcpy(host + at, list[i].host, used);
        bytes = at + used;
        /* Room for the largest number of n-gram rows is only behind the last array. */
        at += st_stage_align(list[i].bytes);
    }
    return table(d)->copy_in(d->dev->compute, d->memory + d->rows_at, host, bytes, err);
}

/* ---- passes ---- */

enum strata_result st_device_launch(struct device_stage *d, const struct st_gpu_list *list, const struct st_command *c,
                                    struct strata_error *err)
{
    if (list->failed)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for a list of launches", d->base.name);
    char shape[96];
    snprintf(shape, sizeof shape, "%s of layer %d, %d rows", st_op_name(c->op), c->layer, d->rows.n);
    for (size_t i = 0; i < list->count; i++) {
        const struct st_gpu_launch *l = &list->launch[i];
        enum strata_result r = st_launch(d->dev, d->dev->compute, l->kernel, l->grid[0], l->grid[1], l->grid[2], l->args,
                                         shape, err);
        if (!r && d->base.profile)
            r = st_profile_mark(d->base.profile, st_op_name(c->op), st_gpu_kernels[l->kernel].name, c->layer, err);
        if (r)
            return r;
    }
    return STRATA_OK;
}

enum strata_result st_device_plain(struct device_stage *d, const struct st_program *p, size_t from, size_t to, size_t end,
                                   struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    d->list.end = p->commands + end;
    for (size_t i = from; i < to && !r; i++) {
        d->list.count = 0;
        r = st_gpu_lower(&p->commands[i], &d->target, &d->list, err);
        if (!r)
            r = st_device_launch(d, &d->list, &p->commands[i], err);
    }
    return r;
}

/* Adds what the rows of an experts command that was launched have chosen. */
static enum strata_result count_choices(struct device_stage *d, const struct st_command *c, struct strata_error *err)
{
    const struct st_experts *a = &c->u.experts;
    int32_t *first = malloc((a->experts + 1ull) * sizeof *first);
    if (!first)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory to count experts", d->base.name);
    enum strata_result r =
        table(d)->copy_out(d->dev->compute, first, st_gpu_at(a->routing->first), (a->experts + 1ull) * sizeof *first, err);
    enum strata_result waited = st_wait(d->dev, d->dev->compute, r ? NULL : err);
    r = r ? r : waited;
    if (!r)
        st_expert_profile_add(d->base.choices, c->layer < 0 ? d->base.dims.layers : (uint32_t)c->layer, first);
    free(first);
    return r;
}

/* Runs commands [from, to). marks: NULL, or events to record after the last command of each layer. */
static enum strata_result run_commands(struct device_stage *d, const struct st_program *p, size_t from, size_t to,
                                       struct st_event *const *marks, struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    for (size_t i = from, next; i < to && !r; i = next) {
        const struct st_command *c = &p->commands[i];
        bool experts = d->cached && c->op == ST_OP_experts;
        int32_t layer = c->layer;
        bool alone = d->cached || d->base.choices;
        for (next = i + 1; next < to && !(alone && c->op == ST_OP_experts) && p->commands[next].layer == layer &&
                           !(alone && p->commands[next].op == ST_OP_experts);)
            next++;
        r = experts ? st_device_experts_run(d, p, c, err) : st_device_plain(d, p, i, next, to, err);
        if (!r && d->base.choices && p->commands[next - 1].op == ST_OP_experts)
            r = count_choices(d, &p->commands[next - 1], err);
        if (!r && marks && layer >= 0 && (next == to || p->commands[next].layer != layer))
            r = table(d)->event_record(d->dev->compute, marks[(uint32_t)layer - d->base.first], err);
    }
    return r;
}

/* Recurrent state moves on by the rows that were held. */
static enum strata_result run_commit(struct device_stage *d, const struct st_program *p, struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    d->list.end = NULL; /* no command follows another here */
    for (size_t i = 0; i < p->n_commands && !r; i++) {
        if (!st_op_recurs(p->commands[i].op))
            continue;
        d->list.count = 0;
        r = st_gpu_lower(&p->commands[i], &d->target, &d->list, err);
        if (!r)
            r = st_device_launch(d, &d->list, &p->commands[i], err);
    }
    return r;
}

static enum strata_result run_window(struct device_stage *d, enum st_window_kind kind, const struct st_program *p,
                                     struct strata_error *err)
{
    return kind == ST_WINDOW_COMMIT ? run_commit(d, p, err) : run_commands(d, p, 0, p->n_commands, NULL, err);
}

/* Runs a window through its graph, which is captured the first time. */
static enum strata_result run_graph(struct device_stage *d, enum st_window_kind kind, const struct st_program *p,
                                    struct strata_error *err)
{
    struct st_graph **graph = &d->graphs[kind][d->rows.n], *captured = NULL;
    enum strata_result r = STRATA_OK;
    if (!*graph) {
        r = st_capture_begin(d->dev, d->dev->compute, err);
        if (r)
            return r;
        r = run_window(d, kind, p, err);
        struct strata_error later;
        enum strata_result end = st_capture_end(d->dev, d->dev->compute, &captured, r ? &later : err);
        if (r && captured) /* a part of a window is none */
            table(d)->graph_free(captured);
        else
            *graph = captured;
        r = r ? r : end;
    }
    return r ? r : table(d)->graph_launch(d->dev->compute, *graph, err);
}

static enum strata_result device_read(struct st_stage *stage, void *to, const uint8_t *at, uint64_t bytes,
                                      struct strata_error *err);

/* Runs layer by layer and copies the residual of the pass's rows after each. */
static enum strata_result run_with_residuals(struct device_stage *d, const struct st_pass *pass, const struct st_program *p,
                                             struct strata_error *err)
{
    uint64_t wide = d->base.dims.wide, bytes = (uint64_t)d->rows.n * wide * sizeof(float);
    enum strata_result r = STRATA_OK;
    for (size_t from = 0, to; from < p->n_commands && !r; from = to) {
        int32_t layer = p->commands[from].layer;
        for (to = from; to < p->n_commands && p->commands[to].layer == layer; to++)
            ;
        r = run_commands(d, p, from, to, NULL, err);
        if (!r && layer >= 0)
            r = device_read(&d->base, pass->residuals + (size_t)layer * pass->residual_stride + pass->first_row * wide,
                            (const uint8_t *)p->wide, bytes, err);
    }
    return r;
}

static enum strata_result failed(const struct device_stage *d, enum strata_result r, int32_t rows, struct strata_error *err)
{
    return r ? st_fail_in(err, r, "layers %u..%u on %s, %d rows", d->base.first, d->base.end - 1, d->base.name, rows) : r;
}

/* ST_WINDOW_KINDS: the pass is none of them. */
static enum st_window_kind kind_of(const struct device_stage *d, const struct st_pass *pass)
{
    const struct st_stage *s = &d->base;
    const struct st_rows *rows = pass->rows;
    bool all = rows->n_out == rows->n;
    /* Graphs of commits are those of the rows that were held first. */
    if (rows->n > ST_GPU_WINDOW || rows->held || pass->residuals || s->profile || s->choices)
        return ST_WINDOW_KINDS;
    if (pass->part == ST_PART_DRAFT)
        return all ? ST_WINDOW_DRAFT : rows->n_out == 1 ? ST_WINDOW_DRAFT_ONE : rows->n_out ? ST_WINDOW_KINDS : ST_WINDOW_DRAFT_NONE;
    if (rows->mode == ST_ROWS_COMMIT)
        return ST_WINDOW_COMMIT;
    if (s->end == s->dims.layers && !all)
        return ST_WINDOW_KINDS;
    return rows->mode == ST_ROWS_HOLD ? ST_WINDOW_HELD : ST_WINDOW_TRUNK;
}

struct st_room *st_device_room(struct device_stage *d, uint32_t rows)
{
    for (int k = 0; k < d->rooms && rows > ST_GPU_WINDOW; k++)
        if (rows <= d->room[k].rows)
            return &d->room[k];
    return NULL;
}

/* Makes sure that the pass has its memory, and where that is. */
static enum strata_result take_room(struct device_stage *d, const struct st_pass *pass, const struct st_program **p,
                                    struct strata_error *err)
{
    struct st_room *room = st_device_room(d, (uint32_t)pass->rows->n);
    bool trunk = pass->part == ST_PART_TRUNK;
    d->rows_at = d->at.rows;
    d->target = d->window_target;
    *p = trunk ? &d->base.trunk : &d->base.draft;
    if (!room)
        return d->cached && d->begun == d->finished ? st_device_experts_settle(d, err) : STRATA_OK;
    d->rows_at = room->at + st_stage_align(room->size.buffers);
    d->target.scratch = d->memory + d->rows_at + st_stage_align(room->size.rows);
    d->target.scratch_bytes = room->size.scratch;
    *p = trunk ? &room->trunk : &room->draft;
    return st_device_experts_lend(d, room, err);
}

static enum strata_result device_begin(struct st_stage *stage, const struct st_pass *pass, struct strata_error *err)
{
    struct device_stage *d = (struct device_stage *)stage;
    const struct st_runtime *t = table(d);
    struct st_queue *queue = d->dev->compute;
    const struct st_program *p;
    struct flight *f = &d->flight[d->begun % ST_STAGE_PASSES];
    uint64_t bytes = (uint64_t)pass->rows->n * stage->dims.wide * sizeof(float);
    bool head = pass->part == ST_PART_DRAFT || stage->end == stage->dims.layers;
    enum strata_result r = take_room(d, pass, &p, err);
    if (!r)
        r = send_rows(d, pass, d->host + d->begun % ST_STAGE_PASSES * d->host_rows, err);
    if (!r && pass->wide_in)
        r = t->copy_in(queue, st_gpu_at(pass->part == ST_PART_TRUNK ? p->wide : p->wide_in), pass->wide_in, bytes, err);
    enum st_window_kind kind = kind_of(d, pass);
    bool graphs = d->dev->info.features & ST_FEATURE_GRAPHS, commit = pass->rows->mode == ST_ROWS_COMMIT;
    bool window = kind != ST_WINDOW_KINDS && (graphs || (d->cached && !commit));
    if (!r && stage->profile)
        r = st_profile_start(stage->profile, d->dev, err);
    f->rows = pass->rows->n;
    f->layers = !window && !commit && !pass->residuals && pass->part == ST_PART_TRUNK;
    if (!r)
        r = pass->residuals                  ? run_with_residuals(d, pass, p, err)
            : window && d->cached && !commit ? st_device_experts_window(d, kind, p, err)
            : window                         ? run_graph(d, kind, p, err)
            : commit                         ? run_commit(d, p, err)
                                             : run_commands(d, p, 0, p->n_commands, f->layers ? f->layer : NULL, err);
    bool sampled = false;
    stage->picks = NULL;
    if (!r && pass->sample)
        r = st_device_sample(d, p, pass, &sampled, err);
    if (!r && head && pass->rows->n_out && !sampled)
        r = t->copy_out(queue, d->host_logits, st_gpu_at(p->logits),
                        (uint64_t)pass->rows->n_out * stage->dims.vocabulary * sizeof(float), err);
    if (!r && pass->wide_out)
        r = t->copy_out(queue, pass->wide_out, st_gpu_at(p->wide), bytes, err);
    if (!r)
        r = t->event_record(queue, f->done, err);
    if (!r)
        r = t->queue_flush(queue, err);
    d->begun += !r;
    stage->logits = d->host_logits;
    return failed(d, r, f->rows, err);
}

static enum strata_result device_finish(struct st_stage *stage, struct strata_error *err)
{
    struct device_stage *d = (struct device_stage *)stage;
    const struct flight *f = &d->flight[d->finished % ST_STAGE_PASSES];
    enum strata_result r = STRATA_OK;
    for (uint32_t i = stage->first; i < stage->end && f->layers && !r; i++) {
        r = st_wait_event(d->dev, f->layer[i - stage->first], err);
        if (r)
            st_fail_in(err, r, "in layer %u", i);
    }
    if (!r)
        r = st_wait_event(d->dev, f->done, err);
    if (!r)
        st_device_experts_count(d, (int)(d->finished % ST_STAGE_PASSES));
    d->finished++;
    if (!r && stage->profile && d->finished == d->begun)
        r = st_profile_collect(stage->profile, err);
    return failed(d, r, f->rows, err);
}

static void device_drop(struct st_stage *stage)
{
    struct device_stage *d = (struct device_stage *)stage;
    st_wait(d->dev, d->dev->compute, NULL);
    d->finished = d->begun;
}

static enum strata_result device_lock_host(struct st_stage *stage, void *memory, uint64_t bytes, struct strata_error *err)
{
    struct device_stage *d = (struct device_stage *)stage;
    return table(d)->host_register(d->dev->rt, memory, bytes, err);
}

static bool device_unlock_host(struct st_stage *stage, void *memory)
{
    struct device_stage *d = (struct device_stage *)stage;
    return table(d)->host_unregister(d->dev->rt, memory);
}

/* ---- state ---- */

/* Copies of experts may still read the piece that state goes through. */
static enum strata_result free_piece(struct device_stage *d, struct strata_error *err)
{
    int piece;
    d->next_piece = 0;
    return st_device_take_piece(d, &piece, err);
}

static enum strata_result device_read(struct st_stage *stage, void *to, const uint8_t *at, uint64_t bytes,
                                      struct strata_error *err)
{
    struct device_stage *d = (struct device_stage *)stage;
    enum strata_result r = free_piece(d, err);
    for (uint64_t done = 0; done < bytes && !r; done += ST_STAGE_PIECE) {
        uint64_t n = bytes - done < ST_STAGE_PIECE ? bytes - done : ST_STAGE_PIECE;
        r = table(d)->copy_out(d->dev->compute, d->piece[0], st_gpu_at(at) + done, n, err);
        if (!r)
            r = st_wait(d->dev, d->dev->compute, err);
        if (!r)
            memcpy((uint8_t *)to + done, d->piece[0], n);
    }
    return r;
}

static enum strata_result device_write(struct st_stage *stage, uint8_t *at, const void *from, uint64_t bytes,
                                       struct strata_error *err)
{
    struct device_stage *d = (struct device_stage *)stage;
    enum strata_result r = free_piece(d, err);
    for (uint64_t done = 0; done < bytes && !r; done += ST_STAGE_PIECE) {
        uint64_t n = bytes - done < ST_STAGE_PIECE ? bytes - done : ST_STAGE_PIECE;
        memcpy(d->piece[0], (const uint8_t *)from + done, n);
        r = table(d)->copy_in(d->dev->compute, st_gpu_at(at) + done, d->piece[0], n, err);
        if (!r)
            r = st_wait(d->dev, d->dev->compute, err);
    }
    return r;
}

static enum strata_result device_clear(struct st_stage *stage, uint8_t *at, uint64_t bytes, struct strata_error *err)
{
    struct device_stage *d = (struct device_stage *)stage;
    return table(d)->fill(d->dev->compute, st_gpu_at(at), 0, bytes, err);
}

/* ---- opening ---- */

static void free_programs(struct device_stage *d)
{
    st_program_free(&d->base.trunk);
    st_program_free(&d->base.draft);
    for (int k = 0; k < ST_STAGE_ROOMS; k++) {
        st_program_free(&d->room[k].trunk);
        st_program_free(&d->room[k].draft);
    }
}

static void device_close(struct st_stage *stage)
{
    struct device_stage *d = (struct device_stage *)stage;
    const struct st_runtime *t = table(d);
    /* Also after a failure: nothing may still run on what is freed now. */
    st_wait(d->dev, d->dev->copy, NULL);
    st_wait(d->dev, d->dev->compute, NULL);
    for (int k = 0; k < ST_STAGE_PASSES; k++) {
        t->event_free(d->flight[k].done);
        for (uint32_t i = 0; d->flight[k].layer && i < stage->end - stage->first; i++)
            t->event_free(d->flight[k].layer[i]);
        free(d->flight[k].layer);
    }
    st_device_experts_close(d);
    for (int kind = 0; kind < ST_WINDOW_KINDS; kind++)
        for (int n = 0; n < ST_STAGE_GRAPHS; n++)
            if (d->graphs[kind][n]) /* a runtime without graphs has no function to free them */
                t->graph_free(d->graphs[kind][n]);
    for (int i = 0; i < 2; i++) {
        t->event_free(d->piece_free[i]);
        t->host_free(d->dev->rt, d->piece[i]);
    }
    t->host_free(d->dev->rt, d->sample_block);
    t->host_free(d->dev->rt, d->host);
    st_device_release(d->dev, d->memory, d->at.total);
    st_gpu_list_free(&d->list);
    free_programs(d);
    st_model_close(&stage->bound);
    free(d);
}

static const struct st_stage_ops device_ops = {.begin = device_begin,
                                               .finish = device_finish,
                                               .drop = device_drop,
                                               .lock_host = device_lock_host,
                                               .unlock_host = device_unlock_host,
                                               .read = device_read,
                                               .write = device_write,
                                               .clear = device_clear,
                                               .close = device_close};

static size_t gpu_act_bytes(enum st_act form, size_t n)
{
    return st_stage_align(st_gpu_act_stride(form, (uint32_t)n));
}

/* Places both parts for passes of up to so many rows, with state and buffers from the given addresses; NULL only counts. */
static enum strata_result place_parts(struct device_stage *d, uint32_t rows, uint8_t *state, uint8_t *buffers,
                                      struct st_program *trunk, struct st_program *draft, uint64_t *state_bytes,
                                      uint64_t *buffer_bytes, struct strata_error *err)
{
    struct st_stage *s = &d->base;
    struct st_bump st = {.base = state}, bu = {.base = buffers};
    struct st_placement at = s->placement;
    at.rows = rows;
    at.out_rows = at.out_rows < rows ? at.out_rows : rows;
    st_program_free(trunk);
    st_program_free(draft);
    const struct st_family *f = s->bound.family;
    enum strata_result r = f->place(&s->bound, ST_PART_TRUNK, &at, &d->rows, &st, &bu, trunk, err);
    if (!r && s->dims.draft)
        r = f->place(&s->bound, ST_PART_DRAFT, &at, &d->rows, &st, &bu, draft, err);
    *state_bytes = st.peak;
    *buffer_bytes = bu.peak;
    return r;
}

/* Places all programs: those of passes in the stage's own memory, and of prompts in rooms, over the same state. Without
 * memory they are only counted. */
static enum strata_result place_programs(struct device_stage *d, struct strata_error *err)
{
    struct st_stage *s = &d->base;
    uint8_t *base = d->at.total ? (uint8_t *)(uintptr_t)d->memory : NULL, *state = base ? base + d->at.state : NULL;
    uint32_t most = s->placement.rows, window = d->cached && most > ST_GPU_WINDOW ? ST_GPU_WINDOW : most;
    enum strata_result r = place_parts(d, window, state, base ? base + d->at.buffers : NULL, &s->trunk, &s->draft,
                                       &s->state_bytes, &s->buffer_bytes, err);
    d->rooms = 0;
    for (int k = 0; k < ST_STAGE_ROOMS && window < most && !r; k++) {
        struct st_room *room = &d->room[d->rooms];
        uint64_t same;
        room->rows = k == 0 && most / ST_SHORT_PROMPT > ST_GPU_WINDOW ? most / ST_SHORT_PROMPT : most;
        r = place_parts(d, room->rows, state, base ? base + room->at : NULL, &room->trunk, &room->draft, &same,
                        &room->size.buffers, err);
        d->rooms++;
        if (room->rows == most)
            break;
    }
    return r;
}

static uint64_t scratch_bytes(const struct st_program *p, uint32_t rows, const struct st_gpu_target *t)
{
    uint64_t most = 0;
    for (size_t i = 0; i < p->n_commands; i++) {
        uint64_t bytes = st_gpu_scratch(&p->commands[i], rows, t);
        most = bytes > most ? bytes : most;
    }
    return (most + 15) / 16 * 16; /* its last part begins at such a multiple */
}

/* Of both parts, and of choosing tokens behind them. */
static uint64_t scratch_of(const struct st_stage *s, const struct st_program *trunk, const struct st_program *draft,
                           uint32_t rows, const struct st_gpu_target *t)
{
    uint64_t a = scratch_bytes(trunk, rows, t), b = scratch_bytes(draft, rows, t), sample = st_device_sample_scratch(s);
    a = a > b ? a : b;
    return a > sample ? a : sample;
}

/* What prompts may borrow of slots. */
static uint64_t lent_bytes(const struct device_stage *d)
{
    return d->rooms ? st_room_bytes(&d->room[d->rooms - 1].size) : 0;
}

/* Sizes of the rooms of placed programs on such a device. */
static void size_rooms(struct device_stage *d, const struct st_gpu_target *t)
{
    for (int k = 0; k < d->rooms; k++) {
        struct st_room *room = &d->room[k];
        place_rows(d, room->rows, &room->size.rows);
        room->size.scratch = scratch_of(&d->base, &room->trunk, &room->draft, room->rows, t);
        room->size.ring = st_device_experts_ring(d);
    }
}

/* Bytes of the placed programs' stage on such a device; slots are chosen. */
static enum strata_result size_parts(struct device_stage *d, const struct st_gpu_target *t, struct st_stage_size *out,
                                     struct strata_error *err)
{
    struct st_stage *s = &d->base;
    uint64_t rows, most, n = d->rooms ? ST_GPU_WINDOW : s->placement.rows, lent = lent_bytes(d);
    place_rows(d, s->placement.rows, &most);
    place_rows(d, n, &rows);
    *out = (struct st_stage_size){.weights = s->weight_bytes,
                                  .slots = d->slot_bytes,
                                  .prompts = lent > d->slot_bytes ? lent - d->slot_bytes : 0,
                                  .state = s->state_bytes,
                                  .buffers = s->buffer_bytes,
                                  .rows = rows,
                                  .scratch = scratch_of(s, &s->trunk, &s->draft, (uint32_t)n, t)};
    out->locked = ST_STAGE_PASSES * most + (uint64_t)s->placement.out_rows * s->dims.vocabulary * sizeof(float) + 2ull * ST_STAGE_PIECE +
                  st_device_sample_locked(s);
    if (d->rooms)
        out->room = d->room[d->rooms - 1].size;
    if (d->cached) {
        uint64_t locked;
        enum strata_result r = st_device_experts_size(d, &out->experts, &out->host, &locked, err);
        if (r)
            return r;
        out->locked += locked;
        out->all_experts = st_expert_set_bytes(&d->store.set);
    }
    const uint64_t parts[8] = {out->weights, out->slots,   out->prompts, out->state,
                               out->buffers, out->experts, out->rows,    out->scratch};
    for (int i = 0; i < 8; i++)
        if (!st_add_u64(out->total, parts[i], &out->total) || !st_align_u64(out->total, ST_STAGE_ALIGN, &out->total))
            return st_fail(err, STRATA_E_LIMIT, "%s: layers %u..%u do not fit in any memory", s->name, s->first, s->end - 1);
    return STRATA_OK;
}

/* Where the parts lie; every part starts at a multiple of ST_STAGE_ALIGN. */
static enum strata_result lay_out(struct device_stage *d, uint64_t limit, struct strata_error *err)
{
    const struct st_stage *s = &d->base;
    struct st_stage_size size;
    enum strata_result r = size_parts(d, &d->window_target, &size, err);
    if (r)
        return r;
    d->at = (struct st_device_layout){.slots = st_stage_align(size.weights), .total = size.total};
    /* Rooms end where slots do, or where slots and what prompts need beside them do. */
    d->at.state = d->at.slots + st_stage_align(size.slots) + st_stage_align(size.prompts);
    for (int k = 0; k < d->rooms; k++)
        d->room[k].at = d->at.state - st_room_bytes(&d->room[k].size);
    d->at.buffers = d->at.state + st_stage_align(size.state);
    d->at.experts = d->at.buffers + st_stage_align(size.buffers);
    d->at.rows = d->at.experts + st_stage_align(size.experts);
    d->at.scratch = d->at.rows + st_stage_align(size.rows);
    d->window_target.scratch_bytes = size.scratch;
    d->host_rows = d->rooms ? size.room.rows : size.rows;
    if (size.total > limit)
        return st_fail(err, STRATA_E_DEVICE, "%s: layers %u..%u take %llu bytes, %llu are planned", s->name, s->first,
                       s->end - 1, (unsigned long long)size.total, (unsigned long long)limit);
    return STRATA_OK;
}

static enum strata_result open_host_memory(struct device_stage *d, struct strata_error *err)
{
    const struct st_runtime *t = table(d);
    const struct st_stage *s = &d->base;
    uint64_t logits = (uint64_t)s->placement.out_rows * s->dims.vocabulary * sizeof(float);
    void *memory;
    enum strata_result r = t->host_allocate(d->dev->rt, ST_STAGE_PASSES * d->host_rows + logits, &memory, err);
    if (r)
        return r;
    d->host = memory;
    d->host_logits = (float *)(void *)(d->host + ST_STAGE_PASSES * d->host_rows);
    if (st_device_sample_locked(s)) {
        r = t->host_allocate(d->dev->rt, st_device_sample_locked(s), &memory, err);
        if (r)
            return r;
        d->sample_block = memory;
    }
    for (int i = 0; i < 2 && !r; i++) {
        r = t->host_allocate(d->dev->rt, ST_STAGE_PIECE, &memory, err);
        if (!r) {
            d->piece[i] = memory;
            r = t->event_create(d->dev->rt, false, &d->piece_free[i], err);
        }
    }
    return r;
}

static enum strata_result open_events(struct device_stage *d, struct strata_error *err)
{
    const struct st_runtime *t = table(d);
    uint32_t layers = d->base.end - d->base.first;
    enum strata_result r = STRATA_OK;
    for (int k = 0; k < ST_STAGE_PASSES && !r; k++) {
        struct flight *f = &d->flight[k];
        if (!(f->layer = calloc(layers, sizeof *f->layer)))
            return st_fail(err, STRATA_E_MEMORY, "%s: no memory for a stage", d->base.name);
        r = t->event_create(d->dev->rt, false, &f->done, err);
        for (uint32_t i = 0; i < layers && !r; i++)
            r = t->event_create(d->dev->rt, false, &f->layer[i], err);
    }
    return r;
}

/* Chooses the slots; what they and the arena take, and how many choices slots are expected to serve. */
static enum strata_result size_experts(struct device_stage *d, const struct st_stage_config *c, struct st_stage_size *out,
                                       struct strata_error *err)
{
    const struct st_expert_set *set = &d->store.set;
    uint8_t *marks = malloc((size_t)set->count * set->experts + 1);
    if (!marks)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for a table of experts", d->base.name);
    *out = (struct st_stage_size){0};
    d->slot_bytes = st_expert_choose(set, c->experts.profile, c->experts.slots, lent_bytes(d), marks);
    out->hit = st_expert_share(set, c->experts.profile, marks);
    out->arena = st_expert_host_bytes(set, c->experts.profile, marks, c->experts.arena, &out->in_file);
    enum strata_result r = STRATA_OK;
    if (c->experts.helper_room)
        r = st_device_experts_helper(d, c->experts.profile, marks, c->experts.helper_room, out, err);
    free(marks);
    return r;
}

static enum strata_result open_parts(struct device_stage *d, const struct st_stage_config *c, uint64_t limit,
                                     struct strata_error *err)
{
    struct st_stage *s = &d->base;
    enum strata_result r = bind(d, c, true, err);
    if (r)
        return r;
    struct st_stage_size experts;
    s->bound.family->dims(&s->bound, &s->dims);
    r = place_programs(d, err);
    if (!r)
        size_rooms(d, &d->window_target);
    if (!r && d->cached)
        r = size_experts(d, c, &experts, err);
    if (!r)
        r = lay_out(d, limit, err);
    if (!r)
        r = st_device_allocate(d->dev, d->at.total, &d->memory, err);
    if (!r)
        r = open_host_memory(d, err);
    if (!r)
        r = open_events(d, err);
    if (!r)
        r = bind(d, c, false, err);
    if (!r)
        r = place_programs(d, err);
    d->window_target.scratch = d->memory + d->at.scratch;
    d->target = d->window_target;
    if (!r && d->cached)
        r = st_device_experts_open(d, c, err);
    return r ? r : st_wait(d->dev, d->dev->copy, err);
}

static void take_config(struct device_stage *d, const struct st_stage_config *c)
{
    struct st_stage *s = &d->base;
    s->placement = c->placement;
    s->placement.act_bytes = gpu_act_bytes;
    d->cached = c->experts.cached;
    d->store.set.trunk_rows = c->experts.trunk_layers;
    s->first = c->options.first;
    s->end = c->options.end;
    if (c->ngram->hash && c->ngram->layer >= s->first && c->ngram->layer < s->end) {
        d->heads = c->ngram->hash->heads;
        d->row_bytes = (uint32_t)c->ngram->table->row_bytes;
    }
}

enum strata_result st_stage_device_open(const struct st_stage_config *c, struct st_device *dev, uint64_t limit,
                                        struct st_stage **out, struct strata_error *err)
{
    struct device_stage *d = calloc(1, sizeof *d);
    if (!d)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for a stage", dev->name);
    struct st_stage *s = &d->base;
    s->ops = &device_ops;
    snprintf(s->name, sizeof s->name, "%s", dev->name);
    take_config(d, c);
    d->dev = dev;
    d->window_target = st_gpu_target_of(&dev->info);
    enum strata_result r = open_parts(d, c, limit, err);
    if (r) {
        device_close(s);
        return r;
    }
    *out = s;
    return STRATA_OK;
}

/* Lowers a program for the counts in its rows and marks and counts what it launches; both may be NULL. */
static enum strata_result mark_kernels(const struct st_program *p, const struct st_gpu_target *t, bool commit, bool *needed,
                                       uint64_t *count, struct strata_error *err)
{
    struct st_gpu_list list = {0};
    enum strata_result r = STRATA_OK;
    list.end = commit ? NULL : p->commands + p->n_commands;
    for (size_t i = 0; i < p->n_commands && !r; i++)
        r = commit && !st_op_recurs(p->commands[i].op) ? r : st_gpu_lower(&p->commands[i], t, &list, err);
    if (count)
        *count = list.count;
    list.end = NULL; /* passes that look at what is between commands need the kernels of each by itself */
    for (size_t i = 0; i < p->n_commands && !r && needed && !commit; i++)
        r = st_gpu_lower(&p->commands[i], t, &list, err);
    if (!r && list.failed)
        r = st_fail(err, STRATA_E_MEMORY, "no memory for a list of launches");
    for (size_t i = 0; i < list.count && !r && needed; i++)
        needed[list.launch[i].kernel] = true;
    st_gpu_list_free(&list);
    return r;
}

/* The counts of a pass of n rows of one sequence that all want logits, as far as there is room for them. */
static void set_counts(const struct st_stage *s, struct st_rows *rows, uint32_t n)
{
    rows->n = (int32_t)n;
    rows->n_out = (int32_t)(n < s->placement.out_rows ? n : s->placement.out_rows);
    rows->n_spans = 1;
    rows->n_stream = (int32_t)(n * (s->dims.wide / s->dims.hidden));
}

enum strata_result st_stage_device_needs(const struct st_stage_config *c, const struct st_device_info *info, bool *needed,
                                         struct strata_error *err)
{
    const struct st_gpu_target target = st_gpu_target_of(info);
    struct device_stage d = {0};
    struct st_stage *s = &d.base;
    take_config(&d, c);
    enum strata_result r = st_model_open(c->gguf, c->draft_gguf, &c->options, &s->bound, err);
    if (r)
        return r;
    s->bound.family->dims(&s->bound, &s->dims);
    uint64_t state, buffers;
    r = place_parts(&d, s->placement.rows, NULL, NULL, &s->trunk, &s->draft, &state, &buffers, err);
    for (uint32_t n = 1; n <= ST_HELD_ROWS && s->placement.hold && !r; n++) {
        set_counts(s, &d.rows, n);
        d.rows.mode = ST_ROWS_COMMIT;
        r = mark_kernels(&s->trunk, &target, true, needed, NULL, err);
    }
    if (!r)
        r = st_device_sample_needs(s, needed, err);
    d.rows.mode = ST_ROWS_ADVANCE; /* held rows take the same kernels */
    /* Every window; prompts at each power of two, where lowering may choose other kernels, and the largest. */
    for (uint32_t n = 1, last = 0; n != last && !r;) {
        set_counts(s, &d.rows, n);
        r = mark_kernels(&s->trunk, &target, false, needed, NULL, err);
        if (!r)
            r = mark_kernels(&s->draft, &target, false, needed, NULL, err);
        last = n;
        n = n < ST_GPU_WINDOW ? n + 1 : n < s->placement.rows / 2 ? 2 * n : s->placement.rows;
    }
    st_program_free(&s->trunk);
    st_program_free(&s->draft);
    st_model_close(&s->bound);
    return r;
}

enum strata_result st_stage_device_size(const struct st_stage_config *c, const struct st_device_info *info,
                                        struct st_stage_size *out, struct strata_error *err)
{
    const struct st_gpu_target target = st_gpu_target_of(info);
    /* Nothing is at this address; absent weights are told from present ones by NULL. */
    struct device_stage d = {.memory = ST_STAGE_ALIGN};
    struct st_stage *s = &d.base;
    snprintf(s->name, sizeof s->name, "layers %u..%u", c->options.first, c->options.end - 1);
    take_config(&d, c);
    enum strata_result r = bind(&d, c, true, err);
    if (!r) {
        s->bound.family->dims(&s->bound, &s->dims);
        r = place_programs(&d, err);
    }
    struct st_stage_size experts = {0};
    if (!r)
        size_rooms(&d, &target);
    if (!r && d.cached)
        r = size_experts(&d, c, &experts, err);
    if (!r)
        r = size_parts(&d, &target, out, err);
    out->hit = experts.hit;
    out->arena = experts.arena;
    out->in_file = experts.in_file;
    out->helper = experts.helper;
    out->helper_slots = experts.helper_slots;
    out->helper_locked = experts.helper_locked;
    out->helper_hit = experts.helper_hit;
    if (!r) {
        set_counts(s, &d.rows, 1);
        r = mark_kernels(&s->trunk, &target, false, NULL, &out->launches, err);
        out->read = st_program_traffic(&s->trunk, ST_STAGE_DEPTH);
        out->kv = st_program_kv_bytes(&s->trunk, s->placement.slots) + st_program_kv_bytes(&s->draft, s->placement.slots);
        out->expert_read = st_program_expert_traffic(&s->trunk, &out->steps);
    }
    st_expert_set_free(&d.store.set);
    free_programs(&d);
    st_model_close(&s->bound);
    return r;
}
