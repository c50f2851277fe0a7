/* Runs a fuzz target over every file of a folder, so that inputs that once mattered are tried by every check. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int main(int argc, char **argv)
{
    DIR *d = argc == 2 ? opendir(argv[1]) : NULL;
    size_t count = 0;
    if (!d) {
        fprintf(stderr, "usage: replay FOLDER\n");
        return 1;
    }
    for (struct dirent *e; (e = readdir(d));) {
        char path[4096], *text;
        size_t size;
        struct strata_error err;
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", argv[1], e->d_name);
        if (st_read_file(path, 1 << 20, &text, &size, &err)) {
            fprintf(stderr, "%s\n", err.text);
            return 1;
        }
        /* In memory of exactly this size, so that the sanitizers see reads past the end. */
        uint8_t *exact = malloc(size + !size);
        for (size_t i = 0; i < size; i++)
            exact[i] = (uint8_t)text[i];
        LLVMFuzzerTestOneInput(exact, size);
        free(exact);
        free(text);
        count++;
    }
    closedir(d);
    printf("%zu inputs\n", count);
    return count ? 0 : 1;
}
