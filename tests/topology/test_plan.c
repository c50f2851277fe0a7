/* The plan: its bytes are those that are allocated, its limits hold to the byte, its choice is the fastest that it
 * knows. Simulated devices count what they give; the demo model with and without its draft layer. */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/pipeline.h"
#include "runtime/sim.h"

static struct {
    struct strata_model *model;
    char draft[1024];
} f;

/* Options with a fixed chunk, so that sizes depend on nothing else. All experts on the devices; test_experts.c has the others. */
static struct strata_engine_options options(const char *devices, const char *split)
{
    return (struct strata_engine_options){
        .devices = devices, .layer_split = split, .threads = 1, .context = 512, .prefill = 64, .sessions = 2, .expert_cache = "100%"};
}

static struct st_plan plan_of(const struct strata_engine_options *o)
{
    struct strata_error err;
    struct strata_engine *e;
    assert_ok(st_engine_plan_only(f.model, o, &e, &err), &err);
    struct st_plan plan = e->plan;
    strata_engine_free(e);
    return plan;
}

static void assert_allocated(struct strata_engine *e)
{
    const struct st_plan_host *h = &e->plan.host;
    uint64_t locked = 0, arenas = 0, buffer = st_pipeline_buffer(&e->placement, &e->dims);
    bool drafts = e->options.drafts && e->dims.draft, locks_drafts = false;
    assert_int_equal(e->draft.wide != NULL, drafts);
    for (int k = 0; k < e->n_stages; k++) {
        const struct st_plan_stage *s = &e->plan.stage[k];
        const struct st_stage *stage = e->stages[k];
        uint64_t device, host;
        assert_int_equal(stage->state_bytes, s->size.state);
        assert_int_equal(stage->buffer_bytes, s->size.buffers);
        if (s->found < 0) {
            arenas += stage->state_bytes + stage->buffer_bytes;
            continue;
        }
        assert_int_equal(stage->weight_bytes, s->size.weights);
        st_sim_usage(e->opened[k]->rt, &device, &host);
        assert_int_equal(device, s->size.total + s->taken);
        /* The buffers before and behind a stage are locked by it too, and the one before its draft layer. */
        uint64_t beside = (uint64_t)ST_STAGE_PASSES * ((k > 0) + (k + 1 < e->n_stages)) * buffer;
        locks_drafts = drafts && k + 1 == e->n_stages;
        assert_int_equal(host, s->size.locked + beside +
                                   (locks_drafts ? st_pipeline_draft_buffer(&e->placement, &e->dims) : 0));
        locked += s->size.locked;
    }
    assert_int_equal(h->hand_off, (uint64_t)ST_STAGE_PASSES * (uint64_t)(e->n_stages - 1) * buffer +
                                      (locks_drafts ? st_pipeline_draft_buffer(&e->placement, &e->dims) : 0));
    assert_int_equal(h->locked, locked + h->hand_off);
    assert_int_equal(h->state + h->buffers, arenas);
    assert_int_equal(h->total, h->locked + h->state + h->buffers + h->workers + h->passes + h->kept);
    assert_int_equal(h->kept, e->keep.limit);
}

static void what_is_planned_is_what_is_allocated(void **state)
{
    (void)state;
    static const struct {
        const char *devices, *split;
    } machines[] = {{"sim:gfx1100:8G", NULL},
                    {"sim:gfx90a:8G:units=104:driver=96M", NULL},
                    {"sim:sm_89:8G:driver=300M,sim:gfx1201:8G", "3,5"},
                    {"sim:sm_89:8G,cpu,sim:gfx1201:8G:units=64", "3,4,1"},
                    {"sim:gfx1100:8G,cpu", "1,7"},
                    {"cpu,sim:gfx1100:8G", "7,1"}};
    static const enum strata_kv kinds[] = {STRATA_KV_F32, STRATA_KV_F16, STRATA_KV_INT8, STRATA_KV_Q4};
    for (size_t m = 0; m < sizeof machines / sizeof *machines; m++)
        for (size_t k = 0; k < 4; k++) {
            struct strata_error err;
            struct strata_engine *e;
            struct strata_engine_options o = options(machines[m].devices, machines[m].split);
            o.kv = kinds[k];
            o.mtp_path = (m + k) % 2 ? f.draft : NULL; /* each machine with and without, each type too */
            o.drafts = k % 4 ? 0 : 3;
            assert_ok(strata_engine_create(f.model, &o, &e, &err), &err);
            assert_allocated(e);
            struct st_plan before = plan_of(&o);
            assert_memory_equal(&before.host, &e->plan.host, sizeof before.host);
            strata_engine_free(e);
        }
}

