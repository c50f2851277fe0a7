/* Rows, random values and teams for tests that run kernel families directly. */
#ifndef ST_TESTS_KERNEL_FIXTURE_H
#define ST_TESTS_KERNEL_FIXTURE_H

#include <stdlib.h>
#include <string.h>

#include "kernel/multiply.h"
#include "kernel/qsa_scratch.h"
#include "kernel/table.h"

enum { FIXTURE_ROWS = 256 };

/* Rows of one pass with room for FIXTURE_ROWS. */
struct fixture_rows {
    struct st_rows rows;
    int32_t slot[FIXTURE_ROWS], pos[FIXTURE_ROWS], token[FIXTURE_ROWS], axis[FIXTURE_ROWS][3];
    int32_t history[FIXTURE_ROWS][ST_HISTORY], out[FIXTURE_ROWS], span[FIXTURE_ROWS + 1];
    uint8_t embd_row[FIXTURE_ROWS];
};

static inline void rows_clear(struct fixture_rows *f)
{
    memset(f, 0, sizeof *f);
    memset(f->history, 0xff, sizeof f->history);
    f->rows = (struct st_rows){.slot = f->slot,
                               .pos = f->pos,
                               .token = f->token,
                               .axis = &f->axis[0][0],
                               .history = &f->history[0][0],
                               .out = f->out,
                               .span = f->span,
                               .embd_row = f->embd_row};
}

/* Appends positions [pos, pos + n) of a slot as text; every row's output is wanted. */
static inline void rows_span(struct fixture_rows *f, int32_t slot, int32_t pos, int32_t n)
{
    struct st_rows *r = &f->rows;
    assert_true(r->n + n <= FIXTURE_ROWS);
    for (int32_t i = 0; i < n; i++, r->n++) {
        f->slot[r->n] = slot;
        f->pos[r->n] = pos + i;
        f->axis[r->n][0] = f->axis[r->n][1] = f->axis[r->n][2] = pos + i;
        f->out[r->n] = r->n;
    }
    r->n_out = r->n;
    f->span[++r->n_spans] = r->n;
}

/* Numbers from a seed, the same everywhere (splitmix64). */
static inline uint64_t random_bits(uint64_t *seed)
{
    uint64_t v = *seed += 0x9E3779B97F4A7C15u;
    v = (v ^ v >> 30) * 0xBF58476D1CE4E5B9u;
    v = (v ^ v >> 27) * 0x94D049BB133111EBu;
    return v ^ v >> 31;
}

/* Uniform in [-scale, scale). */
static inline float random_float(uint64_t *seed, float scale)
{
    return ((float)(random_bits(seed) >> 40) * 0x1p-23f - 1.0f) * scale;
}

static inline float *random_floats(uint64_t *seed, size_t n, float scale)
{
    float *v = malloc(n * sizeof *v + 1);
    assert_non_null(v);
    for (size_t i = 0; i < n; i++)
        v[i] = random_float(seed, scale);
    return v;
}

/* A weight of experts x rows x cols random values, encoded to the type; its memory is *memory, freed by the caller. */
static inline struct st_weight random_weight(uint64_t *seed, int type, uint32_t cols, uint32_t rows, uint32_t experts,
                                             float scale, bool fp32, void **memory)
{
    const struct st_type_info *info = st_type_info(type);
    size_t n = (size_t)experts * rows * cols, bytes = n / info->block_elems * info->block_bytes;
    float *v = random_floats(seed, n, scale);
    *memory = malloc(bytes);
    assert_non_null(info->encode);
    for (size_t r = 0; r < (size_t)experts * rows; r++)
        info->encode(v + r * cols, (uint8_t *)*memory + r * (bytes / rows / experts), cols, NULL);
    free(v);
    return (struct st_weight){.data = *memory,
                              .type = type,
                              .act = fp32 ? ST_ACT_F32 : info->act,
                              .cols = cols,
                              .rows = rows,
                              .row_bytes = bytes / rows / experts,
                              .expert_bytes = bytes / experts};
}

/* F32 weight over the caller's values. */
static inline struct st_weight float_weight(const float *v, uint32_t cols, uint32_t rows)
{
    return (struct st_weight){
        .data = v, .type = ST_TYPE_F32, .cols = cols, .rows = rows, .row_bytes = cols * sizeof *v};
}

struct fixture_run {
    const struct st_kernels *kernels;
    const struct st_command *command;
};

static inline void fixture_worker(void *arg, struct st_worker *w)
{
    const struct fixture_run *r = arg;
    st_command_run(r->kernels, r->command, w);
}

