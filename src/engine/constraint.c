/* strata_constraint: text/constraint.h with a model's tokenizer and template. */
#include "text/constraint.h"

#include <pthread.h>
#include <stdlib.h>

#include "engine/engine.h"

/* Models are used from any thread, so the first constraint makes the tree under a lock. 248,000 tokens take about 10 MB. */
struct st_model_trie {
    pthread_mutex_t lock;
    struct st_trie *trie;
};

struct st_model_trie *st_model_trie_create(void)
{
    struct st_model_trie *t = calloc(1, sizeof *t);
    if (t)
        pthread_mutex_init(&t->lock, NULL);
    return t;
}

void st_model_trie_free(struct st_model_trie *t)
{
    if (!t)
        return;
    st_trie_free(t->trie);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

static enum strata_result trie_of(const struct strata_model *m, const struct st_trie **out, struct strata_error *err)
{
    struct st_model_trie *t = m->trie;
    enum strata_result r = STRATA_OK;
    if (!m->tokenizer)
        return m->no_text.code ? st_fail(err, m->no_text.code, "%s", m->no_text.text)
                               : st_fail(err, STRATA_E_UNSUPPORTED, "%s: no vocabulary, so no constraint either", m->name);
    pthread_mutex_lock(&t->lock);
    if (!t->trie)
        r = st_trie_create(m->tokenizer, &t->trie, err);
    *out = t->trie;
    pthread_mutex_unlock(&t->lock);
    return r;
}

enum strata_result strata_constraint_create(const struct strata_model *model, const struct strata_constraint_options *options,
                                            struct strata_constraint **out, struct strata_error *err)
{
    const struct st_trie *trie = NULL;
    *out = NULL;
    enum strata_result r = trie_of(model, &trie, err);
    return r ? r : st_constraint_create(options, model->template_text, trie, out, err);
}
