/* Architecture names and image formats: the choice of an image, unpacking, and readers for PTX text and AMD code
 * objects. Numbers of the AMD code object format: LLVM's ELF.h and AMDGPU usage document. */
#include "runtime/images.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zstd.h>

#include "base/checked.h"

enum { IMAGE_LIMIT = 256 << 20, KERNEL_LIMIT = 4096 };

/* ---- architecture names ---- */

/* Machine number in e_flags and family of an AMD architecture. The numbers are not in the order of the names. */
static const struct gfx {
    const char *name;
    uint8_t machine;
    const char *family;
} gfx_table[] = {
    {"gfx900", 0x2C, "gfx9-generic"},
    {"gfx902", 0x2D, "gfx9-generic"},
    {"gfx904", 0x2E, "gfx9-generic"},
    {"gfx906", 0x2F, "gfx9-generic"},
    {"gfx908", 0x30, ""},
    {"gfx909", 0x31, "gfx9-generic"},
    {"gfx90c", 0x32, "gfx9-generic"},
    {"gfx90a", 0x3F, ""},
    {"gfx940", 0x40, ""},
    {"gfx941", 0x4B, ""},
    {"gfx942", 0x4C, "gfx9-4-generic"},
    {"gfx950", 0x4F, "gfx9-4-generic"},
    {"gfx1010", 0x33, "gfx10-1-generic"},
    {"gfx1011", 0x34, "gfx10-1-generic"},
    {"gfx1012", 0x35, "gfx10-1-generic"},
    {"gfx1013", 0x42, "gfx10-1-generic"},
    {"gfx1030", 0x36, "gfx10-3-generic"},
    {"gfx1031", 0x37, "gfx10-3-generic"},
    {"gfx1032", 0x38, "gfx10-3-generic"},
    {"gfx1033", 0x39, "gfx10-3-generic"},
    {"gfx1034", 0x3E, "gfx10-3-generic"},
    {"gfx1035", 0x3D, "gfx10-3-generic"},
    {"gfx1036", 0x45, "gfx10-3-generic"},
    {"gfx1100", 0x41, "gfx11-generic"},
    {"gfx1101", 0x46, "gfx11-generic"},
    {"gfx1102", 0x47, "gfx11-generic"},
    {"gfx1103", 0x44, "gfx11-generic"},
    {"gfx1150", 0x43, "gfx11-generic"},
    {"gfx1151", 0x4A, "gfx11-generic"},
    {"gfx1152", 0x55, "gfx11-generic"},
    {"gfx1153", 0x58, "gfx11-generic"},
    {"gfx1200", 0x48, "gfx12-generic"},
    {"gfx1201", 0x4E, "gfx12-generic"},
    {"gfx9-generic", 0x51, ""},
    {"gfx10-1-generic", 0x52, ""},
    {"gfx10-3-generic", 0x53, ""},
    {"gfx11-generic", 0x54, ""},
    {"gfx12-generic", 0x59, ""},
    {"gfx9-4-generic", 0x5F, ""},
};

static const struct gfx *gfx_find(const char *name)
{
    for (size_t i = 0; i < sizeof gfx_table / sizeof gfx_table[0]; i++)
        if (strcmp(gfx_table[i].name, name) == 0)
            return &gfx_table[i];
    return NULL;
}

/* "sm_90a": capability 90 and its suffix, 0 for none. */
static bool parse_sm(const char *arch, int *capability, char *suffix)
{
    if (strncmp(arch, "sm_", 3) != 0)
        return false;
    int value = 0;
    const char *p = arch + 3;
    for (; *p >= '0' && *p <= '9' && value < 10000; p++)
        value = value * 10 + (*p - '0');
    if (p == arch + 3 || (p[0] && p[1]))
        return false;
    *capability = value;
    *suffix = *p;
    return true;
}

int st_arch_rank(const char *device_arch, const char *image_arch, bool generic)
{
    int device, image;
    char device_suffix, image_suffix;
    if (parse_sm(device_arch, &device, &device_suffix)) {
        if (!parse_sm(image_arch, &image, &image_suffix))
            return 0;
        if (image_suffix)
            return image_suffix == 'a' && image == device ? 2 * image + 1 : 0;
        return image <= device ? 2 * image : 0;
    }
    if (strcmp(device_arch, image_arch) == 0)
        return 2;
    const struct gfx *gfx = gfx_find(device_arch);
    return generic && gfx && strcmp(gfx->family, image_arch) == 0 ? 1 : 0;
}

