/* strata-device: looks at devices without a model. Lists them, tests them against the C reference, measures them, and
 * shows what is in the images of this build. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/device_bench.h"
#include "cli/device_list.h"
#include "cli/device_selftest.h"

/* ---- --images ---- */

static const char *number_text(int32_t value, char out[16])
{
    if (value < 0)
        return "driver";
    snprintf(out, 16, "%d", value);
    return out;
}

static void print_kernel(const struct st_image *image, const struct st_image_kernel *kernel)
{
    char registers[16], spills[16], scalar[16], scratch[16], local[16], lanes[16];
    printf("%-15s %-10s %-22s %9s %7s %7s %8s %7s %6s\n", image->arch, image->module, kernel->name,
           number_text(kernel->registers, registers), number_text(kernel->spills, spills),
           number_text(kernel->scalar_spills, scalar), number_text(kernel->scratch, scratch),
           number_text(kernel->local, local), number_text(kernel->lanes, lanes));
}

static json_t *kernel_json(const struct st_image *image, const struct st_image_kernel *kernel)
{
    return json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i}", "arch", image->arch, "module", image->module,
                     "kernel", kernel->name, "registers", kernel->registers, "spills", kernel->spills, "scalar_spills",
                     kernel->scalar_spills, "scratch", kernel->scratch, "local", kernel->local, "lanes", kernel->lanes);
}

/* Sources are compiled by a driver, so nothing is known of their kernels before. */
static enum strata_result show_image(const struct st_image *image, json_t *list, struct strata_error *err)
{
    if (image->kind == ST_IMAGE_SOURCE)
        return STRATA_OK;
    void *data = NULL;
    uint64_t size = 0;
    struct st_image_kernel *kernels = NULL;
    size_t count = 0;
    enum strata_result r = st_image_read(image, &data, &size, err);
    if (r == STRATA_OK)
        r = st_image_inspect(image->kind, data, size, NULL, &kernels, &count, err);
    for (size_t i = 0; i < count && r == STRATA_OK; i++) {
        if (list)
            json_array_append_new(list, kernel_json(image, &kernels[i]));
        else
            print_kernel(image, &kernels[i]);
    }
    free(kernels);
    free(data);
    return r;
}

static int print_json(json_t *value)
{
    int failed = !value || json_dumpf(value, stdout, JSON_INDENT(2)) != 0 || putchar('\n') == EOF;
    json_decref(value);
    return failed ? st_user_error("standard output: write error, or no memory") : ST_EXIT_OK;
}

static int show_images(bool json)
{
    json_t *list = json ? json_array() : NULL;
    if (!json)
        printf("%-15s %-10s %-22s %9s %7s %7s %8s %7s %6s\n", "arch", "module", "kernel", "registers", "spills",
               "scalar", "scratch", "local", "lanes");
    for (size_t i = 0; i < st_images_builtin.count; i++) {
        struct strata_error err = {0};
        if (show_image(&st_images_builtin.list[i], list, &err) != STRATA_OK) {
            json_decref(list);
            return st_report(&err);
        }
    }
    return json ? print_json(list) : ST_EXIT_OK;
}

/* ---- the rest ---- */

static int show_list(const struct st_devices *devices, bool json)
{
    if (json)
        return print_json(st_device_list_json(devices));
    st_device_list_print(devices);
    return ST_EXIT_OK;
}

struct device_main_args {
    struct st_device_args devices;
    bool list, images, bench, selftest, json, tiles;
    int64_t seed; /* negative: from the clock */
};

static int run(const struct device_main_args *args)
{
    if (args->images)
        return show_images(args->json);
    struct st_devices *devices = NULL;
    struct strata_error err = {0};
    enum strata_result r = st_device_args_open(&args->devices, args->list, &devices, &err);
    int status = r != STRATA_OK ? st_exit_code(r) : ST_EXIT_OK;
    if (args->list && devices) {
        int shown = show_list(devices, args->json);
        status = status != ST_EXIT_OK ? status : shown;
    }
    if (r != STRATA_OK)
        st_report(&err);
    if (args->selftest && r == STRATA_OK && status == ST_EXIT_OK)
        status = st_device_selftest(devices, args->seed < 0 ? (uint64_t)time(NULL) : (uint64_t)args->seed);
    if (args->bench && r == STRATA_OK && status == ST_EXIT_OK)
        status = st_device_bench(devices, args->tiles);
    st_devices_close(devices);
    return status;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    struct device_main_args args = {.seed = -1};
    struct st_opt options[] = {
        ST_FLAG("list-devices", 'l', &args.list, "list the devices, which would be used, and why the others would not"),
        ST_FLAG("selftest", 't', &args.selftest, "run every kernel against the C reference, on all devices at once"),
        ST_FLAG("bench", 'b', &args.bench, "measure the devices: rates, cost of a launch, decode products"),
        ST_FLAG("images", 0, &args.images, "registers, spills, local memory and lanes of every kernel in this build"),
        ST_FLAG("json", 0, &args.json, "with --list-devices or --images: as JSON"),
        ST_FLAG("tiles", 0, &args.tiles, "with --bench: products with every tile size instead of the default"),
        ST_INT("seed", 0, &args.seed, 0, 9007199254740992.0, "N",
               "with --selftest: seed of the inputs (default: the clock)"),
        ST_DEVICE_OPTIONS(args.devices),
    };
    struct st_usage usage = {.command = "strata-device",
                             .form = "(--list-devices | --selftest | --bench | --images) [options]",
                             .summary = "Looks at the devices of this machine without a model.",
                             .options = options,
                             .count = ST_COUNT(options),
                             .alone = true};
    int status;
    if (!st_options_parse(&usage, argc, argv, &status))
        return status;
    if (args.list + args.selftest + args.bench + args.images != 1)
        return st_user_error("strata-device: what to do? give one of --list-devices, --selftest, --bench, --images");
    return run(&args);
}
