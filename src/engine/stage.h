/* A stage: consecutive layers of the model on one device, with their weights, state and buffers. A pass goes through
 * the stages in order; what is handed over is the wide residual of its rows. */
#ifndef ST_ENGINE_STAGE_H
#define ST_ENGINE_STAGE_H

#include "engine/ngram_io.h"
#include "kernel/sample.h"
#include "model/model.h"
#include "runtime/measure_cpu.h"

struct st_device;
struct st_device_info;
struct st_expert_profile;
struct st_profile;
struct st_trace;

/* One pass, as the engine gives it to a stage. All memory is the host's. A pass that commits held rows (rows->mode) has rows
 * and nothing else. */
struct st_pass {
    enum st_part part;
    const struct st_rows *rows;
    const float *wide_in;      /* [n][wide]: residual before the stage's first layer; NULL where the stage embeds */
    float *wide_out;           /* [n][wide]: residual after its last layer, or NULL */
    struct st_ngram_io *ngram; /* fetching the rows of this pass, or NULL */
    const struct st_sample *sample; /* NULL, or how the rows that give logits are sampled, where the stage can: [n_out] */
    float *residuals;          /* NULL, or residual after each layer: layer * residual_stride + first_row * wide */
    size_t residual_stride, first_row;
};

enum { ST_STAGE_PASSES = 2 }; /* passes that a stage may have begun and not finished */

struct st_stage;

struct st_stage_ops {
    /* Gives a pass to the stage, behind those that were begun before. What it needs of rows and n-gram rows has been taken when
     * this returns; wide_in, wide_out and residuals stay valid until its finish. A CPU stage computes the whole pass here. After
     * a failure only drop may follow. */
    enum strata_result (*begin)(struct st_stage *s, const struct st_pass *pass, struct strata_error *err);
    /* Waits for the oldest pass that was begun and not finished. If the stage has the head, logits then holds the rows that the
     * pass asked for, until the next pass that asks for some is begun; or picks has what became of them, and logits nothing. */
    enum strata_result (*finish)(struct st_stage *s, struct strata_error *err);
    /* Forgets the passes that were begun, once nothing of them touches the host's memory any more. */
    void (*drop)(struct st_stage *s);
    /* Page-locks memory of the caller's (whole pages) that passes will name as wide_in or wide_out, until unlock_host.
     * False: the device was given up and may still touch the memory, which must then stay where it is. */
    enum strata_result (*lock_host)(struct st_stage *s, void *memory, uint64_t bytes, struct strata_error *err);
    bool (*unlock_host)(struct st_stage *s, void *memory);
    /* Bytes of state; at is an address inside a piece of one of the stage's programs. */
    enum strata_result (*read)(struct st_stage *s, void *to, const uint8_t *at, uint64_t bytes, struct strata_error *err);
    enum strata_result (*write)(struct st_stage *s, uint8_t *at, const void *from, uint64_t bytes, struct strata_error *err);
    enum strata_result (*clear)(struct st_stage *s, uint8_t *at, uint64_t bytes, struct strata_error *err);
    void (*close)(struct st_stage *s);
};

struct st_stage {
    const struct st_stage_ops *ops;
    char name[32]; /* of the device */
    bool host;     /* begin computes on the calling thread */
    char note[320]; /* what people should know about it, until the engine takes it; or "" */
    uint32_t first, end;
    struct st_model bound; /* weights where the device reads them */
    struct st_model_dims dims;
    struct st_placement placement;
    struct st_program trunk, draft;                   /* draft has no commands unless the stage has the draft layer */
    const float *logits;                              /* [out rows of the last pass][vocabulary] */
    const struct st_sample_pick *picks;               /* NULL, or of these rows, which were sampled on the device */
    uint64_t weight_bytes, state_bytes, buffer_bytes; /* in the device's memory */
    struct st_profile *profile;                       /* NULL, or where times go; not of CPU stages */
    struct st_trace *trace;                           /* NULL, or where the host's work is told */
    struct st_expert_profile *choices;                /* NULL, or where chosen experts are counted */
};

/* Memory of passes of prompts of a stage with a store of experts, in bytes. Slots lend it. */
struct st_room_size {
    uint64_t buffers, rows, scratch, ring;
};

/* Bytes that a stage takes, and what one decoded token costs it. On a device the first eight parts are one allocation, each
 * part rounded up to ST_STAGE_ALIGN, which together are total. On the CPU weights lie in the mapped file, total is the rest
 * (state and buffers in one arena, scratch of the workers), rows are the engine's. */
struct st_stage_size {
    uint64_t weights, slots, prompts, state, buffers, experts, rows, scratch, total;
    /* Where not all experts are on the device (expert_store.h); then weights are all but experts, slots those that are there,
     * experts the lists and what comes from the host, and buffers, rows, scratch what windows need. */
    struct st_room_size room; /* what the largest prompt takes of the slots; what it lacks of them is prompts */
    uint64_t all_experts; /* slots for all of them */
    uint64_t host;        /* bytes of host memory for what the CPU computes, without the arena */
    uint64_t arena;       /* bytes of the arena */
    uint64_t in_file;     /* bytes of slots for experts that are neither here nor there */
    uint64_t helper, helper_slots, helper_locked; /* bytes of a helper's allocation, its slots, its page-locked memory */
    double helper_hit;    /* expected share of the chosen experts that a helper computes */
    double hit;           /* expected share of the chosen experts that are in slots */
    double expert_read;   /* of read, bytes of chosen experts */
    uint64_t steps;       /* layers with experts */
    uint64_t kv;       /* part of state that grows with the context */
    uint64_t locked;   /* page-locked host memory */
    uint64_t launches; /* of a pass of one row; on the CPU commands */
    double read;       /* bytes that a token reads and writes, at ST_STAGE_DEPTH tokens or the whole context if that is less */
};

