/* The simulated runtime: devices from a description, their memory and kernels. Queues, events and graphs: sim_queue.c.
 *
 * Description of one device, options in any order after the architecture; several devices are separated by commas:
 *
 *   [sim:]ARCH[:SIZE][:OPTION]...        sim:gfx1100:24G:bw=960G:link=25G
 *
 *   SIZE               memory, with K, M, G or T (powers of two); 8G when absent
 *   bw=, link=         memory bandwidth, speed of the link to the host, bytes per second (powers of ten); the device then has
 *                      a modelled clock
 *   launch=US          microseconds of a launch (3 when absent), of the modelled clock and of predictions
 *   driver=SIZE        memory that the first image takes, as drivers do
 *   max=SIZE           largest single allocation
 *   lanes=32|64        width of a wave; that of the architecture when absent
 *   images=A+B         architectures that there are images for (build: those of this build); its own when absent
 *   nogeneric          the driver does not load images for a family
 *   lacks=KERNEL       no image has this kernel
 *   oom=N, hostoom=N   allocation N finds no memory; the same for page-locked memory, allocated and registered ones together
 *   refuse=N, late=N   launch N is refused; fails when it runs
 *   lost=N, stuck=N    launch N finds the device lost; never ends
 *   patience=MS        after so long without progress a stuck device is given up; 10000 when absent
 *   slow=US            every command takes so much longer
 *   pci=, uuid=, model=, units=, unusable=REASON
 *                      what the device says about itself (pci as 41.00.0 or 0000.41.00.0)
 *   as=NAME            the name in messages instead of sim
 *   integrated, display, nograph, nopeer, nomap */
#include "runtime/sim.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernel/gpu/host.h"
#include "runtime/images.h"

enum { RANK = 100, DEFAULT_PATIENCE = 10000, LOCAL_BYTES = 64 * 1024, DEFAULT_UNITS = 32 };
static const uint64_t DEFAULT_MEMORY = 8ull << 30;

/* ---- description ---- */

static bool parse_count(const char *text, uint32_t *out)
{
    char *end;
    errno = 0;
    unsigned long v = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || v > UINT32_MAX)
        return false;
    *out = (uint32_t)v;
    return true;
}

/* A number with an optional unit letter; unit: 1024 or 1000. */
static bool parse_amount(const char *text, double unit, double *out)
{
    static const char letters[] = "KMGTP";
    char *end;
    double v = strtod(text, &end);
    if (*text < '0' || *text > '9' || !isfinite(v))
        return false;
    const char *letter = *end ? strchr(letters, *end) : NULL;
    if (letter) {
        for (const char *p = letters; p <= letter; p++)
            v *= unit;
        end++;
    }
    if (*end || v < 1 || v > 1e18)
        return false;
    *out = v;
    return true;
}

static bool parse_size(const char *text, uint64_t *out)
{
    double amount;
    if (!parse_amount(text, 1024, &amount))
        return false;
    *out = (uint64_t)amount;
    return true;
}

static bool copy_text(char *dst, size_t size, const char *text)
{
    return *text && (size_t)snprintf(dst, size, "%s", text) < size;
}

/* "0000.41.00.0" or "41.00.0" to "0000:41:00.0". */
static bool parse_pci(const char *text, char out[16])
{
    unsigned n[4];
    int end = 0;
    if (sscanf(text, "%4x.%2x.%2x.%1x%n", &n[0], &n[1], &n[2], &n[3], &end) != 4 || text[end]) {
        n[0] = end = 0;
        if (sscanf(text, "%2x.%2x.%1x%n", &n[1], &n[2], &n[3], &end) != 3 || text[end])
            return false;
    }
    snprintf(out, 16, "%04x:%02x:%02x.%x", n[0] & 0xffff, n[1] & 0xff, n[2] & 0xff, n[3] & 15);
    return true;
}

/* 32 hexadecimal digits. */
static bool parse_uuid(const char *text, char out[40])
{
    return strlen(text) == 32 && strspn(text, "0123456789abcdef") == 32 && copy_text(out, 40, text);
}

