/* The number of workers of a pass: see pace.h. */
#include "engine/pace.h"

/* The next try comes when 8 times the last one's time has been spent, 16 times when that one was in vain, and so on up
 * to
 * 64. A level has to be faster by a tenth to be taken. */
static const double least_patience = 8, most_patience = 64, better = 0.9;

struct st_pace st_pace(int threads)
{
    struct st_pace p = {.patience = least_patience};
    for (int n = threads; n >= 1 && p.levels<ST_PACE_LEVELS; n = n> 1 ? (n + 1) / 2 : 0)
        p.workers[p.levels++] = n;
    return p;
}

int st_pace_workers(struct st_pace *p)
{
    return p->workers[p->trying];
}

/* The level of the next pass. */
static int choose(const struct st_pace *p, uint64_t sleeps)
{
    bool fewer = p->at + 1 < p->levels && sleeps, more = p->at > 0;
    if (p->passes < ST_PACE_LAST || p->since < p->wait || (!fewer && !more))
        return p->at;
    return more && (p->up || !fewer) ? p->at - 1 : p->at + 1;
}

/* The middle one of the last times: the first pass, which brings in the weights, and those that another program held up
 * do not count for more than one. */
static double usual(const struct st_pace *p)
{
    double sorted[ST_PACE_LAST];
    for (unsigned i = 0; i < ST_PACE_LAST; i++) {
        unsigned at = i;
        for (; at > 0 && sorted[at - 1] > p->last[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = p->last[i];
    }
    return sorted[ST_PACE_LAST / 2];
}

void st_pace_report(struct st_pace *p, double cost, uint64_t sleeps)
{
    bool tried = p->trying != p->at, taken = tried && cost < better * usual(p);
    if (tried) {
        p->patience = taken ? least_patience : p->patience < most_patience ? 2 * p->patience : most_patience;
        p->since = 0;
        p->wait = p->patience * cost;
        p->up = taken ? p->up : !p->up;
    } else {
        p->since += cost;
    }
    if (taken) {
        p->at = p->trying;
        p->passes = 0;
    }
    if (taken || !tried)
        p->last[p->passes++ % ST_PACE_LAST] = cost;
    p->trying = choose(p, sleeps);
}
