/* Owns the arena of experts in host memory, and their direct reads. */
#define _GNU_SOURCE /* O_DIRECT */
#include "engine/expert_host.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/checked.h"

enum { PAGE = 4096, IN_FLIGHT = 64, SHARDS = 1024 };

static const uint64_t CHUNK = 256ull << 20;

struct chunk {
    uint8_t *memory;
    uint64_t bytes, used;
    bool locked;
};

struct spare {
    uint8_t *place;
    uint64_t slot;
};

struct st_expert_host {
    struct st_expert_host_config c;
    const struct st_expert_set *set;
    struct chunk *chunk;
    size_t chunks;
    uint8_t **place; /* [layers][experts]; NULL: in the file, or on the device */
    struct spare *spare;
    size_t spares, spare_room;
    struct file {
        const struct st_gguf *g;
        uint32_t shard;
        int fd; /* opened for direct reads, or the shard's own */
        bool own;
    } * file;
    size_t files;
    struct io_uring ring;
    bool ring_ready;
    struct st_expert_read *reads; /* under way */
    size_t n_reads, next, flying;
    uint64_t read_bytes;
    struct st_expert_host_stats stats;
};

/* ---- what goes where ---- */

static uint64_t page_up(uint64_t v)
{
    return (v + PAGE - 1) / PAGE * PAGE;
}

/* Experts of layers whose slots have so many bytes. */
static void count_size(const struct st_expert_set *set, const uint8_t *resident, uint64_t slot, size_t *in, size_t *out)
{
    *in = *out = 0;
    for (uint32_t l = 0; l < set->count; l++)
        for (uint32_t e = 0; e < set->experts && set->layer[l].slot == slot; e++) {
            *in += resident[(size_t)l * set->experts + e] == ST_EXPERT_KEPT;
            *out += resident[(size_t)l * set->experts + e] == ST_EXPERT_OUT;
        }
}

/* Spare places that the layer brings: for each size once, as many as one adaptation can use. */
static size_t spares_of(const struct st_expert_set *set, const uint8_t *resident, uint32_t layer)
{
    size_t in, out;
    for (uint32_t k = 0; k < layer; k++)
        if (set->layer[k].slot == set->layer[layer].slot)
            return 0;
    count_size(set, resident, set->layer[layer].slot, &in, &out);
    size_t n = in < out ? in : out;
    return n < ST_EXPERT_SWAPS ? n : ST_EXPERT_SWAPS;
}

/* Places one after the other: bytes of the chunks that are full, and of the one that is being filled. */
struct packing {
    uint64_t bytes, chunk;
};

static void pack(struct packing *p, uint64_t slot)
{
    if (p->chunk && p->chunk + slot > CHUNK) {
        p->bytes += page_up(p->chunk);
        p->chunk = 0;
    }
    p->chunk += slot;
}

/* Marks the experts that the arena gets, and returns its bytes. Experts come before spares. */
static uint64_t arrange(const struct st_expert_set *set, const struct st_expert_profile *profile,
                        const uint8_t *resident, uint64_t budget, uint8_t *in_arena, size_t *spares)
{
    size_t n = (size_t)set->count * set->experts;
    uint64_t pages = (budget / CHUNK + 2) * PAGE, spare_bytes = 0;
    for (uint32_t l = 0; l < set->count; l++) {
        spares[l] = spares_of(set, resident, l);
        spare_bytes += spares[l] * set->layer[l].slot;
    }
    budget = budget > pages ? budget - pages : 0;
    if (spare_bytes > budget / 4) { /* where memory is short it serves experts first */
        memset(spares, 0, set->count * sizeof *spares);
        spare_bytes = 0;
    }
    st_expert_rank(set, profile, resident, budget - spare_bytes, in_arena);
    struct packing p = {0};
    for (size_t i = 0; i < n; i++)
        if (in_arena[i])
            pack(&p, set->layer[i / set->experts].slot);
    for (uint32_t l = 0; l < set->count; l++)
        for (size_t i = 0; i < spares[l]; i++)
            pack(&p, set->layer[l].slot);
    return p.bytes + page_up(p.chunk);
}

