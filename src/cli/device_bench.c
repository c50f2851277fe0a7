/* strata-device --bench: what a device does in practice, in numbers for people. */
#include "cli/device_bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/options.h"

static void print_measured(const struct st_device *dev)
{
    const struct st_measured *m = &dev->measured;
    printf("%s: %s, %s, %s, %s\n", dev->name, dev->info.model, dev->info.arch,
           dev->info.pci[0] ? dev->info.pci : "no address", dev->info.driver);
    printf("  copy in its memory (read and written)  %8.1f GB/s\n", m->copy_rate / 1e9);
    printf("  from page-locked host memory           %8.1f GB/s\n", m->in_rate / 1e9);
    printf("  to page-locked host memory             %8.1f GB/s\n", m->out_rate / 1e9);
    printf("  an empty kernel, launched              %8.2f us\n", m->launch_us);
    if (m->replay_us > 0)
        printf("  an empty kernel, in a replayed graph   %8.2f us\n", m->replay_us);
    printf("  launch, run, seen by the host          %8.2f us\n", m->notice_us);
    if (m->wait_us > 0)
        printf("  host's number seen by a queue          %8.2f us (%s)\n", m->wait_us,
               m->wait_value ? "stretches wait for numbers" : "slower than the host");
    printf("  memory taken by driver and kernels     %8.1f MiB\n", (double)dev->driver_bytes / (1 << 20));
}

static enum strata_result bench(struct st_devices *devices, int found, struct strata_error *err)
{
    struct st_device *dev = NULL;
    enum strata_result r = st_device_open(devices, found, NULL, &dev, err);
    if (r == STRATA_OK)
        r = st_device_measure(dev, err);
    if (r == STRATA_OK)
        print_measured(dev);
    st_device_close(dev);
    return r;
}

int st_device_bench(struct st_devices *devices)
{
    if (devices->chosen_count == 0)
        return st_user_error("strata-device: no device to measure; --list-devices says why");
    for (int i = 0; i < devices->chosen_count; i++) {
        struct strata_error err = {0};
        if (bench(devices, devices->chosen[i], &err) != STRATA_OK)
            return st_report(&err);
    }
    return ST_EXIT_OK;
}
