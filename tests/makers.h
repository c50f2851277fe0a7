/* Runtimes as a user has them, each with simulated cards behind its name, and a set of images like that of a build. Included
 * after test.h by one file of a program. */
#ifndef ST_TESTS_MAKERS_H
#define ST_TESTS_MAKERS_H

#include <stdio.h>
#include <string.h>

#include <zstd.h>

#include "runtime/device.h"

extern const struct st_runtime st_runtime_sim;

/* ---- runtimes with simulated cards ---- */

static const char *cuda_cards, *hip_cards, *opencl_cards; /* descriptions; NULL: the library is missing */

static enum strata_result open_cards(const char *cards, const char *missing, const struct st_runtime_options *options,
                                     struct st_rt **out, struct strata_error *err)
{
    if (!cards)
        return st_fail(err, STRATA_E_UNSUPPORTED, "%s was not found", missing);
    struct st_runtime_options own = *options;
    own.devices = cards;
    return st_runtime_sim.open(&own, out, err);
}

static enum strata_result open_cuda(const struct st_runtime_options *o, struct st_rt **out, struct strata_error *err)
{
    return open_cards(cuda_cards, "libcuda.so.1", o, out, err);
}

static enum strata_result open_hip(const struct st_runtime_options *o, struct st_rt **out, struct strata_error *err)
{
    return open_cards(hip_cards, "libamdhip64.so", o, out, err);
}

static enum strata_result open_opencl(const struct st_runtime_options *o, struct st_rt **out, struct strata_error *err)
{
    return open_cards(opencl_cards, "libOpenCL.so.1", o, out, err);
}

/* A real runtime does not state images. */
static enum strata_result describe(struct st_rt *rt, int index, struct st_device_info *out, struct strata_error *err)
{
    enum strata_result r = st_runtime_sim.describe(rt, index, out, err);
    out->images[0] = 0;
    return r;
}

static struct st_runtime cuda, hip, opencl;
static const struct st_runtime *const runtimes[] = {&cuda, &hip, &opencl, &st_runtime_sim, NULL};

static void make_runtimes(void)
{
    cuda = hip = opencl = st_runtime_sim;
    cuda.name = "cuda";
    cuda.image = ST_IMAGE_PTX;
    cuda.rank = 0;
    cuda.open = open_cuda;
    hip.name = "hip";
    hip.image = ST_IMAGE_ELF;
    hip.rank = 1;
    hip.open = open_hip;
    opencl.name = "opencl";
    opencl.image = ST_IMAGE_SOURCE;
    opencl.rank = 2;
    opencl.open = open_opencl;
    cuda.describe = hip.describe = opencl.describe = describe;
}

/* ---- images ---- */

static char frame[64];
static size_t frame_size;
static struct st_image image_list[512];

/* Every module for each architecture of a comma-separated list. */
static struct st_image_set images_for(const char *archs)
{
    static char names[64][16];
    int used = 0;
    struct st_image_set set = {image_list, 0};
    frame_size = ZSTD_compress(frame, sizeof frame, "kernels", 8, 1);
    assert_false(ZSTD_isError(frame_size));
    for (const char *p = archs; *p; p += strcspn(p, ","), p += *p == ',') {
        snprintf(names[used], sizeof names[used], "%.*s", (int)strcspn(p, ","), p);
        for (int k = 0; k < ST_GPU_KERNEL_COUNT; k++) {
            bool have = false;
            for (size_t i = 0; i < set.count; i++)
                have = have || (image_list[i].arch == names[used] &&
                                strcmp(image_list[i].module, st_gpu_kernels[k].module) == 0);
            if (!have)
                image_list[set.count++] = (struct st_image){names[used], st_gpu_kernels[k].module, ST_IMAGE_PTX,
                                                            (const uint8_t *)frame, frame_size};
        }
        used++;
    }
    return set;
}

#endif