static void smaller_keys_and_values_and_no_draft_layer_take_less(void **state)
{
    (void)state;
    static const enum strata_kv kinds[] = {STRATA_KV_F32, STRATA_KV_F16, STRATA_KV_INT8, STRATA_KV_Q4};
    uint64_t last = UINT64_MAX;
    for (size_t k = 0; k < 4; k++) {
        struct strata_engine_options o = options("sim:gfx1100:8G", NULL);
        o.kv = kinds[k];
        struct st_plan plan = plan_of(&o);
        assert_true(plan.stage[0].size.kv > 0 && plan.stage[0].size.kv < last);
        last = plan.stage[0].size.kv;
        o.mtp_path = f.draft;
        struct st_plan with = plan_of(&o);
        assert_true(with.stage[0].size.weights > plan.stage[0].size.weights);
        assert_true(with.stage[0].size.kv > plan.stage[0].size.kv);
        /* A token that is not drafted reads the same. */
        assert_true(with.stage[0].size.read == plan.stage[0].size.read);
    }
}

static void parts_of_a_model_add_up_to_the_whole(void **state)
{
    (void)state;
    struct strata_engine_options o = options("sim:gfx1100:8G", NULL);
    struct st_plan whole = plan_of(&o);
    static const char *const splits[] = {"1,1,6", "2,5,1", "3,2,3"};
    for (size_t i = 0; i < 3; i++) {
        o = options("sim:gfx1100:8G,sim:gfx1100:8G,sim:gfx1100:8G", splits[i]);
        struct st_plan parts = plan_of(&o);
        double read = 0;
        uint64_t state_bytes = 0, launches = 0;
        for (int k = 0; k < 3; k++) {
            read += parts.stage[k].size.read;
            launches += parts.stage[k].size.launches;
            state_bytes += parts.stage[k].size.state;
        }
        assert_true(read == whole.stage[0].size.read);
        /* What is one launch with its neighbour may be two where a stage ends. */
        assert_true(launches >= whole.stage[0].size.launches && launches <= whole.stage[0].size.launches + 2);
        assert_int_equal(state_bytes, whole.stage[0].size.state);
    }
}

/* The limit on stage k's device: the planned bytes work, a byte less is refused with both numbers. */
static void check_limit(const char *devices, const char *split, int k)
{
    struct strata_error err;
    struct strata_engine *e;
    struct strata_engine_options o = options(devices, split);
    struct st_plan plan = plan_of(&o);
    char limit[64], number[32];
    uint64_t total = plan.stage[k].size.total;
    snprintf(limit, sizeof limit, "%s=%llu", plan.stage[k].name, (unsigned long long)total);
    o.vram_limit = limit;
    assert_ok(strata_engine_create(f.model, &o, &e, &err), &err);
    assert_allocated(e);
    strata_engine_free(e);
    snprintf(limit, sizeof limit, "%s=%llu", plan.stage[k].name, (unsigned long long)total - 1);
    assert_int_equal(strata_engine_create(f.model, &o, &e, &err), STRATA_E_DEVICE);
    assert_int_equal(err.code, STRATA_E_DEVICE);
    assert_non_null(strstr(err.text, plan.stage[k].name));
    snprintf(number, sizeof number, "%llu bytes", (unsigned long long)total);
    assert_non_null(strstr(err.text, number));
    snprintf(number, sizeof number, "%llu may", (unsigned long long)total - 1);
    assert_non_null(strstr(err.text, number));
}

