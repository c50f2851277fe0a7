/* Owns the fibers: stacks, the switch, the order in which work-items run, and what the address sanitizer must know about it. The
 * thread sanitizer sees nothing of them (kernel/meson.build). */
#include "runtime/fibers.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#define ST_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ST_ASAN 1
#endif
#endif
#ifdef ST_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

enum {
    STACK = 256 * 1024, /* sanitized code needs several times what plain code does */
    GUARD = 64 * 1024,  /* at least a page of any size */
    LOCAL = 64 * 1024,
    LOCAL_GAP = 64, /* between arrays of local memory; a sanitizer reports accesses there */
};

struct fiber {
    struct st_item item;
    void *sp;
    uint8_t *stack;
#ifdef ST_ASAN
    void *fake;
#endif
};

struct st_fibers {
    struct fiber fiber[ST_FIBERS_MAX];
    struct st_wave wave[ST_FIBERS_MAX / 32];
    uint8_t *stacks, *local;
    void *home; /* stack pointer of the caller */
    uint32_t lanes;
    uint32_t local_wanted;
    const struct st_host_kernel *kernel;
    const union st_arg *args;
    const void *home_stack; /* the caller's stack, for the sanitizer */
    size_t home_size;
#ifdef ST_ASAN
    void *home_fake;
#endif
};

_Thread_local struct st_item *st_item_now;

/* Stores the callee-saved registers and the stack pointer, takes the others: st_fiber_switch(&saved, next). */
void st_fiber_switch(void **saved, void *next);

#if defined(__x86_64__)
__asm__(".text\n"
        ".globl st_fiber_switch\n"
        ".hidden st_fiber_switch\n"
        ".type st_fiber_switch, @function\n"
        "st_fiber_switch:\n"
        "    endbr64\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size st_fiber_switch, . - st_fiber_switch\n");

/* First stack: six registers, the address to return to, and a word so that the entry sees the alignment of a call. */
static void *first_stack(uint8_t *top, void (*entry)(void))
{
    void **sp = (void **)top - 8;
    memset(sp, 0, 8 * sizeof *sp);
    sp[6] = (void *)entry;
    return sp;
}
#elif defined(__aarch64__)
__asm__(".text\n"
        ".globl st_fiber_switch\n"
        ".hidden st_fiber_switch\n"
        ".type st_fiber_switch, %function\n"
        "st_fiber_switch:\n"
        "    sub sp, sp, #160\n"
        "    stp x19, x20, [sp, #0]\n"
        "    stp x21, x22, [sp, #16]\n"
        "    stp x23, x24, [sp, #32]\n"
        "    stp x25, x26, [sp, #48]\n"
        "    stp x27, x28, [sp, #64]\n"
        "    stp x29, x30, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n"
        "    stp d10, d11, [sp, #112]\n"
        "    stp d12, d13, [sp, #128]\n"
        "    stp d14, d15, [sp, #144]\n"
        "    mov x2, sp\n"
        "    str x2, [x0]\n"
        "    mov sp, x1\n"
        "    ldp x19, x20, [sp, #0]\n"
        "    ldp x21, x22, [sp, #16]\n"
        "    ldp x23, x24, [sp, #32]\n"
        "    ldp x25, x26, [sp, #48]\n"
        "    ldp x27, x28, [sp, #64]\n"
        "    ldp x29, x30, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n"
        "    ldp d10, d11, [sp, #112]\n"
        "    ldp d12, d13, [sp, #128]\n"
        "    ldp d14, d15, [sp, #144]\n"
        "    add sp, sp, #160\n"
        "    ret\n"
        ".size st_fiber_switch, . - st_fiber_switch\n");

static void *first_stack(uint8_t *top, void (*entry)(void))
{
    uint64_t *sp = (uint64_t *)top - 20;
    memset(sp, 0, 160);
    sp[11] = (uint64_t)(uintptr_t)entry; /* x30 */
    return sp;
}
#else
#error "no fiber switch for this processor"
#endif

