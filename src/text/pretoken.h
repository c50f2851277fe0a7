/* Pre-tokenizers: how text is cut into pieces before merging. */
#ifndef ST_TEXT_PRETOKEN_H
#define ST_TEXT_PRETOKEN_H

#include "base/result.h"

struct st_pretoken;

/* name: see st_vocab.pre. */
enum strata_result st_pretoken_create(const char *name, struct st_pretoken **out, struct strata_error *err);
void st_pretoken_free(struct st_pretoken *p);

/* Does text get normalised (NFC) before it is cut? */
bool st_pretoken_normalises(const struct st_pretoken *p);
/* Is a piece that is a token as a whole taken as that token, whatever the merges say? */
bool st_pretoken_whole_pieces(const struct st_pretoken *p);

/* Ends of the pieces of a text, ascending; the last is its size. */
struct st_cuts {
    uint32_t *ends;
    size_t count;
};

/* text is valid UTF-8 of at most INT32_MAX bytes. cuts->ends is freed by the caller. */
enum strata_result st_pretoken_cut(const struct st_pretoken *p, const char *text, size_t size, struct st_cuts *cuts,
                                   struct strata_error *err);

#endif
