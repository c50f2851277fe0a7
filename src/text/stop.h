/* Stop texts: finds the first of several strings in a stream of text, holding back only what could still become one. */
#ifndef ST_TEXT_STOP_H
#define ST_TEXT_STOP_H

#include "text/tokenizer.h"

struct st_stop;

/* Copies the strings. An empty string is STRATA_E_ARGUMENT. count 0 is allowed: everything passes at once. */
enum strata_result st_stop_create(const char *const *texts, size_t count, struct st_stop **out,
                                  struct strata_error *err);
void st_stop_free(struct st_stop *s);

/* Takes the next bytes. *out (valid until the next call) is the text now known to be free of stop texts. If one was
 * found, *found is its index in the list, *out ends where it begins, and the rest of the stream is ignored; -1
 * otherwise. The match that ends first wins; of several ending at the same byte the longest. */
enum strata_result st_stop_push(struct st_stop *s, const char *text, size_t size, struct st_bytes *out, int *found,
                                struct strata_error *err);
/* End of the stream: what was held back. */
struct st_bytes st_stop_finish(struct st_stop *s);

#endif
