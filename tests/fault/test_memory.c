/* Host memory that runs out while an engine starts: every request for it fails once, by its number. Each start is
 * refused with a message, nothing is left behind, and the last one, in which nothing fails, works. The linker gives
 * this program's calls of the allocator to the functions here. */
#include "machine.h"

#include <stdatomic.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
char *__wrap_strdup(const char *text);

static _Atomic int64_t until_failure = INT64_MAX; /* requests */

static bool fails(void)
{
    return atomic_fetch_sub(&until_failure, 1) == 1;
}

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return fails() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *memory, size_t size)
{
    return fails() ? NULL : __real_realloc(memory, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return fails() ? NULL : __real_aligned_alloc(alignment, size);
}

char *__wrap_strdup(const char *text)
{
    return fails() ? NULL : __real_strdup(text);
}

static struct strata_model *model;

static const int32_t ids[] = {1, 2, 3};
static float expected[TINY_VOCABULARY];

/* Starts an engine in which request number n fails; false when there were fewer. A start that succeeds all the same has
 * lost nothing by it. */
static bool start(const struct strata_engine_options *o, int64_t n)
{
    struct strata_error err = {0};
    struct strata_engine *e = NULL;
    struct strata_session *s = NULL;
    float logits[TINY_VOCABULARY];
    atomic_store(&until_failure, n);
    enum strata_result r = strata_engine_create(model, o, &e, &err);
    if (!r)
        r = strata_session_create(e, &s, &err);
    bool failed = atomic_exchange(&until_failure, INT64_MAX) <= 0;
    if (!failed)
        assert_ok(r, &err);
    if (r) {
        assert_int_equal(err.code, r);
        assert_true(err.text[0]);
    } else {
        assert_ok(strata_session_eval(s, ids, 3, false, logits, &err), &err);
        assert_memory_equal(logits, expected, sizeof logits);
    }
    strata_session_free(s);
    strata_engine_free(e);
    return failed;
}

/* Starts once for each request that can fail. */
static void walk(const char *devices, const char *split)
{
    int64_t n = 1;
    struct strata_error err;
    struct strata_engine *e;
    struct strata_session *s;
    struct strata_engine_options o = {.devices = devices,
                                      .layer_split = split,
                                      .threads = 2,
                                      .context = 32,
                                      .prefill = 8,
                                      .kv = STRATA_KV_F32,
                                      .fp32 = true};
    assert_ok(strata_engine_create(model, &o, &e, &err), &err);
    assert_ok(strata_session_create(e, &s, &err), &err);
    assert_ok(strata_session_eval(s, ids, 3, false, expected, &err), &err);
    strata_session_free(s);
    strata_engine_free(e);
    while (start(&o, n))
        n++;
    assert_true(n > 50);
    print_message("# %s: %lld requests\n", devices, (long long)n - 1);
}

static void start_on_two_devices(void **state)
{
    (void)state;
    walk("sim:gfx1100:1G,sim:gfx1201:1G", "3,2");
}

static void start_on_the_cpu(void **state)
{
    (void)state;
    walk("cpu", NULL);
}

static int setup(void **state)
{
    (void)state;
    return open_tiny(&model);
}

static int teardown(void **state)
{
    (void)state;
    strata_model_free(model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(start_on_two_devices),
        cmocka_unit_test(start_on_the_cpu),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