const struct st_image *st_image_find(const struct st_image_set *set, const char *module, const char *device_arch,
                                     bool generic)
{
    const struct st_image *best = NULL;
    int best_rank = 0;
    for (size_t i = 0; i < set->count; i++) {
        int rank = strcmp(set->list[i].module, module) == 0 ? st_arch_rank(device_arch, set->list[i].arch, generic) : 0;
        if (rank > best_rank) {
            best = &set->list[i];
            best_rank = rank;
        }
    }
    return best;
}

bool st_arch_folds(const char *image_arch)
{
    return strcmp(image_arch, "sm_90a") == 0;
}

bool st_arch_best(const char *list, const char *device_arch, bool generic, char out[32])
{
    int best_rank = 0;
    for (const char *p = list; *p;) {
        size_t length = strcspn(p, ",");
        char arch[32];
        if (length < sizeof arch) {
            memcpy(arch, p, length);
            arch[length] = 0;
            int rank = st_arch_rank(device_arch, arch, generic);
            if (rank > best_rank) {
                best_rank = rank;
                memcpy(out, arch, length + 1);
            }
        }
        p += length + (p[length] == ',');
    }
    return best_rank > 0;
}

char *st_image_archs(const struct st_image_set *set, char *out, size_t size)
{
    size_t used = 0;
    out[0] = 0;
    for (size_t i = 0; i < set->count; i++) {
        bool seen = false;
        for (size_t j = 0; j < i; j++)
            seen = seen || strcmp(set->list[j].arch, set->list[i].arch) == 0;
        if (seen)
            continue;
        int n = snprintf(out + used, size - used, "%s%s", used ? ", " : "", set->list[i].arch);
        if (n < 0 || (size_t)n >= size - used)
            break;
        used += (size_t)n;
    }
    return out;
}

uint32_t st_arch_lanes(const char *arch)
{
    if (strncmp(arch, "sm_", 3) == 0)
        return 32;
    if (strncmp(arch, "gfx9", 4) == 0)
        return 64;
    return strncmp(arch, "gfx", 3) == 0 ? 32 : 1;
}

bool st_arch_from_version(uint64_t version, char out[32])
{
    uint64_t major = version / 10000, minor = version / 100 % 100, stepping = version % 100;
    if (major == 0 || major > 99 || minor > 15 || stepping > 15)
        return false;
    snprintf(out, 32, "gfx%d%x%x", (int)major, (unsigned)minor, (unsigned)stepping);
    return true;
}

/* ---- unpacking ---- */

/* An image's frame, with the content of its dictionary. */
static enum strata_result unpack(const struct st_image *image, const void *dictionary, size_t dictionary_size, void **out,
                                 uint64_t *size, struct strata_error *err)
{
    unsigned long long content = ZSTD_getFrameContentSize(image->data, image->size);
    if (content == ZSTD_CONTENTSIZE_ERROR || content == ZSTD_CONTENTSIZE_UNKNOWN || content == 0 ||
        content > IMAGE_LIMIT)
        return st_fail(err, STRATA_E_FORMAT, "image %s for %s: not a packed image", image->module, image->arch);
    uint8_t *data = malloc(content);
    ZSTD_DCtx *context = ZSTD_createDCtx();
    if (!data || !context) {
        free(data);
        ZSTD_freeDCtx(context);
        return st_fail(err, STRATA_E_MEMORY, "image %s for %s: no memory for %llu bytes", image->module, image->arch,
                       content);
    }
    size_t got = ZSTD_decompress_usingDict(context, data, content, image->data, image->size, dictionary, dictionary_size);
    ZSTD_freeDCtx(context);
    if (ZSTD_isError(got) || got != content) {
        free(data);
        return st_fail(err, STRATA_E_FORMAT, "image %s for %s: damaged (%s)", image->module, image->arch,
                       ZSTD_isError(got) ? ZSTD_getErrorName(got) : "short");
    }
    *out = data;
    *size = content;
    return STRATA_OK;
}

enum strata_result st_image_read(const struct st_image *image, void **out, uint64_t *size, struct strata_error *err)
{
    void *dictionary = NULL;
    uint64_t dictionary_size = 0;
    enum strata_result r = STRATA_OK;
    if (image->dictionary)
        r = unpack(image->dictionary, NULL, 0, &dictionary, &dictionary_size, err);
    if (r == STRATA_OK)
        r = unpack(image, dictionary, dictionary_size, out, size, err);
    free(dictionary);
    return r;
}

