/* Models with random weights and real shapes, for measurements and tests where no real file is at hand. */
#ifndef ST_MODEL_SYNTH_H
#define ST_MODEL_SYNTH_H

#include "base/result.h"

/* Zero in a field means the real model's value, or off. */
struct st_synth_options {
    const char *out;
    int type;           /* enum st_type of the experts' gate and up matrices; the others follow what released files use */
    uint64_t layers;
    uint64_t experts;
    uint64_t vocabulary; /* rows of embedding and head; at least 512 */
    uint64_t ngram_rows; /* of the n-gram table, at least; its data is a hole in the file unless mixed */
    const bool *recurrent; /* per layer; NULL: every fourth layer is attention */
    bool mixed;         /* the types of matrices go round over tensors, so that one small file has many of them */
    bool header_only;   /* all data is a hole: shapes are right, weights are zero, the file takes no space */
    uint64_t seed;
    int threads; /* default: one per physical core */
    /* Called before each tensor is written; may be NULL. */
    void (*progress)(void *user, const char *tensor, size_t done, size_t total);
    void *user;
};

struct st_synth_report {
    const char *family; /* static */
    size_t tensors;
    uint64_t bytes; /* of the file, holes included */
};

/* Streams the file: memory does not grow with it. The same options give the same bytes, with any number
 * of threads. */
enum strata_result st_synth(const struct st_synth_options *options, struct st_synth_report *report, struct strata_error *err);

#endif
