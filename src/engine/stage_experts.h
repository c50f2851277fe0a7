/* What the files of a stage's experts share (expert_store.h has the idea): stage_experts.c windows,
 * stage_experts_prompt.c prompts and exchanges, stage_experts_open.c memory and opening. */
#ifndef ST_ENGINE_STAGE_EXPERTS_H
#define ST_ENGINE_STAGE_EXPERTS_H

#include "base/team.h"
#include "engine/expert_host.h"
#include "engine/miss.h"
#include "engine/pace.h"
#include "engine/stage_device.h"
#include "kernel/multiply.h"

enum {
    ST_RING_PARTS = 3,
    ST_RING_EXPERTS = 16, /* in a part */
    ST_STAGED = 16,       /* experts that are read from the file at a time for the CPU */
};

/* A layer as the CPU computes it. */
struct st_host_layer {
    int32_t layer; /* for messages */
    struct st_weight gate, up, down;
    const uint8_t **at[3];        /* [experts] places of gate, up, down */
    uint32_t section[3], skip[3]; /* where they begin: tensor, and bytes in an expert's part of it */
};

struct st_exchange {
    struct st_expert_swap swap;
    uint32_t layer, expert; /* who was in the slot */
    uint8_t *spare;         /* where it goes, or NULL: the file has it */
};

struct st_device_experts {
    uint32_t experts, used, hidden, width;
    uint32_t entries;     /* of the largest window */
    uint64_t where_bytes; /* of the list before the rows from the host */
    st_addr lists, ring;
    uint64_t pitch; /* of the ring's places */
    uint64_t lent;  /* bytes that slots have lent */
    /* Page-locked: */
    uint8_t *locked;
    int32_t *ids;                    /* [entries] chosen experts of a window */
    float *m;                        /* [rows][hidden] its input */
    uint8_t *back;                   /* list of rows, then rows, that go to the device */
    uint64_t *places;                /* [layers][2][experts] as on the device */
    int32_t *first[ST_STAGE_PASSES]; /* [layers][experts + 1] of prompts */
    bool counted[ST_STAGE_PASSES];   /* they are on their way */
    /* The CPU's part: */
    struct st_model model; /* weights in the file */
    struct st_program trunk, draft;
    struct st_rows rows;
    struct st_host_layer *layer;
    const struct st_kernels *kernels;
    struct st_team *team;
    struct st_pace pace;
    struct st_helper *helper; /* or NULL */
    bool helper_lost;
    /* Seconds of windows: for giving launches, for routers; from a router's choice until the CPU begins, and until the answer
     * is on its way; of the CPU's experts. */
    double given, waited, planned, answered, computed;
    double asked; /* when the router's choice was there */
    uint64_t cpu_bytes, steps; /* of experts that the CPU computed in them; layers that waited for the host */
    struct st_line expected; /* time of experts that the CPU computes in windows, as the plan measured it */
    struct st_miss_times cpu_times, link_times; /* of those and of the link's, as they are */
    uint32_t with_link, without_link;           /* layers in which the link took part, and since it last did */
    double expected_seconds;                    /* for all that the CPU computed */
    struct st_experts_work work;
    /* Missing experts of windows: brought to the device, computed here, of those read from the file, by the helper. */
    uint64_t over_link, by_cpu, from_file, by_helper;
    struct st_expert_host *host;
    uint8_t *memory; /* of all that follows */
    float *h;
    struct st_act_buffer acts, hacts;
    uint8_t *staged;                   /* [ST_STAGED][sections] buffers of reads */
    int32_t *group;                    /* [experts + 1] first, then [entries] entry, [entries] where */
    int32_t *chosen;                   /* [entries], n_chosen of them: the window's experts, ascending */
    uint32_t n_chosen;
    int32_t *some;                     /* [experts + 1] first of the experts that are computed, then [entries] entry */
    uint8_t *wanted, *marked, *helped; /* [experts] each */
    struct st_event *routed, *ready[ST_RING_PARTS], *free_again[ST_RING_PARTS];
    bool in_use[ST_RING_PARTS];
    struct st_graph **graphs[ST_WINDOW_KINDS][ST_STAGE_GRAPHS];
    struct st_event *exchanged;
    struct st_exchange exchange[ST_EXPERT_SWAPS];
    uint32_t exchanges; /* under way */
};

static inline uint64_t st_where_bytes(uint32_t used)
{
    return ((uint64_t)ST_GPU_WINDOW * used * sizeof(int32_t) + 15) / 16 * 16;
}

/* stage_experts.c */
/* Lowers and launches a step of an experts command for all experts, or a part of it. */
enum strata_result st_experts_give_part(struct device_stage *d, const struct st_command *c,
                                        const struct st_gpu_experts_part *part, struct strata_error *err);
enum strata_result st_experts_give_step(struct device_stage *d, const struct st_command *c,
                                        enum st_gpu_experts_step step, struct strata_error *err);
size_t st_experts_commands(const struct st_program *p);
/* The helper failed: from now on the CPU computes what it would have, and people are told. */
void st_experts_lose_helper(struct device_stage *d, const struct strata_error *why);

/* stage_experts_prompt.c */
/* The command of a prompt, for layer k of the set. */
enum strata_result st_experts_prompt(struct device_stage *d, const struct st_command *c, uint32_t k,
                                     struct strata_error *err);
/* Copies tensors [from, to) of an expert that is in the arena to a place laid out like a slot, on the copy queue. */
enum strata_result st_experts_copy(struct device_stage *d, uint32_t k, const uint8_t *arena, uint32_t from, uint32_t to,
                                   st_addr place, struct strata_error *err);
/* Brings tensors [from, to) of experts [first, end) that have a place of the ring's part in layer k's second list to
 * that place; the compute queue waits for them. */
enum strata_result st_experts_bring(struct device_stage *d, uint32_t k, uint32_t first, uint32_t end, int part,
                                    uint32_t from, uint32_t to, struct strata_error *err);
/* The expert's place in the device's first list as the store has it, in the host's copy; and the lists to the device.
 */
void st_experts_set_place(struct device_stage *d, uint32_t layer, uint32_t expert);
enum strata_result st_experts_send_places(struct device_stage *d, struct strata_error *err);

/* stage_experts_open.c */
/* The address of layer k's first list. */
st_addr st_experts_list(const struct device_stage *d, uint32_t layer);

#endif
