/* A tokenizer.json from anywhere: reading it, building a tokenizer, and text through it and back. */
#include <stdlib.h>
#include <string.h>

#include "format/hf.h"
#include "text/nfc.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void through_and_back(const struct st_tokenizer *t, const char *text, size_t size)
{
    struct strata_error err;
    struct st_ids ids = {0};
    char *normal, back[1024];
    size_t used = 0, normal_size = size;
    if (st_tokenizer_encode(t, text, size, false, &ids, &err) || st_nfc(text, size, &normal, &normal_size, &err)) {
        st_ids_free(&ids);
        return;
    }
    for (size_t i = 0; i < ids.count; i++) {
        struct st_bytes b = st_tokenizer_bytes(t, ids.data[i], true);
        if (used + b.size > sizeof back)
            abort();
        memcpy(back + used, b.data, b.size);
        used += b.size;
    }
    /* The pre-tokenizer's name decides whether text is normalised. */
    bool same = used == size && memcmp(back, text, size) == 0;
    bool same_normal = normal && used == normal_size && memcmp(back, normal, used) == 0;
    if (!same && !same_normal)
        abort();
    free(normal);
    st_ids_free(&ids);
}

static void use(const struct st_tokenizer *t)
{
    static const char text[] = "Hello e\xCC\x81 \xE6\x97\xA5 12345\n\n  don't <|im_end|><think>";
    struct strata_error err;
    struct st_ids ids = {0};
    struct st_decoder d;
    struct st_bytes out;
    through_and_back(t, text, sizeof text - 1);
    if (!st_tokenizer_encode(t, text, sizeof text - 1, true, &ids, &err)) {
        st_decoder_init(&d, t, true);
        for (size_t i = 0; i < ids.count; i++) {
            if (ids.data[i] < 0 || (size_t)ids.data[i] >= st_tokenizer_count(t))
                abort();
            if (st_decoder_push(&d, ids.data[i], &out, &err))
                break;
        }
        st_decoder_finish(&d, &out, &err);
        st_decoder_free(&d);
    }
    st_ids_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct strata_error err;
    char name[] = "fuzz";
    struct st_hf hf = {.dir = name,
                       .config_path = name,
                       .generation_config_path = name,
                       .tokenizer_path = name,
                       .tokenizer_config_path = name};
    struct st_hf_tokenizer read;
    if (st_json_parse((const char *)data, size, name, &hf.tokenizer, &err))
        return 0;
    hf.config = json_object();
    if (!st_hf_read_tokenizer(&hf, 700, &read, &err)) {
        struct st_vocab v = {.tokens = read.tokens,
                             .types = read.types,
                             .count = read.count,
                             .merges = read.merges,
                             .merge_count = read.merge_count,
                             .pre = read.pre,
                             .bos = (int32_t)read.bos,
                             .eos = (int32_t)read.eos,
                             .eot = -1,
                             .pad = (int32_t)read.pad,
                             .add_bos = read.add_bos};
        struct st_tokenizer *t;
        if (!st_tokenizer_create(&v, &t, &err)) {
            use(t);
            st_tokenizer_free(t);
        }
        st_hf_tokenizer_free(&read);
    }
    json_decref(hf.config);
    json_decref(hf.tokenizer);
    return 0;
}
