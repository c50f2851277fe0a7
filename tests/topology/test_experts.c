/* Experts that are not all on the devices give the same bits: windows, prompts, any share of them in slots, in host
 * memory, in the file. Simulated devices; the demo model, the released model's widths, and one with many small experts.
 */
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "engine/engine.h"
#include "engine/expert_host.h"
#include "engine/stage_experts.h"
#include "golden/fixture.h"
#include "golden/make_model.h"
#include "runtime/sim.h"

static struct strata_model *demo, *wide, *many;

/* Many small experts, of other types in every layer: gate and up in one launch and not, slots of two sizes. */
static void make_many(struct make_model *m)
{
    static const int types[3][3] = {{ST_TYPE_Q8_0, ST_TYPE_Q8_0, ST_TYPE_Q4_0},
                                    {ST_TYPE_Q5_0, ST_TYPE_Q8_0, ST_TYPE_Q8_0},
                                    {ST_TYPE_Q8_0, ST_TYPE_Q8_0, ST_TYPE_Q4_0}};
    static const char *const tensors[3] = {"gate", "up", "down"};
    make_small(m);
    m->layers = 3;
    m->recurrent[2] = true;
    m->hidden = m->expert_width = m->shared_width = 64;
    m->vocabulary = 40;
    m->context = 256;
    m->experts = 64;
    m->used = 4;
    m->key_dim = m->value_dim = 64;
    m->draft = false;
    make_plan(m);
    for (int l = 0; l < 3; l++)
        for (int t = 0; t < 3; t++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%d.ffn_%s_exps.weight", l, tensors[t]);
            make_find(m, name)->type = types[l][t];
        }
}

static struct strata_engine_options options(const char *devices, const char *cache)
{
    return (struct strata_engine_options){
        .devices = devices, .expert_cache = cache, .threads = 2, .context = 256, .prefill = 24, .sessions = 1};
}

static struct strata_engine *open_engine(const struct strata_model *model, const struct strata_engine_options *o)
{
    struct strata_error err;
    struct strata_engine *e;
    assert_ok(strata_engine_create(model, o, &e, &err), &err);
    return e;
}

/* Evaluations one after the other: prompts of several chunks, short ones, windows. */
struct text {
    size_t evals, length[14];
};
static const struct text whole = {13, {30, 1, 8, 9, 1, 3, 2, 1, 1, 5, 1, 1, 10}};
static const struct text half = {4, {26, 1, 8, 9}};
static const struct text brief = {4, {14, 1, 8, 2}}; /* for larger models */
/* And where a window of rows would take minutes under the thread sanitizer, after which a device is given up. */
static const struct text shortest = {3, {9, 1, 2}};

/* Logits of every token; the result is freed by the caller. */
static float *read_all(struct strata_engine *e, const struct text *text, size_t *bytes)
{
    struct strata_error err;
    struct strata_session *s;
    size_t vocabulary = e->dims.vocabulary, count = 0, at = 0;
    for (size_t i = 0; i < text->evals; i++)
        count += text->length[i];
    int32_t *ids = malloc(count * sizeof *ids);
    float *logits = malloc(count * vocabulary * sizeof *logits);
    for (size_t i = 0; i < count; i++)
        ids[i] = (int32_t)((i * i * 37 + i * 11 + 5) % e->dims.embeddings);
    assert_ok(strata_session_create(e, &s, &err), &err);
    for (size_t i = 0; i < text->evals; at += text->length[i++])
        assert_ok(strata_session_eval(s, ids + at, text->length[i], true, logits + at * vocabulary, &err), &err);
    strata_session_free(s);
    free(ids);
    *bytes = count * vocabulary * sizeof *logits;
    return logits;
}

static float *read_with(const struct strata_model *model, const struct strata_engine_options *o,
                        const struct text *text, size_t *bytes)
{
    struct strata_engine *e = open_engine(model, o);
    float *logits = read_all(e, text, bytes);
    strata_engine_free(e);
    return logits;
}

static const struct device_stage *device_of(const struct strata_engine *e, int k)
{
    return (const struct device_stage *)e->stages[k];
}

