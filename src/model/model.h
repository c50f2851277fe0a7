/* What a model family offers to the engine: it reads hyper-parameters, binds tensors, says what memory a placement needs and
 * writes its forward pass as a list of commands. A family is one entry of the list in model.c. */
#ifndef ST_MODEL_MODEL_H
#define ST_MODEL_MODEL_H

#include "format/gguf.h"
#include "kernel/table.h"

struct st_model_dims {
    uint32_t layers;      /* of the trunk */
    uint32_t hidden;      /* floats of an input embedding */
    uint32_t wide;        /* floats of the residual that goes from layer to layer, per row */
    uint32_t vocabulary;  /* rows of the output */
    uint32_t embeddings;  /* rows of the token embedding: ids below it are valid inputs */
    uint32_t context;     /* trained context length */
    bool draft;           /* a draft layer is there */
    uint32_t experts;     /* of each layer, 0: none */
};

/* One contiguous arena, laid out by taking pieces. A bump with base NULL only counts. */
struct st_bump {
    uint8_t *base;
    uint64_t used, peak;
    bool overflow; /* a size did not fit in 64 bits: the whole layout is invalid */
};

/* count * size bytes, 64-byte aligned; NULL while counting. */
void *st_bump_take(struct st_bump *b, uint64_t count, uint64_t size);

/* Part of a sequence's state, the same place in every slot: base + slot * slot_stride. outer arrays, outer_stride apart,
 * of units of unit_bytes each. tokens_per_unit 0: a single unit whatever the length; otherwise n tokens fill
 * n / tokens_per_unit units. */
struct st_state_piece {
    uint8_t *base;
    uint64_t slot_stride, outer_stride, unit_bytes;
    uint32_t outer, tokens_per_unit;
};

struct st_placement {
    uint32_t slots, context; /* sequences, tokens each */
    uint32_t rows, out_rows; /* of one pass, at most */
    enum st_kv_type kv;
    bool hold; /* passes may hold rows (enum st_rows_mode): memory for what they keep */
    /* Bytes of a row of activations in the layout of the device that will run the program; NULL: st_act_bytes. */
    size_t (*act_bytes)(enum st_act form, size_t n);
};

enum st_part { ST_PART_TRUNK, ST_PART_DRAFT };

enum { ST_DESCRIPTOR_MAX = 256 };

/* A forward pass placed in memory. The rows, weights and model must outlive it. */
struct st_program {
    struct st_command *commands;
    size_t n_commands, commands_capacity;
    struct st_state_piece *pieces;
    size_t n_pieces, pieces_capacity;
    float *wide;      /* [rows][wide]: residual after the last layer */
    float *wide_in;   /* draft: [rows][wide] residual of the trunk that each row is paired with */
    float *logits;    /* [out_rows][vocabulary] */
    size_t worker_scratch; /* bytes of scratch that each worker needs */
    bool failed;      /* memory ran out while building */
    _Alignas(64) unsigned char spare_descriptor[ST_DESCRIPTOR_MAX];
    struct st_command spare; /* what st_program_add hands out after that */
    void **owned;            /* descriptors that commands point at; host memory */
    size_t n_owned, owned_capacity;
};
void st_program_free(struct st_program *p);
/* Appends a zeroed command; never NULL: on lack of memory the program is marked failed and must not be run. */
struct st_command *st_program_add(struct st_program *p, enum st_op op, int32_t layer);
void st_program_add_piece(struct st_program *p, struct st_state_piece piece);
/* Zeroed host memory of up to ST_DESCRIPTOR_MAX bytes that lives as long as the program, for structures that commands point
 * at. Never NULL: a failed program hands out a spare. */
void *st_program_describe(struct st_program *p, size_t size);

struct st_family;

struct st_model {
    const struct st_family *family;
    const struct st_gguf *gguf, *draft_gguf; /* the second may be NULL; both owned by the caller */
    void *data;                              /* the family's */
};

/* Puts the bytes of a weight or vector where a device's kernels read it, and gives that address. Bytes may be read up to
 * the next multiple of 16. */
typedef enum strata_result (*st_put_fn)(void *user, const char *name, const void *data, uint64_t bytes, const void **out,
                                        struct strata_error *err);

/* The same for a tensor of experts of g: nothing is copied. The bytes of expert e, t->bytes / experts of them, will lie at
 * *base + place e of *places, which becomes st_weight.places of the tensor's matrices. A layer's tensors come one after the
 * other, that of down last. */
typedef enum strata_result (*st_put_experts_fn)(void *user, const struct st_gguf *g, const struct st_gguf_tensor *t,
                                                uint32_t experts, const void **base, const void **places,
                                                struct strata_error *err);

struct st_model_options {
    uint32_t first, end; /* layers to bind; end 0: all of them. The embedding is always bound, the head with the last layer */
    st_put_fn put;       /* NULL: weights stay where the file has them. Embedding and n-gram table always do */
    st_put_experts_fn put_experts; /* NULL: experts are weights as all others */
    void *put_user;                /* of both */
    const struct st_gguf *ngram; /* file that has the n-gram table; NULL: the model's own. Outlives the model */
    bool fp32;                 /* FP32 activations for every weight */
    double yarn;               /* above 1: the context is extended by this factor (st_rope_extend) */
    int draft_norm_per_stream; /* -1: as the file says; 0 or 1 */
};

/* An n-gram table whose rows the engine fetches for every pass. */
struct st_ngram_table {
    const struct st_ngram_hash *hash; /* NULL: the model has no such table */
    const struct st_weight *table;
    const struct st_gguf *gguf;          /* file that has the table */
    const struct st_gguf_tensor *tensor; /* where it lies there */
    uint32_t layer;                      /* that takes its rows */
};

struct st_family {
    const char *architecture; /* general.architecture */
    enum strata_result (*open)(struct st_model *m, const struct st_model_options *o, struct strata_error *err);
    void (*close)(struct st_model *m);
    void (*dims)(const struct st_model *m, struct st_model_dims *out);
    void (*ngram)(const struct st_model *m, struct st_ngram_table *out); /* NULL: no family member has one */
    /* The token embedding in host memory, of the trunk or of the draft layer. */
    const struct st_weight *(*embedding)(const struct st_model *m, enum st_part part);
    /* Lays the pass out. state and scratch may be counting; p starts zeroed. rows is only pointed at. */
    enum strata_result (*place)(const struct st_model *m, enum st_part part, const struct st_placement *placement,
                                const struct st_rows *rows, struct st_bump *state, struct st_bump *scratch,
                                struct st_program *p, struct strata_error *err);
};

/* Chooses the family by general.architecture and opens it. draft: a file with the draft layer alone, or NULL. */
enum strata_result st_model_open(const struct st_gguf *g, const struct st_gguf *draft, const struct st_model_options *o,
                                 struct st_model *out, struct strata_error *err);
void st_model_close(struct st_model *m);

extern const struct st_family st_family_llama, st_family_qwen4exp;

#endif
