/* Experts of models that are larger than the cards: which of a stage's experts lie in slots of its device, and which in
 * host memory or in the file alone.
 *
 * The bits do not depend on it. An expert's output for a row is made of integer products, silu and one more integer
 * product, whose bits docs/numerics.md fixes for every device and every number of rows, and of nothing that other
 * experts compute. So it may be computed anywhere at any time; outputs are added in the router's order by the same
 * launch wherever they came from.
 *
 * A slot holds one expert of one layer: its gate, up and down (or gate and up fused), each at a multiple of 16. Slots
 * of all layers are packed in one part of the stage's allocation. Kernels find an expert through a list of 64-bit
 * offsets from the allocation's start for each layer (st_weight.places); one that is missing has none, and its groups of
 * work-items return at once.
 * So the same captured launches serve every state of the store. The host has the same list. Both change between passes
 * only, while nothing runs.
 *
 * Windows: behind each router the chosen numbers and the input rows go to the host. While the device computes the
 * shared expert and those in slots, the CPU computes the others, each read once; their rows go to the device behind the
 * others, with a list that says where each entry's row lies, and the next launches add up. Prompts: all experts of a
 * layer are taken in ascending order, cut into runs; those of a run that are missing are copied to a part of a ring
 * while the run before is computed, by a second list that gives every expert a place. Gates and ups first, then downs,
 * so each byte crosses the link once. A prompt so short that it takes few of the experts is routed first.
 *
 * A prompt's buffers, its rows and that ring are memory of the last slots, which at first have the least wanted of the
 * experts: a prompt takes out what is in them, as far as it needs their memory, and the windows behind it fill them
 * again, the most wanted missing experts first, as many at a time as one adaptation exchanges. So windows have slots
 * where otherwise memory would lie idle. The host keeps its copy of experts in slots that may be lent.
 *
 * Which experts are in slots: those that a profile counts most, without one the same of each layer; then those that
 * counts of the running text (decayed) prefer: a copy that is under way changes nothing until it is complete. All
 * experts of a stage in slots is a stage without any of this: then there is no store, and a window is one graph. */
#ifndef ST_ENGINE_EXPERT_STORE_H
#define ST_ENGINE_EXPERT_STORE_H

#include "model/model.h"

enum { ST_EXPERT_SECTIONS = 3 };
#define ST_NO_SLOT UINT32_MAX

/* The experts of a layer in the file. */
struct st_expert_layer {
    const struct st_gguf *g;
    uint32_t block, row; /* "blk.<block>"; row of a profile */
    uint32_t sections;   /* tensors; the last one is down */
    struct st_expert_section {
        const struct st_gguf_tensor *tensor;
        uint64_t bytes, at; /* of one expert; where it begins in a slot */
    } section[ST_EXPERT_SECTIONS];
    uint64_t slot; /* bytes of a slot */
};

/* Layers in the order in which their tensors were bound. */
struct st_expert_set {
    struct st_expert_layer *layer;
    uint32_t count, capacity;
    uint32_t experts;    /* of every layer */
    uint32_t trunk_rows; /* layers of the trunk, set by the owner: the draft layer's row in a profile */
};

/* Adds a tensor to the layer of its name, which is the last one or a new one. */
enum strata_result st_expert_set_add(struct st_expert_set *set, const struct st_gguf *g, const struct st_gguf_tensor *t,
                                     uint32_t experts, uint32_t *layer, uint32_t *section, struct strata_error *err);
void st_expert_set_free(struct st_expert_set *set);
/* Bytes of slots for all experts. */
uint64_t st_expert_set_bytes(const struct st_expert_set *set);
/* The largest slot. */
uint64_t st_expert_set_largest(const struct st_expert_set *set);

/* ---- profiles ---- */

/* How often each expert was chosen in some text. The file: "STRATAEP", u32 version 1, u32 rows, u32 experts, u32 0, u64
 * fingerprint of the model (0: none), u64 tokens, then u64 counts [rows][experts], then the XXH64 (seed 0) of all
 * before; little-endian. */
struct st_expert_profile {
    uint32_t rows, experts; /* rows: layers, and one for a draft layer */
    uint64_t fingerprint, tokens;
    uint64_t *count; /* [rows][experts] */
};
enum strata_result st_expert_profile_create(uint32_t rows, uint32_t experts, struct st_expert_profile *out,
                                            struct strata_error *err);
