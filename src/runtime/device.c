/* Finding devices, choosing among them, opening one with its kernels, launching. */
#include "runtime/device.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtimes.h"

/* Every runtime of the build; the list is written by the build. */
#define DECLARE(name) extern const struct st_runtime st_runtime_##name;
#define X(name) DECLARE(name)
ST_RUNTIMES(X)
#undef X
#define X(name) &st_runtime_##name,
static const struct st_runtime *const all_runtimes[] = {ST_RUNTIMES(X) NULL};
#undef X
_Static_assert(sizeof all_runtimes / sizeof all_runtimes[0] <= (size_t)ST_MAX_RUNTIMES + 1, "room for every runtime");

/* How long anything on a device may take, and how long a wait for it keeps the processor. */
enum { PATIENCE_MS = 120000, SPIN_MS = 20 };

static void say(char *out, size_t size, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void say(char *out, size_t size, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(out, size, fmt, args);
    va_end(args);
}

/* ---- names ---- */

/* One item of the devices option. */
struct item {
    const char *text;
    int length;
};

static bool next_item(const char **p, struct item *out)
{
    while (**p == ',' || **p == ' ')
        (*p)++;
    if (!**p)
        return false;
    *out = (struct item){*p, (int)strcspn(*p, ", ")};
    *p += out->length;
    return true;
}

static bool item_is(const struct item *item, const char *text)
{
    return (int)strlen(text) == item->length && memcmp(item->text, text, (size_t)item->length) == 0;
}

/* True when the item starts with "<runtime>:". */
static bool item_of(const struct item *item, const char *runtime)
{
    size_t length = strlen(runtime);
    return (size_t)item->length > length && memcmp(item->text, runtime, length) == 0 && item->text[length] == ':';
}

/* A runtime whose devices are described by the option itself (ST_IMAGE_BUILTIN) gets all its items, comma separated;
 * the caller frees the result. NULL when there are none. */
static char *descriptions(const char *devices, const char *runtime)
{
    char *out = malloc(strlen(devices) + 1);
    size_t used = 0;
    struct item item;
    for (const char *p = devices; out && next_item(&p, &item);)
        if (item_of(&item, runtime)) {
            if (used)
                out[used++] = ',';
            memcpy(out + used, item.text, (size_t)item.length);
            used += (size_t)item.length;
        }
    if (out)
        out[used] = 0;
    if (used)
        return out;
    free(out);
    return NULL;
}

static bool named_runtime(const char *devices, const char *runtime)
{
    struct item item;
    for (const char *p = devices; next_item(&p, &item);)
        if (item_of(&item, runtime))
            return true;
    return false;
}

bool st_devices_automatic(const char *devices)
{
    struct item item;
    if (!devices || !devices[0])
        return true;
    for (const char *p = devices; next_item(&p, &item);)
        if (item_is(&item, "auto"))
            return true;
    return false;
}

/* ---- finding ---- */

static const char *library_path(const struct st_device_options *options, const char *runtime)
{
    for (int i = 0; i < ST_MAX_RUNTIMES && options->libraries[i].runtime; i++)
        if (options->libraries[i].path && strcmp(options->libraries[i].runtime, runtime) == 0)
            return options->libraries[i].path;
    char name[64];
    size_t used = (size_t)snprintf(name, sizeof name, "STRATA_");
    for (const char *p = runtime; *p && used < 40; p++)
        name[used++] = (char)(*p >= 'a' && *p <= 'z' ? *p - 'a' + 'A' : *p);
    say(name + used, sizeof name - used, "_LIBRARY");
    const char *path = getenv(name);
    return path && path[0] ? path : NULL;
}

static void list_devices(struct st_devices *set, int runtime)
{
    const struct st_found_runtime *r = &set->runtimes[runtime];
    int count = r->table->count(r->rt);
    for (int i = 0; i < count && set->count < ST_MAX_DEVICES; i++) {
        struct st_found *found = &set->list[set->count++];
        struct strata_error err = {0};
        *found = (struct st_found){.runtime = runtime, .index = i};
        say(found->name, sizeof found->name, "%s:%d", r->table->name, i);
        if (r->table->describe(r->rt, i, &found->info, &err) != STRATA_OK) {
            found->info = (struct st_device_info){0};
            say(found->info.unusable, sizeof found->info.unusable, "%.290s", err.text);
        }
    }
}

static void open_runtime(struct st_devices *set, const struct st_runtime *table,
                         const struct st_device_options *options, const char *devices)
{
    struct st_found_runtime *r = &set->runtimes[set->runtime_count++];
    *r = (struct st_found_runtime){.table = table};
    char *described = table->image == ST_IMAGE_BUILTIN ? descriptions(devices, table->name) : NULL;
    struct st_runtime_options own = {
        .library = library_path(options, table->name),
        .devices = described,
        .executor = options->executor ? options->executor : "cpu",
        .cache = options->cache,
        .sysfs = options->sysfs,
    };
    struct strata_error err = {0};
    enum strata_result result = table->open(&own, &r->rt, &err);
    free(described);
    if (result == STRATA_OK && set->check == ST_CHECK_RUNTIME) {
        struct st_rt *inner = r->rt;
        result = st_check_wrap(table, inner, &r->wrapper, &r->rt, &err);
        if (result == STRATA_OK)
            r->table = r->wrapper;
        else
            table->close(inner);
    }
    if (result != STRATA_OK) {
        r->rt = NULL;
        say(r->reason, sizeof r->reason, "%s", err.text);
        return;
    }
    list_devices(set, set->runtime_count - 1);
}

/* PCI addresses agree up to the function number, which not every driver knows. */
static bool same_card(const struct st_device_info *a, const struct st_device_info *b)
{
    size_t length = strcspn(a->pci, ".");
    bool pci = length > 0 && length == strcspn(b->pci, ".") && memcmp(a->pci, b->pci, length) == 0;
    bool uuid = a->uuid[0] && strcmp(a->uuid, b->uuid) == 0;
    return pci || uuid;
}

/* Of two runtimes that see one card, the one of lower rank keeps it (the earlier one among equals). A device that
 * cannot be used takes nothing from its twin. */
static void find_twins(struct st_devices *set)
{
    for (int i = 0; i < set->count; i++)
        for (int j = 0; j < set->count; j++) {
            struct st_found *mine = &set->list[i];
            const struct st_found *other = &set->list[j];
            int rank = set->runtimes[mine->runtime].table->rank, other_rank = set->runtimes[other->runtime].table->rank;
            bool before = other_rank < rank || (other_rank == rank && j < i);
            if (mine->runtime != other->runtime && before && !other->info.unusable[0] &&
                same_card(&mine->info, &other->info))
                memcpy(mine->twin, other->name, sizeof mine->twin);
        }
}

/* ---- choosing ---- */

/* The architectures that a device can take images from, in words. */
static void image_archs(const struct st_devices *set, const struct st_found *found, char *out, size_t size)
{
    if (found->info.images[0])
        say(out, size, "%s", found->info.images);
    else
        st_image_archs(set->images, out, size);
}

/* The architecture of the image of a module for a device, NULL when there is none. buffer backs the result. */
static const char *image_arch(const struct st_devices *set, const struct st_device_info *info, const char *module,
                              char buffer[32])
{
    bool generic = info->features & ST_FEATURE_GENERIC;
    if (info->images[0])
        return st_arch_best(info->images, info->arch, generic, buffer) ? buffer : NULL;
    const struct st_image *image = st_image_find(set->images, module, info->arch, generic);
    return image ? image->arch : NULL;
}

/* The reason why a device cannot run this build's kernels, "" when it can. */
static void find_lack(const struct st_devices *set, const struct st_found *found, char *out, size_t size)
{
    char buffer[32], archs[256];
    out[0] = 0;
    if (found->info.unusable[0]) {
        say(out, size, "%s", found->info.unusable);
        return;
    }
    for (int i = 0; i < ST_GPU_KERNEL_COUNT; i++)
        if (!image_arch(set, &found->info, st_gpu_kernels[i].module, buffer)) {
            image_archs(set, found, archs, sizeof archs);
            say(out, size, "%s: no image of kernel %s; there are images for %s", found->info.arch,
                st_gpu_kernels[i].name, archs[0] ? archs : "no architecture");
            return;
        }
}

/* What the images that serve the devices can do. */
static void find_forms(struct st_devices *set)
{
    char buffer[32];
    for (int i = 0; i < set->count; i++) {
        struct st_found *found = &set->list[i];
        const struct st_runtime *table = set->runtimes[found->runtime].table;
        const char *arch = table->image == ST_IMAGE_BUILTIN
                               ? NULL
                               : image_arch(set, &found->info, st_gpu_kernels[ST_GPU_FOLD_ROWS].module, buffer);
        if (arch && st_arch_folds(arch))
            found->info.features |= ST_FEATURE_FOLDED;
    }
}

static void choose_automatic(struct st_devices *set)
{
    set->cpu = true;
    for (int i = 0; i < set->count; i++) {
        struct st_found *found = &set->list[i];
        if (found->named)
            continue;
        find_lack(set, found, found->left_out, sizeof found->left_out);
        if (!found->left_out[0] && (found->info.features & ST_FEATURE_CPU))
            say(found->left_out, sizeof found->left_out, "a CPU: used only when it is named");
        if (!found->left_out[0] && found->twin[0])
            say(found->left_out, sizeof found->left_out, "the same card as %s", found->twin);
        if (!found->left_out[0])
            set->chosen[set->chosen_count++] = i;
    }
}

/* The device that an item names: "<runtime>:<index>", or for described devices the next one of the runtime. */
static struct st_found *find_item(struct st_devices *set, const struct item *item, int described[ST_MAX_RUNTIMES])
{
    for (int i = 0; i < set->count; i++) {
        struct st_found *found = &set->list[i];
        const struct st_runtime *table = set->runtimes[found->runtime].table;
        if (table->image == ST_IMAGE_BUILTIN ? item_of(item, table->name) && found->index == described[found->runtime]
                                             : item_is(item, found->name)) {
            if (table->image == ST_IMAGE_BUILTIN)
                described[found->runtime]++;
            return found;
        }
    }
    return NULL;
}

static enum strata_result no_such_device(const struct st_devices *set, const struct item *item,
                                         struct strata_error *err)
{
    for (int i = 0; i < set->runtime_count; i++) {
        const struct st_found_runtime *r = &set->runtimes[i];
        if (item_of(item, r->table->name)) {
            if (!r->rt)
                return st_fail(err, STRATA_E_DEVICE, "%.*s: %s", item->length, item->text, r->reason);
            return st_fail(err, STRATA_E_DEVICE, "%.*s: there are %d devices of this runtime", item->length, item->text,
                           r->table->count(r->rt));
        }
    }
    char known[128] = "auto, cpu";
    for (int i = 0; set->tables[i]; i++)
        say(known + strlen(known), sizeof known - strlen(known), ", %s:N", set->tables[i]->name);
    return st_fail(err, STRATA_E_DEVICE, "%.*s: not the name of a device (%s)", item->length, item->text, known);
}

static enum strata_result choose_named(struct st_devices *set, const char *devices, struct strata_error *err)
{
    int described[ST_MAX_RUNTIMES] = {0};
    bool words[2] = {false};
    struct item item;
    for (const char *p = devices; next_item(&p, &item);) {
        bool cpu = item_is(&item, "cpu");
        if (cpu || item_is(&item, "auto")) {
            if (words[cpu])
                return st_fail(err, STRATA_E_DEVICE, "%s: named twice", cpu ? "cpu" : "auto");
            words[cpu] = true;
            set->cpu = set->cpu || cpu;
            continue;
        }
        struct st_found *found = find_item(set, &item, described);
        if (!found)
            return no_such_device(set, &item, err);
        if (found->named)
            return st_fail(err, STRATA_E_DEVICE, "%s: named twice", found->name);
        found->named = true;
        find_lack(set, found, found->left_out, sizeof found->left_out);
        if (found->left_out[0])
            return st_fail(err, STRATA_E_DEVICE, "%s: %s", found->name, found->left_out);
        set->chosen[set->chosen_count++] = (int)(found - set->list);
    }
    return STRATA_OK;
}

/* Devices that nobody named, for the list. */
static void mark_unnamed(struct st_devices *set)
{
    for (int i = 0; i < set->count; i++) {
        struct st_found *found = &set->list[i];
        if (found->named)
            continue;
        find_lack(set, found, found->left_out, sizeof found->left_out);
        if (!found->left_out[0])
            say(found->left_out, sizeof found->left_out, "not named");
    }
}

enum strata_result st_devices_open(const struct st_device_options *options, struct st_devices **out,
                                   struct strata_error *err)
{
    struct st_devices *set = calloc(1, sizeof *set);
    *out = set;
    if (!set)
        return st_fail(err, STRATA_E_MEMORY, "no memory for the list of devices");
    const char *devices = options->devices && options->devices[0] ? options->devices : "auto";
    bool automatic = st_devices_automatic(devices);
    set->check = options->check;
    set->images = options->images ? options->images : &st_images_builtin;
    set->tables = options->runtimes ? options->runtimes : all_runtimes;
    for (int i = 0; i < ST_MAX_RUNTIMES && set->tables[i]; i++) {
        const struct st_runtime *table = set->tables[i];
        bool wanted = table->image == ST_IMAGE_BUILTIN
                          ? named_runtime(devices, table->name)
                          : automatic || options->list_all || named_runtime(devices, table->name);
        if (wanted)
            open_runtime(set, table, options, devices);
    }
    find_twins(set);
    find_forms(set);
    enum strata_result r = choose_named(set, devices, err);
    if (automatic && r == STRATA_OK)
        choose_automatic(set);
    else
        mark_unnamed(set);
    return r;
}

void st_devices_close(struct st_devices *set)
{
    if (!set)
        return;
    for (int i = 0; i < set->runtime_count; i++) {
        struct st_found_runtime *r = &set->runtimes[i];
        if (r->rt)
            r->table->close(r->rt);
        free(r->wrapper);
    }
    free(set);
}

/* ---- opening ---- */

static int find_module(const struct st_device *dev, const char *name)
{
    for (int i = 0; i < dev->module_count; i++)
        if (strcmp(dev->modules[i].name, name) == 0)
            return i;
    return -1;
}

static enum strata_result no_image(const struct st_devices *set, const struct st_found *found,
                                   const struct st_kernel_desc *desc, struct strata_error *err)
{
    char archs[256];
    image_archs(set, found, archs, sizeof archs);
    return st_fail(err, STRATA_E_DEVICE, "%s (%s): no image of kernel %s; there are images for %s", found->name,
                   found->info.arch, desc->name, archs[0] ? archs : "no architecture");
}

static enum strata_result load_module(const struct st_devices *set, const struct st_found *found, struct st_device *dev,
                                      const struct st_kernel_desc *desc, int *out, struct strata_error *err)
{
    char buffer[32];
    const char *arch = image_arch(set, &found->info, desc->module, buffer);
    if (!arch)
        return no_image(set, found, desc, err);
    if (dev->module_count == ST_MAX_MODULES)
        return st_fail(err, STRATA_E_INTERNAL, "%s: more than %d kernel modules", dev->name, ST_MAX_MODULES);
    struct st_loaded *m = &dev->modules[dev->module_count];
    *m = (struct st_loaded){.name = desc->module};
    say(m->label, sizeof m->label, "%s for %s", desc->module, arch);
    uint64_t size = 0;
    if (dev->table->image != ST_IMAGE_BUILTIN) {
        const struct st_image *image =
            st_image_find(set->images, desc->module, found->info.arch, found->info.features & ST_FEATURE_GENERIC);
        enum strata_result r = st_image_read(image, &m->image, &size, err);
        if (r != STRATA_OK)
            return r;
    }
    enum strata_result r = dev->table->module_load(dev->rt, m->label, m->image, size, &m->module, err);
    if (r != STRATA_OK) {
        free(m->image);
        return r;
    }
    *out = dev->module_count++;
    return STRATA_OK;
}

static enum strata_result resolve(const struct st_devices *set, const struct st_found *found, struct st_device *dev,
                                  const bool *needed, struct strata_error *err)
{
    for (int i = 0; i < ST_GPU_KERNEL_COUNT; i++) {
        const struct st_kernel_desc *desc = &st_gpu_kernels[i];
        if (needed && !needed[i])
            continue;
        int module = find_module(dev, desc->module);
        enum strata_result r = STRATA_OK;
        if (module < 0)
            r = load_module(set, found, dev, desc, &module, err);
        if (r == STRATA_OK)
            r = dev->table->function(dev->modules[module].module, desc, &dev->kernels[i].function,
                                     &dev->kernels[i].info, err);
        if (r != STRATA_OK)
            return r;
        dev->kernels[i].module = module;
        if (dev->kernels[i].info.local > 0 && (uint64_t)dev->kernels[i].info.local > found->info.local_bytes)
            return st_fail(err, STRATA_E_DEVICE,
                           "%s (%s): kernel %s needs %d bytes of local memory, the device has %llu", dev->name,
                           found->info.arch, desc->name, dev->kernels[i].info.local,
                           (unsigned long long)found->info.local_bytes);
    }
    return STRATA_OK;
}

enum strata_result st_device_open(struct st_devices *set, int index, const bool *needed, struct st_device **out,
                                  struct strata_error *err)
{
    const struct st_found *found = &set->list[index];
    const struct st_found_runtime *runtime = &set->runtimes[found->runtime];
    struct st_device *dev = calloc(1, sizeof *dev);
    if (!dev)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for the device", found->name);
    memcpy(dev->name, found->name, sizeof dev->name);
    dev->table = runtime->table;
    dev->info = found->info;
    dev->check = set->check;
    pthread_mutex_init(&dev->lock, NULL);
    uint64_t before = 0, after = 0, total = 0;
    enum strata_result r = dev->table->device_open(runtime->rt, found->index, &dev->rt, err);
    if (r == STRATA_OK)
        r = dev->table->memory(dev->rt, &before, &total, err);
    if (r == STRATA_OK)
        r = dev->table->queue_create(dev->rt, ST_QUEUE_COMPUTE, &dev->compute, err);
    if (r == STRATA_OK)
        r = dev->table->queue_create(dev->rt, ST_QUEUE_COPY, &dev->copy, err);
    for (int i = 0; i < 2 && r == STRATA_OK; i++)
        r = dev->table->event_create(dev->rt, false, &dev->passed[i], err);
    if (r == STRATA_OK)
        r = resolve(set, found, dev, needed, err);
    if (r == STRATA_OK)
        r = dev->table->memory(dev->rt, &after, &total, err);
    if (r != STRATA_OK) {
        st_device_close(dev);
        return r;
    }
    dev->driver_bytes = before > after ? before - after : 0;
    *out = dev;
    return STRATA_OK;
}

void st_device_close(struct st_device *dev)
{
    if (!dev)
        return;
    if (dev->rt) {
        dev->table->device_sync(dev->rt, NULL); /* a lost device has nothing left to wait for */
        for (int i = 0; i < dev->module_count; i++) {
            dev->table->module_free(dev->modules[i].module);
            free(dev->modules[i].image);
        }
        for (int i = 0; i < 2; i++)
            dev->table->event_free(dev->passed[i]);
        dev->table->queue_free(dev->copy);
        dev->table->queue_free(dev->compute);
        dev->table->device_close(dev->rt);
    }
    pthread_mutex_destroy(&dev->lock);
    free(dev);
}

enum strata_result st_device_allocate(struct st_device *dev, uint64_t size, st_addr *out, struct strata_error *err)
{
    enum strata_result r = dev->table->allocate(dev->rt, size, out, err);
    dev->held += r ? 0 : size;
    return r;
}

void st_device_release(struct st_device *dev, st_addr address, uint64_t size)
{
    if (!address)
        return;
    dev->table->release(dev->rt, address);
    dev->held -= size;
}

/* ---- launching ---- */

static void remember(struct st_device *dev, enum st_gpu_kernel kernel)
{
    pthread_mutex_lock(&dev->lock);
    dev->recent[dev->recent_count++ % ST_RECENT_LAUNCHES] = kernel;
    pthread_mutex_unlock(&dev->lock);
}

/* After a wait that ended with r: forgets the launches, and names them in the message of a failure. */
static enum strata_result waited(struct st_device *dev, enum strata_result r, struct strata_error *err)
{
    char names[200] = "";
    pthread_mutex_lock(&dev->lock);
    unsigned shown = dev->recent_count < ST_RECENT_LAUNCHES ? dev->recent_count : ST_RECENT_LAUNCHES;
    for (unsigned i = dev->recent_count - shown; r != STRATA_OK && i < dev->recent_count; i++)
        say(names + strlen(names), sizeof names - strlen(names), " %s",
            st_gpu_kernels[dev->recent[i % ST_RECENT_LAUNCHES]].name);
    unsigned count = dev->recent_count;
    dev->recent_count = 0;
    pthread_mutex_unlock(&dev->lock);
    if (r != STRATA_OK && count > 0)
        return st_fail_in(err, r, "after %u launches (last:%s)", count, names);
    return r;
}

static double milliseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Between two looks at an event, past: since the first look. A card's window of tokens ends within SPIN_MS, and the next one should
 * begin at once; where the device shares the processor with this thread, or the wait is long, the thread sleeps. */
static void pause_wait(const struct st_device *dev, double past)
{
    if (past < SPIN_MS && !(dev->info.features & (ST_FEATURE_SIMULATED | ST_FEATURE_CPU))) {
        sched_yield();
        return;
    }
    double ms = 0.02 + past / 64;
    nanosleep(&(struct timespec){.tv_nsec = ms < 1 ? (long)(ms * 1e6) : 1000000}, NULL);
}

/* Drivers wait for ever for a queue that stands still; so the event is looked at until the device's patience ends. */
static enum strata_result wait_patiently(struct st_device *dev, struct st_event *event, struct strata_error *err)
{
    const uint32_t patience = dev->info.patience ? dev->info.patience : PATIENCE_MS;
    const double start = milliseconds();
    for (;;) {
        bool done = false;
        enum strata_result r = dev->table->event_query(event, &done, err);
        double past = milliseconds() - start;
        if (r != STRATA_OK || done)
            return r;
        if (past > patience && !dev->given_up) {
            char why[80];
            say(why, sizeof why, "no progress for %u ms", patience);
            dev->table->give_up(dev->rt, why);
            dev->given_up = true;
        } else {
            pause_wait(dev, past);
        }
    }
}

enum strata_result st_wait_event(struct st_device *dev, struct st_event *event, struct strata_error *err)
{
    return waited(dev, wait_patiently(dev, event, err), err);
}

enum strata_result st_wait(struct st_device *dev, struct st_queue *queue, struct strata_error *err)
{
    struct st_event *own = NULL, *event = queue == dev->compute ? dev->passed[0] : queue == dev->copy ? dev->passed[1] : NULL;
    enum strata_result r = STRATA_OK;
    if (!event) {
        r = dev->table->event_create(dev->rt, false, &own, err);
        event = own;
    }
    if (r == STRATA_OK)
        r = dev->table->event_record(queue, event, err);
    if (r == STRATA_OK)
        r = dev->table->queue_flush(queue, err);
    r = waited(dev, r == STRATA_OK ? wait_patiently(dev, event, err) : r, err);
    dev->table->event_free(own);
    return r;
}

enum strata_result st_launch(struct st_device *dev, struct st_queue *queue, enum st_gpu_kernel kernel, uint32_t gx,
                             uint32_t gy, uint32_t gz, const union st_arg *args, const char *shape,
                             struct strata_error *err)
{
    const struct st_kernel_desc *desc = &st_gpu_kernels[kernel];
    const struct st_kernel_slot *slot = &dev->kernels[kernel];
    const uint32_t grid[3] = {gx, gy, gz};
    enum strata_result r;
    if (!slot->function)
        r = st_fail(err, STRATA_E_INTERNAL, "%s: not among the kernels that the device was opened with", dev->name);
    else if (gx == 0 || gy == 0 || gz == 0 || gx > INT32_MAX || gy > 65535 || gz > 65535)
        r = st_fail(err, STRATA_E_ARGUMENT, "%s: no grid that every device can launch", dev->name);
    else
        r = dev->table->launch(queue, slot->function, grid, args, err);
    if (r == STRATA_OK) {
        remember(dev, kernel);
        if (dev->check != ST_CHECK_NONE && dev->capturing == 0)
            r = st_wait(dev, queue, err);
    }
    if (r != STRATA_OK)
        return st_fail_in(err, r, "kernel %s (image %s, grid %u x %u x %u, groups of %u, %s)", desc->name,
                          slot->function ? dev->modules[slot->module].label : "none", gx, gy, gz,
                          (unsigned)desc->group[0] * desc->group[1] * desc->group[2], shape ? shape : "no shape given");
    return STRATA_OK;
}

enum strata_result st_capture_begin(struct st_device *dev, struct st_queue *queue, struct strata_error *err)
{
    if (!(dev->info.features & ST_FEATURE_GRAPHS))
        return st_fail(err, STRATA_E_UNSUPPORTED, "%s: its runtime has no graphs", dev->name);
    enum strata_result r = dev->table->graph_begin(queue, err);
    if (r == STRATA_OK)
        dev->capturing++;
    return r;
}

enum strata_result st_capture_end(struct st_device *dev, struct st_queue *queue, struct st_graph **out,
                                  struct strata_error *err)
{
    dev->capturing--;
    return dev->table->graph_end(queue, out, err);
}
