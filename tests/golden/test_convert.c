/* Conversion of the miniature model: equal to the reference's own GGUF files, in every naming and layout of a checkpoint,
 * and one clear line without output for broken ones. */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "format/gguf.h"
#include "format/quant.h"
#include "format/safetensors.h"
#include "model/convert.h"

enum { LINE = 512, MAX_TENSORS = 1024 };

static char model_dir[512], work_dir[512];

static uint32_t crc32_of(const uint8_t *p, size_t n)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
}

static const char *work_path(const char *name)
{
    static char paths[8][600];
    static int next;
    char *p = paths[next++ % 8];
    snprintf(p, sizeof paths[0], "%s/%s", work_dir, name);
    return p;
}

static enum strata_result convert(const char *dir, const char *out, const char *mtp, enum st_convert_type type,
                                  struct st_convert_report *report, struct strata_error *err)
{
    struct st_convert_options o = {.dir = dir, .out = out, .mtp_out = mtp, .type = type, .name = "tiny random qwen4exp"};
    return st_convert(&o, report, err);
}

/* Compares a file with the lines that describe the reference's file. */
static void assert_same_as_list(const char *gguf, const char *list)
{
    struct strata_error err;
    struct st_gguf *g;
    char path[600], line[LINE], name[LINE], shape[LINE];
    snprintf(path, sizeof path, "%s/tests/golden/data/%s", getenv("STRATA_TEST_SOURCE"), list);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_ok(st_gguf_open(gguf, &g, &err), &err);
    size_t keys = 0, tensors = 0, value = 0;
    const struct st_gguf_tensor *last = NULL;
    while (fgets(line, sizeof line, f)) {
        unsigned type, element, crc;
        float v;
        if (sscanf(line, "key %s %u %u %x", name, &type, &element, &crc) == 4) {
            const struct st_gguf_key *k = st_gguf_key(g, name);
            keys++;
            if (!k || k->type != type || k->element != element)
                fail_msg("key %s is missing or of another type", name);
            if (strcmp(name, "general.name") && crc32_of(k->data, k->bytes) != crc)
                fail_msg("key %s has another value", name);
        } else if (sscanf(line, "tensor %s %s %x", name, shape, &crc) == 3) {
            last = st_gguf_tensor(g, name);
            tensors++;
            value = 0;
            if (!last || last->type != ST_TYPE_F32)
                fail_msg("tensor %s is missing or not F32", name);
            char own[LINE];
            size_t at = 0;
            for (uint32_t i = 0; i < last->n_dims; i++)
                at += (size_t)snprintf(own + at, sizeof own - at, "%s%llu", i ? "," : "", (unsigned long long)last->ne[i]);
            assert_string_equal(own, shape);
            if (!strstr(name, "ssm_a") && crc32_of(last->data, last->bytes) != crc)
                fail_msg("tensor %s has other values", name);
            if (strstr(name, "ssm_alpha") && crc32_of(last->data, last->bytes) != crc)
                fail_msg("tensor %s has other values", name);
        } else if (sscanf(line, "value %g", &v) == 1) {
            const float own = ((const float *)last->data)[value++];
            if (!(fabsf(own - v) <= 0x1p-23f * fabsf(v)))
                fail_msg("tensor %s: entry %zu is %.9g, not %.9g", last->name, value - 1, (double)own, (double)v);
        } else {
            fail_msg("unknown line: %s", line);
        }
    }
    fclose(f);
    assert_int_equal(keys, g->n_keys);
    assert_int_equal(tensors, g->n_tensors);
    st_gguf_close(g);
}

static void conversion_equals_the_reference_files(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_convert_report report;
    const char *out = work_path("f32.gguf"), *mtp = work_path("mtp.gguf");
    assert_ok(convert(model_dir, out, mtp, ST_CONVERT_F32, &report, &err), &err);
    assert_int_equal(report.tensors, 138);
    assert_int_equal(report.mtp_tensors, 32);
    assert_int_equal(report.left_out_mtp, 0);
    assert_same_as_list(out, "tiny-f32.txt");
    assert_same_as_list(mtp, "tiny-mtp-f32.txt");
}

static void draft_layer_that_nobody_asked_for_is_counted(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_convert_report report;
    assert_ok(convert(model_dir, work_path("trunk.gguf"), NULL, ST_CONVERT_F32, &report, &err), &err);
    assert_int_equal(report.left_out_mtp, 31);
    assert_int_equal(report.mtp_tensors, 0);
}