/* STRATA_E_FORMAT: no such file, damaged, or another version. */
enum strata_result st_expert_profile_read(const char *path, struct st_expert_profile *out, struct strata_error *err);
enum strata_result st_expert_profile_write(const struct st_expert_profile *p, const char *path,
                                           struct strata_error *err);
void st_expert_profile_free(struct st_expert_profile *p);
/* Adds a pass's choices in a row; first [experts + 1] as in kernel/moe.h. */
void st_expert_profile_add(struct st_expert_profile *p, uint32_t row, const int32_t *first);
/* The share of all choices that a share (0 .. 1) of the experts serves at best. */
double st_expert_profile_share(const struct st_expert_profile *p, double experts);

/* ---- what is where ---- */

/* Where an expert is: in none of the slots; in one that is its own; in one that prompts may borrow. */
enum st_expert_mark { ST_EXPERT_OUT, ST_EXPERT_KEPT, ST_EXPERT_LENT };

/* Chooses the experts for budget bytes of slots: largest count first, then by number, then by layer, each that still
 * fits. profile may be NULL. marks [layers][experts]: enum st_expert_mark; lent: bytes that prompts may borrow of the
 * end. Returns the bytes of all slots. */
uint64_t st_expert_choose(const struct st_expert_set *set, const struct st_expert_profile *profile, uint64_t budget,
                          uint64_t lent, uint8_t *marks);
/* The share of the choices that the marked experts serve, by the profile, otherwise by their number. */
double st_expert_share(const struct st_expert_set *set, const struct st_expert_profile *profile, const uint8_t *marked);
/* The same choice for other memory: sets chosen for the first experts of that order that are ST_EXPERT_OUT in marks,
 * then for those that are ST_EXPERT_LENT. */
void st_expert_rank(const struct st_expert_set *set, const struct st_expert_profile *profile, const uint8_t *marks,
                    uint64_t budget, uint8_t *chosen);

struct st_expert_store {
    struct st_expert_set set;
    struct st_expert_slot {
        uint64_t at; /* from the first slot */
        uint32_t layer, expert;
    } * slot;
    uint32_t slots, kept; /* kept: those before this one are never lent */
    uint32_t empty;       /* slots without an expert */
    uint64_t bytes;       /* of all slots */
    uint32_t *slot_of;   /* [layers][experts]: ST_NO_SLOT for those that are missing */
    uint32_t *missing;   /* [layers]: how many are */
    float *count;        /* [layers][experts]: choices, decayed */
    uint32_t windows;    /* since the last adaptation */
    uint64_t asked, hit; /* distinct experts of windows, and those that were in slots */
};

/* Makes slots for the experts that st_expert_choose would take, in that order; those that are marked ST_EXPERT_KEPT in
 * marks (or NULL) are passed over. The set has been filled. */
enum strata_result st_expert_store_fill(struct st_expert_store *s, const struct st_expert_profile *profile,
                                        const uint8_t *marks, uint64_t budget, uint64_t lent, struct strata_error *err);
uint8_t st_expert_store_mark(const struct st_expert_store *s, uint32_t layer, uint32_t expert);
/* Whether there is an expert in the slot. */
bool st_expert_store_holds(const struct st_expert_store *s, uint32_t slot);
/* Takes out what is in the slots that end behind from, of those that may be lent. */
void st_expert_store_lend(struct st_expert_store *s, uint64_t from);
void st_expert_store_free(struct st_expert_store *s);

/* An exchange: the slot's expert makes room for another one of the same size. */
struct st_expert_swap {
    uint32_t slot, layer, expert;
};
enum { ST_EXPERT_SWAPS = 96, ST_EXPERT_PERIOD = 4 /* windows from one adaptation to the next */ };
/* The exchanges that counts ask for, at most ST_EXPERT_SWAPS, the most wanted first: a missing expert's count exceeds
 * that of the slot's by half. Then all counts decay. Nothing is changed but counts. While slots are empty: who comes to
 * those instead, the most wanted missing experts, and those that were there before. */
uint32_t st_expert_store_adapt(struct st_expert_store *s, struct st_expert_swap out[ST_EXPERT_SWAPS]);
/* The slot's expert is gone; then the slot has the other one. */
void st_expert_store_take_out(struct st_expert_store *s, uint32_t slot);
void st_expert_store_put_in(struct st_expert_store *s, const struct st_expert_swap *swap);

#endif
