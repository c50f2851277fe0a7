/* Fuzz target: GPU images from outside the build. The first byte chooses the format, PTX text gets its NUL. */
#include <stdlib.h>
#include <string.h>

#include "runtime/images.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    bool text = data[0] & 1;
    uint8_t *copy = malloc(size);
    if (!copy)
        return 0;
    memcpy(copy, data + 1, size - 1);
    copy[size - 1] = 0;
    struct st_image_kernel *kernels = NULL;
    size_t count = 0;
    char arch[32];
    if (st_image_inspect(text ? ST_IMAGE_PTX : ST_IMAGE_ELF, copy, text ? size : size - 1, arch, &kernels, &count,
                         NULL) == STRATA_OK)
        free(kernels);
    free(copy);
    return 0;
}
