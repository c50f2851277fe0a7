/* Mixed machines: three runtimes as a user has them, each with simulated cards behind its name, and a set of images
 * like that of a build. Every test says what is listed, chosen or refused, and with which words. */
#include "test.h"

#include "kernel/gpu_copy.h"
#include "makers.h"
#include "runtime/selftest.h"

/* ---- a machine ---- */

struct machine {
    struct st_image_set images;
    struct st_devices *set;
    struct strata_error err;
    enum strata_result result;
};

static void open_machine(struct machine *m, const char *devices, const char *archs)
{
    make_runtimes();
    m->images = images_for(archs);
    m->err = (struct strata_error){0};
    struct st_device_options options = {
        .devices = devices, .executor = "fibers", .runtimes = runtimes, .images = &m->images, .list_all = true};
    m->result = st_devices_open(&options, &m->set, &m->err);
    assert_non_null(m->set);
}

static const struct st_found *found(const struct machine *m, const char *name)
{
    for (int i = 0; i < m->set->count; i++)
        if (strcmp(m->set->list[i].name, name) == 0)
            return &m->set->list[i];
    fail_msg("%s is not listed", name);
    return NULL;
}

/* The chosen devices, comma separated. */
static const char *chosen(const struct machine *m)
{
    static char text[256];
    text[0] = 0;
    for (int i = 0; i < m->set->chosen_count; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", i ? "," : "",
                 m->set->list[m->set->chosen[i]].name);
    return text;
}

static struct st_device *open_device(struct machine *m, const char *name)
{
    struct st_device *dev = NULL;
    assert_ok(st_device_open(m->set, (int)(found(m, name) - m->set->list), NULL, &dev, &m->err), &m->err);
    return dev;
}

static const char *image_label(const struct st_device *dev, const char *module)
{
    for (int i = 0; i < dev->module_count; i++)
        if (strcmp(dev->modules[i].name, module) == 0)
            return dev->modules[i].label;
    return "";
}

static __attribute__((noinline)) void assert_says(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("\"%s\" does not say \"%s\"", text, part);
}

/* Runs a part of the self-test on it. */
static void assert_works(struct st_device *dev)
{
    struct st_selftest_options options = {.seed = 1, .family = "copy"};
    struct st_selftest_result result;
    struct strata_error err;
    assert_ok(st_selftest(dev, &options, &result, &err), &err);
    assert_true(result.cases > 0);
    assert_int_equal(result.failed, 0);
}

#define BUILD "sm_80,sm_90a,gfx1100,gfx1201"

/* ---- tests ---- */

static void a_laptop_with_cards_of_two_makers_uses_both_at_once(void **state)
{
    (void)state;
    struct machine m;
    cuda_cards = "sm_89:8G:pci=01.00.0:as=cuda";
    hip_cards = "gfx1150:16G:pci=65.00.0:as=hip:integrated:display";
    opencl_cards = NULL;
    open_machine(&m, "auto", BUILD ",gfx11-generic");
    assert_ok(m.result, &m.err);
    assert_string_equal(chosen(&m), "cuda:0,hip:0");
    assert_string_equal(m.set->runtimes[2].reason, "libOpenCL.so.1 was not found");
    struct st_device *nvidia = open_device(&m, "cuda:0"), *amd = open_device(&m, "hip:0");
    assert_string_equal(image_label(nvidia, "matvec"), "matvec for sm_80");
    assert_string_equal(image_label(amd, "matvec"), "matvec for gfx11-generic");
    assert_works(nvidia);
    assert_works(amd);
    assert_works(nvidia);
    st_device_close(amd);
    st_device_close(nvidia);
    st_devices_close(m.set);
}