/* ---- list of kernels being collected ---- */

struct kernels {
    struct st_image_kernel *list;
    size_t count, capacity;
};

static struct st_image_kernel *kernels_add(struct kernels *k)
{
    if (k->count == k->capacity) {
        if (k->capacity >= KERNEL_LIMIT)
            return NULL;
        size_t capacity = k->capacity ? 2 * k->capacity : 16;
        struct st_image_kernel *list = realloc(k->list, capacity * sizeof *list);
        if (!list)
            return NULL;
        k->list = list;
        k->capacity = capacity;
    }
    struct st_image_kernel *kernel = &k->list[k->count++];
    *kernel = (struct st_image_kernel){
        .registers = -1, .spills = -1, .scalar_spills = -1, .scratch = -1, .local = -1, .lanes = -1, .max_group = -1};
    return kernel;
}

static void copy_name(char *dst, size_t size, const char *src, size_t length)
{
    size_t n = length < size - 1 ? length : size - 1;
    memcpy(dst, src, n);
    dst[n] = 0;
}

/* ---- PTX text ---- */

/* The decimal number at *p, saturated; moves *p behind it. */
static int32_t number(const char **p)
{
    int64_t value = 0;
    for (; **p >= '0' && **p <= '9'; (*p)++)
        if (value <= INT32_MAX)
            value = value * 10 + (**p - '0');
    return value > INT32_MAX ? INT32_MAX : (int32_t)value;
}

/* Bytes of an array declaration ("... name[1024];"), 0 when the line has none. */
static int32_t array_bytes(const char *line, size_t length)
{
    const char *open = memchr(line, '[', length);
    if (!open)
        return 0;
    const char *p = open + 1;
    return number(&p);
}

static int32_t add_saturated(int32_t a, int32_t b)
{
    return a > INT32_MAX - b ? INT32_MAX : a + b;
}

static const char *skip_blanks(const char *p)
{
    while (*p == ' ' || *p == '\t')
        p++;
    return p;
}

static size_t name_length(const char *p)
{
    return strspn(p, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_$.");
}

static bool starts(const char *p, const char *prefix)
{
    return strncmp(p, prefix, strlen(prefix)) == 0;
}

static enum strata_result inspect_ptx(const char *text, uint64_t size, char arch[32], struct kernels *k,
                                      struct strata_error *err)
{
    if (size == 0 || text[size - 1] != 0 || memchr(text, 0, size - 1))
        return st_fail(err, STRATA_E_FORMAT, "PTX image: not one text with a NUL at its end");
    bool version = false, target = false;
    struct st_image_kernel *kernel = NULL; /* the entry whose lines are being read */
    for (const char *line = text; *line;) {
        size_t length = strcspn(line, "\n");
        const char *p = skip_blanks(line);
        if (starts(p, ".version ")) {
            version = true;
        } else if (starts(p, ".target ")) {
            target = true;
            p = skip_blanks(p + 8);
            if (arch)
                copy_name(arch, 32, p, name_length(p));
        } else if (starts(p, ".visible .entry ")) {
            p = skip_blanks(p + 16);
            kernel = kernels_add(k);
            if (!kernel)
                return st_fail(err, STRATA_E_LIMIT, "PTX image: too many kernels");
            copy_name(kernel->name, sizeof kernel->name, p, name_length(p));
            kernel->scratch = kernel->local = 0;
            kernel->lanes = 32;
            kernel->uniform_groups = true;
        } else if (kernel && starts(p, ".reqntid ")) {
            p += 9;
            for (int i = 0; i < 3; i++) {
                p = skip_blanks(p);
                kernel->group[i] = (uint16_t)number(&p);
                p = skip_blanks(p);
                p += *p == ',';
            }
            kernel->max_group = kernel->group[0] * kernel->group[1] * kernel->group[2];
        } else if (kernel && starts(p, ".shared ")) {
            kernel->local = add_saturated(kernel->local, array_bytes(line, length));
        } else if (kernel && starts(p, ".local ")) {
            kernel->scratch = add_saturated(kernel->scratch, array_bytes(line, length));
        } else if (kernel && starts(p, "griddepcontrol.wait")) {
            kernel->overlaps = true;
        }
        line += length + (line[length] == '\n');
    }
    if (!version || !target)
        return st_fail(err, STRATA_E_FORMAT, "PTX image: no .version or .target");
    /* Dynamic local memory stands in a comment that the build wrote before the entries. */
    for (const char *p = text; (p = strstr(p, "// dynamic_local ")) != NULL;) {
        p += 17;
        size_t length = name_length(p);
        const char *digits = skip_blanks(p + length);
        int32_t bytes = number(&digits);
        for (size_t i = 0; i < k->count; i++)
            if (strlen(k->list[i].name) == length && memcmp(k->list[i].name, p, length) == 0) {
                k->list[i].dynamic_local = bytes;
                k->list[i].local = add_saturated(k->list[i].local, bytes);
            }
        p = digits;
    }
    return STRATA_OK;
}

/* ---- MessagePack, as far as code object notes use it ---- */

enum pack_type { PACK_END, PACK_OTHER, PACK_NUMBER, PACK_BOOL, PACK_TEXT, PACK_ARRAY, PACK_MAP };

struct pack {
    const uint8_t *p, *end;
};

struct pack_item {
    enum pack_type type;
    uint64_t number;  /* value, or number of elements or pairs */
    const char *text; /* PACK_TEXT: number bytes */
};

static bool pack_big_endian(struct pack *r, size_t bytes, uint64_t *out)
{
    if ((size_t)(r->end - r->p) < bytes)
        return false;
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++)
        value = value << 8 | *r->p++;
    *out = value;
    return true;
}

