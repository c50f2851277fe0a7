/* How rows flow through the stages: in chunks, so that a stage computes a chunk while the next one computes the chunk
 * before. */
#ifndef ST_ENGINE_PIPELINE_H
#define ST_ENGINE_PIPELINE_H

#include "engine/engine.h"

/* One evaluation of a session: count tokens behind those it holds. Or a window: rows of several sessions, in one chunk. */
struct st_flow {
    struct strata_session *session;
    const struct st_input *in; /* its ids lie in the session already; of a window nothing but the count */
    const struct st_output *out;
    size_t chunk; /* rows of a chunk; the last one has what is left */
    const struct st_window_part *parts; /* NULL: no window */
    size_t n_parts;
    bool hold;    /* a window's rows are held, not taken (enum st_rows_mode) */
};

/* Bytes of one buffer between stages: the residual of a pass, in whole pages. */
uint64_t st_pipeline_buffer(const struct st_placement *placement, const struct st_model_dims *dims);
/* Bytes of the one between the last stage and its draft layer; 0: it does not draft. */
uint64_t st_pipeline_draft_buffer(const struct st_placement *placement, const struct st_model_dims *dims);
/* The page-locked buffers between neighbouring stages, ST_STAGE_PASSES at each of n_stages - 1 places, and the draft
 * layer's. A device that cannot page-lock them is named. */
enum strata_result st_pipeline_open(struct strata_engine *e, struct strata_error *err);
void st_pipeline_close(struct strata_engine *e);

/* Rows of a chunk for a prompt of count tokens: the engine's prefill, or less where several stages would otherwise wait for each
 * other. */
size_t st_pipeline_chunk(const struct strata_engine *e, size_t count);

/* Takes all chunks through all stages. *done: tokens that went through every stage, all of them unless out->chunk_done
 * ended it; the state of every stage is then that after *done tokens. After a failure nothing runs any more, and the
 * session's state is that of no token. */
enum strata_result st_pipeline_run(struct strata_engine *e, const struct st_flow *flow, size_t *done,
                                   struct strata_error *err);

/* One pass on one stage. */
enum strata_result st_stage_run(struct st_stage *stage, const struct st_pass *pass, struct strata_error *err);

#endif