static bool parse_images(const char *text, char *out, size_t size)
{
    if (strcmp(text, "build") == 0) {
        st_image_archs(&st_images_builtin, out, size);
        return true;
    }
    if (!copy_text(out, size, text))
        return false;
    for (char *p = out; *p; p++)
        if (*p == '+')
            *p = ',';
    return true;
}

static bool parse_option(struct st_sim_spec *s, const char *option)
{
    const char *value = strchr(option, '=');
    if (!value) {
        static const char *const names[] = {"nogeneric", "integrated", "display", "nograph", "nopeer", "nomap"};
        bool *const flags[] = {&s->generic, &s->integrated, &s->display, &s->no_graphs, &s->no_peer, &s->no_mapping};
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (strcmp(option, names[i]) == 0) {
                *flags[i] = i != 0;
                return true;
            }
        return parse_size(option, &s->memory);
    }
    const struct {
        const char *name;
        uint32_t *value;
    } counts[] = {{"lanes", &s->lanes}, {"oom", &s->oom},           {"refuse", &s->refuse},
                  {"late", &s->late},   {"lost", &s->lost},         {"stuck", &s->stuck},
                  {"slow", &s->slow},   {"patience", &s->patience}, {"units", &s->units},
                  {"hostoom", &s->host_oom}};
    size_t length = (size_t)(value - option);
    value++;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (strlen(counts[i].name) == length && strncmp(counts[i].name, option, length) == 0)
            return parse_count(value, counts[i].value);
    if (length == 2 && strncmp(option, "bw", 2) == 0)
        return parse_amount(value, 1000, &s->bandwidth);
    if (length == 4 && strncmp(option, "link", 4) == 0)
        return parse_amount(value, 1000, &s->link);
    if (length == 6 && strncmp(option, "launch", 6) == 0)
        return parse_amount(value, 1000, &s->launch);
    if (length == 6 && strncmp(option, "driver", 6) == 0)
        return parse_size(value, &s->driver);
    if (length == 3 && strncmp(option, "max", 3) == 0)
        return parse_size(value, &s->most);
    if (length == 3 && strncmp(option, "pci", 3) == 0)
        return parse_pci(value, s->pci);
    if (length == 4 && strncmp(option, "uuid", 4) == 0)
        return parse_uuid(value, s->uuid);
    if (length == 5 && strncmp(option, "model", 5) == 0)
        return copy_text(s->model, sizeof s->model, value);
    if (length == 5 && strncmp(option, "lacks", 5) == 0)
        return copy_text(s->lacks, sizeof s->lacks, value);
    if (length == 8 && strncmp(option, "unusable", 8) == 0)
        return copy_text(s->unusable, sizeof s->unusable, value);
    if (length == 2 && strncmp(option, "as", 2) == 0)
        return copy_text(s->name, sizeof s->name, value);
    if (length == 6 && strncmp(option, "images", 6) == 0)
        return parse_images(value, s->images, sizeof s->images);
    return false;
}

/* text: one description, changed while it is read. */
static enum strata_result parse_device(char *text, struct st_sim_spec *s, struct strata_error *err)
{
    char shown[128], arch[sizeof s->arch];
    st_printable(shown, sizeof shown, text, strlen(text));
    *s = (struct st_sim_spec){
        .memory = DEFAULT_MEMORY, .patience = DEFAULT_PATIENCE, .units = DEFAULT_UNITS, .generic = true};
    if (strncmp(text, "sim:", 4) == 0)
        text += 4;
    char *save = NULL, *part = strtok_r(text, ":", &save);
    if (!part || !copy_text(arch, sizeof arch, part))
        return st_fail(err, STRATA_E_ARGUMENT, "simulated device '%s': an architecture is missing", shown);
    while ((part = strtok_r(NULL, ":", &save)))
        if (!parse_option(s, part)) {
            char bad[64];
            return st_fail(err, STRATA_E_ARGUMENT, "simulated device '%s': '%s' is not understood", shown,
                           st_printable(bad, sizeof bad, part, strlen(part)));
        }
    memcpy(s->arch, arch, sizeof arch);
    if (s->lanes == 0)
        s->lanes = st_arch_lanes(arch) == 64 ? 64 : 32;
    if (s->lanes != 32 && s->lanes != 64)
        return st_fail(err, STRATA_E_ARGUMENT, "simulated device '%s': waves have 32 or 64 lanes", shown);
    if (!s->name[0])
        snprintf(s->name, sizeof s->name, "sim");
    if (!s->model[0])
        snprintf(s->model, sizeof s->model, "Simulated %s", arch);
    if (!s->images[0])
        snprintf(s->images, sizeof s->images, "%s", arch);
    return STRATA_OK;
}

