/* GPU images: which one serves a device, and what is inside it.
 *
 * An image is one module (src/kernel/gpu/<module>.cl) compiled for one architecture. The build embeds them, compressed;
 * a device asks for the best one of its architecture. All facts about architecture names are in images.c. */
#ifndef ST_RUNTIME_IMAGES_H
#define ST_RUNTIME_IMAGES_H

#include "runtime/runtime.h"

struct st_image {
    const char *arch;   /* "sm_80", "gfx1100", "gfx11-generic", "opencl" */
    const char *module; /* "matvec" */
    enum st_image_kind kind;
    const uint8_t *data; /* one zstd frame */
    uint64_t size;       /* of data */
    const struct st_image *dictionary; /* what the frame was packed with, or NULL; has none itself */
};

struct st_image_set {
    const struct st_image *list;
    size_t count;
};

/* What this build holds. */
extern const struct st_image_set st_images_builtin;

/* How well an image for image_arch serves a device of device_arch; 0: not at all, larger is better. An NVIDIA image
 * serves its own capability and later ones, one with the suffix 'a' its own capability alone; an AMD image serves its
 * own architecture, and one for a family (generic: the driver can load such images) the members of the family; all
 * others serve equal names. */
int st_arch_rank(const char *device_arch, const char *image_arch, bool generic);

/* The best image of a module for a device, or NULL. */
const struct st_image *st_image_find(const struct st_image_set *set, const char *module, const char *device_arch,
                                     bool generic);

/* Whether images for this architecture fold weights (ST_FOLDED in kernel/gpu/dialect.h). */
bool st_arch_folds(const char *image_arch);

/* The best of a comma-separated list of architectures, copied to out (32 bytes); false when none serves. */
bool st_arch_best(const char *list, const char *device_arch, bool generic, char out[32]);

/* Architectures of the set, each once, comma separated, cut to size. Returns out. */
char *st_image_archs(const struct st_image_set *set, char *out, size_t size);

/* Unpacks an image; the caller frees *out. */
enum strata_result st_image_read(const struct st_image *image, void **out, uint64_t *size, struct strata_error *err);

/* Width of a wave for an architecture name: 64 or 32; 1 when lanes are not known. */
uint32_t st_arch_lanes(const char *arch);

/* The architecture's name for the kernel driver's number (gfx_target_version, 110501 is gfx1151). False for 0 and for
 * numbers that make no name. */
bool st_arch_from_version(uint64_t version, char out[32]);

/* One kernel as its image describes it; -1 where the image does not say. */
struct st_image_kernel {
    char name[64];
    int32_t registers;     /* vector registers per work-item */
    int32_t spills;        /* vector registers spilled, to memory */
    int32_t scalar_spills; /* scalar registers spilled: to lanes of vector registers, no memory while scratch is 0 */
    int32_t scratch;       /* bytes per work-item outside registers (spills, local arrays, calls) */
    int32_t local;         /* bytes of local memory per group */
    int32_t dynamic_local; /* of these, what a launch must ask for */
    int32_t lanes;
    int32_t max_group;
    uint16_t group[3];   /* 0 0 0 when the image states none */
    bool uniform_groups; /* the image may rely on full groups */
    bool overlaps;       /* waits itself until the kernels before it are complete */
    char problem[96];    /* something a loader must refuse (needs of the host we do not serve), or "" */
};

/* Lists the kernels of an unpacked image; the caller frees *out. arch (may be NULL): the architecture that the image
 * names itself. Anything that breaks the format is STRATA_E_FORMAT; nothing outside data is read. */
enum strata_result st_image_inspect(enum st_image_kind kind, const void *data, uint64_t size, char arch[32],
                                    struct st_image_kernel **out, size_t *count, struct strata_error *err);

#endif