static void one_byte_less_than_planned_on_a_device_is_refused_before_loading(void **state)
{
    (void)state;
    check_limit("sim:gfx1100:8G", NULL, 0);
    check_limit("sim:gfx1100:8G,sim:gfx1201:8G", "3,5", 0);
    check_limit("sim:gfx1100:8G,sim:gfx1201:8G", "3,5", 1);
    check_limit("sim:gfx1100:8G,cpu,sim:sm_89:8G", "3,2,3", 2);
}

static void one_byte_less_than_planned_of_host_memory_is_refused(void **state)
{
    (void)state;
    static const char *const machines[] = {"cpu", "sim:gfx1100:8G", "sim:gfx1100:8G,cpu"};
    for (int i = 0; i < 3; i++) {
        struct strata_error err;
        struct strata_engine *e;
        struct strata_engine_options o = options(machines[i], i == 2 ? "3,5" : NULL);
        uint64_t total = plan_of(&o).host.total;
        char number[40];
        o.ram_limit = total;
        assert_ok(strata_engine_create(f.model, &o, &e, &err), &err);
        strata_engine_free(e);
        o.ram_limit = total - 1;
        assert_int_equal(strata_engine_create(f.model, &o, &e, &err), STRATA_E_MEMORY);
        assert_non_null(strstr(err.text, "host memory"));
        snprintf(number, sizeof number, "%llu bytes", (unsigned long long)total);
        assert_non_null(strstr(err.text, number));
        snprintf(number, sizeof number, "%llu may", (unsigned long long)total - 1);
        assert_non_null(strstr(err.text, number));
    }
}

static void what_the_driver_takes_and_a_display_needs_is_not_given_out(void **state)
{
    (void)state;
    struct strata_engine_options o = options("sim:gfx1100:8G:driver=300M:display", NULL);
    struct st_plan_stage s = plan_of(&o).stage[0];
    assert_int_equal(s.memory, 8ull << 30);
    assert_int_equal(s.taken, 300ull << 20);
    assert_int_equal(s.free, s.memory - s.taken);
    assert_int_equal(s.reserve, 1ull << 30);
    assert_int_equal(s.limit, s.free - s.reserve);
    o = options("sim:gfx1100:8G", NULL);
    assert_int_equal(plan_of(&o).stage[0].reserve, 512ull << 20);
}

static void no_stage_is_larger_than_what_its_driver_gives_at_once(void **state)
{
    (void)state;
    struct strata_error err;
    struct strata_engine *e;
    char devices[64];
    struct strata_engine_options o = options("sim:gfx1100:8G", NULL);
    uint64_t total = plan_of(&o).stage[0].size.total;
    o.devices = devices;
    snprintf(devices, sizeof devices, "sim:gfx1100:8G:max=%llu", (unsigned long long)total);
    assert_ok(strata_engine_create(f.model, &o, &e, &err), &err);
    strata_engine_free(e);
    snprintf(devices, sizeof devices, "sim:gfx1100:8G:max=%llu", (unsigned long long)total - 1);
    assert_int_equal(st_engine_plan_only(f.model, &o, &e, &err), STRATA_E_DEVICE);
    assert_non_null(strstr(err.text, "no larger allocation"));
}

static void chunks_grow_as_far_as_the_memory_goes(void **state)
{
    (void)state;
    struct strata_engine_options o = options("sim:gfx1100:8G", NULL);
    o.context = 16384;
    o.prefill = 0;
    struct st_plan plan = plan_of(&o);
    assert_int_equal(plan.prefill, 8192);
    for (uint32_t rows = 8192; rows > 64; rows /= 2) {
        char limit[32];
        assert_int_equal(plan.prefill, rows);
        snprintf(limit, sizeof limit, "%llu", (unsigned long long)plan.stage[0].size.total - 1);
        o.vram_limit = limit;
        plan = plan_of(&o);
    }
    assert_int_equal(plan.prefill, 64);
    o.vram_limit = NULL;
    o.ram_limit = plan.host.total;
    assert_int_equal(plan_of(&o).prefill, 64);
    o.ram_limit = 0;
    o.context = 300; /* never more rows than a session can hold */
    assert_int_equal(plan_of(&o).prefill, 300);
    o.prefill = 100;
    assert_int_equal(plan_of(&o).prefill, 100);
    o.context = 16384;
    o.prefill = 0;
    o.devices = "sim:gfx1100:8G,sim:gfx1201:8G"; /* so that prompts of a few thousand tokens keep both at work */
    o.layer_split = "4,4";
    assert_int_equal(plan_of(&o).prefill, 2048);
    o.devices = "cpu";
    o.layer_split = NULL;
    assert_int_equal(plan_of(&o).prefill, 256);
}

