/* The writer's thread: see park_writer.h. */
#include "engine/park_writer.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

struct st_park_writer {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t change; /* of file, finished, end */
    /* Under lock: */
    struct st_session_writing *file; /* to be written; NULL: none, or the thread has it */
    bool finished, end;
    enum strata_result result;
    struct strata_error why;
    _Atomic bool stop;
};

/* Files until the end. */
static void *writer_main(void *p)
{
    struct st_park_writer *w = p;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->file && !w->end)
            pthread_cond_wait(&w->change, &w->lock);
        if (!w->file)
            break;
        struct st_session_writing *file = w->file;
        w->file = NULL;
        pthread_mutex_unlock(&w->lock);
        struct strata_error why = {0};
        enum strata_result r = st_session_write_end(file, &w->stop, &why);
        pthread_mutex_lock(&w->lock);
        w->result = r;
        w->why = why;
        w->finished = true;
        pthread_cond_broadcast(&w->change);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

enum strata_result st_park_writer_create(struct st_park_writer **out, struct strata_error *err)
{
    sigset_t all, before;
    struct st_park_writer *w = calloc(1, sizeof *w);
    if (!w)
        return st_fail(err, STRATA_E_MEMORY, "no memory for the writer of parked conversations");
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->change, NULL);
    sigfillset(&all); /* signals are the program's, also the one of a file that is too large for its limit */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&w->thread, NULL, writer_main, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed) {
        *out = w;
        return STRATA_OK;
    }
    pthread_cond_destroy(&w->change);
    pthread_mutex_destroy(&w->lock);
    free(w);
    return st_fail(err, STRATA_E_LIMIT, "the system refused a thread for the writer of parked conversations");
}

void st_park_writer_free(struct st_park_writer *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->end = true;
    pthread_cond_broadcast(&w->change);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->change);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

void st_park_writer_start(struct st_park_writer *w, struct st_session_writing *file)
{
    pthread_mutex_lock(&w->lock);
    w->file = file;
    w->finished = false;
    atomic_store(&w->stop, false);
    pthread_cond_broadcast(&w->change);
    pthread_mutex_unlock(&w->lock);
}

void st_park_writer_stop(struct st_park_writer *w)
{
    atomic_store(&w->stop, true);
}

bool st_park_writer_done(struct st_park_writer *w, bool wait, enum strata_result *r, struct strata_error *err)
{
    pthread_mutex_lock(&w->lock);
    while (wait && !w->finished)
        pthread_cond_wait(&w->change, &w->lock);
    bool done = w->finished;
    if (done) {
        w->finished = false;
        *r = w->result;
        *err = w->why;
    }
    pthread_mutex_unlock(&w->lock);
    return done;
}
