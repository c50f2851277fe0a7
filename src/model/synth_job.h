/* What a family's generator fills in: tensors of a random model, each with the kind of values that keeps a forward pass in
 * range. */
#ifndef ST_MODEL_SYNTH_JOB_H
#define ST_MODEL_SYNTH_JOB_H

#include "base/team.h"
#include "format/gguf_write.h"
#include "model/synth.h"

enum st_synth_kind {
    ST_SYNTH_MATRIX, /* normal, deviation spread */
    ST_SYNTH_GAMMA,  /* 1 + normal / 10 */
    ST_SYNTH_DECAY,  /* -exp(uniform -3 .. 1) */
    ST_SYNTH_BIAS,   /* uniform -4 .. 0 */
    ST_SYNTH_HOLE,   /* zeros that take no space */
};

struct st_synth_tensor {
    char name[ST_GGUF_NAME_MAX + 1];
    uint32_t type, n_dims;
    uint64_t ne[ST_GGUF_DIMS];
    enum st_synth_kind kind;
    float spread;
    struct st_synth_job *job;
};

struct st_synth_job {
    const struct st_synth_options *options;
    struct st_gguf_writer *writer;
    struct st_team *team;
    struct st_synth_tensor **tensors;
    size_t n_tensors, capacity, done;
};

/* Adds a tensor; a type whose blocks do not divide the rows fails when the file is written. */
enum strata_result st_synth_add(struct st_synth_job *job, const char *name, uint32_t type, uint32_t n_dims,
                                const uint64_t *ne, enum st_synth_kind kind, float spread, struct strata_error *err);

/* tokenizer.ggml.* of a byte-level vocabulary of count (at least 512) entries: the 256 bytes; end of text, message start and
 * message end from end_of_text on; all others unused. */
enum strata_result st_synth_tokenizer(struct st_gguf_writer *w, uint64_t count, uint32_t end_of_text,
                                      struct strata_error *err);

struct st_synth_family {
    const char *name;
    enum strata_result (*plan)(struct st_synth_job *job, struct strata_error *err);
};

#endif