/* Every cache gives the bits of a layout with all experts on the devices. */
static void check_bits(const struct strata_model *model, const struct strata_engine_options *base,
                       const struct text *text)
{
    static const char *const caches[] = {"0%", "10%", "50%"};
    struct strata_engine_options o = *base;
    size_t want_bytes, bytes;
    o.expert_cache = "100%";
    float *want = read_with(model, &o, text, &want_bytes);
    for (size_t i = 0; i < 3; i++) {
        o.expert_cache = caches[i];
        float *got = read_with(model, &o, text, &bytes);
        assert_int_equal(bytes, want_bytes);
        for (size_t k = 0; k < bytes / sizeof *got; k++)
            if (memcmp(&got[k], &want[k], sizeof *got))
                fail_msg("%s, cache %s: logit %zu is %a, with all experts %a", o.devices, caches[i], k, (double)got[k],
                         (double)want[k]);
        free(got);
    }
    free(want);
}

static void caches_of_any_size_give_the_same_bits_on_one_device(void **state)
{
    (void)state;
    struct strata_engine_options o = options("sim:gfx1100:24G", NULL);
    check_bits(many, &o, &whole);
    o.devices = "sim:gfx1100:24G:nograph";
    check_bits(many, &o, &half);
    o.fp32 = true;
    o.kv = STRATA_KV_F32;
    check_bits(many, &o, &half);
}

static void caches_of_any_size_give_the_same_bits_on_two_devices(void **state)
{
    (void)state;
    struct strata_engine_options o = options("sim:gfx1100:24G,sim:gfx1100:8G", NULL);
    o.layer_split = "1,2";
    check_bits(many, &o, &whole);
    o.devices = "sim:gfx1100:24G,cpu";
    check_bits(many, &o, &half);
}

static void the_demo_model_gives_the_same_bits_with_any_cache(void **state)
{
    (void)state;
    struct strata_engine_options o = options("sim:gfx1100:24G", NULL);
    o.prefill = 10;
    check_bits(demo, &o, &brief);
}

static void the_released_models_widths_give_the_same_bits_with_any_cache(void **state)
{
    (void)state;
    struct strata_engine_options o = options("sim:gfx1100:24G", NULL);
    o.prefill = 9;
    check_bits(wide, &o, &shortest);
}

static void check_same(const struct strata_engine_options *o, const char *what)
{
    struct strata_engine_options all = {0};
    all = *o;
    all.expert_cache = NULL;
    all.ram_limit = 0;
    size_t want_bytes, bytes;
    float *want = read_with(many, &all, &whole, &want_bytes), *got = read_with(many, o, &whole, &bytes);
    assert_int_equal(bytes, want_bytes);
    if (memcmp(got, want, bytes))
        fail_msg("%s: other bits", what);
    free(want);
    free(got);
}

static void a_share_of_the_misses_goes_over_a_fast_link_with_the_same_bits(void **state)
{
    (void)state;
    static const char *const machines[] = {"sim:gfx1100:24G:link=1000G", "sim:gfx1100:24G:link=1000G:nograph"};
    for (size_t i = 0; i < 2; i++) {
        struct strata_engine_options o = options(machines[i], "10%");
        check_same(&o, "experts over the link");
        struct strata_engine *e = open_engine(many, &o);
        size_t bytes;
        free(read_all(e, &whole, &bytes));
        const struct st_device_experts *x = device_of(e, 0)->experts;
        assert_true(x->over_link > 0 && x->by_cpu > 0);
        strata_engine_free(e);
    }
}

/* A card whose memory holds no layers computes experts. The second time a launch in the middle of the windows fails, and
 * the card is lost. */
static void another_card_helps_with_the_same_bits(void **state)
{
    (void)state;
    static const char *const machines[] = {"sim:gfx1100:24G,sim:gfx90a:8G", "sim:gfx1100:24G,sim:gfx90a:8G:late=9",
                                           "sim:gfx1100:24G:link=1000G,sim:gfx90a:8G:refuse=12"};
    size_t bytes, want_bytes;
    struct strata_engine_options all = options("sim:gfx1100:24G", NULL);
    float *want = read_with(many, &all, &whole, &want_bytes);
    for (int i = 0; i < 3; i++) {
        struct strata_engine_options o = options(machines[i], "10%");
        o.layer_split = "3,0";
        struct strata_engine *e = open_engine(many, &o);
        struct st_device_experts *x = device_of(e, 0)->experts;
        assert_int_equal(e->plan.n_stages, 1);
        assert_non_null(x->helper);
        assert_non_null(strstr(strata_engine_placement(e), "sim:1 helps sim:0"));
        uint64_t device, host, locked = e->plan.stage[0].size.helper_locked;
        st_sim_usage(e->helpers[0]->rt, &device, &host);
        assert_int_equal(device, e->plan.stage[0].size.helper);
        assert_int_equal(host, locked);
        float *got = read_all(e, &whole, &bytes);
        assert_int_equal(bytes, want_bytes);
        assert_memory_equal(got, want, bytes);
        assert_true(x->by_helper > 0);
        assert_int_equal(x->helper_lost, i > 0);
        assert_int_equal(strstr(strata_engine_placement(e), "helper is lost") != NULL, i > 0);
        strata_engine_free(e);
        free(got);
    }
    free(want);
}

