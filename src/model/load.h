/* What model families share when they read a file: keys within ranges, vectors as floats, matrices as weights, and the
 * account of which tensors were used. Every failure names the file and the key or tensor. */
#ifndef ST_MODEL_LOAD_H
#define ST_MODEL_LOAD_H

#include "model/model.h"

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
    const struct st_model_options *options;
    struct strata_error *err;
};
/* Begins with a file; used is freed by the caller. */
enum strata_result st_loader_begin(struct st_loader *l, const struct st_gguf *g);
/* A tensor that was not used means a model that this program does not know: STRATA_E_UNSUPPORTED. Only asked when all
 * layers are bound. */
enum strata_result st_loader_end(struct st_loader *l);

/* A required key within lo .. hi. */
enum strata_result st_key_u32(const struct st_gguf *g, const char *key, uint32_t lo, uint32_t hi, uint32_t *out,
                              struct strata_error *err);
/* A key that may be one number or one per layer; all non-zero entries must agree. */
enum strata_result st_key_per_layer(const struct st_gguf *g, const char *key, uint32_t hi, uint32_t *out,
                                    struct strata_error *err);
/* An array of exactly want integers within lo .. hi; *out is freed by the caller. */
enum strata_result st_key_ints(const struct st_gguf *g, const char *key, size_t want, int64_t lo, int64_t hi,
                               int64_t **out, struct strata_error *err);
enum strata_result st_key_u64s(const struct st_gguf *g, const char *key, size_t n, uint64_t *out,
                               struct strata_error *err);

enum strata_result st_missing_tensor(struct st_loader *l, const char *name);
/* Puts bytes of ours where the device reads them: through options->put, or *out = data without one. */
enum strata_result st_loader_put(struct st_loader *l, const char *name, const void *data, uint64_t bytes,
                                 const void **out);
/* A vector of count finite floats, whatever type the file has: in memory of the loader's owner, or where put puts it.
 */
enum strata_result st_load_floats(struct st_loader *l, const char *name, uint64_t count, float **out);
/* The same, always in host memory. */
enum strata_result st_load_host_floats(struct st_loader *l, const char *name, uint64_t count, float **out);
/* A convolution kernel {taps, channels}, turned into [taps][channels]. */
enum strata_result st_load_conv(struct st_loader *l, const char *name, uint32_t taps, uint64_t channels, float **out);
/* A matrix {cols, rows} or, with experts > 0, {cols, rows, experts}. */
enum strata_result st_load_matrix(struct st_loader *l, const char *name, uint64_t cols, uint64_t rows, uint64_t experts,
                                  struct st_weight *w);
/* The same, but left where the file has it: what the host itself reads. */
enum strata_result st_load_host_matrix(struct st_loader *l, const char *name, uint64_t cols, uint64_t rows,
                                       struct st_weight *w);
/* Two matrices that a file may hold one above the other in the single tensor fused. */
enum strata_result st_load_pair(struct st_loader *l, const char *fused, const char *a_name, const char *b_name,
                                uint64_t cols, uint64_t a_rows, uint64_t b_rows, uint64_t experts, struct st_weight *a,
                                struct st_weight *b);
/* Copies of the rotation's lists for kernels that cannot read host structures; nothing without put. */
/* Frequencies of a rotation of rope->rot elements with base theta, and, with factor above 1, YaRN: pairs that turn at most once in
 * the trained context turn slower by factor, those that turn 32 times or more stay as they are, those between are in between,
 * linear in the pair's number; the turned elements grow by 0.1 ln factor. FP32 throughout without it, as the reference models
 * compute. Published with the method (arXiv 2309.00071) and as transformers has it. */
void st_rope_set(struct st_rope *rope, double theta, uint32_t context, double factor);
enum strata_result st_load_rope(struct st_loader *l, struct st_rope *rope);
/* "blk.<block>.<tail>" */
const char *st_block_name(char buffer[96], uint32_t block, const char *tail);
enum strata_result st_load_block_floats(struct st_loader *l, uint32_t block, const char *tail, uint64_t count,
                                        float **out);
enum strata_result st_load_block_matrix(struct st_loader *l, uint32_t block, const char *tail, uint64_t cols,
                                        uint64_t rows, uint64_t experts, struct st_weight *w);

#endif