/* Reads one head; the content of texts is passed over, elements of arrays and maps follow. PACK_END: broken or at the
 * end. */
static struct pack_item pack_next(struct pack *r)
{
    struct pack_item item = {PACK_OTHER, 0, NULL}, bad = {PACK_END, 0, NULL};
    if (r->p >= r->end)
        return bad;
    uint8_t head = *r->p++;
    uint64_t skip = 0;
    if (head < 0x80 || head >= 0xE0) {
        item.type = PACK_NUMBER;
        item.number = (uint64_t)(int64_t)(int8_t)head;
    } else if (head < 0x90) {
        item.type = PACK_MAP;
        item.number = head & 15;
    } else if (head < 0xA0) {
        item.type = PACK_ARRAY;
        item.number = head & 15;
    } else if (head < 0xC0) {
        item.type = PACK_TEXT;
        item.number = head & 31;
    } else if (head == 0xC2 || head == 0xC3) {
        item.type = PACK_BOOL;
        item.number = head & 1;
    } else if (head >= 0xC4 && head <= 0xC6) { /* bin 8, 16, 32 */
        if (!pack_big_endian(r, (size_t)1 << (head - 0xC4), &skip))
            return bad;
    } else if (head >= 0xC7 && head <= 0xC9) { /* ext 8, 16, 32: a type byte follows the length */
        if (!pack_big_endian(r, (size_t)1 << (head - 0xC7), &skip))
            return bad;
        skip++;
    } else if (head == 0xCA || head == 0xCB) { /* float, double */
        skip = head == 0xCA ? 4 : 8;
    } else if (head >= 0xCC && head <= 0xD3) { /* uint 8..64, int 8..64 */
        size_t bytes = (size_t)1 << (head & 3);
        item.type = PACK_NUMBER;
        if (!pack_big_endian(r, bytes, &item.number))
            return bad;
        if (head >= 0xD0 && bytes < 8 && (item.number >> (8 * bytes - 1)) != 0)
            item.number |= UINT64_MAX << (8 * bytes);
    } else if (head >= 0xD4 && head <= 0xD8) { /* fixext 1..16 */
        skip = ((uint64_t)1 << (head - 0xD4)) + 1;
    } else if (head >= 0xD9 && head <= 0xDB) { /* str 8, 16, 32 */
        item.type = PACK_TEXT;
        if (!pack_big_endian(r, (size_t)1 << (head - 0xD9), &item.number))
            return bad;
    } else if (head >= 0xDC) { /* array 16, 32, map 16, 32 */
        item.type = head < 0xDE ? PACK_ARRAY : PACK_MAP;
        if (!pack_big_endian(r, head & 1 ? 4 : 2, &item.number))
            return bad;
    } else if (head != 0xC0) { /* nil; 0xC1 is never used */
        return bad;
    }
    if (item.type == PACK_TEXT) {
        item.text = (const char *)r->p;
        skip = item.number;
    }
    if (skip > (uint64_t)(r->end - r->p))
        return bad;
    r->p += skip;
    return item;
}