static void bf16_files_hold_the_same_values_as_f32_files(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_convert_report report;
    struct st_gguf *a, *b;
    const char *wide = work_path("wide.gguf"), *narrow = work_path("narrow.gguf");
    assert_ok(convert(model_dir, wide, NULL, ST_CONVERT_F32, &report, &err), &err);
    assert_ok(convert(model_dir, narrow, NULL, ST_CONVERT_SOURCE, &report, &err), &err);
    assert_ok(st_gguf_open(wide, &a, &err), &err);
    assert_ok(st_gguf_open(narrow, &b, &err), &err);
    assert_int_equal(a->n_tensors, b->n_tensors);
    size_t bf16 = 0;
    for (size_t i = 0; i < a->n_tensors; i++) {
        const struct st_gguf_tensor *x = &a->tensors[i], *y = st_gguf_tensor(b, x->name);
        size_t n = (size_t)st_gguf_elements(x);
        float *v = malloc(n * sizeof *v);
        st_type_info((int)y->type)->decode(y->data, v, n);
        assert_memory_equal(v, x->data, n * sizeof *v);
        free(v);
        bf16 += y->type == ST_TYPE_BF16;
        if (x->n_dims == 1 || strstr(x->name, "ffn_gate_inp") || strstr(x->name, "conv1d"))
            assert_int_equal(y->type, ST_TYPE_F32);
        else
            assert_int_equal(y->type, ST_TYPE_BF16);
    }
    assert_true(bf16 > 60);
    st_gguf_close(a);
    st_gguf_close(b);
}

/* ---- variants of the checkpoint ---- */

/* A checkpoint in memory that tests rename, join, split and break. Names and data are owned. */
struct checkpoint {
    struct st_safetensor_out tensors[MAX_TENSORS];
    size_t count;
};

static void add(struct checkpoint *c, const char *name, enum st_dtype dtype, uint32_t n_dims, const uint64_t *shape,
                const void *data, size_t bytes)
{
    struct st_safetensor_out *t = &c->tensors[c->count++];
    void *copy = malloc(bytes + 1);
    assert_true(c->count <= MAX_TENSORS && copy);
    memcpy(copy, data, bytes);
    *t = (struct st_safetensor_out){.name = strdup(name), .dtype = dtype, .n_dims = n_dims, .data = copy};
    memcpy(t->shape, shape, n_dims * sizeof *shape);
}

static void load(struct checkpoint *c, const char *file)
{
    struct strata_error err;
    struct st_safetensors *s;
    char path[700];
    snprintf(path, sizeof path, "%s/%s", model_dir, file);
    assert_ok(st_safetensors_create(&s, &err), &err);
    assert_ok(st_safetensors_add(s, path, &err), &err);
    for (size_t i = 0; i < st_safetensors_count(s); i++) {
        const struct st_safetensor *t = st_safetensors_at(s, i);
        add(c, t->name, t->dtype, t->n_dims, t->shape, t->data, t->bytes);
    }
    st_safetensors_free(s);
}

