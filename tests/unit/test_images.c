/* Images: the choice for an architecture, architecture names, and readers that take nothing for granted. */
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/images.h"

static const char *const built[] = {"sm_75",           "sm_80",         "sm_89",         "sm_90a",
                                    "gfx906",          "gfx1100",       "gfx11-generic", "gfx9-generic",
                                    "gfx10-3-generic", "gfx12-generic", "opencl"};

/* The best of the list above, "" for none. */
static const char *best(const char *arch, bool generic)
{
    int rank = 0;
    const char *found = "";
    for (size_t i = 0; i < sizeof built / sizeof built[0]; i++) {
        int r = st_arch_rank(arch, built[i], generic);
        if (r > rank) {
            rank = r;
            found = built[i];
        }
    }
    return found;
}

/* Every capability from 7.5 to 12.1 that exists takes the highest plain image not above it; 9.0 alone takes sm_90a. */
static void capabilities_take_the_highest_plain_image_not_above_them(void **state)
{
    (void)state;
    static const char *const expected[][2] = {
        {"sm_70", ""},       {"sm_72", ""},       {"sm_75", "sm_75"},  {"sm_80", "sm_80"},  {"sm_86", "sm_80"},
        {"sm_87", "sm_80"},  {"sm_88", "sm_80"},  {"sm_89", "sm_89"},  {"sm_90", "sm_90a"}, {"sm_100", "sm_89"},
        {"sm_101", "sm_89"}, {"sm_103", "sm_89"}, {"sm_110", "sm_89"}, {"sm_120", "sm_89"}, {"sm_121", "sm_89"},
    };
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
        assert_string_equal(best(expected[i][0], true), expected[i][1]);
    assert_int_equal(st_arch_rank("sm_100", "sm_90a", true), 0);
    assert_int_equal(st_arch_rank("sm_100", "sm_100f", true), 0);
    assert_int_equal(st_arch_rank("sm_75", "sm_", true), 0);
    assert_int_equal(st_arch_rank("sm_75", "gfx906", true), 0);
}

static void amd_cards_take_their_own_image_then_their_familys(void **state)
{
    (void)state;
    static const struct {
        const char *arch, *with, *without;
    } expected[] = {
        {"gfx900", "gfx9-generic", ""},
        {"gfx902", "gfx9-generic", ""},
        {"gfx904", "gfx9-generic", ""},
        {"gfx906", "gfx906", "gfx906"},
        {"gfx908", "", ""},
        {"gfx909", "gfx9-generic", ""},
        {"gfx90a", "", ""},
        {"gfx90c", "gfx9-generic", ""},
        {"gfx942", "", ""},
        {"gfx950", "", ""},
        {"gfx1010", "", ""},
        {"gfx1030", "gfx10-3-generic", ""},
        {"gfx1031", "gfx10-3-generic", ""},
        {"gfx1032", "gfx10-3-generic", ""},
        {"gfx1033", "gfx10-3-generic", ""},
        {"gfx1034", "gfx10-3-generic", ""},
        {"gfx1035", "gfx10-3-generic", ""},
        {"gfx1036", "gfx10-3-generic", ""},
        {"gfx1100", "gfx1100", "gfx1100"},
        {"gfx1101", "gfx11-generic", ""},
        {"gfx1102", "gfx11-generic", ""},
        {"gfx1103", "gfx11-generic", ""},
        {"gfx1150", "gfx11-generic", ""},
        {"gfx1151", "gfx11-generic", ""},
        {"gfx1152", "gfx11-generic", ""},
        {"gfx1153", "gfx11-generic", ""},
        {"gfx1200", "gfx12-generic", ""},
        {"gfx1201", "gfx12-generic", ""},
        {"gfx1300", "", ""},
        {"opencl", "opencl", "opencl"},
    };
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        assert_string_equal(best(expected[i].arch, true), expected[i].with);
        assert_string_equal(best(expected[i].arch, false), expected[i].without);
    }
}