/* Passes over count whole values, however nested. */
static bool pack_skip(struct pack *r, uint64_t count)
{
    while (count > 0) {
        struct pack_item item = pack_next(r);
        uint64_t inside = item.type == PACK_ARRAY ? item.number : item.type == PACK_MAP ? 2 * item.number : 0;
        if (item.type == PACK_END)
            return false;
        count = count - 1 + inside; /* inside < 2^33 and every value takes a byte, so the sum stays far from its end */
    }
    return true;
}

static bool is(const struct pack_item *item, const char *text)
{
    return item->type == PACK_TEXT && item->number == strlen(text) && memcmp(item->text, text, item->number) == 0;
}

/* ---- AMD code objects ---- */

/* Kinds of hidden arguments that cost something at launch or need host services. */
static bool refused_argument(const struct pack_item *kind)
{
    return is(kind, "hidden_hostcall_buffer") || is(kind, "hidden_heap_v1") || is(kind, "hidden_printf_buffer") ||
           is(kind, "hidden_default_queue") || is(kind, "dynamic_shared_pointer");
}

static bool read_arguments(struct pack *r, struct st_image_kernel *kernel)
{
    struct pack_item list = pack_next(r);
    if (list.type != PACK_ARRAY)
        return false;
    for (uint64_t i = 0; i < list.number; i++) {
        struct pack_item map = pack_next(r);
        if (map.type != PACK_MAP)
            return false;
        for (uint64_t j = 0; j < map.number; j++) {
            struct pack_item key = pack_next(r);
            if (key.type == PACK_END)
                return false;
            if (!is(&key, ".value_kind")) {
                if (!pack_skip(r, 1))
                    return false;
                continue;
            }
            struct pack_item kind = pack_next(r);
            if (kind.type != PACK_TEXT)
                return false;
            if (refused_argument(&kind))
                snprintf(kernel->problem, sizeof kernel->problem, "takes an argument of kind %.*s",
                         (int)(kind.number < 40 ? kind.number : 40), kind.text);
        }
    }
    return true;
}

static int32_t small(uint64_t value)
{
    return value > INT32_MAX ? INT32_MAX : (int32_t)value;
}

static bool read_kernel(struct pack *r, struct st_image_kernel *kernel)
{
    struct pack_item map = pack_next(r);
    if (map.type != PACK_MAP)
        return false;
    int32_t vector_spills = 0, scalar_spills = 0;
    for (uint64_t i = 0; i < map.number; i++) {
        struct pack_item key = pack_next(r);
        if (is(&key, ".args")) {
            if (!read_arguments(r, kernel))
                return false;
            continue;
        }
        struct pack at = *r;
        struct pack_item value = pack_next(&at);
        if (key.type == PACK_END || value.type == PACK_END)
            return false;
        if (is(&key, ".name") && value.type == PACK_TEXT)
            copy_name(kernel->name, sizeof kernel->name, value.text, value.number);
        else if (is(&key, ".vgpr_count"))
            kernel->registers = small(value.number);
        else if (is(&key, ".vgpr_spill_count"))
            vector_spills = small(value.number);
        else if (is(&key, ".sgpr_spill_count"))
            scalar_spills = small(value.number);
        else if (is(&key, ".private_segment_fixed_size"))
            kernel->scratch = small(value.number);
        else if (is(&key, ".group_segment_fixed_size"))
            kernel->local = small(value.number);
        else if (is(&key, ".wavefront_size"))
            kernel->lanes = small(value.number);
        else if (is(&key, ".max_flat_workgroup_size"))
            kernel->max_group = small(value.number);
        else if (is(&key, ".uniform_work_group_size"))
            kernel->uniform_groups = value.number == 1;
        else if (is(&key, ".uses_dynamic_stack") && value.number)
            snprintf(kernel->problem, sizeof kernel->problem, "uses a stack of unknown size");
        else if (is(&key, ".reqd_workgroup_size") && value.type == PACK_ARRAY && value.number == 3)
            for (int j = 0; j < 3; j++)
                kernel->group[j] = (uint16_t)pack_next(&at).number;
        if (!pack_skip(r, 1))
            return false;
    }
    kernel->spills = vector_spills;
    kernel->scalar_spills = scalar_spills;
    return kernel->name[0] != 0;
}

