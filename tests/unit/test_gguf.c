/* src/format/gguf*: what is written is read back, metadata is read with tolerance, and hostile files end in one message that
 * names the file and the key or tensor. */
#include "test.h"

#include "golden/fixture.h"

#include "format/gguf_write.h"
#include "format/quant.h"

/* Bytes of a file in the making; records are appended as the format lays them out. */
struct bytes {
    uint8_t data[4096];
    size_t size;
};

static void put(struct bytes *b, const void *p, size_t n)
{
    assert_true(b->size + n <= sizeof b->data);
    if (n)
        memcpy(b->data + b->size, p, n);
    b->size += n;
}

static void put32(struct bytes *b, uint32_t v)
{
    put(b, &v, 4);
}

static void put64(struct bytes *b, uint64_t v)
{
    put(b, &v, 8);
}

static void put_text(struct bytes *b, const char *s)
{
    put64(b, strlen(s));
    put(b, s, strlen(s));
}

static void head(struct bytes *b, uint32_t version, uint64_t tensors, uint64_t keys)
{
    b->size = 0;
    put(b, "GGUF", 4);
    put32(b, version);
    put64(b, tensors);
    put64(b, keys);
}

static void key_u32(struct bytes *b, const char *name, uint32_t v)
{
    put_text(b, name);
    put32(b, ST_GGUF_U32);
    put32(b, v);
}

static void tensor(struct bytes *b, const char *name, uint32_t dims, const uint64_t *ne, uint32_t type, uint64_t offset)
{
    put_text(b, name);
    put32(b, dims);
    put(b, ne, dims * 8);
    put32(b, type);
    put64(b, offset);
}

static void data(struct bytes *b, size_t n)
{
    while (b->size % 32)
        put(b, "", 1);
    while (n--)
        put(b, "x", 1);
}

static void assert_refused(const struct bytes *b, enum strata_result code, const char *names)
{
    struct strata_error err = {0};
    struct st_gguf *g = NULL;
    /* A copy of exactly this size, so that reading past the end is seen by the sanitizers. */
    uint8_t *copy = malloc(b->size + !b->size);
    memcpy(copy, b->data, b->size);
    enum strata_result r = st_gguf_open_memory(copy, b->size, "m.gguf", &g, &err);
    free(copy);
    if (r == STRATA_OK)
        st_gguf_close(g);
    if (r != code || !strstr(err.text, names) || !strstr(err.text, "m.gguf"))
        fail_msg("%s, expected %s with '%s': %s", strata_result_name(r), strata_result_name(code), names, err.text);
}

static const uint64_t four[] = {4, 1, 1, 1};

static void headers_that_lie_are_refused(void **state)
{
    (void)state;
    struct bytes b = {.size = 0};
    assert_refused(&b, STRATA_E_FORMAT, "too few");
    head(&b, 3, 0, 0);
    b.size = 23;
    assert_refused(&b, STRATA_E_FORMAT, "too few");
    b.size = 24;
    b.data[0] = 'g';
    assert_refused(&b, STRATA_E_FORMAT, "not a GGUF");
    head(&b, 1, 0, 0);
    assert_refused(&b, STRATA_E_UNSUPPORTED, "version 1");
    head(&b, 0, 0, 0);
    assert_refused(&b, STRATA_E_UNSUPPORTED, "version 0");
    head(&b, 4, 0, 0);
    assert_refused(&b, STRATA_E_UNSUPPORTED, "version 4");
    head(&b, 3 << 24, 0, 0);
    assert_refused(&b, STRATA_E_UNSUPPORTED, "big-endian");
    head(&b, 3, 1, 0);
    assert_refused(&b, STRATA_E_FORMAT, "1 tensors");
    head(&b, 3, UINT64_MAX, 0);
    assert_refused(&b, STRATA_E_FORMAT, "tensors do not fit");
    head(&b, 3, 0, UINT64_MAX / 14);
    assert_refused(&b, STRATA_E_FORMAT, "keys do not fit");
}