static void two_generations_of_one_maker_get_their_own_images_in_either_order(void **state)
{
    (void)state;
    static const char *const cards[] = {"gfx1100:24G:pci=03.00.0:as=hip,gfx1201:16G:pci=06.00.0:as=hip",
                                        "gfx1201:16G:pci=03.00.0:as=hip,gfx1100:24G:pci=06.00.0:as=hip"};
    cuda_cards = opencl_cards = NULL;
    for (int order = 0; order < 2; order++) {
        struct machine m;
        hip_cards = cards[order];
        open_machine(&m, "auto", BUILD);
        assert_ok(m.result, &m.err);
        assert_string_equal(chosen(&m), "hip:0,hip:1");
        struct st_device *first = open_device(&m, "hip:0"), *second = open_device(&m, "hip:1");
        assert_string_equal(image_label(first, "rows"), order ? "rows for gfx1201" : "rows for gfx1100");
        assert_string_equal(image_label(second, "rows"), order ? "rows for gfx1100" : "rows for gfx1201");
        assert_works(second);
        assert_works(first);
        st_device_close(first);
        assert_works(second); /* closing one takes nothing from the other */
        st_device_close(second);
        st_devices_close(m.set);
        open_machine(&m, "hip:1,hip:0", BUILD);
        assert_ok(m.result, &m.err);
        assert_string_equal(chosen(&m), "hip:1,hip:0");
        st_devices_close(m.set);
    }
}

static void two_equal_cards_are_two_devices(void **state)
{
    (void)state;
    struct machine m;
    cuda_cards = opencl_cards = NULL;
    hip_cards = "gfx1030:16G:pci=03.00.0:as=hip,gfx1030:16G:pci=06.00.0:as=hip";
    open_machine(&m, "auto", BUILD ",gfx1030");
    assert_ok(m.result, &m.err);
    assert_string_equal(chosen(&m), "hip:0,hip:1");
    struct st_device *a = open_device(&m, "hip:0"), *b = open_device(&m, "hip:1");
    st_addr memory;
    assert_ok(a->table->allocate(a->rt, 65536, &memory, &m.err), &m.err);
    struct st_gpu_launch l;
    st_gpu_copy(memory, memory + 32768, 32768, &l);
    assert_int_equal(st_launch(b, b->compute, l.kernel, l.grid[0], 1, 1, l.args, NULL, &m.err), STRATA_E_DEVICE);
    assert_says(m.err.text, "st_copy");
    assert_says(m.err.text, "hip:1");
    assert_works(a);
    assert_works(b);
    a->table->release(a->rt, memory);
    st_device_close(a);
    st_device_close(b);
    st_devices_close(m.set);
}

static void three_generations_and_two_wave_widths_run_side_by_side(void **state)
{
    (void)state;
    struct machine m;
    opencl_cards = NULL;
    cuda_cards = "sm_75:8G:pci=01.00.0:as=cuda,sm_90:80G:pci=02.00.0:as=cuda";
    hip_cards = "gfx90a:64G:pci=03.00.0:as=hip";
    open_machine(&m, "auto", "sm_75," BUILD ",gfx90a");
    assert_ok(m.result, &m.err);
    assert_string_equal(chosen(&m), "cuda:0,cuda:1,hip:0");
    assert_int_equal(found(&m, "hip:0")->info.lanes, 64);
    assert_int_equal(found(&m, "cuda:1")->info.lanes, 32);
    struct st_device *dev[3] = {open_device(&m, "cuda:0"), open_device(&m, "cuda:1"), open_device(&m, "hip:0")};
    assert_string_equal(image_label(dev[0], "norm"), "norm for sm_75");
    assert_string_equal(image_label(dev[1], "norm"), "norm for sm_90a");
    assert_string_equal(image_label(dev[2], "norm"), "norm for gfx90a");
    for (int i = 0; i < 3; i++) {
        struct st_selftest_options options = {.seed = 7, .family = "dialect"};
        struct st_selftest_result result;
        assert_ok(st_selftest(dev[i], &options, &result, &m.err), &m.err);
        assert_int_equal(result.failed, 0);
    }
    for (int i = 0; i < 3; i++)
        st_device_close(dev[i]);
    st_devices_close(m.set);
}