static bool read_metadata(struct pack r, struct kernels *k)
{
    struct pack_item root = pack_next(&r);
    if (root.type != PACK_MAP)
        return false;
    for (uint64_t i = 0; i < root.number; i++) {
        struct pack_item key = pack_next(&r);
        if (key.type == PACK_END)
            return false;
        if (!is(&key, "amdhsa.kernels")) {
            if (!pack_skip(&r, 1))
                return false;
            continue;
        }
        struct pack_item list = pack_next(&r);
        if (list.type != PACK_ARRAY)
            return false;
        for (uint64_t j = 0; j < list.number; j++) {
            struct st_image_kernel *kernel = kernels_add(k);
            if (!kernel || !read_kernel(&r, kernel))
                return false;
        }
    }
    return k->count > 0;
}

static uint64_t little(const uint8_t *p, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++)
        value |= (uint64_t)p[i] << (8 * i);
    return value;
}

/* The descriptor of the "AMDGPU" note in a note section, false when there is none. */
static bool find_note(const uint8_t *p, uint64_t size, struct pack *out)
{
    while (size >= 12) {
        uint64_t name = little(p, 4), desc = little(p + 4, 4), type = little(p + 8, 4);
        uint64_t name_padded = (name + 3) & ~(uint64_t)3, desc_padded = (desc + 3) & ~(uint64_t)3;
        if (name_padded > size - 12 || desc > size - 12 - name_padded)
            return false;
        if (type == 32 && name == 7 && memcmp(p + 12, "AMDGPU", 7) == 0) {
            *out = (struct pack){p + 12 + name_padded, p + 12 + name_padded + desc};
            return true;
        }
        uint64_t step = 12 + name_padded + desc_padded;
        if (step > size)
            return false;
        p += step;
        size -= step;
    }
    return false;
}

static enum strata_result inspect_elf(const uint8_t *data, uint64_t size, char arch[32], struct kernels *k,
                                      struct strata_error *err)
{
    static const uint8_t head[8] = {0x7F, 'E', 'L', 'F', 2, 1, 1, 64};
    if (size < 64 || memcmp(data, head, sizeof head) != 0 || little(data + 18, 2) != 224)
        return st_fail(err, STRATA_E_FORMAT, "code object: not a 64-bit AMD GPU file");
    uint64_t machine = little(data + 48, 4) & 0xFF;
    const char *name = NULL;
    for (size_t i = 0; i < sizeof gfx_table / sizeof gfx_table[0]; i++)
        if (gfx_table[i].machine == machine)
            name = gfx_table[i].name;
    if (arch)
        snprintf(arch, 32, "%s", name ? name : "unknown");
    /* The runtime computes the file's size from the section table, so the table must be whole and inside. */
    uint64_t table = little(data + 40, 8), entry = little(data + 58, 2), count = little(data + 60, 2), end;
    if (entry != 64 || count == 0 || !st_add_u64(table, entry * count, &end) || end > size)
        return st_fail(err, STRATA_E_FORMAT, "code object: no complete section table");
    for (uint64_t i = 0; i < count; i++) {
        const uint8_t *section = data + table + i * entry;
        uint64_t offset = little(section + 24, 8), length = little(section + 32, 8);
        struct pack note;
        if (little(section + 4, 4) != 7 /* SHT_NOTE */)
            continue;
        if (!st_add_u64(offset, length, &end) || end > size)
            return st_fail(err, STRATA_E_FORMAT, "code object: a note section lies outside the file");
        if (find_note(data + offset, length, &note)) {
            if (!read_metadata(note, k))
                return st_fail(err, STRATA_E_FORMAT, "code object: its kernel metadata cannot be read");
            return STRATA_OK;
        }
    }
    return st_fail(err, STRATA_E_FORMAT, "code object: no kernel metadata");
}

enum strata_result st_image_inspect(enum st_image_kind kind, const void *data, uint64_t size, char arch[32],
                                    struct st_image_kernel **out, size_t *count, struct strata_error *err)
{
    struct kernels k = {0};
    enum strata_result r;
    if (kind == ST_IMAGE_PTX)
        r = inspect_ptx(data, size, arch, &k, err);
    else if (kind == ST_IMAGE_ELF)
        r = inspect_elf(data, size, arch, &k, err);
    else
        r = st_fail(err, STRATA_E_UNSUPPORTED, "an image of this kind does not describe its kernels");
    if (r != STRATA_OK) {
        free(k.list);
        return r;
    }
    *out = k.list;
    *count = k.count;
    return STRATA_OK;
}
