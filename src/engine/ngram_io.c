/* N-gram rows: dedupe by a hash of this pass, then row cache (direct mapped), then the page cache (asked by mincore), then
 * reads. A read takes the aligned window around its row, as direct access demands. */
#define _GNU_SOURCE
#include "engine/ngram_io.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/checked.h"

enum {
    ALIGN = 4096,     /* largest logical block of disks in use, and a page */
    IN_FLIGHT = 128,  /* reads at once */
};

static const uint64_t NO_ROW = UINT64_MAX;

struct read_slot {
    uint8_t *buffer; /* window bytes, ALIGN-aligned */
    uint32_t place;  /* of the row in data */
    uint64_t row, from; /* row number; file offset of the window */
    uint32_t size, skip; /* of the window; row begins at buffer + skip */
};

struct st_ngram_io {
    struct st_ngram_source source;
    size_t pass_rows, cache_rows;
    bool direct;
    int fd;               /* direct handle, or source.fd where direct access is refused */
    bool own_fd, ring_ready;
    struct io_uring ring;
    size_t flying;
    uint8_t *data;        /* [pass_rows][row_bytes] */
    uint64_t *rows;       /* [pass_rows] number of each distinct row */
    uint32_t *hash;       /* [hash_size] place + 1 of a distinct row, 0: free */
    size_t hash_size, distinct;
    uint64_t *cache_tag;  /* [cache_rows] */
    uint8_t *cache;       /* [cache_rows][row_bytes] */
    uint32_t *pending;    /* [pass_rows] places still to be read */
    size_t n_pending, next_pending;
    struct read_slot slot[IN_FLIGHT];
    int free_slot[IN_FLIGHT];
    int n_free;
    uint8_t *buffers;
    size_t window;
    struct st_ngram_stats stats;
};

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 31) * 0x9E3779B97F4A7C15u;
    return x ^ x >> 29;
}

/* A handle that bypasses the page cache, so that rows used once do not push out weights; the plain one where the file
 * system has no direct access. */
static void open_direct(struct st_ngram_io *io)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", io->source.fd);
    io->fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    io->own_fd = io->fd >= 0;
    if (!io->own_fd)
        io->fd = io->source.fd;
    io->ring_ready = io_uring_queue_init(IN_FLIGHT, &io->ring, 0) == 0;
}

/* At least twice the rows of a pass, a power of two. */
static size_t hash_size(size_t pass_rows)
{
    size_t n = 16;
    while (n < 2 * pass_rows)
        n *= 2;
    return n;
}

/* Aligned window around a row wherever it lies. */
static size_t window_bytes(uint32_t row_bytes)
{
    return (row_bytes + 2 * (size_t)ALIGN - 1) / ALIGN * ALIGN + ALIGN;
}

uint64_t st_ngram_io_bytes(uint32_t row_bytes, size_t pass_rows, size_t cache_rows)
{
    uint64_t numbers = sizeof(uint64_t) + sizeof(uint32_t); /* of a row in this pass; its place while it is read */
    return sizeof(struct st_ngram_io) + (uint64_t)pass_rows * (row_bytes + numbers) + hash_size(pass_rows) * sizeof(uint32_t) +
           (uint64_t)cache_rows * (row_bytes + sizeof(uint64_t)) + (uint64_t)IN_FLIGHT * window_bytes(row_bytes);
}

