/* Parity of whole commands: what a command's launches leave in device memory against the C table on host copies of the same
 * buffers. */
#include "runtime/selftest_job.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/quant.h"
#include "kernel/gpu_norm.h"

const char *const st_job_mode_names[] = {"", ", held", ", committed"};

void *st_job_at(const struct st_job *j, int buffer)
{
    const struct st_test_buffer *b = &j->run->buffer[buffer];
    return j->on_device ? (void *)(uintptr_t)b->device : b->want;
}

void *st_job_input(const struct st_job *j, int buffer)
{
    return j->run->buffer[buffer].input;
}

int st_job_take(struct st_job *j, size_t bytes, enum st_job_kind kind, float bound)
{
    uint8_t *memory;
    int i = j->run->buffers;
    if (j->r == STRATA_OK)
        j->r = st_test_add(j->run, bytes ? bytes : 16, &memory, j->err);
    j->kind[i] = kind;
    j->bound[i] = bound;
    return i;
}

int st_job_take_floats(struct st_job *j, size_t n, enum st_job_kind kind, float bound)
{
    int i = st_job_take(j, n * sizeof(float), kind, bound);
    if (j->r == STRATA_OK)
        st_test_floats(j->run, st_job_input(j, i), n);
    return i;
}

int st_job_floats(struct st_job *j, size_t n)
{
    return st_job_take_floats(j, n, ST_JOB_EXACT, 0);
}

void st_job_start(struct st_job *j, struct st_test_run *run, struct strata_error *err)
{
    *j = (struct st_job){.run = run, .err = err, .commands = 1};
}

void st_job_make_rows(struct st_job *j, uint32_t n, uint32_t spans, uint32_t late)
{
    struct st_test_run *run = j->run;
    j->slots = spans + 1;
    j->context = late + n;
    j->slot = st_job_take(j, n * 4, ST_JOB_EXACT, 0);
    j->pos = st_job_take(j, n * 4, ST_JOB_EXACT, 0);
    j->axis = st_job_take(j, n * 12, ST_JOB_EXACT, 0);
    j->span = st_job_take(j, (n + 1) * 4, ST_JOB_EXACT, 0);
    j->out = st_job_take(j, n * 4, ST_JOB_EXACT, 0);
    j->rows.n = (int32_t)n;
    j->rows.n_spans = (int32_t)spans;
    if (j->r != STRATA_OK)
        return;
    int32_t *slot = st_job_input(j, j->slot), *pos = st_job_input(j, j->pos), *axis = st_job_input(j, j->axis);
    int32_t *span = st_job_input(j, j->span);
    uint32_t shift = st_test_below(run, j->slots), row = 0;
    for (uint32_t s = 0; s < spans; s++) {
        uint32_t left = n - row - (spans - 1 - s), count = s == spans - 1 ? left : 1 + st_test_below(run, left);
        uint32_t from = late && st_test_below(run, 4) ? st_test_below(run, late) : 0;
        span[s] = (int32_t)row;
        for (uint32_t i = 0; i < count; i++, row++) {
            slot[row] = (int32_t)((s + shift) % j->slots);
            pos[row] = (int32_t)(from + i);
            for (int k = 0; k < 3; k++)
                axis[3 * row + (uint32_t)k] = pos[row] + k;
        }
    }
    for (uint32_t s = spans; s <= n; s++)
        span[s] = (int32_t)n;
    int32_t *out = st_job_input(j, j->out);
    for (uint32_t i = 0; i < n; i++)
        if (st_test_below(run, 3) || i == n - 1)
            out[j->rows.n_out++] = (int32_t)i;
}

const struct st_rows *st_job_rows(struct st_job *j)
{
    j->rows.slot = st_job_at(j, j->slot);
    j->rows.pos = st_job_at(j, j->pos);
    j->rows.axis = st_job_at(j, j->axis);
    j->rows.span = st_job_at(j, j->span);
    j->rows.out = st_job_at(j, j->out);
    return &j->rows;
}