static void keys_that_lie_are_named(void **state)
{
    (void)state;
    struct bytes b;
    head(&b, 3, 0, 2);
    key_u32(&b, "same", 1);
    key_u32(&b, "same", 2);
    assert_refused(&b, STRATA_E_FORMAT, "key same stands twice");
    head(&b, 3, 0, 1);
    key_u32(&b, "", 1);
    assert_refused(&b, STRATA_E_FORMAT, "key 0");
    head(&b, 3, 0, 1);
    key_u32(&b, "a\x1b[2J", 1);
    assert_refused(&b, STRATA_E_FORMAT, "a\\x1b[2J");
    head(&b, 3, 0, 1);
    put_text(&b, "odd");
    put32(&b, 13);
    put64(&b, 0);
    assert_refused(&b, STRATA_E_FORMAT, "key odd: unknown value type 13");
    head(&b, 3, 0, 1);
    put_text(&b, "long");
    put32(&b, ST_GGUF_STRING);
    put64(&b, UINT64_MAX);
    assert_refused(&b, STRATA_E_FORMAT, "key long");
    head(&b, 3, 0, 1);
    put_text(&b, "nested");
    put32(&b, ST_GGUF_ARRAY);
    put32(&b, ST_GGUF_ARRAY);
    put64(&b, 1);
    assert_refused(&b, STRATA_E_FORMAT, "key nested");
    head(&b, 3, 0, 1);
    put_text(&b, "many");
    put32(&b, ST_GGUF_ARRAY);
    put32(&b, ST_GGUF_U64);
    put64(&b, 1 << 23);
    assert_refused(&b, STRATA_E_FORMAT, "key many");
    head(&b, 3, 0, 1);
    put_text(&b, "texts");
    put32(&b, ST_GGUF_ARRAY);
    put32(&b, ST_GGUF_STRING);
    put64(&b, 2);
    put_text(&b, "abcdefgh");
    put64(&b, 9);
    assert_refused(&b, STRATA_E_FORMAT, "key texts: string 1");
    head(&b, 3, 0, 1);
    put_text(&b, "huge");
    put32(&b, ST_GGUF_ARRAY);
    put32(&b, ST_GGUF_U8);
    put64(&b, UINT64_MAX);
    assert_refused(&b, STRATA_E_LIMIT, "key huge");
    static const uint32_t alignments[] = {0, 3, 1 << 21};
    for (size_t i = 0; i < 3; i++) {
        head(&b, 3, 0, 1);
        key_u32(&b, "general.alignment", alignments[i]);
        assert_refused(&b, STRATA_E_FORMAT, "general.alignment");
    }
    head(&b, 3, 0, 1);
    put_text(&b, "general.alignment");
    put32(&b, ST_GGUF_STRING);
    put_text(&b, "32");
    assert_refused(&b, STRATA_E_FORMAT, "general.alignment: string where an integer is expected");
}

