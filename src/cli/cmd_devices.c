/* strata devices: the list of devices. */
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/device_list.h"

int st_cmd_devices(int argc, char **argv)
{
    struct st_device_args args = {0};
    bool json = false;
    struct st_opt options[] = {
        ST_DEVICE_OPTIONS(args),
        ST_FLAG("json", 0, &json, "as one JSON object"),
    };
    struct st_usage usage = {.command = "devices",
                             .form = "[options]",
                             .summary =
                                 "Lists the devices of this machine, which of them would be used, and why the others "
                                 "would not.",
                             .options = options,
                             .count = ST_COUNT(options)};
    int status;
    if (!st_options_parse(&usage, argc, argv, &status))
        return status;
    struct st_devices *devices = NULL;
    struct strata_error err = {0};
    enum strata_result r = st_device_args_open(&args, true, &devices, &err);
    status = ST_EXIT_OK;
    if (devices && json)
        status = st_print_json(st_device_list_json(devices));
    else if (devices)
        st_device_list_print(devices);
    st_devices_close(devices);
    return r != STRATA_OK ? st_report(&err) : status;
}
