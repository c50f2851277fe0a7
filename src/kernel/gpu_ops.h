/* From commands to launches: how a device with GPU kernels runs the command list of a model.
 *
 * A command is the same structure as on the CPU (kernel/table.h), with these differences:
 *  - every pointer to data (activations, weights, vectors, state, the arrays inside struct st_rows, st_routing, st_rope's
 *    copies) is an address of the device, cast; host code never reads through it. Use st_gpu_at.
 *  - the structures themselves (st_rows, st_weight, st_act_buffer, st_routing, st_rope) are host memory, so shapes, types and
 *    counts are read on the host while lowering. rows->n, n_out, n_spans and n_stream are the counts of the pass.
 *  - st_act_buffer.memory[form] has room for the buffer's rows in the layouts of kernel/gpu/layout.h (st_gpu_act_stride of the
 *    product's own cols), not in the CPU's layout.
 *  - embed copies rows->embd: the engine puts every row's embedding there. ngram_gather reads rows->ngram and ngram_index
 *    like the CPU.
 *
 * Lowering depends on shapes and counts only, never on values in device memory, so its launches can be captured into a graph
 * and replayed for every pass with the same counts. Whatever varies (positions, slots, spans, chosen experts) is read by the
 * kernels from the row arrays; grids are sized for the worst case of the counts and superfluous groups return.
 *
 * Two shapes of work: a window (n <= ST_GPU_WINDOW rows: decode kernels, rows independent of each other and of n, expert
 * arithmetic bit-identical to the CPU) and a prompt (more rows: matrix kernels). */
#ifndef ST_KERNEL_GPU_OPS_H
#define ST_KERNEL_GPU_OPS_H

#include "kernel/gpu_launch.h"
#include "kernel/table.h"

enum { ST_GPU_WINDOW = 8 };

/* Launches in order; each may read what the ones before wrote. Small steps of neighbouring commands are done by one launch where
 * the caller says what follows: the results are the same bits. */
struct st_gpu_list {
    struct st_gpu_launch *launch;
    size_t count, capacity;
    bool failed; /* memory ran out: the list must not be run */
    struct st_gpu_launch spare;
    /* Set by the caller, or NULL: the end of the array of commands that are lowered one after the other with this list. */
    const struct st_command *end;
    /* Of lowering: the command after this one, or NULL; a write that the next command's launch does as well, or NULL; and the input
     * of products of which some integer forms (OR of 1 << form) are in its activation buffer. */
    const struct st_command *next;
    const struct st_gated_write *held;
    struct {
        const float *x;
        const uint8_t *memory; /* of the first integer form */
        unsigned forms;
    } ready;
};
/* Room for one more; never NULL (a failed list hands out a spare). */
struct st_gpu_launch *st_gpu_push(struct st_gpu_list *list);
void st_gpu_list_free(struct st_gpu_list *list);

/* What lowering may know of the device. */
struct st_gpu_target {
    uint32_t lanes, units; /* as in st_device_info */
    bool folded;           /* ST_FEATURE_FOLDED */
    st_addr scratch;       /* at least st_gpu_scratch of every command; shared by all commands */
    uint64_t scratch_bytes; /* a multiple of 16 */
};

/* Of a device; no scratch yet. */
static inline struct st_gpu_target st_gpu_target_of(const struct st_device_info *info)
{
    return (struct st_gpu_target){
        .lanes = info->lanes, .units = info->units, .folded = (info->features & ST_FEATURE_FOLDED) != 0};
}

static inline st_addr st_gpu_at(const void *p)
{
    return (st_addr)(uintptr_t)p;
}

/* Appends the launches of a command for the counts that its rows hold now. STRATA_E_UNSUPPORTED names what has no kernel: type,
 * shape. The engine also lowers for every kind of counts before it loads a model, to learn which kernels are needed. */
enum strata_result st_gpu_lower(const struct st_command *c, const struct st_gpu_target *t, struct st_gpu_list *list,
                                struct strata_error *err);

/* The experts command in steps, for experts that lie in slots and are not all there. Begin, the up step for ranges that cover all
 * experts, middle, down for the same ranges; of a window perhaps up, later, down for those that were brought meanwhile; end. */
enum st_gpu_experts_step {
    ST_EXPERTS_BEGIN,  /* the forms of m that gates and ups take */
    ST_EXPERTS_UP,     /* gate and up of the range's experts */
    ST_EXPERTS_MIDDLE, /* the shared expert, and the form that downs take */
    ST_EXPERTS_LATER,  /* of a window: the form that downs take once more, after the gates and ups of experts that came late */
    ST_EXPERTS_DOWN,   /* outputs of the range's experts */
    ST_EXPERTS_END,    /* outputs added in the router's order */
};
struct st_gpu_experts_part {
    enum st_gpu_experts_step step;
    uint32_t from, to; /* experts; of a window always all of them */
    bool brought;      /* where weights have places: by their second list */
    st_addr where;     /* of the end: 0, or a list in place of routing->where; numbers of rows behind o */
};
enum strata_result st_gpu_lower_experts_part(const struct st_experts *a, const struct st_gpu_experts_part *part,
                                             const struct st_gpu_target *t, struct st_gpu_list *list, struct strata_error *err);

/* Device scratch that lowering the command for up to rows rows may use, in bytes. Pointers in the command and the target's scratch
 * are not used. */
uint64_t st_gpu_scratch(const struct st_command *c, uint32_t rows, const struct st_gpu_target *t);

#endif