static void the_best_of_a_list_is_found_whatever_its_order(void **state)
{
    (void)state;
    char out[32];
    assert_true(st_arch_best("sm_75,sm_89,sm_80", "sm_120", false, out));
    assert_string_equal(out, "sm_89");
    assert_true(st_arch_best("gfx11-generic,gfx1100", "gfx1100", true, out));
    assert_string_equal(out, "gfx1100");
    assert_false(st_arch_best("", "gfx1100", true, out));
    assert_false(st_arch_best(",,,", "gfx1100", true, out));
}

static void only_images_with_strips_say_that_they_fold_weights(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof built / sizeof *built; i++)
        assert_int_equal(st_arch_folds(built[i]), strcmp(built[i], "sm_90a") == 0);
    assert_false(st_arch_folds("opencl"));
}

static void numbers_of_the_kernel_driver_become_names(void **state)
{
    (void)state;
    static const struct {
        uint64_t version;
        const char *name;
    } known[] = {{90006, "gfx906"},   {90008, "gfx908"},   {90010, "gfx90a"},   {90012, "gfx90c"},
                 {90402, "gfx942"},   {90500, "gfx950"},   {100100, "gfx1010"}, {100300, "gfx1030"},
                 {100306, "gfx1036"}, {110000, "gfx1100"}, {110003, "gfx1103"}, {110500, "gfx1150"},
                 {110501, "gfx1151"}, {120000, "gfx1200"}, {120001, "gfx1201"}};
    char name[32];
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        assert_true(st_arch_from_version(known[i].version, name));
        assert_string_equal(name, known[i].name);
    }
    assert_false(st_arch_from_version(0, name));
    assert_false(st_arch_from_version(90016, name));
    assert_false(st_arch_from_version(UINT64_MAX, name));
}

static void waves_of_gfx9_have_64_lanes(void **state)
{
    (void)state;
    assert_int_equal(st_arch_lanes("gfx90a"), 64);
    assert_int_equal(st_arch_lanes("gfx942"), 64);
    assert_int_equal(st_arch_lanes("gfx1030"), 32);
    assert_int_equal(st_arch_lanes("sm_120"), 32);
    assert_int_equal(st_arch_lanes("opencl"), 1);
}

static const char ptx[] = ".version 7.0\n.target sm_80\n.address_size 64\n"
                          "// dynamic_local st_big 65536\n.extern .shared .align 16 .b8 st_big_a[];\n"
                          ".visible .entry st_small(\n\t.param .u64 p\n)\n.reqntid 128, 2, 1\n{\n"
                          "\t.local .align 8 .b8 \t__local_depot0[40];\n\t.shared .align 4 .b8 a[1024];\n"
                          "\t.shared .align 4 .b8 b[16];\n}\n"
                          ".visible .entry st_big(\n)\n.reqntid 256, 1, 1\n{\n\tgriddepcontrol.wait;\n}\n";

static void ptx_is_read_entry_by_entry(void **state)
{
    (void)state;
    struct strata_error err = {0};
    struct st_image_kernel *kernels = NULL;
    size_t count = 0;
    char arch[32];
    assert_ok(st_image_inspect(ST_IMAGE_PTX, ptx, sizeof ptx, arch, &kernels, &count, &err), &err);
    assert_int_equal(count, 2);
    assert_string_equal(arch, "sm_80");
    assert_string_equal(kernels[0].name, "st_small");
    assert_int_equal(kernels[0].local, 1040);
    assert_int_equal(kernels[0].scratch, 40);
    assert_int_equal(kernels[0].group[0], 128);
    assert_int_equal(kernels[0].group[1], 2);
    assert_int_equal(kernels[0].max_group, 256);
    assert_string_equal(kernels[1].name, "st_big");
    assert_int_equal(kernels[1].local, 65536);
    assert_int_equal(kernels[1].dynamic_local, 65536);
    assert_false(kernels[0].overlaps);
    assert_true(kernels[1].overlaps);
    free(kernels);
    /* without the NUL, and with one inside */
    assert_int_equal(st_image_inspect(ST_IMAGE_PTX, ptx, sizeof ptx - 1, NULL, &kernels, &count, &err),
                     STRATA_E_FORMAT);
    char broken[sizeof ptx];
    memcpy(broken, ptx, sizeof ptx);
    broken[20] = 0;
    assert_int_equal(st_image_inspect(ST_IMAGE_PTX, broken, sizeof broken, NULL, &kernels, &count, &err),
                     STRATA_E_FORMAT);
}

