/* From a Hugging Face model folder to GGUF files: one entry point for every model family that can be converted. */
#ifndef ST_MODEL_CONVERT_H
#define ST_MODEL_CONVERT_H

#include "base/result.h"

/* Type of matrices in the output. Vectors, routers and convolution kernels are always F32. */
enum st_convert_type {
    ST_CONVERT_SOURCE, /* as in the source: BF16, F16 or F32; F32 for a tensor whose parts differ */
    ST_CONVERT_F32,
    ST_CONVERT_F16,
    ST_CONVERT_BF16,
};

struct st_convert_options {
    const char *dir;     /* the folder */
    const char *out;     /* the trunk's GGUF file */
    const char *mtp_out; /* the draft layer's file; NULL: its tensors are left out */
    enum st_convert_type type;
    const char *name;  /* general.name; NULL: the folder's name */
    bool no_tokenizer; /* a folder without tokenizer.json is accepted; the file then works with token ids only */
    /* Called before each tensor is written; may be NULL. */
    void (*progress)(void *user, const char *tensor, size_t done, size_t total);
    void *user;
};

struct st_convert_report {
    const char *family;          /* "qwen4exp", "llama"; static */
    size_t tensors, mtp_tensors; /* written */
    size_t left_out_vision, left_out_mtp; /* source tensors that no output holds */
};

/* Works tensor by tensor in little memory; each output appears whole or not at all. STRATA_E_UNSUPPORTED: a model type or a
 * setting that the output cannot express; STRATA_E_MODEL: tensors that are missing, left over or of the wrong shape. */
enum strata_result st_convert(const struct st_convert_options *options, struct st_convert_report *report,
                              struct strata_error *err);

#endif
