/* What the self-tests of whole commands share: a case with its buffers, the command's run by the C table on host copies of
 * them, its launches on the device, and the comparison. */
#ifndef ST_RUNTIME_SELFTEST_JOB_H
#define ST_RUNTIME_SELFTEST_JOB_H

#include "kernel/gpu_ops.h"
#include "runtime/selftest_run.h"

/* Bound of products with integer activations, where a code may be rounded the other way. */
#define ST_JOB_BOUND_INTEGER 1e-2f

/* How a buffer is compared: bit by bit; an element x may be off by bound * (|x| + root mean square of the buffer); not. */
enum st_job_kind { ST_JOB_EXACT, ST_JOB_CLOSE, ST_JOB_FREE };

enum { ST_JOB_COMMANDS = 2, ST_JOB_AFTER_ROWS = 40 };

/* A case: buffers, and how they are compared. r is the first error; after it nothing more is allocated. */
struct st_job {
    struct st_test_run *run;
    struct strata_error *err;
    enum strata_result r;
    enum st_job_kind kind[ST_TEST_BUFFERS];
    float bound[ST_TEST_BUFFERS];
    bool on_device; /* which addresses st_job_at() gives */
    struct st_rows rows;
    int slot, pos, axis, span, out, embd, embd_row; /* buffers of the row arrays */
    uint32_t slots, context;
    int commands; /* of the case, in a row; the device may do small steps of neighbours in one launch */
    /* NULL, or what runs the first command in C in place of the table's function. */
    void (*reference)(const struct st_kernels *table, const struct st_command *c, struct st_worker *alone);
};

/* Products of a mixer's output: y = w times it, whose integer form the mixer's last launch may make. */
struct st_job_after {
    struct st_weight w;
    struct st_act_buffer acts;
    int weights, y, q8, q8k;
};

extern const char *const st_job_mode_names[]; /* of enum st_rows_mode, behind a shape: "", ", held", ", committed" */

/* Fills the commands with the addresses that st_job_at() gives. */
typedef void (*st_job_build_fn)(struct st_job *j, const void *family, struct st_command *c);
/* Compares what needs more than the kinds of the buffers. */
typedef void (*st_job_check_fn)(struct st_job *j, const void *family);

void st_job_start(struct st_job *j, struct st_test_run *run, struct strata_error *err);

/* The next buffer of the case: its address on the side that runs, and its contents before, for the caller to fill. */
void *st_job_at(const struct st_job *j, int buffer);
void *st_job_input(const struct st_job *j, int buffer);
/* Each returns the new buffer's number. Floats are random; those of st_job_floats are an input that nothing may change. */
int st_job_take(struct st_job *j, size_t bytes, enum st_job_kind kind, float bound);
int st_job_take_floats(struct st_job *j, size_t n, enum st_job_kind kind, float bound);
int st_job_floats(struct st_job *j, size_t n);
/* Weights with entries of about 1 / sqrt(cols), so that products are of the size of their input. */
int st_job_take_weights(struct st_job *j, struct st_weight *w, int type, uint32_t rows, uint32_t cols);
/* Bytes of an activation row of n elements, in the CPU's or the GPU's layout, whichever is more. */
size_t st_job_act_bytes(enum st_act act, size_t n);

/* n rows of `spans` sequences that are in slots of their own; every second one begins at a position up to `late`. */
void st_job_make_rows(struct st_job *j, uint32_t n, uint32_t spans, uint32_t late);
/* The rows as the side that runs sees them. */
const struct st_rows *st_job_rows(struct st_job *j);

/* Adds the products of cols outputs of a mixer as the case's second command, and fills that command. */
void st_job_take_after(struct st_job *j, struct st_job_after *a, uint32_t cols);
void st_job_build_after(struct st_job *j, struct st_job_after *a, const float *x, struct st_command *c);

void st_job_check_close(struct st_job *j, int buffer);
/* Runs the case whose buffers are there on both sides, compares and reports; frees the buffers. c_scratch: bytes that the C form
 * may use beside its arguments; check: NULL or further comparisons. */
enum strata_result st_job_finish(struct st_job *j, st_job_build_fn build, const void *family, st_job_check_fn check,
                                 size_t c_scratch);

#endif
