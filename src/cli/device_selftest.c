/* strata-device --selftest: all chosen devices at once. */
#include "cli/device_selftest.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/options.h"
#include "runtime/copy.h"
#include "runtime/selftest.h"

/* Pieces that are no multiple of the copied size, so that the last one is short. */
enum { COPY_BYTES = (5 << 20) + 1232, PIECE_BYTES = 1 << 20 };

struct tester {
    struct st_device *dev;
    uint64_t seed;
    pthread_mutex_t *print;
    struct st_selftest_result result;
    enum strata_result status;
    struct strata_error err;
};

static void report(void *arg, const struct st_selftest_case *c)
{
    struct tester *t = arg;
    if (!c->fault)
        return;
    pthread_mutex_lock(t->print);
    printf("%s: WRONG: %s: %s: %s\n", t->dev->name, c->family, c->shape, c->fault);
    pthread_mutex_unlock(t->print);
}

static void *test_thread(void *arg)
{
    struct tester *t = arg;
    struct st_selftest_options options = {.seed = t->seed, .report = report, .arg = t};
    t->status = st_selftest(t->dev, &options, &t->result, &t->err);
    return NULL;
}

/* Prints what a device did; true when all is right. */
static bool conclude(const struct tester *t)
{
    if (t->status != STRATA_OK) {
        printf("%s: FAILED: %s\n", t->dev->name, t->err.text);
        return false;
    }
    printf("%s: %s, %s, %s, kernels for %s: %d cases, %d wrong\n", t->dev->name, t->dev->info.model, t->dev->info.arch,
           t->dev->info.driver, t->dev->module_count ? strstr(t->dev->modules[0].label, "for ") + 4 : "nothing",
           t->result.cases, t->result.failed);
    return t->result.failed == 0;
}

static bool test_kernels(struct st_device **devices, int count, uint64_t seed)
{
    struct tester testers[ST_MAX_DEVICES] = {0};
    pthread_t threads[ST_MAX_DEVICES];
    bool started[ST_MAX_DEVICES] = {false}, good = true;
    pthread_mutex_t print = PTHREAD_MUTEX_INITIALIZER;
    for (int i = 0; i < count; i++) {
        testers[i] = (struct tester){.dev = devices[i], .seed = seed, .print = &print};
        started[i] = pthread_create(&threads[i], NULL, test_thread, &testers[i]) == 0;
        if (!started[i])
            test_thread(&testers[i]);
    }
    for (int i = 0; i < count; i++)
        if (started[i])
            pthread_join(threads[i], NULL);
    for (int i = 0; i < count; i++)
        good = conclude(&testers[i]) && good;
    return good;
}

/* Host -> from -> to -> host, then the bytes are compared. */
static enum strata_result copy_between(struct st_channel *channel, const uint8_t *pattern, uint8_t *arrived,
                                       bool *right, struct strata_error *err)
{
    struct st_device *from = channel->from, *to = channel->to;
    st_addr src = 0, dst = 0;
    enum strata_result r = from->table->allocate(from->rt, COPY_BYTES, &src, err);
    if (r == STRATA_OK)
        r = to->table->allocate(to->rt, COPY_BYTES, &dst, err);
    if (r == STRATA_OK)
        r = from->table->copy_in(from->compute, src, pattern, COPY_BYTES, err);
    if (r == STRATA_OK)
        r = st_channel_copy(channel, from->compute, src, to->compute, dst, COPY_BYTES, err);
    if (r == STRATA_OK)
        r = to->table->copy_out(to->compute, arrived, dst, COPY_BYTES, err);
    if (r == STRATA_OK)
        r = st_wait(to, to->compute, err);
    if (r == STRATA_OK)
        r = st_wait(from, from->compute, err);
    *right = r == STRATA_OK && memcmp(pattern, arrived, COPY_BYTES) == 0;
    from->table->release(from->rt, src);
    to->table->release(to->rt, dst);
    return r;
}

static bool test_copy(struct st_device *from, struct st_device *to, const uint8_t *pattern, uint8_t *arrived)
{
    static const char *const ways[] = {"in its memory", "directly", "through host memory"};
    struct st_channel *channel = NULL;
    struct strata_error err = {0};
    bool right = false;
    memset(arrived, 0, COPY_BYTES);
    enum strata_result r = st_channel_open(from, to, PIECE_BYTES, true, &channel, &err);
    if (r == STRATA_OK)
        r = copy_between(channel, pattern, arrived, &right, &err);
    if (r != STRATA_OK)
        printf("copy %s to %s: FAILED: %s\n", from->name, to->name, err.text);
    else
        printf("copy %s to %s, %s: %s\n", from->name, to->name, ways[channel->way], right ? "right" : "WRONG BYTES");
    st_channel_close(channel);
    return right;
}

static bool test_copies(struct st_device **devices, int count, uint64_t seed)
{
    uint8_t *pattern = malloc(COPY_BYTES), *arrived = malloc(COPY_BYTES);
    bool good = pattern && arrived;
    uint64_t state = seed | 1;
    for (int i = 0; good && i < COPY_BYTES; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        pattern[i] = (uint8_t)(state >> 56);
    }
    for (int i = 0; i < count && pattern && arrived; i++)
        for (int j = 0; j < count; j++)
            good = test_copy(devices[i], devices[j], pattern, arrived) && good;
    free(pattern);
    free(arrived);
    return good;
}

int st_device_selftest(struct st_devices *set, uint64_t seed)
{
    struct st_device *devices[ST_MAX_DEVICES] = {NULL};
    struct strata_error err = {0};
    enum strata_result r = STRATA_OK;
    int count = set->chosen_count;
    if (count == 0)
        return st_user_error("strata-device: no device to test; --list-devices says why");
    for (int i = 0; i < count && r == STRATA_OK; i++)
        r = st_device_open(set, set->chosen[i], NULL, &devices[i], &err);
    bool good = false;
    if (r == STRATA_OK) {
        printf("%d devices open in one process, seed %llu\n", count, (unsigned long long)seed);
        good = test_kernels(devices, count, seed);
        good = test_copies(devices, count, seed) && good;
        printf("%s\n", good ? "all right" : "NOT RIGHT: do not use this driver; please report the lines above");
    }
    for (int i = count - 1; i >= 0; i--)
        st_device_close(devices[i]);
    return r != STRATA_OK ? st_report(&err) : good ? ST_EXIT_OK : ST_EXIT_DEVICE;
}
