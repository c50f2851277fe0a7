/* What the files of the stage on a device share: stage_device.c has passes, weights and state; stage_experts.c the
 * experts that are not all on the device. */
#ifndef ST_ENGINE_STAGE_DEVICE_H
#define ST_ENGINE_STAGE_DEVICE_H

#include "engine/expert_store.h"
#include "engine/stage.h"
#include "kernel/gpu_ops.h"
#include "kernel/gpu_sample.h"
#include "runtime/device.h"

enum {
    ST_STAGE_PIECE = 32 << 20, /* bytes of one of the two page-locked buffers that weights go through */
    ST_STAGE_GRAPHS = ST_GPU_WINDOW + 1,
    ST_STAGE_ROOMS = 2,
    ST_SHORT_PROMPT = 8, /* the first room is for passes of up to this part of the largest */
};

/* Kinds of windows that graphs are captured of. The trunk's and the first of the draft layer give logits of every row
 * they have a head for. */
enum st_window_kind {
    ST_WINDOW_TRUNK,
    ST_WINDOW_HELD, /* its rows are held */
    ST_WINDOW_COMMIT,
    ST_WINDOW_DRAFT,
    ST_WINDOW_DRAFT_ONE,  /* logits of one row of several */
    ST_WINDOW_DRAFT_NONE, /* no logits */
    ST_WINDOW_KINDS
};

/* Where things lie in the device's allocation, in bytes from its start. */
struct st_device_layout {
    uint64_t weights, slots, state, buffers, experts, rows, scratch, total;
};

struct st_device_experts;

/* Where prompts of a stage with a store of experts have their buffers, rows, scratch and ring of experts: in memory that
 * slots lend (expert_store.h). A short prompt needs little of it. The ring comes last, where all rooms end. */
struct st_room {
    uint32_t rows; /* of a pass, at most */
    struct st_program trunk, draft;
    struct st_room_size size;
    uint64_t at; /* from the start of the device's allocation */
};

struct device_stage {
    struct st_stage base;
    struct st_device *dev;
    struct st_device_layout at;
    st_addr memory;
    struct st_rows rows; /* arrays at device addresses, for the counts of the current pass */
    uint8_t *host;       /* page-locked: packed rows of each pass under way, then logits */
    uint64_t host_rows;  /* bytes of the rows of one pass */
    float *host_logits;
    uint8_t *sample_block; /* page-locked: what the device is told about rows that it samples, then their picks */
    struct flight {
        struct st_event *done;
        struct st_event **layer; /* [end - first]: the layer's last launch has run; of prompts */
        bool layers;             /* they were recorded */
        int32_t rows;
    } flight[ST_STAGE_PASSES];
    unsigned begun, finished;  /* passes */
    uint32_t heads, row_bytes; /* of the n-gram table; 0: none here */
    uint64_t rows_at; /* of the current pass, from the start of the allocation */
    struct st_gpu_target target, window_target;
    struct st_gpu_list list;
    struct st_graph *graphs[ST_WINDOW_KINDS][ST_STAGE_GRAPHS]; /* by kind and rows */
    /* while weights are put */
    uint64_t put_used;
    bool counting;
    uint8_t *piece[2];
    struct st_event *piece_free[2];
    bool piece_busy[2];
    int next_piece;
    /* Experts that are not all here: what the device has slots for, and everything else of theirs; NULL without. */
    bool cached;
    uint64_t slot_bytes; /* chosen */
    struct st_room room[ST_STAGE_ROOMS];
    int rooms; /* the last one serves every prompt */
    struct st_expert_store store;
    struct st_device_experts *experts;
};

static inline const struct st_runtime *st_device_table(const struct device_stage *d)
{
    return d->dev->table;
}

/* stage_device.c */
/* Launches a list; c says what it computes, for messages. */
enum strata_result st_device_launch(struct device_stage *d, const struct st_gpu_list *list, const struct st_command *c,
                                    struct strata_error *err);