/* The helper has room for few experts; a text that always chooses the same ones finds them there after a while. */
static void what_a_text_chooses_comes_to_the_helper(void **state)
{
    (void)state;
    struct strata_error err;
    struct strata_engine_options o = options("sim:gfx1100:24G,sim:gfx90a:8G", "0%");
    char limit[64];
    o.layer_split = "3,0";
    o.check = "runtime";
    struct strata_engine *e = open_engine(many, &o);
    const struct st_stage_size *size = &e->plan.stage[0].size;
    snprintf(limit, sizeof limit, "sim:1=%llu",
             (unsigned long long)(size->helper - size->helper_slots + size->all_experts / 5));
    strata_engine_free(e);
    o.vram_limit = limit;
    e = open_engine(many, &o);
    const struct st_device_experts *x = device_of(e, 0)->experts;
    assert_true(e->plan.stage[0].size.helper_slots < e->plan.stage[0].size.all_experts / 4);
    struct strata_session *s;
    float logits[40];
    int32_t id = 7;
    assert_ok(strata_session_create(e, &s, &err), &err);
    uint64_t helped[2] = {0};
    for (int i = 0; i < 120; i++) {
        uint64_t before = x->by_helper;
        assert_ok(strata_session_eval(s, &id, 1, false, logits, &err), &err);
        helped[i >= 60] += x->by_helper - before;
    }
    print_message("# computed by the helper: %llu in sixty tokens, %llu in the next\n", (unsigned long long)helped[0],
                  (unsigned long long)helped[1]);
    assert_true(helped[1] > helped[0]);
    assert_false(x->helper_lost);
    strata_session_free(s);
    strata_engine_free(e);
}

static struct st_plan plan_of(const struct strata_model *model, const struct strata_engine_options *o)
{
    struct strata_error err;
    struct strata_engine *e;
    assert_ok(st_engine_plan_only(model, o, &e, &err), &err);
    struct st_plan plan = e->plan;
    strata_engine_free(e);
    return plan;
}

/* Too small for layers, but faster than the CPU and the link: a helper by itself. Otherwise where the user gives it no layers. */
static void a_helper_is_chosen_where_it_is_faster_or_where_the_user_gives_it_no_layers(void **state)
{
    (void)state;
    struct strata_error err;
    struct strata_engine *e;
    struct strata_engine_options o =
        options("sim:gfx1100:24G:bw=9000G:link=10G,sim:gfx90a:8G:bw=500G:link=1000G", "10%");
    o.vram_limit = "sim:1=24M"; /* no layer fits there */
    o.cpu = "c";
    o.threads = 1;
    struct st_plan plan = plan_of(wide, &o);
    assert_int_equal(plan.n_stages, 1);
    assert_int_equal(plan.stage[0].helper, 1);
    assert_non_null(strstr(plan.notes, "sim:1 helps sim:0"));
    /* Page-locked memory of a helper is part of what host memory may take; the arena gives way. */
    o.ram_limit = plan.host.total - (1 << 20);
    plan = plan_of(wide, &o);
    assert_int_equal(plan.stage[0].helper, 1);
    assert_true(plan.host.total <= o.ram_limit);
    o = options("sim:gfx1100:24G,sim:gfx90a:8G,sim:gfx1030:8G,sim:gfx1100:8G", "10%");
    o.layer_split = "0,1,2,0";
    plan = plan_of(many, &o);
    assert_int_equal(plan.n_stages, 2);
    assert_int_equal(plan.stage[0].found, 1);
    assert_int_equal(plan.stage[1].found, 2);
    assert_int_equal(plan.stage[0].helper + plan.stage[1].helper, 0 + 3);
    assert_int_not_equal(plan.stage[0].helper, plan.stage[1].helper);
    static const char *const refused[][3] = {{"0,1,0,2", "100%", "sim:0 has no layers"},
                                             {"0,3,0,0", "10%", "sim:2 has no layers"},
                                             {"0,0,0,0", "10%", "gives 0 layers to 4 devices"}};
    for (size_t i = 0; i < 3; i++) {
        o.layer_split = refused[i][0];
        o.expert_cache = refused[i][1];
        assert_int_equal(st_engine_plan_only(many, &o, &e, &err), STRATA_E_ARGUMENT);
        assert_non_null(strstr(err.text, refused[i][2]));
    }
}

