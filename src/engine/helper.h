/* A helper: a device that computes experts of layers which run on another one. It holds the most wanted of the experts
 * that have no slot there, and in windows computes them from the rows that the host has anyway, beside the CPU. Which
 * ones follows what the text chooses, as the stage's slots do. Everything it holds the host has too: when it fails, the
 * CPU computes in its place, with the same bits.
 *
 * It takes no part in prompts: there the rows of a layer, in and out, are more bytes for the links than the experts
 * that it could spare the stage's one (docs/devices.md). */
#ifndef ST_ENGINE_HELPER_H
#define ST_ENGINE_HELPER_H

#include "engine/stage_experts.h"

struct st_helper;

struct st_helper_config {
    struct st_device *dev;                   /* opened with the kernels of the stage; outlives the helper */
    const struct st_expert_store *store;     /* of the stage, filled; outlives the helper, as the set does */
    const struct st_expert_profile *profile; /* or NULL */
    const struct st_host_layer *layer;       /* [layers] weights in the file */
    const struct st_experts *shape;
    uint64_t slots; /* bytes that its slots may take */
};

/* Bytes of its one allocation beside the slots; *locked: of page-locked host memory. */
uint64_t st_helper_bytes(const struct st_expert_set *set, const struct st_experts *shape, uint64_t *locked);
enum strata_result st_helper_open(const struct st_helper_config *c, struct st_helper **out, struct strata_error *err);
void st_helper_close(struct st_helper *h);
/* Between windows: exchanges that are complete take effect; otherwise, if due, experts of the host's arena are sent to the
 * places of some that are wanted less, by the stage's counts. */
enum strata_result st_helper_adapt(struct st_helper *h, const struct st_expert_host *host, bool due,
                                   struct strata_error *err);
bool st_helper_has(const struct st_helper *h, uint32_t layer, uint32_t expert);
/* Begins the entries of experts of layer k that it has. ids [n * used], m [n][hidden]; first [experts + 1] and entry
 * (first[experts] of them) as in kernel/moe.h, of those experts alone. All is taken when this returns. */
enum strata_result st_helper_begin(struct st_helper *h, uint32_t k, int32_t n, const int32_t *ids, const float *m,
                                   const int32_t *first, const int32_t *entry, struct strata_error *err);
/* Waits, and writes the outputs [first[experts]][hidden]. */
enum strata_result st_helper_finish(struct st_helper *h, float *rows, struct strata_error *err);

#endif