static void a_newer_card_than_the_build_knows_takes_the_highest_plain_image(void **state)
{
    (void)state;
    struct machine m;
    hip_cards = opencl_cards = NULL;
    cuda_cards = "sm_120:16G:as=cuda";
    open_machine(&m, "auto", BUILD);
    assert_ok(m.result, &m.err);
    assert_string_equal(chosen(&m), "cuda:0");
    struct st_device *dev = open_device(&m, "cuda:0");
    assert_string_equal(image_label(dev, "matvec"), "matvec for sm_80"); /* sm_90a serves its own capability alone */
    assert_works(dev);
    st_device_close(dev);
    st_devices_close(m.set);
}

static void a_card_without_image_is_left_out_with_a_line_or_refused_when_named(void **state)
{
    (void)state;
    struct machine m;
    cuda_cards = opencl_cards = NULL;
    hip_cards = "gfx1010:8G:pci=03.00.0:as=hip,gfx1100:24G:pci=06.00.0:as=hip";
    open_machine(&m, "auto", BUILD);
    assert_ok(m.result, &m.err);
    assert_string_equal(chosen(&m), "hip:1");
    const char *why = found(&m, "hip:0")->left_out;
    assert_says(why, "gfx1010");
    assert_says(why, "no image of kernel st_empty");
    assert_says(why, "sm_80, sm_90a, gfx1100, gfx1201");
    st_devices_close(m.set);

    open_machine(&m, "hip:0,hip:1", BUILD);
    assert_int_equal(m.result, STRATA_E_DEVICE);
    assert_says(m.err.text, "hip:0");
    assert_says(m.err.text, "gfx1010");
    assert_says(m.err.text, "no image of kernel st_empty");
    st_devices_close(m.set);
}

static void a_missing_kernel_is_found_when_the_device_is_opened(void **state)
{
    (void)state;
    struct machine m;
    cuda_cards = opencl_cards = NULL;
    hip_cards = "gfx1100:24G:as=hip:lacks=st_mv_q4_k_8,gfx1201:16G:as=hip";
    open_machine(&m, "auto", BUILD);
    assert_ok(m.result, &m.err);
    struct st_device *dev = NULL;
    assert_int_equal(st_device_open(m.set, m.set->chosen[0], NULL, &dev, &m.err), STRATA_E_UNSUPPORTED);
    assert_says(m.err.text, "hip:0 (gfx1100)");
    assert_says(m.err.text, "st_mv_q4_k_8");
    /* a model that does not use it runs */
    bool needed[ST_GPU_KERNEL_COUNT] = {[ST_GPU_COPY] = true, [ST_GPU_READ] = true};
    assert_ok(st_device_open(m.set, m.set->chosen[0], needed, &dev, &m.err), &m.err);
    assert_works(dev);
    st_device_close(dev);
    struct st_device *whole = open_device(&m, "hip:1");
    assert_non_null(whole->kernels[ST_GPU_MV_Q4_K_8].function);
    st_device_close(whole);
    st_devices_close(m.set);
}

static void one_maker_works_when_the_others_library_is_missing(void **state)
{
    (void)state;
    struct machine m;
    cuda_cards = opencl_cards = NULL;
    hip_cards = "gfx1201:16G:as=hip";
    open_machine(&m, "auto", BUILD);
    assert_ok(m.result, &m.err);
    assert_string_equal(chosen(&m), "hip:0");
    assert_string_equal(m.set->runtimes[0].reason, "libcuda.so.1 was not found");
    st_devices_close(m.set);
    open_machine(&m, "cuda:0", BUILD);
    assert_int_equal(m.result, STRATA_E_DEVICE);
    assert_says(m.err.text, "cuda:0");
    assert_says(m.err.text, "libcuda.so.1 was not found");
    st_devices_close(m.set);
}

