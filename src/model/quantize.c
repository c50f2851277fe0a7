/* Rewriting a GGUF file with other tensor types: rows are decoded and encoded by a team, a few thousand rows at a time. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/quantize.h"

#include <math.h>
#include <pcre2.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/team.h"
#include "format/gguf_write.h"
#include "format/quant.h"

enum { BATCH_BYTES = 16 << 20 };

struct job {
    const struct st_quantize_options *options;
    struct st_team *team;
    const struct st_gguf *in;
    pcre2_code **patterns;
    uint8_t *batch; /* encoded rows */
    double *errors, *squares; /* per row of a batch: sums of squared changes and of squares */
    size_t batch_rows;
};

struct tensor {
    struct job *job;
    const struct st_gguf_tensor *t;
    const struct st_type_info *from, *to;
    uint64_t first; /* row of the batch */
    size_t rows;
    _Atomic bool not_finite;
};

/* Rows of a batch that this worker has; scratch holds one decoded and one re-decoded row. */
static void encode_rows(void *arg, struct st_worker *w)
{
    struct tensor *q = arg;
    size_t n = (size_t)q->t->ne[0], a, b;
    size_t in_bytes = n / q->from->block_elems * q->from->block_bytes;
    size_t out_bytes = n / q->to->block_elems * q->to->block_bytes;
    float *x = w->scratch, *y = x + n;
    st_share(w, q->rows, 1, &a, &b);
    for (size_t row = a; row < b; row++) {
        q->from->decode(q->t->data + (q->first + row) * in_bytes, x, n);
        double square = 0, error = 0;
        for (size_t i = 0; i < n; i++)
            square += (double)x[i] * (double)x[i];
        if (!isfinite(square)) {
            atomic_store(&q->not_finite, true);
            continue;
        }
        uint8_t *out = q->job->batch + row * out_bytes;
        q->to->encode(x, out, n, NULL);
        q->to->decode(out, y, n);
        for (size_t i = 0; i < n; i++)
            error += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
        q->job->errors[row] = error;
        q->job->squares[row] = square;
    }
}

static enum strata_result write_tensor(void *user, struct st_out *out, struct strata_error *err)
{
    struct tensor *q = user;
    struct job *j = q->job;
    uint64_t rows = st_gguf_elements(q->t) / q->t->ne[0];
    size_t out_bytes = (size_t)(q->t->ne[0] / q->to->block_elems * q->to->block_bytes);
    double error = 0, square = 0;
    if (q->from == q->to) {
        enum strata_result r = st_out_write(out, q->t->data, (size_t)q->t->bytes, err);
        if (!r && j->options->progress)
            j->options->progress(j->options->user, q->t->name, q->from->id, q->to->id, 0, 0);
        return r;
    }
    for (q->first = 0; q->first < rows; q->first += q->rows) {
        q->rows = BATCH_BYTES / out_bytes < j->batch_rows ? BATCH_BYTES / out_bytes : j->batch_rows;
        if (!q->rows)
            q->rows = 1;
        if (q->rows > rows - q->first)
            q->rows = (size_t)(rows - q->first);
        st_team_run(j->team, encode_rows, q);
        if (atomic_load(&q->not_finite))
            return st_fail(err, STRATA_E_MODEL, "%s: holds a value that is not finite", j->in->path);
        for (size_t i = 0; i < q->rows; i++) {
            error += j->errors[i];
            square += j->squares[i];
        }
        enum strata_result r = st_out_write(out, j->batch, q->rows * out_bytes, err);
        if (r)
            return r;
    }
    double n = (double)st_gguf_elements(q->t);
    if (j->options->progress)
        j->options->progress(j->options->user, q->t->name, q->from->id, q->to->id, sqrt(error / n), sqrt(square / n));
    return STRATA_OK;
}

static double bits(const struct st_type_info *info)
{
    return 8.0 * info->block_bytes / info->block_elems;
}

/* wanted, or for rows of n elements that it does not divide the first with no fewer bits of the types with short blocks. */
static const struct st_type_info *fitting(const struct st_type_info *wanted, uint64_t n)
{
    static const int short_blocks[] = {ST_TYPE_Q2_0, ST_TYPE_IQ4_NL, ST_TYPE_Q5_1, ST_TYPE_Q8_0};
    if (n % wanted->block_elems == 0)
        return wanted;
    for (size_t i = 0; i < sizeof short_blocks / sizeof short_blocks[0]; i++) {
        const struct st_type_info *info = st_type_info(short_blocks[i]);
        if (n % info->block_elems == 0 && bits(info) >= bits(wanted))
            return info;
    }
    return st_type_info(ST_TYPE_BF16);
}

static bool stays(const struct st_gguf_tensor *t)
{
    return t->ne[1] * t->ne[2] * t->ne[3] == 1 || strstr(t->name, "ffn_gate_inp") || strstr(t->name, "conv1d");
}

static const struct st_type_info *choose(const struct job *j, const struct st_gguf_tensor *t, pcre2_match_data *match)
{
    for (size_t i = 0; i < j->options->n_rules; i++)
        if (pcre2_match(j->patterns[i], (PCRE2_SPTR)t->name, strlen(t->name), 0, 0, match, NULL) >= 0)
            return fitting(st_type_info(j->options->rules[i].type), t->ne[0]);
    return stays(t) ? st_type_info((int)t->type) : fitting(st_type_info(j->options->type), t->ne[0]);
}