/* ---- runtime ---- */

static void sim_close(struct st_rt *rt)
{
    if (!rt)
        return;
    pthread_cond_destroy(&rt->moved);
    pthread_mutex_destroy(&rt->lock);
    free(rt);
}

static enum strata_result sim_open(const struct st_runtime_options *options, struct st_rt **out,
                                   struct strata_error *err)
{
    if (!options->devices || !options->devices[0])
        return st_fail(err, STRATA_E_UNSUPPORTED, "no simulated devices asked for");
    const char *executor = options->executor ? options->executor : "cpu";
    if (strcmp(executor, "cpu") != 0 && strcmp(executor, "fibers") != 0)
        return st_fail(err, STRATA_E_ARGUMENT, "simulated devices run with 'cpu' or 'fibers'");
    struct st_rt *rt = calloc(1, sizeof *rt);
    char *text = strdup(options->devices);
    enum strata_result r = STRATA_OK;
    if (!rt || !text) {
        free(rt);
        free(text);
        return st_fail(err, STRATA_E_MEMORY, "simulated devices: no memory");
    }
    pthread_mutex_init(&rt->lock, NULL);
    pthread_cond_init(&rt->moved, NULL);
    rt->cpu = strcmp(executor, "cpu") == 0;
    char *save = NULL;
    for (char *one = strtok_r(text, ",", &save); one && r == STRATA_OK; one = strtok_r(NULL, ",", &save)) {
        if (rt->count == ST_SIM_DEVICES)
            r = st_fail(err, STRATA_E_ARGUMENT, "more than %d simulated devices", ST_SIM_DEVICES);
        else
            r = parse_device(one, &rt->spec[rt->count++], err);
    }
    free(text);
    if (r == STRATA_OK)
        *out = rt;
    else
        sim_close(rt);
    return r;
}

static int sim_count(const struct st_rt *rt)
{
    return rt->count;
}

static enum strata_result sim_describe(struct st_rt *rt, int index, struct st_device_info *out,
                                       struct strata_error *err)
{
    if (index < 0 || index >= rt->count)
        return st_fail(err, STRATA_E_ARGUMENT, "there is no simulated device %d", index);
    const struct st_sim_spec *s = &rt->spec[index];
    *out = (struct st_device_info){.lanes = s->lanes,
                                   .units = s->units,
                                   .max_group = ST_FIBERS_MAX,
                                   .local_bytes = LOCAL_BYTES,
                                   .memory = s->memory,
                                   .max_allocation = s->most ? s->most : s->memory};
    snprintf(out->model, sizeof out->model, "%s", s->model);
    snprintf(out->arch, sizeof out->arch, "%s", s->arch);
    snprintf(out->arch_driver, sizeof out->arch_driver, "%s", s->arch);
    snprintf(out->pci, sizeof out->pci, "%s", s->pci);
    snprintf(out->uuid, sizeof out->uuid, "%s", s->uuid);
    snprintf(out->driver, sizeof out->driver, "simulated, executor %s", rt->cpu ? "cpu" : "fibers");
    snprintf(out->unusable, sizeof out->unusable, "%s", s->unusable);
    snprintf(out->images, sizeof out->images, "%s", s->images);
    out->memory_rate = (uint64_t)(s->bandwidth > 0 ? s->bandwidth : ST_SIM_BANDWIDTH);
    out->link_rate = (uint64_t)(s->link > 0 ? s->link : ST_SIM_LINK);
    out->launch_us = s->launch > 0 ? s->launch : ST_SIM_LAUNCH;
    out->patience = s->stuck ? s->patience : 0;
    out->features = ST_FEATURE_SIMULATED | ST_FEATURE_WAIT_VALUE | (s->no_graphs ? 0 : ST_FEATURE_GRAPHS) |
                    (s->no_peer ? 0 : ST_FEATURE_PEER) | (s->no_mapping ? 0 : ST_FEATURE_HOST_MAPPED) |
                    (s->generic ? ST_FEATURE_GENERIC : 0) | (s->integrated ? ST_FEATURE_INTEGRATED : 0) |
                    (s->display ? ST_FEATURE_DISPLAY : 0);
    return STRATA_OK;
}

