/* Worker team: a generation counter starts a run, a sense-counting barrier separates phases. Waiting spins for a bounded
 * time and then sleeps on a futex-backed condition, so idle workers cost nothing and short phases cost no system call. */
#define _GNU_SOURCE
#include "base/team.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* About 50 microseconds on current cores: longer than the gap between two kernels, shorter than anyone notices as heat. */
enum { SPIN_ROUNDS = 4000 };

struct thread {
    pthread_t handle;
    struct st_worker worker;
};

struct st_team {
    int count;
    struct thread *threads;
    void (*fn)(void *, struct st_worker *);
    void *arg;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    _Atomic uint32_t generation; /* odd/even has no meaning; a change starts a run */
    _Atomic uint32_t arrived;    /* workers waiting at the current barrier */
    _Atomic uint32_t phase;      /* counts completed barriers */
    _Atomic uint32_t sleepers;
    bool stop; /* written under lock before generation changes */
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Waits until *word differs from old. */
static void wait_change(struct st_team *t, _Atomic uint32_t *word, uint32_t old)
{
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != old)
            return;
        relax();
    }
    pthread_mutex_lock(&t->lock);
    atomic_fetch_add(&t->sleepers, 1);
    while (atomic_load(word) == old)
        pthread_cond_wait(&t->wake, &t->lock);
    atomic_fetch_sub(&t->sleepers, 1);
    pthread_mutex_unlock(&t->lock);
}

/* Changes *word and wakes whoever sleeps. The sequentially consistent order of "change, then read sleepers" here against
 * "count as sleeper, then read word" above is what makes a lost wake-up impossible. */
static void change(struct st_team *t, _Atomic uint32_t *word)
{
    atomic_fetch_add(word, 1);
    if (atomic_load(&t->sleepers)) {
        pthread_mutex_lock(&t->lock);
        pthread_cond_broadcast(&t->wake);
        pthread_mutex_unlock(&t->lock);
    }
}

void st_barrier(struct st_worker *w)
{
    if (w->count == 1)
        return;
    struct st_team *t = w->team;
    uint32_t phase = atomic_load(&t->phase);
    if (atomic_fetch_add(&t->arrived, 1) + 1 == (uint32_t)w->count) {
        atomic_store(&t->arrived, 0);
        change(t, &t->phase);
    } else {
        wait_change(t, &t->phase, phase);
    }
}

static void *thread_main(void *p)
{
    struct thread *self = p;
    struct st_team *t = self->worker.team;
    uint32_t seen = 0;
    for (;;) {
        wait_change(t, &t->generation, seen);
        seen++;
        if (t->stop)
            return NULL;
        t->fn(t->arg, &self->worker);
        st_barrier(&self->worker);
    }
}

void st_team_run(struct st_team *t, void (*fn)(void *, struct st_worker *), void *arg)
{
    t->fn = fn;
    t->arg = arg;
    if (t->count > 1)
        change(t, &t->generation);
    fn(arg, &t->threads[0].worker);
    st_barrier(&t->threads[0].worker);
}

int st_team_size(const struct st_team *t)
{
    return t->count;
}

void st_team_free(struct st_team *t)
{
    if (!t)
        return;
    t->stop = true;
    change(t, &t->generation);
    for (int i = 1; i < t->count; i++)
        pthread_join(t->threads[i].handle, NULL);
    for (int i = 0; i < t->count; i++)
        free(t->threads[i].worker.scratch);
    pthread_cond_destroy(&t->wake);
    pthread_mutex_destroy(&t->lock);
    free(t->threads);
    free(t);
}

enum strata_result st_team_create(int threads, size_t scratch, struct st_team **out, struct strata_error *err)
{
    if (threads < 1 || threads > 1024)
        return st_fail(err, STRATA_E_ARGUMENT, "thread count %d is not in 1..1024", threads);
    struct st_team *t = calloc(1, sizeof *t);
    if (!t)
        return st_fail(err, STRATA_E_MEMORY, "no memory for a thread team");
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->wake, NULL);
    scratch = (scratch + 63) & ~(size_t)63;
    t->threads = calloc((size_t)threads, sizeof *t->threads);
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