static enum strata_result compile_rules(struct job *j, struct strata_error *err)
{
    const struct st_quantize_options *o = j->options;
    j->patterns = calloc(o->n_rules + 1, sizeof(pcre2_code *));
    if (!j->patterns)
        return st_fail(err, STRATA_E_MEMORY, "no memory for %zu rules", o->n_rules);
    for (size_t i = 0; i < o->n_rules; i++) {
        int code;
        PCRE2_SIZE at;
        j->patterns[i] = pcre2_compile((PCRE2_SPTR)o->rules[i].pattern, PCRE2_ZERO_TERMINATED, 0, &code, &at, NULL);
        if (!j->patterns[i]) {
            char why[120] = "";
            pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
            return st_fail(err, STRATA_E_ARGUMENT, "pattern %s: at offset %zu: %s", o->rules[i].pattern, (size_t)at, why);
        }
    }
    return STRATA_OK;
}

static enum strata_result check_types(const struct st_quantize_options *o, struct strata_error *err)
{
    for (size_t i = 0; i <= o->n_rules; i++) {
        int id = i ? o->rules[i - 1].type : o->type;
        const struct st_type_info *info = st_type_info(id);
        if (!info || !info->encode)
            return st_fail(err, STRATA_E_ARGUMENT, "type %s cannot be written", info ? info->name : "unknown");
    }
    return STRATA_OK;
}

/* The output would take the place of a file that is being read. */
static bool is_source(const struct st_gguf *in, const char *out)
{
    struct stat a, b;
    for (size_t i = 0; i < in->n_shards; i++)
        if (!stat(out, &a) && !fstat(in->shards[i].map.fd, &b) && a.st_dev == b.st_dev && a.st_ino == b.st_ino)
            return true;
    return false;
}

static bool is_split_key(const char *name)
{
    return !strncmp(name, "split.", 6) || !strcmp(name, "general.alignment") || !strcmp(name, "general.file_type");
}

static enum strata_result plan_and_save(struct job *j, struct tensor *all, struct st_gguf_writer *w, struct strata_error *err)
{
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    if (!match)
        return st_fail(err, STRATA_E_MEMORY, "no memory to match names");
    for (size_t i = 0; i < j->in->n_keys; i++)
        if (!is_split_key(j->in->keys[i].name))
            st_gguf_set_copy(w, &j->in->keys[i]);
    for (size_t i = 0; i < j->in->n_tensors; i++) {
        const struct st_gguf_tensor *t = &j->in->tensors[i];
        all[i].job = j;
        all[i].t = t;
        all[i].from = st_type_info((int)t->type);
        all[i].to = choose(j, t, match);
        st_gguf_add_tensor(w, t->name, (uint32_t)all[i].to->id, t->n_dims, t->ne, write_tensor, &all[i]);
    }
    pcre2_match_data_free(match);
    return st_gguf_writer_save(w, j->options->out, err);
}

/* Memory for the longest rows, decoded twice per worker, and for a batch of encoded ones. */
static enum strata_result prepare(struct job *j, struct strata_error *err)
{
    uint64_t longest = 1;
    for (size_t i = 0; i < j->in->n_tensors; i++)
        if (j->in->tensors[i].ne[0] > longest)
            longest = j->in->tensors[i].ne[0];
    j->batch_rows = 1 << 14;
    uint64_t row = longest * sizeof(float);
    j->batch = malloc(row > BATCH_BYTES ? row : BATCH_BYTES);
    j->errors = malloc(j->batch_rows * sizeof *j->errors);
    j->squares = malloc(j->batch_rows * sizeof *j->squares);
    if (!j->batch || !j->errors || !j->squares)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for rows of %llu elements", j->in->path,
                       (unsigned long long)longest);
    return st_team_create(j->options->threads, (size_t)(2 * row), &j->team, err);
}

enum strata_result st_quantize(const struct st_quantize_options *options, struct strata_error *err)
{
    struct job j = {.options = options};
    struct st_gguf *in = NULL;
    struct st_gguf_writer *w = NULL;
    struct tensor *all = NULL;
    enum strata_result r = check_types(options, err);
    if (!r)
        r = compile_rules(&j, err);
    if (!r)
        r = st_gguf_open(options->in, &in, err);
    j.in = in;
    if (!r && is_source(in, options->out))
        r = st_fail(err, STRATA_E_ARGUMENT, "%s: that is the source; give the output another name", options->out);
    if (!r)
        r = prepare(&j, err);
    if (!r)
        r = st_gguf_writer_create(&w, err);
    if (!r && !(all = calloc(in->n_tensors + 1, sizeof *all)))
        r = st_fail(err, STRATA_E_MEMORY, "%s: no memory for %zu tensors", in->path, in->n_tensors);
    if (!r)
        r = plan_and_save(&j, all, w, err);
    free(all);
    st_gguf_writer_free(w);
    st_team_free(j.team);
    free(j.batch);
    free(j.errors);
    free(j.squares);
    for (size_t i = 0; j.patterns && i < options->n_rules; i++)
        pcre2_code_free(j.patterns[i]);
    free(j.patterns);
    st_gguf_close(in);
    return r;
}
