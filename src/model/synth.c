/* Random models: values and blocks. A tensor's blocks are drawn from a pool of a few hundred random ones, so that
 * writing runs at the speed of memory whatever the type's encoder costs; rows differ because each of their blocks is
 * drawn anew. A draw depends on its number alone, so workers share a tensor and any number of them gives the same
 * bytes. */
#include "model/synth.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/quant.h"
#include "model/families.h"
#include "model/synth_job.h"

enum { POOL = 512, MAX_BLOCK = 256, CHUNK = 1 << 20, DRAWS_OF_NORMAL = 12, BLOCKS_OF_DRAW = 7 /* nine bits each */ };

static const uint64_t step = 0x9E3779B97F4A7C15u;

/* splitmix64: a counter and a mix, so equal seeds give equal files everywhere. */
static uint64_t draw(uint64_t *state)
{
    uint64_t v = *state += step;
    v = (v ^ v >> 30) * 0xBF58476D1CE4E5B9u;
    v = (v ^ v >> 27) * 0x94D049BB133111EBu;
    return v ^ v >> 31;
}

/* [0, 1) */
static double uniform(uint64_t *state)
{
    return (double)(draw(state) >> 11) * 0x1p-53;
}

/* Sum of twelve uniforms: mean 0, deviation 1, within 6, and no function that libraries round differently. */
static double normal(uint64_t *state)
{
    double sum = -6;
    for (int i = 0; i < DRAWS_OF_NORMAL; i++)
        sum += uniform(state);
    return sum;
}

static uint64_t tensor_seed(const struct st_synth_tensor *t)
{
    uint64_t seed = t->job->options->seed ^ 0x5354524154410000u;
    for (const char *p = t->name; *p; p++)
        seed = (seed ^ (uint8_t)*p) * 0x100000001B3u;
    return seed;
}

/* The 8-bit scale (exponent 4, mantissa 3, no sign) nearest to v. */
static int nearest_ue4m3(float v)
{
    int best = 1;
    double gap = INFINITY;
    for (int b = 1; b < 127; b++) {
        int exponent = b >> 3, mantissa = b & 7;
        double value = exponent ? ldexp(1 + mantissa / 8.0, exponent - 7) : ldexp(mantissa, -9);
        if (fabs(value - (double)v) < gap) {
            gap = fabs(value - (double)v);
            best = b;
        }
    }
    return best;
}

/* The f16 scales of a block of a type that has no encoder, all set to d; the other bytes of these types are codes of
 * which every value is good. */
static void set_scale(int type, uint8_t *block, float d)
{
    uint16_t half = st_f32_to_f16(d);
    switch (type) {
    case ST_TYPE_Q2_K:
        memcpy(block + 80, &half, 2);
        memcpy(block + 82, &half, 2);
        break;
    case ST_TYPE_IQ1_M: /* four bits of the scale in the top of each of the four u16 at 48 */
        for (int i = 0; i < 4; i++)
            block[49 + 2 * i] = (uint8_t)((block[49 + 2 * i] & 15) | (half >> 4 * i & 15) << 4);
        break;
    case ST_TYPE_NVFP4: memset(block, nearest_ue4m3(2 * d), 4); break;
    default: memcpy(block, &half, 2);
    }
}

static float deviation(const struct st_type_info *info, const uint8_t *blocks, size_t n)
{
    float v[MAX_BLOCK];
    double sum = 0;
    for (size_t b = 0; b < n; b++) {
        info->decode(blocks + b * info->block_bytes, v, info->block_elems);
        for (uint32_t i = 0; i < info->block_elems; i++)
            sum += (double)v[i] * (double)v[i];
    }
    return (float)sqrt(sum / (double)(n * info->block_elems));
}

/* A matrix on its way into the file. */
struct matrix {
    const struct st_synth_tensor *t;
    const struct st_type_info *info;
    const struct st_out *out;
    uint64_t at;                /* where the data begins */
    uint64_t pool_state, state; /* before the first draw of the pool, and of the chunks */
    uint64_t blocks;
    uint8_t *pool;
    _Atomic uint64_t next; /* chunk that nobody has claimed */
    _Atomic int failed;    /* enum strata_result of the first worker that failed */
    struct strata_error why;
};

/* This worker's part of POOL random blocks whose values have the deviation spread. */
static void encode_pool(void *arg, struct st_worker *w)
{
    struct matrix *m = arg;
    const struct st_type_info *info = m->info;
    float v[MAX_BLOCK];
    size_t from, to;
    st_share(w, POOL, 1, &from, &to);
    uint64_t state = m->pool_state + step * DRAWS_OF_NORMAL * info->block_elems * from;
    for (size_t b = from; b < to; b++) {
        for (uint32_t i = 0; i < info->block_elems; i++)
            v[i] = (float)(normal(&state) * (double)m->t->spread);
        info->encode(v, m->pool + b * info->block_bytes, info->block_elems, NULL);
    }
}