void st_job_check_close(struct st_job *j, int buffer)
{
    const struct st_test_buffer *b = &j->run->buffer[buffer];
    const float *got = (const float *)(const void *)(b->got + ST_TEST_GUARD), *want = (const float *)(const void *)b->want;
    size_t n = b->size / 4;
    double square = 0;
    for (size_t i = 0; i < n; i++)
        square += (double)want[i] * (double)want[i];
    double rms = sqrt(square / (double)n);
    for (size_t i = 0; i < n && !j->run->fault[0]; i++)
        if (!(fabs((double)got[i] - (double)want[i]) <= (double)j->bound[buffer] * (fabs((double)want[i]) + rms)))
            snprintf(j->run->fault, sizeof j->run->fault, "buffer %d: element %zu of %zu is %g, expected %g (root mean square %g)",
                     buffer, i, n, (double)got[i], (double)want[i], rms);
}

static enum strata_result run_in_c(struct st_job *j, st_job_build_fn build, const void *family, size_t scratch)
{
    struct st_kernels table;
    struct st_command command[ST_JOB_COMMANDS];
    for (int i = 0; i < j->run->buffers; i++)
        memcpy(j->run->buffer[i].want, j->run->buffer[i].input, j->run->buffer[i].size);
    struct st_worker alone = {.count = 1, .scratch_size = scratch};
    enum strata_result r = st_kernels_choose("c", &table, j->err);
    if (r == STRATA_OK && scratch) {
        alone.scratch = aligned_alloc(64, (scratch + 63) / 64 * 64);
        if (!alone.scratch)
            r = st_fail(j->err, STRATA_E_MEMORY, "self-test: no memory for %zu bytes", scratch);
    }
    if (r == STRATA_OK) {
        j->on_device = false;
        build(j, family, command);
        for (int i = 0; i < j->commands; i++)
            if (i == 0 && j->reference)
                j->reference(&table, &command[i], &alone);
            else
                st_command_run(&table, &command[i], &alone);
    }
    free(alone.scratch);
    return r;
}

static enum strata_result run_launches(struct st_job *j, st_job_build_fn build, const void *family, int scratch)
{
    struct st_test_run *run = j->run;
    struct st_command command[ST_JOB_COMMANDS];
    struct st_gpu_list list = {.end = command + j->commands};
    j->on_device = true;
    build(j, family, command);
    struct st_gpu_target target = st_gpu_target_of(&run->dev->info);
    target.scratch = run->buffer[scratch].device;
    target.scratch_bytes = run->buffer[scratch].size;
    enum strata_result r = st_test_put(run, j->err);
    for (int i = 0; i < j->commands && r == STRATA_OK; i++)
        r = st_gpu_lower(&command[i], &target, &list, j->err);
    if (r == STRATA_OK && list.failed)
        r = st_fail(j->err, STRATA_E_MEMORY, "self-test: no memory for launches");
    for (size_t i = 0; i < list.count && r == STRATA_OK; i++) {
        const struct st_gpu_launch *l = &list.launch[i];
        r = st_launch(run->dev, run->dev->compute, l->kernel, l->grid[0], l->grid[1], l->grid[2], l->args, run->shape, j->err);
    }
    st_gpu_list_free(&list);
    return r == STRATA_OK ? st_test_get(run, j->err) : r;
}

enum strata_result st_job_finish(struct st_job *j, st_job_build_fn build, const void *family, st_job_check_fn check,
                                 size_t c_scratch)
{
    struct st_test_run *run = j->run;
    if (j->r == STRATA_OK) {
        struct st_command command[ST_JOB_COMMANDS];
        uint64_t bytes = 0;
        j->on_device = true;
        build(j, family, command);
        const struct st_gpu_target target = st_gpu_target_of(&run->dev->info);
        for (int i = 0; i < j->commands; i++) {
            uint64_t own = st_gpu_scratch(&command[i], (uint32_t)j->rows.n, &target);
            bytes = own > bytes ? own : bytes;
        }
        int scratch = st_job_take(j, bytes, ST_JOB_FREE, 0);
        if (j->r == STRATA_OK)
            j->r = run_in_c(j, build, family, c_scratch);
        if (j->r == STRATA_OK)
            j->r = run_launches(j, build, family, scratch);
    }
    if (j->r == STRATA_OK) {
        for (int i = 0; i < run->buffers; i++)
            if (!st_test_guards(run, i)) {
                if (j->kind[i] == ST_JOB_EXACT)
                    st_test_exact(run, i);
                else if (j->kind[i] == ST_JOB_CLOSE)
                    st_job_check_close(j, i);
            }
        if (check && !run->fault[0])
            check(j, family);
        st_test_report(run);
    }
    st_test_drop(run);
    return j->r;
}