static void slots_and_arena_take_the_bytes_that_are_planned(void **state)
{
    (void)state;
    static const char *const caches[] = {"0%", "30%", "200K"};
    for (size_t i = 0; i < 3; i++) {
        struct strata_engine_options o = options("sim:gfx1100:24G:driver=96M", caches[i]);
        struct strata_engine *e = open_engine(many, &o);
        const struct st_plan_stage *s = &e->plan.stage[0];
        const struct device_stage *d = device_of(e, 0);
        struct st_expert_host_stats stats;
        uint64_t device, host;
        assert_true(s->cached);
        st_expert_host_stats(st_device_experts_host(d), &stats);
        st_sim_usage(e->opened[0]->rt, &device, &host);
        assert_int_equal(device, s->size.total + s->taken);
        assert_int_equal(d->store.bytes, s->size.slots);
        assert_int_equal(stats.arena, s->size.arena);
        assert_int_equal(stats.locked, s->size.arena);
        assert_int_equal(host, s->size.locked + s->size.arena);
        assert_int_equal(stats.in_file, 0);
        strata_engine_free(e);
    }
}

static void experts_that_fit_nowhere_are_read_from_the_file(void **state)
{
    (void)state;
    struct strata_engine_options o = options("sim:gfx1100:24G", "20%");
    struct strata_engine *e = open_engine(many, &o);
    struct st_expert_host_stats stats;
    uint64_t arena = e->plan.host.arena, total = e->plan.host.total;
    strata_engine_free(e);
    static const unsigned parts[] = {1, 2};
    for (size_t i = 0; i < 2; i++) {
        size_t bytes;
        o.ram_limit = total - arena / parts[i];
        check_same(&o, "less memory than experts");
        e = open_engine(many, &o);
        assert_true(e->plan.host.in_file > 0 && e->plan.host.total <= o.ram_limit);
        free(read_all(e, &whole, &bytes));
        st_expert_host_stats(st_device_experts_host(device_of(e, 0)), &stats);
        assert_int_equal(stats.in_file, e->plan.host.in_file);
        assert_true(stats.read > 0);
        strata_engine_free(e);
    }
}

static void refused_page_locking_is_said_and_survived(void **state)
{
    (void)state;
    struct strata_engine_options o = options("sim:gfx1100:24G:hostoom=6", "20%");
    struct strata_engine *e = open_engine(many, &o);
    struct st_expert_host_stats stats;
    st_expert_host_stats(st_device_experts_host(device_of(e, 0)), &stats);
    assert_true(stats.locked < stats.arena);
    assert_non_null(strstr(stats.refused, "sim:0"));
    assert_non_null(strstr(strata_engine_placement(e), stats.refused));
    strata_engine_free(e);
    o.devices = "sim:gfx1100:24G:hostoom=6";
    size_t bytes, want_bytes;
    float *got = read_with(many, &o, &whole, &bytes);
    o.devices = "sim:gfx1100:24G";
    float *want = read_with(many, &o, &whole, &want_bytes);
    assert_memory_equal(got, want, want_bytes);
    free(got);
    free(want);
}

