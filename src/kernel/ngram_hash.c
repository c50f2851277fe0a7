/* Row numbers of the n-gram memory. Source of the hash: Qwen3.8-Flash-Next's hashed n-gram embedding. */
#include "kernel/ngram.h"

void st_ngram_rows(const struct st_ngram_hash *h, int32_t token, const int32_t *history, uint64_t *out)
{
    /* The first reset met when walking back, and everything before it, counts as resets; so does a missing predecessor. */
    bool cut = false;
    uint64_t mix = (uint64_t)token * h->multiplier[0];
    for (uint32_t s = 1; s < h->order; s++) {
        int32_t before = history[s - 1];
        cut = cut || before < 0 || before == h->reset;
        mix ^= (uint64_t)(cut ? h->reset : before) * h->multiplier[s];
        for (uint32_t i = 0; i < h->heads_per_order; i++) {
            uint32_t head = (s - 1) * h->heads_per_order + i;
            out[head] = mix % h->size[head] + h->offset[head];
        }
    }
}