int st_job_take_weights(struct st_job *j, struct st_weight *w, int type, uint32_t rows, uint32_t cols)
{
    const struct st_type_info *info = st_type_info(type);
    size_t row_bytes = (size_t)cols / info->block_elems * info->block_bytes;
    *w = (struct st_weight){.type = type, .act = info->act, .cols = cols, .rows = rows, .row_bytes = row_bytes};
    int i = st_job_take(j, rows * row_bytes, ST_JOB_EXACT, 0);
    if (j->r != STRATA_OK)
        return i;
    uint8_t *to = st_job_input(j, i);
    if (type == ST_TYPE_F32) {
        st_test_floats(j->run, (float *)(void *)to, (size_t)rows * cols);
        for (size_t k = 0; k < (size_t)rows * cols; k++)
            ((float *)(void *)to)[k] *= 1.0f / sqrtf((float)cols);
        return i;
    }
    /* Q8_0: the scale comes first; Q6_K: last, after scales up to 127 of codes up to 32 */
    const bool large = type == ST_TYPE_Q6_K;
    const uint16_t d = st_f32_to_f16(1.0f / ((large ? 1024.0f : 64.0f) * sqrtf((float)cols)));
    for (size_t k = 0; k < rows * row_bytes; k++)
        to[k] = (uint8_t)(st_test_random(j->run) >> 40);
    for (size_t k = 0; k < rows * row_bytes; k += info->block_bytes)
        memcpy(to + k + (large ? info->block_bytes - 2 : 0), &d, 2);
    return i;
}

size_t st_job_act_bytes(enum st_act act, size_t n)
{
    size_t gpu = st_gpu_act_stride(act, (uint32_t)n), cpu = st_act_bytes(act, n);
    return gpu > cpu ? gpu : cpu;
}

void st_job_take_after(struct st_job *j, struct st_job_after *a, uint32_t cols)
{
    uint32_t padded = (cols + 255) / 256 * 256;
    size_t rows = (size_t)j->rows.n;
    j->commands = 2;
    a->weights = st_job_take_weights(j, &a->w, ST_TYPE_Q8_0, ST_JOB_AFTER_ROWS, cols);
    a->y = st_job_take(j, rows * ST_JOB_AFTER_ROWS * 4, ST_JOB_CLOSE, ST_JOB_BOUND_INTEGER);
    a->acts = (struct st_act_buffer){.cols = cols};
    a->acts.stride[ST_ACT_Q8] = st_job_act_bytes(ST_ACT_Q8, padded);
    a->acts.stride[ST_ACT_Q8K] = st_job_act_bytes(ST_ACT_Q8K, padded);
    a->q8 = st_job_take(j, rows * a->acts.stride[ST_ACT_Q8], ST_JOB_FREE, 0);
    a->q8k = st_job_take(j, rows * a->acts.stride[ST_ACT_Q8K], ST_JOB_FREE, 0);
}

void st_job_build_after(struct st_job *j, struct st_job_after *a, const float *x, struct st_command *c)
{
    if (j->commands == 1)
        return;
    a->w.data = st_job_at(j, a->weights);
    a->acts.memory[ST_ACT_Q8] = st_job_at(j, a->q8);
    a->acts.memory[ST_ACT_Q8K] = st_job_at(j, a->q8k);
    *c = (struct st_command){.op = ST_OP_products,
                             .u.products = {.n = &j->rows.n,
                                            .x = x,
                                            .ldx = a->w.cols,
                                            .count = 1,
                                            .product = {{.w = &a->w, .y = st_job_at(j, a->y), .ldy = ST_JOB_AFTER_ROWS}},
                                            .acts = &a->acts}};
}