/* Chunks of two sizes take other shares of the slots. The windows behind them find some empty, and fill them. */
static void prompts_borrow_slots_and_windows_fill_them_again(void **state)
{
    (void)state;
    struct strata_error err;
    struct strata_engine_options o = options("sim:gfx1100:24G", "99%");
    o.prefill = 72;      /* short ones have up to 9 tokens */
    o.check = "runtime"; /* copies to slots wait for what reads them, and the other way round */
    check_same(&o, "slots lent");
    struct strata_engine *e = open_engine(many, &o);
    const struct device_stage *d = device_of(e, 0);
    const struct st_stage_size *size = &e->plan.stage[0].size;
    struct strata_session *s;
    int32_t ids[72] = {0};
    float logits[40];
    assert_ok(strata_session_create(e, &s, &err), &err);
    assert_int_equal(size->prompts, 0);
    assert_int_equal(d->rooms, 2);
    uint32_t full = d->store.slots - d->store.kept;
    assert_true(full > 0 && d->store.kept > 0 && d->store.empty == 0);
    static const size_t prompts[] = {9, 72, 10};
    for (int i = 0; i < 3; i++) {
        assert_ok(strata_session_eval(s, ids, prompts[i], false, logits, &err), &err);
        assert_true(i == 0 ? d->store.empty > 0 && d->store.empty < full : d->store.empty == full);
        for (int w = 0; w < 20 && d->store.empty; w++)
            assert_ok(strata_session_eval(s, ids, 1, false, logits, &err), &err);
        assert_int_equal(d->store.empty, 0);
    }
    strata_session_free(s);
    strata_engine_free(e);
}

static void what_a_text_chooses_comes_to_the_slots(void **state)
{
    (void)state;
    struct strata_error err;
    struct strata_engine_options o = options("sim:gfx1100:24G", "20%");
    struct strata_engine *e = open_engine(many, &o);
    const struct device_stage *d = device_of(e, 0);
    struct strata_session *s;
    float logits[40];
    int32_t id = 7;
    assert_ok(strata_session_create(e, &s, &err), &err);
    uint64_t asked[2] = {0}, hit[2] = {0};
    for (int i = 0; i < 200; i++) {
        int later = i >= 100;
        uint64_t a = d->store.asked, h = d->store.hit;
        assert_ok(strata_session_eval(s, &id, 1, false, logits, &err), &err);
        asked[later] += d->store.asked - a;
        hit[later] += d->store.hit - h;
    }
    print_message("# hits: %.2f of the first hundred tokens' choices, %.2f of the next\n",
                  (double)hit[0] / (double)asked[0], (double)hit[1] / (double)asked[1]);
    assert_true(hit[1] * asked[0] > hit[0] * asked[1]);
    char line[400];
    st_device_experts_report(e->stages[0], line, sizeof line);
    assert_non_null(strstr(line, "sim:0: of the experts that windows chose"));
    strata_session_free(s);
    strata_engine_free(e);
}

/* A profile of a text on the CPU and on a device; then its experts are in the slots. */
static void a_profile_counts_the_same_everywhere_and_fills_slots(void **state)
{
    (void)state;
    static const char *const devices[] = {"cpu", "sim:gfx1100:24G", "sim:gfx1100:24G"};
    struct strata_error err;
    struct st_expert_profile profile[3], read;
    for (int i = 0; i < 3; i++) {
        struct strata_engine_options o = options(devices[i], i == 2 ? "10%" : NULL);
        struct strata_engine *e = open_engine(many, &o);
        size_t bytes;
        assert_ok(st_expert_profile_create(4, 64, &profile[i], &err), &err);
        e->stages[0]->choices = &profile[i];
        free(read_all(e, &whole, &bytes));
        strata_engine_free(e);
    }
    for (int i = 1; i < 3; i++)
        assert_memory_equal(profile[0].count, profile[i].count, 4 * 64 * sizeof *profile[0].count);
    profile[0].tokens = 135;
    assert_ok(st_expert_profile_write(&profile[0], work_path("many.profile"), &err), &err);
    assert_ok(st_expert_profile_read(work_path("many.profile"), &read, &err), &err);
    assert_int_equal(read.tokens, 135);
    assert_memory_equal(read.count, profile[0].count, 4 * 64 * sizeof *read.count);
    struct strata_engine_options o = options("sim:gfx1100:24G", "10%");
    struct strata_engine *plain = open_engine(many, &o);
    o.expert_profile = work_path("many.profile");
    struct strata_engine *e = open_engine(many, &o);
    const struct device_stage *d = device_of(e, 0);
    uint64_t least = UINT64_MAX, most = 0;
    for (uint32_t i = 0; i < 3 * 64; i++) {
        bool small = d->store.set.layer[i / 64].slot == d->store.set.layer[0].slot; /* of one size */
        if (small && d->store.slot_of[i] != ST_NO_SLOT && read.count[i] < least)
            least = read.count[i];
        if (small && d->store.slot_of[i] == ST_NO_SLOT && read.count[i] > most)
            most = read.count[i];
    }
    assert_true(least >= most);
    assert_true(e->plan.stage[0].size.hit > plain->plan.stage[0].size.hit);
    strata_engine_free(plain);
    strata_engine_free(e);
    st_expert_profile_free(&read);
    for (int i = 0; i < 3; i++)
        st_expert_profile_free(&profile[i]);
}