enum { ST_STAGE_ALIGN = 256, ST_STAGE_DEPTH = 4096 };

static inline uint64_t st_stage_align(uint64_t v)
{
    return (v + ST_STAGE_ALIGN - 1) / ST_STAGE_ALIGN * ST_STAGE_ALIGN;
}

static inline uint64_t st_room_bytes(const struct st_room_size *size)
{
    return st_stage_align(size->buffers) + st_stage_align(size->rows) + st_stage_align(size->scratch) +
           st_stage_align(size->ring);
}

/* Bytes of slots that the largest prompt borrows. */
static inline uint64_t st_stage_lent(const struct st_stage_size *size)
{
    return st_room_bytes(&size->room) - size->prompts;
}

/* What every stage is made from. */
struct st_stage_config {
    const struct st_gguf *gguf, *draft_gguf;
    struct st_model_options options;    /* first, end and fp32 as wanted; put is the stage's own business */
    struct st_placement placement;      /* likewise act_bytes */
    const struct st_ngram_table *ngram; /* of the whole model; hash NULL: none */
    struct st_stage_experts {
        bool cached;    /* not all experts get a slot; false: they are weights as all others */
        uint64_t slots; /* bytes that slots may take */
        uint64_t arena; /* bytes that the host's arena of the others may take */
        struct st_device *helper; /* another device that computes some of them (helper.h), or NULL */
        uint64_t helper_slots;    /* bytes of its slots */
        uint64_t helper_room;     /* of sizes: bytes that a helper may take, 0: none */
        const struct st_expert_profile *profile; /* or NULL */
        uint32_t trunk_layers;                   /* of the model */
        const struct st_kernels *kernels;        /* of the CPU, with so many threads */
        int threads;
        struct st_line cpu; /* what the plan measured of it */
    } experts; /* of stages on devices */
};

/* On the CPU. rows: the host rows of all passes; kernels and team outlive the stage. */
enum strata_result st_stage_cpu_open(const struct st_stage_config *c, const struct st_rows *rows,
                                     const struct st_kernels *kernels, int threads, struct st_stage **out,
                                     struct strata_error *err);
/* What such a stage would take; nothing is allocated or loaded. */
enum strata_result st_stage_cpu_size(const struct st_stage_config *c, int threads, struct st_stage_size *out,
                                     struct strata_error *err);
/* What decoding on the CPU multiplies, of all layers of the range; for measuring it. */
enum strata_result st_stage_shape(const struct st_stage_config *c, struct st_decode_shape *out, struct strata_error *err);
/* On an opened device whose kernels are resolved. limit: bytes of its memory that the stage may take. */
enum strata_result st_stage_device_open(const struct st_stage_config *c, struct st_device *dev, uint64_t limit,
                                        struct st_stage **out, struct strata_error *err);
/* What such a stage would take of that device: the sizes that st_stage_device_open allocates. */
enum strata_result st_stage_device_size(const struct st_stage_config *c, const struct st_device_info *info,
                                        struct st_stage_size *out, struct strata_error *err);
/* Experts that windows chose, each counted once in a window, since the stage was opened: all; those in slots of the device; and of
 * the missing ones those that a helper computed, that were brought over the link, that the CPU computed, of these those that were
 * read from the file first. */
struct st_expert_counts {
    uint64_t chosen, in_slots, by_helper, over_link, by_cpu, from_file;
};
/* Of stages whose plan says cached; between passes. */
void st_device_experts_counts(const struct st_stage *s, struct st_expert_counts *out);
/* Where the experts that windows chose were and how long that took, a line; of stages whose plan says cached. */
void st_device_experts_report(const struct st_stage *s, char *out, size_t size);
/* Marks the kernels that a stage of these layers needs on that device. model: all layers, weights in the file. */
enum strata_result st_stage_device_needs(const struct st_stage_config *c, const struct st_device_info *info, bool *needed,
                                         struct strata_error *err);

/* Bytes that a program's commands read and write for one row with depth tokens before it: weights, recurrent state, keys
 * and values (traffic.c). */
double st_program_traffic(const struct st_program *p, uint32_t depth);
/* The part of that which is chosen experts; *layers: commands that have some. */
double st_program_expert_traffic(const struct st_program *p, uint64_t *layers);
/* The experts of its first command that has some, and the largest matrix of its layers beside them. */
void st_program_shape(const struct st_program *p, struct st_decode_shape *out);
/* Bytes of a program's state that grow with the context, of all slots, as placed. */
uint64_t st_program_kv_bytes(const struct st_program *p, uint32_t slots);

static inline void st_stage_close(struct st_stage *s)
{
    if (s)
        s->ops->close(s);
}

#endif
