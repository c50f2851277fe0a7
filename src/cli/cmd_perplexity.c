/* strata perplexity: how well a model predicts a text, and how far it is from another run of it (Kullback-Leibler
 * divergence against a saved base).
 *
 * The text's tokens are cut into chunks of --context tokens; each chunk is read from an empty session and the predictions of
 * its second half count, so that every counted token has at least half a chunk before it.
 *
 * A base is a safetensors file: ids [chunks, context] I32 and logprobs [chunks * scored, vocabulary] F32, the natural
 * logarithm of the softmax at each counted position. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/file.h"
#include "base/result.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "engine/engine.h"
#include "format/safetensors.h"

enum { DEFAULT_CHUNK = 512, ROWS = 32 /* positions whose logits are held at once */ };

struct perplexity_args {
    struct st_engine_args engine;
    const char *file, *ids, *base, *save;
    int64_t chunks;
    bool json;
};

struct measure {
    const struct perplexity_args *a;
    struct st_host h;
    int32_t *ids;
    size_t chunk, chunks, first, scored; /* tokens of a chunk, their number, first counted position, counted per chunk */
    uint32_t vocabulary;

    float *logits;  /* [ROWS][vocabulary] */
    float *row;     /* [vocabulary]: log-probabilities of one position */
    struct st_out out; /* of --save-base */
    struct st_safetensors *base;
    const struct st_safetensor *base_logprobs;
    float *base_row;

    /* sums over counted positions */
    size_t count;
    double nll, nll_squares;
    double base_nll;
    float *divergence; /* [chunks * scored] */
    double divergence_sum, divergence_squares;
    size_t same_best;
};

/* logits to log-probabilities; returns the index of the best. */
static size_t log_softmax(const float *logits, size_t n, float *out)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - (double)logits[best]);
    double shift = (double)logits[best] + log(sum);
    for (size_t i = 0; i < n; i++)
        out[i] = (float)((double)logits[i] - shift);
    return best;
}

static void compare_row(struct measure *m, size_t index, size_t best, int32_t next)
{
    size_t n = m->vocabulary, base_best = 0;
    st_safetensor_floats(m->base_logprobs, (uint64_t)index * n, n, m->base_row);
    double divergence = 0;
    for (size_t i = 0; i < n; i++) {
        double p = (double)m->base_row[i];
        divergence += exp(p) * (p - (double)m->row[i]);
        if (m->base_row[i] > m->base_row[base_best])
            base_best = i;
    }
    if (divergence < 0)
        divergence = 0; /* rounding of equal distributions */
    m->divergence[index] = (float)divergence;
    m->divergence_sum += divergence;
    m->divergence_squares += divergence * divergence;
    m->same_best += best == base_best;
    m->base_nll -= (double)m->base_row[next];
}

static enum strata_result count_row(struct measure *m, const float *logits, int32_t next, struct strata_error *err)
{
    size_t best = log_softmax(logits, m->vocabulary, m->row);
    double nll = -(double)m->row[next];
    if (!isfinite(nll))
        return st_fail(err, STRATA_E_MODEL, "perplexity: the logits of position %zu are not finite", m->count);
    if (m->base)
        compare_row(m, m->count, best, next);
    m->nll += nll;
    m->nll_squares += nll * nll;
    m->count++;
    return m->a->save ? st_out_write(&m->out, m->row, m->vocabulary * sizeof *m->row, err) : STRATA_OK;
}

static enum strata_result measure_chunk(struct measure *m, size_t index, struct strata_error *err)
{
    const int32_t *ids = m->ids + index * m->chunk;
    strata_session_reset(m->h.session);
    enum strata_result r = STRATA_OK;
    if (m->first)
        r = strata_session_eval(m->h.session, ids, m->first, false, NULL, err);
    for (size_t at = m->first; !r && at + 1 < m->chunk;) {
        size_t rows = m->chunk - 1 - at < ROWS ? m->chunk - 1 - at : ROWS;
        r = strata_session_eval(m->h.session, ids + at, rows, true, m->logits, err);
        for (size_t i = 0; !r && i < rows; i++)
            r = count_row(m, m->logits + i * m->vocabulary, ids[at + i + 1], err);
        at += rows;
    }
    return r;
}

