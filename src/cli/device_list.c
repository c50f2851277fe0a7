/* The list of devices as a table and as JSON. */
#include "cli/device_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/team.h"

const char *const st_check_names[] = {"none", "sync", "runtime", NULL};
const char *const st_executor_names[] = {"cpu", "fibers", NULL};

const char *st_cache_directory(const char *asked, char buffer[ST_CACHE_PATH])
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = -1;
    if (asked)
        return asked;
    if (base && base[0] == '/')
        n = snprintf(buffer, ST_CACHE_PATH, "%s/strata", base);
    else if (home && home[0] == '/')
        n = snprintf(buffer, ST_CACHE_PATH, "%s/.cache/strata", home);
    return n < 0 || n >= ST_CACHE_PATH ? NULL : buffer;
}

enum strata_result st_device_args_open(const struct st_device_args *args, bool list_all, struct st_devices **out,
                                       struct strata_error *err)
{
    char cache[ST_CACHE_PATH];
    struct st_device_options options = {
        .devices = args->devices,
        .check = (enum st_check)args->check,
        .executor = st_executor_names[args->executor],
        .cache = st_cache_directory(args->cache, cache),
        .sysfs = args->sysfs,
        .libraries = {{"cuda", args->cuda}, {"hip", args->hip}, {"opencl", args->opencl}},
        .list_all = list_all,
    };
    return st_devices_open(&options, out, err);
}

/* ---- the CPU ---- */

struct cpu {
    char model[128];
    int cores;
    uint64_t memory;
};

static struct cpu find_cpu(void)
{
    struct cpu cpu = {.model = "CPU", .cores = st_cpu_cores()};
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    cpu.memory = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[512];
    while (f && fgets(line, sizeof line, f)) {
        const char *value = strchr(line, ':');
        if (value && strncmp(line, "model name", 10) == 0) {
            value += 1 + strspn(value + 1, " \t");
            st_printable(cpu.model, sizeof cpu.model, value, strcspn(value, "\n"));
            break;
        }
    }
    if (f)
        fclose(f);
    return cpu;
}

/* ---- table ---- */

static bool is_chosen(const struct st_devices *devices, int index)
{
    for (int i = 0; i < devices->chosen_count; i++)
        if (devices->chosen[i] == index)
            return true;
    return false;
}

static void memory_text(uint64_t bytes, char *out, size_t size)
{
    snprintf(out, size, "%.1f GiB", (double)bytes / (double)(1 << 30));
}

static void print_line(const char *use, const char *name, const char *arch, const char *pci, const char *memory,
                       const char *model)
{
    printf("%-4s %-10s %-9s %-13s %10s  %s\n", use, name, arch, pci, memory, model);
}

void st_device_list_print(const struct st_devices *devices)
{
    char memory[32];
    print_line("use", "device", "arch", "PCI address", "memory", "model");
    for (int i = 0; i < devices->count; i++) {
        const struct st_found *found = &devices->list[i];
        memory_text(found->info.memory, memory, sizeof memory);
        print_line(is_chosen(devices, i) ? "yes" : "no", found->name, found->info.arch[0] ? found->info.arch : "-",
                   found->info.pci[0] ? found->info.pci : "-", found->info.memory ? memory : "-",
                   found->info.model[0] ? found->info.model : "-");
        if (found->left_out[0])
            printf("     %-10s not used: %s\n", "", found->left_out);
        if (found->info.note[0])
            printf("     %-10s note: %s\n", "", found->info.note);
        if (is_chosen(devices, i) && (found->info.features & ST_FEATURE_FAULT_ABORTS))
            printf("     %-10s note: a fault on the device ends the process with this version of the driver\n", "");
    }
    struct cpu cpu = find_cpu();
    memory_text(cpu.memory, memory, sizeof memory);
    print_line(devices->cpu ? "yes" : "no", "cpu", "-", "-", memory, cpu.model);
    for (int i = 0; i < devices->runtime_count; i++)
        if (!devices->runtimes[i].rt)
            printf("%s: %s\n", devices->runtimes[i].table->name, devices->runtimes[i].reason);
    char archs[512];
    printf("images in this build: %s\n", st_image_archs(devices->images, archs, sizeof archs)[0] ? archs : "none");
}

/* ---- JSON ---- */

static json_t *device_json(const struct st_devices *devices, int index)
{
    const struct st_found *found = &devices->list[index];
    const struct st_device_info *info = &found->info;
    return json_pack(
        "{s:s, s:b, s:s*, s:s, s:s, s:s, s:s*, s:s*, s:s, s:I, s:I, s:i, s:i, s:i, s:I, s:s*, s:s*, s:b, s:b, "
        "s:b, s:b}",
        "name", found->name, "used", is_chosen(devices, index), "not_used_because",
        found->left_out[0] ? found->left_out : NULL, "model", info->model, "arch", info->arch, "arch_driver",
        info->arch_driver, "pci", info->pci[0] ? info->pci : NULL, "uuid", info->uuid[0] ? info->uuid : NULL, "driver",
        info->driver, "memory", (json_int_t)info->memory, "max_allocation", (json_int_t)info->max_allocation, "lanes",
        (int)info->lanes, "units", (int)info->units, "max_group", (int)info->max_group, "local_memory",
        (json_int_t)info->local_bytes, "same_card_as", found->twin[0] ? found->twin : NULL, "note",
        info->note[0] ? info->note : NULL, "integrated", (info->features & ST_FEATURE_INTEGRATED) != 0, "display",
        (info->features & ST_FEATURE_DISPLAY) != 0, "simulated", (info->features & ST_FEATURE_SIMULATED) != 0,
        "fault_ends_process", (info->features & ST_FEATURE_FAULT_ABORTS) != 0);
}

json_t *st_device_list_json(const struct st_devices *devices)
{
    json_t *list = json_array(), *runtimes = json_array();
    for (int i = 0; i < devices->count; i++)
        json_array_append_new(list, device_json(devices, i));
    struct cpu cpu = find_cpu();
    json_array_append_new(list, json_pack("{s:s, s:b, s:s, s:i, s:I}", "name", "cpu", "used", (int)devices->cpu,
                                          "model", cpu.model, "cores", cpu.cores, "memory", (json_int_t)cpu.memory));
    for (int i = 0; i < devices->runtime_count; i++) {
        const struct st_found_runtime *r = &devices->runtimes[i];
        json_array_append_new(runtimes, json_pack("{s:s, s:b, s:s*}", "name", r->table->name, "open", r->rt != NULL,
                                                  "reason", r->rt ? NULL : r->reason));
    }
    char archs[512];
    return json_pack("{s:o, s:o, s:s}", "devices", list, "runtimes", runtimes, "images",
                     st_image_archs(devices->images, archs, sizeof archs));
}
