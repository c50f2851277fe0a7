/* Unicode normalisation form C in linear time. */
#ifndef ST_TEXT_NFC_H
#define ST_TEXT_NFC_H

#include "base/result.h"

/* text is valid UTF-8. If it is already in form C by a quick look, *out is NULL; otherwise *out is the normalised text,
 * which the caller frees. */
enum strata_result st_nfc(const char *text, size_t size, char **out, size_t *out_size, struct strata_error *err);

#endif
