/* Lanes: a thread with a first-in first-out list of jobs, of which several may be under way. */
#include "serve/server.h"

static void *lane_main(void *arg)
{
    struct st_lane *lane = arg;
    if (lane->begin)
        lane->begin(lane->server);
    pthread_mutex_lock(&lane->lock);
    while (!lane->stop || lane->under_way) {
        struct st_job *job = lane->stop || lane->under_way == lane->most ? NULL : lane->first;
        if (job && job->alone && lane->under_way)
            job = NULL;
        if (!job && !lane->under_way) {
            pthread_cond_wait(&lane->wake, &lane->lock);
            continue;
        }
        if (job)
            lane->first = job->lane_next;
        if (!lane->first)
            lane->last = NULL;
        pthread_mutex_unlock(&lane->lock);
        if (job)
            lane->work(lane->server, job);
        else
            lane->step(lane->server);
        pthread_mutex_lock(&lane->lock);
    }
    pthread_mutex_unlock(&lane->lock);
    return NULL;
}

enum strata_result st_lane_start(struct st_lane *lane, struct st_server *server, struct strata_error *err)
{
    lane->server = server;
    lane->most = 1;
    pthread_mutex_init(&lane->lock, NULL);
    pthread_cond_init(&lane->wake, NULL);
    if (pthread_create(&lane->thread, NULL, lane_main, lane) != 0)
        return st_fail(err, STRATA_E_MEMORY, "server: no thread could be started");
    lane->started = true;
    return STRATA_OK;
}

void st_lane_add(struct st_lane *lane, struct st_job *job)
{
    pthread_mutex_lock(&lane->lock);
    job->lane_next = NULL;
    if (lane->last)
        lane->last->lane_next = job;
    else
        lane->first = job;
    lane->last = job;
    pthread_cond_signal(&lane->wake);
    pthread_mutex_unlock(&lane->lock);
}

void st_lane_add_first(struct st_lane *lane, struct st_job *job)
{
    pthread_mutex_lock(&lane->lock);
    job->lane_next = lane->first;
    lane->first = job;
    if (!lane->last)
        lane->last = job;
    pthread_cond_signal(&lane->wake);
    pthread_mutex_unlock(&lane->lock);
}

bool st_lane_remove(struct st_lane *lane, struct st_job *job)
{
    bool found = false;
    pthread_mutex_lock(&lane->lock);
    struct st_job *before = NULL;
    for (struct st_job *j = lane->first; j; before = j, j = j->lane_next) {
        if (j != job)
            continue;
        if (before)
            before->lane_next = j->lane_next;
        else
            lane->first = j->lane_next;
        if (lane->last == j)
            lane->last = before;
        found = true;
        break;
    }
    pthread_mutex_unlock(&lane->lock);
    return found;
}

void st_lane_stop(struct st_lane *lane)
{
    if (!lane->started)
        return;
    pthread_mutex_lock(&lane->lock);
    lane->stop = true;
    pthread_cond_signal(&lane->wake);
    pthread_mutex_unlock(&lane->lock);
    pthread_join(lane->thread, NULL);
    pthread_mutex_destroy(&lane->lock);
    pthread_cond_destroy(&lane->wake);
    lane->started = false;
}