/* Runs one command of an instruction set's table. */
static inline void run_on_team(const char *level, const struct st_command *c, struct st_team *team)
{
    struct strata_error err;
    struct st_kernels k;
    assert_ok(st_kernels_choose(level, &k, &err), &err);
    st_team_run(team, fixture_worker, &(struct fixture_run){&k, c});
}

static inline struct st_team *fixture_team(int threads, size_t scratch)
{
    struct strata_error err;
    struct st_team *team;
    assert_ok(st_team_create(threads, scratch, &team, &err), &err);
    return team;
}

/* Runs one command of the C table on a team of its own. */
static inline void run_command(const struct st_command *c, int threads, size_t scratch)
{
    struct st_team *team = fixture_team(threads, scratch);
    run_on_team("c", c, team);
    st_team_free(team);
}

/* Attention of one head with two elements, for tests of which positions a row attends to. Keys, values and raw index
 * keys that earlier rows would have left are zeros. */
enum { ONE_QUERY_DIM = 2, ONE_QUERY_RATIO = 4 };

struct one_query {
    struct fixture_rows f;
    float q[2 * ONE_QUERY_DIM], k[ONE_QUERY_DIM], v[ONE_QUERY_DIM], iq[ONE_QUERY_DIM], ik[ONE_QUERY_DIM],
        out[ONE_QUERY_DIM];
    float ring[ST_QSA_RING][ONE_QUERY_DIM];
    int32_t axis_ring[ST_QSA_RING][3], count;
    uint32_t *chosen; /* the count allowed positions; count -1: all */
    float *pooled;    /* [context / ONE_QUERY_RATIO][ONE_QUERY_DIM]: index keys of the blocks, for the caller to set */
    float *cache[2];
    uint32_t context, budget;
};

static inline void one_query_new(struct one_query *x, uint32_t context, uint32_t budget)
{
    *x = (struct one_query){.context = context, .budget = budget};
    x->chosen = calloc(budget + ONE_QUERY_RATIO, sizeof *x->chosen);
    x->pooled = calloc((size_t)context / ONE_QUERY_RATIO * ONE_QUERY_DIM, sizeof *x->pooled);
    for (int i = 0; i < 2; i++)
        x->cache[i] = calloc((size_t)context * ONE_QUERY_DIM, sizeof *x->cache[i]);
}

static inline void one_query_free(struct one_query *x)
{
    free(x->chosen);
    free(x->pooled);
    free(x->cache[0]);
    free(x->cache[1]);
}

/* Runs the row at a position; its index query is (1, 0) after the norm up to a factor, which iq then holds. */
static inline void one_query_run(struct one_query *x, int32_t position)
{
    static const float one[ONE_QUERY_DIM] = {1, 1};
    static const struct st_rope rope = {.rot = ONE_QUERY_DIM};
    rows_clear(&x->f);
    rows_span(&x->f, 0, position, 1);
    for (int i = 0; i < ONE_QUERY_DIM; i++) {
        x->q[i] = x->k[i] = x->v[i] = x->ik[i] = 1;
        x->iq[i] = i == 0;
    }
    struct st_command c = {.op = ST_OP_qsa,
                           .u.qsa = {.rows = &x->f.rows,
                                     .rope = &rope,
                                     .q = x->q,
                                     .k = x->k,
                                     .v = x->v,
                                     .iq = x->iq,
                                     .ik = x->ik,
                                     .q_norm = one,
                                     .k_norm = one,
                                     .iq_norm = one,
                                     .ik_norm = one,
                                     .k_cache = (uint8_t *)x->cache[0],
                                     .v_cache = (uint8_t *)x->cache[1],
                                     .raw_ring = x->ring[0],
                                     .axis_ring = x->axis_ring[0],
                                     .pooled = x->pooled,
                                     .kv_bytes = ONE_QUERY_DIM * sizeof(float),
                                     .chosen = x->chosen,
                                     .chosen_count = &x->count,
                                     .out = x->out,
                                     .gated = true,
                                     .kv = ST_KV_F32,
                                     .heads = 1,
                                     .kv_heads = 1,
                                     .head_dim = ONE_QUERY_DIM,
                                     .index_heads = 1,
                                     .index_dim = ONE_QUERY_DIM,
                                     .context = x->context,
                                     .budget = x->budget,
                                     .ratio = ONE_QUERY_RATIO,
                                     .eps = 1e-6f}};
    run_command(&c, 1, st_qsa_scratch_bytes(&c.u.qsa));
}

#endif