static struct st_safetensor_out *find(struct checkpoint *c, const char *name)
{
    for (size_t i = 0; i < c->count; i++)
        if (!strcmp(c->tensors[i].name, name))
            return &c->tensors[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

static void drop(struct checkpoint *c, const char *name)
{
    struct st_safetensor_out *t = find(c, name);
    free((char *)t->name);
    free((void *)t->data);
    *t = c->tensors[--c->count];
}

static void release(struct checkpoint *c)
{
    while (c->count)
        drop(c, c->tensors[c->count - 1].name);
    free(c);
}

static void rename_prefix(struct checkpoint *c, const char *from, const char *to)
{
    for (size_t i = 0; i < c->count; i++) {
        const char *old = c->tensors[i].name;
        if (strncmp(old, from, strlen(from)))
            continue;
        char name[300];
        snprintf(name, sizeof name, "%s%s", to, old + strlen(from));
        free((char *)old);
        c->tensors[i].name = strdup(name);
    }
}

/* Joins the experts of one layer to gate_up_proj and down_proj. */
static void fuse_experts(struct checkpoint *c, const char *layer)
{
    static const char *const parts[] = {"gate", "up", "down"};
    enum { EXPERTS = 16, MATRIX = 64 * 128 };
    uint16_t *gate_up = malloc(EXPERTS * 2 * MATRIX * 2), *down = malloc(EXPERTS * MATRIX * 2);
    char name[300];
    for (int e = 0; e < EXPERTS; e++)
        for (int p = 0; p < 3; p++) {
            snprintf(name, sizeof name, "%s.mlp.experts.%d.%s_proj.weight", layer, e, parts[p]);
            memcpy(p == 2 ? down + e * MATRIX : gate_up + (2 * e + p) * MATRIX, find(c, name)->data, MATRIX * 2);
            drop(c, name);
        }
    snprintf(name, sizeof name, "%s.mlp.experts.gate_up_proj", layer);
    add(c, name, ST_DTYPE_BF16, 3, (const uint64_t[]){EXPERTS, 128, 128}, gate_up, EXPERTS * 2 * MATRIX * 2);
    snprintf(name, sizeof name, "%s.mlp.experts.down_proj", layer);
    add(c, name, ST_DTYPE_BF16, 3, (const uint64_t[]){EXPERTS, 128, 64}, down, EXPERTS * MATRIX * 2);
    free(gate_up);
    free(down);
}

static void copy_file(const char *name, const char *dir)
{
    char from[700], to[700], *text;
    size_t size;
    struct strata_error err;
    struct st_out out;
    snprintf(from, sizeof from, "%s/%s", model_dir, name);
    snprintf(to, sizeof to, "%s/%s", dir, name);
    assert_ok(st_read_file(from, 1 << 20, &text, &size, &err), &err);
    assert_ok(st_out_open(to, &out, &err), &err);
    assert_ok(st_out_write(&out, text, size, &err), &err);
    assert_ok(st_out_commit(&out, &err), &err);
    free(text);
}

/* A folder with the checkpoint and copies of the other files; returns its path. */
static const char *write_folder(const struct checkpoint *c, const char *name)
{
    struct strata_error err;
    char path[700];
    const char *dir = work_path(name);
    mkdir(dir, 0777);
    copy_file("config.json", dir);
    copy_file("tokenizer.json", dir);
    copy_file("tokenizer_config.json", dir);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_ok(st_safetensors_save(path, c->tensors, c->count, &err), &err);
    return dir;
}

static void change_config(const char *dir, void (*change)(json_t *root))
{
    struct strata_error err;
    char path[700];
    json_t *root;
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_ok(st_json_read(path, 1 << 20, &root, &err), &err);
    change(root);
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
}

/* What a text-only checkpoint looks like: the text configuration on top, which keeps the image token for this test. */
static void text_only(json_t *root)
{
    json_t *text = json_incref(json_object_get(root, "text_config")), *image = json_incref(json_object_get(root, "image_token_id"));
    json_object_clear(root);
    json_object_update(root, text);
    json_object_set_new(root, "image_token_id", image);
    json_decref(text);
}

static void every_layout_of_a_checkpoint_gives_the_same_file(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_convert_report report;
    struct checkpoint *c = calloc(1, sizeof *c);
    load(c, "model.safetensors");
    load(c, "mtp.safetensors");
    rename_prefix(c, "model.language_model.", "model.");
    fuse_experts(c, "model.layers.0");
    fuse_experts(c, "model.layers.3");
    drop(c, "model.layers.1.ple.ple_embedding.layer_multipliers");
    drop(c, "model.layers.1.ple.ple_embedding.ngram_heads_offsets");
    drop(c, "model.layers.1.ple.ple_embedding.ngram_heads_vocab_sizes");
    const char *dir = write_folder(c, "variant"), *out = work_path("variant.gguf"), *mtp = work_path("variant-mtp.gguf");
    change_config(dir, text_only);
    assert_ok(convert(dir, out, mtp, ST_CONVERT_F32, &report, &err), &err);
    assert_same_as_list(out, "tiny-f32.txt");
    assert_same_as_list(mtp, "tiny-mtp-f32.txt");
    release(c);
}

/* ---- broken checkpoints ---- */

static void assert_refused(const char *dir, enum strata_result code, const char *names)
{
    struct strata_error err;
    struct st_convert_report report;
    const char *out = work_path("refused.gguf");
    enum strata_result r = convert(dir, out, NULL, ST_CONVERT_SOURCE, &report, &err);
    if (r != code || !strstr(err.text, names))
        fail_msg("%s, expected %s with '%s': %s", strata_result_name(r), strata_result_name(code), names, err.text);
    assert_int_not_equal(access(out, F_OK), 0);
}

static void broken_tensors_are_named_and_leave_no_file(void **state)
{
    (void)state;
    struct checkpoint *c = calloc(1, sizeof *c);
    const char *q = "model.language_model.layers.3.self_attn.q_proj.weight";
    load(c, "model.safetensors");

    struct st_safetensor_out *t = find(c, q);
    t->shape[0] = 256;
    t->shape[1] = 256;
    assert_refused(write_folder(c, "shape"), STRATA_E_MODEL, q);
    t->shape[0] = 512;
    t->shape[1] = 128;

    t->dtype = ST_DTYPE_I16;
    assert_refused(write_folder(c, "dtype"), STRATA_E_UNSUPPORTED, "I16");
    t->dtype = ST_DTYPE_BF16;

    uint16_t *values = (uint16_t *)t->data, saved = values[1000];
    values[1000] = 0x7fc0;
    assert_refused(write_folder(c, "nan"), STRATA_E_FORMAT, "blk.3.attn_q.weight");
    values[1000] = saved;

    add(c, "model.language_model.layers.0.surprise", ST_DTYPE_BF16, 1, (const uint64_t[]){1}, values, 2);
    assert_refused(write_folder(c, "surplus"), STRATA_E_MODEL, "layers.0.surprise");
    drop(c, "model.language_model.layers.0.surprise");

    drop(c, "model.language_model.layers.4.mlp.experts.7.up_proj.weight");
    assert_refused(write_folder(c, "missing"), STRATA_E_MODEL, "layers.4.mlp.experts.7.up_proj.weight");
    release(c);
}

static void silu_gate(json_t *root)
{
    json_object_set_new(json_object_get(root, "text_config"), "output_gate_type", json_string("silu"));
}

static void no_layers(json_t *root)
{
    json_object_set_new(json_object_get(root, "text_config"), "num_hidden_layers", json_integer(0));
}

static void other_model(json_t *root)
{
    json_object_set_new(root, "model_type", json_string("mistral"));
}

static void text_instead_of_number(json_t *root)
{
    json_object_set_new(json_object_get(root, "text_config"), "hidden_size", json_string("128"));
}

static void small_vocabulary(json_t *root)
{
    json_object_set_new(json_object_get(root, "text_config"), "vocab_size", json_integer(599));
}

static void settings_that_cannot_be_served_are_named(void **state)
{
    (void)state;
    struct checkpoint *c = calloc(1, sizeof *c);
    load(c, "model.safetensors");
    static const struct {
        void (*change)(json_t *);
        enum strata_result code;
        const char *names;
    } cases[] = {
        {silu_gate, STRATA_E_UNSUPPORTED, "output_gate_type"},
        {no_layers, STRATA_E_FORMAT, "num_hidden_layers"},
        {other_model, STRATA_E_UNSUPPORTED, "mistral"},
        {text_instead_of_number, STRATA_E_FORMAT, "hidden_size"},
        {small_vocabulary, STRATA_E_MODEL, "lm_head.weight"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *dir = write_folder(c, "settings");
        change_config(dir, cases[i].change);
        assert_refused(dir, cases[i].code, cases[i].names);
    }
    release(c);
}

static void a_folder_without_tokenizer_is_refused_unless_allowed(void **state)
{
    (void)state;
    struct strata_error err;
    struct st_convert_report report;
    struct st_gguf *g;
    struct checkpoint *c = calloc(1, sizeof *c);
    load(c, "model.safetensors");
    const char *dir = write_folder(c, "mute"), *out = work_path("mute.gguf");
    char path[700];
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    unlink(path);
    assert_refused(dir, STRATA_E_MODEL, "tokenizer.json");
    struct st_convert_options o = {.dir = dir, .out = out, .no_tokenizer = true};
    assert_ok(st_convert(&o, &report, &err), &err);
    assert_ok(st_gguf_open(out, &g, &err), &err);
    assert_null(st_gguf_key(g, "tokenizer.ggml.tokens"));
    st_gguf_close(g);
    release(c);
}

static int set_up(void **state)
{
    (void)state;
    const char *build = getenv("STRATA_TEST_BUILD");
    snprintf(model_dir, sizeof model_dir, "%s/tests/golden/tiny-model", build);
    snprintf(work_dir, sizeof work_dir, "%s/tests/golden/convert.XXXXXX", build);
    return mkdtemp(work_dir) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    char command[600];
    snprintf(command, sizeof command, "rm -r '%s'", work_dir);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversion_equals_the_reference_files),
        cmocka_unit_test(draft_layer_that_nobody_asked_for_is_counted),
        cmocka_unit_test(bf16_files_hold_the_same_values_as_f32_files),
        cmocka_unit_test(every_layout_of_a_checkpoint_gives_the_same_file),
        cmocka_unit_test(broken_tensors_are_named_and_leave_no_file),
        cmocka_unit_test(settings_that_cannot_be_served_are_named),
        cmocka_unit_test(a_folder_without_tokenizer_is_refused_unless_allowed),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
