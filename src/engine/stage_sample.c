/* Sampling on a device: behind a window's launches, the rows' logits become tokens where they lie, and the host gets 16 bytes for
 * a row instead of the logits. Blocks, picks and what the kernels work in lie in the scratch, which no command uses any more
 * then. */
#include <stdio.h>

#include "engine/profile.h"
#include "engine/stage_device.h"

enum { SAMPLE_ROWS = ST_GPU_WINDOW };

static bool has_kernels(const struct st_stage *s)
{
    return s->dims.vocabulary <= ST_GPU_SAMPLE_VOCABULARY;
}

static bool samples(const struct st_stage *s)
{
    return s->end == s->dims.layers && has_kernels(s);
}

static uint64_t picks_bytes(void)
{
    return SAMPLE_ROWS * sizeof(struct st_sample_pick);
}

/* What is told about the rows of a window, in the scratch and on the host; picks follow. */
static uint64_t block_bytes(const struct st_stage *s)
{
    return (st_gpu_sample_block(SAMPLE_ROWS, s->dims.vocabulary) + 15) / 16 * 16;
}

uint64_t st_device_sample_locked(const struct st_stage *s)
{
    return samples(s) ? block_bytes(s) + picks_bytes() : 0;
}

uint64_t st_device_sample_scratch(const struct st_stage *s)
{
    return samples(s) ? block_bytes(s) + picks_bytes() + st_gpu_sample_scratch(SAMPLE_ROWS, s->dims.vocabulary) : 0;
}

enum strata_result st_device_sample_needs(const struct st_stage *s, bool *needed, struct strata_error *err)
{
    struct st_gpu_list list = {0};
    const struct st_gpu_sample a = {.n = 1, .vocabulary = s->dims.vocabulary, .steps = {true, true, true}};
    enum strata_result r = has_kernels(s) ? st_gpu_sample(&a, &list, err) : STRATA_OK;
    if (!r && list.failed)
        r = st_fail(err, STRATA_E_MEMORY, "no memory for a list of launches");
    for (size_t i = 0; i < list.count && !r; i++)
        needed[list.launch[i].kernel] = true;
    st_gpu_list_free(&list);
    return r;
}

static enum strata_result launch(struct device_stage *d, uint32_t rows, struct strata_error *err)
{
    if (d->list.failed)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for a list of launches", d->base.name);
    char shape[64];
    snprintf(shape, sizeof shape, "sampling of %u rows", rows);
    enum strata_result r = STRATA_OK;
    for (size_t i = 0; i < d->list.count && !r; i++) {
        const struct st_gpu_launch *l = &d->list.launch[i];
        r = st_launch(d->dev, d->dev->compute, l->kernel, l->grid[0], l->grid[1], l->grid[2], l->args, shape, err);
        if (!r && d->base.profile)
            r = st_profile_mark(d->base.profile, "sample", st_gpu_kernels[l->kernel].name, -1, err);
    }
    return r;
}

enum strata_result st_device_sample(struct device_stage *d, const struct st_program *p, const struct st_pass *pass, bool *done,
                                    struct strata_error *err)
{
    const struct st_runtime *t = st_device_table(d);
    const struct st_stage *s = &d->base;
    const uint32_t n = (uint32_t)pass->rows->n_out;
    const uint64_t bytes = block_bytes(s);
    struct st_gpu_sample a = {.picks = d->target.scratch + bytes,
                              .logits = st_gpu_at(p->logits),
                              .block = d->target.scratch,
                              .scratch = d->target.scratch + bytes + picks_bytes(),
                              .n = n,
                              .vocabulary = s->dims.vocabulary};
    uint64_t used;
    *done = samples(s) && n <= SAMPLE_ROWS &&
            st_gpu_sample_pack(pass->sample, n, a.vocabulary, d->sample_block, bytes, &used, &a.steps);
    if (!*done)
        return STRATA_OK;
    d->list.count = 0;
    enum strata_result r = t->copy_in(d->dev->compute, a.block, d->sample_block, used, err);
    if (!r)
        r = st_gpu_sample(&a, &d->list, err);
    if (!r)
        r = launch(d, n, err);
    if (!r)
        r = t->copy_out(d->dev->compute, d->sample_block + bytes, a.picks, n * sizeof(struct st_sample_pick), err);
    d->base.picks = (const struct st_sample_pick *)(const void *)(d->sample_block + bytes);
    return r;
}