enum strata_result st_ngram_io_create(const struct st_ngram_source *source, size_t pass_rows, size_t cache_rows, bool direct,
                                      struct st_ngram_io **out, struct strata_error *err)
{
    struct st_ngram_io *io = calloc(1, sizeof *io);
    uint64_t bytes;
    if (!io || !st_mul_u64(pass_rows + cache_rows, source->row_bytes, &bytes) || pass_rows > UINT32_MAX / 4) {
        free(io);
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for n-gram rows", source->path);
    }
    io->source = *source;
    io->pass_rows = pass_rows;
    io->direct = direct && source->fd >= 0;
    io->cache_rows = io->direct ? cache_rows : 0;
    io->hash_size = hash_size(pass_rows);
    io->window = window_bytes(source->row_bytes);
    io->data = malloc(pass_rows * source->row_bytes + 1);
    io->rows = malloc((pass_rows + 1) * sizeof *io->rows);
    io->hash = malloc(io->hash_size * sizeof *io->hash);
    io->pending = malloc((pass_rows + 1) * sizeof *io->pending);
    io->cache_tag = malloc((io->cache_rows + 1) * sizeof *io->cache_tag);
    io->cache = malloc(io->cache_rows * source->row_bytes + 1);
    if (io->direct)
        io->buffers = aligned_alloc(ALIGN, IN_FLIGHT * io->window);
    if (!io->data || !io->rows || !io->hash || !io->pending || !io->cache_tag || !io->cache ||
        (io->direct && !io->buffers)) {
        st_ngram_io_free(io);
        return st_fail(err, STRATA_E_MEMORY, "%s: no memory for n-gram rows", source->path);
    }
    for (size_t i = 0; i < io->cache_rows; i++)
        io->cache_tag[i] = NO_ROW;
    for (int i = 0; i < IN_FLIGHT; i++) {
        io->slot[i].buffer = io->buffers + (size_t)i * (io->buffers ? io->window : 0);
        io->free_slot[io->n_free++] = i;
    }
    if (io->direct)
        open_direct(io);
    *out = io;
    return STRATA_OK;
}

void st_ngram_io_free(struct st_ngram_io *io)
{
    if (!io)
        return;
    if (io->flying)
        st_ngram_io_finish(io, NULL);
    if (io->ring_ready)
        io_uring_queue_exit(&io->ring);
    if (io->own_fd)
        close(io->fd);
    free(io->data);
    free(io->rows);
    free(io->hash);
    free(io->pending);
    free(io->cache_tag);
    free(io->cache);
    free(io->buffers);
    free(io);
}

const uint8_t *st_ngram_io_data(const struct st_ngram_io *io)
{
    return io->data;
}

size_t st_ngram_io_distinct(const struct st_ngram_io *io)
{
    return io->distinct;
}

void st_ngram_io_stats(const struct st_ngram_io *io, struct st_ngram_stats *out)
{
    *out = io->stats;
}

/* True when the pages of a row are in memory, so that touching the map will not wait. */
static bool resident(const struct st_ngram_io *io, uint64_t row)
{
    uintptr_t from = (uintptr_t)(io->source.map + row * io->source.row_bytes), to = from + io->source.row_bytes;
    from &= ~(uintptr_t)(ALIGN - 1);
    unsigned char page[32];
    size_t pages = (to - from + ALIGN - 1) / ALIGN;
    if (pages > sizeof page || mincore((void *)from, to - from, page))
        return false;
    for (size_t i = 0; i < pages; i++)
        if (!(page[i] & 1))
            return false;
    return true;
}

static uint8_t *cache_line(struct st_ngram_io *io, uint64_t row, uint64_t **tag)
{
    size_t i = (size_t)(mix(row) % io->cache_rows);
    *tag = &io->cache_tag[i];
    return io->cache + i * io->source.row_bytes;
}

/* Fills a new distinct row from memory, or leaves it for a read. */
static void find_row(struct st_ngram_io *io, uint32_t place)
{
    uint64_t row = io->rows[place], *tag;
    size_t bytes = io->source.row_bytes;
    uint8_t *to = io->data + place * bytes;
    if (io->cache_rows) {
        const uint8_t *line = cache_line(io, row, &tag);
        if (*tag == row) {
            memcpy(to, line, bytes);
            io->stats.cached++;
            return;
        }
    }
    if (!io->direct || resident(io, row)) {
        memcpy(to, io->source.map + row * bytes, bytes);
        io->stats.resident++;
        return;
    }
    io->pending[io->n_pending++] = place;
}

static enum strata_result read_failed(const struct st_ngram_io *io, uint64_t row, int result, struct strata_error *err)
{
    return st_fail(err, STRATA_E_IO, "%s: row %llu of the n-gram table: %s", io->source.path, (unsigned long long)row,
                   result < 0 ? strerror(-result) : "the file has become shorter");
}