/* ---- devices ---- */

enum strata_result st_sim_alive(const struct st_rt_device *dev, struct strata_error *err)
{
    return dev->is_lost ? st_fail(err, STRATA_E_DEVICE, "%s", dev->lost) : STRATA_OK;
}

void st_sim_lose(struct st_rt_device *dev, const char *format, ...)
{
    if (dev->is_lost)
        return;
    int n = snprintf(dev->lost, sizeof dev->lost, "%s: ", dev->name);
    va_list ap;
    va_start(ap, format);
    vsnprintf(dev->lost + n, sizeof dev->lost - (size_t)n, format, ap);
    va_end(ap);
    dev->is_lost = true;
    pthread_cond_broadcast(&dev->rt->moved);
}

static enum strata_result sim_device_open(struct st_rt *rt, int index, struct st_rt_device **out,
                                          struct strata_error *err)
{
    if (index < 0 || index >= rt->count)
        return st_fail(err, STRATA_E_ARGUMENT, "there is no simulated device %d", index);
    struct st_rt_device *dev = calloc(1, sizeof *dev);
    if (!dev)
        return st_fail(err, STRATA_E_MEMORY, "simulated devices: no memory");
    dev->rt = rt;
    dev->spec = &rt->spec[index];
    snprintf(dev->name, sizeof dev->name, "%s:%d", dev->spec->name, index);
    *out = dev;
    return STRATA_OK;
}

static void release_range(struct st_rt_device *dev, struct st_sim_range *r)
{
    if (r->owned && r->host)
        munmap((void *)(uintptr_t)r->start, r->size);
    else if (r->owned)
        free((void *)(uintptr_t)r->start);
    if (!r->host)
        dev->used -= r->size;
    *r = dev->range[--dev->ranges];
}

static void sim_device_close(struct st_rt_device *dev)
{
    if (!dev)
        return;
    while (dev->queues)
        st_sim_queue_free(dev->queues);
    while (dev->ranges)
        release_range(dev, &dev->range[0]);
    free(dev->range);
    free(dev);
}

/* ---- memory ---- */

bool st_sim_inside(const struct st_rt_device *dev, uint64_t address, uint64_t size)
{
    for (size_t i = 0; i < dev->ranges; i++) {
        const struct st_sim_range *r = &dev->range[i];
        if (r->host && dev->spec->no_mapping)
            continue;
        if (address >= r->start && address - r->start <= r->size && size <= r->size - (address - r->start))
            return true;
    }
    return false;
}

/* The lock is held. */
static enum strata_result add_range(struct st_rt_device *dev, void *start, uint64_t size, bool host, bool owned,
                                    struct strata_error *err)
{
    if (dev->ranges == dev->room) {
        size_t room = dev->room ? dev->room * 2 : 16;
        struct st_sim_range *more = realloc(dev->range, room * sizeof *more);
        if (!more)
            return st_fail(err, STRATA_E_MEMORY, "%s: no memory for the list of allocations", dev->name);
        dev->range = more;
        dev->room = room;
    }
    dev->range[dev->ranges++] =
        (struct st_sim_range){.start = (uint64_t)(uintptr_t)start, .size = size, .host = host, .owned = owned};
    if (!host)
        dev->used += size;
    return STRATA_OK;
}