static void tensors_that_lie_are_named(void **state)
{
    (void)state;
    struct bytes b;
    static const struct {
        uint32_t dims;
        uint64_t ne[4];
        uint32_t type;
        uint64_t offset;
        enum strata_result code;
        const char *names;
    } cases[] = {
        {0, {0}, 0, 0, STRATA_E_FORMAT, "0 dimensions"},
        {1, {0}, 0, 0, STRATA_E_FORMAT, "dimension 0 is 0"},
        {1, {UINT64_MAX}, 0, 0, STRATA_E_FORMAT, "dimension 0 is -1"},
        {4, {1 << 20, 1 << 20, 1 << 20, 8}, 0, 0, STRATA_E_FORMAT, "more than 2^63"},
        {2, {(uint64_t)1 << 61, 2}, 0, 0, STRATA_E_FORMAT, "size overflows"},
        {1, {31}, ST_TYPE_Q8_0, 0, STRATA_E_FORMAT, "whole blocks of 32 (Q8_0)"},
        {1, {4}, 4, 0, STRATA_E_UNSUPPORTED, "type 4"},
        {1, {4}, 36, 0, STRATA_E_UNSUPPORTED, "type 36"},
        {1, {4}, 1000, 0, STRATA_E_UNSUPPORTED, "type 1000"},
        {1, {4}, UINT32_MAX, 0, STRATA_E_UNSUPPORTED, "type -1"},
        {1, {4}, 0, 16, STRATA_E_FORMAT, "offset 16"},
        {1, {4}, 0, 32, STRATA_E_FORMAT, "end after the file"},
        {1, {9}, 0, 0, STRATA_E_FORMAT, "end after the file"},
        {1, {4}, 0, UINT64_MAX - 31, STRATA_E_FORMAT, "end after the file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        head(&b, 3, 1, 0);
        tensor(&b, "blk.0.bad", cases[i].dims, cases[i].ne, cases[i].type, cases[i].offset);
        data(&b, 32);
        assert_refused(&b, cases[i].code, "tensor blk.0.bad");
        assert_refused(&b, cases[i].code, cases[i].names);
    }
    head(&b, 3, 1, 0);
    put_text(&b, "five");
    put32(&b, 5);
    data(&b, 64);
    assert_refused(&b, STRATA_E_FORMAT, "tensor five: 5 dimensions");
    head(&b, 3, 2, 0);
    tensor(&b, "one", 1, four, 0, 0);
    tensor(&b, "one", 1, four, 0, 32);
    data(&b, 64);
    assert_refused(&b, STRATA_E_FORMAT, "tensor one stands twice");
    head(&b, 3, 2, 0);
    tensor(&b, "late", 1, four, 0, 32);
    tensor(&b, "wide", 1, (const uint64_t[]){9}, 0, 0);
    data(&b, 64);
    assert_refused(&b, STRATA_E_FORMAT, "tensors wide and late overlap");
    char name[80];
    memset(name, 'n', 64);
    name[64] = 0;
    head(&b, 3, 1, 0);
    tensor(&b, name, 1, four, 0, 0);
    data(&b, 32);
    assert_refused(&b, STRATA_E_FORMAT, "tensor 0: the name is cut off or longer than 63");
}

static void gaps_between_tensors_and_missing_padding_are_accepted(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_gguf *g;
    struct bytes b;
    head(&b, 2, 2, 1);
    key_u32(&b, "general.alignment", 8);
    tensor(&b, "second", 1, four, 0, 64);
    tensor(&b, "first", 2, (const uint64_t[]){2, 2}, 0, 0);
    while (b.size % 8)
        put(&b, "", 1);
    size_t start = b.size;
    for (int i = 0; i < 80; i++)
        put(&b, (const char[]){(char)i}, 1);
    assert_ok(st_gguf_open_memory(b.data, b.size, "gaps", &g, &err), &err);
    assert_int_equal(g->shards[0].data_start, start);
    assert_int_equal(st_gguf_tensor(g, "second")->data[0], 64);
    assert_int_equal(st_gguf_tensor(g, "first")->data[0], 0);
    assert_int_equal(st_gguf_tensor(g, "first")->ne[1], 2);
    assert_int_equal(st_gguf_tensor(g, "first")->ne[3], 1);
    assert_int_equal(st_gguf_row_bytes(st_gguf_tensor(g, "first")), 8);
    assert_null(st_gguf_tensor(g, "third"));
    st_gguf_close(g);
}

static enum strata_result fill_bytes(void *user, struct st_out *out, struct strata_error *err)
{
    return st_out_write(out, user, strlen(user), err);
}

/* A file with every kind of value, two tensors and a hole. */
static void write_sample(const char *path)
{
    struct strata_error err;
    struct st_gguf_writer *w;
    assert_ok(st_gguf_writer_create(&w, &err), &err);
    st_gguf_set_string(w, "text", "a\0b", 3);
    st_gguf_set_u16(w, "u16", 7);
    st_gguf_set_u32(w, "u32", 4000000000u);
    st_gguf_set_i32(w, "i32", -5);
    st_gguf_set_u64(w, "u64", (uint64_t)1 << 60);
    st_gguf_set_f32(w, "f32", 0.5f);
    st_gguf_set_bool(w, "bool", true);
    st_gguf_set_array(w, "ints", ST_GGUF_I32, (const int32_t[]){1, -2, 3}, 3);
    st_gguf_set_array(w, "floats", ST_GGUF_F32, (const float[]){1.5f, -2}, 2);
    st_gguf_set_array(w, "bools", ST_GGUF_BOOL, (const uint8_t[]){1, 0, 1}, 3);
    st_gguf_set_array(w, "none", ST_GGUF_U64, NULL, 0);
    st_gguf_set_strings(w, "texts", (const struct st_bytes[]){{"x", 1}, {"", 0}, {"yz", 2}}, 3);
    st_gguf_add_tensor(w, "first", ST_TYPE_F32, 1, (const uint64_t[]){2}, fill_bytes, (char *)"8 bytes!");
    st_gguf_add_tensor(w, "hole", ST_TYPE_Q8_0, 3, (const uint64_t[]){64, 3, 2}, NULL, NULL);
    st_gguf_add_tensor(w, "last", ST_TYPE_BF16, 2, (const uint64_t[]){1, 4}, fill_bytes, (char *)"eight by");
    uint64_t size = st_gguf_writer_size(w);
    assert_ok(st_gguf_writer_save(w, path, &err), &err);
    st_gguf_writer_free(w);
    struct st_map m;
    assert_ok(st_map_open(path, &m, &err), &err);
    assert_int_equal(m.size, size);
    st_map_close(&m);
}

static void what_is_written_is_read_back(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_gguf *g;
    const char *text, *path = work_path("sample.gguf");
    size_t n;
    uint64_t u;
    int64_t i, *ints;
    double f, *floats;
    bool b, *bools;
    struct st_bytes *texts;
    write_sample(path);
    assert_ok(st_gguf_open(path, &g, &err), &err);
    assert_int_equal(g->n_keys, 12);
    assert_int_equal(g->n_tensors, 3);
    assert_int_equal(g->bytes, 8 + 408 + 8);
    assert_ok(st_gguf_string(g, "text", &text, &n, &err), &err);
    assert_int_equal(n, 3);
    assert_memory_equal(text, "a\0b", 3);
    assert_ok(st_gguf_u64(g, "u64", &u, &err), &err);
    assert_true(u == (uint64_t)1 << 60);
    assert_ok(st_gguf_i64(g, "i32", &i, &err), &err);
    assert_int_equal(i, -5);
    assert_ok(st_gguf_f64(g, "f32", &f, &err), &err);
    assert_true(f == 0.5);
    assert_ok(st_gguf_bool(g, "bool", &b, &err), &err);
    assert_true(b);
    assert_ok(st_gguf_ints(g, "ints", &ints, &n, &err), &err);
    assert_int_equal(n, 3);
    assert_int_equal(ints[1], -2);
    assert_ok(st_gguf_floats(g, "floats", &floats, &n, &err), &err);
    assert_true(n == 2 && floats[1] == -2);
    assert_ok(st_gguf_bools(g, "bools", &bools, &n, &err), &err);
    assert_true(n == 3 && bools[0] && !bools[1]);
    assert_ok(st_gguf_strings(g, "texts", &texts, &n, &err), &err);
    assert_true(n == 3 && texts[1].size == 0 && texts[2].size == 2 && texts[2].data[1] == 'z');
    free(ints);
    assert_ok(st_gguf_ints(g, "none", &ints, &n, &err), &err);
    assert_int_equal(n, 0);
    assert_memory_equal(st_gguf_tensor(g, "first")->data, "8 bytes!", 8);
    assert_memory_equal(st_gguf_tensor(g, "last")->data, "eight by", 8);
    for (size_t k = 0; k < 408; k++)
        assert_int_equal(st_gguf_tensor(g, "hole")->data[k], 0);
    assert_int_equal(st_gguf_elements(st_gguf_tensor(g, "hole")), 384);
    free(ints);
    free(floats);
    free(bools);
    free(texts);
    st_gguf_close(g);
}

static void integers_are_read_from_every_type_that_holds_them(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_gguf *g;
    const char *path = work_path("sample.gguf");
    uint64_t u = 9;
    uint32_t v = 9;
    int64_t i;
    double f;
    bool b;
    int64_t *ints;
    size_t n;
    write_sample(path);
    assert_ok(st_gguf_open(path, &g, &err), &err);
    assert_ok(st_gguf_u64(g, "u16", &u, &err), &err);
    assert_int_equal(u, 7);
    assert_ok(st_gguf_u32(g, "u32", &v, &err), &err);
    assert_ok(st_gguf_f64(g, "u16", &f, &err), &err);
    assert_true(f == 7);
    assert_ok(st_gguf_ints(g, "u16", &ints, &n, &err), &err);
    assert_true(n == 1 && ints[0] == 7);
    free(ints);
    u = 9;
    assert_int_equal(st_gguf_u64(g, "i32", &u, &err), STRATA_E_FORMAT);
    assert_int_equal(st_gguf_u32(g, "u64", &v, &err), STRATA_E_FORMAT);
    assert_int_equal(st_gguf_u64(g, "f32", &u, &err), STRATA_E_FORMAT);
    assert_non_null(strstr(err.text, "key f32: f32 where an integer is expected"));
    assert_int_equal(st_gguf_u64(g, "ints", &u, &err), STRATA_E_FORMAT);
    assert_int_equal(st_gguf_bool(g, "u16", &b, &err), STRATA_E_FORMAT);
    assert_int_equal(st_gguf_ints(g, "texts", &ints, &n, &err), STRATA_E_FORMAT);
    assert_int_equal(st_gguf_i64(g, "absent", &i, &err), STRATA_E_MODEL);
    assert_non_null(strstr(err.text, "key absent is missing"));
    assert_int_equal(u, 9);
    assert_ok(st_gguf_u64_or(g, "absent", 3, &u, &err), &err);
    assert_int_equal(u, 3);
    assert_int_equal(st_gguf_u64_or(g, "text", 3, &u, &err), STRATA_E_FORMAT);
    st_gguf_close(g);
}

static void every_cut_and_every_flipped_bit_ends_in_a_result(void **state)
{
    (void)state;
    struct strata_error err;
    const char *path = work_path("sample.gguf");
    char *whole;
    size_t size;
    write_sample(path);
    assert_ok(st_read_file(path, 1 << 20, &whole, &size, &err), &err);
    size_t data_bytes = 32 + 416 + 32;
    for (size_t n = 0; n < size; n++) {
        struct st_gguf *g;
        uint8_t *cut = malloc(n + !n);
        memcpy(cut, whole, n);
        enum strata_result r = st_gguf_open_memory(cut, n, "cut", &g, &err);
        if (n < size - 24)
            assert_int_equal(r, STRATA_E_FORMAT);
        if (!r)
            st_gguf_close(g);
        free(cut);
    }
    for (size_t bit = 0; bit < 8 * (size - data_bytes); bit++) {
        struct st_gguf *g;
        whole[bit / 8] ^= (char)(1 << bit % 8);
        if (!st_gguf_open_memory(whole, size, "flipped", &g, &err)) {
            static volatile uint8_t seen; /* every byte that the result promises can be read */
            for (size_t t = 0; t < g->n_tensors; t++)
                for (uint64_t k = 0; k < g->tensors[t].bytes; k++)
                    seen = g->tensors[t].data[k];
            (void)seen;
            st_gguf_close(g);
        }
        whole[bit / 8] ^= (char)(1 << bit % 8);
    }
    free(whole);
}

/* One shard with a tensor of its own. no and count as the keys say. */
static void write_shard(const char *path, unsigned no, unsigned count, int total, const char *tensor_name)
{
    struct strata_error err;
    struct st_gguf_writer *w;
    assert_ok(st_gguf_writer_create(&w, &err), &err);
    if (no == 0)
        st_gguf_set_u32(w, "only.in.first", 1);
    st_gguf_set_u16(w, "split.no", (uint16_t)no);
    st_gguf_set_u16(w, "split.count", (uint16_t)count);
    st_gguf_set_i32(w, "split.tensors.count", total);
    if (tensor_name)
        st_gguf_add_tensor(w, tensor_name, ST_TYPE_F32, 1, (const uint64_t[]){2}, fill_bytes, (char *)"8 bytes!");
    assert_ok(st_gguf_writer_save(w, path, &err), &err);
    st_gguf_writer_free(w);
}

static void shards_are_found_from_any_of_them(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_gguf *g;
    const char *names[] = {"s-00001-of-00003.gguf", "s-00002-of-00003.gguf", "s-00003-of-00003.gguf"};
    write_shard(work_path(names[0]), 0, 3, 2, NULL);
    write_shard(work_path(names[1]), 1, 3, 2, "b");
    write_shard(work_path(names[2]), 2, 3, 2, "c");
    for (int i = 0; i < 3; i++) {
        assert_ok(st_gguf_open(work_path(names[i]), &g, &err), &err);
        assert_int_equal(g->n_shards, 3);
        assert_int_equal(g->n_tensors, 2);
        assert_int_equal(st_gguf_tensor(g, "c")->shard, 2);
        assert_int_equal(st_gguf_tensor(g, "b")->shard, 1);
        assert_memory_equal(st_gguf_tensor(g, "c")->data, "8 bytes!", 8);
        assert_non_null(st_gguf_key(g, "only.in.first"));
        assert_string_equal(g->path, work_path(names[0]));
        st_gguf_close(g);
    }
}

static void shards_that_do_not_belong_together_are_refused(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_gguf *g;
    const char *a = "w-00001-of-00002.gguf", *b = "w-00002-of-00002.gguf";
    write_shard(work_path(a), 0, 2, 2, "a");
    assert_int_equal(st_gguf_open(work_path(a), &g, &err), STRATA_E_IO);
    assert_non_null(strstr(err.text, b));
    static const struct {
        unsigned no, count;
        int total;
        const char *tensor, *names;
    } cases[] = {
        {0, 2, 2, "b", "shard 1 of 2"},   {1, 3, 2, "b", "shard 2 of 3"},       {1, 2, 2, "a", "tensor a stands twice"},
        {2, 2, 2, "b", "shard 3 of 2"},   {1, 2, 2, NULL, "split.tensors.count"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_shard(work_path(b), cases[i].no, cases[i].count, cases[i].total, cases[i].tensor);
        assert_int_equal(st_gguf_open(work_path(a), &g, &err), STRATA_E_FORMAT);
        if (!strstr(err.text, cases[i].names))
            fail_msg("expected '%s': %s", cases[i].names, err.text);
    }
    write_shard(work_path("renamed.gguf"), 0, 2, 2, "a");
    assert_int_equal(st_gguf_open(work_path("renamed.gguf"), &g, &err), STRATA_E_FORMAT);
    assert_non_null(strstr(err.text, "its name does not end in"));
    write_shard(work_path("many.gguf"), 0, 65535, 2, "a");
    assert_int_equal(st_gguf_open(work_path("many.gguf"), &g, &err), STRATA_E_LIMIT);
}

static enum strata_result fill_short(void *user, struct st_out *out, struct strata_error *err)
{
    (void)user;
    return st_out_write(out, "abc", 3, err);
}

static void a_writer_that_fails_leaves_no_file(void **state)
{
    (void)state;
    struct strata_error err;
    const char *path = work_path("never.gguf");
    for (int i = 0; i < 6; i++) {
        struct st_gguf_writer *w;
        assert_ok(st_gguf_writer_create(&w, &err), &err);
        if (i == 0) {
            st_gguf_set_u32(w, "twice", 1);
            st_gguf_set_u32(w, "twice", 2);
        } else if (i == 1) {
            st_gguf_add_tensor(w, "odd", ST_TYPE_Q8_0, 1, (const uint64_t[]){33}, NULL, NULL);
        } else if (i == 2) {
            st_gguf_add_tensor(w, "big", ST_TYPE_F32, 2, (const uint64_t[]){UINT64_MAX / 4, 8}, NULL, NULL);
        } else if (i == 3) {
            st_gguf_add_tensor(w, "short", ST_TYPE_F32, 1, four, fill_short, NULL);
        } else if (i == 4) {
            st_gguf_add_tensor(w, "same", ST_TYPE_F32, 1, four, NULL, NULL);
            st_gguf_add_tensor(w, "same", ST_TYPE_F32, 1, four, NULL, NULL);
        } else {
            st_gguf_add_tensor(w, "type", 4, 1, four, NULL, NULL);
        }
        assert_int_not_equal(st_gguf_writer_save(w, path, &err), STRATA_OK);
        assert_int_not_equal(access(path, F_OK), 0);
        st_gguf_writer_free(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers_that_lie_are_refused),
        cmocka_unit_test(keys_that_lie_are_named),
        cmocka_unit_test(tensors_that_lie_are_named),
        cmocka_unit_test(gaps_between_tensors_and_missing_padding_are_accepted),
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(integers_are_read_from_every_type_that_holds_them),
        cmocka_unit_test(every_cut_and_every_flipped_bit_ends_in_a_result),
        cmocka_unit_test(shards_are_found_from_any_of_them),
        cmocka_unit_test(shards_that_do_not_belong_together_are_refused),
        cmocka_unit_test(a_writer_that_fails_leaves_no_file),
    };
    return cmocka_run_group_tests(tests, make_work, remove_work);
}
