/* One answer on the command line: text as it comes, progress, Ctrl-C, the closing line. */
#ifndef ST_CLI_ANSWER_H
#define ST_CLI_ANSWER_H

#include "cli/common.h"

struct st_answer {
    /* set by the caller */
    bool print;   /* text goes to standard output as it comes */
    bool collect; /* ids and log-probabilities go into the fields below */

    /* filled; released by st_answer_free */
    char *text;
    size_t size, room;
    json_t *ids;      /* array of integers */
    json_t *logprobs; /* array of {"id", "logprob", "top": [{"id", "logprob"}]}; NULL unless asked for */
    enum strata_end end;
    struct strata_stats stats;

    /* inside */
    bool progress, shown, failed;
    int reason; /* errno of a failure */
};

/* Generates with h's session. request->event and user are set here. Ctrl-C ends the answer with STRATA_END_CANCELLED, a
 * second one the program. */
int st_answer_generate(const struct st_host *h, struct strata_request *request, struct st_answer *a);
void st_answer_free(struct st_answer *a);

/* "prompt 10 tokens = 0 reused + 10 read in 12 ms (800.0 tok/s), 5 generated in 70 ms (71.4 tok/s)" on stderr. */
void st_answer_stats(const struct st_answer *a);

/* "stop_token", "stop_text", "length", "context", "cancelled" */
const char *st_end_name(enum strata_end end);

#endif
