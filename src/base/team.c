/* Worker team: a word for each worker starts its run, a sense-counting barrier separates phases. Waiting spins for a
 * bounded time and then sleeps in the kernel (futex), so idle workers cost nothing and short phases cost no system
 * call. */
#define _GNU_SOURCE
#include "base/team.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* About 50 microseconds on current cores: longer than the gap between two kernels, shorter than anyone notices as heat.
 * Behind that a worker offers its core to others for a while before it sleeps: waking takes as long as the spin, so a
 * team whose workers sleep at one barrier would be late, and sleep, at the next one too. A yield takes a fraction of a
 * microsecond where nobody else wants the core. */
enum { SPIN_ROUNDS = 4000, ROUNDS_A_YIELD = 20, BARRIER_YIELDS = 1000 };

/* A number that others wait for. */
struct word {
    _Atomic uint32_t value;
    _Atomic uint32_t sleepers;
};

struct thread {
    _Alignas(64) struct word go; /* counts the runs that this worker takes part in */
    pthread_t handle;
    struct st_worker worker;
};

struct st_team {
    int count;
    struct thread *threads;
    void (*fn)(void *, struct st_worker *);
    void *arg;
    bool stop;                             /* written before go changes */
    _Alignas(64) _Atomic uint32_t arrived; /* workers waiting at the current barrier */
    _Alignas(64) struct word phase;        /* counts completed barriers */
    _Atomic uint64_t sleeps;
    _Atomic int yields; /* of a worker without work, before it sleeps */
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static long futex(_Atomic uint32_t *word, int operation, uint32_t value)
{
    return syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

static bool spin(struct word *w, uint32_t old, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        if (atomic_load_explicit(&w->value, memory_order_acquire) != old)
            return true;
        relax();
    }
    return false;
}

/* Waits until the word differs from old; true when that took longer than the spin. yields: how often the core is
 * offered to others before this thread sleeps. */
static bool wait_change(struct word *w, uint32_t old, int yields)
{
    if (spin(w, old, SPIN_ROUNDS))
        return false;
    for (int i = 0; i < yields; i++) {
        sched_yield();
        if (spin(w, old, ROUNDS_A_YIELD))
            return true;
    }
    atomic_fetch_add(&w->sleepers, 1);
    while (atomic_load(&w->value) == old)
        futex(&w->value, FUTEX_WAIT, old); /* returns at once when the value has changed */
    atomic_fetch_sub(&w->sleepers, 1);
    return true;
}

/* Changes the word and wakes whoever sleeps. The sequentially consistent order of "change, then read sleepers" here
 * against "count as sleeper, then compare" above is what makes a lost wake-up impossible. */
static void change(struct word *w)
{
    atomic_fetch_add(&w->value, 1);
    if (atomic_load(&w->sleepers))
        futex(&w->value, FUTEX_WAKE, INT_MAX);
}

void st_await(const _Atomic uint32_t *word)
{
    for (int i = 0; !atomic_load_explicit(word, memory_order_acquire); i++)
        if (i < SPIN_ROUNDS)
            relax();
        else
            sched_yield(); /* that worker may need this core */
}

void st_barrier(struct st_worker *w)
{
    uint32_t count = (uint32_t)w->count; /* belongs to the next run as soon as the last worker is here */
    if (count == 1)
        return;
    struct st_team *t = w->team;
    uint32_t phase = atomic_load(&t->phase.value);
    if (atomic_fetch_add(&t->arrived, 1) + 1 == count) {
        atomic_store(&t->arrived, 0);
        change(&t->phase);
    } else if (wait_change(&t->phase, phase, BARRIER_YIELDS)) {
        atomic_fetch_add_explicit(&t->sleeps, 1, memory_order_relaxed);
    }
}

static void *thread_main(void *p)
{
    struct thread *self = p;
    struct st_team *t = self->worker.team;
    uint32_t seen = 0;
    for (;;) {
        wait_change(&self->go, seen, atomic_load_explicit(&t->yields, memory_order_relaxed));
        seen++;
        if (t->stop)
            return NULL;
        t->fn(t->arg, &self->worker);
        st_barrier(&self->worker);
    }
}

void st_team_begin(struct st_team *t, int workers, void (*fn)(void *, struct st_worker *), void *arg)
{
    t->fn = fn;
    t->arg = arg;
    for (int i = 0; i < workers; i++)
        t->threads[i].worker.count = workers;
    for (int i = 1; i < workers; i++)
        change(&t->threads[i].go);
}

void st_team_end(struct st_team *t)
{
    t->fn(t->arg, &t->threads[0].worker);
    st_barrier(&t->threads[0].worker);
}

void st_team_run_on(struct st_team *t, int workers, void (*fn)(void *, struct st_worker *), void *arg)
{
    st_team_begin(t, workers, fn, arg);
    st_team_end(t);
}

void st_team_run(struct st_team *t, void (*fn)(void *, struct st_worker *), void *arg)
{
    st_team_run_on(t, t->count, fn, arg);
}

void st_team_linger(struct st_team *t, int yields)
{
    atomic_store(&t->yields, yields);
}

int st_team_size(const struct st_team *t)
{
    return t->count;
}

uint64_t st_team_sleeps(const struct st_team *t)
{
    return atomic_load_explicit(&t->sleeps, memory_order_relaxed);
}

void st_team_free(struct st_team *t)
{
    if (!t)
        return;
    t->stop = true;
    for (int i = 1; i < t->count; i++)
        change(&t->threads[i].go);
    for (int i = 1; i < t->count; i++)
        pthread_join(t->threads[i].handle, NULL);
    for (int i = 0; i < t->count; i++)
        free(t->threads[i].worker.scratch);
    free(t->threads);
    free(t);
}

/* Zeroed memory at a multiple of 64 bytes. */
static void *clear_lines(size_t bytes)
{
    size_t whole = (bytes + 63) & ~(size_t)63;
    void *p = aligned_alloc(64, whole);
    return p ? memset(p, 0, whole) : NULL;
}

enum strata_result st_team_create(int threads, size_t scratch, struct st_team **out, struct strata_error *err)
{
    if (threads < 1 || threads > 1024)
        return st_fail(err, STRATA_E_ARGUMENT, "thread count %d is not in 1..1024", threads);
    struct st_team *t = clear_lines(sizeof *t);
    if (!t)
        return st_fail(err, STRATA_E_MEMORY, "no memory for a thread team");
    scratch = (scratch + 63) & ~(size_t)63;
    t->threads = clear_lines((size_t)threads * sizeof *t->threads);
    if (!t->threads)
        goto no_memory;
    for (int i = 0; i < threads; i++) {
        struct st_worker *w = &t->threads[i].worker;
        *w = (struct st_worker){.index = i, .count = threads, .team = t, .scratch_size = scratch};
        if (scratch && !(w->scratch = aligned_alloc(64, scratch)))
            goto no_memory;
        if (i > 0 && pthread_create(&t->threads[i].handle, NULL, thread_main, &t->threads[i])) {
            free(w->scratch);
            st_team_free(t);
            return st_fail(err, STRATA_E_LIMIT, "the system refused thread %d of %d", i + 1, threads);
        }
        t->count = i + 1;
    }
    *out = t;
    return STRATA_OK;
no_memory:
    st_team_free(t);
    return st_fail(err, STRATA_E_MEMORY, "no memory for %d threads with %zu bytes of scratch each", threads, scratch);
}

void st_share(const struct st_worker *w, size_t n, size_t grain, size_t *from, size_t *to)
{
    size_t units = (n + grain - 1) / grain, count = (size_t)w->count, index = (size_t)w->index;
    size_t a = units * index / count * grain, b = units * (index + 1) / count * grain;
    *from = a < n ? a : n;
    *to = b < n ? b : n;
}

/* True when cpu is the first allowed thread of its core. */
static bool first_of_core(int cpu, const cpu_set_t *allowed)
{
    char path[96], list[256];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    FILE *f = fopen(path, "r");
    if (!f)
        return true;
    char *line = fgets(list, sizeof list, f);
    fclose(f);
    while (line && *line) {
        char *end;
        long a = strtol(line, &end, 10), b = a;
        if (end == line)
            break;
        if (*end == '-')
            b = strtol(end + 1, &end, 10);
        for (long i = a; i <= b && i < CPU_SETSIZE; i++)
            if (i < cpu && i >= 0 && CPU_ISSET((int)i, allowed))
                return false;
        line = *end == ',' ? end + 1 : NULL;
    }
    return true;
}

int st_cpu_cores(void)
{
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed))
        return 1;
    int cores = 0;
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &allowed) && first_of_core(i, &allowed))
            cores++;
    return cores > 0 ? cores : 1;
}