/* The same for a type without an encoder. */
static void draw_pool(struct matrix *m)
{
    const struct st_type_info *info = m->info;
    uint64_t state = m->pool_state;
    for (size_t i = 0; i < POOL * info->block_bytes; i++)
        m->pool[i] = (uint8_t)draw(&state);
    for (size_t b = 0; b < POOL; b++)
        set_scale(info->id, m->pool + b * info->block_bytes, 1);
    float d = m->t->spread / deviation(info, m->pool, POOL);
    for (size_t b = 0; b < POOL; b++)
        set_scale(info->id, m->pool + b * info->block_bytes, d);
}

/* Chunks of about a MiB, claimed one after the other: made in the worker's memory, then written where they belong. */
static void write_chunks(void *arg, struct st_worker *w)
{
    struct matrix *m = arg;
    const struct st_type_info *info = m->info;
    uint8_t *chunk = w->scratch;
    uint64_t per_chunk = CHUNK / info->block_bytes, draws = (per_chunk + BLOCKS_OF_DRAW - 1) / BLOCKS_OF_DRAW;
    for (;;) {
        uint64_t k = atomic_fetch_add(&m->next, 1), first = k * per_chunk, state = m->state + step * draws * k,
                 bits = 0;
        if (first >= m->blocks || atomic_load(&m->failed))
            return;
        size_t n = (size_t)(m->blocks - first < per_chunk ? m->blocks - first : per_chunk);
        for (size_t i = 0; i < n; i++) {
            if (i % BLOCKS_OF_DRAW == 0)
                bits = draw(&state);
            memcpy(chunk + i * info->block_bytes, m->pool + (bits % POOL) * info->block_bytes, info->block_bytes);
            bits /= POOL;
        }
        struct strata_error err;
        int none = 0;
        enum strata_result r =
            st_out_write_at(m->out, m->at + first * info->block_bytes, chunk, n * info->block_bytes, &err);
        if (r && atomic_compare_exchange_strong(&m->failed, &none, (int)r))
            m->why = err;
    }
}

static enum strata_result write_matrix(const struct st_synth_tensor *t, struct st_out *out, struct strata_error *err)
{
    struct matrix m = {.t = t, .info = st_type_info((int)t->type), .out = out, .pool_state = tensor_seed(t)};
    const struct st_type_info *info = m.info;
    m.blocks = t->ne[0] / info->block_elems * t->ne[1] * t->ne[2] * t->ne[3];
    m.state =
        m.pool_state + step * POOL * (info->encode ? (uint64_t)DRAWS_OF_NORMAL * info->block_elems : info->block_bytes);
    m.pool = malloc((size_t)POOL * info->block_bytes);
    enum strata_result r = m.pool ? STRATA_OK : st_fail(err, STRATA_E_MEMORY, "%s: no memory", t->name);
    if (!r)
        r = st_out_set_aside(out, m.blocks * info->block_bytes, &m.at, err);
    if (!r) {
        if (info->encode)
            st_team_run(t->job->team, encode_pool, &m);
        else
            draw_pool(&m);
        st_team_run(t->job->team, write_chunks, &m);
        r = (enum strata_result)atomic_load(&m.failed);
        if (r)
            *err = m.why;
    }
    free(m.pool);
    return r;
}

static enum strata_result write_values(const struct st_synth_tensor *t, struct st_out *out, struct strata_error *err)
{
    uint64_t state = tensor_seed(t), n = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    enum strata_result r = STRATA_OK;
    for (uint64_t i = 0; i < n && !r; i++) {
        double v = t->kind == ST_SYNTH_GAMMA   ? 1 + normal(&state) / 10
                   : t->kind == ST_SYNTH_DECAY ? -exp(4 * uniform(&state) - 3)
                                               : 4 * uniform(&state) - 4;
        float f = (float)v;
        r = st_out_write(out, &f, sizeof f, err);
    }
    return r;
}

static enum strata_result write_tensor(void *user, struct st_out *out, struct strata_error *err)
{
    const struct st_synth_tensor *t = user;
    const struct st_synth_options *o = t->job->options;
    if (o->progress)
        o->progress(o->user, t->name, t->job->done, t->job->n_tensors);
    t->job->done++;
    return t->kind == ST_SYNTH_MATRIX ? write_matrix(t, out, err) : write_values(t, out, err);
}

