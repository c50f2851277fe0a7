/* What model families share when they read a file: keys within ranges, vectors as floats, matrices as weights, and the
 * account of which tensors were used. Every failure names the file and the key or tensor. */
#ifndef ST_MODEL_LOAD_H
#define ST_MODEL_LOAD_H

#include "format/gguf.h"
#include "kernel/rows.h"

/* Vectors converted to floats; freed together. */
struct st_owned {
    float **v;
    size_t n, capacity;
};
void st_owned_free(struct st_owned *o);

struct st_loader {
    const struct st_gguf *g;
    bool *used; /* [n_tensors] */
    struct st_owned *owned;
    void *model; /* the family's structure that is being filled */
    bool fp32; /* all weights take FP32 activations */
    struct strata_error *err;
};
/* Begins with a file; used is freed by the caller. */
enum strata_result st_loader_begin(struct st_loader *l, const struct st_gguf *g);
/* A tensor that was not used means a model that this program does not know: STRATA_E_UNSUPPORTED. */
enum strata_result st_loader_end(struct st_loader *l);

/* A required key within lo .. hi. */
enum strata_result st_key_u32(const struct st_gguf *g, const char *key, uint32_t lo, uint32_t hi, uint32_t *out,
                              struct strata_error *err);
/* A key that may be one number or one per layer; all non-zero entries must agree. */
enum strata_result st_key_per_layer(const struct st_gguf *g, const char *key, uint32_t hi, uint32_t *out,
                                    struct strata_error *err);
/* An array of exactly want integers within lo .. hi; *out is freed by the caller. */
enum strata_result st_key_ints(const struct st_gguf *g, const char *key, size_t want, int64_t lo, int64_t hi, int64_t **out,
                               struct strata_error *err);
enum strata_result st_key_u64s(const struct st_gguf *g, const char *key, size_t n, uint64_t *out, struct strata_error *err);

enum strata_result st_missing_tensor(struct st_loader *l, const char *name);
/* A vector of count finite floats in memory of the loader's owner, whatever type the file has. */
enum strata_result st_load_floats(struct st_loader *l, const char *name, uint64_t count, float **out);
/* A convolution kernel {taps, channels}, turned into [taps][channels]. */
enum strata_result st_load_conv(struct st_loader *l, const char *name, uint32_t taps, uint64_t channels, float **out);
/* A matrix {cols, rows} or, with experts > 0, {cols, rows, experts}. */
enum strata_result st_load_matrix(struct st_loader *l, const char *name, uint64_t cols, uint64_t rows, uint64_t experts,
                                  struct st_weight *w);
/* Two matrices that a file may hold one above the other in the single tensor fused. */
enum strata_result st_load_pair(struct st_loader *l, const char *fused, const char *a_name, const char *b_name,
                                uint64_t cols, uint64_t a_rows, uint64_t b_rows, uint64_t experts, struct st_weight *a,
                                struct st_weight *b);
/* "blk.<block>.<tail>" */
const char *st_block_name(char buffer[96], uint32_t block, const char *tail);
enum strata_result st_load_block_floats(struct st_loader *l, uint32_t block, const char *tail, uint64_t count, float **out);
enum strata_result st_load_block_matrix(struct st_loader *l, uint32_t block, const char *tail, uint64_t cols, uint64_t rows,
                                        uint64_t experts, struct st_weight *w);

#endif
