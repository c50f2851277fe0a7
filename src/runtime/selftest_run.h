/* What the files of the self-test share: a run with its random numbers, and buffers with guard bands. */
#ifndef ST_RUNTIME_SELFTEST_RUN_H
#define ST_RUNTIME_SELFTEST_RUN_H

#include "kernel/gpu_launch.h"
#include "runtime/selftest.h"

enum { ST_TEST_GUARD = 256, ST_TEST_GUARD_BYTE = 0x5a, ST_TEST_BUFFERS = 40 };

/* One buffer of a case. want is what the reference leaves in it. */
struct st_test_buffer {
    st_addr device;
    uint8_t *input, *want, *got; /* got and the device have ST_TEST_GUARD bytes before and after */
    size_t size;
};

struct st_test_run {
    struct st_device *dev;
    const struct st_selftest_options *options;
    struct st_selftest_result *result;
    uint64_t random;
    struct st_test_buffer buffer[ST_TEST_BUFFERS];
    int buffers;
    const char *family;
    char shape[160], fault[200]; /* fault: empty, or what is wrong with the case */
};

/* Whether products with weights of the type are asked for. */
static inline bool st_test_type(const struct st_test_run *run, int type)
{
    return !run->options->types || run->options->types >> type & 1;
}

uint64_t st_test_random(struct st_test_run *run);
uint32_t st_test_below(struct st_test_run *run, uint32_t n);
/* About normal, with a few large values and runs of zeros. */
void st_test_floats(struct st_test_run *run, float *x, size_t n);

/* Blocks of any content: every code and scale bit may occur, scales stay finite. */
void st_test_weights(struct st_test_run *run, int type, uint8_t *w, size_t bytes);
/* Activation rows of random values in the GPU's layout (F32: floats). */
enum strata_result st_test_rows(struct st_test_run *run, enum st_act act, uint8_t *to, uint32_t rows, uint32_t n,
                                struct strata_error *err);

/* The next buffer of the case: input zeroed, for the caller to fill. */
enum strata_result st_test_add(struct st_test_run *run, size_t size, uint8_t **input, struct strata_error *err);
/* Frees the buffers of the case. */
void st_test_drop(struct st_test_run *run);

/* All buffers with their guard bands to the device and back; the copies in may still be under way. */
enum strata_result st_test_put(struct st_test_run *run, struct strata_error *err);
enum strata_result st_test_get(struct st_test_run *run, struct strata_error *err);
/* Whether something outside of a buffer was written (then run->fault says where). */
bool st_test_guards(struct st_test_run *run, int buffer);
/* The buffer holds the expected bytes. */
void st_test_exact(struct st_test_run *run, int buffer);

/* Counts and reports the case, and clears its fault. */
void st_test_report(struct st_test_run *run);

/* Families of selftest_mixers.c and selftest_gdn.c. */
enum strata_result st_test_steps(struct st_test_run *run, struct strata_error *err);
enum strata_result st_test_ngram(struct st_test_run *run, struct strata_error *err);
enum strata_result st_test_gdn(struct st_test_run *run, struct strata_error *err);
enum strata_result st_test_qsa(struct st_test_run *run, struct strata_error *err);
enum strata_result st_test_route(struct st_test_run *run, struct strata_error *err);

/* Makes the launch for one set of addresses: the device's, or those of the expected buffers. */
typedef enum strata_result (*st_test_make_fn)(const void *params, const st_addr *at, struct st_gpu_launch *out,
                                              struct strata_error *err);
/* r OK: runs the case whose buffers are there on the device and, by the C reference, on the host, compares all buffers
 * to the bit and reports. Frees the buffers. */
enum strata_result st_test_finish(struct st_test_run *run, enum strata_result r, st_test_make_fn make,
                                  const void *params, struct strata_error *err);

/* Family of selftest_rows.c. */
enum strata_result st_test_few_rows(struct st_test_run *run, struct strata_error *err);
/* Family of selftest_sample.c. */
enum strata_result st_test_sample(struct st_test_run *run, struct strata_error *err);
/* Family of selftest_gemm.c. */
enum strata_result st_test_gemm(struct st_test_run *run, struct strata_error *err);

#endif
