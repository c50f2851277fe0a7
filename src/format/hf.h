/* A Hugging Face model folder: its JSON files, its tokenizer in the form that GGUF metadata wants, and its tensors. Nothing
 * here knows a model; what the configuration means is the converter's business. */
#ifndef ST_FORMAT_HF_H
#define ST_FORMAT_HF_H

#include "base/bytes.h"
#include "base/json.h"
#include "format/safetensors.h"

struct st_hf {
    char *dir;
    /* NULL when the file is absent. The paths name them in messages and are always set. */
    json_t *config, *generation_config, *tokenizer, *tokenizer_config;
    char *config_path, *generation_config_path, *tokenizer_path, *tokenizer_config_path;
    char *template_file; /* text of chat_template.jinja, NULL when absent */
    struct st_safetensors *tensors; /* model.safetensors or all shards of its index, and every mtp*.safetensors beside it */
};

/* Opens a folder: config.json and tensors are required. Sizes and depths are limited; messages name the file. */
enum strata_result st_hf_open(const char *dir, struct st_hf **out, struct strata_error *err);
void st_hf_close(struct st_hf *hf);

/* Tokenizer of a model with count rows in its embedding. Ids that no token has are "[PADn]" of type 5 (unused). */
struct st_hf_tokenizer {
    struct st_bytes *tokens; /* count entries; texts live as long as the folder and this */
    int32_t *types;          /* count entries: 1 normal, 3 special added, 4 other added, 5 unused */
    size_t count;
    struct st_bytes *merges; /* "left right", best rank first */
    size_t merge_count;
    const char *pre;         /* name of the pre-tokenizer: qwen35, qwen2, llama-bpe, smollm or gpt2 */
    int64_t bos, eos, pad;   /* -1: not given */
    bool add_bos;
    char *memory;            /* of the texts made here */
};

/* Reads tokenizer.json (byte-level BPE only), and bos, eos and pad from tokenizer_config.json, generation_config.json and
 * config.json, in this order; add_bos from tokenizer_config.json, or from the tokenizer's post_processor. Checks that ids are
 * unique and below count and that merges join tokens to tokens. */
enum strata_result st_hf_read_tokenizer(const struct st_hf *hf, uint64_t count, struct st_hf_tokenizer *out,
                                        struct strata_error *err);
void st_hf_tokenizer_free(struct st_hf_tokenizer *t);

/* The chat template: chat_template.jinja, or chat_template of tokenizer_config.json (a text, or the one named "default" of a
 * list). *out is NULL when there is none and lives as long as hf. */
enum strata_result st_hf_chat_template(const struct st_hf *hf, const char **out, struct strata_error *err);

#endif