uint64_t st_expert_host_bytes(const struct st_expert_set *set, const struct st_expert_profile *profile,
                              const uint8_t *resident, uint64_t budget, uint64_t *in_file)
{
    size_t n = (size_t)set->count * set->experts;
    uint8_t *in_arena = malloc(n + 1);
    size_t *spares = calloc(set->count + 1ull, sizeof *spares);
    uint64_t bytes = in_arena && spares ? arrange(set, profile, resident, budget, in_arena, spares) : 0;
    *in_file = 0;
    for (size_t i = 0; i < n && in_arena && spares; i++)
        *in_file += resident[i] || in_arena[i] ? 0 : set->layer[i / set->experts].slot;
    free(in_arena);
    free(spares);
    return bytes;
}

/* ---- files ---- */

static struct file *file_of(struct st_expert_host *h, const struct st_gguf *g, uint32_t shard)
{
    for (size_t i = 0; i < h->files; i++)
        if (h->file[i].g == g && h->file[i].shard == shard)
            return &h->file[i];
    return NULL;
}

/* A handle for direct reads of every shard that has experts; file systems without them get ordinary ones. */
static enum strata_result open_files(struct st_expert_host *h, struct strata_error *err)
{
    h->file = calloc(SHARDS, sizeof *h->file);
    if (!h->file)
        return st_fail(err, STRATA_E_MEMORY, "no memory for a list of files");
    for (uint32_t l = 0; l < h->set->count; l++)
        for (uint32_t s = 0; s < h->set->layer[l].sections; s++) {
            const struct st_expert_layer *layer = &h->set->layer[l];
            uint32_t shard = layer->section[s].tensor->shard;
            if (file_of(h, layer->g, shard))
                continue;
            if (h->files == SHARDS)
                return st_fail(err, STRATA_E_LIMIT, "%s: experts in more than %d files", layer->g->path, SHARDS);
            struct file *f = &h->file[h->files++];
            int own = layer->g->shards[shard].map.fd;
            char path[64];
            snprintf(path, sizeof path, "/proc/self/fd/%d", own);
            *f = (struct file){.g = layer->g, .shard = shard, .fd = own};
            int direct = own >= 0 ? open(path, O_RDONLY | O_DIRECT | O_CLOEXEC) : -1;
            if (direct >= 0) {
                f->fd = direct;
                f->own = true;
            }
        }
    bool memory = false;
    for (size_t i = 0; i < h->files; i++)
        memory = memory || h->file[i].fd < 0;
    h->ring_ready = !memory && io_uring_queue_init(IN_FLIGHT, &h->ring, 0) == 0;
    return STRATA_OK;
}

static const struct st_expert_section *section_of(const struct st_expert_host *h, const struct st_expert_read *r)
{
    return &h->set->layer[r->layer].section[r->section];
}

uint64_t st_expert_read_room(uint64_t bytes)
{
    return page_up(bytes) + PAGE;
}

/* The aligned window of the file around the bytes. */
struct window {
    struct file *file;
    uint64_t from;
    uint32_t skip, size;
};

static struct window window_of(struct st_expert_host *h, const struct st_expert_read *r)
{
    const struct st_expert_section *s = section_of(h, r);
    uint64_t at = s->tensor->offset + r->expert * s->bytes, from = at / PAGE * PAGE;
    return (struct window){.file = file_of(h, h->set->layer[r->layer].g, s->tensor->shard),
                           .from = from,
                           .skip = (uint32_t)(at - from),
                           .size = (uint32_t)page_up(at - from + s->bytes)};
}

/* Takes what a read brought (bytes, or a negative errno); what is missing is asked for once more. */
static enum strata_result land(struct st_expert_host *h, struct st_expert_read *r, int result, struct strata_error *err)
{
    const struct st_expert_section *s = section_of(h, r);
    struct window w = window_of(h, r);
    uint64_t have = result > 0 ? (uint64_t)result : 0;
    while (result > 0 && have < w.skip + s->bytes) {
        ssize_t more = pread(w.file->fd, r->buffer + have, w.size - have, (off_t)(w.from + have));
        result = more < 0 ? -errno : (int)more;
        have += more > 0 ? (uint64_t)more : 0;
    }
    if (have < w.skip + s->bytes)
        return st_fail(err, STRATA_E_IO, "%s: tensor %s, expert %u: %s", w.file->g->shards[w.file->shard].path,
                       s->tensor->name, r->expert, result < 0 ? strerror(-result) : "the file has become shorter");
    r->data = r->buffer + w.skip;
    h->read_bytes += s->bytes;
    return STRATA_OK;
}