static void damaged_and_foreign_profiles_are_refused(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_expert_profile p, read;
    char *data;
    size_t size;
    assert_ok(st_expert_profile_create(4, 64, &p, &err), &err);
    assert_ok(st_expert_profile_write(&p, work_path("good"), &err), &err);
    assert_ok(st_read_file(work_path("good"), 1 << 20, &data, &size, &err), &err);
    /* magic, version, layers, experts, counts, checksum; and cut off */
    static const size_t places[] = {0, 8, 12, 16, 100, 0};
    for (size_t i = 0; i < 7; i++) {
        size_t at = i < 5 ? places[i] : size - 1, n = i < 6 ? size : size - 8;
        data[at] ^= i < 6;
        FILE *f = fopen(work_path("bad"), "wb");
        assert_non_null(f);
        assert_int_equal(fwrite(data, 1, n, f), n);
        fclose(f);
        data[at] ^= i < 6;
        assert_int_equal(st_expert_profile_read(work_path("bad"), &read, &err), STRATA_E_FORMAT);
        assert_non_null(strstr(err.text, "bad"));
    }
    free(data);
    struct strata_engine_options o = options("sim:gfx1100:24G", "10%");
    struct strata_engine *e;
    o.expert_profile = work_path("good");
    assert_int_equal(strata_engine_create(wide, &o, &e, &err), STRATA_E_ARGUMENT);
    p.fingerprint = 1;
    assert_ok(st_expert_profile_write(&p, work_path("good"), &err), &err);
    assert_int_equal(strata_engine_create(many, &o, &e, &err), STRATA_E_ARGUMENT);
    st_expert_profile_free(&p);
    static const char *const caches[] = {"", "%", "101%", "x", "1.5G", "-1"};
    for (size_t i = 1; i < 6; i++) {
        o = options("sim:gfx1100:24G", caches[i]);
        assert_int_equal(strata_engine_create(many, &o, &e, &err), STRATA_E_ARGUMENT);
    }
}

/* The file loses its end while it is open: a request that needs experts from there fails and names the file; with the
 * bytes back, the engine goes on. */
static void a_file_that_shortens_fails_the_request_and_not_the_engine(void **state)
{
    (void)state;
    struct strata_error err;
    struct strata_engine_options o = options("sim:gfx1100:24G", "30%");
    struct make_model *m = malloc(sizeof *m);
    struct strata_model *model;
    struct strata_session *s;
    const char *path = work_path("short.gguf");
    make_many(m);
    assert_ok(make_write(m, path, &err), &err);
    free(m);
    assert_ok(strata_model_open(path, &model, &err), &err);
    struct strata_engine *e = open_engine(model, &o);
    o.ram_limit = e->plan.host.total - e->plan.host.arena;
    strata_engine_free(e);
    e = open_engine(model, &o);
    assert_int_equal(e->plan.host.arena, 0);
    assert_ok(strata_session_create(e, &s, &err), &err);
    int32_t ids[40];
    for (int i = 0; i < 40; i++)
        ids[i] = i % 20;
    float want[40], got[40];
    assert_ok(strata_session_eval(s, ids, 40, false, want, &err), &err);
    /* Another file of the same name on the disk does not matter: the open one is read. Its end is cut off. */
    char *data;
    size_t size, first = SIZE_MAX;
    assert_ok(st_read_file(path, 1 << 30, &data, &size, &err), &err);
    const struct st_expert_layer *l = &device_of(e, 0)->store.set.layer[2];
    for (uint32_t i = 0; i < l->sections; i++)
        first = l->section[i].tensor->offset < first ? l->section[i].tensor->offset : first;
    assert_int_equal(truncate(path, (off_t)first), 0);
    static const size_t counts[] = {40, 1};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(strata_session_eval(s, ids, counts[i], false, got, &err), STRATA_E_IO);
        assert_non_null(strstr(err.text, "short.gguf"));
        assert_non_null(strstr(err.text, "blk.2.ffn_"));
    }
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    fclose(f);
    free(data);
    /* A file that disappears from its folder is still read. */
    assert_int_equal(unlink(path), 0);
    strata_session_reset(s);
    assert_ok(strata_session_eval(s, ids, 40, false, got, &err), &err);
    assert_memory_equal(got, want, sizeof want);
    strata_session_free(s);
    strata_engine_free(e);
    strata_model_free(model);
}

