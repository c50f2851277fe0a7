/* The number of workers of a pass: see pace.h. */
#include "engine/pace.h"

/* The next try comes when 8 times the last one's time has been spent, 16 times when that one was in vain, and so on up
 * to
 * 64. A level has to be faster by a tenth to be taken. */
static const double least_patience = 8, most_patience = 64, better = 0.9, newest = 0.25;

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
    if (p->since < p->wait || (!fewer && !more))
        return p->at;
    return more && (p->up || !fewer) ? p->at - 1 : p->at + 1;
}

void st_pace_report(struct st_pace *p, double cost, uint64_t sleeps)
{
    double *known = &p->cost[p->trying];
    if (p->trying != p->at) {
        /* A try is compared as it is: what was known of that level is from another time. */
        *known = cost;
        bool taken = cost < better * p->cost[p->at];
        p->at = taken ? p->trying : p->at;
        p->patience = taken ? least_patience : p->patience < most_patience ? 2 * p->patience : most_patience;
        p->since = 0;
        p->wait = p->patience * cost;
        p->up = taken ? p->up : !p->up;
    } else {
        if (*known == 0)
            p->wait = p->patience * cost; /* the first pass of all, which also brings in the weights */
        *known = *known == 0 ? cost : *known + newest * (cost - *known);
        p->since += cost;
    }
    p->trying = choose(p, sleeps);
}