/* The head of a base file; rows follow one by one. */
static enum strata_result begin_base(struct measure *m, struct strata_error *err)
{
    uint64_t ids_bytes = (uint64_t)m->chunks * m->chunk * sizeof *m->ids, row_bytes;
    if (!st_mul_u64((uint64_t)m->chunks * m->scored, m->vocabulary * sizeof(float), &row_bytes))
        return st_fail(err, STRATA_E_LIMIT, "%s: too large", m->a->save);
    json_t *head = json_pack("{s:{s:s, s:[I, I], s:[I, I]}, s:{s:s, s:[I, I], s:[I, I]}}", "ids", "dtype", "I32", "shape",
                             (json_int_t)m->chunks, (json_int_t)m->chunk, "data_offsets", (json_int_t)0,
                             (json_int_t)ids_bytes, "logprobs", "dtype", "F32", "shape", (json_int_t)(m->chunks * m->scored),
                             (json_int_t)m->vocabulary, "data_offsets", (json_int_t)ids_bytes,
                             (json_int_t)(ids_bytes + row_bytes));
    char *text = head ? json_dumps(head, JSON_COMPACT) : NULL;
    json_decref(head);
    if (!text)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for the header", m->a->save);
    uint64_t size = strlen(text), padded = (size + 7) & ~(uint64_t)7;
    enum strata_result r = st_out_open(m->a->save, &m->out, err);
    if (!r)
        r = st_out_write(&m->out, &padded, sizeof padded, err);
    if (!r)
        r = st_out_write(&m->out, text, size, err);
    if (!r)
        r = st_out_write(&m->out, "        ", padded - size, err);
    if (!r)
        r = st_out_write(&m->out, m->ids, ids_bytes, err);
    free(text);
    return r;
}

static enum strata_result open_base(struct measure *m, struct strata_error *err)
{
    const char *path = m->a->base;
    enum strata_result r = st_safetensors_create(&m->base, err);
    if (!r)
        r = st_safetensors_add(m->base, path, err);
    if (r)
        return r;
    const struct st_safetensor *ids = st_safetensors_find(m->base, "ids");
    m->base_logprobs = st_safetensors_find(m->base, "logprobs");
    if (!ids || !m->base_logprobs || ids->dtype != ST_DTYPE_I32 || m->base_logprobs->dtype != ST_DTYPE_F32)
        return st_fail(err, STRATA_E_ARGUMENT, "%s: not a base of strata perplexity", path);
    size_t bytes = m->chunks * m->chunk * sizeof *m->ids;
    if (ids->bytes != bytes || memcmp(ids->data, m->ids, bytes) != 0)
        return st_fail(err, STRATA_E_ARGUMENT, "%s: made from other tokens or with another --context or --chunks", path);
    if (m->base_logprobs->elements != (uint64_t)m->chunks * m->scored * m->vocabulary)
        return st_fail(err, STRATA_E_ARGUMENT, "%s: made with another vocabulary", path);
    return STRATA_OK;
}

static enum strata_result allocate(struct measure *m, struct strata_error *err)
{
    size_t v = m->vocabulary;
    m->logits = malloc((size_t)ROWS * v * sizeof *m->logits);
    m->row = malloc(v * sizeof *m->row);
    m->base_row = malloc(v * sizeof *m->base_row);
    m->divergence = malloc(m->chunks * m->scored * sizeof *m->divergence);
    if (!m->logits || !m->row || !m->base_row || !m->divergence)
        return st_fail(err, STRATA_E_MEMORY, "perplexity: no memory for %d rows of %zu logits", ROWS, v);
    return STRATA_OK;
}

static double mean_error(double sum, double squares, size_t n)
{
    double mean = sum / (double)n, variance = squares / (double)n - mean * mean;
    return n > 1 && variance > 0 ? sqrt(variance / (double)(n - 1)) : 0;
}

static int ascending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static int print_result(struct measure *m)
{
    double n = (double)m->count, ppl = exp(m->nll / n), error = ppl * mean_error(m->nll, m->nll_squares, m->count);
    json_t *out = json_pack("{s:f, s:f, s:I, s:I, s:I}", "perplexity", ppl, "error", error, "tokens", (json_int_t)m->count,
                            "chunks", (json_int_t)m->chunks, "context", (json_int_t)m->chunk);
    if (!m->a->json)
        printf("perplexity %.4f +/- %.4f over %zu tokens (%zu chunks of %zu)\n", ppl, error, m->count, m->chunks, m->chunk);
    if (m->base) {
        float *d = m->divergence;
        qsort(d, m->count, sizeof *d, ascending);
        double base_ppl = exp(m->base_nll / n), mean = m->divergence_sum / n;
        double mean_err = mean_error(m->divergence_sum, m->divergence_squares, m->count);
        double same = 100.0 * (double)m->same_best / n;
        size_t last = m->count - 1;
        if (m->a->json)
            json_object_set_new(out, "base",
                                json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "perplexity", base_ppl, "kl_mean", mean,
                                          "kl_error", mean_err, "kl_median", (double)d[last / 2], "kl_99",
                                          (double)d[last * 99 / 100], "kl_max", (double)d[last], "same_top_percent", same));
        else
            printf("base       %.4f, ratio %.6f\n"
                   "KL         mean %.6f +/- %.6f, median %.6f, 90 %% %.6f, 99 %% %.6f, max %.6f\n"
                   "same best  %.3f %%\n",
                   base_ppl, ppl / base_ppl, mean, mean_err, (double)d[last / 2], (double)d[last * 9 / 10],
                   (double)d[last * 99 / 100], (double)d[last], same);
    }
    if (m->a->json)
        return st_print_json(out);
    json_decref(out);
    return st_print("", 0) ? ST_EXIT_OK : st_user_error("standard output: write error");
}