static void the_n_gram_table_may_lie_in_a_file_of_its_own(void **state)
{
    (void)state;
    struct strata_error err;
    struct strata_model *model;
    struct strata_engine *e;
    struct make_model *m = malloc(sizeof *m);
    make_many(m);
    struct make_tensor *t = make_find(m, "per_layer_token_embd.weight"), table = *t;
    *t = m->tensor[--m->tensors];
    assert_ok(make_write(m, work_path("rest.gguf"), &err), &err);
    m->tensors = 1;
    m->tensor[0] = table;
    assert_ok(make_write(m, work_path("table.gguf"), &err), &err);
    free(m);
    assert_ok(strata_model_open(work_path("rest.gguf"), &model, &err), &err);
    struct strata_engine_options o = options("cpu", NULL);
    assert_int_equal(strata_engine_create(model, &o, &e, &err), STRATA_E_MODEL);
    assert_non_null(strstr(err.text, "per_layer_token_embd.weight"));
    o.ple_path = work_path("table.gguf");
    for (int i = 0; i < 2; i++) {
        size_t bytes, want_bytes;
        struct strata_engine_options all = o;
        all.ple_path = NULL;
        float *got = read_with(model, &o, &brief, &bytes), *want = read_with(many, &all, &brief, &want_bytes);
        assert_int_equal(bytes, want_bytes);
        assert_memory_equal(got, want, bytes);
        free(got);
        free(want);
        o.devices = "sim:gfx1100:24G,cpu";
        o.layer_split = "2,1";
    }
    o.ple_path = work_path("rest.gguf");
    assert_int_equal(strata_engine_create(model, &o, &e, &err), STRATA_E_MODEL);
    strata_model_free(model);
}

static struct strata_model *make(const char *name, void (*sizes)(struct make_model *m))
{
    struct strata_error err;
    struct strata_model *out;
    struct make_model *m = malloc(sizeof *m);
    sizes(m);
    assert_ok(make_write(m, work_path(name), &err), &err);
    assert_ok(strata_model_open(work_path(name), &out, &err), &err);
    free(m);
    return out;
}

static int setup(void **state)
{
    struct strata_error err = {0};
    const char *source = getenv("STRATA_TEST_SOURCE");
    char path[PATH_SIZE];
    snprintf(path, sizeof path, "%s/models/demo.gguf", source ? source : ".");
    if (make_work(state) || strata_model_open(path, &demo, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return -1;
    }
    wide = make("wide.gguf", make_wide);
    many = make("many.gguf", make_many);
    return 0;
}

static int teardown(void **state)
{
    strata_model_free(demo);
    strata_model_free(wide);
    strata_model_free(many);
    return remove_work(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(caches_of_any_size_give_the_same_bits_on_one_device),
        cmocka_unit_test(caches_of_any_size_give_the_same_bits_on_two_devices),
        cmocka_unit_test(a_share_of_the_misses_goes_over_a_fast_link_with_the_same_bits),
        cmocka_unit_test(another_card_helps_with_the_same_bits),
        cmocka_unit_test(what_a_text_chooses_comes_to_the_helper),
        cmocka_unit_test(a_helper_is_chosen_where_it_is_faster_or_where_the_user_gives_it_no_layers),
        cmocka_unit_test(slots_and_arena_take_the_bytes_that_are_planned),
        cmocka_unit_test(experts_that_fit_nowhere_are_read_from_the_file),
        cmocka_unit_test(refused_page_locking_is_said_and_survived),
        cmocka_unit_test(prompts_borrow_slots_and_windows_fill_them_again),
        cmocka_unit_test(what_a_text_chooses_comes_to_the_slots),
        cmocka_unit_test(a_profile_counts_the_same_everywhere_and_fills_slots),
        cmocka_unit_test(damaged_and_foreign_profiles_are_refused),
        cmocka_unit_test(a_file_that_shortens_fails_the_request_and_not_the_engine),
        cmocka_unit_test(the_n_gram_table_may_lie_in_a_file_of_its_own),
        cmocka_unit_test(the_demo_model_gives_the_same_bits_with_any_cache),
        cmocka_unit_test(the_released_models_widths_give_the_same_bits_with_any_cache),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