static void submit(struct st_expert_host *h)
{
    while (h->next < h->n_reads && h->flying < IN_FLIGHT) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&h->ring);
        if (!sqe)
            break;
        struct st_expert_read *r = &h->reads[h->next++];
        struct window w = window_of(h, r);
        io_uring_prep_read(sqe, w.file->fd, r->buffer, w.size, w.from);
        io_uring_sqe_set_data(sqe, r);
        h->flying++;
    }
    io_uring_submit(&h->ring);
}

enum strata_result st_expert_host_begin(struct st_expert_host *h, struct st_expert_read *reads, size_t n,
                                        struct strata_error *err)
{
    if (h->flying || h->next < h->n_reads)
        return st_fail(err, STRATA_E_INTERNAL, "experts are read while others are");
    h->reads = reads;
    h->n_reads = n;
    h->next = 0;
    if (h->ring_ready && n)
        submit(h);
    return STRATA_OK;
}

/* One after the other: without a ring, and models that were parsed from memory. */
static enum strata_result read_here(struct st_expert_host *h, struct st_expert_read *r, struct strata_error *err)
{
    struct window w = window_of(h, r);
    if (w.file->fd < 0) {
        r->data = section_of(h, r)->tensor->data + r->expert * section_of(h, r)->bytes;
        return STRATA_OK;
    }
    ssize_t got = pread(w.file->fd, r->buffer, w.size, (off_t)w.from);
    return land(h, r, got < 0 ? -errno : (int)got, err);
}

enum strata_result st_expert_host_finish(struct st_expert_host *h, struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    while (h->flying) {
        struct io_uring_cqe *cqe;
        int waited = io_uring_wait_cqe(&h->ring, &cqe);
        if (waited == -EINTR)
            continue;
        if (waited < 0)
            return st_fail(err, STRATA_E_IO, "reading experts: %s", strerror(-waited));
        struct st_expert_read *one = io_uring_cqe_get_data(cqe);
        /* After a failure the rest is only collected, so that no read writes into memory that is used again. */
        enum strata_result landed = r ? r : land(h, one, cqe->res, err);
        r = r ? r : landed;
        io_uring_cqe_seen(&h->ring, cqe);
        h->flying--;
        if (!r)
            submit(h);
    }
    while (!r && h->next < h->n_reads)
        r = read_here(h, &h->reads[h->next++], err);
    h->next = h->n_reads = 0;
    return r;
}

/* ---- the arena ---- */

static enum strata_result new_chunk(struct st_expert_host *h, uint64_t bytes, struct strata_error *err)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct chunk *p = memory == MAP_FAILED ? NULL : realloc(h->chunk, (h->chunks + 1) * sizeof *p);
    if (!p) {
        if (memory != MAP_FAILED)
            munmap(memory, bytes);
        return st_fail(err, STRATA_E_MEMORY, "no memory for %llu bytes of experts", (unsigned long long)bytes);
    }
    madvise(memory, bytes, MADV_HUGEPAGE);
    h->chunk = p;
    h->chunk[h->chunks++] = (struct chunk){.memory = memory, .bytes = bytes};
    h->stats.arena += bytes;
    return STRATA_OK;
}

/* The places of experts and spares in the order of arrange; slots [n] are their sizes, out [n] the places. */
static enum strata_result make_chunks(struct st_expert_host *h, const uint64_t *slots, size_t n, uint8_t **out,
                                      struct strata_error *err)
{
    for (size_t i = 0, first = 0; i < n; first = i) {
        uint64_t bytes = 0;
        while (i < n && (bytes == 0 || bytes + slots[i] <= CHUNK))
            bytes += slots[i++];
        enum strata_result r = new_chunk(h, page_up(bytes), err);
        if (r)
            return r;
        uint8_t *at = h->chunk[h->chunks - 1].memory;
        for (size_t k = first; k < i; k++) {
            out[k] = at;
            at += slots[k];
        }
    }
    return STRATA_OK;
}

