/* Filling results: every failing function formats its message once, where the fault is known. */
#ifndef ST_BASE_RESULT_H
#define ST_BASE_RESULT_H

#include "strata.h"

/* Formats the message into err (may be NULL) and returns code, so that "return st_fail(err, ...)" reads as one step. */
enum strata_result st_fail(struct strata_error *err, enum strata_result code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "context: " before the message that a callee left in err; err then holds code, which is returned. */
enum strata_result st_fail_in(struct strata_error *err, enum strata_result code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#ifdef __clang_analyzer__
/* The analyser sees one file at a time; told that the result is the code, it knows that a failure never looks like success. */
#define st_fail(err, code, ...) __extension__({ (void)st_fail(err, code, __VA_ARGS__); (code); })
#define st_fail_in(err, code, ...) __extension__({ (void)st_fail_in(err, code, __VA_ARGS__); (code); })
#endif

/* Copies text into dst (size bytes, always terminated) with control bytes, quotes and invalid UTF-8 made visible, so that
 * names from files can be shown on a terminal. Returns dst. */
char *st_printable(char *dst, size_t size, const char *text, size_t length);

#endif