static void a_card_seen_by_two_runtimes_is_used_once_unless_both_are_named(void **state)
{
    (void)state;
    struct machine m;
    hip_cards = NULL;
    cuda_cards = "sm_89:8G:pci=0000.41.00.0:as=cuda";
    opencl_cards = "opencl:8G:pci=0000.41.00.0:as=opencl,opencl:4G:pci=0000.00.02.0:as=opencl:integrated";
    open_machine(&m, "auto", BUILD ",opencl");
    assert_ok(m.result, &m.err);
    assert_string_equal(chosen(&m), "cuda:0,opencl:1");
    assert_string_equal(found(&m, "opencl:0")->twin, "cuda:0");
    assert_says(found(&m, "opencl:0")->left_out, "the same card as cuda:0");
    assert_string_equal(found(&m, "cuda:0")->twin, "");
    st_devices_close(m.set);

    open_machine(&m, "cuda:0,opencl:0", BUILD ",opencl");
    assert_ok(m.result, &m.err);
    assert_string_equal(chosen(&m), "cuda:0,opencl:0");
    struct st_device *a = open_device(&m, "cuda:0"), *b = open_device(&m, "opencl:0");
    assert_works(a);
    assert_works(b);
    st_device_close(b);
    st_device_close(a);
    st_devices_close(m.set);
}

static void a_broken_card_does_not_take_its_twins_place(void **state)
{
    (void)state;
    struct machine m;
    hip_cards = NULL;
    cuda_cards = "sm_89:8G:pci=41.00.0:as=cuda:unusable=driver and library differ";
    opencl_cards = "opencl:8G:pci=41.00.0:as=opencl";
    open_machine(&m, "auto", BUILD ",opencl");
    assert_ok(m.result, &m.err);
    assert_string_equal(chosen(&m), "opencl:0");
    assert_string_equal(found(&m, "cuda:0")->left_out, "driver and library differ");
    st_devices_close(m.set);
}

static void simulated_devices_stand_beside_real_ones_when_they_are_named(void **state)
{
    (void)state;
    struct machine m;
    cuda_cards = "sm_90:80G:as=cuda";
    hip_cards = opencl_cards = NULL;
    open_machine(&m, "auto", BUILD);
    assert_string_equal(chosen(&m), "cuda:0");
    st_devices_close(m.set);
    open_machine(&m, "cuda:0,sim:gfx1100:24G,sim:gfx1201:16G:images=gfx1100", BUILD);
    assert_int_equal(m.result, STRATA_E_DEVICE);
    assert_says(m.err.text, "sim:1");
    assert_says(m.err.text, "there are images for gfx1100");
    st_devices_close(m.set);
    open_machine(&m, "sim:gfx1100:24G:images=gfx11-generic,cuda:0", BUILD);
    assert_ok(m.result, &m.err);
    assert_string_equal(chosen(&m), "sim:0,cuda:0");
    st_devices_close(m.set);
    open_machine(&m, "sim:gfx1100:24G:images=gfx11-generic:nogeneric", BUILD);
    assert_int_equal(m.result, STRATA_E_DEVICE);
    st_devices_close(m.set);
    open_machine(&m, "sim:gfx1100:24G:images=build", BUILD);
    char archs[256];
    st_image_archs(&st_images_builtin, archs, sizeof archs);
    assert_string_equal(found(&m, "sim:0")->info.images, archs);
    st_devices_close(m.set);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_laptop_with_cards_of_two_makers_uses_both_at_once),
    cmocka_unit_test(two_generations_of_one_maker_get_their_own_images_in_either_order),
    cmocka_unit_test(two_equal_cards_are_two_devices),
    cmocka_unit_test(three_generations_and_two_wave_widths_run_side_by_side),
    cmocka_unit_test(a_newer_card_than_the_build_knows_takes_the_highest_plain_image),
    cmocka_unit_test(a_card_without_image_is_left_out_with_a_line_or_refused_when_named),
    cmocka_unit_test(a_missing_kernel_is_found_when_the_device_is_opened),
    cmocka_unit_test(one_maker_works_when_the_others_library_is_missing),
    cmocka_unit_test(a_card_seen_by_two_runtimes_is_used_once_unless_both_are_named),
    cmocka_unit_test(a_broken_card_does_not_take_its_twins_place),
    cmocka_unit_test(simulated_devices_stand_beside_real_ones_when_they_are_named),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
