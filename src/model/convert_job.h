/* What a family's converter fills in: the list of output tensors, each with its source rows and what happens to them. The
 * rows are read, mapped and written one at a time, so memory does not grow with the model. */
#ifndef ST_MODEL_CONVERT_JOB_H
#define ST_MODEL_CONVERT_JOB_H

#include "format/gguf_write.h"
#include "format/hf.h"
#include "model/convert.h"

enum st_convert_map {
    ST_MAP_PLAIN,
    ST_MAP_PLUS_ONE,  /* 1 + w: norms stored as offsets from one */
    ST_MAP_MINUS_EXP, /* -exp(w) */
};

/* From entry `from` on, blocks of `block` entries change from grouped order (group g's `per` blocks together) to tiled
 * order (one block of every group, then the next): output block j is input block per * (j mod groups) + j / groups.
 * span: the same within every `span` entries on their own (0: all entries are one span). groups 0: everything stays. */
struct st_convert_order {
    uint64_t from, block, groups, per, span;
};

/* rows rows of a source, from row `first` on; the source is seen as a matrix whose rows are its last dimension. */
struct st_convert_part {
    const struct st_safetensor *tensor;
    uint64_t first, rows;
};

struct st_convert_tensor {
    char name[ST_GGUF_NAME_MAX + 1];
    uint32_t type;
    uint32_t n_dims;
    uint64_t ne[ST_GGUF_DIMS];
    enum st_convert_map map;
    struct st_convert_order rows, columns;
    bool side_by_side; /* the parts' rows are joined to longer rows instead of following each other */
    struct st_convert_part *parts; /* all with the same number of rows */
    size_t n_parts;
    float *made; /* owned; ne[0] values that the family computed, in place of parts */
    struct st_convert_job *job;
};

struct st_convert_job {
    const struct st_convert_options *options;
    const struct st_hf *hf;
    bool *used; /* per source tensor; shared by the jobs of one folder */
    struct st_convert_tensor **tensors; /* of the file being planned */
    size_t n_tensors, capacity;
    size_t done; /* tensors written so far */
    float *row, *mapped; /* work space of writing: one row each */
    uint8_t *encoded;
};

/* The source tensor of that name with exactly these dimensions (0 accepts any size), marked as used. */
enum strata_result st_convert_source(struct st_convert_job *job, const char *name, uint32_t n_dims, const uint64_t *shape,
                                     const struct st_safetensor **out, struct strata_error *err);
/* NULL when there is none; not marked. */
const struct st_safetensor *st_convert_find(const struct st_convert_job *job, const char *name);

/* Adds an output tensor with room for n_parts parts, which the caller fills before the file is written; fixed: F32 whatever
 * the options say. The type follows from the parts, so it is decided when the file is written. */
enum strata_result st_convert_add(struct st_convert_job *job, const char *name, uint32_t n_dims, const uint64_t *ne,
                                  size_t n_parts, bool fixed, struct st_convert_tensor **out, struct strata_error *err);

/* A vector of count values (at most ST_CONVERT_MADE_MAX) that no source tensor holds. */
enum { ST_CONVERT_MADE_MAX = 4096 };
enum strata_result st_convert_add_made(struct st_convert_job *job, const char *name, const float *values, size_t count,
                                       struct strata_error *err);

/* Required integers of a configuration, each within low to high. */
struct st_convert_setting {
    const char *name;
    uint64_t *out;
    uint64_t low, high;
};
enum strata_result st_convert_settings(struct st_json config, const struct st_convert_setting *s, size_t n,
                                       struct strata_error *err);

/* general.*: the architecture, the name (of the options or the folder, then suffix), and as file type the one of the wish or
 * of the source tensor `embedding`; it is only a label. */
void st_convert_general(const struct st_convert_job *job, const char *architecture, const char *suffix,
                        const char *embedding, struct st_gguf_writer *w);

/* tokenizer.ggml.* and tokenizer.chat_template for a vocabulary of count rows; nothing when there is no tokenizer and the
 * options allow that. bos falls back to pad, as these tokenizers add none. */
enum strata_result st_convert_tokenizer(const struct st_convert_job *job, uint64_t count, struct st_gguf_writer *w,
                                        struct strata_error *err);

/* A family: which config.json it takes, and the plan of one of its two files: keys into w, tensors into the job. draft: the
 * file of the draft layer, otherwise the trunk. */
struct st_convert_family {
    const char *name;
    bool (*accepts)(const char *model_type);
    enum strata_result (*plan)(struct st_convert_job *job, bool draft, struct st_gguf_writer *w, struct strata_error *err);
    const char *draft_prefix, *vision_prefix; /* of source names that only the draft file or no file takes; NULL: none */
};

#endif