/* Filling by the team: every worker takes the next expert. */
struct filling {
    struct st_expert_host *h;
    const uint32_t *expert; /* [n]: layer * experts + expert */
    size_t n;
    _Atomic size_t next;
    _Atomic int failed;
    struct strata_error err; /* of the one that set failed */
};

static enum strata_result load(struct st_expert_host *h, uint32_t layer, uint32_t expert, uint8_t *to,
                               struct strata_error *err)
{
    const struct st_expert_layer *l = &h->set->layer[layer];
    for (uint32_t s = 0; s < l->sections; s++) {
        const struct st_expert_section *c = &l->section[s];
        const struct st_gguf_shard *shard = &l->g->shards[c->tensor->shard];
        uint64_t from = c->tensor->offset + expert * c->bytes;
        if (shard->map.fd < 0)
            memcpy(to + c->at, c->tensor->data + expert * c->bytes, c->bytes);
        for (uint64_t done = 0; done < c->bytes && shard->map.fd >= 0;) {
            ssize_t got = pread(shard->map.fd, to + c->at + done, c->bytes - done, (off_t)(from + done));
            if (got <= 0 && errno != EINTR)
                return st_fail(err, STRATA_E_IO, "%s: tensor %s, expert %u: %s", shard->path, c->tensor->name, expert,
                               got < 0 ? strerror(errno) : "the file has become shorter");
            done += got > 0 ? (uint64_t)got : 0;
        }
    }
    return STRATA_OK;
}

static void fill_share(void *arg, struct st_worker *w)
{
    struct filling *f = arg;
    (void)w;
    for (size_t i; (i = atomic_fetch_add(&f->next, 1)) < f->n && !atomic_load(&f->failed);) {
        struct strata_error err;
        uint32_t layer = f->expert[i] / f->h->set->experts, e = f->expert[i] % f->h->set->experts;
        if (load(f->h, layer, e, f->h->place[f->expert[i]], &err) && !atomic_exchange(&f->failed, 1))
            f->err = err;
    }
}

static enum strata_result fill(struct st_expert_host *h, const uint32_t *expert, size_t n, struct strata_error *err)
{
    struct filling f = {.h = h, .expert = expert, .n = n};
    st_team_run(h->c.team, fill_share, &f);
    if (!atomic_load(&f.failed))
        return STRATA_OK;
    if (err)
        *err = f.err;
    return STRATA_E_IO;
}

/* Page-locks chunks until the system refuses one. */
static void lock_chunks(struct st_expert_host *h)
{
    struct strata_error why;
    for (size_t i = 0; i < h->chunks && !h->stats.refused[0]; i++) {
        struct chunk *c = &h->chunk[i];
        if (h->c.lock(h->c.user, c->memory, c->bytes, &why)) {
            snprintf(h->stats.refused, sizeof h->stats.refused, "%.*s", (int)sizeof h->stats.refused - 1, why.text);
        } else {
            c->locked = true;
            h->stats.locked += c->bytes;
        }
    }
}

static enum strata_result open_arena(struct st_expert_host *h, const uint8_t *in_arena, const size_t *spares,
                                     size_t places, struct strata_error *err)
{
    const struct st_expert_set *set = h->set;
    size_t n = (size_t)set->count * set->experts, k = 0;
    uint64_t *slots = malloc((places + 1) * sizeof *slots);
    uint8_t **at = malloc((places + 1) * sizeof *at);
    uint32_t *expert = malloc((places + 1) * sizeof *expert);
    h->spare = malloc((places + 1) * sizeof *h->spare);
    h->spare_room = places;
    enum strata_result r = slots && at && expert && h->spare
                               ? STRATA_OK
                               : st_fail(err, STRATA_E_MEMORY, "no memory for a list of experts");
    for (size_t i = 0; i < n && !r; i++)
        if (in_arena[i]) {
            expert[k] = (uint32_t)i;
            slots[k++] = set->layer[i / set->experts].slot;
        }
    size_t experts = k;
    for (uint32_t l = 0; l < set->count && !r; l++)
        for (size_t i = 0; i < spares[l]; i++)
            slots[k++] = set->layer[l].slot;
    if (!r)
        r = make_chunks(h, slots, k, at, err);
    for (size_t i = 0; i < k && !r; i++)
        if (i < experts)
            h->place[expert[i]] = at[i];
        else
            h->spare[h->spares++] = (struct spare){at[i], slots[i]};
    if (!r)
        r = fill(h, expert, experts, err);
    free(slots);
    free(at);
    free(expert);
    return r;
}