static void put(uint8_t *p, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)(value >> (8 * i));
}

/* A code object of one section with the note given; returns its size. */
static size_t make_elf(uint8_t *out, const uint8_t *note, size_t size)
{
    static const uint8_t head[8] = {0x7F, 'E', 'L', 'F', 2, 1, 1, 64};
    size_t table = (64 + 20 + size + 7) / 8 * 8;
    memset(out, 0, table + 64);
    memcpy(out, head, sizeof head);
    put(out + 18, 224, 2);
    put(out + 40, table, 8);
    put(out + 48, 0x44, 4); /* gfx1103 */
    put(out + 58, 64, 2);
    put(out + 60, 1, 2);
    put(out + 64, 7, 4);
    put(out + 68, size, 4);
    put(out + 72, 32, 4);
    memcpy(out + 76, "AMDGPU", 7);
    memcpy(out + 84, note, size);
    put(out + table + 4, 7, 4);
    put(out + table + 24, 64, 8);
    put(out + table + 32, 20 + size, 8);
    return table + 64;
}

/* {"amdhsa.kernels": [{".name": "k", ".vgpr_count": 300, ".wavefront_size": 32, ".args": [{".value_kind": KIND}],
 *  ".vgpr_spill_count": 2, ".sgpr_spill_count": 3, ".reqd_workgroup_size": [64, 1, 1], ".uses_dynamic_stack": false}]}
 */
static size_t make_note(uint8_t *p, const char *kind)
{
    uint8_t *start = p;
#define TEXT(s)                                                                                                        \
    do {                                                                                                               \
        *p++ = 0xD9;                                                                                                   \
        *p++ = (uint8_t)strlen(s);                                                                                     \
        memcpy(p, s, strlen(s));                                                                                       \
        p += strlen(s);                                                                                                \
    } while (0)
    *p++ = 0x82;
    TEXT("amdhsa.version");
    *p++ = 0x92;
    *p++ = 1;
    *p++ = 2;
    TEXT("amdhsa.kernels");
    *p++ = 0x91;
    *p++ = 0x88;
    TEXT(".name");
    TEXT("k");
    TEXT(".vgpr_count");
    *p++ = 0xCD;
    *p++ = 1;
    *p++ = 44;
    TEXT(".wavefront_size");
    *p++ = 32;
    TEXT(".args");
    *p++ = 0x91;
    *p++ = 0x81;
    TEXT(".value_kind");
    TEXT(kind);
    TEXT(".vgpr_spill_count");
    *p++ = 2;
    TEXT(".sgpr_spill_count");
    *p++ = 3;
    TEXT(".reqd_workgroup_size");
    *p++ = 0x93;
    *p++ = 64;
    *p++ = 1;
    *p++ = 1;
    TEXT(".uses_dynamic_stack");
    *p++ = 0xC2;
#undef TEXT
    return (size_t)(p - start);
}

static void code_objects_are_read_by_their_note(void **state)
{
    (void)state;
    uint8_t note[512], elf[1024];
    struct strata_error err = {0};
    struct st_image_kernel *kernels = NULL;
    size_t count = 0, size = make_elf(elf, note, make_note(note, "global_buffer"));
    char arch[32];
    assert_ok(st_image_inspect(ST_IMAGE_ELF, elf, size, arch, &kernels, &count, &err), &err);
    assert_int_equal(count, 1);
    assert_string_equal(arch, "gfx1103");
    assert_string_equal(kernels[0].name, "k");
    assert_int_equal(kernels[0].registers, 300);
    assert_int_equal(kernels[0].spills, 2);
    assert_int_equal(kernels[0].scalar_spills, 3);
    assert_int_equal(kernels[0].lanes, 32);
    assert_int_equal(kernels[0].group[0], 64);
    assert_string_equal(kernels[0].problem, "");
    free(kernels);
    size = make_elf(elf, note, make_note(note, "hidden_hostcall_buffer"));
    assert_ok(st_image_inspect(ST_IMAGE_ELF, elf, size, arch, &kernels, &count, &err), &err);
    assert_non_null(strstr(kernels[0].problem, "hidden_hostcall_buffer"));
    free(kernels);
}

