/* Strata: the public C API.
 *
 * Conventions that hold for every function here:
 *  - results are enum strata_result, negative on failure; the message is in the strata_error that the caller passed
 *    (NULL is allowed) and names the object concerned and, where there is one, the device;
 *  - nothing exits, aborts or prints; strings are UTF-8; sizes are in bytes unless a name says otherwise;
 *  - objects are owned by whoever created them and are freed by the matching _free, which accepts NULL;
 *  - an object may be used from one thread at a time unless its comment says otherwise. */
#ifndef STRATA_H
#define STRATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum strata_result {
    STRATA_OK = 0,
    STRATA_E_ARGUMENT = -1,    /* the caller's value is out of range or contradicts another one */
    STRATA_E_MEMORY = -2,      /* host memory could not be had */
    STRATA_E_IO = -3,          /* the system refused a file operation */
    STRATA_E_FORMAT = -4,      /* a file or text breaks its format */
    STRATA_E_UNSUPPORTED = -5, /* well formed, but nothing here can serve it */
    STRATA_E_MODEL = -6,       /* tensors or hyper-parameters do not make a model */
    STRATA_E_DEVICE = -7,      /* a device or its driver failed or lacks something */
    STRATA_E_CANCELLED = -8,   /* the caller asked to stop */
    STRATA_E_LIMIT = -9,       /* a stated limit (context, memory, time) was reached */
    STRATA_E_INTERNAL = -10,   /* a broken invariant of ours: please report */
};

struct strata_error {
    enum strata_result code;
    char text[500];
};

/* Name of a result ("STRATA_E_IO"), never NULL. */
const char *strata_result_name(enum strata_result r);

#ifdef __cplusplus
}
#endif
#endif