static void drop_range(struct st_rt_device *dev, uint64_t start, bool host)
{
    if (!start)
        return;
    pthread_mutex_lock(&dev->rt->lock);
    for (size_t i = 0; i < dev->ranges; i++)
        if (dev->range[i].start == start && dev->range[i].host == host) {
            release_range(dev, &dev->range[i]);
            break;
        }
    pthread_mutex_unlock(&dev->rt->lock);
}

void st_sim_usage(struct st_rt_device *dev, uint64_t *device, uint64_t *host)
{
    pthread_mutex_lock(&dev->rt->lock);
    *device = dev->used;
    *host = 0;
    for (size_t i = 0; i < dev->ranges; i++)
        *host += dev->range[i].host ? dev->range[i].size : 0;
    pthread_mutex_unlock(&dev->rt->lock);
}

static enum strata_result sim_memory(struct st_rt_device *dev, uint64_t *free_bytes, uint64_t *total,
                                     struct strata_error *err)
{
    pthread_mutex_lock(&dev->rt->lock);
    enum strata_result r = st_sim_alive(dev, err);
    if (r == STRATA_OK) {
        *free_bytes = dev->spec->memory - dev->used;
        *total = dev->spec->memory;
    }
    pthread_mutex_unlock(&dev->rt->lock);
    return r;
}

static enum strata_result allocate_locked(struct st_rt_device *dev, uint64_t size, st_addr *out,
                                          struct strata_error *err)
{
    enum strata_result r = st_sim_alive(dev, err);
    if (r != STRATA_OK)
        return r;
    if (++dev->allocations == dev->spec->oom)
        return st_fail(err, STRATA_E_LIMIT, "%s: allocation %u finds no memory, as was asked for", dev->name,
                       dev->allocations);
    if (dev->spec->most && size > dev->spec->most)
        return st_fail(err, STRATA_E_LIMIT, "%s: no allocation of %llu bytes, the largest has %llu", dev->name,
                       (unsigned long long)size, (unsigned long long)dev->spec->most);
    if (size == 0 || size > dev->spec->memory - dev->used)
        return st_fail(err, STRATA_E_LIMIT, "%s: no memory for %llu bytes, %llu of %llu are free", dev->name,
                       (unsigned long long)size, (unsigned long long)(dev->spec->memory - dev->used),
                       (unsigned long long)dev->spec->memory);
    void *memory = NULL;
    if (posix_memalign(&memory, 256, size) != 0)
        return st_fail(err, STRATA_E_LIMIT, "%s: the host has no memory for %llu bytes", dev->name,
                       (unsigned long long)size);
    /* what the content is before it is written must not matter: the start is made odd, the rest is whatever was there
     */
    memset(memory, 0xa5, size < 65536 ? size : 65536);
    r = add_range(dev, memory, size, false, true, err);
    if (r != STRATA_OK)
        free(memory);
    else
        *out = (st_addr)(uintptr_t)memory;
    return r;
}

static enum strata_result sim_allocate(struct st_rt_device *dev, uint64_t size, st_addr *out, struct strata_error *err)
{
    pthread_mutex_lock(&dev->rt->lock);
    enum strata_result r = allocate_locked(dev, size, out, err);
    pthread_mutex_unlock(&dev->rt->lock);
    return r;
}

static void sim_release(struct st_rt_device *dev, st_addr address)
{
    drop_range(dev, address, false);
}

/* The lock is held: a lost device, or the page-locked memory that was to fail. */
static enum strata_result enter_host(struct st_rt_device *dev, uint64_t size, struct strata_error *err)
{
    enum strata_result r = st_sim_alive(dev, err);
    if (r == STRATA_OK && ++dev->host_allocations == dev->spec->host_oom)
        r = st_fail(err, STRATA_E_LIMIT, "%s: page-locked memory %u, of %llu bytes, was not to be had, as was asked for",
                    dev->name, dev->host_allocations, (unsigned long long)size);
    return r;
}