/* Predicted time with chunks of exactly rows; infinite when they do not fit. */
static double seconds_with(struct strata_engine_options o, uint32_t rows)
{
    struct strata_error err;
    struct strata_engine *e;
    o.prefill = rows;
    if (st_engine_plan_only(f.model, &o, &e, &err))
        return INFINITY;
    double seconds = e->plan.seconds;
    strata_engine_free(e);
    return seconds;
}

static void larger_chunks_cost_a_token_two_percent_at_most(void **state)
{
    (void)state;
    static const char *const limits[] = {"sim:0=30M,sim:1=60M", "sim:0=44M,sim:1=44M", "sim:0=60M,sim:1=30M", "80M"};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        struct strata_engine_options o =
            options("sim:gfx1100:8G:bw=1G:link=1G,sim:gfx1201:8G:bw=800M:link=1G:launch=8", NULL);
        o.context = 8192;
        o.sessions = 1;
        o.vram_limit = limits[i];
        o.prefill = 0;
        struct st_plan plan = plan_of(&o);
        double base = seconds_with(o, 256), own = seconds_with(o, plan.prefill);
        assert_true(plan.prefill >= 256 && own == plan.seconds);
        assert_true(own <= 1.02 * base);
        for (uint32_t rows = 2 * plan.prefill; rows <= (plan.n_stages > 1 ? 2048u : 8192u); rows *= 2)
            assert_true(seconds_with(o, rows) > 1.02 * base);
    }
}

static void a_device_that_only_slows_things_down_is_left_out_by_name(void **state)
{
    (void)state;
    struct strata_engine_options o =
        options("sim:gfx1030:8G:bw=200G,sim:gfx1100:8G:bw=960G,sim:sm_75:8G:launch=9", NULL);
    struct st_plan plan = plan_of(&o);
    assert_int_equal(plan.n_stages, 1);
    assert_string_equal(plan.stage[0].name, "sim:1");
    assert_non_null(strstr(plan.notes, "sim:0 is left out: a token takes"));
    assert_non_null(strstr(plan.notes, "sim:2 is left out: a token takes"));
    assert_null(strstr(plan.notes, "sim:1"));
    o.devices = "sim:gfx1100:512M,sim:gfx1201:8G";
    plan = plan_of(&o);
    assert_non_null(strstr(plan.notes, "sim:0 is left out: no layer fits in the 0 bytes"));
}

/* The least predicted time of every split over the devices in this order. */
static double best_stated(const char *devices, const char *limit)
{
    double best = 1e300;
    for (int first = 1; first < 8; first++) {
        struct strata_error err;
        struct strata_engine *e;
        char split[16];
        snprintf(split, sizeof split, "%d,%d", first, 8 - first);
        struct strata_engine_options o = options(devices, split);
        o.vram_limit = limit;
        if (st_engine_plan_only(f.model, &o, &e, &err)) {
            assert_int_equal(err.code, STRATA_E_DEVICE); /* that split does not fit */
            continue;
        }
        best = e->plan.seconds < best ? e->plan.seconds : best;
        strata_engine_free(e);
    }
    return best;
}

