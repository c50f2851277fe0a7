/* strata logits: what the model computes for given tokens, as a safetensors file, for comparisons. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/result.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "engine/engine.h"
#include "format/safetensors.h"

struct logits_args {
    struct st_engine_args engine;
    const char *ids, *out;
    bool layers;
};

static float *floats(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t n;
    if (!st_mul_u64(a, b, &n) || !st_mul_u64(n, c, &n) || !st_mul_u64(n, sizeof(float), &n) || n > SIZE_MAX)
        return NULL;
    return malloc((size_t)n);
}

static enum strata_result save(const char *path, const int32_t *ids, size_t count, const struct st_model_dims *d,
                               const float *logits, const float *residuals, struct strata_error *err)
{
    size_t n = 2 + (residuals ? d->layers : 0);
    struct st_safetensor_out *t = calloc(n, sizeof *t);
    char(*names)[32] = calloc(n, sizeof *names);
    enum strata_result r = STRATA_E_MEMORY;
    if (t && names) {
        t[0] = (struct st_safetensor_out){"ids", ST_DTYPE_I32, 1, {count}, ids};
        t[1] = (struct st_safetensor_out){"logits", ST_DTYPE_F32, 2, {count, d->vocabulary}, logits};
        for (size_t i = 2; i < n; i++) {
            snprintf(names[i], sizeof names[i], "residual.%zu", i - 2);
            t[i] = (struct st_safetensor_out){names[i], ST_DTYPE_F32, 2, {count, d->wide},
                                              residuals + (i - 2) * count * d->wide};
        }
        r = st_safetensors_save(path, t, n, err);
    } else {
        st_fail(err, r, "%s: no memory for the list of tensors", path);
    }
    free(names);
    free(t);
    return r;
}

static int compute(const struct logits_args *a, const struct st_host *h, const int32_t *ids, size_t count)
{
    const struct st_model_dims *d = &h->engine->dims;
    struct strata_error err;
    float *logits = floats(count, d->vocabulary, 1);
    float *residuals = a->layers ? floats(d->layers, count, d->wide) : NULL;
    enum strata_result r = STRATA_OK;
    if (!logits || (a->layers && !residuals))
        r = st_fail(&err, STRATA_E_MEMORY, "logits: no memory for the results of %zu tokens", count);
    struct st_input in = {.ids = ids, .count = count};
    struct st_output out = {.logits = logits, .all_logits = true, .residuals = residuals};
    if (!r)
        r = st_session_eval(h->session, &in, &out, &err);
    if (!r)
        r = save(a->out, ids, count, d, logits, residuals, &err);
    free(logits);
    free(residuals);
    return r ? st_report(&err) : ST_EXIT_OK;
}

int st_cmd_logits(int argc, char **argv)
{
    struct logits_args a = {0};
    struct st_opt options[] = {
        ST_ENGINE_OPTIONS(a.engine),
        ST_TEXT("ids", 0, &a.ids, "FILE", "the tokens: numbers, or a JSON array"),
        ST_TEXT("out", 'o', &a.out, "FILE", "safetensors file to write"),
        ST_FLAG("layers", 0, &a.layers, "also the wide residual after each layer"),
    };
    struct st_usage usage = {.command = "logits",
                             .form = "-m FILE --ids FILE --out FILE [--fp32] [--layers]",
                             .summary = "Computes the raw logits of every position and writes a safetensors file: ids [N] I32, "
                                        "logits [N, vocabulary] F32, and with --layers residual.0, residual.1, ... [N, streams * "
                                        "hidden] F32.",
                             .options = options,
                             .count = ST_COUNT(options)};
    int status;
    if (!st_options_parse(&usage, argc, argv, &status))
        return status;
    if (!a.ids || !a.out)
        return st_user_error("logits: %s is missing", a.ids ? "--out FILE" : "--ids FILE");
    int32_t *ids = NULL;
    size_t count = 0;
    struct st_host h = {0};
    status = st_need_model("logits", a.engine.model);
    if (!status)
        status = st_read_ids(a.ids, &ids, &count);
    if (!status)
        status = st_host_open("logits", &a.engine, true, &h);
    if (!status)
        status = compute(&a, &h, ids, count);
    st_host_close(&h);
    free(ids);
    return status;
}
