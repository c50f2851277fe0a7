/* src/engine/ngram_io: every row arrives with its own bytes, once, wherever it came from; short files are an error. */
#define _GNU_SOURCE
#include "test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "engine/ngram_io.h"

enum { ROWS = 20000, ROW_BYTES = 90, OFFSET = 192, ASK = 3000 };

static char path[] = "ngram-test-XXXXXX";
static struct st_map map;

static uint8_t byte_of(uint64_t row, size_t i)
{
    return (uint8_t)(row * 2654435761u >> 7 ^ i * 31);
}

static int setup(void **state)
{
    (void)state;
    struct strata_error err;
    int fd = mkstemp(path);
    FILE *f = fdopen(fd, "w");
    for (int i = 0; i < OFFSET; i++)
        fputc(0, f);
    for (uint64_t r = 0; r < ROWS; r++)
        for (size_t i = 0; i < ROW_BYTES; i++)
            fputc(byte_of(r, i), f);
    fflush(f);
    fsync(fd);
    fclose(f);
    return st_map_open(path, &map, &err) == STRATA_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    st_map_close(&map);
    unlink(path);
    return 0;
}

static struct st_ngram_io *create(size_t cache, bool direct)
{
    struct strata_error err;
    struct st_ngram_io *io;
    struct st_ngram_source source = {
        .path = path, .fd = map.fd, .offset = OFFSET, .map = map.data + OFFSET, .rows = ROWS, .row_bytes = ROW_BYTES};
    assert_ok(st_ngram_io_create(&source, ASK, cache, direct, &io, &err), &err);
    return io;
}

static void ask(struct st_ngram_io *io, uint64_t seed)
{
    static uint64_t row[ASK];
    static uint32_t index[ASK];
    struct strata_error err;
    for (size_t i = 0; i < ASK; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        row[i] = (seed >> 33) % (i % 3 ? ROWS : 50); /* a third repeats itself */
    }
    row[0] = 0;
    row[1] = ROWS - 1;
    assert_ok(st_ngram_io_begin(io, row, ASK, index, &err), &err);
    assert_ok(st_ngram_io_finish(io, &err), &err);
    assert_true(st_ngram_io_distinct(io) < ASK);
    for (size_t i = 0; i < ASK; i++) {
        assert_true(index[i] < st_ngram_io_distinct(io));
        for (size_t k = 0; k < ROW_BYTES; k++)
            assert_int_equal(st_ngram_io_data(io)[index[i] * ROW_BYTES + k], byte_of(row[i], k));
    }
}

static void rows_come_from_the_map_when_direct_reads_are_off(void **state)
{
    (void)state;
    struct st_ngram_io *io = create(100, false);
    ask(io, 1);
    struct st_ngram_stats s;
    st_ngram_io_stats(io, &s);
    assert_int_equal(s.read, 0);
    assert_int_equal(s.resident, s.distinct);
    st_ngram_io_free(io);
}

static void rows_that_are_not_in_memory_are_read_and_kept(void **state)
{
    (void)state;
    struct st_ngram_io *io = create(65536, true);
    struct st_ngram_stats first, second;
    /* Whether the kernel drops the pages is its own choice; the sum over the ways holds either way. */
    posix_fadvise(map.fd, 0, 0, POSIX_FADV_DONTNEED);
    ask(io, 2);
    st_ngram_io_stats(io, &first);
    assert_int_equal(first.asked, ASK);
    assert_int_equal(first.read + first.resident + first.cached, first.distinct);
    ask(io, 2);
    st_ngram_io_stats(io, &second);
    assert_int_equal(second.distinct, 2 * first.distinct);
    assert_true(second.read <= first.read + first.read / 4); /* all but those that share a cache line */
    st_ngram_io_free(io);
}

static void a_file_that_became_shorter_is_an_error_that_names_the_row(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_ngram_io *io = create(0, true);
    uint64_t row[2] = {5, ROWS - 1};
    uint32_t index[2];
    assert_int_equal(truncate(path, OFFSET + 100 * ROW_BYTES), 0);
    assert_ok(st_ngram_io_begin(io, row, 2, index, &err), &err);
    assert_int_equal(st_ngram_io_finish(io, &err), STRATA_E_IO);
    assert_non_null(strstr(err.text, "19999"));
    /* The object serves the next request. */
    assert_ok(st_ngram_io_begin(io, row, 1, index, &err), &err);
    assert_ok(st_ngram_io_finish(io, &err), &err);
    for (size_t k = 0; k < ROW_BYTES; k++)
        assert_int_equal(st_ngram_io_data(io)[k], byte_of(5, k));
    st_ngram_io_free(io);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_come_from_the_map_when_direct_reads_are_off),
        cmocka_unit_test(rows_that_are_not_in_memory_are_read_and_kept),
        cmocka_unit_test(a_file_that_became_shorter_is_an_error_that_names_the_row),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