/* From a work-item back to the scheduler. */
static void leave(struct st_fibers *f, struct fiber *fiber)
{
#ifdef ST_ASAN
    __sanitizer_start_switch_fiber(&fiber->fake, f->home_stack, f->home_size);
#endif
    st_fiber_switch(&fiber->sp, f->home);
#ifdef ST_ASAN
    __sanitizer_finish_switch_fiber(fiber->fake, &f->home_stack, &f->home_size);
#endif
}

/* From the scheduler into a work-item until it waits or is done. */
static void enter(struct st_fibers *f, struct fiber *fiber)
{
    st_item_now = &fiber->item;
    fiber->item.state = ST_ITEM_RUNS;
#ifdef ST_ASAN
    __sanitizer_start_switch_fiber(&f->home_fake, fiber->stack, STACK);
#endif
    st_fiber_switch(&f->home, fiber->sp);
#ifdef ST_ASAN
    __sanitizer_finish_switch_fiber(f->home_fake, NULL, NULL);
#endif
}

/* A fiber's whole life: one work-item after the other. */
static void live(void)
{
    struct st_item *item = st_item_now;
    struct st_fibers *f = item->fibers;
    struct fiber *fiber = &f->fiber[item->index];
#ifdef ST_ASAN
    __sanitizer_finish_switch_fiber(NULL, &f->home_stack, &f->home_size);
#endif
    for (;;) {
        f->kernel->call(f->args);
        item->state = ST_ITEM_DONE;
        leave(f, fiber);
    }
}

void st_fiber_wait(struct st_item *item, enum st_item_state state)
{
    item->state = state;
    leave(item->fibers, &item->fibers->fiber[item->index]);
}

void *st_fiber_local(struct st_item *item, uint32_t size)
{
    uint32_t at = item->local_used;
    item->local_used += (size + LOCAL_GAP - 1) / LOCAL_GAP * LOCAL_GAP + LOCAL_GAP;
    struct st_fibers *f = item->fibers;
    if (item->local_used > f->local_wanted)
        f->local_wanted = item->local_used;
    if (item->local_used > LOCAL) { /* reported when the group ends; the arrays overlap until then */
        return item->local;
    }
#ifdef ST_ASAN
    ASAN_POISON_MEMORY_REGION(item->local + at, item->local_used - at);
    ASAN_UNPOISON_MEMORY_REGION(item->local + at, size);
#endif
    return item->local + at;
}

enum strata_result st_fibers_create(uint32_t lanes, struct st_fibers **out, struct strata_error *err)
{
    struct st_fibers *f = calloc(1, sizeof *f);
    size_t each = STACK + GUARD;
    if (!f)
        return st_fail(err, STRATA_E_MEMORY, "fibers: no memory");
    f->lanes = lanes;
    f->local = aligned_alloc(64, LOCAL);
    void *stacks = mmap(NULL, each * ST_FIBERS_MAX, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks != MAP_FAILED)
        f->stacks = stacks;
    if (!f->local || !f->stacks) {
        st_fibers_free(f);
        return st_fail(err, STRATA_E_MEMORY, "fibers: no memory for stacks");
    }
    for (int i = 0; i < ST_FIBERS_MAX; i++) {
        struct fiber *fiber = &f->fiber[i];
        fiber->stack = f->stacks + each * (size_t)i + GUARD;
        if (mprotect(fiber->stack, STACK, PROT_READ | PROT_WRITE) != 0) {
            st_fibers_free(f);
            return st_fail(err, STRATA_E_MEMORY, "fibers: no memory for stacks");
        }
    }
    *out = f;
    return STRATA_OK;
}

void st_fibers_free(struct st_fibers *f)
{
    if (!f)
        return;
    if (f->stacks) {
#ifdef ST_ASAN
        ASAN_UNPOISON_MEMORY_REGION(f->stacks, (size_t)(STACK + GUARD) * ST_FIBERS_MAX);
#endif
        munmap(f->stacks, (size_t)(STACK + GUARD) * ST_FIBERS_MAX);
    }
#ifdef ST_ASAN
    if (f->local)
        ASAN_UNPOISON_MEMORY_REGION(f->local, LOCAL);
#endif
    free(f->local);
    free(f);
}