static int measure(struct measure *m)
{
    struct strata_error err;
    enum strata_result r = allocate(m, &err);
    if (!r && m->a->base)
        r = open_base(m, &err);
    if (!r && m->a->save)
        r = begin_base(m, &err);
    for (size_t i = 0; !r && i < m->chunks; i++) {
        r = measure_chunk(m, i, &err);
        if (!r)
            fprintf(stderr, "%s[%zu] %.4f%s", i ? " " : "", i + 1, exp(m->nll / (double)m->count),
                    i + 1 == m->chunks ? "\n" : "");
    }
    if (!r && m->a->save)
        r = st_out_commit(&m->out, &err);
    if (m->a->save)
        st_out_abort(&m->out);
    return r ? st_report(&err) : print_result(m);
}

/* Tokens from --ids, or the text of the file. */
static int read_tokens(const struct perplexity_args *a, struct measure *m, size_t *count)
{
    if (a->ids)
        return st_read_ids(a->ids, &m->ids, count);
    char *text;
    size_t size;
    int status = st_read_input(a->file, &text, &size);
    if (status)
        return status;
    status = st_check_utf8(a->file, text, size);
    struct strata_error err;
    if (!status && strata_tokenize(m->h.model, text, size, false, &m->ids, count, &err))
        status = st_report(&err);
    free(text);
    return status;
}

static int perplexity(struct perplexity_args *a)
{
    if (!a->file == !a->ids)
        return st_user_error("perplexity: give one of -f FILE and --ids FILE");
    if (!a->engine.context)
        a->engine.context = DEFAULT_CHUNK;
    if (a->engine.context < 2)
        return st_user_error("perplexity: --context %lld leaves nothing to predict", (long long)a->engine.context);
    struct measure m = {.a = a, .out = {.fd = -1}};
    int status = st_host_open("perplexity", &a->engine, true, &m.h);
    size_t count = 0;
    if (!status)
        status = read_tokens(a, &m, &count);
    if (!status) {
        m.vocabulary = m.h.engine->dims.vocabulary;
        m.chunk = (size_t)a->engine.context;
        m.first = m.chunk / 2;
        m.scored = m.chunk - 1 - m.first;
        m.chunks = count / m.chunk;
        if (a->chunks && (size_t)a->chunks < m.chunks)
            m.chunks = (size_t)a->chunks;
        if (!m.chunks)
            status = st_user_error("perplexity: the text has %zu tokens, less than one chunk of %zu", count, m.chunk);
    }
    for (size_t i = 0; !status && i < m.chunks * m.chunk; i++)
        if ((uint32_t)m.ids[i] >= m.vocabulary)
            status = st_user_error("perplexity: token %d is outside the vocabulary of %u", m.ids[i], m.vocabulary);
    if (!status)
        status = measure(&m);
    st_safetensors_free(m.base);
    free(m.logits);
    free(m.row);
    free(m.base_row);
    free(m.divergence);
    strata_free(m.ids);
    st_host_close(&m.h);
    return status;
}

int st_cmd_perplexity(int argc, char **argv)
{
    struct perplexity_args a = {0};
    struct st_opt options[] = {
        ST_ENGINE_OPTIONS(a.engine),
        ST_TEXT("file", 'f', &a.file, "FILE", "the text, - for standard input"),
        ST_TEXT("ids", 0, &a.ids, "FILE", "the text as token ids (numbers, or a JSON array)"),
        ST_INT("chunks", 0, &a.chunks, 0, 1 << 30, "N", "only the first N chunks (default: all)"),
        ST_TEXT("save-base", 0, &a.save, "FILE", "write all log-probabilities, 4 bytes for each token of the vocabulary and "
                                                 "each counted position"),
        ST_TEXT("base", 0, &a.base, "FILE", "compare with a saved base: KL divergence and how often the best token is the same"),
        ST_FLAG("json", 0, &a.json, "the numbers as a JSON object"),
    };
    struct st_usage usage = {.command = "perplexity",
                             .form = "-m FILE -f FILE [options]",
                             .summary = "Cuts a text into chunks of --context tokens (default: 512), reads each from the start "
                                        "and measures how well the second half is predicted.",
                             .options = options,
                             .count = ST_COUNT(options)};
    int status;
    return st_options_parse(&usage, argc, argv, &status) ? perplexity(&a) : status;
}
