/* Runs the kernels of a device on random inputs and compares the results with the C reference: bit by bit, or within the bound
 * of the family where sums have another order (selftest_mixers.c). Part of the tests (tests/kernel) and of strata-device
 * --selftest, so that a bad driver is found before a bad answer. */
#ifndef ST_RUNTIME_SELFTEST_H
#define ST_RUNTIME_SELFTEST_H

#include "runtime/device.h"

/* One case that ran. */
struct st_selftest_case {
    const char *family; /* "products" */
    const char *shape;  /* "st_mv_q8_0_4: 3 rows times Q8_0 [33 x 2592]" */
    const char *fault;  /* NULL: as expected; else what is wrong */
};

struct st_selftest_options {
    uint64_t seed;                                               /* same seed, same inputs */
    const char *family;                                          /* only this one, or NULL */
    bool quick;                                                  /* a few shapes instead of all */
    uint64_t types; /* OR of 1 << type: products with weights of these only; 0: of all */
    void (*report)(void *arg, const struct st_selftest_case *c); /* called after each case; may be NULL */
    void *arg;
};

struct st_selftest_result {
    int cases, failed;
};

/* The device has all kernels resolved, but for those of types that are left out. A result that differs is counted and reported, not an error; an error is a
 * device that fails. */
enum strata_result st_selftest(struct st_device *dev, const struct st_selftest_options *options,
                               struct st_selftest_result *out, struct strata_error *err);

#endif