/* Describes the aligned window around a pending row. */
static void aim(struct st_ngram_io *io, struct read_slot *s, uint32_t place)
{
    uint64_t at = io->source.offset + io->rows[place] * io->source.row_bytes;
    s->place = place;
    s->row = io->rows[place];
    s->from = at / ALIGN * ALIGN;
    s->skip = (uint32_t)(at - s->from);
    s->size = (s->skip + io->source.row_bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* Takes what a read brought (bytes read, or a negative errno). */
static enum strata_result land(struct st_ngram_io *io, const struct read_slot *s, int result, struct strata_error *err)
{
    size_t bytes = io->source.row_bytes;
    if (result < 0 || (size_t)result < s->skip + bytes)
        return read_failed(io, s->row, result, err);
    memcpy(io->data + s->place * bytes, s->buffer + s->skip, bytes);
    io->stats.read++;
    if (io->cache_rows) {
        uint64_t *tag;
        uint8_t *line = cache_line(io, s->row, &tag);
        memcpy(line, s->buffer + s->skip, bytes);
        *tag = s->row;
    }
    return STRATA_OK;
}

/* Hands pending rows to the ring as far as slots are free. */
static void submit(struct st_ngram_io *io)
{
    while (io->next_pending < io->n_pending && io->n_free) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&io->ring);
        if (!sqe)
            break;
        int i = io->free_slot[--io->n_free];
        aim(io, &io->slot[i], io->pending[io->next_pending++]);
        io_uring_prep_read(sqe, io->fd, io->slot[i].buffer, io->slot[i].size, io->slot[i].from);
        io_uring_sqe_set_data(sqe, &io->slot[i]);
        io->flying++;
    }
    io_uring_submit(&io->ring);
}

enum strata_result st_ngram_io_begin(struct st_ngram_io *io, const uint64_t *row, size_t n, uint32_t *index,
                                     struct strata_error *err)
{
    if (n > io->pass_rows || io->flying)
        return st_fail(err, STRATA_E_INTERNAL, "%s: %zu n-gram rows asked for at a wrong time", io->source.path, n);
    memset(io->hash, 0, io->hash_size * sizeof *io->hash);
    io->distinct = io->n_pending = io->next_pending = 0;
    for (size_t i = 0; i < n; i++) {
        if (row[i] >= io->source.rows)
            return st_fail(err, STRATA_E_INTERNAL, "%s: n-gram row %llu does not exist", io->source.path,
                           (unsigned long long)row[i]);
        size_t h = (size_t)mix(row[i]) & (io->hash_size - 1);
        while (io->hash[h] && io->rows[io->hash[h] - 1] != row[i])
            h = (h + 1) & (io->hash_size - 1);
        if (!io->hash[h]) {
            uint32_t place = (uint32_t)io->distinct++;
            io->rows[place] = row[i];
            io->hash[h] = place + 1;
            find_row(io, place);
        }
        index[i] = io->hash[h] - 1;
    }
    io->stats.asked += n;
    io->stats.distinct += io->distinct;
    if (io->ring_ready && io->n_pending)
        submit(io);
    return STRATA_OK;
}

/* Positional reads one after the other, where there is no ring. */
static enum strata_result read_one_by_one(struct st_ngram_io *io, struct strata_error *err)
{
    enum strata_result r = STRATA_OK;
    while (io->next_pending < io->n_pending && !r) {
        struct read_slot *s = &io->slot[0];
        aim(io, s, io->pending[io->next_pending++]);
        ssize_t got = pread(io->fd, s->buffer, s->size, (off_t)s->from);
        r = land(io, s, got < 0 ? -errno : (int)got, err);
    }
    return r;
}

enum strata_result st_ngram_io_finish(struct st_ngram_io *io, struct strata_error *err)
{
    if (!io->ring_ready)
        return read_one_by_one(io, err);
    enum strata_result r = STRATA_OK;
    while (io->flying) {
        struct io_uring_cqe *cqe;
        int waited = io_uring_wait_cqe(&io->ring, &cqe);
        if (waited == -EINTR)
            continue;
        if (waited < 0)
            return read_failed(io, io->rows[0], waited, err);
        struct read_slot *s = io_uring_cqe_get_data(cqe);
        /* After a failure the rest is only collected, so that no read writes into a buffer of the next pass. */
        enum strata_result one = land(io, s, cqe->res, r ? NULL : err);
        r = r ? r : one;
        io_uring_cqe_seen(&io->ring, cqe);
        io->flying--;
        io->free_slot[io->n_free++] = (int)(s - io->slot);
        if (!r && io->next_pending < io->n_pending)
            submit(io);
    }
    return r;
}