static void no_split_is_predicted_faster_than_the_automatic_one(void **state)
{
    (void)state;
    /* Neither card holds the model: 20 and 24 MiB of about 32. */
    static const char slow_first[] = "sim:gfx1100:8G:bw=100G:link=1G:launch=5,sim:gfx1201:8G:bw=900G:link=8G",
                      fast_first[] = "sim:gfx1201:8G:bw=900G:link=8G,sim:gfx1100:8G:bw=100G:link=1G:launch=5",
                      any_order[] = "auto,sim:gfx1100:8G:bw=100G:link=1G:launch=5,sim:gfx1201:8G:bw=900G:link=8G";
    double a = best_stated(slow_first, "sim:0=20M,sim:1=24M"), b = best_stated(fast_first, "sim:0=24M,sim:1=20M");
    assert_true(a < 1e300 && b < 1e300 && a != b);
    struct strata_engine_options o = options(slow_first, NULL);
    o.vram_limit = "sim:0=20M,sim:1=24M";
    struct st_plan plan = plan_of(&o);
    assert_int_equal(plan.n_stages, 2);
    assert_string_equal(plan.stage[0].name, "sim:0");
    assert_true(plan.seconds == a);
    o.devices = fast_first;
    o.vram_limit = "sim:0=24M,sim:1=20M";
    assert_true(plan_of(&o).seconds == b);
    /* The CPU takes part in an automatic choice: nothing that leaves it out may be faster. */
    o.devices = any_order;
    o.vram_limit = "sim:0=20M,sim:1=24M";
    assert_true(plan_of(&o).seconds <= (a < b ? a : b));
}

static void layers_that_no_card_holds_go_to_the_cpu(void **state)
{
    (void)state;
    struct strata_engine_options o = options("auto,sim:gfx1100:8G", NULL);
    o.vram_limit = "20M";
    struct st_plan plan = plan_of(&o);
    bool cpu = false;
    for (int k = 0; k < plan.n_stages; k++)
        cpu = cpu || plan.stage[k].found < 0;
    assert_true(cpu);
    o.devices = "sim:gfx1100:8G";
    struct strata_error err;
    struct strata_engine *e;
    assert_int_equal(st_engine_plan_only(f.model, &o, &e, &err), STRATA_E_DEVICE);
    assert_non_null(strstr(err.text, "sim:0"));
}

/* Simulated devices that an automatic choice finds, as it finds cards: they have the image that every build holds. */
extern const struct st_runtime st_runtime_sim;
static const char *described, *cache_seen;

static enum strata_result open_described(const struct st_runtime_options *o, struct st_rt **out,
                                         struct strata_error *err)
{
    struct st_runtime_options own = *o;
    own.devices = described;
    cache_seen = o->cache;
    return st_runtime_sim.open(&own, out, err);
}

static enum strata_result create_on(const char *cards, const struct strata_engine_options *o,
                                    struct strata_engine **out, struct strata_error *err)
{
    static struct st_runtime table;
    static const struct st_runtime *const tables[] = {&table, NULL};
    table = st_runtime_sim;
    table.name = "card";
    table.image = ST_IMAGE_SOURCE;
    table.open = open_described;
    described = cards;
    return st_engine_create(f.model, o, tables, NULL, out, err);
}

static void runtimes_are_told_where_compiled_programs_are_kept(void **state)
{
    (void)state;
    struct strata_error err;
    struct strata_engine *e;
    struct strata_engine_options o = options("card:0", NULL);
    assert_ok(create_on("gfx1100:8G:as=card", &o, &e, &err), &err);
    assert_null(cache_seen);
    strata_engine_free(e);
    o.program_cache = "/nothing/there";
    assert_ok(create_on("gfx1100:8G:as=card", &o, &e, &err), &err);
    assert_string_equal(cache_seen, "/nothing/there");
    strata_engine_free(e);
}

static void a_card_that_lacks_a_kernel_is_left_out_of_auto_and_refused_by_name(void **state)
{
    (void)state;
    static const char cards[] =
        "opencl:8G:as=card:lacks=st_qsa_heads,opencl:8G:as=card,gfx1100:8G:as=card:images=sm_80";
    struct strata_error err;
    struct strata_engine *e;
    struct strata_engine_options o = options("auto", "8"); /* however fast the CPU is */
    assert_ok(create_on(cards, &o, &e, &err), &err);
    assert_int_equal(e->n_stages, 1);
    assert_string_equal(e->plan.stage[0].name, "card:1");
    const char *line = strstr(strata_engine_placement(e), "card:0 is left out:");
    assert_non_null(line);
    assert_non_null(strstr(line, "st_qsa_heads"));
    line = strstr(strata_engine_placement(e), "card:2 is left out:");
    assert_non_null(line);
    assert_non_null(strstr(line, "sm_80"));
    assert_null(strstr(strata_engine_placement(e), "cpu is left out"));
    strata_engine_free(e);
    o.devices = "card:0";
    assert_int_equal(create_on(cards, &o, &e, &err), STRATA_E_DEVICE);
    assert_int_equal(err.code, STRATA_E_DEVICE);
    assert_non_null(strstr(err.text, "card:0"));
    assert_non_null(strstr(err.text, "st_qsa_heads"));
}