static enum strata_result sim_host_allocate(struct st_rt_device *dev, uint64_t size, void **out,
                                            struct strata_error *err)
{
    void *memory = size ? mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;
    if (memory == MAP_FAILED)
        return st_fail(err, STRATA_E_MEMORY, "%s: no host memory for %llu bytes", dev->name, (unsigned long long)size);
    pthread_mutex_lock(&dev->rt->lock);
    enum strata_result r = enter_host(dev, size, err);
    if (r == STRATA_OK)
        r = add_range(dev, memory, size, true, true, err);
    pthread_mutex_unlock(&dev->rt->lock);
    if (r != STRATA_OK)
        munmap(memory, size);
    else
        *out = memory;
    return r;
}

static void sim_host_free(struct st_rt_device *dev, void *memory)
{
    drop_range(dev, (uint64_t)(uintptr_t)memory, true);
}

/* A simulated device that was given up runs nothing any more. */
static bool sim_host_unregister(struct st_rt_device *dev, void *memory)
{
    sim_host_free(dev, memory);
    return true;
}

static enum strata_result sim_host_register(struct st_rt_device *dev, void *memory, uint64_t size,
                                            struct strata_error *err)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), address = (uint64_t)(uintptr_t)memory;
    if (!memory || !size || address % page || size % page)
        return st_fail(err, STRATA_E_ARGUMENT, "%s: page-locked memory must be whole pages", dev->name);
    pthread_mutex_lock(&dev->rt->lock);
    enum strata_result r = enter_host(dev, size, err);
    for (size_t i = 0; i < dev->ranges && r == STRATA_OK; i++)
        if (dev->range[i].host && dev->range[i].start == address && dev->range[i].size == size) {
            pthread_mutex_unlock(&dev->rt->lock);
            return STRATA_OK;
        }
    if (r == STRATA_OK)
        r = add_range(dev, memory, size, true, false, err);
    pthread_mutex_unlock(&dev->rt->lock);
    return r;
}

static enum strata_result sim_host_address(struct st_rt_device *dev, void *memory, st_addr *out,
                                           struct strata_error *err)
{
    pthread_mutex_lock(&dev->rt->lock);
    enum strata_result r = st_sim_alive(dev, err);
    if (r == STRATA_OK && !st_sim_inside(dev, (uint64_t)(uintptr_t)memory, 1))
        r = st_fail(err, STRATA_E_DEVICE,
                    "%s: host memory that is not page-locked for the device, or the device maps none", dev->name);
    if (r == STRATA_OK)
        *out = (st_addr)(uintptr_t)memory;
    pthread_mutex_unlock(&dev->rt->lock);
    return r;
}

static enum strata_result sim_peer_enable(struct st_rt_device *dev, struct st_rt_device *peer, struct strata_error *err)
{
    pthread_mutex_lock(&dev->rt->lock);
    enum strata_result r = st_sim_alive(dev, err);
    if (r == STRATA_OK &&
        (dev->spec->no_peer || peer->spec->no_peer || dev->rt != peer->rt || dev->n_peers == ST_SIM_DEVICES))
        r = st_fail(err, STRATA_E_UNSUPPORTED, "%s cannot reach memory of %s", dev->name, peer->name);
    if (r == STRATA_OK)
        dev->peers[dev->n_peers++] = peer;
    pthread_mutex_unlock(&dev->rt->lock);
    return r;
}

/* ---- kernels ---- */

static enum strata_result take_driver_share(struct st_rt_device *dev, struct strata_error *err)
{
    pthread_mutex_lock(&dev->rt->lock);
    uint64_t left = dev->spec->memory - dev->used, share = dev->driver_took ? 0 : dev->spec->driver;
    bool room = share <= left;
    if (room) {
        dev->used += share;
        dev->driver_took = true;
    }
    pthread_mutex_unlock(&dev->rt->lock);
    return room ? STRATA_OK
                : st_fail(err, STRATA_E_LIMIT, "%s: no memory for the driver's %llu bytes, %llu are free", dev->name,
                          (unsigned long long)share, (unsigned long long)left);
}

