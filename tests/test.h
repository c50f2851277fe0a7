/* What every cmocka test includes, in the order cmocka wants. */
#ifndef ST_TESTS_TEST_H
#define ST_TESTS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/result.h"

/* Asserts success and shows the message otherwise. */
#define assert_ok(expr, err)                                                                                              \
    do {                                                                                                                  \
        enum strata_result r_ = (expr);                                                                                   \
        if (r_ != STRATA_OK)                                                                                              \
            fail_msg("%s: %s: %s", #expr, strata_result_name(r_), (err)->text);                                            \
    } while (0)

#endif
