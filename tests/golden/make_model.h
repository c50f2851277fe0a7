/* Random qwen4exp models of any sizes and types, written from a seed: for widths that committed models do not have, and
 * for broken files, since tests edit the lists of keys and tensors before the file is written. */
#ifndef ST_TESTS_GOLDEN_MAKE_MODEL_H
#define ST_TESTS_GOLDEN_MAKE_MODEL_H

#include "format/gguf_write.h"

enum { MAKE_TENSORS = 160, MAKE_KEYS = 48, MAKE_VALUES = 20, MAKE_LAYERS = 4 };

struct make_tensor {
    char name[ST_GGUF_NAME_MAX + 1];
    int type;
    uint32_t n_dims;
    uint64_t ne[ST_GGUF_DIMS];
    float mean, spread; /* values lie around mean, with the standard deviation spread */
    bool negative;      /* all below zero */
    bool nan;           /* one element is not a number */
};

struct make_key {
    char name[ST_GGUF_NAME_MAX + 1];
    enum st_gguf_type type; /* of the elements: U32, I32, U64, F32, BOOL, STRING ("qwen4exp") */
    bool array;
    size_t count;
    double value[MAKE_VALUES];
};

struct make_model {
    /* Sizes: set by the caller. */
    uint32_t layers, hidden, streams, rank, vocabulary, context;
    uint32_t heads, kv_heads, head_dim, rot, section[3], index_heads, index_dim, budget, ratio;
    uint32_t key_heads, value_heads, key_dim, value_dim, taps;
    uint32_t experts, used, expert_width, shared_width;
    uint32_t ngram_layer, ngram_width, heads_per_ngram, ngram_taps, head_rows, reset;
    bool recurrent[MAKE_LAYERS];
    bool draft; /* a draft layer after the others, in the same file */
    uint64_t seed;
    /* Filled by make_plan. */
    struct make_tensor tensor[MAKE_TENSORS];
    size_t tensors;
    struct make_key key[MAKE_KEYS];
    size_t keys;
};

/* Lists keys and tensors, all of them F32, as the sizes say. */
void make_plan(struct make_model *m);
/* NULL when there is none. */
struct make_tensor *make_find(struct make_model *m, const char *name);
struct make_key *make_find_key(struct make_model *m, const char *name);
/* One more tensor at the end of the list. */
struct make_tensor *make_add(struct make_model *m, const char *name, uint64_t ne0, uint64_t ne1, uint64_t ne2,
                             float mean, float spread);
enum strata_result make_write(const struct make_model *m, const char *path, struct strata_error *err);

/* The sizes of a model that is as small as the architecture allows, with every kind of layer and a draft layer. */
void make_small(struct make_model *m);
/* The released model's widths: one recurrent and one attention layer, 16 experts, 512 tokens. */
void make_wide(struct make_model *m);

#endif
