/* Rows of an n-gram table that may be larger than memory: found in the row cache, in the page cache, or read from the file
 * by direct asynchronous reads (io_uring, or positional reads where the system has none). A pass asks for all its rows at
 * once; each distinct row is fetched once. */
#ifndef ST_ENGINE_NGRAM_IO_H
#define ST_ENGINE_NGRAM_IO_H

#include "base/result.h"

struct st_ngram_io;

struct st_ngram_source {
    const char *path;   /* of the file that holds the table, for messages and a direct handle */
    int fd;             /* open on it; -1: everything comes from the map */
    uint64_t offset;    /* of row 0 in the file */
    const uint8_t *map; /* row 0 in memory */
    uint64_t rows;
    uint32_t row_bytes;
};

struct st_ngram_stats {
    uint64_t asked, distinct, cached, resident, read; /* rows since creation */
};

/* pass_rows: most rows of one request; cache_rows: rows kept (0: none). direct false forbids nothing but makes every row come
 * from the map. The source must outlive the object. */
enum strata_result st_ngram_io_create(const struct st_ngram_source *source, size_t pass_rows, size_t cache_rows, bool direct,
                                      struct st_ngram_io **out, struct strata_error *err);
/* Bytes that such an object allocates where direct reads work. */
uint64_t st_ngram_io_bytes(uint32_t row_bytes, size_t pass_rows, size_t cache_rows);
void st_ngram_io_free(struct st_ngram_io *io);

/* Starts fetching n <= pass_rows rows (numbers below source.rows). index[i] becomes the place of row i's bytes in
 * st_ngram_io_data, in rows. The bytes are complete after st_ngram_io_finish. */
enum strata_result st_ngram_io_begin(struct st_ngram_io *io, const uint64_t *row, size_t n, uint32_t *index,
                                     struct strata_error *err);
/* Waits for what begin started. A read that fails or comes up short is STRATA_E_IO and names file and row. */
enum strata_result st_ngram_io_finish(struct st_ngram_io *io, struct strata_error *err);

/* [pass_rows][row_bytes], at the same place for every pass. */
const uint8_t *st_ngram_io_data(const struct st_ngram_io *io);
/* Distinct rows of the last request. */
size_t st_ngram_io_distinct(const struct st_ngram_io *io);
void st_ngram_io_stats(const struct st_ngram_io *io, struct st_ngram_stats *out);

#endif