static enum strata_result sim_module_load(struct st_rt_device *dev, const char *name, const void *image, uint64_t size,
                                          struct st_module **out, struct strata_error *err)
{
    (void)image;
    (void)size;
    char best[32];
    if (!st_arch_best(dev->spec->images, dev->spec->arch, dev->spec->generic, best))
        return st_fail(err, STRATA_E_UNSUPPORTED, "%s (%s): no image of %s; there are images for %s", dev->name,
                       dev->spec->arch, name, dev->spec->images);
    enum strata_result r = take_driver_share(dev, err);
    if (r != STRATA_OK)
        return r;
    struct st_module *m = calloc(1, sizeof *m);
    if (!m)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for a module", dev->name);
    m->dev = dev;
    *out = m;
    return STRATA_OK;
}

static void sim_module_free(struct st_module *module)
{
    if (!module)
        return;
    while (module->functions) {
        struct st_function *f = module->functions;
        module->functions = f->next;
        free(f);
    }
    free(module);
}

static enum strata_result sim_function(struct st_module *module, const struct st_kernel_desc *desc,
                                       struct st_function **out, struct st_function_info *info,
                                       struct strata_error *err)
{
    struct st_rt_device *dev = module->dev;
    const struct st_host_kernel *host =
        dev->spec->lanes == 64 ? st_host_kernel_64(desc->name) : st_host_kernel_32(desc->name);
    int kernel = 0;
    while (kernel < ST_GPU_KERNEL_COUNT && strcmp(st_gpu_kernels[kernel].name, desc->name) != 0)
        kernel++;
    if (!host || kernel == ST_GPU_KERNEL_COUNT || strcmp(desc->name, dev->spec->lacks) == 0)
        return st_fail(err, STRATA_E_UNSUPPORTED, "%s (%s): the image of %s has no kernel %s", dev->name,
                       dev->spec->arch, desc->module, desc->name);
    struct st_function *f = calloc(1, sizeof *f);
    if (!f)
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for a kernel", dev->name);
    *f = (struct st_function){
        .dev = dev, .desc = desc, .host = host, .kernel = (enum st_gpu_kernel)kernel, .next = module->functions};
    module->functions = f;
    *out = f;
    *info = (struct st_function_info){
        .registers = -1, .spills = -1, .local = -1, .max_group = ST_FIBERS_MAX, .lanes = (int32_t)dev->spec->lanes};
    return STRATA_OK;
}

const struct st_runtime st_runtime_sim = {
    .name = "sim",
    .image = ST_IMAGE_BUILTIN,
    .rank = RANK,
    .open = sim_open,
    .close = sim_close,
    .count = sim_count,
    .describe = sim_describe,
    .device_open = sim_device_open,
    .device_close = sim_device_close,
    .device_sync = st_sim_device_sync,
    .give_up = st_sim_give_up,
    .memory = sim_memory,
    .allocate = sim_allocate,
    .release = sim_release,
    .host_allocate = sim_host_allocate,
    .host_free = sim_host_free,
    .host_register = sim_host_register,
    .host_unregister = sim_host_unregister,
    .host_address = sim_host_address,
    .queue_create = st_sim_queue_create,
    .queue_free = st_sim_queue_free,
    .queue_sync = st_sim_queue_sync,
    .queue_flush = st_sim_queue_flush,
    .copy_in = st_sim_copy_in,
    .copy_out = st_sim_copy_out,
    .copy = st_sim_copy,
    .fill = st_sim_fill,
    .peer_enable = sim_peer_enable,
    .peer_copy = st_sim_peer_copy,
    .event_create = st_sim_event_create,
    .event_free = st_sim_event_free,
    .event_record = st_sim_event_record,
    .event_wait = st_sim_event_wait,
    .event_sync = st_sim_event_sync,
    .event_query = st_sim_event_query,
    .event_elapsed = st_sim_event_elapsed,
    .module_load = sim_module_load,
    .module_free = sim_module_free,
    .function = sim_function,
    .launch = st_sim_launch,
    .graph_begin = st_sim_graph_begin,
    .graph_end = st_sim_graph_end,
    .graph_launch = st_sim_graph_launch,
    .graph_free = st_sim_graph_free,
    .wait_value = st_sim_wait_value,
    .write_value = st_sim_write_value,
};
