/* src/format/safetensors: what is written is read back; headers, indexes and JSON that lie end in one message that names
 * the file and the tensor. */
#include "test.h"

#include "golden/fixture.h"

#include "base/json.h"
#include "format/safetensors.h"

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* Reads a file made of this header and n bytes of data, in memory of exactly its size. */
static enum strata_result open_header(const char *header, size_t n, struct strata_error *err)
{
    struct st_safetensors *s;
    uint64_t size = strlen(header);
    uint8_t *file = calloc(1, 8 + size + n);
    memcpy(file, &size, 8);
    memcpy(file + 8, header, size);
    assert_ok(st_safetensors_create(&s, err), err);
    enum strata_result r = st_safetensors_add_memory(s, file, 8 + size + n, "m.safetensors", err);
    st_safetensors_free(s);
    free(file);
    return r;
}

static void assert_refused(const char *header, size_t n, enum strata_result code, const char *names)
{
    struct strata_error err = {0};
    enum strata_result r = open_header(header, n, &err);
    if (r != code || !strstr(err.text, names) || !strstr(err.text, "m.safetensors"))
        fail_msg("%s, expected %s with '%s': %s", strata_result_name(r), strata_result_name(code), names, err.text);
}

static void headers_that_lie_are_named(void **state)
{
    (void)state;
    struct strata_error err;
    assert_ok(open_header("{}", 0, &err), &err);
    assert_ok(open_header("{\"__metadata__\":{\"format\":\"pt\"},\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
                          &err), &err);
    assert_ok(open_header("{\"empty\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[4,4]}}", 4, &err), &err);
    assert_refused("[]", 0, STRATA_E_FORMAT, "no JSON object");
    assert_refused("{\"t\":", 0, STRATA_E_FORMAT, "JSON");
    assert_refused("{\"t\":1}", 0, STRATA_E_FORMAT, "tensor t");
    assert_refused("{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7, STRATA_E_FORMAT, "tensor t: bytes 0 to 8");
    assert_refused("{\"t\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8, STRATA_E_FORMAT, "tensor t: 3 elements");
    assert_refused("{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, STRATA_E_FORMAT, "tensor t: bytes 8 to 0");
    assert_refused("{\"t\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, STRATA_E_UNSUPPORTED, "unknown dtype 'F4'");
    assert_refused("{\"t\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, STRATA_E_FORMAT, "dimension 0");
    assert_refused("{\"t\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]}}", 8, STRATA_E_FORMAT,
                   "dimension 1");
    assert_refused("{\"t\":{\"dtype\":\"F32\",\"shape\":[2147483648,2147483649],\"data_offsets\":[0,8]}}", 8, STRATA_E_FORMAT,
                   "do not make 8 bytes");
    assert_refused("{\"t\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, STRATA_E_LIMIT, "9 dimensions");
    assert_refused("{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8, STRATA_E_FORMAT, "data_offsets");
    assert_refused("{\"t\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, STRATA_E_FORMAT, "shape is missing");
    assert_refused("{\"t\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"u\":{\"dtype\":\"U8\",\"shape\":[4],"
                   "\"data_offsets\":[3,7]}}", 8, STRATA_E_FORMAT, "tensors t and u overlap");
    assert_refused("{\"t\":{},\"t\":{}}", 0, STRATA_E_FORMAT, "duplicate");
    assert_refused("{\"a\\u001b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, STRATA_E_FORMAT, "a\\x1b");
}

static void deep_json_is_refused_without_running_out_of_stack(void **state)
{
    (void)state;
    enum { DEPTH = 100000 };
    struct strata_error err;
    json_t *root;
    char *text = malloc(DEPTH + 1);
    memset(text, '[', DEPTH);
    text[DEPTH] = 0;
    assert_int_equal(st_json_parse(text, DEPTH, "deep", &root, &err), STRATA_E_FORMAT);
    free(text);
}

static void lengths_that_lie_are_refused(void **state)
{
    (void)state;
    struct strata_error err;
    static const uint64_t lengths[] = {0, 1, 3, 1000, UINT64_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        struct st_safetensors *s;
        uint8_t file[10] = {0, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
        memcpy(file, &lengths[i], 8);
        assert_ok(st_safetensors_create(&s, &err), &err);
        assert_int_equal(st_safetensors_add_memory(s, file, sizeof file, "m", &err), STRATA_E_FORMAT);
        st_safetensors_free(s);
    }
    for (size_t n = 0; n < 8; n++) {
        struct st_safetensors *s;
        assert_ok(st_safetensors_create(&s, &err), &err);
        assert_int_equal(st_safetensors_add_memory(s, "\2\0\0\0\0\0\0\0", n, "m", &err), STRATA_E_FORMAT);
        st_safetensors_free(s);
    }
}

static void write_sample(const char *path, const char *a, const char *b)
{
    struct strata_error err;
    static const float values[6] = {1, 2, 3, 4, 5, 6};
    static const uint16_t halves[4] = {0x3f80, 0xc000, 0x3f00, 0};
    const struct st_safetensor_out tensors[] = {
        {.name = a, .dtype = ST_DTYPE_F32, .n_dims = 2, .shape = {2, 3}, .data = values},
        {.name = b, .dtype = ST_DTYPE_BF16, .n_dims = 1, .shape = {4}, .data = halves},
    };
    assert_ok(st_safetensors_save(path, tensors, 2, &err), &err);
}

static void what_is_written_is_read_back(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_safetensors *s;
    float v[6];
    write_sample(work_path("one.safetensors"), "wide", "narrow");
    assert_ok(st_safetensors_create(&s, &err), &err);
    assert_ok(st_safetensors_add(s, work_path("one.safetensors"), &err), &err);
    assert_int_equal(st_safetensors_count(s), 2);
    const struct st_safetensor *t = st_safetensors_find(s, "wide");
    assert_true(t->n_dims == 2 && t->shape[0] == 2 && t->shape[1] == 3 && t->elements == 6 && t->bytes == 24);
    assert_true(st_safetensor_floats(t, 3, 3, v));
    assert_true(v[0] == 4 && v[2] == 6);
    assert_true(st_safetensor_floats(st_safetensors_find(s, "narrow"), 0, 4, v));
    assert_true(v[0] == 1 && v[1] == -2 && v[2] == 0.5f && v[3] == 0);
    assert_null(st_safetensors_find(s, "absent"));
    st_safetensors_free(s);
}

static enum strata_result open_index(const char *json, struct strata_error *err)
{
    struct st_safetensors *s;
    write_text(work_path("model.safetensors.index.json"), json);
    assert_ok(st_safetensors_create(&s, err), err);
    enum strata_result r = st_safetensors_add_index(s, work_path("model.safetensors.index.json"), err);
    st_safetensors_free(s);
    return r;
}

static void indexes_that_lie_are_refused(void **state)
{
    (void)state;
    struct strata_error err;
    write_sample(work_path("i1.safetensors"), "a", "b");
    write_sample(work_path("i2.safetensors"), "c", "d");
    write_sample(work_path("i3.safetensors"), "a", "e");
    assert_ok(open_index("{\"weight_map\":{\"a\":\"i1.safetensors\",\"b\":\"i1.safetensors\",\"c\":\"i2.safetensors\"}}", &err), &err);
    static const struct {
        const char *json, *names;
    } cases[] = {
        {"{\"weight_map\":{\"c\":\"i1.safetensors\"}}", "tensor c"},
        {"{\"weight_map\":{\"a\":\"i1.safetensors\",\"e\":\"i3.safetensors\"}}", "tensor a stands in"},
        {"{\"weight_map\":{\"a\":\"../i1.safetensors\"}}", "no plain file name"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "no plain file name"},
        {"{\"weight_map\":{\"a\":\"\"}}", "no plain file name"},
        {"{\"weight_map\":{\"a\":7}}", "no file name"},
        {"{\"weights\":{}}", "weight_map is missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(open_index(cases[i].json, &err), STRATA_E_FORMAT);
        if (!strstr(err.text, cases[i].names))
            fail_msg("expected '%s': %s", cases[i].names, err.text);
    }
    assert_int_equal(open_index("{\"weight_map\":{\"a\":\"gone.safetensors\"}}", &err), STRATA_E_IO);
}

static void json_members_are_checked_for_kind_and_named(void **state)
{
    (void)state;
    struct strata_error err;
    const char *text = "{\"n\":7,\"whole\":7.0,\"part\":7.5,\"minus\":-1,\"s\":\"x\",\"b\":true,\"nil\":null,\"o\":{},\"a\":[]}";
    json_t *root;
    assert_ok(st_json_parse(text, strlen(text), "file", &root, &err), &err);
    struct st_json j = {root, "file"};
    uint64_t u = 0;
    double f = 0;
    bool b = false;
    const char *s = NULL;
    const json_t *v;
    assert_ok(st_json_u64(j, "n", &u, &err), &err);
    assert_ok(st_json_u64(j, "whole", &u, &err), &err);
    assert_int_equal(u, 7);
    assert_ok(st_json_f64(j, "n", &f, &err), &err);
    assert_ok(st_json_bool(j, "b", &b, &err), &err);
    assert_ok(st_json_text(j, "s", &s, &err), &err);
    assert_ok(st_json_object(j, "o", &v, &err), &err);
    assert_ok(st_json_array(j, "a", &v, &err), &err);
    assert_ok(st_json_u64_or(j, "nil", 5, &u, &err), &err);
    assert_int_equal(u, 5);
    assert_int_equal(st_json_u64(j, "part", &u, &err), STRATA_E_FORMAT);
    assert_int_equal(st_json_u64(j, "minus", &u, &err), STRATA_E_FORMAT);
    assert_int_equal(st_json_u64_or(j, "s", 1, &u, &err), STRATA_E_FORMAT);
    assert_int_equal(st_json_text(j, "absent", &s, &err), STRATA_E_FORMAT);
    assert_string_equal(err.text, "file: absent is missing");
    assert_int_equal(st_json_bool(j, "n", &b, &err), STRATA_E_FORMAT);
    assert_string_equal(err.text, "file: n is an integer where a bool is expected");
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers_that_lie_are_named),
        cmocka_unit_test(deep_json_is_refused_without_running_out_of_stack),
        cmocka_unit_test(lengths_that_lie_are_refused),
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(indexes_that_lie_are_refused),
        cmocka_unit_test(json_members_are_checked_for_kind_and_named),
    };
    return cmocka_run_group_tests(tests, make_work, remove_work);
}