static void the_cpu_is_measured_for_a_plan_and_not_at_every_start(void **state)
{
    (void)state;
    struct strata_error err;
    struct strata_engine *e;
    struct strata_engine_options o = options("cpu", NULL);
    for (o.threads = 1; o.threads <= 3; o.threads += 2) {
        struct st_plan_stage s = plan_of(&o).stage[0];
        assert_true(s.memory_rate > 0 && s.launch_seconds >= 0);
        double experts = s.size.expert_read / s.expert_rate, dense = (s.size.read - s.size.expert_read) / s.memory_rate;
        assert_true(s.expert_rate > 0 && experts > 0 && s.time.memory == dense + experts && s.time.link == 0);
    }
    assert_ok(strata_engine_create(f.model, &o, &e, &err), &err);
    assert_true(e->plan.stage[0].memory_rate == 0 && e->plan.seconds == 0);
    strata_engine_free(e);
}

static void limits_that_mean_nothing_are_mistakes(void **state)
{
    (void)state;
    static const char *const bad[] = {"12X", "sim:7=3G", "sim:0=", "sim:0=3G,frog"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct strata_error err;
        struct strata_engine *e;
        struct strata_engine_options o = options("sim:gfx1100:8G", NULL);
        o.vram_limit = bad[i];
        assert_int_equal(st_engine_plan_only(f.model, &o, &e, &err), STRATA_E_ARGUMENT);
        assert_non_null(strstr(err.text, "vram limit"));
    }
}

static int setup(void **state)
{
    (void)state;
    struct strata_error err = {0};
    const char *source = getenv("STRATA_TEST_SOURCE");
    char path[1024];
    snprintf(path, sizeof path, "%s/models/demo.gguf", source ? source : ".");
    snprintf(f.draft, sizeof f.draft, "%s/models/demo-mtp.gguf", source ? source : ".");
    if (!strata_model_open(path, &f.model, &err))
        return 0;
    fprintf(stderr, "%s\n", err.text);
    return -1;
}

static int teardown(void **state)
{
    (void)state;
    strata_model_free(f.model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_planned_is_what_is_allocated),
        cmocka_unit_test(smaller_keys_and_values_and_no_draft_layer_take_less),
        cmocka_unit_test(parts_of_a_model_add_up_to_the_whole),
        cmocka_unit_test(one_byte_less_than_planned_on_a_device_is_refused_before_loading),
        cmocka_unit_test(one_byte_less_than_planned_of_host_memory_is_refused),
        cmocka_unit_test(what_the_driver_takes_and_a_display_needs_is_not_given_out),
        cmocka_unit_test(no_stage_is_larger_than_what_its_driver_gives_at_once),
        cmocka_unit_test(chunks_grow_as_far_as_the_memory_goes),
        cmocka_unit_test(larger_chunks_cost_a_token_two_percent_at_most),
        cmocka_unit_test(a_device_that_only_slows_things_down_is_left_out_by_name),
        cmocka_unit_test(no_split_is_predicted_faster_than_the_automatic_one),
        cmocka_unit_test(layers_that_no_card_holds_go_to_the_cpu),
        cmocka_unit_test(runtimes_are_told_where_compiled_programs_are_kept),
        cmocka_unit_test(a_card_that_lacks_a_kernel_is_left_out_of_auto_and_refused_by_name),
        cmocka_unit_test(the_cpu_is_measured_for_a_plan_and_not_at_every_start),
        cmocka_unit_test(limits_that_mean_nothing_are_mistakes),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
