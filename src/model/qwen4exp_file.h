/* What a qwen4exp GGUF file holds: sizes, tensors by name and shape, keys by name and type. Shared by the converter, which
 * fills it from a checkpoint, and the generator of random models. Source: the project's description of the architecture,
 * sections 1, 2.4.2, 7.1 and 7.5. */
#ifndef ST_MODEL_QWEN4EXP_FILE_H
#define ST_MODEL_QWEN4EXP_FILE_H

#include "format/gguf_write.h"

enum { Q4E_MAX_LAYERS = 1024, Q4E_MAX_NGRAM_HEADS = 256, Q4E_MAX_NGRAM = 8 };

/* Sizes by name, so that the tables below can speak of them. */
enum q4e_dim {
    D_NONE, /* the tensor has no such dimension */
    D_ONE,
    D_N,          /* hidden */
    D_WIDE,       /* streams x hidden */
    D_RANK,       /* of the gated residual */
    D_STREAMS,
    D_VOCAB,
    D_EXPERTS,
    D_EXPERT_FF,
    D_EXPERT_FF2, /* gate and up rows together */
    D_SHARED_FF,
    D_GDN_QKV,
    D_GDN_V,
    D_GDN_HEADS,
    D_GDN_HEAD_DIM,
    D_GDN_TAPS,
    D_ATTN_Q2, /* query and gate rows */
    D_ATTN_OUT,
    D_ATTN_KV,
    D_HEAD_DIM,
    D_INDEX_Q,
    D_INDEX_K,
    D_INDEX_QK,
    D_PLE_WIDTH,
    D_PLE_ROW,
    D_PLE_TAPS,
    D_DIMS
};

struct q4e_file {
    uint64_t dims[D_DIMS];
    uint64_t layers, context, heads, kv_heads, rope_dims, sections[3];
    double epsilon, rope_base;
    uint64_t gdn_key_heads, gdn_key_dim;
    uint64_t experts_used;
    uint64_t index_heads, index_budget, index_block;
    bool recurrent[Q4E_MAX_LAYERS + 1];
    bool tied;
    bool has_ple;
    uint64_t ple_layer; /* zero-based */
    uint64_t ngram, heads_per_ngram, ple_heads, ple_eos, ngram_base, seed;
    uint64_t multipliers[Q4E_MAX_NGRAM], head_sizes[Q4E_MAX_NGRAM_HEADS], head_offsets[Q4E_MAX_NGRAM_HEADS];
    bool has_image_token;
    uint64_t image_token;
    bool has_draft_rope;
    double draft_rope_base;
};

/* Fills the sizes that follow from others: streams, heads and widths are set before. */
void q4e_derive_sizes(struct q4e_file *f);
/* Hash constants of the n-gram table as the settings imply them (multipliers, head_sizes, head_offsets). */
void q4e_derive_hash(struct q4e_file *f);
/* Rows that the heads of the n-gram table need. */
uint64_t q4e_ngram_rows(const struct q4e_file *f);

/* What the converter does to a tensor's values. */
enum q4e_map {
    Q4E_PLAIN,
    Q4E_PLUS_ONE,  /* stored as offset from one */
    Q4E_MINUS_EXP, /* A_log */
};

enum q4e_order {
    Q4E_KEEP,
    Q4E_V_ROWS,       /* value heads in the rows, after q and k */
    Q4E_HEAD_ROWS,    /* value heads in the rows, all of them */
    Q4E_HEAD_ENTRIES, /* one entry per value head */
    Q4E_HEAD_COLUMNS, /* value heads in the columns */
};

/* One tensor that is copied from one source: its dimensions in GGUF's order (ne0, ne1), how the source stores it, and which
 * rows of a larger source it takes. */
struct q4e_entry {
    const char *to, *from;
    enum q4e_dim ne0, ne1;
    enum q4e_map map;
    enum q4e_order order;
    bool fixed;  /* F32 always */
    bool middle; /* the source has a dimension of 1 before the last: [ne1, 1, ne0], [1, ne0] for a vector */
    enum q4e_dim first, rows; /* the source has `rows` rows, of which ne1 from `first` on are taken */
};


/* Groups of tensors: of the whole model, of every layer, of one kind of layer. Names in GGUF after "blk.N.", names of the
 * source after the layer's or the model's prefix. Experts, the n-gram table and the draft layer's projection are not here:
 * their sources have more than one form. */
enum {
    Q4E_GLOBALS = 4,
    Q4E_EVERY_LAYER = 13,
    Q4E_GDN_LAYER = 9,
    Q4E_ATTENTION_LAYER = 10,
    Q4E_PLE_LAYER = 6,
    Q4E_DRAFT_GLOBALS = 5,
};
extern const struct q4e_entry q4e_globals[Q4E_GLOBALS];
extern const struct q4e_entry q4e_every_layer[Q4E_EVERY_LAYER];
extern const struct q4e_entry q4e_gdn_layer[Q4E_GDN_LAYER];
extern const struct q4e_entry q4e_attention_layer[Q4E_ATTENTION_LAYER];
extern const struct q4e_entry q4e_ple_layer[Q4E_PLE_LAYER];
extern const struct q4e_entry q4e_draft_globals[Q4E_DRAFT_GLOBALS];
extern const struct q4e_entry q4e_head; /* absent when the embedding is used for both */

/* Keys of sizes and structure: for the trunk, or for a file with the draft layer alone. */
void q4e_set_keys(const struct q4e_file *f, bool draft, struct st_gguf_writer *w);

#endif