enum strata_result st_expert_host_open(const struct st_expert_host_config *c, struct st_expert_host **out,
                                       struct strata_error *err)
{
    const struct st_expert_set *set = &c->store->set;
    size_t n = (size_t)set->count * set->experts, places = 0;
    struct st_expert_host *h = calloc(1, sizeof *h);
    uint8_t *resident = calloc(n + 1, 1), *in_arena = calloc(n + 1, 1);
    size_t *spares = calloc(set->count + 1ull, sizeof *spares);
    if (h) {
        h->c = *c;
        h->set = set;
        h->place = calloc(n + 1, sizeof *h->place);
    }
    enum strata_result r = h && resident && in_arena && spares && h->place
                               ? STRATA_OK
                               : st_fail(err, STRATA_E_MEMORY, "no memory for a list of %zu experts", n);
    for (size_t i = 0; i < n && !r; i++)
        resident[i] = st_expert_store_mark(c->store, (uint32_t)(i / set->experts), (uint32_t)(i % set->experts));
    if (!r) {
        arrange(set, c->profile, resident, c->budget, in_arena, spares);
        for (size_t i = 0; i < n; i++) {
            places += in_arena[i];
            h->stats.in_file += resident[i] || in_arena[i] ? 0 : set->layer[i / set->experts].slot;
        }
        for (uint32_t l = 0; l < set->count; l++)
            places += spares[l];
        r = open_files(h, err);
    }
    if (!r)
        r = open_arena(h, in_arena, spares, places, err);
    if (!r)
        lock_chunks(h);
    free(resident);
    free(in_arena);
    free(spares);
    if (r)
        st_expert_host_close(h);
    else
        *out = h;
    return r;
}

void st_expert_host_close(struct st_expert_host *h)
{
    if (!h)
        return;
    if (h->flying)
        st_expert_host_finish(h, NULL);
    if (h->ring_ready)
        io_uring_queue_exit(&h->ring);
    for (size_t i = 0; i < h->files; i++)
        if (h->file[i].own)
            close(h->file[i].fd);
    for (size_t i = 0; i < h->chunks; i++)
        if (!h->chunk[i].locked || h->c.unlock(h->c.user, h->chunk[i].memory))
            munmap(h->chunk[i].memory, h->chunk[i].bytes);
    free(h->chunk);
    free(h->place);
    free(h->spare);
    free(h->file);
    free(h);
}

void st_expert_host_stats(const struct st_expert_host *h, struct st_expert_host_stats *out)
{
    *out = h->stats;
    out->read = h->read_bytes;
}

const uint8_t *st_expert_host_at(const struct st_expert_host *h, uint32_t layer, uint32_t expert)
{
    return h->place[(size_t)layer * h->set->experts + expert];
}

/* ---- exchanges ---- */

uint8_t *st_expert_host_spare(struct st_expert_host *h, uint64_t slot)
{
    for (size_t i = h->spares; i-- > 0;)
        if (h->spare[i].slot == slot) {
            uint8_t *place = h->spare[i].place;
            h->spare[i] = h->spare[--h->spares];
            return place;
        }
    return NULL;
}

void st_expert_host_give_back(struct st_expert_host *h, uint8_t *place, uint64_t slot)
{
    if (place && h->spares < h->spare_room)
        h->spare[h->spares++] = (struct spare){place, slot};
}

void st_expert_host_exchange(struct st_expert_host *h, uint32_t in_layer, uint32_t in_expert, uint32_t out_layer,
                             uint32_t out_expert, uint8_t *place)
{
    uint8_t **in = &h->place[(size_t)in_layer * h->set->experts + in_expert];
    st_expert_host_give_back(h, *in, h->set->layer[in_layer].slot);
    *in = NULL;
    h->place[(size_t)out_layer * h->set->experts + out_expert] = place;
}