enum strata_result st_synth_add(struct st_synth_job *job, const char *name, uint32_t type, uint32_t n_dims,
                                const uint64_t *ne, enum st_synth_kind kind, float spread, struct strata_error *err)
{
    if (job->n_tensors == job->capacity) {
        size_t n = job->capacity ? job->capacity * 2 : 256;
        struct st_synth_tensor **all = realloc(job->tensors, n * sizeof *all);
        if (!all)
            return st_fail(err, STRATA_E_MEMORY, "tensor %s: no memory", name);
        job->tensors = all;
        job->capacity = n;
    }
    struct st_synth_tensor *t = calloc(1, sizeof *t);
    if (!t)
        return st_fail(err, STRATA_E_MEMORY, "tensor %s: no memory", name);
    job->tensors[job->n_tensors++] = t;
    snprintf(t->name, sizeof t->name, "%s", name);
    t->type = type;
    t->n_dims = n_dims;
    t->kind = kind;
    t->spread = spread;
    t->job = job;
    for (uint32_t i = 0; i < ST_GGUF_DIMS; i++)
        t->ne[i] = i < n_dims ? ne[i] : 1;
    bool hole = kind == ST_SYNTH_HOLE || job->options->header_only;
    st_gguf_add_tensor(job->writer, name, type, n_dims, ne, hole ? NULL : write_tensor, t);
    return STRATA_OK;
}

/* One byte in the byte-level alphabet: printable ones stand for themselves, the others follow from U+0100 on. */
static struct st_bytes byte_token(int byte, int *next, char *memory)
{
    bool own = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    int c = own ? byte : 256 + (*next)++;
    if (c < 128) {
        memory[0] = (char)c;
        return (struct st_bytes){memory, 1};
    }
    memory[0] = (char)(0xC0 | c >> 6);
    memory[1] = (char)(0x80 | (c & 63));
    return (struct st_bytes){memory, 2};
}

enum strata_result st_synth_tokenizer(struct st_gguf_writer *w, uint64_t count, uint32_t end_of_text,
                                      struct strata_error *err)
{
    enum { TEXT = 16 };
    static const char *const special[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    struct st_bytes *tokens = calloc(count, sizeof *tokens);
    int32_t *types = calloc(count, sizeof *types);
    char *memory = malloc(count * TEXT);
    enum strata_result r = STRATA_OK;
    int next = 0;
    if (!tokens || !types || !memory)
        r = st_fail(err, STRATA_E_MEMORY, "no memory for a vocabulary of %llu", (unsigned long long)count);
    for (uint64_t i = 0; i < count && !r; i++) {
        char *text = memory + i * TEXT;
        if (i < 256) {
            tokens[i] = byte_token((int)i, &next, text);
            types[i] = 1;
        } else if (i >= end_of_text && i < end_of_text + 3) {
            tokens[i] = (struct st_bytes){special[i - end_of_text], strlen(special[i - end_of_text])};
            types[i] = 3;
        } else {
            tokens[i] = (struct st_bytes){text, (size_t)snprintf(text, TEXT, "[PAD%llu]", (unsigned long long)i)};
            types[i] = 5;
        }
    }
    if (!r) {
        st_gguf_set_string(w, "tokenizer.ggml.model", "gpt2", 4);
        st_gguf_set_string(w, "tokenizer.ggml.pre", "qwen35", 6);
        st_gguf_set_strings(w, "tokenizer.ggml.tokens", tokens, count);
        st_gguf_set_array(w, "tokenizer.ggml.token_type", ST_GGUF_I32, types, count);
        st_gguf_set_strings(w, "tokenizer.ggml.merges", NULL, 0);
        st_gguf_set_u32(w, "tokenizer.ggml.bos_token_id", end_of_text);
        st_gguf_set_u32(w, "tokenizer.ggml.eos_token_id", end_of_text + 2);
        st_gguf_set_u32(w, "tokenizer.ggml.padding_token_id", end_of_text);
        st_gguf_set_bool(w, "tokenizer.ggml.add_bos_token", false);
    }
    free(tokens);
    free(types);
    free(memory);
    return r;
}

enum strata_result st_synth(const struct st_synth_options *options, struct st_synth_report *report,
                            struct strata_error *err)
{
    const struct st_synth_family *family = &st_qwen4exp_synth;
    struct st_synth_job job = {.options = options};
    enum strata_result r = st_team_create(options->threads ? options->threads : st_cpu_cores(), CHUNK, &job.team, err);
    if (!r)
        r = st_gguf_writer_create(&job.writer, err);
    if (!r)
        r = family->plan(&job, err);
    if (!r)
        r = st_gguf_writer_save(job.writer, options->out, err);
    if (!r)
        *report = (struct st_synth_report){family->name, job.n_tensors, st_gguf_writer_size(job.writer)};
    for (size_t i = 0; i < job.n_tensors; i++)
        free(job.tensors[i]);
    free(job.tensors);
    st_gguf_writer_free(job.writer);
    st_team_free(job.team);
    return r;
}