/* Every shortened form and every single damaged byte is read or refused, never followed outside (run under sanitizers).
 */
static void damaged_code_objects_are_refused_or_read_inside_their_bounds(void **state)
{
    (void)state;
    uint8_t note[512], elf[1024];
    size_t size = make_elf(elf, note, make_note(note, "global_buffer"));
    struct st_image_kernel *kernels = NULL;
    size_t count = 0;
    for (size_t cut = 0; cut < size; cut++) {
        uint8_t *copy = malloc(cut + 1);
        assert_non_null(copy);
        memcpy(copy, elf, cut);
        assert_int_equal(st_image_inspect(ST_IMAGE_ELF, copy, cut, NULL, &kernels, &count, NULL), STRATA_E_FORMAT);
        free(copy);
    }
    for (size_t at = 0; at < size; at++)
        for (int value = 0; value < 256; value += 17) {
            uint8_t *copy = malloc(size);
            assert_non_null(copy);
            memcpy(copy, elf, size);
            copy[at] = (uint8_t)value;
            if (st_image_inspect(ST_IMAGE_ELF, copy, size, NULL, &kernels, &count, NULL) == STRATA_OK)
                free(kernels);
            free(copy);
        }
}

static void a_damaged_packed_image_is_refused(void **state)
{
    (void)state;
    static const uint8_t bytes[] = {0x28, 0xB5, 0x2F, 0xFD, 0x20, 0x05, 0x29, 0x00, 0x00, 'h', 'e', 'l', 'l', 'o'};
    struct strata_error err = {0};
    struct st_image image = {"sm_80", "copy", ST_IMAGE_PTX, bytes, sizeof bytes, NULL};
    void *data = NULL;
    uint64_t size = 0;
    assert_ok(st_image_read(&image, &data, &size, &err), &err);
    assert_int_equal(size, 5);
    assert_memory_equal(data, "hello", 5);
    free(data);
    image.size = 10;
    assert_int_equal(st_image_read(&image, &data, &size, &err), STRATA_E_FORMAT);
    assert_non_null(strstr(err.text, "copy"));
    image.size = 0;
    assert_int_equal(st_image_read(&image, &data, &size, &err), STRATA_E_FORMAT);
}

static void a_source_is_read_with_its_dictionary_only(void **state)
{
    (void)state;
    const struct st_image *source = st_image_find(&st_images_builtin, "rows", "opencl", false);
    struct strata_error err = {0};
    void *data = NULL;
    uint64_t size = 0;
    assert_non_null(source);
    assert_non_null(source->dictionary);
    assert_ok(st_image_read(source, &data, &size, &err), &err);
    assert_non_null(strstr(data, "st_rows_q8_0"));
    free(data);
    struct st_image alone = *source, wrong = *source;
    alone.dictionary = NULL;
    assert_int_equal(st_image_read(&alone, &data, &size, &err), STRATA_E_FORMAT);
    wrong.dictionary = source; /* has one itself, so it is none */
    assert_int_equal(st_image_read(&wrong, &data, &size, &err), STRATA_E_FORMAT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(capabilities_take_the_highest_plain_image_not_above_them),
        cmocka_unit_test(amd_cards_take_their_own_image_then_their_familys),
        cmocka_unit_test(the_best_of_a_list_is_found_whatever_its_order),
        cmocka_unit_test(only_images_with_strips_say_that_they_fold_weights),
        cmocka_unit_test(numbers_of_the_kernel_driver_become_names),
        cmocka_unit_test(waves_of_gfx9_have_64_lanes),
        cmocka_unit_test(ptx_is_read_entry_by_entry),
        cmocka_unit_test(code_objects_are_read_by_their_note),
        cmocka_unit_test(damaged_code_objects_are_refused_or_read_inside_their_bounds),
        cmocka_unit_test(a_damaged_packed_image_is_refused),
        cmocka_unit_test(a_source_is_read_with_its_dictionary_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