/* Lowers and launches commands [from, to) that need no step of the host; those up to end follow. */
enum strata_result st_device_plain(struct device_stage *d, const struct st_program *p, size_t from, size_t to,
                                   size_t end, struct strata_error *err);
/* Copies bytes of the host's into the device through the two page-locked pieces, on the copy queue. */
enum strata_result st_device_copy_weights(struct device_stage *d, st_addr to, const uint8_t *from, uint64_t bytes,
                                          struct strata_error *err);
/* The next of the two pieces, once the device has read what was in it; and that the copy queue has been given reads of
 * it. */
enum strata_result st_device_take_piece(struct device_stage *d, int *piece, struct strata_error *err);
enum strata_result st_device_piece_given(struct device_stage *d, int piece, struct strata_error *err);

/* The room that passes of so many rows take, NULL: the stage's own memory, which serves windows, and all passes of a
 * stage without a store. */
struct st_room *st_device_room(struct device_stage *d, uint32_t rows);

/* stage_sample.c */
/* Bytes of scratch, and page-locked memory of the host for it; 0 where the stage does not sample: it has no head, or there are no
 * kernels for such a vocabulary. */
uint64_t st_device_sample_scratch(const struct st_stage *s);
uint64_t st_device_sample_locked(const struct st_stage *s);
/* Marks the kernels that it needs: any device may get the head. */
enum strata_result st_device_sample_needs(const struct st_stage *s, bool *needed, struct strata_error *err);
/* Behind the launches of a pass: samples its logits and begins to copy the picks. *done is false, and nothing happened, where the
 * rows' lists are too long. */
enum strata_result st_device_sample(struct device_stage *d, const struct st_program *p, const struct st_pass *pass, bool *done,
                                    struct strata_error *err);

/* stage_experts.c */
/* What a helper with so much room would take and serve, of the experts that are not marked as resident. */
enum strata_result st_device_experts_helper(const struct device_stage *d, const struct st_expert_profile *profile,
                                            const uint8_t *resident, uint64_t room, struct st_stage_size *out,
                                            struct strata_error *err);
/* Bytes behind the buffers that experts need on the device, and of host memory: *host, of it *locked page-locked. The
 * programs are placed and the set is complete. */
enum strata_result st_device_experts_size(const struct device_stage *d, uint64_t *device, uint64_t *host,
                                          uint64_t *locked, struct strata_error *err);
/* Opens everything and fills slots and arena; lists go to the device. */
enum strata_result st_device_experts_open(struct device_stage *d, const struct st_stage_config *c,
                                          struct strata_error *err);
void st_device_experts_close(struct device_stage *d);
/* Where a tensor of experts and its places lie (st_put_experts_fn). */
enum strata_result st_device_put_experts(void *user, const struct st_gguf *g, const struct st_gguf_tensor *t,
                                         uint32_t experts, const void **base, const void **places,
                                         struct strata_error *err);
/* Bytes of the ring that prompts bring experts through. */
uint64_t st_device_experts_ring(const struct device_stage *d);
/* Before a window, while nothing runs: exchanges that are complete take effect, others are begun. Slots that were lent
 * have their memory again. */
enum strata_result st_device_experts_settle(struct device_stage *d, struct strata_error *err);
/* Before a prompt: slots lend the room's memory. */
enum strata_result st_device_experts_lend(struct device_stage *d, const struct st_room *room, struct strata_error *err);
/* The host's part of the stage's experts. */
struct st_expert_host;
const struct st_expert_host *st_device_experts_host(const struct device_stage *d);
/* A pass is finished: counts its choices, if it was a prompt. */
void st_device_experts_count(struct device_stage *d, int flight);
/* One experts command by itself. */
enum strata_result st_device_experts_run(struct device_stage *d, const struct st_program *p, const struct st_command *c,
                                         struct strata_error *err);
/* A whole window, by graphs where there are some. */
enum strata_result st_device_experts_window(struct device_stage *d, enum st_window_kind kind,
                                            const struct st_program *p, struct strata_error *err);

#endif
