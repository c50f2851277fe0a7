/* Every image of this build, read back: it holds what the kernel table promises, in the form that the loader and the
 * hardware need. */
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/gpu_kernels.h"
#include "runtime/images.h"

/* Local memory of one group: what every supported card gives, and what sm_90 does. */
static int32_t local_limit(const struct st_image *image)
{
    return strcmp(image->arch, "sm_90a") == 0 ? 227 * 1024 : 64 * 1024;
}

/* Two prompt products of groups of 512 work-items need more than the 128 registers that gfx906 has for each: no more spills than
 * today. */
static int32_t spills_allowed(const struct st_image *image, const struct st_kernel_desc *desc)
{
    bool known = strcmp(desc->name, "st_gemm_k32") == 0 || strcmp(desc->name, "st_gemm_k32m") == 0;
    return known && strcmp(image->arch, "gfx906") == 0 ? 26 : 0;
}

static void check_kernel(const struct st_image *image, const struct st_kernel_desc *desc,
                         const struct st_image_kernel *k)
{
    if (memcmp(k->group, desc->group, sizeof k->group) != 0)
        fail_msg("%s for %s: %s: the group size is not the table's", image->module, image->arch, desc->name);
    if (k->lanes != (int32_t)st_arch_lanes(image->arch))
        fail_msg("%s for %s: %s: waves of %d", image->module, image->arch, desc->name, k->lanes);
    if (k->local > local_limit(image))
        fail_msg("%s for %s: %s: %d bytes of local memory", image->module, image->arch, desc->name, k->local);
    if (desc->hot && (k->spills > spills_allowed(image, desc) || k->scratch > 5 * spills_allowed(image, desc)))
        fail_msg("%s for %s: %s: %d spills, %d bytes of scratch", image->module, image->arch, desc->name, k->spills,
                 k->scratch);
    if (!k->uniform_groups)
        fail_msg("%s for %s: %s: not compiled for full groups", image->module, image->arch, desc->name);
    if (k->problem[0])
        fail_msg("%s for %s: %s %s", image->module, image->arch, desc->name, k->problem);
}

static void check_image(const struct st_image *image)
{
    struct strata_error err = {0};
    void *data = NULL;
    uint64_t size = 0;
    struct st_image_kernel *kernels = NULL;
    size_t count = 0;
    char arch[32];
    assert_ok(st_image_read(image, &data, &size, &err), &err);
    assert_ok(st_image_inspect(image->kind, data, size, arch, &kernels, &count, &err), &err);
    assert_string_equal(arch, image->arch);
    size_t expected = 0;
    for (int i = 0; i < ST_GPU_KERNEL_COUNT; i++) {
        const struct st_kernel_desc *desc = &st_gpu_kernels[i];
        if (strcmp(desc->module, image->module) != 0)
            continue;
        const struct st_image_kernel *found = NULL;
        for (size_t k = 0; k < count; k++)
            if (strcmp(kernels[k].name, desc->name) == 0)
                found = &kernels[k];
        if (!found)
            fail_msg("%s for %s: no kernel %s", image->module, image->arch, desc->name);
        else
            check_kernel(image, desc, found);
        expected++;
    }
    if (count != expected)
        fail_msg("%s for %s: %zu kernels, the table has %zu", image->module, image->arch, count, expected);
    free(kernels);
    free(data);
}

static void every_image_holds_its_kernels_without_spills_and_in_the_right_width(void **state)
{
    (void)state;
    for (size_t i = 0; i < st_images_builtin.count; i++)
        if (st_images_builtin.list[i].kind != ST_IMAGE_SOURCE)
            check_image(&st_images_builtin.list[i]);
}

/* Counts the places where the line stands in the text. */
static int lines(const char *text, const char *line)
{
    int count = 0;
    size_t length = strlen(line);
    for (const char *p = text; (p = strstr(p, line)) != NULL; p += length)
        count += (p == text || p[-1] == '\n') && p[length] == '\n';
    return count;
}

static void every_kernel_of_a_source_can_be_asked_for_alone(void **state)
{
    (void)state;
    for (size_t i = 0; i < st_images_builtin.count; i++) {
        const struct st_image *image = &st_images_builtin.list[i];
        struct strata_error err = {0};
        void *data = NULL;
        uint64_t size = 0;
        int expected = 0;
        if (image->kind != ST_IMAGE_SOURCE)
            continue;
        assert_ok(st_image_read(image, &data, &size, &err), &err);
        for (int k = 0; k < ST_GPU_KERNEL_COUNT; k++) {
            char line[96];
            snprintf(line, sizeof line, "#ifdef ST_WANTS_%s", st_gpu_kernels[k].name);
            int found = lines(data, line), wanted = strcmp(st_gpu_kernels[k].module, image->module) == 0;
            if (found != wanted)
                fail_msg("%s: %s stands there %d times", image->module, st_gpu_kernels[k].name, found);
            expected += wanted;
        }
        int all = 0;
        for (const char *p = data; (p = strstr(p, "#ifdef ST_WANTS_")) != NULL; p++)
            all++;
        assert_int_equal(all, expected);
        free(data);
    }
}

/* Every architecture of the build has an image of every module. */
static void every_architecture_is_complete(void **state)
{
    (void)state;
    for (size_t i = 0; i < st_images_builtin.count; i++)
        for (int k = 0; k < ST_GPU_KERNEL_COUNT; k++) {
            const char *arch = st_images_builtin.list[i].arch, *module = st_gpu_kernels[k].module;
            bool found = false;
            for (size_t j = 0; j < st_images_builtin.count; j++)
                found = found || (strcmp(st_images_builtin.list[j].arch, arch) == 0 &&
                                  strcmp(st_images_builtin.list[j].module, module) == 0);
            if (!found)
                fail_msg("%s has no image of %s", arch, module);
        }
    assert_non_null(st_image_find(&st_images_builtin, "copy", "opencl", false));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_image_holds_its_kernels_without_spills_and_in_the_right_width),
        cmocka_unit_test(every_kernel_of_a_source_can_be_asked_for_alone),
        cmocka_unit_test(every_architecture_is_complete),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