/* Runs one wave until all its lanes wait at the barrier or are done. */
static enum strata_result run_wave(struct st_fibers *f, uint32_t first, uint32_t end, struct strata_error *err)
{
    for (;;) {
        uint32_t exchange = 0;
        for (uint32_t i = first; i < end; i++)
            if (f->fiber[i].item.state != ST_ITEM_DONE) {
                enter(f, &f->fiber[i]);
                exchange += f->fiber[i].item.state == ST_ITEM_AT_EXCHANGE;
            }
        if (exchange == 0)
            return STRATA_OK;
        if (exchange != end - first)
            return st_fail(err, STRATA_E_DEVICE,
                           "kernel %s: %u of %u lanes of a wave exchange values, the others do not", f->kernel->name,
                           exchange, end - first);
    }
}

static enum strata_result run_group(struct st_fibers *f, uint32_t items, struct strata_error *err)
{
#ifdef ST_ASAN
    ASAN_UNPOISON_MEMORY_REGION(f->local, LOCAL);
#endif
    /* local memory holds anything at the start of a group: NaN as floats, large numbers as integers */
    memset(f->local, 0xfb, f->local_wanted < LOCAL ? f->local_wanted : LOCAL);
    for (;;) {
        uint32_t waits = 0;
        for (uint32_t i = 0; i < items; i += f->lanes) {
            uint32_t end = i + f->lanes < items ? i + f->lanes : items;
            enum strata_result r = run_wave(f, i, end, err);
            if (r != STRATA_OK)
                return r;
        }
        for (uint32_t i = 0; i < items; i++)
            waits += f->fiber[i].item.state == ST_ITEM_AT_BARRIER;
        if (waits == 0)
            return STRATA_OK;
        if (waits != items)
            return st_fail(err, STRATA_E_DEVICE, "kernel %s: %u of %u work-items wait at a barrier, the others ended",
                           f->kernel->name, waits, items);
    }
}

/* Fibers that a failed group left in the middle of a kernel start anew. */
static void renew(struct st_fibers *f, uint32_t index)
{
    struct fiber *fiber = &f->fiber[index];
#ifdef ST_ASAN
    ASAN_UNPOISON_MEMORY_REGION(fiber->stack, STACK);
#endif
    fiber->sp = first_stack(fiber->stack + STACK, live);
}

enum strata_result st_fibers_run(struct st_fibers *f, const struct st_host_kernel *kernel, uint32_t items,
                                 const uint32_t grid[3], const union st_arg *args, struct strata_error *err)
{
    if (items == 0 || items > ST_FIBERS_MAX || grid[2] != 1)
        return st_fail(err, STRATA_E_DEVICE, "kernel %s: a group of %u work-items in a grid of depth %u cannot run",
                       kernel->name, items, grid[2]);
    f->kernel = kernel;
    f->args = args;
    f->local_wanted = 0;
    enum strata_result r = STRATA_OK;
    for (uint32_t i = 0; i < items; i++)
        if (!f->fiber[i].sp)
            renew(f, i);
    for (uint32_t y = 0; y < grid[1] && r == STRATA_OK; y++)
        for (uint32_t x = 0; x < grid[0] && r == STRATA_OK; x++) {
            for (uint32_t i = 0; i < items; i++)
                f->fiber[i].item = (struct st_item){.index = i,
                                                    .group = x,
                                                    .group_y = y,
                                                    .lane = i % f->lanes,
                                                    .wave = &f->wave[i / f->lanes],
                                                    .local = f->local,
                                                    .fibers = f};
            r = run_group(f, items, err);
            if (r == STRATA_OK && f->local_wanted > LOCAL)
                r = st_fail(err, STRATA_E_DEVICE, "kernel %s: %u bytes of local memory, %d are there", kernel->name,
                            f->local_wanted, LOCAL);
        }
    st_item_now = NULL;
    if (r != STRATA_OK)
        for (uint32_t i = 0; i < items; i++)
            renew(f, i);
    return r;
}
